//! The test programs that cargo has built, as it would start them.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::weights::{Weight, weight};
use super::{Job, Tests};
use crate::Outcome;
use crate::project::IntegrationTest;

/// What a test program tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A library's own modules.
    Lib,
    /// A program's own modules.
    Bin,
    /// An integration test.
    Test,
}

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// What it tests.
    pub kind: Kind,
    /// The name of the library, the program or the integration test.
    pub target: String,
    /// The name and the version of its package.
    package: [String; 2],
    manifest: PathBuf,
    path: PathBuf,
    /// Its tests, by their whole names, once they are [listed](Program::list).
    pub tests: Vec<String>,
}

/// The test programs in what `cargo test --no-run --message-format json` prints.
pub fn read(messages: &str) -> Vec<Program> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter_map(|message| program(&message)).collect()
}

fn program(message: &Value) -> Option<Program> {
    if message.get("reason")? != "compiler-artifact" || message.get("profile")?.get("test")? != true
    {
        return None;
    }
    let target = message.get("target")?;
    let kind = match target.get("kind")?.get(0)?.as_str()? {
        "lib" => Kind::Lib,
        "bin" => Kind::Bin,
        "test" => Kind::Test,
        _ => return None,
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let manifest = PathBuf::from(message.get("manifest_path")?.as_str()?);
    Some(Program {
        kind,
        target: text(target.get("name")?)?,
        package: package(message.get("package_id")?.as_str()?)?,
        manifest,
        path: PathBuf::from(message.get("executable")?.as_str()?),
        tests: Vec::new(),
    })
}

/// `…/folder#version`, or `…/folder#name@version` where the folder has another name.
fn package(id: &str) -> Option<[String; 2]> {
    let (url, last) = id.rsplit_once('#')?;
    let (name, version) = last.split_once('@').or_else(|| Some((url.rsplit_once('/')?.1, last)))?;
    Some([name.to_owned(), version.to_owned()])
}

impl Program {
    /// Asks it for its tests.
    ///
    /// # Errors
    /// It cannot be started, or does not say.
    pub fn list(&mut self) -> Outcome {
        self.tests = self.names(&[])?;
        Ok(())
    }

    /// Those of its tests that its runner would choose by these words.
    ///
    /// # Errors
    /// As above.
    pub fn names(&self, words: &[&str]) -> Result<Vec<String>, String> {
        let mut list = Command::new(&self.path);
        let listed = list.args(words).args(["--list", "--format", "terse"]).output();
        let fail = |why: String| format!("{} --list: {why}", self.path.display());
        let listed = listed.map_err(|error| fail(error.to_string()))?;
        if !listed.status.success() {
            return Err(fail(listed.status.to_string()));
        }
        let text = String::from_utf8_lossy(&listed.stdout);
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }

    /// Whether it is this target of this package: `--lib`, or `--test` and a name.
    pub fn is(&self, package: &str, target: &[&str]) -> bool {
        let its = match self.kind {
            Kind::Lib => ["--lib"].as_slice(),
            Kind::Bin => &["--bin", &self.target],
            Kind::Test => &["--test", &self.target],
        };
        self.package[0] == package && its == target
    }

    /// Whether it has the tests of this file: as its own, or as those of one of its modules.
    pub fn has(&self, file: &IntegrationTest) -> bool {
        self.kind == Kind::Test
            && self.target == file.program
            && self.manifest.parent() == Some(&*file.package)
    }

    /// All of its own modules' tests, as a job.
    pub fn unit(&self) -> Job {
        let kind = if self.kind == Kind::Lib { "lib" } else { "bin" };
        let name = format!("{kind}:{}", self.target);
        self.job(name.clone(), &name, self.tests.clone())
    }

    /// The tests of one of its files, as a job: a process for each file, whatever it was linked
    /// with.
    pub fn file(&self, file: &IntegrationTest) -> Job {
        let tests = self.tests.iter().filter(|test| file.owns(test)).cloned().collect();
        let name = format!("{}:{}", self.package[0], file.name);
        Job { alone: file.alone, ..self.job(name, &file.name, tests) }
    }

    /// What starts it, with the directory and the variables that cargo would give it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let Some(place) = self.manifest.parent() {
            command.current_dir(place).env("CARGO_MANIFEST_DIR", place);
        }
        // What cargo told us about our own package is not about this one.
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("CARGO_PKG_") {
                command.env_remove(&variable);
            }
        }
        let [package, version] = &self.package;
        command.env("CARGO_MANIFEST_PATH", &self.manifest);
        command.env("CARGO_PKG_NAME", package).env("CARGO_PKG_VERSION", version);
        command
    }

    fn job(&self, name: String, weighed_as: &str, tests: Vec<String>) -> Job {
        let command = self.command();
        let Weight { seconds, threads, .. } = *weight(weighed_as);
        Job { tests: Tests::Named(tests), threads, seconds, ..Job::new(&name, command) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    /// What cargo says of a target.
    fn message(kind: &str, name: &str, test: bool, package: &str) -> String {
        let message = json!({
            "reason": "compiler-artifact",
            "package_id": format!("path+file:///x/{package}"),
            "manifest_path": "/x/crates/p/Cargo.toml",
            "target": { "kind": [kind], "name": name },
            "profile": { "test": test },
            "executable": test.then(|| format!("/x/target/debug/deps/{name}-1")),
        });
        message.to_string()
    }

    #[test]
    fn only_what_cargo_would_run_as_tests_is_a_program() {
        let messages = [
            message("lib", "one", true, "crates/p#0.1.0"),
            message("lib", "one", false, "crates/p#0.1.0"),
            message("bin", "two", true, "crates/q#p@0.2.0"),
            message("test", "three", true, "crates/p#0.1.0"),
            message("example", "four", true, "crates/p#0.1.0"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "no message".to_owned(),
        ];
        let programs = read(&messages.join("\n"));
        let found: Vec<_> = programs.iter().map(|p| (p.kind, p.target.as_str())).collect();
        assert_eq!(found, [(Kind::Lib, "one"), (Kind::Bin, "two"), (Kind::Test, "three")]);
        assert_eq!(programs[0].package, ["p", "0.1.0"]);
        assert_eq!(programs[1].package, ["p", "0.2.0"]);
    }

    #[test]
    fn a_program_is_started_as_cargo_would() {
        let programs = read(&message("test", "three", true, "crates/p#0.1.0"));
        let job = programs[0].unit();
        let set = |name: &str| {
            let value =
                job.command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
            value.map(|value| value.to_string_lossy().into_owned())
        };
        assert_eq!(job.command.get_current_dir(), Some(Path::new("/x/crates/p")));
        assert_eq!(set("CARGO_MANIFEST_DIR").as_deref(), Some("/x/crates/p"));
        assert_eq!(
            (set("CARGO_PKG_NAME"), set("CARGO_PKG_VERSION")),
            (Some("p".to_owned()), Some("0.1.0".to_owned()))
        );
        assert_eq!(set("CARGO_PKG_DESCRIPTION"), None, "ours is not its");
    }

    /// A test file of the package `p`.
    fn file(name: &str, program: &str) -> IntegrationTest {
        let (name, program) = (name.to_owned(), program.to_owned());
        let package = PathBuf::from("/x/crates/p");
        let source = PathBuf::new();
        IntegrationTest { name, program, package, source, alone: false }
    }

    #[test]
    fn each_file_of_what_was_linked_together_runs_by_itself_and_with_its_own_tests_alone() {
        let mut programs = read(&message("test", "fast", true, "crates/q#p@0.2.0"));
        let names = ["waiting::a", "waiting_long::b", "leases::waiting::c", "waiting::deep::d"];
        programs[0].tests = names.map(str::to_owned).to_vec();
        let waiting = file("waiting", "fast");
        assert!(programs[0].has(&waiting) && !programs[0].has(&file("waiting", "waiting")));
        let job = programs[0].file(&waiting);
        assert_eq!(
            (job.name.as_str(), job.tests),
            ("p:waiting", Tests::Named(vec![names[0].into(), names[3].into()]))
        );
        programs[0].target = "own".to_owned();
        assert_eq!(
            programs[0].file(&file("own", "own")).tests.names(),
            names,
            "a program of its own"
        );
    }
}
