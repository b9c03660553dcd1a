use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use super::super::bytes::Span;
use super::super::dir::Directory;
use super::super::living;
use super::super::lockfile::{Key, LockFile};
use super::*;
use crate::words::claim::Holder;

/// Not a test of its own: what the other processes of the tests below do. Run as a test it has
/// nothing to do.
#[test]
fn helper() {
    let Ok(role) = std::env::var("LOCKKEEPER_TEST_ROLE") else { return };
    let dir = std::path::PathBuf::from(std::env::var("LOCKKEEPER_TEST_DIR").unwrap());
    let peer = Peer::new(&dir);
    match role.as_str() {
        "hold" => {
            let mode = std::env::var("LOCKKEEPER_TEST_MODE").unwrap();
            let mode = if mode == "permits" {
                Mode::Permits { count: 2, limit: 2 }
            } else {
                Mode::Exclusive
            };
            peer.get("x", mode);
            say("held");
            pause();
        }
        "hold and fork" => {
            let (hold, _) = peer.get("x", Mode::Exclusive);
            // SAFETY: the child calls the engine, which answers a fork before it takes a lock, and
            // then only waits.
            match unsafe { nix::unistd::fork() }.unwrap() {
                nix::unistd::ForkResult::Child => {
                    let refused = matches!(
                        peer.engine.attempt(&claim("y", Mode::Exclusive), Line::Try),
                        Answer::Now(Attempt::Failed(_))
                    );
                    let not_ours = matches!(peer.engine.0.release(hold), Answer::Now(End::NotOurs));
                    say(&format!("child {} {}", std::process::id(), refused && not_ours));
                    pause();
                }
                nix::unistd::ForkResult::Parent { .. } => pause(),
            }
        }
        "rest" => {
            say("resting");
            pause();
        }
        "count" => {
            let path = dir.join("counter");
            for _ in 0..100 {
                let ask = claim("x", Mode::Exclusive);
                match peer.attempt(&ask, Line::Join) {
                    Attempt::Granted(_) => {}
                    Attempt::InLine(_) => drop(peer.granted(ask.id)),
                    other => panic!("{other:?}"),
                }
                let count: u64 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
                std::fs::write(&path, (count + 1).to_string()).unwrap();
                peer.release(ask.id);
            }
        }
        other => panic!("{other}"),
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{line}").unwrap();
    out.flush().unwrap();
}

/// Until whoever started this process is gone or has seen enough.
fn pause() {
    let mut all = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut all);
}

fn start(dir: &Path, role: &str, mode: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "engine::file::tests::processes::helper", "--nocapture"])
        .env("LOCKKEEPER_TEST_ROLE", role)
        .env("LOCKKEEPER_TEST_DIR", dir)
        .env("LOCKKEEPER_TEST_MODE", mode)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads what the process says until a line starts so.
fn hear(child: &mut Child, start: &str) -> String {
    let mut out = BufReader::new(child.stdout.as_mut().unwrap());
    let mut line = String::new();
    while !line.starts_with(start) {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended before it said {start:?}");
    }
    line.trim().to_owned()
}

#[test]
fn the_lock_of_a_killed_holder_goes_to_the_next_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    for (mode_name, mode) in
        [("exclusive", Mode::Exclusive), ("permits", Mode::Permits { count: 1, limit: 2 })]
    {
        let kind = if mode.permits().is_some() { Kind::Semaphore } else { Kind::Lock };
        let mut holder = start(dir.path(), "hold", mode_name);
        hear(&mut holder, "held");
        assert_eq!(peer.entry(kind, "x").holders[0].pid, Some(holder.id()));
        let waiting = peer.stand("x", mode);
        peer.until_waiters(kind, "x", 1);
        holder.kill().unwrap();
        // The kernel grants it, or wakes who waits: nothing looks by itself here.
        peer.granted(waiting);
        holder.wait().unwrap();
        peer.release(waiting);
    }
}

#[test]
fn a_process_that_was_given_the_number_of_a_dead_holder_is_not_named_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    let (mut holder, mut other) =
        (start(dir.path(), "hold", "exclusive"), start(dir.path(), "rest", ""));
    hear(&mut holder, "held");
    hear(&mut other, "resting");
    let opened = Directory::open(dir.path(), false).unwrap();
    let file = LockFile::open_to_look(&opened, &Key::new(Kind::Lock, &Name::new("x").unwrap()))
        .unwrap()
        .unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
    let named = |span, pid, since| {
        living::named(
            &file,
            span,
            Holder { pid: Some(pid), since: Some(since), ..Holder::default() },
        )
        .pid
    };
    assert_eq!(
        named(Span::MAIN, other.id(), long_ago),
        Some(holder.id()),
        "it began after the record was written"
    );
    assert_eq!(
        named(Span::MAIN, holder.id(), long_ago),
        Some(holder.id()),
        "only the clock was set"
    );
    assert_eq!(
        named(Span::MAIN, other.id(), SystemTime::now()),
        Some(other.id()),
        "it may have written it"
    );
    // Nobody that can be seen has these bytes.
    assert_eq!(named(Span::waiter(7), other.id(), long_ago), None);
    assert_eq!(peer.entry(Kind::Lock, "x").holders[0].pid, Some(holder.id()));
    for child in [&mut holder, &mut other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn r15_f3_a_forked_child_keeps_no_lock_and_can_do_nothing_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    let mut holder = start(dir.path(), "hold and fork", "");
    let said = hear(&mut holder, "child");
    let child: i32 = said.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(said.ends_with("true"), "{said}");
    assert!(!peer.can_get("x", Mode::Exclusive), "the parent's lock is where it was");
    let waiting = peer.stand("x", Mode::Exclusive);
    holder.kill().unwrap();
    peer.granted(waiting);
    assert!(Path::new(&format!("/proc/{child}")).exists(), "while the child lives");
    drop(holder.stdin.take());
    holder.wait().unwrap();
}

#[test]
fn processes_that_count_under_the_lock_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("counter"), "0").unwrap();
    let children: Vec<_> = (0..4).map(|_| start(dir.path(), "count", "")).collect();
    for child in children {
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("counter")).unwrap(), "400");
}
