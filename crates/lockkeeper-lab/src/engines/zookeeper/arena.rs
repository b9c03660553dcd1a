//! ZooKeeper servers of the run's own, one or an ensemble, behind a proxy for each client and
//! server.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use lockkeeper_testkit::servers::clock_shim::ClockShim;
use lockkeeper_testkit::zookeeper::client::Client;
use lockkeeper_testkit::zookeeper::server::{Ensemble, Links as Peers, Server, Settings};

use crate::torture::arena::clock::{ServerClock, Tells};
use crate::torture::arena::{About, Arena, Failed, Mended, has, take};
use crate::torture::fault::{EXPIRE, FORGOTTEN, Fault, Hits, STEP};
use crate::torture::links::Links;

/// Sessions are short, so that faults outlast them.
const SESSION: &str = "1s";
/// Session timeouts are two ticks at least.
const TICK: Duration = Duration::from_millis(200);

const fn server(name: &'static str, what: &'static str) -> Fault {
    Fault { name, hits: Hits::Server, excuses: &[], what }
}

/// Nothing here excuses anything: what was acknowledged is on a majority's disks.
const FAULTS: [Fault; 2] = [
    server(
        "stop-server",
        "the server (of several the leader) is stopped as it stands, and goes on later",
    ),
    server(
        "kill-server",
        "the server (of several the leader) is killed, and started again with its data",
    ),
];
const FOLLOWERS: [Fault; 3] = [
    server("stop-follower", "a follower is stopped as it stands, and goes on later"),
    server("kill-follower", "a follower is killed, and started again with its data"),
    // The others are a majority, and have all that was acknowledged.
    server("wipe-follower", "a follower is killed, and started again without its data"),
];
/// Between the servers of an ensemble; clients reach all of them, also the one that is cut off.
const CUTS: [Fault; 6] = [
    server("cut-leader", "nothing passes between the leader and the other servers"),
    server(
        "cut-leader-out",
        "what the leader says does not reach the other servers; it hears them",
    ),
    server("cut-leader-in", "what the other servers say does not reach the leader; they hear it"),
    server("cut-follower", "nothing passes between a follower and the other servers"),
    server(
        "cut-follower-out",
        "what a follower says does not reach the other servers; it hears them",
    ),
    server("cut-follower-in", "what the other servers say does not reach a follower; they hear it"),
];
/// The session of a client is ended before its time, as an administrator would do it; its process
/// and its link are as they were. The engine has forgotten what it holds before it hears of it.
const EXPIRES: Fault = Fault {
    name: EXPIRE,
    hits: Hits::Client,
    excuses: FORGOTTEN,
    what: "a client's session is ended by another client, before its time",
};
/// Sessions live by the steady clock, and their ends allow for drift; the time of day is for
/// people.
const CLOCKS: [Fault; 4] = [
    server("clock-slow", "the servers' steady clocks lose 8 %"),
    server("clock-fast", "the servers' steady clocks gain 8 %"),
    server("clock-forward", "the servers' time of day steps forward by 2 s, and back"),
    server("clock-back", "the servers' time of day steps back by 2 s, and forward"),
];

/// How long a server may take to say that a session has ended.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// How long an ensemble may take to be whole again.
const WHOLE_WITHIN: Duration = Duration::from_secs(30);

pub(crate) struct ZooKeeperArena {
    about: About,
    options: String,
    // The links go before the servers they lead to.
    links: Links,
    peers: Option<Peers>,
    servers: Vec<Server>,
    /// The server that a fault hit.
    hit: Option<usize>,
    clock: Result<ServerClock, String>,
    /// Whether anything was kept from or of it.
    kept: bool,
    /// The one that was killed, and is not back yet.
    down: Option<usize>,
}

