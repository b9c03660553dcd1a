//! A follower that is cut off from its leader goes on answering its clients, and knows nothing of what they lost.

use lockkeeper_lab::servers::zookeeper::Ensemble;

use super::*;
use crate::Locks;

#[test]
fn z1_a_holder_on_a_follower_that_is_cut_off_is_told_before_the_next_one_is_in() {
    run(async {
        // A follower gives up after 20 ticks of half a second; the session lasts 4 s.
        let (ensemble, links) = Ensemble::start_apart(3, &Settings { sync_limit: 20, ..Settings::default() }).unwrap();
        let leader = ensemble.leader().expect("one leads");
        let follower = (0..3).find(|server| *server != leader).unwrap();
        let url = |server: usize| format!("zk://{}?session_timeout=4s", ensemble.servers[server].address());
        let (one, two) = (Locks::open(&url(follower)).await.unwrap(), Locks::open(&url(leader)).await.unwrap());
        let guard = one.mutex("x").lock().await.unwrap();
        let next = two.mutex("x");
        // In a thread of its own, so that neither time is taken late because the other one is.
        let waiting = tokio::task::spawn_blocking(move || (crate::park::wait(next.lock().timeout(SOON * 3)).unwrap(), Instant::now()));
        until("the next one stands in line", || async { two.status(Kind::Lock, "x").await.unwrap().waiters.len() == 1 }).await;
        links.cut_off(follower);
        let cut = Instant::now();
        guard.lost().await;
        let told = Instant::now();
        assert_eq!(ensemble.servers[follower].mode().as_deref(), Some("follower"), "it serves on, and answered every ping");
        let (second, granted) = waiting.await.unwrap();
        assert!(told < granted, "told after {:?}, the next one was in after {:?}", told - cut, granted - cut);
        assert_eq!(ensemble.servers[follower].mode().as_deref(), Some("follower"), "also when somebody else had the lock");
        println!("cut off: told after {:?}, the next one was in after {:?}", told - cut, granted - cut);
        drop(second);
    });
}
