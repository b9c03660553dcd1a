//! When a claim that waits asks again, as a pure machine: what it was answered, what it heard
//! since, and what time it is.
//!
//! It asks when it is its turn, or when everybody is told. By itself it asks when the holder's
//! lease ends, not before 250 ms and not after 5 s. Where it is another's turn, or was, it asks
//! once that one and those before it in line had their time: they may be dead. Nothing that it
//! hears puts a question off for longer than 5 s after the last one; nor are others waited for
//! longer than for half of the time that its caller waits still. It asks once more 250 ms before
//! that time is over: the word that it waited for may have been lost.

use std::time::Duration;

use super::recipe::Members;
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;

/// How soon and how late a waiter looks by itself (R10).
pub(super) const LOOK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// For how long it is somebody's turn; the members' scripts have the same.
pub(super) const TURN: Duration = Duration::from_millis(250);

/// A release is told by one member after the other; with fewer than a majority it may be a
/// contender that gave back.
pub(super) const TOLD_BY_FEW: Duration = Duration::from_millis(25);

/// By how much later each asks than the one before it, of those that ask because of the same.
const APART: Duration = Duration::from_millis(5);

/// Of how many that is so: the others ask with the last of them.
const APART_MOST: u64 = 40;

/// What does not change of a waiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) id: ClaimId,
    pub(super) ttl: Duration,
    pub(super) majority: usize,
    /// It stands in lines that tell whose turn it is.
    pub(super) lines_up: bool,
    /// Words name nobody, and records do not tell who lives.
    pub(super) foreign: bool,
    /// Each member tells of each change once.
    pub(super) once: bool,
}

/// What a member tells unasked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) member: usize,
    /// Who gave it back, where it says that.
    pub(super) giver: Option<ClaimId>,
    /// It is what a contender gave up, or what was free already: it is nobody's but `only`'s.
    pub(super) ceded: bool,
    /// Whose turn it is; `None`: all are told.
    pub(super) only: Option<ClaimId>,
}

/// How it was refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    pub(super) by: Option<ClaimId>,
    /// What it got stays, on these members.
    pub(super) keeps: bool,
    pub(super) kept: Members,
    /// When the one with the majority has none any more, if nothing more is heard of it.
    pub(super) rest: Option<Duration>,
    /// Up to 1, at random.
    pub(super) jitter: f64,
}

/// What follows from a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    AtOnce,
    At(Ticks),
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    rules: Rules,
    /// Until when its caller waits.
    pub(super) give_up: Option<Ticks>,
    /// It was told to wait.
    waiting: bool,
    keeps: bool,
    kept: Members,
    /// Something was heard while it was asked for.
    woken: bool,
    /// When it was refused last.
    refused: Option<Ticks>,
    /// When it asks next.
    due: Ticks,
    /// The earliest of the times that it was said to ask at, and has not been asked at since.
    rings: Option<Ticks>,
    /// The hold that was given back when it was asked for: others are let pass first.
    behind: Option<ClaimId>,
    /// Who gave it back, and which members told so.
    told: Told,
    /// The members on which it is its turn, or contenders gave way to it, since it asked last.
    given: Members,
    /// How often in a row it was refused by contenders alone.
    splits: u32,
    /// Who gave it back for somebody else who waits, and which members told so.
    passed: Told,
    /// How many wait before it, as far as the members told.
    ahead: Option<u64>,
    /// In this round it was another's turn.
    turn: bool,
    /// All were told to give a sign of life since it asked last.
    sign: bool,
    /// Words may have been lost since it asked last: too few members were connected.
    deaf: bool,
}

