//! Builds an older release, beside which this one is tried. The stage that tries it builds it, too:
//! that takes less than a minute, and a failure has one place.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Outcome;
use crate::project::{cargo, root};
use crate::stage::Workshop;

/// Stands in for the last release until there is a tag: the first commit with the engines of today.
const STAND_IN: &str = "13b3726236b13988f711ab86138678d090317eac";
/// Where it is built.
const FOLDER: &str = "target/older";

/// The last tag, else the commit that stands in for it.
///
/// # Errors
/// There was a release, and this clone has no tag of it.
fn older() -> Result<String, String> {
    let mut git = Command::new("git");
    // Of what came before: on the tagged commit, too, the one before it.
    git.args(["describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"]);
    let tag = git.current_dir(root()).stdin(Stdio::null()).stderr(Stdio::null()).output();
    if let Some(out) = tag.ok().filter(|out| out.status.success()) {
        return Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned());
    }
    let path = root().join("CHANGELOG.md");
    let log = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    match earlier_release(&log) {
        Some(release) => {
            Err(format!("CHANGELOG.md has `{release}`, and this clone no tag: `git fetch --tags`"))
        }
        None => Ok(STAND_IN.to_owned()),
    }
}

/// The newest release below the topmost heading, which is the one that is being made.
fn earlier_release(log: &str) -> Option<&str> {
    let mut headings = log.lines().filter_map(|line| line.strip_prefix("## "));
    headings.nth(1)
}

/// The program of the last release, built without optimisation.
///
/// # Errors
/// The clone does not have that commit, or it does not build.
pub fn program(workshop: &Workshop) -> Result<PathBuf, String> {
    let older = older()?;
    // Each in a folder of its own: cargo goes by the times of files.
    let folder = root().join(FOLDER).join(&older);
    println!("the older release is {older}");
    let sources = folder.join("src");
    if sources.exists() {
        fs::remove_dir_all(&sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    }
    fs::create_dir_all(&sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    let archive = folder.join("src.tar");
    unpack(&older, &archive, &sources)?;
    let mut build = cargo(&["build", "--locked", "--package", "lockkeeper-cli"]);
    // Backtraces are of no use here.
    build.current_dir(&sources).env("CARGO_PROFILE_DEV_DEBUG", "false");
    workshop.build(build.arg("--target-dir").arg(folder.join("target")))?;
    Ok(folder.join("target/debug/lockkeeper"))
}

fn unpack(commit: &str, archive: &PathBuf, to: &PathBuf) -> Outcome {
    let mut git = Command::new("git");
    git.args(["archive", "--format=tar", "--output"]).arg(archive).arg(commit);
    crate::project::must(git.current_dir(root())).map_err(|error| {
        format!("{error}: this clone does not have {commit}; a shallow clone needs `git fetch`")
    })?;
    crate::project::must(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_without_tags_is_told_apart_from_a_project_without_releases() {
        assert_eq!(earlier_release("# Changelog\n\n## Unreleased\n\n- x\n"), None);
        assert_eq!(earlier_release("# Changelog\n\n## 0.1.0, 2027-01-02\n"), None);
        let second = "# Changelog\n\n## Unreleased\n\n## 0.1.0, 2027-01-02\n";
        assert_eq!(earlier_release(second), Some("0.1.0, 2027-01-02"));
    }
}
