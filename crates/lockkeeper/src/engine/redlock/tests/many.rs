//! Many names in one call to a member, compared with what they come to one by one.

use std::collections::BTreeMap;

use lockkeeper_testkit::dice::Dice;
use lockkeeper_testkit::redis::server::RedisServer;

use super::support::KEY;
use crate::engine::redis::client::pipe::{ALONE, Kind, Together};
use crate::engine::redis::client::resp::Value;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::tests::lean;
use crate::engine::redis::tests::many::{Crowd, FAR};
use crate::engine::redis::tests::pipe::answer;
use crate::words::id::ClaimId;

/// A lease that no test outlives.
const TTL_MS: &str = "300000";

/// One name as it stands, on two members.
#[derive(Clone, Debug)]
struct Name {
    at: usize,
    claim: ClaimId,
    /// Of the second of two claims of one name.
    number: u64,
    until: u64,
}

impl Name {
    fn key(&self, end: &str) -> String {
        format!("lockkeeper:{{redlock:n{}}}{end}", self.at)
    }

    fn keys(&self, ends: &[&str]) -> Vec<String> {
        let key = |end: &&str| if *end == KEY { KEY.to_owned() } else { self.key(end) };
        ends.iter().map(key).collect()
    }

    fn take(&self) -> Call {
        let ends = ["", ":last", KEY, ":readers", ":line", ":signs", ":turn"];
        let (number, until) = (self.number.to_string(), self.until.to_string());
        let claim = self.claim.to_string();
        let arguments =
            [&claim, "3", TTL_MS, &until, "h,1,2,p,,", &number, "77", "0", "run", "60000", "free"];
        Call {
            script: Which::QuorumTake,
            keys: self.keys(&ends).into(),
            arguments: arguments.into(),
        }
    }

    fn give(&self, round: &str) -> Call {
        Call {
            script: Which::QuorumGive,
            keys: self.keys(&["", ":line", ":signs", ":turn"]).into(),
            arguments: [&self.claim.to_string(), round, "", "free"].into(),
        }
    }

    /// What a member has of it; times are others on each.
    fn kept(&self, server: &RedisServer) -> String {
        let all = ["", ":last", ":readers", ":line", ":signs", ":turn"].map(|end| {
            let key = self.key(end);
            let kind = server.command(&["TYPE", &key]).remove(0);
            let value = match kind.as_str() {
                "string" => server.command(&["GET", &key]).concat(),
                "hash" => server.command(&["HVALS", &key]).join(" "),
                "zset" => server.command(&["ZRANGE", &key, "0", "-1"]).concat(),
                _ => String::new(),
            };
            let lives = server.command(&["PTTL", &key]).remove(0).parse::<i64>().unwrap();
            // In steps of a hundred seconds.
            let lives = if lives < 0 { lives } else { (lives + 50_000) / 100_000 };
            format!("{kind} {} {lives}", masked(&value))
        });
        all.join(" | ")
    }
}

/// Without the times of day in microseconds.
fn masked(text: &str) -> String {
    let mut words: Vec<&str> = text.split(' ').collect();
    words.iter_mut().filter(|word| word.len() == 16 && word.starts_with('1')).for_each(|word| {
        *word = if word.bytes().all(|byte| byte.is_ascii_digit()) { "#" } else { word };
    });
    words.join(" ")
}

/// What an answer says, without the time and what depends on it.
fn outcome(value: &Value) -> String {
    if let Value::Error(text) = value {
        return format!("error {}", text.split(" script:").next().unwrap());
    }
    let texts: Vec<&str> = value.items().iter().filter_map(Value::text).collect();
    match texts.first() {
        Some(&"Y" | &"D") => texts.iter().map(|text| masked(text)).collect::<Vec<_>>().join(" "),
        Some(word) => (*word).to_owned(),
        None => format!("{value:?}"),
    }
}

