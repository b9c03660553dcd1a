//! Permits: weighted, with a stored limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, Kind, Mode};

use crate::conformance::awaited::is_over;
use crate::conformance::trial::{HANGS, Trial, within};

pub(super) async fn permits_are_weighted(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await.semaphore(&name, 5), t.open().await.semaphore(&name, 5));
    let three = t.lasts(one.acquire(3)).await.expect("five are free");
    assert!(two.try_acquire(3).await.expect("it can be tried").is_none());
    let last = two.try_acquire(2).await.expect("it can be tried").expect("two are free");
    assert!(one.try_acquire(1).await.expect("it can be tried").is_none());
    let waiting = tokio::spawn(t.lasts(two.acquire(4)).into_future());
    assert!(three.release().await.is_clean());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished(), "three are free");
    assert!(last.release().await.is_clean());
    let four =
        within(HANGS, "four are free", waiting).await.expect("no panic").expect("they are granted");
    assert!(four.release().await.is_clean());
}

pub(super) async fn the_limit_is_stored_and_another_is_refused(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let permit = t.lasts(one.semaphore(&name, 3).acquire(1)).await.expect("three are free");
    for refused in [
        two.semaphore(&name, 4).acquire(1).await.map(drop),
        two.semaphore(&name, 2).try_acquire(1).await.map(drop),
    ] {
        let error = refused.expect_err("the limit is another");
        assert_eq!(error.kind(), ErrorKind::LimitMismatch);
        assert!(error.to_string().contains('3'), "it names the stored one: {error}");
    }
    assert!(permit.release().await.is_clean());
    let entry = t.shown(&two, Kind::Semaphore, &name).await;
    assert!(
        entry.as_ref().and_then(|entry| entry.limit).is_none_or(|limit| limit == 3),
        "{entry:?}"
    );
}

pub(super) async fn a_greater_limit_lets_waiters_in(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let held = t.lasts(one.semaphore(&name, 1).acquire(1)).await.expect("one is free");
    let waiting = tokio::spawn(t.lasts(two.semaphore(&name, 1).acquire(1)).into_future());
    t.until_waiting(&one, Kind::Semaphore, &name, 1).await;
    one.semaphore(&name, 1).resize(2).await.expect("it can be changed");
    let second = within(HANGS, "there is one more", waiting)
        .await
        .expect("no panic")
        .expect("it is granted");
    assert_eq!(
        one.semaphore(&name, 1).acquire(1).await.map(drop).map_err(|e| e.kind()),
        Err(ErrorKind::LimitMismatch)
    );
    assert!(
        one.semaphore(&name, 2).try_acquire(1).await.expect("it can be tried").is_none(),
        "both are out"
    );
    drop((held, second));
}

pub(super) async fn a_smaller_limit_takes_nothing_away(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let mut semaphore = locks.semaphore(&name, 3);
    let (two, one) = (
        t.lasts(semaphore.acquire(2)).await.expect("three are free"),
        t.lasts(semaphore.acquire(1)).await.expect("one is free"),
    );
    semaphore.resize(1).await.expect("it can be changed");
    two.check().expect("permits that are out stay out");
    drop(two);
    assert!(
        semaphore.try_acquire(1).await.expect("it can be tried").is_none(),
        "one is out, and there is one"
    );
    drop(one);
    let last = t.lasts(semaphore.acquire(1)).timeout(HANGS).await.expect("it is free");
    assert!(semaphore.try_acquire(1).await.expect("it can be tried").is_none());
    assert!(last.release().await.is_clean());
}

pub(super) async fn permits_die_with_their_process(t: Arc<Trial>) {
    let locks = t.open().await;
    let (there, about) = t.brief_helper().await;
    let (begun, mut names) = (Instant::now(), (0..).map(|n| t.name(&format!("a{n}"))));
    let (semaphore, one) = loop {
        let name = names.next().expect("there is one");
        let mode = Mode::Permits { count: 2, limit: 3 };
        let turn = there.lock(mode, &name, HANGS).await.expect("three are free");
        let semaphore = locks.semaphore(&name, 3);
        let one = semaphore.try_acquire(1).await.expect("it can be tried").expect("one is free");
        if semaphore.try_acquire(1).await.expect("it can be tried").is_none() {
            break (semaphore, one);
        }
        is_over(&there, turn, begun).await;
    };
    there.kill();
    let two = semaphore
        .acquire(2)
        .timeout(about.recovery + HANGS)
        .await
        .expect("they die with their process");
    drop((one, two));
}

pub(super) async fn a_great_claim_is_not_starved_by_small_ones(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two, three) = (t.open().await, t.open().await, t.open().await);
    let small = t.lasts(one.semaphore(&name, 3).acquire(1)).await.expect("three are free");
    let great = tokio::spawn(t.lasts(two.semaphore(&name, 3).acquire(3)).into_future());
    t.until_waiting(&one, Kind::Semaphore, &name, 1).await;
    assert!(
        three.semaphore(&name, 3).try_acquire(1).await.expect("it can be tried").is_none(),
        "somebody stands in line"
    );
    let late = tokio::spawn(t.lasts(three.semaphore(&name, 3).acquire(1)).into_future());
    t.until_waiting(&one, Kind::Semaphore, &name, 2).await;
    assert!(!late.is_finished());
    drop(small);
    let all = within(HANGS, "the great claim comes first", great)
        .await
        .expect("no panic")
        .expect("it is granted");
    assert!(!late.is_finished());
    drop(all);
    drop(
        within(HANGS, "then the small one", late).await.expect("no panic").expect("it is granted"),
    );
    t.until_shows(&one, Kind::Semaphore, &name, 0, 0).await;
}
