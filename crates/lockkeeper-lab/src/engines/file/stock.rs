//! The stock as a file of its own: the locks' directory is no place for it.

use super::LAB;
use crate::demo::stock::{Doing, Shelf};
use crate::engines::LabEngine as _;

/// A record in a temporary file; the lock's own file goes with it.
pub(crate) struct File;

impl Shelf for File {
    fn clear<'a>(&self, url: &'a str, _at: &'a str, lock: &'a str) -> Doing<'a, ()> {
        Box::pin(async move { LAB.forget(url, lock) })
    }
}
