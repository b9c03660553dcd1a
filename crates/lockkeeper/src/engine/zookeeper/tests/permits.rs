//! Semaphores: ours, weighted, in one directory; and Curator's.

use lockkeeper_testkit::zookeeper::proxy::{Proxy, op};

use super::*;
use crate::ErrorKind;

const SHAPES: [&str; 3] = ["", "layout=kazoo", "layout=plain"];

fn permits(name: &str, count: u16, limit: u16) -> Claim {
    claim_in(Kind::Semaphore, name, Mode::Permits { count, limit })
}

#[test]
fn permits_are_weighted_first_come_first_served_and_have_no_number() {
    run(async {
        let place = Place::new().await;
        for (at, layout) in SHAPES.into_iter().enumerate() {
            let [one, two, three] = place.clients(layout).await;
            let at = format!("x{at}");
            let (a, b, c, d) =
                (permits(&at, 2, 3), permits(&at, 1, 3), permits(&at, 3, 3), permits(&at, 1, 3));
            assert_eq!(one.lock(&a).await.number, Number::None);
            one.lock(&b).await;
            let Attempt::InLine(line) = two.join(&c).await else { panic!("none is free") };
            assert_eq!((line.ahead, line.holder.and_then(|h| h.claim)), (Some(0), Some(a.id)));
            assert!(matches!(one.release(&b).await, End::Freed));
            assert!(
                matches!(
                    three.attempt(&permits(&at, 1, 3), Line::Try).await,
                    Attempt::Busy(Some(_))
                ),
                "a try does not overtake a great claim"
            );
            assert!(matches!(three.join(&d).await, Attempt::InLine(_)), "nor does a small one");
            let entry = three.read(Kind::Semaphore, &at).await;
            assert_eq!(
                (entry.limit, entry.holders.len(), entry.waiters.len()),
                (Some(3), 1, 2),
                "{entry:?}"
            );
            assert_eq!(entry.holders[0].mode, Some(Mode::Permits { count: 2, limit: 3 }));
            assert_eq!(entry.holders[0].token, None);
            one.release(&a).await;
            two.granted(c.id).await;
            assert!(three.is_quiet_about(d.id));
            two.release(&c).await;
            three.granted(d.id).await;
            three.release(&d).await;
            assert!(one.children(&format!("{at}/permits")).await.is_empty());
            assert!(one.list(&at).await.is_empty());
        }
    });
}

#[test]
fn another_limit_is_refused_and_a_resize_lets_waiters_in() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let (a, b) = (permits("x", 1, 1), permits("x", 1, 1));
        one.lock(&a).await;
        for line in [Line::Join, Line::Try] {
            let error = failed(two.attempt(&permits("x", 1, 5), line).await);
            assert!(
                error.kind() == ErrorKind::LimitMismatch && error.message().contains("limit is 1"),
                "{error}"
            );
        }
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        assert_eq!(one.children("x/permits").await.len(), 2, "who was refused left nothing");
        assert!(change(&one, Change::Resize(name("x"), 2)).await.unwrap());
        assert!(!change(&one, Change::Resize(name("x"), 2)).await.unwrap(), "it was that already");
        two.granted(b.id).await;
        assert!(change(&one, Change::Resize(name("x"), 1)).await.unwrap());
        assert!(
            matches!(answer(one.engine.recheck(&[a.id])).await[..], [Standing::Held(_)]),
            "permits that are out stay out"
        );
        one.release(&a).await;
        assert!(
            matches!(one.attempt(&permits("x", 1, 1), Line::Try).await, Attempt::Busy(_)),
            "one is out, and there is one"
        );
        two.release(&b).await;
        let (great, rest) = (permits("y", 3, 3), permits("y", 2, 3));
        one.lock(&rest).await;
        assert!(matches!(two.join(&great).await, Attempt::InLine(_)));
        change(&one, Change::Resize(name("y"), 2)).await.unwrap();
        let error = two
            .event(|e| {
                if let Event::Failed { claim, error } = e {
                    (claim == great.id).then_some(error)
                } else {
                    None
                }
            })
            .await;
        assert_eq!(
            error.kind(),
            ErrorKind::LimitMismatch,
            "what can never be granted does not wait for ever"
        );
        assert!(
            change(&one, Change::Resize(name("deep/fresh"), 4)).await.unwrap(),
            "stored before anybody asked"
        );
        assert_eq!(
            failed(one.join(&permits("deep/fresh", 1, 3)).await).kind(),
            ErrorKind::LimitMismatch
        );
    });
}

#[test]
fn a_permit_costs_one_write_and_a_long_line_wakes_few() {
    run(async {
        let place = Place::new().await;
        let proxy = Proxy::start(place.port).unwrap();
        let holders = place.client().await;
        let waiters = Client::open(&place.url_at(proxy.port(), "")).await.unwrap();
        let held: Vec<Claim> = (0..2).map(|_| permits("x", 1, 2)).collect();
        for claim in &held {
            holders.lock(claim).await;
        }
        let waiting: Vec<Claim> = (0..30).map(|_| permits("x", 1, 2)).collect();
        for claim in &waiting {
            assert!(matches!(waiters.join(claim).await, Attempt::InLine(_)));
        }
        // Answered in order: every watch is set.
        assert_eq!(waiters.children("x/permits").await.len(), 32);
        proxy.take_counts();
        holders.release(&held[0]).await;
        waiters.granted(waiting[0].id).await;
        holders.release(&held[1]).await;
        waiters.granted(waiting[1].id).await;
        let mut counts = proxy.take_counts();
        counts.remove(&op::PING);
        let reads = counts.remove(&op::GET_DATA).unwrap_or(0);
        assert!(reads <= 4 && !counts.contains_key(&op::LIST), "{reads} reads, {counts:?}");
    });
}

