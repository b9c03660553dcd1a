//! A command under a lock, from its start to its end.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use lockkeeper::Claim;

use super::environment::{self, Held, Process, Says, Stack};
use super::words::Words;
use crate::args::run::OnLost;
use crate::choice::Choice;
use crate::engine::{self, Holding};
use crate::failure::Failure;
use crate::json::Report;
use crate::start::Moment;
use crate::supervise::job::{Job, Plan, Start, Status, become_command, signal_name};
use crate::supervise::signals::Signals;
use crate::supervise::{Ended, News, Orders, look_after};
use crate::under::{Under, Why};

/// A command, and what it is to run under.
pub struct Task<'a> {
    pub argv: &'a [OsString],
    pub choice: &'a Choice,
    /// Whether `--url` chose the engine.
    pub by_option: bool,
    pub claim: &'a Claim,
    pub stack: &'a Stack,
    /// Whether the lock's descriptor stays with us.
    pub close: bool,
    pub foreground: bool,
    /// From TERM to KILL, unless the lock that is held says it.
    pub kill_after: Duration,
    pub on_lost: OnLost,
    pub leave_children: bool,
}

impl Task<'_> {
    /// Runs the command until it has ended.
    ///
    /// # Errors
    /// What kept it from being started.
    pub fn run(
        &self,
        holding: Option<&dyn Holding>,
        until: Option<Moment>,
        signals: &mut Signals,
        words: &mut Words,
    ) -> Result<Ended, Failure> {
        let environment = self.variables(holding);
        let inherit = match holding.filter(|_| !self.close) {
            Some(holding) => holding.pass_on()?,
            None => None,
        };
        let start = Start {
            argv: self.argv,
            environment: &environment,
            inherit,
            announce: holding.and_then(Holding::announce),
        };
        let plan = Plan::make(self.foreground);
        let started = signals
            .take_more(plan.own_group)
            .and_then(|()| Job::start(&start, plan, signals.before()));
        let mut job =
            started.map_err(|error| self.not_started(start.announce.is_some(), &error))?;
        let kill_after = holding.and_then(Holding::kill_after).unwrap_or(self.kill_after);
        let orders = Orders {
            kill_after,
            on_lost: self.on_lost,
            until,
            leave_children: self.leave_children,
        };
        let under: &dyn Under = holding.map_or(&Nothing, |h| h as &dyn Under);
        Ok(look_after(&mut job, signals, under, orders, &mut |news| {
            tell(words, self.on_lost, news)
        }))
    }

    /// Becomes the command, which keeps the lock by its descriptor; returns only what kept it from
    /// being executed.
    pub fn become_command(&self, holding: &dyn Holding, signals: &Signals) -> Failure {
        let environment = self.variables(Some(holding));
        let inherit = match holding.pass_on() {
            Ok(inherit) => inherit,
            Err(error) => return error.into(),
        };
        let start = Start { argv: self.argv, environment: &environment, inherit, announce: None };
        Failure::not_started(&self.program(), &become_command(&start, signals.before()))
    }

    fn not_started(&self, announced: bool, error: &std::io::Error) -> Failure {
        if announced && error.kind() == std::io::ErrorKind::BrokenPipe {
            return Failure::internal(
                "its guardian ended before the command was started; nothing ran",
            );
        }
        Failure::not_started(&self.program(), error)
    }

    fn program(&self) -> String {
        self.argv.first().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn variables(&self, holding: Option<&dyn Holding>) -> Vec<(&'static str, Option<OsString>)> {
        let token = holding.and_then(Holding::token);
        // Only now: the lock directory may have been made by this very grant.
        let held = holding.map(|_| {
            Held::new(
                &engine::canonical(self.choice),
                self.claim,
                token,
                Process::of(&self.claim.who),
            )
        });
        let says = Says {
            name: &self.claim.name,
            owner: holding.map(|h| h.hold().unwrap_or(self.claim.id)),
            token,
            engine: self.choice.scheme(),
            url: self.by_option.then(|| self.choice.redacted()),
        };
        environment::variables(&says, self.stack, held)
    }
}

/// Writes into the report what is known of the command's end.
pub fn note(ended: &Ended, report: &mut Report) {
    match ended.status {
        Status::Exited(code) => report.command_exit = u8::try_from(code & 0xff).ok(),
        Status::Killed(signal) => report.command_signal = Some(signal_name(signal)),
        Status::Unknown => {
            report.why =
                Some("how the command ended is not known: another process was told".to_owned())
        }
    }
    if let Some(lost) = ended.lost {
        report.why = Some(lost.as_str().to_owned());
    }
}

/// Nothing to lose: the command runs without a lock.
struct Nothing;

impl Under for Nothing {
    fn lost(&self) -> Option<Why> {
        None
    }

    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn every(&self) -> Option<Duration> {
        None
    }
}

/// Says what happens while the command runs.
fn tell(words: &mut Words, on_lost: OnLost, news: News) {
    match news {
        News::Lost(why) => {
            let then = match on_lost {
                OnLost::Term => "stopping the command",
                OnLost::Kill => "killing the command",
                OnLost::Warn => "the command goes on without it",
            };
            words.lost(why, then);
        }
        News::Warning(caution) => words.caution(&caution),
        News::TimeOver => words.note("--hold-at-most is over; stopping the command"),
        News::CannotEnd => words
            .note("a process of the command's group does not end; the lock is kept until it has"),
    }
}
