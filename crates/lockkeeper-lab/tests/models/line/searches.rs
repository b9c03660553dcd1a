//! What is searched: every rule, and every known flaw.

use super::all::{ALL, All, Careless};
use super::register::Register;
use super::{
    BELIEF, BOTH, DOWN, END, FICKLE, FICKLE_UP, Flaw, HURRIED, LOCK, Line, ONE, Plan, READ,
    RELEASED, SLEEPER, TOKENS,
};
use super::{TRY, TRY_BOTH, TRY_ONE, TRY_READ, UP, UP_AND_BACK};
use crate::explore::{convicts, holds};

#[test]
fn the_local_line_keeps_every_rule() {
    holds(
        "line",
        "a lease is renewed, and lost",
        Line::<Register>::of(&[&[LOCK]]).until(8).silences(2),
    );
    holds("line", "turns of one hold", Line::<Register>::of(&[&[LOCK, LOCK]]).until(4));
    holds("line", "two processes", Line::<Register>::of(&[&[LOCK], &[LOCK]]).until(3));
    holds(
        "line",
        "two processes, hand-off",
        Line::<Register>::of(&[&[LOCK, LOCK], &[LOCK]]).until(1),
    );
    holds(
        "line",
        "an answer stays out",
        Line::<Register>::of(&[&[LOCK], &[LOCK]]).until(2).silences(1),
    );
    holds(
        "line",
        "a push is lost",
        Line::<Register>::of(&[&[LOCK], &[LOCK]]).until(3).lost_pushes(1),
    );
    holds(
        "line",
        "a place is asked about while it is granted",
        Line::<Register>::of(&[&[LOCK], &[LOCK]]).held().until(1).links(1),
    );
    holds("line", "a process dies", Line::<Register>::of(&[&[LOCK], &[LOCK]]).until(3).deaths(1));
    holds(
        "line",
        "the server loses its data",
        Line::<Register>::of(&[&[LOCK], &[LOCK]]).until(2).flushes(1),
    );
    holds(
        "line",
        "and a lease is renewed",
        Line::<Register>::of(&[&[LOCK]]).held().until(8).flushes(1),
    );
    holds(
        "line",
        "a future is dropped at any await",
        Line::<Register>::of(&[&[FICKLE], &[LOCK]]).until(3),
    );
    holds(
        "line",
        "dropped, and no answer",
        Line::<Register>::of(&[&[FICKLE]]).until(3).silences(2),
    );
    holds(
        "line",
        "a future is not polled",
        Line::<Register>::of(&[&[SLEEPER, LOCK], &[LOCK]]).until(1),
    );
    holds("line", "readers", Line::<Register>::of(&[&[READ, READ], &[LOCK]]).until(1));
    holds(
        "line",
        "tries and time limits",
        Line::<Register>::of(&[&[TRY, HURRIED], &[LOCK]]).until(1),
    );
}

#[test]
fn tries_that_meet_are_refused_for_nobody_who_comes_away_with_nothing() {
    holds("line", "two tries meet", Line::<Register>::of(&[&[TRY, TRY], &[LOCK]]).until(1));
    holds(
        "line",
        "tries meet beside readers",
        Line::<Register>::of(&[&[TRY, TRY_READ], &[READ]]).until(1),
    );
    holds(
        "line",
        "three tries, one dropped",
        Line::<Register>::of(&[&[Plan { fickle: true, ..TRY }, TRY, TRY]]).until(1),
    );
    holds(
        "line",
        "two tries meet, and no answer",
        Line::<Register>::of(&[&[TRY, TRY]]).until(3).silences(1),
    );
    holds(
        "line",
        "two tries meet, and no answer twice",
        Line::<Register>::of(&[&[TRY, TRY]]).until(3).silences(2),
    );
    holds(
        "line",
        "two tries meet, and one dies",
        Line::<Register>::of(&[&[TRY, TRY], &[LOCK]]).until(1).deaths(1),
    );
    holds(
        "line",
        "tries for permits",
        Line::<Register>::of(&[&[TRY_ONE, TRY_BOTH], &[ONE]]).until(1),
    );
}

#[test]
fn the_lease_of_one_that_stands_still_ends_beside_a_waiter() {
    holds(
        "line",
        "a lease ends beside a waiter",
        Line::<Register>::of(&[&[LOCK], &[LOCK]]).held_asleep().until(9),
    );
}

