//! What follows from what the members say, one rule a test.

use std::time::Duration;

use super::*;
use crate::protocol::lease::Drift;

mod holds;
mod numbers;
mod tries;

const SECOND: Duration = Duration::from_secs(1);
const ME: u128 = 50;

fn at(ms: u64) -> Ticks {
    Ticks(ms * 1_000_000)
}

/// The number that is proposed.
const PROPOSED: u64 = 100;

fn yes() -> Said {
    has(PROPOSED)
}

/// Our record is there under another number.
fn has(number: u64) -> Said {
    Said::Yes { counts: true, number }
}

/// Somebody else's record, written a moment ago.
fn other(claim: u128) -> Said {
    aged(claim, Duration::ZERO)
}

fn aged(claim: u128, age: Duration) -> Said {
    ranked(PROPOSED, claim, age)
}

/// Somebody else's record, whose claim proposed this number first.
fn ranked(first: u64, claim: u128, age: Duration) -> Said {
    let rank = Rank { first, claim: ClaimId(claim) };
    Said::Other(Other { rank, granted: false, age, rest: 10 * SECOND - age, ttl: 10 * SECOND })
}

/// What is given up for another claim.
fn cede(claim: u128) -> Verb {
    Verb::Cede { to: Rank { first: PROPOSED, claim: ClaimId(claim) } }
}

/// One claim, and what it does.
struct Claim {
    machine: Recipe,
    round: u64,
}

impl Claim {
    fn new(members: usize, tries: bool) -> Self {
        let rules = Rules {
            members,
            ttl: 10 * SECOND,
            drift: Drift::default(),
            patience: SECOND / 10,
            long_patience: SECOND,
            names_giver: true,
            stands: false,
        };
        Self { machine: Recipe::new(ClaimId(ME), rules, tries), round: 0 }
    }

    /// Of members that have queues.
    fn queueing() -> Self {
        let mut claim = Self::new(3, false);
        (claim.machine.rules.names_giver, claim.machine.rules.stands) = (false, true);
        claim
    }

    /// Of members that tell whose turn it is, where it waits in line.
    fn lining_up(members: usize) -> Self {
        let mut claim = Self::new(members, false);
        claim.machine.rules.stands = true;
        claim
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.machine.step(event, &mut out);
        if matches!(event, Event::Ask { .. } | Event::Renew { .. } | Event::Leave { .. }) {
            self.round += 1;
        }
        out
    }

    fn ask(&mut self, now: Ticks) -> Vec<Action> {
        let silent = Silent::default();
        self.step(Event::Ask { now, silent, number: PROPOSED, clock: PROPOSED })
    }

    fn says(&mut self, now: Ticks, member: usize, verb: Verb, said: Said) -> Vec<Action> {
        let round = self.round;
        self.step(Event::Said { now, member, verb, round, said })
    }

    /// Asked at 0, and what each member says right after.
    fn asked(&mut self, said: &[Said]) -> Vec<Action> {
        self.ask(at(0));
        self.all(Verb::Take, said)
    }

    fn all(&mut self, verb: Verb, said: &[Said]) -> Vec<Action> {
        let each = said.iter().enumerate();
        each.flat_map(|(member, said)| self.says(at(1), member, verb, *said)).collect()
    }

    fn due(&mut self, now: Ticks) -> Vec<Action> {
        let round = self.round;
        self.step(Event::Due { now, round })
    }
}

fn outcome(actions: &[Action]) -> Option<Outcome> {
    actions.iter().find_map(|action| match action {
        Action::Done(outcome) => Some(*outcome),
        _ => None,
    })
}

