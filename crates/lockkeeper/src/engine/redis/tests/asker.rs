//! Asks about places at their time, as the keeper does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::{Answer, Attempt, Engine, Event, Standing};
use crate::protocol::line::AskAt;
use crate::words::clock::{Clock, Ticks};
use crate::words::error::ErrorKind;
use crate::words::id::ClaimId;

/// After how long a question is repeated that was not answered.
const AGAIN: Duration = Duration::from_secs(1);

/// After how long a place of a long line is asked about that was told no time (R10).
const NET: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Asker {
    clock: Clock,
    asks: Mutex<BTreeMap<ClaimId, AskAt>>,
    /// Who is asked about now and then: see [`Asker::casts_net`].
    net: Mutex<BTreeSet<ClaimId>>,
    changed: Notify,
    tell: Mutex<Sender<Event>>,
    /// Nobody asks by themselves: see [`Asker::by_word_alone`].
    deaf: AtomicBool,
}

/// What is so near is a word: the engine says to ask after a moment.
const WORD: Duration = Duration::from_millis(200);

impl Asker {
    pub(super) fn new(clock: Clock, tell: Sender<Event>) -> Arc<Self> {
        let (asks, net, changed) = (Mutex::default(), Mutex::default(), Notify::new());
        let deaf = AtomicBool::new(false);
        Arc::new(Self { clock, asks, net, changed, tell: Mutex::new(tell), deaf })
    }

    /// From now on claims are asked about when the engine has heard something, and never because
    /// time has gone by.
    pub(super) fn by_word_alone(&self) {
        self.deaf.store(true, Ordering::SeqCst);
    }

    /// These are asked about now and then, as the keeper asks about each place, so that no place of
    /// a long line is gone before the line stands. For all others a word that is lost is seen.
    pub(super) fn casts_net(&self, claims: impl IntoIterator<Item = ClaimId>) {
        self.net.lock().expect("not poisoned").extend(claims);
    }

    /// Whether nobody asks at that time.
    fn is_left_out(&self, at: Ticks) -> bool {
        self.deaf.load(Ordering::SeqCst) && at > self.clock.now().plus(WORD)
    }

    fn asks(&self) -> MutexGuard<'_, BTreeMap<ClaimId, AskAt>> {
        self.asks.lock().expect("not poisoned")
    }

    /// An event of the engine.
    pub(super) fn hear(&self, event: Event) {
        match event {
            Event::AskAt { claim, at } if at <= self.clock.now() => self.note(claim, Some(at)),
            Event::AskAt { claim, at } => {
                if !self.is_left_out(at) {
                    self.asks().entry(claim).or_default().told(at);
                }
                self.changed.notify_one();
                self.tell(event);
            }
            Event::Granted { claim, .. } => {
                self.forget(claim);
                self.tell(event);
            }
            event => self.tell(event),
        }
    }

    fn tell(&self, event: Event) {
        // A test that is over listens no more.
        let _ = self.tell.lock().expect("not poisoned").send(event);
    }

    /// What an attempt was answered.
    pub(super) fn answered(&self, claim: ClaimId, attempt: &Attempt) {
        match attempt {
            Attempt::InLine(place) => self.note(claim, place.ask_at),
            Attempt::Unknown(_) => {}
            _ => self.forget(claim),
        }
    }

    fn note(&self, claim: ClaimId, at: Option<Ticks>) {
        let now = self.clock.now();
        let in_net = || self.net.lock().expect("not poisoned").contains(&claim);
        let at = at.or_else(|| in_net().then(|| now.plus(NET)));
        let at = at.filter(|at| !self.is_left_out(*at));
        self.asks().entry(claim).or_default().answered(now, at);
        self.changed.notify_one();
    }

    pub(super) fn forget(&self, claim: ClaimId) {
        self.asks().remove(&claim);
    }

    /// Asks, for as long as there is an engine.
    pub(super) async fn run(self: Arc<Self>, engine: Weak<dyn Engine>) {
        loop {
            let now = self.clock.now();
            let (mut due, mut next) = (Vec::new(), None);
            for (claim, ask_at) in self.asks().iter_mut() {
                if ask_at.is_due(now) {
                    ask_at.asked(now);
                    due.push(*claim);
                }
                next = next.into_iter().chain(ask_at.next()).min();
            }
            for claim in due {
                let Some(engine) = engine.upgrade() else { return };
                tokio::spawn(self.clone().ask(engine, claim));
            }
            let sleep = tokio::time::sleep(next.map_or(AGAIN, |at| at.since(now)));
            let _ = crate::engine::either::either(sleep, self.changed.notified()).await;
        }
    }

    async fn ask(self: Arc<Self>, engine: Arc<dyn Engine>, claim: ClaimId) {
        let answers = match engine.recheck(&[claim]) {
            Answer::Now(answers) => answers,
            Answer::Later(answer) => answer.await,
        };
        match answers.into_iter().next().expect("an answer for each") {
            _ if !self.asks().contains_key(&claim) => {}
            Standing::Held(grant) => self.hear(Event::Granted { claim, grant }),
            Standing::InLine(place) => self.note(claim, place.ask_at),
            Standing::Gone(error) => {
                self.forget(claim);
                let lost = error.kind() == ErrorKind::Lost;
                let ended = Event::Failed { claim, error };
                self.tell(if lost { Event::Wake { claim } } else { ended });
            }
            Standing::Unknown(_) => {
                let at = self.clock.now().plus(AGAIN);
                self.asks().entry(claim).or_default().unanswered(at);
                self.changed.notify_one();
            }
        }
    }
}
