//! Runs a torture: starts everybody, carries the schedule out, stops everybody, and has it judged.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::arena::{self, Arena, Mended};
use super::background::Background;
use super::broken::Broken;
use super::chances::{Chances, Tally};
use super::cost::{self, Sample};
use super::crew::{self, CRASH, Crew, Fate};
use super::excuse::Excuses;
use super::fault::{ANYWHERE, CROWD, Fault, Hits, KILL, ON_REQUEST, STARVE, STOP};
use super::liveness::{LIVENESS, SLACK};
use super::nemesis::{self, Pace, Planned};
use super::orders::Orders;
use super::pulse::Pulse;
use super::starvation::Fair;
use super::timetable::{Step, Timetable};
use super::verdict::{Outcome, Verdict};
use super::waiting::{self, Waited};
use super::{Conviction, Options, Subject, picture, resource};
use crate::check;
use crate::history::{Record, Role, What, Writer, WriterOptions};
use crate::interrupt;

/// How many descriptions of a class are kept, so that each can be held against the faults of its moment.
const DETAILS: usize = 5_000;
/// How long one who gave up may take to withdraw its place, a request that goes unanswered included, where no fault is in its way.
const WITHDRAW: Duration = Duration::from_secs(3);
/// How often a broken client's histories are looked at while it runs.
const LOOK_EVERY: Duration = Duration::from_millis(700);
/// How often clients are looked after.
const LOOK_AFTER_CLIENTS: Duration = Duration::from_millis(20);
/// Clients of a crowd are numbered from here on, and this many.
const CROWD_FROM: u32 = 1_000;
const CROWD_SIZE: u32 = 8;

/// Runs it. Answers the exit code: 0 clean, 1 violations beyond the printed class, 2 too weak to say, 128 and the signal's
/// number after a signal.
///
/// # Errors
/// An exit code and why: 64 wrong use, 69 an engine or a directory that cannot be used, 125 our own failure.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<u8, (u8, String)> {
    let _watch = interrupt::Watch::new();
    let mut run = Run::prepare(options)?;
    run.go();
    let verdict = run.judge().map_err(|text| (125, text))?;
    // Whoever reads may have gone; the exit code says it all the same.
    let _ = if options.json { writeln!(out, "{}", verdict.json()) } else { verdict.print(out) }.and_then(|()| out.flush());
    // A picture that cannot be drawn takes nothing of the verdict away.
    if let Err(text) = run.draw(&verdict) {
        run.say(&text);
    }
    Ok(interrupt::caught().map_or(verdict.exit_code(), |signal| u8::try_from(128 + signal).unwrap_or(130)))
}

/// How many of each there are.
#[derive(Clone, Copy)]
struct Size {
    clients: u32,
    tasks: u32,
    names: u32,
}

impl Size {
    fn of(options: &Options) -> Self {
        let usual = match &options.client {
            // A process a task.
            Subject::Exec(_) => [3, 1, 2],
            client => client.broken().map_or([4, 8, 8], |b| [b.clients, b.tasks, b.names]),
        };
        let [clients, tasks, names] = usual;
        Self { clients: options.clients.unwrap_or(clients), tasks: options.tasks.unwrap_or(tasks), names: options.names.unwrap_or(names) }
    }
}

