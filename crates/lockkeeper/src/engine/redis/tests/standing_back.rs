//! On `plain` a process that had a lock for long lets others pass, who stand in no line.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::options::{Address, RedissonLock, Wait};
use super::interop::{plain, redisson, woken};
use super::proxy::{Fault, Proxy, Way};
use super::server::RedisServer;
use super::support::{PATIENCE, Process, granted, options, until};
use crate::engine::password::Password;
use crate::engine::{Attempt, End, Event, Line, Query, WatchId};
use crate::open::url::Secret;
use crate::words::claim::{Claim, Mode};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// Takes a lock, on a server that knows the scripts: a release that has to be sent twice comes
/// behind the next claim.
fn taken(process: &Process, name: &str) -> ClaimId {
    let (held, _) = process.take("scripts", Mode::Exclusive);
    assert!(matches!(process.release(held.id), End::Freed));
    process.take(name, Mode::Exclusive).0.id
}

/// Gives a lock back and asks for it again in the same message, until the process stands back;
/// answers the claim that does, and when its message was about to be sent.
fn standing_back(process: &Process, held: ClaimId, name: &str) -> (ClaimId, Instant) {
    let (mut held, began) = (held, Instant::now());
    loop {
        let again = process.exclusive(name);
        let since = Instant::now();
        match process.release_again(held, &again).again.expect("it was asked for again") {
            Attempt::Granted(_) => held = again.id,
            Attempt::InLine(place) => {
                let rest = place.ask_at.expect("it says when").since(process.now());
                assert!(rest <= Duration::from_millis(250), "it asks in {rest:?}");
                return (again.id, since);
            }
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < PATIENCE, "it never lets anybody pass");
    }
}

#[test]
fn a_claim_that_came_before_a_release_that_was_sent_twice_is_woken_once_that_is_answered() {
    for at_once in [true, false] {
        let server = RedisServer::start();
        let process = Process::with(plain(&server));
        process.by_word_alone();
        // The server does not know the script of the release.
        let (held, _) = process.take("a", Mode::Exclusive);
        let next = process.exclusive("a");
        let attempt = if at_once {
            process.release_again(held.id, &next).again.expect("it was asked for again")
        } else {
            let release = process.engine.release(&[held.id], None);
            let attempt = process.engine.attempt(&next, Line::Join);
            process.wait(release);
            process.attempted(&next, attempt)
        };
        if matches!(attempt, Attempt::InLine(_)) {
            woken(&process, next.id);
            granted(process.attempt(&next));
        }
        assert!(matches!(process.release(next.id), End::Freed));
    }
}

#[test]
fn a_process_that_had_a_plain_lock_for_long_stands_back_until_somebody_has_had_it() {
    let server = RedisServer::start();
    let process = Process::with(plain(&server));
    // Again where the machine stood still for longer than the process stands back.
    let mut rounds = 0..;
    until("a round tells it", || {
        lets_others_pass(&server, &process, &format!("a{}", rounds.next().expect("there is one")))
    });
}

/// Whether it took no longer than can tell what stands back from what does not.
fn lets_others_pass(server: &RedisServer, process: &Process, name: &str) -> bool {
    // By the process's own clock, which gains where reading its three clocks is interrupted.
    let began = process.clock.now();
    let held = taken(process, name);
    let (waiting, since) = standing_back(process, held, name);
    let ran = process.clock.now().since(began);
    assert!(ran >= Duration::from_millis(50), "{ran:?}: not after each hold");
    let set = server.command(&["SET", name, "theirs", "NX", "PX", "30000"]);
    if set != ["OK"] {
        assert!(since.elapsed() > Duration::from_millis(250), "whoever asks now gets it");
        return false;
    }
    // From here on it waits like any other.
    let mut claim = process.exclusive(name);
    claim.id = waiting;
    woken(process, waiting);
    let Attempt::InLine(place) = process.attempt(&claim) else { panic!("it is theirs") };
    assert!(place.holder.is_some_and(|holder| holder.label.as_deref() == Some("theirs")));
    assert_eq!(server.command(&["DEL", name]), ["1"]);
    woken(process, waiting);
    granted(process.attempt(&claim));
    // Somebody else wanted it, so it stands back again as soon.
    let again = Instant::now();
    let (waiting, _) = standing_back(process, waiting, name);
    let soon = again.elapsed() < Duration::from_secs(4);
    // Once its time is over it asks, and has the lock.
    let left = process.withdraw(waiting);
    let stood_back = matches!(left, End::NotOurs);
    assert!(
        stood_back || again.elapsed() > Duration::from_millis(250),
        "there is nothing of it on the server: {left:?}"
    );
    assert_eq!(server.command(&["EXISTS", name]), ["0"]);
    soon && stood_back
}

