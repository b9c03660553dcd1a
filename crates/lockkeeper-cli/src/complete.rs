//! Completions of shells: the scripts, where they are installed, and the names that they offer.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::{Arg, ArgAction, Command};
use clap_complete::Shell;

use crate::args::command;
use crate::args::common::Global;
use crate::args::others::Completions;
use crate::choice::Choice;
use crate::failure::Failure;
use crate::look;
use crate::out::print;

/// What a script calls lockkeeper with. The line up to the cursor is on stdin: the arguments of a
/// process are everybody's to read, and a URL may have a password.
const WORD: &str = "__complete";
/// More than anybody types.
const LINE_MAX: u64 = 64 * 1024;
/// For how long a person at a prompt waits for names.
const PATIENCE: Duration = Duration::from_millis(200);

/// Prints a shell's script, or installs it.
///
/// # Errors
/// It cannot be installed there, or not for this shell.
pub fn completions(args: &Completions) -> Result<u8, Failure> {
    let script = script(args.shell);
    if !args.install {
        return Ok(print(&script));
    }
    let (place, remark) = place(args.shell)?;
    let fail = |e: std::io::Error| {
        Failure::internal(format!("{} cannot be written: {e}", place.display()))
    };
    fs::create_dir_all(place.parent().unwrap_or(&place)).map_err(fail)?;
    fs::write(&place, script).map_err(fail)?;
    Ok(print(&format!("{}\n{remark}", place.display())))
}

/// Where a shell looks for a user's own, and what is left to do.
fn place(shell: Shell) -> Result<(PathBuf, &'static str), Failure> {
    let absolute = |name: &str| {
        std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute())
    };
    let home = || {
        absolute("HOME").ok_or_else(|| {
            Failure::usage("--install needs HOME; without it print the script and place it")
        })
    };
    let under = |variable: &str, usual: &str, path: &str| {
        let folder = absolute(variable).map_or_else(|| home().map(|h| h.join(usual)), Ok)?;
        Ok::<_, Failure>(folder.join(path))
    };
    match shell {
        Shell::Bash => Ok((
            under("XDG_DATA_HOME", ".local/share", "bash-completion/completions/lockkeeper")?,
            "Shells that start from now on have it, where bash-completion is installed.\n",
        )),
        Shell::Fish => Ok((
            under("XDG_CONFIG_HOME", ".config", "fish/completions/lockkeeper.fish")?,
            "Shells that start from now on have it.\n",
        )),
        Shell::Zsh => Ok((
            home()?.join(".zfunc/_lockkeeper"),
            "Shells that start from now on have it, with this in ~/.zshrc:\n    \
             fpath=(~/.zfunc $fpath); autoload -U compinit; compinit\n",
        )),
        other => Err(Failure::usage(format!(
            "--install knows bash, fish and zsh; print the script: lockkeeper completions {other}"
        ))),
    }
}

/// What clap makes, with names of locks where a name is wanted.
fn script(shell: Shell) -> String {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut command(), "lockkeeper", &mut out);
    let script = String::from_utf8_lossy(&out).into_owned();
    match shell {
        Shell::Bash => {
            script.replace("complete -F _lockkeeper ", "complete -F _lockkeeper_named ") + BASH
        }
        Shell::Fish => script + FISH,
        Shell::Zsh => zsh(&script),
        _ => script,
    }
}

const BASH: &str = include_str!("complete/names.bash");
const FISH: &str = include_str!("complete/names.fish");
const ZSH: &str = include_str!("complete/names.zsh");

const ZSH_LINE: &str = r#"_lockkeeper() {
    local -a _lockkeeper_line=("${(@)words[1,CURRENT]}")"#;

/// The arguments of names are completed by a function of ours, which stands before what is run; a
/// command as zsh does it by itself.
fn zsh(script: &str) -> String {
    let line = |line: &str| {
        if [":name -- ", "::prefix -- "].iter().any(|one| line.contains(one)) {
            line.replace(":_default'", ":_lockkeeper_names'")
        } else if line.contains("'*::argv -- ") {
            line.replace(":_default'", ":_lockkeeper_command'")
        } else {
            line.to_owned()
        }
    };
    let lines: Vec<String> = script.lines().map(line).collect();
    let (first, rest) = lines.split_first().map_or(("", [].as_slice()), |(one, more)| (one, more));
    // Where a name is completed, zsh has cut the line to the subcommand.
    let rest = rest.join("\n").replacen("_lockkeeper() {", ZSH_LINE, 1);
    format!("{first}\n{ZSH}{rest}\n")
}

/// Whether a shell asks for names: prints them, or nothing.
pub fn asked(line: &[OsString]) -> Option<u8> {
    if !matches!(line, [_, word] if word == WORD) {
        return None;
    }
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        // Whoever waited too long has gone.
        _ = tell.send(typed().as_deref().and_then(wanted).as_ref().and_then(names));
    });
    let names = told.recv_timeout(PATIENCE).ok().flatten().unwrap_or_default();
    Some(print(&names.iter().flat_map(|name| [name, "\n"]).collect::<String>()))
}

