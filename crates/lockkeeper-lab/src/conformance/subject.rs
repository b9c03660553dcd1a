//! What the suite is told about one engine and layout.

use std::any::Any;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lockkeeper::{Builder, Locks, Result};

/// The opening of a client.
pub type Opening = Pin<Box<dyn Future<Output = Result<Locks>> + Send>>;

/// Something that is done to a store.
type Deed = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A store of one engine and layout, as the suite uses it. Each case gets a subject of its own.
///
/// Leases should be longer than a machine stands still, about eight seconds, and short, about two,
/// where their end is waited for: [`Subject::briefly`].
pub struct Subject {
    pub(super) name: String,
    pub(super) open: Arc<dyn Fn(Builder) -> Opening + Send + Sync>,
    pub(super) url: Option<String>,
    pub(super) brief: Option<String>,
    pub(super) helper: Option<PathBuf>,
    pub(super) effort: u32,
    pub(super) foreign: bool,
    pub(super) kinds_apart: bool,
    pub(super) elects_by_lock: bool,
    pub(super) wipe: Option<Deed>,
    pub(super) restart: Option<Deed>,
    pub(super) cut: Option<(Deed, Deed)>,
    /// What lives as long as the subject: a directory, a server.
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

fn deed<F: Future<Output = ()> + Send + 'static>(
    deed: impl Fn() -> F + Send + Sync + 'static,
) -> Deed {
    Arc::new(move || Box::pin(deed()))
}

impl Subject {
    /// A store that `open` opens a fresh client of, each time it is called.
    pub fn of(
        name: impl Into<String>,
        open: impl Fn(Builder) -> Opening + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            open: Arc::new(open),
            url: None,
            brief: None,
            helper: None,
            effort: 100,
            foreign: false,
            kinds_apart: false,
            elects_by_lock: false,
            wipe: None,
            restart: None,
            cut: None,
            kept: Vec::new(),
        }
    }

    /// A store that a URL names, for this process and for others.
    pub fn url(name: impl Into<String>, url: impl Into<String>) -> Self {
        let url = url.into();
        let mut subject = Self::of(name, opening(url.clone()));
        subject.url = Some(url);
        subject
    }

    /// The URL of the same store with leases that are over soon, for the cases that wait for the
    /// end of one. Without it they take the subject's own.
    #[must_use]
    pub fn briefly(mut self, url: impl Into<String>) -> Self {
        self.brief = Some(url.into());
        self
    }

    /// A fresh `memory:` store, which only this process sees.
    pub fn memory() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("memory:conformance-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        Self::of("memory", opening(name))
    }

    /// The program that takes locks in another process: a binary whose `main` calls
    /// [`serve`](super::serve).
    #[must_use]
    pub fn helper(mut self, program: impl AsRef<Path>) -> Self {
        self.helper = Some(program.as_ref().to_owned());
        self
    }

    /// How much is done where a case repeats something, in percent of what a fast engine takes; 100
    /// unless said.
    #[must_use]
    pub fn effort(mut self, percent: u32) -> Self {
        self.effort = percent;
        self
    }

    /// A layout that is shared with other programs: names that it cannot say may be refused, with
    /// the reason.
    #[must_use]
    pub fn foreign(mut self) -> Self {
        self.foreign = true;
        self
    }

    /// A shared layout in which every kind has names of its own, as in layouts that are not shared.
    #[must_use]
    pub fn kinds_apart(mut self) -> Self {
        self.kinds_apart = true;
        self
    }

    /// A layout whose elections are locks: the two share their names, as the library that it is
    /// shared with has it.
    #[must_use]
    pub fn electing_by_lock(mut self) -> Self {
        self.elects_by_lock = true;
        self
    }

    /// How everything that is stored is deleted, while nobody has it open.
    #[must_use]
    pub fn wiped_by<F: Future<Output = ()> + Send + 'static>(
        mut self,
        wipe: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        self.wipe = Some(deed(wipe));
        self
    }

    /// How the store's server is restarted, with what it keeps.
    #[must_use]
    pub fn restarted_by<F: Future<Output = ()> + Send + 'static>(
        mut self,
        restart: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        self.restart = Some(deed(restart));
        self
    }

    /// How the store is put out of reach, so that every call hangs, and within reach again.
    #[must_use]
    pub fn cut_by<C, M>(
        mut self,
        cut: impl Fn() -> C + Send + Sync + 'static,
        mend: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self
    where
        C: Future<Output = ()> + Send + 'static,
        M: Future<Output = ()> + Send + 'static,
    {
        self.cut = Some((deed(cut), deed(mend)));
        self
    }

    /// Keeps something for as long as the subject lives: a directory, a server.
    #[must_use]
    pub fn keeping(mut self, thing: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(thing));
        self
    }

    /// The subject's name, for reports.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn opening(url: String) -> impl Fn(Builder) -> Opening + Send + Sync + 'static {
    move |builder| {
        let url = url.clone();
        Box::pin(async move { builder.open(&url).await })
    }
}

impl std::fmt::Debug for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subject")
            .field("name", &self.name)
            .field("kept", &self.kept.len())
            .finish_non_exhaustive()
    }
}
