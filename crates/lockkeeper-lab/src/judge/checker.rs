//! The checker: takes the events of all clients in the order of time, and judges.
//!
//! No I/O, no clock. The theory is in `docs/history.md`: a hold certainly lasts from the answer of
//! its acquire to the call of its release, its last acknowledged deadline, its loss, or the death
//! of its process, whichever is first; a history is right exactly when these inner intervals are.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::book::Book;
use super::claims::{At, ClaimNo, Claims, Mixed};
use super::lease::Calls;
use super::lock::{Lock, World};
use super::ns;
use super::recovery::Faults;
use super::report::{Client, Options, Report};
use crate::history::{LockId, Record, Role, State, What};

/// Judges one history.
pub struct Checker {
    pub(super) claims: Claims,
    pub(super) locks: Vec<Lock>,
    pub(super) by_id: HashMap<u64, u32, BuildHasherDefault<Mixed>>,
    pub(super) book: Book,
    pub(super) faults: Faults,
    pub(super) calls: Calls,
    pub(super) dead: Vec<bool>,
    /// Of each client, when it was seen to have ended by itself, where a nemesis says so.
    pub(super) exits: Vec<Option<u64>>,
    pub(super) linger_ns: u64,
    pub(super) lease_ns: u64,
    pub(super) withdraw_ns: u64,
    started: bool,
}

impl Checker {
    /// A checker that has seen nothing.
    pub fn new(options: Options) -> Self {
        let lease_ns = ns(options.lease);
        let apart_ns = ns(options.skew).saturating_mul(2);
        let [linger_ns, withdraw_ns] =
            [options.linger, options.withdraw].map(|time| ns(time).saturating_add(apart_ns));
        Self {
            claims: Claims::default(),
            locks: Vec::new(),
            by_id: HashMap::default(),
            book: Book::new(options),
            faults: Faults::default(),
            calls: Calls::default(),
            dead: Vec::new(),
            exits: Vec::new(),
            linger_ns,
            lease_ns,
            withdraw_ns,
            started: false,
        }
    }

    /// Adds a client and answers its number; all are added before the first event.
    pub fn client(&mut self, client: Client) -> u32 {
        self.book.report.clients.push(client);
        self.dead.push(false);
        self.exits.push(None);
        (self.dead.len() - 1) as u32
    }

    /// What a nemesis will say in its `kill` and `exit` records, told before the first event: who
    /// was seen to have ended by itself did so at some time after its last record, which nobody
    /// knows. Only a kill, which is written down before it is done, proves that a process went on
    /// until then.
    pub fn ends(&mut self, ends: impl IntoIterator<Item = Record>) {
        for record in ends {
            let known = self.exits.clone();
            let client = self
                .process(&record, |client| known.get(client as usize).is_none_or(Option::is_none));
            if let Some(exit) = client.and_then(|client| self.exits.get_mut(client as usize)) {
                *exit = Some(if record.what == What::Exit { record.at } else { u64::MAX });
            }
        }
    }

    /// There was a client that recorded nothing from `at` on, told before the first event. Where a
    /// nemesis tests it, it ended before it did anything; else it may have taken locks.
    pub fn unrecorded(&mut self, at: u64) {
        if !self.watched() {
            self.book.report.judged_until.get_or_insert(at);
        }
    }

    /// Takes one event: the `index`th record of `client`. Events come in the order of time.
    pub fn event(&mut self, client: u32, index: u64, record: &Record) {
        if self.dead.get(client as usize).copied().unwrap_or(true) {
            return self.after_death(client, At { time: record.at, record: index }, record);
        }
        let at = At { time: record.at, record: index };
        let span = &mut self.book.report.span;
        if !self.started {
            (self.started, span.0) = (true, record.at);
            self.begins();
        }
        let span = &mut self.book.report.span;
        span.1 = record.at;
        self.book.report.counts.events += 1;
        match record.what {
            What::Name => {}
            What::FaultBegin => self.fault_begins(record),
            What::FaultEnd => self.fault_ends(record),
            What::Kill | What::Exit => self.process_ends(record),
            What::ResourceRead | What::ResourceWrite => self.resource(client, at, record),
            What::ResizeCalled => self.resize(record, false),
            What::Resized => self.resize(record, true),
            What::AcquireCalled => self.asked(client, at, record),
            What::Acquired => self.granted(client, at, record),
            _ => self.about_claim(client, at, record),
        }
    }

