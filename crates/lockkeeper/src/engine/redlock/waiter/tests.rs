//! When a waiter asks, one rule a test. Its questions are kept as the keeper keeps them.

use super::*;
use crate::protocol::line::AskAt;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const ME: ClaimId = ClaimId(50);
const TTL: Duration = Duration::from_secs(30);

fn at(ms: u64) -> Ticks {
    Ticks(ms * 1_000_000)
}

/// One that waits, and when its keeper asks.
struct Waits {
    waiter: Waiter,
    ask_at: AskAt,
    now: Ticks,
    asked: Vec<Ticks>,
    /// How many the members say are before it.
    ahead: Option<u64>,
    others: u128,
}

impl Waits {
    fn with(ttl: Duration, ahead: Option<u64>) -> Self {
        let (majority, lines_up, foreign, once) = (2, true, false, false);
        let waiter = Waiter::new(Rules { id: ME, ttl, majority, lines_up, foreign, once });
        let (now, ask_at, asked) = (at(1_000_000), AskAt::default(), Vec::new());
        Self { waiter, ask_at, now, asked, ahead, others: 1000 }
    }

    /// Refused by a holder whose lease lasts for long.
    fn refused(ttl: Duration, ahead: u64) -> Self {
        let mut waits = Self::with(ttl, Some(ahead));
        waits.asks();
        waits
    }

    fn asks(&mut self) {
        let now = self.now;
        self.ask_at.asked(now);
        self.waiter.asks(now);
        self.waiter.begins_round();
        self.waiter.is_behind(self.ahead, false);
        let (by, rest, kept) = (Some(ClaimId(7)), Some(TTL), Members::default());
        let how = Refusal { by, keeps: false, kept, rest, jitter: 0.5 };
        let at = self.waiter.refused(now, how);
        self.ask_at.answered(now, Some(at));
        self.asked.push(now);
    }

    /// The keeper asks about it now.
    fn rechecked(&mut self) {
        self.ask_at.asked(self.now);
        match self.waiter.needs_not_ask(self.now) {
            Some(at) => self.ask_at.answered(self.now, Some(at)),
            None => self.asks(),
        }
    }

    fn hears(&mut self, word: Word) -> Option<Ask> {
        let ask = self.waiter.hears(self.now, word);
        if let Some(Ask::At(at)) = ask {
            self.ask_at.told(at);
        }
        ask
    }

    /// Others hand on to others, as all members tell.
    fn is_passed(&mut self) {
        self.others += 2;
        let (giver, only) = (Some(ClaimId(self.others)), Some(ClaimId(self.others + 1)));
        for member in 0..3 {
            self.hears(Word { member, giver, ceded: false, only });
        }
    }

    /// Time passes; it asks when it is to.
    fn pass(&mut self, time: Duration) {
        let end = self.now.plus(time);
        while self.now < end {
            self.now = self.now.plus(MS).min(end);
            if self.ask_at.is_due(self.now) {
                self.rechecked();
            }
        }
    }

    fn next(&self) -> Duration {
        self.ask_at.next().expect("it asks").since(self.now)
    }
}

#[test]
fn r10_a_waiter_asks_within_five_seconds_whatever_others_hand_on() {
    // It stands in no line, or behind so many that others always come first.
    for ahead in [None, Some(0), Some(500)] {
        let mut waits = Waits::refused(TTL, 0);
        waits.ahead = ahead;
        waits.asked.clear();
        let mut last = waits.now;
        for _ in 0..600 {
            waits.is_passed();
            waits.pass(50 * MS);
            last = waits.asked.last().copied().unwrap_or(last);
            assert!(waits.now.since(last) <= 5 * SECOND, "{ahead:?}: not since {last:?}");
        }
        // The first one asks once for each turn that is over.
        let most = if ahead == Some(0) { 30 * 4 } else { 7 };
        assert!(waits.asked.len() <= most, "{ahead:?}: nor much more often: {:?}", waits.asked);
    }
}

