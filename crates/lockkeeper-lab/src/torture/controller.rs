//! Runs a torture: starts everybody, carries the schedule out, stops everybody, and has it judged.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::arena;
use super::background::Background;
use super::broken::Broken;
use super::chances::{Chances, Tally};
use super::cost::Cost;
use super::crew::{self, CRASH};
use super::excuse::Excuses;
use super::fault::{ANYWHERE, CROWD, Fault, KILL, ON_REQUEST};
use super::harm::Harm;
use super::liveness::{LIVENESS, SLACK};
use super::nemesis::{self, Pace, Planned};
use super::pulse::Pulse;
use super::stage::{Size, Stage};
use super::starvation::{Fair, Judged};
use super::storm::Storm;
use super::timetable::{Step, Timetable};
use super::verdict::{Outcome, Verdict};
use super::waiting::{self, Waited};
use super::{Options, Subject, ns, picture, resource, say};
use crate::check;
use crate::history::{Role, Writer, WriterOptions};
use crate::interrupt;

/// How many descriptions of a class are kept, so that each can be held against the faults of its
/// moment.
const DETAILS: usize = 5_000;
/// How long one who gave up may take to withdraw its place, a request that goes unanswered
/// included, where no fault is in its way.
const WITHDRAW: Duration = Duration::from_secs(3);
/// How often a broken client's histories are looked at while it runs.
const LOOK_EVERY: Duration = Duration::from_millis(700);
/// After a second signal, how long clearing away may take.
const CLEARED_WITHIN: Duration = Duration::from_secs(2);
/// How often clients are looked after.
const LOOK_AFTER_CLIENTS: Duration = Duration::from_millis(20);

/// Runs it. Answers the exit code: 0 clean, 1 violations beyond the printed class, 2 too weak to
/// say, 128 and the signal's number after a signal.
///
/// # Errors
/// An exit code and why: 64 wrong use, 69 an engine or a directory that cannot be used, 125 our own
/// failure.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<u8, (u8, String)> {
    let _watch = interrupt::Watch::new();
    let insisted = Insisted::watch().map_err(|text| (125, text))?;
    let mut run = Run::prepare(options)?;
    insisted.clears(run.scratch.path());
    run.go();
    if interrupt::insists() {
        // Whoever insists wants no verdict. What is left running goes with `run`.
        return Ok(signal_code().unwrap_or(130));
    }
    let verdict = run.judge().map_err(|text| (125, text))?;
    // Whoever reads may have gone; the exit code says it all the same.
    let _ = if options.json { writeln!(out, "{}", verdict.json()) } else { verdict.print(out) }
        .and_then(|()| out.flush());
    // A picture that cannot be drawn takes nothing of the verdict away.
    if let Err(text) = run.draw(&verdict) {
        say(&text);
    }
    Ok(signal_code().unwrap_or(verdict.exit_code()))
}

/// The exit code of one that a signal ended.
fn signal_code() -> Option<u8> {
    interrupt::caught().map(|signal| u8::try_from(128 + signal).unwrap_or(130))
}

/// A thread that ends the process when a second signal came and we are busy with something that
/// takes long: a server that starts, a judgement. What we started ends with us.
struct Insisted {
    dir: Arc<OnceLock<PathBuf>>,
    _watch: Storm,
}

impl Insisted {
    fn watch() -> Result<Self, String> {
        let (dir, mut since) = (Arc::<OnceLock<PathBuf>>::default(), None);
        let ours = dir.clone();
        let look = move || {
            if interrupt::insists()
                && since.get_or_insert_with(Instant::now).elapsed() > CLEARED_WITHIN
            {
                // Histories that nobody will judge; a directory that stays is in the place for
                // temporary ones.
                let _ = ours.get().map(std::fs::remove_dir_all);
                std::process::exit(i32::from(signal_code().unwrap_or(130)));
            }
        };
        Ok(Self { dir, _watch: Storm::begin(Duration::from_millis(50), look)? })
    }

