//! The schedule of faults, drawn from a seed before anything runs.

use std::time::Duration;

use super::Random;
use super::broken::Broken;
use super::fault::{Fault, Hits};

/// One fault of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) fault: Fault,
    /// Which client, for those that hit one.
    pub(super) client: u32,
    pub(super) from: Duration,
    pub(super) to: Duration,
}

impl Planned {
    /// Whether the two cannot happen at one time: a server has one fault at a time, and so have a client and its link.
    fn excludes(&self, other: &Self) -> bool {
        let together = self.from <= other.to && other.from <= self.to;
        together
            && match (self.fault.hits, other.fault.hits) {
                (Hits::Client, Hits::Client) | (Hits::Link, Hits::Link) => self.client == other.client,
                (Hits::Server, Hits::Server) => true,
                _ => self.fault == other.fault,
            }
    }
}

/// Draws the schedule: one to three faults at a time, then a breath, until a second before the end.
pub(super) fn plan(seed: u64, time: Duration, clients: u32, faults: &[Fault]) -> Vec<Planned> {
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
            let next = Planned { fault, client, from, to };
            if planned.iter().any(|p| p.excludes(&next)) {
                continue;
            }
            last = last.max(to);
            planned.push(next);
        }
        at = last + random.between(ms(50), ms(400));
    }
    planned.sort_by_key(|p| p.from);
    planned
}

/// The schedule of a broken client: its own faults, round after round, each time for another client.
pub(super) fn rounds(seed: u64, time: Duration, broken: &Broken, clients: u32, faults: &[Fault]) -> Vec<Planned> {
    let mut random = Random::new(seed, 0xb20c);
    let ms = Duration::from_millis;
    let mut planned = Vec::new();
    let mut round = ms(600);
    while round + ms(broken.round_ms) < time && !broken.trigger.is_empty() {
        let client = u32::try_from(random.below(u64::from(clients))).unwrap_or(0);
        for strike in broken.trigger {
            let Some(&fault) = faults.iter().find(|f| f.name == strike.fault) else { continue };
            let from = round + random.between(ms(strike.at_ms.0), ms(strike.at_ms.1));
            let hit = if strike.all && fault.hits != Hits::Server { 0..clients } else { client..client + 1 };
            planned.extend(hit.map(|client| Planned { fault, client, from, to: from + ms(strike.for_ms) }));
        }
        round += ms(broken.round_ms);
    }
    planned.sort_by_key(|p| p.from);
    planned
}

#[cfg(test)]
mod tests {
    use super::super::fault::ANYWHERE;
    use super::super::links;
    use super::*;

    fn three() -> [Fault; 3] {
        let [stop, kill, starve, _] = ANYWHERE;
        [stop, kill, starve]
    }

    #[test]
    fn the_same_seed_draws_the_same_schedule_and_another_seed_another() {
        let draw = |seed| plan(seed, Duration::from_secs(30), 4, &three());
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let faults = draw(7);
        assert!(faults.len() >= 15, "{}", faults.len());
        assert!(faults.iter().all(|p| p.from < p.to && p.to < Duration::from_secs(31)));
        assert!(three().iter().all(|f| faults.iter().any(|p| p.fault == *f)));
    }

    #[test]
    fn no_client_link_or_server_is_hit_twice_at_a_time_and_different_ones_are() {
        let server = |name| Fault { name, hits: Hits::Server, excuses: &[], what: "" };
        let all: Vec<Fault> = three().into_iter().chain(links::FAULTS).chain([server("a"), server("b")]).collect();
        let faults = plan(3, Duration::from_secs(300), 2, &all);
        let mut composed = 0;
        for (at, one) in faults.iter().enumerate() {
            for other in faults.iter().skip(at + 1).filter(|o| o.from < one.to) {
                composed += 1;
                let same_place = one.fault.hits == other.fault.hits && (one.fault.hits == Hits::Server || one.client == other.client);
                assert!(!same_place, "{one:?} {other:?}");
            }
        }
        assert!(composed > 20, "faults are composed: {composed}");
    }
}
