//! Replies to a claim's requests, as its machine understands them.

use std::collections::HashSet;

use super::perform::{listen, together};
use super::{Entry, REVOKE, Step, all_contenders, contenders};
use crate::engine::zookeeper::errors::{PLACES_MAX, TOO_MANY, newer_limit};
use crate::engine::zookeeper::layout::{Child, parse_seq};
use crate::engine::zookeeper::limit::Limit;
use crate::engine::zookeeper::proto::{Code, Reply, Request};
use crate::engine::zookeeper::recipe::{Input, Listing, Node, OwnSeen, Seen};
use crate::engine::zookeeper::record;
use crate::engine::zookeeper::state::{State, Ticket};
use crate::engine::{Attempt, Place};
use crate::words::id::ClaimId;

impl State {
    /// A reply to one of a claim's requests.
    pub(in super::super) fn claim_reply(
        &mut self,
        id: ClaimId,
        step: Step,
        result: Result<Reply, Code>,
    ) {
        if let (Step::List, Ok(Reply::Listing(names, _))) = (&step, &result) {
            self.look_beside(id, names);
        }
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let owner = self.session.as_ref().map_or(0, |s| s.key.id);
        let input = match step {
            Step::Create => Input::Created(created(entry, &entry.prefix, owner, result)),
            Step::CreateLease => {
                Input::Created(together(result).map(|_| Node::new(entry.prefix.clone(), 0, None)))
            }
            Step::CreateWriter => {
                let prefix = entry.turn.as_ref().map_or("", |t| t.prefix.as_str());
                Input::Created(created(entry, prefix, owner, result))
            }
            // There already: by our own request, whose answer was lost. The name is nobody else's.
            Step::CreateReader(node) => Input::Made(match result {
                Ok(_) | Err(Code::NODE_EXISTS) => Ok(node),
                Err(code) => Err(code),
            }),
            Step::List => Input::Listed(result.and_then(|reply| match reply {
                Reply::Listing(names, stat) => {
                    if let Some(newer) = entry.limit.newer {
                        return Err(newer_limit(newer));
                    }
                    let children = all_contenders(&self.options, entry.claim.kind, &names)?;
                    // Who has a place keeps it, however many come after; and those who may hold
                    // permits are no line.
                    let places = PLACES_MAX + usize::from(entry.limit.stored.unwrap_or(0));
                    if entry.machine.ahead(&children).is_some_and(|ahead| ahead >= places) {
                        return Err(TOO_MANY);
                    }
                    Ok(Listing { children, mzxid: stat.mzxid, limit: entry.limit.stored })
                }
                _ => Err(Code::RUNTIME_INCONSISTENCY),
            })),
            Step::Own(name) => {
                let asked = match &result {
                    Ok(Reply::Data(data, stat))
                        if data == REVOKE && stat.ephemeral_owner == owner =>
                    {
                        Some(stat.version)
                    }
                    _ => None,
                };
                let seen = result.and_then(|reply| match reply {
                    Reply::Data(data, stat) => Ok(OwnSeen {
                        czxid: stat.czxid,
                        ours: stat.ephemeral_owner == owner,
                        asked: data == REVOKE,
                    }),
                    _ => Err(Code::RUNTIME_INCONSISTENCY),
                });
                let path = format!("{}/{name}", entry.dir);
                match asked {
                    // The word was heard, and the node says again who stands there.
                    Some(version) => {
                        let request = Request::SetData { path, data: entry.data.clone(), version };
                        self.send(&request, Ticket::Nobody);
                    }
                    None if seen.is_err() => _ = self.forget_target(&path, id),
                    None => {}
                }
                Input::Own(name, seen)
            }
            Step::Limit => {
                if let Ok(Reply::Data(data, stat)) = result {
                    entry.limit = Limit::read(&self.options, &data, &stat);
                    // An earlier event may have used up who was to be told.
                    let dir = entry.dir.clone();
                    listen(&mut self.targets, &dir, id);
                }
                // A directory that is not there is what the list says, too.
                return;
            }
            Step::StoreLimit => Input::LimitStored(result.map(|_| ())),
            Step::Whose(name) => {
                let ours = matches!(&result, Ok(Reply::Data(data, _)) if record::is_ours(data));
                let seen = self.look_at(id, &name, result);
                Input::Whose { name, seen, ours }
            }
            Step::Guard { behind } => {
                let parts =
                    if let Ok(Reply::Many(parts)) = &result { parts.as_slice() } else { &[] };
                let gone = parts
                    .iter()
                    .position(|part| *part == Err(Code::NO_NODE))
                    .and_then(|at| behind.get(at))
                    .cloned();
                Input::Guarded(together(result).map(|_| ()), gone)
            }
            Step::Before { nodes, tries } => return self.number(id, nodes, tries, result),
            Step::Number { nodes, tries } => return self.numbered(id, nodes, tries, result),
            // Whether whoever may not read a node may watch it is up to the server; where it may
            // not, the net finds out.
            Step::Watch(name) if result == Err(Code::NO_AUTH) => {
                let path = format!("{}/{name}", entry.dir);
                if self.targets.get(&path).is_some_and(|claims| claims.contains(&id)) {
                    let ticket = Ticket::Claim(id, Step::WatchUnread(name));
                    self.send(&Request::Exists { path, watch: true }, ticket);
                }
                return;
            }
            Step::Watch(name) | Step::WatchUnread(name) => {
                let path = format!("{}/{name}", entry.dir);
                if result.is_err() {
                    self.forget_target(&path, id);
                }
                let seen = self.look_at(id, &name, result);
                Input::Watched(name, seen)
            }
            Step::Peek(name) => {
                let seen = self.look_at(id, &name, result);
                Input::Peeked(name, seen)
            }
            Step::Beside(name) => return self.seen_beside(id, &name, result),
            Step::Doubted(name) => return self.doubted(id, name, &result),
            Step::Find { prefix } => {
                let found = match result {
                    Ok(Reply::Children(paths)) => self.found(id, &prefix, &paths),
                    Ok(_) => Err(Code::RUNTIME_INCONSISTENCY),
                    Err(code) => Err(code),
                };
                Input::Found(found)
            }
            Step::Delete(name) => Input::Deleted(name, result.map(|_| ())),
            Step::DeleteAgain(name) => match result {
                Ok(Reply::Data(_, stat))
                    if stat.ephemeral_owner == owner && !self.is_anothers(id, &name) =>
                {
                    let Some(entry) = self.claims.get(&id) else { return };
                    let request =
                        Request::Delete { path: format!("{}/{name}", entry.dir), version: -1 };
                    return self.send(&request, Ticket::Claim(id, Step::Delete(name)));
                }
                Ok(_) => Input::Deleted(name, Err(Code::NO_NODE)),
                Err(code) => Input::Deleted(name, Err(code)),
            },
            Step::Ancestor(at) => return self.ancestor(id, Some(at), result),
            Step::OtherShape => return self.ancestor(id, None, result),
            Step::Gate => return self.looked_at_gate(id, result),
            Step::Made { path, container } => return self.made(id, path, container, result),
        };
        self.step(id, input);
    }

