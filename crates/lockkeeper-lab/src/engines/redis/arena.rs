//! A Redis server of the run's own, behind a proxy for each client.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_testkit::redis::resp::{Reply, Resp};
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::servers::clock_shim::ClockShim;

use crate::check::Class;
use crate::torture::arena::clock::{ServerClock, Tells};
use crate::torture::arena::disk::Disk;
use crate::torture::arena::{About, Arena, Failed, Mended, has, take};
use crate::torture::fault::{
    AWAY, AWAY_AND_FORGOTTEN, FORGOTTEN, Fault, Hits, SET_BACK, SPOIL_COUNTER, STEP,
};
use crate::torture::links::Links;
use crate::torture::storm::Storm;

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
const DURABLE: [Fault; 1] =
    [server("kill-server", AWAY, "the server is killed, and started again with its data")];
/// With its data on a disk of its own. What was answered was on it before.
const FULL: Fault = server(
    "disk-full",
    AWAY,
    "the server's disk is full, and it ends; then there is room, and it is started again",
);
/// With nothing on disk.
const FORGETFUL: [Fault; 1] = [server(
    "kill-server",
    AWAY_AND_FORGOTTEN,
    "the server is killed, and started again without its data",
)];
/// Only for locks that keep a counter of their own beside the lock's key.
const SPOIL: Fault = server(
    SPOIL_COUNTER,
    &[],
    "an operator overwrites every counter (keys that end in :token) with a text",
);
const STEPS: [Fault; 2] = [
    server("clock-forward", SET_BACK, "the server's clock steps forward by 2 s, and back"),
    server("clock-back", SET_BACK, "the server's clock steps back by 2 s, and forward"),
];

pub(crate) struct RedisArena {
    about: About,
    options: String,
    durable: bool,
    // The links go before the server they lead to.
    links: Links,
    storm: Option<Storm>,
    server: RedisServer,
    clock: Result<ServerClock, String>,
    evicted: u64,
    /// Whether the last flush removed a key.
    flushed: Arc<AtomicBool>,
    /// What [`RedisArena::unknown_scripts`] said before scripts were forgotten.
    unknown_scripts: Option<u64>,
    /// Where its data is, if that can get full.
    disk: Result<Disk, String>,
    /// A fault is under way that ends it.
    down: bool,
}

impl RedisArena {
    /// `dir` is for its data, if that can get full.
    pub(crate) fn start(options: &str, dir: &Path) -> Result<Self, (u8, String)> {
        let (durable, mut options) = durable(options)?;
        if !has(&options, "ttl") {
            options = format!("{options}{}ttl={TTL}", if options.is_empty() { "" } else { "&" });
        }
        let clock = ClockShim::new().map_err(|e| e.to_string());
        let environment: Vec<(&str, String)> = clock
            .as_ref()
            .map(|clock| {
                clock
                    .environment()
                    .into_iter()
                    .map(|(name, path)| (name, path.to_string_lossy().into_owned()))
                    .collect()
            })
            .unwrap_or_default();
        let environment: Vec<(&str, &str)> =
            environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let disk = if durable {
            Disk::new(dir.join("redis-data"))
        } else {
            Err("its server keeps nothing on disk".to_owned())
        };
        let mut arguments = on_disk(durable).to_vec();
        let data = disk.as_ref().ok().map(|disk| disk.path().to_string_lossy().into_owned());
        arguments.extend(data.iter().flat_map(|path| ["--dir", path]));
        let server =
            RedisServer::try_start_in(&arguments, &environment).map_err(|text| (69, text))?;
        let about = About::of(&format!("{}?{options}", server.url()))?;
        let clock = clock.and_then(|shim| {
            // Some are linked so that they see the true time whatever is preloaded.
            let (mut clock, mut admin) = (ServerClock::new(shim), admin(&server));
            match clock.step(&mut admin, STEP, true) {
                Ok(()) => clock.step_back().map(|()| clock),
                Err(Failed::Undone(why) | Failed::Half(why)) => Err(why),
            }
        });
        Ok(Self {
            about,
            options,
            durable,
            links: Links::to(vec![server.port()]),
            storm: None,
            server,
            clock,
            evicted: 0,
            flushed: Arc::default(),
            unknown_scripts: None,
            disk,
            down: false,
        })
    }

