use std::time::Duration;

use super::Memory;
use crate::engine::{
    Answer, Attempt, ClaimId, Context, End, Engine, ErrorKind, EventSink, Kind, Line, Name, Spawner,
};
use crate::words::claim::{Claim, Identity, Mode};
use crate::{Clock, engine::Query};

fn now<T>(answer: Answer<T>) -> T {
    match answer {
        Answer::Now(value) => value,
        Answer::Later(_) => panic!("memory answers at once"),
    }
}

#[test]
fn r13_a_name_has_16384_places_and_no_more() {
    let who = Identity::of_test("here");
    let memory = Memory::private();
    let context = Context {
        clock: Clock::virtual_at(Duration::from_secs(1)),
        events: EventSink::new(|_| ()),
        spawner: Spawner::new(|_| ()),
        who: who.clone(),
    };
    now(memory.open(context)).unwrap();
    let name = Name::new("crowded").unwrap();
    let claim = || Claim::of_test("crowded", Mode::Exclusive, who.clone());
    assert!(matches!(now(memory.attempt(&claim(), Line::Join)), Attempt::Granted(_)));
    let waiting: Vec<ClaimId> = (0..16_384)
        .map(|_| {
            let claim = claim();
            assert!(matches!(now(memory.attempt(&claim, Line::Join)), Attempt::InLine(_)));
            claim.id
        })
        .collect();
    let Attempt::Failed(error) = now(memory.attempt(&claim(), Line::Join)) else {
        panic!("a place more than there are")
    };
    assert!(error.kind() == ErrorKind::Refused && error.message().contains("16384"), "{error}");
    let entry = now(memory.read(&Query::One(Kind::Lock, name.clone()))).unwrap().remove(0);
    assert_eq!(entry.waiters.len(), 16_384, "who was refused left nothing");
    assert!(matches!(now(memory.withdraw(waiting[7])), End::Freed));
    assert!(
        matches!(now(memory.attempt(&claim(), Line::Join)), Attempt::InLine(_)),
        "one has left, so there is room for one"
    );
}
