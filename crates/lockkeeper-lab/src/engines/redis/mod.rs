//! Redis: a server of our own, and what is done with it.

pub(crate) mod arena;
pub(crate) mod broken;
pub(crate) mod floor;
pub(crate) mod resp;
#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a server of a test's own: a failure to start it ends the test"
)]
pub mod server;
#[cfg(feature = "redis")]
pub(crate) mod stock;
