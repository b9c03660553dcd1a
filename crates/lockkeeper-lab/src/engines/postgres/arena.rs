//! A PostgreSQL server of the run's own, with a standby where that is wanted, behind a proxy for
//! each client.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use lockkeeper_testkit::postgres::server::{PostgresServer, USER};

use super::pair::Pair;
use super::told::Told;
use super::usual;
use crate::check::Class;
use crate::engines::own::with_options;
use crate::torture::arena::clock::ServerClock;
use crate::torture::arena::{About, Arena, Failed, Mended, has, take};
use crate::torture::fault::{AWAY, AWAY_AND_FORGOTTEN, Fault, Hits, SET_BACK, STEP};
use crate::torture::links::Links;
use lockkeeper_testkit::servers::clock_shim::ClockShim;

/// Leases are short, so that faults outlast them.
const TTL: &str = "ttl=600ms";

const fn server(name: &'static str, excuses: &'static [Class], what: &'static str) -> Fault {
    Fault { name, hits: Hits::Server, excuses, what }
}

/// What was answered was on the disk before: none of them excuses two holders.
const FAULTS: [Fault; 4] = [
    server(STOP, AWAY, "the server is stopped as it stands, and goes on later"),
    server(KILL, AWAY, "the server is killed, and started again with its data"),
    server(TERMINATE, AWAY, "the server ends every connection (pg_terminate_backend)"),
    server(
        FULL,
        AWAY,
        "every write of the server fails, as on a full disk, and it ends; then there is room, and \
         it is started again",
    ),
];
const STOP: &str = "stop-server";
const KILL: &str = "kill-server";
const TERMINATE: &str = "end-connections";
const FULL: &str = "disk-full";

/// Of leases, which the server's clock counts.
const STEPS: [Fault; 2] = [
    server(FORWARD, SET_BACK, "the server's clock steps forward by 2 s, and back"),
    server(BACK, SET_BACK, "the server's clock steps back by 2 s, and forward"),
];
const FORWARD: &str = "clock-forward";
const BACK: &str = "clock-back";

/// With a standby, which no commit waits for.
const FAILOVERS: [Fault; 2] = [
    server(
        KILL_PRIMARY,
        AWAY_AND_FORGOTTEN,
        "the primary is killed, and its standby promoted; then it is a standby of the new one",
    ),
    server(
        KILL_AHEAD,
        AWAY_AND_FORGOTTEN,
        "nothing reaches the standby any more, and then the same",
    ),
];
/// As the engines with a master name them.
const KILL_PRIMARY: &str = "kill-master";
const KILL_AHEAD: &str = "kill-unreplicated";

pub(crate) struct PostgresArena {
    about: About,
    options: String,
    /// Locks are rows, and not a session's.
    commits: bool,
    // The links go before the servers they lead to.
    links: Links,
    pair: Pair,
    clock: Result<ServerClock, String>,
    /// A fault is under way that ended the server, or that stopped it.
    down: bool,
    stopped: bool,
    /// A process that is gone once all of the server's had to begin anew.
    before: Option<i32>,
}

/// A library that moves the clocks of a server, which may be another user's process.
fn shim() -> Result<ClockShim, String> {
    let shim = ClockShim::new().map_err(|error| error.to_string())?;
    for path in shim.environment().iter().filter_map(|(_, path)| path.parent()) {
        std::fs::set_permissions(path, Permissions::from_mode(0o755))
            .map_err(|error| error.to_string())?;
    }
    Ok(shim)
}

impl PostgresArena {
    /// `dir` is for the server's data.
    pub(crate) fn start(options: &str, dir: &Path) -> Result<Self, (u8, String)> {
        let (replicas, options) = take(options, "replicas");
        let standby = match replicas {
            None | Some("0") => false,
            Some("1") => true,
            Some(other) => {
                return Err((64, format!("postgres:auto: replicas={other}: give 0 or 1")));
            }
        };
        let mut options = usual(&options);
        if !has(&options, "ttl") && !has(&options, "session_timeout") {
            options = format!("{options}{}{TTL}", if options.is_empty() { "" } else { "&" });
        }
        let commits = take(&options, "layout").0 != Some("session");
        let shim = if !commits {
            Err("advisory locks have no lease that a clock counts".to_owned())
        } else {
            shim()
        };
        let environment = shim.as_ref().map(|shim| shim.environment().to_vec()).unwrap_or_default();
        let failed = |text: String| (69, text);
        let server = PostgresServer::try_start_with(dir, &[], &environment).map_err(failed)?;
        let clock = shim.and_then(|shim| {
            // Some are linked so that they see the true time whatever is preloaded.
            let mut clock = ServerClock::new(shim);
            match clock.step(&mut Told::by(&server)?, STEP, true) {
                Ok(()) => clock.step_back().map(|()| clock),
                Err(Failed::Undone(why) | Failed::Half(why)) => Err(why),
            }
        });
        let pair = Pair::of(server, standby, dir).map_err(failed)?;
        let ports = pair.ports();
        let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let url = format!("postgres://{USER}@{}/postgres", hosts.join(","));
        let about = About::of(&with_options(&url, &options))?;
        let (down, stopped, before) = (false, false, None);
        let links = Links::to(ports);
        Ok(Self { about, options, commits, links, pair, clock, down, stopped, before })
    }

