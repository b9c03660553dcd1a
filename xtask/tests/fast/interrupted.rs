//! A run that is interrupted ends everything that it started, and still says how far it came.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_signal_for_us_alone_ends_the_build_and_its_table_is_printed() {
    let place = std::env::temp_dir().join(format!("xtask-interrupted-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let (cargo, pid) = (place.join("cargo"), place.join("pid"));
    fs::write(
        &cargo,
        format!("#!/bin/sh\necho $$ > {0}.new && mv {0}.new {0}\nsleep 609\n", pid.display()),
    )
    .unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("test").env("CARGO", &cargo).env("TMPDIR", &place).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(600);
    while !pid.exists() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    let build = fs::read_to_string(&pid).unwrap();
    Command::new("sh").args(["-c", &format!("kill -TERM {}", child.id())]).status().unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    let rows: Vec<&str> = said.lines().filter(|line| line.contains("FAILED: ")).collect();
    assert!(
        rows.len() == 3
            && rows[0].starts_with("build ")
            && rows[0].contains("ended by signal 15: did not end: "),
        "{said}"
    );
    for (row, stage) in rows[1..].iter().zip(["tests ", "doctests "]) {
        assert!(row.starts_with(stage) && row.ends_with("not run: build failed"), "{said}");
    }
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&ended.status),
        Some(15),
        "as a shell expects: {ended:?}"
    );
    assert!(!fs::exists(format!("/proc/{}", build.trim())).unwrap());
    let left: Vec<_> =
        fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    // The file of the ports stays, for other runs.
    let known =
        |name: &&std::ffi::OsString| ["pid", "cargo", "lk-ports"].iter().any(|k| *k == **name);
    assert!(left.iter().all(|name| known(&name)), "its own directory is gone: {left:?}");
    fs::remove_dir_all(&place).unwrap();
}
