//! What a quorum that forgot must not do, whatever the URLs of its clients say and however their
//! time of day is set (R1, R7).

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::redis::server::RedisServer;

use super::super::wire::Member;
use super::support::{KEY, Proxied, Quorum, SHORT, TTL, claim, open, open_at, short};
use super::tokens::{tick_of, turn};
use crate::engine::redis::client::resp::Value;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::tests::support::{Process, granted, number, options, patient, until};
use crate::engine::{Attempt, End};
use crate::words::claim::Claim;
use crate::words::clock::Clock;
use crate::words::error::ErrorKind;
use crate::words::id::ClaimId;
use crate::words::lost::Lost;

/// So many numbers are a second.
const SECOND: u64 = 62_500;

/// Much longer than another client's leases, and than it takes to see what it does meanwhile.
const LEASE: Duration = Duration::from_secs(20);

/// Two of three members lose everything while somebody holds who cannot be told; the third one is
/// away. Another client with this option, whose time of day is set forward by so much.
fn a_second_client_waits(option: &str, step: Duration) {
    let mut proxied = Proxied::before(Quorum::long_up(3));
    let through = proxied.url("server_timeout=30s&request_timeout=1m").replace("-lab", "");
    let one = open(&through).expect("the members can be used");
    let held = Claim { ttl: LEASE, ..claim(&one, "a") };
    let grant = granted(one.attempt_until(&held));
    let since = grant.lease.as_ref().and_then(|lease| lease.since);
    let until_over = since.expect("it has a lease").plus(LEASE);
    // It would write its record again.
    proxied.proxies.iter().for_each(|proxy| proxy.refuse(true));
    proxied.proxies.iter().for_each(Proxy::cut);
    let quorum = &mut proxied.quorum;
    quorum.0[2].stop();
    quorum.0[..2].iter_mut().for_each(RedisServer::restart);
    let times = "server_timeout=30s&request_timeout=1m";
    let url = format!("{}?{times}{option}", quorum.bare_url());
    let clock = Clock::real();
    let two = open_at(&url, clock.clone()).expect("two are a majority");
    let next = short(&two, "a");
    clock.jump(step);
    while one.now() < until_over {
        let attempt = two.attempt(&next);
        assert!(!matches!(attempt, Attempt::Granted(_)), "BROKEN LOCK: two hold it");
        let Attempt::Unknown(error) = attempt else { panic!("{attempt:?}") };
        assert!(error.message().contains("counts in"), "{error}");
        let after = error.retry_after().expect("it is known when a majority counts");
        assert!(!after.is_zero() && after <= Duration::from_secs(60), "{after:?}");
    }
    quorum.pass(Duration::from_secs(61));
    // Whoever comes now is told how long ago they were met.
    let three = open(&url).expect("two are a majority");
    let second = until_granted(&three, &claim(&three, "a"));
    assert!(second > number(&grant), "BROKEN LOCK: {second} follows {}", number(&grant));
    quorum.0[2].go_on();
}

#[test]
fn r1_a_url_with_a_lesser_max_ttl_lets_no_second_holder_in() {
    a_second_client_waits("&max_ttl=2s&ttl=2s", Duration::ZERO);
}

#[test]
fn h1_a_client_whose_time_of_day_is_set_forward_waits_as_long_as_others() {
    a_second_client_waits("", Duration::from_secs(600));
}

#[test]
fn h1_a_plain_member_is_waited_for_by_a_clock_that_no_time_of_day_moves() {
    let quorum = Quorum::young(3);
    let clock = Clock::real();
    let url = quorum.bare_url() + "?server_timeout=30s&request_timeout=1m&layout=plain";
    let process = open_at(&url, clock.clone()).expect("the members can be used");
    clock.jump(Duration::from_secs(600));
    let attempt = process.attempt(&claim(&process, "a"));
    let Attempt::Unknown(error) = attempt else { panic!("they do not count: {attempt:?}") };
    assert!(error.message().contains("up for 1m"), "{error}");
}

#[test]
fn h2_a_client_whose_time_of_day_is_set_forward_proposes_no_number_of_then() {
    let quorum = Quorum::of(3);
    let clock = Clock::real();
    let process = open_at(&quorum.url(), clock.clone()).expect("the members can be used");
    let before = turn(&process, "a");
    quorum.until_clean("a");
    clock.jump(Duration::from_secs(56 * 365 * 24 * 3600));
    let number = turn(&process, "a");
    // They began so far above the clocks when they were admitted.
    let most = tick_of(&quorum.0[0]) + 10 * SECOND;
    assert!(before < number && number <= most, "{before}, then {number}");
}

