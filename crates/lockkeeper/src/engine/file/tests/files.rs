use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;
use crate::ErrorKind;

fn failure(peer: &Peer, name: &str) -> crate::Error {
    match peer.attempt(&claim(name, Mode::Exclusive), Line::Try) {
        Attempt::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn r7_numbers_grow_over_a_deleted_file_and_a_deleted_directory() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("locks");
    let peer = Peer::new(&dir);
    let (hold, first) = peer.get("x", Mode::Exclusive);
    peer.release(hold);
    fs::remove_file(dir.join("x.lock")).unwrap();
    let (hold, second) = peer.get("x", Mode::Exclusive);
    peer.release(hold);
    fs::remove_dir_all(&dir).unwrap();
    let (hold, third) = peer.get("x", Mode::Shared);
    peer.release(hold);
    let (_, fourth) = peer.get("x", Mode::Exclusive);
    assert!(
        first < second && second < third && third < fourth,
        "{first} {second} {third} {fourth}"
    );
    assert!(dir.join("x.lock").exists());
}

#[test]
fn f1_a_replaced_file_is_noticed_before_a_grant_and_by_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let (idle, _) = a.get("x", Mode::Exclusive);
    a.release(idle);
    let (hold, _) = b.get("x", Mode::Exclusive);
    assert!(matches!(finish(b.engine.recheck(&[hold]))[..], [Standing::Held(_)]));
    fs::remove_file(dir.path().join("x.lock")).unwrap();
    assert!(
        matches!(finish(b.engine.recheck(&[hold]))[..], [Standing::Gone(_)]),
        "its holder notices"
    );
    let (_, _) = a.get("x", Mode::Exclusive);
    assert!(!b.can_get("x", Mode::Exclusive), "the kept descriptor of the old file serves nobody");
}

#[test]
fn f1_a_file_renamed_over_or_away_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    let path = dir.path().join("x.lock");
    let (first, _) = peer.get("x", Mode::Exclusive);
    fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    let (second, _) = peer.get("x", Mode::Exclusive);
    fs::copy(&path, dir.path().join("copy")).unwrap();
    fs::rename(dir.path().join("copy"), &path).unwrap();
    let (third, _) = peer.get("x", Mode::Exclusive);
    let held: Vec<_> = finish(peer.engine.recheck(&[first, second, third]))
        .iter()
        .map(|answer| matches!(answer, Standing::Held(_)))
        .collect();
    assert_eq!(held, [false, false, true]);
}

#[test]
fn a_file_emptied_or_filled_with_garbage_while_held_is_survived() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let path = dir.path().join("x.lock");
    let whole = super::super::bytes::FILE as usize;
    let mut last = 0;
    for damage in
        [vec![], vec![0xa5; whole], vec![0; whole], vec![0xa5; 100], vec![0xa5; 3 * whole]]
    {
        let (hold, number) = a.get("x", Mode::Exclusive);
        assert!(number > last, "BROKEN LOCK: a token went back");
        last = number;
        fs::write(&path, &damage).unwrap();
        let other = b.attempt(&claim("x", Mode::Exclusive), Line::Try);
        assert!(!matches!(other, Attempt::Granted(_)), "the kernel's lock is where it was");
        assert!(
            matches!(finish(a.engine.recheck(&[hold]))[..], [Standing::Held(_)]),
            "and its holder repairs the file"
        );
        assert_eq!(b.entry(Kind::Lock, "x").holders[0].claim, Some(hold));
        let waiting = b.stand("x", Mode::Exclusive);
        a.release(hold);
        assert!(b.granted(waiting) > last);
        b.release(waiting);
    }
}

#[test]
fn an_unreadable_record_says_how_to_repair_it_and_an_empty_file_is_a_fresh_one() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    let path = dir.path().join("x.lock");
    let (hold, first) = a.get("x", Mode::Exclusive);
    fs::write(&path, "").unwrap();
    a.release(hold);
    let (hold, second) = a.get("x", Mode::Exclusive);
    assert!(second > first);
    let waiting = b.stand("x", Mode::Exclusive);
    a.until_waiters(Kind::Lock, "x", 1);
    fs::write(&path, vec![0xa5; super::super::bytes::FILE as usize]).unwrap();
    a.release(hold);
    let Ok(Event::Failed { claim, error: told }) = b.events.recv_timeout(PATIENCE) else {
        panic!()
    };
    assert_eq!(claim, waiting);
    for error in [told, failure(&a, "x"), failure(&b, "x")] {
        assert!(
            error.kind() == ErrorKind::Corrupt
                && error.message().contains("x.lock")
                && error.message().contains("gc"),
            "{error}"
        );
        assert_eq!(error.kind().exit_code(), 69);
    }
}

#[test]
fn f5_a_torn_record_repeats_no_number() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    let mut last = 0;
    for round in 0..6 {
        let (hold, number) = peer.get("x", Mode::Exclusive);
        assert!(number > last, "BROKEN LOCK: a token went back");
        last = number;
        peer.release(hold);
        let file = fs::File::options().write(true).open(dir.path().join("x.lock")).unwrap();
        file.write_all_at(&[round], super::super::bytes::HOT_AT + 128 * u64::from(round % 2) + 50)
            .unwrap();
    }
}

