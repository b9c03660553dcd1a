//! The line of those that wait, on each member: dead places, lost ones, and who comes anew.

use std::time::Duration;

use super::handoff::{tell, told};
use super::support::{Quorum, TTL, claim, one_after_the_other, open_at};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, Change, End, Event, Line};
use crate::words::claim::Claim;
use crate::words::clock::{Clock, Ticks};
use crate::words::error::ErrorKind;
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

pub(super) fn key(what: &str) -> String {
    format!("lockkeeper:{{redlock:a}}{what}")
}

impl Quorum {
    /// Runs a command on each member.
    fn each(&self, command: &[&str]) -> Vec<String> {
        self.0.iter().map(|server| server.command(command).concat()).collect()
    }

    /// Claims that nobody asks for any more stand in line before all others.
    fn plant(&self, many: usize) -> Vec<ClaimId> {
        let mut dead: Vec<ClaimId> = (0..many).map(|_| ClaimId::fresh()).collect();
        dead.sort_unstable();
        for claim in &dead {
            self.each(&["ZADD", &key(":line"), "1", &claim.to_string()]);
            for (server, now_us) in self.0.iter().zip(self.clocks_us()) {
                let sign = now_us.to_string();
                server.command(&["ZADD", &key(":signs"), &sign, &claim.to_string()]);
            }
        }
        dead
    }

    /// What each member's clock says.
    fn clocks_us(&self) -> Vec<u64> {
        let us = |time: Vec<String>| format!("{}{:0>6}", time[0], time[1]).parse();
        self.0.iter().map(|server| us(server.command(&["TIME"])).expect("a time")).collect()
    }

    /// Stands in line on each member, with no question on its way there: a majority answers for
    /// all, and what the last one is asked may come to it behind a release.
    pub(super) fn queue_on_all(&self, process: &Process, claim: &Claim) {
        process.queue_claim(claim);
        // Over each connection this question comes behind those before it.
        let before = self.clocks_us();
        process.queue_claim(claim);
        until("all were asked", || {
            let is_later = |(sign, before): (&String, &u64)| {
                sign.parse::<u64>().is_ok_and(|sign| sign >= *before)
            };
            self.signs_of(claim).iter().zip(&before).all(is_later)
        });
    }

    /// When a claim asked last, as each member has it.
    pub(super) fn signs_of(&self, claim: &Claim) -> Vec<String> {
        self.each(&["ZSCORE", &key(":signs"), &claim.id.to_string()])
    }

    /// Who stands in line on each member.
    pub(super) fn in_line(&self) -> Vec<Vec<String>> {
        self.0.iter().map(|s| s.command(&["ZRANGE", &key(":line"), "0", "-1"])).collect()
    }
}

fn long(process: &Process) -> Claim {
    Claim { ttl: TTL * 10, ..claim(process, "a") }
}

/// A process by a clock of the test's own making.
pub(super) fn by(clock: &Clock, quorum: &Quorum) -> Process {
    open_at(&quorum.url(), clock.clone()).expect("they can be used")
}

pub(super) fn a_clock() -> Clock {
    Clock::virtual_at(Duration::from_secs(1_000_000))
}

/// When a waiter is to ask next, as it was told last.
fn asks_at(process: &Process, id: ClaimId) -> Ticks {
    process.event("a time", |event| match event {
        Event::AskAt { claim, at } if *claim == id => Some(*at),
        _ => None,
    })
}

/// It is its turn on each member, or was: whoever hears of it from one of them asks them all a
/// moment later, and may have what others told of by then.
fn until_it_is_the_turn_of(quorum: &Quorum, claim: ClaimId) {
    let claim = claim.to_string();
    until("it is its turn on all members", || {
        let turns = quorum.each(&["GET", &key(":turn")]);
        let records = quorum.records("a");
        let mut each = turns.iter().zip(&records);
        each.all(|(turn, record)| turn.starts_with(&claim) || record.contains(&claim))
    });
}

/// Everybody's turns are over, as far as the members say.
fn until_no_turn_is_on(quorum: &Quorum) {
    until("no turn is on", || {
        let turns = quorum.each(&["GET", &key(":turn")]);
        turns.iter().zip(quorum.clocks_us()).all(|(turn, now_us)| {
            let ends = turn.split(' ').nth(2).and_then(|ends| ends.parse::<u64>().ok());
            !turn.contains(' ') || ends.is_some_and(|ends| ends < now_us)
        })
    });
}

