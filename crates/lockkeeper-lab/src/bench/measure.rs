//! Measuring two things in turn, A B A B, so that a machine that changes its speed changes both.

use std::time::{Duration, Instant};

/// One line of the table.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Which figure.
    pub bench: &'static str,
    /// On which engine.
    pub engine: &'static str,
    /// By how many tasks.
    pub tasks: u32,
    /// Median time of one operation in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
    /// Operations a second.
    pub per_second: f64,
    /// What the floor is.
    pub floor: &'static str,
    /// Median time of the floor in microseconds.
    pub floor_p50_us: Option<f64>,
    /// Median of the ratios of neighbouring measurements: ours to the floor, or a rate to another.
    pub ratio: Option<f64>,
    /// The 10th and the 90th percentile of those ratios.
    pub spread: Option<(f64, f64)>,
    /// The target, as the design states it.
    pub target: &'static str,
}

impl Row {
    /// Fills in what was measured.
    pub(crate) fn measured(mut self, pairs: &Pairs) -> Self {
        let ours = sorted(pairs.0.iter().map(|(ours, _)| *ours));
        let floor = sorted(pairs.0.iter().map(|(_, floor)| *floor));
        let ratios = sorted(
            pairs.0.iter().filter(|(_, floor)| *floor > 0.0).map(|(ours, floor)| ours / floor),
        );
        self.p50_us = at(&ours, 0.5);
        self.p99_us = at(&ours, 0.99);
        self.per_second = if self.p50_us > 0.0 { 1e6 / self.p50_us } else { 0.0 };
        self.floor_p50_us = Some(at(&floor, 0.5));
        self.ratio = Some(at(&ratios, 0.5));
        self.spread = Some((at(&ratios, 0.1), at(&ratios, 0.9)));
        self
    }

    /// The same with a ratio of rates: ours to the other's.
    pub(crate) fn rates(self, pairs: &Pairs) -> Self {
        let turned = Pairs(pairs.0.iter().map(|(ours, floor)| (*floor, *ours)).collect());
        let of_rates = Self::default().measured(&turned);
        Self { ratio: of_rates.ratio, spread: of_rates.spread, ..self.measured(pairs) }
    }

    /// Whether the target was met; `None` where there is none, or nothing to compare with it.
    pub fn is_met(&self) -> Option<bool> {
        let ratio = self.ratio?;
        let (sign, bound) = bound(self.target)?;
        Some(match sign {
            "≤" => ratio <= bound,
            "≥" => ratio >= bound,
            _ => ratio == bound,
        })
    }

    /// The same in a word.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.is_met() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "-",
        }
    }

    /// What the floor is called, and the target.
    pub(crate) fn beside(mut self, floor: &'static str, target: &'static str) -> Self {
        debug_assert!(target == "-" || bound(target).is_some(), "{target} is no target");
        (self.floor, self.target) = (floor, target);
        self
    }
}

/// A target's sign and number; what is counted may follow.
fn bound(target: &str) -> Option<(&str, f64)> {
    let (sign, rest) = target.split_once(' ').unwrap_or(("", target));
    Some((sign, rest.split(' ').next()?.parse().ok()?))
}

/// Neighbouring measurements in microseconds an operation: ours, and the floor.
pub(crate) struct Pairs(pub(crate) Vec<(f64, f64)>);

/// Measures both in turn until the time is over; each call does `batch` operations. The first pair
/// is a warm-up.
pub(crate) fn pairs<E>(
    time: Duration,
    batch: u32,
    mut ours: impl FnMut(u32) -> Result<(), E>,
    mut floor: impl FnMut(u32) -> Result<(), E>,
) -> Result<Pairs, E> {
    let began = Instant::now();
    let mut all = Vec::new();
    loop {
        let pair = (each(batch, &mut ours)?, each(batch, &mut floor)?);
        all.push(pair);
        if began.elapsed() >= time && all.len() > 3 {
            all.remove(0);
            return Ok(Pairs(all));
        }
    }
}

fn each<E>(batch: u32, work: &mut impl FnMut(u32) -> Result<(), E>) -> Result<f64, E> {
    let began = Instant::now();
    work(batch)?;
    Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(batch.max(1)))
}

/// Sorted, without what is not a number.
pub(crate) fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = values.filter(|v| v.is_finite()).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// A quantile of sorted values.
pub(crate) fn at(sorted: &[f64], quantile: f64) -> f64 {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted.get((last * quantile).round() as usize).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_median_of_neighbouring_ratios() {
        let pairs = Pairs(vec![(2.0, 1.0), (30.0, 10.0), (4.0, 1.0)]);
        let row = Row::default().measured(&pairs);
        assert_eq!((row.ratio, row.p50_us, row.floor_p50_us), (Some(3.0), 4.0, Some(1.0)));
        assert_eq!(row.spread, Some((2.0, 4.0)));
        let row = Row::default().rates(&pairs);
        assert_eq!((row.ratio, row.p50_us, row.floor_p50_us), (Some(1.0 / 3.0), 4.0, Some(1.0)));
    }

    #[test]
    fn w9_a_verdict_is_the_target_s_and_a_row_without_a_target_has_none() {
        for (target, ratio, met) in [
            ("≤ 1.4", Some(1.4), Some(true)),
            ("≤ 1.4", Some(1.41), Some(false)),
            ("≥ 20", Some(20.0), Some(true)),
            ("≥ 20", Some(19.0), Some(false)),
            ("≥ 2 times the rate", Some(2.0), Some(true)),
            ("≥ 2 times the rate", Some(1.9), Some(false)),
            ("0", Some(0.0), Some(true)),
            ("0", Some(1.0), Some(false)),
            ("-", Some(1.0), None),
            ("≤ 1.4", None, None),
            ("", Some(1.0), None),
        ] {
            let row = Row { target, ratio, ..Row::default() };
            assert_eq!(row.is_met(), met, "{target} {ratio:?}");
        }
    }

    #[test]
    fn w9_every_engine_s_target_of_one_hot_lock_has_a_verdict() {
        for lab in crate::engines::all() {
            let target = lab.hand_off_target();
            let row = Row { ratio: Some(0.5), ..Row::default() }.beside("hand-off 0", target);
            assert_eq!(row.is_met().is_none(), target == "-", "{}: {target}", lab.engine());
        }
    }

    #[test]
    fn both_are_measured_in_turn_and_the_warm_up_is_left_out() {
        let order = std::cell::RefCell::new(String::new());
        let note = |c| {
            order.borrow_mut().push(c);
            Ok::<(), ()>(())
        };
        let pairs = pairs(Duration::ZERO, 10, |_| note('a'), |_| note('b')).unwrap();
        assert_eq!((order.borrow().as_str(), pairs.0.len()), ("abababab", 3));
    }
}
