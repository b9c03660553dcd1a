//! On the way out: our nodes are deleted until they are known to be gone.

use super::words::{Action, Node, Say};
use super::{Contender, Phase};
use crate::engine::zookeeper::proto::Code;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Deleting {
    /// The node that stood for the claim.
    pub(super) main: String,
    /// What is not known to be gone.
    pub(super) left: Vec<String>,
    pub(super) then: Then,
    /// It was sent before, and the answer was lost with the link.
    pub(super) again: bool,
    /// The server refuses it.
    pub(super) stuck: bool,
    /// The main node was there until we deleted it.
    pub(super) ours: bool,
}

/// What is told once everything is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Then {
    Left,
    Busy,
    Refused(Code),
    OtherLimit(u16),
    /// A contender of another prefix stands there.
    OtherPrefix,
    /// It was told already.
    Nothing,
}

impl Contender {
    pub(super) fn delete(&mut self, node: Node, then: Then, out: &mut Vec<Action>) {
        self.delete_all(node.name.clone(), vec![node.name], then, out);
    }

    pub(super) fn delete_all(
        &mut self,
        main: String,
        left: Vec<String>,
        then: Then,
        out: &mut Vec<Action>,
    ) {
        out.extend(left.iter().cloned().map(Action::Delete));
        self.phase =
            Phase::Deleting(Deleting { main, left, then, again: false, stuck: false, ours: false });
    }

    pub(super) fn deleted(&mut self, name: &str, result: Result<(), Code>, out: &mut Vec<Action>) {
        let Phase::Deleting(deleting) = &mut self.phase else { return };
        match result {
            // Gone already: by the request whose answer was lost, as the name is nobody else's;
            // else by somebody's hand.
            Ok(()) | Err(Code::NO_NODE) => {
                if deleting.main == name {
                    deleting.ours = result.is_ok() || deleting.again;
                }
                deleting.left.retain(|n| n != name);
                if deleting.left.is_empty() {
                    let (then, ours) = (deleting.then, deleting.ours);
                    self.gone(then, ours, out);
                }
            }
            Err(code) => {
                deleting.stuck = true;
                out.push(Action::Say(Say::Stuck(code)));
            }
        }
    }

    /// Our nodes are there no more.
    pub(super) fn gone(&mut self, then: Then, ours: bool, out: &mut Vec<Action>) {
        self.phase = Phase::Over;
        match then {
            Then::Left => out.push(Action::Say(Say::Left { ours })),
            Then::Busy => out.push(Action::Say(Say::Busy)),
            Then::Refused(code) => out.push(Action::Say(Say::Refused(code))),
            Then::OtherLimit(limit) => out.push(Action::Say(Say::OtherLimit(limit))),
            Then::OtherPrefix => {
                out.push(Action::Say(Say::OtherPrefix(self.stranger.take().unwrap_or_default())))
            }
            Then::Nothing => {}
        }
    }

    pub(super) fn leave(&mut self, out: &mut Vec<Action>) {
        self.leaving = true;
        if let Some(node) = self.phase.node().cloned() {
            return self.delete(node, Then::Left, out);
        }
        match &mut self.phase {
            Phase::Idle if self.doubt => {}
            Phase::Idle | Phase::Looking | Phase::Full(_) | Phase::Peeking | Phase::Building => {
                self.over(Say::Left { ours: true }, out)
            }
            // On its way out already; now somebody waits to hear that it is.
            Phase::Deleting(deleting) => {
                deleting.then = Then::Left;
                if std::mem::take(&mut deleting.stuck) {
                    out.extend(deleting.left.iter().cloned().map(Action::Delete));
                }
            }
            Phase::Over => out.push(Action::Say(Say::Left { ours: false })),
            _ => {}
        }
    }
}
