//! Searches a model to its end, and prints how large it was.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

/// What a search came to.
pub struct Found {
    /// The first rule that was broken, and how it came to that.
    pub broken: Option<(&'static str, Vec<String>)>,
    /// What should happen now and then, and never did.
    pub never: Vec<&'static str>,
    states: usize,
    depth: usize,
    took: Duration,
}

/// How many steps a search may look at.
const MOST: usize = 6_000_000;

/// Searches everything that can happen, breadth first, until a rule is broken.
pub fn search<M>(model: M) -> Found
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let start = Instant::now();
    let checker = model
        .checker()
        .threads(threads())
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(MOST)
        .spawn_bfs()
        .join();
    assert!(
        checker.state_count() < MOST,
        "more than {MOST} steps: the model has grown too large to be searched"
    );
    let discoveries = checker.discoveries();
    let properties = checker.model().properties();
    let mut broken = None;
    let mut never = Vec::new();
    for property in &properties {
        match (property.expectation.discovery_is_failure(), discoveries.get(property.name)) {
            (true, Some(path)) if broken.is_none() => {
                let steps = path
                    .clone()
                    .into_actions()
                    .iter()
                    .map(|action| format!("{action:?}"))
                    .collect();
                broken = Some((property.name, steps));
            }
            (false, None) => never.push(property.name),
            _ => {}
        }
    }
    Found {
        broken,
        never,
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        took: start.elapsed(),
    }
}

/// States from which everybody is known to come to an end. The way there from a state is always the
/// same, so a way that meets one of them is followed no further, and mostly is one step long.
#[derive(Default)]
pub struct Ends(Mutex<HashSet<u64>>);

/// One way to the end.
pub struct Way<'a> {
    ends: &'a Ends,
    met: Vec<u64>,
}

impl Ends {
    pub fn way(&self) -> Way<'_> {
        Way { ends: self, met: Vec::new() }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Way<'_> {
    /// Comes to a state, of which this is all that the way from there depends on; answers whether
    /// the rest is known.
    pub fn meets(&mut self, state: &impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        let state = hasher.finish();
        self.met.push(state);
        self.ends.known().contains(&state)
    }

    /// It comes to an end, from every state that it met.
    pub fn ends(self) {
        self.ends.known().extend(self.met);
    }
}

fn threads() -> usize {
    std::env::var("LOCKKEEPER_MODEL_THREADS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn row(model: &str, variant: &str, found: &Found, verdict: &str) {
    let seconds = found.took.as_secs_f64();
    println!(
        "model {model:<10} {variant:<46} {verdict:<44} {:>8} states, depth {:>3}, {seconds:>5.1} s",
        found.states, found.depth
    );
}

/// Every rule holds in every state, and the search was complete.
pub fn holds<M>(model: &str, variant: &str, subject: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let found = search(subject);
    if let Some((rule, steps)) = &found.broken {
        panic!(
            "{model}, {variant}: \"{rule}\" is broken after {} steps:\n  {}",
            steps.len(),
            steps.join("\n  ")
        );
    }
    row(model, variant, &found, "holds");
    assert!(
        found.never.is_empty(),
        "{model}, {variant}: too weak, this never happens: {:?}",
        found.never
    );
}

/// A variant with a flaw breaks this rule; the way there is printed.
pub fn convicts<M>(model: &str, variant: &str, rule: &str, subject: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let found = search(subject);
    let Some((broken, steps)) = &found.broken else {
        panic!("{model}, {variant}: the flaw is not found in {} states", found.states)
    };
    row(model, variant, &found, &format!("\"{broken}\" broken in {} steps", steps.len()));
    for (at, step) in steps.iter().enumerate() {
        println!("    {:>2}. {step}", at + 1);
    }
    assert_eq!(*broken, rule, "{model}, {variant}: another rule than expected");
}
