//! What a claim's machine decides, done: one request, or the few that make a directory or take a
//! number.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::{Build, Step};
use crate::engine::zookeeper::layout::{Layout, Tag, write_seq};
use crate::engine::zookeeper::options::Options;
use crate::engine::zookeeper::proto::{Code, Create, Reply, Request};
use crate::engine::zookeeper::recipe::{Action, Input, Node};
use crate::engine::zookeeper::state::{State, Ticket};
use crate::engine::zookeeper::{errors, limit};
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;
use crate::words::name::Kind;

/// Within which time a hold's own node is watched: what is given back before that costs no watch,
/// and no event.
const WATCH_WITHIN: Duration = Duration::from_millis(5);

/// The longest pause before a number is asked for again is twice this, and doubles with each try.
const PAUSE_MS: u128 = 10;

/// A number that is to be asked for once more.
pub(in super::super) struct Renumber {
    at: Ticks,
    id: ClaimId,
    nodes: Vec<String>,
    tries: u32,
}

impl State {
    pub(super) fn perform(&mut self, id: ClaimId, action: Action) {
        if let Action::Say(say) = action {
            return self.say(id, say);
        }
        if !self.up {
            return;
        }
        if matches!(action, Action::Delete(_)) {
            // The server is asked anew.
            self.stuck.remove(&id);
        }
        let Some(entry) = self.claims.get_mut(&id) else { return };
        match &action {
            Action::WatchOwn(name) if entry.machine.is_listing() => {
                entry.watch_later = Some(name.clone());
                return self.soon.push_back((self.clock.now().plus(WATCH_WITHIN), id));
            }
            Action::Prove => return self.prove(id),
            // The watch on our own node comes before everything else that follows from the list;
            // but not if it goes again at once.
            action => {
                let later = entry
                    .watch_later
                    .take()
                    .filter(|own| !matches!(action, Action::Delete(name) if name == own));
                if let Some(name) = later {
                    self.watch_own(id, name);
                }
            }
        }
        let Some(entry) = self.claims.get(&id) else { return };
        let at = |name: &str| format!("{}/{name}", entry.dir);
        let (request, step) = match action {
            Action::Create => {
                let (path, data, acl) =
                    (at(&entry.prefix), entry.data.clone(), self.options.acl.clone());
                (
                    Request::Create { path, data, acl, how: Create::EphemeralSequential },
                    Step::Create,
                )
            }
            Action::CreateLease => {
                let Some(gate) = self.gate_node(id) else {
                    return self.step(id, Input::Created(Err(Code::NO_NODE)));
                };
                let (path, data, acl) =
                    (at(&entry.prefix), entry.data.clone(), self.options.acl.clone());
                let mut all = vec![Request::Check { path: gate, version: -1 }];
                all.push(Request::Create { path, data, acl, how: Create::Ephemeral });
                if entry.limit.stored.is_none() {
                    let data = limit::write(&self.options, entry.claim.mode);
                    all.push(Request::SetData {
                        path: entry.dir.clone(),
                        data,
                        version: entry.limit.version,
                    });
                }
                (Request::Multi(all), Step::CreateLease)
            }
            Action::CreateWriter => {
                let prefix = entry.turn.as_ref().map_or("", |t| t.prefix.as_str());
                let (path, data, acl) = (at(prefix), entry.data.clone(), self.options.acl.clone());
                (
                    Request::Create { path, data, acl, how: Create::EphemeralSequential },
                    Step::CreateWriter,
                )
            }
            Action::CreateReader { seq, upgradable } => {
                let stood = ClaimId(entry.claim.id.0.wrapping_add(u128::from(entry.incarnation)));
                let tag = if upgradable { Tag::Upgradable } else { Tag::Read };
                let name = self.options.layout.prefix(tag, stood) + &write_seq(seq);
                let (path, data, acl) = (at(&name), entry.data.clone(), self.options.acl.clone());
                (
                    Request::Create { path, data, acl, how: Create::Ephemeral },
                    Step::CreateReader(Node::new(name, seq, None)),
                )
            }
            Action::Guard { node, behind } => {
                let (path, data, acl) = (at(&node), entry.data.clone(), self.options.acl.clone());
                let checks =
                    behind.iter().map(|name| Request::Check { path: at(name), version: -1 });
                let all = checks
                    .chain([Request::Create { path, data, acl, how: Create::Ephemeral }])
                    .collect();
                (Request::Multi(all), Step::Guard { behind })
            }
            Action::Number { node, before } => {
                let nodes = [node].into_iter().chain(before).collect();
                (
                    Request::GetData { path: entry.dir.clone(), watch: false },
                    Step::Before { nodes, tries: 0 },
                )
            }
            Action::List => {
                let dir = entry.dir.clone();
                if entry.claim.kind != Kind::Semaphore {
                    (Request::List { path: dir }, Step::List)
                } else {
                    listen(&mut self.targets, &dir, id);
                    let request = Request::GetData { path: dir.clone(), watch: true };
                    self.send(&request, Ticket::Claim(id, Step::Limit));
                    let list = if self.options.counts_leases() {
                        Request::ListAndWatch { path: dir }
                    } else {
                        Request::List { path: dir }
                    };
                    (list, Step::List)
                }
            }
            Action::StoreLimit => {
                let data = limit::write(&self.options, entry.claim.mode);
                (
                    Request::SetData {
                        path: entry.dir.clone(),
                        data,
                        version: entry.limit.version,
                    },
                    Step::StoreLimit,
                )
            }
            Action::WatchOwn(name) => return self.watch_own(id, name),
            Action::Watch(name) => {
                listen(&mut self.targets, &at(&name), id);
                (Request::GetData { path: at(&name), watch: true }, Step::Watch(name))
            }
            Action::Whose(name) => {
                (Request::GetData { path: at(&name), watch: false }, Step::Whose(name))
            }
            Action::Peek(name) => {
                (Request::GetData { path: at(&name), watch: false }, Step::Peek(name))
            }
            Action::Find { writer } => {
                let prefix = if writer {
                    entry.turn.as_ref().map_or("", |t| t.prefix.as_str())
                } else {
                    &entry.prefix
                };
                (
                    Request::GetEphemerals { prefix: at(prefix) },
                    Step::Find { prefix: prefix.to_owned() },
                )
            }
            Action::Delete(name)
                if entry.machine.deletes_again() && !self.options.layout.names_carry_ids() =>
            {
                (Request::GetData { path: at(&name), watch: false }, Step::DeleteAgain(name))
            }
            Action::Delete(name) => {
                (Request::Delete { path: at(&name), version: -1 }, Step::Delete(name))
            }
            Action::Discard(name) => {
                let request = Request::Delete { path: at(&name), version: -1 };
                return self.send(&request, Ticket::Nobody);
            }
            Action::Build => return self.build(id),
            Action::Prove | Action::Say(_) => return,
        };
        self.send(&request, Ticket::Claim(id, step));
    }

