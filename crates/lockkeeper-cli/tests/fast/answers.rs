//! Answers that once misled whoever read them.

use std::time::Duration;

use lockkeeper_testkit::proxy::{Fault, Proxy, Way};
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::sentinel::server::{Deployment, Setup};
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use crate::common::{Place, Reaped, run, until_true};

#[test]
fn w6_a_short_longest_lease_of_a_quorum_refuses_no_lease_that_is_shorter() {
    let clock = ClockShim::new().unwrap();
    let environment = clock.environment();
    let environment: Vec<_> =
        environment.iter().map(|(name, path)| (*name, path.to_str().unwrap())).collect();
    let servers = [(); 3].map(|()| RedisServer::start_in(&[], &environment));
    let members = servers.each_ref().map(|server| format!("127.0.0.1:{}", server.port()));
    let place = Place::new();
    let runs = |wait: &str, options: &str, ttl: &str| {
        let patient = "server_timeout=10s&request_timeout=20s";
        let url = format!("redlock://{}?{patient}{options}", members.join(","));
        run(&place, &url, &["run", "-w", wait, "x", "--ttl", ttl, "--", "true"])
    };
    // Members that have just started are met first, and then a minute goes by.
    let young = runs("0", "&max_ttl=5s", "4s");
    assert!(young.code == 69 && young.err.contains("counts in"), "{young:?}");
    clock.step(Clocks::Wall, Duration::from_secs(61)).unwrap();
    for (options, ttl, code, says) in [
        ("&max_ttl=5s", "4s", 0, ""),
        // A URL only lengthens the minute that the members know.
        ("&max_ttl=5s", "30s", 0, ""),
        ("&ttl=90s", "4s", 64, "write a ttl up to max_ttl"),
    ] {
        let ran = runs("60s", options, ttl);
        assert!(ran.code == code && ran.err.contains(says), "{options}, {ttl}: {ran:?}");
    }
}

#[test]
fn q4_a_layout_without_lists_names_what_shows_a_lock_there_and_not_another_layout() {
    let server = RedisServer::start();
    let place = Place::new();
    let ran = run(&place, &format!("{}?layout=plain", server.url()), &["ls"]);
    assert_eq!((ran.code, ran.err.lines().count()), (64, 1), "{ran:?}");
    assert!(ran.err.contains("lockkeeper status NAME"), "{ran:?}");
    assert!(!ran.err.contains("native"), "it excludes nobody here: {ran:?}");
}

#[test]
fn q9_doctor_names_no_limit_of_what_an_engine_has_not() {
    let server = RedisServer::start();
    let place = Place::new();
    let line = |said: &str, begins: &str| {
        let line = said.lines().find(|line| line.starts_with(begins));
        line.unwrap_or_else(|| panic!("no line {begins}: {said}")).to_owned()
    };
    for (options, permits) in [("", true), ("?layout=plain", false)] {
        let url = format!("{}{options}", server.url());
        let ran = run(&place, &url, &["doctor", "--no-probe"]);
        let limits = line(&ran.out, "limits ");
        assert!(limits.contains("leases from 200ms"), "{ran:?}");
        assert_eq!(limits.contains("permits"), permits, "{ran:?}");
    }
    let ran = place.run(["doctor", "--no-probe"]);
    assert!(!line(&ran.out, "limits ").contains("leases"), "{ran:?}");
    assert!(line(&ran.out, "has no ").contains("--ttl changes nothing"), "{ran:?}");
}

#[test]
fn q11_status_says_that_the_sentinels_may_be_choosing_another_master() {
    let down_after = Duration::from_secs(600);
    let mut deployment = Deployment::start_with(Setup { down_after, ..Setup::default() });
    let place = Place::new();
    deployment.servers[0].kill();
    let ran = run(&place, &deployment.url(), &["status", "x"]);
    assert_eq!((ran.code, ran.err.lines().count()), (69, 1), "{ran:?}");
    assert!(ran.err.contains("they choose another one after 10m"), "{ran:?}");
}

