//! One connection alone, against a socket whose other end the test holds.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::super::pipe::{Kind, OnPush, Outcome, Pipe, Together};
use super::super::resp::{Command, Value};
use super::many::{FAR, take};
use super::support::{PATIENCE, until};
use crate::engine::stream::Stream;
use crate::engine::{Took, while_lending};
use crate::words::id::ClaimId;

/// A connection whose driver runs on a thread of its own, as the keeper's does.
pub(in crate::engine) struct Ours {
    pub(super) pipe: Pipe,
    runtime: tokio::runtime::Handle,
    thread: JoinHandle<String>,
}

pub(super) fn connected(reply_within: Duration, on_push: OnPush) -> (Ours, UnixStream) {
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
    pub(super) fn send(&self, count: usize) -> Vec<oneshot::Receiver<Outcome>> {
        self.pipe.send(&vec![Command::new(["PING"]); count])
    }

    /// The driver's thread still does other things.
    fn goes_on(&self) -> bool {
        let (tell, told) = channel();
        self.runtime.spawn(async move { tell.send(()) });
        told.recv_timeout(PATIENCE).is_ok()
    }

    pub(super) fn end(self) {
        self.pipe.close("the test is over");
        assert_eq!(self.thread.join().unwrap(), "the test is over");
    }
}

pub(in crate::engine) fn answer(receiver: oneshot::Receiver<Outcome>) -> Value {
    receiver.blocking_recv().unwrap().unwrap().1
}

pub(super) fn no_push() -> OnPush {
    Arc::new(|_, _| {})
}

#[test]
fn a_message_of_many_commands_is_late_only_when_no_reply_comes_any_more() {
    // Again where one of those that come was late as well.
    until("they come in time", || {
        let (ours, mut server) = connected(Duration::from_secs(3), no_push());
        let (asked, began) = (ours.send(5), Instant::now());
        let answers = std::thread::spawn(move || {
            for n in 0..4 {
                std::thread::sleep(Duration::from_millis(1200));
                // Nobody reads what is late.
                let _ = server.write_all(format!(":{n}\r\n").as_bytes());
            }
            server
        });
        let mut told: Vec<Outcome> =
            asked.into_iter().map(|one| one.blocking_recv().unwrap()).collect();
        let broken = told.pop().unwrap().unwrap_err();
        assert!(format!("{broken:?}").contains("did not answer within"), "{broken:?}");
        drop(answers.join().unwrap());
        assert!(ours.thread.join().unwrap().contains("did not answer within"));
        let is = |one: &Outcome, n: i64| matches!(one, Ok((_, Value::Integer(told))) if *told == n);
        let all = told.iter().zip(0..).all(|(one, n)| is(one, n));
        let is_late = began.elapsed() > Duration::from_millis(4 * 1200 + 1000);
        assert!(all || is_late, "the whole takes longer than one reply may: {told:?}");
        all
    });
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
    let busy = ours.busy();
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

impl Ours {
    /// Keeps the driver's thread busy until the sender is gone.
    pub(in crate::engine) fn busy(&self) -> Sender<()> {
        let (busy, until) = channel::<()>();
        let (there, on_it) = channel();
        self.runtime.spawn(async move {
            there.send(()).unwrap();
            _ = until.recv();
        });
        on_it.recv().unwrap();
        busy
    }

    /// A caller's task reads what has come.
    fn caller_reads(&self) {
        let (inlet, end) = (self.pipe.inlet().unwrap(), Instant::now() + PATIENCE);
        while inlet.take(false) == Took::Nothing {
            assert!(Instant::now() < end, "nothing came");
        }
    }
}

/// Waits for so many answers, each this number.
fn all_say(asked: Vec<oneshot::Receiver<Outcome>>, number: i64) {
    for one in asked {
        let (tell, told) = channel();
        std::thread::spawn(move || tell.send(answer(one)));
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Value::Integer(number)));
    }
}

