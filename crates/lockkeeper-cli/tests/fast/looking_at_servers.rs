//! The subcommands that look, on engines with a server.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use lockkeeper::blocking::Locks;
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::zookeeper::server::{Server, Settings};

use crate::common::{self, Place, Ran, Reaped, finish, json, run};

/// The same on every engine: who holds, what changes, and what an operator may do about it.
fn everything_that_looks(url: &str, engine: &str) {
    let place = Place::new();
    let run = |args: &[&str]| run(&place, url, args);
    assert_eq!((run(&["ls"]).out.as_str(), run(&["ls"]).code), ("", 0));
    let free = run(&["status", "a", "--json", "--exit-code"]);
    let expected = format!(
        "{{\"name\":\"a\",\"kind\":\"lock\",\"engine\":\"{engine}\",\"state\":\"free\",\
         \"limit\":null,\"holders\":[],\"waiters\":[]}}\n"
    );
    assert_eq!((free.code, free.out), (1, expected));
    let nobody = run(&["release", "--force", "a"]);
    assert_eq!(nobody.code, 1, "{nobody:?}");
    assert!(nobody.err.contains("nobody holds it"), "{nobody:?}");

    let before = place.hold_with("before", &["--url", url]);
    let mut watch = Reaped::spawn(
        place.lk(["watch", "--json"]).env("LOCKKEEPER_URL", url).stdout(Stdio::piped()),
    );
    let mut changes = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let change = json(&changes.next().unwrap().unwrap());
    assert_eq!(
        (change["event"].as_str(), change["name"].as_str()),
        (Some("held"), Some("before")),
        "{change}"
    );
    assert!(change["since"].as_str().unwrap() < change["at"].as_str().unwrap(), "{change}");
    before.end();
    assert_eq!(json(&changes.next().unwrap().unwrap())["event"].as_str(), Some("released"));
    let locks = Locks::open(url).unwrap();
    let guard = locks.mutex("a").lock().label("import").run().unwrap();
    let token = guard.token().unwrap().to_string();

    let change = json(&changes.next().unwrap().unwrap());
    assert_eq!(
        (change["event"].as_str(), change["name"].as_str(), change["engine"].as_str()),
        (Some("granted"), Some("a"), Some(engine))
    );
    assert_eq!(change["token"].as_str(), Some(token.as_str()), "{change}");
    let held = run(&["status", "a", "--json", "--exit-code"]);
    assert_eq!(held.code, 0, "{held:?}");
    let entry = json(held.out.trim_end());
    let holder = &entry["holders"][0];
    assert_eq!(
        (entry["state"].as_str(), holder["pid"].as_u64()),
        (Some("held"), Some(u64::from(std::process::id()))),
        "{entry}"
    );
    assert_eq!(
        (holder["mode"].as_str(), holder["token"].as_str()),
        (Some("exclusive"), Some(token.as_str())),
        "{entry}"
    );
    let ls = run(&["ls", "--json"]);
    assert_eq!(
        json(ls.out.trim_end())["holders"][0]["token"].as_str(),
        Some(token.as_str()),
        "{ls:?}"
    );
    let table = run(&["ls"]);
    assert!(
        table.out.contains(&token) && table.out.contains(&format!("pid {}", std::process::id())),
        "{table:?}"
    );

    let taken = run(&["release", "--force", "a", "--json"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    let taken = json(taken.out.trim_end());
    assert_eq!(
        (taken["taken"].as_bool(), taken["engine"].as_str()),
        (Some(true), Some(engine)),
        "{taken}"
    );
    assert_eq!(taken["holders"][0]["token"].as_str(), Some(token.as_str()), "{taken}");
    assert_eq!(json(&changes.next().unwrap().unwrap())["event"].as_str(), Some("released"));
    // Its holder hears of it: at the next renewal at the latest.
    let asked = guard.held().verify_blocking().unwrap_err();
    assert_eq!(asked.kind(), lockkeeper::ErrorKind::Lost);
    assert_eq!(run(&["status", "a", "--exit-code"]).code, 1);

    let doctor = run(&["doctor", "--json"]);
    let about = json(doctor.out.trim_end());
    assert_eq!(
        (about["engine"].as_str(), about["hosts"].as_bool(), about["fenced"].as_bool()),
        (Some(engine), Some(true), Some(true))
    );
    assert!(about["recovery_ms"].as_u64().unwrap() > 0, "{about}");
    assert_eq!(doctor.code, 0, "{about}");
    let strict = run(&["doctor", "--strict"]).code;
    assert_eq!(strict, i32::from(!about["warnings"].as_array().unwrap().is_empty()), "{about}");
    let words = run(&["doctor"]).out;
    assert!(
        words.contains("every machine that reaches the server") && words.contains("breaks"),
        "{words}"
    );
    let gc = run(&["gc"]);
    assert_eq!(gc.code, 64, "{gc:?}");
    watch.signal(nix::sys::signal::Signal::SIGINT);
    assert_eq!(watch.wait(), 130);
    _ = locks.close();
}

#[test]
fn everything_that_looks_works_on_redis() {
    let server = RedisServer::start();
    everything_that_looks(&server.url(), "redis");
    let place = Place::new();
    let gpu = run(&place, &server.url(), &["permits", "gpu", "3", "--json"]);
    assert_eq!((gpu.code, json(gpu.out.trim_end())["limit"].as_u64()), (0, Some(3)), "{gpu:?}");
    let locks = Locks::open(&server.url()).unwrap();
    let other = locks.semaphore("gpu", 4).try_acquire(1).run().unwrap_err();
    assert_eq!(other.kind(), lockkeeper::ErrorKind::LimitMismatch);
}

#[test]
fn c2_status_and_a_forced_release_work_on_every_lock_of_redisson() {
    let server = RedisServer::start();
    let place = Place::new();
    for (at, (options, lock)) in [
        ("", &[][..]),
        ("&lock=fenced", &[]),
        ("&lock=fair", &[]),
        ("&lock=rw", &[]),
        ("&lock=rw", &["-s"]),
        ("", &["--permits", "1/2"]),
        ("&semaphore=simple", &["--permits", "1/2"]),
    ]
    .into_iter()
    .enumerate()
    {
        let url = format!("{}?layout=redisson{options}", server.url());
        let name = format!("job-{at}");
        let options: Vec<&str> =
            ["--url", &url, "-q"].into_iter().chain(lock.iter().copied()).collect();
        let holder = place.hold_with(&name, &options);
        let status = run(&place, &url, &["status", &name, "--exit-code"]);
        assert_eq!((status.code, status.err.as_str()), (0, ""), "{url} {lock:?}: {status:?}");
        assert!(status.out.contains("held"), "{url}: {status:?}");
        assert!(!status.out.contains("(latch"), "{url}: {status:?}");
        let taken = run(&place, &url, &["release", "--force", &name]);
        if lock.contains(&"--permits") {
            assert_eq!(taken.code, 1, "{taken:?}");
            assert!(taken.err.contains("cannot take a semaphore away"), "{taken:?}");
        } else {
            assert_eq!(taken.code, 0, "{url}: {taken:?}");
            let free = run(&place, &url, &["status", &name, "--exit-code"]);
            assert_eq!((free.code, free.err.as_str()), (1, ""), "{url}: {free:?}");
        }
        drop(holder);
    }
}

#[test]
fn everything_that_looks_works_on_zookeeper() {
    let server = Server::start(Settings::default()).unwrap();
    everything_that_looks(&format!("zk://{}", server.address()), "zookeeper");
}

#[test]
fn a_password_comes_by_file_or_variable_and_is_never_shown() {
    let server = RedisServer::start_with(&["--requirepass", "sesame"]);
    let (place, host) = (Place::new(), format!("127.0.0.1:{}", server.port()));
    std::fs::write(place.path("password"), "sesame\n").unwrap();
    let shown = |ran: &Ran| format!("{}{}", ran.out, ran.err);
    for url in [
        format!("redis://:sesame@{host}"),
        format!("redis://{host}?password_file={}", place.text("password")),
        format!("redis://{host}?password_env=SHOP_PASSWORD"),
    ] {
        for args in [&["doctor", "-v"][..], &["status", "a"], &["ls", "-v"], &["doctor", "--json"]]
        {
            let ran = finish(place.lk(args).args(["--url", &url]).env("SHOP_PASSWORD", "sesame"));
            assert_eq!(ran.code, 0, "{url}: {ran:?}");
            assert!(!shown(&ran).contains("sesame"), "{ran:?}");
        }
    }
    std::fs::create_dir_all(place.path("home/.config/lockkeeper")).unwrap();
    std::fs::write(
        place.path("home/.config/lockkeeper/config.toml"),
        format!("url = \"redis://:sesame@{host}\"\n"),
    )
    .unwrap();
    let configured = place.run(["status", "a"]);
    assert!(
        configured.code == 0
            && configured.out.contains("config.toml")
            && !shown(&configured).contains("sesame"),
        "{configured:?}"
    );

    for (url, code) in [
        (format!("redis://:wrong-sesame@{host}"), 69),
        (format!("redis://{host}"), 69),
        (format!("redis://{host}?password_env=NOT_SET"), 64),
        (format!("redis://{host}?password_file=/does/not/exist"), 64),
        (format!("redis://:sesame@{host}?password_env=SHOP_PASSWORD"), 64),
        (format!("redis://:sesame@{host}?colour=red"), 64),
        (format!("redis://:sesame@{host}/not-a-number"), 64),
        ("redis://:sesame@127.0.0.1:1".to_owned(), 69),
    ] {
        for json in [false, true] {
            let mut lk = place.lk(["ls", "--url", &url]);
            if json {
                lk.arg("--json");
            }
            let ran = finish(&mut lk);
            assert_eq!((ran.code, ran.err.lines().count()), (code, 1), "{url}: {ran:?}");
            assert!(!shown(&ran).contains("sesame"), "{ran:?}");
        }
    }
}

#[test]
fn doctor_says_what_dead_waiters_cost_on_a_fair_lock_of_redisson() {
    let (server, place) = (RedisServer::start(), Place::new());
    let warned = |options: &str| {
        let url = format!("{}?layout=redisson{options}", server.url());
        let about = json(run(&place, &url, &["doctor", "--json"]).out.trim_end());
        let warnings = about["warnings"].as_array().unwrap().clone();
        warnings
            .into_iter()
            .find(|w| w["id"] == "dead-waiters")
            .map(|w| w["text"].as_str().unwrap().to_owned())
    };
    let text = warned("&lock=fair").expect("a warning");
    assert!(text.contains("15 s") && text.contains("302 s"), "{text}");
    assert_eq!(warned(""), None, "an RLock has no queue");
    let words = run(&place, &format!("{}?layout=redisson&lock=fair", server.url()), &["doctor"]);
    assert!(words.out.contains("dead-waiters: "), "{words:?}");
}

#[test]
fn a_layout_without_elections_says_so_and_names_one_that_has_them() {
    let server = RedisServer::start();
    let place = Place::new();
    for layout in ["plain", "redisson"] {
        let url = format!("{}?layout={layout}", server.url());
        let refused = run(&place, &url, &["elect", "a", "--", "touch", "ran"]);
        assert_eq!((refused.code, refused.err.lines().count()), (64, 1), "{refused:?}");
        let says = format!("a: layout={layout} has no elections: use layout=native");
        assert!(refused.err.contains(&says), "{refused:?}");
        let named = url.replace(layout, "native");
        assert_eq!(run(&place, &named, &["elect", "a", "--", "true"]).code, 0, "{named}");
    }
    assert!(!place.path("ran").exists());
    let shared = run(
        &place,
        &format!("{}?layout=redisson", server.url()),
        &["run", "a", "-s", "--", "true"],
    );
    assert!(shared.err.contains("add lock=rw to the URL"), "{shared:?}");
    let added = format!("{}?layout=redisson&lock=rw", server.url());
    assert_eq!(run(&place, &added, &["run", "a", "-s", "--", "true"]).code, 0);
}

#[test]
fn doctor_does_not_speak_of_tokens_where_there_are_none() {
    let server = RedisServer::start();
    let place = Place::new();
    let none = "this layout has no tokens";
    let back = "can go back or repeat";
    for (options, says) in [
        ("plain", none),
        ("redisson", none),
        ("redisson&lock=fenced", back),
        ("native", "only ever grow"),
    ] {
        let said = run(&place, &format!("{}?layout={options}", server.url()), &["doctor"]);
        let line = said.out.lines().find(|line| line.starts_with("fencing")).unwrap_or_default();
        assert!(line.contains(says), "{options}: {said:?}");
    }
}

#[test]
fn a_scheme_in_upper_case_names_the_same_engine_everywhere() {
    let (place, server) = (Place::new(), RedisServer::start());
    for (url, engine) in
        [(format!("file://{}", place.text("locks")), "file"), (server.url(), "redis")]
    {
        let (scheme, rest) = url.split_once(':').unwrap();
        let upper = format!("{}:{rest}", scheme.to_uppercase());
        for args in [
            &["run", "a", "-n", "--", "true"][..],
            &["ls"],
            &["status", "a"],
            &["elect", "e", "--", "true"],
        ] {
            let ran = finish(place.lk(args).env("LOCKKEEPER_URL", &upper));
            assert_eq!(ran.code, 0, "{upper} {args:?}: {ran:?}");
        }
        let doctor = place.run(["--json", "doctor", &upper]);
        assert_eq!(json(doctor.out.trim())["engine"].as_str(), Some(engine), "{doctor:?}");
        // It is one engine: a nested call would wait for itself.
        let nested = place.run([
            "run",
            "a",
            "--url",
            &upper,
            "--",
            common::PROGRAM,
            "run",
            "a",
            "--url",
            &url,
            "--",
            "true",
        ]);
        assert!(nested.code == 64 && nested.err.contains("deadlock"), "{nested:?}");
    }
}
