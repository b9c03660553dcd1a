//! Who may hold at once: mutex, read-write, upgradable, semaphore, re-entrant.

use lockkeeper_lab::check::Class;
use lockkeeper_lab::history::{HoldMode, LockId, Record, What};

use super::story::{Event, Hold, L, Story, event, hold, story};

#[test]
fn holds_one_after_the_other_are_clean_even_within_one_tick() {
    story(&[hold(1, [10, 20, 30, 40]), hold(2, [15, 35, 50, 60])]).is_clean();
    story(&[hold(1, [10, 20, 30, 40]), hold(2, [15, 30, 50, 60])]).is_clean();
    story(&[hold(1, [10, 20, 30, 40]), hold(2, [15, 30, 30, 60]), hold(3, [16, 30, 50, 61])])
        .is_clean();
}

#[test]
fn two_exclusive_holds_at_once_are_an_overlap_with_both_grants_named() {
    let (sentence, records) =
        story(&[hold(1, [10, 20_000, 50_000, 60_000]), hold(2, [15, 40_000, 70_000, 80_000])])
            .convicts(Class::Overlap);
    assert_eq!(
        sentence,
        "client 2 got stock/1 exclusive at +0.000039 s while client 1 held it exclusive since \
         +0.000019 s"
    );
    assert_eq!(records, [(2, 1), (1, 1)]);
    // Moments count from the first event.
    let (sentence, _) =
        story(&[hold(1, [10, 10, 50_000, 60_000]), hold(2, [15, 40_000, 70_000, 80_000])])
            .convicts(Class::Overlap);
    assert!(sentence.ends_with("exclusive since +0.000000 s"), "{sentence}");
}

#[test]
fn a_deadline_is_told_with_the_hold_it_ends() {
    let (sentence, _) = story(&[
        hold(1, [10, 20_000, 50_000, 0]).deadline(90_010),
        hold(2, [15, 40_000, 70_000, 0]),
    ])
    .convicts(Class::Overlap);
    assert!(
        sentence.ends_with("client 1 held it exclusive since +0.000019 s (deadline +0.000090 s)"),
        "{sentence}"
    );
}

#[test]
fn an_overlap_is_found_however_long_ago_the_first_hold_began_and_while_it_goes_on() {
    story(&[hold(1, [10, 20, 0, 0]), hold(2, [15, 40, 45, 46])])
        .and(&[event(99, 1, What::RenewCalled)])
        .convicts(Class::Overlap);
    let three =
        story(&[hold(1, [1, 2, 90, 91]), hold(2, [3, 10, 20, 21]), hold(3, [3, 30, 40, 41])]);
    assert_eq!(three.found(), [(Class::Overlap, 2)]);
}

#[test]
fn other_locks_are_other_locks() {
    let other = Hold { lock: LockId(5), ..hold(2, [15, 25, 35, 45]) };
    story(&[hold(1, [10, 20, 30, 40]), other]).is_clean();
}

#[test]
fn readers_share_and_a_writer_beside_them_is_convicted_from_both_sides() {
    story(&[
        hold(1, [1, 2, 9, 10]).shared(),
        hold(2, [1, 3, 8, 11]).shared(),
        hold(3, [1, 10, 12, 13]),
    ])
    .is_clean();
    story(&[hold(1, [1, 2, 9, 10]).shared(), hold(2, [1, 3, 8, 11])])
        .convicts(Class::ReadersWithWriter);
    let (sentence, _) = story(&[hold(1, [1, 2, 9, 10]), hold(2, [1, 3, 8, 11]).shared()])
        .convicts(Class::ReadersWithWriter);
    assert!(
        sentence.contains("client 2 got stock/1 shared")
            && sentence.contains("client 1 held it exclusive"),
        "{sentence}"
    );
}

#[test]
fn an_upgradable_hold_shares_with_readers_and_with_nobody_else() {
    let up = hold(1, [1, 2, 9, 10]).upgradable();
    story(&[up, hold(2, [1, 3, 8, 11]).shared()]).is_clean();
    story(&[hold(2, [1, 2, 8, 11]).shared(), hold(1, [1, 3, 9, 10]).upgradable()]).is_clean();
    story(&[up, hold(2, [1, 3, 8, 11]).upgradable()]).convicts(Class::Overlap);
    story(&[up, hold(2, [1, 3, 8, 11])]).convicts(Class::ReadersWithWriter);
    story(&[hold(2, [1, 2, 8, 11]), hold(1, [1, 3, 9, 10]).upgradable()])
        .convicts(Class::ReadersWithWriter);
}

