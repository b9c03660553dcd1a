//! Model 2: the scripts of Redis' native layout, under the lines and lease tables of several
//! processes.
//!
//! The processes are those of model 1; the server is what the scripts mean, which a test compares
//! with a real server. Redis does nothing by itself: what is over stays until somebody calls, so
//! whoever is first in line has to ask.

mod question;
mod real;
pub mod scripts;

use lockkeeper::ClaimId;

use crate::explore::{convicts, holds};
use crate::line::register::{Answer, Call, LIMIT, News, Push, Server, TTL, Way};
use crate::line::{
    BELIEF, BOTH, DOWN, END, EXCLUSION, FICKLE, FICKLE_UP, Flaw, KNOWN, LOCK, Line, ONE, READ,
    SOUND, TOKENS, UP, UP_AND_BACK, WAVERS,
};
use scripts::{Holder, How, Lock, Place, Reply, Slip, Told, Units};

/// Ticks: a second each, with room for a thousand numbers.
const UNITS: Units = Units { second: 1, number_of: |now| now * 1000 };

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Native(Lock);

fn short(id: ClaimId) -> u16 {
    u16::try_from(id.0).expect("small ids")
}

fn place(id: ClaimId, way: Way, hold: Option<ClaimId>) -> Place {
    let (mode, count) = match way {
        Way::Exclusive => ('x', 1),
        Way::Shared => ('s', 1),
        Way::Upgradable => ('u', 1),
        Way::Permits(count) => ('p', count),
    };
    Place { claim: short(id), mode, count, limit: LIMIT.into(), ttl: TTL, hold: hold.map(short) }
}

fn way_of(holder: &Holder) -> Way {
    match holder.mode {
        's' => Way::Shared,
        'u' => Way::Upgradable,
        'p' => Way::Permits(holder.count),
        _ => Way::Exclusive,
    }
}

/// The owner stands in the id.
fn owner(claim: u16) -> u8 {
    u8::try_from(claim / 100).expect("few processes")
}

fn answer(reply: Reply) -> Answer {
    match reply {
        Reply::Granted { number, ttl } => Answer::Granted { number, left: ttl, confirm: false },
        // The first asks when the lease before it ends, those behind it one claim lease later.
        Reply::InLine { rest, turn, .. } => {
            Answer::InLine { ask_in: turn.map(|turn| rest + turn * TTL / 3) }
        }
        Reply::Busy => Answer::Busy,
        Reply::Late | Reply::Gone | Reply::NotUpgradable | Reply::OtherLimit(_) => Answer::Gone,
    }
}

impl Server for Native {
    fn settle(&mut self, _: u64, _: &mut Vec<Push>) {}

    fn call(
        &mut self,
        now: u64,
        _: u8,
        call: &Call,
        flaw: Option<Flaw>,
        out: &mut Vec<Push>,
    ) -> Answer {
        let lock = &mut self.0;
        let slip = match flaw {
            Some(Flaw::LateRequestsLock) => Some(Slip::LeavesNoWord),
            Some(Flaw::CountsOnly) => Some(Slip::CountsOnly),
            Some(Flaw::ForgetsConversions) => Some(Slip::ForgetsConversions),
            Some(Flaw::OldConversionsCount) => Some(Slip::OldConversionsCount),
            Some(Flaw::UpgradesBesideReaders) => Some(Slip::UpgradesBesideReaders),
            Some(Flaw::SetsNoFlag) => Some(Slip::SetsNoFlag),
            _ => None,
        };
        let (answer, told) = match *call {
            Call::Attempt { id, way, trying, not_after } => {
                let how = if trying { How::Try } else { How::Join };
                let place = place(id, way, None);
                // What is in the way of the short one is asked about at once.
                let (reply, told) = match lock.take(now, UNITS, slip, place, not_after) {
                    Some(reply) => (reply, Vec::new()),
                    None => lock.acquire(now, UNITS, slip, place, how, not_after),
                };
                (answer(reply), told)
            }
            Call::Recheck { id, way, hold: None, not_after } => {
                let (reply, told) =
                    lock.acquire(now, UNITS, slip, place(id, way, None), How::Join, not_after);
                (answer(reply), told)
            }
            Call::Recheck { id, way, hold: Some(hold), not_after }
            | Call::Convert { id, hold, way, not_after } => {
                let (reply, told) = lock.convert(
                    now,
                    UNITS,
                    slip,
                    place(id, way, Some(hold)),
                    How::Join,
                    not_after,
                );
                let answer = match reply {
                    // It will never be.
                    Reply::Gone | Reply::NotUpgradable => Answer::Busy,
                    reply => answer(reply),
                };
                (answer, told)
            }
            Call::Withdraw { id, way, hold, refuse } => {
                let (_, told) = lock.withdraw(now, UNITS, slip, place(id, way, hold), refuse + 1);
                (Answer::Left, told)
            }
            Call::Release { hold, again, refuse } => {
                if flaw == Some(Flaw::ReleaseByName) {
                    lock.holders.clear();
                }
                let again = again.map(|(id, way, not_after)| (place(id, way, None), not_after));
                let (found, again, told) =
                    lock.release(now, UNITS, slip, short(hold), refuse + 1, again);
                (Answer::Ended { found, again: again.map(|reply| Box::new(answer(reply))) }, told)
            }
            Call::Renew(id) => {
                let extended =
                    lock.renew(now, UNITS, short(id), TTL) || flaw == Some(Flaw::RenewsWhatIsGone);
                (if extended { Answer::Extended } else { Answer::Gone }, Vec::new())
            }
        };
        out.extend(told.into_iter().map(|told| match told {
            Told::Granted { claim, number, at, lease } => Push {
                process: owner(claim),
                claim: ClaimId(claim.into()),
                news: News::Granted { number, at, lease },
            },
            Told::Alive { claim } => {
                Push { process: owner(claim), claim: ClaimId(claim.into()), news: News::Alive }
            }
            Told::First { claim, rest } => Push {
                process: owner(claim),
                claim: ClaimId(claim.into()),
                news: News::First { ask_in: rest },
            },
        }));
        answer
    }

