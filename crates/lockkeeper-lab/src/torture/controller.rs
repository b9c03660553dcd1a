//! Runs a torture: starts everybody, carries the schedule out, stops everybody, and has it judged.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::arena::{self, Arena, Scratch};
use super::client::Orders;
use super::nemesis::{self, KILL, Planned, STARVE, STOP};
use super::verdict::Verdict;
use super::{CLIENT_WORD, Options, picture, resource};
use crate::check::{self, Class};
use crate::history::{Record, Role, What, Writer, WriterOptions};

/// How long clients may take to finish once they are told to.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs it. Answers the exit code: 0 clean, 1 violations beyond the printed class, 2 too weak to say, 64 wrong use,
/// 125 our own failure.
pub fn run(options: &Options, out: &mut dyn Write) -> u8 {
    let answer = prepare(options).and_then(|mut run| {
        let ended = run.go();
        let judged = run.judge(ended.is_err_and(|e| e == INTERRUPTED));
        judged.map_err(|text| (125, text))
    });
    let (verdict, interrupted) = match answer {
        Ok(judged) => judged,
        Err((code, text)) => {
            eprintln!("lockkeeper: torture: {text}");
            return code;
        }
    };
    // Whoever reads may have gone; the exit code says it all the same.
    let _ = if options.json { writeln!(out, "{}", verdict.json()) } else { verdict.print(out) };
    if interrupted { 130 } else { verdict.exit_code() }
}

const INTERRUPTED: &str = "interrupted";

struct Run {
    options: Options,
    arena: Box<dyn Arena>,
    scratch: Scratch,
    plan: Vec<Planned>,
    clients: BTreeMap<u32, Client>,
    started: u32,
    nemesis: Writer,
    resource: Writer,
    stopped_by: Arc<AtomicBool>,
    happened: BTreeMap<&'static str, u64>,
    _runtime: tokio::runtime::Runtime,
}

struct Client {
    child: Child,
    stopped: bool,
}

fn prepare(options: &Options) -> Result<Run, (u8, String)> {
    let wrong = |text: String| (64, text);
    let own = |text: String| (125, text);
    if options.clients == 0 || options.tasks == 0 || options.names == 0 {
        return Err(wrong("at least one client, one task and one name are needed".to_owned()));
    }
    let scratch = Scratch::new().map_err(own)?;
    let arena = arena::open(&options.url, scratch.path()).map_err(wrong)?;
    let known = nemesis::known(arena.faults());
    let mut chosen = Vec::new();
    for fault in options.faults.iter().filter(|f| *f != "none") {
        let Some(fault) = known.iter().find(|k| *k == fault) else {
            return Err(wrong(format!("{fault:?} is no fault here; there are: {}", known.join(", "))));
        };
        chosen.push(*fault);
    }
    let quiet = options.faults.iter().any(|f| f == "none");
    let faults = if chosen.is_empty() && !quiet { known } else { chosen };
    let plan = nemesis::plan(options.seed, options.time, options.clients, &faults);
    let history = |name: &str, role| {
        let path = scratch.path().join(format!("{name}.lkh"));
        Writer::create(path, WriterOptions { role, label: name.to_owned(), ..WriterOptions::default() }).map_err(|e| own(e.to_string()))
    };
    let (nemesis, log) = (history("nemesis", Role::Nemesis)?, history("resource", Role::Resource)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(|e| own(e.to_string()))?;
    let socket = scratch.path().join("resource");
    runtime.block_on(resource::serve(&socket, log.clone())).map_err(|e| own(format!("{}: {e}", socket.display())))?;
    let stopped_by = Arc::new(AtomicBool::new(false));
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let told = stopped_by.clone();
        let listen = async move {
            let kind = tokio::signal::unix::SignalKind::from_raw(signal as i32);
            if let Ok(mut heard) = tokio::signal::unix::signal(kind) {
                heard.recv().await;
                told.store(true, Ordering::Release);
            }
        };
        runtime.spawn(listen);
    }
    Ok(Run {
        options: options.clone(),
        arena,
        scratch,
        plan,
        clients: BTreeMap::new(),
        started: 0,
        nemesis,
        resource: log,
        stopped_by,
        happened: BTreeMap::new(),
        _runtime: runtime,
    })
}

/// What is to be done at a time.
enum Step {
    Begin(Planned),
    End(Planned),
}

