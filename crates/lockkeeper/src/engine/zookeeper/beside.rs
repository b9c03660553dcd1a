//! Locks of other libraries in the directory of a name, and whether they wait for ours.
//!
//! A claim of lockkeeper's waits for every contender before it, whoever made it. Others do not:
//! Curator passes over what has no `lock-` in its name, kazoo over what has no `__lock__`, and code
//! that compares names as texts takes its own for the first. Where such a contender stands beside a
//! claim of ours, it can hold beside it, and nothing but another layout or another primitive keeps
//! the two apart. Which it is can be said from the names alone; the pairs are in docs/migrating.md.

use std::collections::HashMap;
use std::time::Duration;

use super::errors::advice;
use super::layout::{Child, Layout, Tag};
use super::proto::{Code, Reply, Request};
use super::read::{ask, failed};
use super::record;
use super::session::Shared;
use super::state::{Fault, State, Ticket};
use super::{claims, path};
use crate::clock::Ticks;
use crate::engine::Event;
use crate::error::Result;
use crate::guarantee::Warning;
use crate::id::ClaimId;
use crate::name::{Kind, Name};

/// The stable word of these warnings.
const ID: &str = "other-layout";
/// For how long nothing is said again about a directory.
const AGAIN: Duration = Duration::from_secs(3_600);
/// How much is remembered of what was said (R13).
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
    fn of(child: &Child) -> Option<Self> {
        let prefix = child.prefix();
        let hex = |text: &str| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        Some(match (child.tag, child.library()) {
            (Tag::Lease | Tag::Permits(_), _) => return None,
            (Tag::Latch, _) => Self::CuratorLatch,
            (_, Some("kazoo")) => Self::Kazoo,
            (Tag::Write | Tag::Read | Tag::Upgradable, _) => Self::CuratorReadWrite,
            (_, Some(_)) => {
                let go = prefix.strip_prefix("_c_").and_then(|rest| rest.strip_suffix("-lock-"));
                if go.is_some_and(hex) { Self::Go } else { Self::CuratorMutex }
            }
            _ => {
                let session = prefix.strip_prefix("x-").and_then(|rest| rest.strip_suffix('-'));
                let digits = |text: &str| text.parse::<i64>().is_ok();
                if session.is_some_and(digits) { Self::WriteLock } else { Self::Unknown }
            }
        })
    }
}

/// What to know of a contender beside a claim that stands there as `ours`; nothing when it waits
/// for such a claim.
fn warning(layout: &Layout, kind: Kind, ours: Tag, child: &Child) -> Option<(Maker, Warning)> {
    let maker = Maker::of(child)?;
    let (name, layout_word) = (&child.name, layout.as_str());
    let another = |library: &str, word: &str| {
        format!(
            "the node {name} is {library}'s, which does not wait for nodes of \
             layout={layout_word}: it can hold beside this lock; give every URL of this name \
             layout={word}"
        )
    };
    let text_order = || {
        format!(
            "if the code that made the node {name} compares names as texts, it does not wait for \
             nodes of layout={layout_word}, and can hold beside this lock: {}",
            advice(name)
        )
    };
    let two_leaders = |library: &str, instead: &str| {
        format!(
            "the node {name} is {library}, and an election of layout={layout_word} does not stand \
             in its line: there can be two leaders; {instead}"
        )
    };
    let mutex_only = |library: &str| {
        format!(
            "the node {name} is of {library}, which does not wait for readers and writers: it can \
             hold beside this lock; take a mutex"
        )
    };
    let text = match (layout, kind) {
        // Its locks are refused beside others.
        (Layout::Plain { .. }, _) | (_, Kind::Semaphore | Kind::Latch) => return None,
        (Layout::Curator, Kind::Election) => match maker {
            Maker::CuratorLatch => return None,
            Maker::Kazoo => two_leaders("kazoo's", "give every URL of this name layout=kazoo"),
            Maker::CuratorMutex => two_leaders(
                "of Curator's LeaderSelector or mutex",
                "take a mutex (`lockkeeper run`), or let Curator take LeaderLatch",
            ),
            _ => return None,
        },
        (Layout::Kazoo, Kind::Election) if maker == Maker::CuratorLatch => {
            two_leaders("of Curator's LeaderLatch", "give every URL of this name layout=curator")
        }
        // An election of the same name is no lock.
        (_, Kind::Lock) if maker == Maker::CuratorLatch => return None,
        (Layout::Curator, _) => match (maker, ours) {
            (Maker::Kazoo, _) => another("kazoo", "kazoo"),
            (Maker::CuratorReadWrite, Tag::Lock) => format!(
                "the node {name} is of Curator's read-write lock, which does not wait for a mutex: \
                 it can hold beside this lock; take an rwlock, or let Curator take \
                 InterProcessMutex"
            ),
            (Maker::CuratorMutex, tag) if tag != Tag::Lock => mutex_only("Curator's mutex"),
            (Maker::WriteLock, tag) if tag != Tag::Lock => mutex_only("ZooKeeper's WriteLock"),
            (Maker::Unknown, _) => text_order(),
            _ => return None,
        },
        (Layout::Kazoo, _) => match maker {
            Maker::CuratorMutex | Maker::CuratorReadWrite | Maker::CuratorLatch => {
                another("Curator", "curator")
            }
            Maker::WriteLock => another("ZooKeeper's WriteLock", "curator"),
            Maker::Unknown => text_order(),
            Maker::Go | Maker::Kazoo => return None,
        },
    };
    Some((maker, Warning { id: ID, text }))
}

