//! The schedule of faults, drawn from a seed before anything runs.

use std::time::Duration;

use super::Random;
use super::broken::Broken;
use super::fault::{CROWD, Fault, Hits, PAUSE_MAX};
use super::links;
use crate::judge::liveness::SLACK;

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
    /// Whether the two cannot happen at one time: a server has one fault at a time, and so have a
    /// client and its link.
    fn excludes(&self, other: &Self) -> bool {
        self.from <= other.to && other.from <= self.to && self.is_where(other)
    }

    /// Whether the two hit the same place.
    pub(super) fn is_where(&self, other: &Self) -> bool {
        match (self.fault.hits, other.fault.hits) {
            (Hits::Client, Hits::Client) | (Hits::Link, Hits::Link) => self.client == other.client,
            (Hits::Server, Hits::Server) => true,
            _ => self.fault == other.fault,
        }
    }
}

/// What a schedule leaves time for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How long a lease or a session lasts at most; zero where there is none.
    lease: Duration,
    /// How long nothing may be wrong before anybody is convicted of being slow.
    calm: Duration,
}

impl Pace {
    /// Of an engine that promises this recovery.
    pub(super) fn of(recovery: Duration) -> Self {
        Self { lease: recovery, calm: recovery + SLACK }
    }

    /// A time that no lease survives.
    fn over_a_lease(self, random: &mut Random) -> Duration {
        random.between(self.lease * 6 / 5, self.lease * 2)
    }

    /// A breath in which everybody who waits is owed a lock for long enough to be judged: clients
    /// that lost their server come back late, also from a fault that ended before the last one did.
    fn calm(self, random: &mut Random, from: Duration, after: &[Planned]) -> Duration {
        let delays = after.iter().any(|p| p.fault.delays() && p.to + PAUSE_MAX > from);
        let late = if delays { PAUSE_MAX } else { Duration::ZERO };
        late + self.calm * 6 / 5 + breath(random)
    }
}

/// How many faults there are at a time.
const TOGETHER_MAX: usize = 3;
/// After so many rounds there is a long breath.
const ROUNDS: u32 = 4;
/// One of so many faults that can outlast a lease does.
const OUTLASTS: u64 = 3;

fn breath(random: &mut Random) -> Duration {
    random.between(Duration::from_millis(50), Duration::from_millis(400))
}

/// Draws the schedule: one to three faults at a time, then a breath, until a second before the end.
/// A third of the faults that keep clients from their servers outlast a lease, and the next rounds
/// go on beside them; every fourth breath is long enough for those who judge how long somebody
/// waited, and so is the one after a crowd. A run that is too short for either has none.
pub(super) fn plan(
    seed: u64,
    time: Duration,
    clients: u32,
    faults: &[Fault],
    pace: Pace,
) -> Vec<Planned> {
    let mut random = Random::new(seed, 0xfa17);
    let ms = Duration::from_millis;
    let mut planned: Vec<Planned> = Vec::new();
    let mut at = ms(500);
    let end = time.saturating_sub(ms(1_500));
    let judges = pace.calm * 5 < time;
    for round in 1.. {
        if at >= end || faults.is_empty() {
            break;
        }
        let mut last = at;
        for _ in 0..1 + random.below(TOGETHER_MAX as u64) {
            let which = usize::try_from(random.below(faults.len() as u64)).unwrap_or(0);
            let Some(&fault) = faults.get(which) else { continue };
            let client = u32::try_from(random.below(u64::from(clients))).unwrap_or(0);
            let from = at + random.between(ms(0), ms(100));
            let mut to = from + random.between(ms(100), ms(1_200));
            if fault.name == CROWD {
                // What it costs is measured, and held against what the breath after it costs.
                to = from + random.between(ms(2_000), ms(3_000));
                if to > end {
                    continue;
                }
            }
            let outlasting = fault.keeps_away() && random.below(OUTLASTS) == 0;
            // What is lost without a word has to be gone for longer than a request may take.
            let over = from
                + if links::loses(fault.name) {
                    random.between(ms(2_400), ms(4_000))
                } else {
                    pace.over_a_lease(&mut random)
                };
            if outlasting && over < end {
                to = to.max(over);
            }
            let next = Planned { fault, client, from, to };
            let beside = planned.iter().filter(|p| p.from <= to && from <= p.to).count();
            if beside >= TOGETHER_MAX || planned.iter().any(|p| p.excludes(&next)) {
                continue;
            }
            if to != over {
                last = last.max(to);
            }
            planned.push(next);
        }
        at = last + breath(&mut random);
        if round % ROUNDS == 0 && judges || planned.last().is_some_and(|p| p.fault.name == CROWD) {
            let over = planned.iter().map(|p| p.to).max().unwrap_or(at);
            let over = over.max(last);
            at = over + pace.calm(&mut random, over, &planned);
        }
    }
    planned.sort_by_key(|p| p.from);
    planned
}

