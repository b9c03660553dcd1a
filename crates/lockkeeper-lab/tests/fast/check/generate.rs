//! Clean histories of a correct lock service, made at random; violations are planted into them.

use lockkeeper_lab::history::{Flags, HoldMode, LockId, Record, What};

use super::story::{Event, Story};

/// A small generator, so that a failing seed replays.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a lock of the service is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Mutex,
    Leased,
    ReadWrite,
    Semaphore,
}

/// One turn as the service gave it.
#[derive(Clone, Debug)]
pub struct Turn {
    pub usage: Use,
    pub client: u32,
    pub claim: u64,
    pub lock: LockId,
    pub owner: u64,
    pub mode: HoldMode,
    pub weight: u16,
    pub token: u64,
    pub deadline: u64,
    pub asked: u64,
    pub in_line: u64,
    pub granted: u64,
    pub release_called: u64,
    pub released: u64,
    /// More events: nested turns, renewals, checks, effects.
    pub more: Vec<Event>,
}

pub const LIMIT: u64 = 4;

/// The history: turns of each lock in the order of grants, and tries that were refused.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub turns: Vec<Turn>,
    pub others: Vec<Event>,
    pub next_claim: u64,
}

impl History {
    pub fn event(client: u32, time: u64, record: Record) -> Event {
        Event { client, record: Record { at: time, ..record } }
    }

    pub fn story(&self) -> Story {
        let mut events = self.others.clone();
        for turn in &self.turns {
            events.extend(turn.events());
        }
        Story { events, ..Story::default() }
    }

    pub fn claim(&mut self) -> u64 {
        self.next_claim += 1;
        self.next_claim
    }
}

impl Turn {
    pub fn about(&self, what: What) -> Record {
        Record {
            owner: self.owner,
            mode: self.mode,
            weight: self.weight,
            ..Record::about(what, self.lock, self.claim)
        }
    }

    pub fn events(&self) -> Vec<Event> {
        let limit = if self.usage == Use::Semaphore { LIMIT } else { 0 };
        let mut all = vec![
            History::event(self.client, self.asked, self.about(What::AcquireCalled).number(limit)),
            History::event(self.client, self.in_line, self.about(What::InLine)),
            History::event(
                self.client,
                self.granted,
                self.about(What::Acquired).token(self.token).deadline(self.deadline),
            ),
            History::event(self.client, self.release_called, self.about(What::ReleaseCalled)),
            History::event(self.client, self.released, self.about(What::Released)),
        ];
        all.extend(&self.more);
        all
    }
}

/// A clean history of so many turns on each lock.
pub fn clean(seed: u64, turns: u64) -> History {
    let mut random = Random(seed);
    let mut history = History::default();
    for (usage, lock) in
        [Use::Mutex, Use::Leased, Use::ReadWrite, Use::Semaphore].into_iter().zip(1..)
    {
        serve(usage, LockId(lock), turns, &mut random, &mut history);
    }
    history
}

