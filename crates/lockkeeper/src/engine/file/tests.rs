//! The engine as the keeper sees it. Two engines in one process are like two processes: each hold
//! is an open file description of its own.

mod cancel;
mod direct;
mod durable;
mod files;
mod gc;
mod kept_place;
mod latch;
mod mutual;
mod own_wait;
mod permits;
mod processes;
mod refusals;
mod shared;
mod watch;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::File;
use crate::Clock;
use crate::engine::{
    Answer, Attempt, ClaimId, Context, End, Engine, Entry, Event, EventSink, Grant, HoldId, Kind,
    Line, Name, Number, Query, Spawner, Standing,
};
use crate::words::claim::{Claim, Identity, Mode};

/// Only what hangs takes longer than this.
const PATIENCE: Duration = Duration::from_secs(120);

/// An engine, and what it says unasked.
pub(super) struct Peer {
    pub(super) engine: Arc<File>,
    pub(super) events: Receiver<Event>,
}

pub(super) fn who(host: &str) -> Arc<Identity> {
    Identity::of_test(host)
}

pub(super) fn claim(name: &str, mode: Mode) -> Claim {
    Claim::of_test(name, mode, who("here"))
}

pub(super) fn finish<T: Send + 'static>(answer: Answer<T>) -> T {
    match answer {
        Answer::Now(value) => value,
        Answer::Later(future) => {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async {
                tokio::time::timeout(PATIENCE, future).await.expect("an answer in time")
            })
        }
    }
}

/// Looks until it is so; a test that never sees it says what it waited for.
pub(super) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Peer {
    pub(super) fn new(dir: &Path) -> Self {
        Self::with(dir, false)
    }

    pub(super) fn with(dir: &Path, durable: bool) -> Self {
        let (sender, events) = channel();
        let context = Context {
            clock: Clock::real(),
            events: EventSink::new(move |event| drop(sender.send(event))),
            spawner: Spawner::new(|task| {
                std::thread::spawn(move || {
                    tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .unwrap()
                        .block_on(task)
                });
            }),
            who: who("here"),
        };
        let engine = Arc::new(File::new(dir, durable));
        finish(engine.open(context)).unwrap();
        Self { engine, events }
    }

    pub(super) fn attempt(&self, claim: &Claim, line: Line) -> Attempt {
        finish(self.engine.attempt(claim, line))
    }

    /// Asks and must get it.
    pub(super) fn get(&self, name: &str, mode: Mode) -> (HoldId, u64) {
        let claim = claim(name, mode);
        match self.attempt(&claim, Line::Try) {
            Attempt::Granted(grant) => (claim.id, number(&grant)),
            other => panic!("{name} {mode:?}: {other:?}"),
        }
    }

    /// Asks without standing in line; answers whether it got it (and then gives it back).
    pub(super) fn can_get(&self, name: &str, mode: Mode) -> bool {
        let begun = Instant::now();
        loop {
            let claim = claim(name, mode);
            match self.attempt(&claim, Line::Try) {
                Attempt::Granted(_) => {
                    self.release(claim.id);
                    return true;
                }
                Attempt::Busy(_) => return false,
                // One that removes or counts did not get a processor for all that time.
                Attempt::Failed(error)
                    if error.kind() == crate::ErrorKind::Unknown && begun.elapsed() < PATIENCE => {}
                other => panic!("{name} {mode:?}: {other:?}"),
            }
        }
    }

    /// Asks, and must have to wait.
    pub(super) fn stand(&self, name: &str, mode: Mode) -> ClaimId {
        let claim = claim(name, mode);
        match self.attempt(&claim, Line::Join) {
            Attempt::InLine(_) => claim.id,
            other => panic!("{name} {mode:?}: {other:?}"),
        }
    }

    pub(super) fn release(&self, hold: HoldId) -> End {
        finish(self.engine.release(&[hold], None)).ends.remove(0)
    }

    pub(super) fn withdraw(&self, claim: ClaimId) -> End {
        finish(self.engine.withdraw(claim))
    }

    /// The next event, which must be the grant of this claim.
    pub(super) fn granted(&self, claim: ClaimId) -> u64 {
        match self.events.recv_timeout(PATIENCE) {
            Ok(Event::Granted { claim: got, grant }) if got == claim => number(&grant),
            other => panic!("{claim}: {other:?}"),
        }
    }

    /// Nothing comes for a moment.
    pub(super) fn is_silent(&self) -> bool {
        matches!(
            self.events.recv_timeout(Duration::from_millis(30)),
            Err(RecvTimeoutError::Timeout)
        )
    }

    pub(super) fn entry(&self, kind: Kind, name: &str) -> Entry {
        finish(self.engine.read(&Query::One(kind, Name::new(name).unwrap()))).unwrap().remove(0)
    }

    /// Waits until so many wait for a name, as others see it, and all but one of a semaphore's in
    /// the kernel.
    pub(super) fn until_waiters(&self, kind: Kind, name: &str, count: usize) {
        until(&format!("{count} waiters for {name}"), || {
            self.entry(kind, name).waiters.len() == count
        });
        let dozing = usize::from(kind == Kind::Semaphore && count > 0);
        let file = super::name::file_name(kind, &Name::new(name).unwrap());
        let inode =
            std::fs::metadata(self.engine.0.path.join(file.to_str().unwrap())).unwrap().ino();
        let blocked = || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            locks
                .lines()
                .filter(|line| line.contains("->") && line.contains(&format!(":{inode} ")))
                .count()
        };
        until(&format!("{count} waiters for {name} in the kernel"), || blocked() + dozing >= count);
    }
}

pub(super) fn number(grant: &Grant) -> u64 {
    match grant.number {
        Number::Ours(number) => number,
        _ => 0,
    }
}