    fn way(&self, now: u64, claim: ClaimId) -> Option<Way> {
        self.0.holders.iter().find(|h| h.claim == short(claim) && h.until > now).map(way_of)
    }

    fn ways(&self, now: u64) -> Vec<Way> {
        self.0.holders.iter().filter(|h| h.until > now).map(way_of).collect()
    }

    fn owners(&self, now: u64) -> Vec<u8> {
        let holders = self.0.holders.iter().filter(|h| h.until > now).map(|h| h.claim);
        let places = self.0.line.iter().filter(|s| s.lives_until > now).map(|s| s.place.claim);
        holders.chain(places).map(owner).collect()
    }

    fn leases(&self) -> Vec<(ClaimId, u64)> {
        self.0.holders.iter().map(|h| (ClaimId(h.claim.into()), h.until)).collect()
    }

    fn is_sound(&self, now: u64) -> bool {
        self.0.is_flagged(now)
    }

    fn flush(&mut self) {
        self.0 = Lock::default();
    }

    fn evict(&mut self) {
        self.0.evict();
    }
}

fn two() -> Line<Native> {
    Line::of(&[&[LOCK], &[LOCK]])
}

#[test]
fn the_scripts_keep_every_rule() {
    holds(
        "redis",
        "a lease is renewed, and lost",
        Line::<Native>::of(&[&[LOCK]]).until(7).silences(1),
    );
    holds("redis", "two processes", two().until(2));
    holds("redis", "an answer stays out", two().until(2).silences(1));
    holds("redis", "requests arrive twice", two().until(2).copies(1));
    holds("redis", "a push is lost", two().until(2).lost_pushes(1));
    holds("redis", "a place is asked about while it is granted", two().held().until(1).links(1));
    holds("redis", "a holder dies", two().held().until(3).deaths(1));
    holds("redis", "the server loses its data: numbers rise on", two().until(2).flushes(1));
    holds("redis", "the last number alone is lost", two().until(2).evictions(1));
    holds("redis", "it is lost under a line", two().held().until(2).evictions(1));
    holds(
        "redis",
        "a future is dropped at any await",
        Line::<Native>::of(&[&[FICKLE], &[LOCK]]).until(2),
    );
    holds(
        "redis",
        "dropped, no answer, arrives twice",
        Line::<Native>::of(&[&[FICKLE]]).until(3).silences(2).copies(1),
    );
    holds(
        "redis",
        "readers and a writer",
        Line::<Native>::of(&[&[READ], &[READ], &[LOCK]]).until(1),
    );
    holds(
        "redis",
        "turns, and one stands again",
        Line::<Native>::of(&[&[LOCK, LOCK], &[LOCK]]).until(1),
    );
}

