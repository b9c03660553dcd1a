//! Redisson's layouts, against the very commands that Redisson sends.

use std::time::Duration;

use super::super::options::RedissonLock;
use super::interop::{redisson, woken};
use super::server::RedisServer;
use super::support::{Process, engine_of, granted};
use crate::engine::{Attempt, Change, End, Event, Number, Query, Renewal, Standing, WatchId};
use crate::words::claim::Mode;
use crate::words::error::ErrorKind;
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

fn two_of(server: &RedisServer, lock: RedissonLock) -> (Process, Process) {
    (Process::with(redisson(server, lock)), Process::with(redisson(server, lock)))
}

#[test]
fn permits_that_are_out_stay_out_when_their_counter_is_gone() {
    let server = RedisServer::start();
    let process = Process::with(redisson(&server, RedissonLock::Plain));
    let permits = |count| process.claim("s", Mode::Permits { count, limit: 2 });
    granted(process.attempt_try(&permits(1)));
    server.command(&["DEL", "s"]);
    granted(process.attempt_try(&permits(1)));
    let third = process.attempt_try(&permits(1));
    assert!(matches!(third, Attempt::Busy(_)), "{third:?}");
}

/// RLock's scripts, as Redisson sends them.
const TRY_LOCK: &str = "if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', \
                        KEYS[1], ARGV[2]) == 1)) then redis.call('hincrby', KEYS[1], ARGV[2], 1); \
                        redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; \
                        return redis.call('pttl', KEYS[1]);";

