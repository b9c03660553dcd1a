//! The promise of a lock with a lease, many times, and on every engine that has them.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::lease::{Engine, WRITER, guardian, next_writer, nobody_wrote_late, rounds};
use crate::common::{self, Place, finish, json};

#[test]
fn round_after_round_nothing_of_a_killed_lockkeepers_command_writes_after_the_next_one_began() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        rounds(&engine, 2, 8, |holder, _| holder.signal(Signal::SIGKILL));
    }
}

#[test]
fn a_stopped_lockkeeper_keeps_its_lock_and_one_that_is_killed_then_ends_its_command_first() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        rounds(&engine, 5, 1, |holder, _| {
            holder.signal(Signal::SIGSTOP);
            let place = Place::new();
            let began = Instant::now();
            // Longer than the lease: somebody renews it.
            while began.elapsed() < Duration::from_millis(6_500) {
                assert_eq!(engine.run(&place, &["run", "a", "-n", "-q", "--", "true"]).code, 75);
                std::thread::sleep(Duration::from_millis(200));
            }
            holder.signal(Signal::SIGKILL);
        });
    }
}

#[test]
fn round_after_round_the_command_of_a_killed_guardian_is_gone_before_the_lease_passes() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        rounds(&engine, 2, 4, |holder, _| common::kill(guardian(holder.pid()), Signal::SIGKILL));
    }
}

#[test]
fn a_server_that_stands_still_longer_than_the_lease_ends_the_command_before_it() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        let script = format!("echo > runs; {WRITER}");
        let front = engine.start(
            &place,
            &[
                "run",
                "a",
                "--url",
                &engine.url_with_sessions_of(4),
                "--ttl",
                "2s",
                "--report",
                "report",
                "--",
                "sh",
                "-c",
                &script,
            ],
        );
        place.read("runs");
        let first = next_writer(&place, 0);
        engine.stop();
        let began = Instant::now();
        let ran = front.output();
        // The lease, its release that is not answered, and parting.
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        engine.go_on();
        assert_eq!(ran.code, 79, "{ran:?}");
        assert!(
            ran.err.lines().any(|line| line.contains(": lost: ") && line.contains("lease")),
            "{ran:?}"
        );
        let report = json(place.read("report").trim_end());
        assert_eq!(
            (report["outcome"].as_str(), report["why"].as_str()),
            (Some("lost"), Some("expired")),
            "{report}"
        );
        assert_eq!(report["command_signal"].as_str(), Some("SIGKILL"), "{report}");
        let next = finish(
            place
                .lk(["run", "a", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN. >> writes"])
                .env("LOCKKEEPER_URL", engine.url()),
        );
        assert_eq!(next.code, 0, "{next:?}");
        next_writer(&place, first);
        nobody_wrote_late(&place.path("writes"));
    }
}

#[test]
fn a_command_has_all_of_kill_after_between_term_and_kill() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        // It starts no program: one that waited for a processor would hide what time there was.
        let script = "trap 'echo $EPOCHREALTIME >> term' TERM; exec 3<> <(:); echo > runs; \
                      while :; do echo $EPOCHREALTIME >> times; read -t 0.005 -u 3; done";
        let url = engine.url_with_sessions_of(6);
        let options = [
            "run",
            "a",
            "--url",
            &url,
            "--ttl",
            "6s",
            "--kill-after",
            "2s",
            "--",
            "bash",
            "-c",
            script,
        ];
        let front = engine.start(&place, &options);
        place.read("runs");
        engine.stop();
        let ran = front.output_within(Duration::from_secs(60));
        engine.go_on();
        assert_eq!(ran.code, 79, "{ran:?}");
        // Seconds and their millionths, to milliseconds; KILL may leave half a line.
        let at = |line: &str| {
            let digits: String = line.chars().filter(char::is_ascii_digit).collect();
            digits.get(..13).and_then(|digits| digits.parse::<u64>().ok())
        };
        let term = at(&place.read("term")).expect("it was told");
        let text = place.read("times");
        let times: Vec<u64> = text.split_inclusive('\n').filter_map(at).collect();
        let (before, after) = times.split_at(times.partition_point(|time| *time < term));
        let had = after.last().expect("it goes on").saturating_sub(term);
        // As long as this machine let it stand at other times, it may have stood at the end.
        let stood = before.windows(2).map(|two| two[1] - two[0]).max().expect("it ran for seconds");
        let least = 1_900_u64.saturating_sub(2 * stood);
        assert!(
            (least..2_500).contains(&had),
            "{}: {had} ms between TERM and KILL; it stood for {stood} ms before",
            engine.name()
        );
    }
}
