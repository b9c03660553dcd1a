//! Members whose clock was set back, or whose keys never end.

use std::time::Duration;

use lockkeeper_testkit::redis::server::RedisServer;

use super::support::{Quorum, TTL, claim};
use crate::engine::redis::tests::support::{granted, until};
use crate::engine::{Attempt, Renewal};
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
    for key in &keys {
        for left in quorum.last_for(key) {
            assert!(left <= LONG.as_millis() as i64, "{key}: for {left} ms");
            assert!(left > TTL.as_millis() as i64, "{key} is cut to its own lease: {left} ms");
        }
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
