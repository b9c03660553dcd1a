//! Where the project is, how its cargo is called, and what its manifests say.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Outcome;

/// A target directory of its own for release builds whose time is taken: the first build in it is
/// cold.
pub const COLD: &str = "target/cold";

/// The root of the workspace: the parent of this package.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or(here.clone(), Path::to_path_buf)
}

/// The cargo that runs us, in the root of the workspace. It hears nothing of what it told us about
/// our own package: the build script of `ring` looks at that, too, and whatever needs it would be
/// built again for each caller that was told something else.
pub fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (variable, _) in std::env::vars_os().filter(|(variable, _)| is_about_a_package(variable)) {
        command.env_remove(variable);
    }
    command.current_dir(root()).args(words);
    command
}

fn is_about_a_package(variable: &OsStr) -> bool {
    let name = variable.to_string_lossy();
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// Runs a command to its end; its output goes where ours goes.
pub fn must(command: &mut Command) -> Outcome {
    let status =
        command.status().map_err(|error| format!("cannot start {}: {error}", show(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", show(command))) }
}

/// Runs a command to its end and answers what it prints; what it says besides goes where ours goes.
pub fn read(command: &mut Command) -> Result<String, String> {
    let ended = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let ended = ended.map_err(|error| format!("cannot start {}: {error}", show(command)))?;
    if !ended.status.success() {
        return Err(format!("{} ended with {}", show(command), ended.status));
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// A command as a person would type it.
pub fn show(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// The features of the library, each of which must build alone.
pub fn library_features() -> Result<Vec<String>, String> {
    let path = root().join("crates/lockkeeper/Cargo.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(features_of(&text))
}

fn features_of(manifest: &str) -> Vec<String> {
    let table = manifest.lines().skip_while(|line| line.trim() != "[features]").skip(1);
    let rows = table.take_while(|line| !line.starts_with('['));
    let keys = rows.filter_map(|line| line.split_once('=')).map(|(key, _)| key.trim().to_owned());
    keys.filter(|key| !key.is_empty() && !key.starts_with('#')).collect()
}

/// Programs of a package of which each module is a test file that runs by itself: those of the
/// gate, and those of the campaign. Linked together, for linking each takes longer than to run it.
const LINKED: [&str; 2] = ["fast", "long"];

/// A file of integration tests of the workspace, or a folder of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IntegrationTest {
    /// What it is called; no other is.
    pub name: String,
    /// What `--test` takes: the same, or the program of which it is a module.
    pub program: String,
    /// The folder of its package.
    pub package: PathBuf,
    /// Where it begins.
    pub source: PathBuf,
    /// It measures, and says in its first lines that nothing may run beside it.
    pub alone: bool,
}

impl IntegrationTest {
    /// Whether the test of this whole name in its program is one of its own.
    pub fn owns(&self, test: &str) -> bool {
        let in_module =
            || test.strip_prefix(&*self.name).is_some_and(|rest| rest.starts_with("::"));
        self.program == self.name || in_module()
    }
}

/// The integration tests of the workspace, by name, the long ones too.
pub fn integration_tests() -> Result<Vec<IntegrationTest>, String> {
    let mut tests = Vec::new();
    for package in packages()? {
        let folder = package.join("tests");
        let mut files = Vec::new();
        for (name, source) in files_of(&folder, "main.rs") {
            if LINKED.contains(&&*name) {
                let modules = files_of(&folder.join(&name), "mod.rs").into_iter();
                let modules = modules.filter(|(module, _)| module != "main");
                files.extend(modules.map(|(module, source)| (module, name.clone(), source)));
            } else {
                files.push((name.clone(), name, source));
            }
        }
        for (name, program, source) in files {
            let text = fs::read_to_string(&source).unwrap_or_default();
            tests.push(IntegrationTest {
                name,
                program,
                package: package.clone(),
                source,
                alone: runs_alone(&text),
            });
        }
    }
    tests.sort();
    match twice(&tests) {
        Some(name) => Err(format!("two integration tests are called `{name}`: rename one")),
        None => Ok(tests),
    }
}

/// The names of the test files in a folder and where they begin: `NAME.rs`, or this file in `NAME`.
fn files_of(folder: &Path, first: &str) -> Vec<(String, PathBuf)> {
    let file = |entry: PathBuf| {
        let name = entry.file_stem()?.to_string_lossy().into_owned();
        let single = entry.extension().is_some_and(|extension| extension == "rs");
        let source = if single { entry } else { entry.join(first) };
        source.is_file().then_some((name, source))
    };
    read_dir(folder).into_iter().filter_map(file).collect()
}

/// The first name that two have; they are sorted. Who asks for one of them by its name means one.
fn twice(tests: &[IntegrationTest]) -> Option<&str> {
    tests.windows(2).find(|two| two[0].name == two[1].name).map(|two| two[0].name.as_str())
}

/// Whether the head of a test says that it runs alone, and why.
fn runs_alone(source: &str) -> bool {
    source
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .any(|line| line.starts_with("//! Runs alone: "))
}

/// The version of every package of the workspace.
///
/// # Errors
/// The manifest has none.
pub fn workspace_version() -> Result<String, String> {
    let path = root().join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let found = text.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    found.map(str::to_owned).ok_or_else(|| format!("{}: no version", path.display()))
}

/// Whether we are root.
pub fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

/// The folders of the packages of the workspace.
pub fn packages() -> Result<Vec<PathBuf>, String> {
    let mut found = read_dir(&root().join("crates"));
    found.push(root().join("xtask"));
    found.retain(|path| path.join("Cargo.toml").is_file());
    if found.len() < 2 { Err("no packages under crates/".to_owned()) } else { Ok(found) }
}

fn read_dir(path: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::NEEDS_ROOT;

    #[test]
    fn the_features_of_a_manifest_are_its_keys_without_comments() {
        let manifest = "[package]\nname = \"x\"\n[features]\ndefault = [\"a\"]\n# b = []\na = \
                        []\nc = [\"dep:c\"]\n\n[dependencies]\nd = \"1\"\n";
        assert_eq!(features_of(manifest), ["default", "a", "c"]);
    }

    #[test]
    fn cargo_hears_nothing_of_the_package_that_calls_it() {
        assert!(std::env::vars_os().any(|(variable, _)| is_about_a_package(&variable)));
        let cargo = cargo(&["build"]);
        let given: Vec<_> = cargo.get_envs().collect();
        for (variable, _) in std::env::vars_os().filter(|(v, _)| is_about_a_package(v)) {
            assert!(given.contains(&(&variable, None)), "{}", variable.display());
        }
    }

    #[test]
    fn every_file_that_does_what_only_root_may_has_tests_that_need_root() {
        for source in integration_tests().unwrap().into_iter().map(|test| test.source) {
            let text = fs::read_to_string(&source).unwrap();
            let does = ["\"unshare\"", "\"setpriv\"", "\"mount\"", "chown("]
                .into_iter()
                .find(|word| text.contains(word));
            assert!(
                does.is_none() || text.contains(NEEDS_ROOT),
                "{}: {does:?}, and nothing says that it needs root",
                source.display()
            );
        }
    }

    #[test]
    fn a_test_that_runs_alone_says_so_in_its_head() {
        assert!(runs_alone(
            "//! What waiting costs.\n//!\n//! Runs alone: it measures.\nuse std;\n"
        ));
        assert!(!runs_alone("//! What waiting costs.\nuse std;\n//! Runs alone: it measures.\n"));
    }

    #[test]
    fn two_tests_of_one_name_are_found() {
        let of = |name: &str| IntegrationTest {
            name: name.to_owned(),
            program: name.to_owned(),
            package: PathBuf::new(),
            source: PathBuf::new(),
            alone: name == "b",
        };
        assert_eq!(twice(&["a", "b", "c"].map(of)), None);
        let mut two = ["a", "b", "b"].map(of);
        two[2].alone = false;
        assert_eq!(twice(&two), Some("b"));
    }

    #[test]
    fn the_library_has_its_default_feature() {
        assert!(library_features().unwrap().iter().any(|feature| feature == "default"));
    }
}
