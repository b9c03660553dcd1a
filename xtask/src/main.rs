//! Project tasks: `cargo xtask help` lists them.

mod campaign;
mod closing;
mod dist;
mod drivers;
mod interrupt;
mod licences;
mod lint;
mod machine;
mod older;
mod packages;
mod project;
mod readme;
mod runner;
mod sandbox;
mod selection;
mod servers;
mod stacks;
mod stage;
mod tasks;
mod test;
mod tools;
mod torture;
mod totals;
mod width;

use std::process::ExitCode;

/// What a task ends with: nothing to say, or the sentence that a person needs.
pub type Outcome = Result<(), String>;

const HELP: &str = "\
cargo xtask TASK

  test       build everything and run the tests; what fails runs again alone: --dry-run
  lint       formatting and width, clippy, documentation, each feature alone, licences
  campaign   what is heavy: long tests, sweep, models, broken clients, torture, bench, interop and \
             more; STAGE... (all), --list
  servers    list the programs that tests need from outside, and install those that are missing
  interop    run the drivers of other lock libraries under interop/
  simulate   random schedules of faults on virtual time: --seeds N (how many), --seed S (the \
             first; alone: only that one), --minutes M
  torture    --hours N: every engine under faults, in turn, until a violation or the end; \
             then the sums; pictures in target/torture
  bench      measure every figure beside its floor, from a release build; \
             what follows goes to `lockkeeper bench`. --peers instead: other libraries on the \
             same work, in turn with ours; --rounds N (15), --on redis, zookeeper, redlock or \
             postgres (all)
  fmt        check the formatting and the width of every line
  docs       build the documentation of the workspace, warnings denied; --open shows it
  dist       static binary, archive, Debian package, image, checksums and SBOM into target/dist; \
             --check installs and tries each; --compare measures the static binary beside the \
             ordinary build
  licences   check the licence of every dependency against deny.toml

  --yes      install missing packages without asking; only a terminal is asked, and not where CI \
             is set
  --dry-run  test: say what would be done, and do nothing
  --list     campaign: say what each stage is for, and do nothing
";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let task = words.next().unwrap_or_default();
    let rest: Vec<String> = words.collect();
    let outcome = match task.as_str() {
        "test" => test::run(&rest),
        "lint" => lint::run(&rest),
        "campaign" => campaign::run(&rest),
        "servers" => servers::run(&rest),
        "interop" => drivers::interop(&rest),
        "simulate" => campaign::simulate(&rest),
        "torture" => torture::long(&rest),
        "bench" => tasks::bench(&rest),
        "fmt" => tasks::fmt(&rest),
        "docs" => tasks::docs(&rest),
        "dist" => dist::run(&rest),
        // For itself: a name server in a network of its own.
        "__names" => dist::answer_names(),
        "licences" => known(&rest, &[]).and_then(|_| licences::check()),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        "" => Err(format!("which task?\n\n{HELP}")),
        other => Err(format!("no task `{other}`\n\n{HELP}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {}", message.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// Refuses flags that a task does not know; answers which of the known ones are set, in their
/// order.
pub fn known(given: &[String], flags: &[&str]) -> Result<Vec<bool>, String> {
    if let Some(stranger) = given.iter().find(|word| !flags.contains(&word.as_str())) {
        let takes = if flags.is_empty() { "no options".to_owned() } else { flags.join(", ") };
        return Err(format!("unknown option `{stranger}`; this task takes {takes}"));
    }
    Ok(flags.iter().map(|flag| given.iter().any(|word| word == flag)).collect())
}

#[cfg(test)]
mod tests {
    use super::known;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_flag_nobody_knows_is_refused_by_name() {
        assert_eq!(known(&words("--open"), &["--yes", "--open"]), Ok(vec![false, true]));
        assert!(
            known(&words("--op"), &["--yes", "--open"]).is_err_and(|text| text.contains("`--op`"))
        );
        assert!(known(&words("x"), &[]).is_err_and(|text| text.contains("no options")));
    }
}
