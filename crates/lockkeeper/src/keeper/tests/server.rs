//! A server with leases on a clock that stands still until it is moved; every answer comes later,
//! and others may act before it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::Poll;
use std::time::Duration;

use super::granted_with;
use crate::engine::{
    Answer, Attempt, BoxFuture, Change, Claim, ClaimId, Context, Description, End, Engine, Entry,
    Event, HoldId, LeaseId, Line, Place, Query, Released, Renewal, Standing, WatchId, Which,
};
use crate::keeper::hosted::Host;
use crate::words::clock::{Clock, Ticks};
use crate::words::guarantee::{Class, Expiry};
use crate::words::lost::Lost;
use crate::words::name::Name;

pub(super) const TTL: Duration = Duration::from_secs(9);

/// One lock.
#[derive(Default)]
struct Lock {
    holder: Option<(HoldId, Ticks)>,
    line: VecDeque<ClaimId>,
    number: u64,
}

/// See the module. Clones are the same.
#[derive(Clone)]
pub(super) struct Server {
    clock: Clock,
    context: Arc<OnceLock<Context>>,
    locks: Arc<Mutex<HashMap<Name, Lock>>>,
}

impl Server {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, context: Arc::default(), locks: Arc::default() }
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<Name, Lock>> {
        self.locks.lock().unwrap()
    }

    /// Who holds anything now.
    pub(super) fn holders(&self) -> usize {
        let now = self.clock.now();
        self.locks()
            .values()
            .filter(|lock| lock.holder.is_some_and(|(_, until)| until > now))
            .count()
    }

    /// An operator takes the lock away, and whoever had it is told.
    pub(super) fn take_away(&self, name: &str) {
        let taken =
            self.locks().get_mut(&Name::new(name).unwrap()).and_then(|lock| lock.holder.take());
        if let Some((hold, _)) = taken {
            self.tell(Event::Ended {
                which: Which::Lease(LeaseId::from(hold)),
                why: Lost::TakenAway,
            });
        }
        self.wake();
    }

    fn tell(&self, event: Event) {
        self.context.get().unwrap().events.send(event);
    }

    /// Whoever is first in a line that is free hears of it.
    fn wake(&self) {
        let now = self.clock.now();
        let free = |lock: &Lock| lock.holder.is_none_or(|(_, until)| until <= now);
        let first: Vec<ClaimId> = self
            .locks()
            .values()
            .filter(|lock| free(lock))
            .filter_map(|lock| lock.line.front().copied())
            .collect();
        first.into_iter().for_each(|claim| self.tell(Event::Wake { claim }));
    }

    /// The answer to a request: done at the server some time after it was sent, and heard of some
    /// time after that.
    fn later<T: Send + 'static>(&self, act: impl FnOnce(&Self) -> T + Send + 'static) -> Answer<T> {
        let server = self.clone();
        Answer::later(async move {
            shuttle::future::yield_now().await;
            let answer = act(&server);
            shuttle::future::yield_now().await;
            answer
        })
    }

    fn attempt_now(&self, claim: &Claim, line: Line) -> Attempt {
        let now = self.clock.now();
        let mut locks = self.locks();
        let lock = locks.entry(claim.name.clone()).or_default();
        lock.holder = lock.holder.filter(|(_, until)| *until > now);
        let in_line = lock.line.contains(&claim.id);
        let first = lock.line.front().is_none_or(|first| *first == claim.id);
        match lock.holder {
            Some((hold, _)) if hold == claim.id => granted_with(lock.number, hold, TTL),
            None if first => {
                lock.line.retain(|id| *id != claim.id);
                lock.number += 1;
                lock.holder = Some((claim.id, now.plus(TTL)));
                granted_with(lock.number, claim.id, TTL)
            }
            _ if line == Line::Try => Attempt::Busy(None),
            _ => {
                if !in_line {
                    lock.line.push_back(claim.id);
                }
                Attempt::InLine(Place::default())
            }
        }
    }

    fn leave_now(&self, id: ClaimId) -> End {
        let mut end = End::NotOurs;
        for lock in self.locks().values_mut() {
            lock.line.retain(|other| *other != id);
            if lock.holder.is_some_and(|(hold, _)| hold == id) {
                lock.holder = None;
                end = End::Freed;
            }
        }
        self.wake();
        end
    }
}

