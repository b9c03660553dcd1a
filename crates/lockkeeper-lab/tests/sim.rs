//! R1 to R5 on an engine with leases and a bad network, on virtual time; and many random schedules of faults.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test panics when it fails")]

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::observe::{Observer, Seen};
use lockkeeper::test_util::{SeededIds, residue};
use lockkeeper::{ClaimId, Kind, Locks, Lost, Mode, Name, Released, Ticks, Token};
use lockkeeper_lab::dice::Dice;
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
            let locks = bench.run(async move { client.open(Locks::builder().ttl(secs(10))).await.unwrap() });
            bench.locks.push(locks);
        }
        // So that each knows the server's time.
        for locks in bench.locks.clone() {
            bench.run(async move { assert!(locks.mutex("warm-up").lock().await.unwrap().release().await.is_clean()) });
        }
        bench
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
    let (locks, stage, world) = (bench.locks[0].clone(), bench.stage.clone(), bench.world.clone());
    bench.run(async move {
        let guard = locks.mutex("a").lock().await.unwrap();
        for _ in 0..60 {
            stage.sleep(secs(1)).await;
            let left = guard.remaining().unwrap();
            assert!(left > secs(5) && left <= secs(9), "ten seconds less the drift allowance: {left:?}");
            assert_eq!(world.look(|server| server.standing()), (1, 0));
        }
        assert!(guard.release().await.is_clean());
    });
    assert_eq!(bench.holds(), 0);
}

#[test]
fn r2_loss_is_announced_at_the_deadline_while_every_call_hangs_and_is_final() {
    let bench = Bench::new(2, 2);
    let (one, two, stage, world, id) =
        (bench.locks[0].clone(), bench.locks[1].clone(), bench.stage.clone(), bench.world.clone(), bench.ids[0]);
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
    let (locks, stage, world) = (bench.locks[0].clone(), bench.stage.clone(), bench.world.clone());
    bench.run(async move {
        let guard = locks.mutex("a").lock().await.unwrap();
        let token = guard.token().unwrap();
        world.forget();
        let began = stage.now();
        assert_eq!(guard.lost().await, Lost::TakenAway);
        assert!(stage.now().since(began) < secs(1));
        drop(guard);
        let again = locks.mutex("a").lock().await.unwrap();
        assert!(again.token().unwrap() > token, "an empty server gives no old token again");
    });
}

#[test]
fn r3_a_claim_whose_replies_are_lost_holds_once() {
    let bench = Bench::new(4, 2);
    bench.only(|faults| faults.reply_lost = 1000);
    let (one, two, stage) = (bench.locks[0].clone(), bench.locks[1].clone(), bench.stage.clone());
    let world = bench.world.clone();
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
        assert_eq!(world.look(|server| server.standing()), (1, 0), "the same claim again holds once");
        assert!(guard.release().await.is_clean());
        assert_eq!(world.look(|server| server.standing()), (0, 0), "and one release frees it");
        assert!(two.mutex("a").try_lock().await.unwrap().is_some());
    });
}

#[test]
fn r3_doubled_and_late_requests_take_nothing() {
    let bench = Bench::new(5, 1);
    bench.only(|faults| (faults.doubled, faults.delay_ms) = (1000, 5));
    let (locks, stage, world) = (bench.locks[0].clone(), bench.stage.clone(), bench.world.clone());
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
    let (one, two, stage, world) = (bench.locks[0].clone(), bench.locks[1].clone(), bench.stage.clone(), bench.world.clone());
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
fn r4_unknown_renewals_change_nothing_and_the_deadline_decides() {
    let bench = Bench::new(7, 1);
    let (locks, stage, world) = (bench.locks[0].clone(), bench.stage.clone(), bench.world.clone());
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
        assert!(stage.now().since(began) <= secs(9), "although the server renews, which nobody here knows");
    });
}

