//! A model of the ensemble, for searches over the recipe: one directory, its transactions, and the
//! server of each client.
//!
//! Writes are decided by the leader, in one order, and answered by the client's own server once it
//! has come so far. Reads are answered from what that server has applied, and may be older than
//! what others were told. A test compares the answers and the news of watches with those of a real
//! server, call by call (`claims/compared.rs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::engine::zookeeper::layout::{Child, write_seq};
use crate::engine::zookeeper::proto::Code;
use crate::engine::zookeeper::recipe::{Action, Input, Listing, Node, OwnSeen, Seen};

/// Which of a client's nodes is to be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::zookeeper) enum Part {
    Own,
    Writer,
    Reader { upgradable: bool },
}

/// What a client brings along: how its nodes are called up to their number, and the limit that it
/// believes in.
pub(in crate::engine::zookeeper) struct Who<'a> {
    pub(in crate::engine::zookeeper) at: usize,
    pub(in crate::engine::zookeeper) prefix: &'a dyn Fn(Part) -> String,
    pub(in crate::engine::zookeeper) limit: Option<u16>,
}

/// What is kept of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stored {
    owner: usize,
    czxid: i64,
    mzxid: i64,
}

/// The directory, as one server knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Directory {
    nodes: BTreeMap<String, Stored>,
    mzxid: i64,
    version: i32,
    limit: Option<u16>,
}

/// A transaction, as servers learn of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Change {
    Created(String, Stored),
    Deleted(String),
    /// Nodes and the directory were changed without changing what they say.
    Numbered(Vec<String>, i64),
    Limit(u16, i64),
    /// The session of this client is over; its nodes go at once, and are told in any order.
    Ended {
        who: usize,
        backwards: bool,
    },
}

impl Directory {
    /// Carries it out; answers which nodes it changed (the directory is the one without a name) and
    /// whether they are gone.
    fn apply(&mut self, change: &Change) -> (Vec<String>, bool) {
        match change {
            Change::Created(name, stored) => {
                self.nodes.insert(name.clone(), stored.clone());
                (Vec::new(), false)
            }
            Change::Deleted(name) => {
                self.nodes.remove(name);
                (vec![name.clone()], true)
            }
            Change::Numbered(names, zxid) => {
                for name in names {
                    self.nodes.entry(name.clone()).and_modify(|stored| stored.mzxid = *zxid);
                }
                (self.mzxid, self.version) = (*zxid, self.version + 1);
                (names.iter().cloned().chain([String::new()]).collect(), false)
            }
            Change::Limit(limit, zxid) => {
                (self.limit, self.mzxid, self.version) = (Some(*limit), *zxid, self.version + 1);
                (vec![String::new()], false)
            }
            Change::Ended { who, backwards } => {
                let mut names: Vec<String> = self
                    .nodes
                    .iter()
                    .filter(|(_, s)| s.owner == *who)
                    .map(|(n, _)| n.clone())
                    .collect();
                if *backwards {
                    names.reverse();
                }
                self.nodes.retain(|_, stored| stored.owner != *who);
                (names, true)
            }
        }
    }

    fn seen(&self, name: &str) -> Seen {
        self.nodes.get(name).map_or(Seen::Gone, |s| Seen::Here(s.mzxid))
    }
}

/// Where a server has come to that is behind its leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Behind {
    directory: Directory,
    to_come: VecDeque<Change>,
}

/// The server that a client is connected to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    behind: Option<Behind>,
    watches: BTreeSet<String>,
    /// Of the directory's data, when the client read it last.
    version_read: i32,
    /// The client asks it to catch up before it asks anything else.
    synced_first: bool,
    /// Where another server may still be, while no answer about a later write has come.
    elsewhere: Option<Behind>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine::zookeeper) struct Model {
    leader: Directory,
    zxid: i64,
    next_seq: i32,
    servers: Vec<Server>,
    /// Servers learn of what others do only later.
    lags: bool,
    /// After a lost link the client goes on without asking its new server to catch up.
    unsynced: bool,
    /// News of watches that are not handed over yet.
    told: Vec<(usize, Input)>,
}

impl Model {
    pub(in crate::engine::zookeeper) fn new(clients: usize, next_seq: i32) -> Self {
        Self {
            leader: Directory { nodes: BTreeMap::new(), mzxid: 1, version: 0, limit: None },
            zxid: 1,
            next_seq,
            servers: vec![Server::default(); clients],
            lags: false,
            unsynced: false,
            told: Vec::new(),
        }
    }

    pub(in crate::engine::zookeeper) fn with_lag(self) -> Self {
        Self { lags: true, ..self }
    }

    /// Plants a flaw: after a lost link nobody asks the new server to catch up.
    pub(in crate::engine::zookeeper) fn without_sync(self) -> Self {
        Self { unsynced: true, ..self }
    }

    /// The limit that is stored.
    pub(in crate::engine::zookeeper) fn limit(&self) -> Option<u16> {
        self.leader.limit
    }

