//! The rows of the failure catalogue that need processes, clocks or disks of their own, on Redis.

use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::fence::{RedisFence, Script};
use lockkeeper::{ErrorKind, Locks, Lost, Mode, Token};
use lockkeeper_lab::conformance::Helper;
use lockkeeper_testkit::proxy::{Proxy, Way};
use lockkeeper_testkit::redis::server::{RedisClient, RedisServer};
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use crate::common::{HELPER, PATIENCE, run, until_waiting};

/// With the short lease of whoever is to lose it.
fn url(server: &RedisServer) -> String {
    format!("{}?ttl=2s", server.url())
}

async fn open(server: &RedisServer) -> Locks {
    Locks::open(&server.url()).await.expect("the server can be used")
}

async fn helper(server: &RedisServer) -> Helper {
    Helper::start(Path::new(HELPER), &url(server)).await
}

async fn helper_with(server: &RedisServer, shim: &ClockShim) -> Helper {
    Helper::start_in(Path::new(HELPER), &url(server), shim.environment()).await
}

fn server_with(shim: &ClockShim) -> RedisServer {
    let [(preload, library), (control, file)] = shim.environment();
    RedisServer::start_in(
        &[],
        &[(preload, &library.to_string_lossy()), (control, &file.to_string_lossy())],
    )
}

/// Sends a script over a connection of its own.
fn send(client: &mut RedisClient, script: &Script) {
    let words: Vec<String> =
        script.words().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    client.send(&words.iter().map(String::as_str).collect::<Vec<_>>());
}

fn eval(server: &RedisServer, script: &Script) -> Vec<String> {
    let mut client = server.client();
    send(&mut client, script);
    client.read()
}

#[test]
fn g1_a_holder_that_was_stopped_beyond_its_lease_writes_too_late_and_is_refused() {
    let server = RedisServer::start();
    run(async {
        let (there, here, stock) =
            (helper(&server).await, open(&server).await, RedisFence::of("stock"));
        let old = there.lock(Mode::Exclusive, "a", PATIENCE).await.expect("it is free");
        let old_token = old.token.expect("it has one");
        assert_eq!(eval(&server, &stock.write(old_token, "old")), ["1"]);
        there.stop();
        let guard = here.mutex("a").lock().timeout(PATIENCE).await.expect("its lease runs out");
        let token = guard.token().expect("it is held");
        assert!(token > old_token, "BROKEN LOCK: a token went back");
        assert_eq!(eval(&server, &stock.read(token)), ["1", "old"]);
        assert_eq!(eval(&server, &stock.write(token, "new")), ["1"]);
        there.go_on();
        // In good faith: what it was about to do when it was stopped.
        assert_eq!(eval(&server, &stock.write(old_token, "late")), ["0"]);
        assert_eq!(server.command(&["GET", "stock"]), ["new"]);
        // Without the fence the late write lands: no lock can prevent it.
        assert_eq!(server.command(&["SET", "unfenced", "late"]), ["OK"]);
        assert!(there.lost(old).await.expect("it is told").starts_with("lost"));
        guard.check().expect("the new holder is not touched");
    });
}

#[test]
fn g2_a_write_that_hangs_in_the_network_for_two_leases_is_refused_when_it_lands() {
    let server = RedisServer::start();
    run(async {
        let (locks, stock, proxy) =
            (open(&server).await, RedisFence::of("stock"), Proxy::to(server.port()));
        let mut slow = RedisClient::connect(proxy.port());
        assert_eq!(slow.command(&["PING"]), ["PONG"]);
        proxy.hold(Way::Up);
        let first = locks
            .mutex("a")
            .lock()
            .ttl(Duration::from_secs(2))
            .no_renew()
            .await
            .expect("it is free");
        let token = first.token().expect("it is held");
        send(&mut slow, &stock.write(token, "late"));
        tokio::time::timeout(PATIENCE, first.lost()).await.expect("its lease ends");
        let second = locks.mutex("a").lock().timeout(PATIENCE).await.expect("it is free");
        assert_eq!(eval(&server, &stock.write(second.token().expect("it is held"), "new")), ["1"]);
        tokio::time::sleep(Duration::from_secs(2)).await;
        proxy.heal();
        assert_eq!(slow.read(), ["0"], "it lands, and is refused");
        assert_eq!(server.command(&["GET", "stock"]), ["new"]);
    });
}

