//! One distributed lock, every engine: the same lock over kernel file locks (no server), Redis (one
//! server, Sentinel, Cluster, a quorum), ZooKeeper and PostgreSQL.
//!
//! ```sh
//! cargo add lockkeeper                              # memory, files
//! cargo add lockkeeper --features redis             # one Redis or Valkey
//! cargo add lockkeeper --features sentinel          # … behind Sentinels
//! cargo add lockkeeper --features cluster           # … a Cluster
//! cargo add lockkeeper --features redlock           # … a quorum of them
//! cargo add lockkeeper --features zookeeper
//! cargo add lockkeeper --features postgres
//! cargo add lockkeeper --features metrics,serde     # counters; JSON
//! cargo add lockkeeper --dev --features test-util   # a test's own clock
//! ```
//!
//! # The tour
//!
//! [`Locks::open`] is the one way in. A URL names the engine; everything else is the same on each.
//! A [`Mutex`] gives an [`Acquire`], whose future gives a [`Guard`]: your turn, until it is
//! released, dropped or [lost](Guard::lost). [`Held`] is the view of it that you hand to everything
//! that works under the lock, and its [`Token`] goes with every write.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
//! use std::time::Duration;
//! # let dir = tempfile::tempdir().unwrap();
//! # let url = format!("file://{}", dir.path().display());
//! let locks = lockkeeper::Locks::open(&url).await?; // or redis://…, zk://…, postgres://…
//! let guard = locks.mutex("stock/sku-42").lock().timeout(Duration::from_secs(5)).await?;
//! println!("sold under token {}", guard.token()?);
//! assert!(guard.release().await.is_clean());
//! # Ok(()) }
//! ```
//!
//! *Errors*: one [`Error`] with an [`ErrorKind`]; `TimedOut` names the holder, `Unreachable` and
//! `Refused` the server. *Cancel safety*: any future here may be dropped at any await. An
//! acquisition that is dropped leaves nothing behind as soon as the engine can be reached, and at
//! the lease's end when it cannot. A dropped guard releases and waits for nothing.
//!
//! **Only if it is free**, and work that ends with its lock:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
//! # let locks = lockkeeper::Locks::open("memory:").await?;
//! if let Some(guard) = locks.mutex("report").try_lock().await? {
//!     let written = guard.run(async { "forty pages" }).await?; // or until it is lost
//!     println!("{written}");
//! }
//! # Ok(()) }
//! ```
//!
//! *Errors*: busy is `None`; `run` says `Lost`. *Cancel safety*: dropping `run` drops the work and
//! releases.
//!
//! **Readers and writers** ([`RwLock`]), and a reader that may become the writer:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
//! # let locks = lockkeeper::Locks::open("memory:").await?;
//! let prices = locks.rwlock("prices");
//! let (one, two) = (prices.read().await?, prices.read().await?); // together
//! drop((one, two));
//! let mut reader = prices.upgradable().await?;
//! let writer = reader.upgrade().await?; // alone
//! # drop(writer);
//! # Ok(()) }
//! ```
//!
//! *Errors*: an owner that reads and asks to write gets `WouldDeadlock`; only `upgradable`
//! upgrades. *Cancel safety*: a dropped upgrade leaves the reader as it was.
//!
//! **A number of permits** ([`Semaphore`]):
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
//! # let locks = lockkeeper::Locks::open("memory:").await?;
//! let exports = locks.semaphore("exports", 3);
//! let two_of_three = exports.acquire(2).await?;
//! assert!(exports.try_acquire(2).await?.is_none());
//! # drop(two_of_three);
//! # Ok(()) }
//! ```
//!
//! *Errors*: `LimitMismatch` where others use another limit; permits have no token (`NoToken`).
//! *Cancel safety*: as a mutex.
//!
//! **One leader** ([`Election`]), for those who want to know who it is, too:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
//! # let locks = lockkeeper::Locks::open("memory:").await?;
//! let election = locks.election("scheduler");
//! let term = election.stand("host-1").await?; // waits until it leads
//! let leader = election.leader().await?.expect("we lead");
//! assert_eq!(leader.id, "host-1");
//! # drop(term);
//! # Ok(()) }
//! ```
//!
//! *Errors*: a lost term is `Lost`; [`Election::run`] stands again by itself. *Cancel safety*: a
//! dropped candidate leaves the line.
//!
//! **Wait until all are done** ([`Latch`]):
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
//! # let locks = lockkeeper::Locks::open("memory:").await?;
//! let imported = locks.latch("imported");
//! imported.set(2).await?;
//! imported.count_down().await?;
//! imported.count_down().await?; // from anywhere
//! imported.wait().await?;
//! # Ok(()) }
//! ```
//!
//! *Errors*: a write whose answer was lost is `Unknown`. *Cancel safety*: a count-down that was
//! polled happens once, also when it is dropped; a wait may be dropped.
//!
//! **Begin together and end together** ([`DoubleBarrier`]):
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
//! let locks = lockkeeper::Locks::open("zk://a,b,c").await?;
//! let inside = locks.double_barrier("import", 3).enter().await?; // three came in
//! println!("my third");
//! inside.leave().await?; // all three have finished
//! # Ok(()) }
//! ```
//!
//! *Errors*: a member whose session ended is `Lost`. *Cancel safety*: a member that is dropped
//! goes.
//!
//! **Several names, all or none** ([`Locks::all`]), in any order without a deadlock:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
//! # let locks = lockkeeper::Locks::open("memory:").await?;
//! let (from, to) = (locks.mutex("account/1"), locks.mutex("account/2"));
//! let both = locks.all([from.lock(), to.lock()]).await?;
//! assert_eq!(both.guards().len(), 2);
//! # Ok(()) }
//! ```
//!
//! *Errors*: a name given twice is `WouldDeadlock`. *Cancel safety*: dropped, it keeps none of
//! them.
//!
//! **Again by the same owner** ([`Owner`]), because nothing is guessed from threads or tasks:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
//! # let locks = lockkeeper::Locks::open("memory:").await?;
//! let me = lockkeeper::Owner::new();
//! let outer = locks.mutex("stock").lock().owner(&me).await?;
//! let inner = locks.mutex("stock").lock().owner(&me).await?; // does not wait
//! assert_eq!(outer.token()?, inner.token()?);
//! # Ok(()) }
//! ```
//!
//! *Errors*: [`Owner::strict`] answers the second one with `WouldDeadlock`. *Cancel safety*: the
//! last guard to go releases.
//!
//! **Without async** ([`blocking`]), for threads:
//!
//! ```
//! let locks = lockkeeper::blocking::Locks::open("memory:")?;
//! let guard = locks.mutex("stock").lock().run()?;
//! println!("token {}", guard.token()?);
//! assert!(guard.release().is_clean());
//! # Ok::<(), lockkeeper::Error>(())
//! ```
//!
//! *Errors*: a thread that asks twice without an owner gets `WouldDeadlock` at once.
//!
//! **Writes into the store that keeps the lock**: [`Guard::write`], and `fence` for data in Redis.
//! **Looking**: [`Locks::status`], [`Locks::list`], [`Locks::watch`], [`Locks::describe`]. **Logs
//! and numbers**: `tracing` always, [`observe`] for more. **An engine of your own**: [`engine`].
//!
//! # Which engine can do what
//!
//! Of the layout that a URL names by default; [`Locks::describe`] says it of yours, and an
//! operation that an engine lacks is [`ErrorKind::Unsupported`], with what to use instead.
//!
//! | | `memory` | `file` | `redis` | `redlock` | `sentinel` | `cluster` | `zookeeper` | `postgres` |
//! |---|---|---|---|---|---|---|---|---|
//! | [`Mutex`] | yes | yes | yes | yes | yes | yes | yes | yes |
//! | [`RwLock`] | yes | yes | yes | yes | yes | yes | yes | yes |
//! | [`RwLock::upgradable`] | yes | yes | yes | – | yes | yes | yes | yes |
//! | [`Semaphore`] | yes | yes | yes | – | yes | yes | yes | yes |
//! | [`Election`] | yes | yes | yes | – | yes | yes | yes | yes |
//! | [`Latch`] | yes | yes | yes | – | yes | yes | yes | yes |
//! | [`DoubleBarrier`] | – | – | – | – | – | – | yes | – |
//! | [`Locks::all`], in one message | yes | – | yes | – | yes | – | yes | yes |
//! | a line between processes | yes | – | yes | – | yes | yes | yes | yes |
//! | [`Guard::write`] | – | – | – | – | – | – | yes | – |
//! | [`Held::statement`] | – | – | – | – | – | – | – | yes |
//! | [`Acquire::lock_delay`] | – | – | yes | – | yes | yes | – | yes |
//! | [`Locks::ask`] | – | – | – | – | – | – | yes | – |
//! | [`Locks::list`] | yes | yes | yes | yes | yes | yes | yes | yes |
//! | [`Locks::force_release`] | yes | – | yes | yes | yes | yes | yes | yes |
//!
//! Where `Locks::all` is no single message, it takes one name after the other; the line of `file`
//! is the kernel's. What each engine promises, and what breaks it, is in the repository's
//! `SAFETY.md`.

