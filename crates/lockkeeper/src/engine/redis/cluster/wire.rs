//! What one node says about all of them.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::errors;
use crate::engine::either::either;
use crate::engine::redis::client::resp::{Command, Value};
use crate::engine::redis::client::slots::SLOTS;
use crate::engine::redis::client::wire::{Link, Started};
use crate::engine::redis::describe::Facts;
use crate::engine::redis::options::{Address, RedisOptions};
use crate::words::clock::Clock;
use crate::words::error::Result;

/// Slots that one node has, and how many replicas that node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shard {
    pub(super) slots: RangeInclusive<u16>,
    pub(super) at: Address,
    pub(super) replicas: usize,
}

/// What a node said.
#[derive(Clone, Debug)]
pub(super) struct Told {
    /// Who.
    pub(super) by: Address,
    pub(super) shards: Vec<Shard>,
    /// The nodes, with the ids that the cluster gave them; also replicas.
    pub(super) ids: Vec<(Address, String)>,
    /// Whether the cluster is up as it sees it.
    pub(super) is_ok: bool,
    /// The newest epoch that it has heard of: each failover makes a newer one.
    pub(super) epoch: u64,
    /// About itself.
    pub(super) facts: Facts,
    /// For how long a node is silent before the others count it as down.
    pub(super) node_timeout: Option<Duration>,
    /// Whether all stop when the slots of one shard are without a node.
    pub(super) full_coverage: Option<bool>,
}

/// Asks a node, over a connection that ends with the answer.
///
/// # Errors
/// It cannot be asked, or is none of a cluster.
pub(super) async fn ask(
    at: Address,
    options: &RedisOptions,
    clock: Clock,
    label: String,
) -> Result<Told> {
    let options = RedisOptions { address: at.clone(), ..options.clone() };
    let secure = options.tls.is_some();
    let link = Link::new(Arc::new(options), clock, label, Arc::new(|_, _| {}));
    let mut driver = Box::pin(link.connect().await?);
    let facts = link.facts().unwrap_or_default();
    let told = if facts.in_cluster() {
        let asked = questions(&link, &at, secure, facts);
        either(asked, &mut driver).await.unwrap_or_else(|why| Err(errors::away(&at, &why)))
    } else {
        Err(errors::no_cluster(&at))
    };
    link.close();
    told
}

async fn questions(link: &Link, at: &Address, secure: bool, facts: Facts) -> Result<Told> {
    let commands = [
        Command::new(["CLUSTER", "SHARDS"]),
        Command::new(["CLUSTER", "INFO"]),
        Command::new(["CONFIG", "GET", "cluster-node-timeout"]),
        Command::new(["CONFIG", "GET", "cluster-require-full-coverage"]),
    ];
    let mut answers = link.start(&commands).each();
    let mut next = async || answer(link, at, answers.next()).await;
    let (shards, info) = (next().await?, next().await?);
    let (timeout, coverage) = (next().await?, next().await?);
    let setting = |value: &Value| {
        value.pairs().first().and_then(|(_, value)| value.text().map(str::to_owned))
    };
    let told = match shards {
        // Before Redis 7.
        Value::Error(text) if text.to_ascii_lowercase().contains("unknown subcommand") => {
            let started = link.start(&[Command::new(["CLUSTER", "SLOTS"])]);
            ranges(&answer(link, at, Some(started)).await?, at)
        }
        Value::Error(text) => return Err(errors::said(at, &text)),
        shards => of_shards(&shards, at, secure),
    };
    let (shards, ids) = told.ok_or_else(|| errors::garbage(at))?;
    if shards.is_empty() {
        return Err(errors::no_slots(at));
    }
    let state = |name: &str| state(&info, name);
    Ok(Told {
        by: at.clone(),
        shards,
        ids,
        // A user who may not ask is told nothing.
        is_ok: state("cluster_state").is_none_or(|state| state == "ok"),
        epoch: state("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0),
        facts,
        node_timeout: setting(&timeout).and_then(|ms| ms.parse().ok()).map(Duration::from_millis),
        full_coverage: setting(&coverage).map(|word| word == "yes"),
    })
}

/// A line of CLUSTER INFO.
fn state<'a>(info: &'a Value, name: &str) -> Option<&'a str> {
    let mut lines = info.text()?.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

