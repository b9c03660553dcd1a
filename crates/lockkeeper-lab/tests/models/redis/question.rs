//! Dead and slow waiters in a row: the scripts beside waiters that are killed, stopped and go on,
//! or answer at once.
//!
//! Every waiter has one claim and looks when its server's answers say so, and every net period.
//! Those that live are prompt: time goes on when they have done what is due. Ticks are half
//! seconds.

use std::fmt::Debug;

use stateright::{Model, Property};

use super::scripts::{How, Lock, Place, Reply, Slip, Told, Units};
use crate::explore::{convicts, holds};

const UNITS: Units = Units { second: 2, number_of: |now| now * 1000 };
const TTL: u64 = 12;
const CLAIM_LEASE: u64 = 4;
/// Two claim leases.
const NET: u64 = 8;
const WINDOW: u64 = 1;
/// The claim of whoever has the lock at the beginning.
const FIRST: u16 = 100;

const BOUND: &str = "the dead cost one claim lease and the time to answer, together";
const ORDER: &str = "nobody that lives and answers is passed";
const PLACES: &str = "who is slow keeps its place";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    Lives,
    Stopped { since: u64 },
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// It has not joined yet.
    Away,
    Waits,
    Has {
        renew_at: u64,
    },
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    life: Life,
    stage: Stage,
    /// What it was told and has not read.
    told: Vec<Told>,
    ask_at: Option<u64>,
    /// It was told to look then.
    told_at: Option<u64>,
    net_at: u64,
    /// It has asked since it went on.
    awake: bool,
    joined: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    Holds { renew_at: u64 },
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u64,
    lock: Lock,
    first: Holder,
    waiters: Vec<Waiter>,
    kills: u8,
    stops: u8,
    /// Since when the lock is nobody's that lives: given back, or its lease ran out.
    free_since: Option<u64>,
    passed: bool,
    /// Somebody was granted although a waiter before it was silent.
    went_past: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Tick,
    Joins(usize),
    Reads(usize),
    Asks(usize),
    GivesBack(usize),
    FirstGivesBack,
    FirstDies,
    Kills(usize),
    Stops(usize),
    GoesOn(usize),
}

impl World {
    /// A script runs: whoever gets the lock by it may pass the silent and nobody else.
    fn watched<T>(&mut self, script: impl FnOnce(&mut Lock) -> T) -> T {
        let line: Vec<u16> = self.lock.line.iter().map(|s| s.place.claim).collect();
        let had: Vec<u16> = self.lock.holders.iter().map(|h| h.claim).collect();
        let answer = script(&mut self.lock);
        for holder in self.lock.holders.iter().filter(|h| !had.contains(&h.claim)) {
            for claim in line.iter().take_while(|claim| **claim != holder.claim) {
                let waiter = &self.waiters[usize::from(*claim) - 1];
                self.passed |= waiter.life == Life::Lives && waiter.awake;
                self.went_past |= self.lock.line.iter().any(|s| s.place.claim == *claim);
            }
        }
        answer
    }
}

struct Row {
    waiters: usize,
    kills: u8,
    stops: u8,
    /// How many join when they like.
    late: usize,
    /// Until when the first holder may have the lock.
    until: u64,
    slip: Option<Slip>,
}

fn row(waiters: usize) -> Row {
    Row { waiters, kills: 0, stops: 0, late: 0, until: 2, slip: None }
}

fn claim(at: usize) -> u16 {
    u16::try_from(at).expect("few") + 1
}

fn place(claim: u16) -> Place {
    Place { claim, mode: 'x', count: 1, limit: 0, ttl: TTL, hold: None }
}

impl Row {
    fn acquire(&self, world: &mut World, at: usize) {
        let now = world.now;
        let (reply, told) = world
            .watched(|lock| lock.acquire(now, UNITS, self.slip, place(claim(at)), How::Join, now));
        let waiter = &mut world.waiters[at];
        (waiter.ask_at, waiter.awake) = (None, true);
        waiter.told_at = waiter.told_at.filter(|at| *at > now);
        match reply {
            Reply::Granted { .. } => self.granted(world, at),
            Reply::InLine { rest, turn, .. } => {
                let wait = turn.map(|turn| now + rest.max(1) + turn * CLAIM_LEASE);
                waiter.ask_at = wait.into_iter().chain(waiter.told_at).min();
            }
            other => panic!("nobody else asks: {other:?}"),
        }
        self.hear(world, told);
    }

    fn joins(&self, world: &mut World, at: usize) {
        let waiter = &mut world.waiters[at];
        (waiter.stage, waiter.joined, waiter.net_at) = (Stage::Waits, world.now, world.now + NET);
        self.acquire(world, at);
    }

    fn granted(&self, world: &mut World, at: usize) {
        world.free_since = None;
        (world.waiters[at].stage, world.waiters[at].ask_at) =
            (Stage::Has { renew_at: world.now + TTL / 3 }, None);
    }