    /// What is to be removed then.
    fn clears(&self, dir: &Path) {
        // It is set once.
        let _ = self.dir.set(dir.to_owned());
    }
}

impl Size {
    fn of(options: &Options) -> Self {
        let usual = match &options.client {
            // A process a task.
            Subject::Exec(_) => [3, 1, 2],
            client => client.broken().map_or([4, 8, 8], |b| [b.clients, b.tasks, b.names]),
        };
        let [clients, tasks, names] = usual;
        Self {
            clients: options.clients.unwrap_or(clients),
            tasks: options.tasks.unwrap_or(tasks),
            names: options.names.unwrap_or(names),
        }
    }
}

/// What the histories say.
struct Findings {
    report: check::Report,
    waited: Waited,
    chances: Chances,
    cost: Option<Cost>,
}

struct Run {
    options: Options,
    size: Size,
    time: Duration,
    broken: Option<&'static Broken>,
    plan: Vec<Planned>,
    /// Faults of the plan for which no time was left.
    left_out: usize,
    stage: Stage,
    harm: Harm,
    nemesis: Writer,
    resource: Writer,
    looked: Instant,
    pulse: Pulse,
    scratch: tempfile::TempDir,
    _background: Background,
}

impl Run {
    fn prepare(options: &Options) -> Result<Self, (u8, String)> {
        let wrong = |text: String| (64, text);
        let own = |text: String| (125, text);
        let size = Size::of(options);
        if size.clients == 0 || size.tasks == 0 || size.names == 0 {
            return Err(wrong("at least one client, one task and one name are needed".to_owned()));
        }
        let broken = options.client.broken();
        if let Some(broken) = broken {
            broken.fits(&options.url).map_err(wrong)?;
        }
        crew::raise_descriptors();
        let scratch = tempfile::Builder::new().prefix("lockkeeper-torture-").tempdir();
        let scratch = scratch.map_err(|e| (69, format!("no directory for the histories: {e}")))?;
        let time =
            options.time.unwrap_or(Duration::from_secs(if broken.is_some() { 60 } else { 30 }));
        let mut arena = arena::open(&options.url, scratch.path())?;
        let faults: Vec<Fault> = ANYWHERE.into_iter().chain(arena.faults()).collect();
        let chosen = choose(&options.faults, &faults, &arena.left_out()).map_err(wrong)?;
        let plan = match broken.filter(|_| options.faults.is_empty()) {
            Some(broken) => nemesis::rounds(options.seed, time, broken, size.clients, &faults),
            None => nemesis::plan(
                options.seed,
                time,
                size.clients,
                &chosen,
                Pace::of(arena.about().recovery),
            ),
        };
        arena.is_to_suffer(
            &plan.iter().map(|planned| planned.fault.name).collect::<Vec<_>>(),
            options.seed,
        );
        if let Some(broken) = broken
            && arena.home(0).map_err(own)?.is_none()
        {
            // Where clients live elsewhere only they can look.
            broken.can_show(&options.url, &arena.url(0).map_err(own)?).map_err(wrong)?;
        }
        let history = |name: &str, role| {
            let path = scratch.path().join(format!("{name}.lkh"));
            Writer::create(
                path,
                WriterOptions { role, label: name.to_owned(), ..WriterOptions::default() },
            )
            .map_err(|e| own(e.to_string()))
        };
        let (nemesis, log) =
            (history("nemesis", Role::Nemesis)?, history("resource", Role::Resource)?);
        let background = Background::start().map_err(|e| own(e.to_string()))?;
        let socket = scratch.path().join("resource");
        background
            .block_on(resource::serve(&socket, log.clone()))
            .map_err(|e| own(format!("{}: {e}", socket.display())))?;
        let pulse = Pulse::start(scratch.path()).map_err(own)?;
        let about = arena.about();
        let ours = options.client == Subject::Shipped;
        let excuses = Excuses::of(&about, ours, plan.is_empty(), pulse.late());
        let dir = scratch.path().to_owned();
        Ok(Self {
            options: options.clone(),
            size,
            time,
            broken,
            plan,
            left_out: 0,
            stage: Stage::new(
                options.client.clone(),
                options.seed,
                size,
                dir,
                arena,
                nemesis.clone(),
            ),
            harm: Harm::new(nemesis.clone(), excuses),
            nemesis,
            resource: log,
            looked: Instant::now(),
            pulse,
            scratch,
            _background: background,
        })
    }

