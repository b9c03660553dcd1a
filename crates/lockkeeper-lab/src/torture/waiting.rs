//! Those who wait and those who hold, judged from the histories of a run in one reading: that
//! somebody gets the lock, that everybody does, and that nobody loses it for nothing.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Conviction;
use crate::check::{self, CheckError, Late};
use crate::history::{Item, Merge, Role, State, What, Writer};
use crate::judge::chances::Tally;
use crate::judge::cost::Count;
use crate::judge::groundless::Groundless;
use crate::judge::liveness::Liveness;
use crate::judge::replay::{Judge, Replay};
use crate::judge::starvation::{Fair, Judged, Starvation};

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
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let begun =
        merge.sources().map(|source| source.header.clocks).map(|[clock, _, wall]| (clock, wall));
    part(begun.chain([(Writer::now(), u64::try_from(now).unwrap_or(u64::MAX))]))
}

/// Whether two clocks part, read together again and again.
fn part(read: impl Iterator<Item = (u64, u64)>) -> bool {
    let apart: Vec<i128> = read.map(|(one, other)| i128::from(other) - i128::from(one)).collect();
    apart
        .iter()
        .max()
        .zip(apart.iter().min())
        .is_some_and(|(most, least)| most - least > STEP_MIN_NS)
}

/// Judges the histories in a directory; `recovery` is T. `late` knows when processors were short:
/// for clients too, and for a thread that is due.
/// `tally` and `count` count beside.
pub(super) fn judge(
    recovery: Duration,
    fair: Fair,
    [late_of_waits, late]: [Late; 2],
    dir: &Path,
    tally: &mut Tally,
    count: &mut Count,
) -> Result<Waited, CheckError> {
    let files = check::expand(&[dir])?;
    let mut merge = Merge::open(&files, 0)?;
    let mut replay = Replay::default();
    for (file, source) in (0..).zip(merge.sources()) {
        let header = &source.header;
        if header.role == Role::Client {
            replay.client(header.pid.into(), file, header.label.clone());
        }
    }
    let running =
        merge.sources().any(|s| s.header.role == Role::Nemesis && s.header.state == State::Open);
    let (mut somebody, mut everybody) =
        (Liveness::new(recovery, late_of_waits), Starvation::new(recovery, fair, late.clone()));
    let mut holders = Groundless::new(recovery, late, stepped(&merge));
    let mut last = 0;
    while let Some(item) = merge.next()? {
        for (lock, label) in merge.new_names() {
            replay.name(lock, label.to_string());
        }
        let Item::Event(file, _, record) = item else { continue };
        let judges: &mut [&mut dyn Judge] =
            &mut [tally, count, &mut somebody, &mut everybody, &mut holders];
        replay.tell(file, &record, judges);
        if !matches!(record.what, What::Kill | What::Exit) {
            last = record.at;
        }
    }
    // Where nobody writes any more nobody gets it either: histories that are still being written
    // end now.
    let mut convictions =
        somebody.finish(if running { last.max(Writer::now()) } else { last }, &replay);
    let judged = everybody.judged(last);
    let (starved, passed_most) = everybody.finish();
    convictions.extend(starved);
    convictions.extend(holders.finish());
    Ok(Waited { convictions, passed_most, judged })
}

#[cfg(test)]
mod tests {
    use lockkeeper::{Kind, Mode};

    use super::*;
    use crate::history::{LockId, Record, WriterOptions};
    use crate::judge::cost::Spans;

    const MS: u64 = 1_000_000;

    #[test]
    fn two_clocks_part_when_one_is_set_and_not_when_it_is_kept_in_time() {
        let read = |walls: [u64; 3]| {
            part([10 * MS, 20 * MS, 30 * MS].into_iter().zip(walls.map(|wall| wall * MS)))
        };
        assert!(
            !read([1_010, 1_020, 1_030])
                && !read([1_010, 1_020, 1_080])
                && !read([1_060, 1_020, 1_030])
        );
        assert!(
            read([1_010, 1_020, 1_081]) && read([1_061, 1_020, 1_030]) && read([1_010, 900, 1_030])
        );
    }

    /// One gets it, and is told at once that its hold is lost; or it was killed before that.
    fn told(client: &Writer, nemesis: &Writer, killed: bool) {
        let tell = |what, change: &dyn Fn(Record) -> Record| {
            client.write_for(
                Kind::Lock,
                "a",
                change(Record::about(what, LockId::NONE, 1).mode(Mode::Exclusive)),
            );
        };
        tell(What::AcquireCalled, &|r| r);
        tell(What::Acquired, &|r| r.deadline(Writer::now() + 60_000 * MS));
        if killed {
            nemesis.write_text(
                "kill-client",
                Record::new(What::Kill).number(u64::from(std::process::id())),
            );
        }
        tell(What::Lost, &|r| r.number(2));
    }

    #[test]
    fn what_histories_say_of_those_who_wait_and_hold_is_judged_in_one_reading() {
        for (killed, classes) in [(false, &["groundless-loss"][..]), (true, &[])] {
            let dir = tempfile::tempdir().unwrap();
            let history = |name: &str, role| {
                let options =
                    WriterOptions { role, label: name.to_owned(), ..WriterOptions::default() };
                Writer::create(dir.path().join(format!("{name}.lkh")), options).unwrap()
            };
            let (client, nemesis) =
                (history("client-0", Role::Client), history("nemesis", Role::Nemesis));
            told(&client, &nemesis, killed);
            client.finish().unwrap();
            nemesis.finish().unwrap();
            let (lease, late) = (Duration::from_secs(60), [Late::never(), Late::never()]);
            let fair = Fair::among(1, 1, true, [true; 2]);
            let (tally, spans) = (&mut Tally::new(lease, Vec::new()), Spans::default());
            let found =
                judge(lease, fair, late, dir.path(), tally, &mut spans.count(true)).unwrap();
            assert_eq!(
                found.convictions.iter().map(|c| c.class).collect::<Vec<_>>(),
                classes,
                "{:?}",
                found.convictions
            );
            assert!(
                found.convictions.iter().all(
                    |c| c.name == "a" && c.sentence.starts_with("client-0 lost its hold of a ")
                )
            );
            assert!(
                !found.judged.waited.is_zero() && found.judged.waited == found.judged.judged,
                "{:?}",
                found.judged
            );
        }
    }
}
