//! What our own layout writes down about holders and places, read and written.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::keys::{escape, unescape};
use crate::claim::{Claim, Ends, Holder, Identity, Mode, Waiter};
use crate::id::ClaimId;
use crate::name::Kind;
use crate::token::Token;

/// One letter a mode.
pub(super) fn letter(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "x",
        Mode::Shared => "s",
        Mode::Upgradable => "u",
        Mode::Permits { .. } => "p",
    }
}

fn mode_of(letter: &str, count: &str, limit: u16) -> Option<Mode> {
    Some(match letter {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        "u" => Mode::Upgradable,
        "p" => Mode::Permits { count: count.parse().ok()?, limit },
        _ => return None,
    })
}

/// Who asks, as one word: host, pid, start, program, label and value, each escaped.
pub(in crate::engine) fn who_word(who: &Identity, value: Option<&str>) -> String {
    let optional = |text: Option<&str>| text.map(escape).unwrap_or_default();
    [
        escape(&who.host).replace(',', "%2C"),
        who.pid.to_string(),
        who.started.to_string(),
        escape(&who.program).replace(',', "%2C"),
        optional(who.label.as_deref()).replace(',', "%2C"),
        // A value that is there but empty is not the same as none.
        value.map(|v| format!("={}", escape(v).replace(',', "%2C"))).unwrap_or_default(),
    ]
    .join(",")
}

/// Reads what [`who_word`] wrote.
pub(in crate::engine) fn fill_who(word: &str, holder: &mut Holder) {
    let mut fields = word.split(',');
    let mut next = || fields.next().filter(|f| !f.is_empty());
    holder.host = next().and_then(unescape);
    holder.pid = next().and_then(|f| f.parse().ok());
    let _started = next();
    holder.program = next().and_then(unescape);
    holder.label = next().and_then(unescape);
    holder.value = next().and_then(|f| unescape(f.strip_prefix('=')?));
}

pub(in crate::engine) fn time_of(us: &str) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(us.parse().ok()?))
}

/// A holder as a script writes it; `None` when it is not one of ours.
pub(super) fn holder(text: &str, kind: Kind, limit: u16, left: Option<Duration>) -> Option<Holder> {
    let words: Vec<&str> = text.split(' ').collect();
    let [_version, claim, mode, count, number, _ttl, _delay, since, _channel, _conversion, who] =
        words.as_slice()
    else {
        return None;
    };
    let mut holder = Holder {
        claim: ClaimId::parse(claim),
        mode: mode_of(mode, count, limit),
        since: time_of(since),
        ends: left.map(Ends::Lease),
        ..Holder::default()
    };
    // The turn inside the hold is known to its own process alone; the record tells of the first.
    if kind != Kind::Semaphore {
        holder.token = number.parse().ok().and_then(|n| Token::of(n, 0));
    }
    fill_who(who, &mut holder);
    Some(holder)
}

/// The lock delay that a holder's record asks for.
pub(super) fn delay_of(text: &str) -> Duration {
    Duration::from_millis(text.split(' ').nth(6).and_then(|d| d.parse().ok()).unwrap_or(0))
}

/// The lease that a holder's record asks for.
pub(super) fn ttl_of(text: &str) -> Duration {
    Duration::from_millis(text.split(' ').nth(5).and_then(|d| d.parse().ok()).unwrap_or(0))
}

