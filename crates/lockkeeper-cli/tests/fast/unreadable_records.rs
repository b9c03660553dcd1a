//! A record that cannot be read is neither free nor held: whoever looks is told so, and what to do
//! (C3, C8).

use std::os::unix::fs::FileExt as _;

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::zookeeper::client::{Client, Kind};
use lockkeeper_testkit::zookeeper::server::{Server, Settings};

use crate::common::{Place, Ran, json, run};

/// One line on stderr that says all of it, and 69; nothing on stdout says that the lock is free.
fn is_said(ran: &Ran, what: &str, words: &[&str]) {
    assert_eq!((ran.code, ran.err.lines().count()), (69, 1), "{what}: {ran:?}");
    assert!(words.iter().all(|word| ran.err.contains(word)), "{what}: {words:?}: {ran:?}");
    assert!(!ran.out.contains("free"), "{what}: {ran:?}");
}

/// Everything that looks at one name says that it cannot be read; so does `ls`, where the engine
/// lists, and shows the others.
fn everybody_says_so(place: &Place, url: &str, name: &str, lists: bool, words: &[&str]) {
    for args in
        [&["status", name][..], &["status", name, "--exit-code"], &["release", "--force", name]]
    {
        is_said(&run(place, url, args), &format!("{args:?}"), words);
    }
    let status = run(place, url, &["--json", "status", name]);
    is_said(&status, "status --json", &[]);
    let error = json(status.err.trim());
    assert_eq!(
        (error["name"].as_str(), error["exit"].as_u64(), status.out.as_str()),
        (Some(name), Some(69), ""),
        "{error}"
    );
    assert!(["corrupt", "newer-layout"].contains(&error["error"].as_str().unwrap()), "{error}");
    if !lists {
        return;
    }
    let holder = place.hold_with("healthy", &["--url", url, "-q"]);
    let ls = run(place, url, &["ls"]);
    is_said(&ls, "ls", words);
    assert!(ls.err.contains(name) && ls.out.contains("healthy"), "{ls:?}");
    let ls = run(place, url, &["ls", "--json"]);
    is_said(&ls, "ls --json", &[]);
    assert_eq!(json(ls.err.trim())["name"].as_str(), Some(name), "{ls:?}");
    assert_eq!(
        (json(ls.out.trim())["name"].as_str(), json(ls.out.trim())["state"].as_str()),
        (Some("healthy"), Some("held")),
        "{ls:?}"
    );
    // What is not asked for says nothing.
    assert_eq!(run(place, url, &["ls", "healthy"]).code, 0);
    holder.end();
}

#[test]
fn c3_a_record_that_cannot_be_read_is_said_on_native_redis() {
    let server = RedisServer::start();
    let (place, url) = (Place::new(), server.url());
    let newer = ["layout 9", "knows 2"];
    let newer_latch = ["layout 9", "knows 1"];
    let older = ["layout 1 by an older", "knows 2"];
    let other = ["of another type"];
    let damaged = ["cannot be read"];
    let cases: [(&str, &[&str], &[&str]); 14] = [
        ("newer", &["SET", "lockkeeper:{lock:newer}", "9 aa x 1 0 1 2 c w", "PX", "60000"], &newer),
        (
            "older",
            &["SET", "lockkeeper:{lock:older}", "1 aa x 1 42 9000 0 5 c - w", "PX", "60000"],
            &older,
        ),
        ("text", &["SET", "lockkeeper:{lock:text}", "somebody else's"], &damaged),
        (
            "nan",
            &["SET", "lockkeeper:{lock:nan}", "2 aa nan x nan nan c w 5 0 - nan", "PX", "60000"],
            &damaged,
        ),
        ("empty", &["SET", "lockkeeper:{lock:empty}", ""], &damaged),
        ("list", &["RPUSH", "lockkeeper:{lock:list}", "x"], &other),
        ("set", &["SADD", "lockkeeper:{lock:set}", "x"], &other),
        ("zset", &["ZADD", "lockkeeper:{lock:zset}", "1", "x"], &other),
        ("hash", &["HSET", "lockkeeper:{lock:hash}", "x", "y"], &damaged),
        (
            "hash9",
            &[
                "HSET",
                "lockkeeper:{lock:hash9}",
                "=",
                "9 1 - 5",
                "aa",
                "5 9 aa 0 s 1 1 c w 5 0 - 1",
            ],
            &newer,
        ),
        ("line", &["SET", "lockkeeper:{lock:line}:line", "x"], &other),
        ("last", &["SET", "lockkeeper:{lock:last}:last", "9:1:w"], &newer),
        ("lasts", &["RPUSH", "lockkeeper:{lock:lasts}:last", "x"], &other),
        ("latch", &["SET", "lockkeeper:{latch:latch}", "9 1"], &newer_latch),
    ];
    for (name, command, words) in cases {
        server.command(command);
        // Numbers alone are no name that is listed.
        everybody_says_so(&place, &url, name, !name.starts_with("last"), words);
        // A free lock is granted without a look at its line.
        if !["latch", "line"].contains(&name) {
            let asked = run(&place, &url, &["run", "-n", name, "--", "true"]);
            is_said(&asked, "run -n", words);
        }
        server.command(&["FLUSHALL"]);
    }
}

