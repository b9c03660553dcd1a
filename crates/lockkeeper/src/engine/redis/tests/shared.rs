//! What is not a mutex: shared holds, permits, elections, latches, several at once, force,
//! watching.

use std::time::{Duration, Instant};

use super::server::RedisServer;
use super::support::{Process, granted, number, until};
use crate::engine::{Attempt, Change, End, Event, Query, Renewal, Standing, WatchId};
use crate::words::claim::Mode;
use crate::words::error::ErrorKind;
use crate::words::id::ClaimId;
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[test]
fn readers_share_and_a_writer_in_line_is_not_starved() {
    let server = RedisServer::start();
    let (one, two, three) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let (first, a) = one.take("a", Mode::Shared);
    let (second, b) = two.take("a", Mode::Shared);
    assert!(number(&b) > number(&a));
    let writer = three.queue("a", Mode::Exclusive);
    let late = one.queue("a", Mode::Shared);
    let later = two.queue("a", Mode::Shared);
    assert_eq!(one.look(Kind::Lock, "a").holders.len(), 2);
    one.release(first.id);
    assert!(matches!(two.renew(second.id), Renewal::Extended { .. }));
    two.release(second.id);
    let written = three.granted(writer.id);
    assert!(number(&written) > number(&b));
    three.release(writer.id);
    // Both readers behind it come in together.
    assert!(number(&one.granted(late.id)) > number(&written));
    two.granted(later.id);
}

#[test]
fn a_dead_reader_ends_by_itself_while_the_others_go_on() {
    let server = RedisServer::start();
    let (one, two, three) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let mut short = one.claim("a", Mode::Shared);
    short.ttl = Duration::from_millis(400);
    one.granted_at_last(&short);
    let (other, _) = two.take("a", Mode::Shared);
    let writer = three.queue("a", Mode::Exclusive);
    one.die();
    until("it has ended", || {
        assert!(matches!(two.renew(other.id), Renewal::Extended { .. }));
        three.look(Kind::Lock, "a").holders.len() == 1
    });
    assert!(matches!(two.renew(other.id), Renewal::Extended { .. }));
    two.release(other.id);
    three.granted(writer.id);
}

#[test]
fn many_small_permits_are_counted_exactly() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let mut held = Vec::new();
    for _ in 0..50 {
        held.push(process.take("s", Mode::Permits { count: 1, limit: 50 }).0);
    }
    assert!(matches!(
        process.attempt_try(&process.claim("s", Mode::Permits { count: 1, limit: 50 })),
        Attempt::Busy(_)
    ));
    let ends = process
        .wait(process.engine.release(&held.iter().map(|c| c.id).collect::<Vec<_>>(), None))
        .ends;
    assert!(ends.iter().all(|e| matches!(e, End::Freed)), "{ends:?}");
    process.take("s", Mode::Permits { count: 50, limit: 50 });
}

#[test]
fn a_latch_opens_once_and_a_repeated_count_counts_once() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let set = Change::LatchSet(name("import"), 2);
    assert!(process.change(&set));
    assert!(!process.change(&set), "set already");
    assert_eq!(process.look(Kind::Latch, "import").count, Some(2));
    assert_eq!(process.list("imp").len(), 1);
    let first = Change::LatchCountDown(name("import"), ClaimId::fresh());
    assert!(!process.change(&first));
    assert!(!process.change(&first), "the same call again");
    assert!(process.change(&Change::LatchCountDown(name("import"), ClaimId::fresh())));
    assert_eq!(process.list("imp"), []);
    assert!(process.change(&set));
}

#[test]
fn several_locks_are_taken_all_or_none() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let (held, _) = two.take("b", Mode::Exclusive);
    let claims = [one.exclusive("a"), one.claim("b", Mode::Shared), one.exclusive("c")];
    let attempts = one.wait(one.engine.attempt_all(&claims));
    assert!(attempts.iter().all(|a| matches!(a, Attempt::Busy(_))), "{attempts:?}");
    assert!(
        matches!(&attempts[1], Attempt::Busy(Some(holder)) if holder.claim == Some(held.id)),
        "{attempts:?}"
    );
    assert_eq!(one.list("").len(), 1, "nothing of ours stays");
    two.release(held.id);
    let claims = [one.exclusive("a"), one.claim("b", Mode::Shared), one.exclusive("c")];
    let attempts = one.wait(one.engine.attempt_all(&claims));
    assert!(attempts.iter().all(|a| matches!(a, Attempt::Granted(_))), "{attempts:?}");
    for claim in &claims {
        assert!(matches!(one.release(claim.id), End::Freed));
    }
}

