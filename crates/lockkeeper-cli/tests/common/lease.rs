//! Servers for engines with leases, and what their tests look for.

use std::path::Path;

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::zookeeper::server::{Server, Settings};

use super::{Place, Ran, Reaped, finish, is_alive, json, until, until_true};

/// An engine of a test's own.
pub enum Engine {
    Redis(RedisServer),
    ZooKeeper(Server),
}

impl Engine {
    pub fn redis() -> Self {
        Self::Redis(RedisServer::start())
    }

    pub fn zookeeper() -> Self {
        Self::ZooKeeper(Server::start(Settings::default()).expect("a ZooKeeper server"))
    }

    /// Its URL.
    pub fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::ZooKeeper(server) => format!("zk://{}", server.address()),
        }
    }

    /// Its URL, for clients that wait for its answers however late they are.
    pub fn patient(&self) -> String {
        patient(&self.url())
    }

    /// Its URL, with sessions of so many seconds where sessions are the leases.
    pub fn url_with_sessions_of(&self, seconds: u32) -> String {
        match self {
            Self::Redis(_) => self.url(),
            Self::ZooKeeper(_) => format!("{}?session_timeout={seconds}s", self.url()),
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Redis(_) => "redis",
            Self::ZooKeeper(_) => "zookeeper",
        }
    }

    /// Lets the server stand still.
    pub fn stop(&self) {
        match self {
            Self::Redis(server) => server.stop(),
            Self::ZooKeeper(server) => server.pause().expect("the server runs"),
        }
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        match self {
            Self::Redis(server) => server.go_on(),
            Self::ZooKeeper(server) => server.resume().expect("the server runs"),
        }
    }

    /// Waits until the lease of a lock that somebody holds is renewed.
    pub fn until_renewed(&self, name: &str) {
        let Self::Redis(server) = self else { panic!("sessions are renewed, and no locks") };
        let mut least = i64::MAX;
        until_true("it is renewed", || {
            let left = server.command(&["PTTL", &format!("lockkeeper:{{lock:{name}}}")]).concat();
            let left = left.parse::<i64>().expect("milliseconds");
            assert!(left >= 0, "nobody holds {name}");
            least = least.min(left);
            left > least
        });
    }

    /// Runs lockkeeper on it to its end, however late its answers are.
    pub fn run(&self, place: &Place, args: &[&str]) -> Ran {
        finish(place.lk(args).env("LOCKKEEPER_URL", self.patient()))
    }

    /// Starts lockkeeper on it, to which no answer is late; what it prints is kept.
    pub fn start(&self, place: &Place, args: &[&str]) -> Reaped {
        Self::start_at(&self.patient(), place, args)
    }

    /// The same at a URL that says no times: where the server stands still, its answers are soon
    /// given up.
    pub fn start_hasty(&self, place: &Place, args: &[&str]) -> Reaped {
        Self::start_at(&self.url(), place, args)
    }

    fn start_at(url: &str, place: &Place, args: &[&str]) -> Reaped {
        let mut lk = place.lk(args);
        lk.env("LOCKKEEPER_URL", url)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        Reaped::spawn(&mut lk)
    }
}

/// A URL of a server whose answers are waited for however late they are.
fn patient(url: &str) -> String {
    let and = if url.contains('?') { '&' } else { '?' };
    format!("{url}{and}connect_timeout=1m&request_timeout=20s")
}

/// The guardian that a lockkeeper has hired.
pub fn guardian(front: i32) -> i32 {
    until("there is a guardian", || {
        let children =
            std::fs::read_to_string(format!("/proc/{front}/task/{front}/children")).ok()?;
        let is_guardian =
            |pid: &i32| arguments(*pid).get(1).is_some_and(|word| word == "__guardian");
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_guardian)
    })
}

/// The arguments that everybody on the machine can read.
pub fn arguments(pid: i32) -> Vec<String> {
    let all = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    all.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Waits until a process that may not be ours is gone.
pub fn until_gone(pid: i32) {
    until(&format!("process {pid} is gone"), || (!is_alive(pid)).then_some(()));
}

/// The tokens of a file that holders write to, in the order in which they were written.
pub fn writes(file: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // The last line may be half written.
    text.lines()
        .filter(|line| line.ends_with('.'))
        .filter_map(|line| line.trim_end_matches('.').parse().ok())
        .collect()
}

/// Fails where somebody wrote after the next holder had begun to.
pub fn nobody_wrote_late(file: &Path) {
    let writes = writes(file);
    for (at, pair) in writes.windows(2).enumerate() {
        assert!(pair[0] <= pair[1], "{} wrote after {} had, at line {}", pair[1], pair[0], at + 1);
    }
}

/// A command with children that write its token all the time and do not care about TERM.
pub const WRITER: &str = r#"
trap "" TERM
write() { while :; do echo "$LOCKKEEPER_TOKEN." >> writes; sleep 0.01; done; }
write & write & (write & wait) &
wait
"#;

/// A lockkeeper whose command writes its token all the time, with a lease of so many seconds. The
/// command does not end by itself, and is killed soon after it was to.
pub fn writer(engine: &Engine, place: &Place, seconds: u32) -> Reaped {
    let (url, ttl) = (patient(&engine.url_with_sessions_of(2 * seconds)), format!("{seconds}s"));
    let options = ["--url", &url, "--ttl", &ttl, "--kill-after", "400ms", "-q"];
    engine.start(place, &[&["run", "a"], &options[..], &["--", "sh", "-c", WRITER]].concat())
}

/// Waits until somebody writes whose token is greater than this one; answers it.
pub fn next_writer(place: &Place, after: u64) -> u64 {
    until("the next holder writes", || {
        writes(&place.path("writes")).last().copied().filter(|token| *token > after)
    })
}

/// Round after round the holder is struck, and the next one in line must not begin before its last
/// write.
pub fn rounds(engine: &Engine, seconds: u32, count: u32, strike: impl Fn(&Reaped, u32)) {
    let place = Place::new();
    let mut holder = writer(engine, &place, seconds);
    let mut token = next_writer(&place, 0);
    for round in 0..count {
        let next = writer(engine, &place, seconds);
        until_true("the next one stands in line", || {
            json(engine.run(&place, &["status", "a", "--json"]).out.trim_end())["waiters"]
                .as_array()
                .is_some_and(|w| !w.is_empty())
        });
        strike(&holder, round);
        token = next_writer(&place, token);
        nobody_wrote_late(&place.path("writes"));
        holder = next;
    }
    let keeper = guardian(holder.pid());
    drop(holder);
    until_gone(keeper);
    nobody_wrote_late(&place.path("writes"));
}
