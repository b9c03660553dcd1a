//! Asking for a lock, waiting for a word that it is free, asking again.
//!
//! There is no line on the members. A waiter is woken by what they publish when a record is given
//! back, and asks again when the holder's lease ends, not before 250 ms and not after 5 s.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::recipe::{Action, Event as Step, Members, Outcome, Recipe, Rules, Said, Verb};
use super::record::Record;
use super::wire::{Heard, Member};
use super::{Quorum, errors, first};
use crate::claim::{Claim, Holder, Mode};
use crate::clock::Ticks;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::client::wire::Counted;
use crate::engine::redis::record::{millis, who_word};
use crate::engine::{Answer, Attempt, BoxFuture, Grant, Lease, Line, Number, Place, Standing};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ClaimId;
use crate::name::Kind;
use crate::token::next_number;

/// How soon and how late a waiter looks by itself (R10).
pub(super) const LOOK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// What is known of one claim.
pub(super) struct Entry {
    pub(super) claim: Claim,
    pub(super) how: Line,
    /// The keys of its name on a member: its record, its last number, the member itself.
    keys: [String; 3],
    pub(super) channel: String,
    who: String,
    pub(super) machine: Recipe,
    /// It is being given back: nothing of it is asked again.
    pub(super) leaving: bool,
    /// What is left behind is looked after.
    pub(super) lingers: bool,
    pub(super) listening: bool,
    /// It was told to wait.
    pub(super) waiting: bool,
    /// What it got when it was refused stays.
    pub(super) keeps: bool,
    /// Something was heard while it was asked for.
    pub(super) woken: bool,
    /// The hold that was given back when it was asked for: others are let pass first.
    pub(super) behind: Option<ClaimId>,
    /// Who gave it back, and which members told so.
    pub(super) told: (Option<ClaimId>, Members),
    /// Who was in the way in this round.
    others: BTreeMap<ClaimId, Record>,
    /// In this round a member did not count for nothing but not being admitted. Somebody else may
    /// have admitted it since.
    stranger: bool,
    /// Why a member gave no answer in this round.
    errors: BTreeMap<usize, Error>,
    /// Until when a member may still carry out a request whose answer was lost.
    pub(super) doubts: BTreeMap<usize, Ticks>,
    /// How many requests are not answered.
    pub(super) in_flight: usize,
    /// How many heard that it was given back, of the member that counted most.
    pub(super) heard_by: u64,
}

/// A request on its way to a member.
pub(super) type Flight = (Sent, BoxFuture<Heard>);

/// Which request it is.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    member: usize,
    verb: Verb,
    round: u64,
    /// Until when the member carries it out.
    in_time_until: Ticks,
}

/// What came of a step.
#[derive(Default)]
pub(super) struct Stepped {
    pub(super) outcome: Option<Outcome>,
    due: Option<(Ticks, u64)>,
    pub(super) flights: Vec<Flight>,
}

impl Quorum {
    pub(super) fn ask(self: &Arc<Self>, claim: &Claim, how: Line) -> Answer<Attempt> {
        if let Err(error) = self.enter(claim, how) {
            return Answer::Now(Attempt::Failed(error));
        }
        self.ask_again(claim.id)
    }

    /// Asks for a claim that is known.
    fn ask_again(self: &Arc<Self>, id: ClaimId) -> Answer<Attempt> {
        if let Some(entry) = self.state().claims.get_mut(&id) {
            (entry.waiting, entry.woken) = (false, false);
            entry.told = (None, Members::default());
        }
        let stepped = self.once_more(id);
        Answer::later(self.clone().asked(id, stepped))
    }

    /// A number above all that are known here, and not below the fastest member's clock (R7). What
    /// is proposed and refused is not known: askers must not drive the numbers ahead of the clocks.
    fn propose(&self, now: Ticks) -> u64 {
        let fastest = self.members.iter().filter_map(|member| member.reached_us(now)).max();
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        next_number(known, fastest.unwrap_or(0)).unwrap_or(known)
    }

    /// Nothing up to this number is proposed any more.
    pub(super) fn knows(&self, number: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known = number.max(*known);
    }

