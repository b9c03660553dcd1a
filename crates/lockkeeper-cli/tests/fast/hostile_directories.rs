//! Lock directories that are full, read-only, shared with strangers, or changed under a holder.
//!
//! Those that mount file systems or change users need root; CI has it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{self, Place, Ran, Reaped, finish, json};

/// Two users whom nothing belongs to.
const ONE: u32 = 30_001;
const OTHER: u32 = 30_002;

fn needs_root() {
    let root = nix::unistd::geteuid().is_root();
    assert!(root, "this test mounts file systems and changes users: run it as root, as CI does");
}

/// A script in a mount namespace of its own, in which `full` is a file system of 64 KiB.
fn in_own_mounts(place: &Place, script: &str) -> Ran {
    needs_root();
    std::fs::create_dir(place.path("full")).unwrap();
    let script = format!(
        "set -e; mount -t tmpfs -o size=64k none full; export LOCKKEEPER_DIR=$PWD/full/locks; \
         {script}"
    );
    let mut command = place.program("unshare");
    finish(command.args(["--mount", "sh", "-c", &script]))
}

/// One line on stderr that says all of it.
fn refused(ran: &Ran, what: &str, words: &[&str]) {
    assert_eq!((ran.code, ran.err.lines().count()), (69, 1), "{what}: {ran:?}");
    assert!(words.iter().all(|word| ran.err.contains(word)), "{what}: {words:?}: {ran:?}");
}

#[test]
fn needs_root_a_full_disk_refuses_new_locks_in_one_line_and_those_that_are_there_go_on() {
    let place = Place::new();
    let ran = in_own_mounts(
        &place,
        "\"$LK\" run there -- true; dd if=/dev/zero of=full/fill bs=4096 2>/dev/null || true; \
         for i in 1 2 3; do \"$LK\" run there -- true; done; \
         if \"$LK\" run new -n -- touch ran 2> err; then exit 90; else echo $? > code; fi; \
         rm full/fill; \"$LK\" run new -n -- true; \"$LK\" run there -n -- true",
    );
    assert_eq!(ran.code, 0, "{ran:?}");
    let err = place.read("err");
    refused(
        &Ran { code: common::number(&place.read("code")), out: String::new(), err },
        "full",
        &["full/locks", "No space left"],
    );
    assert!(!place.path("ran").exists());
}

#[test]
fn needs_root_a_read_only_file_system_refuses_in_one_line_and_can_be_looked_at() {
    let place = Place::new();
    let ran = in_own_mounts(
        &place,
        "\"$LK\" run there -- true; mount -o remount,ro full; \
         for name in there new; do if \"$LK\" run $name -n -- touch ran 2>> err; then exit 90; \
         else echo $? >> codes; fi; done; \
         \"$LK\" --json status there > status; mount -o remount,rw full; \
         \"$LK\" run there -n -- true",
    );
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(place.read("codes"), "69\n69\n");
    let err = place.read("err");
    assert_eq!(
        (err.lines().count(), err.matches("Read-only file system").count()),
        (2, 2),
        "{err}"
    );
    assert_eq!(json(place.read("status").trim())["state"], "free");
    assert!(!place.path("ran").exists());
}

#[test]
fn needs_root_c5_doctor_says_that_a_read_only_file_system_gives_no_lock() {
    let place = Place::new();
    let ran = in_own_mounts(
        &place,
        "mkdir full/locks; chmod 700 full/locks; mount -o remount,ro full; \
         if \"$LK\" doctor 2> err > out; then exit 90; else echo $? > code; fi; \
         \"$LK\" doctor --no-probe > looked",
    );
    assert_eq!(ran.code, 0, "{ran:?}");
    let err = place.read("err");
    refused(
        &Ran { code: common::number(&place.read("code")), out: String::new(), err },
        "doctor",
        &["full/locks", "Read-only file system"],
    );
}

/// A directory that everybody may write to, and lockkeeper where everybody can run it.
struct Shared {
    place: Place,
}

