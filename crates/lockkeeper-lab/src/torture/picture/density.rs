//! What is drawn of every hold of a run, however many there are: how many began, how fast the lock
//! was handed on, and for which share of the time each lane held each name.

use std::collections::HashMap;

use serde_json::{Value, json};

/// At most so many slices of the run are told apart.
const SLICES_MAX: usize = 1_024;
/// At most so many slices of all lanes and names together are drawn.
const STRIPS_MAX: usize = 400_000;
/// How many shares of a slice are told apart, none included.
const LEVELS: u64 = 10;
/// Hand-offs are counted in classes that are this many to a doubling. They are whole numbers, for
/// which no library of mathematics has to be loaded, also by a `run` that draws nothing.
const CLASSES_TO_A_DOUBLING: u64 = 8;
/// From 1 µs to more than a minute.
const CLASSES: usize = 216;

/// How a name is held. The number is its place in a strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Exclusive = 0,
    Shared = 1,
    Permits = 2,
}

/// For how many microseconds of each slice something was held, in each way.
type Strip = [Vec<u64>; 3];

/// See the module. Times are microseconds since the first event.
pub(super) struct Density {
    width: u64,
    /// How many holds began in each slice.
    begun: Vec<u64>,
    /// How many hand-offs of each class ended in each slice.
    handed: Vec<Vec<u32>>,
    strips: HashMap<(usize, usize), Strip>,
}

impl Default for Density {
    fn default() -> Self {
        Self { width: 1_000, begun: Vec::new(), handed: Vec::new(), strips: HashMap::new() }
    }
}

/// Two slices as one.
fn halve<T: Clone>(all: &mut Vec<T>, join: impl Fn(&T, Option<&T>) -> T) {
    *all = all
        .chunks(2)
        .filter_map(|pair| pair.split_first().map(|(one, rest)| join(one, rest.first())))
        .collect();
}

/// The place of a slice, which is there from now on.
fn at<T: Default + Clone>(all: &mut Vec<T>, slice: usize) -> Option<&mut T> {
    if all.len() <= slice {
        all.resize(slice + 1, T::default());
    }
    all.get_mut(slice)
}

/// The class of a time. Up to twice [`CLASSES_TO_A_DOUBLING`] each has one of its own.
fn class_of(took: u64) -> usize {
    let width = (took / CLASSES_TO_A_DOUBLING).max(1).ilog2();
    usize::try_from(u64::from(width) * CLASSES_TO_A_DOUBLING + (took >> width)).unwrap_or(CLASSES)
}

/// The time in the middle of a class.
fn middle_of(class: u64) -> u64 {
    let width = (class / CLASSES_TO_A_DOUBLING).saturating_sub(1);
    ((class - width * CLASSES_TO_A_DOUBLING) << width) + (1 << width) / 2
}

impl Density {
    /// The slice of a moment. Slices are as wide as it takes.
    fn slice(&mut self, moment: u64) -> usize {
        while moment / self.width >= SLICES_MAX as u64 {
            self.width *= 2;
            let sum = |one: &u64, other: Option<&u64>| one + other.unwrap_or(&0);
            halve(&mut self.begun, sum);
            halve(&mut self.handed, |one, other| {
                let Some(other) = other.filter(|other| !other.is_empty()) else {
                    return one.clone();
                };
                if one.is_empty() {
                    other.clone()
                } else {
                    one.iter().zip(other).map(|(a, b)| a + b).collect()
                }
            });
            self.strips.values_mut().flatten().for_each(|strip| halve(strip, sum));
        }
        usize::try_from(moment / self.width).unwrap_or(SLICES_MAX - 1)
    }

    /// A hold of a lane and a row, from then to then.
    pub(super) fn held(&mut self, lane: usize, row: usize, way: Way, from: u64, to: u64) {
        let (_, slice) = (self.slice(to.max(from)), self.slice(from));
        if let Some(begun) = at(&mut self.begun, slice) {
            *begun += 1;
        }
        let width = self.width;
        let Some(strip) = self.strips.entry((lane, row)).or_default().get_mut(way as usize) else {
            return;
        };
        let mut start = from;
        while start < to {
            let slice = start / width;
            let end = to.min((slice + 1) * width);
            if let Some(busy) = usize::try_from(slice).ok().and_then(|slice| at(strip, slice)) {
                *busy += end - start;
            }
            start = end;
        }
    }

    /// A lock went from one to the next within so many microseconds.
    pub(super) fn handed(&mut self, moment: u64, took: u64) {
        let slice = self.slice(moment);
        let class = class_of(took);
        let Some(classes) = at(&mut self.handed, slice) else { return };
        classes.resize(CLASSES, 0);
        if let Some(count) = classes.get_mut(class.min(CLASSES - 1)) {
            *count += 1;
        }
    }