#[test]
fn g3_the_first_read_seals_so_that_no_older_write_slips_between_it_and_the_write() {
    let server = RedisServer::start();
    let (stock, token) = (RedisFence::of("stock"), |value| Token::raw(value).expect("below 2^63"));
    // Tokens that a double could not tell apart.
    let (older, newer) = (token((1 << 62) + 1), token((1 << 62) + 2));
    assert_eq!(eval(&server, &stock.write(older, "50")), ["1"]);
    assert_eq!(eval(&server, &stock.read(newer)), ["1", "50"]);
    assert_eq!(
        eval(&server, &stock.write(older, "49")),
        ["0"],
        "an older write after the newer one's first read"
    );
    assert_eq!(eval(&server, &stock.write(newer, "48")), ["1"]);
    // A shared holder reads with a token in between, and keeps older writers out as well.
    let (reader, writer) = (token((1 << 62) + 3), token((1 << 62) + 4));
    assert_eq!(eval(&server, &stock.read_shared(reader)), ["1", "48"]);
    assert_eq!(eval(&server, &stock.write(newer, "47")), ["0"]);
    assert_eq!(
        eval(&server, &stock.read_shared(newer)),
        ["1", "48"],
        "an older reader reads what is there: nothing was written since"
    );
    assert_eq!(
        eval(&server, &stock.act(writer, "return redis.call('DECRBY', KEYS[1], ARGV[2])", ["8"])),
        ["1", "40"]
    );
    assert_eq!(eval(&server, &stock.read_shared(reader)), ["0"], "and too old once somebody wrote");
    server.command(&["SET", "{stock}:fence", "somebody's"]);
    assert!(
        eval(&server, &stock.write(writer, "0"))[0].contains("holds no tokens"),
        "a fence that is none lets nobody through"
    );
}

#[test]
fn g9_a_renewal_never_outlives_its_release() {
    let server = RedisServer::start();
    run(async {
        let locks = open(&server).await;
        let mut dice = lockkeeper_testkit::dice::Dice::new(9);
        let mut held = Vec::new();
        for n in 0..40 {
            let name = format!("n{n}");
            let guard = locks
                .mutex(&name)
                .lock()
                .ttl(Duration::from_millis(600))
                .await
                .expect("it is free");
            // Renewed every 200 ms: released right before, in and after a renewal.
            let hold = Duration::from_millis(150 + dice.below(120));
            held.push(tokio::spawn(async move {
                tokio::time::sleep(hold).await;
                drop(guard);
            }));
        }
        for task in held {
            task.await.expect("no panic");
        }
        for n in 0..40 {
            let next =
                locks.mutex(format!("n{n}")).lock().timeout(PATIENCE).await.expect("it is free");
            assert!(next.release().await.is_clean());
        }
        let kept = lockkeeper::test_util::residue(&locks);
        assert_eq!((kept.leases, kept.claims), (0, 0), "{kept:?}");
        server.command(&["CONFIG", "RESETSTAT"]);
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(
            server.command_counts().get("evalsha"),
            None,
            "three times as long as a renewal's period, and nothing is renewed"
        );
        drop(locks.close().await);
    });
}

