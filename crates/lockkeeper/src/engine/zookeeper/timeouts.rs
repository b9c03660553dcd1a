//! How long answers are waited for: one timer for all of them.
//!
//! A timer for each request would wake the keeper's thread, which sleeps until something later.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// See the module.
pub(super) struct Patience {
    time: Duration,
    waits: Mutex<Waits>,
    wanted: Notify,
}

#[derive(Default)]
struct Waits {
    drawn: u64,
    /// In the order of asking, which is that of their ends: all may take as long.
    open: BTreeMap<u64, (Instant, Waker)>,
    /// The timer is not set.
    dozing: bool,
    /// Nothing is waited for any more.
    closed: bool,
}

/// One answer that is waited for.
struct Wait<'a> {
    patience: &'a Patience,
    number: Option<u64>,
}

impl Patience {
    pub(super) fn new(time: Duration) -> Self {
        Self { time, waits: Mutex::default(), wanted: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, if it comes in time.
    pub(super) async fn within<T>(&self, mut answer: oneshot::Receiver<T>) -> Option<T> {
        let mut wait = Wait { patience: self, number: None };
        let came = std::future::poll_fn(|cx| match Pin::new(&mut answer).poll(cx) {
            Poll::Ready(came) => Poll::Ready(Some(came.ok())),
            Poll::Pending => wait.poll_over(cx).map(|()| None),
        });
        if let Some(came) = came.await {
            return came;
        }
        // From here on it is told in another way; one that was sent a moment ago is taken.
        answer.close();
        answer.try_recv().ok()
    }

    /// Ends what is overdue, until [`Self::close`].
    pub(super) async fn watch(&self) {
        loop {
            let first = {
                let mut waits = self.lock();
                if waits.closed {
                    return;
                }
                let first = waits.open.first_key_value().map(|(_, (until, _))| *until);
                waits.dozing = first.is_none();
                first
            };
            match first {
                None => self.wanted.notified().await,
                Some(until) => {
                    tokio::time::sleep_until(until).await;
                    self.end_until(Some(Instant::now()));
                }
            }
        }
    }

    fn end_until(&self, now: Option<Instant>) {
        let mut over = Vec::new();
        let mut waits = self.lock();
        while let Some(first) =
            waits.open.first_entry().filter(|first| now.is_none_or(|now| first.get().0 <= now))
        {
            over.push(first.remove().1);
        }
        drop(waits);
        over.into_iter().for_each(Waker::wake);
    }

    /// Ends all that is waited for, and all that will be.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.end_until(None);
        self.wanted.notify_one();
    }
}

impl Wait<'_> {
    fn poll_over(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut waits = self.patience.lock();
        if waits.closed {
            return Poll::Ready(());
        }
        if let Some(number) = self.number {
            let Some((_, waker)) = waits.open.get_mut(&number) else { return Poll::Ready(()) };
            waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        waits.drawn += 1;
        let number = waits.drawn;
        self.number = Some(number);
        waits.open.insert(number, (Instant::now() + self.patience.time, cx.waker().clone()));
        if std::mem::take(&mut waits.dozing) {
            drop(waits);
            self.patience.wanted.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.patience.lock().open.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(60);

    fn run<T>(patience: &Patience, test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut test, mut watch) = (std::pin::pin!(test), std::pin::pin!(patience.watch()));
            std::future::poll_fn(|cx| {
                _ = watch.as_mut().poll(cx);
                test.as_mut().poll(cx)
            })
            .await
        })
    }

    #[test]
    fn each_answer_is_waited_for_as_long_and_no_longer() {
        let patience = Patience::new(SHORT);
        run(&patience, async {
            for _ in 0..2 {
                let (sender, answer) = oneshot::channel::<u32>();
                let begun = Instant::now();
                assert_eq!(patience.within(answer).await, None);
                assert!(begun.elapsed() >= SHORT);
                assert!(sender.is_closed(), "whoever answers now has to tell it in another way");
            }
            assert!(patience.lock().open.is_empty());
        });
    }

    #[test]
    fn an_answer_that_is_there_is_taken_and_leaves_no_timer() {
        let patience = Patience::new(SHORT);
        run(&patience, async {
            let (sender, answer) = oneshot::channel();
            let mut waits = std::pin::pin!(patience.within(answer));
            assert!(
                std::future::poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx).is_pending())).await
            );
            assert_eq!(patience.lock().open.len(), 1);
            sender.send(7).unwrap();
            assert_eq!(waits.await, Some(7));
            assert!(patience.lock().open.is_empty());
        });
    }

    #[test]
    fn after_the_end_nothing_is_waited_for() {
        let patience = Patience::new(Duration::from_secs(3600));
        run(&patience, async {
            let (_first, answer) = oneshot::channel::<u32>();
            let mut waits = std::pin::pin!(patience.within(answer));
            assert!(
                std::future::poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx).is_pending())).await
            );
            patience.close();
            assert_eq!(waits.await, None);
            let (_second, answer) = oneshot::channel::<u32>();
            assert_eq!(patience.within(answer).await, None);
        });
    }
}
