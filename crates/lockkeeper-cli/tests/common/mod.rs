//! What the tests of the program share: a place of their own, conditions to wait for, and a
//! terminal.
#![allow(dead_code, reason = "every test file uses a part of it")]

pub mod healthy;
pub mod lease;
pub mod struck;
pub mod terminal;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::{Kind, Mode};
use lockkeeper_lab::history::{LockId, Record, What, Writer, WriterOptions};

/// The program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// How long anything may take before a test fails; far more than it should.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The same for what is a great deal of work, or has limits of its own that add up to more.
pub const LONG_PATIENCE: Duration = Duration::from_secs(300);

/// Gives the command the signals that a shell's foreground command has: whoever started the tests
/// may ignore some, and what is ignored at the start stays ignored.
fn with_signals(command: &mut Command) {
    use nix::sys::signal::{SigHandler, Signal, signal};
    use std::os::unix::process::CommandExt as _;
    // SAFETY: between fork and exec only signal(2) is called, which is async-signal-safe; no
    // handler of ours is installed.
    unsafe {
        command.pre_exec(|| {
            for number in
                [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP, Signal::SIGTERM, Signal::SIGPIPE]
            {
                signal(number, SigHandler::SigDfl)?;
            }
            Ok(())
        });
    }
}

/// A directory with locks and a home of its own; nothing outside is read or written.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("home")).expect("a home");
        Self { dir }
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A path in it, as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("a UTF-8 path").to_owned()
    }

    /// A program that sees this place and nothing of the machine's configuration.
    pub fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        with_signals(&mut command);
        for (key, _) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("LOCKKEEPER_") || key == "XDG_STATE_HOME" {
                command.env_remove(key);
            }
        }
        command
            .env("HOME", self.path("home"))
            .env("LOCKKEEPER_DIR", self.path("locks"))
            .env("LK", PROGRAM);
        command
            .env_remove("SHELL")
            .env_remove("COLUMNS")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// lockkeeper with these arguments.
    pub fn lk<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.program(PROGRAM);
        command.args(args);
        command
    }

    /// A script that finds lockkeeper in `$LK`.
    pub fn sh(&self, script: &str) -> Command {
        let mut command = self.program("sh");
        command.args(["-c", script]);
        command
    }

    /// Runs lockkeeper to its end.
    pub fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Ran {
        finish(&mut self.lk(args))
    }

    /// What stands in a file, once it is there and not empty.
    pub fn read(&self, name: &str) -> String {
        let path = self.path(name);
        until(&format!("{name} is written"), || {
            std::fs::read_to_string(&path).ok().filter(|text| !text.is_empty())
        })
    }

    /// A background lockkeeper that holds `name`, running a command that ends when its stdin is
    /// closed.
    pub fn hold(&self, name: &str) -> Holder {
        self.hold_with(name, &[])
    }

    /// The same with options.
    pub fn hold_with(&self, name: &str, options: &[&str]) -> Holder {
        let mut command = self.lk(["run", name]);
        command
            .args(options)
            .args(["--", "sh", "-c", "echo held; cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = Reaped(command.spawn().expect("lockkeeper starts"));
        let mut line = String::new();
        let mut out = std::io::BufReader::new(child.0.stdout.take().expect("its stdout"));
        std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
        assert_eq!(line, "held\n");
        Holder { child }
    }
}

/// A lock that somebody holds.
pub struct Holder {
    pub child: Reaped,
}

impl Holder {
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Lets it end by itself.
    pub fn end(mut self) {
        drop(self.child.0.stdin.take());
        self.child.wait();
    }
}

/// How a program ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> Ran {
    finish_within(command, PATIENCE)
}

/// Runs lockkeeper on this engine to its end.
pub fn run(place: &Place, url: &str, args: &[&str]) -> Ran {
    finish(place.lk(args).env("LOCKKEEPER_URL", url))
}

/// A lock that somebody holds is shown and refused to others, until it is taken away from its
/// holder, who hears of it.
pub fn held_then_taken_away(place: &Place, url: &str) {
    let mut holder = place.lk(["acquire", "nightly", "--for", "60s", "--ttl", "30s"]);
    let mut holder = Reaped::spawn(holder.env("LOCKKEEPER_URL", url));
    let status = || json(&run(place, url, &["status", "nightly", "--json"]).out);
    until_true("it is held", || status()["holders"][0]["pid"] == holder.pid());
    assert_eq!(run(place, url, &["run", "-n", "nightly", "--", "true"]).code, 75);
    let listed = run(place, url, &["ls"]);
    assert!(listed.out.contains("nightly"), "{listed:?}");
    assert_eq!(run(place, url, &["release", "--force", "nightly"]).code, 0);
    until_true("it is free", || status()["holders"].as_array().unwrap().is_empty());
    assert_eq!(holder.wait(), 79, "it hears that it was taken away");
}

