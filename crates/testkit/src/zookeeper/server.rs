//! ZooKeeper servers, single or as an ensemble, from Debian's package `libzookeeper-java`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::proxy::{Proxy, Way};
use crate::servers::port::free_port;

/// Where the package puts its classes.
const JARS: &str = "/usr/share/java";
/// What the server needs of them.
const NEEDED: [&str; 15] = [
    "zookeeper.jar",
    "zookeeper-jute.jar",
    "slf4j-api.jar",
    "slf4j-simple.jar",
    "netty-buffer.jar",
    "netty-codec.jar",
    "netty-common.jar",
    "netty-handler.jar",
    "netty-resolver.jar",
    "netty-transport.jar",
    "netty-transport-native-epoll.jar",
    "netty-transport-native-unix-common.jar",
    "metrics-core.jar",
    "snappy-java.jar",
    "jackson-databind.jar",
];
/// How long a server may take to begin to serve.
const START_WITHIN: Duration = Duration::from_secs(120);

/// How long it is waited for an answer of a server that begins: it takes connections before it
/// answers, and forgets a question that came too early.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// How a server is configured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of a tick; session timeouts are 2 to 20 ticks.
    pub tick: Duration,
    /// How many ticks a follower may be out of touch.
    pub sync_limit: u32,
    /// Whether writes reach the disk before they are acknowledged; off where only time matters.
    pub durable: bool,
    /// Further lines of the configuration file.
    pub lines: Vec<String>,
    /// Further Java properties, without `-D`.
    pub properties: Vec<String>,
    /// Variables of its environment.
    pub environment: Vec<(String, PathBuf)>,
    /// Whether it ends with the thread that starts it.
    pub ends_with_us: bool,
    /// Where its own directory is made; where temporary files are unless it is said.
    pub below: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(500),
            sync_limit: 5,
            durable: false,
            lines: Vec::new(),
            properties: Vec::new(),
            environment: Vec::new(),
            ends_with_us: false,
            below: None,
        }
    }
}

/// One server process.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    dir: TempDir,
    port: u16,
    config: PathBuf,
    child: Option<Child>,
}

