//! Ctrl-C, TERM and HUP: noted, so that whoever started processes and made records can clear away before it ends.

use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// The signal that came while somebody [watched](Watch).
pub(crate) fn caught() -> Option<i32> {
    Some(CAUGHT.load(Ordering::Acquire)).filter(|signal| *signal != 0)
}

extern "C" fn note(signal: i32) {
    CAUGHT.store(signal, Ordering::Release);
}

/// Whoever read what we print is gone: a reason to end like a signal, with everything cleared away.
pub(crate) fn reader_is_gone() {
    note(Signal::SIGPIPE as i32);
}

/// Signals are noted instead of ending the process, until this is dropped. One a process at a time.
pub(crate) struct Watch(Vec<(Signal, SigAction)>);

impl Watch {
    pub(crate) fn new() -> Self {
        CAUGHT.store(0, Ordering::Release);
        let noting = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
        let mut before = Vec::new();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
            let Ok(old) = (unsafe { sigaction(signal, &noting) }) else { continue };
            if matches!(old.handler(), SigHandler::SigIgn) {
                // Ignored by whoever started us, as nohup does: it stays so.
                // SAFETY: puts back what stood there a moment ago.
                let _ = unsafe { sigaction(signal, &old) };
            } else {
                before.push((signal, old));
            }
        }
        // A write to whoever has ended is to fail, and not to end us. Programs that are started get their own back.
        let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: ignoring a signal runs no code of ours.
        if let Ok(old) = unsafe { sigaction(Signal::SIGPIPE, &ignored) } {
            before.push((Signal::SIGPIPE, old));
        }
        Self(before)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (signal, old) in &self.0 {
            // SAFETY: puts back what stood there before.
            let _ = unsafe { sigaction(*signal, old) };
        }
    }
}
