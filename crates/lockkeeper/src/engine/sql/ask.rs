//! What is done to a name: asking, converting, renewing, giving back, taking away, limits and
//! latches. Each works on what was read, and says what has to be written.

use super::line::{KEPT, Seen, Stop, Work};
use super::push::Push;
use super::record::{Hold, Place, Us};
use crate::engine::Line;
use crate::words::claim::{Entry, Holder};
use crate::words::error::Result;
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// How many places a line has (R13).
const PLACES_MAX: usize = 16_384;

/// What came of a question.
#[derive(Clone, Debug)]
pub(in crate::engine) enum Reply {
    /// It holds, from the server's time `now` on.
    Granted { number: u64, lease: Us },
    /// It stands in line. `turn`: 0 looks when that one's time is over, 1 a claim lease later;
    /// `None` leaves it to the net.
    InLine { ahead: usize, rest: Us, holder: Option<Box<Holder>>, turn: Option<u32> },
    /// Somebody holds it or stands in line.
    Busy { holder: Option<Box<Holder>> },
    /// The caller has left.
    Late,
    /// The semaphore has another limit.
    OtherLimit { stored: u16 },
    /// The line has no room.
    Full,
    /// The hold is not there (any more).
    Gone,
    /// Only an upgradable hold upgrades.
    NotUpgradable,
}

/// A claim that asks, as often as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Asked {
    pub(in crate::engine) kind: Kind,
    pub(in crate::engine) place: Place,
    /// A semaphore's limit, as the caller believes it.
    pub(in crate::engine) limit: u16,
    pub(in crate::engine) line: Line,
}

fn granted(hold: &Hold, now: Us) -> Reply {
    Reply::Granted { number: hold.number, lease: hold.ends - now }
}

impl Work {
    fn busy(&self, kind: Kind) -> Reply {
        Reply::Busy { holder: self.blocker(kind) }
    }

    fn in_line(&self, kind: Kind, ahead: usize) -> Reply {
        let holder = self.blocker(kind);
        let (rest, turn) = match self.pause {
            _ if self.kept => (KEPT, Some(0)),
            Some(pause) => (pause, Some(0)),
            None if ahead > 1 && self.moves() => (self.rest(), None),
            None => (self.rest(), Some(u32::from(ahead > 0))),
        };
        Reply::InLine { ahead, rest, holder, turn }
    }

    fn is_refused(&self, claim: ClaimId) -> bool {
        self.lock.refused.iter().any(|(refused, _)| *refused == claim)
    }

    /// The limit that is stored counts; the first to come stores its own. Whoever stands already is
    /// spared when it changes, unless there will never be enough.
    fn limit_differs(&mut self, asked: &Asked) -> Option<Reply> {
        if asked.place.mode != 'p' {
            return None;
        }
        if self.lock.limit == 0 {
            self.lock.limit = asked.limit;
        }
        let stored = self.lock.limit;
        if stored == asked.limit {
            return None;
        }
        if self.my_place().is_some() {
            if asked.place.count <= stored {
                return None;
            }
            self.leave();
        }
        Some(Reply::OtherLimit { stored })
    }

