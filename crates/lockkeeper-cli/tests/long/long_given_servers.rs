//! Torture on servers of somebody else's: one that goes for good, and one that cannot show what is
//! wrong with a lock.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_lab::history::{Reader, What};
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::zookeeper::server::{Server, Settings};

use crate::common::{LONG_PATIENCE, Place, Reaped, finish, finish_within, json, until_true};

fn torture(place: &Place, arguments: &[&str]) -> Command {
    std::fs::create_dir_all(place.path("tmp")).unwrap();
    let mut command = place.lk(["torture"]);
    command.args(arguments).env("TMPDIR", place.path("tmp"));
    command
}

/// How many holds are recorded so far.
fn held(place: &Place) -> usize {
    let files = std::fs::read_dir(place.path("tmp"))
        .unwrap()
        .flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).into_iter().flatten());
    let acquired = |mut reader: Reader| {
        std::iter::from_fn(move || reader.next().ok().flatten())
            .filter(|(_, record)| record.what == What::Acquired)
            .count()
    };
    files.filter_map(|file| Reader::open(file.unwrap().path()).ok()).map(acquired).sum()
}

/// The server goes while a torture runs that is to take so long: nobody is convicted, and it is
/// said once.
fn goes(seconds: &str, go: impl Fn(&mut RedisServer)) {
    let (place, mut server) = (Place::new(), RedisServer::start());
    let url = format!("{}?ttl=1s", server.url());
    let mut command = torture(
        &place,
        &[&url, "--seconds", seconds, "--clients", "2", "--faults", "none", "--json"],
    );
    let run = Reaped::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    until_true("clients hold", || held(&place) > 20);
    go(&mut server);
    let gone = Instant::now();
    let ran = run.output_within(LONG_PATIENCE);
    // The silence, and how long clients may take to end.
    assert!(gone.elapsed() < Duration::from_secs(45), "it waits for nobody: {:?}", gone.elapsed());
    let verdict = json(ran.out.trim());
    assert_eq!((ran.code, verdict["verdict"].as_str()), (2, Some("too-weak")), "{ran:?}");
    assert!(
        verdict["holds"].as_u64().unwrap() > 0 && verdict["violations"] == serde_json::json!([]),
        "{verdict}"
    );
    let lines: Vec<_> =
        ran.err.lines().filter(|line| line.contains("the redis server that was given")).collect();
    assert!(
        lines.len() == 1 && lines[0].ends_with("no answer for 10 s; this torture ends here"),
        "{ran:?}"
    );
    assert!(!ran.err.contains(&url), "a URL may hold a secret: {ran:?}");
}

#[test]
fn a_given_server_that_ends_for_good_ends_the_torture_and_convicts_nobody() {
    goes("60", RedisServer::kill);
}

#[test]
fn a_given_server_that_is_silent_when_the_time_is_over_is_waited_for_and_convicts_nobody() {
    goes("5", |server| server.stop());
}

#[test]
fn a_broken_client_is_refused_by_a_server_on_which_it_would_look_right_and_convicted_where_it_does_not()
 {
    for (properties, code) in
        [(vec![], 64), (vec!["znode.container.checkIntervalMs=1000".to_owned()], 1)]
    {
        let (place, server) = (
            Place::new(),
            Server::start(Settings { properties, ends_with_us: true, ..Settings::default() })
                .unwrap(),
        );
        let url = format!("zk://{}", server.address());
        let began = Instant::now();
        let ran = finish_within(
            &mut torture(&place, &[&url, "--client", "broken:sequence-as-token"]),
            LONG_PATIENCE,
        );
        assert_eq!(ran.code, code, "{ran:?}");
        if code == 64 {
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            let said = ran
                .err
                .contains("broken:sequence-as-token cannot show there what is wrong with it");
            assert!(
                said && ran.err.contains("checkIntervalMs=1000") && ran.err.lines().count() == 1,
                "{ran:?}"
            );
        } else {
            assert!(ran.out.contains("convicted of token-"), "{ran:?}");
        }
    }
}

#[test]
fn a_broken_client_whose_flaw_was_not_seen_is_not_called_clean() {
    let place = Place::new();
    let ran = finish(&mut torture(
        &place,
        &["--client", "broken:lost-wakeup", "--faults", "none", "--seconds", "1"],
    ));
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(
        ran.out.contains("too weak to say: the flaw of broken:lost-wakeup was not seen"),
        "{ran:?}"
    );
}
