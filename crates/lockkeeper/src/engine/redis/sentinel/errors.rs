//! What Sentinels say that keeps us from their master, and what to do.

use super::options::SentinelOptions;
use super::wire::Said;
use crate::engine::redis::options::Address;
use crate::engine::redis::refusal::{decides, each_once, of_whole};
use crate::open::table::scheme_hint;
use crate::words::duration::spoken;
use crate::words::error::{Error, ErrorKind};

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

/// A Sentinel that cannot be reached.
pub(super) fn away(at: &Address, why: impl std::fmt::Display) -> Error {
    let text = format!("the Sentinel at {at} cannot be reached: {why}");
    Error::new(ErrorKind::Unreachable, text)
}

/// The connection ended before it said anything: a port for TLS ends a plain greeting with an alert
/// or without a word.
pub(super) fn no_welcome(error: Error) -> Error {
    let why = error.message();
    if !["\\u{15}", "closed the connection", "reset by peer"].iter().any(|end| why.contains(end)) {
        return error;
    }
    Error::new(error.kind(), format!("{why}; if it wants TLS, add tls=true")).passing_as(&error)
}

/// What to do where it does not answer in TLS.
pub(super) const TLS_PORT: &str = "give the Sentinels' TLS port";

/// What listens there is no Sentinel; `mode` is what it calls itself.
pub(super) fn no_sentinel(at: &Address, mode: &str) -> Error {
    let node = if mode == "cluster" { "a node of a Redis Cluster" } else { "a Redis server" };
    let scheme = if mode == "cluster" { "redis+cluster" } else { "redis" };
    let hint = scheme_hint(scheme, &format!("{scheme}://{at}"));
    invalid(format!(
        "{at} is {node} and no Sentinel: {hint}, or name the Sentinels' addresses, whose usual \
         port is 26379"
    ))
}

/// What an error of a Sentinel means.
pub(super) fn said(at: &Address, has_password: bool, text: &str) -> Error {
    let refused = |text: String| Error::new(ErrorKind::Refused, text);
    let option = "sentinel_password_file=FILE";
    match text.split(' ').next().unwrap_or_default() {
        "NOAUTH" => {
            refused(format!("the Sentinel at {at} wants a password of its own: give {option}"))
        }
        "WRONGPASS" if has_password => {
            refused(format!("the Sentinel at {at} does not accept the password of {option}"))
        }
        // An old server repeats what it was sent, and that may be the password.
        _ if text.contains("unknown command") => Error::new(
            ErrorKind::Unsupported,
            format!("the Sentinel at {at} is too old: lockkeeper needs Redis or Valkey 6 or newer"),
        ),
        // AUTH without a password that is set.
        _ if has_password && text.contains("AUTH") => {
            refused(format!("the Sentinel at {at} has no password: leave {option} out"))
        }
        "NOPERM" => refused(format!(
            "the Sentinel at {at} does not let the default user ask for a master: allow \
             +sentinel +subscribe and its channels ({text})"
        )),
        _ if text.contains("max number of clients") => {
            refused(format!("the Sentinel at {at} has as many clients as it takes (maxclients)"))
                .no_room()
        }
        _ => refused(format!("the Sentinel at {at} answered with an error: {text}")),
    }
}

/// What came back cannot be understood.
pub(super) fn garbage(at: &Address) -> Error {
    let text = format!("the Sentinel at {at} gave an answer that cannot be understood");
    Error::new(ErrorKind::Corrupt, text)
}

/// The master that the Sentinels name cannot be reached: they may be choosing another one.
pub(super) fn no_master(options: &SentinelOptions, said: &Said, error: &Error) -> Error {
    let then = if said.replicas == 0 {
        "there is no replica to choose in its place: start it, or see why this host cannot reach \
         it"
        .to_owned()
    } else {
        format!(
            "if it is down for them, too, they choose another one after {}, which takes a few \
             seconds, so ask again then; if not, this host cannot reach the address that they \
             announce",
            spoken(said.down_after)
        )
    };
    let text = format!(
        "{}; the Sentinels still name it as the master of {}: {then}",
        error.message(),
        options.service,
    );
    Error::new(error.kind(), text).passing_as(error)
}

