//! An engine that registers itself has what the built-in ones have, and nothing else knows of it.

#![allow(clippy::expect_used, reason = "a test panics when it fails")]

mod dummy;

use std::process::Command;
use std::sync::LazyLock;

use dummy::DUMMY;
use lockkeeper::engine::Registration;
use lockkeeper::{Locks, url::EngineUrl};
use lockkeeper_lab::conformance::Subject;

fn dummy() -> Subject {
    LazyLock::force(&DUMMY);
    let home = tempfile::tempdir().expect("a temporary directory");
    Subject::url("dummy", format!("dummy://{}", home.path().display())).keeping(home)
}

lockkeeper_lab::conformance! {
    dummy => dummy(),
}

#[tokio::test]
async fn urls_of_a_registered_engine_are_opened_checked_and_told_apart() {
    LazyLock::force(&DUMMY);
    let home = tempfile::tempdir().expect("a temporary directory");
    let url = format!("dummy://{}", home.path().display());
    let locks = Locks::open(&format!("{url}?ttl=5s&shelf=a")).await.expect("it is registered");
    assert!(locks.mutex("stock").lock().await.expect("it is free").token().is_ok());
    let error = Locks::open(&format!("{url}?shlef=a")).await.expect_err("there is no such option");
    assert!(error.message().contains("did you mean shelf? The options are shelf, ttl"), "{error}");
    let of = |url: &str| EngineUrl::parse(url).and_then(|url| url.canonical()).expect("a URL");
    assert_eq!(of(&format!("{url}/?ttl=9s&shelf=locks")), of(&url));
    assert_ne!(of(&format!("{url}?shelf=a")), of(&url));
    let rows = Registration::of("dummy").expect("it is registered").reference();
    assert!(
        rows.contains("shelf=WORD [default: locks]\n      the directory in the path"),
        "{rows}"
    );
    assert!(Locks::register(DUMMY.clone()).is_err(), "the scheme is taken");
}

#[tokio::test]
async fn several_processes_exclude_each_other_on_a_registered_engine() {
    const ROUNDS: u64 = 50;
    LazyLock::force(&DUMMY);
    if let Ok(url) = std::env::var("OUTSIDER_URL") {
        let locks = Locks::open(&url).await.expect("it is registered");
        let count = std::env::var("OUTSIDER_COUNT").expect("the parent says it");
        for _ in 0..ROUNDS {
            let guard = locks.mutex("count").lock().await.expect("it is granted at last");
            let last = std::fs::read_to_string(&count).unwrap_or_default().parse().unwrap_or(0);
            std::fs::write(&count, (last + 1u64).to_string()).expect("it can be written");
            drop(guard.release().await);
        }
        return;
    }
    let home = tempfile::tempdir().expect("a temporary directory");
    let (url, count) = (format!("dummy://{}", home.path().display()), home.path().join("count"));
    let test = "several_processes_exclude_each_other_on_a_registered_engine";
    let start = || {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", test]).env("OUTSIDER_URL", &url).env("OUTSIDER_COUNT", &count);
        child.stdout(std::process::Stdio::null()).spawn().expect("it starts")
    };
    let children: Vec<_> = (0..3).map(|_| start()).collect();
    assert!(children.into_iter().all(|mut c| c.wait().expect("it ends").success()));
    let counted = std::fs::read_to_string(&count).expect("it is there");
    assert_eq!(counted, (3 * ROUNDS).to_string());
}
