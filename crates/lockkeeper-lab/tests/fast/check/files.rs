//! Histories that a test writes into files, and the command that reads them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use lockkeeper::Mode;
use lockkeeper_lab::check::main_check;
use lockkeeper_lab::history::{Header, LockId, Record, Role, State, What};

pub const SECOND: u64 = 1_000_000_000;

pub fn header(pid: u32) -> Header {
    Header {
        file: u64::from(pid),
        pid,
        role: Role::Client,
        clocks: [0, 0, 1_767_225_600 * SECOND],
        boot: 1,
        step: 64,
        host: "here".into(),
        program: "test".into(),
        label: format!("client {pid}"),
        state: State::Open,
    }
}

/// The same of one whose recording began so many seconds after the clock did, and who may have been
/// there before.
pub fn began(pid: u32, seconds: u64) -> Header {
    Header { clocks: [seconds * SECOND, 0, (1_767_225_600 + seconds) * SECOND], ..header(pid) }
}

pub fn put(dir: &Path, name: &str, header: &Header, records: &[Record]) -> PathBuf {
    let mut bytes = header.encode().to_vec();
    for (record, index) in records.iter().zip(0..) {
        bytes.extend(record.encode(header.file, index));
    }
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

pub fn held(claim: u64, times: [u64; 4]) -> Vec<Record> {
    let kinds = [What::AcquireCalled, What::Acquired, What::ReleaseCalled, What::Released];
    kinds
        .into_iter()
        .zip(times)
        .map(|(what, at)| Record {
            at,
            ..Record::about(what, LockId(7), claim).mode(Mode::Exclusive)
        })
        .collect()
}

pub fn run(args: &[&str]) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = main_check(args.iter().map(OsString::from), &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
