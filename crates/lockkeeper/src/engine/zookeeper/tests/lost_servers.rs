//! Lost servers of an ensemble, and those that lag behind.

use super::*;

/// Three servers whose sessions may be long, and the options of one that no test waits for.
fn three_servers() -> (Ensemble, &'static str) {
    let lines = vec!["maxSessionTimeout=60000".to_owned()];
    let ensemble = Ensemble::start(3, &Settings { lines, ..Settings::default() }).unwrap();
    (ensemble, "session_timeout=60s&connect_timeout=30s")
}

#[test]
fn z5_a_hold_and_a_place_live_through_the_loss_of_the_leader() {
    run(async {
        let (mut ensemble, options) = three_servers();
        let url = format!("zk://{}?{options}", ensemble.addresses());
        let (one, two) = (Client::open(&url).await.unwrap(), Client::open(&url).await.unwrap());
        let (a, b) = (claim("x"), claim("x"));
        let first = one.lock(&a).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        for _ in 0..2 {
            let leader = leader_of(&ensemble).await;
            ensemble.servers[leader].kill().unwrap();
            until("somebody else leads and both are back", || async {
                let alive = ensemble.leader().is_some();
                let up = |c: &Client| c.engine.shared().unwrap().lock().up;
                alive && up(&one) && up(&two)
            })
            .await;
            let rechecked = one.recheck(&a).await;
            assert!(matches!(rechecked, Standing::Held(_)), "{rechecked:?}");
            assert!(two.is_quiet_about(b.id));
            ensemble.servers[leader].restart_without_waiting().unwrap();
            until("it serves again", || async { ensemble.servers[leader].mode().is_some() }).await;
        }
        assert!(matches!(one.release(&a).await, End::Freed));
        let second = two.granted(b.id).await;
        assert!(number(&second) > number(&first), "tokens rise over an election");
    });
}

#[test]
fn z4_a_follower_that_lags_behind_shows_nobody_a_free_lock() {
    run(async {
        let (ensemble, options) = three_servers();
        let leader = leader_of(&ensemble).await;
        let follower = (0..3).find(|s| *s != leader).unwrap();
        let at = |server: usize| format!("zk://{}?{options}", ensemble.servers[server].address());
        let (one, two) =
            (Client::open(&at(leader)).await.unwrap(), Client::open(&at(follower)).await.unwrap());
        for round in 0..3 {
            let (a, b) = (claim("x"), claim("x"));
            // The follower sleeps while the lock is taken, and then answers a session that has seen
            // nothing of it.
            ensemble.servers[follower].pause().unwrap();
            one.lock(&a).await;
            let attempt = two.engine.attempt(&b, if round == 1 { Line::Try } else { Line::Join });
            tokio::time::sleep(Duration::from_millis(300)).await;
            ensemble.servers[follower].resume().unwrap();
            let answered = answer(attempt).await;
            assert!(!matches!(answered, Attempt::Granted(_)), "{answered:?}");
            assert!(matches!(one.release(&a).await, End::Freed));
            if round == 1 {
                two.withdraw(&b).await;
            } else {
                two.granted(b.id).await;
                two.release(&b).await;
            }
        }
    });
}
