//! Who waits: what it is told, when it stops waiting, and what it gets.

use lockkeeper_testkit::proxy::{Proxy, Way};
use lockkeeper_testkit::redis::server::RedisServer;
use nix::sys::signal::Signal;

use crate::common::lease::{Engine, guardian, until_gone};
use crate::common::{Place, json, state, until_true};

#[test]
fn not_obtained_says_who_has_it() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        let mut holder = engine.start(
            &place,
            &["run", "a", "--label", "import", "--", "sh", "-c", "echo > runs; exec sleep 1000"],
        );
        place.read("runs");
        for (options, code) in
            [(&["-n"][..], 75), (&["-w", "8s"], 75), (&["-n", "-E", "3"], 3), (&["-w", "0"], 75)]
        {
            let ran = engine.run(
                &place,
                &[&["run", "a", "--report", "report"], options, &["--", "true"]].concat(),
            );
            assert_eq!(ran.code, code, "{}: {options:?}: {ran:?}", engine.name());
            assert!(
                ran.err.contains(&format!("pid {}", holder.pid())) && ran.err.contains("import"),
                "{}: {ran:?}",
                engine.name()
            );
            let report = json(place.read("report").trim_end());
            assert_eq!(report["holder"]["pid"].as_i64(), Some(i64::from(holder.pid())), "{report}");
            assert_eq!(report["holder"]["program"].as_str(), Some("sh"), "{report}");
        }
        let status = json(engine.run(&place, &["status", "a", "--json"]).out.trim_end());
        assert!(
            status["waiters"].as_array().unwrap().is_empty(),
            "who gave up stands in no line: {status}"
        );
        holder.signal(Signal::SIGTERM);
        assert_eq!(holder.wait(), 143);
    }
}

#[test]
fn a_signal_ends_the_wait_and_the_place_in_line_goes() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        let mut holder =
            engine.start(&place, &["run", "a", "--", "sh", "-c", "echo > runs; exec sleep 1000"]);
        place.read("runs");
        let waiters = || waiters(&engine, &place);
        for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)]
        {
            let mut waiting = engine.start(&place, &["run", "a", "--", "true"]);
            until_true("it stands in line", || waiters() == 1);
            let keeper = guardian(waiting.pid());
            waiting.signal(signal);
            assert_eq!(waiting.wait(), code);
            until_gone(keeper);
            assert_eq!(waiters(), 0);
        }
        holder.signal(Signal::SIGTERM);
        holder.wait();
    }
}

#[test]
fn permits_are_so_many_at_a_time() {
    let (engine, place) = (Engine::redis(), Place::new());
    let script = "echo > $0; exec sleep 1000";
    let one =
        engine.start(&place, &["run", "gpu", "--permits", "1/3", "--", "sh", "-c", script, "one"]);
    let two =
        engine.start(&place, &["run", "gpu", "--permits", "2/3", "--", "sh", "-c", script, "two"]);
    place.read("one");
    place.read("two");
    assert_eq!(
        engine.run(&place, &["run", "gpu", "-n", "--permits", "1/3", "--", "true"]).code,
        75
    );
    let other = engine.run(&place, &["run", "gpu", "-n", "--permits", "1/4", "--", "true"]);
    assert_eq!(other.code, 64, "{other:?}");
    for mut front in [one, two] {
        front.signal(Signal::SIGTERM);
        assert_eq!(front.wait(), 143);
    }
    assert_eq!(
        engine
            .run(
                &place,
                &[
                    "run",
                    "gpu",
                    "-n",
                    "--permits",
                    "3/3",
                    "--",
                    "sh",
                    "-c",
                    "test -z \"$LOCKKEEPER_TOKEN\""
                ]
            )
            .code,
        0
    );
}

#[test]
fn a_command_that_waited_for_its_turn_runs_for_longer_than_its_lease() {
    let (engine, place) = (Engine::redis(), Place::new());
    let mut first =
        engine.start(&place, &["run", "a", "--", "sh", "-c", "echo > runs; exec sleep 1000"]);
    place.read("runs");
    let script = "trap 'echo > stopped' TERM; echo > second; \
                  while [ ! -e over ]; do sleep 0.01; done";
    let second = engine.start(
        &place,
        &["run", "a", "--ttl", "9s", "--kill-after", "1s", "--", "sh", "-c", script],
    );
    until_true("it stands in line", || waits(&engine, &place));
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), 143);
    place.read("second");
    // Four renewals are longer than the lease.
    for _ in 0..4 {
        engine.until_renewed("a");
    }
    std::fs::write(place.path("over"), "").unwrap();
    let ran = second.output();
    assert_eq!((ran.code, place.path("stopped").exists()), (0, false), "{ran:?}");
}

#[test]
fn who_waits_goes_on_waiting_when_a_pushed_grant_could_not_be_confirmed() {
    let (server, place) = (RedisServer::start(), Place::new());
    let proxy = Proxy::to(server.port());
    let engine = Engine::Redis(server);
    let mut first =
        engine.start(&place, &["run", "a", "--", "sh", "-c", "echo > runs; exec sleep 1000"]);
    place.read("runs");
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let second = engine.start(&place, &["run", "a", "--url", &url, "--ttl", "3s", "--", "true"]);
    until_true("it stands in line", || waits(&engine, &place));
    // It hears of the grant, and nobody hears it.
    proxy.hold(Way::Up);
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), 143);
    until_true("the grant is over", || {
        engine.run(&place, &["run", "a", "-n", "-q", "--", "true"]).code == 0
    });
    proxy.heal();
    let ran = second.output();
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn r5_a_stopped_waiter_keeps_nobody_from_the_lock_and_waits_again_when_it_goes_on() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        let holds = |file: &str| {
            let script = format!("echo > {file}; exec sleep 1000");
            engine.start(&place, &["run", "a", "--", "sh", "-c", &script])
        };
        let mut first = holds("first");
        place.read("first");
        let second = engine.start(&place, &["run", "a", "--", "sh", "-c", "echo > second"]);
        until_true("the second stands in line", || waiters(&engine, &place) == 1);
        let keeper = guardian(second.pid());
        second.signal(Signal::SIGSTOP);
        let mut third = holds("third");
        until_true("the third stands in line", || waiters(&engine, &place) == 2);
        first.signal(Signal::SIGTERM);
        assert_eq!(first.wait(), 143);
        place.read("third");
        until_gone(keeper);
        assert_eq!(state(second.pid()), Some('T'), "{}: it is stopped all the time", engine.name());
        assert!(!place.path("second").exists(), "{}: its turn has gone on", engine.name());
        second.signal(Signal::SIGCONT);
        until_true("the second stands in line again", || waiters(&engine, &place) == 1);
        third.signal(Signal::SIGTERM);
        assert_eq!(third.wait(), 143);
        let ran = second.output();
        assert!(ran.code == 0 && place.path("second").exists(), "{}: {ran:?}", engine.name());
        let says = |text| ran.err.contains(text);
        assert!(says("asking again") && says("granted after"), "{}: {ran:?}", engine.name());
    }
}

fn waits(engine: &Engine, place: &Place) -> bool {
    waiters(engine, place) > 0
}

fn waiters(engine: &Engine, place: &Place) -> usize {
    let status = json(engine.run(place, &["status", "a", "--json"]).out.trim_end());
    status["waiters"].as_array().map_or(0, Vec::len)
}
