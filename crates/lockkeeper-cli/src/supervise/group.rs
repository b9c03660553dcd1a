//! Which processes are left of a group or a tree.

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

/// Whether a process of this group still runs. Zombies do not: where nobody reaps orphans they stay for ever.
pub fn is_alive(group: Pid) -> bool {
    match kill(Pid::from_raw(-group.as_raw()), None) {
        Err(Errno::ESRCH) => false,
        // Somebody is there; /proc tells the living from the dead. Without /proc, whoever is there counts.
        _ => processes().is_none_or(|all| all.iter().any(|p| p.group == group.as_raw() && !p.dead)),
    }
}

/// Whether a process that descends from us still runs in our own group. Where we are the subreaper, that is whoever a
/// command in our group left behind.
pub fn is_anybody_below() -> bool {
    let all = processes().unwrap_or_default();
    below(getpid(), &all).any(|p| is_ours(p) && !p.dead)
}

/// Sends a signal to a process and to all that descend from it, and to whoever it left in our group, as far as they can
/// be seen now.
pub fn signal_tree(root: Pid, signal: Signal) {
    let all = processes().unwrap_or_default();
    let left = below(getpid(), &all).filter(|p| is_ours(p));
    let mut pids: Vec<_> = below(root, &all).chain(left).map(|p| p.pid).chain([root.as_raw()]).collect();
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Reaps who ended in our group after `command` had left it to us.
pub fn reap_orphans(command: Pid) {
    let us = getpid().as_raw();
    for orphan in processes().unwrap_or_default().iter().filter(|p| p.parent == us && p.dead && is_ours(p)) {
        if orphan.pid != command.as_raw() {
            _ = waitpid(Pid::from_raw(orphan.pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

fn is_ours(process: &Process) -> bool {
    process.group == getpgrp().as_raw()
}

/// All that descend from a process, without itself.
fn below(root: Pid, all: &[Process]) -> impl Iterator<Item = &Process> {
    let mut tree: Vec<&Process> = all.iter().filter(|p| p.parent == root.as_raw()).collect();
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
    // The program's name may hold anything, blanks and brackets too; what follows the last bracket may not.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, group, dead: matches!(state, "Z" | "X" | "x"), stopped: matches!(state, "T" | "t") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    #[test]
    fn a_group_lives_as_long_as_a_member_runs_and_zombies_do_not_count() {
        let mut leader = Command::new("sleep").arg("100").process_group(0).stdin(Stdio::null()).spawn().unwrap();
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
