//! What is read: what is no history, what was cut off or damaged, what is passed over.

use lockkeeper_lab::history::{
    HEADER_SIZE, Header, RECORD_SIZE, ReadError, Reader, State, Writer, WriterOptions,
};

use super::{at, bytes, header, put, read_all};

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
    assert!(missing.to_string().contains("missing: there is no such file"), "{missing}");
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
