//! A directory of the layout plain belongs to one prefix: beside another one nobody of ours stands.

use super::*;
use crate::engine::HoldId;
use crate::open::locks::Locks;
use crate::words::error::ErrorKind;

/// Prefixes of a URL, nodes that stand there already, and the options that the error names.
const MIXED: [(&str, &str, &str); 11] = [
    ("", "Lock", "layout=plain&prefix=Lock"),
    ("prefix=Lock", "", "layout=plain&prefix= "),
    ("prefix=Lock", "lock", "layout=plain&prefix=lock"),
    ("prefix=Lock", "Lock-", "layout=plain&prefix=Lock-"),
    ("prefix=Lock", "Lock0", "layout=plain&prefix=Lock0"),
    ("", "a b&c", "layout=plain&prefix=a%20b%26c"),
    ("", "-", "layout=plain&prefix=- "),
    ("", "x--", "layout=plain&prefix=x-- "),
    ("", "_c_7b2d0f4e-1111-2222-3333-444455556666-lock-", "layout=curator"),
    ("", "a1__lock__", "layout=kazoo"),
    ("prefix=Lock", "_c_7b2d0f4e-1111-2222-3333-444455556666-latch-", "layout=curator"),
];

fn plain(options: &str) -> String {
    format!("layout=plain&{options}")
}

/// How many children the directory ever got and lost.
async fn changes(client: &Client, name: &str) -> i32 {
    match client.ask(Request::GetData { path: client.path(name), watch: false }).await {
        Ok(Reply::Data(_, stat)) => stat.cversion,
        other => panic!("{other:?}"),
    }
}

fn names_the_option(attempt: Attempt, option: &str) {
    let error = failed(attempt);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.message().contains(&format!("say {option}")), "{option}: {error}");
    assert!(!error.is_temporary(), "the same URL again does not help");
}

#[test]
fn the_default_prefix_is_empty_and_a_node_is_its_number() {
    run(async {
        let place = Place::new().await;
        let (one, lock) = (
            place.client_with("layout=plain").await,
            place.client_with(&plain("prefix=Lock")).await,
        );
        let [a, b] = ["a", "b"].map(claim);
        one.lock(&a).await;
        lock.lock(&b).await;
        assert_eq!(one.children("a").await, ["0000000000"]);
        assert_eq!(one.children("b").await, ["Lock0000000000"]);
        assert!(matches!(one.release(&a).await, End::Freed));
        assert!(matches!(lock.release(&b).await, End::Freed));
    });
}

#[test]
fn beside_a_contender_of_another_prefix_no_node_of_ours_is_made() {
    run(async {
        let place = Place::new().await;
        let admin = place.client().await;
        for (at, (options, theirs, option)) in MIXED.into_iter().enumerate() {
            let (one, name) = (place.client_with(&plain(options)).await, format!("n{at}"));
            admin.create(&admin.path(&name), b"", Create::Persistent).await;
            let stranger = admin
                .create(
                    &admin.path(&format!("{name}/{theirs}")),
                    b"them",
                    Create::EphemeralSequential,
                )
                .await;
            for line in [Line::Join, Line::Try] {
                names_the_option(one.attempt(&claim(&name), line).await, option);
            }
            assert_eq!(
                changes(&admin, &name).await,
                1,
                "{theirs}: nothing was made but the stranger"
            );
            admin.delete(&stranger).await;
            let a = claim(&name);
            assert!(
                matches!(one.attempt(&a, Line::Try).await, Attempt::Granted(_)),
                "{theirs}: it left"
            );
            assert!(matches!(one.release(&a).await, End::Freed));
            one.close().await;
        }
    });
}