    /// Knows a claim from here on, and until when its caller waits.
    pub(super) fn enter(&self, claim: &Claim, how: Line) -> Result<()> {
        if claim.mode != Mode::Exclusive || claim.kind != Kind::Lock {
            let what = match claim.kind {
                Kind::Lock => claim.mode.as_str(),
                kind => kind.as_str(),
            };
            return Err(errors::unsupported(what));
        }
        if !claim.lock_delay.is_zero() {
            return Err(errors::unsupported("lock_delay"));
        }
        if claim.ttl > self.options.max_ttl {
            return Err(errors::too_long(claim.ttl, &self.options));
        }
        let mut state = self.state();
        let entry = state.claims.entry(claim.id).or_insert_with(|| {
            let rules = Rules {
                members: self.members.len(),
                ttl: claim.ttl,
                drift: self.options.drift,
                patience: self.options.server_timeout(claim.ttl),
                long_patience: self.options.request_timeout,
            };
            Entry {
                how,
                keys: [
                    self.keys.record(&claim.name),
                    self.keys.last(&claim.name),
                    self.keys.member(),
                ],
                channel: self.keys.channel(&claim.name),
                who: who_word(&claim.who, claim.value.as_deref()),
                machine: Recipe::new(claim.id, rules, how == Line::Try),
                claim: claim.clone(),
                leaving: false,
                lingers: false,
                listening: false,
                waiting: false,
                keeps: false,
                woken: false,
                behind: None,
                told: (None, Members::default()),
                others: BTreeMap::new(),
                stranger: false,
                errors: BTreeMap::new(),
                doubts: BTreeMap::new(),
                in_flight: 0,
                heard_by: 0,
            }
        });
        entry.claim.give_up = claim.give_up;
        Ok(())
    }

    /// Steps the machine of a claim, and sends what it says.
    pub(super) fn step(self: &Arc<Self>, id: ClaimId, event: Step) -> Stepped {
        let mut stepped = Stepped::default();
        let mut state = self.state();
        let Some(entry) = state.claims.get_mut(&id) else { return stepped };
        if matches!(event, Step::Renew { .. }) {
            // Its caller has it, and waits no more: what restores it is not late because of that.
            entry.claim.give_up = None;
        }
        if matches!(event, Step::Ask { .. } | Step::Renew { .. }) {
            entry.others.clear();
            entry.stranger = false;
            entry.errors.clear();
        }
        let mut actions = Vec::new();
        entry.machine.step(event, &mut actions);
        for action in actions {
            match action {
                // Sent with the state locked: what is sent for a claim arrives in this order.
                Action::Send { member, verb, round, number } => {
                    stepped.flights.extend(self.send(entry, member, verb, (round, number)));
                    entry.in_flight += 1;
                }
                Action::Due { at, round } => stepped.due = Some((at, round)),
                Action::Done(outcome) => stepped.outcome = Some(outcome),
            }
        }
        stepped
    }

    fn send(
        self: &Arc<Self>,
        entry: &Entry,
        at: usize,
        verb: Verb,
        (round, number): (u64, u64),
    ) -> Option<Flight> {
        let member = self.members.get(at)?;
        let until = self.context.clock.now().plus(self.options.request_timeout);
        let in_time_until = entry.claim.give_up.map_or(until, |at| at.min(until));
        let (claim, ttl) = (entry.claim.id.to_string(), millis(entry.claim.ttl).to_string());
        let (number, keys) = (number.to_string(), entry.keys.to_vec());
        let call = match verb {
            Verb::Take => {
                let not_after = member.not_after_us(in_time_until).to_string();
                let who = entry.who.clone();
                let (round, max_ttl) = (round.to_string(), millis(self.options.max_ttl));
                let mut arguments = vec![claim, round, ttl, not_after, who, number];
                arguments.extend([member.run(), max_ttl.to_string()]);
                Call { script: Which::QuorumTake, keys, arguments }
            }
            Verb::Keep => {
                let arguments = vec![claim, ttl, number, member.run()];
                Call { script: Which::QuorumKeep, keys, arguments }
            }
            Verb::Give => {
                let arguments = vec![claim, round.to_string(), entry.channel.clone()];
                let keys = keys.into_iter().take(1).collect();
                Call { script: Which::QuorumGive, keys, arguments }
            }
        };
        let started = member.link.start(&[call.by_name()]);
        let (quorum, id) = (self.clone(), entry.claim.id);
        let parting = (verb == Verb::Give).then(|| Counted::new(&self.parting));
        let flight = async move {
            let _parting = parting;
            let wanted = || {
                let state = quorum.state();
                let leaving = state.claims.get(&id).is_none_or(|entry| entry.leaving);
                verb == Verb::Give || !leaving
            };
            let Some(member) = quorum.members.get(at) else { return Heard::nothing() };
            member.follow(started, &call, quorum.options.max_ttl, wanted).await
        };
        Some((Sent { member: at, verb, round, in_time_until }, Box::pin(flight)))
    }

