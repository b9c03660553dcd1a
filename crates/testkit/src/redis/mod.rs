//! Redis: a server of our own, a client, and what servers say of each other.

pub mod announced;
pub mod resp;
#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a server of a test's own: a failure to start it ends the test"
)]
pub mod server;
