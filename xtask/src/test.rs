//! `cargo xtask test`: everything is built and every test of the gate runs. What is heavy is the
//! [campaign](crate::campaign).

use std::process::Command;
use std::thread;
use std::time::Instant;

use crate::packages::ensure;
use crate::project::{IntegrationTest, cargo, integration_tests, is_root};
use crate::runner::list::{self, Kind, Program};
use crate::runner::weights::weight;
use crate::runner::{Job, NEEDS_ROOT, TIMED};
use crate::stage::{HANGS, Stage, Workshop, run_all};
use crate::tools::{Need, needed};
use crate::{Outcome, closing, known};

/// What the other stages start.
pub const BUILD: Stage = Stage {
    name: "build",
    minutes: 5.0,
    what: "the workspace, its tests and examples, one profile",
    vital: true,
    run: build,
};

const STAGES: [&Stage; 3] = [
    &BUILD,
    &Stage {
        name: "tests",
        minutes: 8.0,
        what: "unit and integration tests; what fails runs again alone",
        vital: false,
        run: tests,
    },
    &Stage {
        name: "doctests",
        minutes: 0.5,
        what: "the examples in the documentation, README included",
        vital: false,
        run: doctests,
    },
];

/// Says what it will do, sees to the machine, runs the stages.
pub fn run(words: &[String]) -> Outcome {
    let flags = known(words, &["--yes", "--dry-run"])?;
    let (yes, dry, began) =
        (flags.first() == Some(&true), flags.get(1) == Some(&true), Instant::now());
    announce(&STAGES);
    println!(
        "Tests get a temporary home, start what servers they need on free ports, and leave nothing \
         behind."
    );
    if dry {
        return Ok(());
    }
    ensure(&needed(&[Need::Test]), yes)?;
    run_all(&STAGES, |_| began + HANGS)
}

/// Says what the stages are and about how long they take.
pub fn announce(stages: &[&Stage]) {
    let minutes: f64 = stages.iter().map(|stage| stage.minutes).sum();
    println!("This takes about {minutes:.0} minutes on two cores:");
    for stage in stages {
        println!("  {:<14} {:>4} min  {}", stage.name, stage.minutes, stage.what);
    }
}

/// The workspace with every feature: one set of features, so that every stage finds what the first
/// one built.
pub const EVERYTHING: [&str; 2] = ["--workspace", "--all-features"];
/// What has tests.
const TARGETS: [&str; 3] = ["--lib", "--bins", "--tests"];
/// What tests start.
const STARTED: [&str; 3] = ["--lib", "--bins", "--examples"];

fn build(workshop: &Workshop) -> Outcome {
    workshop.build(cargo(&["test", "--no-run"]).args(EVERYTHING).args(TARGETS))?;
    workshop.build(cargo(&["build"]).args(EVERYTHING).args(STARTED))
}

/// A test run of cargo's own, with everything.
pub fn cargo_test() -> Command {
    let mut command = cargo(&["test", "--no-fail-fast", "--color", closing::colour()]);
    command.args(EVERYTHING);
    command
}

/// The runner's own options: its lines go through a pipe, and would lose their colours.
pub fn test_runner(command: &mut Command) -> &mut Command {
    command.args(["--", "--color", closing::colour()])
}

/// The test programs that were built.
pub fn programs(workshop: &Workshop) -> Result<Vec<Program>, String> {
    let messages = ["test", "--no-run", "--quiet", "--message-format", "json-render-diagnostics"];
    workshop.read(cargo(&messages).args(EVERYTHING).args(TARGETS)).map(|text| list::read(&text))
}

/// How many test programs run side by side: most of them wait most of their time. Each starts
/// servers of its own, so that there is a limit on machines of many cores, too.
pub fn seats() -> usize {
    const MOST: usize = 16;
    thread::available_parallelism().map_or(2, usize::from).saturating_mul(2).min(MOST)
}

fn tests(workshop: &Workshop) -> Outcome {
    let programs = programs(workshop)?;
    let mut skip = vec!["--skip", TIMED];
    let mut left_out = Vec::new();
    if !is_root() {
        skip.extend(["--skip", NEEDS_ROOT]);
        for program in units(&programs) {
            left_out.extend(program.tests(NEEDS_ROOT)?);
        }
    }
    let mut jobs = short(workshop, &programs, &skip)?;
    jobs.extend(rows(&programs)?);
    let outcome = workshop.run_all(jobs, seats());
    workshop.note(format!(
        "NOT RUN: {} tests that take time by a clock: `cargo xtask campaign timed`",
        workshop.left_out().saturating_sub(left_out.len() as u64)
    ));
    left_out.iter().for_each(|name| needs_root(workshop, name));
    outcome
}

/// Says that something was left out for want of root.
fn needs_root(workshop: &Workshop, name: &str) {
    workshop.note(format!(
        "NOT RUN: {name}: it needs root; run `cargo xtask test` as root, as CI does"
    ));
}