    fn go(&mut self) {
        let plan = std::mem::take(&mut self.plan);
        let crowd_comes = plan.iter().any(|planned| planned.fault.name == CROWD);
        let mut table = Timetable::new(plan, self.time, self.stage.arena.about().recovery + SLACK);
        let began = Instant::now();
        self.stage.begin(crowd_comes);
        while let Some(due) = table.due() {
            if !self.wait_until(began, due) {
                break;
            }
            let begun = Instant::now();
            match table.take(began.elapsed()) {
                Some(Step::Begin(planned)) => self.harm.begin(planned, &mut self.stage),
                Some(Step::End(planned)) => self.harm.end(&planned, &mut self.stage),
                None => break,
            }
            table.took(begun.elapsed());
        }
        self.left_out = table.left_out();
        if self.wait_until(began, self.time) {
            self.stage.look_at_the_end();
        }
        // An interrupt leaves nothing stopped, held or starved.
        self.harm.end_all(&mut self.stage);
        self.finish();
    }

    /// Waits and shows how far it is; false when the user wants to end.
    fn wait_until(&mut self, began: Instant, at: Duration) -> bool {
        loop {
            if interrupt::caught().is_some() {
                return false;
            }
            self.stage.notice_ends();
            self.harm.look(&mut self.stage);
            self.stage.measure();
            let returns = self.harm.is_under_way(KILL);
            if self.stage.is_lost() || self.stage.is_deserted(returns) || self.harm.is_for_good() {
                return false;
            }
            if self.looked.elapsed() > LOOK_EVERY && self.is_convicted() {
                return false;
            }
            let left = at.saturating_sub(began.elapsed());
            if left.is_zero() {
                return true;
            }
            if self.options.progress && std::io::stderr().is_terminal() {
                let faults: u64 = self.harm.happened().values().sum();
                eprint!(
                    "\r\x1b[K{:>5.1} s of {:.0} s, {faults} faults",
                    began.elapsed().as_secs_f64(),
                    self.time.as_secs_f64()
                );
            }
            std::thread::sleep(left.min(LOOK_AFTER_CLIENTS));
        }
    }

    /// Whether a broken client has shown already what is wrong with it; then there is no more to
    /// wait for.
    fn is_convicted(&mut self) -> bool {
        self.looked = Instant::now();
        let Some(broken) = self.broken else { return false };
        // The files are read one after the other: what happened meanwhile is in one of them and not
        // yet in another.
        let begun = Writer::now();
        // Histories that cannot be read now are read at the end, where it is an error.
        let Ok(Findings { report, waited, .. }) = self.findings() else { return false };
        let checked = report.violations.iter().filter(|v| v.at < begun).map(|v| v.class.as_str());
        checked
            .chain(waited.convictions.iter().map(|c| c.class))
            .any(|class| broken.convicted_by.contains(&class))
    }

