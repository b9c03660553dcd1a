//! The small tasks: documentation, formatting, bench.

use std::process::Command;

use crate::project::{cargo, must};
use crate::{Outcome, drivers, known, width};

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

/// `cargo xtask bench [OPTIONS]`: `lockkeeper bench` from a release build; with `--peers`, other
/// libraries beside it.
pub fn bench(words: &[String]) -> Outcome {
    if let [peers, words @ ..] = words
        && peers == "--peers"
    {
        return drivers::bench(words);
    }
    must(cargo(&["run", "--release", "--package", "lockkeeper-cli", "--", "bench"]).args(words))
}