impl Waiter {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            give_up: None,
            waiting: false,
            keeps: false,
            kept: Members::default(),
            woken: false,
            refused: None,
            due: Ticks::default(),
            rings: None,
            behind: None,
            told: Told::default(),
            given: Members::default(),
            splits: 0,
            passed: Told::default(),
            ahead: None,
            turn: false,
            sign: false,
            deaf: false,
        }
    }

    /// It is asked for now.
    pub(super) fn asks(&mut self, now: Ticks) {
        (self.waiting, self.woken, self.sign, self.deaf) = (false, false, false, false);
        self.rings = self.rings.filter(|at| *at > now);
        // What a majority told is known: the others say the same a moment later. Members that tell
        // of keys tell of each change once, and one with a queue tells the first in it.
        self.told.forget_below(if self.rules.once { usize::MAX } else { self.rules.majority });
        self.passed.forget_below(self.rules.majority);
        self.given = Members::default();
    }

    /// A new round of questions: what was answered before is of before.
    pub(super) fn begins_round(&mut self) {
        (self.ahead, self.turn) = (None, false);
    }

    /// A member answered that so many are before it, or that it is another's turn.
    pub(super) fn is_behind(&mut self, ahead: Option<u64>, turn: bool) {
        self.ahead = self.ahead.into_iter().chain(ahead).min();
        self.turn |= turn;
    }

    /// From now on it waits for a word; gives when it asks without one.
    pub(super) fn refused(&mut self, now: Ticks, how: Refusal) -> Ticks {
        (self.waiting, self.keeps, self.kept) = (true, how.keeps, how.kept);
        self.refused = Some(now);
        self.splits = if how.rest.is_some() { 0 } else { self.splits + 1 };
        let passed = how.by.is_some_and(|by| self.passed.by(Some(by)) > 0);
        let look = match how.rest {
            // Those before it in line have their chance first. What one member says is its turn is
            // nothing beside the record of a majority.
            Some(rest) if self.turn && rest <= TURN || passed => self.after_others(now),
            Some(rest) => {
                // Of those that wait for its end the first comes first.
                let end = rest.saturating_add(Duration::from_millis(1));
                let end = end.saturating_add(self.apart()).clamp(LOOK.0, LOOK.1);
                self.last_look(now).map_or(end, |last| end.min(last))
            }
            // Nobody has a majority: whoever contends asks again soon. Where records do not tell
            // who lives, all may give back: not in step, so that one of them comes first.
            None if self.rules.foreign => LOOK.0.mul_f64(1.0 + how.jitter),
            None => gap(self.splits, how.jitter),
        };
        // What was heard while it was asked for is news only if it is of whoever refused it, or
        // meant for it: the answers have all else. Others' words do not say whose they are.
        let by = if self.rules.foreign { None } else { how.by };
        let told = self.told.by(by).max(self.told.by(None));
        let enough = self.has_room() || told >= self.rules.majority;
        self.due = match std::mem::take(&mut self.woken) {
            true if enough || self.rules.foreign && how.keeps => now,
            true if self.rules.foreign || told > 0 || self.given.len() > 0 => now.plus(TOLD_BY_FEW),
            _ => self.in_time(now, now.plus(look)),
        };
        self.due
    }

    /// It does not ask before a pause: others that wait pass first.
    pub(super) fn stands_back(&mut self, now: Ticks, behind: ClaimId) -> Ticks {
        (self.waiting, self.behind) = (true, Some(behind));
        // Whoever has little time asks before it is over.
        let pause = self.give_up.map_or(LOOK.0, |at| LOOK.0.min(at.since(now) / 2));
        self.due = now.plus(pause);
        self.due
    }

    /// Too few members were connected for a while.
    pub(super) fn was_deaf(&mut self) {
        self.deaf = true;
    }

    /// Whether a question of now is one for which there is no reason, and when there is one: it was
    /// answered a moment ago, or a while ago and asks by itself, and has heard nothing since; or it
    /// has heard since when it said to ask now that it is another's turn.
    pub(super) fn needs_not_ask(&mut self, now: Ticks) -> Option<Ticks> {
        if !self.waiting || self.deaf || now >= self.due {
            return None;
        }
        let lately = if self.rules.lines_up { LOOK.1 } else { TOLD_BY_FEW };
        let has_just = self.refused.is_some_and(|at| now < at.plus(lately));
        let is_put_off = self.rings.is_some_and(|at| at <= now);
        if !has_just && !is_put_off {
            return None;
        }
        self.rings = self.rings.filter(|at| *at > now);
        Some(self.due)
    }

    /// A member tells that somebody gave the lock back.
    pub(super) fn hears(&mut self, now: Ticks, word: Word) -> Option<Ask> {
        let Word { member, giver, ceded, only } = word;
        // What it gave back itself is no news, nor what it lets others have. Others' words do not
        // say whose they are: the first are of what it gave back itself.
        let own = giver == Some(self.rules.id) || giver.is_some() && giver == self.behind;
        if own || giver.is_none() && self.behind.is_some() && self.refused.is_none() {
            return None;
        }
        let at_once = match only {
            // It is its turn, or these give way to it.
            Some(only) if only == self.rules.id => {
                self.given.insert(member);
                // Members on which it stood in no line told all of the same.
                let told = giver.map_or(0, |_| self.told.hear(giver, member));
                self.has_room() || told >= self.rules.majority
            }
            Some(_) if ceded => return None,
            Some(_) if self.rules.lines_up => return self.is_passed(now, giver, member),
            _ => {
                let before = self.told.by(giver);
                let told = self.told.hear(giver, member);
                // It asks, or has asked, since a majority told: those that it got keep it in the
                // way.
                let keeps = self.keeps && giver.is_none();
                if before >= self.rules.majority && told > before && !keeps {
                    return None;
                }
                keeps || told >= self.rules.majority
            }
        };
        if !self.waiting {
            self.woken = true;
            return None;
        }
        // All are told, and stand in line: the first asks first.
        let apart =
            if only.is_none() && self.rules.lines_up { self.apart() } else { Duration::ZERO };
        if at_once && apart.is_zero() {
            self.waiting = false;
            return Some(Ask::AtOnce);
        }
        self.sign |= at_once && only.is_none();
        let at = now.plus(if at_once { apart } else { TOLD_BY_FEW });
        self.due = self.due.min(at);
        Some(self.at(at))
    }

    /// It is another's turn.
    fn is_passed(&mut self, now: Ticks, giver: Option<ClaimId>, member: usize) -> Option<Ask> {
        let again = self.passed.by(giver) > 0;
        self.passed.hear(giver, member);
        // Whoever has not asked stands in no line: nothing puts its question off.
        if again || !self.waiting || self.refused.is_none() {
            return None;
        }
        // The first in line whose turn it was not is taken for dead there, until it asks. So is
        // whoever was told to with all others.
        let is_to_ask = self.ahead == Some(0) || self.sign;
        self.ahead = self.ahead.map(|ahead| ahead.saturating_sub(1));
        let at = self.in_time(now, now.plus(self.after_others(now)));
        // Nor is it put off while it keeps what it got, which keeps others out.
        self.due = if is_to_ask || self.keeps { self.due.min(at) } else { at };
        Some(self.at(self.due))
    }

    /// A member tells that what was read there changed.
    pub(super) fn hears_of_keys(&mut self, member: usize) -> Option<Ask> {
        let told = self.told.change(None, |members| members.insert(member));
        let enough = told >= self.rules.majority;
        if !self.waiting {
            self.woken |= enough;
            return None;
        }
        if !self.keeps && !enough {
            return None;
        }
        self.waiting = false;
        Some(Ask::AtOnce)
    }

    fn at(&mut self, at: Ticks) -> Ask {
        self.rings = self.rings.into_iter().chain([at]).min();
        Ask::At(at)
    }

    /// Whether those that it got and those that contenders gave up for it are a majority.
    fn has_room(&self) -> bool {
        self.given.len() > 0 && self.given.and(self.kept).len() >= self.rules.majority
    }

    /// When it asks though others are before it. Each of them has its turn, but all together no
    /// more than a claim lease and a second: so long may those take that are dead (R11). Nor more
    /// than half of what is left of its wait: it would end beside a free lock.
    fn after_others(&self, now: Ticks) -> Duration {
        let ahead = u32::try_from(self.ahead.unwrap_or(0)).unwrap_or(u32::MAX);
        let turns = TURN.saturating_mul(ahead.saturating_add(1)).min(together(self.rules.ttl));
        let half = self.give_up.map(|end| (end.since(now) / 2).max(TOLD_BY_FEW));
        let turns = turns.saturating_add(TOLD_BY_FEW).saturating_add(self.apart());
        half.map_or(turns, |half| turns.min(half))
    }

    /// When it asks for the last time in place of giving up: a word may have been lost.
    fn last_look(&self, now: Ticks) -> Option<Duration> {
        let left = self.give_up.filter(|_| self.rules.lines_up)?.since(now);
        (left > LOOK.0 * 2).then(|| left - LOOK.0)
    }

    fn apart(&self) -> Duration {
        APART * u32::try_from(self.ahead.unwrap_or(0).min(APART_MOST)).unwrap_or(0)
    }

    /// A time to ask at, but not later than 5 s after it was refused last.
    fn in_time(&self, now: Ticks, at: Ticks) -> Ticks {
        let net = self.refused.filter(|_| self.rules.lines_up);
        at.min(net.map_or(at, |asked| asked.plus(LOOK.1))).max(now)
    }
}

