//! The layout on a server of its own, beside psql.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_testkit::postgres::server::{PostgresServer, USER};
use lockkeeper_testkit::proxy::{Proxy, Way};

use super::super::tests::refusals::Greeter;
use crate::engine::redis::tests::support::{Process, engine_of, until};
use crate::engine::{Attempt, Change, End, Event, Number, Registration, Renewal, Standing, Which};
use crate::words::claim::{Ends, Mode};
use crate::words::error::{Error, ErrorKind};
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

const TTL: Duration = Duration::from_secs(6);

fn open_with(server: &str, more: &str) -> Result<Process, Error> {
    open_for(2, server, more)
}

/// Whose connections the server keeps for so many seconds of silence.
fn open_for(seconds: u32, server: &str, more: &str) -> Result<Process, Error> {
    let url = format!("{server}?layout=session&session_timeout={seconds}s{more}");
    Process::around(engine_of(&url, TTL)?.into())
}

fn process(server: &PostgresServer) -> Process {
    open_with(&server.url(), "&request_timeout=20s").expect("the server can be used")
}

/// How many advisory locks the server has, and how many wait for one.
fn rows(server: &PostgresServer, granted: bool) -> String {
    server.sql(&format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted = {granted}"
    ))
}

/// A person at psql.
struct Psql {
    child: Child,
    says: ChildStdin,
    hears: BufReader<ChildStdout>,
}