/// The schedule of a broken client: its own faults, round after round, each time for another
/// client.
pub(super) fn rounds(
    seed: u64,
    time: Duration,
    broken: &Broken,
    clients: u32,
    faults: &[Fault],
) -> Vec<Planned> {
    let mut random = Random::new(seed, 0xb20c);
    let ms = Duration::from_millis;
    let mut planned = Vec::new();
    let mut round = ms(600);
    while round + ms(broken.round_ms) < time && !broken.trigger.is_empty() {
        let client = u32::try_from(random.below(u64::from(clients))).unwrap_or(0);
        for strike in broken.trigger {
            let Some(&fault) = faults.iter().find(|f| f.name == strike.fault) else { continue };
            let from = round + random.between(ms(strike.at_ms.0), ms(strike.at_ms.1));
            let hit = if strike.all && fault.hits != Hits::Server {
                0..clients
            } else {
                client..client + 1
            };
            planned.extend(hit.map(|client| Planned {
                fault,
                client,
                from,
                to: from + ms(strike.for_ms),
            }));
        }
        round += ms(broken.round_ms);
    }
    planned.sort_by_key(|p| p.from);
    planned
}

#[cfg(test)]
mod tests {
    use super::super::fault::{ANYWHERE, AWAY, KILL};
    use super::*;

    fn three() -> [Fault; 3] {
        let [stop, kill, starve, _] = ANYWHERE;
        [stop, kill, starve]
    }

