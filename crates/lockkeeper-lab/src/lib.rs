//! The laboratory of lockkeeper.