    /// Asks for the lock: granted, standing in line, or busy. The second time it does what the
    /// first did (R3).
    ///
    /// # Errors
    /// When more of the line has to be read.
    pub(in crate::engine) fn stand(&mut self, asked: &Asked) -> Result<Reply, Stop> {
        let (place, kind, now) = (&asked.place, asked.kind, self.now);
        self.me = Some(place.claim);
        if self.is_refused(place.claim) {
            return Ok(Reply::Late);
        }
        self.end_what_is_over();
        if let Some(hold) = self.lock.hold(place.claim) {
            if hold.ends > now {
                hold.ends = now.saturating_add(hold.ttl);
                return Ok(granted(hold, now));
            }
            // It was granted, took no notice in time, and its delay goes on: after that it stands
            // again.
            self.settle()?;
            return Ok(match asked.line {
                Line::Join => self.in_line(kind, 0),
                Line::Try => self.busy(kind),
            });
        }
        let differs = self.limit_differs(asked);
        if let Some(differs) = differs {
            self.settle()?;
            return Ok(differs);
        }
        // Whoever asks lives.
        if let Some(mine) = self.places.iter_mut().find(|mine| mine.claim == place.claim) {
            mine.alive = now + super::line::LIVES;
        }
        self.settle()?;
        if let Some(hold) = &self.granted {
            return Ok(granted(hold, now));
        }
        if let Some((_, ahead)) = self.my_place() {
            return Ok(self.in_line(kind, ahead));
        }
        if !self.queue && self.fits(place).0 {
            let hold = self.put(place, place.ttl)?;
            return Ok(granted(&hold, now));
        }
        if asked.line == Line::Try {
            return Ok(self.busy(kind));
        }
        let ahead = self.count()?;
        if ahead >= PLACES_MAX {
            return Ok(Reply::Full);
        }
        self.join(place, false);
        Ok(self.in_line(kind, ahead))
    }

    /// Upgrades or downgrades a hold, which keeps its id.
    ///
    /// # Errors
    /// When more of the line has to be read.
    pub(in crate::engine) fn convert(&mut self, asked: &Asked) -> Result<Reply, Stop> {
        let (place, kind, now) = (&asked.place, asked.kind, self.now);
        self.me = Some(place.claim);
        if self.is_refused(place.claim) {
            return Ok(Reply::Late);
        }
        let converts = place.hold.unwrap_or(place.claim);
        let Some(hold) = self.lock.hold(converts).filter(|hold| hold.ends > now) else {
            return Ok(Reply::Gone);
        };
        if hold.conversion == place.since && hold.mode == place.mode {
            hold.ends = now.saturating_add(hold.ttl);
            return Ok(granted(hold, now));
        }
        // A copy that was delayed, behind a younger conversion or its own withdrawal.
        if place.since <= hold.conversion {
            return Ok(Reply::Late);
        }
        if hold.mode == 's' && place.mode != 's' {
            return Ok(Reply::NotUpgradable);
        }
        self.end_what_is_over();
        if place.mode != 'x' {
            let number = self.next_number()?;
            let Some(hold) = self.lock.hold(converts) else { return Ok(Reply::Gone) };
            (hold.mode, hold.conversion, hold.number) = (place.mode, place.since, number);
            hold.ends = now.saturating_add(place.ttl);
            let hold = hold.clone();
            self.settle()?;
            return Ok(granted(&hold, now));
        }
        if self.fits(place).0 {
            self.leave();
            let hold = self.upgrade(place, Some(place.ttl))?;
            return Ok(granted(&hold, now));
        }
        match asked.line {
            Line::Try => Ok(self.busy(kind)),
            // In front of the line: there is one upgradable holder at most, and no new reader comes
            // in while it waits.
            Line::Join => {
                if self.my_place().is_none() {
                    self.join(place, true);
                }
                Ok(self.in_line(kind, 0))
            }
        }
    }

    /// Leaves the line, or gives back a grant that is under way. Until `refuse` a request that is
    /// still on its way finds that its caller has left.
    ///
    /// # Errors
    /// When more of the line has to be read.
    pub(in crate::engine) fn withdraw(&mut self, place: &Place, refuse: Us) -> Result<bool, Stop> {
        self.me = Some(place.claim);
        let mut was = self.leave();
        let now = self.now;
        match place.hold {
            None => was |= self.remove(place.claim),
            // An upgrade that nobody wants any more: upgradable as before. That it was converted
            // stays written down, for a copy of the request.
            Some(converts) => {
                if let Some(hold) = self.lock.hold(converts)
                    && hold.ends > now
                    && hold.conversion == place.since
                    && hold.mode == 'x'
                {
                    hold.mode = 'u';
                    was = true;
                }
            }
        }
        // Behind a mark of before nothing of it can come.
        self.behind = refuse > 0 && !self.is_refused(place.claim);
        self.refuse(place.claim, refuse);
        self.settle()?;
        Ok(was)
    }

