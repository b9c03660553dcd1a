//! `lockkeeper run` under strikes: several on one name, of which the front, the guardian or the
//! command is stopped or killed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper_testkit::dice::Dice;
use nix::sys::signal::Signal;

use super::lease::{Engine, arguments, guardian, nobody_wrote_late};
use super::{Place, Reaped, is_alive, json, kill, until_within};

/// A command with children that all write its token; it says who it is first.
const COMMAND: &str = r#"
$TRAP
echo "$LOCKKEEPER_TOKEN $PPID $$" >> enters
write() { while [ ! -e "over.$$" ]; do echo "$LOCKKEEPER_TOKEN." >> writes; sleep 0.1; done; }
write & (write &)
wait
"#;

/// How many stand in line beside the holder.
const WAITERS: usize = 2;
/// What a busy machine may add to a time that is promised to somebody who waits.
const SLACK: Duration = Duration::from_secs(10);

/// What happens to the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strike {
    KillFront,
    KillGuardian,
    KillCommand,
    StopGuardian,
    StopThenKillFront,
    StopCommandThenKillFront,
    EndWhileFrontIsStopped,
}

const STRIKES: [Strike; 7] = [
    Strike::KillFront,
    Strike::KillGuardian,
    Strike::KillCommand,
    Strike::StopGuardian,
    Strike::StopThenKillFront,
    Strike::StopCommandThenKillFront,
    Strike::EndWhileFrontIsStopped,
];

/// A command that has the lock, as it said itself.
#[derive(Clone, Copy, Debug)]
struct Entered {
    token: u64,
    front: i32,
    command: i32,
}

/// One name, and those who want it.
pub struct Line<'a> {
    engine: &'a Engine,
    /// After this long a lock of somebody who died is free again.
    recovery: Duration,
    name: String,
    place: Place,
    dice: Dice,
    runs: Vec<Reaped>,
    /// The strikes to come.
    deck: Vec<Strike>,
    /// Of all that were started.
    guardians: Vec<i32>,
}

impl<'a> Line<'a> {
    pub fn new(engine: &'a Engine, recovery: Duration, name: &str, dice: Dice) -> Self {
        let (name, place) = (name.to_owned(), Place::new());
        Self {
            engine,
            recovery,
            name,
            place,
            dice,
            runs: Vec::new(),
            deck: Vec::new(),
            guardians: Vec::new(),
        }
    }

    /// Strikes one holder after the other until the time is over; answers how often each strike was
    /// made.
    pub fn torture(mut self, time: Duration) -> BTreeMap<Strike, u32> {
        let began = Instant::now();
        let mut made = BTreeMap::new();
        let mut holder = self.next_after(0, Duration::from_secs(30));
        while began.elapsed() < time {
            let strike = self.draw();
            self.annoy(&holder);
            holder = self.round(strike, &holder);
            *made.entry(strike).or_default() += 1;
        }
        self.end();
        made
    }

    /// The next strike: each of them comes up once before any comes up again.
    fn draw(&mut self) -> Strike {
        if self.deck.is_empty() {
            self.deck = STRIKES.to_vec();
        }
        let at = self.dice.below(self.deck.len() as u64);
        self.deck.swap_remove(usize::try_from(at).unwrap())
    }

    /// Lets somebody else stand in line, at default options.
    fn add(&mut self) {
        let trap = if self.dice.chance(500) { "trap '' TERM" } else { ":" };
        let script = COMMAND.replace("$TRAP", trap);
        let line = ["run", &self.name, "-q", "--", "sh", "-c", &script];
        let run = self.engine.start_hasty(&self.place, &line);
        self.guardians.push(guardian(run.pid()));
        self.runs.push(run);
    }

