//! Above which number a member begins that has just started (R7): it may have forgotten any.
//!
//! Every number that anybody was told is kept by a majority, so one of any majority of the *others*
//! knows it, if they remember all they kept. Only where no such majority answers, because too many
//! have started at about the same time, do the clocks decide: no number is above the fastest clock
//! of all, were it one that is away, and none is further from that than `clock_skew`. Numbers may
//! be above the clocks by as much, where they began at such a floor, or by a second, where they
//! began at what another told (`top`); the clocks have passed those when a member has waited once
//! more, which is for twice the longest `clock_skew` at least.
//!
//! The members are asked once the wait of whoever is admitted is over: before that, somebody may
//! still count a yes that it gave before it forgot.

/// What a member tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Told {
    /// Its clock, as a number.
    pub(super) tick: u64,
    /// Not below any number that it kept or was to begin above.
    pub(super) top: u64,
    /// It was admitted since it started.
    pub(super) admitted: bool,
}

/// The floor for those that were not admitted yet. `told`: by every member that answers, also by
/// those; `skew`: how far clocks may be apart.
pub(super) fn floor(told: &[Told], majority: usize, skew: u64) -> u64 {
    let top = told.iter().map(|told| told.top).max().unwrap_or(0);
    let tick = told.iter().map(|told| told.tick).max().unwrap_or(0);
    let remember = told.iter().filter(|told| told.admitted).count() >= majority;
    top.max(if remember { tick } else { tick.saturating_add(skew) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r7_a_majority_of_the_others_tells_where_numbers_begin_and_the_clocks_where_there_is_none() {
        let told = |tick, top, admitted| Told { tick, top, admitted };
        let (new, slow, fast) = (told(50, 0, false), told(40, 70, true), told(60, 90, true));
        assert_eq!(floor(&[new, slow, fast], 2, 1_000), 90);
        assert_eq!(floor(&[new, told(99, 70, true), fast], 2, 1_000), 99);
        assert_eq!(floor(&[new, fast], 2, 1_000), 1_060, "one of three does not know all");
        assert_eq!(floor(&[new, fast, fast], 3, 1_000), 1_060);
        assert_eq!(floor(&[new, told(60, 5_000, true)], 2, 1_000), 5_000);
    }
}
