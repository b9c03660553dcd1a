//! Where convictions are written down, with the words for their sentences.

use std::collections::HashMap;

use super::claims::{At, Claim};
use super::class::Class;
use super::ns;
use super::report::{Client, Moment, Options, RecordRef, Report, Violation};
use crate::history::{HoldMode, LockId};

/// The report in the making.
pub(super) struct Book {
    pub options: Options,
    pub report: Report,
    /// By how much the clocks of two files may differ. What was written after a call returned is
    /// later by as much, and what a resource did by twice as much, when it comes here.
    pub apart_ns: u64,
    /// When the last of those recordings began that may have missed something; `None` when all are
    /// there from the start.
    pub began: Option<u64>,
    names: HashMap<LockId, String>,
    described: HashMap<Class, usize>,
}

impl Book {
    pub fn new(options: Options) -> Self {
        let promised = options.recovery.map(ns);
        let report = Report {
            allowed: options.allow.clone(),
            recovery_promised_ns: promised,
            ..Report::default()
        };
        let apart_ns = ns(options.skew).saturating_mul(2);
        Self {
            options,
            report,
            apart_ns,
            began: None,
            names: HashMap::new(),
            described: HashMap::new(),
        }
    }

    /// Whether the records of everybody are there until this moment.
    pub fn sees(&self, at: u64) -> bool {
        self.report
            .judged_until
            .is_none_or(|until| at <= until.saturating_sub(self.apart_ns.saturating_mul(2)))
    }

    /// What was found of times of which it turned out later that not everybody's records are there.
    pub fn forget_unseen(&mut self) {
        for class in [Class::WrongBusy, Class::SlowRecovery] {
            let Some(mut moments) = self.report.moments.remove(&class) else { continue };
            moments.retain(|moment| self.sees(moment.at));
            let mut all = std::mem::take(&mut self.report.violations);
            all.retain(|violation| violation.class != class || self.sees(violation.at));
            self.report.violations = all;
            self.report.found.remove(&class);
            if !moments.is_empty() {
                self.report.found.insert(class, moments.len() as u64);
                self.report.moments.insert(class, moments);
            }
        }
    }

    /// Takes a name in.
    pub fn name(&mut self, lock: LockId, name: String) {
        self.names.insert(lock, name);
    }

    /// The name of a lock, or its number when the history does not say it.
    pub fn lock(&self, lock: LockId) -> String {
        self.names.get(&lock).cloned().unwrap_or_else(|| format!("lock {:016x}", lock.0))
    }

    /// What a client is called.
    pub fn client(&self, client: u32) -> &str {
        self.report.clients.get(client as usize).map_or("an unknown client", |c: &Client| &c.label)
    }

    /// Whether one more of this class would be described.
    pub fn describes(&self, class: Class) -> bool {
        self.described.get(&class).copied().unwrap_or(0) < self.options.details
    }

    /// A moment, counted from the first event.
    pub fn time(&self, at: u64) -> String {
        let (sign, ns) = if at < self.report.span.0 {
            ("-", self.report.span.0 - at)
        } else {
            ("+", at - self.report.span.0)
        };
        let us = ns / 1000;
        format!("{sign}{}.{:06} s", us / 1_000_000, us % 1_000_000)
    }

    /// Who held what since when: "client 1 held it exclusive since +0.9 s (deadline +4.2 s)".
    pub fn hold(&self, claim: &Claim) -> String {
        let how = match claim.mode {
            HoldMode::Permits => format!("{} of its permits", claim.weight),
            mode => format!("it {}", mode.as_str()),
        };
        let until = if claim.deadline == u64::MAX {
            String::new()
        } else {
            format!(" (deadline {})", self.time(claim.deadline))
        };
        format!(
            "{} held {how} since {}{until}",
            self.client(claim.client),
            self.time(claim.granted.time)
        )
    }

    /// Which process a client is, 0 where that is not known.
    pub fn process(&self, client: u32) -> u32 {
        self.report.clients.get(client as usize).map_or(0, |client| client.pid)
    }

    /// Writes a violation down; the sentence is only made when there is room for it.
    pub fn convict(
        &mut self,
        class: Class,
        lock: LockId,
        when: impl Into<Moment>,
        records: &[(u32, At)],
        sentence: impl FnOnce(&Self) -> String,
    ) {
        let moment = when.into();
        *self.report.found.entry(class).or_insert(0) += 1;
        self.report.moments.entry(class).or_default().push(moment);
        if !self.describes(class) {
            return;
        }
        *self.described.entry(class).or_insert(0) += 1;
        let records = records
            .iter()
            .map(|(client, at)| RecordRef { client: *client, record: at.record })
            .collect();
        let Moment { at, since, late, pair } = moment;
        let violation = Violation {
            class,
            name: self.lock(lock),
            at,
            since,
            late,
            pair,
            sentence: sentence(self),
            records,
        };
        self.report.violations.push(violation);
    }
}
