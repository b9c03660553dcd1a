//! An older release and this one on one lock: each holds while the other waits, on every engine and
//! layout that the older one has (R17). What there is follows from the registrations of the
//! engines, and what the older one has from its `doctor --options`. `cargo xtask campaign
//! releases` builds it.

use std::any::Any;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::engine::{Registration, UrlOption, Value};
use lockkeeper_testkit::cluster::server::Nodes;
use lockkeeper_testkit::postgres::server::PostgresServer;
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::sentinel::server::Deployment;
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};
use lockkeeper_testkit::zookeeper::server::{Server, Settings};
use nix::sys::signal::Signal;

use crate::common::{PROGRAM, Place, Ran, Reaped, finish, json, kill, until_true};

/// The engines that are tried, each by a test of its own below.
macro_rules! releases_get_along {
    ($($test:ident: $scheme:literal,)*) => {
        const TRIED: &[&str] = &[$($scheme),*];

        $(#[test]
        fn $test() {
            every_layout($scheme);
        })*
    };
}

releases_get_along! {
    r17_releases_get_along_on_files: "file",
    r17_releases_get_along_on_redis: "redis",
    r17_releases_get_along_behind_sentinels: "redis+sentinel",
    r17_releases_get_along_on_a_cluster: "redis+cluster",
    r17_releases_get_along_on_a_quorum: "redlock",
    r17_releases_get_along_on_zookeeper: "zk",
    r17_releases_get_along_on_postgres: "postgres",
}

/// Nobody else sees its locks.
const ALONE: &str = "memory";

#[test]
fn r17_no_engine_is_left_out() {
    let all = Registration::all();
    let mut schemes: Vec<&str> = all.iter().map(|engine| engine.schemes[0]).collect();
    schemes.retain(|scheme| *scheme != ALONE);
    schemes.sort_unstable();
    let mut tried = TRIED.to_vec();
    tried.sort_unstable();
    assert_eq!(schemes, tried, "each engine has a line in `releases_get_along!`");
}

/// Options of a URL, each of another way to write locks down.
type Layout = Vec<(&'static str, &'static str)>;

/// The values of an option that has a list of them.
fn values(engine: &Registration, name: &str, layout: &Layout) -> Layout {
    let fits = |option: &&UrlOption| option.needs.is_none_or(|needs| layout.contains(&needs));
    let found = engine.options.iter().filter(fits).find(|option| option.name == name);
    match found.map(|option| (option.name, option.value)) {
        Some((name, Value::OneOf(values))) => values.iter().map(|value| (name, *value)).collect(),
        Some((_, other)) => panic!("{name} has no list of values but {other}: try it here"),
        None => Vec::new(),
    }
}

/// Every layout of an engine, and whatever else of a short list makes another lock.
fn layouts(engine: &Registration) -> Vec<Layout> {
    let mut found = vec![Layout::new()];
    for option in &engine.options {
        if !option.identity || !matches!(option.value, Value::OneOf(_)) {
            continue;
        }
        let each =
            found.into_iter().flat_map(|layout| match values(engine, option.name, &layout) {
                none if none.is_empty() => vec![layout],
                some => some.into_iter().map(|one| [layout.clone(), vec![one]].concat()).collect(),
            });
        found = each.collect();
    }
    found
}