#[test]
fn c8_damage_is_not_called_newer_by_those_who_ask_for_the_lock() {
    let server = RedisServer::start();
    let place = Place::new();
    for damage in ["2 aa nan x nan nan c w 5 0 - nan", "0 aa 0 x 1 30000 c w 5 0 - 42 5 -"] {
        server.command(&["SET", "lockkeeper:{lock:v}", damage, "PX", "60000"]);
        for args in [&["run", "-n", "v", "--", "true"][..], &["status", "v"]] {
            let ran = run(&place, &server.url(), args);
            is_said(&ran, damage, &["lockkeeper:{lock:v} cannot be read"]);
            assert!(!ran.err.contains("newer") && !ran.err.contains("layout"), "{ran:?}");
        }
    }
}

#[test]
fn a_record_whose_time_to_live_was_taken_away_is_held() {
    let server = RedisServer::start();
    let place = Place::new();
    let holder = place.hold_with("job", &["--url", &server.url(), "-q"]);
    server.command(&["PERSIST", "lockkeeper:{lock:job}"]);
    let status = run(&place, &server.url(), &["status", "job", "--json", "--exit-code"]);
    assert_eq!(
        (status.code, json(status.out.trim())["state"].as_str()),
        (0, Some("held")),
        "{status:?}"
    );
    drop(holder);
}

#[test]
fn c8_one_huge_value_does_not_keep_the_others_from_being_listed() {
    let server = RedisServer::start();
    // A server that copies so much takes its time for it.
    let (place, url) = (Place::new(), server.url() + "?request_timeout=1m");
    let huge = "50000000";
    for (what, command) in [
        ("text", &["SETRANGE", "lockkeeper:{lock:huge}", huge, "x"][..]),
        ("last", &["SETRANGE", "lockkeeper:{lock:huge}:last", huge, "x"]),
        (
            "field",
            &[
                "EVAL",
                "return redis.call('HSET', KEYS[1], 'aa', string.rep('x', 50000000))",
                "1",
                "lockkeeper:{lock:huge}",
            ],
        ),
        (
            "place",
            &[
                "EVAL",
                "return redis.call('ZADD', KEYS[1], 1, '1 aa x 1 ' .. string.rep('1', 50000000))",
                "1",
                "lockkeeper:{lock:huge}:line",
            ],
        ),
    ] {
        server.command(command);
        let holder = place.hold_with("healthy", &["--url", &url, "-q"]);
        let ls = run(&place, &url, &["ls"]);
        assert!(ls.out.contains("healthy") && !ls.out.contains("huge"), "{what}: {ls:?}");
        match what {
            // No key of a name that is listed; a damaged place is nobody who waits.
            "last" | "place" => assert_eq!(ls.code, 0, "{what}: {ls:?}"),
            _ => is_said(&ls, what, &["huge: ", "cannot be read"]),
        }
        holder.end();
        server.command(&["FLUSHALL"]);
    }
    for layout in ["plain", "redisson"] {
        server.command(&["SETRANGE", "huge", huge, "x"]);
        let status = run(&place, &format!("{url}&layout={layout}"), &["status", "huge"]);
        assert_eq!(status.code, if layout == "plain" { 0 } else { 69 }, "{layout}: {status:?}");
        assert!(
            status.out.len() + status.err.len() < 2_000,
            "{layout}: {} bytes",
            status.out.len()
        );
    }
}

#[test]
fn c3_a_record_that_cannot_be_read_is_said_in_the_layouts_of_others() {
    let server = RedisServer::start();
    let place = Place::new();
    let cases: [(&str, &[&str], &str); 8] = [
        ("plain", &["RPUSH", "list", "x"], "of another type"),
        ("plain", &["SADD", "set", "x"], "of another type"),
        ("plain", &["ZADD", "zset", "1", "x"], "of another type"),
        ("plain", &["HSET", "hash", "x", "y"], "of another type"),
        ("redisson", &["RPUSH", "list", "x"], "of another type"),
        ("redisson", &["SADD", "set", "x"], "of another type"),
        ("redisson", &["SET", "text", "somebody else's"], "cannot be read"),
        ("redisson", &["SET", "empty", ""], "cannot be read"),
    ];
    for (layout, command, word) in cases {
        server.command(command);
        everybody_says_so(
            &place,
            &format!("{}?layout={layout}", server.url()),
            command[1],
            false,
            &[word],
        );
        server.command(&["FLUSHALL"]);
    }
}

