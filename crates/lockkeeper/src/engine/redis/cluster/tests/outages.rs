//! Nodes that end: who is told, what goes on, and what nobody waits for.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_testkit::cluster::server::{Nodes, QUICK, Setup};

use super::support::{open, process, taken};
use crate::Locks;
use crate::engine::redis::tests::support::{PATIENCE, Process, granted, number, opened, until};
use crate::engine::{Attempt, Event, Query, Renewal, Standing, WatchId};
use crate::words::claim::{Entry, Mode};
use crate::words::error::{Error, ErrorKind};
use crate::words::id::ClaimId;

/// The claims of the first doubt that is told.
fn in_doubt(process: &Process) -> Vec<ClaimId> {
    let mut claims = process.event("a doubt", |event| match event {
        Event::Doubtful { claims } => Some(claims.clone()),
        _ => None,
    });
    claims.sort_unstable();
    claims
}

/// A name in each of three shards.
fn names(nodes: &Nodes) -> Vec<String> {
    (0..3).map(|shard| nodes.name_in(shard, "a")).collect()
}

#[test]
fn who_holds_or_waits_at_a_node_that_ends_hears_of_it_at_once() {
    let mut nodes = Nodes::start();
    let (one, two) = (process(&nodes), process(&nodes));
    let (_, _) = one.take(&nodes.name_in(0, "a"), Mode::Exclusive);
    let (held, _) = one.take(&nodes.name_in(1, "a"), Mode::Exclusive);
    let busy = nodes.name_in(1, "b");
    two.take(&busy, Mode::Exclusive);
    let waits = one.queue(&busy, Mode::Exclusive);
    nodes.nodes[1].kill();
    let mut there = [held.id, waits.id];
    there.sort_unstable();
    assert_eq!(in_doubt(&one), there, "and nothing of another node");
}

#[test]
fn nodes_that_say_nothing_keep_nobody_from_the_one_that_is_there() {
    let nodes = Nodes::start();
    // Connections to these are taken, and nothing comes back.
    let away: Vec<_> = (0..60).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let port = |one: &TcpListener| one.local_addr().unwrap().port();
    let mut ports: Vec<u16> = away.iter().map(port).collect();
    let at = |ports: &[u16], within| {
        let all: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+cluster://{}?connect_timeout={within}", all.join(","))
    };
    // One after the other would take three minutes, and longer than an answer is waited for.
    let error = open(&at(&ports, "3s")).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    ports.push(nodes.nodes[0].port());
    // None is waited for to its end.
    open(&at(&ports, "10m")).expect("one is there").take(&nodes.name_in(0, "a"), Mode::Exclusive);
}

#[test]
fn a_place_in_the_line_of_a_node_that_starts_again_without_its_data_is_granted() {
    let mut nodes = Nodes::start();
    let (one, two) = (process(&nodes), process(&nodes));
    let name = nodes.name_in(1, "a");
    let (held, _) = one.take(&name, Mode::Exclusive);
    let waits = two.queue(&name, Mode::Exclusive);
    nodes.nodes[1].kill();
    assert_eq!(in_doubt(&two), [waits.id], "it is down");
    nodes.nodes[1].restart();
    assert_eq!(in_doubt(&two), [waits.id], "it is there again");
    until("the place is granted, for nobody holds it there", || {
        let standings = two.wait(two.engine.recheck(&[waits.id]));
        matches!(standings[..], [Standing::Held(_)])
    });
    assert!(matches!(one.renew(held.id), Renewal::Gone(_)));
}

fn listed(process: &Process) -> Result<Vec<Entry>, Error> {
    process.wait(process.engine.read(&Query::Prefix("a".into())))
}

fn named(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.name.as_str()).collect()
}

