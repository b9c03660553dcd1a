//! Checks the licence of every dependency against the list in deny.toml, with what cargo itself
//! knows.
//!
//! cargo-deny reads the same file and does more; building it takes longer than everything else here
//! together.

use std::fs;

use crate::Outcome;
use crate::project::{cargo, root};

/// Checks everything that the workspace builds, tests included.
///
/// # Errors
/// Every dependency whose licence does not let us use it.
pub fn check() -> Outcome {
    let path = root().join("deny.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let allowed = allow_list(&text);
    let tree = tree(&["--workspace", "--all-features", "--edges", "normal,build,dev"])?;
    let mut rows: Vec<&str> = tree.lines().filter(|line| !line.is_empty()).collect();
    rows.sort_unstable();
    rows.dedup();
    let refused: Vec<String> = rows.iter().filter_map(|row| refuse(row, &allowed)).collect();
    if refused.is_empty() {
        println!("licences: {} packages, every one allowed by deny.toml", rows.len());
        Ok(())
    } else {
        Err(format!("licences that deny.toml does not allow:\n  {}", refused.join("\n  ")))
    }
}

/// What cargo knows of the packages that `words` choose: a line `package|licence` for each place
/// that one has in the tree.
///
/// # Errors
/// cargo does not say.
pub fn tree(words: &[&str]) -> Result<String, String> {
    let mut tree = cargo(&["tree", "--locked", "--prefix", "none", "--no-dedupe"]);
    let tree = tree
        .args(["--format", "{p}|{l}"])
        .args(words)
        .output()
        .map_err(|error| format!("cargo tree: {error}"))?;
    if !tree.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&tree.stderr)));
    }
    Ok(String::from_utf8_lossy(&tree.stdout).into_owned())
}

/// The package and the licence of a line of [`tree`].
pub fn package_and_licence(row: &str) -> (&str, &str) {
    let (package, licence) = row.split_once('|').unwrap_or((row, ""));
    // cargo marks a package that it has shown before, which a circle of test dependencies makes
    // even without duplicates.
    (package, licence.trim_end_matches(" (*)"))
}

fn refuse(row: &str, allowed: &[String]) -> Option<String> {
    let (package, licence) = package_and_licence(row);
    if permitted(licence, allowed) {
        None
    } else {
        Some(format!("{package}: {}", if licence.is_empty() { "none stated" } else { licence }))
    }
}

/// The strings of `allow = [ … ]` in `[licenses]`.
fn allow_list(deny: &str) -> Vec<String> {
    let section = deny.lines().skip_while(|line| line.trim() != "[licenses]");
    let list =
        section.skip_while(|line| !line.starts_with("allow")).take_while(|line| line.trim() != "]");
    let quoted = list
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| line.split('"').nth(1));
    quoted.map(str::to_owned).collect()
}

/// Whether an SPDX expression can be met with the allowed licences. An older `A/B` means `A OR B`.
fn permitted(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest, allowed).unwrap_or(false) && rest.is_empty()
}

/// `A OR B`; `None` where the expression cannot be read.
fn any(rest: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut met = all(rest, allowed)?;
    while let Some(after) = rest.strip_prefix(&["OR"]) {
        *rest = after;
        met |= all(rest, allowed)?;
    }
    Some(met)
}

/// `A AND B`, which binds tighter.
fn all(rest: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut met = one(rest, allowed)?;
    while let Some(after) = rest.strip_prefix(&["AND"]) {
        *rest = after;
        met &= one(rest, allowed)?;
    }
    Some(met)
}

/// A licence, with its exception, or an expression in brackets.
fn one(rest: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let (first, mut after) = rest.split_first()?;
    if *first == "(" {
        let met = any(&mut after, allowed)?;
        *rest = after.strip_prefix(&[")"])?;
        return Some(met);
    }
    let mut licence = (*first).to_owned();
    if let ["WITH", exception, tail @ ..] = after {
        licence = format!("{licence} WITH {exception}");
        after = tail;
    }
    *rest = after;
    Some(allowed.contains(&licence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_met_by_the_allowed_licences_or_refused() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"]
            .map(str::to_owned);
        for good in [
            "MIT",
            "MIT OR GPL-3.0-only",
            "LGPL-2.1-or-later OR MIT",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0-only",
        ] {
            assert!(permitted(good, &allowed), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "(MIT OR GPL-3.0-only",
            "MIT Apache-2.0",
            "GPL-2.0-only WITH LLVM-exception",
            "MIT OR",
        ] {
            assert!(!permitted(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn a_package_without_a_licence_is_refused_by_name() {
        assert_eq!(
            refuse("mystery v1.0.0|", &["MIT".to_owned()]),
            Some("mystery v1.0.0: none stated".to_owned())
        );
        assert_eq!(refuse("fine v1.0.0|MIT", &["MIT".to_owned()]), None);
    }

    #[test]
    fn the_list_of_deny_toml_is_read_without_its_comments() {
        let text = "[advisories]\nallow = [\"no\"]\n[licenses]\nallow = [\n  # \
                    \"GPL-3.0-only\",\n  \"MIT\", # short\n  \"ISC\",\n]\n[bans]\nx = \"y\"\n";
        assert_eq!(allow_list(text), ["MIT", "ISC"]);
    }
}
