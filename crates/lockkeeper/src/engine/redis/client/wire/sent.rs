//! Requests over a link: sent, followed to their answers, and sent again where nothing was.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::node::Node;
use super::super::pipe::{ALONE, Broken, Kind, Outcome};
use super::super::resp::{Command, Value};
use super::super::script::{Call, Which};
use super::super::why::outcome;
use super::Link;
use crate::engine::parting::Partings;
use crate::words::clock::Ticks;
use crate::words::id::fork_generation;

/// An answer, with the reading of our clock from before its request left.
pub(in crate::engine) struct Answered {
    pub(in crate::engine) before: Ticks,
    pub(in crate::engine) order: u64,
    /// Who answered: it counts what it reads, and its time, by itself.
    pub(in crate::engine) node: Node,
    pub(in crate::engine) value: Value,
    /// Its request was sent twice: what was sent right behind it may have come before it.
    pub(in crate::engine) resent: bool,
}

impl Link {
    /// Sends commands as one message, if there is a connection; the readings of the clock are from
    /// before.
    pub(in crate::engine) fn start(&self, commands: &[Command]) -> Started {
        let before = self.clock.now();
        if self.born != fork_generation() {
            // The socket belongs to the parent; one byte from us would spoil its stream (R15).
            return Started { before, answers: Vec::new(), forked: true };
        }
        let state = self.lock();
        let answers = match (&state.pipe, &self.gate) {
            // With the state locked: what gathers after the connection went is never refused.
            (Some(_), Some(gate)) => gate.take(commands),
            (Some(pipe), None) => {
                let pipe = pipe.clone();
                drop(state);
                pipe.send(commands)
            }
            (None, _) => Vec::new(),
        };
        Started::sent(before, answers)
    }

    /// Sends releases as one message, which does not wait for replicas: what the socket takes is
    /// with the kernel when this returns, but where the caller waits for the answer. A script that
    /// the server is not known to have goes along.
    pub(in crate::engine) fn start_releases<'a>(
        &self,
        calls: impl Iterator<Item = &'a Call>,
        awaited: bool,
    ) -> Started {
        let before = self.clock.now();
        if self.born != fork_generation() {
            return Started { before, answers: Vec::new(), forked: true };
        }
        let in_slot = self.options.scattered();
        let mut state = self.lock();
        let Some(pipe) = state.pipe.clone() else { return Started::sent(before, Vec::new()) };
        let mut anew = false;
        let commands: Vec<Command> = calls
            .map(|call| {
                let known = !state.known.insert(call.script);
                anew |= !known;
                call.command_for(in_slot, known)
            })
            .collect();
        // One that takes its script for known is to be queued behind the one that brings it.
        let behind = anew.then_some(state);
        let answers = if awaited { pipe.send(&commands) } else { pipe.send_now(&commands) };
        drop(behind);
        Started::sent(before, answers)
    }

    /// Sends a request that may leave in company. `None`: it goes by itself, as a release does that
    /// has to bring its script along.
    pub(in crate::engine) fn start_in_company(&self, call: &Call) -> Option<Started> {
        let kind = Kind::of(call)?;
        if self.gate.is_some() || self.born != fork_generation() {
            return None;
        }
        let before = self.clock.now();
        let state = self.lock();
        if kind.gives() && !state.known.contains(&call.script) {
            return None;
        }
        let pipe = state.pipe.clone()?;
        drop(state);
        Some(Started::sent(before, vec![pipe.send_in_company(kind, call)]))
    }

    /// Runs a command to its answer. What was not sent is sent again once there is a connection,
    /// for as long as `patience` lasts.
    pub(in crate::engine) async fn finish(
        &self,
        started: Started,
        command: impl Fn() -> Option<Command> + Send,
        patience: Duration,
    ) -> std::result::Result<Answered, Broken> {
        self.finish_by(started, move || Some(self.start(&[command()?])), patience).await
    }

    /// The same, sent again by this.
    async fn finish_by(
        &self,
        started: Started,
        again: impl Fn() -> Option<Started> + Send,
        patience: Duration,
    ) -> std::result::Result<Answered, Broken> {
        let until = Instant::now() + patience;
        let (mut started, mut resent) = (started, false);
        loop {
            let before = started.before;
            let (answer, node) = started.answer().await;
            let node = node.unwrap_or_default();
            let broken = match answer {
                Ok((order, value)) => {
                    let left = self.leave_replica(&value, before);
                    let answered = Answered { before, order, node, value, resent };
                    let Some(broken) = left else { return Ok(answered) };
                    // A name may lead to the same server still: then what it said is the answer.
                    if self.options.resolve.is_none() && self.wait_up(until).await.is_err() {
                        return Ok(answered);
                    }
                    broken
                }
                Err(broken) => broken,
            };
            if !matches!(broken, Broken::NotSent(_)) || started.forked || self.lock().closed {
                return Err(broken);
            }
            self.wait_up(until).await?;
            let Some(next) = again() else { return Err(broken) };
            (started, resent) = (next, true);
        }
    }

    /// Runs a script to its answer; `wanted` is asked before its text is sent to a server that did
    /// not know it.
    pub(in crate::engine) async fn run(
        &self,
        started: Started,
        call: &Call,
        patience: Duration,
        wanted: impl Fn() -> bool + Send + Sync,
    ) -> std::result::Result<Answered, Broken> {
        self.run_by(started, call, patience, |send| wanted().then(send)).await
    }

    /// The same; whoever asked sends it once more or does not, with what it likes locked meanwhile.
    pub(in crate::engine) async fn run_by(
        &self,
        started: Started,
        call: &Call,
        patience: Duration,
        again: impl Fn(&dyn Fn() -> Started) -> Option<Started> + Send + Sync,
    ) -> std::result::Result<Answered, Broken> {
        let by_name = || again(&|| self.start(&[call.by_name()]));
        let in_full = || again(&|| self.start(&[call.in_full()]));
        let mut answered = self.finish_by(started, by_name, patience).await?;
        if matches!(&answered.value, Value::Error(text) if text == ALONE)
            && let Some(started) = by_name()
        {
            answered = self.finish_by(started, by_name, patience).await?;
            answered.resent = true;
        }
        if let Value::Error(text) = &answered.value
            && text != ALONE
        {
            // It may have been refused before its text was looked at.
            self.lacks(call.script);
            // Nothing was run, so nothing is run twice.
            if text.starts_with("NOSCRIPT")
                && let Some(started) = in_full()
            {
                answered = self.finish_by(started, in_full, patience).await?;
                answered.resent = true;
            }
        }
        Ok(answered)
    }

    /// The server has lost a script: the next release brings it along.
    pub(in crate::engine::redis::client) fn lacks(&self, script: Which) {
        self.lock().known.remove(&script);
    }

    /// Waits until nothing is parting any more, or until nothing can be sent, or for as long as an
    /// answer may take.
    pub(in crate::engine) async fn settled(&self, parting: &Partings, within: Duration) {
        parting.settled(within, || *self.up.borrow()).await;
    }
}

