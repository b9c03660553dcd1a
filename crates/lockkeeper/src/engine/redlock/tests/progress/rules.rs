//! What a member's scripts do, in Rust: `take`, `keep`, `give` and `force` with the line behind
//! them. `compared` holds it against a real server.

mod lock;

use std::collections::BTreeMap;

use self::lock::precedes;
use crate::engine::redis::client::script::Which;

/// How long a place lives without a sign of life.
const PLACE_US: u64 = 15_000_000;
/// For how long it is somebody's turn.
const TURN_US: u64 = 250_000;
/// For how long a turn is remembered.
const TURN_KEPT_MS: u64 = 15_000;
/// How far the members' clocks may be apart, as a number.
const SKEW: f64 = 625_000.0;
/// A day, as a number.
const DAY: f64 = 5_400_000_000.0;
/// For how long the number of a name is kept.
const LAST_KEPT_MS: u64 = 604_800_000;
/// What stands in a record that is a hold's, in place of when it was asked for.
const HELD: &str = "0";
/// What stands among signs of life with the time since when others count.
pub(super) const ALL: &str = "-";

/// A rule that a member leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It gives what is free to whoever asks, whoever stands in line, and whosever turn it is.
    IgnoresLine,
    /// A claim keeps its place while it holds, and after that.
    HoldsInLine,
    /// Places stay whose claims give no sign of life.
    KeepsDead,
    /// A turn keeps out whoever waits for longer and lost its place.
    KeepsLostOut,
    /// Whose turn it is loses its place when one comes before it that lost its own.
    LosesTurn,
    /// One that let its turn pass stands in line again when one comes before it that lost its own.
    Revives,
    /// A hold that asks it again takes what another has there.
    CompletesOver,
    /// It carries out what comes too late.
    NeverLate,
    /// A number far ahead of the clock is kept for ever only where it is above those of all names.
    ForgetsAhead,
}

impl Flaw {
    pub(super) const ALL: [Self; 9] = [
        Self::IgnoresLine,
        Self::HoldsInLine,
        Self::KeepsDead,
        Self::KeepsLostOut,
        Self::LosesTurn,
        Self::Revives,
        Self::CompletesOver,
        Self::NeverLate,
        Self::ForgetsAhead,
    ];
}

/// Tells a channel something; how many hear it.
pub(super) type Publish<'a> = &'a mut dyn FnMut(&str, &str) -> u64;

#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) claim: String,
    first: String,
    round: f64,
    number: f64,
    since: String,
    pub(super) ttl: u64,
    who: String,
    pub(super) until: u64,
}

impl Record {
    pub(super) fn text(&self) -> String {
        let (round, number) = (exact(self.round), exact(self.number));
        let Self { claim, first, since, ttl, who, .. } = self;
        format!("1 {claim} {first} {round} {number} {since} {ttl} {who}")
    }
}

/// What a member has under one name.
#[derive(Clone, Debug, Default)]
pub(super) struct Lock {
    pub(super) record: Option<Record>,
    last: Option<f64>,
    last_until: u64,
    /// In order: when each was first asked for, and its claim.
    pub(super) line: Vec<(f64, String)>,
    line_until: u64,
    /// When each gave its last sign of life, and when all were to give one anew.
    pub(super) signs: BTreeMap<String, i64>,
    signs_until: u64,
    pub(super) turn: Option<Turn>,
}

/// Whose turn it is, or was.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) claim: String,
    first: String,
    ends_us: u64,
    until: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) run: String,
    pub(super) locks: BTreeMap<String, Lock>,
    top: f64,
    ahead: f64,
    longest: f64,
    pub(super) flaw: Option<Flaw>,
}

fn exact(number: f64) -> String {
    format!("{number:.0}")
}

/// As it stands in a key.
fn whole(number: f64) -> f64 {
    number.round_ties_even()
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_default()
}