#[test]
fn r10_whoever_stands_in_no_line_asks_however_often_others_hand_on() {
    let quorum = Quorum::of(3);
    let (one, clock) = (quorum.process(), a_clock());
    let two = by(&clock, &quorum);
    let held = long(&one);
    granted(one.attempt_until(&held));
    let waiting = long(&two);
    two.queue_claim(&waiting);
    quorum.each(&["DEL", &key(":line"), &key(":signs")]);
    until("it stands in line again", || {
        clock.advance(Duration::from_millis(50));
        let word = format!("{} {}", ClaimId::fresh(), ClaimId::fresh());
        (0..3).for_each(|member| tell(&quorum, member, "a", &word));
        // What the members answer is behind their words.
        drop(two.list("nobody/"));
        quorum.in_line().iter().all(|line| line.contains(&waiting.id.to_string()))
    });
}

#[test]
fn r11_dead_waiters_cost_one_claim_lease_and_a_second_together_and_are_gone_then() {
    let quorum = Quorum::of(3);
    let (one, clock) = (quorum.process(), a_clock());
    let two = by(&clock, &quorum);
    let held = long(&one);
    granted(one.attempt_until(&held));
    quorum.plant(8);
    let waiting = long(&two);
    two.queue_claim(&waiting);
    assert!(quorum.in_line().iter().all(|line| line.len() == 9));
    assert!(matches!(one.release(held.id), End::Freed));
    let at = asks_at(&two, waiting.id);
    assert!(at <= clock.now().plus(Duration::from_secs(3)), "its lease is long: {at:?}");
    until_no_turn_is_on(&quorum);
    granted(two.attempt_until(&waiting));
    until("nobody stands before who comes next", || {
        quorum.in_line().iter().all(|line| line.concat().is_empty())
    });
}

#[test]
fn r11_once_a_dead_waiter_was_found_it_is_the_turn_of_those_that_gave_a_sign_of_life() {
    let quorum = Quorum::of(3);
    let (one, clock) = (quorum.process(), a_clock());
    let [two, three] = [by(&clock, &quorum), quorum.process()];
    let held = long(&one);
    granted(one.attempt_until(&held));
    quorum.plant(1);
    let [next, last] = [long(&two), long(&three)];
    two.queue_claim(&next);
    three.queue_claim(&last);
    // One that died stands between those that live.
    let dead = ClaimId::fresh().to_string();
    let before: Vec<u64> = quorum
        .each(&["ZSCORE", &key(":line"), &next.id.to_string()])
        .iter()
        .map(|score| score.parse().expect("it stands there"))
        .collect();
    quorum.each(&["ZADD", &key(":line"), &(before[0] + 1).to_string(), &dead]);
    assert!(quorum.in_line().iter().all(|line| line.get(2) == Some(&dead)));
    assert!(matches!(one.release(held.id), End::Freed));
    asks_at(&two, next.id);
    until_no_turn_is_on(&quorum);
    granted(two.attempt_until(&next));
    // Asked for a sign of life, the last one gives one.
    until("all have it", || {
        assert!(matches!(three.attempt(&last), Attempt::InLine(_)));
        quorum.with_record(&next) == 3
    });
    assert!(matches!(two.release(next.id), End::Freed));
    let turns = quorum.each(&["GET", &key(":turn")]);
    assert!(turns.iter().all(|turn| !turn.starts_with(&dead)), "{turns:?}: the dead one's turn");
    granted(three.attempt_until(&last));
    assert!(quorum.in_line().iter().all(|line| line.concat().is_empty()), "the dead one is gone");
}

#[test]
fn r11_a_waiter_that_gave_no_sign_of_life_yet_keeps_its_place() {
    let quorum = Quorum::of(3);
    let (one, clock) = (quorum.process(), a_clock());
    let [two, three, four] = [(); 3].map(|()| by(&clock, &quorum));
    let held = long(&one);
    granted(one.attempt_until(&held));
    quorum.plant(1);
    let [next, quiet, loud] = [&two, &three, &four].map(long);
    two.queue_claim(&next);
    three.queue_claim(&quiet);
    four.queue_claim(&loud);
    assert!(matches!(one.release(held.id), End::Freed));
    asks_at(&two, next.id);
    until_no_turn_is_on(&quorum);
    granted(two.attempt_until(&next));
    // A dead one was found, and all are asked for a sign of life. One of them gives it.
    until("all have it", || quorum.with_record(&next) == 3);
    quorum.queue_on_all(&four, &loud);
    assert!(matches!(two.release(next.id), End::Freed));
    until_it_is_the_turn_of(&quorum, loud.id);
    let line = quorum.in_line();
    let stands = |line: &Vec<String>| line.contains(&quiet.id.to_string());
    assert!(line.iter().all(stands), "{line:?}: the other one has lost its place");
    granted(four.attempt_until(&loud));
    until("all have it", || {
        assert!(matches!(three.attempt(&quiet), Attempt::InLine(_)));
        quorum.with_record(&loud) == 3
    });
    assert!(matches!(four.release(loud.id), End::Freed));
    granted(three.attempt_until(&quiet));
}

