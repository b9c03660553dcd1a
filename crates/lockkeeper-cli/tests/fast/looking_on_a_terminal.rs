//! `ls` and `watch` where somebody looks at them.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::common::lease::Engine;
use crate::common::terminal::Terminal;
use crate::common::{self, Holder, Place, Reaped, json, until_true};

const LONG: &str = "warehouse/berlin/import/of-the-whole-night/orders-and-returns/of-every-shop";
const LABEL: &str = "the nightly import of all that the shops have sold since noon";

/// A long name with a long label, and three waiters.
struct Crowd {
    holder: Holder,
    waiters: Vec<Reaped>,
}

impl Crowd {
    fn gather(place: &Place, url: &str) -> Self {
        let holder = place.hold_with(LONG, &["--url", url, "--label", LABEL]);
        let wait =
            |_| Reaped::spawn(&mut place.lk(["run", LONG, "--url", url, "-q", "--", "true"]));
        let crowd = Self { holder, waiters: (0..3).map(wait).collect() };
        until_true("three wait", || {
            let entry = place.run(["status", LONG, "--url", url, "--json"]).out;
            json(entry.trim_end())["waiters"].as_array().unwrap().len() == 3
        });
        crowd
    }

    fn end(mut self) {
        self.holder.end();
        self.waiters.iter_mut().for_each(|waiter| assert_eq!(waiter.wait(), 0));
    }
}

/// The directory of the place, and each server.
fn on_every_engine(look: impl Fn(&Place, &str)) {
    let place = Place::new();
    look(&place, &format!("file://{}", place.text("here")));
    for engine in [Engine::redis(), Engine::zookeeper()] {
        look(&place, &engine.url());
    }
}

/// What a program writes on a terminal of so many columns, and what it ends with.
fn written(command: Command, columns: u16) -> (String, i32) {
    let mut terminal = Terminal::with_columns(command, columns);
    let code = terminal.leader.wait();
    (terminal.rest(), code)
}

#[test]
fn ls_on_80_columns_shows_for_how_long_the_token_and_how_many_wait_and_marks_what_is_shortened() {
    on_every_engine(|place, url| {
        let crowd = Crowd::gather(place, url);
        let ls = || place.lk(["ls", "--url", url]);
        let (text, code) = written(ls(), 80);
        assert_eq!(code, 0, "{text}");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        for head in ["NAME", "FOR", "TOKEN", "WAITING"] {
            assert!(lines[0].contains(head), "{head}: {text}");
        }
        let entry = place.run(["status", LONG, "--url", url, "--json"]).out;
        let token = json(entry.trim_end())["holders"][0]["token"].as_str().unwrap().to_owned();
        assert!(lines[1].contains(&token) && lines[1].ends_with(" 3"), "{text}");
        assert!(
            lines[1].starts_with("warehouse/")
                && lines[1].contains('…')
                && lines[1].contains("every-shop "),
            "{text}"
        );
        let holder =
            lines.iter().find(|line| line.contains("held by")).unwrap_or_else(|| panic!("{text}"));
        assert!(
            holder.contains("pid ") && holder.contains("“the nightly") && holder.ends_with('…'),
            "{text}"
        );

        // Somebody asks for more, and a terminal or a variable that does not know is no reason for
        // less.
        let mut wide = ls();
        wide.env("COLUMNS", "300");
        assert!(written(wide, 80).0.contains(&format!("“{LABEL}”")));
        let mut odd = ls();
        odd.env("COLUMNS", "many");
        assert_eq!(written(odd, 80).0.lines().count(), lines.len());
        // Without a terminal nothing is shortened.
        let mut piped = ls();
        let plain = common::finish(piped.env("COLUMNS", "40")).out;
        assert!(
            plain.contains(LONG)
                && plain.contains(&format!("“{LABEL}”"))
                && plain.lines().count() == 2,
            "{plain}"
        );
        crowd.end();
    });
}

