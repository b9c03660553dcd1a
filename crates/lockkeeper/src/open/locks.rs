//! The one way in: a [`Locks`] is an engine with the keeper that runs it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Change, Engine, Query, Registration};
use crate::keeper::Keeper;
use crate::open::builder::Builder;
use crate::primitives::guard::Released;
use crate::primitives::mutex::{Base, Mutex};
use crate::words::claim::{Entry, Holder};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::{Ability, Description, Require, Warning};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// How long a probe whose end is not known may take to be cleared up, and how soon that is tried
/// again.
const PROBE_CLEARED_WITHIN: Duration = Duration::from_secs(3);
const PROBE_CLEARED_AGAIN: Duration = Duration::from_millis(100);

/// How many random digits a word to sweep ends in.
const SWEEP_DIGITS: usize = 12;

/// Whether a word has the form that [`Locks::sweep_word`] gives it. None of its characters means
/// something to a pattern or a path.
fn is_drawn(word: &str) -> bool {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    word.split_once('-').is_some_and(|(begin, digits)| {
        !begin.is_empty()
            && begin.bytes().all(|b| b.is_ascii_lowercase())
            && digits.len() == SWEEP_DIGITS
            && digits.bytes().all(is_digit)
            // Random ones are not all alike.
            && digits.bytes().any(|b| !digits.as_bytes().starts_with(&[b]))
    })
}

/// An engine, opened: makes mutexes, rw-locks, semaphores, elections and latches. Clones are the
/// same.
#[derive(Clone)]
pub struct Locks {
    pub(crate) keeper: Arc<Keeper>,
}

/// How [`Locks::close`] went.
#[must_use = "what stayed unknown is still locked until its lease ends"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// The holds whose release was not answered in time.
    pub unknown: Vec<ClaimId>,
}

impl Locks {
    /// Opens the engine that the URL names; docs/urls.md lists schemes and options.
    ///
    /// A server is tried once: where nobody listens, or its name leads nowhere, if only because the
    /// resolver fails for the moment, that is an error at once, and a silent one has
    /// `connect_timeout`. The servers of a ZooKeeper ensemble are tried in turns until then, unless
    /// each of them says so. A service that starts beside its servers opens it again, with a pause,
    /// while the error [is temporary](Error::is_temporary). What is open connects again by itself.
    ///
    /// # Errors
    /// `InvalidArgument` for a scheme or option that does not exist, `Unreachable`, `Refused`,
    /// `NewerLayout`.
    ///
    /// # Cancel safety
    /// Dropping it closes what was opened.
    pub async fn open(url: &str) -> Result<Self> {
        Builder::default().open(url).await
    }

    /// Opens what the command line would use: `LOCKKEEPER_URL`, else `url` in
    /// `~/.config/lockkeeper/config.toml`, else in `/etc/lockkeeper/config.toml`, else the embedded
    /// file engine.
    ///
    /// # Errors
    /// As [`Locks::open`]; an empty `LOCKKEEPER_URL` is `InvalidArgument`.
    pub async fn from_env() -> Result<Self> {
        Self::open(&crate::open::config::url()?.0).await
    }

    /// Opens an engine of your own; the conformance suite of `lockkeeper-lab` runs on it.
    ///
    /// # Errors
    /// What its `open` gives.
    pub async fn with_engine(engine: impl Engine) -> Result<Self> {
        Builder::default().with_engine(engine).await
    }

    /// Makes the URLs of an engine of your own known to this process: [`Locks::open`] takes them
    /// from then on. See [`Registration`] for an example.
    ///
    /// # Errors
    /// `InvalidArgument` for a scheme that has an engine already, and for names that are no words.
    pub fn register(engine: Registration) -> Result<()> {
        crate::open::table::register(engine)
    }