impl Server {
    /// Starts a single server and waits until it serves.
    ///
    /// # Errors
    /// When the package or a Java runtime is missing, or the server does not start.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let mut tries = 1;
        loop {
            let mut server = Self::configured(settings.clone(), &[])?;
            server.run()?;
            match server.wait_until_serving() {
                // A free port can be taken until Java has come so far; then another one is tried.
                Err(_) if tries < 5 && server.log().contains("BindException") => tries += 1,
                served => return served.map(|()| server),
            }
        }
    }

    /// Starts a member of an ensemble whose other members do not run, so that it serves read-only
    /// at most.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_read_only(settings: Settings) -> io::Result<Self> {
        let mut server = Self::configured(settings, &[])?;
        fs::write(server.dir.path().join("data/myid"), "1")?;
        server.run()?;
        server.wait_until_serving()?;
        Ok(server)
    }

    fn configured(settings: Settings, members: &[String]) -> io::Result<Self> {
        let below = settings.below.clone().unwrap_or_else(std::env::temp_dir);
        let dir = tempfile::Builder::new().prefix("lockkeeper-zookeeper-").tempdir_in(below)?;
        let port = free_port()?;
        let config = dir.path().join("zoo.cfg");
        let mut lines = vec![
            format!("tickTime={}", settings.tick.as_millis()),
            format!("dataDir={}", dir.path().join("data").display()),
            format!("clientPort={port}"),
            "clientPortAddress=127.0.0.1".to_owned(),
            "admin.enableServer=false".to_owned(),
            "4lw.commands.whitelist=*".to_owned(),
            "maxClientCnxns=0".to_owned(),
            "initLimit=20".to_owned(),
            format!("syncLimit={}", settings.sync_limit),
        ];
        lines.extend_from_slice(members);
        lines.extend_from_slice(&settings.lines);
        fs::create_dir(dir.path().join("data"))?;
        fs::write(&config, lines.join("\n"))?;
        Ok(Self { settings, dir, port, config, child: None })
    }

    fn run(&mut self) -> io::Result<()> {
        let missing = NEEDED.iter().find(|jar| !Path::new(JARS).join(jar).exists());
        if let Some(jar) = missing {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{JARS}/{jar} is missing: install Debian's package libzookeeper-java"),
            ));
        }
        let classes: Vec<String> = NEEDED.iter().map(|jar| format!("{JARS}/{jar}")).collect();
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.dir.path().join("log"))?;
        let mut java = Command::new("java");
        java.args([
            "-Xms32m",
            "-Xmx192m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
        ]);
        java.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.skipACL=no"]);
        if !self.settings.durable {
            java.arg("-Dzookeeper.forceSync=no");
        }
        java.args(self.settings.properties.iter().map(|p| format!("-D{p}")));
        java.args(["-cp", &classes.join(":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain"]);
        java.envs(self.settings.environment.iter().map(|(name, value)| (name, value)));
        java.arg(&self.config).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if self.settings.ends_with_us {
            crate::servers::process::end_with_us(&mut java);
        }
        let why = "install Debian's package default-jre-headless";
        let failed =
            |e: io::Error| io::Error::new(e.kind(), format!("java cannot be started: {e}; {why}"));
        self.child = Some(java.spawn().map_err(failed)?);
        Ok(())
    }

    fn wait_until_serving(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        while !self.serves() {
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || begun.elapsed() > START_WITHIN {
                let log = self.log();
                let begins: String = log.chars().take(4_000).collect();
                return Err(io::Error::other(format!(
                    "the ZooKeeper server did not start:\n{begins}"
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn serves(&self) -> bool {
        self.ask_within("srvr", ANSWERS_WITHIN).is_ok_and(|text| text.contains("Mode:"))
    }

    /// What the server printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The port for clients, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The server's process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Asks one of the server's four-letter questions, such as `mntr`.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn ask(&self, question: &str) -> io::Result<String> {
        self.ask_within(question, Duration::from_secs(10))
    }

    fn ask_within(&self, question: &str, limit: Duration) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(
            &(Ipv4Addr::LOCALHOST, self.port).into(),
            Duration::from_secs(2),
        )?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(question.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// The numbers that `mntr` tells.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn numbers(&self) -> io::Result<BTreeMap<String, f64>> {
        let text = self.ask("mntr")?;
        let pairs = text.lines().filter_map(|line| line.split_once('\t'));
        Ok(pairs
            .filter_map(|(key, value)| Some((key.to_owned(), value.trim().parse().ok()?)))
            .collect())
    }

    /// The last transaction that the server knows: rises by one with every quorum write.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn last_zxid(&self) -> io::Result<u64> {
        let text = self.ask("srvr")?;
        let line = text.lines().find_map(|l| l.strip_prefix("Zxid: 0x")).unwrap_or_default();
        u64::from_str_radix(line.trim(), 16).map_err(io::Error::other)
    }

    /// `leader`, `follower`, `standalone`; nothing while it does not serve.
    pub fn mode(&self) -> Option<String> {
        let text = self.ask("srvr").ok()?;
        text.lines().find_map(|l| l.strip_prefix("Mode: ")).map(|m| m.trim().to_owned())
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        crate::servers::process::signal_server(self.child.as_ref(), signal)
    }

    /// Stops its process as it stands (SIGSTOP).
    ///
    /// # Errors
    /// When it does not run, or the signal cannot be sent.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets its process go on (SIGCONT).
    ///
    /// # Errors
    /// When it does not run, or the signal cannot be sent.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Kills its process (SIGKILL).
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// How it ended by itself; `None` while it runs, and where it was killed on purpose.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// Starts it again on the same port, with the data that it left.
    ///
    /// # Errors
    /// When it does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill()?;
        self.run()?;
        self.wait_until_serving()
    }

    /// Kills it, and starts it again on the same port without anything of what it stored.
    ///
    /// # Errors
    /// When it does not start.
    pub fn restart_empty(&mut self) -> io::Result<()> {
        self.kill()?;
        match fs::remove_dir_all(self.dir.path().join("data/version-2")) {
            // It was killed before it stored anything, or was made empty before.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.restart()
    }

    /// Starts it again, without waiting until it serves.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn restart_without_waiting(&mut self) -> io::Result<()> {
        self.kill()?;
        self.run()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.kill();
    }
}

/// Several servers that make one ensemble.
#[derive(Debug)]
pub struct Ensemble {
    /// The servers.
    pub servers: Vec<Server>,
}

impl Ensemble {
    /// Starts an ensemble and waits until every server serves.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start(count: usize, settings: &Settings) -> io::Result<Self> {
        let mut members = Vec::new();
        for id in 1..=count {
            members.push(format!("server.{id}=127.0.0.1:{}:{}", free_port()?, free_port()?));
        }
        let mut servers = Vec::new();
        for id in 1..=count {
            let mut server = Server::configured(settings.clone(), &members)?;
            fs::write(server.dir.path().join("data/myid"), id.to_string())?;
            server.run()?;
            servers.push(server);
        }
        for server in &mut servers {
            server.wait_until_serving()?;
        }
        Ok(Self { servers })
    }

    /// Starts an ensemble in which each server reaches another over proxies of its own, so that one
    /// can be cut off.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_apart(count: usize, settings: &Settings) -> io::Result<(Self, Links)> {
        let mut ports = Vec::new();
        for _ in 0..count {
            ports.push([free_port()?, free_port()?]);
        }
        let links = Links::between(&ports);
        let mut servers = Vec::new();
        for own in 0..count {
            let member = |(other, direct): (usize, &[u16; 2])| {
                let [quorum, election] = links.way(own, other).unwrap_or(*direct);
                format!("server.{}=127.0.0.1:{quorum}:{election}", other + 1)
            };
            let members: Vec<String> = ports.iter().enumerate().map(member).collect();
            let mut server = Server::configured(settings.clone(), &members)?;
            fs::write(server.dir.path().join("data/myid"), (own + 1).to_string())?;
            server.run()?;
            servers.push(server);
        }
        for server in &mut servers {
            server.wait_until_serving()?;
        }
        Ok((Self { servers }, links))
    }

    /// Which server leads.
    pub fn leader(&self) -> Option<usize> {
        self.servers.iter().position(|s| s.mode().as_deref() == Some("leader"))
    }

    /// All servers' addresses behind commas.
    pub fn addresses(&self) -> String {
        let all: Vec<String> = self.servers.iter().map(Server::address).collect();
        all.join(",")
    }
}

