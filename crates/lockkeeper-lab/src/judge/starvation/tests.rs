use lockkeeper::Mode;

use super::*;

const LOCK: LockId = LockId(7);
const MS: u64 = 1_000_000;
const FAIR: Fair = Fair { locks: true, permits: true, holds: Some(10), turns: 640 };
/// Of the other processes, and of the one that waits.
const OTHERS: u32 = 0;
const WAITS: u32 = 1;
const WAITER: u64 = 1;

struct Run {
    replay: Replay,
    judge: Starvation,
    now: u64,
    claims: u64,
}

impl Run {
    fn with(fair: Fair, test: impl FnOnce(&mut Run)) -> (Vec<Conviction>, u64) {
        let judge = Starvation::new(Duration::from_secs(1), fair, Late::never());
        let mut replay = Replay::default();
        replay.name(LOCK, "torture/0".to_owned());
        for file in [OTHERS, WAITS] {
            replay.client(u64::from(100 + file), file, format!("client {file}"));
        }
        let mut run = Run { replay, judge, now: 0, claims: WAITER };
        test(&mut run);
        run.judge.finish()
    }

    fn tell(&mut self, file: u32, record: Record) {
        self.now += MS;
        self.replay.tell(file, &Record { at: self.now, ..record }, &mut [&mut self.judge]);
    }

    /// The nemesis says that of a process, or of nobody in particular.
    fn hits(&mut self, what: What, name: &str, files: &[u32]) {
        let process = files.first().map_or(0, |file| u64::from(100 + file));
        let record = Record { at: self.now, lock: LockId::text(name), ..Record::new(what) };
        self.replay.tell(9, &record.number(process), &mut [&mut self.judge]);
    }

    fn fault(&mut self, begins: bool, files: &[u32]) {
        self.hits(if begins { What::FaultBegin } else { What::FaultEnd }, "fault", files);
    }

    fn crowd(&mut self, comes: bool) {
        self.hits(if comes { What::FaultBegin } else { What::FaultEnd }, CROWD, &[]);
    }

    fn dies(&mut self, file: u32) {
        self.hits(What::Kill, "kill-client", &[file]);
    }

    fn waits(&mut self, mode: Mode) {
        self.tell(WAITS, Record::about(What::AcquireCalled, LOCK, WAITER).mode(mode));
    }

    /// So many come, get it, and go, in so many milliseconds each.
    fn others(&mut self, count: u64, each: u64) {
        for _ in 0..count {
            self.claims += 1;
            self.tell(
                OTHERS,
                Record::about(What::AcquireCalled, LOCK, self.claims).mode(Mode::Exclusive),
            );
            self.now += each.saturating_sub(3) * MS;
            self.tell(
                OTHERS,
                Record::about(What::Acquired, LOCK, self.claims).mode(Mode::Exclusive),
            );
            self.tell(OTHERS, Record::about(What::Released, LOCK, self.claims));
        }
    }
}

#[test]
fn one_that_more_pass_than_may_is_convicted_once_and_only_where_a_line_keeps_the_order() {
    let passed = |count, fair: Fair, mode| {
        Run::with(fair, |run| {
            run.waits(mode);
            run.others(count, 100);
        })
    };
    let (found, most) = passed(10, FAIR, Mode::Exclusive);
    assert_eq!((found, most), (Vec::new(), 10), "as many as may");
    let (found, most) = passed(30, FAIR, Mode::Exclusive);
    assert_eq!(
        (found.len(), most, found[0].class, found[0].name.as_str()),
        (1, 30, STARVATION, "torture/0")
    );
    assert!(
        found[0].sentence.starts_with("client 1 waited for torture/0 for 1"),
        "{}",
        found[0].sentence
    );
    assert!(
        found[0].sentence.ends_with("and 11 holds went to later callers; at most 10 may"),
        "{}",
        found[0].sentence
    );
    let permits = Mode::Permits { count: 1, limit: 3 };
    for (fair, mode, convicted) in [
        (Fair { locks: false, ..FAIR }, Mode::Exclusive, 0),
        (Fair { locks: false, ..FAIR }, permits, 1),
        (Fair { permits: false, ..FAIR }, permits, 0),
        (Fair { permits: false, ..FAIR }, Mode::Shared, 1),
    ] {
        let (found, most) = passed(30, fair, mode);
        assert_eq!((found.len(), most), (convicted, 30), "{fair:?} {mode:?}");
    }
}

