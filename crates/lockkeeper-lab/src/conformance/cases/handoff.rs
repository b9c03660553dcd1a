//! R9: one place a process; holds pass inside it within bounds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper::observe::{Observer, Seen};
use lockkeeper::{Ability, ClaimId, ErrorKind, Guard, Kind, Locks, Name, Ticks};

use crate::conformance::grip::Taking;
use crate::conformance::trial::{HANGS, Trial, ran_out, until, within};

/// Notes which hold each turn belonged to.
#[derive(Default)]
struct Holds(Mutex<Vec<ClaimId>>);

impl Observer for Holds {
    fn seen(&self, _: Ticks, _: Kind, _: &Name, what: &Seen) {
        if let Seen::Got { hold, .. } = what {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(*hold);
        }
    }
}

impl Holds {
    fn taken(&self) -> Vec<ClaimId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many turns each hold had, in order.
    fn runs(&self) -> Vec<usize> {
        self.taken().chunk_by(|one, next| one == next).map(<[_]>::len).collect()
    }
}

/// Many tasks of one client behind a guard, each with one short turn.
async fn queue_up(
    t: &Arc<Trial>,
    locks: &Locks,
    name: &str,
    tasks: usize,
    turn: Duration,
) -> Vec<tokio::task::JoinHandle<Instant>> {
    let behind = |t: Arc<Trial>, locks: Locks, name: String| async move {
        let guard = t.lock(&locks, &name).await.expect("every claim is granted at last");
        if !turn.is_zero() {
            tokio::time::sleep(turn).await;
        }
        drop(guard);
        Instant::now()
    };
    let mut queued = Vec::new();
    for _ in 0..tasks {
        queued.push(tokio::spawn(behind(t.clone(), locks.clone(), name.to_owned())));
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(30)).await;
    queued
}

pub(super) async fn r9_a_process_has_one_place_in_the_line(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let held = t.lock(&one, &name).await.expect("it is free");
    let queued = queue_up(&t, &two, &name, 20, Duration::ZERO).await;
    t.until_waiting(&one, Kind::Lock, &name, 1).await;
    assert!(t.shows(&one, Kind::Lock, &name, 1, 1).await, "twenty tasks, one place");
    assert!(held.release().await.is_clean());
    for task in queued {
        within(HANGS, "each gets its turn", task).await.expect("no panic");
    }
}

pub(super) async fn r9_a_hold_has_at_most_64_turns(t: Arc<Trial>) {
    let name = t.name("a");
    let holds = Arc::new(Holds::default());
    let one = t.open_with(|builder| builder.observer(holds.clone()).hand_off_time(HANGS)).await;
    let two = t.open().await;
    let held = t.lock(&one, &name).await.expect("it is free");
    let queued = queue_up(&t, &one, &name, 150, Duration::ZERO).await;
    let other = tokio::spawn(t.lock(&two, &name).into_future());
    t.until_waiting(&two, Kind::Lock, &name, 1).await;
    assert!(held.release().await.is_clean());
    let turn = within(HANGS, "the other process gets its turn", other)
        .await
        .expect("no panic")
        .expect("it is granted");
    let before = holds.taken().len();
    if t.about().can.has(Ability::Fair) {
        assert!(before <= 64, "{before} turns went before a process that stood in line");
    }
    assert!(turn.release().await.is_clean());
    for task in queued {
        within(HANGS, "each gets its turn", task).await.expect("no panic");
    }
    let runs = holds.runs();
    assert_eq!(runs.iter().sum::<usize>(), 151);
    assert!(runs.iter().all(|turns| *turns <= 64), "{runs:?}");
    assert!(runs.iter().any(|turns| *turns > 1), "holds pass: {runs:?}");
}

pub(super) async fn r9_a_hold_passes_for_at_most_its_time(t: Arc<Trial>) {
    let name = t.name("a");
    let holds = Arc::new(Holds::default());
    let one = t.open_with(|builder| builder.observer(holds.clone())).await;
    let two = t.open().await;
    let held = t.lock(&one, &name).await.expect("it is free");
    let queued = queue_up(&t, &one, &name, 40, Duration::from_millis(15)).await;
    let other = tokio::spawn(t.lock(&two, &name).into_future());
    t.until_waiting(&two, Kind::Lock, &name, 1).await;
    assert!(held.release().await.is_clean());
    let turn = within(HANGS, "the other process gets its turn", other)
        .await
        .expect("no panic")
        .expect("it is granted");
    drop(turn);
    for task in queued {
        within(HANGS, "each gets its turn", task).await.expect("no panic");
    }
    // Turns of 15 ms: a hold that passes for 50 ms has four of them, and the one that began before
    // the end.
    let runs = holds.runs();
    assert!(runs.iter().all(|turns| *turns <= 6), "{runs:?}");
}