#[test]
fn a_node_that_is_away_keeps_back_nothing_of_what_the_others_list() {
    let mut nodes = Nodes::start();
    let mut names = names(&nodes);
    let process = opened(|| open(&format!("{}?connect_timeout=2s", nodes.url())));
    let held: Vec<_> = names.iter().map(|name| taken(&process, name)).collect();
    let ports: Vec<String> =
        nodes.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    nodes.nodes[1].kill();
    let mut others = vec![names[0].as_str(), names[2].as_str()];
    others.sort_unstable();
    // Again where another one did not answer in time.
    until("the others tell, and the one that is away is named", || {
        let error = listed(&process).unwrap_err();
        println!("{error}");
        let is_named = |port: &String| error.message().contains(port.as_str());
        error.kind() == ErrorKind::Unreachable
            && error.message().starts_with("not all names can be told: ")
            && (is_named(&ports[1]) && !is_named(&ports[0]) && !is_named(&ports[2]))
            && error.partial().is_some_and(|told| named(told) == others)
    });

    // Whoever watches hears of them, too.
    let all = Query::Prefix("a".into());
    until("it is watched", || process.wait(process.engine.watch(WatchId(1), &all)).is_ok());
    process.release(held[0].id);
    process.event("a change", |event| {
        matches!(event, Event::Changed { watch: WatchId(1) }).then_some(())
    });
    taken(&process, &names[0]);

    nodes.nodes[1].restart();
    taken(&process, &names[1]);
    names.sort_unstable();
    until("all are told", || listed(&process).is_ok_and(|all| named(&all) == names));
}

#[test]
fn what_a_replica_took_over_is_listed_once_everybody_knows() {
    let mut nodes = Nodes::start_with(Setup { replicas: 1, ..Setup::default() });
    let mut names = names(&nodes);
    let process = open(&format!("{}?connect_timeout=60s", nodes.url())).unwrap();
    names.iter().for_each(|name| drop(process.take(name, Mode::Exclusive)));
    nodes.until_replicated(1);
    nodes.nodes[1].kill();
    nodes.suspect_after(QUICK);
    names.sort_unstable();
    // Nobody has been asked for a list: the node is waited for until it has no slots any more.
    assert_eq!(named(&listed(&process).unwrap()), names);
}

#[test]
fn closing_waits_for_no_node_that_is_away() {
    let mut nodes = Nodes::start();
    let process =
        open(&format!("{}?request_timeout=10m&connect_timeout=10m", nodes.url())).unwrap();
    let (held, _) = process.take(&nodes.name_in(1, "a"), Mode::Exclusive);
    process.take(&nodes.name_in(0, "a"), Mode::Exclusive);
    nodes.nodes[1].kill();
    in_doubt(&process);
    thread::scope(|scope| {
        let release = process.engine.release(&[held.id], None);
        let leaving = scope.spawn(|| process.wait(release));
        // It is on its way once another request has been answered behind it.
        process.take(&nodes.name_in(2, "a"), Mode::Exclusive);
        assert!(!leaving.is_finished(), "nobody takes the place of the node");
        // An answer may take longer than the test.
        process.wait(process.engine.close());
        leaving.join().unwrap();
    });
}

