//! Every class of violation, planted into clean histories, is found; the clean ones are clean.

use lockkeeper_lab::check::Class;
use lockkeeper_lab::history::{Flags, HoldMode, Record, What};
use proptest::prelude::*;

use super::generate::{History, Random, Turn, Use, clean};
use super::story::Story;

/// Somewhere in the history: the numbers of a turn that fits, and of the next one of the same lock.
fn pick(
    history: &History,
    random: &mut Random,
    fits: impl Fn(&Turn, &Turn) -> bool,
) -> Option<(usize, usize)> {
    let next = |i: usize| {
        (i + 1..history.turns.len()).find(|j| history.turns[*j].lock == history.turns[i].lock)
    };
    let all: Vec<_> = (0..history.turns.len())
        .filter_map(|i| Some((i, next(i)?)))
        .filter(|(i, j)| fits(&history.turns[*i], &history.turns[*j]))
        .collect();
    (!all.is_empty()).then(|| all[random.below(all.len() as u64) as usize])
}

fn exclusive(turn: &Turn) -> bool {
    turn.mode == HoldMode::Exclusive
}

/// Makes a turn last until well after another was granted.
fn drag_on(history: &mut History, i: usize, j: usize) {
    let until = history.turns[j].granted + 15;
    let turn = &mut history.turns[i];
    turn.release_called = turn.release_called.max(until);
    turn.released = turn.released.max(until + 5);
    turn.deadline = if turn.deadline == 0 { 0 } else { until + 100 };
    for e in turn.more.iter_mut().filter(|e| e.record.what == What::Renewed) {
        e.record.deadline = until + 100;
    }
}

fn more(
    history: &mut History,
    i: usize,
    time: u64,
    what: What,
    change: impl FnOnce(Record) -> Record,
) {
    let record = change(history.turns[i].about(what));
    let event = History::event(history.turns[i].client, time, record);
    history.turns[i].more.push(event);
}

/// Plants one violation; false when the history has no place for it.
fn plant(class: Class, history: &mut History, random: &mut Random) -> bool {
    planted(class, history, random).is_some()
}

