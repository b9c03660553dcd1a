//! What a case needs of an engine, and how an engine without it must answer.

use lockkeeper::{Description, ErrorKind, Kind, Locks, Require};

use super::subject::Subject;

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
    /// Forced release.
    Force,
    /// `lock_delay`.
    Delay,
    /// A line whose order the engine keeps.
    Fair,
    /// Tokens that only grow.
    Tokens,
    /// Holds that pass inside a process.
    HandOff,
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
            Self::Force => "forced release",
            Self::Delay => "lock_delay",
            Self::Fair => "a fair line",
            Self::Tokens => "fencing tokens",
            Self::HandOff => "local hand-off",
            Self::Leases => "leases of a hold's own",
            Self::Processes => "other processes",
            Self::Wipe => "a way to wipe the store",
            Self::Restart => "a way to restart the server",
            Self::Cut => "a way to cut the store off",
        }
    }

    /// Whether it is there.
    pub(super) fn is_met(self, about: &Description, subject: &Subject) -> bool {
        let can = &about.can;
        match self {
            Self::Shared => can.shared,
            Self::Upgrade => can.upgrade,
            Self::Permits => can.permits,
            Self::Election => can.election,
            Self::Latch => can.latch,
            Self::List => can.list,
            Self::Force => can.force,
            Self::Delay => can.delay,
            Self::Fair => can.fair,
            Self::Tokens => about.fenced,
            Self::HandOff => about.hand_off,
            Self::Leases => about.leases,
            Self::Processes => subject.url.is_some() && subject.helper.is_some(),
            Self::Wipe => subject.wipe.is_some(),
            Self::Restart => subject.restart.is_some(),
            Self::Cut => subject.cut.is_some(),
        }
    }

    /// An engine that lacks something says so: `Unsupported`, or `NotMet` for a promise that it does not make.
    pub(super) async fn assert_refused(self, locks: &Locks, name: &str) {
        let refused = match self {
            Self::Shared => locks.rwlock(name).read().await.err(),
            Self::Upgrade => locks.rwlock(name).upgradable().await.err(),
            Self::Permits => locks.semaphore(name, 2).acquire(1).await.err(),
            Self::Election => locks.election(name).stand("somebody").await.err(),
            Self::Latch => locks.latch(name).set(1).await.err(),
            Self::List => locks.list(name).await.err(),
            Self::Force => locks.force_release(Kind::Lock, name).await.err(),
            Self::Delay => locks.mutex(name).lock().lock_delay(std::time::Duration::from_secs(1)).await.err(),
            Self::Tokens => {
                assert_eq!(locks.require(Require::Fenced).err().map(|e| e.kind()), Some(ErrorKind::NotMet), "it promises no tokens");
                return;
            }
            Self::Fair | Self::HandOff | Self::Leases | Self::Processes | Self::Wipe | Self::Restart | Self::Cut => return,
        };
        let kind = refused.map(|e| e.kind());
        assert_eq!(kind, Some(ErrorKind::Unsupported), "an engine without {} must say so", self.as_str());
    }
}