impl ZooKeeperArena {
    pub(crate) fn start(options: &str) -> Result<Self, (u8, String)> {
        let (nodes, mut settings, mut options) = wanted(options)?;
        settings.tick = TICK;
        if !has(&options, "session_timeout") {
            options = format!(
                "{options}{}session_timeout={SESSION}",
                if options.is_empty() { "" } else { "&" }
            );
        }
        let shim = ClockShim::new().map_err(|e| e.to_string());
        let variables = shim.iter().flat_map(ClockShim::environment);
        settings.environment = variables.map(|(name, path)| (name.to_owned(), path)).collect();
        let (servers, peers) = start(nodes, &settings)
            .or_else(|_| start(nodes, &settings))
            .map_err(|e| (69, e.to_string()))?;
        let ports: Vec<u16> = servers.iter().map(Server::port).collect();
        let here: Vec<SocketAddr> =
            ports.iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into()).collect();
        let about = About::of(&url(&here, &options))?;
        let clock = shim.map(|shim| ServerClock::new(shim).with_steady_rates());
        let links = Links::to(ports);
        let mut arena = Self {
            about,
            options,
            links,
            peers,
            servers,
            hit: None,
            clock,
            kept: false,
            down: None,
        };
        // Some are linked so that they see the true time whatever is preloaded.
        let why = [true, false].into_iter().find_map(|forward| {
            match arena.step(forward).and_then(|()| Ok(arena.clock()?.step_back()?)) {
                Ok(()) => None,
                Err(Failed::Undone(why) | Failed::Half(why)) => Some(why),
            }
        });
        arena.clock = why.map_or(arena.clock, Err);
        Ok(arena)
    }

    fn choose(&self, leader: bool) -> Option<usize> {
        let leads =
            |s: &Server| s.mode().is_some_and(|mode| mode == "leader" || mode == "standalone");
        self.servers.iter().position(|s| leads(s) == leader)
    }

    fn clock(&mut self) -> Result<&mut ServerClock, String> {
        self.clock.as_mut().map_err(|why| why.clone())
    }

    fn step(&mut self, forward: bool) -> Result<(), Failed> {
        self.hit = self.choose(true);
        let mut told = TimeOfDay(self.hit()?.port());
        self.clock()?.step(&mut told, STEP, forward)
    }

    fn run_wrong(&mut self, fast: bool) -> Result<(), Failed> {
        self.hit = self.choose(true);
        let server = self
            .hit
            .and_then(|at| self.servers.get(at))
            .ok_or("no server serves whose clock could be looked at".to_owned())?;
        self.clock.as_mut().map_err(|why| why.clone())?.run_wrong(&mut Uptime(server), fast)
    }

    fn run_right(&mut self) -> Result<Mended, String> {
        let server = self
            .hit
            .and_then(|at| self.servers.get(at))
            .ok_or("there is no server whose clock could be looked at")?;
        let wrong =
            self.clock.as_mut().map_err(|why| why.clone())?.run_right(&mut Uptime(server))?;
        Ok(if wrong { Mended::Ended } else { Mended::HitNobody("the servers' clocks ran right") })
    }

    /// Ends the sessions of a client, which is kept from taking them up again meanwhile.
    fn expire(&self, client: u32) -> Result<(), String> {
        self.links.refuse(client, true);
        let ended = self.end_sessions(client);
        self.links.refuse(client, false);
        ended
    }

    fn end_sessions(&self, client: u32) -> Result<(), String> {
        let (mut ended, mut why) = (false, "the client has no session".to_owned());
        for greeting in self.links.greetings(client) {
            // A server that does not answer now may be one that stands still; each of the others
            // knows every session.
            for server in &self.servers {
                match Client::end_session(server.port(), &greeting, ENDS_WITHIN) {
                    Ok(()) => {
                        ended = true;
                        break;
                    }
                    Err(error) => why = format!("its session does not end: {error}"),
                }
            }
        }
        if ended { Ok(()) } else { Err(why) }
    }

    /// Cuts a server off from the others.
    fn cut(&mut self, fault: &str) -> Result<(), String> {
        let (at, peers) = (
            self.hit.ok_or("no server serves that could be hit")?,
            self.peers.as_ref().ok_or("there is no other server")?,
        );
        self.kept = false;
        peers.cut(at, !fault.ends_with("-in"), !fault.ends_with("-out"));
        Ok(())
    }

    /// The server is back among the others once all of them serve again: what an ensemble needs for
    /// that is no lock's time.
    fn join(&mut self) -> Result<Mended, String> {
        let peers = self.peers.as_ref().ok_or("there is no other server")?;
        self.kept |= self.hit.is_some_and(|at| peers.keep(at));
        peers.heal();
        let begun = Instant::now();
        while !self.servers.iter().all(|s| s.mode().is_some()) {
            if begun.elapsed() > WHOLE_WITHIN {
                return Err("the ensemble is not whole again".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(if self.kept {
            Mended::Ended
        } else {
            Mended::HitNobody("no message was kept from a server")
        })
    }

    fn hit(&mut self) -> Result<&mut Server, String> {
        self.hit
            .and_then(|at| self.servers.get_mut(at))
            .ok_or_else(|| "no server serves that could be hit".to_owned())
    }
}

/// A server's time of day: of several, of the one that leads.
struct TimeOfDay(u16);

impl Tells for TimeOfDay {
    fn time(&mut self) -> Result<i64, String> {
        let told = Client::connect(self.0).and_then(|mut client| client.time_of_day_ms());
        told.map(|ms| ms.saturating_mul(1_000_000))
            .map_err(|e| format!("the server does not say its time: {e}"))
    }
}

/// A server's steady clock, which says for how long it runs.
struct Uptime<'a>(&'a Server);

impl Tells for Uptime<'_> {
    fn time(&mut self) -> Result<i64, String> {
        let numbers =
            self.0.numbers().map_err(|e| format!("the server does not say its time: {e}"))?;
        numbers
            .get("zk_uptime")
            .map(|ms| (*ms * 1e6) as i64)
            .ok_or_else(|| "the server does not say its time".to_owned())
    }
}

