//! A client of the shipped library: tasks that acquire, touch the resource, check, release,
//! abandon, and write down everything.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{
    Ability, ErrorKind, Guard, Kind, Locks, Mode, Owner, Released, UpgradableGuard, WriteGuard,
};

use super::Random;
use super::client::Failure;
use super::orders::{Ended, Orders, fresh_claim};
use super::resource::{Access, Ask, Versions};
use crate::history::{Flags, LockId, Record, Recorder, What, Writer, WriterOptions, asked};

/// How many permits the semaphores have.
const PERMITS: u16 = 3;

/// How long one who waits may still get it once the work is to end.
const AFTER_THE_END: Duration = Duration::from_secs(3);

/// One of so many writes is on its way until after its turn, for so long at most.
const HANGS: u64 = 50;
const HANGS_FOR: Duration = Duration::from_millis(50);

/// A task stays for longer than a lease once in so many leases, on the average. By the clock and
/// not by turns: soon everybody waits for it, and a fast engine would stand still for most of the
/// time.
const STAYS_EVERY: u32 = 150;
/// Of each client one does within so many, so that leases are renewed in brief runs, too.
const FIRST_STAYS: u32 = 8;

/// The longest after a loss that its holder writes all the same.
const LATE_MAX: Duration = Duration::from_secs(5);

/// Runs until it is told to end.
pub(super) fn run(orders: Orders, ended: Ended) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::other)?;
    runtime.block_on(work(orders, ended))
}

async fn work(orders: Orders, ended: Ended) -> Result<(), Failure> {
    let options = WriterOptions { label: orders.label.clone(), ..WriterOptions::default() };
    let writer = Writer::create(&orders.history, options).map_err(Failure::no_room)?;
    let Some(locks) = open(&orders.url, &writer, &ended).await.map_err(Failure::other)? else {
        return Ok(());
    };
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..orders.tasks {
        let access = Access::open(&orders.socket)
            .await
            .map_err(|e| Failure::no_room(format!("the resource: {e}")))?;
        let worker = Worker {
            locks: locks.clone(),
            writer: writer.clone(),
            access,
            random: Random::new(orders.seed, u64::from(number) + 1),
            names: orders.names,
            upgrades: locks.describe().can.has(Ability::Upgrade),
            shares: locks.describe().can.has(Ability::Shared),
            permits: locks.describe().can.has(Ability::Permits),
            recovery: orders.recovery,
            first_stay: if number == 0 { FIRST_STAYS } else { 2 * STAYS_EVERY },
            stays: None,
            me: Owner::new(),
            me_number: fresh_claim(),
            ended: ended.clone(),
            socket: orders.socket.clone(),
            last: None,
            lost: false,
            hangs: false,
        };
        tasks.spawn(worker.run());
    }
    // Whoever panics ends this client at once, and not when it is told to.
    while let Some(done) = tasks.join_next().await {
        done.map_err(Failure::other)?;
    }
    let _ = locks.close().await;
    writer.finish().map_err(Failure::no_room).map(|_| ())
}

/// A server may be down at the very moment when a client is started, and stay down until it is to
/// end.
async fn open(url: &str, writer: &Writer, ended: &Ended) -> lockkeeper::Result<Option<Locks>> {
    while !ended.is_set() {
        match Locks::builder().observer(Arc::new(Recorder::new(writer.clone()))).open(url).await {
            Err(error) if error.is_temporary() => {
                tokio::time::sleep(Duration::from_millis(100)).await
            }
            opened => return opened.map(Some),
        }
    }
    Ok(None)
}

/// When a lease ends, 0 for never. A pause between the clocks would make it later than it is, or
/// too early: then it is read again.
fn deadline(remaining: impl Fn() -> Option<Duration>) -> u64 {
    loop {
        let now = Writer::now();
        let Some(left) = remaining() else { return 0 };
        if Writer::now() - now < 1_000_000 {
            return now.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX / 2));
        }
    }
}

