//! A PostgreSQL server of a test's own: on a free port, in a directory of its own, gone with the
//! value. It runs as an ordinary user: PostgreSQL refuses to run as root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, chown};
use tempfile::TempDir;

use crate::servers::port::free_port;
use crate::servers::process::{end_with_us, signal_server};

/// Where Debian keeps the programs of version 15.
const BIN: &str = "/usr/lib/postgresql/15/bin";
/// Whom a server belongs to that root starts.
const NOBODY: u32 = 65_534;
/// How long a server may take to answer its first question.
const START_WITHIN: Duration = Duration::from_secs(120);
/// The user that may do everything.
pub const USER: &str = "keeper";
/// What a test that fails wants to know of it.
const AT_A_FAILURE: [&str; 3] = [
    "SELECT pid, state, wait_event, now() - state_change, left(query, 80) FROM pg_stat_activity \
     WHERE backend_type = 'client backend'",
    "SELECT * FROM lockkeeper_locks LIMIT 20",
    "SELECT * FROM lockkeeper_line LIMIT 20",
];
/// How many lines of a log are told then.
const LINES: usize = 30;

/// A running server.
pub struct PostgresServer {
    child: Option<Child>,
    dir: TempDir,
    /// The next server is made of it as well.
    _template: Arc<TempDir>,
    port: u16,
    settings: Vec<String>,
    /// Variables that it is started with.
    environment: Vec<(&'static str, PathBuf)>,
    ends_with_us: bool,
}

/// A program of the package.
pub fn packaged(name: &str) -> PathBuf {
    Path::new(BIN).join(name)
}

/// A program of the package, as the user that the server belongs to.
fn program(name: &str) -> Command {
    outside(if name == "cp" { Path::new(name).to_owned() } else { packaged(name) })
}

/// Any program, as the user that the server belongs to.
pub fn outside(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    if Uid::effective().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    // Of the package's programs only those that tests name are to see their settings.
    command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
    command.stdin(Stdio::null());
    command
}

fn missing(error: &std::io::Error) -> String {
    format!("PostgreSQL cannot be started: {error}; install Debian's package postgresql-15")
}

/// A new server's data: it is copied much faster than it is made. It goes with the last server that
/// was made of it.
fn template() -> Result<Arc<TempDir>, String> {
    static MADE: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(dir) = made.upgrade() {
        return Ok(dir);
    }
    let dir = Arc::new(directory(&std::env::temp_dir())?);
    let output = program("initdb")
        .args(["--no-sync", "--no-locale", "--encoding=UTF8", "--auth=trust"])
        .args(["--wal-segsize=1", "--username", USER, "--pgdata"])
        .arg(dir.path().join("data"))
        .output()
        .map_err(|error| missing(&error))?;
    if !output.status.success() {
        return Err(failed("initdb", &output));
    }
    *made = Arc::downgrade(&dir);
    Ok(dir)
}

/// A directory that belongs to whom the server does.
pub(super) fn directory(parent: &Path) -> Result<TempDir, String> {
    let no_room = |error: std::io::Error| format!("no directory for PostgreSQL: {error}");
    let dir = tempfile::Builder::new().prefix("lockkeeper-postgres-").tempdir_in(parent);
    let dir = dir.map_err(no_room)?;
    give_to_server(dir.path()).map_err(no_room)?;
    Ok(dir)
}

/// Makes a file the server's own. Where root starts the server it runs as another user, and it
/// takes no key that it does not own.
///
/// # Errors
/// What the system says.
pub fn give_to_server(path: &Path) -> std::io::Result<()> {
    if Uid::effective().is_root() {
        chown(path, Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY)))?;
    }
    Ok(())
}