#[test]
fn q12_status_says_that_a_lease_is_renewed_and_who_is_next() {
    let server = RedisServer::start();
    let (place, url) = (Place::new(), server.url());
    let lasting = |seconds| {
        let mut command = place.lk(["acquire", "x", "--for", seconds]);
        Reaped::spawn(command.env("LOCKKEEPER_URL", &url))
    };
    let _holder = lasting("300s");
    let status = || run(&place, &url, &["status", "x"]).out;
    until_true("it is held", || status().contains("held by"));
    let _waiter = lasting("301s");
    until_true("somebody waits", || status().contains("waiting:"));
    let said = status();
    let held = said.lines().find(|line| line.contains("held by")).unwrap();
    let waits = said.lines().find(|line| line.contains("waiting:")).unwrap();
    assert!(held.contains("lease ends in ") && held.ends_with("unless renewed"), "{said}");
    assert!(waits.ends_with("next in line") && !waits.contains("0 ahead"), "{said}");
}

#[test]
fn q14_a_unit_that_is_written_elsewhere_and_a_lock_that_was_taken_away_are_said_plainly() {
    let server = RedisServer::start();
    let (place, url) = (Place::new(), server.url());
    let ran = run(&place, &url, &["run", "-w", "1min", "x", "--", "true"]);
    assert!(ran.code == 64 && ran.err.contains("write 1m"), "{ran:?}");
    let ran = run(&place, &url, &["run", "--", "true"]);
    assert!(ran.code == 64 && ran.err.contains("NAME is missing"), "{ran:?}");
    assert!(ran.err.contains("lockkeeper run NAME -- true"), "{ran:?}");
    let mut command = place.lk(["run", "x", "--", "sleep", "600"]);
    let said = place.path("said");
    command.env("LOCKKEEPER_URL", &url).stderr(std::fs::File::create(&said).unwrap());
    let mut holder = Reaped::spawn(&mut command);
    until_true("it is held", || run(&place, &url, &["status", "x"]).out.contains("held by"));
    assert_eq!(run(&place, &url, &["release", "--force", "x"]).code, 0);
    assert_eq!(holder.wait(), 79);
    let said = place.read("said");
    assert!(said.contains("taken away: by release --force"), "{said}");
}

/// Each way to try and to wait says this in its last line, and names no holder. A busy machine may
/// need more than one try until the engine was reached at all.
fn gives_up(place: &Place, url: &str, says: &[String]) {
    for args in [
        &["run", "x", "-n", "--", "true"][..],
        &["run", "x", "-w", "3s", "--", "true"],
        &["acquire", "x", "-w", "3s"],
    ] {
        until_true("the reason is said", || {
            let ran = run(place, url, args);
            assert!(ran.code == 69 && !ran.err.contains("held by"), "{args:?}: {ran:?}");
            let last = ran.err.lines().last().unwrap();
            says.iter().all(|part| last.contains(part))
        });
    }
}

#[test]
fn r5_r8_too_few_replicas_are_the_reason_at_the_end_of_every_wait_and_for_doctor() {
    let deployment = Deployment::start();
    let place = Place::new();
    let url = deployment.url() + "?wait_replicas=2&wait_timeout=500ms&request_timeout=5s";
    let says = [
        format!("the write on Redis at 127.0.0.1:{} ", deployment.servers[0].port()),
        "does not count: ".to_owned(),
        "of the 2 replicas that wait_replicas asks for".to_owned(),
    ];
    gives_up(&place, &url, &says);
    let examined = run(&place, &url, &["doctor"]);
    let why = examined.err.lines().last().unwrap();
    assert_eq!(examined.code, 69, "{examined:?}");
    assert!(says.iter().all(|part| why.contains(part)), "{examined:?}");
    assert!(examined.err.contains("too-few-replicas"), "{examined:?}");
}

