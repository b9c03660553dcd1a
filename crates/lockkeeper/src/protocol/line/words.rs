//! What a line is told, and what it decides.

use std::time::Duration;

use crate::engine::Number;
use crate::words::claim::{Mode, Through};
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, HoldId};
use crate::words::lost::Lost;
use crate::words::token::Token;

/// The bounds of one line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// How many turns one hold may have; 0 or 1 = no hand-off.
    pub turns_max: u8,
    /// For how long after the grant a hold may pass.
    pub pass_for: Duration,
    /// How long an offer waits to be taken.
    pub offer_for: Duration,
    /// After how long a claim that waits for a guard of its own process is worth a warning.
    pub warn_after: Duration,
    /// How long to wait before an unknown answer is asked again.
    pub ask_again_after: Duration,
    /// How often an unknown attempt is asked again before its caller is told.
    pub ask_again_max: u8,
    /// How many claims may wait.
    pub waiting_max: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            turns_max: 64,
            pass_for: Duration::from_millis(50),
            offer_for: Duration::from_secs(1),
            warn_after: Duration::from_secs(5),
            ask_again_after: Duration::from_millis(250),
            ask_again_max: 8,
            waiting_max: 100_000,
        }
    }
}

/// A local claim's number: rises with every claim of this line, never reused.
pub type Seq = u64;

/// What one local claim asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    pub seq: Seq,
    /// The id under which the process would stand for it.
    pub id: ClaimId,
    pub shape: Shape,
    /// Leave nothing behind when it is not free.
    pub try_only: bool,
    /// Asked together with other names in one message: the caller sends it and brings the answer.
    pub sent_elsewhere: bool,
    pub give_up: Option<Ticks>,
    /// Asks again while the engine cannot be reached, instead of failing.
    pub patient: bool,
}

/// What must agree for a hold or a place to serve another claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub mode: Mode,
    pub ttl: Duration,
    pub renew: bool,
    /// How much of the lease its holder relies on; `None` for the default.
    pub margin: Option<Duration>,
    pub lock_delay: Duration,
    /// Carries a value of its own (an election's candidate): never served by another's place or
    /// hold.
    pub own_value: bool,
    /// Through which primitive: other libraries write an rw-lock differently from a mutex.
    pub through: Through,
}

impl Shape {
    /// May a hold or place of this shape serve a claim of that shape?
    pub(super) fn serves(&self, other: &Self) -> bool {
        self == other && !self.own_value
    }

    /// Is whatever keeps the engine from granting this shape in the way of that shape, too? Readers
    /// are in a writer's way and not in each other's.
    pub(super) fn busy_means_busy_for(&self, other: &Self) -> bool {
        use Mode::{Exclusive, Permits, Shared, Upgradable};
        let in_its_way = match (self.mode, other.mode) {
            (Shared, Shared | Upgradable | Exclusive)
            | (Upgradable, Upgradable | Exclusive)
            | (Exclusive, Exclusive) => true,
            (Permits { count, limit }, Permits { count: more, limit: of }) => {
                more >= count && of == limit
            }
            _ => false,
        };
        in_its_way && self.through == other.through
    }
}

/// The engine's answers as far as the line cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    Granted(Number),
    /// It stands in line, and asks again at this time, unless something is heard before.
    InLine {
        ask_at: Option<Ticks>,
    },
    /// Somebody has it or stands in line for it; nothing of ours is left there.
    Busy,
    /// Certainly failed: nothing of ours is left there.
    Failed,
    /// The same, because the engine could not be reached: asking again later can help.
    Unreachable,
    Unknown,
    /// Unknown, and the engine answered something that asking again will not change.
    Nonsense,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Ask(Ask),
    /// The future was dropped; `fresh` as in `TurnOver`, for an offer that it leaves untaken.
    Cancel {
        seq: Seq,
        fresh: bool,
    },
    /// The future took its offer.
    Take(Seq),
    /// A turn ended. `fresh`: the last renewal was answered and more than half of the lease is
    /// left.
    TurnOver {
        seq: Seq,
        fresh: bool,
    },
    /// The turn holds exclusively and wants another mode, or back; `id` is the conversion's own.
    Convert {
        seq: Seq,
        id: ClaimId,
        to: Mode,
        give_up: Option<Ticks>,
    },
    /// The conversion's future was dropped.
    CancelConvert {
        seq: Seq,
    },
    /// An attempt or conversion was answered, at once or by a push.
    Answered {
        claim: ClaimId,
        answer: Answered,
    },
    /// A hint that the claim may be granted now.
    Wake {
        claim: ClaimId,
    },
    /// A claim that stands in line is to ask again at this time, whatever an answer says that comes
    /// before.
    AskAt {
        claim: ClaimId,
        at: Ticks,
    },
    /// The question of [`Action::Recheck`] was not answered.
    Unanswered {
        claim: ClaimId,
    },
    /// A withdrawal was answered; `known` is false when it must be repeated.
    Withdrawn {
        claim: ClaimId,
        known: bool,
    },
    /// A statement of the hold was given to its holder, and nobody tells when it is used last.
    GivenOut {
        hold: HoldId,
    },
    /// A hold ended by itself; `ours`: we decided that, and the engine is to be told.
    Ended {
        hold: HoldId,
        why: Lost,
        ours: bool,
    },
    Timer,
    Close,
}

/// Why a claim gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Somebody of this process holds it or stands before it.
    BusyHere,
    /// What the engine answered: busy or failed.
    Answer,
    /// Asked again and again, and still not known.
    Unknown,
    /// The claim's time passed while the engine did not answer: a question was given up.
    Unanswered,
    /// The claim's time passed before the first question about what it waits for was answered or
    /// given up.
    Unheard,
    TimedOut,
    /// Too many claims wait.
    TooMany,
    /// The hold that was to be converted is lost.
    Lost(Lost),
    Closed,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the engine; `ask.id` is the claim.
    Attempt(Ask),
    /// Ask the engine how the claim stands.
    Recheck(ClaimId),
    Withdraw(ClaimId),
    /// Give the hold back; `again` stands in line in the same message. `over`: nobody here has it
    /// any more, or ever had it, so that the engine may rightly have forgotten it.
    Release {
        hold: HoldId,
        again: Option<Ask>,
        over: bool,
    },
    Convert {
        hold: HoldId,
        id: ClaimId,
        to: Mode,
        give_up: Option<Ticks>,
        shape: Shape,
    },
    /// This claim has a turn now.
    Offer {
        seq: Seq,
        hold: HoldId,
        token: Option<Token>,
    },
    /// The offer of this hold lapsed and the claim is forgotten; its future must ask anew when it
    /// is polled. To be answered with the end of its turn.
    Parked {
        seq: Seq,
        hold: HoldId,
    },
    /// The conversion is done.
    Converted {
        seq: Seq,
        mode: Mode,
        token: Option<Token>,
    },
    Refuse {
        seq: Seq,
        why: Refusal,
    },
    /// The conversion gets nothing; the turn stays as it was.
    RefuseConvert {
        seq: Seq,
        why: Refusal,
    },
    Lost {
        seq: Seq,
        why: Lost,
    },
    /// The claim waits for a guard of this process since `warn_after`.
    Warn {
        seq: Seq,
    },
}
