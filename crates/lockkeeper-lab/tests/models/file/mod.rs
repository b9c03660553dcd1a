//! Model 3: the file engine's recipe on byte locks, with death at every step.
//!
//! Each process carries out what the real recipe says, one action at a time, as
//! `engine/file/driver.rs` does. It may die between any two; the kernel then frees its bytes. The
//! file may be removed and made anew under everybody.

mod convert;
mod kernel;
mod permits;
mod rules;
mod searches;
mod world;

use lockkeeper::Mode;
use lockkeeper::test_util::machines::bytes::{Grip, Span};
use lockkeeper::test_util::machines::file::{Action, End, Event, Goal, Recipe};

use kernel::ByteLocks;
use permits::{LIMIT, Picking, pool};

/// What one process does.
#[derive(Clone, Copy, Debug)]
struct Plan {
    goal: Goal,
    /// How many permits it wants.
    permits: u8,
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
    Plan { goal, permits: 0, join: true, fickle: false, then: None }
}

const WRITE: Plan = lock(Goal::Exclusive);
const READ: Plan = lock(Goal::Shared);
const MAY_WRITE: Plan = lock(Goal::Upgradable);
const UPGRADES: Plan = Plan { then: Some(Then::Upgrade), ..MAY_WRITE };
const READS_ONLY: Plan = Plan { then: Some(Then::Downgrade(Mode::Shared)), ..MAY_WRITE };
const GOES_DOWN: Plan = Plan { then: Some(Then::Downgrade(Mode::Upgradable)), ..WRITE };
const READS_ON: Plan = Plan { then: Some(Then::Downgrade(Mode::Shared)), ..WRITE };
const TRIES: Plan = Plan { join: false, ..WRITE };
const LEAVES: Plan = Plan { fickle: true, ..WRITE };
const ONE: Plan = Plan { permits: 1, ..lock(Goal::Permits) };
const ALL_PERMITS: Plan = Plan { permits: LIMIT, ..lock(Goal::Permits) };
const TRIES_ONE: Plan = Plan { join: false, ..ONE };
const TRIES_ALL: Plan = Plan { join: false, ..ALL_PERMITS };
const LEAVES_ONE: Plan = Plan { fickle: true, ..ONE };

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
    /// A downgrade takes one more number, also where nobody left one free for it.
    OneMoreDownwards,
    /// Permits are counted and taken by several at once.
    CountsTogether,
    /// Permits are taken without being counted again.
    TakesUncounted,
    /// Who waits for permits keeps others from counting them meanwhile.
    SleepsCounting,
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
    picking: Picking,
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
    /// The lock is given back, and the mark is still there.
    Frees,
    Over,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    at: At,
    /// The file it has open.
    file: u8,
    in_line: bool,
    /// Its hold has kept the mark of its wait.
    marked: bool,
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
    /// A try for permits was refused in whose way nobody had been.
    wrong_busy: bool,
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
    /// A try that would count permits does not wait longer for another one that does.
    GivesUp(u8),
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
                    if run.next == Action::Count && !self.may(world, p, run.next) {
                        out.push(Step::GivesUp(p));
                    }
                    let waits =
                        matches!(run.next, Action::Wait(..) | Action::Announce | Action::Sleep);
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
                At::Frees => out.push(Step::Releases(p)),
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
            Action::Count => self.may_count(world, p),
            Action::Sleep => self.may_wake(world, p),
            _ => true,
        }
    }

    fn is_nothing(&self, span: Span) -> bool {
        match self.flaw {
            Some(Flaw::NoUpgradeByte) => span == Span::UPGRADE,
            Some(Flaw::CountsTogether) => span == Span::COUNT,
            _ => false,
        }
    }

    fn narrowed(&self, span: Span) -> Span {
        if self.flaw == Some(Flaw::NoUpgradeByte) && span == Span::ALL {
            Span::MAIN_AND_GATE
        } else {
            span
        }
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
                let event = if action == Action::Pick {
                    self.pick(world, p)
                } else {
                    Some(self.perform(world, p, action))
                };
                if let Some(event) = event {
                    self.told(world, p, event);
                }
            }
            Step::Leaves(p) | Step::GivesUp(p) => self.told(world, p, Event::Stopped),
            Step::Converts(p) => self.convert(world, p),
            Step::Releases(p) => {
                let process = &mut world.processes[usize::from(p)];
                if process.marked && process.at != At::Frees {
                    // Whoever waits does not wait for the mark, too.
                    process.at = At::Frees;
                    world.files[usize::from(process.file)].locks.unlock(p, Span::ALL);
                } else {
                    process.at = At::Over;
                    world.unmark(p);
                    let file = usize::from(world.processes[usize::from(p)].file);
                    let locks = &mut world.files[file].locks;
                    locks.close(pool(p));
                    // The file on which permits were counted stays open for the next claim.
                    if self.plans[usize::from(p)].permits == 0 {
                        locks.close(p);
                    }
                }
            }
            Step::Lowers(p) => self.lower(world, p),
            Step::Dies(p) => {
                world.deaths -= 1;
                let process = &mut world.processes[usize::from(p)];
                (process.at, process.in_line, process.marked) = (At::Dead, false, false);
                world.forget_in_line(p);
                if self.flaw != Some(Flaw::LocksOutliveTheirProcess) {
                    for file in &mut world.files {
                        file.locks.close(p);
                        file.locks.close(pool(p));
                    }
                }
            }
            Step::Collects | Step::Removes => {
                world.removals -= 1;
                world.path = None;
            }
        }
        self.note_who_is_in_the_way(world);
    }

    /// What `Driver::perform` does.
    fn perform(&self, world: &mut World, p: u8, action: Action) -> Event {
        let yes_if = |yes: bool| if yes { Event::Yes } else { Event::No };
        let at = usize::from(world.processes[usize::from(p)].file);
        let replaced = world.path != Some(world.processes[usize::from(p)].file);
        let (At::Acquires(run) | At::Upgrades(run)) = &mut world.processes[usize::from(p)].at
        else {
            return Event::Failed;
        };
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
            Action::Free(Span::COUNT) if run.stands && self.flaw == Some(Flaw::SleepsCounting) => {
                Event::Yes
            }
            Action::Free(span) => {
                file.locks.unlock(p, span);
                Event::Yes
            }
            Action::Check if replaced && self.flaw != Some(Flaw::NoCheck) => Event::Replaced,
            Action::Check => Event::Yes,
            Action::Look => {
                let gives_way =
                    !run.stands && goal != Goal::Upgrade && self.flaw != Some(Flaw::SkipsTheLine);
                if gives_way
                    && file.flags.contains(&true)
                    && !file.locks.may_lock(p, Span::WAITERS, Grip::Write)
                {
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
                    locks.close(pool(p));
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
            Action::Count if self.is_nothing(Span::COUNT) => Event::Yes,
            Action::Count => {
                file.locks.try_lock(p, Span::COUNT, Grip::Write);
                Event::Yes
            }
            Action::Show | Action::Sleep => Event::Yes,
            Action::Pick | Action::Done(_) => {
                unreachable!("picking has steps of its own, and after the end nothing is done")
            }
        }
    }

    /// What came of an action goes to the recipe, which says what is next.
    fn told(&self, world: &mut World, p: u8, event: Event) {
        let process = &mut world.processes[usize::from(p)];
        let upgrades = matches!(process.at, At::Upgrades(_));
        let (At::Acquires(run) | At::Upgrades(run)) = &mut process.at else { return };
        run.next = run.recipe.step(event);
        let Action::Done(end) = run.next else { return };
        let Run { recipe, number, stands, behind, picking, .. } = run.clone();
        match end {
            End::Granted => {
                world.in_order &= stands || upgrades || behind.is_empty();
                if stands && recipe.goal() == Goal::Exclusive {
                    (process.in_line, process.marked) = (false, true);
                    world.forget_in_line(p);
                }
                let mode = match recipe.goal() {
                    Goal::Shared => Mode::Shared,
                    Goal::Upgradable => Mode::Upgradable,
                    Goal::Permits => Mode::Permits {
                        count: self.plans[usize::from(p)].permits.into(),
                        limit: LIMIT.into(),
                    },
                    _ => Mode::Exclusive,
                };
                if stands && recipe.goal() == Goal::Permits {
                    // Who waited for permits closes the file that it waited on; who had some at
                    // once keeps it for the next claim.
                    let file = usize::from(world.processes[usize::from(p)].file);
                    world.files[file].locks.close(p);
                }
                world.granted(p, mode, number);
            }
            // The hold that was to be upgraded is void with its file.
            End::Busy | End::Stopped | End::Failed => {
                process.at = At::Over;
                world.wrong_busy |=
                    end == End::Busy && recipe.goal() == Goal::Permits && !picking.hindered;
                // Who was refused keeps the file for its next claim, with nothing locked; the
                // others close it.
                for file in world.files.iter_mut().filter(|_| end != End::Busy) {
                    file.locks.close(p);
                    file.locks.close(pool(p));
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
            possible.retain(|step| {
                !matches!(step, Step::Leaves(_) | Step::GivesUp(_) | Step::Begins(_))
            });
            if possible.is_empty() {
                let over =
                    world.processes.iter().all(|p| matches!(p.at, At::Over | At::Dead | At::Idle));
                return over && world.files.iter().all(|file| file.locks.is_empty());
            }
            let next = possible.swap_remove(turn % possible.len());
            self.take_step(&mut world, next);
        }
        false
    }
}
