//! The test programs that cargo has built, as it would start them.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::Job;
use super::weights::weight;
use crate::closing;

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
    })
}

/// `…/folder#version`, or `…/folder#name@version` where the folder has another name.
fn package(id: &str) -> Option<[String; 2]> {
    let (url, last) = id.rsplit_once('#')?;
    let (name, version) = last.split_once('@').or_else(|| Some((url.rsplit_once('/')?.1, last)))?;
    Some([name.to_owned(), version.to_owned()])
}

impl Program {
    /// What it is called in what we print, without blanks.
    pub fn name(&self) -> String {
        match self.kind {
            Kind::Lib => format!("lib:{}", self.target),
            Kind::Bin => format!("bin:{}", self.target),
            Kind::Test => self.target.clone(),
        }
    }

    /// Its tests in whose names this stands.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn tests(&self, filter: &str) -> Result<Vec<String>, String> {
        let printed =
            Command::new(&self.path).args(["--list", "--format", "terse", filter]).output();
        let printed = printed.map_err(|error| format!("{}: {error}", self.path.display()))?;
        let text = String::from_utf8_lossy(&printed.stdout);
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    /// As a job: with the directory and the variables that cargo would give it, and our arguments.
    pub fn job(&self, alone: bool, arguments: &[&str]) -> Job {
        let name = self.name();
        let weight = weight(&name);
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
        let mut options = vec!["--color", closing::colour()];
        options.extend(arguments);
        let mut options: Vec<String> = options.into_iter().map(str::to_owned).collect();
        if let Some(threads) = weight.threads.filter(|_| !arguments.contains(&"--test-threads")) {
            options.extend(["--test-threads".to_owned(), threads.to_string()]);
        }
        Job { name, command, options, seconds: weight.seconds, alone, by_name: true }
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
        let names: Vec<String> = programs.iter().map(Program::name).collect();
        assert_eq!(names, ["lib:one", "bin:two", "three"]);
        assert_eq!(programs[0].package, ["p", "0.1.0"]);
        assert_eq!(programs[1].package, ["p", "0.2.0"]);
    }

    #[test]
    fn a_program_is_started_as_cargo_would() {
        let programs = read(&message("test", "three", true, "crates/p#0.1.0"));
        let job = programs[0].job(false, &["--nocapture"]);
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
        assert!(job.options.iter().any(|word| word == "--nocapture"));
    }
}
