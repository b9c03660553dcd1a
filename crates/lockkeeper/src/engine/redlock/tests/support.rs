//! Members of a test's own.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_testkit::proxy::{Fault, Proxy, Way};
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::servers::certificates;
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use crate::engine::redis::client::resp::parse;
use crate::engine::redis::client::script::Call;
use crate::engine::redis::tests::support::{Process, opened, until};
use crate::engine::{Common, End, Renewal};
use crate::open::url::EngineUrl;
use crate::words::claim::Claim;
use crate::words::clock::{Clock, Ticks};
use crate::words::error::Result;

/// The lease of every test, unless it says another: the longest that each URL allows.
pub(super) const TTL: Duration = Duration::from_secs(60);

/// One whose end is waited for: members that lost their data wait no longer here.
pub(super) const SHORT: Duration = Duration::from_secs(2);

/// Where no member is away: no answer is late, also on a machine with much to do.
pub(super) const PATIENT: &str = "max_ttl=24h&server_timeout=30s&request_timeout=1m";

/// Where one is away: whoever waits for its answer does so for no longer than this.
pub(super) const SOME_AWAY: &str = "max_ttl=24h&server_timeout=5s&request_timeout=5s";

/// Where too few are to answer: whoever asks is told so soon, or asks again.
const IMPATIENT: &str = "max_ttl=24h&server_timeout=600ms";

/// What a member keeps about itself.
pub(super) const KEY: &str = "lockkeeper:redlock";

/// Some servers that keep nothing on disk, and their clock, where it was moved.
pub(super) struct Quorum(pub(super) Vec<RedisServer>, Option<ClockShim>);

impl Quorum {
    /// Servers that count.
    pub(super) fn of(members: usize) -> Self {
        let quorum = Self::young(members);
        quorum.admit();
        quorum.0.iter().for_each(until_it_counts);
        quorum
    }

    /// Servers that count, over TLS, and their URL; they need the directory.
    pub(super) fn secure(members: usize, home: &Path) -> (Self, String) {
        let dir = certificates::make(home);
        let start = |_| RedisServer::start_with_tls(&dir, &["--tls-auth-clients", "no"]);
        let (servers, ports): (Vec<_>, Vec<u16>) = (0..members).map(start).unzip();
        let quorum = Self(servers, None);
        quorum.admit();
        quorum.0.iter().for_each(until_it_counts);
        let ports: Vec<String> = ports.iter().map(|port| format!("localhost:{port}")).collect();
        let (at, ca) = (ports.join(","), dir.join("ca.pem"));
        let options = format!("{PATIENT}&tls=true&tls_ca={}", ca.display());
        (quorum, format!("redlock-lab://{at}?{options}"))
    }

    /// How often this member ran a script, by its name and with its text.
    pub(super) fn calls(&self, member: usize) -> [u64; 2] {
        let counts = self.0[member].command_counts();
        ["evalsha", "eval"].map(|name| counts.get(name).copied().unwrap_or(0))
    }

    /// Waits until a client has admitted all.
    pub(super) fn admit(&self) {
        let _meets_them = self.process();
        (0..self.0.len()).for_each(|member| self.until_admitted(member));
    }

    /// Servers that have been up for so long that they count where nobody is admitted.
    pub(super) fn grown(members: usize) -> Self {
        let quorum = Self::young(members);
        quorum.0.iter().for_each(until_it_counts);
        quorum
    }

    /// Servers that have just started.
    pub(super) fn young(members: usize) -> Self {
        Self((0..members).map(|_| RedisServer::start()).collect(), None)
    }

    /// Servers that count, and have been up for two days as they see it.
    pub(super) fn long_up(members: usize) -> Self {
        let clock = ClockShim::new().expect("cc is there");
        let [(preload, library), (control, file)] = clock.environment();
        let environment =
            [(preload, &*library.to_string_lossy()), (control, &*file.to_string_lossy())];
        let start = |_| RedisServer::start_in(&[], &environment);
        let quorum = Self((0..members).map(start).collect(), Some(clock));
        drop(quorum.process());
        quorum.pass(Duration::from_secs(48 * 3600));
        quorum.admit();
        quorum
    }

