use std::fs;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::dir::Directory;
use super::super::lockfile::{Key, LockFile};
use super::*;
use crate::engine::file::direct::{Begin, Files, Held};

fn got(files: &Files, name: &str) -> Held {
    match files.begin(&claim(name, Mode::Exclusive), Line::Try) {
        Ok(Begin::Got(held)) => held,
        Ok(_) => panic!("{name} is not free"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_lock_is_got_released_and_got_again() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path(), false).unwrap();
    let held = got(&files, "x");
    let token = held.token().unwrap();
    assert!(held.verify().is_ok());
    let Ok(Begin::Busy(Some(holder))) = files.begin(&claim("x", Mode::Exclusive), Line::Try) else {
        panic!()
    };
    assert_eq!(holder.token, Some(token));
    held.release();
    assert!(got(&files, "x").token().unwrap() > token, "BROKEN LOCK: a token went back");
}

#[test]
fn a_wait_becomes_readable_when_it_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path(), false).unwrap();
    let held = got(&files, "x");
    let Ok(Begin::Waiting(pending)) = files.begin(&claim("x", Mode::Exclusive), Line::Join) else {
        panic!()
    };
    assert_eq!(
        pending.place().holder.as_ref().and_then(|holder| holder.pid),
        Some(std::process::id())
    );
    let readable = |ms: u16| {
        let mut fds = [PollFd::new(pending.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(ms)).unwrap() == 1
    };
    assert!(!readable(20));
    held.release();
    assert!(readable(20_000));
    assert!(pending.finish().unwrap().verify().is_ok());
    assert!(matches!(files.begin(&claim("x", Mode::Exclusive), Line::Try), Ok(Begin::Got(_))));
}

#[test]
fn a_cancelled_wait_leaves_nothing_behind_also_when_it_had_just_won() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path(), false).unwrap();
    for round in 0..300 {
        let held = got(&files, "x");
        let Ok(Begin::Waiting(pending)) = files.begin(&claim("x", Mode::Exclusive), Line::Join)
        else {
            panic!()
        };
        if round % 2 == 0 {
            held.release();
            pending.cancel();
        } else {
            pending.cancel();
            held.release();
        }
        until("it is free", || {
            matches!(files.begin(&claim("x", Mode::Exclusive), Line::Try), Ok(Begin::Got(_)))
        });
    }
}

#[test]
fn an_inherited_lock_lives_as_long_as_the_child() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path(), false).unwrap();
    let held = got(&files, "x");
    held.set_inherit(true).unwrap();
    let mut child =
        std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    held.release();
    assert!(matches!(files.begin(&claim("x", Mode::Exclusive), Line::Try), Ok(Begin::Busy(_))));
    drop(child.stdin.take());
    child.wait().unwrap();
    // A program that another test started meanwhile may have inherited it too, and keeps it until
    // its own end.
    until("it is free", || {
        matches!(files.begin(&claim("x", Mode::Exclusive), Line::Try), Ok(Begin::Got(_)))
    });
}

#[test]
fn f3_a_lock_that_is_not_passed_on_deliberately_is_not_inherited() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path(), false).unwrap();
    let held = got(&files, "x");
    let mut child =
        std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    held.release();
    got(&files, "x");
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(files.describe().server.contains("inode") && held_fd_is_open(&got(&files, "x")));
}

fn held_fd_is_open(held: &Held) -> bool {
    nix::sys::stat::fstat(held.fd().as_fd()).is_ok()
}

#[test]
fn the_file_of_a_name_of_our_own_goes_also_when_its_maker_was_killed_a_moment_ago() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path(), false).unwrap();
    let (path, name) = (dir.path().join("x.lock"), Name::new("x").unwrap());
    // Killed between the making of the file and its first byte, and behind that.
    let opened = Directory::open(dir.path(), false).unwrap();
    let empty = || drop(fs::File::create(&path).unwrap());
    let ready = || drop(LockFile::open(&opened, &Key::new(Kind::Lock, &name)).unwrap());
    for make in [&empty as &dyn Fn(), &ready] {
        make();
        assert!(files.remove_own(Kind::Lock, &name).unwrap());
        assert!(!path.exists());
    }
    let held = got(&files, "x");
    assert!(!files.remove_own(Kind::Lock, &name).unwrap(), "somebody uses it");
    held.release();
    assert!(files.remove_own(Kind::Lock, &name).unwrap());
}
