//! The task that keeps a connection going: it writes what gathered, reads what no caller reads, and
//! finds out that the connection is over.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::{Broken, Haste, IDLE_PING, LEFT_FOR, Pipe};
use crate::engine::redis::resp::Command;
use crate::engine::stream::{Reader, Writer};

pub(super) struct Driver {
    pipe: Pipe,
    reader: Reader,
    writer: Writer,
    reply_within: Duration,
    timer: Pin<Box<Sleep>>,
    /// How long it leaves what comes to callers.
    left: Option<Pin<Box<Sleep>>>,
    /// How often they had read when that began.
    read_before: u64,
}

/// Also where its runtime ends and drops it, whoever waits in another hears of it.
impl Drop for Driver {
    fn drop(&mut self) {
        self.end("the runtime that kept the connection has ended");
    }
}

impl Driver {
    pub(super) fn new(pipe: Pipe, reader: Reader, writer: Writer, reply_within: Duration) -> Self {
        let timer = Box::pin(tokio::time::sleep(reply_within / 4));
        Self { pipe, reader, writer, reply_within, timer, left: None, read_before: 0 }
    }

    pub(super) async fn run(mut self) -> String {
        let why = poll_fn(|cx| self.poll(cx)).await;
        self.end(&why);
        why
    }

    /// Tells whoever waits that no answer comes any more.
    fn end(&self, why: &str) {
        let waiting = self.pipe.lock().end(why);
        for (reply, sent) in waiting {
            let why = why.into();
            reply.broken(if sent { Broken::Unknown(why) } else { Broken::NotSent(why) });
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        loop {
            let full = match self.poll_write(cx) {
                Ok(full) => full,
                Err(error) => {
                    // A server that is full says so, and ends: that has come before.
                    while matches!(self.poll_read(cx), Poll::Ready(Ok(()))) {}
                    return Poll::Ready(format!("sending failed: {error}"));
                }
            };
            match self.poll_read(cx) {
                Poll::Ready(Err(why)) => return Poll::Ready(why),
                // Replies made room: what gathered meanwhile goes out before the task sleeps.
                Poll::Ready(Ok(())) => continue,
                Poll::Pending => {}
            }
            if let Poll::Ready(why) = self.poll_timer(cx) {
                return Poll::Ready(why);
            }
            let mut state = self.pipe.lock();
            if let Some(why) = &state.ended {
                return Poll::Ready(why.clone());
            }
            // What slipped in since the write found no waker to call.
            if full || !state.has_more() && !state.full {
                state.driver = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
    }

    /// Writes what the socket takes; says whether it is full, so that it calls once there is room.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut state = self.pipe.lock();
        let mut full = false;
        while state.has_more() && !full {
            // Others join what cannot be written yet.
            if state.out.is_empty() {
                state.close();
            }
            match self.writer.poll_write(cx, &state.out) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(length)) => {
                    state.out.drain(..length);
                    state.written += length as u64;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => full = true,
            }
        }
        state.promised &= state.has_more();
        // With the state locked, so that nothing is written in between.
        match self.writer.poll_flush(cx)? {
            Poll::Ready(()) => state.is_flushed(),
            Poll::Pending => full = true,
        }
        Ok(full)
    }

    /// Whether what comes is left to callers: since this was looked at last they have read, or some
    /// watch now that did not.
    ///
    /// The runtime of a crowd watches for the task that it polled last. That one asked last in
    /// most cases, so its reply comes last, and it reads those of the others. Where it is gone, or
    /// its runtime does something else, the time that this leaves is over soon.
    fn leaves(&mut self, cx: &mut Context<'_>) -> bool {
        let mut state = self.pipe.lock();
        // What lies there for so long that it would be overdue is read first.
        if self.timer.is_elapsed() {
            (self.left, state.left) = (None, false);
            return false;
        }
        if !state.is_crowd() {
            (self.left, state.left, state.lent) = (None, false, false);
            // Nobody of those that read now is one of a later crowd.
            self.read_before = self.pipe.0.reads.load(Ordering::Relaxed);
            return false;
        }
        if self.left.as_mut().is_some_and(|left| left.as_mut().poll(cx).is_pending()) {
            state.left = true;
            return true;
        }
        state.peak = 0;
        let anew = self.left.is_none();
        let reads = self.pipe.0.reads.load(Ordering::Relaxed);
        let read = std::mem::replace(&mut self.read_before, reads) != reads;
        let lent = std::mem::take(&mut state.lent) && anew;
        if !read && !lent {
            (self.left, state.left) = (None, false);
            return false;
        }
        // It has to be polled to be armed: nobody is left to it before.
        let left = self.left.insert(Box::pin(tokio::time::sleep(LEFT_FOR)));
        state.left = left.as_mut().poll(cx).is_pending();
        state.left
    }

    /// Reads once and deals out what is complete.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        if self.leaves(cx) {
            return Poll::Pending;
        }
        let Some(mut input) = self.pipe.0.input_for_driver(cx.waker()) else {
            return Poll::Pending;
        };
        if let Some(why) = input.failed.take() {
            return Poll::Ready(Err(why));
        }
        let length = match self.reader.poll_read(cx, &mut input.scratch) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => {
                return Poll::Ready(Err(format!("receiving failed: {error}")));
            }
            Poll::Ready(Ok(length)) => length,
        };
        if length == 0 {
            return Poll::Ready(Err("the server closed the connection".into()));
        }
        Poll::Ready(input.took(length, &self.pipe.0))
    }

    /// Ends the connection when a reply is overdue; asks for a sign of life when it was idle for
    /// long.
    ///
    /// A message of many commands has one time, and its last reply may be due long after it; so the
    /// next reply counts from the one before it.
    ///
    /// One timer ticks four times in the time that a reply may take, and only while something is
    /// sent: a timer for each request would cost more than the request's own bookkeeping.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        let tick = self.reply_within / 4;
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let mut state = self.pipe.lock();
            let answered = state.answered;
            let oldest = state.waiting.front().map(|w| w.since.max(answered));
            if oldest.is_some_and(|since| now >= since + self.reply_within) {
                return Poll::Ready(format!(
                    "the server did not answer within {:?}",
                    self.reply_within
                ));
            }
            let quiet = !std::mem::take(&mut state.sent_since_tick) && oldest.is_none();
            state.dozing = quiet;
            if quiet && now >= answered + IDLE_PING {
                state.answered = now;
                drop(state);
                self.pipe.queue(&[Command::new(["PING"])], Haste::Shared, || None);
            } else {
                drop(state);
                self.timer.as_mut().reset(if quiet {
                    answered.max(now) + IDLE_PING
                } else {
                    now + tick
                });
            }
        }
        // Woken out of its doze, by the first command for a while.
        let mut state = self.pipe.lock();
        if state.sent_since_tick
            && !state.dozing
            && self.timer.deadline() > Instant::now() + self.reply_within
        {
            state.sent_since_tick = false;
            drop(state);
            self.timer.as_mut().reset(Instant::now() + tick);
            // It has to be polled to be armed; it cannot be ready yet.
            _ = self.timer.as_mut().poll(cx);
        }
        Poll::Pending
    }
}
