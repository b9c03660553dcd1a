//! One server as an engine, whatever the layout: opening, describing, re-checking and closing, and
//! handing on to what is open.

use std::future::Future;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::client::lane::Ears;
use super::client::node::Node;
use super::describe::Facts;
use super::finder::Finder;
use super::links::{Leave, Links};
use super::options::RedisOptions;
use super::resp::Value;
use super::script::Call;
use super::sweep;
use super::wire::{Answered, Started};
#[cfg(feature = "cluster")]
use crate::engine::Event;
use crate::engine::{
    Answer, Attempt, Change, Context, End, Engine, Grant, Inlet, Lease, Line, Number, Query,
    Released, Renewal, Standing, WatchId, not_there,
};
use crate::words::claim::{Claim, Entry};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::{Class, Description, Expiry, Warning};
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::name::Name;

/// How many leases one script call renews: a longer call would make the others wait.
pub(super) const RENEWALS_PER_CALL: usize = 100;

/// How many claims one message asks about: the last of more would be asked when its time is over by
/// the server's clock.
const RECHECKED_AT_ONCE: usize = 500;

/// One server, written to in one layout.
pub(super) struct Server<O: Opened> {
    options: Arc<RedisOptions>,
    finder: Option<Arc<dyn Finder>>,
    setting: O::Setting,
    opened: OnceLock<Arc<O>>,
}

/// A layout while it is open.
pub(super) trait Opened: Acquires + Releases + Inspects {
    /// What it needs to know beside the options.
    type Setting: Send + Sync + 'static;

    fn new(options: Arc<RedisOptions>, setting: &Self::Setting, context: Context) -> Arc<Self>;

    fn links(&self) -> &Links;

    /// Changes what a server alone promises into what this layout does.
    fn describe(setting: &Self::Setting, description: &mut Description);

    /// A push of a node, in the order in which it was read.
    fn pushed(self: &Arc<Self>, node: Node, order: u64, items: &[Value]);

    /// The node that has what a claim is about.
    #[cfg(feature = "cluster")]
    fn part(&self, claim: ClaimId) -> u32;

    /// The keys that this picks have another home: whoever watches one of them looks again.
    #[cfg(feature = "cluster")]
    fn moved(&self, keys: &dyn Fn(&str) -> bool);

    /// The claims about keys that this picks.
    #[cfg(feature = "cluster")]
    fn claims_of(&self, keys: &dyn Fn(&str) -> bool) -> Vec<ClaimId>;

    /// Wakes the tasks that have to end.
    fn closing(&self);

    /// A release was sent twice. What this process asked for right behind it may have found the
    /// lock taken, and may not be told when it is free.
    fn overtaken(&self, _hold: ClaimId) {}

