use super::*;

const LOCK: LockId = LockId(7);

/// What became of a claim that was told of by these records, of one process unless they say more.
struct Run(Replay);

impl Run {
    fn new() -> Self {
        let mut replay = Replay::default();
        (0..2)
            .for_each(|file| replay.client(100 + u64::from(file), file, format!("client {file}")));
        Self(replay)
    }

    fn tell(&mut self, what: What, claim: u64) -> &mut Self {
        self.record(0, Record::about(what, LOCK, claim))
    }

    fn record(&mut self, file: u32, record: Record) -> &mut Self {
        self.0.tell(file, &Record { at: 5, ..record }, &mut []);
        self
    }

    fn life(&self, claim: u64) -> Option<Life> {
        self.0.lives(LOCK).iter().find(|(of, _)| *of == claim).map(|(_, life)| *life)
    }

    /// How many wait, hold, and change their mode.
    fn counts(&self) -> (usize, usize, usize) {
        let lives = self.0.lives(LOCK);
        (lives.waiting, lives.holding, lives.converting)
    }
}

#[test]
fn a_life_begins_with_a_call_or_a_grant_and_ends_when_that_or_the_release_is_answered() {
    use What::*;
    for refused in [Busy, TimedOut, AcquireUnknown, AcquireFailed, Cancelled] {
        let mut run = Run::new();
        assert_eq!(run.tell(AcquireCalled, 1).counts(), (1, 0, 0));
        run.tell(refused, 1);
        assert!(run.life(1).is_none() && run.counts() == (0, 0, 0), "{refused:?}");
        run.tell(Acquired, 1).tell(refused, 1);
        assert_eq!(run.counts(), (0, 1, 0), "{refused:?} is no answer to a hold");
    }
    for over in [Released, ReleasedNotOwner, ReleaseUnknown, ReleasedLost, Lost] {
        let mut run = Run::new();
        run.tell(over, 1).tell(AcquireCalled, 1).tell(over, 1);
        assert_eq!(run.counts(), (1, 0, 0), "{over:?} is no answer to an acquire");
        let stage = |run: &Run| run.life(1).map(|life| life.stage);
        run.tell(Acquired, 1);
        assert_eq!((stage(&run), run.counts()), (Some(Stage::Held), (0, 1, 0)));
        run.tell(ReleaseCalled, 1);
        assert_eq!((stage(&run), run.counts()), (Some(Stage::Releasing), (0, 1, 0)));
        assert!(run.tell(over, 1).life(1).is_none() && run.counts() == (0, 0, 0), "{over:?}");
    }
}

#[test]
fn what_was_called_is_known_of_a_hold_and_nothing_of_one_whose_call_is_not_recorded() {
    let mut run = Run::new();
    let called = Record { owner: 3, ..Record::about(What::AcquireCalled, LOCK, 1) };
    let mode = lockkeeper::Mode::Permits { count: 1, limit: 2 };
    run.record(0, called.mode(mode)).tell(What::Acquired, 1).tell(What::Acquired, 2);
    let known = |claim| run.life(claim).map(|life| (life.asked, life.owner, life.permits));
    assert_eq!((known(1), known(2)), (Some((5, 3, true)), Some((0, 0, false))));
    let tried = Record::about(What::AcquireCalled, LOCK, 4).flag(Flags::TRY);
    run.record(0, tried);
    assert_eq!(run.counts(), (0, 2, 0), "a try does not wait");
}

#[test]
fn a_renewal_moves_the_deadline_and_is_unanswered_until_its_answer_says_how_it_ended() {
    let mut run = Run::new();
    run.record(0, Record::about(What::Acquired, LOCK, 1).deadline(10));
    let told = |run: &Run| run.life(1).map(|life| (life.deadline, life.unanswered));
    for (what, deadline, after) in [
        (What::RenewCalled, 0, (10, true)),
        (What::Renewed, 20, (20, false)),
        (What::RenewUnknown, 0, (20, true)),
        (What::Converted, 30, (30, true)),
        (What::RenewLost, 0, (30, false)),
    ] {
        run.record(0, Record::about(what, LOCK, 1).deadline(deadline));
        assert_eq!(told(&run), Some(after), "{what:?}");
    }
    run.tell(What::ConvertCalled, 1);
    assert_eq!(run.counts(), (0, 1, 1));
    assert_eq!(run.tell(What::ConvertFailed, 1).counts(), (0, 1, 0));
}

#[test]
fn the_dead_count_no_more_and_what_they_said_last_is_still_known() {
    let mut run = Run::new();
    for (file, what, claim) in [
        (0, What::AcquireCalled, 1),
        (0, What::Acquired, 2),
        (1, What::AcquireCalled, 3),
        (9, What::Kill, 0),
    ] {
        run.record(file, Record::about(what, LOCK, claim).number(100));
    }
    assert_eq!(run.counts(), (1, 0, 0), "the other process lives");
    assert!([1, 2].iter().all(|claim| run.life(*claim).is_some_and(|life| life.dead)));
    assert_eq!(run.tell(What::Acquired, 1).counts(), (1, 1, 0), "it was not dead yet");
    assert_eq!(run.life(1).map(|life| (life.asked, life.dead)), Some((5, false)));
    run.record(9, Record::new(What::Exit).number(100));
    assert_eq!(run.tell(What::Lost, 2).counts(), (1, 0, 0));
    assert_eq!(run.0.files(100), [0]);
    assert_eq!(run.0.client_name(1), "client 1");
}

/// Writes down what it hears, and what it could know then.
#[derive(Default)]
struct Listens(Vec<(&'static str, bool, bool, bool)>);

impl Judge for Listens {
    fn before(&mut self, record: &Record, replay: &Replay) {
        let known = replay.lives(record.lock).iter().next().is_some();
        self.0.push(("before", replay.is_quiet(), known, false));
    }
    fn after(&mut self, told: &Told, replay: &Replay) {
        self.0.push(("after", replay.is_quiet(), told.was.is_some(), told.now.is_some()));
    }
}

#[test]
fn a_judge_hears_each_record_before_and_after_it_changed_anything() {
    let (mut replay, mut judge) = (Replay::default(), Listens::default());
    for what in [What::AcquireCalled, What::TimedOut, What::FaultBegin, What::FaultEnd] {
        replay.tell(0, &Record { at: 7, ..Record::about(what, LOCK, 1) }, &mut [&mut judge]);
    }
    let heard = [
        ("before", true, false, false),
        ("after", true, false, true),
        ("before", true, true, false),
        ("after", true, true, false),
        ("before", true, false, false),
        ("after", false, false, false),
        ("before", false, false, false),
        ("after", true, false, false),
    ];
    assert_eq!(judge.0, heard);
    assert_eq!(replay.last_fault_end, Some(7));
}
