//! What an administrator removes: the statement of docs/engines/postgres.md, as it stands there.

use lockkeeper_testkit::postgres::server::PostgresServer;

use super::faults::OnRows;
use super::{claim, process};
use crate::engine::redis::tests::support::{granted, number};
use crate::engine::{Change, End, Renewal};
use crate::words::claim::Mode;
use crate::words::name::{Kind, Name};

/// The first statement below a heading of the page.
fn documented(heading: &str) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/engines/postgres.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let (_, below) = page.split_once(heading).expect("the heading");
    let (_, block) = below.split_once("```sql\n").expect("a statement");
    block.split("```").next().unwrap_or_default().to_owned()
}

const DAYS_2: &str = "172800000000";

/// Makes these names two days older, and nobody's places.
fn age(server: &PostgresServer, names: &[&str]) {
    let names: Vec<String> =
        names.iter().map(|name| format!("convert_to('{name}', 'UTF8')")).collect();
    server.sql(&format!(
        "UPDATE lockkeeper_locks SET number = greatest(number - {DAYS_2} / 16, 0), \
         version = version - {DAYS_2}, \
         ends = CASE ends WHEN 0 THEN 0 ELSE ends - {DAYS_2} END WHERE name IN ({})",
        names.join(", ")
    ));
}

fn left(server: &PostgresServer, table: &str) -> String {
    server.sql(&format!(
        "SELECT string_agg(convert_from(name, 'UTF8'), ' ' ORDER BY name) FROM lockkeeper_{table}"
    ))
}

#[test]
fn what_dead_holders_and_waiters_left_is_removed_and_the_living_stay_and_tokens_rise() {
    let server = PostgresServer::start();
    let (one, dead, lives) = (process(&server), process(&server), process(&server));
    // However long this takes, nobody asks about what is removed.
    dead.by_word_alone();
    lives.by_word_alone();
    // Neither gives back, and both would be asked about in vain.
    let killed = claim(&one, "killed");
    let before = number(&granted(one.attempt(&killed)));
    dead.queue_claim(&claim(&dead, "killed"));
    one.take("permits", Mode::Permits { count: 1, limit: 2 });
    for name in ["free", "lately"] {
        let held = claim(&one, name);
        granted(one.attempt(&held));
        assert!(matches!(one.release(held.id), End::Freed));
    }
    assert!(one.change(&Change::LatchSet(Name::new("latch").unwrap(), 3)));
    // Its mark is younger than its last grant.
    one.take("refused", Mode::Exclusive);
    one.take("kept", Mode::Exclusive);
    let held = claim(&lives, "held");
    granted(lives.attempt(&held));
    age(&server, &["killed", "permits", "free", "latch", "refused", "kept"]);
    server.sql(&format!("UPDATE lockkeeper_line SET alive = alive - {DAYS_2}"));
    server.sql(
        "UPDATE lockkeeper_locks SET claim = NULL, ends = 0, line = true, record = \
         format(e'1\\nr %s %s', repeat('0', 32), \
         (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) \
         WHERE name = 'refused'",
    );
    // Somebody stands in line there since.
    lives.take("waits", Mode::Exclusive);
    lives.queue_claim(&claim(&lives, "waits"));
    age(&server, &["waits"]);
    let forget = documented("### Rows that nobody needs");
    let under = "SELECT FROM lockkeeper_locks WHERE name = 'kept' FOR KEY SHARE";
    let server = &server;
    std::thread::scope(|scope| {
        // A transaction under its lock, which goes on.
        let under = format!("BEGIN; {under}; SELECT pg_sleep(600)");
        let under = scope.spawn(move || server.ask(&under));
        let standing = OnRows::on(server);
        server.sql(&forget);
        assert_eq!(left(server, "locks"), "held kept latch lately refused waits");
        assert_eq!(left(server, "line"), "waits");
        drop(standing);
        assert!(under.join().unwrap().is_err(), "it was stopped");
    });
    server.sql(&forget);
    assert_eq!(left(server, "locks"), "held latch lately refused waits");
    assert!(matches!(lives.renew(held.id), Renewal::Extended { .. }));
    assert!(matches!(one.renew(killed.id), Renewal::Gone(_)), "nothing is left to renew");
    let next = granted(lives.attempt(&claim(&lives, "killed")));
    assert!(number(&next) > before, "{next:?} after {before}");
    assert_eq!(lives.look(Kind::Latch, "latch").count, Some(3));
}