impl Psql {
    fn start(server: &PostgresServer) -> Self {
        let mut child = Command::new("/usr/lib/postgresql/15/bin/psql")
            .args(["-X", "-q", "-A", "-t", "-U", USER, "-d", "postgres", "-h"])
            .arg(server.dir())
            .args(["-p", &server.port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("psql comes with the server");
        let says = child.stdin.take().unwrap();
        let hears = BufReader::new(child.stdout.take().unwrap());
        Self { child, says, hears }
    }

    fn say(&mut self, sql: &str) {
        writeln!(self.says, "{sql};").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.hears.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&mut self, sql: &str) -> String {
        self.say(sql);
        self.hear()
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[test]
fn psql_takes_the_same_lock_in_one_line_and_each_excludes_the_other() {
    let server = PostgresServer::start();
    let (one, mut psql) = (process(&server), Psql::start(&server));
    for (name, key) in [("42", "42"), ("-7", "-7"), ("4,-2", "4, -2")] {
        let (held, grant) = one.take(name, Mode::Exclusive);
        assert_eq!(grant.number, Number::None);
        let tries = format!("SELECT pg_try_advisory_lock({key})");
        assert_eq!(psql.ask(&tries), "f", "{name} is ours");
        assert!(matches!(one.release(held.id), End::Freed));
        assert_eq!(psql.ask(&tries), "t", "{name} is free");
        let Attempt::Busy(Some(holder)) = one.attempt_try(&one.exclusive(name)) else {
            panic!("{name} is psql's")
        };
        assert!(holder.label.as_ref().is_some_and(|label| label.contains("psql")), "{holder:?}");
        assert_eq!((holder.mode, holder.ends), (Some(Mode::Exclusive), Some(Ends::Session)));
        assert_eq!(psql.ask(&format!("SELECT pg_advisory_unlock({key})")), "t");
        let (held, _) = one.take(name, Mode::Exclusive);
        assert!(matches!(one.release(held.id), End::Freed));
    }
    // 4,2 is another key than the whole number with the same halves.
    let (_two, _) = one.take("4,2", Mode::Exclusive);
    one.take(&(4_i64 << 32 | 2).to_string(), Mode::Exclusive);
}

#[test]
fn r11_psql_and_ours_stand_in_one_line_in_the_order_in_which_they_came() {
    let server = PostgresServer::start();
    let (one, two, mut psql) = (process(&server), process(&server), Psql::start(&server));
    let (held, _) = one.take("42", Mode::Exclusive);
    let first = two.queue("42", Mode::Exclusive);
    psql.say("SELECT 'psql' FROM (SELECT pg_advisory_lock(42)) AS l");
    until("psql waits", || rows(&server, false) == "2");
    let entry = one.look(Kind::Lock, "42");
    assert_eq!((entry.holders.len(), entry.waiters.len()), (1, 2), "{entry:?}");
    assert_eq!(entry.holders[0].claim, Some(held.id));
    assert!(matches!(one.release(held.id), End::Freed));
    let grant = two.granted(first.id);
    assert!(grant.lease.is_some_and(|lease| lease.since.is_some()), "{grant:?}");
    assert_eq!(rows(&server, false), "1", "psql waits for it");
    assert!(matches!(two.release(first.id), End::Freed));
    assert_eq!(psql.hear(), "psql");
}

#[test]
fn two_claims_of_one_process_never_both_hold_though_a_connection_would_count() {
    let server = PostgresServer::start();
    let one = process(&server);
    let (held, _) = one.take("42", Mode::Exclusive);
    for mode in [Mode::Exclusive, Mode::Shared] {
        let other = one.claim("42", mode);
        assert!(matches!(one.attempt_try(&other), Attempt::Busy(Some(_))), "{mode:?}");
    }
    let waits = one.queue("42", Mode::Exclusive);
    assert!(matches!(one.release(held.id), End::Freed));
    one.granted(waits.id);
    assert!(matches!(one.release(waits.id), End::Freed));
    // Readers share, and each has its own.
    let (first, _) = one.take("42", Mode::Shared);
    let (second, _) = one.take("42", Mode::Shared);
    assert!(matches!(one.release(first.id), End::Freed));
    assert!(matches!(one.attempt_try(&one.exclusive("42")), Attempt::Busy(Some(_))));
    assert!(matches!(one.release(second.id), End::Freed));
    one.take("42", Mode::Exclusive);
}

#[test]
fn a_reader_of_a_process_that_reads_does_not_pass_a_writer_that_waits() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    let (reads, _) = one.take("42", Mode::Shared);
    let writes = two.queue("42", Mode::Exclusive);
    assert!(matches!(one.attempt_try(&one.claim("42", Mode::Shared)), Attempt::Busy(_)));
    let late = one.queue("42", Mode::Shared);
    assert!(matches!(one.release(reads.id), End::Freed));
    two.granted(writes.id);
    assert!(matches!(two.release(writes.id), End::Freed));
    one.granted(late.id);
}

#[test]
fn r5_a_wait_that_is_withdrawn_leaves_no_lock_also_when_it_is_granted_just_then() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    for round in 0..20 {
        let (held, _) = one.take("42", Mode::Exclusive);
        let waits = two.queue("42", Mode::Exclusive);
        std::thread::scope(|scope| {
            let releases = (round % 2 == 1).then(|| scope.spawn(|| one.release(held.id)));
            assert!(matches!(two.withdraw(waits.id), End::Freed | End::NotOurs));
            if let Some(releases) = releases {
                assert!(matches!(releases.join().unwrap(), End::Freed));
            } else {
                assert!(matches!(one.release(held.id), End::Freed));
            }
        });
        until("nothing is there", || rows(&server, true) == "0" && rows(&server, false) == "0");
    }
}

#[test]
fn r2_a_connection_that_the_server_ends_is_a_lost_hold_and_is_told_at_once() {
    let server = PostgresServer::start();
    let one = process(&server);
    let (held, grant) = one.take("42", Mode::Exclusive);
    let lease = grant.lease.unwrap().id;
    server.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE \
         'lockkeeper:%'",
    );
    let which = one.event("the loss", |event| match event {
        Event::Ended { which, why: Lost::SessionEnded } => Some(*which),
        _ => None,
    });
    assert_eq!(which, Which::Lease(lease));
    let end = one.release(held.id);
    assert!(matches!(end, End::NotOurs), "{end:?}");
    assert!(matches!(one.wait(one.engine.renew(&[lease]))[..], [Renewal::Gone(_)]));
    // The next one is on another connection, and the server says that it ends one before it gives
    // back what that one had.
    one.granted_at_last(&one.exclusive("42"));
}

#[test]
fn r2_a_connection_that_has_given_its_locks_back_is_no_session_that_has_ended() {
    let server = PostgresServer::start();
    let one = process(&server);
    let (held, grant) = one.take("42", Mode::Exclusive);
    let lease = grant.lease.unwrap().id;
    assert!(matches!(one.release(held.id), End::Freed));
    // The next one is held on it.
    let renewals = one.wait(one.engine.renew(&[lease]));
    assert!(matches!(renewals[..], [Renewal::Extended { .. }]), "{renewals:?}");
    let (_, grant) = one.take("42", Mode::Exclusive);
    assert_eq!(grant.lease.unwrap().id, lease);
}

#[test]
fn a_server_that_does_not_answer_loses_the_hold_at_its_time_and_what_is_left_of_it_there() {
    let server = PostgresServer::start();
    let one = open_for(8, &server.url(), "&request_timeout=500ms").unwrap();
    until("the server is old enough", || {
        let attempt = one.attempt(&one.exclusive("41"));
        matches!(attempt, Attempt::Granted(_))
    });
    let lease = one.granted_at_last(&one.exclusive("42")).lease.unwrap().id;
    // Both have their locks on one connection.
    server.stop();
    let began = Instant::now();
    one.event("the loss", |event| match event {
        Event::Ended { which: Which::Lease(lost), .. } if *lost == lease => Some(()),
        _ => None,
    });
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    server.go_on();
    // The server may not have noticed; what it kept is ended by the next connection.
    one.granted_at_last(&one.exclusive("42"));
}

#[test]
fn r4_whoever_may_have_it_on_a_connection_that_broke_is_not_told_that_somebody_else_has_it() {
    let server = PostgresServer::start();
    let proxy = Proxy::to(server.port());
    let at = format!("postgres://{USER}@127.0.0.1:{}/postgres", proxy.port());
    let one = open_with(&at, "&request_timeout=500ms").unwrap();
    let signal = |signal: &str, pid: &str| {
        Command::new("kill").args([signal, pid]).status().unwrap().success()
    };
    let (mut doubtful, mut has_it, mut rounds) = (one.exclusive("42"), String::new(), 0);
    // Where its connection was ended before that, once more.
    until("its process stands still, and has it", || {
        rounds += 1;
        if rounds > 1 {
            eprintln!("round {rounds}");
            signal("-CONT", &has_it);
            until("nothing is left", || matches!(one.withdraw(doubtful.id), End::NotOurs));
        }
        until("the server is old enough", || {
            let claim = one.exclusive("41");
            let granted = matches!(one.attempt(&claim), Attempt::Granted(_));
            granted && matches!(one.release(claim.id), End::Freed)
        });
        proxy.hold_present(Way::Down);
        doubtful = one.exclusive("42");
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| one.attempt_try(&doubtful));
            until("it is granted", || rows(&server, true) == "1" || asks.is_finished());
            // It hears nothing more, and ends only when it goes on.
            has_it = server.sql("SELECT min(pid) FROM pg_locks WHERE locktype = 'advisory'");
            let stopped = signal("-STOP", &has_it);
            let Attempt::Unknown(error) = asks.join().unwrap() else { panic!("none answered") };
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            stopped && rows(&server, true) == "1"
        })
    });
    until("its own connection is told of", || {
        let again = one.attempt_try(&doubtful);
        let Attempt::Unknown(error) = again else { panic!("nobody else has it: {again:?}") };
        error.message().contains("broke")
    });
    assert!(matches!(one.withdraw(doubtful.id), End::Unknown(_)), "it may be there yet");
    until("whoever never had it is told the truth", || {
        let asked = one.attempt_try(&one.exclusive("42"));
        assert!(!matches!(asked, Attempt::Granted(_)), "BROKEN LOCK: two hold it");
        matches!(asked, Attempt::Busy(_))
    });
    assert!(signal("-CONT", &has_it));
    until("what it left is gone", || matches!(one.withdraw(doubtful.id), End::NotOurs));
    until("it is free", || matches!(one.attempt_try(&doubtful), Attempt::Granted(_)));
}

