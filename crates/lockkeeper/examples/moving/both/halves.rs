//! The two halves of every claim: taken one after the other, kept alive, and given back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lockkeeper::engine::*;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

/// How soon a half is given back again of which nobody knows whether it was.
const AGAIN: Duration = Duration::from_millis(250);

/// One of the two engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Old,
    New,
}
use Side::{New, Old};

/// Who has it asks or gives back for a claim. A withdrawal that comes while the halves are taken
/// waits for it, and finds all that was taken.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// A claim and what it has in each engine.
struct Halves {
    claim: Claim,
    turn: Turn,
    granted: [Option<Grant>; 2],
    /// Both are granted, and the caller was told.
    whole: bool,
    /// Which are given back, and whether they were ours until then.
    ended: [Option<bool>; 2],
}

/// What a client of two engines consists of.
pub(super) struct Inner {
    pub(super) engines: [Arc<dyn Engine>; 2],
    pub(super) context: OnceLock<Context>,
    /// Which engine has a lease for each hold, which we renew.
    pub(super) per_hold: OnceLock<[bool; 2]>,
    claims: Mutex<HashMap<ClaimId, Halves>>,
}

/// An answer, now or later.
pub(super) async fn got<T>(answer: Answer<T>) -> T {
    match answer {
        Answer::Now(value) => value,
        Answer::Later(future) => future.await,
    }
}

/// The token is the new engine's, lifted above the old one's. As every holder has both locks, one
/// after the other, it rises from holder to holder.
fn number(old: Number, new: Number) -> Number {
    use Number::{None, Ours, Raw};
    match (old, new) {
        (None, new) => new,
        (_, None) => None,
        (Ours(old), Ours(new)) => Ours(new.max(old.saturating_add(1))),
        (Raw(old), Raw(new)) => Raw(new.max(old.saturating_add(1))),
        // A token of ours is 64 times its number.
        (Ours(old), Raw(new)) => Raw(new.max(old.saturating_add(1).saturating_mul(64))),
        (Raw(old), Ours(new)) => Ours(new.max(old / 64 + 1)),
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Lost, "half of it is gone")
}

/// When a lease ends, without any allowance.
fn end_of(lease: &Lease) -> Ticks {
    lease.since.unwrap_or_default().plus(lease.ttl)
}