#[test]
fn several_locks_at_once_are_taken_back_when_a_stranger_stands_in_one() {
    run(async {
        let place = Place::new().await;
        let (admin, one) = (place.client().await, place.client_with("layout=plain").await);
        for name in ["a", "b", "c"] {
            admin.create(&admin.path(name), b"", Create::Persistent).await;
        }
        let stranger =
            admin.create(&admin.path("b/Lock"), b"them", Create::EphemeralSequential).await;
        let claims = ["a", "b", "c"].map(claim);
        let mut attempts = answer(one.engine.attempt_all(&claims)).await;
        assert!(
            matches!((&attempts[0], &attempts[2]), (Attempt::Busy(None), Attempt::Busy(None))),
            "{attempts:?}"
        );
        names_the_option(attempts.swap_remove(1), "layout=plain&prefix=Lock");
        for (name, left) in [("a", 0), ("b", 1), ("c", 0)] {
            assert_eq!(one.children(name).await.len(), left, "{name}: nothing of ours is left");
        }
        assert!(one.engine.shared().unwrap().lock().claims.is_empty());
        admin.delete(&stranger).await;
        let claims = ["a", "b", "c"].map(claim);
        let attempts = answer(one.engine.attempt_all(&claims)).await;
        assert!(
            attempts.iter().all(|attempt| matches!(attempt, Attempt::Granted(_))),
            "{attempts:?}"
        );
    });
}

#[test]
fn every_way_to_ask_names_the_prefix_to_give_and_leaves_nothing() {
    run(async {
        let place = Place::new().await;
        let admin = place.client().await;
        admin.create(&admin.path("b"), b"", Create::Persistent).await;
        admin.create(&admin.path("b/Lock"), b"them", Create::EphemeralSequential).await;
        let locks = Locks::open(&place.url("layout=plain")).await.unwrap();
        let (a, b) = (locks.mutex("a"), locks.mutex("b"));
        let errors = [
            b.lock().await.unwrap_err(),
            b.lock().timeout(SOON).await.unwrap_err(),
            b.try_lock().await.unwrap_err(),
            locks.all([a.lock(), b.lock()]).await.unwrap_err(),
            locks.rwlock("b").write().await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains("prefix=Lock"), "{error}");
        }
        assert_eq!(admin.children("b").await.len(), 1);
        until("nothing of `all` is left", async || admin.children("a").await.is_empty()).await;
        // With the prefix that was named it stands in line.
        let right = Locks::open(&place.url("layout=plain&prefix=Lock")).await.unwrap();
        assert!(right.mutex("b").try_lock().await.unwrap().is_none());
        _ = locks.close().await;
        _ = right.close().await;
    });
}

#[test]
fn of_two_newcomers_with_two_prefixes_at_most_one_stays() {
    run(async {
        let place = Place::new().await;
        let admin = place.client().await;
        let (one, two) = (
            place.client_with("layout=plain").await,
            place.client_with(&plain("prefix=Lock")).await,
        );
        let (mut granted, mut refused) = (0, 0);
        for round in 0..40 {
            let name = format!("r{round}");
            admin.create(&admin.path(&name), b"", Create::Persistent).await;
            let (a, b) = (claim(&name), claim(&name));
            let (first, second) = tokio::join!(one.join(&a), two.join(&b));
            let mut holders = 0;
            for (client, claim, attempt) in [(&one, &a, first), (&two, &b, second)] {
                match attempt {
                    Attempt::Granted(_) => holders += 1,
                    other => {
                        assert_eq!(failed(other).kind(), ErrorKind::InvalidArgument);
                        assert!(
                            matches!(client.withdraw(claim).await, End::NotOurs),
                            "nothing of it is left"
                        );
                    }
                }
            }
            assert!(holders <= 1, "round {round}: BROKEN LOCK: two holders");
            assert_eq!(admin.children(&name).await.len(), holders);
            granted += holders;
            refused += 2 - holders;
            _ = tokio::join!(one.release(&a), two.release(&b));
            assert!(admin.children(&name).await.is_empty());
        }
        println!("{granted} granted, {refused} refused");
        assert!(refused >= 40, "{granted} granted, {refused} refused");
    });
}

