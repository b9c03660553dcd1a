//! Connecting to the members, staying connected, and parting from them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::wire::Member;
use super::{Connected, Quorum, errors};
use crate::engine::Event;
use crate::engine::either::either;
use crate::words::error::{Error, ErrorKind, Result};

/// How long the reasons are waited for why members were not connected in time.
const REASON: Duration = Duration::from_millis(50);

/// What runs the timer. Without it, perhaps because its runtime has ended, nobody waits any more,
/// and whoever would wait again and again leaves it at that.
struct Times(Arc<Quorum>);

impl Drop for Times {
    fn drop(&mut self) {
        self.0.closing();
        self.0.timer.close();
    }
}

impl Quorum {
    /// Connects to all members. A majority is enough, whatever the others say; they have a moment
    /// more, and go on being tried.
    ///
    /// # Errors
    /// Too few can be used, or one is of a newer layout.
    pub(super) async fn open(self: &Arc<Self>) -> Result<()> {
        let times = Times(self.clone());
        self.context.spawner.spawn(async move { times.0.timer.run().await });
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for at in 0..self.members.len() {
            self.context.spawner.spawn(self.clone().keep_member(at, sender.clone()));
        }
        drop(sender);
        // A member that does not answer in its own time says why, which is worth a moment.
        let begun = Instant::now();
        let mut until = begun + self.options.connect_timeout + REASON;
        let (mut up, mut errors) = (0, Vec::new());
        while up + errors.len() < self.members.len() {
            let next = std::pin::pin!(receiver.recv());
            let Ok(Some((at, outcome))) = either(next, std::pin::pin!(sleep_until(until))).await
            else {
                break;
            };
            match outcome {
                Ok(()) => up += 1,
                // Whoever went on without it might let a second holder in: its rules are not known.
                Err(error) if error.kind() == ErrorKind::NewerLayout => return Err(error),
                Err(error) => errors.push((at, error)),
            }
            let enough = up == self.options.majority();
            if enough || errors::are_too_few_left(&self.options, &errors) {
                let moment = self.patience(self.options.ttl);
                until = until.min(Instant::now() + moment);
            }
        }
        if up < self.options.majority() {
            let waited = begun.elapsed().min(self.options.connect_timeout);
            for at in (0..self.members.len()).filter(|at| !self.is_up(*at)) {
                if errors.iter().all(|(other, _)| other != &at) {
                    let error = self.silence(at, self.steady.now(), waited);
                    errors.extend(error.map(|error| (at, error)));
                }
            }
            return Err(errors::too_few(&self.options, &errors));
        }
        self.looked_over.store(true, Ordering::SeqCst);
        // A member that was lost meanwhile told of that; those that came first told nothing.
        self.tell_majority();
        // Most often there is nothing to do for anybody: that is known from the greetings.
        if self.members.iter().any(|m| m.link.is_up() && !m.is_settled()) {
            self.admit().await;
        }
        self.context.spawner.spawn(self.clone().keep_admitting());
        Ok(())
    }

    fn is_up(&self, at: usize) -> bool {
        self.members.get(at).is_some_and(|member| member.link.is_up())
    }

    /// Keeps one connection; tells the first outcome.
    async fn keep_member(
        self: Arc<Self>,
        at: usize,
        first: mpsc::UnboundedSender<(usize, Result<()>)>,
    ) {
        let Some(member) = self.members.get(at) else { return };
        let (driver, outcome) = match member.link.connect().await {
            Ok(driver) => (Some(driver), self.came_up(at)),
            Err(error) => (None, Err(error)),
        };
        if outcome.is_ok() && self.looked_over.load(Ordering::SeqCst) {
            self.is_back(at);
        }
        // Nobody listens any more once there is a majority.
        let _ = first.send((at, outcome));
        drop(first);
        let quorum = self.clone();
        let tell = move |up| {
            if up {
                // Why it does not count is told by whoever misses a majority, and by `describe`.
                if quorum.came_up(at).is_ok() {
                    return quorum.is_back(at);
                }
            }
            quorum.tell_majority();
        };
        member.link.clone().keep(driver, tell).await;
    }

    /// A member was connected after the engine was opened.
    fn is_back(self: &Arc<Self>, at: usize) {
        // Others may have lacked what this one knows of numbers.
        let settled = self.members.get(at).is_some_and(Member::is_settled);
        if !settled || self.members.iter().any(|m| m.link.is_up() && m.is_stranger()) {
            self.look_over();
        }
        self.came_back(at);
        self.tell_majority();
    }

    /// A majority is connected, or no more: then everything is asked about. One member that comes
    /// and goes costs the others nothing.
    fn tell_majority(&self) {
        // Processes hear of a connection that ends at about the same time, and slew from then on.
        let _ = self.clock();
        let connected = || self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let up = {
                let mut connected = connected();
                let count = self.members.iter().filter(|member| member.link.is_up()).count();
                let up = count >= self.options.majority();
                // Whoever is telling looks again afterwards, so that both are told in their order.
                if connected.telling || connected.told == up {
                    return;
                }
                *connected = Connected { told: up, telling: true };
                up
            };
            // What was told meanwhile they have not heard.
            self.state().claims.values_mut().for_each(|entry| entry.waiter.was_deaf());
            self.context.events.send(Event::Link { up });
            connected().telling = false;
        }
    }

    /// A member was connected, and said what it is.
    ///
    /// # Errors
    /// It cannot count. It is dialled anew until it can.
    fn came_up(&self, at: usize) -> Result<()> {
        let Some(member) = self.members.get(at) else { return Ok(()) };
        member.came_up();
        self.inlet.iter().for_each(|inlet| inlet.made());
        match self.unfit(at, member) {
            Some(error) => {
                member.is_of_no_use(&error);
                Err(error)
            }
            None => {
                member.is_of_use();
                Ok(())
            }
        }
    }

    /// Why a member that was connected cannot count.
    fn unfit(&self, at: usize, member: &Member) -> Option<Error> {
        let address = &member.options.address;
        if let Some(other) = self.twin_of(at) {
            let text = format!(
                "{address} and {} are the same server, which would vote twice: name {} different \
                 servers",
                other.options.address,
                self.members.len()
            );
            return Some(Error::new(ErrorKind::InvalidArgument, text));
        }
        if member.link.by_facts(|facts| facts.uptime.is_none()).unwrap_or_default() {
            let text = format!(
                "Redis at {address} does not let this user run INFO, which says whether it may \
                 have forgotten leases: allow +info"
            );
            return Some(Error::new(ErrorKind::Refused, text));
        }
        member.newer_at_greeting()
    }

    /// From now on the engine's tasks end.
    pub(super) fn closing(&self) {
        self.closed.store(true, Ordering::Release);
        self.watches.close();
        self.sooner.notify_one();
    }

    /// Ends every connection, once what is being given back is gone where somebody answers.
    pub(super) async fn close(&self) {
        let within = (self.least_patience(self.options.ttl) * 2).min(Duration::from_secs(5));
        self.parting.settled(within, || true).await;
        self.end();
    }

    pub(super) fn end(&self) {
        self.closing();
        for member in &self.members {
            member.link.close();
        }
        self.timer.close();
    }
}
