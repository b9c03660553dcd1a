//! Which violations are the documented consequence of a fault. Everything else is beyond what the engine's class allows.
//!
//! It is the pair that is judged, and not the moment: of two holders, the engine can have forgotten only one that it confirmed for the
//! last time before the fault was over, and it can have let the other in only after the fault began. Two that were both confirmed after it
//! are nobody's fault but the lock's, however soon after it they meet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper::Class as Promise;

use super::Conviction;
use super::fault::{Fault, LATE, PAUSE_MAX, STEP};
use super::liveness::{LIVENESS, SLACK};
use crate::check::{Class, Late, Moment, Violation};

/// How long after a lease its end may be told of.
const TOLD: Duration = Duration::from_secs(1);
/// After so many faults of a kind that makes the engine forget, one that showed no second holder in all of them is one run in a hundred. In
/// eight runs of Redis for 30 s a flush showed one 16 times in 22; an eviction, which need not hit what somebody holds, 4 times in 27; a
/// server that came back without its data, when most leases had ended meanwhile, once in 20.
fn shows_after(fault: &str) -> f64 {
    match fault {
        "flush" => 4.0,
        "kill-server" => 90.0,
        _ => 30.0,
    }
}

/// See the module.
pub(super) struct Excuses {
    always: BTreeSet<Class>,
    windows: Vec<Window>,
    /// Faults that keep somebody from the server, whatever else they do.
    away: Vec<Window>,
    lease: Duration,
    machine: Late,
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
    /// What is expected whatever the faults: an engine with leases lets late writes reach a resource without tokens. No lease outlasts
    /// `recovery`, and waits may be longer where the machine was late.
    pub(super) fn new(leases: bool, recovery: Duration, machine: Late) -> Self {
        let mut always = BTreeSet::from([Class::FifoInversion]);
        if leases {
            always.extend(LATE);
        }
        Self { always, windows: Vec::new(), away: Vec::new(), lease: recovery, machine, blind_from: None, undisturbed: false }
    }

    /// Where a line keeps the order nobody is overtaken in it; the checker judges no wait in which a fault was under way.
    pub(super) fn in_order(mut self, fair: bool) -> Self {
        if fair {
            self.always.remove(&Class::FifoInversion);
        }
        self
    }

    /// No fault will be: nobody is late.
    pub(super) fn undisturbed(mut self) -> Self {
        self.undisturbed = true;
        self
    }

    /// Whether processors were short for as long as a grant waits to be confirmed, a third of a lease at most, before this moment: who was
    /// kept from running may lose its lease, and its grant passes on when it is not confirmed in time (R11).
    fn is_short(&self, class: Class, moment: Moment) -> bool {
        // Two that both held it are nobody's lateness.
        let of_time = class == Class::FifoInversion || self.undisturbed && moment.late && LATE.contains(&class);
        let at = moment.at;
        let (third, before) = (ns(self.lease / 3), ns(2 * (self.lease + TOLD)));
        of_time && third > 0 && self.machine.ns(at.saturating_sub(before), at) > third
    }

    /// What nobody promised for a lock that is not ours: that it tells its holder anything.
    pub(super) fn of_others(mut self) -> Self {
        self.always.insert(Class::LateLoss);
        self
    }

