//! Places in a line: when one is on record, and who has overtaken nobody.

use lockkeeper_lab::check::{Options, check_files};
use lockkeeper_lab::history::{Flags, What};

use super::{kinds, recorded, records};

/// It asks, and waits: the engine's answer is there at once.
async fn settled<F: Future>(waiting: &mut std::pin::Pin<Box<F>>) {
    std::future::poll_fn(|context| {
        assert!(waiting.as_mut().poll(context).is_pending(), "the lock is held by another");
        std::task::Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn a_place_in_line_is_recorded_once_and_whoever_takes_it_over_has_overtaken_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b", "c"].map(|name| dir.path().join(format!("{name}.lkh")));
    let [(a, first), (b, second), (c, third)] = [
        recorded(&paths[0], "memory:places").await,
        recorded(&paths[1], "memory:places").await,
        recorded(&paths[2], "memory:places").await,
    ];
    let held = a.mutex("n").lock().await.unwrap();
    let mut leaves = Box::pin(b.mutex("n").lock().into_future());
    settled(&mut leaves).await;
    let mut waits = Box::pin(c.mutex("n").lock().into_future());
    settled(&mut waits).await;
    // Called after the other's place was confirmed, and at an older place of its own process.
    let mut takes_over = Box::pin(b.mutex("n").lock().into_future());
    settled(&mut takes_over).await;
    drop(leaves);
    drop(held);
    drop(takes_over.await.unwrap());
    drop(waits.await.unwrap());
    for (locks, writer) in [(a, first), (b, second), (c, third)] {
        let _ = locks.close().await;
        writer.finish().unwrap();
    }
    assert_eq!(kinds(&paths[0]), ["acq_inv", "acq_ok", "rel_inv", "rel_ok"]);
    assert_eq!(
        kinds(&paths[1]),
        ["acq_inv", "enq_ok", "acq_inv", "acq_cancelled", "acq_ok", "rel_inv", "rel_ok"]
    );
    assert_eq!(kinds(&paths[2]), ["acq_inv", "enq_ok", "acq_ok", "rel_inv", "rel_ok"]);
    let handed = |path| {
        records(path).iter().find(|r| r.what == What::Acquired).unwrap().flags.has(Flags::HANDED)
    };
    assert_eq!([handed(&paths[0]), handed(&paths[1]), handed(&paths[2])], [false, true, false]);
    let report = check_files(&paths, Options::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.violations);
}

#[tokio::test]
async fn no_place_is_recorded_where_nobody_keeps_an_order() {
    let dir = tempfile::tempdir().unwrap();
    let (paths, url) = (
        ["a", "b"].map(|name| dir.path().join(format!("{name}.lkh"))),
        format!("file://{}", dir.path().display()),
    );
    let (a, first) = recorded(&paths[0], &url).await;
    let (b, second) = recorded(&paths[1], &url).await;
    let held = a.mutex("n").lock().await.unwrap();
    let mut waits = Box::pin(b.mutex("n").lock().into_future());
    settled(&mut waits).await;
    drop(held);
    drop(waits.await.unwrap());
    for (locks, writer) in [(a, first), (b, second)] {
        let _ = locks.close().await;
        writer.finish().unwrap();
    }
    assert_eq!(kinds(&paths[1]), ["acq_inv", "acq_ok", "rel_inv", "rel_ok"]);
}
