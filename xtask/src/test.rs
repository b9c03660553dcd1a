//! `cargo xtask test`: the stages, their shares, and what each of them runs.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Instant;

use crate::choice::Choice;
use crate::dist;
use crate::dist::target::Target;
use crate::packages::ensure;
use crate::project::{
    COLD, IntegrationTest, cargo, integration_tests, is_root, library_features, root,
};
use crate::runner::Job;
use crate::runner::list::{self, Kind, Program};
use crate::stage::{Stage, Workshop, run_all};
use crate::tools::{Need, needed};
use crate::{Outcome, closing, licences, project, readme, width};

/// What `cargo xtask test` runs.
const ALWAYS: &[Stage] = &[
    Stage {
        name: "build",
        minutes: 4.0,
        what: "the workspace and its tests, one profile",
        vital: true,
        run: build,
    },
    Stage {
        name: "tests",
        minutes: 6.0,
        what: "unit and integration tests",
        vital: false,
        run: tests,
    },
];

/// What `--all` adds.
const ADDED: &[Stage] = &[
    Stage {
        name: "long-tests",
        minutes: 15.0,
        what: "integration tests named long_*",
        vital: false,
        run: long_tests,
    },
    Stage {
        name: "sweep",
        minutes: 4.0,
        what: "`run` on healthy servers: every layout, lease and --kill-after",
        vital: false,
        run: sweep,
    },
    Stage {
        name: "models",
        minutes: 5.0,
        what: "the machines searched exhaustively, the keeper's threads in many orders, and 10 000 \
               seeds of simulation",
        vital: false,
        run: models,
    },
    Stage {
        name: "broken-clients",
        minutes: 2.5,
        what: "every lock that is known to be wrong, until it is convicted",
        vital: false,
        run: broken_clients,
    },
    Stage {
        name: "torture",
        minutes: 4.0,
        what: "every engine under faults, 30 s each, two at a time",
        vital: false,
        run: crate::torture::briefly,
    },
    Stage {
        name: "doctests",
        minutes: 1.0,
        what: "the examples in the documentation, README included",
        vital: false,
        run: doctests,
    },
    Stage {
        name: "fmt",
        minutes: 0.5,
        what: "cargo fmt --check, and no line over 100 columns",
        vital: false,
        run: fmt,
    },
    Stage {
        name: "clippy",
        minutes: 2.5,
        what: "clippy on everything, warnings denied",
        vital: false,
        run: clippy,
    },
    Stage {
        name: "features",
        minutes: 1.5,
        what: "every feature of the library alone, checked",
        vital: false,
        run: features,
    },
    Stage {
        name: "docs",
        minutes: 1.0,
        what: "the documentation, warnings denied",
        vital: false,
        run: docs,
    },
    Stage {
        name: "licences",
        minutes: 0.5,
        what: "the licence of every dependency",
        vital: false,
        run: |_| licences::check(),
    },
    Stage {
        name: "release",
        minutes: 3.0,
        what: "a cold, static release build of the command line",
        vital: false,
        run: release,
    },
    Stage {
        name: "readme",
        minutes: 1.0,
        what: "the commands of the README",
        vital: false,
        run: readme_commands,
    },
    Stage {
        name: "releases",
        minutes: 2.0,
        what: "the last release and this one on one lock, on every engine and layout",
        vital: false,
        run: releases,
    },
    Stage {
        name: "dist",
        minutes: 3.0,
        what: "archive, Debian package, image and crates, each installed and tried",
        vital: false,
        run: dist::stage,
    },
    Stage {
        name: "bench",
        minutes: 1.0,
        what: "every row of the bench, briefly",
        vital: false,
        run: bench,
    },
    Stage {
        name: "interop",
        minutes: 9.0,
        what: "other libraries beside lockkeeper on the same locks",
        vital: false,
        run: crate::drivers::stage,
    },
];

/// Says what it will do, sees to the machine, runs the stages.
pub fn run(words: &[String]) -> Outcome {
    let choice = Choice::read(words)?;
    let began = Instant::now();
    let stages = choice.of(ALWAYS, ADDED)?;
    announce(&stages, choice.all || !choice.only.is_empty());
    if choice.dry {
        return Ok(());
    }
    let short = !choice.all && choice.only.is_empty();
    let needs: &[Need] =
        if short { &[Need::Test] } else { &[Need::Test, Need::Interop, Need::Dist] };
    ensure(&needed(needs), choice.yes)?;
    run_all(&stages, began)
}

fn announce(stages: &[&Stage], all: bool) {
    let minutes: f64 = stages.iter().map(|stage| stage.minutes).sum();
    println!("This takes at most about {minutes:.0} minutes on two cores:");
    for stage in stages {
        println!("  {:<14} {:>4} min  {}", stage.name, stage.minutes, stage.what);
    }
    if !all {
        let names: Vec<&str> = ADDED.iter().map(|stage| stage.name).collect();
        let more: f64 = ADDED.iter().map(|stage| stage.minutes).sum();
        println!("`--all` adds about {more:.0} minutes: {}.", names.join(", "));
    }
    println!(
        "Tests get a temporary home, start what servers they need on free ports, and leave nothing \
         behind."
    );
}

