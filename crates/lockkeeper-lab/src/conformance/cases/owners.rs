//! R8: re-entrancy is a value, the owner; nothing is guessed.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{ErrorKind, Guard, Kind, Owner, RwLock, UpgradableGuard, WriteGuard};

use crate::conformance::trial::{HANGS, Trial, within};

const BRIEFLY: Duration = Duration::from_millis(60);

pub(super) async fn r8_the_same_owner_enters_again_and_the_last_guard_releases(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let me = Owner::new();
    let outer = t.lock(&one, &name).owner(&me).await.expect("it is free");
    let inner =
        t.lock(&one, &name).owner(&me).timeout(HANGS).await.expect("its owner enters again");
    let tried = one
        .mutex(&name)
        .try_lock()
        .owner(&me)
        .await
        .expect("it can be tried")
        .expect("its owner enters again");
    assert_eq!(outer.token().ok(), inner.token().ok());
    assert!(t.shows(&two, Kind::Lock, &name, 1, 0).await, "one hold, whatever the count");
    assert!(outer.release().await.is_clean());
    drop(tried);
    assert!(
        two.mutex(&name).try_lock().await.expect("it can be tried").is_none(),
        "one guard is left"
    );
    inner.check().expect("and it is good");
    assert!(inner.release().await.is_clean());
    let next = within(HANGS, "the last guard releases", t.lock(&two, &name).into_future())
        .await
        .expect("it is free");
    assert!(next.release().await.is_clean());
}

pub(super) async fn r8_a_scope_lends_its_owner(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let me = Owner::new();
    let inside = me.scope(async {
        let outer = t.lock(&locks, &name).await.expect("it is free");
        tokio::task::yield_now().await;
        let inner = t.lock(&locks, &name).timeout(HANGS).await.expect("its scope enters again");
        drop(outer);
        inner
    });
    let inner = inside.await;
    let outside = t.lock(&locks, &name).timeout(BRIEFLY).await;
    assert_eq!(
        outside.map(drop).map_err(|e| e.kind()),
        Err(ErrorKind::TimedOut),
        "outside the scope nobody owns it"
    );
    let by_name =
        t.lock(&locks, &name).owner(&me).timeout(HANGS).await.expect("its owner enters again");
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
    assert_eq!(
        lock.write().owner(&me).await.map(drop).map_err(|e| e.kind()),
        Err(ErrorKind::WouldDeadlock)
    );
    let again = lock.read().owner(&me).timeout(HANGS).await.expect("reading again is no wait");
    drop((reader, again));
    let writer = lock.write().owner(&me).timeout(HANGS).await.expect("it is free");
    let within_write =
        lock.read().owner(&me).timeout(HANGS).await.expect("whoever writes may read");
    drop((writer, within_write));
}

pub(super) async fn r8_an_owner_with_an_upgradable_guard_upgrades(t: Arc<Trial>) {
    let lock = t.open().await.rwlock(t.name("a"));
    let me = Owner::new();
    let mut up = lock.upgradable().owner(&me).await.expect("it is free");
    assert_eq!(
        lock.write().owner(&me).await.map(drop).map_err(|e| e.kind()),
        Err(ErrorKind::WouldDeadlock)
    );
    let writing =
        within(HANGS, "it upgrades", up.upgrade().into_future()).await.expect("nobody else reads");
    drop(writing);
    assert!(up.release().await.is_clean());
}

pub(super) async fn r8_another_owner_waits(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let (me, you) = (Owner::new(), Owner::new());
    let guard = t.lock(&locks, &name).owner(&me).await.expect("it is free");
    let refused = t.lock(&locks, &name).owner(&you).timeout(BRIEFLY).await;
    assert_eq!(refused.map(drop).map_err(|e| e.kind()), Err(ErrorKind::TimedOut));
    assert!(guard.release().await.is_clean());
}

