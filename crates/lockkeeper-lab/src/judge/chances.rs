//! What a run could have convicted of: a judge who never had the occasion has said nothing. Counted
//! from the histories.

use std::collections::HashMap;
use std::time::Duration;

use super::liveness::SLACK;
use super::ns;
use super::recovery::STANDS_STILL;
use super::replay::{Judge, Replay};
use crate::history::{LockId, Record, What};

/// A run has to last so many times as long as one judgement takes before one of them is expected.
/// Every fourth breath of the schedule is long enough, which is once in 4 s on Redis and once in 7
/// s on ZooKeeper: five times in the shortest run that this is asked of.
const EXPECTED_AFTER: u32 = 20;
/// So many stops of a client that no lease survives end one under a holder. The tasks of a client
/// hold something six times in seven: four stops without one are seen once in two thousand runs.
const STOPS_ENOUGH: u64 = 4;
/// Why a hold was lost: its lease ran out, or its session.
const RAN_OUT: [u64; 2] = [1, 4];

/// What there was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chances {
    /// Spans without a fault in which a lock that nobody gets would have been convicted.
    pub(crate) judged: u64,
    /// Leases and sessions that ended under a holder.
    pub(crate) ended: u64,
    /// Holds that began when no fault excused anything of theirs.
    pub(crate) outside: u64,
    /// Stops of a client that no lease survives.
    pub(crate) stops: u64,
}

impl Chances {
    /// Why a run of an engine with leases was too weak, if so. `recovery` is T.
    pub(crate) fn missing(&self, time: Duration, recovery: Duration) -> Option<String> {
        let bound = recovery + SLACK;
        if self.judged == 0 && time >= bound * EXPECTED_AFTER {
            let bound = bound.as_secs_f64();
            return Some(format!(
                "no span without a fault lasted {bound:.2} s, so no lock could be convicted of too \
                 long a wait"
            ));
        }
        let stops = self.stops;
        let none = self.ended == 0 && stops >= STOPS_ENOUGH;
        none.then(|| format!(
            "{stops} stops of a client lasted longer than its leases, and none ended under a holder"
        ))
    }
}

/// Counts it.
#[derive(Default)]
pub(crate) struct Tally {
    lease_ns: u64,
    /// When something of a hold may be excused, in the order of time and apart from each other.
    windows: Vec<(u64, u64)>,
    next: usize,
    stopped: HashMap<u64, u64>,
    /// Since when nothing is wrong, and whether somebody asked for a lock since then.
    calm: Option<(u64, bool)>,
    spans: Vec<(u64, u64)>,
    last: u64,
    found: Chances,
}

impl Judge for Tally {
    fn before(&mut self, record: &Record, replay: &Replay) {
        self.last = record.at;
        if self.calm.is_none() && replay.is_quiet() {
            self.calm = Some((record.at, false));
        }
        match record.what {
            What::FaultBegin => {
                self.calm_ends(record.at);
                if record.lock == LockId::text(STANDS_STILL) {
                    self.stopped.insert(record.number, record.at);
                }
            }
            What::FaultEnd => {
                let since = self
                    .stopped
                    .remove(&record.number)
                    .filter(|_| record.lock == LockId::text(STANDS_STILL));
                self.found.stops +=
                    u64::from(since.is_some_and(|since| record.at - since > self.lease_ns));
            }
            What::AcquireCalled => self.calm = self.calm.map(|(since, _)| (since, true)),
            What::Acquired | What::Converted => {
                self.found.outside += u64::from(self.is_outside(record.at))
            }
            What::Lost => self.found.ended += u64::from(RAN_OUT.contains(&record.number)),
            _ => {}
        }
    }
}

impl Tally {
    /// `recovery` is T, which no lease outlasts.
    pub(crate) fn new(recovery: Duration, windows: Vec<(u64, u64)>) -> Self {
        Self { lease_ns: ns(recovery), windows, ..Self::default() }
    }

    fn calm_ends(&mut self, at: u64) {
        self.spans
            .extend(self.calm.take().filter(|(_, asked)| *asked).map(|(since, _)| (since, at)));
    }

