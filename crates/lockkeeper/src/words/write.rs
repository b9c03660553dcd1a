//! One write into the store that keeps the lock.

/// One write of [`Held::write`](crate::Held::write). Paths are those of the store, below the URL's
/// chroot: `stock/sku-42`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Write {
    /// Makes something that is not there yet, and that stays.
    Create {
        /// Where.
        path: String,
        /// What it says; up to the store's own limit.
        data: Vec<u8>,
    },
    /// Replaces what is there.
    Put {
        /// Where.
        path: String,
        /// What it says from now on.
        data: Vec<u8>,
    },
    /// Deletes what is there.
    Delete {
        /// Where.
        path: String,
    },
}

impl Write {
    /// Makes something that is not there yet, and that stays.
    pub fn create(path: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        Self::Create { path: path.into(), data: data.into() }
    }

    /// Replaces what is there.
    pub fn put(path: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        Self::Put { path: path.into(), data: data.into() }
    }

    /// Deletes what is there.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::Delete { path: path.into() }
    }

    #[cfg(feature = "zookeeper")]
    pub(crate) fn path(&self) -> &str {
        match self {
            Self::Create { path, .. } | Self::Put { path, .. } | Self::Delete { path } => path,
        }
    }
}