#[test]
fn r10_a_claim_that_has_not_asked_yet_is_put_off_by_nobodys_turn() {
    let mut waits = Waits::with(TTL, None);
    let asks_at = waits.waiter.stands_back(waits.now, ClaimId(8));
    waits.ask_at.answered(waits.now, Some(asks_at));
    for _ in 0..8 {
        waits.is_passed();
        waits.pass(50 * MS);
    }
    assert_eq!(waits.asked, [asks_at]);
}

#[test]
fn r11_a_claim_that_keeps_what_it_got_is_put_off_by_nobodys_turn() {
    let mut waits = Waits::refused(TTL, 3);
    let mut kept = Members::default();
    kept.insert(0);
    let how = Refusal { by: None, keeps: true, kept, rest: None, jitter: 0.5 };
    waits.waiter.asks(waits.now);
    let at = waits.waiter.refused(waits.now, how);
    waits.ask_at.answered(waits.now, Some(at));
    waits.is_passed();
    assert!(waits.next() <= TOLD_BY_FEW, "after {:?}", waits.next());
}

#[test]
fn r11_whoever_is_to_give_a_sign_of_life_is_put_off_by_nobodys_turn() {
    let mut waits = Waits::refused(TTL, 9);
    for member in 0..2 {
        waits.hears(Word { member, giver: Some(ClaimId(7)), ceded: false, only: None });
    }
    let asks = waits.next();
    assert!(asks <= TURN, "all are told: after {asks:?}");
    waits.is_passed();
    assert_eq!(waits.next(), asks, "though somebody else was faster");
    waits.pass(asks);
    assert_eq!(waits.asked.len(), 2);
    waits.is_passed();
    assert!(waits.next() > 2 * SECOND, "it has given one");
}

#[test]
fn r10_no_question_is_left_out_but_one_that_was_put_off_or_just_answered() {
    let mut waits = Waits::refused(TTL, 3);
    // What rings was said before others handed on once more.
    waits.is_passed();
    let first = waits.next();
    waits.pass(first - 10 * MS);
    waits.is_passed();
    waits.pass(20 * MS);
    assert_eq!(waits.asked.len(), 1, "the next turn has only just begun");
    // The keeper asks about all that wait: it asks by itself, and has asked.
    waits.rechecked();
    assert_eq!(waits.asked.len(), 1);
    // The link was lost and found: what was told meanwhile it has not heard.
    waits.waiter.was_deaf();
    waits.rechecked();
    assert_eq!(waits.asked.len(), 2);
    waits.rechecked();
    assert_eq!(waits.asked.len(), 2, "it has just asked");
    waits.pass(30 * MS);
    waits.rechecked();
    assert_eq!(waits.asked.len(), 2, "nor does it need to a while later");
    waits.pass(5 * SECOND);
    assert_eq!(waits.asked.len(), 3, "it asks by itself");
}

#[test]
fn r10_one_member_that_says_whose_turn_it_is_does_not_hurry_who_waits_for_a_holder() {
    let mut waits = Waits::with(TTL, Some(0));
    waits.waiter.asks(waits.now);
    waits.waiter.begins_round();
    waits.waiter.is_behind(Some(0), true);
    let refused = |rest| Refusal {
        by: Some(ClaimId(7)),
        keeps: false,
        kept: Members::default(),
        rest: Some(rest),
        jitter: 0.5,
    };
    let at = waits.waiter.refused(waits.now, refused(TTL));
    assert_eq!(at.since(waits.now), 5 * SECOND);
    // Where a majority says so it is somebody's turn.
    waits.waiter.is_behind(Some(0), true);
    let at = waits.waiter.refused(waits.now, refused(TURN));
    assert_eq!(at.since(waits.now), TURN + TOLD_BY_FEW);
}

#[test]
fn r11_whoever_heard_no_word_asks_a_last_time_before_its_caller_leaves() {
    for left in [600, 1_000, 3_000, 8_000] {
        let mut waits = Waits::with(TTL, Some(0));
        let end = waits.now.plus(left * MS);
        waits.waiter.give_up = Some(end);
        waits.asks();
        waits.pass(left * MS - MS);
        let asked = end.since(*waits.asked.last().expect("it asks"));
        assert!(asked >= TURN && asked <= 2 * TURN, "{left} ms: {asked:?} before its end");
        assert!(waits.asked.len() <= 3, "{left} ms: {:?}", waits.asked);
    }
}

