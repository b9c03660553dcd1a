//! Leases: deadlines, renewals, losses, releases, and what guards say about themselves.

use lockkeeper_lab::check::{Class, Late, STANDS_STILL};
use lockkeeper_lab::history::{Flags, HoldMode, LockId, Record, What};

use super::story::{Event, Hold, Story, event, hold, story};

fn renew(called: u64, answered: u64, claim: u64, deadline: u64) -> Vec<Event> {
    vec![
        event(called, claim, What::RenewCalled),
        event(answered, claim, What::Renewed).with(|r| r.deadline(deadline)),
    ]
}

/// A hold that is never released, with a deadline, of a client that goes on.
fn leased(claim: u64, asked: u64, got: u64, deadline: u64) -> Hold {
    hold(claim, [asked, got, 0, 0]).deadline(deadline)
}

fn goes_on() -> Event {
    event(1_000_000, 1, What::CheckCalled)
}

#[test]
fn a_hold_is_over_at_its_deadline() {
    story(&[leased(1, 1, 10, 50), hold(2, [2, 50, 60, 61])]).and(&[goes_on()]).is_clean();
    story(&[leased(1, 1, 10, 51), hold(2, [2, 50, 60, 61])])
        .and(&[goes_on()])
        .convicts(Class::Overlap);
    // Two lock's deadlines in any order.
    story(&[
        leased(1, 1, 10, 50).shared(),
        leased(3, 1, 11, 40).shared(),
        hold(2, [2, 45, 60, 61]),
    ])
    .and(&[goes_on()])
    .convicts(Class::ReadersWithWriter);
    story(&[
        leased(1, 1, 10, 50).shared(),
        leased(3, 1, 11, 40).shared(),
        hold(2, [2, 55, 60, 61]),
    ])
    .and(&[goes_on()])
    .is_clean();
    // One that was over when its answer came never held.
    story(&[leased(1, 1, 10, 10), hold(2, [2, 5, 60, 61])]).and(&[goes_on()]).is_clean();
    story(&[leased(1, 1, 10, 9), hold(2, [2, 5, 60, 61])]).and(&[goes_on()]).is_clean();
    story(&[leased(1, 1, 10, 11), hold(2, [2, 5, 60, 61])])
        .and(&[goes_on()])
        .convicts(Class::Overlap);
}

#[test]
fn a_deadline_before_the_first_event_is_told_as_such() {
    let (sentence, _) = story(&[leased(1, 5_000_000, 5_000_010, 2_999_000)])
        .and(&check(5_000_020, 5_000_030, true))
        .convicts(Class::HeldAfterDeadline);
    assert!(sentence.contains("-0.002001 s"), "{sentence}");
}

#[test]
fn a_renewal_moves_the_deadline_both_ways() {
    let with = |deadline: u64, next: u64| {
        story(&[leased(1, 1, 10, 50), hold(2, [2, next, 200, 201])])
            .and(&renew(20, 30, 1, deadline))
            .and(&[goes_on()])
    };
    with(100, 60).convicts(Class::Overlap);
    with(100, 100).is_clean();
    with(40, 45).is_clean();
    with(40, 35).convicts(Class::Overlap);
    with(0, 150).convicts(Class::Overlap);
}

#[test]
fn an_acknowledgement_read_after_the_deadline_revives_only_from_there() {
    let with = |from: u64, to: u64| {
        story(&[leased(1, 1, 10, 50).token(5), hold(2, [2, from, to, to + 1])])
            .and(&renew(40, 70, 1, 100))
            .and(&[goes_on()])
    };
    with(55, 70).is_clean();
    with(55, 80).convicts(Class::Overlap);
    with(90, 95).convicts(Class::Overlap);
    with(100, 110).is_clean();
    // An acknowledgement that is over itself revives nothing.
    story(&[leased(1, 1, 10, 50), hold(2, [2, 75, 80, 81])])
        .and(&renew(40, 70, 1, 70))
        .and(&[goes_on()])
        .is_clean();
    // Neither after a loss, nor after the release was called.
    let lost = [vec![event(60, 1, What::Lost)], renew(40, 70, 1, 100), vec![goes_on()]].concat();
    story(&[leased(1, 1, 10, 50), hold(2, [2, 75, 80, 81])]).and(&lost).is_clean();
    let released = [renew(40, 70, 1, 100), vec![goes_on()]].concat();
    story(&[hold(1, [1, 10, 60, 0]).deadline(50), hold(2, [2, 75, 80, 81])])
        .and(&released)
        .is_clean();
}

