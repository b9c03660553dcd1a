//! Lines are at most 100 columns, whatever they are written in. rustfmt holds that for Rust's code
//! alone, and not where a string or a comment is too long.

use std::fs;

use crate::Outcome;
use crate::project::root;

/// As in rustfmt.toml.
const COLUMNS_MAX: usize = 100;

/// Checks every text file that is tracked, but generated ones and licences.
///
/// # Errors
/// A line is too long, or the files cannot be listed or read.
pub fn check() -> Outcome {
    let mut found = Vec::new();
    for path in tracked()? {
        let bytes = match fs::read(root().join(&path)) {
            Ok(bytes) => bytes,
            // Deleted, and not committed yet.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("{path}: {error}")),
        };
        let Ok(text) = String::from_utf8(bytes) else { continue };
        let long = too_long(&text, path.ends_with(".md"));
        found.extend(long.iter().map(|(line, width)| format!("{path}:{line}: {width} columns")));
    }
    if found.is_empty() {
        return Ok(());
    }
    let (many, list) = (found.len(), found.join("\n  "));
    Err(format!("{many} lines are longer than {COLUMNS_MAX} columns:\n  {list}"))
}

/// The files that git knows or would take in, by their path from the root.
fn tracked() -> Result<Vec<String>, String> {
    let mut git = std::process::Command::new("git");
    git.current_dir(root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let out = git.output().map_err(|error| format!("cannot start git: {error}"))?;
    if !out.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&out.stdout).into_owned();
    let names = names.split('\0').filter(|name| !name.is_empty() && !is_exempt(name));
    Ok(names.map(str::to_owned).collect())
}

/// What others write: lock files, and the texts of licences.
fn is_exempt(path: &str) -> bool {
    let locks = ["Cargo.lock", "go.sum", "package-lock.json"];
    let name = path.rsplit('/').next().unwrap_or(path);
    locks.contains(&name) || path.starts_with("LICENSE-")
}

/// The numbers and widths of lines that are too long and could be shorter.
fn too_long(text: &str, markdown: bool) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if markdown && line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let width = line.chars().count();
        if width > COLUMNS_MAX && !fenced && !is_table(line, markdown) && !is_one_word(line) {
            found.push((index + 1, width));
        }
    }
    found
}

/// A row of a table, in Markdown or in documentation.
fn is_table(line: &str, markdown: bool) -> bool {
    let line = line.trim_start();
    let doc = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
    let row = if markdown { Some(line) } else { doc.map(str::trim_start) };
    row.is_some_and(|row| row.starts_with("| "))
}

/// A word that is too long by itself, behind nothing but what has to stand before it: a URL, or the
/// name of a test.
fn is_one_word(line: &str) -> bool {
    const BEFORE: [&str; 11] = ["//", "///", "//!", "#", "--", "*", "-", "pub", "async", "fn", ">"];
    let mut words = line
        .split_whitespace()
        .skip_while(|word| BEFORE.contains(word) || word.starts_with('[') && word.ends_with("]:"));
    words.next().is_some() && words.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words up to a width of so many columns.
    fn words(width: usize) -> String {
        "word ".repeat(width)[..width - 1].to_owned() + "."
    }

    #[test]
    fn a_line_of_100_columns_passes_and_one_of_101_is_told_with_its_number() {
        let text = format!("{}\n\n  {}\n", words(100), words(99));
        assert_eq!(too_long(&text, false), [(3, 101)]);
        assert_eq!(too_long(&text, true), [(3, 101)]);
        assert_eq!(too_long(&text.replace('.', "…"), true), [(3, 101)], "columns, not bytes");
    }

    #[test]
    fn tables_fenced_code_and_a_single_long_word_may_be_longer() {
        let row = format!("| {} |", words(120));
        let url = format!("https://example.org/{}", "x".repeat(100));
        assert_eq!(too_long(&format!("{row}\n```sh\n{row}\n{}\n```\n", words(120)), true), []);
        let alone = format!("//! {row}\n/// {url}\n    async fn {}()\n# {url}", "n".repeat(100));
        assert_eq!(too_long(&alone, false), []);
        assert_eq!(too_long(&format!("[place]: {url}\n- {url}"), true), []);

        assert_eq!(too_long(&format!("```\n```\n{}", words(120)), true), [(3, 120)]);
        assert_eq!(too_long(&format!("{row}\n{row}"), false).len(), 2, "code is no table");
        assert_eq!(
            too_long(&format!("see {url}\nfn {}() -> u8 {{", "n".repeat(100)), true).len(),
            2
        );
    }

    #[test]
    fn only_what_others_write_is_not_looked_at() {
        let files = tracked().unwrap();
        for seen in ["README.md", "rustfmt.toml", "xtask/src/width.rs", ".ci/run"] {
            assert!(files.iter().any(|file| file == seen), "{seen}");
        }
        assert!(!files.iter().any(|file| file == "Cargo.lock" || file == "LICENSE-MIT"));
        let rustfmt = fs::read_to_string(root().join("rustfmt.toml")).unwrap();
        assert!(rustfmt.contains(&format!("max_width = {COLUMNS_MAX}\n")), "{rustfmt}");
    }
}