#[test]
fn a_waiter_is_not_granted_beside_a_stranger_that_came_after_it() {
    run(async {
        let place = Place::new().await;
        let (admin, [one, two]) = (place.client().await, place.clients("layout=plain").await);
        let [a, b] = ["x"; 2].map(claim);
        one.lock(&a).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        admin.create(&admin.path("x/Lock"), b"them", Create::EphemeralSequential).await;
        one.release(&a).await;
        let error = two.refused(b.id).await;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("prefix=Lock"), "{error}");
        assert_eq!(two.children("x").await.len(), 1, "the stranger's");
    });
}

#[test]
fn r10_the_net_takes_a_place_back_when_a_stranger_has_come() {
    run(async {
        let place = Place::new().await;
        let (admin, [one, two]) = (place.client().await, place.clients("layout=plain").await);
        let [a, b] = ["x"; 2].map(claim);
        one.lock(&a).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        // A directory with a contender's name is none; nor is a file.
        admin.create(&admin.path("x/Lock0000000100"), b"", Create::Persistent).await;
        admin.create(&admin.path("x/Lock0000000100/below"), b"", Create::Persistent).await;
        admin.create(&admin.path("x/config"), b"", Create::Persistent).await;
        assert!(matches!(two.recheck(&b).await, Standing::InLine(_)));
        admin.create(&admin.path("x/Lock"), b"them", Create::EphemeralSequential).await;
        // While the machine still reads the directory the net leaves it alone.
        while two.is_quiet_about(b.id) {
            two.recheck(&b).await;
        }
        assert_eq!(two.refused(b.id).await.kind(), ErrorKind::InvalidArgument);
        assert!(matches!(one.recheck(&a).await, Standing::Held(_)), "whoever holds keeps it");
        assert_eq!(
            one.children("x").await.len(),
            4,
            "ours, the stranger's, and what stands in no line"
        );
        assert!(matches!(one.release(&a).await, End::Freed));
    });
}

#[test]
fn a_directory_with_a_contenders_name_is_no_stranger() {
    run(async {
        let place = Place::new().await;
        let (admin, one) = (place.client().await, place.client_with("layout=plain").await);
        for path in ["x", "x/order-0000000001", "x/order-0000000001/below", "x/ready", "x/abc"] {
            admin.create(&admin.path(path), b"", Create::Persistent).await;
        }
        for line in [Line::Join, Line::Try] {
            let a = claim("x");
            assert!(matches!(one.attempt(&a, line).await, Attempt::Granted(_)));
            one.release(&a).await;
        }
        // Also when our node stands before the directory is seen.
        let a = claim("x");
        let attempts = answer(one.engine.attempt_all(std::slice::from_ref(&a))).await;
        assert!(matches!(attempts[0], Attempt::Granted(_)), "{attempts:?}");
        let b = claim("x");
        assert!(matches!(one.join(&b).await, Attempt::InLine(_)));
        one.release(&a).await;
        one.granted(b.id).await;
    });
}