/// Commands on their way.
pub(in crate::engine) struct Started {
    before: Ticks,
    /// One a command; none where nothing was sent.
    answers: Vec<Option<Pending>>,
    forked: bool,
}

/// An answer that comes, and whose it is.
struct Pending {
    answer: oneshot::Receiver<Outcome>,
    node: Node,
}

impl Started {
    /// Nothing was sent yet.
    pub(in crate::engine) fn nothing() -> Self {
        Self { before: Ticks::default(), answers: Vec::new(), forked: false }
    }

    fn sent(before: Ticks, answers: Vec<oneshot::Receiver<Outcome>>) -> Self {
        let pending = |answer| Some(Pending { answer, node: Node::default() });
        Self { before, answers: answers.into_iter().map(pending).collect(), forked: false }
    }

    /// One a command, in order; for the last of them, when nothing was sent, there are none.
    pub(in crate::engine) fn each(self) -> impl Iterator<Item = Self> + Send {
        let Self { before, answers, forked } = self;
        let sent = answers.into_iter().chain(std::iter::repeat_with(|| None));
        sent.map(move |answer| Self {
            before,
            answers: answer.map(Some).into_iter().collect(),
            forked,
        })
    }

    pub(in crate::engine::redis) fn is_on_its_way(&self) -> bool {
        self.answers.iter().any(Option::is_some)
    }

    /// Waits for the answer of the only command, or of the last one.
    async fn answer(&mut self) -> (Result<(u64, Value), Broken>, Option<Node>) {
        if self.forked {
            let why = "this process is a fork of the one that opened the connection: open its own";
            return (Err(Broken::NotSent(why.into())), None);
        }
        let Some(Pending { answer, node }) = self.answers.pop().flatten() else {
            return (Err(Broken::NotSent("not connected".into())), None);
        };
        (outcome(answer).await, Some(node))
    }
}

/// To several nodes.
#[cfg(feature = "cluster")]
impl Started {
    /// Nothing can be sent by this process.
    pub(in crate::engine::redis::client) fn forked() -> Self {
        Self { forked: true, ..Self::nothing() }
    }

    /// None of so many commands was sent yet.
    pub(in crate::engine::redis::client) fn none(before: Ticks, commands: usize) -> Self {
        let answers = (0..commands).map(|_| None).collect();
        Self { before, answers, forked: false }
    }

    /// The commands at these places were sent to a node.
    pub(in crate::engine::redis::client) fn take_over(
        &mut self,
        places: &[usize],
        sent: Self,
        node: Node,
    ) {
        self.forked |= sent.forked;
        self.before = self.before.min(sent.before);
        for (place, pending) in places.iter().zip(sent.answers) {
            if let Some(slot) = self.answers.get_mut(*place) {
                *slot = pending.map(|pending| Pending { node, ..pending });
            }
        }
    }

    /// Of so many commands to a node only the last one's answer counts.
    pub(in crate::engine::redis::client) fn last_of(mut self, commands: usize, node: Node) -> Self {
        let whole = self.answers.len() == commands;
        let last = self.answers.pop().flatten().filter(|_| whole);
        self.answers = last.map(|last| Some(Pending { node, ..last })).into_iter().collect();
        self
    }

    pub(in crate::engine::redis::client) fn is_forked(&self) -> bool {
        self.forked
    }

    /// Waits for the answer, and says who gave it.
    pub(in crate::engine::redis::client) async fn follow(
        &mut self,
    ) -> (Result<Answered, Broken>, Option<Node>) {
        let before = self.before;
        let (answer, node) = self.answer().await;
        let answered = answer.map(|(order, value)| Answered {
            before,
            order,
            node: node.unwrap_or_default(),
            value,
            resent: false,
        });
        (answered, node)
    }
}
