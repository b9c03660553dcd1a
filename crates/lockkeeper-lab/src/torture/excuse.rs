//! Which violations are the documented consequence of a fault: those of its classes, from its beginning until a lease after
//! its end. Everything else is beyond what the engine's class allows.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper::Class as Promise;

use super::Conviction;
use super::fault::{Fault, LATE, STEP};
use super::liveness::LIVENESS;
use crate::check::{Class, Late, Violation};

/// See the module.
#[derive(Default)]
pub(super) struct Excuses {
    always: BTreeSet<Class>,
    windows: Vec<Window>,
    lease_ns: u64,
    /// Since when the record of somebody is missing.
    blind_from: Option<u64>,
    /// How much threads that were due were late in a time, where that is the only fault.
    short: Option<Late>,
}

struct Window {
    fault: Fault,
    from: u64,
    to: u64,
}

impl Excuses {
    /// What is expected whatever the faults: an engine with leases lets late writes reach a resource without tokens.
    pub(super) fn new(leases: bool, recovery: Duration) -> Self {
        // Whoever was stopped or cut off loses its place in line: order is judged where there are no faults.
        // A try that meets another one may be refused by it, though that one comes away with nothing: counted, and no conviction.
        let mut always = BTreeSet::from([Class::FifoInversion, Class::WrongBusy]);
        if leases {
            always.extend(LATE);
        }
        let lease_ns = u64::try_from((recovery + Duration::from_secs(1)).as_nanos()).unwrap_or(u64::MAX / 2);
        Self { always, windows: Vec::new(), lease_ns, blind_from: None, short: None }
    }

    /// No fault will be: where a line keeps the order nobody is overtaken in it, and nobody is late; but for those who were kept from
    /// running, whose lease may end, and whose grant passes on when it is not confirmed in time (R11).
    pub(super) fn undisturbed(mut self, fair: bool, short: Late) -> Self {
        if fair {
            self.always.remove(&Class::FifoInversion);
        }
        self.short = Some(short);
        self
    }

    /// Whether processors were short for as long as a grant waits to be confirmed, a third of a lease at most, before this moment.
    fn is_short(&self, class: Class, at: u64) -> bool {
        let of_time = class == Class::FifoInversion || LATE.contains(&class);
        let third = self.lease_ns.saturating_sub(1_000_000_000) / 3;
        of_time && third > 0 && self.short.as_ref().is_some_and(|short| short.ns(at.saturating_sub(2 * self.lease_ns), at) > third)
    }

    /// The classes that are expected at any time.
    pub(super) fn always(&self) -> BTreeSet<Class> {
        self.always.clone()
    }

    /// A fault begins.
    pub(super) fn begin(&mut self, fault: Fault, now: u64) {
        if !fault.excuses.is_empty() {
            self.windows.push(Window { fault, from: now, to: u64::MAX });
        }
    }

    /// The one that began last did not happen.
    pub(super) fn failed(&mut self, fault: Fault) {
        if let Some(at) = self.windows.iter().rposition(|w| w.fault == fault && w.to == u64::MAX) {
            self.windows.remove(at);
        }
    }

    /// Somebody's record ends here, and nothing that comes after it can be held against anybody.
    pub(super) fn blind_from(&mut self, at: u64) {
        self.blind_from = Some(at);
    }

    /// It ends.
    pub(super) fn end(&mut self, fault: Fault, now: u64) {
        let open = self.windows.iter_mut().rev().find(|w| w.fault == fault && w.to == u64::MAX);
        if let Some(window) = open {
            window.to = now.saturating_add(self.lease_ns);
        }
    }

    /// Whether this is no more than was said beforehand.
    pub(super) fn expects(&self, violation: &Violation) -> bool {
        self.expects_at(violation.class, violation.at)
    }

    /// The same for one that is not described.
    pub(super) fn expects_at(&self, class: Class, at: u64) -> bool {
        if self.blind_from.is_some_and(|from| at >= from) {
            return true;
        }
        // A record that stays keeps its number, whatever the clock does; where it was lost, numbers that follow the clock stay behind
        // for as long as that has to catch up.
        let numbers = matches!(class, Class::TokenOrder | Class::TokenRepeated);
        let forgot = |clock: &Window| self.windows.iter().any(|w| w.fault.forgets() && w.from <= at && w.to >= clock.from);
        let ends = |w: &Window| {
            // What was granted while the clock was ahead of the true time is kept for longer once it is right again.
            let behind = w.fault.sets_back() && (numbers && forgot(w) || class == Class::SlowRecovery);
            w.to.saturating_add(if behind { u64::try_from(STEP.as_nanos()).unwrap_or(0) } else { 0 })
        };
        let covers = |w: &Window| w.fault.excuses.contains(&class) && at >= w.from && at <= ends(w);
        self.always.contains(&class) || self.is_short(class, at) || self.windows.iter().any(covers)
    }

