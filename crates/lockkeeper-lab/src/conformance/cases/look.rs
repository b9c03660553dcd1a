//! What an engine shows: status, list, watch; and taking a lock away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Ability, Ends, Expiry, Kind, Locks, Mode};

use crate::conformance::trial::{HANGS, Trial, sooner_than, until, within};

pub(super) async fn the_status_shows_who_holds_and_who_waits(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    assert!(t.shows(&two, Kind::Lock, &name, 0, 0).await, "it is free");
    let guard = t.lock(&one, &name).label("the report").await.expect("it is free");
    let waiting = tokio::spawn(t.lock(&two, &name).into_future());
    t.until_waiting(&one, Kind::Lock, &name, 1).await;
    let entry = t.shown(&two, Kind::Lock, &name).await.expect("the case needs a status");
    let [holder] = entry.holders.as_slice() else { panic!("one holds it: {entry:?}") };
    if t.about().can.has(Ability::Identity) {
        assert_eq!(holder.pid, Some(std::process::id()), "{holder:?}");
        assert_eq!(holder.label.as_deref(), Some("the report"), "{holder:?}");
        assert_eq!(holder.token, guard.token().ok(), "{holder:?}");
    } else {
        assert!(
            holder.pid.is_none()
                && holder.label.as_deref().is_some_and(|label| label != "the report"),
            "{holder:?}"
        );
    }
    assert_eq!(holder.mode, Some(Mode::Exclusive), "{holder:?}");
    let as_described = match t.about().expiry {
        Expiry::PerHold { .. } => holder.expires_in().is_some() && guard.remaining().is_some(),
        Expiry::Session { .. } => holder.ends == Some(Ends::Session),
        _ => holder.ends.is_none(),
    };
    assert!(as_described, "{holder:?}");
    if t.about().can.has(Ability::Fair) {
        let [waiter] = entry.waiters.as_slice() else { panic!("one waits: {entry:?}") };
        assert_eq!(
            waiter.pid,
            t.about().can.has(Ability::Identity).then(std::process::id),
            "{entry:?}"
        );
    }
    assert!(guard.release().await.is_clean());
    drop(
        within(HANGS, "the next gets it", waiting).await.expect("no panic").expect("it is granted"),
    );
    t.until_shows(&one, Kind::Lock, &name, 0, 0).await;
}

pub(super) async fn the_list_shows_what_is_in_use(t: Arc<Trial>) {
    let (one, two) = (t.open().await, t.open().await);
    let names = [t.name("list/a"), t.name("list/b"), t.name("other")];
    let held = [
        t.lock(&one, &names[0]).await.expect("it is free"),
        t.lock(&one, &names[2]).await.expect("it is free"),
    ];
    let listed = |prefix: String| {
        let two = two.clone();
        async move {
            let mut names: Vec<String> = two
                .list(&prefix)
                .await
                .expect("it can be listed")
                .iter()
                .map(|e| e.name.to_string())
                .collect();
            names.sort();
            names
        }
    };
    assert_eq!(listed(t.name("list/")).await, [names[0].clone()]);
    assert_eq!(listed(t.name("")).await, [names[0].clone(), names[2].clone()]);
    if t.about().can.has(Ability::Shared) {
        let reading = one.rwlock(&names[1]).read().await.expect("it is free");
        assert_eq!(listed(t.name("list/")).await, [names[0].clone(), names[1].clone()]);
        drop(reading);
    }
    drop(held);
    until("nothing is listed", || async { listed(t.name("")).await.is_empty() }).await;
}

pub(super) async fn a_watch_shows_each_change(t: Arc<Trial>) {
    let (one, two) = (t.open().await, t.open().await);
    // The net under a lost wake-up looks every 5 s.
    let soon = Duration::from_secs(4);
    sooner_than(soon, "each change is told", |no| shows_each_change(&t, &one, &two, no)).await;
}

async fn shows_each_change(t: &Trial, one: &Locks, two: &Locks, no: usize) -> Duration {
    let name = t.name(&format!("a{no}"));
    let mut watch = two.watch(&name).await.expect("it can be watched");
    let state = within(HANGS, "the state is told", watch.next()).await.expect("it is told");
    assert!(state.iter().all(|entry| entry.holders.is_empty()), "{state:?}");
    let guard = t.lock(one, &name).await.expect("it is free");
    let began = Instant::now();
    within(HANGS, "the holder is told", async {
        while watch.next().await.expect("it is told").iter().all(|entry| entry.holders.is_empty()) {
        }
    })
    .await;
    let first = began.elapsed();
    let began = Instant::now();
    assert!(guard.release().await.is_clean());
    within(HANGS, "the release is told", async {
        while watch.next().await.expect("it is told").iter().any(|entry| !entry.holders.is_empty())
        {
        }
    })
    .await;
    first.max(began.elapsed())
}

pub(super) async fn a_lock_is_taken_away_from_its_holder(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    assert!(
        !two.force_release(Kind::Lock, &name).await.expect("it can be forced"),
        "nobody held it"
    );
    let guard = t.lock(&one, &name).await.expect("it is free");
    assert!(two.force_release(Kind::Lock, &name).await.expect("it can be forced"));
    let next = t.lock(&two, &name).timeout(HANGS).await.expect("it is free");
    assert!(!guard.release().await.is_clean(), "it was not ours any more");
    assert!(next.release().await.is_clean());
}
