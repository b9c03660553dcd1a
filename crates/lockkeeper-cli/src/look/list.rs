//! `ls` and `status`.

use std::io::stdout;

use super::{open, table};
use crate::args::common::{self, Global};
use crate::args::others::{Ls, Status};
use crate::failure::Failure;
use crate::json::{EntryJson, line};
use crate::print;
use crate::supervise::terminal::width;

/// Shows which names are held or waited for.
///
/// # Errors
/// What the engine says.
pub fn ls(global: &Global, args: &Ls) -> Result<u8, Failure> {
    let opened = open(global)?;
    let entries = opened.locks.list(&args.prefix)?;
    if global.json {
        let lines: String = entries.iter().map(|e| line(&EntryJson::new(e, opened.engine)) + "\n").collect();
        return Ok(print(&lines));
    }
    if global.verbose {
        eprintln!("lockkeeper: {}", opened.says());
    }
    if entries.is_empty() {
        // Nothing on stdout: `ls | wc -l` says how many there are.
        if !global.quiet {
            eprintln!("lockkeeper: nobody holds or waits for anything here ({})", opened.says());
        }
        return Ok(0);
    }
    Ok(print(&table::table(&table::rows(&entries), width(stdout()))))
}

/// Shows who holds a name and who waits for it.
///
/// # Errors
/// What the engine says.
pub fn status(global: &Global, args: &Status) -> Result<u8, Failure> {
    let name = common::name(&args.name)?;
    let opened = open(global)?;
    let entries = opened.about(&name)?;
    let text = if global.json {
        entries.iter().map(|e| line(&EntryJson::new(e, opened.engine)) + "\n").collect()
    } else {
        let mut text: String = entries.iter().map(|e| table::story(e, opened.engine)).collect();
        if !global.quiet {
            text = text + &opened.says() + "\n";
        }
        text
    };
    let is_held = entries.iter().any(|e| !e.holders.is_empty());
    match print(&text) {
        0 => Ok(u8::from(args.exit_code && !is_held)),
        failed => Ok(failed),
    }
}
