//! `cargo xtask test` does all set-up by itself where nobody can be asked.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A machine of a user with no programs but a shell's own, on which `sudo` may install what is
/// missing.
struct FreshMachine(PathBuf);

impl FreshMachine {
    fn new(test: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("xtask-set-up-{test}-{}", std::process::id()));
        fs::create_dir_all(dir.join("bin")).unwrap();
        let machine = Self(dir);
        machine.program("apt-get", "exit 0");
        machine.program("id", "echo 1000");
        // A build that fails ends the run: what is looked at here is what goes before it.
        machine.program(
            "cargo",
            &format!("echo \"cargo $1\" >> '{}'; exit 1", machine.log().display()),
        );
        machine
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.0.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A sudo that needs no password, and "installs" every program that xtask looks for.
    fn sudo(&self) {
        let (log, bin) =
            (self.log().display().to_string(), self.0.join("bin").display().to_string());
        let found = "cc redis-server java openssl flock zsh fish";
        let install = format!("for f in {found}; do ln -sf /bin/true \"$bin/$f\"; done");
        self.program(
            "sudo",
            &format!("bin='{bin}'; printf 'sudo %s %s\\n' \"$1\" \"$2\" >> '{log}'; {install}"),
        );
    }

    fn run(&self, words: &[&str]) -> Output {
        let bin = self.0.join("bin");
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command
            .args(words)
            .env_clear()
            .env("PATH", &bin)
            .env("CARGO", bin.join("cargo"))
            .env("TMPDIR", &self.0);
        command.stdin(Stdio::null()).output().unwrap()
    }

    fn logged(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }
}

impl Drop for FreshMachine {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn both(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn without_a_terminal_the_tests_command_installs_what_is_missing_and_goes_on() {
    let machine = FreshMachine::new("sudo");
    machine.sudo();
    let output = machine.run(&["test"]);
    let text = both(&output);
    assert!(text.contains("missing: redis-server"), "{text}");
    // `-n`: a sudo that wants a password fails, where nobody can type one.
    assert_eq!(machine.logged(), "sudo -n sh\ncargo test\n", "{text}");
}

#[test]
fn without_root_and_sudo_the_error_names_the_command_for_an_administrator() {
    let machine = FreshMachine::new("user");
    let output = machine.run(&["test"]);
    let text = both(&output);
    assert!(!output.status.success());
    assert_eq!(machine.logged(), "", "nothing is built: {text}");
    let advice =
        text.lines().find(|line| line.contains("as root: apt-get install")).unwrap_or_default();
    let packages = ["default-jre-headless", "gcc", "openssl", "redis-server"];
    assert!(packages.iter().all(|package| advice.contains(package)), "{text}");
}

#[test]
fn a_sudo_that_wants_a_password_is_told_apart_and_the_command_is_named() {
    let machine = FreshMachine::new("password");
    machine.program("sudo", "echo 'sudo: a password is required' >&2; exit 1");
    let output = machine.run(&["test"]);
    let text = both(&output);
    assert!(!output.status.success());
    assert!(
        text.contains("a password is required")
            && text.contains("install by hand: apt-get install "),
        "{text}"
    );
    assert_eq!(machine.logged(), "", "nothing is built: {text}");
}
