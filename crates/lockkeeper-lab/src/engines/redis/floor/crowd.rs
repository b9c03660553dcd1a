//! Many places in one line: what a hand-off costs the server then, and what waiting costs it.

use std::time::{Duration, Instant};

use super::learn::Words;
use super::raw::Raw;
use crate::bench::measure::Row;
use crate::bench::{Subject, text, waiting};

const CROWD: u32 = 10_000;
const HAND_OFFS: u32 = 50;
/// The net under a lost wake-up (R10): every 5 s, or two claim leases, which are 4 s.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// Server commands a hand-off with one place in line and with ten thousand; messages of a process
/// that waits; and what waiting costs us.
pub(super) fn places(subject: &Subject) -> Result<Vec<Row>, String> {
    let words = Words::learn(subject)?;
    let mut raw = Raw::connect(&words.address, &words.hello)?;
    let name = subject.name("crowd");
    let alone = calls_a_hand_off(&mut raw, &words, &name, 1)?;
    let crowded = calls_a_hand_off(&mut raw, &words, &name, CROWD)?;
    let mut hand_off = subject
        .row("places", CROWD)
        .beside("server commands a hand-off, to those with one place in line", "1");
    hand_off.ratio = Some(crowded / alone.max(1.0));
    let mut commands = subject.row("places", CROWD).beside("server commands a hand-off", "-");
    commands.ratio = Some(crowded);
    let mut rows = vec![hand_off, commands, background(subject, &mut raw)?];
    rows.extend(waiting::places(subject)?);
    Ok(rows)
}

/// How many commands the server runs for one hand-off, with so many places in line all the time.
fn calls_a_hand_off(raw: &mut Raw, words: &Words, name: &str, crowd: u32) -> Result<f64, String> {
    let last = crowd + HAND_OFFS;
    let place = |n: u32| words.join(name, u128::from(n) + 1, None);
    let release = |n: u32| words.release(name, u128::from(n) + 1, "");
    // The first one holds; the others stand in line behind it. Sent a hundred at a time, so that
    // nobody's buffer fills.
    let numbers: Vec<u32> = (0..=last).collect();
    for some in numbers.chunks(100) {
        raw.send(&some.iter().flat_map(|n| place(*n)).collect::<Vec<u8>>())?;
        for _ in some {
            raw.answer()?;
        }
    }
    raw.reset_calls()?;
    for n in 0..HAND_OFFS {
        raw.ask(&release(n))?;
    }
    let calls = raw.calls()? as f64 / f64::from(HAND_OFFS);
    // The rest leave from the end, so that nothing is granted to anybody.
    for some in numbers.get(HAND_OFFS as usize..).unwrap_or_default().rchunks(100) {
        raw.send(
            &some
                .iter()
                .rev()
                .flat_map(|n| words.release(name, u128::from(*n) + 1, ""))
                .collect::<Vec<u8>>(),
        )?;
        for _ in some {
            raw.answer()?;
        }
    }
    Ok(calls)
}

/// Messages of one process with a thousand waiting tasks, in the time of one check.
fn background(subject: &Subject, raw: &mut Raw) -> Result<Row, String> {
    const TASKS: u32 = 1_000;
    let holder = lockkeeper::blocking::Locks::open(&subject.url).map_err(text)?;
    let name = subject.name("background");
    // A lease that needs no renewal while we count.
    let held = holder.mutex(&name).lock().ttl(Duration::from_secs(600)).run().map_err(text)?;
    let time = subject.time.max(CHECK_EVERY * 2);
    let (sent, began) = subject.runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let mutex = subject.locks.mutex(&name);
                tokio::task::spawn(async move { mutex.lock().await.map(drop) })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        raw.reset_calls()?;
        let began = Instant::now();
        tokio::time::sleep(time).await;
        let sent = raw.scripts()?;
        let elapsed = began.elapsed();
        drop(held);
        for task in tasks {
            task.await.map_err(text)?.map_err(text)?;
        }
        Ok::<_, String>((sent, elapsed))
    })?;
    let mut row = subject
        .row("places", TASKS)
        .beside("messages of a process in 5 s while its tasks wait", "≤ 1.25");
    row.ratio = Some(sent as f64 * CHECK_EVERY.as_secs_f64() / began.as_secs_f64());
    Ok(row)
}
