//! The machine: what to ask, when to look again, what an answer means.

use std::time::Duration;

use super::super::claims::{APART, Claims, LOOK, Reply, Request, Rules};
use super::super::clocks::Row;
use crate::engine::sql::record::Us;
use crate::engine::{Attempt, Line};
use crate::words::claim::{Claim, Identity, Mode};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind};
use crate::words::guarantee::Warning;
use crate::words::id::ClaimId;

const TTL: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(2);
const S: Us = 1_000_000;
/// The server's clock at our time 0.
const EPOCH: Us = 1_700_000_000 * S;

fn at(ms: u64) -> Ticks {
    Ticks(ms * 1_000_000)
}

fn server(ms: u64) -> Us {
    EPOCH + Us::try_from(ms).unwrap() * 1_000
}

fn claims() -> Claims {
    let mut claims = Claims::new(Rules { drift_permille: 100, request_timeout: TIMEOUT });
    claims.heard(EPOCH, at(0));
    claims
}

fn claim(id: u128) -> Claim {
    let claim = Claim::of_test("job", Mode::Exclusive, Identity::of_test("host"));
    Claim { id: ClaimId(id), ttl: TTL, ..claim }
}

fn by(claim: &Claim) -> String {
    super::super::record::locked_by(claim.id, &claim.who, 255)
}

fn asks(claims: &mut Claims, now: Ticks, claim: &Claim, line: Line) -> Request {
    assert!(claims.ask(now, claim, line, || by(claim)).is_none(), "it lets nobody pass");
    claims.request(now, claim.id).expect("a request")
}

fn row(by: &str, since: Us, left: Us) -> Row {
    Row { by: by.into(), since, left }
}

/// Takes the lock `ms` after the beginning.
fn takes(claims: &mut Claims, ms: u64, claim: &Claim, was: Option<Row>) {
    let request = asks(claims, at(ms), claim, Line::Join);
    let said = claims.answered(at(ms), at(ms), server(ms), claim.id, &request, Reply::Granted(was));
    assert!(matches!(said.attempt, Some(Attempt::Granted(_))), "{said:?}");
}

fn unreachable() -> Error {
    Error::new(ErrorKind::Unreachable, "for tests")
}

#[test]
fn a_waiter_looks_later_each_time_and_when_the_holders_time_is_over_at_the_latest() {
    let mut claims = claims();
    let waits = claim(0x1234_5678 << 96);
    let mut look = |left: Us| {
        let request = asks(&mut claims, at(0), &waits, Line::Join);
        let busy = Reply::Busy(row("spring", EPOCH, left));
        let said = claims.answered(at(0), at(0), EPOCH, waits.id, &request, busy);
        let Some(Attempt::InLine(place)) = said.attempt else { panic!("{said:?}") };
        assert_eq!(place.holder.unwrap().host.as_deref(), Some("spring"));
        place.ask_at.unwrap().since(at(0))
    };
    let looks = [look(30 * S), look(30 * S), look(30 * S), look(30 * S)];
    for (look, most) in looks.iter().zip([1, 2, 4, 4]) {
        let most = LOOK.0 * most;
        assert!((most..=most * 5 / 4).contains(look), "{looks:?}");
    }
    let last = look(100_000);
    assert!(last > Duration::from_millis(100), "{last:?}");
    assert!(last <= Duration::from_millis(101) + APART, "{last:?}");
}

#[test]
fn two_waiters_do_not_look_at_the_same_moments() {
    let look = |id: u128, left: Us| {
        let mut claims = claims();
        let waits = claim(id << 120);
        let request = asks(&mut claims, at(0), &waits, Line::Join);
        let busy = Reply::Busy(row("spring", EPOCH, left));
        let said = claims.answered(at(0), at(0), EPOCH, waits.id, &request, busy);
        let Some(Attempt::InLine(place)) = said.attempt else { panic!("{said:?}") };
        place.ask_at.unwrap()
    };
    for left in [30 * S, 0] {
        assert!(look(3, left) < look(200, left));
    }
}

