//! Who is the master: what the Sentinels say, and whom to believe.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::errors;
use super::options::SentinelOptions;
use super::wire::{Node, Said};
use crate::engine::redis::client::wire::either;
use crate::engine::redis::options::{Address, Resolve};
use crate::engine::{BoxFuture, Context};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Warning;

/// Once a majority of the named Sentinels has answered, the others have so long: one of them may
/// know of a failover that the majority has not heard of.
const GRACE: Duration = Duration::from_millis(50);

/// How soon a new process asks again that was told of two masters.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The newest master that this process has heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Master {
    pub(super) at: Address,
    pub(super) epoch: u64,
}

/// The Sentinels of a URL, and what they said.
pub(super) struct Sentinels {
    pub(super) options: Arc<SentinelOptions>,
    pub(super) nodes: Vec<Arc<Node>>,
    master: watch::Sender<Option<Master>>,
    /// Those that did not name the master with the majority when this process began.
    apart: Mutex<BTreeSet<usize>>,
    closed: watch::Sender<bool>,
    context: OnceLock<Context>,
    /// What the servers' clocks gave reason to warn of.
    clocks: Mutex<Vec<Warning>>,
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
            apart: Mutex::default(),
            closed: watch::Sender::new(false),
            context: OnceLock::new(),
            clocks: Mutex::default(),
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
            let heard = move |said: Said| {
                if let Some(sentinels) = weak.upgrade() {
                    sentinels.heard(at, said);
                }
            };
            let (options, closed) = (self.options.clone(), self.closed.subscribe());
            let by = (label.clone(), context.clock.clone());
            context.spawner.spawn(node.clone().keep(options, by, closed, heard));
        }
    }

    /// True once it is closed.
    pub(super) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    pub(super) fn note_clocks(&self, warnings: Vec<Warning>) {
        *self.clocks.lock().unwrap_or_else(PoisonError::into_inner) = warnings;
    }

    pub(super) fn clock_warnings(&self) -> Vec<Warning> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The replicas that a majority of the Sentinels knows: whoever is asked there gets the
    /// master's password.
    pub(super) async fn replicas(&self) -> Vec<Address> {
        let mut known: BTreeMap<String, (Address, usize)> = BTreeMap::new();
        for node in self.nodes.iter().filter(|node| node.why_down().is_none()) {
            for at in node.replicas(&self.options).await {
                known.entry(at.to_string()).or_insert((at, 0)).1 += 1;
            }
        }
        let majority = self.options.majority();
        known.into_values().filter(|(_, by)| *by >= majority).map(|(at, _)| at).collect()
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

    pub(super) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// The master, once it was found.
    pub(super) fn master(&self) -> Option<Master> {
        self.master.borrow().clone()
    }

    /// One of them told something unasked: a greater epoch is enough, since a majority of all
    /// Sentinels voted for it.
    fn heard(&self, nth: usize, said: Said) {
        let known = self.master();
        if known.is_some_and(|known| known.at == said.at) {
            self.apart().remove(&nth);
        } else if self.apart().contains(&nth) {
            return;
        }
        self.master.send_if_modified(|master| match master {
            Some(known) if said.epoch > known.epoch => {
                *known = Master { at: said.at, epoch: said.epoch };
                true
            }
            _ => false,
        });
    }

    /// Asks all of them. A process that has heard of no master yet goes by a majority of all that
    /// the URL names; where fewer than that name the newest one, a failover may be under way, so
    /// they are asked again for a while.
    async fn find(self: Arc<Self>) -> Result<Address> {
        let Some(context) = self.context.get() else {
            return Err(Error::new(ErrorKind::Closed, "the engine is not open"));
        };
        let until = Instant::now() + self.options.master.connect_timeout / 2;
        let before = self.master();
        let (master, anew) = loop {
            let answers = self.ask_all(context, until).await;
            if let Some(before) = &before {
                let answers = self.without_apart(answers);
                if answers.said.is_empty() {
                    return Err(self.too_few(answers).await);
                }
                let anew = answers.said.len() == self.nodes.len();
                break (choose(&self.options, &answers.said, before)?, anew);
            }
            if answers.said.len() < self.options.majority() {
                return Err(self.too_few(answers).await);
            }
            let again = Instant::now() + ASK_AGAIN;
            let named = first(&self.options, &answers.said);
            // With time for their answers.
            if !matches!(named, Ok((_, false))) && again + ASK_AGAIN < until {
                sleep_until(again).await;
                continue;
            }
            let (master, _) = named?;
            self.set_apart(&answers.said, &master);
            break (master, false);
        };
        let mut at = master.at.clone();
        self.master.send_if_modified(|known| {
            let next = settle(known.as_ref(), before.as_ref(), master, anew);
            at = next.at.clone();
            let changes = known.as_ref() != Some(&next);
            *known = Some(next);
            changes
        });
        if before.is_none() {
            // Whoever was only late is believed again as soon as it has said the same.
            self.apart()
                .iter()
                .filter_map(|at| self.nodes.get(*at))
                .for_each(|node| node.ask_soon());
        }
        Ok(at)
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

    fn apart(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A majority named this one when the process began: whoever did not, because it names another,
    /// is late, away or refuses, is not believed before it says so, too.
    fn set_apart(&self, said: &[(usize, Said)], master: &Master) {
        let agrees = |nth: &usize| said.iter().any(|(at, said)| at == nth && said.at == master.at);
        *self.apart() = (0..self.nodes.len()).filter(|nth| !agrees(nth)).collect();
    }

    /// What those say that are believed: whoever was set apart is again once it names the master
    /// that this process has, or one that a majority names.
    fn without_apart(&self, answers: Answers) -> Answers {
        let Answers { said, mut errors, unknown } = answers;
        let known = self.master();
        let named = |at: &Address| said.iter().filter(|(_, said)| said.at == *at).count();
        let mut apart = self.apart();
        for (nth, said) in &said {
            if known.as_ref().is_some_and(|known| known.at == said.at)
                || named(&said.at) >= self.options.majority()
            {
                apart.remove(nth);
            }
        }
        let (not_believed, said): (Vec<_>, Vec<_>) =
            said.into_iter().partition(|(nth, _)| apart.contains(nth));
        for (nth, said) in not_believed {
            let node = self.nodes.get(nth);
            errors.extend(node.map(|node| (nth, errors::apart(&node.at, &said.at))));
        }
        Answers { said, errors, unknown }
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

/// Whom a process believes that has heard of no master yet: a majority of all that the URL names.
/// And whether a minority names another one, by a later failover.
///
/// # Errors
/// They disagree.
fn first(options: &SentinelOptions, said: &[(usize, Said)]) -> Result<(Master, bool)> {
    let named = |at: &Address| said.iter().filter(|(_, said)| said.at == *at).count();
    let agreed = said.iter().find(|(_, said)| named(&said.at) >= options.majority());
    let Some((_, agreed)) = agreed else { return Err(errors::disagree(options, said)) };
    let of = |theirs: &Said| theirs.at == agreed.at;
    let epochs = |which: &dyn Fn(&Said) -> bool| {
        said.iter().map(|(_, said)| said).filter(|said| which(said)).map(|said| said.epoch).max()
    };
    let epoch = epochs(&of).unwrap_or(0);
    let later = epochs(&|theirs| !of(theirs)).is_some_and(|theirs| theirs > epoch);
    Ok((Master { at: agreed.at.clone(), epoch }, later))
}

/// Who is the master, where some said so to a question, and others may have told meanwhile of a
/// later one (`known`): what was asked before that was told says nothing against it. `anew`: all of
/// them answered, and so an epoch may be below the one that was known `before` they were asked.
fn settle(known: Option<&Master>, before: Option<&Master>, chosen: Master, anew: bool) -> Master {
    match known {
        Some(known) if chosen.epoch < known.epoch && !(anew && Some(known) == before) => {
            known.clone()
        }
        _ => chosen,
    }
}

/// Whom a process believes that has heard of a master: the greatest epoch; where several name it,
/// the master that most of them name.
///
/// An epoch below one that this process has heard of is of before a failover, so its master may be
/// the old one, cut off and alive. It counts only when every Sentinel of the URL is there and none
/// of them remembers the greater one: then they were set up anew.
fn choose(options: &SentinelOptions, said: &[(usize, Said)], known: &Master) -> Result<Master> {
    let epoch = said.iter().map(|(_, said)| said.epoch).max().unwrap_or(0);
    if epoch < known.epoch && said.len() < options.sentinels.len() {
        return Err(errors::outdated(options, epoch, known.epoch, &known.at));
    }
    let named: Vec<&(usize, Said)> = said.iter().filter(|(_, said)| said.epoch == epoch).collect();
    let votes = |at: &Address| named.iter().filter(|(_, said)| said.at == *at).count();
    let most = named.iter().map(|(_, said)| votes(&said.at)).max().unwrap_or(0);
    let mut first = named.iter().filter(|(_, said)| votes(&said.at) == most);
    let Some((_, chosen)) = first.next() else { return Err(errors::disagree(options, said)) };
    if first.any(|(_, said)| said.at != chosen.at) {
        let named: Vec<(usize, Said)> = named.into_iter().cloned().collect();
        return Err(errors::disagree(options, &named));
    }
    Ok(Master { at: chosen.at.clone(), epoch })
}

/// What the client of the master asks before each dial.
#[derive(Debug)]
pub(super) struct Resolver(pub(super) Arc<Sentinels>);

impl Resolve for Resolver {
    fn resolve(&self) -> BoxFuture<Result<Address>> {
        Box::pin(self.0.clone().find())
    }

    fn moved(&self, from: &Address) -> BoxFuture<String> {
        let moved = self.0.moved_from(from);
        Box::pin(async move { format!("the Sentinels moved the master to {}", moved.await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Common;
    use crate::open::url::EngineUrl;

    fn options(sentinels: &str) -> SentinelOptions {
        let mut url = EngineUrl::parse(&format!("redis+sentinel://{sentinels}/m")).unwrap();
        SentinelOptions::take(&mut url, &Common::new(Duration::from_secs(30), 100)).unwrap()
    }

    fn at(port: u16) -> Address {
        Address::Tcp("h".into(), port)
    }

    fn chosen(sentinels: &str, said: &[(u16, u64)], known: Option<(u16, u64)>) -> Result<u16> {
        let said: Vec<_> = said
            .iter()
            .enumerate()
            .map(|(n, (port, epoch))| {
                let down_after = Duration::from_secs(1);
                let (at, epoch) = (at(*port), *epoch);
                (n, Said { at, epoch, down_after, replicas: 1, living: 1, others: 2 })
            })
            .collect();
        let known = known.map(|(port, epoch)| Master { at: at(port), epoch });
        let master = match known {
            Some(known) => choose(&options(sentinels), &said, &known)?,
            None => first(&options(sentinels), &said)?.0,
        };
        match master.at {
            Address::Tcp(_, port) => Ok(port),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_greatest_epoch_counts_and_then_the_most_voices() {
        let known = Some((1, 3));
        assert_eq!(chosen("a,b,c", &[(1, 3), (1, 3), (2, 4)], known).unwrap(), 2);
        assert_eq!(chosen("a,b,c", &[(1, 3), (2, 3), (1, 3)], known).unwrap(), 1);
        assert_eq!(chosen("a,b,c", &[(1, 3)], known).unwrap(), 1, "the others are away");
    }

    #[test]
    fn b4_a_new_process_goes_by_a_majority_of_all_sentinels_of_the_url_at_any_epoch() {
        for epoch in [1, 3, 9] {
            let said = [(1, 3), (1, 3), (2, epoch)];
            assert_eq!(chosen("a,b,c", &said, None).unwrap(), 1, "{epoch}");
        }
        assert_eq!(chosen("a,b,c", &[(1, 3), (1, 4)], None).unwrap(), 1, "one is away");
        assert_eq!(chosen("a", &[(1, 0)], None).unwrap(), 1);
        let said = [(1, 3), (2, 9)];
        let error = chosen("a,b,c", &said, None).unwrap_err();
        assert!(error.is_temporary() && error.message().contains("disagree"), "{error}");
        assert!(chosen("a,b,c,d,e", &[(1, 3), (1, 3)], None).is_err(), "two of five");
    }

    #[test]
    fn b4_a_sentinel_that_was_outvoted_is_believed_once_it_names_what_others_do() {
        let sentinels = Sentinels::new(Arc::new(options("a,b,c")));
        let said = |port, epoch| {
            let down_after = Duration::from_secs(1);
            Said { at: at(port), epoch, down_after, replicas: 1, living: 1, others: 2 }
        };
        let all = [(0, said(1, 3)), (1, said(1, 3)), (2, said(2, 9))];
        let (master, later) = first(&sentinels.options, &all).unwrap();
        assert!(later && master.at == at(1) && master.epoch == 3);
        sentinels.set_apart(&all, &master);
        sentinels.master.send_replace(Some(master));
        let is = |port| sentinels.master().is_some_and(|master| master.at == at(port));
        sentinels.heard(2, said(2, 9));
        sentinels.heard(2, said(3, 10));
        assert!(is(1), "nobody else names it");
        let answers = |said: &[(usize, Said)]| {
            let said = said.to_vec();
            sentinels.without_apart(Answers { said, ..Answers::default() }).said.len()
        };
        assert_eq!(answers(&all), 2);
        // A failover that the others tell of is one.
        sentinels.heard(0, said(4, 5));
        assert!(is(4));
        sentinels.heard(2, said(4, 5));
        sentinels.heard(2, said(5, 10));
        assert!(is(5), "it is one of them again");
    }

    #[test]
    fn b4_whoever_did_not_name_the_master_as_a_process_began_is_not_believed_before_it_does() {
        let said = |port, epoch| {
            let down_after = Duration::from_secs(1);
            Said { at: at(port), epoch, down_after, replicas: 1, living: 1, others: 2 }
        };
        // The third is late, away or refuses; or it was behind.
        for third in [None, Some(said(2, 1)), Some(said(2, 3)), Some(said(2, 9))] {
            let sentinels = Sentinels::new(Arc::new(options("a,b,c")));
            let begins = [(0, said(1, 3)), (1, said(1, 3))].into_iter();
            let begins: Vec<_> = begins.chain(third.map(|said| (2, said))).collect();
            let (master, _) = first(&sentinels.options, &begins).unwrap();
            sentinels.set_apart(&begins, &master);
            sentinels.master.send_replace(Some(master));
            let is = |port| sentinels.master().is_some_and(|master| master.at == at(port));
            sentinels.heard(2, said(2, 9));
            assert!(is(1), "nobody else names it");
            // Nor by another connection, which asks all of them.
            let asked = [(0, said(1, 3)), (1, said(1, 3)), (2, said(2, 9))].to_vec();
            let told = sentinels.without_apart(Answers { said: asked, ..Answers::default() });
            assert_eq!(told.said.len(), 2);
            sentinels.heard(2, said(1, 3));
            sentinels.heard(2, said(2, 9));
            assert!(is(2), "it is one of them");
        }
    }

    #[test]
    fn what_was_told_of_a_failover_while_they_were_asked_stands() {
        let [old, new] = [(1, 3), (2, 4)].map(|(port, epoch)| Master { at: at(port), epoch });
        // All of them answered before they had heard of it.
        assert_eq!(settle(Some(&new), Some(&old), old.clone(), true), new);
        assert_eq!(settle(Some(&new), Some(&new), old.clone(), false), new, "one is away");
        assert_eq!(settle(Some(&new), Some(&new), old.clone(), true), old, "set up anew");
        assert_eq!(settle(Some(&old), Some(&old), new.clone(), false), new);
        assert_eq!(settle(None, None, old.clone(), false), old);
    }

    #[test]
    fn as_many_voices_for_two_masters_are_an_error_that_names_both() {
        for known in [None, Some((1, 2))] {
            let error = chosen("a,b", &[(1, 2), (2, 2)], known).unwrap_err();
            assert!(error.is_temporary(), "{error}");
            for part in ["a:26379 names h:1", "b:26379 names h:2", "disagree"] {
                assert!(error.message().contains(part), "{part}: {error}");
            }
        }
    }

    #[test]
    fn a_master_of_before_the_last_failover_is_not_believed() {
        let error = chosen("a,b,c", &[(1, 3), (1, 3)], Some((2, 4))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.message().contains("epoch 4 moved the master to h:2"), "{error}");
        // All of them are there and none remembers it: they were set up anew.
        assert_eq!(chosen("a,b,c", &[(1, 0), (1, 0), (1, 0)], Some((2, 4))).unwrap(), 1);
        assert_eq!(chosen("a,b,c", &[(2, 4)], Some((2, 4))).unwrap(), 2);
    }
}