#[test]
fn time_limits_of_the_server_end_neither_a_hold_nor_a_wait() {
    let server = PostgresServer::start();
    for (setting, limit) in [
        ("statement_timeout", "300ms"),
        ("lock_timeout", "200ms"),
        ("idle_session_timeout", "400ms"),
        ("idle_in_transaction_session_timeout", "200ms"),
    ] {
        server.sql(&format!("ALTER ROLE {USER} SET {setting} = '{limit}'"));
    }
    let (one, two) = (process(&server), process(&server));
    let (held, _) = one.take("42", Mode::Exclusive);
    let waits = two.queue("42", Mode::Exclusive);
    let seen = server.sql("SELECT min(pid) FROM pg_locks WHERE locktype = 'advisory'");
    // Longer than each of them.
    std::thread::sleep(Duration::from_millis(1200));
    assert!(matches!(two.wait(two.engine.recheck(&[waits.id]))[..], [Standing::InLine(_)]));
    assert_eq!(server.sql("SELECT min(pid) FROM pg_locks WHERE locktype = 'advisory'"), seen);
    assert!(matches!(one.wait(one.engine.recheck(&[held.id]))[..], [Standing::Held(_)]));
    assert!(matches!(one.release(held.id), End::Freed));
    two.granted(waits.id);
}