/// The member's clock, as a number.
pub(super) fn tick(server: &RedisServer) -> u64 {
    let time = server.command(&["TIME"]);
    let [seconds, micros] = [0, 1].map(|at: usize| time[at].parse::<u64>().unwrap());
    (seconds - 1_767_225_600) * 62_500 + micros / 16
}

/// The same on both: a record, a last number, readers, a line and a turn as members may have them.
fn random_name(dice: &mut Dice, at: usize, until: u64, servers: &[RedisServer]) -> Name {
    let other = ClaimId::fresh();
    let now = tick(&servers[0]);
    let mut name = Name { at, claim: ClaimId::fresh(), number: now + dice.below(9), until };
    let dices = [16, 12, 12, 12, 12].map(|sides| dice.below(sides));
    // A clock that is wrong, or one that is far behind: what is given then is above what is kept.
    if dices[1] < 4 && dice.chance(200) {
        name.number = if dice.chance(500) { now + 9_000_000_000 } else { 5 };
    }
    for server in servers {
        let key = |end: &str| name.key(end);
        let [record, last, readers, line, turn] = dices;
        let held = |claim: ClaimId, round: u64, version: u64| {
            let text = format!("{version} {claim} 7 {round} 99 1780272000000000 300000 h,1,2,p,,");
            server.command(&["SET", &key(""), &text, "PX", "300000"]);
        };
        match record {
            0 => held(other, 1, 1),
            // Ours, of an earlier round or of a later one.
            1..=3 => held(name.claim, 2, 1),
            4 => held(name.claim, 9, 1),
            5 => held(other, 1, 3),
            6 => _ = server.command(&["RPUSH", &key(""), "x"]),
            7 => _ = server.command(&["SET", &key(""), "what is this"]),
            _ => {}
        }
        let set = |text: &str| _ = server.command(&["SET", &key(":last"), text, "EX", "400000"]);
        match last {
            0..=3 => set("1000000"),
            4 => set(&(now + 600_000_000).to_string()),
            5 => set("99999999999999999"),
            6 => set("x"),
            7 => _ = server.command(&["RPUSH", &key(":last"), "x"]),
            _ => {}
        }
        if readers == 0 {
            let text = format!("9000000000000000 1 {other} 7 1 99 1780272000000000 300000 h,,,,,");
            server.command(&["HSET", &key(":readers"), &other.to_string(), &text]);
            server.command(&["PEXPIRE", &key(":readers"), "300000"]);
        }
        if line == 0 {
            server.command(&["ZADD", &key(":line"), "70", &other.to_string()]);
            let sign = (1_767_225_600_000_000 + now * 16).to_string();
            server.command(&["ZADD", &key(":signs"), &sign, &other.to_string()]);
        }
        let text = match turn {
            0 => "readers wait",
            1 | 2 => &format!("{other} 70 9000000000000000"),
            _ => continue,
        };
        server.command(&["SET", &key(":turn"), text, "PX", "300000"]);
    }
    name
}

