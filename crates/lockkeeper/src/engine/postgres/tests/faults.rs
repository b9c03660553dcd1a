//! Rows that somebody else deletes, locks or damages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_testkit::postgres::server::{PostgresServer, USER};
use lockkeeper_testkit::proxy::Proxy;

use super::super::Postgres;
use super::super::options::PostgresOptions;
use super::super::store::Written;
use super::statements::Db;
use super::{PATIENT, TTL, claim, open, process};
use crate::engine::redis::tests::support::{Process, granted, number, until};
use crate::engine::sql::ask::{Asked, Reply};
use crate::engine::sql::line::Work;
use crate::engine::sql::record::Place;
use crate::engine::{Answer, Attempt, Common, End, Line, Renewal, Standing};
use crate::open::url::EngineUrl;
use crate::words::claim::{Claim, Mode};
use crate::words::name::Kind;

const MADE_ROOM: &str = "DELETE FROM lockkeeper_locks WHERE record = '' AND NOT line";

/// A process, and its engine as what it is.
fn engine(server: &PostgresServer) -> (Process, Arc<Postgres>) {
    let mut url = EngineUrl::parse(&format!("{}?{PATIENT}", server.url())).unwrap();
    let options = PostgresOptions::take(&mut url, &Common::new(TTL, 100)).unwrap();
    let engine = Arc::new(Postgres::new(options));
    (Process::around(engine.clone()).unwrap(), engine)
}

fn stands(server: &PostgresServer) {
    until("it stands there", || {
        let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        server.sql(sleeps) == "1"
    });
}

/// Whoever stands there is stopped when this goes, also by a test that fails: nobody waits for it.
pub(in crate::engine::postgres) struct OnRows<'a>(&'a PostgresServer);

impl<'a> OnRows<'a> {
    pub(in crate::engine::postgres) fn on(server: &'a PostgresServer) -> Self {
        let standing = Self(server);
        stands(server);
        standing
    }
}

impl Drop for OnRows<'_> {
    fn drop(&mut self) {
        let sleeps = "FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        let stopped = self.0.ask(&format!("SELECT pg_cancel_backend(pid) {sleeps}"));
        if let Err(error) = stopped {
            eprintln!("it stands there still: {error}");
        }
    }
}

#[test]
fn a_row_that_was_deleted_comes_back_with_a_version_that_nobody_saw() {
    let server = PostgresServer::start();
    let (one, (two, engine)) = (process(&server), engine(&server));
    let first = claim(&one, "a");
    granted(one.attempt(&first));
    assert!(matches!(one.release(first.id), End::Freed));
    // It reads that the lock is free, and decides.
    let late = claim(&two, "a");
    let (id, place) = (late.id, Place::of(&late, None, "c", 0));
    let asked = Asked { kind: Kind::Lock, place, limit: 0, line: Line::Try };
    let opened = engine.opened().unwrap().clone();
    let store = two.wait(Answer::later(async move { opened.store().await })).unwrap();
    let (reads, name) = (store.clone(), late.name.clone());
    let read = async move { reads.read(Kind::Lock, &name, Some(id), (4, true)).await };
    let seen = two.wait(Answer::later(read)).unwrap();
    let mut work = Work::on(&seen, Some(id)).unwrap();
    assert!(matches!(work.stand(&asked), Ok(Reply::Granted { .. })));
    let plan = work.plan().expect("something to write");
    // Before it writes the row goes, and comes again for somebody else.
    server.sql(MADE_ROOM);
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
    let (writes, name, now) = (store.clone(), late.name.clone(), seen.now);
    let write = async move { writes.write(Kind::Lock, &name, &plan, now, i64::MAX).await };
    let written = two.wait(Answer::later(write)).unwrap();
    assert!(matches!(written, Written::Not(_)), "BROKEN LOCK: two hold it");
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
    // The rows that `all` makes, too.
    let version = || server.sql("SELECT version FROM lockkeeper_locks").parse::<i64>().unwrap();
    assert!(matches!(one.release(held.id), End::Freed));
    let before = version();
    server.sql(MADE_ROOM);
    let makes = async move { store.rows(&[(Kind::Lock, late.name)]).await };
    two.wait(Answer::later(makes)).unwrap();
    assert!(version() > before);
}

#[test]
fn places_whose_row_is_gone_keep_nobody_out() {
    let server = PostgresServer::start();
    let (one, two, dies) = (process(&server), process(&server), process(&server));
    granted(one.attempt(&claim(&one, "a")));
    dies.queue_claim(&claim(&dies, "a"));
    dies.die();
    server.sql("DELETE FROM lockkeeper_locks");
    let held = claim(&two, "a");
    granted(two.attempt(&held));
    let waits = claim(&one, "a");
    one.queue_claim(&waits);
    assert!(matches!(two.release(held.id), End::Freed));
    one.granted(waits.id);
}