#[test]
fn a_process_that_nobody_competes_with_for_a_plain_lock_stands_back_once_in_seconds() {
    let server = RedisServer::start();
    let process = Process::with(plain(&server));
    let held = taken(&process, "a");
    let mut claim = process.exclusive("a");
    let (waiting, began) = standing_back(&process, held, "a");
    claim.id = waiting;
    granted(process.attempt_until(&claim));
    standing_back(&process, claim.id, "a");
    assert!(began.elapsed() >= Duration::from_millis(4_500), "{:?}", began.elapsed());
}

/// Gives a lock back, and asks for it again once that is answered, until it is not granted; answers
/// the claim that it is not granted to.
fn not_granted(process: &Process, held: ClaimId, ask: impl Fn(&Claim) -> Attempt) -> ClaimId {
    let (mut held, began) = (held, Instant::now());
    loop {
        assert!(matches!(process.release(held), End::Freed));
        let next = process.exclusive("a");
        match ask(&next) {
            Attempt::Granted(_) => held = next.id,
            Attempt::InLine(_) | Attempt::Busy(_) => return next.id,
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < PATIENCE, "it never lets anybody pass");
    }
}

/// Gives a lock back, and has it again each time that it asks, for longer than a run and a pause;
/// answers the last hold.
fn granted_each_time(
    process: &Process,
    mut held: ClaimId,
    name: &str,
    ask: impl Fn(&Claim) -> Attempt,
) -> ClaimId {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        assert!(matches!(process.release(held), End::Freed));
        let next = process.exclusive(name);
        granted(ask(&next));
        held = next.id;
    }
    held
}

#[test]
fn b3_a_loop_that_asks_again_behind_its_own_release_lets_others_pass() {
    for layout in [plain, |server: &RedisServer| redisson(server, RedissonLock::Plain)] {
        let server = RedisServer::start();
        let [looping, waiting] = [(), ()].map(|()| Process::with(layout(&server)));
        let held = taken(&looping, "a");
        // It asks only when it is told to here, so the loop has every chance.
        waiting.by_word_alone();
        let wanted = waiting.queue("a", Mode::Exclusive);
        let mut back = looping.exclusive("a");
        back.id = not_granted(&looping, held, |next| looping.attempt(next));
        let grant = waiting.attempt_until(&wanted);
        assert!(matches!(grant, Attempt::Granted(_)), "{grant:?}");
        // The loop waits for it like any other, and not until its pause is over.
        woken(&looping, back.id);
        assert!(matches!(looping.attempt(&back), Attempt::InLine(_)));
        assert!(matches!(waiting.release(wanted.id), End::Freed));
        woken(&looping, back.id);
        granted(looping.attempt(&back));
    }
}

#[test]
fn b3_a_try_behind_its_own_release_gives_way_to_those_who_heard_of_it_and_to_no_guess() {
    let server = RedisServer::start();
    let [looping, waiting] =
        [(), ()].map(|()| Process::with(redisson(&server, RedissonLock::Plain)));
    let held = taken(&looping, "a");
    waiting.by_word_alone();
    waiting.queue("a", Mode::Exclusive);
    not_granted(&looping, held, |next| looping.attempt_try(next));
    // But not for ever to one who listens and never takes it.
    let next = looping.exclusive("a");
    granted(looping.attempt_try(&next));

    let plain = Process::with(plain(&server));
    let held = taken(&plain, "b");
    granted_each_time(&plain, held, "b", |next| plain.attempt_try(next));
}

