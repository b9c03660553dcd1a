//! What only the quorum can prove: that the session lasts, and that those are there whom claims
//! wait for.
//!
//! Both go in one transaction that changes nothing and wakes nobody: it checks that nodes exist.
//!
//! A server that lost a transaction shows a node that is gone everywhere else, and its deletion is
//! never told there. Faults of ZooKeeper make such servers when they fail and come back
//! (ZOOKEEPER-4712, ZOOKEEPER-4785, ZOOKEEPER-5010). Who waits for that node would wait for ever.
//! So if the quorum does not have it and the server, asked after that, still shows it, the claim
//! looks past it, and the server is left: what it does not show cannot be known.

use crate::engine::zookeeper::proto::{Code, Reply, Request};
use crate::engine::zookeeper::recipe::{Input, Say, Seen};
use crate::engine::zookeeper::state::{State, Ticket};
use crate::protocol::lease::{Drift, bears};
use crate::protocol::margin;
use crate::words::id::ClaimId;

use super::{Entry, Step};

/// How many nodes are asked about at once.
const ASKED_MAX: usize = 64;

impl State {
    /// How long the session lasts for certain.
    pub(in super::super) fn left(&self) -> std::time::Duration {
        self.alive.left(self.clock.now(), self.options.drift_per_mille)
    }

    /// Whether so much is known of the session that a grant may rest on it.
    pub(in super::super) fn is_proven(&self) -> bool {
        self.session.as_ref().is_some_and(|session| self.left() >= session.timeout / 8)
            && !self.is_in_doubt()
    }

    /// Whether the time of day was set forward since what is proven of the session (R1): then the
    /// machine may have stood still, and the session be over.
    pub(in super::super) fn is_in_doubt(&self) -> bool {
        let Some(session) = &self.session else { return false };
        let drift = Drift { per_mille: self.options.drift_per_mille, ..Drift::default() };
        self.clock.stepped_since(self.alive.proven()) > bears(session.timeout, drift)
    }

    /// Whether as much of the session is left as a holder is promised. Where it is not, a write is
    /// answered first; less has to do where the server is slow.
    fn is_ample(&self) -> bool {
        let Some(session) = self.session.as_ref().filter(|_| !self.is_in_doubt()) else {
            return false;
        };
        let floor = self
            .reliance
            .floor(session.timeout)
            .unwrap_or_else(|| margin::floor(session.timeout, None));
        self.left() * 1000u32.saturating_sub(self.options.drift_per_mille) / 1000 >= floor
    }

    /// It is the claim's turn, or somebody asks about a hold: that is told as soon as the session
    /// is known to last.
    pub(super) fn prove(&mut self, id: ClaimId) {
        if self.is_ample() {
            return self.tell_proven(id);
        }
        tracing::debug!(claim = %id, "its turn came, and the session has to be proven first");
        self.beat();
    }

    /// A write was acknowledged: what does it prove?
    pub(in super::super) fn proven(&mut self) {
        if !self.is_proven() {
            return;
        }
        let wants = |id: &&ClaimId| self.claims.get(id).is_some_and(Entry::wants_proof);
        let waiting: Vec<ClaimId> = self.next_in_line.iter().filter(wants).copied().collect();
        for id in waiting {
            self.tell_proven(id);
        }
    }

    fn tell_proven(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.get(&id) else { return };
        let Some(number) = entry.machine.held() else { return self.step(id, Input::Proven) };
        self.next_in_line.remove(&id);
        self.note_reliance(id);
        self.say(id, Say::Granted { number });
    }

    /// Sends the write that proves the session, unless one is on its way.
    pub(in super::super) fn beat(&mut self) {
        if !self.up || std::mem::replace(&mut self.beating, true) {
            return;
        }
        self.beat_sent = self.clock.now();
        let next = self.next_in_line.iter().filter_map(|id| Some((*id, self.claims.get(id)?)));
        let nodes = next.flat_map(|(id, entry)| {
            entry.machine.watched().into_iter().map(move |name| (id, &entry.dir, name.to_owned()))
        });
        let (asked, checks): (Vec<_>, Vec<_>) = nodes
            .take(ASKED_MAX)
            .map(|(id, dir, name)| {
                let check = Request::Check { path: format!("{dir}/{name}"), version: -1 };
                ((id, name), check)
            })
            .unzip();
        let all = [self.beat_check()].into_iter().chain(checks).collect();
        self.send(&Request::Multi(all), Ticket::Beat(asked));
    }

    /// What proves the session and nothing else.
    pub(in super::super) fn beat_request(&self) -> Request {
        Request::Multi(vec![self.beat_check()])
    }

    /// A node that always exists.
    fn beat_check(&self) -> Request {
        Request::Check { path: self.options.root(), version: -1 }
    }

    /// The quorum has answered: the first node that it does not have is read again, behind that
    /// answer.
    pub(in super::super) fn beaten(
        &mut self,
        asked: &[(ClaimId, String)],
        result: &Result<Reply, Code>,
    ) {
        self.beating = false;
        let Ok(Reply::Many(parts)) = result else { return };
        let gone = parts.iter().skip(1).position(|part| *part == Err(Code::NO_NODE));
        if let Some((id, name)) = gone.and_then(|at| asked.get(at)) {
            self.doubt(*id, name);
        }
    }

    /// The quorum does not have a node: if a claim waits for it, it is read again.
    pub(in super::super) fn doubt(&mut self, id: ClaimId, name: &str) {
        let Some(entry) = self.claims.get(&id).filter(|_| self.up) else { return };
        if entry.machine.watched().contains(&name) {
            let request = Request::GetData { path: format!("{}/{name}", entry.dir), watch: false };
            self.send(&request, Ticket::Claim(id, Step::Doubted(name.to_owned())));
        }
    }

    /// What the server shows of a node that the quorum does not have.
    pub(super) fn doubted(&mut self, id: ClaimId, name: String, result: &Result<Reply, Code>) {
        let Some(entry) = self.claims.get(&id) else { return };
        match result {
            // Its end was not told.
            Err(Code::NO_NODE) => self.step(id, Input::Watched(name, Seen::Gone)),
            Ok(Reply::Data(..)) => {
                let path = format!("{}/{name}", entry.dir);
                tracing::error!(
                    path,
                    "the ZooKeeper server shows a node that its ensemble does not have: its data \
                     diverges; it is left"
                );
                self.diverges = Some(format!("it shows {path}, which its ensemble does not have"));
                self.step(id, Input::Watched(name, Seen::NoContender));
            }
            _ => {}
        }
    }
}
