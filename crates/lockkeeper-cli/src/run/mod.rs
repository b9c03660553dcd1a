//! `lockkeeper run`: hold a name while a command runs.

pub mod environment;
pub mod obtain;
pub mod options;
pub mod report;
pub mod task;
pub mod words;

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Claim, ClaimId, Error, ErrorKind, Holder, Identity, Kind, Mode, Through};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;

use self::environment::{Process, Stack};
use self::obtain::{Ask, Obtained, REACH};
use self::options::Wanted;
use self::task::{Task, note};
use self::words::{Out, Words, who};
use crate::args::common::Global;
use crate::args::run::{Args, OnUnreachable};
use crate::args::suggest;
use crate::choice::{Choice, Source};
use crate::engine::{self, Holding};
use crate::failure::{Failure, exit};
use crate::guardian::Care;
use crate::json::Report;
use crate::kill_after::KillAfter;
use crate::start::{Moment, began, moment};
use crate::supervise::job::Status;
use crate::supervise::signals::{Came, Signals, die_of};
use crate::supervise::{Stopped, timeout};
use crate::text::{millis, quoted, shown, spoken};

/// How a run ended.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub code: u8,
    /// The signal that must end us too, and whether the rest of our group is to get it.
    pub die: Option<(Signal, bool)>,
}

impl From<u8> for Outcome {
    fn from(code: u8) -> Self {
        Self { code, die: None }
    }
}

impl Outcome {
    /// A wait that a signal ended.
    pub fn interrupted(came: Came, report: &mut Report) -> Self {
        report.outcome = "interrupted";
        report.why = Some(came.signal.as_str().to_owned());
        // Whoever pressed the key ended the script around us too, and it must see that the key
        // ended us.
        Self {
            code: Status::Killed(came.signal as i32).code(),
            die: came.keyboard.then_some((came.signal, false)),
        }
    }
}

/// Runs a command under a lock; answers the exit code.
pub fn run(global: &Global, args: &Args) -> u8 {
    let name = args.name.to_string_lossy().into_owned();
    let mut words =
        Words::new(&name, global.quiet, global.verbose, global.json.then_some(Out::Stderr));
    let mut report = Report::new(name, Duration::ZERO);
    let running = |report: &mut Report, words: &mut Words| {
        let asked = Asked::check(global, args, report)?;
        Ok((Running { args, asked, words, report }).run())
    };
    let mut file = args.report.as_deref();
    let checked = file.map_or(Ok(()), report::check).inspect_err(|_| file = None);
    let outcome = match checked.and_then(|()| running(&mut report, &mut words)) {
        Ok(outcome) => settle(outcome, &mut report, &mut words, global),
        Err(failure) => unasked(failure, &mut report, &mut words, global),
    };
    report::deliver(file, &report);
    if let Some((signal, everybody)) = outcome.die {
        die_of(signal, everybody);
    }
    outcome.code
}

/// Says how it ended.
pub fn settle(
    outcome: Result<Outcome, Failure>,
    report: &mut Report,
    words: &mut Words,
    global: &Global,
) -> Outcome {
    let outcome = outcome.unwrap_or_else(|failure| fail(failure, report, global));
    report.exit = outcome.code;
    words.done(report);
    outcome
}

/// Says why nobody was asked for it. A command line that cannot be right is an error alone; that an
/// ancestor holds the lock is an answer.
pub fn unasked(
    failure: Failure,
    report: &mut Report,
    words: &mut Words,
    global: &Global,
) -> Outcome {
    let answers = [ErrorKind::TimedOut, ErrorKind::WouldDeadlock];
    if answers.iter().any(|kind| failure.kind == kind.as_str()) {
        return settle(Err(failure), report, words, global);
    }
    fail(failure, report, global)
}

/// Says what went wrong.
fn fail(failure: Failure, report: &mut Report, global: &Global) -> Outcome {
    report.exit = failure.exit;
    report.why.get_or_insert_with(|| failure.message.clone());
    let failure = match &report.name {
        Some(name) => failure.name(name),
        None => failure,
    };
    let failure = failure.engine(report.engine.clone());
    if failure.exit == exit::USAGE {
        // Nothing was asked for under this name.
        report.name.clone_from(&failure.name);
    }
    // That it was not obtained is no error, and -q silences it.
    if !(global.quiet && failure.kind == ErrorKind::TimedOut.as_str()) {
        failure.print(global.json);
    }
    failure.exit.into()
}

/// What is asked for, and by which means; checked as far as it can be before anybody is asked.
struct Asked {
    wanted: Wanted,
    argv: Vec<OsString>,
    kill_after: KillAfter,
    /// The same in time, as far as it is known before the lock is held.
    stops_within: Duration,
    choice: Choice,
    by_option: bool,
    stack: Stack,
    /// Whether an ancestor has a share of it, so that ours needs no place in line.
    beside: bool,
    claim: Claim,
}

