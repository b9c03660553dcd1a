//! Upgrades and downgrades.

use super::shared::{reader, writer};
use super::*;

async fn convert(client: &Client, hold: &Claim, to: Mode) -> (Claim, Attempt) {
    let turn = Claim { id: ClaimId::fresh(), mode: to, ..hold.clone() };
    let answered = answer(client.engine.convert(hold.id, &turn)).await;
    (turn, answered)
}

async fn converted(client: &Client, hold: &Claim, to: Mode) -> u64 {
    match convert(client, hold, to).await {
        (_, Attempt::Granted(grant)) => number(&grant),
        (turn, Attempt::InLine(_)) => number(&client.granted(turn.id).await),
        (_, other) => panic!("{other:?}"),
    }
}

fn upgradable(name: &str) -> Claim {
    claim_in(Kind::Lock, name, Mode::Upgradable)
}

#[test]
fn an_upgrade_waits_for_the_readers_and_goes_before_the_writers_with_rising_tokens() {
    run(async {
        let place = Place::new().await;
        for layout in ["layout=curator", "layout=kazoo"] {
            let clients = place.clients::<4>(layout).await;
            let at = layout.replace('=', "-");
            let (up, reads, writes, mutex) =
                (upgradable(&at), reader(&at), writer(&at), claim(&at));
            let first = number(&clients[0].lock(&up).await);
            let second = number(&clients[1].lock(&reads).await);
            assert!(
                matches!(clients[1].attempt(&upgradable(&at), Line::Try).await, Attempt::Busy(_)),
                "one upgradable at a time"
            );
            for (client, claim) in [(&clients[2], &writes), (&clients[3], &mutex)] {
                assert!(matches!(client.join(claim).await, Attempt::InLine(_)));
            }
            let (turn, waits) = convert(&clients[0], &up, Mode::Exclusive).await;
            assert!(matches!(waits, Attempt::InLine(_)), "{waits:?}");
            assert!(matches!(
                answer(clients[0].engine.recheck(&[turn.id])).await[..],
                [Standing::InLine(_)]
            ));
            clients[1].release(&reads).await;
            let third = number(&clients[0].granted(turn.id).await);
            assert!(
                matches!(
                    answer(clients[0].engine.convert(up.id, &turn)).await,
                    Attempt::Granted(g) if number(&g) == third
                ),
                "R3"
            );
            let entry = clients[3].read(Kind::Lock, &at).await;
            assert_eq!(
                entry.holders.iter().map(|h| h.mode).collect::<Vec<_>>(),
                [Some(Mode::Exclusive)],
                "{entry:?}"
            );
            assert_eq!(entry.waiters.len(), 2);
            let fourth = converted(&clients[0], &up, Mode::Upgradable).await;
            let fifth = converted(&clients[0], &up, Mode::Exclusive).await;
            let sixth = converted(&clients[0], &up, Mode::Shared).await;
            until("the writer's node is gone", || async {
                clients[0].children(&at).await.len() == 3
            })
            .await;
            assert!(clients[2].is_quiet_about(writes.id), "it still reads");
            clients[0].release(&up).await;
            let seventh = number(&clients[2].granted(writes.id).await);
            clients[2].release(&writes).await;
            let eighth = number(&clients[3].granted(mutex.id).await);
            let all = [first, second, third, fourth, fifth, sixth, seventh, eighth];
            assert!(
                all.is_sorted_by(|a, b| a < b),
                "R7: those who stood in line meanwhile come after: {all:?}"
            );
            clients[3].release(&mutex).await;
            assert!(clients[0].children(&at).await.is_empty());
        }
    });
}

/// Until everything that was told before has been heard, and what was asked because of it has been
/// answered.
async fn heard(client: &Client, claim: &Claim) {
    for _ in 0..2 {
        assert!(
            matches!(answer(client.engine.recheck(&[claim.id])).await[..], [Standing::InLine(_)]),
            "it waits"
        );
    }
}

#[test]
fn a_reader_waits_for_an_upgrade_also_when_the_writer_between_them_leaves() {
    run(async {
        let place = Place::new().await;
        for layout in ["layout=curator", "layout=kazoo"] {
            let [one, two, three] = place.clients(layout).await;
            let at = layout.replace('=', "-");
            let (up, writes, reads) = (upgradable(&at), writer(&at), reader(&at));
            one.lock(&up).await;
            assert!(matches!(two.join(&writes).await, Attempt::InLine(_)));
            assert!(matches!(three.join(&reads).await, Attempt::InLine(_)));
            let exclusive = converted(&one, &up, Mode::Exclusive).await;
            two.withdraw(&writes).await;
            heard(&three, &reads).await;
            assert!(three.is_quiet_about(reads.id));
            let back = converted(&one, &up, Mode::Upgradable).await;
            let third = number(&three.granted(reads.id).await);
            assert!(exclusive < back && exclusive < third, "R7");
            for (client, claim) in [(&one, &up), (&three, &reads)] {
                assert!(matches!(client.release(claim).await, End::Freed));
            }
            until("everything is gone", || async { one.children(&at).await.is_empty() }).await;
        }
    });
}

