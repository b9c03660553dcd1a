//! Asking for a lock, and what is known of a claim.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::time::sleep;

use super::plain::{Plain, Seen};
use super::recipe::{Action, Event as Step, Outcome, Recipe, Rules};
use super::record::Record;
use super::send::Flight;
use super::waiter::{self, Waiter};
use super::wire::Member;
use super::{Quorum, errors};
use crate::engine::words::who_word;
use crate::engine::{Answer, Attempt, BoxFuture, Grant, Lease, Line, Number, Standing};
use crate::words::claim::{Claim, Holder, Mode};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::Kind;

/// What is known of one claim.
pub(super) struct Entry {
    pub(super) claim: Claim,
    pub(super) how: Line,
    /// The keys of its name on a member: its record, its last number, the member itself, its
    /// readers.
    pub(super) keys: [String; 4],
    pub(super) channel: String,
    pub(super) who: String,
    pub(super) machine: Recipe,
    /// It is being given back: nothing of it is asked again.
    pub(super) leaving: bool,
    /// Whoever gives it back awaits the answer.
    pub(super) awaited: bool,
    /// It is over for whoever asked.
    pub(super) over: bool,
    /// What is left behind is looked after.
    pub(super) lingers: bool,
    /// Where others were in the way it is asked again.
    pub(super) completes: bool,
    pub(super) listening: bool,
    /// When it asks again.
    pub(super) waiter: Waiter,
    /// It was refused at least once.
    pub(super) waited: bool,
    /// Who was in the way when it was refused last.
    pub(super) holder: Option<Box<Holder>>,
    /// Who was in the way in this round.
    pub(super) others: BTreeMap<ClaimId, Record>,
    /// In this round a member did not count for nothing but not being admitted. Somebody else may
    /// have admitted it since.
    pub(super) stranger: bool,
    /// What was seen first in a key of the layout `plain` on each member.
    pub(super) seen: BTreeMap<usize, Seen>,
    /// Why a member gave no answer in this round.
    pub(super) errors: BTreeMap<usize, Error>,
    /// Until when a member may still carry out a request whose answer was lost, on the steady
    /// clock.
    pub(super) doubts: BTreeMap<usize, Ticks>,
    /// How many requests each member was sent.
    pub(super) sent: Vec<u32>,
    /// How many requests are not answered.
    pub(super) in_flight: Arc<AtomicUsize>,
    /// Who waits for what was given back, as the members told.
    pub(super) waited_for: u64,
}

/// What came of a step.
#[derive(Default)]
pub(super) struct Stepped {
    /// It holds, and others were in its way somewhere.
    pub(super) is_incomplete: bool,
    pub(super) outcome: Option<Outcome>,
    pub(super) due: Option<(Ticks, u64)>,
    pub(super) flights: Vec<Flight>,
}

impl Quorum {
    pub(super) fn ask(self: &Arc<Self>, claim: &Claim, how: Line) -> Answer<Attempt> {
        // The others would grant it, and whoever knows that layout may have it.
        if let Some(newer) = self.newer() {
            return Answer::Now(Attempt::Failed(newer));
        }
        match self.enter(claim, how) {
            Ok(()) => {
                if self.will_wait(claim.id) {
                    // What is asked goes the same way behind it.
                    drop(self.begin_to_listen(claim.id));
                }
                self.ask_again(claim.id)
            }
            Err(refused) => Answer::Now(refused),
        }
    }

    /// Asks for a claim that is known.
    fn ask_again(self: &Arc<Self>, id: ClaimId) -> Answer<Attempt> {
        let mut held = false;
        if let Some(entry) = self.state().claims.get_mut(&id) {
            held = entry.machine.is_held();
            entry.waiter.asks(self.context.clock.now());
        }
        let stepped = self.once_more(id);
        Answer::later(self.clone().asked(id, stepped, held))
    }

    /// A member of a newer layout, in words.
    fn newer(&self) -> Option<Error> {
        self.members.iter().find_map(Member::is_newer)
    }

