use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use super::super::bytes::{FLAGS_AT, Grip, Span, WAITERS};
use super::super::dir::Directory;
use super::super::lockfile::{Key, LockFile};
use super::super::wire;
use super::*;
use crate::engine::Change;
use crate::engine::file::direct::Files;

#[test]
fn gc_removes_what_nobody_uses_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let files = Files::open(dir.path(), false).unwrap();
    let (idle, before) = a.get("idle", Mode::Exclusive);
    a.release(idle);
    let (held, _) = a.get("held", Mode::Exclusive);
    a.get("read", Mode::Shared);
    let waiting = b.stand("held", Mode::Exclusive);
    a.get("some", Mode::Permits { count: 1, limit: 3 });
    let write = |change| finish(a.engine.write(&change)).unwrap();
    let name = |name| Name::new(name).unwrap();
    write(Change::LatchSet(name("shut"), 2));
    write(Change::Resize(name("chosen"), 7));
    fs::write(dir.path().join("yarn.lock"), "somebody else's").unwrap();
    fs::write(dir.path().join("notes.txt"), "not a lock").unwrap();
    fs::create_dir(dir.path().join("dir.lock")).unwrap();
    assert_eq!(files.gc().unwrap(), 1);
    assert!(!dir.path().join("idle.lock").exists());
    let (again, after) = a.get("idle", Mode::Exclusive);
    assert!(after > before, "numbers go on from the clock");
    a.release(again);
    a.release(held);
    b.granted(waiting);
    b.release(waiting);
    assert_eq!(files.gc().unwrap(), 2);
    let mut left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(
        left,
        [
            "chosen.semaphore",
            "dir.lock",
            "notes.txt",
            "read.lock",
            "shut.latch",
            "some.semaphore",
            "yarn.lock"
        ]
    );
}

#[test]
fn gc_repairs_an_unreadable_file() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    let files = Files::open(dir.path(), false).unwrap();
    let path = dir.path().join("x.lock");
    for garbage in [vec![0xa5; super::super::bytes::FILE as usize], vec![]] {
        let (hold, _) = peer.get("x", Mode::Exclusive);
        fs::write(&path, &garbage).unwrap();
        make_old(&path);
        assert_eq!(files.gc().unwrap(), 0, "it is held");
        peer.release(hold);
        assert_eq!(files.gc().unwrap(), 1);
        assert!(peer.can_get("x", Mode::Exclusive));
    }
}

/// As if it had been written a second ago.
fn make_old(path: &Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(1)).unwrap();
}

#[test]
fn gc_leaves_a_file_that_was_just_made_to_whoever_is_about_to_lock_it() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path(), false).unwrap();
    let opened = Directory::open(dir.path(), false).unwrap();
    let path = dir.path().join("x.lock");
    let empty = || drop(fs::File::create(&path).unwrap());
    let ready =
        || drop(LockFile::open(&opened, &Key::new(Kind::Lock, &Name::new("x").unwrap())).unwrap());
    for make in [&empty as &dyn Fn(), &ready] {
        // A pause in between makes it old; then it is made anew.
        until("it is looked at in time", || {
            _ = fs::remove_file(&path);
            let made = Instant::now();
            make();
            let removed = files.gc().unwrap();
            let in_time = made.elapsed() < Duration::from_millis(150);
            assert!(!in_time || removed == 0, "its maker is about to lock it");
            in_time
        });
        make_old(&path);
        assert_eq!(files.gc().unwrap(), 1, "whoever made it died");
    }
}

#[test]
fn a_probe_takes_its_own_file_away_however_new_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    let opened = Directory::open(dir.path(), false).unwrap();
    let (name, path) = (Name::new("x").unwrap(), dir.path().join("x.lock"));
    let clear = || drop(finish(peer.engine.clear_probe(&name)).unwrap());
    // As after a disk was full before it got its contents, and after a lock was not taken.
    let empty = || drop(fs::File::create(&path).unwrap());
    let ready = || drop(LockFile::open(&opened, &Key::new(Kind::Lock, &name)).unwrap());
    for make in [&empty as &dyn Fn(), &ready] {
        make();
        clear();
        assert!(!path.exists());
    }
    let (held, _) = peer.get("x", Mode::Exclusive);
    clear();
    assert!(path.exists(), "it is held");
    peer.release(held);
}

/// Says that it is over when it is dropped, also by a panic: a scope waits for all its threads.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn f1_gc_running_all_the_time_never_gives_two_holders() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path(), false).unwrap();
    let over = AtomicBool::new(false);
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let sweeper = scope.spawn(|| {
            let _ends = Ends(&over);
            let end = Instant::now() + Duration::from_secs(60);
            let mut removed = 0;
            while removed < 50 && Instant::now() < end && !over.load(Ordering::SeqCst) {
                removed += files.gc().unwrap();
            }
            removed
        });
        let workers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let _ends = Ends(&over);
                    let peer = Peer::new(dir.path());
                    let mut last = 0;
                    while !over.load(Ordering::SeqCst) {
                        let ask = claim("x", Mode::Exclusive);
                        let number = match peer.attempt(&ask, Line::Join) {
                            Attempt::Granted(grant) => number(&grant),
                            Attempt::InLine(_) => peer.granted(ask.id),
                            other => panic!("{other:?}"),
                        };
                        assert_eq!(
                            inside.fetch_add(1, Ordering::SeqCst),
                            0,
                            "BROKEN LOCK: two holders"
                        );
                        assert!(number > last, "BROKEN LOCK: a token went back");
                        last = number;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        peer.release(ask.id);
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        assert!(sweeper.join().unwrap() > 0, "files were removed meanwhile");
    });
}

