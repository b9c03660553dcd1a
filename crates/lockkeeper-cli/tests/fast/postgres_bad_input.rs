//! PostgreSQL that cannot be used, or not as the URL says: one line that says what to do, the
//! documented code, and nothing lost.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Stdio};

use lockkeeper_testkit::postgres::server::{PostgresServer, USER};
use lockkeeper_testkit::proxy::{Fault, Proxy, Way};

use crate::common::{Place, Ran, Reaped, finish, run, until_true};

/// A server that has just started grants advisory locks once its sessions of before are over.
const LAYOUTS: [&str; 3] =
    ["layout=table", "layout=session&session_timeout=8s&request_timeout=20s", "layout=shedlock"];

/// A URL of this user and database.
fn url(server: &PostgresServer, user: &str, database: &str, options: &str) -> String {
    format!("postgres://{user}@127.0.0.1:{}/{database}?{options}", server.port())
}

/// Its command must not have run.
fn refused(url: &str, code: i32, says: &[&str]) {
    let place = Place::new();
    let line = ["run", "-n", "42", "--", "touch", &place.text("ran")];
    let ran = run(&place, url, &line);
    assert_eq!((ran.code, ran.err.lines().count(), &*ran.out), (code, 1, ""), "{url}: {ran:?}");
    for part in says {
        assert!(ran.err.contains(part), "{url}: {part:?} in {ran:?}");
    }
    assert!(!ran.err.contains("s3same") && !place.path("ran").exists(), "{url}: {ran:?}");
}

#[test]
fn a_database_a_user_or_a_right_that_is_missing_is_named_with_what_to_do() {
    let server = PostgresServer::start();
    for sql in [
        "CREATE ROLE app LOGIN PASSWORD 'sesame'",
        "CREATE ROLE guest LOGIN",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        "CREATE DATABASE closed",
        "REVOKE CONNECT ON DATABASE closed FROM PUBLIC",
    ] {
        server.sql(sql);
    }
    let access = "local all all trust\nhost all app 127.0.0.1/32 scram-sha-256\n\
                  host none all 127.0.0.1/32 reject\nhost all all 127.0.0.1/32 trust\n";
    std::fs::write(server.dir().join("data/pg_hba.conf"), access).unwrap();
    server.sql("SELECT pg_reload_conf()");
    let asks = || server.sql("SELECT count(*) FROM pg_hba_file_rules WHERE auth_method = 'reject'");
    assert_eq!(asks(), "1");
    // Its processes hear of it one after the other.
    let rejected = url(&server, "guest", "none", LAYOUTS[0]);
    let place = Place::new();
    let told = || run(&place, &rejected, &["run", "-n", "42", "--", "true"]);
    until_true("it is asked", || told().err.contains("rejects connection"));
    for layout in LAYOUTS {
        let refused = |user: &str, database: &str, says: &[&str]| {
            refused(&url(&server, user, database, layout), 69, says);
        };
        refused(USER, "nope", &["\"nope\" does not exist", "create the database, or name another"]);
        refused("nobody", "postgres", &["\"nobody\" does not exist", "create the role, or name"]);
        refused("app:s3same", "postgres", &["user \"app\"", "check the URL's user and"]);
        refused("app", "postgres", &["wants a password", "password_file"]);
        refused("guest", "closed", &["\"closed\"", "GRANT CONNECT"]);
        refused("guest", "none", &["rejects connection", "pg_hba.conf"]);
        if !layout.contains("session") {
            refused("guest", "postgres", &["schema public", "`lockkeeper schema URL`"]);
        }
    }
}

#[test]
fn a_user_or_a_database_with_a_nul_is_no_url() {
    for layout in LAYOUTS {
        for who in ["a%00b@127.0.0.1:1/x", "a@127.0.0.1:1/x%00y"] {
            refused(&format!("postgres://{who}?{layout}"), 64, &["no NUL (%00)"]);
        }
    }
}

