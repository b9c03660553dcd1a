//! What a holder writes into ZooKeeper, through the library's own door.

use lockkeeper_testkit::zookeeper::proxy::Proxy;

use super::*;
use crate::{ErrorKind, Locks, Write};

async fn data(client: &Client, name: &str) -> Option<String> {
    match client.ask(Request::GetData { path: client.path(name), watch: false }).await {
        Ok(Reply::Data(data, _)) => Some(String::from_utf8(data).unwrap()),
        _ => None,
    }
}

#[test]
fn a_write_of_a_lost_lock_is_refused_by_the_store_itself() {
    run(async {
        let place = Place::new().await;
        let proxy = Proxy::start(place.port).unwrap();
        let locks = Locks::open(&place.url_at(proxy.port(), "")).await.unwrap();
        let admin = place.client().await;
        admin.create(&admin.path("left"), b"42", Create::Persistent).await;
        let guard = locks.mutex("stock").lock().await.unwrap();
        guard.write([Write::put("left", "41"), Write::create("order-1", "sku")]).await.unwrap();
        assert_eq!(
            (data(&admin, "left").await.as_deref(), data(&admin, "order-1").await.as_deref()),
            (Some("41"), Some("sku"))
        );
        guard.write([Write::delete("order-1")]).await.unwrap();
        // One that cannot be done: none is done.
        for (bad, word) in [
            (Write::put("nowhere", ""), "no node"),
            (Write::create("left", ""), "already"),
            (Write::delete("."), "not a path"),
        ] {
            let error = guard.write([Write::put("left", "0"), bad]).await.unwrap_err();
            assert!(error.message().contains(word), "{error}");
        }
        let error = guard.write([]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = guard.write([Write::put("left", "x".repeat(1_100_000))]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        guard.check().expect("the connection, and all that is held on it, is as it was");
        assert_eq!(data(&admin, "left").await.as_deref(), Some("41"));
        // The lock goes, and its holder does not hear of it before it writes.
        proxy.hold_replies(true);
        let node = admin.children("stock").await.remove(0);
        admin.delete(&admin.path(&format!("stock/{node}"))).await;
        guard.check().expect("it does not know yet");
        let writing = guard.write([Write::put("left", "40")]);
        let (written, ()) = tokio::join!(writing, async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            proxy.hold_replies(false);
        });
        assert_eq!(written.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(data(&admin, "left").await.as_deref(), Some("41"), "the late write was refused");
        assert_eq!(
            guard.write([Write::put("left", "40")]).await.unwrap_err().kind(),
            ErrorKind::Lost,
            "and lost it stays"
        );
        drop(guard);
        drop(locks.close().await);
    });
}
