//! What servers of our own need: free ports of the loopback, processes that end with ours,
//! certificates, a clock that can be moved. The servers are in the folders of the engines.

#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a server of a test's own: a failure to start it ends the test"
)]
pub mod certificates;
pub mod clock_shim;
pub mod port;
pub mod process;
pub mod silent;

/// A port that is free at this moment.
///
/// # Panics
/// When none is to be had.
#[allow(clippy::expect_used, reason = "a test without a port cannot go on")]
pub fn free_port() -> u16 {
    port::free_port().expect("a port is free")
}
