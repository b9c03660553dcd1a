//! Through a pgbouncer, in either mode.

use std::thread::Scope;
use std::time::Duration;

use lockkeeper_testkit::postgres::pooler::{Mode as Pool, Pooler};
use lockkeeper_testkit::postgres::server::{PostgresServer, USER};
use lockkeeper_testkit::proxy::Proxy;

use super::faults::OnRows;
use super::statements::Db;
use super::{claim, open, process};
use crate::engine::redis::tests::support::{PATIENCE, Process, granted, number, until};
use crate::engine::{Attempt, End, Line, Renewal};
use crate::words::claim::{Claim, Mode};
use crate::words::error::ErrorKind;

/// A process whose answers are waited for however late they are, unless `more` says how long.
fn through(pooler: &Pooler, more: &str) -> Process {
    let patience = match more {
        "" => "?request_timeout=1m",
        _ if more.contains("request_timeout") => "",
        _ => "&request_timeout=1m",
    };
    open(&format!("{}{more}{patience}", pooler.url())).expect("the server can be used")
}

/// Who has asked this and waits has one of the connections of the pooler, for as long as what is
/// answered lives.
fn keeps_one<'scope>(
    scope: &'scope Scope<'scope, '_>,
    (server, pooler): (&PostgresServer, &'scope Pooler),
    asked: &str,
) -> Db {
    let db = Db::of(&server.url());
    db.run("SELECT pg_advisory_lock(1)");
    let asks = format!("{asked}SELECT pg_advisory_xact_lock(1)");
    scope.spawn(move || pooler.ask(&asks));
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    until("it has a connection, and waits", || server.sql(waits) == "1");
    db
}

fn has_pooler_warning(process: &Process) -> bool {
    process.engine.describe().warnings.iter().any(|warning| warning.id == "pooler")
}

/// One whose lease ends after the test.
fn long(process: &Process, name: &str) -> Claim {
    Claim { ttl: PATIENCE * 5, ..claim(process, name) }
}

/// Through a pooler in transaction mode with two connections of the server's.
fn pooled(settings: &[&str]) -> (PostgresServer, Pooler) {
    let server = PostgresServer::start_with(settings);
    let pooler = Pooler::before(&server, Pool::Transaction, 2);
    (server, pooler)
}

#[test]
fn p4_behind_a_pooler_in_transaction_mode_who_waits_is_granted_without_a_word() {
    let (server, pooler) = pooled(&["log_statement=all"]);
    let (one, two, direct) = (through(&pooler, ""), through(&pooler, ""), process(&server));
    assert!(has_pooler_warning(&one) && !has_pooler_warning(&direct));
    direct.by_word_alone();
    let mut held = long(&one, "a");
    let (mut holder, mut last) = (&one, number(&granted(one.attempt(&held))));
    // Each waits for the one before it, whichever way it asks.
    for next in [&two, &direct, &one, &direct, &two] {
        let waiting = long(next, "a");
        let Attempt::InLine(place) = next.attempt(&waiting) else { panic!("somebody holds it") };
        let looks_in = place.ask_at.map(|at| at.since(next.now()));
        let soon = Duration::from_millis(250);
        assert!(std::ptr::eq(next, &direct) || looks_in <= Some(soon), "it looks in {looks_in:?}");
        assert!(matches!(holder.renew(held.id), Renewal::Extended { .. }));
        assert!(matches!(holder.release(held.id), End::Freed));
        let grant = match std::ptr::eq(next, &direct) {
            true => next.granted(waiting.id),
            false => granted(next.attempt_until(&waiting)),
        };
        assert!(number(&grant) > last, "tokens rise");
        (holder, held, last) = (next, waiting, number(&grant));
    }
    assert!(matches!(holder.release(held.id), End::Freed));
    // Nothing is left on connections that others are given next.
    let log = server.log();
    let unnamed = log.matches("execute <unnamed>").count();
    assert!(unnamed > 10, "{log}");
    // Nobody stands on a row for longer whose last message does not come.
    assert!(log.contains("SET LOCAL idle_in_transaction_session_timeout = 60000"), "{log}");
    let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'lockkeeper%' \
                AND query LIKE 'LISTEN%'";
    assert_eq!(server.sql(left), "0");
    let through_it = pooler.ask("SHOW lock_timeout");
    assert_eq!(through_it, "0", "a setting stays");
}

