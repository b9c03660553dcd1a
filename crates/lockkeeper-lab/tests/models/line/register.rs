//! One lock on a server that keeps leases by its own clock: what a correct script does, and the
//! flaws of those that are not.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

use lockkeeper::{ClaimId, Mode};

use super::Flaw;

/// How long a lease lasts, in ticks.
pub const TTL: u64 = 6;
/// How long a pushed grant waits for its confirmation.
pub const CLAIM_LEASE: u64 = 3;
/// How long a place lives without a sign of life.
pub const PLACE_LIVES: u64 = 8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    pub id: ClaimId,
    pub process: u8,
    pub way: Way,
    pub number: u64,
    pub until: u64,
    pub confirmed: bool,
    /// The last conversion of it.
    converted: Option<ClaimId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub id: ClaimId,
    pub process: u8,
    pub way: Way,
    /// The hold that waits to be upgraded.
    hold: Option<ClaimId>,
    pub until: u64,
}

/// How many permits there are.
pub const LIMIT: u16 = 2;

/// How a claim is to hold, as messages say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    Exclusive,
    Shared,
    Upgradable,
    Permits(u16),
}

impl Way {
    /// Whoever has it this way may do whatever the other way allows.
    pub fn covers(self, other: Self) -> bool {
        match self {
            Self::Exclusive => true,
            Self::Upgradable => matches!(other, Self::Upgradable | Self::Shared),
            _ => self == other,
        }
    }

    /// Two may hold it so at one time.
    pub fn lives_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Shared, Self::Shared | Self::Upgradable) | (Self::Upgradable, Self::Shared) => {
                true
            }
            (Self::Permits(one), Self::Permits(other)) => one + other <= LIMIT,
            _ => false,
        }
    }
}

impl From<Mode> for Way {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Shared => Self::Shared,
            Mode::Upgradable => Self::Upgradable,
            Mode::Permits { count, .. } => Self::Permits(count),
            _ => Self::Exclusive,
        }
    }
}

/// What is asked about a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    Attempt {
        id: ClaimId,
        way: Way,
        trying: bool,
        not_after: u64,
    },
    /// `refuse`: until when a request of this claim may still be on its way.
    Withdraw {
        id: ClaimId,
        way: Way,
        /// The hold that it would have converted.
        hold: Option<ClaimId>,
        refuse: u64,
    },
    Release {
        hold: ClaimId,
        again: Option<(ClaimId, Way, u64)>,
        refuse: u64,
    },
    Renew(ClaimId),
    Recheck {
        id: ClaimId,
        way: Way,
        hold: Option<ClaimId>,
        not_after: u64,
    },
    /// Another way for a hold; the younger a conversion of a hold, the greater its id.
    Convert {
        id: ClaimId,
        hold: ClaimId,
        way: Way,
        not_after: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    Granted {
        number: u64,
        left: u64,
        confirm: bool,
    },
    /// When to ask again, if whoever is waited for says nothing.
    InLine {
        ask_in: Option<u64>,
    },
    Busy,
    Gone,
    /// Whether a hold was there to be given back, and what became of the claim that stood again.
    Ended {
        found: bool,
        again: Option<Box<Answer>>,
    },
    /// A place was left, or what it had come to.
    Left,
    Extended,
}

/// A grant that the server tells unasked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Push {
    pub process: u8,
    pub claim: ClaimId,
    pub news: News,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum News {
    Granted {
        number: u64,
        at: u64,
        lease: u64,
    },
    /// It is first in line now, and whoever holds the lock is over by then.
    First {
        ask_in: u64,
    },
    /// It is asked for a sign of life.
    Alive,
}