/// For how long the turns of others are waited for, however many they are: half a second less than
/// a claim lease and a second, for the way and for those who ask in order.
pub(super) fn together(ttl: Duration) -> Duration {
    (ttl / 3).min(Duration::from_secs(2)) + Duration::from_millis(500)
}

/// When contenders ask again that were refused by each other so many times in a row, not in step.
fn gap(splits: u32, jitter: f64) -> Duration {
    let doubled = TOLD_BY_FEW.saturating_mul(1 << splits.saturating_sub(1).min(8));
    doubled.min(LOOK.0).mul_f64(1.0 - jitter / 4.0)
}

/// Who gave the lock back lately, and which members told so. They tell of one release one after the
/// other, and the first of them may tell of the next before the last does of this one.
#[derive(Clone, Debug, Default)]
pub(super) struct Told(Vec<(Option<ClaimId>, Members)>);

impl Told {
    /// Of how many releases it is remembered.
    const LATELY: usize = 4;

    /// How many members told that this claim gave back; `None` where words name nobody.
    pub(super) fn by(&self, who: Option<ClaimId>) -> usize {
        self.0.iter().find(|(giver, _)| *giver == who).map_or(0, |(_, members)| members.len())
    }

    /// Changes who told so; how many they are then.
    fn change(&mut self, who: Option<ClaimId>, change: impl FnOnce(&mut Members)) -> usize {
        let at = self.0.iter().position(|(giver, _)| *giver == who);
        let (_, mut members) = at.map_or((who, Members::default()), |at| self.0.remove(at));
        change(&mut members);
        if self.0.len() == Self::LATELY {
            self.0.remove(0);
        }
        self.0.push((who, members));
        members.len()
    }

    /// One more member told so.
    fn hear(&mut self, who: Option<ClaimId>, member: usize) -> usize {
        self.change(who, |members| {
            // A member tells twice of one that gave back twice.
            if members.has(member) {
                *members = Members::default();
            }
            members.insert(member);
        })
    }

    /// What so many told is known, and the others say the same a moment later; what fewer told
    /// begins anew.
    pub(super) fn forget_below(&mut self, many: usize) {
        self.0.retain(|(_, members)| members.len() >= many);
    }
}

#[cfg(test)]
mod tests;
