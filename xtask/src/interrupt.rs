//! Ctrl-C, TERM and HUP: noted, so that what was seen until then can be told.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, raise, sigaction};
use nix::unistd::Pid;

static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// The signal that came while somebody [watched](Watch).
pub fn caught() -> Option<i32> {
    Some(CAUGHT.load(Ordering::Acquire)).filter(|signal| *signal != 0)
}

extern "C" fn note(signal: i32) {
    CAUGHT.store(signal, Ordering::Release);
}

/// Signals are noted instead of ending the process, until this is dropped. One a process at a time.
pub struct Watch(Vec<(Signal, SigAction)>);

impl Watch {
    /// Begins.
    pub fn new() -> Self {
        CAUGHT.store(0, Ordering::Release);
        let noting =
            SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
        let mut before = Vec::new();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
            let Ok(old) = (unsafe { sigaction(signal, &noting) }) else { continue };
            if matches!(old.handler(), SigHandler::SigIgn) {
                // Ignored by whoever started us, as nohup does: it stays so.
                // SAFETY: puts back what stood there a moment ago.
                _ = unsafe { sigaction(signal, &old) };
            } else {
                before.push((signal, old));
            }
        }
        Self(before)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (signal, old) in &self.0 {
            // SAFETY: puts back what stood there before.
            _ = unsafe { sigaction(*signal, old) };
        }
    }
}

/// Lets a program start with every signal at its default, whatever we were started with: a script's
/// job in the background ignores SIGINT, and what `nohup` starts ignores SIGHUP.
pub fn with_default_signals(command: &mut Command) -> &mut Command {
    let defaults = || {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        for signal in Signal::iterator() {
            // SAFETY: a default is no handler. Two signals cannot be set, and are never ignored.
            _ = unsafe { sigaction(signal, &default) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec it only calls sigaction, which is async-signal-safe.
    unsafe { command.pre_exec(defaults) }
}

/// Sends it to a child of ours that was not waited for yet.
pub fn pass_on(signal: i32, child: u32) {
    if let (Ok(signal), Ok(child)) = (Signal::try_from(signal), i32::try_from(child)) {
        // One that ended meanwhile needs none.
        _ = kill(Pid::from_raw(child), signal);
    }
}

/// Ends this process by that signal, as a shell expects of it; answers what there is to say if it
/// lives on.
pub fn end_by(signal: i32) -> String {
    if let Ok(signal) = Signal::try_from(signal) {
        _ = raise(signal);
    }
    format!("ended by signal {signal}")
}

/// A signal that is ignored until this is dropped.
#[cfg(test)]
pub fn ignoring(signal: Signal) -> Watch {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: ignoring is no handler.
    let old = unsafe { sigaction(signal, &ignore) };
    Watch(old.map(|old| (signal, old)).into_iter().collect())
}
