//! Rules 1 and 2: signals that come while it waits and while the command runs.

use nix::sys::signal::Signal;

use super::{has, mask, until_it_waits};
use crate::common::{self, Place, Reaped, finish, group, is_alive, number, until_true};

#[test]
fn rule_1_a_signal_ends_the_wait_at_once_and_leaves_the_line() {
    let place = Place::new();
    let holder = place.hold("a");
    let mut first = Reaped::spawn(&mut place.lk(["run", "a", "--", "touch", "first"]));
    until_it_waits(&first);
    let mut second = Reaped::spawn(&mut place.lk(["run", "a", "--", "touch", "second"]));
    until_it_waits(&second);
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), 143, "while it is held");
    holder.end();
    assert_eq!(second.wait(), 0, "who stood behind it got the lock");
    assert!(!place.path("first").exists() && place.path("second").exists());
}

#[test]
fn rule_1_what_was_ignored_when_we_started_stays_ignored_by_us_and_by_the_command() {
    let place = Place::new();
    let holder = place.hold("a");
    let script = "trap '' INT TERM HUP QUIT PIPE CHLD; exec \"$LK\" run a -- sh -c 'grep SigIgn \
                  /proc/$$/status > ignored'";
    let mut waiting = Reaped::spawn(&mut place.sh(script));
    until_true("it waits", || {
        common::state(waiting.pid()) == Some('S')
            && has(mask(waiting.pid(), "SigBlk"), Signal::SIGTTOU)
    });
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        waiting.signal(signal);
    }
    holder.end();
    assert_eq!(waiting.wait(), 0);
    let ignored = place.read("ignored");
    let ignored = u64::from_str_radix(ignored.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    for signal in
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGPIPE]
    {
        assert!(has(ignored, signal), "{signal} in {ignored:x}");
    }
}

#[test]
fn the_command_finds_signals_as_we_found_them() {
    let place = Place::new();
    let masks = |command: &mut std::process::Command| {
        let ran = finish(command);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.out
    };
    let show = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status";
    let (direct, under) = (
        masks(&mut place.sh(show)),
        masks(place.lk(["run", "a", "--", "sh", "-c", show]).env("X", "")),
    );
    assert_eq!(direct, under);
    assert_eq!(direct, masks(&mut place.lk(["run", "-F", "a", "--", "sh", "-c", show])));
}

#[test]
fn rule_2_the_command_has_its_own_group_and_gets_what_we_get() {
    let place = Place::new();
    let script = "for s in INT TERM HUP QUIT USR1 USR2 CONT WINCH; do trap \"echo $s >> got\" $s; \
                  done; echo $$ > pid; \
                  while [ ! -e stop ]; do sleep 0.02; done; exit 9";
    let mut run = Reaped::spawn(&mut place.lk(["run", "a", "--", "sh", "-c", script]));
    let pid = number(&place.read("pid"));
    assert_eq!(group(pid), pid);
    let mut expected = String::new();
    for signal in ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "CONT", "WINCH"] {
        run.signal(format!("SIG{signal}").parse().unwrap());
        expected += signal;
        expected += "\n";
        until_true(signal, || {
            std::fs::read_to_string(place.path("got")).is_ok_and(|got| got == expected)
        });
    }
    std::fs::write(place.path("stop"), "").unwrap();
    assert_eq!(run.wait(), 9);
}

#[test]
fn rule_2_grandchildren_get_it_too() {
    let place = Place::new();
    // What killed only /bin/sh left its child at work without the lock.
    let mut run = Reaped::spawn(&mut place.lk([
        "run",
        "a",
        "--",
        "sh",
        "-c",
        "sleep 1000 & echo $! > pid; wait; wait",
    ]));
    let sleeper = number(&place.read("pid"));
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
    assert!(!is_alive(sleeper));
}

#[test]
fn rule_2_with_foreground_it_stays_in_our_group() {
    let place = Place::new();
    let script = "trap 'exit 5' USR1; echo $$ > pid; while :; do sleep 0.02; done";
    let mut run =
        Reaped::spawn(&mut place.lk(["run", "--foreground", "a", "--", "sh", "-c", script]));
    let pid = number(&place.read("pid"));
    assert_eq!(group(pid), group(run.pid()));
    run.signal(Signal::SIGUSR1);
    assert_eq!(run.wait(), 5);
}
