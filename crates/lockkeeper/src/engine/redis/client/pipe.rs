//! One connection: commands go in from any thread, replies come back in order, pushes are handed on
//! as they arrive.
//!
//! A command that finds few replies outstanding is written by its caller, without a task switch. In
//! a crowd commands gather in a buffer: those who were answered together ask together. One of them
//! writes for all, once all have run ([`Inlet::promise`]), or the one that fills a chunk: many
//! tasks share a few system calls, and the driver's thread sleeps. It writes where no caller reads,
//! and what was asked by one that does not. What gathers and is alike leaves in one call for many
//! names (`group`). A release that nobody waits for is always written by its caller: the process
//! may end before the driver runs. What was queued before it goes with it. In a crowd what gathers
//! to leave in one call does not: it may become more, and stays there but for a request for the
//! same lock.
//!
//! Replies are read by the driver, or by a caller that waits for one ([`Inlet`]): whoever is there
//! first. In a crowd the driver leaves them to callers for a few milliseconds.
//!
//! | file | what it is |
//! |---|---|
//! | `state` | what is to be written, and who waits for an answer |
//! | `group` | requests that leave in one call |
//! | `input` | reading, whoever reads |
//! | `driver` | the task that keeps the connection going |

mod driver;
mod group;
mod input;
mod state;

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;

use super::resp::{Command, Value};
use super::script::Call;
use super::why::Why;
use crate::engine::Inlet;
#[cfg(test)]
use crate::engine::stream::Writer;
use crate::engine::stream::{Lent, Stream};
use driver::Driver;
pub(in crate::engine) use group::{ALONE, Kind, Together};
use input::Input;
use state::State;

/// How much is read at once.
const READ_BYTES: usize = 32 << 10;
/// With fewer replies outstanding a command is always written by its caller: the release before it
/// need not be answered first.
const DIRECT_BELOW: usize = 2;
/// So much that is queued, a full call of many names among it, is written by whoever queued last:
/// the server works on it while the others of a crowd still ask.
const CHUNK: usize = 2 << 10;
/// With so many replies outstanding, or just read, the driver leaves them to the callers that watch
/// the socket, one of which reads for all in their own runtime. What the driver reads, each of them
/// has to be woken for from another thread.
const CROWD: usize = 8;
/// How long it leaves them at a time; it goes on for as long as callers read. With the timer's own
/// grain nobody's reply lies there for longer than about four times this.
const LEFT_FOR: Duration = Duration::from_millis(1);
/// An idle connection is asked for a sign of life after this time, so that a silently dropped one
/// is found early.
const IDLE_PING: Duration = Duration::from_secs(30);

/// Who writes a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Haste {
    /// Whoever writes next, where its caller is one of many.
    Shared,
    /// Its caller.
    Now,
}

/// Why a reply did not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Broken {
    /// Not one byte of the command left us.
    NotSent(Why),
    /// It may have been carried out (R4).
    Unknown(Why),
    /// It was carried out, and too few replicas have it: it does not count.
    Unacknowledged(Why),
}

/// A value and its place in the order of everything that this connection read.
pub(in crate::engine) type Numbered = (u64, Value);
/// What a command comes to.
pub(in crate::engine) type Outcome = Result<Numbered, Broken>;
/// Takes pushes in the order in which they were read.
pub(in crate::engine) type OnPush = Arc<dyn Fn(u64, Vec<Value>) + Send + Sync>;

/// The sending side; cheap to clone.
#[derive(Clone)]
pub(in crate::engine) struct Pipe(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Locked by whoever reads; the state is locked inside it, and never the other way round.
    input: Mutex<Input>,
    lent: Lent,
    /// The driver came while a caller read: that one calls it when it is done.
    missed: AtomicBool,
    /// How often a caller's task read something.
    reads: AtomicU64,
}

