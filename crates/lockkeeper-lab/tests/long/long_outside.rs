//! The suite from outside: an engine of somebody else's, in a crate that is no part of this
//! workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A crate that is called as its engine is, which is the example of one.
struct Outside(tempfile::TempDir);

fn lab() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Outside {
    /// The crates share what they are built from. Cargo tells two of one name apart by their
    /// version alone.
    fn new(version: &str, engine: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let library = lab().with_file_name("lockkeeper");
        let manifest = format!(
            "[package]\nname = \"ledger\"\nversion = {version:?}\nedition = \
             \"2024\"\n\n[workspace]\n\n[dependencies]\n\
             lockkeeper = {{ path = {library:?} }}\ntokio = {{ version = \"1\", features = \
             [\"macros\", \"rt\"] }}\n\n\
             [dev-dependencies]\nlockkeeper-lab = {{ path = {:?} }}\n",
            lab()
        );
        // A row that is called as the crate is that its subject comes from.
        let suite = "use std::sync::Arc;\nuse lockkeeper_lab::conformance::Subject;\n\n\
                     lockkeeper_lab::conformance!(ledger, {\n    let ledger = Arc::default();\n    \
                     Subject::of(\"ledger\", move |builder| {\n        let engine = \
                     ledger::LedgerEngine { ledger: Arc::clone(&ledger), ..Default::default() \
                     };\n        Box::pin(builder.with_engine(engine))\n    })\n});\n";
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("it is in the directory"))
                .expect("it can be made");
            std::fs::write(path, text).expect("it can be written");
        };
        write("Cargo.toml", &manifest);
        write("src/lib.rs", &format!("#![allow(dead_code)]\n{engine}"));
        write("tests/suite.rs", suite);
        // The versions that are here already: nothing is asked of the network.
        std::fs::copy(lab().join("../../Cargo.lock"), dir.path().join("Cargo.lock"))
            .expect("the workspace has one");
        Self(dir)
    }

    /// Runs its tests. What it is built from stays for the next run.
    fn test(&self, filter: &[&str]) -> Output {
        let built: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(["test", "--offline", "--test", "suite", "--"])
            .args(filter)
            .current_dir(self.0.path());
        cargo.env("CARGO_TARGET_DIR", built).env("CARGO_PROFILE_DEV_DEBUG", "false");
        cargo.output().expect("cargo can be started")
    }
}

fn example() -> String {
    let path = lab().with_file_name("lockkeeper").join("examples/engine_in_100_lines.rs");
    let text = std::fs::read_to_string(path).expect("the example is there");
    // A library's first lines are what is inside of it.
    text.lines().filter(|line| !line.starts_with("//!")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn c19_the_example_engine_keeps_the_suite_from_a_crate_of_its_own() {
    let ran = Outside::new("0.1.0", &example()).test(&[]);
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(
        said.contains("conformance_suite::ledger::mutex::one_holds_it_and_the_next_waits ... ok"),
        "{said}"
    );
}

#[test]
fn c19_a_lost_wake_up_is_convicted_and_the_suite_ends() {
    let engine = example();
    // However the line is wrapped.
    let woken = "events.send(Event::Granted { claim, grant })";
    let forgetful = engine.replace(woken, "drop((events, claim, grant))");
    assert!(forgetful != engine, "the example wakes the next one");
    let ran = Outside::new("0.2.0", &forgetful).test(&["r10_waiters_are_woken"]);
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        !ran.status.success() && said.contains("the net under a lost wake-up caught it"),
        "{said}\n{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}