#[test]
fn force_takes_a_lock_away_and_its_holder_hears_of_it() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let (held, grant) = one.take("a", Mode::Exclusive);
    let waiting = two.queue("a", Mode::Exclusive);
    assert!(two.change(&Change::Force(Kind::Lock, name("a"), Vec::new())));
    one.event("the loss", |e| {
        matches!(
            e,
            Event::Ended { which: crate::engine::Which::Hold(id), why: Lost::TakenAway }
                if *id == held.id
        )
        .then_some(())
    });
    assert!(number(&two.granted(waiting.id)) > number(&grant));
    assert!(matches!(one.release(held.id), End::NotOurs));
    assert!(!two.change(&Change::Force(Kind::Lock, name("free"), Vec::new())));
}

#[test]
fn r16_after_a_lease_that_ran_out_the_delay_passes_and_after_a_release_it_does_not() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let mut claim = one.exclusive("a");
    (claim.ttl, claim.lock_delay) = (Duration::from_secs(1), Duration::from_secs(3));
    let before = Instant::now();
    granted(one.attempt(&claim));
    let since = Instant::now();
    let waiting = two.queue("a", Mode::Exclusive);
    std::thread::sleep(Duration::from_millis(1_100).saturating_sub(since.elapsed()));
    assert!(matches!(one.renew(claim.id), Renewal::Gone(_)), "over, although the record is there");
    assert!(matches!(one.release(claim.id), End::NotOurs));
    assert_eq!(two.look(Kind::Lock, "a").holders, []);
    two.granted(waiting.id);
    assert!(before.elapsed() >= Duration::from_millis(3_990), "{:?}", before.elapsed());
    two.release(waiting.id);
    let mut claim = one.exclusive("a");
    claim.lock_delay = Duration::from_secs(60);
    granted(one.attempt(&claim));
    one.release(claim.id);
    two.take("a", Mode::Exclusive);
}

#[test]
fn watchers_hear_of_what_they_watch_and_of_nothing_else() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let changed = |id: u64| {
        move |e: &Event| matches!(e, Event::Changed { watch: WatchId(n) } if *n == id).then_some(())
    };
    two.wait(two.engine.watch(WatchId(1), &Query::One(Kind::Lock, name("a")))).unwrap();
    two.wait(two.engine.watch(WatchId(2), &Query::Prefix("jobs/".into()))).unwrap();
    let (held, _) = one.take("a", Mode::Exclusive);
    two.event("the grant", changed(1));
    one.release(held.id);
    two.event("the release", changed(1));
    one.take("jobs/x", Mode::Exclusive);
    two.event("the other grant", changed(2));
    one.take("b", Mode::Exclusive);
    assert!(two.event_within(Duration::from_millis(100), &mut changed(2)).is_none());
    two.engine.unwatch(WatchId(1));
    two.engine.unwatch(WatchId(2));
}

#[test]
fn a_limit_that_changes_takes_neither_places_nor_permits_away() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let mode = Mode::Permits { count: 2, limit: 2 };
    let (held, _) = one.take("gpu", mode);
    let waiting = two.queue("gpu", mode);
    assert!(one.change(&Change::Resize(name("gpu"), 3)));
    assert!(!one.change(&Change::Resize(name("gpu"), 3)), "it was that already");
    assert_eq!(one.look(Kind::Semaphore, "gpu").limit, Some(3));
    let answers = two.wait(two.engine.recheck(&[waiting.id]));
    assert!(matches!(answers[..], [Standing::InLine(_)]), "{answers:?}");
    // The answer to an acquire was lost, and it is sent again.
    granted(one.attempt(&held));
    let refused = one.attempt(&one.claim("gpu", mode));
    assert!(
        matches!(&refused, Attempt::Failed(error) if error.kind() == ErrorKind::LimitMismatch),
        "only newcomers have to know: {refused:?}"
    );
    assert!(matches!(one.release(held.id), End::Freed));
    two.granted(waiting.id);
}

#[test]
fn a_place_that_asks_for_more_than_a_new_limit_is_refused_and_keeps_nobody_waiting() {
    let server = RedisServer::start();
    let (one, two, three) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let permits = |count| Mode::Permits { count, limit: 2 };
    let (held, _) = one.take("gpu", permits(2));
    let great = two.queue("gpu", permits(2));
    let small = three.queue("gpu", permits(1));
    assert!(one.change(&Change::Resize(name("gpu"), 1)));
    assert!(matches!(one.release(held.id), End::Freed));
    let answers = two.wait(two.engine.recheck(&[great.id]));
    assert!(
        matches!(&answers[..], [Standing::Gone(error)] if error.kind() == ErrorKind::LimitMismatch),
        "{answers:?}"
    );
    three.granted(small.id);
    assert_eq!(one.look(Kind::Semaphore, "gpu").waiters, []);
}

