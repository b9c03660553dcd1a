//! How much of the session is left at any time.

use super::*;
use crate::protocol::margin;
use crate::{Guard, Locks};

/// Long enough that what a busy machine takes for an answer is less than the reserve, half a
/// second.
const SESSION: Duration = Duration::from_secs(8);

#[test]
fn timed_r1_a_guard_on_a_healthy_server_never_has_less_than_its_floor() {
    run(async {
        let place = Place::new().await;
        let url = place.url("session_timeout=8s");
        // Each in a session of its own: what one asks for must not help the others.
        let mut guards: Vec<(Option<Duration>, Guard, Locks)> = Vec::new();
        for (at, margin) in
            [None, Some(SESSION / 15), Some(SESSION / 4), Some(SESSION / 3)].into_iter().enumerate()
        {
            let locks = Locks::open(&url).await.unwrap();
            let wait = locks.mutex(format!("x{at}")).lock();
            let wait = margin.into_iter().fold(wait, crate::Acquire::margin);
            guards.push((margin, wait.await.unwrap(), locks));
        }
        // What others' writes take, those that prove a session may take, too; also the one that is
        // on its way.
        let asks = Locks::open(&url).await.unwrap();
        let writes = Arc::new(Mutex::new((Duration::ZERO, Instant::now())));
        let written = writes.clone();
        tokio::spawn(async move {
            loop {
                written.lock().unwrap().1 = Instant::now();
                assert!(asks.mutex("y").lock().await.unwrap().release().await.is_clean());
                {
                    let (longest, asked) = &mut *written.lock().unwrap();
                    *longest = asked.elapsed().max(*longest);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let slowest = || {
            let (longest, asked) = *writes.lock().unwrap();
            longest.max(asked.elapsed())
        };
        let begun = Instant::now();
        let mut looked = begun;
        while begun.elapsed() < SESSION * 5 / 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            for (margin, guard, _) in &guards {
                let (left, floor) = (guard.remaining().unwrap(), margin::floor(SESSION, *margin));
                // What this thread was kept from doing, the keeper's may have been, too.
                let kept = looked.elapsed() + slowest();
                assert!(left + kept > floor, "{margin:?}: {left:?} and {kept:?} of {floor:?}");
                assert_eq!(guard.held().lease_ttl(), Some(SESSION), "the whole session");
            }
            looked = Instant::now();
        }
    });
}

#[test]
fn a_margin_that_the_session_cannot_give_is_refused_before_anything_is_sent() {
    run(async {
        let place = Place::new().await;
        // A server of half a second's ticks gives 10 s at most.
        let locks = Locks::open(&place.url("session_timeout=60s")).await.unwrap();
        assert_eq!(locks.describe().expiry.session(), Some(Duration::from_secs(10)));
        let refused = locks.mutex("x").lock().margin(Duration::from_secs(4)).await.unwrap_err();
        assert_eq!(refused.kind(), crate::ErrorKind::InvalidArgument);
        assert!(refused.message().contains("third of the session"), "{refused}");
        assert!(locks.mutex("x").lock().margin(Duration::from_secs(3)).await.is_ok());
    });
}

#[test]
fn a_margin_that_the_drift_allowance_does_not_leave_is_refused_also_the_default() {
    run(async {
        let place = Place::new().await;
        let locks = Locks::open(&place.url("session_timeout=8s&drift=32%25")).await.unwrap();
        assert!(locks.mutex("x").lock().await.unwrap().release().await.is_clean());
        let locks = Locks::open(&place.url("session_timeout=8s&drift=50%25")).await.unwrap();
        let refused = locks.mutex("x").lock().await.unwrap_err();
        assert_eq!(refused.kind(), crate::ErrorKind::InvalidArgument);
        let why = "drift=50% leaves a session of 8s no margin of 1.6s: lower drift or the margin";
        assert!(refused.message().contains(why), "{refused}");
        assert!(
            locks
                .mutex("x")
                .lock()
                .margin(Duration::ZERO)
                .await
                .unwrap()
                .release()
                .await
                .is_clean()
        );
        // A fixed hold is not renewed: it takes what there is.
        assert!(locks.mutex("x").lock().no_renew().await.is_ok());
    });
}