/// No Sentinel that answered knows the service; `known` are those that they know.
pub(super) fn unknown_service(options: &SentinelOptions, known: &[String]) -> Error {
    let service = &options.service;
    let at: Vec<String> = options.sentinels.iter().map(ToString::to_string).collect();
    let instead = match known {
        [] => "they watch nothing yet: add it to their configuration (sentinel monitor)".to_owned(),
        [one] => format!("they know {one}: use redis+sentinel://{}/{one}", at.join(",")),
        many => format!("they know {}: name one of these", many.join(", ")),
    };
    invalid(format!("the Sentinels know no service {service:?}; {instead}"))
}

/// It does not know the service.
pub(super) fn unaware(at: &Address, service: &str) -> Error {
    invalid(format!("the Sentinel at {at} knows no {service}"))
}

/// Fewer Sentinels say where the master is than a new process needs: one alone may be cut off
/// together with an old master, or lie. `errors` has what each said instead.
pub(super) fn too_few(options: &SentinelOptions, errors: &[(Address, Error)]) -> Error {
    let (count, majority) = (options.sentinels.len(), options.majority());
    let (service, each) = (&options.service, each_once(errors));
    let text = match count.saturating_sub(errors.len()) {
        0 => format!(
            "none of the {count} Sentinels that the URL names says where {service} is: {each}"
        ),
        some => format!(
            "{some} of the {count} Sentinels that the URL names say where {service} is, and a \
             majority is {majority}: {each}"
        ),
    };
    // One that is full can be reached, and refuses us.
    let full = errors
        .iter()
        .map(|(_, error)| error)
        .find(|error| error.kind() == ErrorKind::Refused && error.is_outage());
    of_whole(decides(count, majority, errors).or(full), text)
}

/// None is named by a majority, or as many name one master as another.
pub(super) fn disagree(options: &SentinelOptions, said: &[(usize, Said)]) -> Error {
    let each = said.iter().filter_map(|(nth, said)| {
        Some(format!("{} names {}", options.sentinels.get(*nth)?, said.at))
    });
    let each: Vec<String> = each.collect();
    let text = format!(
        "the Sentinels disagree on where the master of {} is: {}; wait until they agree, or \
         configure them alike",
        options.service,
        each.join(", ")
    );
    Error::new(ErrorKind::Unreachable, text).temporary(true)
}

/// So many name another master than this process has, by a later failover, and are no majority.
pub(super) fn unconfirmed(options: &SentinelOptions, named: usize, at: &Address) -> Error {
    let (service, count, majority) =
        (&options.service, options.sentinels.len(), options.majority());
    let text = format!(
        "{named} of the {count} Sentinels that the URL names say that a failover moved {service} \
         to {at}, and that counts once a majority of them says so, {majority}"
    );
    Error::new(ErrorKind::Unreachable, text).temporary(true)
}

/// They name a master of before a failover that this process knows of.
pub(super) fn outdated(options: &SentinelOptions, named: u64, known: u64, at: &Address) -> Error {
    let text = format!(
        "the Sentinels that answer do not know the last failover of {}: they are at epoch \
         {named}, and epoch {known} moved the master to {at}",
        options.service
    );
    Error::new(ErrorKind::Unreachable, text).temporary(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::support;
    use super::*;

    #[test]
    fn q12_a_failover_is_announced_only_where_one_can_follow() {
        let options = support::options("s1,s2,s3");
        let down_after = Duration::from_secs(2);
        let said = |replicas| Said { down_after, replicas, ..support::said(6379, 1) };
        let error = Error::new(ErrorKind::Unreachable, "Redis at h:6379 does not answer");
        let says = |replicas| no_master(&options, &said(replicas), &error).message().to_owned();
        assert!(says(0).contains("no replica") && !says(0).contains("ask again"), "{}", says(0));
        for part in ["after 2s", "ask again then", "if not, this host cannot reach"] {
            assert!(says(1).contains(part), "{part}: {}", says(1));
        }
    }

    #[test]
    fn an_old_server_that_repeats_what_it_was_sent_puts_no_password_into_an_error() {
        let at = Address::Tcp("s1".into(), 26379);
        let repeated = "ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, \
                        `default`, `s3cret`, ";
        let none = "ERR AUTH <password> called without any password configured: `s3cret`";
        for (text, kind) in [(repeated, ErrorKind::Unsupported), (none, ErrorKind::Refused)] {
            let error = said(&at, true, text);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
        }
    }
}
