//! The stock record: how many pieces are left. It trusts its callers as most databases do: whoever
//! writes is believed.
//!
//! It is where the engine is, if that has a place for it: in a key of that Redis, in a node of that
//! ensemble, in a table of that database; else in a file of this machine. Or it is in another store
//! than the lock, as the user says.

mod file;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use lockkeeper::{Error, ErrorKind, Result, Token};
use serde::{Deserialize, Serialize};

use crate::engines;
use crate::scratch::Scratch;
use file::FileStock;

/// Something that is done with a record.
pub(crate) type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A stock record, opened by one process.
pub(crate) trait Stock: Send {
    /// How many pieces are left.
    ///
    /// # Errors
    /// When the record cannot be read.
    fn read(&mut self) -> Doing<'_, u64>;

    /// Writes how many pieces are left, whoever asks.
    ///
    /// # Errors
    /// When it cannot be written.
    fn write(&mut self, left: u64) -> Doing<'_, ()>;

    /// The same, unless a newer token than this was seen already; answers whether it was written.
    ///
    /// # Errors
    /// When it cannot be written.
    fn write_fenced(&mut self, left: u64, token: Token) -> Doing<'_, bool>;

    /// How many pieces are left, and the record's version, which every write changes.
    ///
    /// # Errors
    /// When the record cannot be read; `Unsupported` where it has no version.
    fn read_version(&mut self) -> Doing<'_, (u64, i64)> {
        Box::pin(async { Err(no_version()) })
    }

    /// Takes a piece if the record is still of this version and there is one; answers whether.
    ///
    /// # Errors
    /// When it cannot be written; `Unsupported` where the record has no version.
    fn take_at_version(&mut self, _version: i64) -> Doing<'_, bool> {
        Box::pin(async { Err(no_version()) })
    }
}

fn no_version() -> Error {
    Error::new(ErrorKind::Unsupported, "this stock record has no version")
}

/// Where an engine's stock records are: in a file of this machine, unless the engine's store has a
/// place for them.
pub(crate) trait Shelf: Sync {
    /// Where the record of this lock is in the store that the URL names; `None` for a file.
    fn place(&self, _url: &str, _lock: &str) -> Option<String> {
        None
    }

    /// Whether its records have a version, so that they can be sold from without any lock.
    fn has_versions(&self) -> bool {
        false
    }

    /// Opens the record that is there.
    ///
    /// # Errors
    /// When the store cannot be reached.
    fn open<'a>(&self, _url: &'a str, at: &'a str) -> Doing<'a, Box<dyn Stock>> {
        Box::pin(async move { Ok(Box::new(FileStock::new(at.into())) as Box<dyn Stock>) })
    }

    /// Puts so many pieces into it, and forgets every token.
    ///
    /// # Errors
    /// When it cannot be written.
    fn fill<'a>(&self, _url: &'a str, at: &'a str, pieces: u64) -> Doing<'a, ()> {
        Box::pin(async move { file::fill(Path::new(at), pieces) })
    }

    /// Removes it, and what the store keeps about the lock that guarded it, if that is there.
    ///
    /// # Errors
    /// When something cannot be removed.
    fn clear<'a>(&self, _url: &'a str, _at: &'a str, _lock: &'a str) -> Doing<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// A record in a file, for an engine that has no better place.
pub(crate) struct InAFile;

impl Shelf for InAFile {}

/// Where a stock record is, to be told to another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    /// The store, or the engine whose record is in a file.
    url: String,
    at: String,
}

impl Place {
    fn shelf(&self) -> &'static dyn Shelf {
        engines::of(&self.url).shelf()
    }

    /// Opens the record.
    ///
    /// # Errors
    /// When it is not there.
    pub(super) async fn open(&self) -> Result<Box<dyn Stock>> {
        self.shelf().open(&self.url, &self.at).await
    }
}

/// A stock record of our own; dropping it removes the record.
pub(super) struct Record<'a> {
    /// The engine's.
    url: &'a str,
    name: &'a str,
    place: Place,
    /// Keeps the directory until the end.
    dir: Option<Scratch>,
}

impl<'a> Record<'a> {
    /// Makes a record that nobody else knows, for the lock of this name on this engine; it is in
    /// another store, if one is named.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn make(url: &'a str, name: &'a str, store: Option<&str>) -> Result<Self> {
        let store = store.unwrap_or(url);
        let (at, dir) = match engines::of(store).shelf().place(store, name) {
            Some(at) => (at, None),
            None => {
                let made = Scratch::new("lockkeeper-demo-");
                let dir = made.map_err(|e| file::failed("make", &std::env::temp_dir(), &e))?;
                let path = dir.path().join("stock").into_os_string().into_string();
                let path = path.map_err(|path| {
                    let text = format!("the path of the stock record is not UTF-8: {path:?}");
                    Error::new(ErrorKind::Refused, text)
                })?;
                (path, Some(dir))
            }
        };
        Ok(Self { url, name, place: Place { url: store.to_owned(), at }, dir })
    }

    /// Whether it can be sold from without any lock.
    pub(super) fn has_versions(&self) -> bool {
        self.dir.is_none() && self.place.shelf().has_versions()
    }

    /// Where it is.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Puts so many pieces on the shelf, and forgets every token.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn fill(&self, pieces: u64) -> Result<()> {
        let Place { url, at } = &self.place;
        block_on(self.place.shelf().fill(url, at, pieces))?
    }

    /// What it says at the end.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn left(&self) -> Result<u64> {
        block_on(async { self.place.open().await?.read().await })?
    }

    fn clear(&self) -> Result<()> {
        let Place { url, at } = &self.place;
        let cleared = block_on(self.place.shelf().clear(url, at, self.name))?;
        if url != self.url {
            // The lock is elsewhere, and no record.
            let shelf = engines::of(self.url).shelf();
            let at = shelf.place(self.url, self.name).unwrap_or_default();
            block_on(shelf.clear(self.url, &at, self.name))??;
        }
        cleared
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        // Removes also what the engine keeps about the demo's lock, when the story is over or was
        // broken off. A file that cannot be removed stays idle until `lockkeeper gc`; a server that
        // is gone has taken everything with it, or keeps it.
        let _ = self.clear();
    }
}

/// Waits for a future on a runtime of its own.
///
/// # Errors
/// When the system has no thread or descriptor left for one.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|e| Error::new(ErrorKind::Refused, format!("cannot start a runtime: {e}")))?;
    Ok(runtime.block_on(future))
}