/// How many servers are to be started, how, and the options of the engine.
pub(super) fn wanted(options: &str) -> Result<(usize, Settings, String), (u8, String)> {
    let wrong = |text: String| (64, text);
    let (nodes, options) = take(options, "nodes");
    let nodes = match nodes.unwrap_or("1") {
        "1" => 1,
        "3" => 3,
        "5" => 5,
        other => return Err(wrong(format!("zk:auto: nodes={other}: give 1, 3 or 5"))),
    };
    let (check, options) = take(&options, "container_check");
    let mut settings = Settings { ends_with_us: true, ..Settings::default() };
    if let Some(text) = check {
        let every = lockkeeper::duration::parse(text)
            .ok_or_else(|| wrong(format!("zk:auto: container_check={text} is not a duration")))?;
        settings.properties.push(format!("znode.container.checkIntervalMs={}", every.as_millis()));
    }
    Ok((nodes, settings, options))
}

/// A port can be taken between the look and the start: then it is tried once more.
fn start(nodes: usize, settings: &Settings) -> std::io::Result<(Vec<Server>, Option<Peers>)> {
    if nodes == 1 {
        return Ok((vec![Server::start(settings.clone())?], None));
    }
    Ensemble::start_apart(nodes, settings).map(|(ensemble, peers)| (ensemble.servers, Some(peers)))
}

fn url(servers: &[SocketAddr], options: &str) -> String {
    let hosts: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
    format!("zk://{}?{options}", hosts.join(","))
}

impl Arena for ZooKeeperArena {
    fn url(&mut self, number: u32) -> Result<String, String> {
        Ok(url(&self.links.addresses(number)?, &self.options))
    }

    fn about(&self) -> About {
        self.about
    }

    fn linger(&self) -> Duration {
        // A leader gives every session its whole time again when it begins.
        self.about.recovery * 2 + Duration::from_secs(1)
    }

    fn links(&mut self) -> Option<&mut Links> {
        Some(&mut self.links)
    }

    fn faults(&self) -> Vec<Fault> {
        let clocks = CLOCKS.into_iter().filter(|_| self.clock.is_ok());
        let of_several = FOLLOWERS.into_iter().chain(CUTS).filter(|_| self.peers.is_some());
        FAULTS
            .into_iter()
            .chain(self.links.faults())
            .chain(of_several)
            .chain([EXPIRES])
            .chain(clocks)
            .collect()
    }

    fn left_out(&self) -> Vec<String> {
        let clock = self
            .clock
            .as_ref()
            .err()
            .map(|why| format!("clock-slow, clock-fast, clock-forward, clock-back: {why}"));
        clock.into_iter().chain(self.links.left_out()).collect()
    }

