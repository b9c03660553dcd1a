//! Permits: one byte each, on one open file description for all permits that a process has of a
//! semaphore, because a process may have 65 535 of them. Its own locks never refuse a description
//! anything, so what it has is kept here too.

use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use super::bytes::{Grip, RECORD, SHOWN, Span};
use super::lockfile::LockFile;
use super::{presence, wire};

/// A run of permits: the first, and how many.
type Run = (u32, u32);

/// What one process has of one semaphore.
pub(super) struct Pool {
    file: LockFile,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Our runs, sorted, none touching the next.
    taken: Vec<Run>,
    /// The places in which our holds are shown.
    shown: Vec<u16>,
}

/// The permits of one hold.
#[derive(Debug, Default)]
pub(super) struct Picked {
    runs: Vec<Run>,
    shown: Option<u16>,
}

impl Pool {
    pub(super) fn new(file: LockFile) -> Self {
        Self { file, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn file(&self) -> &LockFile {
        &self.file
    }

    /// Whether it belongs to the same file; after a replacement, permits of the new one need a pool
    /// of their own.
    pub(super) fn is_of(&self, file: &LockFile) -> bool {
        self.file.identity() == file.identity()
    }

    /// Whether nothing of it is held.
    pub(super) fn is_unused(&self) -> bool {
        self.state().taken.is_empty()
    }

    /// Takes permits, if no more than `limit` are out then. Nobody else counts meanwhile: others
    /// only give back.
    pub(super) fn pick(&self, count: u16, limit: u16) -> Result<Option<Picked>, Errno> {
        let mut state = self.state();
        let mut foreign = Vec::new();
        find_taken(&self.file, 0, Span::PERMITS.len, &mut foreign)?;
        foreign.extend_from_slice(&state.taken);
        foreign.sort_unstable();
        let out: u32 = foreign.iter().map(|(_, length)| length).sum();
        if out + u32::from(count) > u32::from(limit) {
            return Ok(None);
        }
        let runs = gaps(&foreign, u32::from(count));
        for (at, (first, length)) in runs.iter().enumerate() {
            if !matches!(
                wire::try_lock(&self.file, Span::permits(*first, *length), Grip::Write),
                Ok(true)
            ) {
                // Somebody who does not keep to the count: not now, then.
                for (first, length) in &runs[..at] {
                    wire::unlock(&self.file, Span::permits(*first, *length))?;
                }
                return Ok(None);
            }
        }
        state.taken.extend_from_slice(&runs);
        state.taken.sort_unstable();
        join(&mut state.taken);
        Ok(Some(Picked { runs, shown: None }))
    }

    /// Shows a hold's permits to others.
    pub(super) fn show(&self, picked: &mut Picked, record: &[u8; RECORD]) -> Result<(), Errno> {
        let mut state = self.state();
        if state.shown.len() < SHOWN {
            picked.shown =
                presence::show(self.file.as_fd(), record, |place| state.shown.contains(&place))?;
            state.shown.extend(picked.shown);
        }
        Ok(())
    }

    /// Gives a hold's permits back, and wakes whoever waits for some. What cannot be unlocked stays
    /// out until the process ends.
    pub(super) fn give_back(&self, picked: Picked) -> Result<(), Errno> {
        let mut state = self.state();
        if let Some(place) = picked.shown {
            wire::unlock(&self.file, Span::shown(place))?;
            state.shown.retain(|other| *other != place);
        }
        for (first, length) in picked.runs {
            wire::unlock(&self.file, Span::permits(first, length))?;
            cut(&mut state.taken, first, length);
        }
        drop(state);
        wire::ring(&self.file);
        Ok(())
    }
}

/// The runs in a range that other descriptions have locked. One call a run, and one a gap.
fn find_taken(file: &LockFile, first: u32, length: u32, found: &mut Vec<Run>) -> Result<(), Errno> {
    // Not recursive: a neighbour could make it deep.
    let mut open = vec![(first, length)];
    while let Some((first, length)) = open.pop() {
        if length == 0 {
            continue;
        }
        if let Some((start, taken)) =
            wire::obstacle(file, Span::permits(first, length), Grip::Write)?
        {
            let start = start - Span::PERMITS.start;
            found.push((start, taken));
            open.push((first, start - first));
            open.push((start + taken, first + length - start - taken));
        }
    }
    Ok(())
}

/// The first free permits beside the sorted runs that are taken.
fn gaps(taken: &[Run], mut count: u32) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut next = 0;
    for &(start, length) in taken.iter().chain([&(Span::PERMITS.len, 0)]) {
        if count == 0 {
            break;
        }
        let free = start.saturating_sub(next).min(count);
        if free > 0 {
            runs.push((next, free));
            count -= free;
        }
        next = next.max(start + length);
    }
    runs
}

/// Makes one run of those that touch.
fn join(runs: &mut Vec<Run>) {
    runs.dedup_by(|later, earlier| {
        let touch = earlier.0 + earlier.1 == later.0;
        if touch {
            earlier.1 += later.1;
        }
        touch
    });
}

/// Takes a run out of those that hold it.
fn cut(runs: &mut Vec<Run>, first: u32, length: u32) {
    let Some(at) =
        runs.iter().position(|(start, taken)| *start <= first && first + length <= start + taken)
    else {
        return;
    };
    let (start, taken) = runs.remove(at);
    for run in [(first + length, start + taken - first - length), (start, first - start)] {
        if run.1 > 0 {
            runs.insert(at, run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_permits_are_found_between_the_taken_ones() {
        assert_eq!(gaps(&[], 3), [(0, 3)]);
        assert_eq!(gaps(&[(0, 2), (3, 1), (6, 4)], 4), [(2, 1), (4, 2), (10, 1)]);
        assert_eq!(gaps(&[(0, 65_535)], 1), []);
        assert_eq!(gaps(&[(1, 1)], 0), []);
    }

    #[test]
    fn runs_are_joined_and_cut() {
        let mut runs = vec![(0, 2), (2, 3), (6, 1)];
        join(&mut runs);
        assert_eq!(runs, [(0, 5), (6, 1)]);
        cut(&mut runs, 1, 2);
        assert_eq!(runs, [(0, 1), (3, 2), (6, 1)]);
        cut(&mut runs, 6, 1);
        cut(&mut runs, 0, 1);
        cut(&mut runs, 3, 1);
        assert_eq!(runs, [(4, 1)]);
        cut(&mut runs, 0, 3);
        assert_eq!(runs, [(4, 1)], "what is not there is not cut");
    }
}
