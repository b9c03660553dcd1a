//! The harm that is done: which faults are under way, what is written down about them, how often
//! each hit somebody, and what they excuse.
//!
//! A fault that could not begin is not ended. One that could not be ended is tried again until it
//! is, and is under way, and excuses what it does, for as long; if it never is, what came after it
//! is not judged.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::arena::{Failed, Mended};
use super::excuse::Excuses;
use super::fault::KILL;
use super::nemesis::Planned;
use super::say;
use crate::history::{Record, What, Writer};
use crate::interrupt;

/// How often what could not be ended is tried again.
const AGAIN_EVERY: Duration = Duration::from_millis(250);
/// After so long it cannot be.
const STUCK_MAX: Duration = Duration::from_secs(10);

/// Who does it and ends it.
pub(super) trait World {
    /// Which process it would hit, 0 for none in particular; or why there is nobody that it could
    /// hit.
    fn target(&mut self, planned: &Planned) -> Result<u64, String>;
    /// Begins it.
    fn strike(&mut self, planned: &Planned) -> Result<(), Failed>;
    /// Ends it.
    fn mend(&mut self, planned: &Planned) -> Result<Mended, String>;
}

/// See the module.
pub(super) struct Harm {
    /// The nemesis' history.
    log: Writer,
    excuses: Excuses,
    under_way: Vec<UnderWay>,
    happened: BTreeMap<&'static str, u64>,
    /// How long the longest fault lasted until it was mended.
    longest: Duration,
    tried: Instant,
}

struct UnderWay {
    planned: Planned,
    /// The process that was hit when it began; another may have taken its place.
    target: u64,
    since: Instant,
    /// Whether it was begun as a whole.
    counted: bool,
    stuck: Option<Stuck>,
}

/// A fault that could not be ended.
#[derive(Clone, Debug)]
struct Stuck {
    at: u64,
    since: Instant,
    why: String,
}

impl Harm {
    pub(super) fn new(log: Writer, excuses: Excuses) -> Self {
        Self {
            log,
            excuses,
            under_way: Vec::new(),
            happened: BTreeMap::new(),
            longest: Duration::ZERO,
            tried: Instant::now(),
        }
    }

    /// Begins a fault of the schedule, if there is somebody that it can hit.
    pub(super) fn begin(&mut self, planned: Planned, world: &mut dyn World) {
        let fault = planned.fault;
        if let Some(before) = self
            .under_way
            .iter()
            .find(|other| other.stuck.is_some() && other.planned.is_where(&planned))
        {
            return say(&format!(
                "{} is not begun: {} could not be ended yet",
                fault.name, before.planned.fault.name
            ));
        }
        let target = match world.target(&planned) {
            Ok(target) => target,
            Err(why) => return say(&format!("{} is not counted: {why}", fault.name)),
        };
        // Written before it does anything: a killed holder's interval ends here at the latest, and
        // nobody was late before.
        let what = if fault.name == KILL { What::Kill } else { What::FaultBegin };
        self.log.write_text(fault.name, Record::new(what).number(target));
        self.excuses.begin(fault, target, Writer::now());
        let begun =
            |counted| UnderWay { planned, target, since: Instant::now(), counted, stuck: None };
        match world.strike(&planned) {
            Ok(()) => {
                *self.happened.entry(fault.name).or_default() += 1;
                self.under_way.push(begun(true));
            }
            Err(Failed::Undone(why)) => {
                say(&format!("{} is not counted: {why}", fault.name));
                self.excuses.failed(fault, target);
                self.write_end(&planned, target);
            }
            Err(Failed::Half(why)) => {
                say(&format!("{} is not counted: {why}", fault.name));
                self.under_way.push(begun(false));
                self.end_at(self.under_way.len() - 1, world);
            }
        }
    }

    /// Ends it, if it began.
    pub(super) fn end(&mut self, planned: &Planned, world: &mut dyn World) {
        if let Some(at) =
            self.under_way.iter().position(|u| u.planned == *planned && u.stuck.is_none())
        {
            self.end_at(at, world);
        }
    }