/// What psql says to whoever listens there.
pub(super) fn psql(host: &str, port: u16, sql: &str) -> Result<String, String> {
    let output = program("psql")
        .env("PGCONNECT_TIMEOUT", "20")
        .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", USER, "-d", "postgres"])
        .args(["-h", host, "-p", &port.to_string(), "-c", sql])
        .output()
        .map_err(|error| missing(&error))?;
    if !output.status.success() {
        return Err(failed("psql", &output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What a program said that failed.
fn failed(what: &str, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    format!("{what} failed: {}", said.trim())
}

impl PostgresServer {
    /// Starts one whose commits reach the disk.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with settings: `["fsync=off"]`.
    pub fn start_with(settings: &[&str]) -> Self {
        let mut server = Self::new(&std::env::temp_dir(), settings).expect("a directory");
        server.run(true).expect("a server of this test's own");
        server
    }

    /// The same with its directory inside this one, for a program that says to its user why it
    /// cannot go on; the server ends with the thread that calls this.
    ///
    /// # Errors
    /// When the package is missing, or the server does not start.
    pub fn try_start_below(parent: &Path, settings: &[&str]) -> Result<Self, String> {
        Self::try_start_with(parent, settings, &[])
    }

    /// The same, started with these variables.
    pub fn try_start_with(
        parent: &Path,
        settings: &[&str],
        environment: &[(&'static str, PathBuf)],
    ) -> Result<Self, String> {
        let mut server = Self::new(parent, settings)?;
        server.environment = environment.to_vec();
        server.ends_with_us = true;
        server.run(true)?;
        Ok(server)
    }

    /// One that follows this one, and that no commit waits for. It becomes a server of its own by
    /// `pg_promote()`.
    pub fn standby(&self) -> Self {
        self.try_standby(&std::env::temp_dir(), None).expect("a server of this test's own")
    }

    /// The same with its directory inside this one, at this port or a free one.
    ///
    /// # Errors
    /// When the data cannot be copied, or it does not start.
    pub fn try_standby(&self, parent: &Path, port: Option<u16>) -> Result<Self, String> {
        let dir = directory(parent)?;
        let output = program("pg_basebackup")
            .args([
                "--wal-method=stream",
                "--checkpoint=fast",
                "--no-sync",
                "--write-recovery-conf",
            ])
            .args(["-U", USER, "-p", &self.port.to_string(), "-h"])
            .arg(self.dir.path())
            .arg("-D")
            .arg(dir.path().join("data"))
            .output()
            .map_err(|error| missing(&error))?;
        if !output.status.success() {
            return Err(failed("pg_basebackup", &output));
        }
        let mut standby = Self {
            child: None,
            dir,
            _template: Arc::clone(&self._template),
            port: port.map_or_else(free_port, Ok).map_err(|error| error.to_string())?,
            settings: self.settings.clone(),
            environment: self.environment.clone(),
            ends_with_us: self.ends_with_us,
        };
        standby.run(port.is_none())?;
        Ok(standby)
    }

    fn new(parent: &Path, settings: &[&str]) -> Result<Self, String> {
        let dir = directory(parent)?;
        if Uid::effective().is_root() {
            // Whom the server belongs to has to come through, and sees nothing else.
            let through = fs::Permissions::from_mode(0o711);
            if parent != std::env::temp_dir() {
                fs::set_permissions(parent, through).map_err(|error| error.to_string())?;
            }
        }
        let template = template()?;
        let output = program("cp")
            .args(["-a", "--reflink=auto"])
            .arg(template.path().join("data"))
            .arg(dir.path().join("data"))
            .output()
            .map_err(|error| missing(&error))?;
        if !output.status.success() {
            return Err(failed("cp", &output));
        }
        Ok(Self {
            child: None,
            dir,
            _template: template,
            port: free_port().map_err(|error| error.to_string())?,
            settings: settings.iter().map(|setting| (*setting).to_owned()).collect(),
            environment: Vec::new(),
            ends_with_us: false,
        })
    }

    fn run(&mut self, anywhere: bool) -> Result<(), String> {
        // A free port can be taken between the look and the start; the next one is tried then. A
        // restart is on its old one.
        for _ in 0..5 {
            let log = fs::File::create(self.dir.path().join("log"))
                .map_err(|error| format!("no log for PostgreSQL: {error}"))?;
            let mut command = program("postgres");
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
            if self.ends_with_us {
                end_with_us(&mut command);
            }
            command.arg("-D").arg(self.data()).args(["-h", "127.0.0.1", "-p"]);
            command.arg(self.port.to_string()).arg("-k").arg(self.dir.path());
            for setting in &self.settings {
                command.args(["-c", setting]);
            }
            let child = command.stdout(Stdio::null()).stderr(log).spawn();
            self.child = Some(child.map_err(|error| missing(&error))?);
            if self.answers() {
                return Ok(());
            }
            self.kill();
            if anywhere {
                self.port = free_port().map_err(|error| error.to_string())?;
            }
        }
        Err(format!("PostgreSQL does not start: {}", self.log()))
    }

    fn answers(&mut self) -> bool {
        let until = Instant::now() + START_WITHIN;
        while Instant::now() < until {
            if self.child.as_mut().is_some_and(|child| child.try_wait().ok().flatten().is_some()) {
                return false;
            }
            // By its socket, which is in its own directory: at its port somebody else may have been
            // faster.
            if self.ask("SELECT 1").is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// What it wrote about itself.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The directory of its socket.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How a client reaches it.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port)
    }

    /// Runs statements, and answers with rows of fields, `|` between them.
    ///
    /// # Errors
    /// What the server says.
    pub fn ask(&self, sql: &str) -> Result<String, String> {
        psql(&self.dir.path().to_string_lossy(), self.port, sql)
    }

    /// Runs statements that cannot fail.
    pub fn sql(&self, sql: &str) -> String {
        self.ask(sql).expect("the server does what it is told")
    }

    /// The server's own processes, its own first.
    fn processes(&self) -> Vec<i32> {
        let Some(child) = &self.child else { return Vec::new() };
        let own = child.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        let children = children.unwrap_or_default();
        let others = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        i32::try_from(own).into_iter().chain(others).collect()
    }

    fn signal(&self, signal: Signal) {
        for pid in self.processes() {
            // One that ended by itself meanwhile hears nothing.
            _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
        }
    }

    /// Stops it, so that nothing is answered.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// From now on every write of a file fails, as on a full disk; or none does any more.
    ///
    /// # Errors
    /// When it does not run, or that is not allowed.
    pub fn refuse_writes(&self, refuse: bool) -> Result<(), String> {
        // The soft limit alone: it may be raised again by whoever lowered it.
        let limit = if refuse { "0:" } else { "unlimited:" };
        for pid in self.processes() {
            // Whose processes they are may limit them.
            let set = outside("prlimit")
                .args(["--pid", &pid.to_string(), &format!("--fsize={limit}")])
                .output()
                .map_err(|error| format!("no prlimit (package util-linux): {error}"))?;
            // One of its children may have ended meanwhile.
            let there = Path::new(&format!("/proc/{pid}")).exists();
            if !set.status.success() && there {
                return Err(failed("prlimit", &set));
            }
        }
        Ok(())
    }

    /// The first of its own processes, which stays unless all had to begin anew.
    pub fn first_child(&self) -> Option<i32> {
        self.processes().get(1).copied()
    }

    /// Ends it as a crash does: what was committed is on disk.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // At once: everybody's answers are lost, and the next start recovers.
            _ = signal_server(Some(&child), Signal::SIGQUIT);
            // One that is stopped hears it when it goes on.
            _ = signal_server(Some(&child), Signal::SIGCONT);
            _ = child.wait();
        }
    }

    /// Starts it again, on the same port and with the same data.
    pub fn start_again(&mut self) {
        self.try_start_again().expect("a server that ran before");
    }

    /// The same.
    ///
    /// # Errors
    /// When it does not start.
    pub fn try_start_again(&mut self) -> Result<(), String> {
        self.run(false)
    }

    /// Whether it was started, and nobody ended it.
    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// How it ended, if it did and nobody asked it to.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// Ends it and starts it again.
    pub fn restart(&mut self) {
        self.kill();
        self.start_again();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.go_on();
        if std::thread::panicking() {
            said_at_the_end("PostgreSQL", &self.log());
            for asked in AT_A_FAILURE {
                let asked = format!("SET statement_timeout = '5s'; {asked}");
                eprintln!("{}", self.ask(&asked).unwrap_or_else(|error| error));
            }
        }
        self.kill();
    }
}

/// What a server's log ends with, for whoever reads why a test failed.
pub(super) fn said_at_the_end(who: &str, log: &str) {
    let lines: Vec<&str> = log.lines().collect();
    let last = lines.len().saturating_sub(LINES);
    eprintln!("{who} said last:\n{}", lines.get(last..).unwrap_or_default().join("\n"));
}
