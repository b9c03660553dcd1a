//! `lockkeeper bench`: each figure beside its floor, measured in the same run, alternating, as a
//! median of ratios.

pub(crate) mod bare;
pub(crate) mod contended;
pub(crate) mod handoff;
pub(crate) mod measure;
mod print;
mod traces;
pub(crate) mod uncontended;
pub(crate) mod waiting;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::engine::Keep;

use crate::engines::own::Own;
use crate::engines::{self, LabEngine};
use crate::scratch::Scratch;
use crate::trouble::Trouble;
pub(crate) use handoff::serve;
pub use measure::Row;
pub(crate) use traces::{HELPER as TRACES_HELPER, Stay, Traces, clear, own_word};

/// The kind of helper that is the other process of a hand-off.
pub(crate) const HELPER: &str = "bench";

/// Set for the programs that a row starts: a program that would measure again instead of doing what
/// it was started for must not start itself without end.
pub(crate) const INSIDE: &str = "LOCKKEEPER_BENCH_INSIDE";

/// The names of all rows, in the order in which they are measured.
pub const NAMES: [&str; 8] =
    ["uncontended", "turn", "many-names", "one-name", "process-handoff", "places", "leases", "run"];

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The engines; empty = `file` in a directory of its own, and `memory`.
    pub urls: Vec<String>,
    /// For everything together.
    pub time: Duration,
    /// One row only.
    pub only: Option<String>,
    /// One JSON object a row instead of a table.
    pub json: bool,
    /// Show progress on stderr.
    pub progress: bool,
    /// A target that is missed is a failure.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            time: Duration::from_secs(40),
            only: None,
            json: false,
            progress: false,
            strict: false,
        }
    }
}

/// Measures, prints, and answers the exit code: 0, 1 when a row could not be measured, what it left
/// could not be cleared away, or (strictly) a target was missed, 64 for a name that does not exist,
/// 69 for an engine that cannot be used.
pub fn run(options: &Options, out: &mut dyn Write) -> u8 {
    let json = options.json;
    if std::env::var_os(INSIDE).is_some() {
        let why = "it was started by itself; the row \"run\" needs the program lockkeeper";
        return wrong(json, "usage", None, 64, why);
    }
    if let Some(only) = &options.only
        && !NAMES.contains(&only.as_str())
        && only != "one-name-no-handoff"
    {
        let why = format!("{only:?} is no row; the rows are {}", NAMES.join(", "));
        return wrong(json, "usage", None, 64, why);
    }
    let scratch = match Scratch::new("lockkeeper-bench-") {
        Ok(scratch) => scratch,
        Err(why) => return wrong(json, "refused", None, 69, why.to_string()),
    };
    let mut urls = options.urls.clone();
    if urls.is_empty() {
        urls = engines::usual_subjects(&scratch.path().join("locks"));
    }
    let share = options.time
        / u32::try_from(urls.len() * if options.only.is_some() { 1 } else { NAMES.len() })
            .unwrap_or(1)
            .max(1);
    let mut printer = print::Printer::new(out, options.json);
    let is_given = !options.urls.is_empty();
    let (mut all_measured, mut all_met) = (true, true);
    for url in &urls {
        let subject = match Subject::open(url, is_given, scratch.path().to_owned(), share) {
            Ok(subject) => subject,
            Err(error) => {
                let kind = error.kind();
                let why = if json { error.message().to_owned() } else { error.to_string() };
                return wrong(json, kind.as_str(), error.engine_name(), kind.exit_code(), why);
            }
        };
        for name in NAMES {
            let wanted = options.only.as_deref().is_none_or(|only| {
                only == name || (name == "one-name" && only == "one-name-no-handoff")
            });
            if !wanted {
                continue;
            }
            if options.progress {
                eprint!("\r\x1b[Kmeasuring {name} on {}", subject.engine);
            }
            let rows = subject.measure(name);
            if options.progress {
                eprint!("\r\x1b[K");
            }
            match rows {
                Ok(rows) => {
                    rows.iter().for_each(|row| printer.row(row));
                    all_met &= rows.iter().all(|row| row.is_met() != Some(false));
                }
                Err(text) => {
                    all_measured = false;
                    let why = format!("{name} on {}: {text}", subject.engine);
                    wrong(json, "no", Some(subject.engine), 1, why);
                }
            }
        }
        all_measured &= subject.close(json);
    }
    printer.end();
    u8::from(!all_measured || options.strict && !all_met)
}

/// Says what went wrong, and answers the exit code.
fn wrong(
    json: bool,
    kind: &'static str,
    engine: Option<&str>,
    exit: u8,
    message: impl Into<String>,
) -> u8 {
    let message = &message.into();
    let trouble = Trouble { error: kind, name: None, engine, exit, message };
    eprintln!("{}", trouble.line("bench", json));
    exit
}

