//! `completions` and `man`: from the same definition as the parser.

use clap::Command;
use clap_mangen::Man;

use crate::args::others::Completions;
use crate::args::{command, common};
use crate::failure::Failure;
use crate::out::print;

/// Prints a shell's completions.
pub fn completions(args: &Completions) -> u8 {
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "lockkeeper", &mut out);
    print(&String::from_utf8_lossy(&out))
}

/// Prints the manual page: one page with a section for every subcommand.
///
/// # Errors
/// None that is known: it writes into memory.
pub fn man() -> Result<u8, Failure> {
    let mut out = Vec::new();
    page(&mut out).map_err(|e| Failure::internal(format!("the manual page cannot be written: {e}")))?;
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
    }
    extra(out, "ENGINE", common::AFTER_HELP);
    extra(out, "EXIT STATUS", EXIT_STATUS);
    extra(out, "ENVIRONMENT", ENVIRONMENT);
    extra(out, "FILES", "~/.config/lockkeeper/config.toml, /etc/lockkeeper/config.toml: url = \"…\" and require = \"…\".");
    man.render_version_section(out)
}

const EXIT_STATUS: &str = "\
run and elect: the command's own, 128+N when signal N killed it; 75 not obtained; 79 lost and stopped; 124 --hold-at-most was over; \
64 the command line cannot be right; 69 the engine cannot be reached or refused us; 125 our own failure; 126 not executable; \
127 not found. Others: 0 done, 1 the answer is no, 64, 69, 125 as above.";

const ENVIRONMENT: &str = "\
Read: LOCKKEEPER_URL, LOCKKEEPER_REQUIRE, LOCKKEEPER_DIR, XDG_STATE_HOME, XDG_CONFIG_HOME, HOME, STATE_DIRECTORY. Set for the \
command: LOCKKEEPER_NAME, LOCKKEEPER_TOKEN, LOCKKEEPER_OWNER, LOCKKEEPER_ENGINE, LOCKKEEPER_STACK.";

/// A subcommand: its headings one level down.
fn section(out: &mut Vec<u8>, sub: &Command) -> std::io::Result<()> {
    let shared = |id: &clap::Id| ["url", "require", "quiet", "verbose", "json", "help", "version"].contains(&id.as_str());
    let mut own = sub.clone().disable_help_flag(true);
    let hidden: Vec<_> = own.get_arguments().map(|a| a.get_id().clone()).filter(shared).collect();
    for id in hidden {
        own = own.mut_arg(id, |arg| arg.hide(true));
    }
    let more = own.get_after_help().map(ToString::to_string);
    let man = Man::new(own.after_help(None::<&str>));
    let mut text = Vec::new();
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    let text = String::from_utf8_lossy(&text).replace(".SH ", ".SS ");
    out.extend(format!(".SH \"LOCKKEEPER {}\"\n", sub.get_name().to_uppercase()).bytes());
    out.extend(text.bytes());
    if let Some(more) = more {
        out.extend(format!(".PP\n{}\n", roff(&more)).bytes());
    }
    Ok(())
}

fn extra(out: &mut Vec<u8>, title: &str, text: &str) {
    out.extend(format!(".SH \"{title}\"\n{}\n", roff(text)).bytes());
}

/// Text that roff takes as text: no line begins with a dot or a quote, and a backslash is one.
fn roff(text: &str) -> String {
    let line = |line: &str| {
        let line = line.replace('\\', "\\\\").replace('-', "\\-");
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    };
    text.lines().map(line).map(|l| if l.is_empty() { ".PP".to_owned() } else { l }).collect::<Vec<_>>().join("\n")
}
