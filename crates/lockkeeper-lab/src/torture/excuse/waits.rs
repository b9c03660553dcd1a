//! How long somebody may wait who is owed a lock: for as long as clients take to come back, and
//! those who died in line to be passed over.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::Conviction;
use super::super::fault::{Hits, KILL, PAUSE_MAX, STEP};
use super::{Excuses, Window, ns};
use crate::check::{Class, Moment};
use crate::judge::liveness::{LIVENESS, SLACK};

/// For how long a lock is kept for one to whom it was granted in line and who does not say that it
/// knows, at most.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(2);

impl Excuses {
    /// Whether somebody who was owed a lock from one moment to the other would be excused.
    pub(in super::super) fn expects_wait(&self, since: u64, until: u64) -> bool {
        self.expects_at(Class::SlowRecovery, Moment::at(until).since(since))
    }

    /// The same for what the checker does not judge: a lock that nobody gets is a slow recovery.
    pub(in super::super) fn expects_conviction(&self, conviction: &Conviction) -> bool {
        conviction.class == LIVENESS && self.expects_wait(conviction.at, conviction.until)
    }

    /// Says whether one who waited without a fault until some moment would be judged, on a machine
    /// that is never late: that makes a run no weaker than its schedule was.
    pub(in super::super) fn judges_waits(&self) -> impl Fn(u64) -> bool {
        // Once, and not for each who waited: of half an hour's faults that would take longer.
        let delayed = self.delaying().map(|window| window.from..=self.back(window));
        let delayed: Vec<_> = delayed.collect();
        move |until| !delayed.iter().any(|delayed| delayed.contains(&until))
    }

    /// Whether one was delayed until that moment.
    pub(super) fn explains_wait(&self, moment: Moment) -> bool {
        self.delay(moment).is_some()
    }

    /// The fault that delayed one until that moment, and when it began.
    pub(super) fn delay(&self, moment: Moment) -> Option<(&'static str, Option<u64>)> {
        let late = |window: &Window| self.machine.ns(window.to, moment.at);
        let one = |window: &&Window| {
            moment.at >= window.from && moment.at <= self.back(window).saturating_add(late(window))
        };
        let fault = self.delaying().find(one).map(|window| (window.fault.name, Some(window.from)));
        fault.or_else(|| self.passed_over(moment).then_some((KILL, None)))
    }

    /// Who stood first in line and died is granted the lock like everybody, and has its time to
    /// confirm that (R11).
    fn passed_over(&self, moment: Moment) -> bool {
        let third = self.confirms.then_some(CONFIRMED_WITHIN.min(self.lease / 3)).map_or(0, ns);
        // No turn before the wait lasted longer than two leases.
        let from = moment.since.saturating_sub(ns(2 * self.lease));
        let dead = self.deaths.iter().filter(|at| (from..=moment.at).contains(at)).count() as u64;
        let most = ns(self.lease + SLACK).saturating_add(dead.saturating_mul(third));
        let late = self.machine.ns(moment.since, moment.at);
        dead > 0 && third > 0 && moment.at.saturating_sub(moment.since) <= most.saturating_add(late)
    }

    /// What delays: the faults that are said to, and those that cut off somebody who was cut off a
    /// moment before, and pauses for as long as it did then, if it is ours.
    fn delaying(&self) -> impl Iterator<Item = &Window> {
        let links =
            || self.away.iter().filter(|window| self.ours && window.fault.hits == Hits::Link);
        let once_more = move |window: &&Window| {
            let before = |other: &&Window| other.target == window.target && other.to <= window.from;
            links()
                .filter(before)
                .any(|last| window.from <= last.to.saturating_add(2 * ns(PAUSE_MAX)))
        };
        self.windows.iter().filter(|window| window.fault.delays()).chain(links().filter(once_more))
    }

    /// Until when a fault delays: clients come back late, or what was granted while a clock was
    /// ahead is kept for longer once it is right again. Then T counts. A crowd that left has kept
    /// nobody away.
    fn back(&self, window: &Window) -> u64 {
        let (from, late) = match window.fault.hits {
            _ if window.fault.sets_back() => (window.to, STEP),
            Hits::Machine => (window.to, Duration::ZERO),
            _ => (self.kept_away(window), PAUSE_MAX),
        };
        from.saturating_add(ns(late + self.lease + SLACK))
    }

    /// Until when somebody was kept away who had not come back from it yet: its pauses go on where
    /// they were.
    fn kept_away(&self, window: &Window) -> u64 {
        let of = |process: u64| {
            let (mut until, mut further) = (window.to, true);
            while std::mem::take(&mut further) {
                for away in self.away.iter().filter(|away| away.hit(process)) {
                    if away.to > until && away.from <= until.saturating_add(ns(PAUSE_MAX)) {
                        (until, further) = (away.to, true);
                    }
                }
            }
            until
        };
        let hit: BTreeSet<u64> = self.away.iter().map(|away| away.target).collect();
        hit.into_iter().map(of).max().unwrap_or(window.to)
    }
}
