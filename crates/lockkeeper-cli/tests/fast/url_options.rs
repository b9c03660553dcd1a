//! The reference of URL options is what the engines registered.

use lockkeeper::engine::{Registration, UrlOption};

use crate::common::Place;

#[test]
fn the_reference_of_options_and_the_document_are_what_the_engines_registered() {
    let place = Place::new();
    let printed = place.run(["doctor", "--options"]);
    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
    for engine in Registration::all() {
        assert!(printed.out.contains(&engine.reference()), "{}: {}", engine.engine, printed.out);
        let one = place.run(["doctor", "--options", engine.schemes[0]]);
        assert!(one.out.starts_with(&engine.reference()), "{one:?}");
    }
    assert!(UrlOption::COMMON.iter().all(|o| printed.out.contains(&o.reference())));
    assert!(printed.out.lines().all(|line| line.chars().count() <= 100), "{}", printed.out);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/urls.md");
    let document = std::fs::read_to_string(file).unwrap();
    let text = format!("```text\n{}```\n", printed.out);
    assert!(document.contains(&text), "put into docs/urls.md what is printed:\n{text}");
}

#[test]
fn the_reference_is_one_object_an_option_for_programs_and_refuses_a_scheme_without_engine() {
    let place = Place::new();
    let printed = place.run(["doctor", "--options", "file", "--json"]);
    let rows: Vec<serde_json::Value> =
        printed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 1 + UrlOption::COMMON.len(), "{printed:?}");
    assert_eq!((&rows[0]["engine"], &rows[0]["option"]), (&"file".into(), &"durable".into()));
    assert!(rows[1]["engine"].is_null() && rows[1]["default"] == "30s", "{printed:?}");
    let refused = place.run(["doctor", "--options", "mysql"]);
    assert_eq!(refused.code, 64);
    assert!(refused.err.contains("mysql: is not an engine; the schemes are"), "{refused:?}");
}

#[test]
fn every_engine_with_a_server_has_a_row_in_the_table_of_programs_and_no_row_names_another() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../xtask/src/tools.rs");
    let table = std::fs::read_to_string(file).unwrap();
    let purposes = table.lines().filter_map(|line| line.trim().strip_prefix("purpose: "));
    let of_engines = purposes.filter(|purpose| purpose.starts_with("\"the engine"));
    let named: Vec<&str> =
        of_engines.flat_map(|purpose| purpose.split('`').skip(1).step_by(2)).collect();
    let all = Registration::all();
    for engine in &all {
        let has_row = named.contains(&engine.engine);
        assert!(engine.port.is_none() || has_row, "{}: no program is its server", engine.engine);
    }
    let known = |name: &&str| all.iter().any(|engine| engine.engine == *name);
    assert!(!named.is_empty() && named.iter().all(known), "{named:?}");
}