#[test]
fn g12_a_starved_runtime_loses_no_lease() {
    let server = RedisServer::start();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = open(&server).await;
        let guard = locks.mutex("a").lock().ttl(Duration::from_secs(8)).await.expect("it is free");
        // The only thread of this runtime does nothing else for longer than a lease.
        let other = std::thread::spawn({
            let url = url(&server);
            let patience = Duration::from_secs(10);
            move || {
                lockkeeper::blocking::Locks::open(&url)
                    .expect("it can be used")
                    .mutex("a")
                    .lock()
                    .timeout(patience)
                    .run()
                    .map(drop)
            }
        });
        let refused = other.join().expect("no panic");
        assert_eq!(
            refused.err().map(|e| e.kind()),
            Some(ErrorKind::TimedOut),
            "it was held all the time"
        );
        guard.check().expect("it is still held");
        assert!(guard.release().await.is_clean());
    });
}

#[test]
fn g13_a_machine_that_was_suspended_beyond_the_lease_knows_it_at_once() {
    let server = RedisServer::start();
    let shim = ClockShim::new().expect("cc is there");
    run(async {
        // With a lease of half a minute.
        let there = Helper::start_in(Path::new(HELPER), &server.url(), shim.environment()).await;
        let turn = there.lock(Mode::Exclusive, "a", PATIENCE).await.expect("it is free");
        assert_eq!(there.check(turn).await.as_deref(), Ok("ok"));
        // What the clocks look like when the machine wakes up.
        shim.step(Clocks::Steady, Duration::from_secs(150)).expect("the control file is ours");
        assert!(
            there.check(turn).await.expect("it answers").starts_with("lost"),
            "the first thing that a guard does is to read the clocks"
        );
    });
}

#[test]
fn g14_a_restored_machine_whose_clocks_did_not_move_is_told_by_verify_and_kept_out_by_its_token() {
    let server = RedisServer::start();
    let shim = ClockShim::new().expect("cc is there");
    run(async {
        let (there, here, stock) =
            (helper_with(&server, &shim).await, open(&server).await, RedisFence::of("stock"));
        let turn = there.lock(Mode::Exclusive, "a", PATIENCE).await.expect("it is free");
        there.stop();
        let began = Instant::now();
        let guard = here.mutex("a").lock().timeout(PATIENCE).await.expect("its lease runs out");
        assert_eq!(eval(&server, &stock.write(guard.token().expect("it is held"), "new")), ["1"]);
        // Its clocks stand where they stood when it was frozen.
        for clocks in [Clocks::Steady, Clocks::Wall] {
            shim.step_back(clocks, began.elapsed()).expect("the control file is ours");
        }
        there.go_on();
        assert!(
            there.verify(turn).await.expect("it answers").starts_with("lost"),
            "asking the engine does not depend on clocks"
        );
        assert_eq!(eval(&server, &stock.write(turn.token.expect("it has one"), "late")), ["0"]);
        guard.check().expect("the new holder is not touched");
    });
}

#[test]
fn g15_a_client_whose_clock_loses_a_twelfth_is_out_before_the_next_is_in() {
    let server = RedisServer::start();
    let shim = ClockShim::new().expect("cc is there");
    run(async {
        // As much as chrony may slew: every clock of the holder, and nobody else's.
        for clocks in [Clocks::Steady, Clocks::Wall] {
            shim.run_at(clocks, -83_333).expect("the control file is ours");
        }
        let (there, here) = (helper_with(&server, &shim).await, open(&server).await);
        for round in 0..3 {
            let name = format!("a{round}");
            let turn = there.lock(Mode::Exclusive, &name, PATIENCE).await.expect("it is free");
            let waiting = tokio::spawn({
                let mutex = here.mutex(&name);
                async move {
                    let guard = mutex.lock().timeout(PATIENCE).await?;
                    Ok::<_, lockkeeper::Error>((Instant::now(), guard))
                }
            });
            // From now on it renews nothing, and has its own clock alone.
            there.stop();
            let (granted, guard) = waiting.await.expect("no panic").expect("its lease runs out");
            there.go_on();
            let said = there.check(turn).await.expect("it answers");
            assert!(
                said.starts_with("lost"),
                "after {:?} its slow clock says that it is over, too: {said}",
                granted.elapsed()
            );
            drop(guard);
        }
    });
}

