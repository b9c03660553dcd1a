//! What guards say about themselves, and what is done under them: nothing may hold after its
//! deadline or its end (R2).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::claims::{At, Claim, Mixed};

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