impl Engine for Server {
    fn open(&self, context: Context) -> Answer<crate::Result<()>> {
        assert!(self.context.set(context).is_ok());
        Answer::Now(Ok(()))
    }
    fn describe(&self) -> Description {
        let mut description = Description::new("server", "server", Class::Efficiency);
        description.expiry = Expiry::PerHold { claim_lease: Some(Duration::from_secs(2)) };
        description.hand_off = true;
        description
    }
    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        let claim = claim.clone();
        self.later(move |server| server.attempt_now(&claim, line))
    }
    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let claims = claims.to_vec();
        self.later(move |server| {
            let locks = server.locks();
            let of = |id: &ClaimId| {
                let lock =
                    locks.values().find(|lock| lock.holder.is_some_and(|(hold, _)| hold == *id));
                lock.map_or(Standing::InLine(Place::default()), |lock| {
                    granted_with(lock.number, *id, TTL).into()
                })
            };
            claims.iter().map(of).collect()
        })
    }
    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        self.later(move |server| server.leave_now(claim))
    }
    fn convert(&self, hold: HoldId, _: &Claim) -> Answer<Attempt> {
        self.later(move |server| {
            let now = server.clock.now();
            let mut locks = server.locks();
            let held = locks
                .values_mut()
                .find(|lock| lock.holder.is_some_and(|(id, until)| id == hold && until > now));
            let Some(lock) = held else { return Attempt::Failed(super::gone()) };
            lock.number += 1;
            lock.holder = Some((hold, now.plus(TTL)));
            granted_with(lock.number, hold, TTL)
        })
    }
    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let leases = leases.to_vec();
        self.later(move |server| {
            let now = server.clock.now();
            let mut locks = server.locks();
            let mut one = |lease: &LeaseId| {
                let ours = |lock: &&mut Lock| {
                    lock.holder
                        .is_some_and(|(hold, until)| LeaseId::from(hold) == *lease && until > now)
                };
                let Some(lock) = locks.values_mut().find(ours) else {
                    return Renewal::Gone(Lost::TakenAway);
                };
                lock.holder = lock.holder.map(|(hold, _)| (hold, now.plus(TTL)));
                Renewal::Extended { ttl: TTL, since: None }
            };
            leases.iter().map(&mut one).collect()
        })
    }
    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let (holds, again) = (holds.to_vec(), again.cloned());
        self.later(move |server| {
            let ends = holds.iter().map(|hold| server.leave_now(*hold)).collect();
            Released { ends, again: again.map(|claim| server.attempt_now(&claim, Line::Join)) }
        })
    }
    fn read(&self, _: &Query) -> Answer<crate::Result<Vec<Entry>>> {
        Answer::Now(Ok(Vec::new()))
    }
    fn write(&self, _: &Change) -> Answer<crate::Result<bool>> {
        Answer::Now(Ok(false))
    }
    fn watch(&self, _: WatchId, _: &Query) -> Answer<crate::Result<()>> {
        Answer::Now(Ok(()))
    }
    fn unwatch(&self, _: WatchId) {}
    fn close(&self) -> Answer<()> {
        Answer::Now(())
    }
}

/// Runs the keeper's tasks as shuttle's.
pub(super) struct Tasks(pub(super) Clock);

impl Host for Tasks {
    fn spawn(&self, task: BoxFuture<()>) {
        drop(shuttle::future::spawn(task));
    }
    fn sleep_until(&self, at: Ticks) -> BoxFuture<()> {
        let clock = self.0.clone();
        // Whoever moves the clock kicks the keeper, which then looks again.
        Box::pin(std::future::poll_fn(move |_| {
            if clock.now() >= at { Poll::Ready(()) } else { Poll::Pending }
        }))
    }
}
