//! Many names in one call: requests for free locks and releases that gathered on a connection.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lockkeeper_testkit::dice::Dice;
use tokio::sync::oneshot;

use super::super::client::texts::Texts;
use super::super::pipe::{Broken, Outcome, Short, Together};
use super::super::resp::Value;
use super::super::script::{Call, Which};
use super::lean;
use super::pipe::{Ours, answer, connected, no_push};
use super::proxy::{Proxy, Way};
use super::releases::native_keys;
use super::server::RedisServer;
use super::support::{PATIENCE, Process, options, until};
use crate::engine::{Answer, Attempt, End, Line};
use crate::words::id::ClaimId;

/// No request comes late.
const FAR: u64 = (1 << 53) - 1;
/// So many replies are outstanding in a crowd.
const CROWD: usize = 8;

/// What a claim writes down about itself.
fn place(claim: ClaimId) -> String {
    format!("2 {claim} 0 x 1 30000 lockkeeper:process:{:032x} host:1:p 1 0 -", 1)
}

fn keys(record: &str, order: &[&str]) -> Texts {
    order.iter().map(|end| format!("{record}{end}")).collect()
}

fn take(record: &str, claim: ClaimId, until: u64) -> Call {
    let place = format!("{} ", place(claim));
    Call {
        script: Which::Take,
        keys: keys(record, &["", ":last", ":line"]),
        arguments: [place, "30000".to_owned(), until.to_string()].into(),
    }
}

fn give(record: &str, claim: ClaimId, number: u64) -> Call {
    Call {
        script: Which::Release,
        keys: keys(record, &["", ":line", ":last", ":watch"]),
        arguments: [format!("2 {claim} 0 "), number.to_string()].into(),
    }
}

/// A connection with so many replies outstanding that what is asked next gathers, and its other
/// end.
struct Crowd {
    ours: Ours,
    theirs: UnixStream,
    /// What comes before: its answers.
    first: Vec<oneshot::Receiver<Outcome>>,
}

impl Crowd {
    fn new(together: Together) -> Self {
        let (ours, theirs) = connected(40 * PATIENCE, no_push());
        ours.pipe.travel(together);
        let first = ours.send(CROWD);
        Self { ours, theirs, first }
    }

    fn asks(&self, call: &Call) -> oneshot::Receiver<Outcome> {
        self.ours.pipe.send_short(Short::of(call).expect("a short way"), call)
    }

    /// Until now nothing has reached a server: from here on this one answers.
    fn serve(&self, server: &RedisServer) {
        let there = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        let ways: [(Box<dyn std::io::Read + Send>, Box<dyn std::io::Write + Send>); 2] = [
            (Box::new(self.theirs.try_clone().unwrap()), Box::new(there.try_clone().unwrap())),
            (Box::new(there), Box::new(self.theirs.try_clone().unwrap())),
        ];
        self.theirs.set_read_timeout(None).unwrap();
        for (mut from, mut to) in ways {
            std::thread::spawn(move || _ = std::io::copy(&mut from, &mut to));
        }
    }

    fn end(self) {
        self.ours.end();
        drop(self.first);
    }
}

/// A connection of the test's own, over which scripts are called by themselves.
fn by_itself(pipe: &mut lean::Pipe, call: &Call) -> Value {
    pipe.send(&[call.in_full()]).remove(0)
}

/// Numbers and times are others each time.
fn masked(text: &str) -> String {
    let mut all = String::new();
    let mut digits = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        all += if digits.len() >= 12 { "#" } else { &digits };
        digits.clear();
        all.push(c);
    }
    all
}

/// What an answer comes to.
fn outcome(value: &Value) -> String {
    match value {
        Value::Text(number) => format!("granted {}", number.iter().all(u8::is_ascii_digit)),
        Value::Integer(n) => format!("D {n}"),
        Value::Error(text) => format!("error {}", text.split(" script:").next().unwrap()),
        value => value.items().first().and_then(Value::text).unwrap_or("?").to_owned(),
    }
}

