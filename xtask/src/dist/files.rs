//! Writing a tree of files, and running the programs that pack it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::stat::{Mode, umask};

use crate::Outcome;
use crate::project::show;

/// Writes a file with its folders; `mode` as chmod has it.
///
/// # Errors
/// It cannot be written.
pub fn write(path: &Path, contents: impl AsRef<[u8]>, mode: u32) -> Outcome {
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(fail)?;
    }
    fs::write(path, contents).map_err(fail)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(fail)
}

/// Copies the files of a folder, and of those in it.
///
/// # Errors
/// One cannot be read or written.
pub fn copy_tree(from: &Path, to: &Path) -> Outcome {
    let entries = fs::read_dir(from).map_err(|error| format!("{}: {error}", from.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let to = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_tree(&path, &to)?;
        } else {
            write(&to, read(&path)?, 0o644)?;
        }
    }
    Ok(())
}

/// Lets what is made meanwhile be read by everybody, whatever the caller's umask is, which is set
/// again afterwards.
pub struct Umask(Mode);

impl Umask {
    /// 022.
    pub fn usual() -> Self {
        Self::set(0o022)
    }

    /// Another one.
    pub fn set(bits: u32) -> Self {
        Self(umask(Mode::from_bits_truncate(bits)))
    }
}

impl Drop for Umask {
    fn drop(&mut self) {
        umask(self.0);
    }
}

/// Reads a file.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The same for text.
///
/// # Errors
/// As above, or it is no text.
pub fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// What a program prints.
///
/// # Errors
/// It cannot be started or fails, with what it said.
pub fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start {}: {error}", show(command)))?;
    if out.status.success() {
        return Ok(out.stdout);
    }
    let said = [out.stdout, out.stderr].concat();
    Err(format!("{} ended with {}: {}", show(command), out.status, String::from_utf8_lossy(&said)))
}

/// Packed by gzip, the same bytes each time.
///
/// # Errors
/// gzip fails.
pub fn gzip(path: &Path) -> Outcome {
    output(Command::new("gzip").args(["--best", "--no-name", "--force"]).arg(path)).map(|_| ())
}

/// The bytes of all files of a folder.
pub fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}