#[test]
fn z2_a_permit_whose_reply_is_lost_is_found_again() {
    run(async {
        let place = Place::new().await;
        for lost in [op::CREATE, op::DELETE, op::LIST, op::GET_DATA] {
            let (proxy, one) = place.client_behind_a_proxy("").await;
            let warm = permits("x", 1, 2);
            one.lock(&warm).await;
            proxy.lose_reply_to(lost);
            let a = permits("x", 1, 2);
            one.lock(&a).await;
            assert!(matches!(one.release(&a).await, End::Freed));
            assert!(proxy.has_struck(), "{lost}");
            assert_eq!(one.children("x/permits").await.len(), 1, "one node, and no ghost");
            one.release(&warm).await;
        }
    });
}

#[test]
fn permits_are_taken_away_and_die_with_their_session() {
    run(async {
        let place = Place::new().await;
        let [one, two, three] = place.clients("").await;
        let (a, b, c) = (permits("x", 2, 3), permits("x", 1, 3), permits("x", 3, 3));
        one.lock(&a).await;
        two.lock(&b).await;
        assert!(matches!(three.join(&c).await, Attempt::InLine(_)));
        assert!(
            change(&three, Change::Force(Kind::Semaphore, name("x"), Vec::new())).await.unwrap()
        );
        assert_eq!(
            (one.lost(a.id).await, two.lost(b.id).await),
            (Lost::TakenAway, Lost::TakenAway)
        );
        three.granted(c.id).await;
        three.close().await;
        let d = permits("x", 3, 3);
        one.lock(&d).await;
        assert!(
            !change(&two, Change::Force(Kind::Lock, name("x"), Vec::new())).await.unwrap(),
            "the lock of that name is another thing"
        );
    });
}

#[test]
fn a_lock_an_election_a_latch_and_a_semaphore_of_one_name_do_not_meet() {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        let (lock, permit) = (claim("x"), permits("x", 1, 1));
        one.lock(&permit).await;
        one.lock(&lock).await;
        let kinds: Vec<(Kind, String)> =
            one.list("").await.iter().map(|e| (e.kind, e.name.to_string())).collect();
        assert_eq!(kinds, [(Kind::Lock, "x".to_owned()), (Kind::Semaphore, "x".to_owned())]);
        assert!(one.list("x/").await.is_empty(), "nothing is called so");
        let (inner, other) = (claim("x/permits"), permits("x", 1, 1));
        one.lock(&inner).await;
        assert!(matches!(one.attempt(&other, Line::Try).await, Attempt::Busy(_)));
        assert_eq!(one.read(Kind::Lock, "x/permits").await.holders.len(), 1);
        assert_eq!(one.read(Kind::Semaphore, "x").await.holders.len(), 1);
    });
}

#[test]
fn with_curators_shape_a_permit_is_a_lease_and_everybody_is_counted() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("semaphore=shared").await;
        // Curator makes the directory, and knows its limit by heart.
        one.create(&one.path("x"), b"", Create::Persistent).await;
        one.create(&one.path("x/leases"), b"10.0.0.7", Create::Persistent).await;
        let lease = one.path("x/leases/_c_7b2d0f4e-1111-2222-3333-444455556666-lease-");
        let theirs = two.create(&lease, b"10.0.0.7", Create::EphemeralSequential).await;
        let (a, b) = (permits("x", 1, 2), permits("x", 1, 2));
        one.lock(&a).await;
        let names = one.children("x/leases").await;
        assert!(
            names.iter().all(|n| n.contains("-lease-") && n.starts_with("_c_")),
            "what Curator counts: {names:?}"
        );
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        one.delete(&theirs).await;
        two.granted(b.id).await;
        let error = failed(one.join(&permits("x", 2, 2)).await);
        assert!(
            error.kind() == ErrorKind::Unsupported && error.message().contains("one permit"),
            "{error}"
        );
    });
}

#[test]
fn r12_two_shapes_of_one_semaphore_never_stand_beside_each_other_silently() {
    run(async {
        let place = Place::new().await;
        let own = place.client().await;
        let curator = place.client_with("semaphore=shared").await;
        let (beside, kazoo) = (
            place.client_with("layout=kazoo").await,
            place.client_with("layout=kazoo&semaphore=shared").await,
        );
        let pairs = [(&own, &curator), (&curator, &own), (&beside, &kazoo), (&kazoo, &beside)];
        for (at, (first, second)) in pairs.into_iter().enumerate() {
            let at = format!("x{at}");
            first.lock(&permits(&at, 1, 2)).await;
            let error = failed(second.join(&permits(&at, 1, 2)).await);
            assert!(
                error.kind() == ErrorKind::Refused && error.message().contains("semaphore=shared"),
                "{error}"
            );
        }
    });
}