fn planted(class: Class, history: &mut History, random: &mut Random) -> Option<()> {
    let any = |turn: &Turn, _: &Turn| exclusive(turn);
    match class {
        Class::Overlap => {
            let (i, j) = pick(history, random, |a, b| exclusive(a) && exclusive(b))?;
            drag_on(history, i, j);
        }
        Class::ReadersWithWriter => {
            let (i, j) = pick(history, random, |a, b| {
                exclusive(a) != exclusive(b) && a.usage == Use::ReadWrite
            })?;
            drag_on(history, i, j);
        }
        Class::PermitsExceeded => {
            let (i, _) = pick(history, random, |a, _| a.usage == Use::Semaphore)?;
            let (claim, turn) = (history.claim(), history.turns[i].clone());
            let (granted, until) = (turn.granted + 1, turn.release_called);
            history.turns.push(Turn {
                claim,
                weight: 4,
                granted,
                release_called: until,
                more: Vec::new(),
                ..turn
            });
        }
        Class::TokenOrder => {
            let (i, j) = pick(history, random, |a, b| exclusive(a) && exclusive(b))?;
            (history.turns[i].token, history.turns[j].token) =
                (history.turns[j].token, history.turns[i].token);
            retoken(&mut history.turns[i]);
            retoken(&mut history.turns[j]);
        }
        Class::TokenRepeated => {
            let (i, j) = pick(history, random, |a, b| exclusive(a) && exclusive(b))?;
            history.turns[j].token = history.turns[i].token;
            retoken(&mut history.turns[j]);
        }
        Class::TokenMissing => {
            let (i, _) = pick(history, random, |a, _| a.usage != Use::Semaphore)?;
            history.turns[i].token = 0;
        }
        Class::ReentryToken => {
            let (i, _) = pick(history, random, |a, _| a.owner != 0)?;
            let claim = history.turns[i].claim;
            let nested = history.turns[i]
                .more
                .iter_mut()
                .find(|e| e.record.what == What::Acquired && e.record.claim != claim)?;
            nested.record.token += 1;
        }
        Class::ReentryAfterLoss => {
            let (i, _) = pick(history, random, |a, _| a.owner != 0)?;
            let (lost, again) =
                (history.turns[i].release_called - 1, history.turns[i].released + 5);
            more(history, i, lost, What::Lost, |r| r);
            history.turns[i]
                .more
                .retain(|e| !matches!(e.record.what, What::EffectDone | What::Checked));
            let (claim, turn) = (history.claim(), history.turns[i].clone());
            let until = again + 30;
            history.turns.push(Turn {
                claim,
                asked: again,
                in_line: again + 1,
                granted: again + 2,
                release_called: until,
                released: until + 1,
                more: Vec::new(),
                ..turn
            });
        }
        Class::WrongBusy => {
            let end = history.turns.iter().map(|t| t.released).max()? + 1_000;
            let lock = history.turns[0].lock;
            let claim = history.claim();
            let record =
                |what| Record { mode: HoldMode::Exclusive, ..Record::about(what, lock, claim) };
            history.others.push(History::event(
                3,
                end,
                record(What::AcquireCalled).flag(Flags::TRY),
            ));
            history.others.push(History::event(3, end + 20, record(What::Busy)));
        }
        Class::ForeignRelease => {
            let (i, j) = pick(history, random, |a, b| exclusive(a) && exclusive(b))?;
            let (lost, later) =
                (history.turns[i].release_called - 1, history.turns[j].granted + 10);
            more(history, i, lost, What::Lost, |r| r);
            (history.turns[i].release_called, history.turns[i].released) = (later, later + 10);
        }
        Class::DoubleRelease => {
            let (i, _) = pick(history, random, any)?;
            let later = history.turns[i].released + 20;
            more(history, i, later, What::Released, |r| r);
        }
        Class::HoldVanished => {
            let (i, _) = pick(history, random, |a, _| exclusive(a) && a.deadline == 0)?;
            let answered = history.turns[i].released;
            more(history, i, answered, What::ReleasedNotOwner, |r| r);
            history.turns[i].released = u64::MAX;
        }
        Class::HeldAfterDeadline => {
            let (i, _) = pick(history, random, |a, _| a.usage == Use::Leased)?;
            let late = history.turns[i].deadline + 60;
            // The holder was stopped: it neither released nor renewed in time.
            history.turns[i].release_called = late + 20;
            history.turns[i].released = u64::MAX;
            more(history, i, late + 1, What::CheckCalled, |r| r.number(9));
            more(history, i, late + 2, What::Checked, |r| r.number(9).flag(Flags::YES));
        }
        Class::HeldAfterEnd => {
            let (i, _) = pick(history, random, any)?;
            let end = history.turns[i].released;
            more(history, i, end + 1, What::CheckCalled, |r| r.number(9));
            more(history, i, end + 2, What::Checked, |r| r.number(9).flag(Flags::YES));
        }
        Class::RenewedAfterEnd => {
            let (i, _) = pick(history, random, |a, _| a.usage == Use::Leased)?;
            let end = history.turns[i].released;
            more(history, i, end + 1, What::RenewCalled, |r| r);
            more(history, i, end + 9, What::Renewed, |r| r.deadline(end + 500));
        }
        Class::StaleWriteAccepted | Class::StaleWriteUnfenced => {
            let (i, j) = pick(history, random, |a, b| exclusive(a) && exclusive(b))?;
            let flags = if class == Class::StaleWriteAccepted {
                Flags::YES.and(Flags::FENCED)
            } else {
                Flags::YES
            };
            let (old, new, at) =
                (history.turns[i].token, history.turns[j].token, history.turns[j].release_called);
            let log = |time, token| {
                History::event(
                    50,
                    time,
                    Record { claim: 0, ..history.turns[j].about(What::ResourceWrite) }
                        .token(token)
                        .flag(flags),
                )
            };
            let both = [log(at, new), log(at + 1, old)];
            history.others.extend(both);
        }
        Class::LostUpdate | Class::LostUpdateFenced => {
            let (i, _) = pick(history, random, any)?;
            let at = history.turns[i].release_called - 1;
            let (flags, token) = if class == Class::LostUpdate {
                (Flags::YES, 0)
            } else {
                (Flags::YES.and(Flags::FENCED), 5)
            };
            let log = history.turns[i]
                .about(What::ResourceWrite)
                .flag(flags)
                .token(token)
                .number(7)
                .deadline(6);
            let log = History::event(50, at, log);
            history.others.push(log);
        }
        Class::LateEffect => {
            let (i, _) = pick(history, random, any)?;
            let end = history.turns[i].release_called;
            more(history, i, end + 1, What::EffectCalled, |r| r.number(9));
            more(history, i, end + 2, What::EffectDone, |r| r.number(9).flag(Flags::YES));
        }
        Class::FifoInversion => {
            let (i, j) = pick(history, random, |a, b| {
                exclusive(a)
                    && exclusive(b)
                    && b.in_line > a.in_line + 20
                    && a.granted > a.asked + 20
            })?;
            // The later one was called when the earlier one's place was confirmed, and is granted
            // in its stead.
            let (first, second) = (history.turns[i].clone(), history.turns[j].clone());
            history.turns[i] = Turn {
                client: second.client,
                claim: second.claim,
                owner: second.owner,
                asked: first.in_line + 1,
                in_line: first.in_line + 2,
                ..first.clone()
            };
            history.turns[j] = Turn {
                client: first.client,
                claim: first.claim,
                owner: first.owner,
                asked: first.asked,
                in_line: first.in_line,
                ..second
            };
            for k in [i, j] {
                let (claim, client, owner) =
                    (history.turns[k].claim, history.turns[k].client, history.turns[k].owner);
                history.turns[k]
                    .more
                    .retain(|e| matches!(e.record.what, What::CheckCalled | What::Checked));
                for e in &mut history.turns[k].more {
                    (e.client, e.record.claim, e.record.owner) = (client, claim, owner);
                }
            }
        }
        Class::LateLoss => {
            let (i, _) = pick(history, random, |a, _| {
                a.usage == Use::Leased && a.release_called > a.granted + 10
            })?;
            let (granted, end) = (history.turns[i].granted, history.turns[i].release_called);
            history.turns[i].deadline = granted + 1;
            history.turns[i]
                .more
                .retain(|e| !matches!(e.record.what, What::RenewCalled | What::Renewed));
            more(history, i, end - 1, What::Lost, |r| r);
        }
        Class::SlowRecovery => {
            let (i, j) = pick(history, random, |a, b| {
                a.usage == Use::Mutex && b.asked + 5 < a.release_called
            })?;
            // Its holder is killed; the next one waits for much longer than promised.
            let killed = history.turns[i].release_called - 1;
            let doomed = history.turns[i].client;
            let lock = history.turns[i].lock;
            history.turns.retain(|t| t.lock == lock && t.asked < killed);
            history.turns.truncate(j + 1);
            history.turns.get_mut(j)?.granted += 10_000;
            let turn = history.turns.get_mut(j)?;
            (turn.release_called, turn.released) = (turn.granted + 5, turn.granted + 6);
            turn.client = 7;
            turn.more.clear();
            history.turns[i].client = if doomed == 7 { 6 } else { doomed };
            let doomed = history.turns[i].client;
            for e in history.turns[i].more.iter_mut().filter(|e| e.client != 50) {
                e.client = doomed;
            }
            history.others.clear();
            history.others.push(History::event(
                Story::NEMESIS,
                killed,
                Record::new(What::Kill).number(u64::from(doomed)),
            ));
        }
    }
    Some(())
}

