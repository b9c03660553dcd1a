//! The line of a quorum on virtual time: real processes, each with a keeper and an engine, over
//! simulated links, before five members whose scripts are a machine in Rust. A seed decides what
//! takes how long, what is lost and who goes first; it gives the same course again.
//!
//! Checked are both sides: no two hold at once and tokens rise, and whoever waits gets its turn.
//! While a living process waits and nobody holds, the lock is idle no longer than is promised; each
//! that waits asks every five seconds, is passed by no more than its rivals, and does not give up
//! beside a free lock.

mod compared;
mod log;
mod member;
mod net;
mod plans;
mod planted;
mod rules;
mod schedules;
mod stage;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::dice::Dice;
use tokio::time::sleep;

use super::super::registration::laboratory;
use crate::Locks;
use crate::engine::either::either;
use crate::engine::stream::memory;
use crate::engine::{BoxFuture, Common};
use crate::open::url::EngineUrl;
use crate::test_util::Host;
use crate::words::error::ErrorKind;
use crate::words::id::seeded;
use log::{Course, Log, Promise, What};
use net::{MEMBERS, Net, Weather};
use planted::Planted;
use stage::{Life, Stage};

const fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

const fn secs(time: u64) -> Duration {
    Duration::from_secs(time)
}

/// What happens to whom, and when.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// These stop, and their connections stay.
    Stop(&'static [usize]),
    /// These go on.
    GoOn(&'static [usize]),
    /// So many of those that stand first are killed.
    KillFirst(usize),
    /// They stop, and their connections stay.
    StopFirst(usize),
    /// The holder is killed.
    KillHolder,
    /// The places of a process on these members are forgotten.
    Forget(usize, &'static [usize]),
    /// The line of a member is turned round.
    TurnRound(usize),
    /// A member forgets its line.
    ForgetLine(usize),
    Away(usize),
    Back(usize),
    /// A member answers nothing, and its connections stay.
    Hang(usize),
    /// What a process writes to these members from now on, as long as its connections last, takes
    /// so much longer.
    SlowDown(usize, &'static [usize], Duration),
}

/// A simulation.
#[derive(Clone, Debug)]
struct Plan {
    processes: usize,
    /// How many tasks of each ask for the lock.
    tasks: usize,
    hold: Duration,
    /// How long a task does something else between two holds, at most.
    pause: Duration,
    ttl: Duration,
    /// How long a task waits, if not for ever.
    wait: Option<Duration>,
    /// How long all this goes on.
    lasts: Duration,
    weather: Weather,
    /// How far the members' clocks are ahead of the slowest.
    ahead: [Duration; MEMBERS],
    faults: Vec<(Duration, Fault)>,
    promise: Promise,
    member: Option<rules::Flaw>,
    /// A rule that so many processes leave out, the first ones.
    process: Option<(planted::Flaw, usize)>,
}

impl Plan {
    /// So many processes that take the lock in turns, before members that are well.
    fn of(processes: usize) -> Self {
        Self {
            processes,
            tasks: 1,
            hold: ms(20),
            pause: Duration::ZERO,
            ttl: secs(30),
            wait: None,
            lasts: secs(20),
            weather: Weather::FAIR,
            ahead: [0, 70, 140, 210, 280].map(ms),
            faults: Vec::new(),
            promise: Promise {
                idle: ms(100),
                dead: secs(3),
                asks: ms(5_300),
                passed: processes + 4,
            },
            member: None,
            process: None,
        }
    }
}

/// How a simulation went.
struct Played {
    course: Course,
    commands: u64,
    told: String,
    log: Arc<Log>,
}

impl Plan {
    fn play(&self, seed: u64) -> Played {
        seeded::seed(Some(seed));
        let played = Stage::play(self.clone().run(seed));
        memory::dial_by(None);
        seeded::seed(None);
        played
    }

    async fn run(self, seed: u64) -> Played {
        let log = Arc::new(Log::new());
        let stage = Stage::new();
        let net = Net::new(seed, &self, log.clone());
        let dials = net.clone();
        memory::dial_by(Some(Box::new(move |host| dials.dial(host))));
        let mut dice = Dice::new(seed ^ 0x1057);
        let mut lives = Vec::new();
        for process in 0..self.processes {
            let life = Life::new(&stage);
            let (plan, log, stage, dice) = (self.clone(), log.clone(), stage.clone(), dice.split());
            let task = process_task(plan, process, life.clone(), log, stage, dice);
            life.spawn(task);
            lives.push(life);
        }
        let mut faults = self.faults.clone();
        faults.sort_by_key(|(at, _)| *at);
        let mut now = Duration::ZERO;
        for (at, fault) in faults {
            sleep(at.saturating_sub(now)).await;
            now = at;
            befall(fault, &net, &lives, &log);
        }
        sleep(self.lasts.saturating_sub(now)).await;
        let course = log.judge(self.promise);
        Played { course, commands: net.commands(), told: log.told(), log }
    }
}

/// What a process does: its tasks take the lock in turns with all others, without end.
fn process_task(
    plan: Plan,
    process: usize,
    life: Life,
    log: Arc<Log>,
    stage: Stage,
    mut dice: Dice,
) -> BoxFuture<()> {
    Box::pin(async move {
        let url = format!("redlock-lab://{}", Net::hosts(process));
        let mut url = EngineUrl::parse(&url).expect("it is one");
        let common = Common::new(plan.ttl, 100);
        let engine = (laboratory().open)(&mut url, &common).expect("it is understood");
        let flaw = plan.process.filter(|(_, those)| process < *those).map(|(flaw, _)| flaw);
        let engine = Planted::new(engine, flaw, (process, log.clone()));
        let builder = Locks::builder().clock(stage.clock.clone()).host(Arc::new(life.clone()));
        let builder = builder.ttl(plan.ttl).hand_off(0);
        let locks = builder.with_engine(engine).await.expect("the members can be used");
        for task in 0..plan.tasks {
            let (locks, plan, log, dice) = (locks.clone(), plan.clone(), log.clone(), dice.split());
            life.spawn(Box::pin(hold_in_turns(locks, plan, (process, task), log, dice)));
        }
    })
}

async fn hold_in_turns(locks: Locks, plan: Plan, who: log::Who, log: Arc<Log>, mut dice: Dice) {
    let mutex = locks.mutex("stock");
    loop {
        log.note(What::Waits { who });
        let asked = mutex.lock();
        let asked = match plan.wait {
            Some(wait) => asked.timeout(wait),
            None => asked,
        };
        match asked.await {
            Ok(guard) => {
                let token = guard.token().map_or(0, |token| token.get());
                log.note(What::Holds { who, token });
                {
                    let over = std::pin::pin!(sleep(plan.hold));
                    let lost = std::pin::pin!(guard.lost());
                    _ = either(over, lost).await;
                }
                log.note(What::Gives { who });
                drop(guard.release().await);
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => log.note(What::Leaves { who }),
            Err(error) => panic!("{who:?}: {error}"),
        }
        let pause = u64::try_from(plan.pause.as_millis()).unwrap_or(u64::MAX);
        sleep(ms(dice.below(pause + 1))).await;
    }
}

/// The first that stand in line, as most members have it.
fn first_in_line(net: &Net, count: usize, log: &Log) -> Vec<usize> {
    let mut places: BTreeMap<usize, usize> = BTreeMap::new();
    for member in 0..MEMBERS {
        for (rank, process) in net.line(member).into_iter().enumerate() {
            *places.entry(process).or_default() += 100 - rank;
        }
    }
    let holder = log.holder().map(|(process, _)| process);
    let mut first: Vec<(usize, usize)> =
        places.into_iter().filter(|(process, _)| Some(*process) != holder).collect();
    first.sort_by_key(|(process, ranks)| (std::cmp::Reverse(*ranks), *process));
    first.into_iter().take(count).map(|(process, _)| process).collect()
}

fn befall(fault: Fault, net: &Net, lives: &[Life], log: &Log) {
    let end = |process: usize, killed: bool| {
        if let Some(life) = lives.get(process) {
            life.stop(true);
            log.note(What::Dies { process });
        }
        if killed {
            net.kill(process);
        }
    };
    match fault {
        Fault::Stop(those) => those.iter().for_each(|process| end(*process, false)),
        Fault::GoOn(those) => {
            for process in those {
                log.note(What::Revives { process: *process });
                if let Some(life) = lives.get(*process) {
                    life.stop(false);
                }
            }
        }
        Fault::KillFirst(count) => {
            first_in_line(net, count, log).into_iter().for_each(|process| end(process, true));
        }
        Fault::StopFirst(count) => {
            first_in_line(net, count, log).into_iter().for_each(|process| end(process, false));
        }
        Fault::KillHolder => {
            if let Some((process, _)) = log.holder() {
                end(process, true);
            }
        }
        Fault::Forget(process, members) => {
            for member in members {
                let at = net.line(*member).iter().position(|one| *one == process);
                net.at(*member, |lock| at.map(|at| lock.line.remove(at)));
            }
        }
        Fault::TurnRound(member) => {
            log.note(What::Meddles);
            net.at(member, |lock| {
                let firsts: Vec<f64> = lock.line.iter().rev().map(|(first, _)| *first).collect();
                lock.line.reverse();
                lock.line.iter_mut().zip(firsts.into_iter().rev()).for_each(|(one, f)| one.0 = f);
            });
        }
        Fault::ForgetLine(member) => {
            net.at(member, |lock| lock.line.clear());
        }
        Fault::Away(member) => net.set_away(member, true),
        Fault::Back(member) => net.set_away(member, false),
        Fault::Hang(member) => net.hang(member),
        Fault::SlowDown(process, members, by) => {
            members.iter().for_each(|member| net.slow_down(process, *member, by));
        }
    }
}