#[test]
fn a_try_behind_its_own_release_gets_a_free_lock_that_nobody_waits_for_any_more() {
    let server = RedisServer::start();
    let [looping, waiting] =
        [(), ()].map(|()| Process::with(redisson(&server, RedissonLock::Plain)));
    waiting.by_word_alone();
    // Whoever heard of the release has had the lock and gave it back, or left.
    for (name, has_it) in [("a", true), ("b", false)] {
        // The loop's own process does not wait for the lock that it watches.
        let query = Query::One(Kind::Lock, Name::new(name).unwrap());
        looping.wait(looping.engine.watch(WatchId(7), &query)).unwrap();
        let held = taken(&looping, name);
        let run_ends = looping.clock.now().plus(Duration::from_millis(60));
        let wanted = waiting.queue(name, Mode::Exclusive);
        until("the loop has run for long", || run_ends < looping.clock.now());
        assert!(matches!(looping.release(held), End::Freed));
        if has_it {
            granted(waiting.attempt_until(&wanted));
            assert!(matches!(waiting.release(wanted.id), End::Freed));
        } else {
            waiting.withdraw(wanted.id);
            let listen = || server.command(&["PUBSUB", "NUMSUB", &channel(name)]).pop();
            until("it does not listen any more", || listen().as_deref() == Some("1"));
        }
        granted(looping.attempt_try(&looping.exclusive(name)));
        looping.engine.unwatch(WatchId(7));
    }
}

fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

#[test]
fn a_user_who_may_not_ask_who_listens_gives_way_once_and_does_not_for_long() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", "-pubsub"]);
    let mut options = redisson(&server, RedissonLock::Plain);
    (options.user, options.password) =
        (Some("ann".into()), Some(Password::given(Secret::new("pw"))));
    let looping = Process::with(options);
    let waiting = Process::with(redisson(&server, RedissonLock::Plain));
    let held = taken(&looping, "a");
    waiting.by_word_alone();
    waiting.queue("a", Mode::Exclusive);
    not_granted(&looping, held, |next| looping.attempt_try(next));
    let next = looping.exclusive("a");
    granted(looping.attempt_try(&next));
}

#[test]
fn a_try_is_not_refused_for_what_its_own_process_has_just_stopped_listening_to() {
    let (server, hold) = (RedisServer::start(), Fault { hold: true, ..Fault::default() });
    let proxy = Proxy::to(server.port());
    let mut options = redisson(&server, RedissonLock::Plain);
    options.address = Address::Tcp("127.0.0.1".into(), proxy.port());
    // Its releases and looks have a connection of their own.
    options.wait = Some(Wait { replicas: 0, timeout: Duration::from_millis(100) });
    let (one, two) =
        (Process::with(options), Process::with(redisson(&server, RedissonLock::Plain)));
    one.by_word_alone();
    let first_only = |way| proxy.set(way, Fault { present_only: Some(1), ..hold });
    let held = two.take("a", Mode::Exclusive).0.id;
    let wanted = one.queue("a", Mode::Exclusive);
    // Until the server has granted it, and then what is said behind that grant is kept.
    first_only(Way::Down);
    assert!(matches!(two.release(held), End::Freed));
    let grants = one.engine.attempt(&wanted, Line::Join);
    until("it is granted", || server.command(&["EXISTS", "a"]) == ["1"]);
    first_only(Way::Up);
    proxy.set(Way::Down, Fault::default());
    granted(one.wait(grants));
    let run_ends = one.clock.now().plus(Duration::from_millis(60));
    until("it has run for long", || run_ends < one.clock.now());
    assert!(matches!(one.release(wanted.id), End::Freed));
    let answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            // For as long as a question over the other connection would take, and be answered.
            let waits = || began.elapsed() < Duration::from_millis(100);
            until("it is let go", || answered.load(Ordering::Relaxed) || !waits());
            proxy.heal();
        });
        let tried = one.attempt_try(&one.exclusive("a"));
        answered.store(true, Ordering::Relaxed);
        granted(tried);
    });
}

