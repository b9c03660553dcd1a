//! The engine on a server of its own.

mod at_exit;
mod costs;
pub(super) mod faults;
mod forget;
mod hindered;
mod kept;
mod pooled;
pub(super) mod refusals;
mod renewals;
mod statements;

use std::time::{Duration, Instant};

use lockkeeper_testkit::postgres::server::{PostgresServer, USER};
use lockkeeper_testkit::proxy::{Fault, Proxy, Way};

use self::faults::OnRows;
use crate::engine::redis::tests::support::{PATIENCE, Process, engine_of, granted, number, until};
use crate::engine::{Attempt, Change, End, Engine, Event, Query, Registration, Renewal};
use crate::words::claim::{Claim, Mode};
use crate::words::error::{ErrorKind, Result};
use crate::words::guarantee::Class;
use crate::words::id::ClaimId;
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

/// The lease of every test: longer than one takes.
pub(super) const TTL: Duration = Duration::from_secs(60);

/// What a URL says whose answers are waited for however late they are.
const PATIENT: &str = "connect_timeout=1m&request_timeout=1m";

fn engine(url: &str) -> Result<Box<dyn Engine>> {
    engine_of(url, TTL)
}

pub(super) fn open(url: &str) -> Result<Process> {
    Process::around(engine(url)?.into())
}

fn process(server: &PostgresServer) -> Process {
    open(&format!("{}?request_timeout=20s", server.url())).expect("the server can be used")
}

pub(super) fn claim(process: &Process, name: &str) -> Claim {
    Claim { ttl: TTL, ..process.exclusive(name) }
}

/// The statements that the server was asked to run since its log had so many bytes.
fn statements(server: &PostgresServer, from: usize) -> Vec<String> {
    let log = server.log();
    let lines = log[from.min(log.len())..].lines();
    let ran = lines.filter_map(|line| line.split_once("execute ").map(|(_, ran)| ran.to_owned()));
    ran.filter_map(|ran| ran.split_once(": ").map(|(_, ran)| ran.to_owned())).collect()
}

#[test]
fn an_uncontended_cycle_is_two_statements_and_notifies_nobody() {
    let server = PostgresServer::start_with(&["log_statement=all"]);
    let one = process(&server);
    let first = claim(&one, "a");
    granted(one.attempt(&first));
    assert!(matches!(one.release(first.id), End::Freed));
    let from = server.log().len();
    for _ in 0..3 {
        let next = claim(&one, "a");
        granted(one.attempt(&next));
        assert!(matches!(one.renew(next.id), Renewal::Extended { ttl: TTL, .. }));
        assert!(matches!(one.release(next.id), End::Freed));
    }
    let ran = statements(&server, from);
    assert_eq!(ran.len(), 9, "{ran:#?}");
    assert!(ran.iter().all(|ran| !ran.contains("pg_notify")), "{ran:#?}");
}

#[test]
fn a_refused_try_writes_nothing() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let version = || server.sql("SELECT version, xmin FROM lockkeeper_locks");
    let before = version();
    let Attempt::Busy(Some(holder)) = two.attempt_try(&claim(&two, "a")) else {
        panic!("it is held")
    };
    assert_eq!((holder.claim, holder.pid), (Some(held.id), Some(std::process::id())));
    assert_eq!(version(), before);
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper_line"), "0");
}

#[test]
fn a_release_grants_to_the_first_in_line_and_tells_its_process() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    let held = claim(&one, "a");
    let first = number(&granted(one.attempt(&held)));
    let waiting = claim(&two, "a");
    two.by_word_alone();
    two.queue_claim(&waiting);
    assert!(matches!(one.release(held.id), End::Freed));
    let pushed = two.granted(waiting.id);
    let lease = pushed.lease.expect("a lease");
    assert!(lease.confirm && lease.ttl <= Duration::from_secs(2), "{lease:?}");
    assert!(number(&pushed) > first);
    assert!(matches!(two.renew(waiting.id), Renewal::Extended { ttl: TTL, .. }));
    assert!(matches!(one.release(held.id), End::NotOurs));
    assert!(matches!(two.release(waiting.id), End::Freed));
    assert_eq!(server.sql("SELECT record, ends FROM lockkeeper_locks"), "|0");
}

#[test]
fn every_passing_changes_the_number_and_no_renewal_does() {
    let server = PostgresServer::start();
    let one = process(&server);
    let stored = || server.sql("SELECT number FROM lockkeeper_locks").parse::<u64>().unwrap();
    let held = claim(&one, "a");
    let mut last = number(&granted(one.attempt(&held)));
    assert_eq!(stored(), last);
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
    assert_eq!(stored(), last);
    assert!(matches!(one.release(held.id), End::Freed));
    for taken in [true, false] {
        assert!(stored() > last);
        let held = claim(&one, "a");
        last = number(&granted(one.attempt(&held)));
        let name = Name::new("a").unwrap();
        let done = match taken {
            true => one.change(&Change::Force(Kind::Lock, name, Vec::new())),
            false => matches!(one.release(held.id), End::Freed),
        };
        assert!(done);
    }
    assert!(stored() > last);
}

