//! What calls of the library leave in the history: turns, conversions, losses and deadlines.

use std::time::Duration;

use lockkeeper::observe::{Observer, Seen};
use lockkeeper::{ClaimId, Clock, Kind, Mode, Owner};
use lockkeeper_lab::check::{Class, Options, check_files};
use lockkeeper_lab::history::{What, asked};

use super::{judge, kinds, recorded, recorded_on_memory, recorder_in, records};

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
    let _ = tokio::time::timeout(Duration::from_secs(120), guard.lost()).await.unwrap();
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
