//! As the first process of a container, lockkeeper reaps whoever comes to it. The numbers are those
//! of the findings.

use std::path::Path;
use std::process::{Command, Stdio};

use lockkeeper_testkit::redis::server::RedisServer;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::{self, Place, Ran, Reaped, children, finish, json, until, until_true};

/// A script as the first process of a PID namespace of its own.
fn first(place: &Place, script: &str) -> Command {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test makes PID namespaces: run it as root, as CI does"
    );
    let mut command = place.program("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]);
    command
}

#[test]
fn needs_root_c11_as_the_first_process_of_a_container_it_reaps_whoever_comes_to_it() {
    let (place, server) = (Place::new(), RedisServer::start());
    let command = "(sh -c 'echo $$ > orphan' &); until [ -s orphan ]; do sleep 0.01; done; \
                   orphan=$(cat orphan); rm orphan; tries=0; \
                   while [ -e /proc/$orphan ]; do sleep 0.02; tries=$((tries + 1)); \
                   [ $tries -lt 500 ] || exit 9; done; exit 3";
    for url in [format!("file://{}", place.text("locks")), server.url()] {
        for foreground in ["", "--foreground"] {
            let script = format!("exec $LK run p {foreground} --url {url} -- sh -c \"$COMMAND\"");
            let ran = finish(first(&place, &script).env("COMMAND", command));
            assert_eq!(
                ran,
                Ran { code: 3, out: String::new(), err: String::new() },
                "{url} {foreground}"
            );
        }
    }
}

#[test]
fn needs_root_as_the_first_process_it_also_reaps_while_it_waits_or_holds_and_whom_it_had_before() {
    let (place, server) = (Place::new(), RedisServer::start());
    for url in [format!("file://{}", place.text("locks")), server.url()] {
        let held = ["held-1", "held-2"].map(|name| place.hold_with(name, &["--url", &url]));
        for what in [
            "run held-1 -- true",
            "acquire held-2",
            "acquire free-1",
            "run free-2 -- cat",
            "run free-3 --foreground -- cat",
            "watch",
        ] {
            let (line, command) =
                what.split_once(" -- ").map_or((what, ""), |(line, command)| (line, command));
            let dashes = if command.is_empty() { "" } else { "--" };
            let script = format!("sleep 1000 & exec $LK {line} --url {url} {dashes} {command}");
            let mut started = first(&place, &script);
            let out = std::fs::File::create(place.path("out")).unwrap();
            let mut unshare =
                Reaped::spawn(started.stdin(Stdio::piped()).stdout(out).stderr(Stdio::null()));
            let called = |pid: i32, name: &str| {
                std::fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|comm| comm.trim() == name)
            };
            let us = until("it is there", || {
                children(unshare.pid()).into_iter().find(|pid| called(*pid, "lockkeeper"))
            });
            let orphan = until("so is the orphan", || {
                children(us).into_iter().find(|pid| called(*pid, "sleep"))
            });
            // Not before it is at what the line tells it to do: at its start it reaps, too.
            match line.split(' ').nth(1) {
                None => _ = place.read("out"),
                Some(name) => until_true(&format!("{what} on {url} waits or holds"), || {
                    let entry =
                        json(place.run(["status", name, "--url", &url, "--json"]).out.trim());
                    let who = if name.starts_with("held") { "waiters" } else { "holders" };
                    entry[who].as_array().is_some_and(|all| !all.is_empty())
                }),
            }
            kill(Pid::from_raw(orphan), Signal::SIGKILL).unwrap();
            until_true(&format!("{what} on {url} reaped it"), || {
                !Path::new(&format!("/proc/{orphan}")).exists()
            });
            assert!(Path::new(&format!("/proc/{us}/status")).exists(), "{what} on {url}");
            kill(Pid::from_raw(us), Signal::SIGKILL).unwrap();
            unshare.wait();
        }
        held.into_iter().for_each(common::Holder::end);
    }
}
