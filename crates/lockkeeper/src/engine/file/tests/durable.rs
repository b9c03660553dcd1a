//! `durable=true`: threads ask, and whoever takes a claim back comes before, between and after.

use super::*;

/// Waits until nothing is locked and nobody waits, as another process sees it.
fn until_free(peer: &Peer, what: &str) {
    until(what, || {
        let entry = peer.entry(Kind::Lock, "x");
        entry.holders.is_empty() && entry.waiters.is_empty()
    });
    until(what, || peer.can_get("x", Mode::Exclusive));
}

#[test]
fn r5_a_durable_claim_that_is_withdrawn_before_its_thread_asked_leaves_nothing_locked() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::with(dir.path(), true), Peer::with(dir.path(), true));
    for round in 0..60 {
        let held = (round % 2 == 0).then(|| b.get("x", Mode::Exclusive).0);
        let asks = claim("x", Mode::Exclusive);
        let asking = a.engine.attempt(&asks, Line::Join);
        // The answer to the claim is not looked at: whoever asked has left.
        let withdrawing = a.engine.withdraw(asks.id);
        if let Some(held) = held {
            b.release(held);
        }
        assert!(
            matches!(finish(withdrawing), End::Freed),
            "round {round}: it was asked, so it was undone"
        );
        drop(asking);
        until_free(&b, "the withdrawn claim is gone");
    }
}

#[test]
fn r5_a_durable_conversion_that_is_withdrawn_before_its_thread_asked_leaves_the_hold_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::with(dir.path(), true), Peer::with(dir.path(), true));
    let (up, _) = a.get("x", Mode::Upgradable);
    for round in 0..60 {
        let reading = (round % 2 == 0).then(|| b.get("x", Mode::Shared).0);
        let upgrade = claim("x", Mode::Exclusive);
        let converting = a.engine.convert(up, &upgrade);
        let withdrawing = a.engine.withdraw(upgrade.id);
        assert!(matches!(finish(withdrawing), End::Freed), "round {round}");
        drop(converting);
        if let Some(reading) = reading {
            b.release(reading);
        }
        assert!(b.can_get("x", Mode::Shared), "round {round}: readers come in again");
        assert!(
            !b.can_get("x", Mode::Upgradable),
            "round {round}: and it is still the upgradable one"
        );
    }
    a.release(up);
    until_free(&b, "the hold no longer exists");
}

#[test]
fn r5_a_durable_hold_that_is_released_under_its_conversion_leaves_nothing_locked() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::with(dir.path(), true), Peer::with(dir.path(), true));
    for round in 0..60 {
        let (up, _) = a.get("x", Mode::Upgradable);
        let upgrade = claim("x", Mode::Exclusive);
        let converting = a.engine.convert(up, &upgrade);
        let released = a.engine.release(&[up], None);
        assert!(matches!(finish(released).ends[..], [End::Freed]), "round {round}");
        drop(converting);
        until_free(&b, "the hold is gone with its conversion");
    }
}
