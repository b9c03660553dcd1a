//! One task that nobody is in the way of, and many tasks with names of their own.

use lockkeeper_testkit::redis::resp::command;

use super::learn::Words;
use super::raw::Raw;
use crate::bench::measure::{Row, pairs};
use crate::bench::uncontended::{cycles, in_parallel};
use crate::bench::{Subject, text};

const BATCH: u32 = 256;
const IN_FLIGHT: u32 = 64;

/// Acquire, then drop: the answer to the acquire is waited for, that to the release is not.
pub(super) fn uncontended(subject: &Subject) -> Result<Vec<Row>, String> {
    let words = Words::learn(subject)?;
    let mut raw = Raw::connect(&words.address, &words.hello)?;
    let mutex = subject.locks.mutex(subject.name("uncontended"));
    let (bare, key) = (subject.name("floor"), format!("lockkeeper:{}", subject.name("set")));
    let take = words.take(&bare, 1);
    let release = |number: &str| words.release(&bare, 1, number);
    let (set, del) =
        (command(&["SET", &key, "value", "NX", "PX", "30000"]), command(&["DEL", &key]));
    let mut cycle = |first: &[u8], second: &dyn Fn(&str) -> Vec<u8>, batch: u32| {
        for round in 0..batch {
            raw.send(first)?;
            if round > 0 {
                raw.answer()?;
            }
            let granted = raw.answer()?;
            raw.send(&second(granted.first().map_or("", String::as_str)))?;
        }
        raw.answer().map(drop)
    };
    let ours = |batch| subject.runtime.block_on(cycles(&mutex, batch));
    let floor = pairs(subject.time / 2, BATCH, ours, |batch| cycle(&take, &release, batch))?;
    let beside =
        pairs(subject.time / 2, BATCH, ours, |batch| cycle(&set, &|_| del.clone(), batch))?;
    let row = |measured| subject.row("uncontended", 1).measured(measured);
    Ok(vec![
        row(&floor).beside("the same scripts on a raw connection", "≤ 1.2"),
        row(&beside).beside("SET NX PX and DEL on a raw connection", "≤ 2"),
    ])
}

/// Many tasks, each with a name of its own.
pub(super) fn many_names(subject: &Subject) -> Result<Vec<Row>, String> {
    let words = Words::learn(subject)?;
    let mut raw = Raw::connect(&words.address, &words.hello)?;
    let names: Vec<_> =
        (0..IN_FLIGHT).map(|n| subject.locks.mutex(subject.name(&format!("many/{n}")))).collect();
    let ours = |batch: u32| subject.runtime.block_on(in_parallel(&names, batch)).map_err(text);
    let bare: Vec<String> = (0..IN_FLIGHT).map(|n| subject.name(&format!("floor/{n}"))).collect();
    let each = || (0..).zip(&bare);
    let takes: Vec<u8> = each().flat_map(|(n, name)| words.take(name, n)).collect();
    let floor = |batch: u32| {
        for _ in 0..batch / IN_FLIGHT {
            raw.send(&takes)?;
            let mut releases = Vec::new();
            for (n, name) in each() {
                let granted = raw.answer()?;
                let number = granted.first().map_or("", String::as_str);
                releases.extend(words.release(name, n, number));
            }
            raw.send(&releases)?;
            for _ in 0..IN_FLIGHT {
                raw.answer()?;
            }
        }
        Ok(())
    };
    let row = subject.row("many-names", IN_FLIGHT).measured(&pairs(
        subject.time,
        IN_FLIGHT * 16,
        ours,
        floor,
    )?);
    Ok(vec![row.beside("a raw socket with the same bytes, 64 in flight", "≤ 1.43")])
}