struct Worker {
    locks: Locks,
    writer: Writer,
    access: Access,
    random: Random,
    names: u32,
    /// Whether there is an upgradable mode.
    upgrades: bool,
    /// Whether there are readers, and whether there are permits.
    shares: bool,
    permits: bool,
    /// T: how long a dead holder's lease lasts; zero where there are none.
    recovery: Duration,
    /// Within how many leases it stays for the first time.
    first_stay: u32,
    /// When it stays for longer than a lease the next time; unknown until it has held one.
    stays: Option<Instant>,
    me: Owner,
    me_number: u64,
    ended: Ended,
    /// Where the resource listens.
    socket: PathBuf,
    // Of the turn under way: the token and the version with which the writer was admitted last,
    // whether it was told that its hold is lost, and whether its write is still on its way.
    last: Option<(u64, u64)>,
    lost: bool,
    hangs: bool,
}

/// What is done with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Alone.
    Alone,
    /// Alone, and entered again by its owner.
    Again,
    /// Alone, and then as one of the readers.
    Down,
    /// As a reader.
    Read,
    /// As the reader that becomes the writer, and a reader again.
    Up,
    /// So many permits.
    Permits(u16),
}

impl Way {
    /// What is asked for. Permits have names of their own: some layouts keep a lock and a semaphore
    /// of one name in one key.
    fn name(self, number: u64) -> String {
        let of = if let Self::Permits(_) = self { "permits/" } else { "" };
        format!("torture/{of}{number}")
    }
}

/// A guard of some kind.
enum Grip {
    Plain(Guard),
    Writer(WriteGuard),
    Upgradable(UpgradableGuard),
}

impl std::ops::Deref for Grip {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        match self {
            Self::Plain(guard) => guard,
            Self::Writer(guard) => guard,
            Self::Upgradable(guard) => guard,
        }
    }
}

struct Turn {
    name: String,
    way: Way,
    /// As the recorder numbers it.
    claim: u64,
    /// When its lease ends, as it was recorded last.
    until: AtomicU64,
}

impl Worker {
    async fn run(mut self) {
        while !self.ended.is_set() {
            self.one().await;
        }
    }

    /// The recorder writes down what the library does; this is for what only its user sees.
    fn note(&self, turn: &Turn, what: What, change: impl FnOnce(Record) -> Record) {
        self.writer.write_for(
            Kind::Lock,
            &turn.name,
            change(Record::about(what, LockId::NONE, turn.claim)),
        );
    }

    fn way(&mut self) -> Way {
        match self.random.below(20) {
            0..=9 => Way::Alone,
            10 => Way::Again,
            11 if self.upgrades => Way::Down,
            12 if self.upgrades => Way::Up,
            11..=15 if self.shares => Way::Read,
            16.. if self.permits => {
                Way::Permits(1 + u16::try_from(self.random.below(2)).unwrap_or(0))
            }
            // What the engine cannot do is not asked of it.
            _ => Way::Alone,
        }
    }

    async fn one(&mut self) {
        let number = self.random.below(u64::from(self.names));
        let way = self.way();
        let mut turn = Turn { name: way.name(number), way, claim: 0, until: AtomicU64::new(0) };
        let tries = self.random.below(8) == 0;
        // Nobody knows how long the place of one who gave up stays. On every other name all are
        // patient, so that a refusal can be judged.
        let gives_up = self.random.below(10) == 0 && (number % 2 == 1 || self.names == 1);
        let short = self.random.between(Duration::ZERO, Duration::from_millis(20));
        let leaves = gives_up && self.random.below(2) == 0;
        let patience = if gives_up && !leaves { short } else { Duration::from_secs(60) };
        let acquiring = self.acquire(&turn, tries, patience);
        let acquired = if leaves {
            tokio::time::timeout(short, acquiring).await
        } else {
            until_the_end(&self.ended, acquiring).await
        };
        match acquired {
            Ok((Ok(Some(grip)), claim)) => {
                turn.claim = claim;
                (self.last, self.lost, self.hangs) = (None, false, false);
                self.hold(&turn, grip).await;
                self.write_late(turn);
            }
            Ok((Ok(None), _)) => tokio::time::sleep(Duration::from_millis(1)).await,
            Ok((Err(error), _)) if error.kind() != ErrorKind::TimedOut => {
                tokio::time::sleep(Duration::from_millis(20)).await
            }
            // It gave up, or left.
            Ok((Err(_), _)) | Err(_) => {}
        }
    }

