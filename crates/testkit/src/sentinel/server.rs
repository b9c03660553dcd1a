//! A master, its replicas and three Sentinels of our own, on free ports, gone with the value.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::redis::resp::ask_once;
use crate::redis::server::RedisServer;

/// The service that the Sentinels watch.
pub const SERVICE: &str = "mymaster";

/// How many Sentinels watch it.
const SENTINELS: usize = 3;

/// How long the Sentinels may take to find each other and the replicas: each tells of itself every
/// two seconds.
const FOUND_WITHIN: Duration = Duration::from_secs(120);

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A silence that no Sentinel waits for the end of: it suspects nobody.
const CALM: Duration = Duration::from_secs(3600);

/// After this one a master counts as down where a failover is waited for: its replicas are all
/// there.
pub const QUICK: Duration = Duration::from_millis(500);

/// As whom replicas and Sentinels come, where that is another user than clients are.
const WATCHER: &str = "watcher";

/// How a deployment is started.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How many replicas there are.
    pub replicas: usize,
    /// For how long the master is silent before it counts as down. By default it is longer than
    /// anything that is not waited for: [`QUICK`] and [`Deployment::until_replaced`] are for
    /// failovers.
    pub down_after: Duration,
    /// More arguments of the master and the replicas.
    pub arguments: Vec<String>,
    /// Variables in the environment of the replicas, for a preloaded clock.
    pub replica_environment: Vec<(String, String)>,
    /// The password of the master and the replicas.
    pub password: Option<String>,
    /// Whether replicas and Sentinels are a user of their own, with the same password, so that a
    /// server can be cut off from them and not from clients ([`Deployment::cut_off`]).
    pub apart: bool,
    /// The Sentinels' own password.
    pub sentinel_password: Option<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            replicas: 1,
            down_after: Duration::from_secs(30),
            arguments: Vec::new(),
            replica_environment: Vec::new(),
            password: None,
            apart: false,
            sentinel_password: None,
        }
    }
}

impl Setup {
    /// What master and replicas are started with.
    fn arguments(&self) -> Vec<String> {
        // A replica that lost its master asks for it every second, and gets its data at once.
        let usual = [
            ["--repl-diskless-sync-delay", "0"],
            ["--repl-ping-replica-period", "1"],
            ["--repl-timeout", "5"],
        ];
        let mut all: Vec<String> = usual.concat().into_iter().map(str::to_owned).collect();
        all.extend(self.arguments.iter().cloned());
        if let Some(password) = &self.password {
            all.extend(["--requirepass", password, "--masterauth", password].map(str::to_owned));
            if self.apart {
                let key = format!(">{password}");
                let watcher = ["--masteruser", WATCHER, "--user", WATCHER, "on", &key, "~*", "&*"];
                all.extend(watcher.into_iter().chain(["+@all"]).map(str::to_owned));
            }
        }
        all
    }
}

/// A running deployment. What begins with `try_` is for a program that says to its user why it
/// cannot go on, and the rest for tests, which it ends.
pub struct Deployment {
    /// The first was the master when it started.
    pub servers: Vec<RedisServer>,
    /// Those who watch it.
    pub sentinels: Vec<RedisServer>,
    setup: Setup,
}

/// For a test of something else.
fn done<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|why| panic!("{why}"))
}

/// What a replica has of what its master wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    All,
    Less,
    /// It follows nobody any more.
    Promoted,
}

/// The same from its INFO replication; `written` is the offset of the master.
fn has_all(info: &str, written: u64) -> Has {
    if info.contains("role:master") {
        return Has::Promoted;
    }
    match offset(info, "slave_repl_offset:") {
        Some(offset) if offset >= written => Has::All,
        _ => Has::Less,
    }
}

