//! Recordings of processes that are killed, that reach a limit, or that fork.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::Kind;
use lockkeeper_lab::history::{Reader, Record, State, StopReason, What, Writer, WriterOptions};

use super::read_all;

/// Runs one of the `as_child_…` functions in a process of its own: this test binary again, told by
/// the environment.
fn child(test: &str, path: &Path) -> Command {
    // Without the program, of which this is a module.
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env("LAB_HISTORY_CHILD", path);
    command
}

fn child_path() -> Option<PathBuf> {
    std::env::var_os("LAB_HISTORY_CHILD").map(PathBuf::from)
}

#[test]
fn a_killed_process_loses_nothing() {
    if let Some(path) = child_path() {
        let writer =
            Writer::create(path, WriterOptions { step_bytes: 8192, ..WriterOptions::default() })
                .unwrap();
        for number in 0.. {
            writer.write_for(Kind::Lock, "n", Record::new(What::InLine).number(number));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let mut child = child("a_killed_process_loses_nothing", &path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let patience = Instant::now() + Duration::from_secs(120);
    let written = || std::fs::metadata(&path).map_or(0, |m| m.len());
    while written() < 100_000 && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let all = read_all(&path).unwrap();
    assert!(all.len() > 1_000, "{}", all.len());
    for (record, number) in all.iter().skip(1).zip(0..) {
        assert_eq!((record.what, record.number), (What::InLine, number));
    }
    assert_eq!(Reader::open(&path).unwrap().header().state, State::Open);
}

#[test]
fn at_the_file_size_limit_a_recording_stops_and_no_signal_ends_the_program() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Some(path) = child_path() {
        let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, 40_000, hard).unwrap();
        let options = WriterOptions { step_bytes: 16_384, ..WriterOptions::default() };
        let writer = Writer::create(&path, options).unwrap();
        for _ in 0..1_000 {
            writer.write(Record::new(What::Kill));
        }
        println!("went on after: {}", writer.stopped().unwrap());
        setrlimit(Resource::RLIMIT_FSIZE, 100, hard).unwrap();
        println!(
            "and: {}",
            Writer::create(path.with_file_name("never"), WriterOptions::default()).err().unwrap()
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let output =
        child("at_the_file_size_limit_a_recording_stops_and_no_signal_ends_the_program", &path)
            .output()
            .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(
        out.contains("went on after: history")
            && out.contains("ulimit -f")
            && out.contains("and: cannot start history"),
        "{out}"
    );
    assert!(
        err.contains("lockkeeper: history") && err.matches("recording stopped").count() == 1,
        "{err}"
    );
    assert_eq!(read_all(&path).unwrap().len(), 512);
    assert!(!path.with_file_name("never").exists());
}

#[test]
fn r15_a_fork_writes_nothing_into_its_parents_history() {
    if let Some(path) = child_path() {
        let writer = Writer::create(&path, WriterOptions::default()).unwrap();
        writer.write(Record::new(What::Kill).number(1));
        // SAFETY: the child only writes to the history, which takes no lock in a fork, and leaves
        // without unwinding.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => {
                writer.write(Record::new(What::Kill).number(2));
                let forked = writer.stopped().is_some_and(|s| s.reason == StopReason::Forked);
                let finished = writer.finish().is_ok_and(|s| s.records == 0);
                drop(writer);
                // SAFETY: ends the child at once, without the handlers of the test harness.
                unsafe { nix::libc::_exit(if forked && finished { 0 } else { 1 }) }
            }
            nix::unistd::ForkResult::Parent { child } => {
                let ended = nix::sys::wait::waitpid(child, None).unwrap();
                assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(child, 0));
            }
        }
        writer.write(Record::new(What::Kill).number(3));
        assert!(writer.stopped().is_none());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let status =
        child("r15_a_fork_writes_nothing_into_its_parents_history", &path).status().unwrap();
    assert!(status.success());
    assert_eq!(read_all(&path).unwrap().iter().map(|r| r.number).collect::<Vec<_>>(), [1, 3]);
}
