//! A check of places: what it finds, what it carries, and what it is for.

use super::proxy::Proxy;
use super::server::RedisServer;
use super::support::{PATIENCE, Process, options, until};
use crate::engine::{Renewal, Standing};
use crate::words::claim::Mode;
use crate::words::id::ClaimId;

#[test]
fn places_that_were_wiped_out_stand_again_after_the_next_check() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    one.take("a", Mode::Exclusive);
    let waiting = two.queue("a", Mode::Exclusive);
    server.command(&["FLUSHALL"]);
    let answers = two.wait(two.engine.recheck(&[waiting.id]));
    assert!(matches!(answers[..], [Standing::Held(_)]), "{answers:?}");
    assert!(matches!(two.renew(waiting.id), Renewal::Extended { .. }));
}

#[test]
fn a_check_of_many_places_is_one_message_and_their_sign_of_life() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let mut waiting = Vec::new();
    for n in 0..50 {
        let name = format!("name-{n}");
        one.take(&name, Mode::Exclusive);
        waiting.push(two.queue(&name, Mode::Exclusive).id);
    }
    let lives = |n: usize| {
        server.command(&[
            "ZSCORE",
            &format!("lockkeeper:{{lock:name-{n}}}:line"),
            &format!("s{}", waiting[n]),
        ])[0]
            .parse::<f64>()
            .unwrap()
    };
    let before = lives(49);
    let answers = two.wait(two.engine.recheck(&waiting));
    assert!(
        answers.iter().all(|a| matches!(a, Standing::InLine(place) if place.ahead == Some(0))),
        "{answers:?}"
    );
    assert!(lives(49) > before);
}

#[test]
fn a_check_of_more_places_than_one_message_carries_asks_about_each() {
    let server = RedisServer::start();
    let one = Process::of(&server);
    let mut names = (0..).map(|n| format!("a{n}"));
    // On a machine with much to do the first may be gone when the last one comes, and then once
    // more.
    until("each has the place that it came for", || {
        let (name, two) = (names.next().unwrap(), Process::of(&server));
        eprintln!("the line of {name}");
        one.take(&name, Mode::Exclusive);
        let waiting = two.queue_all(&name, 1100);
        let answers = two.wait(two.engine.recheck(&waiting));
        assert_eq!(answers.len(), waiting.len());
        answers.iter().enumerate().all(|(n, answer)| {
            let Standing::InLine(place) = answer else { panic!("place {n}: {answer:?}") };
            place.ahead == Some(n as u32)
        })
    });
}

#[test]
fn a_check_of_places_does_not_wait_for_a_server_that_is_away() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let mut behind = options(proxy.port());
    // Whoever waits for it waits for longer than the test.
    behind.request_timeout = PATIENCE * 5;
    let (one, two) = (Process::of(&server), Process::with(behind));
    let names: Vec<String> = (0..20).map(|n| format!("name-{n}")).collect();
    let places: Vec<ClaimId> = names
        .iter()
        .map(|name| {
            one.take(name, Mode::Exclusive);
            two.queue(name, Mode::Exclusive).id
        })
        .collect();
    proxy.refuse(true);
    proxy.cut();
    two.link(false);
    let answers = two.wait(two.engine.recheck(&places));
    assert!(answers.iter().all(|answer| matches!(answer, Standing::Unknown(_))), "{answers:?}");
}
