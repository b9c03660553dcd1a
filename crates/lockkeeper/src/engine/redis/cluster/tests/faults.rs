//! Slots that move, nodes that die: what is held stays held, and whoever waits is woken (S4).

use std::time::{Duration, Instant};

use lockkeeper_testkit::cluster::server::{Nodes, Setup};
use lockkeeper_testkit::redis::server::RedisServer;

use super::support::{open, process, renewed, taken};
use crate::engine::redis::tests::support::{PATIENCE, granted, number, opened, until};
use crate::engine::{Attempt, Change, End, Event, Query, Renewal, WatchId};
use crate::words::claim::{Claim, Mode};
use crate::words::error::ErrorKind;
use crate::words::name::{Kind, Name};

/// The slot of a lock in the layout native.
fn slot(nodes: &Nodes, name: &str) -> usize {
    nodes.slot(&format!("lockkeeper:{{lock:{name}}}"))
}

#[test]
fn s4_a_hold_and_its_line_move_with_their_slot() {
    let nodes = Nodes::start();
    let name = nodes.name_in(0, "a");
    let slot = slot(&nodes, &name);
    let (one, two, three) = (process(&nodes), process(&nodes), process(&nodes));
    let (held, first) = one.take(&name, Mode::Exclusive);
    let waits = two.queue(&name, Mode::Exclusive);
    nodes.move_slot(slot, 0, 1);
    // Nobody was told of it.
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }), "it is held as before");
    assert!(matches!(three.attempt_try(&three.exclusive(&name)), Attempt::Busy(_)));
    assert!(matches!(one.release(held.id), End::Freed));
    let next = granted(two.attempt_until(&waits));
    assert!(number(&next) > number(&first));
    // And back, while it is held.
    nodes.move_slot(slot, 1, 0);
    assert!(matches!(two.release(waits.id), End::Freed));
    let (_, last) = three.take(&name, Mode::Exclusive);
    assert!(number(&last) > number(&next));
    assert_eq!(three.look(Kind::Lock, &name).holders.len(), 1);
}

#[test]
fn s4_who_waits_where_a_slot_was_is_asked_about_once_somebody_hears_where_it_is() {
    let nodes = Nodes::start();
    let name = nodes.name_in(0, "a");
    let slot = slot(&nodes, &name);
    let (one, two) = (process(&nodes), process(&nodes));
    one.take(&name, Mode::Exclusive);
    let waits = two.queue(&name, Mode::Exclusive);
    let (other, _) = two.take(&nodes.name_in(2, "b"), Mode::Exclusive);
    nodes.move_slot(slot, 0, 1);
    // Any answer of a node that knows it is enough.
    two.look(Kind::Lock, &name);
    let doubtful = two.event("a doubt", |event| match event {
        Event::Doubtful { claims } => Some(claims.clone()),
        _ => None,
    });
    assert_eq!(doubtful, [waits.id], "and not {}, which is elsewhere", other.id);
}

#[test]
fn s4_while_a_slot_is_being_moved_its_names_wait_and_nothing_is_lost() {
    let nodes = Nodes::start();
    for layout in ["native", "plain", "redisson"] {
        let url = format!("{}?layout={layout}", nodes.url());
        let (one, two) = (open(&url).unwrap(), open(&url).unwrap());
        let names: Vec<String> = (0..3).map(|n| format!("{{{layout}}}{n}")).collect();
        let key = |name: &str| match layout {
            "native" => format!("lockkeeper:{{lock:%7B{layout}%7D{}}}", &name[name.len() - 1..]),
            _ => name.to_owned(),
        };
        let (held, _) = one.take(&names[0], Mode::Exclusive);
        let at = nodes.slot(&key(&names[0]));
        let from = nodes.home(at);
        let to = (from + 1) % 3;
        // A key that the name has in this layout is at the old node, none of another name is.
        nodes.open_slot(at, from, to);
        let moving = std::thread::scope(|scope| {
            let renewing = scope.spawn(|| one.renew(held.id));
            let asking = scope.spawn(|| two.attempt_try(&two.exclusive(&names[0])));
            std::thread::sleep(Duration::from_millis(100));
            nodes.move_keys(at, from, to);
            std::thread::sleep(Duration::from_millis(100));
            nodes.close_slot(at, from, to);
            (renewing.join().unwrap(), asking.join().unwrap())
        });
        assert!(matches!(moving.0, Renewal::Extended { .. }), "{layout}: {:?}", moving.0);
        assert!(matches!(moving.1, Attempt::Busy(_)), "{layout}: {:?}", moving.1);
        assert!(matches!(one.renew(held.id), Renewal::Extended { .. }), "{layout}");
        assert!(matches!(one.release(held.id), End::Freed), "{layout}");
        two.take(&names[0], Mode::Exclusive);
    }
}

