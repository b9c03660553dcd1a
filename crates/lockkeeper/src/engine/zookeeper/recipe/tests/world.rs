//! The model: a server's directory, its clients, and everything that can happen to them next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::*;
use crate::engine::zookeeper::layout::{Tag, write_seq};

/// What the server keeps of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stored {
    owner: usize,
    czxid: i64,
    mzxid: i64,
}

/// A message on its way to a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Down {
    Reply(Input),
    Event { name: String, deleted: bool },
}

/// One client, with what is on its way to and from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    machine: Contender,
    up: VecDeque<Action>,
    down: VecDeque<Down>,
    connected: bool,
    /// The session is over, and the client has not heard of that.
    over: bool,
    /// What it still is to do: it asks for another way to hold, or leaves.
    script: Vec<Input>,
    converts: bool,
    /// How often it asked to write; the names of a conversion's nodes are its own.
    turns: u8,
    /// It has asked for something that has not come to anything.
    turning: bool,
    holds: Option<Want>,
    number: i64,
    answered: bool,
}

/// A directory, the order of its transactions, and the clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    nodes: BTreeMap<String, Stored>,
    dir_mzxid: i64,
    limit: Option<u16>,
    zxid: i64,
    next_seq: i32,
    watches: BTreeSet<(String, usize)>,
    clients: Vec<Client>,
    cuts_left: u8,
    ends_left: u8,
    /// How often somebody leaves who waits.
    withdrawals_left: u8,
    /// Names are kazoo's, in which a writer looks like a mutex.
    kazoo: bool,
    /// Numbers under which somebody held, in the order in which they did.
    exclusive: i64,
    any: i64,
    flaw: Option<Flaw>,
}

/// What careless recipes get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Flaw {
    /// Nobody tells the client that its session is over (Z1).
    IgnoresSessionLoss,
    /// It lists through a server that has not heard of the others' nodes yet (Z4).
    ListsElsewhere,
    /// It holds as soon as it reads that it is its turn, however old the news (Z1).
    BelievesOldNews,
}

const LETTERS: [&str; 4] = ["a", "b", "c", "d"];

impl World {
    pub(super) fn new(wants: &[(Want, bool, &[Input])], cuts: u8) -> Self {
        let clients = wants.iter().map(|(want, only_try, script)| Client {
            machine: Contender::new(*want, *only_try),
            up: VecDeque::new(),
            down: VecDeque::new(),
            connected: false,
            over: false,
            script: script.iter().rev().cloned().collect(),
            converts: script.iter().any(|input| matches!(input, Input::Turn(_))),
            turns: 0,
            turning: false,
            holds: None,
            number: 0,
            answered: false,
        });
        let mut world = Self {
            nodes: BTreeMap::new(),
            dir_mzxid: 1,
            limit: None,
            zxid: 1,
            next_seq: i32::MAX - 1,
            watches: BTreeSet::new(),
            clients: clients.collect(),
            cuts_left: cuts,
            ends_left: 0,
            withdrawals_left: 0,
            kazoo: false,
            exclusive: 0,
            any: 0,
            flaw: None,
        };
        for at in 0..world.clients.len() {
            world.make(at, Move::Connect);
        }
        world
    }

    pub(super) fn with_cuts(self, cuts_left: u8) -> Self {
        Self { cuts_left, ..self }
    }

    pub(super) fn with_ends(self, ends_left: u8) -> Self {
        Self { ends_left, ..self }
    }

    pub(super) fn with_withdrawals(self, withdrawals_left: u8) -> Self {
        Self { withdrawals_left, ..self }
    }

    pub(super) fn with_kazoos_names(self) -> Self {
        Self { kazoo: true, ..self }
    }

    pub(super) fn with_flaw(self, flaw: Flaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }

    fn step(&mut self, at: usize, input: Input) {
        let mut out = Vec::new();
        self.clients[at].machine.step(input, &mut out);
        for action in out {
            match action {
                Action::Say(say) => self.said(at, say),
                Action::Prove if self.flaw == Some(Flaw::BelievesOldNews) => self.step(at, Input::Proven),
                action if self.clients[at].connected => self.clients[at].up.push_back(action),
                _ => {}
            }
        }
    }

