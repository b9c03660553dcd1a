//! Fencing tokens in the order of holds (R7).

use super::claims::{At, Claim};
use crate::history::HoldMode;

/// The greatest token of the holds that ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub token: u64,
    pub claim: u64,
    pub client: u32,
    pub owner: u64,
    pub granted: At,
    pub confirmed: u64,
    pub ended: u64,
    pub lost: bool,
}

/// What is wrong with a token.
#[derive(Clone, Copy, Debug)]
pub(super) enum BadToken {
    Smaller(Mark),
    Repeated(Mark),
    Lost(Mark),
}

/// Whether a hold has none, in a mode in which every hold has one where tokens are given (R7).
pub(super) fn is_missing(claim: &Claim) -> bool {
    claim.token == 0
        && matches!(claim.mode, HoldMode::Exclusive | HoldMode::Shared | HoldMode::Upgradable)
}

/// The tokens of one lock.
#[derive(Default)]
pub(super) struct Tokens {
    exclusive: Option<Mark>,
    any: Option<Mark>,
}

impl Tokens {
    /// A hold ended at `at`, so that holds beginning now come after it. One of zero length has no
    /// certain order.
    pub fn ended(&mut self, claim: &Claim, at: u64) {
        if claim.mode == HoldMode::Permits || claim.granted.time >= at {
            return;
        }
        let mark = Mark {
            token: claim.token,
            claim: claim.id,
            client: claim.client,
            owner: claim.owner,
            granted: claim.granted,
            confirmed: claim.confirmed,
            ended: at,
            lost: !claim.lost.never(),
        };
        let raise = |old: &mut Option<Mark>| {
            if old.is_none_or(|old| old.token <= mark.token) {
                *old = Some(mark);
            }
        };
        raise(&mut self.any);
        if claim.mode == HoldMode::Exclusive {
            raise(&mut self.exclusive);
        }
    }

    /// Judges the token of a hold that begins: exclusive ones come after all, others after every
    /// exclusive one.
    pub fn judge(&self, claim: &Claim) -> Option<BadToken> {
        let before = if claim.mode == HoldMode::Exclusive { self.any? } else { self.exclusive? };
        if claim.token == 0 || claim.mode == HoldMode::Permits || claim.token > before.token {
            return None;
        }
        if claim.token < before.token {
            return Some(BadToken::Smaller(before));
        }
        // The same hold again after its deadline had passed, or a re-entrant call that was under
        // way when its hold ended.
        let same_owner = claim.owner != 0 && claim.owner == before.owner;
        if before.claim == claim.id || same_owner && claim.asked.time <= before.ended {
            return None;
        }
        Some(if same_owner && before.lost {
            BadToken::Lost(before)
        } else {
            BadToken::Repeated(before)
        })
    }
}
