//! What is refused, and why.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::time::Duration;

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::servers::certificates;

use super::support::{Quorum, TTL, claim, open};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, Change, End, Query, Renewal};
use crate::words::claim::{Claim, Mode};
use crate::words::error::{Error, ErrorKind};
use crate::words::guarantee::{Ability, Class};
use crate::words::name::{Kind, Name};

/// What it keeps of a name.
const LAST: &str = "lockkeeper:{redlock:a}:last";

fn failed(attempt: Attempt) -> Error {
    match attempt {
        Attempt::Failed(error) => error,
        other => panic!("not refused but {other:?}"),
    }
}

#[test]
fn what_a_quorum_has_not_is_refused_with_the_reason() {
    let quorum = Quorum::young(3);
    let process = quorum.process();
    let about = process.engine.describe();
    assert_eq!((about.class, about.fenced, about.hosts), (Class::Efficiency, true, true));
    assert!(about.breaks.iter().any(|b| b.contains("clock_skew")), "{about:?}");
    assert!(about.can.has(Ability::Shared));
    assert_eq!(about.max_ttl, Some(Duration::from_secs(24 * 3600)));
    for ability in [Ability::Upgrade, Ability::Permits, Ability::Latch, Ability::Election] {
        assert!(!about.can.has(ability), "{ability:?}");
    }
    let mut delayed = claim(&process, "a");
    delayed.lock_delay = Duration::from_secs(1);
    let mut elected = claim(&process, "a");
    elected.kind = Kind::Election;
    for asked in [
        process.claim("a", Mode::Upgradable),
        process.claim("a", Mode::Permits { count: 1, limit: 3 }),
        delayed,
        elected,
    ] {
        let error = failed(process.attempt(&asked));
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("only exclusive"), "{error}");
    }
    let mut long = claim(&process, "a");
    long.ttl = Duration::from_secs(24 * 3600 + 1);
    let error = failed(process.attempt(&long));
    assert!(
        error.kind() == ErrorKind::InvalidArgument && error.message().contains("max_ttl=86400s")
    );
    let name = Name::new("a").expect("a good name");
    for change in [Change::LatchSet(name.clone(), 1), Change::Resize(name.clone(), 1)] {
        let error = process.wait(process.engine.write(&change)).expect_err("no such thing");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    let query = Query::One(Kind::Semaphore, name);
    assert!(process.wait(process.engine.read(&query)).is_err());
}

/// Servers that answer each client so, and no more.
pub(super) fn answering(answer: &'static [u8]) -> Vec<String> {
    let one = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = listener.local_addr().expect("it is bound").to_string();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let mut client = client.expect("a client");
                // Whoever has gone meanwhile misses nothing.
                let asked = client.read(&mut [0; 4096]);
                let told = asked.and_then(|_| client.write_all(answer));
                // What it has not read yet, an end with unread words of its own would throw away.
                let ended = told.and_then(|()| client.shutdown(Shutdown::Write));
                let _ = ended.and_then(|()| std::io::copy(&mut client, &mut std::io::sink()));
            }
        });
        at
    };
    (0..3).map(|_| one()).collect()
}

#[test]
fn a_refusal_that_passes_by_itself_keeps_nobody_out_of_a_majority() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let full = answering(b"-ERR max number of clients reached\r\n");
    let at = servers.iter().map(|server| format!("127.0.0.1:{}", server.port()));
    let at: Vec<String> = at.chain(full.into_iter().take(1)).collect();
    // Who opens waits so long for the third.
    let process = open(&format!("redlock://{}?server_timeout=1m", at.join(",")));
    let process = process.expect("two are a majority");
    until("the third is named with its reason", || {
        let warnings = process.engine.describe().warnings;
        warnings.iter().any(|w| w.id == "member-refuses" && w.text.contains("(maxclients)"))
    });
}

#[test]
fn tls_on_one_side_only_is_named_by_the_word_that_a_quorum_has() {
    let refused = |at: Vec<String>, options: &str| {
        open(&format!("redlock://{}?{options}", at.join(","))).err().expect("it cannot be used")
    };
    let directory = tempfile::tempdir().expect("a directory");
    let ca = certificates::make(directory.path()).join("ca.pem");
    let plain = refused(answering(b"-ERR\r\n"), &format!("tls=true&tls_ca={}", ca.display()));
    // As a port for TLS takes a plain greeting.
    let secure = refused(answering(b""), "");
    // They answer, and nobody waits for it; who only closes the connection may be away.
    assert!(!plain.is_outage() && !plain.is_temporary(), "{plain}");
    let no_tls = "does not speak TLS on this port: give its TLS port, or leave out tls=true";
    for (error, kind, says) in [
        (plain, ErrorKind::Refused, no_tls),
        (secure, ErrorKind::Unreachable, "if it wants TLS, add tls=true"),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(says), "{error}");
        assert!(!error.message().contains("://"), "{error}");
    }
}

