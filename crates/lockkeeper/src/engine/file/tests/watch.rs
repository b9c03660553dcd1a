use std::fs;

use super::*;
use crate::engine::{Change, Lost, WatchId, Which};

impl Peer {
    /// Waits until a change of this watch is told, and answers of which watches there was word
    /// meanwhile.
    fn hears(&self, watch: WatchId, what: &str) -> Vec<WatchId> {
        let mut heard = Vec::new();
        while heard.last() != Some(&watch) {
            match self.events.recv_timeout(PATIENCE) {
                Ok(Event::Changed { watch }) => heard.push(watch),
                Ok(_) => {}
                Err(e) => panic!("{what} is not told: {e}"),
            }
        }
        heard
    }

    fn watch(&self, id: u64, query: &Query) -> WatchId {
        finish(self.engine.watch(WatchId(id), query)).unwrap();
        WatchId(id)
    }

    /// Nothing is told of this watch for a while.
    fn is_silent_about(&self, watch: WatchId) -> bool {
        let end = Instant::now() + Duration::from_millis(500);
        std::iter::from_fn(|| {
            self.events.recv_timeout(end.saturating_duration_since(Instant::now())).ok()
        })
        .all(|event| !matches!(event, Event::Changed { watch: told } if told == watch))
    }

    /// Nothing is told for a while.
    fn settle(&self) {
        while self.events.recv_timeout(Duration::from_millis(300)).is_ok() {}
    }

    fn loses(&self, hold: HoldId) {
        match self.events.recv_timeout(PATIENCE) {
            Ok(Event::Ended { which: Which::Hold(lost), why: Lost::Replaced }) if lost == hold => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn f1_r2_a_holder_is_told_when_its_file_is_deleted_replaced_or_moved() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.lock");
    let replace: [&dyn Fn(); 3] = [
        &|| fs::remove_file(&path).unwrap(),
        &|| fs::rename(&path, dir.path().join("away")).unwrap(),
        &|| {
            fs::write(dir.path().join("other"), "").unwrap();
            fs::rename(dir.path().join("other"), &path).unwrap();
        },
    ];
    for replace in replace {
        let peer = Peer::new(dir.path());
        let (hold, _) = peer.get("x", Mode::Exclusive);
        let (other, _) = peer.get("other", Mode::Exclusive);
        replace();
        peer.loses(hold);
        assert!(peer.is_silent());
        assert!(matches!(peer.release(hold), End::NotOurs), "final");
        peer.release(other);
    }
}

#[test]
fn f1_a_holder_is_told_when_the_directory_is_deleted_or_moved() {
    let temp = tempfile::tempdir().unwrap();
    for round in 0..2 {
        let dir = temp.path().join("locks");
        let peer = Peer::new(&dir);
        let (hold, _) = peer.get("x", Mode::Exclusive);
        if round == 0 {
            fs::remove_dir_all(&dir).unwrap();
        } else {
            fs::rename(&dir, temp.path().join("moved")).unwrap();
        }
        peer.loses(hold);
        until("the new one is watched too", || {
            // Taken anew each time: the loss of the one before may come late.
            let (hold, _) = peer.get("x", Mode::Exclusive);
            assert!(dir.join("x.lock").exists(), "and the next one is in a new directory");
            finish(peer.engine.recheck(&[hold]));
            fs::remove_file(dir.join("x.lock")).unwrap();
            peer.events.recv_timeout(Duration::from_secs(3)).is_ok()
        });
    }
}

#[test]
fn f1_who_waits_for_a_file_that_was_replaced_gets_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Upgradable] {
        let (hold, _) = a.get("x", Mode::Exclusive);
        let waiting = b.stand("x", mode);
        a.until_waiters(Kind::Lock, "x", 1);
        fs::remove_file(dir.path().join("x.lock")).unwrap();
        a.loses(hold);
        b.granted(waiting);
        assert!(!a.can_get("x", Mode::Exclusive));
        b.release(waiting);
    }
}

#[test]
fn a_watch_hears_of_grants_releases_waiters_and_deaths() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let one = b.watch(1, &Query::One(Kind::Lock, Name::new("stock/a").unwrap()));
    b.settle();
    let (hold, _) = a.get("stock/a", Mode::Exclusive);
    b.hears(one, "a grant");
    b.settle();
    let waiting = a.stand("stock/a", Mode::Shared);
    b.hears(one, "a waiter");
    b.settle();
    a.withdraw(waiting);
    b.hears(one, "a waiter that left");
    b.settle();
    a.release(hold);
    b.hears(one, "a release");
    b.settle();
    let (_, _) = a.get("stock/a", Mode::Shared);
    b.hears(one, "a reader");
    b.settle();
    drop(a);
    b.hears(one, "an end without a release");
}

#[test]
fn a_watch_of_a_prefix_hears_of_its_names_only_and_no_more_after_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let watch = b.watch(7, &Query::Prefix("stock/".into()));
    b.settle();
    let (other, _) = a.get("other", Mode::Exclusive);
    a.release(other);
    assert!(b.is_silent_about(watch));
    let set = |count| Change::LatchSet(Name::new("stock/l").unwrap(), count);
    finish(a.engine.write(&set(3))).unwrap();
    b.hears(watch, "a latch");
    let (hold, _) = a.get("stock/x", Mode::Permits { count: 1, limit: 1 });
    b.hears(watch, "a permit");
    b.engine.unwatch(watch);
    let next = b.watch(8, &Query::Prefix("stock/".into()));
    // What tells the new one has seen that the old one is over.
    finish(a.engine.write(&set(2))).unwrap();
    b.hears(next, "a latch");
    b.settle();
    a.release(hold);
    assert!(!b.hears(next, "a release").contains(&watch));
    assert!(b.is_silent_about(watch));
}

#[test]
fn who_waits_for_the_right_file_keeps_its_place_when_the_kernel_has_dropped_events() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, c) = (Peer::new(dir.path()), Peer::new(dir.path()), Peer::new(dir.path()));
    let (hold, _) = a.get("x", Mode::Exclusive);
    let first = b.stand("x", Mode::Exclusive);
    a.until_waiters(Kind::Lock, "x", 1);
    let second = c.stand("x", Mode::Exclusive);
    a.until_waiters(Kind::Lock, "x", 2);
    // What an overflowed queue of events comes to.
    assert_eq!(b.engine.0.look(b.engine.0.opened().unwrap(), None).lost, []);
    a.until_waiters(Kind::Lock, "x", 2);
    a.release(hold);
    b.granted(first);
    assert!(c.is_silent());
    b.release(first);
    c.granted(second);
}

#[test]
fn permits_of_a_lost_hold_are_given_back_whoever_notices() {
    let dir = tempfile::tempdir().unwrap();
    for asked in [true, false] {
        let peer = Peer::new(dir.path());
        let (hold, _) = peer.get("s", Mode::Permits { count: 2, limit: 4 });
        let pool = peer.engine.0.state().pool(&Name::new("s").unwrap()).expect("it has permits");
        fs::remove_file(dir.path().join("s.semaphore")).unwrap();
        if asked {
            assert!(matches!(finish(peer.engine.recheck(&[hold]))[..], [Standing::Gone(_)]));
        } else {
            peer.loses(hold);
        }
        // Whoever noticed first, and it may be the other one, gives them back right after it.
        until(&format!("they are given back, asked: {asked}"), || pool.is_unused());
    }
}
