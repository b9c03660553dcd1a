//! How long answers are waited for: one timer for all of them.
//!
//! A timer of the runtime's for each question would wake the keeper's thread, which sleeps until
//! something later. This one is set to the first end that is waited for, and stays set where that
//! wait is over sooner: the next one most often ends after it.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::engine::either::either;

/// See the module.
#[derive(Default)]
pub(super) struct Timer {
    waits: Mutex<Waits>,
    sooner: Notify,
}

#[derive(Default)]
struct Waits {
    drawn: u64,
    open: BTreeMap<(Instant, u64), Waker>,
    /// What it is set to.
    set: Option<Instant>,
    /// Nothing is waited for any more.
    closed: bool,
}

/// Ends at a time.
pub(super) struct Until<'a> {
    timer: &'a Timer,
    at: Instant,
    number: Option<u64>,
}

impl Timer {
    pub(super) fn until(&self, at: Instant) -> Until<'_> {
        Until { timer: self, at, number: None }
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends what is over, until [`Self::close`].
    pub(super) async fn run(&self) {
        loop {
            let first = {
                let mut waits = self.lock();
                if waits.closed {
                    return;
                }
                waits.set = waits.open.first_key_value().map(|((at, _), _)| *at);
                waits.set
            };
            let sooner = self.sooner.notified();
            match first {
                None => sooner.await,
                Some(at) => _ = either(pin!(sooner), pin!(sleep_until(at))).await,
            }
            self.end(Some(Instant::now()));
        }
    }

    /// Ends what is over by then, or all. A waker that panics takes no other along.
    fn end(&self, by: Option<Instant>) {
        while let Some(waker) = self.first_over(by) {
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!("whoever waits for a quorum panicked as it was woken");
            }
        }
    }

    fn first_over(&self, by: Option<Instant>) -> Option<Waker> {
        let mut waits = self.lock();
        let first = waits.open.first_entry()?;
        by.is_none_or(|by| first.key().0 <= by).then(|| first.remove())
    }

    /// Ends all that is waited for, and all that will be.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.end(None);
        self.sooner.notify_one();
    }
}

impl Future for Until<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.at <= Instant::now() {
            return Poll::Ready(());
        }
        // Made and dropped without the lock: that may be anybody's code.
        let waker = cx.waker().clone();
        let mut waits = self.timer.lock();
        if waits.closed {
            return Poll::Ready(());
        }
        if let Some(number) = self.number {
            let known = waits.open.get_mut(&(self.at, number));
            let before = known.map(|known| std::mem::replace(known, waker));
            drop(waits);
            return if before.is_some() { Poll::Pending } else { Poll::Ready(()) };
        }
        waits.drawn += 1;
        let number = waits.drawn;
        waits.open.insert((self.at, number), waker);
        let sooner = waits.set.is_none_or(|set| self.at < set);
        if sooner {
            waits.set = Some(self.at);
        }
        drop(waits);
        self.number = Some(number);
        if sooner {
            self.timer.sooner.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for Until<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.timer.lock().open.remove(&(self.at, number));
            // Outside of the lock.
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    const SHORT: Duration = Duration::from_millis(300);

    fn run<T>(timer: &Timer, test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let never = async {
                timer.run().await;
                std::future::pending::<()>().await;
            };
            match either(pin!(test), pin!(never)).await {
                Ok(done) => done,
                Err(()) => unreachable!("it runs until the test is over"),
            }
        })
    }

    #[test]
    fn each_wait_ends_at_its_time_and_a_later_one_does_not_keep_a_sooner_one() {
        let timer = Timer::default();
        run(&timer, async {
            let begun = Instant::now();
            let mut late = pin!(timer.until(begun + Duration::from_secs(3600)));
            let soon = timer.until(begun + SHORT);
            assert!(either(late.as_mut(), pin!(soon)).await.is_err());
            assert!(begun.elapsed() >= SHORT);
            timer.until(begun).await;
            assert_eq!(timer.lock().open.len(), 1, "what is over leaves nothing behind");
        });
    }

    #[test]
    fn it_stays_set_where_a_wait_is_over_sooner_and_calls_nobody_for_a_later_one() {
        let timer = Timer::default();
        let at = Instant::now() + SHORT;
        let begins = |at| {
            let mut until = pin!(timer.until(at));
            assert!(until.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        };
        begins(at);
        begins(at + SHORT);
        assert!(timer.lock().open.is_empty());
        assert_eq!(timer.lock().set, Some(at));
        run(&timer, timer.until(at + SHORT));
    }

    #[test]
    fn after_the_end_nothing_is_waited_for() {
        let timer = Timer::default();
        let far = Instant::now() + Duration::from_secs(3600);
        run(&timer, async {
            let mut until = pin!(timer.until(far));
            let first = std::future::poll_fn(|cx| Poll::Ready(until.as_mut().poll(cx)));
            assert!(first.await.is_pending());
            timer.close();
            until.await;
            timer.until(far).await;
        });
    }

    #[test]
    fn whoever_is_polled_late_is_over_without_the_timer() {
        let timer = Timer::default();
        let mut until = pin!(timer.until(Instant::now() + SHORT));
        let mut poll = || until.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        std::thread::sleep(SHORT);
        assert!(poll().is_ready());
    }

    #[test]
    fn one_that_panics_as_it_is_woken_takes_no_other_along() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("as it is meant to");
            }
        }
        #[derive(Default)]
        struct Woken(AtomicBool);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let (timer, woken) = (Timer::default(), Arc::new(Woken::default()));
        let far = Instant::now() + Duration::from_secs(3600);
        let (mut first, mut second) = (pin!(timer.until(far)), pin!(timer.until(far)));
        let polls = [
            first.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))),
            second.as_mut().poll(&mut Context::from_waker(&Waker::from(woken.clone()))),
        ];
        assert!(polls.iter().all(Poll::is_pending));
        timer.close();
        assert!(woken.0.load(Ordering::Relaxed));
    }
}