/// What was looked at, and what was said, and when.
#[derive(Default)]
pub(super) struct Beside(HashMap<(String, Option<Maker>), Ticks>);

impl Beside {
    /// Whether it was not noted within the hour; from now on it was.
    fn note(&mut self, now: Ticks, what: (String, Option<Maker>)) -> bool {
        self.0.retain(|_, at| now.since(*at) < AGAIN);
        if self.0.len() >= REMEMBERED_MAX {
            self.0.clear();
        }
        self.0.insert(what, now).is_none()
    }

    fn has(&self, now: Ticks, what: &(String, Option<Maker>)) -> bool {
        self.0.get(what).is_some_and(|at| now.since(*at) < AGAIN)
    }
}

impl State {
    /// The directory of a claim was listed: reads a contender that may not wait for it. Whose it
    /// is its data says: lockkeeper's own waits for everybody.
    pub(super) fn look_beside(&mut self, id: ClaimId, names: &[String]) {
        let Some(entry) = self.claims.get(&id).filter(|entry| !entry.is_gate()) else { return };
        let (dir, kind, now) = (&entry.dir, entry.claim.kind, self.clock.now());
        let ours = claims::tag_of(&self.options, &entry.claim);
        let suspect = names.iter().find_map(|name| {
            let child = Child::read(name)?;
            let (maker, _) = warning(&self.options.layout, kind, ours, &child)?;
            let path = format!("{dir}/{name}");
            let known = self.beside.has(now, &(dir.clone(), Some(maker)))
                || self.beside.has(now, &(path.clone(), None));
            (!known).then_some((path, child))
        });
        if let Some((path, child)) = suspect {
            self.beside.note(now, (path.clone(), None));
            let ticket = Ticket::Claim(id, claims::Step::Beside(child.name));
            self.send(&Request::GetData { path, watch: false }, ticket);
        }
    }

    /// Such a contender was read.
    pub(super) fn seen_beside(&mut self, id: ClaimId, name: &str, result: Result<Reply, Code>) {
        let Some(entry) = self.claims.get(&id) else { return };
        let Ok(Reply::Data(data, stat)) = result else { return };
        if stat.is_directory() || record::is_ours(&data) {
            return;
        }
        let (kind, ours) = (entry.claim.kind, claims::tag_of(&self.options, &entry.claim));
        let told =
            Child::read(name).and_then(|child| warning(&self.options.layout, kind, ours, &child));
        let Some((maker, warning)) = told else { return };
        let (dir, name, now) = (entry.dir.clone(), entry.claim.name.clone(), self.clock.now());
        if self.beside.note(now, (dir, Some(maker))) {
            self.outbox.events.push(Event::Warned { kind, name, warning });
        }
    }
}

/// See [`Engine::other_layouts`](crate::engine::Engine::other_layouts): what waits for neither a
/// mutex nor a read-write lock of ours.
pub(super) async fn look(shared: &Shared, name: &Name) -> Result<Vec<Warning>> {
    let layout = &shared.options.layout;
    let dir = path::of_kind(&shared.options, Kind::Lock, name)?;
    let names = match ask(shared, Request::GetChildren { path: dir.clone() }).await {
        Ok(Reply::Children(names)) => names,
        Ok(_) | Err(Fault::Code(Code::NO_NODE)) => return Ok(Vec::new()),
        Err(fault) => return Err(failed(shared, fault, &dir)),
    };
    let about = |ours, child: &Child| warning(layout, Kind::Lock, ours, child);
    let suspects = names.iter().filter_map(|name| {
        let child = Child::read(name)?;
        about(Tag::Write, &child)?;
        Some((about(Tag::Lock, &child)?, name))
    });
    let (mut told, mut makers) = (Vec::new(), Vec::new());
    for ((maker, warning), name) in suspects.take(READ_MAX) {
        if makers.contains(&maker) {
            continue;
        }
        let path = format!("{dir}/{name}");
        match ask(shared, Request::GetData { path: path.clone(), watch: false }).await {
            Ok(Reply::Data(data, stat)) if !stat.is_directory() && !record::is_ours(&data) => {
                makers.push(maker);
                told.push(warning);
            }
            Ok(_) | Err(Fault::Code(_)) => {}
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
    }
    Ok(told)
}
