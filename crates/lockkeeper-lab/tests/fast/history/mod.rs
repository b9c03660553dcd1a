//! The writing and reading of history files, with real files and real processes.

mod merging;
mod processes;
mod reading;
mod writing;

use std::path::{Path, PathBuf};

use lockkeeper_lab::history::{Header, LockId, ReadError, Reader, Record, Role, State, What};

fn header(label: &str) -> Header {
    Header {
        file: 42,
        pid: 7,
        role: Role::Client,
        clocks: [1_000, 900, 5_000],
        boot: 1,
        step: 0,
        host: "here".into(),
        program: "test".into(),
        label: label.into(),
        state: State::Open,
    }
}

fn bytes(header: &Header, records: &[Record]) -> Vec<u8> {
    let mut all = header.encode().to_vec();
    for (record, index) in records.iter().zip(0..) {
        all.extend(record.encode(header.file, index));
    }
    all
}

fn at(time: u64) -> Record {
    Record { at: time, ..Record::about(What::Lost, LockId(1), time) }
}

fn put(dir: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn read_all(path: &Path) -> Result<Vec<Record>, ReadError> {
    let mut reader = Reader::open(path)?;
    let mut all = Vec::new();
    while let Some((index, record)) = reader.next()? {
        assert_eq!(index, all.len() as u64);
        all.push(record);
    }
    assert!(reader.next()?.is_none(), "it stays at the end");
    Ok(all)
}
