//! The short ways past a free lock: what they cost, and that nothing which is in the way is passed
//! by.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::super::name::Keys;
use super::super::options::Wait;
use super::super::record::Place;
use super::super::resp::{Command, Value};
use super::super::script::{Call, Which};
use super::server::RedisServer;
use super::support::{Process, granted, number, options, until};
use crate::engine::{Attempt, End, Event, Grant, Renewal, Standing};
use crate::words::claim::{Claim, Mode};
use crate::words::error::{Error, ErrorKind};
use crate::words::name::Kind;

const RECORD: &str = "lockkeeper:{lock:a}";
const LINE: &str = "lockkeeper:{lock:a}:line";
const NUMBER: &str = "lockkeeper:{lock:a}:last";

/// What is kept beside the last number.
fn flags(server: &RedisServer) -> String {
    let kept = server.command(&["GET", NUMBER]).remove(0);
    kept.rsplit_once(':').map_or_else(String::new, |(_, flags)| flags.to_owned())
}

#[test]
fn r11_a_lost_number_lets_nobody_past_a_line_and_tokens_grow() {
    let lost: [&[&str]; 4] = [
        &["DEL", NUMBER],
        &["PEXPIRE", NUMBER, "1"],
        // Of an older copy of the data, without and with a flag.
        &["SET", NUMBER, "5"],
        &["SET", NUMBER, "2:5:w"],
    ];
    for lose in lost {
        let server = RedisServer::start();
        let [one, two, three] = [(); 3].map(|()| Process::of(&server));
        let (held, first) = one.take("a", Mode::Exclusive);
        let waiting = two.queue("a", Mode::Exclusive);
        assert_eq!(flags(&server), "w", "{lose:?}");
        server.command(lose);
        until("it is lost", || server.command(&["GET", NUMBER]).concat().len() < 8);
        let tried = three.attempt_try(&three.exclusive("a"));
        assert!(matches!(tried, Attempt::Busy(_)), "{lose:?}: {tried:?}");
        assert_eq!(flags(&server), "w", "{lose:?}: whoever comes by puts it right");
        server.command(lose);
        assert!(matches!(one.release(held.id), End::Freed), "{lose:?}");
        let second = two.granted(waiting.id);
        assert!(number(&second) > number(&first), "{lose:?}");
        server.command(lose);
        assert!(matches!(two.release(waiting.id), End::Freed), "{lose:?}");
        let (_, third) = three.take("a", Mode::Exclusive);
        assert!(number(&third) > number(&second), "{lose:?}");
    }
}

#[test]
fn r11_nobody_passes_the_line_of_a_free_lock_whose_number_is_lost() {
    for lost in [&["DEL", NUMBER][..], &["SET", NUMBER, "2:5:w"]] {
        let server = RedisServer::start();
        let [one, two] = [(); 2].map(|()| Process::of(&server));
        let (_, first) = one.take("a", Mode::Exclusive);
        let waiting = two.queue("a", Mode::Exclusive);
        // The lease runs out, and the number goes before anybody looks.
        let both = "redis.call('DEL', KEYS[1]); return redis.call(unpack(ARGV))";
        server.command(&[&["EVAL", both, "1", RECORD][..], lost].concat());
        // Each knows nothing of the name.
        for _ in 0..2 {
            let three = Process::of(&server);
            let tried = three.attempt_try(&three.exclusive("a"));
            assert!(matches!(tried, Attempt::Busy(_)), "{lost:?}: {tried:?}");
        }
        assert!(number(&two.granted(waiting.id)) > number(&first));
    }
    // Nor permits.
    let server = RedisServer::start();
    let permits = |process: &Process, count| process.claim("a", Mode::Permits { count, limit: 2 });
    let [one, two, three] = [(); 3].map(|()| Process::of(&server));
    granted(one.attempt(&permits(&one, 1)));
    let waiting = permits(&two, 2);
    two.queue_claim(&waiting);
    let record = "lockkeeper:{semaphore:a}";
    server.command(&["DEL", record, &format!("{record}:last")]);
    let tried = three.attempt_try(&permits(&three, 1));
    assert!(matches!(tried, Attempt::Busy(_)), "{tried:?}");
    two.granted(waiting.id);
}

