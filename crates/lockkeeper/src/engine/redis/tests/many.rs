//! Many names in one call: requests for free locks that gathered on a connection.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lockkeeper_testkit::dice::Dice;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::super::client::texts::Texts;
use super::super::pipe::{Broken, Outcome, Together};
use super::super::resp::{Command, Value};
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

/// A lease that no test outlives.
const TTL_MS: &str = "300000";

fn keys(record: &str, order: &[&str]) -> Texts {
    order.iter().map(|end| format!("{record}{end}")).collect()
}

fn take(record: &str, claim: ClaimId, until: u64) -> Call {
    let place = format!("{} ", place(claim));
    Call {
        script: Which::Take,
        keys: keys(record, &["", ":last", ":line"]),
        arguments: [place, TTL_MS.to_owned(), until.to_string()].into(),
    }
}

/// What asks with everything that may be in the way.
fn tries(record: &str, claim: ClaimId) -> Call {
    Call {
        script: Which::Acquire,
        keys: keys(record, &["", ":line", ":last", ":watch"]),
        arguments: [place(claim), FAR.to_string(), "try".to_owned()].into(),
    }
}

fn give(record: &str, claim: ClaimId) -> Command {
    let call = Call {
        script: Which::Release,
        keys: keys(record, &["", ":line", ":last", ":watch"]),
        arguments: [format!("2 {claim} 0 "), "7".to_owned()].into(),
    };
    call.by_name()
}

/// A connection with so many replies outstanding that what is asked next gathers, and its other
/// end.
struct Crowd {
    ours: Ours,
    theirs: UnixStream,
    /// What came before, and its answers.
    before: String,
    first: Vec<oneshot::Receiver<Outcome>>,
}

impl Crowd {
    fn new(together: Together) -> Self {
        let (ours, mut theirs) = connected(40 * PATIENCE, no_push());
        ours.pipe.travel(together);
        let first = ours.send(CROWD);
        // From here on the socket is known to take something, also while the driver stands still.
        let before = read_until(&mut theirs, "PING\r\n", CROWD);
        Self { ours, theirs, before, first }
    }

    fn asks(&self, call: &Call) -> oneshot::Receiver<Outcome> {
        self.ours.pipe.send_take(call)
    }

    /// Until now nothing has reached a server: from here on this one answers.
    fn serve(&self, server: &RedisServer) {
        let mut there = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        there.write_all(self.before.as_bytes()).unwrap();
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

/// Of what its own script gave, numbers and times are others each time.
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
        Value::Text(_) => "granted".to_owned(),
        Value::Integer(n) => format!("D {n}"),
        Value::Error(text) => format!("error {}", text.split(" script:").next().unwrap()),
        value => value.items().first().and_then(Value::text).unwrap_or("?").to_owned(),
    }
}

/// What the server has under a key, and for how long, in steps of a hundred seconds.
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
    let lives = if lives < 0 { lives } else { (lives + 50_000) / 100_000 };
    format!("{kind} {} {lives}", value.join(" "))
}

/// One name as it stands, in two places, and what is asked about it.
struct Name {
    records: [String; 2],
    claim: ClaimId,
    until: u64,
}

impl Name {
    fn take(&self, side: usize) -> Call {
        take(&self.records[side], self.claim, self.until)
    }

    /// What the server has in one of both places; the number that it gave last is shown as that.
    fn kept(&self, side: usize, server: &RedisServer, said: &Value) -> String {
        let ends = ["", ":last", ":line", ":watch"];
        let all = ends.map(|end| kept(server, &format!("{}{end}", self.records[side])));
        match said {
            Value::Text(number) => {
                all.join(" | ").replace(std::str::from_utf8(number).unwrap(), "its number")
            }
            _ => masked(&all.join(" | ")),
        }
    }
}

/// The server's clock, in the units of numbers.
fn tick(server: &RedisServer) -> u64 {
    let time = server.command(&["TIME"]);
    let [seconds, micros] = [0, 1].map(|at: usize| time[at].parse::<u64>().unwrap());
    (seconds - 1_767_225_600) * 62_500 + micros / 16
}

