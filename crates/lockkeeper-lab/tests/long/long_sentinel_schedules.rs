//! What makes Redis with Sentinels EFFICIENCY, by a schedule (S1): the master dies before its
//! replicas have a grant, or a renewal. Without `wait_replicas` that is two holders nearly every
//! time; with it, or with `min-replicas-to-write`, never.

use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::{Locks, Mode};
use lockkeeper_lab::conformance::Helper;
use lockkeeper_testkit::sentinel::server::{Deployment, Setup};

const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");
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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(120), future).await.expect("in time")
    })
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

/// How often there were two holders.
fn violations(lacks: Lacks, options: &str, arguments: &[&str]) -> usize {
    let mut two = 0;
    for _ in 0..RUNS / TOGETHER {
        two += std::thread::scope(|scope| {
            let running: Vec<_> = (0..TOGETHER)
                .map(|_| scope.spawn(|| run(two_holders(lacks, options, arguments))))
                .collect();
            let ended = running.into_iter().map(std::thread::ScopedJoinHandle::join);
            ended.filter(|two| *two.as_ref().expect("the schedule can be carried out")).count()
        });
    }
    println!("{lacks:?}{options} {arguments:?}: two holders in {two} of {RUNS} runs");
    two
}

const WAIT: &str = "&wait_replicas=1&wait_timeout=200ms";
const MIN_REPLICAS: [&str; 4] = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"];

#[test]
fn s1_a_master_that_dies_before_its_replicas_have_the_grant_gives_two_holders() {
    assert!(violations(Lacks::Grant, "", &[]) >= 9);
}

#[test]
fn s1_a_master_that_dies_before_its_replicas_have_the_renewals_gives_two_holders() {
    assert!(violations(Lacks::Renewals, "", &[]) >= 9);
}

#[test]
fn s1_with_wait_replicas_a_grant_that_no_replica_has_is_none() {
    assert_eq!(violations(Lacks::Grant, WAIT, &[]), 0);
}

#[test]
fn s1_with_wait_replicas_renewals_that_no_replica_has_end_the_hold() {
    assert_eq!(violations(Lacks::Renewals, WAIT, &[]), 0);
}

#[test]
fn s1_with_min_replicas_to_write_a_master_without_replicas_grants_nothing() {
    assert_eq!(violations(Lacks::Grant, "", &MIN_REPLICAS), 0);
}

#[test]
fn s1_with_min_replicas_to_write_a_master_without_replicas_renews_nothing() {
    assert_eq!(violations(Lacks::Renewals, "", &MIN_REPLICAS), 0);
}