/// The workspace with every feature: one set of features, so that every stage finds what the first
/// one built.
const EVERYTHING: [&str; 2] = ["--workspace", "--all-features"];
/// What has tests, and what the tests start.
const TARGETS: [&str; 4] = ["--lib", "--bins", "--tests", "--examples"];

fn build(workshop: &Workshop) -> Outcome {
    workshop.build(cargo(&["test", "--no-run"]).args(EVERYTHING).args(TARGETS))?;
    workshop.build(cargo(&["build"]).args(EVERYTHING))
}

fn cargo_test() -> Command {
    let mut command = cargo(&["test", "--no-fail-fast", "--color", closing::colour()]);
    command.args(EVERYTHING);
    command
}

/// The runner's own options: its lines go through a pipe, and would lose their colours.
fn test_runner(command: &mut Command) -> &mut Command {
    command.args(["--", "--color", closing::colour()])
}

/// The test programs that were built.
fn programs(workshop: &Workshop) -> Result<Vec<Program>, String> {
    let messages = ["test", "--no-run", "--quiet", "--message-format", "json-render-diagnostics"];
    workshop.read(cargo(&messages).args(EVERYTHING).args(TARGETS)).map(|text| list::read(&text))
}

/// How many test programs run side by side: most of them wait most of their time. Each starts
/// servers of its own, so that there is a limit on machines of many cores, too.
fn seats() -> usize {
    const MOST: usize = 16;
    thread::available_parallelism().map_or(2, usize::from).saturating_mul(2).min(MOST)
}

fn tests(workshop: &Workshop) -> Outcome {
    let programs = programs(workshop)?;
    let units = programs.iter().filter(|program| program.kind != Kind::Test);
    let mut jobs: Vec<Job> = units.map(|program| program.job(false, &[])).collect();
    let names = |name: &str| !name.starts_with("long_") && name != MODELS;
    jobs.extend(integration(workshop, &programs, names)?);
    workshop.run_all(jobs, seats())
}

/// The chosen integration tests.
fn integration(
    workshop: &Workshop,
    programs: &[Program],
    chosen: impl Fn(&str) -> bool,
) -> Result<Vec<Job>, String> {
    let job = |test: IntegrationTest| {
        let found = programs
            .iter()
            .find(|program| program.kind == Kind::Test && program.target == test.name);
        let job = found.map(|program| program.job(test.alone, &[]));
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
    for test in left_out {
        workshop.note(format!(
            "NOT RUN: {}: it needs root; run `cargo xtask test` as root, as CI does",
            test.name
        ));
    }
    Ok(runnable)
}

fn long_tests(workshop: &Workshop) -> Outcome {
    let own = [BROKEN_CLIENTS, SWEEP, RELEASES];
    let names = |name: &str| name.starts_with("long_") && !own.contains(&name);
    let jobs = integration(workshop, &programs(workshop)?, names)?;
    workshop.run_all(jobs, seats())
}

/// These have a stage of their own, for what they print is the result: the seconds to each
/// conviction.
const BROKEN_CLIENTS: &str = "long_broken_clients";

fn broken_clients(workshop: &Workshop) -> Outcome {
    workshop.run(test_runner(cargo_test().args(["--test", BROKEN_CLIENTS])).args([
        "--nocapture",
        "--test-threads",
        "1",
    ]))
}

/// Here, too, what is printed is the result: what each cell held, and for how long.
const SWEEP: &str = "long_sweep";

fn sweep(workshop: &Workshop) -> Outcome {
    workshop.run(test_runner(cargo_test().args(["--test", SWEEP])).arg("--nocapture"))
}

/// These need the program of an older release.
const RELEASES: &str = "long_releases";

fn releases(workshop: &Workshop) -> Outcome {
    let older = crate::older::program(workshop)?;
    let mut test = cargo_test();
    test.args(["--test", RELEASES]).env("LOCKKEEPER_OLDER", older);
    // It says what the older one does not have.
    workshop.run(test_runner(&mut test).args(["--nocapture", "--test-threads", "4"]))
}

/// The searches have a stage of their own, for what they print is the result.
const MODELS: &str = "models";
/// How many schedules of faults are simulated.
const SEEDS: &str = "10000";
/// The keeper's threads in every order: a few of them are among the unit tests.
const SCHEDULES: &str = "keeper::tests::schedules";
/// The searches of a quorum to their ends: the unit tests stop some of them early.
const SEARCHES: &str = "redlock::recipe::search";
/// How many orders of each are explored, at random and again by priorities.
const ORDERS: &str = "3000";

fn models(workshop: &Workshop) -> Outcome {
    workshop.run(test_runner(cargo_test().args(["--test", MODELS])).args([
        "--nocapture",
        "--test-threads",
        "2",
    ]))?;
    let mut schedules = cargo_test();
    schedules.args(["--lib", SCHEDULES]).env("LOCKKEEPER_SCHEDULES", ORDERS);
    workshop.run(test_runner(&mut schedules).args(["--nocapture", "--test-threads", "2"]))?;
    let mut searches = cargo_test();
    searches.args(["--lib", SEARCHES]).env("LOCKKEEPER_WHOLE_SEARCHES", "1");
    workshop.run(test_runner(&mut searches).args(["--nocapture", "--test-threads", "2"]))?;
    workshop.run(&mut simulation(&["--seeds".to_owned(), SEEDS.to_owned()])?)
}

/// `cargo xtask simulate [--seeds N] [--seed S] [--minutes M]`.
pub fn simulate(words: &[String]) -> Outcome {
    project::must(&mut simulation(words)?)
}

fn simulation(words: &[String]) -> Result<Command, String> {
    let mut command = cargo_test();
    command.args(["--test", "seeds", "--", "--nocapture", "random_schedules"]);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let variable = match word.as_str() {
            "--seeds" => "LOCKKEEPER_SIM_SEEDS",
            "--seed" => "LOCKKEEPER_SIM_SEED",
            "--minutes" => "LOCKKEEPER_SIM_MINUTES",
            other => {
                return Err(format!(
                    "unknown option `{other}`; this task takes --seeds N, --seed S, --minutes M"
                ));
            }
        };
        let value = words.next().ok_or_else(|| format!("{word} needs a number"))?;
        value.parse::<u64>().map_err(|_| format!("{word} {value}: a whole number is expected"))?;
        command.env(variable, value);
    }
    Ok(command)
}

