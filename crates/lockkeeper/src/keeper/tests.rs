//! The keeper on an engine that does what a test tells it.

mod asks;
mod begun;
mod doubt;
mod logged;
mod outages;
mod schedules;
mod server;
mod several;
mod told;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::engine::{
    Answer, Attempt, Change, Claim, ClaimId, Context, Description, End, Engine, Entry, Error,
    ErrorKind, Event, Grant, HoldId, Lease, LeaseId, Line, Number, Place, Query, Released, Renewal,
    Standing, WatchId, Which,
};
use crate::observe::{Observer, Seen};
use crate::open::locks::Locks;
use crate::primitives::guard::Released as How;
use crate::words::claim::{Holder, Mode};
use crate::words::clock::{Clock, Ticks};
use crate::words::guarantee::{Ability, Class, Expiry};
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

/// Only what hangs takes longer than this.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the engine was asked, and what it is to answer.
#[derive(Default)]
struct Stub {
    context: OnceLock<Context>,
    leases: bool,
    /// They have no claim lease: no grant is pushed.
    never_pushes: bool,
    fenced: bool,
    /// The first look at an answer may be taken in the caller.
    early: bool,
    attempted: Mutex<Vec<ClaimId>>,
    /// Grants have a lease of their own of this length.
    lease: Option<Duration>,
    /// Attempts are answered when the test answers these, and not at once.
    slow_attempts: bool,
    attempting: Mutex<Vec<(ClaimId, oneshot::Sender<Attempt>)>>,
    /// Answers of attempts: granted unless they stand here.
    attempts: Mutex<VecDeque<Attempt>>,
    /// Answers of withdrawals: freed unless they stand here.
    withdrawals: Mutex<VecDeque<End>>,
    /// Releases, withdrawals and conversions are answered when the test answers these.
    slow: bool,
    /// When the caller of several gives up.
    together_until: Mutex<Option<Ticks>>,
    releasing: Mutex<Vec<(HoldId, oneshot::Sender<End>)>>,
    leaving: Mutex<Vec<oneshot::Sender<End>>>,
    converting: Mutex<Vec<(ClaimId, oneshot::Sender<Attempt>)>>,
    released: Mutex<Vec<HoldId>>,
    withdrawn: Mutex<Vec<ClaimId>>,
    rechecked: Mutex<Vec<Vec<ClaimId>>>,
    /// Re-checks are answered when the test answers these, and not at once.
    slow_rechecks: bool,
    rechecking: Mutex<Vec<oneshot::Sender<Vec<Standing>>>>,
    /// Answers of one attempt for several names; it cannot do that without.
    together: Mutex<Option<Vec<Attempt>>>,
    /// The same when the test answers this.
    together_later: Mutex<Option<oneshot::Receiver<Vec<Attempt>>>>,
    /// Answers of releases: freed unless they stand here.
    ends: Mutex<VecDeque<End>>,
    /// Renewals are answered when the test answers these, and not at once.
    slow_renewals: bool,
    renewing: Mutex<Vec<oneshot::Sender<Vec<Renewal>>>>,
    /// Answers of renewals: none unless they stand here.
    renewals: Mutex<VecDeque<Renewal>>,
}

fn granted() -> Attempt {
    Attempt::Granted(Grant { number: Number::None, lease: None })
}

fn granted_with(number: u64, hold: HoldId, ttl: Duration) -> Attempt {
    let lease = Lease { id: hold.into(), ttl, since: None, confirm: false };
    Attempt::Granted(Grant { number: Number::Ours(number), lease: Some(lease) })
}

fn gone() -> Error {
    Error::new(ErrorKind::Lost, "the hold no longer exists")
}

struct Shared(Arc<Stub>);

fn of<T>(list: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    list.lock().unwrap()
}

fn lost_reply() -> Error {
    Error::new(ErrorKind::Unknown, "the reply was lost")
}

