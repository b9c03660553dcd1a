//! A quorum whose URL names its members and nothing else, and what its clocks can do to it.

use std::time::Duration;

use super::support::{KEY, Quorum, claim, open};
use crate::engine::redis::tests::support::{Process, number, until};
use crate::engine::{Attempt, End, Grant, Renewal};
use crate::words::claim::Claim;

/// As long as a lease is where nobody says otherwise.
const LEASE: Duration = Duration::from_secs(30);

/// Asks until it is granted: three tenths of a second are little on a busy machine.
fn taken(process: &Process, claim: &Claim) -> Grant {
    let mut taken = None;
    until("it is granted", || match process.attempt(claim) {
        Attempt::Granted(grant) => {
            taken = Some(grant);
            true
        }
        _ => false,
    });
    taken.expect("it was granted")
}

#[test]
fn at_its_defaults_a_quorum_grants_renews_and_counts_a_restarted_member_after_a_minute() {
    let mut quorum = Quorum::long_up(3);
    let one = open(&quorum.bare_url()).expect("the members can be used");
    let asked = || Claim { ttl: LEASE, ..claim(&one, "a") };
    let held = asked();
    let first = number(&taken(&one, &held));
    until(
        "it is renewed",
        || matches!(one.renew(held.id), Renewal::Extended { ttl, .. } if ttl == LEASE),
    );
    assert!(matches!(one.release(held.id), End::Freed));
    quorum.until_clean("a");
    // Another run of it, without its data: with the third stopped one alone counts.
    quorum.0[0].restart();
    let met = || quorum.0[0].command(&["HGET", KEY, "met"]);
    until("it is met again", || met() != ["(nil)"]);
    quorum.0[2].stop();
    let next = asked();
    until("the reason is told, and the time", || match one.attempt(&next) {
        Attempt::Unknown(error) => error.message().contains("counts in"),
        other => panic!("too few count: {other:?}"),
    });
    quorum.pass(Duration::from_secs(61));
    // Whoever comes now is told how long it has been up; the others count the minute themselves.
    let later = open(&quorum.bare_url()).expect("a majority can be used");
    let next = Claim { ttl: LEASE, ..claim(&later, "a") };
    let second = number(&taken(&later, &next));
    assert!(second > first, "{first}, then {second}");
    quorum.0[2].go_on();
    assert!(matches!(later.release(next.id), End::Freed));
}

#[test]
fn l1_clocks_that_step_past_a_lease_give_two_holders_as_printed_and_still_rising_tokens() {
    const ROUNDS: usize = 10;
    let quorum = Quorum::long_up(3);
    let (one, two) = (open(&quorum.bare_url()), open(&quorum.bare_url()));
    let (one, two) = (one.expect("it opens"), two.expect("it opens"));
    let asked = |by, at: usize| Claim { ttl: LEASE, ..claim(by, &format!("a{at}")) };
    let mut both = 0;
    for at in 0..ROUNDS {
        let (held, next) = (asked(&one, at), asked(&two, at));
        let grant = taken(&one, &held);
        let over = grant.lease.and_then(|lease| lease.since).expect("it has one").plus(LEASE);
        until("it is held", || matches!(two.attempt(&next), Attempt::InLine(_)));
        quorum.pass(LEASE + Duration::from_secs(1));
        let second = taken(&two, &next);
        assert!(number(&second) > number(&grant), "what they guard can tell them apart");
        both += usize::from(one.now() < over);
        two.release(next.id);
    }
    assert!(both >= 9, "two held it in {both} of {ROUNDS} rounds");
    let about = one.engine.describe();
    assert!(about.breaks.iter().any(|text| text.contains("clock")), "{:?}", about.breaks);
}
