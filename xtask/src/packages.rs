//! Installs missing test programs from Debian's packages. On a terminal it asks first.

use std::io::{IsTerminal, Write, stderr, stdin};
use std::process::{Command, Stdio};

use crate::Outcome;
use crate::project::{is_root, must};
use crate::tools::Tool;

const INSTALL: &str = include_str!("install.sh");

/// Whether we run in continuous integration.
pub fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// Installs the tools that are missing. A person at a terminal is asked first, unless `yes` or `CI`
/// is set.
///
/// # Errors
/// A tool is missing and cannot or may not be installed; the message has the command that would.
pub fn ensure(tools: &[&Tool], yes: bool) -> Outcome {
    let missing: Vec<&Tool> = tools.iter().copied().filter(|tool| tool.find().is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for tool in &missing {
        println!(
            "missing: {} ({}), from the Debian package {}",
            tool.file,
            tool.purpose,
            tool.packages.join(" ")
        );
    }
    let mut packages: Vec<&str> = missing.iter().flat_map(|tool| tool.packages).copied().collect();
    packages.sort_unstable();
    packages.dedup();
    let services: Vec<&str> = missing.iter().filter_map(|tool| tool.service).collect();
    let by_hand = format!("install by hand: apt-get install {}", packages.join(" "));

    if !on_path("apt-get") {
        return Err(format!(
            "this machine has no apt-get; {by_hand}, or what your system calls them"
        ));
    }
    if !yes && !in_ci() && on_a_terminal() && !consent(&packages) {
        return Err(format!("not installed; {by_hand}"));
    }
    must(&mut as_root(&services, &packages)?).map_err(|error| format!("{error}\n{by_hand}"))?;

    match missing.iter().find(|tool| tool.find().is_none()) {
        None => Ok(()),
        Some(tool) => Err(format!(
            "{} is installed, but {} is still not there",
            tool.packages.join(" "),
            tool.file
        )),
    }
}

/// The script as root: through sudo unless we are root. Without a terminal sudo must not ask for a
/// password.
fn as_root(services: &[&str], packages: &[&str]) -> Result<Command, String> {
    let root = is_root();
    let mut command = if root { Command::new("sh") } else { Command::new("sudo") };
    if !root {
        if !on_path("sudo") {
            return Err(format!(
                "not root, and no sudo; as root: apt-get install {}",
                packages.join(" ")
            ));
        }
        if in_ci() || !on_a_terminal() {
            command.arg("-n");
        }
        command.arg("sh");
    }
    command.args(["-c", INSTALL, "install", "", &services.join(" ")]).args(packages);
    if in_ci() || !on_a_terminal() {
        command.stdin(Stdio::null());
    }
    Ok(command)
}

/// Whether somebody can be asked.
fn on_a_terminal() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

fn consent(packages: &[&str]) -> bool {
    eprint!("Install {} now? Their services are kept from starting. [Y/n] ", packages.join(" "));
    let mut answer = String::new();
    let asked = stderr().flush().and_then(|()| stdin().read_line(&mut answer));
    // An end of input is no consent; an empty line takes the default.
    asked.is_ok_and(|read| read > 0) && matches!(answer.trim(), "" | "y" | "Y" | "yes")
}

fn on_path(program: &'static str) -> bool {
    Tool {
        file: program,
        packages: &[],
        service: None,
        need: crate::tools::Need::Test,
        purpose: "",
    }
    .find()
    .is_some()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    use super::INSTALL;

    /// A pretended root directory, with an apt-get that asks the policy the way invoke-rc.d does.
    struct Machine(PathBuf);

    impl Machine {
        fn new(test: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("xtask-packages-{test}-{}", std::process::id()));
            fs::create_dir_all(dir.join("usr/sbin")).unwrap();
            fs::create_dir_all(dir.join("bin")).unwrap();
            Self(dir)
        }

        fn program(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }

        fn policy(&self) -> PathBuf {
            self.0.join("usr/sbin/policy-rc.d")
        }

        fn install(&self) -> std::process::Output {
            self.command().output().unwrap()
        }

        fn command(&self) -> Command {
            let path =
                format!("{}:{}", self.0.join("bin").display(), std::env::var("PATH").unwrap());
            let mut command = Command::new("sh");
            command
                .args(["-c", INSTALL, "install"])
                .arg(&self.0)
                .args(["", "some-server"])
                .env("PATH", path);
            command
        }

        fn log(&self) -> String {
            fs::read_to_string(self.0.join("log")).unwrap_or_default()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn apt_get(machine: &Machine, rest: &str) {
        let (dir, policy) =
            (machine.0.display().to_string(), machine.policy().display().to_string());
        machine.program(
            "bin/apt-get",
            &format!(
                "#!/bin/sh\n'{policy}' some-server start; echo \"$1 $?\" >> '{dir}/log'\n{rest}\n"
            ),
        );
    }

    fn runs(policy: &Path) -> Option<i32> {
        Command::new(policy).status().unwrap().code()
    }

    #[test]
    fn services_are_forbidden_to_start_while_packages_are_installed_and_free_afterwards() {
        let machine = Machine::new("plain");
        apt_get(&machine, "");
        assert!(machine.install().status.success());
        assert_eq!(machine.log(), "install 101\n");
        assert!(!machine.policy().exists(), "the policy is gone again");
    }

    #[test]
    fn a_policy_that_was_there_is_there_again_after_a_failed_install() {
        let machine = Machine::new("kept");
        machine.program("usr/sbin/policy-rc.d", "#!/bin/sh\nexit 42\n");
        apt_get(&machine, "exit 1");
        assert!(!machine.install().status.success());
        assert_eq!(machine.log(), "install 101\nupdate 101\n");
        assert_eq!(runs(&machine.policy()), Some(42));
    }

    #[test]
    fn a_killed_install_forbids_nothing_and_the_next_one_restores_what_was_there() {
        let machine = Machine::new("killed");
        machine.program("usr/sbin/policy-rc.d", "#!/bin/sh\nexit 42\n");
        apt_get(&machine, "kill -9 $PPID");
        assert_eq!(machine.install().status.code(), None);
        assert_eq!(
            runs(&machine.policy()),
            Some(42),
            "the one that was there decides, through ours"
        );
        apt_get(&machine, "");
        assert!(machine.install().status.success());
        assert_eq!(fs::read_to_string(machine.policy()).unwrap(), "#!/bin/sh\nexit 42\n");
    }

    #[test]
    fn an_install_beside_another_one_waits_for_it_and_takes_no_policy_away() {
        let machine = Machine::new("two");
        let (dir, policy) = (machine.0.display(), machine.policy().display().to_string());
        // Whoever comes first ends when the test says so.
        apt_get(
            &machine,
            &format!(
                "mkdir '{dir}/first' 2>/dev/null && until [ -e '{dir}/go' ]; do sleep 0.01; done\n\
                 '{policy}' some-server start; echo \"ends $?\" >> '{dir}/log'"
            ),
        );
        let [mut one, mut two] = [(); 2].map(|()| machine.command());
        let mut one = one.spawn().unwrap();
        while machine.log() != "install 101\n" {
            assert!(one.try_wait().unwrap().is_none(), "{}", machine.log());
            thread::sleep(Duration::from_millis(5));
        }
        let mut two = two.spawn().unwrap();
        let waits = |pid: u32| {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            children.unwrap_or_default().split_whitespace().any(|child| {
                fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|n| n == "flock\n")
            })
        };
        while two.try_wait().unwrap().is_none() && !waits(two.id()) {
            thread::sleep(Duration::from_millis(5));
        }
        fs::write(machine.0.join("go"), "").unwrap();
        assert!(one.wait().unwrap().success() && two.wait().unwrap().success());
        assert_eq!(machine.log(), "install 101\nends 101\ninstall 101\nends 101\n");
        assert!(!machine.policy().exists(), "the policy is gone again");
    }
}
