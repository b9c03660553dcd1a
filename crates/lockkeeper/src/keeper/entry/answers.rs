//! What the engine's answers mean for a line, and what its refusals mean for callers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::turns::TurnRecord;
use super::{Entry, Locked, Outcome, State};
use crate::engine::{Attempt, Grant, Standing};
use crate::protocol::line::{Answered, Event, Refusal, Seq};
use crate::words::claim::{Ends, Holder, Mode};
use crate::words::clock::Ticks;
use crate::words::duration::spoken;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::ClaimId;

impl Entry {
    /// Turns an engine's answer into what the line understands, and keeps what it does not need.
    pub(in crate::keeper) fn understand(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        claim: ClaimId,
        sent: Ticks,
        answer: Attempt,
    ) -> Event {
        if let Attempt::InLine(place) = &answer
            && let Some(event) = self.waits_in_vain(locked, claim, place.holder.as_deref())
        {
            return event;
        }
        let state = &mut *locked.state;
        if !state.line.asks(claim) && !matches!(answer, Attempt::Granted(_)) {
            // It was granted or left meanwhile: this says nothing about those who wait now.
            let answer = match answer {
                Attempt::InLine(place) => Answered::InLine { ask_at: place.ask_at },
                Attempt::Unknown(_) => Answered::Unknown,
                Attempt::Failed(_) => Answered::Failed,
                _ => Answered::Busy,
            };
            return Event::Answered { claim, answer };
        }
        let answer = match answer {
            // Read so late that its lease is over, or may be for all that the time of day says:
            // whether it is still ours is not known, so it is asked again (R1, R4).
            Attempt::Granted(Grant { lease: Some(lease), .. })
                if !state.leases.contains(claim)
                    && state.line.hold_for(claim) == Some(claim)
                    && self.keeper.is_over(claim, &lease, lease.since.unwrap_or(sent)) =>
            {
                Answered::Unknown
            }
            Attempt::Granted(grant) => {
                state.answered = self.keeper.clock.now();
                state.last_error = None;
                self.keeper.answered_about(self, claim);
                self.keeper.forget_claim(claim);
                // Nobody renews what nobody here wants: it ends with its lease, if the withdrawal
                // does not reach the engine (R5).
                if let Some(lease) = grant.lease
                    && let Some(hold) = state.line.hold_for(claim)
                {
                    let cell =
                        self.keeper.add_lease(self, hold, &lease, sent, state.line.shape_of(claim));
                    state.leases.insert(hold, cell);
                }
                Answered::Granted(grant.number)
            }
            Attempt::InLine(place) => {
                state.answered = self.keeper.clock.now();
                state.last_error = None;
                self.keeper.answered_about(self, claim);
                state.last_ahead = place.ahead;
                if self.keeper.settings.observer.is_some() {
                    let fair = self.keeper.facts.can.is_fair(self.kind);
                    let (ahead, holder) = (place.ahead, place.holder.clone());
                    self.keeper.observe(
                        self,
                        crate::observe::Seen::InLine { place: claim, fair, ahead, holder },
                    );
                }
                if place.holder.is_some() {
                    state.last_holder = place.holder;
                }
                Answered::InLine { ask_at: place.ask_at }
            }
            Attempt::Busy(holder) => {
                self.keeper.forget_claim(claim);
                state.last_error = None;
                state.last_holder = holder;
                Answered::Busy
            }
            Attempt::Failed(error) if error.is_outage() && state.line.waits_on(claim) => {
                let error = error.name(&self.name).engine(self.keeper.facts.engine);
                state.unanswered(&self.keeper, claim, sent, &error);
                state.last_error = Some(error);
                Answered::Unreachable
            }
            Attempt::Failed(error) => {
                self.keeper.forget_claim(claim);
                state.last_error = Some(error.name(&self.name).engine(self.keeper.facts.engine));
                Answered::Failed
            }
            Attempt::Unknown(error) => {
                let error = error.name(&self.name).engine(self.keeper.facts.engine);
                state.unanswered(&self.keeper, claim, sent, &error);
                // What the server answered says nothing, and asking again will not change that.
                let nonsense = error.kind() == ErrorKind::Corrupt && !state.line.has_stood(claim);
                state.last_error = Some(error);
                if nonsense { Answered::Nonsense } else { Answered::Unknown }
            }
        };
        Event::Answered { claim, answer }
    }

