//! A Redis server of a test's own, as a subject of the suite.

use std::sync::{Arc, Mutex};

use lockkeeper_lab::conformance::Subject;
use lockkeeper_lab::engines::redis::server::RedisServer;

/// The program that takes locks in another process.
const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");

/// A server of its own that keeps everything on disk.
pub fn redis(row: &str, options: &str) -> Subject {
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
    Subject::url(row, format!("redis://127.0.0.1:{port}?ttl=2s{options}"))
        .helper(HELPER)
        .effort(20)
        .wiped_by(with(|server| drop(server.command(&["FLUSHALL"]))))
        .restarted_by(with(RedisServer::restart))
        .cut_by(with(|server| server.stop()), with(|server| server.go_on()))
        .keeping(server)
}
