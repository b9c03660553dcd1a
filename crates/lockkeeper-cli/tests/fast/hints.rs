//! A line that lockkeeper suggests works when it is typed.

use lockkeeper_testkit::redis::server::RedisServer;

use crate::common::{self, Place, Ran, finish};

/// What is typed, and what the suggested line prints when it is typed in its place.
const LINES: [(&str, &str); 29] = [
    ("lockkeeper run x echo a", "a\n"),
    ("lockkeeper run -w 3 'a b' -n echo -c a", "-c a\n"),
    ("lockkeeper run x -c 'echo $0' a b", "a\n"),
    ("lockkeeper run x -nc 'echo $1' a 'b c'", "b c\n"),
    ("lockkeeper run x '--command=echo $0' a", "a\n"),
    ("lockkeeper run x -n echo 'it'\\''s'", "it's\n"),
    ("lockkeeper elect x echo a", "a\n"),
    ("lockkeeper rn foo -- echo a", "a\n"),
    ("lockkeeper -q rnu foo -n -- echo a", "a\n"),
    ("lockkeeper foo -- echo a", "a\n"),
    ("lockkeeper exec x -- echo a", "a\n"),
    ("lockkeeper exec x echo a", "a\n"),
    ("lockkeeper lock x -- echo a", "a\n"),
    ("lockkeeper lock -- echo a", "a\n"),
    ("lockkeeper free -- echo a", "a\n"),
    ("lockkeeper show -w 3 -- echo a", "a\n"),
    ("lockkeeper leader x -- echo a", "a\n"),
    ("lockkeeper info x", "x (lock, file): free"),
    ("lockkeeper run", ""),
    ("lockkeeper 'a foo' echo a", "a\n"),
    ("lockkeeper --url file://$PWD/locks foo -n -- echo a", "a\n"),
    ("lockkeeper -- echo a", "a\n"),
    ("lockkeeper run -- echo a", "a\n"),
    ("lockkeeper run -n -- echo a", "a\n"),
    ("lockkeeper run x", ""),
    ("lockkeeper elect --id me x --", ""),
    ("lockkeeper staus x", "x (lock, file): free"),
    ("lockkeeper status", "NAME (lock, file): free"),
    ("lockkeeper permits", "NAME: 3 permits\n"),
];

/// Runs a line in a shell that finds lockkeeper.
fn type_in(place: &Place, line: &str) -> Ran {
    let dir = std::path::Path::new(common::PROGRAM).parent().unwrap();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
    finish(place.sh(line).env("PATH", path))
}

/// The line that a message suggests; what stands for something of the reader's is filled in.
fn suggested(said: &str) -> String {
    let at = said
        .rfind(": lockkeeper ")
        .map(|at| at + 2)
        .or_else(|| said.rfind(", lockkeeper ").map(|at| at + 2));
    let at = at.or_else(|| said.rfind("you mean lockkeeper ").map(|at| at + 9));
    let at = at.or_else(|| said.rfind("with lockkeeper ").map(|at| at + 5));
    let line = said.get(at.unwrap_or_else(|| panic!("it suggests nothing: {said}"))..).unwrap();
    let line = line.trim_end().trim_end_matches('?');
    let line = line.strip_suffix(" lists what there is").unwrap_or(line);
    line.replace(" CMD ARGS…", " true").replace("CMD", "true").replace("MAX", "3")
}

#[test]
fn a_suggested_line_does_what_was_meant() {
    for (line, prints) in LINES {
        let place = Place::new();
        let wrong = type_in(&place, line);
        assert_eq!((wrong.code, wrong.err.lines().count()), (64, 1), "{line}: {wrong:?}");
        let right = suggested(&wrong.err);
        let ran = type_in(&place, &right);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{line}: {right}: {ran:?}");
        assert!(ran.out.starts_with(prints), "{line}: {right}: {ran:?}");
    }
}

#[test]
fn where_no_line_is_known_the_help_that_is_named_exists() {
    let place = Place::new();
    for line in [
        "lockkeeper acquire a b",
        "lockkeeper ls a b",
        "lockkeeper run x -c",
        "lockkeeper run --xyz",
        "lockkeeper elect x -c true",
        "lockkeeper demo --x",
        "lockkeeper check --x",
        "lockkeeper --url",
        "lockkeeper --lines",
        "lockkeeper gc x",
        "lockkeeper demo nosuch",
        "lockkeeper demo contenders --stock 5",
        "lockkeeper help nosuch",
    ] {
        let wrong = type_in(&place, line);
        assert_eq!(wrong.code, 64, "{line}: {wrong:?}");
        let right = suggested(&wrong.err);
        assert!(right.ends_with("--help"), "{line}: {wrong:?}");
        let help = type_in(&place, &right);
        assert_eq!((help.code, help.err.as_str()), (0, ""), "{right}: {help:?}");
    }
}

#[test]
fn q3_a_word_that_is_known_from_elsewhere_leads_to_what_it_is_called_here() {
    let place = Place::new();
    for (line, right) in [
        ("lockkeeper unlock x", "lockkeeper release --force x?"),
        ("lockkeeper unlock --force x", "lockkeeper release --force x?"),
        ("lockkeeper free", "lockkeeper release --force NAME?"),
        ("lockkeeper lock x", "lockkeeper acquire x?"),
        ("lockkeeper exec x", "lockkeeper run NAME -- CMD ARGS…?"),
        ("lockkeeper list", "lockkeeper ls?"),
        ("lockkeeper --json resize gpu 3", "lockkeeper --json permits gpu 3?"),
    ] {
        let wrong = type_in(&place, line);
        assert_eq!((wrong.code, wrong.err.lines().count()), (64, 1), "{line}: {wrong:?}");
        assert!(wrong.err.contains(&format!("did you mean {right}")), "{line}: {wrong:?}");
    }
}

