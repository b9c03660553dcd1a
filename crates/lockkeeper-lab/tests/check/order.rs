//! Orders: tokens, refused tries, first come first served.

use std::time::Duration;

use lockkeeper_lab::check::{Class, Options};
use lockkeeper_lab::history::{Flags, HoldMode, Record, What};

use super::story::{Event, Hold, Story, event, hold, story};

#[test]
fn tokens_rise_from_hold_to_hold() {
    let (a, b) = (hold(1, [1, 2_000, 3_000, 4_000]).token(100), hold(2, [1, 5_000, 6_000, 7_000]));
    story(&[a, b.token(101)]).is_clean();
    story(&[a, b]).is_clean();
    let (sentence, records) = story(&[a, b.token(99)]).convicts(Class::TokenOrder);
    assert_eq!(
        sentence,
        "client 2 got stock/1 with token 99 at +0.000004 s, after client 1 had had the greater \
         token 100 until +0.000002 s"
    );
    assert_eq!(records, [(2, 1), (1, 1)]);
    let (sentence, _) = story(&[a, b.token(100)]).convicts(Class::TokenRepeated);
    assert_eq!(
        sentence,
        "client 2 got stock/1 with token 100 at +0.000004 s, the same that client 1 had in a hold \
         that ended at +0.000002 s"
    );
    // Also long after, and past holds without one.
    story(&[
        a,
        b.token(150),
        hold(3, [1, 8_000, 9_000, 9_001]),
        hold(4, [1, 9_100, 9_200, 9_300]).token(120),
    ])
    .convicts(Class::TokenOrder);
    // Ends and begins in one tick.
    story(&[a, hold(2, [1, 3_000, 6_000, 7_000]).token(99)]).convicts(Class::TokenOrder);
}

#[test]
fn where_every_hold_has_a_token_one_without_is_convicted_once() {
    let judged = |fenced, holds: &[Hold]| story(holds).options(|o| o.fenced = fenced);
    let none = hold(1, [1, 2_000, 3_000, 4_000]);
    let (sentence, records) = judged(true, &[none, hold(2, [1, 5_000, 6_000, 7_000]).token(5)])
        .convicts(Class::TokenMissing);
    assert_eq!(sentence, "client 1 got stock/1 exclusive at +0.000001 s without a fencing token");
    assert_eq!(records, [(1, 1)]);
    judged(false, &[none]).is_clean();
    for without in [
        none.shared(),
        none.upgradable(),
        none.deadline(9_000),
        none.flag(Flags::HANDED),
        hold(1, [1, 5, 5, 6]),
    ] {
        judged(true, &[without]).convicts(Class::TokenMissing);
        judged(true, &[without.token(5)]).is_clean();
    }
    judged(true, &[none.permits(1, 3)]).is_clean();
    // A hold that is entered again has its token, and so has each of its modes.
    let inner = Hold { client: 1, times: [2_100, 2_200, 2_300, 2_400], ..hold(5, [0; 4]).owner(7) };
    judged(true, &[none.owner(7).token(5), inner]).convicts(Class::TokenMissing);
    let to = |what, time, token| {
        event(time, 1, what).with(|r| Record { mode: HoldMode::Shared, ..r.token(token) })
    };
    let converted = |token| {
        judged(true, &[none.token(5)])
            .and(&[to(What::ConvertCalled, 2_200, 0), to(What::Converted, 2_300, token)])
    };
    converted(6).is_clean();
    converted(0).convicts(Class::TokenMissing);
    // Who holds again after its deadline got nothing new.
    let renewed = [
        event(2_300, 1, What::RenewCalled),
        event(2_600, 1, What::Renewed).with(|r| r.deadline(9_000)),
    ];
    judged(true, &[none.deadline(2_500)]).and(&renewed).convicts(Class::TokenMissing);
}

#[test]
fn holds_at_once_have_no_order_of_tokens() {
    story(&[hold(1, [1, 2, 9, 10]).shared().token(100), hold(2, [1, 3, 8, 10]).shared().token(90)])
        .is_clean();
    story(&[hold(1, [1, 2, 9, 10]).token(100), hold(2, [1, 3, 8, 10]).token(90)])
        .convicts(Class::Overlap);
}

