//! News that is old, watches that cross, servers that are wrong.

use tokio::sync::oneshot;

use super::faults::deadline;
use super::shared::{reader, writer};
use super::*;

/// A thread on which a client's driver runs, and that can be stopped as a whole process can.
struct Stoppable {
    runtime: tokio::runtime::Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Stoppable {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (end, ended) = oneshot::channel();
        let handle = runtime.handle().clone();
        let thread = std::thread::spawn(move || _ = runtime.block_on(ended));
        Self { runtime: handle, end: Some(end), thread: Some(thread) }
    }

    fn spawner(&self) -> Spawner {
        let runtime = self.runtime.clone();
        Spawner::new(move |task| drop(runtime.spawn(task)))
    }

    /// Stops it until the answer is dropped.
    async fn stop(&self) -> std::sync::mpsc::Sender<()> {
        let (go_on, stopped) = std::sync::mpsc::channel::<()>();
        let (tell, told) = oneshot::channel();
        self.runtime.spawn(async move {
            tell.send(()).unwrap();
            _ = stopped.recv();
        });
        told.await.unwrap();
        go_on
    }
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn z1_what_is_read_after_a_long_pause_is_no_grant_also_for_who_asks_meanwhile() {
    run(async {
        let place = Place::new().await;
        let thread = Stoppable::start();
        let one =
            Client::open_with(&place.url("session_timeout=2s"), thread.spawner()).await.unwrap();
        let [two, three] = place.clients("").await;
        let (a, b, c) = (claim("x"), claim("x"), claim("x"));
        two.lock(&b).await;
        assert!(matches!(one.join(&a).await, Attempt::InLine(_)));
        until("it knows whom it waits for", || async {
            matches!(answer(one.engine.recheck(&[a.id])).await[..], [Standing::InLine(_)])
                && one.is_next(&a)
        })
        .await;
        let stopped = thread.stop().await;
        // Its turn comes while it is stopped, then its session ends, and somebody else has the
        // lock.
        assert!(matches!(two.release(&b).await, End::Freed));
        three.lock(&c).await;
        // The net is cast before anything is read.
        let (net, again) = (one.engine.recheck(&[a.id]), one.engine.attempt(&a, Line::Join));
        drop(stopped);
        for answered in answer(net).await.into_iter().chain([answer(again).await.into()]) {
            if let Standing::Held(grant) = answered {
                assert!(deadline(&grant) <= one.clock.now(), "{grant:?} while somebody else holds");
            }
        }
        assert!(one.is_quiet_about(a.id));
        assert!(matches!(three.release(&c).await, End::Freed));
        one.lock_stubbornly(&a).await;
        assert!(matches!(one.release(&a).await, End::Freed));
        for client in [&one, &two, &three] {
            client.close().await;
        }
    });
}

#[test]
fn z11_a_server_that_shows_what_its_ensemble_does_not_have_is_left_and_nobody_waits_for_that() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) = place.client_behind_a_proxy("session_timeout=2s").await;
        let two = place.client().await;
        let (a, b) = (claim("x"), claim("x"));
        two.lock(&b).await;
        assert!(matches!(one.join(&a).await, Attempt::InLine(_)));
        let node = two
            .children("x")
            .await
            .into_iter()
            .min_by_key(|name| name.rsplit('-').next().map(str::to_owned))
            .unwrap();
        let connects = proxy.connects();
        // From here on it is a node that one server has forgotten to delete.
        proxy.deny(&two.path(&format!("x/{node}")));
        one.event(|e| matches!(e, Event::Link { up: false }).then_some(())).await;
        one.granted(a.id).await;
        assert!(proxy.connects() > connects, "it went to another server");
        assert_eq!(two.children("x").await.len(), 2);
        assert!(matches!(one.release(&a).await, End::Freed));
    });
}

