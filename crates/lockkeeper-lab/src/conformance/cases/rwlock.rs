//! Many readers or one writer, and one reader that may become the writer.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::ErrorKind;

use crate::conformance::trial::{HANGS, Trial, within};

const BRIEFLY: Duration = Duration::from_millis(80);

pub(super) async fn readers_share_and_a_writer_is_alone(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two, three) = (t.open().await, t.open().await, t.open().await);
    let readers = [
        t.lasts(one.rwlock(&name).read()).timeout(HANGS).await.expect("it is free"),
        t.lasts(two.rwlock(&name).read()).timeout(HANGS).await.expect("it is shared"),
        three.rwlock(&name).try_read().await.expect("it can be tried").expect("it is shared"),
    ];
    let refused = one.rwlock(&name).write().timeout(BRIEFLY).await;
    assert_eq!(refused.map(drop).map_err(|e| e.kind()), Err(ErrorKind::TimedOut));
    drop(readers);
    let writer = t.lasts(two.rwlock(&name).write()).timeout(HANGS).await.expect("nobody reads");
    for locks in [&one, &two, &three] {
        assert!(locks.rwlock(&name).try_read().await.expect("it can be tried").is_none());
        assert!(locks.rwlock(&name).try_write().await.expect("it can be tried").is_none());
    }
    assert!(writer.release().await.is_clean());
    let reader = t.lasts(one.rwlock(&name).read()).timeout(HANGS).await.expect("nobody writes");
    assert!(reader.release().await.is_clean());
}

pub(super) async fn an_upgrade_waits_for_the_other_readers(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two, three) = (t.open().await, t.open().await, t.open().await);
    let mut up = t.lasts(one.rwlock(&name).upgradable()).await.expect("it is free");
    let readers = [
        t.lasts(two.rwlock(&name).read()).timeout(HANGS).await.expect("it is shared"),
        t.lasts(one.rwlock(&name).read()).timeout(HANGS).await.expect("it is shared"),
    ];
    let (told, tells) = tokio::sync::oneshot::channel();
    let (enough, seen) = tokio::sync::oneshot::channel();
    let upgrading = tokio::spawn(async move {
        let writing = up.upgrade().timeout(HANGS).await.expect("the readers go");
        writing.check().expect("it writes");
        told.send(()).expect("the test waits");
        seen.await.expect("the test looks");
        drop(writing);
        up
    });
    tokio::time::sleep(BRIEFLY).await;
    assert!(!upgrading.is_finished(), "readers are there");
    let [there, here] = readers;
    drop(there);
    tokio::time::sleep(Duration::from_millis(30)).await;
    drop(here);
    within(HANGS, "it writes", tells).await.expect("it says so");
    assert!(
        three.rwlock(&name).try_read().await.expect("it can be tried").is_none(),
        "somebody writes"
    );
    enough.send(()).expect("it waits");
    let up = within(HANGS, "the writing ends", upgrading).await.expect("no panic");
    let beside =
        t.lasts(three.rwlock(&name).read()).timeout(HANGS).await.expect("it is upgradable again");
    assert!(three.rwlock(&name).try_write().await.expect("it can be tried").is_none());
    drop((beside, up));
    assert!(
        three
            .rwlock(&name)
            .write()
            .timeout(HANGS)
            .await
            .expect("it is free")
            .release()
            .await
            .is_clean()
    );
}

pub(super) async fn only_one_is_upgradable_at_a_time(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let up = t.lasts(one.rwlock(&name).upgradable()).await.expect("it is free");
    for locks in [&one, &two] {
        let refused = locks.rwlock(&name).upgradable().timeout(BRIEFLY).await;
        assert_eq!(
            refused.map(drop).map_err(|e| e.kind()),
            Err(ErrorKind::TimedOut),
            "two upgrading readers would wait for each other"
        );
    }
    let reader =
        t.lasts(two.rwlock(&name).read()).timeout(HANGS).await.expect("readers are welcome");
    drop(reader);
    assert!(up.release().await.is_clean());
    assert!(
        two.rwlock(&name)
            .upgradable()
            .timeout(HANGS)
            .await
            .expect("it is free")
            .release()
            .await
            .is_clean()
    );
}

pub(super) async fn a_downgraded_writer_lets_readers_in_and_no_writer(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two, three) = (t.open().await, t.open().await, t.open().await);
    let write = t.lasts(one.rwlock(&name).write()).await.expect("it is free");
    let reader = tokio::spawn(t.lasts(two.rwlock(&name).read()).timeout(HANGS).into_future());
    t.until_waiting(&three, lockkeeper::Kind::Lock, &name, 1).await;
    let read = within(HANGS, "it downgrades", write.downgrade()).await.expect("it is held");
    let reader = within(HANGS, "a waiting reader comes in", reader)
        .await
        .expect("no panic")
        .expect("it is granted");
    read.check().expect("both read");
    reader.check().expect("both read");
    assert!(three.rwlock(&name).try_write().await.expect("it can be tried").is_none());
    drop((read, reader));
    assert!(
        three
            .rwlock(&name)
            .write()
            .timeout(HANGS)
            .await
            .expect("it is free")
            .release()
            .await
            .is_clean()
    );
}

pub(super) async fn an_upgrade_that_times_out_leaves_the_guard_as_it_was(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let mut up = t.lasts(one.rwlock(&name).upgradable()).await.expect("it is free");
    let reader = t.lasts(two.rwlock(&name).read()).await.expect("it is shared");
    for _ in 0..3 {
        let refused = up.upgrade().timeout(BRIEFLY).await;
        assert_eq!(refused.map(drop).map_err(|e| e.kind()), Err(ErrorKind::TimedOut));
        up.check().expect("the guard is as it was");
        let beside =
            t.lasts(two.rwlock(&name).read()).timeout(HANGS).await.expect("readers come in again");
        drop(beside);
    }
    drop(reader);
    let writing = up.upgrade().timeout(HANGS).await.expect("nobody reads");
    drop(writing);
    assert!(up.release().await.is_clean());
}
