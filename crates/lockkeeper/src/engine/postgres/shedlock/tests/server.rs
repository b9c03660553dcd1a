//! The engine on a server of its own, beside what ShedLock's providers send.

use std::time::Duration;

use lockkeeper_testkit::postgres::server::{PostgresServer, USER};
use lockkeeper_testkit::proxy::{Fault, Proxy, Way};

use crate::engine::postgres::tests as postgres;
use crate::engine::postgres::tests::faults::OnRows;
pub(super) use crate::engine::postgres::tests::{claim, open};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, Change, End, Event, Number, Renewal};
use crate::words::claim::Claim;
use crate::words::error::{Error, ErrorKind};
use crate::words::guarantee::Class;
use crate::words::name::{Kind, Name};

/// A JVM's clock.
const JVM: &str = "date_trunc('milliseconds', timezone('utc', clock_timestamp()))";

pub(super) fn refused(url: &str) -> Error {
    open(url).map(drop).unwrap_err()
}

fn url(server: &PostgresServer) -> String {
    format!("{}?layout=shedlock", server.url())
}

pub(super) fn process(server: &PostgresServer) -> Process {
    open(&format!("{}&request_timeout=20s", url(server))).expect("the server can be used")
}

/// Whether a statement that ShedLock sends changed a row.
fn changed(server: &PostgresServer, statement: &str) -> bool {
    server.sql(&format!("{statement} RETURNING 1")) == "1"
}

/// ShedLock's provider takes a lock: `now` is its clock, `by` its host.
fn locks(server: &PostgresServer, now: &str, name: &str, by: &str, most: &str) -> bool {
    changed(
        server,
        &format!(
            "INSERT INTO shedlock(name, lock_until, locked_at, locked_by) \
             VALUES('{name}', {now} + interval '{most}', {now}, '{by}') ON CONFLICT (name) \
             DO UPDATE SET lock_until = {now} + interval '{most}', locked_at = {now}, \
             locked_by = '{by}' WHERE shedlock.name = '{name}' AND shedlock.lock_until <= {now}"
        ),
    )
}

/// The same gives it back.
fn unlocks(server: &PostgresServer, name: &str, by: &str, least: &str) -> bool {
    let (now, until) = ("timezone('utc', now())", format!("locked_at + interval '{least}'"));
    changed(
        server,
        &format!(
            "UPDATE shedlock SET lock_until = CASE WHEN {until} > {now} THEN {until} ELSE {now} \
             END WHERE name = '{name}' AND locked_by = '{by}'"
        ),
    )
}

#[test]
fn each_excludes_the_other_by_the_jvms_clock_and_by_the_servers() {
    let server = PostgresServer::start();
    let one = process(&server);
    for now in [JVM, "timezone('utc', now())"] {
        for name in ["never locked before", "never locked before"] {
            let held = claim(&one, name);
            let Number::None = granted(one.attempt(&held)).number else { panic!("no token") };
            assert!(!locks(&server, now, name, "spring", "1 min"), "it must see our lock");
            assert!(!unlocks(&server, name, "spring", "0"), "it is not its own");
            assert!(matches!(one.release(held.id), End::Freed));
            assert!(locks(&server, now, name, "spring", "1 min"), "it is free");
            let Attempt::Busy(Some(holder)) = one.attempt_try(&claim(&one, name)) else {
                panic!("it is held")
            };
            assert_eq!(holder.host.as_deref(), Some("spring"));
            assert!(unlocks(&server, name, "spring", "0"));
        }
    }
}

#[test]
fn a_lock_that_shedlock_holds_at_least_for_a_while_is_held_so_long() {
    let server = PostgresServer::start();
    let one = process(&server);
    for (name, least) in [("a", "2 s"), ("b", "1 min")] {
        assert!(locks(&server, JVM, name, "spring", "2 min"));
        let unlocked = unlocks(&server, name, "spring", least);
        assert!(unlocked, "its work is done, and lockAtLeastFor is not");
    }
    let until_then = server.sql("SELECT lock_until FROM shedlock WHERE name = 'a'");
    let Attempt::InLine(place) = one.attempt(&claim(&one, "b")) else { panic!("it is held") };
    let left = place.holder.unwrap().expires_in().unwrap();
    assert!(left <= Duration::from_secs(60), "{left:?}");
    granted(one.attempt_until(&claim(&one, "a")));
    let passed = format!(
        "SELECT extract(epoch FROM timezone('utc', clock_timestamp()) - locked_at) \
         BETWEEN 0 AND 60 AND locked_at >= '{until_then}' AND locked_by LIKE '% lockkeeper %' \
         FROM shedlock WHERE name = 'a'"
    );
    assert_eq!(server.sql(&passed), "t");
}

