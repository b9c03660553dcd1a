//! A link that loses packets, all of them or some, and counts them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Random;
use super::network::Line;
use super::storm::Storm;
use crate::proxy::Way;

/// How long a link that loses some is the one or the other, at least.
const SPELL: Duration = Duration::from_millis(30);

/// See the module.
pub(super) struct Loss {
    storm: Option<Storm>,
    state: Arc<Mutex<State>>,
}

struct State {
    line: Line,
    ways: Vec<Way>,
    cut: bool,
    lost: u32,
}

impl State {
    fn cut(&mut self) -> Result<(), String> {
        if !self.cut {
            self.cut = true;
            self.ways.iter().try_for_each(|way| self.line.cut(*way))?;
        }
        Ok(())
    }

    fn mend(&mut self) -> Result<(), String> {
        if self.cut {
            self.cut = false;
            for way in &self.ways {
                self.lost = self.lost.saturating_add(self.line.mend(*way)?);
            }
        }
        Ok(())
    }
}

impl Loss {
    /// Everything that goes these ways.
    pub(super) fn of_all(line: Line, ways: &[Way]) -> Result<Self, String> {
        let mut state = State { line, ways: ways.to_vec(), cut: false, lost: 0 };
        state.cut()?;
        Ok(Self { storm: None, state: Arc::new(Mutex::new(state)) })
    }

    /// Both ways, a third of the time.
    pub(super) fn of_some(line: Line, seed: u32) -> Result<Self, String> {
        let mut loss = Self::of_all(line, &[Way::Up, Way::Down])?;
        let (state, mut random) = (loss.state.clone(), Random::new(u64::from(seed), 0x1055));
        let act = move || {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            // What could not be done is tried again the next time, and at the end, where it is an error.
            let _ = if random.below(3) == 0 { state.cut() } else { state.mend() };
        };
        loss.storm = Some(Storm::begin(SPELL, act)?);
        Ok(loss)
    }

    /// Nothing is lost any more. Answers how many packets were.
    pub(super) fn end(mut self) -> Result<u32, String> {
        self.storm = None;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.mend()?;
        Ok(state.lost)
    }
}
