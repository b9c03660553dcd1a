//! The mutex: one holder, first come first served, nothing left behind.

use lockkeeper_testkit::zookeeper::proxy::{Proxy, op};

use super::*;

#[test]
fn a_line_of_many_is_served_in_order_with_rising_tokens() {
    run(async {
        let place = Place::new().await;
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push((place.client().await, claim("x")));
        }
        let mut last = number(&clients[0].0.lock(&clients[0].1).await);
        for (at, (client, claim)) in clients.iter().enumerate().skip(1) {
            let Attempt::InLine(line) = client.join(claim).await else { panic!("must wait") };
            assert_eq!(line.ahead, u32::try_from(at - 1).ok());
            let head = line.holder.expect("the place in line knows who holds it");
            assert_eq!(
                (head.claim, head.host.as_deref()),
                (Some(clients[0].1.id), Some("testhost")),
                "the head of the line is named, not the neighbour"
            );
        }
        for at in 1..clients.len() {
            assert!(clients[at..].iter().all(|(client, claim)| client.is_quiet_about(claim.id)));
            clients[at - 1].0.release(&clients[at - 1].1).await;
            let grant = clients[at].0.granted(clients[at].1.id).await;
            assert!(number(&grant) > last);
            last = number(&grant);
        }
    });
}

#[test]
fn r5_a_place_that_is_lent_too_late_stays_known_until_it_is_withdrawn() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let (a, b) = (claim("x"), claim("x"));
        two.lock(&b).await;
        assert!(matches!(one.join(&a).await, Attempt::InLine(_)));
        let late = Claim { give_up: Some(one.clock.now()), ..a.clone() };
        let answered = one.join(&late).await;
        assert!(matches!(answered, Attempt::InLine(_)), "its node is there: {answered:?}");
        assert!(matches!(one.withdraw(&a).await, End::Freed));
        assert_eq!(two.children("x").await.len(), 1);
        let fresh = claim("x");
        let never_sent = one.join(&Claim { give_up: Some(one.clock.now()), ..fresh }).await;
        assert_eq!(failed(never_sent).kind(), crate::words::error::ErrorKind::TimedOut);
    });
}

#[test]
fn r11_a_try_that_is_busy_writes_nothing_and_never_overtakes() {
    run(async {
        let place = Place::new().await;
        let proxy = Proxy::start(place.port).unwrap();
        let (one, two) =
            (place.client().await, Client::open(&place.url_at(proxy.port(), "")).await.unwrap());
        let (a, b) = (claim("x"), claim("x"));
        one.lock(&a).await;
        proxy.take_counts();
        let Attempt::Busy(Some(holder)) = two.attempt(&b, Line::Try).await else {
            panic!("must be busy")
        };
        assert_eq!(holder.claim, Some(a.id));
        let mut counts = proxy.take_counts();
        counts.remove(&op::PING);
        assert_eq!(counts.get(&op::LIST), Some(&1));
        assert_eq!(counts.get(&op::GET_DATA), Some(&1));
        assert_eq!(counts.values().sum::<u64>(), 2, "two reads and no write: {counts:?}");
        one.release(&a).await;
        let Attempt::Granted(_) = two.attempt(&claim("x"), Line::Try).await else {
            panic!("must be free")
        };
    });
}

#[test]
fn r5_a_place_that_is_left_leaves_nothing_and_those_behind_it_move_up() {
    run(async {
        let place = Place::new().await;
        let clients = [place.client().await, place.client().await, place.client().await];
        let claims = [claim("x"), claim("x"), claim("x")];
        clients[0].lock(&claims[0]).await;
        for at in [1, 2] {
            assert!(matches!(clients[at].join(&claims[at]).await, Attempt::InLine(_)));
        }
        assert!(matches!(clients[1].withdraw(&claims[1]).await, End::Freed));
        assert_eq!(clients[0].children("x").await.len(), 2);
        assert!(clients[2].is_quiet_about(claims[2].id), "the holder still holds");
        clients[0].release(&claims[0]).await;
        clients[2].granted(claims[2].id).await;
        assert!(
            matches!(clients[1].withdraw(&claims[1]).await, End::NotOurs),
            "nothing is left to leave"
        );
    });
}

#[test]
fn r5_a_withdrawal_that_crosses_the_create_leaves_nothing() {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        for _ in 0..20 {
            let a = claim("x");
            // The create is sent; its answer is not awaited.
            let attempt = one.engine.attempt(&a, Line::Join);
            assert!(matches!(one.withdraw(&a).await, End::Freed));
            drop(answer(attempt).await);
            assert!(one.children("x").await.is_empty());
        }
        assert!(one.engine.shared().unwrap().lock().claims.is_empty());
    });
}

