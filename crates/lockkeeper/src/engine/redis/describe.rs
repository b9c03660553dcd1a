//! What a server is, and what can break its promise (R14).

use std::time::Duration;

use super::errors;
use super::options::{Layout, RedisOptions};
use super::resp::Value;
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::{Class, Description, Warning};

/// What INFO and CONFIG said at the last connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Facts {
    version: Option<String>,
    valkey: bool,
    informed: bool,
    mode: Option<String>,
    /// As the greeting says, which is as much as ROLE.
    replica: bool,
    replica_of: Option<String>,
    replicas: u32,
    loading: bool,
    /// For how long the server has been running, in whole seconds.
    pub(in crate::engine) uptime: Option<Duration>,
    /// What tells one run of a server from every other.
    pub(in crate::engine) run_id: Option<String>,
    append_only: Option<bool>,
    fsync: Option<String>,
    max_memory: Option<u64>,
    eviction: Option<String>,
    /// The fields `run`, `layout` and `clock_skew` of [`RedisOptions::marker`].
    pub(in crate::engine) marker: [Option<String>; 3],
    /// The server's clock, with our reading from before it was asked.
    pub(in crate::engine) time: Option<(u64, Ticks)>,
    /// Our wall clock at that moment.
    pub(in crate::engine) read_at_us: u64,
    /// Our reading from after it had told for how long it is up.
    pub(in crate::engine) heard: Ticks,
    /// It refused to tell us of keys that others change.
    pub(in crate::engine) deaf: bool,
}

