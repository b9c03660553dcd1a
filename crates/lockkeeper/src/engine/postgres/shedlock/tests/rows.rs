//! The table: how it is made, which are refused, what names it takes.

use lockkeeper_testkit::postgres::server::PostgresServer;

use super::server::{claim, open, process, refused};
use crate::engine::redis::tests::support::{granted, until};
use crate::engine::{Attempt, End, Registration, Renewal};
use crate::words::error::ErrorKind;

const COLUMNS: &str = "name varchar(64) primary key, lock_until timestamp not null, \
                       locked_at timestamp not null, locked_by varchar(255) not null";

#[test]
fn the_table_is_made_as_shedlocks_documentation_has_it() {
    let server = PostgresServer::start();
    server.sql(&format!("CREATE TABLE theirs ({COLUMNS})"));
    let url = format!("{}?layout=shedlock", server.url());
    std::thread::scope(|scope| {
        let opened: Vec<_> = (0..4).map(|_| scope.spawn(|| open(&url).map(drop))).collect();
        opened.into_iter().for_each(|opened| opened.join().unwrap().unwrap());
    });
    let columns = |table: &str| {
        server.sql(&format!(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute \
             WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum"
        ))
    };
    assert_eq!(columns("shedlock"), columns("theirs"));
    let named = format!("{url}&schema=Odd%20%22name&table=it's");
    granted(open(&named).unwrap().attempt(&claim(&process(&server), "a")));
    assert_eq!(server.sql("SELECT count(*) FROM \"Odd \"\"name\".\"it's\""), "1");
}

#[test]
fn what_schema_prints_is_all_that_its_user_needs() {
    let server = PostgresServer::start();
    server.sql("CREATE ROLE small LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    let url = format!(
        "postgres://small@127.0.0.1:{}/postgres?layout=shedlock&schema=s&create=false",
        server.port()
    );
    server.sql(&Registration::schema_of(&url).unwrap());
    let small = open(&url).unwrap();
    let held = claim(&small, "a");
    granted(small.attempt(&held));
    assert!(matches!(small.renew(held.id), Renewal::Extended { .. }));
    assert!(matches!(small.release(held.id), End::Freed));
    small.wait(small.engine.clear_probe(&held.name)).unwrap();
    assert_eq!(server.sql("SELECT count(*) FROM s.shedlock"), "0");
}

#[test]
fn a_table_that_is_missing_or_not_shedlocks_is_refused_in_one_line() {
    let server = PostgresServer::start();
    server.sql("CREATE TABLE hand (name text primary key, until timestamp)");
    server.sql(&format!("CREATE TABLE more ({COLUMNS}, tenant int not null)"));
    server.sql(&format!("CREATE TABLE keyless ({})", COLUMNS.replace("primary key", "")));
    server.sql("CREATE VIEW seen AS SELECT * FROM keyless");
    for (options, says) in [
        ("create=false", "the table \"shedlock\" is not in the server at"),
        ("create=false", "lockkeeper schema"),
        ("table=hand", "the table \"hand\" in the server at"),
        ("table=hand", "is not one of ShedLock's: it has no column locked_by"),
        ("table=more", "its column tenant is not null and has no default"),
        ("table=keyless", "its column name is not the primary key"),
        ("table=seen", "its column name is not the primary key"),
    ] {
        let error = refused(&format!("{}?layout=shedlock&{options}", server.url()));
        assert_eq!(error.kind(), ErrorKind::Refused, "{options}: {error}");
        let said = error.message();
        assert!(said.contains(says) && !said.contains('\n'), "{options}: {error}");
    }
    for (options, says) in [
        ("layout=shedlock&prefix=x", "prefix belongs to layout=table"),
        ("table=x", "table belongs to layout=shedlock"),
        ("layout=shedlock&table=a%7Bnow%7D", "table has neither braces"),
    ] {
        let error = refused(&format!("{}?{options}", server.url()));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{options}: {error}");
        assert!(error.message().contains(says), "{options}: {error}");
    }
}

#[test]
fn times_with_a_zone_and_in_milliseconds_are_the_same_lock_times() {
    let server = PostgresServer::start();
    // A server far from UTC, and a client that says so.
    server.sql("ALTER DATABASE postgres SET timezone = 'Asia/Tokyo'");
    for (table, kind) in [
        ("plain", "timestamp"),
        ("zoned", "timestamptz"),
        ("short", "timestamp(3)"),
        ("mixed", "timestamp(3) with time zone"),
    ] {
        server.sql(&format!("CREATE TABLE {table} ({})", COLUMNS.replace("timestamp", kind)));
        let url = format!("{}?layout=shedlock&table={table}", server.url());
        let (one, two) = (open(&url).unwrap(), open(&url).unwrap());
        let held = claim(&one, "a");
        granted(one.attempt(&held));
        let utc = if kind.contains("z") { "clock_timestamp()" } else { "now() AT TIME ZONE 'utc'" };
        let left = server.sql(&format!(
            "SELECT lock_until - {utc} BETWEEN interval '30 s' AND interval '60.1 s' FROM {table}"
        ));
        assert_eq!(left, "t", "{kind}");
        assert!(matches!(two.attempt_try(&claim(&two, "a")), Attempt::Busy(Some(_))), "{kind}");
        assert!(matches!(one.renew(held.id), Renewal::Extended { .. }), "{kind}");
        assert!(matches!(one.release(held.id), End::Freed), "{kind}");
        until("it is free", || matches!(two.attempt_try(&claim(&two, "a")), Attempt::Granted(_)));
    }
}

#[test]
fn a_name_that_the_column_cannot_hold_is_refused_and_every_other_one_is_a_lock() {
    let server = PostgresServer::start();
    let one = process(&server);
    let long = "🔑".repeat(64);
    for name in ["a", "A", "a ", "é", "e\u{301}", "'; DROP TABLE x", "\\x61", "%", "_", &long] {
        granted(one.attempt_try(&claim(&one, name)));
    }
    assert_eq!(one.list("").len(), 10);
    assert_eq!(one.list("a").len(), 2);
    assert!(one.list("%").len() == 1, "a text, and not a pattern");
    let attempt = one.attempt(&claim(&one, &format!("{long}x")));
    let Attempt::Failed(error) = attempt else { panic!("{attempt:?}") };
    assert_eq!(error.kind(), ErrorKind::InvalidName);
    assert!(error.message().contains("64 characters at most"), "{error}");
    let narrow = COLUMNS.replace("(64)", "(3)");
    server.sql(&format!("CREATE TABLE narrow ({narrow})"));
    let narrow = open(&format!("{}?layout=shedlock&table=narrow", server.url())).unwrap();
    granted(narrow.attempt(&claim(&narrow, "abc")));
    assert!(matches!(narrow.attempt(&claim(&narrow, "abcd")), Attempt::Failed(_)));
}