#[test]
fn permits_are_counted_by_weight_against_the_limit() {
    let two = [hold(1, [1, 2, 9, 10]).permits(2, 5), hold(2, [1, 3, 8, 11]).permits(3, 5)];
    story(&two).is_clean();
    let (sentence, records) = story(&[two[0], two[1], hold(3, [1, 4, 5, 6]).permits(1, 5)])
        .convicts(Class::PermitsExceeded);
    assert!(
        sentence.starts_with(
            "client 3 got 1 of stock/1 at +0.000000 s, which made 6 of 5 permits, while client 1 \
             held 2 of its permits"
        ),
        "{sentence}"
    );
    assert!(sentence.contains(", client 2 held 3 of its permits since"), "{sentence}");
    assert_eq!(records, [(3, 1), (1, 1), (2, 1)]);
    story(&[two[0], two[1], hold(3, [1, 8, 12, 13]).permits(3, 5)]).is_clean();
    story(&[two[0], two[1], hold(3, [1, 8, 12, 13]).permits(4, 5)])
        .convicts(Class::PermitsExceeded);
}

#[test]
fn at_most_four_others_are_named_when_permits_are_exceeded() {
    let holds: Vec<_> =
        (1..=7).map(|n| hold(n, [n, 10 + n, 90 + n, 99 + n]).permits(1, 6)).collect();
    let (_, records) = story(&holds).convicts(Class::PermitsExceeded);
    assert_eq!(records.len(), 5);
}

#[test]
fn without_a_known_limit_permits_cannot_be_judged() {
    story(&[hold(1, [1, 2, 9, 10]).permits(200, 0), hold(2, [1, 3, 8, 11]).permits(200, 0)])
        .is_clean();
}

fn resize(time: u64, what: What, to: u64) -> Event {
    event(time, 0, what).with(|r| Record { claim: 0, ..r.number(to) })
}

#[test]
fn a_limit_that_is_being_changed_is_the_larger_one_and_counts_from_then_on() {
    let first = hold(1, [1, 2, 90, 91]).permits(3, 3);
    let grown = |at: u64| {
        story(&[first, hold(2, [at, at + 2, 80, 81]).permits(2, if at < 10 { 3 } else { 5 })])
            .and(&[resize(10, What::ResizeCalled, 5), resize(20, What::Resized, 5)])
    };
    grown(30).is_clean();
    grown(12).is_clean();
    // A grant whose acquire was called before may have taken effect during the change.
    grown(9).is_clean();
    grown(4).convicts(Class::PermitsExceeded);
    let shrunk = |at: u64| {
        story(&[hold(1, [1, 2, 90, 91]).permits(3, 5), hold(2, [at, at + 2, 80, 81]).permits(2, 5)])
            .and(&[resize(10, What::ResizeCalled, 4), resize(20, What::Resized, 4)])
    };
    shrunk(4).is_clean();
    shrunk(15).is_clean();
    shrunk(19).is_clean();
    shrunk(21).convicts(Class::PermitsExceeded);
}

#[test]
fn holds_beyond_a_lowered_limit_may_drain() {
    let two = [hold(1, [1, 2, 90, 91]).permits(2, 4), hold(2, [1, 3, 40, 41]).permits(2, 4)];
    let lowered = [resize(10, What::ResizeCalled, 2), resize(11, What::Resized, 2)];
    story(&two).and(&lowered).is_clean();
    story(&[two[0], two[1], hold(3, [50, 51, 60, 61]).permits(1, 4)])
        .and(&lowered)
        .convicts(Class::PermitsExceeded);
}

#[test]
fn a_larger_agreed_limit_is_taken_over() {
    let (a, b) = (hold(1, [1, 2, 9, 10]).permits(3, 3), hold(2, [1, 3, 8, 11]).permits(2, 5));
    story(&[a, b]).is_clean();
    story(&[b, hold(3, [20, 21, 30, 31]).permits(4, 3), hold(4, [20, 22, 30, 31]).permits(1, 3)])
        .is_clean();
}

