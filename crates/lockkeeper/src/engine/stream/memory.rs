//! Streams of a test's own making, under names that lead to the test: a simulation decides when
//! what is written arrives, and when what it answers is read.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::ReadBuf;

/// The test's side of a stream.
pub(crate) trait Far: Send + Sync {
    /// This was written.
    fn wrote(&self, bytes: &[u8]);

    /// Nobody reads or writes any more.
    fn closed(&self);
}

/// The side that is dialled. Clones are the same.
#[derive(Clone)]
pub(crate) struct Near(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    state: Mutex<State>,
    far: Box<dyn Far>,
}

#[derive(Default)]
struct State {
    inbox: VecDeque<u8>,
    ended: bool,
    reader: Option<Waker>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.far.closed();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// This can be read from now on.
    pub(crate) fn hand_in(&self, bytes: &[u8]) {
        self.change(|state| state.inbox.extend(bytes));
    }

    /// The stream ends behind what was handed in.
    pub(crate) fn end(&self) {
        self.change(|state| state.ended = true);
    }
}

impl Near {
    pub(crate) fn new(far: impl Far + 'static) -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), far: Box::new(far) }))
    }

    pub(super) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        if state.inbox.is_empty() && !state.ended {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let length = into.remaining().min(state.inbox.len());
        let bytes: Vec<u8> = state.inbox.drain(..length).collect();
        into.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.lock().ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.0.far.wrote(bytes);
        Ok(bytes.len())
    }
}

type Dial = Box<dyn Fn(&str) -> Option<io::Result<Near>>>;

thread_local! {
    static DIAL: RefCell<Option<Dial>> = const { RefCell::new(None) };
}

/// From now on this thread dials names that the test knows this way.
pub(crate) fn dial_by(dial: Option<Dial>) {
    DIAL.set(dial);
}

pub(crate) fn dial(host: &str) -> Option<io::Result<Near>> {
    DIAL.with_borrow(|dial| dial.as_ref()?(host))
}
