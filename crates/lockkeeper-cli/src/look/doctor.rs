//! `doctor`: reach the engine and say what it is, what it promises, and what is worth changing.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use lockkeeper::{Description, Error, ErrorKind, Warning};
use nix::poll::{PollFd, PollFlags, poll};
use serde::Serialize;

use super::{Opened, open_chosen};
use crate::args::common::Global;
use crate::args::others::Doctor;
use crate::choice::Choice;
use crate::failure::Failure;
use crate::json::line;
use crate::out::print;
use crate::start::moment;
use crate::supervise::job::Status;
use crate::supervise::signals::{Came, Signals, die_of};
use crate::supervise::timeout;
use crate::text::{millis, shown, spoken};

/// How long the probe may take to give back what it has once a signal came.
const CLEARS_WITHIN: Duration = Duration::from_secs(3);

#[derive(Serialize)]
struct Json<'a> {
    engine: &'a str,
    server: &'a str,
    class: String,
    fenced: bool,
    recovery_ms: u64,
    layout: &'a str,
    warnings: Vec<WarningJson<'a>>,
    url: String,
    source: String,
    hosts: bool,
    recovery_stopped_ms: Option<u64>,
    breaks: &'a [String],
}

#[derive(Serialize)]
struct WarningJson<'a> {
    id: &'a str,
    text: &'a str,
}

/// Looks at the chosen engine, or at another one; 1 with warnings.
///
/// # Errors
/// What the engine says.
pub fn doctor(global: &Global, args: &Doctor) -> Result<u8, Failure> {
    let mut global = global.clone();
    global.url = args.engine.clone().or(global.url);
    let (opened, found) = reach(Choice::find(&global)?, !args.no_probe)?;
    let mut about = opened.locks.describe();
    about.warnings.extend(found);
    let new: Vec<_> = opened.choice.warnings.iter().filter(|w| about.warnings.iter().all(|known| known.id != w.id)).cloned().collect();
    about.warnings.extend(new);
    let text = if global.json { json(&about, &opened.choice) } else { words(&about, &opened.choice) };
    match print(&text) {
        0 => Ok(u8::from(!about.warnings.is_empty())),
        failed => Ok(failed),
    }
}

/// How far the look is, so that a signal ends it at once as long as there is nothing to give back.
const LOOKING: u8 = 0;
const PROBING: u8 = 1;
const ENDING: u8 = 2;

/// Reaches the engine, and takes and gives back a lock: an engine that answers need not give any. A signal ends the program once
/// nothing is left. It works in a thread of its own, and every thread leaves the signals to this one.
fn reach(choice: Choice, probes: bool) -> Result<(Opened, Vec<Warning>), Failure> {
    let failed = |e: std::io::Error| Failure::internal(format!("signals cannot be waited for: {e}"));
    let signals = Signals::take().map_err(failed)?;
    let (over, tell) = std::io::pipe().map_err(failed)?;
    let stage = Arc::new(AtomicU8::new(LOOKING));
    let at = stage.clone();
    let work = move || {
        let found = look(choice, || probes && at.compare_exchange(LOOKING, PROBING, Ordering::AcqRel, Ordering::Acquire).is_ok());
        // Its closing is what is waited for.
        drop(tell);
        found
    };
    let looking = std::thread::Builder::new().name("doctor".to_owned()).spawn(work).map_err(failed)?;
    let mut until = None;
    while !looking.is_finished() {
        let came = signals.ending();
        if let Some(came) = came
            && stage.compare_exchange(LOOKING, ENDING, Ordering::AcqRel, Ordering::Acquire).is_ok()
        {
            ended_by(came);
        }
        until = until.or_else(|| came.map(|came| (came, moment() + CLEARS_WITHIN)));
        if let Some((came, _)) = until.filter(|(_, until)| moment() >= *until) {
            ended_by(came);
        }
        let mut fds = vec![PollFd::new(over.as_fd(), PollFlags::POLLIN)];
        fds.extend(until.is_none().then(|| PollFd::new(signals.as_fd(), PollFlags::POLLIN)));
        _ = poll(&mut fds, timeout(until.map(|(_, until)| until.saturating_sub(moment()))));
    }
    if let Some((came, _)) = until {
        ended_by(came);
    }
    looking.join().unwrap_or_else(|_| Err(Failure::internal("the look at the engine panicked")))
}