#[test]
fn s4_a_name_is_watched_while_its_slot_is_being_moved() {
    let nodes = Nodes::start();
    let name = nodes.name_in(0, "a");
    let at = slot(&nodes, &name);
    let [one, two] = [(); 2].map(|()| process(&nodes));
    let (held, _) = one.take(&name, Mode::Exclusive);
    let last = format!("lockkeeper:{{lock:{name}}}:last");
    let query = Query::One(Kind::Lock, Name::new(&name).unwrap());
    // The number is there and nobody watches yet: its keys are at two nodes now.
    nodes.open_slot(at, 0, 1);
    two.wait(two.engine.watch(WatchId(1), &query)).unwrap();
    assert!(nodes.command(0, &["GET", &last]).concat().ends_with(":o"));
    nodes.move_keys(at, 0, 1);
    nodes.close_slot(at, 0, 1);
    assert!(matches!(one.release(held.id), End::Freed));
    let told = |event: &Event| matches!(event, Event::Changed { .. }).then_some(());
    two.event("the release", told);
}

#[test]
fn s4_a_script_that_deletes_waits_for_its_slot_and_never_runs_half() {
    let nodes = Nodes::start();
    let name = nodes.name_in(0, "a");
    let at = slot(&nodes, &name);
    let [one, two, three, watcher] = [(); 4].map(|()| process(&nodes));
    let query = Query::One(Kind::Lock, Name::new(&name).unwrap());
    watcher.wait(watcher.engine.watch(WatchId(1), &query)).unwrap();
    let (held, _) = one.take(&name, Mode::Shared);
    let writer = two.queue(&name, Mode::Exclusive);
    let reader = three.queue(&name, Mode::Shared);
    let record = format!("lockkeeper:{{lock:{name}}}");
    for key in ["", ":line", ":last", ":watch:0"] {
        let exists = || nodes.command(0, &["EXISTS", &format!("{record}{key}")]) == ["1"];
        until("every key of the name is there", exists);
    }
    nodes.open_slot(at, 0, 1);
    let refused = || {
        let info = nodes.command(0, &["INFO", "errorstats"]).concat();
        info.contains("errorstat_TRYAGAIN")
    };
    std::thread::scope(|scope| {
        // It lets the reader in beside the first one, whose record is written anew for both.
        let leaving = scope.spawn(|| two.withdraw(writer.id));
        until("it was asked for", || refused() || leaving.is_finished());
        assert_eq!(nodes.command(0, &["EXISTS", &record]), ["1"], "a live hold was deleted");
        nodes.move_keys(at, 0, 1);
        nodes.close_slot(at, 0, 1);
        assert!(matches!(leaving.join().unwrap(), End::Freed));
    });
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
    granted(three.attempt_until(&reader));
    assert!(matches!(two.attempt_try(&two.exclusive(&name)), Attempt::Busy(_)));
}

