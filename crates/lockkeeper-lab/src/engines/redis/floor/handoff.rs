//! From one process to another, beside a raw release and a raw push; and how two processes share
//! one hot name.

use std::io::BufRead as _;
use std::time::{Duration, Instant};

use lockkeeper::{Error, ErrorKind, Kind, Locks};
use lockkeeper_testkit::redis::resp::command;
use serde::{Deserialize, Serialize};

use super::learn::Words;
use super::raw::Raw;
use crate::bench::handoff::now;
use crate::bench::measure::{Pairs, Row, at, sorted};
use crate::bench::{Subject, text};
use crate::helper::{Crew, Program, hear, say};

/// The kind of helper that is the other process.
pub(crate) const HELPER: &str = "bench-redis";
const PATIENCE: Duration = Duration::from_secs(30);
/// The claims of the raw hand-off: ours, and the other process's.
const OURS: u128 = 1;
const THEIRS: u128 = 2;
const TASKS: u32 = 32;

/// What is locked.
#[derive(Clone, Serialize, Deserialize)]
struct Names {
    ours: String,
    bare: String,
    hot: String,
}

impl Names {
    fn of(subject: &Subject) -> Self {
        Self {
            ours: subject.name("handoff"),
            bare: subject.name("bare"),
            hot: subject.name("shared"),
        }
    }
}

/// What the other process is told first.
#[derive(Serialize, Deserialize)]
struct Told {
    url: String,
    names: Names,
    words: Words,
    channel: String,
}

/// Release here, turn there.
pub(super) fn process_handoff(subject: &Subject) -> Result<Vec<Row>, String> {
    let words = Words::learn(subject)?;
    let mut peer = Peer::start(subject, &words)?;
    let mut raw = Raw::connect(&words.address, &words.hello)?;
    let locks = lockkeeper::blocking::Locks::open(&subject.url).map_err(text)?;
    let names = Names::of(subject);
    let mutex = locks.mutex(&names.ours);
    let (acquire, release) =
        (words.join(&names.bare, OURS, None), words.release(&names.bare, OURS, ""));
    let began = Instant::now();
    let mut all = Vec::new();
    while began.elapsed() < subject.time || all.len() < 8 {
        let guard = mutex.lock().run().map_err(text)?;
        peer.say("ours")?;
        until_it_waits(&locks, &names.ours)?;
        let released = now();
        drop(guard);
        let ours = peer.number()?.saturating_sub(released);
        if raw.ask(&acquire)?.first().map(String::as_str) != Some("G") {
            return Err("the raw connection was not granted the floor's lock".to_owned());
        }
        peer.say("bare")?;
        peer.number()?;
        let released = now();
        raw.send(&release)?;
        let floor = peer.number()?.saturating_sub(released);
        raw.answer()?;
        all.push((ours as f64 / 1e3, floor as f64 / 1e3));
    }
    all.remove(0);
    let row = subject.row("process-handoff", 2).measured(&Pairs(all));
    Ok(vec![row.beside("two processes, a raw release and a raw push", "≤ 1.5")])
}

fn until_it_waits(locks: &lockkeeper::blocking::Locks, name: &str) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(5);
    while locks.status(Kind::Lock, name).map_err(text)?.waiters.is_empty() {
        if Instant::now() > until {
            return Err("the other process does not stand in line".to_owned());
        }
    }
    // The answer that it stands in line has to arrive there, too.
    std::thread::sleep(Duration::from_micros(300));
    Ok(())
}

