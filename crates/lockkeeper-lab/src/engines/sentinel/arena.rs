//! A master, its replicas and three Sentinels of the run's own; a proxy between each client and
//! each of them, at which the Sentinels announce the servers to that client.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::sentinel::server::{Deployment, SERVICE, Setup};

use super::started::{DOWN_AFTER, Wanted};
use crate::check::Class;
use crate::torture::arena::{About, Arena, Failed, Mended};
use crate::torture::fault::{AWAY, AWAY_AND_FORGOTTEN, BOTH_GRANT, Fault, Hits};
use crate::torture::links::{Links, loses};

const KILL_MASTER: &str = "kill-master";
const KILL_AHEAD: &str = "kill-unreplicated";
const CUT_OFF: &str = "cut-off-master";
const CUT_SENTINELS: &str = "cut-sentinels";

/// For how long the master grants what no replica hears of, before it is killed.
const AHEAD: Duration = Duration::from_millis(300);

/// How long the Sentinels may take after a failover until they can do another: they ask each
/// replica about itself every ten seconds.
const READY_WITHIN: Duration = Duration::from_secs(12);

/// How often they are asked whether they did one that nobody wanted.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// For the clients; replicas and Sentinels have it too, as another user.
const PASSWORD: &str = "lockkeeper-lab";

/// The links to the Sentinels: they come before those to the servers.
const SENTINELS: Range<usize> = 0..3;

pub(crate) struct SentinelArena {
    about: About,
    wanted: Wanted,
    // The links go before what they lead to.
    links: Links,
    deployment: Deployment,
    /// The master that was killed or cut off and is no replica yet.
    old: Option<usize>,
    /// Which client was cut off from the Sentinels together with it.
    beside_old: Option<u32>,
    /// What all links of a client suffer.
    suffers: BTreeMap<u32, &'static str>,
    /// The master otherwise, and when the Sentinels were asked for it last.
    master: usize,
    asked: Instant,
}

impl SentinelArena {
    /// `dir` is for the servers' directories.
    pub(crate) fn start(options: &str, dir: &Path) -> Result<Self, (u8, String)> {
        let wanted = Wanted::take(options)?;
        let setup = Setup {
            replicas: wanted.replicas,
            down_after: DOWN_AFTER,
            password: Some(PASSWORD.to_owned()),
            apart: true,
            ..Setup::default()
        };
        let deployment = Deployment::try_start_below(dir, setup).map_err(|text| (69, text))?;
        let about = About::of(&url(&deployment.hosts(), &wanted.options))?;
        let all = deployment.sentinels.iter().chain(&deployment.servers);
        let links = Links::to_announced(all.map(RedisServer::port).collect());
        let master = deployment.try_master().map_err(|text| (69, text))?;
        let (old, beside_old, suffers, asked) = (None, None, BTreeMap::new(), Instant::now());
        Ok(Self { about, wanted, links, deployment, old, beside_old, suffers, master, asked })
    }

