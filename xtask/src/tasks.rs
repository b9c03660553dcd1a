//! The small tasks: documentation, distribution, bench, interop.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::packages::ensure;
use crate::project::{cargo, must, root};
use crate::stage::Workshop;
use crate::tools::{Need, needed};
use crate::{Outcome, known, width};

/// The command that documents the workspace, warnings denied.
pub fn document() -> Command {
    // Libraries only: the binary has the name of the library, and one would overwrite the other.
    let mut command = cargo(&["doc", "--workspace", "--lib", "--all-features", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// `cargo xtask docs [--open]`
pub fn docs(words: &[String]) -> Outcome {
    let mut command = document();
    if known(words, &["--open"])?.contains(&true) {
        command.arg("--open");
    }
    must(&mut command)
}

/// `cargo xtask fmt`: what the stage `fmt` checks.
pub fn fmt(words: &[String]) -> Outcome {
    known(words, &[])?;
    must(&mut cargo(&["fmt", "--all", "--check"]))?;
    width::check()
}

/// `cargo xtask bench [OPTIONS]`: `lockkeeper bench` from a release build.
pub fn bench(words: &[String]) -> Outcome {
    must(cargo(&["run", "--release", "--package", "lockkeeper-cli", "--", "bench"]).args(words))
}

/// `cargo xtask dist`: the binary, its completions and its man page, in target/dist.
pub fn dist(words: &[String]) -> Outcome {
    known(words, &[])?;
    let place = root().join("target/dist");
    fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    must(&mut cargo(&["build", "--release", "--locked", "--package", "lockkeeper-cli"]))?;
    let binary = root().join("target/release/lockkeeper");
    copy(&binary, &place.join("lockkeeper"))?;
    for (words, file) in [
        (["completions", "bash"].as_slice(), "lockkeeper.bash"),
        (&["completions", "zsh"], "_lockkeeper"),
        (&["completions", "fish"], "lockkeeper.fish"),
        (&["man"], "lockkeeper.1"),
    ] {
        let out = Command::new(&binary)
            .args(words)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        if !out.status.success() || out.stdout.is_empty() {
            return Err(format!(
                "lockkeeper {} ended with {}: {}",
                words.join(" "),
                out.status,
                String::from_utf8_lossy(&out.stderr)
            ));
        }
        fs::write(place.join(file), out.stdout).map_err(|error| format!("{file}: {error}"))?;
    }
    for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md"] {
        copy(&root().join(file), &place.join(file))?;
    }
    println!("in {}:", place.display());
    let mut names: Vec<String> = fs::read_dir(&place)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    println!("  {}", names.join("\n  "));
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Outcome {
    fs::copy(from, to).map(|_| ()).map_err(|error| format!("{}: {error}", from.display()))
}

/// `cargo xtask interop [--yes]`: every `interop/*/run`, each of which builds what it needs and
/// drives one other library.
pub fn interop(words: &[String]) -> Outcome {
    let yes = known(words, &["--yes"])?.contains(&true);
    ensure(&needed(&[Need::Test, Need::Interop]), yes)?;
    each_driver(must)
}

/// The same as a stage.
pub fn drive_others(workshop: &Workshop) -> Outcome {
    // Outside of the sandbox: what the drivers fetch stays in the user's caches.
    each_driver(|command| workshop.build(command))
}

fn each_driver(run: impl Fn(&mut Command) -> Outcome) -> Outcome {
    let entries = fs::read_dir(root().join("interop")).into_iter().flatten().flatten();
    let mut drivers: Vec<_> = entries.map(|entry| entry.path().join("run")).collect();
    drivers.retain(|path| path.is_file());
    drivers.sort();
    if drivers.is_empty() {
        println!("there are no drivers under interop/");
        return Ok(());
    }
    let mut failed = Vec::new();
    for driver in &drivers {
        println!("\n=== {}", driver.display());
        let mut command = Command::new(driver);
        command.current_dir(root()).stdin(Stdio::null());
        if let Err(message) = run(&mut command) {
            failed.push(message);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}
