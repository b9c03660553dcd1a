//! Which processes are left of a group or a tree.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpgrp, getpid};

/// What /proc says about one process.
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    dead: bool,
    stopped: bool,
}

/// Whether a process of this group still runs. Zombies do not: where nobody reaps orphans they stay
/// for ever.
pub fn is_alive(group: Pid) -> bool {
    match kill(Pid::from_raw(-group.as_raw()), None) {
        Err(Errno::ESRCH) => false,
        // Somebody is there; /proc tells the living from the dead. Without /proc, whoever is there
        // counts.
        _ => processes().is_none_or(|all| all.iter().any(|p| p.group == group.as_raw() && !p.dead)),
    }
}

/// Our children of now: those whom a program left to us before it became us, and who are no
/// business of ours.
pub fn children() -> Vec<Pid> {
    let us = getpid().as_raw();
    let all = processes().unwrap_or_default();
    all.iter().filter(|p| p.parent == us).map(|p| Pid::from_raw(p.pid)).collect()
}

/// Whether a process that descends from us, and from nobody of `before`, still runs in our own
/// group. Where we are the subreaper, that is whoever a command in our group left behind.
pub fn is_anybody_below(before: &[Pid]) -> bool {
    let all = processes().unwrap_or_default();
    below(getpid(), before, &all).any(|p| is_ours(p) && !p.dead)
}

/// Sends a signal to a process, if it was not reaped yet, and to all that descend from it; and to
/// whoever descends from us, and from nobody of `before`, in our group; as far as they can be seen
/// now.
pub fn signal_tree(root: Option<Pid>, before: &[Pid], signal: Signal) {
    let all = processes().unwrap_or_default();
    let left = below(getpid(), before, &all).filter(|p| is_ours(p));
    let tree = root.into_iter().flat_map(|root| below(root, &[], &all));
    let mut pids: Vec<_> = tree.chain(left).map(|p| p.pid).chain(root.map(Pid::as_raw)).collect();
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Reaps who ended in our group after `command` had left it to us.
pub fn reap_orphans(command: Pid) {
    let us = getpid().as_raw();
    for orphan in
        processes().unwrap_or_default().iter().filter(|p| p.parent == us && p.dead && is_ours(p))
    {
        if orphan.pid != command.as_raw() {
            _ = waitpid(Pid::from_raw(orphan.pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// A child whose end is waited for where it was started; nobody else may reap it as long as this
/// lives.
#[derive(Debug)]
pub struct Minded(Pid);

static MINDED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn minded() -> MutexGuard<'static, Vec<Pid>> {
    MINDED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Minded {
    /// To be called before anybody else could look for the dead.
    pub fn new(child: Pid) -> Self {
        minded().push(child);
        Self(child)
    }
}

impl Drop for Minded {
    fn drop(&mut self) {
        minded().retain(|pid| *pid != self.0);
    }
}

/// Whether we are the first process of a PID namespace, to whom everybody comes whose parent ended.
pub fn are_first() -> bool {
    getpid().as_raw() == 1
}

/// As the first process of a container, reaps everybody who ended and whom nobody minds: nobody
/// else could.
pub fn reap_if_first() {
    if !are_first() {
        return;
    }
    let us = getpid().as_raw();
    for orphan in processes().unwrap_or_default().iter().filter(|p| p.parent == us && p.dead) {
        let pid = Pid::from_raw(orphan.pid);
        if !minded().contains(&pid) {
            _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
    }
}

fn is_ours(process: &Process) -> bool {
    process.group == getpgrp().as_raw()
}

/// All that descend from a process, without itself, and without these children of it.
fn below<'a>(
    root: Pid,
    without: &[Pid],
    all: &'a [Process],
) -> impl Iterator<Item = &'a Process> + use<'a> {
    let is_in =
        |p: &&Process| p.parent == root.as_raw() && !without.contains(&Pid::from_raw(p.pid));
    let mut tree: Vec<&Process> = all.iter().filter(is_in).collect();
    let mut at = 0;
    while let Some(parent) = tree.get(at).map(|p| p.pid) {
        tree.extend(all.iter().filter(|p| p.parent == parent));
        at += 1;
    }
    tree.into_iter()
}

/// Whether a process runs; zombies do not.
pub fn runs(pid: Pid) -> bool {
    process(pid.as_raw()).is_some_and(|p| !p.dead)
}

/// Whether a process is stopped, and does nothing until somebody lets it go on.
pub fn is_stopped(pid: Pid) -> bool {
    process(pid.as_raw()).is_some_and(|p| p.stopped)
}

/// The members of a group that were started with this line in their environment.
pub fn marked(group: Pid, mark: &[u8]) -> Vec<Pid> {
    let all = processes().unwrap_or_default();
    let has_mark = |pid: i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|line| line == mark)
    };
    let ours = all.into_iter().filter(|p| p.group == group.as_raw() && !p.dead && has_mark(p.pid));
    ours.map(|p| Pid::from_raw(p.pid)).collect()
}

fn processes() -> Option<Vec<Process>> {
    let entries = std::fs::read_dir("/proc").ok()?;
    let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok());
    Some(pids.filter_map(process).collect())
}

fn process(pid: i32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name may hold anything, blanks and brackets too; what follows the last bracket
    // may not.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process {
        pid,
        parent,
        group,
        dead: matches!(state, "Z" | "X" | "x"),
        stopped: matches!(state, "T" | "t"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    #[test]
    fn a_group_lives_as_long_as_a_member_runs_and_zombies_do_not_count() {
        let mut leader =
            Command::new("sleep").arg("100").process_group(0).stdin(Stdio::null()).spawn().unwrap();
        let group = Pid::from_raw(i32::try_from(leader.id()).unwrap());
        assert!(is_alive(group));
        kill(group, Signal::SIGKILL).unwrap();
        while process(group.as_raw()).is_some_and(|p| !p.dead) {
            std::thread::yield_now();
        }
        assert!(kill(Pid::from_raw(-group.as_raw()), None).is_ok(), "the zombie is still there");
        assert!(!is_alive(group));
        leader.wait().unwrap();
        assert!(!is_alive(group));
    }
}
