//! A master, its replicas and three Sentinels of a test's own, on free ports, gone with the value.

use std::time::{Duration, Instant};

use crate::engines::redis::server::RedisServer;

/// The service that the Sentinels watch.
pub const SERVICE: &str = "mymaster";

/// How many Sentinels watch it.
const SENTINELS: usize = 3;

/// How long the Sentinels may take to find each other and the replicas: each tells of itself every
/// two seconds.
const FOUND_WITHIN: Duration = Duration::from_secs(30);

/// How a deployment is started.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How many replicas there are.
    pub replicas: usize,
    /// For how long the master is silent before it counts as down.
    pub down_after: Duration,
    /// More arguments of the master and the replicas.
    pub arguments: Vec<String>,
    /// Variables in the environment of the replicas, for a preloaded clock.
    pub replica_environment: Vec<(String, String)>,
    /// The password of the master and the replicas.
    pub password: Option<String>,
    /// The Sentinels' own password.
    pub sentinel_password: Option<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            replicas: 1,
            down_after: Duration::from_millis(500),
            arguments: Vec::new(),
            replica_environment: Vec::new(),
            password: None,
            sentinel_password: None,
        }
    }
}

/// A running deployment.
pub struct Deployment {
    /// The first was the master when it started.
    pub servers: Vec<RedisServer>,
    /// Those who watch it.
    pub sentinels: Vec<RedisServer>,
    setup: Setup,
}

impl Deployment {
    /// A master and a replica that keep nothing on disk.
    pub fn start() -> Self {
        Self::start_with(Setup::default())
    }

    /// One with a setup of its own.
    pub fn start_with(setup: Setup) -> Self {
        let mut arguments: Vec<&str> = vec![
            // A replica that lost its master asks for it every second, and gets its data at once.
            "--repl-diskless-sync-delay",
            "0",
            "--repl-ping-replica-period",
            "1",
            "--repl-timeout",
            "5",
        ];
        arguments.extend(setup.arguments.iter().map(String::as_str));
        if let Some(password) = &setup.password {
            arguments.extend(["--requirepass", password, "--masterauth", password]);
        }
        let master = RedisServer::start_with(&arguments);
        let port = master.port().to_string();
        let mut servers = vec![master];
        for _ in 0..setup.replicas {
            let of = ["--replicaof", "127.0.0.1", &port];
            let environment = setup.replica_environment.iter();
            let environment: Vec<(&str, &str)> =
                environment.map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let arguments = [&arguments[..], &of].concat();
            servers.push(RedisServer::start_in(&arguments, &environment));
        }
        let lines = match &setup.sentinel_password {
            Some(password) => {
                format!("requirepass {password}\nsentinel sentinel-pass {password}\n")
            }
            None => String::new(),
        };
        let sentinels = (0..SENTINELS).map(|_| RedisServer::start_sentinel_with(&lines)).collect();
        let deployment = Self { servers, sentinels, setup };
        for at in 0..SENTINELS {
            deployment.watch(at, &port);
        }
        deployment.until_found();
        deployment
    }

    /// Tells a Sentinel to watch the master.
    fn watch(&self, at: usize, port: &str) {
        let down_after = self.setup.down_after.as_millis().to_string();
        self.ask(at, &["SENTINEL", "MONITOR", SERVICE, "127.0.0.1", port, "2"]);
        let mut settings = vec![
            ("down-after-milliseconds", down_after.as_str()),
            // A failover that fails is tried again after twice as long.
            ("failover-timeout", "4000"),
        ];
        if let Some(password) = &self.setup.password {
            settings.push(("auth-pass", password));
        }
        for (name, value) in settings {
            let answer = self.ask(at, &["SENTINEL", "SET", SERVICE, name, value]);
            assert_eq!(answer, ["OK"], "{name}");
        }
    }

    /// Runs a command on a Sentinel.
    pub fn ask(&self, at: usize, words: &[&str]) -> Vec<String> {
        let mut client = self.sentinels[at].client();
        if let Some(password) = &self.setup.sentinel_password {
            client.command(&["AUTH", password]);
        }
        client.command(words)
    }

    /// Runs a command on a server.
    pub fn command(&self, at: usize, words: &[&str]) -> Vec<String> {
        let mut client = self.servers[at].client();
        if let Some(password) = &self.setup.password {
            client.command(&["AUTH", password]);
        }
        client.command(words)
    }

