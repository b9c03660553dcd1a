//! What many names in one call come to, compared with what they come to one by one.

use lockkeeper_testkit::dice::Dice;

use super::super::pipe::{ALONE, Together};
use super::super::resp::Value;
use super::super::script::{Call, Which};
use super::lean;
use super::many::{Crowd, FAR, give, keys, place, plain_give, take};
use super::pipe::answer;
use super::server::RedisServer;
use crate::words::id::ClaimId;

/// What asks with everything that may be in the way.
fn tries(record: &str, place: String) -> Call {
    Call {
        script: Which::Acquire,
        keys: keys(record, &["", ":line", ":last", ":watch"]),
        arguments: [place, FAR.to_string(), "try".to_owned()].into(),
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

/// What is answered to these, which leave in one call.
fn together(server: &RedisServer, round: usize, calls: &[Call]) -> Vec<Value> {
    let crowd = Crowd::new(if round % 2 == 0 { Together::Anew } else { Together::Known });
    let busy = crowd.ours.busy();
    let asked: Vec<_> = calls.iter().map(|call| crowd.asks(call)).collect();
    drop(busy);
    server.command(&["CONFIG", "RESETSTAT"]);
    crowd.serve(server);
    let said = asked.into_iter().map(answer).collect();
    let counts = server.command_counts();
    let calls = ["eval", "evalsha"].map(|name| counts.get(name).copied().unwrap_or(0));
    assert_eq!(calls.iter().sum::<u64>(), 1, "they went together: {counts:?}");
    crowd.end();
    said
}

/// What is answered to these one by one, in any order; but those about one lock keep theirs.
fn one_by_one(pipe: &mut lean::Pipe, dice: &mut Dice, calls: &[Call]) -> Vec<Value> {
    let record = |at: usize| calls[at].keys.first().unwrap().to_owned();
    let mut order: Vec<(u64, usize)> = Vec::new();
    for at in 0..calls.len() {
        let same = order.iter().find(|(_, other)| record(*other) == record(at));
        order.push((same.map_or_else(|| dice.roll(), |(rank, _)| *rank), at));
    }
    order.sort_unstable();
    let mut said = vec![Value::Nil; calls.len()];
    for (_, at) in order {
        said[at] = by_itself(pipe, &calls[at]);
    }
    said
}

/// One name as it stands, in two places, and what is asked about it.
#[derive(Clone)]
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

/// A record, a last number, a line and a watch as a server may have them, whoever wrote them.
fn random_name(
    (dice, pipe): (&mut Dice, &mut lean::Pipe),
    at: usize,
    until: u64,
    server: &RedisServer,
) -> Name {
    let records = ["one", "many"].map(|side| format!("{side}:{{lock:n{at}}}"));
    let [claim, other] = [ClaimId::fresh(), ClaimId::fresh()];
    let number = 1_000_000 + dice.below(1000);
    // Within the time in which the life of a last number does not begin anew.
    let recent = tick(server) - 1000;
    let (record, last, line) = (dice.below(14), dice.below(18), dice.below(8));
    let watched = dice.chance(200);
    for name in &records {
        let held = |claim: ClaimId, number: u64| format!("{} {number}", place(claim));
        let set = |text: &str| _ = server.command(&["SET", name, text, "PX", "30000"]);
        match record {
            0 => set(&held(other, number)),
            // Ours, perhaps with the number that was given last.
            1 | 2 => set(&held(claim, if record == 1 { number } else { recent })),
            3 => set(&held(other, number).replacen('2', "3", 1)),
            4 => set("what is this"),
            5 => _ = server.command(&["RPUSH", name, "x"]),
            // Shared by two, of which we are one.
            6 => [claim, other].into_iter().for_each(|claim| {
                by_itself(pipe, &tries(name, place(claim).replacen(" x ", " s ", 1)));
            }),
            _ => {}
        }
        if watched {
            server.command(&["SET", &format!("{name}:watch"), "1", "PX", "15000"]);
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
        // Those that leave together have one `not_after`.
        let until = if dice.chance(150) { 1 } else { FAR };
        let mut names: Vec<Name> =
            (0..24).map(|at| random_name((&mut dice, &mut pipe), at, until, &server)).collect();
        for _ in 0..6 {
            // Once more, or for another.
            let claim = dice.chance(500).then(ClaimId::fresh);
            let name = names[dice.below(24) as usize].clone();
            names.push(Name { claim: claim.unwrap_or(name.claim), ..name });
        }
        let calls = [0, 1].map(|side| names.iter().map(|name| name.take(side)).collect::<Vec<_>>());
        let mut many = together(&server, round, &calls[1]);
        let mut one = one_by_one(&mut pipe, &mut dice, &calls[0]);
        for (at, name) in names.iter().enumerate() {
            // What is in the way of a request is for its claim to find out.
            let same = outcome(&one[at]) == "W" || matches!(one[at], Value::Error(_));
            if outcome(&many[at]) == "W" && same {
                many[at] = by_itself(&mut pipe, &tries(&name.records[1], place(name.claim)));
                one[at] = by_itself(&mut pipe, &tries(&name.records[0], place(name.claim)));
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
    }
    println!("{seen:?}, a life begins anew {anew} times and is kept {keeps} times");
    for kind in ["granted", "T", "G", "B", "error"] {
        assert!(seen.get(kind).is_some_and(|count| *count > 5), "{kind}: {seen:?}");
    }
    assert!(anew > 20 && keeps > 10, "{anew} {keeps}");
}

#[test]
fn r3_many_releases_in_one_call_come_to_what_they_come_to_one_after_the_other() {
    let server = RedisServer::start();
    let mut pipe = lean::Pipe::to(&server);
    let (mut seen, mut dice) = (std::collections::BTreeMap::new(), Dice::new(31));
    for round in 0..25 {
        server.command(&["FLUSHALL"]);
        let names: Vec<Name> =
            (0..24).map(|at| random_name((&mut dice, &mut pipe), at, FAR, &server)).collect();
        // What last says of each, where it is a number: mostly that is what its claim was given.
        let numbers: Vec<u64> = names
            .iter()
            .map(|name| {
                let last = format!("{}:last", name.records[1]);
                let string = server.command(&["TYPE", &last]) == ["string"];
                let kept = if string { server.command(&["GET", &last]) } else { Vec::new() };
                let known = kept.first().and_then(|kept| kept.parse().ok());
                known.filter(|_| !dice.chance(100)).unwrap_or(1_000_000)
            })
            .collect();
        let calls = [0, 1].map(|side| {
            let call =
                |(name, n): (&Name, &u64)| give(&name.records[side], name.claim, &n.to_string());
            names.iter().zip(&numbers).map(call).collect::<Vec<_>>()
        });
        let many = together(&server, round, &calls[1]);
        let one = one_by_one(&mut pipe, &mut dice, &calls[0]);
        for (at, name) in names.iter().enumerate() {
            let alone = many[at] == Value::Error(ALONE.into());
            let said = match alone {
                true => by_itself(&mut pipe, &calls[1][at]),
                false => many[at].clone(),
            };
            let said = format!("{} {alone}", outcome(&said).replace("many:", "one:"));
            // On the short way it says no more.
            let short = one[at] == Value::Integer(1);
            assert_eq!(said, format!("{} {}", outcome(&one[at]).replace("many:", "one:"), !short));
            let [is, ought] =
                [1, 0].map(|side| name.kept(side, &server, &Value::Nil).replace("many:", "one:"));
            assert_eq!(is, ought, "round {round}, {}", name.records[1]);
            *seen.entry(said.replace(char::is_numeric, "")).or_insert(0) += 1;
        }
    }
    println!("{seen:?}");
    for kind in ["D  false", "D true", "X true"] {
        assert!(seen.get(kind).is_some_and(|count| *count > 3), "{kind}: {seen:?}");
    }
}

/// What somebody may have under a key of the layout `plain`, beside a claim with this value.
fn random_plain(dice: &mut Dice, key: &str, value: &str, server: &RedisServer) {
    let set = |text: &str| _ = server.command(&["SET", key, text, "PX", "30000"]);
    match dice.below(10) {
        0..=3 => set(value),
        4 => _ = server.command(&["SET", key, value]),
        5 => set(&value.replace(char::is_numeric, "x")),
        // A longer one that begins so, or a shorter one.
        6 => set(&format!("{value}1")),
        7 => set(value.get(..8).unwrap()),
        8 => _ = server.command(&["HSET", key, value, "1"]),
        _ => {}
    }
}

#[test]
fn r3_many_releases_of_the_layout_plain_come_to_what_they_come_to_one_after_the_other() {
    let server = RedisServer::start();
    let mut pipe = lean::Pipe::to(&server);
    let (mut seen, mut dice) = (std::collections::BTreeMap::new(), Dice::new(32));
    for round in 0..25 {
        server.command(&["FLUSHALL"]);
        let claims: Vec<String> = (0..24).map(|_| ClaimId::fresh().to_string()).collect();
        let calls = ["one:", "many:"].map(|side| {
            let name = |(at, value): (usize, &String)| plain_give(&format!("{side}{at}"), value);
            claims.iter().enumerate().map(name).collect::<Vec<_>>()
        });
        for (at, value) in claims.iter().enumerate() {
            let same = dice.split();
            for side in ["one:", "many:"] {
                random_plain(&mut same.clone(), &format!("{side}{at}"), value, &server);
            }
        }
        let many = together(&server, round, &calls[1]);
        let one = one_by_one(&mut pipe, &mut dice, &calls[0]);
        for at in 0..claims.len() {
            let alone = many[at] == Value::Error(ALONE.into());
            let said = match alone {
                true => by_itself(&mut pipe, &calls[1][at]),
                false => many[at].clone(),
            };
            assert_eq!(outcome(&said).replace("D 1", "D"), outcome(&one[at]), "{at}: {one:?}");
            assert_eq!(alone, outcome(&one[at]) != "D", "{at}: {one:?}");
            let [is, ought] = ["many:", "one:"].map(|side| kept(&server, &format!("{side}{at}")));
            assert_eq!(is, ought, "round {round}, {at}");
            let said = outcome(&said).split(' ').next().unwrap().to_owned();
            *seen.entry(said).or_insert(0) += 1;
        }
    }
    println!("{seen:?}");
    for kind in ["D", "X", "error"] {
        assert!(seen.get(kind).is_some_and(|count| *count > 20), "{kind}: {seen:?}");
    }
}