fn refused(attempt: Attempt) -> Error {
    match attempt {
        Attempt::Failed(error) => error,
        Attempt::Granted(grant) => panic!("BROKEN LOCK: a token went back: {grant:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn r7_a_number_that_went_back_with_a_promoted_replica_is_no_token() {
    let mut nodes = Nodes::start_with(Setup { replicas: 1, ..Setup::default() });
    let name = nodes.name_in(1, "a");
    let process = process(&nodes);
    nodes.try_stop_replication(&[1]).unwrap();
    // The node's clock was ahead, and its replica has heard of nothing.
    let last = format!("lockkeeper:{{lock:{name}}}:last");
    nodes.command(1, &["SET", &last, "9000000000000"]);
    let (held, grant) = process.take(&name, Mode::Exclusive);
    assert_eq!(number(&grant), 9_000_000_000_001);
    nodes.nodes[1].kill();
    nodes.until_replaced(1);
    until("it is lost", || matches!(process.renew(held.id), Renewal::Gone(_)));
    let error = refused(process.attempt(&process.exclusive(&name)));
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.message().contains("and gave 9000000000001 before"), "{error}");
    let new = nodes.home(nodes.slot(&last));
    nodes.command(new, &["SET", &last, "9000000000001"]);
    until("it has a number above all", || {
        matches!(process.attempt(&process.exclusive(&name)), Attempt::Granted(_))
    });
}

#[test]
fn r7_a_number_that_went_back_with_a_node_that_starts_again_is_no_token() {
    let mut nodes = Nodes::start();
    let name = nodes.name_in(1, "a");
    let process = process(&nodes);
    nodes.command(1, &["SET", &format!("lockkeeper:{{lock:{name}}}:last"), "9000000000000"]);
    let (held, _) = process.take(&name, Mode::Exclusive);
    nodes.nodes[1].kill();
    nodes.nodes[1].restart();
    until("it is lost", || matches!(process.renew(held.id), Renewal::Gone(_)));
    let error = refused(process.attempt(&process.exclusive(&name)));
    assert!(error.message().contains("and gave 9000000000001 before"), "{error}");
}

/// A master goes on for a while when another one has its slots, for whoever still asks it: here it
/// does not hear of its successor, as one that is cut off.
#[test]
fn s3_a_node_that_is_cut_off_grants_what_its_successor_grants_as_well() {
    let nodes = Nodes::start_with(Setup { replicas: 1, ..Setup::default() });
    let name = nodes.name_in(1, "a");
    let there = process(&nodes);
    // Every connection is there that will be needed.
    let (before, _) = there.take(&name, Mode::Exclusive);
    assert!(matches!(there.renew(before.id), Renewal::Extended { .. }));
    there.release(before.id);
    nodes.until_replicated(1);
    cut_off(&nodes, 1, 4);
    let elsewhere = of_others(&nodes, 1);
    let (one, _) = there.take(&name, Mode::Exclusive);
    let (two, _) = elsewhere.take(&name, Mode::Exclusive);
    assert!(matches!(there.renew(one.id), Renewal::Extended { .. }), "two holders");
    assert!(matches!(elsewhere.renew(two.id), Renewal::Extended { .. }), "two holders");
}

#[test]
fn s3_a_node_that_needs_a_replica_for_its_writes_grants_nothing_once_it_is_cut_off() {
    let arguments = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "10"];
    let nodes = Nodes::start_with(Setup {
        replicas: 2,
        arguments: arguments.map(str::to_owned).to_vec(),
        node_timeout: QUICK,
        ..Setup::default()
    });
    let name = nodes.name_in(1, "a");
    let there = open(&format!("{}?connect_timeout=10s", nodes.url())).unwrap();
    let (before, _) = there.take(&name, Mode::Exclusive);
    there.release(before.id);
    nodes.until_replicated(1);
    cut_off(&nodes, 1, 4);
    until("the other replica has left it", || {
        nodes.command(1, &["INFO", "replication"]).concat().contains("connected_slaves:0")
    });
    let refused = there.attempt(&there.exclusive(&name));
    assert!(!matches!(refused, Attempt::Granted(_)), "{refused:?}");
    let elsewhere = of_others(&nodes, 1);
    until("the successor grants it", || {
        matches!(elsewhere.attempt(&elsewhere.exclusive(&name)), Attempt::Granted(_))
    });
}

/// A replica takes the place of its master, which never hears of it: it knows nothing of that node
/// any more, and goes on until it does.
fn cut_off(nodes: &Nodes, master: usize, replica: usize) {
    let id = nodes.id(replica);
    assert_eq!(nodes.command(master, &["CLUSTER", "FORGET", &id]), ["OK"]);
    assert_eq!(nodes.command(replica, &["CLUSTER", "FAILOVER", "TAKEOVER"]), ["OK"]);
    let slot = *nodes.slots_at_first(master).start();
    for other in [0, 2, replica] {
        until("the others know", || nodes.home_as_seen_by(other, slot) == Some(replica));
    }
    assert_eq!(nodes.home_as_seen_by(master, slot), Some(master), "it does not");
}

/// A process that has the map of all others than this one.
fn of_others(nodes: &Nodes, master: usize) -> Process {
    let port = nodes.nodes[master].port();
    let url = nodes.url().replace(&format!("127.0.0.1:{port},"), "");
    assert!(!url.contains(&port.to_string()), "{url}");
    open(&url).unwrap()
}

#[test]
fn all_of_several_names_are_taken_or_none_when_one_of_their_nodes_is_away() {
    let mut nodes = Nodes::start();
    let names = names(&nodes);
    nodes.nodes[1].kill();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = format!("{}?connect_timeout=2s", nodes.url());
    let mut opened = None;
    until("it can be opened", || {
        opened = runtime.block_on(Locks::open(&url)).ok();
        opened.is_some()
    });
    let locks = opened.expect("it is open");
    runtime.block_on(async {
        let each = || names.iter().map(|name| locks.mutex(name.as_str()).lock());
        let error = locks.all(each()).timeout(Duration::from_secs(3)).await.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut),
            "{error}: {:?}",
            error.kind()
        );
        // Nothing is kept of the others.
        for name in [&names[0], &names[2]] {
            let guard = locks.mutex(name.as_str()).lock().timeout(PATIENCE).await;
            assert!(guard.unwrap().release().await.is_clean(), "{name}");
        }
        assert!(locks.close().await.unknown.is_empty());
    });
}

