//! The transactions of a holder: what it does in the same database, under its hold.

use std::future::poll_fn;
use std::task::Poll;

use lockkeeper_testkit::postgres::server::{PostgresServer, USER};
use tokio_postgres::{Client, NoTls};

use super::{claim, open, process};
use crate::Locks;
use crate::engine::redis::tests::support::{Process, granted, number, until};
use crate::engine::{Attempt, Change, End, Registration, Renewal, Standing};
use crate::words::claim::Claim;
use crate::words::error::ErrorKind;
use crate::words::name::{Kind, Name};
use crate::words::statement::Statement;

/// A connection of the program's own, on a thread of its own.
pub(super) struct Db {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Db {
    pub(super) fn of(url: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let dialled = runtime.block_on(tokio_postgres::connect(url, NoTls));
        let (client, connection) = dialled.unwrap();
        runtime.spawn(connection);
        Self { runtime, client }
    }

    pub(super) fn run(&self, sql: &str) {
        self.runtime.block_on(self.client.batch_execute(sql)).unwrap();
    }

    /// Whether the statement found its row.
    pub(super) fn holds(&self, statement: &Statement) -> bool {
        let found =
            self.runtime.block_on(self.client.query(
                statement.text(),
                &[&statement.kind(), &statement.name(), &statement.number()],
            ));
        found.unwrap().len() == 1
    }

    /// The error's code.
    fn fails(&self, statement: &Statement) -> String {
        let failed = self.runtime.block_on(self.client.batch_execute(&statement.to_string()));
        failed.unwrap_err().code().unwrap().code().to_owned()
    }
}

/// It is waited until it gives a row up.
fn hasty(server: &PostgresServer) -> Process {
    open(&format!("{}?request_timeout=3s", server.url())).unwrap()
}

pub(super) fn statement(process: &Process, held: &Claim) -> Statement {
    process.wait(process.engine.statement(held.id)).unwrap()
}

/// The statements in SQL of a page, with values in place of their names.
fn of_page(page: &str) -> Vec<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let blocks = text.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    let valued = |sql: &str| sql.replace(":token", "7").replace(":sku", "'sku-42'");
    blocks.filter(|sql| sql.contains(":token")).map(valued).collect()
}

#[test]
fn the_checks_of_a_token_in_the_documentation_run_as_they_stand() {
    let server = PostgresServer::start();
    server.sql("CREATE TABLE stock (sku text PRIMARY KEY, pieces int)");
    server.sql("INSERT INTO stock VALUES ('sku-42', 5), ('sku-43', 5)");
    let (check, seal) = (of_page("SAFETY.md"), of_page("docs/fencing.md"));
    assert_eq!((check.len(), seal.len()), (1, 2));
    assert_eq!(check[0], seal[0], "both pages have the same");
    let (column, first_read) = seal[1].split_once('\n').unwrap();
    server.sql(column);
    assert_eq!(server.sql(first_read).trim(), "5");
    server.sql(&check[0]);
    let stock = || server.sql("SELECT sku, pieces, fence FROM stock ORDER BY sku");
    assert_eq!(stock().trim(), "sku-42|4|7\nsku-43|5|0");
    // Somebody later was there.
    server.sql("UPDATE stock SET fence = 8");
    let later = stock();
    server.sql(&check[0]);
    assert_eq!(stock(), later);
}

fn is_busy(process: &Process) -> bool {
    matches!(process.attempt_try(&claim(process, "a")), Attempt::Busy(_))
}

/// Ends a lease now.
pub(super) fn expire(server: &PostgresServer) {
    server.sql("UPDATE lockkeeper_locks SET ends = 1");
}

#[test]
fn a_hold_passes_only_once_the_transaction_under_it_has_ended() {
    let server = PostgresServer::start();
    let (one, two, three) = (process(&server), process(&server), process(&server));
    let held = claim(&one, "a");
    let first = number(&granted(one.attempt(&held)));
    let statement = statement(&one, &held);
    assert_eq!(u64::try_from(statement.number()).unwrap(), first);
    let db = Db::of(&server.url());
    db.run("BEGIN");
    assert!(db.holds(&statement));
    for _ in 0..3 {
        assert!(matches!(one.renew(held.id), Renewal::Extended { .. }), "renewals go on");
    }
    expire(&server);
    assert!(is_busy(&two), "its lease is over, and its transaction is not");
    let waiting = claim(&two, "a");
    let attempt = two.attempt(&waiting);
    assert!(matches!(attempt, Attempt::InLine(_)), "{attempt:?}");
    assert!(is_busy(&three), "somebody stands in line");
    let name = Name::new("a").unwrap();
    let force = Change::Force(Kind::Lock, name, Vec::new());
    three.wait(three.engine.write(&force)).unwrap_or(false);
    let stored = || server.sql("SELECT number FROM lockkeeper_locks").parse::<u64>().unwrap();
    assert_eq!(stored(), first, "nothing made it pass");
    db.run("COMMIT");
    let standing = two.wait(two.engine.recheck(&[waiting.id])).remove(0);
    assert!(matches!(standing, Standing::Held(_)), "{standing:?}");
    assert!(stored() > first);
    db.run("BEGIN");
    assert!(!db.holds(&statement), "the hold is gone");
    db.run("ROLLBACK");
    let gone = one.wait(one.engine.statement(held.id)).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Lost);
}

