//! What a cluster promises, and what breaks it (R14).

use std::collections::BTreeSet;
use std::time::Duration;

use super::errors::no_cluster;
use super::map::Map;
use super::wire::{Shard, Told};
use crate::engine::redis::options::{Address, Layout};
use crate::words::guarantee::{Ability, Class, Description, Warning};

/// What a failover takes once a node counts as down: a vote, the promotion, and until clients know.
const FAILOVER: Duration = Duration::from_secs(2);

/// For how long a node is silent before it counts as down, unless the nodes say otherwise.
const NODE_TIMEOUT: Duration = Duration::from_secs(15);

/// What the cluster changes about what one of its servers says of itself.
pub(super) fn describe(map: &Map, about: &mut Description) {
    let told = map.told();
    about.engine = "cluster";
    about.class = Class::Efficiency;
    // Several names are in several slots: no script is about them all.
    about.can = about.can.without(&[Ability::Together]);
    let node_timeout = told.as_ref().and_then(|told| told.node_timeout);
    let node_timeout = node_timeout.unwrap_or(NODE_TIMEOUT);
    // The holder and the node of its name may die together.
    about.recovery += node_timeout + FAILOVER;
    about.recovery_stopped = about.recovery_stopped.map(|t| t + node_timeout + FAILOVER);
    let native = map.options.node.layout == Layout::Native;
    about.breaks.splice(0..0, breaks(native, node_timeout));
    if let Some(told) = &told {
        let masters: BTreeSet<String> =
            told.shards.iter().map(|shard| shard.at.to_string()).collect();
        about.server = format!(
            "{}, a cluster of {} shards: {}",
            told.facts.server(),
            masters.len(),
            masters.into_iter().collect::<Vec<_>>().join(", ")
        );
        about.warnings.extend(warnings(told));
        let passed_over = map.strangers();
        about.warnings.extend(passed_over.iter().map(|at| Warning {
            id: "not-in-cluster",
            text: format!("one that the URL names is passed over: {}", no_cluster(at).message()),
        }));
    }
}

fn warnings(told: &Told) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |id: &'static str, text: String| warnings.push(Warning { id, text });
    if told.full_coverage == Some(true) {
        warn(
            "full-coverage",
            "cluster-require-full-coverage is yes: when one shard has no node, the others refuse \
             every lock as well; set it to no"
                .to_owned(),
        );
    }
    let mut alone: Vec<&Address> =
        told.shards.iter().filter(|shard| shard.replicas == 0).map(|shard| &shard.at).collect();
    alone.sort_by_key(|at| at.to_string());
    alone.dedup();
    if !alone.is_empty() {
        let each: Vec<String> = alone.iter().map(ToString::to_string).collect();
        let text = format!(
            "{} no replica: when such a node dies nothing takes its place, and its names cannot be \
             locked",
            match each.as_slice() {
                [one] => format!("the node at {one} has"),
                many => format!("the nodes at {} have", many.join(", ")),
            }
        );
        warn("no-replica", text);
    }
    let covered: usize = told.shards.iter().map(of_slots).sum();
    if covered < 16384 {
        let text = format!(
            "{} of 16384 slots have no node: names in them cannot be locked (redis-cli --cluster \
             fix)",
            16384 - covered
        );
        warn("slots-without-node", text);
    }
    warnings
}

fn of_slots(shard: &Shard) -> usize {
    shard.slots.clone().count()
}

fn breaks(native: bool, node_timeout: Duration) -> Vec<String> {
    let mut breaks = vec![
        "a failover of a shard: Redis answers before its replicas have a write, so the promoted \
         one may lack a lock that was granted, or have an older end of it"
            .to_owned(),
        format!(
            "a partition: a node that is cut off with some clients goes on granting to them until \
             it has missed the others for cluster-node-timeout ({node_timeout:?}), and the one \
             that was promoted grants to the others"
        ),
        "nodes whose clocks are apart by more than a lease's drift allowance, when a slot moves or \
         a replica is promoted: leases are counted on them"
            .to_owned(),
        "a slot that is being moved for longer than a lease: until the move is finished its names \
         cannot be asked about, and their holds are lost"
            .to_owned(),
    ];
    if native {
        breaks
            .push("tokens: a failover to a replica whose clock is behind its master's".to_owned());
    }
    breaks
}
