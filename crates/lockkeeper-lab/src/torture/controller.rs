//! Runs a torture: starts everybody, carries the schedule out, stops everybody, and has it judged.

mod insisted;
mod judging;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::arena;
use super::background::Background;
use super::broken::Broken;
use super::crew;
use super::excuse::Excuses;
use super::fault::{ANYWHERE, CROWD, Fault, KILL, ON_REQUEST};
use super::harm::Harm;
use super::nemesis::{self, Pace, Planned};
use super::pulse::Pulse;
use super::stage::{Size, Stage};
use super::timetable::{Step, Timetable};
use super::{Options, Subject, resource, say};
use crate::history::{Role, Writer, WriterOptions};
use crate::interrupt;
use crate::judge::liveness::SLACK;
use insisted::Insisted;

/// How often a broken client's histories are looked at while it runs.
const LOOK_EVERY: Duration = Duration::from_millis(700);
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
        let pulse = Pulse::start(scratch.path(), arena.commits()).map_err(own)?;
        let about = arena.about();
        let ours = options.client == Subject::Shipped;
        let excuses = Excuses::of(&about, ours, plan.is_empty(), pulse.late())
            .committed_in(pulse.slow_commits());
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
                (nemesis.clone(), pulse.processes().clone()),
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