#[test]
fn q5_a_scheme_that_is_known_from_elsewhere_and_several_servers_lead_to_the_url_to_write() {
    let place = Place::new();
    for (url, says) in [
        ("zookeeper://a", "did you mean zk?"),
        ("pg://a", "did you mean postgres?"),
        ("valkey://a", "did you mean redis?"),
        ("redis://a,b,c", "redlock://a,b,c for a quorum"),
        ("redis://a,b", "redis+sentinel://a,b/SERVICE"),
        ("redis://a:1,b:2,a:3/4", "redlock://a:1,b:2,a:3 for a quorum"),
        ("rediss://a:7001,b", "redis+cluster://a:7001,b?tls=true for"),
    ] {
        let wrong = type_in(&place, &format!("lockkeeper --url {url} run x -- true"));
        assert_eq!((wrong.code, wrong.err.lines().count()), (64, 1), "{url}: {wrong:?}");
        assert!(wrong.err.contains(says), "{url}: {wrong:?}");
    }
}

#[test]
fn q13_whoever_takes_a_lock_by_hand_is_told_which_file_its_name_does_not_lock() {
    let place = Place::new();
    let said = |option: &[&str], name: &str| {
        let ran = place.run([&["run"], option, &[name, "--", "true"]].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.err
    };
    for name in ["/srv/x.lock", "/run/lock/x", "/var/lock/x"] {
        assert!(said(&["-v"], name).contains("flock(1) are not excluded"), "{name}");
        assert_eq!(said(&[], name), "", "cron would mail it");
    }
    // Its disk is not asked: it may hang.
    for name in ["stock/sku-42", "/etc/passwd"] {
        assert!(!said(&["-v"], name).contains("warning"), "{name}");
    }
}

#[test]
fn an_option_is_suggested_only_where_lockkeeper_takes_it() {
    let place = Place::new();
    let near = type_in(&place, "lockkeeper run x --wiat=3 -- true");
    assert!(near.err.ends_with("did you mean --wait?\n"), "{near:?}");
    let conflicts = type_in(&place, "lockkeeper run x --permits 1/2 --shard -- true");
    assert!(!conflicts.err.contains("--shared"), "{conflicts:?}");
}

#[test]
fn the_stored_limit_of_a_semaphore_is_changed_by_the_line_that_the_refusal_names() {
    let place = Place::new();
    for (lock, name) in [
        ("run 'the gpu' --permits", "the gpu"),
        ("--url file://$PWD/other run gpu --permits", "gpu"),
    ] {
        assert_eq!(type_in(&place, &format!("lockkeeper {lock} 1/2 -- true")).code, 0);
        let ask = format!("lockkeeper {lock} 1/3 -- true");
        let wrong = type_in(&place, &ask);
        assert_eq!((wrong.code, wrong.err.lines().count()), (64, 1), "{wrong:?}");
        let right = suggested(&wrong.err);
        assert_eq!(type_in(&place, &right).out, format!("{name}: 3 permits\n"), "{right}");
        assert_eq!(type_in(&place, &ask).code, 0, "{right}");
    }
    let acquire = type_in(&place, "lockkeeper acquire 'the gpu' --permits 1/4 --for 1ms");
    assert!(acquire.err.ends_with("lockkeeper permits 'the gpu' 4\n"), "{acquire:?}");
}

#[test]
fn release_names_its_own_line_with_force() {
    let place = Place::new();
    let wrong = type_in(&place, "lockkeeper --url file://$PWD/locks release 'a b'");
    let right = suggested(&wrong.err);
    assert!(right.contains("--force") && right.contains("--url"), "{wrong:?}");
    let ran = type_in(&place, &right);
    assert_eq!((ran.code, ran.err.as_str()), (1, "lockkeeper: a b: nobody holds it\n"));
}

#[test]
fn a_suggested_line_asks_for_the_password_that_it_does_not_show() {
    let place = Place::new();
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "ann", "on", ">hidden", "~*", "&*", "+@all"]);
    let url = server.url().replace("redis://", "redis://ann:hidden@");
    assert_eq!(
        type_in(&place, &format!("lockkeeper run gpu --permits 1/2 --url {url} -- true")).code,
        0
    );
    for (line, prints) in [
        (format!("lockkeeper --url {url} run x echo a"), "a\n"),
        (format!("lockkeeper run gpu --permits 1/3 --url {url} -- true"), "gpu: 3 permits\n"),
    ] {
        let wrong = type_in(&place, &line);
        assert_eq!((wrong.code, wrong.err.lines().count()), (64, 1), "{line}: {wrong:?}");
        let right = suggested(&wrong.err);
        assert!(right.contains("ann:PASSWORD@") && !wrong.err.contains("hidden"), "{wrong:?}");
        // As it stands it is refused, and is not let in as somebody else.
        assert_ne!(type_in(&place, &right).code, 0, "{right}");
        let ran = type_in(&place, &right.replace("PASSWORD", "hidden"));
        assert_eq!((ran.code, ran.out.as_str()), (0, prints), "{right}: {ran:?}");
    }
}

#[test]
fn a_line_without_a_subcommand_is_one_line_or_one_object() {
    let place = Place::new();
    let words = type_in(&place, "lockkeeper -q");
    assert_eq!((words.code, words.err.lines().count()), (64, 1), "{words:?}");
    let object = type_in(&place, "lockkeeper --json");
    assert_eq!(common::json(object.err.trim_end())["exit"].as_i64(), Some(64), "{object:?}");
}
