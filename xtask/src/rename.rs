//! Renames of files and words by a checked-in list, so that a pass is applied whole, also to a
//! branch that was begun before it, and what is left of the old words shows.

use std::fs;
use std::path::Path;

use crate::project::root;
use crate::width::tracked;
use crate::{Outcome, known};

/// Where the list is.
const LIST: &str = "xtask/renames.txt";

/// One line of the list.
#[derive(Debug, PartialEq, Eq)]
enum Rename<'a> {
    /// A file, by its path from the root.
    File { old: String, new: String },
    /// A word or a path of Rust, in the files of one folder.
    Word { old: &'a str, new: &'a str, folder: &'a str },
}

/// `cargo xtask rename`
pub fn run(words: &[String]) -> Outcome {
    known(words, &[])?;
    let list = list()?;
    for rename in parse(&list)? {
        apply(&rename)?;
    }
    check()
}

/// Nothing that the list renames is there any more.
///
/// # Errors
/// Something is, or the list cannot be read.
pub fn check() -> Outcome {
    let list = list()?;
    let mut left = Vec::new();
    for rename in parse(&list)? {
        match rename {
            Rename::File { old, .. } if root().join(&old).exists() => left.push(old),
            Rename::File { .. } => {}
            Rename::Word { old, new, folder } => {
                for path in in_folder(folder)? {
                    let text = fs::read_to_string(root().join(&path)).unwrap_or_default();
                    if replaced(&text, old, new).is_some() {
                        left.push(format!("{path}: {old}"));
                    }
                }
            }
        }
    }
    if left.is_empty() {
        return Ok(());
    }
    Err(format!("`cargo xtask rename` has not renamed:\n  {}", left.join("\n  ")))
}

fn list() -> Result<String, String> {
    fs::read_to_string(root().join(LIST)).map_err(|error| format!("{LIST}: {error}"))
}

fn parse(list: &str) -> Result<Vec<Rename<'_>>, String> {
    let lines = list.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(at, line)| rename(line).ok_or(format!("{LIST}:{}: {line}", at + 1))).collect()
}

/// `old → new` of a file; `old → new in folder` of a file there (its name has a dot), or of a word.
fn rename(line: &str) -> Option<Rename<'_>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [old, "→", new] if old.contains('/') && new.contains('/') => {
            Some(Rename::File { old: old.to_owned(), new: new.to_owned() })
        }
        [old, "→", new, "in", folder] if old.contains('.') && new.contains('.') => {
            let there = |file: &str| format!("{folder}/{file}");
            Some(Rename::File { old: there(old), new: there(new) })
        }
        [old, "→", new, "in", folder] if old != new => Some(Rename::Word { old, new, folder }),
        _ => None,
    }
}

fn apply(rename: &Rename<'_>) -> Outcome {
    match rename {
        Rename::File { old, new } => {
            let (old, new) = (root().join(old), root().join(new));
            if !old.exists() {
                return Ok(());
            }
            if new.exists() {
                return Err(format!("{} and {} are both there", old.display(), new.display()));
            }
            let folder = new.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(folder)
                .and_then(|()| fs::rename(&old, &new))
                .map_err(|error| format!("{}: {error}", new.display()))
        }
        Rename::Word { old, new, folder } => {
            for path in in_folder(folder)? {
                let file = root().join(&path);
                let Ok(text) = fs::read_to_string(&file) else { continue };
                if let Some(text) = replaced(&text, old, new) {
                    fs::write(&file, text).map_err(|error| format!("{path}: {error}"))?;
                }
            }
            Ok(())
        }
    }
}

fn in_folder(folder: &str) -> Result<Vec<String>, String> {
    let prefix = format!("{}/", folder.trim_end_matches('/'));
    let own = |path: &String| path.starts_with(&prefix) && path != LIST;
    Ok(tracked()?.into_iter().filter(own).collect())
}

/// The text with each whole word replaced, if there was one.
fn replaced(text: &str, old: &str, new: &str) -> Option<String> {
    let of_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut found = false;
    while let Some(at) = rest.find(old) {
        let (before, after) = (&rest[..at], &rest[at + old.len()..]);
        let whole = !before.ends_with(of_word) && !after.starts_with(of_word);
        found |= whole;
        out.push_str(before);
        out.push_str(if whole { new } else { old });
        rest = after;
    }
    out.push_str(rest);
    found.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_replaced_and_parts_of_words_are_not() {
        let text = "use crate::id::ClaimId; crate::ideal crate::id";
        let new = "use crate::words::id::ClaimId; crate::ideal crate::words::id";
        assert_eq!(replaced(text, "crate::id", "crate::words::id").as_deref(), Some(new));
        assert_eq!(replaced(new, "crate::id", "crate::words::id"), None, "once");
        assert_eq!(replaced("Turns reTurn", "Turn", "Share"), None);
    }

    #[test]
    fn a_line_names_a_file_or_a_word_with_its_folder() {
        let list =
            "# a remark\n\na/b.rs → a/c/b.rs\nb.rs → c/b.rs in a\nTurn → Share in crates/x\n";
        let file = || Rename::File { old: "a/b.rs".into(), new: "a/c/b.rs".into() };
        let word = Rename::Word { old: "Turn", new: "Share", folder: "crates/x" };
        assert_eq!(parse(list), Ok(vec![file(), file(), word]));
        for wrong in ["a b", "a → b", "a/b → c", "a → a in x", "a → b in"] {
            assert!(parse(wrong).is_err_and(|text| text.contains(wrong)), "{wrong}");
        }
    }

    #[test]
    fn what_the_list_renames_is_gone() {
        assert_eq!(check(), Ok(()));
    }
}