#[test]
fn r11_a_turn_that_a_hold_had_elsewhere_finds_nobody_dead() {
    let quorum = Quorum::of(3);
    let (one, clock) = (quorum.process(), a_clock());
    let [two, three] = [(); 2].map(|()| by(&clock, &quorum));
    let held = long(&one);
    granted(one.attempt_until(&held));
    until("all have it", || quorum.with_record(&held) == 3);
    let [next, waiting] = [&two, &three].map(long);
    quorum.queue_on_all(&two, &next);
    quorum.queue_on_all(&three, &waiting);
    assert!(matches!(one.release(held.id), End::Freed));
    until_it_is_the_turn_of(&quorum, next.id);
    // One member has something of another's in its way.
    let other = format!("1 {} 1 1 1 1 600000 x", ClaimId::fresh());
    quorum.0[2].command(&["SET", &key(""), &other, "PX", "600000"]);
    granted(two.attempt_until(&next));
    quorum.0[2].command(&["DEL", &key("")]);
    until("it is complete", || quorum.with_record(&next) == 3);
    let turns = quorum.each(&["EXISTS", &key(":turn")]);
    assert_eq!(turns, ["0"; 3], "it had its turn there, too");
}

#[test]
fn r11_who_comes_anew_overtakes_no_place_that_lives_though_it_is_nobodys_turn() {
    let quorum = Quorum::of(3);
    // One whose answers are late asks once more, and ends a turn that is over.
    let process = quorum.process_with("max_ttl=24h&server_timeout=10m&request_timeout=10m");
    let mut listens = quorum.0.iter().map(|server| server.client()).collect::<Vec<_>>();
    for listener in &mut listens {
        listener.command(&["SUBSCRIBE", "lockkeeper:{redlock:a}:free:0"]);
    }
    let [first, second] = quorum.plant(2)[..] else { panic!("there are two") };
    let tried = process.attempt_try(&claim(&process, "a"));
    assert!(matches!(tried, Attempt::Busy(_)), "it overtook: {tried:?}");
    // A majority answers for all: what the last one is asked may come to it later.
    until("its turn began on each", || {
        let turns = quorum.each(&["GET", &key(":turn")]);
        turns.iter().all(|turn| turn.starts_with(&first.to_string()))
    });
    until_no_turn_is_on(&quorum);
    let joins = long(&process);
    let joined = process.attempt(&joins);
    assert!(matches!(joined, Attempt::InLine(_)), "it overtook: {joined:?}");
    // Both had their turns, and somebody heard of it.
    for listener in &mut listens {
        for claim in [first, second] {
            until("it is told", || {
                listener.read().last().is_some_and(|word| word.ends_with(&claim.to_string()))
            });
        }
    }
    granted(process.attempt_until(&joins));
}

#[test]
fn r11_where_nobody_listens_dead_places_keep_nobody_out() {
    let quorum = Quorum::of(3);
    let process = quorum.process();
    quorum.plant(8);
    let tried = claim(&process, "a");
    granted(process.attempt_try(&tried));
    assert!(matches!(process.release(tried.id), End::Freed));
}

#[test]
fn r11_a_wait_ends_beside_no_free_lock_though_dead_waiters_are_before_it() {
    let quorum = Quorum::of(3);
    let (one, clock) = (quorum.process(), a_clock());
    let two = by(&clock, &quorum);
    let held = long(&one);
    granted(one.attempt_until(&held));
    quorum.plant(8);
    let give_up = clock.now().plus(Duration::from_millis(800));
    let waiting = Claim { give_up: Some(give_up), ..long(&two) };
    two.queue_claim(&waiting);
    assert!(matches!(one.release(held.id), End::Freed));
    let at = asks_at(&two, waiting.id);
    assert!(at < give_up, "it asks at {at:?}, and waits until {give_up:?}");
}

#[test]
fn r11_whoever_has_a_lock_stands_in_no_line_for_it() {
    let quorum = Quorum::of(3);
    let [one, two] = [quorum.process(), quorum.process()];
    let held = long(&one);
    granted(one.attempt_until(&held));
    let waiting = long(&two);
    two.queue_claim(&waiting);
    // As if its lease had ended.
    quorum.each(&["DEL", &key("")]);
    granted(two.attempt_until(&waiting));
    until("all have it", || quorum.with_record(&waiting) == 3);
    let line = quorum.in_line();
    assert!(line.iter().all(|line| line.concat().is_empty()), "{line:?}");
}