#[test]
fn c3_a_record_that_cannot_be_read_is_said_on_zookeeper() {
    let server = Server::start(Settings::default()).unwrap();
    let (place, url) = (Place::new(), format!("zk://{}", server.address()));
    // A session of its own each time: between two of them everybody may be busy for longer than one
    // lasts.
    let client = || Client::connect(server.port()).unwrap();
    let create = |path: &str, data: &str, kind| {
        let mut client = client();
        client.create(path, data.as_bytes(), kind).unwrap();
        client
    };
    create("/newer", "lockkeeper-latch/9 3 aa ", Kind::Persistent);
    everybody_says_so(&place, &url, "newer", true, &["layout 9", "knows 1"]);
    _ = client().delete("/newer");

    create("/damaged", "lockkeeper-latch/1 many", Kind::Persistent);
    everybody_says_so(&place, &url, "damaged", true, &["cannot be read"]);
    _ = client().delete("/damaged");

    create("/gpu", "", Kind::Persistent);
    create("/gpu/permits", "lockkeeper-semaphore/9 3", Kind::Persistent);
    everybody_says_so(&place, &url, "gpu", true, &["layout 9", "knows 1"]);
    let asked = run(&place, &url, &["run", "-n", "--permits", "1/3", "gpu", "--", "true"]);
    is_said(&asked, "run -n", &["layout 9", "knows 1"]);

    // Whoever stands in a line holds, whatever its record says: both numbers are told beside it.
    create("/line", "", Kind::Persistent);
    let _holds = create(
        "/line/_c_00000000-0000-0000-0000-000000000000-lock-",
        "lockkeeper/9 anything",
        Kind::EphemeralSequential,
    );
    let status = run(&place, &url, &["status", "line", "--exit-code"]);
    assert_eq!(status.code, 0, "{status:?}");
    assert!(
        status.out.contains("held")
            && status.out.contains("layout 9")
            && status.out.contains("knows 1"),
        "{status:?}"
    );
    assert_eq!(run(&place, &url, &["run", "-n", "line", "--", "true"]).code, 75);
}

#[test]
fn c3_a_record_that_cannot_be_read_is_said_on_files() {
    for (what, at, bytes, words) in [
        ("newer", 20, &[9, 0][..], &["layout 9", "knows layout 1"][..]),
        ("header", 0, &[7; 64], &["cannot be read"]),
        ("magic", 0, &[7; 4], &["cannot be read"]),
        ("record", 2_048, &[7; 2_048], &["cannot be read"]),
    ] {
        let place = Place::new();
        let url = format!("file://{}", place.text("locks"));
        assert_eq!(run(&place, &url, &["run", "shop/a b", "--", "true"]).code, 0);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(place.path("locks/shop%2Fa%20b.lock"))
            .unwrap();
        file.write_all_at(bytes, at).unwrap();
        // Of the file of another program nobody knows more than before.
        std::fs::write(place.path("locks/apt.lock"), "12345\n").unwrap();
        everybody_says_so(&place, &url, "shop/a b", true, words);
        is_said(&run(&place, &url, &["run", "-n", "shop/a b", "--", "true"]), what, words);
    }
}

#[test]
fn a_record_that_cannot_be_read_keeps_nobody_from_forcing_the_other_locks_of_its_name() {
    let server = RedisServer::start();
    let (place, url) = (Place::new(), server.url());
    for (more, says) in [(&[][..], "v (semaphore): taken from"), (&["--json"], "\"taken\":true")] {
        server.command(&["SET", "lockkeeper:{lock:v}", "somebody else's"]);
        let holder =
            place.hold_with("v", &["--url", &url, "-q", "--permits", "1/2", "--on-lost", "warn"]);
        let forced = run(&place, &url, &[&["release", "--force", "v"][..], more].concat());
        is_said(&forced, "release --force", &["lockkeeper:{lock:v} cannot be read"]);
        assert!(forced.out.contains(says), "{forced:?}");
        let status = run(&place, &url, &["status", "v"]);
        assert!(status.code == 69 && !status.out.contains("held"), "{status:?}");
        holder.end();
        server.command(&["FLUSHALL"]);
    }
}
