//! What happens to a hold: it is given back or lost, or it is held in another way from now on.
//!
//! *Upgrade*: the upgradable reader's node stays, which keeps every writer out that stands behind
//! it, and a writer's node is created beside it, which keeps new readers out. When the readers that
//! came in before are gone, the hold is exclusive. Readers between the two that wait for another
//! writer would come in when that one leaves: for them a writer's node with the number of our
//! reader's is created, in one transaction with the check that the other writer still keeps them
//! out. *Downgrade*: a reader's node with the number of our node is created before that goes, as
//! Curator does it.
//!
//! One conversion at a time: the next is asked for when the one before has come to something.

use std::collections::BTreeSet;

use super::words::{Action, Conversion, Input, Node, OwnSeen, Say, Seen};
use super::{Contender, Phase, Then};
use crate::engine::zookeeper::layout::{Child, Tag};
use crate::engine::zookeeper::proto::Code;

/// A hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) node: Node,
    pub(super) number: i64,
    /// The writer's node beside our reader's.
    pub(super) writer: Option<Node>,
    /// The writer's node with our reader's number, once it was asked for.
    pub(super) guard: Option<Node>,
    /// That is there.
    pub(super) guarded: bool,
    pub(super) way: Way,
    /// Readers that are known to wait for the mutex before them.
    pub(super) kept_out: BTreeSet<String>,
    /// Nodes that a conversion left over; gone when nobody says otherwise.
    leftovers: Vec<String>,
    /// Tell when the last leftover is gone.
    pub(super) taking_back: bool,
    /// It is lost with this node, which was told; what is still being created is deleted as soon as
    /// it is known.
    lost: Option<String>,
}

/// How far a conversion is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    Steady,
    /// The writer's node is being created.
    Creating,
    /// Who reads beside us?
    Looking,
    /// Until this reader is gone.
    Waiting {
        reader: String,
    },
    /// Do these readers wait for the mutex before them?
    Asking {
        left: BTreeSet<String>,
    },
    /// No reader is left before this writer; is it one? Beside it, the one that keeps Curator's
    /// readers out.
    Checking {
        writer: String,
        beside: Option<String>,
    },
    /// The guard is being created, if those are there that it stands in for.
    Guarding,
    /// The new number is on its way; then it is exclusive, or upgradable again.
    Numbering {
        turn: Conversion,
    },
    /// The reader's node with our number is being created.
    Making {
        upgradable: bool,
    },
    /// It is there, and the new number is on its way.
    Replacing {
        reader: Node,
    },
}

/// What a node of ours stands for.
fn tag(node: &Node) -> Option<Tag> {
    Child::read(&node.name).map(|child| child.tag)
}

impl Held {
    pub(super) fn new(node: Node, number: i64) -> Self {
        Self {
            node,
            number,
            writer: None,
            guard: None,
            guarded: false,
            way: Way::Steady,
            kept_out: BTreeSet::new(),
            leftovers: Vec::new(),
            taking_back: false,
            lost: None,
        }
    }

    pub(super) fn nodes(&self) -> Vec<&str> {
        let reader =
            if let Way::Replacing { reader } = &self.way { Some(&reader.name) } else { None };
        let beside = self.writer.iter().chain(&self.guard).map(|n| &n.name);
        [&self.node.name]
            .into_iter()
            .chain(beside)
            .chain(reader)
            .chain(&self.leftovers)
            .map(String::as_str)
            .collect()
    }

    pub(super) fn knows_its_nodes(&self) -> bool {
        !matches!(self.way, Way::Creating | Way::Making { .. })
    }

    pub(super) fn rests_on(&self) -> Vec<&str> {
        let beside = self.writer.iter().chain(self.guard.as_ref().filter(|_| self.guarded));
        [&self.node].into_iter().chain(beside).map(|n| n.name.as_str()).collect()
    }

    pub(super) fn watched(&self) -> Option<&str> {
        if let Way::Waiting { reader } = &self.way { Some(reader) } else { None }
    }

    fn node_called(&mut self, name: &str) -> Option<&mut Node> {
        let reader =
            if let Way::Replacing { reader } = &mut self.way { Some(reader) } else { None };
        let guard = self.guard.as_mut().filter(|_| self.guarded);
        [Some(&mut self.node), self.writer.as_mut(), guard, reader]
            .into_iter()
            .flatten()
            .find(|n| n.name == name)
    }

    /// Tells that a conversion is taken back, once nothing of it is left.
    fn taken_back(&mut self, out: &mut Vec<Action>) {
        if self.way == Way::Steady
            && self.leftovers.is_empty()
            && std::mem::take(&mut self.taking_back)
        {
            out.push(Action::Say(Say::TakenBack));
        }
    }

    /// Tells what a conversion came to, unless it is being taken back.
    fn came_to(&mut self, say: Say, out: &mut Vec<Action>) {
        if self.taking_back {
            self.taken_back(out);
        } else {
            out.push(Action::Say(say));
        }
    }