#[test]
fn s4_a_fair_lock_that_is_given_back_while_its_slot_moves_wakes_the_next() {
    let nodes = Nodes::start();
    let url = format!("{}?layout=redisson&lock=fair", nodes.url());
    let (one, two) = (open(&url).unwrap(), open(&url).unwrap());
    let (held, _) = one.take("a", Mode::Exclusive);
    let waits = two.queue("a", Mode::Exclusive);
    let at = nodes.slot("a");
    let from = nodes.home(at);
    let to = (from + 1) % 3;
    nodes.open_slot(at, from, to);
    let refused = || {
        let info = nodes.command(from, &["INFO", "errorstats"]).concat();
        info.contains("errorstat_TRYAGAIN")
    };
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| one.release(held.id));
        until("it was asked for", || refused() || leaving.is_finished());
        nodes.move_keys(at, from, to);
        nodes.close_slot(at, from, to);
        let end = leaving.join().unwrap();
        assert!(matches!(end, End::Freed), "{end:?}");
    });
    granted(two.attempt_until(&waits));
}

#[test]
fn s4_a_lock_of_one_key_is_kept_where_its_slot_is_going() {
    let nodes = Nodes::start();
    let url = format!("{}?layout=plain", nodes.url());
    let (one, two) = (open(&url).unwrap(), open(&url).unwrap());
    let (old, new) = ("{a}old", "{a}new");
    let (held, _) = one.take(old, Mode::Exclusive);
    let slot = nodes.slot(old);
    let from = nodes.home(slot);
    let to = (from + 1) % 3;
    nodes.open_slot(slot, from, to);
    // One is still where it was, the other is made where it will be.
    let (fresh, _) = one.take(new, Mode::Exclusive);
    assert!(nodes.command(from, &["EXISTS", new]).concat().starts_with("-ASK"));
    for (name, claim) in [(old, &held), (new, &fresh)] {
        assert!(matches!(two.attempt_try(&two.exclusive(name)), Attempt::Busy(_)), "{name}");
        assert!(matches!(one.renew(claim.id), Renewal::Extended { .. }), "{name}");
    }
    nodes.move_keys(slot, from, to);
    nodes.close_slot(slot, from, to);
    for claim in [held, fresh] {
        assert!(matches!(one.release(claim.id), End::Freed));
    }
}

/// How often anybody asked a node where everything is.
fn looks(nodes: &Nodes) -> u64 {
    let asked = |node: &RedisServer| node.command_counts().get("cluster|shards").copied();
    nodes.nodes.iter().filter_map(asked).sum()
}

#[test]
fn s4_names_of_a_slot_that_is_half_moved_keep_back_no_news_of_others_and_nobody_doubts_the_map() {
    let nodes = Nodes::start();
    let process = opened(|| open(&format!("{}?request_timeout=2s", nodes.url())));
    let names: Vec<String> = (0..65).map(|n| nodes.name_in(0, &format!("a{n}x"))).collect();
    let held: Vec<_> = names.iter().map(|name| taken(&process, name)).collect();
    // Every connection is there that will be needed.
    let other = taken(&process, &nodes.name_in(1, "a"));
    held.iter().chain([&other]).for_each(|claim| renewed(&process, claim));
    let port = nodes.nodes[1].port().to_string();
    for name in &names[..60] {
        nodes.open_slot(slot(&nodes, name), 0, 1);
        // One of its keys has moved, and another has not.
        let record = format!("lockkeeper:{{lock:{name}}}");
        let moved = nodes.command(0, &["MIGRATE", "127.0.0.1", &port, &record, "0", "60000"]);
        assert_eq!(moved, ["OK"]);
    }
    let leases: Vec<_> = held.iter().map(|claim| claim.id.into()).collect();
    // Again where an answer of the others was late.
    until("the others are renewed, and the map says what is so", || {
        let before = looks(&nodes);
        // One alone is asked for over 2.2 s: one after the other would be 130 s, and longer than an
        // answer is waited for.
        let answers = process.wait(process.engine.renew(&leases));
        let unknown = |renewal: &Renewal| matches!(renewal, Renewal::Unknown(_));
        assert!(answers[..60].iter().all(unknown), "{answers:?}");
        let extended = |renewal: &Renewal| matches!(renewal, Renewal::Extended { .. });
        answers[60..].iter().all(extended) && looks(&nodes) == before
    });
    for (name, claim) in names.iter().zip(&held).take(60) {
        let at = slot(&nodes, name);
        nodes.move_keys(at, 0, 1);
        nodes.close_slot(at, 0, 1);
        renewed(&process, claim);
    }
}