/// What an engine runs on, which ends with it, and the URL of that.
fn start(scheme: &str, place: &Place) -> (Box<dyn Any>, String) {
    match scheme {
        "file" => (Box::new(()), format!("file://{}", place.text("shared"))),
        "redis" => {
            let server = RedisServer::start();
            let url = server.url();
            (Box::new(server), url)
        }
        "redis+sentinel" => {
            let deployment = Deployment::start();
            let url = deployment.url();
            (Box::new(deployment), url)
        }
        "redis+cluster" => {
            let nodes = Nodes::start();
            let url = nodes.url();
            (Box::new(nodes), url)
        }
        "redlock" => {
            let clock = ClockShim::new().unwrap();
            let environment = clock.environment();
            let environment: Vec<_> =
                environment.iter().map(|(name, path)| (*name, path.to_str().unwrap())).collect();
            let start = |_| RedisServer::start_in(&[], &environment);
            let servers: Vec<RedisServer> = (0..3).map(start).collect();
            let at: Vec<String> =
                servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
            let leases = "ttl=2s&server_timeout=500ms";
            let url = format!("redlock://{}?{leases}", at.join(","));
            // They are met, and a day goes by.
            let met = finish(place.lk(["doctor"]).env("LOCKKEEPER_URL", &url));
            assert!(met.err.contains("counts in"), "{met:?}");
            clock.step(Clocks::Wall, Duration::from_secs(24 * 3600)).unwrap();
            (Box::new((servers, clock)), url)
        }
        "zk" => {
            let server = Server::start(Settings::default()).unwrap();
            let url = format!("zk://127.0.0.1:{}", server.port());
            (Box::new(server), url)
        }
        "postgres" => {
            let server = PostgresServer::start();
            let url = server.url();
            (Box::new(server), url)
        }
        other => panic!("how is `{other}` started?"),
    }
}

fn with(url: &str, options: &Layout) -> String {
    options.iter().fold(url.to_owned(), |url, (name, value)| {
        let sign = if url.contains('?') { '&' } else { '?' };
        format!("{url}{sign}{name}={value}")
    })
}

/// Both orders, on one engine.
fn every_layout(scheme: &str) {
    let older = std::env::var("LOCKKEEPER_OLDER").expect(
        "LOCKKEEPER_OLDER names no program: `cargo xtask campaign releases` builds the older one",
    );
    let place = Place::new();
    let engine = Registration::of(scheme).unwrap();
    // One that it does not know ends with 64.
    let known = finish(place.program(&older).args(["doctor", "--options", scheme]));
    let values_of = |name: &str| {
        let start = format!("  {name}=");
        known.out.lines().find_map(|line| line.strip_prefix(&start))
    };
    let knows = |(name, value): &(&str, &str)| {
        let line = values_of(name);
        line.is_some_and(|line| line.split([',', ' ', '[']).any(|word| word == *value))
    };
    // What has a choice by now was the default before.
    let was_only = |(name, value): &(&str, &str)| {
        let option = engine.options.iter().find(|option| option.name == *name);
        values_of(name).is_none() && option.is_some_and(|option| option.default == *value)
    };
    if known.code != 0 {
        assert_eq!(known.code, 64, "{known:?}");
        println!("NOT TRIED: the older release has no engine `{scheme}`");
        return;
    }
    let (_servers, url) = start(scheme, &place);
    for (number, layout) in layouts(&engine).iter().enumerate() {
        let said = layout.iter().filter(|option| !was_only(option)).copied().collect();
        let url = with(&url, &said);
        if !said.iter().all(knows) {
            println!("NOT TRIED: the older release does not have {url}");
            continue;
        }
        println!("{url}");
        let session = layout.contains(&("layout", "session"));
        // There a name is a number.
        let name = if session { number.to_string() } else { format!("a{number}") };
        let release = |program| Release { program, place: &place, url: &url, name: &name };
        let (older, ours) = (release(older.as_str()), release(PROGRAM));
        if may_refuse(scheme, layout) && refuse_each_other(&older, &ours, &url) {
            continue;
        }
        if scheme == "redlock" || session {
            let counted = ours.does(&["run", &name, "-w", "20s", "--", "true"]);
            // A lock of Redisson's that no quorum has.
            if counted.code == 64 && scheme == "redlock" {
                assert_eq!(older.does(&["run", &name, "--", "true"]).code, 64, "{counted:?}");
                continue;
            }
            assert_eq!(counted.code, 0, "once the members count, or the server: {counted:?}");
            // What members keep about themselves has another layout since: the older one is
            // stopped, whose members wait for less.
            let stopped = older.does(&["run", "-n", &name, "--", "true"]);
            if stopped.err.contains("layout 2") && stopped.err.contains("knows 1") {
                assert_eq!(stopped.code, 69, "{stopped:?}");
                continue;
            }
        }
        for (holder, other, what) in
            [(&older, &ours, "held by the older one"), (&ours, &older, "held by this one")]
        {
            let what = format!("{url}, {what}");
            in_turn(holder, other, has_line(scheme, layout), &what);
            readers(holder, other, &what);
            leaders(holder, other, &what);
        }
        // Before there was a choice there was the default.
        let mut semaphores = values(&engine, "semaphore", layout);
        semaphores.retain(knows);
        let permits = format!("{name}-permits");
        for more in if semaphores.is_empty() { vec![None] } else { each(semaphores) } {
            let url = with(&url, &more.into_iter().collect());
            let name = format!("{permits}-{}", more.map_or("", |(_, value)| value));
            let release = |program| Release { program, place: &place, url: &url, name: &name };
            let (older, ours) = (release(older.program), release(PROGRAM));
            some_of_two(&older, &ours, &format!("{url}, permits of the older one"));
            some_of_two(&ours, &older, &format!("{url}, permits of this one"));
        }
    }
}