    fn step(&mut self, forward: bool) -> Result<(), Failed> {
        let clock = self.clock.as_mut().map_err(|why| why.clone())?;
        clock.step(&mut Told::by(&self.pair.primary)?, STEP, forward)
    }
}

impl Arena for PostgresArena {
    fn url(&mut self, number: u32) -> Result<String, String> {
        let at: Vec<String> =
            self.links.addresses(number)?.iter().map(ToString::to_string).collect();
        // In a network of its own a client has another address than the loopback's.
        let url = format!("postgres://{USER}@{}/postgres?sslmode=disable", at.join(","));
        Ok(format!("{url}&{}", self.options))
    }

    fn about(&self) -> About {
        self.about
    }

    fn commits(&self) -> bool {
        self.commits
    }

    fn links(&mut self) -> Option<&mut Links> {
        Some(&mut self.links)
    }

    fn faults(&self) -> Vec<Fault> {
        let steps: &[Fault] = if self.clock.is_ok() { &STEPS } else { &[] };
        let failovers: &[Fault] = if self.pair.has_standby() { &FAILOVERS } else { &[] };
        let ours = FAULTS.iter().chain(steps).chain(failovers).copied();
        ours.chain(self.links.faults()).collect()
    }

    fn left_out(&self) -> Vec<String> {
        let clock = self.clock.as_ref().err().map(|why| format!("{FORWARD}, {BACK}: {why}"));
        clock.into_iter().chain(self.links.left_out()).collect()
    }

    fn lost(&mut self) -> Option<String> {
        self.pair.ended().filter(|_| !self.down)
    }

    fn strike(&mut self, fault: &'static str, client: u32) -> Result<(), Failed> {
        let of_server = self.faults().iter().any(|f| f.name == fault && f.hits == Hits::Server);
        if of_server && self.down {
            return Err("the server is down".into());
        }
        if of_server && self.stopped {
            return Err("the server is stopped".into());
        }
        match fault {
            STOP => {
                self.pair.primary.stop();
                self.stopped = true;
            }
            KILL => {
                self.down = true;
                self.pair.primary.kill();
            }
            TERMINATE => {
                let ended = self.pair.primary.ask(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                     WHERE application_name LIKE 'lockkeeper:%'",
                )?;
                if ended == "0" {
                    return Err("nobody was connected".into());
                }
            }
            FULL => {
                self.before = self.pair.primary.first_child();
                self.down = true;
                self.pair.primary.refuse_writes(true).map_err(Failed::Half)?;
            }
            FORWARD => return self.step(true),
            BACK => return self.step(false),
            KILL_PRIMARY => return self.pair.fail_over(false),
            KILL_AHEAD => return self.pair.fail_over(true),
            fault => {
                return self
                    .links
                    .strike(fault, client)
                    .unwrap_or_else(|| Err(format!("postgres has no fault {fault}").into()));
            }
        }
        Ok(())
    }