    fn watch_own(&mut self, id: ClaimId, name: String) {
        let Some(entry) = self.claims.get(&id) else { return };
        let path = format!("{}/{name}", entry.dir);
        listen(&mut self.targets, &path, id);
        self.send(&Request::GetData { path, watch: true }, Ticket::Claim(id, Step::Own(name)));
    }

    /// Asks for the watches whose time has come; answers when the next one's comes.
    pub(in super::super) fn watch_due(&mut self, now: Ticks) -> Option<Ticks> {
        while let Some((at, id)) = self.soon.front().copied() {
            if at > now {
                return Some(at);
            }
            self.soon.pop_front();
            if let Some(name) = self.claims.get_mut(&id).and_then(|entry| entry.watch_later.take())
            {
                self.watch_own(id, name);
            }
        }
        None
    }

    /// The directory was read: change it and our nodes, and leave all as they are.
    pub(super) fn number(
        &mut self,
        id: ClaimId,
        nodes: Vec<String>,
        tries: u32,
        result: Result<Reply, Code>,
    ) {
        let Some(entry) = self.claims.get(&id) else { return };
        let (data, version) = match result {
            Ok(Reply::Data(data, stat)) => (data, stat.version),
            Ok(_) => return self.step(id, Input::Numbered(Err(Code::RUNTIME_INCONSISTENCY))),
            Err(code) => return self.step(id, Input::Numbered(Err(code))),
        };
        let ours = |node| Request::SetData {
            path: format!("{}/{node}", entry.dir),
            data: entry.data.clone(),
            version: -1,
        };
        let directory = Request::SetData { path: entry.dir.clone(), data, version };
        let all = nodes.iter().map(ours).chain([directory]).collect();
        self.send(&Request::Multi(all), Ticket::Claim(id, Step::Number { nodes, tries }));
    }

