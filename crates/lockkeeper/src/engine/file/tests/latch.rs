use super::*;
use crate::engine::Change;

fn name() -> Name {
    Name::new("l").unwrap()
}

fn set(peer: &Peer, count: u64) -> bool {
    finish(peer.engine.write(&Change::LatchSet(name(), count))).unwrap()
}

fn down(peer: &Peer, id: ClaimId) -> bool {
    finish(peer.engine.write(&Change::LatchCountDown(name(), id))).unwrap()
}

#[test]
fn a_latch_opens_at_zero_and_can_be_set_again() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    assert_eq!(a.entry(Kind::Latch, "l").count, None);
    assert!(down(&a, ClaimId::fresh()), "one that was never set is open");
    assert!(set(&a, 2));
    assert!(!set(&b, 9), "it is closed already");
    assert_eq!(b.entry(Kind::Latch, "l").count, Some(2));
    assert!(!down(&b, ClaimId::fresh()));
    assert!(down(&a, ClaimId::fresh()));
    assert_eq!(b.entry(Kind::Latch, "l").count, None);
    assert!(set(&b, u64::MAX));
    assert_eq!(a.entry(Kind::Latch, "l").count, Some(u64::MAX));
}

#[test]
fn r3_a_count_down_sent_twice_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Peer::new(dir.path()), Peer::new(dir.path()));
    set(&a, 100);
    let id = ClaimId::fresh();
    for _ in 0..3 {
        assert!(!down(&a, id) && !down(&b, id));
    }
    assert_eq!(a.entry(Kind::Latch, "l").count, Some(99));
}

#[test]
fn count_downs_from_everywhere_all_count() {
    let dir = tempfile::tempdir().unwrap();
    let peers: Vec<_> = (0..4).map(|_| Peer::new(dir.path())).collect();
    set(&peers[0], 400);
    std::thread::scope(|scope| {
        for peer in &peers {
            let engine = peer.engine.clone();
            scope.spawn(move || {
                for _ in 0..100 {
                    finish(engine.write(&Change::LatchCountDown(name(), ClaimId::fresh())))
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(peers[0].entry(Kind::Latch, "l").count, None);
}