#[test]
fn who_asked_before_passes_nobody_and_who_gave_up_or_died_is_passed_no_more() {
    let (found, most) = Run::with(FAIR, |run| {
        for claim in 100..150 {
            run.tell(OTHERS, Record::about(What::AcquireCalled, LOCK, claim).mode(Mode::Exclusive));
        }
        run.waits(Mode::Exclusive);
        for claim in 100..150 {
            run.now += 100 * MS;
            run.tell(OTHERS, Record::about(What::Acquired, LOCK, claim));
        }
    });
    assert_eq!((found, most), (Vec::new(), 0));
    for end in
        [What::TimedOut, What::Cancelled, What::AcquireFailed, What::AcquireUnknown, What::Acquired]
    {
        let (found, most) = Run::with(FAIR, |run| {
            run.waits(Mode::Exclusive);
            run.others(8, 100);
            run.tell(WAITS, Record::about(end, LOCK, WAITER));
            run.others(8, 100);
        });
        assert_eq!((found, most), (Vec::new(), 8), "{end:?}");
    }
    let (found, most) = Run::with(FAIR, |run| {
        run.waits(Mode::Exclusive);
        run.others(8, 100);
        run.dies(WAITS);
        run.others(8, 100);
    });
    assert_eq!((found, most), (Vec::new(), 8));
}

#[test]
fn a_try_waits_for_nobody_and_who_enters_its_own_hold_again_passes_nobody() {
    let (found, most) = Run::with(FAIR, |run| {
        run.tell(
            WAITS,
            Record::about(What::AcquireCalled, LOCK, WAITER).mode(Mode::Exclusive).flag(Flags::TRY),
        );
        run.others(30, 100);
    });
    assert_eq!((found, most), (Vec::new(), 0));
    let (found, most) = Run::with(FAIR, |run| {
        let owned = |what, claim| Record { owner: 5, ..Record::about(what, LOCK, claim) };
        run.tell(OTHERS, owned(What::AcquireCalled, 50));
        run.tell(OTHERS, owned(What::Acquired, 50));
        run.waits(Mode::Exclusive);
        for claim in 60..90 {
            run.now += 100 * MS;
            run.tell(OTHERS, owned(What::AcquireCalled, claim));
            run.tell(OTHERS, owned(What::Acquired, claim));
            run.tell(OTHERS, owned(What::Released, claim));
        }
        run.tell(OTHERS, owned(What::Released, 50));
        run.tell(OTHERS, owned(What::AcquireCalled, 95));
        run.tell(OTHERS, owned(What::Acquired, 95));
    });
    assert_eq!((found, most), (Vec::new(), 1), "a new hold of that owner does");
}

#[test]
fn nothing_is_counted_while_a_fault_hits_who_waits_and_until_it_is_back_in_line() {
    for hit in [&[][..], &[WAITS]] {
        let (found, most) = Run::with(FAIR, |run| {
            run.waits(Mode::Exclusive);
            run.others(9, 100);
            run.fault(true, hit);
            run.others(30, 100);
            run.fault(false, hit);
            // A lease of a second, and two until it has connected again.
            run.others(29, 100);
            run.now += 100 * MS;
            run.others(9, 100);
        });
        assert_eq!((found, most), (Vec::new(), 9), "{hit:?}");
    }
    let (found, most) = Run::with(FAIR, |run| {
        run.waits(Mode::Exclusive);
        run.crowd(true);
        run.others(9, 100);
        run.crowd(false);
        run.others(9, 100);
        run.now += 100 * MS;
        run.others(9, 100);
    });
    assert_eq!((found, most), (Vec::new(), 9), "a crowd is felt for a lease, and cuts nobody off");
    let (found, _) = Run::with(FAIR, |run| {
        run.waits(Mode::Exclusive);
        run.fault(true, &[OTHERS]);
        run.others(30, 100);
    });
    assert_eq!(found.len(), 1, "what hits another client is no reason to pass this one");
    let (found, _) = Run::with(FAIR, |run| {
        run.fault(true, &[]);
        run.fault(true, &[]);
        run.fault(false, &[]);
        run.now += 10_000 * MS;
        run.waits(Mode::Exclusive);
        run.others(30, 100);
    });
    assert!(found.is_empty(), "one of two faults is under way");
}

