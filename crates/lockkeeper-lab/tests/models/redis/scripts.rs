//! What the scripts of the native layout mean, for one name: `native/settle.lua` and those around
//! it, line by line.

mod run;

use std::collections::{BTreeMap, BTreeSet};

use run::Run;

/// One letter a mode, as in the records.
pub type Letter = char;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    pub claim: u16,
    pub mode: Letter,
    pub count: u16,
    pub number: u64,
    pub ttl: u64,
    pub until: u64,
    /// Claims rise from each conversion of a hold to the next, as their times do.
    pub conversion: Option<u16>,
    /// It has more than the claim lease of a grant that was pushed.
    pub confirmed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub claim: u16,
    pub mode: Letter,
    pub count: u16,
    /// The limit of a semaphore, as its caller believes it.
    pub limit: u64,
    pub ttl: u64,
    /// The hold that is to be converted.
    pub hold: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    pub score: u64,
    pub place: Place,
    pub lives_until: u64,
    /// It was asked for a sign of life: until when it would live, had it answered at once.
    pub asked: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reply {
    Granted {
        number: u64,
        ttl: u64,
    },
    /// How many are before it, when whoever is waited for is over at the latest, and how many claim
    /// leases later to ask.
    InLine {
        ahead: usize,
        rest: u64,
        turn: Option<u64>,
    },
    Busy,
    Late,
    Gone,
    NotUpgradable,
    OtherLimit(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Told {
    Granted { claim: u16, number: u64, at: u64, lease: u64 },
    First { claim: u16, rest: u64 },
    Alive { claim: u16 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    Join,
    Try,
}

/// What a script can get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slip {
    /// Withdrawals leave no word for what is still on its way.
    LeavesNoWord,
    /// Numbers are a counter and nothing else.
    CountsOnly,
    /// A withdrawal forgets that a hold was ever converted.
    ForgetsConversions,
    /// A conversion counts, also when a younger one was there before it.
    OldConversionsCount,
    /// An upgrade does not look whether others hold the lock.
    UpgradesBesideReaders,
    /// Whoever asks after a lease ran out gets the lock, though others before it were asked a
    /// moment ago.
    WaitsForNoAnswer,
    /// Nobody is told that the lock is free while an answer is waited for.
    TellsNobodyBehind,
    /// What was asked and is silent loses its place.
    ForgetsTheSilent,
    /// Who joins while a dead one has its claim lease is told to wait as behind one that lives.
    TrustsTheDeaf,
    /// What is put into the line is not told beside the last number.
    SetsNoFlag,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lock {
    pub holders: Vec<Holder>,
    /// The record is a hash: it was held by several, and not by nobody since. Then it stays until
    /// the latest of all their ends.
    several_until: Option<u64>,
    /// The earliest end of several, as of the last time that one of them ended.
    earliest: u64,
    /// Nobody heard of a grant to a holder that is there.
    unheard: bool,
    pub line: Vec<Standing>,
    /// Withdrawn: until when their requests are refused.
    pub words: BTreeMap<u16, u64>,
    /// When the line as a whole is forgotten.
    line_until: u64,
    /// The last number, or the limit of a semaphore.
    pub last: u64,
    /// Beside it: something may be in the line. The short ways look at nothing else.
    flag: bool,
    /// The claims of processes whose connection is gone: nobody hears what is published for them.
    pub deaf: BTreeSet<u16>,
}

/// The units in which the scripts count: a second, and numbers for each unit of time.
#[derive(Clone, Copy, Debug)]
pub struct Units {
    pub second: u64,
    pub number_of: fn(u64) -> u64,
}

impl Units {
    /// How long a place lives without a sign of life.
    fn lives(self) -> u64 {
        15 * self.second
    }

    /// How long a place that was asked is waited for.
    fn window(self) -> u64 {
        self.second.div_ceil(2)
    }

    /// A sign of life younger than this needs no question.
    fn fresh(self, ttl: u64) -> u64 {
        (3 * self.second / 4).min(ttl / 3 / 2)
    }

    /// A place whose sign of life is older may be dead.
    fn stale(self) -> u64 {
        6 * self.second
    }
}

impl Lock {
    fn run(&mut self, now: u64, units: Units, slip: Option<Slip>) -> Run<'_> {
        // Keys whose time to live is over are not there.
        match self.several_until {
            Some(until) if until <= now => {
                self.holders.clear();
                self.several_until = None;
            }
            Some(_) => {}
            None => self.holders.retain(|h| h.until > now),
        }
        if self.line_until <= now {
            self.line.clear();
            self.words.clear();
        }
        self.unheard &= !self.line.is_empty() || !self.words.is_empty();
        let lapsed = self.holders.is_empty();
        Run {
            lock: self,
            now,
            units,
            slip,
            me: None,
            granted: None,
            queue: false,
            lapsed,
            pause: None,
            told: Vec::new(),
        }
    }

    pub fn acquire(
        &mut self,
        now: u64,
        units: Units,
        slip: Option<Slip>,
        place: Place,
        how: How,
        not_after: u64,
    ) -> (Reply, Vec<Told>) {
        let mut run = self.run(now, units, slip);
        if now > not_after && slip != Some(Slip::LeavesNoWord) {
            return (Reply::Late, Vec::new());
        }
        let reply = run.stand(place, how);
        run.finish();
        (reply, run.told)
    }

    /// `native/take.lua` and `native/permits.lua`; `None`: something is in the way. That changes
    /// nothing, so the acquire behind it may be the same step.
    pub fn take(
        &mut self,
        now: u64,
        units: Units,
        slip: Option<Slip>,
        place: Place,
        not_after: u64,
    ) -> Option<Reply> {
        let flag = self.flag;
        let mut run = self.run(now, units, slip);
        if now > not_after && slip != Some(Slip::LeavesNoWord) {
            return Some(Reply::Late);
        }
        let last = run.lock.last;
        let clear = match place.mode {
            'p' => last == 0 || last == place.limit,
            _ => (units.number_of)(now) > last,
        };
        let free = run.lock.holders.is_empty() && run.lock.several_until.is_none();
        // Where the last number is lost, the line is looked at.
        let line = last == 0 && !(run.lock.line.is_empty() && run.lock.words.is_empty());
        if flag || line || !clear || !free {
            return None;
        }
        if place.mode == 'p' {
            run.lock.last = place.limit;
        }
        Some(run.put(place, place.ttl))
    }

    /// Answers whether it was there, and what became of the claim that stands in the same message.
    pub fn release(
        &mut self,
        now: u64,
        units: Units,
        slip: Option<Slip>,
        claim: u16,
        refuse: u64,
        again: Option<(Place, u64)>,
    ) -> (bool, Option<Reply>, Vec<Told>) {
        let bare = !self.flag && again.is_none() && refuse <= now;
        let mut run = self.run(now, units, slip);
        let alone = run.lock.several_until.is_none();
        let its_own = |h: &Holder| {
            let last = run.lock.last;
            h.claim == claim && last != 0 && (h.mode == 'p' || h.number == last)
        };
        if bare && alone && run.lock.holders.iter().any(its_own) {
            // The short way.
            run.lock.holders.clear();
            return (true, None, Vec::new());
        }
        let found = run.remove_living(claim);
        run.refuse(claim, refuse);
        let again = again.map(|(place, not_after)| {
            if now > not_after {
                run.settle();
                Reply::Late
            } else {
                run.stand(place, How::Join)
            }
        });
        if again.is_none() {
            run.settle();
        }
        run.finish();
        (found, again, run.told)
    }

    pub fn withdraw(
        &mut self,
        now: u64,
        units: Units,
        slip: Option<Slip>,
        place: Place,
        refuse: u64,
    ) -> (bool, Vec<Told>) {
        let mut run = self.run(now, units, slip);
        let before = run.lock.line.len();
        run.lock.line.retain(|s| s.place != place);
        let mut found = before != run.lock.line.len();
        if let Some(hold) = place.hold {
            let alone = run.lock.several_until.is_none();
            let converted = |h: &&mut Holder| {
                alone && h.claim == hold && h.conversion == Some(place.claim) && h.mode == 'x'
            };
            if let Some(holder) = run.lock.holders.iter_mut().find(converted) {
                holder.mode = 'u';
                if slip == Some(Slip::ForgetsConversions) {
                    holder.conversion = None;
                }
                found = true;
            }
        } else {
            found |= run.remove_living(place.claim);
        }
        run.refuse(place.claim, refuse);
        run.settle();
        run.finish();
        (found, run.told)
    }

    pub fn convert(
        &mut self,
        now: u64,
        units: Units,
        slip: Option<Slip>,
        place: Place,
        how: How,
        not_after: u64,
    ) -> (Reply, Vec<Told>) {
        let mut run = self.run(now, units, slip);
        let reply = if now > not_after { Reply::Late } else { run.convert(place, how) };
        (reply, run.told)
    }

    /// Answers whether it was extended.
    pub fn renew(&mut self, now: u64, units: Units, claim: u16, ttl: u64) -> bool {
        let run = self.run(now, units, None);
        let Some(holder) = run.lock.holders.iter_mut().find(|h| h.claim == claim && h.until > now)
        else {
            return false;
        };
        (holder.until, holder.confirmed) = (now + ttl, true);
        run.lock.outlive(now + ttl);
        true
    }

    /// The flag stands for as long as the key of the line is there, unless all is lost beside which
    /// it stood.
    pub fn is_flagged(&self, now: u64) -> bool {
        let line = !self.line.is_empty() || !self.words.is_empty();
        self.flag || self.last == 0 || !line || self.line_until <= now
    }

    /// The last number is lost, and the flag beside it.
    pub fn evict(&mut self) {
        (self.last, self.flag) = (0, false);
    }

    fn outlive(&mut self, until: u64) {
        if let Some(several) = &mut self.several_until {
            *several = (*several).max(until);
        }
    }

    fn holder(&self, claim: u16) -> Option<&Holder> {
        self.holders.iter().find(|h| h.claim == claim)
    }
}
