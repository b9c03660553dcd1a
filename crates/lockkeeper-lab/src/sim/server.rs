//! The server: holds with leases, lines, numbers. Pure: time is handed in, pushes come out.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lockkeeper::engine::{ClaimId, Line, next_number};
use lockkeeper::{Mode, Name, Ticks};

/// For how long a claim that ended is remembered, so that a late copy of its request takes nothing
/// (R3).
const REMEMBER: Duration = Duration::from_secs(10);
/// How long a place lives without a sign of life (R11).
const PLACE_LIVES: Duration = Duration::from_secs(15);
/// How long a pushed grant waits for its confirmation (R11).
pub(super) const CLAIM_LEASE: Duration = Duration::from_secs(2);

/// What the server is asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) id: ClaimId,
    pub(super) client: u64,
    pub(super) name: Name,
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    /// Refused when it arrives later than this, by the server's clock.
    pub(super) not_after: Ticks,
}

/// What it answers about a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Granted {
        number: u64,
        left: Duration,
        confirm: bool,
    },
    InLine(u32),
    Busy,
    /// Neither held nor in line; or too late.
    Gone,
}

/// A grant that the server tells unasked.
#[derive(Clone, Debug)]
pub(super) struct Push {
    pub(super) client: u64,
    pub(super) claim: ClaimId,
    pub(super) number: u64,
    pub(super) ttl: Duration,
    pub(super) at: Ticks,
}

#[derive(Clone, Debug)]
struct Hold {
    asked: Asked,
    number: u64,
    until: Ticks,
    confirmed: bool,
}

#[derive(Clone, Debug)]
struct Place {
    asked: Asked,
    until: Ticks,
}

#[derive(Debug, Default)]
struct Record {
    holds: Vec<Hold>,
    line: VecDeque<Place>,
}

/// One hold as it truly was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Which.
    pub hold: ClaimId,
    /// Of which name.
    pub name: Name,
    /// In which mode.
    pub mode: Mode,
    /// From when.
    pub from: Ticks,
    /// Until when; `None` while it lasts.
    pub to: Option<Ticks>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Server {
    names: BTreeMap<Name, Record>,
    ended: BTreeMap<ClaimId, Ticks>,
    last: u64,
    history: Vec<History>,
}

impl Server {
    /// Every hold there ever was, in order.
    pub fn history(&self) -> &[History] {
        &self.history
    }

    /// How many holds and places there are.
    pub fn standing(&self) -> (usize, usize) {
        self.names
            .values()
            .fold((0, 0), |(h, p), record| (h + record.holds.len(), p + record.line.len()))
    }

    /// Forgets everything, as a server does that restarts without its data.
    pub fn forget(&mut self, now: Ticks) {
        for entry in self.history.iter_mut().filter(|h| h.to.is_none()) {
            entry.to = Some(now);
        }
        *self = Self { history: std::mem::take(&mut self.history), ..Self::default() };
    }

    /// When something ends next.
    pub(super) fn next_end(&self) -> Option<Ticks> {
        let ends = |r: &Record| {
            r.holds.iter().map(|h| h.until).chain(r.line.iter().map(|p| p.until)).min()
        };
        self.names.values().filter_map(ends).min()
    }

    fn grant(&mut self, now: Ticks, asked: Asked, pushed: bool) -> u64 {
        // The engine's clock is the only thing that survives a lost record (R7): its start is the
        // server's.
        let number =
            next_number(self.last, lockkeeper_epoch_us() + now.0 / 1000).unwrap_or(u64::MAX);
        self.last = number;
        self.history.push(History {
            hold: asked.id,
            name: asked.name.clone(),
            mode: asked.mode,
            from: now,
            to: None,
        });
        let lease = if pushed { CLAIM_LEASE.min(asked.ttl / 3) } else { asked.ttl };
        let name = asked.name.clone();
        self.names.entry(name).or_default().holds.push(Hold {
            asked,
            number,
            until: now.plus(lease),
            confirmed: !pushed,
        });
        number
    }

    fn end(&mut self, now: Ticks, id: ClaimId) {
        if let Some(entry) = self.history.iter_mut().rev().find(|h| h.hold == id && h.to.is_none())
        {
            entry.to = Some(now);
        }
    }

