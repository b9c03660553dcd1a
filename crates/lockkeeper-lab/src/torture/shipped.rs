//! A client of the shipped library: tasks that acquire, touch the resource, check, release, abandon, and write down everything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{ErrorKind, Guard, Kind, Locks, Mode, Released};

use super::Random;
use super::orders::{Ended, Orders, fresh_claim};
use super::resource::{Access, Ask, Versions};
use crate::history::{Flags, LockId, Record, What, Writer, WriterOptions};

/// How many permits the semaphores have.
const PERMITS: u16 = 3;

/// Runs until it is told to end.
pub(super) fn run(orders: Orders, ended: Ended) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(work(orders, ended)).map_err(|e| e.to_string())
}

async fn work(orders: Orders, ended: Ended) -> Result<(), Box<dyn std::error::Error>> {
    let options = WriterOptions { label: orders.label.clone(), ..WriterOptions::default() };
    let writer = Writer::create(&orders.history, options)?;
    let Some(locks) = open(&orders.url, &ended).await? else { return Ok(()) };
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..orders.tasks {
        let access = Access::open(&orders.socket).await?;
        let worker = Worker {
            locks: locks.clone(),
            writer: writer.clone(),
            access,
            random: Random::new(orders.seed, u64::from(number) + 1),
            names: orders.names,
            ended: ended.clone(),
        };
        tasks.spawn(worker.run());
    }
    // Whoever panics ends this client at once, and not when it is told to.
    while let Some(done) = tasks.join_next().await {
        done?;
    }
    let _ = locks.close().await;
    writer.finish()?;
    Ok(())
}

/// A server may be down at the very moment when a client is started, and stay down until it is to end.
async fn open(url: &str, ended: &Ended) -> lockkeeper::Result<Option<Locks>> {
    while !ended.is_set() {
        match Locks::open(url).await {
            Err(error) if error.is_temporary() => tokio::time::sleep(Duration::from_millis(100)).await,
            opened => return opened.map(Some),
        }
    }
    Ok(None)
}

/// When a lease ends, 0 for never. A pause between the clocks would make it later than it is, or too early: then it is read again.
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
    ended: Ended,
}

struct Turn {
    kind: Kind,
    name: String,
    claim: u64,
    mode: Mode,
    /// When its lease ends, as it was recorded last.
    until: AtomicU64,
}

impl Worker {
    async fn run(mut self) {
        while !self.ended.is_set() {
            self.one().await;
        }
    }

    fn note(&self, turn: &Turn, what: What, change: impl FnOnce(Record) -> Record) {
        self.writer.write_for(turn.kind, &turn.name, change(Record::about(what, LockId::NONE, turn.claim)));
    }