impl Inner {
    pub(super) fn new(engines: [Arc<dyn Engine>; 2]) -> Self {
        let (context, per_hold) = (OnceLock::new(), OnceLock::new());
        Self { engines, context, per_hold, claims: Mutex::default() }
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<ClaimId, Halves>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn engine(&self, side: Side) -> &Arc<dyn Engine> {
        &self.engines[side as usize]
    }

    fn renews(&self, side: Side) -> bool {
        self.per_hold.get().is_some_and(|both| both[side as usize])
    }

    fn now(&self) -> Ticks {
        self.context.get().map(|context| context.clock.now()).unwrap_or_default()
    }

    fn send(&self, event: Event) {
        if let Some(context) = self.context.get() {
            context.events.send(event);
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(context) = self.context.get() {
            context.spawner.spawn(task);
        }
    }

    /// Waits for the turn of a claim; `None` once there is nothing of it.
    async fn turn(&self, id: ClaimId) -> Option<OwnedMutexGuard<()>> {
        loop {
            let turn = Arc::clone(&self.claims().get(&id)?.turn);
            let taken = Arc::clone(&turn).lock_owned().await;
            // It may have ended, and begun anew, meanwhile.
            if self.claims().get(&id).is_some_and(|halves| Arc::ptr_eq(&halves.turn, &turn)) {
                return Some(taken);
            }
        }
    }

    fn granted(&self, side: Side, claim: ClaimId) -> Option<Grant> {
        self.claims().get(&claim)?.granted[side as usize].clone()
    }

    /// Notes what was granted, unless there is nothing of the claim any more; `sent` is the reading
    /// before the question.
    fn note(&self, side: Side, claim: ClaimId, mut grant: Grant, sent: Option<Ticks>) -> bool {
        if let Some(lease) = &mut grant.lease {
            lease.since = lease.since.or(sent);
        }
        match self.claims().get_mut(&claim) {
            Some(halves) => halves.granted[side as usize] = Some(grant),
            None => return false,
        }
        true
    }

    /// The grant of both: it lasts as long as the half that ends first.
    fn both(&self, claim: ClaimId) -> Option<Grant> {
        let claims = self.claims();
        let [Some(old), Some(new)] = &claims.get(&claim)?.granted else { return None };
        let leases = [old.lease, new.lease].into_iter().flatten();
        let lease = leases.min_by_key(end_of).map(|lease| Lease { id: claim.into(), ..lease });
        Some(Grant { number: number(old.number, new.number), lease })
    }

    /// Takes both, the old one first. Asked again, it goes on where the claim stands.
    pub(super) async fn take(self: Arc<Self>, claim: Claim, line: Line) -> Attempt {
        let id = claim.id;
        loop {
            let fresh = || Halves {
                claim: claim.clone(),
                turn: Turn::default(),
                granted: [None, None],
                whole: false,
                ended: [None, None],
            };
            // Another caller may have taken the place over, with a time limit of its own.
            self.claims().entry(id).or_insert_with(fresh).claim = claim.clone();
            if let Some(_turn) = self.turn(id).await {
                return self.take_in_turn(&claim, line).await;
            }
        }
    }

    async fn take_in_turn(&self, claim: &Claim, line: Line) -> Attempt {
        let id = claim.id;
        if self.claims().get(&id).is_some_and(|halves| halves.ended != [None, None]) {
            return match self.end(id).await {
                End::Unknown(error) => Attempt::Unknown(error),
                End::Freed | End::NotOurs | End::Gone(_) => Attempt::Unknown(lost()),
            };
        }
        for side in [Old, New] {
            match self.half(side, claim, line).await {
                Attempt::Granted(grant) => _ = self.note(side, id, grant, None),
                stands @ (Attempt::InLine(_) | Attempt::Unknown(_)) => return stands,
                // Of a refused claim nothing is left in either.
                refused @ (Attempt::Busy(_) | Attempt::Failed(_)) => {
                    return match self.end(id).await {
                        End::Unknown(error) => Attempt::Unknown(error),
                        End::Freed | End::NotOurs | End::Gone(_) => refused,
                    };
                }
            }
        }
        let Some(grant) = self.both(id) else { return Attempt::Unknown(lost()) };
        if let Some(halves) = self.claims().get_mut(&id) {
            halves.whole = true;
        }
        Attempt::Granted(grant)
    }

    /// Takes one half, or keeps it alive while the other one is waited for.
    async fn half(&self, side: Side, claim: &Claim, line: Line) -> Attempt {
        let engine = self.engine(side);
        let sent = self.now();
        if let Some(mut grant) = self.granted(side, claim.id) {
            let Some(lease) = grant.lease.as_mut().filter(|_| self.renews(side)) else {
                return Attempt::Granted(grant);
            };
            match got(engine.renew(&[lease.id])).await.pop() {
                Some(Renewal::Extended { ttl, since }) => {
                    *lease = Lease { ttl, since: since.or(Some(sent)), confirm: false, ..*lease };
                    return Attempt::Granted(grant);
                }
                Some(Renewal::Unknown(error)) => return Attempt::Unknown(error),
                // The other one was waited for too long. The claim stands again, without any half.
                Some(Renewal::Gone(_)) | None => match self.end(claim.id).await {
                    End::Unknown(error) => return Attempt::Unknown(error),
                    End::Freed | End::NotOurs | End::Gone(_) => return Attempt::Unknown(lost()),
                },
            }
        }
        match got(engine.attempt(claim, line)).await {
            Attempt::Granted(mut grant) => {
                if let Some(lease) = &mut grant.lease {
                    lease.since = lease.since.or(Some(sent));
                }
                Attempt::Granted(grant)
            }
            other => other,
        }
    }

    /// Gives both halves back, or leaves both lines.
    pub(super) async fn give_back(&self, claim: ClaimId) -> End {
        let _turn = self.turn(claim).await;
        self.end(claim).await
    }

    /// The same without anybody who would ask again. With `broken`, a claim that has both halves by
    /// now is left alone.
    async fn clear(&self, claim: ClaimId, broken: bool) {
        while let Some(turn) = self.turn(claim).await {
            if broken && self.both(claim).is_some() {
                return;
            }
            let End::Unknown(_) = self.end(claim).await else { return };
            drop(turn);
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Ends what a claim has, in its turn: the new one first, so that whoever gets the old one
    /// finds the new one free. Where that is not known the old one is given back all the same:
    /// nobody passes the new one before its lease ends.
    async fn end(&self, claim: ClaimId) -> End {
        let known = self.claims().get(&claim).map(|halves| (halves.whole, halves.ended));
        let (whole, mut ended) = known.unwrap_or_default();
        let mut unknown = None;
        for side in [New, Old] {
            if ended[side as usize].is_some() {
                continue;
            }
            let engine = self.engine(side);
            let grant = self.granted(side, claim);
            let end = match grant {
                Some(_) => got(engine.release(&[claim], None)).await.ends.pop(),
                None => Some(got(engine.withdraw(claim)).await),
            };
            let lease = grant.and_then(|grant| grant.lease);
            let freed = match end {
                Some(End::Freed) => true,
                Some(End::NotOurs | End::Gone(_)) | None => false,
                Some(End::Unknown(_)) if lease.is_some_and(|l| end_of(&l) < self.now()) => false,
                // It is asked again.
                Some(End::Unknown(error)) => {
                    unknown = Some(error);
                    continue;
                }
            };
            ended[side as usize] = Some(freed);
            if let Some(halves) = self.claims().get_mut(&claim) {
                halves.granted[side as usize] = None;
                halves.ended = ended;
            }
        }
        if let Some(error) = unknown {
            return End::Unknown(error);
        }
        self.claims().remove(&claim);
        // A hold was ours if both halves were, a place if one of the lines had it.
        let ours =
            if whole { ended == [Some(true), Some(true)] } else { ended.contains(&Some(true)) };
        if ours { End::Freed } else { End::NotOurs }
    }

    /// One of the two says something unasked.
    pub(super) fn hear(self: &Arc<Self>, side: Side, event: Event) {
        match event {
            // The keeper asks again: for the other half, or for both together.
            Event::Granted { claim, grant } => {
                if self.note(side, claim, grant, None) {
                    return self.send(Event::Wake { claim });
                }
                // It was left meanwhile.
                let engine = Arc::clone(self.engine(side));
                self.spawn(async move {
                    while let Some(End::Unknown(_)) =
                        got(engine.release(&[claim], None)).await.ends.pop()
                    {
                        tokio::time::sleep(AGAIN).await;
                    }
                });
            }
            Event::Failed { claim, error } => {
                self.send(Event::Failed { claim, error });
                let inner = Arc::clone(self);
                self.spawn(async move { inner.clear(claim, false).await });
            }
            Event::Ended { which, why } => self.ended(side, which, why),
            Event::Renewed { lease, ttl, since } => {
                for halves in self.claims().values_mut() {
                    let granted = halves.granted[side as usize].as_mut();
                    let of_it = granted.and_then(|grant| grant.lease.as_mut());
                    if let Some(of_it) = of_it.filter(|of_it| of_it.id == lease) {
                        *of_it = Lease { ttl, since: Some(since), ..*of_it };
                    }
                }
            }
            other => self.send(other),
        }
    }

    /// A hold ends with either half; the other one is given back.
    fn ended(self: &Arc<Self>, side: Side, which: Which, why: Lost) {
        let is_it = |id: ClaimId, grant: &Grant| match which {
            Which::Hold(hold) => hold == id,
            Which::Lease(lease) => grant.lease.is_some_and(|of_it| of_it.id == lease),
            Which::All => true,
        };
        let mut over = Vec::new();
        for (id, halves) in &mut *self.claims() {
            if halves.granted[side as usize].as_ref().is_some_and(|grant| is_it(*id, grant)) {
                halves.granted[side as usize] = None;
                over.push((*id, halves.whole));
            }
        }
        for (claim, whole) in over {
            if whole {
                self.send(Event::Ended { which: Which::Hold(claim), why });
            }
            let inner = Arc::clone(self);
            self.spawn(async move {
                inner.clear(claim, true).await;
                if !whole {
                    inner.send(Event::Wake { claim });
                }
            });
        }
    }

    /// How claims stand: those that hold, in one message to each engine; those that wait, each
    /// where it does.
    pub(super) async fn recheck(self: Arc<Self>, ids: Vec<ClaimId>) -> Vec<Standing> {
        let mut standings: HashMap<ClaimId, Standing> = HashMap::new();
        let (mut holds, mut waiting) = (Vec::new(), JoinSet::new());
        for id in &ids {
            match self.claims().get(id).map(|halves| halves.whole) {
                Some(true) => holds.push(*id),
                Some(false) => {
                    let (inner, id) = (Arc::clone(&self), *id);
                    waiting.spawn(async move { (id, inner.where_it_waits(id).await) });
                }
                None => {}
            }
        }
        for side in [Old, New] {
            let sent = self.now();
            let answers = got(self.engine(side).recheck(&holds)).await;
            for (id, answer) in holds.iter().zip(answers) {
                match answer {
                    Standing::Held(grant) => _ = self.note(side, *id, grant, Some(sent)),
                    Standing::Unknown(error) => {
                        standings.entry(*id).or_insert(Standing::Unknown(error));
                    }
                    Standing::Gone(_) | Standing::InLine(_) => {
                        standings.insert(*id, Standing::Gone(lost()));
                    }
                }
            }
        }
        for id in holds {
            if let Some(Standing::Gone(_)) = standings.get(&id) {
                let inner = Arc::clone(&self);
                self.spawn(async move { inner.clear(id, false).await });
            }
            let whole = || self.both(id).map_or_else(|| Standing::Gone(lost()), Standing::Held);
            standings.entry(id).or_insert_with(whole);
        }
        while let Some(Ok((id, standing))) = waiting.join_next().await {
            standings.insert(id, standing);
        }
        ids.iter().map(|id| standings.remove(id).unwrap_or(Standing::Gone(lost()))).collect()
    }

    async fn where_it_waits(&self, id: ClaimId) -> Standing {
        let Some(_turn) = self.turn(id).await else { return Standing::Gone(lost()) };
        let claim = self.claims().get(&id).map(|halves| halves.claim.clone());
        let Some(claim) = claim else { return Standing::Gone(lost()) };
        match self.take_in_turn(&claim, Line::Join).await {
            // Neither half is there any more: the keeper stands again.
            Attempt::Unknown(error) if error.kind() == ErrorKind::Lost => Standing::Gone(error),
            attempt => attempt.into(),
        }
    }

    /// Renews what has a lease of its own, in one message to each engine.
    pub(super) async fn renew(self: Arc<Self>, leases: Vec<LeaseId>) -> Vec<Renewal> {
        let mut renewals: HashMap<LeaseId, Renewal> = HashMap::new();
        for side in [Old, New] {
            if !self.renews(side) {
                continue;
            }
            let holds = leases.iter().filter_map(|lease| {
                let hold = ClaimId(lease.0);
                Some((hold, self.granted(side, hold)?.lease?.id))
            });
            let (holds, ids): (Vec<_>, Vec<_>) = holds.unzip();
            let sent = self.now();
            for (hold, renewal) in holds.into_iter().zip(got(self.engine(side).renew(&ids)).await) {
                match renewal {
                    Renewal::Extended { ttl, since } => {
                        if let Some(mut grant) = self.granted(side, hold) {
                            let since = since.or(Some(sent));
                            grant.lease =
                                grant.lease.map(|l| Lease { ttl, since, confirm: false, ..l });
                            self.note(side, hold, grant, None);
                        }
                    }
                    // It is gone, whatever the other engine says or does not say.
                    gone @ Renewal::Gone(_) => drop(renewals.insert(hold.into(), gone)),
                    unknown @ Renewal::Unknown(_) => {
                        renewals.entry(hold.into()).or_insert(unknown);
                    }
                }
            }
        }
        let answer = |lease: LeaseId| {
            let hold = ClaimId(lease.0);
            let now = self.both(hold).and_then(|grant| grant.lease);
            let extended = now.map_or(Renewal::Gone(Lost::TakenAway), |lease| Renewal::Extended {
                ttl: lease.ttl,
                since: lease.since,
            });
            let answer = renewals.remove(&lease).unwrap_or(extended);
            if matches!(answer, Renewal::Gone(_)) {
                let inner = Arc::clone(&self);
                self.spawn(async move { inner.clear(hold, false).await });
            }
            answer
        };
        leases.into_iter().map(answer).collect()
    }
}
