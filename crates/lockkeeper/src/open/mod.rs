//! The one way in: a URL, the table of engines, where the choice comes from.

pub(crate) mod builder;
pub mod config;
pub(crate) mod home;
pub(crate) mod locks;
pub(crate) mod table;
pub mod url;
