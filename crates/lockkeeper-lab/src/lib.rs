//! The laboratory of lockkeeper.
//!
//! - [`history`]: what every process did with its locks, one fixed-size record an event, in a memory-mapped file.
//! - [`check`]: the judge of such histories: who held what when two could not, which token went back, who was left waiting.
//! - [`servers`]: real servers, started for a test and gone with it.

pub mod check;
pub mod history;
pub mod servers;
