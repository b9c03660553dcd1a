//! ZooKeeper servers of the run's own, one or an ensemble, behind a proxy for each client and server.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::super::fault::{Fault, Hits};
use super::super::links::Links;
use super::super::network::Namespace;
use super::{About, Arena, Failed, Mended, has, take};
use crate::servers::zookeeper::{Ensemble, Server, Settings};

/// Sessions are short, so that faults outlast them.
const SESSION: &str = "1s";
/// Session timeouts are two ticks at least.
const TICK: Duration = Duration::from_millis(200);

const fn server(name: &'static str, what: &'static str) -> Fault {
    Fault { name, hits: Hits::Server, excuses: &[], what }
}

/// Nothing here excuses anything: what was acknowledged is on a majority's disks.
const FAULTS: [Fault; 2] = [
    server("stop-server", "the server (of several the leader) is stopped as it stands, and goes on later"),
    server("kill-server", "the server (of several the leader) is killed, and started again with its data"),
];
const FOLLOWERS: [Fault; 2] = [
    server("stop-follower", "a follower is stopped as it stands, and goes on later"),
    server("kill-follower", "a follower is killed, and started again with its data"),
];

pub(super) struct ZooKeeperArena {
    about: About,
    options: String,
    // The links go before the servers they lead to.
    links: Links,
    servers: Vec<Server>,
    /// The server that a fault hit.
    hit: Option<usize>,
    /// The one that was killed, and is not back yet.
    down: Option<usize>,
}

impl ZooKeeperArena {
    pub(super) fn start(options: &str) -> Result<Self, (u8, String)> {
        let wrong = |text: String| (64, text);
        let (nodes, options) = take(options, "nodes");
        let nodes = match nodes.unwrap_or("1") {
            "1" => 1,
            "3" => 3,
            "5" => 5,
            other => return Err(wrong(format!("zk:auto: nodes={other}: give 1, 3 or 5"))),
        };
        let (check, mut options) = take(&options, "container_check");
        let mut settings = Settings { tick: TICK, ends_with_us: true, ..Settings::default() };
        if let Some(text) = check {
            let every =
                lockkeeper::duration::parse(text).ok_or_else(|| wrong(format!("zk:auto: container_check={text} is no duration")))?;
            settings.properties.push(format!("znode.container.checkIntervalMs={}", every.as_millis()));
        }
        if !has(&options, "session_timeout") {
            options = format!("{options}{}session_timeout={SESSION}", if options.is_empty() { "" } else { "&" });
        }
        let servers = start(nodes, &settings).or_else(|_| start(nodes, &settings)).map_err(|e| (69, e.to_string()))?;
        let ports: Vec<u16> = servers.iter().map(Server::port).collect();
        let here: Vec<SocketAddr> = ports.iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into()).collect();
        let about = About::of(&url(&here, &options))?;
        Ok(Self { about, options, links: Links::to(ports), servers, hit: None, down: None })
    }

    fn choose(&self, leader: bool) -> Option<usize> {
        let leads = |s: &Server| s.mode().is_some_and(|mode| mode == "leader" || mode == "standalone");
        self.servers.iter().position(|s| leads(s) == leader)
    }

    fn hit(&mut self) -> Result<&mut Server, String> {
        self.hit.and_then(|at| self.servers.get_mut(at)).ok_or_else(|| "no server serves that could be hit".to_owned())
    }
}

/// A port can be taken between the look and the start: then it is tried once more.
fn start(nodes: usize, settings: &Settings) -> std::io::Result<Vec<Server>> {
    if nodes == 1 { Ok(vec![Server::start(settings.clone())?]) } else { Ok(Ensemble::start(nodes, settings)?.servers) }
}

fn url(servers: &[SocketAddr], options: &str) -> String {
    let hosts: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
    format!("zk://{}?{options}", hosts.join(","))
}

impl Arena for ZooKeeperArena {
    fn url(&mut self, number: u32) -> Result<String, String> {
        Ok(url(&self.links.addresses(number)?, &self.options))
    }

    fn home(&mut self, number: u32) -> Result<Option<&Namespace>, String> {
        self.links.home(number)
    }

    fn about(&self) -> About {
        self.about
    }

    fn linger(&self) -> Duration {
        // A leader gives every session its whole time again when it begins.
        self.about.recovery * 2 + Duration::from_secs(1)
    }

    fn is_to_suffer(&mut self, faults: &[&'static str]) {
        self.links.are_to_suffer(faults);
    }

    fn faults(&self) -> Vec<Fault> {
        let followers: &[Fault] = if self.servers.len() > 1 { &FOLLOWERS } else { &[] };
        FAULTS.into_iter().chain(self.links.faults()).chain(followers.iter().copied()).collect()
    }

    fn left_out(&self) -> Vec<String> {
        self.links.left_out().into_iter().collect()
    }

    fn strike(&mut self, fault: &'static str, client: u32) -> Result<(), Failed> {
        if let Some(done) = self.links.strike(fault, client) {
            return Ok(done?);
        }
        self.hit = self.choose(fault.ends_with("-server"));
        let server = self.hit()?;
        match fault {
            "stop-server" | "stop-follower" => server.pause(),
            "kill-server" | "kill-follower" => {
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
        self.down = None;
        let server = self.hit()?;
        match fault {
            "stop-server" | "stop-follower" => server.resume(),
            "kill-server" | "kill-follower" => server.restart(),
            _ => return Err(format!("zookeeper has no fault {fault}")),
        }
        .map(|()| Mended::Ended)
        .map_err(|e| e.to_string())
    }

    fn lost(&mut self) -> Option<String> {
        let down = self.down;
        let of = self.servers.len();
        self.servers.iter_mut().enumerate().filter(|(at, _)| Some(*at) != down).find_map(|(at, server)| {
            let status = server.ended()?;
            Some(format!("ZooKeeper server {} of {of} ended by itself with {status}", at + 1))
        })
    }

    fn calls(&mut self) -> Option<u64> {
        self.servers.iter().map(|s| s.numbers().ok()?.get("zk_packets_received").map(|n| *n as u64)).sum()
    }
}
