//! What an engine tells without being asked.

use std::sync::Arc;
use std::time::Duration;

use super::{Grant, WatchId};
use crate::words::clock::Ticks;
use crate::words::error::Error;
use crate::words::guarantee::Warning;
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

/// What kernel, server or session tells unasked.
#[derive(Clone, Debug)]
pub enum Event {
    /// A claim that stood in line was granted: direct grant, predecessor gone, kernel lock
    /// returned. Also for conversions.
    Granted {
        /// Which claim.
        claim: ClaimId,
        /// What it got.
        grant: Grant,
    },
    /// A hint: attempt again (pub/sub, NOTIFY, invalidation).
    Wake {
        /// Which claim.
        claim: ClaimId,
    },
    /// A claim that stands in line is to be asked about at this time, by
    /// [`Engine::recheck`](super::Engine::recheck). No answer that comes before puts it off: who
    /// was to hear of something by then may be dead.
    AskAt {
        /// Which claim.
        claim: ClaimId,
        /// When; a time that has passed means at once.
        at: Ticks,
    },
    /// A claim that stood in line cannot be granted any more: the wait failed.
    Failed {
        /// Which claim.
        claim: ClaimId,
        /// Why.
        error: Error,
    },
    /// A hold ended without being released.
    Ended {
        /// One hold, one lease, or everything.
        which: Which,
        /// Why.
        why: Lost,
    },
    /// The session that carries holds was renewed by the engine itself: it lasts `ttl` from
    /// `since`.
    Renewed {
        /// Which session.
        lease: LeaseId,
        /// How long.
        ttl: Duration,
        /// From when.
        since: Ticks,
    },
    /// The link to the server went down or came up; up means: re-check every claim and hold in one
    /// message.
    Link {
        /// Up or down.
        up: bool,
    },
    /// While [`Engine::open`](super::Engine::open) goes on: what the last try to connect came to.
    /// Whoever gives up before it ends is told that.
    Trying {
        /// Why there is no connection yet.
        why: Error,
    },
    /// What was asked for this claim was kept from being done, and is asked for again. Whoever
    /// gives up before there is an answer is told why.
    Hindered {
        /// The kind of the claim.
        kind: Kind,
        /// Its name.
        name: Name,
        /// Which claim.
        claim: ClaimId,
        /// When it was asked for.
        since: Ticks,
        /// What is in the way.
        why: Error,
    },
    /// It is not certain any more how these claims stand: their part of the store was out of reach,
    /// or another server keeps it now. Holds are renewed, places are asked about.
    Doubtful {
        /// Which claims, held or in line.
        claims: Vec<ClaimId>,
    },
    /// Somebody asks the holder politely to let go.
    Asked {
        /// Which hold.
        hold: HoldId,
    },
    /// Beside a claim of ours stands something that its caller should know of, such as a lock of a
    /// layout that does not exclude ours.
    Warned {
        /// The kind of the claim.
        kind: Kind,
        /// Its name.
        name: Name,
        /// What it is, and what to do.
        warning: Warning,
    },
    /// What a watch looks at changed.
    Changed {
        /// Which watch.
        watch: WatchId,
    },
}

/// Takes events, from any thread, and acts on them before it returns.
#[derive(Clone)]
pub struct EventSink(pub(crate) Arc<dyn Fn(Event) + Send + Sync>);

impl EventSink {
    /// A sink that hands every event to `take`; for tests of engines.
    pub fn new(take: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    /// Delivers one event. Never call it with a lock held, nor from inside an engine call.
    pub fn send(&self, event: Event) {
        (self.0)(event);
    }
}

/// What an [`Event::Ended`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// One hold.
    Hold(HoldId),
    /// One lease and all its holds.
    Lease(LeaseId),
    /// Everything this engine gave us.
    All,
}
