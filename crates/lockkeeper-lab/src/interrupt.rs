//! Ctrl-C, TERM and HUP: noted, so that whoever started processes and made records can clear away
//! before it ends.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::time::{ClockId, clock_gettime};

static CAUGHT: AtomicI32 = AtomicI32::new(0);
/// When the first one came, and whether one came after it.
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
static AGAIN: AtomicBool = AtomicBool::new(false);

/// Within so long two are one: `timeout` sends its signal to the process and to its group.
const ONE_NS: u64 = 200_000_000;

/// The signal that came while somebody [watched](Watch).
pub(crate) fn caught() -> Option<i32> {
    Some(CAUGHT.load(Ordering::Acquire)).filter(|signal| *signal != 0)
}

/// Whether one came when there had been one before: whoever sends it does not want to wait until
/// everything is cleared away.
pub(crate) fn insists() -> bool {
    AGAIN.load(Ordering::Acquire)
}

extern "C" fn note(signal: i32) {
    // Reading a clock and storing to atomics is all that it does, which is async-signal-safe.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(1, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64);
    if let Err(first) = FIRST_NS.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire)
        && now.saturating_sub(first) > ONE_NS
    {
        AGAIN.store(true, Ordering::Release);
    }
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
        FIRST_NS.store(0, Ordering::Release);
        AGAIN.store(false, Ordering::Release);
        let noting =
            SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
        let mut before = Vec::new();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // SAFETY: the handler only reads a clock and stores to atomics, which is
            // async-signal-safe.
            let Ok(old) = (unsafe { sigaction(signal, &noting) }) else { continue };
            if matches!(old.handler(), SigHandler::SigIgn) {
                // Ignored by whoever started us, as nohup does: it stays so.
                // SAFETY: puts back what stood there a moment ago.
                let _ = unsafe { sigaction(signal, &old) };
            } else {
                before.push((signal, old));
            }
        }
        // A write to whoever has ended is to fail, and not to end us. Programs that are started get
        // their own back.
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
