//! Which node has which slot: whom to ask, and when.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::errors;
use super::older::Older;
use super::options::ClusterOptions;
use super::wire::{Told, ask};
use crate::engine::Context;
use crate::engine::either::either;
use crate::engine::redis::client::slots::Slots;
use crate::engine::redis::options::Address;
use crate::words::error::{Error, ErrorKind, Result};

/// How soon after one answer the next is asked for, at first and at most.
const APART: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// After so long without doubt the first pause is a short one again.
const CALM: Duration = Duration::from_secs(5);

/// How many nodes are asked at the same time.
const ASKED_AT_ONCE: usize = 3;

/// After so long without an answer the next ones are asked, too: a machine that is away says
/// nothing.
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// For how long a node that was named as a new home is asked alone: it knows best, and it may be
/// the one that was lost.
const NAMED_WITHIN: Duration = Duration::from_secs(1);

/// The map of one cluster, kept up to date while somebody doubts it.
pub(super) struct Map {
    pub(super) options: ClusterOptions,
    pub(super) slots: Arc<Slots>,
    told: Mutex<Option<Told>>,
    older: Mutex<Older>,
    /// Those of the URL that said last that they are in no cluster, where another one is.
    strangers: Arc<Strangers>,
    pub(super) closed: watch::Sender<bool>,
}

impl Map {
    pub(super) fn new(options: ClusterOptions) -> Arc<Self> {
        let closed = watch::Sender::new(false);
        let (told, older, strangers) = (Mutex::default(), Mutex::default(), Arc::default());
        Arc::new(Self { options, slots: Slots::new(), told, older, strangers, closed })
    }

    /// Those that the URL names and that are in no cluster, as far as they were asked.
    pub(super) fn strangers(&self) -> Vec<Address> {
        let told = self.told();
        let is_node = |at: &Address| {
            told.as_ref().is_some_and(|told| told.ids.iter().any(|(node, _)| node == at))
        };
        let mut all = self.strangers.lock().clone();
        all.retain(|at| self.options.named.contains(at) && !is_node(at));
        all
    }

    /// What was told last.
    pub(super) fn told(&self) -> Option<Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks those that the URL names, until one has told.
    ///
    /// # Errors
    /// What is to be changed, where a node says that; else that none can be asked.
    pub(super) async fn find(&self, context: &Context) -> Result<()> {
        match self.ask(context, &self.options.named).await {
            Ok(told) => {
                self.learn(told);
                Ok(())
            }
            Err(errors) => Err(errors::none(errors, &self.options.named)),
        }
    }

    /// The first that tells and may be believed; some are asked at once, and the next with them
    /// when nobody answers soon. All together take no longer than one may.
    async fn ask(&self, context: &Context, nodes: &[Address]) -> Result<Told, Vec<Error>> {
        let within = self.options.node.connect_timeout;
        // With a short time, too, the last ones have most of it.
        let parts = u32::try_from(nodes.len() / ASKED_AT_ONCE).unwrap_or(u32::MAX).max(1);
        let next_after = NEXT_AFTER.min(within / 4 / parts);
        let (until, (sender, mut answers)) = (Instant::now() + within, mpsc::unbounded_channel());
        let begin = |at: &Address| {
            let (sender, mut options) = (sender.clone(), self.options.node.clone());
            // In TLS silence is told before the time is over; everything else that is late is so
            // for all alike.
            let left = until.saturating_duration_since(Instant::now());
            options.connect_timeout = left + left / 16;
            let (at, clock, strangers) =
                (at.clone(), context.clock.clone(), self.strangers.clone());
            let label = format!("lockkeeper:slots:{}", context.who.pid);
            context.spawner.spawn(async move {
                let late = || errors::away(&at, format_args!("no answer within {within:?}"));
                let asking = timeout_at(until, ask(at.clone(), &options, clock, label));
                // Who asked may have heard enough.
                let told = asking.await.unwrap_or_else(|_| Err(late()));
                strangers.note(&at, told.as_ref().err());
                _ = sender.send(told);
            });
        };
        let (before, mut errors, mut cut_off) = (self.told(), Vec::new(), None);
        let (mut rest, mut unanswered) = (nodes.chunks(ASKED_AT_ONCE), 0);
        while unanswered + rest.len() > 0 {
            let patience = match (unanswered, rest.len()) {
                (0, _) => Duration::ZERO,
                // Each is told of in time: late, where its task was ended.
                (_, 0) => until.saturating_duration_since(Instant::now()) + NEXT_AFTER,
                _ => next_after,
            };
            let told = timeout(patience, answers.recv()).await.ok().flatten();
            let Some(told) = told else {
                let Some(next) = rest.next() else { break };
                next.iter().for_each(begin);
                unanswered += next.len();
                continue;
            };
            unanswered -= 1;
            match told.map(|told| (Trust::of(&told, before.as_ref()), told)) {
                Ok((Trust::Full, told)) => {
                    return Ok(told);
                }
                Ok((Trust::CutOff, told)) => {
                    errors.push(errors::cut_off(&told.by));
                    cut_off = cut_off.or(Some(told));
                }
                Ok((Trust::Behind, told)) if self.is_told_for_long(&told, before.as_ref()) => {
                    return Ok(told);
                }
                Ok((Trust::Behind, told)) => errors.push(errors::behind(&told.by)),
                Ok((Trust::Stranger, told)) => errors.push(errors::another_cluster(&told.by)),
                Err(error) => errors.push(error),
            }
        }
        // Where nothing is known yet it is better than nothing: a majority of masters may be down.
        cut_off.filter(|_| before.is_none()).ok_or(errors)
    }

