//! Latches: closed while their count is above zero.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, Locks};

use crate::conformance::trial::{HANGS, Trial, sooner_than, within};

pub(super) async fn a_latch_is_open_closed_and_open_again(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await.latch(&name), t.open().await.latch(&name));
    within(HANGS, "one that was never set is open", one.wait().into_future())
        .await
        .expect("it is open");
    assert_eq!(one.count().await.ok(), Some(0));
    assert!(one.count_down().await.expect("an open one stays open"));
    for round in 0..2 {
        assert!(one.set(2).await.expect("it can be set"), "round {round}");
        assert_eq!(two.count().await.ok(), Some(2));
        assert_eq!(
            two.wait().timeout(Duration::from_millis(60)).await.map_err(|e| e.kind()),
            Err(ErrorKind::TimedOut)
        );
        assert!(!two.count_down().await.expect("it can be counted down"));
        assert_eq!(one.count().await.ok(), Some(1));
        assert!(one.count_down().await.expect("it can be counted down"));
        within(HANGS, "it is open", two.wait().into_future()).await.expect("it is open");
        assert_eq!(two.count().await.ok(), Some(0));
    }
}

/// Less than the net under a lost wake-up, which looks every 5 s.
const SOON: Duration = Duration::from_secs(4);

pub(super) async fn everybody_waits_for_a_latch(t: Arc<Trial>) {
    let clients = [t.open().await, t.open().await];
    sooner_than(SOON, "everybody is told", |no| everybody_waits(&t, &clients, no)).await;
}

async fn everybody_waits(t: &Trial, clients: &[Locks; 2], no: usize) -> Duration {
    let name = t.name(&format!("a{no}"));
    let latch = clients[0].latch(&name);
    assert!(latch.set(3).await.expect("it can be set"));
    let waiting: Vec<_> = (0..6)
        .map(|n| tokio::spawn(clients[n % 2].latch(&name).wait().timeout(HANGS).into_future()))
        .collect();
    for _ in 0..2 {
        assert!(!latch.count_down().await.expect("it can be counted down"));
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    assert!(clients[1].latch(&name).count_down().await.expect("it can be counted down"));
    let began = Instant::now();
    for waiting in waiting {
        within(HANGS, "it is open, and they are told", waiting)
            .await
            .expect("no panic")
            .expect("it is open");
    }
    began.elapsed()
}

pub(super) async fn a_closed_latch_is_not_set_again(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await.latch(&name), t.open().await.latch(&name));
    assert!(one.set(1).await.expect("it can be set"));
    assert!(!two.set(5).await.expect("it is closed"), "somebody has set it");
    assert_eq!(one.count().await.ok(), Some(1));
    assert_eq!(one.set(0).await.map_err(|e| e.kind()), Err(ErrorKind::InvalidArgument));
    assert!(two.count_down().await.expect("it can be counted down"));
}
