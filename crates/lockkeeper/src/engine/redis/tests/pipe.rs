//! One connection alone, against a socket whose other end the test holds.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::super::pipe::{OnPush, Outcome, Pipe};
use super::super::resp::{Command, Value};
use super::support::PATIENCE;
use crate::engine::Took;
use crate::engine::stream::Stream;

/// A connection whose driver runs on a thread of its own, as the keeper's does.
struct Ours {
    pipe: Pipe,
    runtime: tokio::runtime::Handle,
    thread: JoinHandle<String>,
}

fn connected(reply_within: Duration, on_push: OnPush) -> (Ours, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stream = Stream::Unix(tokio::net::UnixStream::from_std(ours).unwrap());
            let (pipe, driver) = Pipe::new(stream, reply_within, on_push);
            tell.send((pipe, tokio::runtime::Handle::current())).unwrap();
            driver.await
        })
    });
    let (pipe, runtime) = told.recv().unwrap();
    (Ours { pipe, runtime, thread }, theirs)
}

impl Ours {
    fn send(&self, count: usize) -> Vec<oneshot::Receiver<Outcome>> {
        self.pipe.send(&vec![Command::new(["PING"]); count])
    }

    /// The driver's thread still does other things.
    fn goes_on(&self) -> bool {
        let (tell, told) = channel();
        self.runtime.spawn(async move { tell.send(()) });
        told.recv_timeout(PATIENCE).is_ok()
    }

    fn end(self) {
        self.pipe.close("the test is over");
        assert_eq!(self.thread.join().unwrap(), "the test is over");
    }
}

fn answer(receiver: oneshot::Receiver<Outcome>) -> Value {
    receiver.blocking_recv().unwrap().unwrap().1
}

fn no_push() -> OnPush {
    Arc::new(|_, _| {})
}

#[test]
fn a_message_of_many_commands_is_late_only_when_no_reply_comes_any_more() {
    let (ours, mut server) = connected(Duration::from_secs(3), no_push());
    let asked = ours.send(5);
    let answers = std::thread::spawn(move || {
        for n in 0..4 {
            std::thread::sleep(Duration::from_millis(1200));
            server.write_all(format!(":{n}\r\n").as_bytes()).unwrap();
        }
        server
    });
    let mut asked = asked.into_iter();
    for n in 0..4 {
        assert_eq!(
            answer(asked.next().unwrap()),
            Value::Integer(n),
            "the whole takes longer than one reply may"
        );
    }
    let broken = asked.next().unwrap().blocking_recv().unwrap().unwrap_err();
    assert!(format!("{broken:?}").contains("did not answer within"), "{broken:?}");
    drop(answers.join().unwrap());
    assert!(ours.thread.join().unwrap().contains("did not answer within"));
}

/// A push that keeps whoever reads it until the test lets it go.
fn held_push() -> (OnPush, Receiver<()>, Sender<()>) {
    let ((there, arrived), (go_on, may_go)) = (channel(), channel());
    let (there, may_go) = (Mutex::new(there), Mutex::new(may_go));
    let on_push: OnPush = Arc::new(move |_, _| {
        there.lock().unwrap().send(()).unwrap();
        _ = may_go.lock().unwrap().recv();
    });
    (on_push, arrived, go_on)
}

#[test]
fn a_caller_that_is_held_up_while_it_reads_does_not_hold_up_the_keepers_thread() {
    let (on_push, arrived, go_on) = held_push();
    let (ours, mut server) = connected(Duration::from_secs(60), on_push);
    let asked = ours.send(1).remove(0);
    let mut got = [0u8; 14];
    server.read_exact(&mut got).unwrap();
    let inlet = ours.pipe.inlet().unwrap();
    // The driver's thread is busy elsewhere, so that a caller reads the push.
    let (busy, until) = channel::<()>();
    let (there, on_it) = channel();
    ours.runtime.spawn(async move {
        there.send(()).unwrap();
        _ = until.recv();
    });
    on_it.recv().unwrap();
    server.write_all(b">1\r\n+hello\r\n").unwrap();
    let end = Instant::now() + PATIENCE;
    let reads =
        std::thread::spawn(
            move || while inlet.take(true) == Took::Nothing && Instant::now() < end {},
        );
    arrived.recv_timeout(PATIENCE).expect("the caller reads the push");
    drop(busy);
    server.write_all(b"+PONG\r\n").unwrap();
    assert!(ours.goes_on() && ours.goes_on(), "it waits for nobody who reads");
    // And what it left lying is read, by whom it may be.
    drop(go_on);
    assert_eq!(answer(asked), Value::Text(b"PONG".to_vec()));
    reads.join().unwrap();
    ours.end();
}