    /// What the answer to the question how a claim stands means for the line.
    pub(in crate::keeper) fn understand_standing(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        claim: ClaimId,
        sent: Ticks,
        answer: Standing,
    ) -> Event {
        let state = &mut *locked.state;
        match answer {
            Standing::Unknown(error) => {
                state.unanswered(&self.keeper, claim, sent, &error);
                Event::Unanswered { claim }
            }
            // The place is gone, with the server's data or for want of a sign of life: stand again.
            // An attempt that is on its way is not answered by this.
            Standing::Gone(error)
                if error.kind() == ErrorKind::Lost && state.line.stands_as(claim) =>
            {
                Event::Wake { claim }
            }
            standing => self.understand(locked, claim, sent, standing.into()),
        }
    }

    pub(in crate::keeper) fn outcome_of(
        self: &Arc<Self>,
        state: &State,
        why: Refusal,
        seq: Seq,
    ) -> Outcome {
        match why {
            Refusal::BusyHere => Outcome::Busy(self.local_holder(state, seq)),
            Refusal::Answer if state.last_error.is_none() => {
                Outcome::Busy(state.last_holder.clone())
            }
            _ => Outcome::Refused(self.refusal(state, why, seq)),
        }
    }

    /// What the claim of this number is told, or the conversion of its turn.
    pub(in crate::keeper) fn refusal(
        self: &Arc<Self>,
        state: &State,
        why: Refusal,
        seq: Seq,
    ) -> Error {
        match why {
            Refusal::Closed => self.closed(),
            Refusal::Lost(why) => self.error(ErrorKind::Lost, format!("the hold is lost: {why}")),
            Refusal::TooMany => {
                let most = self.keeper.settings.rules.waiting_max;
                self.error(
                    ErrorKind::Refused,
                    format!("{most} tasks of this process wait for it already, which is the limit"),
                )
            }
            Refusal::Unanswered => unanswered(state.last_error.clone().unwrap_or_else(|| {
                self.error(ErrorKind::Unreachable, "the engine did not answer in time")
            })),
            Refusal::Unknown | Refusal::Answer => state.last_error.clone().unwrap_or_else(|| {
                self.error(ErrorKind::Unknown, "the engine did not say whether it was granted")
            }),
            // Who held it before nobody knows any more.
            Refusal::TimedOut | Refusal::Unheard
                if let Some((time, why)) = self.silence(state, why, seq) =>
            {
                self.not_in_time(time, why)
            }
            Refusal::TimedOut | Refusal::Unheard | Refusal::BusyHere => {
                let holder = self.local_holder(state, seq).or_else(|| state.last_holder.clone());
                self.timed_out(holder)
            }
        }
    }

    /// For how long the engine has said nothing about what this waits for, and why as far as is
    /// known.
    fn silence(&self, state: &State, why: Refusal, seq: Seq) -> Option<(Duration, Option<Error>)> {
        let claim = state.line.conversion(seq).or_else(|| state.line.claim());
        if let Some((time, why)) = claim.and_then(|claim| self.keeper.silence(claim)) {
            return Some((time, Some(why)));
        }
        if why != Refusal::Unheard {
            return None;
        }
        let converts = || state.converting.get(seq).map(|converting| converting.since);
        let since = state.waiting.get(seq).map(|waiting| waiting.since).or_else(converts)?;
        let asked = state.asked.max(state.answered);
        let time = self.keeper.clock.now().since(since.max(asked));
        // Most of its time went by behind somebody of this process, and the answer may be on its
        // way.
        let just_now = asked > since && time < self.keeper.rules.ask_again_after;
        (!just_now).then_some((time, None))
    }