#[test]
fn what_is_no_lock_file_is_refused_with_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    fs::write(dir.path().join("target"), "").unwrap();
    symlink(dir.path().join("target"), dir.path().join("link.lock")).unwrap();
    fs::create_dir(dir.path().join("dir.lock")).unwrap();
    nix::unistd::mkfifo(&dir.path().join("pipe.lock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(dir.path().join("text.lock"), "not ours").unwrap();
    let (hold, _) = peer.get("two", Mode::Exclusive);
    peer.release(hold);
    fs::hard_link(dir.path().join("two.lock"), dir.path().join("names.lock")).unwrap();
    for (name, kind, says) in [
        ("link", ErrorKind::Refused, "symbolic link"),
        ("dir", ErrorKind::Refused, "directory"),
        ("pipe", ErrorKind::Refused, "regular"),
        ("text", ErrorKind::Corrupt, "cannot be read"),
        ("two", ErrorKind::Refused, "more than one name"),
    ] {
        let error = failure(&peer, name);
        assert!(
            error.kind() == kind
                && error.message().contains(says)
                && error.message().contains("user "),
            "{name}: {error}"
        );
    }
    assert_eq!(
        fs::read(dir.path().join("target")).unwrap(),
        b"",
        "a symbolic link is not followed"
    );
}

#[test]
fn r17_a_newer_layout_stops_with_both_numbers() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    let (hold, _) = peer.get("x", Mode::Exclusive);
    peer.release(hold);
    fs::File::options()
        .write(true)
        .open(dir.path().join("x.lock"))
        .unwrap()
        .write_all_at(&[9], 20)
        .unwrap();
    let error = failure(&Peer::new(dir.path()), "x");
    assert!(
        error.kind() == ErrorKind::NewerLayout
            && error.message().contains('9')
            && error.message().contains('1'),
        "{error}"
    );
}

#[test]
fn r12_two_names_that_the_file_system_takes_for_one_never_share_a_lock() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    let (hold, _) = peer.get("Deploy", Mode::Exclusive);
    peer.release(hold);
    fs::rename(dir.path().join("Deploy.lock"), dir.path().join("deploy.lock")).unwrap();
    let error = failure(&peer, "deploy");
    assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("Deploy"), "{error}");
}

#[test]
fn the_directory_is_made_private_if_only_it_is_missing() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("locks");
    let peer = Peer::new(&dir);
    let _held = peer.get("x", Mode::Exclusive);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&dir), mode(&dir.join("x.lock"))), (0o700, 0o600));
    let error =
        super::super::direct::Files::open(&temp.path().join("no/locks"), false).err().unwrap();
    assert!(
        error.kind().exit_code() == 69 && error.message().contains("does not exist"),
        "{error}"
    );
    let error = super::super::direct::Files::open(&dir.join("x.lock"), false).err().unwrap();
    assert!(
        error.kind().exit_code() == 69 && error.message().contains("not a directory"),
        "{error}"
    );
}

#[test]
fn files_in_a_shared_directory_are_open_to_whoever_shares_it() {
    for (of_dir, of_file) in [(0o1777, 0o666), (0o2775, 0o660), (0o750, 0o600)] {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(of_dir)).unwrap();
        let _held = Peer::new(dir.path()).get("x", Mode::Exclusive);
        assert_eq!(
            fs::metadata(dir.path().join("x.lock")).unwrap().mode() & 0o777,
            of_file,
            "{of_dir:o}"
        );
    }
}

#[test]
fn many_names_keep_few_files_open() {
    let dir = tempfile::tempdir().unwrap();
    let peer = Peer::new(dir.path());
    // Of this directory: the tests beside open others.
    let kept = || {
        fs::read_dir("/proc/self/fd")
            .unwrap()
            .flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok())
            .filter(|path| path.starts_with(dir.path()) && path != dir.path())
            .count()
    };
    for n in 0..500 {
        let (hold, _) = peer.get(&format!("n{n}"), Mode::Exclusive);
        peer.release(hold);
    }
    assert!(kept() < 400, "{} of 500", kept());
    until("what is not used any more is closed", || kept() == 0);
}

#[test]
fn f1_a_directory_that_went_with_one_above_it_is_noticed_after_a_wait() {
    let temp = tempfile::tempdir().unwrap();
    let (above, dir) = (temp.path().join("above"), temp.path().join("above/locks"));
    fs::create_dir(&above).unwrap();
    let (a, b) = (Peer::new(&dir), Peer::new(&dir));
    let (hold, number) = a.get("x", Mode::Exclusive);
    let waits = b.stand("x", Mode::Exclusive);
    a.until_waiters(Kind::Lock, "x", 1);
    // Nothing happens in the directory itself, so the kernel tells nobody.
    fs::rename(&above, temp.path().join("away")).unwrap();
    fs::create_dir(&above).unwrap();
    a.release(hold);
    assert!(b.granted(waits) > number);
    assert!(dir.join("x.lock").exists(), "it holds the file that the path leads to");
    assert!(
        !Peer::new(&dir).can_get("x", Mode::Exclusive),
        "whoever comes along the path finds it held"
    );
}
