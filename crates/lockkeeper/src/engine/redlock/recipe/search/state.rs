//! Clients, members and what is on its way between them: one state of the search, and all that can
//! follow.

mod next;

use super::super::super::floor::{Told, floor};
use super::super::super::proposal::middle;
use super::super::{Action, Event, Other, Outcome, Rank, Recipe, Rules, Said, Silent, Verb};
use std::time::Duration;

use super::{FAR, Flaw, IN_TIME, MEMBERS, SKEW, STEP, TICKS, TTL, World};
use crate::protocol::lease::{Drift, deadline};
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Record {
    client: usize,
    /// The clock when it was first asked for.
    first: u64,
    round: u64,
    number: u64,
    until: Ticks,
}

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Member {
    /// Of each client.
    records: [Option<Record>; 2],
    /// When it was met without its data.
    met: Ticks,
    /// The longest lease of which it knows.
    longest: Duration,
    /// How often it has started.
    run: u8,
    admitted: bool,
    last: u64,
    floor: u64,
}

impl Member {
    fn forget_old(&mut self, now: Ticks) {
        for record in &mut self.records {
            *record = record.take().filter(|record| record.until > now);
        }
    }

    fn known(&self) -> u64 {
        self.last.max(self.floor)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    client: usize,
    member: usize,
    verb: Verb,
    round: u64,
    number: u64,
    not_after: Ticks,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Client {
    machine: Recipe,
    asks: u8,
    renewals: u8,
    completions: u8,
    /// It holds until then, as far as it knows, under this number.
    until: Option<Ticks>,
    number: u64,
    /// The last number that it proposed.
    proposed: u64,
    /// What anybody was told before it asked, where locks are taken away.
    told: u64,
    /// The round whose time may end.
    due: Option<u64>,
    left: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    now: Ticks,
    members: Vec<Member>,
    clients: Vec<Client>,
    requests: Vec<Request>,
    steps: u8,
    restarts: u8,
    turns: u8,
    forces: u8,
    /// Floors on their way: for which member, which run of it, the floor.
    floors: Vec<(usize, u8, u64)>,
    /// The greatest number that anybody was told, and whether a later one was not above it.
    told: u64,
    /// The same of those that hold alone.
    told_alone: u64,
    back: bool,
}

impl Client {
    fn new(client: usize, world: &World) -> Self {
        let rules = Rules {
            members: MEMBERS,
            ttl: world.ttl[client],
            drift: Drift::default(),
            patience: STEP,
            long_patience: STEP,
            names_giver: true,
            stands: world.stands,
        };
        Self {
            machine: Recipe::new(id(client), rules, world.tries[client]),
            asks: world.asks[client],
            renewals: world.renewals,
            completions: world.completions,
            until: None,
            number: 0,
            proposed: 0,
            told: 0,
            due: None,
            left: false,
        }
    }
}

fn id(client: usize) -> ClaimId {
    ClaimId(1 + client as u128)
}

impl State {
    pub(super) fn new(world: &World) -> Self {
        let members = world.last.map(|last| Member { last, admitted: true, ..Member::default() });
        Self {
            now: Ticks(100_000_000_000),
            members: members.into(),
            clients: vec![Client::new(0, world), Client::new(1, world)],
            requests: Vec::new(),
            steps: world.steps,
            restarts: world.restarts,
            turns: world.turns,
            forces: world.forces,
            floors: Vec::new(),
            told: 0,
            told_alone: 0,
            back: false,
        }
    }

    fn tick(&self, member: usize, world: &World) -> u64 {
        let ahead = world.clocks.map_or(0, |ahead| ahead[member]);
        u64::from(world.steps - self.steps) * TICKS + ahead
    }

    /// What a client asks for. The second one never learns of a clock.
    fn ask(&mut self, client: usize, world: &World) {
        let clocks = (0..MEMBERS).map(|member| self.tick(member, world));
        let clock = match (client, world.clocks) {
            (0, Some(_)) if world.proposes_far => FAR,
            (0, Some(_)) if world.by_the_middle => middle(clocks.collect()),
            (0, Some(_)) => clocks.max().unwrap_or(0),
            _ => 0,
        };
        let number = clock.max(self.clients[client].proposed + 1);
        self.clients[client].asks -= 1;
        self.clients[client].proposed = number;
        self.clients[client].told = if world.forces > 0 { self.told } else { 0 };
        let silent = Silent::default();
        self.step(client, Event::Ask { now: self.now, silent, number, clock: number }, world);
    }

    /// All that a client has sent is carried out by these members and read at once.
    fn at_once(&mut self, client: usize, members: u16, world: &World) {
        loop {
            while let Some(at) = self.requests.iter().position(|r| r.client == client) {
                if members & (1 << self.requests[at].member) != 0 {
                    self.arrives(at, true, world);
                } else {
                    self.requests.remove(at);
                }
            }
            let Some(round) = self.clients[client].due else { return };
            self.step(client, Event::Due { now: self.now, round }, world);
        }
    }

    /// Which server a client reaches under a member's name.
    fn server(client: usize, member: usize, world: &World) -> usize {
        if world.twins && client == 1 && member == 2 { 1 } else { member }
    }

    /// Whether a client finds a member that has waited, and reaches these.
    fn has_waited(&self, of: usize, client: usize, members: u16, world: &World) -> bool {
        let (there, own) = (&self.members[of], world.ttl[client]);
        let records = |member: &Member| {
            let each = member.records.iter().enumerate().filter(|(_, record)| record.is_some());
            each.map(|(client, _)| world.ttl[client]).chain([member.longest]).max()
        };
        let told = || {
            let reached = self.members.iter().enumerate().filter(|(m, _)| members & (1 << m) != 0);
            reached.filter_map(|(_, member)| records(member)).max().unwrap_or_default()
        };
        let wait = match world.flaw {
            Some(Flaw::FlushedAtOnce | Flaw::EarlyFloor) => Duration::ZERO,
            Some(Flaw::ClientWaits) if client == 1 => Duration::ZERO,
            Some(Flaw::OwnWait) => own,
            Some(Flaw::RecordsTell) => own.max(told()),
            _ => TTL.max(own).max(there.longest),
        };
        there.met.plus(wait) <= self.now
    }

    /// What so many members tell a client makes a floor for one that has started.
    fn floor(&self, of: usize, client: usize, members: u16, world: &World) -> Option<u64> {
        let reached = (0..MEMBERS).filter(|member| *member == of || members & (1 << *member) != 0);
        let mut servers: Vec<usize> =
            reached.map(|member| Self::server(client, member, world)).collect();
        if world.flaw != Some(Flaw::TellsTwice) {
            servers.dedup();
        }
        // That client does not reach this one.
        if !servers.contains(&of) {
            return None;
        }
        let told: Vec<Told> = servers
            .into_iter()
            .map(|member| Told {
                tick: if world.clocks.is_some() { self.tick(member, world) } else { 0 },
                top: self.members[member].known(),
                admitted: self.members[member].admitted,
            })
            .collect();
        let remember = told.iter().filter(|told| told.admitted).count() > MEMBERS / 2;
        (told.len() > MEMBERS / 2 && (remember || world.clocks.is_some())).then(|| {
            let own = world.skew[client];
            let skew = if world.flaw == Some(Flaw::OwnSkew) { own } else { own.max(SKEW) };
            floor(&told, MEMBERS / 2 + 1, skew)
        })
    }

    /// A client was told that it holds.
    fn granted(&mut self, client: usize, number: u64, world: &World) {
        let again = self.clients[client].number == number;
        let told = if world.forces > 0 { self.clients[client].told } else { self.told };
        let others = self.clients.iter().enumerate().filter(|(other, _)| *other != client);
        let alone = !world.shared[client];
        // What readers were told need not be below what another reader is told.
        let told = if alone { told } else { self.told_alone };
        self.back |= if again { number < told } else { number <= told };
        self.back |= others
            .map(|(other, theirs)| (alone || !world.shared[other], theirs.number))
            .any(|(counts, theirs)| counts && theirs == number);
        self.told = self.told.max(number);
        if alone {
            self.told_alone = self.told_alone.max(number);
        }
        self.clients[client].number = number;
    }

    fn step(&mut self, client: usize, event: Event, world: &World) {
        let (now, mut actions) = (self.now, Vec::new());
        self.clients[client].machine.step(event, &mut actions);
        if world.flaw == Some(Flaw::OnePhase) && self.clients[client].machine.is_asking() {
            // What it would have a majority keep is taken for kept.
            for action in actions.clone() {
                if let Action::Send { member, verb: verb @ Verb::Keep, round, number } = action {
                    let said = Said::Yes { counts: true, number };
                    let said = Event::Said { now, member, verb, round, said };
                    self.clients[client].machine.step(said, &mut actions);
                }
            }
        }
        let mut not_sent = Vec::new();
        for action in actions {
            match action {
                Action::Send { member, verb, round, .. }
                    if world.flaw != Some(Flaw::TwoVotes)
                        && Self::server(client, member, world) != member =>
                {
                    let said = Event::Said { now, member, verb, round, said: Said::Not };
                    not_sent.push(said);
                }
                Action::Send { member, verb, round, number } => {
                    let not_after = now.plus(IN_TIME);
                    let request = Request { client, member, verb, round, number, not_after };
                    self.requests.push(request);
                }
                Action::Due { round, .. } => self.clients[client].due = Some(round),
                Action::Done(outcome) => {
                    self.clients[client].due = None;
                    if let Outcome::Granted { number, .. } = outcome {
                        self.granted(client, number, world);
                    }
                    self.clients[client].until = match outcome {
                        Outcome::Granted { since, .. } | Outcome::Renewed { since } => {
                            Some(deadline(since, world.ttl[client], Drift::default()))
                        }
                        Outcome::TooFew | Outcome::TooSlow => self.clients[client].until,
                        _ => None,
                    };
                }
            }
        }
        self.requests.sort_unstable();
        self.requests.dedup();
        not_sent.into_iter().for_each(|said| self.step(client, said, world));
    }

    /// A member carries a request out; its answer is read, or never.
    fn arrives(&mut self, at: usize, is_read: bool, world: &World) {
        let Request { client, member, verb, round, number, not_after } = self.requests.remove(at);
        let (now, server) = (self.now, Self::server(client, member, world));
        let tick = world.clocks.map(|_| self.tick(server, world));
        let there = &mut self.members[server];
        there.forget_old(now);
        let waits = matches!(world.flaw, Some(Flaw::NoFloor | Flaw::EarlyFloor));
        let early = waits && there.met.plus(TTL) > now;
        let counts = there.admitted && !early;
        let ttl = world.ttl[client];
        let (until, known) = (now.plus(ttl), there.known());
        if verb == Verb::Take && now <= not_after {
            let lowers = world.flaw == Some(Flaw::Lowers);
            there.longest = if lowers { ttl } else { there.longest.max(ttl) };
        }
        let reads = world.shared[client];
        let completes = verb == Verb::Take && self.clients[client].machine.is_held();
        let first = if completes { 0 } else { self.clients[client].machine.first() };
        if completes && world.flaw == Some(Flaw::CompletesOver) {
            there.records[1 - client] = None;
        }
        let other = there.records[1 - client].clone().filter(|_| {
            let unseen = world.flaw == Some(Flaw::ReadersUnseen) && world.shared[1 - client];
            world.shared != [true, true] && !unseen
        });
        let said = match (verb, &mut there.records[client]) {
            (Verb::Take, _) if now > not_after => Said::Not,
            (Verb::Take, _) | (Verb::Keep, None) if other.is_some() => {
                let record = other.expect("it is there");
                let rest = record.until.since(now);
                let rank = Rank { first: record.first, claim: id(record.client) };
                let theirs = world.ttl[record.client];
                let granted = record.first == 0;
                Said::Other(Other { rank, granted, age: theirs - rest, rest, ttl: theirs })
            }
            (Verb::Take, Some(record)) if record.round >= round => {
                record.until = until;
                Said::Yes { counts, number: record.number }
            }
            (Verb::Take, record) => {
                let same = world.flaw == Some(Flaw::SameNumber);
                let next = if same { known } else { known + 1 };
                let most = tick.filter(|_| world.flaw != Some(Flaw::AnyNumber));
                let most = most.map_or(u64::MAX, |tick| known.max(tick) + 2 * SKEW);
                let number = if number > most { next } else { number.max(next) };
                *record = Some(Record { client, first, round, number, until });
                if world.flaw != Some(Flaw::ReadersKeepNothing) || !reads {
                    there.last = number;
                }
                Said::Yes { counts, number }
            }
            (Verb::Keep, Some(record)) if reads => {
                record.until = until;
                record.number = number.max(record.number);
                there.last = record.number.max(there.last);
                Said::Yes { counts, number: record.number }
            }
            (Verb::Keep, Some(record)) => {
                if self.clients[client].machine.is_held() {
                    record.first = 0;
                }
                record.until = until;
                if number > known {
                    (record.number, there.last) = (number, number);
                }
                let number = if record.number == number { number } else { known + 1 };
                Said::Yes { counts, number }
            }
            (Verb::Keep, None) => Said::Nothing,
            (Verb::Give | Verb::Undo | Verb::Cede { .. }, record) => {
                match record.take_if(|r| gives(r, client, round, world)) {
                    Some(_) => Said::Gave,
                    None => Said::Nothing,
                }
            }
        };
        if is_read {
            self.step(client, Event::Said { now, member, verb, round, said }, world);
        }
    }

    /// A member says that it is another claim's turn, which began before it or after it.
    fn refuses(&mut self, at: usize, first: u64, world: &World) {
        let Request { client, member, verb, round, number, .. } = self.requests.remove(at);
        let (rank, rest) = (Rank { first, claim: id(2) }, STEP);
        let age = Duration::MAX;
        let said = match world.flaw {
            Some(Flaw::TurnCounts) => Said::Yes { counts: true, number },
            _ => Said::Other(Other { rank, granted: false, age, rest, ttl: rest }),
        };
        self.turns -= 1;
        self.step(client, Event::Said { now: self.now, member, verb, round, said }, world);
    }

    /// Forgets what makes no difference any more: what is over, clients that have left, messages
    /// that change nothing, whenever they arrive.
    fn tidy(&mut self, world: &World) {
        let now = self.now;
        for member in &mut self.members {
            member.forget_old(now);
            // Everybody has waited for so long.
            let long_ago = now.minus(2 * TTL);
            member.met = if member.admitted && member.met.plus(TTL) <= now {
                Ticks::default()
            } else {
                member.met.max(long_ago)
            };
            if !world.slow_floors {
                member.run = 0;
            }
        }
        for (n, client) in self.clients.iter_mut().enumerate() {
            client.until = client.until.filter(|until| *until > now);
            if world.in_turn && client.until.is_none() && (client.left || client.asks == 0) {
                *client =
                    Client { left: true, ..Client::new(n, &World { asks: [0, 0], ..*world }) };
            }
        }
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
            // Whatever it extends ends some time.
            Verb::Keep => {
                let there = &members[Self::server(r.client, r.member, world)];
                let ours = there.records[r.client].is_some();
                clients[r.client].machine.round == r.round || ours && r.number > there.known()
            }
            Verb::Give | Verb::Undo | Verb::Cede { .. } => {
                let server = Self::server(r.client, r.member, world);
                let there = members[server].records[r.client].as_ref();
                there.is_some_and(|record| gives(record, r.client, r.round, world))
                    || taken.contains(&(r.client, r.member))
            }
        });
        self.floors.retain(|(member, run, floor)| {
            members[*member].run == *run && members[*member].floor < *floor
        });
        self.floors.sort_unstable();
        self.floors.dedup();
    }

    /// Two hold at once, or a token was not above an earlier one.
    pub(super) fn is_wrong(&self, world: &World) -> bool {
        let both_read = world.shared == [true, true] && world.flaw != Some(Flaw::ReadersAlone);
        self.back
            || !both_read
                && self.forces == world.forces
                && self
                    .clients
                    .iter()
                    .all(|client| client.until.is_some_and(|until| self.now < until))
    }
}

/// Whether a request to give back deletes this record.
fn gives(record: &Record, client: usize, round: u64, world: &World) -> bool {
    let later = world.flaw == Some(Flaw::GivesLater);
    record.client == client && (later || record.round <= round)
}
