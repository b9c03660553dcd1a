use super::*;
use crate::ErrorKind;

#[test]
fn a_waiting_writer_is_not_starved_by_new_readers() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, c) = (Peer::new(dir.path()), Peer::new(dir.path()), Peer::new(dir.path()));
    let (reading, _) = a.get("x", Mode::Shared);
    let writing = b.stand("x", Mode::Exclusive);
    a.until_waiters(Kind::Lock, "x", 1);
    assert!(!c.can_get("x", Mode::Shared), "behind the writer in line");
    let later = c.stand("x", Mode::Shared);
    a.until_waiters(Kind::Lock, "x", 2);
    assert!(b.is_silent() && c.is_silent());
    a.release(reading);
    b.granted(writing);
    assert!(c.is_silent());
    b.release(writing);
    c.granted(later);
    assert!(a.can_get("x", Mode::Shared));
}

#[test]
fn readers_that_waited_together_hold_together() {
    let dir = tempfile::tempdir().unwrap();
    let peers: Vec<_> = (0..6).map(|_| Peer::new(dir.path())).collect();
    let (writing, number) = peers[0].get("x", Mode::Exclusive);
    let waiting: Vec<_> = peers[1..].iter().map(|peer| peer.stand("x", Mode::Shared)).collect();
    peers[0].release(writing);
    for (peer, claim) in peers[1..].iter().zip(&waiting) {
        assert!(peer.granted(*claim) > number);
    }
    assert_eq!(peers[0].entry(Kind::Lock, "x").holders.len(), 5);
    assert_eq!(peers[0].entry(Kind::Lock, "x").waiters, []);
}

fn convert(peer: &Peer, hold: HoldId, to: Mode) -> (ClaimId, Attempt) {
    let ask = claim("x", to);
    (ask.id, finish(peer.engine.convert(hold, &ask)))
}

#[test]
fn an_upgrade_waits_for_the_readers_and_keeps_new_ones_out() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, c) = (Peer::new(dir.path()), Peer::new(dir.path()), Peer::new(dir.path()));
    let (up, first) = a.get("x", Mode::Upgradable);
    let (reading, _) = b.get("x", Mode::Shared);
    let (upgrade, answer) = convert(&a, up, Mode::Exclusive);
    assert!(matches!(answer, Attempt::InLine(_)), "{answer:?}");
    until("the gate is shut", || !c.can_get("x", Mode::Shared));
    assert!(a.is_silent());
    b.release(reading);
    let second = a.granted(upgrade);
    assert!(second > first);
    assert_eq!(c.entry(Kind::Lock, "x").holders[0].claim, Some(up), "the hold keeps its id");
    let (_, answer) = convert(&a, up, Mode::Upgradable);
    let Attempt::Granted(grant) = answer else { panic!("{answer:?}") };
    assert!(number(&grant) > second);
    assert!(c.can_get("x", Mode::Shared) && !c.can_get("x", Mode::Exclusive));
    assert_eq!(c.entry(Kind::Lock, "x").holders[0].mode, Some(Mode::Upgradable));
    let (_, answer) = convert(&a, up, Mode::Exclusive);
    let Attempt::Granted(again) = answer else { panic!("{answer:?}") };
    assert!(number(&again) > number(&grant), "at once, for nobody reads");
    a.release(up);
    assert!(c.can_get("x", Mode::Exclusive));
}

#[test]
fn a_shared_hold_cannot_become_exclusive() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    let (hold, _) = peer.get("x", Mode::Shared);
    let Attempt::Failed(error) = convert(&peer, hold, Mode::Exclusive).1 else { panic!() };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn a_withdrawn_upgrade_leaves_the_hold_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (up, _) = a.get("x", Mode::Upgradable);
    for _ in 0..50 {
        let (reading, _) = b.get("x", Mode::Shared);
        let (upgrade, _) = convert(&a, up, Mode::Exclusive);
        if upgrade.0 % 2 == 0 {
            b.release(reading);
        }
        assert!(matches!(a.withdraw(upgrade), End::Freed));
        b.release(reading);
        assert!(b.can_get("x", Mode::Shared), "the gate is open again");
        assert!(!b.can_get("x", Mode::Upgradable), "and upgrade still taken");
    }
    let _events = a.events.try_iter().count();
    a.release(up);
    assert!(b.can_get("x", Mode::Exclusive));
}