fn each<T>(all: Vec<T>) -> Vec<Option<T>> {
    all.into_iter().map(Some).collect()
}

/// A release, and what it does in a place.
struct Release<'a> {
    program: &'a str,
    place: &'a Place,
    url: &'a str,
    name: &'a str,
}

impl Release<'_> {
    fn does(&self, args: &[&str]) -> Ran {
        let mut command = self.place.program(self.program);
        finish(command.args(args).env("LOCKKEEPER_URL", self.url))
    }

    /// Holds until its stdin is closed; answers its token, where there are tokens.
    fn holds(&self, options: &[&str]) -> (Reaped, String) {
        self.does_until_told("run", options)
    }

    /// The same, or leads.
    fn does_until_told(&self, subcommand: &str, options: &[&str]) -> (Reaped, String) {
        let mut command = self.place.program(self.program);
        command.args([subcommand, self.name]).args(options);
        command.args(["--", "sh", "-c", "echo \"token $LOCKKEEPER_TOKEN\"; cat"]);
        command.env("LOCKKEEPER_URL", self.url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Reaped::spawn(&mut command);
        let mut line = String::new();
        let out = child.0.stdout.take().expect("its stdout");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let token = line.trim().strip_prefix("token").expect("it holds").trim().to_owned();
        (child, token)
    }

    /// Waits, as it has said by now.
    fn waits(&self, subcommand: &[&str]) -> Reaped {
        let mut command = self.place.program(self.program);
        command.arg("-v").args(subcommand);
        command.args(["--", "sh", "-c", "echo \"token $LOCKKEEPER_TOKEN\""]);
        command.env("LOCKKEEPER_URL", self.url).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Reaped::spawn(&mut command);
        let mut said = BufReader::new(child.0.stderr.take().expect("its stderr"));
        let mut line = String::new();
        while !line.contains("waiting for") {
            line.clear();
            assert!(said.read_line(&mut line).expect("a line") > 0, "it ended without waiting");
        }
        // It goes on to say things, and somebody has to read them.
        std::thread::spawn(move || said.read_to_string(&mut String::new()));
        child
    }

    /// The processes that its `status` shows; some layouts do not know them.
    fn sees(&self, what: &str) -> Vec<serde_json::Value> {
        let status = self.does(&["status", self.name, "--json"]);
        assert_eq!(status.code, 0, "{status:?}");
        // Elections and semaphores of that name are shown on lines of their own.
        let entry = status.out.lines().next().unwrap_or_default();
        let found = json(entry)[what].as_array().cloned().unwrap_or_default();
        found.into_iter().map(|one| one["pid"].clone()).collect()
    }
}