    /// Patient enough for a machine with much to do. Members wait for two seconds there.
    pub(super) fn url(&self) -> String {
        self.url_with(PATIENT)
    }

    /// The same with options of its own.
    pub(super) fn url_with(&self, options: &str) -> String {
        let ports: Vec<String> =
            self.0.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redlock-lab://{}?{options}", ports.join(","))
    }

    /// Waits until the present run of a member is admitted.
    pub(super) fn until_admitted(&self, member: usize) {
        let server = &self.0[member];
        until("it is admitted", || {
            let run = server.command(&["HGET", KEY, "run"]).concat();
            run.len() == 40 && server.command(&["INFO", "server"]).concat().contains(&run)
        });
    }

    /// Its members and nothing else, as anybody writes it.
    pub(super) fn bare_url(&self) -> String {
        self.url().replace("-lab", "").split('?').next().unwrap_or_default().to_owned()
    }

    /// The members' time of day goes on by this; for those that [`Quorum::long_up`] started.
    pub(super) fn pass(&self, time: Duration) {
        let clock = self.1.as_ref().expect("their clock can be moved");
        clock.step(Clocks::Wall, time).expect("the file is ours");
    }

    /// It goes back by this.
    pub(super) fn set_back(&self, by: Duration) {
        let clock = self.1.as_ref().expect("their clock can be moved");
        clock.step_back(Clocks::Wall, by).expect("the file is ours");
    }

    pub(super) fn process(&self) -> Process {
        self.process_with(PATIENT)
    }

    /// One that waits for no answer for long.
    pub(super) fn impatient(&self) -> Process {
        self.process_with(IMPATIENT)
    }

    pub(super) fn process_with(&self, options: &str) -> Process {
        open(&self.url_with(options)).expect("the members can be used")
    }

    /// A process holds a name for [`SHORT`], and all members have it; until when. Again where that
    /// was over before all had it.
    pub(super) fn held_shortly(&self, process: &Process, name: &str) -> (Claim, Ticks) {
        let mut held = None;
        until("all have it before it is over", || {
            let claim = short(process, name);
            let lease = process.granted_at_last(&claim).lease.and_then(|lease| lease.since);
            let over = lease.expect("it has one").plus(SHORT);
            let has_all = || self.with_record(&claim) == self.0.len();
            until("all have it, or it is over", || has_all() || process.now() > over);
            let in_time = process.now() < over && has_all();
            if !in_time {
                process.release(claim.id);
            }
            held = in_time.then_some((claim, over));
            in_time
        });
        held.expect("it is held")
    }

    /// What each member has under a name.
    pub(super) fn records(&self, name: &str) -> Vec<String> {
        let key = format!("lockkeeper:{{redlock:{name}}}");
        self.0.iter().map(|server| server.command(&["GET", &key]).concat()).collect()
    }

    /// How many members have the record of a claim.
    pub(super) fn with_record(&self, claim: &Claim) -> usize {
        let id = claim.id.to_string();
        self.records(claim.name.as_str()).iter().filter(|text| text.contains(&id)).count()
    }

    /// Takes a name and gives it back until every member has each script that one of them has: a
    /// call by a script's hash is one message then, on all of them. Whoever answers after the
    /// others were enough is not sent it in full.
    pub(super) fn warm(&self, process: &Process) {
        let known = |server: &RedisServer| {
            let info = server.command(&["INFO", "memory"]).concat();
            let count = info.lines().find_map(|l| l.strip_prefix("number_of_cached_scripts:"));
            count.and_then(|count| count.trim().parse::<u64>().ok())
        };
        until("they know the scripts", || {
            let warm = claim(process, "warm");
            process.granted_at_last(&warm);
            // Its process may be one that waits for no answer for long.
            let renewed = matches!(process.renew(warm.id), Renewal::Extended { .. });
            let freed = matches!(process.release(warm.id), End::Freed);
            let known: Vec<_> = self.0.iter().map(known).collect();
            renewed && freed && known.iter().all(|count| *count > Some(0) && *count == known[0])
        });
    }

    /// Waits until no member has anything under a name.
    pub(super) fn until_clean(&self, name: &str) {
        self.until_clean_but(name, 0);
    }

