//! A runtime of one thread for what goes on beside the controller.

use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Runs tasks until it is dropped.
pub(super) struct Background {
    handle: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub(super) fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, (end, over)) = (runtime.handle().clone(), oneshot::channel());
        // It ends with a word, or with whoever would have said it.
        let work = move || drop(runtime.block_on(over));
        let thread = std::thread::Builder::new().name("background".to_owned()).spawn(work)?;
        Ok(Self { handle, end: Some(end), thread: Some(thread) })
    }

    /// Waits for something that is done there.
    pub(super) fn block_on<F: Future>(&self, work: F) -> F::Output {
        self.handle.block_on(work)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