impl Asked {
    fn check(global: &Global, args: &Args, report: &mut Report) -> Result<Self, Failure> {
        options::check_no_fork(args)?;
        let argv = options::argv(&args.argv, args.command.as_ref())?;
        let choice = Choice::make(global)?;
        let wanted = Wanted::check(&args.name, &args.lock, engine::ttl(&choice)?)?;
        let lasts = engine::lasts(&choice, wanted.ttl)?;
        let kill_after = options::kill_after(&args.stop, lasts)?;
        let stops_within = kill_after.of(lasts).map_err(Failure::usage)?;
        report.engine = Some(choice.engine().to_owned());
        engine::check(&choice, args.no_fork.then_some("-F").or(args.close.then_some("-o")))?;
        let stack = Stack::read();
        let kind =
            if matches!(wanted.mode, Mode::Permits { .. }) { Kind::Semaphore } else { Kind::Lock };
        let canonical = engine::canonical(&choice);
        stack
            .check(&canonical, kind, &wanted.name, wanted.mode, wanted.patience)
            .map_err(|error| held_above(error, &wanted, report))?;
        let claim = claim(&wanted, kind, argv.first(), None);
        let beside = stack.shares(&canonical, kind, &wanted.name, wanted.mode);
        Ok(Self {
            wanted,
            argv,
            kill_after,
            stops_within,
            choice,
            by_option: global.url.is_some(),
            stack,
            beside,
            claim,
        })
    }
}

/// One run.
struct Running<'a> {
    args: &'a Args,
    asked: Asked,
    words: &'a mut Words,
    report: &'a mut Report,
}

impl Running<'_> {
    fn run(mut self) -> Result<Outcome, Failure> {
        let choice = &self.asked.choice;
        self.words.engine(choice);
        self.words.renews(self.asked.wanted.renew);
        self.words.detail(|| format!("engine {} ({})", choice.redacted(), choice.source));
        let lock = &self.args.lock;
        let is_firm = self.args.on_unreachable == OnUnreachable::Run;
        let given = || engine::idle_options(choice, lock, is_firm);
        self.words.remark(|| engine::remarks(&self.asked.wanted.name, given()));
        let mut signals = Signals::take()
            .map_err(|e| Failure::internal(format!("signals cannot be waited for: {e}")))?;
        let care = Care {
            command: true,
            kill_after: self.asked.kill_after,
            on_lost: self.args.on_lost,
            nested: self.asked.stack.is_nested(),
            leave_children: self.args.stop.leave_children,
            at_least: self.args.hold_at_least.unwrap_or_default(),
        };
        let open = || engine::open(choice, care);
        let ask = Ask {
            open: &open,
            require: &choice.require,
            claim: &self.asked.claim,
            patience: self.asked.wanted.patience,
            since: began(),
            unreachable_after: self.asked.wanted.unreachable_after,
            reach: Some(REACH),
            is_firm,
            beside: self.asked.beside,
        };
        let obtained = ask.obtain(&signals, self.words);
        let waited = moment().saturating_sub(began());
        self.report.waited_ms = millis(waited);
        match obtained {
            Obtained::Held(holding) => {
                self.words.granted(self.asked.wanted.mode, holding.token(), waited);
                self.report.token = holding.token().map(|t| t.to_string());
                if self.args.no_fork {
                    Err(task(self.args, &self.asked).become_command(&*holding, &signals))
                } else {
                    self.supervise(Some(holding), &mut signals)
                }
            }
            Obtained::Busy(holder) => {
                Err(busy(&self.asked.wanted, holder.as_deref(), waited, self.report))
            }
            Obtained::Interrupted(came) => Ok(Outcome::interrupted(came, self.report)),
            Obtained::Failed(error)
                if error.kind() == ErrorKind::Unreachable
                    && self.args.on_unreachable == OnUnreachable::Run =>
            {
                self.words.note(&format!(
                    "{}; running the command without the lock",
                    shown(&error.to_string())
                ));
                self.report.why = Some(error.message().to_owned());
                self.supervise(None, &mut signals)
            }
            Obtained::Failed(error) => {
                let failure = failed(error, self.report);
                Err(with_resize(failure, &self.asked.wanted, &self.asked.choice))
            }
        }
    }

    fn supervise(
        &mut self,
        holding: Option<Box<dyn Holding>>,
        signals: &mut Signals,
    ) -> Result<Outcome, Failure> {
        let (granted, args) = (moment(), self.args);
        let task = task(args, &self.asked);
        let ended = task.run(
            holding.as_deref(),
            args.hold_at_most.map(|d| granted + d),
            signals,
            self.words,
        );
        let unlocked = holding.is_none();
        let ended = match ended {
            Ok(ended) => ended,
            Err(failure) => {
                self.report.release =
                    holding.map(|h| h.release(false, &mut || self.words.release_waits()).as_str());
                return Err(failure);
            }
        };
        if let Some(least) = args.hold_at_least.filter(|_| !unlocked) {
            stay(signals, granted + least);
        }
        self.report.release = holding.map(|h| {
            h.release(args.stop.leave_children, &mut || self.words.release_waits()).as_str()
        });
        self.report.held_ms = (!unlocked).then(|| millis(moment().saturating_sub(granted)));
        note(&ended, self.report);
        let (code, outcome) = match ended.stopped {
            Some(Stopped::Lost) => (args.lost_exit_code, "lost"),
            Some(Stopped::TimeOver) => (exit::HELD_TOO_LONG, "timed-out"),
            None if unlocked => (ended.status.code(), "ran-unlocked"),
            None => (ended.status.code(), "ran"),
        };
        self.report.outcome = outcome;
        Ok(Outcome { code, die: ended.keyboard })
    }
}

