//! `cargo xtask lint`: what has to hold of the text.

use std::time::{Duration, Instant};

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
    run_all(&STAGES, |_| began + HANGS.saturating_sub(spent()))
}

/// What went before us in the same run has of the one limit for what hangs: seconds.
fn spent() -> Duration {
    let said = std::env::var("XTASK_SPENT").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(said.unwrap_or(0))
}

fn fmt(workshop: &Workshop) -> Outcome {
    workshop.build(&mut cargo(&["fmt", "--all", "--check"]))?;
    width::check()
}

fn clippy(workshop: &Workshop) -> Outcome {
    workshop
        .build(cargo(&["clippy", "--all-targets"]).args(EVERYTHING).args(["--", "-D", "warnings"]))
}

/// With which features a change is tested without the others, several times as fast: the page for
/// contributors offers them. `file` is always there.
const TESTED_ALONE: [&str; 8] =
    ["file", "redis", "redlock", "sentinel", "cluster", "zookeeper", "redis,postgres", "test-util"];

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
    for features in TESTED_ALONE {
        println!("tests with {features}");
        let words = ["clippy", "--profile", "test", "--lib", "--package", "lockkeeper"];
        workshop.build(cargo(&words).args(["--features", features, "--", "-D", "warnings"]))?;
    }
    Ok(())
}

fn docs(workshop: &Workshop) -> Outcome {
    workshop.build(&mut crate::tasks::document())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_page_for_contributors_offers_to_be_tested_alone_is_what_is_looked_at() {
        let page = std::fs::read_to_string(crate::project::root().join("CONTRIBUTING.md")).unwrap();
        let (_, rest) = page.split_once("Others are asked for: `--features ").unwrap();
        let (offered, _) = rest.split_once("All of them at once").unwrap();
        let words = offered.split('`').map(str::trim);
        let is_offered = |word: &&str| word.len() > 2 && !word.contains([' ', ':']);
        let mut offered: Vec<_> = words.filter(is_offered).collect();
        offered.insert(0, "file");
        assert_eq!(offered, TESTED_ALONE);
    }
}
