//! Names of locks, and the name spaces they live in.

use std::fmt;
use std::sync::Arc;

use crate::words::error::{Error, ErrorKind};

/// The longest name in bytes.
pub const NAME_MAX: usize = 1024;

/// The resource being locked: non-empty UTF-8 of at most 1 KiB without NUL, case-sensitive, the
/// same on every engine.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    /// Takes a name as it is; nothing is trimmed, folded or normalised.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] when it is empty, longer than 1 KiB, or holds a NUL.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        let why = if name.is_empty() {
            "a lock's name cannot be empty: give it the name of what it guards, such as \
             stock/sku-42"
                .to_owned()
        } else if name.len() > NAME_MAX {
            format!(
                "a lock's name has at most {NAME_MAX} bytes and this one has {}: shorten it",
                name.len()
            )
        } else if name.contains('\0') {
            "a lock's name cannot hold a NUL byte: take it out".to_owned()
        } else {
            return Ok(Self(name.into()));
        };
        Err(Error::new(ErrorKind::InvalidName, why))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// The name space of a name: a mutex is the exclusive mode of the rw-lock of that name, the others
/// stand apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Mutexes and rw-locks.
    Lock,
    /// Semaphores.
    Semaphore,
    /// Elections.
    Election,
    /// Latches.
    Latch,
}

impl Kind {
    /// All kinds, in the order in which listings show them.
    pub const ALL: [Self; 4] = [Self::Lock, Self::Semaphore, Self::Election, Self::Latch];

    /// The word that listings and JSON use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Semaphore => "semaphore",
            Self::Election => "election",
            Self::Latch => "latch",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_verbatim_and_bounded() {
        for good in ["a", "A/b c", ".", "..", "é", "e\u{301}", &"x".repeat(1024)] {
            assert_eq!(Name::new(good).map(|n| n.as_str().to_owned()).ok().as_deref(), Some(good));
        }
        for bad in ["", "a\0b", &"x".repeat(1025)] {
            assert_eq!(Name::new(bad).map_err(|e| e.kind()).err(), Some(ErrorKind::InvalidName));
        }
    }
}
