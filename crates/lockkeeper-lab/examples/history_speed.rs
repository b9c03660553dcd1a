//! How fast histories are written and judged.
//!
//! `cargo run --release -p lockkeeper-lab --example history_speed -- [EVENTS] [DIRECTORY]`
//!
//! Writes with one thread and with four into one history, then makes histories of eight clients
//! with EVENTS events (default 4 million) on 64 locks, half of them with leases and tokens, and
//! judges them: reading, merging and checking on one core.

use std::error::Error;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockkeeper::{Kind, Mode};
use lockkeeper_lab::check::{Options, check_files};
use lockkeeper_lab::history::{
    Header, LockId, Merge, Record, Role, State, What, Writer, WriterOptions,
};

const CLIENTS: u64 = 8;
const LOCKS: u64 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let events: u64 = args.next().map_or(Ok(4_000_000), |n| n.parse())?;
    let directory = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = directory.join(format!("lockkeeper-history-speed-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let done = measure(&directory, events);
    std::fs::remove_dir_all(&directory)?;
    done
}

fn measure(directory: &Path, events: u64) -> Result<(), Box<dyn Error>> {
    for threads in [1, 4] {
        let path = directory.join(format!("writer-{threads}"));
        let (wall, cpu) = write(&path, threads, 1_000_000)?;
        println!("write, {threads} thread(s): {wall:.0} ns an event, {cpu:.0} ns of a core");
        std::fs::remove_file(path)?;
    }
    let paths = generate(directory, events)?;
    let cpu = cpu_time();
    let mut merge = Merge::open(&paths, 0)?;
    while merge.next()?.is_some() {}
    println!(
        "read and merge alone: {:.3} s of one core",
        cpu_time().saturating_sub(cpu).as_secs_f64()
    );
    for round in 1..=3 {
        let (began, cpu) = (Instant::now(), cpu_time());
        let report = check_files(&paths, Options::default())?;
        let (wall, cpu) = (began.elapsed(), cpu_time().saturating_sub(cpu));
        if !report.is_clean() {
            return Err(format!(
                "the generated history is not clean: {:?}",
                report.violations.first()
            )
            .into());
        }
        let count = report.counts.events as f64;
        println!(
            "check {round}: {} events, {} holds in {:.3} s ({:.3} s of one core): {:.2} million \
             events a second",
            report.counts.events,
            report.counts.holds,
            wall.as_secs_f64(),
            cpu.as_secs_f64(),
            count / cpu.as_secs_f64() / 1e6
        );
    }
    Ok(())
}

/// Nanoseconds an event: by the wall clock, and of processor time.
fn write(path: &Path, threads: u64, each: u64) -> Result<(f64, f64), Box<dyn Error>> {
    let writer = Writer::create(path, WriterOptions::default())?;
    let (began, cpu) = (Instant::now(), cpu_time());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let writer = writer.clone();
            scope.spawn(move || {
                for claim in 0..each {
                    let record = Record::about(What::Acquired, LockId::NONE, thread << 40 | claim)
                        .mode(Mode::Exclusive)
                        .token(claim);
                    writer.write_for(Kind::Lock, "stock/sku-42", record);
                }
            });
        }
    });
    let events = (threads * each) as f64;
    Ok((
        began.elapsed().as_nanos() as f64 / events,
        cpu_time().saturating_sub(cpu).as_nanos() as f64 / events,
    ))
}

/// What this process used of processors so far.
fn cpu_time() -> Duration {
    let used = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
    used.map_or(Duration::ZERO, |t| Duration::new(t.tv_sec().unsigned_abs(), t.tv_nsec() as u32))
}

/// Clients take turns on every lock; the clock of each lock runs on its own.
fn generate(directory: &Path, events: u64) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut all: Vec<(u64, u64, Record)> = Vec::with_capacity(events as usize);
    let mut clocks: Vec<u64> = (0..LOCKS).map(|lock| 1_000 + lock).collect();
    let mut claim = 0u64;
    while (all.len() as u64) < events {
        for lock in 0..LOCKS {
            claim += 1;
            let (client, now) = ((claim * 7 + lock) % CLIENTS, clocks[lock as usize]);
            let id = claim.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut push = |at: u64, record: Record| {
                all.push((at, client, Record { at, lock: LockId(lock + 1), claim: id, ..record }))
            };
            let lease = lock % 2 == 0;
            push(now.saturating_sub(700), Record::new(What::AcquireCalled).mode(Mode::Exclusive));
            push(now.saturating_sub(400), Record::new(What::InLine).number(1));
            let deadline = if lease { now + 30_000_000_000 } else { 0 };
            push(
                now,
                Record::new(What::Acquired)
                    .mode(Mode::Exclusive)
                    .token(if lease { claim } else { 0 })
                    .deadline(deadline),
            );
            if lease && claim.is_multiple_of(3) {
                push(now + 200, Record::new(What::RenewCalled));
                push(now + 300, Record::new(What::Renewed).deadline(deadline + 1_000));
            }
            push(now + 1_000, Record::new(What::ReleaseCalled));
            push(now + 1_300, Record::new(What::Released));
            clocks[lock as usize] = now + 1_200 + (claim % 5) * 64;
        }
    }
    all.sort_by_key(|event| event.0);
    let mut paths = Vec::new();
    for client in 0..CLIENTS {
        let path = directory.join(format!("client-{client}.lkh"));
        let header = Header {
            file: client + 1,
            pid: client as u32,
            role: Role::Client,
            clocks: [0, 0, 1_700_000_000_000_000_000],
            boot: 1,
            step: 0,
            host: "here".into(),
            program: "history_speed".into(),
            label: format!("client {client}"),
            state: State::Open,
        };
        let mut file = BufWriter::new(std::fs::File::create(&path)?);
        file.write_all(&header.encode())?;
        for ((_, _, record), index) in all.iter().filter(|event| event.1 == client).zip(0..) {
            file.write_all(&record.encode(header.file, index))?;
        }
        file.flush()?;
        paths.push(path);
    }
    Ok(paths)
}
