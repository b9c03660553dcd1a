//! What a hand-off asks of the members.

use std::time::Duration;

use lockkeeper_testkit::proxy::{Fault, Proxy, Way};

use super::super::waiter::TOLD_BY_FEW;
use super::faults::ran;
use super::line::{a_clock, by, key};
use super::support::{Proxied, Quorum, TTL, claim, open_at};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, End, Event, Line, Renewal, Standing};
use crate::words::claim::{Claim, Mode};
use crate::words::id::ClaimId;
use crate::words::name::Kind;

/// The next thing that a waiter is told: to ask at once, or later.
pub(super) fn told(event: &Event, id: ClaimId) -> Option<bool> {
    match event {
        Event::Wake { claim } if *claim == id => Some(true),
        Event::AskAt { claim, .. } if *claim == id => Some(false),
        _ => None,
    }
}

#[test]
fn r10_a_hand_off_asks_whose_turn_it_is_and_nobody_else() {
    let quorum = Quorum::of(3);
    let one = quorum.process();
    // They ask because of a word, and not because this machine has much to do.
    let clock = a_clock();
    let [two, three] =
        [(); 2].map(|()| open_at(&quorum.url(), clock.clone()).expect("they can be used"));
    let [held, next, waiting] =
        [&one, &two, &three].map(|process| Claim { ttl: TTL * 10, ..claim(process, "a") });
    granted(one.attempt_until(&held));
    two.queue_claim(&next);
    three.queue_claim(&waiting);
    let before = quorum.signs_of(&waiting);
    assert!(before.iter().all(|sign| sign.parse::<u64>().is_ok()), "{before:?}");
    assert!(matches!(one.release(held.id), End::Freed));
    while !two.event("a word", |event| told(event, next.id)) {}
    let heard = three.event("a word", |event| told(event, waiting.id));
    assert!(!heard, "it is not its turn");
    granted(two.attempt_until(&next));
    assert_eq!(quorum.signs_of(&waiting), before, "who waits asks nothing");
    // When it is its turn it is told so.
    assert!(matches!(two.release(next.id), End::Freed));
    while !three.event("a word", |event| told(event, waiting.id)) {}
    granted(three.attempt_until(&waiting));
}

/// How many scripts the members run for each hold, where so many processes want it.
fn scripts_a_hold(many: usize) -> u64 {
    let quorum = Quorum::of(3);
    let processes: Vec<Process> = (0..many).map(|_| quorum.process()).collect();
    let long = |process: &Process| Claim { ttl: TTL * 10, ..claim(process, "a") };
    let mut claims: Vec<Claim> = processes.iter().map(long).collect();
    granted(processes[0].attempt_until(&claims[0]));
    processes.iter().zip(&claims).skip(1).for_each(|(process, claim)| process.queue_claim(claim));
    let scripts = || ran(&quorum, "evalsha").iter().sum::<u64>();
    let (before, turns, mut holder) = (scripts(), 16, 0);
    for _ in 0..turns {
        assert!(matches!(processes[holder].release(claims[holder].id), End::Freed));
        let wakes = |nth: &usize| {
            let (process, id) = (&processes[*nth], claims[*nth].id);
            // Who looked by itself meanwhile, on a machine with much to do, has it already.
            let mut has = |event: &Event| match event {
                Event::Granted { claim, .. } => (*claim == id).then_some(true),
                event => told(event, id),
            };
            process.event_within(Duration::ZERO, &mut has) == Some(true)
        };
        let mut next = None;
        until("somebody is woken", || {
            next = (0..many).filter(|nth| *nth != holder).find(wakes);
            next.is_some()
        });
        let next = next.expect("somebody was");
        granted(processes[next].attempt_until(&claims[next]));
        claims[holder] = long(&processes[holder]);
        processes[holder].queue_claim(&claims[holder]);
        holder = next;
    }
    (scripts() - before) / turns
}

#[test]
fn r10_a_hold_costs_the_members_the_same_however_many_wait() {
    let (two, ten) = (scripts_a_hold(2), scripts_a_hold(10));
    assert!(ten * 2 <= two * 3, "{ten} scripts with ten, and {two} with two");
}

#[test]
fn r11_who_comes_anew_waits_for_whose_turn_it_is() {
    let quorum = Quorum::of(3);
    let [one, two] = [quorum.process(), quorum.process()];
    let long = |process: &Process| Claim { ttl: TTL * 10, ..claim(process, "a") };
    let waiting = long(&two);
    // A turn is short: on a machine with much to do it may be over.
    until("it waits for its turn", || {
        let held = long(&one);
        granted(one.attempt_until(&held));
        two.queue_claim(&waiting);
        assert!(matches!(one.release(held.id), End::Freed));
        let anew = long(&one);
        let waits = matches!(one.attempt_try(&anew), Attempt::Busy(_));
        if !waits {
            assert!(matches!(one.release(anew.id), End::Freed));
        }
        waits
    });
    granted(two.attempt_until(&waiting));
}