impl Engine for Shared {
    fn open(&self, context: Context) -> Answer<crate::Result<()>> {
        assert!(self.0.context.set(context).is_ok());
        Answer::Now(Ok(()))
    }
    fn describe(&self) -> Description {
        let mut description = Description::new("stub", "stub", Class::Efficiency);
        description.server = "stub://here".to_owned();
        if self.0.leases {
            let claim_lease = (!self.0.never_pushes).then_some(Duration::from_secs(2));
            description.expiry = Expiry::PerHold { claim_lease };
        }
        (description.fenced, description.early) = (self.0.fenced, self.0.early);
        if of(&self.0.together).is_some() {
            description.can = description.can.with(&[Ability::Together]);
        }
        description
    }
    fn attempt(&self, claim: &Claim, _: Line) -> Answer<Attempt> {
        of(&self.0.attempted).push(claim.id);
        if self.0.slow_attempts {
            let (answer, told) = oneshot::channel();
            of(&self.0.attempting).push((claim.id, answer));
            return Answer::later(async move {
                told.await.unwrap_or_else(|_| Attempt::Unknown(lost_reply()))
            });
        }
        let grants = || self.0.lease.map_or_else(granted, |ttl| granted_with(1, claim.id, ttl));
        Answer::Now(of(&self.0.attempts).pop_front().unwrap_or_else(grants))
    }
    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        of(&self.0.rechecked).push(claims.to_vec());
        if self.0.slow_rechecks {
            let (answer, told) = oneshot::channel();
            of(&self.0.rechecking).push(answer);
            return Answer::later(async move { told.await.unwrap_or_default() });
        }
        Answer::Now(vec![Standing::Unknown(lost_reply()); claims.len()])
    }
    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        of(&self.0.withdrawn).push(claim);
        if self.0.slow {
            let (answer, told) = oneshot::channel();
            of(&self.0.leaving).push(answer);
            return Answer::later(async move {
                told.await.unwrap_or_else(|_| End::Unknown(lost_reply()))
            });
        }
        Answer::Now(of(&self.0.withdrawals).pop_front().unwrap_or(End::Freed))
    }
    fn convert(&self, _: HoldId, claim: &Claim) -> Answer<Attempt> {
        let (answer, told) = oneshot::channel();
        of(&self.0.converting).push((claim.id, answer));
        Answer::later(async move { told.await.unwrap_or_else(|_| Attempt::Unknown(lost_reply())) })
    }
    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        if self.0.slow_renewals {
            let (answer, told) = oneshot::channel();
            of(&self.0.renewing).push(answer);
            return Answer::later(async move { told.await.unwrap_or_default() });
        }
        let answer =
            || of(&self.0.renewals).pop_front().unwrap_or_else(|| Renewal::Unknown(lost_reply()));
        Answer::Now(leases.iter().map(|_| answer()).collect())
    }
    fn release(&self, holds: &[HoldId], _: Option<&Claim>) -> Answer<Released> {
        of(&self.0.released).extend(holds);
        if !self.0.slow {
            return Answer::Now(Released {
                ends: vec![of(&self.0.ends).pop_front().unwrap_or(End::Freed)],
                again: None,
            });
        }
        let (answer, told) = oneshot::channel();
        of(&self.0.releasing).push((holds[0], answer));
        Answer::later(async move {
            Released {
                ends: vec![told.await.unwrap_or_else(|_| End::Unknown(lost_reply()))],
                again: None,
            }
        })
    }
    fn read(&self, _: &Query) -> Answer<crate::Result<Vec<Entry>>> {
        Answer::Now(Ok(Vec::new()))
    }
    fn write(&self, _: &Change) -> Answer<crate::Result<bool>> {
        Answer::Now(Ok(false))
    }
    fn watch(&self, _: WatchId, _: &Query) -> Answer<crate::Result<()>> {
        Answer::Now(Ok(()))
    }
    fn unwatch(&self, _: WatchId) {}
    fn attempt_all(&self, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        *of(&self.0.together_until) = claims.iter().filter_map(|claim| claim.give_up).min();
        if let Some(told) = of(&self.0.together_later).take() {
            return Answer::later(async move { told.await.unwrap_or_default() });
        }
        Answer::Now(of(&self.0.together).take().unwrap_or_default())
    }
    fn close(&self) -> Answer<()> {
        Answer::Now(())
    }
}

/// A stub and its clock, which stands still.
async fn open(stub: Stub) -> (Locks, Arc<Stub>, Clock) {
    let clock = Clock::virtual_at(Duration::from_secs(1));
    let stub = Arc::new(stub);
    let locks =
        Locks::builder().clock(clock.clone()).with_engine(Shared(stub.clone())).await.unwrap();
    (locks, stub, clock)
}

