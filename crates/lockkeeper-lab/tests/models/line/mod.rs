//! Model 1: the local line and the lease table of several processes on one lock of a server with a clock.
//!
//! Messages come in any order and at any time, or never; a caller of whom no answer came in time does not know what became
//! of its call. A process may stand still for as long as it likes, and die. Its beliefs are compared with what the server
//! knows at every instant.

pub mod all;
mod process;
pub mod register;
mod searches;
mod world;

use std::collections::BTreeSet;
use std::marker::PhantomData;

use lockkeeper::Mode;
use stateright::{Model, Property};

use process::{Process, Sent, Task};
use register::{Answer, Call, Push, Server};

/// What one task does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    mode: Mode,
    trying: bool,
    patience: Option<u64>,
    /// Its future may be dropped at any instant.
    fickle: bool,
    /// Its future is never polled again once it waits.
    sleeps: bool,
    /// What it makes of its turn, one after the other, before it gives it back.
    turns: &'static [Mode],
    /// The future of a conversion may be dropped at any instant.
    wavers: bool,
}

pub const LOCK: Plan =
    Plan { mode: Mode::Exclusive, trying: false, patience: None, fickle: false, sleeps: false, turns: &[], wavers: false };
pub const READ: Plan = Plan { mode: Mode::Shared, ..LOCK };
pub const ONE: Plan = Plan { mode: Mode::Permits { count: 1, limit: register::LIMIT }, ..LOCK };
pub const BOTH: Plan = Plan { mode: Mode::Permits { count: 2, limit: register::LIMIT }, ..LOCK };
pub const TRY: Plan = Plan { trying: true, ..LOCK };
pub const TRY_READ: Plan = Plan { mode: Mode::Shared, ..TRY };
pub const TRY_ONE: Plan = Plan { trying: true, ..ONE };
pub const TRY_BOTH: Plan = Plan { trying: true, ..BOTH };
pub const FICKLE: Plan = Plan { fickle: true, ..LOCK };
pub const SLEEPER: Plan = Plan { sleeps: true, ..LOCK };
pub const HURRIED: Plan = Plan { patience: Some(1), ..LOCK };
/// Reads, and may become the writer.
const UPGRADABLE: Plan = Plan { mode: Mode::Upgradable, ..LOCK };
pub const UP: Plan = Plan { turns: &[Mode::Exclusive], ..UPGRADABLE };
pub const UP_AND_BACK: Plan = Plan { turns: &[Mode::Exclusive, Mode::Upgradable], ..UPGRADABLE };
/// Wants to write, and may think better of it.
pub const FICKLE_UP: Plan = Plan { wavers: true, ..UP };
/// Writes twice, or begins to.
pub const WAVERS: Plan = Plan { turns: &[Mode::Exclusive, Mode::Upgradable, Mode::Exclusive], wavers: true, ..UPGRADABLE };
pub const DOWN: Plan = Plan { turns: &[Mode::Shared], wavers: true, ..LOCK };

/// What a careless lock gets wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    DeadlineFromReply,
    ReleaseByName,
    RenewalRevives,
    WatchdogOutlivesUnlock,
    LatePushIsAGrant,
    UnknownIsNo,
    LeavesWithoutAWord,
    LateRequestsLock,
    OneTokenForAllTurns,
    WakesOnlyByPush,
    /// Nothing but a counter numbers the grants.
    CountsOnly,
    /// A withdrawn upgrade makes the server forget which conversions of the hold there were.
    ForgetsConversions,
    OldConversionsCount,
    UpgradesBesideReaders,
    /// No flaw of ours: the server loses its data.
    ServerForgets,
    /// No flaw of ours: the server's clock jumps ahead by a whole lease.
    ServerClockJumps,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    Call {
        process: u8,
        number: u8,
        call: Call,
    },
    Reply {
        process: u8,
        number: u8,
        answer: Answer,
    },
    /// Somebody gave up waiting for its answer.
    Late {
        process: u8,
        call: Call,
    },
    Push(Push),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World<S> {
    now: u64,
    /// How far the server's clock has jumped.
    jumped: u64,
    processes: Vec<Process>,
    server: S,
    /// Sorted: the network keeps no order.
    network: Vec<Message>,
    silences: u8,
    lost_pushes: u8,
    deaths: u8,
    copies: u8,
    flushes: u8,
    flushed: bool,
    /// The first process stands still.
    asleep: bool,
    greatest_token: u64,
    tokens_rise: bool,
    passed: bool,
    converted: bool,
    /// The tries under way (process, task) in whose way somebody has been.
    hindered: BTreeSet<(u8, u8)>,
    /// A try was refused in whose way nobody had been.
    wrong_busy: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Tick,
    ClockJumps,
    Asks(u8, u8),
    Takes(u8, u8),
    Gives(u8, u8),
    Converts(u8, u8),
    Wavers(u8, u8),
    Leaves(u8, u8),
    Timer(u8),
    Arrives(Message),
    Silence(u8, u8),
    Loses(Message),
    Dies(u8),
    Doubles(Message),
    Flush,
}