#[test]
fn r5_a_claim_left_while_the_server_is_silent_ends_with_its_lease_at_the_latest() {
    for seed in 0..20 {
        let bench = Bench::new(100 + seed, 2);
        let (one, two, stage, world, id) =
            (bench.locks[0].clone(), bench.locks[1].clone(), bench.stage.clone(), bench.world.clone(), bench.ids[0]);
        bench.run(async move {
            let mut claim = Box::pin(one.mutex("a").lock().into_future());
            let pending = std::future::poll_fn(|cx| std::task::Poll::Ready(claim.as_mut().poll(cx).is_pending())).await;
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
    let (one, two, stage) = (bench.locks[0].clone(), bench.locks[1].clone(), bench.stage.clone());
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

/// What a client's guards believed: from when until when, on which hold.
#[derive(Default)]
struct Beliefs {
    /// By client, name and claim: hold, mode, from, deadline.
    open: BTreeMap<(Name, u64), (ClaimId, Mode, Ticks, Ticks)>,
    over: Vec<(Name, ClaimId, Mode, Ticks, Ticks)>,
    tokens: Vec<(Name, Ticks, Token)>,
}

struct Watches(Arc<Mutex<Beliefs>>);

impl Observer for Watches {
    fn seen(&self, at: Ticks, _: Kind, name: &Name, what: &Seen) {
        let mut beliefs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            Seen::Got { claim, hold, mode, token, deadline } => {
                let deadline = deadline.expect("every hold has a lease");
                beliefs.open.insert((name.clone(), *claim), (*hold, *mode, at, deadline));
                if let (Mode::Exclusive, Some(token)) = (mode, token) {
                    beliefs.tokens.push((name.clone(), at, *token));
                }
            }
            Seen::Renewed { hold, deadline } => {
                for entry in beliefs.open.values_mut().filter(|entry| entry.0 == *hold) {
                    entry.3 = *deadline;
                }
            }
            Seen::Releasing { claim, .. } | Seen::Lost { claim, .. } => {
                if let Some((hold, mode, from, deadline)) = beliefs.open.remove(&(name.clone(), *claim)) {
                    beliefs.over.push((name.clone(), hold, mode, from, at.min(deadline)));
                }
            }
            _ => {}
        }
    }
}

/// One random schedule: clients, tasks, faults; then the faults end, and everybody must get through.
fn schedule(seed: u64) {
    let _ids = SeededIds::begin(seed);
    let mut dice = Dice::new(seed);
    let stage = Stage::new(seed);
    let world = World::new(&stage, seed);
    let mut clients = Vec::new();
    for _ in 0..2 + dice.below(2) {
        let beliefs = Arc::new(Mutex::new(Beliefs::default()));
        let client = Client::new(&world);
        let (id, builder) = (client.id(), Locks::builder().ttl(secs(6)).observer(Arc::new(Watches(beliefs.clone()))));
        let locks = stage.run(MINUTE, async move { client.open(builder).await.unwrap() }).expect("it opens");
        clients.push((id, locks, beliefs));
    }
    let faulty = Faults {
        request_lost: dice.below(150),
        reply_lost: dice.below(150),
        doubled: dice.below(150),
        push_lost: dice.below(300),
        delay_ms: 1 + dice.below(30),
        no_anchor: dice.chance(500),
    };
    world.set_faults(faulty);
    let left = Arc::new(Mutex::new(0usize));
    for (_, locks, _) in &clients {
        for _ in 0..1 + dice.below(3) {
            *left.lock().unwrap() += 1;
            let (stage, locks, left, mut dice) = (stage.clone(), locks.clone(), left.clone(), dice.split());
            stage.clone().spawn(async move {
                for _ in 0..6 {
                    work(&stage, &locks, &mut dice).await;
                }
                *left.lock().unwrap() -= 1;
            });
        }
    }
    let (trouble, ids) = (world.clone(), clients.iter().map(|(id, ..)| *id).collect::<Vec<_>>());
    let mut fate = dice.split();
    stage.spawn(async move {
        for _ in 0..6 {
            trouble.stage().sleep(Duration::from_millis(fate.below(6000))).await;
            let id = ids[usize::try_from(fate.below(ids.len() as u64)).unwrap()];
            trouble.cut(id, true);
            trouble.stage().sleep(Duration::from_millis(fate.below(9000))).await;
            trouble.cut(id, false);
        }
        trouble.set_faults(Faults { delay_ms: 2, ..Faults::default() });
    });
    let (waits, remaining) = (stage.clone(), left.clone());
    let all = stage.run(20 * MINUTE, async move {
        while *remaining.lock().unwrap() > 0 {
            waits.sleep(secs(1)).await;
        }
    });
    assert!(all.is_some(), "{} tasks never get through: {world:?}", left.lock().unwrap());
    let rest = stage.clone();
    stage.run(10 * MINUTE, async move { rest.sleep(secs(60)).await });
    assert_eq!(world.look(|server| server.standing()), (0, 0), "nothing is left on the server");
    for (_, locks, _) in &clients {
        let kept = residue(locks);
        assert_eq!((kept.names, kept.claims, kept.leases, kept.tasks), (0, 0, 0, 0), "nothing is left of a client");
    }
    judge(&world, clients.iter().map(|(_, _, beliefs)| beliefs));
}

/// One task's turn, ended in one of the ways in which turns end.
async fn work(stage: &Stage, locks: &Locks, dice: &mut Dice) {
    let name = ["a", "b"][usize::from(dice.chance(300))];
    let acquire = if dice.chance(200) { locks.rwlock(name).read() } else { locks.mutex(name).lock() };
    let acquired = if dice.chance(400) {
        acquire.timeout(Duration::from_millis(dice.below(8000))).await
    } else if dice.chance(300) {
        // Left at a random instant.
        let mut future = Box::pin(acquire.into_future());
        let mut patience = Box::pin(stage.sleep(Duration::from_millis(dice.below(4000))));
        let early = std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(got) = future.as_mut().poll(cx) {
                return std::task::Poll::Ready(Some(got));
            }
            patience.as_mut().poll(cx).map(|()| None)
        });
        match early.await {
            Some(got) => got,
            None => return,
        }
    } else {
        acquire.await
    };
    let Ok(guard) = acquired else { return };
    let busy = stage.sleep(Duration::from_millis(dice.below(200) * if dice.chance(100) { 60 } else { 1 }));
    // The work is dropped when the lock is lost; how it ended changes nothing here.
    let _ = guard.run(busy).await;
    if dice.chance(500) {
        let _ = guard.release().await;
    }
}

/// Believing is holding: at no instant does a guard believe what the server does not know; and tokens rise.
fn judge<'a>(world: &World, clients: impl Iterator<Item = &'a Arc<Mutex<Beliefs>>>) {
    let truth: Vec<_> = world.look(|server| server.history().to_vec());
    let mut tokens = Vec::new();
    for beliefs in clients {
        let beliefs = beliefs.lock().unwrap();
        assert!(beliefs.open.is_empty(), "every turn is over");
        for (name, hold, mode, from, to) in &beliefs.over {
            // A claim that ran out before its grant was heard of is asked for again under the same id.
            let facts: Vec<_> = truth.iter().filter(|h| h.hold == *hold && h.name == *name && h.mode == *mode).collect();
            let held = |h: &&lockkeeper_lab::sim::History| world.ours(h.from) <= *from && h.to.is_none_or(|end| *to <= world.ours(end));
            assert!(facts.iter().any(held), "{name}: believed {from:?} to {to:?}, and it was {facts:?}");
        }
        tokens.extend(beliefs.tokens.iter().cloned());
    }
    tokens.sort_by_key(|(name, at, _)| (name.clone(), *at));
    for pair in tokens.windows(2) {
        if let [one, next] = pair
            && one.0 == next.0
            && one.1 < next.1
        {
            assert!(one.2 < next.2, "{}: {} follows {}", one.0, next.2, one.2);
        }
    }
    for (at, one) in truth.iter().enumerate() {
        for other in truth.iter().skip(at + 1).filter(|other| other.name == one.name && !other.mode.shares_with(one.mode)) {
            assert!(one.to.is_some_and(|to| to <= other.from), "the server itself excludes: {one:?}, {other:?}");
        }
    }
}

#[test]
fn random_schedules_keep_every_rule() {
    // A failing seed is printed, and replays: LOCKKEEPER_SIM_SEED=… cargo test -p lockkeeper-lab --test sim
    let one = std::env::var("LOCKKEEPER_SIM_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = one.map_or(0..150, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| schedule(seed)) {
            eprintln!("the schedule of seed {seed} failed; replay it with LOCKKEEPER_SIM_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