#[test]
fn r5_a_claim_that_is_withdrawn_at_any_time_beside_a_stranger_leaves_nothing() {
    run(async {
        let place = Place::new().await;
        let (admin, one) = (place.client().await, place.client_with("layout=plain").await);
        admin.create(&admin.path("x"), b"", Create::Persistent).await;
        for steps in 0..12 {
            let stranger = admin.path("x/Lock");
            let (a, b) = (claim("x"), claim("y"));
            // At odd numbers of steps the stranger comes while the claim is on its way.
            let early = if steps % 2 == 0 {
                Some(admin.create(&stranger, b"", Create::EphemeralSequential).await)
            } else {
                None
            };
            let attempt = async {
                match steps % 3 {
                    0 => drop(one.attempt(&a, Line::Join).await),
                    1 => drop(one.attempt(&a, Line::Try).await),
                    _ => drop(answer(one.engine.attempt_all(&[a.clone(), b.clone()])).await),
                }
            };
            let mut attempt = std::pin::pin!(attempt);
            for _ in 0..steps {
                if polled(attempt.as_mut()).await {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let late = if early.is_none() {
                Some(admin.create(&stranger, b"", Create::EphemeralSequential).await)
            } else {
                None
            };
            for claim in [&a, &b] {
                one.withdraw(claim).await;
            }
            let stranger = early.or(late).unwrap();
            until("only the stranger is left", async || {
                admin.children("x").await.len() == 1 && admin.children("y").await.is_empty()
            })
            .await;
            assert!(one.engine.shared().unwrap().lock().claims.is_empty());
            admin.delete(&stranger).await;
        }
    });
}

/// Polls once; answers whether it is done.
async fn polled(mut future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

#[test]
fn a_hold_of_the_layout_plain_is_never_converted() {
    run(async {
        let place = Place::new().await;
        let one = place.client_with("layout=plain").await;
        let a = Claim { through: Through::RwLock, ..claim("x") };
        one.lock(&a).await;
        for mode in [Mode::Shared, Mode::Upgradable] {
            let turn = Claim { id: ClaimId::fresh(), mode, ..a.clone() };
            let hold: HoldId = a.id;
            let refused = failed(answer(one.engine.convert(hold, &turn)).await);
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        }
        assert_eq!(one.children("x").await, ["0000000000"]);
    });
}

#[test]
fn who_looks_or_takes_away_beside_a_stranger_learns_the_option() {
    run(async {
        let place = Place::new().await;
        let (admin, one) = (place.client().await, place.client_with("layout=plain").await);
        admin.create(&admin.path("x"), b"", Create::Persistent).await;
        let stranger =
            admin.create(&admin.path("x/Lock"), b"them", Create::EphemeralSequential).await;
        let said = |entry: &Entry| entry.holders[0].label.clone().unwrap_or_default();
        let seen = said(&one.read(Kind::Lock, "x").await);
        assert!(seen.contains("say layout=plain&prefix=Lock"), "{seen}");
        let seen = said(&admin.read(Kind::Lock, "x").await);
        assert!(seen.contains("compares names as texts, say layout=plain&prefix=Lock"), "{seen}");
        let error =
            change(&one, Change::Force(Kind::Lock, name("x"), Vec::new())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("prefix=Lock"), "{error}");
        assert_eq!(one.children("x").await.len(), 1, "nothing was taken away");
        let right = place.client_with(&plain("prefix=Lock")).await;
        assert_eq!(
            said(&right.read(Kind::Lock, "x").await),
            "them",
            "in line there is nothing to add"
        );
        assert!(change(&right, Change::Force(Kind::Lock, name("x"), Vec::new())).await.unwrap());
        assert!(one.children("x").await.is_empty(), "{stranger}");
        let a = claim("x");
        one.lock(&a).await;
        admin.create(&admin.path("x/Lock"), b"them", Create::EphemeralSequential).await;
        let seen = said(&one.read(Kind::Lock, "x").await);
        assert!(seen.contains("prefix=Lock"), "also when ours is the first: {seen}");
    });
}

#[test]
fn the_description_names_the_prefix_and_what_breaks_beside_another_one() {
    run(async {
        let place = Place::new().await;
        for (options, node) in [
            ("layout=plain", "NAME/0000000067 (prefix=)"),
            ("layout=plain&prefix=Lock", "NAME/Lock0000000067 (prefix=Lock)"),
        ] {
            let about = place.client_with(options).await.engine.describe();
            assert!(about.server.contains(node), "{}", about.server);
            assert!(
                about.breaks.iter().any(|breaks| breaks.contains("`prefix`")),
                "{:?}",
                about.breaks
            );
        }
        let about = place.client().await.engine.describe();
        assert!(!about.server.contains("prefix"), "{}", about.server);
    });
}