    pub(super) fn numbered(
        &mut self,
        id: ClaimId,
        nodes: Vec<String>,
        tries: u32,
        result: Result<Reply, Code>,
    ) {
        if !self.claims.contains_key(&id) {
            return;
        }
        let numbered = together(result).and_then(|replies| match replies.first() {
            Some(Ok(Reply::Stat(stat))) => Ok(stat.mzxid),
            _ => Err(Code::RUNTIME_INCONSISTENCY),
        });
        if numbered == Err(Code::BAD_VERSION) {
            // Somebody else changed the directory in between; when many do at once, not all of them
            // at the same time again.
            let longest = if tries == 0 { 0 } else { PAUSE_MS << tries.min(6) };
            let pause = u64::try_from(ClaimId::fresh().0 % (longest + 1)).unwrap_or(0);
            let at = self.clock.now().plus(Duration::from_millis(pause));
            self.renumber.push(Renumber { at, id, nodes, tries: tries + 1 });
            self.driver_wanted = true;
            _ = self.renumber();
            return;
        }
        self.step(id, Input::Numbered(numbered));
    }

    /// Asks for numbers once more, where it is time to; answers how long it is until the next.
    pub(in super::super) fn renumber(&mut self) -> Option<Duration> {
        let now = self.clock.now();
        let (due, later) = std::mem::take(&mut self.renumber)
            .into_iter()
            .partition(|next: &Renumber| next.at <= now);
        self.renumber = later;
        for Renumber { id, nodes, tries, .. } in due {
            let Some(entry) = self.claims.get(&id) else { continue };
            if nodes.first().is_some_and(|node| entry.machine.nodes().contains(&node.as_str())) {
                let request = Request::GetData { path: entry.dir.clone(), watch: false };
                self.send(&request, Ticket::Claim(id, Step::Before { nodes, tries }));
            }
        }
        self.renumber.iter().map(|next| next.at.since(now)).min()
    }

    fn build(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let inside = entry.dir.get(self.options.chroot.len()..).unwrap_or_default();
        let ends = inside.match_indices('/').skip(1).map(|(at, _)| at).chain([inside.len()]);
        let paths: Vec<String> = ends
            .filter_map(|end| entry.dir.get(..self.options.chroot.len() + end))
            .map(str::to_owned)
            .collect();
        let other = (entry.claim.kind == Kind::Semaphore)
            .then(|| other_shape(&self.options, &entry.dir))
            .flatten();
        entry.build = Build {
            waiting: paths.len() + usize::from(other.is_some()),
            paths: paths.clone(),
            ..Build::default()
        };
        if let Some(path) = other {
            self.send(&Request::Exists { path, watch: false }, Ticket::Claim(id, Step::OtherShape));
        }
        for (at, path) in paths.into_iter().enumerate() {
            self.send(
                &Request::Exists { path, watch: false },
                Ticket::Claim(id, Step::Ancestor(at)),
            );
        }
    }