async fn answer(link: &Link, at: &Address, started: Option<Started>) -> Result<Value> {
    let started = started.unwrap_or_else(Started::nothing);
    let answered = link.finish(started, || None, Duration::ZERO).await;
    Ok(answered.map_err(|broken| errors::away(at, broken.why()))?.value)
}

/// Who has which slots, and who is where.
type Nodes = (Vec<Shard>, Vec<(Address, String)>);

/// What CLUSTER SHARDS answers; `at` answered.
fn of_shards(value: &Value, at: &Address, secure: bool) -> Option<Nodes> {
    let (mut shards, mut ids) = (Vec::new(), Vec::new());
    let port = if secure { "tls-port" } else { "port" };
    let place = |node: &Value| {
        let host = field(node, "endpoint").and_then(Value::text).filter(|host| *host != "?");
        // One that is to be called by its name, and has none.
        let host = host.or_else(|| field(node, "ip").and_then(Value::text));
        let port = u16::try_from(field(node, port)?.unsigned()?).ok()?;
        address(host, port, at)
    };
    for shard in value.items() {
        let nodes = field(shard, "nodes")?.items();
        let id = |node: &Value| Some((place(node)?, field(node, "id")?.text()?.to_owned()));
        ids.extend(nodes.iter().filter_map(id));
        let is = |node: &Value, what: &str, word: &str| {
            field(node, what).and_then(Value::text) == Some(word)
        };
        let masters = || nodes.iter().filter(|node| is(node, "role", "master"));
        let master = masters().find(|node| !is(node, "health", "failed"));
        let Some(master) = master.or_else(|| masters().next()) else { continue };
        // One without TLS cannot be used where that is asked for, nor one at whose address another
        // one is; the others can.
        let Some(node) = place(master) else { continue };
        let replicas = nodes.iter().filter(|node| !is(node, "role", "master")).count();
        for range in field(shard, "slots")?.items().chunks(2) {
            let [from, to] = range else { return None };
            let slots = slots(from, to)?;
            shards.push(Shard { slots, at: node.clone(), replicas });
        }
    }
    Some((shards, ids))
}

/// What CLUSTER SLOTS answers.
fn ranges(value: &Value, at: &Address) -> Option<Nodes> {
    let place = |node: &Value| {
        let [host, port, id @ ..] = node.items() else { return None };
        let port = u16::try_from(port.unsigned()?).ok()?;
        Some((address(host.text(), port, at)?, id.first().and_then(Value::text)?.to_owned()))
    };
    let mut ids = Vec::new();
    let range = |range: &Value| {
        let [from, to, nodes @ ..] = range.items() else { return None };
        let (node, _) = place(nodes.first()?)?;
        for one in nodes.iter().filter_map(place) {
            if !ids.contains(&one) {
                ids.push(one);
            }
        }
        Some(Shard { slots: slots(from, to)?, at: node, replicas: nodes.len() - 1 })
    };
    let shards: Option<Vec<Shard>> = value.items().iter().map(range).collect();
    Some((shards?, ids))
}

fn slots(from: &Value, to: &Value) -> Option<RangeInclusive<u16>> {
    let slot = |value: &Value| u16::try_from(value.unsigned()?).ok().filter(|slot| *slot < SLOTS);
    Some(slot(from)?..=slot(to)?)
}

/// A node that does not know its own host is at the one that was asked.
fn address(host: Option<&str>, port: u16, asked: &Address) -> Option<Address> {
    let host = match (host.filter(|host| !host.is_empty() && *host != "?"), asked) {
        (Some(host), _) => host.to_owned(),
        (None, Address::Tcp(host, _)) => host.clone(),
        (None, _) => return None,
    };
    Some(Address::Tcp(host, port))
}

fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    value.pairs().into_iter().find(|(key, _)| key.text() == Some(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }

    fn map(fields: &[(&str, Value)]) -> Value {
        Value::Map(fields.iter().map(|(name, value)| (text(name), value.clone())).collect())
    }

    fn shard(from: i64, nodes: Vec<Value>) -> Value {
        let slots = Value::Array(vec![Value::Integer(from), Value::Integer(from + 9)]);
        map(&[("slots", slots), ("nodes", Value::Array(nodes))])
    }

    #[test]
    fn what_shards_say_is_understood_also_of_nodes_that_cannot_be_used() {
        let at = |host: &str, port| Address::Tcp(host.into(), port);
        let node = |id: &str, role: &str, more: &[(&str, Value)]| {
            let fields = [("id", text(id)), ("role", text(role)), ("health", text("online"))];
            map(&[&fields[..], more].concat())
        };
        let port = |port: i64| ("port", Value::Integer(port));
        let tls = ("tls-port", Value::Integer(7));
        let told = Value::Array(vec![
            shard(
                0,
                vec![
                    node("a", "master", &[port(1), tls.clone(), ("endpoint", text("one"))]),
                    node("b", "replica", &[port(2), ("endpoint", text("two"))]),
                ],
            ),
            // Called by its name, and it has none; no TLS.
            shard(
                10,
                vec![node(
                    "c",
                    "master",
                    &[port(3), ("endpoint", text("?")), ("ip", text("9.9.9.9"))],
                )],
            ),
            // It does not know its own address.
            shard(20, vec![node("d", "master", &[port(4), tls, ("endpoint", Value::Nil)])]),
        ]);
        let (shards, ids) = of_shards(&told, &at("asked", 5), false).unwrap();
        let found: Vec<_> =
            shards.iter().map(|s| (s.slots.clone(), s.at.clone(), s.replicas)).collect();
        let expected = [
            (0..=9, at("one", 1), 1),
            (10..=19, at("9.9.9.9", 3), 0),
            (20..=29, at("asked", 4), 0),
        ];
        assert_eq!(found, expected);
        assert!(ids.contains(&(at("two", 2), "b".to_owned())), "{ids:?}");
        let (shards, _) = of_shards(&told, &at("asked", 5), true).unwrap();
        let found: Vec<_> = shards.iter().map(|shard| shard.at.clone()).collect();
        assert_eq!(found, [at("one", 7), at("asked", 7)], "one without TLS costs only its own");
    }

    #[test]
    fn what_an_older_server_says_of_its_slots_is_understood() {
        let at = |host: &str, port| Address::Tcp(host.into(), port);
        let node = |host: &str, port: i64, id: &str| {
            Value::Array(vec![text(host), Value::Integer(port), text(id)])
        };
        let range = |from: i64, to: i64, nodes: &[Value]| {
            let slots = [Value::Integer(from), Value::Integer(to)];
            Value::Array(slots.into_iter().chain(nodes.iter().cloned()).collect())
        };
        let (a, b) = (node("one", 1, "a"), node("two", 2, "b"));
        let told = Value::Array(vec![
            range(0, 9, &[a.clone(), b]),
            range(20, 29, &[a]),
            // It does not know its own address.
            range(30, 39, &[node("", 4, "c")]),
        ]);
        let (shards, ids) = ranges(&told, &at("asked", 5)).unwrap();
        let found: Vec<_> =
            shards.iter().map(|s| (s.slots.clone(), s.at.clone(), s.replicas)).collect();
        let expected =
            [(0..=9, at("one", 1), 1), (20..=29, at("one", 1), 0), (30..=39, at("asked", 4), 0)];
        assert_eq!(found, expected);
        let known = [(at("one", 1), "a"), (at("two", 2), "b"), (at("asked", 4), "c")];
        assert_eq!(ids, known.map(|(at, id)| (at, id.to_owned())), "each once");
        for wrong in [range(0, 16384, &[node("one", 1, "a")]), range(0, 1, &[]), text("?")] {
            assert!(ranges(&Value::Array(vec![wrong]), &at("asked", 5)).is_none());
        }
    }
}
