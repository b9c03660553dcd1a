//! Servers that refuse us, or are not what the URL says: one line that says what to do, the
//! documented code, and nothing runs.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::blocking::Locks;
use lockkeeper_testkit::postgres::server::PostgresServer;
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::zookeeper::server::{self as zookeeper, Settings};

use crate::common::{self, Place, Ran, finish};

/// Runs a command under the lock `a` of this server; it must not run.
fn refused(url: &str, name: &str, code: i32, says: &[&str]) {
    let place = Place::new();
    let ran =
        finish(&mut place.lk(["run", name, "-n", "--url", url, "--", "touch", &place.text("ran")]));
    assert_eq!(
        (ran.code, ran.err.lines().count(), ran.out.as_str()),
        (code, 1, ""),
        "{url}: {ran:?}"
    );
    for part in says {
        assert!(ran.err.contains(part), "{url}: {part:?} in {ran:?}");
    }
    assert!(!ran.err.contains("s3same"), "{ran:?}");
    assert!(!place.path("ran").exists(), "{url}: it ran");
}

/// Runs it until it says all of this: whoever stood still for all of its time knows less.
fn until_it_says(says: &[&str], mut run: impl FnMut() -> Ran) {
    common::until_true("the reason is told", || {
        let ran = run();
        let says = says.iter().all(|part| ran.err.contains(part));
        if !says {
            eprintln!("{ran:?}");
        }
        says
    });
}

fn url(server: &RedisServer, user: &str) -> String {
    format!("redis://{user}127.0.0.1:{}", server.port())
}

#[test]
fn a_password_that_is_missing_or_wrong_ends_with_69() {
    let server = RedisServer::start_with(&["--requirepass", "open-s3same"]);
    refused(&url(&server, ""), "a", 69, &["wants a password", "password_file"]);
    refused(&url(&server, ":s3same@"), "a", 69, &["does not accept this user and password"]);
    refused(&url(&server, "bob:s3same@"), "a", 69, &["user bob"]);
}

#[test]
fn w1_a_wait_that_ends_without_any_answer_names_the_server() {
    // It accepts, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    for scheme in ["redis", "zk"] {
        let place = Place::new();
        let url = format!("{scheme}://{at}");
        let ran = finish(&mut place.lk(["run", "a", "-w", "1s", "--url", &url, "--", "true"]));
        assert_eq!((ran.code, ran.err.lines().count()), (69, 1), "{ran:?}");
        assert!(ran.err.contains(&at.to_string()), "{ran:?}");
    }
}

#[test]
fn w1_a_wait_that_ends_while_the_first_connection_is_tried_gives_the_last_reason() {
    let nobody = format!("127.0.0.1:{}", lockkeeper_testkit::servers::free_port());
    let place = Place::new();
    for url in [format!("zk://{nobody}"), format!("redis://{nobody}")] {
        for args in [&["run", "a", "-w", "2s"][..], &["acquire", "a", "-w", "2s"]] {
            let command: &[&str] = if args[0] == "run" { &["--", "true"] } else { &[] };
            until_it_says(&["Connection refused"], || {
                let ran = finish(&mut place.lk([args, &["--url", &url], command].concat()));
                assert_eq!((ran.code, ran.err.lines().count()), (69, 1), "{ran:?}");
                assert!(ran.err.contains(&nobody), "{ran:?}");
                ran
            });
        }
    }
}

#[test]
fn a_try_ends_with_the_reason_as_soon_as_every_server_has_refused_the_connection() {
    // Nobody listens there; whoever waited for a server would wait for longer than this test may.
    let (one, three) = ("127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3");
    for url in [
        format!("zk://{one}"),
        format!("zk://{three}"),
        format!("redis://{one}"),
        format!("redlock://{three}"),
        format!("redis+sentinel://{three}/shop"),
        format!("redis+cluster://{three}"),
        format!("postgres://app@{one}/shop"),
    ] {
        let url = format!("{url}?connect_timeout=30m");
        refused(&url, "a", 69, &["Connection refused"]);
    }
}

