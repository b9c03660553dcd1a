//! `lockkeeper acquire`: hold a name until stdin closes, a time is over, or a signal comes.

use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use lockkeeper::{Kind, Mode};
use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::stat::{SFlag, fstat};

use crate::args::acquire::Args;
use crate::args::common::Global;
use crate::args::run::OnLost;
use crate::choice::Choice;
use crate::engine::{self, Holding};
use crate::failure::{Failure, exit};
use crate::guardian::Care;
use crate::json::Report;
use crate::kill_after::KillAfter;
use crate::out;
use crate::run::environment::Stack;
use crate::run::obtain::{Ask, Obtained, REACH};
use crate::run::options::Wanted;
use crate::run::words::{Out, Words};
use crate::run::{Outcome, busy, claim, failed, held_above, settle, unasked, with_resize};
use crate::start::{began, moment, was_closed};
use crate::supervise::signals::{Signals, die_of};
use crate::supervise::terminal::Terminal;
use crate::supervise::timeout;
use crate::text::millis;

/// Holds a lock; answers the exit code.
pub fn acquire(global: &Global, args: &Args) -> u8 {
    let name = args.name.to_string_lossy().into_owned();
    // The lines on stdout are what it is for, and so they are there without --json too.
    let mut words =
        Words::new(&name, global.quiet, global.verbose, Some(Out::Stdout { all: global.json }));
    let mut report = Report::new(name, Duration::ZERO);
    let outcome = match Holder::check(global, args, &mut report) {
        Ok(holder) => {
            let outcome = holder.hold(&mut words, &mut report);
            settle(outcome, &mut report, &mut words, global)
        }
        Err(failure) => unasked(failure, &mut report, &mut words, global),
    };
    if let Some((signal, everybody)) = outcome.die {
        die_of(signal, everybody);
    }
    outcome.code
}

/// What is asked for.
struct Holder<'a> {
    args: &'a Args,
    choice: Choice,
    wanted: Wanted,
    kind: Kind,
    beside: bool,
}

impl<'a> Holder<'a> {
    fn check(global: &Global, args: &'a Args, report: &mut Report) -> Result<Self, Failure> {
        let choice = Choice::make(global)?;
        report.engine = Some(choice.engine().to_owned());
        let wanted = Wanted::check(&args.name, &args.lock, engine::ttl(&choice)?)?;
        engine::check(&choice, None)?;
        let kind =
            if matches!(wanted.mode, Mode::Permits { .. }) { Kind::Semaphore } else { Kind::Lock };
        let (stack, canonical) = (Stack::read(), engine::canonical(&choice));
        stack
            .check(&canonical, kind, &wanted.name, wanted.mode, wanted.patience)
            .map_err(|error| held_above(error, &wanted, report))?;
        let beside = stack.shares(&canonical, kind, &wanted.name, wanted.mode);
        Ok(Self { args, choice, wanted, kind, beside })
    }

    fn hold(&self, words: &mut Words, report: &mut Report) -> Result<Outcome, Failure> {
        let choice = &self.choice;
        words.engine(choice);
        words.renews(self.wanted.renew);
        words.detail(|| format!("engine {} ({})", choice.redacted(), choice.source));
        let lock = &self.args.lock;
        let given = || engine::idle_options(choice, lock, false);
        words.remark(|| engine::remarks(&self.wanted.name, given()));
        let signals = Signals::take()
            .map_err(|e| Failure::internal(format!("signals cannot be waited for: {e}")))?;
        // Nothing runs under it that would have to be stopped.
        let care = Care {
            command: false,
            kill_after: KillAfter(None),
            on_lost: OnLost::Warn,
            nested: false,
            leave_children: false,
            at_least: Duration::ZERO,
        };
        let open = || engine::open(choice, care);
        let claim = claim(&self.wanted, self.kind, crate::line::words().first(), None);
        let (patience, since, beside) = (self.wanted.patience, began(), self.beside);
        let ask = Ask {
            open: &open,
            require: &choice.require,
            claim: &claim,
            patience,
            unreachable_after: self.wanted.unreachable_after,
            since,
            reach: Some(REACH),
            is_firm: false,
            beside,
        };
        let obtained = ask.obtain(&signals, words);
        let waited = moment().saturating_sub(began());
        report.waited_ms = millis(waited);
        match obtained {
            Obtained::Held(holding) => {
                words.granted(self.wanted.mode, holding.token(), waited);
                report.token = holding.token().map(|t| t.to_string());
                Ok(self.keep(holding, &signals, words, report))
            }
            Obtained::Busy(holder) => Err(busy(&self.wanted, holder.as_deref(), waited, report)),
            Obtained::Interrupted(came) => Ok(Outcome::interrupted(came, report)),
            Obtained::Failed(error) => {
                Err(with_resize(failed(error, report), &self.wanted, &self.choice))
            }
        }
    }

