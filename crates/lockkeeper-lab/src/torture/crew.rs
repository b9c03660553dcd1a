//! The client processes: started, stopped, killed, and made to end.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::HELPER;
use super::client::NO_ROOM;
use super::network::Namespace;
use super::orders::Orders;
use super::pulse::Processes;
use crate::helper::{self, Program};
use crate::interrupt;

/// The word for an end that nobody asked for, and for none where one was asked for.
pub(super) const CRASH: &str = "crash";
/// How long clients may take to finish once they are told to.
const PATIENCE: Duration = Duration::from_secs(20);

struct Member {
    child: Child,
    stopped: bool,
}

impl Member {
    /// A client is a process group of its own: what it started is stopped and killed with it, and
    /// Ctrl-C is for us.
    fn signal(&self, signal: Signal) -> Result<(), String> {
        let group = i32::try_from(self.child.id()).map_err(|e| e.to_string())?;
        killpg(Pid::from_raw(group), signal).map_err(|e| e.to_string())
    }

    /// Whether it has not ended yet. It is not waited for, so that its number stays its group's.
    fn runs(&self) -> bool {
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let pid = i32::try_from(self.child.id()).map(Pid::from_raw);
        pid.is_ok_and(|pid| matches!(waitid(Id::Pid(pid), look), Ok(WaitStatus::StillAlive)))
    }

    /// How it ended, once it has; what it started and left behind ends now. To be asked no more
    /// after that.
    fn over(&mut self) -> Option<ExitStatus> {
        if self.runs() {
            return None;
        }
        // Mostly there is nobody left.
        let _ = self.signal(Signal::SIGKILL);
        self.child.wait().ok()
    }
}

/// Lets this process and those that it starts open as many files as it may: the resource has one
/// for every task, the links have several for every connection.
pub(super) fn raise_descriptors() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // What cannot be raised is enough for most; what is not says so when it is reached.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// See the module. Dropping it kills everybody.
pub(super) struct Crew {
    members: BTreeMap<u32, Member>,
    /// Where it is known whether their threads are run.
    processes: Processes,
    /// Those that were dead already when they were to be killed.
    dead: Vec<(u32, u64, Fate)>,
}

impl Crew {
    pub(super) fn watched_by(processes: Processes) -> Self {
        Self { members: BTreeMap::new(), processes, dead: Vec::new() }
    }

    /// Starts a client, where it has to live.
    pub(super) fn start(
        &mut self,
        number: u32,
        orders: &Orders,
        home: Option<&Namespace>,
    ) -> Result<(), String> {
        let program = Program::this().map_err(|e| e.to_string())?;
        let spawn = move || program.helper(HELPER).stdout(Stdio::null()).spawn();
        let child = match home {
            Some(home) => home.run(spawn).and_then(|child| child),
            None => spawn(),
        };
        let mut child = child.map_err(|e| e.to_string())?;
        // One that died at once is found dead at its next fault, or at the end.
        let _ = helper::tell(&mut child, orders);
        self.processes.add(child.id());
        self.members.insert(number, Member { child, stopped: false });
        Ok(())
    }

    /// Its process, if it runs.
    pub(super) fn running(&mut self, number: u32) -> Result<u64, String> {
        let member = self.members.get(&number).ok_or("the client no longer exists")?;
        if member.runs() {
            Ok(u64::from(member.child.id()))
        } else {
            Err("the client has ended".to_owned())
        }
    }

    /// Who is there.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.members.keys().copied().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Stops it as it stands, or lets it go on.
    pub(super) fn stop(&mut self, number: u32, stop: bool) -> Result<(), String> {
        let member = self.members.get_mut(&number).ok_or("the client no longer exists")?;
        member.signal(if stop { Signal::SIGSTOP } else { Signal::SIGCONT })?;
        member.stopped = stop;
        Ok(())
    }

    /// Kills it, and everything that it started.
    pub(super) fn kill(&mut self, number: u32) -> Result<(), String> {
        let mut member = self.members.remove(&number).ok_or("the client no longer exists")?;
        member.signal(Signal::SIGKILL)?;
        let status = member.child.wait().map_err(|e| e.to_string())?;
        if status.signal() == Some(Signal::SIGKILL as i32) {
            return Ok(());
        }
        self.dead.push((number, u64::from(member.child.id()), by_itself(status)));
        Err("the client had ended before".to_owned())
    }

    /// Takes out those that ended by themselves since the last time: who, its process, and how.
    pub(super) fn ended(&mut self) -> Vec<(u32, u64, Fate)> {
        let mut ended = std::mem::take(&mut self.dead);
        self.members.retain(|number, member| {
            let status = member.over();
            ended.extend(
                status.map(|status| (*number, u64::from(member.child.id()), by_itself(status))),
            );
            status.is_none()
        });
        ended
    }

    /// Tells one that its work is over.
    pub(super) fn dismiss(&mut self, number: u32) {
        let Some(member) = self.members.get_mut(&number) else { return };
        if member.stopped {
            // It may have died meanwhile; then there is nobody to wake.
            let _ = member.signal(Signal::SIGCONT);
        }
        drop(member.child.stdin.take());
    }

    /// Waits until all that were told have ended; answers who ended how. `before_kill` hears of
    /// those that have to be killed.
    pub(super) fn wait(
        &mut self,
        numbers: &[u32],
        before_kill: &mut dyn FnMut(u64),
    ) -> Vec<(u32, u64, Result<(), Fate>)> {
        let until = Instant::now() + PATIENCE;
        let mut ended = Vec::new();
        for number in numbers {
            let Some(mut member) = self.members.remove(number) else { continue };
            while Instant::now() < until && !interrupt::insists() && member.runs() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let how = match member.over() {
                Some(status) if status.success() => Ok(()),
                Some(status) => Err(Fate::of("ended", status)),
                None => {
                    before_kill(u64::from(member.child.id()));
                    end(&mut member);
                    let how = format!(
                        "did not end within {} s of the request, and is killed",
                        PATIENCE.as_secs()
                    );
                    Err(Fate { how, no_room: false })
                }
            };
            ended.push((*number, u64::from(member.child.id()), how));
        }
        ended
    }
}

/// How one ended that was not to end so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) how: String,
    /// The laboratory had no room for it: that convicts nobody.
    pub(super) no_room: bool,
}

impl Fate {
    fn of(what: &str, status: ExitStatus) -> Self {
        let no_room = status.code() == Some(NO_ROOM.into());
        let how = if no_room {
            "had no room for its history, or no resource".to_owned()
        } else {
            format!("{what} with {status}")
        };
        Self { how, no_room }
    }
}

fn by_itself(status: ExitStatus) -> Fate {
    Fate::of("ended by itself", status)
}

fn end(member: &mut Member) {
    // Whoever is gone already needs no killing.
    let _ = member.signal(Signal::SIGKILL);
    let _ = member.child.wait();
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.members.values_mut().for_each(end);
    }
}
