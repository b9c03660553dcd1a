//! Dialling: which servers are used, and which are refused.

use std::net::TcpListener;
use std::time::Duration;

use lockkeeper_testkit::postgres::server::{PostgresServer, USER};

use super::super::options::PostgresOptions;
use super::super::wire::dial;
use super::{TTL, claim, engine, open};
use crate::engine::dial::names;
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, Common};
use crate::open::url::EngineUrl;
use crate::words::claim::Mode;
use crate::words::error::{ErrorKind, Result};

/// A process that has heard of a server in so short a time as the URL says, at one of a few tries.
fn opened_at_last(url: &str) -> Process {
    let mut opened = None;
    until("a server answers in time", || {
        opened = open(url).ok();
        opened.is_some()
    });
    opened.expect("it was opened")
}

#[test]
fn a_host_that_is_silent_does_not_keep_the_next_one_from_being_tried() {
    let server = PostgresServer::start();
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let hosts = format!("127.0.0.1:{port},127.0.0.1:{}", server.port());
    let times = "connect_timeout=1s&request_timeout=20s";
    let one = opened_at_last(&format!("postgres://{USER}@{hosts}/postgres?{times}"));
    granted(one.attempt(&claim(&one, "a")));
}

#[test]
fn b1_a_server_that_takes_no_writes_any_more_is_left_for_the_one_that_its_name_leads_to() {
    let (first, second) = (PostgresServer::start(), PostgresServer::start());
    drop(super::process(&second));
    let at = |server: &PostgresServer| (std::net::Ipv4Addr::LOCALHOST, server.port()).into();
    names::lead_to("b1-postgres", &[at(&first)]);
    let url = format!("postgres://{USER}@b1-postgres/postgres?sslmode=disable");
    let one = opened_at_last(&format!("{url}&connect_timeout=1s&request_timeout=20s"));
    one.take("a", Mode::Exclusive);
    // As a failover begins, while the connections stay.
    first.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    first.sql("SELECT pg_reload_conf()");
    let mut last = String::new();
    until("it is told", || {
        if let Attempt::Failed(error) = one.attempt_try(&claim(&one, "b")) {
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            last = error.message().to_owned();
        }
        last.contains("takes no writes")
    });
    names::lead_to("b1-postgres", &[at(&second)]);
    one.link(true);
    granted(one.attempt(&claim(&one, "b")));
    assert_eq!(second.sql("SELECT count(*) FROM lockkeeper_locks"), "1");
}

#[test]
fn b7_a_server_that_is_full_says_so_and_that_is_a_refusal() {
    let server = PostgresServer::start_with(&["max_connections=10"]);
    // The last three are kept for superusers, and everybody is one here but this role.
    server.sql("CREATE ROLE guest LOGIN CONNECTION LIMIT 1");
    let (full, at) = (stays_as(&server, "guest"), format!("127.0.0.1:{}", server.port()));
    for layout in ["table", "session", "shedlock"] {
        // Beside it there is one that cannot be reached.
        for hosts in [at.clone(), format!("127.0.0.1:1,{at}"), format!("{at},127.0.0.1:1")] {
            let url = format!("postgres://guest@{hosts}/postgres?layout={layout}");
            let error = open(&url).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{url}: {error}");
            assert!(error.is_temporary(), "{error}");
            let says = ["has as many connections as it takes", "too many connections", "guest"];
            assert!(says.iter().all(|said| error.message().contains(said)), "{error}");
        }
    }
    drop(full);
    let layout = "layout=session";
    until("it has room", || open(&format!("postgres://guest@{at}/postgres?{layout}")).is_ok());
}

/// As a role with a password.
fn app(server: &PostgresServer) -> PostgresOptions {
    let url = format!("postgres://app:sesame@127.0.0.1:{}/postgres", server.port());
    PostgresOptions::take(&mut EngineUrl::parse(&url).unwrap(), &Common::new(TTL, 100)).unwrap()
}

async fn dials(options: &PostgresOptions) -> Result<()> {
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    dial(options, &options.addresses[0], "test", until).await.map(drop)
}

#[tokio::test]
async fn b2_a_role_that_may_not_log_in_is_no_wrong_password_and_is_dialled_again_at_once() {
    let server = PostgresServer::start();
    server.sql("CREATE ROLE app LOGIN PASSWORD 'sesame'");
    let app = app(&server);
    dials(&app).await.unwrap();
    server.sql("ALTER ROLE app NOLOGIN");
    for _ in 0..2 {
        let error = dials(&app).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.message().contains("not permitted to log in"), "{error}");
    }
    server.sql("ALTER ROLE app LOGIN");
    dials(&app).await.expect("it may again");
}

/// The server has no code of its own for that.
#[tokio::test]
async fn b2_a_password_that_ldap_refused_is_not_sent_again_at_once() {
    let server = PostgresServer::start();
    server.sql("CREATE ROLE app LOGIN");
    let asks = "local all all trust\nhost all all 127.0.0.1/32 ldap ldapserver=127.0.0.1 \
                ldapport=1 ldapprefix=cn=\n";
    std::fs::write(server.dir().join("data/pg_hba.conf"), asks).unwrap();
    server.sql("SELECT pg_reload_conf()");
    let refused = || server.log().matches("LDAP authentication failed").count();
    let began = std::time::Instant::now();
    while dials(&app(&server)).await.is_ok() {
        assert!(began.elapsed() < Duration::from_secs(60), "it is not asked");
    }
    let (app, before) = (app(&server), refused());
    for _ in 0..3 {
        let error = dials(&app).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.message().contains("check the URL's user and the password"), "{error}");
    }
    assert_eq!(refused() - before, 1);
}