#[test]
fn shared_tokens_lie_between_the_exclusive_ones() {
    let writer = hold(1, [1, 2, 3, 4]).token(100);
    let reader = |token| hold(2, [5, 6, 7, 8]).shared().token(token);
    let last = |token| hold(3, [9, 10, 11, 12]).token(token);
    story(&[writer, reader(101), last(102)]).is_clean();
    story(&[writer, reader(99)]).convicts(Class::TokenOrder);
    story(&[writer, reader(100)]).convicts(Class::TokenRepeated);
    story(&[writer, reader(105), last(104)]).convicts(Class::TokenOrder);
    story(&[writer, reader(105), last(105)]).convicts(Class::TokenRepeated);
    // Among readers nothing is promised, before or after.
    story(&[writer, reader(105), hold(3, [9, 10, 11, 12]).shared().token(102)]).is_clean();
    story(&[writer, reader(105), hold(3, [9, 10, 11, 12]).upgradable().token(102)]).is_clean();
    story(&[
        writer,
        reader(105),
        hold(3, [9, 10, 11, 12]).shared().token(102),
        hold(4, [13, 14, 15, 16]).token(104),
    ])
    .convicts(Class::TokenOrder);
}

#[test]
fn permits_have_no_order() {
    story(&[
        hold(1, [1, 2, 3, 4]).permits(1, 1).token(100),
        hold(2, [5, 6, 7, 8]).permits(1, 1).token(50),
    ])
    .is_clean();
    story(&[hold(1, [1, 2, 3, 4]).permits(1, 1).token(100), hold(2, [5, 6, 7, 8]).token(50)])
        .is_clean();
}

#[test]
fn a_hold_of_no_length_settles_no_order() {
    story(&[hold(1, [1, 6, 6, 7]).token(100), hold(2, [2, 6, 8, 9]).token(99)]).is_clean();
    story(&[hold(1, [1, 5, 6, 7]).token(100), hold(2, [2, 6, 8, 9]).token(99)])
        .convicts(Class::TokenOrder);
}

#[test]
fn r2_a_lost_hold_is_not_entered_again() {
    let outer = hold(1, [1, 2, 30, 31]).owner(7).token(64);
    let lost = event(10_000, 1, What::Lost);
    let outer = Hold { times: [1, 2, 30_000, 31_000], ..outer };
    let inner = |asked| hold(2, [asked, 20_000, 21_000, 22_000]).owner(7).token(64);
    let (sentence, _) =
        story(&[outer, inner(15_000)]).and(&[lost]).convicts(Class::ReentryAfterLoss);
    assert!(
        sentence.contains("client 2 entered stock/1 again")
            && sentence.contains("token 64, was lost at +0.000009 s"),
        "{sentence}"
    );
    story(&[outer, inner(9_000)]).and(&[lost]).is_clean();
    story(&[outer, inner(10_000)]).and(&[lost]).is_clean();
    story(&[outer, Hold { owner: 8, ..inner(9_000) }]).and(&[lost]).convicts(Class::TokenRepeated);
    story(&[outer, Hold { owner: 8, ..inner(15_000) }]).and(&[lost]).convicts(Class::TokenRepeated);
    story(&[outer, Hold { token: 65, ..inner(15_000) }]).and(&[lost]).is_clean();
    // At its deadline it was over already, and the news made it lost.
    story(&[outer.deadline(8_000), inner(15_000)]).and(&[lost]).convicts(Class::ReentryAfterLoss);
    // Released is not lost.
    story(&[Hold { times: [1, 2, 3, 4], ..outer }, inner(15_000)]).convicts(Class::TokenRepeated);
}

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

fn line(time: u64, claim: u64) -> Event {
    event(time, claim, What::InLine)
}

#[test]
fn who_stood_in_line_first_is_served_first() {
    let first = hold(1, [10, 50, 60, 61]);
    let second = |asked, got| hold(2, [asked, got, got + 1, got + 2]);
    story(&[first, second(30, 70)]).and(&[line(20, 1), line(35, 2)]).is_clean();
    let (sentence, records) =
        story(&[first, second(30_000, 40_000), hold(3, [30_001, 42_000, 43_000, 44_000])])
            .and(&[line(20, 1)])
            .and(&Hold { times: [0; 4], ..first }.events())
            .judge_moved(1, 50_000);
    assert_eq!(
        sentence,
        "client 1 got stock/1 at +0.000049 s, overtaken in line by 2 that were called after its \
         place was confirmed; \
         the last was client 3, called at +0.000029 s and granted at +0.000041 s"
    );
    assert_eq!(records, [(1, 2), (1, 0), (3, 1)]);
    // Called before the place was confirmed: the order is open.
    story(&[first, second(20, 40)]).and(&[line(20, 1)]).is_clean();
    story(&[first, second(21, 40)]).and(&[line(20, 1)]).convicts(Class::FifoInversion);
    // Nobody waits any more, or nobody stood in line.
    story(&[first, second(30, 70)]).and(&[line(20, 1)]).is_clean();
    story(&[first, second(30, 40)]).is_clean();
}

