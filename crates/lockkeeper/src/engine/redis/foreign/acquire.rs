//! Asking for a lock, waiting for a wake-up, asking again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::inspect::{ends, shown};
use super::{Entry, Foreign, LOOK, Phase, Request, State};
use crate::engine::redis::client::node::Node;
use crate::engine::redis::dialect::unsupported;
use crate::engine::redis::errors;
use crate::engine::redis::opened::{Acquires, Releases};
use crate::engine::redis::pipe::{Broken, Outcome};
use crate::engine::redis::resp::Value;
use crate::engine::redis::script::Call;
use crate::engine::redis::wire::{Answered, Started};
use crate::engine::{Answer, Attempt, Grant, Lease, Line, Number, Place};
use crate::protocol::lease::{Drift, deadline};
use crate::words::claim::{Claim, Holder, Mode};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::{ClaimId, HoldId};

/// How often a claim is asked for until there is an answer that counts.
const ASKED_MAX: u32 = 4;

/// What an answer to a request comes to.
enum Said {
    Granted(Grant),
    Busy(Busy),
    OtherLimit(Error),
    Late,
    Refused(Error, bool),
    /// It is held already: a newer answer was taken first.
    Crossed,
    /// Granted with a number that is not above those of before: it is given back.
    WentBack(Error),
}

/// Who is in the way, and for how long.
struct Busy {
    rest: Option<Duration>,
    who: Option<String>,
}

impl Acquires for Foreign {
    type Request = Request;

    fn fresh(&self, node: Node) {
        self.state().numbers.connected(node);
    }

    fn heard(&self, node: Node, server_us: u64, before: Ticks) {
        self.state().anchors.reset(node, server_us, before);
        // It was out of reach until now, and told nobody of what changed.
        self.watches.missed();
    }

    fn ask(self: &Arc<Self>, claim: &Claim, how: Line, hold: Option<HoldId>) -> Answer<Attempt> {
        if hold.is_some() {
            return Answer::Now(Attempt::Failed(unsupported(
                "this layout cannot convert a hold: use layout=native",
            )));
        }
        match self.enter(claim, how) {
            Ok(true) => {
                if let Some(answer) = self.comes_back(claim, how) {
                    return answer;
                }
            }
            Ok(false) => {}
            Err(error) => return Answer::Now(Attempt::Failed(error)),
        }
        let now = self.links.context.clock.now();
        if let Some(until) = self.stands_back_until(claim, now) {
            let place = Place { ask_at: Some(until), ..Place::default() };
            return Answer::Now(Attempt::InLine(place));
        }
        self.compete(claim)
    }

    fn again(&self, id: ClaimId) -> Option<Request> {
        if self.is_held(id) { None } else { self.request(id) }
    }

    fn number(&self, id: ClaimId) -> Option<Number> {
        let state = self.state();
        state.claims.get(&id).filter(|entry| entry.phase == Phase::Held).map(|entry| entry.number)
    }