#[test]
fn an_owner_enters_its_own_hold_again_and_nobody_else_does() {
    let outer = hold(1, [1, 2, 9, 10]).owner(7);
    let inner = hold(2, [3, 4, 12, 13]).owner(7);
    story(&[outer, inner]).is_clean();
    story(&[outer, inner, hold(3, [3, 12, 20, 21])]).is_clean();
    story(&[outer, inner, hold(3, [3, 10, 20, 21])]).convicts(Class::Overlap);
    story(&[outer, inner, hold(3, [3, 5, 6, 7])]).convicts(Class::Overlap);
    story(&[outer, hold(2, [3, 4, 5, 6]).owner(8)]).convicts(Class::Overlap);
    story(&[outer.shared(), hold(2, [3, 4, 5, 6]).owner(7)]).is_clean();
    story(&[outer.shared(), inner.shared(), hold(3, [3, 5, 6, 7])])
        .convicts(Class::ReadersWithWriter);
    let others = story(&[outer, inner, hold(3, [3, 5, 6, 7]).owner(8), hold(4, [20, 21, 22, 23])]);
    assert_eq!(others.found(), [(Class::Overlap, 1)]);
    // An owner's earlier hold is over: a newcomer's claim is not excused by it.
    story(&[
        hold(1, [1, 2, 3, 4]).owner(7),
        hold(2, [5, 6, 20, 21]),
        hold(3, [5, 8, 9, 10]).owner(7),
    ])
    .convicts(Class::Overlap);
    // Among many holds of the owner the one of another is found.
    let shared: Vec<_> =
        (1..=4).map(|n| hold(n, [n, 10 + n, 90 + n, 95 + n]).owner(7).shared()).collect();
    let mut with_other = shared.clone();
    with_other.insert(2, hold(9, [3, 12, 80, 81]).owner(8).shared());
    let (sentence, _) = story(&[&with_other[..], &[hold(6, [20, 21, 22, 23]).owner(7)]].concat())
        .convicts(Class::ReadersWithWriter);
    assert!(sentence.contains("while client 9 held"), "{sentence}");
    story(&[&shared[..], &[hold(6, [20, 21, 22, 23]).owner(7)]].concat()).is_clean();
}

#[test]
fn a_reentrant_hold_keeps_its_token() {
    let outer = hold(1, [1, 2, 9, 10]).owner(7).token(64);
    story(&[
        outer,
        hold(2, [3, 4, 5, 6]).owner(7).token(64),
        hold(3, [6, 7, 8, 9]).owner(7).token(64),
    ])
    .is_clean();
    let (sentence, records) =
        story(&[outer, hold(2, [3, 4, 5, 6]).owner(7).token(65)]).convicts(Class::ReentryToken);
    assert!(
        sentence.contains("client 2 entered stock/1 again")
            && sentence.contains("got token 65")
            && sentence.contains("has token 64"),
        "{sentence}"
    );
    assert_eq!(records, [(2, 1), (1, 1)]);
    story(&[outer, hold(2, [3, 4, 5, 6]).owner(7)]).is_clean();
    story(&[hold(1, [1, 2, 9, 10]).owner(7), hold(2, [3, 4, 5, 6]).owner(7).token(65)]).is_clean();
    // The token is used up only when the last guard is gone.
    let handed_in = [
        outer,
        hold(2, [3, 4, 20, 21]).owner(7).token(64),
        hold(3, [12, 13, 15, 16]).owner(7).token(64),
    ];
    story(&handed_in).is_clean();
    story(&[handed_in[0], handed_in[1], handed_in[2], hold(4, [30, 31, 32, 33]).token(64)])
        .convicts(Class::TokenRepeated);
}

#[test]
fn permits_of_one_owner_add_up() {
    story(&[
        hold(1, [1, 2, 9, 10]).permits(2, 3).owner(7),
        hold(2, [1, 3, 8, 11]).permits(2, 3).owner(7),
    ])
    .convicts(Class::PermitsExceeded);
}

fn convert(time: u64, claim: u64, what: What, to: HoldMode, token: u64) -> Event {
    event(time, claim, what).with(|r| Record { mode: to, ..r.token(token) })
}

#[test]
fn an_upgrade_holds_alone_from_its_answer_on() {
    let up = hold(1, [1, 2, 90, 91]).upgradable();
    let upgrade = [
        convert(20, 1, What::ConvertCalled, HoldMode::Exclusive, 0),
        convert(30, 1, What::Converted, HoldMode::Exclusive, 0),
    ];
    let reader =
        |from: u64, to: u64| story(&[up, hold(2, [3, from, to, 95]).shared()]).and(&upgrade);
    reader(4, 25).is_clean();
    reader(4, 30).is_clean();
    reader(4, 40).convicts(Class::ReadersWithWriter);
    reader(50, 60).convicts(Class::ReadersWithWriter);
}

