//! On a healthy server nobody loses a lock: `run` with every layout, every length of a lease and
//! every `--kill-after`; `acquire`, `elect` and `--on-lost warn` at their defaults.
//!
//! What is expected of a cell comes from the documentation of `--kill-after`: at most a third of
//! the ttl or session.

use std::fmt;
use std::time::{Duration, Instant};

use crate::common::healthy::{By, Servers, Setup};
use crate::common::{Place, Reaped, json};

/// A command holds its lock for three leases, and no longer than this.
const HELD_AT_MOST: Duration = Duration::from_secs(100);
/// How long a phase may take beyond that: all cells start at once, on whatever is free of two
/// cores.
const PATIENCE: Duration = Duration::from_secs(30);
/// One lockkeeper.
struct Cell {
    verb: &'static str,
    setup: String,
    lease: String,
    kill_after: String,
    name: String,
    words: Vec<String>,
    holds: Duration,
    expected: Expected,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    Held,
    /// The start refuses it, and says which two options are to be changed.
    Refused([&'static str; 2]),
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setup, verb, lease, kill_after, .. } = self;
        write!(f, "{setup:<28} {verb:<8} {lease:<12} --kill-after {kill_after:<9}")
    }
}

/// As an option takes it.
fn text(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

/// A setup's cells: what is at its default is not mentioned on the command line.
fn cells(setup: &Setup) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (row, lease) in setup.leases.into_iter().enumerate() {
        let said = (row > 0).then_some(lease);
        for kill_after in [None, Some(Duration::from_secs(1)), Some(lease / 3)] {
            cells.push(Cell::new(setup, said, lease, kill_after));
        }
    }
    if setup.by == By::Session {
        // A third of what was asked for is more than a third of what the server gives.
        let asked = Duration::from_secs(60);
        cells.push(Cell::new(setup, Some(asked), setup.leases[2], Some(asked / 3)));
    }
    let default = |verb| Cell { verb, ..Cell::new(setup, None, setup.leases[0], None) };
    let mut warns = default("run");
    warns.words.extend(["--on-lost", "warn", "--lost-exit-code", "79"].map(str::to_owned));
    cells.extend([warns, default("acquire")]);
    cells.extend(setup.has_elections.then(|| default("elect")));
    cells
}

impl Cell {
    /// `said`: the lease that is asked for; `lease`: the one that the server gives.
    fn new(
        setup: &Setup,
        said: Option<Duration>,
        lease: Duration,
        kill_after: Option<Duration>,
    ) -> Self {
        let mut words = vec!["--url".to_owned(), setup.url.clone()];
        match (said, setup.by) {
            (Some(ttl), By::Ttl) => words.extend(["--ttl".to_owned(), text(ttl)]),
            (Some(session), By::Session) => {
                let separator = if setup.url.contains('?') { '&' } else { '?' };
                words[1] += &format!("{separator}session_timeout={}", text(session));
            }
            (None, _) => {}
        }
        if let Some(kill_after) = kill_after {
            words.extend(["--kill-after".to_owned(), text(kill_after)]);
        }
        let expected = match (kill_after, setup.by) {
            (Some(given), By::Ttl) if given > lease / 3 => {
                Expected::Refused(["--kill-after", "--ttl"])
            }
            (Some(given), By::Session) if given > lease / 3 => {
                Expected::Refused(["--kill-after", "session_timeout"])
            }
            _ => Expected::Held,
        };
        Self {
            verb: "run",
            setup: setup.what.clone(),
            lease: said.map_or_else(|| "default".to_owned(), text),
            kill_after: kill_after.map_or_else(|| "default".to_owned(), text),
            name: String::new(),
            words,
            holds: (3 * lease).min(HELD_AT_MOST),
            expected,
        }
    }
}

/// What became of one cell.
struct Outcome {
    exit: i32,
    held: Duration,
    said: String,
}

impl Outcome {
    fn is(&self, cell: &Cell) -> bool {
        match &cell.expected {
            Expected::Held => self.exit == 0 && self.held >= cell.holds,
            Expected::Refused(options) => {
                self.exit == 64
                    && self.held.is_zero()
                    && options.iter().all(|option| self.said.contains(option))
            }
        }
    }
}

