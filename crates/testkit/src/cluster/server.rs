//! The nodes of a cluster of our own, on free ports, gone with the value.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::moves::{Moves, Seen};
use crate::redis::server::RedisServer;
use crate::servers::port::free_port;

/// How many slots there are.
const SLOTS: usize = 16384;

/// How long the nodes may take to agree.
pub(super) const AGREED_WITHIN: Duration = Duration::from_secs(120);

/// After this silence a node counts as down where a failover is waited for.
pub const QUICK: Duration = Duration::from_secs(1);

/// How a cluster is started.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How many nodes have slots.
    pub shards: usize,
    /// How many replicas each of them has.
    pub replicas: usize,
    /// For how long a node is silent before it counts as down. By default it is longer than
    /// anything that is not waited for: [`QUICK`] and [`Nodes::until_replaced`] are for failovers.
    pub node_timeout: Duration,
    /// Whether all stop when one shard has no node.
    pub full_coverage: bool,
    /// More arguments of every node.
    pub arguments: Vec<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            shards: 3,
            replicas: 0,
            node_timeout: Duration::from_secs(20),
            full_coverage: false,
            arguments: Vec::new(),
        }
    }
}

/// A running cluster. What begins with `try_` is for a program that says to its user why it cannot
/// go on, and the rest for tests, which it ends.
pub struct Nodes {
    /// First those that have slots at the start, then their replicas: first the first one of each.
    pub nodes: Vec<RedisServer>,
    setup: Setup,
    /// Where the directories of nodes are that end with us.
    dir: Option<PathBuf>,
}

/// For a test of something else.
fn done<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|why| panic!("{why}"))
}

impl Nodes {
    /// Three shards that keep nothing on disk.
    pub fn start() -> Self {
        Self::start_with(Setup::default())
    }

    /// One with a setup of its own.
    pub fn start_with(setup: Setup) -> Self {
        done(Self::build(setup, None))
    }

    /// The same with all directories inside this one; it ends with the thread that calls this.
    ///
    /// # Errors
    /// When redis-server is not installed, does not start, or the nodes do not agree. Nothing is
    /// left then.
    pub fn try_start_below(dir: &Path, setup: Setup) -> Result<Self, String> {
        Self::build(setup, Some(dir.to_owned()))
    }