    fn older(&self) -> MutexGuard<'_, Older> {
        self.older.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this map is older than the one before because all nodes were restored.
    fn is_told_for_long(&self, told: &Told, before: Option<&Told>) -> bool {
        let mut masters: Vec<&Address> =
            before.iter().flat_map(|told| &told.shards).map(|shard| &shard.at).collect();
        masters.sort_by_cached_key(ToString::to_string);
        masters.dedup();
        self.older().told(Instant::now(), &told.by, &masters, self.options.node.ttl)
    }

    fn learn(&self, told: Told) {
        *self.older() = Older::default();
        let each = told.shards.iter().map(|shard| (shard.slots.clone(), shard.at.clone()));
        self.slots.learn(&each.collect::<Vec<_>>(), &told.ids, &told.by, told.facts.clone());
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
    }

    /// Asks again whenever somebody doubts, and when a slot has moved; until all is closed.
    pub(super) async fn keep(self: Arc<Self>, context: Context) {
        let mut closed = self.closed.subscribe();
        let keeping = async {
            let (mut apart, mut turn, mut next_hint) = (APART.0, 0, Instant::now());
            loop {
                let since = Instant::now();
                // Where that slot is has been heard. Others may have moved as well, and slots that
                // are moved one by one are no reason to ask after each.
                let hinted = async {
                    self.slots.hinted().await;
                    sleep_until(next_hint).await;
                };
                // Who tells an older map is asked until it is clear which one counts.
                let older = async {
                    let is_told = self.older().is_told();
                    if !is_told {
                        std::future::pending::<()>().await;
                    }
                    sleep(APART.1.max(self.options.node.ttl / 4)).await;
                };
                let is_doubted = either(either(self.slots.doubted(), older), hinted).await.is_ok();
                if since.elapsed() > CALM {
                    apart = APART.0;
                }
                let mut changes = self.slots.changes();
                changes.mark_unchanged();
                if let Some(told) = self.look(&context, &mut turn).await {
                    self.learn(told);
                }
                next_hint = Instant::now() + APART.1;
                if changes.has_changed().unwrap_or(false) {
                    apart = APART.0;
                }
                if is_doubted {
                    sleep(apart).await;
                    apart = (apart * 2).min(APART.1);
                }
            }
        };
        let _: std::result::Result<(), _> = either(keeping, closed.wait_for(|c| *c)).await;
    }

    /// What is told now, if anybody tells.
    async fn look(&self, context: &Context, turn: &mut usize) -> Option<Told> {
        if let Some(named) = self.slots.named() {
            let named = [named];
            if let Ok(Ok(told)) = timeout(NAMED_WITHIN, self.ask(context, &named)).await {
                return Some(told);
            }
        }
        self.ask(context, &self.whom(turn)).await.ok()
    }

