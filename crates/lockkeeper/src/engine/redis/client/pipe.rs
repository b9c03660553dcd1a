//! One connection: commands go in from any thread, replies come back in order, pushes are handed on
//! as they arrive.
//!
//! A command that finds the connection all but idle is written by its caller, without a task
//! switch. While more replies are outstanding, commands gather in a buffer. It is written in one go
//! by whoever fills a chunk, and what is left by the driver task: many tasks share a few system
//! calls. A release is always written by its caller, with all that gathered before it: the process
//! may end before the driver runs.
//!
//! Replies are read by the driver, or by a caller that waits for one ([`Inlet`]): whoever is there
//! first. In a crowd the driver leaves them to callers for a few milliseconds.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use super::resp::{Command, Value, parse};
use super::why::Why;
use crate::engine::at_exit::AtRisk;
use crate::engine::stream::{Lent, Reader, Stream, Writer, input_for_caller};
use crate::engine::{Inlet, Took};

/// How much is read at once.
const READ_BYTES: usize = 32 << 10;
/// With fewer replies outstanding a command is written by its caller: the release before it need
/// not be answered first.
const DIRECT_BELOW: usize = 2;
/// So much that gathered is written by whoever queued last: the server works on it while the others
/// of a crowd still ask.
const CHUNK: usize = 2 << 10;
/// With so many replies outstanding the driver leaves them to the callers that watch the socket,
/// one of which reads for all in their own runtime. What the driver reads, each of them has to be
/// woken for from another thread.
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
    /// Its caller where the connection is all but idle, else whoever writes next.
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

/// What was read and is not dealt out yet.
struct Input {
    scratch: Vec<u8>,
    bytes: Vec<u8>,
    read: u64,
    on_push: OnPush,
    /// Why nothing can be read any more; found by a caller, told by the driver.
    failed: Option<String>,
}

struct State {
    /// What callers may write to directly, until the connection has ended.
    writer: Option<Writer>,
    /// Commands that are not written yet.
    out: Vec<u8>,
    /// Bytes ever handed in, and how many of them were written.
    queued: u64,
    written: u64,
    /// The last release, while the end of the process could lose it.
    at_risk: Option<Released>,
    waiting: VecDeque<Waiting>,
    driver: Option<Waker>,
    /// The socket took less than it was given last; the driver writes the rest.
    full: bool,
    /// The driver leaves what comes to callers.
    left: bool,
    /// The driver's timer is set for long, because nothing was sent for a while.
    dozing: bool,
    sent_since_tick: bool,
    /// When the last reply came.
    answered: Instant,
    ended: Option<String>,
}