#[test]
fn r11_force_gives_nobody_a_turn_whom_it_takes_the_lock_from() {
    let quorum = Quorum::of(3);
    let [one, two] = [quorum.process(), quorum.process()];
    let held = long(&one);
    granted(one.attempt_until(&held));
    until("all have it", || quorum.with_record(&held) == 3);
    quorum.each(&["ZADD", &key(":line"), "1", &held.id.to_string()]);
    let waiting = long(&two);
    assert!(matches!(two.wait(two.engine.attempt(&waiting, Line::Join)), Attempt::InLine(_)));
    let name = Name::new("a").expect("a good name");
    let shown = two.look(Kind::Lock, "a").holders;
    assert!(two.change(&Change::Force(Kind::Lock, name, shown)));
    let word = two.event("a word", |event| told(event, waiting.id));
    let more = || two.event("its turn", |event| told(event, waiting.id).filter(|now| *now));
    assert!(word || more(), "it is its turn, and not that of the other");
    granted(two.attempt(&waiting));
}

#[test]
fn r11_force_ends_the_turn_of_whom_it_takes_the_lock_from() {
    let quorum = Quorum::of(3);
    let [one, two] = [quorum.process(), quorum.process()];
    let held = long(&one);
    granted(one.attempt_until(&held));
    until("all have it", || quorum.with_record(&held) == 3);
    let name = Name::new("a").expect("a good name");
    let shown = one.look(Kind::Lock, "a").holders;
    let waiting = long(&two);
    quorum.queue_on_all(&two, &waiting);
    // These members have given it up for the one that has it, and it is on its way to them.
    for server in &quorum.0 {
        server.command(&["DEL", &key("")]);
        let turn = format!("{} 1 1", held.id);
        server.command(&["SET", &key(":turn"), &turn, "PX", "15000"]);
    }
    assert!(!two.change(&Change::Force(Kind::Lock, name.clone(), shown.clone())));
    until_it_is_the_turn_of(&quorum, waiting.id);
    granted(two.attempt_until(&waiting));
    // And where another one has a record it is over.
    for server in &quorum.0 {
        server.command(&["SET", &key(":turn"), &format!("{} 1 1", held.id), "PX", "15000"]);
    }
    assert!(!two.change(&Change::Force(Kind::Lock, name, shown)));
    assert_eq!(quorum.each(&["EXISTS", &key(":turn")]), ["0"; 3]);
    assert_eq!(quorum.with_record(&waiting), 3, "the hold of another stays");
}

/// So many stand in line who asked that long ago.
const FILL: &str = "local now = redis.call('TIME')[1] * 1000000 \
                    for i = 1, ARGV[1] do local claim = string.format('%032x', i) \
                    redis.call('ZADD', KEYS[1], i, claim) local sign = now - ARGV[2] + i \
                    redis.call('ZADD', KEYS[2], string.format('%.0f', sign), claim) end";
/// All are to give a sign of life anew.
const ASK_ALL: &str =
    "redis.call('ZADD', KEYS[1], string.format('%.0f', redis.call('TIME')[1] * 1000000), '-')";

impl Quorum {
    fn fill(&self, places: usize, ago_us: i64) {
        let [line, signs] = [key(":line"), key(":signs")];
        let [places, ago] = [places.to_string(), ago_us.to_string()];
        self.each(&["DEL", &line, &signs]);
        self.each(&["EVAL", FILL, "2", &line, &signs, &places, &ago]);
    }

    fn ask_all(&self) {
        self.each(&["EVAL", ASK_ALL, "1", &key(":signs")]);
    }

    /// How often each member was asked by scripts about a single place since it counts.
    fn looks(&self) -> Vec<u64> {
        let looks = |stats: &String| -> u64 {
            let of = |line: &str| {
                let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let counts = matches!(name, "zscore" | "zrank" | "zrem");
                counts.then(|| rest.split(',').next()?.parse::<u64>().ok()).flatten()
            };
            stats.lines().filter_map(of).sum()
        };
        self.each(&["INFO", "commandstats"]).iter().map(looks).collect()
    }
}

