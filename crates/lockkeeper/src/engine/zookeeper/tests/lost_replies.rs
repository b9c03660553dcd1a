//! Replies that are lost, and requests that are held up or never arrive.

use lockkeeper_testkit::zookeeper::proxy::op;

use super::*;

const LAYOUTS: [&str; 3] = ["layout=curator", "layout=kazoo", "layout=plain"];

#[test]
fn z2_a_create_whose_reply_is_lost_is_found_again() {
    run(async {
        let place = Place::new().await;
        for layout in LAYOUTS {
            let (proxy, one) = place.client_behind_a_proxy(layout).await;
            let name = layout.replace('=', "-");
            one.lock(&claim(&format!("{name}/warm"))).await;
            proxy.lose_reply_to(op::CREATE);
            let a = claim(&name);
            one.lock(&a).await;
            assert!(proxy.has_struck());
            let contenders = one.children(&name).await.into_iter().filter(|n| n != "warm").count();
            assert_eq!(contenders, 1, "one node, not a ghost before it: {layout}");
            assert!(matches!(one.release(&a).await, End::Freed));
            assert_eq!(one.children(&name).await, ["warm"]);
        }
    });
}

#[test]
fn z2_a_lost_create_leaves_the_locks_below_its_name_alone() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("layout=plain&prefix=").await;
        let (below, a) = (claim("stock/sku-42"), claim("stock"));
        one.lock(&below).await;
        proxy.lose_reply_to(op::CREATE);
        one.lock(&a).await;
        assert!(proxy.has_struck());
        assert!(matches!(one.release(&below).await, End::Freed), "its node is its own");
        assert!(matches!(one.release(&a).await, End::Freed));
    });
}

#[test]
fn a_create_that_never_arrived_is_sent_again() {
    run(async {
        let place = Place::new().await;
        for layout in LAYOUTS {
            let (proxy, one) = place.client_behind_a_proxy(layout).await;
            proxy.cut_before(op::CREATE);
            let a = claim(&layout.replace('=', "-"));
            one.lock(&a).await;
            assert!(proxy.has_struck());
            assert!(matches!(one.release(&a).await, End::Freed));
        }
    });
}

#[test]
fn a_withdrawal_while_the_create_is_in_doubt_leaves_nothing() {
    run(async {
        let place = Place::new().await;
        let two = place.client().await;
        for layout in LAYOUTS {
            let (proxy, one) = place.client_behind_a_proxy(layout).await;
            let name = layout.replace('=', "-");
            one.release(&{
                let warm = claim(&name);
                one.lock(&warm).await;
                warm
            })
            .await;
            proxy.lose_reply_to(op::CREATE);
            let a = claim(&name);
            let attempt = one.engine.attempt(&a, Line::Join);
            until("the reply is lost", || async {
                proxy.has_struck() && two.children(&name).await.len() == 1
            })
            .await;
            assert!(matches!(one.withdraw(&a).await, End::Freed));
            drop(answer(attempt).await);
            assert!(two.children(&name).await.is_empty(), "{layout}");
        }
    });
}

#[test]
fn g7_a_delete_whose_reply_is_lost_was_a_release() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("").await;
        let two = place.client().await;
        let (a, b) = (claim("x"), claim("x"));
        one.lock(&a).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        proxy.lose_reply_to(op::DELETE);
        assert!(matches!(one.release(&a).await, End::Freed));
        two.granted(b.id).await;
        assert_eq!(two.children("x").await.len(), 1, "only its own node was deleted");
    });
}

#[test]
fn g6_a_request_that_is_held_up_locks_for_nobody_who_has_left() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("request_timeout=300ms").await;
        let two = place.client().await;
        proxy.hold_requests(true);
        let a = claim("x");
        assert!(matches!(one.join(&a).await, Attempt::Unknown(_)), "R4: it may have happened");
        assert!(matches!(one.withdraw(&a).await, End::Unknown(_)));
        proxy.hold_requests(false);
        until("it is gone", || async { one.engine.shared().unwrap().lock().claims.is_empty() })
            .await;
        assert!(two.children("x").await.is_empty());
        // Without a link nothing is sent at all, and that is certain.
        proxy.close();
        one.event(|e| matches!(e, Event::Link { up: false }).then_some(())).await;
        let b = claim("x");
        let why = failed(one.join(&b).await);
        assert!(why.is_outage(), "it is waited for: {why}");
        let late =
            Claim { give_up: Some(one.clock.now().plus(Duration::from_millis(50))), ..claim("x") };
        let attempt = one.engine.attempt(&late, Line::Join);
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.open();
        until("the link is back", || async { one.engine.shared().unwrap().lock().up }).await;
        assert_eq!(
            failed(answer(attempt).await).kind(),
            crate::ErrorKind::TimedOut,
            "the caller had left when the link came back"
        );
        assert!(two.children("x").await.is_empty());
    });
}
