//! A session that begins, goes on over another connection, and ends.

use std::time::Duration;

use super::super::errors;
use super::super::proto::{Code, Request, SessionKey};
use super::{Fault, Session, State, Ticket};
use crate::engine::password::Login;
use crate::engine::stream::Writer;
use crate::engine::{Event, Which};
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;
use crate::words::lost::Lost;

impl State {
    pub(super) fn identity_accepted(&mut self) {
        self.unaccepted = self.unaccepted.saturating_sub(1);
        if self.unaccepted > 0 {
            return;
        }
        self.failures.clear();
        let login = self.options.more_auth.as_ref().zip(self.login.as_ref());
        if let Some((password, login)) = login {
            password.accepted(&self.options.server(self.server), login);
        }
    }

    /// Says why the connection ends.
    pub(super) fn identity_refused(&mut self, code: Code) -> String {
        let server = self.options.server(self.server);
        let why = errors::auth(&server, code);
        let login = self.options.more_auth.as_ref().zip(self.login.as_ref());
        self.not_here = Some(match login {
            Some((password, login)) => password.refused(&server, login, why),
            None => why,
        });
        "the server refused the identity".to_owned()
    }

    /// The server at this place of the URL accepted a connection; callers may write to `direct`.
    pub(in crate::engine::zookeeper) fn connected(
        &mut self,
        key: SessionKey,
        timeout: Duration,
        sent: Ticks,
        direct: Option<Writer>,
        (at, login): (usize, Option<Login>),
    ) {
        let same = self.session.as_ref().is_some_and(|s| s.key.id == key.id);
        if !same && self.session.is_some() {
            // Some servers hand out another session without a word.
            self.session_over();
        }
        self.session = Some(Session { key, timeout });
        self.up = true;
        self.down_since = None;
        self.direct = direct;
        self.last_sent = self.clock.now();
        self.is_there(at);
        let identities = self.options.identities(login.as_ref());
        (self.server, self.login, self.unaccepted) = (at, login, identities.len());
        if identities.is_empty() {
            self.failures.clear();
        }
        for auth in identities {
            let credential = auth.credential.reveal().as_bytes().to_vec();
            self.send(&Request::Auth { scheme: auth.scheme, credential }, Ticket::Auth);
        }
        if same {
            self.alive.resumed(sent, timeout);
            // What was sent before the link broke may be done and not be known to this server yet.
            self.send(&Request::Sync { path: self.options.root() }, Ticket::Nobody);
            self.beat();
        } else {
            self.alive.created(sent, timeout);
        }
        let ids: Vec<ClaimId> = self.claims.keys().copied().collect();
        for id in ids {
            self.claim_link_up(id);
        }
        for (request, sender) in std::mem::take(&mut self.parked) {
            if !sender.is_closed() {
                self.send(&request, Ticket::Call(sender));
            }
        }
        self.observe_again();
        if std::mem::replace(&mut self.was_up, true) {
            self.outbox.events.push(Event::Link { up: true });
        }
    }

    /// The connection is gone, with every reply and watch.
    pub(in crate::engine::zookeeper) fn disconnected(&mut self) {
        if !std::mem::replace(&mut self.up, false) {
            return;
        }
        self.down_since = Some(self.clock.now());
        self.out.clear();
        self.direct = None;
        (self.kept_back, self.at_risk, self.answered) = (false, None, 0);
        self.soon.clear();
        self.targets.clear();
        self.next_in_line.clear();
        self.renumber.clear();
        self.beating = false;
        self.diverges = None;
        for pending in std::mem::take(&mut self.pending) {
            if pending.write && !matches!(pending.ticket, Ticket::Beat(_) | Ticket::Call(_)) {
                let later = self.session.as_ref().map_or(Duration::ZERO, |s| s.timeout / 2);
                self.search_at = Some(self.clock.now().plus(later));
            }
            if let Ticket::Call(sender) = pending.ticket {
                self.outbox.calls.push((sender, Err(Fault::Lost)));
            }
        }
        let ids: Vec<ClaimId> = self.claims.keys().copied().collect();
        for id in ids {
            self.claim_link_down(id);
        }
        self.outbox.events.push(Event::Link { up: false });
    }

    /// The session is over, by the server's word.
    pub(in crate::engine::zookeeper) fn session_over(&mut self) {
        let Some(session) = self.session.take() else { return };
        let ids: Vec<ClaimId> = self.claims.keys().copied().collect();
        for id in ids {
            self.claim_session_ended(id);
        }
        self.outbox
            .events
            .push(Event::Ended { which: Which::Lease(session.lease()), why: Lost::SessionEnded });
    }

    /// Nodes of ours that nobody here knows are to be looked for, unless they are already.
    pub(in crate::engine::zookeeper) fn search_later(&mut self) {
        let later = self.session.as_ref().map_or(Duration::ZERO, |s| s.timeout / 2);
        self.search_at.get_or_insert(self.clock.now().plus(later));
    }

    /// Looks for nodes of ours that nobody here knows, when it is time to.
    pub(in crate::engine::zookeeper) fn search(&mut self, now: Ticks) {
        if self.up && self.search_at.is_some_and(|at| at <= now) {
            self.search_at = None;
            self.send(&Request::GetEphemerals { prefix: self.options.root() }, Ticket::Search);
        }
    }

    /// Whether the session is to be ended: the engine is closed and nothing is held (what is held
    /// stays until the session times out), or every node that is left is one that the server does
    /// not let us delete; and no member of a barrier rests on it.
    pub(in crate::engine::zookeeper) fn must_end_session(&self) -> bool {
        if self.closing {
            return self.claims.values().all(|e| e.machine.held().is_none() || e.is_gate());
        }
        !self.stuck.is_empty() && self.claims.len() == self.stuck.len() && self.members.is_empty()
    }

    /// Fails everybody who waits: the engine is closed or refused.
    pub(in crate::engine::zookeeper) fn give_up_calls(&mut self) {
        self.over = true;
        for (_, sender) in std::mem::take(&mut self.parked) {
            self.outbox.calls.push((sender, Err(Fault::NotSent)));
        }
    }
}
