//! Waiting for the first of two.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Whichever is ready first; the first of them if both are.
pub(super) async fn either<A: Future, B: Future>(a: A, b: B) -> Result<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| {
        if let Poll::Ready(done) = a.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        b.as_mut().poll(cx).map(Err)
    })
    .await
}
