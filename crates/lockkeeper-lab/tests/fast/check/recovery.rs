//! Recovery within the time promised, after deaths and faults.

use std::time::Duration;

use lockkeeper_lab::check::{Class, Late, Options};
use lockkeeper_lab::history::{LockId, Record, What};

use super::story::{Event, Hold, Story, event, hold, nemesis, story};

fn fault(time: u64, what: What, name: &str) -> Event {
    nemesis(time, what, 0).with(|r| Record { lock: LockId::text(name), ..r })
}

/// The longest recovery is 100 ns, and not one more.
fn promised(options: &mut Options) {
    (options.recovery, options.recovery_slack) =
        (Some(Duration::from_nanos(90)), Duration::from_nanos(10));
}

#[test]
fn c5_a_lock_passes_on_within_the_promised_time_after_its_holder_died() {
    let dead = Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) };
    let with = |asked: u64, got: u64| {
        story(&[dead, hold(2, [asked, got, got + 10, got + 11])])
            .and(&[nemesis(1_000, What::Kill, 1)])
            .options(promised)
            .watched()
    };
    with(500, 1_100).is_clean();
    with(1_040, 1_140).is_clean();
    assert_eq!(with(500, 1_070).judge().recovery.max(), Some(70));
    assert_eq!(with(1_040, 1_140).judge().recovery.max(), Some(100));
    assert_eq!(with(500, 1_070).judge().recovery_promised_ns, Some(90));
    with(1_040, 1_141).convicts(Class::SlowRecovery);
    with(500, 1_101).convicts(Class::SlowRecovery);
    // Without a promise it is measured only.
    let unpromised = Story { options: Options::default(), ..with(500, 90_000_000_000) };
    unpromised.is_clean();
    assert_eq!(unpromised.judge().recovery.count(), 1);
}

#[test]
fn the_sentence_of_a_slow_recovery_names_the_dead_and_the_times() {
    let ms = 1_000_000;
    let dead = Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) };
    let told = |events: &[Event]| {
        story(&[dead])
            .and(events)
            .and(&[nemesis(1_000 * ms, What::Kill, 1)])
            .options(|o| o.recovery = Some(Duration::from_millis(200)))
            .watched()
            .convicts(Class::SlowRecovery)
    };
    let (sentence, records) =
        told(&hold(2, [500 * ms, 1_350 * ms, 1_360 * ms, 1_370 * ms]).events());
    assert_eq!(
        sentence,
        "client 2 waited for stock/1 350 ms from +0.999999 s on after client 1 died holding it \
         until it was granted; the promise is 200 ms"
    );
    assert_eq!(records, [(2, 1), (2, 0), (1, 1)]);
    let gives_up = [
        Hold { times: [500 * ms, 0, 0, 0], ..hold(2, [0; 4]) }.events(),
        vec![event(1_500 * ms, 2, What::TimedOut)],
    ]
    .concat();
    let (sentence, records) = told(&gives_up);
    assert!(
        sentence.contains("client 2 waited for stock/1 500 ms")
            && sentence.contains("after client 1 died holding it and gave up"),
        "{sentence}"
    );
    assert_eq!(records, [(2, 1), (2, 0), (1, 1)]);
}

#[test]
fn the_first_who_waited_counts_and_not_the_one_that_was_granted() {
    let dead = Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) };
    let waits = Hold { times: [1_010, 0, 0, 0], ..hold(3, [0; 4]) };
    let with = |more: &[Hold]| {
        let end = event(5_000, 3, What::AcquireFailed);
        story(&[&[dead, hold(2, [1_140, 1_150, 1_160, 1_170])], more].concat())
            .and(&[nemesis(1_000, What::Kill, 1), end])
            .options(promised)
            .watched()
            .judge()
    };
    assert_eq!(with(&[]).recovery.max(), Some(10));
    let report = with(&[waits]);
    assert_eq!((report.recovery.max(), report.count(Class::SlowRecovery)), (Some(140), 1));
    // Several wait, and some leave: the first of those who are there.
    let left = Hold { times: [1_005, 0, 0, 0], ..hold(4, [0; 4]) };
    let base = story(&[
        dead,
        hold(2, [1_140, 1_150, 1_160, 1_170]),
        left,
        Hold { times: [1_060, 0, 0, 0], ..hold(5, [0; 4]) },
        waits,
    ]);
    let leaves = [
        nemesis(1_000, What::Kill, 1),
        event(1_050, 4, What::TimedOut),
        event(1_055, 3, What::Cancelled),
        event(5_000, 5, What::TimedOut),
    ];
    assert_eq!(base.and(&leaves).options(promised).watched().judge().recovery.max(), Some(90));
}

