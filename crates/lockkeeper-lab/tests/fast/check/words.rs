//! What is counted, and the words for what was over and why.

use lockkeeper_lab::check::Class;
use lockkeeper_lab::history::{Flags, HoldMode, Record, What};

use super::story::{Event, Hold, event, hold, story};

fn says_yes(called: u64, answered: u64, asks: What, says: What) -> [Event; 2] {
    [event(called, 1, asks), event(answered, 1, says).with(|r| r.flag(Flags::YES))]
}

#[test]
fn acquires_are_counted_by_what_they_came_to() {
    let waits = |claim| hold(claim, [10, 0, 0, 0]).events()[0];
    let ends = [What::TimedOut, What::AcquireUnknown, What::Cancelled, What::AcquireFailed]
        .into_iter()
        .zip(3..);
    let ends: Vec<Event> =
        ends.flat_map(|(what, claim)| [waits(claim), event(15, claim, what)]).collect();
    let handed = [hold(1, [20, 21, 22, 23]).flag(Flags::HANDED), hold(2, [20, 24, 25, 26])];
    let counts = story(&handed).and(&ends).judge().counts;
    assert_eq!(
        (counts.holds, counts.handed, counts.timed_out, counts.unknown, counts.busy),
        (2, 1, 1, 1, 0)
    );
    assert_eq!((counts.wait_max_ns, counts.cancelled), (4, 1));
}

#[test]
fn a_hold_that_was_converted_counts_as_one_more() {
    let to = |what, time| event(time, 1, what).with(|r| Record { mode: HoldMode::Shared, ..r });
    let converted = [to(What::ConvertCalled, 20), to(What::Converted, 30)];
    let counts = story(&[hold(1, [1, 10, 90, 99])]).and(&converted).judge().counts;
    assert_eq!((counts.holds, counts.converted), (2, 1));
}

#[test]
fn a_conversion_to_what_it_is_already_begins_no_new_hold() {
    let same =
        event(40, 1, What::ConvertCalled).with(|r| Record { mode: HoldMode::Exclusive, ..r });
    story(&[hold(1, [1, 10, 90, 99]), hold(2, [2, 30, 80, 81])])
        .and(&[same])
        .convicts(Class::Overlap);
}

#[test]
fn the_token_of_a_reentrant_hold_counts_until_its_last_guard_goes() {
    let outer = hold(1, [1, 10, 90, 91]).owner(7).token(100);
    let inner = Hold { client: 1, times: [12, 15, 20, 21], ..hold(5, [0; 4]).owner(7).token(100) };
    let other = hold(2, [25, 30, 40, 41]).token(99);
    // No order while it is held; there is another class for that.
    story(&[outer, inner, other]).convicts(Class::Overlap);
}

#[test]
fn two_owners_with_one_token_are_told_and_one_owner_twice_is_not() {
    let first = hold(1, [1, 10, 90, 91]).owner(7).token(100);
    let again = |owner| Hold {
        client: 1,
        times: [12, 15, 20, 21],
        ..hold(5, [0; 4]).owner(owner).token(100)
    };
    story(&[first, again(7)]).is_clean();
    assert_eq!(story(&[first, again(8)]).found(), [(Class::Overlap, 1), (Class::TokenRepeated, 1)]);
}

#[test]
fn what_is_known_of_a_limit_that_is_being_changed_comes_from_grants() {
    // The first grant does not say it.
    let holds = [hold(1, [5, 10, 11, 12]).permits(1, 0), hold(2, [22, 25, 30, 31]).permits(3, 3)];
    story(&holds).and(&[event(20, 9, What::ResizeCalled).with(|r| r.number(2))]).is_clean();
}

#[test]
fn a_release_that_is_repeated_ends_its_hold_with_the_first_call_and_may_find_nothing() {
    let again =
        |answer| [event(35, 1, What::ReleaseCalled).with(|r| r.number(1)), event(50, 1, answer)];
    let holds = [hold(1, [10, 20, 30, 0]), hold(2, [25, 33, 60, 61])];
    story(&holds).and(&again(What::ReleasedNotOwner)).is_clean();
    story(&holds).and(&again(What::Released)).convicts(Class::ForeignRelease);
    story(&holds).and(&[event(50, 1, What::Released)]).is_clean();
}

#[test]
fn why_a_hold_was_over_is_what_ended_it() {
    let checked = |called| says_yes(called, called + 5_000, What::CheckCalled, What::Checked);
    let held = Hold { times: [1_000, 2_000, 0, 0], ..hold(1, [0; 4]) };
    // Its deadline had passed; the loss came at the very moment of the check.
    let lost = event(30_000, 1, What::Lost);
    let (sentence, _) = story(&[held.deadline(25_000)])
        .and(&[lost])
        .and(&checked(30_000))
        .convicts(Class::HeldAfterDeadline);
    assert!(sentence.ends_with("(lost at +0.000029 s)"), "{sentence}");
    // Released before its deadline, which is the moment of the check.
    let released = hold(1, [1_000, 2_000, 30_000, 35_000]).deadline(50_000);
    let (sentence, _) = story(&[released]).and(&checked(50_000)).convicts(Class::HeldAfterEnd);
    assert!(sentence.ends_with("(released at +0.000029 s)"), "{sentence}");
    // Its release was called, and not answered.
    let leaving = hold(1, [1_000, 2_000, 30_000, 90_000]);
    let wrote = |called| says_yes(called, called + 5_000, What::EffectCalled, What::EffectDone);
    let (sentence, _) = story(&[leaving]).and(&wrote(40_000)).convicts(Class::LateEffect);
    assert!(sentence.ends_with("(released at +0.000029 s)"), "{sentence}");
    // At the moment of the answer the call counts as well.
    story(&[leaving]).and(&wrote(90_000)).convicts(Class::LateEffect);
}