pub struct Line<S> {
    plans: Vec<Vec<Plan>>,
    /// The last tick before which everything may happen.
    until: u64,
    silences: u8,
    lost_pushes: u8,
    deaths: u8,
    flaw: Option<Flaw>,
    /// The first task of the first process has the lock already.
    held: bool,
    /// And then that process stands still, until nothing goes wrong any more.
    asleep: bool,
    copies: u8,
    flushes: u8,
    server: PhantomData<S>,
}

impl<S: Server> Line<S> {
    pub fn of(plans: &[&[Plan]]) -> Self {
        let plans = plans.iter().map(|p| p.to_vec()).collect();
        Self {
            plans,
            until: 7,
            silences: 0,
            lost_pushes: 0,
            deaths: 0,
            flaw: None,
            held: false,
            asleep: false,
            copies: 0,
            flushes: 0,
            server: PhantomData,
        }
    }

    pub fn until(self, until: u64) -> Self {
        Self { until, ..self }
    }

    pub fn silences(self, silences: u8) -> Self {
        Self { silences, ..self }
    }

    pub fn lost_pushes(self, lost_pushes: u8) -> Self {
        Self { lost_pushes, ..self }
    }

    pub fn deaths(self, deaths: u8) -> Self {
        Self { deaths, ..self }
    }

    /// So many requests arrive twice.
    pub fn copies(self, copies: u8) -> Self {
        Self { copies, ..self }
    }

    /// So often the server loses everything.
    pub fn flushes(self, flushes: u8) -> Self {
        Self { flushes, ..self }
    }

    pub fn held(self) -> Self {
        Self { held: true, ..self }
    }

    /// The first task of the first process has the lock, and the process stands still for as long as anything else happens.
    pub fn held_asleep(self) -> Self {
        Self { held: true, asleep: true, ..self }
    }

    pub fn flaw(self, flaw: Flaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }

    fn plan(&self, process: u8, task: u8) -> Plan {
        self.plans[usize::from(process)][usize::from(task)]
    }

    /// Everything that can happen now, whether or not time is left for it.
    fn possible(&self, world: &World<S>, out: &mut Vec<Step>) {
        let goes = |p: u8| p != 0 || !world.asleep;
        for (p, process) in (0..).zip(&world.processes).filter(|(p, process)| process.alive && goes(*p)) {
            for (t, task) in (0..).zip(&process.tasks) {
                let plan = self.plan(p, t);
                match task {
                    Task::Idle => out.push(Step::Asks(p, t)),
                    Task::Offered { .. } if !plan.sleeps => out.push(Step::Takes(p, t)),
                    Task::Has { turned, .. } if usize::from(*turned) < plan.turns.len() => out.push(Step::Converts(p, t)),
                    Task::Has { .. } => out.push(Step::Gives(p, t)),
                    Task::Converts { .. } if plan.wavers => out.push(Step::Wavers(p, t)),
                    _ => {}
                }
                if plan.fickle && matches!(task, Task::Waits(_) | Task::Offered { .. }) {
                    out.push(Step::Leaves(p, t));
                }
            }
            if process.next_timer().is_some_and(|at| at <= world.now) {
                out.push(Step::Timer(p));
            }
        }
        for (at, message) in world.network.iter().enumerate() {
            let hears = match message {
                Message::Reply { process, .. } | Message::Push(Push { process, .. }) => goes(*process),
                _ => true,
            };
            if hears && (at == 0 || world.network[at - 1] != *message) {
                out.push(Step::Arrives(message.clone()));
            }
        }
    }

