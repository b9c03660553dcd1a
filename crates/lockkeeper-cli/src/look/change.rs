//! `release --force`, `permits` and `gc`: what an operator changes.

use std::io::{IsTerminal as _, Write as _, stderr, stdin};

use lockkeeper::{Entry, ErrorKind, Holder, Kind};
use serde::Serialize;

use super::{all_read, open};
use crate::args::common::{self, Global};
use crate::args::others::{Gc, Permits, Release};
use crate::choice::Choice;
use crate::engine;
use crate::failure::Failure;
use crate::json::{EntryJson, HolderJson, line};
use crate::out::print;
use crate::run::words::who;
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
    let quoted = crate::text::quoted(&args.name);
    if !args.force {
        let message =
            format!("only its holder releases a lock, and it may still be at work: to take it away, lockkeeper release --force {quoted}");
        return Err(Failure::usage(message).name(name.as_str()));
    }
    let opened = open(global)?;
    let (entries, unreadable) = opened.about(&name)?;
    all_read(unreadable, global)?;
    let held: Vec<Entry> = entries.into_iter().filter(|e| !e.holders.is_empty()).collect();
    if held.is_empty() {
        return Err(Failure::no("nobody holds it").name(name.as_str()));
    }
    let mut all_taken = true;
    for entry in held {
        let whose = entry.holders.iter().map(who).collect::<Vec<_>>().join("; ");
        if !agreed(&entry, &whose) {
            all_taken = false;
            continue;
        }
        let taken = match opened.locks.force_release(entry.kind, &name) {
            Ok(taken) => taken,
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Refused) => {
                return Err(Failure::no(format!("{}; held by {whose}", error.message())).name(name.as_str()));
            }
            Err(error) => return Err(error.into()),
        };
        all_taken &= taken;
        let holders = entry.holders.iter().map(<HolderJson as From<&Holder>>::from).collect();
        if global.json {
            let object = Taken { name: name.as_str(), kind: entry.kind.as_str(), engine: opened.engine, taken, holders };
            print(&(line(&object) + "\n"));
        } else if taken {
            print(&format!("{} ({}): taken from {whose}\n", shown(name.as_str()), entry.kind));
        } else {
            print(&format!("{} ({}): given back meanwhile by {whose}\n", shown(name.as_str()), entry.kind));
        }
    }
    Ok(u8::from(!all_taken))
}

/// Asks on a terminal; without one the option is the answer.
fn agreed(entry: &Entry, whose: &str) -> bool {
    if !stdin().is_terminal() || !stderr().is_terminal() {
        return true;
    }
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
    Ok(if global.quiet { 0 } else { print(&format!("{}: {} permits\n", shown(name.as_str()), args.limit)) })
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