fn tick(now_us: u64) -> f64 {
    (now_us as f64 / 1_000_000.0 - 1_767_225_600.0) * 62_500.0
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Rules {
    pub(super) fn new(run: String, flaw: Option<Flaw>) -> Self {
        Self { run, flaw, ..Self::default() }
    }

    /// Runs a script; `None`: it is none of these.
    pub(super) fn call(
        &mut self,
        which: Which,
        keys: &[String],
        arguments: &[String],
        now_us: u64,
        publish: Publish<'_>,
    ) -> Option<Vec<String>> {
        let key = keys.first()?.clone();
        self.locks.entry(key.clone()).or_default().age(now_us / 1000);
        Some(match which {
            Which::QuorumTake => self.take(&key, arguments, now_us, publish),
            Which::QuorumKeep => self.keep(&key, arguments, now_us),
            Which::QuorumGive => self.give(&key, arguments, now_us, publish),
            Which::QuorumForce => self.force(&key, arguments, now_us, publish),
            Which::QuorumTell => {
                let (top, longest) = (exact(self.top), exact(self.longest));
                words(&[&exact(now_us as f64), &self.run, "1", &top, &longest, ""])
            }
            _ => return None,
        })
    }

    /// What it has under a name now.
    pub(super) fn at(&mut self, key: &str, now_us: u64) -> &mut Lock {
        let lock = self.lock(key);
        lock.age(now_us / 1000);
        lock
    }

    fn lock(&mut self, key: &str) -> &mut Lock {
        self.locks.entry(key.to_owned()).or_default()
    }

    /// The greatest number that it may have kept, and whether it was admitted in this run.
    fn known(&mut self, key: &str, run: &str, now_us: u64) -> (f64, &'static str) {
        let (top, ahead) = (self.top, self.ahead);
        let unknown = || {
            let behind = ahead.max(tick(now_us) - 6.0 * DAY);
            if top > tick(now_us) + SKEW { behind.max(top) } else { behind }
        };
        let last = self.lock(key).last.unwrap_or_else(unknown);
        (last.max(0.0), if self.run == run { "1" } else { "0" })
    }

    fn keep_number(&mut self, key: &str, number: f64, now_us: u64) {
        let lock = self.lock(key);
        lock.last = Some(whole(number));
        lock.last_until = now_us / 1000 + LAST_KEPT_MS;
        let is_top = number > self.top;
        if is_top {
            self.top = whole(number.max(tick(now_us) + 62_500.0));
        }
        if is_top || self.flaw != Some(Flaw::ForgetsAhead) {
            self.remember(number, now_us);
        }
    }

    /// Keeps what the number of a name is not known from once it is kept no more.
    fn remember(&mut self, number: f64, now_us: u64) {
        if number > self.ahead && number > tick(now_us) + DAY {
            self.ahead = whole(number);
        }
    }

    /// What it knows of all names: a number that is not below any, and the greatest that was more
    /// than a day ahead.
    pub(super) fn kept(&self) -> [String; 2] {
        [self.top, self.ahead].map(exact)
    }

    /// The number of this name is kept no more.
    pub(super) fn forget(&mut self, key: &str) {
        self.lock(key).last = None;
    }

    fn take(
        &mut self,
        key: &str,
        arguments: &[String],
        now_us: u64,
        publish: Publish<'_>,
    ) -> Vec<String> {
        let [claim, round, ttl, not_after, who, proposed, first, waits, run, longest, channel] =
            arguments
        else {
            return Vec::new();
        };
        let (now_ms, stamp) = (now_us / 1000, exact(now_us as f64));
        if now_us as f64 > number(not_after) && self.flaw != Some(Flaw::NeverLate) {
            return words(&["T", &stamp]);
        }
        self.longest = self.longest.max(number(longest));
        let (last, counts) = self.known(key, run, now_us);
        let proposed = number(proposed);
        let mut given = match proposed > last.max(tick(now_us)) + 2.0 * SKEW {
            true => last + 1.0,
            false => proposed.max(last + 1.0),
        };
        let (flaw, holds, first_of) = (self.flaw, first == HELD, first.as_str());
        let lock = self.lock(key);
        let (mut round, mut since) = (number(round), stamp.clone());
        let refused = |lock: &mut Lock, mut answer: Vec<String>| {
            if waits == "1" {
                answer.push(lock.stand(claim, first, now_us).to_string());
            } else if holds {
                lock.waits_no_more(claim);
            }
            answer
        };
        let over = holds && flaw == Some(Flaw::CompletesOver);
        match lock.record.clone() {
            Some(held) if held.claim != *claim && !over => {
                let rest = lock.rest(now_ms).to_string();
                let answer = words(&["B", &stamp, &exact(last), &rest, &held.text(), ""]);
                return refused(lock, answer);
            }
            Some(held) if held.claim == *claim => {
                if held.round >= round {
                    (round, given) = (held.round, held.number);
                }
                since = held.since;
            }
            _ if holds => lock.waits_no_more(claim),
            _ => {
                let mut turn = lock.turn_of(now_us);
                let its = turn.as_ref().is_some_and(|(one, ..)| one == claim);
                let lasts = turn.as_ref().is_some_and(|(_, _, left)| *left > 0);
                let nobody = lock.turn.is_none() && lock.line.is_empty();
                let comes = !its && !lasts && !nobody && lock.rank(claim).is_none();
                let lives = flaw == Some(Flaw::KeepsDead) && !lock.line.is_empty();
                let first_is = if comes { lock.first_that_lives(now_us) } else { None };
                let first_is = first_is.and_then(|at| lock.line.get(at).cloned());
                let lost = waits == "1" && round > 1.0 && lock.rank(claim).is_none();
                let lost = lost && !matches!(flaw, Some(Flaw::IgnoresLine | Flaw::KeepsLostOut));
                let longer =
                    |first: &str, one: &str| lost && precedes((first_of, claim), (first, one));
                let anew = comes
                    && (lives || first_is.is_some_and(|(since, one)| !longer(&exact(since), &one)));
                if anew && flaw != Some(Flaw::IgnoresLine) {
                    let (some, _) = lock.hand_on(channel, "-", now_us, (publish, flaw));
                    if some {
                        turn = lock.turn_of(now_us);
                    }
                }
                if let Some((one, since, left)) = &turn
                    && !its
                    && *left > 0
                    && !longer(since, one)
                    && flaw != Some(Flaw::IgnoresLine)
                {
                    let left = left.to_string();
                    return refused(lock, words(&["R", &stamp, &exact(last), &left, one, since]));
                }
                let turn = turn.as_ref();
                let turn = turn.map(|(one, since, left)| ((since.as_str(), one.as_str()), *left));
                lock.came((lost.then_some(first_of), claim), turn, now_us, flaw);
            }
        }
        let ttl: u64 = ttl.parse().unwrap_or_default();
        lock.record = Some(Record {
            claim: claim.clone(),
            first: first.clone(),
            round,
            number: whole(given),
            since,
            ttl,
            who: who.clone(),
            until: now_ms + ttl,
        });
        if given > last {
            self.keep_number(key, given, now_us);
        }
        words(&["Y", &stamp, &exact(given), counts])
    }

    fn keep(&mut self, key: &str, arguments: &[String], now_us: u64) -> Vec<String> {
        let [claim, ttl, proposed, holds, run] = arguments else { return Vec::new() };
        let (now_ms, stamp) = (now_us / 1000, exact(now_us as f64));
        let (last, counts) = self.known(key, run, now_us);
        let lock = self.lock(key);
        let rest = lock.rest(now_ms).to_string();
        let Some(held) = &mut lock.record else { return words(&["N", &stamp, &exact(last)]) };
        if held.claim != *claim {
            return words(&["B", &stamp, &exact(last), &rest, &held.text()]);
        }
        let proposed = number(proposed);
        held.ttl = ttl.parse().unwrap_or_default();
        held.until = now_ms + held.ttl;
        if holds == "1" {
            held.first = HELD.to_owned();
        }
        if proposed > last {
            held.number = proposed;
            self.keep_number(key, proposed, now_us);
            return words(&["Y", &stamp, &exact(proposed), counts]);
        }
        let kept = if held.number == proposed { proposed } else { last + 1.0 };
        if let Some(lock) = self.locks.get_mut(key).filter(|lock| lock.last.is_some()) {
            lock.last_until = now_ms + LAST_KEPT_MS;
        }
        self.remember(last, now_us);
        words(&["Y", &stamp, &exact(kept), counts])
    }

    fn give(
        &mut self,
        key: &str,
        arguments: &[String],
        now_us: u64,
        publish: Publish<'_>,
    ) -> Vec<String> {
        let [claim, round, first, rest @ ..] = arguments else { return Vec::new() };
        let flaw = self.flaw;
        let lock = self.lock(key);
        let its_turn = lock.turn_of(now_us).is_some_and(|(one, ..)| one == *claim);
        let ours = lock
            .record
            .take_if(|held| held.claim == *claim && held.round <= number(round))
            .is_some();
        if first.is_empty() {
            if flaw != Some(Flaw::HoldsInLine) {
                lock.leave(claim);
            }
        } else if ours || its_turn {
            lock.stand(claim, first, now_us);
        }
        let mut waits = false;
        let frees = ours || its_turn && lock.record.is_none();
        match rest {
            [channel, to, first] if frees => {
                lock.cede(channel, (to, first), now_us, publish);
            }
            [channel] if frees => {
                (_, waits) = lock.hand_on(channel, claim, now_us, (publish, flaw));
            }
            _ if its_turn => lock.turn = None,
            _ => {}
        }
        words(&[if ours { "D" } else { "N" }, &u8::from(waits).to_string()])
    }

    fn force(
        &mut self,
        key: &str,
        arguments: &[String],
        now_us: u64,
        publish: Publish<'_>,
    ) -> Vec<String> {
        let [channel, claims @ ..] = arguments else { return Vec::new() };
        let flaw = self.flaw;
        let lock = self.lock(key);
        let meant = |held: &mut Record| claims.is_empty() || claims.contains(&held.claim);
        let gone = lock.record.take_if(meant).map(|held| held.claim);
        claims.iter().chain(&gone).for_each(|claim| lock.leave(claim));
        let turn = lock.turn_of(now_us).map(|(claim, ..)| claim);
        let turn = turn.filter(|claim| claims.contains(claim));
        match gone.clone().or(turn.clone().filter(|_| lock.record.is_none())) {
            Some(giver) => drop(lock.hand_on(channel, &giver, now_us, (publish, flaw))),
            None if turn.is_some() => lock.turn = None,
            None => {}
        }
        words(&["D", if gone.is_some() { "1" } else { "0" }])
    }
}
