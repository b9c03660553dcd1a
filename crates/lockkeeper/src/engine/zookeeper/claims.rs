//! Runs each claim's [`Contender`]: its actions become requests, what it says becomes answers and events.

use tokio::sync::oneshot;

use super::errors::{self, PLACES_MAX, TOO_MANY};
use super::layout::{Child, Layout, Tag, parse_seq};
use super::proto::{Code, Create, Happened, Reply, Request, Stat, WatchEvent};
use super::recipe::{Action, Contender, Input, Node, OwnSeen, Say, Seen, Want};
use super::record;
use super::state::{State, Ticket};
use crate::claim::{Claim, Holder, Mode};
use crate::engine::{Attempt, End, Event, Grant, Lease, Number, Place, Which};
use crate::error::{Error, ErrorKind};
use crate::id::ClaimId;
use crate::lost::Lost;
use crate::name::Kind;

/// Curator's word for `let go`.
pub(super) const REVOKE: &[u8] = b"__REVOKE__";

/// What a claim's request was for.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Create,
    List,
    Own,
    Watch(String),
    Peek(String),
    Find,
    Delete,
    /// Looks whether one of the directories is there.
    Ancestor(usize),
    /// Makes one of them.
    Made {
        path: String,
        container: bool,
    },
}

/// A claim and all that belongs to it.
pub(super) struct Entry {
    pub(super) claim: Claim,
    pub(super) machine: Contender,
    /// The directory, as the server sees it.
    pub(super) dir: String,
    /// What our node is called up to its number.
    prefix: String,
    data: Vec<u8>,
    /// Counts the sessions in which it stood: a node of an earlier one is somebody else's.
    incarnation: u32,
    /// Who waits for the attempt's answer, and for the end.
    answers: Vec<oneshot::Sender<Attempt>>,
    ends: Vec<oneshot::Sender<End>>,
    /// The place is told once it is known who is at this node.
    place: Option<(String, u32)>,
    holder: Option<Box<Holder>>,
    build: Build,
}

/// Making a directory and what is missing above it.
#[derive(Default)]
struct Build {
    paths: Vec<String>,
    missing: Vec<usize>,
    waiting: usize,
    failed: Option<Code>,
}

impl State {
    /// A claim is asked for, or asked about again.
    pub(super) fn attempt(&mut self, claim: &Claim, dir: String, only_try: bool) -> oneshot::Receiver<Attempt> {
        let (sender, receiver) = oneshot::channel();
        let id = claim.id;
        let Some(entry) = self.claims.get_mut(&id) else {
            self.stand(claim, dir, only_try, sender);
            return receiver;
        };
        let held = entry.machine.held();
        let waits = entry.machine.waits_for().is_some();
        if entry.machine.is_leaving() {
            self.outbox.attempts.push((sender, Attempt::Unknown(Error::new(ErrorKind::Unknown, "the claim is being withdrawn"))));
        } else if let Some(czxid) = held {
            let answer = self.grant(czxid);
            self.outbox.attempts.push((sender, answer));
        } else if waits && entry.place.is_none() {
            self.outbox.attempts.push((sender, Attempt::InLine(Place::default())));
        } else {
            entry.answers.push(sender);
        }
        receiver
    }

    fn stand(&mut self, claim: &Claim, dir: String, only_try: bool, sender: oneshot::Sender<Attempt>) {
        let want = if claim.mode == Mode::Shared { Want::Shared } else { Want::Exclusive };
        let entry = Entry {
            claim: claim.clone(),
            machine: Contender::new(want, only_try),
            dir,
            prefix: self.options.layout.prefix(tag_of(&self.options.layout, claim), claim.id),
            data: record::write(claim),
            incarnation: 0,
            answers: vec![sender],
            ends: Vec::new(),
            place: None,
            holder: None,
            build: Build::default(),
        };
        self.claims.insert(claim.id, entry);
        if self.up {
            self.step(claim.id, Input::LinkUp);
        }
    }

    /// Leaves the line, or gives the hold back.
    pub(super) fn leave(&mut self, id: ClaimId) -> oneshot::Receiver<End> {
        let (sender, receiver) = oneshot::channel();
        match self.claims.get_mut(&id) {
            Some(entry) => {
                entry.ends.push(sender);
                self.step(id, Input::Leave);
            }
            None => self.outbox.ends.push((sender, End::NotOurs)),
        }
        receiver
    }