#[test]
fn a_claim_that_stands_back_looks_before_its_caller_gives_up() {
    let server = RedisServer::start();
    let process = Process::with(plain(&server));
    // Again where the machine stood still until its caller gave up.
    let mut rounds = 0..;
    until("a round tells it", || {
        let name = format!("a{}", rounds.next().expect("there is one"));
        let (again, attempt) = standing_back_for_a_moment(&process, &name);
        let give_up = again.give_up.expect("it gives up");
        let in_time = || process.clock.now() < give_up;
        match attempt {
            Attempt::InLine(place) => {
                let ask_at = place.ask_at.expect("it says when");
                assert!(ask_at < give_up || !in_time(), "it looks {ask_at:?}, until {give_up:?}");
            }
            late => {
                assert!(!in_time(), "{late:?}");
                return false;
            }
        }
        let has_it = process.event("what it found", |event| match event {
            Event::Wake { claim } | Event::Granted { claim, .. } => {
                (*claim == again.id).then_some(true)
            }
            Event::Failed { claim, .. } => (*claim == again.id).then_some(false),
            _ => None,
        }) && matches!(process.attempt(&again), Attempt::Granted(_));
        assert!(has_it || !in_time(), "it was free");
        has_it
    });
}

/// Takes a lock, gives it back and asks for it again until it is not granted, each time for less
/// than a claim stands back; answers the last claim and what came of it.
fn standing_back_for_a_moment(process: &Process, name: &str) -> (Claim, Attempt) {
    let mut held = taken(process, name);
    loop {
        let mut again = process.exclusive(name);
        again.give_up = Some(process.clock.now().plus(Duration::from_millis(240)));
        match process.release_again(held, &again).again.expect("it was asked for again") {
            Attempt::Granted(_) => held = again.id,
            other => return (again, other),
        }
    }
}

#[test]
fn nobody_stands_back_where_a_line_or_a_channel_tells_that_nobody_waits() {
    let server = RedisServer::start();
    for options in [redisson(&server, RedissonLock::Plain), options(server.port())] {
        let process = Process::with(options);
        let mut held = taken(&process, "a");
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            let again = process.exclusive("a");
            let answer = process.release_again(held, &again).again;
            assert!(matches!(answer, Some(Attempt::Granted(_))), "{answer:?}");
            assert!(matches!(process.release(again.id), End::Freed));
            let next = process.exclusive("a");
            granted(process.attempt(&next));
            held = next.id;
        }
    }
}

#[test]
fn b3_a_watch_of_the_loop_s_own_process_neither_counts_as_a_waiter_nor_ends_its_pause() {
    let server = RedisServer::start();
    let [looping, waiting] =
        [(), ()].map(|()| Process::with(redisson(&server, RedissonLock::Plain)));
    let name = Name::new("a").unwrap();
    let watch = looping.engine.watch(WatchId(7), &Query::One(Kind::Lock, name));
    looping.wait(watch).unwrap();
    let held = taken(&looping, "a");
    let held = granted_each_time(&looping, held, "a", |next| looping.attempt(next));
    waiting.by_word_alone();
    let wanted = waiting.queue("a", Mode::Exclusive);
    not_granted(&looping, held, |next| looping.attempt(next));
    let grant = waiting.attempt_until(&wanted);
    assert!(matches!(grant, Attempt::Granted(_)), "{grant:?}");
}

#[test]
fn b3_a_loop_of_short_patience_that_nobody_competes_with_stands_back_as_seldom() {
    let server = RedisServer::start();
    let process = Process::with(plain(&server));
    // Again where the machine stood still until its caller gave up.
    let mut rounds = 0..;
    until("a round tells it", || {
        let name = format!("a{}", rounds.next().expect("there is one"));
        let (again, attempt) = standing_back_for_a_moment(&process, &name);
        let stood = matches!(attempt, Attempt::InLine(_));
        if !stood || !matches!(process.attempt_until(&again), Attempt::Granted(_)) {
            return false;
        }
        let next = process.exclusive(&name);
        let answer = process.release_again(again.id, &next).again;
        matches!(answer, Some(Attempt::Granted(_)))
    });
}
