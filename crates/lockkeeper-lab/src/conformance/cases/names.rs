//! R12: different names never share a lock.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Ability, ErrorKind, Kind, TryAcquire};

use crate::conformance::trial::Trial;

pub(super) async fn r12_different_names_are_different_locks(t: Arc<Trial>) {
    let (one, two) = (t.open().await, t.open().await);
    let long = "x".repeat(900);
    let names = [
        "a",
        "A",
        "a/",
        "/a",
        "a/b",
        "a//b",
        "a\\b",
        ".",
        "..",
        "./a",
        "a.",
        " a",
        "a ",
        "a b",
        "a  b",
        "a\tb",
        "a\nb",
        "é",
        "e\u{301}",
        "ß",
        "ss",
        "ı",
        "i",
        "İ",
        "\u{1F512}",
        "a%2Fb",
        "%61",
        "a\u{200B}",
        "*",
        "a*",
        "?",
        "{a}",
        "{b}",
        "[a]",
        "a:b",
        "a::b",
        "-",
        "--",
        "~",
        "$a",
        "'",
        "\"",
        "\u{7f}",
        "a\u{1b}[31m",
        "null",
        "CON",
        "lost+found",
        &format!("{long}1"),
        &format!("{long}2"),
    ];
    let mut held = Vec::new();
    for text in names {
        let name = t.name(text);
        // All of them are held until the last has been tried.
        let tries = t.lasting().into_iter().fold(one.mutex(&name).try_lock(), TryAcquire::ttl);
        match tries.await {
            Ok(Some(guard)) => held.push((name, guard)),
            Ok(None) => panic!(
                "{name:?} shares its lock with one of {:?}",
                held.iter().map(|(n, _)| n).collect::<Vec<_>>()
            ),
            // Where others share the layout, the name is taken verbatim, and what cannot be said
            // there is refused (R12).
            Err(error) if error.kind() == ErrorKind::InvalidName && t.subject.foreign => {
                assert!(error.to_string().len() > 20, "{error}")
            }
            Err(error) => panic!("{name:?}: {error}"),
        }
    }
    assert!(held.len() > 20);
    for (name, _) in &held {
        assert!(
            two.mutex(name).try_lock().await.expect("it can be tried").is_none(),
            "{name:?} is held"
        );
        if let Some(entry) = t.shown(&two, Kind::Lock, name).await {
            assert_eq!(
                (entry.name.as_str(), entry.holders.len()),
                (name.as_str(), 1),
                "{name:?} is shown as it is"
            );
        }
    }
    for (_, guard) in held {
        assert!(guard.release().await.is_clean());
    }
}

pub(super) async fn r12_every_kind_has_names_of_its_own(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let can = t.about().can;
    let lock = locks.mutex(&name).try_lock().await.expect("it can be tried").expect("it is free");
    if t.subject.foreign && !t.subject.kinds_apart {
        // The name is the key, whatever its kind: another kind of the same name is refused, and
        // never shared (R12).
        if can.has(Ability::Permits) {
            let refused = locks.semaphore(&name, 1).try_acquire(1).await.err().map(|e| e.kind());
            assert_eq!(refused, Some(ErrorKind::Corrupt));
        }
        if can.has(Ability::Latch) {
            assert_eq!(
                locks.latch(&name).set(1).await.err().map(|e| e.kind()),
                Some(ErrorKind::Corrupt)
            );
        }
        assert!(lock.release().await.is_clean());
        return;
    }
    let permit = if can.has(Ability::Permits) {
        Some(
            locks
                .semaphore(&name, 1)
                .try_acquire(1)
                .await
                .expect("it can be tried")
                .expect("it is free"),
        )
    } else {
        None
    };
    if t.subject.elects_by_lock {
        let shared = locks.election(&name).stand("me").timeout(Duration::from_millis(100)).await;
        assert_eq!(
            shared.map(drop).map_err(|e| e.kind()),
            Err(ErrorKind::TimedOut),
            "this layout's elections are locks"
        );
    }
    let term = if can.has(Ability::Election) && !t.subject.elects_by_lock {
        Some(locks.election(&name).stand("me").await.expect("nobody leads"))
    } else {
        None
    };
    if can.has(Ability::Latch) {
        assert!(locks.latch(&name).set(1).await.expect("it can be set"));
    }
    assert!(lock.release().await.is_clean());
    let again = locks
        .mutex(&name)
        .try_lock()
        .await
        .expect("it can be tried")
        .expect("the others have names of their own");
    if can.has(Ability::Permits) {
        assert!(
            t.shown(&locks, Kind::Semaphore, &name)
                .await
                .is_none_or(|entry| entry.holders.len() == 1)
        );
    }
    drop((again, permit, term));
    if can.has(Ability::Latch) {
        assert!(locks.latch(&name).count_down().await.expect("it can be counted down"));
    }
}

pub(super) async fn r12_a_mutex_is_the_writer_of_the_rwlock_of_its_name(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let guard = t.lock(&one, &name).await.expect("it is free");
    assert!(two.rwlock(&name).try_write().await.expect("it can be tried").is_none());
    if t.about().can.has(Ability::Shared) {
        assert!(two.rwlock(&name).try_read().await.expect("it can be tried").is_none());
        assert!(guard.release().await.is_clean());
        let reader = two.rwlock(&name).read().await.expect("it is free");
        assert!(one.mutex(&name).try_lock().await.expect("it can be tried").is_none());
        drop(reader);
    }
}
