//! Text for people: names that cannot play tricks on a terminal, durations, times.

pub mod width;
pub mod wrap;

use std::ffi::OsStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::text::acts;

/// A text from outside, with everything escaped that a terminal would act on.
pub fn shown(text: &str) -> String {
    lockkeeper::text::printable(text)
}

/// A word as a shell takes it back.
pub fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    if text.chars().any(acts) {
        let mut out = "$'".to_owned();
        for c in text.chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\'' | '\\' => out.extend(['\\', c]),
                // A shell reads four digits behind a small u, and eight behind a great one.
                c if acts(c) && u32::from(c) > 0xffff => {
                    out.push_str(&format!("\\U{:08x}", u32::from(c)));
                }
                c if acts(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => out.push(c),
            }
        }
        return out + "'";
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

pub use lockkeeper::duration::spoken;

/// A time as RFC 3339 in UTC with milliseconds.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years that start in March put the leap day last; 400 of them have 146 097 days.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (second / 3_600, second % 3_600 / 60, second % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
        since.subsec_millis()
    )
}

/// Whole milliseconds, as JSON has them.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_play_tricks_on_a_terminal() {
        assert_eq!(shown("stock/é 42"), "stock/é 42");
        assert_eq!(shown("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\u{a}");
        assert_eq!(shown("a\u{202e}b"), "a\\u{202e}b");
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_or_expand_them() {
        let of = |text: &str| quoted(OsStr::new(text));
        assert_eq!(of("make"), "make");
        assert_eq!(of("a b"), "'a b'");
        assert_eq!(of("it's"), r"'it'\''s'");
        assert_eq!(of(""), "''");
        assert_eq!(of("a\nb"), r"$'a\nb'");
        assert_eq!(of("it's\\\u{1b}\u{202e}\u{9b}é"), r"$'it\'s\\\u001b\u202e\u009bé'");
        assert_eq!(of("a\u{e0041}1\u{3164}"), r"$'a\U000e00411\u3164'");
    }

    #[test]
    fn durations_are_short() {
        let of = |ms: u64| spoken(Duration::from_millis(ms));
        assert_eq!(of(40), "40ms");
        assert_eq!(of(2_500), "2.5s");
        assert_eq!(of(2_020), "2s");
        assert_eq!(of(192_000), "3m12s");
        assert_eq!(of(5_400_000), "1h30m");
        assert_eq!(of(90_000_000), "1d1h");
    }

    #[test]
    fn times_are_rfc_3339() {
        let of = |s: u64| rfc3339(UNIX_EPOCH + Duration::from_millis(s));
        assert_eq!(of(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(of(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(of(1_767_225_599_999), "2025-12-31T23:59:59.999Z");
        assert_eq!(of(4_102_444_800_000), "2100-01-01T00:00:00.000Z");
    }
}