/// How the servers of an ensemble reach each other: for each of them the ways to every other, one
/// to follow it and one for elections.
pub struct Links(BTreeMap<(usize, usize), [Proxy; 2]>);

impl Links {
    fn between(ports: &[[u16; 2]]) -> Self {
        let pairs = || {
            (0..ports.len())
                .flat_map(|own| (0..ports.len()).map(move |other| (own, other)))
                .filter(|(own, other)| own != other)
        };
        let links = Self(
            pairs()
                .filter_map(|(own, other)| Some(((own, other), ports.get(other)?.map(Proxy::to))))
                .collect(),
        );
        for (own, other) in pairs() {
            // Who is called by a lower number calls back, at the address that the caller says it
            // has.
            if let (Some([_, calls]), Some([_, back]), Some([_, direct])) =
                (links.0.get(&(own, other)), links.way(other, own), ports.get(own))
            {
                calls.rename(&format!("127.0.0.1:{direct}"), &format!("127.0.0.1:{back}"));
            }
        }
        links
    }

    /// On which ports one server finds another.
    fn way(&self, own: usize, other: usize) -> Option<[u16; 2]> {
        self.0.get(&(own, other)).map(|link| link.each_ref().map(Proxy::port))
    }

    /// Cuts a server off from the others: no connection ends, and nothing arrives any more.
    pub fn cut_off(&self, server: usize) {
        self.cut(server, true, true);
    }

    /// Keeps what a server says to the others, what they say to it, or both, whoever of them leads,
    /// until [`Links::heal`].
    pub fn cut(&self, server: usize, says: bool, hears: bool) {
        for (link, calls) in self.of(server) {
            let (says_by, hears_by) =
                if calls { (Way::Up, Way::Down) } else { (Way::Down, Way::Up) };
            for (_, way) in [(says, says_by), (hears, hears_by)].into_iter().filter(|(cut, _)| *cut)
            {
                link.hold(way);
            }
        }
    }

    /// Whether anything is being kept from a server or of it.
    pub fn keep(&self, server: usize) -> bool {
        self.of(server).any(|(link, _)| link.held(Way::Up) + link.held(Way::Down) > 0)
    }

    /// Nobody is cut off any more; what was kept arrives now.
    pub fn heal(&self) {
        self.0.values().flatten().for_each(Proxy::heal);
    }

    /// The links of a server, and whether it is the one that calls there.
    fn of(&self, server: usize) -> impl Iterator<Item = (&Proxy, bool)> {
        let of = self.0.iter().filter(move |((own, other), _)| *own == server || *other == server);
        of.flat_map(move |((own, _), link)| link.iter().map(move |proxy| (proxy, *own == server)))
    }
}
