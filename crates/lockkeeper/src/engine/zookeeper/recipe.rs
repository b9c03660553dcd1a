//! One claim's way through the line of a directory: a pure machine, from the first request to the last.
//!
//! A contender is an ephemeral node with a number. Whoever has nobody before it that it cannot share with, holds. The
//! create and the list go out in one flight: the server answers a session in order, so the list shows everything with a
//! smaller number, and nothing smaller can come later. From then on a waiter's set of nodes before it only shrinks, and
//! when it is known to be one node, that node's deletion *is* the grant: nothing is read between the event and it.
//!
//! The watch on the own node is set before any other watch, and events come in the order in which things happened. So a
//! grant by event means that our own node was there when the one before it went, on one connection of one session.

use std::collections::BTreeSet;

use super::layout::{Child, Tag};
use super::proto::Code;

/// How a claim stands in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Want {
    Exclusive,
    Shared,
}

impl Want {
    fn excludes(self, tag: Tag) -> bool {
        self == Self::Exclusive || !tag.is_shared()
    }
}

/// Our node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) seq: i32,
    /// The transaction that created it; not known yet of a node that was found again.
    pub(super) czxid: Option<i64>,
    /// It is watched on this connection.
    armed: bool,
}

impl Node {
    pub(super) fn new(name: String, seq: i32, czxid: Option<i64>) -> Self {
        Self { name, seq, czxid, armed: false }
    }
}

/// A node that somebody else may stand at, as its data was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Seen {
    Here,
    Gone,
    /// A directory of another name that ends like a contender; nobody stands there.
    NoContender,
}

/// Our own node, as its data was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwnSeen {
    pub(super) czxid: i64,
    /// It lives with our session.
    pub(super) ours: bool,
    /// Its data asks the holder to let go.
    pub(super) asked: bool,
}

/// What happens to a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Input {
    /// The link is up: begin, or go on after it was down.
    LinkUp,
    /// Every reply that was outstanding is lost, every watch gone.
    LinkDown,
    /// The session is over and its nodes with it.
    SessionEnded,
    Created(Result<Node, Code>),
    Built(Result<(), Code>),
    Listed(Result<Vec<Child>, Code>),
    /// Our node was read and watched; `Err(NO_NODE)`: it is gone.
    Own(Result<OwnSeen, Code>),
    /// Somebody's data was read and a watch set.
    Watched(String, Seen),
    /// Somebody's data was read.
    Peeked(String, Seen),
    /// Nodes of this claim that this session owns.
    Found(Vec<Child>),
    Deleted(Result<(), Code>),
    /// A watch told that this node was deleted, or else changed.
    Happened {
        name: String,
        deleted: bool,
    },
    /// Leave the line, or give the hold back.
    Leave,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// Create our node.
    Create,
    /// Make the directory and what is missing above it.
    Build,
    /// List the directory.
    List,
    /// Read our node and watch it.
    WatchOwn(String),
    /// Read another node and watch it.
    Watch(String),
    /// Read another node: who stands there?
    Peek(String),
    /// Ask for this session's nodes that carry our id.
    Find,
    Delete(String),
    /// Delete a second node of ours, made by a create whose reply was lost; nobody waits for the answer.
    Discard(String),
    /// Tell what it came to.
    Say(Say),
}

/// What a claim came to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Say {
    Granted {
        czxid: i64,
    },
    /// `first` is the one at the head of the line.
    InLine {
        ahead: u32,
        first: String,
    },
    /// Somebody is before us, and nothing of ours is there.
    Busy,
    /// The server refuses; nothing of ours is there.
    Refused(Code),
    /// The hold's node is gone.
    Lost,
    /// Somebody asks the holder to let go.
    Asked,
    /// Our node is gone; `ours`: by our own request.
    Left {
        ours: bool,
    },
    /// The server does not let us delete our own node.
    Stuck(Code),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Nothing is under way; on the next link it begins, or looks what a lost create came to.
    Idle,
    /// A try looks first, and writes nothing when it is busy.
    Looking,
    /// A try that is busy asks who holds it.
    Peeking,
    Creating,
    Building,
    Finding,
    /// The node is there; the list that shows who is before it is under way.
    Listing(Node),
    Waiting(Waiting),
    Held(Node),
    Deleting(Deleting),
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Deleting {
    node: Node,
    then: Then,
    /// It was sent before, and the answer was lost with the link.
    again: bool,
    /// The server refuses it.
    stuck: bool,
}

