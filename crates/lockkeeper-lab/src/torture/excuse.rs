//! Which violations are the documented consequence of a fault. Everything else is beyond what the
//! engine's class allows.
//!
//! It is the pair that is judged, and not the moment: of two holders, the engine can have forgotten
//! only one that it confirmed for the last time before the fault was over, and it can have let the
//! other in only after the fault began. Two that were both confirmed after it are nobody's fault
//! but the lock's, however soon after it they meet.

mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper::Class as Promise;

use super::arena::About;
use super::fault::{Fault, KILL, LATE, STEP};
use crate::check::{Class, Late, Moment, Violation};

/// How long after a lease its end may be told of.
const TOLD: Duration = Duration::from_secs(1);
/// After so many faults of a kind that makes the engine forget, one that showed no second holder in
/// all of them is one run in a hundred. In eight runs of Redis for 30 s a flush showed one 16 times
/// in 22; an eviction, which need not hit what somebody holds, 4 times in 27; a server that came
/// back without its data, when most leases had ended meanwhile, once in 20.
fn shows_after(fault: &str) -> f64 {
    match fault {
        "flush" => 4.0,
        "kill-server" => 90.0,
        // Its replicas have nearly always heard of every grant; and one that goes on nearly always
        // hears that it was replaced before it grants.
        "kill-master" | "stop-node" => f64::INFINITY,
        _ => 30.0,
    }
}

/// See the module.
pub(super) struct Excuses {
    always: BTreeSet<Class>,
    windows: Vec<Window>,
    /// Faults that keep somebody from the server, whatever else they do.
    away: Vec<Window>,
    /// When processes were killed.
    deaths: Vec<u64>,
    /// Whether a grant in line has to be confirmed.
    confirms: bool,
    /// Whether clients are ours, whose pauses get longer from one lost connection to the next.
    ours: bool,
    lease: Duration,
    machine: Late,
    /// For how long commits were slow, where a grant is one.
    commits: Late,
    /// Since when the record of somebody is missing.
    blind_from: Option<u64>,
    /// Whether the machine is the only one that is late.
    undisturbed: bool,
}

/// A fault that something may be due to; `to` is when it ended.
struct Window {
    fault: Fault,
    /// Which process it hit, 0 for none in particular.
    target: u64,
    from: u64,
    to: u64,
}

impl Window {
    /// Whether it is this one, under way.
    fn is(&self, fault: Fault, target: u64) -> bool {
        self.fault == fault && self.target == target && self.to == u64::MAX
    }

    /// Whether it hit this process.
    fn hit(&self, process: u64) -> bool {
        self.target == 0 || self.target == process
    }

