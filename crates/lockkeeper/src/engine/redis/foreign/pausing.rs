//! Letting others pass, in a layout without a line.
//!
//! There whoever asks first has the lock, and that is the process that asks in the message with
//! which it gives back, or right behind it. So one that has had the lock for [`RUN`], hold upon
//! hold, stands back from it until somebody else has it, for [`PAUSE`] at most. Where nobody took
//! it, nobody competes, and the process does without for [`ALONE`]. Where waiters listen to a
//! channel, the release tells whether anybody did, and without one nobody stands back.

use std::sync::Arc;
use std::time::Duration;

use super::{Entry, Foreign, LOOK, Phase, State};
use crate::engine::redis::client::lane::To;
use crate::engine::redis::dialect::Terms;
use crate::engine::redis::opened::{Acquires as _, Releases as _};
use crate::engine::redis::resp::{Command, Value};
use crate::engine::{Answer, Attempt, End, Line, Place};
use crate::words::claim::{Claim, Mode};
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, HoldId};

/// For how long a process has the lock, hold upon hold, before it stands back: as long as one hold
/// passes inside it (R9).
pub(super) const RUN: Duration = Duration::from_millis(50);

/// For how long it stands back: what a waiter leaves between two looks at least (R10).
pub(super) const PAUSE: Duration = LOOK.0;

/// For how many times as long a process that nobody came to does not stand back: then standing back
/// costs it less than a twentieth of its time.
const ALONE: u32 = 20;

/// How many of the locks that were given back last are remembered (R13).
const LEFT_MAX: usize = 64;

/// A claim that does not compete yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    from: Ticks,
    until: Ticks,
    /// Somebody has the lock already, or it is not known that nobody has.
    taken: bool,
}

/// A lock that this process gave back.
pub(super) struct Left {
    terms: Arc<Terms>,
    at: Ticks,
    /// Until when the process had it, hold upon hold, before it lets others pass.
    run_until: Option<Ticks>,
    /// Whether anybody heard of it, where the layout publishes and the answer was read.
    heard: bool,
}

impl Entry {
    /// There is one lock and no line.
    fn goes_to_whoever_asks(&self) -> bool {
        !self.terms.has_line && !matches!(self.mode, Mode::Permits { .. })
    }

    /// It has the lock from now on; for how long it let others pass before, and nobody came.
    fn runs(&mut self, now: Ticks) -> Option<Duration> {
        let pause = self.pause.take();
        let run_until = self.run_until.filter(|_| pause.is_none());
        self.run_until = Some(run_until.unwrap_or_else(|| now.plus(RUN)));
        let alone = pause.filter(|pause| !pause.taken && pause.until <= now)?;
        Some(alone.until.since(alone.from))
    }
}

impl State {
    /// A claim has the lock from now on.
    pub(super) fn run(&mut self, now: Ticks, id: ClaimId) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        if let Some(stood_back) = entry.runs(now) {
            let terms = entry.terms.clone();
            self.is_alone(now, &terms, stood_back);
        }
    }

    /// Nobody came in this time: for a while the process does without standing back.
    fn is_alone(&mut self, now: Ticks, terms: &Terms, stood_back: Duration) {
        self.alone.retain(|_, until| now < *until);
        self.alone.insert(terms.key.clone(), now.plus(stood_back * ALONE));
    }

    /// Somebody else has the lock that a claim asks for.
    pub(super) fn run_ends(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        (entry.pause, entry.run_until) = (None, None);
        self.alone.remove(&entry.terms.key);
        self.left.retain(|left| left.terms.key != entry.terms.key);
    }
}

/// A hold that is about to be given back.
#[derive(Default)]
pub(super) struct Leaves {
    /// What it is, where the lock goes to whoever asks.
    pub(super) terms: Option<Arc<Terms>>,
    /// Whether others are to pass before the process asks again.
    others_first: bool,
    /// Until when the process had it, hold upon hold, before it lets others pass.
    run_until: Option<Ticks>,
}