/// What is told once the node is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    Left,
    Busy,
    Refused(Code),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    node: Node,
    /// The nearest node before us.
    before: Child,
    /// It is the only one before us: its deletion is the grant.
    last: bool,
    /// The one before that, watched so that the list is taken before it matters.
    next: Option<String>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Contender {
    want: Want,
    only_try: bool,
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
    /// How often the directory was made anew.
    builds: u8,
    /// Children that end like contenders and are none.
    ignored: BTreeSet<String>,
}

/// A directory that goes away this often between two requests is not worth more.
const BUILDS_MAX: u8 = 16;

impl Contender {
    pub(super) fn new(want: Want, only_try: bool) -> Self {
        Self {
            want,
            only_try,
            phase: Phase::Idle,
            lists: 0,
            doubt: false,
            leaving: false,
            asked: false,
            told: false,
            builds: 0,
            ignored: BTreeSet::new(),
        }
    }

    /// Our node, as far as it is known.
    pub(super) fn node(&self) -> Option<&Node> {
        match &self.phase {
            Phase::Listing(node) | Phase::Held(node) => Some(node),
            Phase::Waiting(waiting) => Some(&waiting.node),
            Phase::Deleting(deleting) => Some(&deleting.node),
            _ => None,
        }
    }

    /// The hold's number, once it is held.
    pub(super) fn held(&self) -> Option<i64> {
        match &self.phase {
            Phase::Held(node) => node.czxid,
            _ => None,
        }
    }

    /// How it stands in line: the node before ours, and whether that is the last one.
    pub(super) fn waits_for(&self) -> Option<(&str, bool)> {
        match &self.phase {
            Phase::Waiting(w) => Some((&w.before.name, w.last)),
            _ => None,
        }
    }

    /// Whether anything of ours may be there.
    pub(super) fn left_nothing(&self) -> bool {
        match self.phase {
            Phase::Idle | Phase::Looking | Phase::Peeking | Phase::Building => !self.doubt,
            Phase::Over => true,
            _ => false,
        }
    }

