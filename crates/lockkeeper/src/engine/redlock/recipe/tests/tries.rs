//! Tries that meet.

use super::*;

/// Two members are ours, and two another's that comes later.
fn others_that_come_later() -> [Said; 5] {
    [yes(), yes(), other(60), other(60), Said::Not]
}

/// Asked at 0, and the last answer comes at this time, in milliseconds.
fn met(first: &mut Claim, last: u64) -> Vec<Action> {
    first.ask(at(0));
    let each = others_that_come_later().into_iter().enumerate();
    each.flat_map(|(member, said)| first.says(at(last), member, Verb::Take, said)).collect()
}

fn once_more(after: u64) -> [Action; 1] {
    [Action::Done(Outcome::First { after: Duration::from_millis(after) })]
}

fn is_refused(done: &[Action]) -> bool {
    matches!(outcome(done), Some(Outcome::Refused { keeps: false, .. }))
}

#[test]
fn l4_the_first_of_tries_that_meet_asks_once_more_and_no_more_than_that() {
    let mut first = Claim::new(5, true);
    assert_eq!(first.asked(&others_that_come_later()), once_more(25), "nothing is given back");
    first.ask(at(30));
    let done = first.all(Verb::Take, &[yes(), yes(), yes()]);
    let granted = Outcome::Granted { since: at(30), number: PROPOSED };
    assert_eq!(outcome(&done), Some(granted), "the other gave way");
    let mut first = Claim::new(5, true);
    first.asked(&others_that_come_later());
    let done = first.asked(&others_that_come_later());
    assert!(is_refused(&done), "{done:?}");
    assert_eq!(sent(&done, cede(60)), [0, 1]);
}

#[test]
fn l4_the_first_of_tries_waits_as_long_as_for_the_slowest_answer_and_no_longer_than_for_one() {
    // The last time is that of a process that was stopped for a minute.
    for (last, after) in [(1, 25), (40, 40), (100, 100), (60_000, 100)] {
        assert_eq!(met(&mut Claim::new(5, true), last), once_more(after), "{last} ms");
    }
}

#[test]
fn l4_the_first_of_tries_is_refused_where_its_time_would_be_over_before_it_is_answered() {
    // Answered at 40 ms, it asks at 80 ms, and waits for answers until 180 ms.
    for (until, asks) in [(181, true), (180, false), (40, false)] {
        let mut first = Claim::new(5, true);
        first.machine.be_patient(SECOND / 10, Some(at(until)));
        let done = met(&mut first, 40);
        match asks {
            true => assert_eq!(done, once_more(40)),
            false => assert!(is_refused(&done) && sent(&done, cede(60)) == [0, 1], "{done:?}"),
        }
    }
}

#[test]
fn l4_a_try_that_others_refused_is_refused_where_too_few_answer_it_the_second_time() {
    let mut first = Claim::new(5, true);
    first.asked(&others_that_come_later());
    let done = first.asked(&[yes(), yes(), Said::Not, Said::Not, Said::Not]);
    assert!(is_refused(&done), "{done:?}");
    assert_eq!(sent(&done, Verb::Give), [0, 1]);
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
        assert!(is_refused(&done), "{done:?}");
    }
    // Nor does one whose members do not say who gave back.
    let mut of_others = Claim::new(5, true);
    of_others.machine.rules.names_giver = false;
    let done = of_others.asked(&others_that_come_later());
    assert!(is_refused(&done), "{done:?}");
}
