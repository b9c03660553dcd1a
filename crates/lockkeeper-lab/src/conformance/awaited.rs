//! A process that has a lock and is about to end, and one here that waits for it.

use std::time::Instant;

use lockkeeper::{Description, Guard, Locks, Result};
use tokio::task::JoinHandle;

use super::grip::{Grip, Way};
use super::helper::{Helper, Turn};
use super::trial::{HANGS, Trial};

/// Who has a lock elsewhere, and who waits for it here.
pub(super) struct Awaited {
    /// Who has it, for a lease that is over soon.
    pub(super) there: Helper,
    pub(super) turn: Turn,
    /// What the engine says of it.
    pub(super) about: Description,
    /// Who waits for it.
    pub(super) next: JoinHandle<Result<Grip>>,
    /// Who has what is beside it.
    _beside: Option<(Locks, Guard)>,
}

impl Awaited {
    /// Where the lease was over before that, it is taken once more, under another name.
    pub(super) async fn of(t: &Trial, way: Way, locks: &Locks) -> Self {
        let (there, about) = t.brief_helper().await;
        let (begun, mut names) = (Instant::now(), (0..).map(|n| t.name(&format!("a{n}"))));
        loop {
            let name = names.next().expect("there is one");
            let beside = way.prepare(t, &name).await;
            let turn = there.lock(way.mode(), &name, HANGS).await.expect("it is free");
            let mut next = tokio::spawn(way.lock(t, locks, &name));
            let early = tokio::select! {
                got = &mut next => Some(got),
                () = t.until_waiting(locks, way.kind(), &name, 1) => None,
            };
            let Some(got) = early else {
                return Self { there, turn, about, next, _beside: beside };
            };
            is_over(&there, turn, begun).await;
            drop(got.expect("no panic").expect("it is granted"));
        }
    }
}

/// The lease of a turn ran out on a machine that is slower, and the test tries once more.
pub(super) async fn is_over(there: &Helper, turn: Turn, begun: Instant) {
    let state = there.check(turn).await.expect("it runs");
    assert!(state.starts_with("lost"), "BROKEN LOCK: two holders, and the first is {state}");
    assert!(begun.elapsed() < HANGS, "it lasts until somebody waits");
    eprintln!("{state}: its lease ran out, once more");
}
