//! Errors of the command line, in one line: what, which, and the line that would have been right.

use std::ffi::{OsStr, OsString};

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
    // `--wait <D>` is how clap shows an option; people know it as --wait.
    let bare = |text: String| {
        text.split(" <").next().unwrap_or_default().trim_matches(['<', '>']).to_owned()
    };
    let option = bare(text(ContextKind::InvalidArg));
    let value = text(ContextKind::InvalidValue);
    let shown = quoted(OsStr::new(&value));
    let help = format!(
        "lockkeeper {}--help lists what there is",
        subcommand(line).map(|s| format!("{s} ")).unwrap_or_default()
    );
    match error.kind() {
        ErrorKind::UnknownArgument => {
            if let Some(right) = suggest::with_dashes(&option, line) {
                return format!("the command stands after --: {right}");
            }
            let near = bare(text(ContextKind::SuggestedArg));
            if !option.starts_with('-') {
                format!("there is no place for {}: {help}", quoted(OsStr::new(&option)))
            } else if near.is_empty() || !suggest::knows(&option, &near, line) {
                format!("there is no option {option}: {help}")
            } else {
                format!("there is no option {option}: did you mean {near}?")
            }
        }
        ErrorKind::InvalidSubcommand => {
            no_subcommand(&text(ContextKind::InvalidSubcommand), error, line)
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
            let other = bare(text(ContextKind::PriorArg));
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

/// What is wrong with a word where a subcommand should be.
fn no_subcommand(word: &str, error: &clap::Error, line: &[OsString]) -> String {
    let mut near = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(near)) => near.clone(),
        Some(ContextValue::String(near)) => vec![near.clone()],
        _ => Vec::new(),
    };
    // Clap's measure also finds words that have little in common.
    near.retain(|sub| sub.as_bytes().first() == word.as_bytes().first());
    near.extend(
        suggest::one_letter_off(word).filter(|sub| !near.contains(sub)).collect::<Vec<_>>(),
    );
    let no = format!("there is no subcommand {}", quoted(OsStr::new(word)));
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
    if matches!(subcommand(line), Some("run" | "elect"))
        && !line.iter().any(|w| w == "--" || w == "-c")
    {
        missing.extend(["--", "CMD", "ARGS…"].map(str::to_owned));
    }
    format!("{what} {is_are} missing: {}", suggest::with_missing(&missing, line))
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
