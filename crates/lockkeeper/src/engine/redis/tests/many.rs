//! Many names in one call: requests for free locks, and releases, that gathered on a connection.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use tokio::sync::oneshot::{self, error::TryRecvError};

use super::super::client::texts::Texts;
use super::super::pipe::{ALONE, Broken, Kind, Outcome, Together};
use super::super::resp::{Command, Value};
use super::super::script::{Call, Which};
use super::lean;
use super::pipe::{Ours, answer, connected, no_push};
use super::proxy::{Proxy, Way};
use super::releases::native_keys;
use super::server::RedisServer;
use super::support::{PATIENCE, Process, options, patient, until};
use crate::engine::{Answer, Attempt, End, Line};
use crate::words::claim::Mode;
use crate::words::id::ClaimId;

/// No request comes late.
pub(in crate::engine) const FAR: u64 = (1 << 53) - 1;
/// So many replies are outstanding in a crowd.
const CROWD: usize = 8;

/// What a claim writes down about itself.
pub(super) fn place(claim: ClaimId) -> String {
    format!("2 {claim} 0 x 1 30000 lockkeeper:process:{:032x} host:1:p 1 0 -", 1)
}

/// A lease that no test outlives.
const TTL_MS: &str = "300000";

pub(super) fn keys(record: &str, order: &[&str]) -> Texts {
    order.iter().map(|end| format!("{record}{end}")).collect()
}

pub(super) fn take(record: &str, claim: ClaimId, until: u64) -> Call {
    let place = format!("{} ", place(claim));
    Call {
        script: Which::Take,
        keys: keys(record, &["", ":last", ":line"]),
        arguments: [place, TTL_MS.to_owned(), until.to_string()].into(),
    }
}

pub(super) fn give(record: &str, claim: ClaimId, number: &str) -> Call {
    Call {
        script: Which::Release,
        keys: keys(record, &["", ":line", ":last", ":watch"]),
        arguments: [format!("2 {claim} 0 "), number.to_owned()].into(),
    }
}

/// A connection with so many replies outstanding that what is asked next gathers, and its other
/// end.
pub(in crate::engine) struct Crowd {
    pub(in crate::engine) ours: Ours,
    theirs: UnixStream,
    /// What came before, and its answers.
    before: String,
    first: Vec<oneshot::Receiver<Outcome>>,
}

impl Crowd {
    pub(super) fn new(together: Together) -> Self {
        Self::of([Kind::Take, Kind::Give], together)
    }

    pub(in crate::engine) fn of(kinds: [Kind; 2], together: Together) -> Self {
        let (ours, mut theirs) = connected(40 * PATIENCE, no_push());
        kinds.into_iter().for_each(|kind| ours.pipe.travel(kind, together));
        let first = ours.send(CROWD);
        // From here on the socket is known to take something, also while the driver stands still.
        let before = read_until(&mut theirs, "PING\r\n", CROWD);
        Self { ours, theirs, before, first }
    }

    pub(in crate::engine) fn asks(&self, call: &Call) -> oneshot::Receiver<Outcome> {
        self.ours.pipe.send_in_company(Kind::of(call).unwrap(), call)
    }

    /// Until now nothing has reached a server: from here on this one answers.
    pub(in crate::engine) fn serve(&self, server: &RedisServer) {
        let mut there = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        there.write_all(self.before.as_bytes()).unwrap();
        let ways: [(Box<dyn std::io::Read + Send>, Box<dyn std::io::Write + Send>); 2] = [
            (Box::new(self.theirs.try_clone().unwrap()), Box::new(there.try_clone().unwrap())),
            (Box::new(there), Box::new(self.theirs.try_clone().unwrap())),
        ];
        self.theirs.set_read_timeout(None).unwrap();
        for (mut from, mut to) in ways {
            std::thread::spawn(move || _ = std::io::copy(&mut from, &mut to));
        }
    }

    pub(in crate::engine) fn end(self) {
        self.ours.end();
        drop(self.first);
    }
}

