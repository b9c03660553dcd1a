//! The gate of a semaphore whose shape is Curator's or kazoo's: a mutex beside the permits. Curator
//! counts every node among these, so whoever has the gate is the only one that waits there with a
//! node; kazoo creates one only with the gate, once few enough are there. All others wait for the
//! gate.
//!
//! A claim that goes through a gate has a second one for it, which nobody outside knows. A try does
//! not stand at the gate: it looks whether anybody does, and if not, whether a permit is free. With
//! kazoo it takes the gate, or not.

use super::{Contender, Entry, Step, Want, all_contenders};
use crate::engine::zookeeper::options::Options;
use crate::engine::zookeeper::proto::{Code, Reply, Request};
use crate::engine::zookeeper::recipe::{Action, Input, Say};
use crate::engine::zookeeper::state::{State, Ticket};
use crate::engine::zookeeper::{errors, name};
use crate::engine::{Attempt, Place};
use crate::words::claim::{Claim, Mode, Through};
use crate::words::error::{Error, ErrorKind};
use crate::words::id::ClaimId;
use crate::words::name::Kind;

/// How far a claim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// There is none, or it is behind us.
    Open,
    /// A try has to look whether somebody stands there.
    Look,
    /// To be asked for with the next link.
    Wanted,
    /// This claim of ours stands there.
    Waits(ClaimId),
    /// It has it, and our node waits among the permits.
    Passed(ClaimId),
    /// It was taken away from us; our node waits among the permits, if it is still there.
    Gone,
}

impl Gate {
    pub(super) fn of(options: &Options, claim: &Claim, only_try: bool) -> Self {
        match claim.kind == Kind::Semaphore && options.shared_permits {
            false => Self::Open,
            true if only_try && !options.counts_leases() => Self::Look,
            true => Self::Wanted,
        }
    }

    /// The claim that stands for it.
    fn claim(self) -> Option<ClaimId> {
        if let Self::Waits(gate) | Self::Passed(gate) = self { Some(gate) } else { None }
    }
}

impl State {
    /// The link is up: the claim begins, or goes on.
    pub(super) fn go_on(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.get(&id) else { return };
        match entry.gate {
            Gate::Open | Gate::Passed(_) | Gate::Gone => self.step(id, Input::LinkUp),
            Gate::Look => {
                let Some(path) = name::gate(&self.options, entry.claim.kind, &entry.dir) else {
                    return;
                };
                self.send(&Request::List { path }, Ticket::Claim(id, Step::Gate));
            }
            Gate::Wanted => self.stand_at_gate(id),
            // It has a link of its own.
            Gate::Waits(_) => {}
        }
    }

    fn stand_at_gate(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let Some(dir) = name::gate(&self.options, entry.claim.kind, &entry.dir) else { return };
        let gate = ClaimId::fresh();
        let only_try = entry.only_try;
        entry.gate = Gate::Waits(gate);
        let claim = Claim {
            id: gate,
            kind: Kind::Lock,
            mode: Mode::Exclusive,
            through: Through::Mutex,
            give_up: None,
            ..entry.claim.clone()
        };
        let data = entry.data.clone();
        let mut entry = Entry::new(
            &self.options,
            &claim,
            dir,
            Contender::new(Want::Exclusive, only_try),
            Vec::new(),
        );
        // Who stands there is the one that wants the permit.
        entry.data = data;
        entry.gate_of = Some(id);
        self.claims.insert(gate, entry);
        self.step(gate, Input::LinkUp);
    }

    /// It begins again, with nothing among the permits.
    fn begin_at_gate(&mut self, id: ClaimId, begins: Input) {
        self.step(id, begins);
        self.stand_at_gate(id);
    }

    /// Its gate was taken away, and now a node has to be made among the permits: it must not stand
    /// there without the gate, and begins there again instead. Answers whether it does.
    pub(super) fn makes_way(&mut self, id: ClaimId, action: &Action) -> bool {
        let gone = self.claims.get(&id).is_some_and(|e| e.gate == Gate::Gone);
        let makes_way = self.up && gone && matches!(action, Action::Create | Action::CreateLease);
        if makes_way {
            // Nothing was sent, and what stood there is gone.
            self.begin_at_gate(id, Input::SessionEnded);
        }
        makes_way
    }