#[test]
fn r13_one_place_more_than_a_name_may_have_is_refused_until_others_give_no_sign_of_life() {
    let quorum = Quorum::of(3);
    let [one, two] = [quorum.process(), quorum.process()];
    let held = long(&one);
    granted(one.attempt_until(&held));
    // These have asked lately, and were not asked for a sign since.
    quorum.fill(16_384, 5_000_000);
    let waiting = long(&two);
    let Attempt::Failed(error) = two.attempt(&waiting) else { panic!("there is no room") };
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.is_temporary() && error.message().contains("16384"), "{error}");
    assert!(quorum.in_line().iter().all(|line| line.len() == 16_384), "nothing was written");
    quorum.ask_all();
    two.queue_claim(&long(&two));
    let signs = quorum.each(&["ZCARD", &key(":signs")]);
    for (line, signs) in quorum.in_line().iter().zip(signs) {
        assert!(line.len() < 16_384, "some have no place now");
        assert_eq!(signs, (line.len() + 1).to_string(), "nor anything else");
    }
}

#[test]
fn r13_however_many_dead_places_a_name_has_no_call_looks_at_them_all() {
    let quorum = Quorum::of(3);
    let [one, two] = [quorum.process(), quorum.process()];
    let held = long(&one);
    granted(one.attempt_until(&held));
    until("all have it", || quorum.with_record(&held) == 3);
    quorum.fill(16_000, 5_000_000);
    quorum.ask_all();
    let waiting = long(&two);
    quorum.queue_on_all(&two, &waiting);
    quorum.each(&["CONFIG", "RESETSTAT"]);
    assert!(matches!(one.release(held.id), End::Freed));
    until_it_is_the_turn_of(&quorum, waiting.id);
    assert!(quorum.looks().iter().all(|looks| *looks < 2_000), "{:?}", quorum.looks());
    granted(two.attempt_until(&waiting));
    assert!(quorum.looks().iter().all(|looks| *looks < 4_000), "{:?}", quorum.looks());
}

#[test]
fn r11_places_whose_signs_are_old_or_of_a_clock_that_was_set_back_have_no_turn() {
    let quorum = Quorum::of(3);
    let [one, two] = [quorum.process(), quorum.process()];
    // Sixteen seconds ago, and in an hour.
    for ago_us in [16_000_000, -3_600_000_000] {
        let held = long(&one);
        granted(one.attempt_until(&held));
        until("all have it", || quorum.with_record(&held) == 3);
        quorum.fill(700, ago_us);
        let waiting = long(&two);
        quorum.queue_on_all(&two, &waiting);
        assert!(matches!(one.release(held.id), End::Freed));
        until_it_is_the_turn_of(&quorum, waiting.id);
        granted(two.attempt_until(&waiting));
        assert!(matches!(two.release(waiting.id), End::Freed));
    }
}

#[test]
fn a_member_whose_signs_of_life_were_evicted_gives_it_in_order_all_the_same() {
    let quorum = Quorum::of(3);
    let [one, two, three] = [(); 3].map(|()| quorum.process());
    let held = long(&one);
    granted(one.attempt_until(&held));
    until("all have it", || quorum.with_record(&held) == 3);
    // Who asks by itself may find the dead one's turn over in the middle of this.
    two.by_word_alone();
    three.by_word_alone();
    quorum.plant(1);
    let [waiting, last] = [long(&two), long(&three)];
    two.queue_claim(&waiting);
    quorum.each(&["DEL", &key(":signs")]);
    three.queue_claim(&last);
    // As if its lease had ended.
    quorum.each(&["DEL", &key("")]);
    granted(two.attempt(&waiting));
    until("all have it", || quorum.with_record(&waiting) == 3);
    // Nobody that gave a sign was passed, and nobody is to give one anew.
    let signs = quorum.each(&["ZRANGE", &key(":signs"), "0", "-1"]);
    assert_eq!(signs, [0; 3].map(|_| last.id.to_string()));
}

#[test]
fn r11_waiters_that_are_each_first_on_another_member_have_it_one_after_the_other() {
    let quorum = Quorum::of(3);
    let holder = quorum.process();
    let held = long(&holder);
    granted(holder.attempt_until(&held));
    let processes = [quorum.process(), quorum.process(), quorum.process()];
    let claims = processes.each_ref().map(long);
    processes.iter().zip(&claims).for_each(|(process, claim)| process.queue_claim(claim));
    for (member, server) in quorum.0.iter().enumerate() {
        for (nth, claim) in claims.iter().enumerate() {
            let score = (1 + (nth + member) % 3).to_string();
            server.command(&["ZADD", &key(":line"), "XX", &score, &claim.id.to_string()]);
        }
    }
    assert!(matches!(holder.release(held.id), End::Freed));
    one_after_the_other(&processes, &claims);
    quorum.until_clean("a");
    until("nobody stands in line", || quorum.in_line().iter().all(|line| line.concat().is_empty()));
}
