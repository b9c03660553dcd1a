//! Five members of the run's own, behind a proxy for each client and member.

use std::path::Path;
use std::time::Duration;

use lockkeeper_testkit::redis::resp::Resp;
use lockkeeper_testkit::servers::clock_shim::ClockShim;

use super::members::{Members, url};
use crate::torture::arena::clock::ServerClock;
use crate::torture::arena::{About, Arena, Failed, Mended};
use crate::torture::fault::{AWAY, Fault, Hits, MEMBERS_FAST};
use crate::torture::links::Links;

const fn server(name: &'static str, what: &'static str) -> Fault {
    // Together they can leave no majority for a while.
    Fault { name, hits: Hits::Server, excuses: AWAY, what }
}

/// None of them hits more than a minority, so none excuses two holders or a token that goes back.
const FAULTS: [Fault; 4] = [
    server(STOP_ONE, "a member is stopped as it stands, and goes on later"),
    server(STOP_MINORITY, "as many members as can be missed are stopped, and go on later"),
    server(KEPT, "a member is killed, and started again with its data"),
    server(FORGOTTEN, "a member is killed, and started again without its data"),
];
/// On request only: it moves the clocks a little further each time.
const MEMBERS_GAIN: Fault = Fault {
    name: MEMBERS_FAST,
    hits: Hits::Server,
    excuses: &[],
    what: "the members' clocks gain 8 %",
};
const STOP_ONE: &str = "stop-member";
const STOP_MINORITY: &str = "stop-minority";
const KEPT: &str = "kill-member";
const FORGOTTEN: &str = "forget-member";

pub(crate) struct RedlockArena {
    about: About,
    options: String,
    // The links go before the servers they lead to.
    links: Links,
    members: Members,
    /// Of all members.
    clock: Result<ServerClock, String>,
    /// The member that is hit next: each in turn.
    next: usize,
    /// Those that are stopped, by the fault that did it.
    stopped: Vec<(&'static str, usize)>,
    /// The one that was killed, and is not back yet.
    down: Option<usize>,
}

impl RedlockArena {
    /// `dir` is for the members' data.
    pub(crate) fn start(options: &str, dir: &Path) -> Result<Self, (u8, String)> {
        let clock = ClockShim::new().map_err(|e| e.to_string());
        let variables = clock.iter().flat_map(ClockShim::environment);
        let variables: Vec<_> =
            variables.map(|(name, path)| (name, path.to_string_lossy().into_owned())).collect();
        let variables: Vec<_> = variables.iter().map(|(name, path)| (*name, &**path)).collect();
        let (members, options) = Members::start_in(options, dir, &variables)?;
        let clock = clock.map(ServerClock::new);
        let at = members.addresses();
        let about = About::of(&url(&at, &options))?;
        let links = Links::to(at.iter().map(std::net::SocketAddr::port).collect());
        let (next, stopped, down) = (0, Vec::new(), None);
        Ok(Self { about, options, links, members, clock, next, stopped, down })
    }

    /// Members that nothing is done to, in turn, one after the other.
    fn choose(&mut self, count: usize) -> Result<Vec<usize>, Failed> {
        let all = self.members.0.len();
        let busy = self.stopped.len() + usize::from(self.down.is_some());
        if busy + count > all / 2 {
            return Err("a majority would be hit".into());
        }
        let mut chosen = Vec::new();
        while chosen.len() < count {
            self.next = (self.next + 1) % all;
            let (at, hit) = (self.next, |(_, other): &(_, usize)| *other == self.next);
            if self.down != Some(at) && !self.stopped.iter().any(hit) {
                chosen.push(at);
            }
        }
        Ok(chosen)
    }

    /// The members' clock, and one of them to look at.
    fn clock(&mut self) -> Result<(&mut ServerClock, Resp), String> {
        let port = self.members.0.first().ok_or("there is no member")?.port();
        let clock = self.clock.as_mut().map_err(|why| why.clone())?;
        Ok((clock, Resp::to(port, Duration::from_secs(5))))
    }

    fn stop(&mut self, fault: &'static str, count: usize) -> Result<(), Failed> {
        for at in self.choose(count)? {
            let member = self.members.0.get(at).ok_or("there is no such member")?;
            member.try_stop().map_err(Failed::Half)?;
            self.stopped.push((fault, at));
        }
        Ok(())
    }

    fn kill(&mut self) -> Result<(), Failed> {
        for at in self.choose(1)? {
            self.members.0.get_mut(at).ok_or("there is no such member")?.try_kill()?;
            self.down = Some(at);
        }
        Ok(())
    }