#[test]
fn a_loss_ends_a_hold_and_so_does_a_refused_renewal() {
    for what in [What::Lost, What::RenewLost] {
        story(&[leased(1, 1, 10, 500), hold(2, [2, 60, 70, 71])])
            .and(&[event(60, 1, what), goes_on()])
            .is_clean();
        story(&[leased(1, 1, 10, 500), hold(2, [2, 59, 70, 71])])
            .and(&[event(60, 1, what), goes_on()])
            .convicts(Class::Overlap);
    }
    story(&[leased(1, 1, 10, 500), hold(2, [2, 60, 70, 71])])
        .and(&[event(60, 1, What::RenewUnknown), goes_on()])
        .convicts(Class::Overlap);
}

#[test]
fn losses_and_renewals_are_counted_and_how_late_the_news_came() {
    let events = [
        renew(20, 30, 1, 100),
        vec![event(140, 1, What::Lost), event(150, 1, What::Lost), goes_on()],
    ]
    .concat();
    let report = story(&[leased(1, 1, 10, 50), leased(2, 300, 310, 400)])
        .and(&events)
        .and(&[event(405, 2, What::Lost)])
        .judge();
    assert_eq!(
        (
            report.counts.lost,
            report.counts.renewed,
            report.counts.loss_late_max_ns,
            report.counts.wait_max_ns
        ),
        (3, 1, 40, 10)
    );
    let early = story(&[leased(1, 1, 10, 50)]).and(&[event(30, 1, What::Lost)]).judge();
    assert_eq!(early.counts.loss_late_max_ns, 0);
}

#[test]
fn a_hold_that_was_renewed_or_released_after_its_end_is_convicted() {
    let (sentence, records) = story(&[hold(1, [1, 10, 20, 30_000])])
        .and(&renew(31_000, 40_000, 1, 100_000))
        .convicts(Class::RenewedAfterEnd);
    assert_eq!(
        sentence,
        "client 1 renewed its hold of stock/1 at +0.000039 s with success, though that was \
         released at +0.000029 s"
    );
    assert_eq!(records, [(1, 5), (1, 4), (1, 3)]);
    story(&[hold(1, [1, 10, 20, 30_000])]).and(&renew(25, 40_000, 1, 100_000)).is_clean();
    story(&[hold(1, [1, 10, 20, 30])]).and(&renew(30, 40, 1, 100)).is_clean();
    story(&[hold(1, [1, 10, 20, 30])])
        .and(&[event(35, 1, What::RenewCalled), event(40, 1, What::RenewLost)])
        .is_clean();
    let lost = [event(15, 1, What::Lost)];
    let (sentence, _) = story(&[hold(1, [1, 10, 20, 30])])
        .and(&lost)
        .and(&renew(16, 18, 1, 100))
        .convicts(Class::RenewedAfterEnd);
    assert!(sentence.contains("that was lost at"), "{sentence}");
    story(&[hold(1, [1, 10, 20, 30])]).and(&lost).and(&renew(14, 18, 1, 100)).is_clean();
    // Each answer belongs to the last call.
    let twice =
        [renew(12, 13, 1, 100), vec![event(35, 1, What::Renewed).with(|r| r.deadline(200))]]
            .concat();
    story(&[hold(1, [1, 10, 20, 30])]).and(&twice).is_clean();
    let unknown = [
        vec![event(22, 1, What::RenewCalled), event(32, 1, What::RenewUnknown)],
        vec![event(40, 1, What::Renewed)],
    ]
    .concat();
    story(&[hold(1, [1, 10, 20, 30])]).and(&unknown).is_clean();
}