#[test]
fn p4_many_questions_at_once_through_two_connections_do_not_come_between_each_other() {
    let (server, pooler) = pooled(&["fsync=off"]);
    let one = through(&pooler, "");
    // Nobody renews them, and the last is asked for after all others were answered.
    let claims: Vec<_> = (0..200).map(|at| long(&one, &format!("many/{at}"))).collect();
    let attempts: Vec<_> =
        claims.iter().map(|claim| one.engine.attempt(claim, Line::Join)).collect();
    for attempt in attempts {
        granted(one.wait(attempt));
    }
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper_locks WHERE claim IS NOT NULL"), "200");
    let holds: Vec<_> = claims.iter().map(|claim| claim.id).collect();
    let ends = one.wait(one.engine.release(&holds, None)).ends;
    assert!(ends.iter().all(|end| matches!(end, End::Freed)), "{ends:?}");
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    assert_eq!(server.sql(open), "0");
}

#[test]
fn r3_p4_a_row_that_somebody_stands_on_is_waited_for_no_longer_through_a_pooler() {
    let (server, pooler) = pooled(&[]);
    let one = through(&pooler, "?request_timeout=8s");
    let (held, _) = one.take("a", Mode::Exclusive);
    assert!(matches!(one.release(held.id), End::Freed));
    std::thread::scope(|scope| {
        let stands = "BEGIN; SELECT FROM lockkeeper_locks FOR UPDATE; SELECT pg_sleep(600)";
        let blocker = scope.spawn(|| server.ask(stands));
        let standing = OnRows::on(&server);
        let attempt = one.attempt(&claim(&one, "a"));
        let Attempt::Failed(error) = attempt else { panic!("{attempt:?}") };
        assert!(error.is_temporary() && error.message().contains("stands"), "{error}");
        drop(standing);
        assert!(blocker.join().unwrap().is_err(), "it stood there still, and was stopped");
    });
    one.take("a", Mode::Exclusive);
}

#[test]
fn p4_a_pooler_in_session_mode_lets_words_through_where_the_url_says_so() {
    let server = PostgresServer::start();
    let pooler = Pooler::before(&server, Pool::Session, 4);
    let (one, two) = (through(&pooler, "?pooler=session"), through(&pooler, "?pooler=session"));
    let cautious = through(&pooler, "");
    assert!(!has_pooler_warning(&one) && has_pooler_warning(&cautious));
    let (held, _) = one.take("a", Mode::Exclusive);
    let (waiting, last) = (claim(&two, "a"), claim(&cautious, "a"));
    two.queue_claim(&waiting);
    cautious.queue_claim(&last);
    assert!(matches!(one.release(held.id), End::Freed));
    two.granted(waiting.id);
    assert!(matches!(two.renew(waiting.id), Renewal::Extended { .. }));
    assert!(matches!(two.release(waiting.id), End::Freed));
    granted(cautious.attempt_until(&last));
}

#[test]
fn p4_who_waits_is_granted_at_once_though_a_pooler_comes_between_meanwhile() {
    let (server, pooler) = pooled(&[]);
    let (way, holder) = (Proxy::to(server.port()), process(&server));
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", way.port(), pooler.port());
    let url = format!("postgres://{USER}@{hosts}/postgres?request_timeout=1m");
    let one = open(&url).expect("the server answers");
    assert!(!has_pooler_warning(&one));
    let (held, waiting) = (long(&holder, "a"), long(&one, "a"));
    granted(holder.attempt(&held));
    one.queue_claim(&waiting);
    way.refuse(true);
    way.cut();
    one.link(true);
    assert!(has_pooler_warning(&one));
    // As the keeper does when the server is back.
    one.queue_claim(&waiting);
    assert!(matches!(holder.release(held.id), End::Freed));
    granted(one.attempt_until(&waiting));
}

