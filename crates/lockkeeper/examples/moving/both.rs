//! An engine made of two: whoever holds a lock here holds it in both. It knows nothing of the
//! keeper, and nothing of the engines that it is made of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lockkeeper::engine::*;
use lockkeeper::url::EngineUrl;
use lockkeeper::{Locks, Result, Token};

/// Makes `both:?old=URL&new=URL` known to this process. A URL in a URL is written with `%3A` for
/// `:`, `%2F` for `/`, `%3F` for `?` and `%26` for `&`.
///
/// # Errors
/// As [`Locks::register`]: it is known already.
pub fn register() -> Result<()> {
    // Not part of the name: they may hold passwords.
    let option = |name, about| UrlOption::new(name, Value::Secret("URL"), "", about);
    let mut both = Registration::new("both", &["both"], Keep::Lease, |url, common| {
        let (old, new) = (part(url, "old", common)?, part(url, "new", common)?);
        Ok(Box::new(Both::of([old, new])))
    });
    both.place = Some(|url| {
        let mut url = url.clone();
        let (old, new) =
            (url_in(&mut url, "old")?.canonical()?, url_in(&mut url, "new")?.canonical()?);
        Ok(format!("{old} and {new}"))
    });
    both.options = vec![option("old", "taken first"), option("new", "taken second")];
    Locks::register(both)
}

fn url_in(url: &mut EngineUrl, option: &str) -> Result<EngineUrl> {
    let missing = || Error::new(ErrorKind::InvalidArgument, format!("both: needs {option}=URL"));
    EngineUrl::parse(&url.take(option).ok_or_else(missing)?)
}

fn part(url: &mut EngineUrl, option: &str, common: &Common) -> Result<Arc<dyn Engine>> {
    let mut url = url_in(url, option)?;
    let engine = Registration::of(&url.scheme)?;
    engine.check(&url)?;
    // What the keeper does is done once, for both.
    if let Some(common) = url.options().find(|o| UrlOption::COMMON.iter().any(|c| c.name == *o)) {
        let text = format!("{common} is an option of both: itself, and not of {option}=");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok((engine.open)(&mut url, common)?.into())
}

type Turn = tokio::sync::Mutex<()>;

/// One of the two engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Old,
    New,
}
use Side::{New, Old};

/// What of a claim is granted: its half in each engine.
struct Halves {
    claim: Claim,
    /// Whoever asks, renews or gives back for it does so alone: a withdrawal that comes while the
    /// halves are being taken finds all that was taken.
    turn: Arc<Turn>,
    granted: [Option<Grant>; 2],
    /// Whether both are, and the caller was told.
    whole: bool,
}

/// A client of two engines.
pub struct Both(Arc<Inner>);

struct Inner {
    engines: [Arc<dyn Engine>; 2],
    context: OnceLock<Context>,
    claims: Mutex<HashMap<ClaimId, Halves>>,
}

/// An answer, now or later.
async fn got<T>(answer: Answer<T>) -> T {
    match answer {
        Answer::Now(value) => value,
        Answer::Later(future) => future.await,
    }
}

/// The token is the new engine's, lifted above the old one's. As every holder has both locks, one
/// after the other, it rises from holder to holder.
fn number(old: Number, new: Number) -> Number {
    match (old, new) {
        (Number::Ours(old), Number::Ours(new)) => Number::Ours(new.max(old.saturating_add(1))),
        (_, new) => new,
    }
}

/// What is told of a holder that has both.
fn whole_holder(old: Holder, mut new: Holder) -> Holder {
    let lifted = [old.token.map(|token| token.get().saturating_add(64)), new.token.map(Token::get)];
    new.token = new.token.and(lifted.into_iter().flatten().max()).and_then(Token::raw);
    new.ends = [old.expires_in(), new.expires_in()].into_iter().flatten().min().map(Ends::Lease);
    new
}

fn lost() -> Error {
    Error::new(ErrorKind::Lost, "half of it is gone")
}

