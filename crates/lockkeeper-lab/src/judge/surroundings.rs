//! What happens around the locks: faults, deaths, the resource's own log, changed limits.

use super::checker::Checker;
use super::claims::{At, Claim, ClaimNo, Phase};
use super::class::Class;
use super::lease::over_at;
use super::recovery::Owed;
use super::report::Moment;
use super::resource::{Seen, Written};
use crate::history::{Flags, HoldMode, Record, Role, What};

impl Checker {
    pub(super) fn fault_begins(&mut self, record: &Record) {
        self.faults.begin(record.lock.0, record.number, record.at);
        self.book.report.counts.faults += 1;
    }

    /// Once all faults are over, what nobody holds and somebody waits for is owed.
    pub(super) fn fault_ends(&mut self, record: &Record) {
        if !self.faults.end(record.lock.0, record.number, record.at) || !self.faults.quiet() {
            return;
        }
        for no in 0..self.locks.len() as u32 {
            self.advance(no, record.at);
            let (lock, world) = self.split(no);
            if lock.owed.is_none() && lock.is_free(0, &world) && lock.bench.first().is_some() {
                lock.owed = Some(Owed { since: record.at, dead: None });
            }
        }
    }

    /// The youngest living client with the process id of a `kill` or `exit`.
    pub(super) fn process(&self, record: &Record, living: impl Fn(u32) -> bool) -> Option<u32> {
        let began_by = |at: u64| {
            self.book.report.clients.iter().zip(0u32..).filter(move |(client, _)| {
                client.role == Role::Client
                    && u64::from(client.pid) == record.number
                    && client.began <= at
            })
        };
        let apart = self.book.apart_ns;
        let certainly = began_by(record.at.saturating_sub(apart))
            .filter(|(_, no)| living(*no))
            .max_by_key(|(client, _)| client.began);
        // Where clocks differ: of those that may have been there, the one that was there longest.
        let perhaps = || {
            began_by(record.at.saturating_add(apart))
                .filter(|(_, no)| living(*no))
                .min_by_key(|(client, _)| client.began)
        };
        certainly.or_else(perhaps).map(|(_, no)| no)
    }

    /// Where clocks differ, what a process did before its death may come after it. What it asked
    /// for then may be in the engine.
    pub(super) fn after_death(&mut self, client: u32, at: At, record: &Record) {
        if self.book.apart_ns == 0 || record.what != What::AcquireCalled {
            return;
        }
        self.asked(client, at, record);
        if let Some(no) =
            self.claims.find(record.claim).filter(|no| self.claims[*no].phase == Phase::Asked)
        {
            self.leaves_line(no, at.time, Some(at.time));
            self.claims.close(no);
        }
    }

    /// A process is killed, or was seen to have ended.
    pub(super) fn process_ends(&mut self, record: &Record) {
        self.book.report.counts.faults += u64::from(record.what == What::Kill);
        if let Some(client) = self.process(record, |client| !self.dead[client as usize]) {
            self.die(client, record.at, Some(record.at));
        }
    }

    /// Nothing that a client does counts after `now`. `gone`: when it was gone for certain, where
    /// somebody saw it.
    pub(super) fn die(&mut self, client: u32, now: u64, gone: Option<u64>) {
        if std::mem::replace(&mut self.dead[client as usize], true) {
            return;
        }
        self.calls.forget(client);
        for no in self.claims.open_of(client) {
            self.advance(self.claims[no].lock, now);
            self.told_by(
                no,
                At { time: now, record: self.claims[no].granted.record },
                self.book.apart_ns,
            );
            match self.claims[no].phase {
                Phase::Asked => self.leaves_line(no, now, gone),
                Phase::Held => self.leaves_hold(no, now, gone),
                Phase::Over => {}
            }
            self.claims.close(no);
        }
    }

    fn leaves_line(&mut self, no: ClaimNo, now: u64, gone: Option<u64>) {
        let until = gone.unwrap_or(now).saturating_add(self.linger_ns);
        let (lock, mut world) = self.split(self.claims[no].lock);
        lock.line.leave(world.claims[no].ticket);
        if !world.claims[no].trying {
            lock.bench.rise(no, world.claims);
            if gone.is_none() {
                lock.waited_in_vain(
                    no,
                    At { time: now, record: world.claims[no].asked.record },
                    &mut world,
                );
            }
        }
        lock.presence.left(no, until, world.claims);
    }