    /// So long after its end.
    fn after(&self, time: Duration) -> u64 {
        self.to.saturating_add(ns(time))
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

impl Excuses {
    /// What an engine's description lets expect, of a lock of ours or of somebody else's. What is
    /// no lock of ours was promised by nobody to be safe with late writes, or not to be. Where no
    /// fault is, nobody is late.
    pub(super) fn of(about: &About, ours: bool, undisturbed: bool, machine: Late) -> Self {
        let late = about.expiry.is_timed() && ours && !undisturbed;
        let excuses = Self::new(late, about.recovery, machine)
            .tries_stand(about.expiry.session().is_some() || !ours)
            .in_order(about.fair)
            .confirming(about.expiry.claim_lease().is_some());
        let excuses = if undisturbed { excuses.undisturbed() } else { excuses };
        if ours { excuses } else { excuses.of_others() }
    }

    /// What is expected whatever the faults: an engine with leases lets late writes reach a
    /// resource without tokens. No lease outlasts `recovery`, and waits may be longer where the
    /// machine was late.
    pub(super) fn new(leases: bool, recovery: Duration, machine: Late) -> Self {
        let mut always = BTreeSet::from([Class::FifoInversion]);
        if leases {
            always.extend(LATE);
        }
        Self {
            always,
            windows: Vec::new(),
            away: Vec::new(),
            deaths: Vec::new(),
            confirms: false,
            ours: true,
            lease: recovery,
            machine,
            commits: Late::never(),
            blind_from: None,
            undisturbed: false,
        }
    }

    /// Where a line keeps the order nobody is overtaken in it; the checker judges no wait in which
    /// a fault was under way.
    pub(super) fn in_order(mut self, fair: bool) -> Self {
        if fair {
            self.always.remove(&Class::FifoInversion);
        }
        self
    }

    /// Where a grant that was waited for has to be confirmed, and else passes on.
    pub(super) fn confirming(mut self, confirms: bool) -> Self {
        self.confirms = confirms;
        self
    }

    /// No fault will be: nobody is late.
    pub(super) fn undisturbed(mut self) -> Self {
        self.undisturbed = true;
        self
    }

    /// A grant to a waiter is a commit, of which this is told.
    pub(super) fn committed_in(mut self, commits: Late) -> Self {
        self.commits = commits;
        self
    }

    /// Whether processors were short for as long as a grant waits to be confirmed, a third of a
    /// lease at most, before this moment: who was kept from running may lose its lease, and its
    /// grant passes on when it is not confirmed in time (R11). Or commits were slow for as
    /// long: a grant that nobody could read in time passes on as well.
    fn is_short(&self, class: Class, moment: Moment) -> bool {
        // Two that both held it are nobody's lateness.
        let of_time = class == Class::FifoInversion
            || self.undisturbed && moment.late && LATE.contains(&class);
        let at = moment.at;
        let (third, from) = (ns(self.lease / 3), at.saturating_sub(ns(2 * (self.lease + TOLD))));
        let unread = class == Class::FifoInversion && self.commits.ns(from, at) > third;
        third > 0 && (unread || of_time && self.machine.ns(from, at) > third)
    }

    /// What nobody promised for a lock that is not ours: that it tells its holder anything. Nor
    /// does it come back as late as ours may.
    pub(super) fn of_others(mut self) -> Self {
        self.always.insert(Class::LateLoss);
        self.ours = false;
        self
    }

    /// Tries stand in line like everybody, for as long as it takes: one that meets another may be
    /// refused, though that one comes away with nothing.
    pub(super) fn tries_stand(mut self, stand: bool) -> Self {
        if stand {
            self.always.insert(Class::WrongBusy);
        }
        self
    }

    /// The classes that may be expected at any time.
    pub(super) fn always(&self) -> BTreeSet<Class> {
        self.always.clone()
    }

    /// A fault begins that hits this process, 0 for none in particular.
    pub(super) fn begin(&mut self, fault: Fault, target: u64, now: u64) {
        let window = || Window { fault, target, from: now, to: u64::MAX };
        if !fault.excuses.is_empty() {
            self.windows.push(window());
        }
        if fault.keeps_away() {
            self.away.push(window());
        }
        if fault.name == KILL {
            self.deaths.push(now);
        }
    }

    /// The one that began last did not happen.
    pub(super) fn failed(&mut self, fault: Fault, target: u64) {
        for windows in [&mut self.windows, &mut self.away] {
            if let Some(at) = windows.iter().rposition(|w| w.is(fault, target)) {
                windows.remove(at);
            }
        }
        if fault.name == KILL {
            self.deaths.pop();
        }
    }

    /// Somebody's record ends here, and nothing that comes after it can be held against anybody.
    pub(super) fn blind_from(&mut self, at: u64) {
        self.blind_from = Some(at);
    }

    /// It ends.
    pub(super) fn end(&mut self, fault: Fault, target: u64, now: u64) {
        for windows in [&mut self.windows, &mut self.away] {
            if let Some(window) = windows.iter_mut().rev().find(|w| w.is(fault, target)) {
                window.to = now;
            }
        }
    }

    /// When something of a hold that began may be excused, in the order of time and apart from each
    /// other.
    pub(super) fn of_holds(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = self
            .windows
            .iter()
            .filter(|w| w.fault.excuses.contains(&Class::Overlap))
            .map(|w| (w.from, w.after(self.lease)))
            .collect();
        all.sort_unstable();
        let mut apart: Vec<(u64, u64)> = Vec::new();
        for (from, to) in all {
            match apart.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => apart.push((from, to)),
            }
        }
        apart
    }

    /// Whether this is no more than was said beforehand.
    pub(super) fn expects(&self, violation: &Violation) -> bool {
        self.expects_at(violation.class, violation.moment())
    }

    /// The same for one that is not described.
    pub(super) fn expects_at(&self, class: Class, moment: Moment) -> bool {
        if self.blind_from.is_some_and(|from| moment.at >= from) {
            return true;
        }
        // Who is late where no token is checked is all that it takes; else there were two holders,
        // and that has to have a reason.
        let of_itself = self.always.contains(&class) && (moment.late || !LATE.contains(&class));
        if class == Class::SlowRecovery && self.explains_wait(moment) {
            return true;
        }
        of_itself
            || self.is_short(class, moment)
            || self.windows.iter().any(|window| self.explains(window, class, moment))
    }

    /// What excuses one that is expected: the fault and when it began, or what needs no moment.
    pub(super) fn reason(&self, violation: &Violation) -> Option<(&'static str, Option<u64>)> {
        let (class, moment) = (violation.class, violation.moment());
        if !self.expects(violation) {
            return None;
        }
        let fault = self.windows.iter().find(|window| self.explains(window, class, moment));
        let delay = || (class == Class::SlowRecovery).then(|| self.delay(moment)).flatten();
        let caused = fault.map(|w| (w.fault.name, Some(w.from))).or_else(delay);
        let of_itself = if self.blind_from.is_some_and(|from| moment.at >= from) {
            "a record that ends before it"
        } else if self.is_short(class, moment) {
            "a machine or a disk that was late"
        } else {
            "what the engine promises"
        };
        Some(caused.unwrap_or((of_itself, None)))
    }

    /// Whether it is a documented consequence of this fault.
    fn explains(&self, window: &Window, class: Class, moment: Moment) -> bool {
        if class == Class::SlowRecovery
            || !window.fault.excuses.contains(&class)
            || moment.at < window.from
        {
            return false;
        }
        // A record that stays keeps its number, whatever the clock does; where it was lost, numbers
        // that follow the clock stay behind for as long as that has to catch up.
        let numbers =
            matches!(class, Class::TokenOrder | Class::TokenRepeated | Class::StaleWriteUnfenced);
        let forgot = |w: &Window| {
            w.fault.forgets() && w.from <= moment.at && w.after(self.lease) >= window.from
        };
        let behind = numbers && window.fault.sets_back() && self.windows.iter().any(forgot);
        let believed = self.believed(window, moment.pair);
        let until = believed
            .saturating_add(ns(self.lease + TOLD + if behind { STEP } else { Duration::ZERO }));
        // Who stood still meanwhile reads only later what was granted to it by the wrong clock, and
        // counts from when the clock was right.
        let made = if window.fault.sets_back() {
            believed.saturating_add(ns(self.lease))
        } else {
            window.to
        };
        moment.since <= made && moment.at <= until
    }

    /// Until when somebody may believe in what a wrong clock told: whoever is kept from the server
    /// hears the right time only after that. Of two holders it is one of them.
    fn believed(&self, window: &Window, pair: Option<[u32; 2]>) -> u64 {
        let one = |away: &Window| {
            pair.is_none_or(|pair| pair.iter().any(|process| away.hit(u64::from(*process))))
        };
        let while_wrong =
            |away: &Window| away.from <= window.after(self.lease) && away.to >= window.to;
        let away = self
            .away
            .iter()
            .filter(|away| window.fault.sets_back() && while_wrong(away) && one(away));
        away.map(|away| away.to).max().unwrap_or(window.to)
    }

    /// An engine of class EFFICIENCY has to show what faults can do to it, each kind that makes it
    /// forget in a window of its own: why it was too weak a try, if it did not though there were so
    /// many that it is to be expected.
    pub(super) fn not_shown(
        &self,
        promise: Promise,
        found: &BTreeMap<Class, Vec<Moment>>,
    ) -> Option<String> {
        let two = [Class::Overlap, Class::ReadersWithWriter, Class::PermitsExceeded];
        let holders = || {
            two.iter()
                .filter_map(|class| Some((*class, found.get(class)?)))
                .flat_map(|(class, all)| all.iter().map(move |m| (class, *m)))
        };
        let mut kinds: BTreeMap<&str, (u32, bool)> = BTreeMap::new();
        for window in
            self.windows.iter().filter(|w| promise == Promise::Efficiency && w.fault.forgets())
        {
            let (times, shown) = kinds.entry(window.fault.name).or_default();
            *times += 1;
            *shown |= holders().any(|(class, moment)| self.explains(window, class, moment));
        }
        // Chances multiply: of several kinds together each needs fewer.
        let expected = |name: &str, times: u32| f64::from(times) / shows_after(name);
        let all: f64 = kinds.iter().map(|(name, (times, _))| expected(name, *times)).sum();
        let none = all >= 1.0 && kinds.values().all(|(_, shown)| !shown);
        let (name, (times, _)) = kinds
            .into_iter()
            .find(|(name, (times, shown))| !shown && (none || expected(name, *times) >= 1.0))?;
        Some(format!(
            "{name} happened {times} × and no second holder was seen, though the engine is of \
             class EFFICIENCY"
        ))
    }
}

#[cfg(test)]
mod tests;
