//! Tokens rise over majorities that know different numbers, and over members that forget them (R7).

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use super::super::recipe::Said;
use super::super::wire::Member;
use super::faults::ran;
use super::support::{KEY, Quorum, SHORT, SOME_AWAY, claim, open};
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::tests::support::{Process, granted, opened, options, patient, until};
use crate::engine::{Attempt, End, Number, Renewal};
use crate::words::clock::Clock;
use crate::words::id::ClaimId;
use crate::words::name::Kind;
use crate::words::token::{Token, next_number};

/// Far above every clock, so that only what members keep can be the reason for greater ones.
pub(super) const FAR: u64 = 1 << 50;

impl Quorum {
    pub(super) fn last(&self, name: &str) -> Vec<String> {
        let key = format!("lockkeeper:{{redlock:{name}}}:last");
        self.0.iter().map(|server| server.command(&["GET", &key]).concat()).collect()
    }

    pub(super) fn set_last(&self, member: usize, name: &str, number: u64) {
        let key = format!("lockkeeper:{{redlock:{name}}}:last");
        self.0[member].command(&["SET", &key, &number.to_string()]);
    }

    /// In place of one that does not wait for long, a process that is connected to all and waits
    /// for what each of them says: where too few of those that remember are heard, the clocks
    /// decide above which number a member begins.
    fn hears_all_unlike(&self, one: Process) -> Process {
        drop(one);
        let process = self.process_with("max_ttl=24h&server_timeout=10m&request_timeout=1m");
        until("all are connected", || {
            process.engine.describe().warnings.iter().all(|warning| warning.id != "member-down")
        });
        process
    }

    /// Whether a member that has lost its data was told of this number.
    fn begins_above(&self, member: usize, number: u64) -> bool {
        let floor = self.0[member].command(&["HGET", KEY, "floor"]).concat();
        floor.parse().is_ok_and(|floor: u64| floor >= number)
    }
}

/// One turn of a process, and its number.
pub(super) fn turn(process: &Process, name: &str) -> u64 {
    let turn = claim(process, name);
    let number = number(Attempt::Granted(process.granted_at_last(&turn)));
    assert!(matches!(process.release(turn.id), End::Freed));
    number
}

/// Members that lost their data count once that was seen long enough ago.
fn until_they_count(process: &Process) {
    until("a majority counts", || {
        let probe = claim(process, "probe");
        match process.attempt_until(&probe) {
            Attempt::Granted(_) => matches!(process.release(probe.id), End::Freed),
            Attempt::Unknown(_) => {
                process.withdraw(probe.id);
                false
            }
            other => panic!("{other:?}"),
        }
    });
}

fn number(attempt: Attempt) -> u64 {
    match granted(attempt).number {
        Number::Ours(number) => number,
        other => panic!("{other:?} is no number of ours"),
    }
}

#[test]
fn r7_members_that_agree_are_asked_once_and_all_keep_the_number() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    // The scripts are known after this.
    let mut last = turn(&one, "a");
    turn(&two, "b");
    for _ in 0..5 {
        quorum.until_clean("a");
        let before = ran(&quorum, "evalsha");
        let held = claim(&two, "a");
        let number = number(two.attempt(&held));
        until("all have it", || quorum.with_record(&held) == 3);
        let ran: Vec<u64> =
            ran(&quorum, "evalsha").iter().zip(before).map(|(now, was)| now - was).collect();
        assert_eq!(ran, [1; 3], "one flight");
        assert!(number > last, "BROKEN LOCK: {number} follows {last}");
        assert_eq!(quorum.last("a"), vec![number.to_string(); 3]);
        let [shown] = &one.look(Kind::Lock, "a").holders[..] else { panic!("it is held") };
        assert_eq!(shown.token, Token::of(number, 0));
        assert!(matches!(two.release(held.id), End::Freed));
        last = number;
    }
}

#[test]
fn r7_l6_of_different_numbers_the_greatest_is_kept_by_a_majority() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    // Somebody's minority: nobody was told that number.
    for (member, number) in [(0, FAR + 7), (1, FAR), (2, FAR + 3)] {
        quorum.set_last(member, "a", number);
    }
    let held = claim(&one, "a");
    let first = number(one.attempt(&held));
    assert_eq!(first, FAR + 8);
    until("all keep it", || quorum.last("a") == vec![first.to_string(); 3]);
    assert_eq!(number(one.attempt(&held)), first, "the same hold has the same number");
    assert!(matches!(one.release(held.id), End::Freed));
    // Whoever knows nothing of it gets a greater one of any two.
    for away in &quorum.0 {
        quorum.until_clean("a");
        away.stop();
        let next = turn(&two, "a");
        assert!(next > first, "{next} follows {first}");
        away.go_on();
    }
}

