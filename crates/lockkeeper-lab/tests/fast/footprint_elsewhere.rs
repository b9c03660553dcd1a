//! What a process costs where its locks are in files, in ZooKeeper or in PostgreSQL: descriptors,
//! connections, threads, messages in the background.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{Locks, Mode};
use lockkeeper_lab::conformance::Helper;
use lockkeeper_testkit::postgres::server::PostgresServer;
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::zookeeper::proxy::{Proxy, op};

use crate::footprint::{HELPER, PATIENCE, helpers, run, threads, until};
use crate::subjects::zookeeper::single;

/// A helper, and where the kernel tells of it.
async fn helper(url: &str) -> (Helper, PathBuf) {
    let before = helpers(url);
    let started = Helper::start(Path::new(HELPER), url).await;
    let now = helpers(url);
    let at = now.difference(&before).next().expect("it runs").clone();
    (started, at)
}

/// What the descriptors of a process lead to.
fn descriptors(process: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    all.filter_map(|one| std::fs::read_link(one.path()).ok()).collect()
}

#[test]
fn a_process_of_files_has_a_descriptor_for_each_name_and_a_thread_for_each_it_waits_for() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().canonicalize().expect("it is there");
    let url = lockkeeper::config::file_url(&dir);
    run(async {
        let ((holds, at), (waits, beside)) = (helper(&url).await, helper(&url).await);
        let there = |process: &Path| {
            let all = descriptors(process);
            let inside = all.iter().filter(|to| to.starts_with(&dir)).count();
            let eyes = all.iter().filter(|to| to.ends_with("anon_inode:inotify")).count();
            (inside, eyes)
        };
        let mut held = Vec::new();
        for name in ["a", "b", "c"] {
            held.push(holds.lock(Mode::Exclusive, name, PATIENCE).await.expect("it is free"));
        }
        assert_eq!(there(&at), (3 + 1, 1), "one for each name, one for the directory");
        // It watches its own lock, so that the keeper's thread is there.
        let own = waits.lock(Mode::Exclusive, "d", PATIENCE).await.expect("it is free");
        until("it watches", || there(&beside).1 == 1).await;
        let before = threads(&beside);
        let mut granted = [
            Box::pin(waits.lock(Mode::Exclusive, "a", PATIENCE)),
            Box::pin(waits.lock(Mode::Exclusive, "b", PATIENCE)),
        ];
        let [one, two] = &mut granted;
        tokio::select! {
            turn = one => panic!("{turn:?}"),
            turn = two => panic!("{turn:?}"),
            () = until("it waits", || threads(&beside) > before + 1) => {}
        }
        assert_eq!(threads(&beside), before + 2, "one for each name that it waits for");
        assert_eq!(there(&beside), (3 + 1, 1), "and one descriptor for each");
        for turn in held {
            holds.release(turn).await.expect("it is held");
        }
        for turn in granted {
            let turn = turn.await.expect("it is free");
            waits.release(turn).await.expect("it is held");
        }
        waits.release(own).await.expect("it is held");
        until("no thread is left", || threads(&beside) <= before).await;
    });
}

#[test]
fn a_process_of_zookeeper_has_one_connection_and_sends_nothing_but_signs_of_life_meanwhile() {
    let ensemble = single();
    let proxy = Proxy::start(ensemble.servers[0].port()).expect("a free port");
    run(async {
        let url = format!("zk://127.0.0.1:{}/", proxy.port());
        let locks = Locks::open(&url).await.expect("it is there");
        let names = ["footprint/a", "footprint/b"];
        let mut held = Vec::new();
        for name in names {
            held.push(locks.mutex(name).lock().timeout(PATIENCE).await.expect("it is free"));
        }
        assert!(locks.mutex(names[0]).try_lock().await.expect("it can be asked").is_none());
        for guard in held {
            assert!(guard.release().await.is_clean());
        }
        proxy.take_counts();
        // Time is the subject: every check that there is comes round in six seconds, and a sign of
        // life in an eighth of the session, which is four sevenths of T.
        let from = std::time::Instant::now();
        tokio::time::sleep(Duration::from_secs(6)).await;
        let said = proxy.take_counts();
        let eighth = locks.describe().recovery.as_secs_f64() * 4.0 / 7.0 / 8.0;
        let due = from.elapsed().as_secs_f64() / eighth;
        let signs = said.get(&op::PING).copied().unwrap_or(0) as f64;
        assert!(said.keys().all(|word| *word == op::PING), "{said:?}");
        assert!(signs <= due + 2.0, "{signs}, one in {eighth} s is due");
        let guard = locks.mutex(names[0]).lock().timeout(PATIENCE).await.expect("it is free");
        assert!(proxy.take_counts().len() > 1, "it would be seen");
        assert!(guard.release().await.is_clean());
        assert_eq!(proxy.connects(), 1);
    });
}

#[test]
fn a_process_of_postgres_has_one_connection_and_says_nothing_while_it_holds_nothing() {
    let server = PostgresServer::start();
    let ours = |what: &str| {
        server.sql(&format!(
            "SELECT {what} FROM pg_stat_activity WHERE application_name LIKE 'lockkeeper:%'"
        ))
    };
    run(async {
        let locks = Locks::open(&server.url()).await.expect("it is there");
        let other = Locks::open(&server.url()).await.expect("and again");
        let held = other.mutex("c").lock().await.expect("it is free");
        let mut mine = Vec::new();
        for name in ["a", "b"] {
            mine.push(locks.mutex(name).lock().await.expect("it is free"));
        }
        let waits = tokio::spawn(locks.mutex("c").lock().timeout(PATIENCE).into_future());
        let stands = || server.sql("SELECT count(*) FROM lockkeeper_line") == "1";
        until("it waits", stands).await;
        assert_eq!(ours("count(*)"), "2", "one a process, whatever it has");
        assert!(held.release().await.is_clean());
        mine.push(waits.await.expect("no panic").expect("it is free"));
        for guard in mine {
            assert!(guard.release().await.is_clean());
        }
        assert!(other.close().await.unknown.is_empty());
        until("the other one has gone", || ours("count(*)") == "1").await;
        let last = || ours("query_start");
        let before = last();
        // Time is the subject: every check that there is comes round in six seconds.
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(last(), before, "{}", ours("query"));
        let guard = locks.mutex("a").lock().await.expect("it is free");
        assert_ne!(last(), before, "it would be seen");
        assert!(guard.release().await.is_clean());
    });
}

#[test]
fn a_process_of_zookeeper_or_postgres_has_no_thread_more_than_one_of_redis() {
    let (redis, postgres, zookeeper) = (RedisServer::start(), PostgresServer::start(), single());
    run(async {
        let mut all = BTreeSet::new();
        let zookeeper = format!("zk://127.0.0.1:{}/", zookeeper.servers[0].port());
        for url in [redis.url(), postgres.url(), zookeeper] {
            let (there, at) = helper(&url).await;
            let turn = there.lock(Mode::Exclusive, "footprint/d", PATIENCE).await;
            let turn = turn.expect("it is free");
            all.insert(threads(&at));
            there.release(turn).await.expect("it is held");
        }
        assert!(all.len() == 1 && all.first().is_some_and(|threads| *threads > 1), "{all:?}");
    });
}
