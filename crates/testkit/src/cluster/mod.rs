//! Redis Cluster: nodes of our own, and how slots move between them.

pub mod moves;
#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a server of a test's own: a failure to start it ends the test"
)]
pub mod server;