/// What keeps the lock.
pub trait Server: Clone + Debug + Default + PartialEq + Eq + Hash + Send + Sync + 'static {
    /// Time has passed: what the server does by itself.
    fn settle(&mut self, now: u64, out: &mut Vec<Push>);

    fn call(
        &mut self,
        now: u64,
        process: u8,
        call: &Call,
        flaw: Option<Flaw>,
        out: &mut Vec<Push>,
    ) -> Answer;

    /// How this claim holds the lock.
    fn way(&self, now: u64, claim: ClaimId) -> Option<Way>;

    /// How all of them do that hold it.
    fn ways(&self, now: u64) -> Vec<Way>;

    /// Whether this claim holds the lock, and may do what this way allows.
    fn has(&self, now: u64, claim: ClaimId, way: Way) -> bool {
        self.way(now, claim).is_some_and(|has| has.covers(way))
    }

    /// Whose holds and places there are.
    fn owners(&self, now: u64) -> Vec<u8>;

    /// Whether somebody is there for whose sake a try may be refused.
    fn may_refuse(&self, now: u64, _: Way) -> bool {
        !self.owners(now).is_empty()
    }

    /// What is held, and until when.
    fn leases(&self) -> Vec<(ClaimId, u64)>;

    /// Whether what it wrote down fits together.
    fn is_sound(&self, _: u64) -> bool {
        true
    }

    /// Everything is lost.
    fn flush(&mut self);

    /// What is known of the last number is lost.
    fn evict(&mut self) {}
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Register {
    pub holds: Vec<Hold>,
    pub line: VecDeque<Place>,
    /// What was given back or left, so that a late copy of its request takes nothing.
    ended: BTreeSet<ClaimId>,
    last: u64,
}

impl Server for Register {
    /// Ends what is over and grants what is free.
    fn settle(&mut self, now: u64, out: &mut Vec<Push>) {
        self.holds.retain(|h| h.until > now);
        self.line.retain(|p| p.until > now);
        while let Some(next) = self.line.front() {
            let (waits, over) = match next.hold {
                Some(hold) => (self.holds.len() > 1, !self.holds.iter().any(|h| h.id == hold)),
                None => (!self.admits(next.way), false),
            };
            if waits && !over {
                return;
            }
            let Place { id, process, way, hold, .. } = self.line.pop_front().expect("it is there");
            if over {
                continue;
            }
            let (number, lease) = match hold {
                // Its hold is being renewed already: what is left of it goes on.
                Some(hold) => {
                    self.turn(hold, id, way).map_or((0, 0), |(number, until)| (number, until - now))
                }
                None => (self.grant(id, process, way, now + CLAIM_LEASE, false), CLAIM_LEASE),
            };
            out.push(Push { process, claim: id, news: News::Granted { number, at: now, lease } });
        }
    }

    fn call(
        &mut self,
        now: u64,
        process: u8,
        call: &Call,
        flaw: Option<Flaw>,
        out: &mut Vec<Push>,
    ) -> Answer {
        let answer = match *call {
            Call::Attempt { id, way, trying, not_after } => {
                self.attempt(now, process, (id, way, trying), self.in_time(now, not_after, flaw))
            }
            Call::Withdraw { id, hold, .. } => {
                self.end(id);
                if let Some(hold) =
                    self.holds.iter_mut().find(|h| Some(h.id) == hold && h.converted == Some(id))
                {
                    hold.way = Way::Upgradable;
                }
                Answer::Left
            }
            Call::Release { hold, again, .. } => {
                if flaw == Some(Flaw::ReleaseByName) {
                    self.holds.clear();
                }
                let found = self.end(hold);
                let again = again.map(|(id, way, not_after)| {
                    let in_time = self.in_time(now, not_after, flaw);
                    Box::new(self.attempt(now, process, (id, way, false), in_time))
                });
                Answer::Ended { found, again }
            }
            Call::Renew(id) => match self.holds.iter_mut().find(|h| h.id == id) {
                Some(hold) => {
                    (hold.until, hold.confirmed) = (now + TTL, true);
                    Answer::Extended
                }
                None if flaw == Some(Flaw::RenewsWhatIsGone) => Answer::Extended,
                None if flaw == Some(Flaw::RenewalRevives) => {
                    self.grant(id, process, Way::Exclusive, now + TTL, true);
                    Answer::Extended
                }
                None => Answer::Gone,
            },
            Call::Recheck { id, way, hold: Some(hold), not_after }
            | Call::Convert { id, hold, way, not_after } => {
                let in_time = self.in_time(now, not_after, flaw);
                self.convert(now, process, (id, way, hold), in_time)
            }
            Call::Recheck { id, hold: None, .. } => self.look(now, id),
        };
        self.settle(now, out);
        answer
    }

    fn way(&self, now: u64, claim: ClaimId) -> Option<Way> {
        self.holds.iter().find(|h| h.id == claim && h.until > now).map(|h| h.way)
    }

    fn ways(&self, now: u64) -> Vec<Way> {
        self.holds.iter().filter(|h| h.until > now).map(|h| h.way).collect()
    }

    fn owners(&self, _: u64) -> Vec<u8> {
        self.holds.iter().map(|h| h.process).chain(self.line.iter().map(|p| p.process)).collect()
    }

