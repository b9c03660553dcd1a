//! From one process to another: the time from the release here to the turn there, and back.
//!
//! Both processes hold in turn: whoever holds waits until the other stands in line, writes down the time, releases; the
//! other reads the clock as soon as it has its turn. The floor does the same with one blocking lock call.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::Kind;

use super::bare::Bare;
use super::measure::{Pairs, Row};
use super::{PEER_WORD, Subject, text, this_program};

/// How long the other process gets to stand in the kernel's line, where nothing shows it.
const SETTLE: Duration = Duration::from_micros(300);

/// Release here, turn there.
pub(super) fn process_handoff(subject: &Subject) -> Result<Vec<Row>, String> {
    let bare_path = subject.file("bare-handoff");
    let bare = Bare::open(&bare_path).map_err(text)?;
    let mut peer = Peer::start(&subject.url, &bare_path)?;
    let locks = lockkeeper::blocking::Locks::open(&subject.url).map_err(text)?;
    let mutex = locks.mutex("bench/handoff");
    let began = Instant::now();
    let mut all = Vec::new();
    while began.elapsed() < subject.time || all.len() < 8 {
        let guard = mutex.lock().run().map_err(text)?;
        peer.say("ours")?;
        let until = Instant::now() + Duration::from_secs(5);
        while locks.status(Kind::Lock, "bench/handoff").map_err(text)?.waiters.is_empty() && subject.engine == "file" {
            if Instant::now() > until {
                return Err("the other process does not stand in line".to_owned());
            }
            std::thread::sleep(Duration::from_micros(50));
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
    let row = subject.row("process-handoff", 2).measured(&Pairs(all));
    Ok(vec![row.beside("two processes, one blocking lock call", "≤ 2")])
}

/// The hidden subcommand: takes a turn whenever it is told to, and says when it had it.
pub fn peer_main(words: &[OsString]) -> u8 {
    match serve(words) {
        Ok(()) => 0,
        Err(text) => {
            eprintln!("lockkeeper: bench: the other process: {text}");
            125
        }
    }
}

fn serve(words: &[OsString]) -> Result<(), String> {
    let word = |at: usize| words.get(at).ok_or_else(|| "this subcommand is for `lockkeeper bench` itself".to_owned());
    let locks = lockkeeper::blocking::Locks::open(&word(0)?.to_string_lossy()).map_err(text)?;
    let mutex = locks.mutex("bench/handoff");
    let bare = Bare::open(Path::new(word(1)?)).map_err(text)?;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let at = if line.map_err(text)? == "ours" {
            let guard = mutex.lock().run().map_err(text)?;
            let at = now();
            drop(guard);
            at
        } else {
            bare.lock().map_err(text)?;
            let at = now();
            bare.unlock().map_err(text)?;
            at
        };
        writeln!(out, "{at}").and_then(|()| out.flush()).map_err(text)?;
    }
    Ok(())
}

/// A clock that all processes of a machine share.
fn now() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

struct Peer {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start(url: &str, bare: &Path) -> Result<Self, String> {
        let mut command = Command::new(this_program()?);
        let spawned = command.arg(PEER_WORD).arg(url).arg(bare).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(text)?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.ok_or("the other process has no output")?);
        Ok(Self { child, orders, answers })
    }

    fn say(&mut self, word: &str) -> Result<(), String> {
        let orders = self.orders.as_mut().ok_or("the other process is gone")?;
        writeln!(orders, "{word}").map_err(text)
    }

    fn turn_at(&mut self) -> Result<u64, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(text)?;
        line.trim_end().parse().map_err(|_| "the other process ended".to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.orders.take());
        // It ends when its orders end; whatever keeps it is ended here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