#[test]
fn rlock_excludes_wakes_and_is_woken() {
    let server = RedisServer::start();
    let process = Process::with(redisson(&server, RedissonLock::Plain));
    process.by_word_alone();
    let java = "b983c153-7421-469a-addb-44fb92259a1b:1";
    let lock = || server.command(&["EVAL", TRY_LOCK, "1", "anyLock", "30000", java])[0].clone();
    assert_eq!(lock(), "(nil)");
    let waiting = process.queue("anyLock", Mode::Exclusive);
    server.command(&["DEL", "anyLock"]);
    server.command(&["PUBLISH", "redisson_lock__channel:{anyLock}", "0"]);
    woken(&process, waiting.id);
    granted(process.attempt(&waiting));
    granted(process.attempt(&waiting));
    let hash = server.command(&["HGETALL", "anyLock"]);
    assert!(
        matches!(
            &hash[..],
            [owner, count] if owner.len() > 38 && owner.contains(':') && count == "1"
        ),
        "sent twice it counts once: {hash:?}"
    );
    assert!(lock().parse::<i64>().is_ok_and(|pttl| pttl > 29_000));
    let mut ear = server.client();
    ear.command(&["SUBSCRIBE", "redisson_lock__channel:{anyLock}"]);
    assert!(matches!(process.release(waiting.id), End::Freed));
    assert_eq!(ear.read(), ["message", "redisson_lock__channel:{anyLock}", "0"]);
    assert_eq!(lock(), "(nil)");
    super::support::until("the subscription is gone", || {
        server.command(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{anyLock}"])[1] == "1"
    });
    // A client that is gone: the lease ends, and nobody publishes.
    server.command(&["PEXPIRE", "anyLock", "1500"]);
    let waiting = process.queue("anyLock", Mode::Exclusive);
    woken(&process, waiting.id);
    granted(process.attempt_until(&waiting));
    assert!(matches!(process.renew(waiting.id), Renewal::Extended { .. }));
    server.command(&["DEL", "anyLock"]);
    assert!(matches!(process.renew(waiting.id), Renewal::Gone(_)));
}

#[test]
fn rfencedlock_counts_once_a_claim() {
    let server = RedisServer::start();
    let process = Process::with(redisson(&server, RedissonLock::Fenced));
    server.command(&["SET", "redisson_lock_token:{f}", "41"]);
    let claim = process.exclusive("f");
    assert_eq!(granted(process.attempt(&claim)).number, Number::Raw(42));
    assert_eq!(granted(process.attempt(&claim)).number, Number::Raw(42));
    process.release(claim.id);
    assert_eq!(process.take("f", Mode::Exclusive).1.number, Number::Raw(43));
}

#[test]
fn rfairlock_keeps_its_order_and_skips_the_dead() {
    let server = RedisServer::start();
    let (one, two) = two_of(&server, RedissonLock::Fair);
    let (held, _) = one.take("q", Mode::Exclusive);
    let first = two.queue("q", Mode::Exclusive);
    let second = one.queue("q", Mode::Exclusive);
    assert_eq!(server.command(&["LLEN", "redisson_lock_queue:{q}"]), ["2"]);
    // One that died before it: its deadline is over.
    server.command(&["LPUSH", "redisson_lock_queue:{q}", "dead"]);
    server.command(&["ZADD", "redisson_lock_timeout:{q}", "1", "dead"]);
    one.release(held.id);
    woken(&two, first.id);
    assert!(matches!(one.attempt(&second), Attempt::InLine(_)), "not its turn");
    granted(two.attempt(&first));
    assert!(matches!(one.withdraw(second.id), End::Freed));
    assert_eq!(
        server.command(&[
            "EXISTS",
            "redisson_lock_queue:{q}",
            "redisson_lock_timeout:{q}",
            "{q}:lockkeeper:lives"
        ]),
        ["0"]
    );
}

/// A Java client joins an RFairLock's line: five minutes behind whoever is last.
const JAVA_JOINS: &str = "local last = redis.call('lindex', KEYS[2], -1); \
                          local now = redis.call('time')[1] * 1000 + redis.call('pttl', KEYS[1]); \
                          redis.call('zadd', KEYS[3], (last and redis.call('zscore', KEYS[3], \
                          last) or now) + 300000, ARGV[1]); return redis.call('rpush', KEYS[2], \
                          ARGV[1]);";
/// The head of the line is Java's, and acquires.
const JAVA_ACQUIRES: &str = "redis.call('zrem', KEYS[3], redis.call('lindex', KEYS[2], 0)); \
                             for _, place in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do \
                             redis.call('zincrby', KEYS[3], -300000, place); end; \
                             redis.call('hset', KEYS[1], redis.call('lpop', KEYS[2]), 1); \
                             return redis.call('pexpire', KEYS[1], 30000);";
/// What Java does before anything else: it skips whoever's time is over. Says who comes next.
const JAVA_SKIPS: &str = "while true do local head = redis.call('lindex', KEYS[2], 0); \
                          if not head or tonumber(redis.call('zscore', KEYS[3], head)) > \
                          redis.call('time')[1] * 1000 then return head; end; \
                          redis.call('lpop', KEYS[2]); redis.call('zrem', KEYS[3], head); end";

#[test]
fn rfairlock_keeps_our_place_when_java_clients_before_it_acquire_and_theirs_when_we_do() {
    let server = RedisServer::start();
    let java = |script, who: &str| {
        server.command(&[
            "EVAL",
            script,
            "3",
            "q",
            "redisson_lock_queue:{q}",
            "redisson_lock_timeout:{q}",
            who,
        ])
    };
    let process = Process::with(redisson(&server, RedissonLock::Fair));
    let (held, _) = process.take("q", Mode::Exclusive);
    for who in ["java:1", "java:2"] {
        java(JAVA_JOINS, who);
    }
    let ours = process.queue("q", Mode::Exclusive);
    java(JAVA_JOINS, "java:3");
    process.release(held.id);
    for who in ["java:1", "java:2"] {
        assert_eq!(java(JAVA_SKIPS, ""), [who]);
        java(JAVA_ACQUIRES, "");
        assert!(matches!(process.attempt(&ours), Attempt::InLine(_)));
        assert_eq!(
            server.command(&["LRANGE", "redisson_lock_queue:{q}", "-2", "-1"])[1],
            "java:3",
            "nobody lost a place"
        );
        assert_ne!(java(JAVA_SKIPS, ""), ["java:3"], "Java sees that we live");
        // From here on our place may ask by itself, and get the lock.
        server.command(&["DEL", "q"]);
    }
    granted(process.attempt(&ours));
    assert_eq!(java(JAVA_SKIPS, ""), ["java:3"]);
    process.release(ours.id);
    java(JAVA_ACQUIRES, "");
    assert_eq!(
        server.command(&[
            "EXISTS",
            "redisson_lock_queue:{q}",
            "redisson_lock_timeout:{q}",
            "{q}:lockkeeper:lives"
        ]),
        ["0"]
    );
}

#[test]
fn a_release_by_a_user_that_may_not_publish_is_done_and_told_so() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "ann", "on", ">pw", "~*", "resetchannels", "+@all"]);
    for lock in [RedissonLock::Plain, RedissonLock::Fair] {
        let mut options = redisson(&server, lock);
        (options.user, options.password) = (
            Some("ann".into()),
            Some(crate::engine::password::Password::given(crate::open::url::Secret::new("pw"))),
        );
        let process = Process::with(options);
        let (held, _) = process.take("a", Mode::Exclusive);
        let end = process.release(held.id);
        assert!(matches!(end, End::Freed), "{lock:?}: {end:?}");
        assert_eq!(server.command(&["EXISTS", "a"]), ["0"]);
    }
}

