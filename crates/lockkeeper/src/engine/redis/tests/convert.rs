//! Conversions: readers and writers beside an upgradable hold.

use std::time::Duration;

use super::faults::behind;
use super::proxy::{Fault, Proxy, Way};
use super::server::RedisServer;
use super::support::{Process, granted, number, until};
use crate::engine::{Attempt, End, Renewal};
use crate::words::claim::{Claim, Mode};
use crate::words::error::ErrorKind;

#[test]
fn an_upgradable_hold_beside_readers_stays_the_only_one_when_it_is_made_upgradable_again() {
    let server = RedisServer::start();
    let (one, two, three) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let (reader, _) = two.take("a", Mode::Shared);
    let (up, first) = one.take("a", Mode::Upgradable);
    let same = granted(one.wait(one.engine.convert(up.id, &one.claim("a", Mode::Upgradable))));
    assert!(number(&same) > number(&first));
    let another = three.attempt_try(&three.claim("a", Mode::Upgradable));
    assert!(
        matches!(another, Attempt::Busy(_)),
        "two that wait for each other's upgrade never end: {another:?}"
    );
    // A reader becomes nothing more.
    let refused = two.wait(two.engine.convert(reader.id, &two.claim("a", Mode::Upgradable)));
    assert!(
        matches!(&refused, Attempt::Failed(error) if error.kind() == ErrorKind::WouldDeadlock),
        "{refused:?}"
    );
    // As a reader it leaves room for another one.
    granted(one.wait(one.engine.convert(up.id, &one.claim("a", Mode::Shared))));
    granted(three.attempt_try(&three.claim("a", Mode::Upgradable)));
}

#[test]
fn an_upgrade_waits_in_front_of_the_line_for_the_readers_and_keeps_its_hold() {
    let server = RedisServer::start();
    let (one, two, three) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let (up, first) = one.take("a", Mode::Upgradable);
    let (reader, second) = two.take("a", Mode::Shared);
    assert!(number(&second) > number(&first));
    let writer = three.queue("a", Mode::Exclusive);
    assert!(
        matches!(three.attempt_try(&three.claim("a", Mode::Shared)), Attempt::Busy(_)),
        "nobody overtakes the writer"
    );
    let conversion = one.exclusive("a");
    let answer = one.wait(one.engine.convert(up.id, &conversion));
    assert!(matches!(answer, Attempt::InLine(ref place) if place.ahead == Some(0)), "{answer:?}");
    two.release(reader.id);
    let upgraded = one.granted(conversion.id);
    assert!(number(&upgraded) > number(&second));
    assert_eq!(upgraded.lease.map(|l| l.id), Some(up.id.into()));
    assert!(matches!(one.renew(up.id), Renewal::Extended { .. }));
    // Back to reading: a new number, and the writer still waits.
    let back = one.claim("a", Mode::Shared);
    let down = granted(one.wait(one.engine.convert(up.id, &back)));
    assert!(number(&down) > number(&upgraded));
    one.release(up.id);
    assert!(number(&three.granted(writer.id)) > number(&down));
}

#[test]
fn an_upgrade_that_is_withdrawn_after_it_was_granted_leaves_the_hold_as_it_was() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let (up, _) = one.take("a", Mode::Upgradable);
    let conversion = one.exclusive("a");
    granted(one.wait(one.engine.convert(up.id, &conversion)));
    assert!(matches!(two.attempt_try(&two.claim("a", Mode::Shared)), Attempt::Busy(_)));
    assert!(matches!(one.withdraw(conversion.id), End::Freed));
    two.take("a", Mode::Shared);
    assert!(matches!(one.renew(up.id), Renewal::Extended { .. }));
}

#[test]
fn g5_a_conversion_whose_answer_was_lost_is_unknown_and_the_same_one_again_is_granted() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (behind(&proxy, Duration::from_secs(15)), Process::of(&server));
    let convert = |up: &Claim, to: &Claim| one.wait(one.engine.convert(up.id, to));
    // The server learns the scripts, so that it is the conversion whose answer is lost.
    let (warm, _) = one.take("warm", Mode::Upgradable);
    granted(convert(&warm, &one.exclusive("warm")));
    for (name, lost) in [("a", 0), ("b", 3)] {
        let (up, first) = one.take(name, Mode::Upgradable);
        let record = &format!("lockkeeper:{{lock:{name}}}");
        let before = server.command(&["GET", record]);
        proxy.set(Way::Down, Fault { cut_after: Some(lost), ..Fault::default() });
        let alone = one.exclusive(name);
        let lost = convert(&up, &alone);
        assert!(matches!(&lost, Attempt::Unknown(e) if e.kind() == ErrorKind::Unknown), "{lost:?}");
        one.link(false);
        one.link(true);
        until("the server has converted it", || server.command(&["GET", record]) != before);
        let reader = two.attempt_try(&two.claim(name, Mode::Shared));
        assert!(matches!(reader, Attempt::Busy(_)), "it may be alone already: {reader:?}");
        let again = granted(convert(&up, &alone));
        assert!(number(&again) > number(&first));
        assert!(matches!(one.renew(up.id), Renewal::Extended { .. }));
        assert!(matches!(one.release(up.id), End::Freed));
        assert_eq!(server.command(&["EXISTS", record]), ["0"], "held once");
    }
}