#[test]
fn a_wait_that_somebody_else_cancels_goes_on() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    let (held, _) = one.take("42", Mode::Exclusive);
    let waits = two.queue("42", Mode::Exclusive);
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_locks WHERE NOT granted";
    assert_eq!(server.sql(cancel), "1");
    until("it stands in line again", || {
        server.log().contains("canceling statement") && rows(&server, false) == "1"
    });
    assert!(matches!(one.release(held.id), End::Freed));
    two.granted(waits.id);
}

#[test]
fn who_waits_and_dies_leaves_the_line_while_nobody_gets_the_lock() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    one.take("42", Mode::Exclusive);
    two.queue("42", Mode::Exclusive);
    assert_eq!(rows(&server, false), "1");
    two.die();
    until("nobody waits", || rows(&server, false) == "0");
    assert_eq!(rows(&server, true), "1");
}

#[test]
fn locks_are_granted_again_once_no_holder_of_before_a_restart_can_go_on() {
    let mut server = PostgresServer::start();
    // Whoever has so much to wait still, or less, waits.
    let options = "&request_timeout=500ms";
    let one = open_with(&server.url(), options).unwrap();
    let refused = |process: &Process, name: &str| {
        let claim = process.exclusive(name);
        match process.attempt_try(&claim) {
            Attempt::Failed(error) => {
                assert_eq!(error.kind(), ErrorKind::Unreachable);
                assert!(error.message().contains("has just started"), "{error}");
                Some(true)
            }
            Attempt::Granted(_) => Some(false),
            // Its answer took longer than it may.
            Attempt::Unknown(_) => {
                process.withdraw(claim.id);
                None
            }
            other => panic!("{other:?}"),
        }
    };
    until("it is granted", || refused(&one, "1") == Some(false));
    // Again, and for longer, where the machine asks so late that the server is old enough.
    let told = [2, 8, 32].into_iter().any(|seconds| {
        server.restart();
        let age = |so: &str| {
            server.sql(&format!("SELECT clock_timestamp() - pg_postmaster_start_time() {so}"))
                == "t"
        };
        let two = open_for(seconds, &server.url(), options).unwrap();
        let refuses = std::iter::repeat_with(|| refused(&two, "2")).flatten().next();
        let young = age(&format!("< '{} ms'", seconds * 1000 - 500));
        assert!(!young || refuses == Some(true), "a session may last for {seconds} s");
        until("it is granted", || refused(&two, "2") == Some(false));
        assert!(age(&format!(">= '{seconds} s'")), "no sooner than when those of before are over");
        refuses == Some(true)
    });
    assert!(told, "the server was never asked while it was young");
}

#[test]
fn p4_a_pooler_is_refused_also_where_the_url_says_that_it_is_no_danger() {
    let server = PostgresServer::start_with(&["log_statement=all"]);
    let at = format!("postgres://{USER}@127.0.0.1:{}/postgres", Greeter::before(&server).port);
    let error = open_with(&at, "").map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.message().contains("a pooler answers at 127.0.0.1"), "{error}");
    assert!(!error.message().contains("pooler=session"), "{error}");
    assert!(!server.log().contains("set_config"), "nothing is left on its connection");
    let error = open_with(&at, "&pooler=session").map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("layout=table"), "{error}");
}

