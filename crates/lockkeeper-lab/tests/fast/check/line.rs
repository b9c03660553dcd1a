//! First come, first served: who stood in line, and who may pass it.

use lockkeeper_lab::check::Class;
use lockkeeper_lab::history::{Flags, What};

use super::story::{Event, Hold, Story, event, hold, story};

fn line(time: u64, claim: u64) -> Event {
    event(time, claim, What::InLine)
}

#[test]
fn who_stood_in_line_first_is_served_first() {
    let first = hold(1, [10, 50, 60, 61]);
    let second = |asked, got| hold(2, [asked, got, got + 1, got + 2]);
    story(&[first, second(30, 70)]).and(&[line(20, 1), line(35, 2)]).is_clean();
    let (sentence, records) =
        story(&[first, second(30_000, 40_000), hold(3, [30_001, 42_000, 43_000, 44_000])])
            .and(&[line(20, 1)])
            .and(&Hold { times: [0; 4], ..first }.events())
            .judge_moved(1, 50_000);
    assert_eq!(
        sentence,
        "client 1 got stock/1 at +0.000049 s, overtaken in line by 2 that were called after its \
         place was confirmed; \
         the last was client 3, called at +0.000029 s and granted at +0.000041 s"
    );
    assert_eq!(records, [(1, 2), (1, 0), (3, 1)]);
    // Called before the place was confirmed: the order is open.
    story(&[first, second(20, 40)]).and(&[line(20, 1)]).is_clean();
    story(&[first, second(21, 40)]).and(&[line(20, 1)]).convicts(Class::FifoInversion);
    // Nobody waits any more, or nobody stood in line.
    story(&[first, second(30, 70)]).and(&[line(20, 1)]).is_clean();
    story(&[first, second(30, 40)]).is_clean();
}

impl Story {
    /// Moves the grant and release of a claim to later times and answers the only inversion.
    fn judge_moved(mut self, claim: u64, by: u64) -> (String, Vec<(u32, u64)>) {
        for e in self.events.iter_mut().filter(|e| e.record.claim == claim && e.record.at >= 50) {
            e.record.at += by - 50;
        }
        self.convicts(Class::FifoInversion)
    }
}

#[test]
fn readers_hand_offs_and_reentry_may_pass_the_line() {
    let first = hold(1, [10, 50, 60, 61]);
    let passes = |second: Hold| story(&[first, second]).and(&[line(20, 1)]).is_clean();
    passes(hold(2, [30, 40, 41, 42]).shared());
    passes(hold(2, [30, 40, 41, 42]).flag(Flags::HANDED));
    passes(hold(2, [30, 40, 41, 42]).tried().flag(Flags::HANDED));
    let outer = hold(3, [5, 8, 45, 46]).owner(7);
    story(&[first, outer, hold(2, [30, 40, 41, 42]).owner(7)]).and(&[line(20, 1)]).is_clean();
    story(&[first, hold(2, [30, 40, 41, 42]).owner(7)])
        .and(&[line(20, 1)])
        .convicts(Class::FifoInversion);
    story(&[first.shared(), hold(2, [30, 40, 41, 42])]).and(&[line(20, 1)]).is_clean();
}

#[test]
fn who_left_the_line_was_not_overtaken() {
    let left =
        [hold(1, [10, 0, 0, 0]).events(), vec![line(20, 1), event(45, 1, What::TimedOut)]].concat();
    story(&[hold(2, [30, 40, 41, 42])]).and(&left).is_clean();
    // A place is taken once, and only by one that still asks.
    let again = [line(20, 1), line(35, 1)];
    story(&[hold(1, [10, 50, 60, 61]), hold(2, [25, 40, 41, 42])])
        .and(&again)
        .convicts(Class::FifoInversion);
    let late = [line(55, 1)];
    story(&[hold(1, [10, 50, 60, 61]), hold(2, [57, 70, 71, 72])]).and(&late).is_clean();
}

#[test]
fn inversions_are_counted_without_a_witness_once_enough_are_described() {
    let mut holds = Vec::new();
    let mut places = Vec::new();
    for n in 0..5u64 {
        let base = n * 100 + 1;
        holds.push(hold(2 * n + 1, [base, base + 50, base + 60, base + 61]));
        holds.push(hold(2 * n + 2, [base + 30, base + 40, base + 41, base + 42]));
        places.push(line(base + 20, 2 * n + 1));
    }
    let report = story(&holds).and(&places).options(|o| o.details = 2).judge();
    assert_eq!((report.count(Class::FifoInversion), report.violations.len()), (5, 2));
    assert!(report.violations.iter().all(|v| v.records.len() == 3));
}