    fn ask(&self, words: &[&str]) -> Result<Reply, String> {
        match admin(&self.server).ask(words).map_err(|e| e.to_string())? {
            Reply::Error(text) => Err(text),
            reply => Ok(reply),
        }
    }

    /// Removes every key, and then again and again until the fault ends; notes whether there was
    /// any.
    fn flush(&mut self) -> Result<(), Failed> {
        self.flushed = Arc::default();
        let (mut admin, flushed) = (admin(&self.server), self.flushed.clone());
        // In one step: what was made between two would be gone, and not counted.
        let script = "local keys = redis.call('DBSIZE') redis.call('FLUSHALL') return keys";
        let mut flush = move || {
            let keys = admin.ask(&["EVAL", script, "0"])?;
            flushed.fetch_or(matches!(keys, Reply::Number(keys) if keys > 0), Ordering::AcqRel);
            Ok::<_, std::io::Error>(keys)
        };
        // One that was not answered may be done all the same.
        if let Reply::Error(text) = flush().map_err(|e| Failed::Half(e.to_string()))? {
            return Err(Failed::Half(text));
        }
        let act = move || {
            // A server that is stopped or gone as well is hit the next time.
            let _ = flush();
        };
        self.storm = Some(Storm::begin(Duration::from_millis(25), act).map_err(Failed::Half)?);
        Ok(())
    }

    /// How often somebody asked for a script that the server did not know.
    fn unknown_scripts(&self) -> Option<u64> {
        let info = self.ask(&["INFO", "errorstats"]).ok()?;
        let count =
            info.text()?.lines().find_map(|line| line.strip_prefix("errorstat_NOSCRIPT:count="));
        // What never happened has no line.
        Some(count.and_then(|count| count.trim().parse().ok()).unwrap_or(0))
    }

    /// Does something, and then again and again until the fault ends.
    fn again(&mut self, every: Duration, words: &'static [&'static str]) -> Result<(), Failed> {
        // One that was not answered may be done all the same.
        self.ask(words).map_err(Failed::Half)?;
        let mut admin = admin(&self.server);
        let act = move || {
            // A server that is stopped or gone as well is hit the next time.
            let _ = admin.ask(words);
        };
        self.storm = Some(Storm::begin(every, act).map_err(Failed::Half)?);
        Ok(())
    }

    /// Writes a text over every counter, and answers how many there were.
    fn counters(&self, text: &str) -> Result<i64, String> {
        let script = "local all = redis.call('KEYS', '*:token') for _, key in ipairs(all) do \
                      redis.call('SET', key, ARGV[1]) end return #all";
        match self.ask(&["EVAL", script, "0", text])? {
            Reply::Number(all) => Ok(all),
            other => Err(format!("the server has counters, and says {other:?}")),
        }
    }

    fn memory(&self, policy: &str, limit: &str) -> Result<(), String> {
        self.ask(&["CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", limit]).map(|_| ())
    }

    fn clock(&mut self) -> Result<(&mut ServerClock, Resp), String> {
        let admin = admin(&self.server);
        self.clock.as_mut().map(|clock| (clock, admin)).map_err(|why| why.clone())
    }

    fn step(&mut self, forward: bool) -> Result<(), Failed> {
        let (clock, mut admin) = self.clock()?;
        clock.step(&mut admin, STEP, forward)
    }

    fn run_wrong(&mut self, fast: bool) -> Result<(), Failed> {
        let (clock, mut admin) = self.clock()?;
        clock.run_wrong(&mut admin, fast)
    }

    /// A number that `INFO stats` tells.
    fn stat(&self, name: &str) -> Option<u64> {
        let info = self.ask(&["INFO", "stats"]).ok()?;
        let line =
            info.text()?.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().parse().ok()
    }
}

