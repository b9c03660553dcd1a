//! Where a program stands that hangs.

use std::fs::{read_dir, read_to_string};
use std::process::{Command, Stdio};

/// Where the threads of a process are, and those of our programs and the Java servers that it
/// started, as far as there are debuggers.
pub fn of(pid: u32) -> Vec<String> {
    let mut stacks = threads(pid);
    if stacks.is_empty() {
        stacks.push("no stacks: gdb is missing, or may not look".to_owned());
    }
    for ours in ["lockkeeper", "lab-helper"] {
        for process in descendants(pid, ours) {
            stacks.push(format!("{ours}, process {process}:"));
            stacks.extend(threads(process));
        }
    }
    for java in descendants(pid, "java") {
        stacks.push(format!("Java server, process {java}:"));
        stacks.extend(told(&["jstack"], java, &['"', '\t', ' ']));
    }
    stacks
}

fn threads(pid: u32) -> Vec<String> {
    told(&["gdb", "-batch", "-ex", "thread apply all backtrace 30", "-p"], pid, &['#', 'T'])
}

/// What a debugger says of a process in lines that begin so; it may hang as well.
fn told(debugger: &[&str], pid: u32, begin: &[char]) -> Vec<String> {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60"]).args(debugger).arg(pid.to_string());
    let out = command.env_remove("DEBUGINFOD_URLS").stdin(Stdio::null()).output();
    let text = out.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    text.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
}

/// The processes of that name that a process started, or one that it started.
fn descendants(pid: u32, name: &str) -> Vec<u32> {
    let children = |pid: u32| {
        let tasks = read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let texts =
            tasks.map(|task| read_to_string(task.path().join("children")).unwrap_or_default());
        let all: Vec<u32> = texts
            .flat_map(|text| text.split(' ').flat_map(str::parse).collect::<Vec<_>>())
            .collect();
        all
    };
    let mut found = children(pid);
    let mut at = 0;
    while let Some(&one) = found.get(at) {
        found.extend(children(one));
        at += 1;
    }
    let named = |pid: &u32| {
        read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
    };
    found.into_iter().filter(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_started_is_found_by_its_name_also_two_below_it() {
        let mut command = Command::new("sh");
        let script = "sh -c 'sleep 600 & echo; wait' & wait";
        let mut child =
            command.args(["-c", script]).stdout(Stdio::piped()).spawn().expect("a shell");
        let mut said = [0];
        let output = child.stdout.as_mut().expect("it is piped");
        std::io::Read::read_exact(output, &mut said).expect("the sleeper has begun");
        let found = loop {
            // It is a shell until it has become what it runs.
            let found = descendants(child.id(), "sleep");
            if !found.is_empty() {
                break found;
            }
        };
        assert_eq!((found.len(), descendants(child.id(), "java").len()), (1, 0));
        for pid in found.into_iter().chain([child.id()]) {
            let pid = nix::unistd::Pid::from_raw(pid.try_into().expect("a process"));
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it is ours");
        }
        child.wait().expect("it has ended");
    }
}
