//! Tries: whether who was refused was refused rightly.

use std::time::Duration;

use lockkeeper_lab::check::{Class, Options};
use lockkeeper_lab::history::{HoldMode, Record, What};

use super::story::{Event, Hold, Story, event, hold, story};

/// A try of the given claim that is refused.
pub fn refused(claim: u64, from: u64, to: u64, mode: HoldMode) -> Vec<Event> {
    let try_only = Hold {
        times: [from, 0, 0, 0],
        weight: 1,
        limit: 3,
        ..hold(claim, [0; 4]).mode(mode).tried()
    };
    vec![try_only.events()[0], event(to, claim, What::Busy)]
}

fn tried(holds: &[Hold], busy: Vec<Event>) -> Story {
    story(holds).and(&busy)
}

#[test]
fn a_try_is_refused_rightly_while_somebody_may_be_there() {
    const X: HoldMode = HoldMode::Exclusive;
    let held = [hold(1, [10, 20, 30, 40]), hold(2, [70, 80, 90, 99])];
    for (from, to) in [(5, 15), (12, 13), (25, 26), (35, 39), (35, 60), (40, 45), (50, 75), (5, 60)]
    {
        tried(&held, refused(9, from, to, X)).is_clean();
    }
    for (from, to) in [(41, 69), (50, 60), (1, 9), (100, 110)] {
        tried(&held, refused(9, from, to, X)).convicts(Class::WrongBusy);
    }
    let (sentence, records) =
        tried(&held, refused(9, 50_000, 60_000, X)).convicts(Class::WrongBusy);
    assert_eq!(
        sentence,
        "client 9 tried stock/1 and was refused, but from +0.000049 s to +0.000059 s it was free \
         and had no waiter"
    );
    assert_eq!(records, [(9, 1), (9, 0)]);
}

#[test]
fn whoever_waits_is_there_too_r11() {
    let waiter = Hold { times: [10, 0, 0, 0], ..hold(1, [0; 4]) };
    let waits = |end| {
        tried(
            &[waiter],
            [refused(9, 20, 25, HoldMode::Exclusive), vec![event(end, 1, What::AcquireFailed)]]
                .concat(),
        )
    };
    waits(22).is_clean();
    waits(50).is_clean();
    waits(15).convicts(Class::WrongBusy);
    waits(19).convicts(Class::WrongBusy);
    // Shared tries stand behind anybody who waits, whatever it waits for.
    let shared = tried(
        &[waiter.shared()],
        [refused(9, 20, 25, HoldMode::Shared), vec![event(50, 1, What::AcquireFailed)]].concat(),
    );
    shared.is_clean();
}

#[test]
fn only_what_excludes_it_refuses_a_try() {
    use HoldMode::{Exclusive, Shared, Upgradable};
    let wrong = |held: HoldMode, tries: HoldMode| {
        tried(&[hold(1, [10, 20, 30, 40]).mode(held)], refused(9, 24, 26, tries))
            .judge()
            .count(Class::WrongBusy)
            == 1
    };
    assert!(wrong(Shared, Shared) && wrong(Shared, Upgradable) && wrong(Upgradable, Shared));
    assert!(
        !wrong(Exclusive, Shared) && !wrong(Exclusive, Upgradable) && !wrong(Exclusive, Exclusive)
    );
    assert!(
        !wrong(Shared, Exclusive)
            && !wrong(Upgradable, Exclusive)
            && !wrong(Upgradable, Upgradable)
    );
}

#[test]
fn permits_refuse_when_too_few_are_left() {
    let wrong = |weight: u16| {
        tried(
            &[hold(1, [10, 20, 30, 40]).permits(weight, 3)],
            refused(9, 24, 26, HoldMode::Permits),
        )
        .judge()
        .count(Class::WrongBusy)
    };
    assert_eq!([wrong(1), wrong(2), wrong(3)], [1, 1, 0]);
    // After the release was answered they are free again.
    let late =
        tried(&[hold(1, [10, 20, 30, 40]).permits(3, 3)], refused(9, 50, 60, HoldMode::Permits));
    late.convicts(Class::WrongBusy);
    // Each gives back its own.
    let ones = [hold(1, [10, 20, 30, 40]).permits(1, 3), hold(2, [10, 21, 31, 41]).permits(2, 3)];
    let four = hold(3, [10, 32, 33, 42]).permits(3, 3);
    let all = Hold {
        weight: 3,
        limit: 3,
        times: [50, 0, 0, 0],
        ..hold(9, [0; 4]).mode(HoldMode::Permits).tried()
    };
    tried(&[ones[0], ones[1], four], vec![all.events()[0], event(60, 9, What::Busy)])
        .convicts(Class::WrongBusy);
    // Without a limit nothing can be said.
    tried(&[], refused(9, 24, 26, HoldMode::Permits)).is_clean();
    // Tries under way may have got theirs.
    let busy =
        [refused(8, 50, 58, HoldMode::Permits), refused(9, 51, 59, HoldMode::Permits)].concat();
    assert_eq!(
        tried(&[hold(1, [10, 20, 30, 40]).permits(3, 3)], busy.clone()).found(),
        [(Class::WrongBusy, 2)]
    );
    tried(
        &[hold(1, [10, 20, 30, 40]).permits(3, 3), hold(2, [41, 42, 90, 91]).permits(2, 3)],
        busy,
    )
    .is_clean();
}

