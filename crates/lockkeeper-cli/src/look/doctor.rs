//! `doctor`: reach the engine and say what it is, what it promises, and what is worth changing.

use std::time::Duration;

use lockkeeper::Description;
use serde::Serialize;

use super::open_chosen;
use crate::args::common::Global;
use crate::args::others::Doctor;
use crate::choice::Choice;
use crate::failure::Failure;
use crate::json::line;
use crate::out::print;
use crate::text::{millis, shown, spoken};

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
    let opened = open_chosen(Choice::find(&global)?)?;
    // Being there is not enough: it must answer, too. An engine that cannot list is asked about one name.
    if opened.locks.describe().can.list {
        opened.locks.list("")?;
    } else {
        opened.locks.status(lockkeeper::Kind::Lock, "lockkeeper/doctor")?;
    }
    let mut about = opened.locks.describe();
    let new: Vec<_> = opened.choice.warnings.iter().filter(|w| about.warnings.iter().all(|known| known.id != w.id)).cloned().collect();
    about.warnings.extend(new);
    let text = if global.json { json(&about, &opened.choice) } else { words(&about, &opened.choice) };
    match print(&text) {
        0 => Ok(u8::from(!about.warnings.is_empty())),
        failed => Ok(failed),
    }
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
    let recovery = |time: Duration| if time.is_zero() { "at once".to_owned() } else { format!("within {}", spoken(time)) };
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
