//! The stock record: how many pieces are left. It trusts its callers as most databases do: whoever
//! writes is believed.
//!
//! It is where the engine is: in a file, in a key of that Redis, in a node of that ensemble.

use std::future::Future;
use std::path::PathBuf;

use crate::engines::file;
#[cfg(feature = "redis")]
use crate::engines::redis;
#[cfg(feature = "zookeeper")]
use crate::engines::zookeeper;
use lockkeeper::url::EngineUrl;
use lockkeeper::{Error, ErrorKind, Result, Token};
use serde::{Deserialize, Serialize};

/// A stock record, opened by one process.
pub(super) enum Stock {
    File(file::stock::FileStock),
    #[cfg(feature = "redis")]
    Redis(redis::stock::RedisStock),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(Box<zookeeper::stock::NodeStock>),
}

impl Stock {
    /// How many pieces are left.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub(super) async fn read(&mut self) -> Result<u64> {
        match self {
            Self::File(stock) => stock.read(),
            #[cfg(feature = "redis")]
            Self::Redis(stock) => stock.read().await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(stock) => stock.read(),
        }
    }

    /// Writes how many pieces are left, whoever asks.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) async fn write(&mut self, left: u64) -> Result<()> {
        match self {
            Self::File(stock) => stock.write(left),
            #[cfg(feature = "redis")]
            Self::Redis(stock) => stock.write(left).await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(stock) => stock.write(left),
        }
    }

    /// The same, unless a newer token than this was seen already; answers whether it was written.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) async fn write_fenced(&mut self, left: u64, token: Token) -> Result<bool> {
        match self {
            Self::File(stock) => stock.write_fenced(left, token),
            #[cfg(feature = "redis")]
            Self::Redis(stock) => stock.write_fenced(left, token).await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(stock) => stock.write_fenced(left, token),
        }
    }
}

/// Where a stock record is, to be told to another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Place {
    /// A file of this machine.
    File(PathBuf),
    /// A key of the engine's server.
    Key(String),
    /// A node of the engine's ensemble.
    Node(String),
}

impl Place {
    /// Opens the record; `url` is the engine's.
    ///
    /// # Errors
    /// When it is not there.
    pub(super) async fn open(&self, url: &str) -> Result<Stock> {
        match self {
            Self::File(path) => Ok(Stock::File(file::stock::FileStock::new(path.clone()))),
            #[cfg(feature = "redis")]
            Self::Key(key) => Ok(Stock::Redis(redis::stock::RedisStock::open(url, key).await?)),
            #[cfg(feature = "zookeeper")]
            Self::Node(path) => {
                Ok(Stock::ZooKeeper(Box::new(zookeeper::stock::NodeStock::open(url, path)?)))
            }
            #[allow(unreachable_patterns, reason = "a build without an engine has no stock there")]
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                format!("this build keeps no stock at {url}"),
            )),
        }
    }
}

/// A stock record of our own; dropping it removes the record.
pub(super) struct Record<'a> {
    url: &'a str,
    name: &'a str,
    place: Place,
    /// Keeps the directory until the end.
    _dir: Option<tempfile::TempDir>,
}

impl<'a> Record<'a> {
    /// Makes a record that nobody else knows, for the lock of this name.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn make(url: &'a str, name: &'a str) -> Result<Self> {
        let scheme = EngineUrl::parse(url)?.scheme;
        let (place, dir) = match scheme.as_str() {
            "redis" | "rediss" | "redis+unix" => (Place::Key(format!("{name}:stock")), None),
            "zk" => (Place::Node(format!("/{}-stock", name.replace('/', "-"))), None),
            _ => {
                let made = tempfile::Builder::new().prefix("lockkeeper-demo-").tempdir();
                let dir =
                    made.map_err(|e| file::stock::failed("make", &std::env::temp_dir(), &e))?;
                (Place::File(dir.path().join("stock")), Some(dir))
            }
        };
        Ok(Self { url, name, place, _dir: dir })
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
        match &self.place {
            Place::File(path) => file::stock::fill(path, pieces),
            #[cfg(feature = "redis")]
            Place::Key(key) => block_on(redis::stock::fill(self.url, key, pieces))?,
            #[cfg(feature = "zookeeper")]
            Place::Node(path) => zookeeper::stock::fill(self.url, path, pieces),
            #[allow(unreachable_patterns, reason = "a build without an engine has no stock there")]
            _ => Err(Error::new(ErrorKind::Unsupported, "this build keeps no stock there")),
        }
    }

    /// What it says at the end.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn left(&self) -> Result<u64> {
        block_on(async { self.place.open(self.url).await?.read().await })?
    }

    fn clear(&self) -> Result<()> {
        match &self.place {
            Place::File(_) => super::clear_file(self.url, self.name),
            #[cfg(feature = "redis")]
            Place::Key(key) => block_on(redis::stock::clear(self.url, key, self.name))?,
            #[cfg(feature = "zookeeper")]
            Place::Node(path) => zookeeper::stock::clear(self.url, path, self.name),
            #[allow(unreachable_patterns, reason = "a build without an engine has no stock there")]
            _ => Ok(()),
        }
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
