//! What is held: completed, extended, restored and given back.

use super::*;

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
