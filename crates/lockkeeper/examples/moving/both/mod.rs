//! An engine made of two: whoever holds a lock here holds it in both. It knows nothing of the
//! keeper, and nothing of the engines that it is made of.

mod halves;

use std::sync::{Arc, Weak};
use std::time::Duration;

use halves::{Inner, Side, got};
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
        let (old, new) = (url_in(url, "old")?.canonical()?, url_in(url, "new")?.canonical()?);
        url.path = format!("{old} and {new}");
        Ok(())
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

/// A client of two engines.
pub struct Both(Arc<Inner>);

/// What is told of a holder that has both; the tokens of two holders differ by `step` at least.
fn whole_holder(old: &Holder, new: &Holder, step: u64) -> Holder {
    let lifted =
        [old.token.map(|token| token.get().saturating_add(step)), new.token.map(Token::get)];
    let mut both = new.clone();
    // An election of ZooKeeper's tells nothing but the candidate's id.
    both.host = both.host.or_else(|| old.host.clone());
    both.pid = both.pid.or(old.pid);
    both.program = both.program.or_else(|| old.program.clone());
    both.label = both.label.or_else(|| old.label.clone());
    both.token = new.token.and(lifted.into_iter().flatten().max()).and_then(Token::raw);
    both.ends = [old.expires_in(), new.expires_in()].into_iter().flatten().min().map(Ends::Lease);
    both
}

/// What both say of one name.
fn whole_entry(mut old: Entry, new: Entry, abouts: &[Description; 2]) -> Entry {
    let step = if abouts.iter().all(|about| about.hand_off) { 64 } else { 1 };
    let same = |one: &Holder, other: &Holder| {
        one.claim.is_some() && one.claim == other.claim
            || one.value.is_some() && one.value == other.value
    };
    let whole: Vec<Holder> = new
        .holders
        .iter()
        .map(|new| match old.holders.iter().find(|old| same(old, new)) {
            Some(old) => whole_holder(old, new, step),
            None => new.clone(),
        })
        .collect();
    let alone = |holders: &[Holder]| holders.iter().any(|h| h.mode == Some(Mode::Exclusive));
    if !abouts[0].can.has(Ability::Identity) && !old.holders.is_empty() {
        // A layout without claims: who of them has both cannot be told.
    } else if alone(&whole) {
        // Who has the old one beside it waits for the new one.
        old.holders = whole;
    } else {
        old.holders.retain(|old| !whole.iter().any(|new| same(old, new)));
        old.holders.extend(whole);
    }
    old.waiters.extend(new.waiters);
    old.unreadable = old.unreadable.or(new.unreadable);
    old
}

/// What is told where one half could not be taken away.
fn one_half(other: bool, error: Error) -> Error {
    if !other {
        return error;
    }
    let text = format!("only one of the two halves is known to be taken away: {}", error.message());
    Error::new(error.kind(), text).temporary(error.is_temporary())
}

impl Both {
    /// The old engine and the new one.
    pub fn of(engines: [Arc<dyn Engine>; 2]) -> Self {
        Self(Arc::new(Inner::new(engines)))
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
            for (at, side) in [Side::Old, Side::New].into_iter().enumerate() {
                let weak: Weak<Inner> = Arc::downgrade(&inner);
                let events = EventSink::new(move |event| {
                    if let Some(inner) = weak.upgrade() {
                        inner.hear(side, event);
                    }
                });
                let opened = inner.engines[at].open(Context { events, ..context.clone() });
                if let Err(error) = got(opened).await {
                    for opened in &inner.engines[..at] {
                        got(opened.close()).await;
                    }
                    return Err(error);
                }
            }
            let per_hold = |engine: &Arc<dyn Engine>| engine.describe().expiry.is_per_hold();
            _ = inner.per_hold.set(inner.engines.each_ref().map(per_hold));
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
        about.max_ttl = [old.max_ttl, new.max_ttl].into_iter().flatten().min();
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
        Answer::later(Arc::clone(&self.0).recheck(claims.to_vec()))
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
        let abouts = self.0.engines.each_ref().map(|engine| engine.describe());
        self.each(
            |engine| engine.read(query),
            move |mut old, new| {
                for entry in new {
                    let same = |e: &Entry| e.kind == entry.kind && e.name == entry.name;
                    match old.iter().position(same) {
                        Some(at) => old[at] = whole_entry(old[at].clone(), entry, &abouts),
                        None => old.push(entry),
                    }
                }
                old
            },
        )
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        let (kind, name) = match change {
            Change::Force(kind, name, from) if from.is_empty() => (*kind, name.clone()),
            _ => return self.each(|engine| engine.write(change), |old, new| old || new),
        };
        let engines = self.0.engines.clone();
        Answer::later(async move {
            // From those who hold now: once one half is taken away, the next may get both before
            // the other half is.
            let mut found = Vec::new();
            for engine in &engines {
                found.push(got(engine.read(&Query::One(kind, name.clone()))).await);
            }
            // Where one half is out of reach the other one is taken away all the same: its holder
            // loses both.
            let (mut forced, mut failed) = (false, None);
            for (engine, entries) in engines.iter().zip(found) {
                let forcing = async {
                    let entry = entries?.pop();
                    let held = |e: &Entry| !e.holders.is_empty() || e.unreadable.is_some();
                    let Some(entry) = entry.filter(held) else { return Ok(false) };
                    let change = Change::Force(kind, name.clone(), entry.holders);
                    got(engine.write(&change)).await
                };
                match forcing.await {
                    Ok(done) => forced |= done,
                    Err(error) => failed = Some(error),
                }
            }
            failed.map_or(Ok(forced), |error| Err(one_half(forced, error)))
        })
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        self.each(|engine| engine.watch(watch, query), |(), ()| ())
    }

    fn unwatch(&self, watch: WatchId) {
        for engine in &self.0.engines {
            engine.unwatch(watch);
        }
    }

    fn other_layouts(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        self.each(|engine| engine.other_layouts(name), |old, new| [old, new].concat())
    }

    fn clear_probe(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        self.each(|engine| engine.clear_probe(name), |old, new| [old, new].concat())
    }

    fn close(&self) -> Answer<()> {
        // Begun at once, also where nobody waits for the end.
        let [old, new] = self.0.engines.each_ref().map(|engine| engine.close());
        Answer::later(async move {
            got(new).await;
            got(old).await;
        })
    }
}