    /// Ends what is over and grants what is free.
    pub(super) fn settle(&mut self, now: Ticks, out: &mut Vec<Push>) {
        self.ended.retain(|_, until| *until > now);
        let names: Vec<Name> = self.names.keys().cloned().collect();
        for name in names {
            let Some(record) = self.names.get_mut(&name) else { continue };
            let over: Vec<ClaimId> =
                record.holds.iter().filter(|h| h.until <= now).map(|h| h.asked.id).collect();
            record.holds.retain(|h| h.until > now);
            record.line.retain(|p| p.until > now);
            for id in over {
                self.end(now, id);
            }
            while let Some(next) = self.names.get_mut(&name).and_then(Record::next) {
                let (client, claim) = (next.client, next.id);
                let ttl = CLAIM_LEASE.min(next.ttl / 3);
                let number = self.grant(now, next, true);
                out.push(Push { client, claim, number, ttl, at: now });
            }
            if self.names.get(&name).is_some_and(|r| r.holds.is_empty() && r.line.is_empty()) {
                self.names.remove(&name);
            }
        }
    }

    /// What is known of a claim; a sign of life for its place.
    pub(super) fn look(&mut self, now: Ticks, id: ClaimId) -> Reply {
        for record in self.names.values_mut() {
            if let Some(hold) = record.holds.iter().find(|h| h.asked.id == id) {
                return Reply::Granted {
                    number: hold.number,
                    left: hold.until.since(now),
                    confirm: !hold.confirmed,
                };
            }
            let ahead = record.holds.len();
            if let Some((at, place)) =
                record.line.iter_mut().enumerate().find(|(_, p)| p.asked.id == id)
            {
                place.until = now.plus(PLACE_LIVES);
                return Reply::InLine(u32::try_from(at + ahead).unwrap_or(u32::MAX));
            }
        }
        Reply::Gone
    }

    pub(super) fn attempt(&mut self, now: Ticks, asked: &Asked, line: Line) -> Reply {
        let known = self.look(now, asked.id);
        if known != Reply::Gone {
            return known;
        }
        if now > asked.not_after || self.ended.contains_key(&asked.id) {
            return Reply::Gone;
        }
        let record = self.names.entry(asked.name.clone()).or_default();
        if record.line.is_empty() && record.admits(asked.mode) {
            let number = self.grant(now, asked.clone(), false);
            return Reply::Granted { number, left: asked.ttl, confirm: false };
        }
        if line == Line::Try {
            return Reply::Busy;
        }
        record.line.push_back(Place { asked: asked.clone(), until: now.plus(PLACE_LIVES) });
        self.look(now, asked.id)
    }

    /// Ends a hold or a place by its id; answers whether there was one.
    pub(super) fn remove(&mut self, now: Ticks, id: ClaimId) -> bool {
        let mut found = false;
        for record in self.names.values_mut() {
            let before = record.holds.len() + record.line.len();
            record.holds.retain(|h| h.asked.id != id);
            record.line.retain(|p| p.asked.id != id);
            found |= before != record.holds.len() + record.line.len();
        }
        // What ran out may be asked for again; what was given back or left may not.
        self.ended.insert(id, now.plus(REMEMBER));
        self.end(now, id);
        found
    }

    /// Extends a lease; answers for how long.
    pub(super) fn renew(&mut self, now: Ticks, id: u128) -> Option<Duration> {
        let hold = self
            .names
            .values_mut()
            .flat_map(|r| r.holds.iter_mut())
            .find(|h| h.asked.id.0 == id)?;
        (hold.until, hold.confirmed) = (now.plus(hold.asked.ttl), true);
        Some(hold.asked.ttl)
    }
}

/// 2026-01-01T00:00:00Z in microseconds.
fn lockkeeper_epoch_us() -> u64 {
    1_767_225_600_000_000
}

impl Record {
    fn admits(&self, mode: Mode) -> bool {
        self.holds.iter().all(|h| h.asked.mode.shares_with(mode))
    }

    /// Takes the first of the line if it can be granted.
    fn next(&mut self) -> Option<Asked> {
        let mode = self.line.front()?.asked.mode;
        if self.admits(mode) { self.line.pop_front().map(|p| p.asked) } else { None }
    }
}