#[test]
fn r11_whoever_lost_its_place_on_a_member_comes_before_a_turn_of_one_that_waits_for_less() {
    let quorum = Quorum::of(3);
    let (one, clock) = (quorum.process(), a_clock());
    let [two, three] = [by(&clock, &quorum), by(&clock, &quorum)];
    let [held, older, later] =
        [&one, &two, &three].map(|process| Claim { ttl: TTL * 10, ..claim(process, "a") });
    granted(one.attempt_until(&held));
    quorum.queue_on_all(&two, &older);
    quorum.queue_on_all(&three, &later);
    let (server, [older_id, later_id]) = (&quorum.0[0], [&older, &later].map(|c| c.id.to_string()));
    for what in [":line", ":signs"] {
        assert_eq!(server.command(&["ZREM", &key(what), &older_id]), ["1"]);
    }
    let first = server.command(&["ZSCORE", &key(":line"), &later_id]).concat();
    assert!(matches!(one.release(held.id), End::Freed));
    let turn = || server.command(&["GET", &key(":turn")]).concat();
    until("it is the turn of the later one there", || turn().starts_with(&later_id));
    // However late it is asked: a turn ends 250 ms after now at most.
    let end = format!("{later_id} {first} 9999999999999999");
    server.command(&["SET", &key(":turn"), &end, "PX", "600000"]);
    granted(two.attempt_until(&older));
    until("it has all members", || quorum.records("a").iter().all(|one| one.contains(&older_id)));
    assert_eq!(quorum.in_line()[0], [later_id], "it stands in line again");
    let all = server.command(&["ZSCORE", &key(":signs"), "-"]).concat();
    assert_eq!(all, "(nil)", "nobody was taken for dead");
}

#[test]
fn r11_a_process_that_listens_and_waits_no_more_keeps_nobody_from_a_free_lock() {
    let quorum = Quorum::of(3);
    let [one, two] = [quorum.process(), quorum.process()];
    let long = |process: &Process| Claim { ttl: TTL * 10, ..claim(process, "a") };
    let [held, waited, again] = [long(&one), long(&two), long(&two)];
    granted(one.attempt_until(&held));
    two.queue_claim(&waited);
    assert!(matches!(one.release(held.id), End::Freed));
    granted(two.attempt_until(&waited));
    // It waited, and listens to the name for a while longer. So does nobody else.
    let released = two.release_again(waited.id, &again);
    granted(released.again.expect("it was asked for"));
}

#[test]
fn r11_who_takes_a_lock_again_lets_those_pass_that_wait_for_it() {
    let quorum = Quorum::of(3);
    let [one, two] = [quorum.process(), quorum.process()];
    let reader = |process: &Process| Claim { ttl: TTL, ..process.claim("a", Mode::Shared) };
    // Readers stand in no line; a writer lets them pass.
    let [held, behind] = [&one, &one].map(|process| claim(process, "a"));
    granted(one.attempt_until(&held));
    let reads = reader(&two);
    two.queue_claim(&reads);
    let released = one.release_again(held.id, &behind);
    assert!(matches!(released.again, Some(Attempt::InLine(_))), "{released:?}");
    granted(two.attempt_until(&reads));
    // A reader lets a writer pass, which stands in line.
    until("it stands in line", || {
        assert!(matches!(one.attempt(&behind), Attempt::InLine(_)));
        quorum.signs_of(&behind).iter().all(|sign| sign.parse::<u64>().is_ok())
    });
    let again = reader(&two);
    let released = two.release_again(reads.id, &again);
    assert!(matches!(released.again, Some(Attempt::InLine(_))), "{released:?}");
    granted(one.attempt_until(&behind));
}

#[test]
fn r10_a_hand_off_costs_each_waiter_of_redisson_one_question() {
    hand_off("redisson");
}

