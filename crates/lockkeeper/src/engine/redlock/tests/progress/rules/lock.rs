//! What a member has under one name, and the line of it.

use super::*;

impl Lock {
    /// When something of it ends, in microseconds.
    pub(in super::super) fn ends(&self) -> impl Iterator<Item = u64> {
        let record = self.record.iter().map(|record| record.until * 1000);
        let turn = self.turn.iter().flat_map(|turn| [turn.ends_us, turn.until * 1000]);
        let signs = self.signs.values().map(|at| at.unsigned_abs() + PLACE_US);
        let lines = [self.line_until, self.signs_until, self.last_until].map(|at| at * 1000);
        record.chain(turn).chain(signs).chain(lines)
    }

    /// Forgets what has ended.
    pub(super) fn age(&mut self, now_ms: u64) {
        self.record.take_if(|record| now_ms > record.until);
        self.turn.take_if(|turn| now_ms > turn.until);
        self.last.take_if(|_| now_ms > self.last_until);
        if now_ms > self.line_until {
            self.line.clear();
        }
        if now_ms > self.signs_until {
            self.signs.clear();
        }
    }

    pub(super) fn leave(&mut self, claim: &str) {
        if self.rank(claim).is_none() {
            return;
        }
        self.drop(claim);
        if self.line.is_empty() {
            self.signs.clear();
        }
    }

    pub(super) fn drop(&mut self, claim: &str) {
        self.line.retain(|(_, one)| one != claim);
        self.signs.remove(claim);
    }

    /// Since when a sign is one.
    pub(super) fn since_all(&mut self, now_us: u64) -> i64 {
        self.signs.retain(|claim, at| claim != ALL || at.unsigned_abs() <= now_us);
        let since = self.signs.get(ALL).map_or(0, |at| at.unsigned_abs());
        since.max(now_us.saturating_sub(PLACE_US)).cast_signed()
    }

    pub(super) fn rank(&self, claim: &str) -> Option<usize> {
        self.line.iter().position(|(_, one)| one == claim)
    }

    /// Gives how many are before it.
    pub(super) fn stand(&mut self, claim: &str, first: &str, now_us: u64) -> usize {
        self.line.retain(|(_, one)| one != claim);
        self.line.push((number(first), claim.to_owned()));
        self.line
            .sort_by(|(since, one), (first, other)| since.total_cmp(first).then(one.cmp(other)));
        self.signs.insert(claim.to_owned(), i64::try_from(now_us).unwrap_or(i64::MAX));
        self.line_until = (now_us + PLACE_US) / 1000;
        self.signs_until = self.line_until;
        self.rank(claim).unwrap_or_default()
    }

    /// How long another's record lasts still.
    pub(super) fn rest(&mut self, now_ms: u64) -> u64 {
        let Some(record) = &mut self.record else { return 0 };
        record.until = record.until.min(now_ms + record.ttl);
        record.until - now_ms
    }

    /// Whose turn it is, or was, and for how many milliseconds still.
    pub(super) fn turn_of(&mut self, now_us: u64) -> Option<(String, String, u64)> {
        let turn = self.turn.as_mut()?;
        if turn.ends_us > now_us + TURN_US {
            turn.ends_us = now_us + TURN_US;
            turn.until = now_us / 1000 + TURN_KEPT_MS;
        }
        let left = turn.ends_us.saturating_sub(now_us).div_ceil(1000);
        Some((turn.claim.clone(), turn.first.clone(), left))
    }

    pub(super) fn tell(
        &mut self,
        channel: &str,
        giver: &str,
        next: Option<(&str, &str)>,
        now_us: u64,
        publish: Publish<'_>,
    ) -> u64 {
        let heard = match next {
            Some((claim, _)) => publish(channel, &format!("{giver} {claim}")),
            None => publish(channel, giver),
        };
        self.turn = next.filter(|_| heard > 0).map(|(claim, first)| Turn {
            claim: claim.to_owned(),
            first: first.to_owned(),
            ends_us: now_us + TURN_US,
            until: now_us / 1000 + TURN_KEPT_MS,
        });
        heard
    }

    /// Where the first stands that gave a sign of life since it was to.
    pub(super) fn first_that_lives(&mut self, now_us: u64) -> Option<usize> {
        let since = self.since_all(now_us);
        let is_sign = |at: &i64| *at > since && at.unsigned_abs() <= now_us;
        let gave = |claim: &str| self.signs.get(claim).is_some_and(is_sign);
        self.line.iter().position(|(_, claim)| gave(claim))
    }

