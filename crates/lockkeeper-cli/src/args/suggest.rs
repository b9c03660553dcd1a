//! Command lines that are right: each one is parsed before it is suggested.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use clap::error::{ContextKind, ContextValue};

use crate::choice::to_type;
use crate::text::quoted;

/// Options of `run` that take no value, as they may stand before `-c` in one word.
const FLAGS: &[u8] = b"sxenqvFo";

/// Whether lockkeeper takes this line.
pub fn is_right(line: &[OsString]) -> bool {
    let Ok(matches) = super::command().try_get_matches_from(line) else { return false };
    match matches.subcommand() {
        Some(("run", run)) => run.contains_id("argv") != run.contains_id("command"),
        Some(("elect", elect)) => elect.contains_id("argv"),
        Some(_) => true,
        None => false,
    }
}

/// A word of a line as a shell takes it back, with `PASSWORD` for each password of a URL in it:
/// what is said ends up in logs and files.
pub fn word(word: &OsStr) -> String {
    quoted(to_type(&word.to_string_lossy()).as_ref())
}

/// A line as a shell takes it back, with `PASSWORD` for each password in its URLs.
pub fn typed(line: &[OsString]) -> String {
    let words = line.iter().skip(1).map(|one| word(one));
    std::iter::once("lockkeeper".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// This process's own line with more words at its end, before a `--` that nothing follows.
pub fn with_more(more: &str) -> String {
    let mut line = crate::line::words().to_vec();
    line.pop_if(|word| word == "--");
    format!("{} {more}", typed(&line))
}

/// This process's own line with an option behind its subcommand.
pub fn with_option(sub: &str, option: &str) -> Option<String> {
    let line = crate::line::words();
    let places = (1..line.len()).filter(|at| line.get(*at).is_some_and(|word| word == sub));
    let mut lines = places.map(|at| with(line, at + 1..at + 1, &[option.as_ref()]));
    lines.find(|line| is_right(line)).map(|line| typed(&line))
}

/// The line with `--` before `word`, where a command follows the lock's name without it; with
/// `-c TEXT` a line that gives the words behind it to a shell as arguments.
pub fn with_dashes(word: &str, line: &[OsString]) -> Option<String> {
    if word.starts_with('-') || line.iter().any(|w| w == "--") {
        return None;
    }
    let places = (2..line.len()).filter(|at| line.get(*at).is_some_and(|w| w == word));
    // The right place is the first one that makes the line right.
    let right = |at: usize| {
        let dashed = with(line, at..at, &["--".as_ref()]);
        is_right(&dashed).then_some(dashed).or_else(|| shell(line.get(..at)?, line.get(at..)?))
    };
    places.filter_map(right).next().map(|line| typed(&line))
}

/// `-c TEXT` and arguments for it, as a command after `--`.
fn shell(before: &[OsString], arguments: &[OsString]) -> Option<Vec<OsString>> {
    let (mut line, text) = without_text(before)?;
    line.extend(["--", "sh", "-c"].map(OsString::from));
    line.push(text);
    line.extend_from_slice(arguments);
    is_right(&line).then_some(line)
}

/// The words without `-c TEXT`, and TEXT.
fn without_text(words: &[OsString]) -> Option<(Vec<OsString>, OsString)> {
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    words.iter().enumerate().skip(1).find_map(|(at, word)| {
        let bytes = word.as_bytes();
        if bytes == b"--command" {
            return Some((with(words, at..at + 2, &[]), words.get(at + 1)?.clone()));
        }
        if let Some(rest) = bytes.strip_prefix(b"--command=") {
            return Some((with(words, at..at + 1, &[]), text(rest)));
        }
        let letters = bytes.strip_prefix(b"-").filter(|l| !l.starts_with(b"-"))?;
        let place = letters.iter().position(|l| *l == b'c')?;
        let (flags, rest) = (letters.get(..place)?, letters.get(place + 1..)?);
        if !flags.iter().all(|flag| FLAGS.contains(flag)) {
            return None;
        }
        let kept = text(&[b"-", flags].concat());
        let kept: &[&OsStr] = if flags.is_empty() { &[] } else { &[&kept] };
        match rest {
            [] => Some((with(words, at..at + 2, kept), words.get(at + 1)?.clone())),
            rest => Some((with(words, at..at + 1, kept), text(rest))),
        }
    })
}

/// The subcommands that a word becomes when a letter is put in, taken out or changed, or two are
/// swapped.
pub fn one_letter_off(word: &str) -> impl Iterator<Item = String> {
    let names = super::SUBCOMMANDS.into_iter().map(|(name, ..)| name);
    names.filter(move |name| is_one_off(word.as_bytes(), name.as_bytes())).map(str::to_owned)
}

fn is_one_off(one: &[u8], other: &[u8]) -> bool {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let rest = |word: &[u8], skip: usize| word.get(same + skip..).map(<[u8]>::to_vec);
    let is_same = |a, b| rest(one, a).is_some_and(|r| Some(r) == rest(other, b));
    let is_swapped =
        || one.get(same) == other.get(same + 1) && one.get(same + 1) == other.get(same);
    is_same(0, 1) || is_same(1, 0) || is_same(1, 1) || is_same(2, 2) && is_swapped()
}

/// Words that people know from elsewhere, and what they are called here.
const MEANT: [(&[&str], &[&str]); 8] = [
    (&["unlock", "free", "steal", "break"], &["release", "--force"]),
    (&["exec", "with", "do"], &["run"]),
    (&["lock", "hold", "take"], &["acquire"]),
    (&["list", "locks"], &["ls"]),
    (&["info", "show", "who", "get"], &["status"]),
    (&["lead", "leader", "election"], &["elect"]),
    (&["semaphore", "resize"], &["permits"]),
    (&["ping", "verify", "diagnose"], &["doctor"]),
];

/// The line with what a word that is known from elsewhere is called here. A command behind a lock
/// is run under it; where no other word can be the lock's name, this one is.
pub fn with_meant(word: &str, line: &[OsString]) -> Option<String> {
    let at = line.iter().position(|w| w == word)?;
    let (_, meant) = MEANT.iter().find(|(words, _)| words.contains(&word))?;
    if line.iter().any(|w| w == "--") && is_right(&with(line, at..at, &["run".as_ref()])) {
        return None;
    }
    let run: &[&str] = &["run"];
    let given: Vec<&OsString> = line.iter().skip(at + 1).take_while(|w| *w != "--").collect();
    let lines = [*meant, run].map(|meant| {
        let is_given = |word: &str| word.starts_with('-') && given.iter().any(|w| **w == *word);
        let words = meant.iter().filter(|word| !is_given(word));
        let words: Vec<&OsStr> = words.map(OsStr::new).collect();
        with(line, at..at + 1, &words)
    });
    if let Some(right) = lines.iter().find(|line| is_right(line)) {
        return Some(typed(right));
    }
    let more = |meant: &[&str]| match meant {
        ["run" | "elect"] => format!("lockkeeper {} NAME -- CMD ARGS…", meant.join(" ")),
        ["ls" | "doctor"] => format!("lockkeeper {}", meant.join(" ")),
        ["permits"] => "lockkeeper permits NAME MAX".to_owned(),
        meant => format!("lockkeeper {} NAME", meant.join(" ")),
    };
    Some(lines.iter().find_map(|line| dashed(line)).unwrap_or_else(|| more(meant)))
}

/// Whether `word` stands where a subcommand has subcommands of its own.
pub fn is_of_another(word: &str, line: &[OsString]) -> bool {
    let known = super::command();
    let before = line.iter().take_while(|w| *w != word).filter_map(|w| w.to_str());
    before.filter_map(|w| known.find_subcommand(w)).any(clap::Command::has_subcommands)
}

/// The line with a subcommand that is near `word`.
pub fn with_near(word: &str, near: &[String], line: &[OsString]) -> Option<String> {
    let at = line.iter().position(|w| w == word)?;
    let takes_command = |sub: &&String| matches!(sub.as_str(), "run" | "elect");
    let has_command = line.iter().any(|w| w == "--");
    let near = near.iter().filter(|sub| !has_command || takes_command(sub));
    let mut lines = near.map(|sub| with(line, at..at + 1, &[sub.as_ref()]));
    lines.find(|line| is_right(line)).map(|line| typed(&line))
}

/// The line with the `run` that was left out before the lock's name.
pub fn with_run(word: &str, line: &[OsString]) -> Option<String> {
    let at = line.iter().position(|w| w == word)?;
    let line = with(line, at..at, &["run".as_ref()]);
    if is_right(&line) {
        return Some(typed(&line));
    }
    dashed(&line)
}

/// The line with dashes before the word that is wrong in it.
fn dashed(line: &[OsString]) -> Option<String> {
    let error = super::command().try_get_matches_from(line).err()?;
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) => with_dashes(word, line),
        _ => None,
    }
}

