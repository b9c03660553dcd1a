//! What a case needs of an engine, and how an engine without it must answer.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::observe::{Observer, Seen};
use lockkeeper::{
    Ability, Acquire, ClaimId, Description, ErrorKind, Guard, Kind, Locks, Name, Require, Ticks,
};

use super::grip::Way;
use super::subject::Subject;
use super::trial::{Trial, within};

/// What a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// Shared mode.
    Shared,
    /// Upgradable mode and its conversions.
    Upgrade,
    /// Semaphores.
    Permits,
    /// Elections.
    Election,
    /// Latches.
    Latch,
    /// Listing of names.
    List,
    /// The state of one lock, which an engine without a list may not show either.
    Status,
    /// Forced release.
    Force,
    /// `lock_delay`.
    Delay,
    /// Stored limits of semaphores, and their change.
    Resize,
    /// A line for locks whose order the engine keeps.
    Fair,
    /// The same for semaphores.
    FairPermits,
    /// Turns for writers while readers keep coming.
    WriterTurns,
    /// Tokens that only grow.
    Tokens,
    /// Holds that pass inside a process.
    HandOff,
    /// Statements for transactions of the caller's own.
    Statements,
    /// Leases of a hold's own.
    Leases,
    /// Other processes, and a program that takes locks there.
    Processes,
    /// A way to delete everything.
    Wipe,
    /// A way to restart the server.
    Restart,
    /// A way to put the store out of reach.
    Cut,
}

impl Need {
    /// The word for it in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared mode",
            Self::Upgrade => "upgrade and downgrade",
            Self::Permits => "semaphores",
            Self::Election => "elections",
            Self::Latch => "latches",
            Self::List => "listing",
            Self::Status => "status",
            Self::Force => "forced release",
            Self::Delay => "lock_delay",
            Self::Resize => "stored limits",
            Self::Fair => "a fair line",
            Self::FairPermits => "a fair line for permits",
            Self::WriterTurns => "turns for writers",
            Self::Tokens => "fencing tokens",
            Self::HandOff => "local hand-off",
            Self::Statements => "statements for transactions",
            Self::Leases => "leases of a hold's own",
            Self::Processes => "other processes",
            Self::Wipe => "a way to wipe the store",
            Self::Restart => "a way to restart the server",
            Self::Cut => "a way to cut the store off",
        }
    }

    /// Whether it is there.
    pub(super) fn is_met(self, about: &Description, subject: &Subject, shows: bool) -> bool {
        let can = &about.can;
        match self {
            Self::Shared => can.has(Ability::Shared),
            Self::Upgrade => can.has(Ability::Upgrade),
            Self::Permits => can.has(Ability::Permits),
            Self::Election => can.has(Ability::Election),
            Self::Latch => can.has(Ability::Latch),
            Self::List => can.has(Ability::List),
            Self::Status => shows,
            Self::Force => can.has(Ability::Force),
            Self::Delay => can.has(Ability::Delay),
            Self::Resize => can.has(Ability::Resize),
            Self::Fair => can.has(Ability::Fair),
            Self::FairPermits => can.has(Ability::FairPermits),
            Self::WriterTurns => can.has(Ability::WriterTurns),
            Self::Tokens => about.fenced,
            Self::HandOff => about.hand_off,
            Self::Statements => can.has(Ability::Statements),
            Self::Leases => about.expiry.is_per_hold(),
            Self::Processes => subject.url.is_some() && subject.helper.is_some(),
            Self::Wipe => subject.wipe.is_some(),
            Self::Restart => subject.restart.is_some(),
            Self::Cut => subject.cut.is_some(),
        }
    }

    /// An engine that lacks something says so: `Unsupported`, or `NotMet` for a promise that it
    /// does not make; and it shows nothing of the kind.
    pub(super) async fn assert_refused(self, trial: &Trial, locks: &Locks) {
        let name = &trial.name("refused");
        let refused = match self {
            Self::Shared => locks.rwlock(name).read().await.err(),
            Self::Upgrade => locks.rwlock(name).upgradable().await.err(),
            Self::Permits => locks.semaphore(name, 2).acquire(1).await.err(),
            Self::Resize => locks.semaphore(name, 2).resize(3).await.err(),
            Self::Election => locks.election(name).stand("somebody").await.err(),
            Self::Latch => locks.latch(name).set(1).await.err(),
            Self::List => locks.list(name).await.err(),
            Self::Status => locks.status(Kind::Lock, name).await.err(),
            Self::Force => locks.force_release(Kind::Lock, name).await.err(),
            Self::Delay => locks.mutex(name).lock().lock_delay(Duration::from_secs(1)).await.err(),
            Self::Statements => {
                let guard = locks.mutex(name).lock().await.expect("it is free");
                guard.statement().await.err()
            }
            Self::Tokens => {
                assert_eq!(
                    locks.require(Require::Fenced).err().map(|e| e.kind()),
                    Some(ErrorKind::NotMet),
                    "it promises no tokens"
                );
                return;
            }
            Self::Fair => return no_line(trial, locks, Kind::Lock, name).await,
            Self::FairPermits => return no_line(trial, locks, Kind::Semaphore, name).await,
            Self::WriterTurns => return writers_may_wait(trial, locks, name).await,
            Self::HandOff => return no_hand_off(trial, locks, name).await,
            Self::Leases => {
                let guard = locks.mutex(name).lock().await.expect("it is free");
                if let Some(entry) = trial.shown(locks, Kind::Lock, name).await {
                    let shown = entry.holders.first().map(|holder| holder.expires_in());
                    assert_eq!(shown, Some(None), "no lease is shown");
                }
                drop(guard);
                return;
            }
            // What the subject brings, and not the engine.
            Self::Processes | Self::Wipe | Self::Restart | Self::Cut => return,
        };
        let kind = refused.map(|e| e.kind());
        assert_eq!(
            kind,
            Some(ErrorKind::Unsupported),
            "an engine without {} must say so",
            self.as_str()
        );
    }
}