    /// Its caller's time is over while nothing of it was ever sent.
    pub(super) fn forget_unsent(&mut self, id: ClaimId) -> bool {
        let unsent = !self.up && self.claims.get(&id).is_some_and(|e| e.machine.left_nothing());
        if unsent {
            self.claims.remove(&id);
        }
        unsent
    }

    /// A grant of the session, as the evidence for it stands now.
    pub(super) fn grant(&self, czxid: i64) -> Attempt {
        let number = u64::try_from(czxid).ok().filter(|n| *n < 1 << 57);
        let (Some(number), Some(session)) = (number, &self.session) else {
            let text = format!("the ensemble's transaction number {czxid} is beyond what a token can carry");
            return Attempt::Failed(Error::new(ErrorKind::Refused, text));
        };
        let now = self.clock.now();
        let left = self.alive.left(now, self.options.drift_per_mille);
        let lease = if left >= session.timeout / 8 {
            Lease { id: session.lease(), ttl: left, since: Some(now), confirm: false }
        } else {
            // Too little is proven about the session: a renewal first.
            Lease { id: session.lease(), ttl: session.timeout, since: None, confirm: true }
        };
        Attempt::Granted(Grant { number: Number::Ours(number), lease: Some(lease) })
    }

    pub(super) fn claim_link_up(&mut self, id: ClaimId) {
        let now = self.clock.now();
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let late = entry.claim.give_up.is_some_and(|at| at <= now);
        if late && entry.machine.left_nothing() {
            // A request that was held up must not lock for a caller who has left (R3).
            let text = "ZooKeeper could not be reached within the caller's time";
            return self.finish(id, Attempt::Failed(Error::new(ErrorKind::TimedOut, text)));
        }
        self.step(id, Input::LinkUp);
    }

    pub(super) fn claim_link_down(&mut self, id: ClaimId) {
        if let Some(entry) = self.claims.get_mut(&id) {
            entry.place = None;
            entry.build = Build::default();
            self.step(id, Input::LinkDown);
        }
    }

    pub(super) fn claim_session_ended(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        entry.incarnation = entry.incarnation.wrapping_add(1);
        // A node of the session that ended may still be listed for a while: it must not look like ours.
        let fresh = ClaimId(entry.claim.id.0.wrapping_add(u128::from(entry.incarnation)));
        entry.prefix = self.options.layout.prefix(tag_of(&self.options.layout, &entry.claim), fresh);
        self.step(id, Input::SessionEnded);
    }

