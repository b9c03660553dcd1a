//! Kernel locks in a directory.

pub(crate) mod arena;
pub(crate) mod broken;
pub(crate) mod run;
pub(crate) mod stock;
