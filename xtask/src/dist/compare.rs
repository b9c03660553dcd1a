//! Whether the static binary is as fast as the ordinary build: its C library has an allocator of
//! its own, and other calls for time and threads. Of the ordinary one also that it loads no other
//! library, for which every `run` would wait.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::files::output;
use super::target::Target;
use crate::Outcome;
use crate::project::{cargo, must, root};

/// How much longer the static one may take.
const RATIO_MAX: f64 = 1.15;
/// How often each is measured, in turn.
const ROUNDS: usize = 7;
/// The rows of the bench.
const ROWS: [&str; 2] = ["uncontended", "many-names"];

/// What one operation takes, in microseconds: by row and engine, a value a round.
type Figures = BTreeMap<(String, String), Vec<f64>>;

/// Builds both and measures them in turn. For a quiet machine.
///
/// # Errors
/// One cannot be built or measured, or the static one is slower.
pub fn run(target: Target) -> Outcome {
    must(&mut cargo(&["build", "--release", "--locked", "--package", "lockkeeper-cli"]))?;
    must(&mut target.build("target"))?;
    let ordinary = root().join("target/release/lockkeeper");
    let tables = output(Command::new("readelf").arg("-d").arg(&ordinary))?;
    let tables = String::from_utf8_lossy(&tables);
    let others = loaded_beside_libc(&tables);
    if !others.is_empty() {
        return Err(format!("the ordinary build loads {}", others.join(", ")));
    }
    let fixed = target.folder("target").join("lockkeeper");
    let (mut ours, mut theirs) = (Figures::new(), Figures::new());
    for _ in 0..ROUNDS {
        for row in ROWS {
            measure(&fixed, row, &mut ours)?;
            measure(&ordinary, row, &mut theirs)?;
        }
    }
    judge(ours, &mut theirs)
}

/// What a program loads that neither is the C library nor loads it, as readelf says it.
fn loaded_beside_libc(tables: &str) -> Vec<&str> {
    let needed = tables.lines().filter(|line| line.contains("(NEEDED)"));
    let names = needed.filter_map(|line| line.split_once('[')?.1.strip_suffix(']'));
    names.filter(|name| !name.starts_with("libc.") && !name.starts_with("ld-")).collect()
}

fn measure(binary: &Path, row: &str, figures: &mut Figures) -> Outcome {
    let mut bench = Command::new(binary);
    bench.args(["bench", "--only", row, "--seconds", "2", "--json", "memory:", "file:auto"]);
    let said = output(&mut bench)?;
    let mut seen = Vec::new();
    for line in String::from_utf8_lossy(&said).lines() {
        let told: Value = serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
        let (Some(engine), Some(took)) = (told["engine"].as_str(), told["p50_us"].as_f64()) else {
            return Err(format!("no figure: {line}"));
        };
        // An engine with two floors has two lines.
        if !seen.contains(&engine.to_owned()) {
            seen.push(engine.to_owned());
            figures.entry((row.to_owned(), engine.to_owned())).or_default().push(took);
        }
    }
    Ok(())
}

fn judge(ours: Figures, theirs: &mut Figures) -> Outcome {
    println!("{:<14} {:<8} {:>10} {:>10} {:>6}", "row", "engine", "static µs", "ordinary", "ratio");
    let mut slower = Vec::new();
    for (key, mut took) in ours {
        let mut other = theirs.remove(&key).ok_or("the two builds have other rows")?;
        let (one, two) = (median(&mut took), median(&mut other));
        let ratio = one / two;
        println!("{:<14} {:<8} {one:>10.3} {two:>10.3} {ratio:>6.2}", key.0, key.1);
        // A median of nothing is no number.
        if ratio.is_nan() || ratio > RATIO_MAX {
            slower.push(format!("{} on {}: {ratio:.2}", key.0, key.1));
        }
    }
    if slower.is_empty() {
        Ok(())
    } else {
        Err(format!("the static binary takes more than {RATIO_MAX}: {}", slower.join("; ")))
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_loaded_beside_the_c_library_is_named() {
        let line = |name| format!(" 0x0000000000000001 (NEEDED)  Shared library: [{name}]\n");
        let libc = line("libc.so.6") + &line("ld-linux-x86-64.so.2");
        assert!(loaded_beside_libc(&libc).is_empty());
        assert_eq!(loaded_beside_libc(&(libc + &line("libm.so.6"))), ["libm.so.6"]);
    }

    #[test]
    fn a_slower_static_binary_is_named_with_its_row() {
        let figures = |took: &[f64]| {
            Figures::from([(("uncontended".to_owned(), "file".to_owned()), took.to_vec())])
        };
        assert_eq!(judge(figures(&[1.0, 9.0, 1.1]), &mut figures(&[1.0])), Ok(()));
        assert!(
            judge(figures(&[1.2]), &mut figures(&[1.0]))
                .is_err_and(|why| why.contains("uncontended on file: 1.20"))
        );
        assert!(judge(figures(&[]), &mut figures(&[1.0])).is_err());
        assert!(judge(figures(&[1.0]), &mut Figures::new()).is_err());
    }
}
