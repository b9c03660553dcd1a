//! R15, and the main thing: processes exclude each other.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Mode;

use crate::conformance::helper::occupy;
use crate::conformance::occupancy::Occupancy;
use crate::conformance::trial::{HANGS, Trial, within};

/// By how much more a renewal moves the end of a lease than two readings of a clock do.
const RENEWED: Duration = Duration::from_millis(200);

pub(super) async fn r15_g16_a_forked_child_has_no_locks(t: Arc<Trial>) {
    let name = t.name("a");
    let (locks, there) = (t.open().await, t.helper().await);
    within(HANGS, "the child ends", there.fork(&name)).await.expect("parent and child behave");
    let next =
        within(HANGS, "the parent has given it back", locks.mutex(&name).lock().into_future())
            .await
            .expect("it is free");
    assert!(next.release().await.is_clean());
}

pub(super) async fn r15_the_end_of_the_runtime_ends_no_lock(t: Arc<Trial>) {
    let name = t.name("a");
    let other = t.open().await;
    let there = {
        let (t, name) = (t.clone(), name.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let (locks, guard) = runtime.block_on(async {
                let locks = t.open().await;
                let guard = locks.mutex(&name).lock().await.expect("it is free");
                (locks, guard)
            });
            drop(runtime);
            (locks, guard)
        })
    };
    let (locks, guard) =
        tokio::task::spawn_blocking(|| there.join()).await.expect("no panic").expect("no panic");
    match guard.deadline() {
        // Nobody else renews it.
        Some(end) => {
            within(HANGS, "it is renewed", async {
                while guard.deadline() <= Some(end + RENEWED) {
                    guard.check().expect("the keeper renews on a thread of its own");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
            .await;
        }
        None => tokio::time::sleep(Duration::from_millis(200)).await,
    }
    guard.check().expect("the keeper renews on a thread of its own");
    assert!(other.mutex(&name).try_lock().await.expect("it can be tried").is_none());
    drop(guard);
    let next = within(HANGS, "it is given back", other.mutex(&name).lock().into_future())
        .await
        .expect("it is free");
    assert!(next.release().await.is_clean());
    drop(locks);
}

/// This process and another, many tasks each, which have to exclude each other; answers how many
/// turns there were.
async fn both(t: &Trial, mode: Mode, there_mode: Mode, tasks: u32, rounds: u32) -> u64 {
    let name = t.name("a");
    let (locks, there) = (t.open().await, t.helper().await);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("count");
    let occupancy = Arc::new(Occupancy::open(&file).expect("the count can be opened"));
    let mut here = Vec::new();
    for _ in 0..tasks {
        let (locks, name, occupancy) = (locks.clone(), name.clone(), occupancy.clone());
        here.push(tokio::spawn(
            async move { occupy(&locks, mode, &name, rounds, &occupancy).await },
        ));
    }
    let done = within(
        HANGS,
        "the other process is done",
        there.occupy(there_mode, &name, tasks, rounds, &file),
    )
    .await;
    done.expect("every claim is granted at last");
    for task in here {
        within(HANGS, "this process is done", task)
            .await
            .expect("no panic")
            .expect("every claim is granted at last");
    }
    assert_eq!(occupancy.violations(), 0, "BROKEN LOCK: two holders");
    occupancy.turns()
}

pub(super) async fn two_processes_of_many_tasks_exclude_each_other_and_tokens_rise(t: Arc<Trial>) {
    let (tasks, rounds) = (16, t.times(60));
    let counted = both(&t, Mode::Exclusive, Mode::Exclusive, tasks, rounds).await;
    assert_eq!(counted, u64::from(2 * tasks * rounds));
}

pub(super) async fn two_processes_of_readers_and_writers_exclude_each_other(t: Arc<Trial>) {
    let (tasks, rounds) = (8, t.times(40));
    let counted = both(&t, Mode::Shared, Mode::Exclusive, tasks, rounds).await;
    assert_eq!(counted, u64::from(2 * tasks * rounds));
}
