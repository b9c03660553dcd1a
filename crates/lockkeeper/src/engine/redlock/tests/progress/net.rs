//! Five members and what lies between them and the processes: connections whose bytes take their
//! time, words that are lost, members that are away.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lockkeeper_testkit::dice::Dice;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use super::Plan;
use super::log::{Log, Record, What};
use super::member::Member;
use super::rules::Lock;
use crate::engine::redis::client::script::Which;
use crate::engine::stream::memory::{Far, Inner, Near};

pub(super) const MEMBERS: usize = 5;

/// What messages meet on their way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// How long a message takes one way, at most.
    pub(super) way: Duration,
    /// So many in a thousand take thirty times that.
    pub(super) slow: u64,
    /// So many words in a thousand are lost.
    pub(super) lost: u64,
}

impl Weather {
    pub(super) const FAIR: Self = Self { way: Duration::from_millis(1), slow: 0, lost: 0 };
    pub(super) const SLOW: Self = Self { way: Duration::from_millis(3), slow: 30, lost: 0 };
    pub(super) const FOUL: Self = Self { lost: 100, ..Self::SLOW };
}

/// See the module. Clones are the same.
#[derive(Clone)]
pub(super) struct Net {
    state: Arc<Mutex<State>>,
    log: Arc<Log>,
    handle: Handle,
    begun: Instant,
}

struct State {
    members: Vec<Member>,
    /// Which of them are away.
    away: BTreeSet<usize>,
    /// Which of them hang: connections stay, and nothing is answered.
    hung: BTreeSet<usize>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    dice: Dice,
    weather: Weather,
    commands: u64,
    /// Which process asked for a claim.
    claims: BTreeMap<String, usize>,
    /// What was noted last of the members' records.
    noted: [Record; MEMBERS],
}

struct Connection {
    process: usize,
    member: usize,
    near: Weak<Inner>,
    up: Way,
    down: Way,
    /// Its process sends and hears nothing any more.
    mute: bool,
}

/// One direction: what is on its way, in order. `None`: the end.
#[derive(Default)]
struct Way {
    bytes: VecDeque<(Instant, Option<Vec<u8>>)>,
    /// What is written from now on takes as much longer.
    delay: Duration,
}

impl Way {
    fn due(&mut self) -> Vec<Option<Vec<u8>>> {
        let now = Instant::now();
        let mut due = Vec::new();
        while self.bytes.front().is_some_and(|(at, _)| *at <= now) {
            due.extend(self.bytes.pop_front().map(|(_, bytes)| bytes));
        }
        due
    }
}

struct End {
    net: Net,
    connection: u64,
}

impl Far for End {
    fn wrote(&self, bytes: &[u8]) {
        self.net.send(self.connection, true, Some(bytes.to_vec()));
    }

    fn closed(&self) {
        self.net.send(self.connection, true, None);
    }
}