#[test]
fn a_statement_finds_its_row_whatever_the_search_path_of_the_connection() {
    let server = PostgresServer::start();
    let decoy = "CREATE TABLE other.lockkeeper_locks (kind smallint, name bytea, number bigint)";
    server.sql(&format!("CREATE SCHEMA other; {decoy}"));
    for url in [server.url(), format!("{}?schema=Some%20one", server.url())] {
        let one = open(&url).unwrap();
        let held = claim(&one, "a");
        granted(one.attempt(&held));
        let statement = statement(&one, &held);
        let db = Db::of(&server.url());
        db.run("SET search_path = other; BEGIN");
        assert!(db.holds(&statement), "{statement}");
        db.run(&statement.to_string());
        db.run("COMMIT");
    }
}

#[test]
fn a_release_waits_for_the_transaction_and_frees_the_lock_after_it() {
    let server = PostgresServer::start();
    let (one, two) = (hasty(&server), process(&server));
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let statement = statement(&one, &held);
    let db = Db::of(&server.url());
    db.run("BEGIN");
    assert!(db.holds(&statement));
    let early = one.release(held.id);
    assert!(matches!(early, End::Unknown(_)), "{early:?}");
    assert!(matches!(two.attempt_try(&claim(&two, "a")), Attempt::Busy(_)));
    db.run("COMMIT");
    until("it is given back", || !matches!(one.release(held.id), End::Unknown(_)));
    granted(two.attempt_try(&claim(&two, "a")));
}

#[test]
fn at_repeatable_read_a_renewal_is_no_conflict_and_a_passing_is() {
    let server = PostgresServer::start();
    let one = process(&server);
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let statement = statement(&one, &held);
    let db = Db::of(&server.url());
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM lockkeeper_locks";
    db.run(begin);
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
    assert!(db.holds(&statement));
    db.run("ROLLBACK");
    db.run(begin);
    assert!(matches!(one.release(held.id), End::Freed));
    assert_eq!(db.fails(&statement), "40001");
    db.run("ROLLBACK");
}

#[test]
fn whoever_locks_the_whole_row_is_no_holder_and_nobody_is_told_that_it_is_busy() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), hasty(&server));
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    assert!(matches!(one.release(held.id), End::Freed));
    let db = Db::of(&server.url());
    db.run("BEGIN; SELECT FROM lockkeeper_locks FOR UPDATE");
    let attempt = two.attempt_try(&claim(&two, "a"));
    let Attempt::Failed(error) = attempt else { panic!("{attempt:?}") };
    assert!(error.kind() == ErrorKind::Refused && error.is_outage(), "{error}");
    db.run("COMMIT");
    two.granted_at_last(&claim(&two, "a"));
}

#[test]
fn an_index_that_is_missing_is_left_to_the_tables_owner() {
    let server = PostgresServer::start_with(&["log_statement=ddl"]);
    drop(process(&server));
    server.sql("DROP INDEX lockkeeper_locks_number");
    let from = server.log().len();
    let one = process(&server);
    let made = server.log()[from..].lines().filter(|line| line.contains("CREATE")).count();
    assert_eq!(made, 0, "on a large table nobody could lock meanwhile: {}", server.log());
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let refused = one.wait(one.engine.statement(held.id)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let make = refused.message().split('`').nth(3).unwrap().to_owned();
    assert!(make.starts_with("CREATE UNIQUE INDEX CONCURRENTLY"), "{refused}");
    let warned = one.engine.describe().warnings.into_iter().find(|warned| warned.id == "index");
    assert!(warned.unwrap().text.contains(&make));
    assert!(matches!(one.release(held.id), End::Freed));
    server.sql(&make);
    let two = process(&server);
    assert!(two.engine.describe().warnings.is_empty());
    let held = claim(&two, "a");
    granted(two.attempt(&held));
    statement(&two, &held);
}

#[test]
fn another_role_runs_the_statement_with_no_more_than_it_needs() {
    let server = PostgresServer::start();
    let one = process(&server);
    server.sql("CREATE ROLE app LOGIN; GRANT SELECT ON lockkeeper_locks TO app");
    let printed = Registration::schema_of(&server.url()).unwrap();
    let grant = printed.lines().last().unwrap().split_once(", and ").unwrap().1;
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let statement = statement(&one, &held);
    let db = Db::of(&server.url().replace(USER, "app"));
    db.run("BEGIN");
    assert_eq!(db.fails(&statement), "42501", "reading is not enough");
    db.run("ROLLBACK");
    server.sql(&grant.replace("that_role", "app"));
    db.run("BEGIN READ ONLY");
    assert_eq!(db.fails(&statement), "25006");
    db.run("ROLLBACK; BEGIN");
    assert!(db.holds(&statement));
    expire(&server);
    assert!(is_busy(&process(&server)));
    db.run("COMMIT");
}

#[tokio::test]
async fn r9_a_hold_whose_statement_was_given_out_is_not_handed_to_the_next_task() {
    let server = PostgresServer::start();
    let locks = Locks::open(&format!("{}?handoff_time=60s", server.url())).await.unwrap();
    let stock = locks.mutex("a");
    for given_out in [false, true] {
        let first = stock.lock().await.unwrap();
        let before = first.token().unwrap().get() / 64;
        if given_out {
            let statement = first.statement().await.unwrap();
            assert_eq!(u64::try_from(statement.number()).unwrap(), before);
        }
        let mut next = Box::pin(async { stock.lock().await.unwrap() });
        let waits = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_pending())).await;
        assert!(waits, "the next task stands behind the first");
        drop(first);
        let next = next.await;
        assert_eq!(next.token().unwrap().get() / 64 > before, given_out);
        assert!(next.release().await.is_clean());
    }
    let reader = locks.rwlock("a").read().await.unwrap();
    assert_eq!(reader.statement().await.unwrap_err().kind(), ErrorKind::Unsupported);
    drop(reader);
    _ = locks.close().await;
}
