//! The leases of one keeper: renewed in batches, over at their local deadline, gone when the engine
//! says so.

mod doubt;

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::Keeper;
use super::cell::LeaseCell;
use super::driver::Due;
use super::entry::Entry;
use crate::engine::{Answer, Attempt, Grant, Lease, Renewal, Standing};
use crate::observe::Seen;
use crate::protocol::lease::{Change, Drift, Leases, Question, Terms, deadline};
use crate::protocol::line::Shape;
use crate::sync::MutexGuard;
use crate::words::clock::Ticks;
use crate::words::id::{ById, ClaimId, HoldId, LeaseId, shrink};
use crate::words::lost::Lost;

/// How many leases go in one message.
const BATCH: usize = 1000;
/// How often the confirmation of a pushed grant is asked before it is left to the net.
const CONFIRM_TRIES: u32 = 3;

/// See the module.
pub(super) struct Book {
    drift: Drift,
    machine: Leases,
    kept: ById<LeaseId, Kept>,
    /// The lease of a hold, where it is not the hold's own, which has its id.
    elsewhere: ById<HoldId, LeaseId>,
    armed: Option<Ticks>,
    /// Those that ended last, and why: the grant of a hold on one of them may still be under way.
    over: VecDeque<(LeaseId, Lost)>,
}

/// How many of them are known.
const OVER_MAX: usize = 8;

struct Kept {
    cell: Arc<LeaseCell>,
    holds: Holds,
}

/// A hold whose deadline moved, and to when.
type Extended = (HoldId, Weak<Entry>, Ticks);

/// The holds on a lease. There may be 100 000 with one, which has the lease's id.
enum Holds {
    Own(Weak<Entry>),
    Many(Vec<(HoldId, Weak<Entry>)>),
}

impl Holds {
    fn push(&mut self, lease: LeaseId, hold: HoldId, entry: Weak<Entry>) {
        match self {
            Self::Many(many) if many.is_empty() && LeaseId::from(hold) == lease => {
                *self = Self::Own(entry)
            }
            Self::Many(many) => many.push((hold, entry)),
            Self::Own(first) => {
                *self = Self::Many(vec![(ClaimId(lease.0), first.clone()), (hold, entry)])
            }
        }
    }

    fn remove(&mut self, lease: LeaseId, hold: HoldId) {
        match self {
            Self::Own(_) if LeaseId::from(hold) == lease => *self = Self::Many(Vec::new()),
            Self::Own(_) => {}
            Self::Many(many) => many.retain(|(one, _)| *one != hold),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Many(many) if many.is_empty())
    }

    fn of(&self, lease: LeaseId) -> impl Iterator<Item = (HoldId, Weak<Entry>)> {
        let (own, many) = match self {
            Self::Own(entry) => (Some((ClaimId(lease.0), entry.clone())), &[][..]),
            Self::Many(many) => (None, &many[..]),
        };
        own.into_iter().chain(many.iter().cloned())
    }
}

impl Book {
    pub(super) fn new(drift: Drift) -> Self {
        Self {
            drift,
            machine: Leases::new(drift),
            kept: ById::default(),
            elsewhere: ById::default(),
            armed: None,
            over: VecDeque::new(),
        }
    }

    /// How many leases are kept.
    #[cfg(feature = "test-util")]
    pub(super) fn len(&self) -> usize {
        self.kept.len().max(self.elsewhere.len()).max(self.machine.len())
    }

    /// The holds of a lease that is over; nothing of it is kept.
    fn take_out(&mut self, lease: LeaseId) -> Vec<(HoldId, Weak<Entry>)> {
        self.machine.forget(lease);
        let kept = self.kept.remove(&lease);
        let holds: Vec<_> = kept.iter().flat_map(|kept| kept.holds.of(lease)).collect();
        for (hold, _) in &holds {
            self.elsewhere.remove(hold);
        }
        holds
    }

    fn lease_of(&self, hold: HoldId) -> Option<LeaseId> {
        let own = LeaseId::from(hold);
        if self.kept.contains_key(&own) { Some(own) } else { self.elsewhere.get(&hold).copied() }
    }
}