#[test]
fn a_downgrade_shares_from_its_call_on() {
    let down = [
        convert(20, 1, What::ConvertCalled, HoldMode::Shared, 0),
        convert(30, 1, What::Converted, HoldMode::Shared, 0),
    ];
    let reader = |from: u64, to: u64| {
        story(&[hold(1, [1, 2, 90, 91]), hold(2, [3, from, to, 95]).shared()]).and(&down)
    };
    reader(20, 40).is_clean();
    reader(25, 40).is_clean();
    reader(19, 40).convicts(Class::ReadersWithWriter);
    let writer = story(&[hold(1, [1, 2, 90, 91]), hold(2, [3, 40, 50, 95])]).and(&down);
    writer.convicts(Class::ReadersWithWriter);
}

#[test]
fn a_conversion_that_fails_leaves_the_hold_as_it_was() {
    let up = hold(1, [1, 2, 90, 91]).upgradable();
    let failed = [
        convert(20, 1, What::ConvertCalled, HoldMode::Exclusive, 0),
        convert(30, 1, What::ConvertFailed, HoldMode::None, 0),
    ];
    story(&[up, hold(2, [3, 4, 40, 95]).shared()]).and(&failed).is_clean();
    story(&[up, hold(2, [3, 40, 50, 95])]).and(&failed).convicts(Class::ReadersWithWriter);
    let down = [
        convert(20, 1, What::ConvertCalled, HoldMode::Shared, 0),
        convert(30, 1, What::ConvertFailed, HoldMode::None, 0),
    ];
    story(&[hold(1, [1, 2, 90, 91]), hold(2, [3, 40, 50, 95]).shared()])
        .and(&down)
        .convicts(Class::ReadersWithWriter);
    story(&[hold(1, [1, 2, 90, 91]), hold(2, [3, 22, 28, 95]).shared()]).and(&down).is_clean();
}

#[test]
fn what_is_found_of_a_hold_when_it_becomes_weaker_is_found_at_that_moment_and_not_at_its_beginning()
{
    // Another came and went beside it, with a greater token.
    let both = [hold(1, [1, 2, 90, 91]).token(100), hold(2, [3, 4, 10, 11]).token(200)];
    let down = [convert(20, 1, What::ConvertCalled, HoldMode::Shared, 0)];
    let report = story(&both).and(&down).judge();
    let found: Vec<u64> =
        report.violations.iter().filter(|v| v.class == Class::TokenOrder).map(|v| v.at).collect();
    assert_eq!(found, [20], "{:#?}", report.violations);
}

#[test]
fn a_conversion_whose_call_was_not_recorded_counts_from_its_answer() {
    let upgrade = [convert(30, 1, What::Converted, HoldMode::Exclusive, 0)];
    let story = story(&[hold(1, [1, 2, 90, 91]).upgradable(), hold(2, [3, 40, 50, 95]).shared()])
        .and(&upgrade);
    story.convicts(Class::ReadersWithWriter);
}

#[test]
fn a_refusal_of_a_conversion_that_nobody_called_changes_nothing() {
    let failed = [event(30, 1, What::ConvertFailed), event(95, 1, What::ConvertFailed)];
    let reader = hold(1, [1, 2, 90, 91]).shared();
    story(&[reader, hold(2, [3, 40, 50, 96]).shared()]).and(&failed).is_clean();
    story(&[reader, hold(2, [3, 40, 50, 96])]).and(&failed).convicts(Class::ReadersWithWriter);
}

#[test]
fn a_conversion_gets_a_token_above_those_before() {
    let upgrade = |token| {
        [
            convert(20, 1, What::ConvertCalled, HoldMode::Exclusive, 0),
            convert(30, 1, What::Converted, HoldMode::Exclusive, token),
        ]
    };
    let up = hold(1, [1, 2, 90, 91]).upgradable().token(100);
    let reader = hold(2, [3, 4, 10, 11]).shared().token(110);
    story(&[up, reader]).and(&upgrade(120)).is_clean();
    story(&[up, reader]).and(&upgrade(105)).convicts(Class::TokenOrder);
    story(&[up]).and(&upgrade(100)).is_clean();
    story(&[up]).and(&upgrade(99)).convicts(Class::TokenOrder);
    // What comes after the conversion must be above its token.
    story(&[up, hold(3, [92, 93, 94, 95]).token(120)])
        .and(&upgrade(120))
        .convicts(Class::TokenRepeated);
    story(&[up, hold(3, [92, 93, 94, 95]).token(121)]).and(&upgrade(120)).is_clean();
}

