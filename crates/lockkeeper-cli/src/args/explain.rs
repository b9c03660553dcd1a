//! Errors of the command line, in one line: what, which, and the line that would have been right.

use std::ffi::{OsStr, OsString};

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::suggest::{self, word as quoted};
use crate::failure::{Failure, exit};

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
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            Said::Asked(error.render().to_string())
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Said::Help(error.render().to_string())
        }
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
    let option = match error.kind() {
        // As it was typed.
        ErrorKind::UnknownArgument => text(ContextKind::InvalidArg),
        _ => bare(&text(ContextKind::InvalidArg)),
    };
    let value = text(ContextKind::InvalidValue);
    let shown = quoted(OsStr::new(&value));
    let sub = subcommand(line);
    let help = format!(
        "lockkeeper {}--help lists what there is",
        sub.as_deref().map(|s| format!("{s} ")).unwrap_or_default()
    );
    match error.kind() {
        ErrorKind::UnknownArgument => {
            if let Some(right) = suggest::with_dashes(&option, line) {
                return format!("the command stands after --: {right}");
            }
            let near = bare(&text(ContextKind::SuggestedArg));
            if matches!(option.as_str(), "-u" | "--unlock")
                && matches!(sub.as_deref(), Some("run" | "acquire" | "elect"))
            {
                // flock(1) has it.
                format!(
                    "there is no option {option}: a lock is given back when its holder ends; to \
                     take it away, lockkeeper release --force NAME"
                )
            } else if !option.starts_with('-') {
                format!("there is no place for {}: {help}", quoted(OsStr::new(&option)))
            } else if near.is_empty() || !suggest::knows(&option, &near, line) {
                format!("there is no option {option}: {help}")
            } else {
                format!("there is no option {option}: did you mean {near}?")
            }
        }
        ErrorKind::InvalidSubcommand => {
            no_subcommand(&text(ContextKind::InvalidSubcommand), error, line, &help)
        }
        ErrorKind::MissingSubcommand => {
            format!(
                "the subcommand is missing: to hold a lock, lockkeeper run NAME -- CMD ARGS…; \
                 {help}"
            )
        }
        ErrorKind::InvalidValue
            if value.is_empty()
                && !text(ContextKind::ValidValue).contains("''")
                && !given_empty(line) =>
        {
            format!("{option} needs a value: {help}")
        }
        ErrorKind::InvalidValue => format!(
            "{option} {shown} is not known: choose {}",
            text(ContextKind::ValidValue).replace(", ", " or ")
        ),
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error)
                .map(ToString::to_string)
                .unwrap_or_else(|| "cannot be right".to_owned());
            // Our own parsers say a predicate; clap's numbers say a whole sentence.
            match why.split_once(" is not in ") {
                Some((_, range)) => format!(
                    "{option} {shown} is out of range: it is {}",
                    range.replace("..=", " to ")
                ),
                None if why.contains("digit") => format!("{option} {shown} is not a number"),
                None => format!("{option} {shown} {why}"),
            }
        }
        ErrorKind::MissingRequiredArgument => missing(error, line),
        ErrorKind::ArgumentConflict => {
            let other = bare(&text(ContextKind::PriorArg));
            if other == option {
                format!("{option} is given twice: give it once")
            } else {
                format!("{option} and {other} exclude each other: leave one out")
            }
        }
        ErrorKind::TooManyValues => {
            format!("{option} takes no value, and {shown} was given: leave it out")
        }
        ErrorKind::InvalidUtf8 => format!("an argument is not UTF-8 text: {help}"),
        _ => {
            let all = error.render().to_string();
            all.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    }
}

/// `--wait <D>`, `--processes [<N>]` and `[PAGE]` are how clap shows what people know as --wait,
/// --processes and PAGE.
fn bare(text: &str) -> String {
    let text = [" <", " ["].iter().fold(text, |text, mark| text.split(mark).next().unwrap_or(text));
    text.trim_matches(['<', '>', '[', ']', '.']).to_owned()
}

/// What is wrong with a word where a subcommand should be; `help` says where they are listed.
fn no_subcommand(word: &str, error: &clap::Error, line: &[OsString], help: &str) -> String {
    let mut near = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(near)) => near.clone(),
        Some(ContextValue::String(near)) => vec![near.clone()],
        _ => Vec::new(),
    };
    let no = format!("there is no subcommand {}", quoted(OsStr::new(word)));
    if suggest::is_of_another(word, line) {
        return match suggest::with_near(word, &near, line) {
            Some(right) => format!("{no}: did you mean {right}?"),
            None => format!("{no}: {help}"),
        };
    }
    // Clap's measure also finds words that have little in common.
    near.retain(|sub| sub.as_bytes().first() == word.as_bytes().first());
    near.extend(
        suggest::one_letter_off(word).filter(|sub| !near.contains(sub)).collect::<Vec<_>>(),
    );
    // A word behind -- is the command, and what is missing stands before it.
    if line
        .iter()
        .position(|w| w == "--")
        .is_some_and(|at| !line.iter().take(at).any(|w| w == word))
    {
        let missing = ["run", "NAME"].map(str::to_owned);
        return format!("the subcommand is missing: {}", suggest::with_missing(&missing, line));
    }
    if let Some(right) = suggest::with_meant(word, line) {
        return format!("{no}: did you mean {right}?");
    }
    match suggest::with_near(word, &near, line) {
        Some(right) => format!("{no}: did you mean {right}?"),
        None => match suggest::with_run(word, line) {
            Some(right) => format!("{no}: to hold a lock, {right}"),
            None if near.is_empty() && line.iter().any(|w| w == "--help") => {
                format!("{no}: {help}")
            }
            None if near.is_empty() => {
                format!("{no}: to hold a lock, lockkeeper run NAME -- CMD ARGS…")
            }
            None => format!("{no}: did you mean {}?", near.join(" or ")),
        },
    }
}

/// What is missing, and the line with a word in its place.
fn missing(error: &clap::Error, line: &[OsString]) -> String {
    let mut missing = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(all)) => {
            all.iter().map(|one| one.trim_matches(['<', '>']).to_owned()).collect()
        }
        _ => Vec::new(),
    };
    let is_are = if missing.len() == 1 { "is" } else { "are" };
    let what = missing.join(" and ");
    if matches!(subcommand(line).as_deref(), Some("run" | "elect"))
        && !line.iter().any(|w| w == "--" || w == "-c")
    {
        missing.extend(["--", "CMD", "ARGS…"].map(str::to_owned));
    }
    format!("{what} {is_are} missing: {}", suggest::with_missing(&missing, line))
}

/// The subcommand, with the one of its own behind it, as far as a line that clap refused can be
/// read.
fn subcommand(line: &[OsString]) -> Option<String> {
    let known = super::command();
    let mut ours = line.iter().skip(1).take_while(|w| *w != "--").filter_map(|w| w.to_str());
    let sub = ours.by_ref().find_map(|w| known.find_subcommand(w))?;
    let inner = ours.find_map(|w| sub.find_subcommand(w));
    let names: Vec<_> = std::iter::once(sub).chain(inner).map(Command::get_name).collect();
    Some(names.join(" "))
}

/// The lock's name, as far as a line was read that clap refused.
pub fn name(line: &[OsString]) -> Option<String> {
    let read = super::command().ignore_errors(true).try_get_matches_from(line).ok()?;
    let (_, sub) = read.subcommand()?;
    let name = sub.try_get_one::<OsString>("name").ok()??;
    Some(name.to_string_lossy().into_owned())
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
