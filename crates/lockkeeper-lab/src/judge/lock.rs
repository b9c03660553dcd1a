//! One lock: the state of every rule about it, moved forward in time.

use std::collections::VecDeque;

use super::book::Book;
use super::busy::{Presence, WrongBusy};
use super::claims::{At, Claim, ClaimNo, Claims};
use super::class::Class;
use super::line::{Line, Overtaker};
use super::ns;
use super::occupancy::Occupancy;
use super::recovery::{Bench, Faults, Owed};
use super::report::Moment;
use super::resource::Register;
use super::tokens::{BadToken, Mark, Tokens, is_missing};
use crate::history::{HoldMode, LockId};

/// What the rules work on.
pub(super) struct World<'a> {
    pub claims: &'a mut Claims,
    pub book: &'a mut Book,
    pub faults: &'a Faults,
}

/// A semaphore's limit over time.
#[derive(Default)]
pub(super) struct Limit {
    /// The largest that it may have been from each moment on.
    steps: Vec<(u64, u64)>,
    /// What it may be now, with the moment at which that was answered.
    known: Vec<(u64, u64)>,
    /// To what it is being changed, and since when.
    changes: Vec<(u64, u64)>,
}

impl Limit {
    fn possible(&self) -> impl Iterator<Item = u64> {
        self.known.iter().chain(&self.changes).map(|(limit, _)| *limit)
    }

    /// The smallest that it may be now; 0 when it is not known.
    pub fn least(&self) -> u64 {
        if self.known.is_empty() { 0 } else { self.possible().min().unwrap_or(0) }
    }

    /// The largest limit at any moment from `from` on; 0 when it is not known.
    pub fn largest_since(&self, from: u64) -> u64 {
        let before = self.steps.partition_point(|step| step.0 <= from);
        self.steps[before.saturating_sub(1)..].iter().map(|step| step.1).max().unwrap_or(0)
    }

    /// A grant shows the limit that the engine agreed to, until it is changed: a claim may be older
    /// than the change.
    pub fn agreed(&mut self, limit: u64) {
        match self.steps.as_mut_slice() {
            [] => self.steps.push((0, limit)),
            [only] => only.1 = only.1.max(limit),
            _ => return,
        }
        match self.known.first_mut() {
            Some(known) => known.0 = known.0.max(limit),
            None => self.known.push((limit, 0)),
        }
    }

    /// It is about to become `to`.
    pub fn changing(&mut self, to: u64, now: u64) {
        self.changes.push((to, now));
        self.steps.push((now, self.possible().max().unwrap_or(to)));
    }

    /// It became `to`, or another that was asked for at the same time.
    pub fn changed(&mut self, to: u64, now: u64) {
        let found = self.changes.iter().position(|change| change.0 == to);
        let called = found.map_or(now, |index| self.changes.remove(index).1);
        self.known.retain(|(_, answered)| *answered > called);
        self.known.push((to, now));
        self.steps.push((now, self.possible().max().unwrap_or(to)));
    }
}

/// When a hold that should not be there beside another, or after it, was granted; the engine
/// confirmed the other then for the last time.
fn both(claim: &Claim, other: u64) -> Moment {
    Moment::at(claim.granted.time).since(claim.confirmed).since(other)
}

/// One lock.
#[derive(Default)]
pub(super) struct Lock {
    pub id: LockId,
    pub occupancy: Occupancy,
    pub tokens: Tokens,
    pub presence: Presence,
    pub line: Line,
    /// Those that may have overtaken others, until that is certain.
    pub overtakers: VecDeque<Overtaker>,
    pub limit: Limit,
    pub bench: Bench,
    pub owed: Option<Owed>,
    /// Without and with token check.
    pub registers: [Register; 2],
    /// From when on all who may hold it or stand in its line are known: nobody holds beside an
    /// exclusive grant.
    known_from: Option<u64>,
}

impl Lock {
    pub fn new(id: LockId) -> Self {
        Self { id, ..Self::default() }
    }

