//! Redis with Sentinels from the command line.

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::sentinel::server::Deployment;

use crate::common::{Place, held_then_taken_away, json, run};

#[test]
fn sentinel_runs_shows_and_is_examined_from_the_command_line() {
    let deployment = Deployment::start();
    let url = format!("{}?ttl=2s", deployment.url());
    let place = Place::new();
    assert_eq!(run(&place, &url, &["run", "nightly", "--", "true"]).code, 0);

    held_then_taken_away(&place, &url);

    let examined = run(&place, &url, &["doctor"]);
    assert_eq!(examined.code, 0, "{examined:?}");
    let master = format!("127.0.0.1:{}", deployment.servers[0].port());
    for says in ["EFFICIENCY", "before its replicas have a write", &master, "3 of 3 Sentinels"] {
        assert!(examined.out.contains(says), "{says}: {examined:?}");
    }
    let told = json(&run(&place, &url, &["doctor", "--json"]).out);
    // The lease, half a minute until the master counts as down, and a failover.
    assert_eq!((&told["engine"], &told["recovery_ms"]), (&"sentinel".into(), &37_000.into()));
    let timed = run(&place, &url, &["run", "--require", "timed", "a", "--", "true"]);
    assert_eq!(timed.code, 64, "{timed:?}");
}

#[test]
fn b4_a_sentinel_that_wants_a_password_stops_no_command_and_each_names_it_once() {
    let mut deployment = Deployment::start();
    let url = format!("{}?ttl=2s&connect_timeout=1m", deployment.url());
    let place = Place::new();
    let args = ["run", "nightly", "--", "true"];
    let guard = &deployment.sentinels[2];
    guard.command(&["ACL", "SETUSER", "default", "resetpass", ">s3cret"]);
    let says = format!("the Sentinel at 127.0.0.1:{} wants a password of its own", guard.port());
    let ran = run(&place, &url, &args);
    assert_eq!((ran.code, ran.err.matches(&says).count()), (0, 1), "{ran:?}");
    assert!(ran.err.contains("nightly: warning: "), "{ran:?}");
    let acquired = run(&place, &url, &["acquire", "nightly", "--for", "1ms", "--json"]);
    let events = acquired.out.lines().map(json);
    let told: Vec<_> = events.filter(|event| event["event"] == "warning").collect();
    assert_eq!((acquired.code, told.len()), (0, 1), "{acquired:?}");
    assert_eq!((&told[0]["name"], &told[0]["id"]), (&"nightly".into(), &"sentinel-refuses".into()));
    let quiet = run(&place, &url, &["run", "-q", "nightly", "--", "true"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (0, ""), "{quiet:?}");
    let status = run(&place, &url, &["status", "nightly"]);
    assert_eq!((status.code, status.out.matches(&says).count()), (0, 1), "{status:?}");
    let examined = run(&place, &url, &["doctor"]);
    assert_eq!((examined.code, examined.out.matches(&says).count()), (0, 1), "{examined:?}");
    assert!(examined.out.contains("as 2 of 3 Sentinels say"), "{examined:?}");

    // One alone is not believed, whatever it says.
    deployment.sentinels[1].kill();
    let alone = run(&place, &url, &["run", "-n", "nightly", "--", "true"]);
    assert_eq!((alone.code, alone.err.lines().count()), (69, 1), "{alone:?}");
    for part in ["1 of the 3 Sentinels", "a majority is 2", &says] {
        assert_eq!(alone.err.matches(part).count(), 1, "{part}: {alone:?}");
    }
}

#[test]
fn a_sentinel_url_that_cannot_be_right_is_one_line_that_says_what_to_write() {
    let place = Place::new();
    let server = RedisServer::start();
    let sentinel = RedisServer::start_sentinel();
    sentinel.command(&["SENTINEL", "MONITOR", "orders", "127.0.0.1", "1", "2"]);
    let plain = format!("127.0.0.1:{}", server.port());
    let guard = format!("127.0.0.1:{}", sentinel.port());
    for (url, says) in [
        ("redis+sentinel://a,b,c".to_owned(), "as in redis+sentinel://a,b,c/mymaster".to_owned()),
        ("redis+sentinel://a/m?wait=1".to_owned(), "\"wait\"".to_owned()),
        (format!("redis+sentinel://{plain}/m"), format!("use redis://{plain}")),
        (format!("redis+sentinel://{guard}/m"), format!("use redis+sentinel://{guard}/orders")),
        (format!("redis://{guard}"), format!("use redis+sentinel://{guard}/SERVICE")),
    ] {
        let refused = run(&place, &url, &["run", "-n", "x", "--", "true"]);
        assert_eq!(refused.code, 64, "{url}: {refused:?}");
        assert!(refused.err.contains(&says), "{url}: {refused:?}");
        assert_eq!(refused.err.lines().count(), 1, "{url}: {refused:?}");
    }
}