    /// A reply to one of a claim's requests.
    pub(super) fn claim_reply(&mut self, id: ClaimId, step: Step, result: Result<Reply, Code>) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let owner = self.session.as_ref().map_or(0, |s| s.key.id);
        let input = match step {
            Step::Create => Input::Created(result.and_then(|reply| match reply {
                Reply::Created { path, stat } if stat.ephemeral_owner == owner => {
                    node_of(entry, &path, &stat).ok_or(Code::RUNTIME_INCONSISTENCY)
                }
                _ => Err(Code::RUNTIME_INCONSISTENCY),
            })),
            Step::List => Input::Listed(result.and_then(|reply| match reply {
                Reply::Children(names) => contenders(&self.options.layout, entry.claim.kind, &names),
                _ => Err(Code::RUNTIME_INCONSISTENCY),
            })),
            Step::Own => Input::Own(result.and_then(|reply| match reply {
                Reply::Data(data, stat) => Ok(OwnSeen { czxid: stat.czxid, ours: stat.ephemeral_owner == owner, asked: data == REVOKE }),
                _ => Err(Code::RUNTIME_INCONSISTENCY),
            })),
            Step::Watch(name) => {
                let wanted = entry.machine.watched().any(|n| n == name);
                let path = format!("{}/{name}", entry.dir);
                let seen = self.look_at(id, &name, result);
                if seen == Seen::Here {
                    self.target(&path, id, wanted);
                }
                Input::Watched(name, seen)
            }
            Step::Peek(name) => {
                let seen = self.look_at(id, &name, result);
                Input::Peeked(name, seen)
            }
            Step::Find => {
                let Some(found) = self.found(id, result) else { return };
                Input::Found(found)
            }
            Step::Delete => Input::Deleted(result.map(|_| ())),
            Step::Ancestor(at) => return self.ancestor(id, at, result),
            Step::Made { path, container } => return self.made(id, path, container, result),
        };
        if matches!(input, Input::Own(Ok(_)))
            && let Some(path) = self.claims.get(&id).and_then(Entry::node_path)
        {
            self.target(&path, id, true);
        }
        self.step(id, input);
    }

    /// Reads who stands at another node, and tells the place in line that waits to know it.
    fn look_at(&mut self, id: ClaimId, name: &str, result: Result<Reply, Code>) -> Seen {
        let Some(entry) = self.claims.get_mut(&id) else { return Seen::Gone };
        let (seen, holder) = match result {
            Ok(Reply::Data(_, stat)) if stat.is_directory() => (Seen::NoContender, None),
            Ok(Reply::Data(data, stat)) => {
                let holder = Child::read(name).map(|child| Box::new(record::holder(entry.claim.kind, &child, &data, &stat)));
                (Seen::Here, holder)
            }
            Err(Code::NO_NODE) => (Seen::Gone, None),
            // Who may not be looked at is there all the same.
            _ => (Seen::Here, None),
        };
        entry.holder.clone_from(&holder);
        if let Some((_, ahead)) = entry.place.take_if(|(first, _)| first == name)
            && seen != Seen::NoContender
        {
            for sender in std::mem::take(&mut entry.answers) {
                self.outbox.attempts.push((sender, Attempt::InLine(Place { ahead: Some(ahead), holder: holder.clone() })));
            }
        }
        seen
    }

    /// Remembers who is told about a path; or ends a watch that nobody wants any more.
    fn target(&mut self, path: &str, id: ClaimId, wanted: bool) {
        if wanted {
            self.targets.entry(path.to_owned()).or_default().insert(id);
        } else if !self.targets.contains_key(path) {
            self.send(&Request::UnwatchData { path: path.to_owned() }, Ticket::Nobody);
        }
    }

    /// This session's nodes under a claim's prefix.
    fn found(&mut self, id: ClaimId, result: Result<Reply, Code>) -> Option<Vec<Child>> {
        let entry = self.claims.get(&id)?;
        let names: Vec<String> = match result {
            Ok(Reply::Children(paths)) => {
                let inside = format!("{}/", entry.dir);
                paths.iter().filter_map(|p| p.strip_prefix(&inside)).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        // In a layout without ids, what other claims of ours know as theirs is not this one's.
        let known = |name: &str| {
            let others = self.claims.iter().filter(|(other, e)| **other != id && e.dir == entry.dir);
            others.filter_map(|(_, e)| e.machine.node()).any(|n| n.name == name)
        };
        let carries_ids = self.options.layout.names_carry_ids();
        let ours = |name: &&String| name.starts_with(&entry.prefix) && (carries_ids || !known(name));
        Some(names.iter().filter(ours).filter_map(|n| Child::read(n)).collect())
    }

    /// A watch that fired.
    pub(super) fn claim_event(&mut self, id: ClaimId, event: &WatchEvent) {
        let Some(entry) = self.claims.get(&id) else { return };
        let Some(name) = event.path.strip_prefix(&entry.dir).and_then(|rest| rest.strip_prefix('/')) else { return };
        let name = name.to_owned();
        self.step(id, Input::Happened { name, deleted: event.happened == Happened::Deleted });
    }

    /// Steps a claim, and does and says what comes of it.
    pub(super) fn step(&mut self, id: ClaimId, input: Input) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let before: Vec<String> = entry.machine.watched().map(str::to_owned).collect();
        let mut actions = Vec::new();
        entry.machine.step(input, &mut actions);
        let after: Vec<&str> = entry.machine.watched().collect();
        let dropped: Vec<String> =
            before.into_iter().filter(|n| !after.contains(&n.as_str())).map(|n| format!("{}/{n}", entry.dir)).collect();
        let next = entry.machine.waits_for().is_some_and(|(_, last)| last);
        for path in dropped {
            self.drop_target(&path, id);
        }
        if next {
            self.next_in_line.insert(id);
        } else {
            self.next_in_line.remove(&id);
        }
        for action in actions {
            self.perform(id, action);
        }
        if self.claims.get(&id).is_some_and(|e| e.machine.is_over()) {
            // It ended with its session, which is told for all of them at once.
            let error = Error::new(ErrorKind::Lost, "the session that carried it ended");
            return self.finish(id, Attempt::Failed(error));
        }
        // Whoever asks again while it waits gets an answer, also when the place was told before.
        if let Some(entry) = self.claims.get_mut(&id)
            && entry.place.is_none()
            && entry.machine.waits_for().is_some()
        {
            for sender in std::mem::take(&mut entry.answers) {
                self.outbox.attempts.push((sender, Attempt::InLine(Place::default())));
            }
        }
    }

    fn drop_target(&mut self, path: &str, id: ClaimId) {
        let Some(ids) = self.targets.get_mut(path) else { return };
        ids.remove(&id);
        if ids.is_empty() {
            self.targets.remove(path);
            if self.up {
                self.send(&Request::UnwatchData { path: path.to_owned() }, Ticket::Nobody);
            }
        }
    }

    fn perform(&mut self, id: ClaimId, action: Action) {
        if let Action::Say(say) = action {
            return self.say(id, say);
        }
        let Some(entry) = self.claims.get_mut(&id) else { return };
        if !self.up {
            return;
        }
        let at = |name: &str| format!("{}/{name}", entry.dir);
        let (request, step) = match action {
            Action::Create => {
                let (path, data, acl) = (at(&entry.prefix), entry.data.clone(), self.options.acl.clone());
                (Request::Create { path, data, acl, how: Create::EphemeralSequential }, Step::Create)
            }
            Action::List => (Request::GetChildren { path: entry.dir.clone() }, Step::List),
            Action::WatchOwn(name) => (Request::GetData { path: at(&name), watch: true }, Step::Own),
            Action::Watch(name) => (Request::GetData { path: at(&name), watch: true }, Step::Watch(name)),
            Action::Peek(name) => (Request::GetData { path: at(&name), watch: false }, Step::Peek(name)),
            Action::Find => (Request::GetEphemerals { prefix: at(&entry.prefix) }, Step::Find),
            Action::Delete(name) => (Request::Delete { path: at(&name), version: -1 }, Step::Delete),
            Action::Discard(name) => {
                let request = Request::Delete { path: at(&name), version: -1 };
                return self.send(&request, Ticket::Nobody);
            }
            Action::Build => return self.build(id),
            Action::Say(_) => return,
        };
        self.send(&request, Ticket::Claim(id, step));
    }

    fn say(&mut self, id: ClaimId, say: Say) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        match say {
            Say::Granted { czxid } => {
                let answer = self.grant(czxid);
                match answer {
                    Attempt::Granted(grant) => self.granted(id, grant),
                    refused => {
                        self.tell(id, refused);
                        self.step(id, Input::Leave);
                    }
                }
            }
            Say::InLine { ahead, first } => entry.place = Some((first, ahead)),
            Say::Busy => {
                let holder = entry.holder.take();
                self.finish(id, Attempt::Busy(holder));
            }
            Say::Refused(code) => {
                let error = errors::refused(code, &entry.dir);
                self.finish(id, Attempt::Failed(error));
            }
            Say::Lost => {
                self.outbox.events.push(Event::Ended { which: Which::Hold(id), why: Lost::TakenAway });
                self.finish(id, Attempt::Failed(Error::new(ErrorKind::Lost, "its node was deleted")));
            }
            Say::Asked => self.outbox.events.push(Event::Asked { hold: id }),
            Say::Left { ours } => {
                let end = || if ours { End::Freed } else { End::NotOurs };
                for sender in std::mem::take(&mut entry.ends) {
                    self.outbox.ends.push((sender, end()));
                }
                self.finish(id, Attempt::Busy(None));
            }
            Say::Stuck(code) => {
                let error = errors::refused(code, &entry.dir);
                for sender in std::mem::take(&mut entry.ends) {
                    self.outbox.ends.push((sender, End::Unknown(error.clone())));
                }
                self.stuck.insert(id);
            }
        }
    }

    fn granted(&mut self, id: ClaimId, grant: Grant) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        entry.place = None;
        let mut answers = std::mem::take(&mut entry.answers);
        if answers.is_empty() {
            self.outbox.events.push(Event::Granted { claim: id, grant });
            return;
        }
        for sender in answers.drain(..) {
            self.outbox.attempts.push((sender, Attempt::Granted(grant.clone())));
        }
    }

    /// Tells an answer to everybody who waits for one, and to the keeper when nobody does.
    fn tell(&mut self, id: ClaimId, answer: Attempt) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let answers = std::mem::take(&mut entry.answers);
        if answers.is_empty()
            && !entry.machine.is_leaving()
            && let Attempt::Failed(error) = &answer
        {
            self.outbox.events.push(Event::Failed { claim: id, error: error.clone() });
        }
        for sender in answers {
            self.outbox.attempts.push((sender, answer.clone()));
        }
    }

    /// The claim is over: nothing of it is left.
    fn finish(&mut self, id: ClaimId, answer: Attempt) {
        let Some(mut entry) = self.claims.remove(&id) else { return };
        self.next_in_line.remove(&id);
        self.stuck.remove(&id);
        if entry.answers.is_empty()
            && let Attempt::Failed(error) = &answer
            && error.kind() != ErrorKind::Lost
        {
            self.outbox.events.push(Event::Failed { claim: id, error: error.clone() });
        }
        for sender in entry.answers.drain(..) {
            self.outbox.attempts.push((sender, answer.clone()));
        }
        for sender in entry.ends.drain(..) {
            self.outbox.ends.push((sender, End::NotOurs));
        }
    }

    fn build(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let inside = entry.dir.get(self.options.chroot.len()..).unwrap_or_default();
        let ends = inside.match_indices('/').skip(1).map(|(at, _)| at).chain([inside.len()]);
        let paths: Vec<String> = ends.filter_map(|end| entry.dir.get(..self.options.chroot.len() + end)).map(str::to_owned).collect();
        entry.build = Build { waiting: paths.len(), paths: paths.clone(), ..Build::default() };
        for (at, path) in paths.into_iter().enumerate() {
            self.send(&Request::Exists { path, watch: false }, Ticket::Claim(id, Step::Ancestor(at)));
        }
    }

    fn ancestor(&mut self, id: ClaimId, at: usize, result: Result<Reply, Code>) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let build = &mut entry.build;
        build.waiting = build.waiting.saturating_sub(1);
        match result {
            Ok(_) => {}
            Err(Code::NO_NODE) => build.missing.push(at),
            Err(code) => build.failed = Some(code),
        }
        if build.waiting > 0 {
            return;
        }
        let missing: Vec<String> = build.missing.iter().filter_map(|at| build.paths.get(*at).cloned()).collect();
        build.waiting = missing.len();
        if missing.is_empty() || build.failed.is_some() {
            let result = build.failed.map_or(Ok(()), Err);
            return self.step(id, Input::Built(result));
        }
        // Others may share the path and make it once only: then it must not go away when it is empty.
        let container = self.containers && self.options.layout == Layout::Curator;
        for path in missing {
            self.make(id, path, container);
        }
    }

    fn make(&mut self, id: ClaimId, path: String, container: bool) {
        let how = if container { Create::Container } else { Create::Persistent };
        let request = Request::Create { path: path.clone(), data: Vec::new(), acl: self.options.acl.clone(), how };
        self.send(&request, Ticket::Claim(id, Step::Made { path, container }));
    }

    fn made(&mut self, id: ClaimId, path: String, container: bool, result: Result<Reply, Code>) {
        if result == Err(Code::UNIMPLEMENTED) && container {
            self.containers = false;
            return self.make(id, path, false);
        }
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let build = &mut entry.build;
        build.waiting = build.waiting.saturating_sub(1);
        match result {
            // Made by somebody else in between; or what is above went away again, which the next create will find.
            Ok(_) | Err(Code::NODE_EXISTS | Code::NO_NODE) => {}
            Err(code) => build.failed = Some(code),
        }
        if build.waiting == 0 {
            let result = build.failed.map_or(Ok(()), Err);
            self.step(id, Input::Built(result));
        }
    }
}