#[test]
fn r10_a_line_whose_flag_alone_is_lost_is_served_at_the_next_check() {
    let server = RedisServer::start();
    let [one, two, three] = [(); 3].map(|()| Process::of(&server));
    let (held, first) = one.take("a", Mode::Exclusive);
    let waiting = two.queue("a", Mode::Exclusive);
    // Somebody put the value back that was there before anybody waited.
    server.command(&["SET", NUMBER, &number(&first).to_string()]);
    assert!(matches!(one.release(held.id), End::Freed));
    assert_eq!(server.command(&["EXISTS", RECORD, LINE]), ["1"], "it waits, and was not told");
    let (theirs, second) = three.take("a", Mode::Exclusive);
    assert!(number(&second) > number(&first), "it may pass, and excludes all the same");
    let answers = two.wait(two.engine.recheck(&[waiting.id]));
    assert!(matches!(&answers[..], [Standing::InLine(_)]), "{answers:?}");
    assert_eq!(flags(&server), "w");
    assert!(matches!(three.release(theirs.id), End::Freed));
    assert!(number(&two.granted(waiting.id)) > number(&second));
}

#[test]
fn the_flag_of_a_line_of_the_dead_goes_with_it() {
    let server = RedisServer::start();
    let [one, two, three] = [(); 3].map(|()| Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    let waiting = two.queue("a", Mode::Exclusive);
    two.die();
    // Its last sign of life was long ago.
    server.command(&["ZADD", LINE, "1000000000001", &format!("s{}", waiting.id)]);
    assert_eq!(flags(&server), "w");
    assert!(matches!(one.release(held.id), End::Freed));
    assert_eq!(server.command(&["EXISTS", LINE]), ["0"]);
    assert_eq!(flags(&server), "", "the next one comes by the short way");
    // A line that went by itself: its flag is there until a script looks.
    let flagged = || {
        let kept = server.command(&["GET", NUMBER]).remove(0);
        server.command(&["SET", NUMBER, &format!("2:{kept}:w"), "KEEPTTL"]);
    };
    let pair = || {
        let (held, _) = three.take("a", Mode::Exclusive);
        assert!(matches!(three.release(held.id), End::Freed));
    };
    pair();
    flagged();
    pair();
    flagged();
    assert_eq!((cost(&server, pair), flags(&server)), ((3, 1), String::new()));
    assert_eq!(cost(&server, pair), (2, 0));
    let (held, _) = three.take("a", Mode::Exclusive);
    flagged();
    assert!(matches!(three.release(held.id), End::Freed));
    assert_eq!(flags(&server), "");
}

/// What something costs the server: how many scripts, and how many looks at the line.
fn cost(server: &RedisServer, does: impl FnOnce()) -> (u64, u64) {
    server.command(&["CONFIG", "RESETSTAT"]);
    does();
    let counts = server.command_counts();
    let of = |name: &str| counts.get(name).copied().unwrap_or(0);
    (of("evalsha") + of("eval"), of("zcard"))
}

#[test]
fn who_comes_again_to_a_name_in_use_asks_once() {
    let server = RedisServer::start();
    let [one, two] = [(); 2].map(|()| Process::of(&server));
    let tries = || {
        let tried = two.attempt_try(&two.exclusive("a"));
        assert!(matches!(tried, Attempt::Busy(_)), "{tried:?}");
    };
    let pair = || {
        let (held, _) = two.take("a", Mode::Exclusive);
        assert!(matches!(two.release(held.id), End::Freed));
    };
    // The server learns the scripts.
    let (held, _) = one.take("a", Mode::Exclusive);
    tries();
    assert!(matches!(one.release(held.id), End::Freed));
    pair();
    let (held, _) = one.take("a", Mode::Exclusive);
    assert_eq!(cost(&server, tries), (2, 1), "the first time it finds out");
    assert_eq!(cost(&server, tries), (1, 1));
    let waiting = two.exclusive("a");
    assert_eq!(cost(&server, || two.queue_claim(&waiting)), (1, 1));
    assert!(matches!(one.release(held.id), End::Freed));
    two.granted(waiting.id);
    assert!(matches!(two.release(waiting.id), End::Freed));
    assert_eq!(cost(&server, pair), (2, 1), "it finds it free");
    assert_eq!(cost(&server, pair), (2, 0), "and comes by the short way");
    // Others beside it are in the way of the next one, too.
    let (held, _) = one.take("a", Mode::Shared);
    let reads = || {
        let (held, _) = two.take("a", Mode::Shared);
        assert!(matches!(two.release(held.id), End::Freed));
    };
    reads();
    assert_eq!(cost(&server, reads).0, 2);
    assert!(matches!(one.release(held.id), End::Freed));
}

#[test]
fn who_stands_again_where_replicas_are_waited_for_takes_the_long_way_at_once() {
    let server = RedisServer::start();
    let mut waits = options(server.port());
    waits.wait = Some(Wait { replicas: 0, timeout: Duration::from_millis(100) });
    let [one, two] = [(); 2].map(|()| Process::with(waits.clone()));
    // The first time the server learns the scripts.
    for name in ["a", "b"] {
        let (held, _) = one.take(name, Mode::Exclusive);
        let waiting = two.queue(name, Mode::Exclusive);
        let again = one.exclusive(name);
        let (scripts, _) = cost(&server, || {
            let released = one.release_again(held.id, &again);
            assert!(matches!(released.ends[..], [End::Freed]), "{released:?}");
            assert!(matches!(released.again, Some(Attempt::InLine(_))), "{released:?}");
        });
        assert!(name == "a" || scripts == 2, "{scripts} scripts");
        two.event("its turn", |event| match event {
            Event::Granted { claim, .. } | Event::Wake { claim } if *claim == waiting.id => {
                Some(())
            }
            _ => None,
        });
    }
}

#[test]
fn r9_who_gives_back_and_stands_again_alone_costs_one_short_script() {
    let server = RedisServer::start();
    let [one, two] = [(); 2].map(|()| Process::of(&server));
    let (mut held, mut before) = one.take("a", Mode::Exclusive);
    let again = |held: &mut Claim, before: &mut Grant| {
        let next = one.exclusive("a");
        let released = one.release_again(held.id, &next);
        assert!(matches!(released.ends[..], [End::Freed]), "{released:?}");
        let grant = granted(released.again.expect("it was asked for again"));
        (*held, *before) = (next, grant);
    };
    // The first time the server learns the script.
    again(&mut held, &mut before);
    for _ in 0..3 {
        let earlier = number(&before);
        assert_eq!(cost(&server, || again(&mut held, &mut before)), (1, 0));
        assert!(number(&before) > earlier);
        let counts = server.command_counts();
        let five = ["time", "get", "set", "del"].map(|name| counts.get(name).copied());
        assert_eq!(five, [Some(1), Some(2), Some(2), None]);
    }
    let left: u64 = server.command(&["PTTL", RECORD])[0].parse().expect("a lease");
    assert!(left > 0 && left <= held.ttl.as_millis() as u64);
    // Somebody waits: it gets the lock, and the one before it stands behind.
    let waiting = two.queue("a", Mode::Exclusive);
    let next = one.exclusive("a");
    let released = one.release_again(held.id, &next);
    assert!(matches!(released.ends[..], [End::Freed]), "{released:?}");
    assert!(matches!(released.again, Some(Attempt::InLine(_))), "{released:?}");
    assert!(number(&two.granted(waiting.id)) > number(&before));
}

#[test]
fn a_full_server_takes_a_lock_back_whose_process_stands_again() {
    let server = RedisServer::start();
    let one = Process::of(&server);
    let (held, first) = one.take("a", Mode::Exclusive);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let next = one.exclusive("a");
    let released = one.release_again(held.id, &next);
    assert!(matches!(released.ends[..], [End::Freed]), "{released:?}");
    let second = granted(released.again.expect("it was asked for again"));
    assert!(number(&second) > number(&first));
}

#[test]
fn a_full_server_says_busy_where_somebody_holds_the_lock() {
    let server = RedisServer::start();
    let [one, two] = [(); 2].map(|()| Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let tried = two.attempt_try(&two.exclusive("a"));
    assert!(matches!(tried, Attempt::Busy(_)), "{tried:?}");
    let tried = two.attempt_try(&two.exclusive("b"));
    let is = |error: &Error| error.kind() == ErrorKind::Refused && error.is_temporary();
    assert!(matches!(&tried, Attempt::Failed(error) if is(error)), "{tried:?}");
    assert!(matches!(one.release(held.id), End::Freed));
}

#[test]
fn a_request_is_refused_for_an_hour_at_most_and_the_number_outlives_that() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    // As of a process that did not know the server's clock yet.
    let place = Place::new(&process.exclusive("a"), None, "channel", 0);
    let watch = Keys::new("lockkeeper", 0).watch(RECORD);
    let call = Call {
        script: Which::Withdraw,
        keys: [RECORD, LINE, NUMBER, &watch].into(),
        arguments: [place.text(), &((1u64 << 53) - 1).to_string()].into(),
    };
    Pipe::to(&server).send(&[call.in_full()]);
    let lives = |key: &str| server.command(&["PTTL", key])[0].parse::<i64>().unwrap();
    assert!((3_000_000..=3_600_000).contains(&lives(LINE)), "{}", lives(LINE));
    assert!(lives(NUMBER) > lives(LINE), "{}", lives(NUMBER));
}

#[test]
fn r11_a_short_lease_that_is_renewed_under_a_line_lets_nobody_past_it() {
    let server = RedisServer::start();
    let [one, two, three] = [(); 3].map(|()| Process::of(&server));
    let mut short = one.exclusive("a");
    short.ttl = Duration::from_secs(8);
    granted(one.attempt(&short));
    let waiting = two.queue("a", Mode::Exclusive);
    let lives = |key: &str| server.command(&["PTTL", key])[0].parse::<i64>().unwrap();
    for _ in 0..3 {
        assert!(matches!(one.renew(short.id), Renewal::Extended { .. }));
        assert!(lives(LINE) > lives(RECORD), "the record goes before the line");
        assert!(lives(NUMBER) > lives(LINE), "and the number behind both");
        assert_eq!(flags(&server), "w");
    }
    // From the end of its lease on, and before somebody looks, there is no record.
    until("the one in line has it", || {
        let tried = three.attempt_try(&three.exclusive("a"));
        assert!(matches!(tried, Attempt::Busy(_)), "{tried:?}");
        two.look(Kind::Lock, "a").holders.iter().any(|h| h.claim == Some(waiting.id))
    });
    two.granted(waiting.id);
}

#[test]
fn r7_a_clock_that_was_set_back_takes_the_long_way_to_a_greater_number() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let seconds: u64 = server.command(&["TIME"])[0].parse().unwrap();
    // As if it had been an hour ahead.
    let ahead = (seconds + 3600 - 1_767_225_600) * 62_500;
    server.command(&["SET", NUMBER, &ahead.to_string()]);
    for n in 1..=3 {
        let (held, grant) = process.take("a", Mode::Exclusive);
        assert_eq!(number(&grant), ahead + n);
        assert!(matches!(process.release(held.id), End::Freed));
    }
}

