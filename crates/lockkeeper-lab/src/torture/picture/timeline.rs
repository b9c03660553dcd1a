//! What the picture shows, read from the histories.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::super::fault::STOP;
use super::density::{Density, Way};
use crate::check::CheckError;
use crate::history::{HoldMode, Item, LockId, Merge, Record, Role, What};

/// How many holds a picture shows one by one, and how many waits in vain: the oldest, and as many
/// again of those that are long, or near to a moment that is pointed at.
const SHOWN_MAX: usize = 10_000;
/// What is near.
const NEAR_NS: u64 = 50_000_000;

/// One hold.
pub(super) struct Held {
    pub(super) lane: usize,
    pub(super) row: usize,
    pub(super) asked: u64,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) token: u64,
    pub(super) mode: &'static str,
    pub(super) deadline: Option<u64>,
    pub(super) end: &'static str,
    /// The file and the record of its grant.
    pub(super) records: [u64; 2],
    /// Everything that was recorded of it.
    pub(super) events: Vec<Event>,
}

/// A record of a hold: which one of its file, when, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) index: u64,
    pub(super) at: u64,
    pub(super) what: What,
}

/// A wait that ended without a grant.
pub(super) struct Wait {
    pub(super) lane: usize,
    pub(super) row: usize,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) end: &'static str,
    /// The file and the record of its call.
    pub(super) records: [u64; 2],
}

/// A time that is marked, on one lane or on all.
pub(super) struct Span {
    pub(super) lane: Option<usize>,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) text: String,
}

/// Everything, in microseconds since the first event.
#[derive(Default)]
pub(super) struct Timeline {
    pub(super) lanes: Vec<String>,
    pub(super) rows: Vec<String>,
    pub(super) holds: Vec<Held>,
    pub(super) waits: Vec<Wait>,
    pub(super) pauses: Vec<Span>,
    pub(super) deaths: Vec<Span>,
    pub(super) faults: Vec<Span>,
    pub(super) length: u64,
    /// All holds, however many.
    pub(super) density: Density,
    /// Where the records stand that are pointed at: their lane, if they have one, when, and what.
    pub(super) points: HashMap<(u32, u64), (Option<usize>, u64, What)>,
    /// At which row a lock is drawn that came so many-th.
    pub(super) order: Vec<usize>,
    wanted: HashSet<(u32, u64)>,
    /// When each lock was last given back by somebody who alone held it.
    given_back: HashMap<LockId, u64>,
    /// Since when holds are left out that are near to nothing, and since when some are that are.
    left_out: [Option<u64>; 2],
    start_ns: u64,
    names: HashMap<LockId, String>,
    row_of: HashMap<LockId, usize>,
    lane_of_file: Vec<Option<usize>>,
    lane_of_pid: HashMap<u64, usize>,
    open: HashMap<(u32, u64), Open>,
    /// Holds that are over, by their number: what is still recorded of them comes here.
    over: HashMap<(u32, u64), usize>,
    open_faults: HashMap<(LockId, u64), u64>,
    killed: HashMap<usize, u64>,
    /// What is pointed at, in order.
    moments: Vec<u64>,
    /// Of holds and of waits, how many were kept because they are near to that.
    near: [usize; 2],
}

#[derive(Clone)]
struct Open {
    lock: LockId,
    asked: u64,
    granted: Option<Record>,
    index: u64,
    events: Vec<Event>,
}