#[test]
fn thirty_two_locks_cost_the_server_one_call_of_a_script_and_two_writes_each() {
    let server = RedisServer::start();
    server.command(&["SCRIPT", "LOAD", Which::Many.get().text()]);
    let round = |number: u32| {
        let crowd = Crowd::new(Together::Known);
        // Whoever fills a call writes it: the driver has no part in it.
        let busy = crowd.ours.busy();
        let name = |at: u32| format!("a:{{lock:{number}-{at}}}");
        let asked: Vec<_> =
            (0..32).map(|at| crowd.asks(&take(&name(at), ClaimId::fresh(), FAR))).collect();
        crowd.serve(&server);
        until("they are locked", || {
            let named: Vec<String> = (0..32).map(name).collect();
            let exist = ["EXISTS"].into_iter().chain(named.iter().map(String::as_str));
            server.command(&exist.collect::<Vec<_>>()) == ["32"]
        });
        drop(busy);
        let said: Vec<Value> = asked.into_iter().map(answer).collect();
        assert!(said.iter().all(|value| value.unsigned().is_some()), "{said:?}");
        crowd.end();
    };
    server.command(&["CONFIG", "RESETSTAT"]);
    round(1);
    let counts = server.command_counts();
    let of = |name: &str| counts.get(name).copied().unwrap_or(0);
    assert_eq!((of("evalsha"), of("eval"), of("time")), (1, 0, 1), "{counts:?}");
    assert_eq!((of("mget"), of("get"), of("set")), (1, 0, 64), "{counts:?}");
}

/// Reads commands until so many bytes of this kind have come, and gives them as one text.
fn read_until(server: &mut UnixStream, what: &str, times: usize) -> String {
    let (mut got, mut some) = (String::new(), [0; 4096]);
    while got.matches(what).count() < times {
        let length = server.read(&mut some).expect("it comes");
        assert!(length > 0, "{got}");
        got += std::str::from_utf8(&some[..length]).unwrap();
    }
    got
}

/// How often these scripts are called by their names, and how often a script is brought along.
fn sent(bytes: &str) -> (usize, usize, usize) {
    let of = |which: Which| bytes.matches(which.get().sha()).count();
    (of(Which::Many), of(Which::Take), bytes.matches("$4\r\nEVAL\r\n").count())
}

#[test]
fn after_a_refused_call_each_name_asks_by_its_own_script_and_later_ones_go_as_the_refusal_says() {
    for (refused, later) in [
        ("NOSCRIPT No matching script", (0, 0, 1)),
        ("NOPERM no", (0, 2, 0)),
        ("ERR unknown command", (0, 2, 0)),
        ("CROSSSLOT Keys in request don't hash to the same slot", (0, 2, 0)),
        ("MOVED 5 127.0.0.1:1", (0, 2, 0)),
        ("CLUSTERDOWN The cluster is down", (0, 2, 0)),
        ("READONLY You can't write against a read only replica.", (1, 0, 0)),
        ("ERR Error running script (call to f_5): @user_script:1: -OOM command", (1, 0, 0)),
        ("BUSY Redis is busy running a script", (1, 0, 0)),
        ("LOADING Redis is loading", (1, 0, 0)),
    ] {
        let mut crowd = Crowd::new(Together::Known);
        let ask = |crowd: &Crowd, names: [&str; 2]| {
            let busy = crowd.ours.busy();
            let asked = names.map(|name| crowd.asks(&take(name, ClaimId::fresh(), FAR)));
            (busy, asked)
        };
        let (busy, asked) = ask(&crowd, ["n:a", "n:b"]);
        drop(busy);
        assert_eq!(sent(&read_until(&mut crowd.theirs, "n:b:line", 1)), (1, 0, 0));
        // These gather when the refusal comes.
        crowd.first.extend(crowd.ours.send(CROWD));
        let (busy, gather) = ask(&crowd, ["n:c", "n:d"]);
        let said = format!("{}-{refused}\r\n", ":1\r\n".repeat(CROWD));
        crowd.theirs.write_all(said.as_bytes()).unwrap();
        // A caller reads it, while the driver's thread does other things.
        let inlet = crowd.ours.pipe.inlet().unwrap();
        let told = asked.map(|mut one| {
            loop {
                match one.try_recv() {
                    Ok(told) => return told.unwrap().1,
                    Err(TryRecvError::Empty) => _ = inlet.take(true),
                    Err(TryRecvError::Closed) => panic!("nobody answers"),
                }
            }
        });
        drop(busy);
        for one in told {
            let Value::Error(text) = one else { panic!("{one:?}") };
            // Of what is refused to everybody each is told at once.
            let all = ["READONLY ", "OOM "].iter().any(|word| refused.contains(word));
            assert_eq!(text, if all { refused } else { ALONE });
        }
        let bytes = read_until(&mut crowd.theirs, ":line", 2);
        assert_eq!(sent(&bytes), later, "{refused}");
        drop(gather);
        crowd.end();
    }
}

