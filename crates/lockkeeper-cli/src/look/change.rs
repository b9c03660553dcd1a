//! `release --force`, `permits` and `gc`: what an operator changes.

use std::io::{IsTerminal as _, Write as _, stderr, stdin};

use lockkeeper::{Ability, Entry, ErrorKind, Holder, Kind};
use serde::Serialize;

use super::{Opened, all_read, open};
use crate::args::common::{self, Global};
use crate::args::others::{Gc, Permits, Release};
use crate::args::suggest;
use crate::choice::Choice;
use crate::engine;
use crate::failure::Failure;
use crate::json::{EntryJson, HolderJson, line};
use crate::out::print;
use crate::run::words::{who, who_had};
use crate::text::shown;

#[derive(Serialize)]
struct Taken<'a> {
    name: &'a str,
    kind: &'static str,
    engine: &'a str,
    taken: bool,
    holders: Vec<HolderJson>,
}

/// Takes a lock away from whoever holds it.
///
/// # Errors
/// What the engine says; that it cannot be done is an answer and no error.
pub fn release(global: &Global, args: &Release) -> Result<u8, Failure> {
    let name = common::name(&args.name)?;
    if !args.force {
        let right = suggest::with_option("release", "--force")
            .unwrap_or_else(|| "lockkeeper release --force NAME".to_owned());
        let message = format!(
            "only its holder releases a lock, and it may still be at work: to take it away, {right}"
        );
        return Err(Failure::usage(message));
    }
    let opened = open(global)?;
    let no = |why: String| Failure::no(why).engine(Some(opened.engine.to_owned()));
    let (entries, unreadable) = opened.about(&name)?;
    let held: Vec<Entry> = entries.into_iter().filter(|e| !e.holders.is_empty()).collect();
    if held.is_empty() {
        all_read(unreadable, global)?;
        return Err(no("nobody holds it".to_owned()));
    }
    let mut all_taken = true;
    for mut entry in held {
        let whose = all_of(&entry.holders, who);
        let mut is_gone = false;
        // What cannot be done is refused without a question.
        if can_take(&opened, entry.kind) && is_asked() {
            if !agreed(&entry, &whose) {
                all_taken = false;
                continue;
            }
            // Nobody knows how long the answer took: it is about those who were shown.
            let now = opened.locks.status(entry.kind, &name)?;
            if !now.holders.is_empty() && !are_the_same(&entry.holders, &now.holders) {
                let message = format!(
                    "nothing was taken: since the question it is held by {}",
                    all_of(&now.holders, who)
                );
                return Err(no(message));
            }
            is_gone = now.holders.is_empty();
            if !is_gone {
                entry = now;
            }
        }
        // Who comes now was not shown either.
        let force = || {
            if is_gone {
                return Ok(false);
            }
            opened.locks.force_release_from(entry.kind, &name, &entry.holders)
        };
        let taken = match force() {
            Ok(taken) => taken,
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Refused) => {
                return Err(no(format!("{}; held by {whose}", error.message())));
            }
            Err(error) => return Err(error.into()),
        };
        all_taken &= taken;
        let holders = entry.holders.iter().map(<HolderJson as From<&Holder>>::from).collect();
        if global.json {
            let object = Taken {
                name: name.as_str(),
                kind: entry.kind.as_str(),
                engine: opened.engine,
                taken,
                holders,
            };
            print(&(line(&object) + "\n"));
        } else {
            let what = if taken { "taken from" } else { "given back meanwhile by" };
            let (name, whose) = (shown(name.as_str()), all_of(&entry.holders, who_had));
            print(&format!("{name} ({}): {what} {whose}\n", entry.kind));
        }
    }
    // What can be read was taken, whatever else stands under the name.
    all_read(unreadable, global)?;
    Ok(u8::from(!all_taken))
}

/// Whether the engine takes locks of this kind away.
fn can_take(opened: &Opened, kind: Kind) -> bool {
    let about = opened.locks.describe();
    about.can.has(Ability::Force) && (about.layout != "redisson" || kind == Kind::Lock)
}

/// Each of them in words.
fn all_of(holders: &[Holder], who: fn(&Holder) -> String) -> String {
    holders.iter().map(who).collect::<Vec<_>>().join("; ")
}

/// Whether these are the holders that were shown, and hold what they held then.
fn are_the_same(shown: &[Holder], now: &[Holder]) -> bool {
    let known = |h: &Holder| {
        let who = (h.host.clone(), h.pid, h.program.clone(), h.label.clone());
        (h.claim, h.token, h.mode, who)
    };
    shown.len() == now.len() && now.iter().all(|h| shown.iter().any(|s| known(s) == known(h)))
}

/// Whether somebody is there to be asked; without a terminal the option is the answer.
fn is_asked() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// Asks.
fn agreed(entry: &Entry, whose: &str) -> bool {
    _ = write!(
        stderr(),
        "{} ({}) is held by {whose}. It may still be at work. Take it away? [y/N] ",
        shown(entry.name.as_str()),
        entry.kind
    );
    let mut answer = String::new();
    stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Changes a semaphore's limit.
///
/// # Errors
/// What the engine says.
pub fn permits(global: &Global, args: &Permits) -> Result<u8, Failure> {
    let name = common::name(&args.name)?;
    let opened = open(global)?;
    opened.locks.semaphore(&name, args.limit).resize(args.limit)?;
    if global.json {
        let entry = opened.locks.status(Kind::Semaphore, &name)?;
        return Ok(print(&(line(&EntryJson::new(&entry, opened.engine)) + "\n")));
    }
    Ok(if global.quiet {
        0
    } else {
        print(&format!("{}: {} permits\n", shown(name.as_str()), args.limit))
    })
}

#[derive(Serialize)]
struct Removed<'a> {
    engine: &'a str,
    removed: usize,
}

/// Removes idle lock files.
///
/// # Errors
/// What the engine says.
pub fn gc(global: &Global, _args: &Gc) -> Result<u8, Failure> {
    let choice = Choice::make(global)?;
    let removed = engine::gc(&choice)?;
    if global.json {
        return Ok(print(&(line(&Removed { engine: choice.engine(), removed }) + "\n")));
    }
    Ok(if global.quiet { 0 } else { print(&format!("idle lock files removed: {removed}\n")) })
}
