//! R1 to R5 on an engine with leases and a bad network, on virtual time. Random schedules of faults
//! are in seeds.rs.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::test_util::SeededIds;
use lockkeeper::{Locks, Lost, Released};
use lockkeeper_lab::sim::{Client, Faults, Stage, World};

const MINUTE: Duration = Duration::from_secs(60);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A stage with a world, and clients that are open.
struct Bench {
    stage: Stage,
    world: World,
    locks: Vec<Locks>,
    ids: Vec<u64>,
    _ids: SeededIds,
}

impl Bench {
    fn new(seed: u64, clients: usize) -> Self {
        let _ids = SeededIds::begin(seed);
        let stage = Stage::new(seed);
        let world = World::new(&stage, seed);
        let mut bench = Self { stage, world, locks: Vec::new(), ids: Vec::new(), _ids };
        for _ in 0..clients {
            let client = Client::new(&bench.world);
            bench.ids.push(client.id());
            let locks = bench
                .run(async move { client.open(Locks::builder().ttl(secs(10))).await.unwrap() });
            bench.locks.push(locks);
        }
        // So that each knows the server's time.
        for locks in bench.locks.clone() {
            bench.run(async move {
                assert!(locks.mutex("warm-up").lock().await.unwrap().release().await.is_clean())
            });
        }
        bench
    }

    /// The first client, and where it is.
    fn first(&self) -> (Locks, Stage, World) {
        (self.locks[0].clone(), self.stage.clone(), self.world.clone())
    }

    /// Two clients, where they are, and how the server knows the first.
    fn two(&self) -> (Locks, Locks, Stage, World, u64) {
        let (one, stage, world) = self.first();
        (one, self.locks[1].clone(), stage, world, self.ids[0])
    }

    fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        self.stage.run(10 * MINUTE, future).expect("it ends in time")
    }

    fn holds(&self) -> usize {
        self.world.look(|server| server.standing().0)
    }

    fn only(&self, change: impl FnOnce(&mut Faults)) {
        let mut faults = Faults { delay_ms: 2, ..Faults::default() };
        change(&mut faults);
        self.world.set_faults(faults);
    }
}

#[test]
fn r1_a_lease_is_renewed_and_its_deadline_lies_before_the_servers() {
    let bench = Bench::new(1, 1);
    let (locks, stage, world) = bench.first();
    bench.run(async move {
        let guard = locks.mutex("a").lock().await.unwrap();
        for _ in 0..60 {
            stage.sleep(secs(1)).await;
            let left = guard.remaining().unwrap();
            assert!(
                left > secs(5) && left <= secs(9),
                "ten seconds less the drift allowance: {left:?}"
            );
            assert_eq!(world.look(|server| server.standing()), (1, 0));
        }
        assert!(guard.release().await.is_clean());
    });
    assert_eq!(bench.holds(), 0);
}

#[test]
fn r2_loss_is_announced_at_the_deadline_while_every_call_hangs_and_is_final() {
    let bench = Bench::new(2, 2);
    let (one, two, stage, world, id) = bench.two();
    bench.run(async move {
        let guard = one.mutex("a").lock().await.unwrap();
        world.cut(id, true);
        let deadline = stage.now().plus(guard.remaining().unwrap());
        assert_eq!(guard.lost().await, Lost::Expired);
        assert_eq!(stage.now(), deadline, "to the nanosecond");
        let next = two.mutex("a").lock().await.unwrap();
        world.cut(id, false);
        stage.sleep(secs(30)).await;
        assert!(guard.is_lost(), "a lost hold never comes back");
        assert!(matches!(guard.release().await, Released::AlreadyLost(Lost::Expired)));
        next.check().unwrap();
        assert!(next.release().await.is_clean());
    });
}

#[test]
fn r2_a_server_that_lost_its_data_is_noticed_at_the_reconnect() {
    let bench = Bench::new(3, 1);
    let (locks, stage, world) = bench.first();
    bench.run(async move {
        let guard = locks.mutex("a").lock().await.unwrap();
        let token = guard.token().unwrap();
        world.forget();
        let began = stage.now();
        assert_eq!(guard.lost().await, Lost::TakenAway);
        assert!(stage.now().since(began) < secs(1));
        drop(guard);
        let again = locks.mutex("a").lock().await.unwrap();
        assert!(again.token().unwrap() > token, "BROKEN LOCK: an empty server gave an old token");
    });
}

#[test]
fn r3_a_claim_whose_replies_are_lost_holds_once() {
    let bench = Bench::new(4, 2);
    bench.only(|faults| faults.reply_lost = 1000);
    let (one, two, stage, world, _) = bench.two();
    bench.run(async move {
        let claim = one.mutex("a").lock().into_future();
        let waiting = Arc::new(Mutex::new(None));
        let got = waiting.clone();
        stage.spawn(async move { *got.lock().unwrap() = Some(claim.await) });
        stage.sleep(secs(3)).await;
        assert!(waiting.lock().unwrap().is_none(), "unknown is neither yes nor no");
        assert_eq!(world.look(|server| server.standing()), (1, 0), "but it was granted");
        world.set_faults(Faults { delay_ms: 2, ..Faults::default() });
        stage.sleep(secs(5)).await;
        let guard = waiting.lock().unwrap().take().unwrap().unwrap();
        assert_eq!(
            world.look(|server| server.standing()),
            (1, 0),
            "the same claim again holds once"
        );
        assert!(guard.release().await.is_clean());
        assert_eq!(world.look(|server| server.standing()), (0, 0), "and one release frees it");
        assert!(two.mutex("a").try_lock().await.unwrap().is_some());
    });
}

