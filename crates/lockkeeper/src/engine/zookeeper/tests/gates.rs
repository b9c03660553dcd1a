//! Waiting for a permit of another library's semaphore: at its gate, one behind the other.

use lockkeeper_testkit::zookeeper::proxy::op;

use super::faults::end_session;
use super::*;

const SHARED: &str = "semaphore=shared";

pub(super) fn permit(limit: u16) -> Claim {
    claim_in(Kind::Semaphore, "x", Mode::Permits { count: 1, limit })
}

/// How many stand among the permits, and how many at the gate.
async fn counts(client: &Client) -> (usize, usize) {
    (client.children("x/leases").await.len(), client.children("x/locks").await.len())
}

/// Who holds it gives it back, the others get it in that order, and nothing is left.
async fn all_get_it((one, held): (&Client, &Claim), others: &[(&Client, &Claim)]) {
    one.release(held).await;
    for (client, claim) in others {
        client.granted(claim.id).await;
        client.release(claim).await;
    }
    until("nothing is left", || async { counts(one).await == (0, 0) }).await;
}

/// One holds the only permit, the second has passed the gate, the third stands there.
async fn one_in_each_place(place: &Place) -> ([Client; 3], [Claim; 3]) {
    let [one, two, three] = place.clients(SHARED).await;
    let claims = [permit(1), permit(1), permit(1)];
    one.lock(&claims[0]).await;
    until("the gate is free again", || async { counts(&one).await == (1, 0) }).await;
    assert!(matches!(two.join(&claims[1]).await, Attempt::InLine(_)));
    until("it is behind the gate", || async { counts(&one).await == (2, 1) }).await;
    assert!(matches!(three.join(&claims[2]).await, Attempt::InLine(_)));
    ([one, two, three], claims)
}

/// Whichever of these replies is lost while a permit is asked for, it is had once. `counts`: the
/// permits that are out, and who stands at the gate.
pub(super) async fn no_ghost_is_left(
    shared: &str,
    lost: &[i32],
    counts: impl AsyncFn(&Client) -> (usize, usize),
) {
    let place = Place::new().await;
    for lost in lost {
        let (proxy, one) = place.client_behind_a_proxy(shared).await;
        let (warm, a) = (permit(2), permit(2));
        one.lock(&warm).await;
        proxy.lose_reply_to(*lost);
        one.lock(&a).await;
        assert!(matches!(one.release(&a).await, End::Freed));
        until("the reply was lost", || async { proxy.has_struck() }).await;
        until("one permit, and no ghost", || async { counts(&one).await == (1, 0) }).await;
        one.release(&warm).await;
    }
}

/// Makes a node as Curator would: what it is called up to its number.
async fn theirs(client: &Client, dir: &str, word: &str) -> String {
    let path = client.path(&format!("x/{dir}/_c_7b2d0f4e-1111-2222-3333-444455556666-{word}-"));
    client.create(&path, b"10.0.0.7", Create::EphemeralSequential).await
}

#[test]
fn one_waiter_at_a_time_stands_among_curators_permits() {
    run(async {
        let place = Place::new().await;
        let [one, two, three] = place.clients(SHARED).await;
        let (a, b, c) = (permit(1), permit(1), permit(1));
        one.lock(&a).await;
        until("the gate is free again", || async { counts(&one).await == (1, 0) }).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        let Attempt::InLine(line) = three.join(&c).await else { panic!("the gate is taken") };
        assert_eq!(line.ahead, Some(1));
        assert_eq!(counts(&one).await, (2, 2));
        let entry = one.read(Kind::Semaphore, "x").await;
        assert_eq!((entry.holders.len(), entry.waiters.len()), (1, 2), "{entry:?}");
        one.release(&a).await;
        two.granted(b.id).await;
        until("the third has passed the gate", || async { counts(&one).await == (2, 1) }).await;
        assert!(three.is_quiet_about(c.id));
        two.release(&b).await;
        three.granted(c.id).await;
        three.release(&c).await;
        until("nothing is left", || async { counts(&one).await == (0, 0) }).await;
    });
}

#[test]
fn a_waiter_of_curators_and_ours_do_not_stop_each_other() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients(SHARED).await;
        let (a, b) = (permit(1), permit(1));
        one.lock(&a).await;
        until("the gate is free again", || async { counts(&one).await == (1, 0) }).await;
        // Curator's has the gate, and stands among the permits.
        let (gate, lease) =
            (theirs(&two, "locks", "lock").await, theirs(&two, "leases", "lease").await);
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        one.release(&a).await;
        until("Curator counts its own permit alone", || async { counts(&two).await == (1, 2) })
            .await;
        assert!(two.is_quiet_about(b.id));
        one.delete(&gate).await;
        one.delete(&lease).await;
        two.granted(b.id).await;
    });
}

#[test]
fn r5_whoever_leaves_at_the_gate_or_behind_it_leaves_nothing() {
    run(async {
        let place = Place::new().await;
        let ([one, two, three], [a, b, c]) = one_in_each_place(&place).await;
        assert!(matches!(three.withdraw(&c).await, End::Freed));
        assert_eq!(counts(&one).await, (2, 1));
        assert!(matches!(two.withdraw(&b).await, End::Freed));
        assert_eq!(counts(&one).await, (1, 0));
        assert!(matches!(one.release(&a).await, End::Freed));
        assert_eq!(counts(&one).await, (0, 0));
    });
}

