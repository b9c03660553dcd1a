//! R8: re-entrancy is a value, the owner; nothing is guessed.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{ErrorKind, Owner};

use crate::conformance::trial::{Trial, within};

const SOON: Duration = Duration::from_secs(10);
const BRIEFLY: Duration = Duration::from_millis(60);

pub(super) async fn r8_the_same_owner_enters_again_and_the_last_guard_releases(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let me = Owner::new();
    let outer = one.mutex(&name).lock().owner(&me).await.expect("it is free");
    let inner = one.mutex(&name).lock().owner(&me).timeout(BRIEFLY).await.expect("its owner enters again");
    let tried = one.mutex(&name).try_lock().owner(&me).await.expect("it can be tried").expect("its owner enters again");
    assert_eq!(outer.token().ok(), inner.token().ok());
    assert_eq!(t.status(&two, &name).await.holders.len(), 1, "one hold, whatever the count");
    assert!(outer.release().await.is_clean());
    drop(tried);
    assert!(two.mutex(&name).try_lock().await.expect("it can be tried").is_none(), "one guard is left");
    inner.check().expect("and it is good");
    assert!(inner.release().await.is_clean());
    let next = within(SOON, "the last guard releases", two.mutex(&name).lock().into_future()).await.expect("it is free");
    assert!(next.release().await.is_clean());
}

pub(super) async fn r8_a_scope_lends_its_owner(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let me = Owner::new();
    let inside = me.scope(async {
        let outer = locks.mutex(&name).lock().await.expect("it is free");
        tokio::task::yield_now().await;
        let inner = locks.mutex(&name).lock().timeout(BRIEFLY).await.expect("its scope enters again");
        drop(outer);
        inner
    });
    let inner = inside.await;
    let outside = locks.mutex(&name).lock().timeout(BRIEFLY).await;
    assert_eq!(outside.map(drop).map_err(|e| e.kind()), Err(ErrorKind::TimedOut), "outside the scope nobody owns it");
    let by_name = locks.mutex(&name).lock().owner(&me).timeout(BRIEFLY).await.expect("its owner enters again");
    drop((inner, by_name));
}

pub(super) async fn r8_a_strict_owner_is_told_where_it_locked_first(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let me = Owner::strict();
    let guard = locks.mutex(&name).lock().owner(&me).await.expect("it is free");
    let error = locks.mutex(&name).lock().owner(&me).await.expect_err("it would wait for itself");
    assert_eq!(error.kind(), ErrorKind::WouldDeadlock);
    assert!(error.to_string().contains("owners.rs"), "it names where the first was taken: {error}");
    assert!(guard.release().await.is_clean());
}

pub(super) async fn r8_an_owner_that_reads_would_wait_for_itself_to_write(t: Arc<Trial>) {
    let lock = t.open().await.rwlock(t.name("a"));
    let me = Owner::new();
    let reader = lock.read().owner(&me).await.expect("it is free");
    assert_eq!(lock.write().owner(&me).await.map(drop).map_err(|e| e.kind()), Err(ErrorKind::WouldDeadlock));
    let again = lock.read().owner(&me).timeout(BRIEFLY).await.expect("reading again is no wait");
    drop((reader, again));
    let writer = lock.write().owner(&me).timeout(SOON).await.expect("it is free");
    let within_write = lock.read().owner(&me).timeout(BRIEFLY).await.expect("whoever writes may read");
    drop((writer, within_write));
}

pub(super) async fn r8_an_owner_with_an_upgradable_guard_upgrades(t: Arc<Trial>) {
    let lock = t.open().await.rwlock(t.name("a"));
    let me = Owner::new();
    let mut up = lock.upgradable().owner(&me).await.expect("it is free");
    assert_eq!(lock.write().owner(&me).await.map(drop).map_err(|e| e.kind()), Err(ErrorKind::WouldDeadlock));
    let writing = within(SOON, "it upgrades", up.upgrade().into_future()).await.expect("nobody else reads");
    drop(writing);
    assert!(up.release().await.is_clean());
}

pub(super) async fn r8_another_owner_waits(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let (me, you) = (Owner::new(), Owner::new());
    let guard = locks.mutex(&name).lock().owner(&me).await.expect("it is free");
    let refused = locks.mutex(&name).lock().owner(&you).timeout(BRIEFLY).await;
    assert_eq!(refused.map(drop).map_err(|e| e.kind()), Err(ErrorKind::TimedOut));
    assert!(guard.release().await.is_clean());
}

pub(super) async fn r8_without_an_owner_nothing_is_guessed(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let guard = locks.mutex(&name).lock().await.expect("it is free");
    let refused = locks.mutex(&name).lock().timeout(BRIEFLY).await;
    assert_eq!(refused.map(drop).map_err(|e| e.kind()), Err(ErrorKind::TimedOut), "two futures of one task may rightly queue");
    assert!(guard.release().await.is_clean());
}

pub(super) async fn r8_the_same_thread_would_deadlock_at_once(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = lockkeeper::blocking::Locks::from(t.open().await);
    let thread = std::thread::spawn(move || {
        let guard = locks.mutex(&name).lock().run().expect("it is free");
        let again = locks.mutex(&name).lock().run();
        assert_eq!(again.map(drop).map_err(|e| e.kind()), Err(ErrorKind::WouldDeadlock));
        let me = Owner::new();
        let refused = locks.mutex(&name).lock().owner(&me).timeout(BRIEFLY).run();
        assert_eq!(refused.map(drop).map_err(|e| e.kind()), Err(ErrorKind::TimedOut), "an owner is another identity");
        let waiting = std::thread::spawn({
            let (locks, name) = (locks.clone(), name.clone());
            move || locks.mutex(&name).lock().timeout(SOON).run().map(|guard| guard.release().is_clean())
        });
        assert!(guard.release().is_clean());
        assert_eq!(waiting.join().expect("no panic").ok(), Some(true));
    });
    tokio::task::spawn_blocking(|| thread.join()).await.expect("no panic").expect("no panic");
}
