//! `man` and `version`: from the same definition as the parser.

mod run;

use clap::Command;
use clap_mangen::Man;
use lockkeeper::engine::Registration;

use crate::args::common::Global;
use crate::args::{command, common, help};
use crate::failure::Failure;
use crate::json::{Build, line};
use crate::out::print;

/// Prints which build this is.
pub fn version(global: &Global) -> u8 {
    let build = Build {
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("LOCKKEEPER_COMMIT"),
        target: env!("LOCKKEEPER_TARGET"),
        engines: Registration::all().iter().filter_map(|e| e.schemes.first().copied()).collect(),
    };
    if global.json {
        return print(&(line(&build) + "\n"));
    }
    let commit = build.commit.map(|commit| format!("commit   {commit}\n")).unwrap_or_default();
    let engines = build.engines.join(", ");
    print(&format!(
        "lockkeeper {}\n{commit}target   {}\nengines  {engines}\n",
        build.version, build.target
    ))
}

/// Prints the manual page: one page with a section for every subcommand, or that of `run`.
///
/// # Errors
/// None that is known: it writes into memory.
pub fn man(of_run: bool) -> Result<u8, Failure> {
    let mut out = Vec::new();
    let made = if of_run { run::page(&mut out) } else { page(&mut out) };
    made.map_err(|e| Failure::internal(format!("the manual page cannot be written: {e}")))?;
    Ok(print(&String::from_utf8_lossy(&out)))
}

fn page(out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut whole = command();
    whole.build();
    let man = Man::new(whole.clone().after_help(None::<&str>)).section("1").manual("User Commands");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    for sub in whole.get_subcommands() {
        section(out, sub)?;
        // Those of `demo`.
        for inner in sub.get_subcommands().filter(|inner| inner.get_name() != "help") {
            section(out, inner)?;
        }
    }
    extra(out, "ENGINE", common::AFTER_HELP);
    extra(out, "EXIT STATUS", EXIT_STATUS);
    terms(out, &EXIT_CODES);
    extra(out, "ENVIRONMENT", "lockkeeper reads:");
    terms(out, &READ);
    out.extend(
        b".PP\nrun and elect set for the command, or remove what has no value for its grant:\n",
    );
    terms(out, &SET);
    extra(out, "FILES", "");
    terms(out, &FILES);
    extra(out, "EXAMPLES", "");
    let own = |sub: &Command| help::examples(sub.get_name()).iter();
    examples(out, whole.get_subcommands().flat_map(own));
    man.render_version_section(out)
}

/// A term and what it means.
type Term = (&'static str, &'static str);

const EXIT_STATUS: &str =
    "Of run and elect; of other subcommands: 0 done, 1 the answer is no, 64, 69, 125 as here.";

const EXIT_CODES: [Term; 7] = [
    (
        "the command's own",
        "Unchanged, also when the release afterwards was late or unknown; \
         128+N when signal N killed it.",
    ),
    ("75", "Not obtained (-n, -w). -E changes this and nothing else."),
    ("79", "Lost while the command ran, and the command was stopped. --lost-exit-code changes it."),
    ("124", "--hold-at-most was over."),
    (
        "64",
        "The command line cannot be right: an option, the URL, the name, another limit than the \
         stored one, --require not met, or it would deadlock. Nothing ran.",
    ),
    (
        "69",
        "The engine cannot be reached in time, or refused the request: password, ACL, read-only, \
         directory, disk, unreadable record.",
    ),
    (
        "125, 126, 127",
        "lockkeeper itself failed; the command is not executable; \
         it was not found. The lock is given back.",
    ),
];

const READ: [Term; 7] = [
    ("LOCKKEEPER_URL", "The engine, where no --url is given."),
    ("LOCKKEEPER_REQUIRE", "What the engine must promise, beside --require: hosts, timed, fenced."),
    (
        "LOCKKEEPER_DIR",
        "The directory of the lock files, where no engine is chosen: an absolute path.",
    ),
    ("XDG_STATE_HOME, STATE_DIRECTORY", "Where that directory is without LOCKKEEPER_DIR."),
    ("XDG_CONFIG_HOME", "Where the user's configuration is, instead of ~/.config."),
    ("HOME", "The home of both; without it the password database is asked."),
    ("SHELL", "What run -c gives its text to; else /bin/sh."),
];

