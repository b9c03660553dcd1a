//! Torture where clients live in network namespaces: they are there, they are gone, and without
//! permission it is said.
//!
//! These need root; CI has it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::common::{self, Place, Ran, Reaped, children, finish, json, threads, until, until_true};

/// A user whom nothing belongs to.
const ONE: &str = "30001";

fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("tmp")).unwrap();
    place
}

fn torture(place: &Place, arguments: &[&str]) -> Command {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test makes network namespaces and changes users: run it as root, as CI does"
    );
    let mut command = place.lk(["torture"]);
    command.args(arguments).env("TMPDIR", place.path("tmp"));
    command
}

/// The network namespaces in which a process has threads.
fn networks(pid: i32) -> BTreeSet<PathBuf> {
    threads(pid)
        .iter()
        .filter_map(|thread| std::fs::read_link(format!("/proc/{pid}/task/{thread}/ns/net")).ok())
        .collect()
}

/// Those of all processes that can be seen.
fn all_networks() -> BTreeSet<PathBuf> {
    let all = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.flat_map(networks).collect()
}

fn here() -> PathBuf {
    std::fs::read_link("/proc/self/ns/net").unwrap()
}

fn is_client(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.contains("torture-client"))
}

#[test]
fn needs_root_each_client_lives_in_a_network_of_its_own_and_none_is_left_however_the_torture_ends()
{
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let place = place();
        let mut command = torture(
            &place,
            &[
                "redis:auto",
                "--seconds",
                "60",
                "--clients",
                "3",
                "--faults",
                "cut-link,kill-client",
            ],
        );
        let mut run = Reaped::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let clients =
            |pid| children(pid).into_iter().filter(|pid| is_client(*pid)).collect::<Vec<_>>();
        // A client that is killed is soon another one, in the same place.
        let homes = until("each of three clients has a home", || {
            let homes: BTreeSet<PathBuf> =
                clients(run.pid()).into_iter().flat_map(networks).collect();
            Some(homes).filter(|homes| homes.len() == 3)
        });
        assert!(!homes.contains(&here()));
        let mut of_run = networks(run.pid());
        assert!(of_run.is_superset(&homes) && of_run.remove(&here()), "{of_run:?} {homes:?}");
        assert_eq!(of_run.len(), 5, "three clients, the switch and the hub");
        let links = std::fs::read_to_string("/proc/self/net/dev").unwrap();
        assert!(
            !links.contains("client0") && !links.contains("hub0"),
            "none of its links is outside: {links}"
        );
        run.signal(signal);
        run.wait();
        until_true("none of them is left", || all_networks().is_disjoint(&of_run));
    }
}

#[test]
fn needs_root_clients_live_where_everybody_does_unless_a_link_is_to_lose_packets() {
    let place = place();
    let mut command = torture(
        &place,
        &["redis:auto", "--seconds", "60", "--clients", "2", "--faults", "stop-client,partition"],
    );
    let mut run = Reaped::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let clients = until("its clients are there", || {
        let all: Vec<i32> = children(run.pid()).into_iter().filter(|pid| is_client(*pid)).collect();
        Some(all).filter(|all| all.len() == 2)
    });
    assert!(clients.iter().all(|pid| networks(*pid) == BTreeSet::from([here()])));
    assert_eq!(networks(run.pid()), BTreeSet::from([here()]));
    run.signal(Signal::SIGINT);
    run.wait();
}

#[test]
fn needs_root_a_cut_link_loses_packets_and_the_run_is_clean() {
    let place = place();
    let clean = (0..5).any(|_| {
        let ran = finish(&mut torture(
            &place,
            &["redis:auto", "--seconds", "8", "--faults", "cut-link,lossy-link", "--json"],
        ));
        let report = json(ran.out.trim());
        match (ran.code, report["verdict"].as_str()) {
            (0, Some("clean")) => {
                assert!(report["faults"]["cut-link"].as_u64() > Some(0), "{report}");
                assert!(report["holds"].as_u64() > Some(0), "{report}");
                true
            }
            // The machine was so busy that nobody sent anything while a link lost packets.
            (2, Some("too-weak")) => false,
            _ => panic!("{ran:?}"),
        }
    });
    assert!(clean, "every run was too weak");
}

/// Tortures as a user who may do nothing.
fn as_somebody(place: &Place, arguments: &[&str]) -> Ran {
    use std::os::unix::fs::PermissionsExt as _;
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test changes users: run it as root, as CI does"
    );
    let open = |path: PathBuf, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap()
    };
    open(place.path("."), 0o755);
    open(place.path("tmp"), 0o1777);
    let program = place.path("lockkeeper");
    // Across file systems there is no link.
    if !program.exists() && std::fs::hard_link(common::PROGRAM, &program).is_err() {
        std::fs::copy(common::PROGRAM, &program).unwrap();
    }
    let mut command = place.program("setpriv");
    command
        .args(["--reuid", ONE, "--regid", ONE, "--clear-groups", "--"])
        .arg(program)
        .arg("torture")
        .args(arguments);
    finish(command.env("TMPDIR", place.path("tmp")).current_dir(place.path("tmp")))
}

#[test]
fn needs_root_without_permission_the_faults_that_lose_packets_are_left_out_and_it_is_said() {
    let place = place();
    let ran = as_somebody(&place, &["redis:auto", "--seconds", "3", "--faults", "stop-client"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let left: Vec<&str> = ran.out.lines().filter(|line| line.contains("left out")).collect();
    assert!(
        matches!(
            left[..],
            [line]
                if line.contains("cut-link, cut-link-up, cut-link-down, lossy-link: this process \
                                  cannot")
        ),
        "{ran:?}"
    );
    let ran = as_somebody(&place, &["redis:auto", "--seconds", "3", "--faults", "cut-link-up"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.lines().count()), (64, "", 1), "{ran:?}");
    assert!(
        ran.err.contains(
            "cut-link-up is not available here: this process cannot have a network namespace"
        ),
        "{ran:?}"
    );
}
