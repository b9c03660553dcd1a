//! The line of a name moves: what is over ends, dead places go, and the next are granted.
//!
//! Everybody who writes a name's row settles its line first, so any client may die at any point.

use super::push::Push;
use super::record::{Hold, Lock, Place, Row, Us, damaged};
use crate::words::claim::Holder;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::Kind;
use crate::words::token::next_number;

/// A place lives so long without another sign of life (R11).
pub(in crate::engine) const LIVES: Us = 15_000_000;
/// How long a granted place has to be confirmed, at most (R11).
pub(in crate::engine) const CLAIM_LEASE: Us = 2_000_000;
/// A place that was asked for a sign of life is waited for this long.
const WINDOW: Us = 500_000;
/// A place whose sign is younger than this, or than half its claim lease, is not asked.
const FRESH: Us = 750_000;
/// A place whose sign is older missed its net check (5 s at most), and may be dead.
const STALE: Us = 6_000_000;
/// How many places one question reaches.
const ASKED_MAX: usize = 64;

/// The channel of a process that hears nothing: it looks by itself.
pub(super) const DEAF: &str = "-";

/// After which time somebody asks again whom a holder's own transaction keeps from being granted.
pub(super) const KEPT: Us = 1_000_000;

/// What one statement read of a name.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct Seen {
    /// The server's clock.
    pub(in crate::engine) now: Us,
    /// The name's row, if there is one.
    pub(in crate::engine) row: Option<Row>,
    /// The line from its head on, as far as it was read.
    pub(in crate::engine) places: Vec<Place>,
    /// How many stand in line; or more than were read, if there are more.
    pub(in crate::engine) waiting: usize,
    /// All of them were counted.
    pub(in crate::engine) counted: bool,
    /// The last place's order; 0 without one.
    pub(in crate::engine) tail: i64,
    /// The place that was asked about, wherever it stands, and how many stand before it.
    pub(in crate::engine) mine: Option<(Place, usize)>,
    /// A place that cannot be read.
    pub(in crate::engine) damaged: Option<String>,
}

impl Seen {
    /// Reads a place; one that cannot be read is told of when somebody works on the name.
    pub(in crate::engine) fn place(&mut self, text: &str) -> Option<Place> {
        let place = Place::parse(text);
        if place.is_none() {
            self.damaged = Some(text.to_owned());
        }
        place
    }
}

/// Why nothing can be decided.
#[derive(Clone, Debug)]
pub(in crate::engine) enum Stop {
    /// More of the line has to be read.
    More,
    /// The row cannot be used.
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// What is to be written, all or nothing, if the row's version is still the one that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Plan {
    /// The version that was read; 0: there was no row.
    pub(in crate::engine) seen: i64,
    pub(in crate::engine) row: Row,
    /// Places that go.
    pub(in crate::engine) removed: Vec<i64>,
    /// Places that are asked for a sign of life.
    pub(in crate::engine) asked: Vec<i64>,
    /// A place that comes.
    pub(in crate::engine) joined: Option<Place>,
    /// It comes behind a holder, and is all that is written.
    alone: bool,
    /// Words, each to a channel.
    pub(in crate::engine) words: Vec<(String, Push)>,
}

impl Plan {
    /// Whether the lock passes: whoever keeps its number from changing is waited for.
    pub(in crate::engine) fn passes(&self, seen: &Seen) -> bool {
        seen.row.as_ref().is_some_and(|row| row.number != self.row.number)
    }

    /// Whether nothing but the name's row is written, and nobody is told.
    pub(in crate::engine) fn is_row_alone(&self) -> bool {
        self.removed.is_empty()
            && self.asked.is_empty()
            && self.joined.is_none()
            && self.words.is_empty()
    }

    /// The place that comes, if nothing else is written but that somebody stands in line: then it
    /// may also come where others wrote since.
    pub(in crate::engine) fn joins_alone(&self) -> Option<&Place> {
        self.joined.as_ref().filter(|_| self.alone)
    }