    /// What the histories say, as far as they are written.
    fn findings(&self) -> Result<Findings, check::CheckError> {
        let (recovery, ours) =
            (self.stage.arena.about().recovery, self.options.client == Subject::Shipped);
        let longest = self.harm.longest();
        let options = check::Options {
            recovery: Some(recovery),
            recovery_slack: SLACK,
            late: self.pulse.late(),
            linger: self.stage.arena.linger() + longest,
            withdraw: longest + WITHDRAW,
            allow: self.harm.excuses().always(),
            lease: recovery,
            // Which tokens a lock has that is not ours nobody said.
            fenced: ours && self.stage.arena.about().fenced,
            details: DETAILS,
            ..check::Options::default()
        };
        let dir = self.scratch.path();
        let report = check::check_files(&[dir], options)?;
        let mut tally = Tally::new(recovery, self.harm.excuses().of_holds());
        let mut waited = waiting::judge(recovery, self.fair(), &self.pulse, dir, &mut tally)?;
        // What other faults cost is not known.
        let alone = self.harm.happened().keys().all(|fault| *fault == CROWD);
        let cost = if alone { self.stage.spans().judge(ours, dir)? } else { None };
        waited.convictions.extend(cost.and_then(|cost| cost.conviction()));
        waited.convictions.extend_from_slice(self.stage.crashes());
        // What a busy machine is forgiven is not asked here: it makes a run no weaker than the
        // schedule was.
        let chances = tally.finish(|since, until| {
            Duration::from_nanos(until.saturating_sub(since)) > recovery + SLACK
                && self.harm.excuses().judges_wait(until)
        });
        Ok(Findings { report, waited, chances, cost })
    }

    /// How many may pass one who waits, where a line keeps the order.
    fn fair(&self) -> Fair {
        let (about, ours) = (self.stage.arena.about(), self.options.client == Subject::Shipped);
        Fair::among(self.size.clients, self.size.tasks, ours, [about.fair, about.fair_permits])
    }

    fn finish(&mut self) {
        self.stage.finish();
        for log in [&self.nemesis, &self.resource] {
            if let Err(error) = log.finish() {
                say(&format!("a history could not be ended: {error}"));
            }
        }
        if self.options.progress && std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }

    fn judge(&mut self) -> Result<Verdict, String> {
        let about = self.stage.arena.about();
        let Findings {
            report,
            waited: Waited { mut convictions, passed_most, judged },
            chances,
            cost,
        } = self.findings().map_err(|e| {
            self.scratch.disable_cleanup(true);
            format!("{e}; histories kept in {}", self.scratch.path().display())
        })?;
        let gone = self.stage.gone().map(|(at, _)| at);
        let stuck = self.harm.stuck().map(|(at, _)| at);
        if let Some(at) = report.blind_from.into_iter().chain(gone).chain(stuck).min() {
            self.harm.blind_from(at);
            // Who was owed the lock from just before on was not owed it for long enough. A crash is
            // nobody else's doing.
            let bound = ns(about.recovery + SLACK);
            convictions.retain(|c| {
                c.class == CRASH
                    || c.at.saturating_add(if c.class == LIVENESS { bound } else { 0 }) < at
            });
        }
        let outcome = Outcome {
            about,
            seed: self.options.seed,
            replay: self
                .options
                .replay(self.time, [self.size.clients, self.size.tasks, self.size.names]),
            client: self.options.client.clone(),
            broken: self.broken,
            weak: self.weakness(&report, &chances, &judged, cost.as_ref()),
            waits: judged,
            chances,
            cost,
            faults: self.harm.happened().clone(),
            left_out: self.left_out(),
            report,
            convictions,
            passed: (passed_most, self.fair().shown()),
        };
        let verdict = Verdict::new(outcome, self.harm.excuses());
        if !verdict.has_violations() {
            return Ok(verdict);
        }
        self.scratch.disable_cleanup(true);
        Ok(verdict.kept_in(self.scratch.path().to_owned()))
    }

    fn left_out(&self) -> Vec<String> {
        let late = || {
            format!(
                "{} faults at the end of the schedule: what came before took longer than planned",
                self.left_out
            )
        };
        self.stage.arena.left_out().into_iter().chain((self.left_out > 0).then(late)).collect()
    }

