//! Several locks at once: all or nothing.

use std::collections::VecDeque;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::engine::{Answer, Attempt, Claim, ClaimId};
use crate::keeper::Keeper;
use crate::keeper::entry::answers::unanswered;
use crate::keeper::entry::request::invalid;
use crate::keeper::entry::{Begun, Entry};
use crate::observe::Seen;
use crate::primitives::acquire::{Acquiring, Plan};
use crate::primitives::guard::{Guard, Released};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Ability;

/// How many locks one call may ask for.
const LOCKS_MAX: usize = 64;
/// How much later than its time one message for all of them ends: an engine that ends it by itself
/// then knows better why.
const GRACE: Duration = Duration::from_millis(100);

/// An acquisition of several locks; `.await` it, or give it a timeout first.
///
/// # Errors
/// `InvalidArgument` for more than 64, for none, or for locks of another [`Locks`](crate::Locks);
/// `WouldDeadlock` when one is named twice; else as [`Acquire`](crate::Acquire).
///
/// # Cancel safety
/// Dropping it leaves nothing behind, as for [`Acquire`](crate::Acquire).
#[must_use = "an acquisition does nothing unless awaited"]
#[derive(Debug)]
pub struct All {
    keeper: Arc<Keeper>,
    plans: Vec<Plan>,
    timeout: Option<Duration>,
}

/// Turns on several locks, in the order in which they were asked for. Dropping it releases all.
#[must_use = "the locks are given back as soon as their guards are dropped"]
#[derive(Debug)]
pub struct AllGuard {
    guards: Vec<Guard>,
}

impl AllGuard {
    /// The guards, in the order in which the locks were asked for.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// `Err(Lost)` when one of the locks is gone. Reads the clocks; no I/O.
    ///
    /// # Errors
    /// `Lost`, naming the lock.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// Gives all back and says how each went.
    ///
    /// # Cancel safety
    /// All are released also when this future is dropped.
    pub async fn release(self) -> Vec<Released> {
        let releases: Vec<_> =
            self.guards.into_iter().map(|guard| Box::pin(guard.release())).collect();
        let mut ended = Vec::with_capacity(releases.len());
        for release in releases {
            ended.push(release.await);
        }
        ended
    }
}

impl All {
    pub(crate) fn new(keeper: Arc<Keeper>, plans: Vec<Plan>) -> Self {
        Self { keeper, plans, timeout: None }
    }

    /// Gives up after this time; the error names the lock that was not obtained, and its holder.
    /// Zero asks once. A server that cannot be reached is tried again until the time is over.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = Some(time);
        self
    }

    /// Checks the list and answers the byte order of the names.
    fn order(&self) -> Result<Vec<usize>> {
        if self.plans.is_empty() || self.plans.len() > LOCKS_MAX {
            return Err(invalid(format!(
                "all() takes 1 to {LOCKS_MAX} locks and {} were given",
                self.plans.len()
            )));
        }
        let mut order = Vec::with_capacity(self.plans.len());
        for (at, plan) in self.plans.iter().enumerate() {
            let entry = plan.entry()?;
            if !Arc::ptr_eq(&entry.keeper, &self.keeper) {
                return Err(invalid("all() takes locks of its own Locks only").name(&entry.name));
            }
            order.push((entry.name.as_str().as_bytes(), entry.kind, at));
        }
        order.sort_unstable();
        for pair in order.windows(2) {
            if let [one, other] = pair
                && (one.0, one.1) == (other.0, other.1)
            {
                let twice = self.plans.get(one.2).and_then(|p| p.entry().ok());
                let error = Error::new(
                    ErrorKind::WouldDeadlock,
                    "all() was given the same lock twice, and would wait for itself",
                );
                return Err(twice.map_or(error.clone(), |entry| error.name(&entry.name)));
            }
        }
        Ok(order.into_iter().map(|(_, _, at)| at).collect())
    }

    async fn acquire(mut self) -> Result<AllGuard> {
        let order = self.order()?;
        let give_up = self.timeout.map(|time| self.keeper.clock.now().plus(time));
        // Zero asks once: the answer needs longer than no time at all.
        let waits = give_up.filter(|_| self.timeout != Some(Duration::ZERO));
        let mut away = match self.at_once(waits).await {
            Ok(Some(guards)) => return Ok(AllGuard { guards }),
            // Whoever gives a time waits for a server that is away, one lock after the other.
            Err(error) if error.is_outage() && waits.is_some() => Some(error),
            Err(error) => return Err(error),
            Ok(None) => None,
        };
        let mut got: Vec<(usize, Guard)> = Vec::with_capacity(order.len());
        for at in order {
            let Some(plan) = self.plans.get_mut(at) else { continue };
            if let Some(give_up) = give_up {
                let left = give_up.since(self.keeper.clock.now());
                // A time that has passed is not a time of zero, which asks once.
                if left.is_zero() && waits.is_some() {
                    let error = Error::new(ErrorKind::TimedOut, "not obtained");
                    return Err(away.unwrap_or(error));
                }
                plan.request.timeout = Some(left);
            }
            match Acquiring::new(plan.clone()).await {
                Ok(Some(guard)) => {
                    got.push((at, guard));
                    // The server answers again.
                    away = None;
                }
                Ok(None) => return Err(Error::new(ErrorKind::TimedOut, "not obtained")),
                // Nobody was seen to have it: the server was away all the time.
                Err(error) if error.kind() == ErrorKind::TimedOut && error.holder().is_none() => {
                    return Err(away.unwrap_or(error));
                }
                Err(error) => return Err(error),
            }
        }
        got.sort_by_key(|(at, _)| *at);
        // A lock that was lost while the others were waited for is no lock of all.
        got.iter().try_for_each(|(_, guard)| guard.cell().not_lost())?;
        Ok(AllGuard { guards: got.into_iter().map(|(_, guard)| guard).collect() })
    }

    /// One message for all, where the engine can and nobody of this process is in the way.
    async fn at_once(&self, give_up: Option<Ticks>) -> Result<Option<Vec<Guard>>> {
        self.keeper.check_open()?;
        if !self.keeper.facts.can.has(Ability::Together) {
            return Ok(None);
        }
        let mut seats = Seats { taken: VecDeque::new() };
        let mut claims: Vec<Claim> = Vec::new();
        for plan in &self.plans {
            plan.check()?;
            if plan.request.owner.is_some()
                || plan.request.thread.is_some()
                || crate::Owner::current().is_some()
            {
                return Ok(None);
            }
            let entry = plan.entry()?.clone();
            let Some((seq, mut claim)) = entry.reserve(&plan.request) else { return Ok(None) };
            claim.give_up = give_up;
            seats.taken.push_back((entry, seq, claim.id));
            claims.push(claim);
        }
        let sent = self.keeper.clock.now();
        let answer = self.keeper.engine.attempt_all(&claims);
        let told: Vec<_> = seats.taken.iter().map(|(entry, _, id)| (entry.clone(), *id)).collect();
        // The names hear of it whether or not this future is polled: others wait behind these
        // places (R5).
        let tell = move |answers| tell(told, sent, answers);
        let answer = match answer {
            Answer::Now(answers) => Answer::Now(tell(answers)),
            Answer::Later(answers) => Answer::later(async move { tell(answers.await) }),
        };
        let answer = self.keeper.answer(answer);
        let answered = match give_up {
            Some(at) => self.keeper.within(at.since(sent) + GRACE, answer).await,
            None => Some(answer.await),
        };
        let Some(answered) = answered else { return Err(seats.not_in_time(sent)) };
        let (failed, lost) = answered?;
        let mut guards = Vec::with_capacity(self.plans.len());
        // A place for which there was no answer is given back with the seats.
        for Plan { request, .. } in &self.plans {
            let Some((entry, seq, _)) = seats.taken.front() else { break };
            match entry.poll_turn(*seq, request, Waker::noop()) {
                Ok(Begun::Got(cell)) => guards.push(Guard::new(cell, request.mode)),
                _ => entry.abandon(*seq),
            }
            seats.taken.pop_front();
        }
        match failed {
            Some(error) => Err(error),
            None if guards.len() == self.plans.len() => Ok(Some(guards)),
            // The message went into a connection that broke: as far as is known, it is away.
            None => lost.filter(|_| give_up.is_some()).map_or(Ok(None), Err),
        }
    }
}

