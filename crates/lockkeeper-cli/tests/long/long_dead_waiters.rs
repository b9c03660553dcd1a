//! Waiters that die in a row, with real processes: what they cost the living one behind them (R11).

use std::time::{Duration, Instant};

use lockkeeper_testkit::redis::server::{RedisClient, RedisServer};
use nix::sys::signal::Signal;

use crate::common::lease::{Engine, guardian};
use crate::common::{self, Place, Reaped, children, kill, until, until_true, until_within};

const RECORD: &str = "lockkeeper:{lock:a}";
const LINE: &str = "lockkeeper:{lock:a}:line";
/// What numbers count from, and in which unit (R7).
const EPOCH: Duration = Duration::from_secs(1_767_225_600);
const TICK_US: u64 = 16;
/// What the rest of the line costs beside one claim lease, at most.
const ANSWERS: Duration = Duration::from_secs(1);

/// Who holds the lock, as the server wrote it down.
#[derive(Clone, Debug, PartialEq)]
struct Record {
    pid: i32,
    /// When it was granted, on the server's clock.
    since: Duration,
    /// When its lease ends unless it is renewed, on the server's clock.
    ends: Duration,
}

struct Scene {
    server: RedisServer,
    client: RedisClient,
    place: Place,
    options: &'static [&'static str],
}

impl Scene {
    fn new(options: &'static [&'static str]) -> Self {
        let server = RedisServer::start();
        let client = server.client();
        Self { server, client, place: Place::new(), options }
    }

    /// A lockkeeper that holds the lock, or stands in line for it, until it is asked to end.
    fn start(&mut self) -> Reaped {
        let before = self.standing();
        let mut lk =
            self.place.lk([&["run", "a"], self.options, &["--", "sleep", "1000"]].concat());
        let started = Reaped::spawn(
            lk.env("LOCKKEEPER_URL", self.server.url()).stderr(std::process::Stdio::null()),
        );
        until_true("it holds the lock or stands in line", || {
            self.standing() > before || self.record().is_some_and(|r| r.pid == started.pid())
        });
        started
    }

    fn start_several(&mut self, count: usize) -> Vec<Reaped> {
        (0..count).map(|_| self.start()).collect()
    }

    fn standing(&mut self) -> u32 {
        self.client.command(&["ZCOUNT", LINE, "-inf", "(1000000000000"])[0].parse().unwrap()
    }

    fn record(&mut self) -> Option<Record> {
        let time = self.client.command(&["TIME"]);
        let now = Duration::from_secs(time[0].parse().unwrap())
            + Duration::from_micros(time[1].parse().unwrap());
        let text = self.client.command(&["GET", RECORD]).remove(0);
        let left = self
            .client
            .command(&["PTTL", RECORD])
            .remove(0)
            .parse()
            .ok()
            .and_then(|ms: i64| u64::try_from(ms).ok())?;
        let words: Vec<&str> = text.split(' ').collect();
        let pid = words.get(7)?.split(',').nth(1)?.parse().ok()?;
        let since = match words.get(12) {
            Some(since) => Duration::from_micros(since.parse().ok()?),
            // As granted on the short way: its number is its time.
            None => EPOCH + Duration::from_micros(TICK_US * words.get(11)?.parse::<u64>().ok()?),
        };
        Some(Record { pid, since, ends: now + Duration::from_millis(left) })
    }

    /// Waits until the server has only so many processes of ours: a process that was killed takes a
    /// moment to be gone.
    fn until_connected(&mut self, count: usize) {
        let channels = ["PUBSUB", "CHANNELS", "lockkeeper:process:*"];
        until_true("the dead are gone", || {
            self.client.command(&channels).iter().filter(|c| c.starts_with("lockkeeper")).count()
                == count
        });
    }

    /// Waits until somebody else than these holds the lock.
    fn other_than(&mut self, pids: &[i32]) -> Record {
        until("somebody else holds the lock", || {
            self.record().filter(|record| !pids.contains(&record.pid))
        })
    }
}

/// How waiters go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// Killed: the kernel closes their connections.
    Killed,
    /// Their connections stay, and say nothing.
    Silent,
}