#[test]
fn one_place_that_cannot_be_read_hides_no_other_name() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    for name in ["a", "b"] {
        granted(one.attempt(&claim(&one, name)));
        two.queue_claim(&claim(&two, name));
    }
    server.sql("UPDATE lockkeeper_line SET record = 'x' WHERE name = 'a'");
    let listed = one.list("");
    let unreadable: Vec<bool> = listed.iter().map(|entry| entry.unreadable.is_some()).collect();
    assert_eq!(unreadable, [true, false], "{listed:?}");
    assert_eq!(listed[1].waiters.len(), 1);
    assert!(one.look(Kind::Lock, "a").unreadable.is_some());
    let attempt = one.attempt(&claim(&one, "a"));
    let Attempt::Failed(error) = attempt else { panic!("{attempt:?}") };
    assert_eq!(error.kind(), crate::words::error::ErrorKind::Corrupt);
    for table in ["_locks", "_line"] {
        assert!(error.message().contains(table), "{error}");
    }
}

#[test]
fn r3_a_request_that_waits_for_its_row_is_given_back_also_after_its_time() {
    let server = PostgresServer::start();
    let proxy = Proxy::to(server.port());
    let at = format!("postgres://{USER}@127.0.0.1:{}/postgres", proxy.port());
    let one = open(&format!("{at}?{PATIENT}")).unwrap();
    let warm = claim(&one, "a");
    granted(one.attempt(&warm));
    assert!(matches!(one.release(warm.id), End::Freed));
    let wait = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let waiting = || server.sql(wait).parse::<u32>().unwrap();
    let db = Db::of(&server.url());
    db.run("BEGIN; SELECT FROM lockkeeper_locks FOR UPDATE");
    // Where its time is over before it comes to the row, once more.
    until("it waits for the row when its time is over", || {
        let give_up = one.now().plus(Duration::from_millis(400));
        let asked = Claim { give_up: Some(give_up), ..claim(&one, "a") };
        std::thread::scope(|scope| {
            let attempt = scope.spawn(|| one.attempt(&asked));
            until("it waits for the row", || waiting() == 1 || attempt.is_finished());
            proxy.cut();
            let attempt = attempt.join().unwrap();
            until("its time is over", || one.now() > give_up);
            if waiting() == 0 {
                one.withdraw(asked.id);
                return false;
            }
            assert!(matches!(attempt, Attempt::Unknown(_)), "{attempt:?}");
            let withdraws = scope.spawn(|| one.withdraw(asked.id));
            until("it waits behind it", || waiting() == 2 || withdraws.is_finished());
            db.run("COMMIT");
            withdraws.join().unwrap();
            true
        })
    });
    until("nobody waits for a row", || waiting() == 0);
    assert_eq!(server.sql("SELECT ends FROM lockkeeper_locks"), "0", "an orphan");
}

#[test]
fn r7_a_reader_that_is_left_alone_keeps_its_number() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    let (left, first) = one.take("a", Mode::Shared);
    let (leaves, _) = two.take("a", Mode::Shared);
    assert!(matches!(two.release(leaves.id), End::Freed));
    assert!(matches!(one.renew(left.id), Renewal::Extended { .. }));
    let standing = one.wait(one.engine.recheck(&[left.id])).remove(0);
    let Standing::Held(grant) = standing else { panic!("{standing:?}") };
    assert_eq!(number(&grant), number(&first));
}

#[test]
fn r5_whoever_wants_to_stand_in_line_comes_to_it_however_often_others_write_the_row() {
    let server = PostgresServer::start_with(&["fsync=off"]);
    let (one, two) = (process(&server), process(&server));
    // The first grant of a name is written otherwise than those after it.
    let (first, _) = one.take("a", Mode::Exclusive);
    assert!(matches!(one.release(first.id), End::Freed));
    let (held, _) = one.take("a", Mode::Exclusive);
    let writes = "DO $$ DECLARE ends timestamptz := clock_timestamp() + '30s'; \
                  BEGIN WHILE clock_timestamp() < ends LOOP \
                  UPDATE lockkeeper_locks SET version = version + 1; COMMIT; \
                  END LOOP; END $$";
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| server.ask(writes));
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %'";
        until("somebody writes", || server.sql(busy) == "1");
        let waiting: Vec<_> = (0..3).map(|_| claim(&two, "a")).collect();
        for claim in &waiting {
            two.queue_claim(claim);
            // Asked again, it is the same place.
            two.queue_claim(claim);
        }
        assert_eq!(server.sql("SELECT count(*) FROM lockkeeper_line"), "3");
        let stop = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'DO %'";
        server.sql(stop);
        assert!(writing.join().unwrap().is_err(), "it was stopped");
        assert!(matches!(one.release(held.id), End::Freed));
        for claim in &waiting {
            granted(two.attempt_until(claim));
            assert!(matches!(two.release(claim.id), End::Freed));
        }
    });
}

