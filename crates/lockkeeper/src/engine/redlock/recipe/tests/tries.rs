//! Tries that meet.

use super::*;

#[test]
fn l4_the_first_of_tries_that_meet_asks_once_more_and_no_more_than_that() {
    let met = [yes(), yes(), other(60), other(60), Said::Not];
    let mut first = Claim::new(5, true);
    assert_eq!(first.asked(&met), [Action::Done(Outcome::First)], "nothing is given back");
    first.ask(at(30));
    let done = first.all(Verb::Take, &[yes(), yes(), yes()]);
    let granted = Outcome::Granted { since: at(30), number: PROPOSED };
    assert_eq!(outcome(&done), Some(granted), "the other gave way");
    let mut first = Claim::new(5, true);
    first.asked(&met);
    let done = first.asked(&met);
    assert!(matches!(outcome(&done), Some(Outcome::Refused { keeps: false, .. })), "{done:?}");
    assert_eq!(sent(&done, cede(60)), [0, 1]);
}

#[test]
fn l4_a_try_that_meets_an_earlier_one_a_hold_a_turn_or_a_dead_one_gives_way_at_once() {
    let Said::Other(later) = other(60) else { panic!("it is another's") };
    let earlier = other(40);
    let hold = Said::Other(Other { granted: true, ..later });
    let turn = Said::Other(Other { age: Duration::MAX, ..later });
    let dead = aged(60, 5 * SECOND);
    for met in [earlier, hold, turn, dead] {
        let done = Claim::new(5, true).asked(&[yes(), yes(), other(60), met, Said::Not]);
        assert!(matches!(outcome(&done), Some(Outcome::Refused { keeps: false, .. })), "{done:?}");
    }
    // Nor does one whose members do not say who gave back.
    let mut of_others = Claim::new(5, true);
    of_others.machine.rules.names_giver = false;
    let done = of_others.asked(&[yes(), yes(), other(60), other(60), Said::Not]);
    assert!(matches!(outcome(&done), Some(Outcome::Refused { .. })), "{done:?}");
}
