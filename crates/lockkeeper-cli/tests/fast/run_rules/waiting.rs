//! Rules 8 and 9: what a wait says, how long it lasts, and that everybody who waits has a turn.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::until_it_waits;
use crate::common::{self, Place, Reaped, until_true};

#[test]
fn rule_8_without_a_terminal_a_short_wait_is_silent_and_a_long_one_says_two_lines() {
    let place = Place::new();
    assert_eq!(place.run(["run", "a", "--", "true"]).err, "");
    assert_eq!(place.run(["run", "a", "-q", "-v", "--", "true"]).err, "", "the quiet one holds");
    let said = || std::fs::read_to_string(place.path("said")).unwrap();
    // What is said by one that waits until `over` returns, and how long it was there.
    let wait_for = |options: &[&str], over: &dyn Fn()| {
        let holder = place.hold_with("a", &["--label", "nightly"]);
        let mut lk = place.lk([&["run", "a"], options, &["--", "true"]].concat());
        let began = Instant::now();
        let mut waiting =
            Reaped::spawn(lk.stderr(std::fs::File::create(place.path("said")).unwrap()));
        until_it_waits(&waiting);
        over();
        holder.end();
        assert_eq!(waiting.wait(), 0);
        (said(), began.elapsed())
    };
    let pause = |ms: u64| move || std::thread::sleep(Duration::from_millis(ms));
    // On a busy machine a wait may become a long one.
    let short = (0..5)
        .map(|_| wait_for(&[], &pause(200)))
        .find(|(_, took)| *took < Duration::from_millis(900));
    assert!(short.as_ref().is_none_or(|(said, _)| said.is_empty()), "{short:?}");
    let (said, took) =
        wait_for(&[], &|| until_true("it says that it waits", || said().ends_with('\n')));
    assert!(took >= Duration::from_secs(1), "{took:?}: {said}");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].contains("waiting for a: held by ")
            && lines[0].contains("nightly")
            && lines[0].contains("(pid "),
        "{said}"
    );
    let after: f64 = lines[1]
        .split_once("a: granted after ")
        .and_then(|(_, text)| text.split('s').next()?.parse().ok())
        .unwrap();
    assert!((1.0..=took.as_secs_f64()).contains(&after), "{said}");
    assert_eq!(wait_for(&["-q"], &pause(1_300)).0, "");
    let (said, _) = wait_for(&["-v"], &|| ());
    assert!(
        said.contains("engine file://")
            && said.contains("waiting for a")
            && said.contains("granted after"),
        "{said}"
    );
}

#[test]
fn rule_8_not_obtained_is_one_line_that_says_who_holds_it() {
    let place = Place::new();
    let holder = place.hold_with("a", &["--label", "nightly"]);
    for options in [&["-n"][..], &["-w", "300ms"]] {
        let ran = place.run([&["run", "a"], options, &["--", "true"]].concat());
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        assert!(ran.err.contains(&format!("(pid {}, nightly)", holder.pid())), "{ran:?}");
        assert_eq!(place.run([&["-q", "run", "a"], options, &["--", "true"]].concat()).err, "");
    }
}

#[test]
fn r5_on_files_a_stopped_waiter_is_passed_over_and_has_the_lock_when_it_goes_on() {
    let place = Place::new();
    let holder = place.hold("a");
    let mut waiting = Reaped::spawn(&mut place.lk(["run", "a", "--", "true"]));
    until_true("it stands in line", || {
        place.run(["status", "a", "--json"]).out.contains(&format!("\"pid\":{}", waiting.pid()))
    });
    let threads_are = |wanted: char| {
        let threads = std::fs::read_dir(format!("/proc/{}/task", waiting.pid())).unwrap();
        let threads = threads.map(|thread| thread.unwrap().file_name().into_string().unwrap());
        threads.map(|id| common::state(id.parse().unwrap())).all(|state| state == Some(wanted))
    };
    // Where the kernel lets it wait, and not on its way there; nor still there, with a signal.
    until_true("each of its threads waits", || threads_are('S'));
    waiting.signal(Signal::SIGSTOP);
    until_true("each of its threads is stopped", || threads_are('T'));
    holder.end();
    let next = place.run(["run", "a", "-w", "120", "--", "true"]);
    assert!(next.code == 0 && threads_are('T'), "{next:?}");
    waiting.signal(Signal::SIGCONT);
    assert_eq!(waiting.wait(), 0);
}

#[test]
fn rule_9_the_wait_counts_from_the_start() {
    let place = Place::new();
    let _holder = place.hold("a");
    for (patience, at_least) in [("0", 0), ("300ms", 300), ("0.5", 500)] {
        let began = Instant::now();
        assert_eq!(place.run(["run", "a", "-w", patience, "--", "true"]).code, 75);
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(at_least), "{patience}: {took:?}");
    }
}

#[test]
fn eight_shells_and_fifty_increments_each_make_four_hundred() {
    let place = Place::new();
    std::fs::write(place.path("counter"), "0\n").unwrap();
    let script = "i=0; while [ $i -lt 50 ]; do \"$LK\" run counter -- sh -c 'read n < counter; \
                  echo $((n + 1)) > counter'; echo $? >> codes.$0; i=$((i + 1)); done";
    let mut shells: Vec<_> = (0..8)
        .map(|n| {
            let mut sh = place.program("sh");
            sh.args(["-c", script, &n.to_string()]);
            Reaped::spawn(&mut sh)
        })
        .collect();
    for shell in &mut shells {
        assert_eq!(shell.wait_within(common::LONG_PATIENCE), 0);
    }
    for n in 0..8 {
        assert_eq!(
            std::fs::read_to_string(place.path(&format!("codes.{n}"))).unwrap(),
            "0\n".repeat(50)
        );
    }
    assert_eq!(std::fs::read_to_string(place.path("counter")).unwrap(), "400\n");
}
