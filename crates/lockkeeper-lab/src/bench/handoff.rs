//! From one process to another: the time from the release here to the turn there, and back.
//!
//! Both processes hold in turn: whoever holds waits until the other stands in line, writes down the
//! time, releases; the other reads the clock as soon as it has its turn. The floor does the same
//! with one blocking lock call.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockkeeper::{Ability, Error, ErrorKind, Kind};
use serde::{Deserialize, Serialize};

use super::bare::Bare;
use super::measure::{Pairs, Row};
use super::{HELPER, Subject, text};
use crate::helper::{Crew, Program, hear, say};

/// How long the other process may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the other process gets to stand in the kernel's line, where nothing shows it.
const SETTLE: Duration = Duration::from_micros(300);

/// For how long it is looked whether an engine without a line of its own shows who waits.
const SHOWN_WITHIN: Duration = Duration::from_millis(5);

/// Who takes the turn in the other process.
#[derive(Clone, Copy)]
enum To {
    /// A thread that waits for nothing else.
    Thread,
    /// A task.
    Task,
}

/// Release here, turn there.
pub(crate) fn process_handoff(subject: &Subject, target: &'static str) -> Result<Vec<Row>, String> {
    let row = hand_offs(subject, To::Thread, subject.time)?;
    Ok(vec![row.beside("two processes, one blocking lock call", target)])
}

/// The same to a thread, and to a task, where the two wait in different ways.
pub(crate) fn to_thread_and_task(
    subject: &Subject,
    [thread, task]: [&'static str; 2],
) -> Result<Vec<Row>, String> {
    let time = subject.time / 2;
    let to_thread = hand_offs(subject, To::Thread, time)?;
    let to_task = hand_offs(subject, To::Task, time)?;
    Ok(vec![
        to_thread.beside("a thread of two processes, one blocking lock call", thread),
        to_task.beside("a task beside a thread, one blocking lock call", task),
    ])
}

fn hand_offs(subject: &Subject, to: To, time: Duration) -> Result<Row, String> {
    let bare_path = subject.file("bare-handoff");
    let bare = Bare::open(&bare_path).map_err(text)?;
    let mut peer = Peer::start(subject, &bare_path)?;
    let locks = lockkeeper::blocking::Locks::open(&subject.url).map_err(text)?;
    let name = name(subject);
    let mutex = locks.mutex(&name);
    let can = locks.describe().can;
    let began = Instant::now();
    let mut all = Vec::new();
    while began.elapsed() < time || all.len() < 8 {
        let guard = mutex.lock().run().map_err(text)?;
        peer.say(match to {
            To::Thread => "ours",
            To::Task => "task",
        })?;
        if can.is_fair(Kind::Lock) {
            until_waiting(&locks, &name)?;
        } else if can.has(Ability::List) {
            // Without a line of its own the engine may show nobody who waits.
            is_shown(&locks, &name, SHOWN_WITHIN)?;
        }
        std::thread::sleep(SETTLE);
        let released = now();
        drop(guard);
        let ours = peer.turn_at()?.saturating_sub(released);
        bare.lock().map_err(text)?;
        peer.say("bare")?;
        std::thread::sleep(SETTLE);
        let released = now();
        bare.unlock().map_err(text)?;
        let floor = peer.turn_at()?.saturating_sub(released);
        all.push((ours as f64 / 1e3, floor as f64 / 1e3));
    }
    all.remove(0);
    Ok(subject.row("process-handoff", 2).measured(&Pairs(all)))
}

/// The lock that goes to and fro.
pub(crate) fn name(subject: &Subject) -> String {
    subject.name("handoff")
}

/// Waits until the other process stands in line.
pub(crate) fn until_waiting(locks: &lockkeeper::blocking::Locks, name: &str) -> Result<(), String> {
    match is_shown(locks, name, Duration::from_secs(5))? {
        true => Ok(()),
        false => Err("the other process does not stand in line".to_owned()),
    }
}

/// Whether somebody is shown who waits, before so much time has passed.
fn is_shown(
    locks: &lockkeeper::blocking::Locks,
    name: &str,
    within: Duration,
) -> Result<bool, String> {
    let until = Instant::now() + within;
    while locks.status(Kind::Lock, name).map_err(text)?.waiters.is_empty() {
        if Instant::now() > until {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(true)
}

/// What the other process is told first.
#[derive(Serialize, Deserialize)]
struct Told {
    url: String,
    name: String,
    bare: PathBuf,
}

/// The life of the other process: it takes a turn whenever it is told to, and says when it had it.
pub(crate) fn serve() -> Result<(), Error> {
    let Told { url, name, bare } = hear()?;
    let failed = |e| Error::new(ErrorKind::Refused, text(e));
    let locks = lockkeeper::blocking::Locks::open(&url)?;
    let (mutex, of_task) = (locks.mutex(&name), locks.as_async().mutex(&name));
    let bare = Bare::open(&bare).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    for line in std::io::stdin().lock().lines() {
        let at = match line.map_err(failed)?.as_str() {
            "ours" => {
                let guard = mutex.lock().run()?;
                let at = now();
                drop(guard);
                at
            }
            "task" => runtime.block_on(async {
                let guard = of_task.lock().await?;
                let at = now();
                drop(guard);
                Ok::<_, Error>(at)
            })?,
            _ => {
                bare.lock().map_err(|e| Error::new(ErrorKind::Refused, text(e)))?;
                let at = now();
                bare.unlock().map_err(|e| Error::new(ErrorKind::Refused, text(e)))?;
                at
            }
        };
        say(&at.to_string());
    }
    Ok(())
}

/// A clock that all processes of a machine share.
pub(crate) fn now() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(Duration::ZERO, Duration::from);
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) struct Peer(Crew);

impl Peer {
    pub(crate) fn start(subject: &Subject, bare: &Path) -> Result<Self, String> {
        let mut crew = Crew::new();
        let told = Told { url: subject.url.clone(), name: name(subject), bare: bare.to_owned() };
        crew.start(&Program::this().map_err(text)?, HELPER, &told).map_err(text)?;
        Ok(Self(crew))
    }

    pub(crate) fn say(&mut self, word: &str) -> Result<(), String> {
        self.0.tell_all(word).map_err(text)
    }

    pub(crate) fn turn_at(&mut self) -> Result<u64, String> {
        let said = self.0.hear(PATIENCE).map_err(text)?.line;
        said.parse().map_err(|_| format!("the other process said {said:?} where a time was due"))
    }
}