    /// Knows a claim from here on, and until when its caller waits.
    pub(super) fn enter(&self, claim: &Claim, how: Line) -> Result<(), Attempt> {
        self.accepts(claim).map_err(Attempt::Failed)?;
        let mut state = self.state();
        // Whoever gives it back would give back what it is granted now.
        if state.claims.get(&claim.id).is_some_and(|entry| entry.leaving) {
            return Err(Attempt::Unknown(errors::leaving()));
        }
        let entry = state.claims.entry(claim.id).or_insert_with(|| self.new_entry(claim, how));
        entry.claim.give_up = claim.give_up;
        entry.waiter.give_up = claim.give_up;
        Ok(())
    }

    /// Whether quorums are made for such a claim.
    fn accepts(&self, claim: &Claim) -> Result<()> {
        let plain = self.options.plain.as_ref().map(Plain::layout);
        match (claim.kind, claim.mode) {
            (Kind::Lock, Mode::Exclusive) => {}
            (Kind::Lock, Mode::Shared) if plain.is_none() => {}
            (Kind::Lock, mode) => return Err(errors::no_mode(mode, plain)),
            (kind, _) => return Err(errors::unsupported(kind.as_str())),
        }
        if !claim.lock_delay.is_zero() {
            return Err(errors::unsupported("lock_delay"));
        }
        if claim.ttl > self.options.max_ttl {
            return Err(errors::too_long(claim.ttl, &self.options));
        }
        Ok(())
    }

    fn new_entry(&self, claim: &Claim, how: Line) -> Entry {
        let plain = self.options.plain.as_ref();
        let rules = Rules {
            members: self.members.len(),
            ttl: claim.ttl,
            drift: self.options.drift,
            patience: self.least_patience(claim.ttl),
            long_patience: self.options.request_timeout,
            names_giver: plain.is_none(),
            stands: how != Line::Try
                && (self.stands() || plain.is_none() && claim.mode == Mode::Exclusive),
        };
        let waiter = Waiter::new(waiter::Rules {
            id: claim.id,
            ttl: claim.ttl,
            majority: self.options.majority(),
            lines_up: rules.stands && rules.names_giver,
            foreign: plain.is_some(),
            once: self.tracks() || self.stands(),
        });
        Entry {
            how,
            keys: match plain {
                Some(plain) => plain.keys(&claim.name),
                None => [
                    self.keys.record(&claim.name),
                    self.keys.last(&claim.name),
                    self.keys.member(),
                    self.keys.readers(&claim.name),
                ],
            },
            channel: match plain {
                Some(plain) => plain.word_for(&claim.name, claim.id).unwrap_or_default(),
                None => self.keys.channel(&claim.name),
            },
            who: who_word(&claim.who, claim.value.as_deref()),
            machine: Recipe::new(self.known_as(claim.id), rules, how == Line::Try),
            claim: claim.clone(),
            leaving: false,
            awaited: false,
            over: false,
            lingers: false,
            completes: false,
            listening: false,
            waiter,
            waited: false,
            holder: None,
            others: BTreeMap::new(),
            seen: BTreeMap::new(),
            stranger: false,
            errors: BTreeMap::new(),
            doubts: BTreeMap::new(),
            sent: vec![0; self.members.len()],
            in_flight: Arc::default(),
            waited_for: 0,
        }
    }

    /// Whether members tell of keys that were read, in place of who gave back.
    pub(super) fn tracks(&self) -> bool {
        self.options.plain.as_ref().is_some_and(Plain::tracks)
    }

    /// Whether members have queues.
    pub(super) fn stands(&self) -> bool {
        self.options.plain.as_ref().is_some_and(Plain::stands)
    }

    /// What members tell others of a claim.
    fn known_as(&self, id: ClaimId) -> ClaimId {
        self.options.plain.as_ref().map_or(id, |plain| plain.id_of(&plain.value(id, 0)))
    }

