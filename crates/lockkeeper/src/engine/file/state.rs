//! What one engine has open: holds, waits, and files kept for the next time.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use nix::errno::Errno;
use tokio::sync::oneshot;

use super::lockfile::{Key, LockFile};
use super::permits::{Picked, Pool};
use super::wait::Wait;
use super::{presence, wire};
use crate::engine::{ClaimId, HoldId};
use crate::words::claim::Mode;
use crate::words::name::{Kind, Name};

/// A hold and the open file description that has its locks.
pub(super) struct Hold {
    pub(super) key: Arc<Key>,
    pub(super) share: Share,
    pub(super) mode: Mode,
    pub(super) number: u64,
    /// The conversion that brought it into its mode, and the mode before.
    pub(super) converted: Option<(ClaimId, Mode)>,
}

/// What a hold has of its file.
pub(super) enum Share {
    /// An open file description of its own.
    Own {
        /// The file.
        file: LockFile,
        /// Where the holder is shown.
        shown: Option<u16>,
        /// The place in the line that an exclusive hold has kept from its wait.
        place: Option<u16>,
    },
    /// Permits of the process's pool.
    Permits(Arc<Pool>, Picked),
}

impl Share {
    pub(super) fn file(&self) -> &LockFile {
        match self {
            Self::Own { file, .. } => file,
            Self::Permits(pool, _) => pool.file(),
        }
    }

    /// Unlocks whatever it has.
    pub(super) fn unlock(&self) -> Result<(), Errno> {
        match self {
            Self::Own { file, place, .. } => presence::free(file, *place),
            Self::Permits(pool, _) => wire::unlock_all(pool.file()),
        }
    }

    /// Gives up what a lost hold had. A file of its own is closed; permits share theirs with other
    /// holds.
    pub(super) fn let_go(self) {
        if let Self::Permits(pool, picked) = self {
            // What cannot be unlocked stays out until the process ends.
            let _ = pool.give_back(picked);
        }
    }
}

/// A claim whose thread waits in the kernel.
pub(super) struct Waiting {
    pub(super) wait: Arc<Wait>,
    pub(super) key: Arc<Key>,
    /// The hold that it would change.
    pub(super) converts: Option<HoldId>,
    /// Told when the thread has left the wait and nothing of it is left.
    pub(super) left: Vec<oneshot::Sender<()>>,
}

/// What a thread is asking the kernel and the disk for: nothing of it is in the books yet.
#[derive(Default)]
pub(super) struct UnderWay {
    /// The hold that it would change.
    pub(super) converts: Option<HoldId>,
    /// Told when it is in the books, or nothing of it is left.
    pub(super) arrived: Vec<oneshot::Sender<()>>,
}

/// A file that nobody here holds, kept open for the next acquisition.
pub(super) struct Idle {
    pub(super) key: Arc<Key>,
    pub(super) file: LockFile,
}

/// An idle file, and the period in which it was used last.
struct Kept {
    idle: Idle,
    period: u32,
}

/// How many files of each kind are kept open for the next time.
const IDLE_MAX: usize = 128;

#[derive(Default)]
pub(super) struct State {
    pub(super) holds: HashMap<HoldId, Hold, BuildHasherDefault<IdHasher>>,
    pub(super) waits: HashMap<ClaimId, Waiting, BuildHasherDefault<IdHasher>>,
    /// With `durable` alone: a sync is not waited for in the caller.
    pub(super) under_way: HashMap<ClaimId, UnderWay, BuildHasherDefault<IdHasher>>,
    idle: [HashMap<Name, Kept>; Kind::ALL.len()],
    period: u32,
    pools: HashMap<Name, Arc<Pool>>,
    pub(super) closed: bool,
}

fn slot(kind: Kind) -> usize {
    match kind {
        Kind::Lock => 0,
        Kind::Semaphore => 1,
        Kind::Election => 2,
        Kind::Latch => 3,
    }
}

impl State {
    /// Takes the kept file of a name.
    pub(super) fn take_idle(&mut self, kind: Kind, name: &Name) -> Option<Idle> {
        self.idle.get_mut(slot(kind))?.remove(name).map(|kept| kept.idle)
    }

    /// Keeps a file that has no locks for the next time; answers what is to be closed instead,
    /// outside of the lock.
    pub(super) fn put_idle(&mut self, idle: Idle) -> Option<Idle> {
        let period = self.period;
        let Some(files) = self.idle.get_mut(slot(idle.key.kind)) else { return Some(idle) };
        let name = idle.key.name.clone();
        let mut old = None;
        if files.len() >= IDLE_MAX {
            // Any one: with more names than places there is no better guess that is as cheap.
            let any = files.keys().next().cloned()?;
            old = files.remove(&any);
        }
        files.insert(name, Kept { idle, period }).or(old).map(|kept| kept.idle)
    }

    /// Ends a period: takes out what was not used in it, to be closed outside of the lock, and says
    /// whether something is left.
    pub(super) fn sweep(&mut self) -> (Vec<Idle>, bool) {
        let ended = self.period;
        self.period = self.period.wrapping_add(1);
        self.pools.retain(|_, pool| !pool.is_unused());
        let mut old = Vec::new();
        for files in &mut self.idle {
            old.extend(files.extract_if(|_, kept| kept.period != ended).map(|(_, kept)| kept.idle));
        }
        (old, self.idle.iter().any(|files| !files.is_empty()))
    }

    /// What this process has of a semaphore.
    pub(super) fn pool(&self, name: &Name) -> Option<Arc<Pool>> {
        if self.pools.is_empty() { None } else { self.pools.get(name).cloned() }
    }

    /// Remembers a semaphore's pool, and forgets unused ones when they become many.
    pub(super) fn put_pool(&mut self, name: &Name, pool: &Arc<Pool>) {
        if self.pools.len() >= IDLE_MAX {
            self.pools.retain(|_, pool| !pool.is_unused());
        }
        self.pools.insert(name.clone(), pool.clone());
    }

    /// Forgets every kept file.
    pub(super) fn drop_idle(&mut self) {
        self.idle = Default::default();
        self.pools.clear();
    }
}

/// Claim ids are random bits already.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            self.0 ^= u64::from_le_bytes(word);
        }
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = id as u64 ^ (id >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
