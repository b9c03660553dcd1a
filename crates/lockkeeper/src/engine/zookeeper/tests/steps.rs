//! The session's state, stepped by hand: what takes too many nodes, or a server that refuses at the
//! right time.

use super::super::claims::Step;
use super::super::errors;
use super::super::layout::Tag;
use super::super::liveness::Alive;
use super::super::proto::{Code, SessionKey, Stat};
use super::super::state::State;
use super::super::wire::NotTaken;
use super::*;
use crate::words::error::{Error, ErrorKind};

const SESSION: i64 = 7;

type Ask = fn(&mut State, &Claim);

/// A session that is up, and sends into nothing.
fn state() -> State {
    state_with("")
}

fn state_with(options: &str) -> State {
    let mut url = EngineUrl::parse(&format!("zk://127.0.0.1:1?{options}")).unwrap();
    let options = Options::from_url(&mut url, 100).unwrap();
    let mut state = State::new(Arc::new(options), Clock::real());
    begin_session(&mut state, SESSION);
    state
}

/// One that was open, with these servers, and has lost its connection.
fn state_of_three() -> State {
    let mut url = EngineUrl::parse("zk://a:1,b:1,c:1?auth=digest:me:it").unwrap();
    let options = Options::from_url(&mut url, 100).unwrap();
    let mut state = State::new(Arc::new(options), Clock::real());
    state.opened = true;
    begin_session(&mut state, SESSION);
    state
}

fn begin_session(state: &mut State, id: i64) {
    let now = state.clock.now();
    state.connected(
        SessionKey { id, ..SessionKey::fresh() },
        Duration::from_secs(15),
        now,
        None,
        (0, None),
    );
}

fn prefix(state: &State, claim: &Claim) -> String {
    state.options.layout.prefix(Tag::Lock, claim.id)
}

fn created(state: &mut State, claim: &Claim, seq: i32) -> String {
    let dir = state.claims[&claim.id].dir.clone();
    let name = format!("{}{seq:010}", prefix(state, claim));
    let stat = Stat { ephemeral_owner: SESSION, czxid: 9, ..Stat::default() };
    state.claim_reply(
        claim.id,
        Step::Create,
        Ok(Reply::Created { path: format!("{dir}/{name}"), stat }),
    );
    name
}

fn listed(state: &mut State, claim: &Claim, names: Vec<String>) {
    state.claim_reply(claim.id, Step::List, Ok(Reply::Listing(names, Stat::default())));
}

#[test]
fn r13_a_place_is_kept_however_many_come_after_it_and_only_a_later_one_is_refused() {
    let others = |from: i32, to: i32| (from..to).map(|seq| format!("_c_x-lock-{seq:010}"));
    for (ahead, after, refused) in [(1, 20_000, false), (16_383, 20_000, false), (16_384, 0, true)]
    {
        let mut state = state();
        let a = claim("x");
        drop(state.attempt(&a, "/x".to_owned(), false));
        let own = created(&mut state, &a, ahead);
        let names =
            others(0, ahead).chain([own]).chain(others(ahead + 1, ahead + 1 + after)).collect();
        listed(&mut state, &a, names);
        let waits = state.claims[&a.id].machine.waits_for().is_some();
        assert_eq!(waits, !refused, "{ahead} ahead");
        assert_eq!(state.claims[&a.id].machine.is_leaving(), refused);
    }
}

#[test]
fn z2_a_create_in_doubt_is_looked_for_again_by_whoever_asks_for_the_claim() {
    let open = |state: &mut State, a: &Claim| {
        drop(state.attempt(a, "/x".to_owned(), false));
        state.disconnected();
        let (key, now) = (state.session.as_ref().unwrap().key.clone(), state.clock.now());
        state.connected(key, Duration::from_secs(15), now, None, (0, None));
        let prefix = prefix(state, a);
        // The server does not say it.
        state.claim_reply(a.id, Step::Find { prefix: prefix.clone() }, Err(Code::NO_AUTH));
        assert!(state.claims[&a.id].machine.is_idle());
        prefix
    };
    let asks: [Ask; 3] = [
        |state, a| drop(state.attempt(a, "/x".to_owned(), false)),
        |state, a| drop(state.leave(a.id)),
        |state, a| state.look_again(a.id),
    ];
    for ask in asks {
        let (mut state, a) = (state(), claim("x"));
        let prefix = open(&mut state, &a);
        ask(&mut state, &a);
        let leaves = state.claims[&a.id].machine.is_leaving();
        state.claim_reply(
            a.id,
            Step::Find { prefix: prefix.clone() },
            Ok(Reply::Children(vec![format!("/x/{prefix}0000000003")])),
        );
        assert_eq!(state.claims[&a.id].machine.nodes().len(), 1, "found again");
        assert_eq!(state.claims[&a.id].machine.is_leaving(), leaves);
    }
}

#[test]
fn what_could_not_be_told_to_be_left_over_is_looked_for_again() {
    let (mut state, a) = (state(), claim("x"));
    drop(state.attempt(&a, "/x".to_owned(), false));
    state.search_at = None;
    state
        .drop_leftovers(&["/x/_c_7b2d0f4e-1111-2222-3333-444455556666-lock-0000000001".to_owned()]);
    assert!(state.search_at.is_some(), "it may be what the open create made");
    state.search_at = None;
    state
        .drop_leftovers(&["/y/_c_7b2d0f4e-1111-2222-3333-444455556666-lock-0000000001".to_owned()]);
    assert!(state.search_at.is_none(), "deleted");
}

#[test]
fn callers_who_have_gone_do_not_pile_up_while_there_is_no_link() {
    let mut state = state();
    state.disconnected();
    for _ in 0..1_000 {
        drop(state.call(Request::Exists { path: "/x".to_owned(), watch: false }));
    }
    let kept = state.call(Request::Exists { path: "/x".to_owned(), watch: false });
    assert!(state.parked.len() <= 8, "{}", state.parked.len());
    drop(kept);
}

