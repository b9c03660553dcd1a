//! Lost links, lost sessions, lost directories.

use super::*;
use crate::engine::Renewal;
use crate::engine::zookeeper::proto::Happened;
use crate::engine::zookeeper::wire::{dial, poll_write};
use crate::words::clock::Ticks;
use crate::words::id::LeaseId;

/// Ends a client's session behind its back, as an operator or another program with its password
/// could.
pub(super) async fn end_session(client: &Client) {
    let options = client.engine.options.clone();
    let shared = client.engine.shared().unwrap();
    let key = shared.lock().session.as_ref().unwrap().key.clone();
    // The client may win its session back before the end is said; then once more.
    while client.session() == key.id {
        let ending = async {
            let session = Duration::from_secs(5);
            let until = tokio::time::Instant::now() + session;
            let mut other =
                dial(&options.hosts[0], None, &key, 0, session, until, &client.clock).await.ok()?;
            let mut close = Vec::new();
            Request::Close.write(1, &mut close);
            let ended = std::future::poll_fn(|cx| {
                poll_write(&mut other.link.writer, cx, &mut close)?;
                other.link.reader.poll_read(cx, other.link.frames.scratch())
            });
            ended.await.ok()
        };
        _ = tokio::time::timeout(Duration::from_secs(5), ending).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What a holder may hear then: a client that wins its session back once more before it ends hears
/// of its node's end first.
pub(super) fn tells_that_it_ended(why: Lost) -> bool {
    matches!(why, Lost::SessionEnded | Lost::TakenAway)
}

/// When the holder itself stops believing in a grant: what the keeper computes from it.
pub(super) fn deadline(grant: &Grant) -> Ticks {
    let lease = grant.lease.unwrap();
    crate::protocol::lease::deadline(
        lease.since.expect("a grant that is certain"),
        lease.ttl,
        crate::protocol::lease::Drift::default(),
    )
}

fn lease(grant: &Grant) -> LeaseId {
    grant.lease.unwrap().id
}

/// A holder that can be cut off, and the next in line.
struct HolderAndNext {
    proxy: Proxy,
    one: Client,
    held: Claim,
    first: Grant,
    two: Client,
    waits: Claim,
}

impl HolderAndNext {
    async fn in_sessions_of(place: &Place, session_timeout: &str) -> Self {
        let (proxy, one) =
            place.client_behind_a_proxy(&format!("session_timeout={session_timeout}")).await;
        let two = place.client().await;
        let (held, waits) = (claim("x"), claim("x"));
        let first = one.lock(&held).await;
        assert!(matches!(two.join(&waits).await, Attempt::InLine(_)));
        Self { proxy, one, held, first, two, waits }
    }
}

#[test]
fn z1_the_holder_is_out_before_the_next_is_in_when_it_is_cut_off() {
    run(async {
        let place = Place::new().await;
        let HolderAndNext { proxy, one, held, first, two, waits } =
            HolderAndNext::in_sessions_of(&place, "8s").await;
        let mut until = deadline(&first);
        let renewed = until.plus(Duration::from_secs(1));
        // Renewals keep the hold alive, as the keeper sends them: one whose answer was lost says
        // nothing.
        while until <= renewed {
            tokio::time::sleep(Duration::from_millis(300)).await;
            match answer(one.engine.renew(&[lease(&first)])).await.remove(0) {
                Renewal::Extended { ttl, since } => {
                    let drift = crate::protocol::lease::Drift::default();
                    let over = crate::protocol::lease::deadline(since.unwrap(), ttl, drift);
                    until = until.max(over);
                }
                Renewal::Unknown(_) => {}
                gone => panic!("{gone:?}"),
            }
        }
        proxy.close();
        two.granted(waits.id).await;
        assert!(one.clock.now() > until, "the next holder came before the first one's deadline");
        proxy.open();
        assert_eq!(one.lost(held.id).await, Lost::SessionEnded);
        assert!(matches!(one.release(&held).await, End::NotOurs));
        assert_eq!(two.children("x").await.len(), 1);
    });
}

#[test]
fn z1_a_hold_that_is_given_back_after_its_session_was_over_is_not_called_freed() {
    run(async {
        let place = Place::new().await;
        let HolderAndNext { proxy, one, held, first, two, waits } =
            HolderAndNext::in_sessions_of(&place, "3s").await;
        proxy.close();
        two.granted(waits.id).await;
        assert!(one.clock.now() > deadline(&first), "its holder knows that it is over");
        // Nobody has told it yet: the link is down.
        let end = answer(one.engine.release(&[held.id], None));
        proxy.open();
        assert!(matches!(end.await.ends[..], [End::NotOurs]), "the next one holds it");
        assert_eq!(two.children("x").await.len(), 1);
    });
}

#[test]
fn z3_a_node_of_an_ended_session_is_never_taken_for_ours() {
    run(async {
        let place = Place::new().await;
        let (one, two) = (place.client().await, place.client().await);
        let (held, waits, other) = (claim("held"), claim("x"), claim("x"));
        let before = number(&one.lock(&held).await);
        two.lock(&other).await;
        assert!(matches!(one.join(&waits).await, Attempt::InLine(_)));
        let session = one.session();
        end_session(&one).await;
        assert!(tells_that_it_ended(one.lost(held.id).await));
        until("it has another session", || async {
            one.session() != session && one.session() != 0
        })
        .await;
        assert!(matches!(one.release(&held).await, End::NotOurs), "lost is final");
        two.release(&other).await;
        let grant = one.granted(waits.id).await;
        assert_ne!(lease(&grant), LeaseId(u128::from(session.cast_unsigned())));
        assert!(number(&grant) > before);
        assert_eq!(two.children("x").await.len(), 1, "it stood again in its new session, once");
    });
}

#[test]
fn a_hold_survives_a_lost_link_and_an_event_missed_meanwhile_is_found() {
    run(async {
        let place = Place::new().await;
        let (hold_link, wait_link) =
            (Proxy::start(place.port).unwrap(), Proxy::start(place.port).unwrap());
        let one = Client::open(&place.url_at(hold_link.port(), "")).await.unwrap();
        let two = Client::open(&place.url_at(wait_link.port(), "")).await.unwrap();
        let (a, b) = (claim("x"), claim("x"));
        one.lock(&a).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        hold_link.cut();
        one.event(|e| matches!(e, Event::Link { up: false }).then_some(())).await;
        one.event(|e| matches!(e, Event::Link { up: true }).then_some(())).await;
        let rechecked = answer(one.engine.recheck(&[a.id])).await.remove(0);
        assert!(matches!(rechecked, Standing::Held(_)), "{rechecked:?}");
        // The waiter does not hear of the release.
        wait_link.close();
        two.event(|e| matches!(e, Event::Link { up: false }).then_some(())).await;
        assert!(matches!(one.release(&a).await, End::Freed));
        wait_link.open();
        two.granted(b.id).await;
    });
}

#[test]
fn a_hold_taken_away_while_the_link_was_down_is_told() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("").await;
        let two = place.client().await;
        let a = claim("x");
        one.lock(&a).await;
        proxy.close();
        let node = two.children("x").await.remove(0);
        two.delete(&two.path(&format!("x/{node}"))).await;
        proxy.open();
        assert_eq!(one.lost(a.id).await, Lost::TakenAway);
    });
}

