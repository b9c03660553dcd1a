//! Refused tries beside releases that are not answered, acquires that fail, and tries for permits.

use lockkeeper_lab::check::Class;
use lockkeeper_lab::history::{HoldMode, What};

use super::story::{event, hold, story};
use super::tries::refused;

const X: HoldMode = HoldMode::Exclusive;

#[test]
fn an_exclusive_grant_proves_that_whose_release_was_called_is_gone() {
    let writer = hold(3, [25, 30, 35, 36]);
    // The answer to the release comes late.
    let leaving = hold(1, [5, 10, 20, 100]);
    story(&[leaving, writer]).and(&refused(9, 50, 60, X)).convicts(Class::WrongBusy);
    // Beside one whose release was answered before.
    let both = [leaving.shared(), hold(2, [6, 11, 22, 24]).shared(), writer];
    story(&both).and(&refused(9, 50, 60, X)).convicts(Class::WrongBusy);
    // Without the grant it may be there until the answer.
    story(&[leaving]).and(&refused(9, 50, 60, X)).is_clean();
}

#[test]
fn a_hold_whose_release_was_called_before_its_grant_was_told_goes_with_the_next_exclusive_grant() {
    let writer = hold(3, [25, 30, 35, 36]);
    story(&[hold(1, [10, 20, 20, 100]), writer])
        .and(&refused(9, 50, 60, X))
        .convicts(Class::WrongBusy);
}

#[test]
fn an_acquire_that_failed_was_in_line_until_its_answer() {
    let failed = [hold(1, [10, 0, 0, 0]).events()[0], event(20, 1, What::AcquireFailed)];
    story(&[]).and(&failed).and(&refused(9, 20, 25, X)).is_clean();
    story(&[]).and(&failed).and(&refused(9, 21, 25, X)).convicts(Class::WrongBusy);
    // A try never stood in line.
    let tried = [hold(1, [10, 0, 0, 0]).tried().events()[0], event(20, 1, What::AcquireFailed)];
    story(&[]).and(&tried).and(&refused(9, 20, 25, X)).convicts(Class::WrongBusy);
}

#[test]
fn a_try_that_met_a_line_may_have_had_the_lock_in_hand_and_excuses_who_met_it() {
    let busy = |claim, from, to| refused(claim, from, to, X);
    let gave_up =
        |from, to| [hold(5, [from, 0, 0, 0]).events()[0], event(to, 5, What::AcquireFailed)];
    // Both come away with nothing, and nobody was there.
    assert_eq!(
        story(&[]).and(&busy(8, 10, 50)).and(&busy(9, 20, 30)).found(),
        [(Class::WrongBusy, 2)]
    );
    // The longer one found somebody in line, who came after the other was gone, or had left before
    // that came.
    story(&[]).and(&busy(8, 10, 50)).and(&busy(9, 20, 30)).and(&gave_up(35, 60)).is_clean();
    story(&[]).and(&busy(8, 10, 50)).and(&busy(9, 20, 30)).and(&gave_up(5, 15)).is_clean();
    // One that it did not meet is refused for nothing, and so is one whose mode was not in its way.
    story(&[])
        .and(&busy(8, 10, 50))
        .and(&busy(9, 2, 8))
        .and(&gave_up(35, 60))
        .convicts(Class::WrongBusy);
    let reader = refused(9, 20, 30, HoldMode::Shared);
    story(&[])
        .and(&refused(8, 10, 50, HoldMode::Shared))
        .and(&reader)
        .and(&gave_up(35, 60))
        .convicts(Class::WrongBusy);
}

#[test]
fn tries_for_permits_excuse_each_other_by_what_they_ask_for_and_while_they_last() {
    let pair = |claim, from, to| {
        let tried = hold(claim, [from, 0, 0, 0]).permits(2, 3).tried();
        [tried.events()[0], event(to, claim, What::Busy)]
    };
    // Two of three each: one of them may have got its two for a moment.
    let known = hold(5, [1, 2, 3, 4]).permits(1, 3);
    story(&[known]).and(&pair(1, 10, 60)).and(&pair(2, 20, 30)).is_clean();
    let found = story(&[known]).and(&pair(1, 10, 20)).and(&pair(2, 30, 40)).found();
    assert_eq!(found, [(Class::WrongBusy, 2)]);
}