    fn keep(
        &self,
        holding: Box<dyn Holding>,
        signals: &Signals,
        words: &mut Words,
        report: &mut Report,
    ) -> Outcome {
        let granted = moment();
        let until = self.args.hold_for.map(|d| granted + d);
        let mut stdin = Stdin::find();
        let (code, outcome, why) = loop {
            let lost = holding.lost();
            while let Some(caution) = holding.caution() {
                words.caution(&caution);
            }
            if let Some(why) = lost {
                words.lost(why, "letting go");
                break (self.args.lost_exit_code, "lost", why.as_str().to_owned());
            }
            // Nobody was told that it is held.
            if out::has_failed() {
                break (exit::INTERNAL, "ran", "stdout-failed".to_owned());
            }
            if let Some(came) = signals.ending() {
                break (0, "ran", came.signal.as_str().to_owned());
            }
            let now = moment();
            if until.is_some_and(|until| now >= until) {
                break (0, "ran", "time-over".to_owned());
            }
            if stdin.as_mut().is_some_and(Stdin::has_closed) {
                break (0, "ran", "stdin-closed".to_owned());
            }
            let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            fds.extend(holding.alarm().map(|alarm| PollFd::new(alarm, PollFlags::POLLIN)));
            fds.extend(
                stdin
                    .as_ref()
                    .and_then(Stdin::to_watch)
                    .map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
            );
            let look =
                stdin.as_ref().filter(|s| s.to_watch().is_none()).map(|_| Duration::from_secs(1));
            let next =
                [until.map(|until| until - now), holding.every(), look].into_iter().flatten().min();
            _ = poll(&mut fds, timeout(next));
        };
        report.release = Some(holding.release(false, &mut || words.release_waits()).as_str());
        report.held_ms = Some(millis(moment().saturating_sub(granted)));
        (report.outcome, report.why) = (outcome, Some(why));
        code.into()
    }
}

/// A stdin whose end lets go: a pipe, a socket or a terminal. /dev/null, a file and a closed stdin
/// say nothing.
struct Stdin {
    terminal: Option<Terminal>,
}

impl Stdin {
    fn find() -> Option<Self> {
        if was_closed(libc::STDIN_FILENO) {
            return None;
        }
        let stdin = std::io::stdin();
        if std::io::IsTerminal::is_terminal(&stdin) {
            return Some(Self { terminal: Terminal::find() });
        }
        let kind = SFlag::from_bits_truncate(fstat(stdin.as_fd()).ok()?.st_mode) & SFlag::S_IFMT;
        (kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK).then_some(Self { terminal: None })
    }

    /// What to wait on. A terminal is not read from the background, where that would stop us.
    fn to_watch(&self) -> Option<BorrowedFd<'static>> {
        let behind = self.terminal.as_ref().is_some_and(|t| !t.is_ours());
        // SAFETY: stdin is open and nobody closes it.
        (!behind).then(|| unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) })
    }

    /// Reads what there is and throws it away; true at its end.
    fn has_closed(&mut self) -> bool {
        let Some(fd) = self.to_watch() else { return false };
        while poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], 0u8).is_ok_and(|ready| ready > 0) {
            let mut buffer = [0; 4_096];
            match std::io::stdin().lock().read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                // A terminal that hung up, a connection that was reset.
                Err(_) => return true,
            }
        }
        false
    }
}