#[test]
fn the_lease_of_one_that_stands_still_ends_beside_a_waiter() {
    holds("redis", "a lease ends beside a waiter", two().held_asleep().until(9));
}

#[test]
fn permits_keep_every_rule() {
    holds("redis", "permits", Line::<Native>::of(&[&[ONE], &[ONE], &[BOTH]]).until(1));
}

#[test]
fn conversions_keep_every_rule() {
    let of = Line::<Native>::of;
    holds("redis", "up and back, and no answer", of(&[&[UP_AND_BACK]]).until(3).silences(2));
    holds("redis", "up and back, arrives twice", of(&[&[UP_AND_BACK]]).until(3).copies(2));
    holds("redis", "an upgrade beside a reader", of(&[&[UP], &[READ]]).until(2));
    holds("redis", "an upgrade before a writer", of(&[&[UP], &[LOCK]]).until(2));
    holds("redis", "an upgrade, and a push is lost", of(&[&[UP], &[READ]]).until(2).lost_pushes(1));
    holds("redis", "an upgrade, and one dies", of(&[&[UP], &[READ]]).until(2).deaths(1));
    holds("redis", "an upgrade is taken back, arrives twice", of(&[&[WAVERS]]).until(2).copies(1));
    holds(
        "redis",
        "an upgrade is taken back, and no answer",
        of(&[&[WAVERS]]).until(2).silences(1),
    );
    holds(
        "redis",
        "an upgrade is taken back beside a reader",
        of(&[&[FICKLE_UP], &[READ]]).until(1),
    );
    holds("redis", "a downgrade before a writer", of(&[&[DOWN], &[LOCK]]).until(1));
    holds(
        "redis",
        "a downgrade, no answer, arrives twice",
        of(&[&[DOWN]]).until(2).silences(1).copies(1),
    );
}

#[test]
fn every_known_flaw_of_a_conversion_is_found() {
    let taken_back = || Line::<Native>::of(&[&[WAVERS]]).until(1).copies(1);
    convicts(
        "redis",
        "a withdrawal forgets conversions",
        KNOWN,
        taken_back().flaw(Flaw::ForgetsConversions),
    );
    convicts(
        "redis",
        "an old copy converts again",
        KNOWN,
        taken_back().flaw(Flaw::OldConversionsCount),
    );
    let reader = Line::<Native>::of(&[&[UP], &[READ]]).until(1);
    convicts(
        "redis",
        "an upgrade beside readers",
        EXCLUSION,
        reader.flaw(Flaw::UpgradesBesideReaders),
    );
}

#[test]
fn every_known_flaw_of_a_redis_lock_is_found() {
    convicts(
        "redis",
        "deadline counted from the reply",
        BELIEF,
        two().until(8).flaw(Flaw::DeadlineFromReply),
    );
    convicts(
        "redis",
        "a push read late is a grant",
        BELIEF,
        two().held().until(6).flaw(Flaw::LatePushIsAGrant),
    );
    convicts(
        "redis",
        "the server's clock jumps by a lease",
        BELIEF,
        two().flaw(Flaw::ServerClockJumps),
    );
    convicts(
        "redis",
        "the server loses its data",
        BELIEF,
        two().flushes(1).flaw(Flaw::ServerForgets),
    );
    convicts(
        "redis",
        "what is lost is renewed",
        BELIEF,
        two().held().until(9).flushes(1).flaw(Flaw::RenewsWhatIsGone),
    );
    convicts(
        "redis",
        "release by name",
        BELIEF,
        two().held().silences(1).flaw(Flaw::ReleaseByName),
    );
    convicts(
        "redis",
        "late requests lock",
        END,
        Line::<Native>::of(&[&[FICKLE]]).until(5).copies(1).flaw(Flaw::LateRequestsLock),
    );
    convicts(
        "redis",
        "a counter alone, and the data is lost",
        TOKENS,
        two().held().until(9).flushes(1).flaw(Flaw::CountsOnly),
    );
    convicts(
        "redis",
        "nobody asks when a lease ends",
        END,
        two().held().deaths(1).flaw(Flaw::WakesOnlyByPush),
    );
    convicts("redis", "a line without a flag", SOUND, two().flaw(Flaw::SetsNoFlag));
    convicts(
        "redis",
        "leaves without a word",
        END,
        Line::<Native>::of(&[&[FICKLE], &[LOCK]]).flaw(Flaw::LeavesWithoutAWord),
    );
}