#[test]
fn z6_tokens_rise_over_a_directory_that_is_made_anew() {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        let mut last = 0;
        for _ in 0..5 {
            let a = claim("x");
            let grant = one.lock(&a).await;
            assert!(one.children("x").await[0].ends_with("0000000000"), "the counter began again");
            assert!(number(&grant) > last);
            last = number(&grant);
            one.release(&a).await;
            // Unless the server has reaped it already.
            _ = one.ask(Request::Delete { path: one.path("x"), version: -1 }).await;
        }
    });
}

#[test]
fn z9_a_flapping_link_ends_in_neither_a_hang_nor_a_ghost() {
    run(async {
        let place = Place::new().await;
        let proxies: Vec<_> = (0..3).map(|_| Proxy::start(place.port).unwrap()).collect();
        let mut workers = Vec::new();
        let inside = Arc::new(AtomicU32::new(0));
        for proxy in &proxies {
            let client = Client::open(&place.url_at(proxy.port(), "")).await.unwrap();
            let inside = inside.clone();
            workers.push(tokio::spawn(async move {
                for _ in 0..15 {
                    let a = claim("x");
                    client.lock_stubbornly(&a).await;
                    assert_eq!(
                        inside.fetch_add(1, Ordering::SeqCst),
                        0,
                        "BROKEN LOCK: two holders"
                    );
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    client.release(&a).await;
                }
                client
            }));
        }
        let mut step = 0u64;
        while workers.iter().any(|w| !w.is_finished()) {
            step += 1;
            let proxy = &proxies[(step % 3) as usize];
            match step % 4 {
                0 => proxy.close(),
                _ => proxy.cut(),
            }
            tokio::time::sleep(Duration::from_millis(30 + step * 7 % 90)).await;
            proxy.open();
            tokio::time::sleep(Duration::from_millis(step * 13 % 60)).await;
        }
        for proxy in &proxies {
            proxy.open();
        }
        let watcher = place.client().await;
        for worker in workers {
            let client = worker.await.unwrap();
            until("everything was given back", || async {
                client.engine.shared().unwrap().lock().claims.is_empty()
            })
            .await;
        }
        until("no ghost is left", || async { watcher.children("x").await.is_empty() }).await;
    });
}

#[test]
fn z10_what_an_old_connection_still_had_to_say_is_not_heard() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("").await;
        let two = place.client().await;
        // The create is held back on its way; the client loses the connection and goes on over
        // another one.
        proxy.hold_requests(true);
        let a = claim("x");
        let attempt = one.engine.attempt(&a, Line::Join);
        tokio::time::sleep(Duration::from_millis(50)).await;
        proxy.cut_clients();
        one.event(|e| matches!(e, Event::Link { up: false }).then_some(())).await;
        proxy.hold_requests(false);
        match answer(attempt).await {
            Attempt::Granted(_) => {}
            Attempt::Unknown(_) | Attempt::InLine(_) => {
                one.granted(a.id).await;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(two.children("x").await.len(), 1);
        assert!(matches!(one.release(&a).await, End::Freed));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(two.children("x").await.is_empty());
    });
}

#[test]
fn events_are_read_for_what_they_are() {
    let mut body = Vec::new();
    use crate::engine::zookeeper::jute::Put;
    for (number, happened) in [
        (1, Happened::Created),
        (2, Happened::Deleted),
        (3, Happened::Changed),
        (4, Happened::Children),
        (5, Happened::Other),
        (-1, Happened::Other),
    ] {
        body.clear();
        body.put_i32(number);
        body.put_i32(3);
        body.put_str("/x");
        let event = crate::engine::zookeeper::proto::WatchEvent::read(&body).unwrap();
        assert_eq!((event.happened, event.path.as_str()), (happened, "/x"));
    }
}
