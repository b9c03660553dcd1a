//! What a torture says in the end, and where its picture goes.

use std::time::Instant;

use super::{histories, place, torture};
use crate::common::{self, Place, Ran, finish, json};

#[test]
fn a_fault_that_was_asked_for_by_name_and_never_happened_makes_a_torture_too_weak_to_say() {
    let place = place();
    // With this seed the schedule of so short a run has one of the two.
    let line = [
        "file:auto",
        "--faults",
        "stop-client,kill-client",
        "--seconds",
        "3",
        "--clients",
        "2",
        "--seed",
        "3",
    ];
    let ran = finish(&mut torture(&place, &line));
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(
        ran.out.contains("stop-client ")
            && ran.out.contains("too weak to say: kill-client was requested and never happened"),
        "{ran:?}"
    );
}

const SHORT: [&str; 7] = ["--seconds", "2", "--clients", "2", "--faults", "none", "--json"];

#[test]
fn a_picture_goes_where_links_lead_and_into_pipes_and_descriptors_as_they_are() {
    let place = place();
    let (link, pipe) = (place.text("link.html"), place.text("pipe"));
    std::os::unix::fs::symlink("real.html", &link).unwrap();
    let ran = finish(torture(&place, &SHORT).args(["--report", &link]));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(place.path("link.html").is_symlink() && place.read("real.html").contains("<svg"));

    nix::unistd::mkfifo(pipe.as_str(), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let (from, to) = (pipe.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || to.0.send(std::fs::read_to_string(from).unwrap()));
    assert_eq!(finish(torture(&place, &SHORT).args(["--report", &pipe])).code, 0);
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(
        &std::fs::symlink_metadata(&pipe).unwrap().file_type()
    ));
    assert!(to.1.recv_timeout(common::PATIENCE).unwrap().contains("<svg"));

    let ran = finish(torture(&place, &SHORT).args(["--report", "/dev/fd/1"]));
    let (verdict, page) = ran.out.split_once('\n').unwrap();
    assert_eq!((ran.code, json(verdict)["verdict"].as_str()), (0, Some("clean")), "{ran:?}");
    assert!(page.contains("<svg"), "the verdict first, then the page");
    assert_eq!(std::fs::read_dir(place.path("tmp")).unwrap().count(), 0);
}

#[test]
fn a_picture_that_cannot_be_written_takes_nothing_of_the_verdict_away() {
    let place = place();
    // Through a link: nothing but the link could be replaced.
    let full = place.text("full.html");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let ran = finish(torture(&place, &SHORT).args(["--report", &full]));
    assert_eq!((ran.code, json(ran.out.trim())["verdict"].as_str()), (0, Some("clean")), "{ran:?}");
    assert!(
        ran.err.lines().count() == 1
            && ran.err.contains("--report")
            && ran.err.contains("no space left"),
        "{}",
        ran.err
    );
    assert_eq!(histories(&place), 0);
    let ran = finish(&mut torture(
        &place,
        &["--client", "broken:unlink-on-release", "--json", "--report", &full],
    ));
    assert_eq!(
        (ran.code, json(ran.out.trim())["verdict"].as_str()),
        (1, Some("violations")),
        "{ran:?}"
    );
    assert!(histories(&place) > 0, "the histories are kept");
}

/// The number before a word of the report.
fn number(report: &str, word: &str) -> u64 {
    let before = report.split(word).next().unwrap();
    before
        .split_whitespace()
        .next_back()
        .unwrap()
        .parse()
        .unwrap_or_else(|_| panic!("{word}: {report}"))
}

/// Runs it again where nothing is wrong but that somebody waited: a machine that runs no client
/// for a while, but a thread that only sleeps, shows that, and a wake-up that is lost shows it each
/// time.
fn on_a_machine_that_keeps_up(place: &Place, arguments: &[&str]) -> Ran {
    let began = Instant::now();
    loop {
        let ran = finish(&mut torture(place, arguments));
        let mut wrong =
            ran.out.lines().filter_map(|line| line.trim().strip_prefix("NOT expected: "));
        let waited = ran.code == 1 && wrong.all(|what| what.starts_with("liveness "));
        if !waited || began.elapsed() > common::PATIENCE * 3 {
            return ran;
        }
    }
}

#[test]
fn clients_hand_on_convert_renew_give_up_and_leave_and_the_report_counts_it_and_says_how_to_replay()
{
    for (engine, renews) in [("file:auto", false), ("redis:auto", true)] {
        let place = place();
        let ran = on_a_machine_that_keeps_up(
            &place,
            &[engine, "--seconds", "5", "--clients", "2", "--faults", "none", "--seed", "5"],
        );
        assert_eq!(ran.code, 0, "{ran:?}");
        let count = |word| number(&ran.out, word);
        assert!(count("handed on,") > 0 && count("converted,") > 0, "{ran:?}");
        assert_eq!(count("renewals,") > 0, renews, "{ran:?}");
        // Writes that hang until after their turn are refused where somebody had the lock
        // meanwhile.
        assert!(!renews || count(" rejected,") > 0, "{ran:?}");
        for word in ["refused ", "timed out ", "left "] {
            let after: String = ran
                .out
                .split(word)
                .nth(1)
                .unwrap()
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            assert!(after.parse::<u64>().unwrap() > 0, "{word}: {ran:?}");
        }
        let again = format!(
            "lockkeeper torture {engine} --seconds 5 --clients 2 --tasks 8 --names 8 --faults none \
             --replay 5"
        );
        assert!(
            ran.out.lines().any(|line| line.trim() == format!("the same schedule: {again}")),
            "{ran:?}"
        );
    }
}
