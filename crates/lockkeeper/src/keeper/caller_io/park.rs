//! How a thread waits for a future: parked, or in a poll of the socket on which the answer comes.

use std::cell::RefCell;
use std::future::{Future, IntoFuture};
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::engine::{Inlet, Took};
use crate::words::id::fork_generation;

/// Awake, or parked: a wake unparks.
const AWAKE: u8 = 0;
/// In a poll: a wake writes to the event.
const POLLING: u8 = 1;
/// A wake came.
const WOKEN: u8 = 2;

/// Where a thread sits while it waits.
struct Seat {
    /// In which process: a child of it has the same event.
    born: u32,
    thread: Thread,
    state: AtomicU8,
    event: OnceLock<EventFd>,
}

/// What the future of this thread and its wait tell each other.
#[derive(Default)]
struct Attending {
    /// How many waits of this thread are under way, one inside the other.
    depth: u32,
    /// The socket ended the last sleep.
    readable: bool,
    /// What the next sleep is to watch.
    inlet: Option<Arc<dyn Inlet>>,
}

thread_local! {
    static SEAT: RefCell<Option<Arc<Seat>>> = const { RefCell::new(None) };
    static ATTENDING: RefCell<Attending> = RefCell::default();
}

/// The seat of this thread. One from before a fork shares its event with the parent, who would take
/// its wakes (R15).
fn seat_of(process: u32) -> Arc<Seat> {
    SEAT.take().filter(|seat| seat.born == process).unwrap_or_else(|| Arc::new(Seat::new(process)))
}

/// Waits for a future on this thread.
pub(crate) fn wait<F: IntoFuture>(future: F) -> F::Output {
    struct Leaves;
    impl Drop for Leaves {
        fn drop(&mut self) {
            let left = ATTENDING.with_borrow_mut(|attending| {
                attending.depth -= 1;
                attending.readable = false;
                attending.inlet.take()
            });
            if let Some(inlet) = left {
                inlet.unwatch();
            }
        }
    }
    // A wait inside a wait has a seat of its own, or it would take the other's wakes.
    let seat = seat_of(fork_generation());
    ATTENDING.with_borrow_mut(|attending| attending.depth += 1);
    let leaves = Leaves;
    let waker = Waker::from(seat.clone());
    let mut context = Context::from_waker(&waker);
    let value = {
        let mut future = pin!(future.into_future());
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                break value;
            }
            match ATTENDING.with_borrow_mut(|attending| attending.inlet.take()) {
                Some(inlet) => {
                    let readable = seat.poll(&*inlet);
                    inlet.unwatch();
                    ATTENDING.with_borrow_mut(|attending| attending.readable = readable);
                }
                None => seat.park(),
            }
        }
    };
    drop(leaves);
    SEAT.set(Some(seat));
    value
}

/// Whether this thread waits in [`wait`].
pub(crate) fn is_waiting() -> bool {
    ATTENDING.try_with(|attending| attending.borrow().depth > 0).unwrap_or(false)
}

/// Reads in this thread if it was woken for that; otherwise its next sleep ends when something
/// comes.
pub(crate) fn read_or_watch(inlet: Arc<dyn Inlet>) -> bool {
    let readable = ATTENDING.with_borrow_mut(|attending| std::mem::take(&mut attending.readable));
    let took = if readable { inlet.take(true) } else { Took::Nothing };
    match took {
        Took::Something => return true,
        // One thread watches, or everybody would wake up for everything; the keeper reads for the
        // others.
        Took::Nothing if inlet.watch() => {
            // Of another engine whose answer this thread waits for, too.
            if let Some(other) =
                ATTENDING.with_borrow_mut(|attending| attending.inlet.replace(inlet))
            {
                other.unwatch();
            }
        }
        Took::Nothing => {}
        // The keeper finds out why, and tells.
        Took::Over => {}
    }
    false
}

impl Seat {
    fn new(born: u32) -> Self {
        Self {
            born,
            thread: std::thread::current(),
            state: AtomicU8::new(AWAKE),
            event: OnceLock::new(),
        }
    }

    fn park(&self) {
        if self.state.load(Ordering::Acquire) != WOKEN {
            std::thread::park();
        }
        self.state.store(AWAKE, Ordering::Release);
    }

    /// Until something can be read, or a wake; says whether it was that something can be read.
    fn poll(&self, inlet: &dyn Inlet) -> bool {
        let (Some(socket), Some(event)) = (inlet.socket(), self.event()) else {
            self.park();
            return false;
        };
        if self.state.compare_exchange(AWAKE, POLLING, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            self.state.store(AWAKE, Ordering::Release);
            return false;
        }
        let mut polled = [
            PollFd::new(event.as_fd(), PollFlags::POLLIN),
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
        ];
        // Interrupted by a signal, it looks again.
        let _ = nix::poll::poll(&mut polled, PollTimeout::NONE);
        let [woken, readable] = polled.map(|one| one.any().unwrap_or(false));
        self.state.store(AWAKE, Ordering::Release);
        if woken {
            // What it counts is of no interest.
            let _ = event.read();
        }
        readable
    }

    fn event(&self) -> Option<&EventFd> {
        if self.event.get().is_none() {
            let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).ok()?;
            // Only this thread puts one there.
            let _ = self.event.set(event);
        }
        self.event.get()
    }
}

impl Wake for Seat {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match (self.state.swap(WOKEN, Ordering::AcqRel), self.event.get()) {
            (POLLING, Some(event)) => {
                // It fails only when it counts too many wakes already.
                let _ = event.write(1);
            }
            _ => self.thread.unpark(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r15_a_child_does_not_take_the_wakes_of_its_parent() {
        let parents = seat_of(0);
        assert!(parents.event().is_some());
        SEAT.set(Some(parents.clone()));
        let again = seat_of(0);
        assert!(Arc::ptr_eq(&parents, &again), "the parent keeps its own");
        SEAT.set(Some(again));
        let childs = seat_of(1);
        assert!(
            !Arc::ptr_eq(&parents, &childs) && childs.event.get().is_none(),
            "the child gets another, with an event of its own"
        );
    }
}
