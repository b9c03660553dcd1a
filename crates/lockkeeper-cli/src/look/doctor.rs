//! `doctor`: reach the engine and say what it is, what it promises, and what is worth changing.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use lockkeeper::engine::{Registration, UrlOption};
use lockkeeper::url::EngineUrl;
use lockkeeper::{Ability, Description, Entry, Error, ErrorKind, Kind, Warning};
use nix::poll::{PollFd, PollFlags, poll};
use serde::Serialize;

use super::{Opened, open_as_it_is, open_chosen, told};
use crate::args::common::Global;
use crate::args::others::Doctor;
use crate::choice::Choice;
use crate::engine;
use crate::failure::Failure;
use crate::json::line;
use crate::out::print;
use crate::start::moment;
use crate::supervise::job::Status;
use crate::supervise::signals::{Came, Signals, die_of};
use crate::supervise::timeout;
use crate::text::{millis, shown, spoken, wrap};

/// No lease is longer, whatever the engine grants.
const LEASE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Beside how many locks in use others of another layout are looked for.
const LOOKED_BESIDE_MAX: usize = 100;
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

/// Looks at the chosen engine, or at another one; with `--strict` a warning answers 1.
///
/// # Errors
/// What the engine says.
pub fn doctor(global: &Global, args: &Doctor) -> Result<u8, Failure> {
    if let Some(scheme) = &args.options {
        return options(scheme, global.json);
    }
    let mut global = global.clone();
    global.url = args.engine.clone().or(global.url);
    let (opened, found) = reach(Choice::find(&global)?, !args.no_probe, global.json)?;
    let mut about = opened.locks.describe();
    about.warnings.extend(found);
    let ttl = engine::ttl(&opened.choice)?.map(engine::Idle::UrlTtl);
    let idle = ttl.and_then(|ttl| engine::idle(&opened.choice, ttl));
    about.warnings.extend(idle.map(|text| Warning { id: "idle-ttl", text }));
    let new: Vec<_> = opened
        .choice
        .warnings
        .iter()
        .filter(|w| about.warnings.iter().all(|known| known.id != w.id))
        .cloned()
        .collect();
    about.warnings.extend(new);
    let text = if global.json {
        json(&about, &opened.choice)
    } else {
        wrap::told(&words(&about, &opened.choice))
    };
    match print(&text) {
        0 => Ok(u8::from(args.strict && !about.warnings.is_empty())),
        failed => Ok(failed),
    }
}

#[derive(Serialize)]
struct OptionJson<'a> {
    engine: Option<&'a str>,
    option: &'a str,
    value: String,
    default: &'a str,
    about: &'a str,
}

/// Prints the options of URLs: of the engine of a scheme, or of all.
fn options(scheme: &str, json: bool) -> Result<u8, Failure> {
    let scheme = scheme.split(':').next().unwrap_or_default();
    let engines = match scheme {
        "" => Registration::all(),
        scheme => vec![Registration::of(scheme)?],
    };
    if json {
        let row = |engine, option: &UrlOption| {
            let value = option.value.to_string();
            let UrlOption { name: option, default, about, .. } = *option;
            line(&OptionJson { engine, option, value, default, about }) + "\n"
        };
        let own = engines.iter().flat_map(|e| e.options.iter().map(|o| row(Some(e.engine), o)));
        let common = UrlOption::COMMON.iter().map(|option| row(None, option));
        return Ok(print(&own.chain(common).collect::<String>()));
    }
    let own: String = engines.iter().map(|engine| engine.reference() + "\n").collect();
    let common: String = UrlOption::COMMON.iter().map(UrlOption::reference).collect();
    Ok(print(&format!("{own}every engine:\n{common}")))
}

/// How far the look is, so that a signal ends it at once as long as there is nothing to give back.
const LOOKING: u8 = 0;
const PROBING: u8 = 1;
const ENDING: u8 = 2;

