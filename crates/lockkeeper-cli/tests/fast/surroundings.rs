//! What is around the program: a full disk behind stdout, readers that go, hostile servers and
//! records, and the process list. The numbers are those of the findings.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use lockkeeper_testkit::redis::server::RedisServer;

use crate::common::lease::{arguments, guardian};
use crate::common::{self, Place, Ran, Reaped, children, finish, json, until};

/// Runs lockkeeper with a stdout that no byte fits into.
fn into_full(place: &Place, args: &[&str]) -> Ran {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let child = place.lk(args).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    Reaped(child).output()
}

#[test]
fn c12_a_stdout_that_cannot_be_written_is_said_and_ends_with_125() {
    let place = Place::new();
    let held = place.hold("held");
    for args in [
        &["ls"][..],
        &["--json", "ls"],
        &["status", "held"],
        &["status", "--exit-code", "free"],
        &["doctor"],
        &["--json", "doctor"],
        &["watch", "--for", "10s"],
        &["gc"],
        &["permits", "s", "3"],
        &["acquire", "a", "--for", "1m"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
        &["run", "--help"],
        &["--version"],
        &["check", "--help"],
        &["torture", "--list-clients"],
        &["bench", "--only", "turn", "--seconds", "1", "memory:"],
        &["demo", "oversell", "--workers", "2", "--stock", "1", "--orders", "2"],
    ] {
        let ran = into_full(&place, args);
        assert_eq!(ran.code, 125, "{args:?}: {ran:?}");
        assert_eq!(
            ran.err.matches("stdout cannot be written: no space left on device").count(),
            1,
            "{args:?}: {ran:?}"
        );
    }
    held.end();
    // What could not be told is not kept.
    assert_eq!(place.run(["run", "a", "-n", "--", "true"]).code, 0);
    // A command's own stdout is its own.
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut run = Reaped(
        place.lk(["run", "a", "--", "true"]).stdout(full).stderr(Stdio::piped()).spawn().unwrap(),
    );
    assert_eq!(run.wait(), 0);
}

#[test]
fn c12_a_reader_that_goes_ends_us_as_it_ends_every_filter() {
    let place = Place::new();
    let held = place.hold("held");
    for ignored in [false, true] {
        for args in [
            &["ls"][..],
            &["status", "held"],
            &["watch", "--for", "10s"],
            &["acquire", "a", "--for", "1m"],
            &["man"],
        ] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = place.lk(args);
            command.stdout(writer).stderr(Stdio::piped());
            if ignored {
                ignore_sigpipe(&mut command);
            }
            let ran = Reaped(command.spawn().unwrap()).output();
            assert_eq!(
                (ran.code, ran.err.as_str()),
                (1_000 + 13, ""),
                "{args:?}, ignored: {ignored}"
            );
        }
    }
    held.end();
    assert_eq!(place.run(["run", "a", "-n", "--", "true"]).code, 0);
}

/// As Python and others start programs.
fn ignore_sigpipe(command: &mut Command) {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: between fork and exec only signal(2) is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            signal(Signal::SIGPIPE, SigHandler::SigIgn)?;
            Ok(())
        })
    };
}

/// Whether a terminal would act on it.
fn is_raw(text: &str) -> bool {
    text.chars().any(|c| c != '\n' && lockkeeper::text::acts(c))
}

const HOSTILE: &str =
    "\u{1b}]0;pwned\u{7}\u{1b}[31m\u{9b}2J\u{202e}\u{7f}\u{200b}\u{2028}\u{feff}\u{ad}";

#[test]
fn c15_a_server_s_error_never_reaches_a_terminal_raw() {
    for answer in [
        format!("-ERR {HOSTILE}\r\n"),
        format!("-NOPERM {HOSTILE}\r\n"),
        format!("-LOADING {HOSTILE}\r\n"),
        format!("+{HOSTILE}\r\n"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let answer_says_why = answer.starts_with("-ERR") || answer.starts_with("-LOADING");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, answer) = (stream.unwrap(), answer.clone());
                std::thread::spawn(move || {
                    let mut buffer = [0; 4_096];
                    while stream.read(&mut buffer).is_ok_and(|size| size > 0)
                        && stream.write_all(answer.as_bytes()).is_ok()
                    {}
                });
            }
        });
        let place = Place::new();
        let mut told = false;
        for args in [
            &["run", "x", "-n", "--", "true"][..],
            &["ls"],
            &["doctor"],
            &["status", "x"],
            &["--json", "ls"],
            &["-v", "run", "x", "-n", "-c", "true"],
        ] {
            let ran = finish(place.lk(["--url", &url]).args(args));
            assert!(ran.code == 69 && !is_raw(&ran.err) && !is_raw(&ran.out), "{args:?}: {ran:?}");
            told |= ran.err.contains("pwned");
        }
        assert!(told || !answer_says_why, "{url}: the answer was told by nobody");
    }
}