/// One engine under measurement.
pub(crate) struct Subject {
    pub(crate) url: String,
    pub(crate) engine: &'static str,
    lab: &'static dyn LabEngine,
    keep: Keep,
    /// What every name of this measurement begins with: nobody else has it.
    pub(crate) own: String,
    pub(crate) locks: lockkeeper::Locks,
    pub(crate) strict: lockkeeper::Locks,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) scratch: PathBuf,
    pub(crate) time: Duration,
    /// Dropped last: by then every connection is closed.
    traces: Option<Traces>,
    /// The server of its own on which it is measured.
    server: Option<Own>,
}

/// Where to measure, and who clears that away. Where nobody does, nothing is measured on what
/// somebody has given; a directory of our own goes with us.
fn cleared(
    url: &str,
    is_given: bool,
    traces: Result<(String, Option<Traces>), String>,
) -> lockkeeper::Result<(String, Option<Traces>)> {
    match traces {
        Ok(place) => Ok(place),
        Err(why) if is_given => {
            let text = format!(
                "nothing is measured here, because what that leaves could not be cleared away: \
                 {why}"
            );
            Err(lockkeeper::Error::new(lockkeeper::ErrorKind::Refused, text))
        }
        Err(_) => Ok((url.to_owned(), None)),
    }
}

impl Subject {
    fn open(
        url: &str,
        is_given: bool,
        scratch: PathBuf,
        time: Duration,
    ) -> lockkeeper::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| {
            lockkeeper::Error::new(lockkeeper::ErrorKind::Refused, format!("no runtime: {e}"))
        })?;
        let server = Own::start(url)?;
        let (url, is_given) =
            server.as_ref().map_or((url, is_given), |server| (server.url(), false));
        // An engine that refuses us is told as itself, and not as a place that cannot be made in
        // it.
        drop(runtime.block_on(lockkeeper::Locks::open(url))?);
        let own = own_word("bench");
        let (url, traces) = match server {
            // Its traces go with it.
            Some(_) => (url.to_owned(), None),
            None => cleared(url, is_given, Traces::of(url, &own))?,
        };
        let locks = runtime.block_on(lockkeeper::Locks::builder().io_enabled().open(&url))?;
        let strict =
            runtime.block_on(lockkeeper::Locks::builder().io_enabled().hand_off(0).open(&url))?;
        let engine = locks.describe().engine;
        let (lab, keep) = (engines::of(&url), engines::registration(&url)?.keep);
        Ok(Self {
            url,
            engine,
            lab,
            keep,
            own,
            locks,
            strict,
            runtime,
            scratch,
            time,
            traces,
            server,
        })
    }

    /// Clears away what was measured; answers whether nothing of it stays.
    fn close(mut self, json: bool) -> bool {
        let engine = self.engine;
        let (traces, own) = (self.traces.take(), std::mem::take(&mut self.own));
        let server = self.server.take();
        // Every connection is closed before.
        drop(self);
        let ended = server.map_or(Ok(()), Own::end);
        match ended.and(traces.map_or(Ok(()), Traces::end)) {
            Ok(()) => true,
            Err(Stay::Said) => false,
            Err(Stay::Ended(why)) => {
                let why = format!("what begins with {own} may stay: {why}");
                wrong(json, "no", Some(engine), 1, why);
                false
            }
        }
    }

    fn measure(&self, name: &str) -> Result<Vec<Row>, String> {
        self.lab.rows(self, name)
    }

    pub(crate) fn row(&self, bench: &'static str, tasks: u32) -> Row {
        Row { bench, engine: self.engine, tasks, ..Row::default() }
    }

    fn hand_off_target(&self) -> &'static str {
        self.lab.hand_off_target()
    }

    /// Whether its server was started for this.
    pub(crate) fn is_on_its_own(&self) -> bool {
        self.server.is_some()
    }

    /// A name of this measurement.
    pub(crate) fn name(&self, last: &str) -> String {
        format!("{}/{last}", self.own)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }
}

/// A row as it is measured on an engine that has no floor of its own for it.
pub(crate) fn general(subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
    match name {
        "uncontended" => uncontended::uncontended(subject, subject.time),
        "turn" => contended::turn(subject),
        "many-names" => uncontended::many_names(subject),
        "one-name" => contended::one_name(subject),
        "process-handoff" if subject.keep != Keep::Process => {
            handoff::process_handoff(subject, "-")
        }
        "places" => waiting::places(subject),
        _ => Ok(Vec::new()),
    }
}

/// The program to start again as a peer, and for the `run` row.
pub(crate) fn this_program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|e| format!("this program's own path is not known: {e}"))
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Makes a directory unless it is there.
pub(crate) fn directory(path: &Path) -> Result<(), String> {
    std::fs::create_dir_all(path).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nobody_would_clear_away_nothing_is_measured_on_what_somebody_has_given() {
        let failed = || Err("no more processes".to_owned());
        let error = cleared("redis://h", true, failed()).err().expect("a refusal");
        assert_eq!(error.kind(), lockkeeper::ErrorKind::Refused);
        assert!(error.message().ends_with("cleared away: no more processes"), "{error}");
        let (url, traces) = cleared("file:///own", false, failed()).expect("our own directory");
        assert!(url == "file:///own" && traces.is_none());
    }
}
