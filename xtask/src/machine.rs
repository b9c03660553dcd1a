//! What else the machine had to do while something failed: without that nobody can tell a fault
//! from a machine that was busy.

use std::fs::read_to_string;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long the thread sleeps that only sleeps.
const NAP: Duration = Duration::from_millis(20);

/// When it woke, and by how much it was late, for each nap after which no longer one came.
static LATE: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

/// From now on a thread only sleeps, and notes by how much it is late.
pub fn watch() {
    static WATCHED: OnceLock<()> = OnceLock::new();
    WATCHED.get_or_init(|| {
        thread::spawn(|| {
            loop {
                let asleep = Instant::now();
                thread::sleep(NAP);
                note(&LATE, Instant::now(), asleep.elapsed().saturating_sub(NAP));
            }
        });
    });
}

/// The load, the pressure, and the longest pause since then, in a line.
pub fn told(since: Instant) -> String {
    let late = LATE.lock().unwrap_or_else(PoisonError::into_inner);
    let longest = longest(&late, since);
    let load = read_to_string("/proc/loadavg").unwrap_or_default();
    let pressures = ["cpu", "io", "memory"].map(|what| {
        let text = read_to_string(format!("/proc/pressure/{what}")).unwrap_or_default();
        (what, pressure(&text))
    });
    text(&load, &pressures, longest)
}

/// Notes a pause. What was shorter and came before it is of no use any more.
fn note(late: &Mutex<Vec<(Instant, Duration)>>, at: Instant, by: Duration) {
    let mut late = late.lock().unwrap_or_else(PoisonError::into_inner);
    while late.last().is_some_and(|(_, shorter)| *shorter <= by) {
        late.pop();
    }
    late.push((at, by));
}

fn longest(late: &[(Instant, Duration)], since: Instant) -> Duration {
    late.iter().find(|(at, _)| *at >= since).map_or(Duration::ZERO, |(_, by)| *by)
}

/// For how much of the last minute somebody waited, in per cent, as the kernel says it.
fn pressure(text: &str) -> Option<String> {
    let share = text.lines().next()?.split(' ').find_map(|word| word.strip_prefix("avg60="));
    share.map(str::to_owned)
}

fn text(load: &str, pressures: &[(&str, Option<String>)], longest: Duration) -> String {
    let load = load.split(' ').next().unwrap_or_default();
    let waits: Vec<String> = pressures
        .iter()
        .filter_map(|(what, share)| share.as_ref().map(|share| format!("{what} {share} %")))
        .collect();
    let waits = match waits.is_empty() {
        true => String::new(),
        false => format!(", in the last minute somebody waited for {}", waits.join(", ")),
    };
    format!(
        "the machine meanwhile: load {load}{waits}; a thread that only sleeps was late by {} ms \
         once",
        longest.as_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_since_a_time_is_told_and_what_it_hides_is_forgotten() {
        let (late, begun) = (Mutex::default(), Instant::now());
        let at = |ms| begun + Duration::from_millis(ms);
        for (when, by) in [(10, 5), (20, 90), (30, 7), (40, 30), (50, 2)] {
            note(&late, at(when), Duration::from_millis(by));
        }
        let late = late.into_inner().unwrap();
        let told = [0, 20, 21, 41, 51].map(|ms| longest(&late, at(ms)).as_millis());
        assert_eq!(told, [90, 90, 30, 2, 0]);
        assert_eq!(late.len(), 3);
    }

    #[test]
    fn load_pressure_and_pause_stand_in_one_line() {
        let psi = "some avg10=1.00 avg60=41.27 avg300=9.00 total=5\nfull avg10=0.00 avg60=0.00";
        let pressures = [("cpu", pressure(psi)), ("io", pressure(""))];
        let line = text("7.24 3.00 1.00 2/500 77", &pressures, Duration::from_millis(340));
        assert!(line.contains("load 7.24, in the last minute somebody waited for cpu 41.27 %; "));
        assert!(line.contains("late by 340 ms"), "{line}");
        assert!(!text("", &[("io", None)], Duration::ZERO).contains("waited"));
        // And it is the machine's own.
        watch();
        assert!(told(Instant::now()).starts_with("the machine meanwhile: load "));
    }
}