impl Story {
    /// Moves the grant and release of a claim to later times and answers the only inversion.
    fn judge_moved(mut self, claim: u64, by: u64) -> (String, Vec<(u32, u64)>) {
        for e in self.events.iter_mut().filter(|e| e.record.claim == claim && e.record.at >= 50) {
            e.record.at += by - 50;
        }
        self.convicts(Class::FifoInversion)
    }
}

#[test]
fn readers_hand_offs_and_reentry_may_pass_the_line() {
    let first = hold(1, [10, 50, 60, 61]);
    let passes = |second: Hold| story(&[first, second]).and(&[line(20, 1)]).is_clean();
    passes(hold(2, [30, 40, 41, 42]).shared());
    passes(hold(2, [30, 40, 41, 42]).flag(Flags::HANDED));
    passes(hold(2, [30, 40, 41, 42]).tried().flag(Flags::HANDED));
    let outer = hold(3, [5, 8, 45, 46]).owner(7);
    story(&[first, outer, hold(2, [30, 40, 41, 42]).owner(7)]).and(&[line(20, 1)]).is_clean();
    story(&[first, hold(2, [30, 40, 41, 42]).owner(7)])
        .and(&[line(20, 1)])
        .convicts(Class::FifoInversion);
    story(&[first.shared(), hold(2, [30, 40, 41, 42])]).and(&[line(20, 1)]).is_clean();
}

#[test]
fn who_left_the_line_was_not_overtaken() {
    let left =
        [hold(1, [10, 0, 0, 0]).events(), vec![line(20, 1), event(45, 1, What::TimedOut)]].concat();
    story(&[hold(2, [30, 40, 41, 42])]).and(&left).is_clean();
    // A place is taken once, and only by one that still asks.
    let again = [line(20, 1), line(35, 1)];
    story(&[hold(1, [10, 50, 60, 61]), hold(2, [25, 40, 41, 42])])
        .and(&again)
        .convicts(Class::FifoInversion);
    let late = [line(55, 1)];
    story(&[hold(1, [10, 50, 60, 61]), hold(2, [57, 70, 71, 72])]).and(&late).is_clean();
}

#[test]
fn inversions_are_counted_without_a_witness_once_enough_are_described() {
    let mut holds = Vec::new();
    let mut places = Vec::new();
    for n in 0..5u64 {
        let base = n * 100 + 1;
        holds.push(hold(2 * n + 1, [base, base + 50, base + 60, base + 61]));
        holds.push(hold(2 * n + 2, [base + 30, base + 40, base + 41, base + 42]));
        places.push(line(base + 20, 2 * n + 1));
    }
    let report = story(&holds).and(&places).options(|o| o.details = 2).judge();
    assert_eq!((report.count(Class::FifoInversion), report.violations.len()), (5, 2));
    assert!(report.violations.iter().all(|v| v.records.len() == 3));
}

#[test]
fn two_that_hold_at_one_moment_have_different_tokens() {
    let (a, b) = (hold(1, [1, 10, 40, 41]).token(100), hold(2, [1, 20, 30, 31]));
    assert_eq!(story(&[a, b.token(101)]).found(), [(Class::Overlap, 1)]);
    let both = story(&[a, b.token(100)]);
    assert_eq!(both.found(), [(Class::Overlap, 1), (Class::TokenRepeated, 1)]);
    let report = both.judge();
    let twin = report
        .violations
        .iter()
        .find(|v| v.class == Class::TokenRepeated)
        .map(|v| v.sentence.as_str());
    let sentence = "client 2 got stock/1 with token 100 at +0.000000 s, the same that another has \
                    while client 1 held it exclusive since +0.000000 s";
    assert_eq!(twin, Some(sentence));
    // A third, and a reader beside a writer.
    let (c, reader) = (hold(3, [1, 22, 28, 29]).token(100), b.shared().token(100));
    assert_eq!(
        story(&[a, b.token(101), c]).found(),
        [(Class::Overlap, 2), (Class::TokenRepeated, 1)]
    );
    assert_eq!(
        story(&[a, reader]).found(),
        [(Class::ReadersWithWriter, 1), (Class::TokenRepeated, 1)]
    );
    // Readers share one, and so do the turns of an owner; none is no token.
    story(&[a.shared(), reader]).is_clean();
    story(&[a.owner(5), b.owner(5).token(100)]).is_clean();
    assert_eq!(story(&[a.token(0), b.token(0)]).found(), [(Class::Overlap, 1)]);
}