    /// The guard, and the number of its claim.
    async fn acquire(&self, turn: &Turn, tries: bool, patience: Duration) -> Acquired {
        let (mutex, lock) = (self.locks.mutex(&turn.name), self.locks.rwlock(&turn.name));
        match turn.way {
            Way::Alone if tries => tried(mutex.try_lock(), Grip::Plain).await,
            Way::Alone => waited(0, mutex.lock().timeout(patience), Grip::Plain).await,
            Way::Again => {
                waited(self.me_number, mutex.lock().owner(&self.me).timeout(patience), Grip::Plain)
                    .await
            }
            Way::Down if tries => tried(lock.try_write(), Grip::Writer).await,
            Way::Down => waited(0, lock.write().timeout(patience), Grip::Writer).await,
            Way::Read if tries => tried(lock.try_read(), Grip::Plain).await,
            Way::Read => waited(0, lock.read().timeout(patience), Grip::Plain).await,
            Way::Up => waited(0, lock.upgradable().timeout(patience), Grip::Upgradable).await,
            Way::Permits(count) if tries => {
                tried(self.locks.semaphore(&turn.name, PERMITS).try_acquire(count), Grip::Plain)
                    .await
            }
            Way::Permits(count) => {
                waited(
                    0,
                    self.locks.semaphore(&turn.name, PERMITS).acquire(count).timeout(patience),
                    Grip::Plain,
                )
                .await
            }
        }
    }

    async fn hold(&mut self, turn: &Turn, grip: Grip) {
        turn.until.store(deadline(|| grip.remaining()), Ordering::Relaxed);
        if let Way::Permits(_) = turn.way {
            self.stay(turn, &grip).await;
            return self.end(turn, grip).await;
        }
        let exclusive = matches!(turn.way, Way::Alone | Way::Again | Way::Down);
        let read = self.touch(turn, &grip, exclusive).await;
        self.stay(turn, &grip).await;
        match (turn.way, grip) {
            (Way::Up, Grip::Upgradable(mut guard)) => {
                if let (Ok(writing), Some(read)) =
                    (guard.upgrade().timeout(Duration::from_secs(5)).await, read)
                {
                    let token = token(&writing);
                    // The reader's token may have been refused, so that nothing was read; the
                    // writer's is a newer one.
                    if read.0.is_some() && self.check(turn, &writing) {
                        self.effect(turn, true, token, Some(read)).await;
                    }
                }
                self.end(turn, Grip::Upgradable(guard)).await;
            }
            (Way::Down, Grip::Writer(guard)) => {
                // One that fails gives the lock back.
                if let Ok(guard) = guard.downgrade().await {
                    let token = token(&guard);
                    if self.check(turn, &guard) {
                        self.effect(turn, false, token, None).await;
                    }
                    self.end(turn, Grip::Plain(guard)).await;
                }
            }
            (Way::Again, grip) => {
                self.enter_again(turn).await;
                self.end(turn, grip).await;
            }
            (_, grip) => self.end(turn, grip).await,
        }
    }

    /// Whether it is time to stay for longer than a lease, which lasts this long.
    fn is_to_stay(&mut self, lease: Duration) -> bool {
        let now = Instant::now();
        let most = match self.stays {
            _ if lease.is_zero() => return false,
            Some(at) if now < at => return false,
            Some(_) => 2 * STAYS_EVERY,
            None => self.first_stay,
        };
        let known = self.stays.is_some();
        self.stays = Some(now + self.random.between(Duration::ZERO, most * lease));
        known
    }

    /// Some stay for longer: a few until their lease was renewed.
    async fn stay(&mut self, turn: &Turn, guard: &Guard) {
        // T may be several leases, where a failover comes first: everybody would wait for it.
        let lease = guard.held().lease_ttl().unwrap_or(self.recovery).min(self.recovery);
        if self.is_to_stay(lease) {
            let time = self.random.between(lease / 2, lease * 2);
            // Whoever learns that it is over goes, as a user would.
            let _ = tokio::time::timeout(time, guard.lost()).await;
        } else if self.random.below(150) == 0 {
            tokio::time::sleep(self.random.between(Duration::ZERO, Duration::from_millis(30)))
                .await;
        }
        self.check(turn, guard);
    }

