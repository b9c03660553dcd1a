//! Processes that break a rule of waiting.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::log::{Log, What};
use crate::engine::{
    Answer, Attempt, Change, Context, End, Engine, Event, EventSink, Line, Place, Query, Released,
    Renewal, Standing, WatchId,
};
use crate::words::claim::{Claim, Entry};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Description;
use crate::words::id::{ClaimId, HoldId, LeaseId};

/// A rule that a process leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// Each word puts off its next question, whatever it was asked by.
    PutOffByWords,
    /// It does not look at how long its caller waits.
    IgnoresGiveUp,
    /// It is deaf, and does not ask by itself before a lease has ended.
    AsksAtLeaseEnd,
    /// It takes whatever refuses it for too few answers.
    HearsTooFew,
}

/// See the module.
pub(super) struct Planted {
    engine: Box<dyn Engine>,
    flaw: Option<Flaw>,
    /// Which process it is, and where is noted what it is not answered.
    process: usize,
    log: Arc<Log>,
    clock: Mutex<Option<crate::words::clock::Clock>>,
    /// Not before this does it ask about a claim.
    put_off: Arc<Mutex<BTreeMap<ClaimId, Ticks>>>,
}

/// As what stands behind others is put off.
const PAUSE: Duration = Duration::from_millis(275);

impl Planted {
    pub(super) fn new(
        engine: Box<dyn Engine>,
        flaw: Option<Flaw>,
        (process, log): (usize, Arc<Log>),
    ) -> Self {
        let (clock, put_off) = <(Mutex<_>, Arc<_>)>::default();
        Self { engine, flaw, process, log, clock, put_off }
    }

    fn now(&self) -> Ticks {
        let clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.as_ref().map(crate::words::clock::Clock::now).unwrap_or_default()
    }

    fn until(&self, claim: ClaimId) -> Option<Ticks> {
        let put_off = self.put_off.lock().unwrap_or_else(PoisonError::into_inner);
        put_off.get(&claim).copied().filter(|at| *at > self.now())
    }
}

fn late(attempt: Attempt, by: Duration) -> Attempt {
    match attempt {
        Attempt::InLine(place) => {
            let ask_at = place.ask_at.map(|at| at.plus(by));
            Attempt::InLine(Place { ask_at, ..place })
        }
        other => other,
    }
}

impl Engine for Planted {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.clock.clone());
        let (flaw, put_off) = (self.flaw, self.put_off.clone());
        let (clock, events) = (context.clock.clone(), context.events.clone());
        let sink = EventSink::new(move |event| {
            let claim = match &event {
                Event::Wake { claim } | Event::AskAt { claim, .. } => *claim,
                _ => return events.send(event),
            };
            match flaw {
                Some(Flaw::PutOffByWords) => {
                    let at = clock.now().plus(PAUSE);
                    put_off.lock().unwrap_or_else(PoisonError::into_inner).insert(claim, at);
                    events.send(Event::AskAt { claim, at });
                }
                Some(Flaw::AsksAtLeaseEnd) => {}
                _ => events.send(event),
            }
        });
        self.engine.open(Context { events: sink, ..context })
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        let flaw = self.flaw;
        if flaw == Some(Flaw::IgnoresGiveUp) {
            let claim = Claim { give_up: None, ..claim.clone() };
            return self.engine.attempt(&claim, line);
        }
        let (ttl, process, log) = (claim.ttl, self.process, self.log.clone());
        self.engine.attempt(claim, line).map(move |attempt| match (flaw, attempt) {
            (Some(Flaw::HearsTooFew), Attempt::InLine(_)) => {
                log.note(What::Unanswered { process });
                Attempt::Unknown(Error::new(ErrorKind::Unreachable, "too few"))
            }
            (_, Attempt::Unknown(error)) => {
                log.note(What::Unanswered { process });
                Attempt::Unknown(error)
            }
            (Some(Flaw::AsksAtLeaseEnd), attempt) => late(attempt, ttl),
            (_, attempt) => attempt,
        })
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let until: Vec<Option<Ticks>> = claims.iter().map(|claim| self.until(*claim)).collect();
        if until.iter().any(Option::is_some) || self.flaw == Some(Flaw::AsksAtLeaseEnd) {
            let places = until.into_iter().map(|ask_at| {
                let ask_at = ask_at.or_else(|| Some(self.now().plus(Duration::from_secs(30))));
                Standing::InLine(Place { ask_at, ..Place::default() })
            });
            return Answer::Now(places.collect());
        }
        let (process, log) = (self.process, self.log.clone());
        self.engine.recheck(claims).map(move |standings| {
            // One that is being asked for is not unanswered.
            let unanswered = |standing: &Standing| {
                matches!(standing, Standing::Unknown(why) if why.kind() != ErrorKind::Unknown)
            };
            if standings.iter().any(unanswered) {
                log.note(What::Unanswered { process });
            }
            standings
        })
    }

    fn describe(&self) -> Description {
        self.engine.describe()
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        self.engine.withdraw(claim)
    }

    fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt> {
        self.engine.convert(hold, claim)
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        self.engine.renew(leases)
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        self.engine.release(holds, again)
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        self.engine.read(query)
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        self.engine.write(change)
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        self.engine.watch(watch, query)
    }

    fn unwatch(&self, watch: WatchId) {
        self.engine.unwatch(watch);
    }

    fn close(&self) -> Answer<()> {
        self.engine.close()
    }
}
