//! Redlock: a quorum of independent Redis servers. A majority that said yes holds the lock.
//!
//! | file | what it is |
//! |---|---|
//! | `registration`, `options` | what the URL says |
//! | `name`, `record`, `*.lua` | what stands on each member: keys, records, the scripts |
//! | `plain`, `plain/*.lua` | the same in the layout of redsync, node-redlock and RedLock.net |
//! | `redisson/*.lua` | and in that of RedissonRedLock and RedissonMultiLock |
//! | `recipe` | one claim as a pure machine: who was asked, who said what, what follows |
//! | `timer` | how long answers are waited for |
//! | `wire`, `heard` | one member: its connection, its clock, whether it counts; what it says |
//! | `connect` | connecting to all, and whether a majority is there |
//! | `proposal` | which number is asked for |
//! | `admit`, `floor` | how a member that started comes to count, with numbers above all before |
//! | `acquire`, `send`, `answers` | asking, what is answered, and asking again |
//! | `waiter` | when a waiter asks again, as a pure machine |
//! | `waiting`, `watch` | waiting; words that it is free; following what changes |
//! | `release` | renewing, giving back, and what is left behind on members that did not answer |
//! | `inspect` | who holds what, as the majority says; taking a lock away |
//! | `beside` | locks of another layout under the same name |
//! | `describe`, `errors` | what it promises, and why there is no majority |

mod acquire;
mod admit;
mod answers;
mod beside;
mod connect;
mod describe;
mod errors;
mod floor;
mod heard;
mod inspect;
mod name;
mod options;
mod plain;
mod proposal;
mod recipe;
mod record;
mod registration;
mod release;
mod send;
mod timer;
mod waiter;
mod waiting;
mod watch;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub use registration::laboratory;
pub(crate) use registration::registration;

use acquire::Entry;
use name::Keys;
use options::RedlockOptions;
use plain::Plain;
use proposal::Slewed;
use recipe::Silent;
use timer::Timer;
use wire::Member;

use crate::engine::either::either;
use crate::engine::parting::Partings;
use crate::engine::redis::client::inlets::All;
use crate::engine::redis::client::node::Node;
use crate::engine::redis::client::resp::Value;
use crate::engine::redis::errors as server_errors;
use crate::engine::{
    Answer, Attempt, BoxFuture, Change, Context, End, Engine, Inlet, Line, Query, Released,
    Renewal, Standing, WatchId,
};
use crate::words::claim::{self, Claim};
use crate::words::clock::{Clock, Ticks};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::{Description, Warning};
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::name::Name;

/// The engine; nothing is sent before [`Engine::open`].
pub(crate) struct Redlock {
    options: Arc<RedlockOptions>,
    opened: OnceLock<Arc<Quorum>>,
}

/// The members while the engine is open.
struct Quorum {
    options: Arc<RedlockOptions>,
    context: Context,
    /// Waits, proposed numbers and `not_after` are counted on this clock, and on no other: a time
    /// of day that is set forward ends none of them (R1).
    steady: Clock,
    keys: Keys,
    members: Vec<Member>,
    /// Where their answers come in.
    inlet: Option<Arc<All>>,
    timer: Timer,
    state: Mutex<State>,
    watches: watch::Watches,
    /// No number up to this one is proposed.
    known: Mutex<u64>,
    /// The clock that is proposed by.
    slewed: Mutex<Slewed>,
    /// Somebody wishes that members are admitted.
    sooner: Notify,
    /// When all were asked last whether they can be, on the steady clock; 0: not yet.
    looked: AtomicU64,
    /// `open` has asked about all members that were connected in time.
    looked_over: AtomicBool,
    connected: Mutex<Connected>,
    closed: AtomicBool,
    parting: Partings,
}

/// Whether a majority is connected.
struct Connected {
    /// What was told last.
    told: bool,
    /// It is being told, with nothing locked.
    telling: bool,
}

#[derive(Default)]
struct State {
    claims: BTreeMap<ClaimId, Entry>,
    /// How many listen to a channel: claims, and whoever waited for its name a moment ago.
    channels: BTreeMap<String, usize>,
    /// Until when the latter do.
    lingers: BTreeMap<String, Ticks>,
    /// Holds that are to say that they are ones, and when, on the steady clock.
    marks: VecDeque<(Ticks, ClaimId)>,
    /// Members that did not answer in time when they were last asked, and since when, on the steady
    /// clock.
    silent: BTreeMap<usize, Ticks>,
}

impl State {
    /// Those that have not answered for so long.
    fn hangs(&self, now: Ticks, time: Duration) -> Silent {
        let those = self.silent.iter().filter(|(_, since)| since.plus(time) <= now);
        Silent(those.fold(0, |all, (member, _)| all | 1 << member))
    }
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