    /// How many hand-offs a slice had, and the median of how long they took.
    fn median(classes: &[u32]) -> (u64, u64) {
        let all: u64 = classes.iter().copied().map(u64::from).sum();
        let mut seen = 0;
        let class = classes.iter().position(|count| {
            seen += u64::from(*count);
            seen * 2 >= all && all > 0
        });
        (all, class.map_or(0, |class| middle_of(class as u64)))
    }

    /// For the page, of a run that was so long; `rows` gives the row at which each is drawn.
    pub(super) fn json(mut self, length: u64, rows: &[usize]) -> Value {
        let mut last = self.slice(length) + 1;
        while last > 64 && last * self.strips.len() > STRIPS_MAX {
            last = self.slice(self.width * SLICES_MAX as u64).min(last.div_ceil(2));
        }
        self.begun.resize(last, 0);
        self.handed.resize(last, Vec::new());
        let hand: Vec<_> = self.handed.iter().map(|classes| Self::median(classes)).collect();
        let strips: serde_json::Map<String, Value> = self
            .strips
            .iter()
            .map(|((lane, row), strip)| {
                let row = rows.get(*row).copied().unwrap_or(*row);
                (
                    format!("{lane}/{row}"),
                    strip.each_ref().map(|strip| self.levels(strip, length)).into_iter().collect(),
                )
            })
            .collect();
        json!({"width": self.width, "rate": self.begun, "hand": hand, "strips": strips})
    }

    /// A digit a slice: 0 for none, 9 for all of it.
    fn levels(&self, strip: &[u64], length: u64) -> String {
        let full = |slice: u64| self.width.min(length.saturating_sub(slice * self.width)).max(1);
        let level = |(slice, busy): (u64, &u64)| {
            (busy * (LEVELS - 1)).div_ceil(full(slice)).min(LEVELS - 1)
        };
        (0..)
            .zip(strip)
            .filter_map(|of| {
                u32::try_from(level(of)).ok().and_then(|level| char::from_digit(level, 10))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hold_counts_however_long_a_run_becomes() {
        let mut density = Density::default();
        // 100 s in which one holds for a half of every millisecond.
        for ms in 0..100_000 {
            density.held(0, 1, Way::Exclusive, ms * 1_000, ms * 1_000 + 500);
            density.handed(ms * 1_000, 100);
        }
        let told = density.json(100_000_000, &[5, 0]);
        let (width, rate) = (told["width"].as_u64().unwrap(), told["rate"].as_array().unwrap());
        assert!(
            rate.len() <= SLICES_MAX && width * rate.len() as u64 >= 100_000_000,
            "{width} {}",
            rate.len()
        );
        assert_eq!(rate.iter().map(|n| n.as_u64().unwrap()).sum::<u64>(), 100_000);
        assert!(rate.iter().all(|n| n.as_u64().unwrap() > 0), "they fall to nothing nowhere");
        let hand = told["hand"].as_array().unwrap();
        assert_eq!(hand.iter().map(|h| h[0].as_u64().unwrap()).sum::<u64>(), 100_000);
        assert!(hand.iter().all(|h| (95..=105).contains(&h[1].as_u64().unwrap())), "{hand:?}");
        let strip = told["strips"]["0/0"][0].as_str().unwrap();
        assert!(
            strip.len() == rate.len() && strip.chars().all(|level| level == '5'),
            "a half: {strip}"
        );
        assert_eq!(
            (told["strips"]["0/0"][1].as_str(), told["strips"].as_object().unwrap().len()),
            (Some(""), 1)
        );
    }

    #[test]
    fn a_class_of_times_is_an_eighth_of_a_doubling_and_none_is_left_out() {
        let mut before = 0;
        for took in 1..200_000_u64 {
            let class = class_of(took);
            assert!(class == before || class == before + 1, "{took}");
            let off = middle_of(class as u64).abs_diff(took);
            assert!(off * 16 <= took, "{took} is shown as {}", middle_of(class as u64));
            before = class;
        }
        assert!(class_of(90_000_000) < CLASSES, "a minute and a half");
    }

    #[test]
    fn a_hold_over_many_slices_fills_each_of_them() {
        let mut density = Density::default();
        density.held(0, 0, Way::Shared, 500, 3_250);
        let told = density.json(4_000, &[0]);
        assert_eq!(told["strips"]["0/0"][1], "5993");
        assert_eq!(told["rate"].as_array().unwrap().len(), 5);
    }

    #[test]
    fn many_lanes_and_names_are_drawn_in_wider_slices() {
        let mut density = Density::default();
        for lane in 0..1_000 {
            density.held(lane, 0, Way::Permits, 0, 1_000_000);
        }
        let told = density.json(1_000_000, &[0]);
        assert!(told.to_string().len() < 1_000_000, "{}", told.to_string().len());
        assert!(told["strips"]["7/0"][2].as_str().unwrap().starts_with("9999"));
    }
}