#[test]
fn what_any_node_refuses_is_told_without_the_password() {
    let nodes = Nodes::start();
    let names = names(&nodes);
    for (at, password) in ["s3same", "s3same", "0ther"].iter().enumerate() {
        nodes.command(at, &["CONFIG", "SET", "requirepass", password]);
    }
    let url = nodes.url().replace("://", "://:s3same@") + "?connect_timeout=1s";
    let process = opened(|| open(&url));
    taken(&process, &names[1]);
    let Attempt::Failed(error) = process.attempt(&process.exclusive(&names[2])) else {
        panic!("it has another password")
    };
    let port = format!("127.0.0.1:{}", nodes.nodes[2].port());
    let listed = listed(&process).unwrap_err();
    for error in [error, listed] {
        let text = format!("{error} {error:?}");
        assert!(text.contains(&port), "{text}");
        assert!(!text.contains("s3same") && !text.contains("0ther"), "{text}");
    }
}

#[test]
fn who_may_not_say_asking_waits_until_a_slot_has_moved() {
    let nodes = Nodes::start();
    let user = ["on", ">s3same", "~*", "&*", "+@all", "-asking"];
    for at in 0..3 {
        let words: Vec<&str> = ["ACL", "SETUSER", "app"].into_iter().chain(user).collect();
        assert_eq!(nodes.command(at, &words), ["OK"]);
    }
    let url = nodes.url().replace("://", "://app:s3same@") + "?layout=plain&connect_timeout=15s";
    let process = open(&url).unwrap();
    let slot = nodes.slot("{a}new");
    let from = nodes.home(slot);
    let to = (from + 1) % 3;
    nodes.open_slot(slot, from, to);
    thread::scope(|scope| {
        let asking = scope.spawn(|| process.attempt(&process.exclusive("{a}new")));
        let denied = || {
            let info = nodes.command(to, &["INFO", "errorstats"]).concat();
            info.contains("errorstat_NOPERM")
        };
        until("it was sent there", || denied() || asking.is_finished());
        assert!(!asking.is_finished(), "it waits");
        nodes.close_slot(slot, from, to);
        granted(asking.join().unwrap());
    });
}

#[test]
fn a_watcher_listens_where_its_name_was_until_it_is_heard_where_it_is() {
    let nodes = Nodes::start();
    for at in 0..3 {
        let user = ["ACL", "SETUSER", "app", "on", ">s3same", "~*", "&*", "+@all"];
        assert_eq!(nodes.command(at, &user), ["OK"]);
    }
    let url = nodes.url().replace("://", "://app:s3same@") + "?connect_timeout=1s";
    let process = opened(|| open(&url));
    let name = nodes.name_in(0, "a");
    let query = Query::One(crate::Kind::Lock, crate::Name::new(&name).unwrap());
    until("it is watched", || process.wait(process.engine.watch(WatchId(1), &query)).is_ok());
    let record = format!("lockkeeper:{{lock:{name}}}");
    let channel = format!("{record}:watch:0");
    let listens = |at: usize| nodes.command(at, &["PUBSUB", "NUMSUB", &channel]).concat();
    until("it listens", || listens(0) == format!("{channel}1"));
    // The node that has it from now on lets nobody in, also who was in already.
    nodes.command(1, &["ACL", "SETUSER", "app", "off"]);
    nodes.command(1, &["CLIENT", "KILL", "USER", "app"]);
    nodes.move_slot(nodes.slot(&record), 0, 1);
    let begun = Instant::now();
    // For longer than it waits for a connection.
    while begun.elapsed() < Duration::from_secs(2) {
        assert!(matches!(process.attempt(&process.exclusive(&name)), Attempt::Failed(_)));
    }
    nodes.command(0, &["CLIENT", "KILL", "USER", "app"]);
    until("it listens where it was", || listens(0) == format!("{channel}1"));
    assert_eq!(listens(1), format!("{channel}0"));
    nodes.command(1, &["ACL", "SETUSER", "app", "on"]);
    until("it listens there", || listens(1) == format!("{channel}1"));
    until("and there alone", || listens(0) == format!("{channel}0"));
}
