//! What an observer was told of leases, releases and places is on record, and convicts.

use std::time::Duration;

use lockkeeper::observe::{Observer, Seen};
use lockkeeper::{ClaimId, Clock, Kind, Lost, Mode, Name, Token};
use lockkeeper_lab::check::{Class, Options, check_files};
use lockkeeper_lab::history::{Recorder, Writer, WriterOptions};

/// What two processes were told about one lock, judged. Each has one claim, 1, and one hold of its
/// number.
fn told(story: &[(usize, Seen)]) -> Vec<(Class, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let writer = |number| {
        Writer::create(dir.path().join(format!("{number}.lkh")), WriterOptions::default()).unwrap()
    };
    let writers = [writer(0), writer(1)];
    let recorders = writers.clone().map(Recorder::new);
    let name = Name::new("stock").unwrap();
    let clock = Clock::real();
    for (process, seen) in story {
        recorders[*process].seen(clock.now(), Kind::Lock, &name, seen);
    }
    for writer in &writers {
        writer.finish().unwrap();
    }
    let report = check_files(&[dir.path()], Options::default()).unwrap();
    assert_eq!((report.counts.strangers, report.counts.foreign), (0, 0));
    report.found.into_iter().collect()
}

fn hold_of(process: usize) -> ClaimId {
    ClaimId(process as u128 + 1)
}

fn asked_by(process: usize) -> (usize, Seen) {
    (
        process,
        Seen::Asked { claim: 1, place: hold_of(process), mode: Mode::Exclusive, trying: false },
    )
}

fn got_by(process: usize) -> (usize, Seen) {
    got(process, hold_of(process), process as u64 + 1)
}

fn got(process: usize, hold: ClaimId, number: u64) -> (usize, Seen) {
    (
        process,
        Seen::Got {
            claim: 1,
            hold,
            mode: Mode::Exclusive,
            token: Token::of(number, 0),
            deadline: None,
        },
    )
}

fn in_line(process: usize, fair: bool) -> (usize, Seen) {
    (process, Seen::InLine { place: hold_of(process), fair, ahead: Some(1), holder: None })
}

fn releasing(process: usize) -> (usize, Seen) {
    (process, Seen::Releasing { claim: 1, hold: hold_of(process) })
}

fn giving_back(process: usize, again: bool) -> (usize, Seen) {
    (process, Seen::GivingBack { hold: hold_of(process), again })
}

fn released(process: usize, end: &'static str) -> (usize, Seen) {
    (process, Seen::Released { hold: hold_of(process), end })
}

fn lost(process: usize) -> (usize, Seen) {
    (process, Seen::Lost { claim: 1, why: Lost::Expired })
}

fn renewal(process: usize) -> [(usize, Seen); 2] {
    let (hold, deadline) = (hold_of(process), Clock::real().now().plus(Duration::from_secs(9)));
    [(process, Seen::Renewing { hold }), (process, Seen::Renewed { hold, deadline })]
}

/// Each part of a story is one event, or several.
macro_rules! story {
    ($($part:expr),* $(,)?) => { told(&[$(Vec::from($part)),*].concat()) };
}

#[test]
fn a_renewal_after_the_end_of_a_hold_is_on_record_and_convicted() {
    let [sent, acknowledged] = renewal(0);
    let turn = [asked_by(0), got_by(0)];
    let ended = [releasing(0), giving_back(0, false), released(0, "freed")];
    let convicted = [(Class::RenewedAfterEnd, 1)];
    assert_eq!(story![turn.clone(), ended.clone(), renewal(0)], convicted);
    assert_eq!(story![turn.clone(), [lost(0)], renewal(0)], convicted);
    // Under way when it ended, refused, or not answered.
    assert_eq!(story![turn.clone(), [sent.clone()], ended.clone(), [acknowledged]], []);
    for gone in [false, true] {
        let refused = (0, Seen::NotRenewed { hold: hold_of(0), gone });
        assert_eq!(story![turn.clone(), ended.clone(), [sent.clone(), refused]], []);
    }
}

#[test]
fn a_hold_released_twice_with_success_is_on_record_and_convicted() {
    let ended = |end| [giving_back(0, false), released(0, end)];
    let turn = [asked_by(0), got_by(0), releasing(0)];
    assert_eq!(story![turn.clone(), ended("freed"), ended("freed")], [(Class::DoubleRelease, 1)]);
    assert_eq!(story![turn.clone(), ended("freed"), ended("not-ours")], []);
    assert_eq!(
        story![turn.clone(), [giving_back(0, false)], [giving_back(0, true), released(0, "freed")]],
        [],
        "nobody answered the first one"
    );
    let together =
        [giving_back(0, false), giving_back(0, false), released(0, "freed"), released(0, "freed")];
    assert_eq!(story![turn, together], [], "both were told of one effect");
}

#[test]
fn the_release_of_a_hold_that_was_over_is_on_record_and_convicted_when_it_frees_anothers() {
    let ends = |end| [giving_back(0, false), released(0, end)];
    let other = [asked_by(1), got_by(1)];
    // It holds until after that.
    let until = [releasing(1), released(1, "freed")];
    // Lost, and given back when another has it.
    let turn = [asked_by(0), got_by(0), lost(0)];
    assert_eq!(
        story![turn.clone(), other.clone(), ends("freed"), until.clone()],
        [(Class::ForeignRelease, 1)]
    );
    for end in ["not-ours", "unknown"] {
        assert_eq!(story![turn.clone(), other.clone(), ends(end), until.clone()], []);
    }
    assert_eq!(
        story![turn, [giving_back(0, false)], other.clone(), [released(0, "freed")], until.clone()],
        [],
        "it was asked for before"
    );
    // Released, not answered, and repeated when another has it.
    let turn = [asked_by(0), got_by(0), releasing(0), giving_back(0, false)];
    let repeats = |end| [giving_back(0, true), released(0, end)];
    assert_eq!(
        story![turn.clone(), other.clone(), repeats("freed"), until.clone()],
        [(Class::ForeignRelease, 1)]
    );
    assert_eq!(story![turn.clone(), other.clone(), repeats("unknown"), until.clone()], []);
    assert_eq!(
        story![turn.clone(), other.clone(), ends("freed"), until.clone()],
        [],
        "it may be the answer to the first"
    );
    assert_eq!(story![turn, other, [released(0, "freed")], until.clone()], [], "answered late");
}

#[test]
fn a_place_in_a_line_whose_order_is_kept_is_on_record_and_convicts_who_overtakes_it() {
    let overtaken = |place, hold| {
        let first = [asked_by(0), place];
        let second = [
            asked_by(1),
            got(1, hold, 2),
            releasing(1),
            (1, Seen::Released { hold, end: "freed" }),
        ];
        story![first, second, [got(0, hold_of(0), 9)]]
    };
    assert_eq!(overtaken(in_line(0, true), hold_of(1)), [(Class::FifoInversion, 1)]);
    assert_eq!(overtaken(in_line(0, false), hold_of(1)), [], "an engine that keeps no order");
    assert_eq!(
        overtaken(in_line(0, true), ClaimId(99)),
        [],
        "its place was another's of its process, and may be older"
    );
}