/// The line with the words that stand for what is missing.
pub fn with_missing(missing: &[String], line: &[OsString]) -> String {
    let at = line.iter().position(|word| word == "--").unwrap_or(line.len());
    let missing: Vec<_> = missing.iter().map(OsStr::new).collect();
    // A word of ours, which nobody types.
    typed(&with(line, at..at, &missing)).replace("'ARGS…'", "ARGS…")
}

/// Whether `near` in the place of an unknown option would be known.
pub fn knows(option: &str, near: &str, line: &[OsString]) -> bool {
    use clap::error::ErrorKind::{ArgumentConflict, UnknownArgument};
    let is_option = |w: &OsString| w.to_str().and_then(|w| w.split('=').next()) == Some(option);
    let Some(at) = line.iter().position(is_option) else { return false };
    let valued = line.get(at).and_then(|w| w.to_str()?.split_once('=')).map(|(_, value)| value);
    let near = valued.map_or(near.to_owned(), |value| format!("{near}={value}"));
    let known = super::command().try_get_matches_from(with(line, at..at + 1, &[near.as_ref()]));
    known.map_or_else(|e| !matches!(e.kind(), UnknownArgument | ArgumentConflict), |_| true)
}

/// The line with other words in a place.
fn with(line: &[OsString], place: std::ops::Range<usize>, words: &[&OsStr]) -> Vec<OsString> {
    let words = words.iter().map(|word| (*word).to_owned());
    let (before, after) = (line.iter().take(place.start), line.iter().skip(place.end));
    before.cloned().chain(words).chain(after.cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_text_for_the_shell_and_its_arguments_become_a_command() {
        for options in ["-c t", "-ct", "--command t", "--command=t", "-w 3 -c t"] {
            let words = line(&format!("lockkeeper run x {options} a b"));
            let right = with_dashes("a", &words).unwrap();
            assert!(right.ends_with(" -- sh -c t a b"), "{options}: {right}");
        }
        let flags = with_dashes("a", &line("lockkeeper run x -nqct a")).unwrap();
        assert_eq!(flags, "lockkeeper run x -nq -- sh -c t a");
    }

    #[test]
    fn a_suggested_line_holds_no_password() {
        let words = line("lockkeeper --url redis://u:secret@h/1?password=secret run x make all");
        let right = with_dashes("make", &words).unwrap();
        let url = "redis://u:PASSWORD@h/1?password=PASSWORD";
        assert_eq!(right, format!("lockkeeper --url '{url}' run x -- make all"));
    }
}
