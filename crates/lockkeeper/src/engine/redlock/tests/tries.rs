//! Tries that meet while a member is away.

use lockkeeper_testkit::proxy::{Fault, Proxy, Way};

use super::support::{Quorum, TTL, claim, open};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, End};
use crate::words::claim::Claim;

/// A process that tries, and what lies between it and the members.
struct Tries {
    process: Process,
    proxies: Vec<Proxy>,
    claim: Claim,
}

impl Tries {
    fn before(quorum: &Quorum) -> Self {
        let proxies: Vec<Proxy> = quorum.0.iter().map(|one| Proxy::to(one.port())).collect();
        proxies[2].refuse(true);
        let at: Vec<String> =
            proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
        let options = "max_ttl=24h&server_timeout=1m&request_timeout=1m";
        let process = open(&format!("redlock-lab://{}?{options}", at.join(",")));
        let process = process.expect("two are a majority");
        let claim = Claim { ttl: TTL * 60, ..claim(&process, "a") };
        Self { process, proxies, claim }
    }

    fn tries(&self) -> Attempt {
        self.process.attempt_try(&self.claim)
    }

    /// When it was first asked for, as a member has it.
    fn first(&self, quorum: &Quorum, member: usize) -> Option<u64> {
        let text = quorum.records("a").swap_remove(member);
        let mut words = text.split(' ').skip(1);
        (words.next() == Some(&self.claim.id.to_string())).then(|| words.next()?.parse().ok())?
    }

    fn lift(&self, member: usize, way: Way) {
        self.proxies[member].set(way, Fault::default());
    }
}

#[test]
fn l4_of_two_tries_that_each_have_one_of_two_members_the_first_has_the_lock() {
    let quorum = Quorum::of(3);
    quorum.warm(&quorum.process());
    quorum.until_clean("warm");
    // What each asks of the other one's member comes there later.
    let both = [Tries::before(&quorum), Tries::before(&quorum)];
    both[0].proxies[1].hold(Way::Up);
    both[1].proxies[0].hold(Way::Up);
    std::thread::scope(|scope| {
        let told = both.each_ref().map(|one| scope.spawn(|| one.tries()));
        let mut firsts = [None, None];
        until("each has one member", || {
            firsts = [0, 1].map(|one| both[one].first(&quorum, one));
            firsts.iter().all(Option::is_some)
        });
        let ranks = [0, 1].map(|one| (firsts[one], both[one].claim.id));
        let (first, later) = if ranks[0] < ranks[1] { (0, 1) } else { (1, 0) };
        // The first has met the other before that one gives way, and hears of it after that.
        let behind = &both[first].proxies[later];
        behind.hold(Way::Down);
        both[first].lift(later, Way::Up);
        until("it was refused", || behind.held(Way::Down) > 0);
        both[later].lift(first, Way::Up);
        let mut told = told.map(Some);
        let mut end = |one: usize| told[one].take().expect("once").join().expect("no panic");
        let refused = end(later);
        assert!(matches!(refused, Attempt::Busy(_)), "{refused:?}");
        until("it has given way", || both[later].first(&quorum, later).is_none());
        both[first].lift(later, Way::Down);
        granted(end(first));
    });
    let holder = both.iter().find(|one| quorum.with_record(&one.claim) > 0).expect("one has it");
    assert!(matches!(holder.process.release(holder.claim.id), End::Freed));
    quorum.until_clean("a");
}

#[test]
fn l4_a_try_that_meets_one_that_waits_is_refused_and_that_one_has_the_lock() {
    let quorum = Quorum::of(3);
    quorum.warm(&quorum.process());
    quorum.until_clean("warm");
    // What each asks of the other one's member comes there later.
    let [tries, waits] = [Tries::before(&quorum), Tries::before(&quorum)];
    tries.proxies[1].hold(Way::Up);
    waits.proxies[0].hold(Way::Up);
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| tries.tries());
        until("one has a member", || tries.first(&quorum, 0).is_some());
        let waited = scope.spawn(|| waits.process.attempt_until(&waits.claim));
        until("the other has one", || waits.first(&quorum, 1).is_some());
        let ranks =
            [(&tries, 0), (&waits, 1)].map(|(one, at)| (one.first(&quorum, at), one.claim.id));
        // The one that tries has met the other before that one gives way, and hears of it after.
        tries.proxies[1].hold(Way::Down);
        tries.lift(1, Way::Up);
        until("it was refused", || tries.proxies[1].held(Way::Down) > 0);
        waits.lift(0, Way::Up);
        if ranks.is_sorted() {
            until("the other has given way", || waits.first(&quorum, 1).is_none());
        }
        tries.lift(1, Way::Down);
        let refused = tried.join().expect("no panic");
        assert!(matches!(refused, Attempt::Busy(_)), "{refused:?}");
        granted(waited.join().expect("no panic"));
    });
    assert!(matches!(waits.process.release(waits.claim.id), End::Freed));
    quorum.until_clean("a");
}