    /// Follows a request to its answer; one that has to listen first asks a second time.
    async fn asked(
        self: Arc<Self>,
        id: ClaimId,
        mut request: Request,
        mut started: Started,
        patience: Duration,
    ) -> Attempt {
        for tries_left in (0..ASKED_MAX).rev() {
            let wanted = || self.state().claims.get(&id).is_some_and(|entry| !entry.leaving);
            let outcome = self.links.main.run(started, &request.call, patience, wanted).await;
            self.is_answered(id, &request, &outcome);
            match self.said(id, &request.call, outcome) {
                Said::Granted(grant) => {
                    self.hush(id);
                    return Attempt::Granted(grant);
                }
                Said::WentBack(error) => {
                    let now = self.links.context.clock.now();
                    self.give_back(&request.terms, request.ttl, now);
                    self.forget(id);
                    return Attempt::Failed(error);
                }
                Said::OtherLimit(error) => {
                    self.forget(id);
                    return Attempt::Failed(error);
                }
                Said::Busy(busy) => {
                    let (how, mode, listens) = match self.state().claims.get(&id) {
                        Some(entry) => (
                            entry.how,
                            entry.mode,
                            entry.listening || entry.terms.channel.is_none(),
                        ),
                        None => return Attempt::Busy(None),
                    };
                    if how == Line::Try {
                        self.forget(id);
                        return Attempt::Busy(self.holder_of(mode, busy));
                    }
                    if listens {
                        let ask_at = self.wait_for(id, busy.rest);
                        let holder = self.holder_of(mode, busy);
                        return Attempt::InLine(Place { holder, ask_at, ..Place::default() });
                    }
                    // What is published before we listen is lost, so listening comes before the
                    // answer that counts.
                    if let Err(error) = self.listen(id).await {
                        self.forget(id);
                        return Attempt::Failed(error);
                    }
                }
                Said::Late => {
                    let now = self.links.context.clock.now();
                    let (over, stands) = match self.state().claims.get(&id) {
                        Some(entry) => (
                            entry.give_up.is_some_and(|at| at <= now),
                            entry.waited && entry.terms.has_line,
                        ),
                        None => (true, false),
                    };
                    let error = || {
                        Error::new(
                            ErrorKind::TimedOut,
                            "the request arrived after its time had passed",
                        )
                    };
                    if over && stands {
                        // Its place is there: whoever asked has to leave.
                        return Attempt::Unknown(error());
                    }
                    if over {
                        self.forget(id);
                        return Attempt::Failed(error());
                    }
                }
                Said::Refused(error, certain) => {
                    let mut state = self.state();
                    let Some(entry) = state.claims.get_mut(&id) else {
                        return Attempt::Failed(error);
                    };
                    entry.doubtful |= !certain;
                    // It waits as before, and hears what is said from here on, and what was said
                    // while nobody could tell what the answer would be.
                    let waits = entry.waited && entry.in_flight == 0 && entry.phase == Phase::Asked;
                    if waits {
                        entry.phase = Phase::Waiting;
                    }
                    let woken = waits && std::mem::take(&mut entry.woken);
                    // Who waits goes on waiting over a server that is away for a while.
                    let goes_on = entry.doubtful || entry.listening || entry.waited;
                    drop(state);
                    if woken {
                        self.wake(id);
                    }
                    if goes_on {
                        return Attempt::Unknown(error);
                    }
                    self.forget(id);
                    return Attempt::Failed(error);
                }
                Said::Crossed => return Attempt::Unknown(errors::crossed()),
            }
            if tries_left == 0 {
                break;
            }
            let Some(next) = self.request(id) else { return Attempt::Busy(None) };
            started = self.links.main.start(&[&next.call]);
            request = next;
        }
        Attempt::Unknown(Error::new(
            ErrorKind::Unknown,
            "the server's clock refuses the request as late, again and again",
        ))
    }
}

fn went_back(number: u64, seen: u64) -> Error {
    let text = format!(
        "the counter of this lock is at {number}, and was at {seen}: it was lost with the \
         server that counted it, and a token must not go back; it rises with each request"
    );
    Error::new(ErrorKind::Refused, text).temporary(true)
}

impl Foreign {
    /// Knows a claim from here on, and until when its caller waits; answers whether it is new.
    pub(super) fn enter(&self, claim: &Claim, how: Line) -> Result<bool> {
        let known = self.state().claims.contains_key(&claim.id);
        let terms = if known { None } else { Some(Arc::new(self.dialect.terms(claim)?)) };
        let mut state = self.state();
        if let Some(terms) = terms {
            let entry = Entry {
                terms,
                mode: claim.mode,
                ttl: claim.ttl,
                number: Number::None,
                how,
                give_up: None,
                phase: Phase::Asked,
                doubtful: false,
                in_flight: 0,
                in_time_until: Ticks::default(),
                leaving: false,
                waited: false,
                listening: false,
                woken: false,
                run_until: None,
                pause: None,
            };
            state.claims.insert(claim.id, entry);
        }
        if let Some(entry) = state.claims.get_mut(&claim.id) {
            entry.give_up = claim.give_up;
        }
        Ok(!known)
    }

