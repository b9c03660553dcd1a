//! Locks on files.

mod flock_upgrade;
mod unlink_on_release;

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::torture::broken::{BASE, Broken};
use crate::torture::orders::Orders;
use crate::torture::raw::GiveUp;

pub(crate) const ALL: &[&Broken] = &[&unlink_on_release::THIS, &flock_upgrade::THIS];

/// How often they try again.
const EVERY: Duration = Duration::from_millis(1);

/// Where lock files are.
fn directory(orders: &Orders) -> Result<PathBuf, String> {
    let path =
        orders.url.strip_prefix("file://").map(|rest| rest.split('?').next().unwrap_or(rest));
    let path = path.map(Path::new).filter(|p| p.is_dir());
    path.map(Path::to_owned).ok_or_else(|| {
        format!("{}: this client needs file:auto, or file:///path/of/a/directory", orders.url)
    })
}

/// The file of a name, made if it is not there.
fn open(directory: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    let path = directory.join(name.replace('/', "_"));
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
    Ok((path, file))
}

/// flock(2), again and again until it succeeds.
fn lock(mut file: File, how: FlockArg, give_up: &GiveUp) -> io::Result<Option<Flock<File>>> {
    while !give_up.is_now() {
        match Flock::lock(file, how) {
            Ok(locked) => return Ok(Some(locked)),
            Err((again, Errno::EWOULDBLOCK | Errno::EINTR)) => file = again,
            Err((_, errno)) => return Err(errno.into()),
        }
        std::thread::sleep(EVERY);
    }
    Ok(None)
}