impl Timeline {
    /// Reads the histories; `moments`, on their clock, are those that are pointed at, and `wanted`
    /// the records.
    pub(super) fn read<P: AsRef<Path>>(
        paths: &[P],
        mut moments: Vec<u64>,
        wanted: HashSet<(u32, u64)>,
    ) -> Result<Self, CheckError> {
        let files = histories(paths)?;
        let mut merge = Merge::open(&files, 0)?;
        moments.sort_unstable();
        let mut timeline = Self { moments, wanted, ..Self::default() };
        for source in merge.sources() {
            let header = &source.header;
            let lane = (header.role == Role::Client).then(|| timeline.lane(&header.label));
            timeline.lane_of_file.push(lane);
            if let Some(lane) = lane {
                timeline.lane_of_pid.insert(u64::from(header.pid), lane);
            }
        }
        while let Some(item) = merge.next()? {
            for (lock, label) in merge.new_names() {
                timeline.names.insert(lock, label.to_string());
            }
            if let Item::Event(file, index, record) = item {
                timeline.event(file, index, &record);
            }
        }
        timeline.end();
        Ok(timeline)
    }

    fn lane(&mut self, label: &str) -> usize {
        if let Some(at) = self.lanes.iter().position(|l| l == label) {
            return at;
        }
        self.lanes.push(label.to_owned());
        self.lanes.len() - 1
    }

    /// Microseconds since the first event.
    pub(super) fn since_start(&self, at_ns: u64) -> u64 {
        at_ns.saturating_sub(self.start_ns) / 1_000
    }

    fn event(&mut self, file: u32, index: u64, record: &Record) {
        if self.start_ns == 0 {
            self.start_ns = record.at;
        }
        let at = self.since_start(record.at);
        self.length = self.length.max(at);
        let key = (file, record.claim);
        let event = Event { index, at, what: record.what };
        if self.wanted.contains(&(file, index)) {
            let lane = self.lane_of_file.get(file as usize).copied().flatten();
            self.points.insert((file, index), (lane, at, record.what));
        }
        if let Some(open) = self.open.get_mut(&key) {
            open.events.push(event);
        } else if let Some(held) =
            self.over.get(&key).and_then(|number| self.holds.get_mut(*number))
        {
            held.events.push(event);
        }
        match record.what {
            What::AcquireCalled => {
                self.open.insert(
                    key,
                    Open {
                        lock: record.lock,
                        asked: at,
                        granted: None,
                        index,
                        events: vec![event],
                    },
                );
            }
            What::Acquired => {
                if let Some(open) = self.open.get_mut(&key) {
                    (open.granted, open.index) = (Some(*record), index);
                    let before = self
                        .given_back
                        .get(&record.lock)
                        .filter(|before| open.asked < **before && **before <= at);
                    if let (HoldMode::Exclusive, Some(before)) = (record.mode, before) {
                        self.density.handed(at, at - before);
                    }
                }
            }
            // The same hold goes on in another mode, with another token.
            What::Converted => {
                if let Some(open) =
                    self.open.get(&key).filter(|open| open.granted.is_some()).cloned()
                {
                    self.close(key, at, "converted");
                    let deadline = open.granted.map_or(0, |granted| granted.deadline);
                    let granted = Record {
                        deadline: if record.deadline > 0 { record.deadline } else { deadline },
                        ..*record
                    };
                    self.over.remove(&key);
                    self.open.insert(
                        key,
                        Open {
                            asked: at,
                            granted: Some(granted),
                            index,
                            events: vec![event],
                            ..open
                        },
                    );
                }
            }
            What::Renewed => {
                if let Some(granted) =
                    self.open.get_mut(&key).and_then(|open| open.granted.as_mut())
                {
                    granted.deadline = granted.deadline.max(record.deadline);
                }
            }
            What::ReleaseCalled => self.close(key, at, "released"),
            What::Lost => self.close(key, at, "lost"),
            // Who only tried did not wait.
            What::Busy => {
                self.open.remove(&key);
            }
            What::TimedOut => self.close(key, at, "timed out"),
            What::AcquireUnknown => self.close(key, at, "ended unknown"),
            What::AcquireFailed => self.close(key, at, "failed"),
            What::Cancelled => self.close(key, at, "given up"),
            What::FaultBegin => {
                self.open_faults.insert((record.lock, record.number), at);
            }
            What::FaultEnd => {
                if let Some(from) = self.open_faults.remove(&(record.lock, record.number)) {
                    self.fault(record, from, at);
                }
            }
            What::Kill => {
                if let Some(lane) = self.lane_of_pid.get(&record.number) {
                    self.killed.insert(*lane, at);
                }
                self.fault(record, at, at);
                self.close_all(record.number, at);
            }
            _ => {}
        }
        // A new life of a killed client ends its death.
        if let Some(lane) = self.lane_of_file.get(file as usize).copied().flatten()
            && let Some(from) = self.killed.remove(&lane)
        {
            self.deaths.push(Span { lane: Some(lane), from, to: at, text: "dead".to_owned() });
        }
    }