impl Keeper {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A hold came with a lease.
    pub(super) fn add_lease(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        hold: HoldId,
        lease: &Lease,
        sent: Ticks,
        shape: Option<Shape>,
    ) -> Arc<LeaseCell> {
        let terms = Terms {
            renew: shape.is_none_or(|s| s.renew),
            at_once: lease.confirm,
            margin: shape.and_then(|s| s.margin),
            session: self.session().filter(|_| lease.id != LeaseId::from(hold)),
        };
        let since = lease.since.unwrap_or(sent);
        let (mut gone, mut doubtful) = (None, false);
        let cell = {
            let mut book = self.book();
            let before = book.lease_of(hold);
            let known = before == Some(lease.id);
            let until = if known {
                // A repeated answer about the same hold: no second hold on the lease, and never a
                // shorter deadline.
                let until = deadline(since, lease.ttl, book.drift);
                book.kept.get(&lease.id).map_or(until, |k| k.cell.deadline().max(until))
            } else {
                book.machine.add(lease.id, since, lease.ttl, terms)
            };
            let kept = book.kept.entry(lease.id).or_insert_with(|| Kept {
                cell: Arc::new(LeaseCell::new(until, lease.ttl)),
                holds: Holds::Many(Vec::new()),
            });
            let cell = kept.cell.clone();
            if !known {
                cell.extend(until, lease.ttl);
                kept.holds.push(lease.id, hold, Arc::downgrade(entry));
                doubtful = self.prove(&book, lease.id);
            }
            if lease.id != LeaseId::from(hold) {
                book.elsewhere.insert(hold, lease.id);
                // A session that is over never comes back.
                gone = book.over.iter().copied().find(|(id, _)| *id == lease.id);
            }
            cell
        };
        if let Some((id, why)) = gone {
            let keeper = self.clone();
            self.run(async move { keeper.lease_ended(id, why) });
        }
        if doubtful {
            // A session's proof may be of before a step that was noticed since.
            let keeper = self.clone();
            self.run(async move { keeper.clock_stepped() });
        }
        self.arm_leases();
        cell
    }

    /// A hold was given back.
    pub(super) fn drop_lease(&self, hold: HoldId) {
        let mut book = self.book();
        let Some(lease) = book.lease_of(hold) else { return };
        book.elsewhere.remove(&hold);
        book.machine.drop_hold(lease);
        if let Some(kept) = book.kept.get_mut(&lease) {
            kept.holds.remove(lease, hold);
            if kept.holds.is_empty() {
                book.kept.remove(&lease);
                shrink(&mut book.kept);
            }
        }
    }

    fn arm_leases(self: &Arc<Self>) {
        let at = {
            let mut book = self.book();
            let next = book.machine.next_timer();
            let armed = book.armed;
            let earlier = next.filter(|at| armed.is_none_or(|armed| *at < armed));
            book.armed = earlier.or(armed);
            earlier
        };
        if let Some(at) = at {
            self.driver.arm(self, at, Due::Leases);
        }
    }

    /// Renews what is due, and ends what is over.
    pub(super) fn look_after_leases(self: &Arc<Self>, now: Ticks) {
        let mut changes = Vec::new();
        let mut ended = Vec::new();
        let mut batches = Vec::new();
        let (mut doubtful, mut fixed) = (Vec::new(), Vec::new());
        {
            let mut book = self.book();
            // A timer that another has overtaken must not make room for a third.
            if book.armed.is_some_and(|at| at <= now) {
                book.armed = None;
            }
            book.machine.take_over(now, &mut changes);
            for change in changes.drain(..) {
                let (lease, why) = match change {
                    Change::Over(lease) => (lease, Lost::Expired),
                    Change::Unproven(lease) => (lease, Lost::ClockStepped),
                    Change::Extended(..) | Change::Doubtful(_) => continue,
                };
                ended.extend(book.take_out(lease).into_iter().map(|hold| (hold, why)));
            }
            for question in book.machine.take_doubtful(now) {
                match question {
                    Question::Renew(lease) => doubtful.push(lease),
                    Question::Recheck(lease) => fixed.push(lease),
                }
            }
            loop {
                let batch = book.machine.take_due(now, BATCH);
                if batch.is_empty() {
                    break;
                }
                batches.push(batch);
            }
        }
        for ((hold, entry), why) in ended {
            if let Some(entry) = entry.upgrade() {
                entry.ended(hold, why, true);
            }
        }
        batches.extend(doubtful.chunks(BATCH).map(<[LeaseId]>::to_vec));
        for batch in batches {
            self.renew(batch);
        }
        for batch in fixed.chunks(BATCH) {
            self.prove_fixed(batch);
        }
        self.arm_leases();
    }

    /// Renews everything at once: after a reconnect each hold wants to know how it stands.
    pub(super) fn renew_all(self: &Arc<Self>) {
        let all: Vec<LeaseId> = {
            let mut book = self.book();
            book.machine.take_all()
        };
        for batch in all.chunks(BATCH) {
            self.renew(batch.to_vec());
        }
    }

