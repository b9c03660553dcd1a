//! What catches what was lost, what is told to whom, and that nothing is kept of it.

use lockkeeper_testkit::zookeeper::proxy::op;

use super::*;
use crate::ErrorKind;
use crate::engine::zookeeper::layout::{Layout, Tag};

#[test]
fn a_node_of_ours_that_no_claim_knows_is_deleted_also_when_nobody_waits_here() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("session_timeout=8s").await;
        let two = place.client().await;
        let a = claim("x");
        one.lock(&a).await;
        let session = one.session();
        // As a create that a slow server passes on after its reply was given up.
        let left = Layout::Curator.prefix(Tag::Lock, ClaimId::fresh());
        one.create(&one.path(&format!("x/{left}")), b"", Create::EphemeralSequential).await;
        proxy.lose_reply_to(op::DELETE);
        assert!(matches!(one.release(&a).await, End::Freed | End::Unknown(_)));
        until("nothing of it is left", || async { two.children("x").await.is_empty() }).await;
        assert_eq!(one.session(), session, "it did not go with its session");
        one.close().await;
    });
}

#[test]
fn r10_the_net_deletes_nodes_of_the_session_that_no_claim_knows() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let (a, b, others) = (claim("x"), claim("x"), claim("x"));
        // As creates that a slow server passed on too late: one of a claim that is over, one of the
        // claim itself.
        one.lock(&others).await;
        for id in [a.id, b.id] {
            let path = format!("{}/{}", one.path("x"), Layout::Curator.prefix(Tag::Lock, id));
            one.create(&path, b"", Create::EphemeralSequential).await;
        }
        assert!(matches!(one.release(&others).await, End::Freed));
        assert!(matches!(one.join(&b).await, Attempt::InLine(_)));
        assert!(matches!(two.join(&others).await, Attempt::InLine(_)));
        assert!(one.is_quiet_about(b.id));
        assert!(matches!(
            answer(two.engine.recheck(&[others.id])).await[..],
            [Standing::InLine(_)]
        ));
        assert_eq!(one.children("x").await.len(), 4, "another session's nodes are none of ours");
        answer(one.engine.recheck(&[b.id])).await;
        one.granted(b.id).await;
        assert_eq!(one.children("x").await.len(), 2, "both claims stand");
        assert!(matches!(one.release(&b).await, End::Freed));
        two.granted(others.id).await;
    });
}

#[test]
fn a_place_that_was_lent_is_wanted_for_as_long_as_its_new_caller_waits() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("session_timeout=2s").await;
        let two = place.client().await;
        let held = claim("x");
        two.lock(&held).await;
        let give_up = one.clock.now().plus(Duration::from_secs(10));
        let first = Claim { give_up: Some(give_up), ..claim("x") };
        assert!(matches!(one.join(&first).await, Attempt::InLine(_)));
        let lent = Claim { give_up: None, ..first };
        assert!(matches!(one.join(&lent).await, Attempt::InLine(_)));
        proxy.close();
        until("its session is over", || async { two.children("x").await.len() == 1 }).await;
        until("its first caller's time is over", || async { one.clock.now() > give_up }).await;
        proxy.open();
        until("it stands again", || async {
            two.children("x").await.len() == 2 || !one.is_quiet_about(lent.id)
        })
        .await;
        assert!(one.is_quiet_about(lent.id), "it is not told that the first caller's time is over");
        assert!(matches!(two.release(&held).await, End::Freed));
        one.granted(lent.id).await;
        one.close().await;
    });
}

#[test]
fn whoever_waits_is_told_when_the_ensemble_refuses_us_in_mid_life() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("auth=digest:me:secret").await;
        let two = place.client().await;
        let (held, waits) = (claim("x"), claim("x"));
        two.lock(&held).await;
        assert!(matches!(one.join(&waits).await, Attempt::InLine(_)));
        proxy.refuse_identity(true);
        proxy.cut();
        let error = one
            .event(|event| match event {
                Event::Failed { claim, error } if claim == waits.id => Some(error),
                _ => None,
            })
            .await;
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert_eq!(failed(one.join(&claim("y")).await).kind(), ErrorKind::Refused);
        one.close().await;
    });
}

#[test]
fn the_net_asks_about_many_places_in_several_messages() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("").await;
        let two = place.client().await;
        two.lock(&claim("x")).await;
        let claims: Vec<Claim> = (0..300).map(|_| claim("x")).collect();
        for claim in &claims {
            assert!(matches!(one.join(claim).await, Attempt::InLine(_)));
        }
        proxy.take_counts();
        let ids: Vec<ClaimId> = claims.iter().map(|claim| claim.id).collect();
        let stand = answer(one.engine.recheck(&ids)).await;
        assert!(stand.iter().all(|stands| matches!(stands, Standing::InLine(_))));
        assert_eq!(proxy.take_counts().get(&op::MULTI_READ), Some(&2));
        one.close().await;
    });
}