    fn said(&mut self, at: usize, say: Say) {
        let want = self.clients[at].machine.want;
        if matches!(say, Say::Turned { .. } | Say::TakenBack) {
            self.clients[at].turning = false;
        }
        match say {
            Say::Granted { number } => {
                self.clients[at].answered = true;
                self.holds(at, want, number);
            }
            // Its time was over before its session was.
            Say::Turned { .. } if self.clients[at].over => {}
            Say::Turned { number } => {
                let rests = self.clients[at].machine.rests_on();
                let to = match rests.first().map(|name| Self::child(name).tag) {
                    Some(Tag::Upgradable) if rests.len() > 1 => Want::Exclusive,
                    Some(Tag::Upgradable) => Want::Upgradable,
                    _ => Want::Shared,
                };
                if self.clients[at].holds == Some(to) && self.clients[at].number == number {
                    // It was told again.
                    return;
                }
                self.clients[at].holds = None;
                self.holds(at, to, number);
            }
            Say::Lost => self.clients[at].holds = None,
            Say::Busy | Say::Refused(_) | Say::OtherLimit(_) | Say::Left { .. } => self.clients[at].answered = true,
            Say::InLine { .. } | Say::Asked | Say::TurnWaits | Say::TakenBack => {}
            Say::Stuck(code) | Say::TurnRefused(code) => panic!("{code:?}"),
        }
    }

    /// The rules that no history may break.
    fn holds(&mut self, at: usize, want: Want, number: i64) {
        if want.permits().is_some() {
            self.clients[at].holds = Some(want);
            let out: u16 = self.clients.iter().filter_map(|c| c.holds?.permits()).sum();
            assert!(Some(out) <= self.limit, "{out} permits are out: {self:#?}");
            return;
        }
        for (other, client) in self.clients.iter().enumerate().filter(|(other, _)| *other != at) {
            let together = match (client.holds, want) {
                (None, _) => true,
                (Some(Want::Exclusive), _) | (_, Want::Exclusive) | (Some(Want::Upgradable), Want::Upgradable) => false,
                _ => true,
            };
            assert!(together, "{at} as {want:?} beside {other} as {:?}: {self:#?}", client.holds);
        }
        if want == Want::Exclusive {
            assert!(number > self.any, "R7: {number} after {}: {self:#?}", self.any);
            self.exclusive = number;
        } else {
            assert!(number > self.exclusive, "R7: a reader's {number} after a writer's {}: {self:#?}", self.exclusive);
        }
        self.any = self.any.max(number);
        self.clients[at].holds = Some(want);
        self.clients[at].number = number;
    }

    fn child(name: &str) -> Child {
        Child::read(name).unwrap()
    }

    fn fire(&mut self, name: &str, deleted: bool) {
        let fired: Vec<_> = self.watches.iter().filter(|(n, _)| n == name).cloned().collect();
        for watch in fired {
            self.clients[watch.1].down.push_back(Down::Event { name: name.to_owned(), deleted });
            self.watches.remove(&watch);
        }
    }

    fn create(&mut self, at: usize, tag: Tag, seq: Option<i32>) -> Result<Node, Code> {
        self.zxid += 1;
        let turn = if tag == Tag::Write && seq.is_none() { self.clients[at].turns.to_string() } else { String::new() };
        let guid = if tag == Tag::Upgradable { LETTERS[at].to_uppercase() } else { LETTERS[at].to_owned() } + &turn;
        let word = match tag {
            Tag::Lock | Tag::Write if self.kazoo => "__lock__",
            Tag::Lock => "-lock-",
            Tag::Write => "-__WRIT__",
            _ if self.kazoo => "__rlock__",
            _ => "-__READ__",
        };
        let number = seq.unwrap_or(self.next_seq);
        let name = match tag {
            Tag::Permits(count) => format!("{guid}-permits-{count}-{}", write_seq(number)),
            _ if self.kazoo => format!("{guid}{word}{}", write_seq(number)),
            _ => format!("_c_{guid}{word}{}", write_seq(number)),
        };
        if self.nodes.contains_key(&name) {
            return Ok(Node::new(name, number, None));
        }
        self.next_seq = self.next_seq.wrapping_add(1);
        self.nodes.insert(name.clone(), Stored { owner: at, czxid: self.zxid, mzxid: self.zxid });
        Ok(Node::new(name, number, Some(self.zxid)))
    }

    fn own_tag(&self, at: usize) -> Tag {
        match self.clients[at].machine.want {
            // Only writers of an rw-lock convert.
            Want::Exclusive if self.clients[at].converts => Tag::Write,
            Want::Exclusive => Tag::Lock,
            Want::Shared => Tag::Read,
            Want::Upgradable => Tag::Upgradable,
            Want::Permits { count, .. } => Tag::Permits(count),
            Want::Lease { .. } => Tag::Lease,
        }
    }

