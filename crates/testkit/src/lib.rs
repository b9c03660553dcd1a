//! What tests of lockkeeper start: servers of their own, which are gone with the value, proxies
//! that break connections, clocks that can be moved, and small blocking clients.
//!
//! - [`redis`], [`cluster`], [`sentinel`], [`postgres`], [`zookeeper`]: servers, and who talks to
//!   them beside the library.
//! - [`proxy`]: a TCP proxy that holds, delays, loses and cuts.
//! - [`servers`]: what such servers need.
//! - [`dice`]: random numbers that a seed gives again; [`until`]: waiting for a condition.
//!
//! It knows nothing of lockkeeper: whoever changes the library builds it once. The laboratory
//! starts the same servers for `redis:auto` and the like.

pub mod cluster;
pub mod dice;
pub mod postgres;
#[allow(
    clippy::expect_used,
    reason = "a port of the loopback and a thread: a machine without them runs no tests"
)]
pub mod proxy;
pub mod redis;
pub mod sentinel;
pub mod servers;
pub mod until;
pub mod zookeeper;
