//! What is done again and again while a fault lasts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that repeats something until this is dropped.
pub(crate) struct Storm {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Storm {
    pub(crate) fn begin(
        every: Duration,
        mut act: impl FnMut() + Send + 'static,
    ) -> Result<Self, String> {
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let work = move || {
            while !told.load(Ordering::Acquire) {
                act();
                std::thread::park_timeout(every);
            }
        };
        let thread = std::thread::Builder::new()
            .name("storm".to_owned())
            .spawn(work)
            .map_err(|e| e.to_string())?;
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