    /// A member answered.
    fn arrived(self: &Arc<Self>, id: ClaimId, sent: Sent, heard: Heard) -> Stepped {
        let Sent { member, verb, round, in_time_until } = sent;
        self.knows(heard.number);
        if self.members.get(member).is_some_and(Member::is_stranger) {
            self.admit_soon();
        }
        {
            let mut state = self.state();
            if !matches!(heard.said, Said::Not | Said::Unclear) {
                state.silent.0 &= !(1 << member);
            }
            if let Some(entry) = state.claims.get_mut(&id) {
                entry.in_flight = entry.in_flight.saturating_sub(1);
                entry.errors.extend(heard.error.map(|error| (member, error)));
                if let Said::Yes { counts: false, .. } = heard.said {
                    let now = self.context.clock.now();
                    let (members, max_ttl) = (&self.members, self.options.max_ttl);
                    entry.stranger |= members.get(member).is_some_and(|m| m.counts(now, max_ttl));
                    let why = self.members.get(member).and_then(|m| self.not_counting(m, now));
                    let why = why.map(|text| Error::new(ErrorKind::Unreachable, text));
                    entry.errors.extend(why.map(|error| (member, error)));
                }
                entry.others.extend(heard.holder.map(|record| (record.claim, record)));
                entry.heard_by = entry.heard_by.max(heard.heard_by);
                if verb == Verb::Take && heard.said == Said::Unclear {
                    entry
                        .doubts
                        .insert(member, in_time_until.plus(self.options.request_timeout / 8));
                }
            }
        }
        let now = self.context.clock.now();
        self.step(id, Step::Said { now, member, verb, round, said: heard.said })
    }

    /// The time for the answers of a round is over.
    fn due(self: &Arc<Self>, id: ClaimId, round: u64, waited: Duration) -> Stepped {
        let now = self.context.clock.now();
        {
            let mut state = self.state();
            let missing: Vec<usize> = match state.claims.get(&id) {
                Some(entry) => entry.machine.unanswered().collect(),
                None => Vec::new(),
            };
            for member in missing {
                state.silent.0 |= 1 << member;
                let error = self.silence(member, now, waited);
                if let Some(entry) = state.claims.get_mut(&id) {
                    entry.errors.extend(error.map(|error| (member, error)));
                }
            }
        }
        self.step(id, Step::Due { now, round })
    }

    /// Follows a question to its answer. What is answered after that is followed all the same.
    pub(super) async fn follow(self: &Arc<Self>, id: ClaimId, mut stepped: Stepped) -> Outcome {
        let begun = Instant::now();
        let (mut until, mut round) = (begun, 0);
        loop {
            if let Some(outcome) = stepped.outcome {
                self.follow_rest(id, stepped.flights);
                return outcome;
            }
            if let Some((at, of)) = stepped.due.take() {
                (until, round) = (Instant::now() + at.since(self.context.clock.now()), of);
            }
            let more = match first(&mut stepped.flights, until).await {
                Some((sent, heard)) => self.arrived(id, sent, heard),
                None => self.due(id, round, begun.elapsed()),
            };
            let over = more.outcome.is_none() && more.due.is_none() && Instant::now() >= until;
            stepped.outcome = more.outcome.or(over.then_some(Outcome::TooFew));
            stepped.due = more.due;
            stepped.flights.extend(more.flights);
        }
    }

    /// Follows what is on its way to its answers, whatever they are.
    pub(super) fn follow_rest(self: &Arc<Self>, id: ClaimId, mut flights: Vec<Flight>) {
        if flights.is_empty() {
            return;
        }
        let quorum = self.clone();
        self.context.spawner.spawn(async move {
            let forever = Instant::now() + Duration::from_secs(365 * 24 * 3600);
            while !flights.is_empty()
                && let Some((sent, heard)) = first(&mut flights, forever).await
            {
                flights.extend(quorum.arrived(id, sent, heard).flights);
            }
        });
    }

