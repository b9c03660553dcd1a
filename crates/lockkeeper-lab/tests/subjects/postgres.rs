//! A PostgreSQL server of a test's own, as a subject of the suite.

use std::sync::{Arc, Mutex};

use lockkeeper_lab::conformance::Subject;
use lockkeeper_testkit::postgres::pooler::{Mode, Pooler};
use lockkeeper_testkit::postgres::server::PostgresServer;

use super::{HELPER, LEASES, PATIENT};

/// A server of its own whose commits reach the disk, with the tables of the layout `table`.
pub fn postgres(row: &str, options: &str) -> Subject {
    keeping_in(row, options, |server| {
        drop(server.sql("TRUNCATE lockkeeper_locks, lockkeeper_line"));
    })
}

/// The same with ShedLock's table.
pub fn shedlock(row: &str, options: &str) -> Subject {
    keeping_in(row, options, |server| drop(server.sql("TRUNCATE shedlock")))
}

/// The layout `table` through a pooler in transaction mode.
pub fn postgres_pooled() -> Subject {
    let server = PostgresServer::start();
    let pooler = Pooler::before(&server, Mode::Transaction, 8);
    let urls = LEASES.map(|lease| format!("{}?{lease}&{PATIENT}", pooler.url()));
    let wipe = |server: &mut PostgresServer| {
        drop(server.sql("TRUNCATE lockkeeper_locks, lockkeeper_line"));
    };
    kept("postgres, through a pooler", urls, server, wipe).keeping(Arc::new(pooler))
}

fn keeping_in(row: &str, options: &str, wipe: fn(&mut PostgresServer)) -> Subject {
    let server = PostgresServer::start();
    let urls = LEASES.map(|lease| format!("{}?{lease}&{PATIENT}{options}", server.url()));
    kept(row, urls, server, wipe)
}

fn kept(
    row: &str,
    [url, brief]: [String; 2],
    server: PostgresServer,
    wipe: fn(&mut PostgresServer),
) -> Subject {
    let server = Arc::new(Mutex::new(server));
    let with = |deed: fn(&mut PostgresServer)| {
        let server = server.clone();
        move || {
            let server = server.clone();
            async move { deed(&mut server.lock().expect("no test panics while it has it")) }
        }
    };
    Subject::url(row, url)
        .briefly(brief)
        .helper(HELPER)
        .effort(20)
        .wiped_by(with(wipe))
        .restarted_by(with(PostgresServer::restart))
        .cut_by(with(|server| server.stop()), with(|server| server.go_on()))
        .keeping(server)
}

/// The same with advisory locks. A server that has just started grants none for as long as a holder
/// of before could go on: that is waited for here.
pub fn postgres_session() -> Subject {
    let server = PostgresServer::start();
    let url = format!("{}?layout=session&names=hash&session_timeout=4s", server.url());
    let of_us = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                 WHERE application_name LIKE 'lockkeeper:%'";
    while server.sql("SELECT clock_timestamp() - pg_postmaster_start_time() < '4s'") == "t" {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let server = Arc::new(Mutex::new(server));
    let with = |deed: fn(&mut PostgresServer)| {
        let server = server.clone();
        move || {
            let server = server.clone();
            async move { deed(&mut server.lock().expect("no test panics while it has it")) }
        }
    };
    let wiped = server.clone();
    Subject::url("postgres, layout=session", url)
        .helper(HELPER)
        .effort(20)
        .wiped_by(move || {
            let server = wiped.clone();
            async move {
                drop(server.lock().expect("no test panics while it has it").sql(of_us));
            }
        })
        .cut_by(with(|server| server.stop()), with(|server| server.go_on()))
        .keeping(server)
}
