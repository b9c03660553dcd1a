//! What others leave in our directories, and what may not be read there.

use lockkeeper_testkit::zookeeper::proxy::op;

use super::refusals::create_with;
use super::*;
use crate::ErrorKind;
use crate::engine::zookeeper::errors::PLACES_MAX;
use crate::words::token::Token;

#[test]
fn garbage_below_the_path_is_in_nobodys_way() {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        one.create(&one.path("x"), b"\xff\xfe", Create::Persistent).await;
        for child in ["garbage", "lock-", "0", "é", "x-12", "sub"] {
            one.create(&one.path(&format!("x/{child}")), b"\0\x01", Create::Persistent).await;
        }
        one.create(&one.path("x/sub/0000000000"), b"", Create::Persistent).await;
        let a = claim("x");
        one.lock(&a).await;
        assert_eq!(one.read(Kind::Lock, "x").await.holders.len(), 1);
        one.release(&a).await;
        assert!(matches!(one.attempt(&claim("x"), Line::Try).await, Attempt::Granted(_)));
    });
}

#[test]
fn a_persistent_contender_is_respected_and_named() {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        one.create(&one.path("x"), b"", Create::Persistent).await;
        let stale =
            one.create(&one.path("x/abc__lock__0000000000"), b"old", Create::Persistent).await;
        let a = claim("x");
        let Attempt::InLine(line) = one.join(&a).await else { panic!("must wait") };
        let label = line.holder.unwrap().label.unwrap();
        assert!(label.contains("abc__lock__0000000000") && label.contains("old"), "{label}");
        let entry = one.read(Kind::Lock, "x").await;
        assert!(
            entry.holders[0]
                .label
                .as_deref()
                .unwrap()
                .contains("persistent node abc__lock__0000000000")
        );
        assert_eq!(entry.holders[0].ends, Some(crate::Ends::Never));
        one.delete(&stale).await;
        one.granted(a.id).await;
    });
}

#[test]
fn r12_a_lock_below_a_lock_is_no_contender_though_its_name_ends_in_a_number() {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        let (inner, outer) = (claim("stock/1234567890"), claim("stock"));
        one.lock(&inner).await;
        one.lock(&outer).await;
        let tried = claim("stock");
        let busy = one.attempt(&tried, Line::Try).await;
        assert!(matches!(&busy, Attempt::Busy(Some(h)) if h.claim == Some(outer.id)), "{busy:?}");
        one.release(&outer).await;
        let granted = one.attempt(&tried, Line::Try).await;
        assert!(matches!(granted, Attempt::Granted(_)), "{granted:?}");
        assert_eq!(one.read(Kind::Lock, "stock").await.holders.len(), 1);
        assert_eq!(one.list("").await.len(), 2);
    });
}

#[test]
fn every_librarys_nodes_are_waited_for() {
    run(async {
        let place = Place::new().await;
        let (one, two) = (place.client().await, place.client().await);
        for (at, prefix) in [
            "_c_7b2d-lock-",
            "a1__lock__",
            "_c_a1-lock-",
            "x-72057594037927936-",
            "n_",
            "Lock",
            "",
            "_c_7b2d-__WRIT__",
            "a1__rlock__",
        ]
        .iter()
        .enumerate()
        {
            let name = format!("n{at}");
            one.create(&one.path(&name), b"", Create::Persistent).await;
            let foreign = two
                .create(
                    &two.path(&format!("{name}/{prefix}")),
                    b"them",
                    Create::EphemeralSequential,
                )
                .await;
            let a = claim(&name);
            assert!(matches!(one.join(&a).await, Attempt::InLine(_)), "{prefix}");
            two.delete(&foreign).await;
            one.granted(a.id).await;
        }
    });
}

#[test]
fn a_directory_that_is_reaped_between_two_calls_is_made_again() {
    run(async {
        let settings = Settings {
            properties: vec!["znode.container.checkIntervalMs=20".to_owned()],
            ..Settings::default()
        };
        let place = Place::on(Arc::new(Server::start(settings).unwrap())).await;
        let one = place.client().await;
        for _ in 0..5 {
            let a = claim("deep/x");
            one.lock(&a).await;
            one.release(&a).await;
            until("the directory is reaped", || async { one.children("").await.is_empty() }).await;
        }
    });
}

#[test]
fn two_that_make_the_same_directory_at_once_both_succeed() {
    run(async {
        let place = Place::new().await;
        let (one, two) = (place.client().await, place.client().await);
        for round in 0..10 {
            let name = format!("a{round}/b/c/d");
            let (a, b) = (claim(&name), claim(&name));
            let (first, second) =
                (one.engine.attempt(&a, Line::Join), two.engine.attempt(&b, Line::Join));
            let (first, second) = tokio::join!(answer(first), answer(second));
            let granted =
                [&first, &second].iter().filter(|a| matches!(a, Attempt::Granted(_))).count();
            assert_eq!(granted, 1, "{first:?} {second:?}");
        }
    });
}

