//! What a quorum promises, and what breaks it (R14).

use std::time::Duration;

use super::errors::{NO_TLS, of_member};
use super::options::RedlockOptions;
use super::plain::Plain;
use super::waiter::LOOK;
use super::{Quorum, Redlock};
use crate::engine::redis::describe::Facts;
use crate::engine::redis::errors;
use crate::engine::redis::options::Address;
use crate::words::duration::spoken;
use crate::words::guarantee::{Ability, Can, Class, Description, Expiry, Warning};

impl Redlock {
    /// The class and its limits, as far as the options and the members say.
    pub(super) fn description(&self) -> Description {
        let options = &self.options;
        let plain = options.plain.is_some();
        let layout = options.plain.as_ref().map_or("native", Plain::layout);
        let mut about = Description::new("redlock", layout, Class::Efficiency);
        about.hosts = true;
        about.expiry = Expiry::PerHold { claim_lease: None };
        about.early = true;
        about.max_ttl = Some(options.max_ttl);
        about.request_timeout = Some(options.request_timeout);
        // A waiter looks when the lease ends, at the latest so much later.
        about.recovery = options.ttl + LOOK.0;
        about.recovery_stopped = Some(about.recovery);
        about.can =
            Can::NONE.with(&[Ability::Shared, Ability::List, Ability::Force, Ability::Identity]);
        about.breaks = breaks(options);
        if plain {
            about.fenced = false;
            about.can = Can::NONE.with(&[Ability::Force]);
            about.elsewhere = &[IN_NATIVE];
        }
        about.server = server(options, self.opened.get().map(|quorum| &**quorum));
        about.warnings = warnings(options, self.opened.get().map(|quorum| &**quorum));
        if options.plain.as_ref().is_some_and(Plain::stands) {
            let text = "a dead waiter in an RFairLock's queue keeps a member from those behind it \
                        until 15 s after the lease it waited for, and up to 302 s where it is \
                        Java's: layout=native has no queue";
            about.warnings.push(Warning { id: "dead-waiters", text: text.into() });
        }
        about
    }
}

/// What the layouts of others cannot do, and what to do instead.
const IN_NATIVE: (Can, &str) =
    (Can::NONE.with(&[Ability::Shared, Ability::List, Ability::Identity]), "use layout=native");

fn breaks(options: &RedlockOptions) -> Vec<String> {
    let (majority, wait) = (options.majority(), spoken(options.wait));
    let clock = "a step of a member's clock by more than what is left of a lease: leases are \
                 counted on it, and the member that two majorities share is enough"
        .to_owned();
    if options.plain.is_some() {
        return vec![
            clock,
            format!(
                "a member that loses keys while it runs (FLUSHALL, eviction, DEL), or whose clock \
                 steps forward within {wait} of its start: it does not count for so long after \
                 its start, by its own clock; other programs count it at once"
            ),
            "the layout has no fencing token: a holder that was paused is not kept out of the \
             resource"
                .to_owned(),
            format!("a program whose leases are longer than {wait}, or that names other members"),
        ];
    }
    vec![
        clock,
        format!(
            "clocks of a majority that are set back: the lock of a holder that died is free after \
             up to {} then",
            spoken(options.ttl * 2 + LOOK.0)
        ),
        format!(
            "a member that loses single keys while it runs (eviction, DEL), or one that started, \
             was flushed or was replaced by its replica, and whose clock steps forward within \
             {wait} of when a client met it: it does not count for so long, by its own clock"
        ),
        format!(
            "tokens rise all the same. They can go back if a majority loses its data at about the \
             same time, or one does while others that know the last numbers do not answer, and a \
             clock is set back, or the members' clocks are more than clock_skew={} apart",
            spoken(options.clock_skew)
        ),
        format!(
            "clients whose URLs name other members or another namespace: {majority} of {} must be \
             a majority for all of them",
            options.members.len()
        ),
        "a majority that loses its data at once, where leases are longer than a minute and clients \
         differ in max_ttl, or where a release of layout 1 is still in use"
            .to_owned(),
    ]
}

