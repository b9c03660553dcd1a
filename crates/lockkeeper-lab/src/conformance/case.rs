//! A case, and how one is run.

use lockkeeper::Ability;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::need::Need;
use super::quiet::Quiet;
use super::subject::Subject;
use super::trial::{Story, Trial};

pub use super::cases::cases;

/// A case that takes longer than this hangs.
const CASE_MAX: Duration = Duration::from_secs(300);
/// How long what a case leaves behind may take to end; so much longer than the case does its thread
/// get.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

pub(super) type Running = Pin<Box<dyn Future<Output = ()>>>;

/// One rule, as a test that takes any subject.
pub struct Case {
    /// The rule as a sentence: `r3_a_release_sent_twice_frees_only_its_own_grant`; with `::` after
    /// what stands for a mutex in it.
    pub name: &'static str,
    /// What it needs of the engine; without it the engine must say so.
    pub needs: &'static [Need],
    /// Counts threads, so that nothing else may run in this process meanwhile.
    pub(super) alone: bool,
    pub(super) run: fn(Arc<Trial>) -> Running,
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rule holds.
    Holds,
    /// The engine says that it cannot do what the case needs, and answers so; or the subject lacks
    /// what the case needs.
    NotCapable(Need),
    /// The rule is broken, as the text says.
    Broken(String),
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

/// The case of this name.
pub fn case(name: &str) -> Option<&'static Case> {
    cases().iter().find(|case| case.name == name)
}

/// Runs one case on a subject, on a runtime of its own. One that does not end within five minutes
/// is broken, and left alone; those that run after it are not held up.
pub fn run(case: &'static Case, subject: impl FnOnce() -> Subject + Send + 'static) -> Outcome {
    run_within(CASE_MAX, case, subject)
}

fn run_within(
    limit: Duration,
    case: &'static Case,
    subject: impl FnOnce() -> Subject + Send + 'static,
) -> Outcome {
    // Kept here, and not in the thread of the case: a case that hangs keeps none of the others from
    // running.
    let _quiet = Quiet::keep(case.alone);
    let (sender, receiver) = channel();
    let body = move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| attempt(limit, case, subject)));
        // Nobody listens once the time is over.
        let _ = sender.send(outcome.unwrap_or_else(|panic| Outcome::Broken(text_of(&*panic))));
    };
    let started =
        std::thread::Builder::new().name(case.name.chars().take(15).collect()).spawn(body);
    let Ok(thread) = started else { return Outcome::Broken("no thread can be started".to_owned()) };
    match receiver.recv_timeout(limit + 2 * ENDS_WITHIN) {
        Ok(outcome) => {
            // It has sent its last word, so it ends at once.
            let _ = thread.join();
            outcome
        }
        Err(RecvTimeoutError::Timeout) => Outcome::Broken(hangs(limit)),
        Err(RecvTimeoutError::Disconnected) => {
            Outcome::Broken("it ended without an outcome".to_owned())
        }
    }
}

fn hangs(limit: Duration) -> String {
    format!("it hangs: no end after {limit:?}")
}

fn attempt(limit: Duration, case: &Case, subject: impl FnOnce() -> Subject) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be started");
    let story = Arc::<Story>::default();
    let whole = async {
        let subject = subject();
        let locks =
            (subject.open)(lockkeeper::Locks::builder()).await.expect("the store can be opened");
        let about = locks.describe();
        // An engine without a list may show nothing at all, and says so; others show what they
        // have.
        let shown = locks.status(lockkeeper::Kind::Lock, "shown").await;
        let shows = about.can.has(Ability::List)
            || !shown.is_err_and(|error| error.kind() == lockkeeper::ErrorKind::Unsupported);
        let trial = Arc::new(Trial::new(subject, about, shows, story.clone()));
        let missing =
            case.needs.iter().find(|need| !need.is_met(&trial.about, &trial.subject, shows));
        if let Some(need) = missing {
            need.assert_refused(&trial, &locks).await;
        }
        drop(locks.close().await);
        if let Some(need) = missing {
            return Outcome::NotCapable(*need);
        }
        (case.run)(trial.clone()).await;
        Outcome::Holds
    };
    let timed = async {
        tokio::time::timeout(limit, whole).await.unwrap_or_else(|_| Outcome::Broken(hangs(limit)))
    };
    // A runtime that is dropped by a panic waits for its threads for as long as they take.
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(timed)));
    runtime.shutdown_timeout(ENDS_WITHIN);
    let outcome = outcome.unwrap_or_else(|panic| Outcome::Broken(text_of(&*panic)));
    if matches!(outcome, Outcome::Broken(_)) {
        story.tell();
    }
    outcome
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned()))
        .unwrap_or_else(|| "it panicked".to_owned())
}

/// Runs the case of this name as a test: panics when its rule is broken.
///
/// # Panics
/// When the rule is broken, or there is no such case.
pub fn check(name: &str, subject: impl FnOnce() -> Subject + Send + 'static) {
    let case = case(name).unwrap_or_else(|| panic!("there is no case {name}"));
    match run(case, subject) {
        Outcome::Holds => {}
        Outcome::NotCapable(need) => println!("{name}: not capable: {}", need.as_str()),
        Outcome::Broken(why) => panic!("{name}: {why}"),
    }
}
