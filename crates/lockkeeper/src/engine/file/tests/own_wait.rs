//! A thread that waits for one lock, and as long as it takes, sleeps in the kernel itself.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};

use super::*;
use crate::primitives::blocking::Locks;
use crate::{Error, ErrorKind};

/// A thread of ours that waits for `x`.
struct Waiter {
    tid: libc::pid_t,
    outcome: Receiver<Result<(), Error>>,
    thread: std::thread::JoinHandle<()>,
}

fn open(dir: &Path) -> Locks {
    Locks::open(&crate::open::config::file_url(dir)).unwrap()
}

fn mask() -> SigSet {
    let mut mask = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, None, Some(&mut mask)).unwrap();
    mask
}

impl Waiter {
    /// Begins to wait; `first` is done in its thread before.
    fn start(locks: &Locks, first: impl FnOnce() + Send + 'static) -> Self {
        let mutex = locks.mutex("x");
        let ((tell, outcome), (says, heard)) = (channel(), channel());
        let thread = std::thread::spawn(move || {
            first();
            let before = mask();
            // SAFETY: it has no preconditions.
            says.send(unsafe { libc::gettid() }).unwrap();
            let outcome = mutex.lock().run().map(drop);
            assert_eq!(mask(), before, "the signals that it blocks stay as they were");
            drop(tell.send(outcome));
        });
        Self { tid: heard.recv_timeout(PATIENCE).unwrap(), outcome, thread }
    }

    /// Whether it blocks in a call for a lock.
    fn is_in_the_kernel(&self) -> bool {
        blocks_in(&PathBuf::from(format!("/proc/self/task/{}", self.tid)))
    }

    /// The realtime signal that it does not block.
    fn lets_through(&self) -> libc::c_int {
        let status = format!("/proc/self/task/{}/status", self.tid);
        let status = std::fs::read_to_string(status).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
        let mut all = libc::SIGRTMIN()..=libc::SIGRTMAX();
        all.find(|signal| blocked >> (signal - 1) & 1 == 0).unwrap()
    }

    fn ends(self) -> Result<(), Error> {
        let outcome = self.outcome.recv_timeout(PATIENCE).expect("it ends");
        self.thread.join().unwrap();
        outcome
    }
}

/// Whether a thread, named by its folder, blocks in a call for a lock.
fn blocks_in(task: &Path) -> bool {
    let call = std::fs::read_to_string(task.join("syscall"));
    call.is_ok_and(|call| call.split(' ').next() == Some(&libc::SYS_fcntl.to_string()))
}

/// Whether a thread that the engine has made blocks in a call for a lock.
fn a_thread_of_ours_is_in_the_kernel() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut tasks = tasks.map(|task| task.path());
    tasks.any(|task| {
        let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        name.starts_with("lockkeeper-wait") && blocks_in(&task)
    })
}

/// Runs a test of this file in a process of its own; whether this is that process.
fn is_alone(test: &str) -> bool {
    if std::env::var("LOCKKEEPER_TEST_ROLE").is_ok_and(|role| role == test) {
        return true;
    }
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", &format!("engine::file::tests::own_wait::{test}")]);
    assert!(program.env("LOCKKEEPER_TEST_ROLE", test).status().unwrap().success());
    false
}

extern "C" fn theirs(_: libc::c_int) {}

/// The program handles a signal itself, and restarts what it interrupts.
fn take(signal: libc::c_int, handler: libc::sighandler_t) {
    // SAFETY: the handler does nothing.
    assert_ne!(unsafe { libc::signal(signal, handler) }, libc::SIG_ERR);
}

#[test]
fn who_may_give_up_leaves_the_wait_to_a_thread_of_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let mutex = open(dir.path()).as_async().mutex("x");
    assert!(mutex.lock().here().plan.request.here);
    assert!(!mutex.lock().timeout(PATIENCE).here().plan.request.here);
    assert!(!mutex.lock().unreachable_after(PATIENCE).here().plan.request.here);
}

#[test]
fn r5_closing_ends_a_wait_whose_signal_the_program_took_or_gave_back_meanwhile() {
    if !is_alone("r5_closing_ends_a_wait_whose_signal_the_program_took_or_gave_back_meanwhile") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let holder = Peer::new(dir.path());
    let (hold, _) = holder.get("x", Mode::Exclusive);
    let handled = theirs as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for handler in [handled, libc::SIG_DFL, libc::SIG_IGN] {
        let locks = open(dir.path());
        let waiter = Waiter::start(&locks, || SigSet::all().thread_block().unwrap());
        until("it sleeps in the kernel", || waiter.is_in_the_kernel());
        holder.until_waiters(Kind::Lock, "x", 1);
        take(waiter.lets_through(), handler);
        assert!(locks.close().unknown.is_empty());
        assert_eq!(waiter.ends().unwrap_err().kind(), ErrorKind::Closed);
    }
    holder.release(hold);
    assert!(holder.can_get("x", Mode::Exclusive), "nothing of them is left");
}

#[test]
fn a_thread_that_no_signal_could_call_back_is_not_let_into_the_kernel() {
    if !is_alone("a_thread_that_no_signal_could_call_back_is_not_let_into_the_kernel") {
        return;
    }
    for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        take(signal, theirs as extern "C" fn(libc::c_int) as libc::sighandler_t);
    }
    let dir = tempfile::tempdir().unwrap();
    let (holder, locks) = (Peer::new(dir.path()), open(dir.path()));
    let (hold, _) = holder.get("x", Mode::Exclusive);
    let waiter = Waiter::start(&locks, || ());
    until("another thread sleeps there for it", a_thread_of_ours_is_in_the_kernel);
    assert!(!waiter.is_in_the_kernel());
    holder.release(hold);
    waiter.ends().unwrap();
}

#[test]
fn a_thread_that_does_not_give_up_waits_in_the_kernel_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (holder, locks) = (Peer::new(dir.path()), open(dir.path()));
    let (hold, _) = holder.get("x", Mode::Exclusive);
    let waiter = Waiter::start(&locks, || ());
    until("it sleeps in the kernel", || waiter.is_in_the_kernel());
    holder.until_waiters(Kind::Lock, "x", 1);
    // Others of this process stand behind it in memory, and are handed the hold.
    let behind = Waiter::start(&locks, || ());
    holder.release(hold);
    waiter.ends().unwrap();
    behind.ends().unwrap();
    assert!(holder.can_get("x", Mode::Exclusive));
}

#[test]
fn r5_closing_ends_the_wait_of_a_thread_that_blocks_all_signals() {
    let dir = tempfile::tempdir().unwrap();
    let (holder, locks) = (Peer::new(dir.path()), open(dir.path()));
    let (hold, _) = holder.get("x", Mode::Exclusive);
    let waiter = Waiter::start(&locks, || SigSet::all().thread_block().unwrap());
    until("it sleeps in the kernel", || waiter.is_in_the_kernel());
    assert!(locks.close().unknown.is_empty());
    assert_eq!(waiter.ends().unwrap_err().kind(), ErrorKind::Closed);
    holder.release(hold);
    assert!(holder.can_get("x", Mode::Exclusive), "nothing of it is left");
}
