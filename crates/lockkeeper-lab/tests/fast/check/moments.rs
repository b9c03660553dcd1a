//! What each violation takes for an explanation: since when it may have been in the making, whose
//! it is, and whether somebody was late.

use std::time::Duration;

use lockkeeper_lab::check::{Class, Moment};
use lockkeeper_lab::history::{Flags, HoldMode, Record, What};

use super::story::{Event, Hold, Story, event, hold, story};

/// Leases of 100 ns at most.
fn moment(of: Story, class: Class) -> Moment {
    let report = of.options(|o| o.lease = Duration::from_nanos(100)).judge();
    assert_eq!(report.count(class), 1, "{:#?}", report.violations);
    let described =
        report.violations.iter().find(|v| v.class == class).map(|v| v.moment()).unwrap();
    assert_eq!(report.moments[&class], [described], "what is not described is judged by the same");
    described
}

fn goes_on() -> Event {
    lives(1)
}

/// A client whose recording goes on.
fn lives(client: u64) -> Event {
    event(1_000_000, client, What::CheckCalled)
}

/// Shown at a moment by two clients, the newer one first.
fn beside(at: u64, newer: u32, older: u32) -> Moment {
    Moment { pair: Some([newer, older]), ..Moment::at(at) }
}

#[test]
fn two_holders_are_in_the_making_since_the_older_one_was_confirmed_for_the_last_time() {
    let older = hold(1, [10, 20, 0, 0]);
    let newer = hold(2, [200, 210, 300, 301]);
    let since = |older, events: &[Event]| {
        moment(story(&[older, newer]).and(events).and(&[goes_on()]), Class::Overlap)
    };
    let shown = beside(210, 2, 1);
    assert_eq!(since(older, &[]), shown.since(10), "without a deadline, since it was asked for");
    assert_eq!(since(older.deadline(250), &[]), shown.since(150), "a lease before its deadline");
    assert_eq!(since(older.deadline(240), &[]), shown.since(140));
    let renewed =
        [event(30, 1, What::RenewCalled), event(40, 1, What::Renewed).with(|r| r.deadline(290))];
    assert_eq!(
        since(older.deadline(110), &renewed),
        shown.since(190),
        "and before the one that a renewal gave it"
    );
    // It was asked for after the lease can have begun, and was nobody's before.
    assert_eq!(since(hold(1, [160, 170, 0, 0]).deadline(250), &[]), shown.since(160));
    // A turn that was handed on, and one under an owner, may be asked for in a hold that was there
    // before.
    assert_eq!(
        since(hold(1, [160, 170, 0, 0]).deadline(250).flag(Flags::HANDED), &[]),
        shown.since(150)
    );
    assert_eq!(since(hold(1, [160, 170, 0, 0]).deadline(250).owner(7), &[]), shown.since(150));
}

#[test]
fn it_may_be_the_newer_guard_that_stands_for_the_older_hold() {
    let newer = hold(2, [200, 210, 300, 301]).deadline(220).flag(Flags::HANDED);
    let found = moment(
        story(&[hold(1, [190, 200, 0, 0]).deadline(290), newer]).and(&[goes_on()]),
        Class::Overlap,
    );
    assert_eq!(found, beside(210, 2, 1).since(120));
}

#[test]
fn of_several_readers_the_one_that_was_confirmed_last_is_held_against_a_writer() {
    let readers = [
        hold(1, [10, 20, 0, 0]).shared(),
        hold(3, [150, 160, 0, 0]).shared(),
        hold(4, [50, 60, 0, 0]).shared(),
    ];
    let all = [readers[0], readers[1], readers[2], hold(2, [200, 210, 300, 301])];
    assert_eq!(
        moment(story(&all).and(&[1, 3, 4].map(lives)), Class::ReadersWithWriter),
        beside(210, 2, 3).since(150)
    );
}

#[test]
fn of_permits_any_holder_may_be_the_one_that_was_forgotten() {
    let of = |claim: u64, asked: u64| hold(claim, [asked, asked + 10, 0, 0]).permits(1, 5);
    let all: Vec<_> = [(1, 90), (3, 10), (4, 60), (5, 70), (6, 80), (2, 200)]
        .map(|(claim, asked)| of(claim, asked))
        .into();
    assert_eq!(
        moment(story(&all).and(&[1, 2, 3, 4, 5, 6].map(lives)), Class::PermitsExceeded),
        Moment::at(210).since(10),
        "five others, four are described"
    );
}

#[test]
fn one_permit_that_was_forgotten_explains_no_more_than_its_own() {
    let of =
        |claim: u64, asked: u64, weight| hold(claim, [asked, asked + 10, 0, 0]).permits(weight, 5);
    let since = |all: &[Hold]| {
        let report = story(all)
            .and(&[1, 2, 3, 4].map(lives))
            .options(|o| o.lease = Duration::from_nanos(100))
            .judge();
        report.moments[&Class::PermitsExceeded]
            .iter()
            .map(|moment| moment.since)
            .collect::<Vec<_>>()
    };
    assert_eq!(since(&[of(1, 10, 1), of(3, 60, 3), of(2, 200, 2)]), [10], "5 without it");
    assert_eq!(since(&[of(1, 10, 1), of(3, 60, 3), of(2, 200, 3)]), [60], "6 without it");
    assert_eq!(
        since(&[of(1, 10, 1), of(3, 60, 2), of(4, 70, 2), of(2, 200, 4)]),
        [70],
        "the latest two are 6"
    );
}

