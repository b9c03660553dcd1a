//! A follower that is cut off from its leader goes on answering its clients, and knows nothing of
//! what they lost.

use lockkeeper_testkit::zookeeper::server::Ensemble;

use super::*;
use crate::{Locks, Released};

#[test]
fn z1_a_holder_on_a_follower_that_is_cut_off_is_told_before_the_next_one_is_in() {
    run(async {
        // A follower gives up after 20 ticks of half a second; the session lasts 4 s.
        let (ensemble, links) =
            Ensemble::start_apart(3, &Settings { sync_limit: 20, ..Settings::default() }).unwrap();
        let leader = ensemble.leader().expect("one leads");
        let follower = (0..3).find(|server| *server != leader).unwrap();
        let url = |server: usize| {
            format!("zk://{}?session_timeout=4s", ensemble.servers[server].address())
        };
        let (one, two) =
            (Locks::open(&url(follower)).await.unwrap(), Locks::open(&url(leader)).await.unwrap());
        let guard = one.mutex("x").lock().await.unwrap();
        let next = two.mutex("x");
        // In a thread of its own, so that neither time is taken late because the other one is.
        let waiting = tokio::task::spawn_blocking(move || {
            (
                crate::keeper::caller_io::park::wait(next.lock().timeout(SOON)).unwrap(),
                Instant::now(),
            )
        });
        until("the next one stands in line", || async {
            two.status(Kind::Lock, "x").await.unwrap().waiters.len() == 1
        })
        .await;
        links.cut_off(follower);
        let cut = Instant::now();
        guard.lost().await;
        let told = Instant::now();
        assert_eq!(
            ensemble.servers[follower].mode().as_deref(),
            Some("follower"),
            "it serves on, and answered every ping"
        );
        let (second, granted) = waiting.await.unwrap();
        assert!(
            told < granted,
            "told after {:?}, the next one was in after {:?}",
            told - cut,
            granted - cut
        );
        assert_eq!(
            ensemble.servers[follower].mode().as_deref(),
            Some("follower"),
            "also when somebody else had the lock"
        );
        println!(
            "cut off: told after {:?}, the next one was in after {:?}",
            told - cut,
            granted - cut
        );
        drop(second);
    });
}

#[test]
fn z1_a_follower_that_dies_right_after_its_answer_leaves_its_session_for_as_long_as_the_holder_believes()
 {
    run(async {
        // The follower tells its leader whom it has heard of when the leader pings it: every
        // quarter of a second. The session lasts two ticks, 1 s, and the drift allowance is 1 %: a
        // holder that believed the last answer would believe for longer than the leader does, in
        // about a quarter of the rounds. The model in `alive/relayed.rs` convicts it every time.
        let mut ensemble = Ensemble::start(3, &Settings::default()).unwrap();
        // A machine that stands still for as long as a session lasts ends it: such a round tells
        // nothing, and is not counted.
        let mut counted = 0;
        for round in 0..15 {
            if counted == 6 {
                break;
            }
            until("one leads", || std::future::ready(ensemble.leader().is_some())).await;
            let leader = ensemble.leader().expect("one leads");
            let follower = (0..3).find(|server| *server != leader).unwrap();
            let url = |server: usize| {
                format!("zk://{}?session_timeout=1s&drift=1%25", ensemble.servers[server].address())
            };
            let (one, two) = (
                Locks::open(&url(follower)).await.unwrap(),
                Locks::open(&url(leader)).await.unwrap(),
            );
            let name = format!("x{round}");
            let guard = one.mutex(&name).lock().await.unwrap();
            let next = two.mutex(&name);
            let waiting = tokio::task::spawn_blocking(move || {
                (
                    crate::keeper::caller_io::park::wait(next.lock().timeout(SOON)).unwrap(),
                    Instant::now(),
                )
            });
            until("the next one stands in line", || async {
                guard.is_lost()
                    || two.status(Kind::Lock, &name).await.is_ok_and(|it| it.waiters.len() == 1)
            })
            .await;
            // The holder learns of a proof: from then on it believes for longest.
            let mut left = guard.remaining().unwrap();
            let mut renewals = 0;
            until("the session was proven", || {
                let now = guard.remaining().unwrap();
                renewals += u32::from(now > left);
                left = now;
                let proven = renewals > counted % 3;
                std::future::ready(proven || guard.is_lost())
            })
            .await;
            if guard.is_lost() {
                drop(waiting.await.unwrap());
                continue;
            }
            ensemble.servers[follower].kill().unwrap();
            let believed = guard.deadline().unwrap();
            // One that was lost by then has no deadline any more.
            let mut counts = !guard.is_lost();
            guard.lost().await;
            let (second, granted) = waiting.await.unwrap();
            assert!(
                granted > believed || !counts,
                "believed until {:?} after the next one was in",
                believed - granted
            );
            println!(
                "round {round}: the next one was in {:?} after the deadline",
                granted - believed
            );
            let released = second.release().await;
            let is_lost = matches!(released, Released::AlreadyLost(_));
            assert!(released.is_clean() || is_lost, "{released:?}");
            counts &= released.is_clean();
            ensemble.servers[follower].restart().unwrap();
            counted += u32::from(counts);
        }
        assert_eq!(counted, 6, "so many rounds count");
    });
}
