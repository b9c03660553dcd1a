//! The nodes of a cluster of the run's own; a proxy between each client and each of them, at which
//! they announce each other to that client.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_testkit::cluster::server::{Nodes, Setup};
use lockkeeper_testkit::redis::server::RedisServer;

use super::started::Wanted;
use crate::torture::arena::{About, Arena, Failed, Mended};
use crate::torture::fault::{AWAY, AWAY_AND_FORGOTTEN, BOTH_GRANT, Fault, Hits};
use crate::torture::links::Links;
use crate::torture::storm::Storm;

const KILL_MASTER: &str = "kill-master";
const KILL_AHEAD: &str = "kill-unreplicated";
const STOP_NODE: &str = "stop-node";
const MOVE_SLOTS: &str = "move-slots";
const ADD_NODE: &str = "add-node";

/// For how long a node is silent before it counts as down: longer than a busy machine keeps one
/// from running.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);

/// For how long a master grants what no replica hears of, before it is killed.
const AHEAD: Duration = Duration::from_millis(300);

/// The pause between two moves of slots.
const MOVE_EVERY: Duration = Duration::from_millis(20);

/// How many slots the new node gets.
const SLOTS_OF_NEW: usize = 4;

/// How often the nodes are asked whether they failed over without a fault.
const ASK_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct ClusterArena {
    about: About,
    wanted: Wanted,
    // It ends before the nodes do.
    storm: Option<Storm>,
    /// How often a slot moved since it began, or why it could not.
    moved: Arc<Mutex<Result<u64, String>>>,
    // The links go before the nodes they lead to.
    links: Links,
    nodes: Nodes,
    /// The node that was killed or stopped.
    old: Option<usize>,
    /// Which master is hit next: each in turn.
    next: usize,
    /// Those that have slots, while no fault is under way, and when that was asked last.
    homes: Vec<usize>,
    asked: Instant,
}

impl ClusterArena {
    /// `dir` is for the nodes' directories.
    pub(crate) fn start(options: &str, dir: &Path) -> Result<Self, (u8, String)> {
        let wanted = Wanted::take(options, 1)?;
        let nodes = wanted.start(dir, Setup { node_timeout: NODE_TIMEOUT, ..Setup::default() })?;
        let links = Links::to_announced(nodes.nodes.iter().map(RedisServer::port).collect());
        let about = About::of(&wanted.url(&nodes.url()))?;
        let homes = nodes.try_homes().map_err(|text| (69, text))?;
        Ok(Self {
            about,
            wanted,
            storm: None,
            moved: Arc::new(Mutex::new(Ok(0))),
            links,
            nodes,
            old: None,
            next: 0,
            homes,
            asked: Instant::now(),
        })
    }

    /// The next master that has slots.
    fn choose(&mut self) -> Result<usize, String> {
        self.next += 1;
        let all = self.nodes.try_homes()?;
        all.get(self.next % all.len().max(1)).copied().ok_or_else(|| "no node has slots".to_owned())
    }

    fn kill(&mut self, at: usize) -> Result<(), String> {
        self.nodes.nodes.get_mut(at).ok_or("there is no such node")?.try_kill()?;
        self.old = Some(at);
        Ok(())
    }

    fn kill_ahead(&mut self) -> Result<(), Failed> {
        let master = self.choose()?;
        let stopped = self.nodes.try_stop_replication(&[master]);
        std::thread::sleep(AHEAD);
        let killed = stopped.and_then(|()| self.kill(master));
        let follow = self.nodes.try_let_replicate();
        killed.and(follow).map_err(Failed::Half)
    }

    /// A node that was killed is a replica of the one that took its place.
    fn come_back(&mut self) -> Result<(), String> {
        let Some(old) = self.old else { return Ok(()) };
        if self.wanted.replicas > 0 {
            self.nodes.try_until_replaced(old)?;
        }
        self.nodes.try_come_back(old)?;
        self.is_over()
    }

    fn go_on(&mut self) -> Result<(), String> {
        let Some(old) = self.old else { return Ok(()) };
        self.nodes.nodes.get(old).ok_or("there is no such node")?.try_go_on()?;
        self.nodes.try_until_agreed()?;
        self.is_over()
    }