/// The events of a turn carry its token too.
fn retoken(turn: &mut Turn) {
    let token = turn.token;
    for e in turn.more.iter_mut().filter(|e| matches!(e.record.what, What::Acquired)) {
        e.record.token = token;
    }
    turn.more.retain(|e| e.record.what != What::ResourceWrite);
}

fn judged(history: &History, class: Class) -> lockkeeper_lab::check::Report {
    let mut story = history.story();
    story.events.retain(|e| e.record.at != u64::MAX);
    story.watched = matches!(class, Class::SlowRecovery | Class::LateLoss);
    story.options.recovery = Some(std::time::Duration::from_nanos(1_000));
    story.options.recovery_slack = std::time::Duration::ZERO;
    story.options.fenced = true;
    (story.options.linger, story.options.withdraw) =
        (std::time::Duration::ZERO, std::time::Duration::ZERO);
    story.judge()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_clean_history_is_clean(seed in any::<u64>()) {
        let history = clean(seed, 30);
        let report = judged(&history, Class::Overlap);
        prop_assert!(report.is_clean(), "{:#?}", report.violations);
        prop_assert!(
            report.counts.holds >= 120 && report.counts.busy > 0 && report.counts.renewed > 0
        );
    }

    #[test]
    fn every_planted_violation_is_found(seed in any::<u64>()) {
        for class in Class::ALL {
            let mut history = clean(seed, 30);
            // Few histories have no place for some class; where all had none, too many are drawn.
            let planted = plant(*class, &mut history, &mut Random(seed ^ 77));
            prop_assume!(planted, "a place for {}", class);
            let report = judged(&history, *class);
            prop_assert!(report.count(*class) > 0, "{class} was planted, found {:?}", report.found);
        }
    }
}