impl Entry {
    /// The path of our node.
    pub(super) fn node_path(&self) -> Option<String> {
        self.machine.node().map(|node| format!("{}/{}", self.dir, node.name))
    }
}

/// The node that a create made.
fn node_of(entry: &Entry, path: &str, stat: &Stat) -> Option<Node> {
    let name = path.strip_prefix(&entry.dir)?.strip_prefix('/')?;
    let seq = parse_seq(name.strip_prefix(&entry.prefix)?)?;
    Some(Node::new(name.to_owned(), seq, Some(stat.czxid)))
}

/// Which node of the layout a claim stands with.
fn tag_of(layout: &Layout, claim: &Claim) -> Tag {
    match (claim.kind, claim.mode) {
        (Kind::Election, _) if *layout == Layout::Curator => Tag::Latch,
        (_, Mode::Shared) => Tag::Read,
        // Curator's readers respect only this one, and its mutexes only the other.
        (Kind::Lock, _) if claim.rw => Tag::Write,
        _ => Tag::Lock,
    }
}

/// The children that stand in the line of this kind.
pub(super) fn contenders(layout: &Layout, kind: Kind, names: &[String]) -> Result<Vec<Child>, Code> {
    let election = kind == Kind::Election && *layout == Layout::Curator;
    let counts = |child: &Child| match child.tag {
        Tag::Latch => election,
        Tag::Lease => false,
        _ => !election,
    };
    let all: Vec<Child> = names.iter().filter_map(|name| Child::read(name)).filter(counts).collect();
    if all.len() > PLACES_MAX { Err(TOO_MANY) } else { Ok(all) }
}