impl Tells for Resp {
    fn time(&mut self) -> Result<i64, String> {
        let reply =
            self.ask(&["TIME"]).map_err(|e| format!("the server does not say its time: {e}"))?;
        told(&reply).ok_or_else(|| "the server does not say its time".to_owned())
    }
}

/// In nanoseconds since 1970.
fn told(reply: &Reply) -> Option<i64> {
    let Reply::List(parts) = reply else { return None };
    let mut numbers = parts.iter().map(|part| part.text()?.parse::<i64>().ok());
    let (seconds, us) = (numbers.next()??, numbers.next()??);
    seconds.checked_mul(1_000_000_000)?.checked_add(us.checked_mul(1_000)?)
}

/// Whether every change is to be on disk before it is answered, and the options of the engine.
pub(super) fn durable(options: &str) -> Result<(bool, String), (u8, String)> {
    let (durable, options) = take(options, "durable");
    match durable {
        None | Some("false") => Ok((false, options)),
        Some("true") => Ok((true, options)),
        Some(other) => Err((64, format!("redis:auto: durable={other}: give true or false"))),
    }
}

/// What a server is started with for that.
pub(super) fn on_disk(durable: bool) -> &'static [&'static str] {
    if durable { &["--appendonly", "yes", "--appendfsync", "always"] } else { &[] }
}

fn admin(server: &RedisServer) -> Resp {
    Resp::to(server.port(), Duration::from_secs(5))
}

impl Arena for RedisArena {
    fn url(&mut self, number: u32) -> Result<String, String> {
        let servers = self.links.addresses(number)?;
        let address = servers.first().ok_or("there is no server")?;
        Ok(format!("redis://{address}?{}", self.options))
    }

    fn about(&self) -> About {
        self.about
    }

    fn links(&mut self) -> Option<&mut Links> {
        Some(&mut self.links)
    }

    fn faults(&self) -> Vec<Fault> {
        let disk = if self.durable { DURABLE } else { FORGETFUL };
        let steps: &[Fault] = if self.clock.is_ok() { &STEPS } else { &[] };
        let full = self.disk.is_ok().then_some(&FULL);
        let rates = |fault: &&Fault| self.clock.is_ok() || !fault.name.starts_with("clock-");
        let ours = disk.iter().chain(steps).chain(full).chain([&SPOIL]).copied();
        FAULTS.iter().filter(rates).copied().chain(self.links.faults()).chain(ours).collect()
    }

    fn left_out(&self) -> Vec<String> {
        let clock = self
            .clock
            .as_ref()
            .err()
            .map(|why| format!("clock-forward, clock-back, clock-slow, clock-fast: {why}"));
        let disk = self
            .disk
            .as_ref()
            .err()
            .filter(|_| self.durable)
            .map(|why| format!("disk-full: {why}"));
        clock.into_iter().chain(disk).chain(self.links.left_out()).collect()
    }

    fn lost(&mut self) -> Option<String> {
        let status = self.server.ended().filter(|_| !self.down)?;
        Some(format!(
            "redis-server ended by itself with {status}; it said last: {}",
            self.server.last_words()
        ))
    }

    fn strike(&mut self, fault: &'static str, client: u32) -> Result<(), Failed> {
        match fault {
            "stop-server" => self.server.try_stop()?,
            "kill-server" => {
                self.server.try_kill()?;
                self.down = true;
                self.links.cut_all();
            }
            "disk-full" => {
                self.disk.as_ref().map_err(Clone::clone)?.fill()?;
                self.down = true;
            }
            "flush" => return self.flush(),
            "script-flush" => {
                self.unknown_scripts = self.unknown_scripts();
                return self.again(Duration::from_millis(5), &["SCRIPT", "FLUSH"]);
            }
            "evict" => {
                self.evicted = self.stat("evicted_keys").unwrap_or(0);
                self.memory("allkeys-random", "1").map_err(Failed::Half)?;
            }
            "out-of-memory" => self.memory("noeviction", "1").map_err(Failed::Half)?,
            SPOIL_COUNTER => {
                if self.counters("unreadable").map_err(Failed::Half)? == 0 {
                    return Err("the server has no key that ends in :token".to_owned().into());
                }
            }
            "clock-forward" => return self.step(true),
            "clock-back" => return self.step(false),
            "clock-slow" => return self.run_wrong(false),
            "clock-fast" => return self.run_wrong(true),
            fault => self
                .links
                .strike(fault, client)
                .unwrap_or_else(|| Err(format!("redis has no fault {fault}").into()))?,
        }
        Ok(())
    }