#[test]
fn of_holders_in_several_modes_the_one_that_was_confirmed_last_is_held_against_a_writer() {
    let all = [
        hold(1, [10, 20, 0, 0]),
        hold(3, [150, 160, 0, 0]).shared(),
        hold(2, [200, 210, 300, 301]),
    ];
    let report = story(&all)
        .and(&[1, 3].map(lives))
        .options(|o| o.lease = Duration::from_nanos(100))
        .judge();
    assert_eq!(
        report.moments[&Class::ReadersWithWriter],
        [beside(160, 3, 1).since(10), beside(210, 2, 3).since(150)]
    );
}

#[test]
fn a_hold_that_was_taken_away_is_in_the_making_since_it_was_confirmed() {
    let gone = [event(230, 1, What::ReleaseCalled), event(240, 1, What::ReleasedNotOwner)];
    let told = story(&[hold(1, [10, 20, 0, 0]).deadline(260)]).and(&gone);
    assert_eq!(moment(told, Class::HoldVanished), Moment::at(240).since(160));
}

#[test]
fn tokens_that_go_back_are_in_the_making_since_either_hold_was_confirmed() {
    let two = |first: u64, second: u64| {
        story(&[
            hold(1, [10, 20, 30, 40]).token(9).deadline(first),
            hold(2, [200, 210, 300, 301]).token(5).deadline(second),
        ])
    };
    assert_eq!(moment(two(150, 320), Class::TokenOrder), Moment::at(210).since(50));
    let handed = story(&[
        hold(1, [200, 210, 220, 221]).token(9),
        hold(2, [230, 240, 250, 251]).token(5).deadline(260).flag(Flags::HANDED),
    ]);
    assert_eq!(
        moment(handed, Class::TokenOrder),
        Moment::at(240).since(160),
        "a turn of the older hold"
    );
}

fn logged(time: u64, claim: u64, what: What, token: u64, versions: (u64, u64)) -> Event {
    let operation = Record {
        at: time,
        mode: HoldMode::Exclusive,
        ..Record::about(what, super::story::L, claim)
    };
    Event {
        client: 50,
        record: operation.token(token).flag(Flags::YES).number(versions.0).deadline(versions.1),
    }
}

#[test]
fn a_lost_update_is_explained_by_one_who_was_late_or_by_two_who_held_at_once() {
    // The first holds from 20 on, the other writes from the version that the first replaced.
    let told = |first: [u64; 4], second: [u64; 4]| {
        story(&[hold(1, first).token(3), hold(2, second).token(4)]).and(&[
            logged(100, 1, What::ResourceWrite, 3, (7, 7)),
            logged(110, 2, What::ResourceWrite, 4, (8, 7)),
            goes_on(),
        ])
    };
    let found = |first, second| moment(told(first, second), Class::LostUpdate);
    let both = found([10, 20, 200, 201], [80, 90, 200, 201]);
    assert_eq!(both, Moment::at(110).since(10), "two holders at once, and nobody late");
    assert!(
        found([10, 20, 60, 61], [80, 90, 200, 201]).late,
        "the one before wrote after its hold"
    );
    assert!(found([10, 20, 200, 201], [80, 90, 105, 106]).late, "it wrote after its hold itself");
    let stranger = story(&[hold(2, [80, 90, 200, 201])])
        .and(&[logged(110, 9, What::ResourceWrite, 4, (8, 7)), goes_on()]);
    assert!(moment(stranger, Class::LostUpdate).late, "nobody knows that it held");
}

#[test]
fn a_stale_operation_is_late_unless_its_hold_is_not_over() {
    let told = |end: [u64; 2]| {
        story(&[hold(1, [10, 20, end[0], end[1]]).token(3), hold(2, [80, 90, 200, 201]).token(4)])
            .and(&[
                logged(100, 2, What::ResourceRead, 4, (0, 0)),
                logged(110, 1, What::ResourceRead, 3, (0, 0)),
                goes_on(),
            ])
    };
    assert!(moment(told([60, 61]), Class::StaleWriteUnfenced).late);
    assert_eq!(moment(told([200, 201]), Class::StaleWriteUnfenced), Moment::at(110).since(10));
}

#[test]
fn a_slow_recovery_is_in_the_making_since_somebody_was_owed_the_lock() {
    let kill = Event {
        client: Story::NEMESIS,
        record: Record { at: 50, ..Record::new(What::Kill) }.number(1),
    };
    let told =
        story(&[hold(1, [10, 20, 0, 0]), hold(2, [30, 500, 600, 601])]).and(&[kill]).watched();
    let told = told.options(|o| {
        (o.recovery, o.recovery_slack) = (Some(Duration::from_nanos(100)), Duration::ZERO)
    });
    assert_eq!(moment(told, Class::SlowRecovery), Moment::at(500).since(50));
}