fn end(mut holder: Reaped) {
    drop(holder.0.stdin.take());
    assert_eq!(holder.wait(), 0, "the holder ends well");
}

/// Whether `status` shows who waits.
fn has_line(scheme: &str, layout: &Layout) -> bool {
    match scheme {
        "file" | "zk" => true,
        "postgres" => !layout.contains(&("layout", "shedlock")),
        "redlock" => false,
        _ => layout.contains(&("layout", "native")),
    }
}

/// Whether there is a release that wrote this down otherwise: layout 1 of Redis' own keys, which
/// was never published.
fn may_refuse(scheme: &str, layout: &Layout) -> bool {
    scheme.starts_with("redis") && layout.contains(&("layout", "native"))
}

/// Releases of two layouts: each stops at what the other one left, in both directions. False: they
/// have one layout.
fn refuse_each_other(older: &Release<'_>, ours: &Release<'_>, what: &str) -> bool {
    let (held, _) = older.holds(&[]);
    let refused = ours.does(&["run", "-n", ours.name, "--", "true"]);
    end(held);
    if refused.code == 75 {
        return false;
    }
    for (left, stops, words) in
        [(older, ours, ["layout 1", "knows 2"]), (ours, older, ["layout 2", "knows 1"])]
    {
        let what = format!("{what}, left by {}", left.program);
        stops_at_what_was_left(left, stops, words, &what);
    }
    true
}

/// A process, and whatever it has started.
fn signal_all(pid: i32, signal: Signal) {
    kill(pid, signal);
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    for child in children.unwrap_or_default().split_whitespace() {
        signal_all(child.parse().expect("a pid"), signal);
    }
}

/// One release stops while the other one holds, once its lease ran out while somebody waits, and
/// where nothing but its last number is left.
fn stops_at_what_was_left(left: &Release<'_>, stops: &Release<'_>, words: [&str; 2], what: &str) {
    let name = format!("{}-{}", left.name, words[0].replace(' ', "-"));
    let [left, stops] = [left, stops].map(|release| Release { name: &name, ..*release });
    // A bare number has no layout that the older one could name.
    let number = "}:last cannot be read";
    let says = |bare: bool, state: &str| {
        for waits in [&["-n"][..], &["-w", "20s"]] {
            let ran = stops.does(&[&["run", &name], waits, &["--", "true"]].concat());
            let is = words.iter().all(|word| ran.err.contains(word))
                || bare && words[0] == "layout 2" && ran.err.contains(number);
            assert!(ran.code == 69 && is, "{what}, {state}: {ran:?}");
        }
    };
    let (held, _) = left.holds(&["--ttl", "2s"]);
    says(true, "it is held");
    let waiter = left.waits(&["run", &name, "-w", "60s"]);
    until_true("it is seen to wait", || left.sees("waiters").len() == 1);
    says(false, "it is held, and somebody waits");
    // Neither renews, and neither asks.
    signal_all(waiter.pid(), Signal::SIGSTOP);
    signal_all(held.pid(), Signal::SIGSTOP);
    until_true("its lease is over", || left.sees("holders").is_empty());
    says(false, "its lease ran out, and somebody waits");
    signal_all(waiter.pid(), Signal::SIGCONT);
    let ran = waiter.output();
    assert_eq!(ran.code, 0, "{what}: the waiter gets it: {ran:?}");
    signal_all(held.pid(), Signal::SIGCONT);
    drop(held);
    says(true, "it was given back");
}