#[test]
fn r5_a_waiter_that_leaves_takes_its_watches_along() {
    run(async {
        let server = Arc::new(Server::start(Settings::default()).unwrap());
        let place = Place::on(server.clone()).await;
        let (one, two) = (place.client().await, place.client().await);
        let a = claim("x");
        one.lock(&a).await;
        until("the holder watches its own node", || async {
            server.numbers().unwrap()["zk_watch_count"] == 1.0
        })
        .await;
        let b = claim("x");
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        two.withdraw(&b).await;
        until("no watch of the waiter is left", || async {
            server.numbers().unwrap()["zk_watch_count"] == 1.0
        })
        .await;
        one.release(&a).await;
        until("no watch is left", || async { server.numbers().unwrap()["zk_watch_count"] == 0.0 })
            .await;
    });
}

#[test]
fn an_uncontended_cycle_is_two_writes_and_a_list() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("").await;
        let held = claim("y");
        one.lock(&held).await;
        one.release(&held).await;
        proxy.take_counts();
        one.lock(&claim("x")).await;
        until("the other hold is watched", || async {
            proxy.take_counts().contains_key(&op::GET_DATA)
        })
        .await;
        let mut long = 0;
        for _ in 0..10 {
            let a = claim("y");
            let begun = Instant::now();
            one.lock(&a).await;
            one.release(&a).await;
            long += u64::from(begun.elapsed() >= Duration::from_millis(5));
        }
        let mut counts = proxy.take_counts();
        counts.remove(&op::PING);
        let watches = counts.remove(&op::GET_DATA).unwrap_or(0);
        assert!(
            watches <= long,
            "{watches} watches on our own node, in {long} cycles that took so long"
        );
        assert_eq!(
            counts,
            [(op::CREATE, 10), (op::LIST, 10), (op::DELETE, 10)].into_iter().collect()
        );
    });
}

#[test]
fn a_hold_that_lasts_watches_its_own_node_soon() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("").await;
        let first = claim("y");
        one.lock(&first).await;
        one.release(&first).await;
        proxy.take_counts();
        let held = claim("y");
        one.lock(&held).await;
        let mut asked = 0;
        until("the watch is asked for", || {
            asked += proxy.take_counts().remove(&op::GET_DATA).unwrap_or(0);
            async move { asked == 1 }
        })
        .await;
        let node = one.children("y").await.remove(0);
        one.delete(&one.path(&format!("y/{node}"))).await;
        assert_eq!(one.lost(held.id).await, Lost::TakenAway);
    });
}

#[test]
fn nothing_is_asked_between_the_predecessors_end_and_the_grant() {
    run(async {
        let place = Place::new().await;
        let proxy = Proxy::start(place.port).unwrap();
        let one = place.client().await;
        let two = Client::open(&place.url_at(proxy.port(), "")).await.unwrap();
        let (a, b) = (claim("x"), claim("x"));
        one.lock(&a).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        // From here on the server hears nothing of the waiter: the event alone must do.
        proxy.take_counts();
        proxy.hold_requests(true);
        one.release(&a).await;
        two.granted(b.id).await;
        let mut counts = proxy.take_counts();
        counts.remove(&op::PING);
        counts.remove(&op::MULTI);
        assert!(counts.is_empty(), "{counts:?}");
        proxy.hold_requests(false);
    });
}

#[test]
fn an_operators_delete_of_the_holders_node_is_told_at_once() {
    run(async {
        let place = Place::new().await;
        let (one, two) = (place.client().await, place.client().await);
        let (a, b) = (claim("x"), claim("x"));
        one.lock(&a).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        let node = one
            .children("x")
            .await
            .into_iter()
            .find(|n| n.contains(&a.id.to_string()[..8]))
            .unwrap();
        two.delete(&two.path(&format!("x/{node}"))).await;
        assert_eq!(one.lost(a.id).await, Lost::TakenAway);
        two.granted(b.id).await;
        assert!(matches!(one.release(&a).await, End::NotOurs));
    });
}

#[test]
fn an_operators_delete_of_a_waiters_node_only_costs_its_place() {
    run(async {
        let place = Place::new().await;
        let clients = [place.client().await, place.client().await, place.client().await];
        let claims = [claim("x"), claim("x"), claim("x")];
        clients[0].lock(&claims[0]).await;
        for at in [1, 2] {
            assert!(matches!(clients[at].join(&claims[at]).await, Attempt::InLine(_)));
        }
        let node = clients[0]
            .children("x")
            .await
            .into_iter()
            .find(|n| n.contains(&claims[1].id.to_string()[..8]))
            .unwrap();
        clients[0].delete(&clients[0].path(&format!("x/{node}"))).await;
        until("it stands again", || async { clients[0].children("x").await.len() == 3 }).await;
        clients[0].release(&claims[0]).await;
        clients[2].granted(claims[2].id).await;
        assert!(clients[1].is_quiet_about(claims[1].id));
        clients[2].release(&claims[2]).await;
        clients[1].granted(claims[1].id).await;
    });
}