/// `cargo xtask soak [--minutes N] [--commands N]`: commands at default options on healthy servers.
pub fn soak(words: &[String]) -> Outcome {
    let mut command = cargo_test();
    command.args(["--test", SOAK, "--", "--nocapture"]);
    let (mut minutes, mut commands) = (30, 20);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = match word.as_str() {
            "--minutes" => &mut minutes,
            "--commands" => &mut commands,
            other => {
                return Err(format!(
                    "unknown option `{other}`; this task takes --minutes N, --commands N"
                ));
            }
        };
        let given = words.next().ok_or_else(|| format!("{word} needs a number"))?;
        *value = given
            .parse::<u64>()
            .map_err(|_| format!("{word} {given}: a whole number is expected"))?;
    }
    command
        .env("SOAK_SECONDS", minutes.saturating_mul(60).to_string())
        .env("SOAK_COMMANDS", commands.to_string());
    project::must(&mut command)
}

const SOAK: &str = "long_soak";

fn doctests(workshop: &Workshop) -> Outcome {
    workshop.run(test_runner(cargo_test().arg("--doc")))
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
    Ok(())
}

fn docs(workshop: &Workshop) -> Outcome {
    workshop.build(&mut crate::tasks::document())
}

fn release(workshop: &Workshop) -> Outcome {
    let cold = root().join(COLD);
    if cold.exists() {
        fs::remove_dir_all(&cold).map_err(|error| format!("{}: {error}", cold.display()))?;
    }
    let target = Target::ensure();
    // What is not downloaded yet is the network's time, not the compiler's.
    workshop.build(&mut cargo(&["fetch", "--locked"]))?;
    // Its time is the stage's: what a build takes is the machine's speed as well.
    workshop.build(&mut target.build(COLD))
}

fn readme_commands(workshop: &Workshop) -> Outcome {
    // The first two commands; the third is us.
    let target = Target::ensure();
    for more in [&[][..], &["--url", "redis:auto"]] {
        let demo = ["run", "--release", "--target-dir", COLD, "--", "demo", "oversell"];
        workshop.run(target.apply(&mut cargo(&[&demo, more].concat())))?;
    }
    readme::run(workshop, &target.folder(COLD))
}

fn bench(workshop: &Workshop) -> Outcome {
    // All rows, with a debug build: that they run is what is looked at here. Figures come from
    // `cargo xtask bench`.
    workshop.run(&mut cargo(&[
        "run",
        "--package",
        "lockkeeper-cli",
        "--",
        "bench",
        "--seconds",
        "30",
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::TOTAL_MAX;

    #[test]
    fn a_simulation_takes_whole_numbers_and_nothing_else() {
        let given = |text: &str| {
            simulation(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        assert!(given("--seed 7 --seeds 3 --minutes 1").is_ok());
        assert!(given("--seed").is_err_and(|text| text.contains("--seed needs")));
        assert!(given("--seed x").is_err_and(|text| text.contains("--seed x")));
        assert!(given("--sed 1").is_err_and(|text| text.contains("`--sed`")));
    }

    #[test]
    fn the_short_form_takes_at_most_ten_minutes_and_the_long_one_ends_well_before_its_limit() {
        let sum = |stages: &[Stage]| stages.iter().map(|stage| stage.minutes).sum::<f64>();
        assert!(sum(ALWAYS) <= 10.0);
        // A slow machine takes a quarter longer.
        assert!((sum(ALWAYS) + sum(ADDED)) * 1.25 <= TOTAL_MAX.as_secs_f64() / 60.0);
    }
}