#[test]
fn a_changed_limit_excuses_the_tries_under_way() {
    let resize = |what, time| event(time, 0, what).with(|r| Record { claim: 0, ..r.number(3) });
    let at = |time| {
        tried(
            &[hold(1, [10, 20, 30, 40]).permits(1, 3)],
            [
                refused(9, 24, 28, HoldMode::Permits),
                vec![resize(What::ResizeCalled, time), resize(What::Resized, time + 1)],
            ]
            .concat(),
        )
    };
    at(25).is_clean();
    at(23).is_clean();
    at(21).convicts(Class::WrongBusy);
    at(28).convicts(Class::WrongBusy);
}

#[test]
fn a_refused_try_excuses_no_other_and_a_granted_one_does() {
    const X: HoldMode = HoldMode::Exclusive;
    let both = tried(&[], [refused(8, 10, 20, X), refused(9, 12, 18, X)].concat());
    assert_eq!(both.found(), [(Class::WrongBusy, 2)]);
    tried(&[hold(1, [11, 30, 40, 50]).tried()], refused(9, 12, 18, X)).is_clean();
    // Three in a row: the answer of the last decides over the first.
    let chain = |end: Vec<Event>| {
        story(&[]).and(&[refused(7, 10, 20, X), refused(8, 15, 30, X), end].concat())
    };
    chain(hold(9, [18, 40, 50, 60]).tried().events()).is_clean();
    assert_eq!(chain(refused(9, 18, 40, X)).found(), [(Class::WrongBusy, 3)]);
    let failed = [refused(9, 18, 40, X)[0], event(40, 9, What::AcquireFailed)];
    assert_eq!(chain(failed.to_vec()).found(), [(Class::WrongBusy, 2)]);
    // One that was dropped explains those that were under way with it, and not those answered
    // before.
    let dropped = [
        Hold { times: [30, 0, 0, 0], ..hold(9, [0; 4]).tried() }.events(),
        vec![event(40, 9, What::Cancelled)],
    ]
    .concat();
    let (_, records) = story(&[])
        .and(&[refused(7, 10, 20, X), refused(8, 15, 60, X), dropped].concat())
        .convicts(Class::WrongBusy);
    assert_eq!(records, [(7, 1), (7, 0)]);
    // One that does not exclude it explains nothing.
    let shared =
        tried(&[hold(1, [11, 30, 40, 50]).shared().tried()], refused(9, 12, 18, HoldMode::Shared));
    shared.convicts(Class::WrongBusy);
    tried(&[hold(1, [11, 30, 40, 50]).tried()], refused(9, 12, 18, HoldMode::Shared)).is_clean();
    tried(
        &[hold(1, [11, 30, 40, 50]).upgradable().tried()],
        refused(9, 12, 18, HoldMode::Upgradable),
    )
    .is_clean();
    tried(&[hold(1, [11, 30, 40, 50]).shared().tried()], refused(9, 12, 18, HoldMode::Upgradable))
        .convicts(Class::WrongBusy);
    tried(&[hold(1, [11, 30, 40, 50]).shared().tried()], refused(9, 12, 18, HoldMode::Exclusive))
        .is_clean();
    // Nor one that was called after the answer.
    tried(&[hold(1, [19, 30, 40, 50]).tried()], refused(9, 12, 18, X)).convicts(Class::WrongBusy);
}

#[test]
fn what_is_not_known_may_be_there() {
    const X: HoldMode = HoldMode::Exclusive;
    let asks = Hold { times: [10, 0, 0, 0], ..hold(1, [0; 4]) };
    // One who gave up withdraws its place, however long those of the dead stay.
    let withdrawn = |o: &mut Options| o.withdraw = Duration::from_nanos(100);
    let ends = |what| {
        tried(&[asks], [refused(9, 1_000, 1_001, X), vec![event(20, 1, what)]].concat())
            .options(withdrawn)
    };
    ends(What::AcquireUnknown).is_clean();
    let within = |o: &mut Options| {
        (o.recovery, o.linger) = (Some(Duration::from_nanos(900)), Duration::from_nanos(79))
    };
    let bounded = ends(What::AcquireUnknown).options(within);
    bounded.clone().options(|o| o.linger = Duration::from_nanos(80)).is_clean();
    bounded.convicts(Class::WrongBusy);
    ends(What::TimedOut).convicts(Class::WrongBusy);
    ends(What::Cancelled).convicts(Class::WrongBusy);
    ends(What::AcquireFailed).convicts(Class::WrongBusy);
    // For as long as a place lingers.
    let near = |what, from| {
        tried(&[asks], [refused(9, from, from + 1, X), vec![event(20, 1, what)]].concat())
            .options(withdrawn)
    };
    near(What::TimedOut, 120).is_clean();
    near(What::Cancelled, 120).is_clean();
    near(What::TimedOut, 121).convicts(Class::WrongBusy);
    near(What::AcquireFailed, 30).convicts(Class::WrongBusy);
    // A try that was dropped excuses those that were under way with it.
    let dropped =
        [asks.tried().events(), vec![event(20, 1, What::Cancelled)], refused(9, 12, 15, X)]
            .concat();
    tried(&[], dropped).options(|o| o.withdraw = Duration::ZERO).is_clean();
}

