//! One task that nobody is in the way of: on one name, and on many.

use std::time::Duration;

use super::measure::{Row, pairs};
use super::{Subject, text};

pub(crate) const BATCH: u32 = 256;

/// Acquire and release, beside a lock of the runtime's own.
pub(crate) fn uncontended(subject: &Subject, time: Duration) -> Result<Vec<Row>, String> {
    let mutex = subject.locks.mutex(subject.name("uncontended"));
    let ours = |batch| subject.runtime.block_on(cycles(&mutex, batch));
    let tokio_mutex = tokio::sync::Mutex::new(());
    let floor = |batch| {
        subject.runtime.block_on(async {
            for _ in 0..batch {
                drop(tokio_mutex.lock().await);
            }
        });
        Ok(())
    };
    Ok(vec![
        subject
            .row("uncontended", 1)
            .measured(&pairs(time, BATCH, ours, floor)?)
            .beside("tokio Mutex", "-"),
    ])
}

pub(crate) async fn cycles(mutex: &lockkeeper::Mutex, batch: u32) -> Result<(), String> {
    for _ in 0..batch {
        drop(mutex.lock().await.map_err(text)?);
    }
    Ok(())
}

/// How many of them there are.
pub(crate) const TASKS: u32 = 64;

/// Many tasks, each with a name of its own.
pub(crate) fn many_names(subject: &Subject) -> Result<Vec<Row>, String> {
    let names = many(subject);
    let ours = |batch: u32| subject.runtime.block_on(in_parallel(&names, batch));
    let mutexes: Vec<_> =
        (0..TASKS).map(|_| std::sync::Arc::new(tokio::sync::Mutex::new(()))).collect();
    let floor = |batch: u32| {
        subject.runtime.block_on(async {
            let mut tasks = Vec::new();
            for mutex in &mutexes {
                let mutex = mutex.clone();
                tasks.push(tokio::task::spawn(async move {
                    for _ in 0..batch / TASKS {
                        drop(mutex.lock().await);
                    }
                }));
            }
            for task in tasks {
                task.await.map_err(text)?;
            }
            Ok(())
        })
    };
    let row =
        subject.row("many-names", TASKS).measured(&pairs(subject.time, TASKS * 64, ours, floor)?);
    Ok(vec![row.beside("tokio Mutexes", "-")])
}

/// A name a task.
pub(crate) fn many(subject: &Subject) -> Vec<lockkeeper::Mutex> {
    (0..TASKS).map(|n| subject.locks.mutex(subject.name(&format!("many/{n}")))).collect()
}

/// A task a name; together so many cycles.
pub(crate) async fn in_parallel(names: &[lockkeeper::Mutex], batch: u32) -> Result<(), String> {
    let each = batch / u32::try_from(names.len()).unwrap_or(1).max(1);
    let tasks: Vec<_> = names
        .iter()
        .cloned()
        .map(|mutex| tokio::task::spawn(async move { cycles(&mutex, each).await }))
        .collect();
    for task in tasks {
        task.await.map_err(text)??;
    }
    Ok(())
}
