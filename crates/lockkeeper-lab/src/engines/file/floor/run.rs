//! How long `lockkeeper run NAME -- true` takes, beside `flock FILE true`.

use std::process::{Command, Stdio};

use crate::bench::measure::{Row, pairs};
use crate::bench::{Subject, directory, text, this_program};

/// With a child, and without.
pub(crate) fn run(subject: &Subject) -> Result<Vec<Row>, String> {
    let program = this_program()?;
    let dir = subject.file("run");
    directory(&dir)?;
    let file = subject.file("flock");
    let flock_runs = |options: &[&str]| {
        let mut command = Command::new("flock");
        command.args(options).arg(&file).arg("true");
        finish(command)
    };
    let ours_runs = |options: &[&str]| {
        let mut command = Command::new(&program);
        command
            .arg("run")
            .args(options)
            .args(["bench", "--", "true"])
            .env("LOCKKEEPER_DIR", &dir)
            .env_remove("LOCKKEEPER_URL")
            .env(crate::bench::INSIDE, "1");
        finish(command)
    };
    let mut rows = Vec::new();
    for (options, target, floor) in
        [(&[][..], "≤ 1.5", "flock FILE true"), (&["-F"][..], "≤ 1.2", "flock -F FILE true")]
    {
        let ours = |batch| (0..batch).try_for_each(|_| ours_runs(options));
        let theirs = |batch| (0..batch).try_for_each(|_| flock_runs(options));
        rows.push(
            subject
                .row("run", 1)
                .measured(&pairs(subject.time / 2, 4, ours, theirs)?)
                .beside(floor, target),
        );
    }
    Ok(rows)
}

fn finish(mut command: Command) -> Result<(), String> {
    let ended = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(text)?;
    if ended.success() {
        Ok(())
    } else {
        Err(format!("{:?} ended with {ended}", command.get_program()))
    }
}