    /// The same owner once more, inside of its own turn. The library tells nobody of it: it costs a
    /// count.
    async fn enter_again(&self, turn: &Turn) {
        let inner = Turn {
            name: turn.name.clone(),
            way: turn.way,
            claim: self.writer.unique(),
            until: AtomicU64::new(0),
        };
        let owned = |r: Record| Record { owner: self.me_number, ..r }.mode(Mode::Exclusive);
        self.note(&inner, What::AcquireCalled, owned);
        let guard = match self.locks.mutex(&turn.name).lock().owner(&self.me).await {
            Ok(guard) => guard,
            // What is lost is not entered again, and the next turn under this owner is none inside
            // of this one.
            Err(_) => return self.note(&inner, What::AcquireFailed, |r| r),
        };
        let token = match guard.token() {
            Ok(token) => token.get(),
            // It was lost since: nobody knows which token it had.
            Err(error) if error.kind() == ErrorKind::Lost => {
                return self.note(&inner, What::Cancelled, |r| r);
            }
            Err(_) => 0,
        };
        let until = deadline(|| guard.remaining());
        self.note(&inner, What::Acquired, |r| owned(r).token(token).deadline(until));
        tokio::task::yield_now().await;
        self.note(&inner, What::ReleaseCalled, |r| r);
        let what = match guard.release().await {
            Released::Clean => What::Released,
            Released::AlreadyLost(_) => What::ReleasedLost,
            Released::NotOurs => What::ReleasedNotOwner,
            _ => What::ReleaseUnknown,
        };
        self.note(&inner, what, |r| r);
    }

    /// One in four is dropped.
    async fn end(&mut self, turn: &Turn, grip: Grip) {
        self.check(turn, &grip);
        if self.random.below(4) == 0 {
            return drop(grip);
        }
        let _ = match grip {
            Grip::Plain(guard) => guard.release().await,
            Grip::Writer(guard) => guard.release().await,
            Grip::Upgradable(guard) => guard.release().await,
        };
    }

    /// Reads both registers and, as a writer, writes them from what was read.
    async fn touch(&mut self, turn: &Turn, guard: &Guard, exclusive: bool) -> Option<Versions> {
        let token = token(guard);
        let read = self.effect(turn, exclusive, token, None).await?;
        if self.random.below(32) == 0 {
            tokio::time::sleep(self.random.between(Duration::ZERO, Duration::from_millis(4))).await;
        }
        if !exclusive || !self.check(turn, guard) {
            return Some(read);
        }
        // It is on its way until after the lock was given back.
        if self.random.below(HANGS) == 0 {
            self.hangs = true;
            return Some(read);
        }
        // What was checked is true until now; the write may be on its way for longer.
        if self.random.below(200) == 0 {
            tokio::time::sleep(self.random.between(Duration::ZERO, Duration::from_millis(20)))
                .await;
        }
        self.effect(turn, exclusive, token, Some(read)).await
    }

    async fn effect(
        &mut self,
        turn: &Turn,
        exclusive: bool,
        token: u64,
        write: Option<Versions>,
    ) -> Option<Versions> {
        let number = fresh_claim();
        self.note(turn, What::EffectCalled, |r| r.token(token).number(number));
        let answer = self
            .access
            .ask(Ask { name: &turn.name, claim: turn.claim, exclusive, token }, write)
            .await
            .ok()?;
        self.note(turn, What::EffectDone, |r| {
            let r = r.token(token).number(number);
            if answer.0.is_some() {
                r.flag(Flags::YES.and(Flags::FENCED))
            } else {
                r.flag(Flags::FENCED)
            }
        });
        if let (true, Some(version)) = (exclusive, answer.0) {
            self.last = Some((token, version));
        }
        Some(answer)
    }

