//! One folder an engine, with the same rooms: `server` (one of our own), `arena` (what torture does
//! to it), `stock` (where the demo's record is), `floor` (what the bench measures beside it),
//! `broken` (locks on it that are known to be wrong).

pub(crate) mod file;
pub mod redis;
pub mod zookeeper;