fn facts(quorum: Option<&Quorum>) -> Vec<(Address, Option<Facts>)> {
    let members = quorum.map(|quorum| quorum.members.as_slice()).unwrap_or_default();
    members.iter().map(|m| (m.options.address.clone(), m.link.facts())).collect()
}

fn server(options: &RedlockOptions, quorum: Option<&Quorum>) -> String {
    let at: Vec<String> = options.members.iter().map(|m| m.address.to_string()).collect();
    let mut versions: Vec<String> =
        facts(quorum).iter().filter_map(|(_, facts)| Some(facts.as_ref()?.server())).collect();
    versions.sort_unstable();
    versions.dedup();
    let versions = if versions.is_empty() { "Redis".to_owned() } else { versions.join(", ") };
    format!("{versions} at {} (a majority is {})", at.join(", "), options.majority())
}

fn warnings(options: &RedlockOptions, quorum: Option<&Quorum>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |id: &'static str, text: String| warnings.push(Warning { id, text });
    let host = |address: &Address| match address {
        Address::Tcp(host, _) => Some(host.clone()),
        _ => None,
    };
    let mut hosts: Vec<_> = options.members.iter().map(|m| host(&m.address)).collect();
    hosts.sort_unstable();
    hosts.dedup();
    if let [Some(host)] = hosts.as_slice() {
        warn(
            "one-host",
            format!(
                "all members are on {host}: what ends that machine ends all of them; use as many \
                 machines as members"
            ),
        );
    }
    if options.ttl < Duration::from_secs(1) {
        warn(
            "short-ttl",
            format!("a lease of {:?} leaves little room for a slow network", options.ttl),
        );
    }
    let Some(quorum) = quorum else { return warnings };
    let now = quorum.steady.now();
    for (nth, (member, (at, facts))) in quorum.members.iter().zip(facts(Some(quorum))).enumerate() {
        if let Some(why) = member.refuses() {
            let why = of_member(&member.options, &why);
            warn("member-refuses", format!("the member {at} does not count: {}", why.message()));
        } else if !member.link.is_up() {
            let why = member.link.why().map_or_else(
                || member.options.tls.as_ref().map_or("", |_| NO_TLS).to_owned(),
                |e| format!(": {}", e.message()),
            );
            warn("member-down", format!("the member {at} is not connected{why}"));
        } else if let Some(text) = quorum.not_counting(nth, now) {
            warn("member-young", text);
        }
        let Some(facts) = facts else { continue };
        let [run, _, skew] = &facts.marker;
        let skew = skew.as_ref().filter(|_| *run == facts.run_id).and_then(|ms| ms.parse().ok());
        let skew = skew.map(Duration::from_millis).filter(|skew| *skew != options.clock_skew);
        if let Some(skew) = skew {
            warn(
                "clock-skew",
                format!(
                    "the member {at} was admitted with clock_skew={}, and the URL says {}: where a \
                     majority forgets, tokens rise only while the clocks are within the lesser; \
                     write the same into every URL",
                    spoken(skew),
                    spoken(options.clock_skew),
                ),
            );
        }
        if facts.deaf {
            let Warning { id, text } = errors::untold(&member.options);
            warn(id, format!("on the member {at} {text}"));
        }
        if facts.evicts() {
            warn(
                "eviction",
                format!(
                    "the member {at} throws keys out when it is full (maxmemory-policy): use \
                     noeviction, or servers of their own for locks"
                ),
            );
        }
        if facts.has_replicas() {
            warn(
                "replicas",
                format!(
                    "the member {at} has replicas: one that is promoted in its place may lack \
                     leases, so it counts for nothing for {}; if this member then follows it and \
                     is promoted again in the same run, it counts at once: members need none",
                    spoken(options.wait),
                ),
            );
        }
    }
    warnings
}
