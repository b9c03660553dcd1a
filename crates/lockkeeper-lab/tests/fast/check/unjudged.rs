//! What cannot be judged is told in one line, with its exit code.

use lockkeeper_lab::history::{Header, LockId, Record, State, What};

use super::files::{header, held, put, run, text};

#[test]
fn what_cannot_be_judged_is_one_line_and_64() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("foreign.lkh");
    std::fs::write(&foreign, "not a history at all").unwrap();
    let back = put(dir.path(), "back.lkh", &header(1), &held(1, [5, 9, 7, 8]));
    let cut = put(
        dir.path(),
        "cut.lkh",
        &Header { state: State::Finished(9), ..header(1) },
        &held(1, [1, 2, 3, 4]),
    );
    let empty = tempfile::tempdir().unwrap();
    for (path, words) in [
        (text(&foreign), "not a history"),
        (text(&back), "clock goes back by 1 µs at record 2"),
        (text(&cut), "finished with 9 records and 4 are here"),
        (text(empty.path()), "no file in this directory ends in .lkh"),
        ("/no/such/file", "there is no such file"),
    ] {
        let (code, out, err) = run(&[path]);
        assert_eq!((code, out.as_str(), err.lines().count()), (64, "", 1), "{path}: {err}");
        assert!(
            err.starts_with("lockkeeper: check: ") && err.contains(path) && err.contains(words),
            "{err}"
        );
    }
    let (code, _, err) = run(&[]);
    assert_eq!(code, 64);
    assert!(err.contains("no history was given"), "{err}");
}

#[test]
fn a_process_that_ended_before_its_first_byte_has_said_nothing() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a.lkh", &header(1), &held(1, [1, 2, 3, 4]));
    let nothing = dir.path().join("b.lkh");
    std::fs::write(&nothing, "").unwrap();
    assert_eq!(run(&[text(dir.path())]).0, 0, "beside others of its run");
    let (code, _, err) = run(&[text(&nothing)]);
    assert!(code == 64 && err.contains("it is empty"), "{code} {err}");
}

#[test]
fn two_names_of_one_id_cannot_be_judged() {
    let dir = tempfile::tempdir().unwrap();
    let name = |text: &[u8; 8]| Record {
        at: 1,
        weight: 8,
        number: 1 << 56,
        ..Record::about(What::Name, LockId(7), u64::from_le_bytes(*text))
    };
    let path = put(dir.path(), "a.lkh", &header(1), &[name(b"stock/11"), name(b"stock/12")]);
    let (code, _, err) = run(&[text(&path)]);
    assert_eq!(code, 64);
    assert!(
        err.contains("a.lkh: the names \"stock/11\" and \"stock/12\" have the same id"),
        "{err}"
    );
}

#[test]
fn a_file_that_may_not_be_read_is_69() {
    use lockkeeper_lab::check::CheckError;
    use lockkeeper_lab::history::ReadError;
    let error = CheckError::from(ReadError::Io(
        "h.lkh".into(),
        std::io::Error::from(std::io::ErrorKind::PermissionDenied),
    ));
    assert_eq!(
        (error.exit_code(), error.to_string().as_str()),
        (69, "h.lkh: cannot be read: permission denied")
    );
    assert!(
        std::error::Error::source(&error).is_some()
            && std::error::Error::source(&CheckError::SeveralMachines).is_none()
    );
}
