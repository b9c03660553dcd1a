//! flock(2), and the file removed with its release: whoever waited on it gets a lock on a file that
//! nobody finds any more.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use nix::fcntl::{Flock, FlockArg};

use super::{BASE, Broken, directory, lock, open};
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock};

pub(super) const THIS: Broken = Broken {
    name: "unlink-on-release",
    url: "file:auto",
    what: "it removes the file when it releases: a waiter on it holds a file without a name, while \
           the next client makes and holds another",
    convicted_by: &["overlap"],
    make: |orders, _| Ok(Box::new(Lock { directory: directory(orders)?, held: None })),
    ..BASE
};

struct Lock {
    directory: PathBuf,
    held: Option<(PathBuf, Flock<File>)>,
}

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        let (path, file) = open(&self.directory, name)?;
        self.held =
            lock(file, FlockArg::LockExclusiveNonblock, give_up)?.map(|locked| (path, locked));
        Ok(self.held.as_ref().map(|_| Grant::default()))
    }

    fn release(&mut self) -> io::Result<Ending> {
        let Some((path, locked)) = self.held.take() else { return Ok(Ending::NotOurs) };
        // Somebody else may have removed it.
        let _ = std::fs::remove_file(path);
        drop(locked);
        Ok(Ending::Released)
    }
}
