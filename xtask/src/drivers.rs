//! `cargo xtask interop`: the drivers of other libraries, side by side; and the peers of
//! `cargo xtask bench --peers`.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::packages::ensure;
use crate::project::{must, root};
use crate::sandbox::Sandbox;
use crate::stage::Workshop;
use crate::tools::{Need, needed};
use crate::{Outcome, interrupt, known};

/// How many run at a time: most of the time they wait. Their limits on wake-ups are too short for a
/// machine that is full.
const SEATS: usize = 2;
/// How often we look whether one has ended.
const TICK: Duration = Duration::from_millis(50);
/// How many rounds of short windows the peers are measured in, beside one that warms up.
const ROUNDS: &str = "15";
/// Where what they print is kept.
const LOGS: &str = "target/interop/logs";

/// `cargo xtask interop [--yes]`: every `interop/*/run`, each of which drives one other library.
pub fn interop(words: &[String]) -> Outcome {
    let yes = known(words, &["--yes"])?.contains(&true);
    ensure(&needed(&[Need::Test, Need::Interop]), yes)?;
    let watch = interrupt::Watch::new();
    let sandbox = Sandbox::new().map_err(|error| format!("no temporary directory: {error}"))?;
    let outcome = drive(&sandbox, &|| interrupt::caught().is_some());
    let signal = interrupt::caught();
    // A signal ends us without clearing up.
    drop((sandbox, watch));
    signal.map_or(outcome, |signal| Err(interrupt::end_by(signal)))
}

/// The same as a stage.
pub fn stage(workshop: &Workshop) -> Outcome {
    drive(&workshop.sandbox, &workshop.over())
}

/// Builds all of them first: what compiles beside a driver makes it late.
fn drive(sandbox: &Sandbox, over: &dyn Fn() -> bool) -> Outcome {
    let mut all = found(&root().join("interop"));
    if all.is_empty() {
        println!("there are no drivers under interop/");
        return Ok(());
    }
    // What takes longest to build comes first.
    all.insert(0, Driver { name: "peers".to_owned(), run: root().join(PEERS) });
    side_by_side(&all, &["build"], sandbox, over)?;
    let (peers, drivers) = all.split_at(1);
    let driven = side_by_side(drivers, &[], sandbox, over);
    // Alone: what measures keeps the processors busy.
    let measured = side_by_side(peers, &["brief"], sandbox, over);
    match (driven, measured) {
        (Err(one), Err(other)) => Err(format!("{one}\n{other}")),
        (one, other) => one.and(other),
    }
}

/// What builds, tries and measures the drivers under `interop/bench/`.
const PEERS: &str = "interop/bench/peers";

/// `cargo xtask bench --peers [--rounds N] [--on KIND]…`: peers on the same work, in turn with
/// ours.
pub fn bench(words: &[String]) -> Outcome {
    let (mut rounds, mut kinds) = (ROUNDS, Vec::new());
    for option in words.chunks(2) {
        match option {
            [word, n] if word == "--rounds" && n.parse().is_ok_and(|n: u32| n > 0) => rounds = n,
            [word, kind] if word == "--on" => kinds.push(kind),
            _ => return Err("bench --peers takes --rounds N and --on KIND, no other".to_owned()),
        }
    }
    ensure(&needed(&[Need::Test, Need::Interop]), false)?;
    let mut command = Command::new(root().join(PEERS));
    command.current_dir(root()).args(["figures", rounds]).args(kinds);
    must(command.env("PROFILE", "release"))
}

/// What is run for one other library. Outside of the sandbox, where what it fetches stays in the
/// user's caches; with its mark.
struct Driver {
    name: String,
    run: PathBuf,
}

fn found(folder: &Path) -> Vec<Driver> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let driver = |entry: fs::DirEntry| Driver {
        name: entry.file_name().to_string_lossy().into_owned(),
        run: entry.path().join("run"),
    };
    let mut drivers: Vec<Driver> = entries.map(driver).collect();
    drivers.retain(|driver| driver.run.is_file());
    drivers.sort_by(|one, other| one.name.cmp(&other.name));
    drivers
}

struct Running<'a> {
    driver: &'a Driver,
    child: Child,
    log: PathBuf,
    since: Instant,
}