#[test]
fn one_hold_is_released_once() {
    let again = [event(50_000, 1, What::Released)];
    let (sentence, records) =
        story(&[hold(1, [1, 10, 20, 30])]).and(&again).convicts(Class::DoubleRelease);
    assert_eq!(
        sentence,
        "client 1 released stock/1 at +0.000049 s with success, and had released the same hold \
         with success before"
    );
    assert_eq!(records, [(1, 4), (1, 2), (1, 1)]);
    for what in [What::ReleasedNotOwner, What::ReleasedLost, What::ReleaseUnknown] {
        story(&[hold(1, [1, 10, 20, 30])]).and(&[event(50, 1, what)]).is_clean();
        // Sent twice, because the first answer was not known: R4.
        let first = Hold { times: [1, 10, 20, 0], ..hold(1, [0; 4]) };
        story(&[first]).and(&[event(30, 1, what), event(50, 1, What::Released)]).judge();
    }
    let unknown = Hold { times: [1, 10, 20, 0], ..hold(1, [0; 4]) };
    story(&[unknown])
        .and(&[event(30, 1, What::ReleaseUnknown), event(50, 1, What::Released)])
        .is_clean();
}

#[test]
fn the_release_of_a_hold_that_was_over_must_not_free_somebody_elses_c6() {
    let stale = |called: u64, answered: u64| hold(1, [1, 10, called, answered]).deadline(50_000);
    let other = hold(2, [2, 60_000, 90_000, 91_000]);
    let (sentence, records) =
        story(&[stale(70_000, 80_000), other]).convicts(Class::ForeignRelease);
    assert_eq!(
        sentence,
        "client 1 released stock/1 with success at +0.000079 s although its hold had ended (its \
         deadline was +0.000049 s), while client 2 held it exclusive since +0.000059 s"
    );
    assert_eq!(records, [(1, 3), (1, 2), (1, 1), (2, 1)]);
    // Nobody else held it all the time from the call to the answer.
    story(&[stale(55_000, 80_000), other]).is_clean();
    story(&[stale(60_000, 80_000), other]).is_clean();
    story(&[stale(70_000, 95_000), other]).is_clean();
    // Told that it was not its own: right.
    let refused = |what| {
        story(&[Hold { times: [1, 10, 70_000, 0], ..stale(0, 0) }, other])
            .and(&[event(80_000, 1, what)])
    };
    for what in [What::ReleasedNotOwner, What::ReleasedLost, What::ReleaseUnknown] {
        refused(what).is_clean();
    }
    // Readers beside a stale reader exclude nothing.
    story(&[stale(70_000, 80_000).shared(), other.shared()]).is_clean();
    story(&[stale(70_000, 80_000).shared(), other]).convicts(Class::ForeignRelease);
    // Lost, not over by time.
    let lost = Hold { deadline: 0, ..stale(70_000, 80_000) };
    let (sentence, _) =
        story(&[lost, other]).and(&[event(40_000, 1, What::Lost)]).convicts(Class::ForeignRelease);
    assert!(sentence.contains("(lost at +0.000039 s)"), "{sentence}");
    // Over before it was taken.
    let late = hold(1, [1, 65_000, 70_000, 80_000]).deadline(50_000);
    let (sentence, _) = story(&[late, other]).convicts(Class::ForeignRelease);
    assert!(sentence.contains("its deadline was +0.000049 s"), "{sentence}");
}

#[test]
fn a_hold_within_its_deadline_that_is_refused_at_its_release_had_vanished() {
    let held = Hold { times: [1, 10, 20_000, 0], ..hold(1, [0; 4]) };
    let (sentence, records) = story(&[held])
        .and(&[event(30_000, 1, What::ReleasedNotOwner)])
        .convicts(Class::HoldVanished);
    assert_eq!(
        sentence,
        "client 1 released stock/1 at +0.000029 s and was refused as not its holder, though it \
         held it since +0.000000 s and had not lost it"
    );
    assert_eq!(records, [(1, 3), (1, 2), (1, 1)]);
    let leased = |deadline| {
        story(&[held.deadline(deadline)]).and(&[event(30_000, 1, What::ReleasedNotOwner)])
    };
    leased(30_001).convicts(Class::HoldVanished);
    leased(30_000).is_clean();
    leased(25_000).is_clean();
    leased(15_000).is_clean();
    story(&[held])
        .and(&[event(30_000, 1, What::ReleasedNotOwner), event(15_000, 1, What::Lost)])
        .is_clean();
    let uncalled = Hold { times: [1, 10, 0, 0], ..held };
    story(&[uncalled]).and(&[event(30_000, 1, What::ReleasedNotOwner)]).is_clean();
}