    fn strike(&mut self, fault: &'static str, client: u32) -> Result<(), Failed> {
        if let Some(done) = self.links.strike(fault, client) {
            return done;
        }
        match fault {
            EXPIRE => return Ok(self.expire(client)?),
            "clock-forward" => return self.step(true),
            "clock-back" => return self.step(false),
            "clock-slow" => return self.run_wrong(false),
            "clock-fast" => return self.run_wrong(true),
            _ => {}
        }
        self.hit = self.choose(fault.ends_with("-server") || fault.starts_with("cut-leader"));
        if fault.starts_with("cut-") {
            return Ok(self.cut(fault)?);
        }
        let server = self.hit()?;
        match fault {
            "stop-server" | "stop-follower" => server.pause(),
            "kill-server" | "kill-follower" | "wipe-follower" => {
                server.kill().map_err(|e| e.to_string())?;
                self.down = self.hit;
                return Ok(());
            }
            _ => return Err(format!("zookeeper has no fault {fault}").into()),
        }
        .map_err(|e| e.to_string().into())
    }

    fn mend(&mut self, fault: &'static str, client: u32) -> Result<Mended, String> {
        if let Some(done) = self.links.mend(fault, client) {
            return done;
        }
        match fault {
            EXPIRE => return Ok(Mended::Ended),
            "clock-forward" | "clock-back" => {
                return self.clock()?.step_back().map(|()| Mended::Ended);
            }
            "clock-slow" | "clock-fast" => return self.run_right(),
            _ => {}
        }
        if fault.starts_with("cut-") {
            return self.join();
        }
        let server = self.hit()?;
        match fault {
            "stop-server" | "stop-follower" => server.resume(),
            "kill-server" | "kill-follower" => server.restart(),
            "wipe-follower" => server.restart_empty(),
            _ => return Err(format!("zookeeper has no fault {fault}")),
        }
        .map_err(|e| e.to_string())?;
        // One that did not come up is down for as long as that is tried again.
        self.down = None;
        Ok(Mended::Ended)
    }

    fn lost(&mut self) -> Option<String> {
        let down = self.down;
        let of = self.servers.len();
        self.servers.iter_mut().enumerate().filter(|(at, _)| Some(*at) != down).find_map(
            |(at, server)| {
                let status = server.ended()?;
                Some(format!("ZooKeeper server {} of {of} ended by itself with {status}", at + 1))
            },
        )
    }

    fn calls(&mut self) -> Option<u64> {
        self.servers
            .iter()
            .map(|s| s.numbers().ok()?.get("zk_packets_received").map(|n| *n as u64))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::{Lost, blocking::Locks};

    use super::*;
    use lockkeeper_testkit::until::until;
    use lockkeeper_testkit::zookeeper::client::Kind;

    #[test]
    fn the_session_of_one_client_is_ended_and_its_holds_are_lost_and_nobody_elses() {
        let mut arena = ZooKeeperArena::start("session_timeout=4s").unwrap();
        arena.is_to_suffer(&[EXPIRE], 1);
        assert!(arena.strike(EXPIRE, 0).is_err(), "there is no client");
        let [hit, other] = [0, 1].map(|client| Locks::open(&arena.url(client).unwrap()).unwrap());
        let (lost, stays) =
            (hit.mutex("a").lock().run().unwrap(), other.mutex("b").lock().run().unwrap());
        arena.strike(EXPIRE, 0).unwrap();
        until("its holder is told", || lost.is_lost());
        // And not by its deadline.
        assert_eq!(lost.held().why_lost(), Some(Lost::SessionEnded));
        assert_eq!(arena.mend(EXPIRE, 0), Ok(Mended::Ended));
        assert!(stays.held().verify_blocking().is_ok());
        drop(hit.mutex("a").lock().run().unwrap());
    }

    #[test]
    fn a_leader_that_is_cut_off_is_none_any_more_and_comes_back() {
        let mut arena = ZooKeeperArena::start("nodes=3").unwrap();
        arena.is_to_suffer(&["cut-leader"], 1);
        let leader = arena.choose(true).unwrap();
        arena.strike("cut-leader", 0).unwrap();
        until("another leads", || arena.choose(true).is_some_and(|now| now != leader));
        assert_eq!(arena.mend("cut-leader", 0), Ok(Mended::Ended));
        assert!(arena.servers.iter().all(|s| s.mode().is_some()), "all of them serve");
    }

    #[test]
    fn the_clocks_of_a_server_count_as_wrong_when_they_were_and_not_when_they_were_only_told_to() {
        let mut arena = ZooKeeperArena::start("").unwrap();
        let lasts = |arena: &mut ZooKeeperArena, fault: &'static str| {
            arena.strike(fault, 0)?;
            if fault.ends_with("fast") || fault.ends_with("slow") {
                // Long enough for what is gained to be more than an answer takes.
                std::thread::sleep(Duration::from_millis(1_200));
            }
            arena.mend(fault, 0).map_err(Failed::Half)
        };
        for Fault { name, .. } in CLOCKS {
            assert_eq!(lasts(&mut arena, name), Ok(Mended::Ended), "{name}");
        }
        // Another server's clocks are moved, and ours run right.
        arena.clock = Ok(ServerClock::new(ClockShim::new().unwrap()).with_steady_rates());
        for fault in ["clock-forward", "clock-back"] {
            assert!(lasts(&mut arena, fault).is_err(), "{fault}");
        }
        for fault in ["clock-slow", "clock-fast"] {
            assert_eq!(
                lasts(&mut arena, fault),
                Ok(Mended::HitNobody("the servers' clocks ran right")),
                "{fault}"
            );
        }
    }