#[test]
fn slots_that_are_moved_one_by_one_are_no_reason_to_ask_for_the_map_after_each() {
    let nodes = Nodes::start();
    let process = process(&nodes);
    let names: Vec<String> = (0..12).map(|n| nodes.name_in(0, &format!("a{n}x"))).collect();
    let held: Vec<_> = names.iter().map(|name| process.take(name, Mode::Exclusive).0).collect();
    // Every connection is there that will be needed, and all know of the epoch of the new node.
    let (other, _) = process.take(&nodes.name_in(1, "a"), Mode::Exclusive);
    for claim in held.iter().chain([&other]) {
        assert!(matches!(process.renew(claim.id), Renewal::Extended { .. }));
    }
    nodes.move_slot(slot(&nodes, &nodes.name_in(0, "other")), 0, 1);
    let (before, began) = (looks(&nodes), Instant::now());
    for (name, claim) in names.iter().zip(&held) {
        nodes.move_slot(slot(&nodes, name), 0, 1);
        assert!(matches!(process.renew(claim.id), Renewal::Extended { .. }), "{name}");
    }
    let (asked, seconds) = (looks(&nodes) - before, began.elapsed().as_secs());
    println!("12 moves in {seconds} s: {asked} looks");
    assert!(asked <= seconds + 2, "{asked} looks in {seconds} s");
    until("it is asked whether others have moved as well", || looks(&nodes) > before);
}

#[test]
fn a_node_that_does_not_answer_costs_the_names_of_the_others_nothing() {
    let nodes = Nodes::start();
    let process = open(&format!("{}?request_timeout=10s", nodes.url())).unwrap();
    let names: Vec<String> = (0..3).map(|shard| nodes.name_in(shard, "a")).collect();
    let held: Vec<_> = names.iter().map(|name| process.take(name, Mode::Exclusive).0).collect();
    for claim in &held {
        assert!(matches!(process.renew(claim.id), Renewal::Extended { .. }));
    }
    nodes.nodes[0].stop();
    let dead = process.engine.renew(&[held[0].id.into()]);
    let unanswered = std::thread::scope(|scope| {
        let dead = scope.spawn(|| process.wait(dead));
        let parts: Vec<u32> = held.iter().map(|claim| process.engine.part(claim.id)).collect();
        assert!(parts[0] != parts[1] && parts[1] != parts[2] && parts[2] != parts[0], "{parts:?}");
        for at in [1, 2] {
            assert!(matches!(process.renew(held[at].id), Renewal::Extended { .. }));
            assert!(matches!(process.release(held[at].id), End::Freed));
            process.take(&names[at], Mode::Exclusive);
        }
        assert!(!dead.is_finished(), "it has ten seconds for its answer");
        dead.join().unwrap().remove(0)
    });
    let Renewal::Unknown(error) = unanswered else { panic!("it is stopped") };
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    nodes.nodes[0].go_on();
    until("it is renewed", || matches!(process.renew(held[0].id), Renewal::Extended { .. }));
}

#[test]
fn s1_a_hold_and_its_line_are_found_at_the_replica_that_was_promoted() {
    let mut nodes = Nodes::start_with(Setup { replicas: 1, ..Setup::default() });
    let name = nodes.name_in(1, "a");
    let (one, two) = (process(&nodes), process(&nodes));
    // It is held for longer than any failover takes.
    let held = Claim { ttl: PATIENCE * 5, ..one.exclusive(&name) };
    let first = granted(one.attempt(&held));
    let waits = two.queue(&name, Mode::Exclusive);
    let new = nodes.fail_over(slot(&nodes, &name));
    assert_eq!(new, 4);
    until("it is renewed", || matches!(one.renew(held.id), Renewal::Extended { .. }));
    assert!(matches!(one.release(held.id), End::Freed));
    assert!(number(&granted(two.attempt_until(&waits))) > number(&first));
    // The old one comes back as a replica, and says where to go.
    nodes.nodes[1].restart();
    nodes.until_agreed();
    assert!(matches!(two.release(waits.id), End::Freed));
}