    fn refuse(&mut self, claim: ClaimId, until: Us) {
        if until > self.now && !self.is_refused(claim) {
            self.lock.refused.push((claim, until));
        }
    }

    /// Gives a hold back, and lets the next claim of the same process stand in line.
    ///
    /// # Errors
    /// When more of the line has to be read.
    pub(in crate::engine) fn release(
        &mut self,
        claim: ClaimId,
        refuse: Us,
        again: Option<&Asked>,
    ) -> Result<(bool, Option<Reply>), Stop> {
        let was = self.remove(claim);
        self.refuse(claim, refuse);
        let again = match again {
            Some(again) => Some(self.stand(again)?),
            None => {
                self.settle()?;
                None
            }
        };
        Ok((was, again))
    }

    /// Renews a lease; the number that it holds with, or nothing when it is gone.
    pub(in crate::engine) fn renew(&mut self, claim: ClaimId) -> Option<u64> {
        let now = self.now;
        let hold = self.lock.hold(claim).filter(|hold| hold.ends > now)?;
        hold.ends = now.saturating_add(hold.ttl);
        Some(hold.number)
    }

    /// Takes the lock away from those who hold it by these claims, and tells them; without any,
    /// from whoever holds it.
    ///
    /// # Errors
    /// When more of the line has to be read.
    pub(in crate::engine) fn force(&mut self, claims: &[ClaimId]) -> Result<bool, Stop> {
        let meant = |hold: &Hold| claims.is_empty() || claims.contains(&hold.claim);
        let (taken, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.lock.holds).into_iter().partition(meant);
        self.lock.holds = rest;
        self.lock.number += u64::from(!taken.is_empty());
        for hold in &taken {
            self.tell(hold.channel.clone(), Push::Taken { claim: hold.claim });
        }
        self.settle()?;
        Ok(!taken.is_empty())
    }

    /// Stores a semaphore's limit; answers whether it was another one.
    ///
    /// # Errors
    /// When more of the line has to be read.
    pub(in crate::engine) fn resize(&mut self, limit: u16) -> Result<bool, Stop> {
        let differs = self.lock.limit != limit;
        self.lock.limit = limit;
        self.settle()?;
        Ok(differs)
    }

    /// Sets a latch's count, if it is zero; answers whether it did.
    pub(in crate::engine) fn latch_set(&mut self, count: u64) -> bool {
        let open = self.lock.count == 0;
        if open {
            self.lock.count = count;
        }
        open
    }

    /// Counts a latch down, once for each claim; answers whether it is open.
    pub(in crate::engine) fn latch_down(&mut self, claim: ClaimId) -> bool {
        let counted = self.lock.counted.iter().any(|(by, _)| *by == claim);
        if self.lock.count > 0 && !counted {
            self.lock.count -= 1;
            self.lock.counted.push((claim, self.now));
        }
        self.lock.count == 0
    }
}

/// What is told of a name; nothing is changed.
pub(in crate::engine) fn entry(kind: Kind, name: Name, seen: &Seen) -> Entry {
    let mut entry = Entry::new(kind, name);
    let work = match Work::on(seen, None) {
        Ok(work) => work,
        Err(error) => {
            entry.unreadable = Some(error.into());
            return entry;
        }
    };
    let (lock, now) = (&work.lock, work.now);
    entry.limit = (lock.limit > 0).then_some(lock.limit);
    entry.count = (lock.count > 0).then_some(lock.count);
    let held = lock.holds.iter().filter(|hold| hold.ends > now);
    entry.holders = held.map(|hold| hold.shown(kind, lock.limit, now)).collect();
    let live = work.places.iter().filter(|place| place.alive > now);
    let shown = |(at, place): (usize, &Place)| {
        place.shown(lock.limit, u32::try_from(at).unwrap_or(u32::MAX))
    };
    entry.waiters = live.enumerate().map(shown).collect();
    entry
}
