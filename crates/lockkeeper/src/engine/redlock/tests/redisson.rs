//! The layout of RedissonRedLock and RedissonMultiLock, against the very scripts of an RLock.

use lockkeeper_testkit::proxy::{Fault, Proxy, Way};

use super::faults::ran;
use super::plain::refused;
use super::support::{Proxied, Quorum, SOME_AWAY, TTL, claim, open};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, Change, End, Event, Line, Number, Renewal};
use crate::words::claim::{Claim, Mode};
use crate::words::error::ErrorKind;
use crate::words::guarantee::Ability;
use crate::words::id::ClaimId;
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

/// RedissonLock.tryLockInnerAsync.
const LOCK: &str = "if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], \
                    ARGV[2]) == 1)) then redis.call('hincrby', KEYS[1], ARGV[2], 1); \
                    redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; return \
                    redis.call('pttl', KEYS[1]);";
/// RedissonLock.unlockInnerAsync.
const UNLOCK: &str = "if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; \
                      local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); if (counter \
                      > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); return 0; else \
                      redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); \
                      return 1; end; return nil;";
const JAVA: &str = "9c2f4a1e-6f0b-4a55-8a3c-1f2e3d4c5b6a:42";

impl Quorum {
    /// The owners of each member's hash.
    pub(super) fn owners(&self, name: &str) -> Vec<Vec<String>> {
        self.0.iter().map(|server| server.command(&["HGETALL", name])).collect()
    }

    /// How many members Java gets.
    fn java_locks(&self, members: &[usize], name: &str) -> usize {
        let lock = |member: &&usize| {
            let server = &self.0[**member];
            server.command(&["EVAL", LOCK, "1", name, "30000", JAVA]) == ["(nil)"]
        };
        members.iter().filter(lock).count()
    }

    fn java_unlocks(&self, members: &[usize], name: &str) {
        let channel = format!("redisson_lock__channel:{{{name}}}");
        for member in members {
            let unlock = ["EVAL", UNLOCK, "2", name, &channel, "0", "30000", JAVA];
            assert_eq!(self.0[*member].command(&unlock), ["1"]);
        }
    }

    fn until_no_owner(&self, name: &str) {
        until("nothing is left", || {
            self.0.iter().all(|server| server.command(&["EXISTS", name]) == ["0"])
        });
    }
}

fn redisson(quorum: &Quorum) -> Process {
    open(&format!("{}&layout=redisson", quorum.url())).expect("the members can be used")
}

/// Waits until a waiter is woken: the words of an RLock do that, and its own look does not.
fn woken(process: &Process, id: ClaimId) {
    process.event("a wake-up", |event| {
        matches!(event, Event::Wake { claim } if *claim == id).then_some(())
    });
}

#[test]
fn redisson_writes_an_rlock_on_each_member() {
    let quorum = Quorum::grown(3);
    let (one, two) = (redisson(&quorum), redisson(&quorum));
    let about = one.engine.describe();
    assert_eq!((about.layout, about.fenced), ("redisson", false));
    assert!(about.can.has(Ability::Force) && !about.can.has(Ability::List));
    // No machine is so slow that it ends before Java has asked.
    let held = Claim { ttl: TTL * 10, ..claim(&one, "any Lock") };
    assert_eq!(granted(one.attempt(&held)).number, Number::None);
    until("all have it", || quorum.owners("any Lock").iter().all(|owner| owner.len() == 2));
    let owners = quorum.owners("any Lock");
    assert_eq!(owners, vec![owners[0].clone(); 3]);
    let (owner, count) = (&owners[0][0], &owners[0][1]);
    let (uuid, thread) = owner.split_once(':').expect("UUID:number");
    assert!(uuid.len() == 36 && thread.parse::<i64>().is_ok() && count == "1", "{owner}");
    for server in &quorum.0 {
        let ttl: u64 = server.command(&["PTTL", "any Lock"])[0].parse().expect("it has one");
        assert!((2_001..=600_000).contains(&ttl), "{ttl}");
        assert_eq!(server.command(&["DBSIZE"]), ["1"], "nothing else stands there");
    }
    assert_eq!(quorum.java_locks(&[0, 1, 2], "any Lock"), 0, "Java waits for us");
    let [holder] = &two.look(Kind::Lock, "any Lock").holders[..] else { panic!("it is held") };
    assert_eq!((holder.label.as_ref(), holder.token), (Some(owner), None));
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));

    let waiting = claim(&two, "any Lock");
    two.queue_claim(&waiting);
    assert!(matches!(one.release(held.id), End::Freed));
    woken(&two, waiting.id);
    granted(two.attempt_until(&waiting));
    assert!(matches!(one.release(held.id), End::NotOurs));
    assert!(matches!(two.release(waiting.id), End::Freed));
    quorum.until_no_owner("any Lock");
    let refused = one.attempt(&Claim { ttl: TTL, ..one.claim("a", Mode::Shared) });
    let Attempt::Failed(error) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("layout=redisson"), "{error}");
}

