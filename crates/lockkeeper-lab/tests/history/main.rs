//! The writing and reading of history files, with real files and real processes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics"
)]

mod merging;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::{Kind, Mode};
use lockkeeper_lab::history::{
    HEADER_SIZE, Header, LockId, RECORD_SIZE, ReadError, Reader, Record, Role, State, StopReason,
    What, Writer, WriterOptions,
};

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

#[test]
fn what_is_written_is_read_with_its_name_once_and_in_the_order_of_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let options = WriterOptions {
        label: "client 1".into(),
        role: Role::Resource,
        ..WriterOptions::default()
    };
    let writer = Writer::create(&path, options).unwrap();
    let before = Writer::now();
    writer.write_for(
        Kind::Lock,
        "stock/1",
        Record::about(What::AcquireCalled, LockId::NONE, 5).mode(Mode::Shared).owner(9),
    );
    writer.write_for(
        Kind::Lock,
        "stock/1",
        Record::about(What::Acquired, LockId::NONE, 5).token(64).deadline(77),
    );
    writer.write(Record::new(What::Kill).number(123));
    writer.write_text("partition", Record::new(What::FaultBegin));
    assert_eq!(writer.stopped(), None);
    let summary = writer.finish().unwrap();
    assert_eq!(summary.records, 6);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), (HEADER_SIZE + 6 * RECORD_SIZE) as u64);
    writer.write(Record::new(What::Kill));
    assert_eq!(writer.stopped().map(|s| s.reason), Some(StopReason::Finished));
    assert_eq!(writer.finish().unwrap().records, 6, "finishing twice is finishing once");

    let reader = Reader::open(&path).unwrap();
    let header = reader.header();
    assert_eq!(
        (header.label.as_str(), header.role, header.pid),
        ("client 1", Role::Resource, std::process::id())
    );
    assert_eq!(header.state, State::Finished(6));
    assert!(
        header.boot != 0 && !header.host.is_empty() && header.program.starts_with("history"),
        "{header:?}"
    );
    assert!(header.clocks[0] <= before && before - header.clocks[0] < 60_000_000_000);
    let all = read_all(&path).unwrap();
    let kinds: Vec<_> = all.iter().map(|r| r.what.as_str()).collect();
    assert_eq!(kinds, ["name", "acq_inv", "acq_ok", "kill", "name", "fault_begin"]);
    assert!(
        all.windows(2).all(|two| two[0].at <= two[1].at)
            && all[0].at >= before
            && all[5].at <= Writer::now()
    );
    assert_eq!(all[1].lock, LockId::of(Kind::Lock, "stock/1"));
    assert_eq!((all[1].owner, all[2].token, all[2].deadline, all[3].number), (9, 64, 77, 123));
    assert_eq!(all[5].lock, LockId::text("partition"));
}

#[test]
fn many_threads_write_one_history_and_every_event_is_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let writer =
        Writer::create(&path, WriterOptions { step_bytes: 4096, ..WriterOptions::default() })
            .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let writer = writer.clone();
            scope.spawn(move || {
                for number in 0..5_000u64 {
                    writer.write_for(
                        Kind::Semaphore,
                        &format!("name {}", number % 50),
                        Record::new(What::InLine).number(thread << 32 | number),
                    );
                }
            });
        }
    });
    drop(writer);
    let all = read_all(&path).unwrap();
    assert_eq!(all.iter().filter(|r| r.what == What::Name).count(), 50);
    let mut last = [None; 4];
    for record in all.iter().filter(|r| r.what == What::InLine) {
        let (thread, number) = ((record.number >> 32) as usize, record.number as u32);
        assert_eq!(number, last[thread].map_or(0, |last: u32| last + 1), "of thread {thread}");
        last[thread] = Some(number);
    }
    assert_eq!(last, [Some(4_999); 4]);
    assert_eq!(
        Reader::open(&path).unwrap().header().state,
        State::Finished(20_050),
        "the last clone finishes the file"
    );
}

#[test]
fn an_existing_file_is_never_overwritten_and_a_missing_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = put(dir.path(), "mine", b"precious");
    let error = Writer::create(&path, WriterOptions::default()).err().unwrap().to_string();
    assert!(error.contains("mine") && error.contains("exists"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let error = Writer::create(dir.path().join("no/such"), WriterOptions::default())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("no/such") && error.contains("No such file"), "{error}");
}