    fn may_refuse(&self, _: u64, way: Way) -> bool {
        !self.line.is_empty() || !self.admits(way)
    }

    fn leases(&self) -> Vec<(ClaimId, u64)> {
        self.holds.iter().map(|h| (h.id, h.until)).collect()
    }

    fn flush(&mut self) {
        *self = Self { last: self.last, ..Self::default() };
    }
}

impl Register {
    fn admits(&self, way: Way) -> bool {
        let taken = |hold: &Hold| if let Way::Permits(count) = hold.way { count } else { LIMIT };
        match way {
            Way::Exclusive => self.holds.is_empty(),
            Way::Shared | Way::Upgradable => self.holds.iter().all(|h| h.way.lives_with(way)),
            Way::Permits(count) => self.holds.iter().map(taken).sum::<u16>() + count <= LIMIT,
        }
    }

    fn grant(&mut self, id: ClaimId, process: u8, way: Way, until: u64, confirmed: bool) -> u64 {
        self.last += 1;
        self.holds.push(Hold {
            id,
            process,
            way,
            number: self.last,
            until,
            confirmed,
            converted: None,
        });
        self.last
    }

    fn in_time(&self, now: u64, not_after: u64, flaw: Option<Flaw>) -> bool {
        now <= not_after || flaw == Some(Flaw::LateRequestsLock)
    }

    fn attempt(
        &mut self,
        now: u64,
        process: u8,
        (id, way, trying): (ClaimId, Way, bool),
        in_time: bool,
    ) -> Answer {
        let known = self.look(now, id);
        if known != Answer::Gone || !in_time || self.ended.contains(&id) {
            return known;
        }
        if self.line.is_empty() && self.admits(way) {
            let number = self.grant(id, process, way, now + TTL, true);
            return Answer::Granted { number, left: TTL, confirm: false };
        }
        if trying {
            return Answer::Busy;
        }
        self.line.push_back(Place { id, process, way, hold: None, until: now + PLACE_LIVES });
        Answer::InLine { ask_in: None }
    }

    /// The hold has it another way from now on: its number, and until when.
    fn turn(&mut self, hold: ClaimId, id: ClaimId, way: Way) -> Option<(u64, u64)> {
        let number = self.last + 1;
        let hold = self.holds.iter_mut().find(|h| h.id == hold)?;
        (hold.way, hold.number, hold.converted) = (way, number, Some(id));
        self.last = number;
        Some((number, hold.until))
    }

    fn convert(
        &mut self,
        now: u64,
        process: u8,
        (id, way, hold): (ClaimId, Way, ClaimId),
        in_time: bool,
    ) -> Answer {
        let Some(has) = self.holds.iter().find(|h| h.id == hold).cloned() else {
            return Answer::Busy;
        };
        if has.converted == Some(id) && has.way == way {
            return Answer::Granted { number: has.number, left: has.until - now, confirm: false };
        }
        // A copy that comes late, behind a younger conversion or behind its own withdrawal.
        if !in_time || has.converted.is_some_and(|last| id <= last) || self.ended.contains(&id) {
            return Answer::Gone;
        }
        if way == Way::Exclusive && self.holds.len() > 1 {
            self.line.retain(|p| p.id != id);
            self.line.push_front(Place {
                id,
                process,
                way,
                hold: Some(hold),
                until: now + PLACE_LIVES,
            });
            return Answer::InLine { ask_in: None };
        }
        self.line.retain(|p| p.id != id);
        let left = has.until - now;
        self.turn(hold, id, way).map_or(Answer::Busy, |(number, _)| Answer::Granted {
            number,
            left,
            confirm: false,
        })
    }

    fn look(&mut self, now: u64, id: ClaimId) -> Answer {
        if let Some(hold) = self.holds.iter().find(|h| h.id == id) {
            return Answer::Granted {
                number: hold.number,
                left: hold.until - now,
                confirm: !hold.confirmed,
            };
        }
        match self.line.iter_mut().find(|p| p.id == id) {
            Some(place) => {
                place.until = now + PLACE_LIVES;
                Answer::InLine { ask_in: None }
            }
            None => Answer::Gone,
        }
    }

    /// Answers whether it was held.
    fn end(&mut self, id: ClaimId) -> bool {
        let held = self.holds.len();
        self.holds.retain(|h| h.id != id);
        self.line.retain(|p| p.id != id);
        self.ended.insert(id);
        held != self.holds.len()
    }
}