/// A record, a last number and a line as a server may have them, whoever wrote them.
fn random_name(dice: &mut Dice, at: usize, server: &RedisServer) -> Name {
    let records = ["one", "many"].map(|side| format!("{side}:{{lock:n{at}}}"));
    let [claim, other] = [ClaimId::fresh(), ClaimId::fresh()];
    let number = 1_000_000 + dice.below(1000);
    // Within the time in which the life of a last number does not begin anew.
    let recent = tick(server) - 1000;
    let (record, last, line) = (dice.below(12), dice.below(18), dice.below(8));
    let until = if dice.chance(150) { 1 } else { FAR };
    for name in &records {
        let held = |claim: ClaimId, number: u64| format!("{} {number}", place(claim));
        let set = |text: &str| _ = server.command(&["SET", name, text, "PX", "30000"]);
        match record {
            0 => set(&held(other, number)),
            1 => set(&held(claim, number)),
            2 => set(&held(other, number).replacen('2', "3", 1)),
            3 => set("what is this"),
            4 => _ = server.command(&["RPUSH", name, "x"]),
            _ => {}
        }
        let key = &format!("{name}:last");
        let set = |text: &str| _ = server.command(&["SET", key, text, "EX", "400000"]);
        match last {
            0..=3 => set(&number.to_string()),
            4..=6 => set(&recent.to_string()),
            7 => _ = server.command(&["SET", key, &recent.to_string()]),
            8 => _ = server.command(&["SET", key, &number.to_string()]),
            9 => set(&format!("2:{number}:w")),
            10 => set(&format!("2:{number}:o")),
            11 => set(&format!("1:{number}:")),
            12 => set(&"9".repeat(15)),
            13 => set(&format!("00{number}")),
            14 => _ = server.command(&["RPUSH", key, "x"]),
            15 => set(""),
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
    Name { records, claim, until }
}

#[test]
fn r3_many_names_in_one_call_come_to_what_they_come_to_one_after_the_other() {
    let server = RedisServer::start();
    let mut pipe = lean::Pipe::to(&server);
    let (mut seen, mut dice) = (std::collections::BTreeMap::new(), Dice::new(30));
    let (mut anew, mut keeps) = (0, 0);
    for round in 0..25 {
        server.command(&["FLUSHALL"]);
        let names: Vec<Name> = (0..24).map(|at| random_name(&mut dice, at, &server)).collect();
        let crowd = Crowd::new(if round % 2 == 0 { Together::Anew } else { Together::Known });
        let busy = crowd.ours.busy();
        let asked: Vec<_> = names.iter().map(|name| crowd.asks(&name.take(1))).collect();
        drop(busy);
        server.command(&["CONFIG", "RESETSTAT"]);
        crowd.serve(&server);
        let mut many: Vec<Value> = asked.into_iter().map(answer).collect();
        // By itself none of them calls it.
        let groups = server.command_counts().get("mget").copied();
        assert_eq!(groups, Some(1), "they went together");
        let mut one = vec![Value::Nil; names.len()];
        let order: Vec<usize> =
            if round % 3 == 0 { (0..24).rev().collect() } else { (0..24).collect() };
        for at in order {
            one[at] = by_itself(&mut pipe, &names[at].take(0));
        }
        for (at, name) in names.iter().enumerate() {
            // What is in the way of a request is for its claim to find out.
            let same = outcome(&one[at]) == "W" || matches!(one[at], Value::Error(_));
            if outcome(&many[at]) == "W" && same {
                many[at] = by_itself(&mut pipe, &tries(&name.records[1], name.claim));
                one[at] = by_itself(&mut pipe, &tries(&name.records[0], name.claim));
            }
            let [said, alone] =
                [&many[at], &one[at]].map(|value| outcome(value).replace("many:", "one:"));
            assert_eq!(said, alone, "round {round}, {}", name.records[1]);
            let [is, ought] = [(1, &many), (0, &one)]
                .map(|(side, said)| name.kept(side, &server, &said[at]).replace("many:", "one:"));
            assert_eq!(is, ought, "round {round}, {}", name.records[1]);
            if said == "granted" {
                anew += u32::from(is.contains("its number 6048 |"));
                keeps += u32::from(is.contains("its number 4000 |"));
            }
            *seen.entry(said.split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
        }
        crowd.end();
    }
    println!("{seen:?}, a life begins anew {anew} times and is kept {keeps} times");
    for kind in ["granted", "T", "G", "B", "error"] {
        assert!(seen.get(kind).is_some_and(|count| *count > 5), "{kind}: {seen:?}");
    }
    assert!(anew > 20 && keeps > 10, "{anew} {keeps}");
}

#[test]
fn thirty_two_locks_cost_the_server_one_call_of_a_script_and_two_writes_each() {
    let server = RedisServer::start();
    server.command(&["SCRIPT", "LOAD", Which::Many.get().text()]);
    let round = |number: u32| {
        let crowd = Crowd::new(Together::Known);
        // Whoever fills a call writes it: the driver has no part in it.
        let busy = crowd.ours.busy();
        let name = |at: u32| format!("a:{{lock:{number}-{at}}}");
        let asked: Vec<_> =
            (0..32).map(|at| crowd.asks(&take(&name(at), ClaimId::fresh(), FAR))).collect();
        crowd.serve(&server);
        until("they are locked", || {
            let named: Vec<String> = (0..32).map(name).collect();
            let exist = ["EXISTS"].into_iter().chain(named.iter().map(String::as_str));
            server.command(&exist.collect::<Vec<_>>()) == ["32"]
        });
        drop(busy);
        let said: Vec<Value> = asked.into_iter().map(answer).collect();
        assert!(said.iter().all(|value| value.unsigned().is_some()), "{said:?}");
        crowd.end();
    };
    server.command(&["CONFIG", "RESETSTAT"]);
    round(1);
    let counts = server.command_counts();
    let of = |name: &str| counts.get(name).copied().unwrap_or(0);
    assert_eq!((of("evalsha"), of("eval"), of("time")), (1, 0, 1), "{counts:?}");
    assert_eq!((of("mget"), of("get"), of("set")), (1, 0, 64), "{counts:?}");
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

/// How often these scripts are called by their names, and how often a script is brought along.
fn sent(bytes: &str) -> (usize, usize, usize) {
    let of = |which: Which| bytes.matches(which.get().sha()).count();
    (of(Which::Many), of(Which::Take), bytes.matches("$4\r\nEVAL\r\n").count())
}

#[test]
fn after_a_refused_call_each_name_asks_by_its_own_script_and_later_ones_go_as_the_refusal_says() {
    for (refused, later) in [
        ("NOSCRIPT No matching script", (0, 0, 1)),
        ("NOPERM no", (0, 2, 0)),
        ("ERR unknown command", (0, 2, 0)),
        ("BUSY Redis is busy running a script", (1, 0, 0)),
        ("LOADING Redis is loading", (1, 0, 0)),
    ] {
        let mut crowd = Crowd::new(Together::Known);
        let ask = |crowd: &Crowd, names: [&str; 2]| {
            let busy = crowd.ours.busy();
            let asked = names.map(|name| crowd.asks(&take(name, ClaimId::fresh(), FAR)));
            (busy, asked)
        };
        let (busy, asked) = ask(&crowd, ["n:a", "n:b"]);
        drop(busy);
        assert_eq!(sent(&read_until(&mut crowd.theirs, "n:b:line", 1)), (1, 0, 0));
        // These gather when the refusal comes.
        crowd.first.extend(crowd.ours.send(CROWD));
        let (busy, gather) = ask(&crowd, ["n:c", "n:d"]);
        let said = format!("{}-{refused}\r\n", ":1\r\n".repeat(CROWD));
        crowd.theirs.write_all(said.as_bytes()).unwrap();
        // A caller reads it, while the driver's thread does other things.
        let inlet = crowd.ours.pipe.inlet().unwrap();
        let told = asked.map(|mut one| {
            loop {
                match one.try_recv() {
                    Ok(told) => return told.unwrap().1,
                    Err(TryRecvError::Empty) => _ = inlet.take(true),
                    Err(TryRecvError::Closed) => panic!("nobody answers"),
                }
            }
        });
        drop(busy);
        for one in told {
            let Value::Error(text) = one else { panic!("{one:?}") };
            assert!(text.starts_with("NOSCRIPT"), "each brings its own script along: {text}");
        }
        let bytes = read_until(&mut crowd.theirs, ":line", 2);
        assert_eq!(sent(&bytes), later, "{refused}");
        drop(gather);
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
    let Crowd { theirs, ours, first, .. } = crowd;
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
fn r6_a_release_passes_by_what_gathers_but_for_a_request_for_the_same_lock() {
    let mut crowd = Crowd::new(Together::Known);
    let claim = ClaimId::fresh();
    let busy = crowd.ours.busy();
    let asks = |name: &str| crowd.asks(&take(name, claim, FAR));
    let mut asked = vec![asks("n:a"), asks("n:b")];
    let released = crowd.ours.pipe.send_now(&[give("n:c", claim)]);
    let mut theirs = crowd.theirs.try_clone().unwrap();
    // The driver's thread stands still.
    let bytes = read_until(&mut theirs, "n:c:watch", 1);
    assert_eq!(sent(&bytes), (0, 0, 0), "it waits for no company: {bytes}");
    asked.push(asks("n:d"));
    let again = crowd.ours.pipe.send_now(&[give("n:b", claim)]);
    let bytes = read_until(&mut theirs, "n:b:watch", 1);
    assert_eq!(sent(&bytes), (1, 0, 0));
    let line = bytes.find("n:d:line").expect("they went before it, all in one");
    assert!(line < bytes.find(Which::Release.get().sha()).unwrap(), "{bytes}");
    drop((busy, asked, released, again));
    crowd.theirs = theirs;
    crowd.end();
}

#[test]
fn r7_a_lock_whose_last_number_could_not_be_written_is_granted_by_its_own_script_alone() {
    let server = RedisServer::start();
    let mut pipe = lean::Pipe::to(&server);
    // Whoever asks may write records, and no last number.
    let may = ["~*", "+@all", "-set", "+set|n:a", "+set|n:b"];
    server.command(&[&["ACL", "SETUSER", "few", "on", "nopass"], may.as_slice()].concat());
    pipe.send(&[Command::new(["AUTH", "few", "any"])]);
    let mut texts = Texts::default();
    texts.extend(["n:a:last", "n:b:last", "n:a", "n:b", "n:a:line", "n:b:line"]);
    let place = format!("{} ", place(ClaimId::fresh()));
    let (far, mut arguments) = (FAR.to_string(), Texts::default());
    for _ in 0..2 {
        arguments.extend([place.as_str(), TTL_MS, &far]);
    }
    let call = Call { script: Which::Many, keys: texts, arguments };
    let said = pipe.send(&[call.in_full()]).remove(0);
    let letters = said.items().get(1).and_then(Value::text);
    assert_eq!(letters, Some("WW"), "{said:?}");
    assert_eq!(server.command(&["EXISTS", "n:a", "n:b"]), ["2"]);
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
    let stalled = process.stall();
    let asked: Vec<Answer<Attempt>> =
        claims.iter().map(|claim| process.engine.attempt(claim, Line::Join)).collect();
    let left: Vec<_> = claims.iter().map(|claim| process.engine.withdraw(claim.id)).collect();
    drop((asked, stalled));
    proxy.heal();
    for end in left {
        let end = process.wait(end);
        assert!(matches!(end, End::Freed | End::NotOurs), "{end:?}");
    }
    let counts = server.command_counts();
    let by_themselves = counts.get("get").copied().unwrap_or(0);
    assert!(by_themselves < 20, "they travelled together: {counts:?}");
    let mut exists = vec!["EXISTS".to_owned()];
    exists.extend(native_keys(&names));
    let exists: Vec<&str> = exists.iter().map(String::as_str).collect();
    until("nothing is held", || server.command(&exists) == ["0"]);
}
