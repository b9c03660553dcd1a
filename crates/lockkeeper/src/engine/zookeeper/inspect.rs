//! Who holds and who waits, also where others wrote it.

use std::collections::BTreeSet;

use tokio::sync::oneshot;

use super::claims::contenders;
use super::errors;
use super::latch::Latch;
use super::layout::{Child, Layout, Tag};
use super::limit::Limit;
use super::name;
use super::options::Options;
use super::proto::{Code, Reply, Request, Stat};
use super::record;
use super::session::Shared;
use super::state::{Fault, Ticket};
use crate::engine::Query;
use crate::words::claim::{Entry, Holder, Mode};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// How many nodes are read in one message.
const READ_AT_ONCE: usize = 128;
/// How many directories a listing looks into.
const LISTED_MAX: usize = 65_536;

/// Lets the server catch up with its leader before it answers what is sent next, in the same
/// flight: whoever was told of a change and looks at it from another server must see it.
pub(super) fn catch_up(shared: &Shared) {
    let mut state = shared.lock();
    if state.up {
        let path = shared.options.root();
        state.send(&Request::Sync { path }, Ticket::Nobody);
    }
}

/// One request whose answer is waited for.
pub(super) async fn ask(shared: &Shared, request: Request) -> Result<Reply, Fault> {
    let answer = shared.lock().call(request);
    answered(shared, answer).await
}

async fn answered(
    shared: &Shared,
    answer: oneshot::Receiver<Result<Reply, Fault>>,
) -> Result<Reply, Fault> {
    shared.patience.within(answer).await.unwrap_or(Err(Fault::Lost))
}

/// A reading that failed.
pub(super) fn failed(shared: &Shared, fault: Fault, path: &str) -> Error {
    match fault {
        Fault::Code(code) => errors::refused(code, path),
        Fault::Told(error) => error,
        Fault::Lost | Fault::NotSent => shared.lock().unanswered(),
    }
}

/// See [`Engine::read`](crate::engine::Engine::read).
pub(super) async fn read(shared: &Shared, query: &Query) -> Result<Vec<Entry>> {
    match query {
        Query::One(kind, name) => {
            let dir = name::of_kind(&shared.options, *kind, name)?;
            let Some(found) = look(shared, &dir).await.map_err(|f| failed(shared, f, &dir))? else {
                return Ok(vec![Entry::new(*kind, name.clone())]);
            };
            if *kind == Kind::Latch {
                return Ok(vec![latch(shared, name.clone(), &found)?]);
            }
            let mut entry = entry(shared, *kind, name.clone(), &dir, &found).await?.0;
            if let Some(gate) = name::gate(&shared.options, *kind, &dir) {
                at_gate(shared, &gate, &mut entry).await?;
            }
            Ok(vec![entry])
        }
        Query::Prefix(prefix) => list(shared, prefix).await,
    }
}

/// One node with the names of its children.
struct Found {
    names: Vec<String>,
    data: Vec<u8>,
    stat: Stat,
}

async fn look(shared: &Shared, dir: &str) -> Result<Option<Found>, Fault> {
    catch_up(shared);
    let both = vec![
        Request::GetChildren { path: dir.to_owned() },
        Request::GetData { path: dir.to_owned(), watch: false },
    ];
    let replies = match ask(shared, Request::MultiRead(both)).await? {
        Reply::Many(replies) => replies,
        _ => Vec::new(),
    };
    let mut replies = replies.into_iter();
    match (replies.next(), replies.next()) {
        (Some(Ok(Reply::Children(names))), Some(Ok(Reply::Data(data, stat)))) => {
            Ok(Some(Found { names, data, stat }))
        }
        (Some(Err(code)), _) | (_, Some(Err(code))) if code != Code::NO_NODE => {
            Err(Fault::Code(code))
        }
        _ => Ok(None),
    }
}

fn latch(shared: &Shared, name: Name, found: &Found) -> Result<Entry> {
    let latch = Latch::read(&shared.options.layout, &found.data, &found.stat)
        .map_err(|error| error.name(&name))?;
    Ok(Entry { count: Some(latch.count()), ..Entry::new(Kind::Latch, name) })
}

/// A name whose record cannot be read, which says nothing about the others.
fn unreadable(kind: Kind, name: Name, error: Error) -> Entry {
    let mut entry = Entry::new(kind, name);
    entry.unreadable = Some(error.into());
    entry
}

