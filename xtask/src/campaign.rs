//! `cargo xtask campaign`: what is heavy. It finds faults; it stops no landing.

use std::fs;
use std::process::Command;
use std::time::Instant;

use crate::dist::target::Target;
use crate::packages::ensure;
use crate::project::{COLD, cargo, root};
use crate::selection::Selection;
use crate::stage::{HANGS, Stage, Workshop, run_all};
use crate::test::{
    BUILD, MODELS, announce, integration, judge_time, programs, seats, timed, without_root,
};
use crate::tools::{Need, needed};
use crate::{Outcome, dist, drivers, project, readme, torture};

/// The stage that needs other libraries.
const INTEROP: &str = "interop";
/// The stage that needs what packages are made and tried with.
const DIST: &str = "dist";
/// The stages that build the packages that they need, if no other needs everything.
const OF_FEW_PACKAGES: [&str; 4] = [MODELS, "sweep", "broken-clients", "releases"];

/// Each can be named.
const STAGES: &[Stage] = &[
    Stage {
        name: "timed",
        minutes: 1.5,
        what: "tests that take time by a clock, which a slow machine fails: named timed_*, and \
               what the suite promises in a time",
        vital: false,
        run: timed,
    },
    Stage {
        name: "long-tests",
        minutes: 12.0,
        what: "test files named long_*",
        vital: false,
        run: long_tests,
    },
    Stage {
        name: "sweep",
        minutes: 4.5,
        what: "healthy servers: every layout, lease and --kill-after of `run`; acquire, elect",
        vital: false,
        run: sweep,
    },
    Stage {
        name: MODELS,
        minutes: 20.0,
        what: "the machines searched exhaustively, the keeper's threads in many orders, and 10 000 \
               seeds of simulation",
        vital: false,
        run: models,
    },
    Stage {
        name: "broken-clients",
        minutes: 4.0,
        what: "every lock that is known to be wrong, until it is convicted",
        vital: false,
        run: broken_clients,
    },
    Stage {
        name: "torture",
        minutes: 5.0,
        what: "every engine under faults, 30 s each, two at a time",
        vital: false,
        run: torture::briefly,
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
        minutes: 3.5,
        what: "the commands of the README and of the pages in docs",
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
        name: DIST,
        minutes: 3.0,
        what: "archive, Debian package, image and crates, each installed and tried",
        vital: false,
        run: dist::stage,
    },
    Stage {
        name: "bench",
        minutes: 1.5,
        what: "every row of the bench, briefly",
        vital: false,
        run: bench,
    },
    Stage {
        name: INTEROP,
        minutes: 9.0,
        what: "other libraries beside lockkeeper on the same locks",
        vital: false,
        run: drivers::stage,
    },
];

/// `cargo xtask campaign [STAGE…] [--list] [--yes]`: these stages, or all of them.
pub fn run(words: &[String]) -> Outcome {
    let (flags, names): (Vec<&String>, Vec<&String>) =
        words.iter().partition(|word| word.starts_with('-'));
    if let Some(stranger) = flags.iter().find(|flag| !["--list", "--yes"].contains(&flag.as_str()))
    {
        return Err(format!(
            "unknown option `{stranger}`; this task takes names of stages, --list, --yes"
        ));
    }
    let stages = chosen(&names)?;
    announce(&stages);
    if flags.iter().any(|flag| *flag == "--list") {
        return Ok(());
    }
    let of = [(INTEROP, Need::Interop), (DIST, Need::Dist)];
    let of = of.iter().filter(|(name, _)| stages.iter().any(|stage| stage.name == *name));
    let needs: Vec<Need> = of.map(|(_, need)| *need).chain([Need::Test]).collect();
    ensure(&needed(&needs), flags.iter().any(|flag| *flag == "--yes"))?;
    run_all(&stages, |start| start + HANGS)
}

/// The stages of these names, in the order of the table, behind the build if they need it; without
/// a name, all.
fn chosen(names: &[&String]) -> Result<Vec<&'static Stage>, String> {
    let all: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
    if let Some(stranger) = names.iter().find(|name| !all.contains(&name.as_str())) {
        return Err(format!("no stage `{stranger}`; there are {}", all.join(", ")));
    }
    let wanted = |stage: &&Stage| names.is_empty() || names.iter().any(|name| *name == stage.name);
    let stages: Vec<&Stage> = STAGES.iter().filter(wanted).collect();
    let build = stages.iter().any(|stage| !OF_FEW_PACKAGES.contains(&stage.name));
    Ok(build.then_some(&BUILD).into_iter().chain(stages).collect())
}

fn long_tests(workshop: &Workshop) -> Outcome {
    let own = [BROKEN_CLIENTS, SWEEP, RELEASES];
    let names = |name: &str| name.starts_with("long_") && !own.contains(&name);
    let mut jobs = integration(&programs(workshop)?, names)?;
    without_root(workshop, &mut jobs);
    judge_time(&mut jobs);
    workshop.run_all(jobs, seats())
}

/// What runs these tests, whose output is seen as it comes.
fn seen(workshop: &Workshop, which: &Selection<'_>) -> Result<Command, String> {
    let mut command = which.command(workshop.everything.get(), |command| workshop.read(command))?;
    command.arg("--nocapture");
    Ok(command)
}

/// The package of the long files that are a stage each.
const CLI: &str = "lockkeeper-cli";

/// The tests of one of them.
fn long(workshop: &Workshop, file: &str) -> Result<Command, String> {
    let filter = &format!("{file}::");
    seen(workshop, &Selection { package: CLI, target: &["--test", "long"], filter })
}

