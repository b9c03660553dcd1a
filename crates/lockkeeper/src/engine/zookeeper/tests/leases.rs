//! The semaphores of kazoo: permits that are counted, behind a gate.

use lockkeeper_testkit::zookeeper::proxy::op;

use super::faults::{end_session, tells_that_it_ended};
use super::gates::{no_ghost_is_left, permit};
use super::*;
use crate::ErrorKind;

const SHARED: &str = "layout=kazoo&semaphore=shared";

/// How many permits are out, and how many stand at the gate.
async fn counts(client: &Client) -> (usize, usize) {
    (client.children("x").await.len(), client.children("x-__lock__").await.len())
}

async fn data(client: &Client, path: &str) -> Vec<u8> {
    match client.ask(Request::GetData { path: client.path(path), watch: false }).await {
        Ok(Reply::Data(data, _)) => data,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_permit_is_a_bare_node_as_kazoo_counts_them_and_the_directory_says_the_limit() {
    run(async {
        let place = Place::new().await;
        let [one, two, three] = place.clients(SHARED).await;
        let (a, b, c, d) = (permit(2), permit(2), permit(2), permit(2));
        assert_eq!(one.lock(&a).await.number, Number::None);
        assert_eq!(data(&one, "x").await, b"2");
        let names = one.children("x").await;
        assert!(
            names[0].len() == 32 && names[0].bytes().all(|b| b.is_ascii_hexdigit()),
            "{names:?}"
        );
        two.lock(&b).await;
        until("the gate is free again", || async { counts(&one).await == (2, 0) }).await;
        assert!(matches!(two.join(&c).await, Attempt::InLine(_)));
        assert!(matches!(three.join(&d).await, Attempt::InLine(line) if line.ahead == Some(1)));
        assert_eq!(counts(&one).await, (2, 2), "nobody who waits is among the permits");
        let entry = one.read(Kind::Semaphore, "x").await;
        assert_eq!(
            (entry.limit, entry.holders.len(), entry.waiters.len()),
            (Some(2), 2, 2),
            "{entry:?}"
        );
        assert!(
            one.list("x").await.iter().any(|e| e.kind == Kind::Semaphore && e.holders.len() == 2)
        );
        assert!(
            matches!(one.attempt(&permit(2), Line::Try).await, Attempt::Busy(_)),
            "a try passes nobody at the gate"
        );
        one.release(&a).await;
        two.granted(c.id).await;
        assert!(three.is_quiet_about(d.id));
        two.release(&b).await;
        three.granted(d.id).await;
        until("the gate is free again", || async { counts(&one).await == (2, 0) }).await;
        assert!(
            matches!(one.attempt(&permit(2), Line::Try).await, Attempt::Busy(_)),
            "no permit is free"
        );
        two.release(&c).await;
        assert!(matches!(one.attempt(&permit(2), Line::Try).await, Attempt::Granted(_)));
        three.release(&d).await;
        until("one is left", || async { counts(&one).await == (1, 0) }).await;
    });
}

#[test]
fn permits_of_others_count_and_their_end_is_heard() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients(SHARED).await;
        // kazoo makes the directory, and says no limit there when it does.
        one.create(&one.path("x"), b"", Create::Persistent).await;
        let theirs = one
            .create(&one.path("x/7b2d0f4e111122223333444455550000"), b"theirs", Create::Ephemeral)
            .await;
        let a = permit(1);
        assert!(matches!(two.join(&a).await, Attempt::InLine(_)));
        one.delete(&theirs).await;
        two.granted(a.id).await;
        assert_eq!(data(&one, "x").await, b"1", "from now on kazoo checks it, too");
        assert!(change(&one, Change::Force(Kind::Semaphore, name("x"), Vec::new())).await.unwrap());
        assert_eq!(two.lost(a.id).await, Lost::TakenAway);
    });
}

#[test]
fn another_limit_is_refused_and_a_resize_lets_one_in_that_waits() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients(SHARED).await;
        let (a, b) = (permit(1), permit(1));
        one.lock(&a).await;
        until("the gate is free again", || async { counts(&one).await == (1, 0) }).await;
        assert_eq!(failed(two.join(&permit(2)).await).kind(), ErrorKind::LimitMismatch);
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        assert!(change(&one, Change::Resize(name("x"), 2)).await.unwrap());
        two.granted(b.id).await;
        let error = failed(
            one.join(&claim_in(Kind::Semaphore, "x", Mode::Permits { count: 2, limit: 2 })).await,
        );
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        until("nobody is at the gate", || async { counts(&one).await == (2, 0) }).await;
    });
}

#[test]
fn z2_a_lost_reply_leaves_no_permit_that_nobody_has() {
    let lost = [op::MULTI, op::CREATE, op::DELETE, op::LIST, op::GET_DATA];
    run(no_ghost_is_left(SHARED, &lost, counts));
}

#[test]
fn z3_whoever_waits_stands_again_in_the_next_session_and_leaves_nothing() {
    run(async {
        let place = Place::new().await;
        let [one, two, three] = place.clients(SHARED).await;
        let (a, b, c) = (permit(1), permit(1), permit(1));
        one.lock(&a).await;
        until("the gate is free again", || async { counts(&one).await == (1, 0) }).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        assert!(matches!(three.join(&c).await, Attempt::InLine(_)));
        end_session(&two).await;
        until("it stands again", || async { counts(&one).await == (1, 2) }).await;
        one.release(&a).await;
        three.granted(c.id).await;
        assert!(matches!(two.withdraw(&b).await, End::Freed));
        until("one permit, nobody at the gate", || async { counts(&one).await == (1, 0) }).await;
        end_session(&three).await;
        assert!(tells_that_it_ended(three.lost(c.id).await));
        one.lock(&permit(1)).await;
    });
}

#[test]
fn a_gate_that_is_taken_away_gives_nobody_a_permit_too_many() {
    run(async {
        let place = Place::new().await;
        let [one, two, three] = place.clients(SHARED).await;
        let (a, b, c) = (permit(1), permit(1), permit(1));
        one.lock(&a).await;
        until("the gate is free again", || async { counts(&one).await == (1, 0) }).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        let gate = one.children("x-__lock__").await.remove(0);
        one.delete(&one.path(&format!("x-__lock__/{gate}"))).await;
        assert!(matches!(three.join(&c).await, Attempt::InLine(_)));
        until("both stand at the gate", || async { counts(&one).await == (1, 2) }).await;
        one.release(&a).await;
        let first = tokio::select! { _ = two.granted(b.id) => 2, _ = three.granted(c.id) => 3 };
        assert_eq!(one.children("x").await.len(), 1);
        if first == 2 {
            two.release(&b).await;
            three.granted(c.id).await;
        } else {
            three.release(&c).await;
            two.granted(b.id).await;
        }
    });
}
