//! What the scripts of the native layout mean, for one name: `native/settle.lua` and those around
//! it, line by line.

use std::collections::{BTreeMap, BTreeSet};

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

struct Run<'a> {
    lock: &'a mut Lock,
    now: u64,
    units: Units,
    slip: Option<Slip>,
    me: Option<Place>,
    granted: Option<Reply>,
    queue: bool,
    /// Nobody gave the lock back: it was free already, or a lease ran out.
    lapsed: bool,
    /// For how long an answer is still waited for.
    pause: Option<u64>,
    told: Vec<Told>,
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
        (reply, run.told)
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
        let mut run = self.run(now, units, slip);
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

    fn outlive(&mut self, until: u64) {
        if let Some(several) = &mut self.several_until {
            *several = (*several).max(until);
        }
    }

    fn holder(&self, claim: u16) -> Option<&Holder> {
        self.holders.iter().find(|h| h.claim == claim)
    }
}

impl Run<'_> {
    fn next_number(&mut self) -> u64 {
        let tick =
            if self.slip == Some(Slip::CountsOnly) { 0 } else { (self.units.number_of)(self.now) };
        self.lock.last = (self.lock.last + 1).max(tick);
        self.lock.last
    }

    /// Whether it can be granted now, and whether it never will be.
    fn fits(&self, place: &Place) -> (bool, bool) {
        let holders = &self.lock.holders;
        if let Some(hold) = place.hold {
            let living = self.lock.holder(hold).is_some_and(|h| h.until > self.now);
            let alone = holders.len() == 1 || self.slip == Some(Slip::UpgradesBesideReaders);
            return if living { (alone, false) } else { (false, true) };
        }
        let can = match place.mode {
            'p' => {
                holders.iter().map(|h| u64::from(h.count)).sum::<u64>() + u64::from(place.count)
                    <= self.lock.last
            }
            _ if holders.is_empty() => true,
            'x' => false,
            'u' => holders.iter().all(|h| h.mode == 's'),
            _ => holders.iter().all(|h| h.mode != 'x'),
        };
        (can, false)
    }

    fn put(&mut self, place: Place, lease: u64) -> Reply {
        let number = if place.mode == 'p' { 0 } else { self.next_number() };
        let until = self.now + lease;
        if let [one] = self.lock.holders.as_slice()
            && self.lock.several_until.is_none()
        {
            (self.lock.several_until, self.lock.earliest) = (Some(one.until), one.until);
        }
        self.lock.unheard &= !self.lock.holders.is_empty();
        if self.lock.several_until.is_some() {
            self.lock.earliest = self.lock.earliest.min(until);
        }
        self.lock.outlive(until);
        let Place { claim, mode, count, ttl, .. } = place;
        self.lock.holders.push(Holder {
            claim,
            mode,
            count,
            number,
            ttl,
            until,
            conversion: None,
            confirmed: lease == ttl,
        });
        Reply::Granted { number, ttl: place.ttl }
    }

    fn remove_living(&mut self, claim: u16) -> bool {
        let living = self.lock.holder(claim).is_some_and(|h| h.until > self.now);
        if living {
            self.lock.holders.retain(|h| h.claim != claim);
            self.tidy();
        }
        living
    }

    fn tidy(&mut self) {
        if self.lock.holders.is_empty() {
            self.lock.several_until = None;
        }
    }

    fn upgrade(&mut self, place: Place, lease: Option<u64>) -> Reply {
        let number = self.next_number();
        let at =
            self.lock.holders.iter().position(|h| Some(h.claim) == place.hold).unwrap_or_default();
        let mut holder = self.lock.holders.remove(at);
        holder.until = lease.map_or(holder.until, |lease| self.now + lease);
        holder.confirmed |= lease.is_some();
        (holder.mode, holder.conversion, holder.number, holder.ttl) =
            ('x', Some(place.claim), number, place.ttl);
        self.lock.holders.push(holder);
        self.lock.several_until = None;
        Reply::Granted { number, ttl: place.ttl }
    }

    fn end_what_is_over(&mut self) {
        let now = self.now;
        let before = self.lock.holders.len();
        self.lock.holders.retain(|h| h.until > now);
        let over = before != self.lock.holders.len();
        self.lapsed |= over;
        self.lock.unheard &= !over;
        if self.lock.several_until.is_some() && self.lock.earliest <= now {
            self.lock.earliest = self.lock.holders.iter().map(|h| h.until).min().unwrap_or(0);
        }
        self.tidy();
    }

    fn is_mine(&self, place: &Place) -> bool {
        self.me.is_some_and(|me| me.claim == place.claim)
    }

    /// Until when a place may still answer, if it was asked and gave no sign of life since.
    fn owes(&self, standing: &Standing) -> Option<u64> {
        let asked = standing.asked.filter(|asked| *asked > standing.lives_until)?;
        Some(asked - self.units.lives() + self.units.window())
    }

    /// Tells those from here on when to look, until so many are told that are likely to live.
    fn tell_from(&mut self, from: usize, rest: u64, most: usize) {
        let mut reached = 0;
        for standing in &self.lock.line[from..] {
            let (claim, lives) = (standing.place.claim, standing.lives_until > self.now);
            if !lives || self.is_mine(&standing.place) || self.owes(standing).is_some() {
                continue;
            }
            self.told.push(Told::First { claim, rest });
            let heard = !self.lock.deaf.contains(&claim);
            reached += usize::from(
                heard && standing.lives_until + self.units.stale() > self.now + self.units.lives(),
            );
            if reached >= most {
                return;
            }
        }
    }

    fn ask_the_line(&mut self) {
        let asked = self.now + self.units.lives();
        for at in 0..self.lock.line.len() {
            let standing = &self.lock.line[at];
            let fresh = asked - self.units.fresh(standing.place.ttl);
            let lives = standing.lives_until > self.now && standing.lives_until < fresh;
            if lives
                && !self.is_mine(&standing.place)
                && standing.place.hold.is_none()
                && self.owes(standing).is_none()
            {
                self.told.push(Told::Alive { claim: standing.place.claim });
                self.lock.line[at].asked = Some(asked);
            }
        }
    }

    fn settle(&mut self) {
        self.end_what_is_over();
        (self.queue, self.pause) = (false, None);
        let (mut at, mut pushed, mut deaf, mut asked) = (0, false, false, false);
        while !self.lock.line.is_empty() || !self.lock.words.is_empty() {
            let Some(standing) = self.lock.line.get(at).cloned() else {
                if at == 0 {
                    let now = self.now;
                    self.lock.words.retain(|_, until| *until > now);
                }
                return;
            };
            let Standing { place, lives_until, .. } = standing;
            let alive = lives_until > self.now;
            let (can, never) = if alive { self.fits(&place) } else { (false, true) };
            let mine = self.is_mine(&place);
            let asks = |run: &Self| {
                if mine || place.hold.is_some() { None } else { run.owes(&run.lock.line[at]) }
            };
            let mut answers_by = asks(self);
            let fresh = lives_until >= self.now + self.units.lives() - self.units.fresh(place.ttl);
            if can
                && self.lapsed
                && !asked
                && answers_by.is_none()
                && (mine || place.hold.is_none() && !fresh)
            {
                asked = true;
                self.ask_the_line();
                answers_by = asks(self);
            }
            if self.slip == Some(Slip::WaitsForNoAnswer) && self.me.is_some() {
                answers_by = answers_by.map(|_| self.now);
            }
            if never {
                self.lock.line.remove(at);
            } else if answers_by.is_some_and(|by| by <= self.now) {
                if self.slip == Some(Slip::ForgetsTheSilent) {
                    self.lock.line.remove(at);
                } else {
                    at += 1;
                }
            } else if !can {
                self.queue = true;
                if pushed {
                    let rest = self.rest();
                    self.tell_from(at, rest, if deaf { usize::MAX } else { 1 });
                }
                return;
            } else if let Some(by) = answers_by {
                let pause = by - self.now;
                (self.queue, self.pause) = (true, Some(pause));
                if (pushed || !self.lapsed) && self.slip != Some(Slip::TellsNobodyBehind) {
                    self.tell_from(at, pause, usize::MAX);
                }
                return;
            } else {
                self.lock.line.remove(at);
                let mut lease =
                    if mine { place.ttl } else { (2 * self.units.second).min(place.ttl / 3) };
                let reply = if place.hold.is_some() {
                    let reply = self.upgrade(place, mine.then_some(lease));
                    lease = self.lock.holders.first().map_or(0, |h| h.until - self.now);
                    reply
                } else {
                    self.put(place, lease)
                };
                if mine {
                    self.granted = Some(reply);
                } else if let Reply::Granted { number, .. } = reply {
                    let silent = self.lock.deaf.contains(&place.claim);
                    (pushed, deaf) = (true, deaf || silent);
                    self.lock.unheard |= silent;
                    self.told.push(Told::Granted {
                        claim: place.claim,
                        number,
                        at: self.now,
                        lease,
                    });
                }
            }
        }
    }

    fn rest(&self) -> u64 {
        self.lock.holders.iter().map(|h| h.until.saturating_sub(self.now)).min().unwrap_or(0)
    }

    fn refuse(&mut self, claim: u16, until: u64) {
        if until > self.now && self.slip != Some(Slip::LeavesNoWord) {
            let now = self.now;
            self.lock.words.retain(|_, until| *until > now);
            self.keep_line(until, false);
            self.lock.words.insert(claim, until);
        }
    }

    /// The line's time to live. An empty one has none; a place that shows life sets it anew.
    fn keep_line(&mut self, until: u64, anew: bool) {
        let empty = self.lock.line.is_empty() && self.lock.words.is_empty();
        self.lock.line_until = if empty || anew { until } else { self.lock.line_until.max(until) };
    }

    fn live(&mut self, claim: u16) {
        let until = self.now + 15 * self.units.second;
        for standing in self.lock.line.iter_mut().filter(|s| s.place.claim == claim) {
            (standing.lives_until, standing.asked) = (until, None);
        }
        self.keep_line(self.now + 20 * self.units.second, true);
    }

    fn in_line(&self, score: u64) -> Reply {
        let (ahead, rest) =
            (self.lock.line.iter().filter(|s| s.score < score).count(), self.rest());
        match self.pause {
            Some(pause) => Reply::InLine { ahead, rest: pause, turn: Some(0) },
            None if self.lock.unheard
                && self.unconfirmed()
                && self.slip != Some(Slip::TrustsTheDeaf) =>
            {
                Reply::InLine { ahead, rest, turn: Some(0) }
            }
            None if ahead > 1 && self.moves() => Reply::InLine { ahead, rest, turn: None },
            None => Reply::InLine { ahead, rest, turn: Some(u64::from(ahead > 0)) },
        }
    }

    fn only(&self) -> Option<&Holder> {
        self.lock.holders.first().filter(|_| self.lock.several_until.is_none())
    }

    /// Whether the only holder has not confirmed its grant yet; out of several, one may not have.
    fn unconfirmed(&self) -> bool {
        let several = || {
            self.lock.several_until.is_some()
                && self.lock.earliest <= self.now + 2 * self.units.second
        };
        self.only().map_or_else(several, |one| !one.confirmed)
    }

    /// Whether the only holder was told of its grant a moment ago, or one of several may have been.
    fn moves(&self) -> bool {
        let Some(one) = self.only() else {
            return self.lock.several_until.is_none() || self.unconfirmed();
        };
        let (lease, left) = ((2 * self.units.second).min(one.ttl / 3), one.until - self.now);
        !one.confirmed && 2 * left > lease
    }

    /// What the claim has already, if anything; its lease begins anew.
    fn held(&mut self, claim: u16) -> Option<Reply> {
        let now = self.now;
        let holder = self.lock.holders.iter_mut().find(|h| h.claim == claim)?;
        if holder.until <= now {
            return Some(Reply::Gone);
        }
        (holder.until, holder.confirmed) = (now + holder.ttl, true);
        let (until, reply) =
            (holder.until, Reply::Granted { number: holder.number, ttl: holder.ttl });
        self.lock.outlive(until);
        Some(reply)
    }

    /// The limit that is stored counts. Who stands already is spared, unless there will never be
    /// enough.
    fn limit_differs(&mut self, place: &Place) -> Option<Reply> {
        if place.mode != 'p' {
            return None;
        }
        if self.lock.last == 0 {
            self.lock.last = place.limit;
        }
        if self.lock.last == place.limit {
            return None;
        }
        if self.lock.line.iter().any(|s| s.place == *place) {
            if u64::from(place.count) <= self.lock.last {
                return None;
            }
            self.lock.line.retain(|s| s.place != *place);
        }
        Some(Reply::OtherLimit(self.lock.last))
    }

    fn stand(&mut self, place: Place, how: How) -> Reply {
        self.me = Some(place);
        if self.lock.words.contains_key(&place.claim) {
            return Reply::Late;
        }
        // What is left of a delay is no part of this model.
        self.end_what_is_over();
        if let Some(reply) = self.held(place.claim) {
            return reply;
        }
        let differs = self.limit_differs(&place);
        self.settle();
        if let Some(differs) = differs {
            return differs;
        }
        if let Some(granted) = self.granted.take() {
            return granted;
        }
        if let Some(score) = self.lock.line.iter().find(|s| s.place == place).map(|s| s.score) {
            self.live(place.claim);
            return self.in_line(score);
        }
        if !self.queue && self.fits(&place).0 {
            return self.put(place, place.ttl);
        }
        if how == How::Try {
            return Reply::Busy;
        }
        let score = self.lock.line.last().map_or(0, |s| s.score) + 1;
        self.lock.line.push(Standing { score, place, lives_until: 0, asked: None });
        self.live(place.claim);
        self.in_line(score)
    }

    fn convert(&mut self, place: Place, how: How) -> Reply {
        self.me = Some(place);
        if self.lock.words.contains_key(&place.claim) {
            return Reply::Late;
        }
        let hold = place.hold.unwrap_or(place.claim);
        let Some(holder) = self.lock.holder(hold).filter(|h| h.until > self.now).cloned() else {
            return Reply::Gone;
        };
        if holder.conversion == Some(place.claim) && holder.mode == place.mode {
            return self.held(hold).unwrap_or(Reply::Gone);
        }
        // Behind a younger one, or behind its own withdrawal.
        if holder.conversion.is_some_and(|last| place.claim <= last)
            && self.slip != Some(Slip::OldConversionsCount)
        {
            return Reply::Late;
        }
        self.end_what_is_over();
        if holder.mode == 's' && place.mode != 's' {
            return Reply::NotUpgradable;
        }
        if place.mode == 'x' {
            if self.fits(&place).0 {
                self.lock.line.retain(|s| s.place != place);
                return self.upgrade(place, Some(place.ttl));
            }
            if how == How::Try {
                return Reply::Busy;
            }
            self.lock.line.retain(|s| s.place != place);
            self.lock.line.insert(0, Standing { score: 0, place, lives_until: 0, asked: None });
            self.live(place.claim);
            return self.in_line(0);
        }
        let (number, until) = (self.next_number(), self.now + place.ttl);
        if let Some(holder) = self.lock.holders.iter_mut().find(|h| h.claim == hold) {
            (holder.mode, holder.conversion, holder.number, holder.until) =
                (place.mode, Some(place.claim), number, until);
            holder.confirmed = true;
        }
        self.lock.outlive(until);
        self.settle();
        // The reply tells the hold's own lease.
        Reply::Granted { number, ttl: holder.ttl }
    }
}
