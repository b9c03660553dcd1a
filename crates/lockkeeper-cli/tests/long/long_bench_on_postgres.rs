//! `lockkeeper bench` on PostgreSQL: every row that has a floor there.

use lockkeeper_testkit::postgres::server::PostgresServer;
use serde_json::Value;

use crate::common::{LONG_PATIENCE, Place, finish_within, json};

fn rows(place: &Place, arguments: &[&str]) -> Vec<Value> {
    let words = ["bench", "--json", "--seconds", "1"].iter().chain(arguments);
    // A window is a number of turns, not a time: on a busy machine it lasts many times as long.
    let ran = finish_within(&mut place.lk(words), LONG_PATIENCE);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    ran.out.lines().map(json).collect()
}

#[test]
fn postgres_is_measured_beside_a_plain_client_and_nothing_stays_there() {
    let (place, server) = (Place::new(), PostgresServer::start_with(&["fsync=off"]));
    let shown = |only: &str, url: &str| {
        let rows = rows(&place, &["--only", only, url]);
        for row in &rows {
            let is_positive = |key: &str| row[key].as_f64().is_some_and(|n| n > 0.0);
            assert!(row["engine"] == "postgres" && is_positive("ratio"), "{row}");
            assert!(row["bench"] == "one-name-no-handoff" || is_positive("floor_p50_us"), "{row}");
        }
        rows.iter().map(|row| row["bench"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for layout in ["", "?layout=session&names=hash&session_timeout=2s", "?layout=shedlock"] {
        let url = format!("{}{layout}", server.url());
        assert_eq!(shown("uncontended", &url), ["uncontended"], "{layout}");
    }
    assert_eq!(shown("many-names", &server.url()), ["many-names"]);
    assert_eq!(shown("process-handoff", &server.url()), ["process-handoff"]);
    let of_one = ["one-name", "one-name-no-handoff", "version-column"];
    assert_eq!(shown("one-name", &server.url()), of_one);
    for table in ["lockkeeper_locks", "lockkeeper_line", "shedlock"] {
        assert_eq!(server.sql(&format!("SELECT count(*) FROM {table}")), "0", "{table}");
    }
    // Only on a server of its own a bystander has tables of its own.
    let rows = shown("process-handoff", "postgres:auto?durable=false");
    assert_eq!(rows, ["process-handoff", "bystander"]);
}
