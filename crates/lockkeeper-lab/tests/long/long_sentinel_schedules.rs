//! What makes Redis with Sentinels EFFICIENCY, by two schedules: the master dies before replicas
//! have a grant, or a renewal (S1), or it is cut off with some clients while another one takes its
//! place (S2). Without `wait_replicas` that is two holders nearly every time; with it, or with
//! `min-replicas-to-write`, never.

use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::{Locks, Mode};
use lockkeeper_lab::conformance::Helper;
use lockkeeper_testkit::proxy::{Proxy, Way};
use lockkeeper_testkit::sentinel::server::{Deployment, SERVICE, Setup};

use crate::common::{HELPER, run_on};

const PATIENCE: Duration = Duration::from_secs(30);
const RUNS: usize = 10;
/// How many deployments run at a time.
const TOGETHER: usize = 5;

/// What the replicas lack when the master dies.
#[derive(Clone, Copy, Debug)]
enum Lacks {
    Grant,
    Renewals,
}

impl Lacks {
    fn ttl(self) -> Duration {
        Duration::from_secs(if matches!(self, Self::Grant) { 30 } else { 6 })
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    run_on(1, Duration::from_secs(120), future)
}

/// Whether two processes hold one lock at once.
async fn two_holders(lacks: Lacks, options: &str, arguments: &[&str]) -> bool {
    let mut deployment = Deployment::start_with(Setup {
        replicas: 2,
        down_after: Duration::from_secs(1),
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        ..Setup::default()
    });
    let ttl = lacks.ttl();
    let url = format!("{}?ttl={}s{options}", deployment.url(), ttl.as_secs());
    let first = Helper::start(Path::new(HELPER), &url).await;
    let second = Locks::open(&url).await.expect("the master can be found");
    let turn = match lacks {
        Lacks::Grant => {
            deployment.stop_replication();
            first.lock(Mode::Exclusive, "a", Duration::from_secs(2)).await.ok()
        }
        Lacks::Renewals => {
            let turn = first.lock(Mode::Exclusive, "a", PATIENCE).await.expect("it is free");
            deployment.until_replicated(0);
            deployment.stop_replication();
            // Time is the subject: what the replicas have ends by then.
            tokio::time::sleep(ttl + Duration::from_millis(300)).await;
            Some(turn)
        }
    };
    let held = match turn {
        Some(turn) => first.check(turn).await.expect("there is such a turn") == "ok",
        None => false,
    };
    // Its work goes on for a while, as far as it knows; it hears of nothing meanwhile. A renewal is
    // a third of a lease old at most, and a tenth is allowed for drift.
    let believes_until = Instant::now() + ttl * 2 / 3 - ttl / 10;
    first.stop();
    deployment.servers[0].kill();
    deployment.let_replicate();
    deployment.until_failed_over(0);
    let guard = second.mutex("a").lock().timeout(PATIENCE * 2).await.expect("it is free in time");
    let granted = Instant::now();
    drop(guard);
    first.go_on();
    held && granted < believes_until
}

/// Replicas and Sentinels have it too, as another user: the master can be cut off from them alone.
const PASSWORD: &str = "s3cret";

/// Whether two processes hold one lock at once when the master is cut off with one of them (S2). To
/// that one nothing comes from the Sentinels either, so it hears of no other master.
async fn two_masters(options: &str, arguments: &[&str]) -> bool {
    let deployment = Deployment::start_with(Setup {
        replicas: 2,
        down_after: Duration::from_secs(1),
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        password: Some(PASSWORD.to_owned()),
        apart: true,
        ..Setup::default()
    });
    let links: Vec<Proxy> =
        deployment.sentinels.iter().map(|sentinel| Proxy::to(sentinel.port())).collect();
    let through: Vec<String> = links.iter().map(|link| link.address().to_string()).collect();
    let url =
        |hosts: &str| format!("redis+sentinel://:{PASSWORD}@{hosts}/{SERVICE}?ttl=60s{options}");
    let beside = Helper::start(Path::new(HELPER), &url(&through.join(","))).await;
    let elsewhere = Locks::open(&url(&deployment.hosts())).await.expect("the master can be found");
    // Both have used their connections.
    let turn = beside.lock(Mode::Exclusive, "before", PATIENCE).await.expect("it is free");
    beside.release(turn).await.expect("it is held");
    let before = elsewhere.mutex("before").lock().timeout(PATIENCE).await.expect("it is free");
    assert!(before.release().await.is_clean());
    for link in &links {
        link.blackhole(Way::Up);
        link.blackhole(Way::Down);
    }
    deployment.cut_off(0).expect("it answers");
    let cut = Instant::now();
    let mut granted = None;
    for nth in 0.. {
        let asked = format!("since/{nth}");
        let grants = beside.lock(Mode::Exclusive, &asked, Duration::from_millis(500)).await;
        granted = grants.is_ok().then(|| cut.elapsed()).or(granted);
        if grants.is_err() || (0..links.len()).all(|at| deployment.master_as_seen_by(at) != 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    deployment.until_failed_over(0);
    println!(
        "S2{options} {arguments:?}: cut off, the old master last granted after {granted:?}; the \
         others were told of the new one after {:?}",
        cut.elapsed()
    );
    let one = beside.lock(Mode::Exclusive, "a", Duration::from_secs(3)).await;
    let two = elsewhere.mutex("a").lock().timeout(PATIENCE).await.expect("the new master grants");
    let held = match one {
        Ok(turn) => beside.check(turn).await.expect("there is such a turn") == "ok",
        Err(_) => false,
    };
    held && two.check().is_ok()
}

/// In how many runs of a schedule there were two holders.
fn violations<F: Future<Output = bool>>(what: &str, schedule: impl Fn() -> F + Sync) -> usize {
    let mut two = 0;
    for _ in 0..RUNS / TOGETHER {
        two += std::thread::scope(|scope| {
            let running: Vec<_> = (0..TOGETHER).map(|_| scope.spawn(|| run(schedule()))).collect();
            let ended = running.into_iter().map(std::thread::ScopedJoinHandle::join);
            ended.filter(|two| *two.as_ref().expect("the schedule can be carried out")).count()
        });
    }
    println!("{what}: two holders in {two} of {RUNS} runs");
    two
}

/// The same where the master dies, and its replicas lack that (S1).
fn of_a_death(lacks: Lacks, options: &str, arguments: &[&str]) -> usize {
    violations(&format!("{lacks:?}{options} {arguments:?}"), || {
        two_holders(lacks, options, arguments)
    })
}

/// The same where it is cut off (S2).
fn of_a_cut(options: &str, arguments: &[&str]) -> usize {
    violations(&format!("S2{options} {arguments:?}"), || two_masters(options, arguments))
}

const WAIT: &str = "&wait_replicas=1&wait_timeout=200ms";
const MIN_REPLICAS: [&str; 4] = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"];

#[test]
fn s1_a_master_that_dies_before_its_replicas_have_the_grant_gives_two_holders() {
    assert!(of_a_death(Lacks::Grant, "", &[]) >= 9);
}

#[test]
fn s1_a_master_that_dies_before_its_replicas_have_the_renewals_gives_two_holders() {
    assert!(of_a_death(Lacks::Renewals, "", &[]) >= 9);
}

#[test]
fn s1_with_wait_replicas_a_grant_that_no_replica_has_is_none() {
    assert_eq!(of_a_death(Lacks::Grant, WAIT, &[]), 0);
}

#[test]
fn s1_with_wait_replicas_renewals_that_no_replica_has_end_the_hold() {
    assert_eq!(of_a_death(Lacks::Renewals, WAIT, &[]), 0);
}

#[test]
fn s1_with_min_replicas_to_write_a_master_without_replicas_grants_nothing() {
    assert_eq!(of_a_death(Lacks::Grant, "", &MIN_REPLICAS), 0);
}

#[test]
fn s1_with_min_replicas_to_write_a_master_without_replicas_renews_nothing() {
    assert_eq!(of_a_death(Lacks::Renewals, "", &MIN_REPLICAS), 0);
}

#[test]
fn s2_an_old_master_that_is_cut_off_with_a_client_gives_two_holders() {
    assert!(of_a_cut("", &[]) >= 9);
}

#[test]
fn s2_with_wait_replicas_an_old_master_that_is_cut_off_grants_nothing() {
    assert_eq!(of_a_cut(WAIT, &[]), 0);
}

#[test]
fn s2_with_min_replicas_to_write_an_old_master_that_is_cut_off_grants_nothing() {
    assert_eq!(of_a_cut("", &MIN_REPLICAS), 0);
}