async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// Moves the clock until the future is ready.
async fn as_time_goes_by<T>(
    clock: &Clock,
    mut future: std::pin::Pin<Box<impl Future<Output = T>>>,
) -> T {
    for _ in 0..1_000 {
        if let Some(done) = futures_poll(future.as_mut()) {
            return done;
        }
        clock.advance(Duration::from_millis(50));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it goes on for ever");
}

#[tokio::test]
async fn r6_close_waits_for_releases_that_were_under_way() {
    let (locks, stub, _clock) = open(Stub { slow: true, ..Stub::default() }).await;
    drop(locks.mutex("dropped").lock().await.unwrap());
    until("the release is under way", || of(&stub.releasing).len() == 1).await;
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close().await }
    });
    until("it is closed for others", || locks.keeper.check_open().is_err()).await;
    tokio::task::yield_now().await;
    assert!(!closing.is_finished(), "the release is not answered yet");
    let (_, answer) = of(&stub.releasing).remove(0);
    answer.send(End::Freed).unwrap();
    assert!(soon("it closes", closing).await.unwrap().unknown.is_empty());
}

#[tokio::test]
async fn r6_a_guard_that_heard_of_the_close_leaves_its_release_to_it() {
    let (locks, stub, _clock) = open(Stub { slow: true, ..Stub::default() }).await;
    let guard = locks.mutex("held").lock().await.unwrap();
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close().await }
    });
    assert_eq!(soon("the guard hears of it", guard.lost()).await, Lost::Closed);
    assert!(matches!(
        soon("it is released", guard.release()).await,
        How::AlreadyLost(Lost::Closed)
    ));
    until("the release is under way", || of(&stub.releasing).len() == 1).await;
    let (_, answer) = of(&stub.releasing).remove(0);
    answer.send(End::Freed).unwrap();
    assert!(
        soon("it closes", closing).await.unwrap().unknown.is_empty(),
        "its release was answered"
    );
}

#[tokio::test]
async fn r6_close_reports_after_five_seconds_what_stayed_unknown_and_leaves_nobody_waiting() {
    let (locks, stub, clock) = open(Stub { slow: true, ..Stub::default() }).await;
    let guard = locks.mutex("stuck").lock().await.unwrap();
    let releasing = tokio::spawn(guard.release());
    until("the release is under way", || of(&stub.releasing).len() == 1).await;
    let hold = of(&stub.releasing)[0].0;
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close().await }
    });
    until("it is closed for others", || locks.keeper.check_open().is_err()).await;
    clock.advance(Duration::from_millis(4_999));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!closing.is_finished());
    until("its five seconds are over", || {
        clock.advance(Duration::from_millis(1));
        closing.is_finished()
    })
    .await;
    assert_eq!(closing.await.unwrap().unknown, [hold]);
    let how = soon("whoever released hears that nothing will come", releasing).await.unwrap();
    assert!(matches!(how, How::Unknown(_)), "{how:?}");
}

#[tokio::test]
async fn r5_a_grant_that_nobody_asks_for_any_more_is_given_back() {
    let (_locks, stub, clock) = open(Stub::default()).await;
    let claim = ClaimId::fresh();
    let grant = Grant { number: Number::None, lease: None };
    stub.context.get().unwrap().events.send(Event::Granted { claim, grant });
    assert!(of(&stub.released).is_empty(), "its answer may be under way");
    clock.advance(Duration::from_secs(1));
    until("it is given back", || *of(&stub.released) == [claim]).await;
}

#[tokio::test]
async fn r2_a_hold_of_a_session_that_ended_before_its_grant_was_taken_is_told_at_once() {
    let (locks, stub, _clock) = open(Stub { leases: true, ..Stub::default() }).await;
    let session = LeaseId(7);
    stub.context
        .get()
        .unwrap()
        .events
        .send(Event::Ended { which: Which::Lease(session), why: Lost::SessionEnded });
    let lease = Lease { id: session, ttl: Duration::from_secs(30), since: None, confirm: false };
    of(&stub.attempts)
        .push_back(Attempt::Granted(Grant { number: Number::Ours(5), lease: Some(lease) }));
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(soon("it is told", guard.lost()).await, Lost::SessionEnded);
}

