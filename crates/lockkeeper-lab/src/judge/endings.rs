//! How holds end: given back, or lost, and whether their holders learn it in time.

use super::checker::Checker;
use super::claims::{At, Claim, ClaimNo, Phase};
use super::class::Class;
use super::ns;
use super::report::Moment;
use crate::history::{HoldMode, What};

impl Checker {
    pub(super) fn release_called(&mut self, no: ClaimNo, at: At, again: bool) {
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

    pub(super) fn released(&mut self, no: ClaimNo, at: At, what: What) {
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

    pub(super) fn lost(&mut self, no: ClaimNo, at: At) {
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
        let slack = ns(options.recovery_slack).saturating_add(apart);
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

    /// Until when a hold of somebody who is gone may still be in the engine.
    pub(super) fn ghost(claim: &Claim, now: u64, linger: u64) -> u64 {
        let lease_end = if claim.deadline == u64::MAX { now } else { claim.deadline.max(now) };
        lease_end.saturating_add(linger)
    }
}