/// These have a stage of their own, for what they print is the result: the seconds to each
/// conviction.
const BROKEN_CLIENTS: &str = "long_broken_clients";

fn broken_clients(workshop: &Workshop) -> Outcome {
    workshop.run(long(workshop, BROKEN_CLIENTS)?.args(["--test-threads", "1"]))
}

/// Here, too, what is printed is the result: what each cell held, and for how long.
const SWEEP: &str = "long_sweep";

fn sweep(workshop: &Workshop) -> Outcome {
    workshop.run(&mut long(workshop, SWEEP)?)
}

/// These need the program of an older release.
const RELEASES: &str = "long_releases";

fn releases(workshop: &Workshop) -> Outcome {
    let older = crate::older::program(workshop)?;
    // It says what the older one does not have.
    let mut tests = long(workshop, RELEASES)?;
    workshop.run(tests.env("LOCKKEEPER_OLDER", older).args(["--test-threads", "4"]))
}

/// How many schedules of faults are simulated.
const SEEDS: &str = "10000";
/// The keeper's threads in every order: a few of them are among the unit tests.
const SCHEDULES: &str = "keeper::tests::schedules";
/// Searches to their ends: the unit tests stop some of them early, and leave some out.
const SEARCHES: [&str; 3] =
    ["redlock::recipe::search", "redlock::tests::progress", "zookeeper::recipe::tests"];
/// How many orders of each are explored, at random and again by priorities.
const ORDERS: &str = "3000";

fn models(workshop: &Workshop) -> Outcome {
    let of = |package, target, filter| seen(workshop, &Selection { package, target, filter });
    let two = ["--test-threads", "2"];
    workshop.run(of(LAB, &["--test", MODELS], "")?.args(two))?;
    let mut schedules = of("lockkeeper", &["--lib"], SCHEDULES)?;
    workshop.run(schedules.env("LOCKKEEPER_SCHEDULES", ORDERS).args(two))?;
    for searched in SEARCHES {
        let mut searches = of("lockkeeper", &["--lib"], searched)?;
        workshop.run(searches.env("LOCKKEEPER_WHOLE_SEARCHES", "1").args(two))?;
    }
    workshop.run(seen(workshop, &SIMULATION)?.env("LOCKKEEPER_SIM_SEEDS", SEEDS))
}

/// The package of the models and of the simulation.
const LAB: &str = "lockkeeper-lab";

const SIMULATION: Selection<'_> =
    Selection { package: LAB, target: &["--test", "fast"], filter: "seeds::random_schedules" };

/// `cargo xtask simulate [--seeds N] [--seed S] [--minutes M]`.
pub fn simulate(words: &[String]) -> Outcome {
    let variables = simulated(words)?;
    let mut command = SIMULATION.command(false, project::read)?;
    project::must(command.arg("--nocapture").envs(variables))
}

/// The variables that say to the test what the words say to us.
fn simulated(words: &[String]) -> Result<Vec<(&'static str, &str)>, String> {
    let (mut variables, mut words) = (Vec::new(), words.iter());
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
        variables.push((variable, value.as_str()));
    }
    Ok(variables)
}

fn release(workshop: &Workshop) -> Outcome {
    let cold = root().join(COLD);
    if cold.exists() {
        fs::remove_dir_all(&cold).map_err(|error| format!("{}: {error}", cold.display()))?;
    }
    let target = Target::ensure();
    // What is not downloaded yet is the network's time, not the compiler's.
    workshop.build(&mut cargo(&["fetch", "--locked"]))?;
    let start = Instant::now();
    workshop.build(&mut target.build(COLD))?;
    println!("cold release build of the command line: {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
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

    #[test]
    fn a_campaign_has_the_stages_that_are_named_or_all_behind_the_build_if_they_need_it() {
        let names = |given: &[&str]| {
            let given: Vec<String> = given.iter().map(|word| (*word).to_owned()).collect();
            let stages = chosen(&given.iter().collect::<Vec<_>>())?;
            Ok::<_, String>(stages.iter().map(|stage| stage.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["interop", "sweep"]), Ok(vec!["build", "sweep", "interop"]));
        assert_eq!(names(&["sweep", MODELS]), Ok(vec!["sweep", MODELS]), "of few packages");
        assert!(OF_FEW_PACKAGES.iter().all(|name| STAGES.iter().any(|stage| stage.name == *name)));
        assert_eq!(names(&[]).map(|all| all.len()), Ok(STAGES.len() + 1));
        assert!(
            names(&["swep"]).is_err_and(|text| text.contains("`swep`") && text.contains("sweep"))
        );
    }

    #[test]
    fn every_stage_of_one_file_names_a_module_of_what_is_long() {
        let files = crate::project::integration_tests().unwrap();
        for name in [BROKEN_CLIENTS, SWEEP, RELEASES] {
            let file = files.iter().find(|file| file.name == name).unwrap();
            assert!(file.program == "long" && file.package.ends_with(CLI), "{name}");
        }
    }

    #[test]
    fn a_simulation_takes_whole_numbers_and_nothing_else() {
        let given = |text: &str| {
            let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            simulated(&words).map(|variables| variables.len())
        };
        assert_eq!(given("--seed 7 --seeds 3 --minutes 1"), Ok(3));
        assert!(given("--seed").is_err_and(|text| text.contains("--seed needs")));
        assert!(given("--seed x").is_err_and(|text| text.contains("--seed x")));
        assert!(given("--sed 1").is_err_and(|text| text.contains("`--sed`")));
    }
}