    fn is_over(&mut self) -> Result<(), String> {
        self.homes = self.nodes.try_homes()?;
        self.old = None;
        Ok(())
    }

    /// Moves slots that are in use from node to node, again and again.
    fn move_slots(&mut self) -> Result<(), Failed> {
        let (moves, homes) = (self.nodes.moves(), self.homes.clone());
        self.moved = Arc::new(Mutex::new(Ok(0)));
        let (moved, mut turn) = (self.moved.clone(), 0);
        let act = move || {
            let (from, to) = (homes.get(turn % homes.len()), homes.get((turn + 1) % homes.len()));
            turn += 1;
            let (Some(from), Some(to)) = (from, to) else { return };
            let slot = match moves.used_slot(*from) {
                Ok(Some(slot)) => Ok(slot),
                Ok(None) => return,
                Err(why) => Err(why),
            };
            let done = slot.and_then(|slot| moves.slots(&[slot], *from, *to));
            let mut moved = moved.lock().unwrap_or_else(PoisonError::into_inner);
            *moved = done.and_then(|()| moved.clone().map(|count| count + 1));
        };
        self.storm = Some(Storm::begin(MOVE_EVERY, act).map_err(Failed::Half)?);
        Ok(())
    }

    fn move_no_more(&mut self) -> Result<Mended, String> {
        drop(self.storm.take());
        let moves = self.nodes.moves();
        moves.finish()?;
        self.nodes.try_until_agreed()?;
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.moved = Arc::new(Mutex::new(Ok(1)));
        self.is_over()?;
        Ok(match moved? {
            0 => Mended::HitNobody("no slot had a key"),
            _ => Mended::Ended,
        })
    }

    /// A new node gets slots that are in use.
    fn add(&mut self) -> Result<(), Failed> {
        let homes = self.homes.clone();
        let new = self.nodes.try_add().map_err(Failed::Half)?;
        let port = self.nodes.nodes.get(new).map_or(0, RedisServer::port);
        self.links.add(port).map_err(Failed::Half)?;
        let moves = self.nodes.moves();
        for at in homes.iter().cycle().take(SLOTS_OF_NEW) {
            let slot = moves.used_slot(*at).map_err(Failed::Half)?;
            if let Some(slot) = slot {
                moves.slots(&[slot], *at, new).map_err(Failed::Half)?;
            }
        }
        Ok(())
    }

    /// It gives them back to the others, and is forgotten.
    fn remove(&mut self) -> Result<(), String> {
        let new = self.nodes.nodes.len() - 1;
        if new < self.wanted.shards * (1 + self.wanted.replicas) {
            return Ok(());
        }
        let moves = self.nodes.moves();
        moves.finish()?;
        for (turn, slot) in moves.slots_of(new)?.into_iter().enumerate() {
            let to = self.homes.get(turn % self.homes.len()).ok_or("no node has slots")?;
            moves.slots(&[slot], new, *to)?;
        }
        let port = self.nodes.nodes.get(new).map_or(0, RedisServer::port);
        let removed = self.nodes.try_remove();
        self.links.remove(port);
        removed?;
        self.is_over()
    }

    /// What it has excuses by whether a replica that is promoted may lack a grant.
    fn faults(&self) -> Vec<Fault> {
        let server = |name, excuses, what| Fault { name, hits: Hits::Server, excuses, what };
        let moves = [
            server(
                MOVE_SLOTS,
                AWAY,
                "slots that are in use move from node to node, again and again",
            ),
            server(
                ADD_NODE,
                AWAY,
                "a node is added, and gets slots that are in use; then they go to the others",
            ),
        ];
        let mut all = if self.wanted.replicas > 0 {
            vec![
                server(
                    KILL_MASTER,
                    AWAY_AND_FORGOTTEN,
                    "a master is killed; then it is started again as a replica of the new one",
                ),
                server(
                    KILL_AHEAD,
                    AWAY_AND_FORGOTTEN,
                    "nothing reaches a master's replica any more, and then the same",
                ),
                // One that goes on may grant before it hears that it was replaced.
                server(
                    STOP_NODE,
                    BOTH_GRANT,
                    "a master is stopped as it stands, and goes on later",
                ),
            ]
        } else {
            vec![
                server(
                    KILL_MASTER,
                    AWAY_AND_FORGOTTEN,
                    "a master is killed, and started again without its data",
                ),
                server(STOP_NODE, AWAY, "a master is stopped as it stands, and goes on later"),
            ]
        };
        all.extend(moves);
        all
    }

