//! What waiting costs: a thousand tasks that wait, as a share of one processor.

use std::time::{Duration, Instant};

use super::measure::Row;
use super::{Subject, text};

const TASKS: u32 = 1_000;

/// One holder, a thousand tasks behind it, for as long as there is time.
pub(crate) fn places(subject: &Subject) -> Result<Vec<Row>, String> {
    let (locks, name, time) =
        (subject.locks.clone(), subject.name("places"), subject.time.max(Duration::from_secs(1)));
    subject.runtime.block_on(async move {
        let mutex = locks.mutex(name);
        let held = mutex.lock().await.map_err(text)?;
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let mutex = mutex.clone();
                tokio::task::spawn(async move { mutex.lock().await.map(drop) })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (began, before) = (Instant::now(), processor_time()?);
        tokio::time::sleep(time).await;
        let used = processor_time()?.saturating_sub(before);
        let share = used.as_secs_f64() / began.elapsed().as_secs_f64();
        drop(held);
        for task in tasks {
            task.await.map_err(text)?.map_err(text)?;
        }
        let mut row =
            subject.row("places", TASKS).beside("share of one processor while all wait", "≤ 0.01");
        row.ratio = Some(share);
        Ok(vec![row])
    })
}

/// What this process has used so far.
pub(crate) fn processor_time() -> Result<Duration, String> {
    let usage =
        nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).map_err(text)?;
    let of = |t: nix::sys::time::TimeVal| {
        Duration::new(
            u64::try_from(t.tv_sec()).unwrap_or(0),
            u32::try_from(t.tv_usec() * 1000).unwrap_or(0),
        )
    };
    Ok(of(usage.user_time()) + of(usage.system_time()))
}