#[test]
fn a_resize_is_heard_also_after_one_that_came_while_a_claim_was_being_made() {
    run(async {
        let permits = |count, limit| claim_in(Kind::Semaphore, "x", Mode::Permits { count, limit });
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("request_timeout=20s").await;
        let two = place.client().await;
        let (held, waits) = (permits(2, 2), permits(2, 3));
        one.lock(&held).await;
        proxy.hold_requests(true);
        let joining = one.engine.attempt(&waits, Line::Join);
        proxy.take_events();
        assert!(change(&two, Change::Resize(name("x"), 3)).await.unwrap());
        until("the event came", || async {
            !one.engine.shared().unwrap().lock().targets.contains_key(&one.path("x/permits"))
        })
        .await;
        proxy.hold_requests(false);
        assert!(matches!(answer(joining).await, Attempt::InLine(_)));
        assert!(change(&two, Change::Resize(name("x"), 4)).await.unwrap());
        one.granted(waits.id).await;
        one.close().await;
    });
}

#[test]
fn nothing_is_listened_to_once_nothing_is_held_or_waited_for() {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        for at in 0..3 {
            let one_permit =
                claim_in(Kind::Semaphore, &format!("s{at}"), Mode::Permits { count: 1, limit: 1 });
            let (held, next) = (one_permit.clone(), Claim { id: ClaimId::fresh(), ..one_permit });
            one.lock(&held).await;
            assert!(matches!(one.join(&next).await, Attempt::InLine(_)));
            assert!(matches!(one.withdraw(&next).await, End::Freed));
            assert!(matches!(one.release(&held).await, End::Freed));
        }
        let shared = one.engine.shared().unwrap();
        until("no path has a listener", || async { shared.lock().targets.is_empty() }).await;
        one.close().await;
    });
}

#[test]
fn an_ensemble_that_was_restored_has_us_again_once_our_session_is_certainly_over() {
    run(async {
        let mut server = Server::start(Settings::default()).unwrap();
        let one = Client::open(&format!("zk://127.0.0.1:{}?session_timeout=3s", server.port()))
            .await
            .unwrap();
        let (held, next) = (claim("x"), claim("x"));
        one.lock(&held).await;
        server.restart_empty().unwrap();
        assert_eq!(one.lost(held.id).await, Lost::SessionEnded);
        one.lock_stubbornly(&next).await;
        assert!(matches!(one.release(&next).await, End::Freed));
        one.close().await;
    });
}

#[test]
fn a_delete_that_is_repeated_spares_a_node_that_somebody_else_has_by_that_name_now() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("layout=plain&session_timeout=10s").await;
        let two = place.client().await;
        let a = claim("x");
        one.lock(&a).await;
        let node = two.children("x").await.remove(0);
        proxy.hold_replies(true);
        let releasing = one.engine.release(&[a.id], None);
        until("it is deleted", || async { two.children("x").await.is_empty() }).await;
        proxy.close();
        proxy.hold_replies(false);
        // The directory is made anew, and its numbers begin anew.
        two.delete(&two.path("x")).await;
        two.create(&two.path("x"), b"", Create::Persistent).await;
        let path = format!("x/{}", node.trim_end_matches(|c: char| c.is_ascii_digit()));
        two.create(&two.path(&path), b"", Create::EphemeralSequential).await;
        assert_eq!(two.children("x").await, std::slice::from_ref(&node), "the same name");
        proxy.open();
        let released = answer(releasing).await;
        assert!(matches!(released.ends[..], [End::Freed | End::Unknown(_)]));
        until("the release is known", || async {
            one.engine.shared().unwrap().lock().claims.is_empty()
        })
        .await;
        assert_eq!(two.children("x").await, [node], "it is not ours");
        one.close().await;
    });
}

#[test]
fn r1_a_write_that_was_refused_proves_nothing_unless_it_is_a_transactions_part() {
    run(async {
        let place = Place::new().await;
        let one = place.client_with("session_timeout=8s").await;
        let shared = one.engine.shared().unwrap();
        let proven = || shared.lock().alive.proven();
        let before = proven();
        // So old that a write proves it.
        let touched = one.clock.now().plus(Duration::from_secs(2));
        until("a touch is a quarter of the session old", || async { one.clock.now() > touched })
            .await;
        let gone = Request::Delete { path: one.path("nothing"), version: -1 };
        assert!(one.ask(gone.clone()).await.is_err());
        assert_eq!(proven(), before, "the word of the server that we are connected to, perhaps");
        assert!(matches!(one.ask(Request::Multi(vec![gone])).await, Ok(Reply::Many(_))));
        assert!(proven() > before, "the quorum's");
        one.close().await;
    });
}