#[test]
fn r13_a_process_takes_an_eighth_of_the_servers_lock_table_and_the_server_stays_open_to_others() {
    let few = ["max_locks_per_transaction=10", "max_connections=16", "max_prepared_transactions=0"];
    let server = PostgresServer::start_with(&few);
    let process = process(&server);
    for key in 0..20 {
        process.take(&key.to_string(), Mode::Exclusive);
    }
    let claim = process.exclusive("20");
    let Attempt::Failed(error) = process.attempt(&claim) else { panic!("it is one too many") };
    assert!(error.message().contains("20 advisory locks"), "{error}");
    assert_eq!(rows(&server, true), "20");
}

#[test]
fn a_connection_over_tcp_may_be_silent_for_an_hour() {
    let server = PostgresServer::start_with(&["listen_addresses=127.0.0.1"]);
    let at = format!("postgres://{USER}@127.0.0.1:{}/postgres", server.port());
    let url = format!("{at}?layout=session&session_timeout=1h&sslmode=disable");
    let process = Process::around(engine_of(&url, TTL).unwrap().into()).unwrap();
    let about = process.engine.describe();
    assert!(about.warnings.is_empty(), "both ends know when to end it: {:?}", about.warnings);
}

#[test]
fn r12_a_name_that_is_no_key_is_refused_or_hashed_as_psql_hashes_it() {
    let server = PostgresServer::start();
    let one = process(&server);
    match one.attempt(&one.exclusive("stock/sku-42")) {
        Attempt::Failed(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidName);
            assert!(error.message().contains("names=hash"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let hashes = open_with(&server.url(), "&names=hash&request_timeout=20s").unwrap();
    assert!(hashes.engine.describe().warnings.iter().any(|w| w.id == "hashed-names"));
    let mut psql = Psql::start(&server);
    for name in ["stock/sku-42", "it's \\ é \u{1F512}", "042"] {
        hashes.take(name, Mode::Exclusive);
        let quoted = name.replace('\'', "''");
        let key = format!("hashtextextended('{quoted}', 0)");
        assert_eq!(psql.ask(&format!("SELECT pg_try_advisory_lock({key})")), "f", "{name}");
        let key = psql.ask(&format!("SELECT {key}"));
        assert!(matches!(one.attempt_try(&one.exclusive(&key)), Attempt::Busy(_)), "{name}");
    }
    // A key is itself.
    hashes.take("42", Mode::Exclusive);
    assert_eq!(psql.ask("SELECT pg_try_advisory_lock(42)"), "f");
}

#[test]
fn the_list_has_every_key_of_the_database_also_those_of_others() {
    let server = PostgresServer::start();
    let (one, mut psql) = (process(&server), Psql::start(&server));
    one.take("42", Mode::Exclusive);
    one.take("4,2", Mode::Shared);
    psql.ask("SELECT 1 FROM (SELECT pg_advisory_lock(7), pg_advisory_xact_lock(8)) AS l");
    let names = |prefix: &str| -> Vec<String> {
        one.list(prefix).into_iter().map(|entry| entry.name.to_string()).collect()
    };
    assert_eq!(names(""), ["7", "42", "4,2"]);
    assert_eq!(names("4"), ["42", "4,2"]);
    let force = Change::Force(Kind::Lock, Name::new("42").unwrap(), Vec::new());
    let refused = one.wait(one.engine.write(&force)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

#[test]
fn options_that_cannot_be_right_are_refused() {
    for (query, says) in [
        ("layout=session&session_timeout=1s", "whole seconds from 2s to 1h"),
        ("layout=session&session_timeout=2500ms", "whole seconds from 2s to 1h"),
        ("layout=session&schema=a", "an advisory lock is in no schema"),
        ("layout=session&prefix=a", "prefix belongs to layout=table"),
        ("names=hash", "names belongs to layout=session"),
        ("session_timeout=4s", "session_timeout belongs to layout=session"),
    ] {
        let error = engine_of(&format!("postgres://h/db?{query}"), TTL).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{query}");
        assert!(error.message().contains(says), "{query}: {error}");
    }
    let schema = Registration::schema_of("postgres://h/db?layout=session").unwrap_err();
    assert_eq!(schema.kind(), ErrorKind::Unsupported);
}