#[tokio::test]
async fn r5_a_place_is_left_to_the_end_also_when_nobody_keeps_its_name_and_an_earlier_timer_is_armed()
 {
    let stub = Stub::default();
    of(&stub.attempts).push_back(Attempt::InLine(Place::default()));
    of(&stub.withdrawals).push_back(End::Unknown(lost_reply()));
    let (locks, stub, clock) = open(stub).await;
    let mut waiting =
        Box::pin(locks.mutex("left").lock().timeout(Duration::from_secs(10)).into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    clock.advance(Duration::from_millis(9_900));
    drop(waiting);
    assert_eq!(of(&stub.withdrawn).len(), 1, "and its answer was lost");
    clock.advance(Duration::from_millis(250));
    until("the withdrawal is repeated", || of(&stub.withdrawn).len() == 2).await;
    until("nothing is kept", || crate::test_util::residue(&locks).names == 0).await;
}

#[tokio::test]
async fn r5_a_name_is_not_kept_until_the_end_of_a_wait_that_was_left() {
    let stub = Stub { slow: true, ..Stub::default() };
    of(&stub.attempts).push_back(Attempt::InLine(Place::default()));
    let (locks, stub, _clock) = open(stub).await;
    let mut waiting =
        Box::pin(locks.mutex("left").lock().timeout(Duration::from_secs(3_600)).into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    drop(waiting);
    assert_eq!(crate::test_util::residue(&locks).names, 1, "the engine has not heard of it yet");
    of(&stub.leaving).remove(0).send(End::Freed).unwrap();
    until("nothing is kept", || crate::test_util::residue(&locks).names == 0).await;
    assert_eq!(crate::test_util::residue(&locks).claims, 0);
}

#[tokio::test]
async fn r5_nothing_is_kept_of_a_way_back_from_writing_that_its_guard_does_not_wait_for() {
    let (locks, stub, _clock) = open(Stub::default()).await;
    let catalog = locks.rwlock("catalog");
    let mut up = catalog.upgradable().await.unwrap();
    let (writing, ()) = tokio::join!(up.upgrade(), async {
        until("the upgrade is asked for", || of(&stub.converting).len() == 1).await;
        of(&stub.converting).remove(0).1.send(granted()).unwrap();
    });
    drop(writing.unwrap());
    drop(up);
    let (_, answer) = of(&stub.converting).remove(0);
    assert_eq!(of(&stub.released).len(), 1);
    answer.send(granted()).unwrap();
    until("the claim is forgotten", || crate::test_util::residue(&locks).claims == 0).await;
    let entries = locks.keeper.all_entries();
    assert!(
        entries.len() == 1 && entries[0].state.lock().unwrap().converting.iter().next().is_none()
    );
    assert_eq!(of(&stub.released).len(), 1, "once");
}

#[tokio::test]
async fn r16_an_upgrade_that_waits_ends_with_its_turn() {
    let (locks, stub, clock) = open(Stub::default()).await;
    let catalog = locks.rwlock("catalog");
    let mut up = catalog.upgradable().hold_at_most(Duration::from_secs(2)).await.unwrap();
    let (upgraded, ()) = tokio::join!(soon("it is told", up.upgrade().into_future()), async {
        until("the upgrade is asked for", || of(&stub.converting).len() == 1).await;
        clock.advance(Duration::from_secs(2));
    });
    assert_eq!(upgraded.map(drop).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(
        *of(&stub.withdrawn),
        [of(&stub.converting)[0].0],
        "the engine hears that nobody waits for it"
    );
    assert_eq!(of(&stub.released).len(), 1);
    assert!(matches!(
        soon("it is released", up.release()).await,
        How::AlreadyLost(Lost::HeldTooLong)
    ));
}

#[tokio::test]
async fn r16_who_wants_to_write_again_when_the_turn_was_held_too_long_is_told() {
    let (locks, stub, clock) = open(Stub::default()).await;
    let catalog = locks.rwlock("catalog");
    let mut up = catalog.upgradable().hold_at_most(Duration::from_secs(2)).await.unwrap();
    let (writing, ()) = tokio::join!(up.upgrade(), async {
        until("the upgrade is asked for", || of(&stub.converting).len() == 1).await;
        of(&stub.converting).remove(0).1.send(granted()).unwrap();
    });
    drop(writing.unwrap());
    // The way back is not answered.
    assert_eq!(of(&stub.converting).len(), 1);
    clock.advance(Duration::from_secs(2));
    until("the turn is over", || up.is_lost()).await;
    let again = soon("it is told", up.upgrade().into_future()).await;
    assert_eq!(again.map(drop).unwrap_err().kind(), ErrorKind::Lost);
}

/// Looks at a future once.
fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

/// Keeps what the observer is told.
#[derive(Default)]
struct Told(Mutex<Vec<(String, Seen)>>);

impl Observer for Told {
    fn seen(&self, _: Ticks, _: Kind, name: &Name, what: &Seen) {
        of(&self.0).push((name.as_str().to_owned(), what.clone()));
    }
}

#[tokio::test]
async fn what_was_said_about_a_claim_that_is_over_hides_nothing_from_the_next() {
    let stub = Stub { slow_rechecks: true, ..Stub::default() };
    let holder = Holder { host: Some("other".into()), pid: Some(7), ..Holder::default() };
    let behind_other = Place { ahead: Some(0), holder: Some(Box::new(holder)), ask_at: None };
    of(&stub.attempts).extend([Attempt::InLine(Place::default()), Attempt::InLine(behind_other)]);
    let (locks, stub, clock) = open(stub).await;
    let mut first = Box::pin(locks.mutex("name").lock().into_future());
    assert!(futures_poll(first.as_mut()).is_none());
    clock.advance(Duration::from_secs(5));
    until("the place is re-checked", || of(&stub.rechecking).len() == 1).await;
    let claim = of(&stub.attempted)[0];
    stub.context
        .get()
        .unwrap()
        .events
        .send(Event::Granted { claim, grant: Grant { number: Number::None, lease: None } });
    assert!(soon("it is granted", first).await.unwrap().release().await.is_clean());
    let mut second =
        Box::pin(locks.mutex("name").lock().timeout(Duration::from_secs(1)).into_future());
    assert!(futures_poll(second.as_mut()).is_none());
    // The answer to what was asked about the first one.
    of(&stub.rechecking).remove(0).send(vec![Standing::Gone(gone())]).unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    clock.advance(Duration::from_secs(1));
    let error = soon("its time is over", second).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.holder().and_then(|h| h.pid)),
        (ErrorKind::TimedOut, Some(7)),
        "{error}"
    );
}

#[tokio::test]
async fn r16_the_timer_of_hold_at_most_ends_with_its_turn() {
    let (locks, _stub, clock) = open(Stub::default()).await;
    for round in 0..50 {
        let guard = locks
            .mutex(format!("name-{round}"))
            .lock()
            .hold_at_most(Duration::from_secs(3_600))
            .await
            .unwrap();
        assert!(crate::test_util::residue(&locks).timers >= 1);
        drop(guard);
    }
    assert_eq!(crate::test_util::residue(&locks).timers, 0, "nothing is kept for an hour");
    let guard = locks.mutex("stuck").lock().hold_at_most(Duration::from_secs(2)).await.unwrap();
    clock.advance(Duration::from_secs(2));
    assert_eq!(soon("the turn ends", guard.lost()).await, Lost::HeldTooLong);
    drop(guard);
    assert_eq!(crate::test_util::residue(&locks).timers, 0);
}

#[tokio::test]
async fn r13_a_hundred_thousand_tasks_of_a_process_wait_for_a_name_and_no_more() {
    let (locks, _stub, _clock) = open(Stub::default()).await;
    let mutex = locks.mutex("crowded");
    let guard = mutex.lock().await.unwrap();
    let mut crowd = Vec::with_capacity(100_000);
    for _ in 0..100_000 {
        let mut waits = Box::pin(mutex.lock().into_future());
        assert!(futures_poll(waits.as_mut()).is_none());
        crowd.push(waits);
    }
    let error = mutex.lock().await.map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("100000"), "{error}");
    drop(crowd.pop());
    let mut waits = Box::pin(mutex.lock().into_future());
    assert!(futures_poll(waits.as_mut()).is_none(), "one has left, so there is room for one");
    drop((guard, crowd, waits));
    until("nothing is left", || crate::test_util::residue(&locks).claims == 0).await;
}