    fn mend(&mut self, fault: &'static str, client: u32) -> Result<Mended, String> {
        match fault {
            "stop-server" => self.server.try_go_on()?,
            "kill-server" => {
                self.server.try_restart()?;
                self.down = false;
            }
            "disk-full" => {
                self.disk.as_ref()?.make_room()?;
                // One that did not start has no process at all.
                let ended = self.server.ended().is_some() || self.server.pid() == 0;
                if ended {
                    self.links.cut_all();
                    self.server.try_restart()?;
                }
                self.down = false;
                if !ended {
                    return Ok(Mended::HitNobody(
                        "the server wrote nothing that there was no room for",
                    ));
                }
            }
            "flush" => {
                self.storm = None;
                if !std::mem::take(&mut self.flushed).load(Ordering::Acquire) {
                    return Ok(Mended::HitNobody("the server had no key to remove"));
                }
            }
            "script-flush" => {
                self.storm = None;
                if self.unknown_scripts().is_some_and(|now| Some(now) == self.unknown_scripts) {
                    return Ok(Mended::HitNobody("no client asked for a forgotten script"));
                }
            }
            "evict" => {
                self.memory("noeviction", "0")?;
                if self.stat("evicted_keys").is_some_and(|now| now == self.evicted) {
                    return Ok(Mended::HitNobody("the server threw nothing away"));
                }
            }
            "out-of-memory" => self.memory("noeviction", "0")?,
            SPOIL_COUNTER => _ = self.counters("1000000000")?,
            "clock-forward" | "clock-back" => self.clock()?.0.step_back()?,
            "clock-slow" | "clock-fast" => {
                let (clock, mut admin) = self.clock()?;
                if !clock.run_right(&mut admin)? {
                    return Ok(Mended::HitNobody("the server's clock ran right"));
                }
            }
            fault => {
                return self
                    .links
                    .mend(fault, client)
                    .unwrap_or_else(|| Err(format!("redis has no fault {fault}")));
            }
        }
        Ok(Mended::Ended)
    }

    fn calls(&mut self) -> Option<u64> {
        self.stat("total_commands_processed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_testkit::until::until;

    #[test]
    fn a_clock_counts_as_a_fault_when_it_went_wrong_and_not_when_it_was_only_told_to() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = RedisArena::start("", dir.path()).unwrap();
        let lasts = |arena: &mut RedisArena, fault: &'static str| -> Result<Mended, Failed> {
            arena.strike(fault, 0)?;
            std::thread::sleep(Duration::from_millis(150));
            Ok(arena.mend(fault, 0).unwrap())
        };
        for fault in ["clock-forward", "clock-back", "clock-slow", "clock-fast"] {
            assert_eq!(lasts(&mut arena, fault), Ok(Mended::Ended), "{fault}");
        }
        // Another server's clock is moved, and ours runs right.
        let shim = ClockShim::new().unwrap();
        let environment =
            shim.environment().map(|(name, path)| (name, path.to_str().unwrap().to_owned()));
        let other = RedisServer::start_in(
            &[],
            &environment.each_ref().map(|(name, path)| (*name, path.as_str())),
        );
        arena.clock = Ok(ServerClock::new(shim));
        let clock = || ServerClock::ahead(&mut admin(&other)).unwrap();
        let right = clock();
        for fault in ["clock-forward", "clock-back"] {
            assert_eq!(
                lasts(&mut arena, fault),
                Err(Failed::Undone("the server's clock did not step".to_owned())),
                "{fault}"
            );
            assert!(clock().abs_diff(right) < 1_000_000_000, "{fault}: it is where it was");
            assert_eq!(arena.mend(fault, 0), Ok(Mended::Ended));
            assert!(
                clock().abs_diff(right) < 1_000_000_000,
                "{fault}: it is not moved back a second time"
            );
        }
        for fault in ["clock-slow", "clock-fast"] {
            assert_eq!(
                lasts(&mut arena, fault),
                Ok(Mended::HitNobody("the server's clock ran right")),
                "{fault}"
            );
        }
    }

