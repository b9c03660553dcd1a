//! The laboratory of lockkeeper: what tries to break it, what measures it, and what shows it.
//!
//! - `conformance`: the rules, one a case, that every engine and layout must keep.
//! - [`history`]: what every process did with its locks, one fixed-size record an event, in a
//!   memory-mapped file.
//! - [`check`]: the judge of such histories: who held what when two could not, which token went
//!   back, who was left waiting. Its rules, and torture's, are in `judge`.
//! - `sim`: a fake engine with leases and a bad network, on virtual time.
//! - [`engines`]: a folder an engine: what torture does to its servers, what the bench and the demo
//!   need there, and locks known to be wrong.
//! - [`mod@bench`]: every figure beside its floor.
//! - [`torture`]: real processes and a seeded schedule of faults, judged and drawn.
//! - [`demo`]: the overselling story, and contenders for one lock, with real processes; [`helper`]
//!   is how a program starts itself for that.
//!
//! Servers, proxies and clocks are in the package `lockkeeper-testkit`.

pub mod bench;
pub mod check;
#[cfg(feature = "sim")]
#[allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a suite says by panicking that a rule is broken"
)]
pub mod conformance;
pub mod demo;
pub mod engines;
pub mod helper;
pub mod history;
mod interrupt;
mod judge;
mod scratch;
#[cfg(feature = "sim")]
pub mod sim;
pub mod torture;
pub mod trouble;
