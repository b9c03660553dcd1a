//! Durations as people write and read them: `2.5`, `500ms`, `2m`, `1h30m`.

use std::time::Duration;

/// Reads a duration: seconds without a unit, or numbers with `ms`, `s`, `m`, `h`, `d`, one after
/// the other.
///
/// `None` for anything else: empty, negative, other units, or too long to count.
pub fn parse(text: &str) -> Option<Duration> {
    if let Some(seconds) = number(text) {
        return scale(seconds, 1.0);
    }
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (value, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let unit = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        sum = sum.checked_add(scale(number(value)?, unit)?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(sum)
}

/// What a text was meant to be that is no duration, in the units that are: `1min` is `1m`, and
/// `5 seconds` is `5s`.
pub fn meant(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (value, after) = rest.split_at(digits);
        let after = after.trim_start();
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let unit = match unit.to_ascii_lowercase().as_str() {
            "ms" | "msec" | "msecs" | "millis" | "millisecond" | "milliseconds" => "ms",
            "s" | "sec" | "secs" | "second" | "seconds" => "s",
            "m" | "min" | "mins" | "minute" | "minutes" => "m",
            "h" | "hr" | "hrs" | "hour" | "hours" => "h",
            "d" | "day" | "days" => "d",
            _ => return None,
        };
        out = out + value + unit;
        rest = after.trim_start();
    }
    parse(&out).map(|_| out)
}

/// A duration in at most two units: `3m12s`, `1h30m`, `2.5s`, `40ms`.
pub fn spoken(time: Duration) -> String {
    let s = time.as_secs();
    let pair = |big: u64, unit: &str, small: u64, sub: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{sub}") }
    };
    match s {
        0 => format!("{}ms", time.as_millis()),
        1..=9 if time.subsec_millis() >= 100 => format!("{s}.{}s", time.subsec_millis() / 100),
        1..=59 => format!("{s}s"),
        60..=3_599 => pair(s / 60, "m", s % 60, "s"),
        3_600..=86_399 => pair(s / 3_600, "h", s % 3_600 / 60, "m"),
        _ => pair(s / 86_400, "d", s % 86_400 / 3_600, "h"),
    }
}

fn number(text: &str) -> Option<f64> {
    let plain =
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text != ".";
    plain.then(|| text.parse().ok()).flatten()
}

fn scale(value: f64, unit: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(value * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let ms = Duration::from_millis;
        for (text, is) in [
            ("2.5", ms(2500)),
            ("0", ms(0)),
            ("500ms", ms(500)),
            ("2m", ms(120_000)),
            ("1h30m", ms(5_400_000)),
            (".5", ms(500)),
            ("1d", ms(86_400_000)),
        ] {
            assert_eq!(parse(text), Some(is), "{text}");
        }
        for bad in [
            "",
            ".",
            "abc",
            "-1",
            "1x",
            "ms",
            "1 s",
            "1e3",
            "1m2",
            "5µs",
            "99999999999999999999999d",
            "inf",
            "NaN",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
