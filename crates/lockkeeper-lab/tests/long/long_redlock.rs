//! The rows of the quorum: three members, each a server of its own that keeps everything on disk.
//!
//! Those of the laboratory wait for two seconds. In the layouts where nobody is admitted they count
//! once they have been up for as long, so their clock steps on after each start.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_lab::conformance::Subject;
use lockkeeper_lab::engines::until_they_count;
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use crate::subjects::{LEASES, PATIENT};

/// The program that takes locks in another process.
const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");

/// By how much the members' clocks step forward after their start.
const LONG_UP: Duration = Duration::from_secs(2 * 24 * 3600);

/// The members, and their clock.
struct Members {
    servers: Vec<RedisServer>,
    clock: ClockShim,
}

impl Members {
    /// Servers that have been up for two days as they see it.
    fn start() -> Self {
        let clock = ClockShim::new().expect("cc is there");
        let [(preload, library), (control, file)] = clock.environment();
        let environment =
            [(preload, &*library.to_string_lossy()), (control, &*file.to_string_lossy())];
        let durable = ["--appendonly", "yes", "--appendfsync", "always"];
        let start = |_| RedisServer::start_in(&durable, &environment);
        let servers = (0..3).map(start).collect();
        clock.step(Clocks::Wall, LONG_UP).expect("the control file is ours");
        Self { servers, clock }
    }

    /// The time goes on for leases; the members have been up for two days again.
    fn restart(&mut self) {
        self.servers.iter_mut().for_each(RedisServer::kill);
        self.clock.mend().expect("the control file is ours");
        self.servers.iter_mut().for_each(RedisServer::restart);
        self.clock.step(Clocks::Wall, LONG_UP).expect("the control file is ours");
        // Whoever was quick enough to ask between the two was told that they have just started.
        for server in &self.servers {
            for kind in ["normal", "pubsub"] {
                server.command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
            }
        }
    }
}

fn quorum(name: &str, options: &str) -> Subject {
    let members = Members::start();
    let at: Vec<String> =
        members.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let at = at.join(",");
    let [url, brief] = LEASES.map(|lease| {
        format!("redlock-lab://{at}?{lease}&max_ttl=24h&server_timeout=6s&{PATIENT}{options}")
    });
    until_they_count(&members.servers, &url).expect("they count");
    let members = Arc::new(Mutex::new(members));
    let with = |deed: fn(&mut Members)| {
        let members = members.clone();
        move || {
            let members = members.clone();
            async move { deed(&mut members.lock().expect("no test panics while it has it")) }
        }
    };
    Subject::url(name, url)
        .briefly(brief)
        .helper(HELPER)
        .effort(20)
        .wiped_by(with(|members| {
            members.servers.iter().for_each(|server| drop(server.command(&["FLUSHALL"])));
        }))
        .restarted_by(with(Members::restart))
        .cut_by(
            with(|members| members.servers.iter().for_each(RedisServer::stop)),
            with(|members| members.servers.iter().for_each(RedisServer::go_on)),
        )
        .keeping(members)
}

lockkeeper_lab::conformance! {
    redlock => quorum("redlock", ""),
    redlock_plain => quorum("redlock-plain", "&layout=plain"),
    redlock_redisson => quorum("redlock-redisson", "&layout=redisson"),
    redlock_fair => quorum("redlock-fair", "&layout=redisson&lock=fair"),
}