impl Net {
    pub(super) fn new(seed: u64, plan: &Plan, log: Arc<Log>) -> Self {
        let members = plan.ahead.iter().enumerate();
        let state = State {
            members: members.map(|(at, ahead)| Member::new(at, *ahead, plan.member)).collect(),
            away: BTreeSet::new(),
            hung: BTreeSet::new(),
            connections: BTreeMap::new(),
            next: 0,
            dice: Dice::new(seed),
            weather: plan.weather,
            commands: 0,
            claims: BTreeMap::new(),
            noted: [None; MEMBERS],
        };
        let (handle, begun) = (Handle::current(), Instant::now());
        Self { state: Arc::new(Mutex::new(state)), log, handle, begun }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of the members as a process dials them.
    pub(super) fn hosts(process: usize) -> String {
        let hosts: Vec<String> = (0..MEMBERS).map(|m| format!("p{process}m{m}:1")).collect();
        hosts.join(",")
    }

    /// Dials such a name.
    pub(super) fn dial(&self, host: &str) -> Option<io::Result<Near>> {
        let (process, member) = host.strip_prefix('p')?.split_once('m')?;
        let (process, member) = (process.parse().ok()?, member.parse().ok()?);
        let mut state = self.lock();
        if state.away.contains(&member) {
            return Some(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        state.next += 1;
        let connection = state.next;
        let near = Near::new(End { net: self.clone(), connection });
        let (up, down) = (Way::default(), Way::default());
        let near_end = Arc::downgrade(&near.0);
        let there = Connection { process, member, near: near_end, up, down, mute: false };
        state.connections.insert(connection, there);
        Some(Ok(near))
    }

    /// Puts bytes on their way, behind those before; `None`: the end.
    fn send(&self, connection: u64, up: bool, bytes: Option<Vec<u8>>) {
        let at = {
            let mut state = self.lock();
            let State { connections, dice, weather, .. } = &mut *state;
            let Some(there) = connections.get_mut(&connection) else { return };
            if there.mute && up && bytes.is_some() {
                return;
            }
            let most = weather.way.as_micros() as u64;
            let way = Duration::from_micros(dice.below(most + 1));
            let way = if dice.chance(weather.slow) { way * 30 } else { way };
            let one = if up { &mut there.up } else { &mut there.down };
            let at = Instant::now() + way + one.delay;
            let at = one.bytes.back().map_or(at, |(before, _)| at.max(*before));
            one.bytes.push_back((at, bytes));
            at
        };
        let net = self.clone();
        self.handle.spawn(async move {
            sleep_until(at).await;
            if up { net.arrive(connection) } else { net.return_to(connection) }
        });
    }

    /// What has come to the member by now.
    fn arrive(&self, connection: u64) {
        let mut answers = Vec::new();
        {
            let mut state = self.lock();
            let State { connections, hung, .. } = &mut *state;
            let there = connections.get_mut(&connection);
            let Some(there) = there.filter(|there| !hung.contains(&there.member)) else { return };
            let (process, at) = (there.process, there.member);
            let due = there.up.due();
            for bytes in due {
                let State { members, dice, weather, away, claims, noted, .. } = &mut *state;
                let Some(member) = members.get_mut(at) else { return };
                let Some(bytes) = bytes else {
                    member.ended(connection);
                    state.connections.remove(&connection);
                    break;
                };
                if away.contains(&at) {
                    continue;
                }
                let since = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                let carried = member.receive(connection, &bytes, since);
                for ran in carried.ran {
                    claims.entry(ran.claim).or_insert(process);
                    if ran.which == Which::QuorumTake {
                        self.log.note(What::Asked { process, member: at });
                    }
                }
                let record = member.record();
                let record = record.and_then(|(claim, until)| Some((*claims.get(claim)?, until)));
                if let Some(noted) = noted.get_mut(at).filter(|noted| **noted != record) {
                    *noted = record;
                    self.log.note(What::Has { member: at, record });
                }
                let kept = carried.words.into_iter().filter(|_| !dice.chance(weather.lost));
                answers.extend(kept.map(|word| (word.to, word.bytes)));
                answers.push((connection, carried.answer));
                state.commands += carried.commands;
            }
        }
        for (to, bytes) in answers {
            self.send(to, false, Some(bytes));
        }
    }

    /// What has come back to the process by now.
    fn return_to(&self, connection: u64) {
        let (near, due) = {
            let mut state = self.lock();
            let Some(there) = state.connections.get_mut(&connection) else { return };
            (there.near.upgrade().filter(|_| !there.mute), there.down.due())
        };
        // Handed in with nothing locked: the other end may be gone by that.
        let Some(near) = near else { return };
        for bytes in due {
            match bytes {
                Some(bytes) => near.hand_in(&bytes),
                None => near.end(),
            }
        }
    }

    fn connections(&self, which: impl Fn(&Connection) -> bool) -> Vec<u64> {
        let state = self.lock();
        state.connections.iter().filter(|(_, there)| which(there)).map(|(at, _)| *at).collect()
    }

    /// A process was killed: its connections end, and nothing of it arrives any more.
    pub(super) fn kill(&self, process: usize) {
        for connection in self.connections(|there| there.process == process) {
            if let Some(there) = self.lock().connections.get_mut(&connection) {
                there.mute = true;
            }
            self.send(connection, true, None);
        }
    }

    /// A member stops, or comes back with what it had.
    pub(super) fn set_away(&self, member: usize, away: bool) {
        if !away {
            self.lock().away.remove(&member);
            return;
        }
        self.lock().away.insert(member);
        for connection in self.connections(|there| there.member == member) {
            let near = {
                let mut state = self.lock();
                if let Some(member) = state.members.get_mut(member) {
                    member.ended(connection);
                }
                state.connections.get(&connection).and_then(|there| there.near.upgrade())
            };
            if let Some(near) = near {
                near.end();
            }
        }
    }

    /// A member answers nothing from now on, and its connections stay.
    pub(super) fn hang(&self, member: usize) {
        self.lock().hung.insert(member);
    }

    /// What is written to a member by a process takes so much longer from now on.
    pub(super) fn slow_down(&self, process: usize, member: usize, by: Duration) {
        let these = |there: &Connection| there.process == process && there.member == member;
        for connection in self.connections(these) {
            if let Some(there) = self.lock().connections.get_mut(&connection) {
                there.up.delay = by;
            }
        }
    }

    /// How many commands the members carried out.
    pub(super) fn commands(&self) -> u64 {
        self.lock().commands
    }

    /// Looks at, or changes, what a member has under the one name that is used.
    pub(super) fn at<T>(&self, member: usize, look: impl FnOnce(&mut Lock) -> T) -> Option<T> {
        let mut state = self.lock();
        state.members.get_mut(member)?.rules.locks.values_mut().next().map(look)
    }

    /// The processes that stand in line on a member, in order.
    pub(super) fn line(&self, member: usize) -> Vec<usize> {
        let line = self.at(member, |lock| lock.line.clone()).unwrap_or_default();
        let state = self.lock();
        line.iter().filter_map(|(_, claim)| state.claims.get(claim).copied()).collect()
    }
}