impl Inner {
    fn claims(&self) -> MutexGuard<'_, HashMap<ClaimId, Halves>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn engine(&self, side: Side) -> &Arc<dyn Engine> {
        &self.engines[side as usize]
    }

    fn now(&self) -> Ticks {
        self.context.get().map(|context| context.clock.now()).unwrap_or_default()
    }

    fn send(&self, event: Event) {
        if let Some(context) = self.context.get() {
            context.events.send(event);
        }
    }

    fn granted(&self, side: Side, claim: ClaimId) -> Option<Grant> {
        self.claims().get(&claim)?.granted[side as usize].clone()
    }

    /// Notes what was granted; `sent` is the reading before the question.
    fn note(&self, side: Side, claim: ClaimId, mut grant: Grant, sent: Option<Ticks>) {
        if let Some(lease) = &mut grant.lease {
            lease.since = lease.since.or(sent);
        }
        if let Some(halves) = self.claims().get_mut(&claim) {
            halves.granted[side as usize] = Some(grant);
        }
    }

    /// The grant of both: it lasts as long as the half that ends first.
    fn both(&self, claim: ClaimId) -> Option<Grant> {
        let claims = self.claims();
        let [Some(old), Some(new)] = &claims.get(&claim)?.granted else { return None };
        let end = |lease: &Lease| lease.since.unwrap_or_default().plus(lease.ttl);
        let leases = [old.lease, new.lease].into_iter().flatten();
        let lease = leases.min_by_key(end).map(|lease| Lease { id: claim.into(), ..lease });
        Some(Grant { number: number(old.number, new.number), lease })
    }

    /// Takes both, the old one first. Whoever asks again goes on where they stand.
    async fn take(self: Arc<Self>, claim: Claim, line: Line) -> Attempt {
        let id = claim.id;
        let fresh = || {
            let (claim, turn) = (claim.clone(), Arc::default());
            Halves { claim, turn, granted: [None, None], whole: false }
        };
        let turn = Arc::clone(&self.claims().entry(id).or_insert_with(fresh).turn);
        let _turn = turn.lock().await;
        for side in [Old, New] {
            match self.half(side, &claim, line).await {
                Attempt::Granted(grant) => self.note(side, id, grant, None),
                stands @ (Attempt::InLine(_) | Attempt::Unknown(_)) => return stands,
                // Of a refused claim nothing is left in either.
                refused @ (Attempt::Busy(_) | Attempt::Failed(_)) => {
                    return match self.end(id).await {
                        End::Unknown(error) => Attempt::Unknown(error),
                        End::Freed | End::NotOurs => refused,
                    };
                }
            }
        }
        if let Some(halves) = self.claims().get_mut(&id) {
            halves.whole = true;
        }
        self.both(id).map_or_else(|| Attempt::Unknown(lost()), Attempt::Granted)
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
                // It waited for too long; it stands again, and not with the other half.
                Some(Renewal::Gone(_)) | None => match self.end(claim.id).await {
                    End::Unknown(error) => return Attempt::Unknown(error),
                    End::Freed | End::NotOurs => return Attempt::Unknown(lost()),
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

    /// Whether a hold of this engine has a lease of its own, which we renew.
    fn renews(&self, side: Side) -> bool {
        self.engine(side).describe().expiry.is_per_hold()
    }

    /// Gives both halves back, or leaves both lines.
    async fn give_back(&self, claim: ClaimId) -> End {
        let turn = self.claims().get(&claim).map(|halves| Arc::clone(&halves.turn));
        let turn = turn.unwrap_or_default();
        let _turn = turn.lock().await;
        self.end(claim).await
    }

    /// The same, in the turn of whoever calls it: the new one first, so that whoever gets the old
    /// one finds the new one free.
    async fn end(&self, claim: ClaimId) -> End {
        let whole = self.claims().get(&claim).is_some_and(|halves| halves.whole);
        let mut ends = Vec::new();
        for side in [New, Old] {
            let engine = self.engine(side);
            let end = match self.granted(side, claim) {
                Some(_) => got(engine.release(&[claim], None)).await.ends.pop(),
                None => Some(got(engine.withdraw(claim)).await),
            };
            match end {
                // It is asked again; until then the other half stays as it is.
                Some(End::Unknown(error)) => return End::Unknown(error),
                Some(End::Freed) => ends.push(true),
                Some(End::NotOurs) | None => ends.push(false),
            }
            if let Some(halves) = self.claims().get_mut(&claim) {
                halves.granted[side as usize] = None;
            }
        }
        self.claims().remove(&claim);
        // A hold was ours if both halves were, a place if one of the lines had it.
        let freed = if whole { ends.iter().all(|end| *end) } else { ends.contains(&true) };
        if freed { End::Freed } else { End::NotOurs }
    }

    /// One of the two says something unasked.
    fn hear(self: &Arc<Self>, side: Side, event: Event) {
        match event {
            // The keeper asks again: for the other half, or for the whole.
            Event::Granted { claim, grant } => {
                self.note(side, claim, grant, None);
                self.send(Event::Wake { claim });
            }
            Event::Failed { claim, error } => {
                let inner = Arc::clone(self);
                self.spawn(async move {
                    drop(inner.give_back(claim).await);
                    inner.send(Event::Failed { claim, error });
                });
            }
            Event::Ended { which, why } => self.ended(side, which, why),
            Event::Renewed { lease, ttl, since } => {
                for halves in self.claims().values_mut() {
                    let leases = halves.granted[side as usize].as_mut();
                    let of_it = leases.and_then(|grant| grant.lease.as_mut());
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
                drop(inner.give_back(claim).await);
                if !whole {
                    inner.send(Event::Wake { claim });
                }
            });
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(context) = self.context.get() {
            context.spawner.spawn(task);
        }
    }

    /// How a claim stands: a whole one in both engines, any other where it waits.
    async fn stands(self: Arc<Self>, id: ClaimId) -> Standing {
        let known = self.claims().get(&id).map(|halves| (halves.claim.clone(), halves.whole));
        match known {
            None => return Standing::Gone(lost()),
            Some((claim, false)) => return self.take(claim, Line::Join).await.into(),
            Some((_, true)) => {}
        }
        let turn = self.claims().get(&id).map(|halves| Arc::clone(&halves.turn));
        let turn = turn.unwrap_or_default();
        let _turn = turn.lock().await;
        for side in [Old, New] {
            let sent = self.now();
            match got(self.engine(side).recheck(&[id])).await.pop() {
                Some(Standing::Held(grant)) => self.note(side, id, grant, Some(sent)),
                Some(Standing::Unknown(error)) => return Standing::Unknown(error),
                Some(Standing::Gone(_) | Standing::InLine(_)) | None => {
                    drop(self.end(id).await);
                    return Standing::Gone(lost());
                }
            }
        }
        self.both(id).map_or_else(|| Standing::Gone(lost()), Standing::Held)
    }

    /// Renews what has a lease of its own, one message for each engine.
    async fn renew(self: Arc<Self>, leases: Vec<LeaseId>) -> Vec<Renewal> {
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
                match (renewal, self.granted(side, hold)) {
                    (Renewal::Extended { ttl, since }, Some(mut grant)) => {
                        let since = since.or(Some(sent));
                        grant.lease =
                            grant.lease.map(|l| Lease { ttl, since, confirm: false, ..l });
                        self.note(side, hold, grant, None);
                    }
                    (Renewal::Extended { .. }, None) => {}
                    // One that is gone counts for more than one that is not known.
                    (gone @ Renewal::Gone(_), _) => drop(renewals.insert(hold.into(), gone)),
                    (unknown @ Renewal::Unknown(_), _) => {
                        renewals.entry(hold.into()).or_insert(unknown);
                    }
                }
            }
        }
        let mut answers = Vec::new();
        for lease in leases {
            let hold = ClaimId(lease.0);
            let extended = self.both(hold).and_then(|grant| grant.lease);
            let extended = extended
                .map(|lease| Renewal::Extended { ttl: lease.ttl, since: lease.since })
                .unwrap_or(Renewal::Gone(Lost::TakenAway));
            let answer = renewals.remove(&lease).unwrap_or(extended);
            if matches!(answer, Renewal::Gone(_)) {
                drop(self.give_back(hold).await);
            }
            answers.push(answer);
        }
        answers
    }
}

