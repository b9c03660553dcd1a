//! A lock that is kept: what the guardian's duty asks for, done.

use std::time::Duration;

use lockkeeper::Held;
use nix::sys::signal::Signal;

use super::duty::{Action, Duty, Event, Margins, Times};
use super::target::Target;
use super::{Guardian, Tell};
use crate::start::{Moment, moment};

/// The longest time between two looks at a group that is ending.
const LOOK: Duration = Duration::from_millis(50);
/// How long after a KILL the lock stays, although nothing of the group runs any more: a lockkeeper
/// in it had a guardian of its own, which ends what that one ran.
const SETTLE: Duration = Duration::from_millis(100);
/// The same while nothing presses.
const LOOK_SELDOM: Duration = Duration::from_millis(500);

/// See the module.
pub struct Watch<'a> {
    guardian: &'a Guardian,
    held: &'a Held,
    duty: Duty,
    /// The command, once it runs.
    pub target: Option<Target>,
    /// Whether the lock is to be given back now.
    pub is_over: bool,
    kill_after: Duration,
    left: bool,
    empty: bool,
    settling: bool,
    look: Duration,
    looked: Moment,
}

impl<'a> Watch<'a> {
    pub fn new(guardian: &'a Guardian, held: &'a Held, granted: Moment, margins: Margins) -> Self {
        let (look, looked) = (Duration::from_millis(1), Moment::ZERO);
        let duty = Duty::new(guardian.order.care, margins, granted);
        Self {
            guardian,
            held,
            duty,
            target: None,
            is_over: false,
            kill_after: margins.kill_after,
            left: false,
            empty: false,
            settling: false,
            look,
            looked,
        }
    }

    /// Reckons anew until when the lease lasts.
    pub fn reckon(&mut self) {
        // Read first: a pause in between must not make the deadline later than it is.
        let now = moment();
        if let Some(left) = self.held.remaining() {
            let times = Times::of(now + left, self.kill_after);
            self.guardian.sheet.write(times);
            self.step(Event::Until(times));
        }
    }

    /// Whoever hired us is gone.
    pub fn leave(&mut self) {
        if !std::mem::replace(&mut self.left, true) {
            self.step(Event::Gone);
        }
    }

    /// Tells the duty what happened, and does what it asks for.
    pub fn step(&mut self, event: Event) {
        let mut out = Vec::new();
        self.duty.step(moment(), event, &mut out);
        for action in out {
            match action {
                Action::TellStopping(why, kill_by) => {
                    self.guardian.tell(&Tell::Stopping { why, kill_by })
                }
                Action::TellLost(why) => self.guardian.tell(&Tell::Lost { why }),
                Action::Ask => self.held.renew_now(),
                Action::Send(signal) => self.target.iter().for_each(|target| target.signal(signal)),
                Action::End => self.is_over = true,
                Action::TakeBack { in_any_case } => {
                    let is_due = in_any_case || self.guardian.order.is_stopped();
                    self.is_over |= is_due && self.guardian.sheet.take_back();
                }
            }
        }
    }

    /// Looks whether anything of the command still runs, after it has ended itself.
    pub fn look(&mut self) {
        let Some(target) = self.target.as_ref().filter(|target| !self.empty && target.has_ended())
        else {
            return;
        };
        let now = moment();
        if now < self.looked + self.look {
            return;
        }
        self.looked = now;
        self.look = if self.duty.is_ending() { LOOK.min(self.look * 2) } else { LOOK_SELDOM };
        if self.guardian.order.care.leave_children || !target.is_alive() {
            if self.duty.was_killed() && !std::mem::replace(&mut self.settling, true) {
                self.look = SETTLE;
                return;
            }
            self.empty = true;
            self.step(Event::Empty);
        } else if self.duty.was_killed() {
            // A process that was being forked when the KILL came is killed too.
            target.signal(Signal::SIGKILL);
        }
    }

    /// Sleeps until something is to be done.
    pub fn rest(&self) {
        if self.is_over {
            return;
        }
        let now = moment();
        let ends = self.target.as_ref().filter(|_| !self.empty);
        let has_ended = ends.is_some_and(Target::has_ended);
        let look = (ends.is_some() && has_ended).then_some(self.looked + self.look);
        // Without a descriptor that tells of the end it is looked for.
        let blind = ends.filter(|target| target.end().is_none()).map(|_| now + LOOK_SELDOM);
        let next = [self.duty.next(), look, blind].into_iter().flatten().min();
        self.guardian.pause(
            next.map(|at| at.saturating_sub(now)),
            true,
            ends.filter(|_| !has_ended),
        );
    }
}
