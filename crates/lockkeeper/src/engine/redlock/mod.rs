//! Redlock: a quorum of independent Redis servers. A majority that said yes holds the lock.
//!
//! | file | what it is |
//! |---|---|
//! | `registration`, `options` | what the URL says |
//! | `name`, `record`, `*.lua` | what stands on each member: keys, records, the scripts |
//! | `recipe` | one claim as a pure machine: who was asked, who said what, what follows |
//! | `wire` | one member: its connection, its clock, whether it counts |
//! | `admit`, `floor` | how a member that started comes to count, with numbers above all before |
//! | `acquire` | asking, and asking again |
//! | `watch` | waiting for a word that it is free; following what changes |
//! | `release` | renewing, giving back, and what is left behind on members that did not answer |
//! | `inspect` | who holds what, as the majority says; taking a lock away |
//! | `describe`, `errors` | what it promises, and why there is no majority |

mod acquire;
mod admit;
mod describe;
mod errors;
mod floor;
mod inspect;
mod name;
mod options;
mod recipe;
mod record;
mod registration;
mod release;
mod watch;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

pub(crate) use registration::registration;

use acquire::Entry;
use name::Keys;
use options::RedlockOptions;
use recipe::Silent;
use wire::Member;

use crate::claim::{self, Claim};
use crate::engine::redis::client::resp::Value;
use crate::engine::redis::client::wire::either;
use crate::engine::redis::errors as server_errors;
use crate::engine::{
    Answer, Attempt, BoxFuture, Change, Context, End, Engine, Event, Line, Query, Released,
    Renewal, Standing, WatchId,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guarantee::Description;
use crate::id::{ClaimId, HoldId, LeaseId};

/// The engine; nothing is sent before [`Engine::open`].
pub(crate) struct Redlock {
    options: Arc<RedlockOptions>,
    opened: OnceLock<Arc<Quorum>>,
}

/// The members while the engine is open.
struct Quorum {
    options: Arc<RedlockOptions>,
    context: Context,
    keys: Keys,
    members: Vec<Member>,
    state: Mutex<State>,
    watches: watch::Watches,
    /// No number up to this one is proposed.
    known: Mutex<u64>,
    /// A member is being admitted, or is about to be.
    admitting: AtomicBool,
    closed: AtomicBool,
    /// How many requests to give back are on their way.
    parting: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    claims: BTreeMap<ClaimId, Entry>,
    /// How many claims listen to a channel.
    channels: BTreeMap<String, usize>,
    /// Members that did not answer in time when they were last asked.
    silent: Silent,
}

impl Redlock {
    fn new(options: RedlockOptions) -> Self {
        Self { options: Arc::new(options), opened: OnceLock::new() }
    }

    fn opened(&self) -> Result<&Arc<Quorum>> {
        self.opened.get().ok_or_else(|| Error::new(ErrorKind::Closed, "the engine is not open"))
    }

    /// Asks what is open; before that, the answer is what `closed` makes of the error.
    fn answer<T>(
        &self,
        ask: impl FnOnce(&Arc<Quorum>) -> Answer<T>,
        closed: impl FnOnce(Error) -> T,
    ) -> Answer<T> {
        match self.opened() {
            Ok(quorum) => ask(quorum),
            Err(error) => Answer::Now(closed(error)),
        }
    }
}

impl Engine for Redlock {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let quorum = Quorum::new(self.options.clone(), context);
        if self.opened.set(quorum.clone()).is_err() {
            let error = Error::new(ErrorKind::InvalidArgument, "the engine is open already");
            return Answer::Now(Err(error));
        }
        Answer::later(async move {
            let opened = quorum.open().await;
            if opened.is_err() {
                quorum.end();
            }
            opened
        })
    }

    fn describe(&self) -> Description {
        self.description()
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.answer(|quorum| quorum.ask(claim, line), Attempt::Failed)
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        self.answer(
            |quorum| quorum.recheck(claims),
            |error| vec![Standing::Gone(error); claims.len()],
        )
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        self.answer(|quorum| quorum.leave(claim), |_| End::NotOurs)
    }

    fn convert(&self, _hold: HoldId, claim: &Claim) -> Answer<Attempt> {
        Answer::Now(Attempt::Failed(errors::unsupported(claim.mode.as_str())))
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        self.answer(
            |quorum| quorum.renew(leases),
            |error| leases.iter().map(|_| Renewal::Unknown(error.clone())).collect(),
        )
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        self.answer(
            |quorum| quorum.release(holds, again),
            |_| Released { ends: holds.iter().map(|_| End::NotOurs).collect(), again: None },
        )
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<claim::Entry>>> {
        self.answer(|quorum| Answer::later(quorum.clone().look(query.clone())), Err)
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        self.answer(|quorum| Answer::later(quorum.clone().change(change.clone())), Err)
    }

    fn watch(&self, watch: WatchId, _query: &Query) -> Answer<Result<()>> {
        self.answer(
            |quorum| {
                quorum.watch(watch);
                Answer::Now(Ok(()))
            },
            Err,
        )
    }

    fn unwatch(&self, watch: WatchId) {
        if let Ok(quorum) = self.opened() {
            quorum.watches.remove(watch);
        }
    }

    fn sweep(&self, word: &str) -> Answer<Result<bool>> {
        let word = word.to_owned();
        self.answer(|quorum| Answer::later(quorum.clone().sweep(word)), Err)
    }

    fn close(&self) -> Answer<()> {
        let Ok(quorum) = self.opened() else { return Answer::Now(()) };
        let quorum = quorum.clone();
        quorum.closing();
        Answer::later(async move { quorum.close().await })
    }
}

impl Quorum {
    fn new(options: Arc<RedlockOptions>, context: Context) -> Arc<Self> {
        let program = context.who.program.rsplit('/').next().unwrap_or_default();
        // CLIENT SETNAME takes no spaces.
        let program: String =
            program.chars().map(|c| if c.is_ascii_graphic() { c } else { '-' }).collect();
        let label = format!("lockkeeper:{program}:{}", context.who.pid);
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let members = options.members.iter().enumerate().map(|(at, member)| {
                let weak = weak.clone();
                let hear = Arc::new(move |_, items: Vec<Value>| {
                    if let Some(quorum) = weak.upgrade() {
                        quorum.hear(at, &items);
                    }
                });
                Member::new(member.clone(), context.clock.clone(), label.clone(), hear)
            });
            let db = options.members.first().map_or(0, |member| member.db);
            Self {
                keys: Keys::new(&options.namespace, db),
                members: members.collect(),
                state: Mutex::default(),
                watches: watch::Watches::default(),
                known: Mutex::new(0),
                admitting: AtomicBool::new(false),
                closed: AtomicBool::new(false),
                parting: Arc::default(),
                options,
                context,
            }
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Connects to all members. A majority is enough; the others have a moment more, and go on
    /// being tried.
    ///
    /// # Errors
    /// Too few can be reached, or one can never be a member.
    async fn open(self: &Arc<Self>) -> Result<()> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for at in 0..self.members.len() {
            self.context.spawner.spawn(self.clone().keep_member(at, sender.clone()));
        }
        drop(sender);
        let mut until = Instant::now() + self.options.connect_timeout;
        let (mut up, mut errors) = (0, Vec::new());
        while up + errors.len() < self.members.len() {
            let next = std::pin::pin!(receiver.recv());
            let Ok(Some((at, outcome))) = either(next, std::pin::pin!(sleep_until(until))).await
            else {
                break;
            };
            match outcome {
                Ok(()) => up += 1,
                Err(error) if error.kind() == ErrorKind::Unreachable => errors.push((at, error)),
                Err(error) => return Err(error),
            }
            if up == self.options.majority() {
                let moment = self.options.server_timeout(self.options.ttl);
                until = until.min(Instant::now() + moment);
            }
        }
        if up < self.options.majority() {
            let waited = self.options.connect_timeout;
            for at in (0..self.members.len()).filter(|at| !self.is_up(*at)) {
                if errors.iter().all(|(other, _)| other != &at) {
                    let error = self.silence(at, self.context.clock.now(), waited);
                    errors.extend(error.map(|error| (at, error)));
                }
            }
            return Err(errors::too_few(&self.options, &errors));
        }
        self.admit().await;
        self.misfit().map_or(Ok(()), Err)
    }

    fn is_up(&self, at: usize) -> bool {
        self.members.get(at).is_some_and(|member| member.link.is_up())
    }

    /// Keeps one connection; tells the first outcome.
    async fn keep_member(
        self: Arc<Self>,
        at: usize,
        first: mpsc::UnboundedSender<(usize, Result<()>)>,
    ) {
        let Some(member) = self.members.get(at) else { return };
        let (driver, outcome) = match member.link.connect().await {
            Ok(driver) => (Some(driver), self.came_up(at)),
            Err(error) => (None, Err(error)),
        };
        // Nobody listens any more once there is a majority.
        let _ = first.send((at, outcome));
        drop(first);
        let quorum = self.clone();
        let tell = move |up| {
            if up {
                // Why it does not count is told by whoever misses a majority, and by `describe`.
                let _ = quorum.came_up(at);
                quorum.look_over();
                // It may have forgotten what we hold: every hold is renewed, and restored there.
                quorum.context.events.send(Event::Link { up: true });
            } else if quorum.members.iter().filter(|m| m.link.is_up()).count()
                < quorum.options.majority()
            {
                quorum.context.events.send(Event::Link { up: false });
            }
        };
        member.link.clone().keep(driver, tell).await;
    }

    /// A member was connected, and said what it is.
    ///
    /// # Errors
    /// It can never count.
    fn came_up(&self, at: usize) -> Result<()> {
        let Some(member) = self.members.get(at) else { return Ok(()) };
        member.came_up();
        let run_id = |member: &Member| member.link.facts().and_then(|facts| facts.run_id);
        let (facts, ours) = (member.link.facts(), run_id(member));
        let twin = ours.is_some().then(|| {
            let mut others = self.members.iter().enumerate();
            others
                .find(|(other, member)| *other != at && !member.is_twin() && run_id(member) == ours)
        });
        let twin = twin.flatten();
        member.set_twin(twin.is_some());
        let address = &member.options.address;
        if let Some((_, other)) = twin {
            let text = format!(
                "{address} and {} are the same server, which would vote twice: name {} different \
                 servers",
                other.options.address,
                self.members.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if facts.is_some_and(|facts| facts.uptime.is_none()) {
            let text = format!(
                "Redis at {address} does not let this user run INFO, which says whether it may \
                 have forgotten leases: allow +info"
            );
            return Err(Error::new(ErrorKind::Refused, text));
        }
        Ok(())
    }

    /// From now on the engine's tasks end.
    fn closing(&self) {
        self.closed.store(true, Ordering::Release);
        self.watches.close();
    }

    /// Ends every connection, once what is being given back is gone where somebody answers.
    async fn close(&self) {
        let until = Instant::now() + self.options.server_timeout(self.options.ttl) * 2;
        // Futures that were handed over a moment ago count only once they are polled.
        tokio::task::yield_now().await;
        while self.parting.load(Ordering::Acquire) > 0 && Instant::now() < until {
            sleep(Duration::from_millis(2)).await;
        }
        self.end();
    }

    fn end(&self) {
        self.closing();
        for member in &self.members {
            member.link.close();
        }
    }

    /// Asks every member the same, and gives what they said: all answers of those that usually
    /// answer, as long as they come in time.
    ///
    /// # Errors
    /// Fewer than a majority answered.
    async fn of_all<T: Send + 'static>(
        self: &Arc<Self>,
        ask: impl Fn(Arc<Self>, usize) -> BoxFuture<Result<T>>,
    ) -> Result<Vec<(usize, T)>> {
        let count = self.members.len();
        let mut asked: Vec<(usize, BoxFuture<Result<T>>)> =
            (0..count).map(|at| (at, ask(self.clone(), at))).collect();
        let (mut told, mut errors) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        let soon = self.options.server_timeout(self.options.ttl);
        let mut until = begun + soon;
        while !asked.is_empty() {
            let enough = told.len() >= self.options.majority();
            let silent = self.state().silent;
            if enough && asked.iter().all(|(at, _)| silent.0 & (1 << at) != 0) {
                break;
            }
            match first(&mut asked, until).await {
                Some((at, Ok(value))) => {
                    self.state().silent.0 &= !(1 << at);
                    told.push((at, value));
                }
                Some((at, Err(error))) => errors.push((at, error)),
                None if enough || until > begun + soon => break,
                None => until = begun + self.options.request_timeout.max(soon),
            }
        }
        for (at, _) in &asked {
            self.state().silent.0 |= 1 << at;
            let now = self.context.clock.now();
            errors.extend(self.silence(*at, now, begun.elapsed()).map(|error| (*at, error)));
        }
        if told.len() < self.options.majority() {
            return Err(errors::too_few(&self.options, &errors));
        }
        Ok(told)
    }

    fn garbage(&self, at: usize) -> Error {
        match self.members.get(at) {
            Some(member) => server_errors::garbage(&member.options),
            None => Error::new(ErrorKind::Corrupt, "a member that is none answered"),
        }
    }
}

/// The first of these that is ready, or `None` when the time is over.
async fn first<K: Copy, T>(futures: &mut Vec<(K, BoxFuture<T>)>, until: Instant) -> Option<(K, T)> {
    let ready = poll_fn(|cx| {
        for at in 0..futures.len() {
            if let Some((key, future)) = futures.get_mut(at)
                && let Poll::Ready(value) = future.as_mut().poll(cx)
            {
                let key = *key;
                drop(futures.swap_remove(at));
                return Poll::Ready((key, value));
            }
        }
        Poll::Pending
    });
    either(std::pin::pin!(ready), std::pin::pin!(sleep_until(until))).await.ok()
}

/// All of them, in order, each driven while the others wait.
async fn all<T: Send + 'static>(futures: Vec<BoxFuture<T>>) -> Vec<T> {
    let mut running: Vec<(BoxFuture<T>, Option<T>)> =
        futures.into_iter().map(|future| (future, None)).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for (future, done) in &mut running {
            if done.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => *done = Some(value),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    running.into_iter().filter_map(|(_, done)| done).collect()
}