fn units(programs: &[Program]) -> impl Iterator<Item = &Program> {
    programs.iter().filter(|program| program.kind != Kind::Test)
}

/// Stage of the campaign: what `tests` leaves out, one test at a time.
pub fn timed(workshop: &Workshop) -> Outcome {
    workshop.run_all(short(workshop, &programs(workshop)?, &[TIMED, "--test-threads", "1"])?, 1)
}

/// The programs of the gate: unit tests, and integration tests that are not long.
fn short(workshop: &Workshop, programs: &[Program], options: &[&str]) -> Result<Vec<Job>, String> {
    let mut jobs: Vec<Job> = units(programs).map(|program| program.job(false, options)).collect();
    let names = |name: &str| !name.starts_with("long_") && name != MODELS;
    jobs.extend(integration(workshop, programs, names, options)?);
    Ok(jobs)
}

/// Of each engine whose rows of the suite belong to the campaign, one that runs here as well: the
/// program, and the row in it.
const ROWS: [(&str, &str); 5] = [
    ("long_cluster_conformance", "cluster_native"),
    ("long_sentinel", "sentinel_native"),
    ("long_redlock", "redlock"),
    ("long_conformance", "zookeeper_curator"),
    ("long_conformance", "postgres_table"),
];

/// What no engine can break: the cases of these rules are about what stands above all engines, and
/// run on memory, file and Redis.
const ABOVE_ENGINES: [&str; 5] = ["::r6_", "::r8_", "::r9_", "::r12_", "::r13_"];

/// The rows of the suite that the gate takes out of programs of the campaign.
fn rows(programs: &[Program]) -> Result<Vec<Job>, String> {
    let job = |(target, row): (&str, &str)| {
        let found = programs.iter().find(|p| p.kind == Kind::Test && p.target == target);
        let program = found.ok_or_else(|| format!("cargo built no integration test `{target}`"))?;
        let of_row = format!("conformance_suite::{row}::");
        let mut options = vec![of_row.as_str()];
        options.extend(ABOVE_ENGINES.iter().flat_map(|rule| ["--skip", rule]));
        let job = program.job(false, &options);
        let name = format!("{target}:{row}");
        Ok(Job { seconds: weight(&name).seconds, name, ..job })
    };
    ROWS.into_iter().map(job).collect()
}

/// The searches are a stage of the campaign, for what they print is the result.
pub const MODELS: &str = "models";

/// The chosen integration tests.
pub fn integration(
    workshop: &Workshop,
    programs: &[Program],
    chosen: impl Fn(&str) -> bool,
    options: &[&str],
) -> Result<Vec<Job>, String> {
    let job = |test: IntegrationTest| {
        let found = programs
            .iter()
            .find(|program| program.kind == Kind::Test && program.target == test.name);
        let job = found.map(|program| program.job(test.alone, options));
        job.ok_or_else(|| format!("cargo built no integration test `{}`", test.name))
    };
    runnable(workshop, chosen)?.into_iter().map(job).collect()
}

/// The chosen integration tests. Without root those that need it are left out, and the end says
/// which.
fn runnable(
    workshop: &Workshop,
    chosen: impl Fn(&str) -> bool,
) -> Result<Vec<IntegrationTest>, String> {
    let tests = integration_tests()?.into_iter().filter(|test| chosen(&test.name));
    let root = is_root();
    let (runnable, left_out): (Vec<_>, Vec<_>) = tests.partition(|test| root || !test.needs_root);
    left_out.iter().for_each(|test| needs_root(workshop, &test.name));
    Ok(runnable)
}

fn doctests(workshop: &Workshop) -> Outcome {
    let mut command = cargo_test();
    test_runner(command.arg("--doc"));
    // Their names have blanks, at which rustdoc would split them.
    workshop.run_all(vec![Job::new("doctests", command)], 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::root;

    #[test]
    fn every_row_that_the_gate_takes_out_of_the_campaign_stands_in_its_program() {
        let tests = root().join("crates/lockkeeper-lab/tests");
        for (target, row) in ROWS {
            let text = std::fs::read_to_string(tests.join(target).with_extension("rs")).unwrap();
            let begins = |line: &str| line.trim_start().starts_with(&format!("{row} => "));
            assert!(text.lines().any(begins), "{target}: {row}");
        }
    }

    #[test]
    fn every_rule_that_runs_on_three_rows_alone_has_cases() {
        let cases = root().join("crates/lockkeeper-lab/src/conformance/cases/mod.rs");
        let text = std::fs::read_to_string(cases).unwrap();
        for rule in ABOVE_ENGINES {
            let begins = |line: &str| line.trim_start().starts_with(rule.trim_start_matches(':'));
            assert!(text.lines().any(begins), "{rule}");
        }
    }
}
