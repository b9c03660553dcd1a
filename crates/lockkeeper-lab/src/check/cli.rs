//! `lockkeeper check FILE…` without the argument parser of the command line.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper::text::json_line;
use serde_json::json;

use super::files::check_files;
use super::print::{print, print_json};
use crate::judge::{Class, Options};
use crate::trouble::Trouble;

const HELP: &str = "\
Judges histories of locks: who held what, when, with which token.

Usage: lockkeeper check [OPTIONS] FILE|DIRECTORY…

All files of one run belong together: one of every process, those of the
process that made the faults and of the resource included.

Options:
  --recovery D   The time within which a lock passes on after its holder died,
                 such as 31s; without it that is only measured
  --skew D       How far any machine's clock may be from the true time, for
                 histories from several machines
  --linger D     How long a claim that gave up or died may stay in the engine
                 [default: 20s]
  --fenced       Every hold but those of permits has a fencing token: one that
                 has none is a violation
  --allow CLASS  Count this class, but call the history clean all the same; may
                 be given several times
  --details N    Describe at most N violations of each class [default: 20]
  --classes      List the classes and end
  --json         One JSON object a line: each violation, then a summary; with
                 --classes each class
  -h, --help     Print help

Examples:
  lockkeeper check run.lkh
      Judge one recorded history
  lockkeeper check --classes
      What it can find

Exit status: 0 clean, 1 violations, 64 wrong usage, or a file that is not there
or no history, 69 a file cannot be read, 125 the report cannot be written.
";

/// What was asked for.
enum Asked {
    Help,
    Classes,
    Check { files: Vec<PathBuf>, options: Options, json: bool },
}

/// Runs `check` with these arguments (without the program's name) and answers the exit code.
pub fn main_check(
    args: impl IntoIterator<Item = OsString>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    let mut wrong = |exit: u8, message: String| {
        let (error, message) = (if exit == 64 { "usage" } else { "refused" }, message.as_str());
        let trouble = Trouble { error, name: None, engine: None, exit, message };
        let line = trouble.line("check", json);
        writeln!(err, "{line}").map(|()| exit)
    };
    let done = match parse(args) {
        Ok(Asked::Help) => out.write_all(HELP.as_bytes()).map(|()| 0),
        Ok(Asked::Classes) => classes(json, out).map(|()| 0),
        Ok(Asked::Check { files, options, json }) => match check_files(&files, options) {
            Ok(report) => (if json { print_json(&report, out) } else { print(&report, out) })
                .map(|()| report.exit_code()),
            Err(error) => wrong(error.exit_code(), error.to_string()),
        },
        Err(why) => wrong(64, why),
    };
    done.and_then(|code| out.flush().map(|()| code)).unwrap_or(125)
}

fn classes(json: bool, out: &mut dyn Write) -> std::io::Result<()> {
    Class::ALL.iter().try_for_each(|class| {
        let (word, verdict, meaning) = (class.as_str(), class.verdict().as_str(), class.meaning());
        if json {
            let object = json!({"class": word, "verdict": verdict, "meaning": meaning});
            return writeln!(out, "{}", json_line(object.to_string()));
        }
        writeln!(out, "{word:<22} {verdict:<9} {meaning}")
    })
}

fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Asked, String> {
    let (mut files, mut options, mut json) = (Vec::new(), Options::default(), false);
    let mut args = args.into_iter();
    let mut only_files = false;
    while let Some(arg) = args.next() {
        let text =
            arg.to_str().filter(|text| !only_files && text.starts_with('-') && text.len() > 1);
        let Some(text) = text else {
            files.push(PathBuf::from(arg));
            continue;
        };
        let (name, inline) = text
            .split_once('=')
            .map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
        let mut value = || {
            let given =
                inline.clone().or_else(|| args.next().and_then(|value| value.into_string().ok()));
            given.ok_or_else(|| format!("{name} needs a value"))
        };
        match name {
            "--recovery" => options.recovery = Some(duration(&value()?)?),
            "--skew" => options.skew = duration(&value()?)?,
            "--linger" => {
                options.linger = duration(&value()?)?;
                options.withdraw = options.linger;
            }
            "--allow" => {
                let word = value()?;
                let class = Class::from_word(&word).ok_or_else(|| {
                    format!("no class is called {word:?}: lockkeeper check --classes lists them")
                })?;
                options.allow.insert(class);
            }
            "--details" => {
                let word = value()?;
                options.details =
                    word.parse().map_err(|_| format!("--details takes a number, not {word:?}"))?;
            }
            "--fenced" => options.fenced = true,
            "--json" => json = true,
            "--classes" => return Ok(Asked::Classes),
            "-h" | "--help" => return Ok(Asked::Help),
            "--" => only_files = true,
            _ => {
                return Err(format!(
                    "unknown option {name}: lockkeeper check --help lists what there is"
                ));
            }
        }
    }
    Ok(Asked::Check { files, options, json })
}

fn duration(text: &str) -> Result<Duration, String> {
    lockkeeper::duration::parse(text).ok_or_else(|| {
        format!("{text:?} is not a duration; write it like 500ms, 2.5s, 2m or 1h30m")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str]) -> (u8, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = main_check(args.iter().map(OsString::from), &mut out, &mut err);
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn wrong_usage_is_one_line_and_64() {
        for args in [
            &["--what"][..],
            &["--recovery"],
            &["--skew", "soon"],
            &["--allow", "nothing"],
            &["--details", "many"],
            &[],
        ] {
            let (code, out, err) = run(args);
            assert_eq!((code, out.as_str(), err.lines().count()), (64, "", 1), "{args:?}: {err}");
            assert!(err.starts_with("lockkeeper: check: "), "{err}");
        }
    }

    #[test]
    fn help_and_the_classes_go_to_standard_output() {
        assert!(run(&["--help"]).1.starts_with("Judges histories") && run(&["-h"]).0 == 0);
        let (_, help, _) = run(&["--help"]);
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        for json in [&[][..], &["--json"]] {
            let (code, out, _) = run(&[&["--classes"], json].concat());
            assert_eq!((code, out.lines().count()), (0, Class::ALL.len()));
            let is_json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
            assert_eq!(out.lines().all(is_json), !json.is_empty(), "{out}");
        }
    }

    #[test]
    fn options_reach_the_checker() {
        let args = "--recovery=31s --skew 5ms --linger 1s --allow overlap --details 3 --fenced \
                    --json a - -- --b"
            .split(' ');
        let Ok(Asked::Check { files, options, json }) = parse(args.map(OsString::from)) else {
            panic!("a check")
        };
        assert_eq!(files, ["a", "-", "--b"].map(PathBuf::from));
        assert_eq!(
            (options.recovery, options.skew),
            (Some(Duration::from_secs(31)), Duration::from_millis(5))
        );
        assert_eq!((options.linger, options.details, json), (Duration::from_secs(1), 3, true));
        assert!(options.fenced && !Options::default().fenced);
        assert_eq!(options.allow.into_iter().collect::<Vec<_>>(), [Class::Overlap]);
    }

    #[test]
    fn a_report_that_cannot_be_written_is_our_own_failure() {
        let mut full = [0u8; 4];
        assert_eq!(
            main_check([OsString::from("--help")], &mut &mut full[..], &mut Vec::new()),
            125
        );
    }
}