#[test]
fn h2_a_member_gives_no_number_that_is_far_above_what_it_knows_and_keeps_one_that_others_gave() {
    let quorum = Quorum::of(3);
    let process = quorum.process();
    let held = claim(&process, "a");
    let before = number(&granted(process.attempt_until(&held)));
    assert!(matches!(process.release(held.id), End::Freed));
    quorum.until_clean("a");
    let far = before + 3_600 * SECOND;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let [given, kept] = runtime.expect("a runtime").block_on(async {
        let nobody = Arc::new(|_, _| {});
        let options = Arc::new(patient(options(quorum.0[0].port())));
        let member = Member::new(options, Clock::real(), "test".into(), nobody, false);
        let driver = member.link.connect().await.expect("it is up");
        tokio::spawn(member.link.clone().keep(Some(driver), |_| {}));
        let record = "lockkeeper:{redlock:a}";
        let [last, readers] = ["last", "readers"].map(|key| format!("{record}:{key}"));
        let [line, signs, turn] = ["line", "signs", "turn"].map(|key| format!("{record}:{key}"));
        let keys = [record, &last, KEY, &readers, &line, &signs, &turn];
        let (claim, run) = (ClaimId::fresh().to_string(), member.run());
        let ask = |script, words: &[&str]| {
            let arguments = words.iter().copied().collect();
            member.call(Call { script, keys: keys.into_iter().collect(), arguments })
        };
        let number = |value: Value| value.items()[2].unsigned().expect("it has one");
        let far = far.to_string();
        let late = "9000000000000000";
        let take = [&claim, "1", "2000", late, "who", &far, "1", "0", &run, "2000", "a"];
        let given = ask(Which::QuorumTake, &take).await.expect("it answers");
        let keep = [&*claim, "2000", &far, "1", &run];
        let kept = ask(Which::QuorumKeep, &keep).await.expect("it answers");
        [number(given), number(kept)]
    });
    assert_eq!((given, kept), (before + 1, far));
}

#[test]
fn h3_a_server_that_answers_under_two_names_has_one_voice() {
    let mut quorum = Quorum::of(3);
    let process = quorum.process_with("max_ttl=24h&server_timeout=2s&request_timeout=1m");
    turn(&process, "a");
    quorum.until_clean("a");
    // As of a member whose clock is nine seconds ahead: the first and the third keep it.
    quorum.0[1].stop();
    quorum.set_last(0, "a", tick_of(&quorum.0[0]) + 9 * SECOND);
    let before = turn(&process, "a");
    quorum.until_gone("a", &[0, 2]);
    quorum.0[1].go_on();
    let port = quorum.0[2].port();
    quorum.0[2].kill();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("nobody listens there");
    let _proxy = Proxy::at(listener, quorum.0[1].port());
    until("the third name leads to the second", || is_twin(&process, port));
    quorum.0[0].command(&["FLUSHALL"]);
    let next = claim(&process, "a");
    let after = until_granted(&process, &next);
    assert!(after > before, "BROKEN LOCK: {after} follows {before}");
    assert!(matches!(process.release(next.id), End::Freed));
    // Nor do two voices of one server make a majority.
    quorum.0[0].stop();
    let attempt = process.attempt(&claim(&process, "b"));
    let Attempt::Unknown(error) = attempt else { panic!("one is no majority: {attempt:?}") };
    assert!(says_twin(error.message(), port), "{error}");
    quorum.0[0].go_on();
}

#[test]
fn h3_what_a_server_has_under_one_name_is_given_back_under_the_other() {
    let mut quorum = Quorum::of(3);
    let process = quorum.process();
    turn(&process, "warm");
    quorum.0[0].kill();
    let held = Claim { ttl: TTL * 10, ..claim(&process, "a") };
    granted(process.attempt_until(&held));
    let port = quorum.0[0].port();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("nobody listens there");
    let proxy = Proxy::at(listener, quorum.0[1].port());
    until("the first name leads to the second", || proxy.connections() > 0);
    until("it has one vote", || is_twin(&process, port));
    assert!(!is_twin(&process, quorum.0[1].port()), "the older connection has the vote");
    assert!(matches!(process.renew(held.id), crate::engine::Renewal::Extended { .. }));
    assert!(matches!(process.release(held.id), End::Freed));
    quorum.until_gone("a", &[1, 2]);
    let next = claim(&process, "a");
    granted(process.attempt_until(&next));
}

/// Whether this tells that a member is one already, while it is connected or after it was left.
fn says_twin(text: &str, port: u16) -> bool {
    let already = format!("Redis at 127.0.0.1:{port} is a member already");
    let same = format!("127.0.0.1:{port} and ");
    text.contains(&already) || text.contains(&same) && text.contains("are the same server")
}

fn is_twin(process: &Process, port: u16) -> bool {
    process.engine.describe().warnings.iter().any(|warning| says_twin(&warning.text, port))
}

/// Asks until it is granted, also while too few count.
fn until_granted(process: &Process, claim: &Claim) -> u64 {
    let mut told = None;
    until("it is granted", || match process.attempt(claim) {
        Attempt::Granted(grant) => {
            told = Some(number(&grant));
            true
        }
        _ => false,
    });
    told.expect("it was granted")
}