#[test]
fn r7_a_last_number_that_is_none_or_too_great_to_be_counted_on_is_damage() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    for kept in ["0x10", "1e3", "-5", "1.5", " 7", "9007199254740991", "18014398509481984"] {
        server.command(&["SET", NUMBER, kept]);
        let before = server.command(&["DEBUG", "DIGEST"]);
        let claim = process.exclusive("a");
        let attempt = process.attempt_try(&claim);
        let Attempt::Failed(error) = attempt else { panic!("{kept}: {attempt:?}") };
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{kept}: {error}");
        assert!(error.message().contains(NUMBER), "{kept}: {error}");
        assert_eq!(server.command(&["DEBUG", "DIGEST"]), before, "{kept}");
    }
}

#[test]
fn a_full_server_says_busy_though_a_flag_could_go() {
    let server = RedisServer::start();
    let [one, two] = [(); 2].map(|()| Process::of(&server));
    let (_held, grant) = one.take("a", Mode::Exclusive);
    assert!(matches!(two.attempt_try(&two.exclusive("a")), Attempt::Busy(_)));
    // Somebody watched.
    let flagged = format!("2:{}:o", number(&grant));
    server.command(&["SET", NUMBER, &flagged, "KEEPTTL"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let attempt = two.attempt_try(&two.exclusive("a"));
    assert!(matches!(attempt, Attempt::Busy(Some(_))), "{attempt:?}");
    assert_eq!(server.command(&["GET", NUMBER]), [flagged.as_str()]);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(matches!(two.attempt_try(&two.exclusive("a")), Attempt::Busy(_)));
    assert_eq!(server.command(&["GET", NUMBER]), [number(&grant).to_string()]);
}

#[test]
fn a_refused_try_writes_nothing() {
    let server = RedisServer::start();
    let [one, two, three] = [(); 3].map(|()| Process::of(&server));
    let tried = |what: &str| {
        // The server learns the scripts.
        assert!(matches!(three.attempt_try(&three.exclusive("a")), Attempt::Busy(_)), "{what}");
        server.command(&["CONFIG", "RESETSTAT"]);
        let digest = server.command(&["DEBUG", "DIGEST"]);
        assert!(matches!(three.attempt_try(&three.exclusive("a")), Attempt::Busy(_)), "{what}");
        let counts = server.command_counts();
        let reads = ["time", "get", "mget", "pttl", "hget", "hgetall", "hlen", "exists", "zcard"];
        let others = ["evalsha", "zrangebyscore", "zscore", "info", "debug", "config|resetstat"];
        let mut more = counts.clone();
        more.retain(|name, _| !reads.contains(&name.as_str()) && !others.contains(&name.as_str()));
        // It looks for marks that are over, and removes none.
        more.remove("zremrangebyscore");
        assert_eq!((more, counts["evalsha"]), (BTreeMap::new(), 1), "{what}");
        assert_eq!(server.command(&["DEBUG", "DIGEST"]), digest, "{what}");
    };
    let (held, grant) = one.take("a", Mode::Exclusive);
    tried("one holder");
    // Somebody watches.
    let watch = "lockkeeper:{lock:a}:watch:0";
    let flagged = |flag| format!("2:{}:{flag}", number(&grant));
    server.command(&["SET", watch, "1"]);
    server.command(&["SET", NUMBER, &flagged("o"), "KEEPTTL"]);
    tried("a watcher");
    server.command(&["DEL", watch]);
    // Somebody has left, whose request may still be on its way.
    let until = server.command(&["TIME"])[0].parse::<u64>().unwrap() * 1_000_000 + 60_000_000;
    server.command(&["ZADD", LINE, &until.to_string(), &format!("w{:032x}", 1)]);
    server.command(&["SET", NUMBER, &flagged("w"), "KEEPTTL"]);
    tried("a mark of a withdrawal");
    server.command(&["DEL", LINE]);
    let waiting = two.queue("a", Mode::Exclusive);
    tried("a line");
    assert!(matches!(one.release(held.id), End::Freed));
    two.granted(waiting.id);
    assert!(matches!(two.release(waiting.id), End::Freed));
    one.take("a", Mode::Shared);
    two.take("a", Mode::Shared);
    tried("several holders");
    // And so of permits.
    let permits = Mode::Permits { count: 1, limit: 1 };
    one.take("gpu", permits);
    let tries = || {
        let tried = three.attempt_try(&three.claim("gpu", permits));
        assert!(matches!(tried, Attempt::Busy(_)), "{tried:?}");
    };
    tries();
    let digest = server.command(&["DEBUG", "DIGEST"]);
    assert_eq!(cost(&server, tries).0, 1);
    assert_eq!(server.command(&["DEBUG", "DIGEST"]), digest);
}

/// A connection that sends many commands at once.
pub(in crate::engine) struct Pipe(BufReader<TcpStream>);

impl Pipe {
    pub(in crate::engine) fn to(server: &RedisServer) -> Self {
        Self(BufReader::new(TcpStream::connect(("127.0.0.1", server.port())).unwrap()))
    }

    pub(in crate::engine) fn send(&mut self, commands: &[Command]) -> Vec<Value> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|command| command.encode(&mut bytes));
        self.0.get_mut().write_all(&bytes).unwrap();
        commands.iter().map(|_| self.read()).collect()
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "$" if rest == "-1" => Value::Nil,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                Value::Text(bytes)
            }
            "*" => Value::Array((0..rest.parse().unwrap()).map(|_| self.read()).collect()),
            ":" => Value::Integer(rest.parse().unwrap()),
            "+" => Value::Text(rest.as_bytes().to_vec()),
            _ => Value::Error(rest.to_owned()),
        }
    }
}
