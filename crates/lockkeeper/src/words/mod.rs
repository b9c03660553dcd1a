//! The words that every part shares, one a file.

pub(crate) mod claim;
pub(crate) mod clock;
#[doc(hidden)]
pub mod duration;
pub(crate) mod error;
pub(crate) mod guarantee;
pub(crate) mod id;
pub(crate) mod lost;
pub(crate) mod name;
#[cfg(feature = "serde")]
pub(crate) mod serde;
pub(crate) mod statement;
#[doc(hidden)]
pub mod text;
pub(crate) mod token;
pub(crate) mod write;