/// What is wrong with a text that the scripts refuse, in their words; `None` when they read it. `h`
/// in a form stands for a hexadecimal word, `d` for a decimal one, `a` for one letter, and `*` for
/// any word.
fn misread(words: &[&str], form: &str, key: &str) -> Option<String> {
    let is = |word: &str, form: char| match form {
        'h' => !word.is_empty() && word.bytes().all(|b| b.is_ascii_hexdigit()),
        'd' => !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()),
        'a' => word.len() == 1 && word.bytes().all(|b| b.is_ascii_alphabetic()),
        _ => !word.is_empty(),
    };
    let fits = words.len() == form.len()
        && words.iter().zip(form.chars()).all(|(word, form)| is(word, form));
    if fits && words.first() == Some(&"1") {
        return None;
    }
    // As `misread` of settle.lua has it: a greater number is a newer release's, everything else is
    // damage.
    let starts = words.len() >= 2
        && words.iter().zip(form.chars()).take(2).all(|(word, form)| is(word, form));
    let newer =
        words.first().filter(|version| starts && version.parse::<f64>().is_ok_and(|v| v > 1.0));
    Some(newer.map_or_else(|| format!("CORRUPT {key}"), |version| format!("NEWER {version}")))
}

/// What is wrong with a holder's text.
pub(super) fn holder_misread(text: &str, key: &str) -> Option<String> {
    misread(&text.split(' ').collect::<Vec<_>>(), "dhaddddd***", key)
}

/// What is wrong with the summary of several holders.
pub(super) fn summary_misread(text: &str, key: &str) -> Option<String> {
    misread(&text.split(' ').collect::<Vec<_>>(), "dd*d", key)
}

/// What is wrong with a latch's text.
pub(super) fn latch_misread(text: &str, key: &str) -> Option<String> {
    misread(&text.split(' ').collect::<Vec<_>>(), "dd", key)
}

/// What is wrong with a place's text; a place that is only damaged is skipped by the scripts.
pub(super) fn place_misread(text: &str) -> Option<String> {
    misread(&text.split(' ').collect::<Vec<_>>(), "dhadddd***", "")
        .filter(|said| said.starts_with("NEWER"))
}

/// What is wrong with the text of the last number.
pub(super) fn last_misread(text: &str, key: &str) -> Option<String> {
    let (words, marks) = text.rsplit_once(':').unwrap_or((text, "?"));
    if marks.bytes().any(|b| !b.is_ascii_alphabetic()) {
        return Some(format!("CORRUPT {key}"));
    }
    misread(&words.split(':').collect::<Vec<_>>(), "dd", key)
}

/// A place as a script writes it.
pub(super) fn waiter(text: &str, limit: u16, ahead: u32) -> Option<Waiter> {
    let words: Vec<&str> = text.split(' ').collect();
    let [_version, _claim, mode, count, _ttl, _delay, since, _channel, _hold, who] =
        words.as_slice()
    else {
        return None;
    };
    let mut shown = Holder::default();
    fill_who(who, &mut shown);
    Some(Waiter {
        host: shown.host,
        pid: shown.pid,
        since: time_of(since),
        ahead: Some(ahead),
        mode: mode_of(mode, count, limit),
    })
}

/// What a claim tells the scripts, besides the time: the same words each time it is sent, or a
/// repeated claim would stand twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    words: Vec<String>,
    pub(super) ttl: Duration,
    pub(super) delay: Duration,
}

impl Place {
    /// `since_us`: when it was first asked for, on the server's clock.
    pub(super) fn new(claim: &Claim, hold: Option<ClaimId>, channel: &str, since_us: u64) -> Self {
        let (count, limit) = match claim.mode {
            Mode::Permits { count, limit } => (count, limit),
            _ => (1, 0),
        };
        let words = vec![
            claim.id.to_string(),
            letter(claim.mode).to_owned(),
            count.to_string(),
            limit.to_string(),
            millis(claim.ttl).to_string(),
            millis(claim.lock_delay).to_string(),
            since_us.to_string(),
            channel.to_owned(),
            hold.map_or_else(|| "-".to_owned(), |h| h.to_string()),
            who_word(&claim.who, claim.value.as_deref()),
        ];
        Self { words, ttl: claim.ttl, delay: claim.lock_delay }
    }

    /// The arguments of the scripts.
    pub(super) fn arguments(&self) -> Vec<String> {
        self.words.clone()
    }
}