    /// Reads who stands at another node, and tells the place in line that waits to know it.
    fn look_at(&mut self, id: ClaimId, name: &str, result: Result<Reply, Code>) -> Seen {
        let Some(entry) = self.claims.get_mut(&id) else { return Seen::Gone };
        let kind = entry.claim.kind;
        let child = || {
            contenders(&self.options, kind, &[name.to_owned()]).ok().and_then(|mut all| all.pop())
        };
        let (seen, holder) = match result {
            Ok(Reply::Data(_, stat) | Reply::Stat(stat)) if stat.is_directory() => {
                (Seen::NoContender, None)
            }
            Ok(Reply::Data(data, stat)) => (
                Seen::Here(stat.mzxid),
                child().map(|child| record::holder(kind, &child, &data, &stat)),
            ),
            Ok(Reply::Stat(stat)) => (
                Seen::Here(stat.mzxid),
                child().map(|child| record::unread(kind, &child, Some(&stat))),
            ),
            Err(Code::NO_NODE) => (Seen::Gone, None),
            // Who may not be looked at is there all the same.
            Err(Code::NO_AUTH) => {
                (Seen::Here(0), child().map(|child| record::unread(kind, &child, None)))
            }
            _ => (Seen::Here(0), None),
        };
        let holder = holder.map(Box::new);
        entry.holder.clone_from(&holder);
        if let Some((_, ahead)) = entry.place.take_if(|(first, _)| first == name)
            && seen != Seen::NoContender
        {
            for sender in std::mem::take(&mut entry.answers) {
                self.outbox.attempts.push((
                    sender,
                    Attempt::InLine(Place {
                        ahead: Some(ahead),
                        holder: holder.clone(),
                        ask_at: None,
                    }),
                ));
            }
        }
        seen
    }

