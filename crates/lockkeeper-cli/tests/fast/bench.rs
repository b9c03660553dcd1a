//! `lockkeeper bench`: its rows can be read by programs, and each stands beside a floor of the same
//! run.

use serde_json::Value;

use crate::common::{LONG_PATIENCE, Place, finish_within, json};

fn rows(place: &Place, arguments: &[&str]) -> Vec<Value> {
    let line = ["bench", "--json", "--seconds", "1"].iter().chain(arguments);
    // A window is a number of turns, not a time: on a busy machine it lasts many times as long.
    let ran = finish_within(&mut place.lk(line), LONG_PATIENCE);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    ran.out.lines().map(json).collect()
}

#[test]
fn a_row_has_the_keys_of_the_contract_and_a_floor_of_the_same_run() {
    let place = Place::new();
    for (name, engines) in [
        ("uncontended", &["file", "memory"][..]),
        ("turn", &["file", "memory"]),
        ("process-handoff", &["file"]),
        ("run", &["file"]),
    ] {
        let rows = rows(&place, &["--only", name]);
        for engine in engines {
            let mut of_engine = rows.iter().filter(|row| row["engine"] == *engine).peekable();
            assert!(of_engine.peek().is_some(), "{name} on {engine}: {rows:?}");
            for row in of_engine {
                assert_eq!(row["bench"], name);
                for key in
                    ["tasks", "p50_us", "p99_us", "per_second", "floor", "floor_p50_us", "ratio"]
                {
                    assert!(row.get(key).is_some(), "{key} is missing: {row}");
                }
            }
        }
        let beside = |row: &&Value| {
            ["p50_us", "floor_p50_us", "ratio"]
                .iter()
                .all(|key| row[*key].as_f64().is_some_and(|n| n > 0.0))
        };
        assert!(
            rows.iter()
                .any(|row| beside(&row) && row["floor"].as_str().is_some_and(|f| !f.is_empty())),
            "{name}: {rows:?}"
        );
    }
}

#[test]
fn w9_every_row_has_a_verdict_and_strictly_a_missed_target_is_exit_1() {
    let place = Place::new();
    // Beside the leanest calls and, for a row without a target, beside another lock.
    for only in ["uncontended", "run"] {
        let line = ["bench", "--json", "--seconds", "1", "--strict", "--only", only, "file:auto"];
        let ran = finish_within(&mut place.lk(line), LONG_PATIENCE);
        let rows: Vec<Value> = ran.out.lines().map(json).collect();
        assert!(!rows.is_empty(), "{ran:?}");
        for row in &rows {
            let (target, verdict) = (row["target"].as_str().unwrap(), row["verdict"].as_str());
            assert_eq!(verdict.is_none(), target == "-", "{row}");
        }
        let missed = rows.iter().any(|row| row["verdict"] == "missed");
        assert_eq!(ran.code, i32::from(missed), "{ran:?}");
    }
    let table = finish_within(
        &mut place.lk(["bench", "--seconds", "1", "--only", "turn", "memory:"]),
        LONG_PATIENCE,
    );
    assert_eq!(table.code, 0, "{table:?}");
    let row = table.out.lines().nth(1).unwrap();
    assert!(row.contains(" met ") || row.contains(" missed "), "{table:?}");
}

#[test]
fn an_engine_can_be_named() {
    let place = Place::new();
    let rows = rows(&place, &["--only", "uncontended", "memory:"]);
    assert!(!rows.is_empty() && rows.iter().all(|row| row["engine"] == "memory"), "{rows:?}");
}

#[test]
fn redis_is_measured_beside_a_raw_connection_with_the_same_bytes() {
    let (place, server) = (Place::new(), lockkeeper_testkit::redis::server::RedisServer::start());
    for name in ["uncontended", "many-names", "process-handoff"] {
        let rows = rows(&place, &["--only", name, &server.url()]);
        assert!(!rows.is_empty(), "{name}");
        // What many names cost another client is told beside them, for one process and for four.
        let besides = rows.iter().filter(|row| row["bench"] == "bystander").count();
        assert_eq!(besides, if name == "many-names" { 2 } else { 0 });
        for row in rows {
            assert!(row["bench"] == name || row["bench"] == "bystander", "{row}");
            assert_eq!(row["engine"], "redis");
            assert!(
                row["floor_p50_us"].as_f64().is_some_and(|us| us > 0.0)
                    && row["ratio"].as_f64().is_some_and(|r| r > 0.0),
                "{row}"
            );
        }
    }
    let shared = rows(&place, &["--only", "one-name", &server.url()])
        .into_iter()
        .find(|row| row["bench"] == "one-name-two-processes");
    assert!(
        shared.is_some_and(|row| row["ratio"]
            .as_f64()
            .is_some_and(|share| share > 0.0 && share <= 0.5)),
        "each of the two gets turns"
    );
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let place = Place::new();
    for arguments in [&["--only", "nonsense"][..], &["nonsense://x"], &["--seconds", "0"]] {
        let ran = place.run(["bench"].iter().chain(arguments));
        assert_eq!(
            (ran.code, ran.out.as_str(), ran.err.lines().count()),
            (64, "", 1),
            "{arguments:?}: {ran:?}"
        );
        let object = json(place.run(["bench", "--json"].iter().chain(arguments)).err.trim_end());
        assert_eq!(object["exit"].as_i64(), Some(64), "{arguments:?}: {object}");
    }
}