#[test]
fn a_lock_taken_away_is_told_to_its_holder() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let shown = two.look(Kind::Lock, "a").holders;
    assert_eq!(shown[0].claim, Some(held.id));
    assert!(two.change(&Change::Force(Kind::Lock, Name::new("a").unwrap(), shown)));
    one.event("the loss", |event| {
        matches!(event, Event::Ended { why: Lost::TakenAway, .. }).then_some(())
    });
}

/// A process behind a proxy that has asked once, so that a fault meets what it is meant for.
pub(super) fn proxied(server: &PostgresServer, options: &str) -> (Proxy, Process) {
    let proxy = Proxy::to(server.port());
    let at = format!("postgres://{USER}@127.0.0.1:{}/postgres", proxy.port());
    let process = open(&format!("{at}?request_timeout=5s{options}")).expect("it can be used");
    let warm = claim(&process, "a");
    granted(process.attempt(&warm));
    assert!(matches!(process.release(warm.id), End::Freed));
    (proxy, process)
}

#[test]
fn r4_an_acquire_whose_answer_was_lost_is_unknown_and_asked_again_holds_once() {
    let server = PostgresServer::start();
    let (proxy, one) = proxied(&server, "");
    proxy.set(Way::Down, Fault { cut_after: Some(0), ..Fault::default() });
    let held = claim(&one, "a");
    let attempt = one.attempt(&held);
    assert!(matches!(attempt, Attempt::Unknown(_)), "{attempt:?}");
    until("the server carried it out", || {
        server.sql("SELECT record FROM lockkeeper_locks").contains(&held.id.to_string())
    });
    proxy.set(Way::Down, Fault::default());
    until("it is granted", || matches!(one.attempt(&held), Attempt::Granted(_)));
    assert!(matches!(one.release(held.id), End::Freed));
    // A copy of the request may still be on its way, and is refused.
    until("nobody has it", || server.sql("SELECT ends FROM lockkeeper_locks") == "0");
    granted(one.attempt(&claim(&one, "a")));
}

#[test]
fn r4_a_latch_whose_answer_was_lost_is_unknown_and_counted_once_by_the_same_count() {
    let server = PostgresServer::start();
    let (proxy, one) = proxied(&server, "");
    // It reads, and then it writes: the answer to that is the one to be lost. Of how many bytes
    // both are is tried.
    let lost = (0..80).rev().find_map(|bytes| {
        let name = Name::new(format!("l{bytes}")).unwrap();
        assert!(one.change(&Change::LatchSet(name.clone(), 2)));
        let count = Change::LatchCountDown(name.clone(), ClaimId::fresh());
        proxy.set(Way::Down, Fault { cut_after: Some(16 * bytes), ..Fault::default() });
        let done = one.wait(one.engine.write(&count));
        proxy.set(Way::Down, Fault::default());
        done.err().map(|error| (name, count, error))
    });
    let (name, count, error) = lost.expect("an answer was lost");
    let record = format!("SELECT record FROM lockkeeper_locks WHERE name = '{name}'");
    assert!(server.sql(&record).contains("\nd "), "it was counted");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    let mut open = None;
    until("it is answered", || {
        open = one.wait(one.engine.write(&count)).ok();
        open.is_some()
    });
    assert_eq!(open, Some(false), "it counts once");
    assert!(one.change(&Change::LatchCountDown(name, ClaimId::fresh())));
}

#[test]
fn r4_a_release_whose_answer_was_lost_is_unknown_and_frees_only_its_own_grant() {
    let server = PostgresServer::start();
    let ((proxy, one), two) = (proxied(&server, ""), process(&server));
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    proxy.set(Way::Down, Fault { cut_after: Some(0), ..Fault::default() });
    assert!(matches!(one.release(held.id), End::Unknown(_)));
    let next = claim(&two, "a");
    granted(two.attempt_until(&next));
    proxy.set(Way::Down, Fault::default());
    until("the release is answered", || !matches!(one.release(held.id), End::Unknown(_)));
    assert!(matches!(two.renew(next.id), Renewal::Extended { .. }));
}

#[test]
fn p1_a_connection_that_the_server_ends_is_made_again_and_holds_go_on() {
    let server = PostgresServer::start();
    let one = process(&server);
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    server.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE \
         'lockkeeper:%'",
    );
    one.link(false);
    one.link(true);
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
}

