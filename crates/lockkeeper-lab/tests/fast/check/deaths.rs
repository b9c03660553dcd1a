//! Deaths: until when the dead held, and how long they may still be in the engine.

use std::time::Duration;

use lockkeeper_lab::check::{Class, Options};
use lockkeeper_lab::history::What;

use super::story::{Hold, Story, event, hold, nemesis, story};

#[test]
fn a_killed_holder_held_until_just_before_it_was_killed() {
    let dead = Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) };
    let next = |from| {
        story(&[dead, hold(2, [2, from, 80, 81])]).and(&[nemesis(50, What::Kill, 1)]).watched()
    };
    next(50).is_clean();
    next(49).convicts(Class::Overlap);
    // What it still wrote before it was dead does not count.
    let late = story(&[hold(1, [1, 55, 0, 0]), hold(2, [2, 60, 80, 81])])
        .and(&[nemesis(50, What::Kill, 1)])
        .watched();
    late.is_clean();
    // Seen to have ended, by itself.
    story(&[dead, hold(2, [2, 50, 80, 81])])
        .and(&[nemesis(50, What::Exit, 1)])
        .watched()
        .is_clean();
    // Who ended by itself did so at some time after its last record; that it was seen later proves
    // nothing.
    story(&[dead, hold(2, [2, 49, 80, 81])])
        .and(&[nemesis(50, What::Exit, 1)])
        .watched()
        .is_clean();
    story(&[dead, hold(2, [2, 49, 80, 81])])
        .and(&[nemesis(50, What::Kill, 1), nemesis(51, What::Exit, 1)])
        .watched()
        .convicts(Class::Overlap);
    assert_eq!(next(50).judge().counts.faults, 1);
    assert_eq!(
        story(&[dead]).and(&[nemesis(50, What::Exit, 1)]).watched().judge().counts.faults,
        0
    );
}

#[test]
fn only_the_process_that_was_killed_is_dead() {
    let holds = [Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) }, hold(2, [2, 60, 80, 81])];
    story(&holds).and(&[nemesis(50, What::Kill, 7)]).watched().convicts(Class::Overlap);
    // A nemesis or a client that is dead already cannot die.
    story(&holds)
        .and(&[nemesis(50, What::Kill, u64::from(Story::NEMESIS))])
        .watched()
        .convicts(Class::Overlap);
}

#[test]
fn where_every_death_is_recorded_a_silent_holder_goes_on_holding() {
    let silent = [Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) }, hold(2, [2, 60, 80, 81])];
    story(&silent).is_clean();
    story(&silent).and(&[nemesis(1, What::FaultBegin, 0)]).watched().convicts(Class::Overlap);
    // Unwatched, its last record is the last moment at which it certainly held.
    story(&silent).and(&[event(60, 1, What::CheckCalled)]).is_clean();
    story(&silent).and(&[event(61, 1, What::CheckCalled)]).convicts(Class::Overlap);
}

#[test]
fn the_dead_may_still_be_in_the_engine() {
    let tried = |from| {
        [
            Hold { times: [from, 0, 0, 0], ..hold(9, [0; 4]).tried() }.events(),
            vec![event(from + 1, 9, What::Busy)],
        ]
        .concat()
    };
    let linger = |o: &mut Options| o.linger = Duration::from_nanos(100);
    let with = |dead: Hold, from: u64| {
        story(&[dead])
            .and(&tried(from))
            .and(&[nemesis(1_000, What::Kill, 1)])
            .options(linger)
            .watched()
    };
    let waits = Hold { times: [1, 0, 0, 0], ..hold(1, [0; 4]) };
    with(waits, 1_100).is_clean();
    with(waits, 1_101).convicts(Class::WrongBusy);
    with(waits.tried(), 1_100).is_clean();
    with(waits.tried(), 1_101).convicts(Class::WrongBusy);
    let holds = Hold { times: [1, 10, 0, 0], ..hold(1, [0; 4]) };
    with(holds, 900_000).is_clean();
    let next = hold(2, [1_500, 1_600, 1_610, 1_611]);
    story(&[holds, next])
        .and(&tried(2_000))
        .and(&[nemesis(1_000, What::Kill, 1)])
        .options(linger)
        .watched()
        .convicts(Class::WrongBusy);
    // Permits: as long as its lease, and as it lingers.
    let permits = |deadline: u64, from: u64| {
        let tries = [
            Hold { times: [from, 0, 0, 0], ..hold(9, [0; 4]).permits(1, 3).tried() }.events(),
            vec![event(from + 1, 9, What::Busy)],
        ]
        .concat();
        let held = Hold { deadline, ..holds.permits(3, 3) };
        story(&[held]).and(&tries).and(&[nemesis(1_000, What::Kill, 1)]).options(linger).watched()
    };
    permits(2_000, 2_100).is_clean();
    permits(2_000, 2_101).convicts(Class::WrongBusy);
    permits(0, 1_100).is_clean();
    permits(0, 1_101).convicts(Class::WrongBusy);
    permits(500, 1_100).is_clean();
    permits(500, 1_101).convicts(Class::WrongBusy);
    // A hold that was lost may be there until the next exclusive grant too.
    let lost = [
        Hold { times: [1, 10, 30, 0], ..hold(1, [0; 4]) }.events(),
        vec![event(20, 1, What::Lost), event(40, 1, What::ReleasedLost)],
    ]
    .concat();
    story(&[]).and(&[lost.clone(), tried(5_000)].concat()).options(linger).is_clean();
    story(&[next]).and(&[lost, tried(5_000)].concat()).options(linger).convicts(Class::WrongBusy);
}