#[test]
fn r7_a_member_with_a_number_that_can_be_none_does_not_count_and_the_others_go_on() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let refuses = |process: &Process| {
        let warnings = process.engine.describe().warnings;
        let texts: Vec<String> =
            warnings.into_iter().filter(|w| w.id == "member-refuses").map(|w| w.text).collect();
        texts
    };
    let mut last = turn(&one, "a");
    let member = format!("127.0.0.1:{}", quorum.0[0].port());
    // Two numbers are one to Lua from the first on; that one is reserved; the last is none at all.
    for wrong in ["1152921504606846976", "9007199254740993", "9007199254740991", "1e3"] {
        quorum.0[0].command(&["SET", "lockkeeper:{redlock:a}:last", wrong]);
        for _ in 0..2 {
            for process in [&one, &two] {
                let next = turn(process, "a");
                assert!(next > last, "BROKEN LOCK: {wrong}: {next} follows {last}");
                last = next;
                assert!(last < FAR, "{wrong}: it is one of the others' numbers: {last}");
            }
        }
        until("it is told", || {
            turn(&one, "a");
            matches!(&refuses(&one)[..], [text] if text.contains(&member) && text.contains(":last"))
        });
        last = turn(&one, "a");
        let kept = quorum.last("a");
        assert_eq!((kept[0].as_str(), &kept[1], &kept[1]), (wrong, &kept[2], &last.to_string()));
    }
    // What is wrong about the member itself spreads to no other, and ends with its repair.
    quorum.0[0].command(&["DEL", "lockkeeper:{redlock:a}:last"]);
    quorum.0[0].command(&["HSET", KEY, "top", "1152921504606846976"]);
    let next = turn(&two, "b");
    assert!(next < FAR, "{next}");
    quorum.0[0].command(&["HDEL", KEY, "top"]);
    until("it counts again", || {
        turn(&two, "b");
        refuses(&two).is_empty()
    });
    // A majority of such members grants nothing, and says why.
    for member in [0, 1] {
        quorum.set_last(member, "a", 1 << 60);
    }
    let asked = claim(&one, "a");
    let Attempt::Failed(error) = one.attempt(&asked) else { panic!("two lie") };
    assert!(error.message().contains("lockkeeper:{redlock:a}:last"), "{error}");
}

#[test]
fn r7_b4_a_number_at_the_end_of_all_spreads_to_no_other_member_nor_from_name_to_name() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    turn(&one, "a");
    let end = 1 << 53;
    // The scripts would read the last one, and clients believe none.
    for wrong in [end - 4, end - 3, end - 2, end - (1 << 20), tick_of(&quorum.0[0]) + (3 << 50)] {
        quorum.set_last(0, "a", wrong);
        for name in ["a", "b", "c", "a"] {
            for process in [&one, &two] {
                let number = turn(process, name);
                assert!(number < FAR, "{wrong}: {name} has {number}");
            }
        }
        // Nor does a member that has lost its data begin above it.
        quorum.0[2].command(&["FLUSHALL"]);
        until("it is admitted", || {
            let probe = claim(&one, "probe");
            if let Attempt::Granted(_) = one.attempt_until(&probe) {
                assert!(matches!(one.release(probe.id), End::Freed));
            } else {
                one.withdraw(probe.id);
            }
            quorum.0[2].command(&["HGET", KEY, "run"]).concat().len() == 40
        });
        for member in &quorum.0[1..] {
            for kept in ["top", "ahead", "floor"] {
                let kept = member.command(&["HGET", KEY, kept]).concat();
                assert!(kept.parse().is_ok_and(|kept: u64| kept < FAR) || kept == "(nil)");
            }
        }
        // What it kept for itself is for somebody to repair.
        quorum.0[0].command(&["DEL", "lockkeeper:{redlock:a}:last"]);
        quorum.0[0].command(&["HDEL", KEY, "top", "ahead"]);
    }
    // A client that believes it brings it to nobody.
    let run = quorum.0[1].command(&["HGET", KEY, "run"]).concat();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let admitted = runtime.expect("a runtime").block_on(async {
        let options = Arc::new(patient(options(quorum.0[1].port())));
        let nobody = Arc::new(|_, _| {});
        let member = Member::new(options, Clock::real(), "test".into(), nobody, false);
        let driver = member.link.connect().await.expect("it is up");
        tokio::spawn(member.link.clone().keep(Some(driver), |_| {}));
        let words = [&*run, &(end - 2).to_string(), "90000000", "0", "10000"];
        let keys = [KEY].into();
        let call = Call { script: Which::QuorumAdmit, keys, arguments: words.into() };
        member.call(call).await
    });
    let error = admitted.expect_err("no floor is there");
    assert!(error.message().contains(KEY), "{error}");
    assert!(turn(&one, "a") < FAR);
}

