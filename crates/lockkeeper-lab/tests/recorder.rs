//! The library, recorded by its observer and judged: what happened is in the history, and it is
//! clean.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics"
)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use lockkeeper::observe::{Observer, Seen};
use lockkeeper::{ClaimId, Clock, Kind, Locks, Lost, Mode, Name, Owner, Ticks, Token};
use lockkeeper_lab::check::{Class, Options, Report, check_files};
use lockkeeper_lab::history::{
    Flags, Reader, Record, Recorder, What, Writer, WriterOptions, asked,
};

async fn recorded(path: &Path, url: &str) -> (Locks, Writer) {
    let writer = Writer::create(path, WriterOptions::default()).unwrap();
    let locks =
        Locks::builder().observer(Arc::new(Recorder::new(writer.clone()))).open(url).await.unwrap();
    (locks, writer)
}

/// The only process on `memory:`, the directory of its history first.
async fn recorded_on_memory() -> (tempfile::TempDir, PathBuf, Locks, Writer) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let (locks, writer) = recorded(&path, "memory:").await;
    (dir, path, locks, writer)
}

/// A recorder without a library, and the name that it is told of.
fn recorder_in(dir: &Path) -> (PathBuf, Writer, Recorder, Name) {
    let path = dir.join("a.lkh");
    let writer = Writer::create(&path, WriterOptions::default()).unwrap();
    (path, writer.clone(), Recorder::new(writer), Name::new("stock").unwrap())
}

fn judge(path: &Path) -> Report {
    let report = check_files(&[path], Options::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.violations);
    assert_eq!((report.counts.strangers, report.counts.foreign), (0, 0));
    report
}

fn records(path: &Path) -> Vec<Record> {
    let mut reader = Reader::open(path).unwrap();
    let mut all = Vec::new();
    while let Some((_, record)) = reader.next().unwrap() {
        all.push(record);
    }
    all
}

fn kinds(path: &Path) -> Vec<&'static str> {
    records(path).iter().map(|r| r.what.as_str()).filter(|what| *what != "name").collect()
}

