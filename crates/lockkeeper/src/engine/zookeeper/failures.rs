//! Why servers did not take us, and what of it is told.

use std::collections::BTreeSet;
use std::time::Duration;

use super::state::State;
use super::wire::NotTaken;
use crate::words::error::{Error, ErrorKind};

/// Whether it is of no use to try the same server again.
fn is_final(why: &Error) -> bool {
    why.kind() != ErrorKind::Unreachable && !why.is_temporary()
}

/// Whether a server refuses that takes us later.
fn is_full(why: &Error) -> bool {
    why.kind() == ErrorKind::Refused && why.is_outage()
}

impl State {
    /// The server at this place of the URL has not taken us.
    pub(super) fn failed(&mut self, at: usize, why: impl Into<NotTaken>) {
        let not = why.into();
        not.why.message().clone_into(&mut self.last_failure);
        self.failures.insert(at, not);
    }

    /// The server at this place of the URL takes us, if only for a moment.
    pub(super) fn is_there(&mut self, at: usize) {
        if let Some(failure) = self.failures.get_mut(&at) {
            failure.is_away = false;
        }
    }

    /// Whether nobody listens anywhere: each server was tried, and was away when it was tried last.
    pub(super) fn all_are_away(&self) -> bool {
        self.failures.len() >= self.options.hosts.len()
            && self.failures.values().all(|failure| failure.is_away)
    }

    /// Why nobody takes us, if that is for somebody to mend: each server was tried, and said so.
    /// That some are away does not matter before the engine was of use; one that is full is waited
    /// for.
    pub(super) fn refused_by_all(&self) -> Option<Error> {
        let goes_on = |why: &Error| !is_final(why) && (self.opened || is_full(why));
        let tried = self.failures.len() >= self.options.hosts.len();
        if !tried || self.failures.values().any(|failure| goes_on(&failure.why)) {
            return None;
        }
        self.failure(is_final)
    }

    /// The first of such errors of servers, and what the others said that is not the same.
    fn failure(&self, which: fn(&Error) -> bool) -> Option<Error> {
        let failures = self.failures.iter().map(|(at, failure)| (at, &failure.why));
        let (first, one) = failures.clone().find(|(_, why)| which(why))?;
        let bare = |at: &usize, why: &Error| why.message().replace(&self.options.server(*at), "");
        let mut text = one.message().to_owned();
        let mut said = BTreeSet::from([bare(first, one)]);
        for (at, why) in failures.filter(|(at, _)| *at != first) {
            if said.insert(bare(at, why)) || !which(why) {
                text += &format!("; {}: {}", self.options.server(*at), why.message());
            }
        }
        Some(Error::new(one.kind(), text).passing_as(one))
    }

    /// Why a request was not answered, as far as is known.
    pub(super) fn unanswered(&self) -> Error {
        self.unanswered_within(self.options.request_timeout)
    }

    /// Why nothing was answered in this time, as far as is known.
    pub(super) fn unanswered_within(&self, waited: Duration) -> Error {
        // The ensemble can be reached: that others of it cannot does not change that.
        let refused = self.failure(is_full).or_else(|| self.failure(is_final));
        let why = match refused {
            // While the engine runs, what one says for good counts where all do: the others are
            // away, and may take us when they are back.
            Some(why) if self.opened && is_final(&why) && self.refused_by_all().is_none() => {
                why.message().to_owned()
            }
            Some(refused) => return refused,
            None if self.up => format!("connected, and no answer within {waited:?}"),
            None => self.reasons(),
        };
        super::errors::unreachable(&self.options.servers(), &why)
    }

    /// Why the last connection failed or ended; where servers said different things, what each did:
    /// the last one may know the least.
    fn reasons(&self) -> String {
        let mut said: Vec<(&str, Vec<String>)> = Vec::new();
        for (at, NotTaken { why, .. }) in &self.failures {
            let server = self.options.server(*at);
            match said.iter_mut().find(|(text, _)| *text == why.message()) {
                Some((_, servers)) => servers.push(server),
                None => said.push((why.message(), vec![server])),
            }
        }
        if said.len() < 2 {
            return self.last_failure.clone();
        }
        let each = said.into_iter().map(|(why, servers)| format!("{}: {why}", servers.join(", ")));
        each.collect::<Vec<_>>().join("; ")
    }
}