    /// The lock was not obtained in time, and for so long the engine has said nothing, or refused.
    pub(crate) fn not_in_time(&self, time: Duration, why: Option<Error>) -> Error {
        let time = spoken(time);
        let text = match why {
            Some(why) => silence_in_words("it", &time, &why),
            None => {
                let mut server = self.keeper.engine.describe().server;
                if server.is_empty() {
                    server.push_str("the engine");
                }
                format!("not obtained in time, and {server} has not answered for {time}")
            }
        };
        self.error(ErrorKind::TimedOut, text)
    }

    /// The same where each of several locks was answered with the same: it may be about any.
    pub(crate) fn one_not_in_time(&self, time: Duration, why: &Error) -> Error {
        let text = silence_in_words("one of them", &spoken(time), why);
        Error::new(ErrorKind::TimedOut, text).engine(self.keeper.facts.engine)
    }

    /// The lock was not obtained in time, and who has it.
    pub(crate) fn timed_out(&self, holder: Option<Box<Holder>>) -> Error {
        // Two containers of one host name can both have the pid 1: the id of the claim alone tells
        // who it is.
        let here = |holder: &Holder| holder.claim.is_some_and(ClaimId::is_ours);
        let who =
            holder.as_deref().map_or(String::new(), |holder| describe_holder(holder, here(holder)));
        self.error(ErrorKind::TimedOut, format!("not obtained in time{who}"))
            .held_by(holder.map(|h| *h))
    }

    /// Who else of this process holds it.
    fn local_holder(&self, state: &State, seq: Seq) -> Option<Box<Holder>> {
        let other = |t: &&TurnRecord| t.cell.lost().is_none() && t.cell.seq != seq;
        let record = state.turns.values().find(other)?;
        let mut holder = Holder::new(record.cell.hold, &self.keeper.who, Mode::Exclusive);
        holder.mode = Some(record.cell.mode());
        holder.token = record.cell.token();
        holder.since = SystemTime::now().checked_sub(self.keeper.now().since(record.cell.granted));
        Some(Box::new(holder))
    }

    pub(crate) fn error(&self, kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::new(kind, message).name(&self.name).engine(self.keeper.facts.engine)
    }

    pub(crate) fn closed(&self) -> Error {
        self.error(ErrorKind::Closed, "its Locks was closed; open a new one")
    }
}

fn silence_in_words(what: &str, time: &str, why: &Error) -> String {
    // What is refused is answered.
    let does = match why.kind() {
        ErrorKind::Refused => format!("refused {what}"),
        _ => "not answered".to_owned(),
    };
    format!("not obtained in time, and the engine has {does} for {time}: {}", why.message())
}

/// What a wait that ends for want of an answer is told: that the engine cannot be reached, or what
/// it refuses us with.
pub(crate) fn unanswered(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unknown | ErrorKind::TimedOut | ErrorKind::Lost => {
            error.with_kind(ErrorKind::Unreachable)
        }
        _ => error,
    }
}

/// `: held by ci-7 (pid 4121) for 3m12s`; a holder of this process is called that.
fn describe_holder(holder: &Holder, here: bool) -> String {
    let who = match (&holder.host, holder.pid) {
        _ if here => "this process".to_owned(),
        (Some(host), Some(pid)) => format!("{} (pid {pid})", host.escape_debug()),
        (Some(host), None) => host.escape_debug().to_string(),
        // A layout of other programs knows its holder by the text in the record alone.
        (None, _) => match &holder.label {
            Some(label) => label.escape_debug().to_string(),
            None => return String::new(),
        },
    };
    let held_for = holder.since.and_then(|since| since.elapsed().ok());
    let time = held_for.map_or_else(String::new, |time| format!(" for {}", spoken(time)));
    let forever = holder.ends == Some(Ends::Never);
    format!(": held by {who}{time}{}", if forever { ", without a time to live" } else { "" })
}
