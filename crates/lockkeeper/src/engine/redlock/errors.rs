//! What is told when the members do not give a majority.

use std::time::Duration;

use super::Quorum;
use super::options::RedlockOptions;
use super::wire::Member;
use crate::words::claim::Mode;
use crate::words::clock::Ticks;
use crate::words::duration::spoken;
use crate::words::error::{Error, ErrorKind};

/// A claim that no quorum of these members is made for.
pub(super) fn unsupported(what: &str) -> Error {
    let text = format!(
        "a Redlock quorum has only exclusive and shared locks: {what} needs one server (redis://), \
         or another engine"
    );
    Error::new(ErrorKind::Unsupported, text)
}

/// A mode that a layout of quorums has not.
pub(super) fn no_mode(mode: Mode, plain: Option<&str>) -> Error {
    if let Some(layout) = plain.filter(|_| mode == Mode::Shared) {
        let text =
            format!("layout={layout} of a quorum has only exclusive locks: use layout=native");
        return Error::new(ErrorKind::Unsupported, text);
    }
    unsupported(&format!("{} mode", mode.as_str()))
}

/// A lease that is longer than what members wait after their start.
pub(super) fn too_long(ttl: Duration, options: &RedlockOptions) -> Error {
    let text = format!(
        "a lease of {ttl:?} is longer than max_ttl={:?}, for which a member that restarts waits: \
         ask for a shorter one, or write the same greater max_ttl into the URL of every client",
        options.max_ttl
    );
    Error::new(ErrorKind::InvalidArgument, text)
}

/// A member goes by another `max_ttl` than the URL says.
pub(super) fn other_max_ttl(member: &Member, theirs: Duration, ours: Duration, key: &str) -> Error {
    let text = format!(
        "the member {} goes by max_ttl={}, and the URL says {}: write the member's into the URL, \
         or end all clients and run HDEL {key} max_ttl on every member",
        member.options.address,
        spoken(theirs),
        spoken(ours),
    );
    Error::new(ErrorKind::InvalidArgument, text)
}

/// Fewer members than a majority gave an answer that counts; `errors` has what each said instead.
pub(super) fn too_few(options: &RedlockOptions, errors: &[(usize, Error)]) -> Error {
    let (members, majority) = (options.members.len(), options.majority());
    // One that refuses us will refuse again; unreachable ones may come back.
    let refusing = || errors.iter().map(|(_, error)| error).filter(|error| !is_away(error));
    let decides =
        refusing().next().filter(|_| members.saturating_sub(refusing().count()) < majority);
    let each: Vec<&str> = errors.iter().map(|(_, error)| error.message()).collect();
    let text = format!(
        "{} of {members} members gave an answer that counts, and a majority is {majority}: {}",
        members - errors.len().min(members),
        each.join("; ")
    );
    match decides {
        Some(first) => Error::new(first.kind(), text).temporary(first.is_temporary()),
        None => Error::new(ErrorKind::Unreachable, text),
    }
}

fn is_away(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Unknown | ErrorKind::TimedOut)
}

/// The answers of a majority came too late to be of use.
pub(super) fn too_slow(ttl: Duration) -> Error {
    let text = format!(
        "a majority said yes, but so late that too little of the lease of {ttl:?} was left: ask \
         for a longer one"
    );
    Error::new(ErrorKind::Unknown, text)
}

impl Quorum {
    /// Why a member gave no answer that counts, where it said nothing itself.
    pub(super) fn silence(&self, member: usize, now: Ticks, waited: Duration) -> Option<Error> {
        let member = self.members.get(member)?;
        let at = &member.options.address;
        if let Some(text) = self.not_counting(member, now) {
            return Some(Error::new(ErrorKind::Unreachable, text));
        }
        let text = format!("Redis at {at} did not answer within {waited:?}");
        Some(Error::new(ErrorKind::Unreachable, text))
    }

    /// Why a member that can be reached does not count yet, and until when.
    pub(super) fn not_counting(&self, member: &Member, now: Ticks) -> Option<String> {
        let at = &member.options.address;
        let facts = member.link.facts()?;
        if member.is_twin() {
            return Some(format!("Redis at {at} is a member already, under another address"));
        }
        if let Some(theirs) = member.other_max_ttl() {
            let error = other_max_ttl(member, theirs, self.options.max_ttl, &self.keys.member());
            return Some(error.message().to_owned());
        }
        let Some(counts_at) = member.counts_at(self.options.max_ttl) else {
            return Some(format!(
                "Redis at {at} does not say for how long it has been up: allow +info"
            ));
        };
        let clean_at = member.clean_at().filter(|at| *at > now && !self.is_new());
        if let Some(clean_at) = clean_at.filter(|_| counts_at <= now && member.is_stranger()) {
            return Some(format!(
                "Redis at {at} counts in {}, max_ttl={} after a client first met it: it has \
                 started or lost its data since it was admitted, and may have lost leases",
                spoken(clean_at.since(now)),
                spoken(self.options.max_ttl),
            ));
        }
        if counts_at <= now {
            return member.is_stranger().then(|| match self.can_admit(member, now) {
                false => format!(
                    "Redis at {at} has started, or lost its data, and none of the members that \
                     answer has been admitted since: it counts once a majority of them can"
                ),
                true => format!(
                    "Redis at {at} has started, or lost its data, and counts once a majority of \
                     the members answers, which tells above which number its tokens begin"
                ),
            });
        }
        Some(format!(
            "Redis at {at} counts in {}, when it has been up for max_ttl={} (it said {}): it may \
             have forgotten leases when it started",
            spoken(counts_at.since(now)),
            spoken(self.options.max_ttl),
            spoken(facts.uptime.unwrap_or_default()),
        ))
    }
}
