//! What is given once more is written once more: where replicas are waited for, WAIT is about what
//! its own connection wrote.

use super::super::options::{Layout, RedisOptions, RedissonLock, RedissonSemaphore};
use super::interop::{plain, redisson};
use super::server::RedisServer;
use super::support::{Process, granted, options};
use crate::engine::{End, Line};
use crate::words::claim::{Claim, Mode};

/// How many changes the server has counted.
fn changes(server: &RedisServer) -> u64 {
    let said = server.command(&["INFO", "persistence"]).concat();
    let line = said.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
    line.and_then(|count| count.trim().parse().ok()).expect("it counts them")
}

/// Asks for a claim that is granted already.
fn asked_again(server: &RedisServer, process: &Process, claim: &Claim) {
    let before = changes(server);
    granted(process.wait(process.engine.attempt(claim, Line::Join)));
    assert!(changes(server) > before, "{:?} is given again, and nothing written", claim.mode);
}

/// A layout, and the modes that it has.
type Written<'a> = (&'a dyn Fn(&RedisServer) -> RedisOptions, &'a [Mode]);

#[test]
fn s6_a_hold_that_is_given_once_more_is_written_once_more() {
    let exclusive = [Mode::Exclusive].as_slice();
    let permits = Mode::Permits { count: 2, limit: 3 };
    let of_java = |semaphore| {
        move |server: &RedisServer| RedisOptions {
            semaphore,
            ..redisson(server, RedissonLock::Plain)
        }
    };
    let layouts: [Written<'_>; 8] = [
        (
            &|server| options(server.port()),
            &[Mode::Exclusive, Mode::Shared, Mode::Upgradable, permits],
        ),
        (&plain, exclusive),
        (&|server| redisson(server, RedissonLock::Plain), exclusive),
        (&|server| redisson(server, RedissonLock::Fenced), exclusive),
        (&|server| redisson(server, RedissonLock::Fair), exclusive),
        (&|server| redisson(server, RedissonLock::ReadWrite), &[Mode::Exclusive, Mode::Shared]),
        (&of_java(RedissonSemaphore::Expirable), &[permits]),
        (&of_java(RedissonSemaphore::Simple), &[permits]),
    ];
    for (options, modes) in layouts {
        for mode in modes {
            let server = RedisServer::start();
            let process = Process::with(options(&server));
            let (claim, _) = process.take("a", *mode);
            // Ours is known by its claim alone, also over another connection.
            let again = Process::with(options(&server));
            let ours = options(&server).layout != Layout::Redisson;
            asked_again(&server, if ours { &again } else { &process }, &claim);
            assert!(matches!(process.release(claim.id), End::Freed));
        }
    }
}

#[test]
fn s6_a_hold_that_somebody_else_s_release_gave_is_written_once_it_is_asked_for() {
    let server = RedisServer::start();
    let [one, two] = [(), ()].map(|()| Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    let waits = two.queue("a", Mode::Exclusive);
    assert!(matches!(one.release(held.id), End::Freed));
    two.granted(waits.id);
    asked_again(&server, &Process::of(&server), &waits);
}

#[test]
fn s6_several_locks_that_are_given_once_more_are_each_written_once_more() {
    let server = RedisServer::start();
    let [one, again] = [(), ()].map(|()| Process::of(&server));
    let both = ["a", "b"].map(|name| one.exclusive(name));
    let ask = |process: &Process| {
        let answers = process.wait(process.engine.attempt_all(&both));
        answers.into_iter().map(granted).count()
    };
    assert_eq!(ask(&one), 2);
    let before = changes(&server);
    assert_eq!(ask(&again), 2);
    assert!(changes(&server) >= before + 2, "each is written");
}