#[test]
fn c15_a_hostile_record_never_reaches_a_terminal_raw() {
    let (place, server) = (Place::new(), RedisServer::start());
    for url in [server.url(), format!("file://{}", place.text("locks"))] {
        let mut holding = place.lk(["acquire", "x", "--url", &url, "--label", HOSTILE]);
        holding.arg0(format!("a{HOSTILE}")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holding = Reaped::spawn(&mut holding);
        let mut line = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(holding.0.stdout.as_mut().unwrap()),
            &mut line,
        )
        .unwrap();
        assert_eq!(json(&line)["event"], "granted");
        let mut told = 0;
        for args in [
            &["ls"][..],
            &["status", "x"],
            &["watch", "--for", "300ms"],
            &["--json", "status", "x"],
            &["--json", "watch", "--for", "300ms"],
            &["-v", "run", "x", "-w", "1.2", "--", "true"],
            &["run", "x", "-n", "--", "true"],
            &["--json", "run", "x", "-n", "--", "true"],
        ] {
            let ran = finish(place.lk(["--url", &url]).args(args));
            assert!(!is_raw(&ran.err) && !is_raw(&ran.out), "{args:?}: {ran:?}");
            told += u32::from(ran.err.contains("pwned") || ran.out.contains("pwned"));
        }
        assert!(told >= 6, "{url}: {told}");
        drop(holding.0.stdin.take());
        holding.wait();
    }
}

#[test]
fn c16_the_process_list_shows_no_password_of_a_url() {
    let (place, server) = (Place::new(), RedisServer::start_with(&["--requirepass", "s3same"]));
    let url = format!("redis://:s3same@127.0.0.1:{}", server.port());
    for args in [
        vec!["run".to_owned(), "x".to_owned(), "--url".to_owned(), url.clone()],
        vec![format!("--url={url}"), "run".to_owned(), "x".to_owned()],
    ] {
        let mut command = place.lk(args);
        command
            .args(["--", "sh", "-c", "echo held; cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut run = Reaped::spawn(&mut command);
        let mut line = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(run.0.stdout.as_mut().unwrap()),
            &mut line,
        )
        .unwrap();
        assert_eq!(line, "held\n");
        for pid in [vec![run.pid(), guardian(run.pid())], children(run.pid())].concat() {
            assert!(
                arguments(pid).iter().all(|word| !word.contains("s3same")),
                "{:?}",
                arguments(pid)
            );
        }
        // The rest is there: people look for it.
        assert!(
            arguments(run.pid()).iter().any(|word| word.contains("redis://:xxxxxx@127.0.0.1")),
            "{:?}",
            arguments(run.pid())
        );
        drop(run.0.stdin.take());
        assert_eq!(run.wait(), 0);
    }
    // The command may be another lockkeeper, or a script with one.
    for behind in [
        vec![
            common::PROGRAM.to_owned(),
            "run".to_owned(),
            "y".to_owned(),
            "--url".to_owned(),
            url.clone(),
        ],
        vec![
            "sh".to_owned(),
            "-c".to_owned(),
            format!("exec $LK run y --url '{url}' -- cat"),
            "sh".to_owned(),
        ],
    ] {
        let mut command = place.lk(["run", "x", "--"]);
        command
            .args(behind)
            .args(["--", "sh", "-c", "echo held; cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut run = Reaped::spawn(&mut command);
        until("it has overwritten its arguments", || {
            arguments(run.pid()).iter().any(|word| word.contains(":xxxxxx@")).then_some(())
        });
        assert!(
            arguments(run.pid()).iter().all(|word| !word.contains("s3same")),
            "{:?}",
            arguments(run.pid())
        );
        drop(run.0.stdin.take());
        // The command has its words as they were given.
        assert_eq!(run.wait(), 0);
    }
    // As long as the others run, too.
    let mut watch = Reaped::spawn(
        place.lk(["watch", "--url", &url]).stdout(Stdio::null()).stderr(Stdio::null()),
    );
    until("it has overwritten its arguments", || {
        arguments(watch.pid()).iter().any(|word| word.contains("xxxxxx")).then_some(())
    });
    watch.signal(nix::sys::signal::Signal::SIGTERM);
    watch.wait();
}