    fn start_again(&mut self, forgets: bool) -> Result<(), String> {
        let at = self.down.ok_or("no member was killed")?;
        let member = self.members.0.get_mut(at).ok_or("there is no such member")?;
        let data = member.dir().join("appendonlydir");
        if forgets && data.exists() {
            std::fs::remove_dir_all(&data).map_err(|e| format!("its data stays: {e}"))?;
        }
        member.try_restart()?;
        self.down = None;
        Ok(())
    }
}

impl Arena for RedlockArena {
    fn url(&mut self, number: u32) -> Result<String, String> {
        Ok(url(&self.links.addresses(number)?, &self.options))
    }

    fn about(&self) -> About {
        self.about
    }

    fn links(&mut self) -> Option<&mut Links> {
        Some(&mut self.links)
    }

    fn faults(&self) -> Vec<Fault> {
        let fast = self.clock.is_ok().then_some(MEMBERS_GAIN);
        FAULTS.into_iter().chain(fast).chain(self.links.faults()).collect()
    }

    fn left_out(&self) -> Vec<String> {
        let clock = self.clock.as_ref().err().map(|why| format!("{MEMBERS_FAST}: {why}"));
        clock.into_iter().chain(self.links.left_out()).collect()
    }

    fn lost(&mut self) -> Option<String> {
        let down = self.down;
        let mut members = self.members.0.iter_mut().enumerate();
        members.find_map(|(at, member)| {
            let status = member.ended().filter(|_| down != Some(at))?;
            let words = member.last_words();
            Some(format!("a member ended by itself with {status}; it said last: {words}"))
        })
    }

    fn strike(&mut self, fault: &'static str, client: u32) -> Result<(), Failed> {
        match fault {
            STOP_ONE => self.stop(fault, 1),
            STOP_MINORITY => self.stop(fault, self.members.0.len() / 2),
            KEPT | FORGOTTEN if self.down.is_some() => Err("a member is down already".into()),
            KEPT | FORGOTTEN => self.kill(),
            MEMBERS_FAST => {
                let (clock, mut member) = self.clock()?;
                clock.run_wrong(&mut member, true)
            }
            fault => self
                .links
                .strike(fault, client)
                .unwrap_or_else(|| Err(format!("redlock has no fault {fault}").into())),
        }
    }

    fn mend(&mut self, fault: &'static str, client: u32) -> Result<Mended, String> {
        match fault {
            STOP_ONE | STOP_MINORITY => {
                let (ours, others) = self.stopped.iter().partition(|(by, _)| *by == fault);
                self.stopped = others;
                let ours: Vec<(&str, usize)> = ours;
                for (_, at) in ours {
                    self.members.0.get(at).ok_or("there is no such member")?.try_go_on()?;
                }
            }
            KEPT => self.start_again(false)?,
            FORGOTTEN => self.start_again(true)?,
            MEMBERS_FAST => {
                let (clock, mut member) = self.clock()?;
                if !clock.run_right(&mut member)? {
                    return Ok(Mended::HitNobody("the members' clocks ran right"));
                }
            }
            fault => {
                return self
                    .links
                    .mend(fault, client)
                    .unwrap_or_else(|| Err(format!("redlock has no fault {fault}")));
            }
        }
        Ok(Mended::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_a_minority_is_hit_and_who_forgets_has_no_data() {
        let dir = tempfile::tempdir().unwrap();
        let mut arena = RedlockArena::start("members=3", dir.path()).unwrap();
        arena.strike(STOP_ONE, 0).unwrap();
        for fault in [KEPT, FORGOTTEN, STOP_ONE, STOP_MINORITY] {
            let refused = Err(Failed::Undone("a majority would be hit".to_owned()));
            assert_eq!(arena.strike(fault, 0), refused, "{fault}");
        }
        arena.mend(STOP_ONE, 0).unwrap();
        for (fault, kept) in [(KEPT, "1"), (FORGOTTEN, "0")] {
            for member in &arena.members.0 {
                // With everysec a member answers before it writes, while its disk is slow.
                member.command(&["CONFIG", "SET", "appendfsync", "always"]);
                member.command(&["SET", "key", "value"]);
            }
            arena.strike(fault, 0).unwrap();
            assert_eq!(arena.lost(), None, "it is the fault's doing");
            let at = arena.down.unwrap();
            arena.mend(fault, 0).unwrap();
            let exists = arena.members.0[at].command(&["EXISTS", "key"]).concat();
            assert!(exists.ends_with(kept), "{fault}: {exists}");
        }
    }
}
