//! Model 3: the file engine's recipe on byte locks, with death at every step.
//!
//! Each process carries out what the real recipe says, one action at a time, as `engine/file/driver.rs` does. It may die
//! between any two; the kernel then frees its bytes. The file may be removed and made anew under everybody.

mod kernel;
mod searches;
mod world;

use lockkeeper::Mode;
use lockkeeper::test_util::machines::bytes::{Grip, Span};
use lockkeeper::test_util::machines::file::{Action, End, Event, Goal, Recipe};
use stateright::{Model, Property};

use kernel::ByteLocks;

/// What one process does.
#[derive(Clone, Copy, Debug)]
struct Plan {
    goal: Goal,
    /// Stands in line, or comes back.
    join: bool,
    /// Its caller may leave while it waits.
    fickle: bool,
    /// What it does once it has the lock.
    then: Option<Then>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Upgrade,
    Downgrade(Mode),
}

const fn lock(goal: Goal) -> Plan {
    Plan { goal, join: true, fickle: false, then: None }
}

const WRITE: Plan = lock(Goal::Exclusive);
const READ: Plan = lock(Goal::Shared);
const MAY_WRITE: Plan = lock(Goal::Upgradable);
const UPGRADES: Plan = Plan { then: Some(Then::Upgrade), ..MAY_WRITE };
const GOES_DOWN: Plan = Plan { then: Some(Then::Downgrade(Mode::Upgradable)), ..WRITE };
const READS_ON: Plan = Plan { then: Some(Then::Downgrade(Mode::Shared)), ..WRITE };
const TRIES: Plan = Plan { join: false, ..WRITE };
const LEAVES: Plan = Plan { fickle: true, ..WRITE };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// Nobody looks whether the path still leads to the locked file.
    NoCheck,
    /// Nobody looks whether others are in line.
    SkipsTheLine,
    /// Who may upgrade is not alone in that.
    NoUpgradeByte,
    /// An upgrade lets go of its read lock first, as flock does.
    UpgradeLetsGo,
    /// The number is worked out before the lock is there.
    NumberTooEarly,
    /// What a dead process had stays locked, as with pid files.
    LocksOutliveTheirProcess,
}

/// One process's acquisition or conversion under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    recipe: Recipe,
    next: Action,
    /// It may wait by now.
    stands: bool,
    number: u64,
    /// Who stood in line when it came, and does so still.
    behind: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    Idle,
    Acquires(Run),
    Holds {
        mode: Mode,
        number: u64,
        converted: bool,
    },
    Upgrades(Run),
    /// Going down: the mode, and how many of the calls are made.
    Lowers {
        to: Mode,
        number: u64,
        done: u8,
    },
    Over,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    at: At,
    /// The file it has open.
    file: u8,
    in_line: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct File {
    locks: ByteLocks,
    /// The last number in its record.
    last: u64,
    /// The waiters' flags, which outlive their writers.
    flags: Vec<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    processes: Vec<Process>,
    files: Vec<File>,
    /// What the path leads to: nothing, until somebody makes the next.
    path: Option<u8>,
    deaths: u8,
    removals: u8,
    greatest: u64,
    greatest_exclusive: u64,
    tokens_rise: bool,
    in_order: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Begins(u8),
    Does(u8, Action),
    Converts(u8),
    Releases(u8),
    Lowers(u8),
    /// The caller leaves, and the wait is called off.
    Leaves(u8),
    Dies(u8),
    /// `lockkeeper gc`: locks everything, and removes the file.
    Collects,
    /// Somebody removes the file whoever holds it.
    Removes,
}

struct Bytes {
    plans: Vec<Plan>,
    deaths: u8,
    collects: bool,
    removals: u8,
    flaw: Option<Flaw>,
}

impl Bytes {
    fn of(plans: &[Plan]) -> Self {
        Self { plans: plans.to_vec(), deaths: 0, collects: false, removals: 0, flaw: None }
    }

    fn deaths(self, deaths: u8) -> Self {
        Self { deaths, ..self }
    }