#[test]
fn a_session_is_not_ended_under_a_member_of_a_barrier_nor_while_a_delete_is_asked_for_anew() {
    let (mut state, a) = (state(), claim("x"));
    drop(state.attempt(&a, "/x".to_owned(), false));
    let own = created(&mut state, &a, 0);
    drop(state.leave(a.id));
    state.claim_reply(a.id, Step::Delete(own.clone()), Err(Code::NO_AUTH));
    assert!(state.must_end_session(), "the one node that is left cannot be deleted");
    state.members.insert(ClaimId::fresh(), super::super::barrier::Member::default());
    assert!(!state.must_end_session());
    state.members.clear();
    drop(state.leave(a.id));
    assert!(!state.must_end_session(), "the server is asked anew");
    state.claim_reply(a.id, Step::Delete(own), Ok(Reply::Nothing));
    assert!(state.claims.is_empty());
}

#[test]
fn what_is_asked_for_when_nobody_connects_any_more_is_answered_at_once() {
    let mut state = state();
    state.disconnected();
    let mut before = state.call(Request::Exists { path: "/x".to_owned(), watch: false });
    state.give_up_calls();
    let mut after = state.call(Request::Exists { path: "/x".to_owned(), watch: false });
    assert!(matches!(after.try_recv(), Ok(Err(Fault::NotSent))));
    assert!(
        before.try_recv().is_err(),
        "who waited before is told with the others, when the state is not locked"
    );
    assert!(matches!(&state.outbox.calls[..], [(_, Err(Fault::NotSent))]));
}

#[test]
fn z3_who_leaves_at_its_gate_after_its_session_was_over_stands_nowhere_in_the_next() {
    // Claims hear of it in no order: until both orders have been.
    let mut orders = [0, 0];
    for _ in 0..500 {
        let mut state = state_with("semaphore=shared");
        let a = claim_in(Kind::Semaphore, "x", Mode::Permits { count: 1, limit: 1 });
        drop(state.attempt(&a, "/x/leases".to_owned(), false));
        let gate = state.claims.values().find(|entry| entry.is_gate()).unwrap().claim.clone();
        let own = created(&mut state, &gate, 1);
        listed(&mut state, &gate, vec!["_c_x-lock-0000000000".to_owned(), own]);
        assert!(state.claims[&gate.id].machine.waits_for().is_some(), "somebody is before it");
        state.disconnected();
        // For so long that nothing is known of the session any more.
        state.alive = Alive::default();
        assert!(state.left().is_zero());
        let left = state.leave(a.id);
        let gate_first = state.claims.keys().next() == Some(&gate.id);
        orders[usize::from(gate_first)] += 1;
        state.session_over();
        begin_session(&mut state, SESSION + 1);
        assert!(state.claims.is_empty(), "the gate heard first: {gate_first}");
        assert!(
            matches!(&state.outbox.ends[..], [(_, End::Freed)]),
            "the gate heard first: {gate_first}"
        );
        drop(left);
        if orders.iter().all(|count| *count > 0) {
            return;
        }
    }
    panic!("one order alone: {orders:?}");
}

#[test]
fn b7_who_refuses_for_good_decides_nothing_while_the_others_are_away() {
    let mut state = state_of_three();
    state.disconnected();
    let away = |at| Error::new(ErrorKind::Unreachable, format!("{at} hangs"));
    state.failed(0, errors::auth("a:1", Code::AUTH_FAILED));
    for away in [None, Some((1, away("b"))), Some((2, away("c")))] {
        if let Some((at, why)) = away {
            state.failed(at, why);
        }
        let error = state.unanswered();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.is_outage() && error.message().contains("refused the URL's `auth`"));
    }
    assert!(state.unanswered().message().contains("b hangs"));
    // All of them: that is for somebody to mend, and each word is said once.
    state.failed(1, errors::auth("b:1", Code::AUTH_FAILED));
    state.failed(2, Error::new(ErrorKind::Refused, "c wants a certificate"));
    let error = state.unanswered();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.message().ends_with("; c:1: c wants a certificate"), "{error}");
    assert_eq!(error.message().matches("refused the URL's `auth`").count(), 1, "{error}");
}

#[test]
fn a_server_that_took_us_since_is_not_away_also_where_it_has_not_said_who_we_are() {
    let mut state = state_of_three();
    let away = || NotTaken { is_away: true, why: errors::unreachable("it", "refused") };
    for at in 0..3 {
        assert!(!state.all_are_away(), "before {at} was tried");
        state.failed(at, away());
    }
    assert!(state.all_are_away());
    // Its answer to the identity is awaited still, so that what it said is kept.
    begin_session(&mut state, SESSION);
    state.disconnected();
    assert!(!state.all_are_away());
    state.failed(0, away());
    assert!(state.all_are_away());
}

#[test]
fn b7_what_one_server_says_of_an_identity_fails_no_caller_who_asks_meanwhile() {
    let mut state = state_of_three();
    // The answer to the identity, as it is read: xid -4, a zxid, the code.
    let mut reply = (-4_i32).to_be_bytes().to_vec();
    reply.extend(0_i64.to_be_bytes());
    reply.extend(Code::AUTH_FAILED.0.to_be_bytes());
    let ended = state.frame(&super::super::wire::Frame::Whole(&reply));
    assert_eq!(ended, Err("the server refused the identity".to_owned()));
    assert!(state.refused.is_none(), "that is for the driver to say, once all have said so");
    assert!(state.not_here.is_some_and(|why| why.kind() == ErrorKind::Refused));
}
