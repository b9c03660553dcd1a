//! Several claims at once: their nodes are created in one transaction.
//!
//! So any two that ask for several locks stand in every line in the same order. Each claim then
//! goes its own way, as a try: those who find somebody before them leave.

use tokio::sync::oneshot;

use super::gate::Gate;
use super::{one_prefix, perform, want_of};
use crate::engine::Attempt;
use crate::engine::zookeeper::layout::parse_seq;
use crate::engine::zookeeper::proto::{Code, Create, Reply, Request};
use crate::engine::zookeeper::recipe::{Contender, Input, Node};
use crate::engine::zookeeper::state::{State, Ticket};
use crate::words::claim::Claim;
use crate::words::id::ClaimId;

impl State {
    /// Tries several claims; `dirs` are theirs.
    pub(in super::super) fn attempt_together(
        &mut self,
        claims: &[Claim],
        dirs: Vec<String>,
    ) -> Vec<oneshot::Receiver<Attempt>> {
        let together = self.up
            && claims.iter().all(|claim| {
                !self.claims.contains_key(&claim.id)
                    && Gate::of(&self.options, claim, true) == Gate::Open
            });
        if !together {
            return claims
                .iter()
                .zip(dirs)
                .map(|(claim, dir)| self.attempt(claim, dir, true))
                .collect();
        }
        let mut answers = Vec::with_capacity(claims.len());
        let mut creates = Vec::with_capacity(claims.len());
        for (claim, dir) in claims.iter().zip(dirs) {
            let (sender, receiver) = oneshot::channel();
            answers.push(receiver);
            self.enter(claim, dir, true, sender);
            if let Some(entry) = self.claims.get_mut(&claim.id) {
                entry.machine = Contender::created_together(want_of(&self.options, claim.mode))
                    .of_one_prefix(one_prefix(&self.options, claim));
                let path = format!("{}/{}", entry.dir, entry.prefix);
                let (data, acl) = (entry.data.clone(), self.options.acl.clone());
                creates.push(Request::Create { path, data, acl, how: Create::EphemeralSequential });
            }
        }
        self.send(
            &Request::Multi(creates),
            Ticket::Together(claims.iter().map(|claim| claim.id).collect()),
        );
        answers
    }

    pub(in super::super) fn created_together(
        &mut self,
        ids: &[ClaimId],
        result: Result<Reply, Code>,
    ) {
        let replies = perform::together(result);
        for (at, id) in ids.iter().enumerate() {
            let node = match replies.as_ref().map(|replies| replies.get(at)) {
                Err(code) => Err(*code),
                Ok(Some(Ok(Reply::Created { path, .. }))) => {
                    self.named(*id, path).ok_or(Code::RUNTIME_INCONSISTENCY)
                }
                Ok(_) => Err(Code::RUNTIME_INCONSISTENCY),
            };
            self.step(*id, Input::Created(node));
        }
    }

    /// The claim's node at this path. Servers before 3.8.2 say nothing true about it here: its
    /// session and its transaction are read next.
    fn named(&self, id: ClaimId, path: &str) -> Option<Node> {
        let entry = self.claims.get(&id)?;
        let name = path.strip_prefix(&entry.dir)?.strip_prefix('/')?;
        let seq = parse_seq(name.strip_prefix(&entry.prefix)?)?;
        Some(Node::new(name.to_owned(), seq, None))
    }
}
