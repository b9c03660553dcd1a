//! Who holds it, for a claim whose time is over before the engine has said so: the engine is asked, and waited for, for a moment.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::answers::describe_holder;
use super::entry::{Entry, Locked, Outcome};
use crate::claim;
use crate::engine::{Answer, BoxFuture, Query};
use crate::error::{Error, ErrorKind, Result};
use crate::protocol::line::Seq;

/// For how long a caller whose time is over waits for the holder's name.
const NAMED_WITHIN: Duration = Duration::from_millis(250);

type Found = Result<Vec<claim::Entry>>;

impl Entry {
    /// Tells a claim that it got nothing: at once, unless its time is over and nobody knows yet who holds it.
    pub(super) fn refuse(self: &Arc<Self>, locked: &mut Locked<'_>, seq: Seq, outcome: Outcome) {
        let Some(waiting) = locked.state.as_deref_mut().and_then(|state| state.waiting.get_mut(seq)) else { return };
        match outcome {
            Outcome::Refused(error) if waiting.has_a_limit && error.kind() == ErrorKind::TimedOut && error.holder().is_none() => {
                self.refuse_by_name(locked, seq, error);
            }
            outcome => {
                waiting.outcome = Some(outcome);
                let waker = waiting.waker.take();
                locked.wake(waker);
            }
        }
    }

    /// Asks once for all who want to know it at the same time.
    fn refuse_by_name(self: &Arc<Self>, locked: &mut Locked<'_>, seq: Seq, error: Error) {
        let Some(state) = locked.state.as_deref_mut() else { return };
        state.nameless.push((seq, error));
        if state.nameless.len() > 1 {
            return;
        }
        match self.keeper.engine.read(&Query::One(self.kind, self.name.clone())) {
            Answer::Now(found) => self.tell_nameless(locked, Some(found)),
            Answer::Later(answer) => {
                let asking = Box::pin(self.clone().hear_who_holds_it(answer));
                if self.keeper.driver.run(&self.keeper, asking).is_err() {
                    self.tell_nameless(locked, None);
                }
            }
        }
    }

    async fn hear_who_holds_it(self: Arc<Self>, mut answer: BoxFuture<Found>) {
        let found = {
            let mut late = pin!(self.keeper.driver.sleep(&self.keeper, NAMED_WITHIN));
            poll_fn(|context| match answer.as_mut().poll(context) {
                Poll::Ready(found) => Poll::Ready(Some(found)),
                Poll::Pending => late.as_mut().poll(context).map(|()| None),
            })
            .await
        };
        let unfinished = found.is_none();
        self.tell_nameless(&mut self.lock(), found);
        if unfinished {
            // Whatever the engine began it ends.
            drop(answer.await);
        }
    }

    /// Tells all who want to know it what was found, if anything was.
    pub(super) fn tell_nameless(self: &Arc<Self>, locked: &mut Locked<'_>, found: Option<Found>) {
        let Some(state) = locked.state.as_deref_mut() else { return };
        let said = found.and_then(Result::ok);
        let holder = said.iter().flatten().flat_map(|entry| &entry.holders).next();
        let mut wakers = Vec::new();
        for (seq, error) in std::mem::take(&mut state.nameless) {
            let Some(waiting) = state.waiting.get_mut(seq) else { continue };
            let named = |text: String| self.error(error.kind(), format!("{}{text}", error.message()));
            let error = match holder {
                Some(holder) => named(describe_holder(holder)).held_by(Some(holder.clone())),
                // It was free by then.
                None if said.is_some() => error,
                None => named(", and the engine has not said who holds it".to_owned()),
            };
            waiting.outcome = Some(Outcome::Refused(error));
            wakers.extend(waiting.waker.take());
        }
        locked.wakers.append(&mut wakers);
    }
}
