//! Several histories read as one, in the order of time.

use std::path::PathBuf;

use lockkeeper::Kind;
use lockkeeper_lab::history::{Header, Item, LockId, Merge, Record, What, Writer, WriterOptions};

use super::{at, bytes, header, put};

fn merged(paths: &[PathBuf], skew: u64) -> Vec<(u32, u64, &'static str)> {
    let mut merge = Merge::open(paths, skew).unwrap();
    let mut all = Vec::new();
    while let Some(item) = merge.next().unwrap() {
        all.push(match item {
            Item::Event(source, _, record) => (source, record.at, record.what.as_str()),
            Item::Last(source, at) => (source, at, "last"),
            Item::End(source, at) => (source, at, "end"),
        });
    }
    all
}

#[test]
fn histories_merge_by_time_and_ends_come_before_beginnings() {
    let dir = tempfile::tempdir().unwrap();
    let record = |what, time| Record { at: time, ..Record::about(what, LockId(1), time) };
    let a = put(
        dir.path(),
        "a",
        &bytes(
            &header("a"),
            &[record(What::AcquireCalled, 1), record(What::Acquired, 5), record(What::Busy, 5)],
        ),
    );
    let b = put(
        dir.path(),
        "b",
        &bytes(
            &header("b"),
            &[record(What::Acquired, 2), record(What::Busy, 5), record(What::ReleaseCalled, 5)],
        ),
    );
    let expected = [
        (0, 1, "acq_inv"),
        (1, 2, "acq_ok"),
        (1, 5, "acq_busy"),
        (1, 5, "rel_inv"),
        (0, 5, "acq_ok"),
        (0, 5, "acq_busy"),
    ];
    let all = merged(&[a, b], 0);
    assert_eq!(all[..6], expected);
    assert_eq!(all[6..], [(0, 5, "end"), (1, 5, "end")]);
}

#[test]
fn skew_delays_answers_and_keeps_each_order() {
    let dir = tempfile::tempdir().unwrap();
    let record = |what, time| Record { at: time, ..Record::about(what, LockId(1), time) };
    let events = [
        (What::AcquireCalled, 1),
        (What::Acquired, 2),
        (What::ReleaseCalled, 5),
        (What::Released, 7),
        (What::AcquireCalled, 22),
    ];
    let a =
        put(dir.path(), "a", &bytes(&header("a"), &events.map(|(what, time)| record(what, time))));
    let expected = [
        (0, 1, "acq_inv"),
        (0, 5, "rel_inv"),
        (0, 22, "acq_ok"),
        (0, 22, "acq_inv"),
        (0, 27, "rel_ok"),
        (0, 27, "end"),
        (0, 22, "last"),
    ];
    let all = merged(std::slice::from_ref(&a), 10);
    let mut sorted = all.clone();
    sorted.sort_by_key(|item| item.1);
    assert_eq!(all, sorted);
    for item in expected {
        assert!(all.contains(&item), "{item:?} of {all:?}");
    }
    assert_eq!(merged(&[a], 0).len(), 6);
}

#[test]
fn times_of_another_boot_are_moved_by_the_wall_clock() {
    let dir = tempfile::tempdir().unwrap();
    let a = put(dir.path(), "a", &bytes(&header("a"), &[at(2_000)]));
    let other = Header { boot: 2, clocks: [10_000, 0, 15_000], ..header("b") };
    let record = Record { at: 11_000, deadline: 11_500, ..at(1) };
    let unshifted =
        Record { at: 11_000, ..Record::about(What::ResourceWrite, LockId(1), 1).deadline(3) };
    let b = put(dir.path(), "b", &bytes(&other, &[record, unshifted]));
    let mut merge = Merge::open(&[&a, &b], 0).unwrap();
    assert!(merge.several_machines());
    assert_eq!(merge.sources().map(|s| s.shift_ns).collect::<Vec<_>>(), [0, 1_000]);
    let mut events = Vec::new();
    while let Some(item) = merge.next().unwrap() {
        if let Item::Event(source, _, record) = item {
            events.push((source, record.at, record.deadline));
        }
    }
    assert_eq!(events, [(0, 2_000, 0), (1, 12_000, 12_500), (1, 12_000, 3)]);
    let alone = Merge::open(&[&a], 0).unwrap();
    assert!(!alone.several_machines());
}

#[test]
fn names_are_known_before_the_events_that_need_them() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.lkh"), dir.path().join("b.lkh"));
    for path in [&a, &b] {
        let writer = Writer::create(path, WriterOptions::default()).unwrap();
        writer.write_for(Kind::Election, &"long ".repeat(20), Record::new(What::AcquireCalled));
    }
    let mut merge = Merge::open(&[a, b], 0).unwrap();
    let mut known = 0;
    while let Some(item) = merge.next().unwrap() {
        known += merge.new_names().len();
        if let Item::Event(_, _, record) = item {
            assert_eq!(merge.names().get(record.lock).map(|l| l.name.len()), Some(100));
        }
    }
    assert_eq!((known, merge.names().len(), merge.damage()), (1, 1, (0, 0)));
}
