//! A Redis server of the run's own, behind a proxy for each client.

use std::time::Duration;

use super::super::fault::{FORGOTTEN, Fault, Hits, SET_BACK, SPOIL_COUNTER, STEP};
use super::super::links::{self, Links};
use super::super::resp::{Reply, Resp};
use super::super::storm::Storm;
use super::{About, Arena, has, take};
use crate::check::Class;
use crate::servers::clock_shim::{ClockShim, Clocks};
use crate::servers::redis::RedisServer;

/// Leases are short, so that faults outlast them.
const TTL: &str = "600ms";

const fn server(name: &'static str, excuses: &'static [Class], what: &'static str) -> Fault {
    Fault { name, hits: Hits::Server, excuses, what }
}

const FAULTS: [Fault; 7] = [
    server("stop-server", &[], "the server is stopped as it stands, and goes on later"),
    server("flush", FORGOTTEN, "FLUSHALL, again and again"),
    server("script-flush", &[], "SCRIPT FLUSH, again and again"),
    server("evict", FORGOTTEN, "the server has no memory, and throws locks away to make room"),
    server("out-of-memory", &[], "the server has no memory, and refuses writes"),
    server("clock-slow", &[], "the server's clocks lose 8 %"),
    server("clock-fast", &[], "the server's clocks gain 8 %"),
];
/// With everything on disk before it is answered.
const DURABLE: [Fault; 1] = [server("kill-server", &[], "the server is killed, and started again with its data")];
/// With nothing on disk.
const FORGETFUL: [Fault; 1] = [server("kill-server", FORGOTTEN, "the server is killed, and started again without its data")];
/// Only for locks that keep a counter of their own beside the lock's key.
const SPOIL: Fault = server(SPOIL_COUNTER, &[], "an operator overwrites every counter (keys that end in :token) with a text");
const STEPS: [Fault; 2] = [
    server("clock-forward", SET_BACK, "the server's clock steps forward by 2 s, and back"),
    server("clock-back", SET_BACK, "the server's clock steps back by 2 s, and forward"),
];

pub(super) struct RedisArena {
    about: About,
    options: String,
    durable: bool,
    // The links go before the server they lead to.
    links: Links,
    storm: Option<Storm>,
    server: RedisServer,
    clock: Result<ClockShim, String>,
}

impl RedisArena {
    pub(super) fn start(options: &str) -> Result<Self, (u8, String)> {
        let (durable, mut options) = take(options, "durable");
        let durable = match durable {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => return Err((64, format!("redis:auto: durable={other}: give true or false"))),
        };
        if !has(&options, "ttl") {
            options = format!("{options}{}ttl={TTL}", if options.is_empty() { "" } else { "&" });
        }
        let clock = ClockShim::new().map_err(|e| e.to_string());
        let environment: Vec<(&str, String)> = clock
            .as_ref()
            .map(|clock| clock.environment().into_iter().map(|(name, path)| (name, path.to_string_lossy().into_owned())).collect())
            .unwrap_or_default();
        let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let disk: &[&str] = if durable { &["--appendonly", "yes", "--appendfsync", "always"] } else { &[] };
        let server = RedisServer::try_start_in(disk, &environment).map_err(|text| (69, text))?;
        let about = About::of(&format!("{}?{options}", server.url()))?;
        Ok(Self { about, options, durable, links: Links::to(vec![server.port()]), storm: None, server, clock })
    }

    fn admin(&self) -> Resp {
        Resp::to(self.server.port(), Duration::from_secs(5))
    }

    fn ask(&self, words: &[&str]) -> Result<Reply, String> {
        match self.admin().ask(words).map_err(|e| e.to_string())? {
            Reply::Error(text) => Err(text),
            reply => Ok(reply),
        }
    }