#[test]
fn a_hold_released_under_its_waiting_upgrade_is_free_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    for _ in 0..50 {
        let (up, _) = a.get("x", Mode::Upgradable);
        let (reading, _) = b.get("x", Mode::Shared);
        let (_, answer) = convert(&a, up, Mode::Exclusive);
        assert!(matches!(answer, Attempt::InLine(_)));
        assert!(matches!(a.release(up), End::Freed));
        b.release(reading);
        assert!(b.can_get("x", Mode::Exclusive));
    }
}

#[test]
fn an_upgrade_asked_for_while_the_one_before_is_being_left_is_not_undone_by_it() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (up, _) = a.get("x", Mode::Upgradable);
    for round in 0..100 {
        let (reading, _) = b.get("x", Mode::Shared);
        let (first, answer) = convert(&a, up, Mode::Exclusive);
        assert!(matches!(answer, Attempt::InLine(_)), "{answer:?}");
        let leaving = a.engine.withdraw(first);
        // From here on nobody is in the way of the second.
        b.release(reading);
        let second = claim("x", Mode::Exclusive);
        let mut answer = finish(a.engine.convert(up, &second));
        until("the answer is known", || {
            let known = !matches!(answer, Attempt::Unknown(_));
            if !known {
                answer = finish(a.engine.convert(up, &second));
            }
            known
        });
        if matches!(answer, Attempt::InLine(_)) {
            a.granted(second.id);
        }
        finish(leaving);
        assert!(
            !b.can_get("x", Mode::Shared),
            "round {round}: a reader stands beside the upgraded hold: {answer:?}"
        );
        assert!(matches!(convert(&a, up, Mode::Upgradable).1, Attempt::Granted(_)));
    }
}

#[test]
fn r3_a_conversion_that_is_asked_about_is_what_it_came_to_or_not_known_yet_and_never_lost() {
    for durable in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let a = Peer::with(dir.path(), durable);
        let (up, _) = a.get("x", Mode::Upgradable);
        for round in 0..20 {
            for to in [Mode::Exclusive, Mode::Upgradable] {
                let ask = claim("x", to);
                let converting = a.engine.convert(up, &ask);
                let meanwhile = finish(a.engine.recheck(&[ask.id]));
                assert!(
                    matches!(meanwhile[..], [Standing::Held(_) | Standing::Unknown(_)]),
                    "round {round}: {meanwhile:?}"
                );
                let Attempt::Granted(grant) = finish(converting) else {
                    panic!("round {round}: nobody is in the way")
                };
                let after = finish(a.engine.recheck(&[ask.id]));
                assert!(
                    matches!(
                        &after[..],
                        [Standing::Held(again)] if number(again) == number(&grant)
                    ),
                    "round {round}: {after:?}"
                );
            }
        }
    }
}

#[test]
fn r7_a_reader_that_was_upgradable_keeps_the_number_that_every_writer_after_it_exceeds_whatever_the_clock_says()
 {
    let dir = tempfile::tempdir().unwrap();
    let a = Peer::new(dir.path());
    let (writer, last) = a.get("x", Mode::Exclusive);
    a.release(writer);
    let (up, number_of_up) = a.get("x", Mode::Upgradable);
    let (_, answer) = convert(&a, up, Mode::Shared);
    let Attempt::Granted(grant) = answer else { panic!("{answer:?}") };
    assert_eq!(
        (number_of_up, number(&grant)),
        (last + 1, last + 1),
        "a writer takes two more than the last one at least"
    );
}