    /// What was found at the place of one of the directories, or (`None`) at that of a semaphore of
    /// the other shape.
    pub(super) fn ancestor(&mut self, id: ClaimId, at: Option<usize>, result: Result<Reply, Code>) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let build = &mut entry.build;
        build.waiting = build.waiting.saturating_sub(1);
        match (result, at) {
            (Ok(_), Some(_)) | (Err(Code::NO_NODE), None) => {}
            (Ok(_), None) => build.failed = Some(errors::OTHER_SHAPE),
            (Err(Code::NO_NODE), Some(at)) => build.missing.push(at),
            (Err(code), _) => build.failed = Some(code),
        }
        if build.waiting > 0 {
            return;
        }
        let missing: Vec<String> =
            build.missing.iter().filter_map(|at| build.paths.get(*at).cloned()).collect();
        build.waiting = missing.len();
        if missing.is_empty() || build.failed.is_some() {
            let result = build.failed.map_or(Ok(()), Err);
            return self.step(id, Input::Built(result));
        }
        // Others may share the path and make it once only: then it must not go away when it is
        // empty. Nor must a limit.
        let shares = self.options.layout != Layout::Curator;
        let limited = (entry.claim.kind == Kind::Semaphore).then(|| entry.dir.clone());
        let container = self.containers && !shares;
        for path in missing {
            let container = container && limited.as_ref() != Some(&path);
            self.make(id, path, container);
        }
    }

    fn make(&mut self, id: ClaimId, path: String, container: bool) {
        let Some(entry) = self.claims.get(&id) else { return };
        let how = if container { Create::Container } else { Create::Persistent };
        let limited = entry.claim.kind == Kind::Semaphore && entry.dir == path;
        let data = if limited { limit::write(&self.options, entry.claim.mode) } else { Vec::new() };
        let request =
            Request::Create { path: path.clone(), data, acl: self.options.acl.clone(), how };
        self.send(&request, Ticket::Claim(id, Step::Made { path, container }));
    }

    pub(super) fn made(
        &mut self,
        id: ClaimId,
        path: String,
        container: bool,
        result: Result<Reply, Code>,
    ) {
        if result == Err(Code::UNIMPLEMENTED) && container {
            self.containers = false;
            return self.make(id, path, false);
        }
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let build = &mut entry.build;
        build.waiting = build.waiting.saturating_sub(1);
        match result {
            // Made by somebody else in between; or what is above went away again, which the next
            // create will find.
            Ok(_) | Err(Code::NODE_EXISTS | Code::NO_NODE) => {}
            Err(code) => build.failed = Some(code),
        }
        if build.waiting == 0 {
            let result = build.failed.map_or(Ok(()), Err);
            self.step(id, Input::Built(result));
        }
    }
}

/// Who is told about a path: from when the watch is asked for, so that nobody who asked earlier
/// ends it.
pub(super) fn listen(targets: &mut HashMap<String, BTreeSet<ClaimId>>, path: &str, id: ClaimId) {
    targets.entry(path.to_owned()).or_default().insert(id);
}

/// What the parts of a transaction came to. What hindered one hindered all; those beside it say
/// less.
pub(in super::super) fn together(
    result: Result<Reply, Code>,
) -> Result<Vec<Result<Reply, Code>>, Code> {
    let Reply::Many(replies) = result? else { return Err(Code::RUNTIME_INCONSISTENCY) };
    let hindered = replies
        .iter()
        .filter_map(|r| r.as_ref().err())
        .find(|c| **c != Code(0) && **c != Code::RUNTIME_INCONSISTENCY);
    match hindered {
        Some(code) => Err(*code),
        None => Ok(replies),
    }
}

/// Where another library keeps the semaphore of the same name.
fn other_shape(options: &Options, dir: &str) -> Option<String> {
    let (name, _) = dir.rsplit_once('/')?;
    match options.layout {
        Layout::Curator if options.shared_permits => Some(format!("{name}/permits")),
        Layout::Curator => Some(format!("{name}/leases")),
        Layout::Kazoo if options.shared_permits => Some(format!("{dir}/permits")),
        Layout::Kazoo => Some(format!("{name}-__lock__")),
        Layout::Plain { .. } => None,
    }
}
