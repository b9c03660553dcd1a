//! Readers beside each other, writers beside nobody, and what is left of either.

use lockkeeper_testkit::proxy::{Fault, Way};

use super::faults::ran;
use super::support::{Proxied, Quorum, SHORT, TTL, claim};
use super::tokens::FAR;
use crate::engine::redis::tests::support::{Process, granted, number, until};
use crate::engine::{Attempt, Change, End, Event, Line, Renewal};
use crate::words::claim::{Claim, Mode};
use crate::words::error::ErrorKind;
use crate::words::id::ClaimId;
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

impl Quorum {
    /// The fields of each member's readers.
    fn readers(&self, name: &str) -> Vec<Vec<String>> {
        let key = format!("lockkeeper:{{redlock:{name}}}:readers");
        self.0.iter().map(|server| server.command(&["HKEYS", &key])).collect()
    }

    fn read_by(&self, claim: &Claim) -> usize {
        let id = claim.id.to_string();
        self.readers(claim.name.as_str()).iter().filter(|readers| readers.contains(&id)).count()
    }

    fn until_unread(&self, name: &str) {
        let key = format!("lockkeeper:{{redlock:{name}}}:readers");
        let empty = || self.0.iter().all(|server| server.command(&["EXISTS", &key]) == ["0"]);
        until("nobody reads", empty);
        self.until_clean(name);
    }
}

fn reader(process: &Process, name: &str) -> Claim {
    Claim { ttl: TTL, ..process.claim(name, Mode::Shared) }
}

/// Waits until a waiter is woken: members' words do that, and its own look does not.
fn woken(process: &Process, id: ClaimId) {
    process.event("a wake-up", |event| {
        matches!(event, Event::Wake { claim } if *claim == id).then_some(())
    });
}

#[test]
fn r13_one_reader_more_than_a_name_may_have_is_refused_until_another_is_over() {
    const FILL: &str = "for i = 1, 16384 do redis.call('HSET', KEYS[1], string.format('%032x', \
                        i), ARGV[1]) end";
    let quorum = Quorum::of(3);
    let process = quorum.process();
    let key = "lockkeeper:{redlock:a}:readers";
    for server in &quorum.0 {
        server.command(&["EVAL", FILL, "1", key, "9000000000000000 living"]);
    }
    let Attempt::Failed(error) = process.attempt(&reader(&process, "a")) else {
        panic!("there is no room")
    };
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.message().contains("16384 readers"), "{error}");
    assert!(error.is_temporary(), "{error}");
    for server in &quorum.0 {
        assert_eq!(server.command(&["HLEN", key]), ["16384"], "nothing was written");
        server.command(&["HSET", key, &format!("{:032x}", 1), "1 over"]);
    }
    granted(process.attempt(&reader(&process, "a")));
}