    /// What a process did before its recording is not known. Who is killed, and whose death is
    /// written down, belongs to a test that records its processes from their beginning.
    fn begins(&mut self) {
        let clients = self.book.report.clients.iter().filter(|client| client.role == Role::Client);
        let began =
            clients.map(|client| client.began).max().filter(|began| *began > 0 && !self.watched());
        self.book.began =
            began.map(|began| began.saturating_add(self.book.apart_ns.saturating_mul(2)));
    }

    /// A client wrote its last record at `at`, and answers that skew delays still come. If its
    /// holds end there, they are certain no longer.
    pub fn wrote_last(&mut self, client: u32, at: u64, state: State) {
        let exit = self.exits.get(client as usize).copied().flatten();
        if self.dead.get(client as usize).copied().unwrap_or(true)
            || self.watched() && state == State::Open && exit.is_none_or(|exit| exit == u64::MAX)
        {
            return;
        }
        for no in self.claims.open_of(client) {
            self.blur(no, at);
        }
    }

    /// Nothing is certain of this hold from now on.
    pub(super) fn blur(&mut self, no: ClaimNo, now: u64) {
        self.advance(self.claims[no].lock, now);
        self.claims[no].blurred = true;
        let (lock, mut world) = self.split(self.claims[no].lock);
        lock.stop(no, now, &mut world);
    }

    /// A client's history holds nothing more after `at`. Whether its holds end there depends on how
    /// it ended: a process that was killed unseen, or ended by itself, is not known to have held
    /// anything later, but where a nemesis records every death, one that was killed went on until
    /// then, and one without a recorded death goes on.
    pub fn client_ended(&mut self, client: u32, at: u64, state: State) {
        let watched = self.watched();
        let known = self.exits.get(client as usize).is_some_and(Option::is_some);
        let user = self
            .book
            .report
            .clients
            .get(client as usize)
            .is_some_and(|client| client.role == Role::Client && client.began > 0);
        // It may have gone on and taken locks that nobody wrote down.
        if user
            && (matches!(state, State::Stopped(_)) || !known && (!watched || state != State::Open))
        {
            self.book.report.judged_until.get_or_insert(at);
        }
        match self.exits.get(client as usize).copied().flatten() {
            Some(exit) if exit < u64::MAX && state == State::Open => {
                self.die(client, at, Some(exit))
            }
            _ if watched && state == State::Open => {}
            _ => self.die(client, at, None),
        }
    }

    /// Whether somebody writes down who is stopped and who ends.
    pub(super) fn watched(&self) -> bool {
        self.book.report.clients.iter().any(|c| c.role == Role::Nemesis)
    }

    /// Says what a lock is called; until then, and without it, its number stands in sentences.
    pub fn name(&mut self, lock: LockId, name: String) {
        self.book.name(lock, name);
    }

    /// Everything was seen: judges what is left, and answers the report.
    pub fn finish(mut self) -> Report {
        for no in self.claims.all() {
            let end = At { time: self.book.report.span.1, record: self.claims[no].granted.record };
            self.told_by(no, end, self.book.apart_ns.saturating_mul(3));
        }
        for no in 0..self.locks.len() as u32 {
            let end =
                At { time: self.book.report.span.1.saturating_sub(self.book.apart_ns), record: 0 };
            let (lock, mut world) = self.split(no);
            if let Some(waiter) = lock.bench.first() {
                lock.waited_in_vain(waiter, end, &mut world);
            }
            lock.advance(u64::MAX, &mut world);
        }
        if self.book.apart_ns > 0 {
            self.book.forget_unseen();
        }
        self.book.report
    }

    /// The number of a lock, and the lock moved forward to `now`.
    pub(super) fn lock(&mut self, id: LockId, now: u64) -> u32 {
        let locks = &mut self.locks;
        let no = *self.by_id.entry(id.0).or_insert_with(|| {
            locks.push(Lock::new(id));
            (locks.len() - 1) as u32
        });
        self.advance(no, now);
        no
    }

    /// Moves a lock forward to `now`.
    pub(super) fn advance(&mut self, no: u32, now: u64) {
        let (lock, mut world) = self.split(no);
        lock.advance(now, &mut world);
    }

    /// One lock, and what its rules work on. Numbers come from [`Checker::lock`] only, so that they
    /// are always there.
    pub(super) fn split(&mut self, lock: u32) -> (&mut Lock, World<'_>) {
        (
            &mut self.locks[lock as usize],
            World { claims: &mut self.claims, book: &mut self.book, faults: &self.faults },
        )
    }
}