    fn mend(&mut self, fault: &'static str, client: u32) -> Result<Mended, String> {
        match fault {
            STOP => {
                self.pair.primary.go_on();
                self.stopped = false;
            }
            KILL => {
                self.pair.primary.try_start_again()?;
                self.down = false;
            }
            TERMINATE => {}
            FULL => {
                let primary = &mut self.pair.primary;
                if !primary.is_started() || primary.ended().is_some() {
                    primary.kill();
                    primary.try_start_again()?;
                    self.down = false;
                    return Ok(Mended::Ended);
                }
                primary.refuse_writes(false)?;
                self.down = false;
                if primary.first_child() == self.before {
                    return Ok(Mended::HitNobody("the server wrote nothing"));
                }
            }
            FORWARD | BACK => {
                self.clock.as_mut().map_err(|why| why.clone())?.step_back()?;
            }
            KILL_PRIMARY | KILL_AHEAD => self.pair.come_back()?,
            fault => {
                return self
                    .links
                    .mend(fault, client)
                    .unwrap_or_else(|| Err(format!("postgres has no fault {fault}")));
            }
        }
        Ok(Mended::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_testkit::until::until;

    #[test]
    fn a_step_of_the_clock_is_seen_and_undone_and_a_session_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = PostgresArena::start("", dir.path()).unwrap();
        let ahead = |arena: &PostgresArena| {
            let mut told = Told::by(&arena.pair.primary).unwrap();
            ServerClock::ahead(&mut told).unwrap() / 1_000_000_000
        };
        let right = ahead(&arena);
        for (fault, by) in [(FORWARD, 2), (BACK, -2)] {
            arena.strike(fault, 0).unwrap();
            assert!((ahead(&arena) - right - by).abs() <= 1, "{fault}");
            assert_eq!(arena.mend(fault, 0), Ok(Mended::Ended));
            assert!((ahead(&arena) - right).abs() <= 1, "{fault}: it is where it was");
        }
        arena.strike(STOP, 0).unwrap();
        for fault in [FORWARD, TERMINATE, FULL, KILL] {
            let refused = Err(Failed::Undone("the server is stopped".to_owned()));
            assert_eq!(arena.strike(fault, 0), refused, "nobody waits for its answer");
        }
        arena.mend(STOP, 0).unwrap();
        let other = tempfile::tempdir().unwrap();
        let session = PostgresArena::start("layout=session", other.path()).unwrap();
        assert!(!session.faults().contains(&STEPS[0]));
        assert!(session.left_out().iter().any(|why| why.contains("advisory locks have no lease")));
    }

    #[test]
    fn a_full_disk_ends_the_server_and_what_was_answered_is_there_when_there_is_room_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = PostgresArena::start("", dir.path()).unwrap();
        arena.pair.primary.ask("CREATE TABLE written (n int)").unwrap();
        arena.strike(FULL, 0).unwrap();
        assert_eq!(arena.mend(FULL, 0), Ok(Mended::HitNobody("the server wrote nothing")));
        for _ in 0..2 {
            let count =
                |arena: &PostgresArena| arena.pair.primary.ask("SELECT count(*) FROM written");
            arena.pair.primary.ask("INSERT INTO written VALUES (1)").unwrap();
            let before = count(&arena).unwrap();
            arena.strike(FULL, 0).unwrap();
            let refused = arena.pair.primary.ask("INSERT INTO written VALUES (2)");
            assert!(refused.is_err(), "nothing is answered that cannot be kept: {refused:?}");
            until("it has ended", || arena.pair.primary.ended().is_some());
            assert_eq!(arena.lost(), None, "it is the fault's doing");
            assert_eq!(arena.mend(FULL, 0), Ok(Mended::Ended));
            assert_eq!(count(&arena).unwrap(), before);
            assert_eq!(arena.lost(), None);
        }
    }

    #[test]
    fn after_each_failover_the_standby_is_the_primary_and_the_last_one_its_standby() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = PostgresArena::start("replicas=1", dir.path()).unwrap();
        assert_eq!(arena.about().class, lockkeeper::Class::Efficiency);
        let ports = arena.pair.ports();
        arena.pair.primary.ask("CREATE TABLE written (n int)").unwrap();
        for fault in [KILL_PRIMARY, KILL_AHEAD, KILL_PRIMARY] {
            let old = arena.pair.primary.port();
            arena.strike(fault, 0).unwrap();
            assert_eq!(arena.lost(), None, "it is the fault's doing");
            let beside = arena.strike(KILL_PRIMARY, 0);
            let refused = "the last primary is no standby yet".to_owned();
            assert_eq!(beside, Err(Failed::Undone(refused)), "{fault}");
            let new = &arena.pair.primary;
            assert_ne!(new.port(), old, "{fault}");
            assert_eq!(new.ask("SELECT pg_is_in_recovery()").unwrap(), "f", "{fault}");
            assert_eq!(arena.mend(fault, 0), Ok(Mended::Ended), "{fault}");
            let follow = arena.pair.primary.ask("SELECT count(*) FROM pg_stat_replication");
            assert_eq!(follow.unwrap(), "1", "{fault}");
            let mut now = arena.pair.ports();
            now.sort_unstable();
            let mut then = ports.clone();
            then.sort_unstable();
            assert_eq!(now, then, "{fault}: the clients' URLs stay right");
        }
    }
}
