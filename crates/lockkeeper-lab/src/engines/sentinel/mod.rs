//! Redis with Sentinels: a deployment of our own.

#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "servers of a test's own: a failure to start them ends the test"
)]
pub mod server;