    /// Time goes on to `to`: holds end at their deadlines, and those that began before are judged.
    pub fn advance(&mut self, to: u64, world: &mut World) {
        loop {
            let due = self.occupancy.due(to);
            let horizon = due.map_or(to, |(at, _)| at);
            if self.occupancy.fresh_at < horizon && !self.occupancy.fresh.is_empty() {
                self.settle(world);
            }
            let Some((at, no)) = due else { return };
            self.stop(no, at, world);
        }
    }

    /// A hold ends, or is over at its deadline.
    pub fn stop(&mut self, no: ClaimNo, at: u64, world: &mut World) {
        if !world.claims[no].active {
            return;
        }
        self.occupancy.leave(no, world.claims);
        // A re-entrant hold ends with its last guard.
        let token = world.claims[no].token;
        let goes_on = self
            .occupancy
            .fellow(no, world.claims)
            .is_some_and(|other| world.claims[other].token == token);
        if !goes_on {
            self.tokens.ended(&world.claims[no], at);
        }
    }

    /// Judges the holds that began at `fresh_at`, now that time has passed it.
    fn settle(&mut self, world: &mut World) {
        for no in std::mem::take(&mut self.occupancy.fresh) {
            if world.claims[no].active {
                self.judge_exclusion(no, world);
                self.judge_token(no, world);
            }
        }
    }

    fn judge_exclusion(&self, no: ClaimNo, world: &mut World) {
        let claim = &world.claims[no];
        if claim.mode == HoldMode::Permits {
            self.judge_permits(no, world);
            return;
        }
        let Some(rival) = self.occupancy.rival(no, u64::MAX, world.claims) else { return };
        self.judge_token_beside(no, world);
        let (claim, rival) = (&world.claims[no], &world.claims[rival]);
        let class =
            if claim.mode == rival.mode { Class::Overlap } else { Class::ReadersWithWriter };
        let records = [(claim.client, claim.granted), (rival.client, rival.granted)];
        let processes = [claim, rival].map(|claim| world.book.process(claim.client));
        let when = Moment { pair: Some(processes), ..both(claim, rival.confirmed) };
        world.book.convict(class, self.id, when, &records, |book| {
            let (lock, at) = (book.lock(self.id), book.time(claim.granted.time));
            format!(
                "{} got {lock} {} at {at} while {}",
                book.client(claim.client),
                claim.mode.as_str(),
                book.hold(rival)
            )
        });
    }

    /// Two that hold at one moment where one may are told apart by their tokens, and by nothing
    /// else.
    fn judge_token_beside(&self, no: ClaimNo, world: &mut World) {
        let Some(twin) = self.occupancy.twin(no, world.claims) else { return };
        let (claim, twin) = (&world.claims[no], &world.claims[twin]);
        let records = [(claim.client, claim.granted), (twin.client, twin.granted)];
        world.book.convict(
            Class::TokenRepeated,
            self.id,
            both(claim, twin.confirmed),
            &records,
            |book| {
                let (name, lock, at) =
                    (book.client(claim.client), book.lock(self.id), book.time(claim.granted.time));
                format!(
                    "{name} got {lock} with token {} at {at}, the same that another has while {}",
                    claim.token,
                    book.hold(twin)
                )
            },
        );
    }

    fn judge_permits(&self, no: ClaimNo, world: &mut World) {
        let claim = &world.claims[no];
        let limit = self.limit.largest_since(claim.asked.time);
        let held = self.occupancy.permits();
        if limit == 0 || held <= limit {
            return;
        }
        let others = self.occupancy.other_permits(no, 4);
        let mut records = vec![(claim.client, claim.granted)];
        records.extend(
            others.iter().map(|other| (world.claims[*other].client, world.claims[*other].granted)),
        );
        let oldest =
            self.occupancy.confirmed_beyond(limit, world.claims).unwrap_or(claim.confirmed);
        world.book.convict(
            Class::PermitsExceeded,
            self.id,
            both(claim, oldest),
            &records,
            |book| {
                let who: Vec<_> =
                    others.iter().map(|other| book.hold(&world.claims[*other])).collect();
                let (lock, at) = (book.lock(self.id), book.time(claim.granted.time));
                let (name, weight, who) = (book.client(claim.client), claim.weight, who.join(", "));
                format!(
                    "{name} got {weight} of {lock} at {at}, which made {held} of {limit} permits, \
                     while {who}"
                )
            },
        );
    }