fn sent(actions: &[Action], verb: Verb) -> Vec<usize> {
    let of = |action: &Action| match action {
        Action::Send { member, verb: v, .. } if *v == verb => Some(*member),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

const GRANTED: Option<Outcome> = Some(Outcome::Granted { since: Ticks(0), number: PROPOSED });

#[test]
fn all_are_asked_at_once_and_a_majority_is_enough() {
    for members in [3, 5, 7, 9] {
        let mut claim = Claim::new(members, false);
        let asked = claim.ask(at(0));
        assert_eq!(sent(&asked, Verb::Take), (0..members).collect::<Vec<_>>());
        assert_eq!(asked.last(), Some(&Action::Due { at: at(100), round: 1 }));
        for member in 0..members / 2 {
            assert_eq!(claim.says(at(1), member, Verb::Take, yes()), []);
        }
        assert_eq!(outcome(&claim.says(at(1), members - 1, Verb::Take, yes())), GRANTED);
        assert!(claim.machine.is_held());
    }
}

#[test]
fn a_member_that_has_only_just_started_does_not_count() {
    let young = Said::Yes { counts: false, number: PROPOSED };
    let mut claim = Claim::new(3, false);
    let done = claim.asked(&[young, young, yes()]);
    assert_eq!(outcome(&done), Some(Outcome::TooFew));
    assert_eq!(sent(&done, Verb::Give), [0, 1, 2]);
    assert_eq!(outcome(&Claim::new(3, false).asked(&[young, yes(), yes()])), GRANTED);
}

#[test]
fn r1_a_grant_whose_lease_is_all_but_over_is_none() {
    for (now, in_time) in [(7_999, true), (8_000, false), (20_000, false)] {
        let mut claim = Claim::new(3, false);
        claim.ask(at(0));
        claim.says(at(1), 0, Verb::Take, yes());
        let done = claim.says(at(now), 1, Verb::Take, yes());
        assert_eq!(outcome(&done) == GRANTED, in_time, "{now}: {done:?}");
        if !in_time {
            assert_eq!(outcome(&done), Some(Outcome::TooSlow));
            assert_eq!(sent(&done, Verb::Give), [0, 1, 2], "whoever did not answer may have it");
        }
    }
}

#[test]
fn r4_what_did_not_certainly_say_no_is_given_back() {
    let mut claim = Claim::new(5, false);
    claim.ask(at(0));
    claim.says(at(1), 0, Verb::Take, yes());
    claim.says(at(1), 1, Verb::Take, Said::Not);
    claim.says(at(1), 2, Verb::Take, Said::Unclear);
    claim.says(at(1), 3, Verb::Take, other(9));
    let done = claim.due(at(100));
    assert_eq!(outcome(&done), Some(Outcome::TooFew));
    assert_eq!(sent(&done, Verb::Give), [0, 2, 4]);
    // Each that answers is done with.
    claim.says(at(110), 0, Verb::Give, Said::Gave);
    claim.says(at(110), 2, Verb::Give, Said::Nothing);
    claim.says(at(110), 4, Verb::Give, Said::Unclear);
    let left = claim.step(Event::Leave { now: at(120) });
    assert_eq!(sent(&left, Verb::Give), [4]);
}

#[test]
fn whoever_has_a_majority_is_told_at_once_with_the_time_at_which_it_has_none() {
    let mut claim = Claim::new(5, false);
    claim.ask(at(0));
    claim.says(at(1), 0, Verb::Take, aged(9, SECOND));
    claim.says(at(1), 1, Verb::Take, aged(9, 3 * SECOND));
    claim.says(at(1), 2, Verb::Take, yes());
    let done = claim.says(at(1), 3, Verb::Take, aged(9, 2 * SECOND));
    let rest = Some(7 * SECOND);
    let refused = Outcome::Refused { by: Some(ClaimId(9)), keeps: false, rest };
    assert_eq!(outcome(&done), Some(refused));
    // Without a word to others that wait for the holder (R10).
    assert_eq!((sent(&done, Verb::Undo), sent(&done, Verb::Give)), (vec![2, 4], vec![]));
    claim.says(at(2), 2, Verb::Undo, Said::Gave);
    assert_eq!(sent(&claim.step(Event::Leave { now: at(3) }), Verb::Give), [4]);
}

#[test]
fn of_contenders_the_smallest_that_lives_keeps_what_it_has() {
    let keeps = |said: &[Said], tries| match outcome(&Claim::new(said.len(), tries).asked(said)) {
        Some(Outcome::Refused { keeps, .. }) => keeps,
        other => panic!("not refused but {other:?}"),
    };
    assert!(keeps(&[yes(), other(60), other(70)], false));
    assert!(!keeps(&[yes(), other(40), other(70)], false));
    assert!(keeps(&[yes(), aged(40, 2 * SECOND), other(70)], false), "the smaller one is dead");
    assert!(!keeps(&[yes(), aged(40, 2 * SECOND), other(70)], true), "a try leaves nothing");
    assert!(keeps(&[yes(), yes(), other(60), other(60), Said::Not], false));
    // It asks seldom: its lease is long, and so is its patience.
    let rank = Rank { first: PROPOSED, claim: ClaimId(40) };
    let (rest, ttl) = (3530 * SECOND, 3600 * SECOND);
    let patient = |age| Said::Other(Other { rank, granted: false, age: age * SECOND, rest, ttl });
    assert!(!keeps(&[yes(), patient(70), other(70)], false));
    assert!(keeps(&[yes(), patient(80), other(70)], false));
    // A key of another program, for ever: it says nothing of a lease.
    let (age, rest, ttl) = (2 * SECOND, Duration::MAX, Duration::ZERO);
    assert!(keeps(
        &[yes(), Said::Other(Other { rank, granted: false, age, rest, ttl }), other(70)],
        false
    ));
    // Whose clock was less was there before.
    assert!(!keeps(&[yes(), ranked(PROPOSED - 1, 60, Duration::ZERO), other(70)], false));
    assert!(keeps(&[yes(), ranked(PROPOSED + 1, 40, Duration::ZERO), other(70)], false));
}

#[test]
fn r10_what_a_contender_gives_back_is_for_the_first_of_those_that_live() {
    let split = [yes(), yes(), aged(40, 2 * SECOND), other(70), other(45)];
    let done = Claim::new(5, false).asked(&split);
    assert_eq!(sent(&done, cede(45)), [0, 1]);
    assert_eq!((sent(&done, Verb::Give), sent(&done, Verb::Undo)), (vec![], vec![]));
    // Whoever does not wait leaves to others what it got, also where it is the first that lives.
    let split = [yes(), other(70), other(60), aged(40, 2 * SECOND), Said::Not];
    assert_eq!(sent(&Claim::new(5, true).asked(&split), cede(60)), [0]);
    // Nobody is known who lives, or contends: nobody gains from it.
    let rank = Rank { first: PROPOSED, claim: ClaimId(60) };
    let lives = Other { rank, granted: false, age: SECOND, rest: SECOND, ttl: 10 * SECOND };
    let held = Other { granted: true, ..lives };
    let turn = Other { age: Duration::MAX, rest: SECOND / 4, ..lives };
    for other in [Said::Other(held), Said::Other(turn), aged(60, 2 * SECOND)] {
        let done = Claim::new(3, true).asked(&[yes(), other, Said::Not]);
        assert_eq!(sent(&done, Verb::Undo), [0], "{other:?}");
        assert_eq!((sent(&done, cede(60)), sent(&done, Verb::Give)), (vec![], vec![]));
    }
}

#[test]
fn r10_words_that_name_nobody_are_said_of_all_but_split_votes() {
    let young = Said::Yes { counts: false, number: PROPOSED };
    for names_giver in [true, false] {
        let claim = || {
            let mut claim = Claim::new(3, false);
            claim.machine.rules.names_giver = names_giver;
            claim
        };
        let split = claim().asked(&[yes(), other(10), other(20)]);
        let given = (sent(&split, cede(10)), sent(&split, Verb::Undo));
        assert_eq!(given, if names_giver { (vec![0], vec![]) } else { (vec![], vec![0]) });
        assert_eq!(sent(&split, Verb::Give), [0; 0]);
        // Others saw a majority of it, and wait for its end.
        let too_few = claim().asked(&[young, young, yes()]);
        assert_eq!(sent(&too_few, Verb::Give), [0, 1, 2]);
        let mut late = claim();
        late.ask(at(0));
        late.says(at(8_000), 0, Verb::Take, yes());
        assert_eq!(sent(&late.says(at(8_000), 1, Verb::Take, yes()), Verb::Give), [0, 1, 2]);
        let mut lost = claim();
        lost.asked(&[yes(), yes(), yes()]);
        lost.step(Event::Renew { now: at(3_000) });
        let lost = lost.all(Verb::Keep, &[yes(), Said::Nothing, Said::Nothing]);
        assert_eq!(sent(&lost, Verb::Give), [0]);
    }
}

#[test]
fn r10_of_two_that_split_what_is_free_beside_a_hold_the_later_one_gives_way() {
    let rank = Rank { first: PROPOSED, claim: ClaimId(9) };
    let (age, rest, ttl) = (Duration::ZERO, 10 * SECOND, 10 * SECOND);
    let hold = Said::Other(Other { rank, granted: true, age, rest, ttl });
    let gives = |rival: u128, tries: bool| {
        let done = Claim::new(5, tries).asked(&[yes(), yes(), other(rival), hold, hold]);
        assert!(matches!(outcome(&done), Some(Outcome::Refused { keeps: false, .. })), "{done:?}");
        (sent(&done, cede(rival)), sent(&done, Verb::Undo))
    };
    assert_eq!(gives(40, false), (vec![0, 1], vec![]), "it comes before");
    assert_eq!(gives(60, false), (vec![], vec![0, 1]), "that one gives way");
    assert_eq!(gives(60, true), (vec![0, 1], vec![]), "a try is gone");
}

#[test]
fn whoever_stands_in_queues_leaves_them_when_it_holds_and_not_when_it_is_refused() {
    // It stays in line where another has the lock, and stands again where it had it itself.
    for third in [10, 20] {
        let mut waits = Claim::queueing();
        let done = waits.asked(&[yes(), other(10), other(third)]);
        assert_eq!((sent(&done, Verb::Undo), sent(&done, Verb::Give)), (vec![0], vec![]));
        waits.says(at(2), 0, Verb::Undo, Said::Gave);
        let left = waits.step(Event::Leave { now: at(3) });
        assert_eq!(sent(&left, Verb::Give), [0, 1, 2], "its places");
    }
    let mut holds = Claim::queueing();
    let granted = holds.asked(&[other(10), yes(), yes()]);
    assert!(matches!(outcome(&granted), Some(Outcome::Granted { .. })));
    assert_eq!(sent(&granted, Verb::Give), [0], "a hold waits nowhere");
    let mut late = Claim::queueing();
    assert_eq!(sent(&late.asked(&[yes(), yes()]), Verb::Give), [0; 0]);
    assert_eq!(sent(&late.says(at(2), 2, Verb::Take, other(10)), Verb::Give), [2]);
}

#[test]
fn r11_whoever_too_few_answer_or_too_late_stands_in_queues_still() {
    let given = |done: &[Action]| (sent(done, Verb::Undo), sent(done, Verb::Give));
    let young = Said::Yes { counts: false, number: PROPOSED };
    let mut few = Claim::queueing();
    let done = few.asked(&[young, young, other(10)]);
    assert_eq!(outcome(&done), Some(Outcome::TooFew));
    assert_eq!(given(&done), (vec![0, 1], vec![]));
    // Once nobody waits for it any more, none of them stays.
    few.all(Verb::Undo, &[Said::Gave, Said::Gave]);
    assert_eq!(sent(&few.step(Event::Leave { now: at(3) }), Verb::Give), [0, 1, 2]);
    let mut slow = Claim::queueing();
    slow.ask(at(0));
    slow.says(at(8_000), 0, Verb::Take, yes());
    let done = slow.says(at(8_000), 1, Verb::Take, yes());
    assert_eq!(outcome(&done), Some(Outcome::TooSlow));
    assert_eq!(given(&done), (vec![0, 1, 2], vec![]));
}

#[test]
fn r11_whoever_one_of_a_bare_majority_answers_late_has_what_it_got_and_asks_again() {
    let away = |claim: &mut Claim| claim.all(Verb::Take, &[Said::Not, Said::Not, yes(), yes()]);
    let mut claim = Claim::lining_up(5);
    claim.ask(at(0));
    away(&mut claim);
    assert_eq!(claim.due(at(100)), [Action::Done(Outcome::Late)], "nothing is given back");
    assert_eq!(sent(&claim.ask(at(100)), Verb::Take), [0, 1, 2, 3, 4]);
    away(&mut claim);
    let done = claim.says(at(102), 4, Verb::Take, yes());
    let granted = Outcome::Granted { since: at(100), number: PROPOSED };
    assert_eq!(outcome(&done), Some(granted));
    // Three times in a row are too often: others have their turn.
    let mut claim = Claim::lining_up(5);
    for expected in [Outcome::Late, Outcome::Late, Outcome::TooFew, Outcome::Late] {
        claim.ask(at(0));
        away(&mut claim);
        let done = claim.due(at(100));
        assert_eq!(outcome(&done), Some(expected));
        let given = sent(&done, Verb::Give);
        assert_eq!(given.is_empty(), expected == Outcome::Late, "{given:?}");
    }
}

#[test]
fn h4_whoever_meets_a_hold_keeps_nothing_but_its_place_for_a_late_answer() {
    let Said::Other(contends) = other(60) else { panic!("it is another's") };
    let hold = Said::Other(Other { granted: true, ..contends });
    let mut claim = Claim::lining_up(5);
    for expected in [2, 1] {
        claim.ask(at(0));
        claim.all(Verb::Take, &[Said::Not, Said::Not, hold, yes()]);
        let done = claim.due(at(100));
        let refused = Outcome::Refused { by: Some(contends.rank.claim), keeps: false, rest: None };
        assert_eq!(outcome(&done), Some(refused), "it asks {expected} times more");
        assert_eq!((sent(&done, Verb::Undo), sent(&done, Verb::Give)), (vec![3], vec![]));
        assert_eq!(sent(&claim.says(at(110), 4, Verb::Take, yes()), Verb::Undo), [4]);
    }
    // Three times in a row are too often.
    claim.ask(at(0));
    claim.all(Verb::Take, &[Said::Not, Said::Not, hold, yes()]);
    assert_eq!(outcome(&claim.due(at(100))), Some(Outcome::TooFew));
}

#[test]
fn r4_a_majority_that_hangs_is_not_asked_twice_at_once() {
    let mut claim = Claim::lining_up(5);
    let hang = Silent(0b11_100);
    let ask = Event::Ask { now: at(0), silent: hang, number: PROPOSED, clock: PROPOSED };
    claim.step(ask);
    claim.all(Verb::Take, &[yes(), yes()]);
    let done = claim.due(at(100));
    assert_eq!(outcome(&done), Some(Outcome::TooFew));
    assert_eq!(sent(&done, Verb::Give), [0, 1, 2, 3, 4]);
    // Nor where too few can be reached, or a try is to end.
    let mut claim = Claim::lining_up(5);
    let done = claim.asked(&[yes(), yes(), Said::Not, Said::Not, Said::Unclear]);
    assert_eq!(outcome(&done), Some(Outcome::TooFew));
    let mut tries = Claim::new(5, true);
    tries.asked(&[yes(), yes()]);
    assert_eq!(outcome(&tries.due(at(100))), Some(Outcome::TooFew));
}

#[test]
fn l4_a_claim_that_waits_gives_way_to_none_that_came_later() {
    let mut claim = Claim::new(3, false);
    let first = cede(40);
    assert_eq!(sent(&claim.asked(&[yes(), other(40), other(70)]), first), [0]);
    // It proposes greater numbers by now; its first one counts.
    let number = PROPOSED + 100;
    claim.step(Event::Ask { now: at(300), silent: Silent::default(), number, clock: number });
    let later = |claim| ranked(PROPOSED + 50, claim, Duration::ZERO);
    let done = claim.all(Verb::Take, &[has(number), later(40), later(60)]);
    assert!(matches!(outcome(&done), Some(Outcome::Refused { keeps: true, .. })), "{done:?}");
    assert_eq!((sent(&done, Verb::Give), sent(&done, Verb::Undo)), (vec![], vec![]));
}

#[test]
fn l4_a_contender_that_waits_for_a_silent_member_is_not_taken_for_dead() {
    let rules = Rules { patience: 2 * SECOND, ..Claim::new(3, false).machine.rules };
    let keeps = |age| {
        let mut claim = Claim::new(3, false);
        claim.machine = Recipe::new(ClaimId(ME), rules, false);
        let done = claim.asked(&[yes(), aged(40, age), other(70)]);
        matches!(outcome(&done), Some(Outcome::Refused { keeps: true, .. }))
    };
    assert_eq!((keeps(4 * SECOND), keeps(5 * SECOND)), (false, true));
}

#[test]
fn l5_a_member_that_was_silent_before_is_not_waited_for_once_the_others_have_answered() {
    let mut claim = Claim::new(3, false);
    claim.step(Event::Ask { now: at(0), silent: Silent(0b100), number: PROPOSED, clock: 0 });
    claim.says(at(1), 0, Verb::Take, yes());
    let done = claim.says(at(1), 1, Verb::Take, other(9));
    assert!(matches!(outcome(&done), Some(Outcome::Refused { .. })), "{done:?}");
    // It is waited for where its answer decides.
    let mut claim = Claim::new(3, false);
    claim.step(Event::Ask { now: at(0), silent: Silent(0b110), number: PROPOSED, clock: 0 });
    assert_eq!(outcome(&claim.says(at(1), 0, Verb::Take, yes())), None);
    assert_eq!(outcome(&claim.says(at(90), 2, Verb::Take, yes())), GRANTED);
}

#[test]
fn r3_an_answer_of_an_earlier_round_counts_for_nothing() {
    let mut claim = Claim::new(3, false);
    claim.ask(at(0));
    claim.due(at(100));
    claim.ask(at(200));
    for member in 0..3 {
        let said = Event::Said { now: at(201), member, verb: Verb::Take, round: 1, said: yes() };
        assert_eq!(claim.step(said), []);
    }
    assert!(!claim.machine.is_held());
}