impl Run {
    fn go(&mut self) -> Result<(), &'static str> {
        for number in 0..self.options.clients {
            self.start(number);
        }
        let mut steps: Vec<(Duration, Step)> = Vec::new();
        for planned in std::mem::take(&mut self.plan) {
            steps.push((planned.from, Step::Begin(planned.clone())));
            steps.push((planned.to, Step::End(planned)));
        }
        steps.sort_by_key(|(at, _)| *at);
        let began = Instant::now();
        let starving = Arc::new(AtomicBool::new(false));
        let mut outcome = Ok(());
        for (at, step) in steps {
            outcome = self.wait_until(began, at);
            if outcome.is_err() {
                break;
            }
            match step {
                Step::Begin(planned) => self.begin(&planned, &starving),
                Step::End(planned) => self.end(&planned, &starving),
            }
        }
        starving.store(false, Ordering::Release);
        let outcome = outcome.and_then(|()| self.wait_until(began, self.options.time));
        self.finish();
        outcome
    }

    /// Waits, shows how far it is, and hears Ctrl-C.
    fn wait_until(&mut self, began: Instant, at: Duration) -> Result<(), &'static str> {
        loop {
            if self.stopped_by.load(Ordering::Acquire) {
                return Err(INTERRUPTED);
            }
            let left = at.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            if self.options.progress && std::io::stderr().is_terminal() {
                let faults: u64 = self.happened.values().sum();
                eprint!("\r\x1b[K{:>5.1} s of {:.0} s, {faults} faults", began.elapsed().as_secs_f64(), self.options.time.as_secs_f64());
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }

    fn history_of(&self, number: u32, start: u32) -> PathBuf {
        self.scratch.path().join(format!("client-{number}-{start}.lkh"))
    }

    /// Starts a client, or a killed one again under a new history.
    fn start(&mut self, number: u32) {
        let start = self.started;
        self.started += 1;
        let orders = Orders {
            url: self.arena.url(number),
            history: self.history_of(number, start),
            socket: self.scratch.path().join("resource"),
            label: format!("client {number}"),
            tasks: self.options.tasks,
            names: self.options.names,
            seed: self.options.seed.wrapping_add(u64::from(start) << 20),
        };
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("lockkeeper"));
        let child = Command::new(program).arg(CLIENT_WORD).args(orders.words()).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        match child {
            Ok(child) => {
                self.clients.insert(number, Client { child, stopped: false });
            }
            Err(error) => eprintln!("lockkeeper: torture: client {number} cannot be started: {error}"),
        }
    }

    fn begin(&mut self, planned: &Planned, starving: &Arc<AtomicBool>) {
        let pid = self.clients.get(&planned.client).map_or(0, |c| u64::from(c.child.id()));
        let target = if nemesis::hits_client(planned.fault) { pid } else { 0 };
        // Written before the kill: the holder's interval ends here at the latest.
        let what = if planned.fault == KILL { What::Kill } else { What::FaultBegin };
        self.nemesis.write_text(planned.fault, Record::new(what).number(target));
        let done = match planned.fault {
            STOP => self.signal(planned.client, Signal::SIGSTOP),
            KILL => self.kill(planned.client),
            STARVE => starve(starving),
            fault => self.arena.strike(fault),
        };
        match done {
            Ok(()) => *self.happened.entry(planned.fault).or_default() += 1,
            Err(text) => eprintln!("lockkeeper: torture: {}: {text}", planned.fault),
        }
    }

    fn end(&mut self, planned: &Planned, starving: &Arc<AtomicBool>) {
        let pid = self.clients.get(&planned.client).map_or(0, |c| u64::from(c.child.id()));
        let done = match planned.fault {
            STOP => self.signal(planned.client, Signal::SIGCONT),
            KILL => {
                self.start(planned.client);
                Ok(())
            }
            STARVE => {
                starving.store(false, Ordering::Release);
                Ok(())
            }
            fault => self.arena.mend(fault),
        };
        if let Err(text) = done {
            eprintln!("lockkeeper: torture: {}: {text}", planned.fault);
        }
        if planned.fault != KILL {
            let target = if nemesis::hits_client(planned.fault) { pid } else { 0 };
            self.nemesis.write_text(planned.fault, Record::new(What::FaultEnd).number(target));
        }
    }

    fn signal(&mut self, number: u32, signal: Signal) -> Result<(), String> {
        let client = self.clients.get_mut(&number).ok_or("the client is gone")?;
        client.stopped = signal == Signal::SIGSTOP;
        kill(pid_of(&client.child), signal).map_err(|e| e.to_string())
    }

    fn kill(&mut self, number: u32) -> Result<(), String> {
        let mut client = self.clients.remove(&number).ok_or("the client is gone")?;
        client.child.kill().map_err(|e| e.to_string())?;
        let pid = u64::from(client.child.id());
        client.child.wait().map_err(|e| e.to_string())?;
        self.nemesis.write(Record::new(What::Exit).number(pid));
        Ok(())
    }

    /// Lets everybody finish, and makes those finish who do not.
    fn finish(&mut self) {
        for client in self.clients.values_mut() {
            if client.stopped {
                // It may have died meanwhile; then there is nobody to wake.
                let _ = kill(pid_of(&client.child), Signal::SIGCONT);
            }
            drop(client.child.stdin.take());
        }
        let until = Instant::now() + PATIENCE;
        for (number, client) in &mut self.clients {
            let pid = u64::from(client.child.id());
            while Instant::now() < until && client.child.try_wait().is_ok_and(|ended| ended.is_none()) {
                std::thread::sleep(Duration::from_millis(5));
            }
            match client.child.try_wait() {
                Ok(Some(status)) if status.success() => {}
                Ok(Some(status)) => eprintln!("lockkeeper: torture: client {number} ended with {status}"),
                _ => {
                    eprintln!("lockkeeper: torture: client {number} does not end and is killed");
                    self.nemesis.write_text(KILL, Record::new(What::Kill).number(pid));
                    let _ = client.child.kill();
                    let _ = client.child.wait();
                }
            }
            self.nemesis.write(Record::new(What::Exit).number(pid));
        }
        self.clients.clear();
        for log in [&self.nemesis, &self.resource] {
            if let Err(error) = log.finish() {
                eprintln!("lockkeeper: torture: a history could not be ended: {error}");
            }
        }
        if self.options.progress && std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }

    fn judge(&mut self, interrupted: bool) -> Result<(Verdict, bool), String> {
        let mut allow = self.arena.expected();
        for fault in self.arena.faults().iter().filter(|f| self.happened.contains_key(f.name)) {
            allow.extend(fault.excuses.iter().copied());
        }
        // Starved of its processors nobody keeps a promise of time.
        if self.happened.contains_key(STARVE) {
            allow.insert(Class::SlowRecovery);
        }
        // Readers pass a line of permits and the like: order is judged where the engine promises it and nobody is stopped.
        allow.insert(Class::FifoInversion);
        let options = check::Options {
            recovery: Some(self.arena.recovery()),
            recovery_slack: Duration::from_millis(500),
            allow,
            ..check::Options::default()
        };
        let report = check::check_files(&[self.scratch.path()], options).map_err(|e| e.to_string())?;
        let has_violations = !report.is_clean();
        if let Some(path) = &self.options.report {
            let page = picture::page(&[self.scratch.path()], &report, self.arena.name()).map_err(|e| e.to_string())?;
            write_whole(path, &page)?;
        }
        if self.options.ascii {
            let drawn = picture::ascii(&[self.scratch.path()], &report, 100).map_err(|e| e.to_string())?;
            eprint!("{drawn}");
        }
        let kept = has_violations.then(|| self.scratch.keep());
        let verdict = Verdict {
            engine: self.arena.name(),
            seed: self.options.seed,
            planned: !self.happened.is_empty() || self.options.faults.iter().any(|f| f == "none"),
            has_leases: self.arena.has_leases(),
            faults: self.happened.clone(),
            report,
            kept,
        };
        Ok((verdict, interrupted))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for client in self.clients.values_mut() {
            let _ = client.child.kill();
            let _ = client.child.wait();
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}

/// Two threads a processor that do nothing but take time.
fn starve(on: &Arc<AtomicBool>) -> Result<(), String> {
    on.store(true, Ordering::Release);
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    for _ in 0..processors * 2 {
        let on = on.clone();
        std::thread::Builder::new()
            .spawn(move || {
                while on.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
            })
            .map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// A report is there whole or not at all.
fn write_whole(path: &Path, text: &str) -> Result<(), String> {
    let beside = path.with_extension("html.tmp");
    std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path)).map_err(|e| format!("{}: {e}", path.display()))
}
