//! Redis Cluster from the command line.

use lockkeeper_testkit::cluster::server::Nodes;
use lockkeeper_testkit::redis::server::RedisServer;

use crate::common::{Place, Reaped, json, run, until_true};

#[test]
fn cluster_runs_shows_and_is_examined_from_the_command_line() {
    let nodes = Nodes::start();
    let url = format!("{}?ttl=2s", nodes.url());
    let place = Place::new();
    assert_eq!(run(&place, &url, &["run", "nightly", "--", "true"]).code, 0);

    let names: Vec<String> = (0..3).map(|shard| nodes.name_in(shard, "nightly")).collect();
    let held = names.iter().map(|name| {
        let mut holder = place.lk(["acquire", name, "--for", "60s", "--ttl", "30s"]);
        Reaped::spawn(holder.env("LOCKKEEPER_URL", &url))
    });
    let mut held: Vec<Reaped> = held.collect();
    let status = |name: &str| json(&run(&place, &url, &["status", name, "--json"]).out);
    for (name, holder) in names.iter().zip(&held) {
        until_true("it is held", || status(name)["holders"][0]["pid"] == holder.pid());
        assert_eq!(run(&place, &url, &["run", "-n", name, "--", "true"]).code, 75);
    }
    let listed = run(&place, &url, &["ls"]);
    assert!(names.iter().all(|name| listed.out.contains(name)), "of every node: {listed:?}");
    for (name, holder) in names.iter().zip(&mut held) {
        assert_eq!(run(&place, &url, &["release", "--force", name]).code, 0);
        assert_eq!(holder.wait(), 79, "it hears that it was taken away");
    }

    let examined = run(&place, &url, &["doctor"]);
    assert_eq!(examined.code, 0, "{examined:?}");
    for says in ["EFFICIENCY", "a failover of a shard", "a cluster of 3 shards", "no replica"] {
        assert!(examined.out.contains(says), "{says}: {examined:?}");
    }
    let told = json(&run(&place, &url, &["doctor", "--json"]).out);
    // The lease, 20 s until a node counts as down, and a failover.
    assert_eq!((&told["engine"], &told["recovery_ms"]), (&"cluster".into(), &24_000.into()));
    let timed = run(&place, &url, &["run", "--require", "timed", "a", "--", "true"]);
    assert_eq!(timed.code, 64, "{timed:?}");
}

#[test]
fn ls_prints_what_the_other_nodes_have_and_names_the_one_that_is_away() {
    let mut nodes = Nodes::start();
    let url = format!("{}?connect_timeout=2s", nodes.url());
    let place = Place::new();
    let names: Vec<String> = (0..3).map(|shard| nodes.name_in(shard, "nightly")).collect();
    let held = names.iter().map(|name| {
        let mut holder = place.lk(["acquire", name, "--for", "60s"]);
        Reaped::spawn(holder.env("LOCKKEEPER_URL", &url))
    });
    let _held: Vec<Reaped> = held.collect();
    until_true("all are held", || {
        let listed = run(&place, &url, &["ls"]);
        listed.code == 0 && names.iter().all(|name| listed.out.contains(name))
    });
    let away = format!("127.0.0.1:{}", nodes.nodes[1].port());
    nodes.nodes[1].kill();
    for words in [&["ls"][..], &["ls", "--json"]] {
        let listed = run(&place, &url, words);
        assert_eq!(listed.code, 69, "{listed:?}");
        let is_told: Vec<bool> = names.iter().map(|name| listed.out.contains(name)).collect();
        assert_eq!(is_told, [true, false, true], "{listed:?}");
        assert!(listed.err.contains("not all names can be told"), "{listed:?}");
        assert!(listed.err.contains(&away) && listed.err.trim_end().lines().count() == 1);
    }
    let watched = run(&place, &url, &["watch", "--for", "6s"]);
    assert_eq!(watched.code, 0, "{watched:?}");
    let is_told: Vec<bool> = names.iter().map(|name| watched.out.contains(name)).collect();
    assert_eq!(is_told, [true, false, true], "{watched:?}");
    assert_eq!(watched.err.matches("not all names can be told").count(), 1, "{watched:?}");
    let examined = run(&place, &url, &["doctor", "--no-probe", "--json"]);
    assert_eq!(examined.code, 0, "{examined:?}");
    let told = json(&examined.out);
    let warnings = told["warnings"].as_array().expect("a list");
    let away_is_told = warnings.iter().any(|warning| {
        warning["id"] == "not-all-answer"
            && warning["text"].as_str().is_some_and(|text| text.contains(&away))
    });
    assert!(away_is_told, "{examined:?}");
}

#[test]
fn a_cluster_url_that_cannot_be_right_is_one_line_that_says_what_to_write() {
    let place = Place::new();
    let nobody = "redis+cluster://127.0.0.1:1,127.0.0.1:2";
    let away = run(&place, nobody, &["run", "-n", "a", "--", "true"]);
    assert_eq!(away.code, 69, "{away:?}");
    assert_eq!(away.err.matches("Connection refused").count(), 1, "said once: {away:?}");
    assert!(away.err.contains("the same at 127.0.0.1:"), "{away:?}");
    let server = RedisServer::start();
    let plain = format!("127.0.0.1:{}", server.port());
    for (url, says) in [
        ("redis+cluster://a/3".to_owned(), "namespace=WORD"),
        ("redis+cluster://a?db=3".to_owned(), "\"db\""),
        (format!("redis+cluster://{plain}"), &*format!("use redis://{plain}")),
    ] {
        let ran = run(&place, &url, &["run", "a", "--", "true"]);
        assert_eq!(ran.code, 64, "{ran:?}");
        assert!(ran.err.contains(says) && ran.err.trim_end().lines().count() == 1, "{ran:?}");
    }
}