fn check(called: u64, answered: u64, yes: bool) -> Vec<Event> {
    let answer = event(answered, 1, What::Checked)
        .with(|r| r.number(called).flag(if yes { Flags::YES } else { Flags::NONE }));
    vec![event(called, 1, What::CheckCalled).with(|r| r.number(called)), answer]
}

fn effect(called: u64, answered: u64, accepted: bool) -> Vec<Event> {
    let answer = event(answered, 1, What::EffectDone)
        .with(|r| r.number(called).flag(if accepted { Flags::YES } else { Flags::NONE }));
    vec![event(called, 1, What::EffectCalled).with(|r| r.number(called)), answer]
}

#[test]
fn c7_a_guard_must_not_say_that_it_holds_after_its_deadline() {
    let with = |called: u64, yes: bool| {
        story(&[leased(1, 1, 10, 50_000)]).and(&check(called, 90_000, yes))
    };
    with(40_000, true).is_clean();
    with(50_000, true).is_clean();
    with(50_001, false).is_clean();
    let (sentence, records) = with(60_000, true).convicts(Class::HeldAfterDeadline);
    assert_eq!(
        sentence,
        "client 1 was reported as holder of stock/1 at +0.000059 s, after its hold had ended (its \
         deadline was +0.000049 s)"
    );
    assert_eq!(records, [(1, 3), (1, 2), (1, 1)]);
    with(50_001, true).convicts(Class::HeldAfterDeadline);
    // Without a deadline it holds until it is released.
    story(&[hold(1, [1, 10, 0, 0])]).and(&check(60, 90, true)).is_clean();
}

#[test]
fn two_checks_at_once_are_told_apart_by_their_numbers() {
    let events = [check(40, 70, true), check(60, 65, true)].concat();
    let (_, records) =
        story(&[leased(1, 1, 10, 50)]).and(&events).convicts(Class::HeldAfterDeadline);
    assert_eq!(records, [(1, 4), (1, 3), (1, 1)]);
    // An answer without its call says nothing.
    story(&[leased(1, 1, 10, 50)]).and(&check(60, 65, true)[1..]).is_clean();
}

#[test]
fn a_renewal_under_way_may_have_moved_the_deadline_before_its_record() {
    let with = |answer: Vec<Event>| {
        story(&[leased(1, 1, 10, 50)])
            .and(&[check(60, 62, true), vec![event(40, 1, What::RenewCalled)], answer].concat())
    };
    let renewed = |deadline| vec![event(70, 1, What::Renewed).with(|r| r.deadline(deadline))];
    with(renewed(100)).is_clean();
    with(renewed(0)).is_clean();
    with(renewed(61)).is_clean();
    with(renewed(60)).convicts(Class::HeldAfterDeadline);
    with(renewed(55)).convicts(Class::HeldAfterDeadline);
    with(vec![event(70, 1, What::RenewUnknown)]).convicts(Class::HeldAfterDeadline);
    with(vec![event(70, 1, What::RenewLost)]).convicts(Class::HeldAfterDeadline);
    // Never answered: nobody can say.
    with(vec![]).is_clean();
    // Answered before: no excuse.
    let before = [event(30, 1, What::RenewCalled), event(45, 1, What::RenewUnknown)];
    story(&[leased(1, 1, 10, 50)])
        .and(&[&check(60, 62, true)[..], &before].concat())
        .convicts(Class::HeldAfterDeadline);
    let before = renew(30, 45, 1, 50);
    story(&[leased(1, 1, 10, 50)])
        .and(&[check(60, 62, true), before].concat())
        .convicts(Class::HeldAfterDeadline);
}

#[test]
fn a_renewal_that_becomes_known_while_a_check_is_answered_counts_for_it() {
    let with = |called: u64, deadline: u64| {
        let known = event(65, 1, What::Renewed).with(|r| r.deadline(deadline));
        story(&[leased(1, 1, 10, 50)]).and(&[check(called, 70, true), vec![known]].concat())
    };
    with(60, 100).is_clean();
    with(60, 60).is_clean();
    with(60, 59).convicts(Class::HeldAfterDeadline);
    let known = event(75, 1, What::Renewed).with(|r| r.deadline(100));
    let late = story(&[leased(1, 1, 10, 50)]).and(&[check(60, 70, true), vec![known]].concat());
    late.convicts(Class::HeldAfterDeadline);
}

