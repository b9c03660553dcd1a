//! `cargo xtask test`: everything is built and every test of the gate runs. What is heavy is the
//! [campaign](crate::campaign).

use std::process::Command;
use std::thread;
use std::time::Instant;

use crate::packages::ensure;
use crate::project::{IntegrationTest, cargo, integration_tests, is_root};
use crate::runner::list::{self, Kind, Program};
use crate::runner::weights::weight;
use crate::runner::{EXHAUSTIVE, Job, NEEDS_ROOT, TIMED, Tests};
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
    workshop.build(cargo(&["build"]).args(EVERYTHING).args(STARTED))?;
    workshop.everything.set(true);
    Ok(())
}

/// A test run of cargo's own.
pub fn cargo_test() -> Command {
    cargo(&["test", "--no-fail-fast", "--color", closing::colour()])
}

/// The runner's own options: its lines go through a pipe, and would lose their colours.
pub fn test_runner(command: &mut Command) -> &mut Command {
    command.args(["--", "--color", closing::colour()])
}

/// The test programs that were built, with the names of their tests.
pub fn programs(workshop: &Workshop) -> Result<Vec<Program>, String> {
    let messages = ["test", "--no-run", "--quiet", "--message-format", "json-render-diagnostics"];
    let text = workshop.read(cargo(&messages).args(EVERYTHING).args(TARGETS))?;
    let mut programs = list::read(&text);
    programs.iter_mut().try_for_each(Program::list)?;
    none_is_lost(&programs, &integration_tests()?)?;
    Ok(programs)
}

/// Each test of a program belongs to one of its files, and each file has tests: who adds one to
/// what is linked together may forget the line in `main.rs`.
fn none_is_lost(programs: &[Program], files: &[IntegrationTest]) -> Outcome {
    for file in files {
        if found(programs, file)?.file(file).tests.names().is_empty() {
            let (source, program) = (file.source.display(), &file.program);
            return Err(format!("{source} has no test: is it a module of `{program}`?"));
        }
    }
    for program in programs.iter().filter(|program| program.kind == Kind::Test) {
        let owned = |test: &String| files.iter().any(|f| program.has(f) && f.owns(test));
        if let Some(stranger) = program.tests.iter().find(|test| !owned(test)) {
            return Err(format!("`{stranger}` is in no file of tests/{}/", program.target));
        }
    }
    Ok(())
}

/// The program of a test file.
fn found<'a>(programs: &'a [Program], file: &IntegrationTest) -> Result<&'a Program, String> {
    let found = programs.iter().find(|program| program.has(file));
    found.ok_or_else(|| format!("cargo built no program of {}", file.source.display()))
}

/// How many test programs run side by side: most of them wait most of their time. Each starts
/// servers of its own, so that there is a limit on machines of many cores, too.
pub fn seats() -> usize {
    const MOST: usize = 16;
    thread::available_parallelism().map_or(2, usize::from).saturating_mul(2).min(MOST)
}

fn tests(workshop: &Workshop) -> Outcome {
    let programs = programs(workshop)?;
    let mut jobs = short(&programs)?;
    jobs.extend(rows(&programs)?);
    let timed = leave_out(&mut jobs, |test| test.contains(TIMED)).len();
    workshop.note(format!(
        "NOT RUN: {timed} tests that take time by a clock: `cargo xtask campaign timed`"
    ));
    let whole = leave_out(&mut jobs, |test| test.contains(EXHAUSTIVE)).len();
    workshop
        .note(format!("NOT RUN: {whole} searches that are long: `cargo xtask campaign models`"));
    without_root(workshop, &mut jobs);
    workshop.run_all(jobs, seats())
}

/// Without root, leaves out the tests that need it; the end names them.
pub fn without_root(workshop: &Workshop, jobs: &mut Vec<Job>) {
    if is_root() {
        return;
    }
    for name in leave_out(jobs, |test| test.contains(NEEDS_ROOT)) {
        workshop.note(format!("NOT RUN: {name}: run `cargo xtask test` as root, as CI does"));
    }
}

/// Takes tests out of the jobs, and jobs that have none left. Answers their names. Of a job whose
/// tests are not known nothing is taken.
fn leave_out(jobs: &mut Vec<Job>, which: impl Fn(&str) -> bool) -> Vec<String> {
    let mut left_out = Vec::new();
    jobs.retain_mut(|job| {
        let Tests::Named(names) = &mut job.tests else { return true };
        left_out.extend(names.extract_if(.., |test| which(test)));
        !names.is_empty()
    });
    left_out
}

/// Stage of the campaign: what `tests` leaves out, and what it runs without judging its time, one
/// test at a time.
pub fn timed(workshop: &Workshop) -> Outcome {
    let mut jobs = short(&programs(workshop)?)?;
    leave_out(&mut jobs, |test| !test.contains(TIMED) && !is_promise(test));
    without_root(workshop, &mut jobs);
    jobs.iter_mut().for_each(|job| job.threads = Some(1));
    judge_time(&mut jobs);
    workshop.run_all(jobs, 1)
}

/// Whether it is one of the suite's cases of what is promised in a time.
fn is_promise(test: &str) -> bool {
    test.contains("conformance_suite::") && test.contains("::r14_")
}

/// Has the suite judge whether what is promised in a time comes in that time: a server that was
/// late looks as one that broke it. So the gate does not, and the campaign does.
pub fn judge_time(jobs: &mut [Job]) {
    for job in jobs {
        job.command.env("LOCKKEEPER_JUDGES_TIME", "1");
    }
}

