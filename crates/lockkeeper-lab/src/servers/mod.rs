//! Real servers for tests and measurements: started on free ports of the loopback with directories
//! of their own, and stopped, by their own process id, when they are dropped.

#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a server of a test's own: a failure to start it ends the test"
)]
pub mod certificates;
pub mod clock_shim;
#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a server of a test's own: a failure to start it ends the test"
)]
pub mod redis;
pub mod zookeeper;
pub mod zookeeper_client;
pub mod zookeeper_proxy;

pub(crate) use self::redis::port::free_port;
