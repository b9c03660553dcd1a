//! What a process costs the deployments of Redis: connections, threads, messages in the background,
//! and what waiting for a replica adds to a grant.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockkeeper::{Locks, Mode};
use lockkeeper_lab::conformance::Helper;
use lockkeeper_lab::engines::until_they_count;
use lockkeeper_testkit::cluster::server::Nodes;
use lockkeeper_testkit::redis::server::{RedisClient, RedisServer};
use lockkeeper_testkit::sentinel::server::Deployment;

pub const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Connections of lockkeeper at a server.
fn connections(server: &RedisServer) -> usize {
    let clients = server.command(&["CLIENT", "LIST"]).concat();
    clients.lines().filter(|line| line.contains("name=lockkeeper:")).count()
}

/// The helpers that this process has started on this URL: where the kernel tells of each.
pub fn helpers(url: &str) -> BTreeSet<PathBuf> {
    let own = std::process::id().to_string();
    let children = std::fs::read_dir("/proc").expect("it is Linux").flatten();
    let is_helper = |at: &PathBuf| {
        let line = std::fs::read(at.join("cmdline")).unwrap_or_default();
        let words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let stat = std::fs::read_to_string(at.join("stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        parent == Some(own.as_str()) && words.eq([HELPER, url, ""])
    };
    children.map(|child| child.path()).filter(is_helper).collect()
}

pub fn threads(process: &Path) -> usize {
    std::fs::read_dir(process.join("task")).map_or(0, Iterator::count)
}

fn threads_of_helpers(url: &str) -> usize {
    helpers(url).iter().map(|at| threads(at)).sum()
}

pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Members that count.
fn members() -> (Vec<RedisServer>, String) {
    let members: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let at: Vec<_> = members.iter().map(|m| format!("127.0.0.1:{}", m.port())).collect();
    let url = format!("redlock-lab://{}?ttl=9s", at.join(","));
    until_they_count(&members, &url).expect("they count");
    (members, url)
}

#[test]
fn a_process_of_a_quorum_or_of_sentinels_has_no_thread_more_than_one_of_a_single_server() {
    let single = RedisServer::start();
    let deployment = Deployment::start();
    let (members, quorum) = members();
    let nodes = Nodes::start();
    run(async {
        let mut threads = BTreeSet::new();
        for url in [single.url(), deployment.url(), quorum, nodes.url()] {
            let there = Helper::start(Path::new(HELPER), &url).await;
            let turn = there.lock(Mode::Exclusive, "a", PATIENCE).await.expect("it is free");
            threads.insert(threads_of_helpers(&url));
            if url.starts_with("redlock") {
                assert!(members.iter().all(|member| connections(member) == 1), "one a member");
            }
            there.release(turn).await.expect("it is held");
            there.close().await.expect("nothing is held");
            drop(there);
            until("the helper has ended", || threads_of_helpers(&url) == 0).await;
        }
        let alike = threads.len() == 1 && threads.first().is_some_and(|threads| *threads > 1);
        assert!(alike, "{threads:?}");
        assert!(members.iter().all(|member| connections(member) == 0), "none is left");
    });
}

#[test]
fn a_process_of_a_quorum_that_holds_nothing_says_nothing() {
    let (members, url) = members();
    run(async {
        let locks = Locks::open(&url).await.expect("they are there");
        let guard = locks.mutex("a").lock().timeout(PATIENCE).await.expect("they count in time");
        assert!(guard.release().await.is_clean());
        // The last of them may hear of it later than its caller.
        let free =
            |member: &RedisServer| member.command(&["EXISTS", "lockkeeper:{redlock:a}"]) == ["0"];
        until("it is free on all of them", || members.iter().all(free)).await;
        for member in &members {
            member.command(&["CONFIG", "RESETSTAT"]);
        }
        // Time is the subject: every check that there is comes round in six seconds.
        tokio::time::sleep(Duration::from_secs(6)).await;
        for member in &members {
            let said: Vec<_> = member.command_counts().into_keys().collect();
            assert!(
                said.iter().all(|word| word.starts_with("config") || word == "info"),
                "{said:?}"
            );
        }
        let guard = locks.mutex("a").lock().await.expect("it is free");
        let counts = members[0].command_counts();
        assert!(counts.keys().any(|word| word.starts_with("eval")), "it would be seen: {counts:?}");
        assert!(guard.release().await.is_clean());
    });
}

#[test]
fn a_process_of_a_cluster_that_holds_nothing_says_nothing() {
    let nodes = Nodes::start();
    run(async {
        let locks = Locks::open(&nodes.url()).await.expect("they are there");
        let names: Vec<String> = (0..3).map(|shard| nodes.name_in(shard, "a")).collect();
        for name in &names {
            let guard = locks.mutex(name.as_str()).lock().await.expect("it is free");
            assert!(guard.release().await.is_clean());
        }
        // The looks at the map, when it was new, are over once their connections have gone.
        let settled = || nodes.nodes.iter().all(|node| connections(node) == 1);
        until("one connection to each node is left", settled).await;
        for node in &nodes.nodes {
            node.command(&["CONFIG", "RESETSTAT"]);
        }
        // Time is the subject: every check that there is comes round in six seconds.
        tokio::time::sleep(Duration::from_secs(6)).await;
        for node in &nodes.nodes {
            let said: Vec<_> = node.command_counts().into_keys().collect();
            let ours = said.iter().filter(|word| !word.starts_with("config") && *word != "info");
            assert_eq!(ours.count(), 0, "{said:?}");
        }
        let guard = locks.mutex(names[0].as_str()).lock().await.expect("it is free");
        let counts = nodes.nodes[0].command_counts();
        assert!(counts.keys().any(|word| word.starts_with("eval")), "it would be seen: {counts:?}");
        assert!(guard.release().await.is_clean());
    });
}

#[test]
fn a_holder_with_sentinels_sends_its_master_renewals_and_nothing_else() {
    let deployment = Deployment::start();
    let master = &deployment.servers[0];
    run(async {
        let locks = Locks::open(&format!("{}?ttl=9s", deployment.url())).await;
        let locks = locks.expect("the master can be found");
        let guard = locks.mutex("a").lock().await.expect("it is free");
        until("renewals have a connection of their own", || connections(master) == 2).await;
        // The first one brings the server its script.
        let mut least = i64::MAX;
        let is_renewed = || {
            let left = master.command(&["PTTL", "lockkeeper:{lock:a}"]).concat();
            let left = left.parse::<i64>().expect("milliseconds");
            least = least.min(left);
            left > least
        };
        until("it was renewed once", is_renewed).await;
        let clients = master.command(&["CLIENT", "LIST"]).concat();
        let ours = clients.lines().filter(|line| line.contains("name=lockkeeper:"));
        let ours = ours.filter_map(|line| line.split(' ').find_map(|w| w.strip_prefix("addr=")));
        let ours: Vec<_> = ours.map(|at| format!(" {at}] ")).collect();
        let mut monitor = master.client();
        assert_eq!(monitor.command(&["MONITOR"]), ["OK"]);
        // Time is the subject: a renewal comes every three seconds.
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs(6)).await;
        master.command(&["ECHO", "that is all"]);
        let (mut said, mut is_all) = (Vec::new(), false);
        // One that is late is waited for.
        while !is_all || said.len() < 2 {
            let line = monitor.read().concat();
            is_all |= line.contains("that is all");
            said.extend(ours.iter().any(|at| line.contains(at)).then_some(line));
        }
        let most = begun.elapsed().as_secs() as usize / 3 + 2;
        let renewals = said.iter().filter(|line| line.contains("\"EVALSHA\"")).count();
        assert!(renewals == said.len() && renewals <= most, "{said:?}");
        assert!(guard.release().await.is_clean());
    });
}

#[test]
fn a_process_has_two_connections_to_a_single_server_and_says_nothing_while_it_holds_nothing() {
    let server = RedisServer::start();
    run(async {
        let locks = Locks::open(&format!("{}?ttl=9s", server.url())).await.expect("it is there");
        let guard = locks.mutex("a").lock().await.expect("it is free");
        until("renewals have a connection of their own", || connections(&server) == 2).await;
        let waits = locks.mutex("a").try_lock().await.expect("it can be asked");
        assert!(waits.is_none());
        assert!(guard.release().await.is_clean());
        assert_eq!(connections(&server), 2, "and no other");
        let mut rounds = 0..3;
        // A renewal may be on its way still when its lock is given back.
        loop {
            server.command(&["CONFIG", "RESETSTAT"]);
            // Time is the subject: every check that there is comes round in six seconds.
            tokio::time::sleep(Duration::from_secs(6)).await;
            let said: Vec<_> = server.command_counts().into_keys().collect();
            if said.iter().all(|word| word.starts_with("config") || word == "info") {
                break;
            }
            assert!(rounds.next().is_some(), "{said:?}");
        }
        let guard = locks.mutex("a").lock().await.expect("it is free");
        let counts = server.command_counts();
        assert!(counts.keys().any(|word| word.starts_with("eval")), "it would be seen: {counts:?}");
        assert!(guard.release().await.is_clean());
        assert!(locks.close().await.unknown.is_empty());
        until("none is left", || connections(&server) == 0).await;
    });
}

#[test]
fn waiting_for_a_replica_is_shared_by_a_batch() {
    let deployment = Deployment::start();
    run(async {
        let locks = Locks::open(&format!("{}?wait_replicas=1", deployment.url())).await;
        let locks = locks.expect("the master can be found");
        deployment.command(0, &["CONFIG", "RESETSTAT"]);
        let names: Vec<_> = (0..64).map(|n| locks.mutex(format!("batch/{n}"))).collect();
        let mut asking = tokio::task::JoinSet::new();
        for name in names {
            asking.spawn(async move { name.lock().timeout(PATIENCE).await.expect("it is free") });
        }
        let held = asking.join_all().await;
        let waits = deployment.servers[0].command_counts()["wait"];
        println!("64 grants at a time: {waits} WAIT");
        assert!((1..=8).contains(&waits), "{waits} WAIT for 64 grants");
        for guard in held {
            assert!(guard.release().await.is_clean());
        }
    });
}

/// The middle of so many times.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn waiting_for_a_replica_costs_a_grant_one_wait_and_no_replica_is_waited_for_longer_than_it_takes()
{
    const ROUNDS: usize = 300;
    let deployment = Deployment::start();
    run(async {
        let url = deployment.url();
        let plain = Locks::open(&url).await.expect("the master can be found");
        let waits = Locks::open(&format!("{url}?wait_replicas=1")).await.expect("and again");
        let (plain, waits) = (plain.mutex("plain"), waits.mutex("waits"));
        deployment.command(0, &["CONFIG", "RESETSTAT"]);
        let mut raw = RedisClient::connect(deployment.servers[0].port());
        let (mut without, mut with, mut trips) = (Vec::new(), Vec::new(), Vec::new());
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            // A replica that is not asked acknowledges once a second: this would take ten minutes.
            assert!(begun.elapsed() < PATIENCE, "it is waited for longer than it takes");
            for (lock, times) in [(&plain, &mut without), (&waits, &mut with)] {
                let begun = Instant::now();
                let guard = lock.lock().await.expect("it is free");
                times.push(begun.elapsed());
                assert!(guard.release().await.is_clean());
            }
            // What a client pays at least for a write that a replica has: it, and WAIT behind it.
            raw.command(&["SET", "raw", "1"]);
            let begun = Instant::now();
            assert_eq!(raw.command(&["WAIT", "1", "1000"]), ["1"]);
            trips.push(begun.elapsed());
        }
        let [without, with, trip] = [without, with, trips].map(median);
        println!("a grant {without:?}, one that a replica has {with:?}, raw WAIT {trip:?}");
        // One for each grant of ours and each raw one; a release waits for nobody.
        let counted = deployment.servers[0].command_counts()["wait"];
        assert_eq!(counted, 2 * ROUNDS as u64, "WAIT");
    });
}
