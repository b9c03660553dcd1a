//! What guards say about themselves, and what is done under them: nothing may hold after its
//! deadline or its end (R2).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::book::Book;
use super::checker::Checker;
use super::claims::{At, Claim, ClaimNo, Mixed, Phase};
use super::class::Class;
use super::report::Moment;
use crate::history::{Flags, Record, What};

/// Why a hold was over at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Its deadline had passed.
    Deadline,
    /// It had been lost, or released.
    End,
}

/// An answer that was wrong, unless the renewal that was under way had succeeded already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    pub called: At,
    pub answered: At,
    pub effect: bool,
}

/// Whether the holder of this claim had to know at `now` that its hold was over.
///
/// A check may still say yes while the release is on its way; an effect may not, hence `strict`.
pub(super) fn over_at(claim: &Claim, now: u64, strict: bool) -> Option<Over> {
    let before = |end: At| !end.never() && end.time < now;
    if before(claim.ended()) || strict && before(claim.release_called) {
        return Some(Over::End);
    }
    (claim.deadline < now).then_some(Over::Deadline)
}

/// A call of a check or an effect that was not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub called: At,
    pub over: Option<Over>,
    client: u32,
}

/// The calls under way, paired by claim and number.
#[derive(Default)]
pub(super) struct Calls {
    open: HashMap<(u64, u64), Call, BuildHasherDefault<Mixed>>,
}

impl Calls {
    /// A call begins.
    pub fn begin(&mut self, claim: u64, number: u64, client: u32, called: At, over: Option<Over>) {
        self.open.insert((claim, number), Call { called, over, client });
    }

    /// It is answered.
    pub fn end(&mut self, claim: u64, number: u64) -> Option<Call> {
        self.open.remove(&(claim, number))
    }

    /// The calls of a client that is gone are never answered.
    pub fn forget(&mut self, client: u32) {
        self.open.retain(|_, call| call.client != client);
    }
}

impl Checker {
    pub(super) fn renewed(&mut self, no: ClaimNo, at: At, deadline: u64) {
        self.book.report.counts.renewed += 1;
        let deadline = if deadline == 0 { u64::MAX } else { deadline };
        let sent = self.claims[no].renewal_answered();
        self.answer_doubts(no, deadline);
        let lease = self.lease_ns;
        let (lock, world) = self.split(self.claims[no].lock);
        let claim = &mut world.claims[no];
        let end = claim.ended();
        if !end.never() && end.time < sent.time {
            let (claim, id) = (&world.claims[no], lock.id);
            let records = [(claim.client, at), (claim.client, sent), (claim.client, end)];
            world.book.convict(Class::RenewedAfterEnd, id, at.time, &records, |book| {
                let (name, lock, at) =
                    (book.client(claim.client), book.lock(id), book.time(at.time));
                let how = if claim.lost.never() { "released" } else { "lost" };
                format!(
                    "{name} renewed its hold of {lock} at {at} with success, though that was {how} \
                     at {}",
                    book.time(end.time)
                )
            });
        }
        let claim = &mut world.claims[no];
        if claim.phase != Phase::Held || !claim.lost.never() || !claim.release_called.never() {
            return;
        }
        if claim.active {
            lock.occupancy.extend(no, deadline, world.claims);
            return world.claims[no].confirm(lease);
        }
        self.told_by(no, at, self.book.apart_ns);
        let (lock, world) = self.split(self.claims[no].lock);
        let claim = &mut world.claims[no];
        if deadline > at.time {
            // It was over at its deadline, and the server had extended it before: it holds again
            // from here on.
            claim.deadline = deadline;
            claim.granted = at;
            claim.confirm(lease);
            lock.occupancy.enter(no, at.time, world.claims);
        } else {
            claim.deadline = claim.deadline.max(deadline);
        }
    }

    /// A check or an effect was answered.
    pub(super) fn answered(&mut self, no: ClaimNo, at: At, record: &Record) {
        let Some(call) = self.calls.end(record.claim, record.number) else { return };
        let Some(over) = call.over.filter(|_| record.flags.has(Flags::YES)) else { return };
        // Its renewal became known while it was asked: then the deadline that was known before says
        // nothing.
        if over == Over::Deadline && self.claims[no].deadline >= call.called.time {
            return;
        }
        let doubt =
            Doubt { called: call.called, answered: at, effect: record.what == What::EffectDone };
        // A renewal under way may have been answered already; then its record says so soon.
        if over == Over::Deadline && !self.claims[no].renewing.never() {
            self.claims[no].doubts.push(doubt);
        } else {
            self.convict_late(no, doubt);
        }
    }

    /// A renewal was answered: what was said after the old deadline is right up to the new one, and
    /// beyond it if another renewal that is still under way is acknowledged.
    pub(super) fn answer_doubts(&mut self, no: ClaimNo, deadline: u64) {
        let claim = &mut self.claims[no];
        if claim.renewals > 0 {
            return claim.doubts.retain(|doubt| doubt.called.time >= deadline);
        }
        for doubt in std::mem::take(&mut claim.doubts) {
            if doubt.called.time >= deadline {
                self.convict_late(no, doubt);
            }
        }
    }

    fn convict_late(&mut self, no: ClaimNo, doubt: Doubt) {
        let (lock, world) = self.split(self.claims[no].lock);
        let (claim, id) = (&world.claims[no], lock.id);
        let after_end = !claim.ended().never() && claim.ended().time < doubt.called.time;
        let class = match (doubt.effect, after_end) {
            (true, _) => Class::LateEffect,
            (false, true) => Class::HeldAfterEnd,
            (false, false) => Class::HeldAfterDeadline,
        };
        let records = [
            (claim.client, doubt.answered),
            (claim.client, doubt.called),
            (claim.client, claim.granted),
        ];
        let when = Moment { late: true, ..Moment::at(doubt.answered.time) };
        world.book.convict(class, id, when, &records, |book| {
            let (name, lock, at) =
                (book.client(claim.client), book.lock(id), book.time(doubt.called.time));
            let over = Self::over_words(claim, doubt.called.time, book);
            let did =
                if doubt.effect { "touched the resource of" } else { "was reported as holder of" };
            format!("{name} {did} {lock} at {at}, after its hold had ended ({over})")
        });
    }

    /// Why a hold was over at some moment.
    pub(super) fn over_words(claim: &Claim, at: u64, book: &Book) -> String {
        let before = |moment: At| !moment.never() && moment.time <= at;
        if before(claim.lost) {
            format!("lost at {}", book.time(claim.lost.time))
        } else if claim.deadline < at {
            format!("its deadline was {}", book.time(claim.deadline))
        } else if before(claim.release_done) || before(claim.release_called) {
            format!("released at {}", book.time(claim.release_called.time))
        } else {
            "it never began".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_of_a_client_that_is_gone_are_forgotten_and_only_those() {
        let mut calls = Calls::default();
        let at = At { time: 5, record: 1 };
        for client in [1, 2] {
            calls.begin(9, u64::from(client), client, at, None);
        }
        calls.forget(1);
        assert!(calls.end(9, 1).is_none());
        assert_eq!(calls.end(9, 2).map(|call| call.called), Some(at));
        assert!(calls.end(9, 2).is_none(), "a call is answered once");
    }
}
