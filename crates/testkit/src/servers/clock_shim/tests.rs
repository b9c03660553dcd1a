//! The preloaded clock, on a real Redis server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{ClockShim, Clocks};
use crate::redis::server::RedisServer;

const HOUR: f64 = 3600.0;

fn server(shim: &ClockShim) -> RedisServer {
    let [(preload, library), (control, file)] = shim.environment();
    RedisServer::start_in(
        &[],
        &[(preload, &library.to_string_lossy()), (control, &file.to_string_lossy())],
    )
}

/// A program that is compiled from C.
fn compiled(dir: &Path, text: &str) -> PathBuf {
    let (source, program) = (dir.join("asks.c"), dir.join("asks"));
    std::fs::write(&source, text).expect("the directory can be written");
    let made = Command::new("cc")
        .arg("-pthread")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .status()
        .expect("cc is there");
    assert!(made.success());
    program
}

/// By how many seconds the server's time of day is ahead of ours, to a twentieth of a second.
fn ahead(server: &RedisServer) -> f64 {
    loop {
        let asked = Instant::now();
        let told = server.command(&["TIME"]);
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
        // An answer that was long on its way says too little.
        if asked.elapsed() < Duration::from_millis(50) {
            let told: Vec<f64> = told.iter().map(|part| part.parse().expect("a number")).collect();
            return told[0] + told[1] / 1e6 - ours;
        }
    }
}

fn about(ahead: f64, wanted: f64) -> bool {
    (ahead - wanted).abs() < 1.0
}

#[test]
fn a_servers_clock_steps_forward_and_back_while_it_runs_and_leases_follow_it() {
    let shim = ClockShim::new().expect("cc is there");
    let server = server(&shim);
    assert!(about(ahead(&server), 0.0));
    server.command(&["SET", "lease", "1", "PX", "60000"]);

    shim.step_back(Clocks::Wall, Duration::from_secs(3600)).expect("the control file is ours");
    assert!(about(ahead(&server), -HOUR), "{}", ahead(&server));
    let rest: f64 = server.command(&["PTTL", "lease"])[0].parse().expect("a number");
    let rest = rest / 1000.0;
    assert!(rest > HOUR && rest < HOUR + 61.0, "the lease lives an hour longer: {rest} s");

    shim.step(Clocks::Wall, Duration::from_secs(3600 + 61)).expect("the control file is ours");
    assert!(about(ahead(&server), 61.0), "{}", ahead(&server));
    assert_eq!(server.command(&["GET", "lease"]), ["(nil)"], "the lease is over");

    shim.mend().expect("the control file is ours");
    assert!(about(ahead(&server), 0.0), "{}", ahead(&server));
}

#[test]
fn a_servers_clock_runs_at_another_rate_and_then_right_again_from_where_it_is() {
    let shim = ClockShim::new().expect("cc is there");
    let server = server(&shim);
    let begun = Instant::now();
    shim.run_at(Clocks::Wall, 10_000_000).expect("the control file is ours");
    while ahead(&server) < 5.0 {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "eleven times as fast gains five seconds in half a second"
        );
    }
    assert!(begun.elapsed() > Duration::from_millis(400), "but not at once: {:?}", begun.elapsed());
    shim.run_at(Clocks::Wall, 0).expect("the control file is ours");
    let then = ahead(&server);
    assert!(then > 4.9, "what it gained stays: {then}");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        assert!((ahead(&server) - then).abs() < 0.2, "it runs right again");
    }
}

#[test]
fn a_servers_clock_that_loses_all_stands_still_and_goes_on_from_there() {
    let shim = ClockShim::new().expect("cc is there");
    let server = server(&shim);
    shim.run_at(Clocks::Wall, -1_000_000).expect("the control file is ours");
    let mut client = server.client();
    let stood = client.command(&["TIME"]);
    for _ in 0..5_000 {
        assert_eq!(client.command(&["TIME"]), stood);
    }
    shim.run_at(Clocks::Wall, 0).expect("the control file is ours");
    while client.command(&["TIME"]) == stood {}
}

