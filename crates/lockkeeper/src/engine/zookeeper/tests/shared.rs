//! Readers and writers, elections, latches, forced release: everything that is not the mutex.

use super::*;

pub(super) fn reader(name: &str) -> Claim {
    claim_in(Kind::Lock, name, Mode::Shared)
}

pub(super) fn writer(name: &str) -> Claim {
    Claim { through: Through::RwLock, ..claim(name) }
}

#[test]
fn readers_hold_beside_each_other_and_writers_alone() {
    run(async {
        let place = Place::new().await;
        for layout in ["layout=curator", "layout=kazoo"] {
            let clients = place.clients::<4>(layout).await;
            let at = layout.replace('=', "-");
            let (first, second, between, third) =
                (reader(&at), reader(&at), writer(&at), reader(&at));
            let one = number(&clients[0].lock(&first).await);
            let two = number(&clients[1].lock(&second).await);
            assert!(
                matches!(clients[2].join(&between).await, Attempt::InLine(p) if p.ahead == Some(0))
            );
            assert!(
                matches!(clients[3].join(&third).await, Attempt::InLine(_)),
                "a reader behind a writer waits: writers are not starved"
            );
            let busy = clients[0].attempt(&reader(&at), Line::Try).await;
            assert!(matches!(busy, Attempt::Busy(_)), "nor does a try overtake it: {busy:?}");
            clients[0].release(&first).await;
            assert!(clients[2].is_quiet_about(between.id));
            clients[1].release(&second).await;
            let three = number(&clients[2].granted(between.id).await);
            assert!(clients[3].is_quiet_about(third.id));
            clients[2].release(&between).await;
            let four = number(&clients[3].granted(third.id).await);
            assert!(one < two && two < three && three < four, "R7");
            clients[3].release(&third).await;
            assert!(clients[0].children(&at).await.is_empty());
        }
    });
}

#[test]
fn a_reader_waits_for_the_nearest_writer_only() {
    run(async {
        let place = Place::new().await;
        let clients = place.clients::<4>("").await;
        let (holds, reads, waits, last) = (writer("x"), reader("x"), writer("x"), reader("x"));
        clients[0].lock(&holds).await;
        for (client, claim) in [(&clients[1], &reads), (&clients[2], &waits), (&clients[3], &last)]
        {
            assert!(matches!(client.join(claim).await, Attempt::InLine(_)));
        }
        clients[0].release(&holds).await;
        clients[1].granted(reads.id).await;
        assert!(clients[2].is_quiet_about(waits.id) && clients[3].is_quiet_about(last.id));
        clients[2].withdraw(&waits).await;
        clients[3].granted(last.id).await;
    });
}

#[test]
fn curators_downgrade_node_keeps_a_writer_out_that_the_writer_before_it_left_to() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        // Curator: a writer with number 0 reads, too, with a plain ephemeral node of the same
        // number, and then stops writing.
        one.create(&one.path("x"), b"", Create::Persistent).await;
        let guid = "_c_7b2d0f4e-1111-2222-3333-444455556666-";
        let wrote = one
            .create(&one.path(&format!("x/{guid}__WRIT__")), b"", Create::EphemeralSequential)
            .await;
        let (waits, reads) = (writer("x"), reader("x"));
        assert!(matches!(two.join(&waits).await, Attempt::InLine(_)));
        let read = one
            .create(&one.path(&format!("x/{guid}__READ__0000000000")), b"", Create::Ephemeral)
            .await;
        one.delete(&wrote).await;
        let entry = two.read(Kind::Lock, "x").await;
        assert_eq!(entry.holders.iter().map(|h| h.mode).collect::<Vec<_>>(), [Some(Mode::Shared)]);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(two.is_quiet_about(waits.id), "the reader of the same number still holds");
        one.delete(&read).await;
        two.granted(waits.id).await;
        assert!(matches!(one.join(&reads).await, Attempt::InLine(_)));
    });
}

#[test]
fn a_mutex_and_an_rw_lock_of_one_name_exclude_each_other_among_ourselves() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let (mutex, write, read) = (claim("x"), writer("x"), reader("x"));
        one.lock(&mutex).await;
        assert!(matches!(two.join(&write).await, Attempt::InLine(_)));
        assert!(matches!(one.attempt(&reader("x"), Line::Try).await, Attempt::Busy(_)));
        assert!(
            one.children("x").await.iter().any(|n| n.contains("-lock-")),
            "what Curator's mutexes respect"
        );
        assert!(
            one.children("x").await.iter().any(|n| n.contains("-__WRIT__")),
            "what its readers respect"
        );
        one.release(&mutex).await;
        two.granted(write.id).await;
        two.release(&write).await;
        one.lock(&read).await;
        assert!(matches!(two.join(&claim("x")).await, Attempt::InLine(_)));
    });
}

