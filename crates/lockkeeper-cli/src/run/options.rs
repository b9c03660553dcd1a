//! The options of `run` and its kin, checked against each other.

use std::ffi::OsString;
use std::time::Duration;

use lockkeeper::{Mode, Name};

use crate::args::common::{self, Lock};
use crate::args::run::{Args, Stop};
use crate::args::suggest;
use crate::failure::Failure;
use crate::kill_after::{KillAfter, Lasts};
use crate::text::spoken;

const TTL_DEFAULT: Duration = Duration::from_secs(30);
const TTL_MIN: Duration = Duration::from_millis(200);
const TTL_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The longest value that is stored with a hold (R13).
const LABEL_MAX: usize = 1_024;

/// What is asked for, checked.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub name: Name,
    pub mode: Mode,
    /// How long to wait: zero not at all, `None` for ever.
    pub patience: Option<Duration>,
    /// How long the engine may be silent while we stand in line; `None` for ever.
    pub unreachable_after: Option<Duration>,
    pub ttl: Duration,
    pub renew: bool,
    pub label: Option<String>,
    pub conflict_exit_code: u8,
}

impl Wanted {
    /// Checks a name and the options about the lock; `ttl` is what the URL says, if it says
    /// anything.
    ///
    /// # Errors
    /// What cannot be right.
    pub fn check(name: &OsString, lock: &Lock, ttl: Option<Duration>) -> Result<Self, Failure> {
        let name = common::name(name)?;
        let (said, ttl) =
            if lock.ttl.is_some() { ("--ttl", lock.ttl) } else { ("the URL's ttl", ttl) };
        let ttl = ttl.unwrap_or(TTL_DEFAULT);
        if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
            return Err(Failure::usage(format!(
                "{said} {} is out of range: a lease lasts 200ms to 24h",
                spoken(ttl)
            )));
        }
        if lock.label.as_ref().is_some_and(|label| label.len() > LABEL_MAX || label.contains('\0'))
        {
            return Err(Failure::usage(format!(
                "--label is text of at most {LABEL_MAX} bytes: shorten it"
            )));
        }
        Ok(Self {
            mode: lock.mode(),
            patience: lock.patience(),
            unreachable_after: lock.unreachable_after,
            renew: !lock.no_renew,
            label: lock.label.clone(),
            conflict_exit_code: lock.conflict_exit_code,
            name,
            ttl,
        })
    }
}

/// The command to run: what stands after `--`, or a shell with a text.
///
/// # Errors
/// When there is none, or both.
pub fn argv(argv: &[OsString], text: Option<&OsString>) -> Result<Vec<OsString>, Failure> {
    match (argv, text) {
        ([], None) => Err(Failure::usage(format!(
            "the command is missing: {}",
            suggest::with_more("-- CMD ARGS…")
        ))),
        ([], Some(text)) => {
            let shell = std::env::var_os("SHELL")
                .filter(|s| !s.is_empty())
                .unwrap_or_else(|| "/bin/sh".into());
            Ok(vec![shell, "-c".into(), text.clone()])
        }
        (_, Some(_)) => {
            Err(Failure::usage("-c and a command after -- exclude each other: leave one out"))
        }
        (argv, None) => Ok(argv.to_vec()),
    }
}

/// From TERM to KILL, as far as the URL and the options say it; a session that is shorter than it
/// was asked for is known only when the lock is held.
///
/// # Errors
/// When the lease could pass before the command is gone.
pub fn kill_after(stop: &Stop, lasts: Lasts) -> Result<KillAfter, Failure> {
    let kill_after = KillAfter(stop.kill_after);
    kill_after.of(lasts).map_err(Failure::usage)?;
    Ok(kill_after)
}

/// Refuses what nobody is left to do after we became the command.
///
/// # Errors
/// The first such option.
pub fn check_no_fork(args: &Args) -> Result<(), Failure> {
    let given = [
        ("-o", args.close),
        ("--report", args.report.is_some()),
        ("--hold-at-least", args.hold_at_least.is_some()),
        ("--hold-at-most", args.hold_at_most.is_some()),
        ("--kill-after", args.stop.kill_after.is_some()),
        ("--leave-children", args.stop.leave_children),
    ];
    match given.into_iter().find(|(_, given)| args.no_fork && *given) {
        Some((option, _)) => Err(Failure::usage(format!(
            "-F and {option} exclude each other: with -F lockkeeper becomes the command, and the \
             lock lasts as long as a process has its descriptor; leave one out"
        ))),
        None => Ok(()),
    }
}
