//! The layout `redisson`: RLock, RFencedLock, RFairLock, RReadWriteLock, RPermitExpirableSemaphore,
//! RSemaphore and RCountDownLatch, as Redisson 3 and 4 write them, so that Java and Rust exclude,
//! wake and hand over to each other. Its RMultiLock is several RLocks, one after the other:
//! `Locks::all` takes the same.
//!
//! The name is the key, whatever its kind: a lock and a semaphore of one name would be one key, and
//! the second is refused. Redisson keeps its types apart by class, not by key; the URL says which
//! one is meant: `lock=plain` (RLock), `fenced`, `fair` or `rw`, and `semaphore=expirable`
//! (RPermitExpirableSemaphore) or `simple` (RSemaphore). An owner is `UUID:number`, the UUID one a
//! `Locks` and the number one a claim.

use super::dialect::{Dialect, IN_NATIVE, LatchStep, Terms, call, lease, unsupported};
use super::options::{RedissonLock, RedissonSemaphore};
use super::script::{Call, Which};
use crate::words::claim::{Claim, Mode};
use crate::words::error::Result;
use crate::words::guarantee::{Ability, Can, Description, Warning};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// How long a place in a fair queue lives beyond the holder's lease without a sign of life (R11).
pub(in crate::engine) const FAIR_WAIT_MS: &str = "15000";

pub(super) struct Redisson {
    lock: RedissonLock,
    semaphore: RedissonSemaphore,
    client: String,
}

impl Redisson {
    pub(super) fn new(lock: RedissonLock, semaphore: RedissonSemaphore) -> Self {
        // A UUID of version 4, as a Redisson client draws one.
        let hex = ClaimId::fresh().to_string();
        let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
        let client = format!(
            "{}-{}-4{}-8{}-{}",
            part(0..8),
            part(8..12),
            part(13..16),
            part(17..20),
            part(20..32)
        );
        Self { lock, semaphore, client }
    }

    /// The owner of a claim; the number stands where Java has a thread's.
    fn owner(&self, id: ClaimId) -> String {
        format!("{}:{}", self.client, (id.0 as u64) >> 1)
    }

    fn lock_channel(&self, raw: &str) -> String {
        prefixed(
            if self.lock == RedissonLock::ReadWrite {
                "redisson_rwlock"
            } else {
                "redisson_lock__channel"
            },
            raw,
        )
    }

    fn mutex(&self, claim: &Claim) -> Terms {
        let (raw, owner, ttl) = (claim.name.as_str(), self.owner(claim.id), lease(claim.ttl));
        let channel = self.lock_channel(raw);
        let renew = call(Which::HashRenew, &[raw], &[&owner, &ttl]);
        let release = call(Which::HashRelease, &[raw], &[&owner, &channel]);
        let counter = prefixed("redisson_lock_token", raw);
        let fenced = self.lock == RedissonLock::Fenced;
        let keys: &[&str] = if fenced { &[raw, &counter] } else { &[raw] };
        let mut terms =
            Terms::new(call(Which::HashAcquire, keys, &[&owner, &ttl]), 2, renew, release);
        terms.channel = Some(channel);
        terms.counted = fenced;
        terms
    }

    fn fair(&self, claim: &Claim) -> Terms {
        let (raw, owner, ttl) = (claim.name.as_str(), self.owner(claim.id), lease(claim.ttl));
        let ([queue, deadlines, lives], channel) =
            (&fair_line(raw), prefixed("redisson_lock__channel", raw));
        let keys = [raw, queue, deadlines, lives];
        let mut terms = Terms::new(
            call(Which::FairAcquire, &keys, &[&owner, &ttl, FAIR_WAIT_MS]),
            2,
            call(Which::HashRenew, &[raw], &[&owner, &ttl]),
            call(Which::FairRelease, &keys, &[&owner, &channel]),
        );
        terms.channel = Some(format!("{channel}:{owner}"));
        terms.has_line = true;
        terms
    }

    fn reader(&self, claim: &Claim) -> Terms {
        let (raw, owner, ttl) = (claim.name.as_str(), self.owner(claim.id), lease(claim.ttl));
        let prefix = format!("{}:", braced(raw));
        let (timeout, channel) =
            (format!("{prefix}{owner}:rwlock_timeout:1"), self.lock_channel(raw));
        let mut terms = Terms::new(
            call(Which::ReadAcquire, &[raw, &timeout], &[&owner, &ttl]),
            2,
            call(Which::ReadRenew, &[raw, &timeout], &[&owner, &ttl]),
            call(Which::ReadRelease, &[raw, &timeout], &[&owner, &channel, &prefix]),
        );
        terms.channel = Some(channel);
        terms
    }