    /// The nodes and whose they are.
    pub(in crate::engine::zookeeper) fn nodes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.leader.nodes.iter().map(|(name, stored)| (name.as_str(), stored.owner))
    }

    pub(in crate::engine::zookeeper) fn is_behind(&self, at: usize) -> bool {
        self.servers[at].behind.is_some()
    }

    /// Whether the client's server has not heard yet that its session is over.
    pub(in crate::engine::zookeeper) fn still_serves(&self, at: usize) -> bool {
        self.servers[at].behind.as_ref().is_some_and(|b| {
            b.to_come.iter().any(|change| matches!(change, Change::Ended { who, .. } if *who == at))
        })
    }

    /// News of watches since the last call, in their order.
    pub(in crate::engine::zookeeper) fn told(&mut self) -> Vec<(usize, Input)> {
        std::mem::take(&mut self.told)
    }

    fn commit(&mut self, change: Change) {
        for (at, server) in self.servers.iter_mut().enumerate() {
            if let Some(elsewhere) = &mut server.elsewhere {
                elsewhere.to_come.push_back(change.clone());
            }
            if server.synced_first {
                continue;
            }
            let behind = server.behind.get_or_insert_with(|| Behind {
                directory: self.leader.clone(),
                to_come: VecDeque::new(),
            });
            behind.to_come.push_back(change.clone());
            if !self.lags {
                Self::apply(at, server, &mut self.told);
            }
        }
        self.leader.apply(&change);
    }

    fn apply(at: usize, server: &mut Server, told: &mut Vec<(usize, Input)>) {
        let Some(behind) = &mut server.behind else { return };
        if let Some(change) = behind.to_come.pop_front() {
            let (names, deleted) = behind.directory.apply(&change);
            for name in names.into_iter().filter(|name| server.watches.remove(name)) {
                let news = if name.is_empty() {
                    Input::LimitChanged
                } else {
                    Input::Happened { name, deleted }
                };
                told.push((at, news));
            }
        }
        if behind.to_come.is_empty() {
            server.behind = None;
        }
    }

    /// A client's server learns of the next transaction.
    pub(in crate::engine::zookeeper) fn learn(&mut self, at: usize) {
        Self::apply(at, &mut self.servers[at], &mut self.told);
    }

    fn catch_up(&mut self, at: usize) {
        while self.is_behind(at) {
            self.learn(at);
        }
    }

    /// A client is connected, to a server that knows at least what the client was told: with a new
    /// session, which is a transaction itself, or with the one that it had.
    pub(in crate::engine::zookeeper) fn connect(&mut self, at: usize, same_session: bool) {
        let server = &mut self.servers[at];
        server.synced_first = same_session && !self.unsynced;
        let elsewhere = server.elsewhere.take();
        server.behind = elsewhere.filter(|behind| same_session && !behind.to_come.is_empty());
    }

    pub(in crate::engine::zookeeper) fn disconnect(&mut self, at: usize) {
        let server = &mut self.servers[at];
        let elsewhere =
            server.elsewhere.take().or_else(|| server.behind.take().filter(|_| self.unsynced));
        *server = Server {
            synced_first: true,
            elsewhere,
            version_read: server.version_read,
            ..Server::default()
        };
    }

    /// A client read an answer: it goes to no server any more that is behind that.
    pub(in crate::engine::zookeeper) fn heard(&mut self, at: usize) {
        self.servers[at].elsewhere = None;
    }

    /// A client's session is over; it is not told.
    pub(in crate::engine::zookeeper) fn end(&mut self, at: usize, backwards: bool) {
        self.zxid += 1;
        self.commit(Change::Ended { who: at, backwards });
    }

    /// Whether it is answered by the quorum, and not by the client's server alone.
    pub(in crate::engine::zookeeper) fn is_write(action: &Action) -> bool {
        use Action::{
            Create, CreateLease, CreateReader, CreateWriter, Delete, Discard, Guard, Number, Prove,
            StoreLimit,
        };
        matches!(
            action,
            Create
                | CreateLease
                | CreateWriter
                | CreateReader { .. }
                | Guard { .. }
                | StoreLimit
                | Delete(_)
                | Discard(_)
                | Number { .. }
                | Prove
        )
    }

    /// Carries out one request.
    pub(in crate::engine::zookeeper) fn serve(
        &mut self,
        who: &Who<'_>,
        action: &Action,
    ) -> Option<Input> {
        if std::mem::take(&mut self.servers[who.at].synced_first) {
            self.servers[who.at].elsewhere = None;
        }
        // A proof of the session says nothing about the directory.
        if Self::is_write(action) && *action != Action::Prove {
            self.write(who, action)
        } else {
            self.read(who, action)
        }
    }

    fn create(&mut self, at: usize, name: &str) -> i64 {
        self.zxid += 1;
        self.next_seq = self.next_seq.wrapping_add(1);
        self.commit(Change::Created(
            name.to_owned(),
            Stored { owner: at, czxid: self.zxid, mzxid: self.zxid },
        ));
        self.zxid
    }

    fn delete(&mut self, name: &str) -> Result<(), Code> {
        if !self.leader.nodes.contains_key(name) {
            return Err(Code::NO_NODE);
        }
        self.zxid += 1;
        self.commit(Change::Deleted(name.to_owned()));
        Ok(())
    }

    fn write(&mut self, who: &Who<'_>, action: &Action) -> Option<Input> {
        let at = who.at;
        let server = &mut self.servers[at];
        if self.unsynced && server.elsewhere.is_none() {
            let here = || Behind { directory: self.leader.clone(), to_come: VecDeque::new() };
            server.elsewhere = Some(server.behind.clone().unwrap_or_else(here));
        }
        let answer = match action {
            Action::Create | Action::CreateWriter => {
                let part = if *action == Action::Create { Part::Own } else { Part::Writer };
                let seq = self.next_seq;
                let name = (who.prefix)(part) + &write_seq(seq);
                let czxid = self.create(at, &name);
                Some(Input::Created(Ok(Node::new(name, seq, Some(czxid)))))
            }
            // It takes a gate, which no world has.
            Action::CreateLease => Some(Input::Created(Err(Code::NO_NODE))),
            Action::CreateReader { seq, upgradable } => {
                let name =
                    (who.prefix)(Part::Reader { upgradable: *upgradable }) + &write_seq(*seq);
                if !self.leader.nodes.contains_key(&name) {
                    self.create(at, &name);
                }
                Some(Input::Made(Ok(Node::new(name, *seq, None))))
            }
            Action::Guard { node, behind } => {
                let gone =
                    behind.iter().find(|name| !self.leader.nodes.contains_key(*name)).cloned();
                let made = match (&gone, self.leader.nodes.contains_key(node)) {
                    (Some(_), _) => Err(Code::NO_NODE),
                    (None, true) => Err(Code::NODE_EXISTS),
                    (None, false) => {
                        self.create(at, node);
                        Ok(())
                    }
                };
                Some(Input::Guarded(made, gone))
            }
            Action::Delete(name) => Some(Input::Deleted(name.clone(), self.delete(name))),
            Action::Discard(name) => {
                _ = self.delete(name);
                None
            }
            Action::Number { node, before } => {
                let names: Vec<String> =
                    [Some(node), before.as_ref()].into_iter().flatten().cloned().collect();
                Some(Input::Numbered(
                    if names.iter().all(|name| self.leader.nodes.contains_key(name)) {
                        self.zxid += 1;
                        self.commit(Change::Numbered(names, self.zxid));
                        Ok(self.zxid)
                    } else {
                        Err(Code::NO_NODE)
                    },
                ))
            }
            Action::StoreLimit => {
                let fresh = self.servers[at].version_read == self.leader.version;
                Some(Input::LimitStored(match who.limit.filter(|_| fresh) {
                    Some(limit) => {
                        self.zxid += 1;
                        self.commit(Change::Limit(limit, self.zxid));
                        Ok(())
                    }
                    None => Err(Code::BAD_VERSION),
                }))
            }
            _ => None,
        };
        self.catch_up(at);
        answer
    }

    fn read(&mut self, who: &Who<'_>, action: &Action) -> Option<Input> {
        let server = &mut self.servers[who.at];
        let directory = server.behind.as_ref().map_or(&self.leader, |behind| &behind.directory);
        let mut watch = |name: &str| {
            let there = directory.nodes.contains_key(name);
            if there {
                server.watches.insert(name.to_owned());
            }
            there
        };
        Some(match action {
            Action::List => {
                if who.limit.is_some() {
                    server.watches.insert(String::new());
                    server.version_read = directory.version;
                }
                let children =
                    directory.nodes.keys().filter_map(|name| Child::read(name)).collect();
                let limit = directory.limit.filter(|_| who.limit.is_some());
                Input::Listed(Ok(Listing { children, mzxid: directory.mzxid, limit }))
            }
            Action::WatchOwn(name) => {
                watch(name);
                let seen = directory.nodes.get(name).map(|s| OwnSeen {
                    czxid: s.czxid,
                    ours: s.owner == who.at,
                    asked: false,
                });
                Input::Own(name.clone(), seen.ok_or(Code::NO_NODE))
            }
            Action::Watch(name) => {
                watch(name);
                Input::Watched(name.clone(), directory.seen(name))
            }
            Action::Whose(name) => {
                Input::Whose { name: name.clone(), seen: directory.seen(name), ours: true }
            }
            Action::Peek(name) => Input::Peeked(name.clone(), directory.seen(name)),
            Action::Find { writer } => {
                let prefix = (who.prefix)(if *writer { Part::Writer } else { Part::Own });
                let ours = directory
                    .nodes
                    .iter()
                    .filter(|(name, s)| s.owner == who.at && name.starts_with(&prefix));
                Input::Found(Ok(ours.filter_map(|(name, _)| Child::read(name)).collect()))
            }
            Action::Prove => Input::Proven,
            _ => return None,
        })
    }
}
