use super::*;

const LOCK: LockId = LockId(7);
const SECOND: u64 = 1_000_000_000;

/// A judge and what it hears; the process of a file has its number and a hundred.
struct Run {
    replay: Replay,
    judge: Liveness,
}

impl Run {
    fn new() -> Self {
        Self::on(Late::never())
    }

    fn on(machine: Late) -> Self {
        let mut replay = Replay::default();
        (0..2).for_each(|file| replay.client(100 + u64::from(file), file, String::new()));
        Self { replay, judge: Liveness::new(Duration::from_secs(1), machine) }
    }

    fn event(&mut self, file: u32, record: &Record) {
        self.replay.tell(file, record, &mut [&mut self.judge]);
    }

    fn dies(&mut self, file: u32, at: u64) {
        let kill = Record::new(What::Kill).number(100 + u64::from(file));
        self.event(9, &Record { at, ..kill });
    }

    fn all(&mut self, at: u64) {
        self.judge.all(at, &self.replay);
    }
}

fn tell(events: &[(u64, What, u64)]) -> usize {
    let mut run = Run::new();
    for (at, what, claim) in events {
        let lock = if matches!(what, What::FaultBegin | What::FaultEnd) { LockId(9) } else { LOCK };
        run.event(0, &Record { at: at * SECOND / 10, ..Record::about(*what, lock, *claim) });
    }
    run.all(10 * SECOND);
    run.judge.found.len()
}

#[test]
fn a_lock_that_nobody_holds_and_somebody_waits_for_is_convicted_after_its_time() {
    use What::{AcquireCalled, Acquired, FaultBegin, FaultEnd, Released, TimedOut};
    assert_eq!(tell(&[(0, AcquireCalled, 1), (10, Acquired, 1), (99, Released, 1)]), 0, "in time");
    assert_eq!(tell(&[(0, AcquireCalled, 1), (30, Acquired, 1)]), 1, "too late");
    assert_eq!(tell(&[(0, AcquireCalled, 1), (30, TimedOut, 1)]), 1, "given up too late");
    assert_eq!(
        tell(&[
            (0, AcquireCalled, 1),
            (1, Acquired, 1),
            (2, AcquireCalled, 2),
            (60, Released, 1),
            (61, Acquired, 2)
        ]),
        0
    );
    let faulty = [(0, AcquireCalled, 1), (1, FaultBegin, 0), (30, FaultEnd, 0), (40, Acquired, 1)];
    assert_eq!(tell(&faulty), 0, "a fault was under way");
    assert_eq!(tell(&[(0, AcquireCalled, 1)]), 1, "never");
}

#[test]
fn a_death_ends_what_was_held_and_waited_for() {
    let mut run = Run::new();
    for (at, what, claim, file) in
        [(0, What::AcquireCalled, 1, 0), (0, What::Acquired, 1, 0), (1, What::AcquireCalled, 2, 1)]
    {
        run.event(file, &Record { at: at * SECOND, ..Record::about(what, LOCK, claim) });
    }
    run.dies(0, 2 * SECOND);
    run.all(3 * SECOND);
    assert!(run.judge.found.is_empty());
    run.all(5 * SECOND);
    assert_eq!(run.judge.found.len(), 1);
    run.dies(1, 6 * SECOND);
    run.all(20 * SECOND);
    assert_eq!(run.judge.found.len(), 1, "nobody waits any more");
}

/// Again and again somebody asks, and is answered with this at once; so many times, every so
/// many milliseconds. At last one gets it.
fn asked(answer: What, times: u64, every: u64) -> Vec<(u64, What, u64)> {
    let asked = (0..times).flat_map(|n| {
        [(1 + n * every, What::AcquireCalled, 100 + n), (1 + n * every, answer, 100 + n)]
    });
    let end = times * every;
    asked
        .chain([
            (end, What::AcquireCalled, 99),
            (end + 1, What::Acquired, 99),
            (end + 2, What::Released, 99),
        ])
        .collect()
}

/// What is found where T is a second and times are in milliseconds.
fn found(events: &[(u64, What, u64)]) -> Vec<String> {
    let mut run = Run::new();
    run.replay.name(LOCK, "torture/0".to_owned());
    for (at, what, claim) in events {
        let lock = if matches!(what, What::FaultBegin | What::FaultEnd) { LockId(9) } else { LOCK };
        run.event(0, &Record { at: at * SECOND / 1_000, ..Record::about(*what, lock, *claim) });
    }
    let end = events.iter().map(|(at, ..)| *at).max().unwrap_or(0) * SECOND / 1_000;
    run.judge.finish(end, &run.replay).into_iter().map(|c| c.sentence).collect()
}

