//! Layout 1 and this one on one server: each stops by name at what the other left, in every state,
//! and changes nothing (R17). The scripts of layout 1 stand beside this file as they were.

use super::server::RedisServer;
use super::support::{Process, granted};
use crate::engine::{Attempt, End};
use crate::words::claim::{Claim, Mode};
use crate::words::error::ErrorKind;

macro_rules! layout_1 {
    ($($name:literal),+) => {
        concat!($(include_str!(concat!("layout_1/", $name, ".lua"))),+)
    };
}

const ACQUIRE: &str = layout_1!("take", "settle", "acquire");
const RELEASE: &str = layout_1!("give", "settle", "release");

const LOCK: &str = "lockkeeper:{lock:a}";
const SEMAPHORE: &str = "lockkeeper:{semaphore:a}";
const PERMITS: Mode = Mode::Permits { count: 1, limit: 2 };

/// A release with layout 1, on one record.
struct Older<'a>(&'a RedisServer, &'static str);

impl Older<'_> {
    fn eval(&self, script: &str, arguments: &[&str]) -> Vec<String> {
        let Self(server, record) = self;
        let keys = ["", ":line", ":last", ":watch:0"].map(|rest| format!("{record}{rest}"));
        let mut words = vec!["EVAL", script, "4"];
        words.extend(keys.iter().map(String::as_str));
        words.extend(arguments);
        server.command(&words)
    }

    fn asks(&self, claim: u8, mode: &str, how: &str) -> Vec<String> {
        let (claim, limit) = (format!("{claim:032x}"), if mode == "p" { "2" } else { "0" });
        let never = "9007199254740991";
        let rest = ["30000", "0", "5", "channel", "-", "who", never, how, "1"];
        self.eval(ACQUIRE, &[&[&claim, mode, "1", limit][..], &rest].concat())
    }

    fn has(&self, claim: u8, mode: &str) {
        assert_eq!(self.asks(claim, mode, "try")[0], "G", "{mode}");
    }

    fn stands(&self, claim: u8) {
        assert_eq!(self.asks(claim, "x", "join")[0], "L");
    }

    fn gives(&self, claim: u8) {
        assert_eq!(self.eval(RELEASE, &[&format!("{claim:032x}"), "0"])[0], "D");
    }

    fn lease_ends(&self) {
        self.0.command(&["DEL", self.1]);
    }
}

fn refused(what: &str, record: &str, attempt: Attempt) {
    let Attempt::Failed(error) = attempt else { panic!("{what}: {attempt:?}") };
    let keys = format!("delete the keys {record}, {record}:line and {record}:last");
    assert!(
        error.kind() == ErrorKind::Corrupt
            && ["layout 1", "knows 2", &keys].iter().all(|words| error.message().contains(words)),
        "{what}: {error}"
    );
}

