//! Model 1: the local line and the lease table of several processes on one lock of a server with a
//! clock.
//!
//! Messages come in any order and at any time, or never; a caller of whom no answer came in time
//! does not know what became of its call. A process may stand still for as long as it likes, and
//! die. Its beliefs are compared with what the server knows at every instant.

pub mod all;
mod plan;
mod process;
pub mod register;
mod rules;
mod searches;
mod world;

use std::collections::BTreeSet;
use std::marker::PhantomData;

use lockkeeper::{ClaimId, Mode};
pub use plan::*;
use process::{Process, Sent, Task};
use register::{Answer, Call, Push, Server};
pub use rules::{BELIEF, END, EXCLUSION, KNOWN, RELEASED, SOUND, TOKENS};

use crate::explore::Ends;

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
    SetsNoFlag,
    /// What is granted once more while it is given back is given back beside that.
    ReleasesBeside,
    /// A place that is answered while what it came to is given back is left beside that.
    LeavesBeside,
    /// A renewal is answered with yes, though the server has lost the hold.
    RenewsWhatIsGone,
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
    evictions: u8,
    links: u8,
    /// What the server had when it lost everything, and until when: its holders may believe in it
    /// until then.
    forgotten: Vec<(ClaimId, u64)>,
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
    /// A hold that was given back in time was not there.
    wrong_end: bool,
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
    Evict,
    /// A link is up again.
    LinkUp(u8),
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
    evictions: u8,
    links: u8,
    ends: Ends,
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
            evictions: 0,
            links: 0,
            ends: Ends::default(),
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

    /// So often the server loses what it knows of the last number alone.
    pub fn evictions(self, evictions: u8) -> Self {
        Self { evictions, ..self }
    }

    /// So often a link is up again, and all places are asked about.
    pub fn links(self, links: u8) -> Self {
        Self { links, ..self }
    }

    pub fn held(self) -> Self {
        Self { held: true, ..self }
    }

    /// The first task of the first process has the lock, and the process stands still for as long
    /// as anything else happens.
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
        for (p, process) in
            (0..).zip(&world.processes).filter(|(p, process)| process.alive && goes(*p))
        {
            for (t, task) in (0..).zip(&process.tasks) {
                let plan = self.plan(p, t);
                match task {
                    Task::Idle => out.push(Step::Asks(p, t)),
                    Task::Offered { .. } if !plan.sleeps => out.push(Step::Takes(p, t)),
                    Task::Has { turned, .. } if usize::from(*turned) < plan.turns.len() => {
                        out.push(Step::Converts(p, t))
                    }
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
                Message::Reply { process, .. } | Message::Push(Push { process, .. }) => {
                    goes(*process)
                }
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
                world.forgotten.retain(|(_, until)| *until > world.now + world.jumped);
            }
            Step::ClockJumps => {
                world.jumped += register::TTL;
                world.server.settle(world.now + world.jumped, &mut pushes);
            }
            Step::Asks(p, t) => {
                from = p;
                world.processes[usize::from(p)].ask(
                    now,
                    p,
                    usize::from(t),
                    self.plan(p, t),
                    flaw,
                    &mut sent,
                );
            }
            Step::Takes(p, t) => {
                from = p;
                let process = &mut world.processes[usize::from(p)];
                process.take(now, usize::from(t), self.plan(p, t).mode.into(), flaw, &mut sent);
                world.note_token(p, usize::from(t), false);
            }
            Step::Converts(p, t) => {
                from = p;
                let Task::Has { turned, .. } =
                    world.processes[usize::from(p)].tasks[usize::from(t)]
                else {
                    return;
                };
                let to = self.plan(p, t).turns[usize::from(turned)];
                world.processes[usize::from(p)].convert(
                    now,
                    p,
                    usize::from(t),
                    to,
                    flaw,
                    &mut sent,
                );
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
                if flaw != Some(Flaw::ServerForgets) {
                    world.forgotten.extend(world.server.leases());
                    world.forgotten.sort();
                }
                world.server.flush();
                // A server needs a moment for that.
                world.now += 1;
                world.server.settle(world.now + world.jumped, &mut pushes);
            }
            Step::Evict => {
                world.evictions -= 1;
                world.server.evict();
                // And for that.
                world.now += 1;
                world.server.settle(world.now + world.jumped, &mut pushes);
            }
            Step::LinkUp(p) => {
                from = p;
                world.links -= 1;
                world.processes[usize::from(p)].link_up(now, &mut sent);
            }
            Step::Dies(p) => {
                world.deaths -= 1;
                world.die(p);
            }
            Step::Arrives(message) => {
                world.remove(&message);
                match message {
                    Message::Call { process, number, call } => {
                        let answer = world.server.call(
                            now + world.jumped,
                            process,
                            &call,
                            flaw,
                            &mut pushes,
                        );
                        world.network.push(Message::Reply { process, number, answer });
                    }
                    Message::Late { process, call } => {
                        world.server.call(now + world.jumped, process, &call, flaw, &mut pushes);
                    }
                    Message::Reply { process, number, answer } => {
                        from = process;
                        world.processes[usize::from(process)].answered(
                            now,
                            number,
                            Some(answer),
                            flaw,
                            &mut sent,
                        );
                    }
                    Message::Push(push) => {
                        from = push.process;
                        world.processes[usize::from(push.process)]
                            .pushed(now, &push, flaw, &mut sent);
                    }
                }
            }
        }
        for task in std::mem::take(&mut sent.busy) {
            self.hinder(world, from, task);
            world.wrong_busy |=
                self.plan(from, task).trying && !world.hindered.contains(&(from, task));
        }
        world.sent(from, sent, pushes);
        for (p, t) in self.tries() {
            match world.processes[usize::from(p)].tasks[usize::from(t)] {
                Task::Waits(_) => self.hinder(world, p, t),
                _ => drop(world.hindered.remove(&(p, t))),
            }
        }
    }

    /// The tasks that try.
    fn tries(&self) -> impl Iterator<Item = (u8, u8)> + '_ {
        let all = (0..)
            .zip(&self.plans)
            .flat_map(|(p, plans)| (0..).zip(plans).map(move |(t, plan)| (p, t, plan.trying)));
        all.filter(|(_, _, trying)| *trying).map(|(p, t, _)| (p, t))
    }

    /// Notes whether somebody is in the way of this try: has the lock, or waits for it.
    fn hinder(&self, world: &mut World<S>, p: u8, t: u8) {
        let plan = self.plan(p, t);
        if !plan.trying {
            return;
        }
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
        let here = tasks.any(|(q, process)| {
            (0..).zip(&process.tasks).any(|(u, task)| (q, u) != (p, t) && in_the_way((q, u), task))
        });
        if here || world.server.may_refuse(world.now + world.jumped, plan.mode.into()) {
            world.hindered.insert((p, t));
        }
    }
}