    fn leaves_hold(&mut self, no: ClaimNo, now: u64, gone: Option<u64>) {
        let linger = self.linger_ns;
        let (lock, mut world) = self.split(self.claims[no].lock);
        lock.stop(no, now, &mut world);
        let claim = &world.claims[no];
        if let Some(since) = gone
            && claim.mode == HoldMode::Exclusive
            && lock.is_free(1, &world)
        {
            lock.owed = Some(Owed { since, dead: Some((claim.client, claim.granted)) });
        }
        let until = Self::ghost(claim, gone.unwrap_or(now), linger);
        lock.presence.vanished(no, now, until, world.claims);
    }

    /// A semaphore's limit is about to change, or did.
    pub(super) fn resize(&mut self, record: &Record, done: bool) {
        let no = self.lock(record.lock, record.at);
        let (lock, world) = self.split(no);
        if done {
            lock.limit.changed(record.number, record.at);
        } else {
            lock.limit.changing(record.number, record.at);
        }
        lock.presence.excuse_all(world.claims);
    }

    /// An operation in the resource's own log.
    pub(super) fn resource(&mut self, client: u32, at: At, record: &Record) {
        let no = self.lock(record.lock, at.time);
        let found = self.claims.find(record.claim);
        let (fenced, accepted) = (record.flags.has(Flags::FENCED), record.flags.has(Flags::YES));
        let write = record.what == What::ResourceWrite;
        let shared_read = !write && record.mode == HoldMode::Shared;
        let apart = self.book.apart_ns;
        let (lock, world) = self.split(no);
        let id = lock.id;
        let register = &mut lock.registers[usize::from(fenced)];
        let newest = register.seen;
        // Two logs have two clocks.
        let before =
            newest.client == client || apart == 0 || newest.at.time.saturating_add(apart) < at.time;
        let stale = before && register.is_stale(record.token, shared_read);
        let claim = found.map(|no| &world.claims[no]);
        // It comes twice as late as clocks differ, and is compared with another clock.
        let over = |claim: &Claim| {
            over_at(claim, at.time.saturating_sub(apart.saturating_mul(3)), true).is_some()
        };
        // Of a claim that is not known any more the hold was over long ago.
        let late = claim.is_none_or(over);
        let confirmed = claim.map_or(0, |claim| claim.confirmed);
        let before = register.written;
        if accepted {
            register.accept(Seen { token: record.token, client, at, confirmed }, shared_read);
            register.written = if write { Written { confirmed, late } } else { before };
        }
        let counts = &mut world.book.report.counts;
        match (stale, accepted, fenced) {
            (true, false, _) => counts.stale_rejected += 1,
            (true, true, true) => counts.stale_accepted += 1,
            (true, true, false) => counts.stale_accepted_unfenced += 1,
            (false, ..) => {}
        }
        if !accepted {
            return;
        }
        let when = Moment { late, ..Moment::at(at.time).since(confirmed) };
        let mut records = vec![(client, at)];
        records.extend(claim.map(|claim| (claim.client, claim.granted)));
        let who = |book: &super::book::Book| {
            claim.map_or("an unknown client".to_owned(), |claim| {
                book.client(claim.client).to_owned()
            })
        };
        let what = if write { "write" } else { "read" };
        if stale {
            records.push((newest.client, newest.at));
            let class = if fenced { Class::StaleWriteAccepted } else { Class::StaleWriteUnfenced };
            world.book.convict(class, id, when.since(newest.confirmed), &records, |book| {
                let (who, name, when) = (who(book), book.lock(id), book.time(at.time));
                format!(
                    "the resource of {name} accepted a {what} of {who} with token {} at {when}, \
                     after one with token {} at {}",
                    record.token,
                    newest.token,
                    book.time(newest.at.time)
                )
            });
        } else if !fenced && claim.is_some_and(|claim| claim.renewing.never() && over(claim)) {
            world.book.convict(Class::LateEffect, id, when, &records, |book| {
                let (who, name, when) = (who(book), book.lock(id), book.time(at.time));
                format!(
                    "the resource of {name} accepted a {what} of {who} at {when}, after its hold \
                     had ended"
                )
            });
        }
        if write && record.deadline != record.number {
            // Who shows no token shows nothing that could be checked.
            let class = if fenced && record.token != 0 {
                Class::LostUpdateFenced
            } else {
                Class::LostUpdate
            };
            // Who is late may be this one, or the one that wrote before it, from under its hold.
            let when = Moment { late: late || before.late, ..when.since(before.confirmed) };
            world.book.convict(class, id, when, &records, |book| {
                let (who, name, when) = (who(book), book.lock(id), book.time(at.time));
                format!(
                    "the resource of {name} accepted a write of {who} at {when} that was made from \
                     version {}, and replaced version {}",
                    record.deadline, record.number
                )
            });
        }
    }
}