pub(super) async fn r8_without_an_owner_nothing_is_guessed(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let guard = t.lock(&locks, &name).await.expect("it is free");
    let refused = t.lock(&locks, &name).timeout(BRIEFLY).await;
    assert_eq!(
        refused.map(drop).map_err(|e| e.kind()),
        Err(ErrorKind::TimedOut),
        "two futures of one task may rightly queue"
    );
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
        assert_eq!(
            refused.map(drop).map_err(|e| e.kind()),
            Err(ErrorKind::TimedOut),
            "an owner is another identity"
        );
        let waiting = std::thread::spawn({
            let (locks, name) = (locks.clone(), name.clone());
            move || {
                locks
                    .mutex(&name)
                    .lock()
                    .timeout(HANGS)
                    .run()
                    .map(|guard| guard.release().is_clean())
            }
        });
        assert!(guard.release().is_clean());
        assert_eq!(waiting.join().expect("no panic").ok(), Some(true));
    });
    tokio::task::spawn_blocking(|| thread.join()).await.expect("no panic").expect("no panic");
}

/// A guard of the one owner, by what it was given.
enum Given {
    Write(WriteGuard),
    Upgradable(UpgradableGuard),
    Read(Guard),
}

impl Given {
    fn is_good(&self) -> bool {
        match self {
            Self::Write(guard) => guard.check().is_ok(),
            Self::Upgradable(guard) => guard.check().is_ok(),
            Self::Read(guard) => guard.check().is_ok(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    Nothing,
    Reading,
    MayUpgrade,
    Alone,
}

const NEEDS: [Need; 3] = [Need::Reading, Need::MayUpgrade, Need::Alone];

async fn enter(lock: &RwLock, me: &Owner, need: Need) -> lockkeeper::Result<Given> {
    Ok(match need {
        Need::Alone => Given::Write(lock.write().owner(me).timeout(HANGS).await?),
        Need::MayUpgrade => Given::Upgradable(lock.upgradable().owner(me).timeout(HANGS).await?),
        Need::Reading | Need::Nothing => Given::Read(lock.read().owner(me).timeout(HANGS).await?),
    })
}

/// Sees from another client that the lock shuts out what this need shuts out, and in the end no
/// more than that.
async fn shuts_out(what: &str, need: Need, other: &RwLock) {
    if need == Need::Alone {
        for _ in 0..3 {
            let read = other.try_read().await.expect("it can be tried");
            assert!(
                read.is_none(),
                "{what}: a reader stands beside a guard that was told it is alone"
            );
            tokio::task::yield_now().await;
        }
    } else {
        let read = other.read().timeout(HANGS).await;
        assert!(read.is_ok(), "{what}: {need:?} lets readers in");
        drop(read);
        let wrote = other.try_write().await.expect("it can be tried");
        assert!(
            wrote.is_none() || need == Need::Nothing,
            "{what}: a writer stands beside {need:?}"
        );
    }
}

pub(super) async fn r8_no_conversion_takes_from_another_guard_of_its_owner_what_that_was_given(
    t: Arc<Trial>,
) {
    let (one, two) = (t.open().await, t.open().await);
    for (first, second) in
        NEEDS.iter().flat_map(|first| NEEDS.iter().map(move |second| (*first, *second)))
    {
        for converts_first in [true, false] {
            for down in [true, false] {
                let what = format!(
                    "{first:?}, then {second:?}; {} {}",
                    ["second", "first"][usize::from(converts_first)],
                    ["writes", "reads"][usize::from(down)]
                );
                let name = t.name(&what);
                let (lock, other) = (one.rwlock(&name), two.rwlock(&name));
                let me = Owner::new();
                let outer = enter(&lock, &me, first).await.expect("it is free");
                let inner = match enter(&lock, &me, second).await {
                    Ok(inner) => inner,
                    Err(error) => {
                        assert!(second != Need::Reading && first != Need::Alone, "{what}: {error}");
                        assert_eq!(error.kind(), ErrorKind::WouldDeadlock, "{what}");
                        continue;
                    }
                };
                assert!(
                    second == Need::Reading || first == Need::Alone,
                    "{what}: it would wait for itself"
                );
                let (converts, stays, left) =
                    if converts_first { (outer, inner, second) } else { (inner, outer, first) };
                let mut need = left;
                let converted = match (converts, down) {
                    (Given::Write(guard), true) => {
                        convert_down(&what, guard.downgrade().await, left, &mut need)
                    }
                    (Given::Upgradable(guard), true) => {
                        convert_down(&what, guard.downgrade().await, left, &mut need)
                    }
                    (Given::Upgradable(mut guard), false) => {
                        let writing = guard.upgrade().timeout(HANGS).await.expect("no other reads");
                        shuts_out(&what, Need::Alone, &other).await;
                        drop(writing);
                        need = need.max(Need::MayUpgrade);
                        Some(Given::Upgradable(guard))
                    }
                    // Readers convert nothing, and a writer writes already.
                    _ => continue,
                };
                shuts_out(&what, need, &other).await;
                assert!(stays.is_good(), "{what}");
                drop(stays);
                if let Some(Given::Upgradable(_)) = converted {
                    shuts_out(&what, Need::MayUpgrade, &other).await;
                }
                drop(converted);
                let last = other.write().timeout(HANGS).await;
                assert!(last.is_ok(), "{what}: the last guard gives it back");
            }
        }
    }
}

fn convert_down(
    what: &str,
    done: lockkeeper::Result<Guard>,
    left: Need,
    need: &mut Need,
) -> Option<Given> {
    match done {
        Ok(guard) => {
            assert!(left == Need::Reading, "{what}: {left:?} is taken from the other");
            *need = Need::Reading;
            Some(Given::Read(guard))
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldDeadlock, "{what}");
            assert!(left != Need::Reading, "{what}: {error}");
            None
        }
    }
}

pub(super) async fn r8_who_enters_under_a_writing_keeps_what_it_was_given_when_that_ends(
    t: Arc<Trial>,
) {
    let (one, two) = (t.open().await, t.open().await);
    for second in NEEDS {
        let name = t.name(&format!("{second:?}"));
        let (lock, other) = (one.rwlock(&name), two.rwlock(&name));
        let me = Owner::new();
        let mut up = lock.upgradable().owner(&me).await.expect("it is free");
        let writing = up.upgrade().timeout(HANGS).await.expect("nobody reads");
        let inner = match enter(&lock, &me, second).await {
            Ok(inner) => inner,
            Err(error) => {
                assert_eq!(
                    (second, error.kind()),
                    (Need::MayUpgrade, ErrorKind::WouldDeadlock),
                    "there is one upgradable guard at a time"
                );
                drop(writing);
                assert!(up.release().await.is_clean());
                continue;
            }
        };
        drop(writing);
        shuts_out("the writing is over", second.max(Need::MayUpgrade), &other).await;
        let inner = match inner {
            Given::Write(guard) => {
                let refused = guard
                    .downgrade()
                    .await
                    .expect_err("it would take the upgrade from the first guard");
                assert_eq!(refused.kind(), ErrorKind::WouldDeadlock);
                None
            }
            inner => Some(inner),
        };
        shuts_out("the inner writer is gone", Need::MayUpgrade, &other).await;
        let writing = within(HANGS, "it upgrades again", up.upgrade().into_future())
            .await
            .expect("nobody else reads");
        shuts_out("it writes again", Need::Alone, &other).await;
        drop(writing);
        shuts_out("the second writing is over", Need::MayUpgrade, &other).await;
        assert!(inner.is_none_or(|inner| inner.is_good()));
        assert!(up.release().await.is_clean());
        shuts_out("nobody is left", Need::Nothing, &other).await;
    }
}
