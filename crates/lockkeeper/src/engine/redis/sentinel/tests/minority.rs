//! Sentinels that refuse, that are away, or that name another master: what a majority says counts.

use std::time::Duration;

use lockkeeper_testkit::proxy::{Fault, Proxy, Way};
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::sentinel::server::{Deployment, QUICK, Setup};

use super::support::{open, process};
use crate::engine::redis::tests::support::{Process, opened, until};
use crate::engine::{Attempt, Renewal};
use crate::words::claim::Mode;
use crate::words::error::{Error, ErrorKind};

/// Sentinels that watch these masters, each by a failover of this epoch, with more lines.
fn sentinels<const N: usize>(each: [(&RedisServer, u32, &str); N]) -> [RedisServer; N] {
    each.map(|(master, epoch, lines)| {
        let port = master.port();
        let watch = format!("sentinel monitor m 127.0.0.1 {port} 1\n");
        RedisServer::start_sentinel_with(&format!(
            "{watch}sentinel config-epoch m {epoch}\n{lines}"
        ))
    })
}

fn at(server: &RedisServer) -> String {
    format!("127.0.0.1:{}", server.port())
}

fn url(sentinels: &[RedisServer]) -> String {
    let at: Vec<String> = sentinels.iter().map(at).collect();
    format!("redis+sentinel://{}/m?connect_timeout=1m", at.join(","))
}

fn refused(url: &str) -> Error {
    open(url).err().expect("it is refused")
}

fn warned(process: &Process, id: &str) -> Vec<String> {
    let warnings = process.engine.describe().warnings;
    warnings.into_iter().filter(|w| w.id == id).map(|w| w.text).collect()
}

/// Whether all Sentinels take a replica for dead.
fn all_miss_one(deployment: &Deployment) -> bool {
    let replicas = |at| deployment.ask(at, &["SENTINEL", "REPLICAS", "mymaster"]).join(" ");
    (0..deployment.sentinels.len()).all(|at| replicas(at).contains("s_down"))
}

#[test]
fn b4_a_sentinel_that_refuses_keeps_nobody_from_the_master_and_is_named_once() {
    let master = RedisServer::start();
    let watch = sentinels([(&master, 0, ""), (&master, 0, ""), (&master, 0, "requirepass pw\n")]);
    let process = open(&url(&watch)).expect("two say where it is");
    process.take("a", Mode::Exclusive);
    until("it is told", || !warned(&process, "sentinel-refuses").is_empty());
    let about = process.engine.describe();
    assert!(about.server.contains("as 2 of 3 Sentinels say"), "{}", about.server);
    let named: Vec<_> = about.warnings.iter().filter(|w| w.text.contains(&at(&watch[2]))).collect();
    let [one] = &named[..] else { panic!("not once: {:?}", about.warnings) };
    assert_eq!(one.id, "sentinel-refuses");
    assert!(one.text.contains("wants a password of its own"), "{one:?}");
    watch[2].client().command(&["AUTH", "pw"]);
    let mut admin = watch[2].client();
    admin.command(&["AUTH", "pw"]);
    admin.command(&["SENTINEL", "CONFIG", "SET", "sentinel-pass", ""]);
    admin.command(&["ACL", "SETUSER", "default", "nopass"]);
    until("it says so, too", || process.engine.describe().server.contains("as 3 of 3 Sentinels"));
    until("it refuses no more", || warned(&process, "sentinel-refuses").is_empty());
}

#[test]
fn b4_what_is_no_sentinel_and_one_that_knows_no_such_service_stop_nobody() {
    let master = RedisServer::start();
    let watch = sentinels([(&master, 0, ""), (&master, 0, ""), (&master, 0, "")]);
    let unaware = RedisServer::start_sentinel();
    for (third, id) in [(&master, "sentinel-refuses"), (&unaware, "sentinel-unaware")] {
        let url = url(&watch).replace(&at(&watch[2]), &at(third));
        let process = open(&url).expect("two say where it is");
        process.take(id, Mode::Exclusive);
        until("it is told", || warned(&process, id).len() == 1);
    }
}

