//! Signals as a descriptor to wait on, and the way back to how they were.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::group;

/// What ends a wait, and is passed on to a command.
pub const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
/// What is only passed on.
const PASSED_ON: [Signal; 4] =
    [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGCONT, Signal::SIGWINCH];

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    /// Which.
    pub signal: Signal,
    /// From the terminal's keyboard, so that everybody in the foreground group got it too.
    pub keyboard: bool,
}

/// The signals that we take over.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    taken: SigSet,
    before: Before,
}

/// How signals were when we started; what a command must find.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    mask: SigSet,
    pipe: libc::sighandler_t,
    child: libc::sighandler_t,
}

impl Signals {
    /// Takes over what ends a wait. To be called before any thread starts, because threads inherit
    /// what is blocked.
    ///
    /// What was ignored when we started stays ignored (nohup; INT in a script's background job).
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn take() -> io::Result<Self> {
        // A reader of our stderr that went away must not end the one who looks after the command.
        let pipe = set_disposition(Signal::SIGPIPE, libc::SIG_IGN);
        // With SIGCHLD ignored a command's end could not be waited for.
        let child = set_disposition(Signal::SIGCHLD, libc::SIG_DFL);
        let mut taken: SigSet = ENDING.into_iter().filter(|s| !is_ignored(*s)).collect();
        taken.add(Signal::SIGCHLD);
        let mut block = taken;
        // Our own words and our care for the terminal must not stop us while we are not in the
        // foreground.
        block.add(Signal::SIGTTOU);
        let mask = block.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let fd = SignalFd::with_flags(&taken, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        // Of those who ended before, no signal comes any more.
        group::reap_if_first();
        Ok(Self { fd, taken, before: Before { mask, pipe, child } })
    }

    /// Takes over what a running command is to get too; `stop` also the terminal's stop, for a
    /// command in a group of its own.
    ///
    /// # Errors
    /// What the system says; nothing is known to cause it.
    pub fn take_more(&mut self, stop: bool) -> io::Result<()> {
        let stop = stop.then_some(Signal::SIGTSTP);
        for signal in PASSED_ON.into_iter().chain(stop).filter(|s| !is_ignored(*s)) {
            self.taken.add(signal);
        }
        // Ignored or not, it lets us go on, and then the command must too.
        self.taken.add(Signal::SIGCONT);
        self.taken.thread_block()?;
        Ok(self.fd.set_mask(&self.taken)?)
    }

    /// The next signal that came, if any.
    pub fn next(&self) -> Option<Came> {
        loop {
            let info = self.fd.read_signal().ok().flatten()?;
            let signal = i32::try_from(info.ssi_signo).ok().and_then(|n| Signal::try_from(n).ok());
            if let Some(signal) = signal {
                return Some(Came { signal, keyboard: info.ssi_code == libc::SI_KERNEL });
            }
        }
    }

    /// The signal that came to end us, if one did. While no command runs, the keyboard's stop stops
    /// us as it always would, and the first process of a container reaps whoever comes to it.
    pub fn ending(&self) -> Option<Came> {
        while let Some(came) = self.next() {
            match came.signal {
                Signal::SIGTSTP => _ = stop_by(Signal::SIGTSTP),
                Signal::SIGCHLD => group::reap_if_first(),
                signal if ENDING.contains(&signal) => return Some(came),
                _ => {}
            }
        }
        None
    }

    /// How signals were.
    pub fn before(&self) -> Before {
        self.before
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Before {
    /// Puts everything back. Only async-signal-safe calls: it runs between fork and exec.
    pub fn restore(&self) {
        set_disposition(Signal::SIGPIPE, self.pipe);
        set_disposition(Signal::SIGCHLD, self.child);
        _ = self.mask.thread_set_mask();
    }
}

/// Ends us as `signal` would have ended us without a handler; returns only when it cannot.
/// `everybody`: the rest of our process group gets it too.
pub fn die_of(signal: Signal, everybody: bool) {
    // A second core file beside the command's would only be ours.
    _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
    set_disposition(signal, libc::SIG_DFL);
    if everybody {
        // SAFETY: a signal to our own process group; nothing of ours is touched.
        unsafe { libc::kill(0, signal as i32) };
    } else {
        _ = nix::sys::signal::raise(signal);
    }
    _ = SigSet::from(signal).thread_unblock();
}

/// Stops our process group as `signal` would have stopped it; returns when it goes on, or at once
/// when nobody is there who could let it go on (an orphaned group). Answers whether it stopped,
/// which is known while CONT is taken over.
pub fn stop_by(signal: Signal) -> bool {
    let only: SigSet = SigSet::from(signal);
    let was_blocked = SigSet::thread_get_mask().is_ok_and(|mask| mask.contains(signal));
    // SAFETY: a signal to our own process group; nothing of ours is touched.
    unsafe { libc::kill(0, signal as i32) };
    if was_blocked {
        _ = only.thread_unblock();
        _ = only.thread_block();
    }
    is_pending(Signal::SIGCONT)
}

fn is_pending(signal: Signal) -> bool {
    let mut pending = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the call fills the set, which is large enough.
    unsafe {
        libc::sigpending(pending.as_mut_ptr()) == 0
            && libc::sigismember(pending.as_ptr(), signal as i32) == 1
    }
}

fn is_ignored(signal: Signal) -> bool {
    let mut old = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with no new action the call only fills `old`, which is large enough.
    let old = unsafe {
        libc::sigaction(signal as i32, std::ptr::null(), old.as_mut_ptr());
        old.assume_init()
    };
    old.sa_sigaction == libc::SIG_IGN
}

/// Sets a signal to be ignored or to its default; answers what it was.
fn set_disposition(signal: Signal, to: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: `to` is SIG_IGN or SIG_DFL, or what this very call answered before any handler was
    // installed.
    unsafe { libc::signal(signal as i32, to) }
}