#[test]
fn r11_dead_waiters_cost_one_claim_lease_and_a_second_together_however_many_they_are() {
    for ttl in [SECOND / 5, 2 * SECOND, 30 * SECOND, 3600 * SECOND] {
        let lease = (ttl / 3).min(2 * SECOND);
        let mut before = Duration::ZERO;
        for dead in [0, 1, 2, 8, 30, 16_000] {
            let mut waits = Waits::refused(ttl, dead + 1);
            waits.is_passed();
            let asks = waits.next();
            assert!(asks <= lease + SECOND, "{dead} dead, a lease of {ttl:?}: after {asks:?}");
            assert!(asks >= before && asks > TURN, "who is first asks first: {asks:?}");
            before = asks;
        }
    }
}

#[test]
fn r10_of_those_that_wait_few_ask_while_a_hold_of_a_second_lasts() {
    let mut asked = 0;
    for ahead in 1..40 {
        let mut waits = Waits::refused(TTL, ahead);
        waits.asked.clear();
        waits.is_passed();
        waits.pass(SECOND);
        asked += waits.asked.len();
    }
    assert!(asked <= 3, "{asked} of 39 asked in vain");
}

#[test]
fn r11_whoever_has_little_time_asks_before_half_of_it_is_over() {
    for left in [100, 400, 1_000, 8_000] {
        let mut waits = Waits::with(TTL, Some(9));
        let end = waits.now.plus(left * MS);
        waits.waiter.give_up = Some(end);
        waits.asks();
        waits.pass(10 * MS);
        waits.is_passed();
        let half = (left * MS / 2).min(5 * SECOND);
        assert!(waits.next() <= half, "{left} ms: after {:?}", waits.next());
        // While others hold it asks once more because of that.
        let asked = waits.asked.len();
        waits.pass(end.since(waits.now));
        assert!(waits.asked.len() <= asked + 3, "{left} ms: {:?}", waits.asked);
    }
}

#[test]
fn r11_where_all_are_told_the_first_in_line_asks_first() {
    let (giver, only, ceded) = (Some(ClaimId(7)), None, false);
    let mut asks = [0, 1, 9].map(|ahead| {
        let mut waits = Waits::refused(TTL, ahead);
        waits.pass(SECOND);
        let few = waits.hears(Word { member: 0, giver, ceded, only });
        assert_ne!(few, Some(Ask::AtOnce), "one member alone tells");
        match waits.hears(Word { member: 1, giver, ceded, only }) {
            Some(Ask::AtOnce) => Duration::ZERO,
            Some(Ask::At(at)) => at.since(waits.now),
            None => panic!("a majority told"),
        }
    });
    assert_eq!(asks[0], Duration::ZERO);
    let told = asks;
    asks.sort_unstable();
    assert!(asks == told && asks[1] > asks[0] && asks[2] > asks[1], "{told:?}");
}

#[test]
fn r11_whose_turn_it_is_asks_at_once_when_a_majority_told() {
    let mut waits = Waits::refused(TTL, 4);
    let word = |member| Word { member, giver: Some(ClaimId(7)), ceded: false, only: Some(ME) };
    assert_eq!(waits.hears(word(0)), Some(Ask::At(waits.now.plus(TOLD_BY_FEW))));
    assert_eq!(waits.hears(word(2)), Some(Ask::AtOnce));
    assert_eq!(waits.hears(word(1)), None, "it asks already");
    // It stands in no line yet where all are told of the same release.
    let mut waits = Waits::refused(TTL, 4);
    let all = |member| Word { only: None, ..word(member) };
    assert_ne!(waits.hears(all(1)), Some(Ask::AtOnce));
    assert_eq!(waits.hears(word(0)), Some(Ask::AtOnce));
}