#[test]
fn b4_a_new_process_believes_no_minority_of_the_sentinels_and_dials_no_server_that_it_names() {
    let (master, liar) = (RedisServer::start(), RedisServer::start());
    let password = "requirepass pw\n";
    let watch = sentinels([(&master, 1, password), (&master, 1, password), (&liar, 9, "")]);
    let error = refused(&url(&watch));
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.message().contains("1 of the 3 Sentinels"), "{error}");
    assert!(error.message().contains("a majority is 2"), "{error}");
    assert_eq!(error.message().matches("wants a password of its own").count(), 1, "{error}");
    for refusing in &watch[..2] {
        assert_eq!(error.message().matches(&at(refusing)).count(), 1, "{error}");
    }
    // Nobody has greeted it but its Sentinel, which says PING and INFO.
    assert_eq!(liar.command_counts().get("hello"), None, "{:?}", liar.command_counts());
}

#[test]
fn b4_a_sentinel_that_is_late_or_away_as_a_process_begins_moves_it_nowhere_alone() {
    let (master, liar) = (RedisServer::start(), RedisServer::start());
    let watch = sentinels([(&master, 1, ""), (&master, 1, ""), (&liar, 9, "")]);
    for late in [true, false] {
        let proxy = Proxy::to(watch[2].port());
        match late {
            true => {
                let delay = Duration::from_millis(500);
                proxy.set(Way::Down, Fault { delay, ..Fault::default() });
            }
            false => proxy.refuse(true),
        }
        let through = format!("127.0.0.1:{}", proxy.port());
        let process = open(&url(&watch).replace(&at(&watch[2]), &through));
        let process = process.expect("two say where it is");
        proxy.refuse(false);
        until("the third says another", || !warned(&process, "sentinels-disagree").is_empty());
        process.take(if late { "a" } else { "b" }, Mode::Exclusive);
        let about = process.engine.describe();
        assert!(about.server.contains(&format!("{} (the master", at(&master))), "{about:?}");
        assert_eq!(liar.command_counts().get("hello"), None, "{:?}", liar.command_counts());
    }
}

#[test]
fn b4_a_sentinel_that_was_believed_moves_no_running_process_alone_and_a_majority_does() {
    let (master, liar) = (RedisServer::start(), RedisServer::start());
    let honest = sentinels([(&master, 1, ""), (&master, 1, ""), (&master, 1, "")]);
    let lying = sentinels([(&liar, 9, ""), (&liar, 9, "")]);
    let doors: Vec<Proxy> = honest.iter().map(|one| Proxy::to(one.port())).collect();
    let at_doors: Vec<_> = doors.iter().map(|door| format!("127.0.0.1:{}", door.port())).collect();
    let url = format!("redis+sentinel://{}/m?connect_timeout=1m", at_doors.join(","));
    let process = open(&url).expect("all of them name one");
    let (held, _) = process.take("a", Mode::Exclusive);
    until("all are heard", || process.engine.describe().server.contains("as 3 of 3 Sentinels"));
    let lies_from_now_on = |nth: usize| {
        doors[nth].lead_to(lying[nth - 1].port());
    };
    lies_from_now_on(2);
    until("it says another", || !warned(&process, "sentinels-disagree").is_empty());
    // Also where a connection is made anew, for which all of them are asked.
    for name in ["b", "c"] {
        process.take(name, Mode::Exclusive);
        assert!(matches!(process.renew(held.id), Renewal::Extended { .. }), "{name}");
        let about = process.engine.describe();
        assert!(about.server.contains(&format!("{} (the master", at(&master))), "{about:?}");
        for connections in ["normal", "pubsub"] {
            master.command(&["CLIENT", "KILL", "TYPE", connections]);
        }
        until("it is connected anew", || {
            matches!(process.attempt_try(&process.exclusive(name)), Attempt::Busy(_))
                && matches!(process.renew(held.id), Renewal::Extended { .. })
        });
    }
    // Nobody has greeted it but its Sentinel, which says PING and INFO.
    assert_eq!(liar.command_counts().get("hello"), None, "{:?}", liar.command_counts());
    lies_from_now_on(1);
    let moved = format!("{} (the master", at(&liar));
    until("a majority moves it", || process.engine.describe().server.contains(&moved));
}