/// Whole milliseconds, at least one where there is anything.
pub(in crate::engine) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::claim::Through;
    use crate::name::Name;

    #[test]
    fn who_holds_is_read_back_as_it_was_written() {
        let who = Identity {
            host: "a b,c".into(),
            pid: 7,
            started: 9,
            program: "./x%y".into(),
            label: Some("é".into()),
        };
        let word = who_word(&who, Some(""));
        assert!(!word.contains(' ') && word.is_ascii(), "{word}");
        let id = ClaimId::fresh();
        let text = format!("1 {id} u 1 42 30000 0 1767225600000001 channel - {word}");
        let read = holder(&text, Kind::Lock, 0, None).unwrap();
        assert_eq!(read.claim, Some(id));
        assert_eq!(
            (read.host.as_deref(), read.pid, read.program.as_deref()),
            (Some("a b,c"), Some(7), Some("./x%y"))
        );
        assert_eq!((read.label.as_deref(), read.value.as_deref()), (Some("é"), Some("")));
        assert_eq!((read.mode, read.token), (Some(Mode::Upgradable), Token::of(42, 0)));
        assert_eq!(holder("somebody else's", Kind::Lock, 0, None), None);
    }

    #[test]
    fn c8_only_a_greater_number_is_a_newer_layout_and_everything_else_is_damage() {
        let good = "1 aa x 1 42 30000 0 5 c - w";
        assert_eq!(holder_misread(good, "k"), None);
        for (text, said) in [
            ("9 aa x 1 0 1 2 c w", "NEWER 9"),
            ("9 aa x 1 42 30000 0 5 c - w", "NEWER 9"),
            ("10 aa", "NEWER 10"),
            ("1 aa x nan nan nan nan c w", "CORRUPT k"),
            ("0 aa x 1 42 30000 0 5 c - w", "CORRUPT k"),
            ("9", "CORRUPT k"),
            ("somebody else's", "CORRUPT k"),
            ("", "CORRUPT k"),
        ] {
            assert_eq!(holder_misread(text, "k").as_deref(), Some(said), "{text:?}");
        }
        assert_eq!(
            (latch_misread("1 3", "k"), latch_misread("2 3", "k").as_deref()),
            (None, Some("NEWER 2"))
        );
        assert_eq!(
            (summary_misread("1 2 - 7", "k"), summary_misread("1 2", "k").as_deref()),
            (None, Some("CORRUPT k"))
        );
        assert_eq!((last_misread("1:7:w", "k"), last_misread("1:7:", "k")), (None, None));
        assert_eq!(last_misread("2:7:", "k").as_deref(), Some("NEWER 2"));
        for damage in ["1:7", "1:x:", "1:7:1", "", "0:7:"] {
            assert_eq!(last_misread(damage, "k").as_deref(), Some("CORRUPT k"), "{damage:?}");
        }
        assert_eq!(place_misread("2 aa x 1 1 0 5 c - w").as_deref(), Some("NEWER 2"));
        assert_eq!(place_misread("1 aa x"), None, "a damaged place is skipped, not refused");
    }

    #[test]
    fn a_claim_is_the_same_place_each_time_it_is_sent() {
        let who = Arc::new(Identity {
            host: "h".into(),
            pid: 1,
            started: 0,
            program: "p".into(),
            label: None,
        });
        let claim = Claim {
            id: ClaimId::fresh(),
            kind: Kind::Semaphore,
            name: Name::new("x").unwrap(),
            mode: Mode::Permits { count: 3, limit: 8 },
            through: Through::Mutex,
            ttl: Duration::from_secs(30),
            renew: true,
            margin: None,
            lock_delay: Duration::ZERO,
            give_up: None,
            who,
            value: None,
        };
        let place = Place::new(&claim, None, "channel", 5);
        assert_eq!(place.arguments()[1..9], ["p", "3", "8", "30000", "0", "5", "channel", "-"]);
        assert_eq!(
            waiter(&format!("1 {} p 3 30000 0 5 channel - h,1,0,p,,", claim.id), 8, 2)
                .unwrap()
                .mode,
            Some(claim.mode)
        );
    }
}
