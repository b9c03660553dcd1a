//! An engine that registers itself has what the built-in ones have, and nothing else knows of it.

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
    let test = "outsider::several_processes_exclude_each_other_on_a_registered_engine";
    let start = || {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", test]).env("OUTSIDER_URL", &url).env("OUTSIDER_COUNT", &count);
        child.stdout(std::process::Stdio::null()).spawn().expect("it starts")
    };
    let children: Vec<_> = (0..3).map(|_| start()).collect();
    assert!(children.into_iter().all(|mut c| c.wait().expect("it ends").success()));
    let counted = std::fs::read_to_string(&count).expect("it is there");
    assert_eq!(counted, (3 * ROUNDS).to_string(), "BROKEN LOCK: a lost update");
}

/// What the program around the engine prints, a JSON value a line. It starts itself as the workers.
fn program(word: &str) -> Vec<serde_json::Value> {
    let home = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab-outsider"));
    command.arg(word).arg(format!("dummy://{}", home.path().display()));
    let ended = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    said.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

#[test]
fn the_demo_is_told_on_a_registered_engine_by_a_program_that_starts_itself() {
    let told = program("demo");
    let sold: Vec<_> = told.iter().map(|run| (run["act"].as_u64(), run["sold"].as_u64())).collect();
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told.iter().all(|run| run["engine"] == "dummy"), "{told:?}");
    assert!(sold[0].1 > Some(5) && sold[3] == (Some(3), Some(5)), "{told:?}");
}

#[test]
fn a_registered_engine_has_rows_of_the_bench() {
    let rows = program("bench");
    let measured: Vec<_> = rows.iter().map(|row| row["bench"].as_str().unwrap_or("")).collect();
    for name in ["uncontended", "turn", "many-names", "one-name", "process-handoff", "places"] {
        assert!(measured.contains(&name), "{name}: {rows:?}");
    }
    assert!(rows.iter().all(|row| row["engine"] == "dummy"), "{rows:?}");
}

#[test]
fn a_registered_engine_is_tortured_for_five_seconds_and_keeps_its_promise() {
    let told = program("torture");
    let report = told.last().expect("a report");
    assert_eq!((&report["engine"], &report["verdict"]), (&"dummy".into(), &"clean".into()));
    assert!(report["holds"].as_u64() > Some(0), "{report}");
}
