//! What is written, by one thread or by many, and when a recording stops.

use lockkeeper::{Kind, Mode};
use lockkeeper_lab::history::{
    HEADER_SIZE, LockId, RECORD_SIZE, Reader, Record, Role, State, StopReason, What, Writer,
    WriterOptions,
};

use super::{put, read_all};

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
        header.boot != 0 && !header.host.is_empty() && header.program.starts_with("fast-"),
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