pub(super) async fn r9_a_handed_off_turn_has_a_greater_token(t: Arc<Trial>) {
    let name = t.name("a");
    let holds = Arc::new(Holds::default());
    let locks = t.open_with(|builder| builder.observer(holds.clone()).hand_off_time(HANGS)).await;
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for _ in 0..100 {
        let (t, locks, name, tokens) = (t.clone(), locks.clone(), name.clone(), tokens.clone());
        tasks.push(tokio::spawn(async move {
            let guard = t.lock(&locks, &name).await.expect("every claim is granted at last");
            tokens.lock().expect("no panic").push(guard.token().expect("a token"));
        }));
    }
    for task in tasks {
        within(HANGS, "each gets its turn", task).await.expect("no panic");
    }
    let tokens = tokens.lock().expect("no panic").clone();
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert_eq!(tokens.len(), 100);
}

pub(super) async fn r9_without_hand_off_every_turn_is_a_hold_of_its_own(t: Arc<Trial>) {
    for by_count in [true, false] {
        let name = t.name(if by_count { "no turns" } else { "no time" });
        let holds = Arc::new(Holds::default());
        let strict = |builder: lockkeeper::Builder| {
            if by_count { builder.hand_off(0) } else { builder.hand_off_time(Duration::ZERO) }
        };
        let locks = t.open_with(|builder| strict(builder).observer(holds.clone())).await;
        let held = t.lock(&locks, &name).await.expect("it is free");
        let queued = queue_up(&t, &locks, &name, 6, Duration::ZERO).await;
        drop(held);
        for task in queued {
            within(HANGS, "each gets its turn", task).await.expect("no panic");
        }
        assert_eq!(holds.runs(), [1; 7], "no hold passes");
    }
}

/// What is seen of one hold and its turns.
#[derive(Default)]
struct Renewals {
    holds: Holds,
    waiting: AtomicUsize,
    renewed: Mutex<Vec<ClaimId>>,
}

impl Observer for Renewals {
    fn seen(&self, at: Ticks, kind: Kind, name: &Name, what: &Seen) {
        self.holds.seen(at, kind, name, what);
        match what {
            Seen::Waiting { .. } => _ = self.waiting.fetch_add(1, Ordering::SeqCst),
            Seen::Renewed { hold, .. } => {
                self.renewed.lock().unwrap_or_else(PoisonError::into_inner).push(*hold);
            }
            _ => {}
        }
    }
}

pub(super) async fn r9_turns_pass_while_the_lease_of_their_hold_is_renewed(t: Arc<Trial>) {
    let mut ttl = Duration::from_secs(2);
    // Where it ran out on a machine with much to do, once more with a longer one.
    while !turns_pass_while_it_is_renewed(&t, ttl).await {
        ttl *= 2;
        assert!(ttl < HANGS, "it is renewed");
    }
}

/// Answers whether no turn was lost because the lease ran out.
async fn turns_pass_while_it_is_renewed(t: &Arc<Trial>, ttl: Duration) -> bool {
    const TURNS: usize = 12;
    let (name, seen) = (t.name(&format!("{ttl:?}")), Arc::new(Renewals::default()));
    let one = t.open_with(|builder| builder.observer(seen.clone()).hand_off_time(HANGS)).await;
    let two = t.open().await;
    let lock = || one.mutex(&name).lock().ttl(ttl).into_future();
    let held = lock().await.expect("it is free");
    seen.waiting.store(0, Ordering::SeqCst);
    // All of them together last longer than the lease.
    let turn = |turn: Taking<Guard>, other: Locks, name: String| async move {
        let guard = turn.await.expect("every claim is granted at last");
        let (began, end) = (Instant::now(), guard.deadline());
        tokio::time::sleep(ttl / 8).await;
        let tried = other.mutex(&name).try_lock().await.expect("it can be tried");
        if guard.is_lost() {
            ran_out(guard.lost().await, end);
            return None;
        }
        assert!(tried.is_none(), "BROKEN LOCK: two holders");
        Some((began, guard.deadline()))
    };
    let turns: Vec<_> = (0..TURNS)
        .map(|_| tokio::spawn(turn(Box::pin(lock()), two.clone(), name.clone())))
        .collect();
    until("all of them wait", || async {
        held.is_lost() || seen.waiting.load(Ordering::SeqCst) == TURNS
    })
    .await;
    let mut times = vec![Some((Instant::now(), held.deadline())).filter(|_| !held.is_lost())];
    drop(held);
    for turn in turns {
        times.push(within(HANGS, "each gets its turn", turn).await.expect("no panic"));
    }
    let Some(mut times) = times.into_iter().collect::<Option<Vec<_>>>() else { return false };
    times.sort_unstable_by_key(|(began, _)| *began);
    let holds = seen.holds.taken();
    assert_eq!(holds.len(), TURNS + 1);
    for (holds, times) in holds.windows(2).zip(times.windows(2)) {
        if holds[0] != holds[1] {
            let (end, next) = (times[0].1, times[1].0);
            assert!(end.is_some_and(|end| next >= end), "a hold whose lease lasts passes");
            return false;
        }
    }
    let renewed = seen.renewed.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(renewed.contains(&holds[0]), "it lasted for longer than its lease");
    true
}