/// Ends the program as the signal would have ended it.
fn ended_by(came: Came) -> ! {
    die_of(came.signal, false);
    std::process::exit(i32::from(Status::Killed(came.signal as i32).code()))
}

fn look(choice: Choice, probes: impl FnOnce() -> bool) -> Result<(Opened, Vec<Warning>), Failure> {
    let opened = open_chosen(choice)?;
    // Being there is not enough: it must answer, too. An engine that cannot list is asked about one name.
    if opened.locks.describe().can.list {
        opened.locks.list("")?;
    } else {
        opened.locks.status(lockkeeper::Kind::Lock, "lockkeeper/doctor")?;
    }
    let found = if probes() { opened.locks.probe().map_err(no_lock)? } else { Vec::new() };
    Ok((opened, found))
}

/// No lock can be had, whatever the reason: the engine is of no use. The probe's own name tells nobody anything.
fn no_lock(error: Error) -> Failure {
    Failure { name: None, ..Failure::from(error) }.exit(ErrorKind::Refused.exit_code())
}

fn json(about: &Description, choice: &Choice) -> String {
    let object = Json {
        engine: about.engine,
        server: &about.server,
        class: about.class.to_string(),
        fenced: about.fenced,
        recovery_ms: millis(about.recovery),
        layout: about.layout,
        warnings: about.warnings.iter().map(|w| WarningJson { id: w.id, text: &w.text }).collect(),
        url: choice.redacted(),
        source: choice.source.to_string(),
        hosts: about.hosts,
        recovery_stopped_ms: about.recovery_stopped.map(millis),
        breaks: &about.breaks,
    };
    line(&object) + "\n"
}

/// T with its fraction: 30.25 s of a shared layout are not 30 s.
fn whole(time: Duration) -> String {
    if time.subsec_millis() == 0 || time.as_secs() < 10 || time.as_secs() >= 60 {
        return spoken(time);
    }
    let text = format!("{:.3}", time.as_secs_f64());
    format!("{}s", text.trim_end_matches('0'))
}

fn words(about: &Description, choice: &Choice) -> String {
    let mut text = format!(
        "engine    {} ({})\nserver    {}\nlayout    {}\nclass     {}\n",
        choice.redacted(),
        choice.source,
        shown(&about.server),
        about.layout,
        about.class
    );
    let yes = |yes: bool, is: &str, is_not: &str| if yes { is.to_owned() } else { is_not.to_owned() };
    text += &format!("seen by   {}\n", yes(about.hosts, "every machine that reaches the server", "this machine only"));
    text += &format!("fencing   {}\n", yes(about.fenced, "tokens only ever grow", "tokens can go back or repeat: do not rely on them"));
    let recovery = |time: Duration| if time.is_zero() { "at once".to_owned() } else { format!("within {}", whole(time)) };
    let stopped = about
        .recovery_stopped
        .map_or_else(|| "never while a holder stays stopped".to_owned(), |t| format!("{} after one was stopped", recovery(t)));
    text += &format!("recovery  {} after a holder died, {stopped}\n", recovery(about.recovery));
    text += "limits    names and labels of 1 KiB, 65535 permits, leases from 200ms to 24h\n";
    let can = &about.can;
    let cannot = [
        (can.shared, "shared mode"),
        (can.upgrade, "upgrades"),
        (can.permits, "semaphores"),
        (can.election, "elections"),
        (can.latch, "latches"),
        (can.barrier, "double barriers"),
        (can.list, "listing"),
        (can.force, "release --force"),
        (can.ask, "requests to let go"),
        (can.delay, "lock delay"),
        (can.resize, "stored limits of semaphores"),
        (can.fair, "an order of those who wait in several processes"),
        (can.writer_turns || !can.shared, "turns for writers while readers keep coming"),
        (can.identity, "record of who holds and waits"),
        (about.leases, "leases: --ttl changes nothing"),
    ];
    let cannot: Vec<_> = cannot.into_iter().filter(|(can, _)| !can).map(|(_, what)| what).collect();
    if !cannot.is_empty() {
        text += &format!("has no    {}\n", cannot.join(", "));
    }
    for breaks in &about.breaks {
        text += &format!("breaks    {}\n", shown(breaks));
    }
    for warning in &about.warnings {
        text += &format!("warning   {}: {}\n", warning.id, shown(&warning.text));
    }
    text
}
