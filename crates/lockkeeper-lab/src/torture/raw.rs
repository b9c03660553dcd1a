//! A client that is not this library's: threads that acquire, touch the resource, check and
//! release, and write down everything, around whatever keeps [`RawLock`].

use std::io;
use std::time::{Duration, Instant};

use lockkeeper::{Kind, Mode};

use super::Random;
use super::client::Failure;
use super::orders::{Ended, Orders, fresh_claim};
use super::resource::{Ask, BlockingAccess, Versions};
use crate::history::{Flags, LockId, Record, What, Writer, WriterOptions};

/// How often a lock is tended.
const TEND_EVERY: Duration = Duration::from_millis(40);

/// What a lock gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// 0 for none.
    pub(crate) token: u64,
    /// Until when its holder believes in it, on the clock of histories; 0 when it believes until it
    /// releases.
    pub(crate) deadline: u64,
}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Released,
    NotOurs,
    Unknown,
}

/// When to wait no longer.
pub(crate) struct GiveUp {
    until: Instant,
    ended: Ended,
}

impl GiveUp {
    #[cfg(test)]
    pub(crate) fn within(time: Duration) -> Self {
        Self { until: Instant::now() + time, ended: Ended::default() }
    }

    /// Whether that is now.
    pub(crate) fn is_now(&self) -> bool {
        self.ended.is_set() || Instant::now() >= self.until
    }

    /// Sleeps, not beyond that.
    pub(crate) fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_now() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(TEND_EVERY));
        }
    }

    /// Tries again and again.
    pub(crate) fn poll<T>(
        &self,
        every: Duration,
        mut attempt: impl FnMut() -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        loop {
            if let Some(got) = attempt()? {
                return Ok(Some(got));
            }
            if self.is_now() {
                return Ok(None);
            }
            std::thread::sleep(every);
        }
    }
}

/// A lock as others write it. One value a thread; it has one hold at a time.
pub(crate) trait RawLock: Send {
    /// Gets ready to acquire a name. The time that this takes is no wait for the lock: C17, a
    /// program that needs a second to start has not asked for anything yet.
    fn ready(&mut self, _name: &str, _give_up: &GiveUp) -> io::Result<()> {
        Ok(())
    }
    /// Waits for the lock; `None` when it gave up. An error says that nobody knows.
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>>;
    /// Whether its holder still believes in it, beyond what its deadline says. Called before each
    /// write.
    fn holds(&mut self) -> bool {
        true
    }
    /// Called every few milliseconds, for signs of life; false when its holder has learnt that it
    /// holds nothing any more.
    fn tend(&mut self) -> bool {
        true
    }
    /// Gives it back.
    fn release(&mut self) -> io::Result<Ending>;
    /// From shared to exclusive, for locks whose [`Style::shared`] is set.
    fn upgrade(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How the threads use their lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// How long a turn is, in milliseconds.
    pub(crate) hold_ms: (u64, u64),
    /// One turn in so many is as long as `long`; 0 for none.
    pub(crate) long_one_in: u64,
    pub(crate) long: Long,
    /// How long the last check and the write after it are apart, in milliseconds.
    pub(crate) write_ms: (u64, u64),
    /// The rest between turns, in milliseconds.
    pub(crate) rest_ms: (u64, u64),
    /// Whether turns begin shared and are upgraded before the write.
    pub(crate) shared: bool,
}

/// A turn that is longer than others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Long {
    /// So many milliseconds.
    Ms(u64),
    /// Until shortly before the deadline.
    ToDeadline,
}

impl Style {
    pub(crate) const PLAIN: Self = Self {
        hold_ms: (5, 30),
        long_one_in: 0,
        long: Long::Ms(0),
        write_ms: (0, 0),
        rest_ms: (0, 10),
        shared: false,
    };
}

/// Runs threads until they are told to end; `make` gives each its lock.
pub(crate) fn run(
    orders: &Orders,
    ended: &Ended,
    style: Style,
    make: &dyn Fn(u32) -> Result<Box<dyn RawLock>, String>,
) -> Result<(), Failure> {
    let options = WriterOptions { label: orders.label.clone(), ..WriterOptions::default() };
    let writer = Writer::create(&orders.history, options).map_err(Failure::no_room)?;
    let mut threads = Vec::new();
    for number in 0..orders.tasks {
        let worker = Worker {
            lock: make(number).map_err(Failure::Other)?,
            writer: writer.clone(),
            access: BlockingAccess::open(&orders.socket)
                .map_err(|e| Failure::no_room(format!("the resource: {e}")))?,
            random: Random::new(orders.seed, u64::from(number) + 1),
            names: orders.names,
            ended: ended.clone(),
            style,
        };
        threads
            .push(std::thread::Builder::new().spawn(move || worker.run()).map_err(Failure::other)?);
    }
    for thread in threads {
        thread.join().map_err(|_| Failure::other("a thread panicked"))?;
    }
    writer.finish().map_err(Failure::no_room).map(|_| ())
}