#[test]
fn readers_hold_beside_each_other_and_the_last_one_wakes_the_writer() {
    let quorum = Quorum::of(3);
    let processes: Vec<Process> = (0..3).map(|_| quorum.process()).collect();
    let [one, two, three] = &processes[..] else { panic!("there are three") };
    let before = number(&granted(one.attempt_until(&claim(one, "warm"))));
    let readers = [reader(one, "a"), reader(two, "a")];
    let numbers: Vec<u64> = [one, two]
        .iter()
        .zip(&readers)
        .map(|(process, reader)| number(&granted(process.attempt(reader))))
        .collect();
    assert!(numbers.iter().all(|number| *number > before), "{numbers:?} follow {before}");
    until("all have both", || readers.iter().all(|reader| quorum.read_by(reader) == 3));

    // What a release without readers makes of it: a record of a later layout (R17).
    assert_eq!(quorum.records("a"), ["2 readers"; 3]);
    let tried = claim(three, "a");
    let Attempt::Busy(Some(holder)) = three.attempt_try(&tried) else { panic!("it is read") };
    assert_eq!(holder.mode, Some(Mode::Shared));
    assert!(readers.iter().any(|reader| holder.claim == Some(reader.id)), "{holder:?}");
    let shown = three.look(Kind::Lock, "a").holders;
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert!(shown.iter().all(|holder| holder.mode == Some(Mode::Shared)), "{shown:?}");
    assert_eq!(three.list("").iter().filter(|entry| entry.name.as_str() == "a").count(), 1);

    let waiting = claim(three, "a");
    three.queue_claim(&waiting);
    assert_eq!((quorum.with_record(&tried), quorum.with_record(&waiting)), (0, 0));
    assert!(matches!(one.release(readers[0].id), End::Freed));
    assert!(matches!(one.release(readers[0].id), End::NotOurs));
    assert!(matches!(two.renew(readers[1].id), Renewal::Extended { .. }));
    assert!(matches!(two.release(readers[1].id), End::Freed));
    woken(three, waiting.id);
    let after = number(&granted(three.attempt_until(&waiting)));
    assert!(numbers.iter().all(|number| *number < after), "{after} follows {numbers:?}");

    // And readers wait for it.
    let refused = one.attempt_try(&reader(one, "a"));
    assert!(matches!(refused, Attempt::Busy(Some(_))), "{refused:?}");
    let next = reader(two, "a");
    two.queue_claim(&next);
    assert!(matches!(three.release(waiting.id), End::Freed));
    woken(two, next.id);
    assert!(number(&granted(two.attempt_until(&next))) > after);
    assert!(matches!(two.release(next.id), End::Freed));
    quorum.until_unread("a");
}

#[test]
fn r17_readers_stop_a_release_that_knows_none_of_them_and_no_other_name() {
    let quorum = Quorum::of(3);
    let process = quorum.process();
    let (held, alone) = (reader(&process, "a"), claim(&process, "b"));
    granted(process.attempt_until(&held));
    granted(process.attempt_until(&alone));
    until("all have both", || quorum.read_by(&held) == 3 && quorum.with_record(&alone) == 3);
    // Such a release reads the number that a record begins with, and nothing else.
    let begins = |name: &str| quorum.records(name).iter().all(|text| text.starts_with("2 "));
    assert!(begins("a") && !begins("b"), "{:?}", quorum.records("a"));
    for server in &quorum.0 {
        let ttl = |key: &str| server.command(&["PTTL", key]).concat().parse::<i64>().unwrap();
        let (word, readers) = ("lockkeeper:{redlock:a}", "lockkeeper:{redlock:a}:readers");
        assert!(ttl(word) > 0 && ttl(word) <= ttl(readers) + 100, "it goes with the last of them");
    }
    assert!(matches!(process.release(held.id), End::Freed));
    quorum.until_unread("a");
    granted(process.attempt_until(&claim(&process, "a")));
}

#[test]
fn a_reader_costs_one_flight_whoever_reads_beside_it() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    for process in [&one, &two] {
        let warm = reader(process, "a");
        granted(process.attempt_until(&warm));
        assert!(matches!(process.renew(warm.id), Renewal::Extended { .. }));
        assert!(matches!(process.release(warm.id), End::Freed));
        quorum.until_unread("a");
    }
    let held = reader(&one, "a");
    granted(one.attempt(&held));
    until("all have it", || quorum.read_by(&held) == 3);
    let before = ran(&quorum, "evalsha");
    let beside = reader(&two, "a");
    granted(two.attempt(&beside));
    until("all have it", || quorum.read_by(&beside) == 3);
    let asked: Vec<u64> =
        ran(&quorum, "evalsha").iter().zip(before).map(|(now, was)| now - was).collect();
    assert!(asked.iter().all(|asked| *asked == 1), "{asked:?}");
    // Asked for twice it is there once, and one release is enough (R3).
    granted(two.attempt(&beside));
    assert!(matches!(two.release(beside.id), End::Freed));
    until("it is gone", || quorum.read_by(&beside) == 0);
    assert_eq!(quorum.read_by(&held), 3);
}

