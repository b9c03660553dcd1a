//! ZooKeeper: sequential ephemeral nodes in one session a process.
//!
//! | file | what |
//! |---|---|
//! | `options`, `name`, `layout`, `record` | the URL taken apart; names to paths; how nodes are called; what they say |
//! | `recipe` | one claim's way through the line, and how a hold is converted: a pure machine |
//! | `liveness` | what the server's answers prove about the session, and when to ask for more: a pure machine |
//! | `reliance` | who relies on the session, and how much of it has to be left |
//! | `jute`, `proto`, `wire` | the protocol: encoding, messages, dialling a server |
//! | `connection`, `timeouts` | a connection as its driver and callers read it; how long an answer is waited for |
//! | `state`, `claims`, `watch`, `session` | the session: what it knows, its claims, its observers, its driver |
//! | `recheck` | holds and places are looked at again: the net under a lost wake-up |
//! | `beside` | others' locks in a directory, and whether they wait for ours |
//! | `inspect`, `latch`, `barrier`, `limit`, `write`, `ask` | who holds and who waits; latches; barriers; a semaphore's limit; what a holder writes; asking it to let go |
//!
//! The protocol is spoken here, and not through a client library, because the recipes need what
//! libraries hide: replies, events and the loss of the link in the one order in which they came;
//! the session's id at every reconnect; nothing that is sent later than its caller waits; no thread
//! of somebody else's.

mod ask;
mod barrier;
mod beside;
mod claims;
mod clear;
mod connection;
mod errors;
mod failures;
mod inspect;
mod jute;
mod latch;
mod layout;
mod limit;
mod liveness;
pub(crate) mod name;
pub(crate) mod options;
mod proto;
mod recheck;
mod recipe;
mod record;
mod registration;
mod reliance;
mod session;
mod state;
mod timeouts;
mod watch;
mod wire;
mod write;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use self::options::{Layout, Options};
pub(crate) use self::registration::registration;
use self::session::{Shared, drive};
use self::state::Fault;
use super::{
    Answer, Attempt, Change, Claim, Context, End, Engine, Inlet, Line, Membership, Query, Released,
    Renewal, Standing, WatchId, Write,
};
use crate::words::claim::{Entry, Mode, Through};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::{Ability, Can, Class, Description, Expiry, Warning};
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

/// How long the reason is waited for why no server took us in time.
const REASON: Duration = Duration::from_millis(50);

/// The engine; does nothing until it is opened.
pub(crate) struct ZooKeeper {
    options: Arc<Options>,
    running: OnceLock<Running>,
}

struct Running {
    shared: Arc<Shared>,
    done: Mutex<Option<oneshot::Receiver<()>>>,
}

impl ZooKeeper {
    /// An engine for these servers.
    pub(crate) fn new(options: Options) -> Self {
        Self { options: Arc::new(options), running: OnceLock::new() }
    }

    fn shared(&self) -> Result<Arc<Shared>> {
        match self.running.get() {
            Some(running) => Ok(running.shared.clone()),
            None => Err(Error::new(ErrorKind::Closed, "the engine was not opened")),
        }
    }

    fn can(&self) -> Can {
        let can = Can::ALL.without(&[Ability::Delay, Ability::Statements]);
        match self.options.layout {
            Layout::Plain { .. } => can.without(&[
                Ability::Shared,
                Ability::Upgrade,
                Ability::Election,
                Ability::Latch,
                Ability::Barrier,
            ]),
            _ => can,
        }
    }