#[test]
fn r2_a_guard_must_not_say_that_it_holds_after_it_was_lost_or_released() {
    let lost = |called| {
        story(&[leased(1, 1, 10, 50_000)])
            .and(&[check(called, 45_000, true), vec![event(40_000, 1, What::Lost)]].concat())
    };
    lost(39_000).is_clean();
    lost(40_000).is_clean();
    let (sentence, _) = lost(41_000).convicts(Class::HeldAfterEnd);
    assert!(sentence.ends_with("after its hold had ended (lost at +0.000039 s)"), "{sentence}");
    // Not even with a renewal under way: a loss is final.
    let renewing = [
        check(41_000, 45_000, true),
        vec![event(40_000, 1, What::Lost)],
        renew(39_000, 47_000, 1, 99_000),
    ]
    .concat();
    story(&[leased(1, 1, 10, 50_000)]).and(&renewing).convicts(Class::HeldAfterEnd);
    let released =
        |called| story(&[hold(1, [1, 10, 20_000, 30_000])]).and(&check(called, 45_000, true));
    released(25_000).is_clean();
    let (sentence, _) = released(31_000).convicts(Class::HeldAfterEnd);
    assert!(sentence.ends_with("after its hold had ended (released at +0.000019 s)"), "{sentence}");
}

#[test]
fn v2_an_effect_after_the_end_is_late_unless_it_was_refused() {
    let with = |called: u64, accepted: bool| {
        story(&[leased(1, 1, 10, 50_000)]).and(&effect(called, 90_000, accepted))
    };
    with(40_000, true).is_clean();
    with(60_000, false).is_clean();
    let (sentence, _) = with(60_000, true).convicts(Class::LateEffect);
    assert_eq!(
        sentence,
        "client 1 touched the resource of stock/1 at +0.000059 s, after its hold had ended (its \
         deadline was +0.000049 s)"
    );
    // After the release was called, not only after its answer; a check may still say yes then.
    let released = |called| story(&[hold(1, [1, 10, 20, 40])]).and(&effect(called, 90, true));
    released(20).is_clean();
    released(21).convicts(Class::LateEffect);
    released(45).convicts(Class::LateEffect);
    // Excused by a renewal as checks are.
    let renewed = [effect(60, 62, true), renew(40, 70, 1, 100)].concat();
    story(&[leased(1, 1, 10, 50)]).and(&renewed).is_clean();
    // Lost before it was released.
    let lost = [effect(35_000, 90_000, true), vec![event(15_000, 1, What::Lost)]].concat();
    let (sentence, _) =
        story(&[hold(1, [1, 10, 20_000, 30_000])]).and(&lost).convicts(Class::LateEffect);
    assert!(sentence.contains("(lost at +0.000014 s)"), "{sentence}");
    let called_first = [effect(35_000, 90_000, true), vec![event(25_000, 1, What::Lost)]].concat();
    story(&[hold(1, [1, 10, 20_000, 30_000])]).and(&called_first).convicts(Class::LateEffect);
}

#[test]
fn a_claim_that_was_never_granted_is_over_for_nobody() {
    let asks = Hold { times: [1, 0, 0, 0], ..hold(1, [0; 4]) };
    story(&[asks]).and(&[check(60, 62, true), effect(70, 72, true)].concat()).is_clean();
}

#[test]
fn unknown_releases_are_counted_once_each() {
    let first = Hold { times: [1, 10, 20, 0], ..hold(1, [0; 4]) };
    let asks = Hold { times: [1, 0, 0, 0], ..hold(2, [0; 4]) };
    let report = story(&[first, asks])
        .and(&[event(30, 1, What::ReleaseUnknown), event(31, 2, What::AcquireUnknown)])
        .judge();
    assert_eq!(report.counts.unknown, 2);
}