#[test]
fn r17_what_layout_1_left_is_refused_by_name_and_stays_as_it_is() {
    type State = (&'static str, &'static str, fn(&Older<'_>));
    let states: [State; 7] = [
        ("a holder", LOCK, |older| older.has(1, "x")),
        ("a holder and a line", LOCK, |older| {
            older.has(1, "x");
            older.stands(2);
        }),
        ("a line, and the lease ran out", LOCK, |older| {
            older.has(1, "x");
            older.stands(2);
            older.lease_ends();
        }),
        ("several holders", LOCK, |older| {
            older.has(1, "s");
            older.has(2, "s");
        }),
        ("a number", LOCK, |older| {
            older.has(1, "x");
            older.gives(1);
        }),
        ("permits", SEMAPHORE, |older| older.has(1, "p")),
        ("a limit", SEMAPHORE, |older| {
            older.has(1, "p");
            older.gives(1);
        }),
    ];
    let server = RedisServer::start();
    for ((what, record, make), lost) in
        states.into_iter().flat_map(|state| [(state, false), (state, true)])
    {
        server.command(&["FLUSHALL"]);
        make(&Older(&server, record));
        let last = format!("{record}:last");
        if lost {
            server.command(&["DEL", &last]);
            if server.command(&["DBSIZE"]) == ["0"] {
                continue;
            }
        }
        let what = format!("{what}, its number lost: {lost}");
        // One that knows nothing of the name.
        let process = Process::of(&server);
        let before = server.command(&["DEBUG", "DIGEST"]);
        let claim = |mode| match record {
            SEMAPHORE => process.claim("a", PERMITS),
            _ => process.claim("a", mode),
        };
        let tries: [&dyn Fn(&Claim) -> Attempt; 2] =
            [&|claim| process.attempt_try(claim), &|claim| process.attempt(claim)];
        for asks in tries {
            for mode in [Mode::Exclusive, Mode::Shared] {
                refused(&what, record, asks(&claim(mode)));
            }
        }
        let entry = process.look(claim(Mode::Exclusive).kind, "a");
        let shown = format!("{:?}", entry.unreadable);
        assert!(shown.contains("layout 1") && shown.contains("knows 2"), "{what}: {shown}");
        assert_eq!(server.command(&["DEBUG", "DIGEST"]), before, "{what}");
        // As the error says, once the older one is stopped.
        server.command(&["DEL", record, &format!("{record}:line"), &last]);
        granted(process.attempt(&claim(Mode::Exclusive)));
    }
}

#[test]
fn r17_layout_1_refuses_what_this_one_left_and_leaves_it_as_it_is() {
    type State = (&'static str, &'static str, fn(&Process, &RedisServer));
    let states: [State; 7] = [
        ("a holder", LOCK, |ours, _| drop(ours.take("a", Mode::Exclusive))),
        ("a holder and a line", LOCK, |ours, _| {
            ours.take("a", Mode::Exclusive);
            ours.queue("a", Mode::Exclusive);
        }),
        ("a line, and the lease ran out", LOCK, |ours, server| {
            ours.take("a", Mode::Exclusive);
            ours.queue("a", Mode::Exclusive);
            server.command(&["DEL", LOCK]);
        }),
        ("several holders", LOCK, |ours, _| {
            ours.take("a", Mode::Shared);
            ours.take("a", Mode::Shared);
        }),
        ("a number", LOCK, |ours, _| {
            let held = ours.take("a", Mode::Exclusive).0.id;
            assert!(matches!(ours.release(held), End::Freed));
        }),
        ("permits", SEMAPHORE, |ours, _| drop(ours.take("a", PERMITS))),
        ("a limit", SEMAPHORE, |ours, _| {
            let held = ours.take("a", PERMITS).0.id;
            assert!(matches!(ours.release(held), End::Freed));
        }),
    ];
    let server = RedisServer::start();
    for ((what, record, make), lost) in
        states.into_iter().flat_map(|state| [(state, false), (state, true)])
    {
        server.command(&["FLUSHALL"]);
        let ours = Process::of(&server);
        make(&ours, &server);
        if lost {
            // Layout 1 looks for a line behind a flag only: its own would be passed, too.
            if server.command(&["EXISTS", record]) == ["0"] {
                continue;
            }
            server.command(&["DEL", &format!("{record}:last")]);
        }
        let before = server.command(&["DEBUG", "DIGEST"]);
        let older = Older(&server, record);
        for (mode, how) in [("x", "try"), ("x", "join"), ("s", "try"), ("s", "join")] {
            let mode = if record == SEMAPHORE { "p" } else { mode };
            let said = older.asks(9, mode, how).concat();
            // A bare number has no layout for it to name.
            let corrupt = format!("LOCKKEEPER CORRUPT {record}:last");
            let is = said.contains("LOCKKEEPER NEWER 2") || !lost && said.contains(&corrupt);
            assert!(is, "{what}, its number lost: {lost}: {mode} {how}: {said}");
        }
        if lost && what == "several holders" {
            // It writes that number anew before it finds them.
            server.command(&["DEL", &format!("{record}:last")]);
        }
        assert_eq!(server.command(&["DEBUG", "DIGEST"]), before, "{what}");
    }
}