// What happens below: `primitives/acquire.rs` (the future) asks `keeper/entry/` (one name in this
// process), which steps `protocol/line` (the local line: pure) and carries out what it decides
// (`act.rs` in it) with an engine. `keeper/leases.rs` renews, `keeper/events.rs` hears the engine,
// `keeper/driver.rs` is the thread behind it all.

pub mod engine;
mod keeper;
pub mod observe;
mod open;
mod primitives;
#[allow(missing_docs, reason = "public to the laboratory alone, through a hidden door")]
mod protocol;
#[cfg(all(test, any(feature = "redlock", feature = "zookeeper")))]
mod searches;
mod sync;
#[cfg(feature = "test-util")]
pub mod test_util;
mod words;

#[cfg(all(feature = "file", target_os = "linux"))]
#[doc(hidden)]
pub use engine::file::direct;
#[cfg(feature = "redis")]
pub use engine::redis::fenced::FencedKeys;
#[cfg(feature = "redlock")]
#[doc(hidden)]
pub use engine::redlock::laboratory as redlock_laboratory;
pub use open::builder::Builder;
pub use open::locks::{Closed, Locks, default_directory};
pub use open::{config, url};
pub use primitives::acquire::{Acquire, Acquired, TryAcquire, TryAcquired};
pub use primitives::barrier::{DoubleBarrier, Enter, Inside, Leave};
pub use primitives::blocking;
pub use primitives::election::{Election, Leader, Observe};
#[cfg(feature = "redis")]
pub use primitives::fence;
pub use primitives::guard::{Guard, GuardKind, Held, Released};
pub use primitives::latch::{Latch, Wait};
pub use primitives::many::{All, AllGuard};
pub use primitives::mutex::Mutex;
pub use primitives::owner::{Owner, Scope};
pub use primitives::rwlock::{RwLock, UpgradableGuard, Upgrade, WriteGuard, Writing};
pub use primitives::semaphore::Semaphore;
pub use primitives::watch::Watch;
#[doc(hidden)]
pub use protocol::margin;
pub use words::claim::{Claim, Ends, Entry, Holder, Identity, Mode, Through, Unreadable, Waiter};
pub use words::clock::{Clock, Ticks};
pub use words::error::{Error, ErrorKind, Result};
pub use words::guarantee::{Ability, Can, Class, Description, Expiry, Require, Warning};
pub use words::id::ClaimId;
pub use words::lost::Lost;
pub use words::name::{Kind, Name};
pub use words::statement::Statement;
pub use words::token::{BadToken, Token};
pub use words::write::Write;
#[doc(hidden)]
pub use words::{duration, text};

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
