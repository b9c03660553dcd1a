//! A look at a lock file that the system does not allow proves nothing: no hold is lost by it,
//! nobody loses a place, and nobody is granted anything.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::super::bytes::{Grip, Span};
use super::super::wire;
use super::*;
use crate::ErrorKind;
use crate::words::lost::Lost;

/// A directory of locks behind a link, which leads elsewhere from one instant to the next.
struct Behind {
    temp: tempfile::TempDir,
}

impl Behind {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["locks", "other"] {
            fs::create_dir(temp.path().join(dir)).unwrap();
        }
        symlink("locks", temp.path().join("link")).unwrap();
        symlink("other", temp.path().join("to-other")).unwrap();
        // In the link's place it leads to itself: an error that is neither "nothing there" nor
        // "another one".
        symlink("link", temp.path().join("nowhere")).unwrap();
        Self { temp }
    }

    fn path(&self) -> std::path::PathBuf {
        self.temp.path().join("link")
    }

    /// Exchanges two names: one twice is as before.
    fn exchange(&self, one: &str, two: &str) {
        let [one, two] = [one, two].map(|name| self.temp.path().join(name));
        renameat2(AT_FDCWD, &one, AT_FDCWD, &two, RenameFlags::RENAME_EXCHANGE).unwrap();
    }

    /// Makes looking fail, and possible again.
    fn blind(&self) {
        self.exchange("link", "nowhere");
    }
}

fn look(peer: &Peer) -> (usize, bool) {
    let looked = peer.engine.0.look(peer.engine.0.opened().unwrap(), None);
    (looked.lost.len(), looked.again)
}

#[test]
fn an_error_of_the_system_ends_no_hold_and_asking_says_that_it_is_not_known() {
    let behind = Behind::new();
    let peer = Peer::new(&behind.path());
    let modes = [
        ("w", Mode::Exclusive),
        ("r", Mode::Shared),
        ("u", Mode::Upgradable),
        ("p", Mode::Permits { count: 1, limit: 2 }),
    ];
    let holds = modes.map(|(name, mode)| peer.get(name, mode).0);
    behind.blind();
    for answer in finish(peer.engine.recheck(&holds)) {
        let Standing::Unknown(error) = answer else { panic!("{answer:?}") };
        assert!(
            error.kind() == ErrorKind::Unknown && error.message().contains("symbolic links"),
            "{error}"
        );
    }
    assert_eq!(look(&peer), (0, true), "looked at again, and not lost");
    behind.blind();
    assert!(
        finish(peer.engine.recheck(&holds))
            .iter()
            .all(|answer| matches!(answer, Standing::Held(_)))
    );
    assert_eq!(look(&peer), (0, false));
    behind.exchange("link", "to-other");
    assert_eq!(look(&peer), (4, false), "that is another directory");
}

/// One who holds x, and one who waits for it.
fn held_and_waited_for(behind: &Behind) -> (Peer, HoldId, Peer, ClaimId) {
    let (a, b) = (Peer::new(&behind.path()), Peer::new(&behind.path()));
    let (hold, _) = a.get("x", Mode::Exclusive);
    let waiting = b.stand("x", Mode::Exclusive);
    a.until_waiters(Kind::Lock, "x", 1);
    (a, hold, b, waiting)
}

#[test]
fn nothing_is_granted_while_the_system_does_not_let_us_look() {
    let behind = Behind::new();
    let (a, hold, b, waiting) = held_and_waited_for(&behind);
    behind.blind();
    a.release(hold);
    match b.events.recv_timeout(PATIENCE) {
        Ok(Event::Failed { claim, error }) if claim == waiting => {
            assert!(
                error.kind() == ErrorKind::Refused && error.message().contains("x.lock"),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
    match b.attempt(&claim("y", Mode::Exclusive), Line::Try) {
        Attempt::Failed(error) => assert_eq!(error.kind(), ErrorKind::Refused, "{error}"),
        other => panic!("{other:?}"),
    }
    behind.blind();
    assert!(a.can_get("x", Mode::Exclusive), "and nothing is left of the one that waited");
}

#[test]
fn who_waits_keeps_its_place_while_the_system_does_not_let_us_look() {
    let behind = Behind::new();
    let (a, hold, b, waiting) = held_and_waited_for(&behind);
    behind.blind();
    assert_eq!(look(&b), (0, true));
    behind.blind();
    a.until_waiters(Kind::Lock, "x", 1);
    a.release(hold);
    b.granted(waiting);
}

#[test]
fn a_holder_is_told_of_another_directory_once_it_can_be_looked_at_again() {
    let behind = Behind::new();
    let peer = Peer::new(&behind.path());
    let (hold, _) = peer.get("x", Mode::Exclusive);
    behind.blind();
    // The kernel tells that the directory was moved; what the path leads to now cannot be seen.
    fs::rename(behind.temp.path().join("locks"), behind.temp.path().join("moved")).unwrap();
    assert!(peer.is_silent());
    behind.exchange("link", "to-other");
    match peer.events.recv_timeout(PATIENCE) {
        Ok(Event::Ended { which: crate::engine::Which::Hold(lost), why: Lost::Replaced }) => {
            assert_eq!(lost, hold)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hold_whose_damaged_file_cannot_be_repaired_at_once_is_not_lost_and_is_looked_at_again() {
    let behind = Behind::new();
    let dir = behind.temp.path().join("locks");
    let peer = Peer::new(&dir);
    let (hold, _) = peer.get("x", Mode::Exclusive);
    let file = fs::File::options().read(true).write(true).open(dir.join("x.lock")).unwrap();
    assert_eq!(
        wire::try_lock(&file, Span::BRIEF, Grip::Write),
        Ok(true),
        "somebody who writes into it, and does not come to an end"
    );
    let damaged = vec![0xa5; super::super::bytes::FILE as usize];
    file.write_all_at(&damaged, 0).unwrap();
    assert!(matches!(finish(peer.engine.recheck(&[hold]))[..], [Standing::Unknown(_)]));
    // The directory itself gets another name, of which the kernel tells, and its path leads there
    // all the same.
    symlink("through", behind.temp.path().join("through")).unwrap();
    behind.exchange("locks", "through");
    assert!(peer.is_silent());
    wire::unlock(&file, Span::BRIEF).unwrap();
    until("it is repaired without being asked for", || {
        fs::read(dir.join("x.lock")).unwrap() != damaged
    });
    assert!(matches!(finish(peer.engine.recheck(&[hold]))[..], [Standing::Held(_)]));
}
