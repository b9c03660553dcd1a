//! The resource's own log: writes and reads that came too late.

use lockkeeper_lab::check::Class;
use lockkeeper_lab::history::{Flags, HoldMode, Record, What};

use super::story::{Event, event, hold, story};

/// One operation in the resource's log, client 50.
fn logged(time: u64, claim: u64, what: What, token: u64, flags: Flags) -> Event {
    let event = event(time, claim, what).with(|r| r.token(token).flag(flags));
    Event { client: 50, ..event }
}

const ACCEPTED: Flags = Flags::YES;

fn fenced() -> Flags {
    Flags::YES.and(Flags::FENCED)
}

#[test]
fn c4_a_stale_write_is_convicted_by_what_the_resource_checks() {
    let holds = [
        hold(1, [1, 10, 90_000, 90_001]).token(64).deadline(20),
        hold(2, [1, 30, 90_000, 90_001]).token(128),
    ];
    let late = |flags| {
        let (first, second) = (
            logged(40_000, 2, What::ResourceWrite, 128, flags),
            logged(50_000, 1, What::ResourceWrite, 64, flags),
        );
        story(&holds).and(&[first, second])
    };
    let (sentence, records) = late(fenced()).convicts(Class::StaleWriteAccepted);
    assert_eq!(
        sentence,
        "the resource of stock/1 accepted a write of client 1 with token 64 at +0.000049 s, after \
         one with token 128 at +0.000039 s"
    );
    assert_eq!(records, [(50, 1), (1, 1), (50, 0)]);
    late(ACCEPTED).convicts(Class::StaleWriteUnfenced);
    assert_eq!(
        (
            late(fenced()).judge().counts.stale_accepted,
            late(ACCEPTED).judge().counts.stale_accepted_unfenced
        ),
        (1, 1)
    );
    let refused = [
        logged(40, 2, What::ResourceWrite, 128, fenced()),
        logged(50, 1, What::ResourceWrite, 64, Flags::FENCED),
    ];
    story(&holds).and(&refused).is_clean();
    let counts = story(&holds).and(&refused).judge().counts;
    assert_eq!(
        (counts.stale_rejected, counts.stale_accepted, counts.stale_accepted_unfenced),
        (1, 0, 0)
    );
    // The two registers are two.
    story(&holds)
        .and(&[
            logged(40, 2, What::ResourceWrite, 128, ACCEPTED),
            logged(50, 1, What::ResourceWrite, 64, fenced()),
        ])
        .is_clean();
    // A refused operation seals nothing.
    story(&holds)
        .and(&[
            logged(40, 2, What::ResourceWrite, 128, Flags::FENCED),
            logged(50, 1, What::ResourceWrite, 64, fenced()),
        ])
        .is_clean();
}

#[test]
fn g3_reads_seal_too() {
    let read = |time, token, mode| {
        logged(time, 9, What::ResourceRead, token, fenced()).with(|r| Record { mode, ..r })
    };
    let write = |time, token| logged(time, 9, What::ResourceWrite, token, fenced());
    let judge = |events: &[Event]| story(&[]).and(events).judge().counts.stale_accepted;
    assert_eq!(judge(&[read(1, 128, HoldMode::Exclusive), write(2, 64)]), 1);
    assert_eq!(judge(&[read(1, 128, HoldMode::Shared), write(2, 64)]), 1);
    assert_eq!(judge(&[write(1, 128), read(2, 64, HoldMode::Exclusive)]), 1);
    assert_eq!(judge(&[write(1, 128), read(2, 64, HoldMode::Shared)]), 1);
    assert_eq!(judge(&[read(1, 128, HoldMode::Shared), read(2, 64, HoldMode::Shared)]), 0);
    assert_eq!(judge(&[read(1, 128, HoldMode::Exclusive), read(2, 64, HoldMode::Shared)]), 1);
    let (sentence, _) = story(&[])
        .and(&[write(1, 128), read(2, 64, HoldMode::Shared)])
        .convicts(Class::StaleWriteAccepted);
    assert!(sentence.contains("accepted a read of an unknown client with token 64"), "{sentence}");
}

#[test]
fn without_tokens_a_late_operation_is_judged_by_its_hold() {
    let at = |time, flags| {
        story(&[hold(1, [1, 10, 0, 0]).deadline(50_000)]).and(&[
            logged(time, 1, What::ResourceWrite, 0, flags),
            event(99_000, 1, What::CheckCalled),
        ])
    };
    at(50_000, ACCEPTED).is_clean();
    let (sentence, records) = at(60_000, ACCEPTED).convicts(Class::LateEffect);
    assert_eq!(
        sentence,
        "the resource of stock/1 accepted a write of client 1 at +0.000059 s, after its hold had \
         ended"
    );
    assert_eq!(records, [(50, 0), (1, 1)]);
    at(60_000, Flags::NONE).is_clean();
    at(60_000, fenced()).is_clean();
    // A renewal under way may have moved the deadline; a claim that nobody knows cannot be judged.
    at(60_000, ACCEPTED).and(&[event(40_000, 1, What::RenewCalled)]).is_clean();
    story(&[]).and(&[logged(60, 1, What::ResourceWrite, 0, ACCEPTED)]).is_clean();
    // From the call of the release on.
    story(&[hold(1, [1, 10, 20, 40])])
        .and(&[logged(21, 1, What::ResourceRead, 0, ACCEPTED)])
        .convicts(Class::LateEffect);
}

#[test]
fn c4_a_write_made_from_a_replaced_version_is_a_lost_update() {
    let write = |seen, version, flags| {
        logged(20_000, 1, What::ResourceWrite, 0, flags).with(|r| r.number(version).deadline(seen))
    };
    let with = |event| story(&[hold(1, [1, 10, 90_000, 90_001])]).and(&[event]);
    with(write(5, 5, ACCEPTED)).is_clean();
    let (sentence, records) = with(write(4, 5, ACCEPTED)).convicts(Class::LostUpdate);
    assert_eq!(
        sentence,
        "the resource of stock/1 accepted a write of client 1 at +0.000019 s that was made from \
         version 4, and replaced version 5"
    );
    assert_eq!(records, [(50, 0), (1, 1)]);
    // Where tokens are checked that is no late client's fault.
    let checked = |token| with(write(4, 5, fenced()).with(|r| r.token(token)));
    checked(64).convicts(Class::LostUpdateFenced);
    checked(0).convicts(Class::LostUpdate);
    with(write(4, 5, Flags::NONE)).is_clean();
    with(logged(20, 1, What::ResourceRead, 0, ACCEPTED).with(|r| r.number(5).deadline(4)))
        .is_clean();
}