    /// Judges whether a hold that begins has a token, where each has one.
    #[inline]
    pub fn judge_token_given(&self, no: ClaimNo, world: &mut World) {
        if world.book.options.fenced && is_missing(&world.claims[no]) {
            self.convict_token_missing(no, world);
        }
    }

    /// Apart, so that the many holds that have one do not carry it along.
    #[cold]
    fn convict_token_missing(&self, no: ClaimNo, world: &mut World) {
        let claim = &world.claims[no];
        world.book.convict(
            Class::TokenMissing,
            self.id,
            claim.granted.time,
            &[(claim.client, claim.granted)],
            |book| {
                let (name, lock, at) =
                    (book.client(claim.client), book.lock(self.id), book.time(claim.granted.time));
                format!("{name} got {lock} {} at {at} without a fencing token", claim.mode.as_str())
            },
        );
    }

    fn judge_token(&self, no: ClaimNo, world: &mut World) {
        let claim = &world.claims[no];
        let fellow = self.occupancy.fellow(no, world.claims).map(|fellow| &world.claims[fellow]);
        if let Some(fellow) = fellow.filter(|fellow| fellow.token != 0 && claim.token != 0) {
            if fellow.token != claim.token {
                let records = [(claim.client, claim.granted), (fellow.client, fellow.granted)];
                world.book.convict(
                    Class::ReentryToken,
                    self.id,
                    claim.granted.time,
                    &records,
                    |book| {
                        let (lock, at) = (book.lock(self.id), book.time(claim.granted.time));
                        let (name, mine, first) =
                            (book.client(claim.client), claim.token, fellow.token);
                        format!(
                            "{name} entered {lock} again at {at} and got token {mine}, but \
                             the hold it entered has token {first}"
                        )
                    },
                );
            }
            return;
        }
        let (class, mark) = match self.tokens.judge(claim) {
            None => return,
            Some(BadToken::Smaller(mark)) => (Class::TokenOrder, mark),
            Some(BadToken::Repeated(mark)) => (Class::TokenRepeated, mark),
            Some(BadToken::Lost(mark)) => (Class::ReentryAfterLoss, mark),
        };
        let records = [(claim.client, claim.granted), (mark.client, mark.granted)];
        world.book.convict(class, self.id, both(claim, mark.confirmed), &records, |book| {
            self.token_sentence(class, claim, &mark, book)
        });
    }

    fn token_sentence(&self, class: Class, claim: &Claim, mark: &Mark, book: &Book) -> String {
        let (name, lock, at) =
            (book.client(claim.client), book.lock(self.id), book.time(claim.granted.time));
        let (other, ended) = (book.client(mark.client), book.time(mark.ended));
        match class {
            Class::ReentryAfterLoss => {
                format!(
                    "{name} entered {lock} again at {at} although that hold, token {}, was lost at \
                     {ended}",
                    mark.token
                )
            }
            Class::TokenRepeated => {
                format!(
                    "{name} got {lock} with token {} at {at}, the same that {other} had in a hold \
                     that ended at {ended}",
                    claim.token
                )
            }
            _ => format!(
                "{name} got {lock} with token {} at {at}, after {other} had had the greater token \
                 {} until {ended}",
                claim.token, mark.token
            ),
        }
    }

    /// An exclusive grant was answered: whoever holds it from now on was recorded from its call on,
    /// if all recordings had begun; and what waited before they did is gone after `linger`.
    pub fn granted_alone(&mut self, now: u64, world: &World, linger: u64) {
        let Some(began) = world.book.began.filter(|began| *began <= now) else { return };
        self.known_from.get_or_insert(now.max(began.saturating_add(linger)));
    }