    /// Takes the first from the line that gave a sign of life.
    pub(super) fn next(&mut self, now_us: u64, flaw: Option<Flaw>) -> Option<(f64, String)> {
        let keeps = flaw == Some(Flaw::KeepsDead);
        let is_old = |at: &i64| {
            let at = at.unsigned_abs();
            at + PLACE_US <= now_us || at > now_us
        };
        let old = |(claim, at): (&String, &i64)| is_old(at).then(|| claim.clone());
        let old: Vec<String> = self.signs.iter().filter_map(old).collect();
        old.iter().filter(|_| !keeps).for_each(|claim| self.drop(claim));
        let at = if keeps { 0 } else { self.first_that_lives(now_us)? };
        let (first, claim) = self.line.get(at).cloned()?;
        if flaw != Some(Flaw::HoldsInLine) {
            self.leave(&claim);
        }
        Some((first, claim))
    }

    /// It was given up for one that contends, whose turn it is where it stands in line.
    pub(super) fn cede(
        &mut self,
        channel: &str,
        to: (&str, &str),
        now_us: u64,
        publish: Publish<'_>,
    ) {
        let stands = self.rank(to.0).is_some();
        let heard = self.tell(channel, "-", Some(to), now_us, publish);
        if !stands {
            self.turn = None;
        } else if heard > 0 {
            self.leave(to.0);
        }
    }

    /// Gives whether it is somebody's turn, and whether anybody waits.
    pub(super) fn hand_on(
        &mut self,
        channel: &str,
        giver: &str,
        now_us: u64,
        (publish, flaw): (Publish<'_>, Option<Flaw>),
    ) -> (bool, bool) {
        let next = self.next(now_us, flaw).map(|(first, claim)| (claim, exact(first)));
        let words = next.as_ref().map(|(claim, first)| (claim.as_str(), first.as_str()));
        let heard = self.tell(channel, giver, words, now_us, publish);
        if heard == 0 {
            self.line.clear();
            self.signs.clear();
            return (false, false);
        }
        (next.is_some(), next.is_some() || !self.line.is_empty())
    }

    /// It holds, or is not to wait any more.
    pub(super) fn waits_no_more(&mut self, claim: &str) {
        self.leave(claim);
        self.turn.take_if(|turn| turn.claim == claim);
    }

    /// It has the name, and waits no more.
    pub(super) fn came(
        &mut self,
        (lost, claim): (Option<&str>, &str),
        turn: Option<(Waits<'_>, u64)>,
        now_us: u64,
        flaw: Option<Flaw>,
    ) {
        let comes_before = |turn| lost.is_some_and(|since| precedes((since, claim), turn));
        let goes_on = turn
            .filter(|((_, one), left)| *one != claim && (*left > 0 || flaw == Some(Flaw::Revives)));
        let goes_on = goes_on.map(|(turn, _)| turn).filter(|turn| comes_before(*turn));
        let passes = match turn {
            Some(((_, one), _)) => one != claim && goes_on.is_none(),
            None => {
                let is_first = self.rank(claim).unwrap_or(0) == 0;
                let first = if is_first { None } else { self.first_that_lives(now_us) };
                first.zip(self.rank(claim)).is_some_and(|(first, rank)| first < rank)
            }
        };
        if flaw != Some(Flaw::HoldsInLine) {
            self.leave(claim);
        }
        self.turn = None;
        if let Some((first, one)) = goes_on.filter(|_| flaw != Some(Flaw::LosesTurn)) {
            self.stand(one, first, now_us);
        }
        if passes && flaw != Some(Flaw::KeepsDead) && !self.line.is_empty() {
            self.signs.insert(ALL.to_owned(), i64::try_from(now_us).unwrap_or(i64::MAX));
            self.signs_until = (now_us + PLACE_US) / 1000;
        }
    }
}

/// Since when a claim waits, and which.
pub(super) type Waits<'a> = (&'a str, &'a str);

/// Whether one comes before another.
pub(super) fn precedes((first, claim): Waits<'_>, (than, other): Waits<'_>) -> bool {
    let (first, than) = (number(first), number(than));
    first < than || first == than && claim < other
}