#[test]
fn r5_whoever_asks_for_what_others_take_and_free_all_the_time_has_it_or_stands_in_line() {
    let server = PostgresServer::start();
    let two = process(&server);
    let (first, _) = two.take("a", Mode::Exclusive);
    assert!(matches!(two.release(first.id), End::Freed));
    // What is read is no longer so by the time that the next commit was waited for.
    let set = "UPDATE lockkeeper_locks SET version = version + 1, number = number + 1";
    let now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let writes = format!(
        "DO $$ BEGIN LOOP \
         {set}, claim = '\\x01', since = {now}, ends = {now} + 60000000 \
         WHERE claim IS NULL AND NOT line AND record = ''; COMMIT; \
         {set}, claim = NULL, since = 0, ends = 0 WHERE claim = '\\x01'; COMMIT; END LOOP; END $$"
    );
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| server.ask(&writes));
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %'";
        until("somebody writes", || server.sql(busy) == "1");
        for _ in 0..100 {
            let claim = claim(&two, "a");
            granted(two.attempt_until(&claim));
            assert!(matches!(two.release(claim.id), End::Freed));
        }
        let stop = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'DO %'";
        server.sql(stop);
        assert!(writing.join().unwrap().is_err(), "it was stopped");
    });
}

#[test]
fn r5_whoever_waits_for_one_that_takes_and_frees_all_the_time_gets_its_turn() {
    let server = PostgresServer::start_with(&["fsync=off"]);
    let (one, two) = ([process(&server), process(&server)], process(&server));
    let (over, had) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for greedy in &one {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let next = claim(greedy, "a");
                    if let Attempt::Granted(_) = greedy.attempt_try(&next) {
                        had.fetch_add(1, Ordering::Relaxed);
                        greedy.release(next.id);
                    }
                }
            });
        }
        let mut before_it: Vec<u32> = (0..20)
            .map(|_| {
                let waits = claim(&two, "a");
                let attempt = two.attempt(&waits);
                let before = had.load(Ordering::Relaxed);
                if !matches!(attempt, Attempt::Granted(_)) {
                    granted(two.attempt_until(&waits));
                }
                let after = had.load(Ordering::Relaxed);
                assert!(matches!(two.release(waits.id), End::Freed));
                after - before
            })
            .collect();
        over.store(true, Ordering::Relaxed);
        before_it.sort_unstable();
        // Nobody overtakes who stands in line: each of them may hear of one grant of before. A
        // machine that stands still lets single ones come too late for what they were granted.
        assert!(before_it[16] <= 2, "{before_it:?}");
    });
}

#[test]
fn r3_two_copies_of_one_request_stand_in_line_once() {
    let server = PostgresServer::start();
    let (one, engine) = engine(&server);
    let other = process(&server);
    other.take("a", Mode::Exclusive);
    let waits = claim(&one, "a");
    one.queue_claim(&waits);
    let place = Place::of(&waits, None, "-", 1);
    let opened = engine.opened().unwrap().clone();
    let store = one.wait(Answer::later(async move { opened.store().await })).unwrap();
    let (late, name, kind) = (i64::MAX, waits.name.clone(), Kind::Lock);
    let joined =
        one.wait(Answer::later(async move { store.join(kind, &name, &place, late).await }));
    assert!(!joined.unwrap(), "it is there");
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper_line"), "1");
}

#[test]
fn r11_d2_a_place_that_gave_a_sign_is_granted_though_the_clock_was_set_back_since_it_was_asked() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    let waits = two.queue("a", Mode::Exclusive);
    // By a clock that was two seconds ahead.
    server.sql(
        "UPDATE lockkeeper_line \
         SET asked = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 2000000",
    );
    // Asking again is the sign.
    let attempt = two.attempt(&waits);
    assert!(matches!(attempt, Attempt::InLine(_)), "{attempt:?}");
    assert_eq!(server.sql("SELECT asked FROM lockkeeper_line"), "0");
    assert!(matches!(one.release(held.id), End::Freed));
    two.granted(waits.id);
}