impl Foreign {
    /// Whether others are to pass before the process asks again for a lock that it had until then,
    /// after who heard of its release.
    fn others_first(
        &self,
        (now, state): (Ticks, &State),
        terms: &Terms,
        run_until: Option<Ticks>,
        heard: bool,
    ) -> bool {
        // A cluster's node counts those that listen at it alone, and nobody knows who polls a key
        // without a channel.
        let may_be_wanted = heard || terms.channel.is_none() || self.links.options.scattered();
        let until = run_until.max(state.alone.get(&terms.key).copied());
        may_be_wanted && until.is_some_and(|until| until <= now)
    }

    /// A hold is about to be given back, and whoever asks for the lock soon after goes on with its
    /// run.
    pub(super) fn leaves(&self, hold: HoldId) -> Leaves {
        let now = self.links.context.clock.now();
        let mut state = self.state();
        let Some(entry) = state.claims.get(&hold).filter(|entry| entry.goes_to_whoever_asks())
        else {
            return Leaves::default();
        };
        let (terms, run_until) = (entry.terms.clone(), entry.run_until);
        let known = state.left.iter().position(|left| left.terms.key == terms.key);
        let heard = known.and_then(|at| state.left.remove(at)).is_some_and(|left| left.heard);
        if state.left.len() == LEFT_MAX {
            state.left.pop_front();
        }
        state.left.push_back(Left { terms: terms.clone(), at: now, run_until, heard });
        let others_first = self.others_first((now, &state), &terms, run_until, heard);
        Leaves { terms: Some(terms), others_first, run_until }
    }

    /// How a release ended, and how many heard of it where that was told.
    pub(super) fn has_left(&self, terms: &Terms, end: &End, heard: Option<i64>) {
        let mut state = self.state();
        let State { left, channels, .. } = &mut *state;
        if matches!(end, End::Freed) {
            // Whoever watches the name here heard of it, too; below zero nobody may publish.
            let ours = terms.channel.as_ref().is_some_and(|own| channels.contains_key(own));
            let left = left.iter_mut().find(|left| left.terms.key == terms.key);
            if let (Some(left), Some(heard)) = (left, heard) {
                left.heard = heard != i64::from(ours);
            }
        } else {
            state.left.retain(|left| left.terms.key != terms.key);
        }
    }

    /// Asks for the lock that is being given back, at once or after a pause.
    pub(super) fn ask_again(
        self: &Arc<Self>,
        claim: &Claim,
        behind: Option<&Leaves>,
    ) -> Answer<Attempt> {
        if let Err(error) = self.enter(claim, Line::Join) {
            return Answer::Now(Attempt::Failed(error));
        }
        if behind.is_some_and(|behind| behind.others_first) {
            return self.stand_back(claim);
        }
        self.change_entry(claim, |entry| entry.run_until = behind.and_then(|it| it.run_until));
        self.ask(claim, Line::Join, None)
    }

    /// A claim that was not known before comes right behind the release of the same lock by this
    /// process: the answer to it, where others are to pass first.
    pub(super) fn comes_back(
        self: &Arc<Self>,
        claim: &Claim,
        how: Line,
    ) -> Option<Answer<Attempt>> {
        let now = self.links.context.clock.now();
        let mut state = self.state();
        let entry = state.claims.get(&claim.id).filter(|entry| entry.goes_to_whoever_asks())?;
        let terms = entry.terms.clone();
        let left = state.left.iter().find(|left| left.terms.key == terms.key)?;
        if now.since(left.at) >= PAUSE {
            return None;
        }
        let (run_until, heard) = (left.run_until, left.heard);
        if !self.others_first((now, &state), &terms, run_until, heard) {
            state.claims.get_mut(&claim.id)?.run_until = run_until;
            return None;
        }
        match how {
            Line::Join => {
                drop(state);
                Some(self.stand_back(claim))
            }
            // Whoever heard of it comes first, once in a while; on a guess no free lock is refused.
            Line::Try if heard => {
                drop(state);
                Some(Answer::later(self.clone().gives_way(claim.clone(), terms)))
            }
            Line::Try => None,
        }
    }