#[test]
fn r7_a_renewal_spreads_the_number_to_those_who_did_not_hear_it() {
    let quorum = Quorum::of(3);
    let one = quorum.process_with(SOME_AWAY);
    quorum.set_last(0, "a", FAR);
    quorum.0[2].stop();
    let held = claim(&one, "a");
    let number = number(one.attempt(&held));
    quorum.0[2].go_on();
    until("all keep it", || {
        assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
        // One that has lost the record meanwhile is restored with the next number.
        quorum.last("a").iter().all(|last| last.parse().is_ok_and(|last: u64| last >= number))
    });
}

#[test]
fn r7_a_member_that_comes_back_empty_begins_above_all_that_the_others_know() {
    let mut quorum = Quorum::of(3);
    let one = quorum.process_with(SOME_AWAY);
    // Told while the third is away: only the first two know it.
    quorum.set_last(0, "a", FAR);
    quorum.0[2].stop();
    let before = turn(&one, "a");
    assert!(before > FAR);
    quorum.0[2].go_on();
    quorum.until_clean("a");
    let _admits = quorum.hears_all_unlike(one);
    quorum.0[0].restart();
    assert_eq!(quorum.last("a")[0], "(nil)");
    until("it is admitted", || quorum.begins_above(0, before));
    let two = quorum.process_with(SOME_AWAY);
    quorum.0[1].stop();
    let after = turn(&two, "a");
    assert!(after > before, "{after} follows {before}");
    quorum.0[1].go_on();
}

#[test]
fn r7_a_member_that_comes_back_with_older_data_begins_above_all_that_the_others_know() {
    let mut quorum = Quorum::of(3);
    let one = quorum.process();
    turn(&one, "a");
    until("it keeps the number", || quorum.last("a")[0] != "(nil)");
    assert_eq!(quorum.0[0].command(&["SAVE"]), ["OK"]);
    (0..2).for_each(|member| quorum.set_last(member, "a", FAR));
    let before = turn(&one, "a");
    assert!(before > FAR);
    quorum.until_clean("a");
    // As if the third had been away.
    quorum.0[2].command(&["DEL", "lockkeeper:{redlock:a}:last"]);
    quorum.0[2].command(&["HDEL", KEY, "top"]);
    let _admits = quorum.hears_all_unlike(one);
    quorum.0[0].restart();
    let older: u64 = quorum.last("a")[0].parse().expect("it has its older data");
    assert!(older < FAR, "{older}");
    until("it is admitted", || quorum.begins_above(0, before));
    let two = quorum.process_with(SOME_AWAY);
    quorum.0[1].stop();
    let after = turn(&two, "a");
    assert!(after > before, "{after} follows {before}");
    quorum.0[1].go_on();
}

#[test]
fn r7_a_member_that_lost_its_data_while_it_runs_is_admitted_above_what_the_others_know() {
    let quorum = Quorum::of(3);
    let one = quorum.process_with(SOME_AWAY);
    quorum.set_last(0, "a", FAR);
    quorum.0[2].stop();
    let before = turn(&one, "a");
    quorum.0[2].go_on();
    quorum.until_clean("a");
    let admits = quorum.hears_all_unlike(one);
    quorum.0[0].command(&["FLUSHALL"]);
    let held = claim(&admits, "b");
    granted(admits.attempt_until(&held));
    until("it is admitted", || {
        assert!(matches!(admits.renew(held.id), Renewal::Extended { .. }));
        quorum.begins_above(0, before)
    });
    let two = quorum.process_with(SOME_AWAY);
    quorum.0[1].stop();
    let after = turn(&two, "a");
    assert!(after > before, "{after} follows {before}");
    quorum.0[1].go_on();
}

/// A try for `b`.
fn take(claim: &str, run: &str) -> Call {
    let member = "lockkeeper:redlock";
    let keys = ["b", "b:last", member, "b:readers", "b:line", "b:signs", "b:turn"].into();
    let late = "9000000000000000";
    let words = [claim, "1", "2000", late, "who", "1", "1", "0", run, "2000", "b:free"];
    Call { script: Which::QuorumTake, keys, arguments: words.into() }
}