    /// A try has looked who stands at the gate.
    pub(super) fn looked_at_gate(&mut self, id: ClaimId, result: Result<Reply, Code>) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let standing = match result {
            Ok(Reply::Listing(names, _)) => {
                all_contenders(&self.options, Kind::Lock, &names).map(|all| !all.is_empty())
            }
            Ok(_) => Err(Code::RUNTIME_INCONSISTENCY),
            Err(Code::NO_NODE) => Ok(false),
            Err(code) => Err(code),
        };
        match standing {
            Ok(true) => self.finish(id, Attempt::Busy(None)),
            Ok(false) => {
                entry.gate = Gate::Open;
                self.step(id, Input::LinkUp);
            }
            Err(code) => {
                let error = errors::refused(code, &entry.dir);
                self.finish(id, Attempt::Failed(error));
            }
        }
    }

    /// What the claim at a gate says.
    pub(super) fn gate_says(&mut self, gate: ClaimId, id: ClaimId, say: Say) {
        let Some(entry) = self.claims.get_mut(&id).filter(|e| e.gate.claim() == Some(gate)) else {
            return;
        };
        match say {
            Say::Granted { .. } => {
                entry.gate = Gate::Passed(gate);
                self.step(id, Input::LinkUp);
            }
            Say::InLine { ahead, .. } => {
                // Who holds the gate waits behind it, for the permits.
                let ahead = ahead.saturating_add(1);
                for sender in std::mem::take(&mut entry.answers) {
                    self.outbox.attempts.push((
                        sender,
                        Attempt::InLine(Place { ahead: Some(ahead), ..Place::default() }),
                    ));
                }
            }
            Say::Busy => {
                entry.gate = Gate::Open;
                self.finish(id, Attempt::Busy(None));
            }
            Say::Refused(code) => {
                entry.gate = Gate::Open;
                let dir = self.claims.get(&gate).map_or("", |e| e.dir.as_str());
                let error = errors::refused(code, dir);
                self.finish(id, Attempt::Failed(error));
            }
            // Somebody's hand took it away, or the end of the session, of which we hear later. What
            // has no node yet must not count without it; a node among the permits stays there.
            Say::Lost if self.options.counts_leases() && entry.machine.left_nothing() => {
                self.begin_at_gate(id, Input::LinkDown)
            }
            Say::Lost => entry.gate = Gate::Gone,
            Say::Stuck(_) => _ = self.stuck.insert(gate),
            _ => {}
        }
    }

    /// The claim at a gate is over.
    pub(super) fn gate_over(&mut self, gate: ClaimId, id: ClaimId) {
        self.drop_entry(gate);
        self.next_in_line.remove(&gate);
        self.stuck.remove(&gate);
        let Some(entry) = self.claims.get_mut(&id).filter(|e| e.gate.claim() == Some(gate)) else {
            return;
        };
        if entry.ends.is_empty() {
            // It went with its session: the next one begins at the gate.
            entry.gate = Gate::Wanted;
        } else {
            entry.gate = Gate::Open;
            self.step(id, Input::Leave);
            self.look_again(id);
        }
    }

    /// The node of the gate that a claim has passed.
    pub(super) fn gate_node(&self, id: ClaimId) -> Option<String> {
        let Gate::Passed(gate) = self.claims.get(&id)?.gate else { return None };
        let gate = self.claims.get(&gate)?;
        Some(format!("{}/{}", gate.dir, gate.machine.nodes().first()?))
    }

    /// The claim does not need its gate any more.
    pub(super) fn leave_gate(&mut self, id: ClaimId) {
        if let Some(entry) = self.claims.get_mut(&id)
            && let Some(gate) = std::mem::replace(&mut entry.gate, Gate::Open).claim()
        {
            self.step(gate, Input::Leave);
        }
    }

    /// The claim leaves; while it stands at its gate, that one first. Answers whether it did.
    pub(super) fn leaves_at_gate(&mut self, id: ClaimId) -> bool {
        let gate = self.claims.get(&id).map(|e| e.gate);
        match gate {
            Some(Gate::Waits(gate)) => {
                self.step(gate, Input::Leave);
                true
            }
            Some(Gate::Passed(_)) => {
                self.leave_gate(id);
                false
            }
            _ => false,
        }
    }

    /// Whether nothing of the claim may be there: neither at its gate nor behind it.
    pub(super) fn left_nothing(&self, id: ClaimId) -> bool {
        let Some(entry) = self.claims.get(&id) else { return true };
        let gate = entry.gate.claim().and_then(|gate| self.claims.get(&gate));
        entry.machine.left_nothing() && gate.is_none_or(|gate| gate.machine.left_nothing())
    }

    /// Forgets a claim of which nothing is left, and what stands at its gate.
    pub(super) fn forget(&mut self, id: ClaimId) {
        if let Some(gate) = self.drop_entry(id).and_then(|entry| entry.gate.claim()) {
            self.drop_entry(gate);
        }
    }

    /// Which claim says whom a claim waits for: the one at its gate, as long as that one waits.
    pub(super) fn waits_at(&self, id: ClaimId) -> ClaimId {
        match self.claims.get(&id).map(|e| e.gate) {
            Some(Gate::Waits(gate)) => gate,
            _ => id,
        }
    }
}

/// Its caller's time is over.
pub(super) fn late() -> Attempt {
    Attempt::Failed(Error::new(
        ErrorKind::TimedOut,
        "ZooKeeper could not be reached within the caller's time",
    ))
}