    /// Steps the machine of a claim, and sends what it says.
    pub(super) fn step(self: &Arc<Self>, id: ClaimId, event: Step) -> Stepped {
        let mut stepped = Stepped::default();
        let mut state = self.state();
        let Some(entry) = state.claims.get_mut(&id) else { return stepped };
        if matches!(event, Step::Leave { .. }) {
            entry.leaving = true;
            // Those that have nothing of it are not asked.
            let ours = entry.machine.ours();
            let others = (0..self.members.len()).filter(|member| !ours.has(*member));
            entry.errors =
                others.filter_map(|member| Some((member, self.has_none(member)?))).collect();
        }
        if matches!(event, Step::Ask { .. } | Step::Renew { .. }) {
            entry.others.clear();
            entry.waiter.begins_round();
            entry.stranger = false;
            entry.errors.clear();
        }
        if matches!(event, Step::Ask { .. }) {
            let patience = self.patience(entry.claim.ttl);
            entry.machine.be_patient(patience, entry.claim.give_up);
        }
        let mut actions = Vec::new();
        entry.machine.step(event, &mut actions);
        if entry.machine.is_held() {
            // Its caller has it, and waits no more: what restores it is not late because of that.
            entry.claim.give_up = None;
        }
        stepped.is_incomplete = entry.machine.is_incomplete();
        for action in actions {
            match action {
                // Sent with the state locked: what is sent for a claim arrives in this order.
                Action::Send { member, verb, round, number } => {
                    stepped.flights.extend(self.send(entry, member, verb, (round, number)));
                }
                Action::Due { at, round } => stepped.due = Some((at, round)),
                Action::Done(outcome) => stepped.outcome = Some(outcome),
            }
        }
        stepped
    }

    /// Follows a claim to its answer. One that has to listen first asks a second time: what was
    /// published before is lost. `held`: it was held before.
    async fn asked(self: Arc<Self>, id: ClaimId, mut stepped: Stepped, held: bool) -> Attempt {
        let mut admitted = false;
        loop {
            let outcome = self.follow(id, stepped).await;
            let granted = matches!(outcome, Outcome::Granted { .. });
            if let Some(newer) = self.newer().filter(|_| granted && !held) {
                let leave = self.step(id, Step::Leave { now: self.context.clock.now() });
                self.follow_rest(id, leave.flights);
                self.retire(id);
                return Attempt::Failed(newer);
            }
            match outcome {
                Outcome::Granted { since, number } => {
                    self.hush_soon(id);
                    self.mark_soon(id);
                    let Some(ttl) = self.state().claims.get(&id).map(|entry| entry.claim.ttl)
                    else {
                        return Attempt::Busy(None);
                    };
                    let lease = Lease { id: id.into(), ttl, since: Some(since), confirm: false };
                    let number = match &self.options.plain {
                        Some(_) => Number::None,
                        None => Number::Ours(number),
                    };
                    return Attempt::Granted(Grant { number, lease: Some(lease) });
                }
                Outcome::Refused { by, keeps, rest } => {
                    let (how, listening, holder) = match self.state().claims.get_mut(&id) {
                        Some(entry) => {
                            entry.waited = true;
                            (entry.how, entry.listening, entry.holder_of(by, rest))
                        }
                        None => return Attempt::Busy(None),
                    };
                    if how == Line::Try {
                        self.retire(id);
                        return Attempt::Busy(holder);
                    }
                    // Who is told of keys that were read needs no channel.
                    if listening || self.tracks() {
                        return Attempt::InLine(self.wait_for(id, by, keeps, rest, holder));
                    }
                    self.listen(id).await;
                    stepped = self.once_more(id);
                }
                Outcome::TooFew | Outcome::Late if !admitted && self.met_stranger(id) => {
                    self.admit().await;
                    admitted = true;
                    stepped = self.once_more(id);
                }
                Outcome::Late => stepped = self.once_more(id),
                Outcome::First { after } => {
                    sleep(after).await;
                    stepped = self.once_more(id);
                }
                Outcome::TooFew => return self.no_majority(id),
                Outcome::TooSlow => {
                    let ttl = self.state().claims.get(&id).map(|entry| entry.claim.ttl);
                    return Attempt::Unknown(errors::too_slow(ttl.unwrap_or_default()));
                }
                Outcome::Lost => {
                    self.retire(id);
                    let text = "a majority of the members does not have it any more";
                    return Attempt::Failed(Error::new(ErrorKind::Lost, text));
                }
                // It is being given back.
                Outcome::Renewed { .. } | Outcome::Freed | Outcome::Gone | Outcome::NotOurs => {
                    return Attempt::Busy(None);
                }
            }
        }
    }

