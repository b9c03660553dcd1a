//! One task that nobody is in the way of: on one name, and on many.

use super::bare::Bare;
use super::measure::{Row, pairs};
use super::{Subject, text};

const BATCH: u32 = 256;

/// Acquire and release, beside what cannot be left out.
pub(crate) fn uncontended(subject: &Subject) -> Result<Vec<Row>, String> {
    let mutex = subject.locks.mutex(subject.name("uncontended"));
    let ours = |batch| subject.runtime.block_on(cycles(&mutex, batch));
    let bare = Bare::open(&subject.file("bare")).map_err(text)?;
    let tokio_mutex = tokio::sync::Mutex::new(());
    if subject.engine == "file" {
        let floor = |batch| (0..batch).try_for_each(|_| bare.cycle()).map_err(text);
        let row =
            subject.row("uncontended", 1).measured(&pairs(subject.time / 2, BATCH, ours, floor)?);
        let flock = |batch| (0..batch).try_for_each(|_| bare.flock_cycle()).map_err(text);
        let beside =
            subject.row("uncontended", 1).measured(&pairs(subject.time / 2, BATCH, ours, flock)?);
        return Ok(vec![
            row.beside("lock, fstat, read, write, unlock", "≤ 1.4"),
            beside.beside("flock, unlock", "-"),
        ]);
    }
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
            .measured(&pairs(subject.time, BATCH, ours, floor)?)
            .beside("tokio Mutex", "-"),
    ])
}

pub(crate) async fn cycles(mutex: &lockkeeper::Mutex, batch: u32) -> Result<(), String> {
    for _ in 0..batch {
        drop(mutex.lock().await.map_err(text)?);
    }
    Ok(())
}

/// Many tasks, each with a name of its own.
pub(crate) fn many_names(subject: &Subject) -> Result<Vec<Row>, String> {
    const TASKS: u32 = 64;
    let names: Vec<_> =
        (0..TASKS).map(|n| subject.locks.mutex(subject.name(&format!("many/{n}")))).collect();
    let ours = |batch: u32| subject.runtime.block_on(in_parallel(&names, batch));
    if subject.engine != "file" {
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
        let row = subject.row("many-names", TASKS).measured(&pairs(
            subject.time,
            TASKS * 64,
            ours,
            floor,
        )?);
        return Ok(vec![row.beside("tokio Mutexes", "-")]);
    }
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
