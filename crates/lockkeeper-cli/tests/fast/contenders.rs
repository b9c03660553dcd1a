//! `lockkeeper demo contenders`: who waits behind whom, whose release wakes whom, one holder at a
//! time, and nothing of it stays.

use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::lease::Engine;
use crate::common::{
    self, LONG_PATIENCE, Place, Ran, Reaped, children, finish_within, is_alive, json, until_true,
};

fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("tmp")).unwrap();
    place
}

fn demo(place: &Place, url: &str, arguments: &[&str]) -> std::process::Command {
    let mut command = place.lk(["demo", "contenders", "--url", url]);
    command.args(arguments).env("TMPDIR", place.path("tmp"));
    command
}

fn play(place: &Place, url: &str, arguments: &[&str]) -> Ran {
    let ran = finish_within(&mut demo(place, url, arguments), LONG_PATIENCE);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{url} {arguments:?}: {ran:?}");
    let last =
        "At most 1 held it at once, verified by a file that each holder creates exclusively.";
    assert_eq!(ran.out.lines().last(), Some(last), "{url}: {}", ran.out);
    assert_eq!(std::fs::read_dir(place.path("tmp")).unwrap().count(), 0);
    ran
}

/// What happened, without the time before it.
fn events(out: &str) -> Vec<&str> {
    out.lines().filter_map(|line| line.split_once(" s  ")).map(|(_, event)| event).collect()
}

/// Everybody stands behind the one before and gets the lock by its release; answers the tokens.
fn is_told_in_order(out: &str, who: &str, count: usize) -> Vec<u64> {
    let is = |event: &str, n: usize, rest: &str| {
        let after = event
            .strip_prefix(&format!("{who} {n} "))
            .unwrap_or_else(|| panic!("{event:?} is not of {who} {n}:\n{out}"));
        // A process is shown with its pid.
        let after =
            after.strip_prefix("(pid ").map_or(after, |pid| pid.split_once(") ").unwrap().1);
        assert!(after.starts_with(rest), "{event:?} is not {rest:?}:\n{out}");
    };
    let events = events(out);
    assert_eq!(events.len(), 3 * count - 1, "{out}");
    is(events[0], 0, "finds the lock free and holds it");
    for n in 1..count {
        is(events[n], n, &format!("waits behind {who} {}", n - 1));
        is(events[count - 2 + 2 * n], n - 1, "releases");
        is(
            events[count - 1 + 2 * n],
            n,
            &format!("is woken by the release of {who} {} and holds the lock", n - 1),
        );
    }
    is(events[3 * count - 2], count - 1, "releases");
    let in_order = format!("{count} of {count} held the lock, in the order in which they stood.");
    assert!(out.contains(&in_order), "{out}");
    events
        .iter()
        .filter_map(|event| event.split_once(", token "))
        .map(|(_, token)| token.parse().unwrap())
        .collect()
}

fn rise(tokens: &[u64], count: usize) -> bool {
    tokens.len() == count && tokens.windows(2).all(|pair| pair[0] < pair[1])
}

fn is_clean(engine: &Engine) -> bool {
    match engine {
        Engine::Redis(server) => server.command(&["DBSIZE"]) == ["0"],
        // Everything that a server is born with.
        Engine::ZooKeeper(server) => {
            server.ask("mntr").unwrap().lines().any(|line| line == "zk_znode_count\t5")
        }
    }
}

#[test]
fn ten_threads_wait_in_order_and_each_release_wakes_the_next_on_file_and_memory() {
    let place = place();
    let locks = format!("file://{}", place.text("locks"));
    for url in [locks.as_str(), "memory:"] {
        let ran = play(&place, url, &["--hold", "20ms"]);
        assert!(ran.out.starts_with("10 threads of one process and one lock, on "), "{}", ran.out);
        let tokens = is_told_in_order(&ran.out, "thread", 10);
        assert!(rise(&tokens, 10), "{tokens:?}");
    }
    assert_eq!(std::fs::read_dir(place.path("locks")).unwrap().count(), 0, "no lock file is left");
}

#[test]
fn ten_processes_are_shown_behind_each_other_as_the_engine_sees_them() {
    let place = place();
    let ran =
        play(&place, &format!("file://{}", place.text("locks")), &["--processes", "--hold", "0s"]);
    // A process is seen in line a moment before it waits in the kernel, so another one may overtake
    // it there.
    let waits: Vec<_> =
        events(&ran.out).into_iter().filter(|event| event.contains(" waits behind ")).collect();
    assert!(
        (1..10).all(|n| waits[n - 1].starts_with(&format!("process {n} (pid "))),
        "{}",
        ran.out
    );
    assert_eq!(
        events(&ran.out)
            .iter()
            .filter(|event| event.contains(" is woken by the release of process "))
            .count(),
        9
    );
    assert!(ran.out.contains("10 of 10 held the lock"), "{}", ran.out);
    assert_eq!(std::fs::read_dir(place.path("locks")).unwrap().count(), 0, "no lock file is left");
}