    fn give_back(
        &self,
        holds: &[HoldId],
        again: Option<&Claim>,
        awaited: bool,
    ) -> Answer<Released> {
        self.answer(
            |quorum| quorum.release(holds, again, awaited),
            |_| Released { ends: holds.iter().map(|_| End::NotOurs).collect(), again: None },
        )
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

    fn convert(&self, _hold: HoldId, _claim: &Claim) -> Answer<Attempt> {
        Answer::Now(Attempt::Failed(errors::unsupported("upgrading and downgrading")))
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        self.answer(
            |quorum| quorum.renew(leases),
            |error| leases.iter().map(|_| Renewal::Unknown(error.clone())).collect(),
        )
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        self.give_back(holds, again, false)
    }

    fn release_awaited(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        self.give_back(holds, again, true)
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

    fn other_layouts(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        let name = name.clone();
        self.answer(|quorum| Answer::later(quorum.clone().other_layouts(name)), Err)
    }

    fn clear_probe(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        let name = name.clone();
        self.answer(|quorum| Answer::later(quorum.clone().clear_probe(name)), Err)
    }

    fn sweep(&self, word: &str) -> Answer<Result<bool>> {
        let word = word.to_owned();
        self.answer(|quorum| Answer::later(quorum.clone().sweep(word)), Err)
    }

    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        self.opened.get()?.inlet()
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
        let steady = context.clock.steady();
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let members = options.members.iter().enumerate().map(|(at, member)| {
                let weak = weak.clone();
                let hear = Arc::new(move |_, items: Vec<Value>| {
                    if let Some(quorum) = weak.upgrade() {
                        quorum.hear(at, &items);
                    }
                });
                let tracks = options.plain.as_ref().is_some_and(Plain::tracks);
                let member =
                    Member::new(member.clone(), steady.clone(), label.clone(), hear, tracks);
                member.link.is_one_of(options.members.len());
                member
            });
            let db = options.members.first().map_or(0, |member| member.db);
            Self {
                keys: Keys::new(&options.namespace, db),
                members: members.collect(),
                inlet: All::new(),
                timer: Timer::default(),
                state: Mutex::default(),
                watches: watch::Watches::default(),
                known: Mutex::new(0),
                slewed: Mutex::default(),
                sooner: Notify::new(),
                looked: AtomicU64::new(0),
                looked_over: AtomicBool::new(false),
                connected: Mutex::new(Connected { told: true, telling: false }),
                closed: AtomicBool::new(false),
                parting: Partings::default(),
                options,
                context,
                steady: steady.clone(),
            }
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the answers of all members come in. In TLS the keeper's thread reads them.
    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        let of = |(at, member): (u16, &Member)| Some((Node(at), member.link.inlet()?));
        self.inlet.as_ref()?.of(|| (0..).zip(&self.members).filter_map(of).collect())
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// How long a member's answer to a claim with this lease is waited for. Links that are slow
    /// have more time: what most of them need is known from their last answers.
    fn patience(&self, ttl: Duration) -> Duration {
        let mut trips: Vec<Duration> = self.members.iter().filter_map(Member::trip).collect();
        trips.sort_unstable();
        let most = trips.get(self.options.majority() - 1).copied().unwrap_or_default();
        self.options.server_timeout(ttl, most)
    }

    /// The same of links that are fast, for what need not wait for slow ones.
    fn least_patience(&self, ttl: Duration) -> Duration {
        self.options.server_timeout(ttl, Duration::ZERO)
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
        // Whoever is a member already has one voice.
        let (twins, once): (Vec<usize>, Vec<usize>) = (0..count).partition(|at| self.is_twin(*at));
        let mut asked: Vec<(usize, BoxFuture<Result<T>>)> =
            once.into_iter().map(|at| (at, ask(self.clone(), at))).collect();
        let why = |at: usize| self.silence(at, self.steady.now(), Duration::ZERO);
        let mut errors: Vec<(usize, Error)> =
            twins.into_iter().filter_map(|at| why(at).map(|error| (at, error))).collect();
        let mut told = Vec::new();
        let begun = Instant::now();
        let soon = self.patience(self.options.ttl);
        let longest = begun + self.options.request_timeout.max(soon);
        let mut until = begun + soon;
        let mut over = self.timer.until(until);
        while !asked.is_empty() {
            let enough = told.len() >= self.options.majority();
            let silent = self.state().silent.clone();
            if enough && asked.iter().all(|(at, _)| silent.contains_key(at)) {
                break;
            }
            match first(&mut asked, &mut over).await {
                // It may be another server than when it was asked.
                Some((at, Ok(_))) if self.is_twin(at) => {
                    errors.extend(why(at).map(|error| (at, error)));
                }
                Some((at, Ok(value))) => {
                    self.state().silent.remove(&at);
                    told.push((at, value));
                }
                Some((at, Err(error))) => errors.push((at, error)),
                None if enough || until == longest => break,
                None => {
                    until = longest;
                    over = self.timer.until(until);
                }
            }
        }
        for (at, _) in &asked {
            let now = self.steady.now();
            self.state().silent.entry(*at).or_insert(now);
            errors.extend(self.silence(*at, now, begun.elapsed()).map(|error| (*at, error)));
        }
        if told.len() < self.options.majority() {
            return Err(errors::too_few(&self.options, &errors));
        }
        Ok(told)
    }

    /// The member that this one is already, under another address whose connection is older: one
    /// server has one vote. It is found out by what they said when they were connected, and so
    /// never a moment late.
    fn twin_of(&self, at: usize) -> Option<&Member> {
        let member = self.members.get(at)?;
        let (run, since) = (member.run(), member.link.up_since());
        let is_older = |nth: usize, other: &Member| {
            let theirs = other.link.up_since();
            theirs.is_some_and(|theirs| since.is_none_or(|since| (theirs, nth) < (since, at)))
        };
        let others = self.members.iter().enumerate().filter(|(nth, _)| *nth != at);
        let mut twins = others.filter(|(nth, other)| is_older(*nth, other) && other.is_run(&run));
        twins.next().map(|(_, other)| other)
    }

    fn is_twin(&self, at: usize) -> bool {
        self.twin_of(at).is_some()
    }

    fn garbage(&self, at: usize) -> Error {
        match self.members.get(at) {
            Some(member) => server_errors::garbage(&member.options),
            None => Error::new(ErrorKind::Corrupt, "a member that is none answered"),
        }
    }
}

/// The first of these that is ready, or `None` when the time is over.
async fn first<K: Copy, T>(
    futures: &mut Vec<(K, BoxFuture<T>)>,
    over: impl Future<Output = ()>,
) -> Option<(K, T)> {
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
    either(std::pin::pin!(ready), std::pin::pin!(over)).await.ok()
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
