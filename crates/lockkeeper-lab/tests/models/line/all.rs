//! Several locks at once: what `many.rs` does, over a line and a lease table for each name in each
//! process.
//!
//! All in one message first, of which the server does all or nothing; then one after the other in
//! the byte order of the names, each waited for with those before it in hand. A caller may leave at
//! any instant, because its time is over or its future is dropped.

mod model;
mod moves;

use lockkeeper::ClaimId;

use super::process::Sent;
use super::register::{Answer, Call, Push, Server, Way};
use super::{LOCK, Line, Plan, Step, World};
use crate::explore::Ends;

const NAMES: usize = 2;

pub const ALL: &str = "whoever is given all has all, and whoever is not keeps none";

/// What a careless caller of several locks gets wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Careless {
    /// Takes them in the order in which it names them.
    TakesThemAsNamed,
    /// What it got before its time was over stays with it.
    KeepsHalf,
    /// Does not look whether the first is still there when it has the last.
    LooksAtTheLastOnly,
}

/// Where a caller stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    /// The message that asks for all is on its way.
    AtOnce {
        ids: [ClaimId; NAMES],
        sent: u64,
    },
    /// It waits for this one in its order, and has those before it.
    Waits(usize),
    Has,
    Over,
}

/// The message that asks for all, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Joint {
    Call { caller: u8, ids: [ClaimId; NAMES], not_after: u64 },
    Reply { caller: u8, answers: [Answer; NAMES] },
    Late { caller: u8, ids: [ClaimId; NAMES], not_after: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<S> {
    names: [World<S>; NAMES],
    callers: Vec<Stage>,
    network: Vec<Joint>,
    silences: u8,
    deaths: u8,
    all_or_nothing: bool,
    /// Seen on the way here: all in one message, all one after the other, and a lock that was lost
    /// while the next was waited for.
    at_once: bool,
    in_order: bool,
    lost_one: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Move {
    Tick,
    Begins(u8),
    Takes(u8),
    AsksAnew(u8),
    Leaves(u8),
    Gives(u8),
    Dies(u8),
    Arrives(Joint),
    Silence(u8),
    Loses(Joint),
    /// What happens to one of the names.
    Of(usize, Step),
}

pub struct All<S> {
    line: Line<S>,
    callers: u8,
    /// The first caller may leave what it has half of, or has asked for in one message; leaving
    /// with nothing in hand is model 1's. Callers are alike, so it need not be tried with each; nor
    /// which of them dies.
    leave: bool,
    /// So many of the callers have a message for all of them.
    jointly: u8,
    flaw: Option<Careless>,
    ends: Ends,
}

impl<S: Server> All<S> {
    pub fn of(callers: u8) -> Self {
        let plans: Vec<&[Plan]> = (0..callers).map(|_| &[LOCK] as &[_]).collect();
        Self {
            line: Line::of(&plans).until(1),
            callers,
            leave: false,
            jointly: 0,
            flaw: None,
            ends: Ends::default(),
        }
    }

    pub fn until(self, until: u64) -> Self {
        Self { line: self.line.until(until), ..self }
    }

    /// So many answers, of the message for all or about one name.
    pub fn silences(self, silences: u8) -> Self {
        Self { line: self.line.silences(silences), ..self }
    }

    pub fn deaths(self, deaths: u8) -> Self {
        Self { line: self.line.deaths(deaths), ..self }
    }

    pub fn leave(self) -> Self {
        Self { leave: true, ..self }
    }

    /// The first so many callers have a message for all; the others take one after the other.
    pub fn jointly(self, jointly: u8) -> Self {
        Self { jointly, ..self }
    }

    pub fn flaw(self, flaw: Careless) -> Self {
        Self { flaw: Some(flaw), ..self }
    }
}

impl Joint {
    /// Its caller does not wait for it any more, and it may still arrive.
    fn unwanted(&mut self, of: u8) {
        if let Self::Call { caller, ids, not_after } = self
            && *caller == of
        {
            *self = Self::Late { caller: of, ids: *ids, not_after: *not_after };
        }
    }
}

impl<S: Server> State<S> {
    fn remove(&mut self, joint: &Joint) {
        let at = self.network.iter().position(|other| other == joint).expect("it is under way");
        self.network.remove(at);
    }

    /// The server does all of it, or nothing.
    fn together(&mut self, caller: u8, ids: &[ClaimId; NAMES], not_after: u64) -> [Answer; NAMES] {
        let mut servers = self.names.each_ref().map(|world| world.server.clone());
        let mut pushes: [Vec<Push>; NAMES] = Default::default();
        let mut answers = [Answer::Busy, Answer::Busy];
        for (name, server) in servers.iter_mut().enumerate() {
            let call =
                Call::Attempt { id: ids[name], way: Way::Exclusive, trying: true, not_after };
            answers[name] =
                server.call(self.names[name].now, caller, &call, None, &mut pushes[name]);
        }
        if answers.iter().any(|answer| matches!(answer, Answer::Busy | Answer::InLine { .. })) {
            return [Answer::Busy, Answer::Busy];
        }
        for ((world, server), pushes) in self.names.iter_mut().zip(servers).zip(pushes) {
            world.server = server;
            world.sent(caller, Sent::default(), pushes);
        }
        answers
    }
}