#[test]
fn r7_l6_readers_over_members_that_know_different_numbers_have_tokens_in_order() {
    let quorum = Quorum::of(3);
    let processes: Vec<Process> = (0..3).map(|_| quorum.process()).collect();
    let [one, two, three] = &processes[..] else { panic!("there are three") };
    granted(one.attempt_until(&claim(one, "warm")));
    for (member, last) in [(0, FAR + 7), (1, FAR), (2, FAR + 3)] {
        quorum.set_last(member, "a", last);
    }
    // No two members answer the same: a majority keeps the greatest before it is told.
    let (first, second) = (reader(one, "a"), reader(two, "a"));
    let told = number(&granted(one.attempt(&first)));
    assert_eq!(told, FAR + 8);
    until("all keep it", || quorum.last("a") == vec![told.to_string(); 3]);
    // The same while somebody reads.
    for (member, last) in [(0, FAR + 20), (1, FAR + 40)] {
        quorum.set_last(member, "a", last);
    }
    let beside = number(&granted(two.attempt(&second)));
    assert_eq!(beside, FAR + 41);
    until("all keep it", || quorum.last("a") == vec![beside.to_string(); 3]);
    // The first keeps its own, which no renewal changes.
    assert!(matches!(one.renew(first.id), Renewal::Extended { .. }));
    assert_eq!(number(&granted(one.attempt(&first))), told);
    assert!(matches!(one.release(first.id), End::Freed));
    assert!(matches!(two.release(second.id), End::Freed));
    quorum.until_unread("a");
    for away in &quorum.0 {
        away.stop();
        let writes = claim(three, "a");
        let after = number(&granted(three.attempt_until(&writes)));
        assert!(after > beside, "{after} follows {beside}");
        away.go_on();
        assert!(matches!(three.release(writes.id), End::Freed));
        quorum.until_unread("a");
    }
}

#[test]
fn of_several_readers_one_that_crashes_ends_by_itself_and_leaves_nothing() {
    let quorum = Quorum::of(3);
    let mut processes: Vec<Process> = (0..4).map(|_| quorum.process()).collect();
    let writer = quorum.process();
    let mut readers: Vec<Claim> = processes.iter().map(|process| reader(process, "a")).collect();
    for (process, reader) in processes.iter().zip(&readers) {
        granted(process.attempt_until(reader));
    }
    processes[1].release(readers[1].id);
    let mut dies_until = processes[1].now();
    // Again where the lease of the one that dies is over before all have it.
    until("all have them", || {
        readers[1] = Claim { ttl: SHORT, ..reader(&processes[1], "a") };
        let lease = processes[1].granted_at_last(&readers[1]).lease.and_then(|lease| lease.since);
        dies_until = lease.expect("it has a lease").plus(SHORT);
        let all_have = || readers.iter().all(|reader| quorum.read_by(reader) == 3);
        until("all have them, or it is over", || all_have() || processes[1].now() > dies_until);
        all_have()
    });
    processes.remove(1).die();
    let writes = claim(&writer, "a");
    writer.queue_claim(&writes);
    for (process, reader) in processes.iter().zip([&readers[0], &readers[2], &readers[3]]) {
        assert!(matches!(process.renew(reader.id), Renewal::Extended { .. }));
        assert!(matches!(process.release(reader.id), End::Freed));
    }
    granted(writer.attempt_until(&writes));
    assert!(writer.now() > dies_until, "BROKEN LOCK: two holders");
    assert!(matches!(writer.release(writes.id), End::Freed));
    quorum.until_unread("a");
}