#[test]
fn somebody_elses_transaction_on_the_row_is_no_answer_and_costs_no_hold() {
    let server = PostgresServer::start();
    let one = open(&format!("{}?request_timeout=16s", server.url())).unwrap();
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let begin = "BEGIN; SELECT FROM lockkeeper_locks FOR UPDATE; SELECT pg_sleep(600)";
    std::thread::scope(|scope| {
        let blocker = scope.spawn(|| server.ask(begin));
        let standing = OnRows::on(&server);
        assert!(matches!(one.renew(held.id), Renewal::Unknown(_)), "unknown, and never gone");
        drop(standing);
        assert!(blocker.join().unwrap().is_err(), "it was stopped");
    });
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
}

#[test]
fn r3_a_request_that_is_late_locks_for_nobody() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    let mut asked = claim(&one, "a");
    asked.give_up = Some(one.now().minus(Duration::from_millis(100)));
    let attempt = one.attempt(&asked);
    let Attempt::Failed(error) = attempt else { panic!("{attempt:?}") };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    granted(two.attempt(&claim(&two, "a")));
}

#[test]
fn names_are_bytes_and_every_one_is_a_lock_of_its_own() {
    let server = PostgresServer::start();
    let one = process(&server);
    let long = "🔑".repeat(256);
    for name in ["a", "A", "a ", "é", "e\u{301}", "'; DROP TABLE x", "\\x61", "%", "_", &long] {
        granted(one.attempt_try(&claim(&one, name)));
    }
    assert_eq!(one.list("").len(), 10);
    assert_eq!(one.list("a").len(), 2);
    let (permits, _) = one.take("a", Mode::Permits { count: 1, limit: 2 });
    assert_eq!(permits.kind, Kind::Semaphore);
    let entries = one.wait(one.engine.read(&Query::Prefix("%".into()))).unwrap();
    assert_eq!(entries.len(), 1, "a text, and not a pattern");
}

#[test]
fn r17_the_tables_are_made_once_and_another_layout_is_refused_with_both_numbers() {
    let server = PostgresServer::start();
    let refused = |url: &str| open(url).map(drop).unwrap_err();
    let url = format!("{}?{PATIENT}&schema=Odd%20%22name&prefix=it's", server.url());
    let missing = refused(&format!("{url}&create=false"));
    assert_eq!(missing.kind(), ErrorKind::Refused);
    assert!(missing.message().contains("lockkeeper schema"), "{missing}");
    std::thread::scope(|scope| {
        let opened: Vec<_> = (0..4).map(|_| scope.spawn(|| open(&url).map(drop))).collect();
        opened.into_iter().for_each(|opened| opened.join().unwrap().unwrap());
    });
    open(&format!("{url}&create=false")).map(drop).unwrap();
    server.sql("UPDATE \"Odd \"\"name\".\"it's_layout\" SET number = 2");
    let newer = refused(&url);
    assert_eq!(newer.kind(), ErrorKind::NewerLayout);
    assert!(newer.message().contains("layout 2") && newer.message().contains("has 1"), "{newer}");
}

