use super::super::bytes::{Grip, Span};
use super::super::wire;
use super::*;
use crate::ErrorKind;

fn permits(count: u16, limit: u16) -> Mode {
    Mode::Permits { count, limit }
}

#[test]
fn permits_of_one_process_are_holds_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let holds: Vec<_> = (0..4).map(|_| a.get("s", permits(1, 4)).0).collect();
    assert!(!a.can_get("s", permits(1, 4)));
    let shown = b.entry(Kind::Semaphore, "s");
    assert_eq!((shown.limit, shown.holders.len()), (Some(4), 4));
    assert_eq!(shown.holders[0].mode, Some(permits(1, 4)));
    a.release(holds[1]);
    assert!(matches!(a.release(holds[1]), End::NotOurs));
    assert!(b.can_get("s", permits(1, 4)) && !b.can_get("s", permits(2, 4)));
    assert_eq!(b.entry(Kind::Semaphore, "s").holders.len(), 3);
}

#[test]
fn tries_for_permits_that_meet_are_not_refused_for_each_others_sake() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let peer = Peer::new(dir.path());
                for round in 0..1_000 {
                    let claim = claim("s", permits(1, 3));
                    // One whose turn to count did not come, for want of a processor, is told so,
                    // and not that it is busy.
                    match peer.attempt(&claim, Line::Try) {
                        Attempt::Granted(_) => drop(peer.release(claim.id)),
                        Attempt::Failed(error) if error.kind() == ErrorKind::Unknown => {}
                        other => panic!("there is room for all, round {round}: {other:?}"),
                    }
                }
            });
        }
    });
}

/// The one lock file of a directory, as another process has it open.
fn beside(dir: &std::path::Path) -> std::fs::File {
    let path = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_file())
        .unwrap();
    std::fs::File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn a_count_of_permits_that_does_not_come_to_an_end_fails_tries_and_lets_claims_wait() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (hold, _) = a.get("s", permits(1, 2));
    let stopped = beside(dir.path());
    assert_eq!(wire::try_lock(&stopped, Span::COUNT, Grip::Write), Ok(true));
    let Attempt::Failed(error) = b.attempt(&claim("s", permits(1, 2)), Line::Try) else { panic!() };
    assert!(
        error.kind() == ErrorKind::Unknown && error.message().contains("is it stopped?"),
        "{error}"
    );
    a.release(hold);
    let waiting = b.stand("s", permits(2, 2));
    a.until_waiters(Kind::Semaphore, "s", 1);
    assert!(b.is_silent());
    wire::unlock(&stopped, Span::COUNT).unwrap();
    b.granted(waiting);
}

#[test]
fn who_waits_for_permits_is_woken_when_a_count_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (hold, _) = a.get("s", permits(2, 2));
    let counter = beside(dir.path());
    let waiting = b.stand("s", permits(2, 2));
    a.until_waiters(Kind::Semaphore, "s", 1);
    // Closing a file wakes who dozes; this one stays open. It counts when who waits is told of the
    // release. Whoever waits may be counting just now.
    let counts = wire::wait_lock(&counter, Span::COUNT, Grip::Write);
    assert!(matches!(counts, Ok(wire::Waited::Locked)), "nobody interrupts it");
    a.release(hold);
    assert!((0..5).all(|_| b.is_silent()));
    wire::unlock(&counter, Span::COUNT).unwrap();
    b.granted(waiting);
}

#[test]
fn another_limit_than_the_stored_one_is_refused_naming_both() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (hold, _) = a.get("s", permits(8, 8));
    for line in [Line::Try, Line::Join] {
        let Attempt::Failed(error) = b.attempt(&claim("s", permits(1, 4)), line) else { panic!() };
        assert!(
            error.kind() == ErrorKind::LimitMismatch
                && error.message().contains('8')
                && error.message().contains('4'),
            "{error}"
        );
    }
    a.release(hold);
    let Attempt::Failed(error) = b.attempt(&claim("s", permits(1, 4)), Line::Try) else { panic!() };
    assert_eq!((error.kind(), error.kind().exit_code()), (ErrorKind::LimitMismatch, 64));
}

