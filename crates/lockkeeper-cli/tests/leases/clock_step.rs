//! A machine whose time of day was wrong, and is corrected while a command runs (N2).

use std::time::Duration;

use lockkeeper_lab::engines::redis::server::RedisServer;
use lockkeeper_lab::servers::clock_shim::{ClockShim, Clocks};

use crate::common::{Place, Reaped, json, until_true};

#[test]
fn n2_a_command_goes_on_when_the_time_of_day_is_set_forward_by_an_hour() {
    let (server, place, clock) = (RedisServer::start(), Place::new(), ClockShim::new().unwrap());
    let command = "echo > runs; while [ ! -e go ]; do sleep 0.05; done";
    let mut lk = place.lk(["run", "nightly", "--report", "report", "--", "sh", "-c", command]);
    lk.env("LOCKKEEPER_URL", server.url()).envs(clock.environment());
    lk.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let front = Reaped::spawn(&mut lk);
    place.read("runs");
    clock.step(Clocks::Wall, Duration::from_secs(3_600)).unwrap();
    server.command(&["CONFIG", "RESETSTAT"]);
    // Nobody tells of the step here: the guardian sees it when it renews.
    until_true("it asks the server", || server.command_counts().contains_key("evalsha"));
    std::fs::write(place.path("go"), "").unwrap();
    let ran = front.output();
    assert_eq!(ran.code, 0, "{ran:?}");
    let report = json(place.read("report").trim_end());
    assert_eq!(
        (report["outcome"].as_str(), report["release"].as_str()),
        (Some("ran"), Some("clean")),
        "{report}"
    );
}
