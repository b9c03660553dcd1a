//! What a process does by itself: at its time, and when its link is up again.

use lockkeeper::test_util::machines::lease::Change;
use lockkeeper::test_util::machines::line::Event;
use lockkeeper::{ClaimId, Lost};

use super::super::Flaw;
use super::super::register::Call;
use super::{NET_EVERY, Process, SECOND, Sent, ticks};

impl Process {
    /// When it has something to do by itself.
    pub fn next_timer(&self) -> Option<u64> {
        let machines = [self.line.next_timer(), self.leases.next_timer()]
            .into_iter()
            .flatten()
            .map(|at| at.0.div_ceil(SECOND));
        let again = self.releases.values().filter_map(|release| release.next);
        machines.chain(again).chain(self.net_at).min()
    }

    /// Does what is due.
    pub fn timer(&mut self, now: u64, flaw: Option<Flaw>, out: &mut Sent) {
        if self.line.next_timer().is_some_and(|at| at <= ticks(now)) {
            self.step(now, Event::Timer, flaw, out);
        }
        let mut changes = Vec::new();
        self.leases.take_over(ticks(now), &mut changes);
        for change in changes {
            if let Change::Over(lease) = change {
                let hold = ClaimId(lease.0);
                self.step(now, Event::Ended { hold, why: Lost::Expired, ours: true }, flaw, out);
                self.kept.remove(&hold);
            }
        }
        for lease in self.leases.take_due(ticks(now), 100) {
            self.send(now, Call::Renew(ClaimId(lease.0)), out);
        }
        self.release_again(now, out);
        if self.net_at.is_some_and(|at| at <= now) {
            self.net_at = (!self.waiting.is_empty()).then_some(now + NET_EVERY);
            if flaw != Some(Flaw::WakesOnlyByPush) {
                self.recheck_all(now, out);
            }
        }
    }

    /// Its link is up again: it renews what it has, and asks about every place.
    pub fn link_up(&mut self, now: u64, out: &mut Sent) {
        for lease in self.leases.take_all() {
            self.send(now, Call::Renew(ClaimId(lease.0)), out);
        }
        self.recheck_all(now, out);
    }

    /// Whether there is a place to be asked about.
    pub fn stands(&self) -> bool {
        self.line.place().is_some() || self.line.conversions().next().is_some()
    }

    fn recheck_all(&mut self, now: u64, out: &mut Sent) {
        let all: Vec<ClaimId> =
            self.line.place().into_iter().chain(self.line.conversions()).collect();
        all.into_iter().for_each(|id| self.recheck(now, id, out));
    }

    /// Asks about what still waits.
    pub(super) fn recheck(&mut self, now: u64, id: ClaimId, out: &mut Sent) {
        // A conversion that is being left is not asked for again.
        let waits = self.line.place() == Some(id)
            || self.conversions.contains_key(&id) && self.line.hold_for(id).is_some();
        if waits {
            let (hold, way) = self.wanted(id);
            let not_after = self.may_arrive_until(now, id);
            self.send(now, Call::Recheck { id, way, hold, not_after }, out);
        }
    }
}
