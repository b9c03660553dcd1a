//! Durations as people write them: `2.5`, `500ms`, `2m`, `1h30m`.

use std::time::Duration;

/// Reads a duration: seconds without a unit, or numbers with `ms`, `s`, `m`, `h`, `d`, one after the other.
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

fn number(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text != ".";
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
        for bad in ["", ".", "abc", "-1", "1x", "ms", "1 s", "1e3", "1m2", "5µs", "99999999999999999999999d", "inf", "NaN"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