    /// A try behind our own release, of which others heard. They may have had the lock and given it
    /// back since, or left: it is refused only if one listens still, and so waits.
    async fn gives_way(self: Arc<Self>, claim: Claim, terms: Arc<Terms>) -> Attempt {
        if self.others_listen(&terms).await {
            let now = self.links.context.clock.now();
            self.state().is_alone(now, &terms, PAUSE);
            self.forget(claim.id);
            return Attempt::Busy(None);
        }
        if let Some(left) = self.state().left.iter_mut().find(|left| left.terms.key == terms.key) {
            left.heard = false;
        }
        self.compete(&claim).get().await
    }

    /// Whether another connection listens to the channel of a lock at this moment.
    async fn others_listen(&self, terms: &Terms) -> bool {
        let Some(channel) = &terms.channel else { return false };
        let ask = || Command::new(["PUBSUB", "NUMSUB", channel]);
        let ours = |state: &State| state.channels.contains_key(channel);
        let to = To::Key(terms.key.clone());
        let (listened, started) = {
            let state = self.state();
            // Behind all that was said of our own listening: it is said over this connection.
            (ours(&state), self.links.main.start_commands(&[(to.clone(), ask())]))
        };
        let asked = self.links.main.finish(started, &to, || Some(ask()), PAUSE);
        // Where it is not told it is a guess; a user who may never ask gives way once in a while.
        let Ok(told) = asked.await else { return false };
        if let Value::Error(_) = told.value {
            return true;
        }
        let all = told.value.items().get(1).and_then(Value::integer).unwrap_or(0);
        // What began to listen here meanwhile may be counted already.
        all > i64::from(listened || ours(&self.state()))
    }

    /// Lets others pass before a claim competes.
    fn stand_back(self: &Arc<Self>, claim: &Claim) -> Answer<Attempt> {
        let now = self.links.context.clock.now();
        let call = match self.dialect.inspect(claim.kind, &claim.name) {
            Ok(call) => call,
            Err(error) => return Answer::Now(Attempt::Failed(error)),
        };
        // Whoever has little time looks before it is over.
        let pause = claim.give_up.map_or(PAUSE, |at| PAUSE.min(at.since(now) / 2));
        let until = now.plus(pause);
        self.change_entry(claim, |entry| {
            (entry.phase, entry.waited) = (Phase::Waiting, true);
            entry.pause = Some(Pause { from: now, until, taken: false });
        });
        // Looking at the key arms the server's word of its next change, right behind our release.
        let started = self.links.main.start(&[&call]);
        let foreign = self.clone();
        let (claim, patience) = (claim.clone(), self.links.options.connect_timeout.min(pause));
        Answer::later(async move {
            let wanted =
                || foreign.state().claims.get(&claim.id).is_some_and(|entry| !entry.leaving);
            let seen = match foreign.links.main.run(started, &call, patience, wanted).await {
                Ok(seen) => seen,
                Err(broken) => {
                    // The next attempt asks the server: a silence is not told from memory.
                    foreign.change_entry(&claim, |entry| entry.pause = None);
                    let error = foreign.links.broken(&foreign.links.main, &broken);
                    return Attempt::Unknown(error);
                }
            };
            let holders = seen.value.items().get(1);
            if !holders.is_some_and(|holders| holders.items().is_empty()) {
                let taken = |pause: &mut Pause| pause.taken = true;
                foreign.change_entry(&claim, |entry| _ = entry.pause.as_mut().map(taken));
            }
            Attempt::InLine(Place { ask_at: Some(until), ..Place::default() })
        })
    }

    /// Until when a claim that is asked for once more lets others pass still. It competes before
    /// the time of its present caller is over, who may have less of it than the one before.
    pub(super) fn stands_back_until(&self, claim: &Claim, now: Ticks) -> Option<Ticks> {
        let mut state = self.state();
        let entry = state.claims.get_mut(&claim.id)?;
        let waiting = entry.phase == Phase::Waiting;
        let pause = entry.pause.as_mut().filter(|pause| waiting && now < pause.until)?;
        let sooner = claim.give_up.map(|at| now.plus(at.since(now) / 2));
        if let Some(sooner) = sooner.filter(|sooner| *sooner < pause.until) {
            pause.until = sooner;
        }
        Some(pause.until)
    }

    fn change_entry(&self, claim: &Claim, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.state().claims.get_mut(&claim.id) {
            change(entry);
        }
    }
}
