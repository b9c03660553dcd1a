//! What processes, network and server are, whatever happens next.

use std::hash::Hash;

use super::process::{Process, Sent, Task};
use super::register::{Push, Server, Way};
use super::{Message, World};

impl<S: Server> World<S> {
    /// What the way from here to the end depends on, where nothing goes wrong any more.
    pub(super) fn what_goes_on(&self) -> impl Hash + '_ {
        let tokens = (self.greatest_token, self.tokens_rise);
        (
            self.now,
            self.jumped,
            self.asleep,
            &self.processes,
            &self.server,
            &self.network,
            &self.forgotten,
            tokens,
        )
    }

    pub(super) fn remove(&mut self, message: &Message) {
        let at = self.network.iter().position(|m| m == message).expect("it is under way");
        self.network.remove(at);
    }

    /// What a step of a process sends, and what the server tells unasked.
    pub(super) fn sent(&mut self, from: u8, sent: Sent, pushes: Vec<Push>) {
        self.passed |= sent.passed;
        self.wrong_end |= sent.wrong_end;
        if let Some(task) = sent.converted {
            self.converted = true;
            self.note_token(from, task, true);
        }
        self.network.extend(sent.calls.into_iter().map(|(number, call)| Message::Call {
            process: from,
            number,
            call,
        }));
        let alive = |push: &Push| self.processes[usize::from(push.process)].alive;
        self.network.extend(pushes.into_iter().filter(alive).map(Message::Push));
        self.network.sort();
    }

    /// Nobody of the living does or waits for anything.
    pub(super) fn is_quiet(&self) -> bool {
        self.processes.iter().all(|p| !p.alive || p.is_quiet())
    }

    /// Nobody waits for the answer any more; the call may still arrive.
    pub(super) fn give_up(&mut self, process: u8, number: u8) {
        let mine = |m: &Message| {
            let (Message::Call { process: p, number: n, .. }
            | Message::Reply { process: p, number: n, .. }) = m
            else {
                return false;
            };
            (*p, *n) == (process, number)
        };
        if let Some(at) = self.network.iter().position(mine)
            && let Message::Call { process, call, .. } = self.network.remove(at)
        {
            self.network.push(Message::Late { process, call });
            self.network.sort();
        }
    }

    pub(super) fn die(&mut self, p: u8) {
        let process = &mut self.processes[usize::from(p)];
        let tasks = process.tasks.len();
        *process = Process::new(tasks);
        process.alive = false;
        for message in std::mem::take(&mut self.network) {
            match message {
                Message::Call { process, call, .. } if process == p => {
                    self.network.push(Message::Late { process, call })
                }
                Message::Reply { process, .. } if process == p => {}
                Message::Push(push) if push.process == p => {}
                other => self.network.push(other),
            }
        }
        self.network.sort();
    }

    /// Once everybody is done, nothing of the living is left: neither on the server nor in memory.
    pub(super) fn is_clean(&self) -> Result<(), &'static str> {
        let alive = |p: u8| self.processes[usize::from(p)].alive;
        if self.server.owners(self.now + self.jumped).into_iter().any(alive) {
            return Err("something is left on the server");
        }
        if self.processes.iter().any(|p| p.alive && p.residue()) {
            return Err("something is left in memory");
        }
        Ok(())
    }

    /// A task has taken its turn, or its turn was converted: tokens of writers rise, and a
    /// converted one's is above all of them.
    pub(super) fn note_token(&mut self, p: u8, task: usize, converted: bool) {
        let process = &self.processes[usize::from(p)];
        let Some(Task::Has { token, hold, way, .. }) = process.tasks.get(task).cloned() else {
            return;
        };
        // One that the server has forgotten meanwhile is older than it looks.
        if !process.believes(self.now, &process.tasks[task])
            || !self.server.has(self.now + self.jumped, hold, way)
        {
            return;
        }
        if converted || way == Way::Exclusive {
            self.tokens_rise &= token > self.greatest_token;
        }
        if way == Way::Exclusive {
            self.greatest_token = token;
        }
    }

    /// Every turn that believes in its hold has it, or had it when the server lost its data, and
    /// its lease goes on.
    pub(super) fn believing_is_holding(&self) -> bool {
        let server_now = self.now + self.jumped;
        self.processes.iter().filter(|p| p.alive).all(|process| {
            process.tasks.iter().filter(|task| process.believes(self.now, task)).all(|task| {
                let Some((hold, way)) = task.may() else { return true };
                let forgotten =
                    || self.forgotten.iter().any(|(id, until)| *id == hold && server_now < *until);
                self.server.has(server_now, hold, way) || forgotten()
            })
        })
    }

    /// The server lets nobody in beside somebody who is to be alone.
    pub(super) fn holders_exclude_each_other(&self) -> bool {
        let ways = self.server.ways(self.now + self.jumped);
        ways.iter()
            .enumerate()
            .all(|(at, one)| ways.iter().skip(at + 1).all(|other| one.lives_with(*other)))
    }

    /// Where nothing is on its way, the server has each hold the way its holder does.
    pub(super) fn holds_are_as_they_are_known(&self) -> bool {
        (0..)
            .zip(&self.processes)
            .filter(|(p, process)| {
                process.alive && process.asks_nothing() && !self.is_on_its_way(*p)
            })
            .all(|(_, process)| {
                process.tasks.iter().filter(|task| process.believes(self.now, task)).all(|task| {
                    let Task::Has { hold, way, .. } = task else { return true };
                    self.server.way(self.now + self.jumped, *hold).is_none_or(|has| has == *way)
                })
            })
    }

    fn is_on_its_way(&self, p: u8) -> bool {
        self.network.iter().any(|message| match message {
            Message::Call { process, .. }
            | Message::Reply { process, .. }
            | Message::Late { process, .. } => *process == p,
            Message::Push(push) => push.process == p,
        })
    }
}
