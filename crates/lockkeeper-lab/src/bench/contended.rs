//! Many tasks of one process on one name: the hold passes between them.

use std::sync::Arc;

use super::measure::{Pairs, Row, pairs};
use super::{Subject, text};

/// One more turn inside a hold, beside a lock of the runtime's own.
pub(crate) fn turn(subject: &Subject) -> Result<Vec<Row>, String> {
    const TASKS: u32 = 8;
    let mutex = subject.locks.mutex(subject.name("turn"));
    let tokio_mutex = Arc::new(tokio::sync::Mutex::new(()));
    let ours = |batch| subject.runtime.block_on(hammer(&mutex, TASKS, batch));
    let floor = |batch: u32| {
        subject.runtime.block_on(async {
            let mut tasks = Vec::new();
            for _ in 0..TASKS {
                let mutex = tokio_mutex.clone();
                tasks.push(tokio::task::spawn(async move {
                    for _ in 0..batch / TASKS {
                        let guard = mutex.lock().await;
                        tokio::task::yield_now().await;
                        drop(guard);
                    }
                }));
            }
            for task in tasks {
                task.await.map_err(text)?;
            }
            Ok(())
        })
    };
    let row = subject.row("turn", TASKS).measured(&pairs(subject.time, 4096, ours, floor)?);
    Ok(vec![row.beside("tokio Mutex", "≤ 2")])
}

/// One hot lock: with hand-off, and without.
pub(crate) fn one_name(subject: &Subject) -> Result<Vec<Row>, String> {
    const TASKS: u32 = 64;
    let (with, without) =
        (subject.locks.mutex(subject.name("hot")), subject.strict.mutex(subject.name("cold")));
    let passing = |batch| subject.runtime.block_on(hammer(&with, TASKS, batch));
    let strict = |batch| subject.runtime.block_on(hammer(&without, TASKS, batch));
    let both = pairs(subject.time, TASKS * 16, passing, strict)?;
    let with = subject.row("one-name", TASKS).rates(&both);
    let with = with.beside("hand-off 0", subject.hand_off_target());
    let turned = Pairs(both.0.iter().map(|(with, without)| (*without, *with)).collect());
    let rates = subject.row("one-name-no-handoff", TASKS).measured(&turned);
    Ok(vec![with, Row { ratio: Some(1.0), spread: None, ..rates.beside("itself", "-") }])
}

async fn hammer(mutex: &lockkeeper::Mutex, tasks: u32, batch: u32) -> Result<(), String> {
    let mut running = Vec::new();
    for _ in 0..tasks {
        let mutex = mutex.clone();
        running.push(tokio::task::spawn(async move {
            for _ in 0..batch / tasks {
                let guard = mutex.lock().await.map_err(text)?;
                // The others come in between, so that every turn has somebody who waits.
                tokio::task::yield_now().await;
                drop(guard);
            }
            Ok::<(), String>(())
        }));
    }
    for task in running {
        task.await.map_err(text)??;
    }
    Ok(())
}
