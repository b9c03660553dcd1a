//! What a failover costs, and what it breaks (R14).

use std::time::Duration;

use super::resolve::Sentinels;
use super::wire::Said;
use crate::engine::redis::options::{Address, Layout, Wait};
use crate::words::guarantee::{Class, Description, Warning};

/// What a failover takes once a majority of the Sentinels takes the master for down: a vote, the
/// promotion, and until clients know of it.
const FAILOVER: Duration = Duration::from_secs(5);

/// For how long a master is silent before it counts as down, unless the Sentinels say otherwise.
const DOWN_AFTER: Duration = Duration::from_secs(30);

/// What one server's clock is to leases, and what it is to them when another may take its place.
const LEASES_DO_NOT_MIND: &str = "leases do not mind, but times shown are off";
const LEASES_MIND: &str =
    "times shown are off, and after a failover leases are counted by another server's clock";

/// What they change about what the server says of itself.
pub(super) fn describe(sentinels: &Sentinels, about: &mut Description) {
    let options = &sentinels.options;
    about.engine = "sentinel";
    about.class = Class::Efficiency;
    let said: Vec<_> = sentinels.nodes.iter().filter_map(|node| node.said()).collect();
    let down_after = down_after(&said, sentinels.master().map(|master| master.at));
    // The holder and the master may die together.
    about.recovery += down_after + FAILOVER;
    about.recovery_stopped = about.recovery_stopped.map(|t| t + down_after + FAILOVER);
    about.server += &sentinels.who_says();
    let native = options.master.layout == Layout::Native;
    about.breaks.splice(0..0, breaks(native, down_after, options.master.wait));
    for warning in about.warnings.iter_mut().filter(|warning| warning.id == "clock-offset") {
        warning.text = warning.text.replace(LEASES_DO_NOT_MIND, LEASES_MIND);
    }
    about.warnings.extend(sentinels.warnings());
    about.warnings.extend(sentinels.clock_warnings());
}

impl Sentinels {
    /// How many of them name this master, and what each other one says.
    fn who_says(&self) -> String {
        let (nodes, master) = (&self.nodes, self.master());
        let said = nodes.iter().filter_map(|node| Some((node, node.said()?)));
        let (those, others): (Vec<_>, Vec<_>) =
            said.partition(|(_, said)| master.as_ref().is_none_or(|known| known.at == said.at));
        let mut text = format!(", as {} of {} Sentinels say", those.len(), nodes.len());
        for (node, said) in others {
            text += &format!("; the one at {} says {}", node.at, said.at);
        }
        text
    }

    fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let mut warn = |id: &'static str, text: String| warnings.push(Warning { id, text });
        let Some(master) = self.master() else { return warnings };
        let service = &self.options.service;
        let nodes = &self.nodes;
        for node in nodes {
            if let Some(why) = node.refuses() {
                warn("sentinel-refuses", why.message().to_owned());
                continue;
            }
            if let Some(why) = node.why_down() {
                warn("sentinel-down", why.message().to_owned());
                continue;
            }
            let Some(said) = node.said() else {
                let at = &node.at;
                warn("sentinel-unaware", format!("the Sentinel at {at} knows no {service}"));
                continue;
            };
            if said.at != master.at {
                let (named, epoch) = (&said.at, said.epoch);
                let why = if epoch == master.epoch {
                    format!("the others name {}: configure them alike", master.at)
                } else {
                    let is = match epoch < master.epoch {
                        true => "it has not heard of the last failover",
                        false => "the others have not heard of a later failover",
                    };
                    format!(
                        "{} counts, of epoch {}, and this is of epoch {epoch}: {is}, or they watch \
                         two deployments under one name",
                        master.at, master.epoch
                    )
                };
                let text = format!(
                    "the Sentinel at {} names {named} as the master of {service}, and {why}",
                    node.at
                );
                warn("sentinels-disagree", text);
            }
        }
        let said: Vec<_> = nodes.iter().filter_map(|node| node.said()).collect();
        let majority = self.options.majority();
        if (1..majority).contains(&said.len()) {
            warn(
                "sentinel-minority",
                format!(
                    "{} of {} Sentinels answer: where the others cannot be reached from here, they \
                     may have made another server the master, and no process follows them before a \
                     majority says so",
                    said.len(),
                    nodes.len()
                ),
            );
        }
        let known = said.iter().map(|said| said.others + 1).max().unwrap_or(0);
        if !said.is_empty() && known < 3 {
            warn(
                "few-sentinels",
                format!(
                    "{known} Sentinels watch {service}: a failover needs a majority of them, so \
                     three on three machines are the least that survive one"
                ),
            );
        } else if nodes.len() == 1 {
            warn(
                "one-sentinel",
                format!(
                    "the URL names one of {known} Sentinels: name all of them, for when that one \
                     is away"
                ),
            );
        }
        let most = |of: fn(&Said) -> u64| said.iter().map(of).max().unwrap_or(0);
        let (known, living) = (most(|said| said.replicas), most(|said| said.living));
        let wait = self.options.master.wait.filter(|_| !said.is_empty());
        if let Some(wait) = wait.filter(|wait| u64::from(wait.replicas) >= living) {
            let n = wait.replicas;
            let there = match living == known {
                true => format!("{service} has {known} replicas"),
                false => format!("{living} of the {known} replicas of {service} are there"),
            };
            let costs = match u64::from(n) > living {
                true => "nothing is granted or renewed before more are there",
                false => {
                    "when the master dies one of them takes its place, and then too few are left \
                     for any grant"
                }
            };
            let have = n + 1;
            let text = format!("wait_replicas={n}, and {there}: {costs}; have {have} at least");
            warn("too-few-replicas", text);
        }
        if !said.is_empty() && living == 0 {
            let none = match known {
                0 => format!("{service} has no replica"),
                _ => format!("none of the {known} replicas of {service} is there"),
            };
            let costs = "when its master dies, nothing takes its place";
            warn("no-replica", format!("{none}: {costs}"));
        }
        warnings
    }
}

