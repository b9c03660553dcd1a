//! The matrix: a row an engine and layout, a test a rule.

#![allow(clippy::expect_used, reason = "a test panics when it fails")]

use lockkeeper::config::file_url;
use lockkeeper_lab::conformance::Subject;

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

lockkeeper_lab::conformance!(redis, redis(""));

fn redis(options: &str) -> Subject {
    let server = lockkeeper_lab::servers::redis::RedisServer::start();
    let port = server.port();
    Subject::url("redis", format!("redis://127.0.0.1:{port}?ttl=2s{options}"))
        .effort(20)
        .wiped_by(move || async move {
            lockkeeper_lab::servers::redis::RedisClient::connect(port).command(&["FLUSHALL"]);
        })
        .keeping(server)
}
