//! The matrix: a row an engine and layout, a test a rule.

#![allow(clippy::expect_used, reason = "a test panics when it fails")]

use std::sync::{Arc, Mutex};

use lockkeeper::config::file_url;
use lockkeeper_lab::conformance::Subject;
use lockkeeper_lab::servers::redis::RedisServer;

/// The program that takes locks in another process.
const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");

/// A directory of its own.
fn file() -> Subject {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path().join("locks");
    Subject::url("file", file_url(&dir))
        .helper(HELPER)
        .wiped_by(move || {
            let dir = dir.clone();
            async move { std::fs::remove_dir_all(&dir).expect("the directory can be deleted") }
        })
        .keeping(home)
}

lockkeeper_lab::conformance!(memory, Subject::memory());
lockkeeper_lab::conformance!(file, file());

lockkeeper_lab::conformance!(redis, redis("redis", ""));
lockkeeper_lab::conformance!(redis_plain, redis("redis, layout=plain", "&layout=plain").foreign());
lockkeeper_lab::conformance!(redisson, redis("redis, layout=redisson", "&layout=redisson").foreign());
lockkeeper_lab::conformance!(redisson_fenced, redis("redis, layout=redisson&lock=fenced", "&layout=redisson&lock=fenced").foreign());
lockkeeper_lab::conformance!(redisson_fair, redis("redis, layout=redisson&lock=fair", "&layout=redisson&lock=fair").foreign());
lockkeeper_lab::conformance!(redisson_rw, redis("redis, layout=redisson&lock=rw", "&layout=redisson&lock=rw").foreign());

/// A server of its own that keeps everything on disk.
fn redis(row: &str, options: &str) -> Subject {
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