/// With skew answers come late; a hold shorter than the skew certainly lasted at no moment.
#[test]
fn an_answer_after_the_release_was_called_holds_nothing() {
    let events = |claim: u64, asked: u64, called: u64, granted: u64, released: u64| {
        vec![
            event(asked, claim, What::AcquireCalled)
                .with(|r| Record { mode: HoldMode::Exclusive, ..r }),
            event(called, claim, What::ReleaseCalled),
            event(granted, claim, What::Acquired),
            event(released, claim, What::Released),
        ]
    };
    let story = Story {
        events: [events(1, 1, 10, 20, 30), hold(2, [2, 15, 40, 41]).events()].concat(),
        ..Story::default()
    };
    story.is_clean();
    // It was there all the same: a try beside it was refused rightly, and one after it was not.
    let busy = |from: u64, to: u64| {
        let tried = Hold { times: [from, 0, 0, 0], ..hold(9, [0; 4]).tried() };
        Story {
            events: [events(1, 1, 10, 20, 30), tried.events(), vec![event(to, 9, What::Busy)]]
                .concat(),
            ..Story::default()
        }
    };
    busy(25, 26).is_clean();
    busy(35, 36).convicts(Class::WrongBusy);
}

/// Told at 60 ms, or whatever `end` says, that its lease was over at 50 ms; 10 ms late is in time.
fn told_late(end: &[Event], around: &[Event]) -> Story {
    let goes_on = event(90 * MS, 1, What::CheckCalled);
    let story =
        story(&[leased(1, MS, 10 * MS, 50 * MS)]).and(end).and(around).and(&[goes_on]).watched();
    story.options(|options| options.recovery_slack = std::time::Duration::from_millis(10))
}

const MS: u64 = 1_000_000;

fn stands_still(from: u64, to: u64, process: u64) -> [Event; 2] {
    let fault = |at: u64, what| Event {
        client: Story::NEMESIS,
        record: Record {
            at: at * MS,
            number: process,
            ..Record::about(what, LockId::text(STANDS_STILL), 0)
        },
    };
    [fault(from, What::FaultBegin), fault(to, What::FaultEnd)]
}

#[test]
fn r2_a_holder_that_runs_is_told_at_its_deadline_that_its_hold_is_over() {
    let lost = |at: u64| [event(at * MS, 1, What::Lost)];
    told_late(&lost(60), &[]).is_clean();
    let (sentence, records) = told_late(&lost(61), &[]).convicts(Class::LateLoss);
    assert_eq!(records, [(1, 2), (1, 1)]);
    assert!(
        sentence.contains(
            "did not learn at +0.049000 s, its deadline, that its hold of stock/1 had ended, nor \
             11 ms later"
        ),
        "{sentence}"
    );
    assert_eq!(told_late(&lost(61), &[]).judge().counts.loss_late_max_ns, 11 * MS);
    // Never told: until its release, a late renewal, its death, and the end of the history.
    for what in [What::ReleaseCalled, What::Renewed] {
        told_late(&[event(61 * MS, 1, what).with(|r| r.deadline(99 * MS))], &[])
            .convicts(Class::LateLoss);
        told_late(&[event(60 * MS, 1, what).with(|r| r.deadline(99 * MS))], &[]).is_clean();
    }
    let kill = |at: u64| {
        [Event {
            client: Story::NEMESIS,
            record: Record { at: at * MS, ..Record::new(What::Kill).number(1) },
        }]
    };
    told_late(&[], &kill(61)).convicts(Class::LateLoss);
    told_late(&[], &kill(60)).is_clean();
    told_late(&[], &[]).convicts(Class::LateLoss);
}

#[test]
fn nobody_is_told_late_who_stood_still_or_whose_machine_was_late_or_of_whom_that_is_not_known() {
    let lost = [event(80 * MS, 1, What::Lost)];
    for (from, to) in [(20, 79), (55, 79), (20, 50)] {
        told_late(&lost, &stands_still(from, to, 1)).is_clean();
        assert_eq!(told_late(&lost, &stands_still(from, to, 1)).judge().counts.loss_late_max_ns, 0);
        told_late(&lost, &stands_still(from, to, 2)).convicts(Class::LateLoss);
    }
    told_late(&lost, &stands_still(20, 49, 1)).convicts(Class::LateLoss);
    let busy = |ms: u64| {
        told_late(&lost, &[]).options(|options| options.late = Late::told_by(move |_, _| ms * MS))
    };
    busy(20).is_clean();
    busy(19).convicts(Class::LateLoss);
    Story { watched: false, ..told_late(&lost, &[]) }.is_clean();
}
