//! Some tests of one program, in one run of it: for stages whose result is what they print. A
//! filter that no test matches is green to the test runner, and red here.

use std::process::Command;

use crate::closing::colour;
use crate::project;
use crate::runner::list;
use crate::test::EVERYTHING;

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
    /// What runs them. `built`: everything is built already, with one set of features; else no more
    /// is built than the package needs. `read` answers what a command prints, and lets through what
    /// it says besides: how far a build is.
    ///
    /// # Errors
    /// They cannot be built, or none of them would run.
    pub fn command(
        &self,
        built: bool,
        read: impl FnOnce(&mut Command) -> Result<String, String>,
    ) -> Result<Command, String> {
        let package = ["--package", self.package, "--all-features"];
        let scope = if built { &EVERYTHING[..] } else { &package };
        let messages = ["test", "--no-run", "--message-format", "json-render-diagnostics"];
        let said = read(project::cargo(&messages).args(scope).args(self.target))?;
        // Programs of other packages have the same name.
        let program = list::read(&said).into_iter().find(|p| p.is(self.package, self.target));
        let (package, target) = (self.package, self.target.join(" "));
        let program = program.ok_or_else(|| format!("cargo built no {target} of {package}"))?;
        let ignored = program.names(&[self.filter, "--ignored"])?;
        if program.names(&[self.filter])?.iter().all(|test| ignored.contains(test)) {
            let filter = self.filter;
            return Err(format!("no test of {package} {target} runs with `{filter}` in its name"));
        }
        let mut command = program.command();
        command.args(["--color", colour(), self.filter]);
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;
    use crate::sandbox::Sandbox;

    const SEEDS: Selection<'_> =
        Selection { package: "lab", target: &["--test", "fast"], filter: "seeds::random" };

    /// What cargo says of a program, and the program: it lists these tests.
    fn built(dir: &Path, package: &str, tests: &str, ignored: &str) -> String {
        let path = dir.join(package);
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in *--ignored*) echo '{ignored}';; *) echo '{tests}';; esac\n"
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let message = serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": format!("path+file:///x/{package}#0.1.0"),
            "manifest_path": format!("/x/{package}/Cargo.toml"),
            "target": { "kind": ["test"], "name": "fast" },
            "profile": { "test": true },
            "executable": path,
        });
        format!("{message}\n")
    }

    #[test]
    fn a_filter_by_which_no_test_of_this_package_runs_is_red_and_is_named() {
        let sandbox = Sandbox::new().unwrap();
        let dir = sandbox.dir();
        let other = built(dir, "cli", "seeds::random_words: test", "");
        let lab = |tests, ignored| format!("{other}{}", built(dir, "lab", tests, ignored));
        let said = |said: String| SEEDS.command(false, |_| Ok(said)).map(drop);
        let none = "no test of lab --test fast runs with `seeds::random` in its name";
        let slow = "seeds::random_slow: test";
        for (tests, ignored) in [("", ""), ("seeds::random: benchmark", ""), (slow, slow)] {
            assert_eq!(said(lab(tests, ignored)), Err(none.to_owned()), "{tests} {ignored}");
        }
        let two = "seeds::random_slow: test\nseeds::random_quick: test";
        assert_eq!(said(lab(two, slow)), Ok(()));
        assert_eq!(said(other), Err("cargo built no --test fast of lab".to_owned()));
        let why = SEEDS.command(false, |_| Err("not built".to_owned())).unwrap_err();
        assert_eq!(why, "not built");
    }

    #[test]
    fn one_package_is_built_and_shown_unless_everything_is_already_and_its_program_alone_runs() {
        let sandbox = Sandbox::new().unwrap();
        let dir = sandbox.dir();
        let test = "seeds::random_schedules: test";
        for (everything, scope) in
            [(false, "--package lab --all-features"), (true, "--workspace --all-features")]
        {
            let said = ["cli", "lab"].map(|package| built(dir, package, test, "")).concat();
            let mut build = String::new();
            let command = SEEDS.command(everything, |command| {
                build = project::show(command);
                Ok(said)
            });
            let messages = "--message-format json-render-diagnostics";
            assert_eq!(build, format!("cargo test --no-run {messages} {scope} --test fast"));
            let command = command.unwrap();
            assert_eq!(command.get_program(), dir.join("lab"));
            assert!(project::show(&command).ends_with(" seeds::random"));
        }
    }
}