    /// Where the claim stands, or why it cannot.
    fn place_of(&self, claim: &Claim) -> Result<String> {
        let can = self.can();
        let word = match (claim.kind, claim.mode) {
            (Kind::Lock, Mode::Exclusive) => None,
            (Kind::Lock, Mode::Shared) => (!can.has(Ability::Shared)).then_some("shared locks"),
            (Kind::Election, _) => (!can.has(Ability::Election)).then_some("elections"),
            (Kind::Lock, Mode::Upgradable) => {
                (!can.has(Ability::Upgrade)).then_some("upgradable locks")
            }
            (Kind::Semaphore, Mode::Permits { count, .. })
                if self.options.shared_permits && count > 1 =>
            {
                let text = "the semaphores of Curator and kazoo give one permit at a time: ask for \
                            one, or leave semaphore=shared out of the URL";
                return Err(Error::new(ErrorKind::Unsupported, text).name(&claim.name));
            }
            (Kind::Semaphore, Mode::Permits { .. }) => None,
            (Kind::Semaphore, _) | (_, Mode::Permits { .. }) => Some("locks that are permits"),
            (Kind::Latch, _) => Some("claims for latches"),
        };
        match word {
            None => name::of_kind(&self.options, claim.kind, &claim.name),
            Some(word) => {
                let text = format!("the layout {} has no {word}", self.options.layout.as_str());
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }

    /// Tries all claims, whose nodes are created in one transaction; all are granted or none.
    fn together(
        &self,
        claims: &[Claim],
    ) -> Result<impl Future<Output = Vec<Attempt>> + Send + use<>> {
        let shared = self.shared()?;
        let dirs: Vec<String> =
            claims.iter().map(|claim| self.place_of(claim)).collect::<Result<_>>()?;
        // One time for all answers, and no longer than the caller waits.
        let asked = shared.clock.now();
        let give_up = claims.iter().filter_map(|claim| claim.give_up).min();
        let until = asked.plus(shared.options.request_timeout);
        let until = give_up.map_or(until, |at| at.min(until));
        let mut state = shared.lock();
        if let Some(refused) = &state.refused {
            return Err(refused.clone());
        }
        let answers = state.attempt_together(claims, dirs);
        drop(state);
        let ids: Vec<ClaimId> = claims.iter().map(|claim| claim.id).collect();
        Ok(async move {
            let mut attempts = Vec::with_capacity(ids.len());
            for answer in answers {
                let unknown = || Attempt::Unknown(shared.lock().unanswered());
                let left = until.since(shared.clock.now());
                attempts.push(within(left, answer).await.unwrap_or_else(unknown));
            }
            if attempts.iter().all(|attempt| matches!(attempt, Attempt::Granted(_))) {
                return attempts;
            }
            let got = |attempt: &Attempt| matches!(attempt, Attempt::Granted(_));
            let given_back: Vec<_> = {
                let mut state = shared.lock();
                let got = ids.iter().zip(&attempts).filter(|(_, attempt)| got(attempt));
                got.map(|(id, _)| state.leave(*id)).collect()
            };
            for end in given_back {
                end_of(shared.clone(), end).await;
            }
            attempts
                .into_iter()
                .map(|attempt| if got(&attempt) { Attempt::Busy(None) } else { attempt })
                .collect()
        })
    }

    fn begin(
        &self,
        claim: &Claim,
        line: Line,
    ) -> Result<impl Future<Output = Attempt> + Send + use<>> {
        let shared = self.shared()?;
        let dir = self.place_of(claim)?;
        let mut state = shared.lock();
        if let Some(refused) = &state.refused {
            return Err(refused.clone());
        }
        // What stands in line already is not `Failed`, which means that nothing is left of it.
        if claim.give_up.is_some_and(|at| at <= shared.clock.now())
            && !state.claims.contains_key(&claim.id)
        {
            return Err(Error::new(
                ErrorKind::TimedOut,
                "the caller's time had passed before the request was sent",
            ));
        }
        let answer = state.attempt(claim, dir, line == Line::Try);
        drop(state);
        let id = claim.id;
        Ok(async move {
            match shared.patience.within(answer).await {
                Some(attempt) => attempt,
                None => {
                    let mut state = shared.lock();
                    let error = state.unanswered();
                    if state.forget_unsent(id) {
                        Attempt::Failed(error)
                    } else {
                        Attempt::Unknown(error)
                    }
                }
            }
        })
    }
}

async fn end_of(shared: Arc<Shared>, end: oneshot::Receiver<End>) -> End {
    match shared.patience.within(end).await {
        Some(end) => end,
        None => End::Unknown(shared.lock().unanswered()),
    }
}

/// The answer of several that came together, if it comes in time.
async fn within<T>(time: Duration, mut answer: oneshot::Receiver<T>) -> Option<T> {
    match tokio::time::timeout(time, &mut answer).await {
        Ok(answer) => answer.ok(),
        Err(_) => {
            // From here on it is told in another way; one that was sent a moment ago is taken.
            answer.close();
            answer.try_recv().ok()
        }
    }
}

impl Engine for ZooKeeper {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let shared = Arc::new(Shared::new(
            self.options.clone(),
            context.clock.clone(),
            context.events.clone(),
        ));
        let (ready, opened) = oneshot::channel();
        let (done, ended) = oneshot::channel();
        let running = Running { shared: shared.clone(), done: Mutex::new(Some(ended)) };
        if self.running.set(running).is_err() {
            return Answer::Now(Err(Error::new(
                ErrorKind::InvalidArgument,
                "the engine is open already",
            )));
        }
        let driver = drive(shared.clone(), ready, done);
        Answer::later(async move {
            context.spawner.spawn(driver);
            let overdue = shared.clone();
            context.spawner.spawn(async move { overdue.patience.watch().await });
            // A server that does not answer in its own time says why, which is worth a moment.
            let within = shared.options.connect_timeout + REASON;
            let result = match tokio::time::timeout(within, opened).await {
                Ok(Ok(result)) => result,
                _ => Err(shared.lock().unanswered_within(shared.options.connect_timeout)),
            };
            if result.is_err() {
                shared.close();
            }
            result
        })
    }

    fn describe(&self) -> Description {
        let timeout =
            self.running.get().and_then(|r| r.shared.lock().session.as_ref().map(|s| s.timeout));
        let timeout = timeout.unwrap_or(self.options.session_timeout);
        let mut description =
            Description::new("zookeeper", self.options.layout.as_str(), Class::Timed);
        description.server = format!(
            "ZooKeeper at {}, session timeout {} ms",
            self.options.servers(),
            timeout.as_millis()
        );
        if let Layout::Plain { prefix } = &self.options.layout {
            description.elsewhere = const {
                &[(Can::ALL.without(&[Ability::Delay, Ability::Statements]), "use layout=curator")]
            };
            description.server += &format!(
                ", nodes NAME/{prefix}0000000067 (prefix={})",
                crate::open::url::encode(prefix)
            );
            description.breaks.push(
                "code that gives its nodes another prefix and compares names as texts can enter \
                 beside a holder: `prefix` has to be what its createEphemeralSequential gets \
                 behind the last slash, nothing for \"/lock/\" and Lock for \"/lock/Lock\""
                    .to_owned(),
            );
            description.breaks.push(
                "code that enters when the node before its own is gone, without listing again, \
                 enters beside a holder when a waiter gives up"
                    .to_owned(),
            );
        }
        description.hosts = true;
        description.early = true;
        description.expiry = Expiry::Session { ttl: timeout };
        description.request_timeout = Some(self.options.request_timeout);
        // The leader forgets sessions in steps of a tick, and hears of us up to half a tick late; a
        // tick is half the timeout at most.
        description.recovery = timeout * 7 / 4;
        description.recovery_stopped = Some(description.recovery);
        description.can = self.can();
        description.breaks.extend([
            "an ensemble restored from a backup, or set up anew, starts its transaction numbers \
             again: tokens go back"
                .to_owned(),
            "servers that run with forceSync=no can lose acknowledged writes in a power cut"
                .to_owned(),
            "servers whose minSessionTimeout was set below two ticks: what they prove of a \
             session is older than it is taken for"
                .to_owned(),
            "a server that lost a transaction of its ensemble (ZOOKEEPER-4712, \
             ZOOKEEPER-4785) can miss who stands first"
                .to_owned(),
        ]);
        description
    }

    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        self.running.get()?.shared.inlet()
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        match self.begin(claim, line) {
            Ok(answer) => Answer::later(answer),
            Err(error) => Answer::Now(Attempt::Failed(error)),
        }
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let claims = claims.to_vec();
        match self.shared() {
            Ok(shared) => Answer::later(async move { recheck::recheck(&shared, &claims).await }),
            Err(error) => Answer::Now(vec![Standing::Gone(error); claims.len()]),
        }
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        match self.shared() {
            Ok(shared) => {
                let end = {
                    let mut state = shared.lock();
                    state.releasing = true;
                    state.leave(claim)
                };
                Answer::later(end_of(shared, end))
            }
            Err(_) => Answer::Now(End::NotOurs),
        }
    }

    fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt> {
        let shared = match self.shared() {
            Ok(shared)
                if self.can().has(Ability::Upgrade)
                    && claim.kind == Kind::Lock
                    && claim.through == Through::RwLock =>
            {
                shared
            }
            Ok(_) => {
                let text = format!(
                    "the layout {} cannot change such a hold to {}",
                    self.options.layout.as_str(),
                    claim.mode.as_str()
                );
                return Answer::Now(Attempt::Failed(Error::new(ErrorKind::Unsupported, text)));
            }
            Err(error) => return Answer::Now(Attempt::Failed(error)),
        };
        let answer = shared.lock().convert(hold, claim.id, claim.mode);
        Answer::later(async move {
            let unknown = || Attempt::Unknown(shared.lock().unanswered());
            shared.patience.within(answer).await.unwrap_or_else(unknown)
        })
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let leases = leases.to_vec();
        match self.shared() {
            Ok(shared) => Answer::later(async move { renew(&shared, &leases).await }),
            Err(error) => {
                Answer::Now(leases.iter().map(|_| Renewal::Unknown(error.clone())).collect())
            }
        }
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let shared = match self.shared() {
            Ok(shared) => shared,
            Err(error) => {
                let ends = holds.iter().map(|_| End::Unknown(error.clone())).collect();
                return Answer::Now(Released {
                    ends,
                    again: again.map(|_| Attempt::Failed(error)),
                });
            }
        };
        let ends: Vec<_> = {
            let mut state = shared.lock();
            state.releasing = true;
            holds.iter().map(|hold| state.leave(*hold)).collect()
        };
        let again = again.map(|claim| self.begin(claim, Line::Join));
        Answer::later(async move {
            let mut all = Vec::with_capacity(ends.len());
            for end in ends {
                all.push(end_of(shared.clone(), end).await);
            }
            let again = match again {
                None => None,
                Some(Ok(answer)) => Some(answer.await),
                Some(Err(error)) => Some(Attempt::Failed(error)),
            };
            Released { ends: all, again }
        })
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        let query = query.clone();
        match self.shared() {
            Ok(shared) => Answer::later(async move { inspect::read(&shared, &query).await }),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        let change = change.clone();
        match self.shared() {
            Ok(shared) => Answer::later(async move {
                match &change {
                    Change::LatchSet(name, count) => latch::set(&shared, name, *count).await,
                    Change::LatchCountDown(name, id) => latch::count_down(&shared, name, *id).await,
                    Change::Force(kind, name, from) => {
                        inspect::force(&shared, *kind, name, from).await
                    }
                    Change::Resize(name, limit) => limit::resize(&shared, name, *limit).await,
                }
            }),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn other_layouts(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        let name = name.clone();
        match self.shared() {
            Ok(shared) => Answer::later(async move { beside::look(&shared, &name).await }),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn clear_probe(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        let name = name.clone();
        match self.shared() {
            Ok(shared) => {
                Answer::later(
                    async move { clear::clear(&shared, &name).await.map(|()| Vec::new()) },
                )
            }
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn sweep(&self, word: &str) -> Answer<Result<bool>> {
        let swept = self.shared().and_then(|shared| {
            let name = Name::new(word)?;
            Ok((name::directory(&self.options.chroot, &self.options.layout, &name)?, shared))
        });
        match swept {
            Ok((directory, shared)) => {
                Answer::later(async move { clear::sweep(&shared, directory).await })
            }
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        let watched = self.shared().and_then(|shared| {
            let path = match query {
                Query::One(_, name) => {
                    name::directory(&self.options.chroot, &self.options.layout, name)?
                }
                Query::Prefix(_) => self.options.root(),
            };
            shared.lock().observe(watch, path);
            Ok(())
        });
        Answer::Now(watched)
    }

    fn unwatch(&self, watch: WatchId) {
        if let Ok(shared) = self.shared() {
            shared.lock().unobserve(watch);
        }
    }

    fn attempt_all(&self, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        match self.together(claims) {
            Ok(answers) => Answer::later(answers),
            Err(error) => {
                Answer::Now(claims.iter().map(|_| Attempt::Failed(error.clone())).collect())
            }
        }
    }

    fn barrier(&self, name: &Name, member: ClaimId, step: Membership) -> Answer<Result<bool>> {
        match self.shared() {
            Ok(shared) => Answer::later(barrier::step(shared, name, member, step)),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn ask(&self, kind: Kind, name: &Name) -> Answer<Result<bool>> {
        let name = name.clone();
        match self.shared() {
            Ok(shared) => {
                Answer::later(async move { ask::ask_holders(&shared, kind, &name).await })
            }
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn write_held(&self, hold: HoldId, writes: &[Write]) -> Answer<Result<()>> {
        match self.shared().and_then(|shared| Ok((write::requests(&shared, writes)?, shared))) {
            Ok((requests, shared)) => {
                Answer::later(async move { write::commit(&shared, hold, requests).await })
            }
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn close(&self) -> Answer<()> {
        let Some(running) = self.running.get() else { return Answer::Now(()) };
        running.shared.close();
        let done = running.done.lock().unwrap_or_else(PoisonError::into_inner).take();
        Answer::later(async move {
            if let Some(done) = done {
                _ = tokio::time::timeout(Duration::from_secs(2), done).await;
            }
        })
    }
}

/// Proves the session by a write, once for all leases: there is one.
async fn renew(shared: &Shared, leases: &[LeaseId]) -> Vec<Renewal> {
    let current = |shared: &Shared| shared.lock().session.as_ref().map(|s| (s.lease(), s.timeout));
    let before = current(shared);
    let request = shared.lock().beat_request();
    let proven = inspect::ask(shared, request).await;
    let after = current(shared);
    let one = |lease: &LeaseId| match (&proven, after) {
        (_, Some((session, _))) if session != *lease => Renewal::Gone(Lost::SessionEnded),
        (_, None) if before.is_none_or(|(session, _)| session == *lease) => {
            Renewal::Gone(Lost::SessionEnded)
        }
        (Err(Fault::Lost | Fault::NotSent | Fault::Told(_)), _) => {
            Renewal::Unknown(errors::unanswered())
        }
        // Also a refused check went through the quorum.
        _ => {
            let now = shared.clock.now();
            let ttl = shared.lock().alive.left(now, shared.options.drift_per_mille);
            Renewal::Extended { ttl, since: Some(now) }
        }
    };
    leases.iter().map(one).collect()
}
