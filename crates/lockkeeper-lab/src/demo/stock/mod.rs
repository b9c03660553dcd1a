//! The stock record: how many pieces are left. It trusts its callers as most databases do: whoever writes is believed.

mod file;

use std::path::PathBuf;

use lockkeeper::{Result, Token};
use serde::{Deserialize, Serialize};

/// A stock record, opened by one process.
pub(super) trait Stock: Send {
    /// How many pieces are left.
    ///
    /// # Errors
    /// When the record cannot be read.
    fn read(&mut self) -> Result<u64>;

    /// Writes how many pieces are left, whoever asks.
    ///
    /// # Errors
    /// When it cannot be written.
    fn write(&mut self, left: u64) -> Result<()>;

    /// The same, unless a newer token than this was seen already; answers whether it was written.
    ///
    /// # Errors
    /// When it cannot be written.
    fn write_fenced(&mut self, left: u64, token: Token) -> Result<bool>;
}

/// Where a stock record is, to be told to another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Place {
    /// A file of this machine.
    File(PathBuf),
}

impl Place {
    /// Opens the record.
    ///
    /// # Errors
    /// When it is not there.
    pub(super) fn open(&self) -> Result<Box<dyn Stock>> {
        match self {
            Self::File(path) => Ok(Box::new(file::FileStock::new(path.clone()))),
        }
    }
}

/// A stock record of our own; dropping it removes the record.
pub(super) struct Record {
    place: Place,
    /// Keeps the directory until the end.
    _dir: tempfile::TempDir,
}

impl Record {
    /// Makes a record that nobody else knows.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn make() -> Result<Self> {
        let dir =
            tempfile::Builder::new().prefix("lockkeeper-demo-").tempdir().map_err(|e| file::failed("make", &std::env::temp_dir(), &e))?;
        Ok(Self { place: Place::File(dir.path().join("stock")), _dir: dir })
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
            Place::File(path) => file::fill(path, pieces),
        }
    }

    /// What it says at the end.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn left(&self) -> Result<u64> {
        self.place.open()?.read()
    }
}