/// The line without the end that a shell gives it.
fn typed() -> Option<String> {
    let mut line = String::new();
    std::io::stdin().take(LINE_MAX).read_to_string(&mut line).ok()?;
    Some(line.strip_suffix('\n').map_or_else(|| line.clone(), str::to_owned))
}

fn names(wanted: &Wanted) -> Option<Vec<String>> {
    let global = Global { url: wanted.url.clone(), quiet: true, ..Global::default() };
    let choice = Choice::find(&global).ok()?;
    // Whoever only types makes no directory, and no table.
    if let Some(dir) = crate::engine::canonical(&choice).strip_prefix("file://")
        && !Path::new(dir).is_dir()
    {
        return None;
    }
    let opened = look::open_as_it_is(choice).ok()?;
    let (entries, _) = look::told(opened.locks.list(&wanted.prefix)).ok()?;
    let names = entries.iter().map(|entry| entry.name.as_str().to_owned());
    let mut names: Vec<String> = names.filter(|name| !name.contains(char::is_control)).collect();
    names.sort();
    names.dedup();
    Some(names)
}

/// What names begin with, and the engine that the line names.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    prefix: String,
    url: Option<String>,
}

/// What a line wants at its end; nothing where that is no name of a lock.
fn wanted(line: &str) -> Option<Wanted> {
    let mut words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let last = if line.ends_with(char::is_whitespace) { "" } else { words.pop()? };
    if last.starts_with('-') {
        return None;
    }
    let root = command();
    let (mut at, mut url, mut sub) = (words.into_iter(), None, None::<&Command>);
    while let Some(word) = at.next() {
        if word == "--" {
            return None;
        }
        if let Some(given) = word.strip_prefix("--url=") {
            url = Some(given);
        } else if word.starts_with('-') {
            let arg = option(&root, word).or_else(|| sub.and_then(|sub| option(sub, word)));
            if arg.is_some_and(takes_value) && !word.contains('=') {
                // The value may be what is being typed.
                let value = at.next()?;
                if word == "--url" {
                    url = Some(value);
                }
            }
        } else if sub.is_none() {
            sub = Some(root.find_subcommand(word)?);
        } else {
            // The name stands there already.
            return None;
        }
    }
    let first = sub?.get_positionals().next()?;
    // What the shell would put there is not known: another engine, or half a password.
    if url.is_some_and(|url| url.contains(['$', '`'])) {
        return None;
    }
    let unquoted = |text: &str| text.trim_matches(['\'', '"']).to_owned();
    ["name", "prefix"]
        .contains(&first.get_id().as_str())
        .then(|| Wanted { prefix: unquoted(last), url: url.map(unquoted) })
}

/// The option that a word gives. Of several letters in one word the last one takes the value.
fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let mut options = command.get_arguments();
    if let Some(long) = word.strip_prefix("--") {
        let long = long.split('=').next().unwrap_or_default();
        return options.find(|arg| {
            arg.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long))
        });
    }
    let letter = word.chars().next_back()?;
    options.find(|arg| {
        arg.get_short_and_visible_aliases().is_some_and(|letters| letters.contains(&letter))
    })
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(line: &str) -> Option<String> {
        wanted(line).map(|wanted| wanted.prefix)
    }

    #[test]
    fn a_name_is_wanted_where_one_can_stand_and_nowhere_else() {
        for line in ["lockkeeper run ", "lockkeeper run -n ", "lockkeeper run -w 3s -s ", "lk ls "]
        {
            assert_eq!(prefix(line).as_deref(), Some(""), "{line}");
        }
        assert_eq!(prefix("lockkeeper status shop/st").as_deref(), Some("shop/st"));
        assert_eq!(prefix("lockkeeper --json release --force a").as_deref(), Some("a"));
        for line in [
            "lockkeeper ",
            "lockkeeper ru",
            "lockkeeper run -",
            "lockkeeper run -w ",
            "lockkeeper run a ",
            "lockkeeper run -- ",
            "lockkeeper doctor ",
            "lockkeeper nothing ",
            "lockkeeper run --url ",
            "lockkeeper run --url redis://:$PW@h ",
            "lockkeeper --url=`engine` run ",
        ] {
            assert_eq!(prefix(line), None, "{line}");
        }
    }

    #[test]
    fn the_engine_is_the_one_that_the_line_names() {
        for line in
            ["lk run --url redis://h ", "lk --url=redis://h run ", "lk run --url 'redis://h' "]
        {
            let wanted = wanted(line).unwrap();
            assert_eq!(wanted.url.as_deref(), Some("redis://h"), "{line}");
        }
    }

    #[test]
    fn zsh_asks_for_names_where_it_would_offer_files() {
        let script = zsh("#compdef lockkeeper\n':name -- A, B:_default' \\\n':file -- C:_default'");
        assert!(script.starts_with("#compdef lockkeeper\n"), "{script}");
        assert!(script.contains("':name -- A, B:_lockkeeper_names' \\\n':file -- C:_default'"));
        let script = super::script(Shell::Zsh);
        assert!(script.matches(":_lockkeeper_names'").count() >= 8);
        assert_eq!(script.matches(":_lockkeeper_command'").count(), 2, "of `run` and of `elect`");
    }
}