#[test]
fn z11_the_net_asks_the_quorum_for_what_is_waited_for_also_while_the_session_is_proven() {
    run(async {
        let place = Place::new().await;
        // No write is needed to prove a session that long.
        let (proxy, one) = place.client_behind_a_proxy("session_timeout=40s").await;
        let two = place.client().await;
        let (up, reads) = (claim_in(Kind::Lock, "x", Mode::Upgradable), reader("x"));
        one.lock(&up).await;
        two.lock(&reads).await;
        let node = two
            .children("x")
            .await
            .into_iter()
            .max_by_key(|name| name.rsplit('_').next().map(str::to_owned))
            .unwrap();
        let turn = Claim { id: ClaimId::fresh(), mode: Mode::Exclusive, ..up.clone() };
        assert!(matches!(answer(one.engine.convert(up.id, &turn)).await, Attempt::InLine(_)));
        proxy.deny(&two.path(&format!("x/{node}")));
        answer(one.engine.recheck(&[turn.id])).await;
        one.granted(turn.id).await;
        assert!(matches!(one.release(&up).await, End::Freed));
        two.release(&reads).await;

        // A writer with somebody before it: who waits for it is not next in line.
        let [three, four] = place.clients("").await;
        let (first, writes, last) = (writer("y"), writer("y"), claim("y"));
        three.lock(&first).await;
        assert!(matches!(four.join(&writes).await, Attempt::InLine(_)));
        assert!(matches!(one.join(&last).await, Attempt::InLine(_)));
        let mut nodes = two.children("y").await;
        nodes.sort_by_key(|name| name.get(name.len() - 10..).map(str::to_owned));
        proxy.deny(&two.path(&format!("y/{}", nodes[1])));
        assert!(!one.is_next(&last));
        answer(one.engine.recheck(&[last.id])).await;
        one.event(|e| matches!(e, Event::Link { up: true }).then_some(())).await;
        until("the first one is all that it waits for", || async { one.is_next(&last) }).await;
        three.release(&first).await;
        one.granted(last.id).await;
        one.release(&last).await;
    });
}

#[test]
fn r10_a_claim_that_leaves_does_not_end_the_watch_that_another_has_just_asked_for() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let (held, a, b) = (claim("x"), claim("x"), claim("x"));
        two.lock(&held).await;
        assert!(matches!(one.join(&a).await, Attempt::InLine(_)));
        let joining = one.engine.attempt(&b, Line::Join);
        // The requests for its watches have just been sent.
        until_it_waits(&one, &b).await;
        let leaving = one.engine.withdraw(a.id);
        assert!(matches!(answer(joining).await, Attempt::InLine(_)));
        assert!(matches!(answer(leaving).await, End::Freed));
        until("only two are left", || async {
            two.children("x").await.len() == 2 && one.is_next(&b)
        })
        .await;
        assert!(matches!(two.release(&held).await, End::Freed));
        one.granted(b.id).await;
    });
}

#[test]
fn r4_a_grant_whose_caller_has_gone_is_told_by_an_event() {
    run(async {
        let place = Place::new().await;
        let (proxy, one) =
            place.client_behind_a_proxy("request_timeout=1500ms&session_timeout=10s").await;
        let a = claim("x");
        proxy.hold_replies(true);
        assert!(matches!(one.join(&a).await, Attempt::Unknown(_)));
        proxy.hold_replies(false);
        one.granted(a.id).await;
        assert!(matches!(one.release(&a).await, End::Freed));
    });
}

#[test]
fn r4_who_asks_late_about_a_hold_is_told_as_soon_as_the_session_is_proven() {
    run(async {
        let place = Place::new().await;
        let one = place.client_with("session_timeout=8s&request_timeout=10s").await;
        // A fixed hold: the session is proven for its sake no more than for nobody's.
        let a = Claim { renew: false, ..claim("x") };
        one.lock(&a).await;
        until("nothing is proven any more", || async {
            one.engine.shared().unwrap().lock().left().is_zero()
        })
        .await;
        let Attempt::Granted(again) = one.join(&a).await else { panic!("it holds") };
        assert!(deadline(&again) > one.clock.now(), "{again:?}");
        assert!(matches!(one.release(&a).await, End::Freed));
    });
}

/// Nothing else runs between the step that makes it wait and this.
async fn until_it_waits(client: &Client, claim: &Claim) {
    let waits = || {
        client
            .engine
            .shared()
            .unwrap()
            .lock()
            .claims
            .get(&claim.id)
            .is_some_and(|e| e.machine.waits_for().is_some())
    };
    let begun = Instant::now();
    while !waits() {
        assert!(begun.elapsed() < SOON, "it does not wait");
        tokio::task::yield_now().await;
    }
}

impl Client {
    /// Whether the claim would be granted by the next event.
    fn is_next(&self, claim: &Claim) -> bool {
        self.engine.shared().unwrap().lock().next_in_line.contains(&claim.id)
    }
}