/// For how long the master is silent before it counts as down: as the slowest of the Sentinels has
/// it that name this master. One that names another, by whatever epoch, says nothing about it.
fn down_after(said: &[Said], master: Option<Address>) -> Duration {
    let about_it = said.iter().filter(|said| master.as_ref().is_none_or(|at| said.at == *at));
    about_it.map(|said| said.down_after).max().unwrap_or(DOWN_AFTER)
}

fn breaks(native: bool, down_after: Duration, wait: Option<Wait>) -> Vec<String> {
    let failover = match wait {
        None => "a failover: Redis answers before its replicas have a write, so the promoted one \
                 may lack a lock that was granted, or have an older end of it (wait_replicas)"
            .to_owned(),
        Some(Wait { replicas, .. }) => format!(
            "a failover to a replica that is none of the {replicas} that had a grant or a renewal \
             (wait_replicas), or that lost it: a replica acknowledges before it is on disk"
        ),
    };
    let partition = match wait {
        None => "a partition: a master that is cut off goes on granting to clients on its side, \
                 and the new one to the others; min-replicas-to-write with min-replicas-max-lag \
                 ends that"
            .to_owned(),
        Some(Wait { replicas, .. }) => format!(
            "a partition that leaves the old master {replicas} of its replicas: it goes on \
             granting to clients on its side, and the new one to the others"
        ),
    };
    let mut breaks = vec![
        failover,
        partition,
        format!(
            "T counts on a failover that succeeds the first time: the Sentinels take the master \
             for down after {down_after:?}, try again only after twice their failover-timeout, and \
             do nothing for 30 s when their own clocks jump (TILT)"
        ),
    ];
    breaks.push(
        "Sentinels that are even: while as many name the master that a process has as a later one, \
         and no majority does, it goes on with the one that it has"
            .to_owned(),
    );
    if native {
        breaks.push(
            "tokens: a failover to a replica whose clock is behind its master's; and such a \
             partition, in which both masters make them: two may be equal"
                .to_owned(),
        );
    }
    breaks
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::{at, said};
    use super::*;

    #[test]
    fn b4_one_sentinel_that_names_another_master_makes_t_no_shorter() {
        let said = |port, epoch, seconds| {
            let down_after = Duration::from_secs(seconds);
            Said { down_after, ..said(port, epoch) }
        };
        let told = [said(1, 3, 10), said(1, 3, 12), said(2, 9, 1)];
        assert_eq!(down_after(&told, Some(at(1))), Duration::from_secs(12));
        let same = [said(1, 3, 10), said(1, 99, 1)];
        assert_eq!(down_after(&same, Some(at(1))), Duration::from_secs(10), "nor one by its epoch");
        assert_eq!(down_after(&told, None), Duration::from_secs(12));
        assert_eq!(down_after(&told[2..], Some(at(1))), DOWN_AFTER);
    }
}
