//! `lockkeeper-run(1)`: what the help of `run` has no room for.

use clap_mangen::Man;

use super::{EXIT_CODES, SET, Term, examples, extra, roff, terms, with_aliases};
use crate::args::{command, help};

/// The whole page.
///
/// # Errors
/// What writing gives.
pub fn page(out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut whole = command();
    whole.build();
    let Some(run) = whole.find_subcommand("run") else { return Ok(()) };
    let run = with_aliases(run.clone());
    let man = Man::new(run.after_help(None::<&str>)).title("lockkeeper-run").section("1");
    let man = man.manual("User Commands").source(concat!("lockkeeper ", env!("CARGO_PKG_VERSION")));
    man.render_title(out)?;
    man.render_name_section(out)?;
    extra(out, "SYNOPSIS", "");
    for line in SYNOPSIS {
        out.extend(format!("{}\n.br\n", roff(line)).bytes());
    }
    extra(out, "DESCRIPTION", DESCRIPTION);
    man.render_options_section(out)?;
    for (title, text) in SECTIONS {
        extra(out, title, text);
    }
    extra(out, "OPTIONS IN DETAIL", "");
    terms(out, &DETAILS);
    extra(out, "EXIT STATUS", "");
    terms(out, &EXIT_CODES);
    extra(
        out,
        "ENVIRONMENT",
        "Set for the command, or removed where its grant has no value for it:",
    );
    terms(out, &SET);
    extra(out, "EXAMPLES", "");
    examples(out, help::examples("run").iter().chain(&MORE));
    extra(
        out,
        "SEE ALSO",
        "lockkeeper(1): the engine and where its URL comes from, files, other commands; flock(1).",
    );
    Ok(())
}

const SYNOPSIS: [&str; 2] =
    ["lockkeeper run NAME [OPTIONS] -- CMD ARGS…", "lockkeeper run NAME [OPTIONS] -c 'TEXT'"];

const DESCRIPTION: &str = "\
Takes the lock NAME, runs the command, and gives the lock back when the command and all processes \
of its group have ended. The command's input, output and terminal are its own; what lockkeeper \
says goes to stderr. Durations are 2.5 (seconds), 500ms, 2m, 1h30m.";

const SECTIONS: [(&str, &str); 3] = [
    (
        "HOW IT WAITS",
        "\
Without -n or -w it waits for its turn, however long. -w counts from the start, connecting included.
A server that cannot be reached at the start is tried again for 10 s, or for -w, with -n once, and
no longer than --unreachable-after, which is 1 s there at least.
Members of a quorum that have just started say when they count: until then without -w, unless
--unreachable-after is shorter or --on-unreachable run starts the command.
A caller in line waits on through an outage and says so after 10 s; --unreachable-after ends that
wait with 69, or as --on-unreachable says. INT, TERM and HUP end the wait at once, with 128+N.",
    ),
    (
        "THE LEASE AND THE GUARDIAN",
        "\
On the file engine the kernel keeps the lock until the last process that inherited it has ended:
other hosts do not see it, and --ttl changes nothing. On every other engine the lock is a lease. A
guardian, a second lockkeeper process in a session of its own, renews it, also when the first is
killed or stopped, and stops the command before the lease can pass to another: TERM when
--kill-after is left of the deadline, KILL at the deadline. On zookeeper, and with postgres'
layout=session, the session_timeout of the URL is the lease. One that is stopped (Ctrl-Z) while it
waits lets its turn go on to the next after a second, and waits again when it goes on; on file one
that is first in line for readers to end, or for permits, keeps those behind it waiting.",
    ),
    (
        "WHAT NO PROGRAM CAN PROMISE",
        "\
A machine that stands still as a whole stops the guardian, too, and a daemon that left the command's
process group is not found. The fencing token is for these: the command finds it in
LOCKKEEPER_TOKEN, and a resource that refuses a token smaller than the greatest it has seen is safe
whatever happens.",
    ),
];

const MORE: [help::Example; 3] = [
    ("lockkeeper run deploy/prod -w 10m -- ./deploy.sh", "Wait ten minutes at most"),
    ("lockkeeper run config -s -- cat app.conf", "Read beside other readers"),
    ("lockkeeper run db -c './dump.sh | gzip > dump.gz'", "Give the shell a pipeline"),
];

const DETAILS: [Term; 8] = [
    ("-w, --wait D", "0 is -n."),
    (
        "--kill-after D",
        "From TERM to KILL. 5s by default, or a fifth of the ttl or session if that is shorter; \
         more than a third is refused.",
    ),
    (
        "--on-lost term|kill|warn",
        "TERM and after --kill-after KILL; KILL at once; or only a line, and the command goes on.",
    ),
    (
        "--on-unreachable fail|run",
        "Exit 69; or run the command without the lock and say so, for jobs that should rather run \
         twice than not at all. A server that refuses is no such case.",
    ),
    (
        "--hold-at-least D",
        "Counts from the grant; lockkeeper stays that long. For a job that must run once an hour \
         on one of many hosts.",
    ),
    (
        "--hold-at-most D",
        "Counts from the grant. TERM then, KILL after --kill-after, exit 124. For a job that may \
         hang.",
    ),
    (
        "-F, -o",
        "About a lock file's descriptor: the lock lasts as long as somebody has it open. Refused \
         on other engines.",
    ),
    ("--report FILE", "Written whatever happened, as one JSON object; docs/json.md has its keys."),
];
