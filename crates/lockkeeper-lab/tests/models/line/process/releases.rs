//! How holds are given back: what is answered once more meanwhile is given back behind the first
//! release, and not beside it.

use lockkeeper::ClaimId;
use lockkeeper::engine::LeaseId;
use lockkeeper::test_util::machines::line::Ask;

use super::super::Flaw;
use super::super::register::{Call, TTL, Way};
use super::{Process, Sent};

/// A release that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UnderWay {
    /// Until when it is repeated, if its answer is lost: a lease after the last one is over.
    until: u64,
    /// When it is repeated.
    pub(super) next: Option<u64>,
    /// The call that is answered.
    number: u8,
    /// It may have freed the hold before, so what it finds says nothing.
    repeated: bool,
    /// Meanwhile the engine granted the hold once more, or said that it is in line.
    echoed: bool,
}

impl Process {
    pub(super) fn release(
        &mut self,
        now: u64,
        hold: ClaimId,
        again: Option<Ask>,
        over: bool,
        flaw: Option<Flaw>,
        out: &mut Sent,
    ) {
        let until = self.kept.remove(&hold).map_or(now, |kept| kept.deadline.max(now)) + TTL;
        if flaw != Some(Flaw::WatchdogOutlivesUnlock) {
            self.leases.forget(LeaseId::from(hold));
        }
        if over && flaw != Some(Flaw::ReleasesBeside) && self.is_echo(hold) {
            return;
        }
        let again = again.map(|ask| {
            self.expect(now, ask.id);
            (ask.id, ask.shape.mode.into(), self.may_arrive_until(now, ask.id))
        });
        let number = self.send_release(now, hold, again, out);
        self.releases.entry(hold).or_insert(UnderWay {
            until,
            next: None,
            number,
            repeated: false,
            echoed: false,
        });
    }

    /// Whether the hold is being given back already: what came once more is given back behind that.
    pub(super) fn is_echo(&mut self, hold: ClaimId) -> bool {
        let Some(under_way) = self.releases.get_mut(&hold) else { return false };
        under_way.echoed = true;
        true
    }

    fn send_release(
        &mut self,
        now: u64,
        hold: ClaimId,
        again: Option<(ClaimId, Way, u64)>,
        out: &mut Sent,
    ) -> u8 {
        let refuse = self.sent_until.get(&hold).copied().unwrap_or(0);
        self.send(now, Call::Release { hold, again, refuse }, out)
    }

    /// A release was answered, and found its hold or did not; or it is not known what became of it.
    pub(super) fn released(
        &mut self,
        now: u64,
        number: u8,
        hold: ClaimId,
        found: Option<bool>,
        out: &mut Sent,
    ) {
        let Some(under_way) =
            self.releases.get_mut(&hold).filter(|under_way| under_way.number == number)
        else {
            return;
        };
        if found.is_none() && now < under_way.until {
            (under_way.next, under_way.repeated) = (Some(now + 1), true);
            return;
        }
        // Nobody else ends it before its lease is over.
        out.wrong_end |= found == Some(false) && !under_way.repeated && now + TTL < under_way.until;
        if under_way.echoed {
            // It may have been made anew behind the release.
            (under_way.next, under_way.repeated, under_way.echoed) = (Some(now), true, false);
            return self.release_again(now, out);
        }
        self.sent_until.remove(&hold);
        self.releases.remove(&hold);
    }

    /// Sends once more what is due.
    pub(super) fn release_again(&mut self, now: u64, out: &mut Sent) {
        let due: Vec<ClaimId> = self
            .releases
            .iter()
            .filter(|(_, one)| one.next.is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for hold in due {
            let number = self.send_release(now, hold, None, out);
            self.releases.entry(hold).and_modify(|one| (one.next, one.number) = (None, number));
        }
    }
}
