//! One server as an engine, whatever the layout: opening, describing, re-checking and closing, and
//! handing on to what is open.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::facts::Facts;
use super::links::Links;
use super::options::RedisOptions;
use super::script::Call;
use super::sweep;
use super::wire::{Answered, Started};
use crate::claim::{Claim, Entry};
use crate::clock::Ticks;
use crate::engine::{
    Answer, Attempt, Change, Context, End, Engine, Grant, Inlet, Lease, Line, Number, Query,
    Released, Renewal, Standing, WatchId,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guarantee::{Class, Description, Expiry, Warning};
use crate::id::{ClaimId, HoldId, LeaseId};
use crate::name::Name;

/// How many leases one script call renews: a longer call would make the others wait.
pub(super) const RENEWALS_PER_CALL: usize = 100;

/// How many claims one message asks about: the last of more would be asked when its time is over by
/// the server's clock.
const RECHECKED_AT_ONCE: usize = 500;

/// One server, written to in one layout.
pub(super) struct Server<O: Opened> {
    options: Arc<RedisOptions>,
    setting: O::Setting,
    opened: OnceLock<Arc<O>>,
}

/// A layout while it is open.
pub(super) trait Opened: Asking + Parting + Telling {
    /// What it needs to know beside the options.
    type Setting: Send + Sync + 'static;

    fn new(options: Arc<RedisOptions>, setting: &Self::Setting, context: Context) -> Arc<Self>;

    fn links(&self) -> &Links;

    /// Changes what a server alone promises into what this layout does.
    fn describe(setting: &Self::Setting, description: &mut Description);

    /// Wakes the tasks that have to end.
    fn closing(&self);

    /// A release was sent twice. What this process asked for right behind it may have found the
    /// lock taken, and may not be told when it is free.
    fn overtaken(&self, _hold: ClaimId) {}

    /// Follows a withdrawal or a release to its end.
    fn ended(
        self: &Arc<Self>,
        id: ClaimId,
        call: &Call,
        started: Started,
    ) -> impl Future<Output = (End, Option<Answered>)> + Send {
        async move {
            let (end, answered) = self.links().ended(started, call).await;
            if answered.as_ref().is_some_and(|answered| answered.resent) {
                self.overtaken(id);
            }
            if !matches!(end, End::Unknown(_)) {
                self.forget(id);
            }
            (end, answered)
        }
    }
}

/// How a layout asks for locks.
pub(super) trait Asking: Send + Sync + Sized + 'static {
    /// A request on its way: the call, and what else has to be known of it when it is answered.
    type Request: AsRef<Call> + Send + 'static;

    /// The server's clock, with our reading from before it was asked.
    fn heard(&self, server_us: u64, before: Ticks);

    /// Asks for a claim; with `hold`, for another mode of a hold.
    fn ask(self: &Arc<Self>, claim: &Claim, line: Line, hold: Option<HoldId>) -> Answer<Attempt>;

    /// Asks for all of several claims in one message, where the layout can.
    fn ask_all(self: &Arc<Self>, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        let error = Error::new(ErrorKind::Unsupported, "this layout asks for one lock at a time");
        Answer::Now(vec![Attempt::Failed(error); claims.len()])
    }

    /// The request for a claim that was asked for before; `None` for a hold, and for what is not
    /// wanted any more.
    fn again(&self, id: ClaimId) -> Option<Self::Request>;

    /// The number with which a claim holds; `None` when it does not.
    fn number(&self, id: ClaimId) -> Option<Number>;

    /// Follows a request to its answer.
    fn asked(
        self: Arc<Self>,
        id: ClaimId,
        request: Self::Request,
        started: Started,
        patience: Duration,
    ) -> impl Future<Output = Attempt> + Send;
}

/// How a layout keeps holds, gives them back, and leaves a line.
pub(super) trait Parting: Send + Sync + Sized + 'static {
    fn renew(self: &Arc<Self>, leases: &[LeaseId]) -> Answer<Vec<Renewal>>;

    /// The last message about a claim: what it was granted is given back, its place is left.
    /// `None`: there is nothing of it.
    fn leave(self: &Arc<Self>, id: ClaimId) -> Option<(Call, Started)>;

    fn release(self: &Arc<Self>, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released>;

    /// It is over, and the server knows.
    fn forget(self: &Arc<Self>, id: ClaimId);
}

