//! Torture: briefly in `cargo xtask campaign`, and for hours with
//! `cargo xtask torture --hours N`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::interrupt;
use crate::project::{cargo, must, root, show};
use crate::runner::Job;
use crate::stage::Workshop;
use crate::totals::{Run, Total, print};

/// One kind of run.
struct Kind {
    url: String,
    how: How,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// In a stage and in the hours.
    Always,
    /// Left to the hours.
    Long,
    /// What each that asks costs the server while many wait, in both.
    Crowd,
}

/// How long one takes in a stage.
const BRIEFLY: &str = "30";

/// What prints the kinds, with the arguments of `cargo run` or of the program before it: the
/// laboratory knows the engines.
const CAMPAIGN: [&str; 2] = ["__helper", "campaign"];

/// Every kind that the laboratory has printed.
fn kinds(printed: &str) -> Result<Vec<Kind>, String> {
    let kind = |line: &str| {
        let (url, how) = line.rsplit_once(' ')?;
        let how = match how {
            "always" => How::Always,
            "long" => How::Long,
            "crowd" => How::Crowd,
            _ => return None,
        };
        Some(Kind { url: url.to_owned(), how })
    };
    let read = |line| kind(line).ok_or_else(|| format!("{line:?} is no kind of torture"));
    let kinds = printed.lines().map(read).collect::<Result<Vec<_>, _>>()?;
    if kinds.is_empty() { Err("the laboratory tortures nothing".to_owned()) } else { Ok(kinds) }
}

impl Kind {
    /// What tables call it.
    fn name(&self) -> String {
        let of = if self.how == How::Crowd { " crowd" } else { "" };
        format!("{}{of}", self.url)
    }

    /// How long one takes at most in the long form.
    fn most(&self) -> Duration {
        Duration::from_secs(if self.how == How::Crowd { 60 } else { 600 })
    }

    /// The words after the program's name.
    fn words(&self, seconds: &str, seed: u64) -> Vec<String> {
        let seed = seed.to_string();
        // One name: all of them stand in one line.
        let crowd = ["--faults", "crowd", "--names", "1"];
        let options = if self.how == How::Crowd { &crowd[..] } else { &[] };
        let words = ["torture", &self.url, "--seconds", seconds, "--seed", &seed].into_iter();
        words.chain(options.iter().copied()).map(str::to_owned).collect()
    }

    /// A brief run.
    fn job(&self) -> Job {
        let mut command = cargo(&PROGRAM);
        command.args(self.words(BRIEFLY, 1));
        // What each caller costs is measured in a crowd: where processors are short grants are not
        // confirmed in time, and are made again.
        let alone = self.how == How::Crowd;
        Job { seconds: 30.0, alone, ..Job::new(&self.name().replace(' ', "-"), command) }
    }
}

/// The program as a stage runs it.
const PROGRAM: [&str; 5] = ["run", "--quiet", "--package", "lockkeeper-cli", "--"];

/// How many engines are tortured at a time: the faults make them wait, and two cores have room for
/// two.
const AT_A_TIME: usize = 2;

/// Each engine for half a minute, with a debug build: it is the machine's speed that counts here,
/// and not ours.
pub fn briefly(workshop: &Workshop) -> Outcome {
    workshop.build(&mut cargo(&["build", "--package", "lockkeeper-cli"]))?;
    let kinds = kinds(&workshop.read(&mut cargo(&[&PROGRAM[..], &CAMPAIGN].concat()))?)?;
    let brief = kinds.iter().filter(|kind| kind.how != How::Long);
    workshop.run_all(brief.map(Kind::job).collect(), AT_A_TIME)
}

/// `cargo xtask torture --hours N`: the engines in turn with rising seeds, until a violation, a
/// signal or the end.
pub fn long(words: &[String]) -> Outcome {
    let time = hours(words)?;
    must(&mut cargo(&["build", "--release", "--package", "lockkeeper-cli"]))?;
    let reports = root().join("target/torture");
    fs::create_dir_all(&reports).map_err(|error| format!("{}: {error}", reports.display()))?;
    let program = root().join("target/release/lockkeeper");
    let printed = Command::new(&program).args(CAMPAIGN).output();
    let printed = printed.map_err(|error| format!("{}: {error}", program.display()))?;
    let campaign = Campaign {
        kinds: kinds(&String::from_utf8_lossy(&printed.stdout))?,
        program,
        reports,
        time,
        least: Duration::from_secs(5),
    };
    let ended = campaign.run(&mut std::io::stdout())?;
    ended.map_or(Ok(()), |signal| Err(interrupt::end_by(signal)))
}

fn hours(words: &[String]) -> Result<Duration, String> {
    let [flag, number] = words else {
        return Err("say for how long: cargo xtask torture --hours N".to_owned());
    };
    let hours = number
        .parse::<f64>()
        .ok()
        .filter(|h| flag == "--hours" && h.is_finite() && (0.0..=10_000.0).contains(h));
    hours
        .map(|h| Duration::from_secs_f64(h * 3600.0))
        .ok_or_else(|| format!("{flag} {number}: cargo xtask torture --hours N is expected"))
}

