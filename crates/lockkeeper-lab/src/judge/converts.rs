//! Upgrades and downgrades: a hold that changes its mode ends in the old one and begins in the new
//! one.

use super::checker::Checker;
use super::claims::{At, ClaimNo, Phase};
use crate::history::{HoldMode, Record};

/// How much a mode excludes.
fn strength(mode: HoldMode) -> u8 {
    match mode {
        HoldMode::Permits | HoldMode::None => 0,
        HoldMode::Shared => 1,
        HoldMode::Upgradable => 2,
        HoldMode::Exclusive => 3,
    }
}

impl Checker {
    /// From the call on the engine may have the hold in either mode; a weaker one is all that is
    /// certain.
    pub(super) fn convert_called(&mut self, no: ClaimNo, at: At, to: HoldMode) {
        if self.claims[no].phase != Phase::Held || self.claims[no].converting != HoldMode::None {
            return self.tangle(no, at);
        }
        let (lock, mut world) = self.split(self.claims[no].lock);
        world.claims[no].converting = to;
        lock.presence.also(no, to, true, lock.limit.least(), at.time, world.claims);
        if world.claims[no].active && strength(to) < strength(world.claims[no].mode) {
            let from = world.claims[no].mode;
            lock.stop(no, at.time, &mut world);
            let claim = &mut world.claims[no];
            // What it was until now is what its presence counts; `converting` keeps that for the
            // answer.
            (claim.mode, claim.converting, claim.weakened) = (to, from, true);
            // What is found of it from now on, such as a greater token that came beside it, is
            // found now.
            claim.granted = at;
            lock.occupancy.enter(no, at.time, world.claims);
        }
    }

    /// It is called before what came of the call before it is known: so clocks that differ make it
    /// look.
    fn tangle(&mut self, no: ClaimNo, at: At) {
        let claim = &mut self.claims[no];
        if self.book.apart_ns == 0
            || claim.phase == Phase::Over
            || std::mem::replace(&mut claim.tangled, true)
        {
            return;
        }
        self.blur(no, at.time);
        let (lock, world) = self.split(self.claims[no].lock);
        lock.presence.tangled(no, lock.limit.least(), at.time, world.claims);
    }

    pub(super) fn converted(&mut self, no: ClaimNo, at: At, record: &Record) {
        let lease = self.lease_ns;
        let (lock, mut world) = self.split(self.claims[no].lock);
        let claim = &mut world.claims[no];
        if claim.phase != Phase::Held {
            return;
        }
        world.book.report.counts.holds += 1;
        world.book.report.counts.converted += 1;
        if claim.tangled {
            return;
        }
        let (now, other) = (claim.mode, std::mem::take(&mut claim.converting));
        claim.weakened = false;
        if other != HoldMode::None {
            let old = if now == record.mode { other } else { now };
            lock.presence.also(no, old, false, lock.limit.least(), at.time, world.claims);
        } else if now != record.mode {
            // Called before the recording began.
            lock.presence.also(no, record.mode, true, lock.limit.least(), at.time, world.claims);
            lock.presence.also(no, now, false, lock.limit.least(), at.time, world.claims);
        }
        let was_active = world.claims[no].active;
        lock.stop(no, at.time, &mut world);
        let claim = &mut world.claims[no];
        claim.mode = record.mode;
        claim.token = record.token;
        claim.granted = at;
        if record.deadline != 0 {
            claim.deadline = record.deadline;
            claim.confirm(lease);
        }
        lock.judge_token_given(no, &mut world);
        if was_active && world.claims[no].deadline > at.time {
            lock.occupancy.enter(no, at.time, world.claims);
        }
    }

    pub(super) fn convert_failed(&mut self, no: ClaimNo, at: At) {
        if self.claims[no].tangled {
            return;
        }
        let (lock, mut world) = self.split(self.claims[no].lock);
        let other = std::mem::take(&mut world.claims[no].converting);
        if world.claims[no].phase != Phase::Held || other == HoldMode::None {
            return;
        }
        let mut left = other;
        if std::mem::take(&mut world.claims[no].weakened) {
            // A downgrade that failed: it has been what it was all the time.
            let was_active = world.claims[no].active;
            lock.stop(no, at.time, &mut world);
            left = std::mem::replace(&mut world.claims[no].mode, other);
            if was_active {
                world.claims[no].granted = at;
                lock.occupancy.enter(no, at.time, world.claims);
            }
        }
        lock.presence.also(no, left, false, lock.limit.least(), at.time, world.claims);
    }
}
