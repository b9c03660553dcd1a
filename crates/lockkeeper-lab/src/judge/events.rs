//! What each record about a claim changes: how acquires are called, granted and refused here, the
//! rest in `endings`, `lease` and `converts`.

use super::checker::Checker;
use super::claims::{At, ClaimNo, Phase};
use super::class::Class;
use super::lease::over_at;
use super::line::Overtaker;
use super::lock::{Lock, World};
use super::replay::Step;
use crate::history::{Flags, HoldMode, Record, What};

impl Checker {
    /// An acquire is called.
    pub(super) fn asked(&mut self, client: u32, at: At, record: &Record) {
        if self.claims.find(record.claim).is_some() {
            self.book.report.counts.strangers += 1;
            return;
        }
        let lock = self.lock(record.lock, at.time);
        let no = self.claims.add(client, lock, at.record, record);
        let (lock, world) = self.split(lock);
        lock.presence.asked(no, lock.limit.least(), world.claims);
        if !world.claims[no].trying {
            lock.bench.sit(no, world.claims);
        }
    }

    /// An acquire returned a guard.
    pub(super) fn granted(&mut self, client: u32, at: At, record: &Record) {
        let found = self.claims.find(record.claim);
        let no = match found {
            Some(no) => no,
            // Called before the recording began: then its window begins here.
            None if record.mode != HoldMode::None => {
                let limit = Record { number: 0, ..*record };
                self.asked(client, at, &limit);
                let Some(no) = self.claims.find(record.claim) else { return };
                no
            }
            None => {
                self.book.report.counts.strangers += 1;
                return;
            }
        };
        if self.claims[no].phase != Phase::Asked {
            self.book.report.counts.strangers += 1;
            return;
        }
        let (lock_no, linger, lease, apart) =
            (self.claims[no].lock, self.linger_ns, self.lease_ns, self.book.apart_ns);
        self.advance(lock_no, at.time);
        let (lock, mut world) = self.split(lock_no);
        world.claims.hold(no);
        let claim = &mut world.claims[no];
        claim.granted = at;
        // Where clocks differ it may have been lost before we hear that it began.
        claim.blurred |= !claim.lost.never();
        claim.token = record.token;
        claim.deadline = if record.deadline == 0 { u64::MAX } else { record.deadline };
        claim.handed = record.flags.has(Flags::HANDED);
        // A turn inside of a hold may be asked for when the engine has forgotten that.
        claim.confirmed = if claim.handed || claim.owner != 0 { 0 } else { claim.asked.time };
        claim.confirm(lease);
        let counts = &mut world.book.report.counts;
        counts.holds += 1;
        counts.handed += u64::from(claim.handed);
        counts.wait_max_ns =
            counts.wait_max_ns.max((at.time - claim.asked.time).saturating_sub(apart));
        if claim.mode == HoldMode::Permits && claim.limit > 0 {
            lock.limit.agreed(u64::from(claim.limit));
        }
        lock.bench.rise(no, world.claims);
        lock.recovered(no, at, &mut world);
        if world.claims[no].mode == HoldMode::Exclusive {
            lock.granted_alone(at.time, &world, linger);
        }
        Self::in_turn(lock, no, at.time, &mut world);
        lock.judge_token_given(no, &mut world);
        let mut wrong = Vec::new();
        lock.presence
            .granted(no, lock.limit.least(), at.time, world.claims, &mut |busy| wrong.push(busy));
        lock.wrong_busy(wrong, &mut world);
        let claim = &world.claims[no];
        // Not for one whose deadline passed before the answer was taken, or, under skew, whose
        // release was called already.
        if claim.deadline > at.time && claim.release_called.never() {
            lock.occupancy.enter(no, at.time, world.claims);
        } else if !claim.release_called.never() {
            lock.presence.leaving(no, world.claims);
        }
    }

    /// An exclusive grant against the line: who was overtaken by it, and was it overtaken itself.
    fn in_turn(lock: &mut Lock, no: ClaimNo, at: u64, world: &mut World) {
        let claim = &world.claims[no];
        let (ticket, apart) = (claim.ticket, world.book.apart_ns);
        while let Some(who) = lock
            .overtakers
            .front()
            .copied()
            .filter(|who| who.granted.time.saturating_add(apart) < at)
        {
            lock.overtakers.pop_front();
            lock.line.granted(who);
        }
        let by = if world.book.describes(Class::FifoInversion) {
            lock.line.overtaker(ticket)
        } else {
            None
        };
        let overtaken = lock.line.leave(ticket);
        let reentrant = claim.owner != 0
            && (lock.occupancy.owns(claim.owner) || apart > 0 && world.claims.entered(no));
        if claim.mode != HoldMode::Exclusive || claim.handed || reentrant {
            return;
        }
        let who = Overtaker { client: claim.client, asked: claim.asked, granted: claim.granted };
        if apart == 0 {
            lock.line.granted(who);
        } else {
            lock.overtakers.push_back(who);
        }
        // Who stands still or is cut off for longer than a place lives stands at the end again.
        if overtaken == 0 || !world.faults.quiet_since(claim.asked.time.saturating_sub(apart)) {
            return;
        }
        let mut records = vec![(claim.client, claim.granted), (claim.client, claim.asked)];
        records.extend(by.map(|by| (by.client, by.granted)));
        let (id, granted) = (lock.id, claim.granted.time);
        world.book.convict(Class::FifoInversion, id, granted, &records, |book| {
            let (name, lock, at) = (book.client(claim.client), book.lock(id), book.time(granted));
            let last = by.map_or_else(String::new, |by| {
                format!(
                    "; the last was {}, called at {} and granted at {}",
                    book.client(by.client),
                    book.time(by.asked.time),
                    book.time(by.granted.time)
                )
            });
            format!(
                "{name} got {lock} at {at}, overtaken in line by {overtaken} that were called \
                 after its place was confirmed{last}"
            )
        });
    }

