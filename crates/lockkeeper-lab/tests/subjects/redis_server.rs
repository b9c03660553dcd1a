//! A Redis server of a test's own, under any URL, as a subject of the suite.

use std::sync::{Arc, Mutex};

use lockkeeper_lab::conformance::Subject;
use lockkeeper_testkit::redis::server::RedisServer;

/// A server of its own that keeps everything on disk, under a URL that is made of its own.
pub fn redis_as(row: &str, url: impl FnOnce(&str) -> String) -> Subject {
    let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let port = server.port();
    let server = Arc::new(Mutex::new(server));
    let with = |deed: fn(&mut RedisServer)| {
        let server = server.clone();
        move || {
            let server = server.clone();
            async move { deed(&mut server.lock().expect("no test panics while it has it")) }
        }
    };
    Subject::url(row, url(&format!("redis://127.0.0.1:{port}")))
        .effort(20)
        .wiped_by(with(|server| drop(server.command(&["FLUSHALL"]))))
        .restarted_by(with(RedisServer::restart))
        .cut_by(with(|server| server.stop()), with(|server| server.go_on()))
        .keeping(server)
}