    #[test]
    fn steps_of_the_servers_time_of_day_end_no_session() {
        let mut arena = ZooKeeperArena::start("").unwrap();
        arena.is_to_suffer(&["clock-forward"], 1);
        let locks = Locks::open(&arena.url(0).unwrap()).unwrap();
        // A machine that stands still for a moment ends a session, too; a step would end every one.
        until("a session of a second outlives a step forward and one back", || {
            let guard = locks.mutex("a").lock().run().unwrap();
            let mut stays = true;
            for fault in ["clock-forward", "clock-back"] {
                arena.strike(fault, 0).unwrap();
                let begun = Instant::now();
                while stays && begun.elapsed() < Duration::from_millis(1_500) {
                    stays = guard
                        .held()
                        .verify_blocking()
                        .inspect_err(|e| eprintln!("{fault}: {e}"))
                        .is_ok();
                    std::thread::sleep(Duration::from_millis(50));
                }
                arena.mend(fault, 0).unwrap();
            }
            stays
        });
    }

    #[test]
    fn a_holder_that_is_cut_off_while_the_servers_clocks_gain_or_lose_a_twelfth_is_told_before_the_next_one_is_in()
     {
        let mut arena = ZooKeeperArena::start("").unwrap();
        arena.is_to_suffer(&["clock-fast", "partition"], 1);
        let [hit, other] = [0, 1].map(|client| Locks::open(&arena.url(client).unwrap()).unwrap());
        for fault in ["clock-fast", "clock-slow"] {
            let guard = hit.mutex("a").lock().run().unwrap();
            arena.strike(fault, 0).unwrap();
            arena.strike("partition", 0).unwrap();
            let waits = other.mutex("a");
            let held = guard.held();
            let next = std::thread::spawn(move || {
                let second = waits.lock().run().unwrap();
                // Its clocks say so, whenever its thread gets to hear it.
                assert!(held.is_lost(), "{fault}: the next one is in, and it still holds");
                second
            });
            guard.held().lost_blocking();
            let second = next.join().unwrap();
            arena.mend("partition", 0).unwrap();
            assert_eq!(arena.mend(fault, 0), Ok(Mended::Ended));
            drop(second);
        }
    }

    #[test]
    fn a_follower_that_comes_back_without_its_data_has_what_the_others_have() {
        let mut arena = ZooKeeperArena::start("nodes=3").unwrap();
        arena.is_to_suffer(&["wipe-follower"], 1);
        let port = |arena: &ZooKeeperArena, at: usize| arena.servers.get(at).unwrap().port();
        let leader = arena.choose(true).unwrap();
        Client::connect(port(&arena, leader))
            .unwrap()
            .create("/kept", b"", Kind::Persistent)
            .unwrap();
        arena.strike("wipe-follower", 0).unwrap();
        let wiped = arena.hit.unwrap();
        assert!(wiped != leader && arena.servers.get(wiped).unwrap().mode().is_none());
        assert_eq!(arena.mend("wipe-follower", 0), Ok(Mended::Ended));
        assert!(
            Client::connect(port(&arena, wiped))
                .unwrap()
                .children("/")
                .unwrap()
                .contains(&"kept".to_owned())
        );
    }
}
