//! ZooKeeper: servers of our own, single or as an ensemble, a proxy that understands the protocol,
//! and a client.

pub mod client;
mod jute;
pub mod proxy;
pub mod server;
