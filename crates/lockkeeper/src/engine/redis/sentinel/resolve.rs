//! All Sentinels of a URL: asking them who is the master, and hearing that it moved.

use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::errors;
use super::master::{Master, agreed, newest, next};
use super::options::SentinelOptions;
use super::wire::{Node, Said};
use crate::engine::either::either;
use crate::engine::redis::options::Address;
use crate::engine::{BoxFuture, Context};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Warning;

/// Once a majority of the named Sentinels has answered, the others have so long: one of them may
/// know of a failover that the majority has not heard of.
const GRACE: Duration = Duration::from_millis(50);

/// How soon they are asked again where they did not agree, as they do not during a failover.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(100);

/// And how late at most.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(1);

/// How often the word of one, which may lie, makes the others be asked.
const DOUBT_EVERY: Duration = Duration::from_secs(1);

/// The Sentinels of a URL, and what they said.
pub(super) struct Sentinels {
    pub(super) options: Arc<SentinelOptions>,
    pub(super) nodes: Vec<Arc<Node>>,
    master: watch::Sender<Option<Master>>,
    /// True once nobody needs them any more.
    pub(super) closed: watch::Sender<bool>,
    context: OnceLock<Context>,
    /// What the servers' clocks gave reason to warn of.
    pub(super) clocks: Mutex<Vec<Warning>>,
    /// When the word of one made the others be asked.
    doubted: Mutex<Option<Instant>>,
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels").field("master", &self.master.borrow()).finish_non_exhaustive()
    }
}

impl Sentinels {
    pub(super) fn new(options: Arc<SentinelOptions>) -> Arc<Self> {
        Arc::new(Self {
            nodes: options.sentinels.iter().cloned().map(Node::new).collect(),
            options,
            master: watch::Sender::new(None),
            closed: watch::Sender::new(false),
            context: OnceLock::new(),
            clocks: Mutex::default(),
            doubted: Mutex::default(),
        })
    }

    /// Connects to all of them, and stays connected.
    pub(super) fn start(self: &Arc<Self>, context: &Context) {
        if self.context.set(context.clone()).is_err() {
            return;
        }
        let label = format!("lockkeeper:sentinel:{}", context.who.pid);
        for (at, node) in self.nodes.iter().enumerate() {
            let weak = Arc::downgrade(self);
            let heard = move |said: &Said, new: bool| {
                if let Some(sentinels) = weak.upgrade() {
                    sentinels.heard(at, said, new);
                }
            };
            let (options, closed) = (self.options.clone(), self.closed.subscribe());
            let by = (label.clone(), context.clock.clone());
            context.spawner.spawn(node.clone().keep(options, by, closed, heard));
        }
    }

    /// Ends with the new address once the master is somewhere else than here.
    pub(super) fn moved_from(&self, from: &Address) -> BoxFuture<Address> {
        let (mut master, from) = (self.master.subscribe(), from.clone());
        Box::pin(async move {
            let elsewhere = |master: &Option<Master>| master.as_ref().is_some_and(|m| m.at != from);
            let moved = match master.wait_for(elsewhere).await {
                Ok(master) => master.as_ref().map(|master| master.at.clone()),
                Err(_) => None,
            };
            match moved {
                Some(to) => to,
                None => pending().await,
            }
        })
    }

    /// What is said where the master that is named cannot be reached: nobody else tells a new
    /// process that a failover is under way.
    pub(super) fn choosing(&self, error: &Error) -> Option<Error> {
        if error.kind() != ErrorKind::Unreachable {
            return None;
        }
        let named = self.nodes.iter().filter_map(|node| node.said());
        let is_it = |said: &Said| error.message().contains(&said.at.to_string());
        named.filter(is_it).map(|said| errors::no_master(&self.options, &said, error)).next()
    }

    /// The master, once it was found.
    pub(super) fn master(&self) -> Option<Master> {
        self.master.borrow().clone()
    }

