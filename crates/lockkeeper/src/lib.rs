//! One distributed lock, every engine.

mod claim;
mod clock;
pub mod engine;
mod error;
mod guarantee;
mod id;
mod lost;
mod name;
mod token;

pub use claim::{Claim, Entry, Holder, Identity, Mode, Waiter};
pub use clock::Clock;
pub use error::{Error, ErrorKind, Result};
pub use guarantee::{Can, Class, Description, Require, Warning};
pub use id::ClaimId;
pub use lost::Lost;
pub use name::{Kind, Name};
pub use token::{BadToken, Token};
