//! The words of the recipe: what it is told, what it does, what follows.

use std::time::Duration;

use crate::protocol::lease::{Drift, deadline};
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;

/// The least of [`Rules::living`].
const LIVING: Duration = Duration::from_secs(1);

/// What one claim goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine::redlock) struct Rules {
    /// How many members there are; an odd number.
    pub(in crate::engine::redlock) members: usize,
    /// How long a lease lasts.
    pub(in crate::engine::redlock) ttl: Duration,
    /// How much the rates of clocks may differ.
    pub(in crate::engine::redlock) drift: Drift,
    /// How long a member's answer to a claim is waited for.
    pub(in crate::engine::redlock) patience: Duration,
    /// The same for a renewal and a release, for which nobody else waits.
    pub(in crate::engine::redlock) long_patience: Duration,
    /// Waiters are told whose record was given back.
    pub(in crate::engine::redlock) names_giver: bool,
    /// Who is refused stands in the member's queue, and is told there alone.
    pub(in crate::engine::redlock) stands: bool,
}

impl Rules {
    /// How many members are a majority.
    pub(in crate::engine::redlock) fn majority(&self) -> usize {
        self.members / 2 + 1
    }

    /// For how long a contender that does not ask is waited for: a living one asks every 250 ms,
    /// and may spend its patience on a member that is silent. It is patient for a hundredth of its
    /// own lease, unless its URL says otherwise.
    pub(super) fn living(&self, other: Other) -> Duration {
        LIVING.max(self.patience.max(other.ttl / 100).saturating_mul(2))
    }

    /// Whether enough of a lease from `since` is left for its holder to begin with.
    pub(super) fn is_in_time(&self, since: Ticks, now: Ticks) -> bool {
        now.plus(self.ttl / 10) < deadline(since, self.ttl, self.drift)
    }
}

/// A set of members, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::engine::redlock) struct Members(u16);

impl Members {
    pub(in crate::engine::redlock) fn insert(&mut self, member: usize) {
        self.0 |= 1 << member;
    }

    pub(in crate::engine::redlock) fn remove(&mut self, member: usize) {
        self.0 &= !(1 << member);
    }

    pub(in crate::engine::redlock) fn has(self, member: usize) -> bool {
        self.0 & (1 << member) != 0
    }

    pub(in crate::engine::redlock) fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    pub(in crate::engine::redlock) fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

/// What a member is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::engine::redlock) enum Verb {
    /// Write our record, unless another's is there, under our number or a greater one.
    Take,
    /// Extend our record, if it is there, and let it have our number, if that is the greatest. A
    /// hold says that it is one.
    Keep,
    /// Delete our record, unless a later round wrote it, and tell the waiters.
    Give,
    /// The same without a word: another claim has a majority, and no waiter can gain from it, or
    /// contenders split the votes, and words name nobody, so that each would wake all. Where there
    /// are queues it stands there again.
    Undo,
    /// The same with a word for one claim alone: the first of those that contend. It keeps what it
    /// has, and nobody else gains from what is given back.
    Cede { to: Rank },
}

impl Verb {
    /// Whether it takes something back, and asks for nothing.
    pub(in crate::engine::redlock) fn gives(self) -> bool {
        matches!(self, Self::Give | Self::Undo | Self::Cede { .. })
    }
}

/// Where a claim stands among contenders: the number of the middle one of the members' clocks
/// when it was first asked for, then its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::engine::redlock) struct Rank {
    pub(in crate::engine::redlock) first: u64,
    pub(in crate::engine::redlock) claim: ClaimId,
}

/// Somebody else whose record a member has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::engine::redlock) struct Other {
    pub(in crate::engine::redlock) rank: Rank,
    /// It is known to be a hold's.
    pub(in crate::engine::redlock) granted: bool,
    /// How long ago it was written or extended.
    pub(in crate::engine::redlock) age: Duration,
    /// How long it lasts still.
    pub(in crate::engine::redlock) rest: Duration,
    /// The lease of its contender; zero where the layout does not say that.
    pub(in crate::engine::redlock) ttl: Duration,
}

/// What came of asking a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::engine::redlock) enum Said {
    /// Our record is there, for a whole lease from now on, under this number, or one that it could
    /// take. A member that has only just started does not count.
    Yes { counts: bool, number: u64 },
    /// Somebody else's record is there.
    Other(Other),
    /// There was none of ours.
    Nothing,
    /// It was deleted.
    Gave,
    /// It was certainly not carried out: not sent, refused, too late.
    Not,
    /// It may have been carried out (R4).
    Unclear,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::engine::redlock) enum Event {
    /// The claim is asked for; the number is above all that are known, and the members' clocks;
    /// `clock` is that of the middle one, whatever is known.
    Ask { now: Ticks, silent: Silent, number: u64, clock: u64 },
    /// Its lease is to be extended.
    Renew { now: Ticks },
    /// It is given back, or not wanted any more.
    Leave { now: Ticks },
    /// A member answered, or never will.
    Said { now: Ticks, member: usize, verb: Verb, round: u64, said: Said },
    /// The time of a round is over.
    Due { now: Ticks, round: u64 },
    /// A member is connected again, perhaps without what it had.
    Back { member: usize },
    /// Others were in the way of a hold where a minority is: it is asked again.
    Complete,
    /// A request of an earlier connection may have been carried out after all.
    Suspect { member: usize },
}

/// The members that have not answered for longer than a round lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::engine::redlock) struct Silent(pub(in crate::engine::redlock) u16);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine::redlock) enum Action {
    /// Ask a member. What was asked for the same claim before goes first.
    Send { member: usize, verb: Verb, round: u64, number: u64 },
    /// Say when this time has come.
    Due { at: Ticks, round: u64 },
    /// The question that was asked last has its answer.
    Done(Outcome),
}

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine::redlock) enum Outcome {
    /// It is ours, for a lease from then on; a majority keeps its number.
    Granted { since: Ticks, number: u64 },
    /// Somebody is in the way, or several contend.
    Refused {
        /// Who has a majority, or the most.
        by: Option<ClaimId>,
        /// What it got stays, because it is first among those that contend.
        keeps: bool,
        /// When the one with the majority has none any more, if nothing more is heard of it.
        rest: Option<Duration>,
    },
    /// Fewer members than a majority answered.
    TooFew,
    /// So do too few, but with those that are late they are a majority. It is to be asked once more
    /// at once, and has what it got until then.
    Late,
    /// It tries, and those that are in its way come later. It is to be asked once more after this
    /// time, and has what it got until then: those that try as well give way meanwhile. Of one that
    /// waits that is not known, and it comes first where it stands in line.
    First { after: Duration },
    /// The answers of a majority came when too little of the lease was left.
    TooSlow,
    /// It is ours still, for a lease from then on.
    Renewed { since: Ticks },
    /// A majority does not have it any more.
    Lost,
    /// It was given back.
    Freed,
    /// It was given back where it was left: a majority had lost it.
    Gone,
    /// It was not ours any more, or never.
    NotOurs,
}