#[test]
fn what_cannot_be_used_is_refused_in_one_line_that_says_what_to_do() {
    let server = PostgresServer::start();
    server.sql("CREATE ROLE small LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    server.sql("CREATE TABLE hand_layout (n int); CREATE TABLE hand_locks (n int)");
    let at = format!("127.0.0.1:{}", server.port());
    let schema = Registration::schema_of(&format!("postgres://small@{at}/x?schema=s")).unwrap();
    server.sql(&schema);
    let small = open(&format!("postgres://small@{at}/postgres?schema=s&create=false")).unwrap();
    granted(small.attempt(&claim(&small, "a")));
    for (url, kind, says) in [
        (format!("postgres://{USER}@{at}/none"), ErrorKind::Refused, "\"none\" does not exist"),
        (format!("postgres://nobody@{at}/postgres"), ErrorKind::Refused, "does not exist"),
        (format!("postgres://small@{at}/postgres"), ErrorKind::Refused, "permission denied"),
        (format!("postgres://small@{at}/postgres"), ErrorKind::Refused, "`lockkeeper schema URL`"),
        (format!("{}?prefix=hand", server.url()), ErrorKind::Refused, "or not its own"),
        ("postgres://127.0.0.1:1/x".to_owned(), ErrorKind::Unreachable, "cannot be reached"),
        (format!("{}?sslmode=verify-full", server.url()), ErrorKind::Refused, "speaks no TLS"),
    ] {
        let error = open(&url).map(drop).unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(
            error.message().contains(says) && !error.message().contains('\n'),
            "{url}: {error}"
        );
    }
    server.sql("ALTER ROLE keeper SET default_transaction_read_only = on");
    let error = open(&server.url()).map(drop).unwrap_err();
    assert!(error.message().contains("takes no writes"), "{error}");
}

#[test]
fn r14_the_class_follows_from_the_servers_settings() {
    let about = |settings: &[&str]| {
        let server = PostgresServer::start_with(settings);
        process(&server).engine.describe()
    };
    let whole = about(&[]);
    assert_eq!((whole.class, whole.warnings.len()), (Class::Timed, 0), "{whole:?}");
    assert!(whole.server.starts_with("PostgreSQL 15."), "{whole:?}");
    for weak in ["fsync=off", "full_page_writes=off"] {
        let about = about(&[weak]);
        assert_eq!((about.class, about.warnings.len()), (Class::Efficiency, 1), "{weak}");
    }
}

#[test]
fn r14_p6_a_standby_that_no_commit_waits_for_is_seen_by_a_plain_role_too() {
    let server = PostgresServer::start();
    server.sql("CREATE ROLE small LOGIN; CREATE SCHEMA small AUTHORIZATION small");
    let class = || {
        let small = format!("postgres://small@127.0.0.1:{}/postgres", server.port());
        open(&small).expect("its own schema").engine.describe().class
    };
    assert_eq!(class(), Class::Timed);
    let _standby = server.standby();
    until("it follows", || server.sql("SELECT count(*) FROM pg_stat_replication") == "1");
    assert_eq!(class(), Class::Efficiency);
    server.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    server.sql("SELECT pg_reload_conf()");
    until("commits wait for it", || class() == Class::Timed);
}

#[test]
fn p7_a_commit_reaches_the_disk_before_it_is_answered_whatever_the_users_default_is() {
    let server = PostgresServer::start_with(&["synchronous_commit=off", "log_statement=all"]);
    let one = process(&server);
    assert_eq!(one.engine.describe().class, Class::Timed);
    granted(one.attempt(&claim(&one, "a")));
    let set = "set_config('synchronous_commit', 'on', false)";
    assert!(server.log().contains(set), "{}", server.log());
}

#[test]
fn several_locks_are_taken_all_or_none_by_one_statement() {
    let server = PostgresServer::start_with(&["log_statement=all"]);
    let (one, two) = (process(&server), process(&server));
    let names = ["b", "a", "c"];
    let claims = |process: &Process| names.map(|name| claim(process, name));
    let first = claims(&one);
    let granted = one.wait(one.engine.attempt_all(&first));
    assert!(granted.iter().all(|one| matches!(one, Attempt::Granted(_))), "{granted:?}");
    let second = claims(&two);
    let busy = two.wait(two.engine.attempt_all(&second));
    assert!(busy.iter().all(|one| matches!(one, Attempt::Busy(_))), "{busy:?}");
    assert!(matches!(one.release(first[0].id), End::Freed));
    let busy = two.wait(two.engine.attempt_all(&claims(&two)));
    assert!(busy.iter().all(|one| matches!(one, Attempt::Busy(_))), "{busy:?}");
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper_locks WHERE ends > 0"), "2");
    for claim in &first[1..] {
        assert!(matches!(one.release(claim.id), End::Freed));
    }
    let from = server.log().len();
    let third = claims(&two);
    let granted = two.wait(two.engine.attempt_all(&third));
    assert!(granted.iter().all(|one| matches!(one, Attempt::Granted(_))), "{granted:?}");
    assert_eq!(statements(&server, from).len(), 4, "three reads and one write");
    // R3: a second time is the same as the first.
    let again = two.wait(two.engine.attempt_all(&third));
    assert!(again.iter().all(|one| matches!(one, Attempt::Granted(_))), "{again:?}");
}

#[test]
fn two_that_want_the_same_names_in_opposite_orders_never_wait_for_each_other() {
    let server = PostgresServer::start();
    let url = format!("{}?{PATIENT}", server.url());
    std::thread::scope(|scope| {
        let work = |names: [&'static str; 3]| {
            let url = &url;
            scope.spawn(move || {
                let process = open(url).unwrap();
                let (begun, mut got) = (Instant::now(), 0);
                while got < 10 {
                    assert!(begun.elapsed() < PATIENCE, "it got them {got} times");
                    let claims = names.map(|name| claim(&process, name));
                    let attempts = process.wait(process.engine.attempt_all(&claims));
                    let granted = |one: &Attempt| matches!(one, Attempt::Granted(_));
                    let busy = |one: &Attempt| matches!(one, Attempt::Busy(_));
                    let all = attempts.iter().all(granted);
                    assert!(all || attempts.iter().all(busy), "{attempts:?}");
                    if all {
                        got += 1;
                        for claim in &claims {
                            assert!(matches!(process.release(claim.id), End::Freed));
                        }
                    }
                }
            })
        };
        for one in [work(["a", "b", "c"]), work(["c", "b", "a"])] {
            one.join().unwrap();
        }
    });
    assert!(!server.log().contains("deadlock detected"), "{}", server.log());
}
