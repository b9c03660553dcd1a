//! Keeping a connection: made again, with back-off, until it is closed.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::super::super::errors;
use super::Link;
use crate::engine::either::either;
use crate::words::id::ClaimId;

/// The first and the longest wait before a connection is tried again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Why nothing is sent any more once nobody keeps a link.
const GONE: &str = "the runtime that kept the connection has ended";

/// Whoever keeps a link has gone, perhaps with its runtime: nobody connects any more, and nobody is
/// to wait for that.
struct Down(Arc<Link>);

impl Drop for Down {
    fn drop(&mut self) {
        {
            let mut state = self.0.lock();
            state.pipe = None;
            state.why = Some(errors::unreachable(&self.0.options.address, GONE));
        }
        self.0.refuse_gathered(GONE);
        self.0.up.send_replace(false);
    }
}

impl Link {
    /// Keeps the link up until it is closed. `driver` drives the first connection, if there is one;
    /// `tell` hears of ups and downs.
    pub(in crate::engine) fn keep<D: Future<Output = String> + Send + 'static>(
        self: Arc<Self>,
        driver: Option<D>,
        tell: impl Fn(bool) + Send + Sync,
    ) -> impl Future<Output = ()> + Send {
        // From here on, and not only from the first poll: a runtime may end before that.
        let down = Down(self);
        async move {
            down.0.keep_up(driver, tell).await;
        }
    }

    async fn keep_up<D: Future<Output = String> + Send + 'static>(
        self: &Arc<Self>,
        driver: Option<D>,
        tell: impl Fn(bool) + Send + Sync,
    ) {
        let mut wait = BACK_OFF.0;
        if let Some(driver) = driver {
            self.drive(driver, &tell).await;
        }
        while !self.lock().closed {
            if let Ok(driver) = self.connect().await {
                tell(true);
                let since = Instant::now();
                self.drive(driver, &tell).await;
                if since.elapsed() > BACK_OFF.1 {
                    wait = BACK_OFF.0;
                }
            }
            // A little chance, so that a fleet does not come back in step.
            let jitter = ClaimId::fresh().0 as u64 % 1000;
            if let Some(password) = &self.options.password {
                wait = password.pause(&self.server(), wait, self.options.ttl);
            }
            let until = Instant::now() + wait.mul_f64(0.75 + jitter as f64 / 2000.0);
            let asleep = pin!(sleep_until(until));
            let ended = pin!(self.ended.notified());
            let moved = pin!(self.moved());
            wait = (wait * 2).min(BACK_OFF.1);
            if !self.lock().closed && either(either(asleep, ended), moved).await.is_err() {
                wait = BACK_OFF.0;
            }
        }
    }

    /// The same for a link that is not needed yet: nothing is connected before somebody wants it.
    pub(in crate::engine) async fn keep_once_wanted(
        self: Arc<Self>,
        tell: impl Fn(bool) + Send + Sync,
    ) {
        let mut wanted = self.wanted.subscribe();
        if wanted.wait_for(|wanted| *wanted).await.is_ok() {
            self.keep(None::<std::future::Pending<String>>, tell).await;
        }
    }

    /// Says that the link is needed.
    pub(in crate::engine) fn want(&self) {
        self.wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
    }

    async fn drive(&self, driver: impl Future<Output = String>, tell: &(impl Fn(bool) + Sync)) {
        let why = driver.await;
        {
            let mut state = self.lock();
            state.pipe = None;
            state.why = Some(errors::unreachable(&self.options.address, &why));
            drop(state);
            self.refuse_gathered(&why);
            if self.lock().closed {
                return;
            }
        }
        self.up.send_replace(false);
        tell(false);
    }
}
