//! Locks of other libraries in the directory of a name, and whether they wait for ours.
//!
//! A lock of lockkeeper's waits for every contender before it, whoever made that. Others do not:
//! Curator passes over what has no `lock-` in its name, kazoo over what has no `__lock__`, and code
//! that compares names as texts takes its own for the first. Where such a contender stands beside a
//! claim of ours, it can hold beside it, and nothing but another layout or another primitive keeps
//! the two apart. The pairs are in docs/migrating.md.
//!
//! A list says who may have made a contender. The ids of lockkeeper's nodes are random throughout,
//! those of Curator and kazoo are UUIDs of version 4: 63 of 64 nodes of ours are told from theirs
//! by the name, and the others by their data.

use std::collections::VecDeque;
use std::time::Duration;

use super::errors::advice;
use super::inspect::{ask, failed};
use super::layout::{Child, Layout, Tag};
use super::proto::{Code, Reply, Request};
use super::record;
use super::session::Shared;
use super::state::{Fault, State, Ticket};
use super::{claims, name};
use crate::engine::Event;
use crate::words::clock::Ticks;
use crate::words::error::Result;
use crate::words::guarantee::Warning;
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// The stable word of these warnings.
const ID: &str = "other-layout";
/// For how long nothing is said again about a directory.
const AGAIN: Duration = Duration::from_secs(3_600);
/// How much is remembered of what was read, and of what was said (R13).
const REMEMBERED_MAX: usize = 1_024;
/// How many children are read for one look.
const READ_MAX: usize = 8;

/// Who writes contenders of such names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Maker {
    /// Curator's mutex, or its LeaderSelector.
    CuratorMutex,
    /// Curator's read-write lock.
    CuratorReadWrite,
    /// Curator's LeaderLatch.
    CuratorLatch,
    /// go-zookeeper, which reads the number at the end of any name but a prefix of its own.
    Go,
    Kazoo,
    /// ZooKeeper's own WriteLock, which reads what stands behind the last dash.
    WriteLock,
    /// Anything else.
    Unknown,
}

impl Maker {
    /// `None` for a child that stands in no line of locks or candidates.
    fn of(name: &str) -> Option<Self> {
        if !name.ends_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        if name.contains("__lock__") || name.contains("__rlock__") {
            return Some(Self::Kazoo);
        }
        let Some(rest) = name.strip_prefix("_c_") else {
            let child = Child::read(name)?;
            if matches!(child.tag, Tag::Lease | Tag::Permits(_)) {
                return None;
            }
            let session = child.prefix().strip_prefix("x-").and_then(|rest| rest.strip_suffix('-'));
            let is_one = session.is_some_and(|session| session.parse::<i64>().is_ok());
            return Some(if is_one { Self::WriteLock } else { Self::Unknown });
        };
        let after_hex = rest.trim_start_matches(|c: char| c.is_ascii_hexdigit());
        if rest.contains("__WRIT__") || rest.contains("__READ__") {
            Some(Self::CuratorReadWrite)
        } else if rest.contains("-latch-") {
            Some(Self::CuratorLatch)
        } else if rest.contains("-lease-") {
            None
        } else if after_hex.starts_with("-lock-") && rest.len() - after_hex.len() == 32 {
            Some(Self::Go)
        } else {
            Some(Self::CuratorMutex)
        }
    }

    /// Whether the name can be that library's, and not only ours: its id is a UUID of version 4.
    fn has_its_id(self, name: &str) -> bool {
        let is_4 = |id: &str, version: usize, variant: usize| {
            let at = |at: usize| id.as_bytes().get(at).copied();
            at(version) == Some(b'4') && matches!(at(variant), Some(b'8' | b'9' | b'a' | b'b'))
        };
        match self {
            Self::Kazoo => is_4(name, 12, 16),
            Self::CuratorMutex | Self::CuratorReadWrite | Self::CuratorLatch => {
                is_4(name.strip_prefix("_c_").unwrap_or(name), 14, 19)
            }
            Self::Go | Self::WriteLock | Self::Unknown => true,
        }
    }

    /// Whether it waits for a claim that stands there as `ours`, as far as is known.
    fn waits(self, layout: &Layout, kind: Kind, ours: Tag) -> bool {
        match (layout, kind, self) {
            // Locks of the layout plain are refused beside others.
            (Layout::Plain { .. }, ..) | (_, Kind::Semaphore | Kind::Latch, _) => true,
            (Layout::Curator, Kind::Election, maker) => {
                matches!(maker, Self::CuratorLatch | Self::CuratorReadWrite)
            }
            (Layout::Kazoo, Kind::Election, Self::CuratorLatch) => false,
            // An election of the same name is no lock.
            (_, Kind::Lock, Self::CuratorLatch) => true,
            (Layout::Curator, _, Self::CuratorMutex | Self::WriteLock) => ours == Tag::Lock,
            (Layout::Curator, _, Self::CuratorReadWrite) => ours != Tag::Lock,
            (Layout::Curator, _, maker) => maker == Self::Go,
            (Layout::Kazoo, _, maker) => matches!(maker, Self::Go | Self::Kazoo),
        }
    }

