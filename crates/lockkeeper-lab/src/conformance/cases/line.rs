//! R10 and R11: waiters are woken, in the order in which they came; nobody is overtaken or starved.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper::{Kind, Mode};

use crate::conformance::trial::{HANGS, Trial, within};

pub(super) async fn r10_waiters_are_woken(t: Arc<Trial>) {
    let name = t.name("a");
    let clients = [t.open().await, t.open().await];
    let mut held = t.lock(&clients[0], &name).await.expect("it is free");
    // Each of ten may be held up by a busy machine, and all ten by one that is busier: then once
    // more. Most of them come sooner than they look by themselves.
    let (begun, mut took) = (Instant::now(), Vec::new());
    for round in 1.. {
        let next = tokio::spawn(t.lock(&clients[round % 2], &name).into_future());
        t.until_waiting(&clients[0], Kind::Lock, &name, 1).await;
        let began = Instant::now();
        drop(held);
        held = within(HANGS, "the waiter is woken", next)
            .await
            .expect("no panic")
            .expect("it is granted");
        took.push(began.elapsed());
        if took.len() == 10 {
            took.sort_unstable();
            if took[5] < Duration::from_secs(2) {
                break;
            }
            assert!(begun.elapsed() < HANGS, "nobody woke them: {took:?}");
            took.clear();
        }
    }
}

pub(super) async fn r11_first_come_first_served(t: Arc<Trial>) {
    let name = t.name("a");
    let first = t.open().await;
    let held = t.lock(&first, &name).await.expect("it is free");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for place in 1..=4 {
        let (claim, order) = (t.lock(&t.open().await, &name), order.clone());
        waiting.push(tokio::spawn(async move {
            let guard = claim.await.expect("every claim is granted at last");
            order.lock().expect("no panic").push(place);
            drop(guard);
        }));
        t.until_waiting(&first, Kind::Lock, &name, place).await;
    }
    drop(held);
    for task in waiting {
        within(HANGS, "each gets its turn", task).await.expect("no panic");
    }
    assert_eq!(*order.lock().expect("no panic"), [1, 2, 3, 4]);
}

pub(super) async fn r11_first_come_first_served_between_processes(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let (one, two) = (Arc::new(t.helper().await), Arc::new(t.helper().await));
    let held = t.lock(&locks, &name).await.expect("it is free");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for (place, there) in [(1, one), (2, two)] {
        let (lock, order) = (name.clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let turn = there
                .lock(Mode::Exclusive, &lock, HANGS)
                .await
                .expect("every claim is granted at last");
            order.lock().expect("no panic").push(place);
            assert_eq!(there.release(turn).await.as_deref(), Ok("clean"));
        }));
        t.until_waiting(&locks, Kind::Lock, &name, place).await;
    }
    let mine = tokio::spawn(t.lock(&t.open().await, &name).into_future());
    t.until_waiting(&locks, Kind::Lock, &name, 3).await;
    drop(held);
    drop(
        within(HANGS, "this process comes last", mine)
            .await
            .expect("no panic")
            .expect("it is granted"),
    );
    assert_eq!(*order.lock().expect("no panic"), [1, 2]);
    for task in waiting {
        within(HANGS, "each gets its turn", task).await.expect("no panic");
    }
}

pub(super) async fn r11_a_try_never_overtakes_a_line(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two, three) = (t.open().await, t.open().await, t.open().await);
    let reader = t.lasts(one.rwlock(&name).read()).await.expect("it is free");
    let writer = tokio::spawn(t.lasts(two.rwlock(&name).write()).into_future());
    t.until_waiting(&one, Kind::Lock, &name, 1).await;
    for locks in [&two, &three] {
        assert!(
            locks.rwlock(&name).try_read().await.expect("it can be tried").is_none(),
            "a writer stands in line"
        );
    }
    drop(reader);
    let writing = within(HANGS, "the writer gets it", writer)
        .await
        .expect("no panic")
        .expect("it is granted");
    drop(writing);
    let mut free = None;
    for _ in 0..100 {
        free = three.rwlock(&name).try_read().await.expect("it can be tried");
        if free.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(free.is_some(), "nobody is there any more");
}

pub(super) async fn r11_a_reader_waits_behind_a_waiting_writer(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two, three) = (t.open().await, t.open().await, t.open().await);
    let reader = t.lasts(one.rwlock(&name).read()).await.expect("it is free");
    let order = Arc::new(Mutex::new(Vec::new()));
    let (first, second) = (order.clone(), order.clone());
    let (write, read) = (t.lasts(two.rwlock(&name).write()), t.lasts(three.rwlock(&name).read()));
    let writer = tokio::spawn(async move {
        let guard = write.await.expect("it is granted");
        first.lock().expect("no panic").push("writer");
        drop(guard);
    });
    t.until_waiting(&one, Kind::Lock, &name, 1).await;
    let late = tokio::spawn(async move {
        let guard = read.await.expect("it is granted");
        second.lock().expect("no panic").push("reader");
        drop(guard);
    });
    t.until_waiting(&one, Kind::Lock, &name, 2).await;
    drop(reader);
    within(HANGS, "each gets its turn", async {
        (writer.await.expect("no panic"), late.await.expect("no panic"))
    })
    .await;
    assert_eq!(*order.lock().expect("no panic"), ["writer", "reader"]);
}

pub(super) async fn r11_readers_do_not_starve_a_writer(t: Arc<Trial>) {
    let name = t.name("a");
    let over = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    for client in 0..2 {
        let locks = t.open().await;
        for reader in 0..3u64 {
            let (locks, name, over) = (locks.clone(), name.clone(), over.clone());
            readers.push(tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(7 * reader + 3 * client)).await;
                while !over.load(Ordering::SeqCst) {
                    let guard =
                        locks.rwlock(&name).read().await.expect("every claim is granted at last");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    drop(guard);
                }
            }));
        }
    }
    tokio::time::sleep(Duration::from_millis(60)).await;
    for _ in 0..3 {
        let write = t
            .open()
            .await
            .rwlock(&name)
            .write()
            .timeout(HANGS)
            .await
            .expect("readers come and go, and the writer gets in");
        drop(write);
    }
    over.store(true, Ordering::SeqCst);
    for reader in readers {
        within(HANGS, "the readers end", reader).await.expect("no panic");
    }
}

pub(super) async fn r11_whoever_leaves_the_line_lets_the_next_pass(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two, three) = (t.open().await, t.open().await, t.open().await);
    let held = t.lock(&one, &name).await.expect("it is free");
    let leaves = tokio::spawn(t.lock(&two, &name).into_future());
    t.until_waiting(&one, Kind::Lock, &name, 1).await;
    let stays = tokio::spawn(t.lock(&three, &name).into_future());
    t.until_waiting(&one, Kind::Lock, &name, 2).await;
    leaves.abort();
    assert!(leaves.await.is_err_and(|e| e.is_cancelled()));
    t.until_waiting(&one, Kind::Lock, &name, 1).await;
    drop(held);
    drop(within(HANGS, "the next gets it", stays).await.expect("no panic").expect("it is granted"));
}