#[test]
fn fewer_members_than_a_majority_are_named_with_what_each_says() {
    let (mut one, mut two, three) =
        (RedisServer::start(), RedisServer::start(), RedisServer::start());
    let at = [&one, &two, &three].map(|server| format!("127.0.0.1:{}", server.port()));
    one.kill();
    two.kill();
    let error = open(&format!("redlock://{}?connect_timeout=2s", at.join(","))).err();
    let error = error.expect("there is no majority");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.message().starts_with("1 of 3 members"), "{error}");
    assert!(error.message().contains(&at[0]) && error.message().contains(&at[1]), "{error}");
    assert!(!error.message().contains(&at[2]), "{error}");
}

#[test]
fn members_that_have_just_started_are_named_with_the_time_from_which_they_count() {
    let young = |process: &Process| {
        process.engine.describe().warnings.into_iter().filter(|w| w.id == "member-young").count()
    };
    // Again where they were met for so long before they were asked.
    let mut met = None;
    until("it is told when they count", || {
        let quorum = Quorum::young(3);
        let process = quorum.process();
        let warned = young(&process);
        let asked = claim(&process, "a");
        let told = match process.attempt(&asked) {
            Attempt::Unknown(error) => {
                assert_eq!(error.kind(), ErrorKind::Unreachable);
                warned == 3 && error.message().contains("2s after a client first met it")
            }
            Attempt::Granted(_) => false,
            other => panic!("they do not count: {other:?}"),
        };
        met = told.then_some((asked, process, quorum));
        told
    });
    let (asked, process, _quorum) = met.expect("they were asked in time");
    until("they count", || matches!(process.attempt(&asked), Attempt::Granted(_)));
    // The last of them may have started a moment later than the others.
    until("all count", || {
        assert!(matches!(process.renew(asked.id), Renewal::Extended { .. }));
        young(&process) == 0
    });
}

#[test]
fn c8_a_record_that_cannot_be_read_is_told_and_never_taken_for_a_free_name() {
    let quorum = Quorum::of(3);
    let process = quorum.process();
    let write = |text: &str, members: usize| {
        for server in &quorum.0[..members] {
            server.command(&["SET", "lockkeeper:{redlock:a}", text]);
        }
    };
    for (text, kind) in [
        ("what somebody else wrote", ErrorKind::Corrupt),
        ("2 of a later release", ErrorKind::NewerLayout),
    ] {
        write(text, 2);
        assert_eq!(failed(process.attempt(&claim(&process, "a"))).kind(), kind, "{text}");
        let entry = process.look(Kind::Lock, "a");
        assert_eq!(entry.unreadable.map(|why| why.kind), Some(kind));
    }
    quorum.until_clean_but("a", 2);
    // A minority keeps nobody out.
    for server in &quorum.0 {
        server.command(&["DEL", "lockkeeper:{redlock:a}"]);
    }
    write("what somebody else wrote", 1);
    granted(process.attempt(&claim(&process, "a")));
}

#[test]
fn a_probe_is_cleared_from_each_member_and_says_whether_words_get_through() {
    let quorum = Quorum::long_up(3);
    let url = quorum.url();
    let process = open(&url).expect("the members can be used");
    let name = Name::new("a").expect("a good name");
    let clear = |process: &Process| {
        process.wait(process.engine.clear_probe(&name)).expect("a majority answers")
    };
    let numbers = || -> Vec<String> {
        let exists = |server: &RedisServer| server.command(&["EXISTS", LAST]).concat();
        quorum.0.iter().map(exists).collect()
    };
    let held = claim(&process, "a");
    granted(process.attempt(&held));
    until("all have it", || quorum.with_record(&held) == 3);
    assert!(clear(&process).is_empty());
    assert_eq!(numbers(), ["1", "1", "1"], "whoever holds keeps its number");
    assert!(matches!(process.release(held.id), End::Freed));
    quorum.until_clean("a");
    let reads = Claim { ttl: TTL, ..process.claim("a", Mode::Shared) };
    granted(process.attempt(&reads));
    until("all have it", || quorum.records("a").iter().all(|text| text == "2 readers"));
    assert!(clear(&process).is_empty());
    assert_eq!(numbers(), ["1", "1", "1"], "whoever reads, too");
    assert!(matches!(process.release(reads.id), End::Freed));
    quorum.until_clean("a");
    // As soon as all answer in time.
    until("nothing is left", || {
        assert!(clear(&process).is_empty());
        numbers() == ["0", "0", "0"]
    });
    let deny = |server: &RedisServer| {
        let rules = ["~lockkeeper:*", "&*", "+@all", "-publish"];
        server.command(&[&["ACL", "SETUSER", "shop", "on", ">pw"], &rules[..]].concat());
    };
    let allow = ["ACL", "SETUSER", "shop", "+publish"];
    quorum.0.iter().for_each(deny);
    let deaf = open(&url.replace("://", "://shop:pw@")).expect("the members can be used");
    let [told] = &clear(&deaf)[..] else { panic!("a majority lets no word through") };
    assert_eq!(told.id, "publish-refused");
    assert!(told.text.starts_with("user shop may not publish"), "{}", told.text);
    // A majority wakes whoever waits; the third is named.
    quorum.0[..2].iter().for_each(|server| drop(server.command(&allow)));
    let [told] = &clear(&deaf)[..] else { panic!("one lets no word through") };
    let at = format!("user shop may not publish on the member 127.0.0.1:{}", quorum.0[2].port());
    assert!(told.id == "publish-refused" && told.text.starts_with(&at), "{}", told.text);
}