    /// Does something again and again until the fault ends.
    fn again(&mut self, every: Duration, words: &'static [&'static str]) -> Result<(), String> {
        let mut admin = self.admin();
        let act = move || {
            // A server that is stopped or gone as well is hit the next time.
            let _ = admin.ask(words);
        };
        self.storm = Some(Storm::begin(every, act)?);
        Ok(())
    }

    fn counters(&self, text: &str) -> Result<(), String> {
        let script = "for _, key in ipairs(redis.call('KEYS', '*:token')) do redis.call('SET', key, ARGV[1]) end";
        self.ask(&["EVAL", script, "0", text]).map(|_| ())
    }

    fn memory(&self, policy: &str, limit: &str) -> Result<(), String> {
        self.ask(&["CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", limit]).map(|_| ())
    }

    fn clock(&self, change: impl FnOnce(&ClockShim) -> std::io::Result<()>) -> Result<(), String> {
        change(self.clock.as_ref()?).map_err(|e| e.to_string())
    }
}

impl Arena for RedisArena {
    fn url(&mut self, number: u32) -> String {
        let port = self.links.ports(number).first().copied().unwrap_or_default();
        format!("redis://127.0.0.1:{port}?{}", self.options)
    }

    fn about(&self) -> About {
        self.about
    }

    fn is_left_alone(&mut self) {
        self.links.go_direct();
    }

    fn faults(&self) -> Vec<Fault> {
        let disk = if self.durable { DURABLE } else { FORGETFUL };
        let steps: &[Fault] = if self.clock.is_ok() { &STEPS } else { &[] };
        let rates = |fault: &&Fault| self.clock.is_ok() || !fault.name.starts_with("clock-");
        FAULTS.iter().filter(rates).chain(&links::FAULTS).chain(&disk).chain(steps).chain([&SPOIL]).copied().collect()
    }

    fn left_out(&self) -> Vec<String> {
        self.clock.as_ref().err().map(|why| format!("clock-forward, clock-back, clock-slow, clock-fast: {why}")).into_iter().collect()
    }

    fn strike(&mut self, fault: &'static str, client: u32) -> Result<(), String> {
        match fault {
            "stop-server" => return self.server.try_stop(),
            "kill-server" => {
                self.server.try_kill()?;
                self.links.cut_all();
            }
            "flush" => return self.again(Duration::from_millis(25), &["FLUSHALL"]),
            "script-flush" => return self.again(Duration::from_millis(5), &["SCRIPT", "FLUSH"]),
            "evict" => return self.memory("allkeys-random", "1"),
            "out-of-memory" => return self.memory("noeviction", "1"),
            SPOIL_COUNTER => return self.counters("unreadable"),
            "clock-forward" => return self.clock(|clock| clock.step(Clocks::Wall, STEP)),
            "clock-back" => return self.clock(|clock| clock.step_back(Clocks::Wall, STEP)),
            "clock-slow" => return self.clock(|clock| clock.run_at(Clocks::Wall, -80_000)),
            "clock-fast" => return self.clock(|clock| clock.run_at(Clocks::Wall, 80_000)),
            fault if self.links.strike(fault, client) => {}
            fault => return Err(format!("redis has no fault {fault}")),
        }
        Ok(())
    }

    fn mend(&mut self, fault: &'static str, client: u32) -> Result<(), String> {
        match fault {
            "stop-server" => return self.server.try_go_on(),
            "kill-server" => return self.server.try_restart(),
            "flush" | "script-flush" => self.storm = None,
            "evict" | "out-of-memory" => return self.memory("noeviction", "0"),
            SPOIL_COUNTER => return self.counters("1000000000"),
            "clock-forward" => return self.clock(|clock| clock.step_back(Clocks::Wall, STEP)),
            "clock-back" => return self.clock(|clock| clock.step(Clocks::Wall, STEP)),
            // Right again from where they are: a step would be another fault.
            "clock-slow" | "clock-fast" => return self.clock(|clock| clock.run_at(Clocks::Wall, 0)),
            fault if self.links.mend(fault, client) => {}
            fault => return Err(format!("redis has no fault {fault}")),
        }
        Ok(())
    }

    fn calls(&mut self) -> Option<u64> {
        let info = self.ask(&["INFO", "stats"]).ok()?;
        info.text()?.lines().find_map(|line| line.strip_prefix("total_commands_processed:"))?.trim().parse().ok()
    }
}
