//! Those who wait and those who hold, judged from the histories of a run in one reading: that somebody gets the lock, that everybody does, and
//! that nobody loses it for nothing.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Conviction;
use super::chances::Tally;
use super::groundless::Groundless;
use super::liveness::Liveness;
use super::pulse::Pulse;
use super::starvation::{Fair, Judged, Starvation};
use crate::check::{self, CheckError};
use crate::history::{Item, LockId, Merge, Role, State, What, Writer};

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Waited {
    pub(super) convictions: Vec<Conviction>,
    /// How many that asked later got it before somebody who waited, at most.
    pub(super) passed_most: u64,
    /// For how long who waited was judged.
    pub(super) judged: Judged,
}

/// What a time of day that is only kept in time is moved by, at most, while a torture lasts.
const STEP_MIN_NS: i128 = 50_000_000;

/// Whether the time of day went wrong since the first history was begun.
fn stepped(merge: &Merge) -> bool {
    let wall = |wall: u128, clock: u64| i128::try_from(wall).unwrap_or(i128::MAX) - i128::from(clock);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let clocks = merge.sources().map(|source| source.header.clocks);
    let apart: Vec<i128> = clocks.map(|[clock, _, then]| wall(then.into(), clock)).chain([wall(now, Writer::now())]).collect();
    apart.iter().max().zip(apart.iter().min()).is_some_and(|(most, least)| most - least > STEP_MIN_NS)
}

/// Judges the histories in a directory; `recovery` is T, `pulse` knows when processors were short. `tally` counts beside.
pub(super) fn judge(recovery: Duration, fair: Fair, pulse: &Pulse, dir: &Path, tally: &mut Tally) -> Result<Waited, CheckError> {
    let files = check::expand(&[dir])?;
    let mut merge = Merge::open(&files, 0)?;
    let mut of_pid: HashMap<u64, Vec<u32>> = HashMap::new();
    let mut clients: HashMap<u32, String> = HashMap::new();
    for (file, source) in (0..).zip(merge.sources()) {
        if source.header.role == Role::Client {
            of_pid.entry(u64::from(source.header.pid)).or_default().push(file);
            clients.insert(file, source.header.label.clone());
        }
    }
    let running = merge.sources().any(|s| s.header.role == Role::Nemesis && s.header.state == State::Open);
    let (mut somebody, mut everybody) = (Liveness::new(recovery, pulse), Starvation::new(recovery, fair, pulse));
    let mut holders = Groundless::new(recovery, pulse, stepped(&merge));
    let mut names: HashMap<LockId, String> = HashMap::new();
    let mut last = 0;
    while let Some(item) = merge.next()? {
        for (lock, label) in merge.new_names() {
            somebody.name(lock, label.to_string());
            names.insert(lock, label.to_string());
        }
        let Item::Event(file, _, record) = item else { continue };
        tally.event(&record);
        let of_number = of_pid.get(&record.number).map_or(&[][..], Vec::as_slice);
        match record.what {
            What::Kill | What::Exit => {
                for file in of_number {
                    somebody.dies(*file, record.at);
                    everybody.dies(*file, record.at);
                    holders.dies(*file);
                }
                continue;
            }
            What::FaultBegin => everybody.fault(true, of_number, record.at),
            What::FaultEnd => everybody.fault(false, of_number, record.at),
            _ => everybody.event(file, &record),
        }
        somebody.event(file, &record);
        holders.event(file, &record);
        last = record.at;
    }
    // Where nobody writes any more nobody gets it either: histories that are still being written end now.
    let mut convictions = somebody.finish(if running { last.max(Writer::now()) } else { last });
    let name = |lock| names.get(&lock).cloned().unwrap_or_default();
    let client = |file| clients.get(&file).cloned().unwrap_or_default();
    let judged = everybody.judged(last);
    let (starved, passed_most) = everybody.finish(name, client);
    convictions.extend(starved);
    convictions.extend(holders.finish(name, client));
    Ok(Waited { convictions, passed_most, judged })
}