    /// Opens with more than a URL can say.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A mutex: the exclusive mode of the rw-lock of that name. No I/O; a wrong name is told by the
    /// acquisition.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex(Base::new(&self.keeper, Kind::Lock, name.as_ref()))
    }

    /// A read-write lock. No I/O.
    pub fn rwlock(&self, name: impl AsRef<str>) -> crate::RwLock {
        crate::RwLock(Base::new(&self.keeper, Kind::Lock, name.as_ref()))
    }

    /// A semaphore with `limit` permits, 1 to 65 535. No I/O; the limit is stored by the first
    /// acquisition, and another limit than the stored one is `LimitMismatch`.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u16) -> crate::Semaphore {
        crate::Semaphore { base: Base::new(&self.keeper, Kind::Semaphore, name.as_ref()), limit }
    }

    /// An election. No I/O.
    pub fn election(&self, name: impl AsRef<str>) -> crate::Election {
        crate::Election(Base::new(&self.keeper, Kind::Election, name.as_ref()))
    }

    /// A latch. No I/O.
    pub fn latch(&self, name: impl AsRef<str>) -> crate::Latch {
        crate::Latch(Base::new(&self.keeper, Kind::Latch, name.as_ref()))
    }

    /// A double barrier of this many members, 1 to 1024. No I/O.
    pub fn double_barrier(&self, name: impl AsRef<str>, members: u32) -> crate::DoubleBarrier {
        crate::DoubleBarrier { base: Base::new(&self.keeper, Kind::Latch, name.as_ref()), members }
    }

    /// Several locks at once, at most 64: all or nothing. One atomic try where the engine can, else
    /// one after the other in the byte order of their names, so that two callers never wait for
    /// each other. In the native layout of Redis it is one script with the keys of all of them; on
    /// `file`, a Redis Cluster and `redlock` it is one name after the other. One node of a cluster
    /// under `redis://` refuses names of several slots with `Unsupported`.
    pub fn all(&self, locks: impl IntoIterator<Item = crate::Acquire>) -> crate::All {
        crate::All::new(self.keeper.clone(), locks.into_iter().map(|a| a.plan).collect())
    }

    /// What the engine promises, from the values negotiated.
    pub fn describe(&self) -> Description {
        self.keeper.engine.describe()
    }

    /// Refuses an engine that cannot promise this: at start-up, not at the incident.
    ///
    /// # Errors
    /// `NotMet`, saying what the engine promises instead.
    pub fn require(&self, require: Require) -> Result<()> {
        self.describe().require(require)
    }

    /// What the engine knows about one name.
    ///
    /// # Errors
    /// `Corrupt`, `NewerLayout` where its record cannot be read; `Unreachable`, `Refused`,
    /// `Closed`.
    pub async fn status(&self, kind: Kind, name: impl AsRef<str>) -> Result<Entry> {
        let name = Name::new(name)?;
        let entries = self.read(&Query::One(kind, name.clone())).await?;
        Ok(entries.into_iter().next().unwrap_or_else(|| Entry::new(kind, name)))
    }

    /// Every name in use that starts with `prefix`, of every kind. One whose record cannot be read
    /// is there with [`Entry::unreadable`], and keeps the others from nothing.
    ///
    /// # Errors
    /// `Unsupported` where the layout cannot list; `Unreachable`, `Refused`, `Closed`. Where names
    /// are kept by several servers and one does not answer, the error is `Unreachable` and has what
    /// the others told: [`Error::partial`](crate::Error::partial).
    pub async fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        if !self.keeper.facts.can.has(Ability::List) {
            return Err(self.keeper.facts.lacks(Ability::List));
        }
        self.read(&Query::Prefix(prefix.to_owned())).await
    }

    /// Takes a lock away from whoever holds it; answers whether somebody did. Its holder sees it as
    /// lost.
    ///
    /// # Errors
    /// `Unsupported` where it cannot be done; `Unreachable`, `Refused`, `Closed`.
    pub async fn force_release(&self, kind: Kind, name: impl AsRef<str>) -> Result<bool> {
        self.force_release_from(kind, name, &[]).await
    }

    /// The same for these holders alone, as [`Locks::status`] told them: one who came since keeps
    /// it. Without any it is taken away from whoever holds it.
    ///
    /// # Errors
    /// As [`Locks::force_release`].
    pub async fn force_release_from(
        &self,
        kind: Kind,
        name: impl AsRef<str>,
        holders: &[Holder],
    ) -> Result<bool> {
        let name = Name::new(name)?;
        if !self.keeper.facts.can.has(Ability::Force) {
            let text = "this engine cannot take a lock away from a living process; \
                        stop the process that holds it";
            return Err(Error::new(ErrorKind::Unsupported, text)
                .name(&name)
                .engine(self.keeper.facts.engine));
        }
        self.write(&Change::Force(kind, name, holders.to_vec())).await
    }

    /// For how long the engine has said nothing to this process about a name that it waits for, and
    /// what the last question came to.
    #[doc(hidden)]
    pub fn silence(&self, kind: Kind, name: &Name) -> Option<(Duration, Error)> {
        self.keeper.silence_about(kind, name)
    }

    /// Takes a lock of a name of its own, gives it back, and removes what that left: whether locks
    /// can be had here is then known, and not only that the engine answers. Answers what makes
    /// waiting worse.
    ///
    /// # Errors
    /// What keeps locks from being had: `Unreachable`, `Refused`, `Corrupt`, `Closed`.
    ///
    /// # Cancel safety
    /// Dropping it gives the lock back; what the name leaves, such as its last number, then stays
    /// for as long as the engine keeps it.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let locks = lockkeeper::Locks::open("redis://localhost").await?;
    /// for warning in locks.probe().await? {
    ///     eprintln!("{}: {}", warning.id, warning.text);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn probe(&self) -> Result<Vec<Warning>> {
        let engine = self.keeper.facts.engine;
        let name = Name::new(format!("lockkeeper/doctor/{}", ClaimId::fresh()))?;
        let taken = match self.mutex(&name).try_lock().await {
            Ok(Some(guard)) => match guard.release().await {
                Released::Clean => Ok(()),
                Released::Unknown(error) => Err((error, true)),
                _ => {
                    let text = "the engine forgot a lock while it was held: find out what removes \
                                its records";
                    Err((Error::new(ErrorKind::Refused, text), false))
                }
            },
            Ok(None) => {
                let text = "the engine says that a lock of a new name is held";
                Err((Error::new(ErrorKind::Refused, text), false))
            }
            Err(error) => {
                let unknown = matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unreachable);
                Err((error, unknown))
            }
        };
        // Whatever became of it, nothing is left.
        let cleared = if matches!(taken, Err((_, true))) {
            self.keeper.within(PROBE_CLEARED_WITHIN, self.clear_when_free(&name)).await;
            Ok(Vec::new())
        } else {
            self.clear_probe(&name).await
        };
        let of_it = |error: Error| error.name(&name).engine(engine);
        taken.map_err(|(error, _)| of_it(error))?;
        cleared.map_err(of_it)
    }

    async fn clear_probe(&self, name: &Name) -> Result<Vec<Warning>> {
        let cleared = self.keeper.answer(self.keeper.engine.clear_probe(name)).await;
        cleared.and_then(|cleared| cleared)
    }

    /// Clears a probe up whose end is not known, once nobody holds its name: the keeper repeats
    /// meanwhile what gives it back.
    async fn clear_when_free(&self, name: &Name) {
        let free = async || {
            self.status(Kind::Lock, name).await.is_ok_and(|entry| entry.holders.is_empty())
        };
        while !free().await || self.clear_probe(name).await.is_err() {
            self.keeper.within(PROBE_CLEARED_AGAIN, std::future::pending::<()>()).await;
        }
    }

    /// Draws a word that nobody else begins names with, for [`Locks::sweep`]: `begin`, a dash, and
    /// 12 random hexadecimal digits. `begin` is of small letters.
    #[doc(hidden)]
    pub fn sweep_word(begin: &str) -> String {
        let drawn = ClaimId::fresh().to_string();
        format!("{begin}-{}", drawn.get(..SWEEP_DIGITS).unwrap_or(&drawn))
    }

    /// Removes what `lockkeeper bench` and `lockkeeper demo` leave under a word that
    /// [`Locks::sweep_word`] drew for them; answers whether there was something. Whether somebody
    /// holds a lock there is not asked.
    ///
    /// On Redis it deletes **every key of the database that has the word anywhere in it**, of
    /// whatever type and whoever made it: in the layouts of others the lock's name may stand
    /// anywhere in a key. In ZooKeeper it deletes the directory of that name with all that is below
    /// it. Elsewhere nothing is left, and nothing is deleted.
    ///
    /// # Errors
    /// `InvalidArgument` for a word of another form: one that people would choose deletes what is
    /// theirs.
    #[doc(hidden)]
    pub async fn sweep(&self, word: &str) -> Result<bool> {
        if !is_drawn(word) {
            let text = format!(
                "{word:?} is not a word to sweep: it ends in a dash and {SWEEP_DIGITS} random \
                 hexadecimal digits"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.keeper.check_open()?;
        let swept = self.keeper.answer(self.keeper.engine.sweep(word)).await?;
        swept.map_err(|error| error.engine(self.keeper.facts.engine))
    }

    /// Asks whoever holds a lock to let go, which they hear by [`Held::asked`](crate::Held::asked);
    /// answers whether somebody holds it. Whether they do it is theirs to decide.
    ///
    /// # Errors
    /// `Unsupported` where holders cannot be asked; `InvalidName`, `Unreachable`, `Refused`,
    /// `Closed`.
    ///
    /// # Cancel safety
    /// Once polled it happens, also when it is dropped.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let locks = lockkeeper::Locks::open("zk://localhost").await?;
    /// if locks.ask(lockkeeper::Kind::Lock, "stock/sku-42").await? {
    ///     // Somebody holds it, and knows that others need it.
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn ask(&self, kind: Kind, name: impl AsRef<str>) -> Result<bool> {
        let name = Name::new(name)?;
        self.keeper.check_open()?;
        if !self.keeper.facts.can.has(Ability::Ask) {
            let text = "this engine cannot ask a holder to let go";
            let error = Error::new(ErrorKind::Unsupported, text);
            return Err(error.name(&name).engine(self.keeper.facts.engine));
        }
        self.keeper
            .answer(self.keeper.engine.ask(kind, &name))
            .await?
            .map_err(|error| error.engine(self.keeper.facts.engine))
    }

    pub(crate) async fn read(&self, query: &Query) -> Result<Vec<Entry>> {
        self.keeper.read(query).await
    }

    pub(crate) async fn write(&self, change: &Change) -> Result<bool> {
        self.keeper.write(change).await
    }

    /// Follows what changes under a prefix; each item is the whole state afterwards.
    ///
    /// # Errors
    /// `Unsupported`, `Unreachable`, `Refused`, `Closed`.
    pub async fn watch(&self, prefix: &str) -> Result<crate::Watch> {
        crate::Watch::new(self.keeper.clone(), Query::Prefix(prefix.to_owned())).await
    }

    /// Refuses new claims, makes held guards lost (`Closed`), waits up to 5 s for their release and
    /// reports what stayed unknown.
    ///
    /// # Cancel safety
    /// Dropping it leaves the `Locks` closed for new claims; what was not released by then ends
    /// with its lease.
    pub async fn close(&self) -> Closed {
        let unknown = self.keeper.close(Duration::from_secs(5)).await;
        Closed { unknown }
    }
}

impl std::fmt::Debug for Locks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locks").field("engine", &self.keeper.facts.engine).finish_non_exhaustive()
    }
}

/// The directory of the embedded file engine when nothing else is said:
/// [`config::default_place`](crate::open::config::default_place).
///
/// # Errors
/// `InvalidArgument` when `LOCKKEEPER_DIR` is relative, and when no setting says where.
pub fn default_directory() -> Result<PathBuf> {
    Ok(crate::open::home::default_place()?.0)
}
