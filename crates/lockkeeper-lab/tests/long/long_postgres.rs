//! PostgreSQL with a crowd on one name, and a standby that is promoted without the last commits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Class, Locks};
use lockkeeper_testkit::postgres::server::PostgresServer;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::common::runtime;

/// What a connection to the tables does, and how long the server needs for it.
const COST: &str = "SELECT coalesce(sum(calls), 0), \
                    coalesce(round(sum(total_exec_time))::bigint, 0) \
                    FROM pg_stat_statements WHERE query LIKE '%lockkeeper_%'";

/// Waits until a question to the server has this answer.
async fn until(server: &PostgresServer, asked: &str, answer: &str) {
    let soon = async {
        while server.sql(asked) != answer {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let text = format!("{asked} in vain");
    tokio::time::timeout(Duration::from_secs(120), soon).await.expect(&text);
}

/// A short line.
const FEW: usize = 30;
/// How many hand-offs are counted.
const HAND_OFFS: usize = 20;
/// For how long it is counted what those who wait ask by themselves.
const IDLE: Duration = Duration::from_secs(10);

/// What was asked since it began to count.
struct Count {
    /// When the server began to, as this process knows it.
    began: Instant,
}

impl Count {
    fn begin(server: &PostgresServer) -> Self {
        server.sql("SELECT pg_stat_statements_reset()");
        Self { began: Instant::now() }
    }

    /// Statements so far, milliseconds of the server's for them, and seconds until it was asked: a
    /// program has to start for the question, which takes its time on a busy machine.
    fn so_far(&self, server: &PostgresServer) -> (f64, f64, f64) {
        let said = server.sql(COST);
        let seconds = self.began.elapsed().as_secs_f64();
        let (calls, ms) = said.split_once('|').expect("two columns");
        let number = |text: &str| text.parse::<f64>().expect("a number");
        (number(calls), number(ms), seconds)
    }
}

/// Statements and milliseconds of the server's for each hand-off in a line of so many processes,
/// each with a connection of its own, without what they ask now and then anyway.
async fn a_hand_off_costs(server: &PostgresServer, crowd: usize) -> (f64, f64) {
    let (url, name) = (format!("{}?ttl=10m", server.url()), format!("crowd/{crowd}"));
    let holder = Locks::open(&url).await.expect("the server can be used");
    let guard = holder.mutex(&name).lock().await.expect("it is free");
    let passes = Arc::new(Semaphore::new(HAND_OFFS));
    let had = Arc::new(Semaphore::new(0));
    let mut waiting = JoinSet::new();
    for _ in 0..crowd {
        let locks = Locks::open(&url).await.expect("the server can be used");
        let (name, passes, had) = (name.clone(), passes.clone(), had.clone());
        waiting.spawn(async move {
            let guard = locks.mutex(&name).lock().await.expect("it comes");
            had.add_permits(1);
            passes.acquire().await.expect("never closed").forget();
            assert!(guard.release().await.is_clean());
            // Its connection stays, as those of other processes do.
            locks
        });
    }
    until(server, "SELECT count(*) FROM lockkeeper_line", &crowd.to_string()).await;
    let count = Count::begin(server);
    // Time is what is counted: they ask every few seconds.
    tokio::time::sleep(IDLE).await;
    let idle = count.so_far(server);
    let count = Count::begin(server);
    assert!(guard.release().await.is_clean());
    let counted = u32::try_from(HAND_OFFS + 1).expect("a few");
    had.acquire_many(counted.min(u32::try_from(crowd).expect("not many")))
        .await
        .expect("open")
        .forget();
    let all = count.so_far(server);
    let shares = all.2 / idle.2;
    passes.add_permits(crowd);
    drop(waiting.join_all().await);
    let each = |all: f64, idle: f64| (all - idle * shares) / f64::from(counted);
    (each(all.0, idle.0), each(all.1, idle.1))
}

#[test]
fn a_hand_off_in_a_line_of_300_processes_is_as_many_statements_as_in_a_short_one() {
    let settings =
        ["max_connections=400", "fsync=off", "shared_preload_libraries=pg_stat_statements"];
    let server = PostgresServer::start_with(&settings);
    server.sql("CREATE EXTENSION pg_stat_statements");
    runtime(2).block_on(async {
        let (few, few_ms) = a_hand_off_costs(&server, FEW).await;
        let (many, many_ms) = a_hand_off_costs(&server, 300).await;
        println!(
            "{FEW} wait: {few:.2} statements, {few_ms:.2} ms; 300: {many:.2}, {many_ms:.2} ms"
        );
        assert!(many <= few * 1.25, "{many:.2} statements, and {few:.2} where {FEW} wait");
    });
}

#[test]
fn p6_a_standby_without_the_last_commits_can_give_two_and_tokens_rise() {
    let mut primary = PostgresServer::start();
    let mut standby = primary.standby();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby.port());
    let url = primary.url().replace(&format!("127.0.0.1:{}", primary.port()), &hosts);
    let url = format!("{url}?ttl=30s&connect_timeout=1s");
    runtime(2).block_on(async {
        let first = Locks::open(&url).await.expect("the primary can be used");
        let breaks = first.describe().breaks.join("; ");
        assert!(breaks.contains("no commit waits for one"), "it is said before: {breaks}");
        assert_eq!(first.describe().class, Class::Efficiency);
        let before = first.mutex("a").lock().await.expect("it is free");
        let number = before.token().expect("held");
        assert!(before.release().await.is_clean());
        let now = primary.sql("SELECT pg_current_wal_lsn()");
        let came = format!("SELECT pg_last_wal_replay_lsn() >= '{now}'");
        until(&standby, &came, "t").await;
        // What comes now it does not hear of.
        standby.kill();
        let held = first.mutex("a").lock().await.expect("it is free");
        let unheard = held.token().expect("held");
        primary.kill();
        standby.start_again();
        assert_eq!(standby.sql("SELECT pg_promote()"), "t");
        let second = Locks::open(&url).await.expect("the standby is the primary now");
        let other = second.mutex("a").lock().await.expect("nobody has it there");
        let tokens = [number, unheard, other.token().expect("held")];
        assert!(tokens[0] < tokens[1] && tokens[1] < tokens[2], "tokens rise: {tokens:?}");
        // Long before its deadline, once it is connected again.
        let told = tokio::time::timeout(Duration::from_secs(25), held.lost()).await;
        println!("the first holder heard {told:?}");
        assert!(told.is_ok(), "the first holder is not told");
        other.check().expect("the second one has it");
        assert!(other.release().await.is_clean());
    });
}
