//! What is in the binary: a bill of materials in CycloneDX' JSON.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::target::{self, Target};
use crate::licences;
use crate::project::root;

/// The name and the version of a package.
pub type Package = (String, String);
/// Each with its licence.
pub type Packages = BTreeMap<Package, String>;

/// Every package that is linked into the command line or runs while it is built.
///
/// # Errors
/// cargo does not say.
pub fn packages(target: Target) -> Result<Packages, String> {
    let of = ["--package", "lockkeeper-cli", "--edges", "normal,build", "--target"];
    licences::tree(&[&of[..], &[target.triple()]].concat()).map(|tree| rows(&tree))
}

/// `tree`: lines `name vVERSION [more]|LICENCE`.
fn rows(tree: &str) -> Packages {
    let mut rows = Packages::new();
    for line in tree.lines() {
        let (package, licence) = licences::package_and_licence(line);
        let mut words = package.split_whitespace();
        if let (Some(name), Some(at)) = (words.next(), words.next()) {
            let at = at.trim_start_matches('v').to_owned();
            let licence = licence.replace('/', " OR ");
            rows.insert((name.to_owned(), at), licence);
        }
    }
    rows
}

/// The bill of them, and of what the compiler links in.
///
/// # Errors
/// Cargo.lock cannot be read, or the compiler does not say its version.
pub fn sbom(target: Target, packages: &Packages, version: &str) -> Result<String, String> {
    let path = root().join("Cargo.lock");
    let lock = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let bill = bill(packages, &linked(target)?, &checksums(&lock), version);
    serde_json::to_string_pretty(&bill).map_err(|error| error.to_string())
}

/// Rust's standard library and the C library: scanners look for these, too.
fn linked(target: Target) -> Result<Vec<Value>, String> {
    let rust = target::rustc(&["--version"])?;
    let rust = rust.split_whitespace().nth(1).ok_or("rustc says no version")?;
    let library = target.c_library()?;
    let row = |name: &str, at: &str, licence: &str| {
        json!({
            "type": "library", "name": name, "version": at,
            "purl": format!("pkg:generic/{name}@{at}"),
            "licenses": [{ "expression": licence }],
        })
    };
    Ok(vec![
        row("rust-std", rust, "MIT OR Apache-2.0"),
        match target {
            Target::Musl => row("musl", &library, "MIT"),
            Target::Glibc => row("glibc", &library, "LGPL-2.1-or-later"),
        },
    ])
}

/// The checksums in Cargo.lock.
fn checksums(lock: &str) -> BTreeMap<Package, String> {
    let mut found = BTreeMap::new();
    for block in lock.split("[[package]]") {
        let field = |key: &str| {
            let start = format!("{key} = \"");
            let mut lines = block.lines();
            lines.find_map(|line| line.strip_prefix(&start)?.strip_suffix('"').map(str::to_owned))
        };
        if let (Some(name), Some(version), Some(sum)) =
            (field("name"), field("version"), field("checksum"))
        {
            found.insert((name, version), sum);
        }
    }
    found
}

fn bill(
    rows: &Packages,
    linked: &[Value],
    sums: &BTreeMap<Package, String>,
    version: &str,
) -> Value {
    let component = |((name, at), licence): (&Package, &String)| {
        let mut row = json!({
            "type": "library",
            "name": name,
            "version": at,
            "purl": format!("pkg:cargo/{name}@{at}"),
            "licenses": [{ "expression": licence }],
        });
        if let (Some(sum), Some(row)) = (sums.get(&(name.clone(), at.clone())), row.as_object_mut())
        {
            row.insert("hashes".to_owned(), json!([{ "alg": "SHA-256", "content": sum }]));
        }
        row
    };
    let own = |name: &str| name == "lockkeeper-cli";
    let mut components: Vec<Value> =
        rows.iter().filter(|((name, _), _)| !own(name)).map(component).collect();
    components.extend_from_slice(linked);
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "name": "lockkeeper",
            "version": version,
            "purl": format!("pkg:cargo/lockkeeper-cli@{version}"),
        } },
        "components": components,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_stands_once_with_licence_and_checksum() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.2.3\"\nchecksum = \"ff\"\n\n\
                    [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let tree = "lockkeeper-cli v0.1.0 (/x)|MIT\na v1.2.3|MIT/Apache-2.0\na v1.2.3 (*)|MIT OR \
                    Apache-2.0 (*)\nown v0.1.0 (/x/own)|MIT";
        let bill = bill(&rows(tree), &[json!("std")], &checksums(lock), "0.1.0");
        assert_eq!(bill["metadata"]["component"]["version"], "0.1.0");
        assert_eq!(
            bill["components"],
            json!([
                {
                    "type": "library", "name": "a", "version": "1.2.3",
                    "purl": "pkg:cargo/a@1.2.3",
                    "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                    "hashes": [{ "alg": "SHA-256", "content": "ff" }],
                },
                {
                    "type": "library", "name": "own", "version": "0.1.0",
                    "purl": "pkg:cargo/own@0.1.0",
                    "licenses": [{ "expression": "MIT" }],
                },
                "std",
            ])
        );
    }
}