#[test]
fn an_upgrade_waits_for_curators_reader_behind_a_mutex_and_not_for_ours() {
    run(async {
        let place = Place::new().await;
        let [one, two, three] = place.clients("").await;
        let (up, mutex, reads) = (upgradable("x"), claim("x"), reader("x"));
        one.lock(&up).await;
        assert!(matches!(two.join(&mutex).await, Attempt::InLine(_)));
        assert!(matches!(three.join(&reads).await, Attempt::InLine(_)));
        // It looks at the writers of its rw-lock only, and so it reads.
        let node = three.path("x/_c_7b2d0f4e-1111-2222-3333-444455556666-__READ__");
        let curators = three.create(&node, b"10.0.0.7", Create::EphemeralSequential).await;
        let (turn, waits) = convert(&one, &up, Mode::Exclusive).await;
        assert!(matches!(waits, Attempt::InLine(_)), "it is not exclusive: {waits:?}");
        assert!(one.is_quiet_about(turn.id));
        three.delete(&curators).await;
        let exclusive = number(&one.granted(turn.id).await);
        two.withdraw(&mutex).await;
        heard(&three, &reads).await;
        assert!(three.is_quiet_about(reads.id), "the guard keeps it out");
        one.release(&up).await;
        assert!(number(&three.granted(reads.id).await) > exclusive, "R7");
        three.release(&reads).await;
    });
}

#[test]
fn a_holder_that_was_upgraded_past_a_writer_is_asked_to_let_go_and_still_says_who_it_is() {
    run(async {
        let place = Place::new().await;
        let [one, two, three] = place.clients("").await;
        let (up, writes, reads) = (upgradable("x"), writer("x"), reader("x"));
        one.lock(&up).await;
        assert!(matches!(two.join(&writes).await, Attempt::InLine(_)));
        assert!(matches!(three.join(&reads).await, Attempt::InLine(_)));
        converted(&one, &up, Mode::Exclusive).await;
        assert_eq!(one.children("x").await.len(), 5, "its writer's node, and the guard");
        assert!(answer(two.engine.ask(Kind::Lock, &name("x"))).await.unwrap());
        one.event(|e| matches!(e, Event::Asked { hold } if hold == up.id).then_some(())).await;
        until("the record is there again", || async {
            let entry = two.read(Kind::Lock, "x").await;
            entry.holders[0].host.as_deref() == Some("testhost")
                && entry.holders.len() == 1
                && entry.waiters.len() == 2
        })
        .await;
        one.release(&up).await;
    });
}

#[test]
fn many_readers_that_come_in_together_after_an_upgrade_do_not_hinder_each_other_for_long() {
    run(async {
        let place = Place::new().await;
        let (proxy, many) = place.client_behind_a_proxy("").await;
        let one = place.client().await;
        let up = upgradable("x");
        one.lock(&up).await;
        let exclusive = converted(&one, &up, Mode::Exclusive).await;
        let readers: Vec<Claim> = (0..40).map(|_| reader("x")).collect();
        for reads in &readers {
            assert!(matches!(many.join(reads).await, Attempt::InLine(_)));
        }
        proxy.take_counts();
        converted(&one, &up, Mode::Upgradable).await;
        let mut left: std::collections::BTreeSet<ClaimId> =
            readers.iter().map(|reads| reads.id).collect();
        while !left.is_empty() {
            let (id, grant) = many
                .event(|e| {
                    if let Event::Granted { claim, grant } = e {
                        Some((claim, grant))
                    } else {
                        None
                    }
                })
                .await;
            assert!(left.remove(&id) && number(&grant) > exclusive, "R7");
        }
        let asked = proxy
            .take_counts()
            .get(&lockkeeper_testkit::zookeeper::proxy::op::MULTI)
            .copied()
            .unwrap_or(0);
        assert!(
            (1..500).contains(&asked),
            "{asked} transactions; one after the other would be 800 in all"
        );
        one.release(&up).await;
    });
}

#[test]
fn a_writer_waits_for_a_downgraded_hold_and_comes_after_it() {
    run(async {
        let place = Place::new().await;
        for layout in ["layout=curator", "layout=kazoo"] {
            let [one, two] = place.clients(layout).await;
            let at = layout.replace('=', "-");
            let turns = [
                (upgradable(&at), Mode::Shared),
                (writer(&at), Mode::Shared),
                (writer(&at), Mode::Upgradable),
            ];
            for (hold, mode) in turns {
                let writes = writer(&at);
                one.lock(&hold).await;
                assert!(matches!(two.join(&writes).await, Attempt::InLine(_)));
                let turned = converted(&one, &hold, mode).await;
                until("the node before is gone", || async { one.children(&at).await.len() == 2 })
                    .await;
                heard(&two, &writes).await;
                assert!(two.is_quiet_about(writes.id), "{mode:?}");
                one.release(&hold).await;
                assert!(number(&two.granted(writes.id).await) > turned, "R7");
                two.release(&writes).await;
            }
        }
    });
}

