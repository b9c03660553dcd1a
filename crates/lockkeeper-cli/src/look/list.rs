//! `ls` and `status`.

use lockkeeper::{Name, Warning};

use super::{Opened, all_read, open, table, told};
use crate::args::common::{self, Global};
use crate::args::others::{Ls, Status};
use crate::engine::OF_SERVERS;
use crate::failure::Failure;
use crate::json::{EntryJson, Event, line};
use crate::out::print;
use crate::text::shown;
use crate::text::wrap::{self, terminal_width};

/// Shows which names are held or waited for.
///
/// # Errors
/// What the engine says.
pub fn ls(global: &Global, args: &Ls) -> Result<u8, Failure> {
    let opened = open(global)?;
    let (told, missing) = told(opened.locks.list(&args.prefix))?;
    let (entries, mut unreadable) = opened.sorted_out(told);
    unreadable.extend(missing);
    let text = if global.json {
        entries.iter().map(|e| line(&EntryJson::new(e, opened.engine)) + "\n").collect()
    } else {
        if global.verbose {
            eprintln!("lockkeeper: {}", opened.says());
        }
        if entries.is_empty() && unreadable.is_empty() && !global.quiet {
            eprintln!("lockkeeper: nobody holds or waits for anything here ({})", opened.says());
        }
        // Without an entry nothing is on stdout: `ls | wc -l` says how many there are.
        if entries.is_empty() {
            String::new()
        } else {
            lines(&table::table(&table::rows(&entries), terminal_width()))
        }
    };
    match print(&text) {
        0 => all_read(unreadable, global).map(|()| 0),
        failed => Ok(failed),
    }
}

fn lines(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

/// Shows who holds a name and who waits for it.
///
/// # Errors
/// What the engine says.
pub fn status(global: &Global, args: &Status) -> Result<u8, Failure> {
    let name = common::name(&args.name)?;
    let opened = open(global)?;
    let (entries, unreadable) = opened.about(&name)?;
    let mut warnings = opened.locks.describe().warnings;
    warnings.retain(|warning| OF_SERVERS.contains(&warning.id));
    warnings.extend(beside(&opened, &name, global));
    if global.json && !global.quiet {
        for Warning { id, text } in &warnings {
            eprintln!("{}", line(&Event::Warning { name: name.as_str(), id, text }));
        }
    }
    let text = if global.json {
        entries.iter().map(|e| line(&EntryJson::new(e, opened.engine)) + "\n").collect()
    } else {
        let mut text: String = entries.iter().map(|e| table::story(e, opened.engine)).collect();
        for warning in &warnings {
            text = text + "  warning: " + &shown(&warning.text) + "\n";
        }
        if !global.quiet {
            text = text + &opened.says() + "\n";
        }
        wrap::told(&text)
    };
    let is_held = entries.iter().any(|e| !e.holders.is_empty());
    match print(&text) {
        0 => all_read(unreadable, global).map(|()| u8::from(args.exit_code && !is_held)),
        failed => Ok(failed),
    }
}

/// The locks of other layouts under a name. What was read of the name stays true where that look
/// fails.
fn beside(opened: &Opened, name: &Name, global: &Global) -> Vec<Warning> {
    opened.locks.other_layouts(name).unwrap_or_else(|error| {
        if !global.json && !global.quiet {
            let why = shown(&error.to_string());
            eprintln!("lockkeeper: locks of other layouts were not looked for: {why}");
        }
        Vec::new()
    })
}