#[test]
fn a_table_of_our_name_that_is_not_as_we_make_it_is_refused_and_stays_as_it_is() {
    let server = PostgresServer::start();
    let place = Place::new();
    let of = |prefix: &str| format!("{}?prefix={prefix}", server.url());
    for prefix in ["right", "bare", "other", "gone", "seen", "wide", "queue"] {
        let ran = run(&place, &of(prefix), &["run", "42", "--", "true"]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    // As a backup is put back: with the rows, and without the keys. Two would hold one name.
    server.sql(
        "CREATE TABLE copy AS TABLE bare_locks; DROP TABLE bare_locks; \
         ALTER TABLE copy RENAME TO bare_locks",
    );
    server.sql("ALTER TABLE other_locks ADD COLUMN owner text NOT NULL DEFAULT 'x'");
    server.sql("ALTER TABLE other_locks ALTER COLUMN owner DROP DEFAULT; DELETE FROM other_locks");
    for (prefix, sql, says) in [
        ("bare", "", "no primary key (kind, name)"),
        ("other", "", "column \"owner\""),
        ("gone", "DROP TABLE gone_locks", "there is no \"public\".\"gone_locks\""),
        (
            "seen",
            "ALTER TABLE seen_locks RENAME TO seen; CREATE VIEW seen_locks AS TABLE seen",
            "it is a view",
        ),
        (
            "wide",
            "ALTER TABLE wide_locks DROP CONSTRAINT wide_locks_pkey; \
             CREATE UNIQUE INDEX ON wide_locks (kind, version) INCLUDE (name)",
            "add it: ALTER TABLE \"public\".\"wide_locks\" ADD PRIMARY KEY (kind, name)",
        ),
        (
            "queue",
            "DROP INDEX queue_line_claim",
            "ALTER TABLE \"public\".\"queue_line\" ADD UNIQUE (claim, kind, name)",
        ),
        ("n", "CREATE TABLE n_layout (n int)", "not its own"),
        ("locks", "CREATE TABLE locks_locks (n int)", "not its own"),
        ("line", "CREATE TABLE line_line (n int)", "not its own"),
        ("text", "CREATE TABLE text_layout AS SELECT 'a' AS number", "not as lockkeeper makes it"),
        ("empty", "CREATE TABLE empty_layout (number int)", "not as lockkeeper makes it"),
        ("old", "CREATE TABLE old_layout AS SELECT 0 AS number", "have layout 0"),
        ("view", "CREATE VIEW view_locks AS SELECT 1 AS n", "not its own"),
        ("sequence", "CREATE SEQUENCE sequence_locks", "not its own"),
    ] {
        server.sql(sql);
        let names = "SELECT string_agg(relname, ',' ORDER BY relname) FROM pg_class";
        let tables = || server.sql(names);
        let before = tables();
        refused(&of(prefix), 69, &[says, "another prefix"]);
        assert_eq!(tables(), before, "{prefix}: nothing is made beside it");
    }
    assert_eq!(run(&place, &of("right"), &["run", "42", "--", "true"]).code, 0);
}

#[test]
fn names_with_quotes_and_a_kibibyte_of_emoji_are_locks_like_any_other() {
    let server = PostgresServer::start();
    let place = Place::new();
    let (long, most) = ("🔑".repeat(256), "🔑".repeat(64));
    let odd = ["a'b", "a\"b", "\\", "a\nb", "\u{1}", "'; DROP TABLE lockkeeper_locks; --", "$1"];
    for layout in LAYOUTS {
        let hashes = if layout.contains("session") { "&names=hash" } else { "" };
        let url = url(&server, USER, "postgres", &format!("{layout}{hashes}"));
        let long = if layout.contains("shedlock") { &most } else { &long };
        for name in odd.iter().chain([&&**long]) {
            let mut holder = place.lk(["acquire", name, "--for", "60s"]);
            let mut holder = Reaped::spawn(holder.env("LOCKKEEPER_URL", &url));
            let tries = || run(&place, &url, &["run", "-n", name, "--", "true"]).code;
            until_true("it is held", || tries() == 75);
            let mut beside = (*name).to_owned();
            beside.pop();
            beside.push('c');
            let ran = run(&place, &url, &["run", "-n", &beside, "--", "true"]);
            assert_eq!(ran.code, 0, "{layout} {name}: {ran:?}");
            holder.signal(nix::sys::signal::Signal::SIGTERM);
            holder.wait();
        }
    }
    let longer = format!("{long}x");
    for (layout, name) in [(0, &longer), (1, &longer), (2, &format!("{most}x"))] {
        let url = url(&server, USER, "postgres", LAYOUTS[layout]);
        let ran = run(&place, &url, &["run", "-n", name, "--", "true"]);
        assert_eq!((ran.code, ran.err.lines().count()), (64, 1), "{ran:?}");
    }
}

/// A URL through a proxy.
fn through(proxy: &Proxy, options: &str) -> String {
    format!("postgres://{USER}@127.0.0.1:{}/postgres?{options}", proxy.port())
}

#[test]
fn a_server_that_closes_in_the_middle_of_an_answer_is_one_line_and_costs_no_hold() {
    let server = PostgresServer::start();
    let proxy = Proxy::to(server.port());
    let place = Place::new();
    for layout in LAYOUTS {
        let warm = through(&proxy, &format!("{layout}&connect_timeout=1m"));
        assert_eq!(run(&place, &warm, &["run", "42", "--", "true"]).code, 0);
        // What is not known to be given back is asked for until its lease is over.
        let layout = layout.replace("session_timeout=8s&request_timeout=20s", "session_timeout=2s");
        let url = through(&proxy, &format!("{layout}&connect_timeout=1s"));
        for bytes in [0, 1, 7, 100, 400, 800, 1_200] {
            proxy.set(Way::Down, Fault { cut_after: Some(bytes), ..Fault::default() });
            // What it got before that stays until its lease is over: each has a name of its own.
            let ran = run(&place, &url, &["run", "-n", &bytes.to_string(), "--", "true"]);
            let ended = (ran.code, ran.err.lines().count());
            assert!(matches!(ended, (69, 1) | (0, 0 | 1)), "{layout} after {bytes}: {ran:?}");
            proxy.heal();
        }
    }
    let url = through(&proxy, "ttl=9s");
    let mut holder = place.lk(["run", "kept", "--", "sh", "-c", "echo held; cat; exit 7"]);
    holder.env("LOCKKEEPER_URL", &url).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = Reaped::spawn(&mut holder);
    let mut out = BufReader::new(holder.0.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let row = "SELECT claim, number FROM lockkeeper_locks WHERE name = 'kept'";
    let (held, greeted) = (server.sql(row), proxy.accepted());
    // In the middle of the answer to its next renewal.
    proxy.set(Way::Down, Fault { cut_after: Some(3), ..Fault::default() });
    until_true("it was cut", || proxy.accepted() > greeted);
    proxy.heal();
    let ends = || server.sql("SELECT ends FROM lockkeeper_locks WHERE name = 'kept'");
    let before = ends();
    until_true("it is renewed", || ends() != before);
    assert_eq!(server.sql(row), held);
    drop(holder.0.stdin.take());
    assert_eq!(holder.wait(), 7);
}

#[test]
fn time_limits_of_the_role_that_are_shorter_than_ours_end_nothing() {
    let server = PostgresServer::start();
    let place = Place::new();
    server.sql("CREATE ROLE limited LOGIN SUPERUSER");
    for limit in ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"] {
        server.sql(&format!("ALTER ROLE limited SET {limit} = '1ms'"));
    }
    for (layout, lasts) in LAYOUTS.into_iter().zip(["&ttl=9s", "", "&ttl=9s"]) {
        let url = url(&server, "limited", "postgres", &format!("{layout}{lasts}"));
        // Longer than until the first renewal.
        let line = ["run", "-w", "60", "42", "--", "sh", "-c", "sleep 4; exit 7"];
        let ran = run(&place, &url, &line);
        assert_eq!(ran.code, 7, "{layout}: {ran:?}");
    }
}

#[test]
fn a_server_that_takes_no_more_connections_is_69_and_is_waited_for() {
    let server = PostgresServer::start();
    server.sql("CREATE ROLE guest LOGIN CONNECTION LIMIT 1");
    let full = Psql::of(&server, "guest", "SELECT 1");
    for layout in LAYOUTS {
        let says = ["role \"guest\"", "max_connections or the limit of the role"];
        refused(&url(&server, "guest", "postgres", layout), 69, &says);
    }
    let waits = url(&server, "guest", "postgres", LAYOUTS[1]);
    let place = Place::new();
    let mut waiting = place.lk(["run", "-w", "60", "42", "--", "sh", "-c", "exit 7"]);
    let mut waiting = Reaped::spawn(waiting.env("LOCKKEEPER_URL", waits));
    drop(full);
    assert_eq!(waiting.wait(), 7);
}

/// A `psql` that has answered once, and then stays; gone with the value.
struct Psql(Child);

impl Psql {
    fn of(server: &PostgresServer, user: &str, sql: &str) -> Self {
        let mut child = std::process::Command::new("/usr/lib/postgresql/15/bin/psql")
            .args(["-X", "-q", "-A", "-t", "-h", "127.0.0.1", "-d", "postgres", "-U", user])
            .args(["-p", &server.port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(child.stdin.as_mut().unwrap(), "{sql};").unwrap();
        let mut first = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        Self(child)
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
fn p12_a_name_on_which_somebodys_transaction_stands_is_never_called_held() {
    let server = PostgresServer::start();
    let place = Place::new();
    for (layout, table) in [(LAYOUTS[0], "lockkeeper_locks"), (LAYOUTS[2], "shedlock")] {
        for request_timeout in ["4s", "8s"] {
            let more = format!("{layout}&request_timeout={request_timeout}");
            let url = url(&server, USER, "postgres", &more);
            // Who asks beside others waits for them, too: each has a name of its own.
            let asking: [&[&str]; 4] = [
                &["-n", "named-1"],
                &["-w", "6", "named-2"],
                &["-n", "--on-unreachable", "run", "named-3"],
                &["-w", "6", "--on-unreachable", "run", "named-4"],
            ];
            for name in ["named-1", "named-2", "named-3", "named-4", "other"] {
                assert_eq!(run(&place, &url, &["run", name, "--", "true"]).code, 0);
            }
            let stands =
                format!("BEGIN; SELECT name FROM {table} WHERE name <> 'other' FOR UPDATE");
            let stands = Psql::of(&server, USER, &stands);
            let is_told = |ran: &Ran, name: &str| {
                let says = ["somebody's transaction stands on it", "pg_stat_activity", name];
                let told = says.iter().all(|said| ran.err.contains(said));
                assert!(ran.code == 69 && ran.err.lines().count() == 1 && told, "{more}: {ran:?}");
            };
            // The server is there, and what stands on the row may be a hold: nothing starts
            // unlocked.
            let ran = place.text("ran");
            std::thread::scope(|scope| {
                for asks in asking {
                    let line = [&["run"], asks, &["--", "touch", &ran]].concat();
                    let (place, url, is_told) = (&place, &url, &is_told);
                    scope.spawn(move || is_told(&run(place, url, &line), asks[asks.len() - 1]));
                }
            });
            assert!(!place.path("ran").exists());
            // Nothing else waits for it.
            for line in [&["run", "-n", "other", "--", "true"][..], &["status", "named-1"], &["ls"]]
            {
                let ran = run(&place, &url, line);
                assert_eq!(ran.code, 0, "{more} {line:?}: {ran:?}");
            }
            let mut waiting = place.lk(["run", "-w", "60", "named-1", "--", "sh", "-c", "exit 7"]);
            let mut waiting = Reaped::spawn(waiting.env("LOCKKEEPER_URL", &url));
            drop(stands);
            assert_eq!(waiting.wait(), 7, "{more}: it goes on by itself");
            assert_eq!(run(&place, &url, &["run", "-n", "named-1", "--", "true"]).code, 0);
        }
    }
}

#[test]
fn w1_who_gives_up_on_a_row_before_the_request_does_is_told_that_a_transaction_stands_on_it() {
    let server = PostgresServer::start();
    let place = Place::new();
    for (layout, table) in [(LAYOUTS[0], "lockkeeper_locks"), (LAYOUTS[2], "shedlock")] {
        // A row is waited for a quarter of it.
        let url = url(&server, USER, "postgres", &format!("{layout}&request_timeout=12s"));
        assert_eq!(run(&place, &url, &["run", "named", "--", "true"]).code, 0);
        let stands = format!("BEGIN; SELECT name FROM {table} WHERE name = 'named' FOR UPDATE");
        let _stands = Psql::of(&server, USER, &stands);
        let ran = run(&place, &url, &["run", "-w", "6", "named", "--", "true"]);
        let says = "somebody's transaction stands on it";
        assert!(ran.code == 69 && ran.err.contains(says), "{layout}: {ran:?}");
    }
}

#[test]
fn unreachable_after_ends_a_wait_before_the_line_also_on_a_row_that_is_refused() {
    let server = PostgresServer::start();
    let (place, url) = (Place::new(), server.url());
    assert_eq!(run(&place, &url, &["run", "named", "--", "true"]).code, 0);
    let stands = "BEGIN; SELECT name FROM lockkeeper_locks WHERE name = 'named' FOR UPDATE";
    let _stands = Psql::of(&server, USER, stands);
    // Whoever waited for -w would wait for longer than this test may.
    let line = ["run", "-w", "30m", "--unreachable-after", "4s", "named", "--", "true"];
    let ran = run(&place, &url, &line);
    let says = "somebody's transaction stands on it";
    assert!(ran.code == 69 && ran.err.contains(says), "{ran:?}");
}

#[test]
fn what_a_database_that_is_not_utf8_cannot_hold_is_said_and_the_tables_hold_it() {
    let server = PostgresServer::start();
    server.sql("CREATE DATABASE lat ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'");
    let place = Place::new();
    for (layout, code) in [(0, 0), (1, 69), (2, 69)] {
        let hashes = if layout == 1 { "&names=hash" } else { "" };
        let url = url(&server, USER, "lat", &format!("{}{hashes}", LAYOUTS[layout]));
        let mut asked = place.lk(["run", "-n", "--label", "🔑", "🔑", "--", "true"]);
        let ran = finish(asked.env("LOCKKEEPER_URL", &url));
        assert_eq!(ran.code, code, "{ran:?}");
        assert!(code == 0 || ran.err.contains("use one in UTF8, or layout=table"), "{ran:?}");
    }
}
