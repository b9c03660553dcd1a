//! What everybody who asks for a lock costs the server, and whether that grows with those who wait:
//! measured without a crowd, and while it is there. Those who come away with nothing cost
//! something, too, and are more in a long line: they are counted beside hand-offs.
//!
//! What is asked because time passes is no cost of a caller: whoever stands in line looks again
//! every two claim leases (R10), and where processors are short turns are slow, so a caller's wait
//! has more of these looks the longer the line is. Whoever has stood for as long as a look has made
//! one: so they are counted, and left out.
//!
//! Who waits is read from the histories, in places: a process of this library has one for each
//! name, however many of its tasks wait (R9), and what they hand on among themselves costs nothing.
//! Of locks that are not ours everybody who waits has one.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;

use super::Conviction;
use super::replay::{Judge, Life, Replay, Step, Told};
use crate::history::{Flags, LockId, What};

/// The word for it.
pub(crate) const COST: &str = "cost";
/// How many requests it may cost more for each one who waits more. A wake-up that everybody hears
/// costs at least one.
const SLOPE_MAX: f64 = 0.5;
/// And how many times as much in all: a crowd makes the line three or four times as long, and what
/// is asked of everybody in it grows with that. Where processors are short grants are not confirmed
/// in time and pass on, which costs something, too, and less.
const TIMES_MAX: f64 = 2.0;
/// With fewer who asked than this nothing is said.
const ASKED_MIN: u64 = 30;
/// Nor where fewer wait without the crowd, for who finds no line asks for less, or so few more with
/// it.
const WAITING_MIN: f64 = 0.5;
const MORE_MIN: f64 = 1.0;

/// How many commands a look at one's place is on the server: on Redis, in the layout of our own,
/// its script runs 13, and its call is one, too.
const LOOK: f64 = 14.0;

/// What the server had answered at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at: u64,
    pub(crate) calls: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    /// Those of one number follow each other, with the same clients.
    group: u64,
    crowded: bool,
    from: Sample,
    to: Sample,
}

/// The times at whose ends it was asked what the server had answered.
#[derive(Default)]
pub(crate) struct Spans {
    all: Vec<Span>,
    groups: u64,
    open: Option<(bool, Sample)>,
}

impl Spans {
    /// From here on it is measured, with a crowd or without.
    pub(crate) fn begin(&mut self, crowded: bool, from: Option<Sample>) {
        self.groups += 1;
        self.open = from.map(|from| (crowded, from));
    }

    /// Until here.
    pub(crate) fn end(&mut self, to: Option<Sample>) {
        let (Some((crowded, from)), Some(to)) = (self.open.take(), to) else { return };
        // A server that counts anew was started again.
        self.all.extend((to.calls >= from.calls).then_some(Span {
            group: self.groups,
            crowded,
            from,
            to,
        }));
    }

    /// Until here, and on from here. A server that did not answer just now answers the next time.
    pub(crate) fn go_on(&mut self, at: Option<Sample>) {
        let (Some((crowded, _)), Some(at)) = (self.open, at) else { return };
        self.end(Some(at));
        self.open = Some((crowded, at));
    }

    /// Whether the servers told.
    pub(crate) fn were_measured(&self) -> bool {
        !self.all.is_empty()
    }

    /// Counts who asks and who waits in them. `ours` is this library, whose processes stand in line
    /// as one.
    pub(crate) fn count(&self, ours: bool) -> Count<'_> {
        let seen = vec![Seen::default(); self.all.len()];
        let (there, ready, standing) = (HashSet::new(), HashMap::new(), HashMap::new());
        Count { ours, look: None, spans: &self.all, seen, there, ready, standing }
    }
}

/// What was counted in a span.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    asked: u64,
    waiting: u64,
    /// How often it was looked at a place because time passed.
    looks: u64,
}

/// A process with a place in a line.
#[derive(Clone, Copy, Debug)]
struct Standing {
    /// How many of its claims stand in line or hold.
    claims: u64,
    /// Since when it waits, or holds.
    since: u64,
}