impl Both {
    /// The old engine and the new one.
    pub fn of(engines: [Arc<dyn Engine>; 2]) -> Self {
        Self(Arc::new(Inner { engines, context: OnceLock::new(), claims: Mutex::default() }))
    }

    /// Asks both and tells what both say.
    fn each<T: Send + 'static>(
        &self,
        ask: impl Fn(&dyn Engine) -> Answer<Result<T>>,
        join: impl FnOnce(T, T) -> T + Send + 'static,
    ) -> Answer<Result<T>> {
        let [old, new] = &self.0.engines;
        let (old, new) = (ask(&**old), ask(&**new));
        Answer::later(async move { Ok(join(got(old).await?, got(new).await?)) })
    }
}

impl Engine for Both {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let inner = Arc::clone(&self.0);
        _ = inner.context.set(context.clone());
        Answer::later(async move {
            for side in [Old, New] {
                let weak: Weak<Inner> = Arc::downgrade(&inner);
                let events = EventSink::new(move |event| {
                    if let Some(inner) = weak.upgrade() {
                        inner.hear(side, event);
                    }
                });
                got(inner.engine(side).open(Context { events, ..context.clone() })).await?;
            }
            Ok(())
        })
    }

    fn describe(&self) -> Description {
        let [old, new] = self.0.engines.each_ref().map(|engine| engine.describe());
        let weakest_first = [Class::Efficiency, Class::Timed, Class::Fenced, Class::OneKernel];
        let class = weakest_first.into_iter().find(|class| [old.class, new.class].contains(class));
        let mut about = Description::new("both", "both", class.unwrap_or(Class::Efficiency));
        about.server = format!("{} and {}", old.server, new.server);
        about.fenced = new.fenced;
        about.hosts = old.hosts && new.hosts;
        about.recovery = old.recovery.max(new.recovery);
        about.recovery_stopped =
            old.recovery_stopped.zip(new.recovery_stopped).map(|(old, new)| old.max(new));
        about.expiry = if old.expiry.is_timed() || new.expiry.is_timed() {
            // A pushed grant is told once both halves are confirmed.
            Expiry::PerHold { claim_lease: old.expiry.claim_lease() }
        } else {
            Expiry::WithProcess
        };
        // Each turn is a hold of its own: both engines see it.
        about.hand_off = false;
        let sum = |old: Duration, new| old.saturating_add(new);
        about.request_timeout =
            [old.request_timeout, new.request_timeout].into_iter().flatten().reduce(sum);
        let kept = [
            Ability::Shared,
            Ability::Election,
            Ability::List,
            Ability::Force,
            Ability::Fair,
            Ability::WriterTurns,
            Ability::Identity,
        ];
        let kept = kept.into_iter().filter(|ability| old.can.has(*ability));
        let kept: Vec<_> = kept.filter(|ability| new.can.has(*ability)).collect();
        about.can = Can::NONE.with(&kept);
        about.breaks = [old.breaks, new.breaks].concat();
        about.warnings = [old.warnings, new.warnings].concat();
        about
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        Answer::later(Arc::clone(&self.0).take(claim.clone(), line))
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let (inner, claims) = (Arc::clone(&self.0), claims.to_vec());
        Answer::later(async move {
            let mut standings = Vec::new();
            for claim in claims {
                standings.push(Arc::clone(&inner).stands(claim).await);
            }
            standings
        })
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        let inner = Arc::clone(&self.0);
        Answer::later(async move { inner.give_back(claim).await })
    }

    fn convert(&self, _: HoldId, _: &Claim) -> Answer<Attempt> {
        let text = "two engines cannot convert a hold at once";
        Answer::Now(Attempt::Failed(Error::new(ErrorKind::Unsupported, text)))
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        Answer::later(Arc::clone(&self.0).renew(leases.to_vec()))
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let (inner, holds, again) = (Arc::clone(&self.0), holds.to_vec(), again.cloned());
        Answer::later(async move {
            let mut ends = Vec::new();
            for hold in holds {
                ends.push(inner.give_back(hold).await);
            }
            let again = match again {
                Some(claim) => Some(inner.take(claim, Line::Join).await),
                None => None,
            };
            Released { ends, again }
        })
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        self.each(
            |engine| engine.read(query),
            |mut old, new| {
                for entry in new {
                    let same = |e: &&mut Entry| e.kind == entry.kind && e.name == entry.name;
                    let Some(known) = old.iter_mut().find(same) else {
                        old.push(entry);
                        continue;
                    };
                    // Who holds the old one is shown as that knows them; who holds the new one
                    // alone holds it for everybody.
                    if known.holders.is_empty() {
                        known.holders = entry.holders;
                        continue;
                    }
                    for half in &mut known.holders {
                        let new = entry.holders.iter().find(|new| new.claim == half.claim);
                        if let Some(new) = new {
                            *half = whole_holder(half.clone(), new.clone());
                        }
                    }
                }
                old
            },
        )
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        self.each(|engine| engine.write(change), |old, new| old || new)
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        self.each(|engine| engine.watch(watch, query), |(), ()| ())
    }

    fn unwatch(&self, watch: WatchId) {
        for engine in &self.0.engines {
            engine.unwatch(watch);
        }
    }

    fn clear_probe(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        self.each(|engine| engine.clear_probe(name), |old, new| [old, new].concat())
    }

    fn close(&self) -> Answer<()> {
        let inner = Arc::clone(&self.0);
        Answer::later(async move {
            for side in [New, Old] {
                got(inner.engine(side).close()).await;
            }
        })
    }
}