/// Whether one who only tries is refused because somebody has it; it gives back what it got.
fn is_refused(peer: &Peer, mode: Mode) -> bool {
    !peer.can_get("x", mode)
}

#[test]
fn gc_running_all_the_time_refuses_no_try_for_a_free_name() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path(), false).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sweeper = scope.spawn(|| {
            let mut removed = 0;
            while !over.load(Ordering::SeqCst) {
                removed += files.gc().unwrap();
            }
            removed
        });
        let _ends = Ends(&over);
        let peer = Peer::new(dir.path());
        let mut refused = Vec::new();
        for round in 0..1_000 {
            for mode in [
                Mode::Exclusive,
                Mode::Shared,
                Mode::Upgradable,
                Mode::Permits { count: 1, limit: 2 },
            ] {
                if is_refused(&peer, mode) {
                    refused.push((round, mode));
                }
            }
        }
        over.store(true, Ordering::SeqCst);
        assert_eq!(refused, [], "nobody has it, and nobody wants it");
        assert!(sweeper.join().unwrap() > 0, "files were removed meanwhile");
    });
}

#[test]
fn a_removal_that_does_not_come_to_an_end_fails_tries_lets_claims_wait_and_is_nobody_who_holds_or_waits()
 {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (hold, _) = a.get("x", Mode::Exclusive);
    let waits = b.stand("x", Mode::Exclusive);
    a.until_waiters(Kind::Lock, "x", 1);
    b.withdraw(waits);
    a.release(hold);
    let sweeper =
        fs::File::options().read(true).write(true).open(dir.path().join("x.lock")).unwrap();
    // What dead waiters leave.
    wire::write_at(&sweeper, &[1; WAITERS + 1], FLAGS_AT).unwrap();
    assert_eq!(wire::try_lock(&sweeper, Span::EVERYTHING, Grip::Write), Ok(true));
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Upgradable] {
        match a.attempt(&claim("x", mode), Line::Try) {
            Attempt::Failed(error) => assert!(
                error.kind() == crate::ErrorKind::Unknown && error.message().contains("stopped"),
                "{error}"
            ),
            other => panic!("{mode:?}: {other:?}"),
        }
    }
    let entry = a.entry(Kind::Lock, "x");
    assert_eq!((entry.holders, entry.waiters), (vec![], vec![]));
    let waits = b.stand("x", Mode::Exclusive);
    wire::unlock(&sweeper, Span::EVERYTHING).unwrap();
    b.granted(waits);
}

#[test]
fn tries_that_sweep_away_what_dead_waiters_left_are_not_refused_for_each_others_sake() {
    let dir = tempfile::tempdir().unwrap();
    let reader = Peer::new(dir.path());
    let (hold, _) = reader.get("x", Mode::Shared);
    let file = fs::File::options().read(true).write(true).open(dir.path().join("x.lock")).unwrap();
    std::thread::scope(|scope| {
        let tries = [(); 2].map(|()| {
            scope.spawn(|| {
                let peer = Peer::new(dir.path());
                let mut refused = 0;
                for _ in 0..1_000 {
                    wire::write_at(&file, &[1; WAITERS + 1], FLAGS_AT).unwrap();
                    refused += u32::from(is_refused(&peer, Mode::Shared));
                }
                refused
            })
        });
        assert_eq!(tries.map(|tries| tries.join().unwrap()), [0, 0], "nobody waits");
    });
    reader.release(hold);
}

#[test]
fn who_sweeps_is_told_apart_from_who_waits_in_the_table_and_beyond_it() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (hold, _) = a.get("x", Mode::Shared);
    let file = fs::File::options().read(true).write(true).open(dir.path().join("x.lock")).unwrap();
    for (place, waits, sweeps) in
        [(5, Grip::Write, Grip::Read), (WAITERS as u16, Grip::Read, Grip::Write)]
    {
        let flag = |is: u8| wire::write_at(&file, &[is], FLAGS_AT + u64::from(place)).unwrap();
        flag(1);
        assert_eq!(wire::try_lock(&file, Span::waiter(place), waits), Ok(true));
        assert!(is_refused(&b, Mode::Shared), "somebody waits in {place}");
        wire::unlock(&file, Span::waiter(place)).unwrap();
        assert_eq!(wire::try_lock(&file, Span::waiter(place), sweeps), Ok(true));
        assert!(!is_refused(&b, Mode::Shared), "somebody sweeps {place}");
        wire::unlock(&file, Span::waiter(place)).unwrap();
        flag(0);
    }
    a.release(hold);
}