    /// Follows a claim to its answer. One that has to listen first asks a second time: what was
    /// published before is lost.
    async fn asked(self: Arc<Self>, id: ClaimId, mut stepped: Stepped) -> Attempt {
        let mut admitted = false;
        loop {
            match self.follow(id, stepped).await {
                Outcome::Granted { since, number } => {
                    self.hush(id);
                    let Some(ttl) = self.state().claims.get(&id).map(|entry| entry.claim.ttl)
                    else {
                        return Attempt::Busy(None);
                    };
                    let lease = Lease { id: id.into(), ttl, since: Some(since), confirm: false };
                    return Attempt::Granted(Grant {
                        number: Number::Ours(number),
                        lease: Some(lease),
                    });
                }
                Outcome::Refused { by, keeps, rest } => {
                    let (how, listening, holder) = match self.state().claims.get(&id) {
                        Some(entry) => (entry.how, entry.listening, entry.holder(by, rest)),
                        None => return Attempt::Busy(None),
                    };
                    if how == Line::Try {
                        self.retire(id);
                        return Attempt::Busy(holder);
                    }
                    if listening {
                        let ask_at = self.wait_for(id, keeps, rest);
                        return Attempt::InLine(Place { ahead: None, holder, ask_at });
                    }
                    self.listen(id).await;
                    stepped = self.once_more(id);
                }
                Outcome::TooFew if !admitted && self.met_stranger(id) => {
                    self.admit().await;
                    admitted = true;
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
                Outcome::Renewed { .. } | Outcome::Freed | Outcome::NotOurs => {
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
        let silent = self.state().silent;
        self.step(id, Step::Ask { now, silent, number: self.propose(now) })
    }

    /// What a claim is told that too few members answered.
    fn no_majority(self: &Arc<Self>, id: ClaimId) -> Attempt {
        let error = self.why_too_few(id);
        if error.kind() == ErrorKind::Unreachable {
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
        errors::too_few(&self.options, &errors)
    }

    /// From now on the claim waits for a word; answers when to ask again without one.
    fn wait_for(&self, id: ClaimId, keeps: bool, rest: Option<Duration>) -> Option<Ticks> {
        let now = self.context.clock.now();
        let look = match rest {
            Some(rest) => (rest + Duration::from_millis(1)).clamp(LOOK.0, LOOK.1),
            // Nobody has a majority: whoever contends asks again soon.
            None => LOOK.0,
        };
        let mut state = self.state();
        let entry = state.claims.get_mut(&id)?;
        (entry.waiting, entry.keeps) = (true, keeps);
        // Woken while it was asked for: at once.
        Some(if std::mem::take(&mut entry.woken) { now } else { now.plus(look) })
    }

    /// Lets others pass that wait for what was given back: the claim does not ask before a pause,
    /// unless somebody else gives back.
    pub(super) fn stand_back(&self, claim: &Claim, behind: ClaimId) -> Option<Ticks> {
        let now = self.context.clock.now();
        // Whoever has little time asks before it is over.
        let pause = claim.give_up.map_or(LOOK.0, |at| LOOK.0.min(at.since(now) / 2));
        let mut state = self.state();
        let entry = state.claims.get_mut(&claim.id)?;
        (entry.waiting, entry.behind) = (true, Some(behind));
        Some(now.plus(pause))
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
                    let answer = self.ask_again(*id);
                    Box::pin(async move { answer.get().await.into() })
                }
            }
        });
        Answer::later(super::all(each.collect()))
    }
}

impl Entry {
    /// Whether no member can have anything of it.
    pub(super) fn is_clean(&self) -> bool {
        self.machine.ours().len() == 0 && self.doubts.is_empty()
    }

    /// Who is in the way, as far as the members told.
    fn holder(&self, by: Option<ClaimId>, rest: Option<Duration>) -> Option<Box<Holder>> {
        let record = self.others.get(&by?)?;
        Some(Box::new(record.holder(rest.unwrap_or(record.rest))))
    }
}