/// What the server has under a key.
fn kept(server: &RedisServer, key: &str) -> String {
    let kind = server.command(&["TYPE", key]).remove(0);
    let value = match kind.as_str() {
        "string" => server.command(&["GET", key]),
        "hash" => server.command(&["HGETALL", key]),
        "zset" => server.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]),
        "list" => server.command(&["LRANGE", key, "0", "-1"]),
        _ => Vec::new(),
    };
    let lives = server.command(&["PTTL", key]).remove(0).parse::<i64>().unwrap();
    let lives = match lives {
        ..0 => "for ever",
        0..60_000 => "briefly",
        _ => "long",
    };
    format!("{kind} {} {lives}", masked(&value.join(" ")))
}

/// One name as it stands, in two places, and what is asked about it.
struct Name {
    records: [String; 2],
    asks: Vec<[Call; 2]>,
}

/// A record, a last number and a line as a server may have them, whoever wrote them.
fn random_name(dice: &mut Dice, at: usize, server: &RedisServer) -> Name {
    let records = ["one", "many"].map(|side| format!("{side}:{{lock:n{at}}}"));
    let [ours, other] = [ClaimId::fresh(), ClaimId::fresh()];
    let number = 1_000_000 + dice.below(1000);
    let (record, last, line) = (dice.below(12), dice.below(14), dice.below(8));
    let (given, taken) = match dice.below(3) {
        0 => (true, false),
        1 => (false, true),
        // Beside a line whose flag is lost it matters which of the two is first.
        _ => (true, line > 2 || (7..=8).contains(&last)),
    };
    let until = if dice.chance(150) { 1 } else { FAR };
    let mut asks = Vec::new();
    let asker = ClaimId::fresh();
    if given {
        asks.push(records.each_ref().map(|record| give(record, ours, number)));
    }
    if taken {
        asks.push(records.each_ref().map(|record| take(record, asker, until)));
    }
    for name in &records {
        let held = |claim: ClaimId, number: u64| format!("{} {number}", place(claim));
        let set = |text: &str| _ = server.command(&["SET", name, text, "PX", "30000"]);
        match record {
            0..=3 => set(&held(ours, number)),
            4 => set(&held(ours, number - 1)),
            5 => set(&held(other, number)),
            6 => set(&held(ours, number).replacen('2', "3", 1)),
            7 => set("what is this"),
            8 => _ = server.command(&["RPUSH", name, "x"]),
            _ => {}
        }
        let key = &format!("{name}:last");
        let set = |text: &str| _ = server.command(&["SET", key, text, "EX", "604800"]);
        match last {
            0..=5 => set(&number.to_string()),
            6 => set(&(number + 1).to_string()),
            7 => set(&format!("2:{number}:w")),
            8 => set(&format!("2:{number}:o")),
            9 => set(&format!("1:{number}:")),
            10 => set(&"9".repeat(15)),
            11 => set(&format!("00{number}")),
            12 => _ = server.command(&["RPUSH", key, "x"]),
            _ => {}
        }
        let key = &format!("{name}:line");
        match line {
            // Somebody left whose request may still be on its way.
            0 => _ = server.command(&["ZADD", key, "9000000000000000", &format!("w{other}")]),
            1 => {
                let lives = "9000000000000000";
                server.command(&["ZADD", key, "5", &place(other), lives, &format!("s{other}")]);
            }
            2 => _ = server.command(&["RPUSH", key, "x"]),
            _ => {}
        }
    }
    Name { records, asks }
}