    /// Whether nothing else is written but that this claim has what is free, and nobody waits for:
    /// that may also be where others wrote since.
    pub(in crate::engine) fn takes_alone(&self, seen: &Seen, claim: ClaimId) -> bool {
        let is_free =
            |row: &Row| row.claim.is_none() && row.ends == 0 && !row.line && row.record.is_empty();
        self.is_row_alone()
            && self.row.claim == Some(claim)
            && seen.row.as_ref().is_some_and(is_free)
    }
}

/// A name on which somebody works.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Work {
    pub(super) now: Us,
    pub(super) lock: Lock,
    before: Lock,
    /// The line as far as it was read, and as far as it is left.
    pub(super) places: Vec<Place>,
    /// Places beyond those; if they were not counted, whether there are any.
    unread: usize,
    counted: bool,
    tail: i64,
    /// The claim that this is about.
    pub(super) me: Option<ClaimId>,
    mine: Option<(Place, usize)>,
    removed: Vec<i64>,
    asked: Vec<i64>,
    pub(super) joined: Option<Place>,
    words: Vec<(String, Push)>,
    /// What came of the line for the claim that this is about.
    pub(super) granted: Option<Hold>,
    /// Nobody gave the lock back: it was free already, or a lease ran out.
    lapsed: bool,
    /// Somebody stood in line when it was read.
    stood: bool,
    /// Somebody stands in line who goes before a newcomer.
    pub(super) queue: bool,
    /// For how long a place that was asked is still waited for.
    pub(super) pause: Option<Us>,
    /// A holder's own transaction keeps the lock from passing.
    pub(super) kept: bool,
    /// Something of the claim may still be on its way to the row: it is written although nothing
    /// differs, behind all that is there.
    pub(super) behind: bool,
}

impl Work {
    /// Begins with what was read; `me` is the claim that it is about.
    ///
    /// # Errors
    /// A row that cannot be read.
    pub(in crate::engine) fn on(seen: &Seen, me: Option<ClaimId>) -> Result<Self> {
        let lock = Lock::of(seen.row.as_ref(), seen.now)?;
        if let Some(place) = &seen.damaged {
            return Err(damaged(place));
        }
        let lapsed = lock.holds.is_empty();
        let before = lock.clone();
        let mut places = seen.places.clone();
        for place in &mut places {
            // A sign from the future: the clock was set back (D2), and nobody would notice that the
            // place is dead.
            place.alive = place.alive.min(seen.now + LIVES);
            place.asked = place.asked.min(seen.now);
        }
        Ok(Self {
            now: seen.now,
            lock,
            before,
            unread: seen.waiting.saturating_sub(places.len()),
            counted: seen.counted,
            places,
            tail: seen.tail,
            me,
            mine: seen.mine.clone(),
            removed: Vec::new(),
            asked: Vec::new(),
            joined: None,
            words: Vec::new(),
            granted: None,
            lapsed,
            stood: seen.waiting > 0,
            queue: false,
            pause: None,
            kept: false,
            behind: false,
        })
    }

    /// Whether a holder's own transaction keeps the lock from passing: then nobody is granted it,
    /// although nobody may hold it any more.
    pub(in crate::engine) fn keep(&mut self, kept: bool) {
        self.kept = kept;
    }

    /// Whether nobody gave the lock back that is free by now: a lease ran out, and whoever had it
    /// may still work under it.
    pub(in crate::engine) fn has_lapsed(&self) -> bool {
        self.lapsed && (!self.before.holds.is_empty() || self.stood)
    }

