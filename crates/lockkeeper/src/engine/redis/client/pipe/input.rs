//! Reading: by the driver, or by a caller that waits for an answer.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;

use super::super::resp::{Value, parse};
use super::state::State;
use super::{OnPush, READ_BYTES, Shared};
use crate::engine::stream::input_for_caller;
use crate::engine::{Flush, Inlet, Took};

/// What was read and is not dealt out yet.
pub(super) struct Input {
    pub(super) scratch: Vec<u8>,
    bytes: Vec<u8>,
    read: u64,
    on_push: OnPush,
    /// Why nothing can be read any more; found by a caller, told by the driver.
    pub(super) failed: Option<String>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what has come, and deals it out in the calling thread.
    fn read(&self, socket: &OwnedFd, input: &mut Input) -> Took {
        if input.failed.is_some() || self.lock().ended.is_some() {
            return Took::Over;
        }
        let mut took = Took::Nothing;
        loop {
            match nix::unistd::read(socket, &mut input.scratch) {
                // The driver finds the end of the stream by itself.
                Ok(0) => return Took::Over,
                Ok(length) => {
                    took = Took::Something;
                    if let Err(why) = input.took(length, self) {
                        input.failed = Some(why);
                        return took;
                    }
                    // A short read was the last for now.
                    if length < input.scratch.len() {
                        return took;
                    }
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(nix::errno::Errno::EAGAIN) => return took,
                Err(error) => {
                    input.failed = Some(format!("receiving failed: {}", io::Error::from(error)));
                    return Took::Over;
                }
            }
        }
    }

    /// The reader's place, for the driver: it waits for nobody, because a caller that reads runs
    /// code of others, and the keeper's thread has leases to renew. `None`: whoever reads calls it
    /// afterwards.
    pub(super) fn input_for_driver(&self, waker: &Waker) -> Option<MutexGuard<'_, Input>> {
        for _ in 0..2 {
            match self.input.try_lock() {
                Ok(input) => return Some(input),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                // Once more after it was noted: the one who reads may just have looked for the
                // note.
                Err(TryLockError::WouldBlock) => {
                    self.lock().driver = Some(waker.clone());
                    self.missed.store(true, Ordering::SeqCst);
                    fence(Ordering::SeqCst);
                }
            }
        }
        None
    }

    /// Calls the driver, if it came while a caller read.
    fn make_up(&self) {
        // Either the driver finds that the reader's place is free, or its note is found here.
        fence(Ordering::SeqCst);
        if self.missed.load(Ordering::SeqCst) && self.missed.swap(false, Ordering::SeqCst) {
            let driver = self.lock().driver.take();
            if let Some(driver) = driver {
                driver.wake();
            }
        }
    }

    /// Writes what gathers.
    fn flush(&self) {
        let driver = self.lock().flush();
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Calls the driver to what is left of a crowd: whoever read may have been the one who watched.
    fn call_back(&self) {
        let driver = {
            let mut state = self.lock();
            let few = (1..state.crowd).contains(&state.to_come());
            if few && state.forget_crowd() { state.driver.take() } else { None }
        };
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

impl Inlet for Shared {
    fn socket(&self) -> Option<&Arc<OwnedFd>> {
        self.lent.socket()
    }

    fn watch(&self) -> bool {
        self.lent.watch()
    }

    fn unwatch(&self) {
        self.lent.unwatch();
    }

    fn promise(self: Arc<Self>) -> Option<Flush> {
        let promised = self.lock().promise();
        promised.then(|| Flush::new(move || self.flush()))
    }

    fn take(&self, patient: bool) -> Took {
        let Some(socket) = self.lent.socket() else { return Took::Over };
        let Some(mut input) = input_for_caller(&self.input, patient) else { return Took::Nothing };
        let took = self.read(socket, &mut input);
        drop(input);
        // A blocked thread's read is not counted: it reads until its own answer is there, and
        // leaves nobody watching.
        if !patient && matches!(took, Took::Something) {
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        self.make_up();
        self.call_back();
        took
    }
}

impl Input {
    pub(super) fn new(on_push: OnPush) -> Self {
        let scratch = vec![0; READ_BYTES];
        Self { scratch, bytes: Vec::new(), read: 0, on_push, failed: None }
    }

    /// Deals out what is complete, now that so many bytes more stand in the scratch buffer.
    pub(super) fn took(&mut self, length: usize, shared: &Shared) -> Result<(), String> {
        self.bytes.extend_from_slice(self.scratch.get(..length).unwrap_or_default());
        let mut at = 0;
        let done = loop {
            match parse(self.bytes.get(at..).unwrap_or_default()) {
                Ok(Some((value, length))) => {
                    at += length;
                    if let Err(why) = self.deal(value, shared) {
                        break Err(why);
                    }
                }
                Ok(None) => break Ok(()),
                Err(garbage) => {
                    break Err(format!(
                        "what answers there does not speak the Redis protocol: it sent {garbage}"
                    ));
                }
            }
        };
        self.bytes.drain(..at);
        done
    }

    fn deal(&mut self, value: Value, shared: &Shared) -> Result<(), String> {
        self.read += 1;
        // The answer to SUBSCRIBE comes as a push; each of ours names one channel.
        let confirms = |items: &[Value]| {
            matches!(items.first().and_then(Value::text), Some("subscribe" | "unsubscribe"))
        };
        let value = match value {
            Value::Push(items) if !confirms(&items) => {
                (self.on_push)(self.read, items);
                return Ok(());
            }
            value => value,
        };
        let reply = shared.lock().answered(&value);
        match reply {
            Some(reply) => {
                reply.tell(self.read, value);
                Ok(())
            }
            // A server that is full, or protected, says so before it was asked.
            None => Err(match value {
                Value::Error(text) => format!("the server refused the connection: {text}"),
                other => format!("the server sent an unrequested message: {other:?}"),
            }),
        }
    }
}
