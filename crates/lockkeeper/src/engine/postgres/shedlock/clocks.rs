//! By which clock others lock: their own, or the server's.
//!
//! ShedLock writes the JVM's clock, in the JVM's time zone, unless its provider is told
//! `usingDbTime()` or `forceUtcTimeZone()`. A JVM's times are whole milliseconds, the server's are
//! not; and a time that the server's clock has not reached, or had passed before somebody locked,
//! is of another clock.

use crate::engine::sql::record::{Us, left};
use crate::words::guarantee::Warning;

/// How far a clock may be off without being told of.
const TOLERANCE: Us = 2_000_000;
/// What is told of one whose clock is off.
const CLOCK: &str = "shedlock-clock";

/// Somebody's hold, as the row says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) by: String,
    /// By the clock of whoever wrote it.
    pub(super) since: Us,
    /// By the server's clock; 0 for one that is over.
    pub(super) left: Us,
}

impl Row {
    /// Whether it is lockkeeper's: its clock is the server's.
    fn is_ours(&self) -> bool {
        super::record::claim_of(&self.by).is_some()
    }

    /// How far the clock is off that wrote this row, at least; `None` where it may be right. It
    /// was written by `now`, and not before `not_before`.
    fn off(&self, not_before: Option<Us>, now: Us) -> Option<Us> {
        let ahead = self.since.saturating_sub(now);
        let behind = not_before.map_or(0, |at| at.saturating_sub(self.since));
        let off = if ahead > TOLERANCE { ahead } else { -behind };
        (!self.is_ours() && off.abs() > TOLERANCE).then_some(off)
    }

    /// What to tell of the clock that wrote this row.
    pub(super) fn warning(&self, not_before: Option<Us>, now: Us) -> Option<Warning> {
        let off = self.off(not_before, now)?;
        let by = self.by.escape_debug();
        let time = left(off.abs()).as_secs();
        let (which, so) = match off > 0 {
            true => ("ahead of", "it takes locks of lockkeeper's so much too early"),
            false => ("behind", "its locks are over so much too early"),
        };
        let text = format!(
            "the clock of {by} is at least {time} s {which} the server's, or in another time zone \
             than UTC: {so}; let its provider be built with usingDbTime()"
        );
        Some(Warning { id: CLOCK, text })
    }
}

/// What to tell of those who locked last.
pub(super) fn warnings(rows: &[Row], now: Us) -> Vec<Warning> {
    let others = || rows.iter().filter(|row| !row.is_ours());
    let off = others().filter(|row| row.off(None, now).is_some()).max_by_key(|row| row.since);
    let mut warnings: Vec<Warning> =
        off.and_then(|row| row.warning(None, now)).into_iter().collect();
    // One of a thousand times of the server's is whole by chance, but not all of a client's.
    let whole = |row: &Row| row.since != 0 && row.since % 1_000 == 0;
    let all = |by: &str| others().filter(|row| row.by == by).all(whole);
    if let Some(row) = others().find(|row| all(&row.by)) {
        let by = row.by.escape_debug();
        let text = format!(
            "{by} locks by the clock of its JVM, not the server's (locked_at is in whole \
             milliseconds): a clock that is off gives two holders, and so does a JVM whose time \
             zone is not UTC; let its provider be built with usingDbTime()"
        );
        warnings.push(Warning { id: "shedlock-jvm-clock", text });
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Us = 1_700_000_000_123_457;
    const S: Us = 1_000_000;

    fn row(by: &str, since: Us) -> Row {
        Row { by: by.into(), since, left: 5 * S }
    }

    #[test]
    fn a_clock_is_off_where_its_time_cannot_be_the_servers() {
        let off = |since, not_before| row("spring", since).off(not_before, NOW);
        assert_eq!(off(NOW, None), None);
        assert_eq!(off(NOW + S, None), None, "clocks are never the same");
        assert_eq!(off(NOW + 3_600 * S, None), Some(3_600 * S));
        // A lock of yesterday says nothing, unless it was not there yesterday.
        assert_eq!(off(NOW - 86_400 * S, None), None);
        assert_eq!(off(NOW - 60 * S, Some(NOW - 10 * S)), Some(-50 * S));
        assert_eq!(off(NOW - 10 * S, Some(NOW - 10 * S)), None);
        let ours = super::super::record::locked_by(
            crate::words::id::ClaimId(7),
            &crate::words::claim::Identity {
                host: "h".into(),
                pid: 1,
                started: 0,
                program: "p".into(),
                label: None,
            },
            255,
        );
        assert_eq!(row(&ours, NOW + 3_600 * S).off(None, NOW), None, "it is the server's own");
    }

    #[test]
    fn whole_milliseconds_are_a_jvms() {
        let ids =
            |rows: &[Row]| warnings(rows, NOW).iter().map(|warning| warning.id).collect::<Vec<_>>();
        assert!(ids(&[]).is_empty());
        assert!(ids(&[row("db", NOW - 5 * S)]).is_empty());
        assert_eq!(ids(&[row("db", NOW - 5), row("jvm", NOW - 457)]), ["shedlock-jvm-clock"]);
        assert!(ids(&[row("db", NOW - 5), row("db", NOW - 457)]).is_empty(), "by chance");
        let ahead = NOW - 457 + 7_200 * S;
        assert_eq!(ids(&[row("jvm", ahead)]), [CLOCK, "shedlock-jvm-clock"]);
        let said = &warnings(&[row("jvm", ahead)], NOW)[0].text;
        assert!(said.contains("jvm is at least 7199 s ahead"), "{said}");
    }
}