    /// A write that comes when its turn is over: of every second writer that was told that its lock
    /// is lost, and of those whose write was on its way until now. Often enough somebody else has
    /// the lock by then.
    fn write_late(&mut self, turn: Turn) {
        let insists = self.lost && self.random.below(2) == 0;
        // A register that checks tokens refuses a late write only where there is a token: without
        // one it would be this writer's fault, not the lock's.
        let late = |(token, _): &(u64, u64)| *token != 0 && (self.hangs || insists);
        let Some((token, version)) = self.last.filter(late) else { return };
        // Whoever knows of its loss knows it before anybody else gets the lock: that may take a
        // lease.
        let longest = if self.lost { (self.recovery * 2).min(LATE_MAX) } else { HANGS_FOR };
        let (time, socket) = (self.random.between(Duration::ZERO, longest), self.socket.clone());
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            let ask = Ask { name: &turn.name, claim: turn.claim, exclusive: true, token };
            // The resource's own log says what became of it.
            if let Ok(mut access) = Access::open(&socket).await {
                let _ = access.write_late(ask, version).await;
            }
        });
    }

    fn check(&mut self, turn: &Turn, guard: &Guard) -> bool {
        let number = fresh_claim();
        let kind = if matches!(turn.way, Way::Permits(_)) { Kind::Semaphore } else { Kind::Lock };
        let note = |what, change: &dyn Fn(Record) -> Record| {
            self.writer.write_for(
                kind,
                &turn.name,
                change(Record::about(what, LockId::NONE, turn.claim)),
            );
        };
        note(What::CheckCalled, &|r| r.number(number));
        let holds = !guard.is_lost();
        // A renewal that was answered just now may be known to the guard, and not written down yet.
        let until = deadline(|| guard.remaining());
        if !guard.is_lost()
            && until > turn.until.swap(until, Ordering::Relaxed).saturating_add(1_000_000)
        {
            note(What::Renewed, &|r| r.deadline(until));
        }
        note(What::Checked, &|r| {
            if holds { r.number(number).flag(Flags::YES) } else { r.number(number) }
        });
        self.lost |= !holds;
        holds
    }
}

/// Nobody waits for long once the work is to end: what would grant it may have gone for good.
async fn until_the_end<T>(
    ended: &Ended,
    work: impl Future<Output = T>,
) -> Result<T, tokio::time::error::Elapsed> {
    let end = async {
        while !ended.is_set() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::timeout(AFTER_THE_END, std::future::pending()).await
    };
    tokio::select! {
        biased;
        done = work => Ok(done),
        elapsed = end => elapsed,
    }
}

/// What an acquire came to, and the number of its claim.
type Acquired = (lockkeeper::Result<Option<Grip>>, u64);

async fn waited<G>(
    owner: u64,
    acquire: impl IntoFuture<Output = lockkeeper::Result<G>>,
    grip: fn(G) -> Grip,
) -> Acquired {
    let (acquired, claim) = asked(owner, acquire).await;
    (acquired.map(|guard| Some(grip(guard))), claim)
}

async fn tried<G>(
    acquire: impl IntoFuture<Output = lockkeeper::Result<Option<G>>>,
    grip: fn(G) -> Grip,
) -> Acquired {
    let (acquired, claim) = asked(0, acquire).await;
    (acquired.map(|guard| guard.map(grip)), claim)
}

/// 0 for none, and for one that is lost.
fn token(guard: &Guard) -> u64 {
    guard.token().map_or(0, |token| token.get())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_deadline_is_recorded_as_it_is_whatever_pause_comes_between_the_clocks() {
        let is = Writer::now() + 1_000_000_000;
        let pauses = Cell::new(2_u32);
        let recorded = deadline(|| {
            let left = Duration::from_nanos(is - Writer::now());
            if pauses.replace(pauses.get().saturating_sub(1)) > 0 {
                // Stopped here, with what remains in hand.
                std::thread::sleep(Duration::from_millis(10));
            }
            Some(left)
        });
        assert!(recorded <= is && is - recorded < 1_000_000, "{recorded} {is}");
        assert_eq!(deadline(|| None), 0);
    }
}