    /// One of them told something unasked. Its word alone moves nobody: it may be cut off, or lie.
    /// Where it says something new, the others are asked as well.
    fn heard(&self, nth: usize, said: &Said, new: bool) {
        let each = self.nodes.iter().enumerate();
        let words: Vec<_> = each.filter_map(|(nth, node)| Some((nth, node.said()?))).collect();
        self.master.send_if_modified(|master| {
            let Some(known) = master else { return false };
            let moved = agreed(&self.options, &words).filter(|agreed| agreed.epoch > known.epoch);
            moved.map(|agreed| *known = agreed).is_some()
        });
        let doubted = |known: Master| known.at != said.at && known.epoch < said.epoch;
        if new && self.master().is_some_and(doubted) && self.may_doubt(Instant::now()) {
            self.ask_soon(|other, _| other != nth);
        }
    }

    /// Once a second: they go on being asked by themselves, for what comes of it.
    fn may_doubt(&self, now: Instant) -> bool {
        let mut doubted = self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        let may = doubted.is_none_or(|at| now.duration_since(at) >= DOUBT_EVERY);
        if may {
            *doubted = Some(now);
        }
        may
    }

    fn ask_soon(&self, which: impl Fn(usize, &Node) -> bool) {
        let each = self.nodes.iter().enumerate();
        each.filter(|(nth, node)| which(*nth, node)).for_each(|(_, node)| node.ask_soon());
    }

    /// Asks all of them. A process that has heard of no master yet goes by a majority of all that
    /// the URL names, and so does one that is to go to another master. Where there is none, or a
    /// minority names a later one to a new process, a failover may be under way: they are asked
    /// again for a while.
    pub(super) async fn find(self: Arc<Self>) -> Result<Address> {
        let Some(context) = self.context.get() else {
            return Err(Error::new(ErrorKind::Closed, "the engine is not open"));
        };
        let until = Instant::now() + self.options.master.connect_timeout / 2;
        let mut master = self.master.subscribe();
        let (mut pauses, mut disagreed) = (pauses(), None);
        loop {
            let before = master.borrow_and_update().clone();
            let answers = self.ask_all(context, until).await;
            let least = if before.is_some() { 1 } else { self.options.majority() };
            if answers.said.len() < least {
                // One that is late now has said whom it names.
                let disagreed = disagreed.filter(|_| before.is_none() && answers.are_only_late());
                return Err(match disagreed {
                    Some(why) => why,
                    None => self.too_few(answers).await,
                });
            }
            let named = match &before {
                Some(known) => next(&self.options, &answers.said, known),
                None => agreed(&self.options, &answers.said)
                    .ok_or_else(|| errors::disagree(&self.options, &answers.said)),
            };
            disagreed = named.as_ref().err().cloned();
            let later = named.as_ref().is_ok_and(|named| {
                let mut said = answers.said.iter().map(|(_, said)| said);
                said.any(|said| said.at != named.at && said.epoch > named.epoch)
            });
            let settled = named.is_ok() && (before.is_some() || !later);
            // With time for their answers.
            let left = until.saturating_duration_since(Instant::now()).saturating_sub(ASK_AGAIN);
            if !settled && left > ASK_AGAIN {
                let again = Instant::now() + pauses.next().unwrap_or(ASK_AGAIN_MAX).min(left);
                _ = either(pin!(sleep_until(again)), pin!(master.changed())).await;
                continue;
            }
            let named = named?;
            let mut at = named.at.clone();
            self.master.send_if_modified(|known| {
                let newest = newest(known.as_ref(), before.as_ref(), named);
                at = newest.at.clone();
                let changes = known.as_ref() != Some(&newest);
                *known = Some(newest);
                changes
            });
            // One that was late counts as soon as it has said the same.
            self.ask_soon(|_, node| later || node.said().is_none());
            return Ok(at);
        }
    }

