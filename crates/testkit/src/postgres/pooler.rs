//! A pgbouncer of a test's own before a server of its own.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::server::{
    PostgresServer, USER, directory, give_to_server, outside, psql, said_at_the_end,
};
use crate::servers::port::free_port;

/// How long it may take to listen.
const START_WITHIN: Duration = Duration::from_secs(120);

/// How the server's connections are given to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each client has one of its own.
    Session,
    /// Each transaction has any of these.
    Transaction,
}

/// A running pooler; it is gone with the value.
pub struct Pooler {
    child: Child,
    port: u16,
    dir: TempDir,
}

impl Pooler {
    /// Starts one before a server, with so many connections to it.
    pub fn before(server: &PostgresServer, mode: Mode, connections: usize) -> Self {
        let dir = directory(&std::env::temp_dir()).expect("a directory");
        for _ in 0..5 {
            let port = free_port().expect("a free port");
            let mut child = start(dir.path(), server, mode, connections, port);
            if listens(&mut child, port) {
                return Self { child, port, dir };
            }
            // Somebody else was faster at that port.
            _ = child.kill();
            _ = child.wait();
        }
        panic!("pgbouncer does not start: {}", log(dir.path()))
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How a client reaches the server through it.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port)
    }

    /// Runs a statement that cannot fail, through it.
    pub fn ask(&self, sql: &str) -> String {
        psql("127.0.0.1", self.port, sql).expect("it is passed on")
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let ended = self.child.try_wait();
            said_at_the_end(&format!("pgbouncer ({ended:?})"), &log(self.dir.path()));
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap_or_default()
}

fn start(dir: &Path, server: &PostgresServer, mode: Mode, connections: usize, port: u16) -> Child {
    let mode = match mode {
        Mode::Session => "session",
        Mode::Transaction => "transaction",
    };
    let users = dir.join("users");
    fs::write(&users, format!("\"{USER}\" \"\"\n")).expect("a file");
    let settings = format!(
        "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
         pool_mode = {mode}\ndefault_pool_size = {connections}\nmax_client_conn = 400\n\
         server_login_retry = 1\n",
        server.dir().display(),
        server.port(),
        users.display(),
    );
    let file = dir.join("settings");
    fs::write(&file, settings).expect("a file");
    for file in [&users, &file] {
        give_to_server(file).expect("it is given to whom the server belongs to");
    }
    let log = fs::File::create(dir.join("log")).expect("a file");
    let mut command = outside("/usr/sbin/pgbouncer");
    command.arg(&file).stdout(Stdio::null()).stderr(log);
    command.spawn().expect("pgbouncer is there: install Debian's package pgbouncer")
}

fn listens(child: &mut Child, port: u16) -> bool {
    let until = Instant::now() + START_WITHIN;
    while Instant::now() < until {
        if child.try_wait().ok().flatten().is_some() {
            return false;
        }
        // By a question: whoever looks for a free port listens there for a moment, too.
        if psql("127.0.0.1", port, "SELECT 1").is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}