    fn draw(&self, verdict: &Verdict) -> Result<(), String> {
        let (histories, told) = ([self.scratch.path()], verdict.told(self.harm.excuses()));
        if let Some(path) = &self.options.report {
            (self.options.write)(
                path,
                &picture::page(&histories, &told).map_err(|e| e.to_string())?,
            )?;
        }
        if self.options.ascii {
            eprint!("{}", picture::ascii(&histories, &told, 100).map_err(|e| e.to_string())?);
        }
        Ok(())
    }

    /// Why nothing could be learnt, if so.
    fn weakness(
        &self,
        report: &check::Report,
        chances: &Chances,
        waits: &Judged,
        cost: Option<&Cost>,
    ) -> Option<String> {
        if report.blind_from.is_some() {
            return Some(
                "a history ended early, for want of room; what came after that is not judged"
                    .to_owned(),
            );
        }
        let stuck = self.harm.stuck().map(|(_, why)| why);
        if let Some(why) = self.stage.gone().map(|(_, why)| why.to_owned()).or(stuck) {
            return Some(format!("{why}; what came after that is not judged"));
        }
        let wanted = !self.options.faults.iter().any(|f| f == "none");
        if report.counts.holds == 0 {
            return Some("nothing was held".to_owned());
        }
        if let Some(broken) = self.broken {
            // It is known to be wrong: that nothing was seen says nothing about anybody.
            return Some(format!("the flaw of broken:{} was not seen", broken.name));
        }
        if wanted && self.harm.happened().is_empty() {
            return Some("no fault happened".to_owned());
        }
        if self.options.faults == [CROWD] && self.stage.spans().were_measured() && cost.is_none() {
            let why = "too few clients asked, or stood in line without the crowd, to measure the \
                       cost; --names 1 makes one line";
            return Some(why.to_owned());
        }
        let never = |name: &&String| wanted && !self.harm.happened().contains_key(name.as_str());
        if let Some(name) = self.options.faults.iter().find(never) {
            return Some(format!("{name} was requested and never happened"));
        }
        let (about, shipped) = (self.stage.arena.about(), self.options.client == Subject::Shipped);
        // Only our recorder writes down that a lease ended.
        let chances = Chances {
            stops: if about.expiry.is_timed() && shipped { chances.stops } else { 0 },
            ..*chances
        };
        if let Some(why) = chances.missing(
            Duration::from_nanos(report.span.1.saturating_sub(report.span.0)),
            about.recovery,
        ) {
            return Some(why);
        }
        if let Some(why) = waits.missing() {
            return Some(why);
        }
        // Others' locks have no class of ours to show.
        let class = about.class;
        if self.options.client == Subject::Shipped {
            self.harm.excuses().not_shown(class, &report.moments)
        } else {
            None
        }
    }
}

/// The faults that the user wants: without a choice all that are not for somebody in particular.
/// Lines of `left_out` are names, a colon, and why these cannot be had.
fn choose(wanted: &[String], known: &[Fault], left_out: &[String]) -> Result<Vec<Fault>, String> {
    let mut chosen = Vec::new();
    for name in wanted.iter().filter(|f| *f != "none") {
        let Some(fault) = known.iter().find(|k| k.name == name) else {
            let mut why = left_out.iter().filter_map(|line| line.split_once(": "));
            if let Some((_, why)) = why.find(|(names, _)| names.split(", ").any(|of| of == name)) {
                return Err(format!("{name} is not available here: {why}"));
            }
            let names: Vec<&str> = known.iter().map(|k| k.name).collect();
            return Err(format!(
                "{name:?} is not a fault of this engine; its faults: none, {}",
                names.join(", ")
            ));
        };
        chosen.push(*fault);
    }
    if wanted.is_empty() {
        chosen.extend(known.iter().filter(|k| !ON_REQUEST.contains(&k.name)));
    }
    Ok(chosen)
}
