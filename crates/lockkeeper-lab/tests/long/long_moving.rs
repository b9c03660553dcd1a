//! An engine made of two of different kinds, the example `moving`: from Redis to ZooKeeper, whose
//! holds end with a session.

#[path = "../../../lockkeeper/examples/moving/both/mod.rs"]
mod both;

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use lockkeeper_lab::conformance::Subject;
use lockkeeper_testkit::zookeeper::client::{Client, Kind};

use crate::subjects::{PATIENT, redis_server, zookeeper};

/// A URL as the value of an option of another one.
fn quoted(url: &str) -> String {
    url.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn redis_to_zookeeper() -> Subject {
    static KNOWN: Once = Once::new();
    KNOWN.call_once(|| both::register().expect("nobody else has the scheme"));
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let ensemble = zookeeper::single();
    let server = ensemble.servers.first().expect("there is one");
    let chroot = format!("/t{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let mut client = Client::connect(server.port()).expect("the server serves");
    client.create(&chroot, b"", Kind::Persistent).expect("a fresh directory");
    let (port, [session, _]) = (server.port(), zookeeper::SESSIONS);
    let new = format!("zk://127.0.0.1:{port}{chroot}?{session}&{PATIENT}");
    redis_server::redis_as("both: redis and zookeeper", |old| {
        let old = format!("{old}?{PATIENT}");
        format!("both:?ttl=8s&old={}&new={}", quoted(&old), quoted(&new))
    })
    // A path of ZooKeeper cannot say every name.
    .foreign()
    .keeping(ensemble)
}

lockkeeper_lab::conformance! {
    both_redis_and_zookeeper => redis_to_zookeeper(),
}