/// What histories say of spans.
pub(crate) struct Count<'a> {
    ours: bool,
    /// How often everybody in line looks again.
    look: Option<Duration>,
    spans: &'a [Span],
    seen: Vec<Seen>,
    there: HashSet<u32>,
    /// Until when the clients of a group came, which costs as well.
    ready: HashMap<u64, u64>,
    standing: HashMap<(LockId, u32), Standing>,
}

impl Judge for Count<'_> {
    fn after(&mut self, told: &Told, replay: &Replay) {
        let record = told.record;
        self.stand(told, replay);
        // They do not overlap, and are in the order of time.
        let at = self.spans.partition_point(|span| span.to.at <= record.at);
        let span = self.spans.get(at).filter(|span| span.from.at <= record.at);
        if record.what == What::AcquireCalled
            && self.there.insert(told.file)
            && let Some(span) = span
        {
            self.ready.insert(span.group, record.at);
        }
        // What is handed on is not answered by the server.
        let answered = matches!(Step::of(record.what), Some(Step::Granted | Step::Refused));
        if answered
            && !record.flags.has(Flags::HANDED)
            && span.is_some()
            && let Some(seen) = self.seen.get_mut(at)
        {
            let place = |claim, file| if self.ours { u64::from(file) } else { claim };
            let lives = replay.lives(record.lock).iter().filter(|(_, life)| life.is_waiting());
            let mut others: HashSet<u64> =
                lives.map(|(claim, life)| place(claim, life.file)).collect();
            others.remove(&place(record.claim, told.file));
            seen.asked += 1;
            seen.waiting += others.len() as u64;
        }
    }
}

impl Count<'_> {
    /// Whoever stands in line, and the holder, asks once in this time, whatever happens.
    pub(crate) fn looking_every(self, look: Option<Duration>) -> Self {
        Self { look, ..self }
    }

    /// Who stands, and since when: a grant and the end of a hold begin anew, for what asks then
    /// asks for somebody.
    fn stand(&mut self, told: &Told, replay: &Replay) {
        let (record, Some(look)) = (told.record, self.look) else { return };
        if matches!(record.what, What::Kill | What::Exit) {
            let files = replay.files(record.number);
            self.standing.retain(|(_, file), _| !files.contains(file));
        }
        let stands = |life: &Life| life.is_waiting() || life.is_held();
        let (was, now) =
            (told.was.is_some_and(|l| stands(&l)), told.now.is_some_and(|l| stands(&l)));
        let held = |life: Option<Life>| life.is_some_and(|life| life.is_held());
        let is_turn = held(told.was) != held(told.now) && !record.flags.has(Flags::HANDED);
        let place = (record.lock, told.file);
        let mut standing = match self.standing.remove(&place) {
            Some(standing) => standing,
            None if now => Standing { claims: 0, since: record.at },
            None => return,
        };
        standing.claims = (standing.claims + u64::from(now)).saturating_sub(u64::from(was));
        if is_turn || standing.claims == 0 {
            self.looked(standing.since, record.at, look);
            standing.since = record.at;
        }
        if standing.claims > 0 {
            self.standing.insert(place, standing);
        }
    }

    /// One who stood in that time has looked at each end of the time of a look.
    fn looked(&mut self, since: u64, until: u64, look: Duration) {
        let look = u64::try_from(look.as_nanos()).unwrap_or(u64::MAX).max(1);
        for nth in 1..=until.saturating_sub(since) / look {
            let moment = since + nth * look;
            let at = self.spans.partition_point(|span| span.to.at <= moment);
            if self.spans.get(at).is_some_and(|span| span.from.at <= moment)
                && let Some(seen) = self.seen.get_mut(at)
            {
                seen.looks += 1;
            }
        }
    }

    /// What they say; nothing when they are too short.
    pub(crate) fn finish(mut self) -> Option<Cost> {
        if let (Some(look), Some(last)) = (self.look, self.spans.last().map(|span| span.to.at)) {
            for (_, standing) in std::mem::take(&mut self.standing) {
                self.looked(standing.since, last, look);
            }
        }
        let first = self.spans.iter().find(|span| span.crowded)?;
        let level = |crowded| {
            let all = self.spans.iter().zip(&self.seen);
            let counts = all.filter(|(span, _)| {
                span.crowded == crowded
                    && self.ready.get(&span.group).is_none_or(|ready| span.from.at >= *ready)
            });
            Level::of(counts)
        };
        let (quiet, crowd) = (level(false)?, level(true)?);
        let until = self
            .spans
            .iter()
            .rfind(|span| span.group == first.group)
            .map_or(first.to.at, |last| last.to.at);
        let grown = quiet.waiting >= WAITING_MIN && crowd.waiting - quiet.waiting >= MORE_MIN;
        grown.then_some(Cost { quiet, crowd, since: (first.from.at, until) })
    }
}

