//! Names under transactions of their holders, and what they cost everybody else.

use std::time::Duration;

use lockkeeper_testkit::postgres::server::PostgresServer;

use super::statements::{Db, expire, statement};
use super::{claim, open, process};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, End, Event, Renewal, Standing};
use crate::words::claim::Claim;
use crate::words::id::ClaimId;

/// How often a statement gave up waiting for a row.
pub(super) fn waits(server: &PostgresServer) -> usize {
    server.log().matches("canceling statement due to lock timeout").count()
}

fn process_with(server: &PostgresServer, options: &str) -> Process {
    open(&format!("{}?{options}", server.url())).unwrap()
}

/// Holds all of these, with a transaction under each of them.
fn keep(process: &Process, names: &[String], db: &Db) -> Vec<Claim> {
    let holds: Vec<Claim> = names.iter().map(|name| claim(process, name)).collect();
    db.run("BEGIN");
    for held in &holds {
        granted(process.attempt(held));
        assert!(db.holds(&statement(process, held)));
    }
    holds
}

fn names() -> Vec<String> {
    (0..8).map(|at| format!("n{at}")).collect()
}

fn is_extended(process: &Process, held: &Claim) -> bool {
    matches!(process.renew(held.id), Renewal::Extended { .. })
}

fn link_broke(process: &Process) -> bool {
    let mut link = |event: &Event| matches!(event, Event::Link { .. }).then_some(());
    process.event_within(Duration::from_millis(10), &mut link).is_some()
}

#[test]
fn waiting_for_kept_names_costs_the_waiter_none_of_its_own_holds() {
    let server = PostgresServer::start();
    let (holder, waiter) = (process(&server), process_with(&server, "request_timeout=8s"));
    let db = Db::of(&server.url());
    let (names, own) = (names(), claim(&waiter, "own"));
    keep(&holder, &names, &db);
    // The holder is dead, and its transactions are not.
    expire(&server);
    granted(waiter.attempt(&own));
    let waiting: Vec<Claim> = names.iter().map(|name| claim(&waiter, name)).collect();
    for claim in &waiting {
        assert!(matches!(waiter.attempt(claim), Attempt::InLine(_)));
        assert!(is_extended(&waiter, &own));
    }
    let ids: Vec<ClaimId> = waiting.iter().map(|claim| claim.id).collect();
    for _ in 0..4 {
        let stand = waiter.wait(waiter.engine.recheck(&ids));
        let in_line = |one: &Standing| matches!(one, Standing::InLine(_));
        assert!(stand.iter().all(in_line), "{stand:?}");
        assert!(is_extended(&waiter, &own));
        // Those who do not wait ask anew each time.
        for name in &names {
            assert!(matches!(waiter.attempt_try(&claim(&waiter, name)), Attempt::Busy(_)));
        }
        let all: Vec<Claim> = names.iter().map(|name| claim(&waiter, name)).collect();
        let all = waiter.wait(waiter.engine.attempt_all(&all));
        assert!(all.iter().all(|one| matches!(one, Attempt::Busy(_))), "{all:?}");
    }
    assert_eq!(waits(&server), 0, "{}", server.log());
    assert!(!link_broke(&waiter));
    db.run("COMMIT");
    // An answer that crosses the word of a grant says nothing.
    until("each of them is held", || {
        let stand = waiter.wait(waiter.engine.recheck(&ids));
        stand.iter().all(|one| matches!(one, Standing::Held(_)))
    });
}

#[test]
fn releases_before_the_commit_cost_no_other_hold_and_free_after_it() {
    let server = PostgresServer::start();
    let one = process_with(&server, "request_timeout=8s");
    let db = Db::of(&server.url());
    let (names, own) = (names(), claim(&one, "own"));
    granted(one.attempt(&own));
    let holds = keep(&one, &names, &db);
    std::thread::scope(|scope| {
        let release = |held: &Claim| {
            let (one, id) = (&one, held.id);
            scope.spawn(move || one.release(id))
        };
        let released: Vec<_> = holds.iter().map(release).collect();
        while !released.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            assert!(is_extended(&one, &own));
        }
        for released in released {
            let end = released.join().unwrap();
            let End::Unknown(error) = end else { panic!("{end:?}") };
            assert!(error.message().contains("commit it"), "{error}");
        }
    });
    assert_eq!(waits(&server), 0, "{}", server.log());
    assert!(!link_broke(&one));
    db.run("COMMIT");
    for held in &holds {
        assert!(matches!(one.release(held.id), End::Freed));
    }
}

#[test]
fn a_release_ends_soon_after_the_commit_that_it_waits_for() {
    let server = PostgresServer::start();
    // It would go on looking for longer than the test.
    let one = process_with(&server, "request_timeout=10m");
    let db = Db::of(&server.url());
    let held = keep(&one, &["a".to_owned()], &db).remove(0);
    std::thread::scope(|scope| {
        let release = scope.spawn(|| one.release(held.id));
        let looks = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%Who stands%'";
        until("it has looked", || server.sql(looks) != "0");
        db.run("COMMIT");
        let end = release.join().unwrap();
        assert!(matches!(end, End::Freed), "{end:?}");
    });
}

#[test]
fn a_name_that_nobody_could_know_to_be_kept_is_waited_for_once() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    assert!(matches!(one.release(held.id), End::Freed));
    let db = Db::of(&server.url());
    // As a foreign key does.
    db.run("BEGIN; SELECT FROM lockkeeper_locks FOR KEY SHARE");
    for _ in 0..3 {
        assert!(matches!(two.attempt_try(&claim(&two, "a")), Attempt::Busy(_)));
    }
    assert_eq!(waits(&server), 1, "{}", server.log());
    db.run("COMMIT");
    granted(two.attempt_try(&claim(&two, "a")));
}