#[test]
fn the_lock_of_a_dead_holder_passes_at_its_end_and_no_sooner() {
    let server = PostgresServer::start();
    let (dies, waits) = (process(&server), process(&server));
    let dead = Claim { ttl: Duration::from_secs(2), ..dies.exclusive("a") };
    granted(dies.attempt(&dead));
    let until_then = server.sql("SELECT lock_until FROM shedlock");
    dies.die();
    let next = claim(&waits, "a");
    granted(waits.attempt_until(&next));
    let after = format!("SELECT locked_at >= '{until_then}' FROM shedlock");
    assert_eq!(server.sql(&after), "t");
}

#[test]
fn an_uncontended_cycle_is_a_statement_each_and_a_try_that_is_refused_writes_nothing() {
    let server = PostgresServer::start_with(&["log_statement=all"]);
    let (one, two) = (process(&server), process(&server));
    let first = claim(&one, "a");
    granted(one.attempt(&first));
    assert!(matches!(one.release(first.id), End::Freed));
    let from = server.log().len();
    let next = claim(&one, "a");
    granted(one.attempt(&next));
    assert!(matches!(one.renew(next.id), Renewal::Extended { ttl: postgres::TTL, .. }));
    let row = || server.sql("SELECT ctid, xmin, xmax FROM shedlock");
    let before = row();
    assert!(matches!(two.attempt_try(&claim(&two, "a")), Attempt::Busy(Some(_))));
    assert_eq!(row(), before);
    assert!(matches!(one.release(next.id), End::Freed));
    let ran = server.log()[from..].lines().filter(|line| line.contains("execute s")).count();
    assert_eq!(ran, 4, "{}", &server.log()[from..]);
}

#[test]
fn a_release_frees_only_its_own_grant_and_a_renewal_keeps_only_its_own() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    assert!(matches!(one.release(held.id), End::Freed));
    let taken = claim(&one, "b");
    granted(one.attempt(&taken));
    // A JVM whose clock is ahead takes it.
    let ahead = "timezone('utc', clock_timestamp() + interval '1 h')";
    assert!(locks(&server, ahead, "b", "ahead", "1 min"));
    assert!(matches!(one.renew(taken.id), Renewal::Gone(_)));
    assert!(matches!(one.release(taken.id), End::NotOurs));
    assert_eq!(server.sql("SELECT locked_by FROM shedlock WHERE name = 'b'"), "ahead");
    let other = claim(&two, "a");
    granted(two.attempt(&other));
    assert!(matches!(one.release(held.id), End::NotOurs));
    assert!(matches!(two.renew(other.id), Renewal::Extended { .. }));
}

#[test]
fn somebody_elses_transaction_on_the_row_is_no_answer_and_holds_up_no_other_hold() {
    let server = PostgresServer::start();
    let one = open(&format!("{}&request_timeout=16s", url(&server))).unwrap();
    let (held, other) = (claim(&one, "a"), claim(&one, "b"));
    granted(one.attempt(&held));
    granted(one.attempt(&other));
    let begin = "BEGIN; SELECT FROM shedlock WHERE name = 'a' FOR UPDATE; SELECT pg_sleep(600)";
    std::thread::scope(|scope| {
        let blocker = scope.spawn(|| server.ask(begin));
        let standing = OnRows::on(&server);
        let renewals = one.wait(one.engine.renew(&[held.id.into(), other.id.into()]));
        assert!(matches!(renewals[0], Renewal::Unknown(_)), "unknown, and never gone");
        assert!(matches!(renewals[1], Renewal::Extended { .. }), "{renewals:?}");
        drop(standing);
        assert!(blocker.join().unwrap().is_err(), "it was stopped");
    });
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
}

fn proxied(server: &PostgresServer) -> (Proxy, Process) {
    postgres::proxied(server, "&layout=shedlock")
}