/// Two processes of 32 tasks on one hot name: the smaller share of the turns, and how long a task
/// waits.
pub(super) fn two_processes(subject: &Subject) -> Result<Row, String> {
    let words = Words::learn(subject)?;
    let mut peer = Peer::start(subject, &words)?;
    let time = subject.time.max(Duration::from_secs(1));
    peer.say(&format!("share {}", time.as_millis()))?;
    let waits = subject.runtime.block_on(share(&subject.locks, &subject.name("shared"), time))?;
    let (here, there) = (waits.len() as f64, peer.number()? as f64);
    // Ours stand for both: the machine is the same, and so is the line.
    let waits = sorted(waits.into_iter());
    let mut row = subject
        .row("one-name-two-processes", TASKS * 2)
        .beside("the smaller share of the turns; P50 and P99 are waits", "≥ 0.4");
    (row.p50_us, row.p99_us) = (at(&waits, 0.5), at(&waits, 0.99));
    row.per_second = (here + there) / time.as_secs_f64();
    row.ratio = Some(here.min(there) / (here + there).max(1.0));
    Ok(row)
}

/// Takes the hot lock with many tasks for a while; gives how long each turn was waited for, in
/// microseconds.
async fn share(locks: &Locks, name: &str, time: Duration) -> Result<Vec<f64>, String> {
    let until = Instant::now() + time;
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let mutex = locks.mutex(name);
        tasks.push(tokio::task::spawn(async move {
            let mut waits = Vec::new();
            while Instant::now() < until {
                let asked = Instant::now();
                let guard = mutex.lock().await.map_err(text)?;
                waits.push(asked.elapsed().as_secs_f64() * 1e6);
                tokio::task::yield_now().await;
                drop(guard);
            }
            Ok::<_, String>(waits)
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.append(&mut task.await.map_err(text)??);
    }
    Ok(all)
}

/// The life of the other process.
pub(crate) fn serve() -> Result<(), Error> {
    let failed = |e: String| Error::new(ErrorKind::Refused, e);
    let Told { url, names, words, channel } = hear()?;
    let locks = lockkeeper::blocking::Locks::open(&url)?;
    let mutex = locks.mutex(&names.ours);
    let mut raw = Raw::connect(&words.address, &words.hello).map_err(failed)?;
    // Its confirmation comes as a push.
    raw.send(&command(&["SUBSCRIBE", &channel])).and_then(|()| raw.read()).map_err(failed)?;
    let (acquire, release) =
        (words.join(&names.bare, THEIRS, Some(&channel)), words.release(&names.bare, THEIRS, ""));
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| failed(text(e)))?;
        match line.split_once(' ') {
            Some(("share", time_ms)) => {
                let time = Duration::from_millis(time_ms.parse().map_err(|e| failed(text(e)))?);
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|e| failed(text(e)))?;
                let turns = runtime.block_on(async {
                    let locks = Locks::open(&url).await.map_err(text)?;
                    share(&locks, &names.hot, time).await
                });
                say(&turns.map_err(failed)?.len().to_string());
            }
            _ if line == "ours" => {
                let guard = mutex.lock().run()?;
                let at = now();
                drop(guard);
                say(&at.to_string());
            }
            _ => {
                raw.ask(&acquire).map_err(failed)?;
                say("0");
                while !raw.read().map_err(failed)?.push {}
                let at = now();
                raw.ask(&release).map_err(failed)?;
                say(&at.to_string());
            }
        }
    }
    Ok(())
}

struct Peer(Crew);

impl Peer {
    fn start(subject: &Subject, words: &Words) -> Result<Self, String> {
        let mut crew = Crew::new();
        let channel = format!("lockkeeper:bench-{}", std::process::id());
        let told = Told {
            url: subject.url.clone(),
            names: Names::of(subject),
            words: words.clone(),
            channel,
        };
        crew.start(&Program::this().map_err(text)?, HELPER, &told).map_err(text)?;
        Ok(Self(crew))
    }

    fn say(&mut self, word: &str) -> Result<(), String> {
        self.0.tell_all(word).map_err(text)
    }

    fn number(&mut self) -> Result<u64, String> {
        let said = self.0.hear(PATIENCE).map_err(text)?.line;
        said.parse().map_err(|_| format!("the other process said {said:?} where a number was due"))
    }
}