    fn met_stranger(&self, id: ClaimId) -> bool {
        self.state().claims.get(&id).is_some_and(|entry| entry.stranger)
    }

    fn once_more(self: &Arc<Self>, id: ClaimId) -> Stepped {
        let now = self.context.clock.now();
        let ttl = self.state().claims.get(&id).map(|entry| entry.claim.ttl);
        // One that another claim found late a moment ago is waited for.
        let hangs = self.patience(ttl.unwrap_or_default()) * 2;
        let silent = self.state().hangs(self.steady.now(), hangs);
        let (number, clock) = self.propose();
        self.step(id, Step::Ask { now, silent, number, clock })
    }

    /// What a claim is told that too few members answered.
    fn no_majority(self: &Arc<Self>, id: ClaimId) -> Attempt {
        let error = self.why_too_few(id);
        // Members that refuse to extend a hold say nothing about whose it is: it stays. And what
        // passes is asked for again under the same id.
        let stays = self.state().claims.get(&id).is_some_and(|entry| {
            entry.machine.is_held() || error.is_outage() && entry.how != Line::Try
        });
        if stays || error.kind() == ErrorKind::Unreachable {
            return Attempt::Unknown(error);
        }
        self.retire(id);
        Attempt::Failed(error)
    }

    /// Which members said nothing that counts.
    pub(super) fn why_too_few(&self, id: ClaimId) -> Error {
        let errors: Vec<(usize, Error)> = match self.state().claims.get(&id) {
            Some(entry) => entry.errors.iter().map(|(at, error)| (*at, error.clone())).collect(),
            None => Vec::new(),
        };
        match self.members.len().saturating_sub(errors.len()) < self.options.majority() {
            true => errors::too_few(&self.options, &errors),
            false => errors::overtaken(),
        }
    }

    /// Asks how claims and holds stand: by asking again, which extends what is held.
    pub(super) fn recheck(self: &Arc<Self>, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let each = claims.iter().map(|id| -> BoxFuture<Standing> {
            let known =
                self.state().claims.get(id).map(|entry| (entry.leaving, entry.machine.is_asking()));
            let gone = || Error::new(ErrorKind::Lost, "it is neither held nor in line");
            match known {
                None | Some((true, _)) => Box::pin(std::future::ready(Standing::Gone(gone()))),
                Some((_, true)) => {
                    let error = Error::new(ErrorKind::Unknown, "it is being asked for");
                    Box::pin(std::future::ready(Standing::Unknown(error)))
                }
                Some(_) => {
                    if let Some(place) = self.has_just_asked(*id) {
                        return Box::pin(std::future::ready(Standing::InLine(place)));
                    }
                    let answer = self.ask_again(*id);
                    Box::pin(async move { answer.get().await.into() })
                }
            }
        });
        Answer::later(super::all(each.collect()))
    }
}

impl Entry {
    /// Whether it is a hold that does not say so everywhere, as far as is known.
    pub(super) fn is_unmarked(&self) -> bool {
        self.machine.is_unmarked() && !self.leaving
    }

    /// Whether no member can have anything of it.
    pub(super) fn is_clean(&self) -> bool {
        self.machine.ours().len() == 0 && self.doubts.is_empty()
    }

    /// Who is in the way, as far as the members told.
    fn holder_of(&self, by: Option<ClaimId>, rest: Option<Duration>) -> Option<Box<Holder>> {
        let record = self.others.get(&by?)?;
        Some(Box::new(record.holder(rest.unwrap_or(record.rest))))
    }
}
