//! Every order of events of two clients and three members, as far as the numbers below go: requests
//! that arrive late, in another order or never, answers that are lost, clients that stop between
//! any two messages. No two hold at once while no member loses its data.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;
use crate::protocol::lease::{Drift, deadline};

const MEMBERS: usize = 3;
const TTL: Duration = Duration::from_secs(10);
/// Time passes in steps of this: two of them end a lease.
const STEP: Duration = Duration::from_secs(5);
/// For how long a request may be carried out.
const IN_TIME: Duration = Duration::from_secs(5);

/// More than that take too long for a test.
const STATES_MOST: usize = 600_000;

/// What may happen, and how the members behave.
#[derive(Clone, Copy)]
struct World {
    /// How often each client may ask, and extend what it has.
    asks: [u8; 2],
    renewals: u8,
    steps: u8,
    /// How often a member may lose everything and go on.
    restarts: u8,
    /// A member that restarted counts only a lease later.
    waits: bool,
    /// A request to give back leaves what a later round wrote.
    rounds: bool,
    /// What the second client sends is carried out and read at once, which leaves room for more of
    /// the first one's.
    at_once: bool,
    /// The first client does not reach the last member.
    away: bool,
}

const CONTENDING: World = World {
    asks: [1, 1],
    renewals: 0,
    steps: 0,
    restarts: 0,
    waits: true,
    rounds: true,
    at_once: false,
    away: false,
};

/// One client's messages are late in every way, and another looks for a moment to come in.
const LATE: World = World { asks: [2, 1], at_once: true, away: true, ..CONTENDING };

/// The same while a lease ends.
const ENDING: World = World { asks: [1, 1], steps: 2, away: false, ..LATE };

#[derive(Clone, PartialEq, Eq, Hash)]
struct Record {
    client: usize,
    round: u64,
    until: Ticks,
}

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Member {
    record: Option<Record>,
    counts_at: Ticks,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    client: usize,
    member: usize,
    verb: Verb,
    round: u64,
    not_after: Ticks,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Client {
    machine: Recipe,
    asks: u8,
    renewals: u8,
    /// It holds until then, as far as it knows.
    until: Option<Ticks>,
    /// The round whose time may end.
    due: Option<u64>,
    left: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    now: Ticks,
    members: Vec<Member>,
    clients: Vec<Client>,
    requests: Vec<Request>,
    steps: u8,
    restarts: u8,
}

fn id(client: usize) -> ClaimId {
    ClaimId(1 + client as u128)
}

impl State {
    fn new(world: &World) -> Self {
        let rules = Rules {
            members: MEMBERS,
            ttl: TTL,
            drift: Drift::default(),
            patience: STEP,
            long_patience: STEP,
        };
        let client = |n: usize| Client {
            machine: Recipe::new(id(n), rules, false),
            asks: world.asks[n],
            renewals: world.renewals,
            until: None,
            due: None,
            left: false,
        };
        Self {
            now: Ticks(100_000_000_000),
            members: vec![Member::default(); MEMBERS],
            clients: vec![client(0), client(1)],
            requests: Vec::new(),
            steps: world.steps,
            restarts: world.restarts,
        }
    }

    fn step(&mut self, client: usize, event: Event) {
        let mut actions = Vec::new();
        self.clients[client].machine.step(event, &mut actions);
        for action in actions {
            match action {
                Action::Send { member, verb, round } => {
                    let not_after = self.now.plus(IN_TIME);
                    self.requests.push(Request { client, member, verb, round, not_after });
                }
                Action::Due { round, .. } => self.clients[client].due = Some(round),
                Action::Done(outcome) => {
                    self.clients[client].due = None;
                    self.clients[client].until = match outcome {
                        Outcome::Granted { since } | Outcome::Renewed { since } => {
                            Some(deadline(since, TTL, Drift::default()))
                        }
                        Outcome::TooFew | Outcome::TooSlow => self.clients[client].until,
                        _ => None,
                    };
                }
            }
        }
        self.requests.sort_unstable();
        self.requests.dedup();
    }

    /// A member carries a request out; its answer is read, or never.
    fn arrives(&mut self, at: usize, is_read: bool, world: &World) {
        let Request { client, member, verb, round, not_after } = self.requests.remove(at);
        let now = self.now;
        let there = &mut self.members[member];
        if there.record.as_ref().is_some_and(|record| record.until <= now) {
            there.record = None;
        }
        let counts = there.counts_at <= now;
        let until = now.plus(TTL);
        let said = match (verb, &mut there.record) {
            (Verb::Take, _) if now > not_after => Said::Not,
            (Verb::Take | Verb::Keep, Some(record)) if record.client != client => {
                let rest = record.until.since(now);
                Said::Other(Other { claim: id(record.client), age: TTL - rest, rest })
            }
            (Verb::Take, record) => {
                let round = record.as_ref().map_or(round, |record| record.round.max(round));
                *record = Some(Record { client, round, until });
                Said::Yes { counts }
            }
            (Verb::Keep, Some(record)) => {
                record.until = until;
                Said::Yes { counts }
            }
            (Verb::Keep, None) => Said::Nothing,
            (Verb::Give, record) => {
                let ours = |r: &Record| r.client == client && (!world.rounds || r.round <= round);
                match record.take_if(|record| ours(record)) {
                    Some(_) => Said::Gave,
                    None => Said::Nothing,
                }
            }
        };
        if is_read {
            self.step(client, Event::Said { now, member, verb, round, said });
        }
    }

    /// Forgets messages that change nothing, whenever they arrive.
    fn tidy(&mut self, world: &World) {
        let (now, members, clients) = (self.now, &self.members, &self.clients);
        let taken: Vec<(usize, usize)> = self
            .requests
            .iter()
            .filter(|r| r.verb == Verb::Take && now <= r.not_after)
            .map(|r| (r.client, r.member))
            .collect();
        self.requests.retain(|r| !(world.away && r.client == 0 && r.member == MEMBERS - 1));
        self.requests.retain(|r| match r.verb {
            Verb::Take => now <= r.not_after,
            Verb::Keep => clients[r.client].machine.round == r.round,
            Verb::Give => {
                let there = members[r.member].record.as_ref();
                there.is_some_and(|record| {
                    record.client == r.client && (!world.rounds || record.round <= r.round)
                }) || taken.contains(&(r.client, r.member))
            }
        });
    }

    fn is_wrong(&self) -> bool {
        self.clients.iter().all(|client| client.until.is_some_and(|until| self.now < until))
    }

    fn next(&self, world: &World) -> Vec<Self> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            next.tidy(world);
            all.push(next);
        };
        let now = self.now;
        for (n, client) in self.clients.iter().enumerate() {
            let holds = client.until.is_some_and(|until| now < until);
            if client.asks > 0 && client.due.is_none() && !holds && !client.left {
                with(&|s| {
                    s.clients[n].asks -= 1;
                    s.step(n, Event::Ask { now, silent: Silent::default() });
                    while world.at_once
                        && n == 1
                        && let Some(at) = s.requests.iter().position(|r| r.client == n)
                    {
                        s.arrives(at, true, world);
                    }
                });
            }
            if let Some(round) = client.due {
                with(&|s| s.step(n, Event::Due { now, round }));
            }
            if holds && client.renewals > 0 && client.due.is_none() {
                with(&|s| {
                    s.clients[n].renewals -= 1;
                    s.step(n, Event::Renew { now });
                });
            }
            if holds && !client.left {
                with(&|s| {
                    s.clients[n].left = true;
                    s.clients[n].until = None;
                    s.step(n, Event::Leave { now });
                });
            }
        }
        for at in 0..self.requests.len() {
            with(&|s| s.arrives(at, true, world));
            if self.requests[at].verb != Verb::Give {
                with(&|s| s.arrives(at, false, world));
            }
        }
        if self.steps > 0 {
            with(&|s| {
                s.steps -= 1;
                s.now = s.now.plus(STEP);
            });
        }
        if self.restarts > 0 {
            for member in 0..MEMBERS {
                with(&|s| {
                    s.restarts -= 1;
                    let counts_at = if world.waits { now.plus(TTL) } else { now };
                    s.members[member] = Member { record: None, counts_at };
                });
            }
        }
        all
    }
}

