//! What a hand-off costs the server, and whether that grows with those who wait: measured before a crowd comes, and while it
//! is there.

use std::path::Path;

use super::Conviction;
use crate::check::{self, CheckError};
use crate::history::{Item, Merge, What};

/// The word for it.
pub(super) const COST: &str = "cost";
/// How many requests a hand-off may cost more for each one who waits more. A wake-up that everybody hears costs at least one.
const SLOPE_MAX: f64 = 0.5;
/// With fewer grants than this nothing is said.
const GRANTS_MIN: u64 = 10;

/// What the server had answered at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) at: u64,
    pub(super) calls: u64,
    /// How many tasks stand in line, or hold.
    pub(super) tasks: u32,
}

/// Judges what was sampled at the beginning and the end of each span.
pub(super) fn judge(spans: &[(Sample, Sample)], dir: &Path) -> Result<Vec<Conviction>, CheckError> {
    if spans.len() < 2 {
        return Ok(Vec::new());
    }
    let mut grants = vec![0; spans.len()];
    let mut merge = Merge::open(&check::expand(&[dir])?, 0)?;
    while let Some(item) = merge.next()? {
        let Item::Event(_, _, record) = item else { continue };
        if record.what == What::Acquired {
            for (count, (from, to)) in grants.iter_mut().zip(spans) {
                *count += u64::from(record.at >= from.at && record.at < to.at);
            }
        }
    }
    Ok(verdict(spans, &grants).into_iter().collect())
}

fn verdict(spans: &[(Sample, Sample)], grants: &[u64]) -> Option<Conviction> {
    let measured = spans.iter().zip(grants).filter(|(_, grants)| **grants >= GRANTS_MIN);
    let costs: Vec<(Sample, f64)> =
        measured.map(|((from, to), grants)| (*from, to.calls.saturating_sub(from.calls) as f64 / *grants as f64)).collect();
    let quiet = costs.iter().min_by_key(|(sample, _)| sample.tasks)?;
    let crowded = costs.iter().max_by_key(|(sample, _)| sample.tasks)?;
    let more = f64::from(crowded.0.tasks.saturating_sub(quiet.0.tasks));
    if more < 1.0 || (crowded.1 - quiet.1) / more <= SLOPE_MAX {
        return None;
    }
    let (few, many, low, high) = (quiet.0.tasks, crowded.0.tasks, quiet.1, crowded.1);
    let sentence = format!("with {few} in line a hand-off cost the server {low:.1} requests, and with {many} it cost {high:.1}");
    Some(Conviction { class: COST, name: String::new(), at: crowded.0.at, until: crowded.0.at, sentence })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(at: u64, tasks: u32, calls: u64) -> (Sample, Sample) {
        (Sample { at, calls: 0, tasks }, Sample { at: at + 10, calls, tasks })
    }

    #[test]
    fn a_cost_that_grows_with_the_line_is_convicted_and_one_that_does_not_is_not() {
        let grown = verdict(&[span(0, 3, 300), span(20, 11, 1_500)], &[100, 100]);
        assert_eq!(grown.as_ref().map(|c| (c.class, c.at)), Some((COST, 20)));
        assert!(grown.is_some_and(|c| c.sentence.contains("3.0") && c.sentence.contains("15.0")));
        assert_eq!(verdict(&[span(0, 3, 300), span(20, 11, 500)], &[100, 100]), None);
        assert_eq!(verdict(&[span(0, 3, 300), span(20, 11, 1_500)], &[100, 5]), None, "too few grants to say");
        assert_eq!(verdict(&[], &[]), None);
    }
}
