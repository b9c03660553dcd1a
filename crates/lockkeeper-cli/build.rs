//! Says which commit and target this is, and links the unwinder statically.
//!
//! The commit is what `cargo xtask dist` gives, or what cargo wrote into a package.
//!
//! The unwinder: this links it into the program instead of loading libgcc_s.so.1 at every start.
//!
//! Rust asks the linker for `-lgcc_s`. Where the C compiler has the same unwinder as an archive
//! (every Debian with gcc), a linker script of that name, found first, sends the request there: one
//! shared library less to find, map and relocate, about 0.1 ms of the 1.6 ms that
//! `lockkeeper run -F NAME -- true` takes. Where it has not, nothing changes.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    println!("cargo:rerun-if-env-changed=LOCKKEEPER_COMMIT");
    // Cargo runs a script again and again that watches what is not there.
    if Path::new(PACKAGED).exists() {
        println!("cargo:rerun-if-changed={PACKAGED}");
    }
    let of = |key: &str| env::var(key).unwrap_or_default();
    println!("cargo:rustc-env=LOCKKEEPER_TARGET={}", of("TARGET"));
    if let Some(commit) = commit() {
        println!("cargo:rustc-env=LOCKKEEPER_COMMIT={commit}");
    }
    let native = of("TARGET") == of("HOST");
    if !native
        || of("CARGO_CFG_TARGET_OS") != "linux"
        || of("CARGO_CFG_TARGET_ENV") != "gnu"
        || !has_archive()
    {
        return Ok(());
    }
    let dir = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(dir.join("libgcc_s.so"), "INPUT ( -lgcc_eh )\n")?;
    println!("cargo:rustc-link-search=native={}", dir.display());
    Ok(())
}

/// Where cargo writes of which commit a package is.
const PACKAGED: &str = ".cargo_vcs_info.json";
/// What stands behind a commit whose files were changed.
const DIRTY: &str = "-dirty";

fn commit() -> Option<String> {
    let given = env::var("LOCKKEEPER_COMMIT").ok();
    let packaged = || {
        let text = fs::read_to_string(PACKAGED).ok()?;
        let value = text.split("\"sha1\"").nth(1)?.split('"').nth(1)?;
        // Cargo says so where the files were not those of the commit.
        let dirty = text.split("\"dirty\"").nth(1);
        let dirty =
            dirty.is_some_and(|rest| rest.trim_start_matches([' ', ':']).starts_with("true"));
        Some(if dirty { format!("{value}{DIRTY}") } else { value.to_owned() })
    };
    let given = given.or_else(packaged)?;
    let (commit, dirty) = given.strip_suffix(DIRTY).map_or((&*given, ""), |hex| (hex, DIRTY));
    let hex = commit.len() >= 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex.then(|| commit.chars().take(12).chain(dirty.chars()).collect())
}

/// Whether the C compiler finds the unwinder's archive.
fn has_archive() -> bool {
    let cc = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let output = Command::new(cc).arg("-print-file-name=libgcc_eh.a").output();
    // A compiler that does not know the file prints its bare name.
    output.is_ok_and(|o| {
        std::str::from_utf8(&o.stdout).is_ok_and(|path| Path::new(path.trim()).is_absolute())
    })
}
