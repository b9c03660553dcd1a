//! What processes, network and server are, whatever happens next.

use super::process::{Process, Task};
use super::register::Server;
use super::{Message, World};

impl<S: Server> World<S> {
    pub(super) fn remove(&mut self, message: &Message) {
        let at = self.network.iter().position(|m| m == message).expect("it is under way");
        self.network.remove(at);
    }

    /// Nobody waits for the answer any more; the call may still arrive.
    pub(super) fn give_up(&mut self, process: u8, number: u8) {
        let mine = |m: &Message| matches!(m, Message::Call { process: p, number: n, .. } | Message::Reply { process: p, number: n, .. } if (*p, *n) == (process, number));
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
                Message::Call { process, call, .. } if process == p => self.network.push(Message::Late { process, call }),
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

    /// Every turn that believes in its hold has it.
    pub(super) fn believing_is_holding(&self) -> bool {
        let server_now = self.now + self.jumped;
        self.processes.iter().filter(|p| p.alive).all(|process| {
            process.tasks.iter().filter(|task| process.believes(self.now, task)).all(|task| {
                let Task::Has { hold, .. } = task else { return true };
                self.server.has(server_now, *hold)
            })
        })
    }
}