    /// The server carries out the first request of a client.
    fn serve(&mut self, at: usize) {
        let Some(action) = self.clients[at].up.pop_front() else { return };
        let here = |world: &Self, name: &str| world.nodes.get(name).map(|s| s.mzxid);
        let reply = match action {
            Action::Create => Input::Created(self.create(at, self.own_tag(at), None)),
            // It takes a gate, which no world has.
            Action::CreateLease => Input::Created(Err(Code::NO_NODE)),
            Action::CreateWriter => Input::Created(self.create(at, Tag::Write, None)),
            Action::Guard { node, behind } => {
                let gone = behind.into_iter().find(|name| !self.nodes.contains_key(name));
                let made = match (&gone, self.nodes.contains_key(&node)) {
                    (Some(_), _) => Err(Code::NO_NODE),
                    (None, true) => Err(Code::NODE_EXISTS),
                    (None, false) => {
                        self.zxid += 1;
                        self.next_seq = self.next_seq.wrapping_add(1);
                        self.nodes.insert(node, Stored { owner: at, czxid: self.zxid, mzxid: self.zxid });
                        Ok(())
                    }
                };
                Input::Guarded(made, gone)
            }
            Action::Whose(name) => {
                let seen = here(self, &name).map_or(Seen::Gone, Seen::Here);
                Input::Whose { name, seen, ours: true }
            }
            Action::CreateReader { seq, upgradable } => {
                Input::Made(self.create(at, if upgradable { Tag::Upgradable } else { Tag::Read }, Some(seq)))
            }
            Action::List => {
                let lags = |owner: usize| self.flaw == Some(Flaw::ListsElsewhere) && owner != at;
                let children = self.nodes.iter().filter(|(_, s)| !lags(s.owner)).map(|(n, _)| Self::child(n)).collect();
                Input::Listed(Ok(Listing { children, mzxid: self.dir_mzxid, limit: self.limit }))
            }
            Action::WatchOwn(name) => {
                let seen = self.nodes.get(&name).map(|s| OwnSeen { czxid: s.czxid, ours: s.owner == at, asked: false });
                if seen.is_some() {
                    self.watches.insert((name.clone(), at));
                }
                Input::Own(name, seen.ok_or(Code::NO_NODE))
            }
            Action::Watch(name) => {
                let seen = here(self, &name).map_or(Seen::Gone, Seen::Here);
                if seen != Seen::Gone {
                    self.watches.insert((name.clone(), at));
                }
                Input::Watched(name, seen)
            }
            Action::Peek(name) => {
                let seen = here(self, &name).map_or(Seen::Gone, Seen::Here);
                Input::Peeked(name, seen)
            }
            Action::Find { writer } => {
                let mine = self.nodes.iter().filter(|(_, s)| s.owner == at).map(|(n, _)| Self::child(n));
                let shared = !writer && matches!(self.own_tag(at), Tag::Read | Tag::Upgradable);
                Input::Found(Ok(mine.filter(|c| c.tag.is_shared() == shared).collect()))
            }
            Action::Delete(name) | Action::Discard(name) => {
                let there = self.nodes.remove(&name).is_some();
                if there {
                    self.zxid += 1;
                    self.fire(&name, true);
                }
                Input::Deleted(name, there.then_some(()).ok_or(Code::NO_NODE))
            }
            Action::Number { node, before } => {
                let names: Vec<String> = [Some(node), before].into_iter().flatten().collect();
                if names.iter().all(|name| self.nodes.contains_key(name)) {
                    self.zxid += 1;
                    self.dir_mzxid = self.zxid;
                    for name in names {
                        self.nodes.entry(name.clone()).and_modify(|stored| stored.mzxid = self.zxid);
                        self.fire(&name, false);
                    }
                    Input::Numbered(Ok(self.zxid))
                } else {
                    Input::Numbered(Err(Code::NO_NODE))
                }
            }
            Action::StoreLimit => {
                let Want::Permits { limit, .. } = self.clients[at].machine.want else { panic!("{at} has no limit") };
                let stored = *self.limit.get_or_insert(limit) == limit;
                Input::LimitStored(stored.then_some(()).ok_or(Code::BAD_VERSION))
            }
            // A proof that the session lasts for a while from now.
            Action::Prove => Input::Proven,
            Action::Build | Action::Say(_) => return,
        };
        self.clients[at].down.push_back(Down::Reply(reply));
    }

