//! The laboratory of lockkeeper.

pub mod servers;
