//! The library, recorded by its observer and judged: what happened is in the history, and it is
//! clean.

mod convictions;
#[cfg(feature = "redis")]
mod late_turn;
mod places;
mod turns;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper::{Locks, Name};
use lockkeeper_lab::check::{Options, Report, check_files};
use lockkeeper_lab::history::{Reader, Record, Recorder, Writer, WriterOptions};

async fn recorded(path: &Path, url: &str) -> (Locks, Writer) {
    let writer = Writer::create(path, WriterOptions::default()).unwrap();
    let locks =
        Locks::builder().observer(Arc::new(Recorder::new(writer.clone()))).open(url).await.unwrap();
    (locks, writer)
}

/// The only process on `memory:`, the directory of its history first.
async fn recorded_on_memory() -> (tempfile::TempDir, PathBuf, Locks, Writer) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let (locks, writer) = recorded(&path, "memory:").await;
    (dir, path, locks, writer)
}

/// A recorder without a library, and the name that it is told of.
fn recorder_in(dir: &Path) -> (PathBuf, Writer, Recorder, Name) {
    let path = dir.join("a.lkh");
    let writer = Writer::create(&path, WriterOptions::default()).unwrap();
    (path, writer.clone(), Recorder::new(writer), Name::new("stock").unwrap())
}

fn judge(path: &Path) -> Report {
    let report = check_files(&[path], Options::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.violations);
    assert_eq!((report.counts.strangers, report.counts.foreign), (0, 0));
    report
}

fn records(path: &Path) -> Vec<Record> {
    let mut reader = Reader::open(path).unwrap();
    let mut all = Vec::new();
    while let Some((_, record)) = reader.next().unwrap() {
        all.push(record);
    }
    all
}

fn kinds(path: &Path) -> Vec<&'static str> {
    records(path).iter().map(|r| r.what.as_str()).filter(|what| *what != "name").collect()
}
