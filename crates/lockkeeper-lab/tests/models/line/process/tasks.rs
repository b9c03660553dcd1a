//! What the tasks of a process do: they ask, take, convert, leave and give back.

use std::time::Duration;

use lockkeeper::test_util::machines::line::{Ask, Event, Shape};
use lockkeeper::{ClaimId, Mode, Through};

use super::super::register::{TTL, Way};
use super::super::{Flaw, Plan};
use super::{Process, Sent, Task, seconds, ticks};

impl Process {
    /// A task waits from now on, with a claim of its own that waits for as long as it takes.
    fn drawn(&mut self, me: u8, task: usize, mode: Mode) -> Ask {
        let seq = self.line.draw_seq();
        self.tasks[task] = Task::Waits(seq);
        self.drawn += 1;
        let shape = Shape {
            mode,
            ttl: seconds(TTL),
            renew: true,
            margin: None,
            lock_delay: Duration::ZERO,
            own_value: false,
            through: Through::Mutex,
        };
        Ask {
            seq,
            id: ClaimId(u128::from(me) * 100 + u128::from(self.drawn)),
            shape,
            try_only: false,
            sent_elsewhere: false,
            give_up: None,
            patient: false,
        }
    }

    pub fn ask(
        &mut self,
        now: u64,
        me: u8,
        task: usize,
        plan: Plan,
        flaw: Option<Flaw>,
        out: &mut Sent,
    ) {
        let ask = Ask {
            try_only: plan.trying,
            give_up: plan.patience.map(|p| ticks(now + p)),
            patient: plan.patience.is_some() && !plan.trying,
            ..self.drawn(me, task, plan.mode)
        };
        self.step(now, Event::Ask(ask), flaw, out);
    }

    /// Stands for one name of several, which are asked for in one message; answers its claim, and
    /// until when that may arrive.
    pub fn reserve(&mut self, now: u64, me: u8, task: usize, out: &mut Sent) -> (ClaimId, u64) {
        let one_of_several = self.drawn(me, task, Mode::Exclusive);
        let (id, ask) =
            (one_of_several.id, Ask { try_only: true, sent_elsewhere: true, ..one_of_several });
        self.step(now, Event::Ask(ask), None, out);
        (id, self.may_arrive_until(now, id))
    }

    pub fn take(&mut self, now: u64, task: usize, way: Way, flaw: Option<Flaw>, out: &mut Sent) {
        if let Task::Offered { seq, hold, token } = self.tasks[task] {
            self.tasks[task] = Task::Has { seq, hold, token, way, turned: 0 };
            self.step(now, Event::Take(seq), flaw, out);
        }
    }

    /// The future is dropped.
    pub fn leave(&mut self, now: u64, task: usize, flaw: Option<Flaw>, out: &mut Sent) {
        if let Task::Waits(seq) | Task::Offered { seq, .. } = self.tasks[task] {
            let fresh =
                matches!(self.tasks[task], Task::Offered { hold, .. } if self.is_fresh(now, hold));
            self.tasks[task] = Task::Over;
            self.step(now, Event::Cancel { seq, fresh }, flaw, out);
        }
    }

    /// The guard is dropped.
    pub fn give(&mut self, now: u64, task: usize, flaw: Option<Flaw>, out: &mut Sent) {
        if let Task::Has { seq, hold, .. } | Task::Converts { seq, hold, .. } = self.tasks[task] {
            let fresh = self.is_fresh(now, hold);
            self.tasks[task] = Task::Over;
            self.step(now, Event::TurnOver { seq, fresh }, flaw, out);
        }
    }

    /// The turn is to be another: an upgrade, a downgrade, or back from writing.
    pub fn convert(
        &mut self,
        now: u64,
        me: u8,
        task: usize,
        to: Mode,
        flaw: Option<Flaw>,
        out: &mut Sent,
    ) {
        if let Task::Has { seq, hold, token, way, turned } = self.tasks[task] {
            if way == to.into() {
                // What it has already, after an upgrade that it left, is not asked for.
                self.tasks[task] = Task::Has { seq, hold, token, way, turned: turned + 1 };
                return;
            }
            self.tasks[task] = Task::Converts { seq, hold, token, way, to: to.into(), turned };
            self.drawn += 1;
            let id = ClaimId(u128::from(me) * 100 + u128::from(self.drawn));
            self.step(now, Event::Convert { seq, id, to, give_up: None }, flaw, out);
        }
    }

    /// The future of a conversion is dropped: what wanted more stays as it was, what wanted less
    /// gives everything back.
    pub fn waver(&mut self, now: u64, task: usize, flaw: Option<Flaw>, out: &mut Sent) {
        let Task::Converts { seq, hold, token, way, to, turned } = self.tasks[task] else { return };
        self.tasks[task] = Task::Has { seq, hold, token, way, turned: turned + 1 };
        // Nobody waits for the way back from writing: it goes on until the guard is dropped.
        if to != Way::Upgradable {
            self.step(now, Event::CancelConvert { seq }, flaw, out);
        }
        if !to.covers(way) {
            self.give(now, task, flaw, out);
        }
    }
}