#[test]
fn r3_many_names_in_one_call_come_to_what_they_come_to_one_after_the_other() {
    let server = RedisServer::start();
    let mut pipe = lean::Pipe::to(&server);
    let (mut seen, mut dice) = (std::collections::BTreeMap::new(), Dice::new(30));
    for which in [Which::Take, Which::Release] {
        server.command(&["SCRIPT", "LOAD", which.get().text()]);
    }
    for round in 0..25 {
        server.command(&["FLUSHALL"]);
        let names: Vec<Name> = (0..24).map(|at| random_name(&mut dice, at, &server)).collect();
        let crowd = Crowd::new(if round % 2 == 0 { Together::Anew } else { Together::Known });
        // In any order, but for the release of a name before the request behind it.
        let mut asks: Vec<(usize, usize)> = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let mut from = 0;
            for ask in 0..name.asks.len() {
                from += usize::try_from(dice.below((asks.len() - from) as u64 + 1)).unwrap();
                asks.insert(from, (at, ask));
                from += 1;
            }
        }
        let call = |(at, ask): (usize, usize), side: usize| &names[at].asks[ask][side];
        let asked: Vec<_> = asks.iter().map(|at| crowd.asks(call(*at, 1))).collect();
        server.command(&["CONFIG", "RESETSTAT"]);
        crowd.serve(&server);
        let mut many: Vec<Value> = asked.into_iter().map(answer).collect();
        let counts = server.command_counts();
        let groups = counts.get("mget").copied().unwrap_or(0);
        assert!(groups > 0, "{counts:?}");
        // What is in the way of a request is for its claim to find out.
        for (said, at) in many.iter_mut().zip(&asks) {
            if outcome(said) == "W" {
                *said = by_itself(&mut pipe, call(*at, 1));
            }
        }
        for (said, at) in many.iter().zip(&asks) {
            let alone = by_itself(&mut pipe, call(*at, 0));
            let what = call(*at, 1).script;
            let [alone, said] = [&alone, said].map(|v| outcome(v).replace("many:", "one:"));
            assert_eq!(said, alone, "round {round}, {what:?} of {}", names[at.0].records[1]);
            let word = said.split(' ').next().unwrap_or_default().to_owned();
            *seen.entry(format!("{what:?} {word}")).or_insert(0) += 1;
        }
        for name in &names {
            for end in ["", ":last", ":line", ":watch"] {
                let [one, many] =
                    name.records.each_ref().map(|record| kept(&server, &format!("{record}{end}")));
                assert_eq!(many, one, "round {round}, {}{end}", name.records[1]);
            }
        }
        crowd.end();
    }
    println!("{seen:?}");
    for kind in ["Take granted", "Take T", "Take W", "Take error", "Release D", "Release X"] {
        assert!(seen.get(kind).is_some_and(|count| *count > 5), "{kind}: {seen:?}");
    }
    assert!(seen.contains_key("Release error"), "{seen:?}");
}

#[test]
fn thirty_two_pairs_cost_the_server_two_calls_of_a_script_and_a_few_for_each_name() {
    let server = RedisServer::start();
    let claims: Vec<ClaimId> = (0..32).map(|_| ClaimId::fresh()).collect();
    let records: Vec<String> = (0..32).map(|at| format!("a:{{lock:n{at}}}")).collect();
    let round = |calls: Vec<Call>| {
        let crowd = Crowd::new(Together::Known);
        let asked: Vec<_> = calls.iter().map(|call| crowd.asks(call)).collect();
        crowd.serve(&server);
        let said: Vec<Value> = asked.into_iter().map(answer).collect();
        crowd.end();
        said
    };
    let both = records.iter().zip(&claims);
    let takes = || both.clone().map(|(record, claim)| take(record, *claim, FAR)).collect();
    let gives = |said: Vec<Value>| {
        let number = |value: &Value| value.unsigned().expect("a number");
        let all = both.clone().zip(said.iter().map(number));
        all.map(|((record, claim), number)| give(record, *claim, number)).collect()
    };
    // The server learns the scripts, and the names are used for the first time.
    for which in [Which::Many, Which::Take, Which::Release] {
        server.command(&["SCRIPT", "LOAD", which.get().text()]);
    }
    let freed = round(gives(round(takes())));
    assert!(freed.iter().all(|value| value.integer() == Some(1)), "{freed:?}");
    server.command(&["CONFIG", "RESETSTAT"]);
    round(gives(round(takes())));
    let counts = server.command_counts();
    let of = |name: &str| counts.get(name).copied().unwrap_or(0);
    assert_eq!((of("evalsha"), of("eval"), of("time")), (2, 0, 2), "{counts:?}");
    assert_eq!((of("mget"), of("get"), of("set"), of("del")), (2, 0, 64, 1), "{counts:?}");
}