#[test]
fn a_lock_that_is_refused_with_an_error_to_everybody_is_owed_all_the_time() {
    let told = found(&asked(What::AcquireFailed, 80, 20));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("torture/0 was free and 1 waited for it, and no caller got it for 13"),
        "{told:?}"
    );
    assert!(told[0].ends_with(" requests ended in an error; the promise is 1000 ms"), "{told:?}");
    let twice = found(&asked(What::AcquireFailed, 150, 20));
    assert!(
        twice.len() == 2
            && twice.iter().all(|told| told.contains(" ms; 66 requests ended in an error")),
        "{twice:?}"
    );
    assert!(found(&asked(What::AcquireFailed, 60, 20)).is_empty(), "in time");
    assert!(
        found(&asked(What::TimedOut, 80, 20)).is_empty(),
        "who gives up at once is owed nothing"
    );
    let all = asked(What::AcquireFailed, 80, 20);
    let between = |what: &[(u64, What, u64)]| found(&[&all[..80], what, &all[80..]].concat());
    assert_eq!(
        between(&[(790, What::AcquireCalled, 1), (795, What::TimedOut, 1)]).len(),
        1,
        "nobody got it either"
    );
    assert!(
        between(&[
            (790, What::AcquireCalled, 1),
            (791, What::Acquired, 1),
            (792, What::Released, 1)
        ])
        .is_empty(),
        "one got it"
    );
    assert!(
        between(&[(790, What::FaultBegin, 0), (799, What::FaultEnd, 0)]).is_empty(),
        "a fault excuses what it did"
    );
    let faulty = [&[(0, What::FaultBegin, 0)][..], &all].concat();
    assert!(found(&faulty).is_empty(), "it is under way");
}

#[test]
fn the_time_in_which_nobody_asks_is_owed_to_nobody_but_for_the_rest_that_one_takes_who_was_refused()
{
    assert!(found(&asked(What::AcquireFailed, 2, 5_000)).is_empty());
    assert!(found(&asked(What::AcquireFailed, 20, 200)).is_empty(), "50 of each 200 ms count");
    assert_eq!(found(&asked(What::AcquireFailed, 30, 200)).len(), 1);
    let late = [(5_000, What::FaultBegin, 0), (5_500, What::FaultEnd, 0)];
    let before = asked(What::AcquireFailed, 60, 20);
    let after = [(9_000, What::AcquireCalled, 1), (9_900, What::Acquired, 1)];
    assert!(
        found(&[&before[..100], &late, &after].concat()).is_empty(),
        "what was before the fault counts no more"
    );
    let again = asked(What::AcquireFailed, 75, 20)
        .into_iter()
        .map(|(at, what, claim)| (5_500 + at, what, 1_000 + claim));
    let again: Vec<_> = again.collect();
    assert_eq!(
        found(&[&before[..100], &late, &again].concat()).len(),
        1,
        "and what comes after it does"
    );
}

#[test]
fn an_unknown_answer_lets_a_lease_pass_and_many_let_two_pass_and_no_third() {
    let held = [(0, What::AcquireCalled, 1), (0, What::Acquired, 1), (0, What::Released, 1)];
    let after = |events: &[(u64, What, u64)]| found(&[&held, events].concat()).len();
    assert_eq!(after(&asked(What::AcquireUnknown, 110, 20)), 0, "two leases");
    assert_eq!(after(&asked(What::AcquireUnknown, 125, 20)), 1);
    assert_eq!(
        found(&asked(What::AcquireUnknown, 500, 20)).len(),
        0,
        "nobody ever held it: that is too weak to say"
    );
    let mut one = asked(What::AcquireFailed, 80, 20);
    one.insert(60, (600, What::AcquireUnknown, 999));
    one.insert(60, (600, What::AcquireCalled, 999));
    assert_eq!(after(&one), 0, "who may have it has it until its lease is over");
    let mut late = asked(What::AcquireFailed, 165, 20);
    late.insert(120, (1_200, What::AcquireUnknown, 999));
    late.insert(120, (1_200, What::AcquireCalled, 999));
    assert_eq!(after(&late), 0, "from its answer on");
    // Those that were on their way when a fault ended may have taken effect, each of them.
    let mut hit = vec![(1, What::FaultBegin, 0)];
    hit.extend((0..50).map(|n| (2, What::AcquireCalled, 100 + n)));
    hit.push((3, What::FaultEnd, 0));
    hit.extend((0..50).map(|n| (100 * n, What::AcquireUnknown, 100 + n)).skip(1));
    assert_eq!(after(&hit), 0);
}