#[test]
fn r4_when_the_connection_ends_each_name_of_a_call_is_unknown_and_what_was_not_written_not_sent() {
    let mut crowd = Crowd::new(Together::Known);
    let claim = ClaimId::fresh();
    let ask = |crowd: &Crowd, names: std::ops::Range<usize>| -> Vec<_> {
        names.map(|n| crowd.asks(&take(&format!("n{n}"), claim, FAR))).collect()
    };
    let sent = ask(&crowd, 0..5);
    read_until(&mut crowd.theirs, "n4:line", 1);
    let busy = crowd.ours.busy();
    let gathers = ask(&crowd, 5..8);
    let Crowd { theirs, ours, first, .. } = crowd;
    drop(theirs);
    drop(busy);
    for one in sent {
        let broken = one.blocking_recv().unwrap().unwrap_err();
        assert!(matches!(broken, Broken::Unknown(_)), "{broken:?}");
    }
    for one in gathers {
        let broken = one.blocking_recv().unwrap().unwrap_err();
        assert!(matches!(broken, Broken::NotSent(_)), "{broken:?}");
    }
    drop((ours, first));
}

#[test]
fn r6_a_release_passes_by_what_gathers_but_for_a_request_for_the_same_lock() {
    let mut crowd = Crowd::new(Together::Known);
    let claim = ClaimId::fresh();
    let busy = crowd.ours.busy();
    let asks = |name: &str| crowd.asks(&take(name, claim, FAR));
    let mut asked = vec![asks("n:a"), asks("n:b")];
    let released = crowd.ours.pipe.send_now(&[give("n:c", claim, "7").by_name()]);
    let mut theirs = crowd.theirs.try_clone().unwrap();
    // The driver's thread stands still.
    let bytes = read_until(&mut theirs, "n:c:watch", 1);
    assert_eq!(sent(&bytes), (0, 0, 0), "it waits for no company: {bytes}");
    asked.push(asks("n:d"));
    let again = crowd.ours.pipe.send_now(&[give("n:b", claim, "7").by_name()]);
    let bytes = read_until(&mut theirs, "n:b:watch", 1);
    assert_eq!(sent(&bytes), (1, 0, 0));
    let line = bytes.find("n:d:line").expect("they went before it, all in one");
    assert!(line < bytes.find(Which::Release.get().sha()).unwrap(), "{bytes}");
    drop((busy, asked, released, again));
    crowd.theirs = theirs;
    crowd.end();
}

#[test]
fn r3_a_release_and_the_next_request_for_that_lock_never_change_places() {
    let mut crowd = Crowd::new(Together::Known);
    let claim = ClaimId::fresh();
    let busy = crowd.ours.busy();
    // Whatever comes first is first at the server, in company or not.
    let mut asked = Vec::new();
    for name in ["n:a", "n:b"] {
        asked.push(crowd.asks(&give(name, claim, "7")));
    }
    for name in ["n:b", "n:c"] {
        asked.push(crowd.asks(&take(name, claim, FAR)));
    }
    for name in ["n:c", "n:d"] {
        asked.push(crowd.asks(&give(name, claim, "7")));
    }
    drop(busy);
    let bytes = read_until(&mut crowd.theirs, "n:d:last", 1);
    let many = bytes.find(Which::Many.get().sha()).expect("requests went together");
    let gives: Vec<usize> =
        bytes.match_indices(Which::Gives.get().sha()).map(|(at, _)| at).collect();
    assert!(matches!(gives[..], [first, second] if first < many && many < second), "{bytes}");
    drop(asked);
    crowd.end();
}

