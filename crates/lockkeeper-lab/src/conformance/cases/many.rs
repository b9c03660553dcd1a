//! Several locks at once: all or nothing.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{ErrorKind, Locks};

use crate::conformance::trial::{HANGS, Trial, within};

async fn free(locks: &Locks, name: &str) {
    let guard = within(HANGS, "it is free", locks.mutex(name).lock().into_future())
        .await
        .expect("it is free");
    assert!(guard.release().await.is_clean());
}

pub(super) async fn all_are_taken_or_none(t: Arc<Trial>) {
    let (one, two) = (t.open().await, t.open().await);
    let (a, b) = (t.name("a"), t.name("b"));
    let both =
        one.all([t.lock(&one, &b), t.lock(&one, &a)]).timeout(HANGS).await.expect("both are free");
    let order: Vec<String> =
        both.guards().iter().map(|guard| guard.held().name().to_string()).collect();
    assert_eq!(order, [b.clone(), a.clone()], "in the order in which they were asked for");
    for name in [&a, &b] {
        assert!(two.mutex(name).try_lock().await.expect("it can be tried").is_none());
    }
    drop(both);
    let held = t.lock(&two, &b).timeout(HANGS).await.expect("it is free");
    // Where nobody answered within that time, it is asked again.
    let refused = loop {
        let both = one.all([one.mutex(&a).lock(), one.mutex(&b).lock()]);
        let refused = both.timeout(Duration::from_millis(80)).await.map(drop).map_err(|e| e.kind());
        if refused != Err(ErrorKind::Unreachable) {
            break refused;
        }
    };
    assert_eq!(refused, Err(ErrorKind::TimedOut));
    free(&two, &a).await;
    assert!(held.release().await.is_clean());
    free(&one, &b).await;
    let twice = one.all([one.mutex(&a).lock(), one.mutex(&a).lock()]).await;
    assert_eq!(twice.map(drop).map_err(|e| e.kind()), Err(ErrorKind::WouldDeadlock));
}

pub(super) async fn opposite_orders_never_deadlock(t: Arc<Trial>) {
    let names = [t.name("a"), t.name("b"), t.name("c")];
    let mut tasks = Vec::new();
    for client in 0..2 {
        let locks = t.open().await;
        for task in 0..2 {
            let (locks, mut names, rounds) = (locks.clone(), names.clone(), t.times(20));
            if (client + task) % 2 == 0 {
                names.reverse();
            }
            tasks.push(tokio::spawn(async move {
                for _ in 0..rounds {
                    let all = locks
                        .all(names.each_ref().map(|name| locks.mutex(name).lock()))
                        .await
                        .expect("granted at last");
                    tokio::task::yield_now().await;
                    drop(all);
                }
            }));
        }
    }
    for task in tasks {
        within(HANGS, "nobody waits for ever", task).await.expect("no panic");
    }
}

pub(super) async fn all_release_all(t: Arc<Trial>) {
    let (one, two) = (t.open().await, t.open().await);
    let names: Vec<String> = (0..5).map(|n| t.name(&n.to_string())).collect();
    let all = one
        .all(names.iter().map(|name| t.lock(&one, name)))
        .timeout(HANGS)
        .await
        .expect("all are free");
    all.check().expect("all are held");
    let released = all.release().await;
    assert!(
        released.len() == 5 && released.iter().all(|released| released.is_clean()),
        "{released:?}"
    );
    for name in &names {
        free(&two, name).await;
    }
}