/// Processes that stand still; whatever becomes of the test, they are killed in the end.
struct Stopped(Vec<i32>);

impl Stopped {
    fn new(pids: Vec<i32>) -> Self {
        pids.iter().for_each(|pid| kill(*pid, Signal::SIGSTOP));
        Self(pids)
    }

    fn go_on(&self) {
        self.0.iter().for_each(|pid| kill(*pid, Signal::SIGCONT));
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| kill(*pid, Signal::SIGKILL));
    }
}

/// Nothing of the process says goodbye.
fn strike(process: &Reaped) {
    let keeper = guardian(process.pid());
    let commands: Vec<i32> =
        children(process.pid()).into_iter().filter(|pid| *pid != keeper).collect();
    kill(keeper, Signal::SIGKILL);
    process.signal(Signal::SIGKILL);
    // A command whose lockkeeper is killed together with its guardian goes on.
    commands.into_iter().for_each(|pid| kill(pid, Signal::SIGKILL));
}

/// From the release, or from the end of a dead holder's lease, to the grant of the only living
/// waiter behind `k` dead ones.
fn cost(options: &'static [&'static str], k: usize, fate: Fate, holder_dies: bool) -> Duration {
    let mut scene = Scene::new(options);
    let mut holder = scene.start();
    let dead = scene.start_several(k);
    let living = scene.start();
    let mut _stopped = None;
    match fate {
        Fate::Killed => {
            dead.iter().for_each(strike);
            // The holder and the one that lives.
            scene.until_connected(2);
        }
        Fate::Silent => {
            _stopped = Some(Stopped::new(dead.iter().map(|dead| guardian(dead.pid())).collect()))
        }
    }
    let free = if holder_dies {
        strike(&holder);
        until_true("it is gone", || !common::is_alive(holder.pid()));
        scene.record().expect("its lease goes on").ends
    } else {
        holder.signal(Signal::SIGTERM);
        // The first dead one is granted by the release.
        let freed = scene.other_than(&[holder.pid()]).since;
        assert_eq!(holder.wait(), 143);
        freed
    };
    let granted = until("the living one holds the lock", || {
        scene.record().filter(|record| record.pid == living.pid())
    })
    .since;
    granted.saturating_sub(free)
}

fn claim_lease_together(
    options: &'static [&'static str],
    claim_lease: Duration,
    holder_dies: bool,
) {
    let costs: Vec<_> =
        [1, 3, 6, 20].map(|k| (k, cost(options, k, Fate::Killed, holder_dies))).into();
    println!(
        "dead waiters {options:?}, the holder {}: {costs:?}",
        if holder_dies { "is killed" } else { "gives back" }
    );
    assert!(costs.iter().all(|(_, cost)| *cost <= claim_lease + ANSWERS), "{costs:?}");
}

#[test]
fn r11_dead_waiters_in_a_row_cost_one_claim_lease_together_at_defaults() {
    claim_lease_together(&[], Duration::from_secs(2), false);
}

#[test]
fn r11_dead_waiters_in_a_row_cost_one_claim_lease_together_with_short_leases() {
    claim_lease_together(&["--ttl", "3s"], Duration::from_secs(1), false);
}

#[test]
fn r11_dead_waiters_behind_a_dead_holder_cost_one_claim_lease_together() {
    claim_lease_together(&["--ttl", "3s"], Duration::from_secs(1), true);
}

#[test]
fn r11_waiters_whose_hosts_vanish_cost_one_claim_lease_and_one_net_together() {
    let costs: Vec<_> = [1, 6].map(|k| (k, cost(&[], k, Fate::Silent, false))).into();
    println!("silent waiters, the holder gives back: {costs:?}");
    // Who was told to look may be one of them: the net of the living one is two claim leases.
    assert!(
        costs.iter().all(|(_, cost)| *cost <= Duration::from_secs(2 + 4) + ANSWERS),
        "{costs:?}"
    );
}

