//! On the layouts of others: what is asked twice, answered late, or about a hold that is gone.

use std::time::Duration;

use super::super::options::{Layout, RedisOptions, RedissonLock};
use super::interop::{plain, redisson, woken};
use super::proxy::{Proxy, Way};
use super::server::RedisServer;
use super::support::{Process, options, patient, until};
use crate::engine::{Attempt, End, Event, Line, Standing};
use crate::protocol::line::AskAt;
use crate::words::claim::{Claim, Mode};
use crate::words::error::ErrorKind;
use crate::words::name::Kind;

#[test]
fn r2_asking_about_a_lost_hold_never_takes_the_lock_anew() {
    let server = RedisServer::start();
    let all = [plain(&server)].into_iter().chain(
        [RedissonLock::Plain, RedissonLock::Fenced, RedissonLock::Fair, RedissonLock::ReadWrite]
            .map(|lock| redisson(&server, lock)),
    );
    for options in all {
        let process = Process::with(options);
        let (held, _) = process.take("a", Mode::Exclusive);
        let asked = process.wait(process.engine.recheck(&[held.id]));
        assert!(matches!(asked[..], [Standing::Held(_)]), "{asked:?}");
        server.command(&["DEL", "a"]);
        let asked = process.wait(process.engine.recheck(&[held.id]));
        assert!(
            matches!(&asked[..], [Standing::Gone(e)] if e.kind() == ErrorKind::Lost),
            "{asked:?}"
        );
        assert_eq!(server.command(&["EXISTS", "a"]), ["0"], "it was not taken anew");
    }
}

/// How many leases have run out on the server, whether anybody saw them or not.
fn run_out(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "stats"]).join("\n");
    let count = stats.lines().find_map(|line| line.trim().strip_prefix("expired_keys:"));
    count.expect("it counts them").parse().expect("a number")
}

/// One process has a lock, another one waits for it, and nobody asks about that but the test.
fn one_behind_the_other(options: RedisOptions) -> ([Process; 2], [Claim; 2]) {
    let (other, process) = (Process::with(options.clone()), Process::with(options));
    let (held, _) = other.take("a", Mode::Exclusive);
    let claim = process.exclusive("a");
    let stands = process.wait(process.engine.attempt(&claim, Line::Join));
    assert!(matches!(stands, Attempt::InLine(_)), "{stands:?}");
    ([other, process], [held, claim])
}

#[test]
fn r4_a_busy_that_is_read_behind_a_newer_grant_changes_nothing() {
    let server = RedisServer::start();
    for options in [plain(&server), redisson(&server, RedissonLock::Plain)] {
        let ([other, process], [held, claim]) = one_behind_the_other(options);
        let older = process.engine.recheck(&[claim.id]);
        // On one connection it is carried out before this look is answered.
        process.look(Kind::Lock, "a");
        assert!(matches!(other.release(held.id), End::Freed));
        let newer = process.wait(process.engine.recheck(&[claim.id]));
        assert!(matches!(newer[..], [Standing::Held(_)]), "{newer:?}");
        let older = process.wait(older);
        assert!(matches!(older[..], [Standing::Unknown(_)]), "{older:?}");
        assert!(matches!(process.release(claim.id), End::Freed), "it was forgotten");
        assert_eq!(server.command(&["EXISTS", "a"]), ["0"]);
    }
}

#[test]
fn r10_a_wake_up_that_the_older_of_two_answers_tells_of_is_not_put_off_by_the_newer() {
    let server = RedisServer::start();
    for options in [plain(&server), redisson(&server, RedissonLock::Plain)] {
        let ([other, process], [held, claim]) = one_behind_the_other(options);
        // At its time, and the net beside it.
        let answers = [0, 1].map(|_| process.engine.recheck(&[claim.id]));
        // On one connection both are carried out before this look is answered.
        process.look(Kind::Lock, "a");
        assert!(matches!(other.release(held.id), End::Freed));
        // The release is heard before this one is.
        process.look(Kind::Lock, "a");
        let mut ask_at = AskAt::default();
        for answer in answers {
            let standings = process.wait(answer);
            let [Standing::InLine(place)] = &standings[..] else { panic!("{standings:?}") };
            ask_at.answered(process.now(), place.ask_at);
        }
        // By itself it looks after five seconds.
        assert!(ask_at.is_due(process.now()), "{ask_at:?}");
        assert!(matches!(process.withdraw(claim.id), End::NotOurs));
    }
}

#[test]
fn r5_what_was_granted_and_read_too_late_is_given_back_when_its_caller_leaves() {
    let server = RedisServer::start();
    for layout in [Layout::Native, Layout::Plain, Layout::Redisson] {
        let proxy = Proxy::to(server.port());
        // What was taken for nobody is given back when no copy of it can be in time.
        let mut options = options(proxy.port());
        (options.layout, options.request_timeout) = (layout, Duration::from_secs(5));
        let process = Process::with(options);
        let record = if layout == Layout::Native { "lockkeeper:{lock:a}" } else { "a" };
        let is_there = || server.command(&["EXISTS", record]) == ["1"];
        let claim = process.exclusive("a");
        let short = Claim { ttl: Duration::from_millis(1500), ..claim.clone() };
        // The server learns the script.
        let (warm, _) = process.take("warm", Mode::Exclusive);
        assert!(matches!(process.release(warm.id), End::Freed));
        proxy.hold(Way::Down);
        let before = run_out(&server);
        let asked = process.engine.attempt(&short, Line::Join);
        until("it was granted, and its lease is over", || run_out(&server) > before);
        proxy.heal();
        let attempt = process.wait(asked);
        assert!(matches!(attempt, Attempt::Unknown(_)), "{layout:?}: {attempt:?}");
        // Asked again it holds, but its caller leaves.
        process.granted_at_last(&claim);
        assert!(is_there());
        assert!(matches!(process.withdraw(claim.id), End::Freed), "{layout:?}");
        assert!(!is_there(), "{layout:?}");
    }
}

#[test]
fn r10_who_waits_hears_of_a_release_also_after_an_answer_that_came_too_late() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let mut options = patient(redisson(&server, RedissonLock::Plain));
    options.address = super::support::options(proxy.port()).address;
    let (other, process) =
        (Process::with(redisson(&server, RedissonLock::Plain)), Process::with(options));
    let (held, _) = other.take("a", Mode::Exclusive);
    let mut claim = process.exclusive("a");
    claim.ttl = Duration::from_millis(1500);
    let stands = process.wait(process.engine.attempt(&claim, Line::Join));
    assert!(matches!(stands, Attempt::InLine(_)), "{stands:?}");
    // A check is answered with a grant that is read when it is over, and somebody else has it.
    proxy.hold(Way::Down);
    assert!(matches!(other.release(held.id), End::Freed));
    let before = run_out(&server);
    let late = process.engine.recheck(&[claim.id]);
    until("it was granted, and its lease is over", || run_out(&server) > before);
    let (next, _) = other.take("a", Mode::Exclusive);
    proxy.heal();
    let late = process.wait(late);
    assert!(matches!(late[..], [Standing::Unknown(_)]), "{late:?}");
    // The release from before is heard by now, too: the next one is what counts.
    process.look(Kind::Lock, "a");
    while process.event_within(Duration::from_millis(200), &mut |_: &Event| Some(())).is_some() {}
    assert!(matches!(other.release(next.id), End::Freed));
    woken(&process, claim.id);
}