/// Reaches the engine, and takes and gives back a lock: an engine that answers need not give any. A
/// signal ends the program once nothing is left, a second one at once. It works in a thread of its
/// own, and every thread leaves the signals to this one.
fn reach(choice: Choice, probes: bool, json: bool) -> Result<(Opened, Vec<Warning>), Failure> {
    let failed =
        |e: std::io::Error| Failure::internal(format!("signals cannot be waited for: {e}"));
    let signals = Signals::take().map_err(failed)?;
    let (over, tell) = std::io::pipe().map_err(failed)?;
    let stage = Arc::new(AtomicU8::new(LOOKING));
    let at = stage.clone();
    let work = move || {
        let found = look(choice, probes, json, || {
            probes
                && at
                    .compare_exchange(LOOKING, PROBING, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
        });
        // Its closing is what is waited for.
        drop(tell);
        found
    };
    let looking =
        std::thread::Builder::new().name("doctor".to_owned()).spawn(work).map_err(failed)?;
    let mut until = None;
    while !looking.is_finished() {
        let came = signals.ending();
        // Whoever asks twice does not wait for what is left.
        if let Some(came) = came
            && (until.is_some()
                || stage
                    .compare_exchange(LOOKING, ENDING, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok())
        {
            ended_by(came);
        }
        until = until.or_else(|| came.map(|came| (came, moment() + CLEARS_WITHIN)));
        if let Some((came, _)) = until.filter(|(_, until)| moment() >= *until) {
            ended_by(came);
        }
        let mut fds = [
            PollFd::new(over.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        _ = poll(&mut fds, timeout(until.map(|(_, until)| until.saturating_sub(moment()))));
    }
    if let Some((came, _)) = until {
        ended_by(came);
    }
    // From here on a signal ends us as it ends every program, also where nobody reads what is
    // printed.
    signals.before().restore();
    looking.join().unwrap_or_else(|_| Err(Failure::internal("the look at the engine panicked")))
}

/// Ends the program as the signal would have ended it.
fn ended_by(came: Came) -> ! {
    die_of(came.signal, false);
    std::process::exit(i32::from(Status::Killed(came.signal as i32).code()))
}

/// `touches`: what a lock needs may be made. `probes` is asked once it is time to take one.
fn look(
    choice: Choice,
    touches: bool,
    json: bool,
    probes: impl FnOnce() -> bool,
) -> Result<(Opened, Vec<Warning>), Failure> {
    let opened = if touches { open_chosen(choice)? } else { open_as_it_is(choice)? };
    // Being there is not enough: it must answer, too. An engine that cannot list is asked about one
    // name.
    let mut found = Vec::new();
    if opened.locks.describe().can.has(Ability::List) {
        let (entries, missing) = told(opened.locks.list(""))?;
        found = beside(&opened, &entries);
        found.extend(missing.map(|why| Warning { id: "not-all-answer", text: why.message }));
    } else {
        match opened.locks.status(Kind::Lock, "lockkeeper/doctor") {
            // It answers. Rights may go by name, and only a probe shows whether a lock can be had.
            Err(error) if error.kind() == ErrorKind::Refused => {}
            asked => drop(asked?),
        }
    }
    if probes() {
        let probed = opened.locks.probe();
        found.extend(probed.map_err(|error| {
            let about = opened.locks.describe();
            // What is worth changing may be why there is no lock.
            for Warning { id, text } in about.warnings.iter().filter(|_| !json) {
                eprintln!("lockkeeper: warning: {id}: {}", shown(text));
            }
            no_lock(error, &about)
        })?);
    }
    Ok((opened, found))
}

/// The locks of other layouts beside those in use, as far as they are found in time: one warning
/// for each advice, with the number of the names that it holds for.
fn beside(opened: &Opened, in_use: &[Entry]) -> Vec<Warning> {
    let until = moment() + opened.locks.describe().request_timeout.unwrap_or_default();
    let mut found: Vec<(Warning, u32)> = Vec::new();
    let locks = in_use.iter().filter(|entry| entry.kind == Kind::Lock);
    for entry in locks.take(LOOKED_BESIDE_MAX) {
        if moment() >= until {
            break;
        }
        let told = match opened.locks.other_layouts(&entry.name) {
            Ok(told) => told,
            Err(error) if error.kind() == ErrorKind::Unreachable => break,
            // A name that cannot be asked about keeps no other from being told.
            Err(_) => continue,
        };
        for warning in told {
            let advice = |warning: &Warning| warning.text.rsplit("; ").next().map(str::to_owned);
            match found.iter_mut().find(|(known, _)| advice(known) == advice(&warning)) {
                Some((_, names)) => *names += 1,
                None => found.push((warning, 1)),
            }
        }
    }
    let told = |(warning, names): (Warning, u32)| match names {
        1 => warning,
        _ => Warning {
            text: format!("{}; {names} names in use have such a lock beside them", warning.text),
            ..warning
        },
    };
    found.into_iter().map(told).collect()
}

/// No lock can be had, whatever the reason: the engine is of no use. Where rights go by name, the
/// probe's own may be what is not allowed.
fn no_lock(error: Error, about: &Description) -> Failure {
    let by_name = error.kind() == ErrorKind::Refused
        && !error.is_temporary()
        && about.layout != "native"
        // The rights of a kernel's lock go by its directory.
        && about.expiry.is_timed();
    let probe = error.lock_name().filter(|_| by_name).map(|name| shown(name.as_str()));
    let failure =
        Failure { name: None, ..Failure::from(error) }.exit(ErrorKind::Refused.exit_code());
    match probe {
        Some(name) => {
            let text = format!(
                "{}; the probe's own name is {name}, and --no-probe takes none",
                failure.message
            );
            failure.message(text)
        }
        None => failure,
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

/// T with its fraction: 30.25 s of a shared layout are not 30 s.
fn whole(time: Duration) -> String {
    if time.subsec_millis() == 0 || time.as_secs() < 10 || time.as_secs() >= 60 {
        return spoken(time);
    }
    let text = format!("{:.3}", time.as_secs_f64());
    format!("{}s", text.trim_end_matches('0'))
}

/// What the tokens are worth, where there are any.
fn fencing(about: &Description, choice: &Choice) -> &'static str {
    if about.fenced {
        return "tokens only ever grow";
    }
    let is_fenced_lock = || {
        EngineUrl::parse(&choice.url)
            .is_ok_and(|mut url| url.take("lock").as_deref() == Some("fenced"))
    };
    match about.layout {
        "redisson" if is_fenced_lock() => {
            "tokens of an RFencedLock can go back or repeat: do not rely on them"
        }
        "plain" | "redisson" => {
            "this layout has no tokens: use layout=native where the resource checks them"
        }
        _ => "no tokens that only ever grow: a resource cannot go by them",
    }
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
    let yes =
        |yes: bool, is: &str, is_not: &str| if yes { is.to_owned() } else { is_not.to_owned() };
    text += &format!(
        "seen by   {}\n",
        yes(about.hosts, "every machine that reaches the server", "this machine only")
    );
    text += &format!("fencing   {}\n", fencing(about, choice));
    let recovery = |time: Duration| {
        if time.is_zero() { "at once".to_owned() } else { format!("within {}", whole(time)) }
    };
    let stopped = about.recovery_stopped.map_or_else(
        || "never while a holder stays stopped".to_owned(),
        |t| format!("{} after one was stopped", recovery(t)),
    );
    text += &format!("recovery  {} after a holder died, {stopped}\n", recovery(about.recovery));
    let can = &about.can;
    let permits = if can.has(Ability::Permits) { ", 65535 permits" } else { "" };
    let longest = about.max_ttl.filter(|longest| *longest < LEASE_MAX);
    let longest = longest.map_or_else(|| "24h".to_owned(), spoken);
    let leases = match about.expiry.is_per_hold() {
        true => format!(", leases from 200ms to {longest}"),
        false => String::new(),
    };
    text += &format!("limits    names and labels of 1 KiB{permits}{leases}\n");
    let cannot = [
        (can.has(Ability::Shared), "shared mode"),
        (can.has(Ability::Upgrade), "upgrades"),
        (can.has(Ability::Permits), "semaphores"),
        (can.has(Ability::Election), "elections"),
        (can.has(Ability::Latch), "latches"),
        (can.has(Ability::Barrier), "double barriers"),
        (can.has(Ability::List), "listing"),
        (can.has(Ability::Force), "release --force"),
        (can.has(Ability::Ask), "requests to let go"),
        (can.has(Ability::Delay), "lock delay"),
        (can.has(Ability::Resize), "stored limits of semaphores"),
        (can.has(Ability::Fair), "an order of those who wait in several processes"),
        (
            can.has(Ability::WriterTurns) || !can.has(Ability::Shared),
            "turns for writers while readers keep coming",
        ),
        (can.has(Ability::Identity), "record of who holds and waits"),
        (about.expiry.is_per_hold(), "leases of its own for each lock: --ttl changes nothing"),
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
