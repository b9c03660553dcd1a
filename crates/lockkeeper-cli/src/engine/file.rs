//! The file engine, straight: no keeper, no runtime, and no thread unless it waits.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use lockkeeper::direct::{self, Begin, Files, Pending};
use lockkeeper::engine::{Place, Query};
use lockkeeper::{Result, Token};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::{Asking, Begun, Got, Holding, Release, Stage, Taker, Waiting};
use crate::supervise::is_readable;
use crate::under::{Under, Why};
use crate::urls;

/// How often the lock file is looked after: somebody may delete or replace it.
const EVERY: Duration = Duration::from_millis(500);

/// Refuses a URL that cannot be right.
pub fn check(url: &str) -> Result<()> {
    urls::file(url).map(drop)
}

/// Opens the directory.
pub fn open(url: &str) -> Result<Box<dyn Taker>> {
    let said = urls::file(url)?;
    let files = Files::open(&said.dir, said.durable).map_err(|e| e.engine("file"))?;
    Ok(Box::new(Direct(files)))
}

/// Removes the files that nobody has used.
pub fn gc(url: &str) -> Result<usize> {
    let said = urls::file(url)?;
    Files::open(&said.dir, said.durable).and_then(|files| files.gc()).map_err(|e| e.engine("file"))
}

struct Direct(Files);

impl Direct {
    /// Refuses where it cannot promise what is asked for; nothing is looked at where that is
    /// nothing.
    fn promises(&self, asking: &Asking<'_>) -> Result<()> {
        if asking.require.is_empty() {
            return Ok(());
        }
        let about = self.0.describe();
        asking.require.iter().try_for_each(|require| about.require(*require))
    }
}

impl Taker for Direct {
    fn begin(&self, asking: &Asking<'_>) -> Result<Begun> {
        self.promises(asking)?;
        let claim = asking.claim;
        let begun =
            self.0.begin(claim, asking.line).map_err(|e| e.engine("file").name(&claim.name))?;
        Ok(match begin_what(begun) {
            Ok(got) => Begun::Now(got),
            Err(pending) => {
                let (files, query) = (self.0.clone(), Query::One(claim.kind, claim.name.clone()));
                Begun::Waiting(Box::new(InLine {
                    pending,
                    files,
                    query,
                    pid: claim.who.pid,
                    host: claim.who.host.clone(),
                }))
            }
        })
    }

    fn begin_beside(&self, asking: &Asking<'_>) -> Result<Option<Box<dyn Holding>>> {
        let claim = asking.claim;
        self.promises(asking)?;
        Ok(self.0.begin_beside(claim).map_err(|e| e.engine("file").name(&claim.name))?.map(held))
    }
}

fn held(held: direct::Held) -> Box<dyn Holding> {
    Box::new(Kept(held))
}

fn begin_what(begin: Begin) -> Result<Got, Pending> {
    match begin {
        Begin::Got(got) => Ok(Got::Held(held(got))),
        Begin::Busy(holder) => Ok(Got::Busy(holder)),
        Begin::Waiting(pending) => Err(pending),
    }
}

struct InLine {
    pending: Pending,
    files: Files,
    query: Query,
    pid: u32,
    host: String,
}

impl Waiting for InLine {
    fn news(&self) -> BorrowedFd<'_> {
        self.pending.as_fd()
    }

    fn stage(&mut self) -> Stage {
        if is_readable(self.pending.as_fd()) { Stage::Over } else { Stage::InLine }
    }

    fn place(&mut self) -> Place {
        let Some(entry) =
            self.files.read(&self.query).ok().and_then(|entries| entries.into_iter().next())
        else {
            return self.pending.place().clone();
        };
        let ours = |w: &&lockkeeper::Waiter| {
            w.pid == Some(self.pid) && w.host.as_deref() == Some(&self.host)
        };
        let ahead = entry.waiters.iter().find(ours).map_or(self.pending.place().ahead, |w| w.ahead);
        Place { ahead, holder: entry.holders.into_iter().next().map(Box::new), ..Place::default() }
    }

    fn finish(self: Box<Self>) -> Result<Got> {
        Ok(Got::Held(held(self.pending.finish().map_err(|e| e.engine("file"))?)))
    }
}

struct Kept(direct::Held);

impl Under for Kept {
    fn lost(&self) -> Option<Why> {
        self.0.verify().err().map(Why::Lost)
    }

    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn every(&self) -> Option<Duration> {
        Some(EVERY)
    }
}

impl Holding for Kept {
    fn token(&self) -> Option<Token> {
        self.0.token()
    }

    fn pass_on(&self) -> Result<Option<BorrowedFd<'_>>> {
        self.0.set_inherit(true)?;
        Ok(Some(self.0.fd()))
    }

    fn release(self: Box<Self>, for_all: bool, _waits: &mut dyn FnMut()) -> Release {
        let release = if self.lost().is_some() { Release::AlreadyLost } else { Release::Clean };
        if for_all {
            // Processes that were left behind have the descriptor open too: closing ours would not
            // free it.
            let everything = libc::flock {
                l_type: libc::F_UNLCK as libc::c_short,
                l_whence: libc::SEEK_SET as libc::c_short,
                l_start: 0,
                l_len: 0,
                l_pid: 0,
            };
            _ = fcntl(self.0.fd(), FcntlArg::F_OFD_SETLK(&everything));
        }
        self.0.release();
        release
    }
}