/// Whether a child stands in a line of this kind.
fn kinds_of(layout: &Layout, names: &[String]) -> BTreeSet<Kind> {
    let kind = |child: Child| match child.tag {
        Tag::Latch if *layout == Layout::Curator => Kind::Election,
        Tag::Lease | Tag::Permits(_) => Kind::Semaphore,
        _ => Kind::Lock,
    };
    names.iter().filter_map(|name| Child::read(name)).map(kind).collect()
}

async fn list(shared: &Shared, prefix: &str) -> Result<Vec<Entry>> {
    let Shared { options, .. } = shared;
    let mut found = Vec::new();
    let mut open = vec![options.root()];
    let mut looked = 0;
    while let Some(dir) = open.pop() {
        looked += 1;
        if looked > LISTED_MAX {
            let text = format!(
                "more than {LISTED_MAX} nodes are below {}: list with a longer prefix",
                options.root()
            );
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let its_name = name::name_of(&options.chroot, &dir);
        let its_name = its_name.filter(|name| name.as_str().starts_with(prefix));
        let found_here = match (look(shared, &dir).await, &its_name) {
            (Ok(Some(found)), _) => found,
            (Ok(None), _) => continue,
            // A directory that this user may not list says nothing about the others.
            (Err(Fault::Code(Code::NO_AUTH)), Some(name)) => {
                let error = errors::refused(Code::NO_AUTH, &dir);
                found.push(unreadable(Kind::Lock, name.clone(), error));
                continue;
            }
            (Err(fault), _) => return Err(failed(shared, fault, &dir)),
        };
        let names = &found_here.names;
        let inside = dir.trim_end_matches('/');
        let mut deeper: Vec<String> = names
            .iter()
            .filter(|name| Child::read(name).is_none() || inside == options.chroot)
            .cloned()
            .collect();
        if let Some(name) = its_name {
            if found_here.data.starts_with(b"lockkeeper-latch/") {
                let latched = latch(shared, name.clone(), &found_here)
                    .unwrap_or_else(|error| unreadable(Kind::Latch, name.clone(), error));
                found.extend(Some(latched).filter(|latch| latch.count != Some(0)));
            }
            let mut kinds = kinds_of(&options.layout, names);
            let limit = Limit::read(options, &found_here.data, &found_here.stat);
            if limit.newer.is_some() || options.counts_leases() && limit.stored.is_some() {
                kinds.insert(Kind::Semaphore);
            }
            for kind in kinds {
                let mut name = name.clone();
                if kind == Kind::Semaphore && !options.counts_leases() {
                    let above = name
                        .as_str()
                        .strip_suffix("/permits")
                        .or_else(|| name.as_str().strip_suffix("/leases"));
                    match above.filter(|above| above.starts_with(prefix)).map(Name::new) {
                        Some(Ok(above)) => name = above,
                        _ => continue,
                    }
                }
                let (entry, directories) = entry(shared, kind, name, &dir, &found_here).await?;
                found.push(entry);
                deeper.extend(directories);
            }
        }
        let matters = |path: &String| {
            let name = path.get(options.chroot.len() + 1..).unwrap_or_default();
            (name.starts_with(prefix) || prefix.starts_with(name))
                && !(options.chroot.is_empty() && name == "zookeeper")
        };
        open.extend(deeper.into_iter().map(|name| format!("{inside}/{name}")).filter(matters));
    }
    found.retain(Entry::is_in_use);
    found.sort_by(|a, b| (a.name.as_str(), a.kind).cmp(&(b.name.as_str(), b.kind)));
    Ok(found)
}

/// What stands in one directory, and which children only look like contenders.
async fn entry(
    shared: &Shared,
    kind: Kind,
    name: Name,
    dir: &str,
    found: &Found,
) -> Result<(Entry, Vec<String>)> {
    let mut children = contenders(&shared.options, kind, &found.names)
        .map_err(|code| errors::refused(code, dir).name(&name))?;
    in_order(&mut children);
    let limit = Limit::read(&shared.options, &found.data, &found.stat);
    if let Some(newer) = limit.newer.filter(|_| kind == Kind::Semaphore) {
        return Ok((
            unreadable(kind, name, errors::refused(errors::newer_limit(newer), dir)),
            Vec::new(),
        ));
    }
    let mut entry = Entry::new(kind, name);
    let mut room = Room::new(&shared.options, kind, found);
    entry.limit = room.limit();
    let mut directories = Vec::new();
    let mut hint = None;
    for part in children.chunks(READ_AT_ONCE) {
        for seen in data_of(shared, dir, part).await? {
            if seen.is_directory() {
                directories.push(seen.child.name.clone());
                continue;
            }
            // The second node of an upgrade is nobody who waits: with nobody else beside it, it
            // holds alone.
            let claim = seen.claim();
            if claim.is_some()
                && let Some(at) = entry.holders.iter().position(|h| h.claim == claim)
            {
                if entry.holders.len() == 1
                    && let Some(holder) = entry.holders.get_mut(at)
                {
                    holder.mode = Some(Mode::Exclusive);
                }
                continue;
            }
            if kind == Kind::Lock && hint.is_none() {
                hint = errors::hint(&shared.options.layout, seen.child);
            }
            if room.holds(seen.child) {
                entry.holders.push(seen.holder(kind));
            } else {
                let ahead = u32::try_from(entry.waiters.len()).unwrap_or(u32::MAX);
                entry.waiters.push(record::waiter(seen.holder(kind), ahead));
            }
        }
    }
    if let (Some(hint), Some(holder)) = (hint, entry.holders.first_mut()) {
        holder.label =
            Some(holder.label.take().map_or(hint.clone(), |label| format!("{hint}; {label}")));
    }
    Ok((entry, directories))
}

/// Those who wait at a semaphore's gate. The first of them may wait among the permits already, or
/// have got its own.
async fn at_gate(shared: &Shared, gate: &str, entry: &mut Entry) -> Result<()> {
    let found = look(shared, gate).await.map_err(|fault| failed(shared, fault, gate))?;
    let Some(found) = found else { return Ok(()) };
    let mut children = contenders(&shared.options, Kind::Lock, &found.names)
        .map_err(|code| errors::refused(code, gate))?;
    in_order(&mut children);
    let seen = usize::from(!entry.waiters.is_empty()).min(children.len());
    for part in children.get(seen..).unwrap_or_default().chunks(READ_AT_ONCE) {
        for seen in data_of(shared, gate, part).await? {
            let claim = seen.claim();
            if claim.is_some() && entry.holders.iter().any(|h| h.claim == claim) {
                continue;
            }
            let ahead = u32::try_from(entry.waiters.len()).unwrap_or(u32::MAX);
            entry.waiters.push(record::waiter(seen.holder(Kind::Semaphore), ahead));
        }
    }
    Ok(())
}

/// A contender's node, as far as this user may read it.
struct Seen<'a> {
    child: &'a Child,
    data: Option<Vec<u8>>,
    /// Newer servers tell not even this to whoever may not read the data.
    stat: Option<Stat>,
}