    /// Which node has ended that no fault has.
    fn ended(&mut self) -> Option<String> {
        let old = self.old;
        let nodes = self.nodes.nodes.iter_mut().enumerate().filter(|(at, _)| Some(*at) != old);
        nodes.map(|(_, node)| node).find_map(|node| {
            let (status, words) = (node.ended()?, node.last_words());
            Some(format!("a node ended by itself with {status}; it said last: {words}"))
        })
    }

    /// What a failover does that no fault is the reason of is held against nobody.
    fn failed_over(&mut self) -> Option<String> {
        self.asked = Instant::now();
        let is_calm = self.old.is_none() && self.storm.is_none();
        let new = self.nodes.nodes.len() > self.wanted.shards * (1 + self.wanted.replicas);
        let moved = is_calm && !new && self.nodes.try_homes().as_ref() != Ok(&self.homes);
        moved.then(|| {
            let text = "this machine kept a master from running";
            format!("the nodes failed over by themselves: {text} for {NODE_TIMEOUT:?}")
        })
    }
}

impl Arena for ClusterArena {
    fn url(&mut self, number: u32) -> Result<String, String> {
        let at = self.links.addresses(number)?;
        let one_a_shard = at.iter().take(self.wanted.shards).map(ToString::to_string);
        let at: Vec<String> = one_a_shard.collect();
        Ok(self.wanted.url(&format!("redis+cluster://{}", at.join(","))))
    }

    fn links(&mut self) -> Option<&mut Links> {
        Some(&mut self.links)
    }

    fn about(&self) -> About {
        self.about
    }

    fn faults(&self) -> Vec<Fault> {
        self.faults().into_iter().chain(self.links.faults()).collect()
    }

    fn left_out(&self) -> Vec<String> {
        self.links.left_out().into_iter().collect()
    }

    fn lost(&mut self) -> Option<String> {
        let ask = self.asked.elapsed() > ASK_EVERY;
        self.ended().or_else(|| if ask { self.failed_over() } else { None })
    }

    fn lost_at_the_end(&mut self) -> Option<String> {
        self.ended().or_else(|| self.failed_over())
    }

    fn strike(&mut self, fault: &'static str, client: u32) -> Result<(), Failed> {
        if let Some(struck) = self.links.strike(fault, client) {
            return struck;
        }
        if self.old.is_some() {
            return Err("a node is not back yet".into());
        }
        match fault {
            KILL_MASTER => {
                let master = self.choose()?;
                Ok(self.kill(master)?)
            }
            KILL_AHEAD => self.kill_ahead(),
            STOP_NODE => {
                let master = self.choose()?;
                self.nodes.nodes.get(master).ok_or("there is no such node")?.try_stop()?;
                self.old = Some(master);
                Ok(())
            }
            MOVE_SLOTS => self.move_slots(),
            ADD_NODE => self.add(),
            fault => Err(format!("cluster has no fault {fault}").into()),
        }
    }