    fn hear(&self, world: &mut World, told: Vec<Told>) {
        for word in told {
            let (Told::Granted { claim, .. } | Told::First { claim, .. } | Told::Alive { claim }) =
                word;
            if let Some(waiter) =
                world.waiters.get_mut(usize::from(claim) - 1).filter(|w| w.life != Life::Dead)
            {
                waiter.told.push(word);
            }
        }
    }

    fn reads(&self, world: &mut World, at: usize) {
        let (now, word) = (world.now, world.waiters[at].told.remove(0));
        if world.waiters[at].stage != Stage::Waits {
            return;
        }
        match word {
            Told::Granted { claim, at: since, lease, .. } => {
                if since + lease > now && world.lock.renew(now, UNITS, claim, TTL) {
                    self.granted(world, at);
                } else {
                    self.acquire(world, at);
                }
            }
            Told::First { rest, .. } => {
                let look_at = Some(now + rest.max(1));
                (world.waiters[at].ask_at, world.waiters[at].told_at) = (look_at, look_at);
            }
            Told::Alive { .. } => self.acquire(world, at),
        }
    }

    fn release(&self, world: &mut World, claim: u16) {
        let now = world.now;
        world.free_since.get_or_insert(now);
        let (_, _, told) =
            world.watched(|lock| lock.release(now, UNITS, self.slip, claim, 0, None));
        self.hear(world, told);
    }

    /// What has to be done before time goes on.
    fn due(&self, world: &World, out: &mut Vec<Step>) {
        for (at, waiter) in world.waiters.iter().enumerate().filter(|(_, w)| w.life == Life::Lives)
        {
            let timer = waiter
                .ask_at
                .into_iter()
                .chain([waiter.net_at])
                .min()
                .is_some_and(|due| due <= world.now);
            if !waiter.told.is_empty() {
                out.push(Step::Reads(at));
            } else if waiter.stage == Stage::Waits && timer {
                out.push(Step::Asks(at));
            }
        }
    }
}