#[test]
fn r5_a_withdrawn_reader_and_a_withdrawn_writer_leave_nothing() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let early = reader(&one, "a");
    let asked = one.engine.attempt(&early, Line::Join);
    one.withdraw(early.id);
    drop(asked);
    quorum.until_unread("a");
    let held = reader(&one, "a");
    granted(one.attempt(&held));
    let waiting = claim(&two, "a");
    two.queue_claim(&waiting);
    assert!(matches!(two.withdraw(waiting.id), End::NotOurs | End::Freed));
    let beside = reader(&two, "a");
    granted(two.attempt_until(&beside));
    two.withdraw(beside.id);
    one.withdraw(held.id);
    quorum.until_unread("a");
    let alone = claim(&two, "a");
    granted(two.attempt_until(&alone));
    let waiting = reader(&one, "a");
    one.queue_claim(&waiting);
    one.withdraw(waiting.id);
    two.withdraw(alone.id);
    quorum.until_unread("a");
    for server in &quorum.0 {
        until("nobody listens", || {
            server.command(&["PUBSUB", "CHANNELS"]).iter().all(|channel| channel.is_empty())
        });
    }
}

#[test]
fn l3_a_reader_is_restored_on_a_member_that_comes_back_empty_and_no_writer_gets_in() {
    let mut quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let held = reader(&one, "a");
    granted(one.attempt(&held));
    until("all have it", || quorum.read_by(&held) == 3);
    quorum.0[0].restart();
    let writes = claim(&two, "a");
    until("it is restored", || {
        assert!(
            !matches!(two.attempt_try(&writes), Attempt::Granted(_)),
            "BROKEN LOCK: two holders"
        );
        assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
        quorum.read_by(&held) == 3
    });
    // One that is stopped changes nothing either.
    quorum.0[1].stop();
    assert!(!matches!(two.attempt_try(&writes), Attempt::Granted(_)), "BROKEN LOCK: two holders");
    quorum.0[1].go_on();
    assert!(matches!(one.release(held.id), End::Freed | End::NotOurs));
}

#[test]
fn r4_a_reader_whose_replies_were_lost_is_unknown_and_asked_again_holds_once() {
    let proxied = Proxied::of(3);
    let one = proxied.process("server_timeout=30s&request_timeout=1m");
    // Its script is known after this: a reply that says otherwise would be lost.
    let warm = reader(&one, "warm");
    granted(one.attempt_until(&warm));
    until("all have it", || proxied.quorum.read_by(&warm) == 3);
    let asked = reader(&one, "a");
    let before = ran(&proxied.quorum, "hset");
    proxied.all(Way::Down, &Fault { cut_after: Some(0), ..Fault::default() });
    let attempt = one.attempt(&asked);
    assert!(matches!(attempt, Attempt::Unknown(_)), "{attempt:?}");
    let wrote =
        ran(&proxied.quorum, "hset").iter().zip(before).filter(|(now, was)| *now > was).count();
    assert!(wrote >= 2, "the members carried it out");
    proxied.all(Way::Down, &Fault::default());
    until("it is granted", || matches!(one.attempt(&asked), Attempt::Granted(_)));
    assert!(matches!(one.release(asked.id), End::Freed));
    proxied.quorum.until_unread("a");
}

#[test]
fn readers_are_taken_away_one_by_one_or_all() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let (first, second) = (reader(&one, "a"), reader(&two, "a"));
    granted(one.attempt_until(&first));
    granted(two.attempt_until(&second));
    let shown = two.look(Kind::Lock, "a").holders;
    let of_first = shown.into_iter().filter(|holder| holder.claim == Some(first.id)).collect();
    let name = Name::new("a").expect("a good name");
    assert!(two.change(&Change::Force(Kind::Lock, name.clone(), of_first)));
    assert!(matches!(one.renew(first.id), Renewal::Gone(Lost::TakenAway)));
    assert!(matches!(two.renew(second.id), Renewal::Extended { .. }));
    assert!(two.change(&Change::Force(Kind::Lock, name, Vec::new())));
    assert!(matches!(two.renew(second.id), Renewal::Gone(Lost::TakenAway)));
    quorum.until_unread("a");
}