/// Asks for another way to hold; answers the conversion's claim with it.

#[test]
fn a_leader_is_seen_by_its_id_and_followed_by_the_next() {
    run(async {
        let place = Place::new().await;
        for layout in ["layout=curator", "layout=kazoo"] {
            let [one, two, observer] = place.clients(layout).await;
            let at = layout.replace('=', "-");
            let stand = |id: &str| Claim {
                value: Some(Arc::from(id)),
                ..claim_in(Kind::Election, &at, Mode::Exclusive)
            };
            let (a, b) = (stand("host-a"), stand("host-b"));
            let first = one.lock(&a).await;
            let watch = crate::engine::WatchId(1);
            answer(observer.engine.watch(watch, &Query::One(Kind::Election, name(&at))))
                .await
                .unwrap();
            assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
            let entry = two.read(Kind::Election, &at).await;
            assert_eq!(entry.holders[0].value.as_deref(), Some("host-a"));
            assert_eq!(entry.holders[0].token.map(|t| t.get() / 64), Some(number(&first)));
            one.release(&a).await;
            two.granted(b.id).await;
            observer.event(|e| matches!(e, Event::Changed { .. }).then_some(())).await;
            assert_eq!(
                observer.read(Kind::Election, &at).await.holders[0].value.as_deref(),
                Some("host-b")
            );
            two.release(&b).await;
        }
    });
}

#[test]
fn a_lock_an_election_and_a_latch_of_one_name_do_not_meet() {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        let (lock, election) = (claim("x"), claim_in(Kind::Election, "x", Mode::Exclusive));
        one.lock(&lock).await;
        one.lock(&election).await;
        assert!(change(&one, Change::LatchSet(name("x"), 1)).await.unwrap());
        let kinds: Vec<Kind> = one.list("x").await.iter().map(|e| e.kind).collect();
        assert_eq!(kinds, [Kind::Lock, Kind::Election, Kind::Latch]);
        assert!(change(&one, Change::LatchCountDown(name("x"), ClaimId::fresh())).await.unwrap());
        assert_eq!(one.read(Kind::Latch, "x").await.count, Some(0));
        assert_eq!(one.read(Kind::Lock, "x").await.holders.len(), 1, "the directory stayed");
        one.release(&lock).await;
        one.release(&election).await;
    });
}

#[test]
fn a_latch_opens_after_as_many_counts_as_it_was_set_to_each_counted_once() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let count = || async { two.read(Kind::Latch, "deep/l").await.count };
        assert_eq!(count().await.unwrap_or(0), 0);
        let watch = crate::engine::WatchId(3);
        answer(two.engine.watch(watch, &Query::One(Kind::Latch, name("deep/l")))).await.unwrap();
        // Answered in order: the watch stands.
        count().await;
        assert!(change(&one, Change::LatchSet(name("deep/l"), 3)).await.unwrap());
        two.event(|e| matches!(e, Event::Changed { .. }).then_some(())).await;
        assert!(
            !change(&two, Change::LatchSet(name("deep/l"), 9)).await.unwrap(),
            "it is closed already"
        );
        let ids = [ClaimId::fresh(), ClaimId::fresh(), ClaimId::fresh()];
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(count().await, Some(3 - at as u64));
            let opens = at == 2;
            for _ in 0..2 {
                assert_eq!(
                    change(&one, Change::LatchCountDown(name("deep/l"), *id)).await.unwrap(),
                    opens,
                    "R3: sent twice, counted once"
                );
            }
        }
        assert_eq!(count().await.unwrap_or(0), 0);
        assert!(one.children("deep").await.is_empty(), "an open latch leaves nothing");
        assert!(change(&two, Change::LatchSet(name("deep/l"), 1)).await.unwrap());
    });
}

#[test]
fn counts_from_everywhere_at_once_are_all_counted() {
    run(async {
        let place = Place::new().await;
        let clients = place.clients::<3>("").await;
        assert!(change(&clients[0], Change::LatchSet(name("l"), 30)).await.unwrap());
        let counting = clients.iter().map(|client| async move {
            let mut opened = 0;
            for _ in 0..10 {
                opened += u32::from(
                    change(client, Change::LatchCountDown(name("l"), ClaimId::fresh()))
                        .await
                        .unwrap(),
                );
            }
            opened
        });
        let mut counting: Vec<_> = counting.map(Box::pin).collect();
        let (third, second, first) =
            (counting.pop().unwrap(), counting.pop().unwrap(), counting.pop().unwrap());
        let (a, b, c) = tokio::join!(first, second, third);
        assert_eq!(a + b + c, 1, "the last one opened it");
    });
}