    /// What has to be written; `None` for nothing.
    pub(in crate::engine) fn plan(self) -> Option<Plan> {
        // A lease that was clamped is written down, or each look would find as much left of it.
        let same = self.lock == self.before
            && !self.behind
            && !self.before.clamped
            && self.removed.is_empty()
            && self.asked.is_empty()
            && self.joined.is_none();
        if same && self.words.is_empty() {
            return None;
        }
        let waits = self.waiting() > 0 || self.joined.is_some();
        // Whether permits are in the way of a limit hangs on the row, and an upgrade on its hold.
        let behind = |place: &Place| place.hold.is_none() && place.mode != 'p';
        let alone = self.joined.as_ref().is_some_and(behind)
            && self.lock == self.before
            && !self.before.clamped
            && !self.lock.holds.is_empty()
            && self.removed.is_empty()
            && self.asked.is_empty()
            && self.words.is_empty();
        Some(Plan {
            alone,
            seen: self.before.version,
            row: self.lock.row(waits),
            removed: self.removed,
            asked: self.asked,
            joined: self.joined,
            words: self.words,
        })
    }

    /// How many stand in line; or more than were read, if there are more.
    pub(super) fn waiting(&self) -> usize {
        self.places.len() + self.unread
    }

    /// How many stand in line.
    ///
    /// # Errors
    /// When they have to be counted first.
    pub(super) fn count(&self) -> Result<usize, Stop> {
        if self.unread > 0 && !self.counted { Err(Stop::More) } else { Ok(self.waiting()) }
    }

    /// The claim's place, and how many stand before it.
    pub(super) fn my_place(&self) -> Option<(Place, usize)> {
        let me = self.me?;
        if let Some(at) = self.places.iter().position(|place| place.claim == me) {
            return Some((self.places.get(at)?.clone(), at));
        }
        let (place, ahead) = self.mine.clone()?;
        let gone = self.removed.len();
        (!self.removed.contains(&place.seq)).then(|| (place, ahead.saturating_sub(gone)))
    }

    /// Takes the claim's place out of the line; answers whether there was one.
    pub(super) fn leave(&mut self) -> bool {
        let Some((place, _)) = self.my_place() else { return false };
        let read = self.places.len();
        self.places.retain(|other| other.seq != place.seq);
        if self.places.len() == read {
            self.unread = self.unread.saturating_sub(1);
        }
        self.removed.push(place.seq);
        true
    }

    /// Puts a place at the end of the line, or in front of it.
    pub(super) fn join(&mut self, place: &Place, front: bool) {
        let seq = if front { 0 } else { self.tail.max(0) + 1 };
        let alive = self.now + LIVES;
        self.joined = Some(Place { seq, alive, asked: 0, ..place.clone() });
    }

    pub(super) fn tell(&mut self, channel: String, push: Push) {
        if channel == DEAF {
            return;
        }
        self.words.push((channel, push));
    }

    /// Ends the holds whose time is over.
    pub(super) fn end_what_is_over(&mut self) {
        let (now, before) = (self.now, self.lock.holds.len());
        self.lock.holds.retain(|hold| hold.frees() > now);
        self.lapsed |= self.lock.holds.len() < before;
    }

    /// Whether a place can be granted now, and whether it never will be: an upgrade whose hold is
    /// gone.
    pub(super) fn fits(&self, place: &Place) -> (bool, bool) {
        let holds = &self.lock.holds;
        if let Some(converts) = place.hold {
            let there = holds.iter().any(|hold| hold.claim == converts && hold.ends > self.now);
            return (there && holds.len() == 1 && !self.kept, !there);
        }
        if self.kept {
            return (false, false);
        }
        if place.mode == 'p' {
            let used: u32 = holds.iter().map(|hold| u32::from(hold.count)).sum();
            return (used + u32::from(place.count) <= u32::from(self.lock.limit), false);
        }
        let any = |mode: char| holds.iter().any(|hold| hold.mode == mode);
        let can = match place.mode {
            _ if holds.is_empty() => true,
            's' => !any('x'),
            'u' => !any('x') && !any('u'),
            _ => false,
        };
        (can, false)
    }