#[test]
fn a_forced_release_of_an_rfairlock_wakes_the_head_of_its_line() {
    let server = RedisServer::start();
    let (one, two) = two_of(&server, RedissonLock::Fair);
    two.by_word_alone();
    one.take("q", Mode::Exclusive);
    let waiting = two.queue("q", Mode::Exclusive);
    assert!(one.change(&Change::Force(Kind::Lock, Name::new("q").unwrap(), Vec::new())));
    woken(&two, waiting.id);
    granted(two.attempt(&waiting));
}

#[test]
fn rreadwritelock_shares_and_excludes_and_leaves_an_rlock_alone() {
    let server = RedisServer::start();
    let (one, two) = two_of(&server, RedissonLock::ReadWrite);
    let (first, _) = one.take("c", Mode::Shared);
    let (second, _) = two.take("c", Mode::Shared);
    assert_eq!(server.command(&["HGET", "c", "mode"]), ["read"]);
    assert_eq!(server.command(&["KEYS", "{c}:*:rwlock_timeout:1"]).len(), 2);
    let writer = two.queue("c", Mode::Exclusive);
    assert!(matches!(one.renew(first.id), Renewal::Extended { .. }));
    one.release(first.id);
    assert!(matches!(two.attempt(&writer), Attempt::InLine(_)));
    two.release(second.id);
    woken(&two, writer.id);
    granted(two.attempt(&writer));
    assert_eq!(server.command(&["HGET", "c", "mode"]), ["write"]);
    assert!(matches!(two.renew(writer.id), Renewal::Extended { .. }));
    let reader = one.queue("c", Mode::Shared);
    two.release(writer.id);
    woken(&one, reader.id);
    granted(one.attempt(&reader));
    assert_eq!(one.look(Kind::Lock, "c").holders.len(), 1);
    one.release(reader.id);
    assert_eq!(server.command(&["KEYS", "*c*"]), Vec::<String>::new());
    server.command(&["EVAL", TRY_LOCK, "1", "c", "30000", "java:1"]);
    assert!(matches!(one.attempt_try(&one.claim("c", Mode::Shared)), Attempt::Busy(_)));
    assert!(matches!(one.attempt_try(&one.exclusive("c")), Attempt::Busy(_)));
}

#[test]
fn rpermitexpirablesemaphore_gives_and_takes_back() {
    let server = RedisServer::start();
    let (one, two) = two_of(&server, RedissonLock::Plain);
    let permits = |count| Mode::Permits { count, limit: 4 };
    let (three, _) = one.take("s", permits(3));
    assert_eq!(
        (server.command(&["GET", "s"]), server.command(&["ZCARD", "{s}:timeout"])),
        (vec!["1".to_owned()], vec!["3".to_owned()])
    );
    granted(one.attempt(&three));
    assert_eq!(server.command(&["GET", "s"]), ["1"], "sent twice it counts once");
    let waiting = two.queue("s", permits(2));
    assert!(matches!(one.renew(three.id), Renewal::Extended { .. }));
    let seen = two.look(Kind::Semaphore, "s");
    assert_eq!(
        (seen.limit, seen.holders.len(), seen.holders[0].mode),
        (Some(4), 1, Some(permits(3)))
    );
    let other = two.attempt(&two.claim("s", Mode::Permits { count: 1, limit: 5 }));
    assert!(
        matches!(
            &other,
            Attempt::Failed(e) if e.kind() == ErrorKind::LimitMismatch && e.message().contains('4')
        ),
        "{other:?}"
    );
    assert!(matches!(one.release(three.id), End::Freed));
    woken(&two, waiting.id);
    granted(two.attempt(&waiting));
    assert!(matches!(two.release(waiting.id), End::Freed));
    assert_eq!(server.command(&["GET", "s"]), ["4"]);
    let mut dying = one.claim("s", permits(4));
    dying.ttl = Duration::from_millis(1500);
    one.granted_at_last(&dying);
    one.die();
    two.granted_at_last(&two.claim("s", permits(4)));
}

