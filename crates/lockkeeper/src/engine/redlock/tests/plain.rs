//! The layout of redsync, node-redlock and RedLock.net, against the very commands of theirs.

use std::sync::Arc;

use lockkeeper_testkit::redis::server::RedisServer;

use super::super::plain::{Others, Plain, Request};
use super::super::recipe::{Said, Verb};
use super::super::wire::Member;
use super::support::{PATIENT, Proxied, Quorum, SHORT, TTL, claim, open};
use crate::engine::redis::options::ValueFormat;
use crate::engine::redis::tests::support::{Process, granted, options, patient, until};
use crate::engine::{Attempt, Change, End, Event, Number, Renewal};
use crate::words::claim::{Claim, Ends};
use crate::words::clock::Clock;
use crate::words::error::{Error, ErrorKind};
use crate::words::guarantee::Ability;
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// What every one of them sends to give back.
const RELEASE: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then return \
                       redis.call('del',KEYS[1]) else return 0 end";

fn plain(quorum: &Quorum, options: &str) -> Process {
    open(&format!("{}&layout=plain{options}", quorum.url())).expect("the members can be used")
}

/// What each member has in a key.
fn values(quorum: &Quorum, key: &str) -> Vec<String> {
    quorum.0.iter().map(|server| server.command(&["GET", key]).concat()).collect()
}

/// Why an attempt failed.
pub(super) fn refused(attempt: Attempt) -> Error {
    match attempt {
        Attempt::Failed(error) => error,
        other => panic!("not refused but {other:?}"),
    }
}

#[test]
fn plain_writes_what_the_others_write() {
    let quorum = Quorum::grown(3);
    for (value, key, length) in
        [("hex", "{name}", 32), ("guid", "redlock:{name}", 36), ("base64", "mutex:{name}", 24)]
    {
        let process = plain(&quorum, &format!("&value={value}&key={key}"));
        let about = process.engine.describe();
        assert_eq!((about.layout, about.fenced), ("plain", false));
        assert!(about.can.has(Ability::Force) && !about.can.has(Ability::List));
        let key = key.replace("{name}", "a {b} é");
        // No machine is so slow that it ends before the others have asked.
        let held = Claim { ttl: TTL * 10, ..claim(&process, "a {b} é") };
        assert_eq!(granted(process.attempt(&held)).number, Number::None);
        until("all have it", || values(&quorum, &key).iter().all(|value| value.len() == length));
        let text = values(&quorum, &key)[0].clone();
        assert_eq!(values(&quorum, &key), vec![text.clone(); 3]);
        for server in &quorum.0 {
            let ttl: u64 = server.command(&["PTTL", &key])[0].parse().expect("it has one");
            assert!((2_001..=600_000).contains(&ttl), "{ttl}");
            let theirs = ["SET", &key, "theirs", "NX", "PX", "30000"];
            assert_eq!(server.command(&theirs), ["(nil)"], "they wait for us");
            // Nothing else stands there.
            assert_eq!(server.command(&["DBSIZE"]), ["1"]);
        }
        let [holder] = &process.look(Kind::Lock, "a {b} é").holders[..] else { panic!("held") };
        assert_eq!((holder.label.as_ref(), holder.claim, holder.token), (Some(&text), None, None));
        assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
        assert!(matches!(process.release(held.id), End::Freed));
        assert!(matches!(process.release(held.id), End::NotOurs));
        until("nothing is left", || values(&quorum, &key) == vec!["(nil)"; 3]);
    }
}

#[test]
fn plain_waits_for_a_foreign_majority_and_is_woken_by_its_release() {
    let quorum = Quorum::grown(3);
    let process = plain(&quorum, "");
    // One that a dead program left keeps nobody out.
    quorum.0[2].command(&["SET", "a", "dead", "NX", "PX", "60000"]);
    let alone = claim(&process, "a");
    granted(process.attempt(&alone));
    assert!(matches!(process.release(alone.id), End::Freed));
    until("it is free", || values(&quorum, "a")[..2] == ["(nil)", "(nil)"]);
    for set in [&["SET", "a", "theirs", "NX", "PX", "30000"][..], &["SETNX", "a", "theirs"]] {
        for server in &quorum.0[..2] {
            server.command(set);
        }
        let Attempt::Busy(Some(holder)) = process.attempt_try(&claim(&process, "a")) else {
            panic!("they have a majority")
        };
        assert_eq!(holder.label.as_deref(), Some("theirs"));
        assert_eq!(holder.ends == Some(Ends::Never), set[0] == "SETNX", "{holder:?}");
        process.by_word_alone();
        let waiting = claim(&process, "a");
        process.queue_claim(&waiting);
        for server in &quorum.0[..2] {
            assert_eq!(server.command(&["EVAL", RELEASE, "1", "a", "theirs"]), ["1"]);
        }
        process.event("a wake-up", |event| {
            matches!(event, Event::Wake { claim } if *claim == waiting.id).then_some(())
        });
        granted(process.attempt_until(&waiting));
        assert!(matches!(process.release(waiting.id), End::Freed));
        until("it is free", || values(&quorum, "a")[..2] == ["(nil)", "(nil)"]);
    }
}

