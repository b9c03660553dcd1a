//! A wait that blocks in the kernel, and how it is called off.
//!
//! A signal alone cannot do that: one that arrives just before the call is lost. So the descriptor
//! is exchanged first, under the waiting thread, for one on which no lock can be had (the
//! directory, opened with `O_PATH`): a call that has not begun fails at once, and one that has is
//! ended by the signal. If the lock had just been won, it is gone with the open file description.
//! One signal is enough, and it says nothing itself.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::libc;
use nix::sys::eventfd::EventFd;

use super::bytes::{Grip, Span};
use super::dir::{Anchor, Directory};
use super::fork::Descriptor;
use super::lockfile::{self, Key, LockFile};
use super::permit_wait::Doze;
use super::recipe::Event;
use super::wire::{self, Waited};

/// One wait of one claim.
pub(super) struct Wait {
    state: Mutex<State>,
    /// What is put in the place of a descriptor under a call.
    anchor: Arc<Anchor>,
}

struct State {
    called_off: bool,
    look_again: bool,
    /// The one that its thread lets through.
    signal: Option<libc::c_int>,
    blocked: Option<Blocked>,
    /// The descriptor that was exchanged under the waiting thread, for undoing what it had.
    rescued: Option<Descriptor>,
}

/// Where the waiting thread is blocked. It leaves by taking this away under the lock, so while it
/// stands here the thread lives and the descriptor is its own.
enum Blocked {
    Locking {
        thread: Thread,
        fd: RawFd,
        /// The one that this thread lets through.
        signal: Option<libc::c_int>,
    },
    Dozing(Arc<EventFd>),
}

/// A thread that a signal can be sent to. Some C libraries name it by a pointer.
#[derive(Clone, Copy)]
struct Thread(libc::pthread_t);

// SAFETY: the name of a thread means the same in every thread of the process.
unsafe impl Send for Thread {}