/// What is answered to these, which leave in one call.
fn together(server: &RedisServer, round: usize, calls: &[Call]) -> Vec<Value> {
    let known = if round.is_multiple_of(2) { Together::Anew } else { Together::Known };
    let crowd = Crowd::of([Kind::QuorumTake, Kind::QuorumGive], known);
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

/// What is answered to one by itself.
fn by_itself(pipe: &mut lean::Pipe, call: &Call) -> Value {
    pipe.send(&[call.in_full()]).remove(0)
}

/// Two members that know the same of themselves, empty but for that.
fn forget(servers: &[RedisServer], dice: &mut Dice) {
    // Some below and some above what is proposed a few milliseconds later, or far above the clock.
    let now = tick(&servers[0]);
    let mut near = |odds| match dice.chance(odds) {
        true => (now + dice.below(600) + dice.below(10) / 9 * 700_000).to_string(),
        false => "0".into(),
    };
    let [floor, top, ahead] = [500, 300, 100].map(&mut near);
    let run = if dice.chance(800) { "run" } else { "another" };
    let layout = if dice.chance(950) { "2" } else { "3" };
    for server in servers {
        server.command(&["FLUSHALL"]);
        server.command(&["HSET", KEY, "run", run, "floor", &floor, "layout", layout]);
        server.command(&["HSET", KEY, "top", &top, "ahead", &ahead]);
    }
}

#[test]
fn r3_many_names_in_one_call_to_a_member_come_to_what_they_come_to_one_by_one() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let mut pipes = servers.each_ref().map(lean::Pipe::to);
    let (mut seen, mut dice) = (BTreeMap::new(), Dice::new(60));
    for round in 0..40 {
        forget(&servers, &mut dice);
        let until = if dice.chance(100) { 1 } else { FAR };
        let mut names: Vec<Name> =
            (0..12).map(|at| random_name(&mut dice, at, until, &servers)).collect();
        for _ in 0..4 {
            // Once more, or for another.
            let claim = dice.chance(500).then(ClaimId::fresh);
            let name = names[dice.below(12) as usize].clone();
            let number = name.number + dice.below(2);
            names.push(Name { claim: claim.unwrap_or(name.claim), number, ..name });
        }
        let calls: Vec<Call> = names.iter().map(Name::take).collect();
        let many = together(&servers[0], round, &calls);
        let mut alone = 0;
        let mut said: Vec<_> = names.iter().zip(&calls).zip(many).collect();
        // A number far ahead is what those have to pass that come after it: who asks alone is last.
        said.sort_by_key(|(_, said)| *said == Value::Error(ALONE.into()));
        for ((name, call), said) in said {
            let is_alone = said == Value::Error(ALONE.into());
            alone += usize::from(is_alone);
            let said = if is_alone { by_itself(&mut pipes[0], call) } else { said };
            let [said, ought] = [said, by_itself(&mut pipes[1], call)].map(|said| outcome(&said));
            assert_eq!(said, ought, "round {round}: {name:?}");
            *seen.entry(said.split([' ', ':']).next().unwrap().to_owned()).or_insert(0) += 1;
        }
        *seen.entry("alone".to_owned()).or_insert(0) += alone;
        for name in &names {
            let [is, ought] = [0, 1].map(|server: usize| name.kept(&servers[server]));
            assert_eq!(is, ought, "round {round}: {name:?}");
        }
    }
    println!("{seen:?}");
    for kind in ["Y", "T", "B", "R", "error", "alone"] {
        assert!(seen.get(kind).is_some_and(|count| *count > 5), "{kind}: {seen:?}");
    }
}

#[test]
fn r3_many_releases_in_one_call_to_a_member_come_to_what_they_come_to_one_by_one() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let mut pipes = servers.each_ref().map(lean::Pipe::to);
    let (mut seen, mut dice) = (BTreeMap::new(), Dice::new(61));
    for round in 0..40 {
        forget(&servers, &mut dice);
        let mut names: Vec<Name> =
            (0..15).map(|at| random_name(&mut dice, at, FAR, &servers)).collect();
        names.push(names[dice.below(15) as usize].clone());
        let calls: Vec<Call> = names.iter().map(|name| name.give("3")).collect();
        let many = together(&servers[0], round, &calls);
        for ((name, call), said) in names.iter().zip(&calls).zip(many) {
            let alone = said == Value::Error(ALONE.into());
            let said = if alone { by_itself(&mut pipes[0], call) } else { said };
            let [said, ought] = [said, by_itself(&mut pipes[1], call)].map(|said| outcome(&said));
            assert_eq!(said, ought, "round {round}: {name:?}");
            let word = said.split([' ', ':']).next().unwrap();
            *seen.entry(format!("{word} {alone}")).or_insert(0) += 1;
        }
        for name in &names {
            let [is, ought] = [0, 1].map(|server: usize| name.kept(&servers[server]));
            assert_eq!(is, ought, "round {round}: {name:?}");
        }
    }
    println!("{seen:?}");
    for kind in ["D false", "D true", "N true", "error true"] {
        assert!(seen.get(kind).is_some_and(|count| *count > 3), "{kind}: {seen:?}");
    }
}
