//! Failovers of Redis with Sentinels, while locks are held and waited for (S1, S2).

use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::{Kind, Locks, Lost, Mode};
use lockkeeper_lab::conformance::Helper;
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::sentinel::server::{Deployment, QUICK, Setup};
use lockkeeper_testkit::until::until;

use crate::common::{HELPER, PATIENCE, run, until_waiting};

async fn open(url: &str) -> Locks {
    Locks::open(url).await.expect("the master can be found")
}

/// Kills the master, and waits until the Sentinels name another one.
fn fail_over(deployment: &mut Deployment) -> usize {
    let old = deployment.master();
    deployment.servers[old].kill();
    deployment.until_replaced(old)
}

/// For how long the Sentinels do nothing once their timers were late, which is to them a clock that
/// jumped.
fn tilt_for(deployment: &Deployment, ms: &str) {
    for at in 0..deployment.sentinels.len() {
        let told = deployment.ask(at, &["SENTINEL", "DEBUG", "tilt-period", ms]);
        assert_eq!(told, ["OK"]);
    }
}

/// A master and a replica, whose Sentinels do nothing for a second where their timers were late.
fn start(setup: Setup) -> Deployment {
    let deployment = Deployment::start_with(setup);
    tilt_for(&deployment, "1000");
    deployment
}

/// Clients of their own that wait for one lock. Each that gets it answers with its token, and gives
/// it back.
async fn line(url: &str, clients: usize) -> (Locks, Vec<tokio::task::JoinHandle<u64>>) {
    let looks = open(url).await;
    let mut waiting = Vec::new();
    for client in 0..clients {
        let locks = open(url).await;
        waiting.push(tokio::spawn(async move {
            let guard = locks.mutex("a").lock().timeout(PATIENCE).await.expect("its turn comes");
            let token = guard.token().expect("it is held");
            assert!(guard.release().await.is_clean());
            token.get()
        }));
        until_waiting(&looks, client + 1).await;
    }
    (looks, waiting)
}

