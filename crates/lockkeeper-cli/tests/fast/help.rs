//! The help: its examples run, and it is found where people look for it.

use std::os::unix::fs::PermissionsExt as _;

use lockkeeper_testkit::redis::server::RedisServer;

use crate::common::{self, Place, Ran, finish, history};

/// The subcommands that the help names.
fn subcommands(place: &Place) -> Vec<String> {
    let help = place.run(["--help"]).out;
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // What goes on below a line stands further in.
    let heads = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = heads.filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

/// The lines under `Examples:`.
fn examples(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    let lines =
        lines.take_while(|line| line.starts_with("  ")).filter(|line| !line.starts_with("    "));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// What the examples speak of: scripts, a file to read and a reader of manuals.
fn furnish(place: &Place) {
    for name in
        ["report.sh", "deploy.sh", "train.sh", "dump.sh", "hands-on.sh", "schedule.sh", "man"]
    {
        let text = if name == "man" { "#!/bin/sh\nexec cat\n" } else { "#!/bin/sh\ntrue\n" };
        std::fs::write(place.path(name), text).unwrap();
        std::fs::set_permissions(place.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::write(place.path("app.conf"), "").unwrap();
}

fn type_in(place: &Place, line: &str, url: Option<&str>) -> Ran {
    let bin = std::path::Path::new(common::PROGRAM).parent().unwrap().display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = place.sh(line);
    shell
        .env("PATH", format!("{}:{bin}:{path}", place.text(".")))
        .envs(url.map(|url| ("LOCKKEEPER_URL", url)));
    finish(&mut shell)
}

#[test]
fn every_help_has_an_example_and_every_example_runs() {
    let names = subcommands(&Place::new());
    assert!(names.len() >= 18, "{names:?}");
    let stories = ["", "demo oversell ", "demo contenders "].map(|story| format!("{story}--help"));
    let pages = names.iter().map(|name| format!("{name} --help")).chain(stories);
    for page in pages {
        let place = Place::new();
        furnish(&place);
        history(&place.path("run.lkh"));
        let help = type_in(&place, &format!("lockkeeper {page}"), None);
        let lines = examples(&help.out);
        assert!(!lines.is_empty(), "{page} has no example: {help:?}");
        for line in lines {
            // A lock file cannot be taken from a living process: this one needs a server, and a
            // holder.
            let server = line.contains("release --force").then(RedisServer::start);
            let url = server.as_ref().map(RedisServer::url);
            let holder =
                url.as_ref().map(|url| place.hold_with("deploy/prod", &["--url", url, "-q"]));
            let ran = type_in(&place, &line, url.as_deref());
            drop(holder);
            // What `--strict` says about this machine may be a warning, and a torture may see too
            // little.
            let codes: &[i32] = if line.contains("--strict") || line.contains("torture") {
                &[0, 1, 2]
            } else {
                &[0]
            };
            assert!(codes.contains(&ran.code), "{page}: {line}: {ran:?}");
        }
    }
}

#[test]
fn help_and_version_are_found_as_subcommands_too() {
    let place = Place::new();
    for (words, same) in [
        (&["help"][..], &["--help"][..]),
        (&["help", "run"], &["run", "--help"]),
        (&["help", "check"], &["check", "--help"]),
        (&["help", "demo", "oversell"], &["demo", "oversell", "--help"]),
        (&["help", "help"], &["help", "--help"]),
    ] {
        let (said, same) = (place.run(words), place.run(same));
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{words:?}");
        assert_eq!(said.out, same.out, "{words:?}");
    }
    // Of another demo's options and acts nothing is said.
    let contenders = place.run(["help", "demo", "contenders"]).out;
    assert!(!contenders.contains("--stock") && !contenders.contains("act 5"), "{contenders}");
    // It says more: which commit, and which engines.
    let (said, same) = (place.run(["version"]), place.run(["--version"]));
    assert_eq!(said.out.lines().next(), Some(same.out.trim_end()), "{said:?}");
    assert!(said.out.contains("\nengines  memory, file, "), "{said:?}");
    let unknown = place.run(["help", "nosuch"]);
    assert_eq!((unknown.code, unknown.err.lines().count()), (64, 1), "{unknown:?}");
    assert!(unknown.err.contains("no subcommand nosuch"), "{unknown:?}");
}

#[test]
fn the_help_of_run_has_groups_in_the_order_of_a_runs_life() {
    let help = Place::new().run(["run", "--help"]).out;
    let groups = [
        "What to lock:",
        "Waiting:",
        "Lease:",
        "The command:",
        "When the lock is lost",
        "Engine and output:",
        "Examples:",
    ];
    let places: Vec<_> = groups
        .iter()
        .map(|group| help.find(&format!("\n{group}")).unwrap_or_else(|| panic!("{group}: {help}")))
        .collect();
    assert!(places.is_sorted(), "{help}");
    assert!(help.contains("-e]"), "flock's letter is shown: {help}");
}

#[test]
fn the_help_of_run_fits_two_screens_and_its_manual_page_has_the_rest() {
    let place = Place::new();
    let help = place.run(["run", "--help"]).out;
    let widest = help.lines().max_by_key(|line| line.chars().count()).unwrap();
    assert!(widest.chars().count() <= 80, "{widest}");
    // Two screens of thirty lines.
    assert!(help.lines().count() <= 60, "{} lines\n{help}", help.lines().count());
    let page = place.run(["man", "run"]);
    assert_eq!((page.code, page.err.as_str()), (0, ""));
    assert!(page.out.contains(".TH lockkeeper-run 1"), "{}", page.out);
    for section in ["HOW IT WAITS", "THE LEASE AND THE GUARDIAN", "EXIT STATUS", "SEE ALSO"] {
        assert!(page.out.contains(&format!(".SH \"{section}\"\n")), "{section}");
    }
    for line in help.lines().filter(|line| line.trim_start().starts_with('-')) {
        let option = line.split_whitespace().find(|word| word.starts_with("--")).unwrap();
        let roff = option.replace('-', "\\-");
        assert!(page.out.contains(&roff), "{option}: {}", page.out);
    }
    for other in ["-e", "--nb", "--timeout"] {
        assert!(page.out.contains(&other.replace('-', "\\-")), "{other}: {}", page.out);
    }
    assert_eq!(place.run(["man", "walk"]).code, 64);
}

#[test]
fn the_manual_says_what_is_read_and_set_and_how_it_ends() {
    let man = Place::new().run(["man"]).out;
    for section in ["EXAMPLES", "ENVIRONMENT", "FILES", "EXIT STATUS"] {
        assert!(man.contains(&format!(".SH \"{section}\"\n")), "{section}");
    }
    for word in [
        "LOCKKEEPER_URL",
        "LOCKKEEPER_DIR",
        "LOCKKEEPER_REQUIRE",
        "/etc/lockkeeper/config.toml",
        "config/lockkeeper/config.toml",
    ] {
        assert!(man.contains(word), "{word}");
    }
    for code in ["75", "79", "124", "64", "69", "125, 126, 127"] {
        assert!(man.contains(&format!(".TP\n\\fB{code}\\fR\n")), "{code}");
    }
    assert!(man.contains("lockkeeper run nightly\\-report \\-n \\-\\- ./report.sh"));
}

#[test]
fn the_manual_has_the_options_of_the_demos() {
    let man = Place::new().run(["man"]).out;
    for (story, options) in [
        ("OVERSELL", ["stock", "workers", "orders"]),
        ("CONTENDERS", ["threads", "processes", "hold"]),
    ] {
        let title = format!(".SH \"LOCKKEEPER DEMO {story}\"\n");
        let section = man.split_once(&title).unwrap_or_else(|| panic!("{story}: {man}")).1;
        let section = section.split(".SH ").next().unwrap();
        for option in options {
            assert!(section.contains(&format!("\\-\\-{option}")), "{story} {option}: {section}");
        }
        assert!(section.contains(&format!("lockkeeper demo {}", story.to_lowercase())));
    }
    assert!(!man.contains("DEMO HELP"), "{man}");
}
