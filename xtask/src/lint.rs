//! `cargo xtask lint`: what has to hold of the text.

use std::time::Instant;

use crate::packages::ensure;
use crate::project::{cargo, library_features};
use crate::stage::{HANGS, Stage, Workshop, run_all};
use crate::test::EVERYTHING;
use crate::tools::{Need, needed};
use crate::{Outcome, known, licences, width};

const STAGES: [&Stage; 5] = [
    &Stage {
        name: "fmt",
        minutes: 0.5,
        what: "cargo fmt --check, and no line over 100 columns",
        vital: false,
        run: fmt,
    },
    &Stage {
        name: "clippy",
        minutes: 2.0,
        what: "clippy on everything, warnings denied",
        vital: false,
        run: clippy,
    },
    &Stage {
        name: "docs",
        minutes: 0.5,
        what: "the documentation, warnings denied",
        vital: false,
        run: docs,
    },
    &Stage {
        name: "features",
        minutes: 2.0,
        what: "every feature of the library alone, and its tests with one engine, checked",
        vital: false,
        run: features,
    },
    &Stage {
        name: "licences",
        minutes: 0.5,
        what: "the licence of every dependency",
        vital: false,
        run: |_| licences::check(),
    },
];

/// Says what it will do, sees to the compiler, runs the stages.
pub fn run(words: &[String]) -> Outcome {
    let yes = known(words, &["--yes"])?.contains(&true);
    let began = Instant::now();
    crate::test::announce(&STAGES);
    let linker: Vec<_> =
        needed(&[Need::Test]).into_iter().filter(|tool| tool.file == "cc").collect();
    ensure(&linker, yes)?;
    run_all(&STAGES, |_| began + HANGS)
}

fn fmt(workshop: &Workshop) -> Outcome {
    workshop.build(&mut cargo(&["fmt", "--all", "--check"]))?;
    width::check()
}

fn clippy(workshop: &Workshop) -> Outcome {
    workshop
        .build(cargo(&["clippy", "--all-targets"]).args(EVERYTHING).args(["--", "-D", "warnings"]))
}

fn features(workshop: &Workshop) -> Outcome {
    let none = String::new();
    let alone = library_features()?;
    for feature in
        std::iter::once(&none).chain(alone.iter().filter(|feature| *feature != "default"))
    {
        println!("feature {}", if feature.is_empty() { "none" } else { feature });
        let words = [
            "rustc",
            "--profile",
            "check",
            "--lib",
            "--package",
            "lockkeeper",
            "--no-default-features",
        ];
        workshop.build(cargo(&words).args(["--features", feature, "--", "-D", "warnings"]))?;
    }
    // A change to one engine is tested without the others (CONTRIBUTING.md), several times as fast.
    for engine in ["file", "redis", "zookeeper"] {
        println!("tests of {engine}");
        let words = ["check", "--profile", "test", "--lib", "--package", "lockkeeper"];
        workshop.build(cargo(&words).args(["--features", engine]))?;
    }
    Ok(())
}

fn docs(workshop: &Workshop) -> Outcome {
    workshop.build(&mut crate::tasks::document())
}