#[test]
fn r1_a_grant_that_was_read_after_its_lease_is_unknown() {
    let mut claims = claims();
    let asked = claim(1);
    let request = asks(&mut claims, at(0), &asked, Line::Join);
    let late = at(27_000);
    let said = claims.answered(late, at(0), EPOCH, asked.id, &request, Reply::Granted(None));
    assert!(matches!(said.attempt, Some(Attempt::Unknown(_))), "{said:?}");
    assert!(!claims.holds(asked.id));
    // The same claim asks again, and writes the same.
    let again = claims.request(late, asked.id).unwrap();
    assert_eq!(again.by, request.by);
    let said = claims.answered(late, late, server(27_000), asked.id, &again, Reply::Granted(None));
    let Some(Attempt::Granted(grant)) = said.attempt else { panic!("{said:?}") };
    assert_eq!(grant.lease.unwrap().since, Some(late));
}

#[test]
fn r3_a_request_is_refused_after_its_callers_time_and_after_its_own() {
    let mut claims = claims();
    let mut asked = claim(1);
    let request = asks(&mut claims, at(1_000), &asked, Line::Join);
    assert_eq!(request.not_after, server(3_000));
    asked.give_up = Some(at(1_500));
    let request = asks(&mut claims, at(1_000), &asked, Line::Join);
    assert_eq!(request.not_after, server(1_500));
    // Late by the server's clock, and in time by ours: it is sent again.
    let now = server(2_000);
    let said = claims.answered(at(1_400), at(1_000), now, asked.id, &request, Reply::Late);
    assert!(said.attempt.is_none(), "{said:?}");
    let again = claims.request(at(1_400), asked.id).unwrap();
    assert_eq!(again.not_after, server(2_500), "that clock is known better now");
    let said = claims.answered(at(1_600), at(1_400), now, asked.id, &again, Reply::Late);
    let Some(Attempt::Failed(error)) = said.attempt else { panic!("{said:?}") };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn r4_what_a_lost_answer_may_have_taken_is_given_back_once_no_copy_is_in_time() {
    let mut claims = claims();
    let asked = claim(1);
    let request = asks(&mut claims, at(0), &asked, Line::Join);
    let said = claims.unanswered(at(100), asked.id, Some(&request), false, unreachable());
    assert!(matches!(said.attempt, Some(Attempt::Unknown(_))), "{said:?}");
    let hold = claims.leave(asked.id).expect("it may have been granted");
    assert_eq!(hold.by, request.by);
    let orphan = claims.forget(at(200), asked.id).expect("a copy may come");
    assert_eq!((orphan.by, orphan.from), (request.by, at(4_000)));
    assert_eq!(orphan.until, at(34_000));
    // One that was never sent leaves nothing, and neither does one that no copy of can come.
    let unsent = claim(2);
    let request = asks(&mut claims, at(0), &unsent, Line::Join);
    let said = claims.unanswered(at(100), unsent.id, Some(&request), true, unreachable());
    assert!(matches!(said.attempt, Some(Attempt::Failed(_))) && said.orphan.is_none(), "{said:?}");
    let old = claim(3);
    let request = asks(&mut claims, at(0), &old, Line::Join);
    _ = claims.unanswered(at(100), old.id, Some(&request), false, unreachable());
    assert_eq!(claims.forget(at(4_000), old.id), None);
}

#[test]
fn r5_what_is_granted_to_a_caller_who_left_is_given_back_at_once() {
    for forgotten in [false, true] {
        let mut claims = claims();
        let asked = claim(1);
        let request = asks(&mut claims, at(0), &asked, Line::Join);
        assert!(claims.leave(asked.id).is_some(), "its request is on its way");
        if forgotten {
            assert_eq!(claims.forget(at(5), asked.id), None, "its answer tells");
        }
        let reply = Reply::Granted(None);
        let said = claims.answered(at(10), at(0), server(5), asked.id, &request, reply);
        assert!(!matches!(said.attempt, Some(Attempt::Granted(_))), "{said:?}");
        let orphan = said.orphan.expect("somebody has to give it back");
        assert_eq!((orphan.by, orphan.from), (request.by, at(10)));
    }
}

#[test]
fn who_waits_goes_on_over_a_server_that_is_away_and_has_nothing_to_give_back() {
    let mut claims = claims();
    let waits = claim(1);
    let request = asks(&mut claims, at(0), &waits, Line::Join);
    let busy = Reply::Busy(row("spring", EPOCH, 30 * S));
    _ = claims.answered(at(1), at(0), EPOCH, waits.id, &request, busy);
    let request = claims.request(at(300), waits.id).unwrap();
    let said = claims.unanswered(at(400), waits.id, Some(&request), true, unreachable());
    assert!(matches!(said.attempt, Some(Attempt::Unknown(_))), "{said:?}");
    assert_eq!(claims.leave(waits.id), None, "the table has nothing of it");
    assert_eq!(claims.hold(waits.id), None);
}

#[test]
fn a_try_that_finds_it_held_is_forgotten() {
    let mut claims = claims();
    let tries = claim(1);
    let request = asks(&mut claims, at(0), &tries, Line::Try);
    let busy = Reply::Busy(row("spring", EPOCH, 30 * S));
    let said = claims.answered(at(1), at(0), EPOCH, tries.id, &request, busy);
    let Some(Attempt::Busy(Some(holder))) = said.attempt else { panic!("{said:?}") };
    assert_eq!(holder.expires_in(), Some(TTL));
    assert_eq!(claims.hold(tries.id), None);
}

#[test]
fn a_process_lets_others_pass_after_a_while_unless_nobody_comes() {
    let mut claims = claims();
    let gives_back = |claims: &mut Claims, id: u128, ms: u64, next: &Claim| {
        let (id, hold) = (ClaimId(id), claims.hold(ClaimId(id)));
        let run_until = claims.run_until(id);
        _ = claims.leave(id);
        _ = claims.forget(at(ms), id);
        claims.ask_again(at(ms), next, hold.as_ref(), run_until, || by(next))
    };
    takes(&mut claims, 0, &claim(1), None);
    assert!(gives_back(&mut claims, 1, 30, &claim(2)).is_none(), "it has not had it for long");
    takes(&mut claims, 31, &claim(2), None);
    let Some(Attempt::InLine(place)) = gives_back(&mut claims, 2, 60, &claim(3)) else {
        panic!("its time is counted from the first of its holds")
    };
    assert_eq!(place.ask_at, Some(at(310)));
    // Whoever asks for it before its time is told the same.
    let waits = claims.ask(at(100), &claim(3), Line::Join, || by(&claim(3)));
    assert!(matches!(waits, Some(Attempt::InLine(place)) if place.ask_at == Some(at(310))));
    // Its own row still stands there: nobody competes.
    takes(&mut claims, 310, &claim(3), Some(row(&by(&claim(2)), server(31), 0)));
    assert!(gives_back(&mut claims, 3, 400, &claim(4)).is_none(), "it is alone");
    takes(&mut claims, 2_900, &claim(4), None);
    assert!(gives_back(&mut claims, 4, 2_960, &claim(5)).is_some(), "that counts for a while");
    // Somebody came.
    takes(&mut claims, 3_300, &claim(5), Some(row("spring", server(3_000), 0)));
    assert!(gives_back(&mut claims, 5, 3_400, &claim(6)).is_some());
}

#[test]
fn a_clock_that_is_off_is_told_of_once_an_hour_for_each_name() {
    let mut claims = claims();
    let waits = claim(1);
    let mut sees = |ms: u64, since: Us, by: &str| -> Option<Warning> {
        let request = asks(&mut claims, at(ms), &waits, Line::Join);
        let busy = Reply::Busy(row(by, since, 5 * S));
        let said = claims.answered(at(ms), at(ms), server(ms), waits.id, &request, busy);
        said.warning.map(|(_, warning)| warning)
    };
    assert_eq!(sees(0, server(0), "spring"), None);
    // It took the lock after we had looked, and says that it was long before.
    let told = sees(60_000, EPOCH - 3_600 * S, "batch").expect("its clock is behind");
    assert!(told.text.contains("batch is at least 3600 s behind"), "{told:?}");
    assert_eq!(sees(61_000, EPOCH + 7_200 * S, "spring"), None, "told already");
    assert!(sees(60_000 + 3_600_000, EPOCH + 9_000 * S, "spring").is_some());
}
