//! The engine's own words: claims sent straight to an engine, past the line of a name.

use std::sync::Arc;
use std::time::Duration;

use super::trial::HANGS;
use lockkeeper::engine::{Answer, Attempt, ClaimId, End, Engine, Grant, Line, Released};
use lockkeeper::test_util::{answer, engine};
use lockkeeper::{Claim, Identity, Kind, Locks, Mode, Name, Through};

/// An engine, and the keeper that polls its answers.
pub(super) struct Asked {
    pub(super) locks: Locks,
    pub(super) engine: Arc<dyn Engine>,
}

impl Asked {
    pub(super) fn of(locks: &Locks) -> Self {
        Self { locks: locks.clone(), engine: engine(locks) }
    }

    /// A claim on a name that nobody else of the test writes.
    pub(super) fn claim(name: &str, mode: Mode) -> Claim {
        Claim {
            id: ClaimId::fresh(),
            kind: if mode.permits().is_some() { Kind::Semaphore } else { Kind::Lock },
            name: Name::new(name).expect("a good name"),
            mode,
            through: Through::of(mode),
            ttl: HANGS / 2,
            renew: true,
            margin: None,
            lock_delay: Duration::ZERO,
            give_up: None,
            who: Arc::new(Identity::of_this_process()),
            value: None,
        }
    }

    pub(super) async fn answer<T: Send + 'static>(&self, given: Answer<T>) -> T {
        answer(&self.locks, given).await.expect("the client is open")
    }

    pub(super) async fn attempt(&self, claim: &Claim, line: Line) -> Attempt {
        self.answer(self.engine.attempt(claim, line)).await
    }

    /// The grant of a lock that is free. An engine without a line may stand back after a release,
    /// beside nobody, and is asked again; so is one that cannot say yet.
    pub(super) async fn granted(&self, claim: &Claim) -> Grant {
        let began = std::time::Instant::now();
        loop {
            match self.attempt(claim, Line::Join).await {
                Attempt::Granted(grant) => return grant,
                Attempt::InLine(place) if place.holder.is_none() && began.elapsed() < HANGS => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Attempt::Unknown(_) if began.elapsed() < HANGS => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                other => panic!("a free lock is granted, not {other:?}"),
            }
        }
    }

    pub(super) async fn release(&self, hold: ClaimId) -> End {
        let Released { ends, again } = self.answer(self.engine.release(&[hold], None)).await;
        assert!(again.is_none(), "nothing was to stand in line again");
        assert_eq!(ends.len(), 1, "one end for each hold");
        ends.into_iter().next().expect("counted")
    }

    pub(super) async fn withdraw(&self, claim: ClaimId) -> End {
        self.answer(self.engine.withdraw(claim)).await
    }
}
