//! R4: unknown is an answer, neither yes nor no.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Kind, Released};

use crate::conformance::trial::{HANGS, Trial, within};

pub(super) async fn r4_a_release_out_of_reach_is_done_once_it_can_be(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let lock = t.lock(&one, &name);
    let guard = lock.await.expect("it is free");
    t.cut().await;
    let released = within(HANGS, "a release out of reach says so", guard.release()).await;
    assert!(matches!(released, Released::Unknown(_)), "{released:?}");
    t.mend().await;
    let next = two
        .mutex(&name)
        .lock()
        .timeout(HANGS)
        .await
        .expect("the keeper releases behind the caller's back");
    assert!(next.release().await.is_clean());
}

pub(super) async fn r4_an_acquisition_out_of_reach_holds_once(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    assert_eq!(t.at_rest(&locks).await.leases, 0);
    t.cut().await;
    let waiting = tokio::spawn(locks.mutex(&name).lock().timeout(HANGS).into_future());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "not known is not refused");
    t.mend().await;
    let guard = within(HANGS, "it is granted once it can be", waiting)
        .await
        .expect("no panic")
        .expect("it is granted");
    let other = t.open().await;
    assert!(t.shown(&other, Kind::Lock, &name).await.is_none_or(|entry| entry.holders.len() == 1));
    assert!(guard.release().await.is_clean());
    t.until_free(&other, Kind::Lock, &name, 0).await;
}
