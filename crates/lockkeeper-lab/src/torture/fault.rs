//! The words for what a nemesis does, and what each of it may lead to.

use std::time::Duration;

use crate::check::Class;

/// Whom a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hits {
    /// One client process.
    Client,
    /// The link between one client and its servers.
    Link,
    /// The server.
    Server,
    /// Everybody.
    Machine,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) hits: Hits,
    /// What its documented consequences are, as far as it explains them (`excuse`).
    pub(crate) excuses: &'static [Class],
    /// What it is, for people.
    pub(crate) what: &'static str,
}

pub(crate) const STOP: &str = crate::check::STANDS_STILL;
pub(crate) const KILL: &str = "kill-client";
pub(crate) const STARVE: &str = "starve-cpu";
pub(crate) const CROWD: &str = crate::judge::starvation::CROWD;
pub(crate) const SPOIL_COUNTER: &str = "spoil-counter";
pub(crate) const EXPIRE: &str = "expire-session";
pub(crate) const MEMBERS_FAST: &str = "members-fast";

/// Faults that are not drawn unless they are asked for by name: they are there for what only some
/// locks do, or excuse what nothing else excuses of an engine.
pub(crate) const ON_REQUEST: [&str; 4] = [CROWD, SPOIL_COUNTER, EXPIRE, MEMBERS_FAST];

impl Fault {
    /// Whether it makes clocks wrong. Two servers that grant repeat tokens, too; only they lead to
    /// a lost update where tokens are checked.
    pub(crate) fn sets_back(&self) -> bool {
        let leads_to = |class| self.excuses.contains(&class);
        leads_to(Class::TokenRepeated) && !leads_to(Class::LostUpdateFenced)
    }

    /// Whether those whom it hits are away from their servers, or it from them, for as long as it
    /// lasts.
    pub(crate) fn keeps_away(&self) -> bool {
        self.hits == Hits::Link
            || self.name == STOP
            || self.name.starts_with("stop-")
            || self.name.starts_with("cut-")
    }

    /// Whether who waits gets its lock later, for a time after it.
    pub(crate) fn delays(&self) -> bool {
        self.excuses.contains(&Class::SlowRecovery)
    }

    /// Whether it makes the engine forget its locks, whatever clocks say.
    pub(crate) fn forgets(&self) -> bool {
        self.excuses.contains(&Class::Overlap) && !self.sets_back()
    }
}

/// What can be done everywhere, without control over a server.
pub(crate) const ANYWHERE: [Fault; 4] = [
    Fault {
        name: STOP,
        hits: Hits::Client,
        excuses: &[],
        what: "a client is stopped as it stands, and goes on later",
    },
    Fault {
        name: KILL,
        hits: Hits::Client,
        excuses: &[],
        what: "a client is killed, and another started in its place",
    },
    // What it takes of the promises of time is measured, and forgiven, where these are judged.
    Fault { name: STARVE, hits: Hits::Machine, excuses: &[], what: "two busy threads a processor" },
    Fault {
        name: CROWD,
        hits: Hits::Machine,
        excuses: &[Class::SlowRecovery],
        what: "eight more clients stand in line",
    },
];

/// A server that forgot: whoever held before goes on believing it, until its next renewal at the
/// latest, passes it on inside its process with tokens that are smaller than the second holder's,
/// and writes beside that.
pub(crate) const FORGOTTEN: &[Class] = &[
    Class::Overlap,
    Class::ReadersWithWriter,
    Class::PermitsExceeded,
    Class::HoldVanished,
    Class::ForeignRelease,
    Class::TokenOrder,
    Class::StaleWriteUnfenced,
    Class::LostUpdate,
];

/// The longest pause of a client that lost its connection before it tries again.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A server that was away: clients that lost their connection try again after pauses that double,
/// up to [`PAUSE_MAX`].
pub(crate) const AWAY: &[Class] = &[Class::SlowRecovery];

/// One that was away, and forgot.
pub(crate) const AWAY_AND_FORGOTTEN: &[Class] = &[
    Class::SlowRecovery,
    Class::Overlap,
    Class::ReadersWithWriter,
    Class::PermitsExceeded,
    Class::HoldVanished,
    Class::ForeignRelease,
    Class::TokenOrder,
    Class::StaleWriteUnfenced,
    Class::LostUpdate,
];

/// How far a clock steps: over every lease of a torture.
pub(crate) const STEP: Duration = Duration::from_secs(2);

/// A clock that steps makes leases shorter or longer; and where data is lost as well, numbers that
/// follow the clock go back with it, until it is past where they were.
pub(crate) const SET_BACK: &[Class] = &[
    Class::Overlap,
    Class::ReadersWithWriter,
    Class::PermitsExceeded,
    Class::HoldVanished,
    Class::ForeignRelease,
    Class::SlowRecovery,
    Class::TokenOrder,
    Class::TokenRepeated,
    Class::StaleWriteUnfenced,
    Class::LostUpdate,
];

/// Writes that come late, where nobody checks tokens: what leases cannot prevent and tokens can.
pub(crate) const LATE: [Class; 3] =
    [Class::LateEffect, Class::StaleWriteUnfenced, Class::LostUpdate];

/// Two servers that grant: what one that was promoted while the other runs may lead to, the same
/// token from both, and an upgrade, whose token is newer than a write that its holder has not read.
pub(crate) const BOTH_GRANT: &[Class] = &[
    Class::SlowRecovery,
    Class::Overlap,
    Class::ReadersWithWriter,
    Class::PermitsExceeded,
    Class::HoldVanished,
    Class::ForeignRelease,
    Class::TokenOrder,
    Class::TokenRepeated,
    Class::StaleWriteUnfenced,
    Class::LostUpdate,
    Class::LostUpdateFenced,
];