    /// The same for these members.
    pub(super) fn until_gone(&self, name: &str, members: &[usize]) {
        let key = format!("lockkeeper:{{redlock:{name}}}");
        let has = |member: &usize| self.0[*member].command(&["EXISTS", &key]) != ["0"];
        until("nothing is left there", || !members.iter().any(has));
    }

    /// The same, apart from what the first of them have.
    pub(super) fn until_clean_but(&self, name: &str, first: usize) {
        let is_clean = || self.records(name)[first..].iter().all(|text| text == "(nil)");
        until("nothing is left", is_clean);
    }
}

/// Each has it once, while no other does, extends it, and gives it back.
pub(super) fn one_after_the_other(processes: &[Process], claims: &[Claim]) {
    let holders = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (process, claim) in processes.iter().zip(claims) {
            let holders = &holders;
            scope.spawn(move || {
                process.granted_at_last(claim);
                assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "BROKEN LOCK: two holders");
                until("it is extended", || match process.renew(claim.id) {
                    Renewal::Extended { .. } => true,
                    Renewal::Unknown(_) => false,
                    gone @ Renewal::Gone(_) => panic!("not extended but {gone:?}"),
                });
                holders.fetch_sub(1, Ordering::SeqCst);
                assert!(matches!(process.release(claim.id), End::Freed));
            });
        }
    });
}

/// Waits until a server counts for everybody: INFO tells whole seconds.
pub(super) fn until_it_counts(server: &RedisServer) {
    until("it counts", || {
        let info = server.command(&["INFO", "server"]).concat();
        let up = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        up.and_then(|up| up.trim().parse::<u64>().ok()).is_some_and(|up| up >= 3)
    });
}

/// A process with this URL.
pub(super) fn open(url: &str) -> Result<Process> {
    open_at(url, Clock::real())
}

/// The same by a clock of the test's own making.
pub(super) fn open_at(url: &str, clock: Clock) -> Result<Process> {
    let mut url = EngineUrl::parse(url)?;
    let open = match url.scheme.as_str() {
        "redlock-lab" => super::super::laboratory().open,
        _ => super::super::registration().open,
    };
    Process::at(open(&mut url, &Common::new(SHORT, 100))?.into(), clock)
}

/// An exclusive claim with the lease of the tests.
pub(super) fn claim(process: &Process, name: &str) -> Claim {
    Claim { ttl: TTL, ..process.exclusive(name) }
}

/// The same with a lease whose end is waited for.
pub(super) fn short(process: &Process, name: &str) -> Claim {
    Claim { ttl: SHORT, ..claim(process, name) }
}

/// Members behind proxies.
pub(super) struct Proxied {
    pub(super) quorum: Quorum,
    pub(super) proxies: Vec<Proxy>,
}

impl Proxied {
    pub(super) fn of(members: usize) -> Self {
        Self::before(Quorum::of(members))
    }

    pub(super) fn before(quorum: Quorum) -> Self {
        let proxies = quorum.0.iter().map(|server| Proxy::to(server.port())).collect();
        Self { quorum, proxies }
    }

    /// A process behind the proxies, whose members know the scripts, so that a fault meets the
    /// call that it is meant for.
    pub(super) fn process(&self, options: &str) -> Process {
        let process = opened(|| open(&self.url(options)));
        self.quorum.warm(&process);
        self.quorum.until_clean("warm");
        process
    }

    /// Their URL.
    pub(super) fn url(&self, options: &str) -> String {
        let at: Vec<String> =
            self.proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
        format!("redlock-lab://{}?{options}", at.join(","))
    }

    /// The same fault for all of one direction.
    pub(super) fn all(&self, way: Way, fault: &Fault) {
        self.proxies.iter().for_each(|proxy| proxy.set(way, *fault));
    }
}

/// The words of a call, with its script.
pub(super) fn in_full(call: &Call) -> Vec<String> {
    let mut bytes = Vec::new();
    call.in_full().encode(&mut bytes);
    let (command, _) = parse(&bytes).expect("it is RESP").expect("all of it");
    command.items().iter().filter_map(|word| word.text().map(str::to_owned)).collect()
}