    /// Asks the server for a claim.
    pub(super) fn compete(self: &Arc<Self>, claim: &Claim) -> Answer<Attempt> {
        let Some(request) = self.request(claim.id) else { return Answer::Now(Attempt::Busy(None)) };
        let started = self.links.main.start(&[&request.call]);
        let (now, longest) = (self.links.context.clock.now(), self.links.options.connect_timeout);
        let patience = longest.min(claim.give_up.map_or(Duration::MAX, |at| at.since(now)));
        Answer::later(self.clone().asked(claim.id, request, started, patience))
    }

    /// The request for a claim; `None` when it is not wanted any more.
    fn request(&self, id: ClaimId) -> Option<Request> {
        let now = self.links.context.clock.now();
        let until = now.plus(self.links.options.request_timeout);
        let mut state = self.state();
        let State { claims, anchors, .. } = &mut *state;
        let entry = claims.get_mut(&id).filter(|entry| !entry.leaving)?;
        let anchor = anchors.of(self.links.main.home(&entry.terms.key));
        let give_up = entry.give_up.map_or(until, |at| at.min(until));
        let not_after_us = anchor.map_or((1 << 53) - 1, |a| a.server_us_at(give_up));
        entry.in_flight += 1;
        entry.in_time_until = entry.in_time_until.max(give_up);
        entry.phase = Phase::Asked;
        entry.woken = false;
        let how = match entry.how {
            Line::Try => "try",
            Line::Join if entry.waited => "again",
            Line::Join => "join",
        };
        let (call, terms) = (entry.terms.ask(not_after_us, how), entry.terms.clone());
        let ttl = entry.ttl;
        drop(state);
        let waits = self.links.options.wait.is_some();
        let leaving = waits.then(|| self.links.parting(&terms.key));
        Some(Request { call, terms, ttl, in_time_until: give_up, _leaving: leaving })
    }

    fn is_held(&self, id: ClaimId) -> bool {
        self.state().claims.get(&id).is_none_or(|entry| entry.phase == Phase::Held)
    }

    fn said(
        &self,
        id: ClaimId,
        call: &Call,
        outcome: std::result::Result<Answered, Broken>,
    ) -> Said {
        let answered = match outcome {
            Ok(answered) => answered,
            Err(broken) => {
                return Said::Refused(
                    self.links.broken(&self.links.main, &broken),
                    matches!(broken, Broken::NotSent(_)),
                );
            }
        };
        if let Value::Error(text) = &answered.value {
            let error = errors::script(&self.links.of(answered.node), call, text);
            return Said::Refused(error, !errors::ran_half(text));
        }
        let items = answered.value.items();
        let garbage = || Said::Refused(errors::garbage(&self.links.of(answered.node)), false);
        let (Some(word), Some(now_us)) =
            (items.first().and_then(Value::text), items.get(1).and_then(Value::unsigned))
        else {
            return garbage();
        };
        let mut state = self.state();
        state.anchors.heard(answered.node, now_us, answered.before);
        let held = |entry: &Entry| entry.phase == Phase::Held;
        if word != "G" && state.claims.get(&id).is_some_and(held) {
            return Said::Crossed;
        }
        match word {
            "G" => {
                let State { claims, numbers, .. } = &mut *state;
                let Some(entry) = claims.get_mut(&id) else {
                    return Said::Busy(Busy { rest: None, who: None });
                };
                let drift =
                    Drift { per_mille: self.links.options.drift_permille, ..Drift::default() };
                if deadline(answered.before, entry.ttl, drift) <= self.links.context.clock.now() {
                    // Read so late that its lease is over: others may have had the lock since.
                    return Said::Refused(errors::read_late(), false);
                }
                let number = entry.terms.number(items.get(2).and_then(Value::text));
                if let Number::Raw(raw) = number
                    && self.links.options.moves()
                {
                    let key: Arc<str> = entry.terms.key.as_str().into();
                    if let Some(seen) = numbers.not_below(answered.node, &key, raw, id) {
                        return Said::WentBack(went_back(raw, seen));
                    }
                    numbers.saw(answered.node, &key, raw, id);
                }
                entry.phase = Phase::Held;
                entry.number = number;
                let lease = Lease {
                    id: id.into(),
                    ttl: entry.ttl,
                    since: Some(answered.before),
                    confirm: false,
                };
                state.run(self.links.context.clock.now(), id);
                Said::Granted(Grant { number, lease: Some(lease) })
            }
            "B" => {
                // -1: no time to live, -2: gone just now.
                let rest = items.get(2).and_then(Value::integer);
                let rest = rest
                    .filter(|r| *r != -1)
                    .map(|r| Duration::from_millis(u64::try_from(r).unwrap_or(0)));
                Said::Busy(Busy { rest, who: items.get(3).and_then(shown) })
            }
            "M" => {
                let stored = items.get(2).and_then(Value::text).unwrap_or("another");
                Said::OtherLimit(Error::new(
                    ErrorKind::LimitMismatch,
                    format!(
                        "its stored limit is {stored}, and another was requested: request \
                         {stored}, or resize it"
                    ),
                ))
            }
            "T" => Said::Late,
            _ => garbage(),
        }
    }

