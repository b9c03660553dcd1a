//! A Redis Cluster under many locks: a node that hangs or dies, slots that move to and fro, a node
//! that comes and goes (S4).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::{Kind, Locks};
use lockkeeper_testkit::cluster::server::{Nodes, Setup};
use lockkeeper_testkit::redis::server::RedisServer;
use tokio::task::JoinHandle;

use crate::common::run_on;

/// How many locks are held at the same time, unless `LOCKKEEPER_HELD` says otherwise: a development
/// build renews no more of them in time on two processors that other tests use as well.
const HELD: usize = 6_000;

/// How many locks a lease gets longer by a second for: what a build renews in time.
const PER_SECOND: usize = if cfg!(debug_assertions) { HELD / 12 } else { 10 * HELD / 12 };

/// How many of them are asked for at the same time.
const AT_ONCE: usize = 500;

fn run<T>(future: impl Future<Output = T>) -> T {
    run_on(2, Duration::from_secs(600), future)
}

/// Holds many locks on three nodes, does something to the first, and waits for longer than a lease:
/// those of the other two are held as before, and those of the first are lost.
fn only_its_locks_are_lost(how: impl FnOnce(&mut RedisServer)) {
    let mut nodes =
        Nodes::start_with(Setup { node_timeout: Duration::from_secs(3_600), ..Setup::default() });
    let held = std::env::var("LOCKKEEPER_HELD").map_or(HELD, |n| n.parse().expect("a number"));
    let ttl = Duration::from_secs((held / PER_SECOND).max(12) as u64);
    run(async {
        let url = format!("{}?ttl={}s", nodes.url(), ttl.as_secs());
        let locks = Locks::open(&url).await.expect("its nodes can be asked");
        let names: Vec<String> = (0..held).map(|n| format!("stock/{n}")).collect();
        let mut guards = Vec::with_capacity(held);
        for some in names.chunks(AT_ONCE) {
            let asked = some.iter().map(|name| locks.mutex(name.as_str()).lock());
            let asked: Vec<_> = asked.map(|lock| tokio::spawn(lock.into_future())).collect();
            for guard in asked {
                guards.push(guard.await.expect("it ends").expect("it is free"));
            }
        }
        how(&mut nodes.nodes[0]);
        // Longer than a lease, and than the requests that get no answer.
        tokio::time::sleep(ttl + Duration::from_secs(4)).await;
        let each = names.iter().zip(&guards);
        let lost = each.filter(|(_, guard)| guard.check().is_err()).map(|(name, _)| name);
        let lost: Vec<&String> = lost.collect();
        let (of_the_node, mut another) = (nodes.slots_at_first(0), nodes.nodes[1].client());
        let mut is_there = |name: &str| {
            let key = format!("lockkeeper:{{lock:{name}}}");
            let slot = another.command(&["CLUSTER", "KEYSLOT", &key]).concat();
            of_the_node.contains(&slot.parse().expect("a number"))
        };
        let elsewhere = lost.iter().filter(|name| !is_there(name)).count();
        println!("{held} held for {ttl:?}: {} lost, {elsewhere} of the other nodes", lost.len());
        assert_eq!(elsewhere, 0, "of the nodes that run");
        let share = held / 3;
        assert!(lost.len() > share * 9 / 10 && lost.len() < share * 11 / 10, "{}", lost.len());
    });
}

#[test]
fn a_node_that_hangs_loses_no_lock_of_the_others() {
    only_its_locks_are_lost(|node| node.stop());
}

#[test]
fn a_node_that_dies_loses_no_lock_of_the_others() {
    only_its_locks_are_lost(RedisServer::kill);
}

/// How often slots move while they are in use.
const MOVES: usize = 60;

async fn open(url: &str) -> Locks {
    Locks::open(url).await.expect("its nodes can be asked")
}