struct Waiting {
    starts_at: u64,
    since: Instant,
    reply: Option<oneshot::Sender<Outcome>>,
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
        let state = State {
            writer: Some(direct),
            out: Vec::with_capacity(4096),
            queued: 0,
            written: 0,
            at_risk: None,
            waiting: VecDeque::with_capacity(64),
            driver: None,
            full: false,
            left: false,
            dozing: false,
            sent_since_tick: false,
            answered: Instant::now(),
            ended: None,
        };
        let input = Input {
            scratch: vec![0; READ_BYTES],
            bytes: Vec::new(),
            read: 0,
            on_push,
            failed: None,
        };
        let pipe = Self(Arc::new(Shared {
            state: Mutex::new(state),
            input: Mutex::new(input),
            lent,
            missed: AtomicBool::new(false),
            reads: AtomicU64::new(0),
        }));
        let timer = Box::pin(tokio::time::sleep(reply_within / 4));
        let driver = Driver {
            pipe: pipe.clone(),
            reader,
            writer,
            reply_within,
            timer,
            left: None,
            read_before: 0,
        };
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
        let idle = state.waiting.len() < DIRECT_BELOW && state.out.is_empty();
        let from = state.queued;
        let since = Instant::now();
        for command in commands {
            let sender = reply();
            if let Some(why) = &state.ended {
                if let Some(sender) = sender {
                    _ = sender.send(Err(Broken::NotSent(why.as_str().into())));
                }
                continue;
            }
            let (starts_at, before) = (state.queued, state.out.len());
            command.encode(&mut state.out);
            state.queued += (state.out.len() - before) as u64;
            state.waiting.push_back(Waiting { starts_at, since, reply: sender });
        }
        if idle || haste == Haste::Now || state.out.len() >= CHUNK && !state.full {
            state.write_directly();
            if haste == Haste::Now && state.ended.is_none() {
                state.released(from);
            }
        }
        state.sent_since_tick = true;
        let dozing = std::mem::take(&mut state.dozing);
        if (dozing || state.full || !state.out.is_empty())
            && let Some(driver) = state.driver.take()
        {
            drop(state);
            driver.wake();
        }
    }

    /// Whether TLS has all that was sent, and not the kernel.
    #[cfg(test)]
    pub(in crate::engine) fn keeps_back(&self) -> bool {
        let state = self.lock();
        state.out.is_empty() && state.writer.as_ref().is_some_and(Writer::keeps_back)
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
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
    fn input_for_driver(&self, waker: &Waker) -> Option<MutexGuard<'_, Input>> {
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

    /// Calls the driver to what is left of a crowd: whoever read may have been the one who watched.
    fn call_back(&self) {
        let driver = {
            let mut state = self.lock();
            let few = (1..CROWD).contains(&state.waiting.len());
            if few && std::mem::take(&mut state.left) { state.driver.take() } else { None }
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
    /// Deals out what is complete, now that so many bytes more stand in the scratch buffer.
    fn took(&mut self, length: usize, shared: &Shared) -> Result<(), String> {
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
        let waiting = {
            let mut state = shared.lock();
            state.answered = Instant::now();
            let waiting = state.waiting.pop_front();
            state.look_at_risk();
            waiting
        };
        match waiting {
            Some(Waiting { reply, .. }) => {
                if let Some(reply) = reply {
                    _ = reply.send(Ok((self.read, value)));
                }
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

impl State {
    /// Writes what the socket takes at once; errors are left for the driver to find.
    fn write_directly(&mut self) {
        let Some(writer) = &self.writer else { return };
        let length = writer.try_write(&self.out).unwrap_or(0);
        self.full = length < self.out.len() || writer.keeps_back();
        self.out.drain(..length);
        self.written += length as u64;
    }

    /// What was queued from there on gives something back.
    fn released(&mut self, from: u64) {
        let counted = self.at_risk.take().map(|earlier| earlier.counted);
        if self.is_at_risk(from) {
            let counted = counted.unwrap_or_else(AtRisk::begin);
            self.at_risk = Some(Released { from, counted });
        }
    }

    /// Whether the end of the process could lose what was queued from there on: not all is with the
    /// kernel, or the server has something before it to answer.
    fn is_at_risk(&self, from: u64) -> bool {
        self.full || self.waiting.front().is_some_and(|oldest| oldest.starts_at < from)
    }

    /// Something was written, or answered.
    fn look_at_risk(&mut self) {
        if self.at_risk.as_ref().is_some_and(|last| !self.is_at_risk(last.from)) {
            self.at_risk = None;
        }
    }

    /// All that was written is with the kernel.
    fn is_flushed(&mut self) {
        self.full = !self.out.is_empty();
        self.look_at_risk();
    }
}

/// The last releases, and where they begin.
struct Released {
    from: u64,
    counted: AtRisk,
}

struct Driver {
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
    async fn run(mut self) -> String {
        let why = poll_fn(|cx| self.poll(cx)).await;
        self.end(&why);
        why
    }

    /// Tells whoever waits that no answer comes any more.
    fn end(&self, why: &str) {
        let (waiting, written) = {
            let mut state = self.pipe.lock();
            state.ended.get_or_insert_with(|| why.to_owned());
            state.writer = None;
            state.out = Vec::new();
            state.at_risk = None;
            (std::mem::take(&mut state.waiting), state.written)
        };
        for one in waiting {
            let broken = if one.starts_at >= written {
                Broken::NotSent(why.into())
            } else {
                Broken::Unknown(why.into())
            };
            if let Some(reply) = one.reply {
                _ = reply.send(Err(broken));
            }
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
            if full || state.out.is_empty() && !state.full {
                state.driver = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
    }

    /// Writes what the socket takes; says whether it is full, so that it calls once there is room.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut state = self.pipe.lock();
        let mut full = false;
        while !state.out.is_empty() && !full {
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
        // With the state locked, so that nothing is written in between.
        match self.writer.poll_flush(cx)? {
            Poll::Ready(()) => state.is_flushed(),
            Poll::Pending => full = true,
        }
        Ok(full)
    }

    /// Whether what comes is left to callers: they have read since this was looked at last.
    ///
    /// The runtime of a crowd watches for the task that it polled last. That one asked last in
    /// most cases, so its reply comes last, and it reads those of the others. Where it is gone, or
    /// its runtime does something else, the time that this leaves is over soon.
    fn leaves(&mut self, cx: &mut Context<'_>) -> bool {
        let mut state = self.pipe.lock();
        // What lies there for so long that it would be overdue is read first.
        if state.waiting.len() < CROWD || self.timer.is_elapsed() {
            (self.left, state.left) = (None, false);
            return false;
        }
        if self.left.as_mut().is_some_and(|left| left.as_mut().poll(cx).is_pending()) {
            return true;
        }
        let reads = self.pipe.0.reads.load(Ordering::Relaxed);
        state.left = std::mem::replace(&mut self.read_before, reads) != reads;
        if !state.left {
            self.left = None;
            return false;
        }
        drop(state);
        // It has to be polled to be armed; it cannot be ready yet.
        let left = self.left.insert(Box::pin(tokio::time::sleep(LEFT_FOR)));
        left.as_mut().poll(cx).is_pending()
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
