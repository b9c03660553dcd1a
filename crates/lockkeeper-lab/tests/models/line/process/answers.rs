//! What a process makes of what the server says.

use lockkeeper::test_util::machines::lease::{Change, Terms, deadline};
use lockkeeper::test_util::machines::line::{Answered, Event};
use lockkeeper::{ClaimId, Lost};

use super::super::Flaw;
use super::super::register::{Answer, Call, News, Push, TTL, Way};
use super::{Awaited, DRIFT, Kept, Number, Process, SECOND, Sent, seconds, ticks};

impl Process {
    /// An answer came; `None`: it is not known what became of the call.
    pub fn answered(
        &mut self,
        now: u64,
        number: u8,
        answer: Option<Answer>,
        flaw: Option<Flaw>,
        out: &mut Sent,
    ) {
        let Some(Awaited { call, mut sent }) = self.calls.remove(&number) else { return };
        if flaw == Some(Flaw::DeadlineFromReply) {
            sent = now;
        }
        match call {
            Call::Attempt { id, .. } => self.attempted(now, sent, id, answer, flaw, out),
            Call::Convert { id, .. } if !self.line.asks(id) => {}
            Call::Convert { id, .. } => self.attempted(now, sent, id, answer, flaw, out),
            Call::Recheck { id, .. } => match answer {
                None => self.step(now, Event::Unanswered { claim: id }, flaw, out),
                Some(Answer::Gone) if self.line.place() == Some(id) => {
                    self.step(now, Event::Wake { claim: id }, flaw, out)
                }
                // Also what is not asked about any more: it was granted or left meanwhile, and may
                // be over.
                Some(answer) => self.attempted(now, sent, id, Some(answer), flaw, out),
            },
            Call::Withdraw { id, .. } => {
                if answer.is_some() {
                    self.sent_until.remove(&id);
                }
                self.step(now, Event::Withdrawn { claim: id, known: answer.is_some() }, flaw, out);
            }
            Call::Release { hold, again, .. } => {
                let (found, told) = match answer {
                    Some(Answer::Ended { found, again }) => (Some(found), again),
                    _ => (None, None),
                };
                if let Some((id, ..)) = again {
                    self.attempted(now, sent, id, told.map(|answer| *answer), flaw, out);
                }
                self.released(now, number, hold, found, out);
            }
            Call::Renew(id) => {
                let mut changes = Vec::new();
                match answer {
                    Some(Answer::Extended) => {
                        self.leases.renewed(id.into(), ticks(sent), seconds(TTL), &mut changes)
                    }
                    Some(_) => self.gone(now, id, Lost::TakenAway, flaw, out),
                    None => self.leases.unanswered(id.into(), ticks(now), &mut changes),
                }
                for change in changes {
                    match change {
                        Change::Extended(id, until) => {
                            if let Some(kept) = self.kept.get_mut(&ClaimId(id.0)) {
                                *kept =
                                    Kept { deadline: until.0 / SECOND, ttl: TTL, answered: true };
                            }
                        }
                        Change::Doubtful(id) => {
                            if let Some(kept) = self.kept.get_mut(&ClaimId(id.0)) {
                                kept.answered = false;
                            }
                        }
                        Change::Over(_) | Change::Unproven(_) => {}
                    }
                }
            }
        }
    }

    fn gone(&mut self, now: u64, hold: ClaimId, why: Lost, flaw: Option<Flaw>, out: &mut Sent) {
        self.leases.forget(hold.into());
        self.kept.remove(&hold);
        self.step(now, Event::Ended { hold, why, ours: false }, flaw, out);
    }

    pub fn attempted(
        &mut self,
        now: u64,
        sent: u64,
        id: ClaimId,
        answer: Option<Answer>,
        flaw: Option<Flaw>,
        out: &mut Sent,
    ) {
        let answer = match answer {
            Some(Answer::Granted { number, left, confirm }) => {
                return self.granted(now, id, number, (sent, left, confirm), flaw, out);
            }
            // It was granted or left meanwhile: this says nothing about those who wait now.
            Some(Answer::InLine { .. }) if !self.line.asks(id) => Answered::InLine { ask_at: None },
            Some(Answer::InLine { ask_in }) => {
                let ask_in = ask_in.filter(|_| flaw != Some(Flaw::WakesOnlyByPush));
                Answered::InLine { ask_at: ask_in.map(|time| ticks(now + time.max(1))) }
            }
            Some(Answer::Busy) => {
                self.waiting.remove(&id);
                Answered::Busy
            }
            // Refused on arrival: it may be asked again.
            _ if flaw != Some(Flaw::UnknownIsNo) => Answered::Unknown,
            _ => Answered::Failed,
        };
        self.step(now, Event::Answered { claim: id, answer }, flaw, out);
    }

    fn granted(
        &mut self,
        now: u64,
        id: ClaimId,
        number: u64,
        lease: (u64, u64, bool),
        flaw: Option<Flaw>,
        out: &mut Sent,
    ) {
        let (since, ttl, confirm) = lease;
        let over = deadline(ticks(since), seconds(ttl), DRIFT) <= ticks(now);
        if over && !self.kept.contains_key(&id) && self.line.hold_for(id) == Some(id) {
            return self.step(
                now,
                Event::Answered { claim: id, answer: Answered::Unknown },
                flaw,
                out,
            );
        }
        self.waiting.remove(&id);
        if let Some(hold) = self.line.hold_for(id)
            && !self.kept.contains_key(&hold)
        {
            let terms = Terms { renew: true, at_once: confirm, ..Terms::default() };
            let until = self.leases.add(hold.into(), ticks(since), seconds(ttl), terms);
            self.kept.insert(hold, Kept { deadline: until.0 / SECOND, ttl, answered: true });
        }
        let number = if matches!(self.way_of(id), Way::Permits(_)) {
            Number::None
        } else {
            Number::Ours(number)
        };
        self.step(now, Event::Answered { claim: id, answer: Answered::Granted(number) }, flaw, out);
    }

    /// A push came.
    pub fn pushed(&mut self, now: u64, push: &Push, flaw: Option<Flaw>, out: &mut Sent) {
        if !self.waiting.contains(&push.claim) {
            return;
        }
        let (number, at, lease) = match push.news {
            News::Granted { number, at, lease } => (number, at, lease),
            News::Alive => {
                let at = ticks(now);
                return self.step(now, Event::AskAt { claim: push.claim, at }, flaw, out);
            }
            News::First { ask_in } => {
                if flaw != Some(Flaw::WakesOnlyByPush) {
                    let at = ticks(now + ask_in.max(1));
                    self.step(now, Event::AskAt { claim: push.claim, at }, flaw, out);
                }
                return;
            }
        };
        let since = if flaw == Some(Flaw::LatePushIsAGrant) { now } else { at };
        let over = deadline(ticks(since), seconds(lease), DRIFT) <= ticks(now);
        if over && self.conversions.contains_key(&push.claim) {
            return;
        }
        if over && self.line.place() == Some(push.claim) {
            return self.step(now, Event::Wake { claim: push.claim }, flaw, out);
        }
        self.granted(now, push.claim, number, (since, lease, true), flaw, out);
    }
}
