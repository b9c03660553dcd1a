//! What has to hold in every state, and where a search goes from it.

use std::collections::BTreeSet;

use lockkeeper::Mode;
use stateright::{Model, Property};

use super::process::{Process, Task};
use super::register::Server;
use super::{Flaw, Line, Message, Plan, Step, World};

pub const BELIEF: &str = "who believes to hold the lock holds it";
pub const TOKENS: &str = "tokens rise";
pub const EXCLUSION: &str = "holders exclude each other";
pub const KNOWN: &str = "the server has each hold the way its holder does";
pub const REFUSED: &str =
    "a try is refused only for the sake of somebody who has the lock or waits for it";
pub const RELEASED: &str = "a hold that is given back in time is there";
pub const SOUND: &str = "what the server wrote down fits together";
pub const END: &str = "everybody comes to an end, and nothing is left";

impl<S: Server> Line<S> {
    /// From here on nothing goes wrong any more: does everybody come to an end, and is nothing
    /// left?
    fn comes_to_an_end(&self, world: &World<S>) -> Result<(), &'static str> {
        let mut world = world.clone();
        world.asleep = false;
        let mut way = self.ends.way();
        let mut possible = Vec::new();
        for _ in 0..400 {
            if way.meets(&world.what_goes_on()) {
                way.ends();
                return Ok(());
            }
            possible.clear();
            self.possible(&world, &mut possible);
            let goes_on = |step: &Step| !matches!(step, Step::Leaves(..) | Step::Wavers(..));
            if let Some(step) = possible.iter().find(|s| goes_on(s)) {
                self.take_step(&mut world, step.clone());
            } else if world.is_quiet() {
                return world.is_clean().inspect(|()| way.ends());
            } else {
                self.take_step(&mut world, Step::Tick);
            }
            // A flaw is to be found where it shows first.
            if self.flaw.is_none() && !world.believing_is_holding() {
                return Err("somebody believes to hold what it does not");
            }
            if self.flaw.is_none() && !world.tokens_rise {
                return Err("a token went back");
            }
        }
        Err("somebody waits for ever")
    }
}

impl<S: Server> Model for Line<S> {
    type State = World<S>;
    type Action = Step;

    fn init_states(&self) -> Vec<World<S>> {
        let mut world = World {
            now: 1,
            jumped: 0,
            processes: self.plans.iter().map(|plans| Process::new(plans.len())).collect(),
            server: S::default(),
            network: Vec::new(),
            silences: self.silences,
            lost_pushes: self.lost_pushes,
            deaths: self.deaths,
            copies: self.copies,
            flushes: self.flushes,
            evictions: self.evictions,
            links: self.links,
            forgotten: Vec::new(),
            asleep: false,
            greatest_token: 0,
            tokens_rise: true,
            passed: false,
            converted: false,
            hindered: BTreeSet::new(),
            wrong_busy: false,
            wrong_end: false,
        };
        if self.held {
            self.take_step(&mut world, Step::Asks(0, 0));
            for _ in 0..2 {
                let message = world.network[0].clone();
                self.take_step(&mut world, Step::Arrives(message));
            }
            self.take_step(&mut world, Step::Takes(0, 0));
        }
        world.asleep = self.asleep;
        vec![world]
    }

    fn actions(&self, world: &World<S>, out: &mut Vec<Step>) {
        self.possible(world, out);
        if world.now < self.until {
            out.push(Step::Tick);
        }
        if world.jumped == 0 && self.flaw == Some(Flaw::ServerClockJumps) {
            out.push(Step::ClockJumps);
        }
        if world.flushes > 0 {
            out.push(Step::Flush);
        }
        if world.evictions > 0 {
            out.push(Step::Evict);
        }
        for (p, process) in (0..).zip(&world.processes).filter(|(_, process)| process.alive) {
            if world.silences > 0 {
                out.extend(process.calls.keys().map(|number| Step::Silence(p, *number)));
            }
            if world.deaths > 0 {
                out.push(Step::Dies(p));
            }
            if world.links > 0 && process.stands() {
                out.push(Step::LinkUp(p));
            }
        }
        for message in &world.network {
            let may_be_lost = match message {
                Message::Late { .. } => true,
                Message::Push(_) => world.lost_pushes > 0,
                _ => false,
            };
            if world.copies > 0 && matches!(message, Message::Call { .. }) {
                out.push(Step::Doubles(message.clone()));
            }
            if may_be_lost {
                out.push(Step::Loses(message.clone()));
            }
        }
    }