    fn take_step(&self, world: &mut World<S>, step: Step) {
        let (now, flaw) = (world.now, self.flaw);
        let mut sent = Sent::default();
        let mut pushes = Vec::new();
        let mut from = 0;
        if let Step::Asks(p, t) = step {
            self.hinder(world, p, t);
        }
        match step {
            Step::Tick => {
                world.now += 1;
                world.server.settle(world.now + world.jumped, &mut pushes);
            }
            Step::ClockJumps => {
                world.jumped += register::TTL;
                world.server.settle(world.now + world.jumped, &mut pushes);
            }
            Step::Asks(p, t) => {
                from = p;
                world.processes[usize::from(p)].ask(now, p, usize::from(t), self.plan(p, t), flaw, &mut sent);
            }
            Step::Takes(p, t) => {
                from = p;
                let process = &mut world.processes[usize::from(p)];
                process.take(now, usize::from(t), self.plan(p, t).mode.into(), flaw, &mut sent);
                world.note_token(p, usize::from(t), false);
            }
            Step::Converts(p, t) => {
                from = p;
                let Task::Has { turned, .. } = world.processes[usize::from(p)].tasks[usize::from(t)] else { return };
                let to = self.plan(p, t).turns[usize::from(turned)];
                world.processes[usize::from(p)].convert(now, p, usize::from(t), to, flaw, &mut sent);
            }
            Step::Wavers(p, t) => {
                from = p;
                world.processes[usize::from(p)].waver(now, usize::from(t), flaw, &mut sent);
            }
            Step::Gives(p, t) => {
                from = p;
                world.processes[usize::from(p)].give(now, usize::from(t), flaw, &mut sent);
            }
            Step::Leaves(p, t) => {
                from = p;
                world.processes[usize::from(p)].leave(now, usize::from(t), flaw, &mut sent);
            }
            Step::Timer(p) => {
                from = p;
                world.processes[usize::from(p)].timer(now, flaw, &mut sent);
            }
            Step::Silence(p, number) => {
                from = p;
                world.give_up(p, number);
                world.silences -= 1;
                world.processes[usize::from(p)].answered(now, number, None, flaw, &mut sent);
            }
            Step::Loses(message) => {
                if matches!(message, Message::Push(_)) {
                    world.lost_pushes -= 1;
                }
                world.remove(&message);
            }
            Step::Doubles(message) => {
                world.copies -= 1;
                if let Message::Call { process, call, .. } = message {
                    world.network.push(Message::Late { process, call });
                }
            }
            Step::Flush => {
                world.flushes -= 1;
                world.flushed = true;
                world.server.flush();
                // A server needs a moment for that.
                world.now += 1;
                world.server.settle(world.now + world.jumped, &mut pushes);
            }
            Step::Dies(p) => {
                world.deaths -= 1;
                world.die(p);
            }
            Step::Arrives(message) => {
                world.remove(&message);
                match message {
                    Message::Call { process, number, call } => {
                        let answer = world.server.call(now + world.jumped, process, &call, flaw, &mut pushes);
                        world.network.push(Message::Reply { process, number, answer });
                    }
                    Message::Late { process, call } => {
                        world.server.call(now + world.jumped, process, &call, flaw, &mut pushes);
                    }
                    Message::Reply { process, number, answer } => {
                        from = process;
                        world.processes[usize::from(process)].answered(now, number, Some(answer), flaw, &mut sent);
                    }
                    Message::Push(push) => {
                        from = push.process;
                        world.processes[usize::from(push.process)].pushed(now, &push, flaw, &mut sent);
                    }
                }
            }
        }
        for task in std::mem::take(&mut sent.busy) {
            self.hinder(world, from, task);
            world.wrong_busy |= self.plan(from, task).trying && !world.hindered.contains(&(from, task));
        }
        world.sent(from, sent, pushes);
        for (p, process) in (0..).zip(world.processes.clone()) {
            for (t, task) in (0..).zip(&process.tasks) {
                match task {
                    Task::Waits(_) => self.hinder(world, p, t),
                    _ => drop(world.hindered.remove(&(p, t))),
                }
            }
        }
    }

    /// Notes whether somebody is in the way of this try: has the lock, or waits for it.
    fn hinder(&self, world: &mut World<S>, p: u8, t: u8) {
        let plan = self.plan(p, t);
        let excludes = |other: Plan| match (plan.mode, other.mode) {
            // On the server it is told how many are out.
            (Mode::Permits { .. }, Mode::Permits { .. }) => false,
            (mode, other) => !mode.shares_with(other),
        };
        let in_the_way = |(q, u): (u8, u8), task: &Task| match task {
            Task::Waits(_) => !self.plan(q, u).trying,
            Task::Offered { .. } | Task::Has { .. } => excludes(self.plan(q, u)),
            Task::Converts { .. } => true,
            Task::Idle | Task::Over => false,
        };
        let mut tasks = (0..).zip(&world.processes).filter(|(_, process)| process.alive);
        let here = tasks.any(|(q, process)| (0..).zip(&process.tasks).any(|(u, task)| (q, u) != (p, t) && in_the_way((q, u), task)));
        if plan.trying && (here || world.server.may_refuse(world.now + world.jumped, plan.mode.into())) {
            world.hindered.insert((p, t));
        }
    }