/// As [`finish`], with another patience.
pub fn finish_within(command: &mut Command, patience: Duration) -> Ran {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let pid = i32::try_from(child.id()).expect("a pid");
    let watchdog = Watchdog::new(pid, patience);
    let output = child.wait_with_output().expect("it ends");
    watchdog.off();
    ran(&output)
}

fn ran(output: &Output) -> Ran {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: code(output.status), out: text(&output.stdout), err: text(&output.stderr) }
}

/// An exit code; 1000 + N for a process that signal N killed, which a shell would show as 128 + N.
pub fn code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().unwrap_or_else(|| 1_000 + status.signal().unwrap_or(0))
}

/// Kills a process that does not end in time, so that the test fails instead of hanging.
struct Watchdog(std::sync::mpsc::Sender<()>);

impl Watchdog {
    fn new(pid: i32, patience: Duration) -> Self {
        let (off, on) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if on.recv_timeout(patience) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        });
        Self(off)
    }

    fn off(self) {
        _ = self.0.send(());
    }
}

/// A child that is gone when the test is.
pub struct Reaped(pub Child);

impl Reaped {
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().expect("it starts"))
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a pid")
    }

    /// Its code, once it has ended.
    pub fn wait(&mut self) -> i32 {
        self.wait_within(PATIENCE)
    }

    /// The same with another patience.
    pub fn wait_within(&mut self, patience: Duration) -> i32 {
        let child = &mut self.0;
        code(until_within(patience, "the process ends", || child.try_wait().expect("it is ours")))
    }

    /// Its code and what it said.
    pub fn output(self) -> Ran {
        self.output_within(PATIENCE)
    }

    /// The same with another patience.
    pub fn output_within(mut self, patience: Duration) -> Ran {
        let code = self.wait_within(patience);
        let said = |pipe: Option<&mut dyn std::io::Read>| {
            let mut text = Vec::new();
            if let Some(pipe) = pipe {
                pipe.read_to_end(&mut text).expect("its output");
            }
            String::from_utf8_lossy(&text).into_owned()
        };
        let out = said(self.0.stdout.as_mut().map(|p| p as _));
        let err = said(self.0.stderr.as_mut().map(|p| p as _));
        Ran { code, out, err }
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        kill(self.pid(), signal);
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

pub fn kill(pid: i32, signal: nix::sys::signal::Signal) {
    _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// Waits until something is there.
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, look)
}

/// The same with another patience.
pub fn until_within<T>(patience: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < patience, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until something is so.
pub fn until_true(what: &str, mut look: impl FnMut() -> bool) {
    until(what, || look().then_some(()));
}

/// The letter that /proc gives a process's state; `None` when it is gone or only a zombie.
pub fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.get(stat.rfind(')')? + 2..)?.chars().next().filter(|state| !matches!(state, 'Z' | 'X'))
}

/// Whether a process runs.
pub fn is_alive(pid: i32) -> bool {
    state(pid).is_some()
}

/// The processes that a process has started, whichever of its threads did.
pub fn children(pid: i32) -> Vec<i32> {
    let of = |thread: &String| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).unwrap_or_default()
    };
    threads(pid)
        .iter()
        .map(of)
        .flat_map(|all| all.split_whitespace().map(number).collect::<Vec<_>>())
        .collect()
}

/// The numbers of a process's threads.
pub fn threads(pid: i32) -> Vec<String> {
    let all = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    all.map(|thread| thread.file_name().to_string_lossy().into_owned()).collect()
}

/// A process's group.
pub fn group(pid: i32) -> i32 {
    nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(pid))).expect("it is alive").as_raw()
}

/// A number in a file.
pub fn number(text: &str) -> i32 {
    text.trim().parse().unwrap_or_else(|_| panic!("no number: {text:?}"))
}

/// A history that `check` can judge.
pub fn history(path: &Path) {
    let writer = Writer::create(path, WriterOptions::default()).unwrap();
    for what in [What::AcquireCalled, What::Acquired, What::ReleaseCalled, What::Released] {
        writer.write_for(
            Kind::Lock,
            "a",
            Record::about(what, LockId::NONE, 1).mode(Mode::Exclusive).token(1),
        );
    }
    writer.finish().unwrap();
}

/// One line of JSON.
pub fn json(line: &str) -> serde_json::Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("no JSON ({e}): {line:?}"))
}

/// Removes a file when dropped.
pub fn absent(path: &Path) -> bool {
    !path.exists()
}