    /// Some of those that are known, in turn: one of them may be the one that was lost.
    fn whom(&self, turn: &mut usize) -> Vec<Address> {
        let homes = self.slots.homes().nodes();
        let mut all: Vec<Address> =
            homes.into_iter().filter_map(|node| self.slots.address(node)).collect();
        for named in &self.options.named {
            if !all.contains(named) {
                all.push(named.clone());
            }
        }
        let from = *turn % all.len().max(1);
        all.rotate_left(from);
        all.truncate(ASKED_AT_ONCE);
        *turn = turn.wrapping_add(ASKED_AT_ONCE);
        all
    }
}

/// Servers that are in no cluster. One answer is enough for a map, and what the others say is noted
/// all the same: the locks of such a server are others.
#[derive(Default)]
struct Strangers(Mutex<Vec<Address>>);

impl Strangers {
    fn lock(&self) -> MutexGuard<'_, Vec<Address>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What one has said last; without an error it is a node.
    fn note(&self, at: &Address, error: Option<&Error>) {
        let is_one = error.is_some_and(|e| e.message() == errors::no_cluster(at).message());
        let mut all = self.lock();
        all.retain(|known| known != at);
        if is_one {
            all.push(at.clone());
        }
    }
}

/// What one node says may be worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Full,
    /// It does not reach a majority of the masters: a slot of its own may be another's by now.
    CutOff,
    /// It has not heard of what another one told before: its map is older.
    Behind,
    /// It is of another cluster than the one that was asked before: it may have gone there, or come
    /// from there to the address of a node.
    Stranger,
}

impl Trust {
    fn of(told: &Told, before: Option<&Told>) -> Self {
        let Some(before) = before else {
            return if told.is_ok { Self::Full } else { Self::CutOff };
        };
        let known = |id: &String| before.ids.iter().any(|(_, of)| of == id);
        if !before.ids.is_empty() && !told.ids.iter().any(|(_, id)| known(id)) {
            return Self::Stranger;
        }
        match (told.is_ok, told.epoch < before.epoch) {
            (false, _) => Self::CutOff,
            (true, true) => Self::Behind,
            (true, false) => Self::Full,
        }
    }
}

/// Whether an error is about more than one node that does not answer, or is full.
pub(super) fn is_final(error: &Error) -> bool {
    error.kind() != ErrorKind::Unreachable && !error.is_temporary()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::redis::describe::Facts;

    fn told(is_ok: bool, epoch: u64, ids: &[&str]) -> Told {
        let at = |port| Address::Tcp("h".into(), port);
        Told {
            by: at(1),
            shards: Vec::new(),
            ids: ids.iter().map(|id| (at(2), (*id).to_owned())).collect(),
            is_ok,
            epoch,
            facts: Facts::default(),
            node_timeout: None,
            full_coverage: None,
        }
    }

    #[test]
    fn an_old_map_and_that_of_a_node_that_is_cut_off_do_not_replace_what_is_known() {
        let before = told(true, 7, &["a", "b"]);
        for (now, trust) in [
            (told(true, 7, &["b"]), Trust::Full),
            (told(true, 8, &["a", "c"]), Trust::Full),
            (told(true, 6, &["a", "b"]), Trust::Behind),
            (told(false, 7, &["a", "b"]), Trust::CutOff),
            (told(false, 9, &["a", "b"]), Trust::CutOff),
            (told(true, 9, &["c"]), Trust::Stranger),
        ] {
            assert_eq!(Trust::of(&now, Some(&before)), trust, "{now:?}");
        }
        assert_eq!(Trust::of(&told(true, 0, &["a"]), None), Trust::Full);
        assert_eq!(Trust::of(&told(false, 9, &["a"]), None), Trust::CutOff);
    }

    #[test]
    fn in_no_cluster_is_who_says_so_and_for_as_long() {
        let [at, other] = [7000, 7001].map(|port| Address::Tcp("h".into(), port));
        let strangers = Strangers::default();
        let password = errors::said(&other, "NOPERM no");
        strangers.note(&other, Some(&password));
        assert!(strangers.lock().is_empty(), "it may be a node: {password}");
        let no_cluster = errors::no_cluster(&at);
        for now in [None, Some(&errors::away(&at, "gone"))] {
            for _ in 0..2 {
                strangers.note(&at, Some(&no_cluster));
                assert_eq!(*strangers.lock(), std::slice::from_ref(&at));
            }
            strangers.note(&at, now);
            assert!(strangers.lock().is_empty(), "{now:?}");
        }
    }
}