#[test]
fn a_curator_peer_asks_the_holder_to_let_go() {
    run(async {
        let place = Place::new().await;
        let (one, two) = (place.client().await, place.client().await);
        let a = claim("x");
        one.lock(&a).await;
        let node = one.children("x").await.remove(0);
        let path = two.path(&format!("x/{node}"));
        two.ask(Request::SetData { path, data: b"__REVOKE__".to_vec(), version: -1 })
            .await
            .unwrap();
        one.event(|e| matches!(e, Event::Asked { hold } if hold == a.id).then_some(())).await;
        assert!(matches!(one.release(&a).await, End::Freed));
    });
}

#[test]
fn who_holds_and_who_waits_is_told_also_where_others_stand() {
    run(async {
        let place = Place::new().await;
        let (one, two) = (place.client().await, place.client().await);
        let a = claim("shop/x");
        one.lock(&a).await;
        let foreign = two.path("shop/x/_c_7b2d0f4e-1111-2222-3333-444455556666-lock-");
        two.create(&foreign, b"10.0.0.7", Create::EphemeralSequential).await;
        two.create(&two.path("shop/x/garbage"), b"\xff", Create::Persistent).await;
        let entry = one.read(Kind::Lock, "shop/x").await;
        assert_eq!(entry.holders.len(), 1);
        assert_eq!(
            (entry.holders[0].claim, entry.holders[0].program.as_deref()),
            (Some(a.id), Some("test"))
        );
        assert!(entry.holders[0].since.is_some() && entry.holders[0].token.is_some());
        assert_eq!(entry.waiters.iter().map(|w| w.ahead).collect::<Vec<_>>(), [Some(0)]);
        let all = one.list("sh").await;
        assert_eq!(all, [entry]);
        assert!(one.list("other").await.is_empty());
        one.release(&a).await;
        let entry = one.read(Kind::Lock, "shop/x").await;
        assert_eq!(
            entry.holders[0].label.as_deref(),
            Some("10.0.0.7"),
            "what Curator stores is shown"
        );
        assert!(one.read(Kind::Lock, "never").await.holders.is_empty());
    });
}

#[test]
fn a_hand_off_in_a_line_of_a_thousand_costs_what_it_costs_in_a_short_one() {
    run(async {
        const HAND_OFFS: u64 = 10;
        // Whoever joins lists the line: a thousand of them keep a server busy for seconds, and
        // the other tests' guards are measured on theirs.
        let place = Place::on(Arc::new(Server::start(Settings::default()).unwrap())).await;
        let mut counted = Vec::new();
        for length in [20, 1_000] {
            let (proxy, client) = place.client_behind_a_proxy("request_timeout=20s").await;
            let name = format!("x{length}");
            let claims: Vec<Claim> = (0..length).map(|_| claim(&name)).collect();
            client.lock(&claims[0]).await;
            // Not all at once: each has its own time for an answer, and a slow machine takes that
            // for a thousand lists.
            for some in claims[1..].chunks(25) {
                let joining: Vec<_> =
                    some.iter().map(|claim| client.engine.attempt(claim, Line::Join)).collect();
                for joined in joining {
                    let attempt = answer(joined).await;
                    assert!(matches!(attempt, Attempt::InLine(_)), "{attempt:?}");
                }
            }
            // Answered in order: every watch is set.
            assert_eq!(client.children(&name).await.len(), length);
            proxy.take_counts();
            for pair in claims.windows(2).take(usize::try_from(HAND_OFFS).unwrap()) {
                client.release(&pair[0]).await;
                client.granted(pair[1].id).await;
            }
            let mut counts = proxy.take_counts();
            // Signs of life, and what proves the session to whoever is next.
            counts.remove(&op::PING);
            counts.remove(&op::MULTI);
            assert!(
                counts.get(&op::LIST).is_none_or(|lists| *lists <= HAND_OFFS + 1),
                "at most one list a hand-off: {counts:?}"
            );
            counted.push(counts.values().sum::<u64>());
        }
        assert!(counted[1] <= counted[0] + HAND_OFFS && counted[1] <= 6 * HAND_OFFS, "{counted:?}");
    });
}