    /// What a replica that is promoted may lack: nothing that was granted, if every replica had to
    /// acknowledge it, or none could.
    fn faults(&self) -> [Fault; 4] {
        let Wanted { replicas, wait, .. } = self.wanted;
        let if_any = |lacks: bool| if lacks { AWAY_AND_FORGOTTEN } else { AWAY };
        let server = |name, excuses: &'static [Class], what| Fault {
            name,
            hits: Hits::Server,
            excuses,
            what,
        };
        [
            server(
                KILL_MASTER,
                if_any(wait < replicas),
                "the master is killed; then it is started again as a replica of the new one",
            ),
            server(
                KILL_AHEAD,
                if_any(wait == 0),
                "nothing reaches the replicas any more, and then the same",
            ),
            server(
                CUT_OFF,
                if wait == 0 { BOTH_GRANT } else { AWAY },
                "the master and a client are cut off from the replicas and the Sentinels; then it \
                 is a replica of the new one",
            ),
            Fault {
                name: CUT_SENTINELS,
                hits: Hits::Link,
                excuses: &[],
                what: "nothing passes between a client and the Sentinels",
            },
        ]
    }

    /// The master, if another can take its place.
    fn master(&self) -> Result<usize, Failed> {
        if self.old.is_some() {
            return Err("the last master is no replica yet".into());
        }
        let begun = Instant::now();
        while !self.deployment.can_fail_over() {
            if begun.elapsed() > READY_WITHIN {
                return Err("the Sentinels know no replica that is up to date".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(self.deployment.try_master()?)
    }

    fn kill(&mut self, master: usize) -> Result<(), String> {
        self.deployment.servers.get_mut(master).ok_or("there is no such server")?.try_kill()?;
        self.old = Some(master);
        Ok(())
    }

    fn kill_ahead(&mut self) -> Result<(), Failed> {
        let master = self.master()?;
        let stopped = self.deployment.try_stop_replication();
        std::thread::sleep(AHEAD);
        let killed = stopped.and_then(|()| self.kill(master));
        let follow = self.deployment.try_let_replicate();
        killed.and(follow).map_err(Failed::Half)
    }

    fn cut_off(&mut self, client: u32) -> Result<(), Failed> {
        let master = self.master()?;
        self.part(client)?;
        (self.old, self.beside_old) = (Some(master), Some(client));
        self.deployment.cut_off(master).map_err(Failed::Half)
    }

    /// Nothing passes between a client and the Sentinels.
    fn part(&mut self, client: u32) -> Result<(), Failed> {
        self.links.strike_some(SENTINELS, "partition", client).unwrap_or(Ok(()))
    }

    fn rejoin(&mut self, client: u32) -> Result<Mended, String> {
        let mended = self.links.mend_some(SENTINELS, "partition", client);
        // What all of its links suffer goes on at these.
        if let Some(fault) = self.suffers.get(&client) {
            let _ = self.links.strike_some(SENTINELS, fault, client);
        }
        mended.unwrap_or(Ok(Mended::Ended))
    }

    /// The end of a fault of all links of a client leaves those apart that another fault has cut.
    fn mend_link(&mut self, fault: &str, client: u32) -> Result<Mended, String> {
        let unknown = || Err(format!("sentinel has no fault {fault}"));
        let mended = self.links.mend(fault, client).unwrap_or_else(unknown)?;
        self.suffers.remove(&client);
        if self.beside_old == Some(client) {
            // Nothing is refused of a partition.
            let _ = self.part(client);
        }
        Ok(mended)
    }

    /// The old master becomes a replica of the new one.
    fn come_back(&mut self) -> Result<(), String> {
        let Some(old) = self.old else { return Ok(()) };
        self.deployment.try_come_back(old)?;
        self.is_replaced()
    }

    fn is_replaced(&mut self) -> Result<(), String> {
        self.master = self.deployment.try_master()?;
        self.old = None;
        Ok(())
    }

    fn join_again(&mut self, client: u32) -> Result<(), String> {
        if let Some(old) = self.old {
            self.deployment.join_again(old)?;
            self.is_replaced()?;
        }
        self.beside_old = None;
        self.rejoin(client).map(|_| ())
    }
}

impl SentinelArena {
    /// Which server has ended that no fault has.
    fn ended(&mut self) -> Option<String> {
        let old = self.old;
        let servers = self.deployment.servers.iter_mut().enumerate();
        let servers = servers.filter(|(at, _)| Some(*at) != old).map(|(_, server)| server);
        servers.chain(self.deployment.sentinels.iter_mut()).find_map(|server| {
            let (status, words) = (server.ended()?, server.last_words());
            Some(format!("a server ended by itself with {status}; it said last: {words}"))
        })
    }

    /// What a failover does that no fault is the reason of is held against nobody.
    fn moved(&mut self) -> Option<String> {
        self.asked = Instant::now();
        let moved = self.old.is_none() && self.deployment.try_master() != Ok(self.master);
        moved.then(|| {
            let text = "this machine kept the master from running";
            format!("the Sentinels failed over by themselves: {text} for {DOWN_AFTER:?}")
        })
    }
}

fn url(hosts: &str, options: &str) -> String {
    format!("redis+sentinel://:{PASSWORD}@{hosts}/{SERVICE}?{options}")
}

impl Arena for SentinelArena {
    fn url(&mut self, number: u32) -> Result<String, String> {
        let at = self.links.addresses(number)?;
        let at: Vec<String> = at.iter().take(SENTINELS.end).map(ToString::to_string).collect();
        Ok(url(&at.join(","), &self.wanted.options))
    }

    fn about(&self) -> About {
        self.about
    }

    fn links(&mut self) -> Option<&mut Links> {
        Some(&mut self.links)
    }

    fn faults(&self) -> Vec<Fault> {
        self.faults().into_iter().chain(self.links.faults()).collect()
    }

    fn left_out(&self) -> Vec<String> {
        self.links.left_out().into_iter().collect()
    }

    fn lost(&mut self) -> Option<String> {
        let ask = self.asked.elapsed() > ASK_EVERY;
        self.ended().or_else(|| if ask { self.moved() } else { None })
    }

    fn lost_at_the_end(&mut self) -> Option<String> {
        self.ended().or_else(|| self.moved())
    }

    fn strike(&mut self, fault: &'static str, client: u32) -> Result<(), Failed> {
        match fault {
            KILL_MASTER => {
                let master = self.master()?;
                Ok(self.kill(master)?)
            }
            KILL_AHEAD => self.kill_ahead(),
            CUT_OFF => self.cut_off(client),
            CUT_SENTINELS => self.part(client),
            fault => {
                let unknown = || Err(format!("sentinel has no fault {fault}").into());
                self.links.strike(fault, client).unwrap_or_else(unknown)?;
                // The others are no matter of what a proxy lets through.
                if fault != "reset" && !loses(fault) {
                    self.suffers.insert(client, fault);
                }
                Ok(())
            }
        }
    }

    fn mend(&mut self, fault: &'static str, client: u32) -> Result<Mended, String> {
        match fault {
            KILL_MASTER | KILL_AHEAD => self.come_back()?,
            CUT_OFF => self.join_again(client)?,
            CUT_SENTINELS => return self.rejoin(client),
            fault => return self.mend_link(fault, client),
        }
        Ok(Mended::Ended)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use lockkeeper_testkit::until::until;

    use super::*;

    #[test]
    fn after_each_fault_another_server_is_the_master_and_the_old_one_its_replica() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = SentinelArena::start("", dir.path()).unwrap();
        arena.is_to_suffer(&[CUT_OFF], 1);
        arena.url(0).unwrap();
        for fault in [CUT_OFF, KILL_MASTER, KILL_AHEAD, CUT_OFF] {
            arena.deployment.try_until_found().unwrap();
            let old = arena.deployment.try_master().unwrap();
            arena.strike(fault, 0).unwrap();
            assert_eq!(arena.lost(), None, "it is the fault's doing");
            let beside = arena.strike(KILL_MASTER, 0);
            let refused = "the last master is no replica yet".to_owned();
            assert_eq!(beside, Err(Failed::Undone(refused)), "{fault}");
            assert_eq!(arena.mend(fault, 0), Ok(Mended::Ended), "{fault}");
            let new = arena.deployment.try_master().unwrap();
            assert_ne!(old, new, "{fault}");
            assert_eq!(arena.lost_at_the_end(), None, "{fault} was the reason");
            let role = arena.deployment.try_command(old, &["ROLE"]).unwrap();
            assert_eq!(role[0], "slave", "{fault}: {role:?}");
        }
    }

    #[test]
    fn a_client_goes_to_whichever_server_is_the_master_through_its_own_proxy() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = SentinelArena::start("", dir.path()).unwrap();
        arena.is_to_suffer(&["partition"], 1);
        let locks = lockkeeper::blocking::Locks::open(&arena.url(0).unwrap()).unwrap();
        for _ in 0..3 {
            let lock = locks.mutex("a").lock().timeout(Duration::from_secs(120));
            drop(lock.run().unwrap());
            let master = SENTINELS.end + arena.deployment.try_master().unwrap();
            for (servers, what) in [(SENTINELS, "Sentinels"), (master..master + 1, "the master")] {
                assert!(arena.links.connections(&servers, 0).0 > 0, "no proxy before {what}");
            }
            arena.deployment.try_until_found().unwrap();
            arena.strike(KILL_MASTER, 0).unwrap();
            arena.mend(KILL_MASTER, 0).unwrap();
        }
    }

    #[test]
    fn a_master_that_is_cut_off_serves_clients_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = SentinelArena::start("", dir.path()).unwrap();
        let old = arena.deployment.try_master().unwrap();
        arena.strike(CUT_OFF, 0).unwrap();
        arena.deployment.try_until_failed_over(old).unwrap();
        let info = arena.deployment.try_command(old, &["INFO", "replication"]).unwrap().concat();
        assert!(info.contains("role:master") && info.contains("connected_slaves:0"), "{info}");
        assert_eq!(arena.deployment.try_command(old, &["SET", "a", "b"]).unwrap(), ["OK"]);
        arena.mend(CUT_OFF, 0).unwrap();
        let gone = arena.deployment.try_command(old, &["EXISTS", "a"]).unwrap();
        assert_eq!(gone, ["0"], "what it took meanwhile is lost");
    }

    #[test]
    fn a_client_whose_links_are_cut_stays_cut_when_the_old_master_is_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = SentinelArena::start("", dir.path()).unwrap();
        arena.is_to_suffer(&[CUT_OFF, "partition"], 1);
        let sentinel = arena.links.addresses(0).unwrap()[0];
        // Whether anything is answered.
        let answers = || {
            let mut stream = TcpStream::connect(sentinel).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            stream.write_all(b"PING\r\n").unwrap();
            stream.read(&mut [0]).is_ok_and(|read| read == 1)
        };
        until("the Sentinel answers", answers);
        arena.strike(CUT_OFF, 0).unwrap();
        arena.strike("partition", 0).unwrap();
        arena.mend(CUT_OFF, 0).unwrap();
        assert!(!answers());
        arena.mend("partition", 0).unwrap();
        until("it answers again", answers);
    }

    #[test]
    fn a_failover_that_no_fault_is_the_reason_of_ends_the_torture() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = SentinelArena::start("", dir.path()).unwrap();
        assert_eq!(arena.lost_at_the_end(), None);
        arena.deployment.try_ask(0, &["SENTINEL", "FAILOVER", SERVICE]).unwrap();
        arena.deployment.try_until_failed_over(arena.master).unwrap();
        assert!(arena.lost_at_the_end().unwrap().contains("by themselves"));
    }

    #[test]
    fn what_a_fault_excuses_hangs_on_whether_a_replica_may_lack_a_grant() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = SentinelArena::start("replicas=2", dir.path()).unwrap();
        for (wait, forgetful) in
            [(0, [true, true, true]), (1, [true, false, false]), (2, [false; 3])]
        {
            arena.wanted.wait = wait;
            let faults = arena.faults();
            let found: Vec<bool> = faults.iter().take(3).map(Fault::forgets).collect();
            assert_eq!(found, forgetful, "wait_replicas={wait}");
        }
    }
}