#[test]
fn r3_doubled_and_late_requests_take_nothing() {
    let bench = Bench::new(5, 1);
    bench.only(|faults| (faults.doubled, faults.delay_ms) = (1000, 5));
    let (locks, stage, world) = bench.first();
    bench.run(async move {
        for _ in 0..20 {
            let guard = locks.mutex("a").lock().await.unwrap();
            assert!(guard.release().await.is_clean());
            stage.sleep(Duration::from_millis(50)).await;
        }
        stage.sleep(secs(8)).await;
        assert_eq!(world.look(|server| server.standing()), (0, 0));
    });
}

#[test]
fn r4_an_unknown_release_says_so_and_is_repeated_behind_the_caller() {
    let bench = Bench::new(6, 2);
    let (one, two, stage, world, _) = bench.two();
    bench.run(async move {
        let guard = one.mutex("a").lock().await.unwrap();
        world.set_faults(Faults { request_lost: 1000, delay_ms: 2, ..Faults::default() });
        assert!(matches!(guard.release().await, Released::Unknown(_)));
        world.set_faults(Faults { delay_ms: 2, ..Faults::default() });
        let began = stage.now();
        let next = two.mutex("a").lock().await.unwrap();
        assert!(stage.now().since(began) < secs(4), "before the lease is over");
        assert!(next.release().await.is_clean());
    });
}

#[test]
fn r4_an_unknown_release_is_repeated_for_as_long_as_the_server_may_keep_the_hold() {
    let bench = Bench::new(9, 1);
    let (locks, stage, world) = bench.first();
    let faults = |change: fn(&mut Faults)| {
        let mut faults = Faults { delay_ms: 2, ..Faults::default() };
        change(&mut faults);
        faults
    };
    bench.run(async move {
        // Granted at once, and heard of when a fraction of the lease is left.
        world.set_faults(faults(|f| f.reply_lost = 1000));
        let mut claim = Box::pin(locks.mutex("a").lock().into_future());
        assert!(
            std::future::poll_fn(|cx| std::task::Poll::Ready(claim.as_mut().poll(cx).is_pending()))
                .await
        );
        stage.sleep(secs(6)).await;
        world.set_faults(faults(|_| ()));
        let guard = claim.await.unwrap();
        let left = guard.remaining().unwrap();
        assert!(left < secs(4), "{left:?}");
        // A renewal gives it a whole lease more, and nobody hears of that.
        world.set_faults(faults(|f| f.reply_lost = 1000));
        stage.sleep(left / 2).await;
        world.set_faults(faults(|f| f.request_lost = 1000));
        assert!(matches!(guard.release().await, Released::Unknown(_)));
        stage.sleep(left * 2).await;
        assert_eq!(world.look(|server| server.standing()), (1, 0), "the server keeps it");
        world.set_faults(faults(|_| ()));
        stage.sleep(Duration::from_millis(2500)).await;
        assert_eq!(
            world.look(|server| server.standing()),
            (0, 0),
            "and hears of the release as soon as it can be reached"
        );
    });
}

#[test]
fn r4_unknown_renewals_change_nothing_and_the_deadline_decides() {
    let bench = Bench::new(7, 1);
    let (locks, stage, world) = bench.first();
    bench.run(async move {
        let guard = locks.mutex("a").lock().await.unwrap();
        world.set_faults(Faults { reply_lost: 1000, delay_ms: 2, ..Faults::default() });
        stage.sleep(secs(6)).await;
        guard.check().expect("the lease that was answered for still lasts");
        world.set_faults(Faults { delay_ms: 2, ..Faults::default() });
        stage.sleep(secs(20)).await;
        guard.check().expect("a renewal that is answered goes on from there");
        world.set_faults(Faults { reply_lost: 1000, delay_ms: 2, ..Faults::default() });
        let began = stage.now();
        assert_eq!(guard.lost().await, Lost::Expired);
        assert!(
            stage.now().since(began) <= secs(9),
            "although the server renews, which nobody here knows"
        );
    });
}

#[test]
fn r5_a_claim_left_while_the_server_is_silent_ends_with_its_lease_at_the_latest() {
    for seed in 0..20 {
        let bench = Bench::new(100 + seed, 2);
        let (one, two, stage, world, id) = bench.two();
        bench.run(async move {
            let mut claim = Box::pin(one.mutex("a").lock().into_future());
            let pending = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(claim.as_mut().poll(cx).is_pending())
            })
            .await;
            assert!(pending);
            stage.sleep(Duration::from_millis(seed % 5)).await;
            drop(claim);
            stage.sleep(Duration::from_micros(300 * (seed % 7))).await;
            world.cut(id, true);
            let began = stage.now();
            drop(two.mutex("a").lock().await.unwrap());
            assert!(stage.now().since(began) <= secs(13), "{:?}", stage.now().since(began));
        });
    }
}

#[test]
fn r5_a_pushed_grant_whose_push_is_lost_is_found_by_the_net() {
    let bench = Bench::new(8, 2);
    bench.only(|faults| faults.push_lost = 1000);
    let (one, two, stage, ..) = bench.two();
    bench.run(async move {
        let guard = one.mutex("a").lock().await.unwrap();
        let next = two.mutex("a").lock().into_future();
        let got = Arc::new(Mutex::new(None));
        let slot = got.clone();
        stage.spawn(async move { *slot.lock().unwrap() = Some(next.await) });
        stage.sleep(secs(1)).await;
        assert!(guard.release().await.is_clean());
        stage.sleep(secs(12)).await;
        let turn = got.lock().unwrap().take().expect("the net found it").unwrap();
        turn.check().unwrap();
    });
}