fn held_by(server: &PostgresServer, claim: &Claim) -> bool {
    let now = "timezone('utc', clock_timestamp())";
    let held = format!("SELECT locked_by FROM shedlock WHERE lock_until > {now}");
    server.sql(&held).contains(&claim.id.to_string())
}

#[test]
fn r4_an_acquire_whose_answer_was_lost_is_unknown_and_asked_again_holds_once() {
    let server = PostgresServer::start();
    let (proxy, one) = proxied(&server);
    proxy.set(Way::Down, Fault { cut_after: Some(0), ..Fault::default() });
    let held = claim(&one, "a");
    let attempt = one.attempt(&held);
    assert!(matches!(attempt, Attempt::Unknown(_)), "{attempt:?}");
    until("the server carried it out", || held_by(&server, &held));
    let at = || server.sql("SELECT locked_at FROM shedlock");
    let before = at();
    proxy.set(Way::Down, Fault::default());
    until("it is granted", || matches!(one.attempt(&held), Attempt::Granted(_)));
    // R3: a second time is the same as the first.
    granted(one.attempt(&held));
    assert_eq!(at(), before, "the same hold");
    assert!(matches!(one.release(held.id), End::Freed));
    assert!(!held_by(&server, &held));
}

#[test]
fn r4_a_caller_who_leaves_over_a_lost_answer_leaves_nothing() {
    let server = PostgresServer::start();
    let (proxy, one) = proxied(&server);
    proxy.set(Way::Down, Fault { cut_after: Some(0), ..Fault::default() });
    let held = claim(&one, "a");
    assert!(matches!(one.attempt(&held), Attempt::Unknown(_)));
    until("the server carried it out", || held_by(&server, &held));
    proxy.set(Way::Down, Fault::default());
    one.link(false);
    one.link(true);
    assert!(matches!(one.withdraw(held.id), End::Freed));
    // A copy of its request comes late, and is given back.
    server.sql(&format!(
        "UPDATE shedlock SET lock_until = timezone('utc', clock_timestamp()) + interval '1 h', \
         locked_by = 'host lockkeeper {} {}'",
        held.id,
        std::process::id()
    ));
    server.sql(&format!("UPDATE shedlock SET locked_by = '{}'", by(&held)));
    until("the copy is given back", || !held_by(&server, &held));
}

fn by(claim: &Claim) -> String {
    super::super::record::locked_by(claim.id, &claim.who, 255)
}

#[test]
fn r3_a_request_that_is_late_locks_for_nobody() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    for name in ["never locked before", "a"] {
        let warm = claim(&two, "a");
        granted(two.attempt(&warm));
        assert!(matches!(two.release(warm.id), End::Freed));
        let mut asked = claim(&one, name);
        asked.give_up = Some(one.now().minus(Duration::from_millis(100)));
        let attempt = one.attempt(&asked);
        let Attempt::Failed(error) = attempt else { panic!("{attempt:?}") };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(!held_by(&server, &asked));
    }
}

#[test]
fn holders_are_told_by_what_they_wrote_and_taken_away_from_alone() {
    let server = PostgresServer::start();
    let (one, two) = (process(&server), process(&server));
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let shown = two.look(Kind::Lock, "a").holders;
    assert_eq!((shown[0].claim, shown[0].pid), (Some(held.id), Some(std::process::id())));
    assert_eq!(shown[0].program.as_deref(), Some("test"));
    let force = |from| Change::Force(Kind::Lock, Name::new("a").unwrap(), from);
    assert!(two.change(&force(shown.clone())));
    assert!(two.look(Kind::Lock, "a").holders.is_empty());
    assert!(matches!(one.renew(held.id), Renewal::Gone(_)));
    assert!(locks(&server, JVM, "a", "spring", "1 min"));
    assert!(!two.change(&force(shown)), "somebody else has it now");
    let theirs = two.look(Kind::Lock, "a").holders;
    assert_eq!(theirs[0].host.as_deref(), Some("spring"));
    assert!(two.change(&force(theirs)) && !two.change(&force(Vec::new())));
    // A lock without an end is one, too.
    server.sql("UPDATE shedlock SET lock_until = 'infinity', locked_at = '-infinity'");
    assert_eq!(two.list("")[0].name.as_str(), "a");
    assert!(matches!(two.attempt_try(&claim(&two, "a")), Attempt::Busy(Some(_))));
}