    /// This session's nodes under a claim's prefix.
    fn found(&self, id: ClaimId, prefix: &str, paths: &[String]) -> Result<Vec<Child>, Code> {
        let entry = self.claims.get(&id).ok_or(Code::NO_NODE)?;
        let inside = format!("{}/", entry.dir);
        let names: Vec<&str> = paths
            .iter()
            .filter_map(|p| p.strip_prefix(&inside))
            .filter(|name| !name.contains('/'))
            .collect();
        let carries_ids = self.options.layout.names_carry_ids();
        let ours =
            |name: &&str| name.starts_with(prefix) && (carries_ids || !self.is_anothers(id, name));
        let names: Vec<String> = names.into_iter().filter(ours).map(str::to_owned).collect();
        contenders(&self.options, entry.claim.kind, &names)
    }

    /// The net has listed the directory of a claim that waits.
    pub(in super::super) fn look_for_strangers(&mut self, id: ClaimId, names: &[String]) {
        let Some(entry) = self.claims.get(&id) else { return };
        let children = names.iter().filter_map(|name| self.options.layout.child(name));
        if children.into_iter().any(|child| entry.machine.is_stranger(&child)) {
            self.step(id, Input::Strangers);
        }
    }

    /// Whether another claim of ours knows the node as its own, which only happens in a layout
    /// whose names carry no ids.
    fn is_anothers(&self, id: ClaimId, name: &str) -> bool {
        let Some(entry) = self.claims.get(&id) else { return false };
        let others = self.claims.iter().filter(|(other, e)| **other != id && e.dir == entry.dir);
        others.flat_map(|(_, e)| e.machine.nodes()).any(|n| n == name)
    }

    /// Deletes those of this session's nodes that no claim knows: a create that a slow server
    /// passed on after its reply was given up stands in the line, and nobody would ever leave it.
    pub(in super::super) fn drop_leftovers(&mut self, paths: &[String]) {
        if !self.up || !self.options.layout.names_carry_ids() {
            return;
        }
        // A create whose answer is on its way may have made any of a directory.
        let open =
            self.claims.values().filter(|e| !e.machine.knows_its_nodes()).map(|e| e.dir.as_str());
        let open: HashSet<&str> = open.collect();
        let known = self
            .claims
            .values()
            .flat_map(|e| e.machine.nodes().into_iter().map(|name| (e.dir.as_str(), name)));
        let known: HashSet<(&str, &str)> = known.collect();
        let is_unknown = |path: &&String| {
            path.rsplit_once('/').is_some_and(|(dir, name)| {
                Child::read(name).is_some() && !known.contains(&(dir, name))
            })
        };
        let is_open =
            |path: &String| path.rsplit_once('/').is_some_and(|(dir, _)| open.contains(dir));
        let (skipped, left): (Vec<String>, Vec<String>) =
            paths.iter().filter(is_unknown).cloned().partition(is_open);
        if !skipped.is_empty() {
            self.search_later();
        }
        for path in left {
            tracing::warn!(path, "a node of this session that no claim knows is deleted");
            self.send(&Request::Delete { path, version: -1 }, Ticket::Nobody);
        }
    }

    /// A claim does not wait for a path any more: the watch ends with the last who does.
    pub(super) fn drop_target(&mut self, path: &str, id: ClaimId) {
        if self.forget_target(path, id) && self.up {
            self.send(&Request::UnwatchData { path: path.to_owned() }, Ticket::Nobody);
        }
    }

    /// Answers whether it was the last who is told about a path.
    fn forget_target(&mut self, path: &str, id: ClaimId) -> bool {
        let Some(ids) = self.targets.get_mut(path) else { return false };
        let last = ids.remove(&id) && ids.is_empty();
        if last {
            self.targets.remove(path);
        }
        last
    }
}

/// The node that a create made, if it lives with our session.
fn created(
    entry: &Entry,
    prefix: &str,
    owner: i64,
    result: Result<Reply, Code>,
) -> Result<Node, Code> {
    match result? {
        Reply::Created { path, stat } if stat.ephemeral_owner == owner => {
            let name = path.strip_prefix(&entry.dir).and_then(|rest| rest.strip_prefix('/'));
            let seq = name.and_then(|name| parse_seq(name.strip_prefix(prefix)?));
            name.zip(seq)
                .map(|(name, seq)| Node::new(name.to_owned(), seq, Some(stat.czxid)))
                .ok_or(Code::RUNTIME_INCONSISTENCY)
        }
        _ => Err(Code::RUNTIME_INCONSISTENCY),
    }
}