#[test]
fn who_waits_gets_permits_when_enough_are_back_first_come_first_served() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, c) = (Peer::new(dir.path()), Peer::new(dir.path()), Peer::new(dir.path()));
    let (one, _) = a.get("s", permits(1, 3));
    let (two, _) = a.get("s", permits(2, 3));
    let many = b.stand("s", permits(3, 3));
    a.until_waiters(Kind::Semaphore, "s", 1);
    let few = c.stand("s", permits(1, 3));
    a.until_waiters(Kind::Semaphore, "s", 2);
    a.release(two);
    assert!(b.is_silent() && c.is_silent(), "the line keeps its order");
    a.release(one);
    b.granted(many);
    assert!(c.is_silent());
    b.release(many);
    c.granted(few);
}

#[test]
fn a_permit_that_comes_back_wakes_who_waits_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    for _ in 0..20 {
        let (hold, _) = a.get("s", permits(1, 1));
        let waiting = b.stand("s", permits(1, 1));
        a.until_waiters(Kind::Semaphore, "s", 1);
        a.release(hold);
        b.granted(waiting);
        b.release(waiting);
    }
}

#[test]
fn permits_of_a_closed_engine_are_back() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let _held = a.get("s", permits(2, 2));
    let waiting = b.stand("s", permits(1, 2));
    b.until_waiters(Kind::Semaphore, "s", 1);
    drop(a);
    b.granted(waiting);
}

#[test]
fn a_wait_for_permits_can_be_called_off_wherever_it_stands() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, c) = (Peer::new(dir.path()), Peer::new(dir.path()), Peer::new(dir.path()));
    let (hold, _) = a.get("s", permits(2, 2));
    for round in 0..200 {
        let first = b.stand("s", permits(1, 2));
        let second = c.stand("s", permits(2, 2));
        if round % 2 == 0 {
            assert!(matches!(b.withdraw(first), End::Freed));
            assert!(matches!(c.withdraw(second), End::Freed));
        } else {
            assert!(matches!(c.withdraw(second), End::Freed));
            assert!(matches!(b.withdraw(first), End::Freed));
        }
    }
    a.release(hold);
    assert!(b.can_get("s", permits(2, 2)));
    assert_eq!(a.entry(Kind::Semaphore, "s").waiters, []);
}

#[test]
fn a_resize_counts_for_everybody_and_wakes_who_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let resize = |peer: &Peer, limit| {
        finish(peer.engine.write(&crate::engine::Change::Resize(Name::new("s").unwrap(), limit)))
            .unwrap()
    };
    let (hold, _) = a.get("s", permits(2, 2));
    let waiting = b.stand("s", permits(1, 2));
    a.until_waiters(Kind::Semaphore, "s", 1);
    assert!(resize(&a, 3));
    assert!(!resize(&b, 3), "nothing changed");
    b.granted(waiting);
    assert!(resize(&a, 1));
    assert!(!a.can_get("s", permits(1, 1)), "three are out");
    a.release(hold);
    assert!(!a.can_get("s", permits(1, 1)), "one is out");
    b.release(waiting);
    assert!(a.can_get("s", permits(1, 1)));
    assert_eq!(b.entry(Kind::Semaphore, "s").limit, Some(1));
}

#[test]
fn more_permits_than_there_are_is_an_error_and_no_wait() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    for count in [0, 3] {
        let Attempt::Failed(error) = peer.attempt(&claim("s", permits(count, 2)), Line::Join)
        else {
            panic!()
        };
        assert_eq!(error.kind().exit_code(), 64);
    }
}

#[test]
fn the_greatest_semaphore_works() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (all, _) = a.get("s", permits(65_535, 65_535));
    assert!(!b.can_get("s", permits(1, 65_535)));
    a.release(all);
    let holds: Vec<_> = (0..600)
        .map(|n| if n % 2 == 0 { &a } else { &b })
        .map(|p| (p, p.get("s", permits(1, 65_535)).0))
        .collect();
    assert!(a.can_get("s", permits(64_935, 65_535)) && !a.can_get("s", permits(64_936, 65_535)));
    for (peer, hold) in holds {
        peer.release(hold);
    }
    assert!(b.can_get("s", permits(65_535, 65_535)));
}
