//! The members of a quorum: servers of our own that keep nothing in common. They wait for two
//! seconds where those of others wait for a minute: see `lockkeeper::redlock_laboratory`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper_testkit::redis::resp::Resp;
use lockkeeper_testkit::redis::server::RedisServer;

use crate::torture::arena::{has, take};

/// For how long they have been up when they count in the layouts of others.
const UP: Duration = Duration::from_secs(3);
/// How long it may take until they count.
const COUNT_WITHIN: Duration = Duration::from_secs(120);
/// What a member keeps about itself.
const KEY: &str = "lockkeeper:redlock";

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
        if !has(&options, "ttl") {
            options = with(&options, "ttl=2s");
        }
        let on_disk = ["--appendonly", "yes"];
        let start = |_| RedisServer::try_start_below(dir, &on_disk, environment);
        let servers: Result<Vec<_>, String> = (0..count).map(start).collect();
        let members = Self(servers.map_err(|text| (69, text))?);
        until_they_count(&members.0, &url(&members.addresses(), &options))?;
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
}

/// Waits until the members of a URL count: until a client has admitted them, which it does for as
/// long as it is open.
///
/// # Errors
/// They cannot be used, or do not count in time; the number is the exit code.
pub fn until_they_count(members: &[RedisServer], url: &str) -> Result<(), (u8, String)> {
    crate::engines::known();
    let begun = Instant::now();
    let (layout, _) = take(url.split('?').nth(1).unwrap_or_default(), "layout");
    let admits = layout.is_none_or(|layout| layout == "native");
    let opened = lockkeeper::blocking::Locks::open(url);
    let _open = opened.map_err(|error| (error.kind().exit_code(), error.to_string()))?;
    let counts = |server: &RedisServer| match admits {
        true => is_admitted(server),
        false => uptime(server).is_some_and(|up| up >= UP),
    };
    while !members.iter().all(counts) {
        if begun.elapsed() > COUNT_WITHIN {
            return Err((69, "the members of a quorum do not count".into()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether a member was admitted in this run of it.
fn is_admitted(server: &RedisServer) -> bool {
    let mut admin = Resp::to(server.port(), Duration::from_secs(5));
    let told = admin.ask(&["HGET", KEY, "run"]);
    let run = told.as_ref().ok().and_then(|told| told.text()).filter(|run| run.len() == 40);
    run.is_some_and(|run| info(server).is_some_and(|info| info.contains(run)))
}

fn info(server: &RedisServer) -> Option<String> {
    let mut admin = Resp::to(server.port(), Duration::from_secs(5));
    Some(admin.ask(&["INFO", "server"]).ok()?.text()?.to_owned())
}

fn with(options: &str, more: &str) -> String {
    if options.is_empty() { more.to_owned() } else { format!("{options}&{more}") }
}

/// The URL of members at these addresses.
pub(crate) fn url(at: &[SocketAddr], options: &str) -> String {
    let at: Vec<String> = at.iter().map(SocketAddr::to_string).collect();
    format!("redlock-lab://{}?{options}", at.join(","))
}

/// INFO counts in whole seconds.
fn uptime(server: &RedisServer) -> Option<Duration> {
    let info = info(server)?;
    let up = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"))?;
    up.trim().parse().ok().map(Duration::from_secs)
}