/// The clock of a waiter stands still while the members tell it of one release, so that they do so
/// at the same time, on a machine with much to do as well. Somebody else is faster, and has it.
fn hand_off(layout: &str) {
    let proxied = Proxied::before(Quorum::long_up(3));
    let quorum = &proxied.quorum;
    let options = format!("max_ttl=24h&server_timeout=10s&request_timeout=20s&layout={layout}");
    let [one, two] = [(); 2].map(|()| quorum.process_with(&options));
    let clock = a_clock();
    let three = open_at(&proxied.url(&options), clock.clone()).expect("they can be used");
    let [held, next, waiting] = [&one, &two, &three].map(|process| claim(process, "a"));
    granted(one.attempt(&held));
    until_all_have_it(&one, quorum, layout, &held);
    two.queue_claim(&next);
    three.queue_claim(&waiting);
    proxied.all(Way::Down, &Fault { hold: true, ..Fault::default() });
    assert!(matches!(one.release(held.id), End::Freed));
    granted(two.attempt_until(&next));
    until_all_have_it(&two, quorum, layout, &next);
    // A claim that is asked for reads the member's clock once.
    let before = ran(quorum, "time");

    let [first, second, last] = &proxied.proxies[..] else { panic!("there are three") };
    [first, second].into_iter().for_each(Proxy::heal);
    let mut words = [(); 2].map(|()| three.event("a word", |event| told(event, waiting.id)));
    words.sort_unstable();
    assert_eq!(words, [false, true], "one member alone may tell of a contender's minority");
    clock.advance(Duration::from_millis(1));
    assert!(matches!(three.attempt(&waiting), Attempt::InLine(_)), "{layout}: another has it");
    // For the first word it would ask now; it has since.
    clock.advance(TOLD_BY_FEW - Duration::from_millis(1));
    let standing = three.wait(three.engine.recheck(&[waiting.id]));
    assert!(matches!(&standing[..], [Standing::InLine(_)]), "{standing:?}");
    // The last member tells of the same release; what it answers after that is behind its word.
    last.heal();
    match layout {
        "native" => drop(three.list("nobody/")),
        _ => drop(three.look(Kind::Lock, "a")),
    }
    let more = three.event_within(Duration::ZERO, &mut |event| told(event, waiting.id));
    assert_eq!(more, None, "{layout}: what the others say of the same release is no news");
    let asked: Vec<u64> = ran(quorum, "time").iter().zip(before).map(|(n, b)| n - b).collect();
    assert_eq!(asked, [1; 3], "{layout}: one question to each member");

    // The next release is one.
    assert!(matches!(two.release(next.id), End::Freed));
    while !three.event("a word", |event| told(event, waiting.id)) {}
    granted(three.attempt_until(&waiting));
}

/// What a member publishes about a name.
pub(super) fn tell(quorum: &Quorum, member: usize, name: &str, word: &str) {
    let channel = format!("lockkeeper:{{redlock:{name}}}:free:0");
    assert_eq!(quorum.0[member].command(&["PUBLISH", &channel, word]), ["1"]);
}

#[test]
fn r10_what_contenders_give_up_wakes_the_first_of_them_and_nobody_else() {
    let quorum = Quorum::of(3);
    let [one, two] = [quorum.process(), quorum.process()];
    let [held, waiting] = [&one, &two].map(|p| Claim { ttl: TTL * 10, ..claim(p, "a") });
    granted(one.attempt_until(&held));
    two.queue_claim(&waiting);
    for member in 0..3 {
        tell(&quorum, member, "a", &format!("- {}", ClaimId::fresh()));
    }
    // What the members answer is behind their words.
    drop(two.list("nobody/"));
    let heard = two.event_within(Duration::ZERO, &mut |event| told(event, waiting.id));
    assert_eq!(heard, None, "that was for another one");
    for member in 0..2 {
        tell(&quorum, member, "a", &format!("- {}", waiting.id));
    }
    let mut words = [(); 2].map(|()| two.event("a word", |event| told(event, waiting.id)));
    words.sort_unstable();
    assert_eq!(words, [false, true], "a majority has room for it once two have told");
}

#[test]
fn r10_what_is_heard_while_a_claim_is_asked_for_wakes_it_only_if_it_is_of_who_refused_it() {
    let proxied = Proxied::before(Quorum::long_up(3));
    let quorum = &proxied.quorum;
    let direct = quorum.process();
    let held = Claim { ttl: TTL * 10, ..claim(&direct, "a") };
    granted(direct.attempt_until(&held));
    let clock = a_clock();
    let options = "max_ttl=24h&server_timeout=10s&request_timeout=20s";
    let two = open_at(&proxied.url(options), clock.clone()).expect("they can be used");
    let waiting = Claim { ttl: TTL * 10, ..claim(&two, "a") };
    two.queue_claim(&waiting);
    let now = clock.now();
    for (giver, at_once) in [(ClaimId::fresh(), false), (held.id, true)] {
        let answer = two.engine.attempt(&waiting, Line::Join);
        for member in 0..3 {
            tell(quorum, member, "a", &giver.to_string());
        }
        // What these members answer is behind their words.
        drop(two.list("nobody/"));
        let Attempt::InLine(place) = two.wait(answer) else { panic!("it is held") };
        let asks = place.ask_at.expect("it asks again");
        assert_eq!(asks == now, at_once, "{giver}: at {asks:?}, and it is {now:?}");
    }
}

/// No answer to the claim is on its way any more. A member that it asked before the one before had
/// given back there gets it with a renewal.
fn until_all_have_it(process: &Process, quorum: &Quorum, layout: &str, claim: &Claim) {
    until("all have it", || {
        assert!(matches!(process.renew(claim.id), Renewal::Extended { .. }));
        match layout {
            "native" => quorum.with_record(claim) == 3,
            _ => {
                let owners = quorum.owners("a");
                let begins = claim.id.to_string()[..8].to_owned();
                owners.iter().all(|owner| owner.first().is_some_and(|one| one.starts_with(&begins)))
            }
        }
    });
}