impl Seen<'_> {
    fn is_directory(&self) -> bool {
        self.stat.is_some_and(|stat| stat.is_directory())
    }

    fn claim(&self) -> Option<ClaimId> {
        record::Record::read(self.data.as_deref()?).claim
    }

    fn holder(&self, kind: Kind) -> Holder {
        match (&self.data, &self.stat) {
            (Some(data), Some(stat)) => record::holder(kind, self.child, data, stat),
            (_, stat) => record::unread(kind, self.child, stat.as_ref()),
        }
    }
}

/// The data of many nodes, in one message; those that went away in between are left out. Those
/// that may not be read are there (N1).
async fn data_of<'a>(shared: &Shared, dir: &str, children: &'a [Child]) -> Result<Vec<Seen<'a>>> {
    let path = |child: &Child| format!("{dir}/{}", child.name);
    let reads = children.iter().map(|c| Request::GetData { path: path(c), watch: false });
    let replies = match ask(shared, Request::MultiRead(reads.collect())).await {
        Ok(Reply::Many(replies)) => replies,
        Ok(_) => Vec::new(),
        Err(fault) => return Err(failed(shared, fault, dir)),
    };
    // All at once: one round trip, however many may not be read.
    let mut there = {
        let mut state = shared.lock();
        let unread = children.iter().zip(&replies);
        let unread = unread.filter(|(_, reply)| matches!(reply, Err(Code::NO_AUTH)));
        let asked = unread
            .map(|(child, _)| state.call(Request::Exists { path: path(child), watch: false }));
        asked.collect::<Vec<_>>().into_iter()
    };
    let mut seen = Vec::with_capacity(children.len());
    for (child, reply) in children.iter().zip(replies) {
        let (data, stat) = match reply {
            Ok(Reply::Data(data, stat)) => (Some(data), Some(stat)),
            Err(Code::NO_AUTH) => {
                let Some(answer) = there.next() else { continue };
                match answered(shared, answer).await {
                    Ok(Reply::Stat(stat)) => (None, Some(stat)),
                    Err(Fault::Code(Code::NO_AUTH)) => (None, None),
                    Ok(_) | Err(Fault::Code(Code::NO_NODE)) => continue,
                    Err(fault) => return Err(failed(shared, fault, &path(child))),
                }
            }
            _ => continue,
        };
        seen.push(Seen { child, data, stat });
    }
    Ok(seen)
}

