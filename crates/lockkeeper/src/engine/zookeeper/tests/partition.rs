//! A follower that is cut off from its leader goes on answering its clients, and knows nothing of
//! what they lost.

use super::*;
use crate::{Guard, Locks, Released};

/// A lock on a server of an ensemble, whose answers are waited for however late they are.
async fn open_at(ensemble: &Ensemble, server: usize, options: &str) -> Locks {
    let address = ensemble.servers[server].address();
    let url = format!("zk://{address}?connect_timeout=2m&request_timeout=4m&{options}");
    Locks::open(&url).await.unwrap()
}

/// Who waits for a name in a thread of its own, so that neither time is taken late because the
/// other one is; it answers when it was in.
fn waits(locks: &Locks, name: &str) -> tokio::task::JoinHandle<(Guard, Instant)> {
    let next = locks.mutex(name);
    tokio::task::spawn_blocking(move || {
        let guard = crate::keeper::caller_io::park::wait(next.lock().timeout(SOON));
        (guard.unwrap(), Instant::now())
    })
}

/// Waits until somebody stands in line behind a holder, or it has lost its lock.
async fn until_next_or_lost(locks: &Locks, name: &str, guard: &Guard) {
    until("the next one stands in line", || async {
        guard.is_lost()
            || locks.status(Kind::Lock, name).await.is_ok_and(|it| it.waiters.len() == 1)
    })
    .await;
}

/// Waits until a server of three leads; answers which, and one that follows.
async fn leader_and_follower(ensemble: &Ensemble) -> (usize, usize) {
    let leader = leader_of(ensemble).await;
    (leader, (0..3).find(|server| *server != leader).unwrap())
}

#[test]
fn z1_a_holder_on_a_follower_that_is_cut_off_is_told_before_the_next_one_is_in() {
    run(async {
        // A follower gives up after 60 ticks of half a second; the session lasts 4 s.
        let (ensemble, links) =
            Ensemble::start_apart(3, &Settings { sync_limit: 60, ..Settings::default() }).unwrap();
        let (leader, follower) = leader_and_follower(&ensemble).await;
        let session = "session_timeout=4s";
        let one = open_at(&ensemble, follower, session).await;
        let two = open_at(&ensemble, leader, session).await;
        // Where the session ended before anybody was cut off, once more.
        let mut round = 0;
        let (guard, waiting) = loop {
            assert!(round < 20, "the session lasts");
            let name = format!("x{round}");
            let guard = one.mutex(&name).lock().await.unwrap();
            let waiting = waits(&two, &name);
            until_next_or_lost(&two, &name, &guard).await;
            if !guard.is_lost() {
                break (guard, waiting);
            }
            drop(waiting.await.unwrap());
            round += 1;
        };
        links.cut_off(follower);
        let cut = Instant::now();
        guard.lost().await;
        let told = Instant::now();
        let follows = || ensemble.servers[follower].mode().as_deref() == Some("follower");
        until("it serves on, and answered every ping", async || follows()).await;
        let (second, granted) = waiting.await.unwrap();
        assert!(
            told < granted,
            "told after {:?}, the next one was in after {:?}",
            told - cut,
            granted - cut
        );
        until("also when somebody else has the lock", async || follows()).await;
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
        let (mut counted, mut round) = (0, 0);
        while counted < 6 {
            assert!(round < 60, "{counted} rounds count");
            round += 1;
            let (leader, follower) = leader_and_follower(&ensemble).await;
            let session = "session_timeout=1s&drift=1%25";
            let one = open_at(&ensemble, follower, session).await;
            let two = open_at(&ensemble, leader, session).await;
            let name = format!("x{round}");
            let guard = one.mutex(&name).lock().await.unwrap();
            let waiting = waits(&two, &name);
            until_next_or_lost(&two, &name, &guard).await;
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
    });
}
