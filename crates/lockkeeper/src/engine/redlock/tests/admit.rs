//! When members that lost their data count again.

use std::sync::Arc;
use std::time::Instant;

use lockkeeper_lab::engines::redis::server::RedisServer;

use super::super::admit::AGAIN;
use super::super::wire::Member;
use super::faults::ran;
use super::support::{KEY, Quorum, TTL, claim, open, until_it_counts};
use crate::engine::redis::client::resp::Value;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::tests::support::{granted, options, until};
use crate::engine::{Attempt, End};
use crate::words::clock::Clock;

#[test]
fn l3_nobody_takes_a_quorum_for_new_while_a_member_does_not_answer() {
    let another_run = "0".repeat(40);
    let promoted = &["HSET", KEY, "run", &another_run][..];
    let restarted_and_not_admitted_since = &["HDEL", KEY, "run"][..];
    let flushed = &["FLUSHALL"][..];
    for loses in [[promoted, promoted], [restarted_and_not_admitted_since, flushed]] {
        let quorum = Quorum::of(3);
        let one = quorum.process();
        let held = claim(&one, "a");
        let lease = granted(one.attempt(&held)).lease.and_then(|lease| lease.since);
        let until_over = lease.expect("it has one").plus(TTL);
        until("all have it", || quorum.with_record(&held) == 3);
        for (server, loses) in quorum.0.iter().zip(loses) {
            server.command(loses);
            server.command(&["DEL", "lockkeeper:{redlock:a}"]);
        }
        quorum.0[2].stop();
        // It has heard nothing of the holder, nor of the member that is admitted.
        let two = quorum.process();
        let next = claim(&two, "a");
        until("somebody is granted it", || matches!(two.attempt(&next), Attempt::Granted(_)));
        assert!(two.now() > until_over, "BROKEN LOCK: two holders");
        quorum.0[2].go_on();
    }
}

#[test]
fn whoever_was_met_before_the_others_of_a_quorum_without_an_admitted_member_waits_for_them() {
    let quorum = Quorum::long_up(3);
    let run_of = |member: usize| {
        let info = quorum.0[member].command(&["INFO", "server"]).concat();
        let run = info.lines().find_map(|line| line.trim().strip_prefix("run_id:"));
        run.expect("it tells its run").to_owned()
    };
    // The others started when no client could reach them, and were up for as long.
    quorum.0[0].command(&["HSET", KEY, "met", &format!("{} 1", run_of(0))]);
    quorum.0[2].stop();
    let one = open(&quorum.url().replace("max_ttl=2s", "max_ttl=24h")).expect("two are there");
    let first = claim(&one, "a");
    let attempt = one.attempt(&first);
    assert_eq!(quorum.0[0].command(&["HGET", KEY, "run"]), ["(nil)"], "one grants nothing alone");
    let Attempt::Unknown(error) = attempt else { panic!("{attempt:?}") };
    assert!(error.message().contains("once a majority of them can"), "{error}");
    // It is waited for what can be, and not asked for what cannot.
    let asked = |at: usize| quorum.0[at].command_counts().get("evalsha").copied();
    let before = asked(0);
    std::thread::sleep(AGAIN * 2);
    assert_eq!(asked(0), before, "it is asked in vain");
    quorum.0[2].go_on();
    until("it is granted", || matches!(one.attempt(&first), Attempt::Granted(_)));
    until("all are admitted", || {
        (0..3).all(|at| quorum.0[at].command(&["HGET", KEY, "run"]) == [run_of(at)])
    });
}

#[test]
fn l3_members_that_started_together_are_admitted_though_nobody_asks_for_a_lock() {
    let mut quorum = Quorum::of(5);
    let idle = quorum.process();
    for started in [&[0, 1][..], &[2, 3, 4]] {
        started.iter().for_each(|member| quorum.0[*member].restart());
        started.iter().for_each(|member| quorum.until_admitted(*member));
    }
    granted(idle.attempt_until(&claim(&idle, "a")));
}

#[test]
fn a_member_that_cannot_be_admitted_is_asked_about_once_a_second_and_not_with_each_claim() {
    let mut quorum = Quorum::of(3);
    quorum.0[0].set("--maxmemory", &["1"]);
    let one = quorum.process();
    granted(one.attempt_until(&claim(&one, "warm")));
    quorum.0[0].restart();
    until_it_counts(&quorum.0[0]);
    let turn = || {
        let turn = claim(&one, "a");
        granted(one.attempt_until(&turn));
        assert!(matches!(one.release(turn.id), End::Freed));
    };
    turn();
    let (before, began) = (ran(&quorum, "info")[1], Instant::now());
    (0..200).for_each(|_| turn());
    // One is of whoever counts here.
    let asked = ran(&quorum, "info")[1] - before - 1;
    let most = began.elapsed().as_secs() + 2;
    assert!(asked <= most, "{asked} times in {:?}", began.elapsed());
    assert_eq!(quorum.0[0].command(&["HGET", KEY, "run"]), ["(nil)"], "it is full");
}

#[test]
fn another_clock_skew_than_that_of_whoever_admitted_the_members_is_warned_of() {
    let quorum = Quorum::of(3);
    let warned = |options: &str| {
        let process = open(&(quorum.url() + options)).expect("the members can be used");
        let warnings = process.engine.describe().warnings;
        let of_skew = warnings.into_iter().filter(|w| w.id == "clock-skew").map(|w| w.text);
        of_skew.collect::<Vec<_>>()
    };
    let one = quorum.process();
    granted(one.attempt_until(&claim(&one, "a")));
    until("all are admitted", || {
        quorum.0.iter().all(|member| member.command(&["HGET", KEY, "clock_skew"]) == ["2000"])
    });
    assert_eq!(warned("&clock_skew=2s"), [""; 0]);
    let texts = warned("&clock_skew=1s");
    assert_eq!(texts.len(), 3, "{texts:?}");
    for (server, text) in quorum.0.iter().zip(&texts) {
        let says = format!("127.0.0.1:{} was admitted with clock_skew=2s, and", server.port());
        assert!(text.contains(&says) && text.contains("says 1s"), "{text}");
    }
}

#[test]
fn l3_a_request_to_admit_that_is_late_admits_nobody_who_was_flushed_since() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let admitted = runtime.expect("a runtime").block_on(async {
        let nobody = Arc::new(|_, _| {});
        let options = Arc::new(options(server.port()));
        let member = Member::new(options, Clock::real(), "test".into(), nobody, false);
        let driver = member.link.connect().await.expect("it is up");
        tokio::spawn(member.link.clone().keep(Some(driver), |_| {}));
        let call = |script, arguments: &[&str]| {
            member.call(Call { script, keys: [KEY].into(), arguments: arguments.iter().collect() })
        };
        let mut met = Vec::new();
        for _ in 0..2 {
            server.command(&["FLUSHALL"]);
            let told = call(Which::QuorumTell, &[]).await.expect("it answers");
            met.push(told.items()[5].text().expect("it was not admitted").to_owned());
        }
        let mut admitted = Vec::new();
        for met in &met {
            let words = [member.run().as_str(), "7", "2000", met, "1", "2000"].map(str::to_owned);
            let words = words.each_ref().map(String::as_str);
            let answer = call(Which::QuorumAdmit, &words).await.expect("it answers");
            admitted.push(answer.items().first().and_then(Value::text).map(str::to_owned));
        }
        admitted
    });
    assert_eq!(admitted, [Some("N".to_owned()), Some("Y".to_owned())]);
}