    fn mend(&mut self, fault: &'static str, client: u32) -> Result<Mended, String> {
        if let Some(mended) = self.links.mend(fault, client) {
            return mended;
        }
        match fault {
            KILL_MASTER | KILL_AHEAD => self.come_back()?,
            STOP_NODE => self.go_on()?,
            MOVE_SLOTS => return self.move_no_more(),
            ADD_NODE => self.remove()?,
            fault => return Err(format!("cluster has no fault {fault}")),
        }
        Ok(Mended::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_each_fault_every_shard_has_a_master_and_a_replica_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = ClusterArena::start("", dir.path()).unwrap();
        for at in 0..3 {
            let from = arena.nodes.slots_at_first(at);
            let key = (0..).map(|n| format!("key{n}"));
            let here = |key: &String| from.contains(&arena.nodes.slot(key));
            let key = key.into_iter().find(here).unwrap();
            assert_eq!(arena.nodes.command(at, &["SET", &key, "1"]), ["OK"]);
        }
        for fault in [ADD_NODE, MOVE_SLOTS, KILL_MASTER, STOP_NODE, KILL_AHEAD] {
            let before = arena.homes.clone();
            arena.strike(fault, 0).unwrap();
            assert_eq!(arena.lost_at_the_end(), None, "it is the fault's doing");
            if fault == KILL_AHEAD || fault == KILL_MASTER {
                let refused = "a node is not back yet".to_owned();
                assert_eq!(arena.strike(fault, 0), Err(Failed::Undone(refused)), "{fault}");
            }
            if fault == MOVE_SLOTS {
                lockkeeper_testkit::until::until("a slot has moved", || {
                    *arena.moved.lock().unwrap() != Ok(0)
                });
            }
            assert_eq!(arena.mend(fault, 0), Ok(Mended::Ended), "{fault}");
            assert_eq!(before != arena.homes, fault.starts_with("kill-"), "{fault}");
            assert_eq!(arena.lost_at_the_end(), None, "{fault} was the reason");
            let masters = arena.nodes.moves().masters().unwrap();
            assert_eq!((masters.len(), arena.nodes.nodes.len()), (3, 6), "{fault}: {masters:?}");
        }
        let old = arena.homes[0];
        arena.nodes.nodes[old].kill();
        arena.nodes.try_until_replaced(old).unwrap();
        assert!(arena.lost_at_the_end().unwrap().contains("by themselves"));
    }

    #[test]
    fn a_client_goes_to_every_node_through_its_own_proxy_also_to_one_that_was_added() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = ClusterArena::start("replicas=0", dir.path()).unwrap();
        arena.is_to_suffer(&["partition"], 1);
        let locks = lockkeeper::blocking::Locks::open(&arena.url(0).unwrap()).unwrap();
        let locks_go = |arena: &ClusterArena, nodes: std::ops::Range<usize>| {
            let name = |at| arena.nodes.name_in(at, "x");
            for lock in (0..3).map(|at| locks.mutex(name(at))) {
                drop(lock.lock().timeout(Duration::from_secs(120)).run().unwrap());
            }
            nodes.into_iter().all(|at| arena.links.connections(&(at..at + 1), 0).0 > 0)
        };
        assert!(locks_go(&arena, 0..3));
        // What is used has a key.
        let held: Vec<_> = (0..3)
            .map(|at| locks.mutex(arena.nodes.name_in(at, "x")).lock().run().unwrap())
            .collect();
        arena.strike(ADD_NODE, 0).unwrap();
        drop(held);
        lockkeeper_testkit::until::until("it goes to the new one", || locks_go(&arena, 0..4));
        arena.mend(ADD_NODE, 0).unwrap();
        assert!(locks_go(&arena, 0..3));
    }

    #[test]
    fn what_a_slot_has_moves_with_it_and_a_node_that_nothing_replaces_loses_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = ClusterArena::start("replicas=0", dir.path()).unwrap();
        let exists = |arena: &ClusterArena, key: &str| {
            let home = arena.nodes.home(arena.nodes.slot(key));
            arena.nodes.command(home, &["EXISTS", key])
        };
        let home = arena.nodes.home(arena.nodes.slot("a"));
        assert_eq!(arena.nodes.command(home, &["SET", "a", "b"]), ["OK"]);
        arena.strike(ADD_NODE, 0).unwrap();
        assert_eq!(arena.nodes.home(arena.nodes.slot("a")), 3, "the new one has it");
        assert_eq!(exists(&arena, "a"), ["1"]);
        arena.mend(ADD_NODE, 0).unwrap();
        assert_eq!(exists(&arena, "a"), ["1"]);
        for _ in 0..3 {
            arena.strike(KILL_MASTER, 0).unwrap();
            arena.mend(KILL_MASTER, 0).unwrap();
        }
        assert_eq!(exists(&arena, "a"), ["0"], "each was killed once");
        assert_eq!(arena.mend(MOVE_SLOTS, 0).map(|_| ()), Ok(()));
    }
}