#[test]
fn r11_dead_and_living_waiters_in_turn_cost_one_claim_lease_together_and_come_in_order() {
    let mut scene = Scene::new(&[]);
    let mut holder = scene.start();
    let all = scene.start_several(4);
    strike(&all[0]);
    strike(&all[2]);
    scene.until_connected(3);
    holder.signal(Signal::SIGTERM);
    let freed = scene.other_than(&[holder.pid()]).since;
    assert_eq!(holder.wait(), 143);
    let first = scene.other_than(&[holder.pid(), all[0].pid()]);
    assert_eq!(first.pid, all[1].pid(), "the first that lives");
    assert!(
        first.since.saturating_sub(freed) <= Duration::from_secs(2) + ANSWERS,
        "{first:?} {freed:?}"
    );
    all[1].signal(Signal::SIGTERM);
    let released = Instant::now();
    let second =
        until_within(Duration::from_secs(10), "the second that lives holds the lock", || {
            scene.record().filter(|record| record.pid == all[3].pid())
        });
    // The dead one between them was asked when the first one was granted.
    assert!(released.elapsed() <= ANSWERS, "{:?} {second:?}", released.elapsed());
}

#[test]
fn r11_a_waiter_that_is_slow_to_answer_keeps_its_place() {
    let mut scene = Scene::new(&[]);
    let mut holder = scene.start();
    let (dead, slow, living, last) = (scene.start(), scene.start(), scene.start(), scene.start());
    strike(&dead);
    scene.until_connected(4);
    // It is stopped for as long as it takes the lock to go past it.
    let stopped = Stopped::new(vec![guardian(slow.pid())]);
    holder.signal(Signal::SIGTERM);
    let freed = scene.other_than(&[holder.pid()]).since;
    assert_eq!(holder.wait(), 143);
    let next = scene.other_than(&[holder.pid(), dead.pid()]);
    assert_eq!(next.pid, living.pid(), "the lock goes past who does not answer");
    assert!(
        next.since.saturating_sub(freed) <= Duration::from_secs(2) + ANSWERS,
        "{next:?} {freed:?}"
    );
    stopped.go_on();
    let sign = || scene_sign(&scene.server);
    let before = sign();
    until_true("it gives a sign of life", || sign() > before);
    living.signal(Signal::SIGTERM);
    let after = scene.other_than(&[living.pid()]);
    assert_eq!(after.pid, slow.pid(), "before the one behind it, {}", last.pid());
}

/// The oldest sign of life among the places.
fn scene_sign(server: &RedisServer) -> f64 {
    let mut client = server.client();
    let all = client.command(&["ZRANGE", LINE, "0", "-1", "WITHSCORES"]);
    let signs = all
        .chunks(2)
        .filter(|pair| pair[0].starts_with('s'))
        .map(|pair| pair[1].parse::<f64>().unwrap());
    signs.fold(f64::INFINITY, f64::min)
}

#[test]
fn dead_waiters_in_a_row_cost_one_session_together_on_zookeeper() {
    let session = Duration::from_secs(4);
    let recovery = session * 7 / 4;
    for k in [1, 6] {
        let (engine, place) = (Engine::zookeeper(), Place::new());
        let url = engine.url_with_sessions_of(4);
        let start = |number: usize| {
            let file = format!("got{number}");
            let command = format!("echo > {file}; exec sleep 1000");
            let started =
                engine.start(&place, &["run", "a", "--url", &url, "--", "sh", "-c", &command]);
            until_true("it holds the lock or stands in line", || {
                let status =
                    common::json(engine.run(&place, &["status", "a", "--json"]).out.trim_end());
                let count = |key: &str| status[key].as_array().map_or(0, Vec::len);
                count("holders") + count("waiters") == number + 1
            });
            started
        };
        let mut holder = start(0);
        let dead: Vec<Reaped> = (1..=k).map(&start).collect();
        let _living = start(k + 1);
        dead.iter().for_each(strike);
        holder.signal(Signal::SIGTERM);
        assert_eq!(holder.wait(), 143);
        let released = Instant::now();
        until_true("the living one holds the lock", || {
            place.path(&format!("got{}", k + 1)).exists()
        });
        let cost = released.elapsed();
        println!("{k} dead waiters on ZooKeeper, sessions of {session:?}: {cost:?}");
        assert!(cost <= recovery, "{k}: {cost:?}");
        for number in 1..=k {
            assert!(!place.path(&format!("got{number}")).exists(), "a dead one got the lock");
        }
    }
}
