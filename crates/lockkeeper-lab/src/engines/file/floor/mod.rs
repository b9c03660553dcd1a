//! The floors of kernel locks: the bare calls that the rules require.

mod run;

use crate::bench::bare::Bare;
use crate::bench::handoff::to_thread_and_task;
use crate::bench::measure::{Row, pairs};
use crate::bench::uncontended::{BATCH, TASKS, cycles, in_parallel, many};
use crate::bench::{Subject, general, text};

/// Measures a row.
pub(crate) fn measure(subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
    match name {
        "uncontended" => uncontended(subject),
        "many-names" => many_names(subject),
        "process-handoff" => to_thread_and_task(subject, ["≤ 1.5", "≤ 2"]),
        "run" => run::run(subject),
        _ => general(subject, name),
    }
}

/// Acquire and release, beside what cannot be left out.
fn uncontended(subject: &Subject) -> Result<Vec<Row>, String> {
    let mutex = subject.locks.mutex(subject.name("uncontended"));
    let ours = |batch| subject.runtime.block_on(cycles(&mutex, batch));
    let bare = Bare::open(&subject.file("bare")).map_err(text)?;
    let floor = |batch| (0..batch).try_for_each(|_| bare.cycle()).map_err(text);
    let row = subject.row("uncontended", 1).measured(&pairs(subject.time / 2, BATCH, ours, floor)?);
    let flock = |batch| (0..batch).try_for_each(|_| bare.flock_cycle()).map_err(text);
    let beside =
        subject.row("uncontended", 1).measured(&pairs(subject.time / 2, BATCH, ours, flock)?);
    Ok(vec![
        row.beside("lock, fstat, read, write, unlock", "≤ 1.4"),
        beside.beside("flock, unlock", "-"),
    ])
}

/// Many tasks, each with a name of its own.
fn many_names(subject: &Subject) -> Result<Vec<Row>, String> {
    let names = many(subject);
    let ours = |batch: u32| subject.runtime.block_on(in_parallel(&names, batch));
    let files: Result<Vec<_>, _> =
        (0..TASKS).map(|n| Bare::open(&subject.file(&format!("bare-{n}")))).collect();
    let files = files.map_err(text)?;
    let floor = |batch: u32| {
        files
            .iter()
            .try_for_each(|file| (0..batch / TASKS).try_for_each(|_| file.cycle()))
            .map_err(text)
    };
    let row =
        subject.row("many-names", TASKS).measured(&pairs(subject.time, TASKS * 64, ours, floor)?);
    Ok(vec![row.beside("the bare calls on as many files", "≤ 1.4")])
}
