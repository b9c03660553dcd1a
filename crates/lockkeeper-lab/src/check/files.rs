//! From files to the checker: the only part that reads.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use crate::history::{EXTENSION, Item, Merge, ReadError, Reader, Record, Role, State, What};
use crate::judge::{Checker, Client, Options, Report, ns};

/// Why files could not be judged.
#[derive(Debug)]
pub enum CheckError {
    /// One of them is no history, or cannot be read.
    Read(ReadError),
    /// They come from several machines, or several boots of one, and nobody said how far their
    /// clocks may differ.
    SeveralMachines,
    /// No file was given, or a directory holds none.
    Nothing(Option<PathBuf>),
    /// A directory holds so many histories, and all are empty.
    Empty(PathBuf, usize),
    /// The two are one history: what it says would count twice.
    Twice(PathBuf, PathBuf),
}

impl CheckError {
    /// 64 for what is no history, 69 for what cannot be read.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Read(error) => error.exit_code(),
            Self::SeveralMachines | Self::Nothing(_) | Self::Empty(..) | Self::Twice(..) => 64,
        }
    }
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => error.fmt(f),
            Self::SeveralMachines => write!(
                f,
                "these histories come from several machines or boots, whose clocks differ: say by \
                 how much with --skew (such as --skew 5ms)"
            ),
            Self::Nothing(None) => write!(
                f,
                "no history was given: name one or more files that end in .{EXTENSION}, or their \
                 directory"
            ),
            Self::Empty(path, 1) => write!(
                f,
                "{}: the only .{EXTENSION} file in this directory is empty: its process ended \
                 before it wrote anything",
                path.display()
            ),
            Self::Empty(path, many) => write!(
                f,
                "{}: all {many} .{EXTENSION} files in this directory are empty: their processes \
                 ended before they wrote anything",
                path.display()
            ),
            Self::Twice(one, other) if one == other => {
                write!(f, "{}: this history was given twice: name it once", one.display())
            }
            Self::Twice(one, other) => {
                write!(
                    f,
                    "{} and {} are the same history: name one of them",
                    one.display(),
                    other.display()
                )
            }
            Self::Nothing(Some(path)) => {
                write!(f, "{}: no file in this directory ends in .{EXTENSION}", path.display())
            }
        }
    }
}

impl std::error::Error for CheckError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ReadError> for CheckError {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

/// Judges the histories in these files; a directory stands for the histories in it. All must belong
/// to one run: every process that used the locks, and the nemesis and the resource if there were
/// any.
///
/// # Errors
/// When one of them is no whole history, cannot be read, or their clocks cannot be compared. Then
/// nothing is judged.
pub fn check_files<P: AsRef<Path>>(paths: &[P], options: Options) -> Result<Report, CheckError> {
    let (paths, empty) = sorted(paths)?;
    let mut merge = Merge::open(&paths, ns(options.skew))?;
    each_once(&merge, &paths)?;
    if merge.several_machines() && options.skew.is_zero() {
        return Err(CheckError::SeveralMachines);
    }
    let mut checker = Checker::new(options);
    for (source, path) in merge.sources().zip(&paths) {
        let header = &source.header;
        let label = if header.label.is_empty() {
            format!("pid {}", header.pid)
        } else {
            header.label.clone()
        };
        let began = header.clocks[0].saturating_add_signed(source.shift_ns);
        checker.client(Client {
            path: path.clone(),
            label,
            pid: header.pid,
            role: header.role,
            began,
        });
    }
    checker.ends(ends(&merge, &paths)?);
    if !empty.is_empty() {
        let began = merge.sources().map(|s| s.header.clocks[0].saturating_add_signed(s.shift_ns));
        checker.unrecorded(began.min().unwrap_or(0));
    }
    let states: Vec<_> = merge.sources().map(|source| source.header.state).collect();
    let (mut stopped, mut blind_from) = (0, None);
    while let Some(item) = merge.next()? {
        for (lock, label) in merge.new_names() {
            checker.name(lock, label.to_string());
        }
        match item {
            Item::Event(client, index, record) => checker.event(client, index, &record),
            Item::Last(client, at) => checker.wrote_last(
                client,
                at,
                states.get(client as usize).copied().unwrap_or(State::Open),
            ),
            Item::End(client, at) => {
                let Some(state) = states.get(client as usize) else { continue };
                if matches!(state, State::Stopped(_)) {
                    stopped += 1;
                    blind_from = Some(blind_from.unwrap_or(u64::MAX).min(at));
                }
                checker.client_ended(client, at, *state);
            }
        }
    }
    let mut report = checker.finish();
    (report.counts.stopped, report.blind_from) = (stopped, blind_from);
    report.counts.names = merge.names().len() as u64;
    (report.counts.torn, report.counts.foreign) = merge.damage();
    report.counts.may_be_cut = merge.may_be_cut();
    report.empty = empty;
    report.unix_ns = merge.sources().next().map_or(0, |source| source.header.to_unix_ns());
    Ok(report)
}

/// Every file has an id of its own: one that comes again is the same history under another name, or
/// a copy.
fn each_once(merge: &Merge, paths: &[PathBuf]) -> Result<(), CheckError> {
    let mut seen: HashMap<u64, &PathBuf> = HashMap::new();
    for (source, path) in merge.sources().zip(paths) {
        if let Some(before) = seen.insert(source.header.file, path) {
            return Err(CheckError::Twice(before.clone(), path.clone()));
        }
    }
    Ok(())
}

/// What the histories of role nemesis say about the ends of processes, on the first file's clock.
fn ends(merge: &Merge, paths: &[PathBuf]) -> Result<Vec<Record>, ReadError> {
    let mut ends = Vec::new();
    for (source, path) in
        merge.sources().zip(paths).filter(|(source, _)| source.header.role == Role::Nemesis)
    {
        let mut reader = Reader::open(path)?;
        while let Some((_, record)) = reader.next()? {
            if matches!(record.what, What::Kill | What::Exit) {
                ends.push(Record {
                    at: record.at.saturating_add_signed(source.shift_ns),
                    ..record
                });
            }
        }
    }
    ends.sort_by_key(|record| record.at);
    Ok(ends)
}

/// The files that the paths stand for, without those in a directory that are empty.
pub(crate) fn expand<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<PathBuf>, CheckError> {
    sorted(paths).map(|(files, _)| files)
}

/// The same, and those that are empty: a process that ended between the making of its file and its
/// first byte has said nothing.
fn sorted<P: AsRef<Path>>(paths: &[P]) -> Result<(Vec<PathBuf>, Vec<PathBuf>), CheckError> {
    let (mut files, mut empty) = (Vec::new(), Vec::new());
    for path in paths {
        let path = path.as_ref();
        if !path.is_dir() {
            files.push(path.to_owned());
            continue;
        }
        let cannot = |e| ReadError::Io(path.to_owned(), e);
        let (mut begun, mut not_begun) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(path).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let file = entry.path();
            if file.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            let has_bytes = entry.metadata().map_or(true, |about| about.len() > 0);
            if has_bytes { &mut begun } else { &mut not_begun }.push(file);
        }
        if begun.is_empty() {
            let path = path.to_owned();
            return Err(match not_begun.len() {
                0 => CheckError::Nothing(Some(path)),
                many => CheckError::Empty(path, many),
            });
        }
        begun.sort();
        not_begun.sort();
        files.append(&mut begun);
        empty.append(&mut not_begun);
    }
    if files.is_empty() { Err(CheckError::Nothing(None)) } else { Ok((files, empty)) }
}