/// With so many others in line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Level {
    /// How many others waited when somebody was answered, on average.
    waiting: f64,
    /// How many requests the server answered for each that asked.
    requests: f64,
}

impl Level {
    fn of<'a>(spans: impl Iterator<Item = (&'a Span, &'a Seen)>) -> Option<Self> {
        let (mut calls, mut all) = (0.0, Seen::default());
        for (span, seen) in spans {
            let answered = (span.to.calls - span.from.calls) as f64;
            calls += (answered - seen.looks as f64 * LOOK).max(0.0);
            all.asked += seen.asked;
            all.waiting += seen.waiting;
        }
        // To a hundredth: more is not in it.
        let each = |sum: f64| (sum / all.asked as f64 * 100.0).round() / 100.0;
        let waiting = all.waiting as f64;
        (all.asked >= ASKED_MIN).then(|| Self { waiting: each(waiting), requests: each(calls) })
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Cost {
    quiet: Level,
    crowd: Level,
    /// When the first crowd came, and went.
    #[serde(skip)]
    since: (u64, u64),
}

impl Cost {
    /// In words.
    pub(crate) fn sentence(&self) -> String {
        let Self { quiet, crowd, .. } = self;
        format!(
            "with {:.1} others in line each caller cost the server {:.1} requests, and with {:.1} \
             others {:.1}",
            quiet.waiting, quiet.requests, crowd.waiting, crowd.requests
        )
    }

