//! `doctor` knows whether locks can be had, because it takes one; and leaves nothing (C5).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::time::Duration;

use common::{Place, Ran, Reaped, finish, json};
use lockkeeper_lab::servers::redis::RedisServer;
use lockkeeper_lab::servers::zookeeper::{Server, Settings};
use lockkeeper_lab::servers::zookeeper_client::Client;

fn doctor(url: &str, options: &[&str]) -> Ran {
    let place = Place::new();
    finish(place.lk(["doctor", url]).args(options))
}

/// No lock can be had: 69, and one line that says why and what to do.
fn refuses(url: &str, words: &[&str]) {
    let ran = doctor(url, &[]);
    assert_eq!((ran.code, ran.err.lines().count(), ran.out.as_str()), (69, 1, ""), "{url}: {ran:?}");
    assert!(words.iter().all(|word| ran.err.contains(word)), "{url}: {words:?}: {ran:?}");
    let looked = doctor(url, &["--no-probe"]);
    assert!([0, 1].contains(&looked.code), "{url}: {looked:?}");
}

fn ids(ran: &Ran) -> Vec<String> {
    let object = json(ran.out.trim());
    object["warnings"].as_array().unwrap().iter().map(|warning| warning["id"].as_str().unwrap().to_owned()).collect()
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
    let deaf = user(&["~*", "&*", "+@all", "-publish"]);
    let ran = doctor(&deaf, &["--json"]);
    assert!(ran.code == 1 && ids(&ran).contains(&"publish-refused".to_owned()), "{ran:?}");
    let words = doctor(&deaf, &[]).out;
    assert!(words.contains("warning   publish-refused: user ann may not publish") && words.contains("+@pubsub"), "{words}");
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
    for options in
        ["", "?namespace=shop", "?layout=plain", "?layout=redisson", "?layout=redisson&lock=fenced", "?layout=redisson&lock=fair"]
    {
        let url = format!("{}{options}", server.url());
        let ran = doctor(&url, &[]);
        assert!([0, 1].contains(&ran.code), "{url}: {ran:?}");
        assert_eq!(keys(), Vec::<String>::new(), "{url}");
    }
    let commands = server.command_counts();
    assert!(commands.contains_key("evalsha"), "it took a lock: {commands:?}");
    let place = Place::new();
    for round in 0..30 {
        let mut lk = place.lk(["doctor", &server.url()]);
        let mut child = Reaped::spawn(lk.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()));
        // Any instant will do: the subject is that none leaves anything.
        std::thread::sleep(Duration::from_millis(4 * round));
        child.signal(nix::sys::signal::Signal::SIGINT);
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
        assert!([0, 1].contains(&ran.code), "{layout}: {ran:?}");
        assert_eq!(client.children("/").unwrap(), ["zookeeper"], "{layout}");
    }
}

#[test]
fn c5_the_probe_leaves_no_file() {
    let place = Place::new();
    let ran = place.run(["doctor"]);
    assert!([0, 1].contains(&ran.code), "{ran:?}");
    assert_eq!(std::fs::read_dir(place.path("locks")).unwrap().count(), 0);
}