#[test]
fn for_how_long_who_waits_is_judged_is_told() {
    let ms = Duration::from_millis;
    let judged = |fair: Fair, mode, flag, test: &dyn Fn(&mut Run)| {
        let mut told = Judged::default();
        Run::with(fair, |run| {
            run.tell(WAITS, Record::about(What::AcquireCalled, LOCK, WAITER).mode(mode).flag(flag));
            test(run);
            told = run.judge.judged(run.now);
        });
        (told.waited.as_millis(), told.judged.as_millis())
    };
    let alone = |fair, test: &dyn Fn(&mut Run)| judged(fair, Mode::Exclusive, Flags::NONE, test);
    let later = |run: &mut Run, by: u64| run.now += by * MS;
    assert_eq!(alone(FAIR, &|run| later(run, 100)), (100, 100), "to the end");
    for end in
        [What::TimedOut, What::Cancelled, What::AcquireFailed, What::AcquireUnknown, What::Acquired]
    {
        let ended = alone(FAIR, &|run| {
            later(run, 99);
            run.tell(WAITS, Record::about(end, LOCK, WAITER));
            later(run, 500);
        });
        assert_eq!(ended, (100, 100), "{end:?}");
    }
    let died = alone(FAIR, &|run| {
        later(run, 100);
        run.dies(WAITS);
        later(run, 500);
    });
    assert_eq!(died, (100, 100));
    let none = Fair { locks: false, ..FAIR };
    assert_eq!(alone(none, &|run| later(run, 100)), (0, 0), "no order is promised");
    assert_eq!(
        judged(none, Mode::Permits { count: 1, limit: 3 }, Flags::NONE, &|run| later(run, 100)),
        (100, 100),
        "but for permits"
    );
    assert_eq!(
        judged(FAIR, Mode::Exclusive, Flags::TRY, &|run| later(run, 100)),
        (0, 0),
        "a try does not wait"
    );
    for (hit, judged) in [(&[][..], 400), (&[WAITS], 400), (&[OTHERS], 7_400)] {
        let hit = alone(FAIR, &|run| {
            later(run, 200);
            run.fault(true, hit);
            later(run, 4_000);
            run.fault(false, hit);
            // A lease of a second, and two until it has connected again.
            later(run, 3_200);
        });
        assert_eq!(hit, (7_400, judged), "{hit:?}");
    }
    let missing = |waited, judged| Judged { waited: ms(waited), judged: ms(judged) }.missing();
    let why = missing(5_000, 249).unwrap();
    assert!(why.starts_with("of 5.0 s with a waiter, faults left 249 ms undisturbed"), "{why}");
    assert_eq!(
        (missing(4_999, 0), missing(5_000, 250)),
        (None, None),
        "nobody waited for long, or was judged for long enough"
    );
}

#[test]
fn a_machine_that_did_not_let_it_run_is_forgiven() {
    let (found, most) = Run::with(FAIR, |run| {
        run.waits(Mode::Exclusive);
        // All in a quarter of a second: less than threads may have to wait for a processor.
        run.others(60, 4);
    });
    assert_eq!((found, most), (Vec::new(), 60));
}

#[test]
fn turns_that_are_handed_on_count_as_turns_of_a_hold_and_all_do_where_nobody_says_which() {
    let handed = |count: u64, fair| {
        Run::with(fair, |run| {
            run.waits(Mode::Exclusive);
            for claim in 100..100 + count {
                run.tell(OTHERS, Record::about(What::AcquireCalled, LOCK, claim));
                run.now += 10 * MS;
                run.tell(OTHERS, Record::about(What::Acquired, LOCK, claim).flag(Flags::HANDED));
            }
        })
    };
    assert_eq!(handed(640, FAIR), (Vec::new(), 0));
    let (found, _) = handed(641, FAIR);
    assert!(
        found[0].sentence.ends_with("641 later callers got it first; at most 640 may"),
        "{}",
        found[0].sentence
    );
    let mute = Fair { holds: None, turns: 20, ..FAIR };
    assert_eq!(handed(30, mute).1, 30);
    assert_eq!(handed(30, mute).0.len(), 1);
}

#[test]
fn a_hold_of_every_process_may_pass_for_every_task_that_may_stand_before() {
    let told = Fair::among(4, 8, true, [true, false]);
    assert_eq!(told, Fair { locks: true, permits: false, holds: Some(4 * 8), turns: 4 * 8 * 64 });
    assert_eq!((told.shown(), Fair::among(4, 8, false, [true; 2]).shown()), (Some(32), Some(2048)));
    assert_eq!(Fair::among(4, 8, true, [false; 2]).shown(), None);
}