#[test]
fn redisson_waits_for_a_majority_of_java_and_is_woken_by_its_unlock() {
    let quorum = Quorum::grown(3);
    let process = redisson(&quorum);
    // What a RedissonRedLock could not take it gives back; a minority keeps nobody out.
    assert_eq!(quorum.java_locks(&[2], "a"), 1);
    let alone = claim(&process, "a");
    granted(process.attempt(&alone));
    assert_eq!(quorum.java_locks(&[0, 1], "a"), 0, "a RedissonMultiLock needs all, a RedLock two");
    assert!(matches!(process.release(alone.id), End::Freed));
    until("it is free", || quorum.owners("a")[..2].iter().all(|owner| owner.len() < 2));
    assert_eq!(quorum.java_locks(&[0, 1], "a"), 2);
    let Attempt::Busy(Some(holder)) = process.attempt_try(&claim(&process, "a")) else {
        panic!("Java has a majority")
    };
    assert_eq!(holder.label.as_deref(), Some(JAVA));
    let waiting = claim(&process, "a");
    // By itself it would look after five seconds.
    process.by_word_alone();
    process.queue_claim(&waiting);
    quorum.java_unlocks(&[0, 1, 2], "a");
    woken(&process, waiting.id);
    granted(process.attempt_until(&waiting));
    assert!(matches!(process.release(waiting.id), End::Freed));
    quorum.until_no_owner("a");
}

#[test]
fn redisson_errors_name_what_helps_in_this_layout() {
    let quorum = Quorum::grown(3);
    for server in &quorum.0 {
        server.command(&["SET", "a", "0123456789abcdef0123456789abcdef", "PX", "60000"]);
        server.command(&["ACL", "SETUSER", "shop", "on", ">pw", "~other:*", "&*", "+@all"]);
    }
    let url = quorum.url().replace("://", "://shop:pw@");
    for lock in ["plain", "fair"] {
        let layout = format!("&layout=redisson&lock={lock}");
        let process = open(&(quorum.url() + &layout)).expect("the members can be used");
        let error = refused(process.attempt(&claim(&process, "a")));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        for says in ["of another type", "in layout=redisson", "layout=plain"] {
            assert!(error.message().contains(says), "{says}: {error}");
        }
        let narrow = open(&format!("{url}{layout}")).expect("the members can be used");
        let error = refused(narrow.attempt(&claim(&narrow, "b")));
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        for says in ["the names' keys and channels", "ACL SETUSER shop", "the keys are b"] {
            assert!(error.message().contains(says), "{says}: {error}");
        }
        assert!(!error.message().contains("namespace"), "{error}");
    }
}

#[test]
fn r10_a_waiter_of_redisson_is_woken_by_what_a_claim_gives_back_that_is_refused() {
    let proxied = Proxied::of(3);
    let quorum = &proxied.quorum;
    let two = redisson(quorum);
    quorum.warm(&two);
    // For this one no member has been up for long enough; what it wrote stands until it hears that.
    let url = proxied.url("server_timeout=10s&request_timeout=10s&layout=redisson");
    let one = open(&url.replace("-lab", "")).expect("the members can be used");
    proxied.all(Way::Down, &Fault { hold: true, ..Fault::default() });
    let refused = claim(&one, "a");
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| one.attempt(&refused));
        until("all have it", || quorum.owners("a").iter().all(|owner| owner.len() == 2));
        let waiting = claim(&two, "a");
        two.queue_claim(&waiting);
        proxied.proxies.iter().for_each(Proxy::heal);
        // By itself it looks after five seconds, which is no wake-up.
        woken(&two, waiting.id);
        let asked = asked.join().expect("no panic");
        assert!(matches!(asked, Attempt::Unknown(_)), "too few count: {asked:?}");
        granted(two.attempt_until(&waiting));
        assert!(matches!(two.release(waiting.id), End::Freed));
    });
    one.withdraw(refused.id);
    quorum.until_no_owner("a");
}

