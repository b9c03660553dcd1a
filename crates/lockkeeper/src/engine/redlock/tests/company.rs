//! Names that a process asks for, or gives back, at once reach each member in company, and what
//! becomes of them where that goes wrong.

use std::time::Duration;

use lockkeeper_testkit::proxy::Way;

use super::many::tick;
use super::support::{Proxied, Quorum, claim, open};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Answer, Attempt, End, Line, Released};
use crate::words::claim::Claim;

/// A lease that no test outlives, however patient it is.
const LONG: Duration = Duration::from_secs(3600);

fn claims(process: &Process, count: usize) -> Vec<Claim> {
    let of = |n| Claim { ttl: LONG, ..claim(process, &format!("n{n}")) };
    (0..count).map(of).collect()
}

/// Asks for all of them while the keeper's thread stands still.
fn ask(process: &Process, claims: &[Claim], line: Line) -> Vec<Attempt> {
    let stalled = process.stall();
    let asked: Vec<Answer<Attempt>> =
        claims.iter().map(|claim| process.engine.attempt(claim, line)).collect();
    drop(stalled);
    claims.iter().zip(asked).map(|(claim, asked)| process.attempted(claim, asked)).collect()
}

/// Gives all of them back in the same way, and awaits it.
fn give_back(process: &Process, claims: &[Claim]) {
    let stalled = process.stall();
    let released: Vec<Answer<Released>> =
        claims.iter().map(|claim| process.engine.release_awaited(&[claim.id], None)).collect();
    drop(stalled);
    for answer in released {
        let ends = process.wait(answer).ends;
        assert!(matches!(ends.as_slice(), [End::Freed]), "{ends:?}");
    }
}

#[test]
fn many_names_at_once_reach_a_member_in_few_calls_and_a_name_that_is_held_is_waited_for() {
    let quorum = Quorum::of(3);
    let (process, other) = (quorum.process(), quorum.process());
    quorum.warm(&process);
    let theirs = claim(&other, "n30");
    granted(other.attempt_until(&theirs));
    let (claims, before) = (claims(&process, 40), quorum.calls(0));
    for (at, got) in ask(&process, &claims, Line::Join).into_iter().enumerate() {
        match at {
            30 => assert!(matches!(got, Attempt::InLine(_)), "{got:?}"),
            _ => _ = granted(got),
        }
    }
    let calls = quorum.calls(0)[0] - before[0];
    assert!(calls < 16, "they went together: {calls}");
    assert!(matches!(other.release(theirs.id), End::Freed));
    process.granted_at_last(&claims[30]);
    give_back(&process, &claims);
    (0..40).for_each(|n| quorum.until_clean(&format!("n{n}")));
}

#[test]
fn names_in_company_over_tls_are_all_answered() {
    let home = tempfile::tempdir().unwrap();
    let (quorum, url) = Quorum::secure(3, home.path());
    let process = open(&url).expect("the members can be used");
    quorum.warm(&process);
    let (claims, before) = (claims(&process, 40), quorum.calls(0));
    ask(&process, &claims, Line::Join).into_iter().for_each(|got| _ = granted(got));
    give_back(&process, &claims);
    let calls = quorum.calls(0)[0] - before[0];
    assert!(calls < 24, "they went together: {calls}");
}

#[test]
fn names_in_company_are_each_asked_by_their_own_script_where_a_member_has_lost_those_of_many() {
    let quorum = Quorum::of(3);
    let process = quorum.process();
    quorum.warm(&process);
    let flush = || quorum.0.iter().for_each(|server| _ = server.command(&["SCRIPT", "FLUSH"]));
    let claims = claims(&process, 40);
    let round = |lost: &str| {
        if lost == "requests" {
            flush();
        }
        let before = quorum.calls(0);
        ask(&process, &claims, Line::Join).into_iter().for_each(|got| _ = granted(got));
        if lost == "releases" {
            flush();
        }
        give_back(&process, &claims);
        (0..40).for_each(|n| quorum.until_clean(&format!("n{n}")));
        let now = quorum.calls(0);
        now[0] + now[1] - before[0] - before[1]
    };
    // How many gather is a matter of time: of a few rounds one is as they are meant.
    let together = || (0..5).map(|_| round("none")).any(|calls| calls < 24);
    // The first of them bring their script along again.
    round("requests");
    assert!(together(), "they go together again");
    round("releases");
    assert!(together(), "they go together again");
}

#[test]
fn r4_names_in_company_whose_answer_is_lost_are_each_unknown_and_granted_when_asked_once_more() {
    let members = Proxied::of(3);
    let process = members.process("max_ttl=24h&server_timeout=30s&request_timeout=1m");
    let (claims, before) = (claims(&process, 24), members.quorum.calls(0));
    members.proxies[..2].iter().for_each(|proxy| proxy.hold(Way::Down));
    let attempts = std::thread::scope(|scope| {
        scope.spawn(|| {
            let all = |claim: &Claim| members.quorum.with_record(claim) == 3;
            until("they are carried out", || claims.iter().all(all));
            let calls = members.quorum.calls(0)[0] - before[0];
            assert!(calls < 16, "they went together: {calls}");
            members.proxies[..2].iter().for_each(|proxy| {
                proxy.cut();
                proxy.heal();
            });
        });
        ask(&process, &claims, Line::Join)
    });
    for got in &attempts {
        assert!(matches!(got, Attempt::Unknown(_)), "{got:?}");
    }
    claims.iter().for_each(|claim| _ = process.granted_at_last(claim));
    give_back(&process, &claims);
    (0..24).for_each(|n| members.quorum.until_clean(&format!("n{n}")));
}

#[test]
fn r4_a_name_in_company_that_was_given_back_meanwhile_is_not_asked_for_by_its_own_script() {
    let members = Proxied::of(3);
    let process = members.process("max_ttl=24h&server_timeout=600ms&request_timeout=1m");
    let (claims, first) = (claims(&process, 24), &members.quorum.0[0]);
    // It is in the way of a request in company, and would not be in that of one alone.
    let last = (tick(first) + 10_000_000).to_string();
    first.command(&["SET", "lockkeeper:{redlock:n20}:last", &last, "EX", "1000"]);
    // Those of a majority never come, and the answers of the first come late.
    members.proxies[1..].iter().for_each(|proxy| proxy.hold(Way::Up));
    members.proxies[0].hold(Way::Down);
    for got in ask(&process, &claims, Line::Try) {
        assert!(matches!(got, Attempt::Unknown(_)), "{got:?}");
    }
    members.proxies.iter().for_each(|proxy| proxy.heal());
    // Twice: what is asked because of those answers is on its way by then.
    for _ in 0..2 {
        let behind = claim(&process, "behind");
        process.granted_at_last(&behind);
        assert!(matches!(process.release(behind.id), End::Freed));
    }
    claims.iter().for_each(|claim| _ = process.wait(process.engine.withdraw(claim.id)));
    (0..24).for_each(|n| members.quorum.until_clean(&format!("n{n}")));
}
