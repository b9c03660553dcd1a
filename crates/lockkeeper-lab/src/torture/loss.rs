//! A link that loses packets, all of them or some, and counts them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_testkit::proxy::Way;

use super::Random;
use super::network::Line;
use super::storm::Storm;

/// How long a link that loses some is the one or the other, at least.
const SPELL: Duration = Duration::from_millis(30);

/// One way of a link that can be cut, whatever it is made of.
pub(super) trait Cuts: Send + 'static {
    /// What goes this way is lost from now on.
    fn cut(&self, way: Way) -> Result<(), String>;
    /// It is lost no more. Answers how many packets were.
    fn mend(&self, way: Way) -> Result<u32, String>;
}

impl Cuts for Line {
    fn cut(&self, way: Way) -> Result<(), String> {
        self.cut(way)
    }
    fn mend(&self, way: Way) -> Result<u32, String> {
        self.mend(way)
    }
}

/// See the module. Dropping it mends the link.
pub(super) struct Loss {
    storm: Option<Storm>,
    state: Arc<Mutex<State>>,
}

struct State {
    line: Box<dyn Cuts>,
    /// Whether each is cut now.
    ways: Vec<(Way, bool)>,
    lost: u32,
}

impl State {
    fn cut(&mut self) -> Result<(), String> {
        for (way, cut) in self.ways.iter_mut().filter(|(_, cut)| !*cut) {
            self.line.cut(*way)?;
            *cut = true;
        }
        Ok(())
    }

    /// Every way that can be; those that cannot are cut still, and the next time they are tried
    /// again.
    fn mend(&mut self) -> Result<(), String> {
        let mut failed = Ok(());
        for (way, cut) in self.ways.iter_mut().filter(|(_, cut)| *cut) {
            match self.line.mend(*way) {
                Ok(lost) => {
                    self.lost = self.lost.saturating_add(lost);
                    *cut = false;
                }
                Err(why) => failed = Err(why),
            }
        }
        failed
    }
}

impl Loss {
    /// Of nothing yet, on these ways.
    pub(super) fn on(line: impl Cuts, ways: &[Way]) -> Self {
        let ways = ways.iter().map(|way| (*way, false)).collect();
        Self {
            storm: None,
            state: Arc::new(Mutex::new(State { line: Box::new(line), ways, lost: 0 })),
        }
    }

    /// From now on everything is lost. After an error some of it may be.
    pub(super) fn of_all(&mut self) -> Result<(), String> {
        self.state().cut()
    }

    /// From now on everything is lost for a third of the time; when that is, `random` says.
    pub(super) fn of_some(&mut self, mut random: Random) -> Result<(), String> {
        self.of_all()?;
        let state = self.state.clone();
        let act = move || {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            // What could not be done is tried again the next time, and at the end, where it is an
            // error.
            let _ = if random.below(3) == 0 { state.cut() } else { state.mend() };
        };
        self.storm = Some(Storm::begin(SPELL, act)?);
        Ok(())
    }

    /// Nothing is lost any more. Answers how many packets were. After an error some still are, and
    /// it may be tried again.
    pub(super) fn mend(&mut self) -> Result<u32, String> {
        self.storm = None;
        let mut state = self.state();
        state.mend()?;
        Ok(state.lost)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        // The network goes soon after it.
        let _ = self.mend();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was asked of it, and which ways cannot be cut or mended as often as it says.
    #[derive(Default)]
    struct Wire {
        cut: [bool; 2],
        fails: [u32; 2],
        asked: Vec<(Way, bool)>,
    }

    struct Fake(Arc<Mutex<Wire>>);

    impl Fake {
        fn set(&self, way: Way, cut: bool) -> Result<u32, String> {
            let mut wire = self.0.lock().unwrap();
            wire.asked.push((way, cut));
            let fails = &mut wire.fails[way as usize];
            if *fails > 0 {
                *fails -= 1;
                return Err(format!("{way:?} cannot be set"));
            }
            assert_ne!(
                std::mem::replace(&mut wire.cut[way as usize], cut),
                cut,
                "a way is set to what it is"
            );
            Ok(5)
        }
    }

    impl Cuts for Fake {
        fn cut(&self, way: Way) -> Result<(), String> {
            self.set(way, true).map(|_| ())
        }
        fn mend(&self, way: Way) -> Result<u32, String> {
            self.set(way, false)
        }
    }

    fn wire() -> (Arc<Mutex<Wire>>, Loss) {
        let wire = Arc::<Mutex<Wire>>::default();
        (wire.clone(), Loss::on(Fake(wire), &[Way::Up, Way::Down]))
    }

    #[test]
    fn a_way_that_cannot_be_mended_keeps_no_other_cut_and_is_tried_again() {
        let (wire, mut loss) = wire();
        loss.of_all().unwrap();
        wire.lock().unwrap().fails[Way::Up as usize] = 1;
        assert!(loss.mend().is_err_and(|why| why == "Up cannot be set"));
        assert_eq!(wire.lock().unwrap().cut, [true, false]);
        assert_eq!(loss.mend(), Ok(10), "what both lost");
        assert_eq!(wire.lock().unwrap().cut, [false; 2]);
    }

    #[test]
    fn a_loss_that_could_not_begin_as_a_whole_or_that_is_forgotten_leaves_nothing_cut() {
        let (one, mut loss) = wire();
        one.lock().unwrap().fails[Way::Down as usize] = 1;
        assert!(loss.of_all().is_err());
        assert_eq!(one.lock().unwrap().cut, [true, false]);
        drop(loss);
        assert_eq!(one.lock().unwrap().cut, [false; 2]);
        let (other, mut loss) = wire();
        loss.of_some(Random::new(1, 1)).unwrap();
        drop(loss);
        assert_eq!(other.lock().unwrap().cut, [false; 2]);
    }
}