/// The paths of the holders' nodes, and who stands there.
pub(super) async fn holding(
    shared: &Shared,
    kind: Kind,
    name: &Name,
) -> Result<Vec<(String, Holder)>> {
    let dir = name::of_kind(&shared.options, kind, name)?;
    let found = look(shared, &dir).await.map_err(|fault| failed(shared, fault, &dir))?;
    let Some(found) = found else { return Ok(Vec::new()) };
    let mut children = contenders(&shared.options, kind, &found.names)
        .map_err(|code| errors::refused(code, &dir).name(name))?;
    in_order(&mut children);
    let holding = data_of(shared, &dir, children.get(..READ_AT_ONCE).unwrap_or(&children)).await?;
    let stranger =
        holding.iter().find(|seen| seen.child.tag == Tag::OtherPrefix && !seen.is_directory());
    if let Some(Seen { child, .. }) = stranger {
        // The first by number need not be the holder: those who wrote it go by the order of texts.
        return Err(errors::other_prefix(&shared.options.layout, &dir, &child.name).name(name));
    }
    let mut room = Room::new(&shared.options, kind, &found);
    let holding = holding.into_iter().filter(|seen| !seen.is_directory());
    let who = |seen: Seen<'_>| (format!("{dir}/{}", seen.child.name), seen.holder(kind));
    Ok(holding.take_while(|seen| room.holds(seen.child)).map(who).collect())
}

/// Takes a name away from these holders, or from whoever holds it: deletes their nodes, whose names
/// nobody gets again. Answers whether there were any.
pub(super) async fn force(
    shared: &Shared,
    kind: Kind,
    name: &Name,
    from: &[Holder],
) -> Result<bool> {
    let mut taken = false;
    for (path, holder) in holding(shared, kind, name).await? {
        // A label also says what else was seen in the directory; a transaction made one node.
        let is_it = |shown: &Holder| {
            shown.is_same_hold(&holder)
                || shown.claim == holder.claim
                    && shown.token.is_some()
                    && shown.token == holder.token
        };
        if !from.is_empty() && !from.iter().any(is_it) {
            continue;
        }
        match ask(shared, Request::Delete { path: path.clone(), version: -1 }).await {
            Ok(_) => taken = true,
            Err(Fault::Code(Code::NO_NODE)) => {}
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
    }
    Ok(taken)
}

/// Who of a line holds, asked from its head on.
enum Room {
    /// The first, and with a reader those that read behind it.
    Lock { readers_so_far: Option<bool> },
    /// As long as there are permits; nobody knows how many where no limit is stored.
    Permits { limit: Option<u16>, taken: u32 },
}

impl Room {
    fn new(options: &Options, kind: Kind, found: &Found) -> Self {
        if kind == Kind::Semaphore {
            Self::Permits { limit: Limit::read(options, &found.data, &found.stat).stored, taken: 0 }
        } else {
            Self::Lock { readers_so_far: None }
        }
    }

    fn limit(&self) -> Option<u16> {
        if let Self::Permits { limit, .. } = self { *limit } else { None }
    }

    fn holds(&mut self, child: &Child) -> bool {
        match self {
            Self::Lock { readers_so_far } => {
                let reads = child.tag.is_shared();
                let holds = readers_so_far.is_none_or(|all| all && reads);
                *readers_so_far = Some(readers_so_far.unwrap_or(true) && reads);
                holds
            }
            Self::Permits { limit, taken } => {
                *taken += child.tag.weight();
                limit.is_none_or(|limit| *taken <= u32::from(limit))
            }
        }
    }
}

/// Sorts contenders as they stand in line.
fn in_order(children: &mut [Child]) {
    let first = children
        .iter()
        .map(|c| c.seq)
        .reduce(|a, b| if b.wrapping_sub(a) < 0 { b } else { a })
        .unwrap_or(0);
    children.sort_unstable_by_key(|c| (c.seq.wrapping_sub(first), c.tag));
}