    fn collects(self) -> Self {
        Self { collects: true, removals: 1, ..self }
    }

    fn removed(self) -> Self {
        Self { removals: 1, ..self }
    }

    fn flaw(self, flaw: Flaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }

    fn possible(&self, world: &World, out: &mut Vec<Step>) {
        for (p, process) in (0..).zip(&world.processes) {
            let plan = self.plans[usize::from(p)];
            match &process.at {
                At::Idle => out.push(Step::Begins(p)),
                At::Acquires(run) | At::Upgrades(run) => {
                    if self.may(world, p, run.next) {
                        out.push(Step::Does(p, run.next));
                    }
                    let waits = matches!(run.next, Action::Wait(..) | Action::Announce);
                    if plan.fickle && waits && matches!(process.at, At::Acquires(_)) {
                        out.push(Step::Leaves(p));
                    }
                }
                At::Holds { converted, .. } => {
                    if plan.then.is_some() && !converted {
                        out.push(Step::Converts(p));
                    } else {
                        out.push(Step::Releases(p));
                    }
                }
                At::Lowers { .. } => out.push(Step::Lowers(p)),
                At::Over | At::Dead => {}
            }
        }
    }

    /// A wait goes on only when the kernel lets it, or when the path leads elsewhere.
    fn may(&self, world: &World, p: u8, action: Action) -> bool {
        let file = world.processes[usize::from(p)].file;
        match action {
            Action::Wait(span, grip) => {
                self.is_nothing(span)
                    || world.files[usize::from(file)].locks.may_lock(p, self.narrowed(span), grip)
                    || world.path != Some(file)
            }
            _ => true,
        }
    }

    fn is_nothing(&self, span: Span) -> bool {
        self.flaw == Some(Flaw::NoUpgradeByte) && span == Span::UPGRADE
    }

    fn narrowed(&self, span: Span) -> Span {
        if self.flaw == Some(Flaw::NoUpgradeByte) && span == Span::ALL { Span::MAIN_AND_GATE } else { span }
    }

    fn take_step(&self, world: &mut World, step: Step) {
        match step {
            Step::Begins(p) => {
                let Plan { goal, join, .. } = self.plans[usize::from(p)];
                world.processes[usize::from(p)].file = world.open();
                let run = world.run(p, Recipe::new(goal, join));
                world.processes[usize::from(p)].at = At::Acquires(run);
            }
            Step::Does(p, action) => {
                let event = self.perform(world, p, action);
                self.told(world, p, event);
            }
            Step::Leaves(p) => self.told(world, p, Event::Stopped),
            Step::Converts(p) => self.convert(world, p),
            Step::Releases(p) => {
                let process = &mut world.processes[usize::from(p)];
                process.at = At::Over;
                world.files[usize::from(process.file)].locks.close(p);
            }
            Step::Lowers(p) => self.lower(world, p),
            Step::Dies(p) => {
                world.deaths -= 1;
                let process = &mut world.processes[usize::from(p)];
                (process.at, process.in_line) = (At::Dead, false);
                world.forget_in_line(p);
                if self.flaw != Some(Flaw::LocksOutliveTheirProcess) {
                    for file in &mut world.files {
                        file.locks.close(p);
                    }
                }
            }
            Step::Collects | Step::Removes => {
                world.removals -= 1;
                world.path = None;
            }
        }
    }

    fn convert(&self, world: &mut World, p: u8) {
        let At::Holds { mode, number, .. } = world.processes[usize::from(p)].at else { return };
        let file = world.processes[usize::from(p)].file;
        world.processes[usize::from(p)].at = match self.plans[usize::from(p)].then {
            Some(Then::Upgrade) => {
                if self.flaw == Some(Flaw::UpgradeLetsGo) {
                    world.files[usize::from(file)].locks.unlock(p, Span::MAIN);
                    world.files[usize::from(file)].locks.unlock(p, Span::UPGRADE);
                }
                At::Upgrades(world.run(p, Recipe::new(Goal::Upgrade, true)))
            }
            Some(Then::Downgrade(to)) => {
                let number = world.files[usize::from(file)].last.max(number) + 1;
                At::Lowers { to, number, done: 0 }
            }
            None => At::Holds { mode, number, converted: true },
        };
    }