    fn writer(&self, claim: &Claim) -> Terms {
        let (raw, owner, ttl) =
            (claim.name.as_str(), format!("{}:write", self.owner(claim.id)), lease(claim.ttl));
        let channel = self.lock_channel(raw);
        let mut terms = Terms::new(
            call(Which::WriteAcquire, &[raw], &[&owner, &ttl]),
            2,
            call(Which::HashRenew, &[raw], &[&owner, &ttl]),
            call(Which::WriteRelease, &[raw], &[&owner, &channel]),
        );
        terms.channel = Some(channel);
        terms
    }

    fn permits(&self, claim: &Claim, count: u16, limit: u16) -> Terms {
        let raw = claim.name.as_str();
        let (permits, channel) = (self.permits_key(raw), prefixed("redisson_sc", raw));
        let (id, count, limit, ttl) =
            (claim.id.to_string(), count.to_string(), limit.to_string(), lease(claim.ttl));
        let mut terms = Terms::new(
            call(
                Which::PermitsAcquire,
                &[raw, &permits],
                &[&count, &limit, &ttl, &channel, self.whole(), &id],
            ),
            2,
            call(Which::PermitsRenew, &[&permits], &[&ttl, &id, &count]),
            call(Which::PermitsRelease, &[raw, &permits], &[&channel, &id, &count]),
        );
        terms.channel = Some(channel);
        terms.batch = false;
        terms
    }

    /// Where the permits that are out are noted. RSemaphore notes none, so ours stand in a set of
    /// our own.
    fn permits_key(&self, raw: &str) -> String {
        let suffix = if self.semaphore == RedissonSemaphore::Expirable {
            "timeout"
        } else {
            "lockkeeper:permits"
        };
        format!("{}:{suffix}", braced(raw))
    }

    /// Whether what is free and what is noted make the limit.
    fn whole(&self) -> &'static str {
        if self.semaphore == RedissonSemaphore::Expirable { "1" } else { "0" }
    }
}

/// Redisson's `prefixName`: a hash tag around the name, unless it brings one.
pub(in crate::engine) fn prefixed(prefix: &str, raw: &str) -> String {
    if raw.contains('{') { format!("{prefix}:{raw}") } else { format!("{prefix}:{{{raw}}}") }
}

/// Redisson's `suffixName`, without the suffix.
fn braced(raw: &str) -> String {
    if raw.contains('{') { raw.to_owned() } else { format!("{{{raw}}}") }
}

/// The keys of an RFairLock's queue: the queue, the deadlines, and our signs of life, which
/// Redisson does not read.
pub(in crate::engine) fn fair_line(raw: &str) -> [String; 3] {
    let lives = format!("{}:lockkeeper:lives", braced(raw));
    [prefixed("redisson_lock_queue", raw), prefixed("redisson_lock_timeout", raw), lives]
}

/// The latch's channel has braces always, and no colon.
fn latch_channel(raw: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{raw}}}")
}

/// Where that is which a type of lock of Redisson's has not.
const ELSEWHERE: &[(Can, &str)] =
    &[(Can::NONE.with(&[Ability::Shared]), "add lock=rw to the URL"), IN_NATIVE];

impl Dialect for Redisson {
    fn describe(&self, description: &mut Description) {
        // RFencedLock's counter lives beside the lock, and dies with the server's data.
        description.fenced = false;
        description.hand_off = false;
        let (shared, fair) =
            (self.lock == RedissonLock::ReadWrite, self.lock == RedissonLock::Fair);
        let resize = self.semaphore == RedissonSemaphore::Expirable;
        let mut can = Can::NONE.with(&[Ability::Permits, Ability::Latch, Ability::Force]);
        for (has, ability) in
            [(shared, Ability::Shared), (resize, Ability::Resize), (fair, Ability::Fair)]
        {
            can = if has { can.with(&[ability]) } else { can };
        }
        description.can = can;
        description.elsewhere = ELSEWHERE;
        if fair {
            let text = "a dead waiter in an RFairLock's queue keeps the lock from those behind it \
                        until 15 s after the lease it waited for, and up to 302 s where it is \
                        Java's: layout=native passes it within 3 s";
            description.warnings.push(Warning { id: "dead-waiters", text: text.into() });
        }
        description.breaks.push(
            "tokens: RFencedLock's counter is lost with the server's data, the other lock types \
             have none"
                .into(),
        );
    }

    fn terms(&self, claim: &Claim) -> Result<Terms> {
        if !claim.lock_delay.is_zero() {
            return Err(unsupported("layout=redisson has no lock_delay: use layout=native"));
        }
        match (claim.kind, claim.mode) {
            (Kind::Semaphore, Mode::Permits { count, limit }) => {
                Ok(self.permits(claim, count, limit))
            }
            (Kind::Lock, Mode::Exclusive) => Ok(match self.lock {
                RedissonLock::Plain | RedissonLock::Fenced => self.mutex(claim),
                RedissonLock::Fair => self.fair(claim),
                RedissonLock::ReadWrite => self.writer(claim),
            }),
            (Kind::Lock, Mode::Shared) if self.lock == RedissonLock::ReadWrite => {
                Ok(self.reader(claim))
            }
            (Kind::Lock, Mode::Shared) => Err(unsupported(
                "shared locks of layout=redisson are RReadWriteLock: add lock=rw to the URL",
            )),
            _ => Err(unsupported(format!(
                "Redisson has no {} {}: use layout=native",
                claim.mode.as_str(),
                claim.kind
            ))),
        }
    }