#[test]
fn nobody_waits_in_vain_for_longer_than_promised() {
    let dead = Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) };
    let waits = |from, to, what| {
        [Hold { times: [from, 0, 0, 0], ..hold(2, [0; 4]) }.events(), vec![event(to, 2, what)]]
            .concat()
    };
    let with = |events: Vec<Event>| {
        story(&[dead])
            .and(&events)
            .and(&[nemesis(1_000, What::Kill, 1)])
            .options(promised)
            .watched()
    };
    for what in [What::TimedOut, What::Cancelled, What::AcquireFailed, What::AcquireUnknown] {
        with(waits(500, 1_100, what)).is_clean();
        with(waits(500, 1_101, what)).convicts(Class::SlowRecovery);
        with(waits(1_500, 1_600, what)).is_clean();
        with(waits(1_500, 1_601, what)).convicts(Class::SlowRecovery);
    }
    // A try waits for nothing.
    let tries = [
        Hold { times: [1_500, 0, 0, 0], ..hold(2, [0; 4]).tried() }.events(),
        vec![event(2_000, 2, What::TimedOut)],
    ]
    .concat();
    with(tries).is_clean();
    // Waiting still when the history ends, of a client that lives or whose history ends.
    let still = |last: u64| {
        let asks = Hold { times: [500, 0, 0, 0], ..hold(2, [0; 4]) };
        with([asks.events(), vec![event(last, 3, What::CheckCalled)]].concat())
    };
    still(1_100).is_clean();
    still(1_101).convicts(Class::SlowRecovery);
    // It is convicted once: then the lock is owed to nobody any more.
    with(
        [waits(500, 1_101, What::TimedOut), hold(3, [1_050, 1_300, 1_310, 1_320]).events()]
            .concat(),
    )
    .convicts(Class::SlowRecovery);
    // Killed itself, it waited for nothing.
    with(waits(500, 9_000, What::TimedOut)).and(&[nemesis(1_050, What::Kill, 2)]).is_clean();
}

#[test]
fn only_the_death_of_the_exclusive_holder_makes_a_lock_owed() {
    let with = |dead: Hold| {
        story(&[dead, hold(2, [500, 2_000, 2_010, 2_011])])
            .and(&[nemesis(1_000, What::Kill, 1)])
            .options(promised)
            .watched()
    };
    with(Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) }).convicts(Class::SlowRecovery);
    with(Hold { times: [1, 10, 900, 0], ..hold(1, [0; 4]) }).convicts(Class::SlowRecovery);
    with(Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) }.shared()).is_clean();
    with(Hold { times: [1, 10, 20, 30], ..hold(1, [0; 4]) }).is_clean();
    with(Hold { times: [1, 0, 0, 0], ..hold(1, [0; 4]) }).is_clean();
    // Another holds it meanwhile: the dead one's had been over.
    let over = Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) }.deadline(100);
    let held = hold(3, [150, 200, 1_800, 1_801]);
    let told = [event(100, 1, What::Lost), nemesis(1_000, What::Kill, 1)];
    story(&[over, held, hold(2, [500, 2_000, 2_010, 2_011])])
        .and(&told)
        .options(promised)
        .watched()
        .is_clean();
    // An end that nobody watched makes no promise.
    story(&[Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) }, hold(2, [500, 2_000, 2_010, 2_011])])
        .options(promised)
        .is_clean();
}

#[test]
fn the_time_counts_from_the_end_of_all_faults() {
    let dead = Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) };
    let with = |got: u64, faults: &[Event]| {
        let kill = nemesis(1_000, What::Kill, 1);
        story(&[dead, hold(2, [500, got, got + 10, got + 11])])
            .and(&[kill])
            .and(faults)
            .options(promised)
            .watched()
    };
    let one = [fault(900, What::FaultBegin, "stop"), fault(1_500, What::FaultEnd, "stop")];
    with(1_600, &one).is_clean();
    assert_eq!(with(1_600, &one).judge().recovery.max(), Some(100));
    with(1_601, &one).convicts(Class::SlowRecovery);
    // In the middle of one nothing is promised, and nothing measured.
    assert_eq!(with(1_400, &one).judge().recovery.count(), 0);
    with(1_400, &one).is_clean();
    let two = [
        one[0],
        one[1],
        fault(950, What::FaultBegin, "slow"),
        fault(1_700, What::FaultEnd, "slow"),
    ];
    with(1_800, &two).is_clean();
    with(1_801, &two).convicts(Class::SlowRecovery);
    with(1_650, &two).is_clean();
    // The end of a fault that never began ends nothing.
    let other = [one[0], one[1], fault(1_590, What::FaultEnd, "slow")];
    with(1_650, &other).convicts(Class::SlowRecovery);
    assert_eq!(with(1_600, &two).judge().counts.faults, 3);
    // Faults are told apart by name and target.
    let targets = [
        fault(900, What::FaultBegin, "stop").with(|r| r.number(5)),
        fault(950, What::FaultEnd, "stop").with(|r| r.number(6)),
    ];
    assert_eq!(with(1_400, &targets).judge().recovery.count(), 0);
}