const SET: [Term; 5] = [
    ("LOCKKEEPER_NAME", "The lock's name."),
    ("LOCKKEEPER_TOKEN", "The fencing token, a number."),
    ("LOCKKEEPER_OWNER", "The id of the owner that holds it."),
    ("LOCKKEEPER_ENGINE", "The engine's scheme, such as file or redis."),
    ("LOCKKEEPER_STACK", "The locks of the ancestors and this one, as JSON."),
];

const FILES: [Term; 3] = [
    ("~/.config/lockkeeper/config.toml", "The user's choice: url = \"…\" and require = \"…\"."),
    ("/etc/lockkeeper/config.toml", "The machine's choice, the same two lines."),
    (
        "~/.local/state/lockkeeper/",
        "The lock files, unless LOCKKEEPER_DIR or XDG_STATE_HOME names another directory.",
    ),
];

/// The same with the other names of options in their texts: the page's maker leaves them out.
fn with_aliases(command: Command) -> Command {
    command.mut_args(|arg| {
        let short = arg.get_visible_short_aliases().unwrap_or_default();
        let short = short.into_iter().map(|name| format!("-{name}"));
        let long = arg.get_visible_aliases().unwrap_or_default();
        let names: Vec<_> = short.chain(long.into_iter().map(|name| format!("--{name}"))).collect();
        if names.is_empty() {
            return arg;
        }
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help} [aliases: {}]", names.join(", ")))
    })
}

/// A subcommand: its headings one level down.
fn section(out: &mut Vec<u8>, sub: &Command) -> std::io::Result<()> {
    let shared = |id: &clap::Id| {
        ["url", "require", "quiet", "verbose", "json", "help", "version"].contains(&id.as_str())
    };
    let mut own = with_aliases(sub.clone()).disable_help_flag(true);
    let hidden: Vec<_> = own.get_arguments().map(|a| a.get_id().clone()).filter(shared).collect();
    for id in hidden {
        own = own.mut_arg(id, |arg| arg.hide(true));
    }
    let full = sub.get_bin_name().unwrap_or_default().to_owned();
    let words = full.strip_prefix("lockkeeper ").unwrap_or(sub.get_name());
    let man = Man::new(own.after_help(None::<&str>));
    let mut text = Vec::new();
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if words == "run" {
        text.extend(b".PP\nIts options, and all about it: lockkeeper\\-run(1).\n");
    } else {
        man.render_options_section(&mut text)?;
    }
    let text = String::from_utf8_lossy(&text).replace(".SH ", ".SS ");
    out.extend(format!(".SH \"LOCKKEEPER {}\"\n", words.to_uppercase()).bytes());
    out.extend(text.bytes());
    let more = if words == "run" { "" } else { help::more(words) };
    if !more.is_empty() {
        out.extend(format!(".PP\n{}\n", roff(more)).bytes());
    }
    let own = help::examples(words);
    if !own.is_empty() {
        out.extend(b".SS EXAMPLES\n");
        examples(out, own);
    }
    Ok(())
}

/// Terms with their meanings.
fn terms(out: &mut Vec<u8>, all: &[Term]) {
    for (term, meaning) in all {
        out.extend(format!(".TP\n\\fB{}\\fR\n{}\n", roff(term), roff(meaning)).bytes());
    }
}

/// Lines, each under what it is for.
fn examples<'a>(out: &mut Vec<u8>, all: impl IntoIterator<Item = &'a help::Example>) {
    for (line, what) in all {
        out.extend(
            format!(".PP\n{}:\n.PP\n.nf\n.RS\n{}\n.RE\n.fi\n", roff(what), roff(line)).bytes(),
        );
    }
}

fn extra(out: &mut Vec<u8>, title: &str, text: &str) {
    out.extend(format!(".SH \"{title}\"\n{}\n", roff(text)).bytes());
}

/// Text that roff takes as text: no line begins with a dot or a quote, and a backslash is one.
fn roff(text: &str) -> String {
    let line = |line: &str| {
        let line = line.replace('\\', "\\\\").replace('-', "\\-").replace('\'', "\\(aq");
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    };
    text.lines()
        .map(line)
        .map(|l| if l.is_empty() { ".PP".to_owned() } else { l })
        .collect::<Vec<_>>()
        .join("\n")
}