/// What the gate runs: unit tests, and integration tests that are not long.
fn short(programs: &[Program]) -> Result<Vec<Job>, String> {
    let units = programs.iter().filter(|program| program.kind != Kind::Test);
    let mut jobs: Vec<Job> = units.map(Program::unit).collect();
    // Some programs have no unit test.
    leave_out(&mut jobs, |_| false);
    let names = |name: &str| !name.starts_with("long_") && name != MODELS;
    jobs.extend(integration(programs, names)?);
    Ok(jobs)
}

/// Of each engine whose rows of the suite belong to the campaign, one that runs here as well: the
/// test file, and the row in it.
pub const ROWS: [(&str, &str); 5] = [
    ("long_cluster_conformance", "cluster_native"),
    ("long_sentinel", "sentinel_native"),
    ("long_redlock", "redlock"),
    ("long_conformance", "zookeeper_curator"),
    ("long_conformance", "postgres_table"),
];

/// What no engine can break: the cases of these rules are about what stands above all engines, and
/// run on memory, file and Redis.
const ABOVE_ENGINES: [&str; 5] = ["::r6_", "::r8_", "::r9_", "::r12_", "::r13_"];

/// The rows of the suite that the gate takes out of what is long.
fn rows(programs: &[Program]) -> Result<Vec<Job>, String> {
    let files = integration_tests()?;
    let job = |(name, row): (&str, &str)| {
        let file = files.iter().find(|file| file.name == name);
        let file = file.ok_or_else(|| format!("there is no integration test `{name}`"))?;
        let mut job = found(programs, file)?.file(file);
        let of_row = format!("conformance_suite::{row}::");
        let above = |test: &str| ABOVE_ENGINES.iter().any(|rule| test.contains(rule));
        let names = job.tests.names().iter();
        let names: Vec<_> =
            names.filter(|test| test.contains(&of_row) && !above(test)).cloned().collect();
        if names.is_empty() {
            return Err(format!("`{name}` has no row `{row}`"));
        }
        job.tests = Tests::Named(names);
        job.seconds = weight(&format!("{name}:{row}")).seconds;
        job.name = format!("{}:{row}", job.name);
        Ok(job)
    };
    ROWS.into_iter().map(job).collect()
}

/// The searches are a stage of the campaign, for what they print is the result.
pub const MODELS: &str = "models";

/// The chosen integration tests.
pub fn integration(
    programs: &[Program],
    chosen: impl Fn(&str) -> bool,
) -> Result<Vec<Job>, String> {
    let files = integration_tests()?.into_iter().filter(|file| chosen(&file.name));
    files.map(|file| Ok(found(programs, &file)?.file(&file))).collect()
}

fn doctests(workshop: &Workshop) -> Outcome {
    let mut command = cargo_test();
    test_runner(command.args(EVERYTHING).arg("--doc"));
    // Their names have blanks, at which rustdoc would split them.
    workshop.run_all(vec![Job::new("doctests", command)], 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::root;

    #[test]
    fn every_row_that_the_gate_takes_out_of_the_campaign_stands_in_its_program() {
        let files = integration_tests().unwrap();
        for (name, row) in ROWS {
            let file = files.iter().find(|file| file.name == name).unwrap();
            let text = std::fs::read_to_string(&file.source).unwrap();
            let begins = |line: &str| line.trim_start().starts_with(&format!("{row} => "));
            assert!(text.lines().any(begins), "{name}: {row}");
        }
    }

    #[test]
    fn a_file_that_is_not_linked_and_a_test_that_no_file_has_are_named() {
        // As cargo says it, in the one line that is read.
        let mut programs = list::read(
            "{\"reason\":\"compiler-artifact\",\"profile\":{\"test\":true},\
             \"package_id\":\"path+file:///x/p#0.1.0\",\"manifest_path\":\"/x/p/Cargo.toml\",\
             \"target\":{\"kind\":[\"test\"],\"name\":\"fast\"},\"executable\":\"/x/fast-1\"}",
        );
        programs[0].tests = ["one::a", "two::b"].map(str::to_owned).to_vec();
        let file = |name: &str| IntegrationTest {
            name: name.to_owned(),
            program: "fast".to_owned(),
            package: "/x/p".into(),
            source: format!("/x/p/tests/fast/{name}.rs").into(),
            alone: false,
        };
        let lost = |names: &[&str]| {
            none_is_lost(&programs, &names.iter().map(|name| file(name)).collect::<Vec<_>>())
        };
        assert_eq!(lost(&["one", "two"]), Ok(()));
        assert!(lost(&["one", "three", "two"]).is_err_and(|why| why.contains("/three.rs has no")));
        assert!(lost(&["one"]).is_err_and(|why| why.starts_with("`two::b` is in no file")));
        let other = IntegrationTest { program: "long".to_owned(), ..file("one") };
        let why = none_is_lost(&programs, &[other]);
        assert!(why.is_err_and(|why| why.starts_with("cargo built no program of")));
    }

    #[test]
    fn what_is_left_out_of_the_jobs_is_said_and_a_job_without_tests_is_none() {
        let job = |name: &str, tests: &[&str]| {
            let tests = Tests::Named(tests.iter().map(|test| (*test).to_owned()).collect());
            Job { tests, ..Job::new(name, Command::new("true")) }
        };
        let mut jobs = vec![job("a", &["x", "timed_y"]), job("b", &["m::timed_z"])];
        assert_eq!(leave_out(&mut jobs, |test| test.contains(TIMED)), ["timed_y", "m::timed_z"]);
        let left: Vec<_> = jobs.into_iter().map(|job| (job.name, job.tests)).collect();
        assert_eq!(left, [("a".to_owned(), Tests::Named(vec!["x".to_owned()]))]);
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
