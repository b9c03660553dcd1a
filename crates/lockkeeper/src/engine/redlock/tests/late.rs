//! A caller that is late itself, and what is said where too few of the answers count.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use lockkeeper_testkit::proxy::{Proxy, Way};

use super::support::{Proxied, TTL, claim};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Answer, Attempt, BoxFuture, Line, Renewal};
use crate::words::claim::Claim;

/// An attempt that is sent, and whose answers nobody hears before it is polled again. Members'
/// answers are held back.
fn sent(process: &Process, claim: &Claim) -> BoxFuture<Attempt> {
    let Answer::Later(mut attempt) = process.engine.attempt(claim, Line::Join) else {
        panic!("no member answers at once")
    };
    let (is_sent, attempt) = process.wait(Answer::later(async move {
        let is_sent = poll_fn(|cx| Poll::Ready(attempt.as_mut().poll(cx).is_pending())).await;
        (is_sent, attempt)
    }));
    assert!(is_sent, "no member has answered");
    attempt
}

fn long(process: &Process, name: &str) -> Claim {
    Claim { ttl: TTL * 60, ..claim(process, name) }
}

#[test]
fn a_caller_that_looks_late_hears_all_answers_that_came_in_time() {
    const IN_TIME: Duration = Duration::from_millis(600);
    let proxied = Proxied::of(3);
    let one = proxied.process("max_ttl=24h&server_timeout=600ms&request_timeout=1m");
    let mut turn = 0;
    // Again where they did not come in time.
    until("a majority answers in time", || {
        turn += 1;
        let [late, behind] = ["a", "b"].map(|name| long(&one, &format!("{name}{turn}")));
        proxied.proxies.iter().for_each(|proxy| proxy.hold(Way::Down));
        let began = Instant::now();
        let attempt = sent(&one, &late);
        proxied.proxies.iter().for_each(Proxy::heal);
        // Over the same connections: a majority's answers to the first were read before these.
        one.granted_at_last(&behind);
        let in_time = began.elapsed() < IN_TIME;
        until("its time is over", || began.elapsed() > IN_TIME + Duration::from_millis(100));
        let attempt = one.wait(Answer::Later(attempt));
        let is_granted = matches!(attempt, Attempt::Granted(_));
        assert!(is_granted || !in_time, "not granted but {attempt:?}");
        is_granted && in_time
    });
}

#[test]
fn a_question_that_another_one_came_after_says_so() {
    let proxied = Proxied::of(3);
    let one = proxied.process("max_ttl=24h&server_timeout=1m&request_timeout=1m");
    let asked = long(&one, "a");
    proxied.proxies.iter().for_each(|proxy| proxy.hold(Way::Down));
    let (first, second) = (sent(&one, &asked), sent(&one, &asked));
    proxied.proxies.iter().for_each(Proxy::heal);
    granted(one.wait(Answer::Later(second)));
    let Attempt::Unknown(error) = one.wait(Answer::Later(first)) else {
        panic!("its answers are none to the question that came after it")
    };
    let says = "it was asked for again, or given back, before a majority of the members had \
                answered";
    assert_eq!(error.message(), says);
}

#[test]
fn a_member_that_lost_the_record_of_a_hold_is_named_where_too_few_extend_it() {
    let proxied = Proxied::of(3);
    let one = proxied.process("max_ttl=24h&server_timeout=1m&request_timeout=10s");
    let held = long(&one, "a");
    granted(one.attempt(&held));
    until("all have it", || proxied.quorum.with_record(&held) == 3);
    proxied.proxies[0].blackhole(Way::Down);
    proxied.quorum.0[1].command(&["DEL", "lockkeeper:{redlock:a}"]);
    let Renewal::Unknown(error) = one.renew(held.id) else { panic!("one has it") };
    let lost = format!("127.0.0.1:{} has no record of it", proxied.proxies[1].port());
    let text = error.message();
    assert!(text.starts_with("1 of 3 members") && text.contains(&lost), "{text}");
}

#[test]
fn r11_a_member_that_another_claim_found_late_a_moment_ago_is_waited_for_all_the_same() {
    let proxied = Proxied::of(3);
    let one = proxied.process("max_ttl=24h&server_timeout=5s&request_timeout=1m");
    proxied.proxies[..2].iter().for_each(|proxy| proxy.hold(Way::Down));
    let tried = one.attempt_try(&long(&one, "a"));
    assert!(!matches!(tried, Attempt::Granted(_)), "two of three are late: {tried:?}");
    let asked = long(&one, "b");
    std::thread::scope(|scope| {
        let attempt = scope.spawn(|| one.attempt(&asked));
        let round = || proxied.quorum.records("b")[0].split(' ').nth(3).map(str::to_owned);
        until("it is asked once more", || round().is_some_and(|round| round == "2"));
        proxied.proxies[0].heal();
        granted(attempt.join().expect("no panic"));
    });
}