    /// Whether this contender is to be read: its maker does not wait for a claim as ours.
    fn suspected(layout: &Layout, kind: Kind, ours: Tag, name: &str) -> Option<Self> {
        let maker = Self::of(name)?;
        // What a candidate's data says tells nobody whose it is.
        let may_be = kind == Kind::Election || maker.has_its_id(name);
        (may_be && !maker.waits(layout, kind, ours)).then_some(maker)
    }

    /// What to know of such a contender.
    fn warning(self, layout: &Layout, kind: Kind, name: &str) -> Warning {
        let ours = layout.as_str();
        let whose = match self {
            Self::CuratorMutex if kind == Kind::Election => {
                "of Curator's LeaderSelector, or of its mutex"
            }
            Self::CuratorMutex => "of Curator's mutex",
            Self::CuratorReadWrite => "of Curator's read-write lock",
            Self::CuratorLatch => "of Curator's LeaderLatch",
            Self::Go => "of go-zookeeper's lock",
            Self::Kazoo if kind == Kind::Election => {
                "kazoo's, or of a lockkeeper with layout=kazoo"
            }
            Self::Kazoo => "kazoo's",
            Self::WriteLock => "of ZooKeeper's WriteLock",
            Self::Unknown => {
                let text = format!(
                    "if the code that made the node {name} compares names as texts, it does not \
                     wait for nodes of layout={ours}, and can hold beside this lock; {}",
                    advice(name)
                );
                return Warning { id: ID, text };
            }
        };
        let (harm, advice) = match (kind, layout, self) {
            (Kind::Election, Layout::Curator, Self::Kazoo) => {
                ("two leaders", "give every URL of this name layout=kazoo")
            }
            (Kind::Election, Layout::Kazoo, Self::CuratorLatch) => {
                ("two leaders", "give every URL of this name layout=curator")
            }
            (Kind::Election, ..) => (
                "two leaders",
                "take a mutex with layout=curator (`lockkeeper run`), or let the other side take \
                 LeaderLatch with layout=curator",
            ),
            (_, Layout::Curator, Self::Kazoo) => {
                ("two holders", "give every URL of this name layout=kazoo")
            }
            (_, Layout::Curator, Self::CuratorReadWrite) => {
                ("two holders", "take an rwlock, or let Curator take InterProcessMutex")
            }
            (_, Layout::Curator, _) => ("two holders", "take a mutex"),
            _ => ("two holders", "give every URL of this name layout=curator"),
        };
        let text = format!(
            "the node {name} is {whose}, which does not wait for this one of layout={ours}: there \
             can be {harm}; {advice}"
        );
        Warning { id: ID, text }
    }
}

/// What was noted within the hour, the oldest first.
struct Noted<T>(VecDeque<(T, Ticks)>);

impl<T> Default for Noted<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: PartialEq> Noted<T> {
    fn forget_old(&mut self, now: Ticks) {
        while self.0.front().is_some_and(|(_, at)| now.since(*at) >= AGAIN) {
            self.0.pop_front();
        }
    }

    fn has(&self, what: &T) -> bool {
        self.0.iter().any(|(noted, _)| noted == what)
    }

    /// Answers whether it is news.
    fn note(&mut self, now: Ticks, what: T) -> bool {
        if self.has(&what) {
            return false;
        }
        if self.0.len() >= REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((what, now));
        true
    }
}

/// What is known of others' locks beside ours.
#[derive(Default)]
pub(super) struct Beside {
    /// Nodes that were read.
    read: Noted<String>,
    /// Directories, and whose locks there were told.
    told: Noted<(String, Maker)>,
}