#[test]
fn at_its_largest_size_a_recording_stops_once_and_its_program_goes_on() {
    static TOLD: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let max_bytes = (HEADER_SIZE + 2 * 4096) as u64;
    let on_stop =
        |stopped: &lockkeeper_lab::history::Stopped| TOLD.lock().unwrap().push(stopped.to_string());
    let writer = Writer::create(
        &path,
        WriterOptions { step_bytes: 4096, max_bytes, on_stop, ..WriterOptions::default() },
    )
    .unwrap();
    for number in 0..200 {
        writer.write(Record::new(What::Kill).number(number));
    }
    let stopped = writer.stopped().unwrap();
    assert_eq!(
        (stopped.records, stopped.reason, stopped.path.as_path()),
        (128, StopReason::Full, path.as_path())
    );
    let told = TOLD.lock().unwrap().clone();
    assert_eq!(told.len(), 1);
    assert!(
        told[0].contains("stopped after 128 records") && told[0].contains("max_bytes"),
        "{told:?}"
    );
    drop(writer);
    assert_eq!(read_all(&path).unwrap().len(), 128);
    assert_eq!(Reader::open(&path).unwrap().header().state, State::Stopped(128));
}

#[test]
fn the_reasons_for_stopping_say_what_to_do() {
    use nix::errno::Errno;
    let text = |reason| {
        lockkeeper_lab::history::Stopped { path: "h.lkh".into(), records: 3, reason }.to_string()
    };
    for (reason, word) in [
        (StopReason::CannotGrow(Errno::ENOSPC), "no space left"),
        (StopReason::CannotGrow(Errno::EDQUOT), "quota"),
        (StopReason::CannotGrow(Errno::EFBIG), "ulimit -f"),
        (StopReason::CannotGrow(Errno::EIO), "I/O"),
        (StopReason::Full, "max_bytes"),
        (StopReason::Forked, "fork"),
        (StopReason::Finished, "finished"),
    ] {
        let text = text(reason);
        assert!(
            text.starts_with("history h.lkh: recording stopped after 3 records: ")
                && text.contains(word),
            "{text}"
        );
    }
}

/// Runs one of the `as_child_…` functions in a process of its own: this test binary again, told by
/// the environment.
fn child(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("LAB_HISTORY_CHILD", path);
    command
}

fn child_path() -> Option<PathBuf> {
    std::env::var_os("LAB_HISTORY_CHILD").map(PathBuf::from)
}