#[test]
fn r14_by_which_clock_others_lock_is_found_from_what_they_wrote() {
    let server = PostgresServer::start();
    let about = |server| process(server).engine.describe();
    let first = about(&server);
    assert_eq!((first.class, first.fenced, first.warnings.len()), (Class::Efficiency, false, 0));
    let ids = || about(&server).warnings.iter().map(|warning| warning.id).collect::<Vec<_>>();
    let db = "timezone('utc', now())";
    while server.sql(&format!("SELECT extract(microseconds FROM {db})::int % 1000 = 0")) == "t" {}
    assert!(locks(
        &server,
        &format!("date_bin('1 s', {db}, '1970-01-01 00:00:00.000457')"),
        "a",
        "db",
        "1 s"
    ));
    assert!(ids().is_empty());
    assert!(locks(&server, JVM, "b", "spring", "1 min"));
    assert_eq!(ids(), ["shedlock-jvm-clock"]);
    let tokyo = format!("{JVM} + interval '9 h'");
    assert!(locks(&server, &tokyo, "c", "tokyo", "1 min"));
    assert_eq!(ids(), ["shedlock-clock", "shedlock-jvm-clock"]);
    // A claim that meets it tells so, once.
    let one = process(&server);
    for _ in 0..2 {
        assert!(matches!(one.attempt_try(&claim(&one, "c")), Attempt::Busy(_)));
    }
    let warned = |event: &Event| match event {
        Event::Warned { warning, .. } => Some(warning.clone()),
        _ => None,
    };
    let warning = one.event("a warning", warned);
    assert!(warning.text.contains("tokyo") && warning.text.contains("ahead"), "{warning:?}");
    assert!(one.event_within(Duration::ZERO, &mut { warned }).is_none());
}

#[test]
fn what_the_layout_cannot_do_is_refused_with_what_can() {
    use crate::words::claim::Mode;
    let server = PostgresServer::start();
    let one = process(&server);
    let permits = Mode::Permits { count: 1, limit: 2 };
    let delayed = Claim { lock_delay: Duration::from_secs(1), ..claim(&one, "a") };
    let elected = Claim { kind: Kind::Election, ..claim(&one, "a") };
    let asked = [Mode::Shared, Mode::Upgradable, permits].map(|mode| one.claim("a", mode));
    for asked in asked.into_iter().chain([delayed, elected]) {
        let attempt = one.attempt(&asked);
        let Attempt::Failed(error) = attempt else { panic!("{attempt:?}") };
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("layout=table"), "{error}");
    }
    assert_eq!(server.sql("SELECT count(*) FROM shedlock"), "0");
}

/// Gives the next connections this search path, and one process another connection; why it is
/// refused.
fn refused_on_the_path(server: &PostgresServer, one: &Process, path: &str) -> String {
    granted(one.attempt(&claim(one, "a")));
    server.sql(&format!("ALTER ROLE {USER} SET search_path = {path}"));
    server.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE \
         'lockkeeper:%'",
    );
    one.link(false);
    let mut last = String::new();
    until("it is refused", || {
        if let Attempt::Failed(error) = one.attempt_try(&claim(one, "a")) {
            last = error.message().to_owned();
        }
        last.contains("schema=") || last.contains("lockkeeper schema")
    });
    last
}

#[test]
fn g2_a_table_that_a_connection_finds_in_another_schema_than_the_first_one_is_refused() {
    let server = PostgresServer::start();
    let one = process(&server);
    // A table of the same name, which the next connection finds first.
    drop(open(&format!("{}&schema=other", url(&server))).expect("it makes it"));
    let said = refused_on_the_path(&server, &one, "other, public");
    assert!(said.contains("\"other\"") && said.contains("\"public\""), "{said}");
}

#[test]
fn g2_a_connection_that_misses_the_table_of_the_first_one_makes_none() {
    let server = PostgresServer::start();
    let one = process(&server);
    server.sql("CREATE SCHEMA other");
    let said = refused_on_the_path(&server, &one, "other");
    assert!(said.contains("is not in the server"), "{said}");
    assert_eq!(server.sql("SELECT to_regclass('other.shedlock') IS NULL"), "t");
}
