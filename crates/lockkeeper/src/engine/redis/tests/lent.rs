//! Who reads the answer for a caller that waits behind a guard of its own process.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::task::Poll;

use super::keeper::{in_time, run, stuck};
use super::server::RedisServer;
use super::support::{PATIENCE, until};
use crate::observe::{Observer, Seen};
use crate::{Kind, Locks, Name, Ticks};

/// Tells when somebody waits.
struct Waits(std::sync::mpsc::Sender<()>);

impl Observer for Waits {
    fn seen(&self, _: Ticks, _: Kind, _: &Name, what: &Seen) {
        if matches!(what, Seen::Waiting { .. }) {
            let _ = self.0.send(());
        }
    }
}

#[test]
fn a_task_behind_a_guard_of_its_process_reads_its_answer_itself_once_the_server_is_asked() {
    let server = RedisServer::start();
    let (tell, told) = std::sync::mpsc::channel();
    let locks = Locks::builder().io_enabled().hand_off(0).observer(Arc::new(Waits(tell)));
    let locks = run(locks.open(&server.url())).unwrap();
    // The first time the server learns the scripts.
    for round in 0..2 {
        let mutex = locks.mutex("a");
        let guard = run(mutex.lock().into_future()).unwrap();
        let waiting = std::thread::spawn(move || in_time(move || run(mutex.lock().into_future())));
        // Nobody is asked for it so far.
        told.recv_timeout(PATIENCE).unwrap();
        let go_on = (round == 1).then(|| stuck(&locks));
        drop(guard);
        let guard = waiting.join().unwrap().unwrap();
        drop(go_on);
        assert!(run(guard.release()).is_clean());
        while told.try_recv().is_ok() {}
    }
    assert!(run(locks.close()).unknown.is_empty());
}

#[test]
fn a_task_that_gets_the_place_of_one_that_left_reads_its_answer_itself() {
    let server = RedisServer::start();
    let other = run(Locks::open(&server.url())).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let locks = Locks::builder().io_enabled().hand_off(0).observer(Arc::new(Waits(tell)));
    let locks = run(locks.open(&server.url())).unwrap();
    let mutex = locks.mutex("a");
    let guard = run(mutex.lock().into_future()).unwrap();
    // Two wait behind a guard of their own process, and nobody is asked for either.
    let mut first = Box::pin(mutex.lock().into_future());
    let waits = run(std::future::poll_fn(|cx| Poll::Ready(first.as_mut().poll(cx).is_pending())));
    assert!(waits);
    told.recv_timeout(PATIENCE).unwrap();
    let behind = mutex.clone();
    let waiting = std::thread::spawn(move || in_time(move || run(behind.lock().into_future())));
    told.recv_timeout(PATIENCE).unwrap();
    // Somebody else has it next, and the first of the two stands in line for it.
    let line = || server.command(&["ZRANGE", "lockkeeper:{lock:a}:line", "0", "-1"]).concat();
    let theirs = other.mutex("a");
    let next = std::thread::spawn(move || in_time(move || run(theirs.lock().into_future())));
    until("the other process stands in line", || !line().is_empty());
    let stood = line();
    drop(guard);
    let held = next.join().unwrap().unwrap();
    until("the first stands in line", || !line().is_empty() && line() != stood);
    let go_on = stuck(&locks);
    drop(first);
    assert!(run(held.release()).is_clean());
    let guard = waiting.join().unwrap().unwrap();
    drop(go_on);
    assert!(run(guard.release()).is_clean());
    assert!(run(locks.close()).unknown.is_empty() && run(other.close()).unknown.is_empty());
}