#[test]
fn a_semaphores_limit_is_kept_for_as_long_as_it_is_used() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let mode = Mode::Permits { count: 1, limit: 5 };
    let last = "lockkeeper:{semaphore:gpu}:last";
    let record = "lockkeeper:{semaphore:gpu}";
    let kept_long = || server.command(&["TTL", last])[0].parse::<u64>().unwrap() > 100;
    let first = process.take("gpu", mode).0;
    process.take("gpu", mode);
    // Somebody is always there, and comes and goes.
    server.command(&["EXPIRE", last, "100"]);
    process.take("gpu", mode);
    assert!(kept_long());
    // The same permits are held for weeks.
    let field = server.command(&["HGET", record, &first.id.to_string()]).remove(0);
    let mut words: Vec<&str> = field.split(' ').collect();
    words[13] = "1767225600000000";
    server.command(&["HSET", record, &first.id.to_string(), &words.join(" ")]);
    server.command(&["EXPIRE", last, "100"]);
    assert!(matches!(process.renew(first.id), Renewal::Extended { .. }));
    assert!(kept_long());
}

#[test]
fn r16_a_pushed_grant_that_lapsed_into_its_delay_is_waited_for_again() {
    let server = RedisServer::start();
    let both = [(); 2].map(|()| Process::of(&server));
    for other_readers in [false, true] {
        let mut turn = 0;
        // Again where a lease ended before anybody was asked about it.
        until("it is waited for again", || {
            turn += 1;
            lapses_into_its_delay(&server, &both, &format!("{other_readers}{turn}"), other_readers)
        });
    }
}

/// A pushed grant of this name lapses, and its claim waits for the end of the delay; whether all
/// that was asked in between was asked in time.
fn lapses_into_its_delay(
    server: &RedisServer,
    [one, two]: &[Process; 2],
    name: &str,
    other_readers: bool,
) -> bool {
    let mode = if other_readers { Mode::Shared } else { Mode::Exclusive };
    let (held, _) = one.take(name, Mode::Exclusive);
    let mut claim = two.claim(name, mode);
    (claim.ttl, claim.lock_delay) = (Duration::from_secs(3), Duration::from_secs(5));
    two.queue_claim(&claim);
    let reader = other_readers.then(|| one.queue(name, Mode::Shared));
    let released = Instant::now();
    assert!(matches!(one.release(held.id), End::Freed));
    let first = two.granted(claim.id);
    let pushed = Instant::now();
    if let Some(reader) = &reader {
        one.granted(reader.id);
        // Its claim lease is two seconds.
        let renewed = matches!(one.renew(reader.id), Renewal::Extended { .. });
        assert!(renewed || released.elapsed() > Duration::from_secs(1), "it was not extended");
        if !renewed {
            return false;
        }
    }
    // The claim lease is a second, and nobody confirms it.
    until("it is over", || pushed.elapsed() > Duration::from_millis(1_100));
    let attempt = two.attempt(&claim);
    if released.elapsed() > Duration::from_secs(5) {
        return false;
    }
    assert!(
        matches!(attempt, Attempt::InLine(_)),
        "it never held, so it cannot have lost: {attempt:?}"
    );
    let attempt = two.attempt_try(&two.claim(name, Mode::Exclusive));
    assert!(matches!(attempt, Attempt::Busy(_)), "{attempt:?}");
    assert!(number(&two.granted(claim.id)) > number(&first));
    // Nobody confirms this one either.
    if !matches!(two.release(claim.id), End::Freed) {
        return false;
    }
    if let Some(reader) = reader {
        assert!(matches!(one.release(reader.id), End::Freed));
    }
    assert_eq!(server.command(&["EXISTS", &format!("lockkeeper:{{lock:{name}}}")]), ["0"]);
    true
}

#[test]
fn a_hash_of_more_fields_than_a_record_has_is_told_as_unreadable_without_being_read() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    process.take("shop/a", Mode::Exclusive);
    let fill = "for i = 1, ARGV[1], 1000 do local t = {} for n = i, i + 999 do t[#t + 1] = n t[#t \
                + 1] = ARGV[2] end redis.call('HSET', KEYS[1], unpack(t)) end";
    server.command(&["EVAL", fill, "1", "lockkeeper:{lock:shop/huge}", "66000", "x"]);
    let entries = process.list("shop/");
    let told: Vec<_> =
        entries.iter().map(|entry| (entry.name.as_str(), entry.unreadable.is_some())).collect();
    assert_eq!(told, [("shop/a", false), ("shop/huge", true)]);
    assert_eq!(
        server.command_counts().get("hgetall"),
        None,
        "it would stop the server for everybody"
    );
}

#[test]
fn a_listing_of_long_records_comes_in_several_answers_and_is_whole() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let value = "x".repeat(1 << 10);
    let fill = "for i = 1, 200 do redis.call('HSET', KEYS[1], i, ARGV[1]) end";
    for n in 10..30 {
        server.command(&["EVAL", fill, "1", &format!("lockkeeper:{{lock:shop/{n}}}"), &value]);
    }
    let asked = || server.command_counts().get("evalsha").copied().unwrap_or(0);
    let before = asked();
    let names: Vec<_> =
        process.list("shop/").into_iter().map(|entry| entry.name.as_str().to_owned()).collect();
    assert_eq!(names, (10..30).map(|n| format!("shop/{n}")).collect::<Vec<_>>());
    assert!(asked() - before > 1, "4 MB in one answer hold up all others");
}