#[test]
fn s1_a_lock_that_was_replicated_is_held_over_the_death_of_its_master_and_so_is_its_line() {
    let mut deployment = start(Setup::default());
    run(async {
        let holder = open(&deployment.url()).await;
        let guard = holder.mutex("a").lock().await.expect("it is free");
        let (looks, waiting) = line(&deployment.url(), 3).await;
        deployment.until_replicated(0);
        let before: Vec<_> = looks.status(Kind::Lock, "a").await.expect("it can be read").waiters;
        let new = fail_over(&mut deployment);
        // Asked of the new master.
        while guard.verify().await.is_err() {
            guard.check().expect("it is not lost");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(holder.describe().server.contains(&deployment.servers[new].port().to_string()));
        until_waiting(&looks, 3).await;
        let after = looks.status(Kind::Lock, "a").await.expect("it can be read").waiters;
        assert_eq!(before.len(), after.len());
        let mut last = guard.token().expect("it is held").get();
        assert!(guard.release().await.is_clean());
        for next in waiting {
            let token = next.await.expect("none is forgotten");
            assert!(
                token > last,
                "BROKEN LOCK, or not in the order in which they stood: {token} and {last}"
            );
            last = token;
        }
    });
}

#[test]
fn s1_a_lock_that_was_not_replicated_is_lost_with_its_master_and_told_at_once() {
    let mut deployment = start(Setup::default());
    run(async {
        let url = format!("{}?ttl=1h", deployment.url());
        let holder = open(&url).await;
        let kept = holder.mutex("kept").lock().await.expect("it is free");
        deployment.until_replicated(0);
        deployment.stop_replication();
        let guard = holder.mutex("a").lock().await.expect("it is free");
        let (looks, waiting) = line(&url, 2).await;
        deployment.servers[0].kill();
        // A replica is promoted that has heard nothing for no more than ten times as long.
        deployment.suspect_after(QUICK * 2);
        deployment.until_failed_over(0);
        // Its next renewal would be in twenty minutes.
        assert_eq!(guard.lost().await, Lost::TakenAway);
        let mut last = guard.token().map_or(0, |token| token.get());
        drop(guard);
        for next in waiting {
            last = last.max(next.await.expect("who stood in line stands there again"));
        }
        let guard = looks.mutex("a").lock().timeout(PATIENCE).await.expect("it is free");
        assert!(guard.token().expect("it is held").get() > last);
        kept.verify().await.expect("what the new master has goes on");
        drop(guard);
    });
}

#[test]
fn s1_forty_waiters_are_granted_in_their_order_and_none_is_forgotten_when_holder_and_master_die() {
    const NAMES: usize = 10;
    const PROCESSES: usize = 4;
    let mut deployment = start(Setup::default());
    run(async {
        let url = format!("{}?ttl=4s", deployment.url());
        let there = Helper::start(Path::new(HELPER), &url).await;
        let names: Vec<String> = (0..NAMES).map(|nth| format!("line/{nth}")).collect();
        for name in &names {
            there.lock(Mode::Exclusive, name, PATIENCE).await.expect("it is free");
        }
        let looks = open(&url).await;
        let (mut processes, mut waiting) = (Vec::new(), Vec::new());
        for place in 0..PROCESSES {
            let locks = open(&url).await;
            for name in &names {
                let lock = locks.mutex(name.as_str());
                waiting.push(tokio::spawn(async move {
                    let guard = lock.lock().timeout(PATIENCE).await.expect("its turn comes");
                    let token = guard.token().expect("it is held").get();
                    assert!(guard.release().await.is_clean());
                    token
                }));
            }
            processes.push(locks);
            for name in &names {
                let waiters = async || looks.status(Kind::Lock, name.as_str()).await;
                while waiters().await.expect("it can be read").waiters.len() <= place {
                    tokio::task::yield_now().await;
                }
            }
        }
        deployment.until_replicated(0);
        there.kill();
        fail_over(&mut deployment);
        let mut last = [0; NAMES];
        for (nth, next) in waiting.into_iter().enumerate() {
            let token = next.await.expect("none is forgotten");
            let before = &mut last[nth % NAMES];
            assert!(token > *before, "its order, or its token: {token} after {before}");
            *before = token;
        }
    });
}

/// How long a waiter waited after both had died, and what is promised where a master that is silent
/// for `down_after` counts as down. `lease`: the waiter's.
fn wait_for_the_dead(times: &str, lease: Duration, down_after: Duration) -> (Duration, Duration) {
    let mut deployment = start(Setup { down_after, ..Setup::default() });
    run(async {
        let url = format!("{}?ttl=2s{times}", deployment.url());
        let there = Helper::start(Path::new(HELPER), &url).await;
        let looks = open(&url).await;
        let within = looks.describe().recovery;
        let mut names = (0..).map(|nth| format!("a{nth}"));
        // Where the lease is over before somebody waits, once more.
        let waiting = loop {
            let name = names.next().expect("there is one");
            let turn = there.lock(Mode::Exclusive, &name, PATIENCE).await.expect("it is free");
            let (waiter, lock) = (open(&url).await, name.clone());
            let waiting = tokio::spawn(async move {
                let lock = waiter.mutex(lock).lock().ttl(lease).timeout(PATIENCE);
                let guard = lock.await.expect("it is free");
                (Instant::now(), guard.release().await.is_clean())
            });
            let waiters = async || looks.status(Kind::Lock, name.as_str()).await;
            while !waiting.is_finished()
                && waiters().await.expect("it can be read").waiters.is_empty()
            {
                tokio::task::yield_now().await;
            }
            if !waiting.is_finished() {
                break waiting;
            }
            let state = there.check(turn).await.expect("it runs");
            assert!(state.starts_with("lost"), "BROKEN LOCK: two holders, the first is {state}");
        };
        deployment.until_replicated(0);
        there.kill();
        let died = Instant::now();
        fail_over(&mut deployment);
        let (granted, clean) = waiting.await.expect("no panic");
        assert!(clean);
        (granted - died, within)
    })
}

#[test]
fn s1_a_waiter_is_granted_the_lock_when_holder_and_master_die_together() {
    let down_after = Setup::default().down_after;
    let (took, within) = wait_for_the_dead("&request_timeout=20s", 5 * PATIENCE, down_after);
    println!("holder and master dead: granted after {took:?}, and T is {within:?}");
}

#[test]
fn timed_s1_a_waiter_is_granted_within_t_when_holder_and_master_die_together() {
    let (took, within) = wait_for_the_dead("", Duration::from_secs(2), QUICK);
    assert!(took <= within + Duration::from_millis(100), "{took:?} and T is {within:?}");
    assert!(took > Duration::from_millis(1_500), "{took:?}: nobody takes a lease away early");
}

#[test]
fn s2_an_old_master_that_hangs_is_left_and_nobody_is_granted_anything_there_afterwards() {
    // Its clients would wait for its answers for longer than the test.
    let deployment = start(Setup::default());
    run(async {
        let url = format!("{}?request_timeout=10m&ttl=1h", deployment.url());
        let holder = open(&url).await;
        let guard = holder.mutex("a").lock().await.expect("it is free");
        let (_looks, waiting) = line(&url, 2).await;
        deployment.until_replicated(0);
        deployment.servers[0].stop();
        deployment.until_replaced(0);
        while guard.verify().await.is_err() {
            guard.check().expect("it is not lost");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        deployment.servers[0].go_on();
        // It believes that it is the master until the Sentinels have told it otherwise.
        assert!(guard.release().await.is_clean());
        for next in waiting {
            next.await.expect("none is forgotten");
        }
        let clients = deployment.command(0, &["CLIENT", "LIST"]).join("");
        let ours = clients.lines().filter(|line| line.contains("name=lockkeeper:"));
        assert_eq!(ours.count(), 0, "{clients}");
    });
}

#[test]
fn s5_sentinels_in_tilt_move_no_master_and_a_waiter_is_granted_once_they_are_out_of_it() {
    // Ten times this is longer than they are in TILT: else no replica would be good enough.
    let setup = Setup { down_after: Duration::from_secs(3), ..Setup::default() };
    let mut deployment = Deployment::start_with(setup);
    run(async {
        // Until they are told otherwise.
        tilt_for(&deployment, "3600000");
        let url = format!("{}?ttl=9s", deployment.url());
        let holder = open(&url).await;
        let guard = holder.mutex("a").lock().await.expect("it is free");
        let (_looks, waiting) = line(&url, 1).await;
        // A timer that is late is to them a clock that jumped.
        deployment.sentinels.iter().for_each(RedisServer::stop);
        tokio::time::sleep(Duration::from_secs(3)).await;
        deployment.sentinels.iter().for_each(RedisServer::go_on);
        let in_tilt = |deployment: &Deployment| {
            (0..deployment.sentinels.len()).all(|at| {
                deployment.ask(at, &["INFO", "sentinel"]).concat().contains("sentinel_tilt:1")
            })
        };
        while !in_tilt(&deployment) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Locks go on, and so does whoever comes now: they name the master as before.
        guard.verify().await.expect("its master is there");
        let late = open(&url).await;
        assert!(late.mutex("b").lock().await.expect("it is free").release().await.is_clean());
        deployment.servers[0].kill();
        // Twice as long as a master may be silent.
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(deployment.master(), 0);
        assert!(in_tilt(&deployment));
        assert_eq!(guard.lost().await, Lost::Expired);
        tilt_for(&deployment, "1000");
        deployment.until_failed_over(0);
        for next in waiting {
            next.await.expect("none is forgotten");
        }
    });
}

#[test]
fn a_failover_by_an_order_moves_everybody_also_who_hears_of_it_from_one_sentinel_only() {
    let deployment = start(Setup { replicas: 2, ..Setup::default() });
    run(async {
        let one = format!("redis+sentinel://127.0.0.1:{}/mymaster", deployment.sentinels[1].port());
        let holder = open(&one).await;
        let guard = holder.mutex("a").lock().await.expect("it is free");
        let (looks, waiting) = line(&deployment.url(), 1).await;
        deployment.until_replicated(0);
        // With everybody alive: the old master is made a replica.
        until("it is ordered", || {
            deployment.ask(0, &["SENTINEL", "FAILOVER", "mymaster"]) == ["OK"]
        });
        let new = deployment.until_failed_over(0);
        let port = deployment.servers[new].port().to_string();
        for client in [&holder, &looks] {
            while !client.describe().server.contains(&port) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        while guard.verify().await.is_err() {
            guard.check().expect("it is not lost");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(guard.release().await.is_clean());
        for next in waiting {
            next.await.expect("none is forgotten");
        }
    });
}
