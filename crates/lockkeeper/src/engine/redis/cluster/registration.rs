//! The scheme and options of cluster URLs, as the reference lists them; `options` reads them.

use super::map::Map;
use super::options::{self, ClusterOptions};
use crate::engine::redis::options::RedisOptions;
use crate::engine::{Common, Engine, Keep, Registration, UrlOption, Value, redis};
use crate::open::url::EngineUrl;
use crate::words::error::Result;

/// Beside those of one server, which has databases.
const TLS: UrlOption = UrlOption::new("tls", Value::Switch, "false", "TLS to every node");

pub(crate) fn registration() -> Registration {
    let mut cluster = Registration::new("cluster", &["redis+cluster"], Keep::Lease, open);
    cluster.port = Some(redis::url::PORT);
    cluster.paths_without_at = cluster.schemes;
    cluster.place = Some(options::place);
    let of_a_server = redis::registration().options.into_iter();
    cluster.options = of_a_server.filter(|option| option.name != "db").chain([TLS]).collect();
    cluster
}

fn open(url: &mut EngineUrl, common: &Common) -> Result<Box<dyn Engine>> {
    let map = Map::new(ClusterOptions::take(url, common)?);
    let node = RedisOptions { slots: Some(map.slots.clone()), ..map.options.node.clone() };
    Ok(redis::connect(node, Some(map)))
}