/// Who waits gets its turn, but no order is claimed: a place, where one is shown, only says how
/// many came before.
async fn no_line(trial: &Trial, locks: &Locks, kind: Kind, name: &str) {
    let way = if kind == Kind::Semaphore { Way::OnlyPermit } else { Way::Mutex };
    if kind == Kind::Semaphore && !trial.about.can.has(Ability::Permits) {
        return;
    }
    let held = way.lock(trial, locks, name).await.expect("it is free");
    let other = trial.open().await;
    let waiting = tokio::spawn(way.lock(trial, &other, name));
    trial.until_waiting(locks, kind, name, 1).await;
    if let Some(entry) = trial.shown(locks, kind, name).await {
        assert!(
            entry.waiters.iter().all(|waiter| waiter.ahead.is_none_or(|ahead| ahead == 0)),
            "nobody else came: {entry:?}"
        );
    }
    assert!(!waiting.is_finished());
    drop(held);
    let next = within(Duration::from_secs(10), "who waits gets its turn", waiting)
        .await
        .expect("no panic")
        .expect("it is free");
    drop(next);
    drop(other.close().await);
}

/// A reader comes in while a writer waits, and the writer gets in once nobody reads.
async fn writers_may_wait(trial: &Trial, locks: &Locks, name: &str) {
    if !trial.about.can.has(Ability::Shared) {
        return;
    }
    let (writer, reader) = (trial.open().await, trial.open().await);
    let first = locks.rwlock(name).read().await.expect("it is free");
    let waiting = tokio::spawn(writer.rwlock(name).write().into_future());
    trial.until_waiting(locks, Kind::Lock, name, 1).await;
    let second = reader
        .rwlock(name)
        .try_read()
        .await
        .expect("it can be tried")
        .expect("readers come in before a writer that waits");
    drop((first, second));
    drop(
        within(Duration::from_secs(10), "nobody reads", waiting)
            .await
            .expect("no panic")
            .expect("it is free"),
    );
    drop((writer.close().await, reader.close().await));
}

/// Every turn is a hold of its own.
async fn no_hand_off(trial: &Trial, locks: &Locks, name: &str) {
    #[derive(Default)]
    struct Holds(Mutex<BTreeSet<ClaimId>>);
    impl Observer for Holds {
        fn seen(&self, _: Ticks, _: Kind, _: &Name, what: &Seen) {
            if let Seen::Got { hold, .. } = what {
                self.0.lock().expect("nobody panics").insert(*hold);
            }
        }
    }
    let holds = Arc::new(Holds::default());
    let queued = trial.open_with(|builder| builder.observer(holds.clone())).await;
    let held = locks.mutex(name).lock().await.expect("it is free");
    let turn = |claim: Acquire<Guard>| async move {
        drop(claim.await.expect("every claim is granted at last"))
    };
    let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(turn(queued.mutex(name).lock()))).collect();
    drop(held);
    for task in tasks {
        within(Duration::from_secs(10), "each gets its turn", task).await.expect("no panic");
    }
    assert_eq!(holds.0.lock().expect("nobody panics").len(), 3, "three turns, three holds");
    drop(queued.close().await);
}
