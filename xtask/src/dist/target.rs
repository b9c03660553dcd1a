//! Which target the static binary is built for, and how.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::files;
use crate::project::{cargo, root};

/// A C library that is linked in whole, so that the binary needs none of the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// musl, whose names and users come from files and DNS alone.
    Musl,
    /// glibc, where musl's part of Rust cannot be had: users and hosts beyond files and DNS need
    /// the machine's own glibc.
    Glibc,
}

impl Target {
    /// The target of this machine; installs musl's part of Rust where it is missing.
    pub fn ensure() -> Self {
        if installed() {
            return Self::Musl;
        }
        let mut rustup = Command::new("rustup");
        rustup.args(["target", "add", Self::Musl.triple()]).stdin(Stdio::null());
        if rustup.status().is_ok_and(|status| status.success()) && installed() {
            return Self::Musl;
        }
        println!(
            "musl's part of Rust cannot be had (rustup target add {}): linked with glibc instead, \
             statically",
            Self::Musl.triple()
        );
        Self::Glibc
    }

    /// As cargo names it.
    pub fn triple(self) -> &'static str {
        match self {
            Self::Musl => "x86_64-unknown-linux-musl",
            Self::Glibc => "x86_64-unknown-linux-gnu",
        }
    }

    /// The version of its C library.
    ///
    /// # Errors
    /// It is not where it is expected, or says none.
    pub fn c_library(self) -> Result<String, String> {
        match self {
            Self::Musl => {
                let library = sysroot()?.join("lib/rustlib").join(self.triple());
                let library = files::read(&library.join("lib/self-contained/libc.a"))?;
                musl_version(&library).ok_or_else(|| "musl's libc.a says no version".to_owned())
            }
            Self::Glibc => {
                let said = files::output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
                let said = String::from_utf8_lossy(&said).trim().to_owned();
                said.strip_prefix("glibc ").map(str::to_owned).ok_or(said)
            }
        }
    }

    /// Makes a command of cargo build for it.
    pub fn apply(self, command: &mut Command) -> &mut Command {
        command.env("CARGO_BUILD_TARGET", self.triple());
        if let Some(commit) = commit() {
            command.env("LOCKKEEPER_COMMIT", commit);
        }
        // Where it was built is nobody's business, and makes no other binary.
        let (mut rust, mut c) = (Vec::new(), Vec::new());
        for (from, to) in builders_paths() {
            rust.push(format!("--remap-path-prefix={from}={to}"));
            c.push(format!("-ffile-prefix-map={from}={to}"));
        }
        match self {
            // What is written in C needs headers alone, and any C library has these; but not
            // glibc's own checks, which some compilers add by default.
            Self::Musl => {
                c.push("-U_FORTIFY_SOURCE".to_owned());
                command.env("CC_x86_64_unknown_linux_musl", "cc");
                command.env("CFLAGS_x86_64_unknown_linux_musl", c.join(" "));
            }
            Self::Glibc => rust.extend(["-C", "target-feature=+crt-static"].map(str::to_owned)),
        }
        command.env("CARGO_ENCODED_RUSTFLAGS", rust.join("\u{1f}"))
    }

    /// The folder of its release build under a target directory.
    pub fn folder(self, target_dir: &str) -> PathBuf {
        root().join(target_dir).join(self.triple()).join("release")
    }

    /// The command that builds the command line.
    pub fn build(self, target_dir: &str) -> Command {
        let mut command = cargo(&["build", "--release", "--locked", "--package", "lockkeeper-cli"]);
        self.apply(command.args(["--target-dir", target_dir]));
        command
    }
}

/// The commit of this checkout; `-dirty` where its files are not that commit's.
pub fn commit() -> Option<String> {
    let git = |words: &[&str]| {
        let out = Command::new("git").args(words).current_dir(root()).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { commit } else { commit + "-dirty" })
}

/// The directories that are the builder's alone, and what stands for them in a binary. The longest
/// stands last: rustc goes by the last one that fits.
pub fn builders_paths() -> Vec<(String, &'static str)> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo = cargo.or_else(|| Some(home?.join(".cargo")));
    let mut paths = vec![(root().display().to_string(), "/lockkeeper")];
    paths.extend(cargo.map(|cargo| (cargo.display().to_string(), "/cargo")));
    paths.sort_by_key(|(path, _)| path.len());
    paths
}

/// What the compiler says.
///
/// # Errors
/// It cannot be started, or fails.
pub fn rustc(words: &[&str]) -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = files::output(Command::new(rustc).args(words))?;
    Ok(String::from_utf8_lossy(&said).trim().to_owned())
}

fn sysroot() -> Result<PathBuf, String> {
    rustc(&["--print", "sysroot"]).map(PathBuf::from)
}

fn installed() -> bool {
    let part = Path::new("lib/rustlib").join(Target::Musl.triple()).join("lib");
    sysroot().is_ok_and(|sysroot| sysroot.join(part).is_dir())
}

/// The string of three numbers that musl has for its version.
fn musl_version(library: &[u8]) -> Option<String> {
    let mut strings = library.split(|byte| *byte == 0).filter(|text| text.starts_with(b"1.2."));
    let version =
        strings.find(|text| text.len() > 4 && text[4..].iter().all(u8::is_ascii_digit))?;
    Some(String::from_utf8_lossy(version).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_musl_is_found_among_its_strings() {
        let library = b"x\x001.2.x\x001.2.\x001.2.5\x00y";
        assert_eq!(musl_version(library).as_deref(), Some("1.2.5"));
        assert_eq!(musl_version(b"1.3.5"), None);
    }
}
