//! One claim's way through the line of a directory: a pure machine, from the first request to the
//! last.
//!
//! A contender is an ephemeral node with a number. Whoever has nobody before it that it cannot
//! share with, holds. The create and the list go out in one flight: the server answers a session in
//! order, so the list shows everything with a smaller number, and nothing smaller can come later
//! but what a hold that is converted leaves. From then on a waiter's set of nodes before it only
//! shrinks, and when it is known to be one node, that node's deletion *is* the grant: nothing is
//! read between the event and it.
//!
//! The watch on the own node is set before any other watch, and events come in the order in which
//! things happened. So a grant by event means that our own node was there when the one before it
//! went, on one connection of one session.
//!
//! A hold's number is the transaction that created its node, which rises along the line. Only a
//! hold that was converted takes a later one. It then changes its node and the directory, so that
//! everybody behind it sees (on the node that is watched, or with the next list) that numbers have
//! moved on, lists before it holds, and takes a later one, too.

mod about;
mod convert;
mod held;
mod leases;
mod look;
mod permits;
mod prefixes;
mod release;
mod waiting;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use self::held::Held;
use self::permits::Queueing;
use self::prefixes::Suspecting;
use self::release::{Deleting, Then};
use self::waiting::Waiting;
pub(super) use self::words::{Action, Conversion, Input, Listing, Node, OwnSeen, Say, Seen, Want};
use super::layout::Child;
use super::proto::Code;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Nothing is under way; on the next link it begins, or looks what a lost create came to.
    Idle,
    /// A try looks first, and writes nothing when it is busy.
    Looking,
    /// A try that is busy asks who holds it.
    Peeking,
    Creating,
    /// All permits are out, this one among them; the directory is watched.
    Full(String),
    Building,
    Finding,
    /// The node is there; the list that shows who is before it is under way.
    Listing(Node),
    Waiting(Waiting),
    /// A child of another prefix is read: who stands there?
    Suspecting(Suspecting),
    /// Until enough permits are free.
    Queueing(Queueing),
    /// It is our turn, and numbers have moved on since our node was created.
    Numbering(Node),
    /// It is our turn with this number, as soon as the session is known to last. What was read may
    /// be old news: the session may have ended since, and its nodes with it.
    Proving(Node, i64),
    Held(Held),
    Deleting(Deleting),
    Over,
}

impl Phase {
    /// Our node, while we stand in line with it.
    fn node(&self) -> Option<&Node> {
        match self {
            Self::Listing(node) | Self::Numbering(node) | Self::Proving(node, _) => Some(node),
            Self::Waiting(Waiting { node, .. })
            | Self::Queueing(Queueing { node, .. })
            | Self::Suspecting(Suspecting { node, .. }) => Some(node),
            _ => None,
        }
    }

