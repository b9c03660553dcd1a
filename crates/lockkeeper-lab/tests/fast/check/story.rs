//! Histories told in a few lines, and judged in memory.

use lockkeeper_lab::check::{Checker, Class, Client, Options, Report};
use lockkeeper_lab::history::{Flags, HoldMode, LockId, Record, Role, State, What};

/// The lock of every story that needs only one.
pub const L: LockId = LockId(77);

/// One acquire that succeeds, and its release.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub client: u32,
    pub claim: u64,
    pub lock: LockId,
    pub owner: u64,
    pub mode: HoldMode,
    pub weight: u16,
    pub limit: u64,
    pub token: u64,
    pub deadline: u64,
    pub flags: Flags,
    /// Called, answered, release called, release answered; 0 leaves the event out.
    pub times: [u64; 4],
}

/// An exclusive hold of [`L`] by a client of the same number as its claim.
pub fn hold(claim: u64, times: [u64; 4]) -> Hold {
    Hold {
        client: claim as u32,
        claim,
        lock: L,
        owner: 0,
        mode: HoldMode::Exclusive,
        weight: 0,
        limit: 0,
        token: 0,
        deadline: 0,
        flags: Flags::NONE,
        times,
    }
}

impl Hold {
    pub fn mode(self, mode: HoldMode) -> Self {
        Self { mode, ..self }
    }
    pub fn shared(self) -> Self {
        self.mode(HoldMode::Shared)
    }
    pub fn upgradable(self) -> Self {
        self.mode(HoldMode::Upgradable)
    }
    pub fn permits(self, weight: u16, limit: u64) -> Self {
        Self { weight, limit, ..self.mode(HoldMode::Permits) }
    }
    pub fn owner(self, owner: u64) -> Self {
        Self { owner, ..self }
    }
    pub fn token(self, token: u64) -> Self {
        Self { token, ..self }
    }
    pub fn deadline(self, deadline: u64) -> Self {
        Self { deadline, ..self }
    }
    pub fn flag(self, flag: Flags) -> Self {
        Self { flags: self.flags.and(flag), ..self }
    }
    pub fn tried(self) -> Self {
        self.flag(Flags::TRY)
    }

    pub fn events(&self) -> Vec<Event> {
        let record = |what| Record {
            mode: self.mode,
            weight: self.weight,
            owner: self.owner,
            ..Record::about(what, self.lock, self.claim)
        };
        let called = Record {
            flags: Flags(self.flags.0 & Flags::TRY.0),
            ..record(What::AcquireCalled).number(self.limit)
        };
        let granted = Record {
            flags: Flags(self.flags.0 & Flags::HANDED.0),
            ..record(What::Acquired).token(self.token).deadline(self.deadline)
        };
        let all = [called, granted, record(What::ReleaseCalled), record(What::Released)];
        let timed = all.into_iter().zip(self.times).filter(|(_, time)| *time != 0);
        timed
            .map(|(record, time)| Event {
                client: self.client,
                record: Record { at: time, ..record },
            })
            .collect()
    }
}

/// One event of one client.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub client: u32,
    pub record: Record,
}

/// An event about a claim on [`L`], by the client of the same number.
pub fn event(time: u64, claim: u64, what: What) -> Event {
    Event { client: claim as u32, record: Record { at: time, ..Record::about(what, L, claim) } }
}

/// An event of the nemesis.
pub fn nemesis(time: u64, what: What, number: u64) -> Event {
    Event {
        client: Story::NEMESIS,
        record: Record { at: time, ..Record::new(what).number(number) },
    }
}

impl Event {
    pub fn with(self, change: impl FnOnce(Record) -> Record) -> Self {
        Self { record: change(self.record), ..self }
    }
}

/// A whole history.
#[derive(Clone, Debug, Default)]
pub struct Story {
    pub events: Vec<Event>,
    pub options: Options,
    /// Whether the last client is a nemesis.
    pub watched: bool,
}

pub fn story(holds: &[Hold]) -> Story {
    Story { events: holds.iter().flat_map(Hold::events).collect(), ..Story::default() }
}

impl Story {
    pub fn and(mut self, events: &[Event]) -> Self {
        self.events.extend(events);
        self
    }
    pub fn options(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }
    pub fn watched(mut self) -> Self {
        self.watched = true;
        self
    }

    /// The number of the nemesis: one more than that of any client that can be named.
    pub const NEMESIS: u32 = 99;

    /// The judgement. Clients 0 to 98 have their number as pid; each ends after its last event, as
    /// if killed unseen.
    pub fn judge(&self) -> Report {
        let mut events = self.events.clone();
        events.sort_by_key(|e| (e.record.at, rank(e.record.what)));
        let mut checker = Checker::new(self.options.clone());
        for number in 0..=Self::NEMESIS {
            let role =
                if number == Self::NEMESIS && self.watched { Role::Nemesis } else { Role::Client };
            let label = format!("client {number}");
            assert_eq!(
                checker.client(Client { label, pid: number, role, ..Client::default() }),
                number
            );
        }
        checker.name(L, "stock/1".into());
        if self.watched {
            let ends = events
                .iter()
                .map(|e| e.record)
                .filter(|r| matches!(r.what, What::Kill | What::Exit));
            checker.ends(ends.collect::<Vec<_>>());
        }
        let mut index = vec![0; Self::NEMESIS as usize + 1];
        let mut last = vec![0; Self::NEMESIS as usize + 1];
        for e in &events {
            last[e.client as usize] = e.record.at;
        }
        let mut ends: Vec<(u64, u32)> = last.into_iter().zip(0..).collect();
        ends.sort_unstable();
        let mut ends = ends.into_iter().peekable();
        for e in &events {
            while let Some((at, client)) = ends.next_if(|end| end.0 < e.record.at) {
                checker.client_ended(client, at, State::Open);
            }
            checker.event(e.client, index[e.client as usize], &e.record);
            index[e.client as usize] += 1;
        }
        for (at, client) in ends {
            checker.client_ended(client, at, State::Open);
        }
        checker.finish()
    }

    /// What was found, and how often.
    pub fn found(&self) -> Vec<(Class, u64)> {
        self.judge().found.into_iter().collect()
    }

    pub fn is_clean(&self) {
        let report = self.judge();
        assert!(report.is_clean() && report.violations.is_empty(), "{:#?}", report.violations);
    }

    /// Asserts that exactly this was found, once, and answers its sentence and its records as
    /// (client, number).
    pub fn convicts(&self, class: Class) -> (String, Vec<(u32, u64)>) {
        let report = self.judge();
        assert_eq!(
            report.found.into_iter().collect::<Vec<_>>(),
            [(class, 1)],
            "{:#?}",
            report.violations
        );
        let violation = &report.violations[0];
        assert_eq!(violation.class, class);
        (
            violation.sentence.clone(),
            violation.records.iter().map(|r| (r.client, r.record)).collect(),
        )
    }
}

fn rank(what: What) -> u8 {
    match what {
        What::ReleaseCalled | What::Lost | What::RenewLost | What::Kill => 0,
        What::Acquired | What::Converted => 2,
        _ => 1,
    }
}