fn offset(info: &str, name: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

impl Deployment {
    /// A master and a replica that keep nothing on disk.
    pub fn start() -> Self {
        Self::start_with(Setup::default())
    }

    /// One with a setup of its own.
    pub fn start_with(setup: Setup) -> Self {
        let server = |arguments: &[&str], environment: &[(&str, &str)]| {
            Ok(RedisServer::start_in(arguments, environment))
        };
        done(Self::build(setup, server, |lines| Ok(RedisServer::start_sentinel_with(lines))))
    }

    /// The same with all directories inside this one; it ends with the thread that calls this.
    ///
    /// # Errors
    /// When redis-server is not installed, does not start, or finds nobody. Nothing is left then.
    pub fn try_start_below(dir: &Path, setup: Setup) -> Result<Self, String> {
        let server = |arguments: &[&str], environment: &[(&str, &str)]| {
            RedisServer::try_start_below(dir, arguments, environment)
        };
        Self::build(setup, server, |lines| RedisServer::try_start_sentinel_below(dir, lines))
    }

    fn build(
        setup: Setup,
        server: impl Fn(&[&str], &[(&str, &str)]) -> Result<RedisServer, String>,
        sentinel: impl Fn(&str) -> Result<RedisServer, String>,
    ) -> Result<Self, String> {
        let arguments = setup.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let master = server(&arguments, &[])?;
        let port = master.port().to_string();
        let mut servers = vec![master];
        let environment = setup.replica_environment.iter();
        let environment: Vec<(&str, &str)> =
            environment.map(|(name, value)| (name.as_str(), value.as_str())).collect();
        for _ in 0..setup.replicas {
            let of = ["--replicaof", "127.0.0.1", &port];
            servers.push(server(&[&arguments[..], &of].concat(), &environment)?);
        }
        let lines = setup.sentinel_password.as_ref().map_or(String::new(), |password| {
            format!("requirepass {password}\nsentinel sentinel-pass {password}\n")
        });
        let sentinels: Result<_, String> = (0..SENTINELS).map(|_| sentinel(&lines)).collect();
        let deployment = Self { servers, sentinels: sentinels?, setup };
        for at in 0..SENTINELS {
            deployment.watch(at, &port)?;
        }
        deployment.try_until_found()?;
        Ok(deployment)
    }

    /// Tells a Sentinel to watch the master.
    fn watch(&self, at: usize, port: &str) -> Result<(), String> {
        let down_after = self.setup.down_after.as_millis().to_string();
        let mut told = vec![vec!["SENTINEL", "MONITOR", SERVICE, "127.0.0.1", port, "2"]];
        let mut set = |name, value| told.push(vec!["SENTINEL", "SET", SERVICE, name, value]);
        set("down-after-milliseconds", &down_after);
        // A failover that fails is tried again after twice as long.
        set("failover-timeout", "4000");
        if let Some(password) = &self.setup.password {
            set("auth-pass", password);
            if self.setup.apart {
                set("auth-user", WATCHER);
            }
        }
        told.iter().try_for_each(|words| self.tell(at, words))
    }

    /// Runs a command on a Sentinel that it says nothing else about than OK.
    fn tell(&self, at: usize, words: &[&str]) -> Result<(), String> {
        match self.try_ask(at, words)? {
            answer if answer == ["OK"] => Ok(()),
            answer => Err(format!("a Sentinel answers {answer:?} to {:?}", words.get(..4))),
        }
    }

    /// Runs a command on a Sentinel.
    pub fn ask(&self, at: usize, words: &[&str]) -> Vec<String> {
        done(self.try_ask(at, words))
    }

    /// The same.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn try_ask(&self, at: usize, words: &[&str]) -> Result<Vec<String>, String> {
        let sentinel = self.sentinels.get(at).ok_or("there is no such Sentinel")?;
        ask_once(sentinel.port(), PATIENCE, self.setup.sentinel_password.as_deref(), words)
    }

    /// Runs a command on a server.
    pub fn command(&self, at: usize, words: &[&str]) -> Vec<String> {
        done(self.try_command(at, words))
    }

    /// The same.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn try_command(&self, at: usize, words: &[&str]) -> Result<Vec<String>, String> {
        let server = self.servers.get(at).ok_or("there is no such server")?;
        ask_once(server.port(), PATIENCE, self.setup.password.as_deref(), words)
    }

    fn carry_out(&self, at: usize, words: &[&str]) -> Result<(), String> {
        match self.try_command(at, words)?.concat().strip_prefix('-') {
            Some(refused) => Err(format!("a server refuses {:?}: {refused}", words.first())),
            None => Ok(()),
        }
    }

    /// Waits until every Sentinel knows the others and the replicas, and can promote one.
    pub fn until_found(&self) {
        done(self.try_until_found());
    }

    /// The same.
    ///
    /// # Errors
    /// When they do not find each other in time.
    pub fn try_until_found(&self) -> Result<(), String> {
        self.until("the Sentinels find everybody", || self.can_fail_over())
    }

    /// Whether every Sentinel knows the others, and replicas that it could promote.
    pub fn can_fail_over(&self) -> bool {
        let replicas = self.servers.len().saturating_sub(1);
        let is_well = |at: usize| {
            let linked = self.try_ask(at, &["SENTINEL", "REPLICAS", SERVICE]).unwrap_or_default();
            let linked = linked.windows(2).filter(|two| *two == ["master-link-status", "ok"]);
            self.field(at, "num-slaves") == Some(replicas.to_string())
                && self.field(at, "num-other-sentinels") == Some((SENTINELS - 1).to_string())
                && linked.count() == replicas
        };
        (0..SENTINELS).all(is_well)
    }

    /// What a Sentinel says of the master.
    fn field(&self, at: usize, name: &str) -> Option<String> {
        let about = self.try_ask(at, &["SENTINEL", "MASTER", SERVICE]).ok()?;
        let found = about.iter().position(|word| word == name)?;
        about.get(found + 1).cloned()
    }

    /// The master as the Sentinel at this place names it: its place among the servers.
    pub fn master_as_seen_by(&self, at: usize) -> usize {
        done(self.try_master_as_seen_by(at))
    }

    fn try_master_as_seen_by(&self, at: usize) -> Result<usize, String> {
        let named = self.try_ask(at, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])?;
        let is_it = |server: &RedisServer| named.get(1) == Some(&server.port().to_string());
        let place = self.servers.iter().position(is_it);
        place.ok_or_else(|| format!("no server of ours but {named:?}"))
    }

    /// Waits until every Sentinel names another master than this one; answers which.
    pub fn until_failed_over(&self, from: usize) -> usize {
        done(self.try_until_failed_over(from))
    }

    /// The same.
    ///
    /// # Errors
    /// When they do not in time.
    pub fn try_until_failed_over(&self, from: usize) -> Result<usize, String> {
        let moved = |at| self.try_master_as_seen_by(at).is_ok_and(|master| master != from);
        self.until("they name another master", || (0..SENTINELS).all(moved))?;
        self.try_master_as_seen_by(0)
    }

    /// Waits until every Sentinel names another master than this one, which was killed or stopped;
    /// until then whoever is silent for [`QUICK`] counts as down. Answers which.
    pub fn until_replaced(&self, old: usize) -> usize {
        self.suspect_after(QUICK);
        let new = self.until_failed_over(old);
        self.suspect_after(self.setup.down_after);
        new
    }

    /// The master as most Sentinels will have it: with the greatest epoch.
    pub fn master(&self) -> usize {
        done(self.try_master())
    }

    /// The same.
    ///
    /// # Errors
    /// When no Sentinel says it.
    pub fn try_master(&self) -> Result<usize, String> {
        let epoch = |at: &usize| self.field(*at, "config-epoch")?.parse::<u64>().ok();
        self.try_master_as_seen_by((0..SENTINELS).max_by_key(epoch).unwrap_or(0))
    }

    /// Kills the master when its replicas have everything, and waits until one of them is the
    /// master and the old one its replica.
    pub fn fail_over(&mut self) {
        // On a machine that is busy they may have moved by themselves, and what the new master
        // lacks would look as if it had been forgotten. From here on they do so no more.
        self.suspect_after(CALM);
        let old = done(self.until_settled());
        self.until_replicated(old);
        self.servers[old].kill();
        self.until_replaced(old);
        done(self.try_come_back(old));
        self.until_found();
    }

    /// For how long the master and its replicas are silent, from now on, before they count as down.
    pub fn suspect_after(&self, time: Duration) {
        let time = time.as_millis().to_string();
        let words = ["SENTINEL", "SET", SERVICE, "down-after-milliseconds", &time];
        done((0..SENTINELS).try_for_each(|at| self.tell(at, &words)));
    }

    /// Waits until all Sentinels name one master that they take to be well, and every other server
    /// follows it; answers which.
    fn until_settled(&self) -> Result<usize, String> {
        let mut master = 0;
        self.until("no failover is under way", || {
            let Ok(named) = self.try_master() else { return false };
            master = named;
            let names = |at| {
                self.try_master_as_seen_by(at) == Ok(named)
                    && self.field(at, "flags").as_deref() == Some("master")
            };
            let follows = |at| {
                let info = self.try_command(at, &["INFO", "replication"]).unwrap_or_default();
                info.concat().contains("role:master") == (at == named)
            };
            (0..SENTINELS).all(names) && (0..self.servers.len()).all(follows)
        })?;
        Ok(master)
    }

    /// Starts a killed server as a replica of the master, and waits until that has it.
    ///
    /// # Errors
    /// When it does not start, or does not follow in time.
    pub fn try_come_back(&mut self, old: usize) -> Result<(), String> {
        let master = self.try_until_failed_over(old)?;
        let port = self.servers.get(master).map_or(0, RedisServer::port).to_string();
        let server = self.servers.get_mut(old).ok_or("there is no such server")?;
        // As a master it would be empty, and the Sentinels look for one here for some seconds.
        server.set("--replicaof", &["127.0.0.1", &port]);
        server.try_restart()?;
        self.until_follows(old)
    }

    /// From now on nothing that the master writes reaches a replica, and each still counts as one
    /// to promote for some seconds.
    pub fn stop_replication(&self) {
        done(self.try_stop_replication());
    }

    /// The same.
    ///
    /// # Errors
    /// When a server does not answer, or goes on replicating.
    pub fn try_stop_replication(&self) -> Result<(), String> {
        let master = self.try_master()?;
        for at in (0..self.servers.len()).filter(|at| *at != master) {
            // The master refuses a replica that presents a wrong password, or one where there is
            // none.
            self.carry_out(at, &["CONFIG", "SET", "masterauth", "none"])?;
        }
        self.carry_out(master, &["CLIENT", "KILL", "TYPE", "replica"])?;
        self.until("no replica is connected", || {
            let info = self.try_command(master, &["INFO", "replication"]).unwrap_or_default();
            info.concat().contains("connected_slaves:0")
        })
    }

    /// What the master wrote meanwhile reaches the replicas, and what it writes from now on.
    pub fn go_on_replicating(&self) {
        self.let_replicate();
        self.until_replicated(self.master());
    }

    /// Lets the replicas follow whoever is the master, from now on.
    pub fn let_replicate(&self) {
        done(self.try_let_replicate());
    }

    /// The same.
    ///
    /// # Errors
    /// When a server that runs does not answer.
    pub fn try_let_replicate(&self) -> Result<(), String> {
        let password = self.setup.password.as_deref().unwrap_or_default();
        for (at, _) in self.servers.iter().enumerate().filter(|(_, server)| server.pid() > 0) {
            self.carry_out(at, &["CONFIG", "SET", "masterauth", password])?;
        }
        Ok(())
    }

    /// Cuts a server off from the Sentinels and from its replicas, and not from clients. The setup
    /// has to be one with these [`Setup::apart`].
    ///
    /// # Errors
    /// When it does not answer.
    pub fn cut_off(&self, at: usize) -> Result<(), String> {
        self.carry_out(at, &["ACL", "SETUSER", WATCHER, "off"])?;
        self.carry_out(at, &["CLIENT", "KILL", "USER", WATCHER])
    }

    /// Ends that, when the Sentinels have another master: it is a replica from then on.
    ///
    /// # Errors
    /// When it does not follow in time.
    pub fn join_again(&self, at: usize) -> Result<(), String> {
        let master = self.try_until_failed_over(at)?;
        let port = self.servers.get(master).map_or(0, RedisServer::port).to_string();
        // The Sentinels would do so some seconds later.
        self.carry_out(at, &["REPLICAOF", "127.0.0.1", &port])?;
        self.carry_out(at, &["ACL", "SETUSER", WATCHER, "on"])?;
        // A connection that could not present itself is kept for a quarter of a minute.
        self.carry_out(at, &["CLIENT", "KILL", "TYPE", "normal"])?;
        self.until_follows(at)
    }

    /// Waits until a server has what its master has.
    fn until_follows(&self, at: usize) -> Result<(), String> {
        self.until("the old master is a replica", || {
            let info = self.try_command(at, &["INFO", "replication"]).unwrap_or_default();
            info.concat().contains("master_link_status:up")
        })
    }

    /// Waits until every replica has all that the master has written. Fails where one was promoted
    /// meanwhile by itself: what it lacks nobody but the Sentinels lost.
    pub fn until_replicated(&self, master: usize) {
        let told = |at: usize| Some(self.try_command(at, &["INFO", "replication"]).ok()?.concat());
        let written = told(master).and_then(|info| offset(&info, "master_repl_offset:"));
        let written = done(written.ok_or("no offset".to_owned()));
        let others = || (0..self.servers.len()).filter(|at| *at != master);
        let mut promoted = None;
        done(self.until("the replicas have everything", || {
            let each = others().map(|at| (at, told(at).map(|info| has_all(&info, written))));
            let each: Vec<_> = each.collect();
            promoted = each.iter().find(|(_, has)| *has == Some(Has::Promoted)).map(|(at, _)| *at);
            promoted.is_some() || each.iter().all(|(_, has)| *has == Some(Has::All))
        }));
        if let Some(at) = promoted {
            panic!(
                "the Sentinels made server {at} the master while {master} lived, as they do on a \
                 machine that runs it too seldom: whether it has everything is not known"
            );
        }
    }

    fn until(&self, what: &str, mut so: impl FnMut() -> bool) -> Result<(), String> {
        let end = Instant::now() + FOUND_WITHIN;
        while !so() {
            if Instant::now() > end {
                let words = (0..SENTINELS).map(|at| self.try_ask(at, &["SENTINEL", "MASTERS"]));
                let mut words: Vec<String> = words.flatten().map(|words| words.join(" ")).collect();
                let told = |at| self.try_command(at, &["INFO", "replication"]).ok();
                words.extend((0..self.servers.len()).filter_map(told).map(|info| info.concat()));
                return Err(format!("waited in vain until {what}: {words:#?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The Sentinels' addresses, as a URL lists them.
    pub fn hosts(&self) -> String {
        let at: Vec<String> =
            self.sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
        at.join(",")
    }

    /// Its URL, without passwords.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{SERVICE}", self.hosts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_was_promoted_by_itself_is_not_taken_for_one_that_has_everything() {
        let replica = "role:slave\r\nmaster_link_status:up\r\nslave_repl_offset:70\r\n";
        assert_eq!(has_all(replica, 70), Has::All);
        assert_eq!(has_all(replica, 71), Has::Less);
        assert_eq!(has_all("role:slave\r\n", 0), Has::Less, "it does not say");
        assert_eq!(has_all("role:master\r\nmaster_repl_offset:90\r\n", 70), Has::Promoted);
    }
}