#[test]
fn a_conversion_may_move_the_deadline() {
    let at = |deadline: u64| {
        let converted =
            convert(30, 1, What::Converted, HoldMode::Exclusive, 0).with(|r| r.deadline(deadline));
        story(&[hold(1, [1, 2, 0, 0]).upgradable().deadline(50), hold(2, [3, 60, 61, 62])])
            .and(&[converted, event(99, 1, What::RenewCalled)])
    };
    at(0).is_clean();
    at(55).is_clean();
    at(70).convicts(Class::Overlap);
}

#[test]
fn a_hold_that_was_over_is_not_revived_by_a_conversion() {
    let converted =
        convert(30, 1, What::Converted, HoldMode::Exclusive, 0).with(|r| r.deadline(90));
    story(&[hold(1, [1, 2, 0, 0]).upgradable().deadline(20), hold(2, [3, 40, 50, 60])])
        .and(&[converted, event(99, 1, What::RenewCalled)])
        .is_clean();
}

#[test]
fn a_hold_without_a_mode_is_exclusive() {
    story(&[hold(1, [1, 2, 9, 10]).mode(HoldMode::None), hold(2, [1, 3, 8, 11])])
        .convicts(Class::Overlap);
}

#[test]
fn an_acquire_called_before_the_recording_counts_from_its_answer() {
    let early = Hold { times: [0, 20, 40, 50], ..hold(1, [0; 4]) };
    story(&[early, hold(2, [10, 30, 45, 55])]).convicts(Class::Overlap);
    // What its answer has in the place of a limit is none.
    let permit = |claim: u64, at: u64| {
        event(at, claim, What::Acquired).with(|r| Record {
            mode: HoldMode::Permits,
            weight: 1,
            number: 1,
            ..r
        })
    };
    let ends = [event(40, 1, What::ReleaseCalled), event(41, 2, What::ReleaseCalled)];
    Story { events: [permit(1, 20), permit(2, 21), ends[0], ends[1]].to_vec(), ..Story::default() }
        .is_clean();
    let unsaid = Story {
        events: vec![event(20, 1, What::Acquired), event(25, 1, What::RenewCalled)],
        ..Story::default()
    };
    assert_eq!(unsaid.judge().counts.strangers, 2);
}

#[test]
fn what_contradicts_itself_is_counted_and_changes_nothing() {
    let twice =
        [event(12, 1, What::Acquired), event(13, 1, What::AcquireCalled), event(14, 1, What::Busy)];
    let report = story(&[hold(1, [10, 11, 20, 21]), hold(2, [10, 22, 30, 31])]).and(&twice).judge();
    assert!(report.is_clean(), "{:?}", report.violations);
    assert_eq!((report.counts.strangers, report.counts.holds, report.counts.busy), (3, 2, 0));
    // A name that is told says nothing about claims.
    let named = story(&[hold(1, [10, 11, 20, 21])]).and(&[event(12, 9, What::Name)]).judge();
    assert_eq!((named.counts.strangers, named.counts.events), (0, 5));
    let after_end =
        [event(25, 1, What::ReleaseCalled), event(26, 1, What::Lost), event(27, 1, What::InLine)];
    story(&[hold(1, [10, 11, 20, 21]), hold(2, [10, 22, 30, 31])]).and(&after_end).is_clean();
}

#[test]
fn the_lock_is_named_by_number_when_the_history_does_not_say_its_name() {
    let other = LockId(5);
    let holds = [
        Hold { lock: other, ..hold(1, [1, 2, 9, 10]) },
        Hold { lock: other, ..hold(2, [1, 3, 8, 11]) },
    ];
    let (sentence, _) = story(&holds).convicts(Class::Overlap);
    assert!(sentence.contains("lock 0000000000000005"), "{sentence}");
    assert_ne!(other, L);
}

#[test]
fn only_so_many_of_a_class_are_described_and_all_are_counted() {
    let holds: Vec<_> = (1..=30u64).map(|n| hold(n, [n, 100 + n, 200 + n, 300])).collect();
    let report = story(&holds).options(|o| o.details = 7).judge();
    assert_eq!((report.count(Class::Overlap), report.violations.len()), (29, 7));
    assert_eq!((report.counts.holds, report.counts.events, report.span), (30, 120, (1, 300)));
}
