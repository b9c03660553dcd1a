//! What the broken locks say to ZooKeeper.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use lockkeeper_testkit::zookeeper::jute::{Answer, Body, Connection, xid};
use lockkeeper_testkit::zookeeper::proxy::op;

/// How long a connection waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;

/// How a node is made.
#[derive(Clone, Copy)]
pub(super) enum Node {
    Persistent = 0,
    EphemeralSequential = 3,
    Container = 4,
}

/// A session, with the connection that carries it.
pub(super) struct Session {
    connection: Connection,
    /// Paths of watches that fired.
    events: VecDeque<String>,
}

impl Session {
    /// A new session.
    pub(super) fn open(port: u16, timeout: Duration) -> io::Result<Self> {
        let connection = Connection::open(([127, 0, 0, 1], port).into(), timeout, PATIENCE)?;
        Ok(Self { connection, events: VecDeque::new() })
    }

    /// Makes a node; answers its path, `None` when it is there already.
    pub(super) fn create(&mut self, path: &str, node: Node) -> io::Result<Option<String>> {
        let operation =
            if matches!(node, Node::Container) { op::CREATE_CONTAINER } else { op::CREATE_PLAIN };
        match self.ask(operation, &Body::create(path, &[], node as i32))? {
            (0, answer) => answer.body().text().map(Some),
            (NODE_EXISTS, _) => Ok(None),
            (error, _) => Err(refused(error)),
        }
    }

    /// The children's names; `None` when the node is not there.
    pub(super) fn children(&mut self, path: &str, watch: bool) -> io::Result<Option<Vec<String>>> {
        match self.ask(op::GET_CHILDREN, &Body::of(path).flag(watch))? {
            (0, answer) => answer.body().texts().map(Some),
            (NO_NODE, _) => Ok(None),
            (error, _) => Err(refused(error)),
        }
    }

    /// Whether a node is there, and a watch on it.
    pub(super) fn exists(&mut self, path: &str) -> io::Result<bool> {
        self.done(op::EXISTS, &Body::of(path).flag(true))
    }

    /// Removes a node; false when it was not there.
    pub(super) fn delete(&mut self, path: &str) -> io::Result<bool> {
        self.done(op::DELETE, &Body::of(path).int(-1))
    }

    /// Waits until a watch has fired, for so long at most.
    pub(super) fn wait(&mut self, within: Duration) -> io::Result<bool> {
        self.wait_until(within, |events| !events.is_empty())
    }

    /// Waits until the watch on this path has fired: one of an earlier claim may still be set.
    pub(super) fn wait_for(&mut self, path: &str, within: Duration) -> io::Result<bool> {
        self.wait_until(within, |events| events.iter().any(|event| event == path))
    }

    fn wait_until(
        &mut self,
        within: Duration,
        so: impl Fn(&VecDeque<String>) -> bool,
    ) -> io::Result<bool> {
        let until = Instant::now() + within;
        while !so(&self.events) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.alive()?;
            self.listen(left.min(self.connection.timeout / 6))?;
        }
        self.events.clear();
        Ok(true)
    }

    /// Gives a sign of life, and hears whether the connection still is.
    pub(super) fn tend(&mut self) -> io::Result<()> {
        self.alive()?;
        self.listen(Duration::from_millis(1))
    }

    /// Events that come while nobody waits for one wake nobody.
    pub(super) fn hear_unlatched(&mut self) -> io::Result<()> {
        self.tend()?;
        self.events.clear();
        Ok(())
    }

    /// A sign of life, if it is time for one.
    fn alive(&mut self) -> io::Result<()> {
        if self.connection.last_sent.elapsed() > self.connection.timeout / 4 {
            self.connection.request_as(xid::PING, op::PING, &Body::default())?;
        }
        Ok(())
    }

    /// Takes in what comes in that time.
    fn listen(&mut self, within: Duration) -> io::Result<()> {
        if self.connection.comes_within(within)? {
            let answer = self.connection.answer()?;
            self.unasked(&answer)?;
        }
        Ok(())
    }

    /// An event of a watch, or the answer to a ping.
    fn unasked(&mut self, answer: &Answer) -> io::Result<()> {
        if answer.xid()? == xid::EVENT {
            let mut event = answer.body();
            // What happened, and the state of the session.
            event.skip(8)?;
            self.events.push_back(event.text()?);
        }
        Ok(())
    }

    /// Whether it was done; false when the node was not there.
    fn done(&mut self, operation: i32, body: &Body) -> io::Result<bool> {
        match self.ask(operation, body)? {
            (0, _) => Ok(true),
            (NO_NODE, _) => Ok(false),
            (error, _) => Err(refused(error)),
        }
    }

    fn ask(&mut self, operation: i32, body: &Body) -> io::Result<(i32, Answer)> {
        let asked = self.connection.request(operation, body)?;
        loop {
            let answer = self.connection.answer()?;
            if answer.xid()? == asked {
                return Ok((answer.code()?, answer));
            }
            self.unasked(&answer)?;
        }
    }
}

fn refused(error: i32) -> io::Error {
    io::Error::other(format!("ZooKeeper answered error {error}"))
}