#[test]
fn an_unknown_release_may_have_failed_until_the_next_exclusive_grant() {
    const X: HoldMode = HoldMode::Exclusive;
    let unknown = [
        Hold { times: [10, 20, 30, 0], ..hold(1, [0; 4]) }.events(),
        vec![event(40, 1, What::ReleaseUnknown)],
    ]
    .concat();
    let then = |more: Vec<Event>| story(&[]).and(&[unknown.clone(), more].concat());
    then(refused(9, 500, 600, X)).is_clean();
    let next = hold(2, [100, 110, 120, 130]).events();
    then([next.clone(), refused(9, 500, 600, X)].concat()).convicts(Class::WrongBusy);
    then([next, refused(9, 60, 65, X)].concat()).is_clean();
    // Granted while the answer of the release was under way: then it had taken effect.
    let quick = hold(2, [15, 32, 34, 36]).events();
    then([quick, refused(9, 500, 600, X)].concat()).convicts(Class::WrongBusy);
    // A shared grant proves nothing.
    let shared = hold(2, [100, 110, 120, 130]).shared().events();
    then([shared, refused(9, 500, 600, X)].concat()).is_clean();
    // Permits never come to an exclusive grant.
    let permits = [
        Hold { times: [10, 20, 30, 0], ..hold(1, [0; 4]).permits(3, 3) }.events(),
        vec![event(40, 1, What::ReleaseUnknown)],
    ]
    .concat();
    story(&[]).and(&[permits, refused(9, 500, 600, HoldMode::Permits)].concat()).is_clean();
}

#[test]
fn a_conversion_under_way_may_refuse_in_either_mode() {
    use HoldMode::{Exclusive, Shared, Upgradable};
    let convert = |time, what, to| event(time, 1, what).with(|r| Record { mode: to, ..r });
    let with = |from: HoldMode, to: HoldMode, end: What, tries: HoldMode, at: u64| {
        let events = [
            vec![convert(30, What::ConvertCalled, to), convert(40, end, to)],
            refused(9, at, at + 1, tries),
        ]
        .concat();
        tried(&[hold(1, [10, 20, 90, 99]).mode(from)], events).judge().count(Class::WrongBusy)
    };
    let found = |from, to, end, tries| [25, 35, 45].map(|at| with(from, to, end, tries, at));
    assert_eq!(found(Upgradable, Exclusive, What::Converted, Shared), [1, 0, 0]);
    assert_eq!(found(Upgradable, Exclusive, What::ConvertFailed, Shared), [1, 0, 1]);
    assert_eq!(found(Exclusive, Shared, What::Converted, Shared), [0, 0, 1]);
    assert_eq!(found(Exclusive, Shared, What::ConvertFailed, Shared), [0, 0, 0]);
    assert_eq!(found(Exclusive, Upgradable, What::Converted, Shared), [0, 0, 1]);
    assert_eq!(found(Exclusive, Upgradable, What::Converted, Upgradable), [0, 0, 0]);
    // Released in the middle of it: then it is gone in both.
    let released =
        [vec![convert(30, What::ConvertCalled, Exclusive)], refused(9, 110, 111, Shared)].concat();
    tried(&[hold(1, [10, 20, 90, 99]).upgradable()], released).convicts(Class::WrongBusy);
    // Called twice, or by one that holds nothing any more: it counts once, or not at all.
    let twice = [
        vec![
            convert(30, What::ConvertCalled, Exclusive),
            convert(31, What::ConvertCalled, Exclusive),
        ],
        refused(9, 110, 111, Shared),
    ];
    tried(&[hold(1, [10, 20, 90, 99]).upgradable()], twice.concat()).convicts(Class::WrongBusy);
    let after =
        [vec![convert(95, What::ConvertCalled, Exclusive)], refused(9, 110, 111, Shared)].concat();
    tried(&[hold(1, [10, 20, 90, 99]).upgradable()], after).convicts(Class::WrongBusy);
    // Not recorded: it counts from its answer.
    let unsaid = [
        vec![convert(30, What::Converted, Exclusive)],
        refused(8, 35, 36, Shared),
        refused(9, 110, 111, Exclusive),
    ]
    .concat();
    tried(&[hold(1, [10, 20, 90, 99]).upgradable()], unsaid).convicts(Class::WrongBusy);
}
