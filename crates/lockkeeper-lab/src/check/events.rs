//! What each record about a claim changes.

use super::book::Book;
use super::checker::Checker;
use super::claims::{At, Claim, ClaimNo, Phase};
use super::class::Class;
use super::lease::{Doubt, Over, over_at};
use super::line::Overtaker;
use super::lock::{Lock, World};
use super::report::Moment;
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
        let lock = self.claims[no].lock;
        self.advance(lock, at.time);
        match record.what {
            What::Busy
            | What::TimedOut
            | What::AcquireUnknown
            | What::AcquireFailed
            | What::Cancelled => self.refused(no, at, record.what),
            What::InLine => {
                let (lock, world) = self.split(lock);
                let claim = &mut world.claims[no];
                if claim.phase == Phase::Asked && claim.ticket == 0 {
                    claim.ticket = lock.line.join(at.time);
                }
            }
            What::ReleaseCalled => self.release_called(no, at, record.number > 0),
            What::Released | What::ReleasedNotOwner | What::ReleaseUnknown | What::ReleasedLost => {
                self.released(no, at, record.what)
            }
            What::RenewCalled => self.claims[no].renewal_called(at),
            What::Renewed => self.renewed(no, at, record.deadline),
            What::RenewLost => {
                self.claims[no].renewal_answered();
                self.answer_doubts(no, 0);
                self.lost(no, at);
            }
            What::RenewUnknown => {
                self.claims[no].renewal_answered();
                self.answer_doubts(no, 0);
            }
            What::Lost => {
                self.book.report.counts.lost += 1;
                self.lost(no, at);
            }
            What::ConvertCalled => self.convert_called(no, at, record.mode),
            What::Converted => self.converted(no, at, record),
            What::ConvertFailed => self.convert_failed(no, at),
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

    fn release_called(&mut self, no: ClaimNo, at: At, again: bool) {
        let claim = &mut self.claims[no];
        claim.release_called(at, again);
        if claim.phase == Phase::Over || !claim.release_called.never() {
            // Once more, or of a hold that was over: whatever it frees from now on may be somebody
            // else's.
            claim.stale = true;
            return;
        }
        claim.stale = claim.phase == Phase::Held && !claim.active || !claim.lost.never();
        self.told_by(no, at, 0);
        let claim = &mut self.claims[no];
        claim.release_called = at;
        let (lock, mut world) = self.split(self.claims[no].lock);
        lock.stop(no, at.time, &mut world);
        lock.presence.leaving(no, world.claims);
    }

    fn released(&mut self, no: ClaimNo, at: At, what: What) {
        let linger = self.linger_ns;
        let (lock, mut world) = self.split(self.claims[no].lock);
        lock.stop(no, at.time, &mut world);
        let claim = &mut world.claims[no];
        let first = claim.release_done.never();
        if first {
            claim.release_done = at;
        }
        // Two that were under way together may both be told of the one effect that they had.
        let called = claim.release_answered();
        let again =
            !claim.released.never() && (called.never() || called.time > claim.released.time);
        if what == What::Released && claim.released.never() {
            claim.released = at;
        }
        let called = if called.never() { claim.release_called } else { called };
        let claim = &world.claims[no];
        let id = lock.id;
        let own = [(claim.client, at), (claim.client, called), (claim.client, claim.granted)];
        let rival =
            lock.occupancy.rival(no, called.time, world.claims).map(|rival| &world.claims[rival]);
        match what {
            What::Released if again => {
                world.book.convict(Class::DoubleRelease, id, at.time, &own, |book| {
                    let (name, lock, at) =
                        (book.client(claim.client), book.lock(id), book.time(at.time));
                    format!(
                        "{name} released {lock} at {at} with success, and had released the \
                         same hold with success before"
                    )
                })
            }
            What::Released if claim.stale => {
                if let Some(rival) = rival {
                    let records = [own[0], own[1], own[2], (rival.client, rival.granted)];
                    let when = Moment::at(at.time).since(claim.confirmed).since(rival.confirmed);
                    world.book.convict(Class::ForeignRelease, id, when, &records, |book| {
                        let (name, lock, at) =
                            (book.client(claim.client), book.lock(id), book.time(at.time));
                        let over = Self::over_words(claim, called.time, book);
                        format!(
                            "{name} released {lock} with success at {at} although its hold \
                             had ended ({over}), while {}",
                            book.hold(rival)
                        )
                    });
                }
            }
            What::ReleasedNotOwner
                if first && !claim.stale && !called.never() && claim.deadline > at.time =>
            {
                world.book.convict(
                    Class::HoldVanished,
                    id,
                    Moment::at(at.time).since(claim.confirmed),
                    &own,
                    |book| {
                        let (name, lock, at) =
                            (book.client(claim.client), book.lock(id), book.time(at.time));
                        let since = book.time(claim.granted.time);
                        format!(
                            "{name} released {lock} at {at} and was refused as not its \
                             holder, though it held it since {since} and had not lost it"
                        )
                    },
                );
            }
            _ => {}
        }
        if what == What::ReleaseUnknown && first {
            world.book.report.counts.unknown += 1;
        }
        if claim.phase == Phase::Held {
            match what {
                What::ReleaseUnknown => {
                    let claim = &world.claims[no];
                    let until = if claim.deadline == u64::MAX {
                        u64::MAX
                    } else {
                        Self::ghost(claim, at.time, linger)
                    };
                    lock.presence.vanished(no, at.time, until, world.claims);
                }
                What::ReleasedLost => {
                    let until = Self::ghost(&world.claims[no], at.time, linger);
                    lock.presence.vanished(no, at.time, until, world.claims);
                }
                _ => lock.presence.gone(no, at.time, world.claims),
            }
            world.claims.close(no);
        }
    }

    /// Until when an acquire of which nobody knows whether it happened may be in the engine: as
    /// that of a dead process, where the time for that is known.
    fn unknown_until(&self, now: u64) -> u64 {
        let promised = self.book.report.recovery_promised_ns.unwrap_or(u64::MAX);
        now.saturating_add(promised).saturating_add(self.linger_ns)
    }

    /// Until when a hold of somebody who is gone may still be in the engine.
    pub(super) fn ghost(claim: &Claim, now: u64, linger: u64) -> u64 {
        let lease_end = if claim.deadline == u64::MAX { now } else { claim.deadline.max(now) };
        lease_end.saturating_add(linger)
    }

    /// Its holder was told by now, or should have been: at its deadline, whatever became of
    /// messages (R2). Who stands still cannot be told, and where nobody writes down who did, nobody
    /// is judged.
    ///
    /// `later`: by how much the moment may be later than it was, where clocks differ.
    pub(super) fn told_by(&mut self, no: ClaimNo, at: At, later: u64) {
        let at = At { time: at.time.saturating_sub(later), ..at };
        let (claim, apart) = (&self.claims[no], self.book.apart_ns);
        if claim.phase != Phase::Held
            || !claim.lost.never()
            || !claim.release_called.never()
            || claim.deadline >= at.time
        {
            return;
        }
        // What may have moved its deadline may have been answered.
        if apart > 0 && (claim.renewals > 0 || claim.converting != HoldMode::None || claim.tangled)
        {
            return;
        }
        let (client, deadline, granted) = (claim.client, claim.deadline, claim.granted);
        let late = at.time - deadline;
        let process = self.book.process(client);
        if self.faults.stood_still(
            process.into(),
            deadline.saturating_sub(apart),
            at.time.saturating_add(apart),
        ) {
            return;
        }
        let counts = &mut self.book.report.counts;
        counts.loss_late_max_ns = counts.loss_late_max_ns.max(late);
        let options = &self.book.options;
        let slack = u64::try_from(options.recovery_slack.as_nanos())
            .unwrap_or(u64::MAX)
            .saturating_add(apart);
        let bound =
            slack.saturating_add(if late > slack { options.late.ns(deadline, at.time) } else { 0 });
        if late <= bound || self.claims[no].told_late || !self.watched() {
            return;
        }
        self.claims[no].told_late = true;
        let (lock, world) = self.split(self.claims[no].lock);
        world.book.convict(
            Class::LateLoss,
            lock.id,
            at.time,
            &[(client, at), (client, granted)],
            |book| {
                let (name, lock, over) =
                    (book.client(client), book.lock(lock.id), book.time(deadline));
                format!(
                    "{name} did not learn at {over}, its deadline, that its hold of {lock} \
                     had ended, nor {} ms later",
                    late / 1_000_000
                )
            },
        );
    }

    fn renewed(&mut self, no: ClaimNo, at: At, deadline: u64) {
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

    fn lost(&mut self, no: ClaimNo, at: At) {
        self.told_by(no, at, 0);
        let (lock, mut world) = self.split(self.claims[no].lock);
        let claim = &mut world.claims[no];
        let known =
            claim.phase == Phase::Held || claim.phase == Phase::Asked && world.book.apart_ns > 0;
        if !known || !claim.lost.never() {
            return;
        }
        claim.lost = at;
        let was_active = claim.active;
        lock.stop(no, at.time, &mut world);
        if !was_active {
            lock.tokens.ended(&world.claims[no], at.time);
        }
    }

    /// A check or an effect was answered.
    fn answered(&mut self, no: ClaimNo, at: At, record: &Record) {
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
    fn answer_doubts(&mut self, no: ClaimNo, deadline: u64) {
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
    fn over_words(claim: &Claim, at: u64, book: &Book) -> String {
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