#[test]
fn d1_a_server_whose_clock_steps_forward_lets_a_second_holder_in_and_the_first_is_told() {
    let shim = ClockShim::new().expect("cc is there");
    let server = server_with(&shim);
    run(async {
        let (one, two, stock) = (open(&server).await, open(&server).await, RedisFence::of("stock"));
        let ttl = Duration::from_secs(9);
        let first = one.mutex("a").lock().ttl(ttl).await.expect("it is free");
        let old = first.token().expect("it is held");
        shim.step(Clocks::Wall, ttl + Duration::from_secs(1)).expect("the control file is ours");
        let second = two
            .mutex("a")
            .lock()
            .timeout(PATIENCE)
            .await
            .expect("its lease is over by the server's clock");
        let new = second.token().expect("it is held");
        assert!(new > old);
        assert_eq!(eval(&server, &stock.read(new)).first().map(String::as_str), Some("1"));
        assert_eq!(
            eval(&server, &stock.write(old, "late")),
            ["0"],
            "the resource is safe although two believe to hold"
        );
        let told = tokio::time::timeout(PATIENCE, first.lost()).await;
        assert_eq!(told.ok(), Some(Lost::TakenAway), "at its next renewal, before it is over");
        second.check().expect("the second one goes on");
    });
}

#[test]
fn d2_a_server_whose_clock_steps_back_keeps_a_dead_holders_lock_for_two_leases_at_most() {
    let shim = ClockShim::new().expect("cc is there");
    let server = server_with(&shim);
    run(async {
        let (there, here) = (helper(&server).await, open(&server).await);
        there.lock(Mode::Exclusive, "a", PATIENCE).await.expect("it is free");
        let dead_in_line = helper(&server).await;
        // One that dies in line keeps its place for no longer, either.
        tokio::select! {
            got = dead_in_line.lock(Mode::Exclusive, "a", PATIENCE) => panic!(
                "it does not wait: {got:?}"
            ),
            () = until_waiting(&here, 1) => dead_in_line.kill(),
        }
        let waiting = tokio::spawn({
            let mutex = here.mutex("a");
            async move { mutex.lock().timeout(PATIENCE).await }
        });
        until_waiting(&here, 2).await;
        there.kill();
        shim.step_back(Clocks::Wall, Duration::from_secs(3600)).expect("the control file is ours");
        // Two leases, and the dead one in line: 15 s without a sign of life. It is not waited for
        // for an hour.
        let guard = waiting.await.expect("no panic").expect("nobody is there any more");
        guard.check().expect("it is held");
        let next = here.mutex("b").lock().await.expect("it is free");
        assert!(next.release().await.is_clean());
    });
}

#[test]
fn d4_d5_locks_that_a_disk_forgot_are_announced_and_tokens_rise_although_their_counter_is_lost() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    run(async {
        let (one, two) = (open(&server).await, open(&server).await);
        let first = one.mutex("a").lock().await.expect("it is free");
        let old = first.token().expect("it is held");
        server.kill();
        // What a power cut does to what was written less than a second ago.
        let log = server.dir().join("appendonlydir");
        for file in std::fs::read_dir(&log)
            .expect("it is there")
            .flatten()
            .filter(|f| f.file_name().to_string_lossy().ends_with(".aof"))
        {
            std::fs::File::options()
                .write(true)
                .open(file.path())
                .and_then(|f| f.set_len(0))
                .expect("it can be cut");
        }
        server.restart();
        assert_eq!(server.command(&["DBSIZE"]), ["0"], "the disk forgot it");
        let second =
            two.mutex("a").lock().timeout(PATIENCE).await.expect("nobody knows of the first");
        assert!(
            second.token().expect("it is held") > old,
            "greater than one that nothing remembers"
        );
        tokio::time::timeout(PATIENCE, first.lost()).await.expect("the first holder is told");
        second.check().expect("the second one goes on");
    });
}
