//! How slots move between the nodes of a cluster of our own.
//!
//! Each move is made as redis-cli makes it, after everybody has heard of an epoch of the new node
//! that is above all others. Redis needs that where a slot moves to and fro: two moves that follow
//! each other faster than the nodes talk can give two nodes the same epoch. A word of the older
//! move that comes late then takes the slot back at some of them, for good, and a node that
//! believes it removes the keys.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::server::AGREED_WITHIN;
use crate::redis::resp::ask_once;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The nodes as they are now, by their places.
#[derive(Clone)]
pub struct Moves {
    /// Their ports; none where a node does not run.
    ports: Vec<Option<u16>>,
}

/// A node as another one sees it.
pub(super) struct Seen {
    pub(super) id: String,
    pub(super) port: u16,
    flags: String,
    epoch: u64,
    pub(super) slots: Vec<RangeInclusive<usize>>,
    /// Slots that it is giving away, and to whom.
    leaving: Vec<(usize, String)>,
    /// Slots that it may be getting.
    coming: Vec<usize>,
}

impl Seen {
    /// Reads a line of CLUSTER NODES.
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let id = words.next()?.to_owned();
        let port = words.next()?.split([':', '@']).nth(1)?.parse().ok()?;
        let flags = words.next()?.to_owned();
        let epoch = words.nth(3)?.parse().ok()?;
        let (mut slots, mut leaving, mut coming) = (Vec::new(), Vec::new(), Vec::new());
        for word in words.skip(1) {
            if let Some(open) = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')) {
                if let Some((slot, to)) = open.split_once("->-") {
                    leaving.push((slot.parse().ok()?, to.to_owned()));
                } else if let Some((slot, _)) = open.split_once("-<-") {
                    coming.push(slot.parse().ok()?);
                }
                continue;
            }
            let (from, to) = word.split_once('-').unwrap_or((word, word));
            slots.push(from.parse().ok()?..=to.parse().ok()?);
        }
        Some(Self { id, port, flags, epoch, slots, leaving, coming })
    }

    pub(super) fn has(&self, slot: usize) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }

    fn is(&self, flag: &str) -> bool {
        self.flags.split(',').any(|one| one == flag)
    }

    /// Whether it counts, or may count, as down.
    pub(super) fn is_down(&self) -> bool {
        self.is("fail") || self.is("fail?")
    }
}

impl Moves {
    pub(super) fn over(ports: Vec<Option<u16>>) -> Self {
        Self { ports }
    }

    pub(super) fn ask(&self, at: usize, words: &[&str]) -> Result<Vec<String>, String> {
        let port = self.ports.get(at).copied().flatten().ok_or("that node does not run")?;
        ask_once(port, PATIENCE, None, words)
    }

    pub(super) fn tell(&self, at: usize, words: &[&str]) -> Result<(), String> {
        let answer = self.ask(at, words)?;
        if answer == ["OK"] { Ok(()) } else { Err(format!("{words:?} at {at}: {answer:?}")) }
    }

    /// All nodes as one of them sees them.
    pub(super) fn seen_by(&self, at: usize) -> Result<Vec<Seen>, String> {
        let text = self.ask(at, &["CLUSTER", "NODES"])?.concat();
        let read = |line| Seen::read(line).ok_or_else(|| format!("CLUSTER NODES says {line:?}"));
        text.lines().map(read).collect()
    }

    /// A node as it sees itself.
    fn own(&self, at: usize) -> Result<Seen, String> {
        let own = self.seen_by(at)?.into_iter().find(|seen| seen.is("myself"));
        own.ok_or_else(|| "a node does not know itself".to_owned())
    }

    pub(super) fn running(&self) -> impl Iterator<Item = usize> {
        self.ports.iter().enumerate().filter(|(_, port)| port.is_some()).map(|(at, _)| at)
    }

    /// Those that run and are no replicas.
    ///
    /// # Errors
    /// What a node answers instead.
    pub fn masters(&self) -> Result<Vec<usize>, String> {
        let mut masters = Vec::new();
        for at in self.running() {
            if self.ask(at, &["ROLE"])?.first().is_some_and(|role| role == "master") {
                masters.push(at);
            }
        }
        Ok(masters)
    }

    /// A slot in which a node has a key.
    ///
    /// # Errors
    /// What a node answers instead.
    pub fn used_slot(&self, at: usize) -> Result<Option<usize>, String> {
        let key = self.ask(at, &["RANDOMKEY"])?.concat();
        if key == "(nil)" {
            return Ok(None);
        }
        Ok(self.ask(at, &["CLUSTER", "KEYSLOT", &key])?.concat().parse().ok())
    }