    /// Tries stand in line like everybody, for as long as it takes: one that meets another may be refused, though that one comes
    /// away with nothing.
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
    }

    /// The one that began last did not happen.
    pub(super) fn failed(&mut self, fault: Fault, target: u64) {
        for windows in [&mut self.windows, &mut self.away] {
            if let Some(at) = windows.iter().rposition(|w| w.is(fault, target)) {
                windows.remove(at);
            }
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

    /// When something of a hold that began may be excused, in the order of time and apart from each other.
    pub(super) fn of_holds(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> =
            self.windows.iter().filter(|w| w.fault.excuses.contains(&Class::Overlap)).map(|w| (w.from, w.after(self.lease))).collect();
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
        // Who is late where no token is checked is all that it takes; else there were two holders, and that has to have a reason.
        let of_itself = self.always.contains(&class) && (moment.late || !LATE.contains(&class));
        of_itself || self.is_short(class, moment) || self.windows.iter().any(|window| self.explains(window, class, moment))
    }

    /// Whether somebody who was owed a lock from one moment to the other would be excused.
    pub(super) fn expects_wait(&self, since: u64, until: u64) -> bool {
        self.expects_at(Class::SlowRecovery, Moment::at(until).since(since))
    }

    /// The same for what the checker does not judge: a lock that nobody gets is a slow recovery.
    pub(super) fn expects_conviction(&self, conviction: &Conviction) -> bool {
        conviction.class == LIVENESS && self.expects_wait(conviction.at, conviction.until)
    }

    /// Whether one who waited without a fault until then would be judged, on a machine that is never late: that makes a run no weaker than
    /// its schedule was.
    pub(super) fn judges_wait(&self, until: u64) -> bool {
        !self.windows.iter().any(|w| w.fault.delays() && until >= w.from && until <= self.back(w))
    }

    /// Until when a fault delays: clients come back late, or what was granted while a clock was ahead is kept for longer once it is
    /// right again. Then T counts.
    fn back(&self, window: &Window) -> u64 {
        let (from, late) = if window.fault.sets_back() { (window.to, STEP) } else { (self.kept_away(window), PAUSE_MAX) };
        from.saturating_add(ns(late + self.lease + SLACK))
    }

    /// Until when somebody was kept away who had not come back from it yet: its pauses go on where they were.
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
        self.away.iter().map(|away| of(away.target)).max().unwrap_or(window.to)
    }

    /// Whether it is a documented consequence of this fault.
    fn explains(&self, window: &Window, class: Class, moment: Moment) -> bool {
        if !window.fault.excuses.contains(&class) || moment.at < window.from {
            return false;
        }
        if class == Class::SlowRecovery {
            return moment.at <= self.back(window).saturating_add(self.machine.ns(window.to, moment.at));
        }
        // A record that stays keeps its number, whatever the clock does; where it was lost, numbers that follow the clock stay behind
        // for as long as that has to catch up.
        let numbers = matches!(class, Class::TokenOrder | Class::TokenRepeated | Class::StaleWriteUnfenced);
        let forgot = |w: &Window| w.fault.forgets() && w.from <= moment.at && w.after(self.lease) >= window.from;
        let behind = numbers && window.fault.sets_back() && self.windows.iter().any(forgot);
        let believed = self.believed(window, moment.pair);
        let until = believed.saturating_add(ns(self.lease + TOLD + if behind { STEP } else { Duration::ZERO }));
        // Who stood still meanwhile reads only later what was granted to it by the wrong clock, and counts from when the clock was right.
        let made = if window.fault.sets_back() { believed.saturating_add(ns(self.lease)) } else { window.to };
        moment.since <= made && moment.at <= until
    }

    /// Until when somebody may believe in what a wrong clock told: whoever is kept from the server hears the right time only after that. Of
    /// two holders it is one of them.
    fn believed(&self, window: &Window, pair: Option<[u32; 2]>) -> u64 {
        let one = |away: &Window| pair.is_none_or(|pair| pair.iter().any(|process| away.hit(u64::from(*process))));
        let while_wrong = |away: &Window| away.from <= window.after(self.lease) && away.to >= window.to;
        let away = self.away.iter().filter(|away| window.fault.sets_back() && while_wrong(away) && one(away));
        away.map(|away| away.to).max().unwrap_or(window.to)
    }

    /// An engine of class EFFICIENCY has to show what faults can do to it, each kind that makes it forget in a window of its own: why it was
    /// too weak a try, if it did not though there were so many that it is to be expected.
    pub(super) fn not_shown(&self, promise: Promise, found: &BTreeMap<Class, Vec<Moment>>) -> Option<String> {
        let two = [Class::Overlap, Class::ReadersWithWriter, Class::PermitsExceeded];
        let holders = || {
            two.iter().filter_map(|class| Some((*class, found.get(class)?))).flat_map(|(class, all)| all.iter().map(move |m| (class, *m)))
        };
        let mut kinds: BTreeMap<&str, (u32, bool)> = BTreeMap::new();
        for window in self.windows.iter().filter(|w| promise == Promise::Efficiency && w.fault.forgets()) {
            let (times, shown) = kinds.entry(window.fault.name).or_default();
            *times += 1;
            *shown |= holders().any(|(class, moment)| self.explains(window, class, moment));
        }
        // Chances multiply: of several kinds together each needs fewer.
        let expected = |name: &str, times: u32| f64::from(times) / shows_after(name);
        let all: f64 = kinds.iter().map(|(name, (times, _))| expected(name, *times)).sum();
        let none = all >= 1.0 && kinds.values().all(|(_, shown)| !shown);
        let (name, (times, _)) = kinds.into_iter().find(|(name, (times, shown))| !shown && (none || expected(name, *times) >= 1.0))?;
        Some(format!("{name} happened {times} × and no second holder was seen, though the engine is of class EFFICIENCY"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::{AWAY, AWAY_AND_FORGOTTEN, FORGOTTEN, Hits, SET_BACK};
    use super::*;

    const FLUSH: Fault = Fault { name: "flush", hits: Hits::Server, excuses: FORGOTTEN, what: "" };
    const CLOCK: Fault = Fault { name: "clock-back", hits: Hits::Server, excuses: SET_BACK, what: "" };
    const FORGETS: Fault = Fault { name: "kill-server", hits: Hits::Server, excuses: AWAY_AND_FORGOTTEN, what: "" };
    const KILLED: Fault = Fault { name: "kill-server", hits: Hits::Server, excuses: AWAY, what: "" };
    const SECOND: u64 = 1_000_000_000;

    fn excuses(leases: bool, seconds: u64, faults: &[(Fault, u64, u64)]) -> Excuses {
        let mut excuses = Excuses::new(leases, Duration::from_secs(seconds), Late::never());
        faults.iter().for_each(|fault| suffer(&mut excuses, 0, fault));
        excuses
    }

    fn suffer(excuses: &mut Excuses, process: u64, &(fault, from, to): &(Fault, u64, u64)) {
        excuses.begin(fault, process, from * SECOND);
        excuses.end(fault, process, to * SECOND);
    }

    /// Shown at one moment, in the making since another.
    fn pair(since: u64, at: u64) -> Moment {
        Moment::at(at * SECOND).since(since * SECOND)
    }

    fn violation(class: Class, at: u64) -> Violation {
        Violation { class, name: "a".to_owned(), at, since: at, late: false, pair: None, sentence: String::new(), records: Vec::new() }
    }

    #[test]
    fn two_holders_are_explained_by_a_fault_only_if_one_was_confirmed_before_its_end_and_the_other_came_after_its_beginning() {
        let excuses = excuses(true, 2, &[(FLUSH, 10, 20)]);
        for class in [Class::Overlap, Class::ReadersWithWriter, Class::PermitsExceeded, Class::HoldVanished, Class::TokenOrder] {
            let expected = |since, at| excuses.expects_at(class, pair(since, at));
            assert!(!expected(8, 9), "{class}: both before it");
            assert!(expected(9, 11) && expected(11, 12) && expected(19, 22), "{class}: one of them can have been forgotten");
            assert!(!expected(21, 22), "{class}: both were confirmed after it, however soon");
            assert!(!expected(19, 24), "{class}: no lease lasts so long");
        }
        assert!(!excuses.expects_at(Class::SlowRecovery, pair(10, 12)), "not what this fault does");
    }

    #[test]
    fn what_comes_late_where_no_token_is_checked_is_expected_of_leases_and_two_holders_of_a_fault_alone() {
        let leased = excuses(true, 2, &[(FLUSH, 10, 20)]);
        for class in LATE {
            let late = Moment { late: true, ..pair(50, 50) };
            assert!(leased.expects_at(class, late), "{class}: leases let late writes pass");
            assert!(!leased.expects_at(class, pair(50, 50)), "{class}: both held it");
            let forgotten = class != Class::LateEffect;
            assert_eq!(leased.expects_at(class, pair(15, 21)), forgotten, "{class}: one of both was forgotten");
            assert!(!excuses(false, 0, &[]).expects_at(class, late), "{class}: no leases");
        }
    }

    #[test]
    fn a_try_that_is_refused_for_nothing_is_expected_only_where_tries_stand_in_line() {
        let expects = |stand| excuses(true, 0, &[]).tries_stand(stand).expects(&violation(Class::WrongBusy, 1));
        assert!(expects(true) && !expects(false));
    }

    #[test]
    fn tokens_that_go_back_are_expected_of_two_holders_and_while_a_clock_is_behind_and_not_to_the_end_of_the_run() {
        let of = |faults: &[(Fault, u64, u64)]| {
            let excuses = excuses(true, 1, faults);
            move |since: u64, at: u64| excuses.expects_at(Class::TokenOrder, pair(since, at))
        };
        let forgotten = of(&[(FLUSH, 10, 11)]);
        assert!(forgotten(9, 13) && !forgotten(12, 13) && !forgotten(9, 14), "the older holder's turns have the smaller tokens");
        let stepped = of(&[(CLOCK, 10, 11)]);
        assert!(stepped(9, 13) && !stepped(9, 14), "a record that stays keeps its number");
        let both = of(&[(CLOCK, 10, 11), (FLUSH, 12, 13)]);
        assert!(both(9, 15), "until the clock has caught up, and a lease");
        assert!(!both(9, 16), "and not to the end of the run");
        assert!(!both(14, 15), "both got theirs by the right clock");
        assert!(!of(&[(FLUSH, 5, 6), (CLOCK, 10, 11)])(9, 15), "what was lost long before is numbered by the right clock");
    }

    #[test]
    fn a_lock_that_nobody_gets_is_expected_for_as_long_as_clients_take_to_come_back_and_no_longer() {
        let excuses = excuses(true, 1, &[(KILLED, 10, 11)]);
        let found = |class, at: u64, until: u64| {
            let (at, until) = (at * SECOND, until * SECOND);
            Conviction { class, name: String::new(), at, until, sentence: String::new() }
        };
        let expected = |class, at, until| excuses.expects_conviction(&found(class, at, until));
        // Its end, the longest pause of a client, and T.
        assert!(expected(LIVENESS, 11, 14) && !expected(LIVENESS, 11, 15), "however soon after it that begins");
        assert!(!expected(LIVENESS, 7, 9) && !expected("crash", 12, 12) && !expected("cost", 12, 12));
    }

    #[test]
    fn who_is_kept_away_again_before_it_is_back_comes_back_that_much_later() {
        const CUT: Fault = Fault { name: "partition-up", hits: Hits::Link, excuses: &[], what: "" };
        const STOPPED: Fault = Fault { name: "stop-server", hits: Hits::Server, excuses: &[], what: "" };
        // A server that was away until 11 s, and then once or twice somebody: who, which fault, from, to.
        let expected = |then: &[(u64, (Fault, u64, u64))], until| {
            let mut excuses = excuses(true, 1, &[(KILLED, 10, 11)]);
            then.iter().for_each(|(process, fault)| suffer(&mut excuses, *process, fault));
            excuses.expects_wait(11 * SECOND, until * SECOND)
        };
        assert!(expected(&[], 14) && !expected(&[], 15));
        let once = [(7, (CUT, 12, 14))];
        assert!(expected(&once, 17) && !expected(&once, 18));
        let twice = [(7, (CUT, 12, 14)), (7, (CUT, 15, 16))];
        assert!(expected(&twice, 19) && !expected(&twice, 20));
        let other = [(7, (CUT, 12, 14)), (8, (CUT, 15, 16))];
        assert!(expected(&other, 17) && !expected(&other, 18), "another client was back long since");
        let server = [(7, (CUT, 12, 14)), (0, (STOPPED, 15, 16))];
        assert!(expected(&server, 19) && !expected(&server, 20), "a server is everybody's");
        let late = [(7, (CUT, 14, 15))];
        assert!(expected(&late, 14) && !expected(&late, 15), "it was back");
    }

    #[test]
    fn a_lock_that_nobody_gets_is_expected_while_a_clock_was_wrong_and_what_it_granted_lasts() {
        let of = |fault| {
            let excuses = excuses(true, 1, &[(fault, 10, 11)]);
            move |until| excuses.expects_wait(11 * SECOND, until * SECOND)
        };
        let stepped = of(CLOCK);
        assert!(stepped(14) && !stepped(15), "a lease, and the step by which one that was granted meanwhile is longer");
        assert!(!of(FLUSH)(12));
        let late = Excuses { machine: Late::told_by(|_, _| SECOND), ..excuses(true, 1, &[(CLOCK, 10, 11)]) };
        assert!(late.expects_wait(11 * SECOND, 15 * SECOND) && !late.expects_wait(11 * SECOND, 16 * SECOND), "where the machine is late");
        assert!(!late.judges_wait(14 * SECOND) && late.judges_wait(15 * SECOND), "the schedule was strong enough all the same");
    }

    #[test]
    fn who_is_kept_from_a_server_whose_clock_was_wrong_may_believe_in_that_until_it_is_back() {
        const HELD: Fault = Fault { name: "hold-replies", hits: Hits::Link, excuses: &[], what: "" };
        let expected = |faults: &[_], since, at| excuses(true, 1, faults).expects_at(Class::Overlap, pair(since, at));
        let [alone, away, later] = [&[(CLOCK, 10, 11)][..], &[(CLOCK, 10, 11), (HELD, 11, 13)], &[(CLOCK, 10, 11), (HELD, 13, 15)]];
        assert!(expected(away, 13, 14) && !expected(away, 15, 15) && !expected(away, 13, 16));
        assert!(!expected(alone, 13, 14) && !expected(later, 13, 14));
        assert!(!expected(&[(FLUSH, 10, 11), (HELD, 11, 13)], 13, 14), "what was forgotten is no clock's doing");
        let of = |pair| {
            let mut excuses = excuses(true, 1, &[(CLOCK, 10, 11)]);
            suffer(&mut excuses, 7, &(HELD, 11, 13));
            excuses.expects_at(Class::Overlap, Moment { pair: Some(pair), ..self::pair(13, 14) })
        };
        assert!(of([7, 8]) && of([8, 7]) && !of([8, 9]), "neither of these two was kept away");
    }

    #[test]
    fn holds_are_outside_of_all_windows_once_no_lease_from_before_is_left() {
        let faults = [(FLUSH, 10, 11), (CLOCK, 12, 13), (KILLED, 20, 21), (FLUSH, 30, 31)];
        let seconds = |(from, to): (u64, u64)| (from / SECOND, to / SECOND);
        let windows: Vec<_> = excuses(true, 2, &faults).of_holds().into_iter().map(seconds).collect();
        assert_eq!(windows, [(10, 15), (30, 33)], "a server that was away and forgot nothing excuses nothing of theirs");
    }

    #[test]
    fn who_forgets_and_whose_clock_is_wrong_is_told_by_what_it_leads_to() {
        let of = |excuses| Fault { name: "", hits: Hits::Server, excuses, what: "" };
        let told = [FORGOTTEN, AWAY_AND_FORGOTTEN, SET_BACK, AWAY, &[]].map(|excuses| (of(excuses).forgets(), of(excuses).sets_back()));
        assert_eq!(told, [(true, false), (true, false), (false, true), (false, false), (false, false)]);
        for excuses in [AWAY_AND_FORGOTTEN, SET_BACK] {
            assert!(FORGOTTEN.iter().all(|class| excuses.contains(class)));
        }
    }

    #[test]
    fn without_faults_order_and_time_are_kept_but_by_those_whom_the_machine_kept_from_running() {
        let second = SECOND;
        // Half a second of processors, three times what threads were late, is missing between 10 s and 11 s.
        let short = move |from: u64, to: u64| if from < 11 * second && to > 10 * second { second / 2 } else { 0 };
        let of = |fair, recovery| Excuses::new(false, recovery, Late::told_by(short)).in_order(fair).undisturbed();
        let leases = of(true, Duration::from_secs(1));
        let late = |at| Moment { late: true, ..pair(at, at) };
        let expected = |class, at| leases.expects_at(class, late(at));
        for class in [Class::FifoInversion, Class::LateEffect, Class::LostUpdate] {
            assert!(!expected(class, 9) && expected(class, 11) && expected(class, 14) && !expected(class, 16), "{class:?}");
        }
        assert!(!expected(Class::Overlap, 11) && !expected(Class::TokenOrder, 11));
        assert!(!leases.expects_at(Class::LostUpdate, pair(11, 11)), "both held it");
        assert!(!of(true, Duration::from_secs(3)).expects_at(Class::FifoInversion, pair(11, 11)), "less than a third of its lease");
        assert!(!of(false, Duration::ZERO).expects_at(Class::LateEffect, pair(11, 11)), "there are no leases that could end");
        assert!(of(false, Duration::from_secs(1)).expects_at(Class::FifoInversion, pair(9, 9)), "nobody promised an order");
        assert!(excuses(false, 1, &[]).expects_at(Class::FifoInversion, pair(9, 9)), "there are faults");
    }

    #[test]
    fn a_fault_that_did_not_happen_excuses_nothing_and_a_missing_record_everything_after_it() {
        let mut excuses = excuses(false, 0, &[]);
        excuses.begin(FLUSH, 0, 10);
        excuses.failed(FLUSH, 0);
        assert!(!excuses.expects(&violation(Class::Overlap, 11)));
        excuses.blind_from(20);
        assert!(!excuses.expects(&violation(Class::Overlap, 19)) && excuses.expects(&violation(Class::Overlap, 20)));
    }

    #[test]
    fn an_efficiency_engine_has_to_show_of_each_kind_of_fault_what_it_was_said_to_do() {
        let seen = |found: &[(Class, u64)]| {
            let mut all = BTreeMap::<Class, Vec<Moment>>::new();
            found.iter().for_each(|(class, at)| all.entry(*class).or_default().push(pair(at - 1, *at)));
            all
        };
        let not_shown = |excuses: &Excuses, found: &[(Class, u64)]| excuses.not_shown(Promise::Efficiency, &seen(found));
        assert_eq!(not_shown(&excuses(true, 1, &[]), &[]), None, "nothing was done to it");
        let times = |fault, from: u64, times: u64| (0..times).map(move |n| (fault, from + 10 * n, from + 10 * n + 1)).collect::<Vec<_>>();
        let flushed = excuses(true, 1, &times(FLUSH, 10, 4));
        assert!(not_shown(&flushed, &[]).is_some_and(|why| why.starts_with("flush happened 4 × and no second holder was seen")));
        for (class, at) in [(Class::LateEffect, 11), (Class::HoldVanished, 11), (Class::Overlap, 16)] {
            assert!(not_shown(&flushed, &[(class, at)]).is_some(), "{class} at {at} is no second holder of these faults'");
        }
        assert_eq!(not_shown(&flushed, &[(Class::PermitsExceeded, 21)]), None);
        assert_eq!(flushed.not_shown(Promise::Timed, &seen(&[])), None);
        assert_eq!(not_shown(&excuses(true, 1, &times(FLUSH, 10, 3)), &[]), None, "too rarely to expect it");
        // Another kind, with and without having shown it.
        let both = |kills| excuses(true, 1, &[times(FLUSH, 10, 1), times(FORGETS, 100, kills)].concat());
        assert!(not_shown(&both(90), &[(Class::Overlap, 11)]).is_some_and(|why| why.contains("kill-server happened 90 ×")));
        assert_eq!(not_shown(&both(90), &[(Class::Overlap, 11), (Class::Overlap, 101)]), None);
        assert_eq!(not_shown(&both(89), &[(Class::Overlap, 11)]), None);
        assert!(not_shown(&both(68), &[]).is_some() && not_shown(&both(67), &[]).is_none(), "together they had to show something");
    }
}
