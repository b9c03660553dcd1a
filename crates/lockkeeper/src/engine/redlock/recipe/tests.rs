//! What follows from what the members say, one rule a test.

use std::time::Duration;

use super::*;
use crate::protocol::lease::Drift;

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
fn h5_whoever_gave_a_part_of_a_hold_back_had_it_and_the_rest_was_lost() {
    let (gave, nothing) = (Said::Gave, Said::Nothing);
    for (said, ends) in [
        ([gave, gave, gave, nothing, nothing], Outcome::Freed),
        ([nothing, nothing, nothing, gave, gave], Outcome::Gone),
        ([nothing, nothing, nothing, nothing, gave], Outcome::Gone),
        ([nothing, nothing, nothing, nothing, other(9)], Outcome::NotOurs),
    ] {
        let mut claim = Claim::new(5, false);
        claim.asked(&[yes(); 5]);
        claim.step(Event::Leave { now: at(2) });
        assert_eq!(outcome(&claim.all(Verb::Give, &said)), Some(ends), "{said:?}");
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
fn h4_nobody_keeps_anything_beside_a_hold_however_old_its_records_are() {
    let keeps = |granted| {
        let (rank, age) = (Rank { first: PROPOSED - 1, claim: ClaimId(40) }, 5 * SECOND);
        let held = Said::Other(Other { rank, granted, age, rest: 5 * SECOND, ttl: 10 * SECOND });
        let mut claim = Claim::new(5, false);
        // The third member, which has one more of its records, cannot be reached from here.
        let done = claim.asked(&[held, held, Said::Not, yes(), yes()]);
        let Some(Outcome::Refused { keeps, .. }) = outcome(&done) else { panic!("{done:?}") };
        // A holder contends no more: nobody is told.
        assert_eq!(sent(&done, Verb::Undo).len(), if keeps { 0 } else { 2 });
        keeps
    };
    assert_eq!((keeps(false), keeps(true)), (true, false));
}

#[test]
fn h4_a_hold_takes_what_is_free_and_its_lease_does_not_begin_anew() {
    let mut claim = Claim::new(5, false);
    claim.asked(&[other(60), yes(), yes(), yes()]);
    assert!(claim.machine.is_held() && claim.machine.is_incomplete());
    // One more whose answer comes later.
    claim.says(at(2), 4, Verb::Take, other(60));
    let asked = claim.step(Event::Complete);
    assert_eq!((sent(&asked, Verb::Take), sent(&asked, Verb::Keep)), (vec![0, 4], vec![1, 2, 3]));
    assert_eq!(claim.says(at(3), 0, Verb::Take, yes()), [], "no deadline follows from it");
    for member in [1, 3] {
        assert_eq!(claim.says(at(3), member, Verb::Keep, yes()), []);
    }
    let asked = claim.step(Event::Complete);
    // Those that say that it is a hold's are asked no more.
    assert_eq!((sent(&asked, Verb::Take), sent(&asked, Verb::Keep)), (vec![4], vec![2]));
    claim.says(at(4), 4, Verb::Take, yes());
    assert!(!claim.machine.is_incomplete());
    // It is given back where it was taken later, too.
    assert_eq!(sent(&claim.step(Event::Leave { now: at(5) }), Verb::Give), [0, 1, 2, 3, 4]);
}

#[test]
fn l4_a_hold_gives_back_what_completed_it_and_leaves_the_line_where_nothing_did() {
    let mut claim = Claim::new(5, false);
    claim.machine.rules.stands = true;
    let granted = claim.asked(&[other(60), other(60), yes(), yes(), yes()]);
    assert_eq!((outcome(&granted), sent(&granted, Verb::Give)), (GRANTED, vec![]));
    assert_eq!(sent(&claim.step(Event::Complete), Verb::Take), [0, 1]);
    claim.says(at(2), 0, Verb::Take, yes());
    claim.says(at(2), 1, Verb::Take, other(60));
    assert_eq!(sent(&claim.step(Event::Leave { now: at(3) }), Verb::Give), [0, 1, 2, 3, 4]);
}

#[test]
fn h4_a_hold_says_that_it_is_one_where_a_minority_was_silent() {
    let mut claim = Claim::new(5, false);
    claim.asked(&[yes(), yes(), yes()]);
    assert!(claim.machine.is_unmarked() && !claim.machine.is_incomplete());
    let asked = claim.step(Event::Complete);
    assert_eq!((sent(&asked, Verb::Keep), sent(&asked, Verb::Take)), (vec![0, 1, 2], vec![]));
    (0..3).for_each(|member| drop(claim.says(at(3), member, Verb::Keep, yes())));
    assert!(!claim.machine.is_unmarked());
    // Where all have it nobody can take it for a contender's.
    let mut claim = Claim::new(5, false);
    claim.asked(&[yes(); 5]);
    assert!(!claim.machine.is_unmarked());
}

#[test]
fn force_is_not_undone_by_a_hold_that_says_that_it_is_one() {
    for others in [vec![], vec![other(60), other(60)]] {
        let mut claim = Claim::new(5, false);
        claim.asked(&[[yes(), yes(), yes()].as_slice(), &others].concat());
        let asked = claim.step(Event::Complete);
        assert_eq!(sent(&asked, Verb::Keep), [0, 1, 2]);
        // A majority was taken away before that came.
        for member in 0..3 {
            assert_eq!(claim.says(at(2), member, Verb::Keep, Said::Nothing), [], "it is restored");
        }
        claim.step(Event::Renew { now: at(3) });
        let lost = claim.all(Verb::Keep, &[Said::Nothing; 3]);
        assert_eq!(outcome(&lost), Some(Outcome::Lost));
    }
}

#[test]
fn a_member_that_is_back_without_a_hold_gets_it_again_and_says_once_that_it_lost_it() {
    let mut claim = Claim::new(3, false);
    claim.asked(&[yes(), yes(), yes()]);
    assert_eq!(sent(&claim.step(Event::Back { member: 1 }), Verb::Keep), [1]);
    assert_eq!(sent(&claim.says(at(2), 1, Verb::Keep, Said::Nothing), Verb::Take), [1]);
    assert_eq!(claim.says(at(3), 1, Verb::Keep, Said::Nothing), [], "nobody asked that");
}

#[test]
fn a_member_that_is_back_before_its_question_is_answered_is_asked_once_that_is_a_hold() {
    // It was asked when it was away, and the others answer after it is back.
    let mut claim = Claim::new(3, false);
    claim.asked(&[yes(), Said::Not]);
    assert!(claim.machine.may_lack(1));
    assert_eq!(claim.step(Event::Back { member: 1 }), [], "whose it is is not known");
    let granted = claim.says(at(2), 2, Verb::Take, yes());
    assert_eq!((outcome(&granted), sent(&granted, Verb::Keep)), (GRANTED, vec![1]));
    assert_eq!(sent(&claim.says(at(3), 1, Verb::Keep, Said::Nothing), Verb::Take), [1]);
    claim.says(at(4), 1, Verb::Take, yes());
    assert!(!claim.machine.may_lack(1) && claim.machine.may_lack(7));
    // That its answer was lost is noticed last.
    let mut claim = Claim::new(3, false);
    claim.asked(&[yes(), yes()]);
    assert!(claim.machine.may_lack(2));
    assert_eq!(sent(&claim.step(Event::Back { member: 2 }), Verb::Keep), [2]);
    // The same of a renewal.
    claim.step(Event::Renew { now: at(5) });
    assert_eq!(claim.step(Event::Back { member: 2 }), []);
    claim.says(at(6), 2, Verb::Keep, Said::Not);
    claim.says(at(6), 0, Verb::Keep, yes());
    let renewed = claim.says(at(6), 1, Verb::Keep, yes());
    assert_eq!(sent(&renewed, Verb::Keep), [2]);
    assert_eq!(sent(&claim.says(at(7), 2, Verb::Keep, Said::Nothing), Verb::Take), [2]);
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
fn h4_a_hold_that_another_is_in_the_way_of_where_a_member_is_back_asks_that_one_again() {
    let mut claim = Claim::new(3, false);
    claim.asked(&[Said::Not, yes(), yes()]);
    assert!(claim.machine.is_held() && !claim.machine.is_incomplete());
    let back = claim.step(Event::Back { member: 0 });
    assert_eq!(sent(&back, Verb::Keep), [0]);
    assert_eq!(claim.says(at(5), 0, Verb::Keep, other(9)), []);
    assert!(claim.machine.is_incomplete(), "it would have one member less for a third of a lease");
    assert_eq!(sent(&claim.step(Event::Complete), Verb::Take), [0]);
    claim.says(at(6), 0, Verb::Take, yes());
    assert!(!claim.machine.is_incomplete());
    // So it is where the answer to a renewal says that, once a majority has extended it.
    claim.step(Event::Renew { now: at(3_000) });
    claim.says(at(3_001), 1, Verb::Keep, yes());
    claim.says(at(3_001), 2, Verb::Keep, yes());
    claim.says(at(3_002), 0, Verb::Keep, other(9));
    assert_eq!(sent(&claim.step(Event::Complete), Verb::Take), [0]);
}

#[test]
fn a_hold_leaves_a_queue_that_a_renewal_finds_it_in() {
    let mut claim = Claim::queueing();
    claim.asked(&[yes(), yes(), Said::Unclear]);
    claim.step(Event::Renew { now: at(3_000) });
    let behind = claim.says(at(3_001), 2, Verb::Keep, other(10));
    assert_eq!(sent(&behind, Verb::Give), [2], "others would wait behind it");
    // It is asked for again at the end, if it did not answer.
    claim.all(Verb::Keep, &[yes(), yes()]);
    assert_eq!(sent(&claim.step(Event::Leave { now: at(3_002) }), Verb::Give), [0, 1, 2]);
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
fn a_renewal_counts_members_that_had_it_all_the_time_and_restores_the_others() {
    let mut claim = Claim::new(3, false);
    claim.asked(&[yes(), yes(), yes()]);
    let renewing = claim.step(Event::Renew { now: at(3_000) });
    assert_eq!(sent(&renewing, Verb::Keep), [0, 1, 2]);
    claim.says(at(3_001), 0, Verb::Keep, Said::Nothing);
    claim.says(at(3_001), 1, Verb::Keep, yes());
    let done = claim.says(at(3_001), 2, Verb::Keep, yes());
    assert_eq!(outcome(&done), Some(Outcome::Renewed { since: at(3_000) }));
    assert_eq!(sent(&done, Verb::Take), [0]);
    // One whose answer comes later is restored, too.
    claim.step(Event::Renew { now: at(6_000) });
    claim.says(at(6_001), 0, Verb::Keep, yes());
    claim.says(at(6_001), 1, Verb::Keep, yes());
    assert_eq!(sent(&claim.says(at(6_001), 2, Verb::Keep, Said::Nothing), Verb::Take), [2]);
}

#[test]
fn l7_a_renewal_by_a_minority_is_none() {
    let held = || {
        let mut claim = Claim::new(5, false);
        claim.asked(&[yes(); 5]);
        claim.step(Event::Renew { now: at(3_000) });
        claim
    };
    // Those that lost it are no majority: the deadline decides.
    let mut claim = held();
    claim.all(Verb::Keep, &[yes(), yes(), Said::Nothing, other(9)]);
    assert_eq!(outcome(&claim.due(at(4_000))), Some(Outcome::TooFew));
    assert!(claim.machine.is_held());
    // A majority of those who lost it is a loss, and nothing is taken again.
    let mut claim = held();
    let done = claim.all(Verb::Keep, &[yes(), Said::Nothing, Said::Nothing, other(9)]);
    assert_eq!(outcome(&done), Some(Outcome::Lost));
    assert_eq!((sent(&done, Verb::Take), sent(&done, Verb::Give)), (vec![], vec![0, 4]));
    assert!(!claim.machine.is_held());
}

#[test]
fn a_release_asks_all_and_a_majority_is_enough() {
    let mut claim = Claim::new(3, false);
    claim.asked(&[yes(), yes()]);
    let left = claim.step(Event::Leave { now: at(5) });
    assert_eq!(sent(&left, Verb::Give), [0, 1, 2]);
    claim.says(at(6), 2, Verb::Give, Said::Gave);
    let done = claim.says(at(6), 0, Verb::Give, Said::Gave);
    assert_eq!(outcome(&done), Some(Outcome::Freed));
    // The time of an earlier question is none for this one.
    assert_eq!(claim.step(Event::Due { now: at(100), round: 1 }), []);
    // Asked again, it is asked of those alone that did not answer.
    assert_eq!(sent(&claim.step(Event::Leave { now: at(9) }), Verb::Give), [1]);
    // Nothing of it is asked for any more.
    assert_eq!(claim.ask(at(10)), [Action::Done(Outcome::NotOurs)]);
}

#[test]
fn what_a_minority_may_keep_of_a_claim_that_left_keeps_nobody_waiting() {
    let mut claim = Claim::new(3, false);
    claim.asked(&[yes(), other(40)]);
    claim.due(at(100));
    claim.step(Event::Leave { now: at(200) });
    assert_eq!(claim.step(Event::Due { now: at(200), round: 1 }), [], "that was for the question");
    let done = claim.says(at(201), 0, Verb::Give, Said::Gave);
    assert_eq!(outcome(&done), Some(Outcome::Freed), "the third never answered");
    let mut claim = Claim::new(3, false);
    assert_eq!(
        claim.step(Event::Leave { now: at(0) }).last(),
        Some(&Action::Done(Outcome::NotOurs))
    );
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

fn numbers(actions: &[Action], verb: Verb) -> Vec<u64> {
    let of = |action: &Action| match action {
        Action::Send { number, verb: v, .. } if *v == verb => Some(*number),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn r7_a_majority_that_answers_one_number_is_enough() {
    let mut claim = Claim::new(3, false);
    assert_eq!(numbers(&claim.ask(at(0)), Verb::Take), [PROPOSED; 3]);
    claim.says(at(1), 0, Verb::Take, has(900));
    // The third may answer as the second does.
    assert_eq!(claim.says(at(1), 1, Verb::Take, yes()), []);
    assert_eq!(outcome(&claim.says(at(1), 2, Verb::Take, yes())), GRANTED);
    // They agree on another one than the proposed, which each of them had already.
    let done = Claim::new(3, false).asked(&[has(900), has(900)]);
    assert_eq!(outcome(&done), Some(Outcome::Granted { since: Ticks(0), number: 900 }));
}

#[test]
fn r7_l6_of_different_numbers_a_majority_keeps_the_greatest_before_the_grant_is_told() {
    let mut claim = Claim::new(5, false);
    let young = Said::Yes { counts: false, number: 950 };
    assert_eq!(claim.asked(&[yes(), has(900), has(700)]), []);
    // The last one cannot make three of one of them.
    let settling = claim.says(at(1), 3, Verb::Take, young);
    assert_eq!(numbers(&settling, Verb::Keep), [950; 5]);
    assert_eq!(settling.last(), Some(&Action::Due { at: at(101), round: 2 }));
    claim.round += 1;
    assert_eq!(claim.says(at(101), 0, Verb::Keep, has(950)), []);
    assert_eq!(claim.says(at(101), 3, Verb::Keep, Said::Yes { counts: false, number: 950 }), []);
    assert_eq!(claim.says(at(101), 4, Verb::Keep, Said::Nothing), []);
    assert_eq!(claim.says(at(101), 1, Verb::Keep, has(950)), []);
    let done = claim.says(at(101), 2, Verb::Keep, has(950));
    assert_eq!(outcome(&done), Some(Outcome::Granted { since: Ticks(0), number: 950 }));
    // It is kept by whoever is asked from now on.
    assert_eq!(numbers(&claim.step(Event::Renew { now: at(300) }), Verb::Keep), [950; 5]);
}

#[test]
fn r7_a_member_that_has_a_greater_number_yet_makes_one_more_round() {
    let settling = || {
        let mut claim = Claim::new(3, false);
        assert_eq!(numbers(&claim.asked(&[yes(), has(900), Said::Not]), Verb::Keep), [900; 3]);
        claim.round += 1;
        claim
    };
    let mut claim = settling();
    claim.says(at(2), 2, Verb::Keep, has(1_000));
    assert_eq!(numbers(&claim.says(at(2), 1, Verb::Keep, has(950)), Verb::Keep), [1_000; 3]);
    claim.round += 1;
    claim.says(at(3), 0, Verb::Keep, has(1_000));
    let done = claim.says(at(3), 1, Verb::Keep, has(1_000));
    assert_eq!(outcome(&done), Some(Outcome::Granted { since: Ticks(0), number: 1_000 }));
    // Too late for that.
    let mut claim = settling();
    claim.says(at(8_000), 2, Verb::Keep, has(1_000));
    let done = claim.says(at(8_000), 1, Verb::Keep, has(950));
    assert_eq!(outcome(&done), Some(Outcome::TooSlow));
}

#[test]
fn r7_what_a_majority_has_not_kept_is_told_to_nobody() {
    let settling = || {
        let mut claim = Claim::new(3, false);
        claim.asked(&[yes(), has(900), Said::Not]);
        claim.round += 1;
        claim
    };
    let mut claim = settling();
    claim.says(at(2), 1, Verb::Keep, has(900));
    let done = claim.due(at(101));
    assert_eq!(outcome(&done), Some(Outcome::TooFew));
    assert!(!claim.machine.is_held());
    assert_eq!(sent(&done, Verb::Give), [0, 1]);
    // Somebody took it away meanwhile.
    let mut claim = settling();
    claim.says(at(2), 0, Verb::Keep, other(9));
    let done = claim.says(at(2), 2, Verb::Keep, Said::Nothing);
    let refused = Outcome::Refused { by: Some(ClaimId(9)), keeps: false, rest: None };
    assert_eq!(outcome(&done), Some(refused));
    // So late that too little of the lease is left.
    let mut claim = settling();
    claim.says(at(8_000), 0, Verb::Keep, has(900));
    let done = claim.says(at(8_000), 1, Verb::Keep, has(900));
    assert_eq!(outcome(&done), Some(Outcome::TooSlow));
}