    /// The calls of `engine/file/convert.rs`, one at a time.
    fn lower(&self, world: &mut World, p: u8) {
        let process = &mut world.processes[usize::from(p)];
        let At::Lowers { to, number, done } = process.at else { return };
        let locks = &mut world.files[usize::from(process.file)].locks;
        let over = match done {
            0 => {
                assert!(locks.try_lock(p, Span::MAIN, Grip::Read), "going down is refused by nobody");
                false
            }
            1 => {
                locks.unlock(p, Span::GATE);
                to != Mode::Shared
            }
            _ => {
                locks.unlock(p, Span::UPGRADE);
                true
            }
        };
        if over {
            world.granted(p, to, number);
        } else {
            process.at = At::Lowers { to, number, done: done + 1 };
        }
    }

    /// What `Driver::perform` does.
    fn perform(&self, world: &mut World, p: u8, action: Action) -> Event {
        let yes_if = |yes: bool| if yes { Event::Yes } else { Event::No };
        let at = usize::from(world.processes[usize::from(p)].file);
        let replaced = world.path != Some(world.processes[usize::from(p)].file);
        let (At::Acquires(run) | At::Upgrades(run)) = &mut world.processes[usize::from(p)].at else { return Event::Failed };
        let goal = run.recipe.goal();
        let file = &mut world.files[at];
        match action {
            Action::Try(span, _) | Action::Wait(span, _) if self.is_nothing(span) => Event::Yes,
            Action::Try(span, grip) => yes_if(file.locks.try_lock(p, self.narrowed(span), grip)),
            Action::Wait(span, grip) => {
                if file.locks.try_lock(p, self.narrowed(span), grip) {
                    Event::Yes
                } else {
                    Event::Replaced
                }
            }
            Action::Free(span) => {
                file.locks.unlock(p, span);
                Event::Yes
            }
            Action::Check if replaced && self.flaw != Some(Flaw::NoCheck) => Event::Replaced,
            Action::Check => Event::Yes,
            Action::Look => {
                let gives_way = !run.stands && goal != Goal::Upgrade && self.flaw != Some(Flaw::SkipsTheLine);
                if gives_way && file.flags.contains(&true) && !file.locks.may_lock(p, Span::WAITERS, Grip::Write) {
                    return Event::No;
                }
                // One more than the last exclusive one, which leaves that free.
                if matches!(goal, Goal::Shared | Goal::Upgradable) {
                    run.number = file.last + 1;
                }
                Event::Yes
            }
            Action::Write => {
                if self.flaw != Some(Flaw::NumberTooEarly) {
                    run.number = file.last + 2;
                }
                file.last = run.number;
                Event::Yes
            }
            Action::Announce => {
                file.locks.try_lock(p, Span::waiter(p.into()), Grip::Write);
                file.flags[usize::from(p)] = true;
                world.processes[usize::from(p)].in_line = true;
                Event::Yes
            }
            Action::Retract => {
                world.retract(p);
                Event::Yes
            }
            Action::Undo => {
                world.retract(p);
                let locks = &mut world.files[at].locks;
                if goal == Goal::Upgrade {
                    locks.try_lock(p, Span::MAIN, Grip::Read);
                    locks.unlock(p, Span::GATE);
                } else {
                    locks.close(p);
                }
                Event::Yes
            }
            Action::Reopen => {
                file.locks.close(p);
                world.processes[usize::from(p)].file = world.open();
                Event::Yes
            }
            Action::Stand => {
                run.stands = true;
                Event::Yes
            }
            Action::Show => Event::Yes,
            Action::Count | Action::Pick | Action::Sleep | Action::Done(_) => unreachable!("nobody wants permits here"),
        }
    }

