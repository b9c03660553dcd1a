//! Who is the master: what the Sentinels say, and whom to believe.

use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
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
        for node in &self.nodes {
            let weak = Arc::downgrade(self);
            let heard = move |said: Said| {
                if let Some(sentinels) = weak.upgrade() {
                    sentinels.heard(said);
                }
            };
            let (options, closed) = (self.options.clone(), self.closed.subscribe());
            context.spawner.spawn(node.clone().keep(options, label.clone(), closed, heard));
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

    /// The replicas, as the first Sentinel that answers knows them.
    pub(super) async fn replicas(&self) -> Vec<Address> {
        for node in self.nodes.iter().filter(|node| node.why_down().is_none()) {
            let replicas = node.replicas(&self.options).await;
            if !replicas.is_empty() {
                return replicas;
            }
        }
        Vec::new()
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
    fn heard(&self, said: Said) {
        self.master.send_if_modified(|master| match master {
            Some(known) if said.epoch > known.epoch => {
                *known = Master { at: said.at, epoch: said.epoch };
                true
            }
            _ => false,
        });
    }

    /// Asks all of them.
    async fn find(self: Arc<Self>) -> Result<Address> {
        let Some(context) = self.context.get() else {
            return Err(errors::all_away(&self.options, &[]));
        };
        let mut until = Instant::now() + self.options.master.connect_timeout / 2;
        let before = self.master();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for at in 0..self.nodes.len() {
            let (sentinels, sender) = (self.clone(), sender.clone());
            context.spawner.spawn(async move {
                let Some(node) = sentinels.nodes.get(at) else { return };
                let asked = pin!(node.ask(&sentinels.options));
                if let Ok(answer) = either(asked, pin!(sender.closed())).await {
                    // Nobody waits any more for one that is late.
                    let _ = sender.send((at, answer));
                }
            });
        }
        drop(sender);
        let (mut said, mut errors, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let next = pin!(receiver.recv());
            let Ok(Some((at, answer))) = either(next, pin!(sleep_until(until))).await else {
                break;
            };
            match answer {
                Ok(Some(answer)) => said.push((at, answer)),
                Ok(None) => unknown.push(at),
                // What is wrong when it begins is a mistake, unless it passes by itself; later the
                // others go on.
                Err(error)
                    if error.kind() != ErrorKind::Unreachable
                        && !error.is_temporary()
                        && self.is_new() =>
                {
                    return Err(error);
                }
                Err(error) => errors.push(error),
            }
            if said.len() >= self.options.majority() {
                until = until.min(Instant::now() + GRACE);
            }
        }
        drop(receiver);
        if said.is_empty() {
            if let Some(node) = unknown.first().and_then(|at| self.nodes.get(*at)) {
                return Err(errors::unknown_service(&self.options, &node.services().await));
            }
            if errors.is_empty() {
                errors.push(Error::new(ErrorKind::Unreachable, "no answer in time"));
            }
            return Err(errors::all_away(&self.options, &errors));
        }
        let master = choose(&self.options, &said, before.as_ref())?;
        let anew = said.len() == self.nodes.len();
        let mut at = master.at.clone();
        self.master.send_if_modified(|known| {
            let next = settle(known.as_ref(), before.as_ref(), master, anew);
            at = next.at.clone();
            let changes = known.as_ref() != Some(&next);
            *known = Some(next);
            changes
        });
        Ok(at)
    }

    fn is_new(&self) -> bool {
        self.master.borrow().is_none()
    }
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

/// Whom to believe: the greatest epoch; where several name it, the master that most of them name.
///
/// An epoch below one that this process has heard of is of before a failover, so its master may be
/// the old one, cut off and alive. It counts only when every Sentinel of the URL is there and none
/// of them remembers the greater one: then they were set up anew.
fn choose(
    options: &SentinelOptions,
    said: &[(usize, Said)],
    known: Option<&Master>,
) -> Result<Master> {
    let epoch = said.iter().map(|(_, said)| said.epoch).max().unwrap_or(0);
    if let Some(known) = known
        && epoch < known.epoch
        && said.len() < options.sentinels.len()
    {
        return Err(errors::outdated(options, epoch, known.epoch, &known.at));
    }
    let named: Vec<&(usize, Said)> = said.iter().filter(|(_, said)| said.epoch == epoch).collect();
    let votes = |at: &Address| named.iter().filter(|(_, said)| said.at == *at).count();
    let most = named.iter().map(|(_, said)| votes(&said.at)).max().unwrap_or(0);
    let mut first = named.iter().filter(|(_, said)| votes(&said.at) == most);
    let Some((_, chosen)) = first.next() else { return Err(errors::all_away(options, &[])) };
    if first.any(|(_, said)| said.at != chosen.at) {
        let each = named
            .iter()
            .filter_map(|(at, said)| Some((options.sentinels.get(*at)?.clone(), said.at.clone())));
        return Err(errors::disagree(options, &each.collect::<Vec<_>>()));
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
                (n, Said { at: at(*port), epoch: *epoch, down_after, replicas: 1, others: 2 })
            })
            .collect();
        let known = known.map(|(port, epoch)| Master { at: at(port), epoch });
        match choose(&options(sentinels), &said, known.as_ref())?.at {
            Address::Tcp(_, port) => Ok(port),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_greatest_epoch_counts_and_then_the_most_voices() {
        assert_eq!(chosen("a,b,c", &[(1, 3), (1, 3), (2, 4)], None).unwrap(), 2);
        assert_eq!(chosen("a,b,c", &[(1, 0), (2, 0), (1, 0)], None).unwrap(), 1);
        assert_eq!(chosen("a,b,c", &[(1, 0)], None).unwrap(), 1, "the others are away");
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
        let error = chosen("a,b", &[(1, 2), (2, 2)], None).unwrap_err();
        assert!(error.is_temporary(), "{error}");
        for part in ["a:26379 names h:1", "b:26379 names h:2", "disagree"] {
            assert!(error.message().contains(part), "{part}: {error}");
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