    /// Renews these holds at once, unless that is under way.
    pub(super) fn renew_some(self: &Arc<Self>, holds: &[HoldId]) {
        let mut taken = Vec::new();
        {
            let mut book = self.book();
            for hold in holds {
                let lease = book.lease_of(*hold);
                taken.extend(lease.filter(|lease| book.machine.take_one(*lease)));
            }
        }
        for batch in taken.chunks(BATCH) {
            self.renew(batch.to_vec());
        }
    }

    /// Renews one hold's lease now, unless that is under way.
    pub(crate) fn renew_now(self: &Arc<Self>, hold: HoldId) {
        let taken = {
            let mut book = self.book();
            book.lease_of(hold).filter(|lease| book.machine.take_one(*lease))
        };
        if let Some(lease) = taken {
            self.renew(vec![lease]);
        }
    }

    /// The engine has renewed its session by itself.
    pub(super) fn session_renewed(self: &Arc<Self>, lease: LeaseId, ttl: Duration, since: Ticks) {
        let mut told = Vec::new();
        {
            let mut changes = Vec::new();
            let mut book = self.book();
            book.machine.renewed(lease, since, ttl, &mut changes);
            for change in changes {
                if let Change::Extended(lease, until) = change {
                    self.extend(&book, lease, until, &mut told);
                }
            }
            self.prove(&book, lease);
        }
        self.tell_extended(told);
        self.arm_leases();
    }

    /// One message for many leases, or one for those in each part of the store.
    fn renew(self: &Arc<Self>, mut batch: Vec<LeaseId>) {
        let part = |lease: &LeaseId| self.engine.part(ClaimId(lease.0));
        // In one part nothing changes its place.
        batch.sort_by_cached_key(part);
        for part in batch.chunk_by(|a, b| part(a) == part(b)) {
            self.renew_part(part.to_vec());
        }
    }

    fn renew_part(self: &Arc<Self>, batch: Vec<LeaseId>) {
        let sent = self.clock.now();
        self.tell_of(&batch, |hold| Seen::Renewing { hold });
        let span = tracing::debug_span!("renew", engine = self.facts.engine, leases = batch.len());
        let answer = span.in_scope(|| self.engine.renew(&batch));
        self.await_renewals(sent, batch, answer);
    }

    fn await_renewals(
        self: &Arc<Self>,
        sent: Ticks,
        batch: Vec<LeaseId>,
        answer: Answer<Vec<Renewal>>,
    ) {
        match answer {
            Answer::Now(renewals) => self.renewed(sent, &batch, &renewals),
            Answer::Later(answer) => {
                let keeper = self.clone();
                self.run(async move {
                    let renewals = answer.await;
                    keeper.renewed(sent, &batch, &renewals);
                });
            }
        }
    }

    fn renewed(self: &Arc<Self>, sent: Ticks, batch: &[LeaseId], renewals: &[Renewal]) {
        let now = self.clock.now();
        let (mut gone, mut unknown) = (Vec::new(), Vec::new());
        let mut told = Vec::new();
        let mut why = None;
        {
            let mut changes = Vec::new();
            let mut book = self.book();
            for (at, lease) in batch.iter().enumerate() {
                match renewals.get(at) {
                    Some(Renewal::Extended { ttl, since }) => {
                        book.machine.renewed(*lease, since.unwrap_or(sent), *ttl, &mut changes);
                        book.machine.answered(*lease, now);
                    }
                    Some(Renewal::Gone(why)) => gone.push((*lease, *why)),
                    none => {
                        if let Some(Renewal::Unknown(error)) = none {
                            why = Some(error);
                        }
                        unknown.push(*lease);
                        book.machine.unanswered(*lease, now, &mut changes);
                    }
                }
            }
            for change in changes {
                match change {
                    Change::Extended(lease, until) => self.extend(&book, lease, until, &mut told),
                    Change::Doubtful(lease) => {
                        if let Some(kept) = book.kept.get(&lease) {
                            kept.cell.unanswered();
                            let left = kept.cell.deadline().since(now);
                            let why = why.map(tracing::field::display);
                            tracing::warn!(
                                engine = self.facts.engine,
                                ?lease,
                                ?left,
                                why,
                                "a lease was not renewed; it is asked for again"
                            );
                        }
                    }
                    Change::Over(_) | Change::Unproven(_) => {}
                }
            }
            for lease in batch {
                self.prove(&book, *lease);
            }
        }
        #[cfg(feature = "metrics")]
        crate::observe::metrics::renewed(self.facts.engine, now.since(sent));
        self.tell_extended(told);
        self.tell_of(&unknown, |hold| Seen::NotRenewed { hold, gone: false });
        for (lease, why) in gone {
            let holds = self.observed(&[lease]);
            self.lease_ended(lease, why);
            self.tell_each(holds, |hold| Seen::NotRenewed { hold, gone: true });
        }
        self.arm_leases();
    }

