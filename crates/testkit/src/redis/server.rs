//! A Redis server of a test's own: on a free port, in a directory of its own, gone with the value.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::resp::Resp;
use crate::servers::port;
use crate::servers::process::{end_with_us, signal_server};

/// How long a server may take to answer its first PING.
const START_WITHIN: Duration = Duration::from_secs(120);

/// A running server.
pub struct RedisServer {
    child: Option<Child>,
    dir: TempDir,
    port: u16,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    ends_with_us: bool,
}

impl RedisServer {
    /// Starts one that keeps nothing on disk.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with more arguments, as on its command line: `["--maxmemory", "2mb"]`.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_in(arguments, &[])
    }

    /// One that speaks TLS, too, with what [`certificates::make`] made in this directory; answers
    /// the port as well. `more` are further arguments.
    ///
    /// [`certificates::make`]: crate::servers::certificates::make
    pub fn start_with_tls(certificates: &Path, more: &[&str]) -> (Self, u16) {
        let file = |name: &str| certificates.join(name).to_string_lossy().into_owned();
        let port = crate::servers::free_port();
        let (at, certificate, key, ca) =
            (port.to_string(), file("server.pem"), file("server.key"), file("ca.pem"));
        let tls = [
            ["--tls-port", &at],
            ["--tls-cert-file", &certificate],
            ["--tls-key-file", &key],
            ["--tls-ca-cert-file", &ca],
        ];
        (Self::start_with(&[tls.as_flattened(), more].concat()), port)
    }

    /// The same with variables in its environment, for a preloaded clock.
    pub fn start_in(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut server = Self::new(arguments, environment).expect("a directory and a port");
        server.run(true).expect("a server of this test's own");
        server
    }

    /// The same, for a program that says to its user why it cannot go on; the server ends with the
    /// thread that calls this.
    ///
    /// # Errors
    /// When redis-server is not installed, or does not start.
    pub fn try_start_in(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Self, String> {
        Self::try_start_below(&std::env::temp_dir(), arguments, environment)
    }

    /// The same, with its own directory inside this one.
    ///
    /// # Errors
    /// As [`RedisServer::try_start_in`].
    pub fn try_start_below(
        parent: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self, String> {
        let mut server = Self::new_below(parent, arguments, environment)?;
        server.ends_with_us = true;
        server.run(true)?;
        Ok(server)
    }

    fn new(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Self, String> {
        Self::new_below(&std::env::temp_dir(), arguments, environment)
    }

    fn new_below(
        parent: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self, String> {
        let ours = fs::Permissions::from_mode(0o700);
        let mut dir = tempfile::Builder::new();
        let dir = dir.prefix("lockkeeper-redis-").permissions(ours).tempdir_in(parent);
        Ok(Self {
            child: None,
            dir: dir.map_err(|e| format!("no directory for redis-server: {e}"))?,
            port: a_port()?,
            arguments: arguments.iter().map(|a| (*a).to_owned()).collect(),
            environment: environment
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ends_with_us: false,
        })
    }

    /// Starts a Sentinel that watches nothing.
    pub fn start_sentinel() -> Self {
        Self::start_sentinel_with("")
    }

    /// The same with more lines in its configuration.
    pub fn start_sentinel_with(lines: &str) -> Self {
        let mut server = Self::new(&[], &[]).expect("a directory and a port");
        server.run_sentinel(lines).expect("a Sentinel of this test's own");
        server
    }

    /// The same for a program that says to its user why it cannot go on, with its own directory
    /// inside this one; it ends with the thread that calls this.
    ///
    /// # Errors
    /// As [`RedisServer::try_start_in`].
    pub fn try_start_sentinel_below(parent: &Path, lines: &str) -> Result<Self, String> {
        let mut server = Self::new_below(parent, &[], &[])?;
        server.ends_with_us = true;
        server.run_sentinel(lines)?;
        Ok(server)
    }

    fn run_sentinel(&mut self, lines: &str) -> Result<(), String> {
        let config = self.dir().join("sentinel.conf");
        for _ in 0..5 {
            let (port, dir, socket) = (self.port, self.dir().display(), self.socket());
            let text = format!(
                "port {port}\nbind 127.0.0.1\nunixsocket {}\ndir {dir}\nlogfile {dir}/log\n{lines}",
                socket.display()
            );
            fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
            let mut command = Command::new("redis-server");
            command.arg(&config).arg("--sentinel");
            if self.spawn(command)? {
                return Ok(());
            }
            self.kill();
            self.port = a_port()?;
        }
        Err(format!("the Sentinel does not start: {}", self.last_words()))
    }

    /// Starts it, and answers whether it answers.
    fn spawn(&mut self, mut command: Command) -> Result<bool, String> {
        if self.ends_with_us {
            end_with_us(&mut command);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let failed = |e| {
            format!("redis-server cannot be started: {e}; install Debian's package redis-server")
        };
        self.child = Some(command.spawn().map_err(failed)?);
        Ok(self.answers())
    }

    fn run(&mut self, anywhere: bool) -> Result<(), String> {
        // A free port can be taken between the look and the start; the next one is tried then. A
        // restart is on its old one.
        for _ in 0..5 {
            let mut command = Command::new("redis-server");
            command
                .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
                // DEBUG DIGEST tells whether anything at all was written.
                .args(["--enable-debug-command", "local"])
                .args(["--unixsocket", &self.socket().to_string_lossy()])
                .args(["--dir", &self.dir().to_string_lossy()])
                .args(["--logfile", &self.dir().join("log").to_string_lossy()])
                .args(&self.arguments)
                .envs(self.environment.iter().map(|(k, v)| (k.as_str(), v.as_str())));
            if self.spawn(command)? {
                return Ok(());
            }
            self.kill();
            if anywhere {
                self.port = a_port()?;
            }
        }
        Err(format!("redis-server does not start: {}", self.last_words()))
    }

    fn answers(&mut self) -> bool {
        let until = Instant::now() + START_WITHIN;
        while Instant::now() < until {
            if self.child.as_mut().is_some_and(|c| c.try_wait().ok().flatten().is_some()) {
                return false;
            }
            // By its socket, which is in its own directory: at its port somebody else may have been
            // faster.
            if let Ok(mut stream) = UnixStream::connect(self.socket()) {
                let mut answer = [0u8; 16];
                if stream.write_all(b"PING\r\n").is_ok()
                    && stream.read(&mut answer).is_ok_and(|n| n > 0)
                    && !answer.starts_with(b"-LOADING")
                {
                    return true;
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Its TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir().join("socket")
    }

    /// Its own directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Kills it at once and waits until it is gone; its port stays known.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may be gone already; then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again on the same port, with what it kept on disk.
    pub fn restart(&mut self) {
        self.try_restart().expect("it started before");
    }

    /// The same, for a program that says to its user why it cannot go on.
    ///
    /// # Errors
    /// When it does not start.
    pub fn try_restart(&mut self) -> Result<(), String> {
        self.kill();
        self.run(false)
    }

    /// Sets an option of its command line, `--replicaof`, from its next start on.
    pub fn set(&mut self, option: &str, values: &[&str]) {
        let mut is_old = false;
        self.arguments.retain(|word| {
            if word.starts_with("--") {
                is_old = word == option;
            }
            !is_old
        });
        self.arguments.extend([&[option], values].concat().iter().map(|word| (*word).to_owned()));
    }

    /// Stops it from running without ending it.
    pub fn stop(&self) {
        self.try_stop().expect("it runs");
    }

    /// Lets a stopped one run on.
    pub fn go_on(&self) {
        self.try_go_on().expect("it runs");
    }

    /// [`RedisServer::stop`] for a program that says to its user why it cannot go on.
    ///
    /// # Errors
    /// When it does not run, so that there is nobody to stop.
    pub fn try_stop(&self) -> Result<(), String> {
        self.signal(Signal::SIGSTOP)
    }

    /// [`RedisServer::go_on`] for a program that says to its user why it cannot go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn try_go_on(&self) -> Result<(), String> {
        self.signal(Signal::SIGCONT)
    }

    /// [`RedisServer::kill`] for a program to which it matters whether there was somebody to kill.
    ///
    /// # Errors
    /// When it does not run.
    pub fn try_kill(&mut self) -> Result<(), String> {
        self.signal(Signal::SIGKILL)?;
        self.kill();
        Ok(())
    }

    /// How it ended by itself; `None` while it runs, and where it was killed on purpose.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// What it said last in its log.
    pub fn last_words(&self) -> String {
        let log = fs::read_to_string(self.dir().join("log")).unwrap_or_default();
        log.lines().last().unwrap_or("it says nothing").to_owned()
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        signal_server(self.child.as_ref(), signal).map_err(|e| format!("redis-server: {e}"))
    }

    /// Runs one command and gives its answer, aggregates flattened into lines.
    pub fn command(&self, words: &[&str]) -> Vec<String> {
        self.client().command(words)
    }

    /// A plain connection to it.
    pub fn client(&self) -> RedisClient {
        RedisClient::connect(self.port)
    }

    /// How often each command ran since the last CONFIG RESETSTAT, by name.
    pub fn command_counts(&self) -> std::collections::BTreeMap<String, u64> {
        let info = self.command(&["INFO", "commandstats"]).join("\n");
        info.lines()
            .filter_map(|line| {
                let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
            })
            .collect()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // Its directory goes after it.
        self.kill();
    }
}

/// How long a test waits for an answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);

/// A connection of a test's own: it panics where the server does not answer.
pub struct RedisClient(Resp);

impl RedisClient {
    /// Connects to a port on 127.0.0.1.
    pub fn connect(port: u16) -> Self {
        let mut connection = Resp::to(port, ANSWERS_WITHIN);
        connection.open().expect("the server listens");
        Self(connection)
    }

    /// Runs one command; an error comes as its text with a minus before it, nil as `(nil)`.
    pub fn command(&mut self, words: &[&str]) -> Vec<String> {
        self.send(words);
        self.read()
    }

    /// Sends a command without waiting for its answer.
    pub fn send(&mut self, words: &[&str]) {
        self.0.send(words).expect("the server takes the command");
    }

    /// Reads one answer.
    pub fn read(&mut self) -> Vec<String> {
        self.0.read().expect("the server answers").lines()
    }
}

fn a_port() -> Result<u16, String> {
    port::free_port().map_err(|e| format!("no port for redis-server: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::until::until;

    fn state(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    #[test]
    fn a_signal_hits_the_server_and_nobody_when_it_does_not_run() {
        let mut server = RedisServer::start();
        let pid = server.pid();
        server.try_stop().unwrap();
        until("it is stopped", || state(pid) == 'T');
        server.try_go_on().unwrap();
        until("it runs", || state(pid) != 'T');
        server.try_kill().unwrap();
        // Its process number is nobody's now; 0 would be everybody of our own process group, and
        // this test with it.
        assert_eq!(server.pid(), 0);
        for done in [server.try_stop(), server.try_go_on(), server.try_kill()] {
            assert!(done.unwrap_err().contains("does not run"));
        }
    }

    #[test]
    fn a_server_that_ended_by_itself_is_nobody_to_signal() {
        let server = RedisServer::start();
        server.client().send(&["SHUTDOWN", "NOSAVE"]);
        // A process has not ended as long as any of its threads has not, whatever is said of the
        // first.
        let threads = || std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().count();
        until("it has ended", || state(server.pid()) == 'Z' && threads() == 1);
        assert!(server.try_stop().unwrap_err().contains("does not run"));
    }

    #[test]
    fn a_restart_that_fails_leaves_nobody_to_signal() {
        let mut server = RedisServer::start();
        server.kill();
        server.arguments = vec!["--no-such-option".to_owned()];
        assert!(server.try_restart().is_err());
        assert!(server.try_stop().is_err());
    }

    #[test]
    fn a_server_works_in_a_directory_of_its_own_that_nobody_else_can_enter_or_foresee() {
        // Where somebody else may have been first.
        let foreseen =
            std::env::temp_dir().join(format!("lockkeeper-redis-{}-0", std::process::id()));
        let server = RedisServer::start();
        assert_ne!(server.dir(), foreseen);
        assert_eq!(std::fs::metadata(server.dir()).unwrap().permissions().mode() & 0o077, 0);
        let dir = server.dir().to_owned();
        drop(server);
        assert!(!dir.exists());
    }
}
