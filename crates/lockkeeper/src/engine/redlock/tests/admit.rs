//! When members that lost their data count again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_testkit::redis::server::RedisServer;

use super::super::Redlock;
use super::super::options::RedlockOptions;
use super::super::registration::laboratory;
use super::super::wire::Member;
use super::faults::ran;
use super::support::{KEY, Quorum, claim, open, until_it_counts};
use crate::engine::redis::client::resp::Value;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::tests::support::{
    Process, granted, options, patient, read_options, until,
};
use crate::engine::{Answer, Attempt, End};
use crate::words::clock::Clock;

#[test]
fn l3_a_member_that_was_promoted_restarted_or_flushed_waits_whatever_the_others_do() {
    let another_run = "0".repeat(40);
    let promoted = &["HSET", KEY, "run", &another_run][..];
    let restarted_and_not_admitted_since = &["HDEL", KEY, "run"][..];
    let flushed = &["FLUSHALL"][..];
    for loses in [[promoted, promoted], [restarted_and_not_admitted_since, flushed]] {
        let quorum = Quorum::of(3);
        let one = quorum.process();
        let (_, until_over) = quorum.held_shortly(&one, "a");
        for (server, loses) in quorum.0.iter().zip(loses) {
            server.command(loses);
            server.command(&["DEL", "lockkeeper:{redlock:a}"]);
        }
        quorum.0[2].stop();
        // It has heard nothing of the holder, nor of the member that is admitted.
        let two = quorum.impatient();
        let next = claim(&two, "a");
        until("somebody is granted it", || matches!(two.attempt(&next), Attempt::Granted(_)));
        assert!(two.now() > until_over, "BROKEN LOCK: two holders");
        quorum.0[2].go_on();
    }
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
fn a_member_that_somebody_else_has_met_long_ago_is_admitted_by_whoever_asks_it_next() {
    const LONG: Duration = Duration::from_secs(600);
    let quorum = Quorum::of(3);
    let options = read_options(&laboratory(), &quorum.url(), |url, common| {
        RedlockOptions::take(url, common, Some(LONG))
    });
    let engine = Arc::new(Redlock::new(options.expect("it is a good URL")));
    let one = Process::around(engine.clone()).expect("the members can be used");
    let members = engine.opened().expect("it is open").clone();
    let admit = || {
        let members = members.clone();
        one.wait(Answer::later(async move { members.admit().await }));
    };
    let lost = &quorum.0[0];
    let met = || lost.command(&["HGET", KEY, "met"]).concat();
    // Once more where an answer was late.
    until("it is admitted at once", || {
        lost.command(&["FLUSHALL"]);
        admit();
        assert_eq!(lost.command(&["HGET", KEY, "run"]), ["(nil)"], "leases may last");
        // It was lost once more meanwhile, and this client is the last to hear of it.
        let told = met();
        let Some((run, us)) = told.split_once(' ') else { return false };
        let before = us.parse::<u64>().expect("microseconds") - 6 * 600_000_000;
        lost.command(&["HSET", KEY, "met", &format!("{run} {before}")]);
        admit();
        lost.command(&["HGET", KEY, "run"]) == [run]
    });
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
        one.granted_at_last(&turn);
        assert!(matches!(one.release(turn.id), End::Freed));
    };
    turn();
    // A machine with much to do gets more than one chance: answers that are late are asked after.
    until("it is asked about once a second", || {
        let (before, began) = (ran(&quorum, "info")[1], Instant::now());
        let mut turns = 0;
        // So long that twice a second is more than that.
        while turns < 200 || began.elapsed() < Duration::from_secs(4) {
            turn();
            turns += 1;
        }
        // One is of whoever counts here.
        let asked = ran(&quorum, "info")[1] - before - 1;
        let seconds = began.elapsed().as_secs();
        eprintln!("asked {asked} times in {seconds} s and {turns} turns");
        assert!(asked < turns / 2, "{asked} times in {turns} turns, which is with each claim");
        asked <= seconds + 1
    });
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
        quorum.0.iter().all(|member| member.command(&["HGET", KEY, "clock_skew"]) == ["10000"])
    });
    assert_eq!(warned("&clock_skew=10s"), [""; 0]);
    let texts = warned("&clock_skew=20s");
    assert_eq!(texts.len(), 3, "{texts:?}");
    for (server, text) in quorum.0.iter().zip(&texts) {
        let says = format!("127.0.0.1:{} was admitted with clock_skew=10s, and", server.port());
        assert!(text.contains(&says) && text.contains("says 20s"), "{text}");
    }
}

#[test]
fn l3_a_request_to_admit_that_is_late_or_early_admits_nobody() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let admitted = runtime.expect("a runtime").block_on(async {
        let nobody = Arc::new(|_, _| {});
        let options = Arc::new(patient(options(server.port())));
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
        // Of before the second loss; too soon; for less than it knows of; a member that waited.
        for (met, waited, knows) in
            [(&met[0], "0", "0"), (&met[1], "60000", "0"), (&met[1], "0", "1"), (&met[1], "0", "0")]
        {
            server.command(&["HSET", KEY, "max_ttl", knows]);
            let run = member.run();
            let answer = call(Which::QuorumAdmit, &[&run, "7", waited, met, "10000"]).await;
            let answer = answer.expect("it answers");
            admitted.push(answer.items().first().and_then(Value::text).map(str::to_owned));
        }
        admitted
    });
    assert_eq!(admitted, ["N", "N", "N", "Y"].map(|said| Some(said.to_owned())));
}
