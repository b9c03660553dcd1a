//! Errors of the command line, in one line: what, which, and the line that would have been right.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::{Failure, exit};
use crate::text::quoted;

/// What to do with what clap says.
pub enum Said {
    /// Help or version: print to stdout, exit 0.
    Asked(String),
    /// Nothing was asked for: print the help to stderr, exit 64.
    Help(String),
    /// One line.
    Wrong(Failure),
}

/// Turns clap's errors into ours.
pub fn explain(error: &clap::Error, line: &[OsString]) -> Said {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Said::Asked(error.render().to_string()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => Said::Help(error.render().to_string()),
        _ => Said::Wrong(Failure::usage(words(error, line)).exit(exit::USAGE)),
    }
}

fn words(error: &clap::Error, line: &[OsString]) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    // `--wait <D>` is how clap shows an option; people know it as --wait.
    let bare = |text: String| text.split(" <").next().unwrap_or_default().trim_matches(['<', '>']).to_owned();
    let option = bare(text(ContextKind::InvalidArg));
    let value = text(ContextKind::InvalidValue);
    let shown = quoted(OsStr::new(&value));
    let help = format!("lockkeeper {}--help lists what there is", subcommand(line).map(|s| format!("{s} ")).unwrap_or_default());
    match error.kind() {
        ErrorKind::UnknownArgument => {
            if let Some(right) = with_dashes(&option, line) {
                return format!("the command stands after --: {right}");
            }
            let near = text(ContextKind::SuggestedArg);
            if !option.starts_with('-') {
                format!("there is no place for {}: {help}", quoted(OsStr::new(&option)))
            } else if near.is_empty() {
                format!("there is no option {option}: {help}")
            } else {
                format!("there is no option {option}: did you mean {}?", bare(near))
            }
        }
        ErrorKind::InvalidSubcommand => {
            let word = text(ContextKind::InvalidSubcommand);
            let near = text(ContextKind::SuggestedSubcommand).replace(", ", " or ");
            if let Some(at) = line.iter().position(|w| w == "--") {
                let rest = line.get(1..at).unwrap_or_default().iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" ");
                format!("there is no subcommand {}: lockkeeper run {rest} -- CMD ARGS…", quoted(OsStr::new(&word)))
            } else if near.is_empty() {
                format!("there is no subcommand {}: to hold a lock, lockkeeper run NAME -- CMD ARGS…", quoted(OsStr::new(&word)))
            } else {
                format!("there is no subcommand {}: did you mean {near}?", quoted(OsStr::new(&word)))
            }
        }
        ErrorKind::InvalidValue if value.is_empty() && !text(ContextKind::ValidValue).contains("''") && !given_empty(line) => {
            format!("{option} needs a value: {help}")
        }
        ErrorKind::InvalidValue => format!("{option} {shown} is not known: choose {}", text(ContextKind::ValidValue).replace(", ", " or ")),
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_else(|| "cannot be right".to_owned());
            // Our own parsers say a predicate; clap's numbers say a whole sentence.
            match why.split_once(" is not in ") {
                Some((_, range)) => format!("{option} {shown} is out of range: it is {}", range.replace("..=", " to ")),
                None if why.contains("digit") => format!("{option} {shown} is no number"),
                None => format!("{option} {shown} {why}"),
            }
        }
        ErrorKind::MissingRequiredArgument => match subcommand(line) {
            Some("run") => "NAME is missing: lockkeeper run NAME -- CMD ARGS…".to_owned(),
            Some("elect") => "NAME is missing: lockkeeper elect NAME -- CMD ARGS…".to_owned(),
            Some(sub) => format!("{option} is missing: lockkeeper {sub} {option}"),
            None => format!("{option} is missing: {help}"),
        },
        ErrorKind::ArgumentConflict => {
            let other = bare(text(ContextKind::PriorArg));
            if other == option {
                format!("{option} is given twice: give it once")
            } else {
                format!("{option} and {other} exclude each other: leave one out")
            }
        }
        ErrorKind::TooManyValues => format!("{option} takes no value, and {shown} was given: leave it out"),
        ErrorKind::InvalidUtf8 => format!("an argument is not UTF-8 text: {help}"),
        _ => {
            let all = error.render().to_string();
            all.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    }
}

/// The line with `--` before `word`, when the words before it name a subcommand that takes a command and a lock.
fn with_dashes(word: &str, line: &[OsString]) -> Option<String> {
    let sub = subcommand(line)?;
    if !matches!(sub, "run" | "elect") || word.starts_with('-') || line.iter().any(|w| w == "--") {
        return None;
    }
    // The right place is the first one that makes the line right.
    let at = (2..line.len()).filter(|at| line.get(*at).is_some_and(|w| w == word)).find(|at| {
        let (before, after) = line.split_at(*at);
        let right = before.iter().cloned().chain([OsString::from("--")]).chain(after.iter().cloned());
        super::command().try_get_matches_from(right).is_ok()
    })?;
    let words = |part: &[OsString]| part.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" ");
    Some(format!("lockkeeper {} -- {}", words(line.get(1..at)?), words(line.get(at..)?)))
}

/// The subcommand, as far as a line that clap refused can be read.
fn subcommand(line: &[OsString]) -> Option<&str> {
    let known = super::command();
    let ours = line.iter().skip(1).take_while(|w| *w != "--").filter_map(|w| w.to_str());
    ours.into_iter().find(|w| known.get_subcommands().any(|s| s.get_name() == *w))
}

fn given_empty(line: &[OsString]) -> bool {
    line.iter().any(|w| w.is_empty())
}

/// Whether JSON was asked for, on a line that clap refused.
pub fn wants_json(line: &[OsString]) -> bool {
    line.iter().skip(1).take_while(|w| *w != "--").any(|w| w == "--json")
}

/// The report's file, on a line that clap refused.
pub fn report_file(line: &[OsString]) -> Option<OsString> {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let mut ours = line.iter().skip(1).take_while(|w| *w != "--");
    while let Some(word) = ours.next() {
        if word == "--report" {
            return ours.next().cloned();
        }
        if let Some(file) = word.as_bytes().strip_prefix(b"--report=") {
            return Some(OsString::from_vec(file.to_vec()));
        }
    }
    None
}
