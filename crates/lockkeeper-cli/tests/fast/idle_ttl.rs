//! `--ttl` where a lock does not end by a lease of its own.

use crate::common::lease::Engine;
use crate::common::terminal::Terminal;
use crate::common::{self, Place, Ran};

/// Every command that takes `--ttl`, with it and with these options.
fn each(place: &Place, url: &str, options: &[&str]) -> Vec<Ran> {
    let with = |before: &[&str], after: &[&str]| {
        place.run([before, &["--url", url], options, after].concat())
    };
    vec![
        with(&["run", "a"], &["--", "true"]),
        with(&["acquire", "b", "--for", "10ms"], &[]),
        with(&["elect", "c"], &["--", "true"]),
    ]
}

/// The lines that warn.
fn warnings(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.contains("warning: ")).collect()
}

#[test]
fn a_ttl_that_changes_nothing_is_warned_of_where_somebody_reads_and_says_what_decides() {
    let place = Place::new();
    let server = Engine::zookeeper();
    for (url, engine, decides) in [
        (
            format!("file://{}", place.text("locks")),
            "on file",
            "until the last process that has it open has ended",
        ),
        (server.url(), "on zookeeper", "the session is the lease, 15s if"),
        (server.url_with_sessions_of(6), "on zookeeper", "the session is the lease, 6s if"),
    ] {
        for ran in each(&place, &url, &["--ttl", "5s", "-v"]) {
            let said = warnings(&ran.err);
            assert_eq!((ran.code, said.len()), (0, 1), "{url}: {ran:?}");
            assert!(
                said[0].starts_with("lockkeeper: warning: --ttl 5s changes nothing "),
                "{ran:?}"
            );
            assert!(said[0].contains(engine) && said[0].contains(decides), "{ran:?}");
        }
        // cron mails every line.
        for options in [&[][..], &["--ttl", "5s"], &["--ttl", "5s", "-q"]] {
            for ran in each(&place, &url, options) {
                assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{url} {options:?}");
            }
        }
        // A fixed lease means something wherever holds end by time.
        let fixed = usize::from(engine == "on file");
        let ran = place.run(["run", "a", "-v", "--no-renew", "--url", &url, "--", "true"]);
        let said = warnings(&ran.err);
        assert_eq!((ran.code, said.len()), (0, fixed), "{url}: {ran:?}");
        assert!(said.iter().all(|said| said.contains("--no-renew changes nothing on file: ")));
        // Where nothing can be out of reach, nothing that is said about that means anything.
        let away = ["--on-unreachable", "run", "--unreachable-after", "5s", "-v", "--", "true"];
        let ran = place.run([&["run", "a", "--url", &url][..], &away].concat());
        assert_eq!((ran.code, warnings(&ran.err).len()), (0, 2 * fixed), "{url}: {ran:?}");
        let args = ["run", "a", "--no-renew", "--ttl", "5s", "--url", &url, "--", "true"];
        let mut terminal = Terminal::start(place.lk(args));
        assert_eq!(terminal.leader.wait(), 0);
        let seen = terminal.rest();
        assert_eq!(seen.matches(" changes nothing on ").count(), 1 + fixed, "{seen}");

        // In the URL it is the doctor's.
        let with = format!("{url}{}ttl=5s", if url.contains('?') { '&' } else { '?' });
        let ran = place.run(["run", "a", "-v", "--url", &with, "--", "true"]);
        assert_eq!((ran.code, warnings(&ran.err).len()), (0, 0), "{ran:?}");
        let doctor = place.run(["doctor", "--json", "--no-probe", &with]);
        let about = common::json(doctor.out.trim_end());
        let ids = about["warnings"].as_array().unwrap().iter();
        let told: Vec<_> = ids.filter(|warning| warning["id"] == "idle-ttl").collect();
        assert_eq!((doctor.code, told.len()), (0, 1), "{about}");
        let text = told[0]["text"].as_str().unwrap();
        assert!(
            text.starts_with("ttl=5s in the URL changes nothing on ") && text.contains(decides)
        );
        // Of an option that is refused nothing else is said, and JSON stays JSON.
        let refused = place.run(["run", "a", "--url", &url, "--ttl", "199ms", "--", "true"]);
        assert!(
            refused.code == 64
                && refused.err.contains("out of range")
                && refused.err.lines().count() == 1,
            "{refused:?}"
        );
        let objects = place.run(["run", "a", "--url", &url, "--ttl", "5s", "--json", "--", "true"]);
        assert!(
            objects.err.lines().all(|line| common::json(line)["event"].is_string()),
            "{objects:?}"
        );
    }
}

#[test]
fn a_ttl_on_redis_is_the_lease_and_nothing_is_said() {
    let place = Place::new();
    let server = Engine::redis();
    for ran in each(&place, &server.url(), &["--ttl", "5s", "-v"]) {
        assert_eq!((ran.code, warnings(&ran.err).len()), (0, 0), "{ran:?}");
    }
    let url = format!("{}?ttl=5s", server.url());
    let doctor = place.run(["doctor", "--json", "--no-probe", &url]);
    assert!(!doctor.out.contains("idle-ttl"), "{doctor:?}");
}