#[test]
fn w2_a_redis_server_behind_a_zookeeper_url_is_named_with_the_url_to_use() {
    let server = RedisServer::start();
    let (at, place) = (format!("127.0.0.1:{}", server.port()), Place::new());
    let says = format!("what answers at {at} is a Redis server: use redis://{at}");
    refused(&format!("zk://{at}"), "a", 64, &[&says]);
    let locked = RedisServer::start_with(&["--requirepass", "s3same"]);
    refused(&format!("zk://127.0.0.1:{}", locked.port()), "a", 64, &["is a Redis server"]);
    let url = format!("zk://{at}");
    let waits = finish(&mut place.lk(["run", "a", "-w", "60s", "--url", &url, "--", "true"]));
    assert!(waits.code == 64 && waits.err.contains(&says), "no waiting helps: {waits:?}");
}

#[test]
fn a_right_that_a_user_lacks_is_named_and_ends_with_69() {
    let server = RedisServer::start();
    let keys = ["~lockkeeper:*", "&lockkeeper:*", "+@all"];
    for (rules, says) in [
        (
            vec![keys[0], keys[1], keys[2], "-evalsha"],
            &["user ann", "'evalsha'", "+@scripting"][..],
        ),
        (vec![keys[0], keys[2]], &["user ann", "channel", "SUBSCRIBE", "&lockkeeper:*"]),
        (vec!["~other:*", keys[1], keys[2]], &["user ann", "keys", "~lockkeeper:*"]),
        (
            vec![keys[0], keys[1], keys[2], "-set"],
            &["user ann", "the script uses", "SET", "+@write"],
        ),
    ] {
        let mut words = vec!["ACL", "SETUSER", "ann", "reset", "on", ">s3same"];
        words.extend(rules);
        assert_eq!(server.command(&words), ["OK"]);
        refused(&url(&server, "ann:s3same@"), "a", 69, says);
    }
}

#[test]
fn a_server_of_another_sort_is_named_with_the_url_to_use() {
    let primary = RedisServer::start();
    let replica =
        RedisServer::start_with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    refused(
        &url(&replica, ""),
        "a",
        69,
        &["read-only replica of 127.0.0.1", "the URL of the primary"],
    );
    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    refused(&url(&node, ""), "a", 64, &[&format!("use redis+cluster://127.0.0.1:{}", node.port())]);
    let sentinel = RedisServer::start_sentinel();
    refused(&url(&sentinel, ""), "a", 64, &["use redis+sentinel://"]);
}

#[test]
fn a_key_of_another_type_under_our_name_is_named_and_stays_as_it_is() {
    let server = RedisServer::start();
    // A line is looked at once somebody is in the way.
    let locks = Locks::open(&url(&server, "")).unwrap();
    let _held = locks.mutex("b").lock().run().unwrap();
    for key in ["lockkeeper:{lock:a}", "lockkeeper:{lock:b}:line", "cart"] {
        server.command(&["RPUSH", key, "x"]);
    }
    refused(
        &url(&server, ""),
        "a",
        69,
        &["lockkeeper:{lock:a}", "another type", "rename or delete it"],
    );
    refused(&url(&server, ""), "b", 69, &["lockkeeper:{lock:b}:line", "another type"]);
    for layout in ["plain", "redisson"] {
        refused(
            &format!("{}?layout={layout}", url(&server, "")),
            "cart",
            69,
            &["the key cart", "another name"],
        );
    }
    for key in ["lockkeeper:{lock:a}", "lockkeeper:{lock:b}:line", "cart"] {
        assert_eq!(server.command(&["LRANGE", key, "0", "-1"]), ["x"]);
    }
}