struct Run {
    options: Options,
    size: Size,
    time: Duration,
    broken: Option<&'static Broken>,
    /// What hand-offs cost: sampled where a span begins and where it ends.
    samples: Vec<(Sample, Sample)>,
    plan: Vec<Planned>,
    /// Faults of the plan for which no time was left.
    left_out: usize,
    // Clients end before their servers.
    crew: Crew,
    arena: Box<dyn Arena>,
    started: u32,
    nemesis: Writer,
    resource: Writer,
    happened: BTreeMap<&'static str, u64>,
    looked: Instant,
    excuses: Excuses,
    starving: Arc<AtomicBool>,
    /// How long the longest fault lasted until it was mended.
    longest: Duration,
    /// When what is tortured was seen to be there, and why it is gone.
    there: u64,
    gone: Option<String>,
    /// Of clients that ended otherwise than they were told to.
    crashes: Vec<Conviction>,
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
        let time = options.time.unwrap_or(Duration::from_secs(if broken.is_some() { 60 } else { 30 }));
        let mut arena = arena::open(&options.url, scratch.path())?;
        let faults: Vec<Fault> = ANYWHERE.into_iter().chain(arena.faults()).collect();
        let chosen = choose(&options.faults, &faults, &arena.left_out()).map_err(wrong)?;
        let plan = match broken.filter(|_| options.faults.is_empty()) {
            Some(broken) => nemesis::rounds(options.seed, time, broken, size.clients, &faults),
            None => nemesis::plan(options.seed, time, size.clients, &chosen, Pace::of(arena.about().recovery)),
        };
        arena.is_to_suffer(&plan.iter().map(|planned| planned.fault.name).collect::<Vec<_>>());
        if let Some(broken) = broken
            && arena.home(0).map_err(own)?.is_none()
        {
            // Where clients live elsewhere only they can look.
            broken.can_show(&options.url, &arena.url(0).map_err(own)?).map_err(wrong)?;
        }
        let history = |name: &str, role| {
            let path = scratch.path().join(format!("{name}.lkh"));
            Writer::create(path, WriterOptions { role, label: name.to_owned(), ..WriterOptions::default() }).map_err(|e| own(e.to_string()))
        };
        let (nemesis, log) = (history("nemesis", Role::Nemesis)?, history("resource", Role::Resource)?);
        let background = Background::start().map_err(|e| own(e.to_string()))?;
        let socket = scratch.path().join("resource");
        background.block_on(resource::serve(&socket, log.clone())).map_err(|e| own(format!("{}: {e}", socket.display())))?;
        let pulse = Pulse::start().map_err(own)?;
        let about = arena.about();
        // What is no lock of ours was promised by nobody to be safe with late writes, or not to be.
        // Where no fault is, nobody is late.
        let tries_stand = about.engine == "zookeeper" || options.client != Subject::Shipped;
        let late = about.leases && options.client == Subject::Shipped && !plan.is_empty();
        let excuses = Excuses::new(late, about.recovery, pulse.late()).tries_stand(tries_stand).in_order(about.fair);
        let excuses = if plan.is_empty() { excuses.undisturbed() } else { excuses };
        let excuses = if options.client == Subject::Shipped { excuses } else { excuses.of_others() };
        Ok(Self {
            options: options.clone(),
            size,
            time,
            broken,
            samples: Vec::new(),
            plan,
            left_out: 0,
            crew: Crew::default(),
            arena,
            started: 0,
            nemesis,
            resource: log,
            happened: BTreeMap::new(),
            looked: Instant::now(),
            excuses,
            starving: Arc::default(),
            longest: Duration::ZERO,
            there: Writer::now(),
            gone: None,
            crashes: Vec::new(),
            pulse,
            scratch,
            _background: background,
        })
    }

    fn go(&mut self) {
        for number in 0..self.size.clients {
            self.start(number);
        }
        let mut table = Timetable::new(std::mem::take(&mut self.plan), self.time);
        let began = Instant::now();
        self.sample(0);
        let mut open: Vec<(Planned, u64, Instant)> = Vec::new();
        while let Some(due) = table.due() {
            if !self.wait_until(began, due) {
                break;
            }
            match table.take(began.elapsed()) {
                Some(Step::Begin(planned)) => {
                    let target = self.target(&planned);
                    self.begin(&planned, target);
                    open.push((planned, target, Instant::now()));
                }
                Some(Step::End(planned)) => {
                    let Some(at) = open.iter().position(|(p, ..)| *p == planned) else { continue };
                    let (_, target, since) = open.swap_remove(at);
                    self.end(&planned, target);
                    self.longest = self.longest.max(since.elapsed());
                }
                None => break,
            }
        }
        self.left_out = table.left_out();
        // An interrupt leaves nothing stopped, held or starved.
        for (planned, target, since) in open {
            self.end(&planned, target);
            self.longest = self.longest.max(since.elapsed());
        }
        if self.wait_until(began, self.time) {
            let there = self.arena.there();
            self.look(there, |arena| arena.lost_at_the_end());
        }
        self.finish();
    }

    /// Waits and shows how far it is; false when the user wants to end.
    fn wait_until(&mut self, began: Instant, at: Duration) -> bool {
        loop {
            if interrupt::caught().is_some() {
                return false;
            }
            self.notice_ends();
            if self.is_lost() {
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
                let faults: u64 = self.happened.values().sum();
                eprint!("\r\x1b[K{:>5.1} s of {:.0} s, {faults} faults", began.elapsed().as_secs_f64(), self.time.as_secs_f64());
            }
            std::thread::sleep(left.min(LOOK_AFTER_CLIENTS));
        }
    }

    /// Whether a broken client has shown already what is wrong with it; then there is no more to wait for.
    fn is_convicted(&mut self) -> bool {
        self.looked = Instant::now();
        let Some(broken) = self.broken else { return false };
        // The files are read one after the other: what happened meanwhile is in one of them and not yet in another.
        let begun = Writer::now();
        // Histories that cannot be read now are read at the end, where it is an error.
        let Ok((report, waited, _)) = self.findings() else { return false };
        let checked = report.violations.iter().filter(|v| v.at < begun).map(|v| v.class.as_str());
        checked.chain(waited.convictions.iter().map(|c| c.class)).any(|class| broken.convicted_by.contains(&class))
    }

    /// What the histories say, as far as they are written.
    fn findings(&self) -> Result<(check::Report, Waited, Chances), check::CheckError> {
        let recovery = self.arena.about().recovery;
        let options = check::Options {
            recovery: Some(recovery),
            recovery_slack: SLACK,
            late: self.pulse.late(),
            linger: self.arena.linger() + self.longest,
            withdraw: self.longest + WITHDRAW,
            allow: self.excuses.always(),
            lease: recovery,
            details: DETAILS,
            ..check::Options::default()
        };
        let dir = self.scratch.path();
        let report = check::check_files(&[dir], options)?;
        let mut tally = Tally::new(recovery, self.excuses.of_holds());
        let mut waited = waiting::judge(recovery, self.fair(), &self.pulse, dir, &mut tally)?;
        if self.happened.contains_key(CROWD) {
            waited.convictions.extend(cost::judge(&self.samples, dir)?);
        }
        waited.convictions.extend_from_slice(&self.crashes);
        // What a busy machine is forgiven is not asked here: it makes a run no weaker than the schedule was.
        let chances = tally.finish(|since, until| {
            Duration::from_nanos(until.saturating_sub(since)) > recovery + SLACK && !self.excuses.expects_wait(since, until)
        });
        Ok((report, waited, chances))
    }

    /// How many may pass one who waits, where a line keeps the order.
    fn fair(&self) -> Fair {
        let (about, ours) = (self.arena.about(), self.options.client == Subject::Shipped);
        Fair::among(self.size.clients, self.size.tasks, ours, [about.fair, about.fair_permits])
    }

    /// Starts a client, or a killed one again under a new history.
    fn start(&mut self, number: u32) {
        if let Err(error) = self.try_start(number) {
            self.say(&format!("{} cannot be started: {error}", label(number)));
        }
    }

    fn try_start(&mut self, number: u32) -> Result<(), String> {
        let start = self.started;
        self.started += 1;
        let orders = Orders {
            subject: self.options.client.clone(),
            url: self.arena.url(number)?,
            history: self.scratch.path().join(format!("client-{number}-{start}.lkh")),
            socket: self.scratch.path().join("resource"),
            label: label(number),
            tasks: self.size.tasks,
            names: self.size.names,
            seed: self.options.seed.wrapping_add(u64::from(start) << 20),
            recovery: self.arena.about().recovery,
        };
        self.crew.start(number, &orders, self.arena.home(number)?)
    }

    fn target(&self, planned: &Planned) -> u64 {
        if matches!(planned.fault.hits, Hits::Client | Hits::Link) { self.crew.pid(planned.client) } else { 0 }
    }

    fn begin(&mut self, planned: &Planned, target: u64) {
        let fault = planned.fault;
        // Written before the kill: the holder's interval ends here at the latest.
        let what = if fault.name == KILL { What::Kill } else { What::FaultBegin };
        self.nemesis.write_text(fault.name, Record::new(what).number(target));
        self.excuses.begin(fault, Writer::now());
        let done = match fault.name {
            STOP => self.crew.stop(planned.client, true),
            KILL => self.crew.kill(planned.client).inspect(|()| self.nemesis.write(Record::new(What::Exit).number(target))),
            STARVE => starve(&self.starving),
            CROWD => {
                (CROWD_FROM..CROWD_FROM + CROWD_SIZE).for_each(|number| self.start(number));
                self.sample(CROWD_SIZE);
                Ok(())
            }
            name => self.arena.strike(name, planned.client),
        };
        match done {
            Ok(()) => *self.happened.entry(fault.name).or_default() += 1,
            Err(text) => {
                self.excuses.failed(fault);
                self.say(&format!("{}: {text}", fault.name));
            }
        }
    }

    /// `target` is the process that was hit when it began; another may have taken its place.
    fn end(&mut self, planned: &Planned, target: u64) {
        let fault = planned.fault;
        let done = match fault.name {
            STOP => self.crew.stop(planned.client, false).map(|()| Mended::Ended),
            KILL => {
                self.start(planned.client);
                Ok(Mended::Ended)
            }
            STARVE => {
                self.starving.store(false, Ordering::Release);
                Ok(Mended::Ended)
            }
            CROWD => {
                self.sample(0);
                self.dismiss(&(CROWD_FROM..CROWD_FROM + CROWD_SIZE).collect::<Vec<_>>());
                Ok(Mended::Ended)
            }
            name => self.arena.mend(name, planned.client),
        };
        match done {
            Ok(Mended::Ended) => {}
            Ok(Mended::HitNobody(why)) => {
                self.excuses.failed(fault);
                if let Some(count) = self.happened.get_mut(fault.name) {
                    *count = count.saturating_sub(1);
                }
                self.happened.retain(|_, count| *count > 0);
                self.say(&format!("{} is not counted: {why}", fault.name));
            }
            Err(text) => self.say(&format!("{}: {text}", fault.name)),
        }
        self.excuses.end(fault, Writer::now());
        if fault.name != KILL {
            self.nemesis.write_text(fault.name, Record::new(What::FaultEnd).number(target));
        }
    }

    /// Whether what is tortured has gone for good: then there is nothing more to learn.
    fn is_lost(&mut self) -> bool {
        let there = self.arena.there();
        self.look(there, |arena| arena.lost())
    }

    fn look(&mut self, there: u64, lost: fn(&mut dyn Arena) -> Option<String>) -> bool {
        if self.gone.is_none() {
            match lost(&mut *self.arena) {
                None => self.there = there,
                Some(why) => {
                    self.say(&format!("{why}; this torture ends here"));
                    self.gone = Some(why);
                }
            }
        }
        self.gone.is_some()
    }

    /// Convicts clients that ended by themselves. Whether their locks went with them is for the checker, which hears of it now.
    fn notice_ends(&mut self) {
        for (number, pid, how) in self.crew.ended() {
            self.convict(number, pid, &how);
        }
    }

    fn convict(&mut self, number: u32, pid: u64, fate: &Fate) {
        self.nemesis.write(Record::new(What::Exit).number(pid));
        let sentence = format!("{} (process {pid}) {}", label(number), fate.how);
        self.say(&sentence);
        if fate.no_room {
            self.gone.get_or_insert(sentence);
            return;
        }
        let at = Writer::now();
        self.crashes.push(Conviction { class: CRASH, name: String::new(), at, until: at, sentence });
    }

    /// Lets clients finish, and makes those finish who do not.
    fn dismiss(&mut self, numbers: &[u32]) {
        self.notice_ends();
        numbers.iter().for_each(|number| self.crew.dismiss(*number));
        let nemesis = &self.nemesis;
        let mut before_kill = |pid| nemesis.write_text(KILL, Record::new(What::Kill).number(pid));
        let ended = self.crew.wait(numbers, &mut before_kill);
        for (number, pid, how) in ended {
            match how {
                Ok(()) => self.nemesis.write(Record::new(What::Exit).number(pid)),
                Err(how) => self.convict(number, pid, &how),
            }
        }
    }

    fn finish(&mut self) {
        self.starving.store(false, Ordering::Release);
        self.dismiss(&self.crew.numbers());
        for log in [&self.nemesis, &self.resource] {
            if let Err(error) = log.finish() {
                self.say(&format!("a history could not be ended: {error}"));
            }
        }
        if self.options.progress && std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }

    /// A span ends here, and the next one begins, with so many clients more.
    fn sample(&mut self, more: u32) {
        let Some(calls) = self.arena.calls() else { return };
        let sample = Sample { at: Writer::now(), calls, tasks: (self.size.clients + more) * self.size.tasks };
        if let Some((_, end)) = self.samples.last_mut() {
            (end.at, end.calls) = (sample.at, sample.calls);
        }
        self.samples.push((sample, sample));
    }

    fn say(&self, text: &str) {
        eprintln!("lockkeeper: torture: {text}");
    }

    fn judge(&mut self) -> Result<Verdict, String> {
        let about = self.arena.about();
        let (report, Waited { mut convictions, passed_most }, chances) = self.findings().map_err(|e| {
            self.scratch.disable_cleanup(true);
            format!("{e}; histories kept in {}", self.scratch.path().display())
        })?;
        let gone = self.gone.as_ref().map(|_| self.there);
        if let Some(at) = report.blind_from.into_iter().chain(gone).min() {
            self.excuses.blind_from(at);
            // Who was owed the lock from just before on was not owed it for long enough.
            let bound = u64::try_from((about.recovery + SLACK).as_nanos()).unwrap_or(u64::MAX);
            convictions.retain(|c| c.at.saturating_add(if c.class == LIVENESS { bound } else { 0 }) < at);
        }
        let outcome = Outcome {
            about,
            seed: self.options.seed,
            replay: self.options.replay(self.time, [self.size.clients, self.size.tasks, self.size.names]),
            client: self.options.client.clone(),
            broken: self.broken,
            weak: self.weakness(&report, &chances),
            chances,
            faults: std::mem::take(&mut self.happened),
            left_out: self.left_out(),
            report,
            convictions,
            passed: (passed_most, self.fair().shown()),
        };
        let verdict = Verdict::new(outcome, &self.excuses);
        if !verdict.has_violations() {
            return Ok(verdict);
        }
        self.scratch.disable_cleanup(true);
        Ok(verdict.kept_in(self.scratch.path().to_owned()))
    }

    fn left_out(&self) -> Vec<String> {
        let late = || format!("{} faults at the end of the schedule: what came before took longer than planned", self.left_out);
        self.arena.left_out().into_iter().chain((self.left_out > 0).then(late)).collect()
    }

    fn draw(&self, verdict: &Verdict) -> Result<(), String> {
        let (histories, told) = ([self.scratch.path()], verdict.told(self.arena.about().engine, &self.excuses));
        if let Some(path) = &self.options.report {
            (self.options.write)(path, &picture::page(&histories, &told).map_err(|e| e.to_string())?)?;
        }
        if self.options.ascii {
            eprint!("{}", picture::ascii(&histories, &told, 100).map_err(|e| e.to_string())?);
        }
        Ok(())
    }

    /// Why nothing could be learnt, if so.
    fn weakness(&self, report: &check::Report, chances: &Chances) -> Option<String> {
        if report.blind_from.is_some() {
            return Some("a history ended early, for want of room; what came after that is not judged".to_owned());
        }
        if let Some(why) = &self.gone {
            return Some(format!("{why}; what came after that is not judged"));
        }
        let wanted = !self.options.faults.iter().any(|f| f == "none");
        if report.counts.holds == 0 {
            return Some("nothing was held".to_owned());
        }
        if let Some(broken) = self.broken {
            // It is known to be wrong: that nothing was seen says nothing about anybody.
            return Some(format!("what is wrong with broken:{} was not seen", broken.name));
        }
        if wanted && self.happened.is_empty() {
            return Some("no fault happened".to_owned());
        }
        let (about, shipped) = (self.arena.about(), self.options.client == Subject::Shipped);
        // Only our recorder writes down that a lease ended.
        let chances = Chances { stops: if about.leases && shipped { chances.stops } else { 0 }, ..*chances };
        if let Some(why) = chances.missing(Duration::from_nanos(report.span.1.saturating_sub(report.span.0)), about.recovery) {
            return Some(why);
        }
        // Others' locks have no class of ours to show.
        let class = about.class;
        if self.options.client == Subject::Shipped { self.excuses.not_shown(class, &report.violations) } else { None }
    }
}

