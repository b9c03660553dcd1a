//! The laboratory of lockkeeper: what tries to break it.
//!
//! - [`conformance`]: the rules, one a case, that every engine and layout must keep.
//! - [`servers`]: real servers of a test's own.

#[allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a suite says by panicking that a rule is broken")]
pub mod conformance;
pub mod dice;
pub mod servers;

pub mod bench;