impl Shared {
    fn new() -> Self {
        needs_root();
        let place = Place::new();
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap()
        };
        open(&place.path("."), 0o755);
        let program = place.path("lockkeeper");
        // Across file systems there is no link.
        if std::fs::hard_link(common::PROGRAM, &program).is_err() {
            std::fs::copy(common::PROGRAM, &program).unwrap();
        }
        for dir in ["locks", "scratch"] {
            std::fs::create_dir(place.path(dir)).unwrap();
            open(&place.path(dir), 0o1777);
        }
        Self { place }
    }

    fn as_user(&self, user: u32, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.place.program("setpriv");
        let user = user.to_string();
        command
            .args(["--reuid", &user, "--regid", &user, "--clear-groups", "--", program])
            .args(arguments);
        command.current_dir(self.place.path("scratch"));
        command
    }

    fn lk(&self, user: u32, arguments: &[&str]) -> Command {
        self.as_user(user, &self.place.text("lockkeeper"), arguments)
    }

    fn sh(&self, user: u32, script: &str) {
        let ran = finish(&mut self.as_user(user, "sh", &["-ec", script]));
        assert_eq!(ran.code, 0, "{script}: {ran:?}");
    }

    /// A lock that a user holds until its stdin closes.
    fn hold(&self, user: u32, name: &str) -> Reaped {
        let mut command = self.lk(user, &["run", name, "--", "sh", "-c", "echo held; cat"]);
        let mut child = Reaped::spawn(
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()),
        );
        let mut line = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(child.0.stdout.as_mut().unwrap()),
            &mut line,
        )
        .unwrap();
        assert_eq!(line, "held\n");
        child
    }
}

#[test]
fn needs_root_in_a_shared_directory_users_exclude_each_other_whoever_made_the_file() {
    let shared = Shared::new();
    assert_eq!(finish(&mut shared.lk(ONE, &["run", "a", "--", "true"])).code, 0);
    for (holder, waiter) in [(ONE, OTHER), (OTHER, ONE), (ONE, 0)] {
        let mut held = shared.hold(holder, "a");
        let ran = finish(&mut shared.lk(waiter, &["run", "a", "-n", "--", "true"]));
        assert_eq!(ran.code, 75, "{ran:?}");
        assert!(ran.err.contains(&format!("(pid {})", held.pid())), "{ran:?}");
        drop(held.0.stdin.take());
        assert_eq!(held.wait(), 0);
        assert_eq!(
            finish(&mut shared.lk(waiter, &["run", "a", "-w", "120", "--", "true"])).code,
            0
        );
    }
}

#[test]
fn needs_root_a_directory_that_we_may_not_write_to_is_refused_in_one_line() {
    let shared = Shared::new();
    let locks = shared.place.path("locks");
    std::fs::set_permissions(&locks, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(finish(&mut shared.lk(0, &["run", "there", "--", "true"])).code, 0);
    std::fs::set_permissions(locks.join("there.lock"), std::fs::Permissions::from_mode(0o644))
        .unwrap();
    for (name, why) in
        [("new", "Permission denied"), ("there", "it belongs to user 0 and cannot be opened")]
    {
        let ran = finish(&mut shared.lk(ONE, &["run", name, "-n", "--", "touch", "ran"]));
        refused(&ran, name, &["/locks", why]);
        assert!(!shared.place.path("scratch/ran").exists(), "{name}");
    }
}

#[test]
fn needs_root_what_a_neighbour_laid_in_a_shared_directory_is_refused_in_one_line_that_names_the_neighbour()
 {
    let shared = Shared::new();
    let locks = shared.place.text("locks");
    for (name, script) in [
        ("link", format!("echo precious > mine; ln -s $PWD/mine {locks}/link.lock")),
        ("twice", format!("echo > {locks}/twice.lock; ln {locks}/twice.lock {locks}/second-name")),
        ("fifo", format!("mkfifo -m 666 {locks}/fifo.lock")),
        ("dir", format!("mkdir -m 777 {locks}/dir.lock")),
        ("closed", format!("umask 077; echo > {locks}/closed.lock")),
        ("short", format!("umask 0; echo not a lock file > {locks}/short.lock")),
        ("long", format!("umask 0; head -c 100000 /dev/urandom > {locks}/long.lock")),
    ] {
        shared.sh(ONE, &script);
        let ran = finish(&mut shared.lk(OTHER, &["run", name, "-n", "--", "touch", "ran"]));
        refused(&ran, name, &[&format!("{name}.lock"), &format!("user {ONE}")]);
        assert!(!shared.place.path("scratch/ran").exists(), "{name}");
    }
    assert_eq!(shared.place.read("scratch/mine"), "precious\n");
    assert_eq!(
        finish(&mut shared.lk(OTHER, &["run", "free", "-n", "--", "true"])).code,
        0,
        "the others are as they were"
    );
}

#[test]
fn needs_root_in_a_shared_directory_the_owner_of_a_lock_file_can_damage_it_and_its_holder_is_told()
{
    let shared = Shared::new();
    assert_eq!(finish(&mut shared.lk(ONE, &["run", "a", "--", "true"])).code, 0);
    let file = shared.place.text("locks/a.lock");
    let mut held = shared.hold(OTHER, "a");
    // Emptied, it still excludes.
    shared.sh(ONE, &format!(": > {file}"));
    assert_eq!(finish(&mut shared.lk(0, &["run", "a", "-n", "--", "true"])).code, 75);
    // A stranger may not take it away, its owner may.
    let ran = finish(&mut shared.as_user(OTHER, "rm", &["-f", &file]));
    assert_ne!(ran.code, 0, "the directory is sticky");
    shared.sh(ONE, &format!("rm {file}"));
    assert_eq!(held.wait(), 79);
}

/// Waits until a holder's lockkeeper has gone to sleep a few more times: it does after each look at
/// its lock file.
fn until_it_has_looked(holder: &Reaped) {
    let slept = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", holder.pid())).unwrap();
        common::number(
            status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
                .unwrap()
                .trim(),
        )
    };
    let before = slept();
    common::until_true("it has looked", || slept() >= before + 3);
}