/// A connection of this role, for as long as it lives.
fn stays_as(server: &PostgresServer, role: &str) -> std::net::TcpStream {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let said = format!("\0\x03\0\0user\0{role}\0database\0postgres\0\0");
    let length = u32::try_from(said.len() + 4).unwrap().to_be_bytes();
    stream.write_all(&[&length[..], said.as_bytes()].concat()).unwrap();
    // It is welcome: authenticated, and not an error.
    let mut first = [0];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(first, *b"R");
    stream
}

#[test]
fn a_prefix_or_schema_cannot_speak_in_the_statements() {
    for option in ["prefix", "schema"] {
        for text in ["%7Bline%7D", "a%7Bnow%7D", "a%7D", "a%0Ab", "a%7Fb"] {
            let error = engine(&format!("postgres://127.0.0.1/x?{option}={text}"));
            let error = error.map(drop).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
            assert!(error.message().contains(option), "{error}");
        }
    }
}

#[test]
fn p4_a_pooler_is_found_by_the_process_that_it_greets_with() {
    let server = PostgresServer::start_with(&["log_statement=all"]);
    let greets = Greeter::before(&server);
    let at = format!("postgres://{USER}@127.0.0.1:{}/postgres", greets.port);
    let found = open(&at).expect("the tables can be used through it");
    assert!(found.engine.describe().warnings.iter().any(|warning| warning.id == "pooler"));
    granted(found.attempt(&claim(&found, "a")));
    // What is set there stays on a connection that somebody else gets next.
    let log = server.log();
    for left in ["SET statement_timeout", "LISTEN"] {
        assert!(!log.contains(left), "{log}");
    }
    let error = open(&format!("{at}?layout=shedlock")).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.message().contains("pooler=session"), "{error}");
    let through = open(&format!("{at}?pooler=session")).unwrap();
    granted(through.attempt(&claim(&through, "b")));
    assert!(server.log().contains("SET statement_timeout"), "it would be seen");
}

#[test]
fn g2_tables_that_a_connection_finds_in_another_schema_than_the_first_one_are_refused() {
    let server = PostgresServer::start();
    let one = super::process(&server);
    one.take("a", Mode::Exclusive);
    // Tables of the same names, which the next connection finds first.
    drop(open(&format!("{}?schema=other", server.url())).expect("it makes them"));
    server.sql(&format!("ALTER ROLE {USER} SET search_path = other, public"));
    let other = super::process(&server);
    other.take("a", Mode::Exclusive);
    let ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE application_name LIKE 'lockkeeper:%'";
    server.sql(ours);
    one.link(false);
    let mut last = String::new();
    until("it is told", || {
        if let Attempt::Failed(error) = one.attempt_try(&claim(&one, "a")) {
            last = error.message().to_owned();
        }
        last.contains("schema=")
    });
    assert!(last.contains("\"other\"") && last.contains("\"public\""), "{last}");
}

/// A table of the same name without its keys, which the search path finds first, or last.
#[test]
fn g2_the_keys_that_count_are_those_of_the_table_that_is_used() {
    let server = PostgresServer::start();
    drop(super::process(&server));
    let copy = "CREATE TABLE other.lockkeeper_locks AS TABLE lockkeeper_locks";
    server.sql(&format!("CREATE SCHEMA other; {copy}"));
    server.sql(&format!("ALTER ROLE {USER} SET search_path = other, public"));
    let one = super::process(&server);
    granted(one.attempt(&claim(&one, "a")));
    assert!(one.engine.describe().warnings.is_empty(), "its number has its index");
    server.sql("CREATE TABLE other.lockkeeper_layout AS TABLE lockkeeper_layout");
    server.sql("ALTER TABLE public.lockkeeper_layout RENAME TO away");
    server.sql("CREATE TABLE other.lockkeeper_line (LIKE lockkeeper_line INCLUDING INDEXES)");
    server.sql(&format!("ALTER ROLE {USER} SET search_path = public, other"));
    let error = open(&server.url()).map(drop).unwrap_err();
    let says = ["\"other\".\"lockkeeper_locks\"", "no primary key (kind, name)"];
    assert!(says.iter().all(|said| error.message().contains(said)), "{error}");
}

#[test]
fn g1_a_role_whose_idle_sessions_end_keeps_its_holds() {
    let server = PostgresServer::start();
    server.sql(&format!("ALTER ROLE {USER} SET idle_session_timeout = '300ms'"));
    let one = super::process(&server);
    one.take("a", Mode::Exclusive);
    let pid = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'lockkeeper:%'";
    let before = server.sql(pid);
    // Longer than that.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(server.sql(pid), before);
}

/// What a pooler does to the greeting: another process id.
pub(in crate::engine::postgres) struct Greeter {
    pub(in crate::engine::postgres) port: u16,
}

impl Greeter {
    pub(in crate::engine::postgres) fn before(server: &PostgresServer) -> Self {
        use std::io::{Read as _, Write as _};
        use std::net::{TcpListener, TcpStream};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, at) = (listener.local_addr().unwrap().port(), server.port());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let mut client = client.unwrap();
                let mut behind = TcpStream::connect(("127.0.0.1", at)).unwrap();
                let (mut up, mut to) = (client.try_clone().unwrap(), behind.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut up, &mut to));
                std::thread::spawn(move || {
                    let mut bytes = [0; 16 << 10];
                    while let Ok(count @ 1..) = behind.read(&mut bytes) {
                        // BackendKeyData: 'K', its length, the process id.
                        let head = [b'K', 0, 0, 0, 12];
                        let found = bytes[..count].windows(5).position(|five| five == head);
                        if let Some(at) = found {
                            bytes[at + 8] ^= 1;
                        }
                        if client.write_all(&bytes[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { port }
    }
}