/// The long form.
struct Campaign {
    kinds: Vec<Kind>,
    program: PathBuf,
    /// Where the last line of each run goes, and its picture.
    reports: PathBuf,
    time: Duration,
    /// With less time left none is begun.
    least: Duration,
}

impl Campaign {
    /// Answers the signal that ended it, if one did; whatever does, what was seen until then is
    /// added up and printed.
    ///
    /// # Errors
    /// A run found something or could not be made.
    fn run(&self, out: &mut dyn Write) -> Result<Option<i32>, String> {
        let _watch = interrupt::Watch::new();
        let mut totals = BTreeMap::new();
        let ended = self.rounds(&mut totals, out);
        // Whoever reads may have gone; the exit code says it all the same.
        _ = print(&totals, out);
        ended
    }

    fn rounds(
        &self,
        totals: &mut BTreeMap<String, Total>,
        out: &mut dyn Write,
    ) -> Result<Option<i32>, String> {
        let end = Instant::now() + self.time;
        for seed in 1.. {
            for (kind, to_come) in self.kinds.iter().zip((1..=self.kinds.len()).rev()) {
                if let Some(signal) = interrupt::caught() {
                    return Ok(Some(signal));
                }
                let left = end.saturating_duration_since(Instant::now());
                if left < self.least {
                    return Ok(None);
                }
                // So that all of them have a turn, however short the time is.
                let share = (left / u32::try_from(to_come).unwrap_or(1)).max(self.least);
                self.one(kind, share.min(kind.most()), seed, totals, out)?;
            }
        }
        Ok(interrupt::caught())
    }

    fn one(
        &self,
        kind: &Kind,
        time: Duration,
        seed: u64,
        totals: &mut BTreeMap<String, Total>,
        out: &mut dyn Write,
    ) -> Outcome {
        let file = |extension: &str| {
            self.reports.join(format!(
                "{}-{seed}.{extension}",
                kind.name().replace([':', '?', '=', ' '], "-")
            ))
        };
        let (line, picture) = (file("json"), file("html"));
        let mut command = Command::new(&self.program);
        command
            .args(kind.words(&time.as_secs().to_string(), seed))
            .args(["--json", "--report"])
            .arg(&picture);
        let status = finish(&mut command, &line)?;
        let text =
            fs::read_to_string(&line).map_err(|error| format!("{}: {error}", line.display()))?;
        let failed = || format!("{} ended with {status}", show(&command));
        // Without a line there was no run: wrong use, a server that cannot be had, or a signal
        // before it began.
        let run = match Run::read(&text) {
            Some(run) => run,
            None if interrupt::caught().is_some() => return Ok(()),
            None => return Err(failed()),
        };
        let total = totals.entry(kind.name()).or_default();
        total.add(&run);
        _ = writeln!(out, "{} seed {seed}: {run}\n  until now: {total}", kind.name())
            .and_then(|()| out.flush());
        // Too weak to say is a seed whose schedule showed nothing.
        if run.convicts() {
            return Err(format!(
                "{}; its picture is {}, its last line {}",
                failed(),
                picture.display(),
                line.display()
            ));
        }
        Ok(())
    }
}

