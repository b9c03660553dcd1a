//! One task that nobody is in the way of, and many tasks with names of their own.

use std::sync::Arc;

use super::bare::{Bare, Layout, make_rows};
use crate::bench::measure::{Row, pairs};
use crate::bench::uncontended::{TASKS, cycles, in_parallel, many};
use crate::bench::{Subject, text};

const BATCH: u32 = 32;

/// Acquire, then drop: the answer to the acquire is waited for, that to the release is not.
pub(super) fn uncontended(subject: &Subject, layout: Layout) -> Result<Vec<Row>, String> {
    let name = subject.name("floor");
    make_rows(subject, std::slice::from_ref(&name))?;
    let bare = subject.runtime.block_on(Bare::connect(&subject.url, layout))?;
    let mutex = subject.locks.mutex(subject.name("uncontended"));
    let ours = |batch| subject.runtime.block_on(cycles(&mutex, batch));
    let floor = |batch| subject.runtime.block_on(bare.cycles(&name, batch));
    let both = pairs(subject.time, BATCH, ours, floor)?;
    let row = subject.row("uncontended", 1).measured(&both);
    Ok(vec![row.beside(layout.floor(), layout.target("≤ 1.3"))])
}

/// Many tasks, each with a name of its own, beside the same over one connection, which is as many
/// as lockkeeper has.
pub(super) fn many_names(subject: &Subject, layout: Layout) -> Result<Vec<Row>, String> {
    let ours_of = many(subject);
    let names: Vec<_> = (0..TASKS).map(|n| subject.name(&format!("floor/{n}"))).collect();
    make_rows(subject, &names)?;
    let bare = Arc::new(subject.runtime.block_on(Bare::connect(&subject.url, layout))?);
    let ours = |batch: u32| subject.runtime.block_on(in_parallel(&ours_of, batch));
    let floor = |batch: u32| {
        subject.runtime.block_on(async {
            let run = |name: &String| {
                let (bare, name) = (bare.clone(), name.clone());
                tokio::spawn(async move { bare.cycles(&name, batch / TASKS).await })
            };
            let tasks: Vec<_> = names.iter().map(run).collect();
            for task in tasks {
                task.await.map_err(text)??;
            }
            Ok(())
        })
    };
    let both = pairs(subject.time, TASKS * 8, ours, floor)?;
    let row = subject.row("many-names", TASKS).measured(&both);
    let floor = "a plain client, 64 in flight on one connection";
    Ok(vec![row.beside(floor, layout.target("≤ 1.43"))])
}