    /// The same for what the checker does not judge: a lock that nobody gets is a slow recovery.
    pub(super) fn expects_conviction(&self, conviction: &Conviction) -> bool {
        conviction.class == LIVENESS && self.expects_at(Class::SlowRecovery, conviction.at)
    }

    /// An engine of class EFFICIENCY has to show what one fault can do to it: why it was too weak a try, if it did not.
    pub(super) fn not_shown(&self, promise: Promise, violations: &[Violation]) -> Option<String> {
        let fault = self.windows.iter().find(|w| w.fault.forgets()).filter(|_| promise == Promise::Efficiency)?.fault;
        let two = [Class::Overlap, Class::ReadersWithWriter, Class::PermitsExceeded];
        let shown = |v: &Violation| two.contains(&v.class);
        if violations.iter().any(shown) {
            return None;
        }
        Some(format!("{} happened and no second holder was seen, though the engine is of class EFFICIENCY", fault.name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::{AWAY, AWAY_AND_FORGOTTEN, FORGOTTEN, Hits, SET_BACK};
    use super::*;

    const FLUSH: Fault = Fault { name: "flush", hits: Hits::Server, excuses: FORGOTTEN, what: "" };
    const CLOCK: Fault = Fault { name: "clock-back", hits: Hits::Server, excuses: SET_BACK, what: "" };
    const SECOND: u64 = 1_000_000_000;

    fn violation(class: Class, at: u64) -> Violation {
        Violation { class, name: "a".to_owned(), at, sentence: String::new(), records: Vec::new() }
    }

    #[test]
    fn a_violation_is_expected_within_a_lease_of_its_fault_and_at_no_other_time() {
        let mut excuses = Excuses::new(true, Duration::from_secs(1));
        let second = SECOND;
        excuses.begin(FLUSH, 10 * second);
        excuses.end(FLUSH, 11 * second);
        let expected = |class, at| excuses.expects(&violation(class, at));
        assert!(!expected(Class::Overlap, 9 * second), "before it");
        assert!(expected(Class::Overlap, 10 * second) && expected(Class::Overlap, 13 * second));
        assert!(!expected(Class::Overlap, 14 * second), "long after it");
        assert!(!expected(Class::SlowRecovery, 10 * second), "not what this fault does");
        assert!(expected(Class::LateEffect, 0), "leases let late writes pass");
        assert!(!Excuses::new(false, Duration::ZERO).expects(&violation(Class::LateEffect, 0)));
    }

    #[test]
    fn tokens_that_go_back_are_expected_of_two_holders_and_while_a_clock_is_behind_and_not_to_the_end_of_the_run() {
        let of = |faults: &[(Fault, u64, u64)]| {
            let mut excuses = Excuses::new(true, Duration::from_secs(1));
            for (fault, from, to) in faults {
                excuses.begin(*fault, from * SECOND);
                excuses.end(*fault, to * SECOND);
            }
            move |at: u64| excuses.expects(&violation(Class::TokenOrder, at * SECOND))
        };
        let forgotten = of(&[(FLUSH, 10, 11)]);
        assert!(!forgotten(9) && forgotten(10) && forgotten(13) && !forgotten(14), "the older holder's turns have the smaller tokens");
        let stepped = of(&[(CLOCK, 10, 11)]);
        assert!(stepped(13) && !stepped(14), "a record that stays keeps its number");
        let both = of(&[(CLOCK, 10, 11), (FLUSH, 12, 13)]);
        assert!(both(15), "until the clock has caught up, and a lease");
        assert!(!both(16), "and not to the end of the run");
        assert!(!of(&[(FLUSH, 5, 6), (CLOCK, 10, 11)])(15), "what was lost long before is numbered by the right clock");
    }

    #[test]
    fn a_lock_that_nobody_gets_is_expected_while_a_clock_was_wrong_and_what_it_granted_lasts() {
        let mut excuses = Excuses::new(true, Duration::from_secs(1));
        excuses.begin(CLOCK, 10 * SECOND);
        excuses.end(CLOCK, 11 * SECOND);
        let found = |class, at: u64| Conviction { class, name: String::new(), at: at * SECOND, sentence: String::new() };
        let expected = |class, at| excuses.expects_conviction(&found(class, at));
        // Its end, a lease and a second, and the step by which leases that were granted meanwhile are longer.
        assert!(!expected(LIVENESS, 9) && expected(LIVENESS, 10) && expected(LIVENESS, 15) && !expected(LIVENESS, 16));
        assert!(!expected("crash", 12) && !expected("cost", 12));
        assert!(!excuses.expects(&violation(Class::Overlap, 14 * SECOND)), "two holders only until a lease after it");
        let mut forgetful = Excuses::new(true, Duration::from_secs(1));
        forgetful.begin(FLUSH, 10 * SECOND);
        assert!(!forgetful.expects_conviction(&found(LIVENESS, 12)));
    }

    #[test]
    fn who_forgets_and_whose_clock_is_wrong_is_told_by_what_it_leads_to() {
        let of = |excuses| Fault { name: "", hits: Hits::Server, excuses, what: "" };
        let told = [FORGOTTEN, AWAY_AND_FORGOTTEN, SET_BACK, AWAY, &[]].map(|excuses| (of(excuses).forgets(), of(excuses).sets_back()));
        assert_eq!(told, [(true, false), (true, false), (false, true), (false, false), (false, false)]);
        assert!(FORGOTTEN.iter().all(|class| AWAY_AND_FORGOTTEN.contains(class)));
    }

    #[test]
    fn without_faults_order_and_time_are_kept_but_by_those_whom_the_machine_kept_from_running() {
        let second = SECOND;
        // Half a second of processors, three times what threads were late, is missing between 10 s and 11 s.
        let short = move |from: u64, to: u64| if from < 11 * second && to > 10 * second { second / 2 } else { 0 };
        let of = |fair, recovery| Excuses::new(false, recovery).undisturbed(fair, Late::told_by(short));
        let leases = of(true, Duration::from_secs(1));
        let expected = |class, at| leases.expects_at(class, at * SECOND);
        for class in [Class::FifoInversion, Class::LateEffect, Class::LostUpdate] {
            assert!(!expected(class, 9) && expected(class, 11) && expected(class, 14) && !expected(class, 16), "{class:?}");
        }
        assert!(!expected(Class::Overlap, 11) && !expected(Class::TokenOrder, 11));
        assert!(!of(true, Duration::from_secs(3)).expects_at(Class::FifoInversion, 11 * SECOND), "less than a third of its lease");
        assert!(!of(false, Duration::ZERO).expects_at(Class::LateEffect, 11 * SECOND), "there are no leases that could end");
        assert!(of(false, Duration::from_secs(1)).expects_at(Class::FifoInversion, 9 * SECOND), "nobody promised an order");
        assert!(Excuses::new(false, Duration::from_secs(1)).expects_at(Class::FifoInversion, 9 * SECOND), "there are faults");
    }

    #[test]
    fn a_fault_that_did_not_happen_excuses_nothing_and_a_missing_record_everything_after_it() {
        let mut excuses = Excuses::new(false, Duration::ZERO);
        excuses.begin(FLUSH, 10);
        excuses.failed(FLUSH);
        assert!(!excuses.expects(&violation(Class::Overlap, 11)));
        excuses.blind_from(20);
        assert!(!excuses.expects(&violation(Class::Overlap, 19)) && excuses.expects(&violation(Class::Overlap, 20)));
    }

    #[test]
    fn an_efficiency_engine_has_to_show_what_it_was_said_to_do() {
        let mut excuses = Excuses::new(true, Duration::from_secs(1));
        assert_eq!(excuses.not_shown(Promise::Efficiency, &[]), None, "nothing was done to it");
        excuses.begin(FLUSH, 10);
        assert!(excuses.not_shown(Promise::Efficiency, &[]).is_some_and(|why| why.contains("flush")));
        assert!(excuses.not_shown(Promise::Efficiency, &[violation(Class::LateEffect, 11)]).is_some());
        assert!(excuses.not_shown(Promise::Efficiency, &[violation(Class::HoldVanished, 11)]).is_some(), "that is no second holder");
        assert_eq!(excuses.not_shown(Promise::Efficiency, &[violation(Class::Overlap, 11)]), None);
        assert_eq!(excuses.not_shown(Promise::Timed, &[]), None);
    }
}
