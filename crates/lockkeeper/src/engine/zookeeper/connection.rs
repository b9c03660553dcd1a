//! One connection while it serves: read by the session's driver, or by a caller that waits for an
//! answer ([`Inlet`]), whoever is there first.
//!
//! Messages are handed over in the order in which they came: the input is locked from before they
//! are read until they are all dealt with. It is locked before the state, and never while events
//! are told.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use super::session::{Role, Shared};
use super::wire::{Frames, closed};
use crate::engine::stream::{Lent, Reader, input_for_caller};
use crate::engine::{Inlet, Took};
use crate::words::clock::Ticks;

/// See the module.
pub(super) struct Connection {
    shared: Weak<Shared>,
    input: Mutex<Input>,
    lent: Lent,
}

struct Input {
    frames: Frames,
    last_heard: Ticks,
    /// Nothing that is read counts any more.
    over: bool,
    /// Why; found by a caller, told by the driver.
    failed: Option<io::Error>,
}

impl Connection {
    pub(super) fn new(
        shared: &Arc<Shared>,
        socket: Option<Arc<OwnedFd>>,
        frames: Frames,
    ) -> Arc<Self> {
        let input = Input { frames, last_heard: shared.clock.now(), over: false, failed: None };
        Arc::new(Self {
            shared: Arc::downgrade(shared),
            input: Mutex::new(input),
            lent: Lent::new(socket),
        })
    }

    /// Whether callers can read it.
    pub(super) fn is_shared(&self) -> bool {
        self.lent.socket().is_some()
    }

    fn input(&self) -> MutexGuard<'_, Input> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When something came last.
    pub(super) fn last_heard(&self) -> Ticks {
        self.input().last_heard
    }

    /// Nothing that is read from now on counts.
    pub(super) fn close(&self) {
        self.input().over = true;
    }

    /// The driver's way: hands over what is there; `Err` when the connection has to end.
    pub(super) fn read(
        &self,
        shared: &Shared,
        reader: &mut Reader,
        cx: &mut Context<'_>,
    ) -> io::Result<()> {
        loop {
            let mut input = self.input();
            if input.over {
                return input.failed.take().map_or(Ok(()), Err);
            }
            match reader.poll_read(cx, input.frames.scratch()) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err(closed()),
                Poll::Ready(Ok(count)) => input.frames.filled(count),
                Poll::Ready(Err(error)) => return Err(error),
            }
            deal(input, shared, Role::Driver)?;
        }
    }
}

/// Hands over the messages that are complete.
fn deal(mut input: MutexGuard<'_, Input>, shared: &Shared, role: Role) -> io::Result<()> {
    let mut state = shared.lock_as(role);
    input.last_heard = shared.clock.now();
    let dealt = loop {
        match input.frames.next() {
            Ok(Some(frame)) => {
                if let Err(why) = state.frame(&frame) {
                    break Err(io::Error::other(why));
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    input.over |= dealt.is_err();
    let dealt = match dealt {
        Err(error) if role == Role::Lent => {
            input.failed = Some(error);
            state.driver_wanted = true;
            Ok(())
        }
        dealt => dealt,
    };
    // What it came to is told with neither of them locked.
    drop(input);
    drop(state);
    dealt
}

impl Inlet for Connection {
    fn socket(&self) -> Option<&Arc<OwnedFd>> {
        self.lent.socket()
    }

    fn watch(&self) -> bool {
        self.lent.watch()
    }

    fn unwatch(&self) {
        self.lent.unwatch();
    }

    fn take(&self, patient: bool) -> Took {
        let (Some(socket), Some(shared)) = (self.lent.socket(), self.shared.upgrade()) else {
            return Took::Over;
        };
        let Some(mut input) = input_for_caller(&self.input, patient) else { return Took::Nothing };
        if input.over {
            return Took::Over;
        }
        let mut took = Took::Nothing;
        loop {
            let room = input.frames.scratch();
            let most = room.len();
            match nix::unistd::read(&**socket, room) {
                Ok(count) if count > 0 => {
                    input.frames.filled(count);
                    took = Took::Something;
                    // A short read was the last for now.
                    if count < most {
                        break;
                    }
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(nix::errno::Errno::EAGAIN) => break,
                // The driver finds the end of the stream by itself.
                Ok(_) | Err(_) if took == Took::Nothing => return Took::Over,
                Ok(_) | Err(_) => break,
            }
        }
        if took == Took::Something {
            // That it has to end is the driver's to say.
            _ = deal(input, &shared, Role::Lent);
        }
        took
    }
}
