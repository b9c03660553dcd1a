//! What the broken locks say to ZooKeeper.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use lockkeeper_testkit::zookeeper::client::{Client, Kind, code, codes};

/// How long a connection waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// A session, with the connection that carries it.
pub(super) struct Session(Client);

/// An answer; none where the server answered this in its place.
fn unless<T>(answered: io::Result<T>, refusal: i32) -> io::Result<Option<T>> {
    match answered {
        Err(error) if code(&error) == Some(refusal) => Ok(None),
        answered => answered.map(Some),
    }
}

impl Session {
    /// A new session.
    pub(super) fn open(port: u16, timeout: Duration) -> io::Result<Self> {
        Client::open((Ipv4Addr::LOCALHOST, port), timeout, PATIENCE).map(Self)
    }

    /// Makes a node; answers its path, `None` when it is there already.
    pub(super) fn create(&mut self, path: &str, kind: Kind) -> io::Result<Option<String>> {
        unless(self.0.create(path, &[], kind), codes::EXISTS)
    }

    /// The children's names; `None` when the node is not there.
    pub(super) fn children(&mut self, path: &str, watch: bool) -> io::Result<Option<Vec<String>>> {
        let listed = if watch { self.0.watch_children(path) } else { self.0.children(path) };
        unless(listed, codes::NO_NODE)
    }

    /// Whether a node is there, and a watch on it.
    pub(super) fn exists(&mut self, path: &str) -> io::Result<bool> {
        self.0.watch_existence(path)
    }

    /// Removes a node; false when it was not there.
    pub(super) fn delete(&mut self, path: &str) -> io::Result<bool> {
        unless(self.0.delete(path), codes::NO_NODE).map(|deleted| deleted.is_some())
    }

    /// Waits until a watch has fired, for so long at most.
    pub(super) fn wait(&mut self, within: Duration) -> io::Result<bool> {
        self.0.wait_until(within, |events| !events.is_empty())
    }

    /// Waits until the watch on this path has fired: one of an earlier claim may still be set.
    pub(super) fn wait_for(&mut self, path: &str, within: Duration) -> io::Result<bool> {
        self.0.wait_until(within, |events| events.iter().any(|event| event == path))
    }

    /// Gives a sign of life, and hears whether the connection still is.
    pub(super) fn tend(&mut self) -> io::Result<()> {
        self.0.tend()
    }

    /// Events that come while nobody waits for one wake nobody.
    pub(super) fn hear_unlatched(&mut self) -> io::Result<()> {
        self.tend()?;
        self.0.forget_events();
        Ok(())
    }
}