    fn build(setup: Setup, dir: Option<PathBuf>) -> Result<Self, String> {
        let Setup { shards, replicas, .. } = setup;
        let mut cluster = Self { nodes: Vec::new(), setup, dir };
        for _ in 0..shards * (1 + replicas) {
            let node = cluster.node()?;
            cluster.nodes.push(node);
        }
        for shard in 0..shards {
            let range = cluster.slots_at_first(shard);
            let (from, to) = (range.start().to_string(), range.end().to_string());
            let epoch = (shard + 1).to_string();
            cluster.tell(shard, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch])?;
            cluster.tell(shard, &["CLUSTER", "ADDSLOTSRANGE", &from, &to])?;
        }
        for at in 1..cluster.nodes.len() {
            cluster.meet(at)?;
        }
        for at in shards..cluster.nodes.len() {
            let master = cluster.try_command(at % shards, &["CLUSTER", "MYID"])?.concat();
            cluster.until("they know each other", || {
                Ok(cluster.moves().seen_by(at)?.iter().any(|seen| seen.id == master))
            })?;
            cluster.tell(at, &["CLUSTER", "REPLICATE", &master])?;
        }
        cluster.try_until_agreed()?;
        Ok(cluster)
    }

    /// A node that is in no cluster yet.
    fn node(&self) -> Result<RedisServer, String> {
        let bus = free_port().map_err(|e| format!("no port for redis-server: {e}"))?.to_string();
        let timeout = self.setup.node_timeout.as_millis().to_string();
        let coverage = if self.setup.full_coverage { "yes" } else { "no" };
        let mut arguments = vec![
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus,
            "--cluster-node-timeout",
            &timeout,
            "--cluster-require-full-coverage",
            coverage,
            "--cluster-allow-replica-migration",
            "no",
            "--cluster-replica-validity-factor",
            "0",
            "--repl-diskless-sync-delay",
            "0",
            "--repl-ping-replica-period",
            "1",
        ];
        arguments.extend(self.setup.arguments.iter().map(String::as_str));
        match &self.dir {
            Some(dir) => RedisServer::try_start_below(dir, &arguments, &[]),
            None => Ok(RedisServer::start_with(&arguments)),
        }
    }

    /// Adds a node that has no slots; answers its place.
    pub fn add(&mut self) -> usize {
        done(self.try_add())
    }

    /// The same.
    ///
    /// # Errors
    /// When it does not start, or they do not agree in time.
    pub fn try_add(&mut self) -> Result<usize, String> {
        let node = self.node()?;
        self.nodes.push(node);
        let at = self.nodes.len() - 1;
        self.meet(at)?;
        self.try_until_agreed()?;
        Ok(at)
    }

    /// Ends the node that was added last and has no slots any more; the others forget it.
    ///
    /// # Errors
    /// When they do not in time.
    pub fn try_remove(&mut self) -> Result<(), String> {
        let last = self.nodes.len() - 1;
        let id = self.try_command(last, &["CLUSTER", "MYID"])?.concat();
        // It ends with its value.
        self.nodes.pop();
        for other in self.moves().running() {
            self.tell(other, &["CLUSTER", "FORGET", &id])?;
        }
        self.try_until_agreed()
    }

    /// Lets a node and the first one know each other.
    fn meet(&self, at: usize) -> Result<(), String> {
        let port = self.nodes.first().map_or(0, RedisServer::port).to_string();
        let bus = self.try_command(0, &["CONFIG", "GET", "cluster-port"])?;
        let bus = bus.get(1).ok_or("a node has no port for the others")?;
        self.tell(at, &["CLUSTER", "MEET", "127.0.0.1", &port, bus])
    }

    /// How slots are moved between those that run now.
    pub fn moves(&self) -> Moves {
        let port = |node: &RedisServer| (node.pid() > 0).then(|| node.port());
        Moves::over(self.nodes.iter().map(port).collect())
    }

    /// The slots that a shard has at the start.
    pub fn slots_at_first(&self, shard: usize) -> RangeInclusive<usize> {
        let each = SLOTS.div_ceil(self.setup.shards);
        shard * each..=((shard + 1) * each).min(SLOTS) - 1
    }

    /// Runs a command on a node.
    pub fn command(&self, at: usize, words: &[&str]) -> Vec<String> {
        self.nodes[at].command(words)
    }

    /// The same.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn try_command(&self, at: usize, words: &[&str]) -> Result<Vec<String>, String> {
        self.moves().ask(at, words)
    }

    fn tell(&self, at: usize, words: &[&str]) -> Result<(), String> {
        self.moves().tell(at, words)
    }

    /// The id of a node.
    pub fn id(&self, at: usize) -> String {
        self.command(at, &["CLUSTER", "MYID"]).concat()
    }

    /// Waits until every node that runs knows all others, and who has which slots.
    pub fn until_agreed(&self) {
        done(self.try_until_agreed());
    }

    /// The same.
    ///
    /// # Errors
    /// When they do not in time.
    pub fn try_until_agreed(&self) -> Result<(), String> {
        self.until("the nodes agree", || self.agree())
    }

    /// Whether every node that runs knows all others, has its master's data if it has one, thinks
    /// that nobody who runs is down, and has the same map as the others.
    fn agree(&self) -> Result<bool, String> {
        let all = self.nodes.len();
        let (moves, mut maps) = (self.moves(), Vec::new());
        for at in moves.running() {
            let info = moves.ask(at, &["CLUSTER", "INFO"])?.concat();
            let knows = format!("cluster_known_nodes:{all}\r");
            if !info.contains("cluster_state:ok") || !info.contains(&knows) || !self.follows(at)? {
                return Ok(false);
            }
            let seen = moves.seen_by(at)?;
            let runs = |port| moves.running().any(|at| self.port(at) == port);
            if seen.iter().any(|seen| seen.is_down() && runs(seen.port)) {
                return Ok(false);
            }
            let slots = seen.into_iter().filter(|seen| !seen.slots.is_empty());
            let map: BTreeMap<u16, _> =
                slots.map(|Seen { port, slots, .. }| (port, slots)).collect();
            maps.push(map);
        }
        Ok(maps.windows(2).all(|two| two[0] == two[1]))
    }

    fn port(&self, at: usize) -> u16 {
        self.nodes.get(at).map_or(0, RedisServer::port)
    }

    /// Whether a node has all of its master's data, if it has one.
    fn follows(&self, at: usize) -> Result<bool, String> {
        let info = self.try_command(at, &["INFO", "replication"])?.concat();
        // One that was among the replicas at first is one until it is promoted.
        Ok(info.contains("role:master") || info.contains("master_link_status:up"))
    }

    /// Whether a node runs.
    pub fn runs(&self, at: usize) -> bool {
        self.nodes[at].pid() > 0
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> usize {
        let running = self.moves().running().next().expect("one runs");
        let slot = self.command(running, &["CLUSTER", "KEYSLOT", key]).concat();
        slot.parse().expect("a number")
    }

    /// A name of this prefix whose key in the layout native is in a slot of this shard.
    pub fn name_in(&self, shard: usize, prefix: &str) -> String {
        let range = self.slots_at_first(shard);
        let names = (0..).map(|n| format!("{prefix}{n}"));
        let here =
            |name: &String| range.contains(&self.slot(&format!("lockkeeper:{{lock:{name}}}")));
        names.into_iter().find(here).expect("there are enough names")
    }

    /// The node that has a slot, as one that runs sees it.
    pub fn home(&self, slot: usize) -> usize {
        let running = self.moves().running().next().expect("one runs");
        self.home_as_seen_by(running, slot).unwrap_or_else(|| panic!("nobody has {slot}"))
    }

    /// The same as one node sees it.
    pub fn home_as_seen_by(&self, at: usize, slot: usize) -> Option<usize> {
        // A dead node may have it.
        let seen = done(self.moves().seen_by(at));
        let port = seen.into_iter().find(|seen| seen.has(slot))?.port;
        self.nodes.iter().position(|node| node.port() == port)
    }

    /// Begins to move a slot: until it is finished both nodes have a part of it.
    pub fn open_slot(&self, slot: usize, from: usize, to: usize) {
        done(self.moves().open(slot, from, to));
    }

    /// Moves the keys of a slot that was opened.
    pub fn move_keys(&self, slot: usize, from: usize, to: usize) {
        done(self.moves().move_keys(slot, from, to));
    }

    /// Ends the move of a slot; everybody is told, first the one that has it now.
    pub fn close_slot(&self, slot: usize, from: usize, to: usize) {
        done(self.moves().close(slot, from, to));
    }

    /// Moves a slot with all its keys, and waits until all nodes know of it.
    pub fn move_slot(&self, slot: usize, from: usize, to: usize) {
        self.move_slots(&[slot], from, to);
    }

    /// The same with several slots.
    pub fn move_slots(&self, slots: &[usize], from: usize, to: usize) {
        done(self.moves().slots(slots, from, to));
    }

    /// Ends all nodes, and starts them with what they kept on disk.
    pub fn restart(&mut self) {
        self.nodes.iter_mut().for_each(RedisServer::kill);
        self.nodes.iter_mut().for_each(RedisServer::restart);
        self.until_agreed();
    }

    /// Kills the node that has a slot, and waits until another one has it; answers which.
    pub fn fail_over(&mut self, slot: usize) -> usize {
        let old = self.home(slot);
        self.until_replicated(old);
        self.nodes[old].kill();
        self.until_replaced(old);
        self.home(slot)
    }

    /// Waits until everybody else knows that a node that was killed has no slots any more; until
    /// then whoever is silent for [`QUICK`] counts as down.
    pub fn until_replaced(&self, old: usize) {
        self.suspect_after(QUICK);
        done(self.try_until_replaced(old));
        self.suspect_after(self.setup.node_timeout);
    }

    /// For how long a node is silent, from now on, before it counts as down for those that run.
    pub fn suspect_after(&self, time: Duration) {
        let millis = time.as_millis().to_string();
        let words = ["CONFIG", "SET", "cluster-node-timeout", &millis];
        done(self.moves().running().try_for_each(|at| self.tell(at, &words)));
    }

    /// Waits until everybody else knows that a node that ended has no slots any more.
    ///
    /// # Errors
    /// When nothing takes its place in time.
    pub fn try_until_replaced(&self, old: usize) -> Result<(), String> {
        let (moves, port) = (self.moves(), self.port(old));
        self.until("a replica takes its place", || {
            for at in moves.running().filter(|at| *at != old) {
                let has = |seen: &Seen| seen.port == port && !seen.slots.is_empty();
                if moves.seen_by(at)?.iter().any(has) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Starts a node that ended again, and waits until it has found its place.
    ///
    /// # Errors
    /// When it does not start, or they do not agree in time.
    pub fn try_come_back(&mut self, old: usize) -> Result<(), String> {
        self.nodes.get_mut(old).ok_or("there is no such node")?.try_restart()?;
        self.try_until_agreed()
    }

    /// From now on nothing that these masters write reaches a replica, and each is one to promote
    /// as before.
    ///
    /// # Errors
    /// When a server does not answer, or goes on replicating.
    pub fn try_stop_replication(&self, masters: &[usize]) -> Result<(), String> {
        for at in self.replicas_of(masters)? {
            // The master refuses a replica that presents a password where there is none.
            self.tell(at, &["CONFIG", "SET", "masterauth", "none"])?;
        }
        for master in masters {
            self.try_command(*master, &["CLIENT", "KILL", "TYPE", "replica"])?;
            self.until("no replica is connected", || {
                let info = self.try_command(*master, &["INFO", "replication"])?;
                Ok(info.concat().contains("connected_slaves:0"))
            })?;
        }
        Ok(())
    }

    /// Lets the replicas that run follow their masters again.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn try_let_replicate(&self) -> Result<(), String> {
        self.moves()
            .running()
            .try_for_each(|at| self.tell(at, &["CONFIG", "SET", "masterauth", ""]))
    }

    fn replicas_of(&self, masters: &[usize]) -> Result<Vec<usize>, String> {
        let ports: Vec<String> = masters.iter().map(|at| self.port(*at).to_string()).collect();
        let mut replicas = Vec::new();
        for at in self.moves().running() {
            if ports.contains(&self.replication(at, "master_port:")?) {
                replicas.push(at);
            }
        }
        Ok(replicas)
    }

    /// A field of INFO replication.
    fn replication(&self, at: usize, name: &str) -> Result<String, String> {
        let info = self.try_command(at, &["INFO", "replication"])?.concat();
        let line = info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        Ok(line.unwrap_or_default().trim().to_owned())
    }

    /// Waits until the replicas of a node have all that it has written.
    pub fn until_replicated(&self, master: usize) {
        let number = |at: usize, name: &str| {
            Ok::<_, String>(self.replication(at, name)?.parse::<u64>().unwrap_or(0))
        };
        let replicas = done(self.replicas_of(&[master]));
        let written = done(number(master, "master_repl_offset:"));
        done(self.until("the replicas have everything", || {
            for at in &replicas {
                if number(*at, "slave_repl_offset:")? < written {
                    return Ok(false);
                }
            }
            Ok(true)
        }));
    }

    fn until(&self, what: &str, so: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
        self.moves().until(what, so)
    }

    /// The places of those that have slots, as one that runs sees it.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn try_homes(&self) -> Result<Vec<usize>, String> {
        let moves = self.moves();
        let running = moves.running().next().ok_or("no node runs")?;
        let seen = moves.seen_by(running)?;
        let ports: Vec<u16> =
            seen.iter().filter(|seen| !seen.slots.is_empty()).map(|seen| seen.port).collect();
        let has = |at: &usize| ports.contains(&self.port(*at));
        Ok((0..self.nodes.len()).filter(has).collect())
    }

    /// Its URL: the first nodes, one of each shard.
    pub fn url(&self) -> String {
        let first = self.nodes.iter().take(self.setup.shards);
        let at: Vec<String> = first.map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", at.join(","))
    }
}
