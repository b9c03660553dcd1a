//! Several locks at once: what `many.rs` does, over a line and a lease table for each name in each
//! process.
//!
//! All in one message first, of which the server does all or nothing; then one after the other in
//! the byte order of the names, each waited for with those before it in hand. A caller may leave at
//! any instant, because its time is over or its future is dropped.

use lockkeeper::ClaimId;
use stateright::{Model, Property};

use super::process::{Process, Sent, Task};
use super::register::{Answer, Call, Push, Server, Way};
use super::{BELIEF, END, LOCK, Line, Message, Plan, Step, TOKENS, World};
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

    /// In which order a caller takes them; every other one names the last first.
    fn order(&self, caller: u8) -> [usize; NAMES] {
        if self.flaw == Some(Careless::TakesThemAsNamed) && caller % 2 == 1 {
            [1, 0]
        } else {
            [0, 1]
        }
    }

    /// One name's process does something, and what it sends leaves.
    fn with(
        &self,
        state: &mut State<S>,
        caller: u8,
        name: usize,
        act: impl FnOnce(&mut Process, u64, &mut Sent),
    ) {
        let world = &mut state.names[name];
        let mut sent = Sent::default();
        let now = world.now;
        act(&mut world.processes[usize::from(caller)], now, &mut sent);
        world.sent(caller, sent, Vec::new());
    }

    fn task<'a>(&self, state: &'a State<S>, caller: u8, name: usize) -> &'a Task {
        &state.names[name].processes[usize::from(caller)].tasks[0]
    }

    /// What is there already without anything going wrong from now on.
    fn possible(&self, state: &State<S>, out: &mut Vec<Move>) {
        for (c, stage) in (0..).zip(&state.callers) {
            match stage {
                Stage::Idle => out.push(Move::Begins(c)),
                Stage::Waits(at) => match self.task(state, c, self.order(c)[*at]) {
                    Task::Offered { .. } => out.push(Move::Takes(c)),
                    // Lost before it was taken, or offered for too long.
                    Task::Over => out.push(Move::AsksAnew(c)),
                    _ => {}
                },
                Stage::Has => out.push(Move::Gives(c)),
                _ => {}
            }
        }
        for (at, joint) in state.network.iter().enumerate() {
            if at == 0 || state.network[at - 1] != *joint {
                out.push(Move::Arrives(joint.clone()));
            }
        }
        let mut steps = Vec::new();
        for (name, world) in state.names.iter().enumerate() {
            steps.clear();
            self.line.possible(world, &mut steps);
            let own =
                steps.drain(..).filter(|step| matches!(step, Step::Timer(_) | Step::Arrives(_)));
            out.extend(own.map(|step| Move::Of(name, step)));
        }
    }

    fn make(&self, state: &mut State<S>, what: Move) {
        match what {
            Move::Tick => {
                (0..NAMES).for_each(|name| self.line.take_step(&mut state.names[name], Step::Tick))
            }
            Move::Begins(c) if c >= self.jointly => self.asks(state, c, 0),
            Move::Begins(c) => {
                let mut ids = [ClaimId(0); NAMES];
                let mut not_after = 0;
                for (name, id) in ids.iter_mut().enumerate() {
                    self.with(state, c, name, |process, now, out| {
                        (*id, not_after) = process.reserve(now, c, 0, out)
                    });
                }
                state.callers[usize::from(c)] = Stage::AtOnce { ids, sent: state.names[0].now };
                state.network.push(Joint::Call { caller: c, ids, not_after });
            }
            Move::Takes(c) => self.takes(state, c),
            Move::AsksAnew(c) => {
                if let Stage::Waits(at) = state.callers[usize::from(c)] {
                    self.asks(state, c, at);
                }
            }
            Move::Leaves(c) => {
                self.gives_back(state, c, self.flaw == Some(Careless::KeepsHalf));
                state.callers[usize::from(c)] = Stage::Over;
                state.network.iter_mut().for_each(|joint| joint.unwanted(c));
            }
            Move::Gives(c) => {
                self.gives_back(state, c, false);
                state.callers[usize::from(c)] = Stage::Over;
            }
            Move::Dies(c) => {
                state.deaths -= 1;
                state.callers[usize::from(c)] = Stage::Over;
                state.names.iter_mut().for_each(|world| world.die(c));
                state.network.iter_mut().for_each(|joint| joint.unwanted(c));
                state
                    .network
                    .retain(|joint| !matches!(joint, Joint::Reply { caller, .. } if *caller == c));
            }
            Move::Loses(joint) => state.remove(&joint),
            Move::Silence(c) => {
                state.silences -= 1;
                state.network.iter_mut().for_each(|joint| joint.unwanted(c));
                state
                    .network
                    .retain(|joint| !matches!(joint, Joint::Reply { caller, .. } if *caller == c));
                self.told(state, c, None);
            }
            Move::Arrives(joint) => {
                state.remove(&joint);
                match joint {
                    Joint::Call { caller, ids, not_after } => {
                        let answers = state.together(caller, &ids, not_after);
                        state.network.push(Joint::Reply { caller, answers });
                    }
                    Joint::Late { caller, ids, not_after } => {
                        _ = state.together(caller, &ids, not_after)
                    }
                    Joint::Reply { caller, answers } => self.told(state, caller, Some(answers)),
                }
            }
            Move::Of(name, step) => {
                let silence = matches!(step, Step::Silence(..));
                state.silences -= u8::from(silence);
                state.names[name].silences = u8::from(silence);
                self.line.take_step(&mut state.names[name], step);
            }
        }
        state.network.sort();
        let keeps =
            |c: u8| (0..NAMES).any(|name| matches!(self.task(state, c, name), Task::Has { .. }));
        let over = (0..).zip(&state.callers).filter(|(_, stage)| **stage == Stage::Over);
        state.all_or_nothing &= !over
            .into_iter()
            .any(|(c, _)| state.names[0].processes[usize::from(c)].alive && keeps(c));
    }

    /// The answer to the message for all; `None`: it is not known what became of it.
    fn told(&self, state: &mut State<S>, c: u8, answers: Option<[Answer; NAMES]>) {
        let Stage::AtOnce { ids, sent } = state.callers[usize::from(c)].clone() else { return };
        for (name, id) in ids.into_iter().enumerate() {
            let answer = answers.as_ref().map(|answers| answers[name].clone());
            self.with(state, c, name, |process, now, out| {
                process.attempted(now, sent, id, answer, None, out);
                process.take(now, 0, Way::Exclusive, None, out);
                process.leave(now, 0, None, out);
            });
        }
        if (0..NAMES).all(|name| matches!(self.task(state, c, name), Task::Has { .. })) {
            state.at_once = true;
            return self.given(state, c);
        }
        self.gives_back(state, c, false);
        self.asks(state, c, 0);
    }

    fn asks(&self, state: &mut State<S>, c: u8, at: usize) {
        state.callers[usize::from(c)] = Stage::Waits(at);
        self.with(state, c, self.order(c)[at], |process, now, out| {
            process.ask(now, c, 0, LOCK, None, out)
        });
    }

    fn takes(&self, state: &mut State<S>, c: u8) {
        let Stage::Waits(at) = state.callers[usize::from(c)] else { return };
        let order = self.order(c);
        self.with(state, c, order[at], |process, now, out| {
            process.take(now, 0, Way::Exclusive, None, out)
        });
        if at + 1 < NAMES {
            return self.asks(state, c, at + 1);
        }
        // A lock that was lost while the others were waited for is no lock of all.
        let there = |name: &usize| {
            state.names[*name].processes[usize::from(c)]
                .believes(state.names[*name].now, self.task(state, c, *name))
        };
        if order.iter().all(there) || self.flaw == Some(Careless::LooksAtTheLastOnly) {
            state.in_order = true;
            return self.given(state, c);
        }
        state.lost_one = true;
        self.gives_back(state, c, false);
        state.callers[usize::from(c)] = Stage::Over;
    }

    fn given(&self, state: &mut State<S>, c: u8) {
        state.callers[usize::from(c)] = Stage::Has;
        let there = |world: &World<S>| {
            let process = &world.processes[usize::from(c)];
            process.believes(world.now, &process.tasks[0])
        };
        state.all_or_nothing &= state.names.iter().all(there);
        state.names.iter_mut().for_each(|world| world.note_token(c, 0, false));
    }

    /// Leaves what it waits for, and drops the guards that it has.
    fn gives_back(&self, state: &mut State<S>, c: u8, keeps: bool) {
        for name in 0..NAMES {
            self.with(state, c, name, |process, now, out| {
                process.leave(now, 0, None, out);
                if !keeps {
                    process.give(now, 0, None, out);
                }
                if process.tasks[0] == Task::Idle {
                    process.tasks[0] = Task::Over;
                }
            });
        }
    }

    /// From here on nothing goes wrong any more, and nobody leaves.
    fn comes_to_an_end(&self, state: &State<S>) -> bool {
        let mut state = state.clone();
        let mut way = self.ends.way();
        let mut possible = Vec::new();
        for _ in 0..600 {
            let names = state.names.each_ref().map(World::what_goes_on);
            if way.meets(&(names, &state.callers, &state.network, state.all_or_nothing)) {
                way.ends();
                return true;
            }
            possible.clear();
            self.possible(&state, &mut possible);
            if !possible.is_empty() {
                self.make(&mut state, possible.swap_remove(0));
            } else if state.callers.iter().all(|stage| *stage == Stage::Over)
                && state.names.iter().all(World::is_quiet)
            {
                let clean = state.names.iter().all(|world| world.is_clean().is_ok());
                if clean {
                    way.ends();
                }
                return clean;
            } else {
                self.make(&mut state, Move::Tick);
            }
            if self.flaw.is_none()
                && !(state.all_or_nothing && state.names.iter().all(World::believing_is_holding))
            {
                return false;
            }
        }
        false
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

impl<S: Server> Model for All<S> {
    type State = State<S>;
    type Action = Move;

    fn init_states(&self) -> Vec<State<S>> {
        // What goes wrong is counted for all names together.
        let world = || World { silences: 0, deaths: 0, ..self.line.init_states().remove(0) };
        vec![State {
            names: [world(), world()],
            callers: vec![Stage::Idle; usize::from(self.callers)],
            network: Vec::new(),
            silences: self.line.silences,
            deaths: self.line.deaths,
            all_or_nothing: true,
            at_once: false,
            in_order: false,
            lost_one: false,
        }]
    }

    fn actions(&self, state: &State<S>, out: &mut Vec<Move>) {
        self.possible(state, out);
        // What time does to a single name is model 1's; here it passes while one is had and the
        // next is waited for.
        let half = state.callers.iter().any(|stage| matches!(stage, Stage::Waits(1..)));
        if half && state.names[0].now < self.line.until {
            out.push(Move::Tick);
        }
        for (c, stage) in (0..).zip(&state.callers) {
            if self.leave && c == 0 && matches!(stage, Stage::AtOnce { .. } | Stage::Waits(1..)) {
                out.push(Move::Leaves(c));
            }
            if state.deaths > 0 && c == 0 && !matches!(stage, Stage::Idle | Stage::Over) {
                out.push(Move::Dies(c));
            }
            if state.silences > 0 && matches!(stage, Stage::AtOnce { .. }) {
                out.push(Move::Silence(c));
            }
        }
        out.extend(
            state
                .network
                .iter()
                .filter(|joint| matches!(joint, Joint::Late { .. }))
                .cloned()
                .map(Move::Loses),
        );
        for (name, world) in state.names.iter().enumerate() {
            let late =
                world.network.iter().filter(|message| matches!(message, Message::Late { .. }));
            out.extend(late.cloned().map(|message| Move::Of(name, Step::Loses(message))));
            if state.silences > 0 {
                let calls = (0..)
                    .zip(&world.processes)
                    .flat_map(|(p, process)| process.calls.keys().map(move |number| (p, *number)));
                out.extend(calls.map(|(p, number)| Move::Of(name, Step::Silence(p, number))));
            }
        }
    }

    fn next_state(&self, state: &State<S>, what: Move) -> Option<State<S>> {
        let mut state = state.clone();
        self.make(&mut state, what);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(BELIEF, |_, state: &State<S>| {
                state.names.iter().all(World::believing_is_holding)
            }),
            Property::always(TOKENS, |_, state: &State<S>| {
                state.names.iter().all(|world| world.tokens_rise)
            }),
            Property::always(ALL, |_, state: &State<S>| state.all_or_nothing),
            Property::always(END, |model: &Self, state: &State<S>| model.comes_to_an_end(state)),
            Property::sometimes("somebody gets all one after the other", |_, state: &State<S>| {
                state.in_order
            }),
        ];
        if self.line.deaths > 0 {
            let outlived = |_: &Self, state: &State<S>| {
                state.deaths == 0 && state.callers.iter().skip(1).any(|stage| *stage == Stage::Has)
            };
            properties.push(Property::sometimes("one dies, and another has all", outlived));
        }
        if self.jointly > 0 {
            properties.push(Property::sometimes(
                "somebody gets all in one message",
                |_, state: &State<S>| state.at_once,
            ));
        }
        if self.line.until >= super::register::TTL {
            properties.push(Property::sometimes(
                "one is lost while the next is waited for",
                |_, state: &State<S>| state.lost_one,
            ));
        }
        properties
    }
}