    /// Whether it is over and can be forgotten.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether it is on its way out.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving || matches!(self.phase, Phase::Deleting(_) | Phase::Over)
    }

    /// The watches it has on other nodes.
    pub(super) fn watched(&self) -> impl Iterator<Item = &str> {
        let waiting = if let Phase::Waiting(w) = &self.phase { Some(w) } else { None };
        waiting.into_iter().flat_map(|w| [Some(w.before.name.as_str()), w.next.as_deref()]).flatten()
    }

    /// One step.
    pub(super) fn step(&mut self, input: Input, out: &mut Vec<Action>) {
        match input {
            Input::LinkUp => self.link_up(out),
            Input::LinkDown => self.link_down(),
            Input::SessionEnded => self.session_ended(out),
            Input::Created(result) => self.created(result, out),
            Input::Built(result) => self.built(result, out),
            Input::Listed(result) => self.listed(result, out),
            Input::Own(seen) => self.own_seen(seen, out),
            Input::Watched(name, seen) => self.watched_seen(&name, seen, out),
            Input::Peeked(name, seen) => self.peeked(name, seen, out),
            Input::Found(nodes) => self.found(nodes, out),
            Input::Deleted(result) => self.deleted(result, out),
            Input::Happened { name, deleted } => self.happened(&name, deleted, out),
            Input::Leave => self.leave(out),
        }
    }

    fn link_up(&mut self, out: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Idle if self.doubt => {
                self.phase = Phase::Finding;
                out.push(Action::Find);
            }
            Phase::Idle if self.leaving => self.over(Say::Left { ours: true }, out),
            Phase::Idle => self.begin(out),
            Phase::Listing(node) => {
                out.push(Action::WatchOwn(node.name.clone()));
                self.list(out);
            }
            Phase::Held(node) => out.push(Action::WatchOwn(node.name.clone())),
            Phase::Deleting(deleting) => {
                deleting.again = true;
                out.push(Action::Delete(deleting.node.name.clone()));
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
            Phase::Looking | Phase::Peeking | Phase::Building => Phase::Idle,
            Phase::Waiting(Waiting { node, .. }) | Phase::Listing(node) => Phase::Listing(Node { armed: false, ..node }),
            Phase::Held(node) => Phase::Held(Node { armed: false, ..node }),
            other => other,
        };
    }

    fn session_ended(&mut self, out: &mut Vec<Action>) {
        self.link_down();
        self.doubt = false;
        match &self.phase {
            Phase::Over => {}
            Phase::Held(_) => self.phase = Phase::Over,
            Phase::Deleting(deleting) => {
                let ours = deleting.stuck;
                let then = deleting.then;
                self.gone(then, ours, out);
            }
            _ if self.leaving => self.over(Say::Left { ours: true }, out),
            // It stands again in the next session, at the end of the line.
            _ => self.phase = Phase::Idle,
        }
    }

    fn begin(&mut self, out: &mut Vec<Action>) {
        if self.only_try {
            self.phase = Phase::Looking;
            self.list(out);
        } else {
            self.create(out);
        }
    }

    fn create(&mut self, out: &mut Vec<Action>) {
        self.phase = Phase::Creating;
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
        if self.phase != Phase::Creating {
            return;
        }
        match result {
            Ok(node) if self.leaving => self.delete(node, Then::Left, out),
            Ok(node) => {
                out.push(Action::WatchOwn(node.name.clone()));
                self.phase = Phase::Listing(node);
            }
            Err(_) if self.leaving => self.over(Say::Left { ours: true }, out),
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

    fn listed(&mut self, result: Result<Vec<Child>, Code>, out: &mut Vec<Action>) {
        self.lists = self.lists.saturating_sub(1);
        if self.lists > 0 {
            return;
        }
        match (&self.phase, result) {
            (Phase::Looking, Ok(children)) => self.looked(&children, out),
            // Nobody ever stood there.
            (Phase::Looking, Err(Code::NO_NODE)) => self.create(out),
            (Phase::Looking, Err(code)) => self.over(Say::Refused(code), out),
            (Phase::Listing(node) | Phase::Waiting(Waiting { node, .. }), Ok(children)) => {
                let node = node.clone();
                self.decide(node, children, out);
            }
            // The directory went with everything in it.
            (Phase::Listing(_) | Phase::Waiting(_), Err(Code::NO_NODE)) => self.create(out),
            (Phase::Listing(node) | Phase::Waiting(Waiting { node, .. }), Err(code)) => {
                // We may create there and not look: no way to learn whether it is our turn.
                let node = node.clone();
                self.delete(node, Then::Refused(code), out);
            }
            _ => {}
        }
    }

    /// A try has looked.
    fn looked(&mut self, children: &[Child], out: &mut Vec<Action>) {
        let others = children.iter().filter(|c| self.want.excludes(c.tag) && !self.ignored.contains(&c.name));
        let first = others.reduce(|first, c| if c.is_before(first.seq) { c } else { first });
        match first {
            None => self.create(out),
            Some(first) => {
                self.phase = Phase::Peeking;
                out.push(Action::Peek(first.name.clone()));
            }
        }
    }

    /// The list that was taken after our create: is it our turn, and whom do we wait for?
    fn decide(&mut self, node: Node, children: Vec<Child>, out: &mut Vec<Action>) {
        if !children.iter().any(|c| c.name == node.name) {
            // Somebody deleted it: stand again, at the end.
            return self.create(out);
        }
        let counts = |c: &Child| c.is_before(node.seq) && self.want.excludes(c.tag) && !self.ignored.contains(&c.name);
        let mut before: Vec<Child> = children.into_iter().filter(counts).collect();
        before.sort_unstable_by_key(|c| (node.seq.wrapping_sub(c.seq), c.tag));
        let ahead = u32::try_from(before.len()).unwrap_or(u32::MAX);
        let first = before.last().map(|c| c.name.clone());
        let mut before = before.into_iter();
        let Some(nearest) = before.next() else { return self.grant(node, out) };
        if self.only_try {
            return self.delete(node, Then::Busy, out);
        }
        // After a writer of Curator's rw-lock a list is taken anyway.
        let next = before.next().map(|c| c.name).filter(|_| nearest.tag != Tag::Write);
        let already: Vec<String> = self.watched().map(str::to_owned).collect();
        for name in [Some(&nearest.name), next.as_ref()].into_iter().flatten() {
            if !already.contains(name) {
                out.push(Action::Watch(name.clone()));
            }
        }
        if !self.told {
            self.told = true;
            let first = first.unwrap_or_else(|| nearest.name.clone());
            if first != nearest.name {
                out.push(Action::Peek(first.clone()));
            }
            out.push(Action::Say(Say::InLine { ahead, first }));
        }
        self.phase = Phase::Waiting(Waiting { node, before: nearest, last: ahead == 1, next });
    }

    fn grant(&mut self, node: Node, out: &mut Vec<Action>) {
        // The create's answer said it, or that to our own node's read, which was sent before the list.
        let Some(czxid) = node.czxid else { return self.delete(node, Then::Refused(Code::RUNTIME_INCONSISTENCY), out) };
        self.phase = Phase::Held(node);
        out.push(Action::Say(Say::Granted { czxid }));
        if self.asked {
            out.push(Action::Say(Say::Asked));
        }
    }

    fn delete(&mut self, node: Node, then: Then, out: &mut Vec<Action>) {
        out.push(Action::Delete(node.name.clone()));
        self.phase = Phase::Deleting(Deleting { node, then, again: false, stuck: false });
    }

    fn own_seen(&mut self, seen: Result<OwnSeen, Code>, out: &mut Vec<Action>) {
        let seen = match seen {
            Ok(seen) if seen.ours => seen,
            Ok(_) | Err(Code::NO_NODE) => return self.own_gone(out),
            Err(code) => {
                if let Phase::Listing(node) | Phase::Waiting(Waiting { node, .. }) = &self.phase {
                    // A node that we cannot watch could be taken away without our knowing.
                    let node = node.clone();
                    self.delete(node, Then::Refused(code), out);
                }
                return;
            }
        };
        match &mut self.phase {
            Phase::Listing(node) | Phase::Waiting(Waiting { node, .. }) => {
                node.armed = true;
                node.czxid = Some(seen.czxid);
                self.asked |= seen.asked;
            }
            Phase::Held(node) => {
                node.armed = true;
                if seen.asked && !self.asked {
                    out.push(Action::Say(Say::Asked));
                }
                self.asked |= seen.asked;
            }
            _ => {}
        }
    }

    fn own_gone(&mut self, out: &mut Vec<Action>) {
        match self.phase {
            Phase::Held(_) => self.over(Say::Lost, out),
            Phase::Listing(_) | Phase::Waiting(_) => self.create(out),
            _ => {}
        }
    }

    fn happened(&mut self, name: &str, deleted: bool, out: &mut Vec<Action>) {
        if self.node().is_some_and(|node| node.name == name) {
            match &self.phase {
                Phase::Deleting(_) => {}
                _ if deleted => self.own_gone(out),
                _ => out.push(Action::WatchOwn(name.to_owned())),
            }
            return;
        }
        let Phase::Waiting(waiting) = &mut self.phase else { return };
        if !deleted {
            if waiting.before.name == name || waiting.next.as_deref() == Some(name) {
                out.push(Action::Watch(name.to_owned()));
            }
        } else if waiting.before.name == name {
            let certain = waiting.last && waiting.node.armed && waiting.before.tag != Tag::Write;
            if certain && self.lists == 0 {
                let node = waiting.node.clone();
                self.grant(node, out);
            } else if self.lists == 0 {
                self.list(out);
            }
        } else if waiting.next.as_deref() == Some(name) {
            waiting.next = None;
            if self.lists == 0 {
                self.list(out);
            }
        }
    }

    fn watched_seen(&mut self, name: &str, seen: Seen, out: &mut Vec<Action>) {
        match seen {
            Seen::Here => {}
            Seen::Gone => self.happened(name, true, out),
            Seen::NoContender => self.ignore(name, out),
        }
    }

    fn peeked(&mut self, name: String, seen: Seen, out: &mut Vec<Action>) {
        match seen {
            Seen::NoContender => self.ignore(&name, out),
            _ if self.phase == Phase::Peeking => self.over(Say::Busy, out),
            _ => {}
        }
    }

    /// A child that is no contender: look again without it.
    fn ignore(&mut self, name: &str, out: &mut Vec<Action>) {
        self.ignored.insert(name.to_owned());
        match self.phase {
            Phase::Peeking => {
                self.phase = Phase::Looking;
                self.list(out);
            }
            Phase::Waiting(_) if self.lists == 0 => self.list(out),
            _ => {}
        }
    }

    /// What a create whose reply was lost came to.
    fn found(&mut self, nodes: Vec<Child>, out: &mut Vec<Action>) {
        if self.phase != Phase::Finding {
            return;
        }
        self.doubt = false;
        let first = nodes.iter().reduce(|first, c| if c.is_before(first.seq) { c } else { first }).cloned();
        for other in nodes.into_iter().filter(|c| first.as_ref().is_some_and(|f| f.name != c.name)) {
            out.push(Action::Discard(other.name));
        }
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

    fn deleted(&mut self, result: Result<(), Code>, out: &mut Vec<Action>) {
        let Phase::Deleting(deleting) = &mut self.phase else { return };
        // Gone already: by the request whose answer was lost, as the name is nobody else's; else by somebody's hand.
        let again = deleting.again;
        let then = deleting.then;
        match result {
            Ok(()) => self.gone(then, true, out),
            Err(Code::NO_NODE) => self.gone(then, again, out),
            Err(code) => {
                deleting.stuck = true;
                out.push(Action::Say(Say::Stuck(code)));
            }
        }
    }

    /// Our node is there no more.
    fn gone(&mut self, then: Then, ours: bool, out: &mut Vec<Action>) {
        self.over(
            match then {
                Then::Left => Say::Left { ours },
                Then::Busy => Say::Busy,
                Then::Refused(code) => Say::Refused(code),
            },
            out,
        );
    }

    fn leave(&mut self, out: &mut Vec<Action>) {
        self.leaving = true;
        match &mut self.phase {
            Phase::Idle if self.doubt => {}
            Phase::Idle | Phase::Looking | Phase::Peeking | Phase::Building => self.over(Say::Left { ours: true }, out),
            Phase::Listing(node) | Phase::Held(node) | Phase::Waiting(Waiting { node, .. }) => {
                let node = node.clone();
                self.delete(node, Then::Left, out);
            }
            // On its way out already; now somebody waits to hear that it is.
            Phase::Deleting(deleting) => {
                deleting.then = Then::Left;
                if std::mem::take(&mut deleting.stuck) {
                    out.push(Action::Delete(deleting.node.name.clone()));
                }
            }
            Phase::Creating | Phase::Finding => {}
            Phase::Over => out.push(Action::Say(Say::Left { ours: false })),
        }
    }
}