#[test]
fn r7_a_lock_whose_last_number_could_not_be_written_is_granted_by_its_own_script_alone() {
    let server = RedisServer::start();
    let mut pipe = lean::Pipe::to(&server);
    // Whoever asks may write records, and no last number.
    let may = ["~*", "+@all", "-set", "+set|n:a", "+set|n:b"];
    let said = asked_by(&may, &server, &mut pipe);
    assert_eq!(said.items().get(1).and_then(Value::text), Some("WW"), "{said:?}");
    assert_eq!(server.command(&["EXISTS", "n:a", "n:b"]), ["2"]);
}

/// What a user who may do this is answered who asks for two locks in one call.
fn asked_by(may: &[&str], server: &RedisServer, pipe: &mut lean::Pipe) -> Value {
    server.command(&[&["ACL", "SETUSER", "few", "reset", "on", "nopass"], may].concat());
    pipe.send(&[Command::new(["AUTH", "few", "any"])]);
    let keys = Texts::from(["n:a:last", "n:b:last", "n:a", "n:b", "n:a:line", "n:b:line"]);
    let (place, far) = (format!("{} ", place(ClaimId::fresh())), FAR.to_string());
    let arguments = Texts::from([TTL_MS, &far, &place, &place]);
    let call = Call { script: Which::Many, keys, arguments };
    pipe.send(&[call.in_full()]).remove(0)
}

#[test]
fn r4_a_name_whose_line_may_not_be_looked_at_leaves_the_others_of_its_call_alone() {
    let server = RedisServer::start();
    let mut pipe = lean::Pipe::to(&server);
    server.command(&["SET", "n:a:last", "5"]);
    // The second one has no last number, so somebody may be in line.
    let said = asked_by(&["~*", "+@all", "-exists"], &server, &mut pipe);
    assert_eq!(said.items().get(1).and_then(Value::text), Some("GW"), "{said:?}");
    assert_eq!(server.command(&["EXISTS", "n:a", "n:b"]), ["1"]);
}