#[test]
fn r7_a_yes_that_was_asked_of_another_run_does_not_count() {
    let quorum = Quorum::of(3);
    turn(&quorum.process(), "a");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let counts = runtime.expect("a runtime").block_on(async {
        let options = Arc::new(patient(options(quorum.0[0].port())));
        let nobody = Arc::new(|_, _| {});
        let member = Member::new(options, Clock::real(), "test".into(), nobody, false);
        let driver = member.link.connect().await.expect("it is up");
        tokio::spawn(member.link.clone().keep(Some(driver), |_| {}));
        let mut counts = Vec::new();
        // As after a restart with older data, whose hash names the run that this was sent to.
        for run in [member.run(), "0123456789".into()] {
            quorum.0[0].command(&["HSET", "lockkeeper:redlock", "run", &run]);
            let call = take(&ClaimId::fresh().to_string(), &run);
            let started = member.link.start(&[call.by_name()]);
            let heard = member.follow(started, &call, SHORT, |send| Some(send())).await;
            counts.push(matches!(heard.said, Said::Yes { counts: true, .. }));
            quorum.0[0].command(&["DEL", "b"]);
        }
        counts
    });
    assert_eq!(counts, [true, false]);
}

#[test]
fn r7_a_number_that_can_be_none_is_believed_of_no_member_wherever_it_stands() {
    let quorum = Quorum::of(3);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let heard = runtime.expect("a runtime").block_on(async {
        let options = Arc::new(patient(options(quorum.0[0].port())));
        let nobody = Arc::new(|_, _| {});
        let member = Member::new(options, Clock::real(), "test".into(), nobody, false);
        let driver = member.link.connect().await.expect("it is up");
        tokio::spawn(member.link.clone().keep(Some(driver), |_| {}));
        let (run, claim) = (member.run(), ClaimId::fresh().to_string());
        // Our own record, of a later round, as no script of ours writes it.
        let record = format!("1 {claim} 1 9 1152921504606846976 1790000000000000 2000 who");
        quorum.0[0].command(&["SET", "b", &record, "PX", "60000"]);
        let call = take(&claim, &run);
        let started = member.link.start(&[call.by_name()]);
        member.follow(started, &call, SHORT, |send| Some(send())).await
    });
    assert!(heard.said == Said::Unclear && heard.number == 0, "it may have our record");
    let error = heard.error.expect("it says why");
    assert!(error.message().contains("1152921504606846976 for b"), "{error}");
}

#[test]
fn r7_members_that_all_lose_their_data_begin_above_their_clocks() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    quorum.0.iter().for_each(|server| drop(server.command(&["FLUSHALL"])));
    until_they_count(&one);
    let last = turn(&one, "c");
    quorum.0.iter().for_each(|server| drop(server.command(&["FLUSHALL"])));
    until_they_count(&two);
    assert!(turn(&two, "c") > last);
}

#[test]
fn r7_a_number_that_is_kept_no_more_is_not_fallen_short_of() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    // As of a clock that was far ahead once, and was put right.
    (0..3).for_each(|member| quorum.set_last(member, "a", FAR));
    let before = turn(&one, "a");
    assert!(before > FAR);
    quorum.until_clean("a");
    let last = "lockkeeper:{redlock:a}:last";
    quorum.0.iter().for_each(|server| drop(server.command(&["DEL", last])));
    let after = turn(&two, "a");
    assert!(after > before, "{after} follows {before}");
}

#[test]
fn names_that_nobody_used_cost_one_flight_while_others_use_others() {
    let quorum = Quorum::of(3);
    let one = quorum.process();
    turn(&one, "warm");
    quorum.until_clean("warm");
    // As others' grants of a moment ago, which reached the members in another order, and whose
    // proposals knew the fastest clock better.
    for (server, ahead_s) in quorum.0.iter().zip([5, 6, 7]) {
        let number = tick_of(server) + ahead_s * 62_500;
        server.command(&["HSET", "lockkeeper:redlock", "top", &number.to_string()]);
    }
    let before = ran(&quorum, "evalsha");
    for name in 0..5 {
        granted(one.attempt(&claim(&one, &format!("order/{name}"))));
    }
    until("every member has answered all", || {
        ran(&quorum, "evalsha").iter().zip(&before).all(|(now, was)| now - was >= 5)
    });
    let ran: Vec<u64> =
        ran(&quorum, "evalsha").iter().zip(before).map(|(now, was)| now - was).collect();
    assert_eq!(ran, [5; 3], "one flight for each name");
}