    /// Everything that can happen next.
    pub(super) fn moves(&self) -> Vec<(usize, Move)> {
        let mut moves = Vec::new();
        for (at, client) in self.clients.iter().enumerate() {
            // Conversions are made one after the other.
            let next = client.script.last().filter(|next| !client.turning || !matches!(next, Input::Turn(_)));
            let can_go_on = client.holds.is_some() && next.is_some();
            if can_go_on {
                moves.push((at, Move::Script));
            }
            if !client.connected {
                moves.push((at, Move::Connect));
                continue;
            }
            if client.over {
                moves.push((at, Move::HearEnd));
            } else if !client.up.is_empty() {
                moves.push((at, Move::Serve));
            }
            if !client.down.is_empty() {
                moves.push((at, Move::Hear));
            }
            if self.cuts_left > 0 && !client.over && (can_go_on || !client.up.is_empty() || !client.down.is_empty()) {
                moves.push((at, Move::Cut));
            }
            if self.ends_left > 0 && !client.over {
                moves.push((at, Move::End));
            }
            if self.withdrawals_left > 0 && client.machine.waits_for().is_some() {
                moves.push((at, Move::Withdraw));
            }
        }
        moves
    }

    fn disconnect(&mut self, at: usize) {
        self.clients[at].connected = false;
        self.clients[at].up.clear();
        self.clients[at].down.clear();
        self.watches.retain(|(_, who)| *who != at);
        self.step(at, Input::LinkDown);
    }

    pub(super) fn make(&mut self, at: usize, what: Move) {
        match what {
            Move::Connect => {
                self.clients[at].connected = true;
                self.step(at, Input::LinkUp);
            }
            Move::Serve => self.serve(at),
            Move::Hear => match self.clients[at].down.pop_front() {
                Some(Down::Reply(input)) => self.step(at, input),
                Some(Down::Event { name, deleted }) => self.step(at, Input::Happened { name, deleted }),
                None => {}
            },
            // Requests that the server did not see are lost, and so are replies and events on their way.
            Move::Cut => {
                self.cuts_left -= 1;
                self.disconnect(at);
            }
            Move::End => {
                self.ends_left -= 1;
                self.watches.retain(|(_, who)| *who != at);
                let lost: Vec<String> = self.nodes.iter().filter(|(_, s)| s.owner == at).map(|(n, _)| n.clone()).collect();
                for name in lost {
                    self.nodes.remove(&name);
                    self.zxid += 1;
                    self.fire(&name, true);
                }
                let client = &mut self.clients[at];
                client.over = true;
                client.up.clear();
                // What was proven of the session is over before the session is.
                client.down.retain(|message| *message != Down::Reply(Input::Proven));
                if self.flaw != Some(Flaw::IgnoresSessionLoss) {
                    client.holds = None;
                }
            }
            Move::HearEnd => {
                self.clients[at].over = false;
                self.disconnect(at);
                if self.flaw != Some(Flaw::IgnoresSessionLoss) {
                    self.step(at, Input::SessionEnded);
                }
            }
            Move::Withdraw => {
                self.withdrawals_left -= 1;
                self.clients[at].script.clear();
                self.step(at, Input::Leave);
            }
            Move::Script => {
                if let Some(input) = self.clients[at].script.pop() {
                    if input == Input::Leave {
                        self.clients[at].holds = None;
                    }
                    self.clients[at].turning |= matches!(input, Input::Turn(_) | Input::TakeBack);
                    self.clients[at].turns += u8::from(input == Input::Turn(Turn::Up));
                    self.step(at, input);
                }
            }
        }
    }

    /// Nothing can happen any more: everybody must have come to an end.
    pub(super) fn at_rest(&self) {
        for (at, client) in self.clients.iter().enumerate() {
            let turning = client.turning && client.holds.is_some();
            assert!(client.answered && !turning, "{at} waits for ever: {self:#?}");
        }
        let left: Vec<_> = self.nodes.iter().filter(|(_, s)| self.clients[s.owner].holds.is_none()).collect();
        assert!(left.is_empty(), "a ghost: {left:?} in {self:#?}");
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    Connect,
    Serve,
    Hear,
    Cut,
    /// The session is over, and its nodes with it; what it was told before is still on its way.
    End,
    /// The client hears that its session is over.
    HearEnd,
    /// Who waits has no time left.
    Withdraw,
    Script,
}

impl Move {
    pub(super) fn is_fault(self) -> bool {
        matches!(self, Self::Cut | Self::End | Self::Withdraw)
    }
}
