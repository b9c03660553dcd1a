//! What a hand-off asks of the members.

use std::time::Duration;

use lockkeeper_testkit::proxy::{Fault, Proxy, Way};

use super::super::watch::TOLD_BY_FEW;
use super::faults::ran;
use super::support::{Proxied, Quorum, TTL, claim, open, open_at};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, End, Event, Renewal, Standing};
use crate::words::claim::Claim;
use crate::words::clock::Clock;
use crate::words::id::ClaimId;
use crate::words::name::Kind;

/// The next thing that a waiter is told: to ask at once, or later.
fn told(event: &Event, id: ClaimId) -> Option<bool> {
    match event {
        Event::Wake { claim } if *claim == id => Some(true),
        Event::AskAt { claim, .. } if *claim == id => Some(false),
        _ => None,
    }
}

#[test]
fn r10_a_hand_off_costs_each_waiter_one_question() {
    for layout in ["native", "redisson"] {
        hand_off(layout);
    }
}

/// The clock of a waiter stands still while the members tell it of one release, so that they do so
/// at the same time, on a machine with much to do as well. Somebody else is faster, and has it.
fn hand_off(layout: &str) {
    let proxied = Proxied::before(Quorum::long_up(3));
    let quorum = &proxied.quorum;
    let options = format!("max_ttl=24h&server_timeout=10s&request_timeout=20s&layout={layout}");
    let direct = quorum.url().replace("max_ttl=24h&server_timeout=600ms", &options);
    let [one, two] = [&direct, &direct].map(|url| open(url).expect("they can be used"));
    let clock = Clock::virtual_at(Duration::from_secs(1_000_000));
    let three = open_at(&proxied.url(&options), clock.clone()).expect("they can be used");
    let long = |process: &Process| Claim { ttl: TTL * 30, ..claim(process, "a") };
    let [held, next, waiting] = [&one, &two, &three].map(long);
    granted(one.attempt(&held));
    until_all_have_it(&one, quorum, layout, &held);
    two.queue_claim(&next);
    three.queue_claim(&waiting);
    proxied.all(Way::Down, &Fault { hold: true, ..Fault::default() });
    assert!(matches!(one.release(held.id), End::Freed));
    granted(two.attempt_until(&next));
    until_all_have_it(&two, quorum, layout, &next);
    // A claim that is asked for reads the member's clock once.
    let before = ran(quorum, "time");

    let [first, second, last] = &proxied.proxies[..] else { panic!("there are three") };
    [first, second].into_iter().for_each(Proxy::heal);
    let mut words = [(); 2].map(|()| three.event("a word", |event| told(event, waiting.id)));
    words.sort_unstable();
    assert_eq!(words, [false, true], "one member alone may tell of a contender's minority");
    clock.advance(Duration::from_millis(1));
    assert!(matches!(three.attempt(&waiting), Attempt::InLine(_)), "{layout}: another has it");
    // For the first word it would ask now; it has since.
    clock.advance(TOLD_BY_FEW - Duration::from_millis(1));
    let standing = three.wait(three.engine.recheck(&[waiting.id]));
    assert!(matches!(&standing[..], [Standing::InLine(_)]), "{standing:?}");
    // The last member tells of the same release; what it answers after that is behind its word.
    last.heal();
    match layout {
        "native" => drop(three.list("nobody/")),
        _ => drop(three.look(Kind::Lock, "a")),
    }
    let more = three.event_within(Duration::ZERO, &mut |event| told(event, waiting.id));
    assert_eq!(more, None, "{layout}: what the others say of the same release is no news");
    let asked: Vec<u64> = ran(quorum, "time").iter().zip(before).map(|(n, b)| n - b).collect();
    assert_eq!(asked, [1; 3], "{layout}: one question to each member");

    // The next release is one.
    assert!(matches!(two.release(next.id), End::Freed));
    while !three.event("a word", |event| told(event, waiting.id)) {}
    granted(three.attempt_until(&waiting));
}

/// No answer to the claim is on its way any more. A member that it asked before the one before had
/// given back there gets it with a renewal.
fn until_all_have_it(process: &Process, quorum: &Quorum, layout: &str, claim: &Claim) {
    until("all have it", || {
        assert!(matches!(process.renew(claim.id), Renewal::Extended { .. }));
        match layout {
            "native" => quorum.with_record(claim) == 3,
            _ => {
                let owners = quorum.owners("a");
                let begins = claim.id.to_string()[..8].to_owned();
                owners.iter().all(|owner| owner.first().is_some_and(|one| one.starts_with(&begins)))
            }
        }
    });
}