#[test]
fn a_limit_is_what_is_free_and_what_is_out_and_java_sees_it_change() {
    let server = RedisServer::start();
    let process = Process::with(redisson(&server, RedissonLock::Plain));
    // Java: trySetPermits(3), and one of them acquired.
    server.command(&["SET", "s", "2"]);
    server.command(&["ZADD", "{s}:timeout", "922337203685477", "0123456789abcdef"]);
    assert_eq!(process.look(Kind::Semaphore, "s").limit, Some(3));
    let mut ear = server.client();
    ear.command(&["SUBSCRIBE", "redisson_sc:{s}"]);
    assert!(process.change(&Change::Resize(Name::new("s").unwrap(), 5)));
    assert_eq!(ear.read(), ["message", "redisson_sc:{s}", "4"]);
    assert!(process.change(&Change::Resize(Name::new("s").unwrap(), 0)));
    assert_eq!(server.command(&["GET", "s"]), ["-1"], "what is out stays out");
    server.command(&["DEL", "s"]);
    assert!(process.change(&Change::Resize(Name::new("s").unwrap(), 2)));
    assert_eq!(server.command(&["GET", "s"]), ["1"], "also when the counter is gone");
}

#[test]
fn rsemaphore_is_counted_with_java_and_our_permits_end_with_their_holder() {
    let server = RedisServer::start();
    let simple = || {
        let mut options = redisson(&server, RedissonLock::Plain);
        options.semaphore = super::super::options::RedissonSemaphore::Simple;
        Process::with(options)
    };
    let (one, two) = (simple(), simple());
    // Java: trySetPermits(5), acquire(1).
    server.command(&["SET", "s", "4"]);
    let permits = |count| Mode::Permits { count, limit: 5 };
    let (three, _) = one.take("s", permits(3));
    granted(one.attempt(&three));
    assert_eq!(server.command(&["GET", "s"]), ["1"], "sent twice it counts once");
    let waiting = two.queue("s", permits(2));
    // Java releases its own; one is free, and two are wanted: 2.
    server.command(&["INCRBY", "s", "1"]);
    server.command(&["PUBLISH", "redisson_sc:{s}", "2"]);
    woken(&two, waiting.id);
    granted(two.attempt(&waiting));
    assert!(matches!(one.renew(three.id), Renewal::Extended { .. }));
    assert!(matches!(one.release(three.id), End::Freed));
    assert!(matches!(one.release(three.id), End::NotOurs), "released twice it counts once");
    assert_eq!(server.command(&["GET", "s"]), ["3"]);
    let mut dying = one.claim("s", permits(3));
    dying.ttl = Duration::from_millis(1500);
    one.granted_at_last(&dying);
    one.die();
    two.granted_at_last(&two.claim("s", permits(3)));
    let refused = two.wait(two.engine.write(&Change::Resize(Name::new("s").unwrap(), 9)));
    assert_eq!(
        refused.unwrap_err().kind(),
        ErrorKind::Unsupported,
        "nobody knows how many there are"
    );
}

#[test]
fn r3_a_count_sent_twice_counts_once() {
    let server = RedisServer::start();
    let process = Process::with(redisson(&server, RedissonLock::Plain));
    let name = || Name::new("import").unwrap();
    assert!(process.change(&Change::LatchSet(name(), 2)));
    let (first, second) = (ClaimId::fresh(), ClaimId::fresh());
    for id in [first, first, first] {
        assert!(!process.change(&Change::LatchCountDown(name(), id)));
    }
    assert_eq!(server.command(&["GET", "import"]), ["1"]);
    assert!(process.change(&Change::LatchCountDown(name(), second)));
    assert_eq!(server.command(&["EXISTS", "import"]), ["0"]);
}

