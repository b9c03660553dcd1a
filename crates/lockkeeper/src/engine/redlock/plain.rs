//! The layouts that are shared with other programs. In `plain` a lock is one string key on each
//! member, as redsync, node-redlock and RedLock.net write it. In `redisson` it is one hash, an
//! RLock, as RedissonRedLock and RedissonMultiLock use it, or an RFairLock, which has a queue on
//! each member besides. There is no token, and nothing else stands on the members.
//!
//! The value, or the owner, begins with the claim and ends with the round that wrote it, so that a
//! late request to give back deletes nothing that a later round wrote. Others compare it as a
//! whole.

use std::time::Duration;

use super::recipe::Verb;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::options::ValueFormat;
use crate::engine::redis::plain::base64;
use crate::engine::redis::redisson::{FAIR_WAIT_MS, fair_line, prefixed};
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;
use crate::words::name::Name;

/// Whoever lives and contends extends its keys by more, every 250 ms.
const EXTENDED: Duration = Duration::from_millis(150);

/// How names and claims are written.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    /// The key, with `{name}` in it.
    pub(super) key: String,
    pub(super) others: Others,
}

/// What the other programs write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// A string with a random value.
    Value(ValueFormat),
    /// A hash with one field, the owner.
    Redisson {
        /// An RFairLock, with a queue.
        fair: bool,
    },
}

/// Whose value it is, the same for every round of a claim: other programs' are told apart, too.
/// `like`: a value of ours, of whose characters so many are the claim's.
pub(super) fn id_of(value: &str, like: &str, length: usize) -> ClaimId {
    let length = if value.len() == like.len() { length } else { value.len() };
    // FNV-1a.
    let begin = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let hash = value.bytes().take(length).fold(begin, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
    });
    ClaimId(hash)
}

/// Somebody else's key on a member, as it was seen first: it does not say when it was written.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    id: ClaimId,
    at: Ticks,
    /// When it would have ended; `None` for never.
    end: Option<Ticks>,
}

impl Seen {
    pub(super) fn new(id: ClaimId, at: Ticks, rest: Duration) -> Self {
        Self { id, at, end: (rest < Duration::MAX).then(|| at.plus(rest)) }
    }

    /// For how long nobody has written or extended it, if this is what was seen before. Answers
    /// are late by different times.
    pub(super) fn age(&self, now: &Self) -> Option<Duration> {
        let moved = match (self.end, now.end) {
            (Some(then), Some(now)) => now.since(then) >= EXTENDED,
            (then, now) => then != now,
        };
        (self.id == now.id && !moved).then(|| now.at.since(self.at))
    }
}

/// A round of a claim on its way to a member.
pub(super) struct Request {
    pub(super) claim: ClaimId,
    pub(super) round: u64,
    pub(super) ttl_ms: u64,
    pub(super) not_after_us: u64,
    /// Which run of the server it is meant for.
    pub(super) run: String,
    /// Where it is told that a lock was given back.
    pub(super) channel: Option<String>,
    /// It waits where there is a queue.
    pub(super) waits: bool,
}