/// Whatever else would wake the driver is ten times as long as the test has patience.
#[test]
fn r10_a_crowd_s_replies_are_read_though_the_caller_that_read_them_before_is_gone() {
    let (ours, mut server) = connected(40 * PATIENCE, no_push());
    for _ in 0..20 {
        // A caller reads while the driver's thread is busy: what comes to a crowd from here on is
        // left to callers.
        let (asked, busy) = (ours.send(1), ours.busy());
        server.write_all(b":1\r\n").unwrap();
        ours.caller_reads();
        drop(busy);
        all_say(asked, 1);
        let asked = ours.send(20);
        server.write_all(":2\r\n".repeat(20).as_bytes()).unwrap();
        all_say(asked, 2);
        // It reads most of a crowd's.
        let (mut asked, busy) = (ours.send(20), ours.busy());
        server.write_all(":3\r\n".repeat(17).as_bytes()).unwrap();
        ours.caller_reads();
        drop(busy);
        let rest = asked.split_off(17);
        all_say(asked, 3);
        server.write_all(":4\r\n".repeat(3).as_bytes()).unwrap();
        all_say(rest, 4);
    }
    ours.end();
}

#[test]
fn a_crowd_s_replies_are_left_to_callers_that_watch_the_socket_and_to_no_others() {
    let (ours, mut server) = connected(40 * PATIENCE, no_push());
    // Whether the driver leaves what comes, though nobody has read yet.
    let mut leaves = |watch: bool| {
        let (asked, busy) = (while_lending(|| ours.send(20)), ours.busy());
        if watch {
            drop(ours.pipe.inlet().unwrap().promise());
        }
        server.write_all(b":1\r\n").unwrap();
        drop(busy);
        let (mut left, soon) = (false, Instant::now() + Duration::from_millis(20));
        while !left && Instant::now() < soon {
            left = ours.pipe.is_left();
        }
        server.write_all(":1\r\n".repeat(19).as_bytes()).unwrap();
        all_say(asked, 1);
        left
    };
    // Over TLS nobody can, nor where the answer comes only once replicas have it.
    assert!(!(0..30).any(|_| leaves(false)));
    let end = Instant::now() + PATIENCE;
    while !leaves(true) {
        assert!(Instant::now() < end, "the driver never leaves them");
    }
    ours.end();
}

#[test]
fn a_crowd_s_replies_that_came_in_time_are_not_overdue_after_a_pause_of_the_thread() {
    let (ours, mut server) = connected(Duration::from_millis(300), no_push());
    let (mut asked, busy) = (ours.send(20), ours.busy());
    server.write_all(b":1\r\n").unwrap();
    ours.caller_reads();
    server.write_all(":2\r\n".repeat(19).as_bytes()).unwrap();
    // Longer than a reply may take.
    std::thread::sleep(Duration::from_millis(700));
    drop(busy);
    let rest = asked.split_off(1);
    all_say(asked, 1);
    all_say(rest, 2);
    ours.end();
}

#[test]
fn a_connection_ends_while_a_crowd_s_replies_are_left_to_callers() {
    for ending in ["closed", "garbage", "end of the stream"] {
        let (ours, mut server) = connected(40 * PATIENCE, no_push());
        let (asked, busy) = (ours.send(20), ours.busy());
        server.write_all(b":1\r\n").unwrap();
        ours.caller_reads();
        drop(busy);
        let mut kept = Some(server);
        match ending {
            "closed" => ours.pipe.close("the test is over"),
            "garbage" => kept.as_mut().unwrap().write_all(b"garbage\r\n").unwrap(),
            _ => kept = None,
        }
        for one in asked.into_iter().skip(1) {
            let (tell, told) = channel();
            std::thread::spawn(move || tell.send(one.blocking_recv().unwrap().is_err()));
            assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "{ending}");
        }
        assert!(!ours.thread.join().unwrap().is_empty());
        drop(kept);
    }
}