#[test]
fn a_full_server_and_one_that_cannot_save_end_with_69() {
    let server = RedisServer::start_with(&["--save", "3600 1", "--dbfilename", "x"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    refused(&url(&server, ""), "a", 69, &["out of memory (maxmemory)"]);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    std::fs::create_dir(server.dir().join("x")).unwrap();
    server.command(&["SET", "k", "v"]);
    server.command(&["BGSAVE"]);
    common::until_true("saving has failed", || {
        server.command(&["INFO", "persistence"]).join("\n").contains("rdb_last_bgsave_status:err")
    });
    refused(&url(&server, ""), "a", 69, &["cannot save to its disk"]);
}

/// Connections that stay: of those that a server closes at once it has as many as it takes.
fn fill(port: u16) -> Vec<TcpStream> {
    let mut held = Vec::new();
    loop {
        let mut one = TcpStream::connect(("127.0.0.1", port)).unwrap();
        one.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        match one.read(&mut [0; 64]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => held.push(one),
            // Who asked before may still be counted.
            _ if held.len() < 2 => {}
            _ => return held,
        }
    }
}

#[test]
fn b7_a_full_server_is_a_refusal_and_on_unreachable_run_does_not_start_the_command() {
    let place = Place::new();
    let refused = |url: &str, says: &str| {
        let ran = place.text("ran");
        let line = ["run", "a", "-n", "--on-unreachable", "run", "--url", url, "--", "touch", &ran];
        until_it_says(&[says], || {
            let ran = finish(&mut place.lk(line));
            assert_eq!((ran.code, ran.err.lines().count()), (69, 1), "{url}: {ran:?}");
            assert!(!place.path("ran").exists(), "{url}: it ran");
            ran
        });
    };
    let redis = RedisServer::start_with(&["--maxclients", "4"]);
    let full = fill(redis.port());
    refused(&url(&redis, ""), "has as many clients as it takes (maxclients)");
    drop(full);
    let redis = RedisServer::start_with(&["--maxmemory", "1"]);
    refused(&url(&redis, ""), "out of memory (maxmemory)");

    let lines = vec!["maxClientCnxns=2".to_owned()];
    let zookeeper = zookeeper::Server::start(Settings { lines, ..Settings::default() }).unwrap();
    let full = fill(zookeeper.port());
    refused(&format!("zk://{}?connect_timeout=2s", zookeeper.address()), "(maxClientCnxns)");
    drop(full);

    let postgres = PostgresServer::start();
    postgres.sql("CREATE ROLE guest LOGIN CONNECTION LIMIT 0");
    let at = format!("postgres://guest@127.0.0.1:{}/postgres", postgres.port());
    refused(&at, "has as many connections as it takes");
}

#[test]
fn b7_whoever_waits_goes_on_waiting_while_a_server_is_full() {
    let place = Place::new();
    let waits = |url: &str, says: &str, room: &mut dyn FnMut()| {
        let line = ["run", "a", "-v", "-w", "10m", "--url", url, "--", "true"];
        let mut child = place.lk(line).stderr(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(told.any(|line| line.contains(says)), "{url}: it has ended");
        room();
        told.for_each(drop);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{url}");
    };
    let redis = RedisServer::start_with(&["--maxclients", "4"]);
    let mut full = Some(fill(redis.port()));
    waits(&url(&redis, ""), "(maxclients)", &mut || drop(full.take()));
    let redis = RedisServer::start_with(&["--maxmemory", "1"]);
    let mut room = || drop(redis.command(&["CONFIG", "SET", "maxmemory", "0"]));
    waits(&url(&redis, ""), "(maxmemory)", &mut room);

    let postgres = PostgresServer::start();
    postgres.sql("CREATE ROLE guest LOGIN CONNECTION LIMIT 0");
    postgres.sql("GRANT CREATE ON SCHEMA public TO guest");
    let postgres = &postgres;
    let at = format!("postgres://guest@127.0.0.1:{}/postgres", postgres.port());
    let mut room = || drop(postgres.sql("ALTER ROLE guest CONNECTION LIMIT 9"));
    waits(&at, "as many connections as it takes", &mut room);
}

#[test]
fn n3_a_read_only_zookeeper_server_is_said_beside_what_the_others_of_the_url_say() {
    let properties = vec!["readonlymode.enabled=true".to_owned()];
    let settings = Settings { properties, ..Settings::default() };
    let mut both = zookeeper::Ensemble::start(2, &settings).unwrap();
    let (url, place) = (format!("zk://{}?connect_timeout=2s", both.addresses()), Place::new());
    both.servers[1].kill().unwrap();
    common::until_true("the other one is read-only", || {
        both.servers[0].mode().as_deref() == Some("read-only")
    });
    let [left, gone] = [&both.servers[0], &both.servers[1]].map(zookeeper::Server::address);
    let says = [
        format!("{left}: the server is cut off from its ensemble and read-only"),
        format!("{gone}: Connection refused"),
    ];
    let says = says.each_ref().map(String::as_str);
    for args in [
        &["run", "a", "-n", "--", "true"][..],
        &["run", "a", "-w", "3s", "--", "true"],
        &["acquire", "a", "-w", "3s"],
        &["status", "a"],
        &["doctor"],
    ] {
        until_it_says(&says, || {
            let ran = common::run(&place, &url, args);
            assert_eq!((ran.code, ran.err.lines().count()), (69, 1), "{args:?}: {ran:?}");
            ran
        });
    }
}

#[test]
fn what_does_not_speak_the_protocol_ends_with_69() {
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"\0\x01\x02\r\n$$$\r\n",
        b"*1000000000\r\n",
        b"%-7\r\n",
        b"$99999999999999999999\r\n",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            drop(stream.read(&mut [0; 1000]));
            stream.write_all(answer).unwrap();
            // The other side hangs up.
            drop(stream.read_to_end(&mut Vec::new()));
        });
        refused(
            &format!("redis://127.0.0.1:{port}"),
            "a",
            69,
            &["cannot be reached", "does not speak the Redis protocol"],
        );
        server.join().unwrap();
    }
}