impl State {
    /// The directory of a claim was listed: reads a contender that may not wait for it. Whether it
    /// is lockkeeper's, which waits for everybody, its data says.
    pub(super) fn look_beside(&mut self, id: ClaimId, names: &[String]) {
        let Some(entry) = self.claims.get(&id).filter(|entry| !entry.is_gate()) else { return };
        let (dir, kind, now) = (&entry.dir, entry.claim.kind, self.clock.now());
        let (layout, ours) = (&self.options.layout, claims::tag_of(&self.options, &entry.claim));
        self.beside.read.forget_old(now);
        self.beside.told.forget_old(now);
        let suspect = names.iter().find_map(|name| {
            let maker = Maker::suspected(layout, kind, ours, name)?;
            let path = format!("{dir}/{name}");
            let is_new =
                !self.beside.read.has(&path) && !self.beside.told.has(&(dir.clone(), maker));
            is_new.then(|| (path, name.clone()))
        });
        if let Some((path, name)) = suspect {
            let ticket = Ticket::Claim(id, claims::Step::Beside(name));
            self.send(&Request::GetData { path, watch: false }, ticket);
        }
    }

    /// Such a contender was read.
    pub(super) fn seen_beside(&mut self, id: ClaimId, node: &str, result: Result<Reply, Code>) {
        let Some(entry) = self.claims.get(&id) else { return };
        let Ok(Reply::Data(data, stat)) = result else { return };
        let (dir, kind, now) = (entry.dir.clone(), entry.claim.kind, self.clock.now());
        let (layout, ours) = (&self.options.layout, claims::tag_of(&self.options, &entry.claim));
        let name = entry.claim.name.clone();
        self.beside.read.note(now, format!("{dir}/{node}"));
        if stat.is_directory() || record::is_ours(&data) {
            return;
        }
        let Some(maker) = Maker::suspected(layout, kind, ours, node) else { return };
        if self.beside.told.note(now, (dir, maker)) {
            let warning = maker.warning(layout, kind, node);
            self.outbox.events.push(Event::Warned { kind, name, warning });
        }
    }
}

/// See [`Engine::other_layouts`](crate::engine::Engine::other_layouts): what waits for neither a
/// mutex nor a read-write lock of ours.
pub(super) async fn look(shared: &Shared, name: &Name) -> Result<Vec<Warning>> {
    let layout = &shared.options.layout;
    let dir = name::of_kind(&shared.options, Kind::Lock, name)?;
    let names = match ask(shared, Request::GetChildren { path: dir.clone() }).await {
        Ok(Reply::Children(names)) => names,
        Ok(_) | Err(Fault::Code(Code::NO_NODE)) => return Ok(Vec::new()),
        Err(fault) => return Err(failed(shared, fault, &dir)),
    };
    let suspects = names.iter().filter_map(|name| {
        Maker::suspected(layout, Kind::Lock, Tag::Write, name)?;
        Some((Maker::suspected(layout, Kind::Lock, Tag::Lock, name)?, name))
    });
    let (mut told, mut makers) = (Vec::new(), Vec::new());
    for (maker, name) in suspects.take(READ_MAX) {
        if makers.contains(&maker) {
            continue;
        }
        let path = format!("{dir}/{name}");
        match ask(shared, Request::GetData { path: path.clone(), watch: false }).await {
            Ok(Reply::Data(data, stat)) if !stat.is_directory() && !record::is_ours(&data) => {
                makers.push(maker);
                told.push(maker.warning(layout, Kind::Lock, name));
            }
            Ok(_) | Err(Fault::Code(_)) => {}
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c31_few_nodes_of_a_fleet_of_ours_are_read_although_mutexes_stand_beside_rw_locks() {
        for (layout, beside) in
            [(Layout::Curator, Layout::Curator), (Layout::Curator, Layout::Kazoo)]
        {
            let suspected = |n: u32| {
                // Any fixed numbers whose bits look random.
                let id = ClaimId(
                    u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
                );
                let name = beside.prefix(Tag::Write, id) + "0000000001";
                assert!(Maker::of(&name).is_some_and(|m| !m.waits(&layout, Kind::Lock, Tag::Lock)));
                Maker::suspected(&layout, Kind::Lock, Tag::Lock, &name).is_some()
            };
            let read = (0..6_400).filter(|n| suspected(*n)).count();
            assert!((50..200).contains(&read), "{read} of 6400, and 100 are expected");
        }
    }

    #[test]
    fn c31_what_was_said_is_forgotten_after_an_hour_or_when_1024_newer_ones_are_known() {
        let mut noted = Noted::default();
        let at = |seconds: u64| Ticks(seconds * 1_000_000_000);
        assert!(noted.note(at(0), 0) && !noted.note(at(1), 0));
        for n in 1..=REMEMBERED_MAX {
            assert!(noted.note(at(10), n));
        }
        assert!(!noted.has(&0) && noted.has(&1), "the oldest gave way, and no other");
        noted.forget_old(at(10 + 3_599));
        assert!(noted.has(&1));
        noted.forget_old(at(10 + 3_600));
        assert!(!noted.has(&1) && !noted.has(&REMEMBERED_MAX));
    }
}
