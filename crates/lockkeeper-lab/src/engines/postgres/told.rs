//! What a server's clock shows, by a `psql` that stays: one that has to start and connect takes so
//! long that a step of two seconds is not seen on a busy machine.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Stdio};

use crate::torture::arena::clock::Tells;
use lockkeeper_testkit::postgres::server::{PostgresServer, USER, outside, packaged};

const ASKS: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;";

/// See the module.
pub(super) struct Told {
    psql: Child,
    says: BufReader<ChildStdout>,
}

impl Told {
    /// One that has been answered already.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(super) fn by(server: &PostgresServer) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("no psql: {error}");
        let mut psql = outside(packaged("psql"))
            .env("PGCONNECT_TIMEOUT", "20")
            .args(["-X", "-q", "-A", "-t", "-U", USER, "-d", "postgres", "-h"])
            .arg(server.dir())
            .args(["-p", &server.port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let says = BufReader::new(psql.stdout.take().ok_or("psql has no output")?);
        let mut told = Self { psql, says };
        told.time()?;
        Ok(told)
    }
}

impl Tells for Told {
    fn time(&mut self) -> Result<i64, String> {
        let silent = |error: std::io::Error| format!("the server does not say its time: {error}");
        let asks = self.psql.stdin.as_mut().ok_or("psql has no input")?;
        writeln!(asks, "{ASKS}").map_err(silent)?;
        let mut line = String::new();
        self.says.read_line(&mut line).map_err(silent)?;
        let us: i64 =
            line.trim().parse().map_err(|_| format!("the server says {line:?} for its time"))?;
        Ok(us.saturating_mul(1_000))
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // One that has ended hears nothing.
        _ = self.psql.kill();
        _ = self.psql.wait();
    }
}