    /// The commands that have entered, in their order.
    fn entered(&self) -> Vec<Entered> {
        let text = std::fs::read_to_string(self.place.path("enters")).unwrap_or_default();
        let numbers = text.lines().filter_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [token, front, command] = words[..] else { return None };
            Some(Entered {
                token: token.parse().ok()?,
                front: front.parse().ok()?,
                command: command.parse().ok()?,
            })
        });
        numbers.collect()
    }

    /// Waits until the next command has entered, and the line is as long as it should be.
    fn next_after(&mut self, token: u64, within: Duration) -> Entered {
        while self.runs.len() <= WAITERS {
            self.add();
        }
        let what = format!("{}: somebody enters after {token}", self.name);
        let next = until_within(within, &what, || {
            self.entered().last().copied().filter(|entered| entered.token > token)
        });
        let status = ["status", &self.name, "--json"];
        until_within(within, &format!("{}: {WAITERS} stand in line", self.name), || {
            let ran = self.engine.run(&self.place, &status);
            (json(ran.out.trim_end())["waiters"].as_array()?.len() >= WAITERS).then_some(())
        });
        next
    }

    /// What takes nothing from anybody: a look at a stopped process, a signal that is ignored, a
    /// waiter that dies.
    fn annoy(&mut self, holder: &Entered) {
        match self.dice.below(4) {
            0 => {
                // Shorter than anything that counts.
                kill(guardian(holder.front), Signal::SIGSTOP);
                std::thread::sleep(Duration::from_millis(self.dice.below(300)));
                kill(guardian(holder.front), Signal::SIGCONT);
            }
            1 => kill(guardian(holder.front), Signal::SIGTERM),
            2 => {
                kill(holder.front, Signal::SIGSTOP);
                std::thread::sleep(Duration::from_millis(self.dice.below(3_000)));
                kill(holder.front, Signal::SIGCONT);
            }
            _ => {
                let waiter = self.runs.iter().position(|run| run.pid() != holder.front).unwrap();
                let mut waiter = self.runs.swap_remove(waiter);
                let of_waiter = guardian(waiter.pid());
                waiter.signal(Signal::SIGKILL);
                assert_eq!(waiter.wait(), 1_009);
                self.gone(of_waiter, "the guardian of a waiter that was killed", SLACK);
            }
        }
    }

    fn gone(&self, pid: i32, what: &str, within: Duration) {
        until_within(within, &format!("{}: {what} is gone", self.name), || {
            (!is_alive(pid)).then_some(())
        });
    }

    /// Strikes the holder, and looks that everything of it goes and the next one enters in time;
    /// answers that one.
    fn round(&mut self, strike: Strike, holder: &Entered) -> Entered {
        let at = self.runs.iter().position(|run| run.pid() == holder.front).unwrap();
        let mut front = self.runs.swap_remove(at);
        let keeper = guardian(front.pid());
        let began = Instant::now();
        match strike {
            Strike::KillFront => front.signal(Signal::SIGKILL),
            Strike::KillGuardian => kill(keeper, Signal::SIGKILL),
            Strike::KillCommand => kill(holder.command, Signal::SIGKILL),
            Strike::StopGuardian => kill(keeper, Signal::SIGSTOP),
            Strike::StopThenKillFront => {
                front.signal(Signal::SIGSTOP);
                std::thread::sleep(Duration::from_millis(self.dice.below(2_000)));
                front.signal(Signal::SIGKILL);
            }
            Strike::StopCommandThenKillFront => {
                kill(-holder.command, Signal::SIGSTOP);
                front.signal(Signal::SIGKILL);
            }
            Strike::EndWhileFrontIsStopped => {
                front.signal(Signal::SIGSTOP);
                std::fs::write(self.place.path(&format!("over.{}", holder.command)), "").unwrap();
            }
        }
        // Whatever was struck, and whether or not anybody waits: nothing of the command runs once
        // its lock may be another's.
        let group = holder.command;
        let what = format!("{}: {strike:?}: nothing of the command {holder:?} runs", self.name);
        until_within(self.recovery, &what, || members(group).is_empty().then_some(()));
        let left = (self.recovery + SLACK).saturating_sub(began.elapsed());
        let next = self.next_after(holder.token, left);
        nobody_wrote_late(&self.place.path("writes"));
        let expected: &[i32] = match strike {
            Strike::KillFront | Strike::StopThenKillFront | Strike::StopCommandThenKillFront => {
                &[1_009]
            }
            Strike::KillGuardian | Strike::StopGuardian => &[79],
            Strike::KillCommand => &[137],
            Strike::EndWhileFrontIsStopped => {
                front.signal(Signal::SIGCONT);
                &[0]
            }
        };
        let code = front.wait();
        assert!(
            expected.contains(&code),
            "{}: {strike:?}: exit {code} instead of {expected:?}",
            self.name
        );
        self.gone(keeper, &format!("{strike:?}: the guardian"), SLACK);
        // Nobody who was not struck ends.
        for run in &mut self.runs {
            assert_eq!(
                run.0.try_wait().unwrap(),
                None,
                "{}: {strike:?}: somebody else ended",
                self.name
            );
        }
        next
    }

    /// Ends those who are left, and looks that no process stays.
    fn end(mut self) {
        self.runs.clear();
        for keeper in &self.guardians {
            // Its number may be another process's by now.
            let stays = || arguments(*keeper).get(1).is_some_and(|word| word == "__guardian");
            until_within(
                self.recovery,
                &format!("{}: guardian {keeper} is gone at the end", self.name),
                || (!stays()).then_some(()),
            );
        }
        for entered in self.entered() {
            assert_eq!(
                members(entered.command),
                Vec::<i32>::new(),
                "{}: something of {entered:?} is left",
                self.name
            );
        }
        nobody_wrote_late(&self.place.path("writes"));
    }
}

impl Drop for Line<'_> {
    /// A test that fails leaves nothing either.
    fn drop(&mut self) {
        self.runs.clear();
        for entered in self.entered() {
            members(entered.command).into_iter().for_each(|pid| kill(pid, Signal::SIGKILL));
        }
    }
}

/// The living processes of a group.
fn members(group: i32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        is_alive(*pid)
            && nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(*pid)))
                .is_ok_and(|g| g.as_raw() == group)
    })
    .collect()
}