#[test]
fn r10_a_plain_waiter_is_woken_by_members_that_it_reached_again() {
    let proxied = Proxied::before(Quorum::long_up(3));
    let url = proxied.quorum.url() + "&layout=plain";
    let one = open(&url).expect("the members can be used");
    let two = proxied.process(&format!("{PATIENT}&layout=plain"));
    let (held, waiting) = (claim(&one, "a"), claim(&two, "a"));
    granted(one.attempt(&held));
    until("all have it", || values(&proxied.quorum, "a").iter().all(|value| value.len() == 32));
    two.by_word_alone();
    two.queue_claim(&waiting);
    // What was read over a connection that is gone is told to nobody.
    for proxy in &proxied.proxies[..2] {
        let before = proxy.accepted();
        proxy.cut();
        until("it is connected again", || {
            let down = |w: &crate::words::guarantee::Warning| w.id == "member-down";
            proxy.accepted() > before && !two.engine.describe().warnings.iter().any(down)
        });
    }
    assert!(matches!(one.release(held.id), End::Freed));
    two.event("a wake-up", |event| match event {
        Event::Wake { claim } | Event::Granted { claim, .. } => {
            (*claim == waiting.id).then_some(())
        }
        _ => None,
    });
    granted(two.attempt_until(&waiting));
}

#[test]
fn plain_is_taken_away_from_those_who_were_shown() {
    let quorum = Quorum::grown(3);
    let process = plain(&quorum, "&value=base64");
    let held = claim(&process, "a");
    granted(process.attempt(&held));
    until("all have it", || values(&quorum, "a").iter().all(|value| value.len() == 24));
    let name = Name::new("a").expect("a good name");
    let shown = process.look(Kind::Lock, "a").holders;
    let mut other = shown.clone();
    other[0].label = Some("AAAAAAAAAAAAAAAAAAAAAA==".into());
    assert!(!process.change(&Change::Force(Kind::Lock, name.clone(), other)));
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    assert!(process.change(&Change::Force(Kind::Lock, name, shown)));
    assert!(matches!(process.renew(held.id), Renewal::Gone(_)));
}

#[test]
fn plain_errors_name_what_helps_in_this_layout() {
    let quorum = Quorum::grown(3);
    let process = plain(&quorum, "");
    let owner = "9c2f4a1e-6f0b-4a55-8a3c-1f2e3d4c5b6a:42";
    for server in &quorum.0 {
        server.command(&["HSET", "a", owner, "1"]);
        server.command(&["ACL", "SETUSER", "shop", "on", ">pw", "~other:*", "&*", "+@all"]);
    }
    let error = refused(process.attempt(&claim(&process, "a")));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    for says in ["the key a is of another type", "in layout=plain", "layout=redisson"] {
        assert!(error.message().contains(says), "{says}: {error}");
    }
    let url = quorum.url().replace("://", "://shop:pw@");
    let narrow = open(&format!("{url}&layout=plain")).expect("the members can be used");
    let error = refused(narrow.attempt(&claim(&narrow, "b")));
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    for says in ["the names' keys and channels", "ACL SETUSER shop", "the keys are b"] {
        assert!(error.message().contains(says), "{says}: {error}");
    }
    assert!(!error.message().contains("namespace"), "{error}");
}

#[test]
fn l3_a_plain_member_counts_once_it_has_been_up_for_the_longest_lease() {
    // Again where they had been up for so long before they were asked.
    let mut young = None;
    until("it is told when they count", || {
        let quorum = Quorum::young(3);
        let process = plain(&quorum, "");
        let asked = claim(&process, "a");
        let told = match process.attempt(&asked) {
            Attempt::Unknown(error) => {
                assert_eq!(error.kind(), ErrorKind::Unreachable);
                error.message().contains("up for 2s")
            }
            Attempt::Granted(_) => false,
            other => panic!("they do not count: {other:?}"),
        };
        young = told.then_some((asked, process, quorum));
        told
    });
    let (asked, process, _quorum) = young.expect("they were asked in time");
    until("they count", || matches!(process.attempt(&asked), Attempt::Granted(_)));
}

