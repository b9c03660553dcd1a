//! R7 and R10: how a claim stands, asked of the engine by the claim's id alone.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::engine::{Attempt, ClaimId, End, Grant, LeaseId, Line, Number, Standing};
use lockkeeper::observe::{Observer, Seen};
use lockkeeper::{Claim, ErrorKind, Kind, Mode, Name, Through, Ticks, Token};

use crate::conformance::ask::Asked;
use crate::conformance::trial::{HANGS, Trial, within};

/// Asks until the engine knows.
async fn recheck(asked: &Asked, claim: ClaimId) -> Standing {
    let known = async {
        loop {
            let mut standings = asked.answer(asked.engine.recheck(&[claim])).await;
            assert_eq!(standings.len(), 1, "one answer for each claim");
            match standings.remove(0) {
                Standing::Unknown(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                known => return known,
            }
        }
    };
    within(HANGS, "the engine says how it stands", known).await
}

async fn held(asked: &Asked, claim: ClaimId) -> Grant {
    match recheck(asked, claim).await {
        Standing::Held(grant) => grant,
        other => panic!("it holds, and is not {other:?}"),
    }
}

/// What does not change about a grant for as long as it stands.
fn said(grant: &Grant) -> (Number, Option<LeaseId>) {
    (grant.number, grant.lease.map(|lease| lease.id))
}

fn assert_gone(standing: &Standing) {
    let lost = matches!(standing, Standing::Gone(error) if error.kind() == ErrorKind::Lost);
    assert!(lost, "nothing of it is there: {standing:?}");
}

pub(super) async fn r7_a_rechecked_hold_says_the_number_of_its_grant(t: Arc<Trial>) {
    let locks = t.open().await;
    let asked = Asked::of(&locks);
    let claim = Asked::claim(&t.name("a"), Mode::Exclusive);
    let grant = asked.granted(&claim).await;
    for _ in 0..2 {
        assert_eq!(said(&held(&asked, claim.id).await), said(&grant), "one grant");
    }
    assert!(!t.about.fenced || grant.number != Number::None, "a number");
    assert!(matches!(asked.release(claim.id).await, End::Freed));
    assert_gone(&recheck(&asked, claim.id).await);
}

pub(super) async fn r7_a_hold_that_was_waited_for_says_its_number_too(t: Arc<Trial>) {
    #[derive(Default)]
    struct Got(Mutex<Option<(ClaimId, Option<Token>)>>);
    impl Observer for Got {
        fn seen(&self, _: Ticks, _: Kind, _: &Name, what: &Seen) {
            if let Seen::Got { hold, token, .. } = what {
                *self.0.lock().expect("nobody panics") = Some((*hold, *token));
            }
        }
    }
    let name = t.name("a");
    let got = Arc::new(Got::default());
    let here = t.open().await;
    let there = t.open_with(|builder| builder.observer(got.clone())).await;
    let first = t.lock(&here, &name).await.expect("it is free");
    let next = tokio::spawn(t.lock(&there, &name).into_future());
    t.until_waiting(&here, Kind::Lock, &name, 1).await;
    assert!(first.release().await.is_clean());
    let guard = within(HANGS, "it is granted", next).await;
    let guard = guard.expect("no panic").expect("it is free");
    let (hold, token) = got.0.lock().expect("nobody panics").expect("it was seen");
    let said = match held(&Asked::of(&there), hold).await.number {
        Number::Ours(number) => Token::of(number, 0),
        Number::Raw(number) => Token::raw(number),
        Number::None => None,
    };
    assert_eq!(said, token, "the number of the guard's token");
    assert!(guard.release().await.is_clean());
}

pub(super) async fn r10_a_rechecked_place_is_in_line_and_a_left_one_is_gone(t: Arc<Trial>) {
    let name = t.name("a");
    let (here, there) = (t.open().await, t.open().await);
    let first = t.lock(&here, &name).await.expect("it is free");
    let asked = Asked::of(&there);
    let claim = Asked::claim(&name, Mode::Exclusive);
    let answer = asked.attempt(&claim, Line::Join).await;
    assert!(matches!(answer, Attempt::InLine(_)), "{answer:?}");
    for _ in 0..2 {
        let standing = recheck(&asked, claim.id).await;
        assert!(matches!(standing, Standing::InLine(_)), "{standing:?}");
    }
    asked.withdraw(claim.id).await;
    assert_gone(&recheck(&asked, claim.id).await);
    assert_gone(&recheck(&asked, ClaimId::fresh()).await);
    assert!(first.release().await.is_clean());
}

pub(super) async fn r7_an_upgraded_hold_says_the_number_of_its_upgrade(t: Arc<Trial>) {
    let locks = t.open().await;
    let asked = Asked::of(&locks);
    let name = t.name("a");
    let claim = Asked::claim(&name, Mode::Upgradable);
    let before = asked.granted(&claim).await;
    let upgrade = Claim { through: Through::RwLock, ..Asked::claim(&name, Mode::Exclusive) };
    let upgraded = match asked.answer(asked.engine.convert(claim.id, &upgrade)).await {
        Attempt::Granted(grant) => grant,
        other => panic!("nobody else is there, and yet {other:?}"),
    };
    assert!(before.number != upgraded.number || !t.about.fenced, "a number of its own");
    for id in [claim.id, upgrade.id] {
        assert_eq!(
            held(&asked, id).await.number,
            upgraded.number,
            "of the hold and the conversion"
        );
    }
    assert!(matches!(asked.release(claim.id).await, End::Freed));
    assert_gone(&recheck(&asked, claim.id).await);
}

pub(super) async fn rechecked_permits_are_held_by_the_same_grant(t: Arc<Trial>) {
    let locks = t.open().await;
    let asked = Asked::of(&locks);
    let claim = Asked::claim(&t.name("a"), Mode::Permits { count: 1, limit: 2 });
    let grant = asked.granted(&claim).await;
    let again = held(&asked, claim.id).await;
    assert_eq!(said(&again), said(&grant));
    assert!(matches!(asked.release(claim.id).await, End::Freed));
    assert_gone(&recheck(&asked, claim.id).await);
}
