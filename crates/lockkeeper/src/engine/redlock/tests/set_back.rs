//! Members whose clock was set back, or whose keys never end.

use std::time::Duration;

use lockkeeper_testkit::redis::server::RedisServer;

use super::support::{KEY, Quorum, TTL, claim, in_full};
use super::tokens::turn;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::tests::support::{granted, until};
use crate::engine::{Attempt, Number, Renewal};
use crate::words::claim::{Claim, Mode};
use crate::words::id::ClaimId;

/// The lease of whoever holds, and of whoever asks.
const LONG: Duration = Duration::from_secs(3_600);

impl Quorum {
    /// How long a key lasts on each member, in milliseconds.
    fn last_for(&self, key: &str) -> Vec<i64> {
        let ask = |server: &RedisServer| {
            server.command(&["PTTL", key]).concat().parse().expect("a number")
        };
        self.0.iter().map(ask).collect()
    }
}

#[test]
fn r3_whoever_meets_a_lease_that_lasts_too_long_cuts_it_to_its_own_length() {
    let quorum = Quorum::long_up(3);
    let [one, two] = [quorum.process(), quorum.process()];
    let written = Claim { ttl: LONG, ..claim(&one, "written") };
    let read = Claim { ttl: LONG, ..one.claim("read", Mode::Shared) };
    for held in [&written, &read] {
        granted(one.attempt_until(held));
    }
    quorum.set_back(LONG * 10);
    let record = |name: &str| format!("lockkeeper:{{redlock:{name}}}");
    let keys = [record("written"), record("read"), record("read") + ":readers"];
    assert!(quorum.last_for(&keys[0])[0] > LONG.as_millis() as i64, "its clock was set back");
    quorum.0[1].command(&["PERSIST", &keys[0]]);
    for name in ["written", "read"] {
        let waits = claim(&two, name);
        assert!(matches!(two.attempt(&waits), Attempt::InLine(_)), "{name} is held");
    }
    let own = |left: &i64| (TTL.as_millis() as i64 + 1..=LONG.as_millis() as i64).contains(left);
    for key in &keys {
        until(&format!("{key} is cut to its own lease"), || quorum.last_for(key).iter().all(own));
    }
    for held in [&written, &read] {
        assert!(matches!(one.renew(held.id), Renewal::Extended { .. }), "{}", held.name);
    }
}

#[test]
fn r3_a_renewal_writes_down_how_long_it_lasts() {
    let quorum = Quorum::of(3);
    let process = quorum.process();
    let held = claim(&process, "a");
    granted(process.attempt_until(&held));
    let text = quorum.records("a")[0].clone();
    let mut words: Vec<&str> = text.split(' ').collect();
    words[6] = "7";
    let key = "lockkeeper:{redlock:a}";
    quorum.0[0].command(&["SET", key, &words.join(" "), "PX", "60000"]);
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    let ttl = TTL.as_millis().to_string();
    until("all say it", || {
        let records = quorum.records("a");
        records.iter().all(|text| text.split(' ').nth(6) == Some(&ttl))
    });
}

/// Somebody else's record, as of a contender.
fn contends(quorum: &Quorum, member: usize, name: &str) -> String {
    let key = format!("lockkeeper:{{redlock:{name}}}");
    let id = ClaimId::fresh();
    let text = format!("1 {id} 9000000000000 1 1 1 60000 who");
    quorum.0[member].command(&["SET", &key, &text, "PX", "60000"]);
    key
}

/// What a member gives for a name to whoever proposes nothing, as of a clock that is far behind.
fn given(server: &RedisServer, name: &str) -> u64 {
    let record = format!("lockkeeper:{{redlock:{name}}}");
    let [last, readers] = ["last", "readers"].map(|key| format!("{record}:{key}"));
    let [line, signs, turn] = ["line", "signs", "turn"].map(|key| format!("{record}:{key}"));
    let keys = [&record, &last, KEY, &readers, &line, &signs, &turn].into_iter().collect();
    let (claim, run) = (ClaimId::fresh().to_string(), server.command(&["HGET", KEY, "run"]));
    let words = [&*claim, "1", "2000", "9000000000000000", "who", "1", "1", "0", &run[0], "1", "a"];
    let call = Call { script: Which::QuorumTake, keys, arguments: words.into() };
    let words = in_full(&call);
    let said = server.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(said[0], "Y", "{name}: {said:?}");
    said[2].parse().expect("a number")
}

#[test]
fn r7_numbers_of_before_the_clock_was_set_back_are_not_fallen_short_of_once_they_are_forgotten() {
    let (day, quorum) = (LONG * 24, Quorum::long_up(3));
    let one = quorum.process();
    let number = |attempt| match granted(attempt).number {
        Number::Ours(number) => number,
        other => panic!("{other:?} is no number of ours"),
    };
    // The last of them has the greatest number of all.
    let names = ["held", "earlier", "last"];
    let held = Claim { ttl: LONG, ..claim(&one, "held") };
    let mut before = vec![number(one.attempt_until(&held))];
    before.extend(names[1..].iter().map(|name| turn(&one, name)));
    quorum.set_back(day * 2);
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
    let two = quorum.process();
    for _ in 0..3 {
        for (name, before) in names.iter().zip(&mut before).skip(1) {
            let after = turn(&two, name);
            assert!(after > *before, "TOKEN BACK: {name}: {after} follows {before}");
            *before = after;
        }
    }
    for (name, before) in names.iter().zip(&before) {
        let keeps = |last: &String| last.parse::<u64>().is_ok_and(|last| last >= *before);
        until("all keep it", || quorum.last(name).iter().all(keeps));
    }
    quorum.pass(day * 7 + LONG);
    for (name, before) in names.iter().zip(before) {
        for (server, last) in quorum.0.iter().zip(quorum.last(name)) {
            assert_eq!(last, "(nil)", "{name} is kept for a week");
            let after = given(server, name);
            assert!(after > before, "TOKEN BACK: {name}: {after} follows {before}");
        }
    }
}

#[test]
fn h4_a_hold_that_others_kept_from_a_minority_takes_what_they_give_up() {
    let quorum = Quorum::of(5);
    let process = quorum.process();
    let [third, fourth] = [3, 4].map(|member| contends(&quorum, member, "a"));
    let held = Claim { ttl: TTL * 10, ..claim(&process, "a") };
    granted(process.attempt_until(&held));
    assert!(quorum.records("a")[3..].iter().all(|text| !text.contains(&held.id.to_string())));
    quorum.0[3].command(&["DEL", &third]);
    quorum.0[4].command(&["DEL", &fourth]);
    until("all have it", || quorum.with_record(&held) == 5);
    // What it had before it had all says that it is a hold's: nobody keeps anything beside it.
    let first = |text: &String| text.split(' ').nth(2).map(str::to_owned);
    assert_eq!(quorum.records("a")[..3].iter().filter_map(first).collect::<Vec<_>>(), ["0"; 3]);
}
