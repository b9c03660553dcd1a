//! The library asks for no newer Rust than its dependencies do.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// A version as numbers, so that 1.100 comes after 1.99.
fn numbers(version: &str) -> Vec<u64> {
    version.split('.').map(|part| part.parse().unwrap()).collect()
}

fn metadata() -> Value {
    let words = ["metadata", "--format-version", "1", "--locked", "--offline", "--all-features"];
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(words);
    // Other platforms' packages may not be downloaded.
    command.args(["--filter-platform", &host()]);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn host() -> String {
    let out = Command::new(env!("CARGO")).args(["--version", "--verbose"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap()
}

/// The packages that a user of the library builds: no dependencies of its tests.
fn built_with_the_library(metadata: &Value) -> BTreeSet<&str> {
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (text(node, "id"), node))
        .collect();
    let packages = metadata["packages"].as_array().unwrap();
    let library = packages.iter().find(|package| package["name"] == "lockkeeper").unwrap();
    let mut seen = BTreeSet::new();
    let mut open = vec![text(library, "id")];
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            let needed = nodes[id]["deps"].as_array().unwrap().iter().filter(|dependency| {
                let kinds = dependency["dep_kinds"].as_array().unwrap();
                kinds.iter().any(|kind| kind["kind"] != "dev")
            });
            open.extend(needed.map(|dependency| text(dependency, "pkg")));
        }
    }
    seen
}

#[test]
fn the_library_asks_for_no_newer_rust_than_its_dependencies_do() {
    let metadata = metadata();
    let built = built_with_the_library(&metadata);
    let packages = metadata["packages"].as_array().unwrap();
    let ask = |package: &Value| {
        package["rust_version"]
            .as_str()
            .map(|version| (numbers(version), text(package, "name").to_owned()))
    };
    let (own, others): (Vec<&Value>, Vec<&Value>) = packages
        .iter()
        .filter(|package| built.contains(text(package, "id")))
        .partition(|package| package["name"] == "lockkeeper");
    assert!(others.len() > 20, "only {} dependencies are seen", others.len());
    let (own, _) = ask(own[0]).unwrap();
    let (most, who) = others.iter().filter_map(|package| ask(package)).max().unwrap();
    // A dependency may say 1.88 or 1.88.0.
    assert_eq!(
        own[..2],
        most[..2],
        "the manifest says {own:?}, the most that a dependency asks for is {most:?} ({who})"
    );
}