    /// Convicts busies, where everybody who may have been there was recorded.
    pub fn wrong_busy(&self, all: Vec<WrongBusy>, world: &mut World) {
        for wrong in all {
            let claim = &world.claims[wrong.claim];
            let known = world.book.began.is_none()
                || self.known_from.is_some_and(|from| from <= claim.asked.time);
            if !known || !world.book.sees(wrong.answered.time) {
                continue;
            }
            let records = [(claim.client, wrong.answered), (claim.client, claim.asked)];
            world.book.convict(Class::WrongBusy, self.id, wrong.answered.time, &records, |book| {
                let (name, lock) = (book.client(claim.client), book.lock(self.id));
                let (from, to) = (book.time(claim.asked.time), book.time(wrong.answered.time));
                format!(
                    "{name} tried {lock} and was refused, but from {from} to {to} it was free and \
                     had no waiter"
                )
            });
        }
    }

    /// An acquire that waited ends without a guard: if the lock was owed all the time, that was too
    /// long.
    pub fn waited_in_vain(&mut self, no: ClaimNo, at: At, world: &mut World) {
        let Some(owed) = self.owed.filter(|_| world.faults.quiet()) else { return };
        let base = world.faults.base(owed, world.claims[no].asked.time);
        if self.too_slow(base, at.time, world) {
            self.owed = None;
            self.convict_recovery(no, at, owed, base, "and gave up", world);
        }
    }

    /// Whether nobody has it, but for so many that are gone. Where clocks differ nobody may have it
    /// either.
    pub fn is_free(&self, gone: u32, world: &World) -> bool {
        self.occupancy.is_empty() && (world.book.apart_ns == 0 || self.presence.holders() <= gone)
    }

    /// A grant pays what the lock owed.
    pub fn recovered(&mut self, no: ClaimNo, at: At, world: &mut World) {
        let Some(owed) = self.owed.take().filter(|_| world.faults.quiet()) else { return };
        let first = self
            .bench
            .first_asked(world.claims)
            .unwrap_or(u64::MAX)
            .min(world.claims[no].asked.time);
        let base = world.faults.base(owed, first);
        world
            .book
            .report
            .recovery
            .push(at.time.saturating_sub(base).saturating_sub(world.book.apart_ns));
        if self.too_slow(base, at.time, world) {
            self.convict_recovery(no, at, owed, base, "until it was granted", world);
        }
    }

    fn too_slow(&self, base: u64, now: u64, world: &World) -> bool {
        let Some(promised) =
            world.book.report.recovery_promised_ns.filter(|_| world.book.sees(now))
        else {
            return false;
        };
        let options = &world.book.options;
        let bound = promised.saturating_add(ns(options.recovery_slack));
        let took = now.saturating_sub(base).saturating_sub(world.book.apart_ns.saturating_mul(2));
        took > bound && took > bound.saturating_add(options.late.ns(base, now))
    }

    fn convict_recovery(
        &self,
        no: ClaimNo,
        at: At,
        owed: Owed,
        base: u64,
        end: &str,
        world: &mut World,
    ) {
        let claim = &world.claims[no];
        let mut records = vec![(claim.client, at), (claim.client, claim.asked)];
        records.extend(owed.dead);
        world.book.convict(
            Class::SlowRecovery,
            self.id,
            Moment::at(at.time).since(base),
            &records,
            |book| {
                let (name, lock, base_at) =
                    (book.client(claim.client), book.lock(self.id), book.time(base));
                let took = at.time.saturating_sub(base).saturating_sub(book.apart_ns) / 1_000_000;
                let promised = book.report.recovery_promised_ns.unwrap_or(0) / 1_000_000;
                let cause = match owed.dead {
                    Some((dead, _)) => format!("after {} died holding it", book.client(dead)),
                    None => "after the faults ended".to_owned(),
                };
                format!(
                    "{name} waited for {lock} {took} ms from {base_at} on {cause} {end}; \
                     the promise is {promised} ms"
                )
            },
        );
    }
}