    /// Follows a withdrawal or a release to its end.
    fn ended(
        self: &Arc<Self>,
        id: ClaimId,
        leave: Leave,
    ) -> impl Future<Output = (End, Option<Answered>)> + Send {
        async move {
            let (end, answered) = self.links().ended(leave).await;
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
pub(super) trait Acquires: Send + Sync + Sized + 'static {
    /// A request on its way: the call, and what else has to be known of it when it is answered.
    type Request: AsRef<Call> + Send + 'static;

    /// A node is about to be connected, perhaps another server than before.
    fn fresh(&self, node: Node);

    /// A node's clock, with our reading from before it was asked.
    fn heard(&self, node: Node, server_us: u64, before: Ticks);

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
pub(super) trait Releases: Send + Sync + Sized + 'static {
    fn renew(self: &Arc<Self>, leases: &[LeaseId]) -> Answer<Vec<Renewal>>;

    /// The last message about a claim: what it was granted is given back, its place is left.
    /// `None`: there is nothing of it.
    fn leave(self: &Arc<Self>, id: ClaimId) -> Option<Leave>;

    fn release(
        self: &Arc<Self>,
        holds: &[HoldId],
        again: Option<&Claim>,
        awaited: bool,
    ) -> Answer<Released>;

    /// It is over, and the server knows.
    fn forget(self: &Arc<Self>, id: ClaimId);
}

/// How a layout tells who holds what, and changes what is no lock.
pub(super) trait Inspects: Send + Sync + Sized + 'static {
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
    pub(super) fn new(
        options: RedisOptions,
        finder: Option<Arc<dyn Finder>>,
        setting: O::Setting,
    ) -> Self {
        Self { options: Arc::new(options), finder, setting, opened: OnceLock::new() }
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

    fn give_back(
        &self,
        holds: &[HoldId],
        again: Option<&Claim>,
        awaited: bool,
    ) -> Answer<Released> {
        self.answer(
            |opened| opened.release(holds, again, awaited),
            |_| Released { ends: holds.iter().map(|_| End::NotOurs).collect(), again: None },
        )
    }
}

impl<O: Opened> Engine for Server<O> {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let opened = O::new(self.options.clone(), &self.setting, context.clone());
        if self.opened.set(opened.clone()).is_err() {
            return Answer::Now(Err(Error::new(
                ErrorKind::InvalidArgument,
                "the engine is open already",
            )));
        }
        let connecting = Box::pin(async move { opened.links().open().await });
        Answer::Later(match &self.finder {
            Some(finder) => finder.clone().open(context, connecting),
            None => connecting,
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
        if let Some(finder) = &self.finder {
            finder.describe(&mut description);
        }
        description
    }

    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        self.opened.get()?.links().main.inlet()
    }

    fn inlet_of_releases(&self) -> Option<Arc<dyn Inlet>> {
        // Where grants wait for replicas, releases have a connection of their own.
        self.inlet().filter(|_| self.options.wait.is_none())
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.answer(|opened| opened.ask(claim, line, None), Attempt::Failed)
    }

    fn attempt_all(&self, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        // Several names are in several slots: no script is about them all.
        if self.options.scattered() {
            return Answer::Now(vec![Attempt::Failed(not_there()); claims.len()]);
        }
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
        let Some(leave) = opened.leave(claim) else { return Answer::Now(End::NotOurs) };
        let opened = opened.clone();
        Answer::later(async move { opened.ended(claim, leave).await.0 })
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
        self.give_back(holds, again, false)
    }

    fn release_awaited(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        self.give_back(holds, again, true)
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
        let (name, finder) = (name.clone(), self.finder.clone());
        let cleared = |opened: &Arc<O>| {
            let opened = opened.clone();
            Answer::later(async move {
                if let Some(finder) = finder {
                    finder.examine().await;
                }
                opened.clear_probe(name).await
            })
        };
        self.answer(cleared, Err)
    }

    fn sweep(&self, word: &str) -> Answer<Result<bool>> {
        let word = word.to_owned();
        let swept = |opened: &Arc<O>| {
            let opened = opened.clone();
            Answer::later(async move { sweep::sweep(opened.links(), &word).await })
        };
        self.answer(swept, Err)
    }

    #[cfg(feature = "cluster")]
    fn part(&self, claim: ClaimId) -> u32 {
        let opened = self.opened.get().filter(|_| self.options.scattered());
        opened.map_or(0, |opened| opened.part(claim))
    }

    fn close(&self) -> Answer<()> {
        let Ok(opened) = self.opened() else { return Answer::Now(()) };
        opened.links().closing();
        opened.closing();
        let (opened, finder) = (opened.clone(), self.finder.clone());
        Answer::later(async move {
            opened.links().close().await;
            if let Some(finder) = finder {
                finder.close();
            }
        })
    }
}

/// What the connections of a layout bring, for as long as it is there.
pub(super) struct Heard<O>(pub(super) Weak<O>);

impl<O: Opened> Ears for Heard<O> {
    fn push(&self, node: Node, order: u64, items: Vec<Value>) {
        if let Some(opened) = self.0.upgrade() {
            opened.pushed(node, order, &items);
        }
    }

    fn fresh(&self, node: Node) {
        if let Some(opened) = self.0.upgrade() {
            opened.fresh(node);
        }
    }

    fn up(&self, node: Node, time: Option<(u64, Ticks)>, again: bool) {
        let Some(opened) = self.0.upgrade() else { return };
        if let Some((server_us, before)) = time {
            opened.heard(node, server_us, before);
        }
        #[cfg(feature = "cluster")]
        if again && opened.links().options.scattered() {
            doubt_at(&opened, node);
        }
        #[cfg(not(feature = "cluster"))]
        let _ = again;
    }

    #[cfg(feature = "cluster")]
    fn down(&self, node: Node) {
        if let Some(opened) = self.0.upgrade() {
            doubt_at(&opened, node);
        }
    }

    #[cfg(feature = "cluster")]
    fn moved(&self, keys: &dyn Fn(&str) -> bool) {
        if let Some(opened) = self.0.upgrade() {
            opened.moved(keys);
            doubt(&opened, keys);
        }
    }
}

/// The same about all that a node has.
#[cfg(feature = "cluster")]
fn doubt_at<O: Opened>(opened: &Arc<O>, node: Node) {
    let lane = &opened.links().main;
    doubt(opened, &|key| lane.home(key) == node);
}

/// It is not certain any more how the claims about these keys stand.
#[cfg(feature = "cluster")]
fn doubt<O: Opened>(opened: &Arc<O>, keys: &dyn Fn(&str) -> bool) {
    let claims = opened.claims_of(keys);
    if !claims.is_empty() {
        opened.links().context.events.send(Event::Doubtful { claims });
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
    let calls: Vec<&Call> =
        requests.iter().filter_map(|(_, request)| Some(request.as_ref()?.as_ref())).collect();
    let mut answers = opened.links().main.start(&calls).each();
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