/// One release holds, the other one waits: in a `line` that `status` shows, where there is one.
fn in_turn(holder: &Release<'_>, other: &Release<'_>, line: bool, what: &str) {
    let (held, first) = holder.holds(&[]);
    let refused = other.does(&["run", "-n", other.name, "--", "true"]);
    assert_eq!(refused.code, 75, "{what}: {refused:?}");
    assert_eq!(other.sees("holders"), holder.sees("holders"), "{what}");
    assert_eq!(other.sees("holders").len(), 1, "{what}");

    let waiter = other.waits(&["run", other.name, "-w", "40s"]);
    if line {
        until_true("it is seen to wait", || holder.sees("waiters").len() == 1);
    }
    assert_eq!(other.sees("waiters"), holder.sees("waiters"), "{what}");
    end(held);
    let ran = waiter.output();
    assert_eq!(ran.code, 0, "{what}: the waiter gets it: {ran:?}");
    let token = ran.out.trim().strip_prefix("token").expect("it ran").trim().to_owned();
    match (first.parse::<u64>(), token.parse::<u64>()) {
        (Ok(first), Ok(second)) => assert!(first < second, "{what}: {first}, then {second}"),
        (_, second) => assert!(first.is_empty() && second.is_err(), "{what}: {first} {token}"),
    }
}

/// Whether neither of them can do it, on this engine.
fn neither_can(holder: &Release<'_>, other: &Release<'_>, args: &[&str], what: &str) -> bool {
    let codes = [holder, other].map(|release| release.does(args).code);
    assert!(codes == [64, 64] || codes == [0, 0], "{what}, {args:?}: {codes:?}");
    codes == [64, 64]
}

/// Readers stand together, and keep a writer out: also one of a release that cannot read there.
fn readers(holder: &Release<'_>, other: &Release<'_>, what: &str) {
    let share = ["run", "-s", other.name, "--", "true"];
    match [holder, other].map(|release| release.does(&share).code) {
        [0, 0] => {}
        [64, _] => return,
        [0, 64] => {
            let (reader, _) = holder.holds(&["-s"]);
            let writer = other.does(&["run", "-n", other.name, "--", "true"]);
            assert_eq!(writer.code, 69, "{what}: {writer:?}");
            assert!(writer.err.contains("layout 2"), "{what}: {writer:?}");
            return end(reader);
        }
        codes => panic!("{what}, {share:?}: {codes:?}"),
    }
    let (reader, _) = holder.holds(&["-s"]);
    let beside = other.does(&["run", "-n", "-s", other.name, "--", "true"]);
    assert_eq!(beside.code, 0, "{what}: {beside:?}");
    let writer = other.does(&["run", "-n", other.name, "--", "true"]);
    assert_eq!(writer.code, 75, "{what}: {writer:?}");
    end(reader);
}

/// One release has one permit of two: the other one gets the other, and no third.
fn some_of_two(holder: &Release<'_>, other: &Release<'_>, what: &str) {
    if neither_can(holder, other, &["run", "--permits", "1/2", other.name, "--", "true"], what) {
        return;
    }
    let (first, _) = holder.holds(&["--permits", "1/2"]);
    // Some layouts give one at a time, and say so at once.
    let both = ["run", "-n", "--permits", "2/2", other.name, "--", "true"];
    let codes = [holder, other].map(|release| release.does(&both).code);
    assert!(codes == [75, 75] || codes == [64, 64], "{what}: {codes:?}");
    let (second, _) = other.holds(&["--permits", "1/2"]);
    for release in [holder, other] {
        let third = release.does(&["run", "-n", "--permits", "1/2", other.name, "--", "true"]);
        assert_eq!(third.code, 75, "{what}: {third:?}");
    }
    end(first);
    end(second);
}

/// One release leads, the other one stands and leads afterwards.
fn leaders(holder: &Release<'_>, other: &Release<'_>, what: &str) {
    if neither_can(holder, other, &["elect", other.name, "--", "true"], what) {
        return;
    }
    let (leader, _) = holder.does_until_told("elect", &[]);
    let candidate = other.waits(&["elect", other.name]);
    end(leader);
    let led = candidate.output();
    assert_eq!(led.code, 0, "{what}: {led:?}");
    assert!(led.out.starts_with("token"), "{what}: {led:?}");
}
