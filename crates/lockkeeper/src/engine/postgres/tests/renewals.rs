//! Renewals of many holds, some of whose rows somebody stands on.

use std::time::Duration;

use lockkeeper_testkit::postgres::server::PostgresServer;

use super::faults::OnRows;
use super::kept::waits;
use super::{claim, open, process, statements};
use crate::engine::redis::tests::support::{PATIENCE, granted, until};
use crate::engine::{Event, Renewal};
use crate::words::claim::{Claim, Mode};
use crate::words::id::LeaseId;

#[test]
fn permits_of_one_name_are_renewed_together() {
    let server = PostgresServer::start_with(&["log_statement=all"]);
    let one = process(&server);
    let mode = Mode::Permits { count: 1, limit: 300 };
    let take = |_| {
        let claim = Claim { ttl: PATIENCE * 5, ..one.claim("a", mode) };
        granted(one.attempt(&claim));
        claim.id.into()
    };
    let leases: Vec<LeaseId> = (0..300).map(take).collect();
    let from = server.log().len();
    let renewed = one.wait(one.engine.renew(&leases));
    let extended = |one: &Renewal| matches!(one, Renewal::Extended { .. });
    assert!(renewed.iter().all(extended), "{renewed:?}");
    let ran = statements(&server, from);
    assert!(ran.len() <= 3, "{} statements", ran.len());
}

#[test]
fn somebody_elses_transaction_on_some_rows_costs_the_other_holds_nothing() {
    let server = PostgresServer::start();
    let one = open(&format!("{}?request_timeout=16s", server.url())).unwrap();
    let holds: Vec<_> = (10..90).map(|at| one.exclusive(&format!("n{at}"))).collect();
    for hold in &holds {
        granted(one.attempt(hold));
    }
    std::thread::scope(|scope| {
        let on_half = "BEGIN; SELECT FROM lockkeeper_locks WHERE name < 'n50' FOR UPDATE; \
                       SELECT pg_sleep(600)";
        let blocker = scope.spawn(|| server.ask(on_half));
        let standing = OnRows::on(&server);
        let leases: Vec<LeaseId> = holds.iter().map(|hold| hold.id.into()).collect();
        // One row is waited for for four seconds: one after the other would be 160 s, and longer
        // than an answer is waited for.
        let renewed = one.wait(one.engine.renew(&leases));
        let blocked = |one: &Renewal| matches!(one, Renewal::Unknown(_));
        assert!(renewed[..40].iter().all(blocked), "{renewed:?}");
        let extended = |one: &Renewal| matches!(one, Renewal::Extended { .. });
        assert!(renewed[40..].iter().all(extended), "{renewed:?}");
        let mut link = |event: &Event| matches!(event, Event::Link { .. }).then_some(());
        assert!(one.event_within(Duration::from_millis(10), &mut link).is_none());
        drop(standing);
        assert!(blocker.join().unwrap().is_err(), "it was stopped");
    });
    let renewed = one.wait(one.engine.renew(&[holds[0].id.into()]));
    assert!(matches!(renewed[0], Renewal::Extended { .. }), "{renewed:?}");
}

#[test]
fn a_statement_behind_others_that_are_answered_costs_no_connection() {
    let server = PostgresServer::start();
    let one = open(&format!("{}?request_timeout=8s", server.url())).unwrap();
    let holds: Vec<_> = (0..8).map(|at| claim(&one, &format!("n{at}"))).collect();
    for hold in &holds {
        granted(one.attempt(hold));
    }
    std::thread::scope(|scope| {
        let on_all = "BEGIN; SELECT FROM lockkeeper_locks FOR UPDATE; SELECT pg_sleep(600)";
        let blocker = scope.spawn(|| server.ask(on_all));
        let standing = OnRows::on(&server);
        let release = |hold: &Claim| {
            let (one, id) = (&one, hold.id);
            scope.spawn(move || drop(one.release(id)))
        };
        let releases: Vec<_> = holds.iter().map(release).collect();
        // One row is waited for for two seconds: what stands behind these has waited for longer
        // than an answer may take.
        until("six were answered", || waits(&server) >= 6);
        drop(standing);
        releases.into_iter().for_each(|release| release.join().unwrap());
        assert!(blocker.join().unwrap().is_err(), "it was stopped");
    });
    let mut link = |event: &Event| matches!(event, Event::Link { .. }).then_some(());
    assert!(one.event_within(Duration::from_millis(10), &mut link).is_none());
}
