//! What `redis+cluster:auto` starts.

use std::ops::RangeInclusive;
use std::path::Path;

use lockkeeper_testkit::cluster::server::{Nodes, QUICK, Setup};

use crate::torture::arena::{has, take};

/// Shards: three at least, for a majority of them decides who takes the place of another.
const SHARDS: RangeInclusive<usize> = 3..=9;

/// Replicas of each shard.
const REPLICAS: RangeInclusive<usize> = 0..=1;

/// What the options of `redis+cluster:auto` say of the nodes, and what is left of them.
pub(crate) struct Wanted {
    pub(crate) shards: usize,
    pub(crate) replicas: usize,
    /// The engine's own.
    pub(crate) options: String,
}

impl Wanted {
    /// Three shards with so many replicas each, unless the options say it. The number is the exit
    /// code.
    pub(crate) fn take(options: &str, replicas: usize) -> Result<Self, (u8, String)> {
        let (shards, options) = number(options, "shards", SHARDS, *SHARDS.start())?;
        let (replicas, mut options) = number(&options, "replicas", REPLICAS, replicas)?;
        if !has(&options, "ttl") {
            options = format!("{options}{}ttl=2s", if options.is_empty() { "" } else { "&" });
        }
        Ok(Self { shards, replicas, options })
    }

    /// Starts them in this directory.
    pub(crate) fn start(&self, dir: &Path, setup: Setup) -> Result<Nodes, (u8, String)> {
        let setup = Setup { shards: self.shards, replicas: self.replicas, ..setup };
        Nodes::try_start_below(dir, setup).map_err(|text| (69, text))
    }

    pub(crate) fn url(&self, nodes: &str) -> String {
        format!("{nodes}?{}", self.options)
    }
}

fn number(
    options: &str,
    name: &str,
    allowed: RangeInclusive<usize>,
    usual: usize,
) -> Result<(usize, String), (u8, String)> {
    let (given, others) = take(options, name);
    let Some(given) = given else { return Ok((usual, others)) };
    match given.parse() {
        Ok(number) if allowed.contains(&number) => Ok((number, others)),
        _ => {
            let (from, to) = (allowed.start(), allowed.end());
            let text = format!("{name}={given}: give a number from {from} to {to}");
            Err((64, format!("redis+cluster:auto: {text}")))
        }
    }
}

/// Starts it for the demo and the bench, in this directory. The number is the exit code.
pub(crate) fn start(options: &str, dir: &Path) -> Result<(Nodes, String), (u8, String)> {
    let wanted = Wanted::take(options, 0)?;
    let nodes = wanted.start(dir, Setup { node_timeout: QUICK, ..Setup::default() })?;
    let url = wanted.url(&nodes.url());
    Ok((nodes, url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_nodes_as_the_options_say_and_the_options_of_the_engine_stay() {
        let taken = |options| {
            Wanted::take(options, 1).map(|wanted| (wanted.shards, wanted.replicas, wanted.options))
        };
        let ok = |shards, replicas, options: &str| Ok((shards, replicas, options.to_owned()));
        assert_eq!(taken(""), ok(3, 1, "ttl=2s"));
        assert_eq!(taken("replicas=0&layout=plain"), ok(3, 0, "layout=plain&ttl=2s"));
        assert_eq!(taken("ttl=5s&shards=9"), ok(9, 1, "ttl=5s"));
        for (wrong, range) in [
            ("shards=2", "from 3 to 9"),
            ("shards=10", "from 3 to 9"),
            ("replicas=2", "from 0 to 1"),
            ("replicas=one", "from 0 to 1"),
        ] {
            let (code, text) = taken(wrong).unwrap_err();
            assert!(code == 64 && text.contains(range) && text.contains(wrong), "{text}");
        }
    }
}
