//! A primary, and where it is wanted a standby that no commit waits for and that takes its place.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::torture::arena::Failed;
use lockkeeper_testkit::postgres::server::PostgresServer;

/// For how long the primary grants what its standby does not hear of, before it is killed.
const AHEAD: Duration = Duration::from_millis(300);
/// How long a standby may take to follow, or to hear that it should not.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(20);

/// See the module.
pub(super) struct Pair {
    pub(super) primary: PostgresServer,
    standby: Option<PostgresServer>,
    /// Where the last primary listened, which is no standby yet.
    old: Option<u16>,
    /// For their directories.
    dir: PathBuf,
}

impl Pair {
    /// # Errors
    /// When the standby does not start.
    pub(super) fn of(primary: PostgresServer, standby: bool, dir: &Path) -> Result<Self, String> {
        let standby = standby.then(|| primary.try_standby(dir, None)).transpose()?;
        let pair = Self { primary, standby, old: None, dir: dir.to_owned() };
        if pair.standby.is_some() {
            pair.follows(true)?;
        }
        Ok(pair)
    }

    /// Where they listen; never changes.
    pub(super) fn ports(&self) -> Vec<u16> {
        let standby = self.standby.as_ref().map(PostgresServer::port);
        [Some(self.primary.port()), standby].into_iter().flatten().collect()
    }

    pub(super) fn has_standby(&self) -> bool {
        self.standby.is_some() || self.old.is_some()
    }

    /// Waits until the primary sends to its standby, or to nobody.
    fn follows(&self, wanted: bool) -> Result<(), String> {
        let until = Instant::now() + FOLLOWS_WITHIN;
        let sends = "SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming'";
        while self.primary.ask(sends)? != if wanted { "t" } else { "f" } {
            if Instant::now() > until {
                let word = if wanted { "follows nobody" } else { "does not stop following" };
                return Err(format!("the standby {word}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The primary ends, and its standby takes its place; `ahead`: without what the primary did
    /// last.
    pub(super) fn fail_over(&mut self, ahead: bool) -> Result<(), Failed> {
        let Some(standby) = &self.standby else {
            return Err("the last primary is no standby yet".into());
        };
        self.follows(true)?;
        if ahead {
            standby.ask("ALTER SYSTEM SET primary_conninfo = ''").map_err(Failed::Half)?;
            standby.ask("SELECT pg_reload_conf()").map_err(Failed::Half)?;
            self.follows(false).map_err(Failed::Half)?;
            std::thread::sleep(AHEAD);
        }
        self.primary.kill();
        self.take_its_place().map_err(Failed::Half)
    }

    fn take_its_place(&mut self) -> Result<(), String> {
        let Some(standby) = self.standby.take() else { return Ok(()) };
        let promoted = standby.ask("SELECT pg_promote()");
        if promoted.as_deref() != Ok("t") {
            self.standby = Some(standby);
            return Err(format!("the standby was not promoted: {promoted:?}"));
        }
        self.old = Some(self.primary.port());
        self.primary = standby;
        Ok(())
    }

    /// The last primary becomes a standby of the new one; or the standby follows again, where the
    /// failover came half way only.
    pub(super) fn come_back(&mut self) -> Result<(), String> {
        if self.old.is_none() && !self.primary.is_started() {
            self.take_its_place()?;
        }
        let stays = self.standby.take().map(|standby| standby.port());
        if let Some(port) = self.old.or(stays) {
            self.old = Some(port);
            self.standby = Some(self.primary.try_standby(&self.dir, Some(port))?);
            self.old = None;
        }
        self.follows(true)
    }

    /// Which of them has ended, and with what.
    pub(super) fn ended(&mut self) -> Option<String> {
        let servers = std::iter::once(&mut self.primary).chain(self.standby.as_mut());
        for server in servers {
            if let Some(status) = server.ended() {
                let log = server.log();
                let words = log.lines().last().unwrap_or_default();
                let text =
                    format!("the server ended by itself with {status}; it said last: {words}");
                return Some(text);
            }
        }
        None
    }
}
