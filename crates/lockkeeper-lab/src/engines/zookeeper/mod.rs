//! ZooKeeper: servers of our own, single or as an ensemble, and what is done with them.

pub(crate) mod arena;
pub(crate) mod broken;
pub mod client;
pub(crate) mod floor;
#[cfg_attr(
    not(feature = "zookeeper"),
    allow(dead_code, reason = "not every client of it is there")
)]
mod jute;
pub mod proxy;
pub mod server;
#[cfg(feature = "zookeeper")]
pub(crate) mod stock;