    /// Tries again what could not be ended, now and then.
    pub(super) fn look(&mut self, world: &mut dyn World) {
        if self.tried.elapsed() >= AGAIN_EVERY && self.under_way.iter().any(|u| u.stuck.is_some()) {
            self.end_those(world, |u| u.stuck.is_some());
        }
    }

    /// Ends all that are under way: nothing is left stopped, held or starved.
    pub(super) fn end_all(&mut self, world: &mut dyn World) {
        self.end_those(world, |_| true);
        while !self.under_way.is_empty() && !self.is_for_good() && !interrupt::insists() {
            std::thread::sleep(AGAIN_EVERY);
            self.end_those(world, |_| true);
        }
    }

    fn end_those(&mut self, world: &mut dyn World, which: impl Fn(&UnderWay) -> bool) {
        for at in (0..self.under_way.len()).rev() {
            if self.under_way.get(at).is_some_and(&which) {
                self.end_at(at, world);
            }
        }
        self.tried = Instant::now();
    }

    fn end_at(&mut self, at: usize, world: &mut dyn World) {
        let Some(of) = self.under_way.get_mut(at) else { return };
        let fault = of.planned.fault;
        match world.mend(&of.planned) {
            Err(why) => {
                if of.stuck.is_none() {
                    say(&format!("{} could not be ended, which is tried again: {why}", fault.name));
                }
                let first = Stuck { at: Writer::now(), since: Instant::now(), why: String::new() };
                of.stuck.get_or_insert(first).why = why;
            }
            Ok(mended) => {
                let of = self.under_way.swap_remove(at);
                match mended {
                    Mended::HitNobody(why) if of.counted => self.take_back(&of, why),
                    _ => self.excuses.end(fault, of.target, Writer::now()),
                }
                self.write_end(&of.planned, of.target);
                self.longest = self.longest.max(of.since.elapsed());
            }
        }
    }

    fn take_back(&mut self, of: &UnderWay, why: &str) {
        let name = of.planned.fault.name;
        self.excuses.failed(of.planned.fault, of.target);
        if let Some(count) = self.happened.get_mut(name) {
            *count = count.saturating_sub(1);
        }
        self.happened.retain(|_, count| *count > 0);
        say(&format!("{name} is not counted: {why}"));
    }

    fn write_end(&self, planned: &Planned, target: u64) {
        if planned.fault.name != KILL {
            self.log.write_text(planned.fault.name, Record::new(What::FaultEnd).number(target));
        }
    }

    /// Whether one of this name is under way.
    pub(super) fn is_under_way(&self, name: &str) -> bool {
        self.under_way.iter().any(|u| u.planned.fault.name == name)
    }

    /// Whether one can be ended no more.
    pub(super) fn is_for_good(&self) -> bool {
        self.under_way
            .iter()
            .filter_map(|u| u.stuck.as_ref())
            .any(|stuck| stuck.since.elapsed() > STUCK_MAX)
    }

    /// Since when one could not be ended that still is not, and which, and why.
    pub(super) fn stuck(&self) -> Option<(u64, String)> {
        let all =
            self.under_way.iter().filter_map(|u| Some((u.stuck.as_ref()?, u.planned.fault.name)));
        let (stuck, name) = all.min_by_key(|(stuck, _)| stuck.at)?;
        Some((stuck.at, format!("{name} could not be ended: {}", stuck.why)))
    }

    /// How often each hit somebody.
    pub(super) fn happened(&self) -> &BTreeMap<&'static str, u64> {
        &self.happened
    }

    /// How long the longest lasted until it was mended.
    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    pub(super) fn excuses(&self) -> &Excuses {
        &self.excuses
    }

    /// Nothing that comes after it is judged.
    pub(super) fn blind_from(&mut self, at: u64) {
        self.excuses.blind_from(at);
    }
}

#[cfg(test)]
mod tests;