#[test]
fn needs_root_a_directory_that_may_not_be_looked_at_for_a_while_ends_no_lock_and_gives_none() {
    let shared = Shared::new();
    let above = |mode| {
        std::fs::set_permissions(shared.place.path("."), std::fs::Permissions::from_mode(mode))
            .unwrap()
    };
    let mut held = shared.hold(ONE, "a");
    let mut waits = shared.lk(ONE, &["run", "a", "--", "touch", "ran"]);
    let waits = Reaped::spawn(waits.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let waiters = || {
        json(shared.place.run(["--json", "status", "a"]).out.trim())["waiters"]
            .as_array()
            .map_or(0, Vec::len)
    };
    common::until_true("somebody waits", || waiters() == 1);
    above(0o700);
    until_it_has_looked(&held);
    assert_eq!(
        finish(&mut shared.lk(0, &["run", "a", "-n", "--", "true"])).code,
        75,
        "it holds it still"
    );
    drop(held.0.stdin.take());
    assert_eq!(held.wait(), 0, "its command ended by itself");
    let ran = waits.output();
    above(0o755);
    assert!(ran.code == 69 && ran.err.contains("a.lock: Permission denied"), "{ran:?}");
    assert!(!shared.place.path("scratch/ran").exists());
    assert_eq!(finish(&mut shared.lk(ONE, &["run", "a", "-n", "--", "true"])).code, 0);
}

#[test]
fn needs_root_until_a_replaced_file_is_noticed_there_can_be_two_holders_and_the_first_is_told() {
    let place = Place::new();
    let script = "trap 'echo told > told; exit 0' TERM; echo $LOCKKEEPER_TOKEN > token; while :; \
                  do sleep 0.02; done";
    let mut first = Reaped::spawn(&mut place.lk(["run", "a", "--", "sh", "-c", script]));
    let older: u64 = place.read("token").trim().parse().unwrap();
    std::fs::rename(place.path("locks"), place.path("moved")).unwrap();
    let second = finish(&mut place.lk([
        "run",
        "a",
        "-n",
        "--",
        "sh",
        "-c",
        "echo $LOCKKEEPER_TOKEN; test ! -e told || echo alone",
    ]));
    let newer = second.out.lines().next().unwrap().parse::<u64>().unwrap();
    assert!(second.code == 0 && newer > older, "{second:?} {older}");
    assert_eq!(first.wait(), 79);
    assert_eq!(place.read("told"), "told\n");
}

#[test]
fn needs_root_a_lock_file_that_is_emptied_or_overwritten_while_it_is_held_still_excludes_and_is_repaired()
 {
    let place = Place::new();
    let token = |ran: &Ran| ran.out.trim().parse::<u64>().unwrap();
    let show = ["run", "a", "-n", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"];
    let mut last = token(&place.run(show));
    for damage in [&b""[..], &[0xaa; 13_000], b"garbage"] {
        let holder = place.hold("a");
        std::fs::write(place.path("locks/a.lock"), damage).unwrap();
        // Nobody gets it; until the holder has looked at its file again they may be told that it
        // cannot be read.
        common::until_true("the holder repairs it", || {
            let ran = place.run(["run", "a", "-n", "--", "true"]);
            assert!(matches!(ran.code, 75 | 69), "{} bytes: {ran:?}", damage.len());
            ran.code == 75
        });
        holder.end();
        let ran = place.run(show);
        assert_eq!(ran.code, 0, "{} bytes: {ran:?}", damage.len());
        assert!(token(&ran) > last, "{} after {last}", token(&ran));
        last = token(&ran);
    }
}
