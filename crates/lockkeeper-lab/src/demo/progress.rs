//! How far an act is: one line on a terminal, rewritten in place, and nothing where nobody looks.

use std::io::{IsTerminal as _, Write};
use std::time::{Duration, Instant};

use super::Guarding;

const EVERY: Duration = Duration::from_millis(100);

/// The line.
pub(super) struct Progress<W: Write> {
    out: Option<W>,
    last: Option<Instant>,
}

impl Progress<std::io::Stderr> {
    /// A line on the terminal, if there is one and it is wanted.
    pub(super) fn new(wanted: bool) -> Self {
        let terminal = || Some(std::io::stderr()).filter(std::io::Stderr::is_terminal);
        Self { out: if wanted { terminal() } else { None }, last: None }
    }
}

impl<W: Write> Progress<W> {
    /// Shows how far an act is; not more often than people read.
    pub(super) fn show(
        &mut self,
        act: u8,
        guarding: Guarding,
        answered: u64,
        orders: u32,
        sold: u64,
    ) {
        if self.out.is_some() && self.last.is_none_or(|last| last.elapsed() >= EVERY) {
            self.last = Some(Instant::now());
            self.say(&format!(
                "act {act}: {}: {answered} of {orders} orders, {sold} sold",
                guarding.words()
            ));
        }
    }

    /// Shows a text in place of the last.
    pub(super) fn say(&mut self, text: &str) {
        if let Some(out) = &mut self.out {
            // A terminal that is gone is no reason to stop.
            let _ = write!(out, "\r\x1b[K{text}").and_then(|()| out.flush());
        }
    }

    /// Takes the line away.
    pub(super) fn clear(&mut self) {
        self.last = None;
        self.say("");
    }
}

impl<W: Write> Drop for Progress<W> {
    /// Also when the story is broken off in the middle of an act.
    fn drop(&mut self) {
        self.clear();
    }
}
