//! What a `redis+cluster:` URL says.

use crate::engine::Common;
use crate::engine::redis::options::{Address, RedisOptions, Spelling, Tls};
use crate::engine::redis::url::{self as server, PORT};
use crate::open::url::EngineUrl;
use crate::words::error::{Error, ErrorKind, Result};

/// The most nodes that a URL names: they tell of the others.
const NODES_MAX: usize = 64;

/// Where to ask for the cluster, and how to use its nodes.
#[derive(Clone, Debug)]
pub(super) struct ClusterOptions {
    /// In the order of the URL.
    pub(super) named: Vec<Address>,
    /// Any node; its address is the first that was named.
    pub(super) node: RedisOptions,
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

impl ClusterOptions {
    /// Takes everything out of the URL that is about the cluster.
    ///
    /// # Errors
    /// `InvalidArgument`, naming what to write instead.
    pub(super) fn take(url: &mut EngineUrl, common: &Common) -> Result<Self> {
        let named = named(url)?;
        no_database(url)?;
        let first = named.first().cloned().unwrap_or(Address::Tcp(String::new(), PORT));
        let mut node = server::of_master(url, first, common.ttl, common.drift_per_mille)?;
        node.in_cluster = true;
        let secure = url.take_bool("tls")?.unwrap_or(false);
        node.spelling = Spelling::of_several("redis+cluster://user:password@host");
        node.tls = Tls::take(url, secure, node.spelling.tls)?;
        Ok(Self { named, node })
    }
}

/// The addresses, each once.
fn named(url: &EngineUrl) -> Result<Vec<Address>> {
    let (named, twice) = server::servers(url, PORT);
    if named.is_empty() || named.len() > NODES_MAX {
        return Err(wrong(format!(
            "a cluster URL names 1 to {NODES_MAX} of its nodes, best one of each shard, as in \
             redis+cluster://a,b,c"
        )));
    }
    match twice {
        Some(twice) => Err(wrong(format!("the node {twice} is named twice: name each once"))),
        None => Ok(named),
    }
}

/// A cluster has one database, and a URL may say that it is that one.
fn no_database(url: &mut EngineUrl) -> Result<()> {
    match server::db(url)? {
        0 => Ok(()),
        db => Err(wrong(format!(
            "a Redis Cluster has one database, and the URL names {db}: leave it out, and use \
             namespace=WORD to keep locks apart"
        ))),
    }
}

/// The place in a canonical name: the nodes have no order.
///
/// # Errors
/// `InvalidArgument` for a database.
pub(super) fn place(url: &mut EngineUrl) -> Result<()> {
    url.hosts.sort();
    no_database(url)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::redis::options::Layout;
    use crate::engine::redis::tests::support::{assert_options_are_read, read_options};

    fn parse(text: &str) -> Result<ClusterOptions> {
        read_options(&super::super::registration(), text, ClusterOptions::take)
    }

    #[test]
    fn every_part_of_a_url_is_understood() {
        let options = parse(
            "redis+cluster://ann:s3same@a,b:7001,[::1]:7002/?namespace=shop&connect_timeout=1s&\
             request_timeout=500ms",
        )
        .unwrap();
        let at: Vec<_> = options.named.iter().map(ToString::to_string).collect();
        assert_eq!(at, ["a:6379", "b:7001", "[::1]:7002"]);
        let node = &options.node;
        assert_eq!((node.user.as_deref(), node.db, node.in_cluster), (Some("ann"), 0, true));
        assert_eq!(node.request_timeout, Duration::from_millis(500));
        assert!(!format!("{options:?}").contains("s3same"), "{options:?}");
        for (layout, is) in [
            ("plain&key=locks:{name}", Layout::Plain),
            ("redisson&lock=fair", Layout::Redisson),
            ("native", Layout::Native),
        ] {
            let options = parse(&format!("redis+cluster://a?layout={layout}")).unwrap();
            assert_eq!(options.node.layout, is);
        }
        assert!(parse("redis+cluster://a?tls=true&tls_ca=/c").unwrap().node.tls.is_some());
    }

    #[test]
    fn two_ways_to_write_one_cluster_are_one_engine() {
        let canonical = |url: &str| EngineUrl::parse(url).unwrap().canonical().unwrap();
        let one = canonical("redis+cluster://a,b");
        assert_eq!(one, "redis+cluster://a:6379,b:6379");
        for same in ["redis+cluster://:pw@b:6379,a/?ttl=5s", "redis+cluster://a,b/0"] {
            assert_eq!(canonical(same), one);
        }
        assert_ne!(canonical("redis+cluster://a,b?namespace=x"), one);
    }

    #[test]
    fn what_cannot_be_right_is_refused_with_a_reason() {
        for (url, says) in [
            ("redis+cluster:", "names 1 to 64 of its nodes"),
            ("redis+cluster://a,A:6379", "the node A:6379 is named twice"),
            ("redis+cluster://a/3", "has one database, and the URL names 3"),
            ("redis+cluster://ann@a", "redis+cluster://user:password@host"),
            ("redis+cluster://a?tls_ca=/x", "tls=true"),
            ("redis+cluster://a?db=3", "\"db\""),
            ("redis+cluster://a?wait_replicas=1", "\"wait_replicas\""),
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(error.message().contains(says), "{url}: {error}");
            assert!(!error.message().contains('\n'), "{url}: {error}");
        }
    }

    #[test]
    fn every_option_that_is_registered_is_read_and_its_default_is_what_it_says() {
        assert_options_are_read(&super::super::registration(), "redis+cluster://a", parse);
    }
}