    /// Waits until every Sentinel knows the others and the replicas, and can promote one.
    pub fn until_found(&self) {
        let field = |at: usize, name: &str| {
            let about = self.ask(at, &["SENTINEL", "MASTER", SERVICE]);
            about.iter().position(|word| word == name).map(|at| about[at + 1].clone())
        };
        let replicas = (self.servers.len() - 1).to_string();
        let others = (SENTINELS - 1).to_string();
        let link_up = |about: &[String]| {
            about.windows(2).filter(|pair| *pair == ["master-link-status", "ok"]).count()
        };
        self.until("the Sentinels find everybody", || {
            (0..SENTINELS).all(|at| {
                field(at, "num-slaves").as_ref() == Some(&replicas)
                    && field(at, "num-other-sentinels").as_ref() == Some(&others)
                    && link_up(&self.ask(at, &["SENTINEL", "REPLICAS", SERVICE]))
                        == self.servers.len() - 1
            })
        });
    }

    /// The master as the Sentinel at this place names it: its place among the servers.
    pub fn master_as_seen_by(&self, at: usize) -> usize {
        let named = self.ask(at, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        let port = named.get(1).cloned().unwrap_or_default();
        let place = self.servers.iter().position(|server| server.port().to_string() == port);
        place.unwrap_or_else(|| panic!("no server of ours but {named:?}"))
    }

    /// Waits until every Sentinel names another master than this one; answers which.
    pub fn until_failed_over(&self, from: usize) -> usize {
        self.until("they name another master", || {
            (0..SENTINELS).all(|at| self.master_as_seen_by(at) != from)
        });
        self.master_as_seen_by(0)
    }

    /// The master as most Sentinels will have it: with the greatest epoch.
    pub fn master(&self) -> usize {
        let epoch = |at: usize| {
            let about = self.ask(at, &["SENTINEL", "MASTER", SERVICE]);
            let found = about.iter().position(|word| word == "config-epoch");
            found.and_then(|at| about.get(at + 1)?.parse::<u64>().ok()).unwrap_or(0)
        };
        let newest = (0..SENTINELS).max_by_key(|at| epoch(*at)).unwrap_or(0);
        self.master_as_seen_by(newest)
    }

    /// Kills the master when its replicas have everything, and waits until one of them is the
    /// master and the old one its replica.
    pub fn fail_over(&mut self) {
        let old = self.master();
        self.until_replicated(old);
        self.servers[old].kill();
        let new = self.until_failed_over(old);
        self.servers[old].restart();
        let port = self.servers[new].port().to_string();
        // The Sentinels would do so some seconds later.
        self.command(old, &["REPLICAOF", "127.0.0.1", &port]);
        self.until_found();
    }

    /// From now on nothing that the master writes reaches a replica, and each still counts as one
    /// to promote for some seconds.
    pub fn stop_replication(&self) {
        let master = self.master();
        for at in (0..self.servers.len()).filter(|at| *at != master) {
            // The master refuses a replica that presents a password where there is none.
            self.command(at, &["CONFIG", "SET", "masterauth", "none"]);
        }
        self.command(master, &["CLIENT", "KILL", "TYPE", "replica"]);
        self.until("no replica is connected", || {
            let info = self.command(master, &["INFO", "replication"]).concat();
            info.contains("connected_slaves:0")
        });
    }

    /// What the master wrote meanwhile reaches the replicas, and what it writes from now on.
    pub fn go_on_replicating(&self) {
        self.let_replicate();
        self.until_replicated(self.master());
    }

    /// Lets the replicas follow whoever is the master, from now on.
    pub fn let_replicate(&self) {
        let password = self.setup.password.as_deref().unwrap_or_default();
        for at in (0..self.servers.len()).filter(|at| self.servers[*at].pid() > 0) {
            self.command(at, &["CONFIG", "SET", "masterauth", password]);
        }
    }

    /// Waits until every replica has all that the master has written.
    pub fn until_replicated(&self, master: usize) {
        let offset = |at: usize, name: &str| {
            let info = self.command(at, &["INFO", "replication"]).concat();
            let line = info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            line.and_then(|offset| offset.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        let written = offset(master, "master_repl_offset:");
        let others = (0..self.servers.len()).filter(|at| *at != master);
        let others: Vec<usize> = others.collect();
        self.until("the replicas have everything", || {
            others.iter().all(|at| offset(*at, "slave_repl_offset:") >= written)
        });
    }

    fn until(&self, what: &str, mut so: impl FnMut() -> bool) {
        let end = Instant::now() + FOUND_WITHIN;
        while !so() {
            let words: Vec<String> = (0..SENTINELS)
                .map(|at| self.ask(at, &["SENTINEL", "MASTER", SERVICE]).join(" "))
                .collect();
            assert!(Instant::now() < end, "waited in vain until {what}: {words:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
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
