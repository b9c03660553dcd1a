//! The whole library on this engine.

use std::future::IntoFuture as _;
use std::time::{Duration, Instant};

use super::proxy::{Fault, Proxy, Way};
use super::server::RedisServer;
use super::support::PATIENCE;
use crate::engine::lends;
use crate::keeper::caller_io::park;
use crate::{Error, ErrorKind, Locks, Lost, Require};

pub(super) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("in time") })
}

/// The error of a wait that ended in time and names who holds the lock: again where the server was
/// too slow to say that.
async fn named_in_time(locks: &Locks, name: &str) -> Error {
    loop {
        let error = locks.mutex(name).lock().timeout(Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        if error.holder().is_some() {
            return error;
        }
    }
}

#[test]
fn a_lock_is_taken_handed_over_and_given_back_through_the_library() {
    let server = RedisServer::start();
    run(async {
        let (one, two) =
            (Locks::open(&server.url()).await.unwrap(), Locks::open(&server.url()).await.unwrap());
        one.require(Require::Fenced).unwrap();
        one.require(Require::Hosts).unwrap();
        assert_eq!(one.require(Require::Timed).unwrap_err().kind(), ErrorKind::NotMet);
        let guard = one.mutex("a").lock().await.unwrap();
        let first = guard.token().unwrap();
        assert!(two.mutex("a").try_lock().await.unwrap().is_none());
        let error = named_in_time(&two, "a").await;
        assert_eq!(error.holder().and_then(|h| h.pid), Some(std::process::id()));
        let other = two.mutex("a");
        let waiting = tokio::spawn(async move { other.lock().await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(guard);
        let second = waiting.await.unwrap().unwrap();
        assert!(second.token().unwrap() > first, "BROKEN LOCK: a token went back");
        assert!(!second.is_lost());
        drop(second);
        assert!(one.close().await.unknown.is_empty());
        assert!(two.close().await.unknown.is_empty());
    });
    assert_eq!(
        server.command(&["EXISTS", "lockkeeper:{lock:a}", "lockkeeper:{lock:a}:line"]),
        ["0"]
    );
    super::support::until("the connections are gone", || {
        !server.command(&["CLIENT", "LIST"]).join("\n").contains("name=lockkeeper")
    });
}

#[test]
fn w7_an_upgrade_on_a_server_that_stands_still_says_so_and_names_no_holder() {
    let server = RedisServer::start();
    run(async {
        let url = format!("{}?request_timeout=5s", server.url());
        let (one, two) = (Locks::open(&url).await.unwrap(), Locks::open(&url).await.unwrap());
        let mut hold = one.rwlock("a").upgradable().await.unwrap();
        let reader = two.rwlock("a").read().await.unwrap();
        // It is known who is in its way.
        let busy = hold.upgrade().timeout(Duration::from_millis(500)).await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::TimedOut, "{busy}");
        server.stop();
        for (millis, kind, says) in [
            (500, ErrorKind::TimedOut, " has not answered for "),
            (15_000, ErrorKind::Unreachable, "127.0.0.1"),
        ] {
            let upgrade = hold.upgrade().timeout(Duration::from_millis(millis));
            let error = upgrade.await.map(drop).unwrap_err();
            assert_eq!((error.kind(), error.holder().is_some()), (kind, false), "{error}");
            assert!(error.message().contains(says), "{error}");
            assert!(!error.message().contains("held by"), "{error}");
        }
        server.go_on();
        drop(reader);
        drop(hold.upgrade().await.unwrap());
    });
}

#[test]
fn d6_a_lock_that_was_flushed_away_is_announced_as_lost() {
    let server = RedisServer::start();
    run(async {
        let locks = Locks::open(&server.url()).await.unwrap();
        let guard = locks.mutex("a").lock().ttl(Duration::from_secs(9)).await.unwrap();
        let left = || guard.remaining().unwrap();
        let mut least = left();
        while left() <= least {
            least = left();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!guard.is_lost(), "it is renewed");
        server.command(&["FLUSHALL"]);
        assert_eq!(
            guard.lost().await,
            Lost::TakenAway,
            "noticed at the next renewal, and not by the end of the lease"
        );
        assert!(locks.close().await.unknown.is_empty());
    });
}

#[test]
fn two_processes_of_many_tasks_are_never_inside_together() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    let server = RedisServer::start();
    run(async {
        let inside = Arc::new(AtomicU32::new(0));
        let mut tasks = Vec::new();
        for _ in 0..2 {
            let locks = Locks::open(&server.url()).await.unwrap();
            for _ in 0..16 {
                let (mutex, inside) = (locks.mutex("hot"), inside.clone());
                tasks.push(tokio::spawn(async move {
                    let mut last = None;
                    for _ in 0..20 {
                        let guard = mutex.lock().await.unwrap();
                        assert_eq!(
                            inside.fetch_add(1, Ordering::SeqCst),
                            0,
                            "BROKEN LOCK: two holders"
                        );
                        tokio::task::yield_now().await;
                        let token = guard.token().unwrap();
                        assert!(Some(token) > last, "BROKEN LOCK: a token went back");
                        last = Some(token);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn a_time_out_names_the_owner_that_another_program_wrote_and_that_it_left_no_time_to_live() {
    let server = RedisServer::start();
    server.command(&["SETNX", "a", "worker-3"]);
    server.command(&["SET", "b", "worker-4", "PX", "60000"]);
    run(async {
        let locks = Locks::open(&format!("{}?layout=plain", server.url())).await.unwrap();
        for (name, says) in
            [("a", "held by worker-3, without a time to live"), ("b", "held by worker-4")]
        {
            let error = named_in_time(&locks, name).await;
            assert!(error.message().ends_with(says), "{error}");
        }
        assert!(locks.close().await.unknown.is_empty());
    });
}

#[test]
fn a_timeout_of_zero_asks_once_for_an_upgrade_and_for_a_latch() {
    let server = RedisServer::start();
    run(async {
        let url = format!("{}?request_timeout=1m", server.url());
        let (one, two) = (Locks::open(&url).await.unwrap(), Locks::open(&url).await.unwrap());
        let mut guard = one.rwlock("a").upgradable().await.unwrap();
        assert!(guard.upgrade().timeout(Duration::ZERO).await.is_ok(), "nobody else reads");
        let reader = two.rwlock("a").read().await.unwrap();
        let error = guard.upgrade().timeout(Duration::ZERO).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        // It stays as it was, and nothing of the upgrade waits.
        drop(two.rwlock("a").read().await.unwrap());
        assert!(reader.release().await.is_clean());
        assert!(guard.upgrade().timeout(Duration::ZERO).await.is_ok());
        assert!(guard.release().await.is_clean());
        let latch = one.latch("l");
        latch.wait().timeout(Duration::ZERO).await.unwrap();
        latch.set(1).await.unwrap();
        assert_eq!(
            latch.wait().timeout(Duration::ZERO).await.unwrap_err().kind(),
            ErrorKind::TimedOut
        );
        latch.count_down().await.unwrap();
        latch.wait().timeout(Duration::ZERO).await.unwrap();
        assert!(one.close().await.unknown.is_empty());
        assert!(two.close().await.unknown.is_empty());
    });
}

#[test]
fn c5_a_probe_whose_connection_breaks_anywhere_leaves_nothing_for_long() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    run(async {
        let locks = Locks::open(&format!("redis://127.0.0.1:{}", proxy.port())).await.unwrap();
        locks.probe().await.unwrap();
        let (mut clean, mut unknown) = (0, 0);
        for after in [0, 30, 60, 70, 80, 90, 100, 120, 200] {
            proxy.set(Way::Down, Fault { cut_after: Some(after), ..Fault::default() });
            match locks.probe().await {
                Ok(_) => clean += 1,
                Err(error) if error.kind() == ErrorKind::Unknown => unknown += 1,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
            }
            // That a caller has left is remembered for as long as the request of it may arrive.
            for key in server.command(&["KEYS", "*doctor*"]) {
                let left: i64 = server.command(&["TTL", &key])[0].parse().unwrap();
                assert!(
                    // -2: it has ended meanwhile; -1 would be for ever.
                    !key.ends_with('}') && ((0..=60).contains(&left) || left == -2),
                    "cut after {after} bytes: {key} stays for {left} s"
                );
            }
            proxy.set(Way::Down, Fault::default());
            // The next one begins on a connection that is there.
            locks.list("").await.unwrap();
        }
        assert!(unknown > 0, "{clean} of them heard the end");
        drop(locks.close().await);
    });
}

/// Keeps the keeper's thread busy until the sender is dropped.
pub(super) fn stuck(locks: &Locks) -> std::sync::mpsc::Sender<()> {
    let (go_on, until) = std::sync::mpsc::channel::<()>();
    let (there, arrived) = std::sync::mpsc::channel();
    locks.keeper.run(async move {
        there.send(()).unwrap();
        let _ = until.recv();
    });
    arrived.recv().unwrap();
    go_on
}

/// What a thread comes to, in time.
pub(super) fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(work()));
    told.recv_timeout(PATIENCE).expect("nobody else reads the answer")
}

#[test]
fn a_thread_that_waits_reads_its_answer_itself() {
    let server = RedisServer::start();
    let locks = crate::primitives::blocking::Locks::open(&server.url()).unwrap();
    // From here on the server knows the scripts.
    assert!(locks.mutex("a").lock().run().unwrap().release().is_clean());
    let go_on = stuck(locks.as_async());
    let mutex = locks.mutex("b");
    let guard = in_time(move || mutex.lock().run().unwrap());
    assert!(guard.token().unwrap().get() > 0);
    drop(go_on);
    assert!(guard.release().is_clean());
    assert!(locks.close().unknown.is_empty());
}

#[test]
fn a_task_that_waits_reads_its_answer_itself_where_its_runtime_has_io() {
    let server = RedisServer::start();
    let locks = run(Locks::builder().io_enabled().open(&server.url())).unwrap();
    assert!(run(async { locks.mutex("a").lock().await.unwrap().release().await }).is_clean());
    let go_on = stuck(&locks);
    let mutex = locks.mutex("b");
    let guard = in_time(move || run(async { mutex.lock().await }).unwrap());
    assert!(!guard.is_lost());
    drop(go_on);
    assert!(run(guard.release()).is_clean());
    assert!(run(locks.close()).unknown.is_empty());
}

#[test]
fn a_release_is_answered_in_the_task_or_the_thread_that_awaits_it() {
    let server = RedisServer::start();
    let locks = run(Locks::builder().io_enabled().open(&server.url())).unwrap();
    // From here on the server knows the scripts.
    assert!(run(async { locks.mutex("a").lock().await.unwrap().release().await }).is_clean());
    let guard = run(async { locks.mutex("a").lock().await }).unwrap();
    let go_on = stuck(&locks);
    assert!(in_time(move || run(guard.release())).is_clean());
    drop(go_on);
    assert!(run(locks.close()).unknown.is_empty());
    let locks = crate::primitives::blocking::Locks::open(&server.url()).unwrap();
    assert!(locks.mutex("a").lock().run().unwrap().release().is_clean());
    let guard = locks.mutex("a").lock().run().unwrap();
    let go_on = stuck(locks.as_async());
    assert!(in_time(move || guard.release()).is_clean());
    drop(go_on);
    assert!(locks.close().unknown.is_empty());
}

#[test]
fn many_tasks_lock_and_release_while_the_keepers_thread_does_something_else() {
    let server = RedisServer::start();
    let locks = run(Locks::builder().io_enabled().open(&server.url())).unwrap();
    assert!(run(async { locks.mutex("a").lock().await.unwrap().release().await }).is_clean());
    let go_on = stuck(&locks);
    let all = locks.clone();
    let released = in_time(move || {
        run(async {
            let mut tasks = tokio::task::JoinSet::new();
            for n in 0..64 {
                let mutex = all.mutex(format!("n{n}"));
                tasks.spawn(async move {
                    let mut clean = 0;
                    for _ in 0..20 {
                        let released = mutex.lock().await.unwrap().release().await;
                        clean += u32::from(released.is_clean());
                    }
                    clean
                });
            }
            tasks.join_all().await.into_iter().sum::<u32>()
        })
    });
    assert_eq!(released, 64 * 20);
    drop(go_on);
    assert!(run(locks.close()).unknown.is_empty());
}

#[test]
fn r10_a_waiting_thread_hears_of_its_grant_without_the_keeper() {
    let server = RedisServer::start();
    let (one, two) = (
        crate::primitives::blocking::Locks::open(&server.url()).unwrap(),
        crate::primitives::blocking::Locks::open(&server.url()).unwrap(),
    );
    // From here on the server knows the scripts.
    for locks in [&one, &two] {
        assert!(locks.mutex("a").lock().run().unwrap().release().is_clean());
    }
    let guard = one.mutex("a").lock().run().unwrap();
    let mutex = two.mutex("a");
    let waiting = std::thread::spawn(move || in_time(move || mutex.lock().run().unwrap()));
    // It may stand there after a second message, which the keeper sent. What is told behind the
    // answer to that, on the same connection, is told when the keeper has it.
    super::support::until("it stands in line", || {
        !two.status(crate::Kind::Lock, "a").unwrap().waiters.is_empty()
    });
    let go_on = stuck(two.as_async());
    drop(guard);
    let second = waiting.join().unwrap();
    drop(go_on);
    assert!(second.release().is_clean());
}

#[test]
fn r5_a_watch_whose_caller_left_before_it_began_is_ended() {
    let server = RedisServer::start();
    let subscribers =
        || server.command(&["PUBSUB", "NUMSUB", "lockkeeper:{latch:import}:watch:0"])[1].clone();
    run(async {
        let locks = Locks::open(&server.url()).await.unwrap();
        let latch = locks.latch("import");
        latch.set(1).await.unwrap();
        for _ in 0..20 {
            let error = latch.wait().timeout(Duration::ZERO).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        }
        super::support::until("nobody watches", || subscribers() == "0");
        assert!(locks.close().await.unknown.is_empty());
    });
}

#[test]
fn several_locks_ride_out_a_restart_within_their_timeout_and_need_no_time_where_they_are_free() {
    let mut server = RedisServer::start();
    run(async {
        let url = format!("{}?request_timeout=1m", server.url());
        let locks = Locks::open(&url).await.unwrap();
        let all = || locks.all([locks.mutex("a").lock(), locks.mutex("b").lock()]);
        let both = all().timeout(Duration::ZERO).await.expect("both are free");
        assert!(both.release().await.iter().all(crate::Released::is_clean));
        server.kill();
        let away = tokio::net::TcpListener::bind(("127.0.0.1", server.port())).await.unwrap();
        let waiting = tokio::spawn(all().timeout(PATIENCE).into_future());
        tokio::task::yield_now().await;
        // It is tried, in vain, before the server is back.
        drop(away.accept().await.unwrap());
        drop(away);
        server.restart();
        assert_eq!(waiting.await.unwrap().expect("the server is back in time").guards().len(), 2);
    });
}

#[test]
fn several_locks_whose_server_is_gone_are_told_so_at_their_timeout() {
    let mut server = RedisServer::start();
    run(async {
        let locks = Locks::open(&server.url()).await.unwrap();
        server.kill();
        let all = locks.all([locks.mutex("a").lock(), locks.mutex("b").lock()]);
        let error = all.timeout(Duration::from_secs(2)).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    });
}

#[test]
fn b7_whoever_waits_goes_on_waiting_while_a_server_is_out_of_memory() {
    let server = RedisServer::start();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    run(async {
        let url = format!("{}?request_timeout=1m", server.url());
        let (locks, others) = (Locks::open(&url).await.unwrap(), Locks::open(&url).await.unwrap());
        // Who does not wait is refused, and so is who has waited.
        let error = locks.mutex("a").try_lock().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Refused && error.is_temporary(), "{error}");
        // Again where the server was too slow to say so.
        let error = loop {
            let waits = locks.mutex("a").lock().timeout(Duration::from_secs(1));
            let error = waits.await.unwrap_err();
            if !matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.message().contains("out of memory (maxmemory)"), "{error}");
        let waits = tokio::spawn(async move { others.mutex("a").lock().timeout(PATIENCE).await });
        let refused = || {
            let told = server.command(&["INFO", "errorstats"]).concat();
            told.split("errorstat_OOM:count=")
                .nth(1)
                .and_then(|count| count.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let before = refused();
        while refused() == before {
            assert!(!waits.is_finished(), "it is told at once");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        let guard = waits.await.unwrap().expect("there is room again");
        assert!(guard.release().await.is_clean());
    });
}

/// The part of its time for which a lone loop has its lock, from the end of one pause of it to that
/// of another; over as long where it makes none.
async fn share_of_a_lone_loop(url: &str) -> f64 {
    const WORK: Duration = Duration::from_millis(200);
    const LEAST: Duration = Duration::from_secs(15);
    let locks = Locks::open(url).await.unwrap();
    let (mut began, mut held, mut paused) = (Instant::now(), Duration::ZERO, false);
    loop {
        let asked = Instant::now();
        let guard = locks.mutex("a").lock().await.unwrap();
        let granted = Instant::now();
        let stood_back = granted - asked > WORK / 2;
        if stood_back && !paused {
            (began, held, paused) = (granted, Duration::ZERO, true);
        } else if granted - began >= LEAST && stood_back == paused
            // What was taken for a pause was a slow grant, or the other way about.
            || granted - began >= LEAST * 2
        {
            return held.as_secs_f64() / (granted - began).as_secs_f64();
        }
        tokio::time::sleep(WORK).await;
        held += granted.elapsed();
        assert!(guard.release().await.is_clean());
    }
}

#[test]
fn timed_b3_a_lone_loop_has_its_lock_for_nineteen_twentieths_of_the_time_of_one_without_pauses() {
    let servers = [(); 2].map(|()| RedisServer::start());
    let urls = ["plain", "redisson"].map(|layout| format!("?layout={layout}"));
    let [plain, redisson] = [0, 1].map(|n| format!("{}{}", servers[n].url(), urls[n]));
    run(async {
        let theirs = tokio::spawn(async move { share_of_a_lone_loop(&redisson).await });
        let (ours, theirs) = (share_of_a_lone_loop(&plain).await, theirs.await.unwrap());
        println!(
            "a lone loop of 200 ms of work has its lock for {:.1} % of its time on plain, and for \
             {:.1} % on redisson, where its channel tells that nobody waits: {:.1} % of that, and \
             95 are promised",
            ours * 100.0,
            theirs * 100.0,
            ours / theirs * 100.0
        );
        // One part in a hundred is the machine's, which is late when a pause ends.
        assert!(theirs >= 0.94 && ours >= 0.94 * theirs, "{ours} beside {theirs}");
    });
}

#[test]
fn a_thread_that_blocks_leaves_what_gathers_to_the_keepers_thread_and_a_task_does_not() {
    let server = RedisServer::start();
    run(async {
        let locks = Locks::builder().io_enabled().open(&server.url()).await.unwrap();
        let asks = || locks.keeper.asking(lends);
        assert!(asks(), "it comes back behind those that were answered with it");
        assert!(!park::wait(async { asks() }), "it sleeps until it is answered");
    });
}