/// Moves each slot to the next of three nodes, all of one node together, until they have moved so
/// often; then to a node that is added, and away from it again.
fn move_to_and_fro(nodes: &mut Nodes, slots: &[usize]) -> usize {
    let at = |nodes: &Nodes, home: usize| -> Vec<usize> {
        slots.iter().copied().filter(|slot| nodes.home(*slot) == home).collect()
    };
    let mut moves = 0;
    for home in (0..3).cycle() {
        let here = at(nodes, home);
        nodes.move_slots(&here, home, (home + 1) % 3);
        moves += here.len();
        if moves >= MOVES {
            break;
        }
    }
    let new = nodes.add();
    for home in 0..3 {
        nodes.move_slots(&at(nodes, home), home, new);
    }
    nodes.move_slots(slots, new, 0);
    moves + 2 * slots.len()
}

/// Waits until each task has had two more turns, the second of which it asked for after this.
async fn two_turns_each(turns: &[Arc<AtomicUsize>], working: &[JoinHandle<()>]) {
    for (mine, before) in turns.iter().map(|mine| (mine, mine.load(Ordering::Relaxed))) {
        while mine.load(Ordering::Relaxed) < before + 2 {
            assert!(!working.iter().any(JoinHandle::is_finished), "a task failed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[test]
fn s4_slots_that_move_to_and_fro_under_load_lose_nothing_and_give_nothing_twice() {
    let mut nodes = Nodes::start();
    run(async {
        // Longer than a slot is open on a machine that is busy with other tests.
        let url = format!("{}?ttl=20s", nodes.url());
        let (one, two) = (open(&url).await, open(&url).await);
        let names: Vec<String> = (0..6).map(|n| format!("stock/{n}")).collect();
        let slots: Vec<usize> =
            names.iter().map(|name| nodes.slot(&format!("lockkeeper:{{lock:{name}}}"))).collect();
        // One of them is held all the time, and the others change hands.
        let held = one.mutex(names[0].as_str()).lock().await.expect("it is free");
        let over = Arc::new(AtomicBool::new(false));
        let (mut working, mut turns) = (Vec::new(), Vec::new());
        for name in &names[1..] {
            let (inside, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            for locks in [&one, &two, &one, &two] {
                let (lock, mine) = (locks.mutex(name.as_str()), Arc::new(AtomicUsize::new(0)));
                turns.push(mine.clone());
                let (inside, last, over) = (inside.clone(), last.clone(), over.clone());
                working.push(tokio::spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        let guard = lock.lock().await.expect("its turn comes");
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                        let token = guard.token().expect("it is held").get();
                        let token = usize::try_from(token).expect("64 bits");
                        let before = last.swap(token, Ordering::SeqCst);
                        assert!(token > before, "{token} after {before}");
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        let released = guard.release().await;
                        assert!(released.is_clean(), "nothing is lost: {released:?}");
                        mine.fetch_add(1, Ordering::Relaxed);
                    }
                }));
            }
        }
        let (mut nodes, moves) = tokio::task::spawn_blocking(move || {
            let moves = move_to_and_fro(&mut nodes, &slots);
            (nodes, moves)
        })
        .await
        .expect("the nodes agree");
        // A node that is killed takes the answers along that it owes. Nobody asks this one any more
        // once each has asked for its slot.
        two_turns_each(&turns, &working).await;
        let nodes = tokio::task::spawn_blocking(move || {
            nodes.try_remove().expect("the others forget it");
            nodes
        })
        .await
        .expect("the nodes agree");
        // Nobody was forgotten.
        two_turns_each(&turns, &working).await;
        over.store(true, Ordering::Relaxed);
        for worker in working {
            worker.await.expect("nothing went wrong");
        }
        let turns: usize = turns.iter().map(|mine| mine.load(Ordering::Relaxed)).sum();
        println!("{moves} moves, {turns} turns");
        held.check().expect("it is held over all of them");
        assert!(held.release().await.is_clean());
        for name in &names {
            let entry = one.status(Kind::Lock, name.as_str()).await.expect("it can be read");
            assert!(entry.holders.is_empty() && entry.waiters.is_empty(), "{entry:?}");
        }
        drop(nodes);
    });
}