#[test]
fn whoever_asks_right_after_a_node_died_is_granted_once_another_has_its_slots() {
    let mut nodes = Nodes::start_with(Setup { replicas: 1, ..Setup::default() });
    let name = nodes.name_in(1, "a");
    // Whoever waits for the node that died waits for longer than the test.
    let process = open(&format!("{}?connect_timeout=10m", nodes.url())).unwrap();
    process.take(&nodes.name_in(1, "b"), Mode::Exclusive);
    nodes.until_replicated(1);
    nodes.nodes[1].kill();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            // What was on its way to the node when that died is not known; it is asked again.
            let claim = process.exclusive(&name);
            loop {
                match process.attempt(&claim) {
                    Attempt::Unknown(_) => {}
                    done => {
                        granted(done);
                        break;
                    }
                }
            }
        });
        nodes.until_replaced(1);
        asking.join().unwrap();
    });
}

#[test]
fn a_stranger_at_the_address_of_a_node_is_not_believed() {
    let mut nodes = Nodes::start();
    let names: Vec<String> = (0..3).map(|shard| nodes.name_in(shard, "a")).collect();
    let url = format!("{}?connect_timeout=3s&request_timeout=2s", nodes.url());
    let process = opened(|| open(&url));
    let (held, lost) = (taken(&process, &names[0]), taken(&process, &names[1]));
    let stranger = format!("127.0.0.1:{}", nodes.nodes[1].port());
    for (option, value, says) in [
        ("--cluster-enabled", "no", "is no node of a Redis Cluster"),
        ("--cluster-config-file", "other.conf", "is another node"),
    ] {
        nodes.nodes[1].kill();
        nodes.nodes[1].set("--cluster-enabled", &["yes"]);
        nodes.nodes[1].set(option, &[value]);
        nodes.nodes[1].restart();
        if value != "no" {
            let all = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
            assert_eq!(nodes.command(1, &all), ["OK"], "a cluster of its own");
        }
        // Again where it was not even connected in time.
        until("it is said who is there", || match process.attempt(&process.exclusive(&names[1])) {
            Attempt::Failed(error) => {
                assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
                let text = error.message();
                text.contains(says) && text.contains(&stranger)
            }
            Attempt::Unknown(_) => false,
            other => panic!("{option}: {other:?}"),
        });
        assert!(matches!(process.renew(lost.id), Renewal::Unknown(_)), "nothing is known of it");
        // What else that server says about all nodes is not believed either.
        renewed(&process, &held);
        taken(&process, &nodes.name_in(2, &option.replace('-', "x")));
    }
}

#[test]
fn an_error_names_the_node_that_it_is_about() {
    let mut nodes = Nodes::start();
    let names: Vec<String> = (0..3).map(|shard| nodes.name_in(shard, "a")).collect();
    let url = format!("{}?connect_timeout=2s&request_timeout=2s", nodes.url());
    let process = opened(|| open(&url));
    let held = taken(&process, &names[2]);
    let ports: Vec<String> =
        nodes.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let about = |error: &crate::words::error::Error| {
        let text = error.message();
        assert_eq!(text.matches(&ports[2]).count(), 1, "{error}");
        assert!(!text.contains(&ports[0]) && !text.contains(&ports[1]), "{error}");
    };
    nodes.nodes[2].stop();
    let Attempt::Unknown(error) = process.attempt(&process.exclusive(&names[2])) else {
        panic!("it is stopped")
    };
    about(&error);
    let Renewal::Unknown(error) = process.renew(held.id) else { panic!("it is stopped") };
    about(&error);
    nodes.nodes[2].go_on();
    nodes.nodes[2].kill();
    // What was sent before the end of the connection was noticed is unknown.
    until("nothing is sent to it any more", || {
        match process.attempt(&process.exclusive(&names[2])) {
            Attempt::Failed(error) => {
                about(&error);
                true
            }
            Attempt::Unknown(error) => {
                about(&error);
                false
            }
            other => panic!("it is dead: {other:?}"),
        }
    });
    // What one of them answers.
    nodes.command(1, &["CONFIG", "SET", "maxmemory", "1"]);
    until("it is full", || match process.attempt(&process.exclusive(&names[1])) {
        Attempt::Failed(error) => error.message().contains(&ports[1]),
        Attempt::Unknown(_) => false,
        other => panic!("it is full: {other:?}"),
    });
}