    fn next_state(&self, world: &World<S>, step: Step) -> Option<World<S>> {
        let mut world = world.clone();
        self.take_step(&mut world, step);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(BELIEF, |_, world: &World<S>| world.believing_is_holding()),
            Property::always(EXCLUSION, |_, world: &World<S>| world.holders_exclude_each_other()),
            Property::always(KNOWN, |_, world: &World<S>| world.holds_are_as_they_are_known()),
            Property::always(TOKENS, |_, world: &World<S>| world.tokens_rise),
            Property::always(SOUND, |_, world: &World<S>| world.server.is_sound(world.now)),
            Property::always(END, |model: &Self, world: &World<S>| {
                model.comes_to_an_end(world).is_ok()
            }),
            Property::sometimes("somebody has the lock", |_, world: &World<S>| {
                believers(world) > 0
            }),
        ];
        // What is lost, or freed by a copy that came first, is not there. Who frees what is
        // another's is known by that.
        let others_end_it = matches!(self.flaw, Some(Flaw::ServerClockJumps | Flaw::ReleaseByName));
        if self.flushes == 0 && self.copies == 0 && !others_end_it {
            properties.push(Property::always(RELEASED, |_, world: &World<S>| !world.wrong_end));
        }
        // What is not known may be there.
        let all_is_known =
            self.silences == 0 && self.deaths == 0 && self.flushes == 0 && self.copies == 0;
        if all_is_known && self.plans.iter().flatten().any(|plan| plan.trying) {
            properties.push(Property::always(REFUSED, |_, world: &World<S>| !world.wrong_busy));
        }
        if self.plans.iter().any(|plans| plans.iter().filter(|plan| plan.trying).count() > 1) {
            let meet = |_: &Self, world: &World<S>| {
                let waits = |process: &Process| {
                    process.tasks.iter().filter(|task| matches!(task, Task::Waits(_))).count()
                };
                world.processes.iter().any(|process| waits(process) > 1)
            };
            properties.push(Property::sometimes("a try waits for what becomes of another", meet));
        }
        if self.asleep {
            let ended = |_: &Self, world: &World<S>| {
                let first = &world.processes[0];
                let over = |task: &Task| {
                    matches!(task, Task::Has { .. }) && !first.believes(world.now, task)
                };
                first.tasks.iter().any(over) && believers(world) > 0
            };
            properties.push(Property::sometimes(
                "a lease ended beside a waiter, who has the lock then",
                ended,
            ));
        }
        let permits = |plan: &&Plan| matches!(plan.mode, Mode::Permits { .. });
        if self.plans.iter().flatten().filter(permits).count() > 1 {
            properties
                .push(Property::sometimes("permits are held together", |_, world: &World<S>| {
                    believers(world) > 1
                }));
        }
        if self.plans.iter().flatten().any(|plan| !plan.turns.is_empty()) {
            properties.push(Property::sometimes("a turn is converted", |_, world: &World<S>| {
                world.converted
            }));
        }
        let many = self
            .plans
            .iter()
            .filter(|plans| plans.len() > 1 && !plans.iter().any(|plan| permits(&plan)));
        for plans in many {
            if plans.iter().all(|plan| plan.mode == Mode::Shared) {
                properties.push(Property::sometimes(
                    "readers hold it together",
                    |_, world: &World<S>| believers(world) > 1,
                ));
            } else if plans.iter().all(|plan| !plan.trying) {
                properties.push(Property::sometimes("a turn passes on", |_, world: &World<S>| {
                    world.passed
                }));
            }
        }
        properties
    }
}

fn believers<S: Server>(world: &World<S>) -> usize {
    let has = |p: &Process| p.tasks.iter().filter(|task| p.believes(world.now, task)).count();
    world.processes.iter().filter(|p| p.alive).map(has).sum()
}