#[test]
fn a_new_process_needs_a_majority_of_the_sentinels_and_one_that_runs_goes_on_without() {
    let mut deployment = Deployment::start();
    let url = format!("{}?connect_timeout=1m", deployment.url());
    deployment.sentinels[2].kill();
    let process = open(&url).expect("two of three are a majority");
    process.take("a", Mode::Exclusive);
    deployment.sentinels[1].kill();
    until("it is warned of", || {
        warned(&process, "sentinel-minority").len() == 1
            && warned(&process, "sentinel-down").len() == 2
    });
    process.take("b", Mode::Exclusive);
    let error = refused(&url);
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.message().contains("1 of the 3 Sentinels"), "{error}");
    for gone in &deployment.sentinels[1..] {
        assert!(error.message().contains(&at(gone)), "{error}");
    }
    deployment.sentinels[0].kill();
    let error = refused(&url);
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.message().contains("none of the 3 Sentinels"), "{error}");
    for gone in &deployment.sentinels {
        assert_eq!(error.message().matches(&at(gone)).count(), 1, "{error}");
    }
}

#[test]
fn s1_a_sentinel_that_names_another_master_at_any_epoch_is_counted_apart_and_named() {
    let (master, other) = (RedisServer::start(), RedisServer::start());
    for epoch in [1, 5, 9] {
        let watch = sentinels([(&master, 5, ""), (&other, epoch, ""), (&master, 5, "")]);
        // Where a minority names a later one, all are asked for half of that time.
        let url = url(&watch).replace("connect_timeout=1m", "connect_timeout=2s");
        let process = opened(|| open(&url));
        let says =
            format!("as 2 of 3 Sentinels say; the one at {} says {}", at(&watch[1]), at(&other));
        until("all have said it", || process.engine.describe().server.contains(&says));
        let about = process.engine.describe();
        assert!(about.server.contains(&format!("{} (the master", at(&master))), "{about:?}");
        let disagree = warned(&process, "sentinels-disagree");
        let [text] = &disagree[..] else { panic!("not once: {disagree:?}") };
        assert!(text.contains(&at(&watch[1])) && text.contains(&at(&other)), "{text}");
        let why = match epoch {
            5 => "configure them alike".to_owned(),
            epoch => format!("of epoch {epoch}"),
        };
        assert!(text.contains(&why), "{text}");
        assert!(warned(&process, "sentinel-minority").is_empty());
    }
}

#[test]
fn s2_a_service_whose_replicas_do_not_live_is_warned_of() {
    let deployment = Deployment::start();
    let waits = |replicas: usize| {
        let url = format!("{}?wait_replicas={replicas}", deployment.url());
        open(&url).expect("the master can be found")
    };
    let (one, waiting) = (process(&deployment), waits(1));
    assert!(warned(&one, "no-replica").is_empty());
    assert_eq!(warned(&waiting, "too-few-replicas").len(), 1, "a failover leaves none");
    deployment.servers[1].stop();
    deployment.suspect_after(QUICK);
    until("the Sentinels miss it", || all_miss_one(&deployment));
    for process in [process(&deployment), waits(1)] {
        let [text] = &warned(&process, "no-replica")[..] else {
            panic!("{:?}", process.engine.describe().warnings)
        };
        assert!(text.contains("mymaster") && text.contains("nothing takes its place"), "{text}");
    }
    let [text] = &warned(&waits(1), "too-few-replicas")[..] else { panic!("it is told") };
    assert!(text.contains("nothing is granted"), "{text}");
    deployment.servers[1].go_on();
}

#[test]
fn s2_a_replica_that_died_is_not_one_that_wait_replicas_can_count_on() {
    let mut deployment = Deployment::start_with(Setup { replicas: 2, ..Setup::default() });
    let waits = |deployment: &Deployment| {
        let process = open(&format!("{}?wait_replicas=1", deployment.url()));
        warned(&process.expect("the master can be found"), "too-few-replicas")
    };
    assert!(waits(&deployment).is_empty());
    deployment.servers[2].kill();
    deployment.suspect_after(QUICK);
    until("the Sentinels miss it", || all_miss_one(&deployment));
    assert_eq!(waits(&deployment).len(), 1);
}
