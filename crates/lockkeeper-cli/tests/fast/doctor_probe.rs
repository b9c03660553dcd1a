//! `doctor` knows whether locks can be had, because it takes one; and leaves nothing (C5).

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::zookeeper::client::{Client, Kind};
use lockkeeper_testkit::zookeeper::server::{Server, Settings};
use nix::sys::signal::Signal;

use crate::common::{Place, Ran, Reaped, finish, json, threads, until_true};

fn doctor(url: &str, options: &[&str]) -> Ran {
    let place = Place::new();
    finish(place.lk(["doctor", url]).args(options))
}

/// No lock can be had: 69, and one line that says why and what to do.
fn refuses(url: &str, words: &[&str]) {
    let ran = doctor(url, &[]);
    assert_eq!(
        (ran.code, ran.err.lines().count(), ran.out.as_str()),
        (69, 1, ""),
        "{url}: {ran:?}"
    );
    assert!(words.iter().all(|word| ran.err.contains(word)), "{url}: {words:?}: {ran:?}");
    let looked = doctor(url, &["--no-probe"]);
    assert!(looked.code == 0, "{url}: {looked:?}");
}

fn ids(ran: &Ran) -> Vec<String> {
    let object = json(ran.out.trim());
    object["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|warning| warning["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn c5_doctor_takes_a_lock_and_says_what_keeps_redis_from_giving_one() {
    let server = RedisServer::start();
    let host = format!("127.0.0.1:{}", server.port());
    let user = |rules: &[&str]| {
        let command = [&["ACL", "SETUSER", "ann", "reset", "on", ">pw"], rules].concat();
        server.command(&command);
        format!("redis://ann:pw@{host}")
    };
    let url = user(&["~*", "&*", "+@all"]);
    assert!(!ids(&doctor(&url, &["--json"])).contains(&"publish-refused".to_owned()));
    for (rules, words) in [
        (
            &["~*", "&*", "+@all", "-@scripting"][..],
            &["user ann", "evalsha", "ACL SETUSER ann ~lockkeeper:* &lockkeeper:* +@scripting"][..],
        ),
        (&["~shop:*", "&*", "+@all"], &["user ann", "ACL SETUSER ann ~lockkeeper:*"]),
    ] {
        refuses(&user(rules), words);
    }
    // A user of a fleet's names alone: the probe's own name is not one of them.
    for layout in ["plain", "redisson"] {
        let url = format!("{}?layout={layout}", user(&["~fleet/*", "&*", "+@all"]));
        refuses(
            &url,
            &[
                "the keys are lockkeeper/doctor/",
                "the probe's own name is lockkeeper/doctor/",
                "--no-probe",
            ],
        );
    }
    let deaf = user(&["~*", "&*", "+@all", "-publish"]);
    let ran = doctor(&deaf, &["--json"]);
    assert!(ran.code == 0 && ids(&ran).contains(&"publish-refused".to_owned()), "{ran:?}");
    let words = doctor(&deaf, &[]).out;
    assert!(
        words.contains("warning   publish-refused: user ann may not publish")
            && words.contains("+@pubsub"),
        "{words}"
    );
    // What waiting needs is another thing in each layout (B8).
    for (layout, denied, id) in [
        ("plain", "-client|tracking", "tracking-refused"),
        ("redisson", "-subscribe", "subscribe-refused"),
    ] {
        let url = |rules: &[&str]| format!("{}?layout={layout}", user(rules));
        let all = ids(&doctor(&url(&["~*", "&*", "+@all"]), &["--json"]));
        assert!(!all.contains(&id.to_owned()), "{layout}: {all:?}");
        let ran = doctor(&url(&["~*", "&*", "+@all", denied]), &["--json"]);
        assert!(ran.code == 0 && ids(&ran).contains(&id.to_owned()), "{layout}: {ran:?}");
        assert!(ran.out.contains("ACL SETUSER ann"), "{layout}: {ran:?}");
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    refuses(&server.url(), &["out of memory (maxmemory)"]);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(server.command(&["KEYS", "*"]), Vec::<String>::new());

    let renamed = RedisServer::start_with(&["--rename-command", "EVALSHA", ""]);
    refuses(&renamed.url(), &["does not know EVALSHA", "rename-command"]);
}

#[test]
fn c5_the_probe_leaves_nothing_in_any_layout_of_redis_also_after_an_interrupt() {
    let server = RedisServer::start();
    let keys = || server.command(&["KEYS", "*"]);
    for options in [
        "",
        "?namespace=shop",
        "?layout=plain",
        "?layout=redisson",
        "?layout=redisson&lock=fenced",
        "?layout=redisson&lock=fair",
    ] {
        let url = format!("{}{options}", server.url());
        let ran = doctor(&url, &[]);
        assert!(ran.code == 0, "{url}: {ran:?}");
        assert_eq!(keys(), Vec::<String>::new(), "{url}");
    }
    let commands = server.command_counts();
    assert!(commands.contains_key("evalsha"), "it took a lock: {commands:?}");
    let place = Place::new();
    for round in 0..30 {
        let mut lk = place.lk(["doctor", &server.url()]);
        let mut child = Reaped::spawn(lk.stdout(Stdio::null()).stderr(Stdio::null()));
        // Any instant will do: the subject is that none leaves anything.
        std::thread::sleep(Duration::from_millis(4 * round));
        child.signal(Signal::SIGINT);
        child.wait();
        assert_eq!(keys(), Vec::<String>::new(), "round {round}");
    }
}

#[test]
fn c5_the_probe_leaves_nothing_in_zookeeper_and_spares_what_was_there() {
    let server = Server::start(Settings::default()).unwrap();
    let mut client = Client::connect(server.port()).unwrap();
    for layout in ["", "?layout=kazoo", "?layout=plain"] {
        let ran = doctor(&format!("zk://{}{layout}", server.address()), &[]);
        assert!(ran.code == 0, "{layout}: {ran:?}");
        assert_eq!(client.children("/").unwrap(), ["zookeeper"], "{layout}");
    }
    // Somebody's own directories, made long enough before that they cannot be the probe's.
    let mut created = 0;
    for path in ["/lockkeeper", "/lockkeeper/doctor"] {
        client.create(path, b"", Kind::Persistent).unwrap();
        created = client.time_of_day_ms().unwrap();
    }
    until_true("they are old", || client.time_of_day_ms().unwrap() > created + 2_500);
    let ran = doctor(&format!("zk://{}", server.address()), &[]);
    assert!(ran.code == 0, "{ran:?}");
    assert_eq!(client.children("/lockkeeper").unwrap(), ["doctor"]);
    assert_eq!(client.children("/lockkeeper/doctor").unwrap(), Vec::<String>::new());
}

#[test]
fn c5_the_probe_leaves_no_file() {
    let place = Place::new();
    let ran = place.run(["doctor"]);
    assert!(ran.code == 0, "{ran:?}");
    assert_eq!(std::fs::read_dir(place.path("locks")).unwrap().count(), 0);
}

#[test]
fn a_second_signal_ends_the_probe_at_once() {
    let (place, server) = (Place::new(), RedisServer::start());
    // Reading goes on, and taking a lock waits.
    server.command(&["CLIENT", "PAUSE", "20000", "WRITE"]);
    let mut doctor = Reaped::spawn(
        place.lk(["doctor", &server.url()]).stdout(Stdio::null()).stderr(Stdio::null()),
    );
    until_true("it asks for the lock", || {
        server.command(&["CLIENT", "LIST"]).concat().contains("cmd=eval")
    });
    doctor.signal(Signal::SIGINT);
    doctor.signal(Signal::SIGTERM);
    assert_eq!(doctor.wait(), 1_000 + Signal::SIGTERM as i32);
}

#[test]
fn a_signal_ends_it_while_nobody_reads_what_it_prints() {
    let (place, server) = (Place::new(), RedisServer::start());
    let (_reader, mut full) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(&full, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    while full.write(&[b' '; 4_096]).is_ok() {}
    nix::fcntl::fcntl(&full, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    server.stop();
    let mut doctor = Reaped::spawn(place.lk(["doctor", &server.url()]).stdout(full));
    let looks = |pid: i32| {
        let name = |thread: &String| {
            std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default()
        };
        threads(pid).iter().any(|thread| name(thread).trim() == "doctor")
    };
    until_true("it looks at the engine", || looks(doctor.pid()));
    server.go_on();
    until_true("it has seen the engine", || !looks(doctor.pid()));
    doctor.signal(Signal::SIGINT);
    assert_eq!(doctor.wait(), 1_000 + Signal::SIGINT as i32);
}