    fn fault(&mut self, record: &Record, from: u64, to: u64) {
        let text = self
            .names
            .get(&record.lock)
            .cloned()
            .unwrap_or_else(|| record.what.as_str().to_owned());
        let lane = self.lane_of_pid.get(&record.number).copied();
        if lane.is_some() && text == STOP {
            self.pauses.push(Span { lane, from, to, text: text.clone() });
        }
        self.faults.push(Span { lane, from, to, text });
    }

    /// A hold is over, or a wait that came to nothing.
    fn close(&mut self, key: (u32, u64), to: u64, end: &'static str) {
        let Some(open) = self.open.remove(&key) else { return };
        let Some(Some(lane)) = self.lane_of_file.get(key.0 as usize).copied() else { return };
        let records = [u64::from(key.0), open.index];
        let Some(granted) = open.granted else {
            if self.has_room(1, self.waits.len(), open.asked, to) {
                let row = self.row(open.lock);
                self.waits.push(Wait { lane, row, from: open.asked, to, end, records });
            }
            return;
        };
        let from = self.since_start(granted.at);
        let row = self.row(granted.lock);
        let (mode, way) = match granted.mode {
            HoldMode::Exclusive => ("exclusive", Way::Exclusive),
            HoldMode::Permits => ("permits", Way::Permits),
            _ => ("shared", Way::Shared),
        };
        self.density.held(lane, row, way, from, to);
        if way == Way::Exclusive {
            self.given_back.insert(granted.lock, to);
        }
        if !self.has_room(0, self.holds.len(), from, to) {
            return;
        }
        let deadline = (granted.deadline > 0).then(|| self.since_start(granted.deadline));
        self.over.insert(key, self.holds.len());
        let events = open.events;
        self.holds.push(Held {
            lane,
            row,
            asked: open.asked,
            from,
            to,
            token: granted.token,
            mode,
            deadline,
            end,
            records,
            events,
        });
    }

    /// Whether one more from then to then is shown, of `all` that are.
    fn has_room(&mut self, which: usize, all: usize, from: u64, to: u64) -> bool {
        let ended = to;
        let [from, to] =
            [from, to].map(|us| self.start_ns.saturating_add(us.saturating_mul(1_000)));
        let next = self.moments.partition_point(|at| at.saturating_add(NEAR_NS) < from);
        let near = self.moments.get(next).is_some_and(|at| *at <= to.saturating_add(NEAR_NS))
            || to - from >= NEAR_NS;
        let Some(kept) = self.near.get_mut(which) else { return false };
        if near && *kept < SHOWN_MAX {
            *kept += 1;
            return true;
        }
        let room = all - *kept < SHOWN_MAX;
        if let (0, false, Some(since)) = (which, room, self.left_out.get_mut(usize::from(near))) {
            since.get_or_insert(ended);
        }
        room
    }