    /// Convicts, if it grows with those who wait.
    pub(crate) fn conviction(&self) -> Option<Conviction> {
        let slope =
            (self.crowd.requests - self.quiet.requests) / (self.crowd.waiting - self.quiet.waiting);
        let (at, until) = self.since;
        let grown = slope > SLOPE_MAX && self.crowd.requests > self.quiet.requests * TIMES_MAX;
        grown.then(|| Conviction {
            class: COST,
            name: String::new(),
            at,
            until,
            sentence: self.sentence(),
        })
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::{Kind, Mode};

    use super::*;
    use crate::history::{Item, Merge, Record, Writer, WriterOptions};

    #[test]
    fn a_cost_that_grows_with_the_line_is_convicted_and_one_that_does_not_is_not() {
        let cost = |requests| Cost {
            quiet: Level { waiting: 2.0, requests: 3.0 },
            crowd: Level { waiting: 10.0, requests },
            since: (20, 30),
        };
        let grown = cost(15.0).conviction();
        assert_eq!(grown.as_ref().map(|c| (c.class, c.at, c.until)), Some((COST, 20, 30)));
        assert!(grown.is_some_and(|c| c.sentence.contains("3.0") && c.sentence.contains("15.0")));
        assert_eq!(
            cost(6.9).conviction(),
            None,
            "less than half a request for each who waits more"
        );
        assert!(cost(7.1).conviction().is_some());
        let dear = Level { waiting: 2.0, requests: 19.0 };
        assert_eq!(
            Cost { quiet: dear, ..cost(27.0) }.conviction(),
            None,
            "less than twice as much"
        );
    }

    /// Writes of one lock who gets it and who tries, while others wait all the time, and so many
    /// requests for each; then the same with a crowd.
    fn measured(ours: bool, turns: u64, [few, many]: [u64; 2], requests: [u64; 2]) -> Option<Cost> {
        let dir = tempfile::tempdir().unwrap();
        let client = |number: u64| {
            Writer::create(dir.path().join(format!("{number}.lkh")), WriterOptions::default())
                .unwrap()
        };
        let tell = |writer: &Writer, what, claim, flags| {
            writer.write_for(
                Kind::Lock,
                "a",
                Record::about(what, LockId::NONE, claim).mode(Mode::Exclusive).flag(flags),
            );
        };
        let (mut spans, mut calls, worker) = (Spans::default(), 0, client(0));
        let waiters: Vec<Writer> = (1..=many).map(client).collect();
        tell(&worker, What::AcquireCalled, 5_000, Flags::TRY);
        for (crowded, from, to, each) in
            [(false, 0, few, requests[0]), (true, few, many, requests[1])]
        {
            spans.begin(crowded, Some(Sample { at: Writer::now(), calls }));
            for number in from..to {
                let writer = &waiters[usize::try_from(number).unwrap()];
                // Two tasks wait, and one tries, in each.
                tell(writer, What::AcquireCalled, 1_000 + number, Flags::NONE);
                tell(writer, What::AcquireCalled, 2_000 + number, Flags::NONE);
                tell(writer, What::AcquireCalled, 3_000 + number, Flags::TRY);
            }
            // What it takes to come is not counted.
            calls += 1_000_000;
            spans.go_on(Some(Sample { at: Writer::now(), calls }));
            for claim in 1..=turns {
                tell(&worker, What::AcquireCalled, claim, Flags::NONE);
                tell(&worker, What::Acquired, claim, Flags::NONE);
                tell(&worker, What::AcquireCalled, 10_000 + claim, Flags::NONE);
                tell(&worker, What::Acquired, 10_000 + claim, Flags::HANDED);
                tell(&worker, What::AcquireCalled, 20_000 + claim, Flags::TRY);
                tell(&worker, What::Busy, 20_000 + claim, Flags::TRY);
            }
            calls += each * 2 * turns;
            spans.end(Some(Sample { at: Writer::now(), calls }));
        }
        waiters.iter().chain([&worker]).for_each(|writer| _ = writer.finish().unwrap());
        let (mut replay, mut count) = (Replay::default(), spans.count(ours));
        let files: Vec<_> =
            (0..=many).map(|number| dir.path().join(format!("{number}.lkh"))).collect();
        let mut merge = Merge::open(&files, 0).unwrap();
        while let Some(item) = merge.next().unwrap() {
            let Item::Event(file, _, record) = item else { continue };
            replay.tell(file, &record, &mut [&mut count]);
        }
        let cost = count.finish();
        if let (Some(cost), [.., came, last]) = (cost, &spans.all[..]) {
            assert_eq!(cost.since, (came.from.at, last.to.at), "as long as the crowd was there");
        }
        cost
    }

    #[test]
    fn a_process_of_ours_is_one_place_in_line_and_others_have_one_for_each_that_waits() {
        let levels =
            |cost: Option<Cost>| cost.map(|c| [c.quiet, c.crowd].map(|l| (l.waiting, l.requests)));
        let ours = measured(true, 100, [2, 6], [3, 4]);
        assert_eq!(
            levels(ours),
            Some([(2.0, 3.0), (6.0, 4.0)]),
            "two tasks of each wait, and what is handed on costs nothing"
        );
        assert_eq!(levels(measured(false, 100, [2, 6], [3, 4])), Some([(4.0, 3.0), (12.0, 4.0)]));
        assert!(ours.is_some_and(|cost| cost.conviction().is_none()));
        assert!(
            measured(true, 100, [2, 6], [3, 8]).is_some_and(|cost| cost.conviction().is_some())
        );
    }

    const MS: u64 = 1_000_000;

    /// A line of three and one of eleven for twenty seconds each, in which everybody waits as long
    /// for a turn, and looks at its place every 400 ms: what each caller asks for, without the
    /// looks, and how many looks there are in that time.
    fn in_line(wait: u64, requests: [u64; 2], looks: [u64; 2]) -> Cost {
        let (lens, time, mut spans) = ([3u32, 11], 20_000 * MS, Spans::default());
        let mut records = Vec::new();
        let mut next = 0u64;
        let mut tell = |at: u64, file: u32, what, claim| {
            let record = Record::about(what, LockId(1), claim).mode(Mode::Exclusive);
            records.push((file, Record { at, ..record }));
        };
        let mut asks = Vec::new();
        for (phase, len) in lens.into_iter().enumerate() {
            let begin = time * phase as u64;
            for file in asks.len() as u32..len {
                next += 1;
                tell(begin, file, What::AcquireCalled, next);
                asks.push(next);
            }
            let turns = time * u64::from(len) / wait;
            for turn in 1..turns {
                let (at, file) = (begin + 1 + turn * wait / u64::from(len), turn as u32 % len);
                let claim = asks[file as usize];
                for what in [What::Acquired, What::ReleaseCalled, What::Released] {
                    tell(at, file, what, claim);
                }
                next += 1;
                tell(at, file, What::AcquireCalled, next);
                asks[file as usize] = next;
            }
            let calls = requests[phase] * (turns - 1) + looks[phase] * LOOK as u64;
            spans.begin(phase == 1, Some(Sample { at: begin + 1, calls: 0 }));
            spans.end(Some(Sample { at: begin + time, calls }));
        }
        let mut replay = Replay::default();
        let mut count = spans.count(true).looking_every(Some(Duration::from_millis(400)));
        for (file, record) in records {
            replay.tell(file, &record, &mut [&mut count]);
        }
        count.finish().expect("it was measured")
    }

    #[test]
    fn l1_what_whoever_waits_asks_because_time_passes_is_no_cost_of_a_caller() {
        // Everybody who waits for 1.3 s looks three times in it: 15 waits in twenty seconds.
        let flat = in_line(1_300 * MS, [5, 5], [3 * 45, 11 * 45]);
        assert_eq!(flat.conviction(), None, "{flat:?}");
        assert!(flat.crowd.requests > 3.0 && flat.crowd.requests < 12.0, "{flat:?}");
        // Who waits for less than a look makes none, and what is asked is the callers'.
        let short = in_line(300 * MS, [5, 5], [0, 0]);
        assert!(short.crowd.requests > 4.9 && short.crowd.requests <= 5.0, "{short:?}");
        let herd = in_line(300 * MS, [5, 13], [0, 0]);
        assert!(herd.crowd.requests > 12.9 && herd.crowd.requests <= 13.0, "{herd:?}");
        assert!(herd.conviction().is_some(), "one request more for each who waits: {herd:?}");
    }

    #[test]
    fn one_answer_that_is_missing_makes_a_span_longer_and_ends_nothing() {
        let sample = |at| Some(Sample { at, calls: 10 * at });
        let mut spans = Spans::default();
        spans.go_on(sample(1));
        assert!(spans.all.is_empty(), "nothing was begun");
        spans.begin(true, sample(2));
        [sample(3), None, sample(5)].into_iter().for_each(|at| spans.go_on(at));
        spans.end(sample(6));
        let times: Vec<_> = spans.all.iter().map(|span| (span.from.at, span.to.at)).collect();
        assert_eq!(times, [(2, 3), (3, 5), (5, 6)]);
    }

    #[test]
    fn too_few_that_ask_no_line_or_no_longer_one_say_nothing_and_neither_does_a_server_that_counts_anew()
     {
        assert_eq!(measured(true, ASKED_MIN / 2 - 1, [2, 6], [3, 9]), None);
        assert_eq!(measured(true, 100, [2, 2], [3, 9]), None);
        assert_eq!(measured(true, 100, [0, 6], [3, 9]), None);
        let mut spans = Spans::default();
        for (crowded, from, to) in [(false, 5, 9), (true, 9, 2)] {
            spans.begin(crowded, Some(Sample { at: 1, calls: from }));
            spans.end(Some(Sample { at: 2, calls: to }));
        }
        assert_eq!(spans.all.len(), 1);
        assert_eq!(spans.count(true).finish(), None, "there was no crowd");
    }
}