/// How a layout tells who holds what, and changes what is no lock.
pub(super) trait Telling: Send + Sync + Sized + 'static {
    fn look(self: Arc<Self>, query: Query) -> impl Future<Output = Result<Vec<Entry>>> + Send;

    fn change(self: Arc<Self>, change: Change) -> impl Future<Output = Result<bool>> + Send;

    fn watch(
        self: Arc<Self>,
        watch: WatchId,
        query: Query,
    ) -> impl Future<Output = Result<()>> + Send;

    fn unwatch(&self, watch: WatchId);

    /// See [`Engine::other_layouts`].
    fn other_layouts(
        self: Arc<Self>,
        name: Name,
    ) -> impl Future<Output = Result<Vec<Warning>>> + Send;

    /// See [`Engine::clear_probe`].
    fn clear_probe(
        self: Arc<Self>,
        name: Name,
    ) -> impl Future<Output = Result<Vec<Warning>>> + Send;
}

impl<O: Opened> Server<O> {
    pub(super) fn new(options: RedisOptions, setting: O::Setting) -> Self {
        Self { options: Arc::new(options), setting, opened: OnceLock::new() }
    }

    pub(super) fn opened(&self) -> Result<&Arc<O>> {
        self.opened.get().ok_or_else(|| Error::new(ErrorKind::Closed, "the engine is not open"))
    }

    /// Asks what is open; before that, the answer is what `closed` makes of the error.
    fn answer<T>(
        &self,
        ask: impl FnOnce(&Arc<O>) -> Answer<T>,
        closed: impl FnOnce(Error) -> T,
    ) -> Answer<T> {
        match self.opened() {
            Ok(opened) => ask(opened),
            Err(error) => Answer::Now(closed(error)),
        }
    }
}

impl<O: Opened> Engine for Server<O> {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let opened = O::new(self.options.clone(), &self.setting, context);
        if self.opened.set(opened.clone()).is_err() {
            return Answer::Now(Err(Error::new(
                ErrorKind::InvalidArgument,
                "the engine is open already",
            )));
        }
        Answer::later(async move {
            let hears = opened.clone();
            opened.links().open(move |server_us, before| hears.heard(server_us, before)).await
        })
    }

    fn describe(&self) -> Description {
        let mut description =
            Description::new("redis", self.options.layout.as_str(), Class::Efficiency);
        description.hosts = true;
        description.expiry = Expiry::PerHold { claim_lease: None };
        description.early = true;
        description.request_timeout = Some(self.options.request_timeout);
        description.recovery = self.options.ttl;
        description.recovery_stopped = Some(self.options.ttl);
        let facts =
            self.opened.get().and_then(|opened| opened.links().main.facts()).unwrap_or_default();
        facts.describe(&mut description, &self.options);
        O::describe(&self.setting, &mut description);
        if let Some((server_us, _)) = facts.time {
            Facts::clock_warning(&mut description, server_us, facts.read_at_us);
        }
        description
    }

    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        self.opened.get()?.links().main.inlet()
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.answer(|opened| opened.ask(claim, line, None), Attempt::Failed)
    }

    fn attempt_all(&self, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        self.answer(
            |opened| opened.ask_all(claims),
            |error| vec![Attempt::Failed(error); claims.len()],
        )
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        self.answer(
            |opened| recheck(opened, claims),
            |error| vec![Standing::Gone(error); claims.len()],
        )
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        let Ok(opened) = self.opened() else { return Answer::Now(End::NotOurs) };
        let Some((call, started)) = opened.leave(claim) else { return Answer::Now(End::NotOurs) };
        let opened = opened.clone();
        Answer::later(async move { opened.ended(claim, &call, started).await.0 })
    }

    fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt> {
        self.answer(|opened| opened.ask(claim, Line::Join, Some(hold)), Attempt::Failed)
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        self.answer(
            |opened| opened.renew(leases),
            |error| leases.iter().map(|_| Renewal::Unknown(error.clone())).collect(),
        )
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        self.answer(
            |opened| opened.release(holds, again),
            |_| Released { ends: holds.iter().map(|_| End::NotOurs).collect(), again: None },
        )
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        self.answer(|opened| Answer::later(opened.clone().look(query.clone())), Err)
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        self.answer(|opened| Answer::later(opened.clone().change(change.clone())), Err)
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        self.answer(|opened| Answer::later(opened.clone().watch(watch, query.clone())), Err)
    }

    fn unwatch(&self, watch: WatchId) {
        if let Ok(opened) = self.opened() {
            opened.unwatch(watch);
        }
    }

    fn other_layouts(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        self.answer(|opened| Answer::later(opened.clone().other_layouts(name.clone())), Err)
    }

    fn clear_probe(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        self.answer(|opened| Answer::later(opened.clone().clear_probe(name.clone())), Err)
    }

    fn sweep(&self, word: &str) -> Answer<Result<bool>> {
        let word = word.to_owned();
        let swept = |opened: &Arc<O>| {
            let opened = opened.clone();
            Answer::later(async move { sweep::sweep(opened.links(), &word).await })
        };
        self.answer(swept, Err)
    }

    fn close(&self) -> Answer<()> {
        let Ok(opened) = self.opened() else { return Answer::Now(()) };
        opened.links().closing();
        opened.closing();
        let opened = opened.clone();
        Answer::later(async move { opened.links().close().await })
    }
}