#[tokio::test]
async fn a_turn_is_recorded_from_its_call_to_the_answer_of_its_release() {
    let (_dir, path, locks, writer) = recorded_on_memory().await;
    let stock = locks.mutex("stock/1");
    let guard = stock.lock().await.unwrap();
    let token = guard.token().unwrap();
    assert!(stock.try_lock().await.unwrap().is_none());
    assert!(stock.lock().timeout(Duration::from_millis(1)).await.is_err());
    let _ = guard.release().await;
    let _ = locks.close().await;
    writer.finish().unwrap();
    assert_eq!(
        kinds(&path),
        ["acq_inv", "acq_ok", "acq_inv", "acq_busy", "acq_inv", "acq_timeout", "rel_inv", "rel_ok"]
    );
    let all = records(&path);
    assert_eq!(all.iter().find(|r| r.what == What::Acquired).map(|r| r.token), Some(token.get()));
    let report = judge(&path);
    assert_eq!((report.counts.holds, report.counts.busy, report.counts.timed_out), (1, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_few_names_leave_a_clean_history() {
    let (_dir, path, locks, writer) = recorded_on_memory().await;
    let mut tasks = Vec::new();
    for task in 0..24u64 {
        let locks = locks.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..40u64 {
                let name = format!("name {}", (task + round) % 3);
                match (task + round) % 8 {
                    0 => drop(locks.rwlock(&name).read().await.unwrap()),
                    1 => drop(locks.rwlock(&name).write().await.unwrap()),
                    2 => {
                        let mut up = locks.rwlock(&name).upgradable().await.unwrap();
                        let writing = up.upgrade().await.unwrap();
                        tokio::task::yield_now().await;
                        drop(writing);
                        tokio::task::yield_now().await;
                    }
                    3 => {
                        let _ = locks.mutex(&name).try_lock().await.unwrap();
                    }
                    4 => {
                        let me = Owner::new();
                        let outer = locks.mutex(&name).lock().owner(&me).await.unwrap();
                        let inner = locks.mutex(&name).lock().owner(&me).await.unwrap();
                        drop(outer);
                        drop(inner);
                    }
                    5 => {
                        let _ = locks.mutex(&name).lock().timeout(Duration::from_micros(200)).await;
                    }
                    6 => drop(
                        locks.semaphore(&name, 3).acquire(1 + (task % 3) as u16).await.unwrap(),
                    ),
                    _ => {
                        let guard = locks.mutex(&name).lock().await.unwrap();
                        tokio::task::yield_now().await;
                        let _ = guard.release().await;
                    }
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let _ = locks.close().await;
    writer.finish().unwrap();
    let report = judge(&path);
    assert!(report.counts.holds > 700 && report.counts.handed > 50, "{:?}", report.counts);
    // Whatever was called was answered, so that a long recording needs memory for open claims only.
    let count = |what: &[What]| records(&path).iter().filter(|r| what.contains(&r.what)).count();
    let ends = [
        What::Acquired,
        What::Busy,
        What::TimedOut,
        What::AcquireUnknown,
        What::AcquireFailed,
        What::Cancelled,
    ];
    assert_eq!(count(&[What::AcquireCalled]), count(&ends));
    assert_eq!(count(&[What::ReleaseCalled]), count(&[What::Released]));
    assert_eq!(count(&[What::ConvertCalled]), count(&[What::Converted]));
    assert_eq!(count(&[What::Acquired]), count(&[What::ReleaseCalled]));
}

#[tokio::test]
async fn a_conversion_is_recorded_with_both_tokens() {
    let (_dir, path, locks, writer) = recorded_on_memory().await;
    let mut up = locks.rwlock("catalog").upgradable().await.unwrap();
    drop(up.upgrade().await.unwrap());
    drop(up);
    let _ = locks.close().await;
    writer.finish().unwrap();
    assert_eq!(
        kinds(&path),
        [
            "acq_inv",
            "acq_ok",
            "convert_inv",
            "convert_ok",
            "convert_inv",
            "convert_ok",
            "rel_inv",
            "rel_ok"
        ]
    );
    let modes: Vec<_> = records(&path)
        .iter()
        .filter(|r| r.what == What::Converted)
        .map(|r| r.mode.as_str())
        .collect();
    assert_eq!(modes, ["exclusive", "upgradable"]);
    judge(&path);
}

#[tokio::test]
async fn a_loss_is_recorded_with_its_reason_and_ends_the_claim() {
    let (_dir, path, locks, writer) = recorded_on_memory().await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    assert!(locks.force_release(Kind::Lock, "stock").await.unwrap());
    let _ = tokio::time::timeout(Duration::from_secs(30), guard.lost()).await.unwrap();
    drop(guard);
    let _ = locks.close().await;
    writer.finish().unwrap();
    let lost: Vec<_> =
        records(&path).into_iter().filter(|r| r.what == What::Lost).map(|r| r.number).collect();
    assert_eq!(lost, [2], "taken away");
    let report = judge(&path);
    assert_eq!(report.counts.lost, 1);
}

#[tokio::test]
async fn a_caller_that_leaves_is_recorded() {
    let (_dir, path, locks, writer) = recorded_on_memory().await;
    let guard = locks.mutex("stock").lock().await.unwrap();
    let waits =
        tokio::time::timeout(Duration::from_millis(5), locks.mutex("stock").lock().into_future())
            .await;
    assert!(waits.is_err());
    drop(guard);
    let _ = locks.close().await;
    writer.finish().unwrap();
    assert_eq!(
        kinds(&path),
        ["acq_inv", "acq_ok", "acq_inv", "acq_cancelled", "rel_inv", "rel_ok"]
    );
    judge(&path);
}

/// Two processes would have no lock in common on `memory:`; their histories together must say so.
#[tokio::test]
async fn two_locks_that_share_nothing_are_convicted_together() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.lkh"), dir.path().join("b.lkh"));
    let (first, first_writer) = recorded(&a, "memory:").await;
    let (second, second_writer) = recorded(&b, "memory:").await;
    let one = first.mutex("stock").lock().await.unwrap();
    let two = second.mutex("stock").lock().await.unwrap();
    drop((one, two));
    let _ = first.close().await;
    let _ = second.close().await;
    first_writer.finish().unwrap();
    second_writer.finish().unwrap();
    let report = check_files(&[dir.path()], Options::default()).unwrap();
    assert_eq!(report.count(Class::Overlap), 1, "{:?}", report.violations);
    assert!(report.violations.iter().any(|v| v.class == Class::Overlap && v.name == "stock"));
}

/// The clock of deadlines may run ahead of the history's; a deadline is written down on the
/// history's.
#[test]
fn deadlines_are_on_the_clock_of_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let (path, writer, recorder, name) = recorder_in(dir.path());
    let ahead = Duration::from_secs(100);
    let got = |claim: u64, at: lockkeeper::Ticks, ttl| {
        let (token, deadline) = (None, Some(at.plus(ttl)));
        let hold = ClaimId(claim.into());
        recorder.seen(
            at,
            Kind::Lock,
            &name,
            &Seen::Got { claim, hold, mode: Mode::Exclusive, token, deadline },
        );
    };
    let clock = Clock::real();
    got(1, clock.now(), Duration::from_secs(30));
    got(2, clock.now().plus(ahead), Duration::from_secs(30));
    recorder.seen(
        clock.now().plus(ahead),
        Kind::Lock,
        &name,
        &Seen::Renewed { hold: ClaimId(2), deadline: clock.now().plus(ahead * 2) },
    );
    writer.finish().unwrap();
    let all: Vec<_> =
        records(&path).into_iter().filter(|r| r.deadline != 0 && r.what != What::Name).collect();
    let left: Vec<_> =
        all.iter().map(|r| (r.what, (r.deadline - r.at).div_ceil(1_000_000_000))).collect();
    assert_eq!(left, [(What::Acquired, 30), (What::Acquired, 30), (What::Renewed, 100)]);
}

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

#[test]
fn holds_that_ended_are_remembered_for_a_while_and_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let (path, writer, recorder, name) = recorder_in(dir.path());
    let clock = Clock::real();
    let tell = |seen| recorder.seen(clock.now(), Kind::Lock, &name, &seen);
    for claim in 1..=1_026_u64 {
        let hold = ClaimId(claim.into());
        tell(Seen::Asked { claim, place: hold, mode: Mode::Exclusive, trying: false });
        tell(Seen::Got { claim, hold, mode: Mode::Exclusive, token: None, deadline: None });
        tell(Seen::Releasing { claim, hold });
        tell(Seen::Released { hold, end: "freed" });
    }
    let written = || records(&path).iter().filter(|r| r.what == What::RenewCalled).count();
    tell(Seen::Renewing { hold: ClaimId(2) });
    tell(Seen::Renewing { hold: ClaimId(3) });
    tell(Seen::Renewing { hold: ClaimId(1_026) });
    writer.finish().unwrap();
    assert_eq!(written(), 2, "the third of them and the last, and not the second");
}

#[tokio::test]
async fn an_acquire_says_under_which_claim_it_is_recorded_and_for_which_owner() {
    let (_dir, path, locks, writer) = recorded_on_memory().await;
    let (stock, me) = (locks.mutex("stock"), Owner::new());
    let (outer, claim) = asked(42, stock.lock().owner(&me)).await;
    let outer = outer.unwrap();
    // Entered again: nothing is asked for.
    let (inner, none) = asked(42, stock.lock().owner(&me)).await;
    drop(inner.unwrap());
    let (busy, refused) = asked(0, stock.try_lock()).await;
    assert!(busy.unwrap().is_none());
    // One waits while another asks in the same thread; each has its own.
    let waits = async { asked(7, stock.lock()).await };
    let asks = async {
        let (read, claim) = asked(8, locks.rwlock("catalog").read()).await;
        drop((read.unwrap(), outer));
        claim
    };
    let ((waited, second), other) = tokio::join!(waits, asks);
    drop(waited.unwrap());
    let _ = locks.close().await;
    writer.finish().unwrap();
    let called: Vec<_> = records(&path)
        .into_iter()
        .filter(|r| r.what == What::AcquireCalled)
        .map(|r| (r.claim, r.owner))
        .collect();
    assert_eq!(called, [(claim, 42), (refused, 0), (second, 7), (other, 8)]);
    assert!(none == 0 && called.iter().all(|(claim, _)| *claim != 0));
    judge(&path);
}

/// It asks, and waits: the engine's answer is there at once.
async fn settled<F: Future>(waiting: &mut std::pin::Pin<Box<F>>) {
    std::future::poll_fn(|context| {
        assert!(waiting.as_mut().poll(context).is_pending(), "the lock is held by another");
        std::task::Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn a_place_in_line_is_recorded_once_and_whoever_takes_it_over_has_overtaken_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b", "c"].map(|name| dir.path().join(format!("{name}.lkh")));
    let [(a, first), (b, second), (c, third)] = [
        recorded(&paths[0], "memory:places").await,
        recorded(&paths[1], "memory:places").await,
        recorded(&paths[2], "memory:places").await,
    ];
    let held = a.mutex("n").lock().await.unwrap();
    let mut leaves = Box::pin(b.mutex("n").lock().into_future());
    settled(&mut leaves).await;
    let mut waits = Box::pin(c.mutex("n").lock().into_future());
    settled(&mut waits).await;
    // Called after the other's place was confirmed, and at an older place of its own process.
    let mut takes_over = Box::pin(b.mutex("n").lock().into_future());
    settled(&mut takes_over).await;
    drop(leaves);
    drop(held);
    drop(takes_over.await.unwrap());
    drop(waits.await.unwrap());
    for (locks, writer) in [(a, first), (b, second), (c, third)] {
        let _ = locks.close().await;
        writer.finish().unwrap();
    }
    assert_eq!(kinds(&paths[0]), ["acq_inv", "acq_ok", "rel_inv", "rel_ok"]);
    assert_eq!(
        kinds(&paths[1]),
        ["acq_inv", "enq_ok", "acq_inv", "acq_cancelled", "acq_ok", "rel_inv", "rel_ok"]
    );
    assert_eq!(kinds(&paths[2]), ["acq_inv", "enq_ok", "acq_ok", "rel_inv", "rel_ok"]);
    let handed = |path| {
        records(path).iter().find(|r| r.what == What::Acquired).unwrap().flags.has(Flags::HANDED)
    };
    assert_eq!([handed(&paths[0]), handed(&paths[1]), handed(&paths[2])], [false, true, false]);
    let report = check_files(&paths, Options::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.violations);
}

#[tokio::test]
async fn no_place_is_recorded_where_nobody_keeps_an_order() {
    let dir = tempfile::tempdir().unwrap();
    let (paths, url) = (
        ["a", "b"].map(|name| dir.path().join(format!("{name}.lkh"))),
        format!("file://{}", dir.path().display()),
    );
    let (a, first) = recorded(&paths[0], &url).await;
    let (b, second) = recorded(&paths[1], &url).await;
    let held = a.mutex("n").lock().await.unwrap();
    let mut waits = Box::pin(b.mutex("n").lock().into_future());
    settled(&mut waits).await;
    drop(held);
    drop(waits.await.unwrap());
    for (locks, writer) in [(a, first), (b, second)] {
        let _ = locks.close().await;
        writer.finish().unwrap();
    }
    assert_eq!(kinds(&paths[1]), ["acq_inv", "acq_ok", "rel_inv", "rel_ok"]);
}

/// Hears of a turn only after its lease was renewed, as on a machine whose processors are taken.
struct Slow {
    recorder: Recorder,
    renewed: Mutex<bool>,
    changed: Condvar,
}

impl Observer for Slow {
    fn seen(&self, at: Ticks, kind: Kind, name: &Name, what: &Seen) {
        if matches!(what, Seen::Got { .. }) {
            *self.renewed.lock().unwrap() = false;
            let renewed = self.renewed.lock().unwrap();
            // The name is locked meanwhile, and after a second the keeper wants it.
            drop(
                self.changed
                    .wait_timeout_while(renewed, Duration::from_millis(900), |renewed| !*renewed)
                    .unwrap(),
            );
        }
        self.recorder.seen(at, kind, name, what);
        if matches!(what, Seen::Renewed { .. }) {
            *self.renewed.lock().unwrap() = true;
            self.changed.notify_all();
        }
    }
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_is_answered_before_its_turn_is_recorded_is_recorded_after_it() {
    let server = lockkeeper_lab::engines::redis::server::RedisServer::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let writer = Writer::create(&path, WriterOptions::default()).unwrap();
    let slow = Arc::new(Slow {
        recorder: Recorder::new(writer.clone()),
        renewed: Mutex::new(false),
        changed: Condvar::new(),
    });
    let locks = Locks::builder().observer(slow.clone()).open(&server.url()).await.unwrap();
    for round in 0.. {
        assert!(round < 20, "no renewal came in time, again and again");
        let guard = locks
            .mutex(format!("a/{round}"))
            .lock()
            .ttl(Duration::from_millis(1_200))
            .await
            .unwrap();
        let in_time = *slow.renewed.lock().unwrap();
        let so_far = records(&path);
        let _ = guard.release().await;
        if in_time {
            let at = so_far.iter().rposition(|r| r.what == What::Acquired).unwrap();
            let renewed = so_far
                .get(at + 1)
                .filter(|r| r.what == What::Renewed && r.claim == so_far[at].claim);
            assert!(renewed.is_some_and(|r| r.deadline > so_far[at].deadline), "{so_far:#?}");
            break;
        }
    }
    let _ = locks.close().await;
    writer.finish().unwrap();
    judge(&path);
}
