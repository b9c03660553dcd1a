//! What the file and its processes are, whatever happens next.

use lockkeeper::Mode;
use lockkeeper::test_util::machines::bytes::Span;
use lockkeeper::test_util::machines::file::{Event, Recipe};

use super::permits::{LIMIT, Picking};
use super::{At, File, Process, Run, World};

impl World {
    /// Opens what the path leads to, and makes it if that is nothing. A new file's numbers begin
    /// with the clock, which is ahead of every number that was given.
    pub(super) fn open(&mut self) -> u8 {
        *self.path.get_or_insert_with(|| {
            self.files.push(File {
                last: self.greatest,
                flags: vec![false; self.processes.len()],
                ..File::default()
            });
            u8::try_from(self.files.len() - 1).expect("few files")
        })
    }

    pub(super) fn run(&self, p: u8, mut recipe: Recipe) -> Run {
        let next = recipe.step(Event::Yes);
        let process = &self.processes[usize::from(p)];
        let number = self.files[usize::from(process.file)].last + 2;
        let others = (0..)
            .zip(&self.processes)
            .filter(|(q, other)| *q != p && other.in_line && other.file == process.file);
        Run {
            recipe,
            next,
            stands: false,
            number,
            behind: others.map(|(q, _)| q).collect(),
            picking: Picking::default(),
        }
    }

    /// The mark that a hold has kept goes.
    pub(super) fn unmark(&mut self, p: u8) {
        if std::mem::take(&mut self.processes[usize::from(p)].marked) {
            self.retract(p);
        }
    }

    pub(super) fn retract(&mut self, p: u8) {
        let process = &mut self.processes[usize::from(p)];
        process.in_line = false;
        let file = &mut self.files[usize::from(process.file)];
        file.flags[usize::from(p)] = false;
        file.locks.unlock(p, Span::waiter(p.into()));
        self.forget_in_line(p);
    }

    pub(super) fn forget_in_line(&mut self, p: u8) {
        for process in &mut self.processes {
            if let At::Acquires(run) | At::Upgrades(run) = &mut process.at {
                run.behind.retain(|q| *q != p);
            }
        }
    }

    pub(super) fn granted(&mut self, p: u8, mode: Mode, number: u64) {
        let converted = !matches!(self.processes[usize::from(p)].at, At::Acquires(_));
        self.processes[usize::from(p)].at = At::Holds { mode, number, converted };
        if self.path != Some(self.processes[usize::from(p)].file) {
            // Removed by force after its last look: void, and it is told so.
            return;
        }
        // Permits have no number.
        if matches!(mode, Mode::Permits { .. }) {
            return;
        }
        // An exclusive one above all earlier ones, a shared one above every earlier exclusive one.
        if mode == Mode::Exclusive {
            self.tokens_rise &= number > self.greatest;
            self.greatest_exclusive = number;
        } else {
            self.tokens_rise &= number > self.greatest_exclusive;
        }
        self.greatest = self.greatest.max(number);
    }

    pub(super) fn holders(&self) -> Vec<(Mode, u8)> {
        let mode = |p: &Process| match &p.at {
            At::Holds { mode, .. } | At::Lowers { to: mode, .. } => Some((*mode, p.file)),
            At::Upgrades(_) => Some((Mode::Upgradable, p.file)),
            _ => None,
        };
        self.processes.iter().filter_map(mode).collect()
    }

    /// Holders of a file that was removed by force are told so; the others exclude each other.
    pub(super) fn excludes(&self, forced: bool) -> bool {
        let holders: Vec<_> = self
            .holders()
            .into_iter()
            .filter(|(_, file)| !forced || self.path == Some(*file))
            .collect();
        let permits = |file: u8| {
            holders
                .iter()
                .filter(move |(_, of)| *of == file)
                .map(|(mode, _)| if let Mode::Permits { count, .. } = mode { *count } else { 0 })
        };
        if holders.iter().any(|(mode, _)| matches!(mode, Mode::Permits { .. })) {
            return holders.iter().all(|(_, file)| permits(*file).sum::<u16>() <= u16::from(LIMIT));
        }
        (0..holders.len())
            .all(|a| (a + 1..holders.len()).all(|b| holders[a].0.shares_with(holders[b].0)))
    }
}