    /// The times of which every hold is shown one by one.
    pub(super) fn exact(&self) -> Vec<[u64; 2]> {
        const NEAR_US: u64 = NEAR_NS / 1_000;
        let [oldest, near] = self.left_out;
        // A hold that was left out is shorter than that.
        let oldest = [0, oldest.map_or(self.length, |since| since.saturating_sub(NEAR_US))];
        let moments = self.moments.iter().map(|at| self.since_start(*at));
        let moments = moments.map(|at| [at.saturating_sub(NEAR_US), at + NEAR_US]);
        let mut all: Vec<[u64; 2]> = Vec::new();
        for [from, to] in [oldest]
            .into_iter()
            .chain(moments.filter(|[_, to]| near.is_none_or(|since| *to < since)))
        {
            match all.last_mut() {
                Some([_, end]) if from <= *end => *end = (*end).max(to),
                _ => all.push([from, to]),
            }
        }
        all
    }

    /// The row of a lock, a new one for one that was not seen before.
    fn row(&mut self, lock: LockId) -> usize {
        let next = self.rows.len();
        let row = *self.row_of.entry(lock).or_insert(next);
        if row == next {
            self.rows.push(self.names.get(&lock).cloned().unwrap_or_default());
        }
        row
    }

    fn close_all(&mut self, pid: u64, at: u64) {
        let Some(lane) = self.lane_of_pid.get(&pid).copied() else { return };
        let of_lane =
            |file: u32| self.lane_of_file.get(file as usize).copied().flatten() == Some(lane);
        let keys: Vec<_> = self.open.keys().copied().filter(|(file, _)| of_lane(*file)).collect();
        for key in keys {
            self.close(key, at, "killed");
        }
    }

    fn end(&mut self) {
        let length = self.length;
        for key in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(key, length, "open");
        }
        for (lane, from) in std::mem::take(&mut self.killed) {
            self.deaths.push(Span { lane: Some(lane), from, to: length, text: "dead".to_owned() });
        }
        self.holds.sort_by_key(|h| h.from);
        self.waits.sort_by_key(|w| w.from);
        self.sort_rows();
    }

    /// Rows in the order of their names, whoever came first.
    fn sort_rows(&mut self) {
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by(|a, b| self.rows.get(*a).cmp(&self.rows.get(*b)));
        let mut new_row = vec![0; order.len()];
        for (new, old) in order.iter().enumerate() {
            if let Some(row) = new_row.get_mut(*old) {
                *row = new;
            }
        }
        for row in self
            .holds
            .iter_mut()
            .map(|h| &mut h.row)
            .chain(self.waits.iter_mut().map(|w| &mut w.row))
        {
            *row = new_row.get(*row).copied().unwrap_or(*row);
        }
        self.rows.sort();
        self.order = new_row;
    }
}

fn histories<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<PathBuf>, CheckError> {
    crate::check::expand(paths)
}

#[cfg(test)]
mod tests {
    use lockkeeper::{Kind, Mode};
    use serde_json::Value;

    use super::*;
    use crate::history::{Header, State, Writer, WriterOptions};

    fn read(path: &Path, moments: Vec<u64>) -> Timeline {
        Timeline::read(&[path], moments, HashSet::new()).unwrap()
    }

