//! The schedule of faults, drawn from a seed before anything runs, and who carries it out.

use std::time::Duration;

use super::Random;
use super::arena::Fault;

/// Faults that hit one client.
pub(super) const STOP: &str = "stop-client";
pub(super) const KILL: &str = "kill-client";
/// A fault that takes the processors away from everybody.
pub(super) const STARVE: &str = "starve-cpu";

/// One fault of the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) fault: &'static str,
    /// Which client, for those that hit one.
    pub(super) client: u32,
    pub(super) from: Duration,
    pub(super) to: Duration,
}

/// All faults that a run can have.
pub(super) fn known(arena: &'static [Fault]) -> Vec<&'static str> {
    [STOP, KILL, STARVE].into_iter().chain(arena.iter().map(|f| f.name)).collect()
}

/// Draws the schedule: one to three faults at a time, then a breath, until a second before the end.
pub(super) fn plan(seed: u64, time: Duration, clients: u32, faults: &[&'static str]) -> Vec<Planned> {
    let mut random = Random::new(seed, 0xfa17);
    let ms = Duration::from_millis;
    let mut planned: Vec<Planned> = Vec::new();
    let mut at = ms(500);
    let end = time.saturating_sub(ms(1_500));
    while at < end && !faults.is_empty() {
        let together = 1 + random.below(3);
        let mut last = at;
        for _ in 0..together {
            let which = usize::try_from(random.below(faults.len() as u64)).unwrap_or(0);
            let Some(&fault) = faults.get(which) else { continue };
            let client = u32::try_from(random.below(u64::from(clients))).unwrap_or(0);
            let from = at + random.between(ms(0), ms(100));
            let to = from + random.between(ms(100), ms(1_200));
            // One fault of a kind at a time, and one fault a client.
            let busy =
                |p: &Planned| p.to >= from && (p.fault == fault || (hits_client(p.fault) && hits_client(fault) && p.client == client));
            if planned.iter().any(busy) {
                continue;
            }
            last = last.max(to);
            planned.push(Planned { fault, client, from, to });
        }
        at = last + random.between(ms(50), ms(400));
    }
    planned.sort_by_key(|p| p.from);
    planned
}

/// Whether a fault hits one client, and not the arena.
pub(super) fn hits_client(fault: &str) -> bool {
    fault == STOP || fault == KILL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_schedule_and_another_seed_another() {
        let draw = |seed| plan(seed, Duration::from_secs(30), 4, &[STOP, KILL, STARVE]);
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let faults = draw(7);
        assert!(faults.len() >= 15, "{}", faults.len());
        assert!(faults.iter().all(|p| p.from < p.to && p.to < Duration::from_secs(31)));
        assert!([STOP, KILL, STARVE].iter().all(|f| faults.iter().any(|p| p.fault == *f)));
    }

    #[test]
    fn no_client_is_hit_twice_at_a_time() {
        let faults = plan(3, Duration::from_secs(120), 2, &[STOP, KILL]);
        for (at, one) in faults.iter().enumerate() {
            for other in faults.iter().skip(at + 1) {
                assert!(one.client != other.client || other.from >= one.to || one.from >= other.to, "{one:?} {other:?}");
            }
        }
    }
}