fn task<'a>(args: &Args, asked: &'a Asked) -> Task<'a> {
    Task {
        argv: &asked.argv,
        choice: &asked.choice,
        by_option: asked.by_option,
        claim: &asked.claim,
        stack: &asked.stack,
        close: args.close,
        foreground: args.stop.foreground,
        kill_after: asked.stops_within,
        on_lost: args.on_lost,
        leave_children: args.stop.leave_children,
    }
}

/// It was not obtained, and who has it.
pub fn busy(
    wanted: &Wanted,
    holder: Option<&Holder>,
    waited: Duration,
    report: &mut Report,
) -> Failure {
    report.outcome = "not-obtained";
    report.holder = holder.map(Into::into);
    report.why = Some("busy".to_owned());
    let after = if wanted.patience.is_some_and(|p| p.is_zero()) {
        String::new()
    } else {
        format!(" in {}", spoken(waited))
    };
    let message = match holder {
        Some(holder) => format!("not obtained{after}: held by {}", who(holder)),
        None => format!("not obtained{after}: another caller holds it or stands in line"),
    };
    Failure::from(ErrorKind::TimedOut).exit(wanted.conflict_exit_code).message(message)
}

/// An ancestor holds it, and waits for us.
pub fn held_above(error: Error, wanted: &Wanted, report: &mut Report) -> Failure {
    report.holder = error.holder().map(Into::into);
    if error.kind() != ErrorKind::TimedOut {
        return error.into();
    }
    report.outcome = "not-obtained";
    report.why = Some("busy".to_owned());
    Failure::from(error).exit(wanted.conflict_exit_code)
}

/// The engine failed.
pub fn failed(error: Error, report: &mut Report) -> Failure {
    report.outcome = match error.kind() {
        ErrorKind::Unreachable | ErrorKind::Unknown => "unreachable",
        ErrorKind::Refused | ErrorKind::Corrupt | ErrorKind::NewerLayout => "refused",
        _ => "not-started",
    };
    report.holder = error.holder().map(Into::into);
    error.into()
}

/// Says with which line a semaphore's stored limit is changed.
pub fn with_resize(failure: Failure, wanted: &Wanted, choice: &Choice) -> Failure {
    let Mode::Permits { limit, .. } = wanted.mode else { return failure };
    if !failure.message.ends_with("resize it") {
        return failure;
    }
    let url = match choice.source {
        Source::Option => format!(" --url {}", suggest::word(choice.url.as_ref())),
        _ => String::new(),
    };
    let name = quoted(wanted.name.as_str().as_ref());
    let message = format!("{} with lockkeeper permits{url} {name} {limit}", failure.message);
    failure.message(message)
}

/// Waits until `until`, or for the signal that it answers.
pub fn stay(signals: &Signals, until: Moment) -> Option<Came> {
    loop {
        let now = moment();
        let ended = signals.ending();
        if now >= until || ended.is_some() {
            return ended;
        }
        _ = poll(
            &mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)],
            timeout(Some(until - now)),
        );
    }
}

/// The claim for what is wanted; `program` is what is recorded about us, without arguments: they
/// hold secrets.
pub fn claim(
    wanted: &Wanted,
    kind: Kind,
    program: Option<&OsString>,
    value: Option<Arc<str>>,
) -> Claim {
    let process = Process::current();
    let who = Identity {
        host: host(),
        pid: process.pid,
        started: process.start,
        program: program.map(|p| p.to_string_lossy().into_owned()).unwrap_or_default(),
        label: wanted.label.clone(),
    };
    Claim {
        id: ClaimId::fresh(),
        kind,
        name: wanted.name.clone(),
        mode: wanted.mode,
        through: Through::of(wanted.mode),
        ttl: wanted.ttl,
        renew: wanted.renew,
        margin: None,
        lock_delay: Duration::ZERO,
        give_up: None,
        who: Arc::new(who),
        value,
    }
}

/// This machine's name.
pub fn host() -> String {
    nix::unistd::gethostname().map(|h| h.to_string_lossy().into_owned()).unwrap_or_default()
}