    #[test]
    fn a_crowd_stays_for_seconds_and_so_does_the_time_without_it() {
        let [.., crowd] = ANYWHERE;
        for seed in 0..20 {
            let pace = Pace::of(Duration::from_millis(600));
            let plan = plan(seed, Duration::from_secs(30), 4, &[crowd], pace);
            let two_seconds = Duration::from_secs(2);
            assert!(
                plan.len() >= 3 && plan.iter().all(|p| p.to - p.from >= two_seconds),
                "{plan:?}"
            );
            assert!(plan.windows(2).all(|two| two[1].from - two[0].to >= two_seconds), "{plan:?}");
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_schedule_and_another_seed_another() {
        let draw =
            |seed| plan(seed, Duration::from_secs(30), 4, &three(), Pace::of(Duration::ZERO));
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let faults = draw(7);
        assert!(faults.len() >= 15, "{}", faults.len());
        assert!(faults.iter().all(|p| p.from < p.to && p.to < Duration::from_secs(30)));
        assert!(three().iter().all(|f| faults.iter().any(|p| p.fault == *f)));
    }

    #[test]
    fn a_link_that_is_cut_for_long_is_cut_for_longer_than_a_request_may_take_and_never_for_longer_than_the_run()
     {
        let (seconds, pace) = (Duration::from_secs, Pace::of(Duration::from_millis(600)));
        let drawn: Vec<Planned> =
            (0..50).flat_map(|seed| plan(seed, seconds(30), 4, &links::LOSSES, pace)).collect();
        let long: Vec<Duration> = drawn
            .iter()
            .map(|p| p.to - p.from)
            .filter(|lasts| *lasts > Duration::from_millis(1_200))
            .collect();
        assert!(
            long.len() > 50 && long.iter().all(|lasts| *lasts > seconds(2) && *lasts <= seconds(4)),
            "{long:?}"
        );
        assert!(drawn.iter().all(|p| p.to < seconds(30)));
    }

    #[test]
    fn no_client_link_or_server_is_hit_twice_at_a_time_and_different_ones_are() {
        let server = |name| Fault { name, hits: Hits::Server, excuses: &[], what: "" };
        let all: Vec<Fault> =
            three().into_iter().chain(links::FAULTS).chain([server("a"), server("b")]).collect();
        let faults = plan(3, Duration::from_secs(300), 2, &all, Pace::of(Duration::from_secs(1)));
        let mut composed = 0;
        for (at, one) in faults.iter().enumerate() {
            let beside = faults.iter().filter(|o| o.from <= one.from && one.from <= o.to).count();
            assert!(beside <= TOGETHER_MAX, "{beside} beside {one:?}");
            for other in faults.iter().skip(at + 1).filter(|o| o.from < one.to) {
                composed += 1;
                let same_place = one.fault.hits == other.fault.hits
                    && (one.fault.hits == Hits::Server || one.client == other.client);
                assert!(!same_place, "{one:?} {other:?}");
            }
        }
        assert!(composed > 20, "faults are composed: {composed}");
    }

    /// All that Redis has, about.
    fn many() -> Vec<Fault> {
        let server = |name, excuses| Fault { name, hits: Hits::Server, excuses, what: "" };
        let servers = ["stop-server", "flush", "script-flush", "evict", "out-of-memory"]
            .map(|name| server(name, &[]));
        three()
            .into_iter()
            .chain(links::FAULTS)
            .chain(servers)
            .chain([server("kill-server", AWAY)])
            .collect()
    }

    /// When nothing is wrong, from one fault to the next.
    fn calm(faults: &[Planned]) -> Vec<(Duration, Duration)> {
        let mut over = Duration::ZERO;
        let mut calm = Vec::new();
        for fault in faults.iter().filter(|p| p.fault.name != KILL) {
            if fault.from > over {
                calm.push((over, fault.from));
            }
            over = over.max(fault.to);
        }
        calm
    }

    #[test]
    fn a_third_of_what_keeps_clients_away_outlasts_a_lease_and_everybody_is_owed_a_lock_for_long_enough_again_and_again()
     {
        for (recovery_ms, long_min, calm_min, faults_min) in
            [(0, 0, 200, 700), (600, 200, 90, 600), (1_800, 70, 60, 400), (5_000, 30, 25, 190)]
        {
            let recovery = Duration::from_millis(recovery_ms);
            let (mut long, mut short, mut judged, mut all) = (0, 0, 0, 0);
            for seed in 0..4 {
                let faults = plan(seed, Duration::from_secs(150), 4, &many(), Pace::of(recovery));
                all += faults.len();
                let away = faults.iter().filter(|p| p.fault.keeps_away());
                let (over, under): (Vec<&Planned>, Vec<&Planned>) =
                    away.partition(|p| p.to - p.from > recovery * 6 / 5);
                assert!(
                    over.iter()
                        .all(|p| p.to - p.from <= (recovery * 2).max(Duration::from_millis(1_200)))
                );
                (long, short) = (long + over.len(), short + under.len());
                judged += calm(&faults)
                    .iter()
                    .filter(|(from, to)| *to - *from > recovery + SLACK)
                    .count();
            }
            println!(
                "T {recovery_ms} ms: {all} faults in 10 min, {long} of {} outlast a lease, \
                 {judged} calm spans",
                long + short
            );
            assert!(long >= long_min && judged >= calm_min && all >= faults_min);
        }
    }

    #[test]
    fn after_a_server_was_away_the_long_breath_is_longer_by_the_longest_pause_of_its_clients() {
        let away = [Fault { name: "kill-server", hits: Hits::Server, excuses: AWAY, what: "" }];
        let faults =
            plan(1, Duration::from_secs(60), 4, &away, Pace::of(Duration::from_millis(600)));
        let long = calm(&faults)
            .iter()
            .filter(|(from, to)| *to - *from > PAUSE_MAX + Duration::from_millis(600) + SLACK)
            .count();
        assert!(long >= 4, "{long}");
    }

    #[test]
    fn what_delays_clients_is_over_before_the_judged_part_of_a_long_breath_also_from_an_earlier_round()
     {
        let server = |name, excuses| Fault { name, hits: Hits::Server, excuses, what: "" };
        let away = [server("kill-server", AWAY), server("flush", &[]), three()[0]];
        let pace = Pace::of(Duration::from_millis(600));
        for seed in 0..20 {
            let faults = plan(seed, Duration::from_secs(150), 4, &away, pace);
            for (from, to) in calm(&faults).into_iter().filter(|(from, to)| *to - *from > pace.calm)
            {
                let back = faults
                    .iter()
                    .filter(|p| p.fault.delays() && p.to <= from)
                    .map(|p| p.to + PAUSE_MAX)
                    .max();
                assert!(
                    to - back.unwrap_or(from).max(from) > pace.calm,
                    "seed {seed}: from {from:?} to {to:?}, back at {back:?}"
                );
            }
        }
    }

    #[test]
    fn where_no_lease_can_end_before_the_run_does_faults_are_short_and_come_all_the_time() {
        let faults =
            plan(1, Duration::from_secs(30), 4, &many(), Pace::of(Duration::from_secs(30)));
        assert!(faults.len() >= 25, "{}", faults.len());
        assert!(faults.iter().all(|p| p.to - p.from <= Duration::from_millis(1_200)));
    }
}