    /// Gets rid of a node.
    pub(super) fn leave_over(&mut self, name: String, out: &mut Vec<Action>) {
        out.push(Action::Delete(name.clone()));
        self.leftovers.push(name);
    }

    /// Gets rid of the writer's nodes; answers whether there were any.
    fn stop_writing(&mut self, out: &mut Vec<Action>) -> bool {
        self.guarded = false;
        self.kept_out.clear();
        let nodes: Vec<Node> = self.writer.take().into_iter().chain(self.guard.take()).collect();
        let any = !nodes.is_empty();
        nodes.into_iter().for_each(|node| self.leave_over(node.name, out));
        any
    }

    /// Takes the number under which it is exclusive.
    pub(super) fn number_up(&mut self, out: &mut Vec<Action>) {
        self.way = Way::Numbering { turn: Conversion::Upgrade };
        out.push(Action::Number { node: self.node.name.clone(), before: None });
    }
}

impl Contender {
    /// One step of a hold.
    pub(super) fn step_held(&mut self, input: Input, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        match input {
            Input::LinkUp => self.held_link_up(out),
            Input::LinkDown => self.held_link_down(),
            Input::SessionEnded => self.phase = Phase::Over,
            Input::Leave => self.held_leave(out),
            Input::Own(name, seen) => self.held_seen(&name, seen, out),
            Input::Happened { name, deleted } => self.held_happened(&name, deleted, out),
            Input::Watched(name, Seen::Gone) => self.held_happened(&name, true, out),
            Input::Watched(name, Seen::NoContender) => self.look_past(&name, out),
            Input::Peeked(name, seen) => self.checked(&name, seen, out),
            Input::Whose { name, seen, ours } => self.asked_whose(&name, seen, ours, out),
            Input::Guarded(result, gone) => self.guarded(result, gone, out),
            Input::Conversion(turn) => self.turn(turn, out),
            Input::TakeBack => self.take_back(out),
            Input::Created(result) => self.writer_created(result, out),
            Input::Found(nodes) => self.writer_found(nodes, out),
            Input::Listed(result) => self.readers_listed(result, out),
            Input::Made(result) => self.reader_made(result, out),
            Input::Numbered(result) => self.turned(result, out),
            Input::Deleted(name, result) => {
                if matches!(result, Ok(()) | Err(Code::NO_NODE)) {
                    held.leftovers.retain(|n| *n != name);
                    held.taken_back(out);
                }
            }
            Input::Watched(..)
            | Input::Built(_)
            | Input::Proven
            | Input::LimitStored(_)
            | Input::LimitChanged
            | Input::Strangers => {}
        }
    }

    fn held_link_down(&mut self) {
        self.lists = 0;
        let Phase::Held(held) = &mut self.phase else { return };
        held.node.armed = false;
        held.writer.iter_mut().chain(&mut held.guard).for_each(|node| node.armed = false);
        held.way = match std::mem::replace(&mut held.way, Way::Steady) {
            // Whether the guard is there is what the list says.
            Way::Waiting { .. } | Way::Asking { .. } | Way::Checking { .. } | Way::Guarding => {
                Way::Looking
            }
            // The answer to either may be lost, and both can be done again.
            Way::Replacing { reader } => {
                Way::Making { upgradable: tag(&reader) == Some(Tag::Upgradable) }
            }
            other => other,
        };
    }

    /// Looks after what the connection that broke left open; everything that is repeated has the
    /// effect of once.
    fn held_link_up(&mut self, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        out.extend(held.rests_on().into_iter().map(|name| Action::WatchOwn(name.to_owned())));
        out.extend(held.leftovers.iter().cloned().map(Action::Delete));
        match &held.way {
            Way::Steady
            | Way::Waiting { .. }
            | Way::Asking { .. }
            | Way::Checking { .. }
            | Way::Guarding
            | Way::Replacing { .. } => {}
            Way::Creating => out.push(Action::Find { writer: true }),
            Way::Looking => self.list(out),
            Way::Numbering { .. } => {
                out.push(Action::Number { node: held.node.name.clone(), before: None })
            }
            Way::Making { upgradable } => {
                out.push(Action::CreateReader { seq: held.node.seq, upgradable: *upgradable })
            }
        }
    }

    pub(super) fn held_leave(&mut self, out: &mut Vec<Action>) {
        self.leaving = true;
        let Phase::Held(held) = &self.phase else { return };
        if !held.knows_its_nodes() {
            // Whatever is being created is deleted as soon as it is known.
            return;
        }
        let main = held.node.name.clone();
        let mut all: Vec<String> = held.nodes().into_iter().map(str::to_owned).collect();
        let then = if held.lost.is_some() { Then::Nothing } else { Then::Left };
        all.retain(|name| Some(name) != held.lost.as_ref());
        if all.is_empty() {
            self.gone(then, false, out);
        } else {
            self.delete_all(main, all, then, out);
        }
    }