#[test]
fn h5_a_release_by_who_lost_a_part_of_its_hold_is_not_illegal() {
    let quorum = Quorum::long_up(5);
    let one = quorum.process();
    let held = claim(&one, "a");
    granted(one.attempt_until(&held));
    until("all have it", || quorum.with_record(&held) == 5);
    let loses = ["DEL", "lockkeeper:{redlock:a}"];
    quorum.0[2..].iter().for_each(|server| drop(server.command(&loses)));
    let end = one.release(held.id);
    assert!(matches!(end, End::Gone(Lost::TakenAway)), "{end:?}");
}

#[test]
fn r2_a_server_whose_clock_was_set_back_behind_its_start_is_a_member_all_the_same() {
    let quorum = Quorum::long_up(3);
    quorum.set_back(Duration::from_secs(48 * 3600 + 600));
    let up = quorum.0[0].command(&["INFO", "server"]).concat();
    assert!(up.contains("uptime_in_seconds:-"), "{up}");
    let process = quorum.process();
    granted(process.attempt_until(&claim(&process, "a")));
    // In the layouts where nobody is admitted it is waited for.
    let plain = |url: String| open(&(url + "?layout=plain")).expect("the members can be used");
    let long = plain(quorum.bare_url());
    let attempt = long.attempt(&short(&long, "b"));
    assert!(matches!(attempt, Attempt::Unknown(_)), "they may have just started: {attempt:?}");
    let process = plain(quorum.url().split('?').next().expect("it has one").to_owned());
    let asked = claim(&process, "b");
    until("they count", || matches!(process.attempt(&asked), Attempt::Granted(_)));
}

#[test]
fn r2_a_member_whose_clock_is_set_back_while_it_waits_is_admitted_all_the_same() {
    let quorum = Quorum::long_up(3);
    quorum.0[0].command(&["FLUSHALL"]);
    let met = || quorum.0[0].command(&["HGET", KEY, "met"]).concat();
    let process = quorum.process();
    until("it is met", || met().len() > 40);
    quorum.set_back(Duration::from_secs(3_600));
    drop(process);
    let _admits = quorum.process();
    quorum.until_admitted(0);
}

#[test]
fn all_members_that_are_flushed_while_they_run_wait_as_those_that_start_do() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let held = short(&one, "a");
    let grant = one.granted_at_last(&held);
    let since = grant.lease.as_ref().and_then(|lease| lease.since);
    let until_over = since.expect("it has a lease").plus(SHORT);
    quorum.0.iter().for_each(|server| drop(server.command(&["FLUSHALL"])));
    let next = claim(&two, "a");
    let second = until_granted(&two, &next);
    assert!(two.now() > until_over, "BROKEN LOCK: two holders");
    assert!(second > number(&grant), "BROKEN LOCK: {second} follows {}", number(&grant));
}

#[test]
fn r17_members_that_an_older_release_admitted_wait_and_are_of_this_layout_then() {
    let quorum = Quorum::of(3);
    for server in &quorum.0 {
        server.command(&["HSET", KEY, "layout", "1", "max_ttl", "2000"]);
    }
    let url = quorum.bare_url() + "?server_timeout=30s&request_timeout=1m";
    let long = open(&url).expect("the members can be used");
    let attempt = long.attempt(&claim(&long, "a"));
    let Attempt::Unknown(error) = attempt else { panic!("they waited for less: {attempt:?}") };
    assert!(error.message().contains("counts in"), "{error}");
    let process = quorum.process();
    until_granted(&process, &claim(&process, "b"));
    let layout = |at: usize| quorum.0[at].command(&["HGET", KEY, "layout"]).concat();
    until("all are of this layout", || (0..3).all(|at| layout(at) == "2"));
    quorum.0.iter().for_each(|server| drop(server.command(&["HSET", KEY, "layout", "3"])));
    let refused = process.attempt(&claim(&process, "c"));
    let Attempt::Failed(error) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), ErrorKind::NewerLayout);
    assert!(error.message().contains("layout 3 and this release knows 2"), "{error}");
}

#[test]
fn what_members_wait_for_is_the_longest_lease_of_all_that_asked_for_one_and_never_less() {
    let quorum = Quorum::long_up(3);
    let longest = || quorum.0[0].command(&["HGET", KEY, "max_ttl"]).concat();
    assert_eq!(longest(), "2000", "the laboratory's");
    for (option, says) in [("?max_ttl=5m", "300000"), ("", "300000"), ("?max_ttl=6m", "360000")] {
        let process = open(&(quorum.bare_url() + option)).expect("the members can be used");
        process.granted_at_last(&short(&process, "a"));
        until("it is known", || longest() == says);
    }
    // Whoever comes next waits for that, whatever its own URL says.
    quorum.0.iter().for_each(|server| drop(server.command(&["HDEL", KEY, "run"])));
    let process = quorum.process();
    let attempt = process.attempt(&claim(&process, "b"));
    let Attempt::Unknown(error) = attempt else { panic!("they do not count: {attempt:?}") };
    let waits = "6m (max_ttl in its hash lockkeeper:redlock, of another URL) after a client";
    assert!(error.message().contains(waits), "{error}");
}