#[test]
fn a_free_lock_somebody_waits_for_is_owed_when_the_faults_are_over() {
    let faults = [fault(100, What::FaultBegin, "restart"), fault(1_000, What::FaultEnd, "restart")];
    let with = |holds: &[Hold]| story(holds).and(&faults).options(promised).watched();
    with(&[hold(2, [500, 1_100, 1_110, 1_111])]).is_clean();
    assert_eq!(with(&[hold(2, [500, 1_100, 1_110, 1_111])]).judge().recovery.max(), Some(100));
    let (sentence, records) =
        with(&[hold(2, [500, 1_101, 1_110, 1_111])]).convicts(Class::SlowRecovery);
    assert!(sentence.contains("after the faults ended until it was granted"), "{sentence}");
    assert_eq!(records, [(2, 1), (2, 0)]);
    // Somebody holds it, or nobody waited.
    with(&[hold(1, [1, 10, 1_500, 1_501]), hold(2, [500, 1_600, 1_610, 1_611])]).is_clean();
    with(&[hold(2, [1_001, 1_600, 1_610, 1_611])]).is_clean();
    // A hold that is over at its deadline is none.
    with(&[hold(1, [1, 10, 0, 0]).deadline(900), hold(2, [500, 1_600, 1_610, 1_611])])
        .and(&[event(900, 1, What::Lost), event(9_000, 1, What::CheckCalled)])
        .convicts(Class::SlowRecovery);
    // A death before is not made younger by a fault after.
    let dead = story(&[hold(1, [1, 10, 0, 0]), hold(2, [500, 1_101, 1_110, 1_111])])
        .and(&faults)
        .and(&[nemesis(990, What::Kill, 1)])
        .options(promised)
        .watched();
    let (sentence, _) = dead.convicts(Class::SlowRecovery);
    assert!(sentence.contains("client 1 died holding it"), "{sentence}");
}

#[test]
fn a_machine_that_was_late_is_forgiven_for_as_long_as_it_was() {
    let killed = |granted: u64, late: u64| {
        let told = move |o: &mut Options| {
            promised(o);
            o.late = Late::told_by(
                move |from, to| if (from, to) == (1_000, granted) { late } else { 0 },
            );
        };
        story(&[hold(1, [1, 10, 0, 0]), hold(2, [500, granted, 2_000, 2_001])])
            .and(&[nemesis(1_000, What::Kill, 1)])
            .options(told)
            .watched()
    };
    killed(1_100, 0).is_clean();
    killed(1_101, 0).convicts(Class::SlowRecovery);
    killed(1_140, 40).is_clean();
    killed(1_141, 40).convicts(Class::SlowRecovery);
}

#[test]
fn nothing_is_owed_while_a_fault_goes_on_or_to_those_who_wait_no_more() {
    let both = |first: u64| {
        let begin =
            [fault(100, What::FaultBegin, "restart"), fault(200, What::FaultBegin, "partition")];
        [
            begin,
            [fault(first, What::FaultEnd, "restart"), fault(1_000, What::FaultEnd, "partition")],
        ]
        .concat()
    };
    let late = hold(3, [5_000, 5_200, 5_300, 5_301]);
    let gives_up = [hold(2, [300, 0, 0, 0]).events(), vec![event(700, 2, What::TimedOut)]].concat();
    story(&[late]).and(&both(500)).and(&gives_up).options(promised).watched().is_clean();
    // Who died waiting waits no more.
    let dies = [hold(2, [300, 0, 0, 0]).events(), vec![nemesis(700, What::Kill, 2)]].concat();
    story(&[late]).and(&both(500)).and(&dies).options(promised).watched().is_clean();
}

#[test]
fn a_recording_that_ends_while_a_dead_holders_lock_is_waited_for_tells_how_long() {
    let dead = [
        hold(1, [1, 10, 0, 0]).events(),
        vec![event(990, 1, What::CheckCalled), nemesis(990, What::Kill, 1)],
    ]
    .concat();
    let waits = [hold(2, [500, 0, 0, 0]).events(), vec![event(1_500, 2, What::InLine)]].concat();
    let both = story(&[]).and(&dead).and(&waits).options(promised);
    let (sentence, _) = both.convicts(Class::SlowRecovery);
    assert!(sentence.contains("and gave up"), "{sentence}");
    // One that was killed did not give up.
    both.and(&[nemesis(1_500, What::Kill, 2)]).is_clean();
}