/// A program of its own that prints how many seconds each clock shows: the time of day, and the
/// three that never step.
fn clocks(shim: &ClockShim) -> [f64; 4] {
    let dir = tempfile::tempdir().expect("a directory");
    let text = r#"
        #include <stdio.h>
        #include <time.h>
        int main(void) {
            clockid_t clocks[] = {
                CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME
            };
            for (int i = 0; i < 4; i++) {
                struct timespec at;
                clock_gettime(clocks[i], &at);
                printf("%ld.%09ld\n", (long)at.tv_sec, at.tv_nsec);
            }
        }"#;
    let program = compiled(dir.path(), text);
    let told = Command::new(&program).envs(shim.environment()).output().expect("it runs");
    let told: Vec<f64> = String::from_utf8_lossy(&told.stdout)
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    told.try_into().expect("four clocks")
}

#[test]
fn the_steady_clocks_move_apart_from_the_time_of_day_and_everybody_with_the_shim_sees_the_same() {
    let shim = ClockShim::new().expect("cc is there");
    let (first, second) = (server(&shim), server(&shim));
    let before = clocks(&shim);
    shim.step(Clocks::Steady, Duration::from_secs(100_000)).expect("the control file is ours");
    let after = clocks(&shim);
    let took = after[0] - before[0];
    assert!(took < 10_000.0, "the time of day is true");
    for clock in 1..4 {
        let moved = after[clock] - before[clock] - took;
        assert!((moved - 100_000.0).abs() < 20.0, "clock {clock} moved by {moved}");
    }
    shim.step(Clocks::Wall, Duration::from_secs(500)).expect("the control file is ours");
    assert!(about(ahead(&first), 500.0) && about(ahead(&second), 500.0));
    assert!(clocks(&shim)[0] - before[0] >= 500.0);
}

/// A program of its own that waits for 200 ms on a condition, until a time by one of its clocks,
/// and prints what the wait came to.
#[test]
fn who_waits_until_a_time_by_a_clock_that_is_wrong_waits_no_longer_for_it() {
    let shim = ClockShim::new().expect("cc is there");
    let dir = tempfile::tempdir().expect("a directory");
    let text = r#"
        #include <pthread.h>
        #include <stdio.h>
        #include <time.h>
        #include <unistd.h>
        int main(int count, char **arguments) {
            alarm(120);
            clockid_t clock = count > 1 ? CLOCK_MONOTONIC : CLOCK_REALTIME;
            pthread_condattr_t how;
            pthread_cond_t never;
            pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
            pthread_condattr_init(&how);
            pthread_condattr_setclock(&how, clock);
            pthread_cond_init(&never, &how);
            struct timespec until;
            clock_gettime(clock, &until);
            until.tv_nsec += 200000000;
            if (until.tv_nsec >= 1000000000) { until.tv_nsec -= 1000000000; until.tv_sec += 1; }
            pthread_mutex_lock(&mutex);
            printf("%d\n", pthread_cond_timedwait(&never, &mutex, &until));
        }"#;
    let program = compiled(dir.path(), text);
    let waits = |arguments: &[&str]| {
        let begun = Instant::now();
        let waited = Command::new(&program).args(arguments).envs(shim.environment()).output();
        assert_eq!(
            String::from_utf8_lossy(&waited.expect("it runs").stdout),
            "110\n",
            "it ran into its time"
        );
        assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    };
    for by in [Duration::from_secs(1_000), Duration::from_secs(2_000)] {
        shim.step(Clocks::Steady, by).expect("the control file is ours");
        shim.step_back(Clocks::Wall, by).expect("the control file is ours");
        waits(&[]);
        waits(&["steady"]);
    }
    shim.step(Clocks::Wall, Duration::from_secs(9_000)).expect("the control file is ours");
    waits(&[]);
}
