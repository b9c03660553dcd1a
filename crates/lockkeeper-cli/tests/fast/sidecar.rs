//! The Kubernetes example of a sidecar: its two scripts, cut from packaging/kubernetes/sidecar.yaml
//! and run side by side as the containers of the pod.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;

use lockkeeper_testkit::redis::server::RedisServer;
use nix::sys::signal::{Signal, killpg};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use crate::common::{self, PROGRAM, Place, Reaped, until_true};

/// The script of a container: the lines below its `- |`.
fn script(container: &str) -> String {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/sidecar.yaml");
    let yaml = std::fs::read_to_string(path).unwrap();
    let containers = yaml.split("\n  containers:\n").nth(1).unwrap();
    let mut lines =
        containers.lines().skip_while(|line| *line != format!("    - name: {container}"));
    let block = lines.by_ref().find(|line| line.trim() == "- |").expect("a script");
    let indent = block.len() - "- |".len();
    let inside = |line: &&str| line.is_empty() || line.len() - line.trim_start().len() > indent;
    lines.take_while(inside).flat_map(|line| [line.trim_start(), "\n"]).collect()
}

/// A pod: its volume, and the work of the neighbour.
struct Pod {
    place: Place,
    url: String,
}

/// What the neighbour runs: says its token, and works until it is told how to end.
const JOB: &str = "#!/bin/sh
trap 'echo told > told; read how < term; exit $how' TERM
echo \"$LOCKKEEPER_TOKEN\" > started
read how < work
exit $how
";

impl Pod {
    fn new(url: Option<&str>) -> Self {
        let place = Place::new();
        for pipe in ["alive", "held", "work", "term"] {
            mkfifo(&place.path(pipe), Mode::S_IRWXU).unwrap();
        }
        std::fs::write(place.path("job"), JOB).unwrap();
        std::fs::set_permissions(place.path("job"), PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(PROGRAM, place.path("lockkeeper")).unwrap();
        let url = url.map_or_else(|| format!("file://{}", place.text("shared")), str::to_owned);
        Self { place, url }
    }

    /// A container, in a group of its own: what ends it ends all of its processes.
    fn container(&self, name: &str) -> Reaped {
        let script = script(name)
            .replace("/lock/", &(self.place.text("") + "/"))
            .replace("/opt/importer/run", &self.place.text("job"));
        let path = std::env::var("PATH").unwrap_or_default();
        let mut container = self.place.sh(&script);
        container.env("PATH", format!("{}:{path}", self.place.text("")));
        container.env("LOCKKEEPER_URL", &self.url);
        Reaped::spawn(container.process_group(0).stdout(Stdio::null()))
    }

    fn start(&self) -> (Reaped, Reaped) {
        (self.container("lock"), self.container("importer"))
    }

    fn started(&self) -> bool {
        self.place.path("started").exists()
    }

    /// Whether nobody has the lock.
    fn free(&self) -> bool {
        common::run(&self.place, &self.url, &["run", "-n", "importer", "--", "true"]).code == 0
    }

    /// Lets the job end: from its work, or after it was told to stop.
    fn end(&self, at: &str, how: &str) {
        std::fs::write(self.place.path(at), format!("{how}\n")).unwrap();
    }
}

#[test]
fn the_lock_is_there_for_as_long_as_the_neighbour_works_and_no_longer() {
    let pod = Pod::new(None);
    let (mut lock, mut importer) = pod.start();
    let token = pod.place.read("started");
    assert!(token.trim().parse::<u64>().is_ok_and(|token| token > 0), "{token}");
    assert!(!pod.free());
    pod.end("work", "7");
    assert_eq!(importer.wait(), 7, "the job's own");
    assert_eq!(lock.wait(), 0);
    assert!(pod.free());
}

#[test]
fn the_neighbour_waits_for_the_lock() {
    let pod = Pod::new(None);
    let mut other = pod.place.lk(["acquire", "importer", "--for", "60s"]);
    let other = Reaped::spawn(other.env("LOCKKEEPER_URL", &pod.url).stdout(Stdio::null()));
    until_true("another pod has it", || !pod.free());
    let (mut lock, mut importer) = pod.start();
    let waiters = || {
        let status = common::run(&pod.place, &pod.url, &["status", "importer", "--json"]);
        common::json(&status.out)["waiters"].as_array().map_or(0, Vec::len)
    };
    until_true("it stands in line", || waiters() == 1);
    assert!(!pod.started());
    other.signal(Signal::SIGTERM);
    until_true("its turn comes", || pod.started());
    pod.end("work", "0");
    assert_eq!((importer.wait(), lock.wait()), (0, 0));
}

#[test]
fn a_sidecar_that_is_killed_stops_the_neighbour() {
    let pod = Pod::new(None);
    let (mut lock, mut importer) = pod.start();
    until_true("it works", || pod.started());
    killpg(Pid::from_raw(lock.pid()), Signal::SIGKILL).unwrap();
    lock.wait();
    pod.place.read("told");
    pod.end("term", "3");
    assert_eq!(importer.wait(), 3);
}

#[test]
fn a_neighbour_that_is_killed_gives_the_lock_back() {
    let pod = Pod::new(None);
    let (mut lock, mut importer) = pod.start();
    until_true("it works", || pod.started());
    killpg(Pid::from_raw(importer.pid()), Signal::SIGKILL).unwrap();
    importer.wait();
    assert_eq!(lock.wait(), 0);
    assert!(pod.free());
}

#[test]
fn a_refused_lock_starts_nothing() {
    let pod = Pod::new(Some("file:///proc/nowhere"));
    let (mut lock, mut importer) = pod.start();
    assert_eq!((lock.wait(), importer.wait()), (69, 75));
    assert!(!pod.started());
}

#[test]
fn a_lock_that_is_taken_away_stops_the_neighbour() {
    let server = RedisServer::start();
    let pod = Pod::new(Some(&server.url()));
    let (mut lock, mut importer) = pod.start();
    until_true("it works", || pod.started());
    let taken = common::run(&pod.place, &pod.url, &["release", "--force", "importer"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    pod.place.read("told");
    pod.end("term", "3");
    assert_eq!(importer.wait(), 3);
    assert_eq!(lock.wait(), 79, "lost");
}

#[test]
fn a_pod_that_is_deleted_keeps_the_lock_until_the_neighbour_has_ended() {
    let pod = Pod::new(None);
    let (mut lock, mut importer) = pod.start();
    until_true("it works", || pod.started());
    // As Kubernetes: TERM to the first process of each container.
    for container in [&lock, &importer] {
        container.signal(Signal::SIGTERM);
    }
    pod.place.read("told");
    assert!(!pod.free(), "it still works");
    pod.end("term", "0");
    assert_eq!((importer.wait(), lock.wait()), (0, 0));
    assert!(pod.free());
}