#[test]
fn z7_a_list_of_more_than_a_megabyte_is_read_and_beyond_the_limit_refused() {
    run(async {
        // Such lists keep a server busy, and what stands here ends with its session: both under
        // other tests' guards, if it were theirs. Its sessions may be silent for as long.
        let settings = Settings { tick: Duration::from_secs(2), ..Settings::default() };
        let place = Place::on(Arc::new(Server::start(settings).unwrap())).await;
        let proxy = Proxy::start(place.port).unwrap();
        let options = "session_timeout=40s&request_timeout=20s";
        let (crowd, one) = (
            place.client_with(options).await,
            Client::open(&place.url_at(proxy.port(), options)).await.unwrap(),
        );
        crowd.create(&crowd.path("x"), b"", Create::Persistent).await;
        let name =
            crowd.path(&format!("x/_c_{}-lock-", "7b2d0f4e-1111-2222-3333-444455556666".repeat(2)));
        let acl = crowd.engine.options.acl.clone();
        let mut standing = 0;
        let mut fill = async |up_to: usize| {
            while standing < up_to {
                let many = (up_to - standing).min(2_000);
                let node = Request::Create {
                    path: name.clone(),
                    data: Vec::new(),
                    acl: acl.clone(),
                    how: Create::EphemeralSequential,
                };
                crowd.ask(Request::Multi(vec![node; many])).await.unwrap();
                standing += many;
            }
        };
        fill(PLACES_MAX - 1).await;
        let a = claim("x");
        proxy.take_counts();
        let joined = one.join(&a).await;
        let Attempt::InLine(line) = joined else { panic!("{joined:?}") };
        assert_eq!(line.ahead, u32::try_from(PLACES_MAX - 2).ok(), "the first of them holds");
        let mut counts = proxy.take_counts();
        counts.remove(&op::PING);
        assert!(
            counts.values().sum::<u64>() <= 6,
            "joining a long line costs what joining a short one does: {counts:?}"
        );
        one.withdraw(&a).await;
        fill(PLACES_MAX + 10).await;
        let error = failed(one.join(&claim("x")).await);
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.message().contains("16384"), "{error}");
        until("nothing of ours is left", || async {
            crowd.children("x").await.len() == PLACES_MAX + 10
        })
        .await;
    });
}

#[test]
fn z6_numbers_are_compared_in_the_order_in_which_they_were_counted_and_not_as_texts() {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        one.create(&one.path("x"), b"", Create::Persistent).await;
        // Behind the greatest number comes the smallest, and -1 before 0: whoever has a number near
        // the greatest came later.
        let before =
            one.create(&one.path("x/_c_7b2e-lock--000000001"), b"them", Create::Ephemeral).await;
        one.create(&one.path("x/_c_7b2d-lock-2147483647"), b"later", Create::Ephemeral).await;
        let a = claim("x");
        let Attempt::InLine(line) = one.join(&a).await else { panic!("one is before it") };
        assert_eq!(line.ahead, Some(0));
        assert_eq!(line.holder.and_then(|h| h.label).as_deref(), Some("them"));
        one.delete(&before).await;
        one.granted(a.id).await;
    });
}

#[test]
fn n1_who_may_not_be_read_holds_all_the_same_is_waited_for_and_can_be_forced_out() {
    run(async {
        let place = Place::new().await;
        let alice = place.client_with("auth=digest:alice:pw&acl=auth::cdrwa").await;
        let (one, two) = (place.client().await, place.client().await);
        // The directory is everybody's, the node in it hers alone.
        let opener = claim("x");
        one.lock(&opener).await;
        one.release(&opener).await;
        let (a, b, c) = (claim("x"), claim("x"), claim("x"));
        let granted = alice.lock(&a).await;

        let Attempt::InLine(line) = one.join(&b).await else { panic!("alice holds it") };
        let holder = line.holder.expect("the place in line tells that somebody holds it");
        assert!(holder.label.is_some_and(|label| label.contains("may not read")));
        for entry in [two.read(Kind::Lock, "x").await, two.list("x").await.remove(0)] {
            let [holder] = &*entry.holders else { panic!("{entry:?}") };
            assert_eq!(holder.token, Token::of(number(&granted), 0), "{entry:?}");
            assert!(holder.claim.is_none() && holder.since.is_some(), "{entry:?}");
            assert_eq!(entry.waiters.len(), 1, "{entry:?}");
        }

        assert!(one.is_quiet_about(b.id));
        alice.release(&a).await;
        // Nobody looks again in this test: what tells it is the watch on her node.
        one.granted(b.id).await;
        one.release(&b).await;

        alice.lock(&c).await;
        let shown = two.read(Kind::Lock, "x").await.holders;
        let force = Change::Force(Kind::Lock, Name::new("x").unwrap(), shown);
        let taken = answer(two.engine.write(&force)).await.unwrap();
        assert!(taken, "what was shown is what is taken away");
        assert!(two.read(Kind::Lock, "x").await.holders.is_empty());
        assert!(matches!(alice.lost(c.id).await, Lost::TakenAway), "and its holder is told");
    });
}

#[test]
fn n1_a_directory_that_may_not_be_listed_keeps_no_other_name_from_being_listed() {
    run(async {
        let place = Place::new().await;
        let admin = place.client_with("auth=digest:root:pw").await;
        let one = place.client().await;
        create_with(&admin, &admin.path("closed"), "auth::cdrwa").await;
        let a = claim("open");
        one.lock(&a).await;
        let mut listed = one.list("").await;
        listed.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        let [closed, open] = &*listed else { panic!("{listed:?}") };
        assert_eq!((closed.name.as_str(), open.name.as_str()), ("closed", "open"));
        assert_eq!(closed.readable().unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(open.holders.len(), 1);
    });
}
