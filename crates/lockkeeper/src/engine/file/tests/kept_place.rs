//! The place that an exclusive holder keeps from its wait: nobody takes it for a waiter's.

use std::fs;

use super::super::bytes::{FLAGS_AT, Grip, Span, WAITERS};
use super::super::wire;
use super::*;

/// The lock file of `x`, as one who has no part in it.
fn file(dir: &Path) -> fs::File {
    fs::File::options().read(true).write(true).open(dir.join("x.lock")).unwrap()
}

/// How many flags are set, and whether anybody has a place.
fn line(dir: &Path) -> (usize, bool) {
    let (file, mut flags) = (file(dir), [0; WAITERS + 1]);
    wire::read_at(&file, &mut flags, FLAGS_AT).unwrap();
    let taken = wire::is_taken(&file, Span::WAITERS, Grip::Write).unwrap();
    (flags.iter().filter(|flag| **flag != 0).count(), taken)
}

/// A peer that holds `x` and has waited for it.
fn waited(dir: &Path, mode: Mode) -> (Peer, Peer, ClaimId) {
    let (a, b) = (Peer::new(dir), Peer::new(dir));
    let (hold, _) = a.get("x", Mode::Exclusive);
    let waiting = b.stand("x", mode);
    a.until_waiters(Kind::Lock, "x", 1);
    a.release(hold);
    b.granted(waiting);
    (a, b, waiting)
}

#[test]
fn a_holder_that_waited_keeps_its_place_until_it_releases_and_is_no_waiter() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, hold) = waited(dir.path(), Mode::Exclusive);
    assert_eq!(
        line(dir.path()),
        (1, true),
        "between the wake-up and the grant nothing takes it away"
    );
    assert_eq!(a.entry(Kind::Lock, "x").waiters, []);
    let ask = claim("x", Mode::Exclusive);
    let Attempt::InLine(place) = a.attempt(&ask, Line::Join) else { panic!() };
    assert_eq!(place.ahead, Some(0), "the holder is not ahead of itself");
    a.until_waiters(Kind::Lock, "x", 1);
    assert!(matches!(b.release(hold), End::Freed));
    a.granted(ask.id);
    assert_eq!(line(dir.path()), (1, true), "its own place");
    a.release(ask.id);
    assert_eq!(line(dir.path()), (0, false));
    assert!(a.can_get("x", Mode::Exclusive) && b.can_get("x", Mode::Exclusive));
}

#[test]
fn others_that_waited_keep_no_place() {
    for mode in [Mode::Shared, Mode::Upgradable] {
        let dir = tempfile::tempdir().unwrap();
        let (_a, _b, _hold) = waited(dir.path(), mode);
        assert_eq!(line(dir.path()), (0, false), "{mode:?}");
    }
}

#[test]
fn who_waited_and_goes_down_lets_tries_in() {
    for mode in [Mode::Shared, Mode::Upgradable] {
        let dir = tempfile::tempdir().unwrap();
        let (a, b, hold) = waited(dir.path(), Mode::Exclusive);
        let down = claim("x", mode);
        assert!(matches!(finish(b.engine.convert(hold, &down)), Attempt::Granted(_)));
        assert_eq!(line(dir.path()), (0, false), "{mode:?}");
        assert!(a.can_get("x", Mode::Shared), "{mode:?}");
        // One in the place that it had is a waiter.
        let waiting = a.stand("x", Mode::Exclusive);
        b.until_waiters(Kind::Lock, "x", 1);
        b.release(hold);
        a.granted(waiting);
    }
}

#[test]
fn a_holder_that_dies_with_its_place_leaves_a_flag_that_the_next_sweeps_away() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, hold) = waited(dir.path(), Mode::Exclusive);
    // What the kernel does to a process that is killed, before or in the middle of a release.
    for cut in [Span::ALL, Span { start: 0, len: 0 }] {
        let held = b.engine.0.state();
        wire::unlock(held.holds[&hold].share.file(), cut).unwrap();
    }
    assert_eq!(line(dir.path()), (1, false));
    assert_eq!(a.entry(Kind::Lock, "x").waiters, [], "a flag alone is nobody");
    assert!(a.can_get("x", Mode::Exclusive));
    assert_eq!(line(dir.path()), (0, false));
}

#[test]
fn in_the_middle_of_a_release_the_next_has_the_lock_and_a_claim_gets_it_in_line() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, hold) = waited(dir.path(), Mode::Exclusive);
    let next = a.stand("x", Mode::Exclusive);
    b.until_waiters(Kind::Lock, "x", 1);
    let unlock = || {
        let held = b.engine.0.state();
        wire::unlock(held.holds[&hold].share.file(), Span::ALL).unwrap();
    };
    unlock();
    a.granted(next);
    let waiting = |peer: &Peer| peer.entry(Kind::Lock, "x").waiters.len();
    assert_eq!(waiting(&a), 0, "one that is on its way out does not wait");
    a.release(next);
    // Nobody holds it now.
    let ask = claim("x", Mode::Exclusive);
    match a.attempt(&ask, Line::Join) {
        Attempt::InLine(_) => drop(a.granted(ask.id)),
        other => panic!("{other:?}"),
    }
    a.release(ask.id);
    assert!(matches!(b.release(hold), End::Freed));
    assert!(a.can_get("x", Mode::Exclusive));
    assert_eq!(line(dir.path()), (0, false));
}
