//! The members of a quorum: servers of our own that keep nothing in common.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::engines::redis::resp::Resp;
use crate::engines::redis::server::RedisServer;
use crate::torture::arena::{has, take};

/// How long a member waits after its start, unless the options say it.
const MAX_TTL: &str = "max_ttl=2s";
/// How long it may take until it has been up for that.
const COUNT_WITHIN: Duration = Duration::from_secs(90);

/// Several servers that keep on disk what they are told, as far as a kill goes.
pub(crate) struct Members(pub(crate) Vec<RedisServer>);

impl Members {
    /// Starts those that `redlock:auto?OPTIONS` names, five unless it says `members=`, and waits
    /// until they count. Gives the other options as well; the number is the exit code.
    pub(crate) fn start(options: &str, dir: &Path) -> Result<(Self, String), (u8, String)> {
        Self::start_in(options, dir, &[])
    }

    /// The same with variables in their environment, for a preloaded clock.
    pub(crate) fn start_in(
        options: &str,
        dir: &Path,
        environment: &[(&str, &str)],
    ) -> Result<(Self, String), (u8, String)> {
        let (count, mut options) = take(options, "members");
        let count = match count {
            None => 5,
            Some(n @ ("3" | "5" | "7" | "9")) => n.parse().unwrap_or(5),
            Some(other) => {
                return Err((64, format!("redlock:auto: members={other}: give 3, 5, 7 or 9")));
            }
        };
        if !has(&options, "max_ttl") {
            options = with(&options, MAX_TTL);
        }
        if !has(&options, "ttl") {
            options = with(&options, "ttl=2s");
        }
        let (max_ttl, _) = take(&options, "max_ttl");
        let max_ttl = max_ttl.and_then(lockkeeper::duration::parse);
        let on_disk = ["--appendonly", "yes"];
        let start = |_| RedisServer::try_start_below(dir, &on_disk, environment);
        let servers: Result<Vec<_>, String> = (0..count).map(start).collect();
        let members = Self(servers.map_err(|text| (69, text))?);
        members.until_they_count(max_ttl.unwrap_or_default())?;
        Ok((members, options))
    }

    /// Where they are.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|server| (Ipv4Addr::LOCALHOST, server.port()).into()).collect()
    }

    /// Kills one, and starts it again without its data.
    pub(crate) fn forget(&mut self, at: usize) -> Result<(), String> {
        let member = self.0.get_mut(at).ok_or("there is no such member")?;
        member.try_kill()?;
        let data = member.dir().join("appendonlydir");
        if data.exists() {
            std::fs::remove_dir_all(&data).map_err(|e| format!("its data stays: {e}"))?;
        }
        member.try_restart()
    }

    /// INFO counts in whole seconds.
    fn until_they_count(&self, max_ttl: Duration) -> Result<(), (u8, String)> {
        let begun = Instant::now();
        let wanted = max_ttl + Duration::from_secs(1);
        while !self.0.iter().all(|server| uptime(server).is_some_and(|up| up >= wanted)) {
            if begun.elapsed() > wanted.max(COUNT_WITHIN) {
                return Err((69, "the members of redlock:auto do not say that they run".into()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn with(options: &str, more: &str) -> String {
    if options.is_empty() { more.to_owned() } else { format!("{options}&{more}") }
}

/// The URL of members at these addresses.
pub(crate) fn url(at: &[SocketAddr], options: &str) -> String {
    let at: Vec<String> = at.iter().map(SocketAddr::to_string).collect();
    format!("redlock://{}?{options}", at.join(","))
}

fn uptime(server: &RedisServer) -> Option<Duration> {
    let mut admin = Resp::to(server.port(), Duration::from_secs(5));
    let info = admin.ask(&["INFO", "server"]).ok()?;
    let up = info.text()?.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"))?;
    up.trim().parse().ok().map(Duration::from_secs)
}