/// Releases that are answered "alone": somebody watches.
fn watched(server: &RedisServer, record: &str, claim: ClaimId, number: u64) {
    server.command(&["SET", record, &format!("{} {number}", place(claim)), "PX", "300000"]);
    server.command(&["SET", &format!("{record}:last"), &format!("2:{number}:o")]);
}

#[test]
fn r9_a_release_whose_name_has_more_to_do_comes_before_whatever_was_asked_behind_it() {
    let server = RedisServer::start();
    let records = ["a:{lock:a}", "a:{lock:b}"];
    let claims = [ClaimId::fresh(), ClaimId::fresh()];
    for (record, claim) in records.iter().zip(claims) {
        watched(&server, record, claim, 7);
    }
    let crowd = Crowd::new(Together::Anew);
    let released = [0, 1].map(|at| crowd.asks(&give(records[at], claims[at], 7)));
    let tries = |record: &str| Call {
        script: Which::Acquire,
        keys: keys(record, &["", ":line", ":last", ":watch"]),
        arguments: [place(ClaimId::fresh()), FAR.to_string(), "try".to_owned()].into(),
    };
    let tried = crowd.ours.pipe.send(&[tries(records[0]).in_full()]).remove(0);
    server.command(&["SCRIPT", "LOAD", Which::Release.get().text()]);
    crowd.serve(&server);
    assert_eq!(outcome(&answer(tried)), "G", "the lock was given back before it was asked for");
    for one in released {
        assert_eq!(outcome(&answer(one)), "D", "each is told of its own release");
    }
    assert_eq!(server.command(&["EXISTS", records[1]]), ["0"]);
    crowd.end();
}

/// Reads commands until so many bytes of this kind have come, and gives them as one text.
fn read_until(server: &mut UnixStream, what: &str, times: usize) -> String {
    let (mut got, mut some) = (String::new(), [0; 4096]);
    while got.matches(what).count() < times {
        let length = server.read(&mut some).expect("it comes");
        assert!(length > 0, "{got}");
        got += std::str::from_utf8(&some[..length]).unwrap();
    }
    got
}

#[test]
fn a_call_that_the_server_refuses_as_a_whole_is_asked_for_each_name_by_itself() {
    for (refused, again) in [("NOSCRIPT No matching script", true), ("NOPERM no", false)] {
        let mut crowd = Crowd::new(Together::Known);
        let claim = ClaimId::fresh();
        let busy = crowd.ours.busy();
        let asked = ["a", "b"].map(|record| crowd.asks(&take(record, claim, FAR)));
        let given = crowd.asks(&give("c", claim, 7));
        drop(busy);
        read_until(&mut crowd.theirs, "2 ", 3);
        let said = format!("{}-{refused}\r\n", ":1\r\n".repeat(CROWD));
        crowd.theirs.write_all(said.as_bytes()).unwrap();
        let singles = read_until(&mut crowd.theirs, "EVALSHA", 3);
        assert!(!singles.contains(Which::Many.get().sha()), "{singles}");
        assert_eq!(singles.matches(Which::Take.get().sha()).count(), 2, "{singles}");
        assert_eq!(singles.matches(Which::Release.get().sha()).count(), 1, "{singles}");
        crowd.theirs.write_all(b"$1\r\n5\r\n-NOPERM not this one\r\n:1\r\n").unwrap();
        let [one, other] = asked.map(answer);
        assert_eq!(one, Value::Text(b"5".to_vec()));
        assert_eq!(other, Value::Error("NOPERM not this one".into()), "its error is its own");
        assert_eq!(answer(given), Value::Integer(1));
        // A script that is gone is brought along; what was refused otherwise is not sent again.
        crowd.first.extend(crowd.ours.send(CROWD));
        let busy = crowd.ours.busy();
        let asked = ["a", "b"].map(|record| crowd.asks(&take(record, claim, FAR)));
        drop(busy);
        let sent = read_until(&mut crowd.theirs, ":line", 2);
        assert_eq!(sent.contains("$4\r\nEVAL\r\n"), again, "{sent}");
        drop(asked);
        crowd.end();
    }
}

