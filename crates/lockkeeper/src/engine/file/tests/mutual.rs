use super::*;
use crate::ErrorKind;

#[test]
fn a_busy_answer_names_the_holder() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (hold, number) = a.get("x", Mode::Exclusive);
    let Attempt::Busy(Some(holder)) = b.attempt(&claim("x", Mode::Exclusive), Line::Try) else {
        panic!()
    };
    assert_eq!(
        (holder.claim, holder.pid, holder.host.as_deref()),
        (Some(hold), Some(std::process::id()), Some("here"))
    );
    assert_eq!((holder.token, holder.mode), (crate::Token::of(number, 0), Some(Mode::Exclusive)));
}

#[test]
fn who_waits_is_granted_when_the_holder_lets_go_in_the_order_in_which_they_came() {
    let dir = tempfile::tempdir().unwrap();
    let peers: Vec<_> = (0..5).map(|_| Peer::new(dir.path())).collect();
    let (mut hold, mut last) = peers[0].get("x", Mode::Exclusive);
    let mut waiting = Vec::new();
    for (at, peer) in peers.iter().enumerate().skip(1) {
        waiting.push(peer.stand("x", Mode::Exclusive));
        peers[0].until_waiters(Kind::Lock, "x", at);
    }
    for (at, claim) in waiting.into_iter().enumerate() {
        assert!(peers[at + 1].is_silent());
        peers[at].release(hold);
        let number = peers[at + 1].granted(claim);
        assert!(number > last, "BROKEN LOCK: a token went back");
        (hold, last) = (claim, number);
    }
}

#[test]
fn r11_a_try_never_overtakes_who_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, c) = (Peer::new(dir.path()), Peer::new(dir.path()), Peer::new(dir.path()));
    for _ in 0..200 {
        let (hold, _) = a.get("x", Mode::Exclusive);
        let waiting = b.stand("x", Mode::Exclusive);
        c.until_waiters(Kind::Lock, "x", 1);
        a.release(hold);
        assert!(!c.can_get("x", Mode::Exclusive), "before or after the hand-over, it is not free");
        b.granted(waiting);
        b.release(waiting);
    }
}

#[test]
fn a_release_can_stand_in_line_again_and_both_get_it() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (hold, _) = a.get("x", Mode::Exclusive);
    let waiting = b.stand("x", Mode::Exclusive);
    a.until_waiters(Kind::Lock, "x", 1);
    let again = claim("x", Mode::Exclusive);
    let released = finish(a.engine.release(&[hold], Some(&again)));
    assert!(
        matches!(released.ends[..], [End::Freed])
            && matches!(released.again, Some(Attempt::InLine(_))),
        "{released:?}"
    );
    // The kernel wakes the one that waited, and keeps no order among it and those who come just
    // then.
    let mut first = None;
    let is_granted = |peer: &Peer, id| {
        matches!(
            peer.events.try_recv(),
            Ok(Event::Granted { claim, .. }) if claim == id
        )
    };
    until("one of them has it", || {
        first = [(&b, waiting, &a, again.id), (&a, again.id, &b, waiting)]
            .into_iter()
            .find(|(peer, id, ..)| is_granted(peer, *id));
        first.is_some()
    });
    let (one, its, other, others) = first.unwrap();
    assert!(other.is_silent());
    one.release(its);
    other.granted(others);
}

#[test]
fn waiters_are_listed_while_they_wait_and_not_after() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (hold, _) = a.get("x", Mode::Exclusive);
    let waiting = b.stand("x", Mode::Exclusive);
    a.until_waiters(Kind::Lock, "x", 1);
    let entry = a.entry(Kind::Lock, "x");
    assert_eq!((entry.waiters[0].pid, entry.waiters[0].ahead), (Some(std::process::id()), Some(0)));
    assert_eq!(entry.waiters[0].mode, Some(Mode::Exclusive));
    assert!(matches!(b.withdraw(waiting), End::Freed));
    assert_eq!(a.entry(Kind::Lock, "x").waiters, []);
    a.release(hold);
    assert_eq!(a.entry(Kind::Lock, "x").holders, []);
}

#[test]
fn a_listing_shows_only_what_is_held_or_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    for name in ["stock/a", "stock/b", "other", &"n".repeat(900)] {
        peer.get(name, Mode::Exclusive);
    }
    let (idle, _) = peer.get("stock/c", Mode::Exclusive);
    peer.release(idle);
    let names = |prefix: &str| -> Vec<String> {
        let entries = finish(peer.engine.read(&Query::Prefix(prefix.into()))).unwrap();
        entries.iter().map(|entry| entry.name.as_str().to_owned()).collect()
    };
    assert_eq!(names("stock/"), ["stock/a", "stock/b"]);
    assert_eq!(names(&"n".repeat(500)), ["n".repeat(900)]);
    assert_eq!(names("").len(), 4);
}

#[test]
fn a_limit_on_waiting_names_is_an_error_and_no_thread_too_many() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    let _held = peer.get("x", Mode::Exclusive);
    assert!(matches!(peer.attempt(&claim("x", Mode::Exclusive), Line::Try), Attempt::Busy(_)));
    assert_eq!(peer.engine.0.wait_threads.threads(), 0, "a try starts no thread");
}

#[test]
fn close_ends_every_wait_and_every_thread() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let _holds: Vec<_> = (0..8).map(|n| a.get(&format!("x{n}"), Mode::Exclusive)).collect();
    for n in 0..8 {
        b.stand(&format!("x{n}"), Mode::Exclusive);
    }
    finish(b.engine.close());
    assert_eq!(b.engine.0.wait_threads.threads(), 0);
    let Attempt::Failed(error) = b.attempt(&claim("y", Mode::Exclusive), Line::Try) else {
        panic!()
    };
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(!b.events.try_iter().any(|event| matches!(event, Event::Granted { .. })));
}

#[test]
fn a_dropped_engine_leaves_no_place_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let _held = a.get("x", Mode::Exclusive);
    b.stand("x", Mode::Exclusive);
    a.until_waiters(Kind::Lock, "x", 1);
    drop(b);
    a.until_waiters(Kind::Lock, "x", 0);
}

#[test]
fn durable_grants_come_later_and_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::with(dir.path(), true), Peer::new(dir.path()));
    let ask = claim("x", Mode::Exclusive);
    let answer = a.engine.attempt(&ask, Line::Try);
    assert!(matches!(answer, Answer::Later(_)), "a sync never blocks the caller");
    assert!(matches!(finish(answer), Attempt::Granted(_)));
    assert!(!b.can_get("x", Mode::Exclusive));
    assert!(matches!(a.release(ask.id), End::Freed));
    assert!(b.can_get("x", Mode::Exclusive));
}