impl Pipe {
    /// The pipe over a fresh stream, and the driver that has to be polled for as long as the pipe
    /// is used.
    pub(in crate::engine) fn new(
        stream: Stream,
        reply_within: Duration,
        on_push: OnPush,
    ) -> (Self, impl Future<Output = String> + Send + 'static) {
        let lent = Lent::new(stream.socket());
        let (reader, writer, direct) = stream.split();
        let pipe = Self(Arc::new(Shared {
            state: Mutex::new(State::new(direct)),
            input: Mutex::new(Input::new(on_push)),
            lent,
            missed: AtomicBool::new(false),
            reads: AtomicU64::new(0),
        }));
        let driver = Driver::new(pipe.clone(), reader, writer, reply_within);
        (pipe, driver.run())
    }

    /// Where its replies come in, for callers that wait for one.
    pub(in crate::engine) fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        self.0.lent.socket()?;
        Some(self.0.clone())
    }

    /// Sends commands as one message; the receivers get their replies in order.
    pub(in crate::engine) fn send(&self, commands: &[Command]) -> Vec<oneshot::Receiver<Outcome>> {
        self.send_with(commands, Haste::Shared)
    }

    /// The same for what has to be with the kernel before the caller goes on, where the socket has
    /// room.
    pub(in crate::engine) fn send_now(
        &self,
        commands: &[Command],
    ) -> Vec<oneshot::Receiver<Outcome>> {
        self.send_with(commands, Haste::Now)
    }

    fn send_with(&self, commands: &[Command], haste: Haste) -> Vec<oneshot::Receiver<Outcome>> {
        let mut receivers = Vec::with_capacity(commands.len());
        self.queue(commands, haste, || {
            let (sender, receiver) = oneshot::channel();
            receivers.push(receiver);
            Some(sender)
        });
        receivers
    }

    fn queue(
        &self,
        commands: &[Command],
        haste: Haste,
        mut reply: impl FnMut() -> Option<oneshot::Sender<Outcome>>,
    ) {
        let mut state = self.lock();
        if let Some(why) = &state.ended {
            for sender in commands.iter().filter_map(|_| reply()) {
                _ = sender.send(Err(Broken::NotSent(why.as_str().into())));
            }
            return;
        }
        let idle = state.is_idle();
        let from = state.queue(commands, haste, reply);
        let driver = state.write_some(idle, haste);
        if haste == Haste::Now {
            state.released(from);
        }
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// What is asked goes over so many connections: in a crowd each has its share of the replies.
    pub(in crate::engine) fn is_one_of(&self, connections: usize) {
        self.lock().crowd = CROWD.div_ceil(connections.max(1)).max(2);
    }

    /// From now on such requests may leave in company.
    pub(in crate::engine) fn travel(&self, kind: Kind, together: Together) {
        self.lock().company.travel(kind, together);
    }

    /// Sends a request, perhaps in company, and waits for none.
    pub(in crate::engine) fn send_in_company(
        &self,
        kind: Kind,
        call: &Call,
    ) -> oneshot::Receiver<Outcome> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        if let Some(why) = &state.ended {
            _ = sender.send(Err(Broken::NotSent(why.as_str().into())));
            return receiver;
        }
        let idle = state.is_idle();
        state.queue_in_company(kind, call, sender);
        let driver = state.write_some(idle, Haste::Shared);
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        receiver
    }

    /// Whether TLS has all that was sent, and not the kernel.
    #[cfg(test)]
    pub(in crate::engine) fn keeps_back(&self) -> bool {
        let state = self.lock();
        !state.has_more() && state.writer.as_ref().is_some_and(Writer::keeps_back)
    }

    /// Whether what comes is left to callers.
    #[cfg(test)]
    pub(in crate::engine) fn is_left(&self) -> bool {
        self.lock().left
    }

    /// Whether the driver was called since it waits.
    #[cfg(test)]
    pub(in crate::engine) fn is_called(&self) -> bool {
        self.lock().driver.is_none()
    }

    /// Ends the connection; what is outstanding stays unknown.
    pub(in crate::engine) fn close(&self, why: &str) {
        let driver = {
            let mut state = self.lock();
            state.ended.get_or_insert_with(|| why.to_owned());
            state.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}