#[test]
fn r11_a_try_writes_nothing_when_it_is_busy_and_passes_nobody_at_the_gate() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy(SHARED).await;
        let two = place.client_with(SHARED).await;
        let a = permit(1);
        two.lock(&a).await;
        until("the gate is free again", || async { counts(&two).await == (1, 0) }).await;
        let gate = theirs(&two, "locks", "lock").await;
        proxy.take_counts();
        assert!(
            matches!(one.attempt(&permit(1), Line::Try).await, Attempt::Busy(_)),
            "somebody is at the gate"
        );
        two.release(&a).await;
        assert!(
            matches!(one.attempt(&permit(1), Line::Try).await, Attempt::Busy(_)),
            "it is the next one's"
        );
        two.delete(&gate).await;
        two.lock(&a).await;
        until("the gate is free again", || async { counts(&two).await == (1, 0) }).await;
        assert!(
            matches!(one.attempt(&permit(1), Line::Try).await, Attempt::Busy(Some(_))),
            "no permit is free"
        );
        let counts = proxy.take_counts();
        let writes = [op::CREATE, op::CREATE_CONTAINER, op::DELETE, op::SET_DATA];
        assert!(!counts.keys().any(|op| writes.contains(op)), "{counts:?}");
        two.release(&a).await;
        let b = permit(1);
        assert!(matches!(one.attempt(&b, Line::Try).await, Attempt::Granted(_)));
    });
}

#[test]
fn z3_who_waits_at_the_gate_or_behind_it_stands_again_in_the_next_session() {
    run(async {
        let place = Place::new().await;
        let [one, two, three] = place.clients(SHARED).await;
        let (a, b, c) = (permit(1), permit(1), permit(1));
        one.lock(&a).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        assert!(matches!(three.join(&c).await, Attempt::InLine(_)));
        end_session(&three).await;
        until("the last one stands again", || async { counts(&one).await == (2, 2) }).await;
        end_session(&two).await;
        until("the first one stands again, behind it", || async { counts(&one).await == (2, 2) })
            .await;
        all_get_it((&one, &a), &[(&three, &c), (&two, &b)]).await;
    });
}

/// Then somebody's hand opens the gate.
async fn gate_taken_away(place: &Place) -> ([Client; 3], [Claim; 3]) {
    let ([one, two, three], claims) = one_in_each_place(place).await;
    let gate =
        one.children("x/locks").await.into_iter().min_by_key(|name| number_of(name)).unwrap();
    let gate = one.path(&format!("x/locks/{gate}"));
    until("it watches its gate", || async {
        two.engine.shared().unwrap().lock().targets.contains_key(&gate)
    })
    .await;
    one.delete(&gate).await;
    until("the last one has passed it, too", || async { counts(&one).await == (3, 1) }).await;
    ([one, two, three], claims)
}

fn number_of(name: &str) -> u64 {
    name.rsplit('-').next().unwrap().parse().unwrap()
}

/// And takes the second one's node among the permits away, too.
async fn gate_and_node_taken_away(place: &Place) -> ([Client; 3], [Claim; 3]) {
    let (clients, claims) = gate_taken_away(place).await;
    let one = &clients[0];
    let mut nodes = one.children("x/leases").await;
    nodes.sort_by_key(|name| number_of(name));
    one.delete(&one.path(&format!("x/leases/{}", nodes[1]))).await;
    until("it stands at the gate, and not among the permits", || async {
        counts(one).await == (2, 2)
    })
    .await;
    (clients, claims)
}

#[test]
fn z3_whose_gate_and_node_are_both_taken_away_stands_at_the_gate_again() {
    run(async {
        let place = Place::new().await;
        let ([one, two, three], [a, b, c]) = gate_and_node_taken_away(&place).await;
        all_get_it((&one, &a), &[(&three, &c), (&two, &b)]).await;
    });
}

#[test]
fn r5_who_leaves_the_gate_at_which_it_stands_again_is_told_at_once_and_leaves_nothing() {
    run(async {
        let place = Place::new().await;
        let ([one, two, three], [a, b, c]) = gate_and_node_taken_away(&place).await;
        let left =
            tokio::time::timeout(SOON, two.withdraw(&b)).await.expect("without a time limit's end");
        assert!(matches!(left, End::Freed), "{left:?}");
        until("it stands nowhere", || async { counts(&one).await == (2, 1) }).await;
        all_get_it((&one, &a), &[(&three, &c)]).await;
    });
}

#[test]
fn z3_whose_gate_is_taken_away_before_its_session_ends_stands_there_in_the_next_one() {
    run(async {
        let place = Place::new().await;
        let ([one, two, three], [a, b, c]) = gate_taken_away(&place).await;
        end_session(&two).await;
        until("it stands at the gate, and not among the permits", || async {
            counts(&one).await == (2, 2)
        })
        .await;
        all_get_it((&one, &a), &[(&three, &c), (&two, &b)]).await;
    });
}

#[test]
fn z2_a_reply_lost_at_the_gate_or_behind_it_leaves_no_ghost() {
    let lost = [op::CREATE, op::DELETE, op::LIST, op::GET_DATA];
    run(no_ghost_is_left(SHARED, &lost, counts));
}

#[test]
fn a_permit_asked_for_while_no_server_answers_is_forgotten_or_had() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) =
            place.client_behind_a_proxy("semaphore=shared&request_timeout=300ms").await;
        let a = permit(2);
        one.lock_stubbornly(&a).await;
        proxy.close();
        until("the link is down", || async { !one.engine.shared().unwrap().lock().up }).await;
        assert!(matches!(one.join(&permit(2)).await, Attempt::Failed(_)));
        proxy.open();
        let two = place.client_with(SHARED).await;
        two.lock(&permit(2)).await;
        until("the gate is free again", || async { counts(&two).await == (2, 0) }).await;
    });
}