pub(super) async fn r9_fixed_leases_never_pass(t: Arc<Trial>) {
    let name = t.name("a");
    let holds = Arc::new(Holds::default());
    let locks = t.open_with(|builder| builder.observer(holds.clone())).await;
    let fixed = || locks.mutex(&name).lock().ttl(Duration::from_secs(20)).no_renew().into_future();
    let held = fixed().await.expect("it is free");
    let next = tokio::spawn(fixed());
    let last = tokio::spawn(fixed());
    tokio::time::sleep(Duration::from_millis(30)).await;
    drop(held);
    let (next, last) = (
        tokio::spawn(async move { drop(next.await.expect("no panic").expect("it is granted")) }),
        tokio::spawn(async move { drop(last.await.expect("no panic").expect("it is granted")) }),
    );
    within(HANGS, "each gets its turn", async {
        (next.await.expect("no panic"), last.await.expect("no panic"))
    })
    .await;
    assert_eq!(holds.runs(), [1, 1, 1]);
}

pub(super) async fn r9_permits_never_pass(t: Arc<Trial>) {
    let name = t.name("a");
    let holds = Arc::new(Holds::default());
    let locks = t.open_with(|builder| builder.observer(holds.clone())).await;
    let permit = || t.lasts(locks.semaphore(&name, 1).acquire(1)).into_future();
    let held = permit().await.expect("it is free");
    let next = tokio::spawn(permit());
    t.until_waiting(&locks, Kind::Semaphore, &name, 1).await;
    drop(held);
    drop(within(HANGS, "the next gets it", next).await.expect("no panic").expect("it is granted"));
    assert_eq!(holds.runs(), [1, 1]);
}

pub(super) async fn r9_readers_join_a_hold_of_their_process(t: Arc<Trial>) {
    let name = t.name("a");
    let holds = Arc::new(Holds::default());
    let (one, two) = (
        t.open_with(|builder| builder.observer(holds.clone()).hand_off_time(HANGS)).await,
        t.open().await,
    );
    let first = t.lasts(one.rwlock(&name).read()).await.expect("it is free");
    let second = t.lasts(one.rwlock(&name).read()).await.expect("it is shared");
    assert_eq!(holds.runs(), [2], "one hold for both");
    assert_eq!(first.token().ok(), second.token().ok());
    assert!(t.shown(&two, Kind::Lock, &name).await.is_none_or(|entry| entry.holders.len() == 1));
    drop(first);
    assert!(
        two.rwlock(&name).try_write().await.expect("it can be tried").is_none(),
        "one still reads"
    );
    drop(second);
    t.until_free(&two, Kind::Lock, &name, 0).await;
}

pub(super) async fn r9_a_hold_whose_statement_was_given_out_never_passes(t: Arc<Trial>) {
    let name = t.name("a");
    let holds = Arc::new(Holds::default());
    let locks = t
        .open_with(|builder| builder.observer(holds.clone()).hand_off_time(Duration::from_secs(60)))
        .await;
    let lock = || locks.mutex(&name).lock().into_future();
    let first = lock().await.expect("it is free");
    let statement = first.statement().await.expect("the lock is held");
    let token = first.token().expect("who has statements has numbers").get();
    assert_eq!(u64::try_from(statement.number()).ok(), Some(token / 64), "the hold's number");
    assert_eq!(statement.name(), name.as_bytes());
    assert!(!statement.text().is_empty() && statement.text() != statement.to_string());
    let next = tokio::spawn(lock());
    tokio::time::sleep(Duration::from_millis(30)).await;
    drop(first);
    let next =
        within(HANGS, "the next gets it", next).await.expect("no panic").expect("it is free");
    assert_eq!(holds.runs(), [1, 1], "nobody knows when the transaction ends");
    drop(next);
    if t.about.can.has(Ability::Shared) {
        let reader = locks.rwlock(&name).read().await.expect("it is free");
        let refused = reader.statement().await.err().map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::Unsupported), "readers share a number with others");
    }
}
