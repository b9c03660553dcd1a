//! One distributed lock, every engine.
//!
//! # The tour
//!
//! Read [`locks`](Locks) first: [`Locks::open`] is the one way in. A [`Mutex`] gives an
//! [`Acquire`], whose future gives a [`Guard`]: your turn, until it is released, dropped or
//! [lost](Guard::lost). [`Held`] is the view of it that you hand to everything that works under the
//! lock; its [`Token`] goes with every write.
//!
//! What happens below: `acquire.rs` (the future) asks `keeper/entry.rs` (one name in this process),
//! which steps `protocol/line.rs` (the local line: pure) and carries out what it decides
//! (`keeper/act.rs`) with an [`engine`]. `keeper/leases.rs` renews, `keeper/events.rs` hears the
//! engine, `keeper/driver.rs` is the thread behind it all.

mod acquire;
mod barrier;
mod beside;
pub mod blocking;
mod claim;
mod clock;
pub mod config;
#[doc(hidden)]
pub mod duration;
mod election;
pub mod engine;
mod error;
#[cfg(feature = "redis")]
pub mod fence;
mod guarantee;
mod guard;
mod guarded;
mod home;
mod id;
mod keeper;
mod latch;
mod locks;
mod lost;
mod many;
#[cfg(feature = "metrics")]
mod metrics;
mod mutex;
mod name;
pub mod observe;
mod owner;
mod park;
#[allow(missing_docs, reason = "public to the laboratory alone, through a hidden door")]
mod protocol;
mod rwlock;
mod semaphore;
#[cfg(feature = "serde")]
mod serde;
mod sync;
mod table;
#[cfg(feature = "test-util")]
pub mod test_util;
#[doc(hidden)]
pub mod text;
mod token;
pub mod url;
mod watch;
mod who;

pub use acquire::{Acquire, Acquired, TryAcquire, TryAcquired};
pub use barrier::{DoubleBarrier, Enter, Inside, Leave};
pub use claim::{Claim, Ends, Entry, Holder, Identity, Mode, Through, Unreadable, Waiter};
pub use clock::{Clock, Ticks};
pub use election::{Election, Leader, Observe};
#[cfg(all(feature = "file", target_os = "linux"))]
#[doc(hidden)]
pub use engine::file::direct;
#[cfg(feature = "redis")]
pub use engine::redis::fenced::FencedKeys;
pub use error::{Error, ErrorKind, Result};
pub use guarantee::{Ability, Can, Class, Description, Expiry, Require, Warning};
pub use guard::{Guard, GuardKind, Held, Released};
pub use guarded::Write;
pub use id::ClaimId;
pub use latch::{Latch, Wait};
pub use locks::{Builder, Closed, Locks, default_directory};
pub use lost::Lost;
pub use many::{All, AllGuard};
pub use mutex::Mutex;
pub use name::{Kind, Name};
pub use owner::{Owner, Scope};
#[doc(hidden)]
pub use protocol::margin;
pub use rwlock::{RwLock, UpgradableGuard, Upgrade, WriteGuard, Writing};
pub use semaphore::Semaphore;
pub use token::{BadToken, Token};
pub use watch::Watch;

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