impl Plain {
    /// What the layout is called.
    pub(super) fn layout(&self) -> &'static str {
        match self.others {
            Others::Value(_) => "plain",
            Others::Redisson { .. } => "redisson",
        }
    }

    /// Where others tell that they gave a lock back. Where nobody tells, the server says which keys
    /// changed that were read.
    pub(super) fn channel(&self, name: &Name) -> Option<String> {
        (!self.tracks()).then(|| prefixed("redisson_lock__channel", name.as_str()))
    }

    /// Where a claim is told that it may ask again.
    pub(super) fn word_for(&self, name: &Name, claim: ClaimId) -> Option<String> {
        let channel = self.channel(name)?;
        Some(if self.stands() { format!("{channel}:{}", self.value(claim, 0)) } else { channel })
    }

    /// Whether members have queues, in which claims stand, each under its owner of no round.
    pub(super) fn stands(&self) -> bool {
        self.others == Others::Redisson { fair: true }
    }

    /// Whether servers are asked to tell which keys changed.
    pub(super) fn tracks(&self) -> bool {
        matches!(self.others, Others::Value(_))
    }

    pub(super) fn key(&self, name: &Name) -> String {
        self.key.replace("{name}", name.as_str())
    }

    /// The key, and those of a queue: the queue, the deadlines, our signs of life.
    pub(super) fn keys(&self, name: &Name) -> [String; 4] {
        let [queue, deadlines, lives] =
            if self.stands() { fair_line(name.as_str()) } else { Default::default() };
        [self.key(name), queue, deadlines, lives]
    }

    /// How many characters of a value are the claim's.
    pub(super) fn length(&self) -> usize {
        match self.others {
            Others::Value(ValueFormat::Hex) => 24,
            Others::Value(ValueFormat::Guid) => 28,
            Others::Value(ValueFormat::Base64) => 16,
            Others::Redisson { .. } => 37,
        }
    }

    /// What a round of a claim writes: 96 bits of the claim (120 as a UUID), then the round.
    pub(super) fn value(&self, claim: ClaimId, round: u64) -> String {
        let hex = claim.to_string();
        let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
        match self.others {
            // A UUID of version 4 and a thread's number, longer than Java's.
            Others::Redisson { .. } => {
                let number = 1_000_000_000 + round % 1_000_000_000;
                let [first, second] = [part(0..8), part(8..12)];
                let [third, fourth, last] = [part(13..16), part(17..20), part(20..32)];
                format!("{first}-{second}-4{third}-8{fourth}-{last}:{number}")
            }
            Others::Value(ValueFormat::Hex) => {
                format!("{}{:08x}", part(0..24), round & 0xffff_ffff)
            }
            Others::Value(ValueFormat::Guid) => {
                let parts = [part(0..8), part(8..12), part(12..16), part(16..20)].join("-");
                format!("{parts}-{}{:08x}", part(20..24), round & 0xffff_ffff)
            }
            // Nobody decodes it; six digits are as good as any.
            Others::Value(ValueFormat::Base64) => {
                let bytes = claim.0.to_be_bytes();
                let text = base64(bytes.get(..12).unwrap_or_default());
                format!("{text}{:06x}==", round & 0x00ff_ffff)
            }
        }
    }

    /// How members tell whose record it is, whoever wrote it.
    pub(super) fn id_of(&self, value: &str) -> ClaimId {
        id_of(value, &self.value(ClaimId(0), 0), self.length())
    }

    /// What looks at names, and what takes one away; before the owners that are meant the second
    /// has these arguments.
    pub(super) fn look_and_force(&self, name: Option<&Name>) -> (Which, Which, Vec<String>) {
        let length = self.length().to_string();
        match self.others {
            Others::Value(_) => (Which::QuorumPlainLook, Which::QuorumPlainForce, vec![length]),
            Others::Redisson { .. } => {
                let channel = name.and_then(|name| self.channel(name)).unwrap_or_default();
                (Which::QuorumHashLook, Which::QuorumHashForce, vec![channel, length])
            }
        }
    }

    /// What a member is asked. `keys`: those of [`Self::keys`].
    pub(super) fn call(&self, keys: &[String; 4], verb: Verb, request: Request) -> Call {
        if self.stands() && verb != Verb::Keep {
            return self.call_in_line(keys, verb, request);
        }
        let [key, ..] = keys;
        let Request { claim, round, ttl_ms, not_after_us, run, channel, .. } = request;
        let mut arguments = vec![self.value(claim, round), self.length().to_string()];
        match verb {
            Verb::Take => arguments.extend([ttl_ms.to_string(), not_after_us.to_string(), run]),
            Verb::Keep => arguments.extend([ttl_ms.to_string(), run]),
            Verb::Give | Verb::Undo | Verb::Cede { .. } => arguments.extend(channel),
        }
        let script = match (self.others, verb) {
            (Others::Value(_), Verb::Take) => Which::QuorumPlainTake,
            (Others::Value(_), Verb::Keep) => Which::QuorumPlainKeep,
            (Others::Value(_), _) => Which::QuorumPlainGive,
            (Others::Redisson { .. }, Verb::Take) => Which::QuorumHashTake,
            (Others::Redisson { .. }, Verb::Keep) => Which::QuorumHashKeep,
            (Others::Redisson { .. }, _) => Which::QuorumHashGive,
        };
        Call { script, keys: [key].into(), arguments: arguments.into() }
    }

    /// The same where it has a place in a queue.
    fn call_in_line(&self, keys: &[String; 4], verb: Verb, request: Request) -> Call {
        let Request { claim, round, ttl_ms, not_after_us, run, channel, waits } = request;
        let (owner, place) = (self.value(claim, round), self.value(claim, 0));
        let mut arguments = vec![owner, self.length().to_string()];
        let (channel, wait) = (channel.unwrap_or_default(), FAIR_WAIT_MS.to_owned());
        let script = match verb {
            Verb::Take | Verb::Keep => {
                arguments.extend([ttl_ms.to_string(), not_after_us.to_string()]);
                let place = if waits { place } else { String::new() };
                arguments.extend([place, wait, channel, run]);
                Which::QuorumFairTake
            }
            Verb::Give | Verb::Undo | Verb::Cede { .. } => {
                arguments.extend([place, channel]);
                arguments.extend((verb == Verb::Undo && waits).then_some(wait));
                Which::QuorumFairGive
            }
        };
        Call { script, keys: keys.clone().into(), arguments: arguments.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_nobody_extends_grows_old_and_one_that_lasts_for_ever_does_too() {
        let ms = Duration::from_millis;
        let at = |time| Ticks(1_000_000_000).plus(ms(time));
        let (one, two) = (ClaimId(1), ClaimId(2));
        for (rest, later) in [(ms(9_000), ms(7_000)), (Duration::MAX, Duration::MAX)] {
            let first = Seen::new(one, at(0), rest);
            assert_eq!(first.age(&Seen::new(one, at(2_000), later)), Some(ms(2_000)));
            assert_eq!(first.age(&Seen::new(two, at(2_000), later)), None, "somebody else's");
        }
        let first = Seen::new(one, at(0), ms(9_000));
        assert_eq!(first.age(&Seen::new(one, at(250), ms(9_000))), None, "it was extended");
        assert_eq!(first.age(&Seen::new(one, at(250), ms(8_800))), Some(ms(250)), "late");
        assert_eq!(first.age(&Seen::new(one, at(250), Duration::MAX)), None);
    }

    #[test]
    fn r3_a_value_is_as_others_write_it_and_tells_its_claim_and_its_round() {
        let plain = |others| Plain { key: "redlock:{name}".into(), others };
        let java = plain(Others::Redisson { fair: false }).value(ClaimId::fresh(), 7);
        let (uuid, number) = java.split_once(':').expect("an owner of Redisson's");
        assert!(uuid.len() == 36 && uuid.as_bytes()[14] == b'4', "{uuid}");
        assert!(number.parse::<i64>().is_ok(), "{number} is a long");
        let (one, two) = (ClaimId::fresh(), ClaimId::fresh());
        for (format, length) in [
            (Others::Value(ValueFormat::Hex), 32),
            (Others::Value(ValueFormat::Guid), 36),
            (Others::Value(ValueFormat::Base64), 24),
            (Others::Redisson { fair: false }, 47),
        ] {
            let plain = plain(format);
            let value = plain.value(one, 7);
            assert_eq!(value.len(), length, "{value}");
            assert_ne!(value, plain.value(one, 8));
            assert_eq!(plain.id_of(&value), plain.id_of(&plain.value(one, 70_000)), "{value}");
            assert_ne!(plain.id_of(&value), plain.id_of(&plain.value(two, 7)), "{value}");
            let [first, rest] = [plain.length(), length - plain.length()];
            assert!(value[first..].starts_with(|c: char| c.is_ascii_hexdigit()) && rest >= 8);
        }
        let hex = plain(Others::Value(ValueFormat::Hex));
        assert_eq!(hex.key(&Name::new("a b").unwrap()), "redlock:a b");
        assert_ne!(hex.id_of("short"), hex.id_of("other"));
    }
}