/// Tells each name what was said about its claim; answers why one of them failed, and why another
/// got no answer.
fn tell(
    told: Vec<(Arc<Entry>, ClaimId)>,
    sent: Ticks,
    answers: Vec<Attempt>,
) -> (Option<Error>, Option<Error>) {
    let (mut failed, mut lost) = (None, None);
    for ((entry, id), answer) in told.into_iter().zip(answers) {
        let named =
            |error: &Error| error.clone().name(&entry.name).engine(entry.keeper.facts.engine);
        match &answer {
            Attempt::Failed(error) => {
                let again = failed.as_ref().is_some_and(|before| is_same_refusal(before, error));
                failed = Some(match again {
                    true => error.clone().engine(entry.keeper.facts.engine),
                    false => named(error),
                });
            }
            Attempt::Unknown(error) => lost = Some(unanswered(named(error))),
            _ => {}
        }
        entry.answered(id, sent, answer);
    }
    (failed, lost)
}

/// What is refused for several with the same words may be true of one of them, and nobody says of
/// which.
fn is_same_refusal(one: &Error, other: &Error) -> bool {
    one.kind() == ErrorKind::Refused
        && other.kind() == ErrorKind::Refused
        && one.message() == other.message()
}

/// Places that were reserved for one message; given back when it is not sent or its answer not
/// taken.
struct Seats {
    taken: VecDeque<(Arc<Entry>, u64, crate::ClaimId)>,
}

impl Seats {
    /// Nobody has answered so far what was sent then; the name of which it is known why is told.
    fn not_in_time(&self, sent: Ticks) -> Error {
        for (entry, seq, _) in &self.taken {
            entry.keeper.observe(entry, Seen::NotObtained { claim: *seq, why: "timed-out" });
        }
        let mut known = self.taken.iter().filter_map(|(entry, _, claim)| {
            let (time, why) = entry.keeper.silence(*claim)?;
            Some((entry, time, why))
        });
        if let Some((entry, time, why)) = known.next() {
            return match known.any(|(.., other)| is_same_refusal(&why, &other)) {
                true => entry.one_not_in_time(time, &why),
                false => entry.not_in_time(time, Some(why)),
            };
        }
        let unknown = self
            .taken
            .front()
            .map(|(entry, ..)| entry.not_in_time(entry.keeper.clock.now().since(sent), None));
        unknown.unwrap_or_else(|| Error::new(ErrorKind::TimedOut, "not obtained"))
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        for (entry, seq, _) in &self.taken {
            entry.abandon(*seq);
        }
    }
}

impl IntoFuture for All {
    type Output = Result<AllGuard>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<AllGuard>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
