use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["chosen.semaphore", "dir.lock", "notes.txt", "read.lock", "shut.latch", "some.semaphore", "yarn.lock"]);
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
        assert_eq!(files.gc().unwrap(), 0, "it is held");
        peer.release(hold);
        assert_eq!(files.gc().unwrap(), 1);
        assert!(peer.can_get("x", Mode::Exclusive));
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
            let mut removed = 0;
            while removed < 50 {
                removed += files.gc().unwrap();
            }
            over.store(true, Ordering::SeqCst);
        });
        let workers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let peer = Peer::new(dir.path());
                    let mut last = 0;
                    while !over.load(Ordering::SeqCst) {
                        let ask = claim("x", Mode::Exclusive);
                        let number = match peer.attempt(&ask, Line::Join) {
                            Attempt::Granted(grant) => number(&grant),
                            Attempt::InLine(_) => peer.granted(ask.id),
                            other => panic!("{other:?}"),
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                        assert!(number > last);
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
        sweeper.join().unwrap();
    });
}
