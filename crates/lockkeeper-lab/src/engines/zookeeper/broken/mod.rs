//! Locks on ZooKeeper: nodes in a line, the first one holds.

mod ignores_session_loss;
mod latch_after_exists;
mod no_recheck;
mod reuses_old_node;
mod sequence_as_token;
mod watch_all;
mod wire;

use std::io;
use std::time::Duration;

use lockkeeper_testkit::zookeeper::client::Kind;

use crate::torture::broken::{BASE, Broken, Strike};
use crate::torture::orders::Orders;
use crate::torture::raw::{Ending, GiveUp, Grant};
use wire::Session;

pub(crate) const ALL: &[&Broken] = &[
    &ignores_session_loss::THIS,
    &latch_after_exists::THIS,
    &no_recheck::THIS,
    &reuses_old_node::THIS,
    &sequence_as_token::THIS,
    &watch_all::THIS,
];

/// What they ask for as a session's timeout.
const SESSION: Duration = Duration::from_millis(600);
/// The arena for them.
const ARENA: &str = "zk:auto?session_timeout=600ms";

/// Of the first server.
pub(crate) fn port(url: &str) -> Option<u16> {
    let address = url.strip_prefix("zk://")?.split(['/', '?', ',']).next()?;
    address.strip_prefix("127.0.0.1:").or_else(|| address.strip_prefix("localhost:"))?.parse().ok()
}

/// One thread's session and its place in line.
struct Base {
    port: u16,
    session: Option<Session>,
    /// What its nodes begin with.
    id: String,
    /// The directory of the lock.
    directory: String,
    /// Our node in it.
    node: String,
}

impl Base {
    fn of(orders: &Orders, task: u32) -> Result<Self, String> {
        let port = port(&orders.url).ok_or("this server cannot be reached")?;
        let id = format!("{:08x}-{task:02x}-lock-", std::process::id());
        Ok(Self { port, session: None, id, directory: String::new(), node: String::new() })
    }

    /// The session, a new one if the last was lost with its connection.
    fn session(&mut self) -> io::Result<&mut Session> {
        if self.session.is_none() {
            self.session = Some(Session::open(self.port, SESSION)?);
        }
        self.session.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// What goes wrong takes the session with it.
    fn or_lost<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            self.session = None;
        }
        result
    }

    /// Takes a place in line.
    fn join(&mut self, name: &str, kind: Kind) -> io::Result<()> {
        self.directory = format!("/{}", name.replace('/', "-"));
        let (directory, path) =
            (self.directory.clone(), format!("/{}/{}", name.replace('/', "-"), self.id));
        let session = self.session()?;
        loop {
            session.create(&directory, kind)?;
            // The directory may go between the two.
            match session.create(&path, Kind::EphemeralSequential) {
                Ok(Some(made)) => {
                    self.node = made.rsplit('/').next().unwrap_or_default().to_owned();
                    return Ok(());
                }
                Ok(None) => {}
                Err(e) if e.to_string().ends_with("-101") => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Everybody in line, the first one first.
    fn line(&mut self, watch: bool) -> io::Result<Vec<String>> {
        let directory = self.directory.clone();
        let mut line = self.session()?.children(&directory, watch)?.unwrap_or_default();
        line.sort_by_key(|node| number(node));
        Ok(line)
    }

    /// The path of the node before ours; `None` when we are first.
    fn before(&mut self) -> io::Result<Option<String>> {
        let line = self.line(false)?;
        let place = line.iter().position(|node| *node == self.node);
        let Some(place) = place else { return Err(io::Error::other("its node no longer exists")) };
        let before = place.checked_sub(1).and_then(|before| line.get(before));
        Ok(before.map(|before| format!("{}/{before}", self.directory)))
    }

    /// Waits until we are first, by a watch on the one before us.
    fn wait_for_turn(&mut self, give_up: &GiveUp) -> io::Result<bool> {
        loop {
            let Some(before) = self.before()? else { return Ok(true) };
            let session = self.session()?;
            if !session.exists(&before)? {
                continue;
            }
            while !session.wait(Duration::from_millis(100))? {
                if give_up.is_now() {
                    self.leave()?;
                    return Ok(false);
                }
            }
        }
    }

    /// Removes our node.
    fn leave(&mut self) -> io::Result<Ending> {
        let path = format!("{}/{}", self.directory, self.node);
        let deleted = self.session()?.delete(&path)?;
        Ok(if deleted { Ending::Released } else { Ending::NotOurs })
    }

    /// The whole way of one claim, with a grant that is believed in until it is released.
    fn acquire(&mut self, name: &str, kind: Kind, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        let got = self.join(name, kind).and_then(|()| self.wait_for_turn(give_up));
        Ok(self.or_lost(got)?.then(Grant::default))
    }

    /// Keeps the session alive; false when it is lost.
    fn tend(&mut self) -> bool {
        let alive = self.session.as_mut().map_or(Ok(()), Session::tend);
        self.or_lost(alive).is_ok()
    }

    fn release(&mut self) -> io::Result<Ending> {
        let left = self.leave();
        self.or_lost(left)
    }
}

/// The number at the end of a node's name.
fn number(node: &str) -> u64 {
    node.rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or(u64::MAX)
}