#[test]
fn r5_a_withdrawal_of_redisson_leaves_nothing_granted_or_not() {
    let quorum = Quorum::grown(3);
    let (one, two) = (redisson(&quorum), redisson(&quorum));
    let held = claim(&one, "a");
    let asked = one.engine.attempt(&held, Line::Join);
    one.withdraw(held.id);
    drop(asked);
    quorum.until_no_owner("a");
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let waiting = claim(&two, "a");
    two.queue_claim(&waiting);
    assert!(matches!(two.withdraw(waiting.id), End::NotOurs | End::Freed));
    one.withdraw(held.id);
    quorum.until_no_owner("a");
    for server in &quorum.0 {
        until("nobody listens", || {
            server.command(&["PUBSUB", "CHANNELS"]).iter().all(|channel| channel.is_empty())
        });
    }
}

#[test]
fn l3_an_rlock_is_restored_on_a_member_that_comes_back_empty_and_taken_away_by_its_owner() {
    let mut quorum = Quorum::grown(3);
    let (one, two) = (redisson(&quorum), redisson(&quorum));
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    until("all have it", || quorum.owners("a").iter().all(|owner| owner.len() == 2));
    quorum.0[0].restart();
    until("it is restored", || {
        assert!(
            !matches!(two.attempt_try(&claim(&two, "a")), Attempt::Granted(_)),
            "BROKEN LOCK: two holders"
        );
        assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
        quorum.owners("a").iter().all(|owner| owner.len() == 2)
    });
    let name = Name::new("a").expect("a good name");
    let mut another = two.look(Kind::Lock, "a").holders;
    let shown = another.clone();
    another.iter_mut().for_each(|holder| holder.label = Some(JAVA.into()));
    assert!(!two.change(&Change::Force(Kind::Lock, name.clone(), another)));
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
    assert!(two.change(&Change::Force(Kind::Lock, name, shown)));
    assert!(matches!(one.renew(held.id), Renewal::Gone(Lost::TakenAway)));
    quorum.until_no_owner("a");
}

#[test]
fn r4_a_release_of_redisson_whose_replies_were_lost_frees_only_its_own_grant() {
    let proxied = Proxied::before(Quorum::long_up(3));
    let quorum = &proxied.quorum;
    // Its release waits for so long for answers that are lost.
    let one = proxied.process(&format!("{SOME_AWAY}&layout=redisson&connect_timeout=1s"));
    let two = redisson(quorum);
    // Nothing but a release ends them while this runs.
    let long = |process| Claim { ttl: TTL * 60, ..claim(process, "a") };
    let (held, next) = (long(&one), long(&two));
    one.granted_at_last(&held);
    until("all have it", || quorum.owners("a").iter().all(|owner| owner.len() == 2));
    proxied.proxies.iter().for_each(|proxy| proxy.blackhole(Way::Down));
    assert!(matches!(one.release(held.id), End::Unknown(_)));
    quorum.until_no_owner("a");
    granted(two.attempt(&next));
    until("all have it", || quorum.owners("a").iter().all(|owner| owner.len() == 2));
    let (owners, before) = (quorum.owners("a"), ran(quorum, "evalsha"));
    proxied.proxies.iter().for_each(Proxy::heal);
    until("the release is repeated", || {
        ran(quorum, "evalsha").iter().zip(&before).all(|(now, then)| now > then)
    });
    assert_eq!(quorum.owners("a"), owners);
    assert!(matches!(two.renew(next.id), Renewal::Extended { .. }));
}

#[test]
fn contenders_of_redisson_that_each_have_a_minority_come_to_an_end() {
    let quorum = Quorum::grown(5);
    let processes: Vec<Process> = (0..3).map(|_| redisson(&quorum)).collect();
    std::thread::scope(|scope| {
        for process in &processes {
            let quorum = &quorum;
            scope.spawn(move || {
                for _ in 0..4 {
                    let turn = claim(process, "hot");
                    granted(process.attempt_until(&turn));
                    let owners = quorum.owners("hot");
                    let most = owners.iter().filter(|one| one.len() == 2).map(|one| {
                        owners.iter().filter(|other| other.first() == one.first()).count()
                    });
                    assert!(most.max().is_some_and(|most| most >= 3), "{owners:?}");
                    assert!(matches!(process.release(turn.id), End::Freed));
                }
            });
        }
    });
    quorum.until_no_owner("hot");
}
