//! Threads and descriptors of this process: cases that count them run alone.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use super::trial::{note, until};

static ALONE: RwLock<()> = RwLock::new(());

/// Kept while a case runs.
pub(super) enum Quiet {
    Beside(#[allow(dead_code, reason = "kept for its drop")] RwLockReadGuard<'static, ()>),
    Alone(#[allow(dead_code, reason = "kept for its drop")] RwLockWriteGuard<'static, ()>),
}

impl Quiet {
    pub(super) fn keep(alone: bool) -> Self {
        if alone {
            Self::Alone(ALONE.write().unwrap_or_else(PoisonError::into_inner))
        } else {
            Self::Beside(ALONE.read().unwrap_or_else(PoisonError::into_inner))
        }
    }
}

/// The threads and descriptors of this process.
pub(super) type Counted = (Vec<String>, Vec<String>);

/// Waits until the counts stand still, and gives them.
pub(super) async fn at_rest() -> Counted {
    let mut before = (threads(), descriptors());
    loop {
        tokio::time::sleep(Duration::from_millis(60)).await;
        let now = (threads(), descriptors());
        if now == before {
            return now;
        }
        before = now;
    }
}

/// Waits until there are no more threads and descriptors than before.
pub(super) async fn until_as_before(before: &Counted) {
    until("no thread and no descriptor is left", || async {
        let now = (threads(), descriptors());
        note(format!("before: {before:?}\nnow:    {now:?}"));
        now.0.len() <= before.0.len() && now.1.len() <= before.1.len()
    })
    .await;
}

/// Waits until there are no more threads than before.
pub(super) async fn until_threads_as_before(before: &Counted) {
    until("no thread is left", || async {
        let now = threads();
        note(format!("before: {:?}\nnow:    {now:?}", before.0));
        now.len() <= before.0.len()
    })
    .await;
}

/// The names of this process's threads, sorted.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mut names: Vec<String> = tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
        .map(|n| n.trim_end().to_owned())
        .collect();
    names.sort();
    names
}

/// What this process's descriptors point at, sorted.
fn descriptors() -> Vec<String> {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let mut targets: Vec<String> = open
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .map(|target| target.display().to_string())
        .collect();
    targets.sort();
    targets
}
