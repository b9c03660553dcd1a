//! What makes a Redis Cluster EFFICIENCY, by two schedules: a master dies before its replica has a
//! grant (S1), or goes on for whoever reaches it when another one has its slots (S3). That is two
//! holders nearly every time; with `min-replicas-to-write` it never is.
//!
//! The cut of S3 is made by orders to the nodes, CLUSTER FORGET and TAKEOVER. Any two nodes have
//! two links, each made by one of them to the address that the other tells everybody, so a proxy
//! there does not know whom it cuts off; and a network namespace needs rights that a test cannot
//! count on.

use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::{Locks, Mode};
use lockkeeper_lab::conformance::Helper;
use lockkeeper_testkit::cluster::server::{Nodes, QUICK, Setup};

use crate::common::{HELPER, run_on};

const PATIENCE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(60);
const RUNS: usize = 10;
/// How many clusters run at a time.
const TOGETHER: usize = 2;

fn run<T>(future: impl Future<Output = T>) -> T {
    run_on(1, Duration::from_secs(180), future)
}

/// Whether two processes hold one lock at once.
async fn two_holders(arguments: &[&str]) -> bool {
    let mut nodes = Nodes::start_with(Setup {
        replicas: 1,
        node_timeout: QUICK,
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        ..Setup::default()
    });
    let url = format!("{}?ttl={}s", nodes.url(), TTL.as_secs());
    let first = Helper::start(Path::new(HELPER), &url).await;
    let second = Locks::open(&url).await.expect("the nodes can be asked");
    let home = nodes.home(nodes.slot("lockkeeper:{lock:a}"));
    nodes.try_stop_replication(&[home]).expect("they answer");
    let turn = first.lock(Mode::Exclusive, "a", Duration::from_secs(2)).await.ok();
    let held = match turn {
        Some(turn) => first.check(turn).await.expect("there is such a turn") == "ok",
        None => false,
    };
    // Its work goes on for a while, as far as it knows; it hears of nothing meanwhile. A renewal is
    // a third of a lease old at most, and a tenth is allowed for drift.
    let believes_until = Instant::now() + TTL * 2 / 3 - TTL / 10;
    first.stop();
    nodes.nodes[home].kill();
    nodes.try_let_replicate().expect("they answer");
    nodes.try_until_replaced(home).expect("a replica is promoted");
    nodes.try_come_back(home).expect("it is the new one's replica");
    let guard = second.mutex("a").lock().timeout(PATIENCE).await.expect("it is free in time");
    let granted = Instant::now();
    drop(guard);
    first.go_on();
    held && granted < believes_until
}

/// Whether two processes hold one lock at once when its master does not hear of its successor. It
/// is cut off from that node alone, and the others cannot tell it.
async fn two_masters(arguments: &[&str]) -> bool {
    let nodes = Nodes::start_with(Setup {
        replicas: 1,
        node_timeout: QUICK,
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        ..Setup::default()
    });
    let name = nodes.name_in(1, "a");
    let url = format!("{}?ttl={}s", nodes.url(), TTL.as_secs());
    let there = Locks::open(&url).await.expect("the nodes can be asked");
    let before = there.mutex(name.as_str()).lock().timeout(PATIENCE).await.expect("it is free");
    assert!(before.release().await.is_clean());
    let (master, replica, slot) = (1, 4, *nodes.slots_at_first(1).start());
    nodes.until_replicated(master);
    let id = nodes.id(replica);
    assert_eq!(nodes.command(master, &["CLUSTER", "FORGET", &id]), ["OK"]);
    assert_eq!(nodes.command(replica, &["CLUSTER", "FAILOVER", "TAKEOVER"]), ["OK"]);
    let began = Instant::now();
    while [0, 2, replica].iter().any(|at| nodes.home_as_seen_by(*at, slot) != Some(replica)) {
        assert!(began.elapsed() < PATIENCE, "the others know");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let others = url.replace(&format!("127.0.0.1:{},", nodes.nodes[master].port()), "");
    let elsewhere = Locks::open(&others).await.expect("the others can be asked");
    let one = there.mutex(name.as_str()).lock().timeout(Duration::from_secs(3)).await;
    let two = elsewhere.mutex(name.as_str()).lock().timeout(Duration::from_secs(3)).await;
    let holds =
        |guard: &Result<lockkeeper::Guard, _>| guard.as_ref().is_ok_and(|g| g.check().is_ok());
    holds(&one) && holds(&two)
}

/// How often there were two holders.
fn violations<'a, F: Future<Output = bool>>(
    schedule: impl Fn(&'a [&'a str]) -> F + Copy + Sync,
    arguments: &'a [&'a str],
) -> usize {
    let mut two = 0;
    for _ in 0..RUNS / TOGETHER {
        two += std::thread::scope(|scope| {
            let running: Vec<_> =
                (0..TOGETHER).map(|_| scope.spawn(|| run(schedule(arguments)))).collect();
            let ended = running.into_iter().map(std::thread::ScopedJoinHandle::join);
            ended.filter(|two| *two.as_ref().expect("the schedule can be carried out")).count()
        });
    }
    println!("{arguments:?}: two holders in {two} of {RUNS} runs");
    two
}

const MIN_REPLICAS: [&str; 4] = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"];

#[test]
fn s1_a_node_that_dies_before_its_replica_has_the_grant_gives_two_holders() {
    assert!(violations(two_holders, &[]) >= 9);
}

#[test]
fn s1_a_node_that_needs_a_replica_for_its_writes_grants_nothing_that_is_lost_with_it() {
    assert_eq!(violations(two_holders, &MIN_REPLICAS), 0);
}

#[test]
fn s3_a_node_that_does_not_hear_of_its_successor_gives_two_holders() {
    assert!(violations(two_masters, &[]) >= 9);
}

#[test]
fn s3_a_node_that_needs_a_replica_for_its_writes_gives_none_without_hearing_of_its_successor() {
    assert_eq!(violations(two_masters, &MIN_REPLICAS), 0);
}