    async fn one(&mut self) {
        let number = self.random.below(u64::from(self.names));
        let mode = match self.random.below(10) {
            0..=5 => Mode::Exclusive,
            6 | 7 => Mode::Shared,
            _ => Mode::Permits { count: 1 + u16::try_from(self.random.below(2)).unwrap_or(0), limit: PERMITS },
        };
        let kind = if mode.permits().is_some() { Kind::Semaphore } else { Kind::Lock };
        let turn = Turn { kind, name: format!("torture/{number}"), claim: fresh_claim(), mode, until: AtomicU64::new(0) };
        let tries = self.random.below(8) == 0;
        let impatient = self.random.below(10) == 0;
        let patience = if impatient { self.random.between(Duration::ZERO, Duration::from_millis(20)) } else { Duration::from_secs(60) };
        self.note(&turn, What::AcquireCalled, |r| {
            let r = r.mode(mode).number(u64::from(PERMITS));
            if tries { r.flag(Flags::TRY) } else { r }
        });
        let lock = self.locks.rwlock(&turn.name);
        let acquired: lockkeeper::Result<Option<Guard>> = match mode {
            Mode::Permits { count, .. } => {
                let permits = self.locks.semaphore(&turn.name, PERMITS);
                if tries { permits.try_acquire(count).await } else { permits.acquire(count).timeout(patience).await.map(Some) }
            }
            Mode::Shared if tries => lock.try_read().await,
            Mode::Shared => lock.read().timeout(patience).await.map(Some),
            _ if tries => self.locks.mutex(&turn.name).try_lock().await,
            _ => self.locks.mutex(&turn.name).lock().timeout(patience).await.map(Some),
        };
        match acquired {
            Ok(Some(guard)) => self.hold(&turn, guard).await,
            Ok(None) => {
                self.note(&turn, What::Busy, |r| r);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => {
                let what = match error.kind() {
                    ErrorKind::TimedOut => What::TimedOut,
                    ErrorKind::Unknown => What::AcquireUnknown,
                    _ => What::AcquireFailed,
                };
                self.note(&turn, what, |r| r);
                if what != What::TimedOut {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    async fn hold(&mut self, turn: &Turn, guard: Guard) {
        let token = guard.token().map_or(0, |t| t.get());
        let until = deadline(|| guard.remaining());
        turn.until.store(until, Ordering::Relaxed);
        self.note(turn, What::Acquired, |r| r.mode(turn.mode).token(token).deadline(until));
        if turn.mode.permits().is_none() {
            self.touch(turn, &guard, token).await;
        }
        if self.random.below(150) == 0 {
            tokio::time::sleep(self.random.between(Duration::ZERO, Duration::from_millis(30))).await;
        }
        self.check(turn, &guard);
        self.note(turn, What::ReleaseCalled, |r| r);
        if self.random.below(4) == 0 {
            drop(guard);
            self.note(turn, What::ReleaseUnknown, |r| r);
            return;
        }
        let what = match guard.release().await {
            Released::Clean => What::Released,
            Released::AlreadyLost(_) => What::ReleasedLost,
            Released::NotOurs => What::ReleasedNotOwner,
            _ => What::ReleaseUnknown,
        };
        self.note(turn, what, |r| r);
    }

    /// Reads both registers and, as a writer, writes them from what was read.
    async fn touch(&mut self, turn: &Turn, guard: &Guard, token: u64) {
        let exclusive = turn.mode == Mode::Exclusive;
        let Some(read) = self.effect(turn, exclusive, token, None).await else { return };
        if self.random.below(32) == 0 {
            tokio::time::sleep(self.random.between(Duration::ZERO, Duration::from_millis(4))).await;
        }
        if !exclusive || !self.check(turn, guard) {
            return;
        }
        // What was checked is true until now; the write may be on its way for longer.
        if self.random.below(200) == 0 {
            tokio::time::sleep(self.random.between(Duration::ZERO, Duration::from_millis(20))).await;
        }
        self.effect(turn, exclusive, token, Some(read)).await;
    }

    async fn effect(&mut self, turn: &Turn, exclusive: bool, token: u64, write: Option<Versions>) -> Option<Versions> {
        let number = fresh_claim();
        self.note(turn, What::EffectCalled, |r| r.token(token).number(number));
        let answer = self.access.ask(Ask { name: &turn.name, claim: turn.claim, exclusive, token }, write).await.ok()?;
        self.note(turn, What::EffectDone, |r| {
            let r = r.token(token).number(number);
            if answer.0.is_some() { r.flag(Flags::YES.and(Flags::FENCED)) } else { r.flag(Flags::FENCED) }
        });
        Some(answer)
    }

    /// The lease may have been renewed since its deadline was recorded.
    fn note_renewal(&self, turn: &Turn, guard: &Guard) {
        let until = deadline(|| guard.remaining());
        if !guard.is_lost() && until > turn.until.swap(until, Ordering::Relaxed).saturating_add(1_000_000) {
            self.note(turn, What::Renewed, |r| r.deadline(until));
        }
    }

    fn check(&self, turn: &Turn, guard: &Guard) -> bool {
        let number = fresh_claim();
        self.note(turn, What::CheckCalled, |r| r.number(number));
        let holds = !guard.is_lost();
        self.note_renewal(turn, guard);
        self.note(turn, What::Checked, |r| if holds { r.number(number).flag(Flags::YES) } else { r.number(number) });
        holds
    }
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