    /// A lease's deadline moved; notes whom to tell.
    fn extend(&self, book: &Book, lease: LeaseId, until: Ticks, told: &mut Vec<Extended>) {
        let Some(kept) = book.kept.get(&lease) else { return };
        let ttl = book.machine.ttl(lease).unwrap_or_else(|| kept.cell.ttl());
        kept.cell.extend(until, ttl);
        if self.settings.observer.is_some() {
            told.extend(kept.holds.of(lease).map(|(hold, entry)| (hold, entry, until)));
        }
    }

    fn tell_extended(&self, told: Vec<Extended>) {
        for (hold, entry, deadline) in told {
            if let Some(entry) = entry.upgrade() {
                self.observe(&entry, Seen::Renewed { hold, deadline });
            }
        }
    }

    /// The holds on these leases, when somebody wants to hear of them.
    fn observed(&self, leases: &[LeaseId]) -> Vec<(HoldId, Weak<Entry>)> {
        if self.settings.observer.is_none() || leases.is_empty() {
            return Vec::new();
        }
        let book = self.book();
        let mut holds = Vec::with_capacity(leases.len());
        for lease in leases {
            holds.extend(book.kept.get(lease).into_iter().flat_map(|kept| kept.holds.of(*lease)));
        }
        holds
    }

    fn tell_of(&self, leases: &[LeaseId], what: impl Fn(HoldId) -> Seen) {
        self.tell_each(self.observed(leases), what);
    }

    fn tell_each(&self, holds: Vec<(HoldId, Weak<Entry>)>, what: impl Fn(HoldId) -> Seen) {
        for (hold, entry) in holds {
            if let Some(entry) = entry.upgrade() {
                self.observe(&entry, what(hold));
            }
        }
    }

    /// A lease and all its holds are over.
    pub(super) fn lease_ended(self: &Arc<Self>, lease: LeaseId, why: Lost) {
        let holds = {
            let mut book = self.book();
            if book.over.len() >= OVER_MAX {
                book.over.pop_front();
            }
            book.over.push_back((lease, why));
            book.take_out(lease)
        };
        if holds.is_empty() {
            // The end may overtake the grant: then the claim, whose id the lease has, is still
            // under way.
            let claim = ClaimId(lease.0);
            if let Some(entry) = self.all_entries().into_iter().find(|e| e.knows(claim)) {
                entry.ended(claim, why, false);
            }
        }
        for (hold, entry) in holds {
            if let Some(entry) = entry.upgrade() {
                entry.ended(hold, why, false);
            }
        }
    }

    /// A pushed grant that does not say when it was made counts only from a renewal that was
    /// answered (R1).
    pub(super) fn confirm(
        self: &Arc<Self>,
        entry: Arc<Entry>,
        claim: ClaimId,
        grant: Grant,
        lease: Lease,
    ) {
        let keeper = self.clone();
        self.run(async move {
            for _ in 0..CONFIRM_TRIES {
                let sent = keeper.clock.now();
                if !entry.is_converting(claim) {
                    // Which grant stands is asked, and not only whether: this one may have run out
                    // and the claim been granted anew, with a greater number (R7).
                    let answers = keeper.engine.recheck(&[claim]).get().await;
                    match answers.into_iter().next() {
                        Some(Standing::Held(Grant { number, lease: Some(lease) })) => {
                            let lease = Lease {
                                since: Some(lease.since.unwrap_or(sent)),
                                confirm: true,
                                ..lease
                            };
                            return entry.answered(
                                claim,
                                sent,
                                Attempt::Granted(Grant { number, lease: Some(lease) }),
                            );
                        }
                        Some(Standing::Unknown(_)) | None => continue,
                        Some(Standing::Gone(_)) => return entry.wake(claim),
                        Some(standing) => return entry.answered(claim, sent, standing.into()),
                    }
                }
                let answers = keeper.engine.renew(&[lease.id]).get().await;
                match answers.first() {
                    Some(Renewal::Extended { ttl, since }) => {
                        let lease = Lease {
                            ttl: *ttl,
                            since: Some(since.unwrap_or(sent)),
                            confirm: false,
                            ..lease
                        };
                        return entry.answered(
                            claim,
                            sent,
                            Attempt::Granted(Grant { lease: Some(lease), ..grant }),
                        );
                    }
                    // The offer has passed on meanwhile: ask again with the same claim.
                    Some(Renewal::Gone(_)) => return entry.wake(claim),
                    Some(Renewal::Unknown(_)) | None => {}
                }
            }
        });
    }
}