#[test]
fn r4_when_the_connection_ends_each_name_of_a_call_is_unknown_and_what_was_not_written_not_sent() {
    let mut crowd = Crowd::new(Together::Known);
    let claim = ClaimId::fresh();
    let ask = |crowd: &Crowd, names: std::ops::Range<usize>| -> Vec<_> {
        names.map(|n| crowd.asks(&take(&format!("n{n}"), claim, FAR))).collect()
    };
    let sent = ask(&crowd, 0..5);
    read_until(&mut crowd.theirs, "n4:line", 1);
    let busy = crowd.ours.busy();
    let gathers = ask(&crowd, 5..8);
    let Crowd { theirs, ours, first } = crowd;
    drop(theirs);
    drop(busy);
    for one in sent {
        let broken = one.blocking_recv().unwrap().unwrap_err();
        assert!(matches!(broken, Broken::Unknown(_)), "{broken:?}");
    }
    for one in gathers {
        let broken = one.blocking_recv().unwrap().unwrap_err();
        assert!(matches!(broken, Broken::NotSent(_)), "{broken:?}");
    }
    drop((ours, first));
}

#[test]
fn a_name_is_in_a_call_once_and_a_request_only_behind_its_release() {
    let mut crowd = Crowd::new(Together::Known);
    let claim = ClaimId::fresh();
    let busy = crowd.ours.busy();
    let (gives, takes) = (|name: &str| give(name, claim, 7), |name: &str| take(name, claim, FAR));
    // Each time a name comes again, or comes before its release, another call begins.
    let calls = [
        vec![gives("a"), takes("a"), takes("b"), gives("c")],
        vec![gives("b"), takes("d")],
        vec![gives("d"), takes("c"), gives("a")],
        vec![gives("a")],
    ];
    let asked: Vec<_> = calls.iter().flatten().map(|call| crowd.asks(call)).collect();
    drop(busy);
    let got = read_until(&mut crowd.theirs, "EVALSHA", 4);
    let named: Vec<usize> =
        got.split("EVALSHA").skip(1).map(|call| call.matches("\r\n2 ").count()).collect();
    assert_eq!(named[..3], [4, 2, 3], "{got}");
    assert!(got.contains(Which::Release.get().sha()), "the last one goes by itself: {got}");
    assert_eq!(got.matches(Which::Many.get().sha()).count(), 3);
    drop(asked);
    crowd.end();
}

#[test]
fn r5_callers_who_leave_while_their_requests_travel_together_leave_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let mut options = options(proxy.port());
    options.request_timeout = Duration::from_secs(60);
    let process = Process::with(options);
    let names: Vec<String> = (0..60).map(|n| format!("n{n}")).collect();
    let (warm, _) = process.take("warm", crate::words::claim::Mode::Exclusive);
    assert!(matches!(process.release(warm.id), End::Freed));
    proxy.hold(Way::Up);
    let claims: Vec<_> = names.iter().map(|name| process.exclusive(name)).collect();
    let asked: Vec<Answer<Attempt>> =
        claims.iter().map(|claim| process.engine.attempt(claim, Line::Join)).collect();
    let left: Vec<_> = claims.iter().map(|claim| process.engine.withdraw(claim.id)).collect();
    drop(asked);
    proxy.heal();
    for end in left {
        let end = process.wait(end);
        assert!(matches!(end, End::Freed | End::NotOurs), "{end:?}");
    }
    let counts = server.command_counts();
    assert!(counts["mget"] > 60, "they travelled together, and were left one by one: {counts:?}");
    let mut exists = vec!["EXISTS".to_owned()];
    exists.extend(native_keys(&names));
    let exists: Vec<&str> = exists.iter().map(String::as_str).collect();
    until("nothing is held", || server.command(&exists) == ["0"]);
}