#[test]
fn q7_help_doctor_and_status_break_between_words_where_the_terminal_ends() {
    let place = Place::new();
    let holder = place.hold_with("a", &["--label", &"the nightly import ".repeat(6), "-q"]);
    for args in [
        &["help", "run"][..],
        &["--help"],
        &["doctor"],
        &["status", "a"],
        &["help", "doctor"],
        &["help", "torture"],
    ] {
        let (seen, code) = written(place.lk(args), 60);
        assert_eq!(code, 0, "{args:?}: {seen}");
        let whole = |line: &&str| line.starts_with("  lockkeeper ") || line.starts_with("  ./");
        // A path or a line to type has no place to break.
        let long = |line: &&str| line.split(' ').all(|word| word.chars().count() < 45);
        let lines = seen.lines().map(|line| line.trim_end_matches('\r'));
        let wide: Vec<&str> =
            lines.filter(|line| !whole(line) && long(line) && line.chars().count() > 60).collect();
        assert!(wide.is_empty(), "{args:?}: {wide:#?}");
    }
    holder.end();
    // Programs get whole lines, and help of the usual width.
    let piped = place.run(["doctor"]).out;
    assert!(piped.lines().any(|line| line.chars().count() > 100), "{piped}");
    for line in place.run(["help", "run"]).out.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn watch_begins_with_what_there_is_and_shows_who_waits() {
    on_every_engine(|place, url| {
        let crowd = Crowd::gather(place, url);
        let mut terminal = Terminal::with_columns(place.lk(["watch", "--url", url]), 80);
        let before = terminal.expect("WAITING");
        assert!(!before.contains("nobody holds"), "nobody has looked yet: {before:?}");
        until_true("all three are shown", || {
            let seen = terminal.seen();
            let is_shown = |pid: i32| {
                seen.lines().any(|line| {
                    line.starts_with("  waiting: ") && line.contains(&format!("pid {pid} "))
                })
            };
            crowd.waiters.iter().all(|waiter| is_shown(waiter.pid()))
        });
        crowd.end();
        terminal.expect("nobody holds or waits for anything");
        terminal.type_in("q");
        terminal.expect("\x1b[?25h\x1b[?1049l");
        assert_eq!(terminal.leader.wait(), 0);
    });
}

#[test]
fn watch_is_a_live_screen_and_gives_the_terminal_back_however_it_ends() {
    let place = Place::new();
    for (how, code) in [("--for", 0), ("q", 0), ("\x03", 130), ("TERM", 143)] {
        let mut lk = place.lk(["--url", "memory:", "watch", "stock/"]);
        if how == "--for" {
            lk.args(["--for", "300ms"]);
        }
        let mut terminal = Terminal::start(lk);
        let before = terminal.modes_before.clone();
        terminal.expect("\x1b[?1049h\x1b[?25l");
        terminal.expect("q: quit");
        terminal.expect("stock/*");
        terminal.expect("nobody holds or waits");
        match how {
            "--for" => {}
            "TERM" => terminal.leader.signal(Signal::SIGTERM),
            key => {
                assert_ne!(terminal.modes(), before, "keys come one by one");
                terminal.type_in(key);
            }
        }
        terminal.expect("\x1b[?25h\x1b[?1049l");
        assert_eq!(terminal.leader.wait(), code, "{how:?}");
        assert_eq!(terminal.modes(), before, "{how:?}");
    }
}

#[test]
fn a_watch_that_is_stopped_gives_the_terminal_back_meanwhile() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    for _ in 0..2 {
        terminal.type_in("\"$LK\" watch\n");
        terminal.expect("nobody holds or waits");
        terminal.type_in("\x1a");
        terminal.expect("\x1b[?25h\x1b[?1049l");
        terminal.expect("Stopped");
        terminal.expect("ready> ");
        terminal.type_in("fg\n");
        terminal.expect("\x1b[?1049h\x1b[?25l");
        terminal.expect("nobody holds or waits");
        terminal.type_in("q");
        terminal.expect("\x1b[?25h\x1b[?1049l");
        terminal.expect("ready> ");
        // The shell has its line, and its user sees what they type.
        terminal.type_in("echo code $?\n");
        terminal.expect("echo code");
        terminal.expect("code 0");
        terminal.expect("ready> ");
    }
    terminal.type_in("exit\n");
}

#[test]
fn a_watch_in_the_background_draws_no_screen_over_what_the_user_does() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in("\"$LK\" watch --for 20s &\n");
    terminal.expect("ready> ");
    let holder = place.hold("stock/42");
    let begun = terminal.expect("stock/42 ");
    holder.end();
    let ended = terminal.expect("stock/42 released by ");
    assert!(!(begun + &ended).contains("\x1b[?1049h"));
    terminal.type_in("kill %1; wait; exit\n");
}

#[test]
fn watch_ends_by_a_key_and_by_a_signal_while_it_still_connects() {
    // Connections are taken, and nobody ever answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}?connect_timeout=10m", silent.local_addr().unwrap());
    let place = Place::new();
    let mut terminal = Terminal::start(place.lk(["watch", "--url", &url]));
    terminal.expect("asking who holds and who waits");
    // It has come as far as to connect.
    let _first = silent.accept().unwrap();
    terminal.type_in("q");
    assert_eq!(terminal.leader.wait(), 0);
    let mut watch = Reaped::spawn(&mut place.lk(["watch", "--url", &url]));
    let _second = silent.accept().unwrap();
    watch.signal(Signal::SIGINT);
    assert_eq!(watch.wait(), 130);
}