/// Runs all cells at once; the longest ones start first, while the others still need the processor
/// to start.
fn run(phase: &str, cells: &[Cell]) -> Vec<Outcome> {
    let place = Place::new();
    let began = Instant::now();
    let start = |cell: &Cell| {
        let mut lk = place.lk(["--json", cell.verb, &cell.name]);
        lk.args(&cell.words);
        let holds = cell.holds.as_secs_f64().to_string();
        match cell.verb {
            "acquire" => lk.args(["--for", &holds]),
            _ => lk.args(["--", "sleep", &holds]),
        };
        Reaped::spawn(lk.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()))
    };
    let children: Vec<Reaped> = cells.iter().map(start).collect();
    println!(
        "{phase}: {} commands started within {:.1} s",
        cells.len(),
        began.elapsed().as_secs_f64()
    );
    let outcomes = children.into_iter().map(|child| {
        let ran = child.output_within((HELD_AT_MOST + PATIENCE).saturating_sub(began.elapsed()));
        // The report comes last; that of a refusal at the start names no time.
        let report = [&ran.out, &ran.err].into_iter().find_map(|said| said.lines().last());
        let report = report.map(json).unwrap_or_default();
        let held = report["held_ms"].as_u64().map_or(Duration::ZERO, Duration::from_millis);
        let why = report["why"].as_str().unwrap_or_default();
        Outcome { exit: ran.code, held, said: format!("{why} {}{}", ran.out, ran.err) }
    });
    let outcomes = outcomes.collect();
    println!("{phase}: over after {:.1} s", began.elapsed().as_secs_f64());
    outcomes
}

/// Two processes that never sleep: on two cores everybody else gets what they leave.
fn busy(place: &Place) -> [Reaped; 2] {
    std::array::from_fn(|_| Reaped::spawn(&mut place.sh("while :; do :; done")))
}

#[test]
fn nobody_loses_a_lock_on_a_healthy_server_whatever_its_lease_and_kill_after() {
    let servers = Servers::start();
    let mut cells: Vec<Cell> = servers.setups().iter().flat_map(cells).collect();
    assert_eq!(
        cells.len(),
        9 * 9 + 6 + 9 * 2 + 5,
        "three lengths of a lease and three of --kill-after a setup, what no server gives, and \
         the other ways to hold one at the defaults"
    );
    cells.sort_by_key(|cell| std::cmp::Reverse(cell.holds));
    for (number, cell) in cells.iter_mut().enumerate() {
        cell.name = format!("sweep-{number}");
    }
    let idle = run("idle", &cells);
    let place = Place::new();
    let beside = busy(&place);
    let crowded = run("beside two busy processes", &cells);
    drop(beside);
    print_table(&cells, &idle, &crowded);
    let mut wrong = Vec::new();
    for (phase, outcomes) in [("idle", &idle), ("busy", &crowded)] {
        for (cell, outcome) in
            cells.iter().zip(outcomes).filter(|(cell, outcome)| !outcome.is(cell))
        {
            let Outcome { exit, held, said } = outcome;
            let (held, wanted) = (held.as_secs_f64(), &cell.expected);
            wrong.push(format!(
                "{phase} {cell} {wanted:?}: exit {exit} after {held:.1} s: {}",
                said.trim()
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cells are not as they should be:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn print_table(cells: &[Cell], idle: &[Outcome], busy: &[Outcome]) {
    let mut rows: Vec<(&Cell, &Outcome, &Outcome)> =
        cells.iter().zip(idle).zip(busy).map(|((cell, idle), busy)| (cell, idle, busy)).collect();
    rows.sort_by_key(|(cell, ..)| &cell.setup);
    println!(
        "{:<73} {:>8}  {:>9} {:>7}  {:>9} {:>7}",
        "cell", "to hold", "idle exit", "held s", "busy exit", "held s"
    );
    for (cell, idle, busy) in rows {
        let to_hold = if cell.expected == Expected::Held {
            format!("{:.1}", cell.holds.as_secs_f64())
        } else {
            "refused".to_owned()
        };
        let parts = [idle, busy].map(|outcome| {
            let wrong = if outcome.is(cell) { ' ' } else { '!' };
            format!("{:>8}{wrong} {:>7.1}", outcome.exit, outcome.held.as_secs_f64())
        });
        println!("{:<73} {to_hold:>8}  {}", cell.to_string(), parts.join("  "));
    }
}
