//! The report: one JSON object, whatever happened, and never half of one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{AccessFlags, access};

use crate::failure::{Failure, os_words};
use crate::json::{Report, line};
use crate::start::was_closed as is_closed;
use crate::text::quoted;

/// Refuses a report's file that could not be written in the end.
///
/// # Errors
/// Its directory is missing or not writable.
pub fn check(file: &Path) -> Result<(), Failure> {
    let wrong = |why: String| {
        Failure::usage(format!("--report {} cannot be written: {why}", quoted(file.as_os_str())))
    };
    if let Some(fd) = descriptor(file) {
        return if is_closed(fd) {
            Err(wrong(format!("descriptor {fd} is closed")))
        } else {
            Ok(())
        };
    }
    let file = target(file);
    match fs::metadata(&file) {
        Ok(there) if there.is_dir() => Err(wrong("it is a directory: name a file".to_owned())),
        Ok(there) if !there.is_file() => Ok(()),
        _ => access(&directory(&file), AccessFlags::W_OK | AccessFlags::X_OK).map_err(|e| {
            wrong(format!("{}: {}", quoted(directory(&file).as_os_str()), e.desc().to_lowercase()))
        }),
    }
}

/// Writes a report.
///
/// # Errors
/// What the system says.
pub fn write(file: &Path, report: &Report) -> io::Result<()> {
    write_text(file, &(line(report) + "\n"))
}

/// Writes a file that the user named. A regular file appears whole or not at all, where a link
/// leads to; a pipe, a device, or a descriptor that our caller opened is written to as it is.
///
/// # Errors
/// What the system says.
fn write_text(file: &Path, text: &str) -> io::Result<()> {
    if let Some(fd) = descriptor(file).filter(|fd| !is_closed(*fd)) {
        // SAFETY: it is open, and nobody of ours closes it meanwhile.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        return File::from(fd.try_clone_to_owned()?).write_all(text.as_bytes());
    }
    let file = target(file);
    let there = fs::metadata(&file).ok();
    if there.as_ref().is_some_and(|m| !m.is_file()) {
        return OpenOptions::new().write(true).open(&file)?.write_all(text.as_bytes());
    }
    let (mut out, beside) = create_beside(&file)?;
    let written = out.write_all(text.as_bytes()).and_then(|()| match &there {
        Some(old) => {
            out.set_permissions(fs::Permissions::from_mode(old.permissions().mode() & 0o777))
        }
        None => Ok(()),
    });
    let done = written.and_then(|()| fs::rename(&beside, &file));
    done.inspect_err(|_| _ = fs::remove_file(&beside))
}

/// How many links in a row are followed, as the kernel does.
const LINKS_MAX: usize = 40;

/// Where a path leads to: through links, also where their end does not exist yet.
fn target(file: &Path) -> PathBuf {
    links(file).last().unwrap_or_else(|| file.to_owned())
}

/// The path and, one after the other, where its links lead to.
fn links(file: &Path) -> impl Iterator<Item = PathBuf> {
    let next = |path: &PathBuf| Some(directory(path).join(fs::read_link(path).ok()?));
    std::iter::successors(Some(file.to_owned()), next).take(LINKS_MAX)
}

/// The descriptor of ours that a path is about. Opened by its path, a file behind it would be
/// replaced under those who write to it, and where they are in it would not be known.
fn descriptor(file: &Path) -> Option<RawFd> {
    links(file).find_map(|path| match path.to_str()? {
        "/dev/stdin" => Some(0),
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        path => path
            .strip_prefix("/dev/fd/")
            .or_else(|| path.strip_prefix("/proc/self/fd/"))?
            .parse()
            .ok(),
    })
}

fn create_beside(file: &Path) -> io::Result<(File, PathBuf)> {
    let name = file.file_name().map(OsString::from).unwrap_or_default();
    let mut tries = 0u32;
    loop {
        let mut beside = OsString::from(".");
        beside.push(&name);
        beside.push(format!(".{}.{tries}", std::process::id()));
        let beside = directory(file).join(beside);
        match OpenOptions::new().write(true).create_new(true).mode(0o666).open(&beside) {
            Ok(out) => return Ok((out, beside)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && tries < 100 => tries += 1,
            Err(e) => return Err(e),
        }
    }
}

fn directory(file: &Path) -> PathBuf {
    match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Writes a report about a command line of which nothing else can be known.
pub fn of_a_wrong_line(file: &Path, failure: &Failure) {
    let mut report = Report::new(failure.name.clone(), Duration::ZERO);
    (report.exit, report.why) = (failure.exit, Some(failure.message.clone()));
    if check(file).is_ok() {
        deliver(Some(file), &report);
    }
}

/// Writes a report where one was asked for, and says so when it could not be written.
pub fn deliver(file: Option<&Path>, report: &Report) {
    if let Some(file) = file
        && let Err(error) = write(file, report)
    {
        _ = writeln!(io::stderr(), "lockkeeper: {}", not_written(file, &error));
    }
}

/// Writes a page of another subcommand's as [`write`] does a report.
///
/// # Errors
/// A sentence for the user.
pub fn deliver_page(file: &Path, text: &str) -> Result<(), String> {
    write_text(file, text).map_err(|error| not_written(file, &error))
}

fn not_written(file: &Path, error: &io::Error) -> String {
    format!("--report {} could not be written: {}", quoted(file.as_os_str()), os_words(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_the_old_one_whole_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("report.json");
        fs::write(&file, "old and longer than any report could be".repeat(100)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        write(&file, &Report::new("a".to_owned(), Duration::ZERO)).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("{\"name\":\"a\"") && text.ends_with("}\n"), "{text}");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn links_are_followed_where_they_lead_also_to_what_does_not_exist_yet() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("elsewhere")).unwrap();
        for (link, to) in [
            ("first", "second"),
            ("second", "elsewhere/report"),
            ("nowhere", "no/such/dir/report"),
            ("out", "/dev/stdout"),
        ] {
            std::os::unix::fs::symlink(to, dir.path().join(link)).unwrap();
        }
        let link = dir.path().join("first");
        for _ in 0..2 {
            check(&link).unwrap();
            write(&link, &Report::new("a".to_owned(), Duration::ZERO)).unwrap();
            assert!(
                fs::read_to_string(dir.path().join("elsewhere/report"))
                    .unwrap()
                    .starts_with("{\"name\":\"a\"")
            );
            assert!(link.is_symlink() && dir.path().join("second").is_symlink());
        }
        assert_eq!(check(&dir.path().join("nowhere")).unwrap_err().exit, 64);
        assert_eq!(descriptor(&dir.path().join("out")), Some(1));
        assert_eq!((descriptor(Path::new("/dev/fd/7")), descriptor(&link)), (Some(7), None));
    }

    #[test]
    fn a_report_that_cannot_be_written_is_refused_before_anything_runs() {
        assert!(check(Path::new("/dev/stderr")).is_ok());
        assert!(check(Path::new("here.json")).is_ok());
        assert_eq!(check(Path::new("/")).unwrap_err().exit, 64);
        assert_eq!(check(Path::new("/no/such/dir/report")).unwrap_err().exit, 64);
    }
}