    #[test]
    fn a_server_that_threw_nothing_away_or_does_not_answer_was_not_hit() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = RedisArena::start("", dir.path()).unwrap();
        arena.strike("evict", 0).unwrap();
        assert_eq!(arena.mend("evict", 0), Ok(Mended::HitNobody("the server threw nothing away")));
        assert!(arena.strike(SPOIL_COUNTER, 0).is_err());
        arena.server.kill();
        for fault in ["flush", "script-flush", "evict", "clock-slow"] {
            assert!(arena.strike(fault, 0).is_err(), "{fault}");
        }
    }

    #[test]
    fn a_flush_counts_when_a_key_was_removed_and_one_of_scripts_when_somebody_missed_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = RedisArena::start("", dir.path()).unwrap();
        let mut lasts = |fault: &'static str, meanwhile: &[&str]| {
            arena.strike(fault, 0).unwrap();
            let _ = arena.ask(meanwhile);
            arena.mend(fault, 0).unwrap()
        };
        assert_eq!(lasts("flush", &["PING"]), Mended::HitNobody("the server had no key to remove"));
        assert_eq!(
            lasts("script-flush", &["SET", "key", "1"]),
            Mended::HitNobody("no client asked for a forgotten script")
        );
        assert_eq!(lasts("flush", &["PING"]), Mended::Ended);
        assert_eq!(
            lasts("script-flush", &["EVALSHA", "0000000000000000000000000000000000000000", "0"]),
            Mended::Ended
        );
        assert_eq!(
            lasts("flush", &["PING"]),
            Mended::HitNobody("the server had no key to remove"),
            "that was another one"
        );
    }

    #[test]
    fn a_server_that_ends_under_no_fault_is_lost_and_one_that_a_fault_ended_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = RedisArena::start("", dir.path()).unwrap();
        assert_eq!(arena.lost(), None);
        arena.strike("kill-server", 0).unwrap();
        assert_eq!(arena.lost(), None);
        arena.mend("kill-server", 0).unwrap();
        assert_eq!(arena.lost(), None);
        arena.server.client().send(&["SHUTDOWN", "NOSAVE"]);
        until("it has ended", || arena.lost().is_some());
        let why = arena.lost().unwrap();
        assert!(
            why.contains("ended by itself with exit status: 0") && why.contains("bye bye"),
            "{why}"
        );
    }

    #[test]
    fn a_full_disk_ends_the_server_and_what_was_answered_is_there_when_there_is_room_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = RedisArena::start("durable=true", dir.path()).unwrap();
        let Ok(_) = &arena.disk else {
            // Where it is not allowed it is said, and no such fault is drawn.
            assert!(
                arena
                    .left_out()
                    .iter()
                    .any(|why| why.starts_with("disk-full: this process cannot"))
            );
            assert!(!arena.faults().contains(&FULL));
            return;
        };
        assert!(arena.faults().contains(&FULL) && arena.left_out().is_empty());
        arena.strike("disk-full", 0).unwrap();
        assert_eq!(
            arena.mend("disk-full", 0),
            Ok(Mended::HitNobody("the server wrote nothing that there was no room for"))
        );

        arena.strike("disk-full", 0).unwrap();
        let large = "x".repeat(10_000);
        let mut answered = 0;
        until("it has ended", || {
            answered += usize::from(arena.ask(&["RPUSH", "written", &large]).is_ok());
            arena.server.ended().is_some()
        });
        assert_eq!(arena.lost(), None, "it is the fault's doing");
        assert_eq!(arena.mend("disk-full", 0), Ok(Mended::Ended));
        assert_eq!(arena.ask(&["LLEN", "written"]), Ok(Reply::Number(answered as i64)));
        assert!(arena.ask(&["RPUSH", "written", &large]).is_ok() && arena.lost().is_none());
    }
}