    fn held_seen(&mut self, name: &str, seen: Result<OwnSeen, Code>, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        match seen {
            Ok(seen) if seen.ours => {
                let Some(node) = held.node_called(name) else { return };
                node.armed = true;
                node.czxid = Some(seen.czxid);
                if seen.asked && !std::mem::replace(&mut self.asked, true) {
                    out.push(Action::Say(Say::Asked));
                }
            }
            Ok(_) | Err(Code::NO_NODE) => self.held_happened(name, true, out),
            Err(_) => {}
        }
    }

    fn held_happened(&mut self, name: &str, deleted: bool, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        if held.node_called(name).is_some() {
            if deleted {
                self.lose(name, out);
            } else {
                out.push(Action::WatchOwn(name.to_owned()));
            }
        } else if held.watched() == Some(name) {
            if deleted {
                held.way = Way::Looking;
                self.list(out);
            } else {
                out.push(Action::Watch(name.to_owned()));
            }
        }
    }

    /// A node that the hold rests on is gone: so is the hold, and what is left of it.
    fn lose(&mut self, name: &str, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        if held.lost.replace(name.to_owned()).is_none() {
            out.push(Action::Say(Say::Lost));
        }
        self.held_leave(out);
    }

    fn turn(&mut self, turn: Conversion, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        if held.way != Way::Steady {
            return;
        }
        match turn {
            Conversion::Upgrade if held.writer.is_some() => {
                out.push(Action::Say(Say::Converted { number: held.number }))
            }
            Conversion::Upgrade => {
                held.way = Way::Creating;
                out.push(Action::CreateWriter);
            }
            Conversion::Revert if tag(&held.node).is_some_and(Tag::is_shared) => {
                held.way = Way::Numbering { turn };
                out.push(Action::Number { node: held.node.name.clone(), before: None });
            }
            Conversion::Revert | Conversion::Downgrade => {
                let upgradable = turn == Conversion::Revert;
                held.way = Way::Making { upgradable };
                out.push(Action::CreateReader { seq: held.node.seq, upgradable });
            }
        }
    }

    fn reader_made(&mut self, result: Result<Node, Code>, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        if !matches!(held.way, Way::Making { .. }) {
            return;
        }
        match result {
            Ok(reader) => {
                out.push(Action::WatchOwn(reader.name.clone()));
                // Whoever waits for the node before must hear that its end is not ours.
                out.push(Action::Number {
                    node: reader.name.clone(),
                    before: Some(held.node.name.clone()),
                });
                held.way = Way::Replacing { reader };
            }
            Err(code) => {
                held.way = Way::Steady;
                if !self.leaving {
                    held.came_to(Say::ConversionRefused(code), out);
                }
            }
        }
        if self.leaving {
            self.held_leave(out);
        }
    }

    /// The new number is there.
    fn turned(&mut self, result: Result<i64, Code>, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        let number = match result {
            Ok(number) => number,
            // The node is gone, which is told by its watch.
            Err(Code::NO_NODE) => return,
            Err(code) => return self.not_turned(code, out),
        };
        match std::mem::replace(&mut held.way, Way::Steady) {
            Way::Numbering { turn } => {
                if turn == Conversion::Revert {
                    held.stop_writing(out);
                }
            }
            Way::Replacing { reader } => {
                let before = std::mem::replace(&mut held.node, reader);
                held.leave_over(before.name, out);
                held.stop_writing(out);
            }
            other => {
                held.way = other;
                return;
            }
        }
        held.number = number;
        held.came_to(Say::Converted { number }, out);
    }

    /// The server does not give a new number: everything stays as it was.
    pub(super) fn not_turned(&mut self, code: Code, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        match std::mem::replace(&mut held.way, Way::Steady) {
            Way::Looking | Way::Guarding | Way::Numbering { turn: Conversion::Upgrade } => {
                _ = held.stop_writing(out)
            }
            Way::Replacing { reader } => held.leave_over(reader.name, out),
            _ => {}
        }
        held.came_to(Say::ConversionRefused(code), out);
    }

    fn take_back(&mut self, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        match &held.way {
            // It is deleted as soon as it is known; and a way down leads to no more than there was,
            // so it is gone to its end.
            Way::Creating
            | Way::Making { .. }
            | Way::Replacing { .. }
            | Way::Numbering { turn: Conversion::Revert | Conversion::Downgrade } => {
                held.taking_back = true;
            }
            Way::Steady
            | Way::Looking
            | Way::Waiting { .. }
            | Way::Asking { .. }
            | Way::Checking { .. }
            | Way::Guarding
            | Way::Numbering { turn: Conversion::Upgrade } => {
                held.way = Way::Steady;
                held.taking_back = held.stop_writing(out);
                if !held.taking_back {
                    out.push(Action::Say(Say::TakenBack));
                }
            }
        }
    }
}
