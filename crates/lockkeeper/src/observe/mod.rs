//! What happened, for whoever wants to record it: the lab's history, metrics, tests.

#[cfg(feature = "metrics")]
pub(crate) mod metrics;

use std::time::Duration;

use crate::words::claim::{Holder, Mode};
use crate::words::clock::Ticks;
use crate::words::error::Error;
use crate::words::guarantee::Warning;
use crate::words::id::{ClaimId, HoldId};
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};
use crate::words::token::Token;

/// One thing that happened to a claim or a turn of this process.
///
/// `claim` numbers the claims of one name in this process; a turn keeps the number of its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Seen {
    /// A caller asks.
    Asked {
        /// Which claim.
        claim: u64,
        /// Under which id it stands in the engine's line, if it comes to that; a hold that it gets
        /// in any other way has another.
        place: ClaimId,
        /// In which mode.
        mode: Mode,
        /// Whether it leaves at once when it is not free.
        trying: bool,
    },
    /// It was not granted at once.
    Waiting {
        /// Which claim.
        claim: u64,
        /// How many places stand before its own in the engine's line, as far as known; those who
        /// hold stand in none.
        ahead: Option<u32>,
    },
    /// The engine answered that this process stands in its line; told again whenever it says so.
    InLine {
        /// Whose place it is: that of the claim that was asked under this id, or of a conversion.
        place: ClaimId,
        /// Whether the line is first come, first served, between processes as well.
        fair: bool,
        /// How many places stand before it, as far as known.
        ahead: Option<u32>,
        /// Who holds the lock, as far as known.
        holder: Option<Box<Holder>>,
    },
    /// The engine has not answered for a while what was asked about a place of this process, or has
    /// refused it; told ever more seldom for as long as that lasts.
    Unreachable {
        /// Whose place it is.
        place: ClaimId,
        /// It answers, and refuses.
        refused: bool,
        /// For how long.
        silent_for: Duration,
        /// What the last question came to.
        why: String,
    },
    /// The engine answers again, after [`Seen::Unreachable`].
    Reachable {
        /// Whose place it is.
        place: ClaimId,
    },
    /// Beside a claim of this process stands something that its caller should know of, such as a
    /// lock of a layout that does not exclude this one's. Told once an hour for each name and other
    /// library, unless a thousand others were told of in between.
    Warned {
        /// What it is, and what to do.
        warning: Warning,
    },
    /// The wait that was told of is over, however it ended.
    WaitOver {
        /// Which claim.
        claim: u64,
    },
    /// The caller took its turn.
    Got {
        /// Which claim.
        claim: u64,
        /// The hold that its turn belongs to.
        hold: HoldId,
        /// In which mode.
        mode: Mode,
        /// The fencing token.
        token: Option<Token>,
        /// The local deadline.
        deadline: Option<Ticks>,
    },
    /// The claim got nothing: `busy`, `failed`, `timed-out`, `unknown`, `closed`, …
    NotObtained {
        /// Which claim.
        claim: u64,
        /// A stable word.
        why: &'static str,
    },
    /// The caller left before it took a turn.
    Left {
        /// Which claim.
        claim: u64,
    },
    /// An upgrade or downgrade is about to be asked for.
    Converting {
        /// Which claim.
        claim: u64,
        /// The mode that it asks for.
        mode: Mode,
    },
    /// The upgrade or downgrade was refused, or given up.
    NotConverted {
        /// Which claim.
        claim: u64,
    },
    /// An upgrade or downgrade is done.
    Converted {
        /// Which claim.
        claim: u64,
        /// The mode from now on.
        mode: Mode,
        /// The token from now on.
        token: Option<Token>,
    },
    /// A renewal of this hold is about to be sent. A session that its engine renews by itself has
    /// only `Renewed`.
    Renewing {
        /// The hold.
        hold: HoldId,
    },
    /// A renewal was answered.
    Renewed {
        /// The hold.
        hold: HoldId,
        /// Its deadline from now on.
        deadline: Ticks,
    },
    /// A renewal moved nothing: the engine says that the hold is gone, or it did not answer.
    NotRenewed {
        /// The hold.
        hold: HoldId,
        /// Whether the engine said that it is gone; its turns were told so before this.
        gone: bool,
    },
    /// The last guard of a turn is being released.
    Releasing {
        /// Which claim.
        claim: u64,
        /// The hold that its turn belongs to.
        hold: HoldId,
    },
    /// The engine is about to be asked to free a hold that nobody of this process has any more.
    GivingBack {
        /// The hold.
        hold: HoldId,
        /// Whether that was asked before, and not answered.
        again: bool,
    },
    /// The engine answered the release of a hold; a hold that passes to the next turn is not
    /// released.
    Released {
        /// The hold.
        hold: HoldId,
        /// `freed`, `not-ours`, or `unknown`: it was not answered, or found nothing when it was
        /// repeated.
        end: &'static str,
    },
    /// The turn was lost.
    Lost {
        /// Which claim.
        claim: u64,
        /// Why.
        why: Lost,
    },
}

/// Something that is told of everything that happens; see
/// [`Builder::observer`](crate::Builder::observer).
///
/// It is called under the lock of the name concerned: it must be quick and must not call back into
/// this library. A panic in it is caught, and can neither stop a release nor poison anything.
pub trait Observer: Send + Sync + 'static {
    /// One thing happened to this name at this time of the keeper's clock.
    fn seen(&self, at: Ticks, kind: Kind, name: &Name, what: &Seen);

    /// The engine is being opened, and one try to connect came to this. The last one is the reason
    /// for a caller that gives up before opening ends.
    fn trying(&self, _why: &Error) {}
}