#[test]
fn a_lock_that_somebody_left_without_a_time_to_live_is_named_and_taken_by_force_alone() {
    let server = RedisServer::start();
    server.command(&["SETNX", "nightly", "worker-3"]);
    let (place, url) = (Place::new(), format!("{}?layout=plain", url(&server, "")));
    let run = |args: &[&str]| finish(place.lk(args).args(["--url", &url]));
    let shown = run(&["status", "nightly"]);
    assert!(
        shown.out.contains("worker-3") && shown.out.contains("without a time to live"),
        "{shown:?}"
    );
    // A busy machine may need more than one try until the engine was reached at all.
    common::until_true("who waits is told who has it", || {
        let line = ["run", "nightly", "-w", "300ms", "--url", &url, "--", "true"];
        let waited = finish(&mut place.lk(line));
        assert!(matches!(waited.code, 75 | 69), "{waited:?}");
        waited.code == 75 && waited.err.contains("worker-3")
    });
    assert_eq!(server.command(&["GET", "nightly"]), ["worker-3"]);
    assert_eq!(run(&["release", "--force", "nightly"]).code, 0);
    assert_eq!(
        finish(&mut place.lk(["run", "nightly", "-n", "--url", &url, "--", "true"])).code,
        0
    );
}

#[test]
fn an_answer_that_is_nonsense_is_not_asked_for_again() {
    for answer in ["+OK\r\n", ":1\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connected = Arc::new(AtomicUsize::new(0));
        let counts = connected.clone();
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counts.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || answer_everything(stream?, answer));
            }
            std::io::Result::Ok(())
        });
        refused(&format!("redis://127.0.0.1:{port}"), "a", 69, &["cannot be understood"]);
        assert_eq!(connected.load(Ordering::SeqCst), 1, "{answer:?}");
    }
}

/// Answers each command with the same words.
fn answer_everything(mut stream: std::net::TcpStream, answer: &str) -> std::io::Result<()> {
    let mut reader = std::io::BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    loop {
        line.clear();
        // One array of bulk strings a command, of which only the count and the lengths matter.
        if std::io::BufRead::read_line(&mut reader, &mut line)? == 0 {
            return Ok(());
        }
        let count: usize = line.trim_start_matches('*').trim_end().parse().unwrap_or(0);
        for _ in 0..count {
            line.clear();
            std::io::BufRead::read_line(&mut reader, &mut line)?;
            let length: usize = line.trim_start_matches('$').trim_end().parse().unwrap_or(0);
            reader.read_exact(&mut vec![0; length + 2])?;
        }
        stream.write_all(answer.as_bytes())?;
    }
}