    #[test]
    fn waits_that_ended_without_a_grant_are_drawn_and_tries_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("client.lkh");
        let writer = Writer::create(
            &path,
            WriterOptions { label: "client 1".to_owned(), ..WriterOptions::default() },
        )
        .unwrap();
        let told = |what, claim| {
            writer.write_for(
                Kind::Lock,
                "a",
                Record::about(what, LockId::NONE, claim).mode(Mode::Exclusive),
            )
        };
        let ends = [
            What::TimedOut,
            What::AcquireUnknown,
            What::AcquireFailed,
            What::Cancelled,
            What::Busy,
        ];
        for (claim, what) in (1..).zip(ends) {
            told(What::AcquireCalled, claim);
            told(what, claim);
        }
        told(What::AcquireCalled, 6);
        told(What::Acquired, 6);
        told(What::ReleaseCalled, 6);
        told(What::Released, 6);
        told(What::AcquireCalled, 7);
        writer.finish().unwrap();
        let timeline = read(&path, Vec::new());
        let waits: Vec<_> = timeline.waits.iter().map(|w| (w.lane, w.row, w.end)).collect();
        assert_eq!(
            waits,
            ["timed out", "ended unknown", "failed", "given up", "open"].map(|end| (0, 0, end))
        );
        assert!(timeline.waits.iter().all(|w| w.from <= w.to && w.to <= timeline.length));
        assert_eq!(timeline.holds.iter().map(|h| h.end).collect::<Vec<_>>(), ["released"]);
        let events: Vec<_> = timeline.holds[0].events.iter().map(|e| e.what).collect();
        assert_eq!(
            events,
            [What::AcquireCalled, What::Acquired, What::ReleaseCalled, What::Released],
            "and its last answer"
        );
        assert_eq!(
            (timeline.lanes, timeline.rows),
            (vec!["client 1".to_owned()], vec!["a".to_owned()])
        );
    }
    #[test]
    fn what_is_near_a_moment_that_is_pointed_at_is_drawn_however_late_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("client.lkh");
        let header = Header {
            file: 1,
            pid: 1,
            role: Role::Client,
            clocks: [0; 3],
            boot: 1,
            step: 64,
            host: String::new(),
            program: String::new(),
            label: "client 1".to_owned(),
            state: State::Open,
        };
        let mut bytes = header.encode().to_vec();
        // A hold a microsecond, and one out of the reach of all of them.
        let last = SHOWN_MAX as u64 + 20;
        let begins =
            |claim: u64| NEAR_NS + claim * 1_000 + if claim == last { 3 * NEAR_NS } else { 0 };
        let kinds = [What::AcquireCalled, What::Acquired, What::ReleaseCalled];
        let records = (1..=last).flat_map(|claim| kinds.map(|what| (claim, what)));
        for ((claim, what), index) in records.zip(0..) {
            let record = Record::about(what, LockId(7), claim).mode(Mode::Exclusive).token(claim);
            bytes.extend(Record { at: begins(claim), ..record }.encode(header.file, index));
        }
        std::fs::write(&path, bytes).unwrap();
        let moment = begins(last);
        let shown =
            |moments| read(&path, moments).holds.iter().map(|h| h.token).collect::<Vec<_>>();
        let oldest: Vec<u64> = (1..=SHOWN_MAX as u64).collect();
        assert!(shown(Vec::new()) == oldest);
        assert!(shown(vec![moment]).split_last() == Some((&last, &oldest[..])));
        let near = read(&path, vec![moment]);
        let [[0, first], [from, to]] = near.exact()[..] else {
            panic!("the oldest, and those near to it: {:?}", near.exact())
        };
        let at = near.since_start(moment);
        assert!(first < from && from <= at && at <= to, "{first} {from} {at} {to}");
        let begun = near.density.json(near.length, &near.order)["rate"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_u64)
            .sum::<u64>();
        assert_eq!(begun, last, "C21: the graphs are made from all of them");
    }

    #[test]
    fn a_hold_that_is_converted_is_drawn_in_each_of_its_modes_with_each_of_its_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("client.lkh");
        let writer = Writer::create(&path, WriterOptions::default()).unwrap();
        let tell = |what, mode, token| {
            writer.write_for(
                Kind::Lock,
                "a",
                Record::about(what, LockId::NONE, 1).mode(mode).token(token),
            )
        };
        tell(What::AcquireCalled, Mode::Upgradable, 0);
        tell(What::Acquired, Mode::Upgradable, 7);
        tell(What::ConvertCalled, Mode::Exclusive, 0);
        tell(What::Converted, Mode::Exclusive, 8);
        tell(What::ReleaseCalled, Mode::Exclusive, 0);
        writer.finish().unwrap();
        let timeline = read(&path, Vec::new());
        let bars: Vec<_> = timeline.holds.iter().map(|h| (h.mode, h.token, h.end)).collect();
        assert_eq!(bars, [("shared", 7, "converted"), ("exclusive", 8, "released")]);
    }
}