#[test]
fn rcountdownlatch_opens_for_both() {
    let server = RedisServer::start();
    let process = Process::with(redisson(&server, RedissonLock::Plain));
    let name = || Name::new("import").unwrap();
    assert!(process.change(&Change::LatchSet(name(), 2)));
    assert!(!process.change(&Change::LatchSet(name(), 2)));
    assert_eq!(process.look(Kind::Latch, "import").count, Some(2));
    process.wait(process.engine.watch(WatchId(7), &Query::One(Kind::Latch, name()))).unwrap();
    assert!(!process.change(&Change::LatchCountDown(name(), ClaimId::fresh())));
    // Java counts down the last one.
    server.command(&["DEL", "import"]);
    server.command(&["PUBLISH", "redisson_countdownlatch__channel__{import}", "0"]);
    process
        .event("the change", |e| matches!(e, Event::Changed { watch: WatchId(7) }).then_some(()));
    assert_eq!(process.look(Kind::Latch, "import").count, None);
}

#[test]
fn a_broken_connection_listens_again() {
    let server = RedisServer::start();
    let process = Process::with(redisson(&server, RedissonLock::Plain));
    server.command(&["EVAL", TRY_LOCK, "1", "a", "30000", "java:1"]);
    let waiting = process.queue("a", Mode::Exclusive);
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    process.link(false);
    process.link(true);
    let answers = process.wait(process.engine.recheck(&[waiting.id]));
    assert!(matches!(answers[..], [Standing::InLine(_)]), "{answers:?}");
    server.command(&["DEL", "a"]);
    server.command(&["PUBLISH", "redisson_lock__channel:{a}", "0"]);
    woken(&process, waiting.id);
    granted(process.attempt(&waiting));
}

#[test]
fn r7_tokens_of_rfencedlock_are_exact_also_where_numbers_would_be_rounded() {
    let server = RedisServer::start();
    let process = Process::with(redisson(&server, RedissonLock::Fenced));
    let most = (1_u64 << 53) - 2;
    server.command(&["SET", "redisson_lock_token:{a}", &most.to_string()]);
    for n in 1..=5 {
        let (held, grant) = process.take("a", Mode::Exclusive);
        assert_eq!(grant.number, Number::Raw(most + n));
        assert!(matches!(process.release(held.id), End::Freed));
    }
    server.command(&["SET", "redisson_lock_token:{a}", &i64::MAX.to_string()]);
    let asked = process.exclusive("a");
    assert!(matches!(process.attempt(&asked), Attempt::Failed(_)), "they are used up");
    assert_eq!(server.command(&["EXISTS", "a"]), ["0"]);
}

#[test]
fn b8_a_user_who_may_not_hear_what_waiters_of_a_layout_listen_to_is_told_so() {
    let server = RedisServer::start();
    let rule = ["ACL", "SETUSER", "ann", "on", ">pw", "~*", "+@all", "resetchannels"];
    server.command(&[&rule[..], &["&redisson_lock__channel:{*}"]].concat());
    let warned = |lock: &str| {
        let at = format!("redis://ann:pw@127.0.0.1:{}?layout=redisson{lock}", server.port());
        let engine = engine_of(&at, Duration::from_secs(30)).unwrap();
        let process = Process::around(engine.into()).unwrap();
        let name = Name::new("probe").unwrap();
        let told = process.wait(process.engine.clear_probe(&name)).unwrap();
        told.into_iter().map(|warning| warning.id).collect::<Vec<_>>()
    };
    assert_eq!(warned(""), Vec::<&str>::new());
    // There each waits for a word of its own.
    assert_eq!(warned("&lock=fair"), ["subscribe-refused"]);
    server.command(&["ACL", "SETUSER", "ann", "&redisson_lock__channel:{*}:*"]);
    assert_eq!(warned("&lock=fair"), Vec::<&str>::new());
}
