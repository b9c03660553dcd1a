//! What callers do, and what comes of it: they ask, take, leave and give back.

use lockkeeper::ClaimId;

use super::super::process::{Process, Sent, Task};
use super::super::register::{Answer, Server, Way};
use super::super::{LOCK, Step, World};
use super::{All, Careless, Joint, Move, NAMES, Stage, State};

impl<S: Server> All<S> {
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
    pub(super) fn possible(&self, state: &State<S>, out: &mut Vec<Move>) {
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

    pub(super) fn make(&self, state: &mut State<S>, what: Move) {
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
    pub(super) fn comes_to_an_end(&self, state: &State<S>) -> bool {
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