/// Runs a command to its end; its output goes to a file. A signal that is for us is for it as well,
/// once: what a terminal sends to a whole group would reach it twice, and the second one says not
/// to wait for a verdict.
fn finish(command: &mut Command, output: &Path) -> Result<ExitStatus, String> {
    let file = File::create(output).map_err(|error| format!("{}: {error}", output.display()))?;
    let started = command.stdin(Stdio::null()).stdout(file).process_group(0).spawn();
    let mut child = started.map_err(|error| format!("{}: {error}", show(command)))?;
    let mut told = false;
    loop {
        if let Some(status) =
            child.try_wait().map_err(|error| format!("{}: {error}", show(command)))?
        {
            return Ok(status);
        }
        if let Some(signal) = interrupt::caught().filter(|_| !told) {
            told = true;
            interrupt::pass_on(signal, child.id());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;

    use super::*;

    /// Signals are noted for one at a time.
    static ONE: Mutex<()> = Mutex::new(());

    const KINDS: &str = "file:auto always\nredis:auto always\nredis:auto?durable=true always\n\
                         zk:auto always\nzk:auto?nodes=3 long\nredis:auto crowd\nzk:auto crowd";

    #[test]
    fn what_the_laboratory_prints_is_what_is_tortured() {
        let all = kinds(KINDS).unwrap();
        let brief: Vec<_> =
            all.iter().filter(|kind| kind.how != How::Long).map(Kind::name).collect();
        assert_eq!(
            brief,
            [
                "file:auto",
                "redis:auto",
                "redis:auto?durable=true",
                "zk:auto",
                "redis:auto crowd",
                "zk:auto crowd"
            ]
        );
        let crowd = all.last().unwrap().words("30", 1).join(" ");
        assert_eq!(crowd, "torture zk:auto --seconds 30 --seed 1 --faults crowd --names 1");
        assert!(kinds("").is_err() && kinds("file:auto").is_err() && kinds("file:auto x").is_err());
    }

    /// What stands for the program: it is told URL and seed, and prints what `script` does.
    fn campaign(script: &str) -> (Result<Option<i32>, String>, String) {
        let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let dir = std::env::temp_dir().join(format!(
            "xtask-torture-{}-{}",
            std::process::id(),
            script.len()
        ));
        fs::create_dir_all(&dir).unwrap();
        let program = dir.join("program");
        let line = concat!(
            r#"line() { echo '{"verdict":"'$1'","holds":10,"faults":{"reset":2},"#,
            r#""stale_writes_rejected":3,"stale_writes_accepted":0}'; }"#
        );
        // A shell cannot trap what whoever started us has it ignore.
        let shell = "#!/usr/bin/env -S --default-signal=INT sh";
        fs::write(&program, format!("{shell}\n{line}\nurl=$2 seed=$6\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let campaign = Campaign {
            kinds: kinds(KINDS).unwrap(),
            program,
            reports: dir.clone(),
            time: Duration::from_secs(36_000),
            least: Duration::ZERO,
        };
        let mut out = Vec::new();
        let ended = campaign.run(&mut out);
        fs::remove_dir_all(&dir).unwrap();
        (ended, String::from_utf8(out).unwrap())
    }

    fn row<'a>(out: &'a str, name: &str) -> Vec<&'a str> {
        let (_, table) = out.split_once("\nengine ").unwrap();
        let row = table.lines().find_map(|line| line.strip_prefix(&format!("{name}  ")));
        row.unwrap_or_else(|| panic!("{name} has a row: {out}")).split_whitespace().collect()
    }

    #[test]
    fn a_violation_ends_it_and_what_was_seen_of_every_engine_until_then_is_added_up() {
        let (ended, out) = campaign(
            "case $seed$url in 2redis:auto) line violations; exit 1;; *zk*) line too-weak; \
             exit 2;; *) line clean; esac",
        );
        let said = ended.unwrap_err();
        assert!(
            said.contains("torture redis:auto --seconds 600 --seed 2")
                && said.contains("redis-auto-2.html"),
            "{said}"
        );
        assert_eq!(row(&out, "file:auto")[..5], ["2", "2/0/0", "20", "4", "6"], "{out}");
        assert_eq!(row(&out, "redis:auto")[..3], ["2", "1/0/1", "20"]);
        assert_eq!(row(&out, "redis:auto?durable=true")[..2], ["1", "1/0/0"]);
        assert_eq!(row(&out, "zk:auto?nodes=3")[..2], ["1", "0/1/0"]);
        assert_eq!(row(&out, "zk:auto crowd")[..2], ["1", "0/1/0"]);
        assert!(
            out.contains("redis:auto seed 2: violations")
                && out.contains("until now: 2 runs, 20 holds, 4 faults"),
            "{out}"
        );
    }

    #[test]
    fn a_signal_ends_the_run_that_is_under_way_and_the_sums_are_printed_with_it() {
        let waits =
            "trap 'line clean; exit 130' INT; kill -INT $PPID; while :; do sleep 0.02; done";
        let (ended, out) =
            campaign(&format!("[ $url = file:auto ] && {{ line clean; exit 0; }}\n{waits}"));
        assert_eq!(ended, Ok(Some(2)), "{out}");
        assert_eq!(row(&out, "file:auto")[..3], ["1", "1/0/0", "10"]);
        assert_eq!(
            row(&out, "redis:auto")[..3],
            ["1", "1/0/0", "10"],
            "the run that was interrupted counts as far as it came"
        );
        assert!(!out.contains("durable=true"), "nothing is begun after it: {out}");
    }

    #[test]
    fn what_a_terminal_sends_reaches_the_run_that_is_under_way_once() {
        let (ended, _) =
            campaign(r#"[ "$(cut -d' ' -f5 /proc/$$/stat)" = $$ ] && exit 70; exit 71"#);
        assert!(
            ended.as_ref().is_err_and(|said| said.contains("70")),
            "a group of its own: {ended:?}"
        );
    }

    #[test]
    fn a_program_that_cannot_do_it_ends_it_and_nothing_is_counted_for_it() {
        let (ended, out) = campaign("exit 69");
        assert!(
            ended.is_err_and(|said| said.contains("torture file:auto") && said.contains("69")),
            "{out}"
        );
        assert!(!out.contains("file:auto  "), "{out}");
    }

    #[test]
    fn hours_are_a_number_and_nothing_else_is_taken() {
        let given =
            |text: &str| hours(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(given("--hours 0.5"), Ok(Duration::from_secs(1800)));
        for wrong in ["", "--hours", "--hours x", "--hours -1", "--days 1", "--hours 1 2"] {
            assert!(given(wrong).is_err_and(|text| text.contains("--hours N")), "{wrong}");
        }
    }
}