#[test]
fn r5_sentinels_that_are_stopped_are_the_reason_at_the_end_of_every_wait() {
    let deployment = Deployment::start();
    let place = Place::new();
    deployment.sentinels.iter().for_each(RedisServer::stop);
    let guards = deployment.sentinels.iter().map(|guard| format!("127.0.0.1:{}", guard.port()));
    let says: Vec<_> = guards.chain(["Sentinel".to_owned()]).collect();
    gives_up(&place, &format!("{}?connect_timeout=1s", deployment.url()), &says);
}

#[test]
fn r5_links_that_are_slower_than_server_timeout_are_the_reason_with_the_option_to_change() {
    let clock = ClockShim::new().unwrap();
    let environment = clock.environment();
    let environment: Vec<_> =
        environment.iter().map(|(name, path)| (*name, path.to_str().unwrap())).collect();
    let servers = [(); 3].map(|()| RedisServer::start_in(&[], &environment));
    let proxies = servers.each_ref().map(|server| Proxy::to(server.port()));
    let members = |ports: [u16; 3]| ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let place = Place::new();
    let near = format!("redlock://{}", members(servers.each_ref().map(RedisServer::port)));
    assert_eq!(run(&place, &near, &["doctor"]).code, 69, "they are met");
    clock.step(Clocks::Wall, Duration::from_secs(61)).unwrap();
    assert_eq!(run(&place, &near, &["run", "-w", "120s", "x", "--", "true"]).code, 0);
    let slow = Fault { delay: Duration::from_millis(300), ..Fault::default() };
    proxies.iter().for_each(|proxy| proxy.set(Way::Down, slow));
    let far = members(proxies.each_ref().map(Proxy::port));
    let says = ["did not answer within ", " (server_timeout)"].map(str::to_owned);
    gives_up(&place, &format!("redlock://{far}?server_timeout=50ms"), &says);
}

/// Words such as D10: one capital letter and a number.
fn codes(page: &str) -> impl Iterator<Item = &str> {
    page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.').filter_map(|word| {
        let word = word.trim_matches('.');
        let number = word.strip_prefix(|c: char| c.is_ascii_uppercase())?;
        let is_code = (1..=2).contains(&number.len()) && number.parse::<u8>().is_ok();
        is_code.then_some(word)
    })
}

#[test]
fn q16_no_page_cites_a_failure_or_a_rule_without_a_link_to_what_it_is() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
    let failures = read(&root.join("docs/failures.md"));
    let mut pages: Vec<_> = ["README.md", "SAFETY.md", "CONTRIBUTING.md", "CHANGELOG.md"]
        .map(|page| root.join(page))
        .into();
    for dir in ["docs", "docs/engines"] {
        let files = std::fs::read_dir(root.join(dir)).unwrap().map(|file| file.unwrap().path());
        pages.extend(files.filter(|file| file.extension().is_some_and(|ends| ends == "md")));
    }
    let mut cited = 0;
    for page in pages.iter().filter(|page| !page.ends_with("failures.md")) {
        let text = read(page);
        for code in codes(&text) {
            let is_rule = code.starts_with('R');
            let link = if is_rule { "ARCHITECTURE.md#the-rules)" } else { "failures.md)" };
            assert!(text.contains(link), "{}: {code} and no link to {link}", page.display());
            let is_known = is_rule || failures.contains(&format!("| {code} |"));
            assert!(is_known, "{}: {code} is not in docs/failures.md", page.display());
            cited += 1;
        }
    }
    assert!(cited > 100, "{cited}");
}

#[test]
fn r8_tls_at_a_server_without_it_says_so() {
    let server = RedisServer::start();
    let place = Place::new();
    // What says nothing is known once its time is over; a busy server may need more to say no.
    let url = server.url().replace("redis://", "rediss://") + "?connect_timeout=1s";
    until_true("that is said", || {
        let ran = run(&place, &url, &["run", "-n", "x", "--", "true"]);
        assert_eq!(ran.code, 69, "{ran:?}");
        ran.err.contains("says nothing in TLS, as a port without TLS does: give its TLS port")
    });
}