    /// The slots of a node that has few.
    ///
    /// # Errors
    /// What a node answers instead.
    pub fn slots_of(&self, at: usize) -> Result<Vec<usize>, String> {
        Ok(self.own(at)?.slots.into_iter().flatten().collect())
    }

    fn id(&self, at: usize) -> Result<String, String> {
        Ok(self.ask(at, &["CLUSTER", "MYID"])?.concat())
    }

    /// Begins to move a slot: until it is finished both nodes have a part of it.
    pub(super) fn open(&self, slot: usize, from: usize, to: usize) -> Result<(), String> {
        let (slot, from_id, to_id) = (slot.to_string(), self.id(from)?, self.id(to)?);
        self.tell(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id])?;
        self.tell(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id])
    }

    /// Moves the keys of a slot that was opened.
    pub(super) fn move_keys(&self, slot: usize, from: usize, to: usize) -> Result<(), String> {
        let port = self.ports.get(to).copied().flatten().ok_or("the new node does not run")?;
        let (slot, port) = (slot.to_string(), port.to_string());
        loop {
            let keys = self.ask(from, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"])?;
            if keys.is_empty() {
                return Ok(());
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            let answer = self.ask(from, &words)?.concat();
            if answer != "OK" && answer != "NOKEY" {
                return Err(format!("MIGRATE of {keys:?}: {answer}"));
            }
        }
    }

    /// Ends the move of a slot; everybody is told, first the one that has it now.
    pub(super) fn close(&self, slot: usize, from: usize, to: usize) -> Result<(), String> {
        self.raise(to)?;
        let (slot, id) = (slot.to_string(), self.id(to)?);
        let others = self.masters()?.into_iter().filter(|at| *at != to && *at != from);
        for at in [to, from].into_iter().chain(others) {
            self.tell(at, &["CLUSTER", "SETSLOT", &slot, "NODE", &id])?;
        }
        Ok(())
    }

    /// Moves slots with all their keys, and waits until all nodes know of it.
    ///
    /// # Errors
    /// What a node answers instead.
    pub fn slots(&self, slots: &[usize], from: usize, to: usize) -> Result<(), String> {
        // First, so that no slot is open for as long as that takes.
        self.raise(to)?;
        for slot in slots {
            self.open(*slot, from, to)?;
            self.move_keys(*slot, from, to)?;
            self.close(*slot, from, to)?;
        }
        self.until_at(slots, to)
    }

    fn until_at(&self, slots: &[usize], to: usize) -> Result<(), String> {
        let port = self.ports.get(to).copied().flatten().unwrap_or_default();
        self.until("everybody knows of the move", || {
            for at in self.running() {
                let seen = self.seen_by(at)?;
                let there = |slot: &usize| seen.iter().any(|s| s.port == port && s.has(*slot));
                if !slots.iter().all(there) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Gives a node an epoch above all others, and waits until everybody has heard of it.
    fn raise(&self, to: usize) -> Result<(), String> {
        self.until("everybody has heard of the newest epoch", || {
            self.ask(to, &["CLUSTER", "BUMPEPOCH"])?;
            let own = self.own(to)?;
            for at in self.running().filter(|at| *at != to) {
                let seen = self.seen_by(at)?;
                let knows = seen.iter().any(|seen| seen.id == own.id && seen.epoch == own.epoch);
                let rival = |seen: &Seen| seen.is("myself") && seen.is("master");
                if !knows || seen.iter().any(|seen| rival(seen) && seen.epoch >= own.epoch) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Finishes every move that was begun.
    ///
    /// # Errors
    /// What a node answers instead.
    pub fn finish(&self) -> Result<(), String> {
        for from in self.masters()? {
            for (slot, id) in self.own(from)?.leaving {
                let all = self.seen_by(from)?;
                let port = all.iter().find(|seen| seen.id == id).map(|seen| seen.port);
                let to = self.ports.iter().position(|of| of.is_some() && *of == port);
                let to = to.ok_or_else(|| format!("the slot {slot} is going nowhere"))?;
                // The new node may have forgotten of it.
                self.open(slot, from, to)?;
                self.move_keys(slot, from, to)?;
                self.close(slot, from, to)?;
                self.until_at(&[slot], to)?;
            }
        }
        for at in self.masters()? {
            for slot in self.own(at)?.coming {
                self.tell(at, &["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"])?;
            }
        }
        Ok(())
    }

    pub(super) fn until(
        &self,
        what: &str,
        mut so: impl FnMut() -> Result<bool, String>,
    ) -> Result<(), String> {
        let end = Instant::now() + AGREED_WITHIN;
        while !so()? {
            if Instant::now() > end {
                let seen = self.running().map(|at| self.ask(at, &["CLUSTER", "NODES"]));
                let seen: Vec<String> = seen.flatten().map(|lines| lines.concat()).collect();
                return Err(format!("waited in vain until {what}: {seen:#?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}