    /// What all of them say, as far as they do in time: a majority, and the others for a moment
    /// more.
    async fn ask_all(self: &Arc<Self>, context: &Context, mut until: Instant) -> Answers {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for at in 0..self.nodes.len() {
            let (sentinels, sender) = (self.clone(), sender.clone());
            let clock = context.clock.clone();
            context.spawner.spawn(async move {
                let Some(node) = sentinels.nodes.get(at) else { return };
                let asked = pin!(node.ask(&sentinels.options, &clock));
                if let Ok(answer) = either(asked, pin!(sender.closed())).await {
                    // Nobody waits any more for one that is late.
                    let _ = sender.send((at, answer));
                }
            });
        }
        drop(sender);
        let mut answers = Answers::default();
        loop {
            let next = pin!(receiver.recv());
            let Ok(Some((at, answer))) = either(next, pin!(sleep_until(until))).await else {
                return answers;
            };
            match answer {
                Ok(Some(said)) => answers.said.push((at, said)),
                Ok(None) => answers.unknown.push(at),
                Err(error) => answers.errors.push((at, error)),
            }
            if answers.said.len() >= self.options.majority() {
                until = until.min(Instant::now() + GRACE);
            }
        }
    }

    /// Why too few of them say where the master is.
    async fn too_few(&self, answers: Answers) -> Error {
        let Answers { said, mut errors, unknown } = answers;
        let name_none = said.is_empty() && errors.is_empty();
        let node = unknown.first().and_then(|at| self.nodes.get(*at));
        if let Some(node) = node.filter(|_| name_none || unknown.len() >= self.options.majority()) {
            return errors::unknown_service(&self.options, &node.services().await);
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if unknown.contains(&at) {
                errors.push((at, errors::unaware(&node.at, &self.options.service)));
            } else if said.iter().all(|(other, _)| *other != at)
                && errors.iter().all(|(other, _)| *other != at)
            {
                errors.push((at, errors::away(&node.at, "no answer in time")));
            }
        }
        errors.sort_by_key(|(at, _)| *at);
        let at = |nth: usize| self.nodes.get(nth).map(|node| node.at.clone());
        let errors = errors.into_iter().filter_map(|(nth, error)| Some((at(nth)?, error)));
        errors::too_few(&self.options, &errors.collect::<Vec<_>>())
    }
}

/// What the Sentinels answered to one question.
#[derive(Default)]
struct Answers {
    said: Vec<(usize, Said)>,
    errors: Vec<(usize, Error)>,
    /// Those that do not know the service.
    unknown: Vec<usize>,
}

impl Answers {
    /// Whether nothing else is known of those that said nothing.
    fn are_only_late(&self) -> bool {
        self.errors.is_empty() && self.unknown.is_empty()
    }
}

/// How long to wait each time before they are asked again.
fn pauses() -> impl Iterator<Item = Duration> {
    let longer = |pause: &Duration| Some((*pause * 2).min(ASK_AGAIN_MAX));
    std::iter::successors(Some(ASK_AGAIN), longer)
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::{at, options, said};
    use super::*;

    #[test]
    fn b4_what_sentinels_tell_unasked_moves_a_process_once_a_majority_of_them_says_it() {
        let sentinels = Sentinels::new(Arc::new(options("a,b,c")));
        sentinels.master.send_replace(Some(Master { at: at(1), epoch: 3 }));
        let tells = |nth: usize, said: Said| {
            sentinels.nodes[nth].note(Some(said.clone()));
            sentinels.heard(nth, &said, true);
        };
        let is = |port| sentinels.master().is_some_and(|master| master.at == at(port));
        tells(2, said(2, 9));
        tells(2, said(3, 10));
        assert!(is(1), "nobody else names it");
        tells(1, said(4, 4));
        assert!(is(1), "two name two others");
        tells(0, said(4, 4));
        assert!(is(4));
        // What is older moves nobody back.
        tells(0, said(1, 3));
        tells(1, said(1, 3));
        assert!(is(4));
    }

    #[test]
    fn sentinels_that_do_not_agree_are_asked_again_less_and_less_often() {
        let millis: Vec<_> = pauses().take(6).map(|pause| pause.as_millis()).collect();
        assert_eq!(millis, [100, 200, 400, 800, 1000, 1000]);
    }

    #[test]
    fn b4_a_sentinel_that_names_another_master_each_time_makes_the_others_be_asked_once_a_second() {
        let sentinels = Sentinels::new(Arc::new(options("a,b,c")));
        let tenth = |n: u32| Instant::now() + Duration::from_millis(100) * n;
        let asked = (0..100).filter(|n| sentinels.may_doubt(tenth(*n))).count();
        assert!((9..=10).contains(&asked), "{asked}");
    }
}
