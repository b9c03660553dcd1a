//! The model: a server's directory, its clients, and everything that can happen to them next.

use std::collections::VecDeque;

use super::super::*;
use crate::engine::zookeeper::layout::Tag;
use crate::engine::zookeeper::tests::model::{Model, Part, Who};

/// A message on its way to a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Down {
    Reply(Input),
    Event(Input),
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
    /// The next connection makes a session.
    new_session: bool,
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
    model: Model,
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
            new_session: true,
            script: script.iter().rev().cloned().collect(),
            converts: script.iter().any(|input| matches!(input, Input::Conversion(_))),
            turns: 0,
            turning: false,
            holds: None,
            number: 0,
            answered: false,
        });
        let mut world = Self {
            model: Model::new(wants.len(), i32::MAX - 1),
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

    /// Servers learn of what others do only later.
    pub(super) fn with_lag(self) -> Self {
        Self { model: self.model.with_lag(), ..self }
    }

    pub(super) fn without_sync(self) -> Self {
        Self { model: self.model.without_sync(), ..self }
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
                Action::Prove if self.flaw == Some(Flaw::BelievesOldNews) => {
                    self.step(at, Input::Proven)
                }
                action if self.clients[at].connected => self.clients[at].up.push_back(action),
                _ => {}
            }
        }
    }

    fn said(&mut self, at: usize, say: Say) {
        let want = self.clients[at].machine.want;
        if matches!(say, Say::Converted { .. } | Say::TakenBack) {
            self.clients[at].turning = false;
        }
        match say {
            Say::Granted { number } => {
                self.clients[at].answered = true;
                self.holds(at, want, number);
            }
            // Its time was over before its session was.
            Say::Converted { .. } if self.clients[at].over => {}
            Say::Converted { number } => {
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
            Say::Busy
            | Say::Refused(_)
            | Say::OtherLimit(_)
            | Say::OtherPrefix(_)
            | Say::Left { .. } => self.clients[at].answered = true,
            Say::InLine { .. } | Say::Asked | Say::ConversionWaits | Say::TakenBack => {}
            Say::Stuck(code) | Say::ConversionRefused(code) => panic!("{code:?}"),
        }
    }

    /// The rules that no history may break.
    fn holds(&mut self, at: usize, want: Want, number: i64) {
        if want.permits().is_some() {
            self.clients[at].holds = Some(want);
            let out: u16 = self.clients.iter().filter_map(|c| c.holds?.permits()).sum();
            assert!(Some(out) <= self.model.limit(), "{out} permits are out: {self:#?}");
            return;
        }
        for (other, client) in self.clients.iter().enumerate().filter(|(other, _)| *other != at) {
            let together = match (client.holds, want) {
                (None, _) => true,
                (Some(Want::Exclusive), _)
                | (_, Want::Exclusive)
                | (Some(Want::Upgradable), Want::Upgradable) => false,
                _ => true,
            };
            assert!(
                together,
                "BROKEN LOCK: {at} as {want:?} beside {other} as {:?}: {self:#?}",
                client.holds
            );
        }
        if want == Want::Exclusive {
            assert!(number > self.any, "BROKEN LOCK: {number} after {}: {self:#?}", self.any);
            self.exclusive = number;
        } else {
            assert!(
                number > self.exclusive,
                "R7: a reader's {number} after a writer's {}: {self:#?}",
                self.exclusive
            );
        }
        self.any = self.any.max(number);
        self.clients[at].holds = Some(want);
        self.clients[at].number = number;
    }

    fn child(name: &str) -> Child {
        Child::read(name).unwrap()
    }

    /// What a node of a client is called up to its number.
    fn prefix(&self, at: usize, part: Part) -> String {
        let (client, turns) = (&self.clients[at], self.clients[at].turns);
        let tag = match part {
            Part::Writer => Tag::Write,
            Part::Reader { upgradable: true } => Tag::Upgradable,
            Part::Reader { upgradable: false } => Tag::Read,
            Part::Own => match client.machine.want {
                // Only writers of an rw-lock convert.
                Want::Exclusive if client.converts => Tag::Write,
                Want::Exclusive => Tag::Lock,
                Want::Shared => Tag::Read,
                Want::Upgradable => Tag::Upgradable,
                Want::Permits { count, .. } => Tag::Permits(count),
                Want::Lease { .. } => Tag::Lease,
            },
        };
        let guid = match tag {
            Tag::Upgradable => LETTERS[at].to_uppercase(),
            Tag::Write => format!("{}{turns}", LETTERS[at]),
            _ => LETTERS[at].to_owned(),
        };
        match tag {
            Tag::Permits(count) => format!("{guid}-permits-{count}-"),
            Tag::Lease => guid,
            Tag::Lock | Tag::Write if self.kazoo => format!("{guid}__lock__"),
            Tag::Lock => format!("_c_{guid}-lock-"),
            Tag::Write => format!("_c_{guid}-__WRIT__"),
            _ if self.kazoo => format!("{guid}__rlock__"),
            _ => format!("_c_{guid}-__READ__"),
        }
    }

    /// The client's server carries out its first request.
    fn serve(&mut self, at: usize) {
        let Some(action) = self.clients[at].up.pop_front() else { return };
        let limit = if let Want::Permits { limit, .. } = self.clients[at].machine.want {
            Some(limit)
        } else {
            None
        };
        let prefix = |part| self.prefix(at, part);
        let mut model = self.model.clone();
        let mut answer = model.serve(&Who { at, prefix: &prefix, limit }, &action);
        if let (Some(Flaw::ListsElsewhere), Some(Input::Listed(Ok(listing)))) =
            (self.flaw, &mut answer)
        {
            let own: Vec<&str> =
                model.nodes().filter(|(_, owner)| *owner == at).map(|(name, _)| name).collect();
            listing.children.retain(|child| own.contains(&child.name.as_str()));
        }
        self.model = model;
        self.hand_over();
        self.clients[at].down.extend(answer.map(Down::Reply));
    }

    /// News of watches are on their way.
    fn hand_over(&mut self) {
        for (at, news) in self.model.told() {
            self.clients[at].down.push_back(Down::Event(news));
        }
    }

    /// Everything that can happen next.
    pub(super) fn moves(&self) -> Vec<(usize, Move)> {
        let mut moves = Vec::new();
        for (at, client) in self.clients.iter().enumerate() {
            // Conversions are made one after the other.
            let next = client
                .script
                .last()
                .filter(|next| !client.turning || !matches!(next, Input::Conversion(_)));
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
            }
            // A server that has not heard of the session's end goes on answering what it can answer
            // by itself.
            let front = client.up.front();
            if front.is_some_and(|front| {
                !client.over || self.model.still_serves(at) && !Model::is_write(front)
            }) {
                moves.push((at, Move::Serve));
            }
            if self.model.is_behind(at) {
                moves.push((at, Move::Learn));
            }
            if !client.down.is_empty() {
                moves.push((at, Move::Hear));
            }
            if self.cuts_left > 0
                && !client.over
                && (can_go_on || !client.up.is_empty() || !client.down.is_empty())
            {
                moves.push((at, Move::Cut));
            }
            if self.ends_left > 0 && !client.over {
                moves.push((at, Move::End { backwards: false }));
                if self.model.nodes().filter(|(_, owner)| *owner == at).count() > 1 {
                    moves.push((at, Move::End { backwards: true }));
                }
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
        self.model.disconnect(at);
        self.step(at, Input::LinkDown);
    }

    pub(super) fn make(&mut self, at: usize, what: Move) {
        match what {
            Move::Connect => {
                self.clients[at].connected = true;
                self.model
                    .connect(at, !std::mem::replace(&mut self.clients[at].new_session, false));
                self.step(at, Input::LinkUp);
            }
            Move::Serve => self.serve(at),
            Move::Hear => match self.clients[at].down.pop_front() {
                Some(Down::Reply(input)) => {
                    self.model.heard(at);
                    self.step(at, input);
                }
                Some(Down::Event(input)) => self.step(at, input),
                None => {}
            },
            Move::Learn => {
                self.model.learn(at);
                self.hand_over();
            }
            // Requests that the server did not see are lost, and so are replies and events on their
            // way.
            Move::Cut => {
                self.cuts_left -= 1;
                self.disconnect(at);
            }
            Move::End { backwards } => {
                self.ends_left -= 1;
                self.model.end(at, backwards);
                self.hand_over();
                let serves = self.model.still_serves(at);
                let client = &mut self.clients[at];
                client.over = true;
                if !serves {
                    client.up.clear();
                }
                // What was proven of the session is over before the session is.
                client.down.retain(|message| *message != Down::Reply(Input::Proven));
                if self.flaw != Some(Flaw::IgnoresSessionLoss) {
                    client.holds = None;
                }
            }
            Move::HearEnd => {
                self.clients[at].over = false;
                self.clients[at].new_session = true;
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
                    self.clients[at].turning |=
                        matches!(input, Input::Conversion(_) | Input::TakeBack);
                    self.clients[at].turns +=
                        u8::from(input == Input::Conversion(Conversion::Upgrade));
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
        let left: Vec<_> =
            self.model.nodes().filter(|(_, owner)| self.clients[*owner].holds.is_none()).collect();
        assert!(left.is_empty(), "a ghost: {left:?} in {self:#?}");
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    Connect,
    Serve,
    Hear,
    /// Its server learns of the next transaction.
    Learn,
    Cut,
    /// The session is over, and its nodes with it; what it was told before is still on its way.
    End {
        backwards: bool,
    },
    /// The client hears that its session is over.
    HearEnd,
    /// Who waits has no time left.
    Withdraw,
    Script,
}

impl Move {
    pub(super) fn is_fault(self) -> bool {
        matches!(self, Self::Cut | Self::End { .. } | Self::Withdraw)
    }
}