    fn holder_of(&self, mode: Mode, busy: Busy) -> Option<Box<Holder>> {
        let mode = Some(mode).filter(|m| *m == Mode::Exclusive);
        let ends = ends(mode, busy.rest);
        Some(Box::new(Holder { label: busy.who, mode, ends, ..Holder::default() }))
    }

    /// The claim waits for its holder, who has so much time left; answers when to ask again.
    fn wait_for(&self, id: ClaimId, rest: Option<Duration>) -> Option<Ticks> {
        let now = self.links.context.clock.now();
        let mut state = self.state();
        state.run_ends(id);
        let entry = state.claims.get_mut(&id).filter(|entry| entry.phase != Phase::Held)?;
        entry.phase = Phase::Waiting;
        entry.waited = true;
        let look = rest.map_or(LOOK.1, |r| (r + Duration::from_millis(1)).clamp(LOOK.0, LOOK.1));
        Some(if std::mem::take(&mut entry.woken) { now } else { now.plus(look) })
    }

    async fn listen(&self, id: ClaimId) -> Result<()> {
        let subscribed = {
            let mut state = self.state();
            let Some(entry) = state.claims.get_mut(&id) else { return Ok(()) };
            entry.listening = true;
            let Some(channel) = entry.terms.channel.clone() else { return Ok(()) };
            let key = entry.terms.key.clone();
            *state.channels.entry(channel.clone()).or_default() += 1;
            // The count and what the server is told change together: somebody may stop listening at
            // this moment.
            self.links.main.subscribe(&channel, &key)
        };
        self.heard(subscribed).await
    }

    /// Whether the server lets us listen.
    pub(super) async fn heard(&self, subscribed: Option<oneshot::Receiver<Outcome>>) -> Result<()> {
        let Some(answer) = subscribed else { return Ok(()) };
        match answer.await {
            Ok(Ok((_, Value::Error(text)))) => {
                Err(errors::server(&self.links.options, "SUBSCRIBE", &text))
            }
            // A connection that broke subscribes again when it is back.
            _ => Ok(()),
        }
    }

    /// Stops listening for a claim.
    pub(super) fn hush(&self, id: ClaimId) {
        let channel = {
            let mut state = self.state();
            let Some(entry) = state.claims.get_mut(&id).filter(|e| e.listening) else { return };
            entry.listening = false;
            entry.terms.channel.clone()
        };
        if let Some(channel) = channel {
            self.hush_channel(&channel);
        }
    }

    pub(super) fn hush_channel(&self, channel: &str) {
        let mut state = self.state();
        let Some(count) = state.channels.get_mut(channel) else { return };
        *count -= 1;
        if *count == 0 {
            state.channels.remove(channel);
            self.links.main.unsubscribe(channel);
        }
    }

    pub(super) fn hear_channel(&self, channel: &str, key: &str) {
        let mut state = self.state();
        *state.channels.entry(channel.to_owned()).or_default() += 1;
        drop(self.links.main.subscribe(channel, key));
    }
}
