//! One run of one case: its subject, names of its own, and what cases do again and again.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper::observe::{Observer, Seen};
use lockkeeper::test_util::{Residue, residue};
use lockkeeper::{
    Acquire, Builder, Description, Entry, Guard, GuardKind, Kind, Locks, Lost, Name, Ticks,
};

use super::helper::Helper;
use super::subject::Subject;
use crate::history::Writer;
use crate::torture::pulse::Pulse;

/// After so long something hangs that is to come.
pub(super) const HANGS: Duration = Duration::from_secs(120);

/// One run of one case.
#[derive(Debug)]
pub struct Trial {
    pub(super) subject: Subject,
    pub(super) about: Description,
    /// Whether the engine shows who holds a lock. One without a list may answer `Unsupported`
    /// there.
    shows: bool,
    id: String,
    story: Arc<Story>,
}

/// What happened last in this process, for whoever reads why a case failed.
#[derive(Debug, Default)]
pub(super) struct Story(Mutex<VecDeque<String>>);

/// How much of it is told.
const TOLD: usize = 24;

impl Observer for Story {
    fn seen(&self, at: Ticks, kind: Kind, name: &Name, what: &Seen) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == TOLD {
            last.pop_front();
        }
        last.push_back(format!("{at:?} {kind:?} {name}: {what:?}"));
    }
}

impl Story {
    /// Tells it.
    pub(super) fn tell(&self) {
        for line in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            eprintln!("{line}");
        }
    }
}

impl Trial {
    pub(super) fn new(
        subject: Subject,
        about: Description,
        shows: bool,
        story: Arc<Story>,
    ) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("t{:x}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self { subject, about, shows, id, story }
    }

    /// A name that no other trial uses.
    pub fn name(&self, text: &str) -> String {
        format!("{}/{text}", self.id)
    }

    /// What the engine says about itself.
    pub fn about(&self) -> &Description {
        &self.about
    }

    /// A fresh client of the store.
    pub async fn open(&self) -> Locks {
        self.open_with(|builder| builder).await
    }

    /// A fresh client of the store with settings of its own.
    pub async fn open_with(&self, change: impl FnOnce(Builder) -> Builder) -> Locks {
        let builder = Locks::builder().observer(self.story.clone());
        let opened = (self.subject.open)(change(builder)).await;
        opened.expect("the store can be opened")
    }

    /// A client of the same store in another process.
    pub async fn helper(&self) -> Helper {
        let program = self.subject.helper.as_deref().expect("the case needs processes");
        let url = self.subject.url.as_deref().expect("the case needs processes");
        Helper::start(program, url).await
    }

    /// The same with leases that are over soon, for a case that waits for the end of one; and what
    /// its engine says about itself.
    pub(super) async fn brief_helper(&self) -> (Helper, Description) {
        let program = self.subject.helper.as_deref().expect("the case needs processes");
        let url = self.subject.brief.as_deref().or(self.subject.url.as_deref());
        let url = url.expect("the case needs processes");
        let locks = Locks::open(url).await.expect("the store can be opened");
        let about = locks.describe();
        drop(locks.close().await);
        (Helper::start(program, url).await, about)
    }

    /// `most`, or less on an engine that is slower.
    pub fn times(&self, most: u32) -> u32 {
        (most * self.subject.effort / 100).max(2)
    }

    pub(super) async fn wipe(&self) {
        self.subject.wipe.as_ref().expect("the case needs wiping")().await;
    }

    pub(super) async fn restart(&self) {
        self.subject.restart.as_ref().expect("the case needs restarting")().await;
    }

    pub(super) async fn cut(&self) {
        self.subject.cut.as_ref().expect("the case needs cutting off").0().await;
    }

    pub(super) async fn mend(&self) {
        self.subject.cut.as_ref().expect("the case needs cutting off").1().await;
    }

    pub(super) async fn cut_if_it_can_be(&self) {
        if self.subject.cut.is_some() {
            self.cut().await;
        }
    }

    pub(super) async fn mend_if_it_was_cut(&self) {
        if self.subject.cut.is_some() {
            self.mend().await;
        }
    }

    /// Whether the engine shows who holds a lock.
    pub(super) fn shows_locks(&self) -> bool {
        self.shows
    }

    /// What the engine knows about a lock; `None` where it says that it shows nothing.
    pub async fn shown(&self, locks: &Locks, kind: Kind, name: &str) -> Option<Entry> {
        if !self.shows {
            return None;
        }
        Some(locks.status(kind, name).await.expect("the status can be read"))
    }

    /// Whether the engine shows so many holders and waiters. One that shows nothing is not asked.
    pub async fn shows(
        &self,
        locks: &Locks,
        kind: Kind,
        name: &str,
        holders: usize,
        waiters: usize,
    ) -> bool {
        let entry = self.shown(locks, kind, name).await;
        let so = entry
            .as_ref()
            .is_none_or(|entry| (entry.holders.len(), entry.waiters.len()) == (holders, waiters));
        if !so {
            note(format!("{entry:?}"));
        }
        so
    }

    /// Waits for the same.
    pub async fn until_shows(
        &self,
        locks: &Locks,
        kind: Kind,
        name: &str,
        holders: usize,
        waiters: usize,
    ) {
        let what = format!("the engine shows {holders} holders and {waiters} waiters");
        until(&what, || self.shows(locks, kind, name, holders, waiters)).await;
    }

