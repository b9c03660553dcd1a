//! What was given back when a process ends: the keeper's thread sends it, and is waited for.

use std::process::Command;

use super::*;
use crate::Locks;

/// Not a test of its own: what the other process of the test below does. Run as a test it has
/// nothing to do.
#[test]
fn helper() {
    let Ok(url) = std::env::var("LOCKKEEPER_TEST_AT") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Locks::open(&url).await.unwrap();
        let mut guards = Vec::new();
        for name in ["a", "b", "c"] {
            guards.push(locks.mutex(name).lock().ttl(PATIENCE * 5).await.unwrap());
        }
        drop(guards);
        std::process::exit(0);
    });
}

#[test]
fn r6_b5_a_process_that_ends_right_after_a_drop_leaves_nothing_held() {
    let server = PostgresServer::start();
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "engine::postgres::tests::at_exit::helper"])
        .env("LOCKKEEPER_TEST_AT", server.url())
        .env("LOCKKEEPER_TEST_WAITS_AT_EXIT", "1")
        .status()
        .unwrap();
    assert!(ended.success());
    let other = process(&server);
    for name in ["a", "b", "c"] {
        granted(other.attempt_try(&claim(&other, name)));
    }
}
