//! A hundred thousand leases at the default time: whether one is lost, and what keeping them costs.

use std::time::{Duration, Instant};

use crate::bench::measure::Row;
use crate::bench::waiting::processor_time;
use crate::bench::{Subject, text};

const LEASES: u32 = 100_000;
const AT_ONCE: usize = 256;

/// Holds them for as long as there is time, and says for how long that was.
pub(super) fn leases(subject: &Subject) -> Result<Vec<Row>, String> {
    let time = subject.time;
    subject.runtime.block_on(async {
        let locks = lockkeeper::Locks::open(&subject.url).await.map_err(text)?;
        let before = resident()?;
        let mut guards = Vec::with_capacity(LEASES as usize);
        let numbers: Vec<u32> = (0..LEASES).collect();
        for some in numbers.chunks(AT_ONCE) {
            let tasks: Vec<_> = some
                .iter()
                .map(|n| {
                    let mutex = locks.mutex(subject.name(&format!("lease/{n}")));
                    tokio::task::spawn(
                        async move { mutex.lock().ttl(Duration::from_secs(30)).await },
                    )
                })
                .collect();
            for task in tasks {
                guards.push(task.await.map_err(text)?.map_err(text)?);
            }
        }
        let bytes = resident()?.saturating_sub(before) as f64 / f64::from(LEASES);
        let (began, used) = (Instant::now(), processor_time()?);
        tokio::time::sleep(time).await;
        let (held, used) = (began.elapsed(), processor_time()?.saturating_sub(used));
        let lost = guards.iter().filter(|guard| guard.is_lost()).count();
        eprintln!(
            "leases: {LEASES} of 30 s were held for {:.0} s; the target is 600 s",
            held.as_secs_f64()
        );
        drop(guards);
        drop(locks.close().await);
        let row = |what, target, value| {
            let mut row = subject.row("leases", LEASES).beside(what, target);
            row.ratio = Some(value);
            row
        };
        Ok(vec![
            row("leases lost", "0", lost as f64),
            row("share of one processor", "≤ 0.02", used.as_secs_f64() / held.as_secs_f64()),
            row("bytes of memory a lease, guard included", "≤ 400", bytes),
        ])
    })
}

/// The memory of this process that is in use, in bytes.
fn resident() -> Result<u64, String> {
    let text_of = std::fs::read_to_string("/proc/self/status").map_err(text)?;
    let line = text_of
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("the kernel does not tell the memory in use")?;
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().map(|kib| kib * 1024).map_err(text)
}
