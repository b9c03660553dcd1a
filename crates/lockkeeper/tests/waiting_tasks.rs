//! What waiting costs. A program of its own, whose processor time it reads.
#![cfg(feature = "file")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Kind, Locks};
use nix::time::{ClockId, clock_gettime};

#[tokio::test]
async fn a_thousand_waiting_tasks_use_less_than_one_percent_of_a_core() {
    let dir = tempfile::tempdir().unwrap();
    let url = lockkeeper::config::file_url(&dir.path().join("locks"));
    // Two of them, as two processes would have: the tasks wait in memory for one place, and the
    // place waits in the kernel.
    let (holder, locks) = (Locks::open(&url).await.unwrap(), Locks::open(&url).await.unwrap());
    let held = holder.mutex("a").lock().await.unwrap();
    let polled = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..1_000 {
        let (mutex, polled) = (locks.mutex("a"), polled.clone());
        tasks.spawn(async move {
            polled.fetch_add(1, Ordering::Relaxed);
            drop(mutex.lock().await.unwrap());
        });
    }
    let patience = Instant::now() + Duration::from_secs(120);
    while polled.load(Ordering::Relaxed) < 1_000
        || holder.status(Kind::Lock, "a").await.unwrap().waiters.is_empty()
    {
        assert!(Instant::now() < patience, "all of them wait, and the place is in line");
        tokio::task::yield_now().await;
    }
    let spent = || Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap());
    let patience = Instant::now() + Duration::from_secs(120);
    // What is left of the beginning is not waiting: it is over in one of these times.
    loop {
        let (began, before) = (Instant::now(), spent());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (took, spent) = (began.elapsed(), spent() - before);
        println!("1 000 waiting tasks: {spent:?} of a processor in {took:?}");
        if spent * 100 < took {
            break;
        }
        assert!(Instant::now() < patience, "{spent:?} in {took:?}");
    }
    drop(held);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}