/// How many of ten locks that somebody holds on a majority somebody else is granted within the
/// lease, once one member of that majority was flushed.
fn granted_twice(layout: &str, key: fn(&str) -> String) -> usize {
    let quorum = Quorum::of(3);
    let url = format!("{}&layout={layout}", quorum.url());
    let [one, two] = [&url, &url].map(|url| open(url).expect("the members can be used"));
    let names: Vec<String> = (0..10).map(|n| format!("flushed/{n}")).collect();
    let keys: Vec<String> = names.iter().map(|name| key(name)).collect();
    for name in &names {
        granted(one.attempt_until(&claim(&one, name)));
    }
    let has = |server: &RedisServer, key: &String| server.command(&["EXISTS", key]) == ["1"];
    until("all have them", || quorum.0.iter().all(|server| keys.iter().all(|k| has(server, k))));
    // As where the third was not reached.
    keys.iter().for_each(|key| drop(quorum.0[2].command(&["DEL", key])));
    quorum.0[1].command(&["FLUSHALL"]);
    let second = |name: &&String| {
        let asked = two.attempt_try(&claim(&two, name));
        matches!(asked, Attempt::Granted(_))
    };
    names.iter().filter(second).count()
}

#[test]
fn l1_a_flushed_member_gives_a_second_holder_in_the_layouts_of_others_and_none_in_native() {
    for layout in ["plain", "redisson"] {
        let twice = granted_twice(layout, str::to_owned);
        assert!(twice >= 9, "{layout}: {twice} of 10");
    }
    let twice = granted_twice("native", |name| format!("lockkeeper:{{redlock:{name}}}"));
    assert_eq!(twice, 0, "BROKEN LOCK: a flushed member waits there");
}

#[test]
fn r3_a_late_request_to_give_back_deletes_nothing_that_a_later_round_wrote() {
    let quorum = Quorum::grown(3);
    let redisson = |fair| Others::Redisson { fair };
    for others in [Others::Value(ValueFormat::Base64), redisson(false), redisson(true)] {
        late_requests_delete_nothing(&quorum, others);
    }
}

fn late_requests_delete_nothing(quorum: &Quorum, others: Others) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let said = runtime.expect("a runtime").block_on(async {
        let options = Arc::new(patient(options(quorum.0[0].port())));
        let nobody = Arc::new(|_, _| {});
        let member = Member::new(options, Clock::real(), "test".into(), nobody, false);
        let driver = member.link.connect().await.expect("it is up");
        tokio::spawn(member.link.clone().keep(Some(driver), |_| {}));
        let plain = Plain { key: "{name}".into(), others };
        let name = Name::new("a").expect("a good name");
        let mut said = Vec::new();
        let id = ClaimId::fresh();
        let steps =
            [(Verb::Take, 2), (Verb::Give, 1), (Verb::Take, 1), (Verb::Give, 1), (Verb::Give, 2)];
        for (verb, round) in steps {
            let run = member.run();
            let not_after_us = 9_000_000_000_000_000;
            let channel = None;
            let (claim, ttl_ms, waits) = (id, 2_000, true);
            let request = Request { claim, round, ttl_ms, not_after_us, run, channel, waits };
            let call = plain.call(&plain.keys(&name), verb, request);
            let started = member.link.start(&[call.by_name()]);
            said.push(member.follow(started, &call, SHORT, |send| Some(send())).await.said);
        }
        said
    });
    let yes = Said::Yes { counts: true, number: 0 };
    assert_eq!(said, [yes, Said::Nothing, yes, Said::Nothing, Said::Gave]);
}

#[test]
fn b8_a_member_that_tells_waiters_nothing_is_named() {
    let quorum = Quorum::grown(3);
    for (server, denied) in quorum.0.iter().zip(["+@all", "+@all", "-client|tracking"]) {
        let user = ["ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", denied];
        server.command(&user);
    }
    let open = |layout: &str| {
        let url = format!("{}&layout={layout}", quorum.url()).replace("://", "://ann:pw@");
        open(&url).expect("the members can be used")
    };
    let deaf = |process: &Process| {
        let warnings = process.engine.describe().warnings;
        let told = warnings.into_iter().filter(|w| w.id == "tracking-refused");
        told.map(|w| w.text).collect::<Vec<_>>()
    };
    let plain = open("plain");
    until("it is told", || !deaf(&plain).is_empty());
    let member = format!("127.0.0.1:{}", quorum.0[2].port());
    let [text] = &deaf(&plain)[..] else { panic!("one of them") };
    assert!(text.contains(&member) && text.contains("ACL SETUSER ann"), "{text}");
    assert!(deaf(&open("redisson")).is_empty(), "there waiters listen to a channel");
}
