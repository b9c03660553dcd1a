//! flock(2) shared, then exclusive on the same file: the kernel gives the first up before it waits
//! for the second.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::{BASE, Broken, EVERY, directory, lock, open};
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock, Style};

pub(super) const THIS: Broken = Broken {
    name: "flock-upgrade",
    url: "file:auto",
    what: "it upgrades with flock, which gives the shared lock up first: another client writes \
           between its read and its write",
    convicted_by: &["readers-with-writer"],
    style: Style { shared: true, ..Style::PLAIN },
    make: |orders, _| Ok(Box::new(Lock { directory: directory(orders)?, held: None })),
    ..BASE
};

struct Lock {
    directory: PathBuf,
    held: Option<Flock<File>>,
}

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        let (_, file) = open(&self.directory, name)?;
        self.held = lock(file, FlockArg::LockSharedNonblock, give_up)?;
        Ok(self.held.as_ref().map(|_| Grant::default()))
    }

    fn upgrade(&mut self) -> io::Result<()> {
        let held = self.held.as_ref().ok_or(io::ErrorKind::NotFound)?;
        loop {
            match held.relock(FlockArg::LockExclusiveNonblock) {
                Err(Errno::EWOULDBLOCK | Errno::EINTR) => std::thread::sleep(EVERY),
                Err(errno) => return Err(errno.into()),
                Ok(()) => return Ok(()),
            }
        }
    }

    fn release(&mut self) -> io::Result<Ending> {
        drop(self.held.take());
        Ok(Ending::Released)
    }
}