impl Wait {
    pub(super) fn new(anchor: Arc<Anchor>) -> Self {
        Self {
            state: Mutex::new(State {
                called_off: false,
                look_again: false,
                signal: None,
                blocked: None,
                rescued: None,
            }),
            anchor,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the signal that ends a wait of this thread, and lets it through until the answer is
    /// dropped.
    pub(super) fn let_through(&self) -> LetThrough {
        let signal = signal();
        self.state().signal = signal;
        let was_blocked = signal.is_some_and(|signal| mask(libc::SIG_UNBLOCK, signal));
        LetThrough { signal, was_blocked }
    }

    /// Blocks until the range is locked, or the wait is called off. The thread lets the signal
    /// through.
    pub(super) fn lock(&self, file: &LockFile, span: Span, grip: Grip) -> Result<Event, Errno> {
        loop {
            {
                let mut state = self.state();
                if state.called_off {
                    return Ok(Event::Stopped);
                }
                // SAFETY: always successful, and has no preconditions.
                let thread = Thread(unsafe { libc::pthread_self() });
                let (fd, signal) = (file.as_fd().as_raw_fd(), state.signal);
                state.blocked = Some(Blocked::Locking { thread, fd, signal });
            }
            let waited = wire::wait_lock(file, span, grip);
            let mut state = self.state();
            state.blocked = None;
            if state.called_off {
                return Ok(Event::Stopped);
            }
            if std::mem::take(&mut state.look_again) {
                return Ok(Event::Replaced);
            }
            match waited? {
                Waited::Locked => return Ok(Event::Yes),
                // A signal of somebody else's.
                Waited::Interrupted => {}
            }
        }
    }

    /// Dozes until it is worth looking for a permit again, or the wait is called off.
    pub(super) fn doze(&self, doze: &mut Doze) -> Result<Event, Errno> {
        {
            let mut state = self.state();
            if state.called_off {
                return Ok(Event::Stopped);
            }
            state.blocked = Some(Blocked::Dozing(doze.bell()));
        }
        let dozed = doze.doze();
        let mut state = self.state();
        state.blocked = None;
        if state.called_off {
            return Ok(Event::Stopped);
        }
        // A file that was replaced is seen by the check that comes next.
        state.look_again = false;
        dozed.map(|()| Event::Yes)
    }

    /// Calls the wait off. It may just have been won: who owns the wait decides that under a lock
    /// of its own.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.called_off = true;
        self.rouse(&mut state);
    }

    /// Makes the waiting thread open the path again if its file was replaced. Who waits for the
    /// right one keeps its place, and so does who waits for one of which the system does not tell.
    pub(super) fn look_again(&self, dir: &Directory, key: &Key) -> Result<(), Errno> {
        let mut state = self.state();
        let replaced = match state.blocked {
            Some(Blocked::Locking { fd, .. }) => {
                // SAFETY: it belongs to the waiting thread, which cannot close it before it gets
                // the state's lock.
                let waits_on = unsafe { BorrowedFd::borrow_raw(fd) };
                !lockfile::leads_to(dir, key, waits_on)?
            }
            // It looks by itself when it is woken, and loses nothing by that.
            Some(Blocked::Dozing(_)) => true,
            None => false,
        };
        if replaced {
            state.look_again = true;
            self.rouse(&mut state);
        }
        Ok(())
    }

    /// What was exchanged under the wait.
    pub(super) fn take_rescued(&self) -> Option<Descriptor> {
        self.state().rescued.take()
    }

    /// Whether it was called off.
    pub(super) fn is_called_off(&self) -> bool {
        self.state().called_off
    }

    fn rouse(&self, state: &mut State) {
        match state.blocked {
            Some(Blocked::Locking { thread, fd, signal }) => {
                // Closing would free the locks too, but not while a child of another thread's,
                // caught between fork and exec, has a copy; so they are unlocked, through this one.
                // Without room for it closing must do.
                // SAFETY: `fd` is open: see below.
                let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
                state.rescued = copy.ok().map(Descriptor::new);
                // SAFETY: `fd` belongs to the waiting thread, which cannot close it before it gets
                // the state's lock; the thread lives for the same reason. Exchanging the descriptor
                // is what this is for.
                unsafe {
                    libc::dup3(self.anchor.as_fd().as_raw_fd(), fd, libc::O_CLOEXEC);
                    if let Some(signal) = signal.filter(|signal| ends_calls(*signal)) {
                        libc::pthread_kill(thread.0, signal);
                    }
                }
            }
            Some(Blocked::Dozing(ref bell)) => {
                // Full means rung already.
                let _ = bell.write(1);
            }
            None => {}
        }
    }
}

extern "C" fn nothing(_: libc::c_int) {}

/// The signal that ends a blocking call: a realtime signal that nobody else handles. Chosen again
/// when somebody took it.
fn signal() -> Option<libc::c_int> {
    static CHOSEN: AtomicI32 = AtomicI32::new(0);
    static CHOOSING: Mutex<()> = Mutex::new(());
    let ours = |signal| handler_of(signal) == Some(nothing as extern "C" fn(libc::c_int) as usize);
    let chosen = CHOSEN.load(Ordering::Acquire);
    if chosen != 0 && ours(chosen) {
        return Some(chosen);
    }
    let _one_at_a_time = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
    let chosen = CHOSEN.load(Ordering::Acquire);
    if chosen != 0 && ours(chosen) {
        return Some(chosen);
    }
    let free = (libc::SIGRTMIN()..=libc::SIGRTMAX())
        .rev()
        .find(|signal| handler_of(*signal) == Some(libc::SIG_DFL))?;
    if !handle(free) {
        return None;
    }
    CHOSEN.store(free, Ordering::Release);
    Some(free)
}

/// Installs the handler; answers whether it is there.
fn handle(signal: libc::c_int) -> bool {
    // SAFETY: a zeroed sigaction is valid; the handler does nothing, and without SA_RESTART the
    // call it interrupts ends.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, std::ptr::null_mut()) == 0
    }
}

/// Whether a signal that was chosen for a wait ends its call. A handler that the program has
/// installed since does so, too: where it restarts calls, this one fails on the descriptor that was
/// exchanged. Where it has removed ours, that is put back: the default ends the program.
fn ends_calls(signal: libc::c_int) -> bool {
    match handler_of(signal) {
        Some(libc::SIG_DFL | libc::SIG_IGN) => handle(signal),
        handler => handler.is_some(),
    }
}

/// Whether a wait can be called off: a program may have taken every signal.
pub(super) fn can_be_called_off() -> bool {
    signal().is_some()
}

fn handler_of(signal: libc::c_int) -> Option<usize> {
    // SAFETY: a zeroed sigaction is valid, and asking changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0)
            .then_some(action.sa_sigaction)
    }
}

/// See [`Wait::let_through`].
pub(super) struct LetThrough {
    signal: Option<libc::c_int>,
    was_blocked: bool,
}

impl Drop for LetThrough {
    fn drop(&mut self) {
        if let Some(signal) = self.signal.filter(|_| self.was_blocked) {
            mask(libc::SIG_BLOCK, signal);
        }
    }
}

/// Changes whether this thread blocks a signal; answers whether it did.
fn mask(how: libc::c_int, signal: libc::c_int) -> bool {
    // SAFETY: both sets are initialised before anything reads them, and only this thread's mask
    // changes.
    unsafe {
        let (mut set, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(how, &raw const set, &raw mut before);
        libc::sigismember(&raw const before, signal) == 1
    }
}

/// Prepares a thread that waits: the program's own handlers must not run on its small stack. A wait
/// lets its own signal through.
pub(super) fn prepare_thread() {
    // SAFETY: the set is initialised by sigfillset before anything reads it, and only this thread's
    // mask changes.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}
