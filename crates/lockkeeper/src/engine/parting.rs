//! What is being given back or left: whoever closes an engine waits for it, so that nothing of ours
//! is left behind (R6).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How often it is looked whether it is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How many releases and withdrawals are on their way.
#[derive(Clone, Debug, Default)]
pub(super) struct Partings(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Parting(Arc<AtomicUsize>);

impl Partings {
    pub(super) fn begin(&self) -> Parting {
        self.0.fetch_add(1, Ordering::AcqRel);
        Parting(self.0.clone())
    }

    /// Counts this one from here on, and not from its first poll: closing may come before that, and
    /// so may the end of the process, because the keeper's thread sends it.
    #[cfg(feature = "postgres")]
    pub(super) fn count<F: Future>(&self, ends: F) -> impl Future<Output = F::Output> + use<F> {
        let counted = (self.begin(), super::at_exit::AtRisk::begin());
        async move {
            let end = ends.await;
            drop(counted);
            end
        }
    }

    /// Waits until none is on its way, or none can be sent any more, or for this long.
    pub(super) async fn settled(&self, within: Duration, can_send: impl Fn() -> bool) {
        let until = Instant::now() + within;
        while self.0.load(Ordering::Acquire) > 0 && can_send() && Instant::now() < until {
            sleep(LOOK_AGAIN).await;
        }
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon(ends: impl Future<Output = ()>) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let within = async { tokio::time::timeout(Duration::from_secs(120), ends).await };
        runtime.block_on(within).is_ok()
    }

    #[test]
    fn r6_what_is_not_polled_yet_is_waited_for() {
        let partings = Partings::default();
        let (one, two) = (partings.begin(), partings.clone().begin());
        drop(one);
        assert!(soon(async {
            let settled = partings.settled(Duration::from_secs(60), || true);
            let mut settled = std::pin::pin!(settled);
            let early = Duration::from_millis(20);
            assert!(tokio::time::timeout(early, settled.as_mut()).await.is_err(), "one is left");
            drop(two);
            settled.await;
        }));
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn what_is_counted_is_over_with_its_future_polled_or_dropped() {
        let partings = Partings::default();
        let (polled, dropped) = (partings.count(async { 7 }), partings.count(async { 8 }));
        assert_eq!(partings.0.load(Ordering::Acquire), 2, "before their first poll");
        drop(dropped);
        assert!(soon(async { assert_eq!(polled.await, 7) }));
        assert_eq!(partings.0.load(Ordering::Acquire), 0);
    }

    #[test]
    fn nothing_is_waited_for_that_cannot_be_sent_nor_for_longer_than_said() {
        let partings = Partings::default();
        let _parting = partings.begin();
        assert!(soon(partings.settled(Duration::from_secs(60), || false)));
        assert!(soon(partings.settled(Duration::from_millis(5), || true)));
    }
}