#[test]
fn others_barriers_are_latches_of_one() {
    run(async {
        let place = Place::new().await;
        for (layout, data) in [("layout=curator", &b"10.0.0.7"[..]), ("layout=kazoo", &b""[..])] {
            let one = place.client_with(layout).await;
            let at = layout.replace('=', "-");
            one.create(&one.path(&at), data, Create::Persistent).await;
            assert_eq!(one.read(Kind::Latch, &at).await.count, Some(1));
            assert!(
                change(&one, Change::LatchCountDown(name(&at), ClaimId::fresh())).await.unwrap()
            );
            assert_eq!(one.read(Kind::Latch, &at).await.count.unwrap_or(0), 0);
            assert!(
                change(&one, Change::LatchSet(name(&at), 1)).await.unwrap(),
                "and ours is a barrier to them: a node that is there"
            );
        }
    });
}

#[test]
fn a_lock_is_taken_away_from_whoever_holds_it() {
    run(async {
        let place = Place::new().await;
        let [one, two, three] = place.clients("").await;
        assert!(
            !change(&three, Change::Force(Kind::Lock, name("x"), Vec::new())).await.unwrap(),
            "nobody has it"
        );
        let (a, b, c) = (reader("x"), reader("x"), writer("x"));
        one.lock(&a).await;
        two.lock(&b).await;
        assert!(matches!(three.join(&c).await, Attempt::InLine(_)));
        assert!(change(&three, Change::Force(Kind::Lock, name("x"), Vec::new())).await.unwrap());
        assert_eq!(
            (one.lost(a.id).await, two.lost(b.id).await),
            (Lost::TakenAway, Lost::TakenAway)
        );
        three.granted(c.id).await;
    });
}

#[test]
fn several_locks_are_created_in_one_transaction_and_taken_all_or_none() {
    run(async {
        use lockkeeper_testkit::zookeeper::proxy::op;
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("").await;
        let two = place.client().await;
        let all = || {
            [
                claim("a"),
                claim("b"),
                reader("c"),
                claim_in(Kind::Semaphore, "d", Mode::Permits { count: 2, limit: 3 }),
            ]
        };
        let attempt = |claims: [Claim; 4]| {
            let answers = one.engine.attempt_all(&claims);
            async { answer(answers).await }
        };
        let first = all();
        let granted = attempt(first.clone()).await;
        assert!(
            granted.iter().all(|a| matches!(a, Attempt::Granted(_))),
            "also where nothing was there before: {granted:?}"
        );
        for claim in &first {
            assert!(matches!(one.release(claim).await, End::Freed));
        }
        proxy.take_counts();
        let second = all();
        let granted = attempt(second.clone()).await;
        let numbers: Vec<u64> = granted
            .iter()
            .take(3)
            .map(|a| if let Attempt::Granted(g) = a { number(g) } else { panic!("{a:?}") })
            .collect();
        assert!(numbers.iter().all(|n| *n == numbers[0]), "one transaction: {numbers:?}");
        let counts = proxy.take_counts();
        assert_eq!(
            (counts.get(&op::MULTI), counts.get(&op::CREATE)),
            (Some(&1), None),
            "{counts:?}"
        );
        for claim in &second {
            one.release(claim).await;
        }
        let other = claim("b");
        two.lock(&other).await;
        let busy = attempt(all()).await;
        assert!(busy.iter().all(|a| matches!(a, Attempt::Busy(_))), "{busy:?}");
        for free in ["a", "c", "d/permits"] {
            assert!(two.children(free).await.is_empty(), "{free}");
        }
        two.release(&other).await;
        proxy.lose_reply_to(op::MULTI);
        let third = all();
        let granted = attempt(third.clone()).await;
        assert!(proxy.has_struck());
        assert!(granted.iter().all(|a| matches!(a, Attempt::Granted(_))), "{granted:?}");
        assert_eq!(two.children("a").await.len(), 1, "found again, and no ghost");
    });
}