    /// From here on nothing goes wrong any more: does everybody come to an end, and is nothing left?
    fn comes_to_an_end(&self, world: &World<S>) -> Result<(), &'static str> {
        let mut world = world.clone();
        world.asleep = false;
        let mut possible = Vec::new();
        for _ in 0..400 {
            possible.clear();
            self.possible(&world, &mut possible);
            let goes_on = |step: &Step| !matches!(step, Step::Leaves(..) | Step::Wavers(..));
            if let Some(step) = possible.iter().find(|s| goes_on(s)) {
                self.take_step(&mut world, step.clone());
            } else if world.is_quiet() {
                return world.is_clean();
            } else {
                self.take_step(&mut world, Step::Tick);
            }
            // A flaw is to be found where it shows first.
            if self.flaw.is_none() && !(world.flushed || world.believing_is_holding()) {
                return Err("somebody believes to hold what it does not");
            }
            if self.flaw.is_none() && !world.tokens_rise {
                return Err("a token went back");
            }
        }
        Err("somebody waits for ever")
    }
}

pub const BELIEF: &str = "who believes to hold the lock holds it";
pub const TOKENS: &str = "tokens rise";
pub const EXCLUSION: &str = "holders exclude each other";
pub const KNOWN: &str = "the server has each hold the way its holder does";
pub const REFUSED: &str = "a try is refused only for the sake of somebody who has the lock or waits for it";
pub const END: &str = "everybody comes to an end, and nothing is left";

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
            flushed: false,
            asleep: false,
            greatest_token: 0,
            tokens_rise: true,
            passed: false,
            converted: false,
            hindered: BTreeSet::new(),
            wrong_busy: false,
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
        for (p, process) in (0..).zip(&world.processes).filter(|(_, process)| process.alive) {
            if world.silences > 0 {
                out.extend(process.calls.keys().map(|number| Step::Silence(p, *number)));
            }
            if world.deaths > 0 {
                out.push(Step::Dies(p));
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
            Property::always(BELIEF, |model: &Self, world: &World<S>| {
                world.believing_is_holding() || world.flushed && model.flaw != Some(Flaw::ServerForgets)
            }),
            Property::always(EXCLUSION, |_, world: &World<S>| world.holders_exclude_each_other()),
            Property::always(KNOWN, |_, world: &World<S>| world.holds_are_as_they_are_known()),
            Property::always(TOKENS, |_, world: &World<S>| world.tokens_rise),
            Property::always(END, |model: &Self, world: &World<S>| model.comes_to_an_end(world).is_ok()),
            Property::sometimes("somebody has the lock", |_, world: &World<S>| believers(world) > 0),
        ];
        // What is not known may be there.
        let all_is_known = self.silences == 0 && self.deaths == 0 && self.flushes == 0 && self.copies == 0;
        if all_is_known && self.plans.iter().flatten().any(|plan| plan.trying) {
            properties.push(Property::always(REFUSED, |_, world: &World<S>| !world.wrong_busy));
        }
        if self.plans.iter().any(|plans| plans.iter().filter(|plan| plan.trying).count() > 1) {
            let meet = |_: &Self, world: &World<S>| {
                let waits = |process: &Process| process.tasks.iter().filter(|task| matches!(task, Task::Waits(_))).count();
                world.processes.iter().any(|process| waits(process) > 1)
            };
            properties.push(Property::sometimes("a try waits for what becomes of another", meet));
        }
        if self.asleep {
            let ended = |_: &Self, world: &World<S>| {
                let first = &world.processes[0];
                let over = |task: &Task| matches!(task, Task::Has { .. }) && !first.believes(world.now, task);
                first.tasks.iter().any(over) && believers(world) > 0
            };
            properties.push(Property::sometimes("a lease ended beside a waiter, who has the lock then", ended));
        }
        let permits = |plan: &&Plan| matches!(plan.mode, Mode::Permits { .. });
        if self.plans.iter().flatten().filter(permits).count() > 1 {
            properties.push(Property::sometimes("permits are held together", |_, world: &World<S>| believers(world) > 1));
        }
        if self.plans.iter().flatten().any(|plan| !plan.turns.is_empty()) {
            properties.push(Property::sometimes("a turn is converted", |_, world: &World<S>| world.converted));
        }
        let many = self.plans.iter().filter(|plans| plans.len() > 1 && !plans.iter().any(|plan| permits(&plan)));
        for plans in many {
            if plans.iter().all(|plan| plan.mode == Mode::Shared) {
                properties.push(Property::sometimes("readers hold it together", |_, world: &World<S>| believers(world) > 1));
            } else if plans.iter().all(|plan| !plan.trying) {
                properties.push(Property::sometimes("a turn passes on", |_, world: &World<S>| world.passed));
            }
        }
        properties
    }
}

fn believers<S: Server>(world: &World<S>) -> usize {
    let has = |p: &Process| p.tasks.iter().filter(|task| p.believes(world.now, task)).count();
    world.processes.iter().filter(|p| p.alive).map(has).sum()
}
