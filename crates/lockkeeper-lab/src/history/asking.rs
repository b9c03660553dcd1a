//! Which claim an acquire asked for, so that checks and effects can be written down under its
//! number.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;

#[derive(Clone, Copy, Default)]
struct Asking {
    owner: u64,
    claim: u64,
}

thread_local! {
    static ASKING: Cell<Asking> = const { Cell::new(Asking { owner: 0, claim: 0 }) };
}

/// Awaits an acquire of a recorded [`Locks`](lockkeeper::Locks), and answers beside what it came to
/// the number under which the [`Recorder`](super::Recorder) writes its claim down: checks and
/// effects of the turn carry it, too. It is 0 for one that asked for nothing, such as a re-entrant
/// one.
///
/// `owner` is written down as its explicit owner; 0 for none. Claims of the same owner do not
/// exclude each other.
///
/// # Cancel safety
/// As cancel-safe as `acquire` itself.
///
/// ```
/// # async fn example(locks: lockkeeper::Locks) -> lockkeeper::Result<()> {
/// use lockkeeper_lab::history::asked;
/// let (acquired, claim) = asked(0, locks.mutex("stock/1").lock()).await;
/// let guard = acquired?;
/// # let _ = (guard, claim); Ok(()) }
/// ```
pub async fn asked<F: IntoFuture>(owner: u64, acquire: F) -> (F::Output, u64) {
    let mut acquire = pin!(acquire.into_future());
    let mut claim = 0;
    let done = poll_fn(|context| {
        // The library asks, and tells the observer of it, in the task that awaits.
        let _outside = Outside(ASKING.replace(Asking { owner, claim }));
        let polled = acquire.as_mut().poll(context);
        claim = ASKING.get().claim;
        polled
    });
    (done.await, claim)
}

/// Notes that a claim is asked for; answers its owner.
pub(super) fn note(claim: u64) -> u64 {
    let Asking { owner, .. } = ASKING.get();
    ASKING.set(Asking { owner, claim });
    owner
}

/// What was being asked for around this poll.
struct Outside(Asking);

impl Drop for Outside {
    fn drop(&mut self) {
        ASKING.set(self.0);
    }
}
