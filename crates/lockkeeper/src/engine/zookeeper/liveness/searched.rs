//! The proofs of an idle session, searched with the real constants: every order of quick and slow
//! answers and of late timers.
//!
//! Two sessions, 30 s and 60 s with the default margin, are searched to the end. The other sessions
//! and margins are bounded: the first 20 000 states of each, breadth first.
//!
//! Real: [`Alive`] with its plan, [`margin::floor`], and when the driver looks, as `session.rs` and
//! `reliance.rs` do it. Modelled: the answers of a healthy server, each at once or as late as the
//! reserve allows, and read by the driver or by a caller, whom the driver does not hear of; timers
//! that fire late; how long the session was idle before the first hold came.

use std::collections::HashSet;

use super::*;

const DRIFT: u32 = 100;
/// Where `proven` stands in a state: time is counted from there, so that what repeats itself is
/// found again.
const ZERO: Ticks = Ticks(1_000_000_000_000);
/// So many are looked at where it is not searched to its end.
const STATES_MAX: usize = 20_000;

/// How late a healthy server may be.
#[derive(Clone, Copy)]
struct Late {
    answer: Duration,
    timer: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    sent: Ticks,
    answered: Ticks,
    write: bool,
    /// The driver reads the answer, and looks what is due.
    by_driver: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    alive: Alive,
    now: Ticks,
    under_way: Vec<Sent>,
    last_sent: Ticks,
    timer: Ticks,
}

struct Search {
    timeout: Duration,
    margin: Option<Duration>,
    late: Late,
    /// The least that was left of the deadline, and the most writes: what the search is for.
    least: Duration,
    states: usize,
    /// So many are looked at, and whether there were more.
    most: usize,
    bounded: bool,
}

impl World {
    /// The connection was made, and nobody relies on the session yet.
    fn connected(timeout: Duration) -> Self {
        let mut alive = Alive::default();
        alive.created(ZERO, timeout);
        Self { alive, now: ZERO, under_way: Vec::new(), last_sent: ZERO, timer: ZERO }
    }

    fn left(&self) -> Duration {
        // The deadline that the keeper computes: what is left, less the allowance.
        self.alive.left(self.now, DRIFT) * (1000 - DRIFT) / 1000
    }

    /// Time is counted from the proof.
    fn normal(mut self) -> Self {
        let (back, forth) = (self.alive.proven.since(ZERO), ZERO.since(self.alive.proven));
        let shift = |at: Ticks| at.plus(forth).minus(back);
        self.alive.proven = shift(self.alive.proven);
        for touch in &mut self.alive.touches {
            (touch.sent, touch.answered) = (shift(touch.sent), shift(touch.answered));
        }
        for sent in &mut self.under_way {
            (sent.sent, sent.answered) = (shift(sent.sent), shift(sent.answered));
        }
        (self.now, self.last_sent, self.timer) =
            (shift(self.now), shift(self.last_sent), shift(self.timer));
        self
    }
}

impl Search {
    fn longest(&self, alive: &Alive) -> Duration {
        alive.longest(margin::floor(self.timeout, self.margin), DRIFT)
    }

    /// A request leaves; its answer is quick or slow, and is read by the driver or by somebody
    /// else.
    fn sends(&self, world: &World, write: bool) -> Vec<World> {
        // What the driver does not hear of is worse for it than what it does.
        let ways = [(Duration::ZERO, true), (self.late.answer, false)];
        let mut after = Vec::new();
        for (late, by_driver) in ways {
            let mut world = world.clone();
            world.last_sent = world.now;
            world.under_way.push(Sent {
                sent: world.now,
                answered: world.now.plus(late),
                write,
                by_driver,
            });
            after.push(world);
        }
        after
    }

    /// The driver looks, as `Serve::tend` and `State::keep_proven` do; `relied`: somebody holds.
    fn tend(&self, world: World, relied: bool) -> Vec<World> {
        let now = world.now;
        let every = self.timeout / QUIET_PART;
        let longest = self.longest(&world.alive);
        let (mut write, mut touch) = (None, None);
        if relied {
            let plan = world.alive.plan(longest);
            write = plan.write.filter(|_| !world.under_way.iter().any(|sent| sent.write));
            touch = Some(plan.touch).filter(|at| world.last_sent < *at);
        }
        let mut worlds = vec![world];
        if write.is_some_and(|at| at <= now) {
            worlds = worlds.iter().flat_map(|world| self.sends(world, true)).collect();
        }
        if touch.is_some_and(|at| at <= now && worlds[0].last_sent < at)
            || now.since(worlds[0].last_sent) >= every
        {
            worlds = worlds.iter().flat_map(|world| self.sends(world, false)).collect();
        }
        let next = [write, touch].into_iter().flatten().filter(|at| *at > now).min();
        let mut after = Vec::new();
        for world in worlds {
            let quiet = world.last_sent.plus(every);
            let at = next.map_or(quiet, |at| at.min(quiet));
            for late in [Duration::ZERO, self.late.timer] {
                after.push(World { timer: at.plus(late), ..world.clone() });
            }
        }
        after
    }

