//! Some tests of one target, as a test run of cargo's own: for stages whose result is what they
//! print. A filter that matches no test is green to the test runner, and red here.

use std::process::Command;

use crate::test::{EVERYTHING, cargo_test, test_runner};
use crate::{Outcome, project};

/// Which tests.
pub struct Selection<'a> {
    /// The package whose tests they are.
    pub package: &'a str,
    /// Its target, as cargo is told: `--lib`, or `--test` and a name.
    pub target: &'a [&'a str],
    /// What stands in the name of each.
    pub filter: &'a str,
}

impl Selection<'_> {
    /// What runs them; the options of the test runner come last. `built`: everything is built
    /// already, with one set of features; else no more is built than the package needs. `read`
    /// answers what a command prints.
    ///
    /// # Errors
    /// They cannot be built, or there are none.
    pub fn command(
        &self,
        built: bool,
        read: impl FnOnce(&mut Command) -> Result<String, String>,
    ) -> Result<Command, String> {
        let package = ["--package", self.package, "--all-features"];
        let scope = if built { &EVERYTHING[..] } else { &package };
        let mut list = project::cargo(&["test", "--quiet"]);
        list.args(scope).args(self.target).args(["--", "--list", "--format", "terse", self.filter]);
        self.some_are(&read(&mut list)?)?;
        let mut command = cargo_test();
        test_runner(command.args(scope).args(self.target)).arg(self.filter);
        Ok(command)
    }

    /// Whether what the test runners list has a test.
    fn some_are(&self, listed: &str) -> Outcome {
        if listed.lines().any(|line| line.ends_with(": test")) {
            return Ok(());
        }
        let (package, target) = (self.package, self.target.join(" "));
        Err(format!("no test of {package} {target} has `{}` in its name", self.filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: Selection<'_> =
        Selection { package: "lab", target: &["--test", "fast"], filter: "seeds::random" };

    fn words(command: &Command) -> String {
        project::show(command).replace(" --color never", "").replace(" --color always", "")
    }

    #[test]
    fn a_filter_that_no_test_matches_is_red_and_is_named() {
        for listed in ["", "bench::seeds: benchmark\n", "seeds: a module, and no test\n"] {
            let why = SEEDS.command(false, |_| Ok(listed.to_owned())).unwrap_err();
            assert_eq!(why, "no test of lab --test fast has `seeds::random` in its name");
        }
        assert_eq!(SEEDS.command(false, |_| Err("not built".to_owned())).unwrap_err(), "not built");
    }

    #[test]
    fn one_package_is_built_unless_everything_is_already() {
        for (built, scope) in
            [(false, "--package lab --all-features"), (true, "--workspace --all-features")]
        {
            let mut list = String::new();
            let command = SEEDS.command(built, |command| {
                list = words(command);
                Ok("seeds::random_schedules: test\n".to_owned())
            });
            let of = format!("{scope} --test fast --");
            assert_eq!(
                list,
                format!("cargo test --quiet {of} --list --format terse seeds::random")
            );
            assert_eq!(
                words(&command.unwrap()),
                format!("cargo test --no-fail-fast {of} seeds::random")
            );
        }
    }
}