    fn node_mut(&mut self) -> Option<&mut Node> {
        match self {
            Self::Listing(node) | Self::Numbering(node) | Self::Proving(node, _) => Some(node),
            Self::Waiting(Waiting { node, .. })
            | Self::Queueing(Queueing { node, .. })
            | Self::Suspecting(Suspecting { node, .. }) => Some(node),
            _ => None,
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Contender {
    want: Want,
    only_try: bool,
    /// The directory belongs to one prefix (see [`prefixes`]).
    one_prefix: bool,
    phase: Phase,
    /// Lists under way; only the last one counts.
    lists: u8,
    /// A create was sent whose reply is lost.
    doubt: bool,
    /// Leave as soon as it is known what there is to leave.
    leaving: bool,
    /// Somebody asked us to let go before we had it.
    asked: bool,
    /// The place in line was told.
    told: bool,
    /// The semaphore's limit was the one that was asked with.
    agreed: bool,
    /// How often the directory was made anew.
    builds: u8,
    /// The latest transaction after which numbers may have moved on.
    moved: i64,
    /// Children that end like contenders and are none.
    ignored: BTreeSet<String>,
    /// The contender of another prefix that was found.
    stranger: Option<String>,
}

/// A directory that goes away this often between two requests is not worth more.
const BUILDS_MAX: u8 = 16;

impl Contender {
    pub(super) fn new(want: Want, only_try: bool) -> Self {
        Self {
            want,
            only_try,
            one_prefix: false,
            phase: Phase::Idle,
            lists: 0,
            doubt: false,
            leaving: false,
            asked: false,
            told: false,
            agreed: false,
            builds: 0,
            moved: 0,
            ignored: BTreeSet::new(),
            stranger: None,
        }
    }

    /// A try whose node is created together with others, by somebody else.
    pub(super) fn created_together(want: Want) -> Self {
        Self { phase: Phase::Creating, ..Self::new(want, true) }
    }

    /// One step.
    pub(super) fn step(&mut self, input: Input, out: &mut Vec<Action>) {
        if let Phase::Held(_) = self.phase {
            return self.step_held(input, out);
        }
        match input {
            Input::LinkUp => self.link_up(out),
            Input::LinkDown => self.link_down(),
            Input::SessionEnded => self.session_ended(out),
            Input::Created(result) => self.created(result, out),
            Input::Built(result) => self.built(result, out),
            Input::Listed(result) => self.listed(result, out),
            Input::Own(name, seen) => self.own_seen(&name, seen, out),
            Input::Watched(name, seen) => self.watched_seen(&name, seen, out),
            Input::Peeked(name, seen) => self.peeked(&name, seen, out),
            Input::Found(nodes) => self.found(nodes, out),
            Input::Deleted(name, result) => self.deleted(&name, result, out),
            Input::Numbered(result) => self.numbered(result, out),
            Input::Proven => self.proven(out),
            Input::Happened { name, deleted } => self.happened(&name, deleted, out),
            Input::Leave => self.leave(out),
            Input::Conversion(_) => out.push(Action::Say(Say::ConversionRefused(Code::NO_NODE))),
            Input::TakeBack => out.push(Action::Say(Say::TakenBack)),
            Input::LimitStored(result) => self.limit_stored(result, out),
            Input::LimitChanged => self.limit_changed(out),
            Input::Strangers => self.strangers_seen(out),
            Input::Made(_) | Input::Guarded(..) | Input::Whose { .. } => {}
        }
    }

    fn link_up(&mut self, out: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Idle if self.doubt => {
                self.phase = Phase::Finding;
                out.push(Action::Find { writer: false });
            }
            Phase::Idle if self.leaving => self.over(Say::Left { ours: true }, out),
            Phase::Idle => self.begin(out),
            Phase::Listing(node) => {
                out.push(Action::WatchOwn(node.name.clone()));
                self.list(out);
            }
            Phase::Deleting(deleting) => {
                deleting.again = true;
                out.extend(deleting.left.iter().cloned().map(Action::Delete));
            }
            _ => {}
        }
    }

    fn link_down(&mut self) {
        self.lists = 0;
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Creating | Phase::Finding => {
                self.doubt = true;
                Phase::Idle
            }
            Phase::Looking | Phase::Full(_) | Phase::Peeking | Phase::Building => Phase::Idle,
            Phase::Waiting(Waiting { node, .. })
            | Phase::Queueing(Queueing { node, .. })
            | Phase::Listing(node)
            | Phase::Numbering(node)
            | Phase::Suspecting(Suspecting { node, .. })
            | Phase::Proving(node, _) => Phase::Listing(Node { armed: false, ..node }),
            other => other,
        };
    }

    fn session_ended(&mut self, out: &mut Vec<Action>) {
        self.link_down();
        self.doubt = false;
        match &self.phase {
            Phase::Over => {}
            Phase::Deleting(deleting) => {
                // Nobody had said that it was gone before.
                let ours =
                    deleting.ours || deleting.stuck || deleting.left.contains(&deleting.main);
                let then = deleting.then;
                self.gone(then, ours, out);
            }
            _ if self.leaving => self.over(Say::Left { ours: true }, out),
            // It stands again in the next session, at the end of the line.
            _ => self.phase = Phase::Idle,
        }
    }

    fn begin(&mut self, out: &mut Vec<Action>) {
        if self.only_try || self.one_prefix || self.counts().is_some() {
            self.phase = Phase::Looking;
            self.list(out);
        } else {
            self.create(out);
        }
    }

    fn create(&mut self, out: &mut Vec<Action>) {
        if self.counts().is_some() {
            return self.begin(out);
        }
        self.phase = Phase::Creating;
        // Whatever moved on before is below the number of a node that is created now.
        self.moved = 0;
        out.push(Action::Create);
        self.list(out);
    }

    fn list(&mut self, out: &mut Vec<Action>) {
        self.lists = self.lists.saturating_add(1);
        out.push(Action::List);
    }

    fn over(&mut self, say: Say, out: &mut Vec<Action>) {
        self.phase = Phase::Over;
        out.push(Action::Say(say));
    }

    fn created(&mut self, result: Result<Node, Code>, out: &mut Vec<Action>) {
        if self.phase != Phase::Creating
            && !(self.phase == Phase::Looking && self.counts().is_some())
        {
            return;
        }
        match result {
            Ok(node) if self.leaving => self.delete(node, Then::Left, out),
            Ok(node) => {
                out.push(Action::WatchOwn(node.name.clone()));
                if node.czxid.is_none() {
                    // The list that counts is the one that follows the answer about our own node.
                    self.list(out);
                }
                self.phase = Phase::Listing(node);
            }
            Err(_) if self.leaving => self.over(Say::Left { ours: true }, out),
            // Somebody said the limit meanwhile.
            Err(Code::BAD_VERSION) if self.counts().is_some() => self.begin(out),
            Err(Code::NO_NODE) if self.builds < BUILDS_MAX => {
                self.builds += 1;
                self.phase = Phase::Building;
                out.push(Action::Build);
            }
            Err(code) => self.over(Say::Refused(code), out),
        }
    }

    fn built(&mut self, result: Result<(), Code>, out: &mut Vec<Action>) {
        if self.phase != Phase::Building {
            return;
        }
        match result {
            Ok(()) => self.create(out),
            Err(code) => self.over(Say::Refused(code), out),
        }
    }

    fn listed(&mut self, result: Result<Listing, Code>, out: &mut Vec<Action>) {
        self.lists = self.lists.saturating_sub(1);
        if self.lists > 0 {
            return;
        }
        match (&self.phase, result) {
            (Phase::Full(_), Ok(listing)) => self.looked(&listing, out),
            (Phase::Full(_), Err(_)) => self.begin(out),
            (Phase::Looking, Ok(listing)) => self.looked(&listing, out),
            (Phase::Looking, Err(Code::NO_NODE)) if self.counts().is_some() => {
                self.created(Err(Code::NO_NODE), out)
            }
            // Nobody ever stood there.
            (Phase::Looking, Err(Code::NO_NODE)) => self.create(out),
            (Phase::Looking, Err(code)) => self.over(Say::Refused(code), out),
            (Phase::Listing(node) | Phase::Queueing(Queueing { node, .. }), Ok(listing))
                if self.want.permits().is_some() =>
            {
                let node = node.clone();
                self.decide_permits(node, listing, out);
            }
            (Phase::Listing(node), Ok(listing)) if self.counts().is_some() => {
                let node = node.clone();
                // It is ours, if nobody took it away meanwhile.
                let there = listing.children.iter().any(|c| c.name == node.name);
                if there { self.our_turn(node, out) } else { self.begin(out) }
            }
            (Phase::Listing(node) | Phase::Waiting(Waiting { node, .. }), Ok(listing)) => {
                let node = node.clone();
                self.moved = self.moved.max(listing.mzxid);
                self.decide(node, listing.children, out);
            }
            // The directory went with everything in it.
            (Phase::Listing(_) | Phase::Waiting(_) | Phase::Queueing(_), Err(Code::NO_NODE)) => {
                self.create(out)
            }
            (
                Phase::Listing(node)
                | Phase::Waiting(Waiting { node, .. })
                | Phase::Queueing(Queueing { node, .. }),
                Err(code),
            ) => {
                // We may create there and not look: no way to learn whether it is our turn.
                let node = node.clone();
                self.delete(node, Then::Refused(code), out);
            }
            _ => {}
        }
    }

    /// Nobody is before us.
    fn our_turn(&mut self, node: Node, out: &mut Vec<Action>) {
        match node.czxid {
            Some(czxid) if self.moved <= czxid => self.grant(node, czxid, out),
            Some(_) => {
                out.push(Action::Number { node: node.name.clone(), before: None });
                self.phase = Phase::Numbering(node);
            }
            // The create's answer said it, or that to our own node's read, which was sent before
            // the list.
            None => self.delete(node, Then::Refused(Code::RUNTIME_INCONSISTENCY), out),
        }
    }

    fn numbered(&mut self, result: Result<i64, Code>, out: &mut Vec<Action>) {
        let Phase::Numbering(node) = &self.phase else { return };
        let node = node.clone();
        match result {
            Ok(number) => self.grant(node, number, out),
            Err(Code::NO_NODE) => self.create(out),
            Err(code) => self.delete(node, Then::Refused(code), out),
        }
    }

    fn grant(&mut self, node: Node, number: i64, out: &mut Vec<Action>) {
        self.phase = Phase::Proving(node, number);
        out.push(Action::Prove);
    }

    fn proven(&mut self, out: &mut Vec<Action>) {
        let Phase::Proving(node, number) = &self.phase else { return };
        let (node, number) = (node.clone(), *number);
        self.phase = Phase::Held(Held::new(node, number));
        out.push(Action::Say(Say::Granted { number }));
        if self.asked {
            out.push(Action::Say(Say::Asked));
        }
    }

    fn own_seen(&mut self, name: &str, seen: Result<OwnSeen, Code>, out: &mut Vec<Action>) {
        let Some(node) = self.phase.node_mut().filter(|node| node.name == name) else { return };
        match seen {
            Ok(seen) if seen.ours => {
                node.armed = true;
                node.czxid = Some(seen.czxid);
                self.asked |= seen.asked;
            }
            Ok(_) | Err(Code::NO_NODE) => self.create(out),
            Err(code) => {
                // A node that we cannot watch could be taken away without our knowing.
                let node = node.clone();
                self.delete(node, Then::Refused(code), out);
            }
        }
    }

    /// What a create whose reply was lost came to.
    fn found(&mut self, nodes: Result<Vec<Child>, Code>, out: &mut Vec<Action>) {
        if self.phase != Phase::Finding {
            return;
        }
        let Ok(nodes) = nodes else {
            // Asked again by whoever asks for the claim, or on the next link: to begin anew could
            // mean to wait behind ourselves.
            self.phase = Phase::Idle;
            return;
        };
        self.doubt = false;
        let first = first_of(nodes, out);
        match first {
            Some(Child { name, seq, .. }) => {
                let node = Node::new(name, seq, None);
                if self.leaving {
                    return self.delete(node, Then::Left, out);
                }
                out.push(Action::WatchOwn(node.name.clone()));
                self.list(out);
                self.phase = Phase::Listing(node);
            }
            None if self.leaving => self.over(Say::Left { ours: true }, out),
            None => self.begin(out),
        }
    }
}

/// Keeps the first of our nodes and discards the others: a create whose reply was lost may have
/// been sent twice.
fn first_of(nodes: Vec<Child>, out: &mut Vec<Action>) -> Option<Child> {
    let first =
        nodes.iter().reduce(|first, c| if c.is_before(first.seq) { c } else { first }).cloned()?;
    out.extend(nodes.into_iter().filter(|c| c.name != first.name).map(|c| Action::Discard(c.name)));
    Some(first)
}