#[test]
fn what_a_crowd_asks_leaves_in_chunks_while_the_drivers_thread_is_busy() {
    let (ours, mut server) = connected(Duration::from_secs(60), no_push());
    // Once, so that the socket is known to take something.
    let first = ours.send(1).remove(0);
    server.read_exact(&mut [0; 14]).unwrap();
    server.write_all(b":1\r\n").unwrap();
    assert_eq!(answer(first), Value::Integer(1));
    let busy = ours.busy();
    let word = "w".repeat(100);
    let asked: Vec<_> =
        (0..100).flat_map(|_| ours.pipe.send(&[Command::new(["ECHO", &word])])).collect();
    let mut one = Vec::new();
    Command::new(["ECHO", &word]).encode(&mut one);
    let whole = 100 * one.len();
    let mut got = vec![0; whole];
    // All but the last that were too few for a message of their own.
    server.read_exact(&mut got[..whole - 2048]).expect("nobody waits for the driver");
    drop(busy);
    server.read_exact(&mut got[whole - 2048..]).expect("it writes what is left");
    server.write_all("$1\r\nx\r\n".repeat(100).as_bytes()).unwrap();
    for one in asked {
        assert_eq!(answer(one), Value::Text(b"x".to_vec()));
    }
    ours.end();
}

/// A crowd whose replies are left to callers, and whose driver's thread stands still from here on:
/// so many of them are outstanding, and one reply lies there.
fn left_to_callers(
    ours: &Ours,
    server: &mut UnixStream,
    outstanding: usize,
) -> (Vec<oneshot::Receiver<Outcome>>, Sender<()>) {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let (mut asked, busy) = (ours.send(outstanding + 1), ours.busy());
        server.write_all(b":1\r\n").unwrap();
        ours.caller_reads();
        drop(busy);
        // The driver comes to the next one, sees that a caller has read, and leaves it for a time.
        server.write_all(b":1\r\n").unwrap();
        let soon = Instant::now() + Duration::from_millis(20);
        while !ours.pipe.is_left() && Instant::now() < soon {
            std::thread::yield_now();
        }
        let busy = ours.busy();
        read_exactly(server, (outstanding + 1) * PING.len());
        if ours.pipe.is_left() {
            asked.remove(0);
            return (asked, busy);
        }
        // That time was over before its thread stood still.
        drop(busy);
        server.write_all(":1\r\n".repeat(outstanding - 1).as_bytes()).unwrap();
        all_say(asked, 1);
    }
    panic!("the driver never leaves them");
}

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

fn read_exactly(server: &mut UnixStream, length: usize) {
    server.read_exact(&mut vec![0; length]).expect("it is written");
}

/// How many bytes have come so far.
fn come(server: &mut UnixStream) -> usize {
    server.set_nonblocking(true).unwrap();
    let come = server.read(&mut vec![0; 1 << 16]).unwrap_or(0);
    server.set_nonblocking(false).unwrap();
    come
}

/// A crowd that was answered in part by a caller that read, while the driver's thread stands still:
/// so many are outstanding.
fn answered_in_part(
    ours: &Ours,
    server: &mut UnixStream,
    outstanding: usize,
) -> (Vec<oneshot::Receiver<Outcome>>, Sender<()>) {
    let (asked, busy) = left_to_callers(ours, server, outstanding + 8);
    server.write_all(":1\r\n".repeat(7).as_bytes()).unwrap();
    ours.caller_reads();
    (asked, busy)
}

#[test]
fn what_callers_ask_who_were_answered_together_is_written_once_by_the_one_that_promised_it() {
    let (ours, mut server) = connected(40 * PATIENCE, no_push());
    let inlet = ours.pipe.inlet().unwrap();
    let (asked, busy) = answered_in_part(&ours, &mut server, 12);
    assert!(inlet.clone().promise().is_none(), "nothing gathers");
    let mut again = while_lending(|| ours.send(1));
    let promise = inlet.clone().promise().expect("the first that waits");
    for _ in 0..8 {
        again.extend(while_lending(|| ours.send(1)));
        assert!(inlet.clone().promise().is_none(), "one caller comes back, and no other");
    }
    assert_eq!(come(&mut server), 0);
    assert!(!ours.pipe.is_called(), "the driver has nothing to do with it");
    drop(promise);
    assert_eq!(come(&mut server), 9 * PING.len());
    server.write_all(":1\r\n".repeat(12 + 9).as_bytes()).unwrap();
    drop(busy);
    all_say(asked, 1);
    all_say(again, 1);
    ours.end();
}

