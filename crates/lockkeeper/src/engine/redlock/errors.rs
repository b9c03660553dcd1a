//! What is told when the members do not give a majority.

use std::time::Duration;

use super::Quorum;
use super::options::RedlockOptions;
use crate::engine::redis::client::pipe::Broken;
use crate::engine::redis::errors::{broken, cluster};
use crate::engine::redis::options::{Address, RedisOptions};
use crate::engine::redis::refusal::{decides, each_once, of_whole};
use crate::open::table::scheme_hint;
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

/// A claim that is asked for while what is left of it is given back.
pub(super) fn leaving() -> Error {
    Error::new(ErrorKind::Unknown, "what is left of an earlier attempt is being given back")
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

/// Nobody failed to answer: the answers were to a question that is not the last one any more, as
/// where the claim was asked for again, or given back.
pub(super) fn overtaken() -> Error {
    let text =
        "it was asked for again, or given back, before a majority of the members had answered";
    Error::new(ErrorKind::Unreachable, text)
}

/// Fewer members than a majority gave an answer that counts; `errors` has what each said instead.
pub(super) fn too_few(options: &RedlockOptions, errors: &[(usize, Error)]) -> Error {
    let (members, majority) = (options.members.len(), options.majority());
    let said = said(options, errors);
    let counted = members.saturating_sub(errors.len());
    let text = format!(
        "{counted} of {members} members gave an answer that counts, and a majority is {majority}: \
         {}{}",
        each_once(&said),
        another_scheme(options, errors)
    );
    // One that refuses us will refuse again; unreachable ones may come back.
    let error = of_whole(decides(members, majority, &said), text);
    let missing = majority.saturating_sub(counted);
    let mut known: Vec<Duration> = said.iter().filter_map(|(_, e)| e.retry_after()).collect();
    known.sort_unstable();
    match missing.checked_sub(1).and_then(|last| known.get(last)) {
        Some(time) => error.with_retry_after(*time),
        None => error,
    }
}

/// Whether so many refuse that the others are no majority of all.
pub(super) fn are_too_few_left(options: &RedlockOptions, errors: &[(usize, Error)]) -> bool {
    let said = said(options, errors);
    decides(options.members.len(), options.majority(), &said).is_some()
}

fn said(options: &RedlockOptions, errors: &[(usize, Error)]) -> Vec<(Address, Error)> {
    let of = |(at, error): &(usize, Error)| {
        let member = options.members.get(*at)?;
        Some((member.address.clone(), of_member(member, error)))
    };
    errors.iter().filter_map(of).collect()
}

/// Whether a member said that it is a node of a cluster.
fn is_node(member: &RedisOptions, error: &Error) -> bool {
    error.message() == cluster(&member.address).message()
}

/// The URL to use where a majority is nodes of a cluster. Of which one they do not say, and each
/// may be of another.
fn another_scheme(options: &RedlockOptions, errors: &[(usize, Error)]) -> String {
    let node = |(at, error): &(usize, Error)| {
        options.members.get(*at).filter(|member| is_node(member, error)).map(|_| *at)
    };
    let mut nodes: Vec<usize> = errors.iter().filter_map(node).collect();
    if nodes.len() < options.majority() {
        return String::new();
    }
    // As the URL has them, whoever answered first.
    nodes.sort_unstable();
    let at = nodes.iter().filter_map(|at| options.members.get(*at));
    let at: Vec<String> = at.map(|member| member.address.to_string()).collect();
    let scheme = "redis+cluster";
    let hint = scheme_hint(scheme, &format!("{scheme}://{}", at.join(",")));
    format!("; if these are nodes of one cluster, {hint}")
}

/// What one server said, as it is to be read where that server is a member: what helps with a
/// server alone may be in the URL already.
pub(super) fn of_member(member: &RedisOptions, error: &Error) -> Error {
    let (at, text) = (&member.address, error.message());
    let text = if is_node(member, error) {
        format!("the server at {at} is a node of a Redis Cluster, and members are independent")
    } else if let Some((replica, _)) = text.split_once(": give the URL of ")
        && replica.contains("is a read-only replica")
    {
        format!(
            "{replica}: members replicate nothing, so name independent servers, or the service's \
             Sentinels (redis+sentinel://a,b,c/SERVICE)"
        )
    } else if member.tls.is_some() && text == not_connected(member).message() {
        format!("{text} yet{NO_TLS}")
    } else {
        return error.clone();
    };
    Error::new(error.kind(), text).passing_as(error)
}

/// A plain port says nothing to most greetings in TLS: it waits for the end of a line.
pub(super) const NO_TLS: &str = "; if that port does not speak TLS, give its TLS port";

/// Nothing was sent, and why is not known.
fn not_connected(member: &RedisOptions) -> Error {
    broken(member, &Broken::NotSent("not connected".into()))
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
    /// `now`: on the steady clock.
    pub(super) fn silence(&self, nth: usize, now: Ticks, waited: Duration) -> Option<Error> {
        self.unanswered(nth, now, waited, "")
    }

    fn unanswered(&self, nth: usize, now: Ticks, waited: Duration, option: &str) -> Option<Error> {
        let member = self.members.get(nth)?;
        if let Some(why) = member.refuses_at_once() {
            return Some(why);
        }
        let at = &member.options.address;
        if let Some(error) = self.not_yet(nth, now) {
            return Some(error);
        }
        let waited = spoken(waited);
        let text = format!("Redis at {at} did not answer within {waited}{option}");
        Some(Error::new(ErrorKind::Unreachable, text))
    }

    /// That a member that can be reached does not count yet, and when it does, where that is known.
    pub(super) fn not_yet(&self, nth: usize, now: Ticks) -> Option<Error> {
        let error = Error::new(ErrorKind::Unreachable, self.not_counting(nth, now)?);
        Some(match self.counts_in(nth, now) {
            Some(time) => error.with_retry_after(time),
            None => error,
        })
    }

    /// That a member did not count when it answered, and does by now for all that is known.
    pub(super) fn did_not_count(&self, nth: usize) -> Option<Error> {
        let at = &self.members.get(nth)?.options.address;
        let text = format!("Redis at {at} did not count yet when it answered");
        Some(Error::new(ErrorKind::Unreachable, text))
    }

    /// That a member has nothing of what is to be extended or given back.
    pub(super) fn has_none(&self, nth: usize) -> Option<Error> {
        let at = &self.members.get(nth)?.options.address;
        let text = format!("Redis at {at} has no record of it");
        Some(Error::new(ErrorKind::Unreachable, text))
    }

    /// Until when a member that can be reached does not count, where that is known.
    fn counts_in(&self, nth: usize, now: Ticks) -> Option<Duration> {
        let member = self.members.get(nth)?;
        let counts_at = if member.options.marker.is_none() {
            member.counts_at(self.options.wait)?
        } else {
            member.clean().filter(|_| member.is_stranger())?.at
        };
        (counts_at > now).then(|| counts_at.since(now))
    }

    /// The same of one that did not answer a claim in the time that it has for that.
    pub(super) fn late(&self, nth: usize, now: Ticks, waited: Duration) -> Option<Error> {
        self.unanswered(nth, now, waited, " (server_timeout)")
    }

    /// Why a member that can be reached does not count yet, and until when.
    pub(super) fn not_counting(&self, nth: usize, now: Ticks) -> Option<String> {
        let member = self.members.get(nth)?;
        let at = &member.options.address;
        let uptime = member.link.by_facts(|facts| facts.uptime)?;
        if self.is_twin(nth) {
            return Some(format!("Redis at {at} is a member already, under another address"));
        }
        if member.options.marker.is_none() {
            let Some(counts_at) = member.counts_at(self.options.wait) else {
                return Some(format!(
                    "Redis at {at} does not say for how long it has been up: allow +info"
                ));
            };
            return (counts_at > now).then(|| {
                format!(
                    "Redis at {at} counts in {}, when it has been up for {} (it said {}): it may \
                     have forgotten leases when it started",
                    spoken(counts_at.since(now)),
                    spoken(self.options.wait),
                    spoken(uptime.unwrap_or_default()),
                )
            });
        }
        let clean = member.clean().filter(|clean| clean.at > now);
        member.is_stranger().then(|| match clean {
            Some(clean) => {
                let key = self.keys.member();
                let why = match clean.wait > self.options.wait {
                    true => format!(" (max_ttl in its hash {key}, of another URL)"),
                    false => String::new(),
                };
                format!(
                    "Redis at {at} counts in {}, {}{why} after a client first met it: it is new, \
                     has started again or has lost its data, and may have forgotten leases",
                    spoken(clean.at.since(now)),
                    spoken(clean.wait),
                )
            }
            None => format!(
                "Redis at {at} is new, has started again or has lost its data: it counts once a \
                 majority of the members answers, which tells above which number its tokens begin"
            ),
        })
    }
}
