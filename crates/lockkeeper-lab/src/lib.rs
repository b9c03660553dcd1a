//! The laboratory of lockkeeper: what tries to break it.
//!
//! - [`conformance`]: the rules, one a case, that every engine and layout must keep.
//! - [`history`]: what every process did with its locks, one fixed-size record an event, in a memory-mapped file.
//! - [`check`]: the judge of such histories: who held what when two could not, which token went back, who was left waiting.
//! - [`sim`]: a fake engine with leases and a bad network, on virtual time.
//! - [`servers`]: real servers, started for a test and gone with it.

pub mod check;
#[allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a suite says by panicking that a rule is broken")]
pub mod conformance;
pub mod dice;
pub mod history;
pub mod servers;
pub mod sim;

pub mod bench;
