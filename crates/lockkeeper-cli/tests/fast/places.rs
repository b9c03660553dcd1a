//! Where the lock files and the configuration lie: relative paths, no home, other users' files. The
//! numbers are those of the findings.
//!
//! Those that mount file systems or change users need root; CI has it.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::process::Command;

use crate::common::{self, Place, Ran, finish, json};

/// A user whom nothing belongs to, and who is in no password database.
const STRANGER: u32 = 30_001;

/// lockkeeper where every user can run it, and a directory where every user can work.
fn open_place() -> Place {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test changes users: run it as root, as CI does"
    );
    let place = Place::new();
    set_mode(&place, ".", 0o755);
    if std::fs::hard_link(common::PROGRAM, place.path("lockkeeper")).is_err() {
        std::fs::copy(common::PROGRAM, place.path("lockkeeper")).unwrap();
    }
    std::fs::create_dir(place.path("work")).unwrap();
    set_mode(&place, "work", 0o1777);
    place
}

fn set_mode(place: &Place, path: &str, mode: u32) {
    std::fs::set_permissions(place.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A program with exactly this environment.
fn with_only(place: &Place, program: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = place.program(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").envs(environment.iter().copied());
    command
}

/// lockkeeper as another user, with exactly this environment.
fn as_stranger(place: &Place, environment: &[(&str, &str)], args: &[&str]) -> Ran {
    let mut command = with_only(place, "setpriv", environment);
    let user = STRANGER.to_string();
    command
        .args([
            "--reuid",
            &user,
            "--regid",
            &user,
            "--clear-groups",
            "--",
            &place.text("lockkeeper"),
        ])
        .args(args);
    finish(command.current_dir(place.path("work")))
}

fn says(ran: &Ran, code: i32, parts: &[&str]) {
    assert_eq!(ran.code, code, "{ran:?}");
    for part in parts {
        assert!(ran.err.contains(part), "{part:?} in {ran:?}");
    }
}

fn write_config(place: &Place, text: &str) -> std::path::PathBuf {
    let dir = place.path("home/.config/lockkeeper");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.toml"), text).unwrap();
    dir.join("config.toml")
}

#[test]
fn c9_a_relative_path_is_refused_wherever_it_is_written_and_nothing_is_made() {
    let place = Place::new();
    let absolute =
        format!("write file://{}/locks", place.path(".").canonicalize().unwrap().display());
    let by_hand = |url: &str, args: &[&str]| {
        finish(place.lk(args).args(["--url", url]).env_remove("LOCKKEEPER_DIR"))
    };
    for args in [
        &["ls"][..],
        &["doctor"],
        &["status", "a"],
        &["gc"],
        &["demo", "oversell"],
        &["elect", "a", "--id", "b"],
    ] {
        let mut command = place.lk(["--url", "file:locks"]);
        command.args(args).env_remove("LOCKKEEPER_DIR");
        if args[0] == "elect" {
            command.args(["--", "touch", "ran"]);
        }
        says(&finish(&mut command), 64, &["file:locks is relative", &absolute]);
    }
    says(&by_hand("file:./locks", &["ls"]), 64, &[&absolute]);
    let run = finish(
        place
            .lk(["run", "a", "--url", "file:locks", "--", "touch", "ran"])
            .env_remove("LOCKKEEPER_DIR"),
    );
    says(&run, 64, &[&absolute]);
    let variable =
        finish(place.lk(["run", "a", "--", "touch", "ran"]).env("LOCKKEEPER_URL", "file:locks"));
    says(&variable, 64, &[&absolute]);
    let dir = finish(place.lk(["run", "a", "--", "touch", "ran"]).env("LOCKKEEPER_DIR", "rel"));
    says(&dir, 64, &["LOCKKEEPER_DIR is relative", "write LOCKKEEPER_DIR=/"]);
    assert!(dir.err.trim_end().ends_with("/rel"), "{dir:?}");
    write_config(&place, "url = \"file:locks\"\n");
    let configured =
        finish(place.lk(["run", "a", "--", "touch", "ran"]).env_remove("LOCKKEEPER_DIR"));
    says(&configured, 64, &[&absolute]);
    for path in ["locks", "rel", "ran"] {
        assert!(!place.path(path).exists(), "{path}");
    }
}

#[test]
fn c9_file_auto_is_the_laboratory_s_own_and_refused_elsewhere() {
    let place = Place::new();
    for args in [&["doctor"][..], &["ls"], &["acquire", "a"], &["run", "a", "-c", "true"]] {
        let ran = finish(place.lk(["--url", "file:auto"]).args(args).env_remove("LOCKKEEPER_DIR"));
        says(&ran, 64, &["demo, bench and torture", "file:///path/dir"]);
    }
    assert!(!place.path("auto").exists());
}

#[test]
fn c10_without_home_a_unit_s_state_directory_is_used_and_its_limit_is_said() {
    let place = Place::new();
    let state = place.text("state");
    std::fs::create_dir(&state).unwrap();
    let with = |args: &[&str]| {
        finish(
            with_only(
                &place,
                common::PROGRAM,
                &[("STATE_DIRECTORY", &format!("{state}:/nonexistent"))],
            )
            .args(args),
        )
    };
    assert_eq!(
        with(&["run", "x", "--", "true"]),
        Ran { code: 0, out: String::new(), err: String::new() }
    );
    assert!(place.path("state/lockkeeper").is_dir());
    says(&with(&["-v", "ls"]), 0, &["$STATE_DIRECTORY", "this unit alone"]);
    let doctor = with(&["--json", "doctor"]);
    let ids: Vec<_> = json(doctor.out.trim())["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w["id"].clone())
        .collect();
    assert!(doctor.code == 0 && ids.contains(&"unit-state-directory".into()), "{doctor:?}");
}

#[test]
fn needs_root_c10_an_environment_without_a_home_uses_the_password_database_s() {
    let place = Place::new();
    let ran = with_a_password_database(&place, &[], &[common::PROGRAM, "--json", "doctor"]);
    let doctor = json(ran.out.trim());
    assert!(
        doctor["server"].as_str().unwrap().starts_with(&place.text("home/.local/state/lockkeeper")),
        "{ran:?}"
    );
    assert!(doctor["source"].as_str().unwrap().contains("password database"), "{ran:?}");
    // A user whom no database knows has no home, and is told which setting names the directory.
    let place = open_place();
    says(
        &as_stranger(&place, &[], &["run", "x", "--", "true"]),
        64,
        &["password database", "LOCKKEEPER_DIR"],
    );
    // A URL needs no home.
    let url = format!("file://{}/locks", place.text("work"));
    says(&as_stranger(&place, &[], &["run", "x", "--url", &url, "--", "true"]), 0, &[]);
}

/// Runs a program in exactly this environment, where the password database says that root's home is
/// this place's.
fn with_a_password_database(place: &Place, environment: &[(&str, &str)], line: &[&str]) -> Ran {
    std::fs::write(
        place.path("passwd"),
        format!("root:x:0:0:root:{}:/bin/sh\n", place.text("home")),
    )
    .unwrap();
    let script = format!("set -e; mount --bind {} /etc/passwd; exec \"$@\"", place.text("passwd"));
    let mut command = with_only(place, "unshare", environment);
    finish(command.args(["--mount", "sh", "-c", &script, "sh"]).args(line).env_remove("PWD"))
}

#[test]
fn c10_an_order_of_places_and_each_is_named() {
    let place = Place::new();
    let (home, state) = (place.text("home"), place.text("state"));
    std::fs::create_dir(&state).unwrap();
    let all = [
        ("LOCKKEEPER_DIR", place.text("dir")),
        ("XDG_STATE_HOME", place.text("xdg")),
        ("HOME", home),
        ("STATE_DIRECTORY", state),
    ];
    let wanted = [
        ("dir", "LOCKKEEPER_DIR"),
        ("xdg/lockkeeper", "XDG_STATE_HOME"),
        ("home/.local/state/lockkeeper", "~/"),
        ("state/lockkeeper", "STATE"),
    ];
    for (first, (path, word)) in wanted.into_iter().enumerate() {
        let environment: Vec<_> =
            all.iter().skip(first).map(|(key, value)| (*key, value.as_str())).collect();
        let ran = finish(
            with_only(&place, common::PROGRAM, &environment).args(["-v", "run", "x", "--", "true"]),
        );
        says(&ran, 0, &[word]);
        assert!(place.path(path).is_dir(), "{path}: {ran:?}");
    }
}

#[test]
fn needs_root_c10_a_home_config_that_cannot_be_read_stops_nobody_who_names_the_engine() {
    let place = open_place();
    let file = write_config(&place, "url = \"redis://:s3cr3t@nowhere.invalid\"\n");
    set_mode(&place, "home", 0o700);
    let home = place.text("home");
    let url = format!("file://{}/locks", place.text("work"));
    let named = as_stranger(&place, &[("HOME", &home)], &["run", "x", "--url", &url, "--", "true"]);
    // What it requires is left out with it, and that is no secret.
    says(&named, 0, &["lockkeeper: warning: ", file.to_str().unwrap(), "left out", "requires"]);
    let quiet =
        as_stranger(&place, &[("HOME", &home)], &["-q", "run", "x", "--url", &url, "--", "true"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (0, ""), "{quiet:?}");
    let variable = as_stranger(&place, &[("HOME", &home), ("LOCKKEEPER_URL", &url)], &["ls"]);
    says(&variable, 0, &[file.to_str().unwrap(), "left out"]);
    let doctor = as_stranger(&place, &[("HOME", &home), ("LOCKKEEPER_URL", &url)], &["doctor"]);
    assert!(doctor.code == 0 && doctor.out.contains("config-unreadable"), "{doctor:?}");
    // Nobody named one, and the file may.
    says(
        &as_stranger(&place, &[("HOME", &home)], &["run", "x", "--", "true"]),
        64,
        &[file.to_str().unwrap(), "Permission denied"],
    );
}

#[test]
fn a_configuration_file_that_is_a_pipe_is_refused_and_never_waited_for() {
    let place = Place::new();
    let file = write_config(&place, "");
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let home = place.text("home");
    let mut command = with_only(&place, common::PROGRAM, &[("HOME", &home)]);
    says(&finish(command.args(["run", "x", "--", "true"])), 64, &["config.toml", "is a pipe"]);
}

#[test]
fn needs_root_b12_what_root_makes_above_its_own_directory_in_anothers_home_belongs_to_that_user() {
    let place = open_place();
    let home = place.path("home");
    std::os::unix::fs::chown(&home, Some(STRANGER), Some(STRANGER)).unwrap();
    let home = place.text("home");
    let mut command = with_only(&place, common::PROGRAM, &[("HOME", &home)]);
    says(&finish(command.args(["run", "x", "--", "true"])), 0, &[]);
    let owner = |path: &str| std::fs::metadata(place.path(path)).unwrap().uid();
    let owners = ["home/.local", "home/.local/state", "home/.local/state/lockkeeper"].map(owner);
    assert_eq!(owners, [STRANGER, STRANGER, 0]);
}

#[test]
fn needs_root_c10_a_directory_that_cannot_be_made_is_refused_with_what_is_true() {
    let place = open_place();
    let home = place.text("home");
    // No home, which nobody makes: not even root.
    let missing = place.text("nonexistent");
    let ran = finish(
        with_only(&place, common::PROGRAM, &[("HOME", &missing)]).args(["run", "x", "--", "true"]),
    );
    says(&ran, 69, &[&format!("because {missing} does not exist")]);
    assert!(!place.path("nonexistent").exists());
    // The first missing directory is named, not only the one above.
    let deep = place.text("a/b/c");
    let ran = finish(
        with_only(&place, common::PROGRAM, &[("LOCKKEEPER_DIR", &deep)])
            .args(["run", "x", "--", "true"]),
    );
    says(&ran, 69, &[&format!("because {} does not exist", place.text("a"))]);
    // A read-only home.
    let script = "set -e; mount -t tmpfs none home; mount -o remount,ro home; \
                  exec env -i HOME=$PWD/home \"$LK\" run x -- touch ran";
    let ran = finish(place.program("unshare").args(["--mount", "sh", "-c", script]));
    says(&ran, 69, &["Read-only file system", &format!("{home}/.local/state")]);
    // Another's home.
    let ran = as_stranger(&place, &[("HOME", &home)], &["run", "x", "--", "true"]);
    says(
        &ran,
        69,
        &[
            "Permission denied",
            &format!("{home} belongs to user 0 (mode 755) and this process is user {STRANGER}"),
        ],
    );
    // Another's private directory.
    std::fs::create_dir(place.path("private")).unwrap();
    set_mode(&place, "private", 0o700);
    let ran = as_stranger(
        &place,
        &[("LOCKKEEPER_DIR", &place.text("private"))],
        &["run", "x", "--", "true"],
    );
    says(
        &ran,
        69,
        &["Permission denied", &format!("{} belongs to user 0 (mode 700)", place.text("private"))],
    );
}

#[test]
fn needs_root_c10_the_unit_of_the_operating_guide_runs_as_it_stands() {
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md"))
            .unwrap();
    let unit = guide.split("\n[Service]\n").nth(1).unwrap().split("```").next().unwrap();
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let place = Place::new();
    let line = value("ExecStart")
        .unwrap()
        .replace("/usr/bin/lockkeeper", common::PROGRAM)
        .replace("/opt/shop/worker", "/usr/bin/env");
    // What systemd gives a service of root: no HOME, no USER, no variable of a shell.
    let mut environment = vec![
        ("LANG", "C.UTF-8"),
        ("INVOCATION_ID", "0123456789abcdef0123456789abcdef"),
        ("SYSTEMD_EXEC_PID", "1"),
    ];
    let state = place.text("state");
    if let Some(name) = value("StateDirectory") {
        assert!(!name.is_empty());
        std::fs::create_dir(&state).unwrap();
        environment.push(("STATE_DIRECTORY", &state));
    }
    let ran = with_a_password_database(&place, &environment, &line.split(' ').collect::<Vec<_>>());
    assert!(
        ran.code == 0 && ran.err.is_empty() && ran.out.contains("LOCKKEEPER_TOKEN="),
        "{ran:?}"
    );
}

#[test]
fn needs_root_c16_a_config_file_that_others_may_write_is_warned_of() {
    let place = Place::new();
    let file = write_config(&place, &format!("url = \"file://{}\"\n", place.text("locks")));
    let warned = |what: &str| {
        let ran = place.run(["run", "x", "--", "true"]);
        assert_eq!((ran.code, ran.err.lines().count()), (0, 1), "{ran:?}");
        says(&ran, 0, &["lockkeeper: warning: ", file.to_str().unwrap(), what]);
        assert_eq!(place.run(["-q", "run", "x", "--", "true"]).err, "");
        let doctor = place.run(["doctor"]);
        assert!(
            doctor.code == 0
                && doctor.err.is_empty()
                && doctor.out.contains("warning   config-writable: "),
            "{doctor:?}"
        );
    };
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    warned("every user");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(place.run(["run", "x", "--", "true"]).err, "");
    chown(&file, Some(STRANGER), None).unwrap();
    warned("belongs to user 30001");
    chown(&file, Some(0), Some(STRANGER)).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o664)).unwrap();
    warned("group 30001");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    chown(&file, Some(0), Some(0)).unwrap();
    assert_eq!(place.run(["run", "x", "--", "true"]).err, "");
    // Who may write its directory may put another file there, except where each may only replace
    // what is their own.
    let directory = file.parent().unwrap();
    for (mode, what) in [(0o777, Some("every user")), (0o1777, None), (0o755, None)] {
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode)).unwrap();
        let ran = place.run(["run", "x", "--", "true"]);
        assert_eq!(
            (ran.code, ran.err.lines().count()),
            (0, usize::from(what.is_some())),
            "{mode:o}: {ran:?}"
        );
        says(
            &ran,
            0,
            &[&what
                .map(|what| {
                    format!(
                        "{} holds the file that chooses the engine and can be changed by {what}",
                        directory.display()
                    )
                })
                .unwrap_or_default()],
        );
    }
    chown(directory, Some(STRANGER), None).unwrap();
    says(
        &place.run(["run", "x", "--", "true"]),
        0,
        &[directory.to_str().unwrap(), "belongs to user 30001"],
    );
}

#[test]
fn needs_root_c16_a_lock_directory_of_another_user_is_warned_of() {
    let place = Place::new();
    std::fs::create_dir(place.path("locks")).unwrap();
    assert_eq!(place.run(["run", "x", "--", "true"]).err, "");
    chown(place.path("locks"), Some(STRANGER), None).unwrap();
    for args in [
        &["run", "x", "--", "true"][..],
        &["acquire", "x", "--for", "1ms"],
        &["ls"],
        &["elect", "x", "--", "true"],
    ] {
        let ran = place.run(args);
        says(&ran, 0, &["lockkeeper: warning: ", &place.text("locks"), "belongs to user 30001"]);
        let quiet = place.run(
            [&[OsStr::new("-q")][..], &args.iter().map(OsStr::new).collect::<Vec<_>>()].concat(),
        );
        assert_eq!(quiet.err, "", "{args:?}");
    }
    let doctor = place.run(["doctor"]);
    assert_eq!(doctor.out.matches("warning   directory-owner: ").count(), 1, "{doctor:?}");
    // Root's are root's.
    chown(place.path("locks"), Some(0), None).unwrap();
    assert_eq!(place.run(["run", "x", "--", "true"]).err, "");
}

#[test]
fn c16_a_config_line_that_is_wrong_is_named_by_its_number_and_not_repeated() {
    let place = Place::new();
    let file = write_config(&place, "# the engine\nurl \"redis://u:s3cr3t@h?t url = \"x\"\n");
    for args in [
        &["run", "x", "--", "true"][..],
        &["ls"],
        &["--url", "memory:", "doctor"],
        &["--json", "ls"],
    ] {
        let ran = place.run(args);
        says(&ran, 64, &[file.to_str().unwrap(), "line 2"]);
        assert!(!ran.err.contains("s3cr3t"), "{ran:?}");
    }
}