    /// What happens next: an answer comes, or the timer fires.
    fn next(&mut self, mut world: World, relied: bool) -> Vec<World> {
        let first = world
            .under_way
            .iter()
            .enumerate()
            .min_by_key(|(_, sent)| sent.answered)
            .map(|(at, sent)| (at, *sent));
        match first.filter(|(_, sent)| sent.answered <= world.timer) {
            Some((at, sent)) => {
                world.now = sent.answered;
                world.under_way.remove(at);
                if relied {
                    self.least = self.least.min(world.left());
                }
                let longest = relied.then(|| self.longest(&world.alive));
                let proves = world.alive.answered(sent.sent, world.now, sent.write, longest);
                if sent.by_driver || proves && relied {
                    self.tend(world, relied)
                } else {
                    vec![world]
                }
            }
            None => {
                world.now = world.timer;
                if relied {
                    self.least = self.least.min(world.left());
                }
                self.tend(world, relied)
            }
        }
    }

    /// Every way to be idle for a while, then a hold that is granted by a write, and then every way
    /// to go on.
    fn run(&mut self) {
        let mut holds = VecDeque::new();
        let mut idle = HashSet::new();
        let mut open = self.tend(World::connected(self.timeout), false);
        while let Some(world) = open.pop() {
            // Long enough that nothing new comes.
            if world.now.since(ZERO) > self.timeout * 3 / 4 || !idle.insert(world.clone()) {
                continue;
            }
            // A create, whose answer is the grant.
            for mut world in self.sends(&world, true) {
                let Some(create) = world.under_way.pop() else { continue };
                // What is answered before it is left out: it can only help.
                world.under_way.retain(|sent| sent.answered > create.answered);
                world.now = create.answered;
                world.alive.answered(create.sent, world.now, true, None);
                self.least = self.least.min(world.left());
                holds.extend(self.tend(world, true));
            }
            open.extend(self.next(world, false));
        }
        let mut seen = HashSet::new();
        assert!(!holds.is_empty());
        // Breadth first: every short way is gone before a longer one.
        while let Some(world) = holds.pop_front() {
            if seen.len() >= self.most {
                self.bounded = true;
                break;
            }
            let world = world.normal();
            if !seen.insert(world.clone()) {
                continue;
            }
            holds.extend(self.next(world, true));
        }
        self.states = seen.len();
    }
}

fn search(timeout: Duration, margin: Option<Duration>, most: usize) -> Search {
    // Two answers and two timers: what the reserve is for.
    let reserve = Alive { timeout, ..Alive::default() }.reserve();
    let late = Late { answer: reserve * 2 / 5, timer: reserve / 10 };
    let mut search =
        Search { timeout, margin, late, least: timeout, states: 0, most, bounded: false };
    search.run();
    let (floor, least) = (margin::floor(timeout, margin), search.least);
    println!(
        "{timeout:?}, margin {margin:?}: floor {floor:?}, least {least:?}, {} states, bounded: {}",
        search.states, search.bounded
    );
    assert!(least >= floor, "{timeout:?}, {margin:?}: {least:?} of {floor:?} was left");
    search
}

/// The sessions that a server of the default tick gives, and the shortest of a test's server.
const SESSIONS_MS: [u64; 4] = [1_000, 4_000, 15_000, 60_000];

fn margins(timeout: Duration) -> [Option<Duration>; 4] {
    [None, Some(Duration::ZERO), Some(timeout / 4), Some(margin::most(timeout))]
}

#[test]
fn r1_without_a_fault_the_deadline_never_comes_closer_than_the_floor() {
    for timeout in SESSIONS_MS.map(Duration::from_millis) {
        for margin in margins(timeout) {
            search(timeout, margin, STATES_MAX);
        }
    }
}

#[test]
fn r1_without_a_fault_the_deadline_keeps_to_the_floor_in_every_state_there_is() {
    for timeout in [30, 60].map(Duration::from_secs) {
        let found = search(timeout, None, usize::MAX);
        assert!(!found.bounded && found.states > 100_000, "{} states", found.states);
    }
}