    fn inspect(&self, kind: Kind, name: &Name) -> Result<Call> {
        let raw = name.as_str();
        match kind {
            Kind::Lock if self.lock == RedissonLock::Fair => {
                let [queue, deadlines, lives] = &fair_line(raw);
                Ok(call(Which::FairInspect, &[raw, queue, deadlines, lives], &[]))
            }
            Kind::Lock => Ok(call(Which::HashInspect, &[raw], &[])),
            Kind::Semaphore => {
                Ok(call(Which::PermitsInspect, &[raw, &self.permits_key(raw)], &[self.whole()]))
            }
            Kind::Latch => Ok(call(Which::CountDown, &[raw], &["look"])),
            Kind::Election => Err(unsupported("Redisson has no elections: use layout=native")),
        }
    }

    fn force(&self, kind: Kind, name: &Name, from: &[&str]) -> Result<Call> {
        if kind != Kind::Lock {
            return Err(unsupported(format!("layout=redisson cannot take a {kind} away")));
        }
        let payload = if self.lock == RedissonLock::ReadWrite { "1" } else { "0" };
        let (raw, [queue, ..]) = (name.as_str(), &fair_line(name.as_str()));
        let keys: &[&str] = if self.lock == RedissonLock::Fair { &[raw, queue] } else { &[raw] };
        let channel = self.lock_channel(raw);
        let arguments = [&[channel.as_str(), payload], from].concat();
        Ok(call(Which::HashForce, keys, &arguments))
    }

    fn clear(&self, name: &Name) -> Option<Call> {
        let counter = prefixed("redisson_lock_token", name.as_str());
        (self.lock == RedissonLock::Fenced).then(|| call(Which::PlainForce, &[&counter], &[]))
    }

    fn latch(&self, name: &Name, step: LatchStep) -> Result<Call> {
        let raw = name.as_str();
        let (word, detail) = match step {
            LatchStep::Set(count) => ("set", count.to_string()),
            LatchStep::Down(claim) => ("down", claim.to_string()),
        };
        let counted = format!("{}:lockkeeper:counted", braced(raw));
        Ok(call(Which::CountDown, &[raw, &counted], &[word, &detail, &latch_channel(raw)]))
    }

    fn resize(&self, name: &Name, limit: u16) -> Result<Call> {
        if self.semaphore == RedissonSemaphore::Simple {
            return Err(unsupported(
                "an RSemaphore stores no limit: use semaphore=expirable, or layout=native",
            ));
        }
        let (raw, limit) = (name.as_str(), limit.to_string());
        Ok(call(
            Which::PermitsResize,
            &[raw, &self.permits_key(raw)],
            &[&prefixed("redisson_sc", raw), &limit],
        ))
    }

    fn waits_at(&self, name: &Name) -> Option<String> {
        let channel = self.channel(Kind::Lock, name)?;
        Some(match self.lock {
            // Each waits for a word of its own.
            RedissonLock::Fair => format!("{channel}:{}", self.owner(ClaimId::fresh())),
            _ => channel,
        })
    }

    fn channel(&self, kind: Kind, name: &Name) -> Option<String> {
        match kind {
            Kind::Lock => Some(self.lock_channel(name.as_str())),
            Kind::Semaphore => Some(prefixed("redisson_sc", name.as_str())),
            Kind::Latch => Some(latch_channel(name.as_str())),
            Kind::Election => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_keys_as_redisson_makes_them() {
        assert_eq!(
            prefixed("redisson_lock__channel", "anyLock"),
            "redisson_lock__channel:{anyLock}"
        );
        assert_eq!(prefixed("redisson_lock__channel", "a{b}c"), "redisson_lock__channel:a{b}c");
        assert_eq!(braced("a b é"), "{a b é}");
        assert_eq!(latch_channel("x"), "redisson_countdownlatch__channel__{x}");
        let redisson = Redisson::new(RedissonLock::Plain, RedissonSemaphore::Expirable);
        let (uuid, number) = redisson
            .owner(ClaimId::fresh())
            .split_once(':')
            .map(|(u, n)| (u.to_owned(), n.to_owned()))
            .unwrap();
        assert_eq!(uuid.len(), 36);
        assert_eq!(uuid.as_bytes()[14], b'4', "{uuid}");
        assert!(number.parse::<i64>().is_ok(), "Java reads it as a long");
    }
}
