//! Values of options, read strictly: what cannot be meant is refused with the forms that can.

use std::time::Duration;

use lockkeeper::{Mode, Require};

/// The longest duration that an option takes: a hundred years of 365 days.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
/// The largest limit of a semaphore (R13).
const PERMITS_MAX: u32 = 65_535;

/// Reads a duration: seconds such as `2.5`, or parts with units such as `500ms`, `2m`, `1h30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err(
            "is negative: a duration is zero or more, such as 2.5, 500ms, 2m, 1h30m".to_owned()
        );
    }
    let time = lockkeeper::duration::parse(text).ok_or_else(|| {
        lockkeeper::duration::meant(text).map_or_else(
            || "is not a duration: write seconds such as 2.5, or 500ms, 2m, 1h30m".to_owned(),
            |meant| format!("is not a duration: write {meant}"),
        )
    })?;
    if time > LONGEST {
        return Err("is longer than a hundred years: leave the option out instead".to_owned());
    }
    Ok(time)
}

/// Reads `N/MAX`, so many permits of a semaphore with that limit.
pub fn permits(text: &str) -> Result<Mode, String> {
    let form =
        || format!("is not a share of permits: write N/MAX, such as 2/8, at most {PERMITS_MAX}");
    let (count, limit) = text.split_once('/').ok_or_else(form)?;
    let number = |text: &str| {
        if text.bytes().all(|b| b.is_ascii_digit()) { text.parse::<u32>().ok() } else { None }
    };
    let (Some(count), Some(limit)) = (number(count), number(limit)) else { return Err(form()) };
    if limit == 0 || limit > PERMITS_MAX {
        return Err(format!(
            "has a limit out of range: a semaphore has 1 to {PERMITS_MAX} permits"
        ));
    }
    if count == 0 {
        return Err("asks for no permit: ask for at least one".to_owned());
    }
    if count > limit {
        return Err(format!(
            "asks for {count} of {limit} permits and could never be granted: ask for {limit} or \
             fewer"
        ));
    }
    match (u16::try_from(count), u16::try_from(limit)) {
        (Ok(count), Ok(limit)) => Ok(Mode::Permits { count, limit }),
        _ => Err(form()),
    }
}

/// What `--stock` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stock {
    /// How many pieces there are.
    Pieces(u64),
    /// Where they are kept.
    At(String),
}

/// Reads how many pieces there are, or where they are kept.
pub fn stock(text: &str) -> Result<Stock, String> {
    if text.contains(':') {
        return Ok(Stock::At(text.to_owned()));
    }
    let number = text.parse().map(Stock::Pieces);
    number.map_err(|_| {
        "is neither how many pieces there are, nor the URL of a database: write 50, or \
         postgres://host/db"
            .to_owned()
    })
}

/// Reads a semaphore's new limit.
pub fn limit(text: &str) -> Result<u16, String> {
    match text.parse::<u32>() {
        Ok(limit) if (1..=PERMITS_MAX).contains(&limit) => {
            u16::try_from(limit).map_err(|e| e.to_string())
        }
        _ => Err(format!("is not a limit: a semaphore has 1 to {PERMITS_MAX} permits")),
    }
}

/// Reads one requirement.
pub fn require(text: &str) -> Result<Require, String> {
    match text {
        "hosts" => Ok(Require::Hosts),
        "timed" => Ok(Require::Timed),
        "fenced" => Ok(Require::Fenced),
        _ => Err("is not a requirement: choose hosts, timed or fenced".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_written() {
        let ms = |text: &str| duration(text).map(|d| d.as_micros());
        for (text, micros) in [
            ("0", 0),
            ("2.5", 2_500_000),
            (".5", 500_000),
            ("3.", 3_000_000),
            ("500ms", 500_000),
            ("1.5ms", 1_500),
            ("2m", 120_000_000),
            ("1h30m", 5_400_000_000),
            ("1m1s1ms", 61_001_000),
            ("2d", 172_800_000_000),
            ("0.1", 100_000),
            ("007", 7_000_000),
        ] {
            assert_eq!(ms(text), Ok(micros), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "",
            "abc",
            "-1",
            "-",
            "1h30",
            "30 s",
            " 1",
            "1,5",
            "1..5",
            ".",
            "s",
            "1e3",
            "inf",
            "NaN",
            "+1",
            "1x",
            "5M",
            "1s2",
            "9999999999999999d",
        ] {
            assert!(duration(text).is_err(), "{text}: {:?}", duration(text));
        }
    }

    #[test]
    fn q14_units_that_people_write_elsewhere_are_answered_with_the_one_to_write() {
        for (text, meant) in [
            ("1min", "1m"),
            ("5sec", "5s"),
            ("2 hours", "2h"),
            ("1h 30min", "1h30m"),
            ("250 msec", "250ms"),
            ("5M", "5m"),
        ] {
            let why = duration(text).unwrap_err();
            assert!(why.ends_with(&format!(": write {meant}")), "{text}: {why}");
        }
    }

    #[test]
    fn permits_are_a_share_of_a_limit() {
        assert_eq!(permits("2/8"), Ok(Mode::Permits { count: 2, limit: 8 }));
        assert_eq!(permits("65535/65535"), Ok(Mode::Permits { count: 65_535, limit: 65_535 }));
        for text in ["0/8", "9/8", "1/0", "1/65536", "2", "/", "a/b", "+1/2", "-1/2", "1/2/3", ""] {
            assert!(permits(text).is_err(), "{text}");
        }
    }
}