#[test]
fn what_gathers_is_written_by_a_release_or_the_driver_too_and_can_be_promised_anew_then() {
    for release in [true, false] {
        let (ours, mut server) = connected(40 * PATIENCE, no_push());
        let inlet = ours.pipe.inlet().unwrap();
        let (asked, busy) = answered_in_part(&ours, &mut server, 12);
        let mut again = while_lending(|| ours.send(3));
        let kept = inlet.clone().promise().expect("it gathers");
        if release {
            again.extend(ours.pipe.send_now(&[Command::new(["PING"])]));
            assert_eq!(come(&mut server), again.len() * PING.len());
        }
        drop(busy);
        if !release {
            read_exactly(&mut server, again.len() * PING.len());
        }
        let busy = ours.busy();
        // So many are outstanding that nobody writes by itself.
        again.extend(while_lending(|| ours.send(1)));
        let anew = inlet.promise().expect("the one before is kept");
        drop((kept, anew, busy));
        read_exactly(&mut server, PING.len());
        server.write_all(":1\r\n".repeat(12 + again.len()).as_bytes()).unwrap();
        all_say(asked, 1);
        all_say(again, 1);
        ours.end();
    }
}

#[test]
fn the_driver_is_called_by_whoever_asks_and_does_not_read_answers() {
    let (ours, mut server) = connected(40 * PATIENCE, no_push());
    let (asked, busy) = answered_in_part(&ours, &mut server, 12);
    let mut again = while_lending(|| ours.send(1));
    assert!(!ours.pipe.is_called());
    again.extend(ours.send(1));
    assert!(ours.pipe.is_called(), "nobody else is sure to write it");
    drop(busy);
    read_exactly(&mut server, 2 * PING.len());
    server.write_all(":1\r\n".repeat(12 + 2).as_bytes()).unwrap();
    all_say(asked, 1);
    all_say(again, 1);
    ours.end();
}

#[test]
fn the_driver_is_called_to_what_the_socket_did_not_take_when_a_promise_was_kept() {
    let (ours, mut server) = connected(40 * PATIENCE, no_push());
    let inlet = ours.pipe.inlet().unwrap();
    let (asked, busy) = answered_in_part(&ours, &mut server, 12);
    let again = while_lending(|| ours.send(1));
    let promise = inlet.clone().promise().expect("it gathers");
    let (socket, mut filled) = (inlet.socket().unwrap(), 0);
    while let Ok(length) = nix::unistd::write(&**socket, &[b'w'; 4096]) {
        filled += length;
    }
    drop(promise);
    assert!(ours.pipe.is_called(), "nobody else is told when there is room");
    drop(busy);
    read_exactly(&mut server, filled + PING.len());
    drop((asked, again));
    ours.end();
}

#[test]
fn the_driver_is_called_back_to_a_few_though_many_were_just_answered() {
    let (ours, mut server) = connected(40 * PATIENCE, no_push());
    let (asked, busy) = left_to_callers(&ours, &mut server, 20);
    server.write_all(":1\r\n".repeat(16).as_bytes()).unwrap();
    ours.caller_reads();
    // These may have something else to do, and one of them was told when something comes.
    assert!(!ours.pipe.is_left() && ours.pipe.is_called());
    drop(busy);
    server.write_all(":1\r\n".repeat(3).as_bytes()).unwrap();
    all_say(asked, 1);
    ours.end();
}

#[test]
fn the_driver_is_called_back_also_to_what_gathers_for_one_call_once_the_crowd_is_gone() {
    let (ours, mut server) = connected(40 * PATIENCE, no_push());
    ours.pipe.travel(Kind::Take, Together::Known);
    let (asked, busy) = left_to_callers(&ours, &mut server, 12);
    server.write_all(":1\r\n".repeat(3).as_bytes()).unwrap();
    ours.caller_reads();
    let call = take("n:a", ClaimId::fresh(), FAR);
    let gathers = while_lending(|| ours.pipe.send_in_company(Kind::Take, &call));
    assert_eq!(come(&mut server), 0, "others may join it");
    assert!(ours.pipe.is_left());
    server.write_all(b":1\r\n:1\r\n").unwrap();
    ours.caller_reads();
    assert!(!ours.pipe.is_left() && ours.pipe.is_called(), "nobody else is sure to write it");
    drop(busy);
    let mut whole = Vec::new();
    call.by_name().encode(&mut whole);
    read_exactly(&mut server, whole.len());
    drop((asked, gathers));
    ours.end();
}