/// Serves one lock first come first served: whoever is next waits until the server has let go of
/// whom it excludes.
fn serve(usage: Use, lock: LockId, turns: u64, random: &mut Random, history: &mut History) {
    let first = history.turns.len();
    let mut arrival = 1_000 + random.below(1_000);
    // What the server has granted: mode, weight, and when it let go.
    let mut granted: Vec<(HoldMode, u64, u64)> = Vec::new();
    let (mut token, mut last_grant) = (1_000, 0);
    for _ in 0..turns {
        arrival += random.between(10, 450);
        let mode = match usage {
            Use::ReadWrite if random.below(3) > 0 => HoldMode::Shared,
            Use::ReadWrite if random.one_in(4) => HoldMode::Upgradable,
            Use::Semaphore => HoldMode::Permits,
            _ => HoldMode::Exclusive,
        };
        let weight = if usage == Use::Semaphore { random.between(1, 4) } else { 0 };
        let asked = arrival - random.between(1, 9);
        // The earliest moment at which nobody is left whom it excludes; in order.
        let mut server = arrival.max(last_grant) + 1;
        loop {
            granted.retain(|(_, _, end)| *end >= server);
            let fits = match mode {
                HoldMode::Permits => granted.iter().map(|g| g.1).sum::<u64>() + weight <= LIMIT,
                _ => granted.iter().all(|g| {
                    matches!(
                        (g.0, mode),
                        (HoldMode::Shared, HoldMode::Shared | HoldMode::Upgradable)
                            | (HoldMode::Upgradable, HoldMode::Shared)
                    )
                }),
            };
            if fits {
                break;
            }
            server = granted.iter().map(|g| g.2).min().unwrap_or(server) + 1;
        }
        last_grant = server;
        token += random.between(1, 5);
        let granted_at = server + random.between(1, 9);
        let release_called = granted_at + random.between(40, 400);
        let let_go = release_called + random.between(1, 9);
        granted.push((mode, weight, let_go));
        let claim = history.claim();
        let mut turn = Turn {
            usage,
            client: random.below(8) as u32,
            claim,
            lock,
            owner: if usage == Use::Mutex && random.one_in(3) { claim } else { 0 },
            mode,
            weight: weight as u16,
            token: if usage == Use::Semaphore { 0 } else { token },
            deadline: if usage == Use::Leased {
                release_called + random.between(5, 500)
            } else {
                0
            },
            asked,
            in_line: (arrival + random.below(3)).min(granted_at - 1),
            granted: granted_at,
            release_called,
            released: let_go + random.between(1, 9),
            more: Vec::new(),
        };
        decorate(&mut turn, random, history);
        history.turns.push(turn);
    }
    refuse(usage, lock, first, random, history);
}

/// Re-entry, renewals, checks and effects inside a turn.
fn decorate(turn: &mut Turn, random: &mut Random, history: &mut History) {
    let inside = |part: u64| turn.granted + (turn.release_called - turn.granted) * part / 10;
    let mut more = Vec::new();
    if turn.owner != 0 {
        let nested = Turn {
            claim: history.claim(),
            asked: inside(1),
            granted: inside(3),
            release_called: inside(5),
            released: inside(5) + 1,
            ..turn.clone()
        };
        more.extend(nested.events().into_iter().filter(|e| e.record.what != What::InLine));
    }
    let about = |what, part, change: &dyn Fn(Record) -> Record| {
        History::event(turn.client, inside(part), change(turn.about(what)))
    };
    if turn.usage == Use::Leased && random.one_in(2) {
        more.push(about(What::RenewCalled, 2, &|r| r));
        more.push(about(What::Renewed, 4, &|r| r.deadline(turn.deadline + 50)));
    }
    more.push(about(What::CheckCalled, 6, &|r| r.number(1)));
    more.push(about(What::Checked, 7, &|r| r.number(1).flag(Flags::YES)));
    if turn.token != 0 && turn.mode != HoldMode::Shared {
        more.push(about(What::EffectCalled, 7, &|r| r.number(2)));
        let log = about(What::ResourceWrite, 8, &|r| {
            r.token(turn.token).flag(Flags::YES.and(Flags::FENCED))
        });
        more.push(Event { client: 50, ..log });
        more.push(about(What::EffectDone, 9, &|r| r.number(2).flag(Flags::YES)));
    }
    turn.more = more;
}

/// Tries that are refused while somebody certainly holds or waits.
fn refuse(usage: Use, lock: LockId, first: usize, random: &mut Random, history: &mut History) {
    for number in first..history.turns.len() {
        let turn = &history.turns[number];
        let refusing = turn.mode == HoldMode::Exclusive && turn.release_called > turn.granted + 10;
        if usage == Use::Semaphore || !refusing || random.one_in(2) {
            continue;
        }
        let at = random.between(turn.asked, turn.release_called);
        let claim = history.claim();
        let record =
            |what| Record { mode: HoldMode::Exclusive, ..Record::about(what, lock, claim) };
        let client = random.below(8) as u32;
        history.others.push(History::event(
            client,
            at.saturating_sub(random.below(30)),
            record(What::AcquireCalled).flag(Flags::TRY),
        ));
        history.others.push(History::event(client, at + random.between(1, 30), record(What::Busy)));
    }
}