#[test]
fn readers_and_writers_that_each_have_a_minority_come_to_an_end() {
    let quorum = Quorum::of(5);
    let processes: Vec<Process> = (0..4).map(|_| quorum.process()).collect();
    std::thread::scope(|scope| {
        for (nth, process) in processes.iter().enumerate() {
            let quorum = &quorum;
            scope.spawn(move || {
                for _ in 0..5 {
                    let reads = nth % 2 == 0;
                    let turn = if reads { reader(process, "hot") } else { claim(process, "hot") };
                    granted(process.attempt_until(&turn));
                    if reads {
                        assert!(quorum.read_by(&turn) >= 3, "a majority has it");
                        let records = quorum.records("hot");
                        let alone = records.iter().filter(|text| text.starts_with("1 ")).count();
                        assert!(alone < 3, "{records:?}");
                    } else {
                        assert!(quorum.with_record(&turn) >= 3, "a majority has it");
                    }
                    assert!(matches!(process.release(turn.id), End::Freed));
                }
            });
        }
    });
    quorum.until_unread("hot");
}

#[test]
fn l4_a_reader_that_died_hides_no_reader_that_lives() {
    let mut quorum = Quorum::of(3);
    // The dead one has said nothing for longer than a living one may.
    let options = "max_ttl=24h&server_timeout=10s&request_timeout=1m";
    let one = quorum.process_with(options);
    granted(one.attempt_until(&claim(&one, "warm")));
    quorum.0[2].kill();
    let [first, second, _] = &quorum.0[..] else { panic!("there are three") };
    let (record, readers) = ("lockkeeper:{redlock:a}", "lockkeeper:{redlock:a}:readers");
    let now = first.command(&["TIME"]);
    let now: u64 = format!("{}{:0>6}", now[0], now[1]).parse().expect("a time");
    // Who asked first of all, and has not extended it for a minute of its ten. Whoever waits for
    // the end of that hangs.
    let dead = ClaimId::fresh().to_string();
    let text = format!("{} 1 {dead} 1 1 1 {now} 600000 who", now + 540_000_000);
    first.command(&["HSET", readers, &dead, &text]);
    first.command(&["PEXPIRE", readers, "540000"]);
    first.command(&["SET", record, "2 readers", "PX", "540000"]);
    // Somebody else's is in the reader's way on the other one, and nobody's a moment later.
    let later = ClaimId::fresh().to_string();
    let text = format!("1 {later} {} 1 1 {now} 60000 who", u64::MAX >> 12);
    second.command(&["SET", record, &text, "PX", "60000"]);
    let reads = reader(&one, "a");
    one.queue_claim(&reads);
    assert_eq!(quorum.0[0].command(&["HEXISTS", readers, &reads.id.to_string()]), ["1"]);
    // Opened later than the reader asked it knows of no time before that: its writer comes after
    // it.
    let two = quorum.process_with(options);
    second.command(&["DEL", record]);
    // A writer that came after the reader leaves it what it has, and takes the other one.
    let writes = claim(&two, "a");
    two.queue_claim(&writes);
    granted(one.attempt_until(&reads));
}

#[test]
fn a_reader_that_nobody_renews_ends_for_the_writer_at_its_own_time() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let dies = Claim { ttl: SHORT, ..reader(&one, "a") };
    let stays = reader(&two, "a");
    granted(two.attempt_until(&stays));
    one.granted_at_last(&dies);
    // The hash lives on for the one that is renewed.
    until("only the other keeps the writer out", || {
        assert!(matches!(two.renew(stays.id), Renewal::Extended { .. }));
        let tried = one.attempt_try(&claim(&one, "a"));
        assert!(matches!(tried, Attempt::Busy(Some(_))), "it is read, and the answer is {tried:?}");
        two.look(Kind::Lock, "a").holders.len() == 1
    });
    let by = two.look(Kind::Lock, "a").holders.remove(0).claim;
    assert_eq!(by, Some(stays.id));
    assert!(matches!(two.release(stays.id), End::Freed));
    let writes = claim(&one, "a");
    granted(one.attempt_until(&writes));
    assert!(matches!(one.release(writes.id), End::Freed));
    quorum.until_unread("a");
}
