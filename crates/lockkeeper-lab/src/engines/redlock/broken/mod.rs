//! Locks on a quorum, as the articles print them and as libraries shorten them.

mod counts_restarted;
mod ignores_validity;
mod no_drift_extend;
mod one_phase_token;

use std::io;
use std::time::Duration;

use lockkeeper_testkit::redis::resp::{Reply, Resp};

use crate::engines::redis::broken::COMPARE_AND_DELETE;
use crate::history::Writer;
use crate::torture::broken::{self, Broken, Strike};
use crate::torture::orders::Orders;
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock};

pub(crate) const ALL: &[&Broken] = &[
    &ignores_validity::THIS,
    &no_drift_extend::THIS,
    &counts_restarted::THIS,
    &one_phase_token::THIS,
];

/// What they have in common.
const BASE: Broken = Broken { url: "redlock:auto?members=3", ..broken::BASE };

/// How often they ask again.
const EVERY: Duration = Duration::from_millis(5);

/// Connections to the members, and the value that this holder puts into keys.
struct Quorum {
    members: Vec<Resp>,
    name: String,
    value: String,
    ttl: Duration,
}

impl Quorum {
    /// Each answer is waited for so long.
    fn of(orders: &Orders, task: u32, ttl: Duration, patience: Duration) -> Result<Self, String> {
        let members = ports(&orders.url).ok_or("these members cannot be reached")?;
        let members = members.into_iter().map(|port| Resp::to(port, patience)).collect();
        let value = format!("{}:{}:{task}", orders.label, std::process::id());
        Ok(Self { members, name: String::new(), value, ttl })
    }

    /// A lease in nanoseconds, and what remains of it when clocks may differ by a tenth.
    fn lease(&self) -> (u64, u64) {
        let whole = u64::try_from(self.ttl.as_nanos()).unwrap_or(u64::MAX);
        (whole, whole / 10 * 9)
    }

    /// Asks one after the other, as the articles do: how many say yes.
    fn ask(&mut self, words: &[&str]) -> usize {
        // Who does not answer says no.
        let yes = |member: &mut Resp| member.ask(words).is_ok_and(|reply| reply.is_ok());
        self.members.iter_mut().map(yes).filter(|yes| *yes).count()
    }

    fn is_majority(&self, yes: usize) -> bool {
        yes > self.members.len() / 2
    }

    /// `SET name value NX PX ttl` on all of them: when it was begun, if a majority did it.
    fn set(&mut self, name: &str) -> Option<u64> {
        self.name = name.to_owned();
        let (before, value) = (Writer::now(), self.value.clone());
        let ttl = self.ttl.as_millis().to_string();
        let yes = self.ask(&["SET", name, &value, "NX", "PX", &ttl]);
        if self.is_majority(yes) {
            return Some(before);
        }
        self.free();
        None
    }

    /// Deletes the key where it has our value.
    fn free(&mut self) -> Ending {
        let (name, value) = (self.name.clone(), self.value.clone());
        let words = ["EVAL", COMPARE_AND_DELETE, "1", &name, &value];
        let (mut gone, mut not_ours) = (0, 0);
        for member in &mut self.members {
            match member.ask(&words) {
                Ok(Reply::Number(1)) => gone += 1,
                Ok(Reply::Number(_)) => not_ours += 1,
                _ => {}
            }
        }
        match (self.is_majority(gone), self.is_majority(not_ours)) {
            (true, _) => Ending::Released,
            (_, true) => Ending::NotOurs,
            _ => Ending::Unknown,
        }
    }
}

type Take = fn(&mut Quorum, &str) -> Option<Grant>;

/// A quorum, with a way of its own to take it.
struct Lock {
    quorum: Quorum,
    take: Take,
}

impl Lock {
    fn boxed(quorum: Result<Quorum, String>, take: Take) -> Result<Box<dyn RawLock>, String> {
        Ok(Box::new(Self { quorum: quorum?, take }))
    }
}

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        give_up.poll(EVERY, || Ok((self.take)(&mut self.quorum, name)))
    }

    fn release(&mut self) -> io::Result<Ending> {
        Ok(self.quorum.free())
    }
}

/// Where the members are.
fn ports(url: &str) -> Option<Vec<u16>> {
    let rest =
        ["redlock-lab://", "redlock://"].iter().find_map(|scheme| url.strip_prefix(scheme))?;
    let hosts = rest.split(['?', '/']).next()?;
    hosts.split(',').map(|at| at.strip_prefix("127.0.0.1:")?.parse().ok()).collect()
}