    /// Every other record about a claim.
    pub(super) fn about_claim(&mut self, client: u32, at: At, record: &Record) {
        let Some(no) = self.claims.find(record.claim) else {
            self.book.report.counts.strangers += 1;
            return;
        };
        self.advance(self.claims[no].lock, at.time);
        let Some(step) = Step::of(record.what) else { return self.said(no, client, at, record) };
        match step {
            Step::Asked | Step::Granted => {}
            Step::Refused => self.refused(no, at, record.what),
            Step::ReleaseCalled => self.release_called(no, at, record.number > 0),
            Step::ReleaseAnswered => self.released(no, at, record.what),
            Step::RenewCalled => self.claims[no].renewal_called(at),
            Step::RenewAnswered if record.what == What::Renewed => {
                self.renewed(no, at, record.deadline);
            }
            Step::RenewAnswered => {
                self.claims[no].renewal_answered();
                self.answer_doubts(no, 0);
                if record.what == What::RenewLost {
                    self.lost(no, at);
                }
            }
            Step::Lost => {
                self.book.report.counts.lost += 1;
                self.lost(no, at);
            }
            Step::ConvertCalled => self.convert_called(no, at, record.mode),
            Step::ConvertAnswered if record.what == What::Converted => {
                self.converted(no, at, record);
            }
            Step::ConvertAnswered => self.convert_failed(no, at),
        }
    }

    /// What is said of a claim and changes nothing in its life.
    fn said(&mut self, no: ClaimNo, client: u32, at: At, record: &Record) {
        match record.what {
            What::InLine => {
                let (lock, world) = self.split(self.claims[no].lock);
                let claim = &mut world.claims[no];
                if claim.phase == Phase::Asked && claim.ticket == 0 {
                    claim.ticket = lock.line.join(at.time);
                }
            }
            What::CheckCalled | What::EffectCalled => {
                // The news of a hold and of what was said of it are compared on one clock.
                let comparable = self.book.apart_ns == 0 || self.claims[no].client == client;
                let over = over_at(&self.claims[no], at.time, record.what == What::EffectCalled)
                    .filter(|_| comparable);
                self.calls.begin(record.claim, record.number, client, at, over);
            }
            What::Checked | What::EffectDone => self.answered(no, at, record),
            _ => {}
        }
    }

    /// An acquire ends without a guard.
    fn refused(&mut self, no: ClaimNo, at: At, what: What) {
        if self.claims[no].phase != Phase::Asked {
            self.book.report.counts.strangers += 1;
            return;
        }
        let (withdraw, unknown) = (self.withdraw_ns, self.unknown_until(at.time));
        let (lock, mut world) = self.split(self.claims[no].lock);
        let counts = &mut world.book.report.counts;
        match what {
            What::Busy => counts.busy += 1,
            What::TimedOut => counts.timed_out += 1,
            What::AcquireUnknown => counts.unknown += 1,
            What::Cancelled => counts.cancelled += 1,
            _ => {}
        }
        lock.line.leave(world.claims[no].ticket);
        if !world.claims[no].trying {
            lock.bench.rise(no, world.claims);
            lock.waited_in_vain(no, at, &mut world);
        }
        let mut wrong = Vec::new();
        let mut convict = |busy| wrong.push(busy);
        match what {
            What::Busy => lock.presence.busy(no, at, world.claims, &mut convict),
            What::AcquireFailed => lock.presence.failed(no, at.time, world.claims, &mut convict),
            What::AcquireUnknown => lock.presence.left(no, unknown, world.claims),
            _ => lock.presence.left(no, at.time.saturating_add(withdraw), world.claims),
        }
        lock.wrong_busy(wrong, &mut world);
        world.claims.close(no);
    }

    /// Until when an acquire of which nobody knows whether it happened may be in the engine: as
    /// that of a dead process, where the time for that is known.
    fn unknown_until(&self, now: u64) -> u64 {
        let promised = self.book.report.recovery_promised_ns.unwrap_or(u64::MAX);
        now.saturating_add(promised).saturating_add(self.linger_ns)
    }
}