/// Whether two can hold at once, and how many states there are until that is known.
fn search(world: &World) -> (bool, usize) {
    let mut seen = HashSet::new();
    let mut open = vec![State::new(world)];
    while let Some(state) = open.pop() {
        if state.is_wrong() {
            return (true, seen.len());
        }
        assert!(seen.len() < STATES_MOST, "too many states: fewer events will do");
        for next in state.next(world) {
            let mut hasher = DefaultHasher::new();
            next.hash(&mut hasher);
            if seen.insert(hasher.finish()) {
                open.push(next);
            }
        }
    }
    (false, seen.len())
}

fn never(world: &World) {
    let (wrong, states) = search(world);
    println!("{states} states");
    assert!(!wrong, "two holders");
    assert!(states > 1_000, "the search went nowhere");
}

#[test]
fn two_contenders_never_hold_at_once() {
    never(&CONTENDING);
}

#[test]
fn r3_r4_whatever_is_late_or_lost_no_other_holds_at_once() {
    never(&LATE);
}

#[test]
fn r1_no_other_holds_before_a_lease_has_ended() {
    never(&ENDING);
}

#[test]
fn l7_a_renewal_lets_no_other_in() {
    never(&World { asks: [1, 1], renewals: 1, steps: 1, ..LATE });
}

#[test]
fn l3_a_member_that_restarts_empty_and_waits_gives_nobody_a_second_hold() {
    never(&World { restarts: 1, steps: 1, ..ENDING });
}

#[test]
fn the_search_finds_what_goes_wrong_without_the_rules() {
    let forgetful = World { restarts: 1, steps: 0, waits: false, ..ENDING };
    assert!(search(&forgetful).0, "a member that restarts empty and counts at once");
    assert!(search(&World { rounds: false, ..LATE }).0, "a late release frees a later grant");
}
