//! A machine whose time of day was wrong, and is corrected while a command runs (N2).

use std::process::Stdio;
use std::time::Duration;

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use crate::common::{Place, Reaped, json, until_true};

const HOUR: Duration = Duration::from_secs(3_600);

/// A command that ends by itself when it may, under a lock whose keepers have this clock.
fn start(place: &Place, url: &str, clock: &ClockShim) -> Reaped {
    let command = "echo > runs; while [ ! -e go ]; do sleep 0.05; done";
    let mut lk = place.lk(["run", "nightly", "--report", "report", "--", "sh", "-c", command]);
    lk.env("LOCKKEEPER_URL", url).envs(clock.environment());
    let front = Reaped::spawn(lk.stdout(Stdio::piped()).stderr(Stdio::piped()));
    place.read("runs");
    front
}

#[test]
fn n2_a_command_goes_on_when_the_time_of_day_is_set_forward_by_an_hour() {
    let (server, place, clock) = (RedisServer::start(), Place::new(), ClockShim::new().unwrap());
    let front = start(&place, &server.url(), &clock);
    server.command(&["CONFIG", "RESETSTAT"]);
    clock.step(Clocks::Wall, HOUR).unwrap();
    // Nobody tells of the step here: the guardian sees it when it looks at the clocks.
    until_true("it asks the server", || server.command_counts().contains_key("evalsha"));
    std::fs::write(place.path("go"), "").unwrap();
    let ran = front.output();
    assert_eq!(ran.code, 0, "{ran:?}");
    let report = json(place.read("report").trim_end());
    let told = (report["outcome"].as_str(), report["release"].as_str());
    assert_eq!(told, (Some("ran"), Some("clean")), "{report}");
}

#[test]
fn n2_a_command_is_stopped_when_the_server_does_not_confirm_the_lock_after_the_step() {
    let (server, place, clock) = (RedisServer::start(), Place::new(), ClockShim::new().unwrap());
    let front = start(&place, &server.url(), &clock);
    server.stop();
    clock.step(Clocks::Wall, HOUR).unwrap();
    let ran = front.output();
    server.go_on();
    assert_eq!(ran.code, 79, "{ran:?}");
    assert!(ran.err.contains("lost: the time of day was set forward"), "{ran:?}");
    let report = json(place.read("report").trim_end());
    let told = (report["outcome"].as_str(), report["why"].as_str());
    assert_eq!(told, (Some("lost"), Some("clock-stepped")), "{report}");
}