/// The faults that the user wants: without a choice all that are not for somebody in particular. Lines of `left_out` are names, a colon, and
/// why these cannot be had.
fn choose(wanted: &[String], known: &[Fault], left_out: &[String]) -> Result<Vec<Fault>, String> {
    let mut chosen = Vec::new();
    for name in wanted.iter().filter(|f| *f != "none") {
        let Some(fault) = known.iter().find(|k| k.name == name) else {
            let mut why = left_out.iter().filter_map(|line| line.split_once(": "));
            if let Some((_, why)) = why.find(|(names, _)| names.split(", ").any(|of| of == name)) {
                return Err(format!("{name} cannot be had here: {why}"));
            }
            let names: Vec<&str> = known.iter().map(|k| k.name).collect();
            return Err(format!("{name:?} is no fault here; there are: none, {}", names.join(", ")));
        };
        chosen.push(*fault);
    }
    if wanted.is_empty() {
        chosen.extend(known.iter().filter(|k| !ON_REQUEST.contains(&k.name)));
    }
    Ok(chosen)
}

/// Two threads a processor that do nothing but take time.
fn starve(on: &Arc<AtomicBool>) -> Result<(), String> {
    on.store(true, Ordering::Release);
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    for _ in 0..processors * 2 {
        let on = on.clone();
        let spin = move || {
            while on.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        };
        std::thread::Builder::new().spawn(spin).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// What a client is called.
fn label(number: u32) -> String {
    if number < CROWD_FROM { format!("client {number}") } else { format!("crowd {}", number - CROWD_FROM) }
}