#[test]
fn several_locks_are_not_waited_for_longer_than_their_caller_waits() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) =
            place.client_behind_a_proxy("request_timeout=10m&session_timeout=15m").await;
        let give_up = Some(one.clock.now().plus(Duration::from_millis(300)));
        let all = ["a", "b", "c"].map(|name| Claim { give_up, ..claim(name) });
        proxy.hold_replies(true);
        let asked = answer(one.engine.attempt_all(&all));
        let answers = tokio::time::timeout(SOON, asked).await.expect("nobody waits so long");
        assert!(answers.iter().all(|a| matches!(a, Attempt::Unknown(_))), "{answers:?}");
        proxy.hold_replies(false);
        for claim in &all {
            one.withdraw(claim).await;
        }
    });
}

#[test]
fn a_latch_beside_a_lock_stays_closed_when_the_locks_directory_is_reaped() {
    run(async {
        let properties = vec!["znode.container.checkIntervalMs=200".to_owned()];
        let server = Server::start(Settings { properties, ..Settings::default() }).unwrap();
        let place = Place::on(Arc::new(server)).await;
        let one = place.client().await;
        for at in ["x", "other"] {
            let used = claim(at);
            one.lock(&used).await;
            one.release(&used).await;
        }
        assert!(change(&one, Change::LatchSet(name("x"), 2)).await.unwrap());
        let there = |at: &'static str| {
            let one = &one;
            let path = one.path(at);
            async move { one.ask(Request::Exists { path, watch: false }).await.is_ok() }
        };
        until("the other directory is reaped", || async { !there("other").await }).await;
        assert_eq!(one.read(Kind::Latch, "x").await.count, Some(2));
        let beside = claim("x");
        one.lock(&beside).await;
        one.release(&beside).await;
        assert!(!change(&one, Change::LatchCountDown(name("x"), ClaimId::fresh())).await.unwrap());
        assert!(change(&one, Change::LatchCountDown(name("x"), ClaimId::fresh())).await.unwrap());
        assert_eq!(one.read(Kind::Latch, "x").await.count.unwrap_or(0), 0);
        until("the directory is reaped once the latch is open", || async { !there("x").await })
            .await;
        assert!(
            change(&one, Change::LatchSet(name("x"), 1)).await.unwrap(),
            "and it is closed anew"
        );
    });
}

#[test]
fn a_latch_is_closed_also_where_somebody_emptied_its_node() {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        let held = claim("x");
        one.lock(&held).await;
        assert!(change(&one, Change::LatchSet(name("x"), 1)).await.unwrap());
        one.ask(Request::SetData { path: one.path("x"), data: Vec::new(), version: -1 })
            .await
            .unwrap();
        assert_eq!(one.read(Kind::Latch, "x").await.count, Some(0));
        assert!(change(&one, Change::LatchSet(name("x"), 1)).await.unwrap());
        one.delete(&one.path("x/lockkeeper-latch")).await;
        assert!(change(&one, Change::LatchCountDown(name("x"), ClaimId::fresh())).await.unwrap());
        one.release(&held).await;
        assert!(one.children("x").await.is_empty());
    });
}

#[test]
fn c31_a_contender_that_does_not_wait_for_ours_is_told_once_for_each_directory_and_library() {
    run(async {
        let place = Place::new().await;
        let (admin, one) = (place.client().await, place.client().await);
        admin.create(&admin.path("x"), b"", Create::Persistent).await;
        let warned = |event| match event {
            Event::Warned { kind, name, warning } => Some((kind, name, warning)),
            _ => None,
        };
        let all = |client: &Client| -> Vec<Event> {
            client.events.queue.lock().unwrap().drain(..).collect()
        };
        let kazoo = admin.path("x/3f1c5a0e9b8d4f6aa1b2c3d4e5f60718__lock__");
        let kazoo = admin.create(&kazoo, b"", Create::EphemeralSequential).await;
        for _ in 0..3 {
            assert!(matches!(one.attempt(&claim("x"), Line::Try).await, Attempt::Busy(_)));
        }
        admin.delete(&kazoo).await;
        let stands = admin.path("x/Lock");
        admin.create(&stands, b"", Create::EphemeralSequential).await;
        assert!(matches!(one.attempt(&claim("x"), Line::Try).await, Attempt::Busy(_)));
        // The next answer on this connection comes after theirs.
        one.read(Kind::Lock, "x").await;
        let told: Vec<_> = all(&one).into_iter().filter_map(warned).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(
            (told[0].0, told[0].1.as_str(), told[0].2.id),
            (Kind::Lock, "x", "other-layout")
        );
        assert!(told[0].2.text.contains("layout=kazoo"), "{told:?}");
        assert!(told[1].2.text.starts_with("if the code that made the node"), "{told:?}");
    });
}