impl Facts {
    /// From what HELLO, INFO and CONFIG GET appendfsync answered; the last two may have been
    /// denied.
    pub(in crate::engine) fn read(hello: &Value, info: &Value, fsync: &Value) -> Self {
        let info = info.text().unwrap_or_default();
        let greeting = |name: &str| {
            hello
                .pairs()
                .into_iter()
                .find(|(k, _)| k.text() == Some(name))
                .and_then(|(_, v)| v.text().map(str::to_owned))
        };
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::to_owned)
        };
        let fsync = fsync
            .pairs()
            .into_iter()
            .find(|(k, _)| k.text() == Some("appendfsync"))
            .and_then(|(_, v)| v.text().map(str::to_owned));
        let replica = greeting("role").is_some_and(|role| role == "replica" || role == "slave");
        Self {
            version: field("valkey_version")
                .or_else(|| field("redis_version"))
                .or_else(|| greeting("version")),
            valkey: greeting("server").is_some_and(|name| name == "valkey"),
            informed: !info.is_empty(),
            mode: greeting("mode"),
            replica,
            replica_of: (replica && !info.is_empty()).then(|| {
                format!(
                    "{}:{}",
                    field("master_host").unwrap_or_default(),
                    field("master_port").unwrap_or_default()
                )
            }),
            replicas: field("connected_slaves").and_then(|n| n.parse().ok()).unwrap_or(0),
            loading: field("loading").is_some_and(|l| l == "1"),
            // Below zero once the server's clock was set back; it is up all the same.
            uptime: field("uptime_in_seconds")
                .and_then(|s| s.parse::<i64>().ok())
                .map(|s| Duration::from_secs(u64::try_from(s).unwrap_or(0))),
            run_id: field("run_id"),
            append_only: field("aof_enabled").map(|a| a == "1"),
            fsync,
            max_memory: field("maxmemory").and_then(|m| m.parse().ok()),
            eviction: field("maxmemory_policy"),
            marker: [None, None, None],
            time: None,
            read_at_us: 0,
            heard: Ticks::default(),
            deaf: false,
        }
    }

    /// Whether it is a node of a cluster.
    pub(in crate::engine) fn in_cluster(&self) -> bool {
        self.mode.as_deref() == Some("cluster")
    }

    /// Refuses what can never be a lock server, as far as the greeting says it.
    ///
    /// # Errors
    /// A Sentinel, a node of a cluster unless one is expected, a replica of a service's master.
    pub(in crate::engine) fn check_greeting(&self, options: &RedisOptions) -> Result<()> {
        if self.mode.as_deref() == Some("sentinel") {
            return Err(errors::sentinel(&options.address));
        }
        #[cfg(feature = "cluster")]
        if options.scattered() && !self.in_cluster() {
            return Err(errors::no_node(&options.address));
        }
        if self.in_cluster() && !options.in_cluster {
            return Err(errors::cluster(&options.address));
        }
        if self.replica && options.resolve.is_some() {
            let why = "it is a replica, and was named as the master: a failover may be under way";
            return Err(errors::unreachable(&options.address, why).temporary(true));
        }
        Ok(())
    }

    /// Refuses what can be no lock server.
    ///
    /// # Errors
    /// As [`Facts::check_greeting`], a replica, or a server that is still loading its data.
    pub(in crate::engine) fn check(&self, options: &RedisOptions) -> Result<()> {
        self.check_greeting(options)?;
        // A replica of a cluster says where to go.
        if self.replica && !self.in_cluster() {
            // This user may not be let know of whom.
            let of = self.replica_of.as_ref().map(|at| format!(" of {at}")).unwrap_or_default();
            let text = format!(
                "Redis at {} is a read-only replica{of}: give the URL of the primary",
                options.address
            );
            return Err(Error::new(ErrorKind::Refused, text));
        }
        if self.loading {
            return Err(errors::unreachable(&options.address, "it is still loading its data")
                .temporary(true));
        }
        Ok(())
    }

    /// Whether every acknowledged write is on disk.
    pub(in crate::engine) fn durable(&self) -> bool {
        self.append_only == Some(true) && self.fsync.as_deref() == Some("always")
    }

    /// Whether a lock can be thrown out to make room.
    pub(in crate::engine) fn evicts(&self) -> bool {
        self.max_memory.is_some_and(|m| m > 0)
            && self.eviction.as_deref().is_some_and(|policy| policy != "noeviction")
    }

    /// `Redis 7.0.15`.
    pub(in crate::engine) fn server(&self) -> String {
        let name = if self.valkey { "Valkey" } else { "Redis" };
        self.version.as_ref().map_or_else(|| name.to_owned(), |version| format!("{name} {version}"))
    }

    /// Whether it has replicas, to one of which it could fail over.
    pub(in crate::engine) fn has_replicas(&self) -> bool {
        self.replicas > 0
    }

    /// The class and the warnings, for a description whose layout is filled in.
    pub(in crate::engine) fn describe(
        &self,
        description: &mut Description,
        options: &RedisOptions,
    ) {
        description.server = format!("{} at {}", self.server(), options.address);
        description.class = if self.durable() && !self.evicts() && self.replicas == 0 {
            Class::Timed
        } else {
            Class::Efficiency
        };
        let breaks = &mut description.breaks;
        breaks.push(
            "a step of the server's clock by more than a lease: leases are counted on it".into(),
        );
        if !self.durable() {
            breaks.push(
                "a restart of the server: it does not write every change to disk before it answers \
                 (appendonly yes with appendfsync always does)"
                    .into(),
            );
        }
        if self.has_replicas() && options.resolve.is_none() {
            breaks.push(
                "a failover to one of its replicas: writes reach them after they were answered"
                    .into(),
            );
        }
        let mut warn =
            |id: &'static str, text: String| description.warnings.push(Warning { id, text });
        if self.evicts() {
            let policy = self.eviction.as_deref().unwrap_or_default();
            warn(
                "eviction",
                format!(
                    "maxmemory-policy is {policy}: a full server may throw a held lock away; \
                     use noeviction, or a server of its own for locks"
                ),
            );
        }
        if !self.informed {
            warn(
                "info-denied",
                "this user may not run INFO, so persistence and eviction are unknown; \
                 allow +info, or look at them by hand"
                    .into(),
            );
        } else if self.append_only == Some(true) && self.fsync.is_none() {
            warn(
                "config-denied",
                "this user may not read appendfsync, so the weaker class is assumed; \
                 allow +config|get"
                    .into(),
            );
        }
        if self.deaf && options.layout == Layout::Plain {
            let Warning { id, text } = errors::untold(options);
            let on = if options.scattered() { "on the nodes that were asked " } else { "" };
            warn(id, format!("{on}{text}"));
        }
        if options.ttl < Duration::from_secs(1) {
            warn(
                "short-ttl",
                format!("a lease of {:?} leaves little room for a slow network", options.ttl),
            );
        }
    }

    /// Warns when the server's clock is far from ours; leases do not depend on it, people reading
    /// times do.
    pub(in crate::engine) fn clock_warning(
        description: &mut Description,
        server_us: u64,
        our_us: u64,
    ) {
        let offset = Duration::from_micros(server_us.abs_diff(our_us));
        if offset > Duration::from_secs(5) {
            let which = if server_us > our_us { "ahead of" } else { "behind" };
            let text = format!(
                "the server's clock is {:.0} s {which} ours: leases do not mind, but times shown \
                 are off",
                offset.as_secs_f64()
            );
            description.warnings.push(Warning { id: "clock-offset", text });
        }
    }
}
