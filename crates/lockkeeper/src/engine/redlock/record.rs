//! What a member keeps of a holder, read: `1 CLAIM ROUND NUMBER SINCE_US TTL_MS WHO`. The
//! scripts write it.

use std::time::Duration;

use crate::claim::{Ends, Holder, Mode};
use crate::engine::redis::record::{fill_who, time_of};
use crate::id::ClaimId;

/// A record, and how long it lasts still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) claim: ClaimId,
    pub(super) rest: Duration,
    /// How long its lease was when it was written or extended.
    pub(super) ttl: Duration,
    /// The number that this member keeps for it, which need not be its token's.
    pub(super) number: u64,
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
        let [_, claim, _round, number, since_us, ttl_ms, who] = words.as_slice() else {
            return Err(corrupt());
        };
        Ok(Self {
            claim: ClaimId::parse(claim).ok_or_else(corrupt)?,
            rest: Duration::from_millis(u64::try_from(rest_ms).unwrap_or(0)),
            ttl: Duration::from_millis(ttl_ms.parse().map_err(|_| corrupt())?),
            number: number.parse().map_err(|_| corrupt())?,
            since_us: (*since_us).to_owned(),
            who: (*who).to_owned(),
        })
    }

    /// How long ago it was written or extended.
    pub(super) fn age(&self) -> Duration {
        self.ttl.saturating_sub(self.rest)
    }

    /// Its holder, who has the lock for so long still.
    pub(super) fn holder(&self, left: Duration) -> Holder {
        let mut holder = Holder {
            claim: Some(self.claim),
            mode: Some(Mode::Exclusive),
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
    use crate::claim::Identity;
    use crate::engine::redis::record::who_word;

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
        let text = format!("1 {id} 4 77 1767225600000001 30000 {}", who_word(&who, None));
        let record = Record::read(&text, 29_000, "k").unwrap();
        assert_eq!((record.claim, record.age()), (id, Duration::from_secs(1)));
        assert_eq!(record.number, 77);
        let holder = record.holder(record.rest);
        assert_eq!((holder.host.as_deref(), holder.pid), (Some("a b,c"), Some(7)));
        assert_eq!(holder.expires_in(), Some(Duration::from_secs(29)));
        assert!(holder.token.is_none() && holder.since.is_some());
    }

    #[test]
    fn c8_a_newer_record_names_its_number_and_damage_is_damage() {
        for (text, said) in [
            ("2 what ever", "NEWER 2"),
            ("1 aa 1 1 1 1", "CORRUPT k"),
            ("1 aa 1 1 1 1 who", "CORRUPT k"),
            ("", "CORRUPT k"),
            ("a value of somebody else", "CORRUPT k"),
        ] {
            assert_eq!(Record::read(text, 1, "k"), Err(said.to_owned()), "{text}");
        }
    }
}
