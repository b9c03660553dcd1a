//! One call of a script: it finds, decides and writes.

use super::{Holder, How, Lock, Place, Reply, Slip, Standing, Told, Units};

pub(super) struct Run<'a> {
    pub(super) lock: &'a mut Lock,
    pub(super) now: u64,
    pub(super) units: Units,
    pub(super) slip: Option<Slip>,
    pub(super) me: Option<Place>,
    pub(super) granted: Option<Reply>,
    pub(super) queue: bool,
    /// Nobody gave the lock back: it was free already, or a lease ran out.
    pub(super) lapsed: bool,
    /// For how long an answer is still waited for.
    pub(super) pause: Option<u64>,
    pub(super) told: Vec<Told>,
}

impl Run<'_> {
    pub(super) fn finish(&mut self) {
        self.lock.flag = self.slip != Some(Slip::SetsNoFlag)
            && (!self.lock.line.is_empty() || !self.lock.words.is_empty());
    }

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

    pub(super) fn put(&mut self, place: Place, lease: u64) -> Reply {
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

    pub(super) fn remove_living(&mut self, claim: u16) -> bool {
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

    pub(super) fn settle(&mut self) {
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

    pub(super) fn refuse(&mut self, claim: u16, until: u64) {
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

    pub(super) fn stand(&mut self, place: Place, how: How) -> Reply {
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

    pub(super) fn convert(&mut self, place: Place, how: How) -> Reply {
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
        let reply = self.converted(&holder, place, how);
        self.finish();
        reply
    }

    /// The conversion, once nothing is wrong with it.
    fn converted(&mut self, holder: &Holder, place: Place, how: How) -> Reply {
        let hold = holder.claim;
        self.end_what_is_over();
        if holder.mode == 's' && place.mode != 's' {
            self.settle();
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