#[test]
fn a_killed_process_loses_nothing() {
    if let Some(path) = child_path() {
        let writer =
            Writer::create(path, WriterOptions { step_bytes: 8192, ..WriterOptions::default() })
                .unwrap();
        for number in 0.. {
            writer.write_for(Kind::Lock, "n", Record::new(What::InLine).number(number));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let mut child = child("a_killed_process_loses_nothing", &path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let patience = Instant::now() + Duration::from_secs(30);
    let written = || std::fs::metadata(&path).map_or(0, |m| m.len());
    while written() < 100_000 && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let all = read_all(&path).unwrap();
    assert!(all.len() > 1_000, "{}", all.len());
    for (record, number) in all.iter().skip(1).zip(0..) {
        assert_eq!((record.what, record.number), (What::InLine, number));
    }
    assert_eq!(Reader::open(&path).unwrap().header().state, State::Open);
}

#[test]
fn at_the_file_size_limit_a_recording_stops_and_no_signal_ends_the_program() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Some(path) = child_path() {
        let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, 40_000, hard).unwrap();
        let writer =
            Writer::create(path, WriterOptions { step_bytes: 16_384, ..WriterOptions::default() })
                .unwrap();
        for _ in 0..1_000 {
            writer.write(Record::new(What::Kill));
        }
        println!("went on after: {}", writer.stopped().unwrap());
        setrlimit(Resource::RLIMIT_FSIZE, 100, hard).unwrap();
        println!(
            "and: {}",
            Writer::create(std::env::temp_dir().join("never"), WriterOptions::default())
                .err()
                .unwrap()
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let output =
        child("at_the_file_size_limit_a_recording_stops_and_no_signal_ends_the_program", &path)
            .output()
            .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(
        out.contains("went on after: history")
            && out.contains("ulimit -f")
            && out.contains("and: cannot start history"),
        "{out}"
    );
    assert!(
        err.contains("lockkeeper: history") && err.matches("recording stopped").count() == 1,
        "{err}"
    );
    assert_eq!(read_all(&path).unwrap().len(), 512);
    assert!(!std::env::temp_dir().join("never").exists());
}

#[test]
fn r15_a_fork_writes_nothing_into_its_parents_history() {
    if let Some(path) = child_path() {
        let writer = Writer::create(&path, WriterOptions::default()).unwrap();
        writer.write(Record::new(What::Kill).number(1));
        // SAFETY: the child only writes to the history, which takes no lock in a fork, and leaves
        // without unwinding.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => {
                writer.write(Record::new(What::Kill).number(2));
                let forked = writer.stopped().is_some_and(|s| s.reason == StopReason::Forked);
                let finished = writer.finish().is_ok_and(|s| s.records == 0);
                drop(writer);
                // SAFETY: ends the child at once, without the handlers of the test harness.
                unsafe { nix::libc::_exit(if forked && finished { 0 } else { 1 }) }
            }
            nix::unistd::ForkResult::Parent { child } => {
                let ended = nix::sys::wait::waitpid(child, None).unwrap();
                assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(child, 0));
            }
        }
        writer.write(Record::new(What::Kill).number(3));
        assert!(writer.stopped().is_none());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let status =
        child("r15_a_fork_writes_nothing_into_its_parents_history", &path).status().unwrap();
    assert!(status.success());
    assert_eq!(read_all(&path).unwrap().iter().map(|r| r.number).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn what_is_no_history_is_told_in_one_line_and_64() {
    let dir = tempfile::tempdir().unwrap();
    let good = bytes(&header("x"), &[at(1), at(2)]);
    let mut newer = good.clone();
    newer[8] = 9;
    let mut damaged = good.clone();
    damaged[20] ^= 1;
    for (name, content, words) in [
        ("empty", &[][..], "it is empty"),
        ("foreign", b"PK\x03\x04 and more", "not those of a lockkeeper history"),
        ("short", &good[..100], "it has 100 bytes"),
        ("newer", &newer, "layout 9"),
        ("damaged", &damaged, "header is damaged"),
    ] {
        let path = put(dir.path(), name, content);
        let error = Reader::open(&path).err().unwrap();
        let text = error.to_string();
        assert!(
            text.contains(name) && text.contains("not a history") && text.contains(words),
            "{text}"
        );
        assert_eq!((error.exit_code(), text.lines().count()), (64, 1));
    }
    let missing = Reader::open(dir.path().join("missing")).err().unwrap();
    assert_eq!(missing.exit_code(), 64);
    assert!(missing.to_string().contains("missing: cannot be read: No such file"), "{missing}");
    let directory = Reader::open(dir.path()).err().unwrap();
    assert_eq!(directory.exit_code(), 64, "{directory}");
}

#[test]
fn a_file_that_may_not_be_read_is_69() {
    let error =
        ReadError::Io("h.lkh".into(), std::io::Error::from(std::io::ErrorKind::PermissionDenied));
    assert_eq!(error.exit_code(), 69);
    assert!(error.to_string().starts_with("h.lkh: cannot be read: "), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn a_record_cut_off_at_the_end_is_passed_over_and_one_in_the_middle_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let records: Vec<_> = (1..=5).map(at).collect();
    let good = bytes(&header("x"), &records);
    let torn_at = |index: usize| {
        let mut bytes = good.clone();
        bytes[HEADER_SIZE + index * RECORD_SIZE + 9] ^= 0xff;
        bytes
    };
    let path = put(dir.path(), "end", &torn_at(4));
    assert_eq!(read_all(&path).unwrap(), records[..4]);
    let mut reader = Reader::open(&path).unwrap();
    assert!(!reader.torn());
    while reader.next().unwrap().is_some() {}
    assert!(reader.torn());

    let mut with_room = good.clone();
    with_room.extend([0; 8 * RECORD_SIZE]);
    assert_eq!(
        read_all(&put(dir.path(), "room", &with_room)).unwrap(),
        records,
        "what was never written is no record"
    );
    assert_eq!(read_all(&put(dir.path(), "half", &good[..good.len() - 10])).unwrap(), records[..4]);

    let error = read_all(&put(dir.path(), "middle", &torn_at(2))).unwrap_err();
    assert!(
        error.to_string().contains("record 2 cannot be read") && error.exit_code() == 64,
        "{error}"
    );
    let mut hole = good.clone();
    hole[HEADER_SIZE + RECORD_SIZE..HEADER_SIZE + 2 * RECORD_SIZE].fill(0);
    let error = read_all(&put(dir.path(), "hole", &hole)).unwrap_err();
    assert!(error.to_string().contains("record 1 cannot be read"), "{error}");
}

#[test]
fn an_open_history_that_was_cut_off_is_told_by_its_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let writer =
        Writer::create(&path, WriterOptions { step_bytes: 4096, ..WriterOptions::default() })
            .unwrap();
    let records = 4096 / RECORD_SIZE + 10;
    (0..records as u64).for_each(|_| writer.write(at(0)));
    // As a kill leaves it.
    let open = std::fs::read(&path).unwrap();
    assert_eq!(open.len(), HEADER_SIZE + 2 * 4096);
    let cut = |bytes: usize| read_all(&put(dir.path(), "cut.lkh", &open[..open.len() - bytes]));
    let unwritten = 4096 - 10 * RECORD_SIZE;
    for fine in [0, RECORD_SIZE, unwritten - RECORD_SIZE] {
        assert_eq!(cut(fine).unwrap().len(), records, "what was never written is not missed");
    }
    for (bytes, left) in [
        (unwritten, records),
        (unwritten + 1, records - 1),
        (unwritten + RECORD_SIZE, records - 1),
        (4095, records - 10),
    ] {
        let error = cut(bytes).unwrap_err();
        assert!(
            matches!(error, ReadError::CutOpen { found, .. } if found == left as u64)
                && error.exit_code() == 64,
            "{bytes}: {error}"
        );
        assert!(error.to_string().contains("cut off"), "{error}");
    }
    assert_eq!(
        cut(4096).unwrap().len(),
        records - 10,
        "a whole step less cannot be told from one that was never there"
    );
    // A release that did not say how long it is.
    let old = bytes(&header("old"), &[at(1)]);
    let of = |content: &[u8]| {
        let mut reader = Reader::open(put(dir.path(), "old.lkh", content)).unwrap();
        while reader.next().unwrap().is_some() {}
        reader.may_be_cut()
    };
    assert!(of(&old) && !of(&[old.as_slice(), &[0; RECORD_SIZE]].concat()) && !of(&open));
    writer.finish().unwrap();
    assert_eq!(read_all(&path).unwrap().len(), records);
}

#[test]
fn a_finished_history_must_be_whole() {
    let dir = tempfile::tempdir().unwrap();
    let records: Vec<_> = (1..=5).map(at).collect();
    for state in [State::Finished(5), State::Stopped(5)] {
        let good = bytes(&Header { state, ..header("x") }, &records);
        assert_eq!(read_all(&put(dir.path(), "good", &good)).unwrap(), records);
        let mut longer = good.clone();
        longer.extend(
            b"rubbish behind the end is not looked at, however much of it there may be: it was \
              given up",
        );
        assert_eq!(read_all(&put(dir.path(), "longer", &longer)).unwrap(), records);
        let error = read_all(&put(dir.path(), "cut", &good[..good.len() - 64])).unwrap_err();
        assert!(
            error.to_string().contains("finished with 5 records and 4 are here")
                && error.exit_code() == 64,
            "{error}"
        );
        let mut torn = good.clone();
        let last = torn.len() - 1;
        torn[last] ^= 1;
        let error = read_all(&put(dir.path(), "torn", &torn)).unwrap_err();
        assert!(error.to_string().contains("record 4 cannot be read"), "{error}");
    }
}

#[test]
fn a_clock_that_goes_back_is_named_with_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = put(
        dir.path(),
        "back",
        &bytes(&header("x"), &[at(5_000), at(9_000), at(9_000), at(7_500)]),
    );
    let error = read_all(&path).unwrap_err();
    assert!(
        error.to_string().contains("goes back by 2 µs at record 3") && error.exit_code() == 64,
        "{error}"
    );
}

#[test]
fn long_histories_are_read_across_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let records: Vec<_> = (1..=10_000).map(at).collect();
    let path = put(dir.path(), "long", &bytes(&header("x"), &records));
    assert_eq!(read_all(&path).unwrap(), records);
    let exact: Vec<_> = (1..=4096).map(at).collect();
    assert_eq!(read_all(&put(dir.path(), "block", &bytes(&header("x"), &exact))).unwrap(), exact);
}

#[test]
fn records_of_later_kinds_are_passed_over_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut content = bytes(&header("x"), &[at(1)]);
    let later: [u8; RECORD_SIZE] = hex(
        "020000000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
         0000000000000000000000c8000000",
    );
    content.extend(later);
    content.extend(at(3).encode(42, 2));
    let path = put(dir.path(), "later", &content);
    let mut reader = Reader::open(&path).unwrap();
    let mut times = Vec::new();
    while let Some((index, record)) = reader.next().unwrap() {
        times.push((index, record.at));
    }
    assert_eq!((times, reader.foreign()), (vec![(0, 1), (2, 3)], 1));
}

/// The given words with the seal that layout 1 prescribes for place 1 of file 42, written out anew
/// from docs/history.md.
fn hex(text: &str) -> [u8; RECORD_SIZE] {
    let mut bytes = [0; RECORD_SIZE];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    }
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut h = (42 ^ K).wrapping_mul(K);
    for word in bytes.chunks(8).take(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())) {
        h = (h.rotate_left(29) ^ word & if word == 200 { 0xffff_ffff } else { u64::MAX })
            .wrapping_mul(K);
    }
    bytes[60..].copy_from_slice(&((h >> 32) as u32).to_le_bytes());
    bytes
}
