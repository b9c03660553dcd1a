//! How records of our own layouts are written: text as one word, who asks, and times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::words::claim::{Holder, Identity};

/// Writes text as one word of printable ASCII, in which nothing has a meaning to patterns, hash
/// tags or shells' quotes.
pub(in crate::engine) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.:/@+=~,;!#$&()|<>".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from_digit(digit.into(), 16).unwrap_or('0').to_ascii_uppercase());
            }
        }
    }
    out
}

/// Reads what [`escape`] wrote; `None` for anything else.
pub(in crate::engine) fn unescape(text: &str) -> Option<String> {
    String::from_utf8(crate::open::url::unescaped(text)?).ok()
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

/// Whole milliseconds, at least one where there is anything.
#[cfg(feature = "redis")]
pub(in crate::engine) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