#[test]
fn the_contenders_are_told_on_every_layout_of_redis_and_nothing_is_left() {
    let (place, engine) = (place(), Engine::redis());
    for layout in ["", "?layout=redisson&lock=fair"] {
        let url = engine.url() + layout;
        for (option, who) in [("--threads", "thread"), ("--processes", "process")] {
            let ran = play(&place, &url, &[option, "5", "--hold", "20ms"]);
            let tokens = is_told_in_order(&ran.out, who, 5);
            assert!(rise(&tokens, if layout.is_empty() { 5 } else { 0 }), "{layout}: {}", ran.out);
            assert!(is_clean(&engine), "{layout}");
        }
    }
    for layout in ["?layout=plain", "?layout=redisson", "?layout=redisson&lock=fenced"] {
        let url = engine.url() + layout;
        is_told_in_order(
            &play(&place, &url, &["--threads", "4", "--hold", "20ms"]).out,
            "thread",
            4,
        );
        let ran = play(&place, &url, &["--processes", "4", "--hold", "20ms"]);
        let count =
            |words: &str| events(&ran.out).iter().filter(|event| event.contains(words)).count();
        assert_eq!(
            [
                count(" waits; the layout keeps no line"),
                count(" finds the lock free after process "),
                count(" is woken by "),
            ],
            [3, 3, 0],
            "{layout}: {}",
            ran.out
        );
        assert!(
            ran.out.contains("4 of 4 held the lock, in no order that the layout keeps."),
            "{layout}: {}",
            ran.out
        );
        assert_eq!(count(", token ") == 4, layout.ends_with("fenced"), "{layout}: {}", ran.out);
        assert!(is_clean(&engine), "{layout}");
    }
}

#[test]
fn the_contenders_are_told_on_every_layout_of_zookeeper_and_nothing_is_left() {
    let (place, engine) = (place(), Engine::zookeeper());
    for layout in ["", "?layout=kazoo", "?layout=plain"] {
        let url = engine.url() + layout;
        for (option, who) in [("--threads", "thread"), ("--processes", "process")] {
            let ran = play(&place, &url, &[option, "4", "--hold", "20ms"]);
            let tokens = is_told_in_order(&ran.out, who, 4);
            assert!(rise(&tokens, 4), "{layout}: {}", ran.out);
            assert!(is_clean(&engine), "{layout}");
        }
    }
}

#[test]
fn interrupted_contenders_leave_no_process_and_nothing_in_the_engine() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        for (option, workers, signal) in
            [("--threads", 1, Signal::SIGINT), ("--processes", 3, Signal::SIGTERM)]
        {
            let place = place();
            let mut command = demo(&place, &engine.url(), &[option, "3", "--hold", "60s"]);
            let mut story = Reaped::spawn(
                command
                    .stdout(std::fs::File::create(place.path("out")).unwrap())
                    .stderr(Stdio::null()),
            );
            let waiting =
                |text: String| text.lines().filter(|line| line.contains(" waits behind ")).count();
            until_true("all stand in line", || {
                waiting(std::fs::read_to_string(place.path("out")).unwrap()) == 2
            });
            let all = children(story.pid());
            assert!(all.len() > workers, "they, and who clears away: {all:?}");
            story.signal(signal);
            assert_eq!(story.wait(), 128 + signal as i32);
            until_true("they are gone", || all.iter().all(|pid| !is_alive(*pid)));
            assert!(is_clean(&engine), "{option}");
            assert_eq!(std::fs::read_dir(place.path("tmp")).unwrap().count(), 0);
        }
    }
}

#[test]
fn interrupted_contenders_leave_no_lock_file() {
    let place = place();
    let mut command = demo(
        &place,
        &format!("file://{}", place.text("locks")),
        &["--processes", "3", "--hold", "60s"],
    );
    let mut story = Reaped::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
    until_true("there is a lock file", || {
        std::fs::read_dir(place.path("locks")).is_ok_and(|mut dir| dir.next().is_some())
    });
    story.signal(Signal::SIGINT);
    assert_eq!(story.wait(), 130);
    assert_eq!(std::fs::read_dir(place.path("locks")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(place.path("tmp")).unwrap().count(), 0);
}

#[test]
fn contenders_are_objects_for_programs() {
    let place = place();
    let ran = common::finish(&mut demo(
        &place,
        "memory:",
        &["--threads", "2", "--hold", "1ms", "--json"],
    ));
    let objects: Vec<Value> = ran.out.lines().map(json).collect();
    let of =
        |event: &Value| (event["event"].as_str().unwrap().to_owned(), event["contender"].as_u64());
    let expected = [
        ("holds", Some(0)),
        ("waits", Some(1)),
        ("releases", Some(0)),
        ("holds", Some(1)),
        ("releases", Some(1)),
        ("end", None),
    ];
    assert_eq!(
        objects.iter().map(of).collect::<Vec<_>>(),
        expected.map(|(event, n)| (event.to_owned(), n))
    );
    assert_eq!(
        (objects[1]["behind"].as_u64(), objects[3]["woken_by"].as_u64()),
        (Some(0), Some(0))
    );
    assert_eq!((ran.code, objects[5]["held_at_once"].as_u64()), (0, Some(1)));
}

#[test]
fn what_contenders_cannot_be_is_refused_in_one_line() {
    let place = place();
    for (arguments, words) in [
        (&["--threads", "1"][..], "--threads 1 is not between 2 and 64"),
        (&["--processes", "65"], "--processes 65 is not between 2 and 64"),
        (&["--processes", "--url", "memory:"], "private to one process"),
        (&["--threads", "3", "--processes"], "exclude each other"),
        (&["--hold", "2h"], "--hold is one hour at most"),
        (&["--hold", "never"], "is not a duration"),
    ] {
        let ran = common::finish(place.lk(["demo", "contenders"]).args(arguments));
        assert_eq!((ran.code, ran.out.as_str()), (64, ""), "{arguments:?}: {ran:?}");
        assert!(ran.err.contains(words), "{arguments:?}: {}", ran.err);
    }
}