    fn is_outside(&mut self, at: u64) -> bool {
        while self.windows.get(self.next).is_some_and(|(_, to)| *to < at) {
            self.next += 1;
        }
        self.windows.get(self.next).is_none_or(|(from, _)| at < *from)
    }

    /// Nothing more happens. `judges` says of a span without a fault whether who waited through it
    /// would have been convicted.
    pub(crate) fn finish(mut self, judges: impl Fn(u64, u64) -> bool) -> Chances {
        self.calm_ends(self.last);
        Chances {
            judged: self.spans.iter().filter(|(from, to)| judges(*from, *to)).count() as u64,
            ..self.found
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn told(
        events: &[(u64, What, &str, u64)],
        windows: &[(u64, u64)],
    ) -> (Vec<(u64, u64)>, Chances) {
        let mut tally = Tally::new(
            Duration::from_secs(2),
            windows.iter().map(|(from, to)| (from * SECOND, to * SECOND)).collect(),
        );
        let mut replay = Replay::default();
        for (at, what, text, number) in events {
            let record = Record { at: at * SECOND, lock: LockId::text(text), ..Record::new(*what) };
            replay.tell(0, &record.number(*number), &mut [&mut tally]);
        }
        let spans = std::cell::RefCell::new(Vec::new());
        let found = tally.finish(|from, to| {
            spans.borrow_mut().push((from / SECOND, to / SECOND));
            to - from > 3 * SECOND
        });
        (spans.into_inner(), found)
    }

    #[test]
    fn a_span_without_a_fault_in_which_somebody_asked_is_one_in_which_a_judge_could_convict() {
        use What::{AcquireCalled, Acquired, FaultBegin, FaultEnd};
        let asked = |at| (at, AcquireCalled, "a", 0);
        let events = [
            asked(1),
            (5, FaultBegin, "flush", 0),
            (6, FaultBegin, STANDS_STILL, 7),
            (7, FaultEnd, "flush", 0),
            asked(8),
            (9, FaultEnd, STANDS_STILL, 7),
            (10, Acquired, "a", 0),
            asked(11),
            (12, FaultBegin, "flush", 0),
            (13, FaultEnd, "flush", 0),
            (14, Acquired, "a", 0),
            (19, FaultBegin, "flush", 0),
            (20, FaultEnd, "flush", 0),
            asked(20),
            (29, Acquired, "a", 0),
        ];
        let (spans, found) = told(&events, &[]);
        assert_eq!(spans, [(1, 5), (10, 12), (20, 29)]);
        assert_eq!(
            (found.judged, found.stops),
            (2, 1),
            "from 14 to 19 nobody asked; a stop of 3 s outlasts a lease of 2 s"
        );
    }

    #[test]
    fn leases_that_end_under_a_holder_and_holds_outside_of_all_windows_are_counted() {
        use What::{Acquired, Converted, Lost};
        let events = [
            (1, Acquired, "a", 0),
            (3, Acquired, "a", 0),
            (5, Lost, "a", 1),
            (6, Acquired, "a", 0),
            (8, Converted, "a", 0),
            (9, Lost, "a", 4),
        ];
        let closed = [(10, Lost, "a", 6), (12, Acquired, "a", 0)];
        let (_, found) = told(&[&events[..], &closed].concat(), &[(2, 4), (7, 8), (11, 20)]);
        assert_eq!(
            (found.ended, found.outside),
            (2, 2),
            "one that ends because its locks are closed is no lease that ended"
        );
    }

    #[test]
    fn a_run_that_could_convict_nobody_is_too_weak_where_it_was_long_enough_to_expect_otherwise() {
        let (t, all) =
            (Duration::from_millis(750), Chances { judged: 1, ended: 1, outside: 0, stops: 9 });
        let missing =
            |of: Chances, seconds| of.missing(Duration::from_secs(seconds), t).unwrap_or_default();
        assert_eq!(missing(all, 60), "");
        assert!(
            missing(Chances { judged: 0, ..all }, 20).contains("without a fault lasted 1.00 s")
        );
        assert_eq!(missing(Chances { judged: 0, ..all }, 19), "", "too short to expect it");
        assert!(missing(Chances { ended: 0, ..all }, 60).contains("9 stops"));
        assert_eq!(missing(Chances { ended: 0, stops: 3, ..all }, 60), "", "too few to expect it");
    }
}