impl Model for Row {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let waiter = Waiter {
            life: Life::Lives,
            stage: Stage::Away,
            told: Vec::new(),
            ask_at: None,
            told_at: None,
            net_at: 0,
            awake: true,
            joined: 0,
        };
        let mut world = World {
            now: 1,
            lock: Lock::default(),
            first: Holder::Holds { renew_at: 1 + TTL / 3 },
            waiters: vec![waiter; self.waiters],
            kills: self.kills,
            stops: self.stops,
            free_since: None,
            passed: false,
            went_past: false,
        };
        world.lock.acquire(1, UNITS, None, place(FIRST), How::Join, 1);
        for at in 0..self.waiters - self.late {
            self.joins(&mut world, at);
        }
        vec![world]
    }

    fn actions(&self, world: &World, out: &mut Vec<Step>) {
        self.due(world, out);
        if matches!(world.first, Holder::Holds { .. }) {
            out.extend([Step::FirstGivesBack, Step::FirstDies]);
            for (at, waiter) in
                world.waiters.iter().enumerate().filter(|(_, w)| w.life == Life::Lives)
            {
                if world.kills > 0 && waiter.stage == Stage::Waits {
                    out.push(Step::Kills(at));
                }
                if world.stops > 0 && waiter.stage == Stage::Waits && waiter.told.is_empty() {
                    out.push(Step::Stops(at));
                }
            }
        }
        for (at, waiter) in world.waiters.iter().enumerate() {
            match waiter {
                Waiter { stage: Stage::Away, .. } => out.push(Step::Joins(at)),
                Waiter { life: Life::Stopped { .. }, .. } => out.push(Step::GoesOn(at)),
                Waiter { life: Life::Lives, stage: Stage::Has { .. }, .. } => {
                    out.push(Step::GivesBack(at))
                }
                _ => {}
            }
        }
        let mut due = Vec::new();
        self.due(world, &mut due);
        let over = world.waiters.iter().all(|w| w.stage == Stage::Over || w.life != Life::Lives);
        let held = matches!(world.first, Holder::Holds { .. }) && world.now >= self.until;
        if due.is_empty() && !over && !held && world.now < 1 + self.until + 2 * TTL {
            out.push(Step::Tick);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut world = world.clone();
        let now = world.now;
        match step {
            Step::Tick => {
                world.now += 1;
                let now = world.now;
                if let Holder::Holds { renew_at } = &mut world.first
                    && *renew_at <= now
                {
                    *renew_at = now + TTL / 3;
                    world.lock.renew(now, UNITS, FIRST, TTL);
                }
                for at in 0..world.waiters.len() {
                    if let Waiter { life: Life::Lives, stage: Stage::Has { renew_at }, .. } =
                        &mut world.waiters[at]
                        && *renew_at <= now
                    {
                        *renew_at = now + TTL / 3;
                        world.lock.renew(now, UNITS, claim(at), TTL);
                    }
                }
                let living =
                    |c: u16| c == FIRST || world.waiters[usize::from(c) - 1].stage != Stage::Waits;
                let held = world.lock.holders.iter().any(|h| h.until > now && living(h.claim));
                if !held {
                    world.free_since.get_or_insert(now);
                }
            }
            Step::Joins(at) => self.joins(&mut world, at),
            Step::Reads(at) => self.reads(&mut world, at),
            Step::Asks(at) => {
                if world.waiters[at].net_at <= now {
                    world.waiters[at].net_at = now + NET;
                }
                self.acquire(&mut world, at);
            }
            Step::GivesBack(at) => {
                world.waiters[at].stage = Stage::Over;
                self.release(&mut world, claim(at));
            }
            Step::FirstGivesBack => {
                world.first = Holder::Gone;
                self.release(&mut world, FIRST);
            }
            Step::FirstDies => world.first = Holder::Gone,
            Step::Kills(at) => {
                world.kills -= 1;
                world.waiters[at].life = Life::Dead;
                world.waiters[at].told.clear();
                world.lock.deaf.insert(claim(at));
            }
            Step::Stops(at) => {
                world.stops -= 1;
                world.waiters[at].life = Life::Stopped { since: now };
                world.waiters[at].awake = false;
            }
            Step::GoesOn(at) => world.waiters[at].life = Life::Lives,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let bound = |row: &Self, world: &World| {
            let waits = world
                .waiters
                .iter()
                .filter(|w| w.life == Life::Lives && w.stage == Stage::Waits && w.awake);
            // Who stopped a moment ago may be the one that was told to look: then the net does.
            let most = CLAIM_LEASE + WINDOW + if row.stops > 0 { NET + CLAIM_LEASE } else { 0 };
            // Who joins later finds the lock free, and at worst an answer is waited for.
            let due = |since: u64| waits.map(|w| (since + most).max(w.joined + WINDOW)).min();
            world.free_since.and_then(due).is_none_or(|due| world.now <= due)
        };
        let keeps = |_: &Self, world: &World| {
            world.waiters.iter().enumerate().all(|(at, waiter)| match waiter {
                Waiter { life: Life::Stopped { since }, stage: Stage::Waits, told, .. }
                    if world.now < since + 20 =>
                {
                    let granted = told.iter().any(|word| matches!(word, Told::Granted { .. }));
                    granted || world.lock.line.iter().any(|s| s.place.claim == claim(at))
                }
                _ => true,
            })
        };
        let one = |_: &Self, world: &World| {
            let has = |w: &&Waiter| matches!(w.stage, Stage::Has { .. });
            let first = usize::from(matches!(world.first, Holder::Holds { .. }));
            world.waiters.iter().filter(has).count() + first <= 1 && world.lock.holders.len() <= 1
        };
        let mut properties = vec![
            Property::always("one holder at a time", one),
            Property::always(ORDER, |_, world: &World| !world.passed),
            Property::always(BOUND, bound),
            Property::always(PLACES, keeps),
            Property::sometimes("the last one has the lock", |_, world: &World| {
                world.waiters.last().is_some_and(|w| matches!(w.stage, Stage::Has { .. }))
            }),
        ];
        if self.kills + self.stops > 0 {
            properties.push(Property::sometimes(
                "the lock goes past one that is silent",
                |_, world: &World| world.went_past,
            ));
        }
        properties
    }
}

#[test]
fn r11_dead_waiters_cost_one_claim_lease_together_and_the_living_keep_their_order() {
    holds("question", "nobody dies", row(3));
    holds("question", "two of three die", Row { kills: 2, until: 10, ..row(3) });
    holds("question", "three of four die", Row { kills: 3, until: 2, ..row(4) });
}

#[test]
fn r11_who_joins_behind_dead_waiters_comes_when_the_first_one_s_claim_lease_is_over() {
    holds(
        "question",
        "one joins behind two that may die",
        Row { kills: 2, late: 1, until: 1, ..row(3) },
    );
    holds(
        "question",
        "one joins behind three that may die",
        Row { kills: 3, late: 1, until: 1, ..row(4) },
    );
}

#[test]
fn r11_who_is_slow_keeps_its_place_and_the_living_keep_their_order() {
    holds("question", "one of three is slow", Row { stops: 1, until: 1, ..row(3) });
    holds("question", "one is slow, one dies", Row { kills: 1, stops: 1, until: 1, ..row(3) });
}

#[test]
fn every_known_flaw_of_the_question_is_found() {
    let of = |slip| Row { kills: 2, until: 2, slip: Some(slip), ..row(4) };
    convicts("question", "no answer is waited for", ORDER, of(Slip::WaitsForNoAnswer));
    // Who answered while the first that lives had the lock looks no more before its net.
    let soon = Row { until: 6, ..of(Slip::TellsNobodyBehind) };
    convicts("question", "nobody is told of a free lock", BOUND, soon);
    let late = Row { kills: 3, late: 1, ..of(Slip::TrustsTheDeaf) };
    convicts("question", "who joins is not told of a dead holder", BOUND, late);
    let slow = Row { stops: 1, until: 2, slip: Some(Slip::ForgetsTheSilent), ..row(3) };
    convicts("question", "who is silent loses its place", PLACES, slow);
}