    /// Waits until nobody but so many holders has the name, and nobody waits for it. An engine that
    /// shows nothing proves it for a lock by granting it to one who tries.
    pub async fn until_free(&self, locks: &Locks, kind: Kind, name: &str, beside: usize) {
        if self.shows || kind != Kind::Lock {
            return self.until_shows(locks, kind, name, beside, 0).await;
        }
        until("a try gets it", || async {
            match locks.mutex(name).try_lock().await.expect("it can be tried") {
                Some(guard) => guard.release().await.is_clean(),
                None => false,
            }
        })
        .await;
    }

    /// Waits until the engine's line of this name has so many places; where the engine keeps no
    /// line, or does not show it, waits a little.
    pub async fn until_waiting(&self, locks: &Locks, kind: Kind, name: &str, places: usize) {
        if !self.about.can.is_fair(kind) || !self.shows {
            tokio::time::sleep(Duration::from_millis(150)).await;
            return;
        }
        until("the waiters stand in line", || async {
            let entry = locks.status(kind, name).await.expect("the status can be read");
            entry.waiters.len() == places
        })
        .await;
    }

    /// Waits until nobody holds the name, nobody waits for it, and this client keeps no claim,
    /// lease or task for it.
    pub async fn until_nothing_is_left(
        &self,
        locks: &Locks,
        other: &Locks,
        kind: Kind,
        name: &str,
        before: Residue,
    ) {
        until("nothing is left of it", || async {
            let free = self.shows(other, kind, name, 0, 0).await;
            let kept = residue(locks);
            let settled = kept.claims <= before.claims
                && kept.leases <= before.leases
                && kept.tasks <= before.tasks;
            if !settled {
                note(format!("{kept:?}, before it {before:?}"));
            }
            free && settled
        })
        .await;
        self.until_free(other, kind, name, 0).await;
    }

    /// A lease that does not run out before something hangs, where a hold has one of its own.
    pub(super) fn lasting(&self) -> Option<Duration> {
        let about = self.about();
        let most = about.max_ttl.unwrap_or(Duration::MAX);
        about.expiry.is_per_hold().then(|| (HANGS * 5).min(most))
    }

    /// The same claim with such a lease.
    pub(super) fn lasts<G: GuardKind>(&self, acquire: Acquire<G>) -> Acquire<G> {
        self.lasting().into_iter().fold(acquire, Acquire::ttl)
    }

    /// A mutex asked for with such a lease.
    pub(super) fn lock(&self, locks: &Locks, name: &str) -> Acquire<Guard> {
        self.lasts(locks.mutex(name).lock())
    }

    /// What a client keeps while it does nothing, after it was used once.
    pub async fn at_rest(&self, locks: &Locks) -> Residue {
        let name = self.name("warm-up");
        let guard = locks.mutex(&name).lock().await.expect("a free lock");
        // Waiting, so that whatever is started lazily is there.
        let waited = locks.mutex(&name).lock().timeout(Duration::from_millis(20)).await;
        assert!(waited.is_err(), "somebody holds it");
        assert!(guard.release().await.is_clean());
        let mut before = residue(locks);
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let now = residue(locks);
            if now.tasks == before.tasks && now.claims == 0 && now.leases == 0 {
                return now;
            }
            before = now;
        }
    }
}

thread_local! {
    static NOTE: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// What the condition that is waited for looked like last; printed when it never comes.
pub(super) fn note(text: String) {
    NOTE.set(text);
}

/// Waits until a condition holds; panics with its name when it does not come.
pub async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    within(HANGS, what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    })
    .await;
}

/// Waits for a future, but not longer than `time`.
pub async fn within<T>(time: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(time, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {time:?}: {what}\n{}", NOTE.take()),
    }
}

/// A short lease ran out on a machine that is slower, and the test tries once more. `end`: until
/// when it lasted at least, as its guard said before the loss.
pub(super) fn ran_out(why: Lost, end: Option<Instant>) {
    assert!(end.is_some_and(|end| Instant::now() >= end), "{why:?}, while its lease lasts");
    eprintln!("{why:?}: its lease ran out, once more");
}

/// Does something again and again until what it says that it took is less than a time, as it is on
/// any machine that is not too slow to tell. Each time has its number.
pub(super) async fn sooner_than<F: Future<Output = Duration>>(
    time: Duration,
    what: &str,
    mut work: impl FnMut(usize) -> F,
) {
    let mut times = 0;
    until(what, || {
        times += 1;
        let work = work(times);
        async move { work.await < time }
    })
    .await;
}

/// Where it is set, a promised time is kept, too; elsewhere it is enough that what was promised
/// comes. What is late on a server's side is no part of what is forgiven.
const JUDGES_TIME: &str = "LOCKKEEPER_JUDGES_TIME";

/// What wake-ups take at most, on a machine that has nothing else to do.
const MARGIN: Duration = Duration::from_secs(1);

/// How long something takes, less what this machine is late by itself meanwhile.
pub(super) struct Timer {
    began: u64,
    pulse: Pulse,
    _place: tempfile::TempDir,
}

impl Timer {
    pub(super) fn start() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let pulse = Pulse::start(place.path(), false).expect("a thread of its own");
        Self { began: Writer::now(), pulse, _place: place }
    }

    /// Panics where more than the promised time has gone, and somebody wants to know.
    pub(super) fn keeps(&self, promised: Duration) {
        let now = Writer::now();
        let took = Duration::from_nanos(now.saturating_sub(self.began));
        let forgiven = Duration::from_nanos(self.pulse.forgiven_ns(self.began, now));
        let judged = std::env::var_os(JUDGES_TIME).is_some();
        assert!(
            !judged || took <= promised + MARGIN + forgiven,
            "{promised:?} was promised, and it took {took:?} on a machine that was late by \
             {forgiven:?}"
        );
    }
}
