//! What stands under the options of `--help`: examples, and what no single option can say.

use super::common;
use crate::text::wrap;

/// What is said of every demo.
macro_rules! started {
    () => {
        "\
--url also takes file:auto, postgres:auto, redis:auto, redis+cluster:auto, redis+sentinel:auto,
redlock:auto and zk:auto (zk:auto?nodes=3 for three servers): an engine of the demo's own, on the
loopback, that is gone afterwards. A missing program is named with its package."
    };
}

/// A command line, and what it is for.
pub type Example = (&'static str, &'static str);

const OVERSELL: Example =
    ("lockkeeper demo oversell --workers 2 --stock 1 --orders 2", "Two customers, one piece");
const ON_REDIS: Example =
    ("lockkeeper demo oversell --url redis:auto", "The whole story, on a Redis server of its own");
const VERSION: Example = (
    "lockkeeper demo oversell --url redis:auto --stock postgres:auto --stock 5 --orders 20",
    "The lock on Redis, the stock in PostgreSQL",
);
const CONTENDERS: Example =
    ("lockkeeper demo contenders --threads 3 --hold 100ms", "Three threads, one after the other");

/// The examples of a subcommand; each runs as it stands.
pub fn examples(sub: &str) -> &'static [Example] {
    match sub {
        "run" => &[
            (
                "lockkeeper run nightly-report -n -- ./report.sh",
                "Skip this run while the last one is busy",
            ),
            (
                "lockkeeper run gpu --permits 1/4 -- ./train.sh",
                "Four at once, on all machines together",
            ),
        ],
        "acquire" => &[
            ("lockkeeper acquire deploy/prod --for 2s", "Hold it for a while"),
            ("./hands-on.sh | lockkeeper acquire deploy/prod", "Hold it until the script ends"),
        ],
        "ls" => &[("lockkeeper ls deploy/", "All names that start with deploy/")],
        "status" => &[
            ("lockkeeper status deploy/prod", "Who holds it, who waits, since when"),
            ("lockkeeper status deploy/prod --json", "The same for a program"),
        ],
        "watch" => {
            &[("lockkeeper watch deploy/ --for 2s", "What happens to deploy/… in two seconds")]
        }
        "release" => &[(
            "lockkeeper release --force deploy/prod",
            "Take it from its holder, which sees it as lost",
        )],
        "elect" => &[(
            "lockkeeper elect scheduler -- ./schedule.sh",
            "Of all candidates one runs the command",
        )],
        "permits" => &[("lockkeeper permits gpu 8", "From now on eight permits")],
        "doctor" => &[
            ("lockkeeper doctor", "Which engine is used, and what it promises"),
            (
                "lockkeeper doctor --no-probe --json",
                "The same for a program, without taking a lock",
            ),
            ("lockkeeper doctor --strict", "The same for a check: exit 1 when it warns"),
        ],
        "schema" => &[(
            "lockkeeper schema postgres://lockkeeper@db.internal/app | less",
            "What a database's administrator runs, with the least rights",
        )],
        // Its own parser prints its help, with these lines.
        "check" => &[
            ("lockkeeper check run.lkh", "Judge one recorded history"),
            ("lockkeeper check --classes", "What it can find"),
        ],
        "gc" => &[("lockkeeper gc", "Remove the files of locks that nobody uses")],
        "bench" => &[(
            "lockkeeper bench --only uncontended --seconds 2",
            "One row, in a temporary directory",
        )],
        "torture" => &[
            (
                "lockkeeper torture file:auto --seconds 3",
                "Three seconds of faults on the file engine",
            ),
            ("lockkeeper torture --list-clients", "Locks that are known to be wrong"),
        ],
        "demo" => &[OVERSELL, ON_REDIS, CONTENDERS],
        "demo oversell" => &[OVERSELL, ON_REDIS, VERSION],
        "demo contenders" => &[CONTENDERS],
        "completions" => &[
            ("lockkeeper completions bash --install", "For this user"),
            (
                "lockkeeper completions bash > lockkeeper.bash",
                "Source it, or put it where bash looks",
            ),
        ],
        "man" => &[
            ("lockkeeper man | man -l -", "Read the manual"),
            ("lockkeeper man run | man -l -", "Read about run"),
        ],
        "help" => &[("lockkeeper help run", "The same as lockkeeper run --help")],
        "version" => &[("lockkeeper version --json", "For scripts")],
        "lockkeeper" => &[
            (
                "lockkeeper run nightly-report -n -- ./report.sh",
                "Skip this run while the last one is busy",
            ),
            ("lockkeeper status nightly-report", "Who holds it, who waits, since when"),
            ("lockkeeper doctor", "Which engine is used, and what it promises"),
            ("lockkeeper help run", "All options of run"),
        ],
        _ => &[],
    }
}

/// What is said about a subcommand beside its options.
pub fn more(sub: &str) -> &'static str {
    match sub {
        "run" => RUN,
        "acquire" => ACQUIRE,
        "elect" => ELECT,
        "ls" => LS,
        "watch" => WATCH,
        "demo" | "demo contenders" => started!(),
        "demo oversell" => OVERSELLING,
        "doctor" => DOCTOR,
        "lockkeeper" => common::AFTER_HELP,
        _ => "",
    }
}

/// The end of a subcommand's help.
pub fn end(sub: &str) -> String {
    let line = |(line, what): &Example| format!("  {line}\n      {what}\n");
    let examples: String = examples(sub).iter().map(line).collect();
    let mut end = format!("Examples:\n{examples}");
    let engine = if sub == "doctor" { common::AFTER_HELP } else { "" };
    for more in [more(sub), engine].into_iter().filter(|more| !more.is_empty()) {
        end += &format!("\n{}\n", wrap::unfilled(more));
    }
    end
}

const RUN: &str = "\
Exit: the command's; 75 not obtained; 79 lost; 124 --hold-at-most; 69 engine out
of reach; 64 usage. A machine that stands still stops nothing in time: for that
see LOCKKEEPER_TOKEN in lockkeeper-run(1), or: lockkeeper man run | man -l -";

const ACQUIRE: &str = "\
Holds until stdin closes (a pipe or a terminal: /dev/null or a closed stdin does not count), --for \
    is
over, or INT, TERM or HUP comes. Prints one JSON line when granted and one at the end.";

const DOCTOR: &str = "\
Exit status: 0 a lock can be had here, also where it warns; 1 with --strict and a warning;
69 no lock can be had.";

const ELECT: &str = "\
When the term is lost, the command is stopped and the candidate stands again. When the command \
    ends, the
candidate stands down and exits with the command's code.";

const LS: &str = "\
On a terminal the table is as wide as the terminal, or as COLUMNS says. A column without room \
    moves to a
second line, and … marks a text that is not whole. Elsewhere, and with --json, nothing is \
    shortened.";

const OVERSELLING: &str = concat!(
    started!(),
    "

On redis+cluster, redis+sentinel and redlock there is act 5: the server that granted the lock dies
before another one knows of it. It is played on servers of its own, whatever the URL names.

Where the stock is in PostgreSQL there is act 6: no lock, only the version of the row, beside the
time under the lock with 2, 8 and 32 workers. --stock also takes postgres:auto."
);

const WATCH: &str = "\
On a terminal a live screen shows the holders and the waiters; q or Ctrl-C ends it. Elsewhere, in \
    the
background and with --json, one line is printed for each holder and waiter there is, and then one \
    for each
change.";
