//! The licence texts of what is linked into the binary, from the packages themselves.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::files::{output, read, text};
use super::packaging;
use super::sbom::{Package, Packages};
use super::target::Target;
use crate::project::cargo;

/// How the files that have them are called.
const NAMES: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];

/// One file for all of them: which package has which licence, then each text once.
///
/// # Errors
/// cargo does not say where a package is, or one comes without a text.
pub fn third_party(target: Target, packages: &Packages) -> Result<String, String> {
    let head = text(&packaging().join("third-party.txt"))?;
    let told = output(
        cargo(&["metadata", "--locked", "--format-version", "1"])
            .args(["--filter-platform", target.triple()]),
    )?;
    let told = serde_json::from_slice(&told).map_err(|error| format!("cargo metadata: {error}"))?;
    gather(head, &folders(&told), packages)
}

/// Where each package is.
fn folders(metadata: &Value) -> BTreeMap<Package, PathBuf> {
    let all = metadata["packages"].as_array().into_iter().flatten();
    let of = |package: &Value| {
        let field = |key: &str| package[key].as_str().map(str::to_owned);
        let folder = Path::new(&field("manifest_path")?).parent()?.to_path_buf();
        Some(((field("name")?, field("version")?), folder))
    };
    all.filter_map(of).collect()
}

fn gather(
    head: String,
    folders: &BTreeMap<Package, PathBuf>,
    packages: &Packages,
) -> Result<String, String> {
    let mut list = head;
    // The same text, whatever the white space, is printed once.
    let mut texts: BTreeMap<Vec<String>, (String, Vec<String>)> = BTreeMap::new();
    for ((name, version), licence) in packages {
        let of = format!("{name} {version}");
        let folder = folders.get(&(name.clone(), version.clone()));
        let folder = folder.ok_or_else(|| format!("cargo does not know where {of} is"))?;
        let found = texts_in(folder)?;
        if found.is_empty() {
            return Err(format!("{of} ({licence}) comes without the text of its licence"));
        }
        list += &format!("  {of}: {licence}\n");
        for text in found {
            let words = text.split_whitespace().map(str::to_owned).collect();
            texts.entry(words).or_insert_with(|| (text, Vec::new())).1.push(of.clone());
        }
    }
    let line = "-".repeat(80);
    for (text, of) in texts.into_values() {
        list += &format!("\n{line}\n{}:\n\n{}\n", of.join(", "), text.trim_matches('\n'));
    }
    Ok(list)
}

fn texts_in(folder: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        file.is_file() && NAMES.iter().any(|start| name.starts_with(start))
    });
    files.sort();
    files.iter().map(|file| Ok(String::from_utf8_lossy(&read(file)?).into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_stands_once_and_a_package_without_one_is_refused() {
        let dir = std::env::temp_dir().join(format!("xtask-texts-{}", std::process::id()));
        let package = |name: &str| (name.to_owned(), "1.0.0".to_owned());
        let mut folders = BTreeMap::new();
        for (name, file, text) in [
            ("a", "LICENSE-MIT", "you may\n"),
            ("b", "COPYING", "you\nmay"),
            ("c", "README", "no licence"),
        ] {
            super::super::files::write(&dir.join(name).join(file), text, 0o644).unwrap();
            folders.insert(package(name), dir.join(name));
        }
        let of = |names: &[&str]| {
            let packages = names.iter().map(|name| (package(name), "MIT".to_owned())).collect();
            gather("head\n".to_owned(), &folders, &packages)
        };
        let both = of(&["a", "b"]).unwrap();
        let without = of(&["a", "c"]);
        let unknown = of(&["d"]);
        fs::remove_dir_all(&dir).unwrap();
        assert!(both.starts_with("head\n  a 1.0.0: MIT\n  b 1.0.0: MIT\n"), "{both}");
        assert_eq!(both.matches("a 1.0.0, b 1.0.0:\n\nyou may\n").count(), 1, "{both}");
        assert!(without.is_err_and(|why| why.starts_with("c 1.0.0 (MIT) comes without")));
        assert!(unknown.is_err_and(|why| why.contains("where d 1.0.0 is")));
    }
}