    /// What came of an action goes to the recipe, which says what is next.
    fn told(&self, world: &mut World, p: u8, event: Event) {
        let process = &mut world.processes[usize::from(p)];
        let upgrades = matches!(process.at, At::Upgrades(_));
        let (At::Acquires(run) | At::Upgrades(run)) = &mut process.at else { return };
        run.next = run.recipe.step(event);
        let Action::Done(end) = run.next else { return };
        let Run { recipe, number, stands, behind, .. } = run.clone();
        match end {
            End::Granted => {
                world.in_order &= stands || upgrades || behind.is_empty();
                let mode = match recipe.goal() {
                    Goal::Shared => Mode::Shared,
                    Goal::Upgradable => Mode::Upgradable,
                    _ => Mode::Exclusive,
                };
                world.granted(p, mode, number);
            }
            // The hold that was to be upgraded is void with its file.
            End::Busy | End::Stopped | End::Failed => {
                process.at = At::Over;
                for file in &mut world.files {
                    file.locks.close(p);
                }
            }
        }
    }

    /// From here on nobody dies: does everybody come to an end, and is nothing left locked?
    fn comes_to_an_end(&self, world: &World) -> bool {
        let mut world = world.clone();
        let mut possible = Vec::new();
        for turn in 0..300 {
            possible.clear();
            self.possible(&world, &mut possible);
            possible.retain(|step| !matches!(step, Step::Leaves(_) | Step::Begins(_)));
            if possible.is_empty() {
                let over = world.processes.iter().all(|p| matches!(p.at, At::Over | At::Dead | At::Idle));
                return over && world.files.iter().all(|file| file.locks.is_empty());
            }
            let next = possible.swap_remove(turn % possible.len());
            self.take_step(&mut world, next);
        }
        false
    }
}

const EXCLUSION: &str = "holders exclude each other";
const TOKENS: &str = "numbers rise";
const ORDER: &str = "nobody who is not in line overtakes it";
const END: &str = "everybody comes to an end, and nothing is left locked";

impl Model for Bytes {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let processes = vec![Process { at: At::Idle, file: 0, in_line: false }; self.plans.len()];
        vec![World {
            processes,
            files: Vec::new(),
            path: None,
            deaths: self.deaths,
            removals: self.removals,
            greatest: 0,
            greatest_exclusive: 0,
            tokens_rise: true,
            in_order: true,
        }]
    }

    fn actions(&self, world: &World, out: &mut Vec<Step>) {
        self.possible(world, out);
        if world.deaths > 0 {
            let lives = |at: &At| !matches!(at, At::Idle | At::Over | At::Dead);
            out.extend((0..).zip(&world.processes).filter(|(_, process)| lives(&process.at)).map(|(p, _)| Step::Dies(p)));
        }
        if let Some(path) = world.path.filter(|_| world.removals > 0) {
            if !self.collects {
                out.push(Step::Removes);
            } else if world.files[usize::from(path)].locks.may_lock(u8::MAX, Span::EVERYTHING, Grip::Write) {
                out.push(Step::Collects);
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut world = world.clone();
        self.take_step(&mut world, step);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |model: &Self, world: &World| world.excludes(model.removals > 0 && !model.collects)),
            Property::always(TOKENS, |_, world: &World| world.tokens_rise),
            Property::always(ORDER, |_, world: &World| world.in_order),
            Property::always(END, |model: &Self, world: &World| model.comes_to_an_end(world)),
        ];
        if self.plans.len() > 1 {
            properties.push(Property::sometimes("somebody stands in line", |_, world: &World| world.processes.iter().any(|p| p.in_line)));
        }
        if self.plans.iter().any(|plan| plan.then == Some(Then::Upgrade)) {
            properties.push(Property::sometimes("somebody upgrades", |_, world: &World| {
                world.processes.iter().any(|p| matches!(p.at, At::Holds { mode: Mode::Exclusive, converted: true, .. }))
            }));
        }
        properties
    }
}