struct Worker {
    lock: Box<dyn RawLock>,
    writer: Writer,
    access: BlockingAccess,
    random: Random,
    names: u32,
    ended: Ended,
    style: Style,
}

struct Turn {
    name: String,
    claim: u64,
    grant: Grant,
}

impl Worker {
    fn run(mut self) {
        while !self.ended.is_set() {
            self.one();
            self.pause(self.style.rest_ms);
        }
    }

    /// Sleeps for a random time.
    fn pause(&mut self, (from, to): (u64, u64)) {
        let time =
            self.random.between(Duration::from_millis(from), Duration::from_millis(to.max(from)));
        self.sleep(time);
    }

    /// Sleeps, not beyond the end, and not beyond the loss of what is held.
    fn sleep(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.ended.is_set() {
            std::thread::sleep(until.saturating_duration_since(Instant::now()).min(TEND_EVERY));
            if !self.lock.tend() {
                return;
            }
        }
    }

    fn note(&self, turn: &Turn, what: What, change: impl FnOnce(Record) -> Record) {
        self.writer.write_for(
            Kind::Lock,
            &turn.name,
            change(Record::about(what, LockId::NONE, turn.claim)),
        );
    }

    fn one(&mut self) {
        let name = format!("torture/{}", self.random.below(u64::from(self.names)));
        let mut turn = Turn { name, claim: fresh_claim(), grant: Grant::default() };
        let mode = if self.style.shared { Mode::Shared } else { Mode::Exclusive };
        let give_up =
            GiveUp { until: Instant::now() + Duration::from_secs(60), ended: self.ended.clone() };
        let ready = self.lock.ready(&turn.name, &give_up);
        self.note(&turn, What::AcquireCalled, |r| r.mode(mode));
        match ready.and_then(|()| self.lock.acquire(&turn.name, &give_up)) {
            Ok(Some(grant)) => turn.grant = grant,
            Ok(None) => return self.note(&turn, What::TimedOut, |r| r),
            Err(_) => {
                self.note(&turn, What::AcquireUnknown, |r| r);
                return self.sleep(Duration::from_millis(20));
            }
        }
        self.note(&turn, What::Acquired, |r| {
            r.mode(mode).token(turn.grant.token).deadline(turn.grant.deadline)
        });
        self.hold(&turn);
        self.note(&turn, What::ReleaseCalled, |r| r);
        let what = match self.lock.release() {
            Ok(Ending::Released) => What::Released,
            Ok(Ending::NotOurs) => What::ReleasedNotOwner,
            Ok(Ending::Unknown) | Err(_) => What::ReleaseUnknown,
        };
        self.note(&turn, what, |r| r);
    }

    /// Reads, works, checks and writes.
    fn hold(&mut self, turn: &Turn) {
        let shared = self.style.shared;
        let Some(read) = self.effect(turn, !shared, None) else { return };
        if self.style.long_one_in > 0 && self.random.below(self.style.long_one_in) == 0 {
            let time = match self.style.long {
                Long::Ms(ms) => Duration::from_millis(ms),
                Long::ToDeadline => Duration::from_nanos(
                    turn.grant.deadline.saturating_sub(Writer::now() + 4_000_000),
                ),
            };
            self.sleep(time);
        } else {
            self.pause(self.style.hold_ms);
        }
        if shared {
            self.note(turn, What::ConvertCalled, |r| r.mode(Mode::Exclusive));
            if self.lock.upgrade().is_err() {
                return self.note(turn, What::ConvertFailed, |r| r);
            }
            self.note(turn, What::Converted, |r| r.mode(Mode::Exclusive));
        }
        if self.check(turn) {
            self.pause(self.style.write_ms);
            self.effect(turn, true, Some(read));
        }
    }

    fn effect(
        &mut self,
        turn: &Turn,
        exclusive: bool,
        write: Option<Versions>,
    ) -> Option<Versions> {
        let (number, token) = (fresh_claim(), turn.grant.token);
        self.note(turn, What::EffectCalled, |r| r.token(token).number(number));
        let ask = Ask { name: &turn.name, claim: turn.claim, exclusive, token };
        let answer = self.access.ask(ask, write).ok()?;
        let answered =
            if answer.0.is_some() { Flags::YES.and(Flags::FENCED) } else { Flags::FENCED };
        self.note(turn, What::EffectDone, |r| r.token(token).number(number).flag(answered));
        Some(answer)
    }

    fn check(&mut self, turn: &Turn) -> bool {
        let number = fresh_claim();
        self.note(turn, What::CheckCalled, |r| r.number(number));
        let deadline = turn.grant.deadline;
        let holds = (deadline == 0 || Writer::now() < deadline) && self.lock.holds();
        self.note(turn, What::Checked, |r| {
            if holds { r.number(number).flag(Flags::YES) } else { r.number(number) }
        });
        holds
    }
}