#[test]
fn g2_a_search_path_that_another_client_left_behind_a_pooler_finds_no_other_tables() {
    let (server, pooler) = pooled(&[]);
    drop(open(&format!("{}?schema=other", server.url())).expect("it makes them"));
    let direct = process(&server);
    let (held, _) = direct.take("a", Mode::Exclusive);
    std::thread::scope(|scope| {
        // Both connections: one waits while the other is asked.
        let _waits = keeps_one(scope, (&server, &pooler), "SET search_path = other; ");
        pooler.ask("SET search_path = other");
    });
    assert_eq!(pooler.ask("SHOW search_path"), "other", "it would be seen");
    let one = through(&pooler, "");
    let Attempt::Busy(holder) = one.attempt_try(&claim(&one, "a")) else { panic!("it is held") };
    assert_eq!(holder.and_then(|holder| holder.claim), Some(held.id));
}

#[test]
fn p4_a_url_that_says_wrongly_what_a_pooler_does_is_told_so() {
    let (server, pooler) = pooled(&[]);
    let one = through(&pooler, "?pooler=session");
    std::thread::scope(|scope| {
        // On the connection that was used last, where its statements are.
        let _somebody_elses = keeps_one(scope, (&server, &pooler), "");
        let attempt = one.attempt(&claim(&one, "a"));
        let Attempt::Failed(error) = attempt else { panic!("{attempt:?}") };
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.message().contains("without pooler=session"), "{error}");
    });
}

#[test]
fn r4_a_renewal_that_a_pooler_does_not_answer_changes_nothing_and_the_next_one_is() {
    let (server, pooler) = pooled(&[]);
    // This one makes the tables, and the pooler its connections.
    drop(through(&pooler, ""));
    let one = through(&pooler, "?request_timeout=8s");
    let held = long(&one, "a");
    granted(one.attempt(&held));
    server.stop();
    assert!(matches!(one.renew(held.id), Renewal::Unknown(_)));
    server.go_on();
    until("it is renewed again", || matches!(one.renew(held.id), Renewal::Extended { .. }));
    assert!(matches!(one.release(held.id), End::Freed));
}

/// What the transactions say that change a place say for themselves: it is kept in `commits`.
const COMMITS: &str = "\
    CREATE TABLE commits (at serial, waits text); \
    CREATE FUNCTION commits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
      INSERT INTO commits (waits) VALUES (current_setting('synchronous_commit')); RETURN NULL; \
    END $$; \
    CREATE CONSTRAINT TRIGGER commits AFTER UPDATE OR DELETE ON lockkeeper_line \
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION commits()";

#[test]
fn r11_a_sign_of_life_waits_for_no_disk_and_no_standby() {
    let (server, pooler) = pooled(&[]);
    let held = process(&server);
    granted(held.attempt(&long(&held, "a")));
    server.sql(COMMITS);
    for waiter in [process(&server), through(&pooler, "")] {
        let waits = long(&waiter, "a");
        // Of its own accord nobody here looks once more.
        let ask = || waiter.wait(waiter.engine.attempt(&waits, Line::Join));
        assert!(matches!(ask(), Attempt::InLine(_)));
        server.sql("UPDATE lockkeeper_line SET asked = alive");
        server.sql("TRUNCATE commits");
        let attempt = ask();
        assert!(matches!(attempt, Attempt::InLine(_)), "{attempt:?}");
        assert_eq!(server.sql("SELECT asked FROM lockkeeper_line"), "0");
        waiter.withdraw(waits.id);
        let commits = server.sql("SELECT string_agg(waits, ' ' ORDER BY at) FROM commits");
        assert_eq!(commits, "off on", "the sign, and what came after it");
    }
}