#[test]
fn an_upgrade_does_not_wait_for_an_upgradable_reader_that_waits_for_it() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let (up, next) = (upgradable("x"), upgradable("x"));
        one.lock(&up).await;
        assert!(matches!(two.join(&next).await, Attempt::InLine(_)));
        let exclusive = converted(&one, &up, Mode::Exclusive).await;
        heard(&two, &next).await;
        one.release(&up).await;
        assert!(number(&two.granted(next.id).await) > exclusive, "R7");
        two.release(&next).await;
    });
}

#[test]
fn r10_an_upgrade_whose_wake_up_was_lost_is_found_by_the_net() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let (up, reads) = (upgradable("x"), reader("x"));
        one.lock(&up).await;
        two.lock(&reads).await;
        let (turn, waits) = convert(&one, &up, Mode::Exclusive).await;
        assert!(matches!(waits, Attempt::InLine(_)));
        one.engine.shared().unwrap().lock().targets.clear();
        two.release(&reads).await;
        assert!(one.is_quiet_about(turn.id), "nothing woke it");
        // What it asks for next may be answered before this is.
        assert!(matches!(
            answer(one.engine.recheck(&[turn.id])).await[..],
            [Standing::InLine(_) | Standing::Held(_)]
        ));
        one.granted(turn.id).await;
        one.release(&up).await;
    });
}

#[test]
fn a_conversion_never_stands_as_another_one_does_and_a_grant_is_told_when_nobody_waits_for_the_answer()
 {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        let up = upgradable("x");
        drop(one.engine.shared().unwrap().lock().attempt(&up, one.path("x"), false));
        one.granted(up.id).await;
        let (turn, made) = convert(&one, &up, Mode::Exclusive).await;
        assert!(matches!(made, Attempt::Granted(_)), "{made:?}");
        let next = ClaimId::fresh();
        let (taken_back, answered) = {
            let shared = one.engine.shared().unwrap();
            let mut state = shared.lock();
            let under_way = (state.leave(turn.id), state.convert(up.id, next, Mode::Exclusive));
            assert!(
                matches!(state.stands(next), Standing::InLine(_)),
                "the first one is still being taken back"
            );
            under_way
        };
        assert!(matches!(taken_back.await, Ok(End::Freed)));
        assert!(matches!(answered.await, Ok(Attempt::Granted(_))));
        one.release(&up).await;
    });
}

#[test]
fn a_writer_that_becomes_a_reader_lets_readers_in_and_keeps_writers_out() {
    run(async {
        let place = Place::new().await;
        let clients = place.clients::<3>("").await;
        let (writes, next, reads) = (writer("x"), writer("x"), reader("x"));
        let first = number(&clients[0].lock(&writes).await);
        assert!(matches!(clients[1].join(&next).await, Attempt::InLine(_)));
        let second = converted(&clients[0], &writes, Mode::Shared).await;
        let names = clients[0].children("x").await;
        assert!(
            names.iter().any(|n| n.contains("-__READ__0000000000")),
            "Curator's downgrade node: {names:?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(clients[1].is_quiet_about(next.id));
        clients[1].withdraw(&next).await;
        let third = number(&clients[2].lock(&reads).await);
        clients[0].release(&writes).await;
        assert!(second > first && third > first, "R7");
        assert!(matches!(clients[0].release(&writes).await, End::NotOurs));
        clients[2].release(&reads).await;
        assert!(clients[0].children("x").await.is_empty());
    });
}

#[test]
fn r5_an_upgrade_that_is_taken_back_leaves_the_hold_as_it_was() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let (up, reads) = (upgradable("x"), reader("x"));
        one.lock(&up).await;
        two.lock(&reads).await;
        for wait in [true, false] {
            if !wait {
                two.release(&reads).await;
            }
            let (turn, answered) = convert(&one, &up, Mode::Exclusive).await;
            assert_eq!(matches!(answered, Attempt::InLine(_)), wait);
            assert!(matches!(answer(one.engine.withdraw(turn.id)).await, End::Freed));
            let again = reader("x");
            assert!(
                matches!(two.attempt(&again, Line::Try).await, Attempt::Granted(_)),
                "readers come in again"
            );
            two.release(&again).await;
            assert!(matches!(two.attempt(&writer("x"), Line::Try).await, Attempt::Busy(_)));
        }
        one.release(&up).await;
    });
}

#[test]
fn an_upgrade_lives_through_lost_replies() {
    run(async {
        use lockkeeper_testkit::zookeeper::proxy::op;
        let place = Place::new().await;
        for lost in [op::CREATE, op::MULTI, op::GET_DATA, op::DELETE] {
            let (proxy, one) = place.client_behind_a_proxy("").await;
            let up = upgradable("x");
            let before = number(&one.lock(&up).await);
            proxy.lose_reply_to(lost);
            let exclusive = converted(&one, &up, Mode::Exclusive).await;
            let back = converted(&one, &up, Mode::Upgradable).await;
            let down = converted(&one, &up, Mode::Shared).await;
            assert!(before < exclusive && exclusive < back && back < down);
            assert!(matches!(one.release(&up).await, End::Freed));
            until("everything is gone", || async { one.children("x").await.is_empty() }).await;
            assert!(proxy.has_struck() || lost == op::DELETE, "{lost}");
        }
    });
}