impl<'a> Running<'a> {
    fn start(driver: &'a Driver, words: &[&str], sandbox: &Sandbox) -> Result<Self, String> {
        let fail = |error| format!("{}: {error}", driver.name);
        let logs = root().join(LOGS);
        fs::create_dir_all(&logs).map_err(fail)?;
        let log = logs.join(&driver.name);
        let out = File::create(&log).map_err(fail)?;
        let mut command = Command::new(&driver.run);
        command.args(words).current_dir(root()).stdin(Stdio::null());
        command.stderr(out.try_clone().map_err(fail)?).stdout(out);
        let child = sandbox.mark(&mut command).spawn().map_err(fail)?;
        Ok(Self { driver, child, log, since: Instant::now() })
    }

    /// `None` while it runs; then it prints what that printed.
    fn ended(&mut self, words: &[&str]) -> Option<Outcome> {
        let name = [&[&*self.driver.name], words].concat().join(" ");
        let status = match self.child.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => status,
            Err(error) => return Some(Err(format!("{name}: {error}"))),
        };
        let verdict = if status.success() { "ok" } else { "FAILED" };
        println!("\n--- {name}: {verdict} after {:.1} s", self.since.elapsed().as_secs_f64());
        let said = fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        print!("{said}");
        let why = || format!("{name} ended with {status}{}", last_word(&said));
        Some(if status.success() { Ok(()) } else { Err(why()) })
    }
}

/// The last line of what a program said, which is the reason where it failed.
fn last_word(said: &str) -> String {
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.map(|line| line.chars().take(200).collect::<String>())
        .map_or_else(String::new, |line| format!(": {line}"))
}

fn side_by_side(
    drivers: &[Driver],
    words: &[&str],
    sandbox: &Sandbox,
    over: &dyn Fn() -> bool,
) -> Outcome {
    let mut waiting: VecDeque<&Driver> = drivers.iter().collect();
    let (mut running, mut failed) = (Vec::<Running<'_>>::new(), Vec::new());
    while !(waiting.is_empty() && running.is_empty()) {
        if over() {
            sandbox.kill_all();
            for one in &mut running {
                _ = one.child.wait();
                failed.push(format!("did not end: {}", one.driver.name));
            }
            failed.extend(waiting.iter().map(|driver| format!("not run: {}", driver.name)));
            break;
        }
        while running.len() < SEATS
            && let Some(driver) = waiting.pop_front()
        {
            match Running::start(driver, words, sandbox) {
                Ok(one) => running.push(one),
                Err(message) => failed.push(message),
            }
        }
        running.retain_mut(|one| {
            let outcome = one.ended(words);
            let goes_on = outcome.is_none();
            failed.extend(outcome.and_then(Result::err));
            goes_on
        });
        thread::sleep(TICK);
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn driver(dir: &Path, name: &str, script: &str) {
        let folder = dir.join(name);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("run");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn every_driver_is_run_and_those_that_fail_or_do_not_end_are_named() {
        let sandbox = Sandbox::new().unwrap();
        let dir = sandbox.folder("drivers").unwrap();
        fs::create_dir_all(dir.join("no-driver")).unwrap();
        let place = dir.display();
        let meets = |other| {
            let script = "touch $PLACE/$NAME; until [ -e $PLACE/$OTHER ]; do sleep 0.01; done";
            format!("PLACE={place} NAME=$(basename $(dirname $0)) OTHER={other}; {script}")
        };
        driver(&dir, "test-one", &format!("{}; test \"$1\" = word", meets("test-two")));
        driver(&dir, "test-two", &meets("test-one"));
        driver(&dir, "test-zero", "echo said; echo why; echo; exit 3");
        let drivers = found(&dir);
        assert_eq!(drivers.len(), 3);
        let failed = side_by_side(&drivers, &["word"], &sandbox, &|| false).unwrap_err();
        assert_eq!(failed, "test-zero word ended with exit status: 3: why");
        driver(&dir, "test-three", "sleep 600");
        let drivers = found(&dir);
        let begun = Instant::now();
        let over = || begun.elapsed() > Duration::from_millis(300);
        let failed = side_by_side(&drivers[1..2], &[], &sandbox, &over).unwrap_err();
        assert_eq!(failed, "did not end: test-three");
        for name in ["test-one", "test-two", "test-zero", "test-three"] {
            fs::remove_file(root().join(LOGS).join(name)).unwrap();
        }
    }
}
