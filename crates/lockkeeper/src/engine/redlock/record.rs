//! What a member keeps of a holder, read: `1 CLAIM FIRST ROUND NUMBER SINCE_US TTL_MS WHO`.
//! The scripts write it.

use std::time::Duration;

use crate::engine::words::{fill_who, time_of};
use crate::words::claim::{Ends, Holder, Mode};
use crate::words::id::ClaimId;

/// For how long a key without a time to live lasts.
const FOREVER: Duration = Duration::MAX;

/// How much of a value is shown.
const SHOWN_MAX: usize = 128;

/// A record, and how long it lasts still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) claim: ClaimId,
    /// The members' clock when it was first asked for, which orders contenders; 0 for a hold.
    pub(super) first: u64,
    pub(super) rest: Duration,
    /// How long its lease was when it was written or extended.
    pub(super) ttl: Duration,
    /// The number that this member keeps for it, which need not be its token's.
    pub(super) number: u64,
    /// Its claim is said to hold, and not to contend.
    pub(super) granted: bool,
    /// Others may have it, too.
    pub(super) shared: bool,
    /// Empty in the layout `plain`, whose holder is the value that it wrote.
    since_us: String,
    who: String,
}

impl Record {
    /// Reads one; the error is what our scripts say of it. `rest_ms` is what PTTL answered.
    pub(super) fn read(text: &str, rest_ms: i64, key: &str) -> Result<Self, String> {
        let corrupt = || format!("CORRUPT {key}");
        let words: Vec<&str> = text.split(' ').collect();
        let version: u64 = words.first().and_then(|v| v.parse().ok()).ok_or_else(corrupt)?;
        if version > 1 {
            return Err(format!("NEWER {version}"));
        }
        let [_, claim, first, _round, number, since_us, ttl_ms, who] = words.as_slice() else {
            return Err(corrupt());
        };
        let first = first.parse().map_err(|_| corrupt())?;
        Ok(Self {
            claim: ClaimId::parse(claim).ok_or_else(corrupt)?,
            first,
            granted: first == 0,
            rest: Duration::from_millis(u64::try_from(rest_ms).unwrap_or(0)),
            ttl: Duration::from_millis(ttl_ms.parse().map_err(|_| corrupt())?),
            number: number.parse().map_err(|_| corrupt())?,
            shared: false,
            since_us: (*since_us).to_owned(),
            who: (*who).to_owned(),
        })
    }

    /// What stands in a key of the layout `plain`. It does not say when it was written: see
    /// `plain::Seen`.
    pub(super) fn plain(value: &str, rest_ms: i64, claim: ClaimId) -> Self {
        let rest = u64::try_from(rest_ms).map_or(FOREVER, Duration::from_millis);
        let (since_us, who) = (String::new(), value.to_owned());
        let (first, number, granted, shared) = (0, 0, false, false);
        Self { claim, first, rest, ttl: rest, number, granted, shared, since_us, who }
    }

    /// How long ago it was written or extended.
    pub(super) fn age(&self) -> Duration {
        self.ttl.saturating_sub(self.rest)
    }

    /// The lease that was asked for; zero in the layout `plain`, where a key says only how long it
    /// lasts.
    pub(super) fn lease(&self) -> Duration {
        if self.since_us.is_empty() { Duration::ZERO } else { self.ttl }
    }

    /// Its holder, who has the lock for so long still.
    pub(super) fn holder(&self, left: Duration) -> Holder {
        if self.since_us.is_empty() {
            let value = self.who.chars().flat_map(char::escape_debug).take(SHOWN_MAX).collect();
            let (label, mode) = (Some(value), Some(Mode::Exclusive));
            let ends = Some(if left == FOREVER { Ends::Never } else { Ends::Lease(left) });
            return Holder { label, mode, ends, ..Holder::default() };
        }
        let mut holder = Holder {
            claim: Some(self.claim),
            mode: Some(if self.shared { Mode::Shared } else { Mode::Exclusive }),
            since: time_of(&self.since_us),
            ends: Some(Ends::Lease(left)),
            ..Holder::default()
        };
        fill_who(&self.who, &mut holder);
        holder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::words::who_word;
    use crate::words::claim::Identity;

    #[test]
    fn who_holds_is_read_back_as_it_was_written() {
        let who = Identity {
            host: "a b,c".into(),
            pid: 7,
            started: 9,
            program: "./x".into(),
            label: Some("é".into()),
        };
        let id = ClaimId::fresh();
        let text = format!("1 {id} 70 4 77 1767225600000001 30000 {}", who_word(&who, None));
        let record = Record::read(&text, 29_000, "k").unwrap();
        assert_eq!((record.claim, record.age()), (id, Duration::from_secs(1)));
        assert_eq!((record.first, record.number), (70, 77));
        let holder = record.holder(record.rest);
        assert_eq!((holder.host.as_deref(), holder.pid), (Some("a b,c"), Some(7)));
        assert_eq!(holder.expires_in(), Some(Duration::from_secs(29)));
        assert!(holder.token.is_none() && holder.since.is_some());
    }

    #[test]
    fn c8_a_newer_record_names_its_number_and_damage_is_damage() {
        for (text, said) in [
            ("2 what ever", "NEWER 2"),
            ("1 aa 1 1 1 1 who", "CORRUPT k"),
            ("1 aa 1 1 1 1 1 who", "CORRUPT k"),
            ("", "CORRUPT k"),
            ("a value of somebody else", "CORRUPT k"),
        ] {
            assert_eq!(Record::read(text, 1, "k"), Err(said.to_owned()), "{text}");
        }
    }
}