#[test]
fn a_name_whose_keys_are_in_several_slots_is_told_so() {
    let nodes = Nodes::start();
    let process = open(&format!("{}?layout=redisson&lock=fair", nodes.url())).unwrap();
    let attempt = process.attempt(&process.exclusive("{}x"));
    let Attempt::Failed(error) = attempt else { panic!("{attempt:?}") };
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("in several slots"), "{error}");
    assert!(!error.message().contains("redis+cluster://"), "{error}");
}

#[test]
fn a_node_that_comes_and_one_that_goes_take_no_lock_along() {
    let mut nodes = Nodes::start();
    let name = nodes.name_in(2, "a");
    let process = process(&nodes);
    let (held, _) = process.take(&name, Mode::Exclusive);
    let new = nodes.add();
    let slot = slot(&nodes, &name);
    nodes.move_slot(slot, 2, new);
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    nodes.move_slot(slot, new, 0);
    nodes.nodes[new].kill();
    // What was on its way to that node when it ended is not known, and is asked again.
    until("it is renewed", || {
        let kept = process.renew(held.id);
        assert!(!matches!(kept, Renewal::Gone(_)), "{kept:?}");
        matches!(kept, Renewal::Extended { .. })
    });
    assert!(matches!(process.release(held.id), End::Freed));
}

#[test]
fn a_watch_hears_of_its_name_wherever_that_is() {
    let nodes = Nodes::start();
    let latch = Name::new("a").unwrap();
    let slot = nodes.slot("lockkeeper:{latch:a}");
    let (one, two) = (process(&nodes), process(&nodes));
    let query = Query::One(Kind::Latch, latch.clone());
    one.wait(one.engine.watch(WatchId(1), &query)).unwrap();
    one.wait(one.engine.watch(WatchId(2), &Query::Prefix("a".into()))).unwrap();
    let changed = |watch| {
        one.event("a change", |event| {
            matches!(event, Event::Changed { watch: WatchId(id) } if *id == watch).then_some(())
        });
    };
    assert!(two.change(&Change::LatchSet(latch.clone(), 3)));
    (1..=2).for_each(changed);
    let from = nodes.home(slot);
    nodes.move_slot(slot, from, (from + 1) % 3);
    // It finds out where it is, and watches there.
    assert_eq!(one.look(Kind::Latch, "a").count, Some(3));
    two.change(&Change::LatchCountDown(latch, crate::words::id::ClaimId::fresh()));
    (1..=2).for_each(changed);
}

#[test]
fn b8_nodes_that_tell_waiters_nothing_are_warned_of() {
    let nodes = Nodes::start();
    for node in 0..nodes.nodes.len() {
        let user = ["ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all"];
        nodes.command(node, &[&user[..], &["-client|tracking"]].concat());
    }
    let warned = |layout: &str| {
        let url = format!("{}?layout={layout}", nodes.url()).replace("://", "://ann:pw@");
        let process = open(&url).unwrap();
        let (held, _) = process.take("a", Mode::Exclusive);
        assert!(matches!(process.release(held.id), End::Freed));
        let warnings = process.engine.describe().warnings;
        let told = warnings.iter().find(|warning| warning.id == "tracking-refused");
        told.inspect(|told| assert!(told.text.starts_with("on the nodes that were asked user ann")))
            .is_some()
    };
    assert!(warned("plain"), "the node of this name has been asked");
    assert!(!warned("redisson"), "there waiters listen to a channel");
}
