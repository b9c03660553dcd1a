//! R13: everything has a limit, documented and checked.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Ability, ErrorKind, Kind, Lost, Released};

use crate::conformance::trial::{HANGS, Trial};

pub(super) async fn r13_names_beyond_their_limits_are_refused(t: Arc<Trial>) {
    let locks = t.open().await;
    for bad in ["", "a\0b", &"x".repeat(1025)] {
        assert_eq!(
            locks.mutex(bad).lock().await.map(drop).map_err(|e| e.kind()),
            Err(ErrorKind::InvalidName),
            "{bad:?}"
        );
        assert_eq!(
            locks.mutex(bad).try_lock().await.map(drop).map_err(|e| e.kind()),
            Err(ErrorKind::InvalidName),
            "{bad:?}"
        );
        assert_eq!(
            locks.status(Kind::Lock, bad).await.map(drop).map_err(|e| e.kind()),
            Err(ErrorKind::InvalidName),
            "{bad:?}"
        );
    }
    let none = locks.all([]).await.map(drop).map_err(|e| e.kind());
    assert_eq!(none, Err(ErrorKind::InvalidArgument));
    let many = locks
        .all((0..65).map(|n| locks.mutex(t.name(&n.to_string())).lock()))
        .await
        .map(drop)
        .map_err(|e| e.kind());
    assert_eq!(many, Err(ErrorKind::InvalidArgument));
    if t.about().can.has(Ability::Election) {
        let id = "x".repeat(1025);
        let refused = locks.election(t.name("e")).stand(&id).await.map(drop).map_err(|e| e.kind());
        assert_eq!(refused, Err(ErrorKind::InvalidArgument));
    }
}

pub(super) async fn r13_times_beyond_their_limits_are_refused(t: Arc<Trial>) {
    let locks = t.open().await;
    let name = t.name("a");
    let mutex = locks.mutex(&name);
    for ttl in [Duration::ZERO, Duration::from_millis(199), Duration::from_secs(24 * 3600 + 1)] {
        assert_eq!(
            mutex.lock().ttl(ttl).await.map(drop).map_err(|e| e.kind()),
            Err(ErrorKind::InvalidArgument),
            "{ttl:?}"
        );
    }
    let least = mutex.lock().ttl(Duration::from_millis(200)).await.expect("within the limits");
    // So short a lease may be over by then.
    let released = least.release().await;
    let is_right = matches!(released, Released::Clean | Released::AlreadyLost(Lost::Expired));
    assert!(is_right, "{released:?}");
    let most = mutex.lock().ttl(Duration::from_secs(24 * 3600)).await.expect("within the limits");
    assert!(most.release().await.is_clean());
    let timed_out = t.lock(&locks, &name).await.expect("it is free");
    assert_eq!(
        mutex.lock().timeout(Duration::ZERO).await.map(drop).map_err(|e| e.kind()),
        Err(ErrorKind::TimedOut)
    );
    drop(timed_out);
}

pub(super) async fn r13_permits_beyond_their_limits_are_refused(t: Arc<Trial>) {
    let locks = t.open().await;
    let name = t.name("a");
    let mut semaphore = locks.semaphore(&name, 3);
    for count in [0, 4] {
        assert_eq!(
            semaphore.acquire(count).await.map(drop).map_err(|e| e.kind()),
            Err(ErrorKind::InvalidArgument),
            "{count}"
        );
    }
    assert_eq!(
        locks.semaphore(&name, 0).acquire(0).await.map(drop).map_err(|e| e.kind()),
        Err(ErrorKind::InvalidArgument)
    );
    assert_eq!(semaphore.resize(0).await.map_err(|e| e.kind()), Err(ErrorKind::InvalidArgument));
    drop(semaphore.acquire(3).await.expect("all of them"));
}

pub(super) async fn r13_the_greatest_of_everything_works(t: Arc<Trial>) {
    let (one, two) = (t.open().await, t.open().await);
    let can = t.about().can;
    let longest = {
        let start = t.name("");
        format!("{start}{}", "é".repeat((1024 - start.len()) / 2))
    };
    match t.lock(&one, &longest).await {
        Ok(guard) => {
            assert!(two.mutex(&longest).try_lock().await.expect("it can be tried").is_none());
            assert!(guard.release().await.is_clean());
        }
        Err(error) => {
            assert!(t.subject.foreign && error.kind() == ErrorKind::InvalidName, "{error}")
        }
    }
    if can.has(Ability::Permits) {
        let most = one.semaphore(t.name("most"), 65_535);
        // Where each permit is a record of its own, a lease of two seconds can be over before so
        // many are written and renewed; the greatest lease goes with them.
        let ttl = Duration::from_secs(24 * 60 * 60);
        let all = most.acquire(65_535).ttl(ttl).await.expect("all of them");
        assert!(
            two.semaphore(t.name("most"), 65_535)
                .try_acquire(1)
                .await
                .expect("it can be tried")
                .is_none()
        );
        assert!(all.release().await.is_clean());
    }
    if can.has(Ability::Election) {
        let id = "x".repeat(1024);
        let term = one.election(t.name("e")).stand(&id).await.expect("nobody leads");
        assert_eq!(
            two.election(t.name("e")).leader().await.expect("it can be read").map(|l| l.id),
            Some(id)
        );
        assert!(term.release().await.is_clean());
    }
    let names: Vec<String> = (0..64).map(|n| t.name(&format!("of 64: {n}"))).collect();
    let all = one
        .all(names.iter().map(|name| one.mutex(name).lock()))
        .timeout(HANGS)
        .await
        .expect("64 free locks");
    assert_eq!(all.guards().len(), 64);
    assert!(all.release().await.iter().all(|released| released.is_clean()));
}
