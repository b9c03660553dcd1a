//! Who waits for a row on which somebody's transaction stands is told that (W1).

use std::time::Duration;

use lockkeeper_testkit::postgres::server::PostgresServer;

use super::kept::waits;
use super::statements::Db;
use super::{claim, open};
use crate::engine::redis::tests::support::{Process, granted, until as until_so};
use crate::engine::{Attempt, End, Event};
use crate::words::claim::Claim;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::ClaimId;

fn process_with(server: &PostgresServer, options: &str) -> Process {
    open(&format!("{}?{options}", server.url())).unwrap()
}

fn is_said(why: &Error) -> bool {
    why.kind() == ErrorKind::Refused && why.message().contains("somebody's transaction stands on")
}

/// What is told of a claim before its request ends.
fn is_told(process: &Process, id: ClaimId) {
    let told = process.event("what is in the way", |event| match event {
        Event::Hindered { claim, why, .. } if *claim == id => Some(why.clone()),
        _ => None,
    });
    assert!(is_said(&told), "{told}");
}

fn take_and_free(process: &Process, name: &str) {
    let first = claim(process, name);
    granted(process.attempt(&first));
    assert!(matches!(process.release(first.id), End::Freed));
}

/// The names `a` and `b`, and somebody's transaction on the row of `b`. `request_timeout`: four
/// times as long as a row is waited for.
fn under_a_transaction(request_timeout: &str) -> (PostgresServer, Process, Db) {
    let server = PostgresServer::start();
    let one = process_with(&server, &format!("request_timeout={request_timeout}"));
    take_and_free(&one, "a");
    take_and_free(&one, "b");
    let db = Db::of(&server.url());
    db.run("BEGIN; SELECT FROM lockkeeper_locks WHERE name = 'b' FOR UPDATE");
    (server, one, db)
}

#[test]
fn each_of_several_names_is_told_of_a_transaction_on_one_of_them() {
    let (_server, one, _stands) = under_a_transaction("4s");
    let claims = ["a", "b"].map(|name| claim(&one, name));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| one.wait(one.engine.attempt_all(&claims)));
        for claim in &claims {
            is_told(&one, claim.id);
        }
        for attempt in asked.join().unwrap() {
            let Attempt::Failed(why) = attempt else { panic!("{attempt:?}") };
            assert!(is_said(&why), "{why}");
        }
    });
}

#[test]
fn several_names_that_were_hindered_until_too_late_are_refused_with_that() {
    let (server, one, _stands) = under_a_transaction("8s");
    // Where their time is over before they come to the row, once more.
    until_so("they are hindered", || {
        let before = waits(&server);
        let give_up = Some(one.now().plus(Duration::from_millis(500)));
        let claims = ["a", "b"].map(|name| Claim { give_up, ..claim(&one, name) });
        let attempts = one.wait(one.engine.attempt_all(&claims));
        let waited = waits(&server) - before;
        let is_late = |attempt: &Attempt| match attempt {
            Attempt::Failed(why) | Attempt::Unknown(why) => why.kind() == ErrorKind::TimedOut,
            _ => false,
        };
        if waited == 0 && attempts.iter().all(is_late) {
            return false;
        }
        for attempt in attempts {
            let Attempt::Failed(why) = attempt else { panic!("{attempt:?}") };
            assert!(is_said(&why), "{why}");
        }
        assert_eq!(waited, 1, "nobody waits any more: {}", server.log());
        true
    });
}

#[test]
fn a_conflict_of_another_kind_is_no_reason_of_a_request_that_came_too_late() {
    for several in [true, false] {
        let server = PostgresServer::start();
        // A row is waited for a quarter of it.
        let one = process_with(&server, "request_timeout=60s");
        take_and_free(&one, "a");
        take_and_free(&one, "b");
        let db = Db::of(&server.url());
        db.run("BEGIN; SELECT FROM lockkeeper_locks WHERE name = 'b' FOR UPDATE");
        let until = one.now().plus(Duration::from_secs(2));
        let claims = ["a", "b"].map(|name| Claim { give_up: Some(until), ..claim(&one, name) });
        let waits = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name \
                     LIKE 'lockkeeper:%'";
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| match several {
                true => one.wait(one.engine.attempt_all(&claims)),
                false => vec![one.attempt(&claims[1])],
            });
            let waiting = || server.sql(&format!("SELECT count(*) {waits}")) == "1";
            until_so("its time is over while it waits", || waiting() && one.now() > until);
            server.sql(&format!("SELECT pg_cancel_backend(pid) {waits}"));
            db.run("COMMIT");
            for attempt in asked.join().unwrap() {
                let (Attempt::Failed(why) | Attempt::Unknown(why)) = attempt else {
                    panic!("{attempt:?}")
                };
                assert_eq!(why.kind(), ErrorKind::TimedOut, "{why}");
            }
        });
    }
}

#[test]
fn a_claim_that_came_with_a_release_is_told_of_a_transaction_on_the_row() {
    let server = PostgresServer::start();
    let one = process_with(&server, "request_timeout=4s");
    let (held, next) = (claim(&one, "a"), claim(&one, "a"));
    granted(one.attempt(&held));
    let db = Db::of(&server.url());
    db.run("BEGIN; SELECT FROM lockkeeper_locks FOR UPDATE");
    std::thread::scope(|scope| {
        let released = scope.spawn(|| one.release_again(held.id, &next));
        is_told(&one, next.id);
        db.run("COMMIT");
        released.join().unwrap();
    });
}

#[test]
fn a_shedlock_row_that_somebody_inserts_is_a_reason_as_one_that_somebody_locks_is() {
    let server = PostgresServer::start();
    let one = process_with(&server, "layout=shedlock&request_timeout=4s");
    take_and_free(&one, "there");
    let db = Db::of(&server.url());
    db.run(
        "BEGIN; SELECT FROM shedlock FOR UPDATE; \
         INSERT INTO shedlock VALUES ('new', now(), now(), 'spring')",
    );
    for name in ["there", "new"] {
        let waits = claim(&one, name);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| one.attempt(&waits));
            is_told(&one, waits.id);
            let attempt = asked.join().unwrap();
            let Attempt::Failed(why) = attempt else { panic!("{attempt:?}") };
            assert!(is_said(&why), "{why}");
        });
    }
}