#[test]
fn names_that_a_full_server_refuses_are_each_asked_about_by_their_own_script() {
    let server = RedisServer::start();
    let mut pipe = lean::Pipe::to(&server);
    for refuses in
        [["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "min-replicas-to-write", "1"]]
    {
        server.command(&refuses);
        let said = asked_by(&["~*", "+@all"], &server, &mut pipe);
        // Where somebody holds one, that script has nothing to write, and answers.
        assert_eq!(said.items().get(1).and_then(Value::text), Some("WW"), "{said:?}");
        assert_eq!(server.command(&["EXISTS", "n:a", "n:b"]), ["0"]);
        server.command(&[&refuses[..3], &["0"]].concat());
    }
}

#[test]
fn a_release_without_a_number_is_none_of_those_that_are_answered_together() {
    let server = RedisServer::start();
    let mut pipe = lean::Pipe::to(&server);
    let claim = ClaimId::fresh();
    server.command(&["SET", "n:a", &place(claim)]);
    server.command(&["SET", "n:a:last", ""]);
    let begins = format!("2 {claim} 0 ");
    let (keys, arguments) = (["n:a:last", "n:a"].into(), [begins.as_str(), ""].into());
    let call = Call { script: Which::Gives, keys, arguments };
    assert_eq!(pipe.send(&[call.in_full()]).remove(0).text(), Some("W"));
    assert_eq!(server.command(&["EXISTS", "n:a"]), ["1"]);
}

#[test]
fn r1_of_two_requests_for_one_lock_in_one_call_the_first_gets_it() {
    let server = RedisServer::start();
    let crowd = Crowd::new(Together::Anew);
    let busy = crowd.ours.busy();
    let claims = [ClaimId::fresh(), ClaimId::fresh()];
    let asked = [("n:a", claims[0]), ("n:a", claims[1]), ("n:b", claims[1])]
        .map(|(name, claim)| crowd.asks(&take(name, claim, FAR)));
    drop(busy);
    crowd.serve(&server);
    let said = asked.map(answer);
    assert!(said[0].unsigned().is_some() && said[2].unsigned().is_some(), "{said:?}");
    assert_eq!(said[1].items().first().and_then(Value::text), Some("W"), "{said:?}");
    let kept = server.command(&["GET", "n:a"]).concat();
    assert!(kept.starts_with(&place(claims[0])), "{kept}");
    assert_eq!(server.command_counts().get("mget"), Some(&1), "they went together");
    crowd.end();
}

#[test]
fn r10_of_releases_that_travel_together_one_wakes_the_process_that_waits_for_its_lock() {
    let server = RedisServer::start();
    let process = Process::with(patient(options(server.port())));
    let other = Process::of(&server);
    let awaited = |claim: ClaimId| process.engine.release_awaited(&[claim], None);
    let (warm, _) = process.take("warm", Mode::Exclusive);
    assert!(matches!(process.wait(awaited(warm.id)).ends.as_slice(), [End::Freed]));
    let names: Vec<String> = (0..40).map(|n| format!("n{n}")).collect();
    let holds: Vec<ClaimId> =
        names.iter().map(|name| process.take(name, Mode::Exclusive).0.id).collect();
    let waits = other.queue("n30", Mode::Exclusive);
    let calls = || {
        let counts = server.command_counts();
        ["eval", "evalsha"].map(|name| counts.get(name).copied().unwrap_or(0)).iter().sum::<u64>()
    };
    let (before, stalled) = (calls(), process.stall());
    let ended: Vec<_> = holds.iter().map(|hold| awaited(*hold)).collect();
    drop(stalled);
    for released in ended {
        let ends = process.wait(released).ends;
        assert!(matches!(ends.as_slice(), [End::Freed]), "{ends:?}");
    }
    other.granted(waits.id);
    let calls = calls() - before;
    assert!(calls < 30, "they travelled together: {calls} calls");
}

#[test]
fn r5_callers_who_leave_while_their_requests_travel_together_leave_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let process = Process::with(patient(options(proxy.port())));
    let names: Vec<String> = (0..60).map(|n| format!("n{n}")).collect();
    let (warm, _) = process.take("warm", Mode::Exclusive);
    assert!(matches!(process.release(warm.id), End::Freed));
    proxy.hold(Way::Up);
    let claims: Vec<_> = names.iter().map(|name| process.exclusive(name)).collect();
    let stalled = process.stall();
    let asked: Vec<Answer<Attempt>> =
        claims.iter().map(|claim| process.engine.attempt(claim, Line::Join)).collect();
    let left: Vec<_> = claims.iter().map(|claim| process.engine.withdraw(claim.id)).collect();
    drop((asked, stalled));
    proxy.heal();
    for end in left {
        let end = process.wait(end);
        assert!(matches!(end, End::Freed | End::NotOurs), "{end:?}");
    }
    let counts = server.command_counts();
    let by_themselves = counts.get("get").copied().unwrap_or(0);
    assert!(by_themselves < 20, "they travelled together: {counts:?}");
    let mut exists = vec!["EXISTS".to_owned()];
    exists.extend(native_keys(&names));
    let exists: Vec<&str> = exists.iter().map(String::as_str).collect();
    until("nothing is held", || server.command(&exists) == ["0"]);
}

#[test]
fn r4_a_name_that_asks_alone_is_unknown_when_the_connection_breaks_meanwhile() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let process = Process::with(patient(options(proxy.port())));
    process.take("warm", Mode::Exclusive);
    // What is about many names needs it.
    server.command(&["ACL", "SETUSER", "default", "-mget"]);
    let claims: Vec<_> = (0..30).map(|n| process.exclusive(&format!("n{n}"))).collect();
    let in_full = || server.command_counts().get("eval").copied().unwrap_or(0);
    let (before, stalled) = (in_full(), process.stall());
    let asked: Vec<Answer<Attempt>> =
        claims.iter().map(|claim| process.engine.attempt(claim, Line::Join)).collect();
    drop(stalled);
    until("those that went together were refused", || in_full() > before);
    proxy.hold_present(Way::Up);
    let attempts: Vec<Attempt> = std::thread::scope(|scope| {
        scope.spawn(|| {
            until("one of them asks alone", || proxy.held(Way::Up) > 0);
            proxy.cut();
        });
        asked.into_iter().map(|asked| process.wait(asked)).collect()
    });
    server.command(&["ACL", "SETUSER", "default", "+mget"]);
    let mut unknown = 0;
    for (claim, attempt) in claims.iter().zip(attempts) {
        match attempt {
            Attempt::Granted(_) => {}
            Attempt::Unknown(_) => {
                unknown += 1;
                process.granted_at_last(claim);
            }
            other => panic!("{}: {other:?}", claim.name),
        }
    }
    assert!(unknown > 0, "the one that had asked");
}
