//! `lockkeeper elect`: run a command while leader.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Kind, Mode};

use crate::args::common::Global;
use crate::args::elect::Args;
use crate::args::run::OnLost;
use crate::choice::Choice;
use crate::engine;
use crate::failure::Failure;
use crate::guardian::Care;
use crate::json::Report;
use crate::kill_after::KillAfter;
use crate::run::environment::Stack;
use crate::run::obtain::{Ask, Obtained, REACH};
use crate::run::options::{self, Wanted};
use crate::run::task::{Task, note};
use crate::run::words::{Out, Words};
use crate::run::{Outcome, claim, failed, held_above, host, settle, stay};
use crate::start::{began, moment};
use crate::supervise::Stopped;
use crate::supervise::signals::{Signals, die_of};
use crate::text::millis;

/// Between two starts of the command there is at least so long: one that fails at once must not
/// spin.
const BETWEEN: Duration = Duration::from_secs(1);

/// Runs a command while leader; answers the exit code.
///
/// # Errors
/// A command line that cannot be right.
pub fn elect(global: &Global, args: &Args) -> Result<u8, Failure> {
    let name = args.name.to_string_lossy().into_owned();
    let argv = options::argv(&args.argv, None)?;
    let (choice, lock) = (Choice::make(global)?, args.lock());
    let wanted = Wanted::check(&args.name, &lock, engine::ttl(&choice)?)?;
    let lasts = engine::lasts(&choice, wanted.ttl)?;
    let kill_after = options::kill_after(&args.stop, lasts)?;
    let stops_within = kill_after.of(lasts).map_err(Failure::usage)?;
    engine::check(&choice, None)?;
    let id: Arc<str> =
        args.id.clone().unwrap_or_else(|| format!("{}:{}", host(), std::process::id())).into();
    let mut words =
        Words::new(&name, global.quiet, global.verbose, global.json.then_some(Out::Stderr));
    let stack = Stack::read();
    let (canonical, mode) = (engine::canonical(&choice), Mode::Exclusive);
    if let Err(error) = stack.check(&canonical, Kind::Election, &wanted.name, mode, wanted.patience)
    {
        let mut report = Report::new(name, Duration::ZERO);
        report.engine = Some(choice.engine().to_owned());
        let failure = held_above(error, &wanted, &mut report);
        return Ok(settle(Err(failure), &mut report, &mut words, global).code);
    }
    words.engine(&choice);
    words.detail(|| format!("engine {} ({})", choice.redacted(), choice.source));
    let given = || engine::idle_options(&choice, &lock, false);
    words.remark(|| engine::remarks(&wanted.name, given()));
    let mut signals = Signals::take()
        .map_err(|e| Failure::internal(format!("signals cannot be waited for: {e}")))?;
    let mut first = true;
    loop {
        let mut report = Report::new(name.clone(), Duration::ZERO);
        report.engine = Some(choice.engine().to_owned());
        let claim = claim(&wanted, Kind::Election, argv.first(), Some(Arc::clone(&id)));
        let task = Task {
            argv: &argv,
            choice: &choice,
            by_option: global.url.is_some(),
            claim: &claim,
            stack: &stack,
            close: false,
            foreground: args.stop.foreground,
            kill_after: stops_within,
            on_lost: OnLost::Term,
            leave_children: args.stop.leave_children,
        };
        let term = Term {
            task,
            kill_after,
            unreachable_after: wanted.unreachable_after,
            first,
            signals: &mut signals,
            words: &mut words,
            report: &mut report,
        }
        .serve();
        first = false;
        let go_on = term.as_ref().is_ok_and(|t| !t.told_to_end && (t.lost || args.again));
        let outcome = settle(term.map(|t| t.outcome), &mut report, &mut words, global);
        if !go_on {
            if let Some((signal, everybody)) = outcome.die {
                die_of(signal, everybody);
            }
            return Ok(outcome.code);
        }
        if let Some(came) = stay(&signals, moment() + BETWEEN) {
            return Ok(Outcome::interrupted(came, &mut report).code);
        }
    }
}

/// One term: standing, leading, and its end.
struct Term<'a> {
    task: Task<'a>,
    kill_after: KillAfter,
    unreachable_after: Option<Duration>,
    first: bool,
    signals: &'a mut Signals,
    words: &'a mut Words,
    report: &'a mut Report,
}

struct Served {
    outcome: Outcome,
    lost: bool,
    /// Whether somebody wants us to end, and not only the command.
    told_to_end: bool,
}

impl Term<'_> {
    fn serve(self) -> Result<Served, Failure> {
        let choice = self.task.choice;
        let since = if self.first { began() } else { moment() };
        let care = Care {
            command: true,
            kill_after: self.kill_after,
            on_lost: OnLost::Term,
            nested: self.task.stack.is_nested(),
            leave_children: self.task.leave_children,
            at_least: Duration::ZERO,
        };
        let open = || engine::open(choice, care);
        // Who has led before stands again for as long as it takes, whatever the engine is doing
        // meanwhile.
        let reach = self.first.then_some(REACH);
        let ask = Ask {
            open: &open,
            require: &choice.require,
            claim: self.task.claim,
            patience: None,
            unreachable_after: self.unreachable_after,
            since,
            reach,
            is_firm: false,
            beside: false,
        };
        let obtained = ask.obtain(self.signals, self.words);
        let waited = moment().saturating_sub(since);
        self.report.waited_ms = millis(waited);
        let holding = match obtained {
            Obtained::Held(holding) => holding,
            Obtained::Interrupted(came) => {
                return Ok(Served {
                    outcome: Outcome::interrupted(came, self.report),
                    lost: false,
                    told_to_end: true,
                });
            }
            Obtained::Failed(error) => return Err(failed(error, self.report)),
            Obtained::Busy(_) => {
                return Err(Failure::internal(
                    "a stand that waits for ever ended without an answer",
                ));
            }
        };
        let granted = moment();
        self.words.granted(self.task.claim.mode, holding.token(), waited);
        self.report.token = holding.token().map(|t| t.to_string());
        let ended = self.task.run(Some(&*holding), None, self.signals, self.words);
        self.report.release = Some(
            holding.release(self.task.leave_children, &mut || self.words.release_waits()).as_str(),
        );
        self.report.held_ms = Some(millis(moment().saturating_sub(granted)));
        let ended = ended?;
        note(&ended, self.report);
        let lost = ended.stopped == Some(Stopped::Lost);
        self.report.outcome = if lost { "lost" } else { "ran" };
        let outcome = Outcome { code: ended.status.code(), die: ended.keyboard };
        Ok(Served { outcome, lost, told_to_end: ended.told_to_end })
    }
}