/// Asks about claims that stand in line, and about holds by renewing them.
fn recheck<O: Opened>(opened: &Arc<O>, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
    let opened = opened.clone();
    let (first, rest) = claims.split_at(claims.len().min(RECHECKED_AT_ONCE));
    let (first, rest) = (recheck_some(&opened, first), rest.to_vec());
    Answer::later(async move {
        let mut standings = first.await;
        for some in rest.chunks(RECHECKED_AT_ONCE) {
            standings.extend(recheck_some(&opened, some).await);
        }
        standings
    })
}

/// Sends one message, and follows it to its answers.
fn recheck_some<O: Opened>(
    opened: &Arc<O>,
    claims: &[ClaimId],
) -> impl Future<Output = Vec<Standing>> + Send + 'static {
    let requests: Vec<(ClaimId, Option<O::Request>)> =
        claims.iter().map(|id| (*id, opened.again(*id))).collect();
    let commands: Vec<_> = requests
        .iter()
        .filter_map(|(_, request)| Some(request.as_ref()?.as_ref().by_name()))
        .collect();
    let mut answers = opened.links().main.start(&commands).each();
    let held: Vec<LeaseId> = requests
        .iter()
        .filter(|(_, request)| request.is_none())
        .map(|(id, _)| (*id).into())
        .collect();
    let renewals = if held.is_empty() { Answer::Now(Vec::new()) } else { opened.renew(&held) };
    let opened = opened.clone();
    async move {
        // What cannot be sent now is not waited for: the next link asks again, and so does the net.
        let patience = Duration::ZERO;
        let mut renewals = renewals.get().await.into_iter();
        let mut standings = Vec::with_capacity(requests.len());
        for (id, request) in requests {
            standings.push(match request {
                Some(request) => {
                    let one = answers.next().unwrap_or_else(Started::nothing);
                    opened.clone().asked(id, request, one, patience).await.into()
                }
                None => still_there(id, renewals.next(), opened.number(id)),
            });
        }
        standings
    }
}

/// What the renewal of a hold says about it, which has this number.
fn still_there(id: ClaimId, renewal: Option<Renewal>, number: Option<Number>) -> Standing {
    match (renewal, number) {
        (Some(Renewal::Extended { ttl, since }), Some(number)) => {
            let lease = Lease { id: id.into(), ttl, since, confirm: false };
            Standing::Held(Grant { number, lease: Some(lease) })
        }
        (Some(Renewal::Unknown(error)), _) => Standing::Unknown(error),
        _ => Standing::Gone(Error::new(ErrorKind::Lost, "the hold is not ours any more")),
    }
}