#[test]
fn who_alone_holds_it_and_changes_its_mode_is_answered_in_time() {
    use What::{
        AcquireCalled, AcquireUnknown, Acquired, ConvertCalled, ConvertFailed, Converted,
        FaultBegin, FaultEnd, Released,
    };
    let told = |more: &[(u64, What, u64)]| {
        let mut all = vec![
            (0, AcquireCalled, 1),
            (0, Acquired, 1),
            (0, AcquireCalled, 2),
            (0, Acquired, 2),
            (10, ConvertCalled, 1),
        ];
        all.extend(more);
        found(&all)
    };
    let late = told(&[(1_000, Released, 2), (2_300, Converted, 1)]);
    assert_eq!(
        late,
        ["torture/0 had one holder, which did not learn for 1300 ms whether its mode had \
          changed; the promise is 1000 ms"]
    );
    assert_eq!(
        told(&[(1_000, Released, 2), (2_300, ConvertFailed, 1)]).len(),
        1,
        "refused too late"
    );
    assert_eq!(told(&[(1_000, Released, 2), (2_300, Released, 1)]).len(), 1, "given up too late");
    assert_eq!(told(&[(1_000, Released, 2), (9_000, FaultBegin, 0)]).len(), 1, "never");
    assert_eq!(
        told(&[(1_000, Released, 2), (2_000, AcquireCalled, 3), (2_300, Converted, 1)]).len(),
        1,
        "whoever asks meanwhile"
    );
    for fine in [
        &[(1_000, Released, 2), (2_200, Converted, 1)][..],
        &[(3_000, Released, 2), (4_000, Converted, 1), (9_000, Released, 1)],
        &[(1_000, Released, 2), (1_100, ConvertFailed, 1), (9_000, Released, 1)],
        &[
            (1_000, Released, 2),
            (2_000, AcquireCalled, 3),
            (2_100, Acquired, 3),
            (9_000, Released, 3),
            (9_100, Converted, 1),
        ],
        &[
            (1_000, Released, 2),
            (1_100, FaultBegin, 0),
            (8_000, FaultEnd, 0),
            (9_000, Converted, 1),
        ],
        &[
            (500, AcquireCalled, 3),
            (1_000, Released, 2),
            (2_000, AcquireUnknown, 3),
            (3_000, Converted, 1),
        ],
        &[(1_000, Released, 2), (1_100, Released, 1), (9_000, AcquireCalled, 3)],
    ] {
        assert_eq!(told(fine), [""; 0], "{fine:?}");
    }
    let mut run = Run::new();
    for (at, what, claim, file) in
        [(0, Acquired, 1, 0), (0, Acquired, 2, 1), (0, ConvertCalled, 1, 0)]
    {
        run.event(file, &Record { at: at * SECOND, ..Record::about(what, LOCK, claim) });
    }
    run.dies(1, 5 * SECOND);
    run.all(6 * SECOND);
    assert!(run.judge.found.is_empty(), "the dead one's lease may last until now");
    run.dies(0, 8 * SECOND);
    run.all(20 * SECOND);
    assert_eq!(run.judge.found.len(), 1, "and who died waits no more");
}

#[test]
fn what_clients_waited_for_processors_excuses_a_late_grant_and_none_that_never_comes() {
    // Clients that were ready for all of that time and ran for half of it.
    let busy = || Run::on(Late::told_by(|from, to| to.saturating_sub(from) / 2));
    let tell = |mut run: Run, granted: bool| {
        for (at, what) in [(0, What::AcquireCalled), (2, What::Acquired)] {
            if granted || what == What::AcquireCalled {
                run.event(0, &Record { at: at * SECOND, ..Record::about(what, LOCK, 1) });
            }
        }
        run.all(10 * SECOND);
        run.judge.found.len()
    };
    assert_eq!(tell(Run::new(), true), 1, "clients were run");
    assert_eq!(tell(busy(), true), 0);
    assert_eq!(tell(busy(), false), 1);
}