    pub(super) fn next_number(&mut self) -> Result<u64, Stop> {
        let now = u64::try_from(self.now).unwrap_or(0);
        let number = next_number(self.lock.number, now).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "its numbers are used up; use another prefix")
        })?;
        self.lock.number = number;
        Ok(number)
    }

    /// Writes a holder down.
    pub(super) fn put(&mut self, place: &Place, lease: Us) -> Result<Hold, Stop> {
        let number = self.next_number()?;
        let hold = Hold::of(place, number, self.now, lease);
        self.lock.holds.push(hold.clone());
        Ok(hold)
    }

    /// The only holder becomes exclusive; it keeps its id and gets a new number. Without a lease
    /// its deadline stays.
    pub(super) fn upgrade(&mut self, place: &Place, lease: Option<Us>) -> Result<Hold, Stop> {
        let (number, now) = (self.next_number()?, self.now);
        let hold = place.hold.and_then(|converts| self.lock.hold(converts)).ok_or(Stop::More)?;
        (hold.mode, hold.conversion, hold.number, hold.ttl) = ('x', place.since, number, place.ttl);
        if let Some(lease) = lease {
            hold.ends = now + lease;
        }
        Ok(hold.clone())
    }

    /// Takes the hold of a claim out; answers whether it was there and not over.
    pub(super) fn remove(&mut self, claim: ClaimId) -> bool {
        let now = self.now;
        let at = self.lock.holds.iter().position(|hold| hold.claim == claim && hold.ends > now);
        let Some(at) = at else { return false };
        self.lock.holds.remove(at);
        // A passing: the number of a hold that was given back is nobody's.
        self.lock.number += 1;
        true
    }

    /// Until when a place may still answer, if it was asked for a sign of life and gave none since.
    fn owes(&self, place: &Place) -> Option<Us> {
        let sign = place.alive - LIVES;
        (place.asked > 0 && place.asked > sign).then_some(place.asked + WINDOW)
    }

    fn is_fresh(&self, place: &Place) -> bool {
        place.alive >= self.now + LIVES - FRESH.min(claim_lease(place.ttl) / 2)
    }

    /// Asks the line from here on for a sign of life, so that dead places cost one claim lease
    /// together and not one each (R11).
    fn ask_the_line(&mut self, from: usize) -> Result<(), Stop> {
        if self.unread > 0 && self.places.len() < from + ASKED_MAX {
            return Err(Stop::More);
        }
        let now = self.now;
        for at in from..self.places.len() {
            let Some(place) = self.places.get(at) else { break };
            // Whoever waits for an upgrade lives: its hold does.
            let asked = place.alive > now
                && place.hold.is_none()
                && Some(place.claim) != self.me
                && self.owes(place).is_none()
                && !self.is_fresh(place);
            if !asked {
                continue;
            }
            let (channel, claim, seq) = (place.channel.clone(), place.claim, place.seq);
            if let Some(place) = self.places.get_mut(at) {
                place.asked = now;
            }
            self.asked.push(seq);
            self.tell(channel, Push::Alive { claim });
            if self.asked.len() >= ASKED_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Tells those from here on when to look, until one that is likely to live was told, or so many
    /// were: the holder before them may never confirm.
    fn tell_line(&mut self, from: usize, rest: Us, most: usize) {
        let mut told = 0;
        for at in from..self.places.len() {
            let Some(place) = self.places.get(at) else { break };
            if place.alive <= self.now || Some(place.claim) == self.me || self.owes(place).is_some()
            {
                continue;
            }
            let likely = place.alive > self.now + LIVES - STALE;
            let (channel, claim) = (place.channel.clone(), place.claim);
            self.tell(channel, Push::First { claim, rest });
            told += usize::from(likely);
            if told >= most {
                break;
            }
        }
    }

    /// Moves the line.
    ///
    /// # Errors
    /// When more of the line has to be read first.
    pub(in crate::engine) fn settle(&mut self) -> Result<(), Stop> {
        self.end_what_is_over();
        (self.queue, self.pause) = (false, None);
        let (mut told, mut asked, mut at) = (false, false, 0);
        loop {
            let Some(place) = self.places.get(at).cloned() else {
                return if self.unread > 0 { Err(Stop::More) } else { Ok(()) };
            };
            let mine = Some(place.claim) == self.me;
            let (can, never) =
                if place.alive > self.now { self.fits(&place) } else { (false, true) };
            let waited_for = !never && !mine && place.hold.is_none();
            let mut answers_by = waited_for.then(|| self.owes(&place)).flatten();
            let silent = mine || place.hold.is_none() && !self.is_fresh(&place);
            if can && self.lapsed && !asked && answers_by.is_none() && silent {
                asked = true;
                self.ask_the_line(at)?;
                let now_owes = self.places.get(at).and_then(|place| self.owes(place));
                answers_by = if mine { None } else { now_owes };
            }
            if never {
                self.places.remove(at);
                self.removed.push(place.seq);
            } else if answers_by.is_some_and(|by| by <= self.now) {
                // It was asked and is silent: it keeps its place, and the lock goes past it until
                // it gives a sign.
                at += 1;
            } else if !can {
                self.queue = true;
                if told {
                    // Whoever is first now has to know when the one before it must have confirmed.
                    let rest = self.rest();
                    self.tell_line(at, rest, 1);
                }
                return Ok(());
            } else if let Some(by) = answers_by {
                let pause = by - self.now;
                (self.queue, self.pause) = (true, Some(pause));
                if told || !self.lapsed {
                    self.tell_line(at, pause, ASKED_MAX);
                }
                return Ok(());
            } else {
                self.places.remove(at);
                self.removed.push(place.seq);
                told |= self.grant(&place, mine)?;
            }
        }
    }

    /// Grants a place that stood in line; answers whether somebody else was told.
    fn grant(&mut self, place: &Place, mine: bool) -> Result<bool, Stop> {
        let lease = if mine { place.ttl } else { claim_lease(place.ttl) };
        let hold = match place.hold {
            // Its hold is being renewed already, so no claim lease: what is left of it goes on.
            Some(_) => self.upgrade(place, mine.then_some(lease))?,
            None => self.put(place, lease)?,
        };
        if mine {
            self.granted = Some(hold);
            return Ok(false);
        }
        let push = Push::Granted {
            claim: place.claim,
            number: hold.number,
            now: self.now,
            lease: hold.ends - self.now,
            version: self.before.version + 1,
        };
        self.tell(place.channel.clone(), push);
        Ok(true)
    }

    /// How long until somebody else may have it, unless it is given back.
    pub(super) fn rest(&self) -> Us {
        let first = self.lock.holds.iter().map(Hold::frees).min();
        first.map_or(0, |at| (at - self.now).max(0))
    }

    /// Who is waited for.
    pub(super) fn blocker(&self, kind: Kind) -> Option<Box<Holder>> {
        let holds = &self.lock.holds;
        let hold = holds.iter().find(|hold| hold.mode != 's').or(holds.first())?;
        Some(Box::new(hold.shown(kind, self.lock.limit, self.now)))
    }

    /// Whether the line moves without those who stand behind: its only holder is about to confirm,
    /// or one of several is, or ends as soon.
    pub(super) fn moves(&self) -> bool {
        match self.lock.holds.as_slice() {
            [] => true,
            [one] => {
                let left = one.ends - self.now;
                let lease = claim_lease(one.ttl);
                left > lease / 2 && (self.now - one.since) + left <= lease + 5_000
            }
            _ => self.rest() <= CLAIM_LEASE,
        }
    }
}

/// How long a pushed grant lasts.
pub(in crate::engine) fn claim_lease(ttl: Us) -> Us {
    CLAIM_LEASE.min(ttl / 3)
}
