//! Callers that write their own requests and read their own answers, while the driver does nothing.

use std::os::fd::AsFd;
use std::pin::pin;
use std::task::{Poll, Waker};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::engine::Took;

/// Polls a future in this thread, which reads whatever comes in between.
fn read_until_done<T>(engine: &ZooKeeper, future: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) =
            future.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop()))
        {
            return value;
        }
        assert!(begun.elapsed() < SOON, "no answer came");
        let inlet = engine.inlet().unwrap();
        poll(
            &mut [PollFd::new(inlet.socket().unwrap().as_fd(), PollFlags::POLLIN)],
            PollTimeout::from(1_000u16),
        )
        .unwrap();
        inlet.take(true);
    }
}

/// A runtime that runs only while it is told to, and a client whose driver lives there.
fn client_at_rest() -> (tokio::runtime::Runtime, Place, Client) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (place, client) = runtime.block_on(async {
        let place = Place::new().await;
        let client = place.client().await;
        // The directory is there, and the driver has nothing left to say.
        let first = claim("a");
        client.lock(&first).await;
        assert!(matches!(client.release(&first).await, End::Freed));
        (place, client)
    });
    (runtime, place, client)
}

#[test]
fn a_caller_takes_a_lock_and_gives_it_back_while_the_driver_does_nothing() {
    let (runtime, _place, client) = client_at_rest();
    let mine = claim("a");
    let got = read_until_done(&client.engine, client.attempt(&mine, Line::Join));
    assert!(matches!(got, Attempt::Granted(_)), "{got:?}");
    let end = read_until_done(&client.engine, client.release(&mine));
    assert!(matches!(end, End::Freed));
    runtime.block_on(client.close());
    assert!(client.engine.inlet().is_none(), "nothing can be read after the end");
}

#[test]
fn a_grant_that_a_caller_reads_is_told_in_its_thread_and_no_call_tells_one() {
    let (runtime, place, client) = client_at_rest();
    let (holder, held) = runtime.block_on(async {
        let holder = place.client().await;
        let held = claim("a");
        holder.lock(&held).await;
        (holder, held)
    });
    let waits = claim("a");
    let place_in_line = read_until_done(&client.engine, client.attempt(&waits, Line::Join));
    assert!(matches!(place_in_line, Attempt::InLine(_)), "{place_in_line:?}");
    // Until its watches stand.
    read_until_done(&client.engine, client.read(Kind::Lock, "a"));
    read_until_done(&holder.engine, holder.release(&held));
    assert!(client.is_quiet_about(waits.id), "nobody has read of it");
    let told = || if client.is_quiet_about(waits.id) { Poll::Pending } else { Poll::Ready(()) };
    read_until_done(&client.engine, std::future::poll_fn(|_| told()));
    runtime.block_on(async {
        assert!(matches!(client.release(&waits).await, End::Freed));
        client.close().await;
        holder.close().await;
    });
}

#[test]
fn a_caller_that_finds_the_end_of_the_stream_leaves_it_to_the_driver() {
    let (runtime, place, client) = client_at_rest();
    let (proxy, behind) = runtime.block_on(place.client_behind_a_proxy(""));
    proxy.cut_clients();
    // Its driver finds it later; the caller is not kept busy by the end of the stream.
    let inlet = behind.engine.inlet().unwrap();
    poll(
        &mut [PollFd::new(inlet.socket().unwrap().as_fd(), PollFlags::POLLIN)],
        PollTimeout::from(10_000u16),
    )
    .unwrap();
    assert_eq!(inlet.take(true), Took::Over);
    runtime.block_on(async {
        let mine = claim("a");
        behind.lock(&mine).await;
        assert!(matches!(behind.release(&mine).await, End::Freed));
        behind.close().await;
        client.close().await;
    });
}