#[test]
fn r7_a_member_whose_clock_is_an_hour_ahead_or_a_day_behind_takes_no_token_back() {
    let hour = Duration::from_secs(3600);
    // The last one is a day behind, and has never kept the number.
    for (of_off, one_is_away) in [(169, false), (169, true), (167, false), (167, true), (0, true)] {
        let clocks = [(); 2].map(|()| ClockShim::new().expect("cc is there"));
        let start = |clock: &ClockShim| {
            let [(preload, library), (control, file)] = clock.environment();
            let environment =
                [(preload, &*library.to_string_lossy()), (control, &*file.to_string_lossy())];
            RedisServer::start_in(&[], &environment)
        };
        let [right, off] = &clocks;
        let mut quorum = Quorum::young(0);
        quorum.0.extend([right, right, off].map(start));
        quorum.admit();
        let before = turn(&quorum.process(), "a");
        quorum.until_clean("a");
        // A week later nobody keeps its number any more, and one clock is an hour wrong.
        let last = "lockkeeper:{redlock:a}:last";
        quorum.0.iter().for_each(|server| drop(server.command(&["DEL", last])));
        right.step(Clocks::Wall, hour * 168).expect("the file is ours");
        match of_off {
            0 => off.step_back(Clocks::Wall, hour * 24),
            of_off => off.step(Clocks::Wall, hour * of_off),
        }
        .expect("the file is ours");
        if of_off == 0 {
            quorum.0[2].command(&["HDEL", KEY, "top"]);
        }
        if one_is_away {
            quorum.0[0].stop();
        }
        // Whoever is stopped is waited for to the end of that time.
        let two = opened(|| open(&(quorum.url() + "&connect_timeout=1s")));
        let asked = claim(&two, "a");
        let number = match granted(two.attempt_until(&asked)).number {
            Number::Ours(number) => number,
            other => panic!("{other:?} is no number of ours"),
        };
        assert!(number > before, "TOKEN BACK: {number} follows {before}");
        let (tick, minute) = (tick_of(&quorum.0[1]), 60 * 62_500);
        assert!(number < tick + minute, "{of_off}: {number} is far above {tick}");
        if one_is_away {
            quorum.0[0].go_on();
        }
    }
}

/// The time of a server, as a number.
pub(super) fn tick_of(server: &RedisServer) -> u64 {
    let time = server.command(&["TIME"]);
    let part = |at: usize| time[at].parse::<u64>().expect("a number");
    next_number(0, part(0) * 1_000_000 + part(1)).expect("it is of this century")
}

#[test]
fn whoever_knows_numbers_far_above_the_clocks_is_no_later_contender_because_of_that() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    (0..3).for_each(|member| quorum.set_last(member, "a", FAR));
    assert!(turn(&one, "a") > FAR);
    let first = |process| {
        let held = claim(process, "b");
        let number = number(process.attempt_until(&held));
        let record = quorum.records("b").into_iter().find(|record| record.len() > 10);
        let record = record.expect("it is there");
        assert!(matches!(process.release(held.id), End::Freed));
        quorum.until_clean("b");
        let first: u64 = record.split(' ').nth(2).expect("it has one").parse().expect("a number");
        (first, number)
    };
    // Each tells it by its own reading of the members' clocks, which is as exact as its round trip
    // was short: which of the two is the smaller says nothing.
    let ((earlier, far), (later, _)) = (first(&one), first(&two));
    assert!(far > FAR && earlier.max(later) < FAR, "they began at {earlier} and {later}");
}

#[test]
fn r7_what_is_refused_drives_no_number() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let before = turn(&one, "a");
    let held = claim(&one, "b");
    granted(one.attempt_until(&held));
    // More refusals than a clock goes on meanwhile would be needed to see it in a token; so the
    // numbers are far ahead of every clock.
    (0..3).for_each(|member| quorum.set_last(member, "a", FAR));
    assert!(turn(&two, "a") > FAR);
    for _ in 0..100 {
        let refused = two.attempt_try(&claim(&two, "b"));
        assert!(matches!(refused, Attempt::Busy(_)), "{refused:?}");
    }
    let after = turn(&two, "a");
    assert!(before < FAR && after <= FAR + 2, "{} numbers for nothing", after - FAR - 2);
}
