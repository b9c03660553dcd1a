//! Which processes are left of a group or a tree.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What /proc says about one process.
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    dead: bool,
}

/// Whether a process of this group still runs. Zombies do not: where nobody reaps orphans they stay for ever.
pub fn is_alive(group: Pid) -> bool {
    match kill(Pid::from_raw(-group.as_raw()), None) {
        Err(Errno::ESRCH) => false,
        // Somebody is there; /proc tells the living from the dead. Without /proc, whoever is there counts.
        _ => processes().is_none_or(|all| all.iter().any(|p| p.group == group.as_raw() && !p.dead)),
    }
}

/// Sends a signal to a process and to all that descend from it, as far as they can be seen now.
pub fn signal_tree(root: Pid, signal: Signal) {
    let mut tree = vec![root.as_raw()];
    let all = processes().unwrap_or_default();
    let mut at = 0;
    while let Some(parent) = tree.get(at).copied() {
        tree.extend(all.iter().filter(|p| p.parent == parent).map(|p| p.pid));
        at += 1;
    }
    for pid in tree {
        _ = kill(Pid::from_raw(pid), signal);
    }
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
    Some(Process { pid, parent, group, dead: matches!(state, "Z" | "X" | "x") })
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
