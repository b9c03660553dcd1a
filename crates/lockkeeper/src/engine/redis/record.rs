//! What our own layout writes down about holders and places, read and written.

use std::time::Duration;

use super::reply::time_of_number;
use crate::engine::words::{fill_who, millis, time_of, who_word};
use crate::words::claim::{Claim, Ends, Holder, Mode, Waiter};
use crate::words::id::ClaimId;
use crate::words::name::Kind;
use crate::words::token::Token;

/// The layout of records, lines and last numbers; a latch has one of its own.
const LAYOUT: &str = "2";

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

/// A holder as a script writes it; `None` when it is not one of ours.
pub(super) fn holder(text: &str, kind: Kind, limit: u16, left: Option<Duration>) -> Option<Holder> {
    let words: Vec<&str> = text.split(' ').collect();
    let [_version, claim, _delay, mode, count, _ttl, _channel, who, _asked, _limit, _hold, number] =
        words.get(..12)?
    else {
        return None;
    };
    let since = match words.get(12..)? {
        // As granted on the short way: its number is its time.
        [] => time_of(&time_of_number(number.parse().ok()?).to_string()),
        [since, _conversion] => time_of(since),
        _ => return None,
    };
    let mut holder = Holder {
        claim: ClaimId::parse(claim),
        mode: mode_of(mode, count, limit),
        since,
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

/// How the record of a hold begins that has no delay behind its lease.
pub(super) fn begins(claim: ClaimId) -> String {
    format!("{LAYOUT} {claim} 0 ")
}

/// What is kept of a semaphore's limit while nobody is in the way. A lock's number is bare.
pub(super) fn bare_limit(limit: u16) -> String {
    format!("{LAYOUT}:{limit}:l")
}

/// The limit of a semaphore in what is kept.
pub(super) fn limit_in(kept: &str) -> Option<u16> {
    kept.split(':').nth(1)?.parse().ok().filter(|limit| *limit > 0)
}

/// The lock delay that a holder's record asks for.
pub(super) fn delay_of(text: &str) -> Duration {
    Duration::from_millis(text.split(' ').nth(2).and_then(|d| d.parse().ok()).unwrap_or(0))
}

/// The lease that a holder's record asks for.
pub(super) fn ttl_of(text: &str) -> Duration {
    Duration::from_millis(text.split(' ').nth(5).and_then(|d| d.parse().ok()).unwrap_or(0))
}

/// What is wrong with a text that the scripts refuse, in their words; `None` when they read it. `h`
/// in a form stands for a hexadecimal word, `d` for a decimal one, `a` for one letter, and `*` for
/// any word.
fn misread(words: &[&str], form: &str, layout: &str, key: &str) -> Option<String> {
    let is = |word: &str, form: char| match form {
        'h' => !word.is_empty() && word.bytes().all(|b| b.is_ascii_hexdigit()),
        'd' => !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()),
        'a' => word.len() == 1 && word.bytes().all(|b| b.is_ascii_alphabetic()),
        _ => !word.is_empty(),
    };
    let fits = words.len() == form.len()
        && words.iter().zip(form.chars()).all(|(word, form)| is(word, form));
    if fits && words.first() == Some(&layout) {
        return None;
    }
    // As `misread` of forms.lua has it: a greater number is a newer release's, everything else is
    // damage.
    let starts = words.len() >= 2
        && words.iter().zip(form.chars()).take(2).all(|(word, form)| is(word, form));
    let number = |version: &&str| version.parse::<f64>().ok().filter(|_| starts);
    let version = words.first().and_then(|version| Some((version, number(version)?)));
    let ours: f64 = layout.parse().unwrap_or_default();
    Some(match version {
        Some((version, number)) if number > ours => format!("NEWER {version} {layout}"),
        Some((version @ &"1", number)) if number < ours => {
            format!("OLDER {version} {layout} {key}")
        }
        _ => format!("CORRUPT {key}"),
    })
}

/// What is wrong with a holder's text.
pub(super) fn holder_misread(text: &str, key: &str) -> Option<String> {
    let words: Vec<&str> = text.split(' ').collect();
    let form = if words.len() == 12 { "dhdadd**dd*d" } else { "dhdadd**dd*dd*" };
    misread(&words, form, LAYOUT, key)
}

/// What is wrong with the summary of several holders.
pub(super) fn summary_misread(text: &str, key: &str) -> Option<String> {
    misread(&text.split(' ').collect::<Vec<_>>(), "dd*d", LAYOUT, key)
}

/// What is wrong with a latch's text.
pub(super) fn latch_misread(text: &str, key: &str) -> Option<String> {
    misread(&text.split(' ').collect::<Vec<_>>(), "dd", "1", key)
}

/// What is wrong with a place's text; a place that is only damaged is skipped by the scripts.
pub(super) fn place_misread(text: &str, key: &str) -> Option<String> {
    misread(&text.split(' ').collect::<Vec<_>>(), "dhdadd**dd*", LAYOUT, key)
        .filter(|said| !said.starts_with("CORRUPT"))
}

/// What is wrong with the text of the last number.
pub(super) fn last_misread(text: &str, key: &str) -> Option<String> {
    let corrupt = || Some(format!("CORRUPT {key}"));
    let words: Vec<&str> = text.split(':').collect();
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    match words.as_slice() {
        [number] if is_number(number) => None,
        [version, number, marks] if is_number(number) && is_number(version) => {
            // Without flags a number of ours is bare.
            let bare = marks.is_empty() && *version == LAYOUT;
            if bare || marks.bytes().any(|b| !b.is_ascii_alphabetic()) {
                return corrupt();
            }
            misread(&[version, number], "dd", LAYOUT, key)
        }
        _ => corrupt(),
    }
}

/// A place as a script writes it.
pub(super) fn waiter(text: &str, limit: u16, ahead: u32) -> Option<Waiter> {
    let words: Vec<&str> = text.split(' ').collect();
    let [_version, _claim, _delay, mode, count, _ttl, _channel, who, asked, _limit, _hold] =
        words.as_slice()
    else {
        return None;
    };
    let mut shown = Holder::default();
    fill_who(who, &mut shown);
    Some(Waiter {
        host: shown.host,
        pid: shown.pid,
        since: time_of(asked),
        ahead: Some(ahead),
        mode: mode_of(mode, count, limit),
    })
}

/// What a claim tells the scripts, besides the time: the same words each time it is sent, or a
/// repeated claim would stand twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    text: String,
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
        let text = format!(
            "{LAYOUT} {} {} {} {count} {} {channel} {} {since_us} {limit} {}",
            claim.id,
            millis(claim.lock_delay),
            letter(claim.mode),
            millis(claim.ttl),
            who_word(&claim.who, claim.value.as_deref()),
            hold.map_or_else(|| "-".to_owned(), |hold| hold.to_string()),
        );
        Self { text, ttl: claim.ttl, delay: claim.lock_delay }
    }

    /// As the scripts take it.
    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::claim::Identity;

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
        let text =
            format!("2 {id} 0 u 1 30000 channel {word} 1767225600000000 0 - 42 1767225600000001 -");
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
        for good in ["2 aa 0 x 1 30000 c w 5 0 - 42 5 -", "2 aa 0 x 1 30000 c w 5 0 - 42"] {
            assert_eq!(holder_misread(good, "k"), None, "{good}");
        }
        for (text, said) in [
            ("9 aa x 1 0 1 2 c w", "NEWER 9 2"),
            ("9 aa 0 x 1 30000 c w 5 0 - 42 5 -", "NEWER 9 2"),
            ("10 aa", "NEWER 10 2"),
            ("1 aa x 1 42 30000 0 5 c - w", "OLDER 1 2 k"),
            ("2 aa nan x nan nan c w 5 0 - nan", "CORRUPT k"),
            ("2 aa 0 x 1 30000 c w 5 0 - 42 5", "CORRUPT k"),
            ("0 aa 0 x 1 30000 c w 5 0 - 42 5 -", "CORRUPT k"),
            ("9", "CORRUPT k"),
            ("somebody else's", "CORRUPT k"),
            ("", "CORRUPT k"),
        ] {
            assert_eq!(holder_misread(text, "k").as_deref(), Some(said), "{text:?}");
        }
        assert_eq!(
            (latch_misread("1 3", "k"), latch_misread("2 3", "k").as_deref()),
            (None, Some("NEWER 2 1"))
        );
        assert_eq!(
            (summary_misread("2 2 - 7", "k"), summary_misread("2 2", "k").as_deref()),
            (None, Some("CORRUPT k"))
        );
        for good in ["7", "2:7:w", "2:7:lwqdo"] {
            assert_eq!(last_misread(good, "k"), None, "{good}");
        }
        assert_eq!(last_misread("3:7:", "k").as_deref(), Some("NEWER 3 2"));
        assert_eq!(last_misread("1:7:", "k").as_deref(), Some("OLDER 1 2 k"));
        assert_eq!((limit_in("2:7:lw"), limit_in("2:0:o"), limit_in("")), (Some(7), None, None));
        for damage in ["2:7", "2:7:", "x", "2:x:w", "2:7:1", "", "0:7:w", "-7", "1.5"] {
            assert_eq!(last_misread(damage, "k").as_deref(), Some("CORRUPT k"), "{damage:?}");
        }
        assert_eq!(place_misread("3 aa 0 x 1 1 c w 5 0 -", "k").as_deref(), Some("NEWER 3 2"));
        assert_eq!(place_misread("1 aa x 1 1 0 5 c - w", "k").as_deref(), Some("OLDER 1 2 k"));
        assert_eq!(place_misread("2 aa x", "k"), None, "a damaged place is skipped, not refused");
    }

    #[test]
    fn a_claim_is_the_same_place_each_time_it_is_sent() {
        let permits = Mode::Permits { count: 3, limit: 8 };
        let claim = Claim::of_test("x", permits, Identity::of_test("h"));
        let place = Place::new(&claim, None, "channel", 5);
        let text = place.text();
        let (begin, end) = (format!("2 {} 0 p 3 30000 channel h,", claim.id), " 5 8 -");
        assert!(text.starts_with(&begin) && text.ends_with(end), "{text}");
        assert_eq!(place_misread(text, "k"), None);
        assert_eq!(waiter(text, 8, 2).unwrap().mode, Some(claim.mode));
        // With a number behind it, it is a record.
        let text = format!("{text} 42");
        assert_eq!(holder_misread(&text, "k"), None);
        assert!(text.starts_with(&begins(claim.id)));
        let held = holder(&text, Kind::Lock, 0, None).unwrap();
        assert_eq!(held.since, time_of("1767225600000672"));
    }
}
