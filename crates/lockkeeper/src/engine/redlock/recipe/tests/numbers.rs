//! The number of a grant, which a majority keeps.

use super::*;

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
