//! When a place asks again by itself (R10).

use super::*;

/// Milliseconds from when the place of this bench was asked for.
fn after(ms: u64) -> Ticks {
    Ticks((1_000 + ms) * MS)
}

impl Bench {
    fn at(&mut self, ms: u64, event: Event) -> Vec<Action> {
        self.now = after(ms).0;
        self.step(event)
    }

    /// A bench whose first claim stands in line, and asks again after so long.
    fn asking(ms: u64) -> (Self, ClaimId) {
        let mut b = Self::new();
        let (one, _) = b.lock();
        let id = ClaimId(u128::from(one));
        assert_eq!(b.step(in_line(id, Some(ms))), []);
        (b, id)
    }
}

fn in_line(claim: ClaimId, ms: Option<u64>) -> Event {
    Event::Answered { claim, answer: Answered::InLine { ask_at: ms.map(after) } }
}

fn told(claim: ClaimId, ms: u64) -> Event {
    Event::AskAt { claim, at: after(ms) }
}

#[test]
fn r10_a_place_asks_at_the_time_that_its_last_answer_said_and_keeps_its_place() {
    let (mut b, id) = Bench::asking(1_000);
    assert_eq!(b.line.next_timer(), Some(after(1_000)));
    assert_eq!(b.at(999, Event::Timer), []);
    assert_eq!(b.at(1_000, Event::Timer), [Action::Recheck(id)]);
    assert_eq!(b.line.place(), Some(id), "whoever is pushed a grant meanwhile has it");
    assert_eq!(b.at(1_500, Event::Timer), [], "asked once");
    // Another answer, another time; none, and an event tells.
    b.at(1_600, in_line(id, Some(3_000)));
    b.at(1_700, in_line(id, Some(2_000)));
    assert_eq!(b.at(2_000, Event::Timer), [Action::Recheck(id)]);
    b.at(2_100, in_line(id, None));
    assert_eq!(b.at(60_000, Event::Timer), []);
}

#[test]
fn r10_an_answer_that_is_read_behind_a_newer_one_does_not_put_off_a_question_that_is_due() {
    // The place asks at its time, and the net beside it, or a wake-up before the first is read.
    for woken in [false, true] {
        let (mut b, id) = Bench::asking(1_000);
        assert_eq!(b.at(1_000, Event::Timer), [Action::Recheck(id)]);
        if woken {
            assert!(matches!(b.at(1_010, Event::Wake { claim: id })[..], [Action::Attempt(_)]));
        }
        b.at(1_020, told(id, 4_000));
        // The one answer says that the lock may be free by now, and the other does not know of it.
        b.at(1_030, in_line(id, Some(1_030)));
        b.at(1_040, in_line(id, Some(6_040)));
        b.at(1_040, told(id, 5_000));
        assert_eq!(b.at(1_040, Event::Timer), [Action::Recheck(id)]);
        b.at(1_050, in_line(id, Some(6_050)));
        assert_eq!(b.at(3_999, Event::Timer), [], "asked once");
        assert_eq!(b.at(4_000, Event::Timer), [Action::Recheck(id)], "what it was told counts");
    }
}

#[test]
fn r10_a_question_that_is_not_answered_is_repeated_after_a_pause() {
    let (mut b, id) = Bench::asking(1_000);
    assert_eq!(b.at(1_000, Event::Timer), [Action::Recheck(id)]);
    assert_eq!(b.at(3_000, Event::Unanswered { claim: id }), []);
    assert_eq!(b.at(3_999, Event::Timer), []);
    assert_eq!(b.at(4_000, Event::Timer), [Action::Recheck(id)]);
}

#[test]
fn r11_an_answer_does_not_put_off_the_look_that_a_place_behind_dead_ones_was_told_to_take() {
    let (mut b, id) = Bench::asking(3_000);
    assert_eq!(b.at(2_000, told(id, 4_001)), []);
    // The net asks meanwhile.
    assert_eq!(b.at(3_001, in_line(id, Some(6_002))), []);
    assert_eq!(b.at(4_000, Event::Timer), []);
    assert_eq!(b.at(4_001, Event::Timer), [Action::Recheck(id)]);
    b.at(4_002, in_line(id, Some(7_003)));
    assert_eq!(b.at(7_002, Event::Timer), [], "it looked: what the answer says counts again");
    assert_eq!(b.at(7_003, Event::Timer), [Action::Recheck(id)]);
}

#[test]
fn r11_a_place_that_is_told_to_look_before_its_join_is_answered_looks_then() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let id = ClaimId(u128::from(one));
    assert_eq!(b.at(10, told(id, 2_011)), []);
    assert_eq!(b.at(20, in_line(id, Some(30_000))), []);
    assert_eq!(
        b.at(2_011, Event::Timer),
        [Action::Recheck(id)],
        "when it was told to, and not when it hears from the holder next"
    );
}

#[test]
fn r11_a_place_that_is_told_to_look_now_asks_at_once_and_keeps_what_it_was_told_before() {
    let (mut b, id) = Bench::asking(30_000);
    b.at(10, told(id, 2_000));
    assert_eq!(b.at(20, told(id, 20)), [Action::Recheck(id)]);
    b.at(30, in_line(id, Some(30_000)));
    assert_eq!(b.at(2_000, Event::Timer), [Action::Recheck(id)]);
    // The answer under way is older than what it is told: asked once more behind it.
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let id = ClaimId(u128::from(one));
    assert_eq!(b.at(10, told(id, 10)), []);
    assert!(matches!(b.at(20, in_line(id, Some(30_000)))[..], [Action::Attempt(_)]));
}

#[test]
fn a_place_that_is_asked_for_once_more_or_left_does_not_ask_at_the_time_before() {
    let (mut b, id) = Bench::asking(1_000);
    assert!(matches!(b.at(10, Event::Wake { claim: id })[..], [Action::Attempt(_)]));
    assert_eq!(b.at(1_000, Event::Timer), [], "the answer comes first");
    b.at(1_010, in_line(id, Some(3_000)));
    assert_eq!(b.at(1_020, Event::Cancel { seq: 1, fresh: true }), [Action::Withdraw(id)]);
    assert_eq!(b.at(3_000, Event::Timer), []);
    assert_eq!(b.at(3_010, told(id, 3_010)), []);
}

#[test]
fn r10_a_conversion_that_waits_in_line_asks_at_its_time_until_it_is_left() {
    let mut b = Bench::new();
    let seq = b.held(Mode::Upgradable);
    let id = ClaimId(77);
    b.step(Event::Convert { seq, id, to: Mode::Exclusive, give_up: None });
    b.at(0, in_line(id, Some(1_000)));
    assert_eq!(b.at(1_000, Event::Timer), [Action::Recheck(id)]);
    b.at(1_010, Event::Unanswered { claim: id });
    assert_eq!(b.at(2_010, Event::Timer), [Action::Recheck(id)]);
    b.at(2_020, in_line(id, Some(30_000)));
    assert_eq!(b.at(2_030, told(id, 4_000)), []);
    assert_eq!(b.at(2_040, told(id, 2_040)), [Action::Recheck(id)]);
    assert_eq!(b.at(4_000, Event::Timer), [Action::Recheck(id)]);
    b.at(4_010, in_line(id, Some(5_000)));
    assert_eq!(b.at(4_020, Event::CancelConvert { seq }), [Action::Withdraw(id)]);
    assert_eq!(b.at(5_000, Event::Timer), []);
    assert_eq!(b.at(5_010, told(id, 5_010)), []);
}
