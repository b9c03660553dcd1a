//! Why a cluster cannot be used, and what to do.

use std::fmt::Display;

use super::map::is_final;
use crate::engine::redis::errors::{self as server_errors, each_once};
use crate::engine::redis::options::Address;
use crate::words::error::{Error, ErrorKind};

/// A node that cannot be asked.
pub(super) fn away(at: &Address, why: impl Display) -> Error {
    let text = format!("the cluster's node at {at} cannot be reached: {why}");
    Error::new(ErrorKind::Unreachable, text)
}

/// What listens there is a server of its own.
pub(super) fn no_cluster(at: &Address) -> Error {
    let text = format!(
        "the server at {at} is no node of a Redis Cluster: use redis://{at}, or name the nodes of \
         the cluster"
    );
    Error::new(ErrorKind::InvalidArgument, text)
}

/// What an error of a node means that was asked about all of them.
pub(super) fn said(at: &Address, text: &str) -> Error {
    let text = match text.split(' ').next().unwrap_or_default() {
        "NOPERM" => format!(
            "the cluster's node at {at} does not let this user ask where its slots are: allow \
             +cluster|shards +cluster|slots"
        ),
        _ => format!("the cluster's node at {at} does not say where its slots are: {text}"),
    };
    Error::new(ErrorKind::Refused, text)
}

/// What came back cannot be understood.
pub(super) fn garbage(at: &Address) -> Error {
    let text = format!("the cluster's node at {at} told of its slots what cannot be understood");
    Error::new(ErrorKind::Corrupt, text)
}

/// None of its nodes is one of those that were known.
pub(super) fn another_cluster(at: &Address) -> Error {
    let text = format!("the server at {at} is a node of another cluster than before");
    Error::new(ErrorKind::Unreachable, text)
}

/// It tells a map that nothing may be taken from.
pub(super) fn cut_off(at: &Address) -> Error {
    let text = format!(
        "the cluster's node at {at} says that the cluster is down (cluster_state): it does not \
         reach a majority of the masters, or slots have no node"
    );
    Error::new(ErrorKind::Unreachable, text).temporary(true)
}

/// It has slept, or came back with an old map.
pub(super) fn behind(at: &Address) -> Error {
    let text = format!("the cluster's node at {at} has not heard of the newest map yet");
    Error::new(ErrorKind::Unreachable, text).temporary(true)
}

/// It is alone, or nobody has given out the slots.
pub(super) fn no_slots(at: &Address) -> Error {
    let text = format!(
        "the cluster's node at {at} knows of no slots: it is in no cluster yet (redis-cli \
         --cluster create)"
    );
    Error::new(ErrorKind::Unreachable, text).temporary(true)
}

/// None of those that the URL names has told. What several say alike is said once.
pub(super) fn none(mut errors: Vec<Error>, named: &[Address]) -> Error {
    if let Some(at) = errors.iter().position(is_final) {
        return errors.swap_remove(at);
    }
    if errors.len() == 1
        && let Some(error) = errors.pop()
    {
        return error;
    }
    let of = |error: &Error| {
        let is_in = |at: &&Address| error.message().contains(&at.to_string());
        // Of `h:70` and `h:7001` the longer one is meant.
        named.iter().filter(is_in).max_by_key(|at| at.to_string().len()).cloned()
    };
    let (mut said, mut others) = (Vec::new(), Vec::new());
    for error in &errors {
        match of(error) {
            Some(at) => said.push((at, error.clone())),
            None if others.contains(&error.message()) => {}
            None => others.push(error.message()),
        }
    }
    // As the URL has them: in what order they answered tells nobody anything.
    said.sort_by_key(|(at, _)| named.iter().position(|known| known == at));
    let each = each_once(&said);
    let each: Vec<&str> =
        [each.as_str()].into_iter().filter(|each| !each.is_empty()).chain(others).collect();
    let text = format!("no node that the URL names can be asked: {}", each.join("; "));
    server_errors::refused_by_one(&errors, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q5_what_names_no_node_is_said_once_and_of_none() {
        let named = ["a", "b"].map(|host| Address::Tcp(host.into(), 7000));
        let all = "the certificate has expired";
        let bare = || Error::new(ErrorKind::Unreachable, all);
        let gone = |at: &Address| away(at, "no route");
        let error = none(vec![bare(), gone(&named[0]), gone(&named[1]), bare()], &named);
        let said = "the cluster's node at a:7000 cannot be reached: no route; the same at b:7000";
        assert!(error.message().ends_with(&format!(": {said}; {all}")), "{error}");
        let error = none(vec![gone(&named[1]), bare(), gone(&named[0])], &named);
        assert!(error.message().ends_with(&format!(": {said}; {all}")), "{error}");
        let error = none(vec![bare(), bare()], &named);
        assert!(error.message().ends_with(&format!("asked: {all}")), "{error}");
    }
}
