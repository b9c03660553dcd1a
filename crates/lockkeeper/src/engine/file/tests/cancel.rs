use super::*;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter(|task| {
            let name = task
                .as_ref()
                .ok()
                .and_then(|task| std::fs::read_to_string(task.path().join("comm")).ok());
            name.is_some_and(|name| name.starts_with("lockkeeper-wait"))
        })
        .count()
}

/// A number that looks random and is the same in every run.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn r5_ten_thousand_cancels_at_random_instants_lose_no_lock_and_no_thread() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let mut seed = 42;
    let (mut won, mut left) = (0, 0);
    let mut last = 0;
    let (mut hold, _) = a.get("x", Mode::Exclusive);
    for _ in 0..10_000 {
        let ask = claim("x", Mode::Exclusive);
        assert!(matches!(b.attempt(&ask, Line::Join), Attempt::InLine(_)));
        let spin = next(&mut seed) % 30;
        let (early, pause) = (next(&mut seed).is_multiple_of(2), Instant::now());
        if early {
            a.release(hold);
        }
        while pause.elapsed() < Duration::from_micros(spin) {
            std::hint::spin_loop();
        }
        // Granted and given back, or never granted: either way nothing of it is left.
        assert!(matches!(b.withdraw(ask.id), End::Freed));
        if b.events.try_iter().any(|event| matches!(event, Event::Granted { .. })) {
            won += 1
        } else {
            left += 1
        }
        if early {
            let (again, number) = a.get("x", Mode::Exclusive);
            assert!(number > last, "BROKEN LOCK: a token went back");
            (hold, last) = (again, number);
        }
    }
    assert!(left > 0, "{won} won, {left} left");
    assert!(
        b.engine.0.wait_threads.threads() <= 5,
        "{} threads",
        b.engine.0.wait_threads.threads()
    );
    finish(b.engine.close());
    assert_eq!(b.engine.0.wait_threads.threads(), 0);
    a.release(hold);
    until("the kernel's threads are gone", || a.can_get("x", Mode::Exclusive) && threads() < 64);
}

#[test]
fn an_interrupted_wait_never_holds_up_who_comes_after() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, c) = (Peer::new(dir.path()), Peer::new(dir.path()), Peer::new(dir.path()));
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Upgradable] {
        for _ in 0..100 {
            let (hold, _) = a.get("x", Mode::Exclusive);
            let first = b.stand("x", mode);
            let second = c.stand("x", mode);
            assert!(matches!(b.withdraw(first), End::Freed));
            a.release(hold);
            c.granted(second);
            c.release(second);
        }
    }
    assert!(b.is_silent());
}

#[test]
fn a_foreign_signal_does_not_end_a_wait() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (hold, _) = a.get("x", Mode::Exclusive);
    let waiting = b.stand("x", Mode::Exclusive);
    a.until_waiters(Kind::Lock, "x", 1);
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let tid: i32 = task.file_name().to_string_lossy().parse().unwrap();
        if comm.starts_with("lockkeeper-wait") {
            // SAFETY: sends a signal whose handler does nothing, or which is blocked there, to a
            // thread of this process.
            unsafe {
                nix::libc::syscall(
                    nix::libc::SYS_tgkill,
                    nix::libc::getpid(),
                    tid,
                    nix::libc::SIGURG,
                )
            };
        }
    }
    assert!(b.is_silent());
    a.release(hold);
    b.granted(waiting);
}

#[test]
fn r13_a_process_waits_for_1024_names_at_once_and_is_told_so_beyond() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    // Every name is a descriptor here and one there.
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(8_192)), hard).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let names: Vec<String> = (0..=1_024).map(|n| format!("n{n}")).collect();
    let holds: Vec<_> = names.iter().map(|name| a.get(name, Mode::Exclusive).0).collect();
    let waits: Vec<_> = names[..1_024].iter().map(|name| b.stand(name, Mode::Exclusive)).collect();
    match b.attempt(&claim(&names[1_024], Mode::Exclusive), Line::Join) {
        Attempt::Failed(error) => {
            assert!(
                error.kind() == crate::ErrorKind::Refused
                    && error.is_temporary()
                    && error.to_string().contains("1024"),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
    for (hold, wait) in holds.iter().zip(&waits) {
        a.release(*hold);
        b.granted(*wait);
        b.release(*wait);
    }
    // There is room again.
    let last = b.stand(&names[1_024], Mode::Exclusive);
    a.release(holds[1_024]);
    b.granted(last);
    finish(b.engine.close());
    assert_eq!(b.engine.0.wait_threads.threads(), 0);
}
