//! A thread that waits for one lock, and as long as it takes, sleeps in the kernel itself.

use std::path::Path;
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
        let call = std::fs::read_to_string(format!("/proc/self/task/{}/syscall", self.tid));
        call.is_ok_and(|call| call.split(' ').next() == Some(&libc::SYS_fcntl.to_string()))
    }

    fn ends(self) -> Result<(), Error> {
        let outcome = self.outcome.recv_timeout(PATIENCE).expect("it ends");
        self.thread.join().unwrap();
        outcome
    }
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
