//! One connection of the session, until it ends.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::connection::Connection;
use super::super::errors;
use super::super::liveness::QUIET_PART;
use super::super::proto::{Code, Reply, Request};
use super::super::state::{Fault, Ticket};
use super::super::wire::{Link, Timer, poll_write};
use super::{Role, Shared};
use crate::engine::stream::{Reader, Writer};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};

/// One connection, until it ends; answers why it did.
pub(super) struct Serve {
    shared: Arc<Shared>,
    pub(super) connection: Arc<Connection>,
    reader: Reader,
    writer: Writer,
    timer: Timer,
    timeout: Duration,
    /// Told once the first connection stands and the chroot is known to be there.
    opening: Option<Opening>,
    /// When the end of the session was asked for.
    close_sent: Option<Ticks>,
}

struct Opening {
    ready: oneshot::Sender<Result<()>>,
    chroot: oneshot::Receiver<std::result::Result<Reply, Fault>>,
}

impl Serve {
    pub(super) fn new(
        shared: Arc<Shared>,
        link: Link,
        timeout: Duration,
        ready: Option<oneshot::Sender<Result<()>>>,
    ) -> Self {
        let opening = ready.map(|ready| {
            let root = shared.options.root();
            Opening {
                ready,
                chroot: shared
                    .lock_as(Role::Driver)
                    .call(Request::Exists { path: root, watch: false }),
            }
        });
        let Link { socket, reader, frames, writer, .. } = link;
        let connection = Connection::new(&shared, socket, frames);
        Self {
            shared,
            connection,
            reader,
            writer,
            timer: Timer::new(),
            timeout,
            opening,
            close_sent: None,
        }
    }

    /// Keeps the session alive, and finds out that the connection is dead.
    fn tend(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        loop {
            let last_heard = self.connection.last_heard();
            let mut state = self.shared.lock_as(Role::Driver);
            let now = self.shared.clock.now();
            let silence = now.since(last_heard);
            if silence >= self.timeout * 2 / 5 {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("nothing came from the server for {silence:?}"),
                ));
            }
            let next_beat = state.keep_proven(now);
            state.search(now);
            let watch = state.watch_due(now);
            state.soon_set = watch.is_some();
            let renumber = state.renumber();
            let quiet = now.since(state.last_sent);
            let every = self.timeout / QUIET_PART;
            if quiet >= every {
                state.send(&Request::Ping, Ticket::Nobody);
            }
            let mut wait =
                every.saturating_sub(quiet).min((self.timeout * 2 / 5).saturating_sub(silence));
            wait = wait.min(next_beat.map_or(wait, |at| at.since(now)));
            if let Some(at) = watch {
                wait = wait.min(at.since(now));
            }
            wait = wait.min(renumber.unwrap_or(wait));
            if self.close_sent.is_some() {
                wait = wait.min(Duration::from_millis(100));
            }
            let wait = wait.max(Duration::from_millis(1));
            state.reliance.set(now.plus(wait));
            drop(state);
            self.timer.set(wait);
            if self.timer.poll(cx).is_pending() {
                return Ok(());
            }
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut state = self.shared.lock_as(Role::Driver);
        if self.close_sent.is_none() && state.must_end_session() {
            state.send(&Request::Close, Ticket::Nobody);
            self.close_sent = Some(self.shared.clock.now());
        }
        if poll_write(&mut self.writer, cx, &mut state.out)? {
            state.is_flushed();
        }
        Ok(())
    }

    /// The first connection: whether the chroot is there decides whether it is of use.
    fn open(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(opening) = &mut self.opening else { return Ok(()) };
        let Poll::Ready(answer) = Pin::new(&mut opening.chroot).poll(cx) else { return Ok(()) };
        let root = self.shared.options.root();
        let result = match answer {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(Fault::Code(Code::NO_NODE))) => {
                let text = format!(
                    "the chroot {root} does not exist: create it, or leave it out of the URL"
                );
                Err(Error::new(ErrorKind::Refused, text))
            }
            Ok(Err(Fault::Code(code))) => Err(errors::refused(code, &root)),
            // The connection is about to end, and the next one tries again.
            _ => return Err(io::ErrorKind::ConnectionReset.into()),
        };
        if let Some(opening) = self.opening.take() {
            self.shared.lock_as(Role::Driver).opened = true;
            _ = opening.ready.send(result);
        }
        Ok(())
    }

    /// Whether the engine is closed and everything of it was said.
    fn is_closed(&self) -> bool {
        let (closing, sent) = {
            let state = self.shared.lock_as(Role::Driver);
            (state.closing, state.out.is_empty())
        };
        // The server ends the connection once the session is over; a server that does not is not
        // waited for long.
        let waited = self
            .close_sent
            .is_none_or(|at| self.shared.clock.now().since(at) > Duration::from_millis(500));
        closing && waited && sent
    }
}

impl Future for Serve {
    type Output = (String, Option<oneshot::Sender<Result<()>>>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let serve = self.get_mut();
        *serve.shared.driver.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(cx.waker().clone());
        let done = (|| {
            serve.connection.read(&serve.shared, &mut serve.reader, cx)?;
            serve.open(cx)?;
            serve.tend(cx)?;
            serve.write(cx)
        })();
        let why = match done {
            Err(error) => error.to_string(),
            Ok(()) if serve.is_closed() => "closed".to_owned(),
            Ok(()) => return Poll::Pending,
        };
        Poll::Ready((why, serve.opening.take().map(|o| o.ready)))
    }
}