#[test]
fn permits_keep_every_rule() {
    holds("line", "permits", Line::<Register>::of(&[&[ONE, ONE], &[BOTH]]).until(1));
    holds(
        "line",
        "permits, and a process dies",
        Line::<Register>::of(&[&[ONE], &[ONE], &[BOTH]]).until(1).deaths(1),
    );
}

#[test]
fn conversions_keep_every_rule() {
    holds(
        "line",
        "up and back, and no answer",
        Line::<Register>::of(&[&[UP_AND_BACK]]).until(3).silences(2),
    );
    holds(
        "line",
        "an upgrade beside a reader",
        Line::<Register>::of(&[&[UP], &[READ]]).until(1).lost_pushes(1),
    );
    holds(
        "line",
        "an upgrade is taken back",
        Line::<Register>::of(&[&[FICKLE_UP], &[READ]]).until(1),
    );
    holds(
        "line",
        "a downgrade before a writer",
        Line::<Register>::of(&[&[DOWN], &[LOCK]]).until(1),
    );
}

#[test]
fn several_locks_at_once_are_all_or_nothing() {
    let of = All::<Register>::of;
    holds("all", "in one message, left, and no answer", of(1).jointly(1).silences(1).leave());
    holds("all", "one after the other, and one dies", of(2).deaths(1));
    holds("all", "one after the other, and one leaves", of(2).leave());
}

#[test]
fn every_known_flaw_of_a_caller_of_several_locks_is_found() {
    let of = |callers| All::<Register>::of(callers);
    convicts(
        "all",
        "each takes them as it names them",
        END,
        of(2).flaw(Careless::TakesThemAsNamed),
    );
    convicts("all", "who leaves keeps what it has", ALL, of(1).leave().flaw(Careless::KeepsHalf));
    convicts(
        "all",
        "nobody looks at the first again",
        ALL,
        of(1).until(6).flaw(Careless::LooksAtTheLastOnly),
    );
}

#[test]
fn every_known_flaw_of_a_lock_client_is_found() {
    let two = || Line::<Register>::of(&[&[LOCK], &[LOCK]]);
    convicts(
        "line",
        "deadline counted from the reply",
        BELIEF,
        two().until(8).flaw(Flaw::DeadlineFromReply),
    );
    convicts(
        "line",
        "a push read late is a grant",
        BELIEF,
        two().held().until(6).flaw(Flaw::LatePushIsAGrant),
    );
    convicts(
        "line",
        "the server's clock jumps by a lease",
        BELIEF,
        two().flaw(Flaw::ServerClockJumps),
    );
    convicts(
        "line",
        "what is lost is renewed",
        BELIEF,
        two().held().until(9).flushes(1).flaw(Flaw::RenewsWhatIsGone),
    );
    convicts("line", "release by name", BELIEF, two().held().silences(1).flaw(Flaw::ReleaseByName));
    convicts("line", "unknown is taken for no", END, two().silences(1).flaw(Flaw::UnknownIsNo));
    convicts(
        "line",
        "leaves without a word",
        END,
        Line::<Register>::of(&[&[FICKLE], &[LOCK]]).flaw(Flaw::LeavesWithoutAWord),
    );
    convicts(
        "line",
        "a second release overtakes the first",
        RELEASED,
        two().held().until(1).links(1).flaw(Flaw::ReleasesBeside),
    );
    convicts(
        "line",
        "and so does a withdrawal",
        RELEASED,
        two().held().until(1).links(1).flaw(Flaw::LeavesBeside),
    );
    let one = Line::<Register>::of(&[&[LOCK]]).until(9).silences(2);
    convicts("line", "a request that comes late locks", END, one.flaw(Flaw::LateRequestsLock));
    convicts(
        "line",
        "the watchdog outlives the unlock",
        END,
        two().flaw(Flaw::WatchdogOutlivesUnlock),
    );
    convicts("line", "and its renewal revives the record", END, two().flaw(Flaw::RenewalRevives));
    convicts(
        "line",
        "one token for all turns",
        TOKENS,
        Line::<Register>::of(&[&[LOCK, LOCK]]).flaw(Flaw::OneTokenForAllTurns),
    );
    convicts("line", "wakes only by push", END, two().lost_pushes(1).flaw(Flaw::WakesOnlyByPush));
}
